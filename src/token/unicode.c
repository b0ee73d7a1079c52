/* Character classes for the split pattern: categories of Unicode 16.0, from a table of our own, so that token ids
 * are the same whatever libraries the build machine has. */
#include <assert.h>

#include "token/tokenizer_internal.h"

enum { LETTER = DS_UC_LETTER, NUMBER = DS_UC_NUMBER, PUNCT = DS_UC_PUNCT, SPACE = DS_UC_SPACE };

/* In order, without overlap; what lies between has no class. */
static const struct {
    uint32_t first, last;
    uint8_t class;
} runs[] = {
#include "token/unicode_classes.h"
};

static const struct {
    uint32_t first, last;
} assigned[] = {
#include "token/unicode_assigned.h"
};

/* What the pattern asks for beside the category. */
static uint8_t extend(uint32_t cp, uint8_t c)
{
    if (cp == '\r' || cp == '\n')
        c |= DS_UC_NEWLINE;
    if ((cp >= 0x4e00 && cp <= 0x9fa5) || (cp >= 0x3040 && cp <= 0x30ff))
        c |= DS_UC_CJK;
    if (cp < 128 && (c & DS_UC_LETTER))
        c |= DS_UC_ASCII_LETTER;
    if (cp < 128 && (c & DS_UC_PUNCT))
        c |= DS_UC_ASCII_PUNCT;
    return c;
}

bool ds_uc_assigned(uint32_t cp)
{
    size_t low = 0, high = sizeof assigned / sizeof *assigned;

    while (low < high) {
        size_t mid = (low + high) / 2;
        if (cp > assigned[mid].last)
            low = mid + 1;
        else
            high = mid;
    }
    return low < sizeof assigned / sizeof *assigned && cp >= assigned[low].first;
}

void ds_uc_table_fill(ds_uc_table *t)
{
    uint32_t n = 0;
    size_t r = 0;

    for (uint32_t hi = 0; hi < 0x110000 >> 8; hi++) {
        uint8_t block[256] = { 0 };
        uint32_t first = hi << 8, last = first | 255, at;

        while (r < sizeof runs / sizeof *runs && runs[r].first <= last) {
            uint32_t from = runs[r].first > first ? runs[r].first : first, to = runs[r].last < last ? runs[r].last : last;
            memset(block + (from - first), runs[r].class, to - from + 1);
            if (runs[r].last > last)
                break;
            r++;
        }
        if (first <= 0x9fa5) {
            for (uint32_t lo = 0; lo < 256; lo++)
                block[lo] = extend(first | lo, block[lo]);
        }
        /* Equal blocks come in runs: the last ones are the likeliest. */
        for (at = n; at > 0 && memcmp(t->block[at - 1], block, 256) != 0; at--)
            ;
        if (at == 0) {
            assert(n < sizeof t->block / sizeof *t->block); /* a property of the table above */
            memcpy(t->block[n], block, 256);
            at = ++n;
        }
        t->index[hi] = (uint8_t)(at - 1);
    }
    for (uint32_t cp = 0; cp < 128; cp++)
        t->ascii[cp] = ds_uc_class(t, cp);
}
