#include "kvstore/collect.h"

#include <stdlib.h>
#include <string.h>

enum { DIGITS = 1 << 16 };

/* From the top: the digit of which the blocks at and above it are `keep` or just more. *above: those above it. */
static uint32_t digit_of(const uint32_t count[DIGITS], size_t keep, size_t *above)
{
    uint32_t d = DIGITS;

    *above = 0;
    while (d-- > 0) {
        if (*above + count[d] >= keep)
            return d;
        *above += count[d];
    }
    return 0;
}

uint64_t ds_collect_cutoff(const uint64_t *rank, size_t n, size_t keep)
{
    static _Thread_local uint32_t count[DIGITS]; /* 256 KiB: too much for a stack */
    uint64_t prefix = 0;
    size_t above;

    if (keep >= n)
        return 0;
    if (keep == 0)
        return UINT64_MAX;
    for (int shift = 48; shift >= 0; shift -= 16) { /* digit by digit, among those that agree in the digits before */
        memset(count, 0, sizeof count);
        for (size_t i = 0; i < n; i++)
            if (shift == 48 || rank[i] >> (shift + 16) == prefix)
                count[rank[i] >> shift & (DIGITS - 1)]++;
        prefix = prefix << 16 | digit_of(count, keep, &above);
        keep -= above;
    }
    return prefix;
}

static int cheaper(const void *a, const void *b)
{
    const ds_collect_segment *x = a, *y = b;
    /* shares of bytes, cross-multiplied: files are far below 2^63 / 2^32 */
    long double p = (long double)x->keep_bytes * (long double)y->bytes, q = (long double)y->keep_bytes * (long double)x->bytes;

    if (p != q)
        return p < q ? -1 : 1;
    return x->segment < y->segment ? -1 : x->segment > y->segment;
}

size_t ds_collect_choose(ds_collect_segment *s, size_t n, uint64_t want)
{
    uint64_t freed = 0;
    size_t i;

    if (n)
        qsort(s, n, sizeof *s, cheaper);
    for (i = 0; i < n && freed < want && s[i].keep_bytes < s[i].bytes; i++)
        freed += s[i].bytes - s[i].keep_bytes;
    return i;
}
