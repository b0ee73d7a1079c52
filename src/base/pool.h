/* A team of threads that runs one job at a time on all its members, for kernels.
 *
 * ds_pool_run() hands `fn` to every member, the caller being member 0, and returns when all are done. Members spin
 * for spin_us after a job and then sleep on a futex; after the first 1.5 us of spinning they offer their CPU to
 * others between looks. Back-to-back jobs cost under 3 us when each member has a CPU, about 7 us when two have to
 * share one; an idle pool costs nothing. Everything that a member wrote is visible to the caller afterwards.
 * Threads: ds_pool_run from one thread at a time (the owner's).   Memory: all taken in create(). */
#ifndef DS_BASE_POOL_H
#define DS_BASE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

typedef struct ds_pool ds_pool;

typedef struct {
    uint32_t n_threads; /* 1..1024, the caller included; 0 = one for each CPU this process may use */
    bool pin; /* member i stays on the i-th allowed CPU (the caller isn't pinned); ignored when there are more members than CPUs */
    uint32_t first_cpu; /* pin: that number of allowed CPUs are others', so that teams of one process stand side by side */
    uint32_t spin_us;   /* 0 = 50; members don't spin when there are more of them than CPUs */
} ds_pool_opts;

typedef void ds_pool_fn(void *arg, uint32_t member, uint32_t n_members);

ds_rc ds_pool_create(ds_pool **out, const ds_pool_opts *opts, ds_err *err);
void ds_pool_destroy(ds_pool *p); /* NULL is fine */
uint32_t ds_pool_size(const ds_pool *p);
void ds_pool_run(ds_pool *p, ds_pool_fn *fn, void *arg);
uint32_t ds_cpu_count(void); /* CPUs this process may use: affinity mask and cgroup quota (rounded up), at least 1 */

#endif
