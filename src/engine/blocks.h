/* Block manager: which KV blocks are free, in use, shared, cached.
 *
 * A block holds 128 tokens of every layer's compressed KV; the bytes are the device's. A block is in one of three
 * states:
 *   used    referenced by ref > 0 sequences (or waiting copies); with a key when it is published, or *expected*: its
 *           key is known and its bytes are on the way, so that nobody computes them meanwhile
 *   cached  ref = 0, with a key: found by it, and the first to go are those left longest ago
 *   free    ref = 0, without a key
 * A block is approximate when its bytes rest on a replay: they aren't what computing the whole prefix gives. An
 * exact one takes its key over. Invariant: used + cached + free = n; a key leads to one block; only blocks whose 128
 * tokens are all committed, and expected ones, have keys. Threads: the loop's; nothing here locks.   Memory: all
 * taken in init(). */
#ifndef DS_ENGINE_BLOCKS_H
#define DS_ENGINE_BLOCKS_H

#include "engine/keytab.h"

typedef struct {
    uint32_t n;
    uint32_t *ref;
    uint32_t *next, *prev; /* list of blocks with ref = 0; n is its head: next[n] is the next to be given out */
    bool *approx;          /* by block */
    bool *expected;        /* by block: has a key and isn't found by it yet */
    ds_keytab keys;
    uint32_t n_idle, n_cached;   /* ref = 0; of them with a key */
    uint64_t published, evicted; /* since the owner last set them to 0 */
} ds_blocks;

uint64_t ds_blocks_bytes(uint32_t n); /* what init takes at most; linear in n */
ds_rc ds_blocks_init(ds_blocks *b, uint32_t n, ds_err *err);
void ds_blocks_fini(ds_blocks *b);

/* A block nobody uses, ref = 1, the least recently used cached one if need be; DS_NONE: all are used. O(1). */
uint32_t ds_blocks_take(ds_blocks *b);
/* Which one take would give. */
static inline uint32_t ds_blocks_next(const ds_blocks *b)
{
    return b->next[b->n] == b->n ? DS_NONE : b->next[b->n];
}
void ds_blocks_ref(ds_blocks *b, uint32_t block);
/* The last reference makes it cached (when it has a key) or free. Release a sequence's blocks from the last to the
 * first: leaves then go before their parents. */
void ds_blocks_unref(ds_blocks *b, uint32_t block);
/* Gives a used block its key; false: another block has it already, this one stays private. An exact block takes the
 * key of an approximate one, and any block that of an expected one, which then has none. */
bool ds_blocks_publish(ds_blocks *b, uint32_t block, const ds_key *k, bool approx);
/* The bytes for this used block are on the way. False: another block has the key already, this one stays private
 * until they are there. */
bool ds_blocks_expect(ds_blocks *b, uint32_t block, const ds_key *k);
/* They are there: as publish. */
bool ds_blocks_arrive(ds_blocks *b, uint32_t block, const ds_key *k, bool approx);
/* They won't come: it is a private block. Nothing if it wasn't expected. */
void ds_blocks_miss(ds_blocks *b, uint32_t block);
uint32_t ds_blocks_find(const ds_blocks *b, const ds_key *k); /* no reference is taken; DS_NONE: none, or expected */
bool ds_blocks_is_expected(const ds_blocks *b, const ds_key *k);
static inline uint32_t ds_blocks_available(const ds_blocks *b)
{
    return b->n_idle;
}

#endif
