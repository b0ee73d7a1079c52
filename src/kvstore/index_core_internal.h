/* The shared part of the index: words of 64 bits, and in which order they are read and written.
 *
 * One process writes; any number of others read, at the same time, without telling anybody. Every function here does
 * all its reading through `load` and all its writing through `store`, so that the test that walks through every
 * interleaving (tests/unit/kvstore/test_index_orders.c) runs this code and not a copy of it. In the program they are
 * an acquiring load and a releasing store, which is what the order of statements relies on.
 *
 *   bucket   8 words: 7 entries, then how many entries passed this bucket because it was full. An entry is 0 or
 *            tag << 32 | record + 1. A key's entry stands in its home bucket or, as long as passed isn't 0, in one of
 *            those behind it. Entries never move.
 *   record   8 words, a cache line: key[4], state, where[2]. state = sequence << 32 | what; the sequence is odd while
 *            the record is free or being written, and its second bit says which where counts. where = crc << 32 |
 *            extent. A block that moves gets the other where and then, in one store, the next state.
 *   extent   2 words: segment; offset | number of blocks (offsets are multiples of 4096). It is written while no
 *            record leads to it.
 *
 * A reader believes a record if its key is the one looked for, all 32 bytes, and its state was the same even one
 * before and after reading the rest. What it then has was true at a moment within its call; a reader that knows the
 * record from before may see a key that comes back as soon as its record is complete. A key that is there all the
 * time is found. A writer that is killed at any point leaves nothing half: an entry never leads to a record that is
 * odd. */
#ifndef DS_KVSTORE_INDEX_CORE_INTERNAL_H
#define DS_KVSTORE_INDEX_CORE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DS_IX_ENTRIES = 7, DS_IX_BUCKET_WORDS = 8, DS_IX_RECORD_WORDS = 8, DS_IX_EXTENT_WORDS = 2 };

typedef struct {
    uint64_t *bucket, *record, *extent;
    uint32_t mask; /* buckets - 1 */
    uint32_t max_blocks;
    uint64_t seed;  /* odd: which bucket is whose home can't be aimed at */
    uint32_t tries; /* of a reader that sees records change under it */
} ds_ix;

typedef uint64_t ds_ix_load(const uint64_t *at);
typedef void ds_ix_store(uint64_t *at, uint64_t v);

/* What a record says. */
typedef struct {
    uint32_t record, what, crc, extent;
    uint64_t segment, offset;
} ds_ix_found;

#define DS_IX_INLINE static inline __attribute__((always_inline))

DS_IX_INLINE uint32_t ds_ix_home(const ds_ix *ix, const uint64_t key[4])
{
    return (uint32_t)((key[0] * ix->seed) >> 32) & ix->mask;
}

DS_IX_INLINE uint32_t ds_ix_tag(const uint64_t key[4])
{
    return (uint32_t)key[1];
}

/* 1: it is the key's, 0: another's, -1: it changed meanwhile. */
DS_IX_INLINE int ds_ix_read(const ds_ix *ix, uint32_t r, const uint64_t key[4], ds_ix_found *out, ds_ix_load *load)
{
    const uint64_t *p = ix->record + (size_t)r * DS_IX_RECORD_WORDS, *x;
    uint64_t state = load(p + 4), where;

    if (state >> 32 & 1)
        return -1;
    for (int i = 0; i < 4; i++)
        if (load(p + i) != key[i])
            return load(p + 4) == state ? 0 : -1;
    where = load(p + 5 + (state >> 33 & 1));
    out->extent = (uint32_t)where;
    if (out->extent >= ix->max_blocks)
        return -1;
    x = ix->extent + (size_t)out->extent * DS_IX_EXTENT_WORDS;
    out->segment = load(x);
    out->offset = load(x + 1);
    out->record = r;
    out->what = (uint32_t)state;
    out->crc = (uint32_t)(where >> 32);
    return load(p + 4) == state ? 1 : -1;
}

/* O(1). False: it isn't there, or it wasn't for a moment. */
DS_IX_INLINE bool ds_ix_find(const ds_ix *ix, const uint64_t key[4], ds_ix_found *out, ds_ix_load *load)
{
    uint32_t home = ds_ix_home(ix, key), tag = ds_ix_tag(key);

    for (uint32_t t = 0; t < ix->tries; t++) {
        bool changed = false;
        for (uint32_t i = 0; i <= ix->mask; i++) {
            const uint64_t *b = ix->bucket + (size_t)((home + i) & ix->mask) * DS_IX_BUCKET_WORDS;
            for (int j = 0; j < DS_IX_ENTRIES; j++) {
                uint64_t e = load(b + j);
                int got = (uint32_t)e != 0 && (uint32_t)(e >> 32) == tag && (uint32_t)e <= ix->max_blocks
                              ? ds_ix_read(ix, (uint32_t)e - 1, key, out, load)
                              : 0;
                if (got > 0)
                    return true;
                changed = changed || got < 0;
            }
            if (load(b + DS_IX_ENTRIES) == 0)
                break;
        }
        if (!changed)
            return false;
    }
    return false; /* so often changed under one look: the memory is no index any more */
}

/* Writes a record that no entry leads to, and then the entry. False: no bucket has room. */
DS_IX_INLINE bool ds_ix_publish(const ds_ix *ix, uint32_t r, const uint64_t key[4], uint32_t what, uint32_t crc, uint32_t extent,
                                ds_ix_load *load, ds_ix_store *store)
{
    uint64_t *p = ix->record + (size_t)r * DS_IX_RECORD_WORDS;
    uint64_t odd = load(p + 4) >> 32 | 1;
    uint32_t home = ds_ix_home(ix, key), i, slot = 0;
    uint64_t *b = NULL;

    for (i = 0; i <= ix->mask; i++) {
        b = ix->bucket + (size_t)((home + i) & ix->mask) * DS_IX_BUCKET_WORDS;
        for (slot = 0; slot < DS_IX_ENTRIES && load(b + slot) != 0;)
            slot++;
        if (slot < DS_IX_ENTRIES)
            break;
    }
    if (i > ix->mask)
        return false;
    store(p + 4, odd << 32); /* it is already, unless it was never used */
    for (int w = 0; w < 4; w++)
        store(p + w, key[w]);
    store(p + 5 + ((odd + 1) >> 1 & 1), (uint64_t)crc << 32 | extent);
    store(p + 4, (uint64_t)(uint32_t)(odd + 1) << 32 | what);
    for (uint32_t passed = 0; passed < i; passed++) {
        uint64_t *full = ix->bucket + (size_t)((home + passed) & ix->mask) * DS_IX_BUCKET_WORDS + DS_IX_ENTRIES;
        store(full, load(full) + 1);
    }
    store(b + slot, (uint64_t)ds_ix_tag(key) << 32 | (r + 1));
    return true;
}

/* Takes the entry away, then frees the record. */
DS_IX_INLINE void ds_ix_hide(const ds_ix *ix, uint32_t r, ds_ix_load *load, ds_ix_store *store)
{
    uint64_t *p = ix->record + (size_t)r * DS_IX_RECORD_WORDS, key[4];
    uint32_t home, i, j;

    for (int w = 0; w < 4; w++)
        key[w] = load(p + w);
    home = ds_ix_home(ix, key);
    for (i = 0; i <= ix->mask; i++) {
        uint64_t *b = ix->bucket + (size_t)((home + i) & ix->mask) * DS_IX_BUCKET_WORDS;
        for (j = 0; j < DS_IX_ENTRIES && (uint32_t)load(b + j) != r + 1;)
            j++;
        if (j < DS_IX_ENTRIES) {
            store(b + j, 0);
            break;
        }
    }
    for (uint32_t passed = 0; passed < i && i <= ix->mask; passed++) {
        uint64_t *full = ix->bucket + (size_t)((home + passed) & ix->mask) * DS_IX_BUCKET_WORDS + DS_IX_ENTRIES;
        store(full, load(full) - 1);
    }
    store(p + 4, (uint64_t)(uint32_t)((load(p + 4) >> 32) + 1) << 32);
}

/* Gives a record another place: the block was written again elsewhere. Its entry stays. */
DS_IX_INLINE void ds_ix_move(const ds_ix *ix, uint32_t r, uint32_t what, uint32_t crc, uint32_t extent, ds_ix_load *load,
                             ds_ix_store *store)
{
    uint64_t *p = ix->record + (size_t)r * DS_IX_RECORD_WORDS;
    uint32_t next = (uint32_t)(load(p + 4) >> 32) + 2;

    store(p + 5 + (next >> 1 & 1), (uint64_t)crc << 32 | extent);
    store(p + 4, (uint64_t)next << 32 | what);
}

DS_IX_INLINE void ds_ix_place(const ds_ix *ix, uint32_t extent, uint64_t segment, uint64_t offset_of, ds_ix_store *store)
{
    uint64_t *x = ix->extent + (size_t)extent * DS_IX_EXTENT_WORDS;

    store(x, segment);
    store(x + 1, offset_of);
}

#endif
