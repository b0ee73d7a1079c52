/* A histogram of durations that answers for quantiles: 0 .. 2^43 ns (over two hours; longer counts as that), each
 * value kept to 1 part in 128.
 *
 * Threads: one owner.   Memory: a fixed array inside the struct; zero-initialised is empty. */
#ifndef DS_LOADGEN_TIMES_H
#define DS_LOADGEN_TIMES_H

#include <stdint.h>

enum { DS_TIMES_SUB_BITS = 7, DS_TIMES_TOP_BITS = 43, DS_TIMES_BUCKETS = (DS_TIMES_TOP_BITS - DS_TIMES_SUB_BITS + 1) << DS_TIMES_SUB_BITS };

typedef struct {
    uint64_t n, max; /* ns */
    double sum;
    uint64_t bucket[DS_TIMES_BUCKETS];
} ds_times;

void ds_times_add(ds_times *t, uint64_t ns);
void ds_times_add_many(ds_times *t, uint64_t ns, uint64_t n); /* n equal ones */
/* The smallest duration that at least a share q (0..1) of all does not exceed, at most 1/128 too long; 0 when there
 * is none. O(buckets). */
uint64_t ds_times_quantile(const ds_times *t, double q);

#endif
