/* Host memory behind the device: which of its buffers hold what left the device.
 *
 * A tier is a number of equal buffers, each for the bytes of one block (or of one slot), found by the block's (the
 * state's) key; the bytes are the device's business (DS_DEV_SAVE_BLOCK and its like), and the order of operations in
 * steps is what makes a buffer safe to read: it is filled by an operation of the step that reuses the device's
 * block, and read by an operation of the same or a later step. A buffer is free, holds a key, or holds a key and is
 * pinned: somebody reads or fills it, or is about to plan that. The least recently used unpinned one is given out
 * next. Invariant: a key leads to one buffer. Threads: its owner's; nothing here
 * locks.   Memory: all taken in init(). */
#ifndef DS_ENGINE_TIER_H
#define DS_ENGINE_TIER_H

#include "engine/keytab.h"

typedef struct {
    uint32_t n, n_used;
    uint32_t *pins;
    uint32_t *note;        /* the caller's, by buffer: of a state what its decoder windows start at */
    bool *approx;          /* by buffer: rests on a replay */
    uint32_t *next, *prev; /* unpinned ones, least recently used first; n is the head */
    ds_keytab keys;
    uint64_t saved, evicted; /* since the owner last set them to 0 */
} ds_tier;

ds_rc ds_tier_init(ds_tier *t, uint32_t n, ds_err *err); /* n = 0: a tier that never holds anything */
uint64_t ds_tier_bytes(uint32_t n);                      /* that init takes */
void ds_tier_fini(ds_tier *t);                           /* zeros are fine */

/* A buffer to be filled with what has this key; DS_NONE: there is nothing to do (it is there; an exact one
 * replaces an approximate one) or no place (all are pinned). What the buffer held is forgotten. O(1). */
uint32_t ds_tier_put(ds_tier *t, const ds_key *k, uint32_t note, bool approx);
uint32_t ds_tier_find(ds_tier *t, const ds_key *k); /* DS_NONE: none. Counts as a use */
/* What a pinned one holds turned out to be nothing: it is given out next once it isn't pinned any more. */
void ds_tier_forget(ds_tier *t, uint32_t i);
void ds_tier_pin(ds_tier *t, uint32_t i);
void ds_tier_unpin(ds_tier *t, uint32_t i);

#endif
