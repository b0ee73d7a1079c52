/* Which blocks leave a store that is full, and which segments are rewritten for it.
 *
 * Least recently used blocks go first. Because a use of a block is one of everything in front of it, that order never
 * takes a block before what stands behind it. Segments whose blocks have mostly gone are rewritten first: what stays
 * of them is copied forward, so the cost of a freed byte is smallest where least is copied.
 *
 * Threads: no state.   Memory: the caller's. */
#ifndef DS_KVSTORE_COLLECT_H
#define DS_KVSTORE_COLLECT_H

#include <stddef.h>
#include <stdint.h>

/* Blocks in the order in which they leave, lowest first: by the time of their last use in microseconds, and of those
 * that were used together the ones at the end of a chain first. */
static inline uint64_t ds_collect_rank(uint64_t used_us, uint32_t depth)
{
    return used_us << 12 | (4095 - (depth / 2 < 4095 ? depth / 2 : 4095)); /* 51 bits of time last until 2041 */
}

/* The rank such that about `keep` of n blocks have it or a higher one: those below go. Equal ranks go or stay
 * together, and then more stay. 0 when keep >= n. O(n). */
uint64_t ds_collect_cutoff(const uint64_t *rank, size_t n, size_t keep);

/* Of a rewritten segment what is among the oldest 1/48 goes too, before its time: the more, the less is copied and
 * the fewer hits. On the conversation trace (tests/unit/kvstore/test_collect.c) 1/48 costs 0.1 to 0.4 points of hits
 * and writes everything 2.4 to 4.8 times; 1/12 costs 0.4 to 0.8 and 1.0 to 2.0 times. */
enum { DS_COLLECT_SLACK = 48 };

typedef struct {
    uint64_t segment, bytes;
    uint32_t live, keep; /* its blocks that are in the index; of these, at the cutoff or above */
    uint64_t keep_bytes; /* that copying them takes */
} ds_collect_segment;

/* Orders segments so that the one comes first of which the smallest share of bytes has to be copied; ties: the older.
 * Returns how many of them, from the first, free `want` bytes or more; all that free anything if they don't. */
size_t ds_collect_choose(ds_collect_segment *s, size_t n, uint64_t want);

#endif
