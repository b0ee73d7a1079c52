/* A file of records that are there again after a crash: a snapshot first, then what changed since.
 *
 *   open      reads it: the snapshot and each record behind it go to the reader, in order; what was torn off at the
 *             end by a crash is cut off
 *   append    one more record; durable when it returns
 *   compact   the whole file becomes one snapshot, at once or not at all
 *
 * A record is u32 bytes, u32 CRC32C of the bytes and the bytes; the file begins with 8 bytes "DSCOORD1"
 * (docs/formats/coord.md). An append that fails leaves no trace, and if not even that can be had, the journal takes
 * nothing more until it is opened again.
 *
 * Threads: one.   Memory: the file while it is read. */
#ifndef DS_COORD_JOURNAL_H
#define DS_COORD_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { DS_JOURNAL_MAX_RECORD = 1 << 20, DS_JOURNAL_MAX_FILE = 64 << 20 };

/* The few things that a disk does, by names in one directory; a test's disk crashes between any two. DS_E_IO. */
typedef struct {
    /* The whole file; free() it. *out NULL: there is none. */
    ds_rc (*read)(void *ctx, const char *name, char **out, size_t *n, ds_err *err);
    ds_rc (*write)(void *ctx, const char *name, uint64_t at, const void *p, size_t n, ds_err *err); /* makes it, too */
    ds_rc (*truncate)(void *ctx, const char *name, uint64_t n, ds_err *err);
    ds_rc (*sync)(void *ctx, const char *name, ds_err *err);
    ds_rc (*rename)(void *ctx, const char *from, const char *to, ds_err *err);
    ds_rc (*sync_names)(void *ctx, ds_err *err); /* renames so far are durable */
    void *ctx;
} ds_disk;

typedef struct ds_journal ds_journal;

/* first: it is the snapshot. Not DS_OK: open fails with that. */
typedef ds_rc ds_journal_reader(void *ctx, bool first, const uint8_t *p, size_t n, ds_err *err);

/* A name that isn't there is made, with `empty` as its snapshot. *cut: bytes that were torn off. DS_E_FORMAT: what is
 * there is no journal; DS_E_IO, DS_E_NOMEM. */
ds_rc ds_journal_open(ds_journal **out, const ds_disk *disk, const char *name, const void *empty, size_t n_empty, ds_journal_reader *reader,
                      void *ctx, uint64_t *cut, ds_err *err);
ds_rc ds_journal_append(ds_journal *j, const void *p, size_t n, ds_err *err);
ds_rc ds_journal_compact(ds_journal *j, const void *snapshot, size_t n, ds_err *err);
uint64_t ds_journal_bytes(const ds_journal *j);
void ds_journal_close(ds_journal *j); /* NULL is fine */

/* A directory as a disk: its descriptor is taken and lent to the functions until close. DS_E_IO. */
typedef struct {
    int fd;
    char path[256];
} ds_disk_dir;
ds_rc ds_disk_dir_open(ds_disk *out, ds_disk_dir *d, const char *path, ds_err *err);
void ds_disk_dir_close(ds_disk_dir *d);

#endif
