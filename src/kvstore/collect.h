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

/* The time such that about `keep` of n blocks were used then or later: those used before go. Equal times go or stay
 * together, and then more stay. 0 when keep >= n. O(n). */
uint64_t ds_collect_cutoff(const uint64_t *used, size_t n, size_t keep);

typedef struct {
    uint64_t segment, bytes;
    uint32_t live, keep; /* its blocks that are in the index; of these, used at the cutoff or later */
    uint64_t keep_bytes; /* that copying them takes */
} ds_collect_segment;

/* Orders segments so that the one comes first of which the smallest share of bytes has to be copied; ties: the older.
 * Returns how many of them, from the first, free `want` bytes or more; all that free anything if they don't. */
size_t ds_collect_choose(ds_collect_segment *s, size_t n, uint64_t want);

#endif
