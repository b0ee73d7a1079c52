/* Buckets as in floating point: below 2^7 one for each value, above 128 for each power of two. */
#include "loadgen/times.h"

#include <math.h>
#include <stddef.h>

static size_t bucket_of(uint64_t ns)
{
    int shift;

    if (ns >= UINT64_C(1) << DS_TIMES_TOP_BITS)
        return DS_TIMES_BUCKETS - 1;
    if (ns < 1u << DS_TIMES_SUB_BITS)
        return (size_t)ns;
    shift = 63 - __builtin_clzll(ns) - DS_TIMES_SUB_BITS;
    return ((size_t)(shift + 1) << DS_TIMES_SUB_BITS) + (size_t)((ns >> shift) - (1u << DS_TIMES_SUB_BITS));
}

/* The largest value of a bucket. */
static uint64_t bucket_top(size_t i)
{
    size_t row = i >> DS_TIMES_SUB_BITS, at = i & ((1u << DS_TIMES_SUB_BITS) - 1);

    if (row == 0)
        return at;
    return (((UINT64_C(1) << DS_TIMES_SUB_BITS) + at + 1) << (row - 1)) - 1;
}

void ds_times_add_many(ds_times *t, uint64_t ns, uint64_t n)
{
    t->bucket[bucket_of(ns)] += n;
    t->n += n;
    t->sum += (double)ns * (double)n;
    if (n > 0 && ns > t->max)
        t->max = ns;
}

void ds_times_add(ds_times *t, uint64_t ns)
{
    ds_times_add_many(t, ns, 1);
}

uint64_t ds_times_quantile(const ds_times *t, double q)
{
    double want = ceil(q * (double)t->n);
    uint64_t below = 0, rank = want < 1.0 ? 1 : (uint64_t)want;

    if (t->n == 0)
        return 0;
    for (size_t i = 0; i < DS_TIMES_BUCKETS; i++) {
        below += t->bucket[i];
        if (below >= rank)
            return bucket_top(i) < t->max && i + 1 < DS_TIMES_BUCKETS ? bucket_top(i) : t->max;
    }
    return t->max;
}
