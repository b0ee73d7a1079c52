/* Inside of a volume: devices, segments, and what readers share with the writer. */
#ifndef DS_KVSTORE_VOLUME_INTERNAL_H
#define DS_KVSTORE_VOLUME_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "kvstore/code.h"
#include "kvstore/files_internal.h"
#include "kvstore/volume.h"

typedef struct {
    /* [const] after begin or recovery */
    ds_seg_header h;                  /* device: of none */
    int fd[DS_SEG_MAX_DEVICES];       /* handle to read by, -1: this device hasn't it */
    int write_fd[DS_SEG_MAX_DEVICES]; /* [writer] -1 once sealed or failed */
    /* [atomic] readers in it, and one for the table; the last one frees it. Acquire and release: what was read is read before the files go */
    atomic_uint refs;
    /* [writer] */
    bool open, dirty;
    uint64_t used, committed; /* bytes of a file, before the footer */
    uint64_t file_bytes;      /* of all its files */
    ds_seg_item *items;       /* until it is sealed */
    uint64_t n_items, cap_items, n_committed;
} ds_vol_segment;

/* What a test makes of operations on devices. Called by whoever does the operation, at the same time by many. */
typedef struct {
    void *ctx;
    /* Before a file's bytes are written: they may be changed. How many of the n are to be written, n: all; fewer: the
     * device fails then; or a negative errno. *lie: the rest isn't written, and nobody is told. */
    int64_t (*write)(void *ctx, uint32_t device, uint8_t *bytes, size_t n, bool *lie);
    int (*sync)(void *ctx, uint32_t device);    /* 0, or a negative errno; the data is synced or not */
    void (*remove)(void *ctx, uint32_t device); /* before a file goes */
    /* After a read: the bytes may be changed. What it is to have returned. */
    int (*read)(void *ctx, uint32_t device, uint8_t *bytes, int returned);
    uint64_t (*stall_ns)(void *ctx, uint32_t device); /* 0, or a read fails, but only after that time */
} ds_vol_faults;

struct ds_volume {
    /* [const] */
    const ds_vol_faults *faults; /* NULL but in tests, where it is set before the first operation */
    uint32_t n, k, m, align;     /* align: of extents; a header takes as much */
    uint8_t store[16];
    uint64_t segment_bytes, capacity_bytes;
    bool read_only;
    uint32_t missing; /* devices whose places can't be used, by bit */
    ds_files *files;
    ds_code code;
    /* [mu] the table; a reader takes a reference while it holds it */
    pthread_rwlock_t mu;
    ds_vol_segment **seg; /* by number */
    uint32_t n_seg, cap_seg;
    /* [writer] */
    ds_vol_segment *open[DS_VOLUME_CLASSES];
    uint64_t next, bytes, extents, blocks;
    uint32_t bad;                     /* devices, by bit */
    uint8_t *buf[DS_SEG_MAX_DEVICES]; /* one extent's bytes for each device */
    size_t buf_bytes;
};

/* volume.c. The segment with a reference, or NULL. */
ds_vol_segment *ds_vol_take(ds_volume *v, uint64_t segment);
void ds_vol_give(ds_volume *v, ds_vol_segment *s);
ds_vol_segment *ds_vol_segment_new(ds_volume *v);
/* Into the table, whose it is from then on. False: out of memory. */
bool ds_vol_insert(ds_volume *v, ds_vol_segment *s);
/* Of an extent in a file. */
uint64_t ds_vol_extent_bytes(const ds_volume *v, uint32_t n, uint32_t shard_bytes);
/* Writes the footer of a segment that takes no more. [writer] */
void ds_vol_seal(ds_volume *v, ds_vol_segment *s);

/* recover.c. Reads all segments into the table. [writer, no reader yet] */
ds_rc ds_vol_recover(ds_volume *v, const ds_volume_opts *o, ds_err *err);

#endif
