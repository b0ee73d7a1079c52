/* Inside of src/bench: the run that all cases share. */
#ifndef DS_KERNBENCH_BENCH_INTERNAL_H
#define DS_KERNBENCH_BENCH_INTERNAL_H

#include "base/mem.h"
#include "base/pool.h"
#include "kernbench/bench.h"
#include "kernbench/roof.h"
#include "kern/kern.h"

enum { MAX_REPS = 4096 };

typedef enum { ROOF_NONE, ROOF_READ, ROOF_FMA, ROOF_BF16, ROOF_BYTES, N_ROOFS } roof_kind;

typedef struct {
    ds_kern k, ref;
    ds_exec e;
    ds_arena arena;
    ds_fault fault;
    ds_pool *pool; /* NULL while cases run with one thread */
    uint32_t threads, ms;
    double roof[2][N_ROOFS]; /* of one thread and of all: GB/s or GFLOP/s */
    const char *roof_name[N_ROOFS];
    uint8_t *cold; /* cold_bytes of random bytes, more than any cache holds */
    size_t cold_bytes;
    uint64_t seed;
    ds_bench_fn *fn;
    void *ctx;
    bool stopped;
    uint64_t ns[MAX_REPS];
} run;

/* What is timed: `once` does the op; rep counts up, so that it can use other memory each time. */
typedef void once_fn(void *arg, size_t rep);

uint32_t random_u32(run *r);
float random_float(run *r); /* about normal, exact in bf16 */
/* Zeroed, 64-byte aligned; NULL when there is no memory. */
void *take_zeroed(size_t n, size_t size);

/* Times `once` and reports. work: bytes or operations of one call, for the unit that `kind` has. */
void time_case(run *r, ds_bench_case *c, once_fn *once, void *arg, double work, roof_kind kind);

ds_rc bench_products(run *r, bool gemv, ds_err *err);
ds_rc bench_experts(run *r, ds_err *err);
ds_rc bench_attention(run *r, ds_err *err);
ds_rc bench_index(run *r, ds_err *err);
ds_rc bench_mhc(run *r, ds_err *err);
ds_rc bench_pool(run *r, ds_err *err);

#endif
