/* A volume: segments of one store on its k + m devices. (docs/formats/segment.md)
 *
 * Extents are appended, made durable by commit, and read back by place. Nothing is ever changed in place: a segment
 * is begun, filled, sealed and one day dropped. What is where is the caller's to remember; open tells it of every
 * block that was durable.
 *
 * Threads: append, commit, seal, drop from one thread (the writer); readers from any number of others, each with a
 * ds_volume_reader of its own. A segment that is dropped while it is read is known until its last reader
 * is done.   Memory: a few hundred bytes a segment; a writer's buffer for one extent; a reader's for its shards. */
#ifndef DS_KVSTORE_VOLUME_H
#define DS_KVSTORE_VOLUME_H

#include <stdatomic.h>

#include "kvstore/format.h"

typedef struct ds_volume ds_volume;
typedef struct ds_volume_reader ds_volume_reader;

/* Where a block is, and what it must be. */
typedef struct {
    uint64_t segment, offset; /* the extent in the segment's files */
    uint32_t at, of;          /* block `at` of its `of` */
    uint32_t crc;
} ds_volume_place;

/* A block that open found, with the header of its segment. */
typedef void ds_volume_found_fn(void *ctx, const ds_seg_header *segment, const ds_seg_item *block);

typedef struct {
    const char *const *dirs; /* [k + m], in any order for a store that exists, or one of kvstore/place.h; borrowed during open */
    uint32_t n_dirs;
    uint32_t k, m;                    /* k 0: as the store has it; a new one gets the default for n_dirs */
    uint64_t segment_bytes;           /* of a file at most, before its footer; 0 = as suits the place */
    uint64_t capacity_bytes;          /* of all files together, never exceeded; 0 = no bound */
    const struct ds_rados_api *rados; /* a test's; NULL: librados */
    bool read_only;                   /* look only: nothing is created, sealed or locked for writing */
    /* Whether the caller knows all blocks of this segment: open calls it in the order of segments, once it has locked
     * the store, and then doesn't look for them. NULL: it doesn't. */
    bool (*known)(void *ctx, const ds_seg_header *segment);
    ds_volume_found_fn *found;
    void *ctx;
} ds_volume_opts;

/* The code for n devices when nobody says: 10+2, 4+2, 2+1, 1+1, 1+0, and n-2+2 or n-1+1 between them. */
void ds_volume_default_code(uint32_t n, uint32_t *k, uint32_t *m);

/* What suits a place when nobody says: bytes of a segment's file, readers. */
void ds_volume_suits(const char *place, uint64_t *segment_bytes, uint32_t *readers);

/* Makes the directories' store.json or checks them, then reads what is there. Up to m devices may be missing from a
 * store that exists: it is degraded then. A directory that is there and empty is a new disk: it is made the missing
 * device, gets its part of what is written from now on, and of the rest when segments are written anew. DS_E_ARG:
 * code, directories. DS_E_IO. DS_E_FORMAT: they belong to different stores, or too few of them are left. DS_E_AGAIN:
 * another process has the store open. */
ds_rc ds_volume_open(ds_volume **out, const ds_volume_opts *o, ds_err *err);
/* Seals what is open. No reader may be left. NULL is fine. */
void ds_volume_close(ds_volume *v);

typedef struct {
    uint32_t incomplete;                  /* segments: see ds_volume_incomplete */
    uint32_t k, m, segments, bad_devices; /* devices on which an operation failed since open, or that are missing */
    bool direct;                          /* reads go around the page cache */
    uint64_t bytes;                       /* of all files */
    uint64_t extents, blocks;             /* appended since open */
    uint8_t store[16];
} ds_volume_stats;
void ds_volume_stat(ds_volume *v, ds_volume_stats *out);

/* Blocks that follow each other in a chain. */
typedef struct {
    uint32_t klass;     /* expiry class: one open segment each, below DS_VOLUME_CLASSES */
    uint64_t expires_s; /* of a segment that is begun for it */
    uint8_t layout[32];
    uint32_t block_bytes;
    ds_key parent;  /* of the first */
    uint32_t depth; /* blocks of the chain in front of it */
    uint32_t n;     /* 1..DS_SEG_EXTENT_BLOCKS */
    const ds_key *keys;
    const uint8_t *const *blocks; /* [n][block_bytes] */
    uint64_t approx;              /* bit i: block i rests on a replay */
    uint32_t tenant;
    uint32_t *crc; /* [n] the blocks' checksums are written here; NULL: nobody asks */
} ds_volume_extent;
enum { DS_VOLUME_CLASSES = 8 };

/* Writes an extent at the end of its class's open segment and says where; a segment that is full, or of another
 * layout, is sealed and the next one begun. Nothing counts before commit. DS_E_AGAIN: it would exceed the capacity;
 * drop a segment first. DS_E_IO: too few devices took it, and nothing of it will be found. */
ds_rc ds_volume_append(ds_volume *v, const ds_volume_extent *x, ds_volume_place *first, ds_err *err);
/* Makes durable all that was appended since the last one. DS_E_IO: it wasn't on k+1 devices (all, where m is 0), and
 * none of it counts. */
ds_rc ds_volume_commit(ds_volume *v, ds_err *err);
/* No more extents for the class's open segment; its footer is written. */
ds_rc ds_volume_seal(ds_volume *v, uint32_t klass, ds_err *err);
/* Removes a segment's files. Readers that have it go on, or are told that it is gone, as new ones are. False: there
 * is none, or it is open. */
bool ds_volume_drop(ds_volume *v, uint64_t segment);

/* The first segment behind `after` that isn't open and lacks a part which a device that works could have; 0: none. */
uint64_t ds_volume_incomplete(ds_volume *v, uint64_t after);
/* What a segment is, for those who look after the volume. */
typedef void ds_volume_segment_fn(void *ctx, const ds_seg_header *h, uint64_t bytes, bool open);
/* Calls fn for each, in the order of their numbers. No drop, append or seal from inside. [writer] */
void ds_volume_each(ds_volume *v, ds_volume_segment_fn *fn, void *ctx);
/* Calls found for every block of a segment that isn't open. DS_E_ARG: there is none; DS_E_IO, DS_E_NOMEM. [writer] */
ds_rc ds_volume_list(ds_volume *v, uint64_t segment, ds_volume_found_fn *found, void *ctx, ds_err *err);
/* Bytes of an extent of n blocks on all devices together, with its part of the footers. */
uint64_t ds_volume_extent_bytes(const ds_volume *v, uint32_t n, uint32_t block_bytes);

/* ---- reading ---- */

/* Bytes of blocks that lie behind each other and are best read by one reader, which then asks for them in one piece; 0:
 * one by one, by as many readers as there are. */
uint64_t ds_volume_run_bytes(const ds_volume *v);

typedef enum {
    DS_READ_OK,
    DS_READ_GONE,    /* no such segment, or no more */
    DS_READ_IO,      /* too few devices answered rightly: errors, files that end early */
    DS_READ_CORRUPT, /* too few shards that are what they should be, or the block put together isn't */
    DS_READ_LATE,    /* the deadline passed */
} ds_read_result;

typedef struct {
    uint64_t deadline_ns;    /* on the monotonic clock; 0 = in 5 s */
    uint64_t hedge_ns;       /* after so long without k shards the devices left out are asked too; 0 = 10 ms */
    uint32_t ahead;          /* so many blocks behind it in its extent are read next, by this reader */
    bool all;                /* every device is asked and waited for: what is wrong or missing is counted */
    const atomic_bool *stop; /* looked at every 10 ms: true ends the call with DS_READ_LATE; NULL: never */
} ds_read_opts;

typedef struct {
    uint32_t asked, bad, failed;                       /* devices asked; shards that weren't what they should be; operations that failed */
    uint64_t device_ns, decode_ns, verify_ns, copy_ns; /* where the time went */
    bool decoded;                                      /* a data shard was missing */
    bool hedged;                                       /* a device was slow */
} ds_read_info;

/* DS_E_IO: no io_uring. DS_E_NOMEM. */
ds_rc ds_volume_reader_create(ds_volume_reader **out, ds_volume *v, ds_err *err);
void ds_volume_reader_destroy(ds_volume_reader *r); /* waits for operations in flight; NULL is fine */

/* The block with this key at that place into out [block_bytes of its segment]. Asks k+1 devices and takes the first
 * k; a device that still owes an answer to an earlier call is asked last. out holds anything when it isn't
 * DS_READ_OK. info may be NULL. */
ds_read_result ds_volume_read(ds_volume_reader *r, const ds_volume_place *p, const ds_key *key, uint8_t *out, size_t cap,
                              const ds_read_opts *o, ds_read_info *info);

#endif
