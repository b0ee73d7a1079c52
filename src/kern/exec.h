/* What every op gets first: where it runs, what it may use, how it rounds.
 *
 * Threads: a ds_exec belongs to one thread (the owner of its pool).   Memory: ops take scratch from the arena and
 * give it back before they return; the arena is sized by ds_kern.scratch_bytes for the largest call, so running out
 * of it is a bug of ours. */
#ifndef DS_KERN_EXEC_H
#define DS_KERN_EXEC_H

#ifdef __cplusplus /* .cu files: C++ before 23 has no such header, and its kernels use their own atomics on the same bytes */
typedef unsigned int atomic_uint;
#else
#include <stdatomic.h>
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "base/pool.h"

/* Something that an op found out and the host must hear of: bad values in a table that is too large to check at
 * load, or state that isn't there. The op goes on with zeros; the host looks after the step and throws the step's
 * results away. */
typedef enum {
    DS_FAULT_NONE = 0,
    DS_FAULT_VALUE,   /* NaN or infinity in row `row` of the table named by `tag` */
    DS_FAULT_GROUP,   /* no open-group state for position `row` */
    DS_FAULT_HISTORY, /* no Engram history for position `row` */
    DS_FAULT_FINITE,  /* NaN or infinity in the results named by `tag`; `row` is the element */
} ds_fault_kind;

typedef struct {
    atomic_uint kind; /* ds_fault_kind; set last (release), the first fault wins */
    atomic_uint busy;
    uint32_t tag; /* the op argument of that name */
    int64_t row;
} ds_fault;

typedef struct ds_exec {
    ds_pool *pool; /* NULL: the calling thread alone */
    ds_arena *scratch;
    ds_fault *fault; /* never NULL; device memory */
    bool bf16;       /* activations: false = f32, nothing is rounded but records; true = rounded to bf16 at the points of spec 3.1 */
    struct ds_stream *stream; /* what ops are put on (device.h); the CPU's run at once */
} ds_exec;

typedef void ds_range_fn(void *arg, size_t begin, size_t end, uint32_t member);

/* Calls fn on disjoint ranges that cover 0..n, one range a member, each but the last a multiple of `grain` (>= 1)
 * long; returns when all are done. How n is cut depends on the number of threads, so a result must not depend on it.
 * member < ds_exec_members(e). */
void ds_exec_for(ds_exec *e, size_t n, size_t grain, ds_range_fn *fn, void *arg);
uint32_t ds_exec_members(const ds_exec *e);

/* 64-byte aligned scratch; never NULL. The op marks and rewinds the arena itself. Only the calling thread of an op,
 * not its members. */
void *ds_exec_scratch(ds_exec *e, size_t bytes);

/* Records a fault; any thread. */
void ds_exec_fault(ds_exec *e, ds_fault_kind kind, uint32_t tag, int64_t row);

#endif
