/* What is there when a store is opened: by the footers of sealed segments, by the extents' headers of others. */
#include <stdlib.h>
#include <string.h>

#include "kvstore/volume_internal.h"

typedef struct {
    uint64_t *id;
    size_t n, cap;
} numbers;

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static bool add_number(void *ctx, uint64_t segment)
{
    numbers *l = ctx;

    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 256;
        uint64_t *p = realloc(l->id, cap * sizeof *p);
        if (!p)
            return false;
        l->id = p;
        l->cap = cap;
    }
    l->id[l->n++] = segment;
    return true;
}

/* All segments that any device has a file of, each once. */
static ds_rc list_all(ds_volume *v, numbers *l, ds_err *err)
{
    size_t kept = 0;

    for (uint32_t d = 0; d < v->n; d++) {
        ds_rc rc = v->missing & 1u << d ? DS_OK : v->files->ops->list(v->files, d, add_number, l, err);
        if (rc != DS_OK)
            return rc;
    }
    if (l->n)
        qsort(l->id, l->n, sizeof *l->id, ascending);
    for (size_t i = 0; i < l->n; i++)
        if (i == 0 || l->id[i] != l->id[kept - 1])
            l->id[kept++] = l->id[i];
    l->n = kept;
    return DS_OK;
}

typedef struct {
    ds_volume *v;
    ds_vol_segment *s;
    uint64_t bytes[DS_SEG_MAX_DEVICES]; /* of the files */
    uint8_t *page;                      /* DS_SEG_HEADER_BYTES, or an extent: grown with need */
    size_t page_bytes;
} recovery;

static bool room(recovery *r, size_t n)
{
    n = (n + DS_SEG_ALIGN - 1) / DS_SEG_ALIGN * DS_SEG_ALIGN;
    if (n <= r->page_bytes)
        return true;
    free(r->page);
    r->page = aligned_alloc(DS_SEG_ALIGN, n);
    r->page_bytes = r->page ? n : 0;
    return r->page != NULL;
}

static bool read_at(recovery *r, uint32_t d, size_t n, uint64_t at)
{
    return r->v->files->ops->read(r->v->files, d, r->s->fd[d], r->s->h.segment, r->page, n, at);
}

static ds_rc silent(const recovery *r, ds_err *err)
{
    return ds_fail(err, DS_E_IO, "segment %llu: no answer", (unsigned long long)r->s->h.segment);
}

static bool same_segment(const ds_seg_header *a, const ds_seg_header *b)
{
    ds_seg_header x = *a, y = *b;

    x.device = y.device = 0;
    return memcmp(x.store, y.store, 16) == 0 && memcmp(x.layout, y.layout, 32) == 0 && x.segment == y.segment &&
           x.generation == y.generation && x.k == y.k && x.m == y.m && x.klass == y.klass && x.block_bytes == y.block_bytes &&
           x.begun_s == y.begun_s && x.expires_s == y.expires_s;
}

/* Opens the segment's files and keeps those that belong together: the header that most devices have. Number of them. */
static uint32_t open_files(recovery *r, uint64_t segment)
{
    ds_volume *v = r->v;
    ds_vol_segment *s = r->s;
    ds_seg_header head[DS_SEG_MAX_DEVICES];
    bool ok[DS_SEG_MAX_DEVICES] = { false };
    uint32_t most = 0;

    s->h.segment = segment;
    for (uint32_t d = 0; d < v->n; d++) {
        s->fd[d] = v->missing & 1u << d ? -1 : v->files->ops->open_read(v->files, d, segment);
        if (s->fd[d] < 0 || !v->files->ops->size(v->files, d, s->fd[d], segment, &r->bytes[d]))
            continue;
        s->file_bytes += r->bytes[d];
        ok[d] = read_at(r, d, DS_SEG_HEADER_BYTES, 0) && ds_seg_header_read(&head[d], r->page, NULL) == DS_OK && head[d].device == d &&
                head[d].segment == segment && head[d].k == v->k && head[d].m == v->m && memcmp(head[d].store, v->store, 16) == 0;
    }
    for (uint32_t d = 0; d < v->n; d++) {
        uint32_t same = 0;
        for (uint32_t e = 0; ok[d] && e < v->n; e++)
            same += ok[e] && same_segment(&head[d], &head[e]);
        if (same > most) {
            most = same;
            s->h = head[d];
        }
    }
    for (uint32_t d = 0; d < v->n; d++)
        if (s->fd[d] >= 0 && !(most && ok[d] && same_segment(&head[d], &s->h))) {
            v->files->ops->close_read(v->files, d, s->fd[d]);
            s->fd[d] = -1;
        }
    return most;
}

/* The footer of one device's file. DS_E_FORMAT: it has none that is right. */
static ds_rc read_footer(recovery *r, uint32_t d, ds_volume_found_fn *found, void *ctx, ds_err *err)
{
    ds_vol_segment *s = r->s;
    uint64_t size = r->bytes[d], at, n;

    if (size % DS_SEG_ALIGN || size < DS_SEG_HEADER_BYTES + ds_seg_footer_bytes(0) || !read_at(r, d, DS_SEG_ALIGN, size - DS_SEG_ALIGN) ||
        !ds_seg_tail_read(&at, r->page + DS_SEG_ALIGN - DS_SEG_TAIL_BYTES, size))
        return DS_E_FORMAT;
    if (!room(r, size - at))
        return ds_fail(err, DS_E_NOMEM, "out of memory for a footer of %llu bytes", (unsigned long long)(size - at));
    if (!read_at(r, d, size - at, at) || ds_seg_footer_read(&n, r->page, size - at, at, &s->h, NULL) != DS_OK)
        return DS_E_FORMAT;
    if (!s->used) { /* it is being recovered, and nobody else knows it */
        s->used = at;
        s->n_items = n;
    }
    for (uint64_t i = 0; found && i < n; i++) {
        ds_seg_item x = ds_seg_footer_item(r->page, i);
        found(ctx, &s->h, &x);
    }
    return DS_OK;
}

/* Whether a device has the extent at `at` whole: header, heads and shards. */
static bool extent_whole(recovery *r, uint32_t d, uint64_t at, ds_seg_extent *x)
{
    const ds_seg_header *h = &r->s->h;
    uint64_t left = r->bytes[d] > at ? r->bytes[d] - at : 0, bytes;
    size_t head = left < DS_SEG_ALIGN ? (size_t)left : DS_SEG_ALIGN;

    if (head < DS_SEG_ALIGN || !room(r, DS_SEG_ALIGN) || !read_at(r, d, DS_SEG_ALIGN, at) ||
        ds_seg_extent_read(x, r->page, DS_SEG_ALIGN, at, h, NULL) != DS_OK)
        return false;
    bytes = ds_vol_extent_bytes(r->v, x->n, h->shard_bytes);
    if (bytes > left || !room(r, bytes) || !read_at(r, d, bytes, at))
        return false;
    for (uint32_t i = 0; i < x->n; i++) {
        const uint8_t *p = r->page + ds_seg_record_at(x->n, i, h->shard_bytes);
        ds_seg_record rec;
        if (!ds_seg_record_read(&rec, p) || !ds_key_equal(&rec.key, &x->block[i].key) || rec.crc != x->block[i].crc || rec.device != d ||
            rec.segment != h->segment || rec.generation != h->generation ||
            rec.shard_crc != ds_crc32c(p + DS_SEG_RECORD_HEADER, h->shard_bytes))
            return false;
    }
    return true;
}

/* A segment without a footer: extent after extent, as long as k devices have one whole. */
static ds_rc scan_extents(recovery *r, ds_volume_found_fn *found, void *ctx, ds_err *err)
{
    ds_vol_segment *s = r->s;
    ds_seg_extent x = { 0 }, y;

    for (s->used = r->v->align;;) {
        uint32_t whole = 0;
        for (uint32_t d = 0; d < r->v->n; d++)
            if (s->fd[d] >= 0 && extent_whole(r, d, s->used, &y)) {
                x = y;
                whole++;
            }
        if (whole < r->v->k)
            return DS_OK;
        if (s->n_items + x.n > s->cap_items) {
            uint64_t cap = s->cap_items ? 2 * s->cap_items : 1024;
            ds_seg_item *p = realloc(s->items, cap * sizeof *p);
            if (!p)
                return ds_fail(err, DS_E_NOMEM, "out of memory");
            s->items = p;
            s->cap_items = cap;
        }
        for (uint32_t i = 0; i < x.n; i++) {
            ds_seg_item *it = &s->items[s->n_items++];
            *it = (ds_seg_item){ .key = x.block[i].key,
                                 .parent = i ? x.block[i - 1].key : x.parent,
                                 .offset = s->used,
                                 .at = i,
                                 .of = x.n,
                                 .depth = x.depth + i,
                                 .crc = x.block[i].crc,
                                 .flags = x.block[i].flags,
                                 .tenant = x.tenant };
            if (found)
                found(ctx, &s->h, it);
        }
        s->used += ds_vol_extent_bytes(r->v, x.n, s->h.shard_bytes);
    }
}

/* What a killed process left unfinished gets its footer; a device that can't take it has none, which is legal. */
static void finish_segment(recovery *r)
{
    ds_volume *v = r->v;
    uint64_t before = v->bytes;

    for (uint32_t d = 0; d < v->n; d++)
        if (r->s->fd[d] >= 0)
            r->s->write_fd[d] = v->files->ops->open_write(v->files, d, r->s->h.segment);
    ds_vol_seal(v, r->s);
    v->bytes = before; /* recover counts the whole segment */
    r->s->file_bytes = r->s->used * v->n + ds_seg_footer_bytes(r->s->n_items) * v->n;
}

static void forget_files(const ds_volume *v, uint64_t segment)
{
    for (uint32_t d = 0; d < v->n; d++)
        if (!(v->missing & 1u << d))
            v->files->ops->remove(v->files, d, segment);
}

static ds_rc recover_segment(recovery *r, uint64_t segment, const ds_volume_opts *o, ds_err *err)
{
    ds_volume *v = r->v;
    uint32_t files = open_files(r, segment);
    bool sealed = false;
    ds_rc rc = DS_OK;

    if (files < v->k) /* what is left of it can't be read: it counts towards the capacity until somebody removes it */
        return DS_E_FORMAT;
    if (o->known && o->known(o->ctx, &r->s->h))
        return DS_OK;
    for (uint32_t d = 0; d < v->n && !sealed && rc == DS_OK; d++)
        if (r->s->fd[d] >= 0) {
            rc = read_footer(r, d, o->found, o->ctx, err);
            sealed = rc == DS_OK;
            rc = rc == DS_E_FORMAT ? DS_OK : rc;
        }
    if (rc == DS_OK && !sealed)
        rc = scan_extents(r, o->found, o->ctx, err);
    if (rc != DS_OK || v->read_only)
        return rc;
    if (r->s->n_items == 0) {
        forget_files(v, segment);
        return DS_E_FORMAT;
    }
    if (!sealed)
        finish_segment(r);
    return DS_OK;
}

ds_rc ds_vol_recover(ds_volume *v, const ds_volume_opts *o, ds_err *err)
{
    recovery r = { .v = v };
    numbers l = { 0 };
    ds_rc rc = list_all(v, &l, err);

    if (rc == DS_OK && !room(&r, DS_SEG_HEADER_BYTES))
        rc = ds_fail(err, DS_E_NOMEM, "out of memory");
    for (size_t i = 0; rc == DS_OK && i < l.n; i++) {
        memset(r.bytes, 0, sizeof r.bytes);
        r.s = ds_vol_segment_new(v);
        if (!r.s) {
            rc = ds_fail(err, DS_E_NOMEM, "out of memory");
            break;
        }
        uint64_t mute = v->files->ops->mute(v->files);
        rc = recover_segment(&r, l.id[i], o, err);
        if ((rc == DS_OK || rc == DS_E_FORMAT) && v->files->ops->mute(v->files) != mute)
            rc = silent(&r, err);
        v->bytes += r.s->file_bytes;
        if (rc == DS_OK && !ds_vol_insert(v, r.s))
            rc = ds_fail(err, DS_E_NOMEM, "out of memory");
        if (rc != DS_OK)
            ds_vol_give(v, r.s);
        rc = rc == DS_E_FORMAT ? DS_OK : rc;
        v->next = l.id[i] + 1 > v->next ? l.id[i] + 1 : v->next;
    }
    free(r.page);
    free(l.id);
    return rc;
}

ds_rc ds_volume_list(ds_volume *v, uint64_t segment, ds_volume_found_fn *found, void *ctx, ds_err *err)
{
    recovery r = { .v = v, .s = ds_vol_take(v, segment) };
    uint64_t mute = v->files->ops->mute(v->files);
    bool told = false;
    ds_rc rc;

    if (!r.s || r.s->open) {
        if (r.s)
            ds_vol_give(v, r.s);
        return ds_fail(err, DS_E_ARG, "segment %llu: there is none that is sealed", (unsigned long long)segment);
    }
    rc = room(&r, DS_SEG_HEADER_BYTES) ? DS_OK : ds_fail(err, DS_E_NOMEM, "out of memory");
    for (uint32_t d = 0; d < v->n && !told && rc == DS_OK; d++) {
        if (r.s->fd[d] < 0 || !v->files->ops->size(v->files, d, r.s->fd[d], segment, &r.bytes[d]))
            continue;
        rc = read_footer(&r, d, found, ctx, err);
        told = rc == DS_OK;
        rc = rc == DS_E_FORMAT ? DS_OK : rc;
    }
    if (rc == DS_OK && !told) { /* no device has its footer: by the extents, on a copy that nobody else knows */
        ds_vol_segment *s = ds_vol_segment_new(v);
        if (!s)
            rc = ds_fail(err, DS_E_NOMEM, "out of memory");
        else {
            s->h = r.s->h;
            memcpy(s->fd, r.s->fd, sizeof s->fd);
            recovery copy = { .v = v, .s = s };
            memcpy(copy.bytes, r.bytes, sizeof copy.bytes);
            rc = scan_extents(&copy, found, ctx, err);
            free(copy.page);
            for (uint32_t d = 0; d < DS_SEG_MAX_DEVICES; d++)
                s->fd[d] = -1;
            ds_vol_give(v, s);
        }
    }
    if (rc == DS_OK && v->files->ops->mute(v->files) != mute)
        rc = silent(&r, err);
    free(r.page);
    ds_vol_give(v, r.s);
    return rc;
}
