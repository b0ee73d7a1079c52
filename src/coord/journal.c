#include "coord/journal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/frame.h"

static const char magic[8] = "DSCOORD1";
enum { HEAD = 8 }; /* of a record: bytes, checksum */

struct ds_journal {
    ds_disk disk;
    char name[32], next[40]; /* next: what a new file is called until it is whole */
    uint64_t end;
    bool broken; /* something lies behind `end` that couldn't be cut off */
};

static uint32_t get_u32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void put_u32(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
    p[2] = (uint8_t)(v >> 16);
    p[3] = (uint8_t)(v >> 24);
}

/* A record with `before` bytes in front of it. NULL: out of memory. */
static uint8_t *make_record(const void *p, size_t n, size_t before)
{
    uint8_t *r = malloc(before + HEAD + n);

    if (!r)
        return NULL;
    put_u32(r + before, (uint32_t)n);
    put_u32(r + before + 4, ds_frame_crc(p, n));
    memcpy(r + before + HEAD, p, n);
    return r;
}

static ds_rc check_size(const ds_journal *j, size_t n, ds_err *err)
{
    return n <= DS_JOURNAL_MAX_RECORD ? DS_OK
                                      : ds_fail(err, DS_E_ARG, "%s: a record of %zu bytes, at most %d", j->name, n, DS_JOURNAL_MAX_RECORD);
}

/* The whole file, under its other name first. */
static ds_rc replace(ds_journal *j, const void *snapshot, size_t n, ds_err *err)
{
    const ds_disk *d = &j->disk;
    uint8_t *r;
    ds_rc rc = check_size(j, n, err);

    if (rc != DS_OK)
        return rc;
    r = make_record(snapshot, n, sizeof magic);
    if (!r)
        return ds_fail(err, DS_E_NOMEM, "%s: out of memory", j->name);
    memcpy(r, magic, sizeof magic);
    rc = d->write(d->ctx, j->next, 0, r, sizeof magic + HEAD + n, err);
    free(r);
    if (rc == DS_OK)
        rc = d->truncate(d->ctx, j->next, sizeof magic + HEAD + n, err); /* an older one may have been longer */
    if (rc == DS_OK)
        rc = d->sync(d->ctx, j->next, err);
    if (rc == DS_OK)
        rc = d->rename(d->ctx, j->next, j->name, err);
    if (rc != DS_OK)
        return rc;
    /* From here on that name is the new file, whether or not the disk would remember it after a crash: then the old
     * one says the same. But what is appended now must not be lost with the name. */
    j->end = sizeof magic + HEAD + n;
    j->broken = false;
    rc = d->sync_names(d->ctx, err);
    j->broken = rc != DS_OK;
    return rc;
}

static ds_rc read_records(ds_journal *j, const uint8_t *p, size_t n, ds_journal_reader *reader, void *ctx, ds_err *err)
{
    size_t at = sizeof magic;
    bool first = true;

    if (n < sizeof magic || memcmp(p, magic, sizeof magic) != 0)
        return ds_fail(err, DS_E_FORMAT, "%s: this is no journal", j->name);
    while (n - at >= HEAD) {
        uint32_t bytes = get_u32(p + at);
        ds_rc rc;
        if (bytes > DS_JOURNAL_MAX_RECORD || bytes > n - at - HEAD || ds_frame_crc(p + at + HEAD, bytes) != get_u32(p + at + 4))
            break;
        rc = reader(ctx, first, p + at + HEAD, bytes, err);
        if (rc != DS_OK)
            return ds_err_prefix(err, rc, "%s, byte %zu: ", j->name, at);
        first = false;
        at += HEAD + bytes;
    }
    if (first) /* the file came to its name whole */
        return ds_fail(err, DS_E_FORMAT, "%s: its snapshot is damaged", j->name);
    j->end = at;
    return DS_OK;
}

ds_rc ds_journal_open(ds_journal **out, const ds_disk *disk, const char *name, const void *empty, size_t n_empty, ds_journal_reader *reader,
                      void *ctx, uint64_t *cut, ds_err *err)
{
    ds_journal *j = calloc(1, sizeof *j);
    char *text = NULL;
    size_t n = 0;
    ds_rc rc;

    *out = NULL;
    *cut = 0;
    if (!j)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    j->disk = *disk;
    snprintf(j->name, sizeof j->name, "%s", name);
    snprintf(j->next, sizeof j->next, "%s.new", name);
    rc = disk->read(disk->ctx, name, &text, &n, err);
    if (rc == DS_OK && !text) {
        rc = replace(j, empty, n_empty, err);
        if (rc == DS_OK)
            rc = reader(ctx, true, empty, n_empty, err);
    } else if (rc == DS_OK) {
        rc = read_records(j, (const uint8_t *)text, n, reader, ctx, err);
        if (rc == DS_OK && j->end < n) {
            *cut = n - j->end;
            rc = disk->truncate(disk->ctx, name, j->end, err);
            if (rc == DS_OK)
                rc = disk->sync(disk->ctx, name, err);
        }
    }
    free(text);
    if (rc == DS_OK)
        *out = j;
    else
        free(j);
    return rc;
}

ds_rc ds_journal_append(ds_journal *j, const void *p, size_t n, ds_err *err)
{
    const ds_disk *d = &j->disk;
    uint8_t *r;
    ds_rc rc = check_size(j, n, err);

    if (rc != DS_OK)
        return rc;
    if (j->broken)
        return ds_fail(err, DS_E_IO, "%s: an earlier error couldn't be undone", j->name);
    if (j->end + HEAD + n > DS_JOURNAL_MAX_FILE)
        return ds_fail(err, DS_E_AGAIN, "%s: %d bytes, it must be compacted first", j->name, DS_JOURNAL_MAX_FILE);
    r = make_record(p, n, 0);
    if (!r)
        return ds_fail(err, DS_E_NOMEM, "%s: out of memory", j->name);
    rc = d->write(d->ctx, j->name, j->end, r, HEAD + n, err);
    free(r);
    if (rc == DS_OK)
        rc = d->sync(d->ctx, j->name, err);
    if (rc == DS_OK) {
        j->end += HEAD + n;
        return DS_OK;
    }
    j->broken = d->truncate(d->ctx, j->name, j->end, NULL) != DS_OK || d->sync(d->ctx, j->name, NULL) != DS_OK;
    return rc;
}

ds_rc ds_journal_compact(ds_journal *j, const void *snapshot, size_t n, ds_err *err)
{
    return replace(j, snapshot, n, err);
}

uint64_t ds_journal_bytes(const ds_journal *j)
{
    return j->end;
}

void ds_journal_close(ds_journal *j)
{
    free(j);
}
