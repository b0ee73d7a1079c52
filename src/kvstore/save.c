/* Saves: appended as extents, made durable together, then entered into the index, then acknowledged. */
#include "kvstore/store_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"

/* ---- the caller ---- */

uint32_t ds_kvs_extent_blocks(const ds_kvs *st, uint32_t block_bytes)
{
    uint32_t n = DS_SEG_EXTENT_BLOCKS;

    while (n > 1 && ds_volume_extent_bytes(st->v, n, block_bytes) + DS_SEG_HEADER_BYTES > st->segment_bytes * st->n_devices)
        n /= 2;
    return n;
}

ds_rc ds_kvs_save_begin(ds_kvs *st, uint32_t layout, const ds_kvstore_save_req *r, ds_err *err)
{
    size_t n = r->n;
    ds_kvs_save *s;
    char *p;

    if (st->read_only)
        return ds_fail(err, DS_E_ARG, "save: the store is open for reading only");
    p = malloc(sizeof *s + n * (sizeof *s->place + sizeof *s->blocks + sizeof *s->keys + sizeof *s->crc));
    if (!p)
        return ds_fail(err, DS_E_NOMEM, "save of %u blocks: out of memory", r->n);
    s = (ds_kvs_save *)(void *)p;
    *s = (ds_kvs_save){ .n = r->n,
                        .exact = r->exact,
                        .depth = r->depth,
                        .klass = (uint32_t)r->klass,
                        .layout = layout,
                        .tenant = ds_kvs_tenant(r->tenant),
                        .parent = r->parent,
                        .done = r->done,
                        .ctx = r->ctx };
    p += sizeof *s;
    s->place = (ds_volume_place *)(void *)p;
    p += n * sizeof *s->place;
    s->blocks = (const uint8_t **)(void *)p;
    p += n * sizeof *s->blocks;
    s->keys = (ds_key *)(void *)p;
    p += n * sizeof *s->keys;
    s->crc = (uint32_t *)(void *)p;
    memcpy(s->keys, r->keys, n * sizeof *s->keys);
    memcpy(s->blocks, r->blocks, n * sizeof *s->blocks);
    pthread_mutex_lock(&st->mu);
    if (st->stopping || st->n_saves == st->max_saves) {
        pthread_mutex_unlock(&st->mu);
        free(s);
        return ds_fail(err, DS_E_AGAIN, "%u saves are under way", st->max_saves);
    }
    st->n_saves++;
    *st->saves_end = s;
    st->saves_end = &s->later;
    pthread_cond_signal(&st->more);
    pthread_mutex_unlock(&st->mu);
    return DS_OK;
}

/* ---- the writer ---- */

typedef struct {
    ds_kvs *st;
    ds_kvs_save *first, **end; /* appended, not durable yet */
} batch;

static void acknowledge(ds_kvs *st, ds_kvs_save *s, ds_kvstore_saved r)
{
    uint32_t new_blocks = s->n - s->from;

    switch (r) {
    case DS_KVSTORE_SAVED:
        DS_KVS_COUNT(st, saved, new_blocks);
        DS_KVS_COUNT(st, known, s->from);
        break;
    case DS_KVSTORE_ORPHAN:
        DS_KVS_COUNT(st, orphans, new_blocks);
        break;
    case DS_KVSTORE_FULL:
        DS_KVS_COUNT(st, full, new_blocks);
        break;
    case DS_KVSTORE_FAILED:
        DS_KVS_COUNT(st, failed, new_blocks);
        break;
    }
    pthread_mutex_lock(&st->mu);
    st->n_saves--;
    pthread_mutex_unlock(&st->mu);
    s->done(s->ctx, r);
    free(s);
}

/* The key in front of the block that is to be written first. False: there is none, it begins a chain. */
static bool front_key(const ds_kvs_save *s, ds_key *k)
{
    *k = s->from ? s->keys[s->from - 1] : s->parent;
    return s->depth + s->from > 0;
}

static ds_kvstore_saved enter(ds_kvs *st, ds_kvs_save *s)
{
    uint64_t used = ds_kvs_use_us(st);
    uint32_t parent = DS_NONE;
    ds_index_hit hit;
    ds_key front;

    if (front_key(s, &front)) {
        if (!ds_index_find(st->ix, &front, &hit))
            return DS_KVSTORE_ORPHAN; /* it was dropped while this one was written */
        parent = hit.record;
        ds_index_touch_chain(st->ix, parent, used);
    }
    for (uint32_t e = 0, i = s->from; e < s->n_extents; e++) {
        uint32_t n = s->place[e].of;
        ds_index_extent x = { .segment = s->place[e].segment,
                              .offset = s->place[e].offset,
                              .of = n,
                              .n = n,
                              .keys = s->keys + i,
                              .crc = s->crc + i,
                              .layout = s->layout,
                              .klass = s->klass,
                              .parent = parent,
                              .depth = s->depth + i,
                              .tenant = s->tenant,
                              .used = used };
        for (uint32_t b = 0; b < n; b++)
            x.approx |= (uint64_t)(i + b >= s->exact) << b;
        pthread_rwlock_wrlock(&st->book);
        ds_rc rc = ds_index_insert(st->ix, &x, &parent, NULL);
        pthread_rwlock_unlock(&st->book);
        if (rc != DS_OK)
            return DS_KVSTORE_FULL;
        i += n;
    }
    return DS_KVSTORE_SAVED;
}

/* Makes durable what was appended and tells everybody. */
static void flush(batch *b)
{
    bool ok = !b->first || ds_volume_commit(b->st->v, NULL) == DS_OK;

    for (ds_kvs_save *s = b->first, *later; s; s = later) {
        later = s->later;
        acknowledge(b->st, s, ok ? enter(b->st, s) : DS_KVSTORE_FAILED);
    }
    b->first = NULL;
    b->end = &b->first;
}

/* Whether a key is of something that was appended in this batch. */
static bool under_way(const batch *b, const ds_key *k)
{
    for (const ds_kvs_save *s = b->first; s; s = s->later)
        for (uint32_t i = s->n; i-- > s->from;)
            if (ds_key_equal(&s->keys[i], k))
                return true;
    return false;
}

static uint32_t known_blocks(const ds_kvs *st, const ds_kvs_save *s)
{
    uint32_t i = 0;
    ds_index_hit hit;

    while (i < s->n && ds_index_find(st->ix, &s->keys[i], &hit) && !((hit.what & DS_INDEX_APPROX) && i < s->exact))
        i++;
    return i;
}

static ds_rc append(ds_kvs *st, ds_kvs_save *s, uint32_t i, uint32_t n)
{
    const ds_kvs_layout *l = &st->layout[s->layout];
    ds_volume_extent x = { .klass = s->klass,
                           .expires_s = ds_kvs_wall_s(st) + st->ttl_s[s->klass],
                           .block_bytes = l->block_bytes,
                           .parent = i ? s->keys[i - 1] : s->parent,
                           .depth = s->depth + i,
                           .n = n,
                           .keys = s->keys + i,
                           .blocks = s->blocks + i,
                           .tenant = s->tenant,
                           .crc = s->crc + i };

    memcpy(x.layout, l->id, sizeof x.layout);
    for (uint32_t b = 0; b < n; b++)
        x.approx |= (uint64_t)(i + b >= s->exact) << b;
    return ds_volume_append(st->v, &x, &s->place[s->n_extents], NULL);
}

static uint64_t bytes_of(const ds_kvs *st, const ds_kvs_save *s)
{
    uint32_t block_bytes = st->layout[s->layout].block_bytes, most = ds_kvs_extent_blocks(st, block_bytes), left = s->n - s->from;

    return (left / most) * ds_volume_extent_bytes(st->v, most, block_bytes) +
           (left % most ? ds_volume_extent_bytes(st->v, left % most, block_bytes) : 0);
}

/* Appends a save to the batch, or ends it. */
static void save_one(batch *b, ds_kvs_save *s)
{
    ds_kvs *st = b->st;
    uint32_t most = ds_kvs_extent_blocks(st, st->layout[s->layout].block_bytes);
    ds_rc rc = DS_OK;
    ds_index_hit hit;
    ds_key front;

    s->from = known_blocks(st, s);
    if (front_key(s, &front) && ds_index_find(st->ix, &front, &hit))
        ds_index_touch_chain(st->ix, hit.record, ds_kvs_use_us(st));
    if (s->from < s->n && !ds_kvs_fits(st, bytes_of(st, s), s->n)) {
        flush(b); /* what is appended and not entered would count as rubbish */
        if (!ds_kvs_room(st, bytes_of(st, s), s->n)) {
            acknowledge(st, s, DS_KVSTORE_FULL);
            return;
        }
        s->from = known_blocks(st, s);
    }
    if (front_key(s, &front) && !under_way(b, &front) && !ds_index_find(st->ix, &front, NULL)) {
        acknowledge(st, s, DS_KVSTORE_ORPHAN);
        return;
    }
    for (uint32_t i = s->from, n; i < s->n && rc == DS_OK; i += n) {
        n = s->n - i < most ? s->n - i : most;
        rc = append(st, s, i, n);
        s->n_extents += rc == DS_OK;
    }
    if (rc != DS_OK) {
        acknowledge(st, s, rc == DS_E_AGAIN ? DS_KVSTORE_FULL : DS_KVSTORE_FAILED);
        return;
    }
    s->later = NULL;
    *b->end = s;
    b->end = &s->later;
}

void ds_kvs_save_all(ds_kvs *st, ds_kvs_save *list)
{
    batch b = { .st = st };

    b.end = &b.first;
    for (ds_kvs_save *s = list, *later; s; s = later) {
        later = s->later;
        save_one(&b, s);
    }
    flush(&b);
}
