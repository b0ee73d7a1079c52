/* The index: from a block's key to its place in a volume, in memory that other processes of the host map and read.
 *
 * It is prefix-closed at every moment: a block is entered after the one in front of it and taken out before it, so
 * that the longest match of a chain is a binary search. Blocks that were written together share one extent. Memory is
 * taken for max_blocks at create and used as it fills; at the bound insert says DS_E_AGAIN and changes nothing, and
 * the caller drops a segment. index_core_internal.h says in which order words are written and read.
 *
 * Threads: insert, remove and place from one thread of the process that created it; find, match and touch from any
 * thread, find and match from any process that attached.   Memory: 64 + 12 to 24 bytes a block of shared memory, 16
 * an extent; 41 of the owner's. Readers' mapping is read-only, and the file is sealed against writing. */
#ifndef DS_KVSTORE_INDEX_H
#define DS_KVSTORE_INDEX_H

#include "base/none.h"
#include "kvstore/volume.h"

typedef struct ds_index ds_index;

/* What is known of a block besides its place. */
enum {
    DS_INDEX_AT = 63,          /* which block of its extent */
    DS_INDEX_APPROX = 1 << 6,  /* rests on a replay */
    DS_INDEX_LAYOUT_SHIFT = 8, /* 8 bits: number of its layout */
    DS_INDEX_KLASS_SHIFT = 16, /* 3 bits: expiry class */
};

typedef struct {
    ds_volume_place place;
    uint32_t record, what;
} ds_index_hit;

/* max_blocks: 1 .. 2^30. DS_E_NOMEM, DS_E_IO: no shared memory. */
ds_rc ds_index_create(ds_index **out, uint32_t max_blocks, ds_err *err);
/* Maps another process's index, which fd leads to; fd stays the caller's. DS_E_FORMAT: it is no index. */
ds_rc ds_index_attach(ds_index **out, int fd, ds_err *err);
void ds_index_destroy(ds_index *ix);          /* NULL is fine */
int ds_index_fd(const ds_index *ix);          /* valid until destroy; -1: attached */
uint64_t ds_index_blocks(const ds_index *ix); /* [owner] */
uint32_t ds_index_max_blocks(const ds_index *ix);

/* O(1). Full keys are compared. Right also after the owner was killed in the middle of a change. */
bool ds_index_find(const ds_index *ix, const ds_key *key, ds_index_hit *hit);
/* The same for n keys, faster than one after the other: waits for memory overlap. Number found; missing ones have
 * record DS_NONE. */
uint32_t ds_index_find_many(const ds_index *ix, const ds_key *keys, uint32_t n, ds_index_hit *hits);
/* How many leading ones of n keys of a chain are there; with `exact`, those that rest on a replay don't count, nor
 * what stands behind them. O(log n). */
uint32_t ds_index_match(const ds_index *ix, const ds_key *keys, uint32_t n, bool exact);

/* ---- the owner ---- */

typedef struct {
    uint64_t segment, offset;
    uint32_t of, at, n; /* blocks at .. at + n - 1 of the extent's `of` */
    const ds_key *keys; /* [n] */
    const uint32_t *crc;
    uint64_t approx; /* bit i: block i of the n rests on a replay */
    uint32_t layout, klass;
    uint32_t parent; /* record of the block in front of the first, DS_NONE: it begins a chain, or is linked later */
    uint32_t depth;  /* blocks of the chain in front of the first */
    uint32_t tenant; /* of all of them */
    uint64_t used;   /* when, in whatever unit the owner counts */
} ds_index_extent;

/* Enters blocks that follow each other. One that is there already gets the new place, unless that would be an
 * approximate one for an exact one. *last: record of the last of them. DS_E_AGAIN: no room, nothing changed. */
ds_rc ds_index_insert(ds_index *ix, const ds_index_extent *x, uint32_t *last, ds_err *err);
/* Says that `record`, entered without one, has this parent. False: that can't be, by their depths. */
bool ds_index_link(ds_index *ix, uint32_t record, uint32_t parent);
/* Takes a block and everything behind it out; calls gone (if not NULL) for each before. Number of blocks. */
uint32_t ds_index_remove(ds_index *ix, uint32_t record, void (*gone)(void *ctx, uint32_t record), void *ctx);

/* What the owner knows of a record; false: it is free. [owner's writing thread; else as good as a guess] */
typedef struct {
    ds_key key;
    ds_index_hit hit;
    uint32_t parent, depth, tenant;
    uint32_t entered; /* second of the first use, where the owner counts in microseconds; 0: it was loaded */
    uint64_t used;
    bool leaf;
} ds_index_info;
bool ds_index_at(const ds_index *ix, uint32_t record, ds_index_info *out);
uint32_t ds_index_end(const ds_index *ix); /* records from here on were never used */

/* ---- for a checkpoint ---- */

/* A record as it stands, by numbers. */
typedef struct {
    ds_key key;
    uint64_t used;
    uint32_t crc, extent, parent, what, depth, tenant; /* extent DS_NONE: the record is free; parent DS_NONE: it begins a chain */
} ds_index_row;
typedef struct {
    uint64_t segment, offset;
    uint32_t of; /* 0: the extent is free */
} ds_index_place;
uint32_t ds_index_extents_end(const ds_index *ix);
ds_index_place ds_index_place_at(const ds_index *ix, uint32_t extent);
bool ds_index_row_at(const ds_index *ix, uint32_t record, ds_index_row *out); /* false: it is free */

/* Takes the memory for so many extents and records before it is needed: for another thread than the one that fills it,
 * so that neither waits for the kernel. Ends early when *stop becomes true. */
void ds_index_take_memory(ds_index *ix, uint32_t extents, uint32_t records, const atomic_bool *stop);
/* Fill an index that has nothing and that nobody reads yet: all extents in order, all records in order, and the end.
 * False: that can't be, or there is no room; then it is good for destroy only. */
bool ds_index_load_place(ds_index *ix, const ds_index_place *at);
bool ds_index_load_rows(ds_index *ix, const ds_index_row *rows, uint32_t n);
bool ds_index_load_end(ds_index *ix);

/* Notes a use at time `now`; never goes back. The time before. Any thread of the owner. */
uint64_t ds_index_touch(ds_index *ix, uint32_t record, uint64_t now);
/* The same for a block and all in front of it. */
void ds_index_touch_chain(ds_index *ix, uint32_t record, uint64_t now);

#endif
