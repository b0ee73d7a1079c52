/* Looking after a store: room for what comes, expiry, repair, verification, forgetting. All by one move: what is
 * kept of a segment is copied forward, durable and entered before the segment goes. */
#include "kvstore/store_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "kvstore/collect.h"

enum {
    HOUR_S = 3600,
    REPAIR_AGAIN_S = 60,
    SLOW_BYTES_S = 64 << 20,
    BATCHES = 128, /* parts of the capacity that are freed at a time: a look at all blocks is a small part of writing one */
};

/* ---- one segment ---- */

typedef struct {
    ds_seg_item *item;
    size_t n, cap;
    ds_seg_header head;
    bool nomem;
} contents;

static void add_item(void *ctx, const ds_seg_header *h, const ds_seg_item *x)
{
    contents *c = ctx;

    c->head = *h;
    if (c->n == c->cap) {
        size_t cap = c->cap ? 2 * c->cap : 1024;
        ds_seg_item *p = realloc(c->item, cap * sizeof *p);
        if (!p) {
            c->nomem = true;
            return;
        }
        c->item = p;
        c->cap = cap;
    }
    c->item[c->n++] = *x;
}

static ds_rc read_contents(ds_kvs *st, uint64_t segment, contents *c, ds_err *err)
{
    ds_rc rc;

    *c = (contents){ 0 };
    rc = ds_volume_list(st->v, segment, add_item, c, err);
    if (rc == DS_OK && c->nomem)
        rc = ds_fail(err, DS_E_NOMEM, "out of memory for a segment's list");
    return rc;
}

/* Whether this copy of the block is the one that the index leads to. */
static bool is_here(ds_kvs *st, uint64_t segment, const ds_seg_item *x, ds_index_hit *hit)
{
    return ds_index_find(st->ix, &x->key, hit) && hit->place.segment == segment && hit->place.offset == x->offset && hit->place.at == x->at;
}

static void note_lifetime(void *ctx, uint32_t record)
{
    ds_kvs *st = ctx;
    uint64_t now = ds_kvs_wall_s(st);
    ds_index_info b;

    if (ds_index_at(st->ix, record, &b) && b.entered)
        DS_KVS_COUNT_TIME(st, lifetime, now > b.entered ? now - b.entered : 0);
}

static uint64_t forget_record(ds_kvs *st, uint32_t record)
{
    pthread_rwlock_wrlock(&st->book);
    uint64_t n = ds_index_remove(st->ix, record, note_lifetime, st);
    pthread_rwlock_unlock(&st->book);
    return n;
}

/* Copies of consecutive blocks that wait for their commit. */
typedef struct {
    ds_volume_place place;
    uint32_t n, first; /* items first .. first + n - 1 of the segment */
    uint32_t crc[DS_SEG_EXTENT_BLOCKS];
} copied;

typedef struct {
    ds_kvs *st;
    const contents *c;
    uint8_t *bytes; /* of one extent's blocks */
    copied *done;
    size_t n_done, cap_done;
    bool force;
} copier;

static ds_rc copy_run(copier *k, uint32_t first, uint32_t n, ds_err *err)
{
    ds_kvs *st = k->st;
    const ds_seg_item *x = k->c->item + first;
    const uint8_t *blocks[DS_SEG_EXTENT_BLOCKS];
    ds_key keys[DS_SEG_EXTENT_BLOCKS];
    uint32_t klass = k->c->head.klass < DS_KVSTORE_CLASSES ? k->c->head.klass : DS_KVSTORE_CHAT;
    ds_volume_extent e = { .klass = klass,
                           .expires_s = ds_kvs_wall_s(st) + st->ttl_s[klass],
                           .block_bytes = k->c->head.block_bytes,
                           .parent = x->parent,
                           .depth = x->depth,
                           .n = n,
                           .keys = keys,
                           .blocks = blocks,
                           .tenant = x->tenant };
    copied *d;
    ds_rc rc;

    if (k->n_done == k->cap_done) {
        size_t cap = k->cap_done ? 2 * k->cap_done : 64;
        copied *p = realloc(k->done, cap * sizeof *p);
        if (!p)
            return ds_fail(err, DS_E_NOMEM, "out of memory");
        k->done = p;
        k->cap_done = cap;
    }
    d = &k->done[k->n_done];
    *d = (copied){ .n = n, .first = first };
    e.crc = d->crc;
    memcpy(e.layout, k->c->head.layout, sizeof e.layout);
    for (uint32_t i = 0; i < n; i++) {
        blocks[i] = k->bytes + (size_t)i * e.block_bytes;
        keys[i] = x[i].key;
        e.approx |= (uint64_t)(x[i].flags & DS_SEG_APPROX) << i;
    }
    rc = ds_volume_append(st->v, &e, &d->place, err);
    k->n_done += rc == DS_OK;
    return rc;
}

/* Reads what is kept and appends it in runs. What can't be read any more is forgotten. */
static ds_rc copy_kept(copier *k, uint64_t segment, ds_err *err)
{
    ds_kvs *st = k->st;
    uint32_t most = ds_kvs_extent_blocks(st, k->c->head.block_bytes), n = 0;
    ds_rc rc = DS_OK;

    for (uint32_t i = 0; i < k->c->n && rc == DS_OK; i++) {
        const ds_seg_item *x = &k->c->item[i];
        ds_index_hit hit;
        bool kept = is_here(st, segment, x, &hit);
        bool follows = n && x->offset == x[-1].offset && ds_key_equal(&x->parent, &x[-1].key);
        if (n && (!kept || !follows || n == most)) {
            rc = copy_run(k, i - n, n, err);
            n = 0;
        }
        if (!kept || rc != DS_OK)
            continue;
        ds_read_result got =
            ds_volume_read(st->own, &hit.place, &x->key, k->bytes + (size_t)n * k->c->head.block_bytes, k->c->head.block_bytes, NULL, NULL);
        if (got == DS_READ_OK) {
            n++;
            continue;
        }
        if (n)
            rc = copy_run(k, i - n, n, err);
        n = 0;
        if (k->force || got == DS_READ_CORRUPT || got == DS_READ_GONE)
            DS_KVS_COUNT(st, evicted, forget_record(st, hit.record));
        else if (rc == DS_OK)
            rc = ds_fail(err, DS_E_IO, "segment %llu: a block can't be read now", (unsigned long long)segment);
    }
    if (n && rc == DS_OK)
        rc = copy_run(k, (uint32_t)k->c->n - n, n, err);
    return rc;
}

/* Blocks first .. first + n - 1 of a copied run, which all are still where they were. */
static void enter_run(copier *k, const copied *d, uint32_t first, uint32_t n)
{
    ds_kvs *st = k->st;
    const ds_seg_item *x = &k->c->item[d->first + first];
    ds_key keys[DS_SEG_EXTENT_BLOCKS];
    ds_index_extent e = {
        .segment = d->place.segment, .offset = d->place.offset, .of = d->n, .at = first, .n = n, .keys = keys, .crc = d->crc + first
    };
    ds_index_info info;
    ds_index_hit hit;

    for (uint32_t i = 0; i < n; i++) {
        keys[i] = x[i].key;
        e.approx |= (uint64_t)(x[i].flags & DS_SEG_APPROX) << i;
    }
    pthread_rwlock_wrlock(&st->book);
    if (ds_index_find(st->ix, &keys[0], &hit) && ds_index_at(st->ix, hit.record, &info)) {
        e.layout = hit.what >> DS_INDEX_LAYOUT_SHIFT & 255;
        e.klass = hit.what >> DS_INDEX_KLASS_SHIFT & 7;
        e.parent = info.parent;
        e.depth = info.depth;
        e.tenant = info.tenant;
        if (ds_index_insert(st->ix, &e, NULL, NULL) == DS_OK)
            DS_KVS_COUNT(st, moved, n);
    }
    pthread_rwlock_unlock(&st->book);
}

static void enter_copies(copier *k)
{
    ds_index_hit hit;

    for (size_t i = 0; i < k->n_done; i++) {
        const copied *d = &k->done[i];
        for (uint32_t b = 0, n; b < d->n; b += n ? n : 1) {
            for (n = 0; b + n < d->n && is_here(k->st, k->c->head.segment, &k->c->item[d->first + b + n], &hit);)
                n++;
            if (n)
                enter_run(k, d, b, n);
        }
    }
}

ds_rc ds_kvs_evacuate(ds_kvs *st, const ds_kvs_move *m, ds_err *err)
{
    contents c;
    copier k = { .st = st, .c = &c, .force = m->force };
    uint64_t segment = m->segment;
    ds_rc rc = read_contents(st, segment, &c, err);

    for (size_t i = 0; i < c.n && rc == DS_OK; i++) {
        ds_index_hit hit;
        ds_index_info info;
        if (is_here(st, segment, &c.item[i], &hit) && ds_index_at(st->ix, hit.record, &info) && !m->keep(m->ctx, &info))
            ds_kvs_count(st, m->counter, forget_record(st, hit.record));
    }
    if (rc == DS_OK && c.n) {
        k.bytes = malloc((size_t)DS_SEG_EXTENT_BLOCKS * c.head.block_bytes);
        rc = k.bytes ? copy_kept(&k, segment, err) : ds_fail(err, DS_E_NOMEM, "out of memory for %d blocks", DS_SEG_EXTENT_BLOCKS);
    }
    if (rc == DS_OK && k.n_done)
        rc = ds_volume_commit(st->v, err);
    if (rc == DS_OK) {
        enter_copies(&k);
        for (size_t i = 0; i < c.n; i++) { /* what had no room in the index is gone with the segment */
            ds_index_hit hit;
            if (is_here(st, segment, &c.item[i], &hit))
                ds_kvs_count(st, m->counter, forget_record(st, hit.record));
        }
        ds_volume_drop(st->v, segment);
    }
    free(k.bytes);
    free(k.done);
    free(c.item);
    return rc;
}

/* ---- room ---- */

/* What is left free for copying. */
static uint64_t reserve(const ds_kvs *st)
{
    return st->segment_bytes * st->n_devices * 3 / 2;
}

static uint64_t bytes_used(const ds_kvs *st)
{
    ds_volume_stats s;

    ds_volume_stat(st->v, &s);
    return s.bytes;
}

bool ds_kvs_fits(const ds_kvs *st, uint64_t bytes, uint64_t blocks)
{
    return (st->capacity == 0 || bytes_used(st) + bytes + reserve(st) <= st->capacity) &&
           ds_index_blocks(st->ix) + blocks <= ds_index_max_blocks(st->ix);
}

typedef struct {
    ds_kvs *st;
    uint64_t cutoff;
    uint64_t *rank; /* of live blocks */
    size_t n_rank;
    uint64_t live_bytes;
    ds_collect_segment *seg;
    size_t n_seg, cap_seg;
    bool nomem;
} survey;

static uint32_t block_bytes_of(const ds_kvs *st, const ds_index_info *b)
{
    return st->layout[b->hit.what >> DS_INDEX_LAYOUT_SHIFT & 255].block_bytes;
}

static uint64_t block_cost(const ds_kvs *st, const ds_index_info *b)
{
    return ds_volume_extent_bytes(st->v, 1, block_bytes_of(st, b));
}

/* A block that was used is one of which all in front was used. */
static void pass_uses_up(ds_kvs *st)
{
    ds_index_info b;

    for (uint32_t r = 0, end = ds_index_end(st->ix); r < end; r++)
        if (ds_index_at(st->ix, r, &b) && b.leaf)
            ds_index_touch_chain(st->ix, r, b.used);
}

static void add_segment(void *ctx, const ds_seg_header *h, uint64_t bytes, bool open)
{
    survey *y = ctx;

    if (open || y->nomem)
        return;
    if (y->n_seg == y->cap_seg) {
        size_t cap = y->cap_seg ? 2 * y->cap_seg : 64;
        ds_collect_segment *p = realloc(y->seg, cap * sizeof *p);
        y->nomem = !p;
        if (!p)
            return;
        y->seg = p;
        y->cap_seg = cap;
    }
    y->seg[y->n_seg++] = (ds_collect_segment){ .segment = h->segment, .bytes = bytes };
}

static ds_collect_segment *segment_in(survey *y, uint64_t segment)
{
    size_t low = 0, high = y->n_seg;

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (y->seg[mid].segment < segment)
            low = mid + 1;
        else
            high = mid;
    }
    return low < y->n_seg && y->seg[low].segment == segment ? &y->seg[low] : NULL;
}

static uint64_t rank_of(const ds_index_info *b)
{
    return ds_collect_rank(b->used, b->depth);
}

static bool used_lately(void *ctx, const ds_index_info *b)
{
    return rank_of(b) >= *(const uint64_t *)ctx;
}

/* Looks at every block. `target`: bytes of blocks that may stay. */
static bool look_around(survey *y, uint64_t target, uint64_t max_blocks)
{
    ds_kvs *st = y->st;
    uint32_t end = ds_index_end(st->ix);
    ds_index_info b;
    uint64_t keep;

    y->rank = malloc(((size_t)ds_index_blocks(st->ix) + 1) * sizeof *y->rank);
    if (!y->rank)
        return false;
    pass_uses_up(st);
    for (uint32_t r = 0; r < end; r++)
        if (ds_index_at(st->ix, r, &b)) {
            y->rank[y->n_rank++] = rank_of(&b);
            y->live_bytes += block_cost(st, &b);
        }
    keep = y->live_bytes > target ? (uint64_t)((long double)y->n_rank * (long double)target / (long double)y->live_bytes) : y->n_rank;
    keep = keep < max_blocks ? keep : max_blocks;
    y->cutoff = ds_collect_cutoff(y->rank, y->n_rank, keep);
    ds_volume_each(st->v, add_segment, y);
    for (uint32_t r = 0; r < end && !y->nomem; r++)
        if (ds_index_at(st->ix, r, &b)) {
            ds_collect_segment *s = segment_in(y, b.hit.place.segment);
            if (!s)
                continue;
            s->live++;
            if (rank_of(&b) >= y->cutoff) {
                s->keep++;
                s->keep_bytes += block_cost(st, &b);
            }
        }
    return !y->nomem;
}

/* Takes blocks out that are below the cutoff, without touching segments. */
static void thin_index(ds_kvs *st, uint64_t cutoff)
{
    ds_index_info b;

    for (uint32_t r = 0, end = ds_index_end(st->ix); r < end; r++)
        if (ds_index_at(st->ix, r, &b) && rank_of(&b) < cutoff)
            DS_KVS_COUNT(st, evicted, forget_record(st, r));
}

static bool collect(ds_kvs *st, uint64_t bytes, uint64_t blocks)
{
    survey y = { .st = st };
    uint64_t max = ds_index_max_blocks(st->ix), most = max - max / BATCHES > blocks ? max - max / BATCHES - blocks : 0,
             before = bytes_used(st), want = 0;
    bool moved = false;

    if (st->capacity) {
        uint64_t away = bytes + reserve(st) + st->capacity / BATCHES;
        want = before + away > st->capacity ? before + away - st->capacity : 0;
        most = ds_index_blocks(st->ix) + blocks <= max ? max : most;
        uint64_t old = away + st->capacity / DS_COLLECT_SLACK;
        if (!look_around(&y, st->capacity > old ? st->capacity - old : 0, most))
            goto end;
    } else if (!look_around(&y, UINT64_MAX, most)) {
        goto end;
    }
    if (ds_index_blocks(st->ix) + blocks > max) {
        thin_index(st, y.cutoff);
        moved = true;
    }
    for (size_t i = 0, n = want ? ds_collect_choose(y.seg, y.n_seg, want) : 0; i < n; i++)
        moved = ds_kvs_evacuate(st,
                                &(ds_kvs_move){ .segment = y.seg[i].segment,
                                                .keep = used_lately,
                                                .ctx = &y.cutoff,
                                                .counter = offsetof(ds_kvstore_stats, evicted),
                                                .force = true },
                                NULL) == DS_OK ||
                moved;
end:
    free(y.rank);
    free(y.seg);
    return moved;
}

bool ds_kvs_room(ds_kvs *st, uint64_t bytes, uint64_t blocks)
{
    if (st->capacity && bytes > st->capacity / 4)
        return false; /* it would push out too much of what is there */
    for (int round = 0; round < 4 && !ds_kvs_fits(st, bytes, blocks); round++)
        if (!collect(st, bytes, blocks))
            for (uint32_t c = 0; c < DS_KVSTORE_CLASSES; c++) /* what is open can't be collected */
                ds_volume_seal(st->v, c, NULL);
    return ds_kvs_fits(st, bytes, blocks);
}

/* ---- now and then ---- */

typedef struct {
    ds_kvs *st;
    uint64_t now;
    uint64_t due[16]; /* segments that have expired */
    uint32_t n_due;
    bool seal[DS_VOLUME_CLASSES];
} diary;

static void look_at_segment(void *ctx, const ds_seg_header *h, uint64_t bytes, bool open)
{
    diary *d = ctx;
    uint64_t ttl = h->klass < DS_KVSTORE_CLASSES ? d->st->ttl_s[h->klass] : 0;

    (void)bytes;
    if (open) {
        if (h->klass < DS_VOLUME_CLASSES)
            d->seal[h->klass] = h->expires_s <= d->now || d->now >= h->begun_s + HOUR_S;
    } else if (h->expires_s <= d->now || (ttl && h->begun_s + ttl + HOUR_S < h->expires_s && h->begun_s + ttl <= d->now)) {
        if (d->n_due < sizeof d->due / sizeof *d->due)
            d->due[d->n_due++] = h->segment;
    }
}

static bool not_expired(void *ctx, const ds_index_info *b)
{
    const diary *d = ctx;
    uint32_t klass = b->hit.what >> DS_INDEX_KLASS_SHIFT & 7;

    return b->used / 1000000 + d->st->ttl_s[klass < DS_KVSTORE_CLASSES ? klass : DS_KVSTORE_CHAT] > d->now;
}

static bool everything(void *ctx, const ds_index_info *b)
{
    (void)ctx;
    (void)b;
    return true;
}

/* Writes all of a segment anew. */
static bool rewrite(ds_kvs *st, uint64_t segment)
{
    ds_kvs_move m = { .segment = segment, .keep = everything, .counter = offsetof(ds_kvstore_stats, evicted) };

    for (uint32_t c = 0; c < DS_KVSTORE_CLASSES; c++) /* it may be open */
        ds_volume_seal(st->v, c, NULL);
    if (ds_kvs_evacuate(st, &m, NULL) != DS_OK)
        return false;
    DS_KVS_COUNT(st, repairs, 1);
    return true;
}

static void repair_one(ds_kvs *st)
{
    uint64_t segment = 0;

    pthread_mutex_lock(&st->mu);
    if (st->n_suspects)
        segment = st->suspect[--st->n_suspects];
    pthread_mutex_unlock(&st->mu);
    if (segment) {
        rewrite(st, segment);
        return;
    }
    /* What a new disk lacks. Where there is no room for it now there may be later. */
    if (ds_kvs_wall_s(st) < st->repair_at_s)
        return;
    segment = ds_volume_incomplete(st->v, st->repaired_to);
    st->repaired_to = segment;
    if (segment && !rewrite(st, segment))
        st->repair_at_s = ds_kvs_wall_s(st) + REPAIR_AGAIN_S;
}

void ds_kvs_tidy(ds_kvs *st)
{
    diary d = { .st = st, .now = ds_kvs_wall_s(st) };

    if (st->read_only)
        return;
    ds_volume_each(st->v, look_at_segment, &d);
    for (uint32_t c = 0; c < DS_VOLUME_CLASSES; c++)
        if (d.seal[c])
            ds_volume_seal(st->v, c, NULL);
    if (d.n_due)
        pass_uses_up(st);
    for (uint32_t i = 0; i < d.n_due; i++)
        ds_kvs_evacuate(
            st,
            &(ds_kvs_move){
                .segment = d.due[i], .keep = not_expired, .ctx = &d, .counter = offsetof(ds_kvstore_stats, expired), .force = true },
            NULL);
    repair_one(st);
}

/* ---- verification ---- */

typedef struct {
    ds_key key;
    uint64_t segment;
    bool lost;
} finding;

typedef struct {
    finding *f;
    size_t n, cap;
    uint64_t repaired;
    bool repair;
} findings;

static bool add_finding(findings *x, const ds_key *key, uint64_t segment, bool lost)
{
    if (x->n == x->cap) {
        size_t cap = x->cap ? 2 * x->cap : 256;
        finding *p = realloc(x->f, cap * sizeof *p);
        if (!p)
            return false;
        x->f = p;
        x->cap = cap;
    }
    x->f[x->n++] = (finding){ .key = *key, .segment = segment, .lost = lost };
    return true;
}

/* [writer] Forgets what is lost, rewrites segments with damaged parts. */
static void act_on(ds_kvs *st, void *arg)
{
    findings *x = arg;
    ds_index_hit hit;

    for (size_t i = 0; i < x->n; i++)
        if (x->f[i].lost && ds_index_find(st->ix, &x->f[i].key, &hit) && hit.place.segment == x->f[i].segment)
            forget_record(st, hit.record);
    for (size_t i = 0; x->repair && i < x->n; i++) {
        bool here = !x->f[i].lost && ds_index_find(st->ix, &x->f[i].key, &hit);
        if (here && hit.place.segment == x->f[i].segment)
            rewrite(st, hit.place.segment);
        if (here && ds_index_find(st->ix, &x->f[i].key, &hit) && hit.place.segment != x->f[i].segment)
            x->repaired++;
    }
}

static ds_rc verify_one(ds_kvs *st, ds_volume_reader *r, const ds_index_info *b, uint8_t *block, findings *x, ds_kvstore_check *out,
                        ds_err *err)
{
    ds_index_hit hit = b->hit;
    ds_read_info info;
    ds_volume_stats s;
    ds_read_result got;

    got = ds_volume_read(r, &hit.place, &b->key, block, DS_SEG_MAX_BLOCK_BYTES, &(ds_read_opts){ .all = true }, &info);
    if (got == DS_READ_GONE && ds_index_find(st->ix, &b->key, &hit)) /* it moved */
        got = ds_volume_read(r, &hit.place, &b->key, block, DS_SEG_MAX_BLOCK_BYTES, &(ds_read_opts){ .all = true }, &info);
    if (got != DS_READ_OK && !ds_index_find(st->ix, &b->key, &hit))
        return DS_OK; /* it went */
    out->checked++;
    ds_volume_stat(st->v, &s);
    if (got == DS_READ_OK && info.asked - info.bad - info.failed >= st->n_devices - s.bad_devices)
        return DS_OK;
    out->bad += got != DS_READ_OK;
    return add_finding(x, &b->key, hit.place.segment, got != DS_READ_OK) ? DS_OK : ds_fail(err, DS_E_NOMEM, "out of memory");
}

ds_rc ds_kvs_verify(ds_kvs *st, unsigned how, const volatile bool *stop, ds_kvstore_check *out, ds_err *err)
{
    findings x = { .repair = (how & DS_KVSTORE_REPAIR) && !st->read_only };
    ds_volume_reader *r = NULL;
    uint8_t *block = NULL;
    ds_rc rc = ds_volume_reader_create(&r, st->v, err);

    if (rc == DS_OK && !(block = malloc(DS_SEG_MAX_BLOCK_BYTES)))
        rc = ds_fail(err, DS_E_NOMEM, "out of memory");
    for (uint32_t i = 0; rc == DS_OK; i++) {
        ds_index_info b;
        bool there;
        pthread_rwlock_rdlock(&st->book);
        bool end = i >= ds_index_end(st->ix);
        there = !end && ds_index_at(st->ix, i, &b);
        pthread_rwlock_unlock(&st->book);
        if (end)
            break;
        if (stop && *stop)
            rc = ds_fail(err, DS_E_CANCELED, "verification was stopped");
        else if (there)
            rc = verify_one(st, r, &b, block, &x, out, err);
        if (there && (how & DS_KVSTORE_USE))
            ds_index_touch(st->ix, i, ds_kvs_use_us(st));
        if (there && (how & DS_KVSTORE_SLOWLY)) {
            uint64_t ns = (uint64_t)block_bytes_of(st, &b) * 1000000000 / SLOW_BYTES_S;
            nanosleep(&(struct timespec){ .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) }, NULL);
        }
    }
    if (rc == DS_OK && x.n && !st->read_only)
        ds_kvs_run(st, act_on, &x);
    out->repaired = x.repaired;
    free(x.f);
    free(block);
    ds_volume_reader_destroy(r);
    return rc;
}

/* ---- forgetting ---- */

typedef struct {
    uint32_t tenant;
    uint64_t n;
    uint64_t *segment;
    size_t n_segments, cap;
    ds_rc rc;
    ds_err *err;
} forgetting;

static void note_segment(void *ctx, const ds_seg_header *h, uint64_t bytes, bool open)
{
    forgetting *f = ctx;

    (void)bytes;
    (void)open;
    if (f->n_segments == f->cap) {
        size_t cap = f->cap ? 2 * f->cap : 64;
        uint64_t *p = realloc(f->segment, cap * sizeof *p);
        if (!p) {
            f->rc = DS_E_NOMEM;
            return;
        }
        f->segment = p;
        f->cap = cap;
    }
    f->segment[f->n_segments++] = h->segment;
}

static bool of_others(void *ctx, const ds_index_info *b)
{
    return b->tenant != ((const forgetting *)ctx)->tenant;
}

/* [writer] Index first, so that nobody finds it any more; then the segments, dead copies in them too. */
static void forget_all(ds_kvs *st, void *arg)
{
    forgetting *f = arg;
    ds_index_info b;

    for (uint32_t r = 0, end = ds_index_end(st->ix); r < end; r++)
        if (ds_index_at(st->ix, r, &b) && b.tenant == f->tenant)
            f->n += forget_record(st, r);
    DS_KVS_COUNT(st, forgotten, f->n);
    for (uint32_t c = 0; c < DS_KVSTORE_CLASSES && f->rc == DS_OK; c++)
        f->rc = ds_volume_seal(st->v, c, f->err);
    ds_volume_each(st->v, note_segment, f);
    if (f->rc == DS_E_NOMEM)
        ds_fail(f->err, DS_E_NOMEM, "out of memory for a list of segments");
    for (size_t i = 0; i < f->n_segments && f->rc == DS_OK; i++) {
        contents c;
        bool has = false;
        f->rc = read_contents(st, f->segment[i], &c, f->err);
        for (size_t j = 0; j < c.n && !has; j++)
            has = c.item[j].tenant == f->tenant;
        free(c.item);
        if (f->rc == DS_OK && has)
            f->rc = ds_kvs_evacuate(st,
                                    &(ds_kvs_move){ .segment = f->segment[i],
                                                    .keep = of_others,
                                                    .ctx = f,
                                                    .counter = offsetof(ds_kvstore_stats, forgotten),
                                                    .force = true },
                                    f->err);
    }
}

ds_rc ds_kvs_forget(ds_kvs *st, const char *tenant, uint64_t *n, ds_err *err)
{
    forgetting f = { .tenant = ds_kvs_tenant(tenant), .err = err };

    if (st->read_only || f.tenant == 0)
        return ds_fail(err, DS_E_ARG, st->read_only ? "forget: the store is open for reading only" : "forget: no tenant is named");
    ds_kvs_run(st, forget_all, &f);
    free(f.segment);
    *n = f.n;
    return f.rc;
}
