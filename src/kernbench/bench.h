/* Benchmarks of the kernels: each op at real shapes, next to what the machine can do at most, measured in the same run.
 *
 * A case is checked against ref before it is timed. Its inputs are larger than the caches where the op is bound by
 * memory. Times are those of the calling thread's CPU clock with one thread (so that other programs disturb less)
 * and of the wall clock with more. Threads: one call at a time.   Memory: up to 1 GiB for weights that don't fit in
 * a cache; all freed at the end. */
#ifndef DS_KERNBENCH_BENCH_H
#define DS_KERNBENCH_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

typedef struct {
    const char *op;      /* "gemv", "gemm", "experts", "attention", "index_topk", "mhc", "pool" */
    const char *variant; /* of the table */
    char shape[96];      /* "mxfp4 4608x5120 rows=8" */
    const char *act;     /* "f32", "bf16"; "-" where it makes no difference */
    uint32_t threads, reps;
    uint64_t ns_med, ns_p95, ns_best;
    double rate;         /* of the median */
    const char *unit;    /* "gb_s", "gflop_s", or NULL: no rate */
    double roof;         /* in that unit; 0: none */
    const char *roof_of; /* "dram read", "fma", "dpbf16", "amx bf16", "maddubs" */
} ds_bench_case;

/* Receives each case as it is done; false ends the run. */
typedef bool ds_bench_fn(void *ctx, const ds_bench_case *c);

typedef struct {
    const char *op;      /* NULL = all */
    const char *kernels; /* as ds_kern_init */
    uint32_t threads;    /* cases run with 1 thread and with this many, if more */
    uint32_t ms;         /* time for a case; 0 = 200 */
} ds_bench_opts;

/* DS_E_ARG: unknown op, or kernels that this machine lacks; DS_E_NOMEM; DS_E_FORMAT: a variant that differs from ref
 * by more than its contract. */
ds_rc ds_bench_run(const ds_bench_opts *o, ds_bench_fn *fn, void *ctx, ds_err *err);
extern const char ds_bench_ops[]; /* names, separated by "|" */

#endif
