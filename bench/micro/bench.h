/* What benchmark programs share: median and 95th percentile of repeated timings. */
#ifndef DS_BENCH_H
#define DS_BENCH_H

#include <stdint.h>
#include <stdlib.h>

static inline int bench_compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* Sorts ns[0..n); n > 0. */
static inline void bench_stats(uint64_t *ns, size_t n, uint64_t *median, uint64_t *p95)
{
    qsort(ns, n, sizeof *ns, bench_compare);
    *median = ns[n / 2];
    *p95 = ns[n * 95 / 100];
}

#endif
