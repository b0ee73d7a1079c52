/* The index's memory, and the owner's bookkeeping beside what readers see. */
#include "kvstore/index.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvstore/index_core_internal.h"

enum { MAX_BLOCKS = 1 << 30, TRIES = 4096, BATCH = 32, SLICE = 1 << 14 };
#define OF_BITS 4095u /* an offset's low bits, where the number of blocks stands */

static const char magic[8] = "DSKVIDX1";

/* Where the parts are, in the first page of the memory. */
typedef struct {
    char magic[8];
    uint32_t max_blocks, mask;
    uint64_t seed, bucket_at, record_at, extent_at, bytes;
} head;

/* What readers have no use for. */
typedef struct {
    uint32_t parent, child, next, prev; /* NONE, or records; of a free record `next` is the next free one */
    uint32_t depth, tenant, entered;
} links;

struct ds_index {
    /* [const] */
    ds_ix ix;
    uint8_t *map;
    uint64_t bytes;
    int fd;
    bool owner;
    /* [owner's writing thread] */
    links *link;    /* by record */
    uint8_t *alive; /* by extent: blocks that use it */
    uint32_t *free_extent, n_free_extent;
    uint32_t free_record, fresh_record, fresh_extent, blocks;
    /* [atomic] by record: any thread notes a use, relaxed: a time that is a little old does no harm */
    _Atomic uint64_t *used;
};

static uint64_t load(const uint64_t *at)
{
    return atomic_load_explicit((const _Atomic uint64_t *)at, memory_order_acquire);
}

static void store(uint64_t *at, uint64_t v)
{
    atomic_store_explicit((_Atomic uint64_t *)at, v, memory_order_release);
}

static void words_of(uint64_t w[4], const ds_key *k)
{
    memcpy(w, k->b, sizeof k->b);
}

static uint64_t page_up(uint64_t n)
{
    return (n + 4095) / 4096 * 4096;
}

/* Buckets for a load of at most 3/4. */
static uint32_t buckets_for(uint32_t max_blocks)
{
    uint64_t n = 1;

    while (n * DS_IX_ENTRIES * 3 / 4 < max_blocks)
        n *= 2;
    return (uint32_t)n;
}

static void *private_array(uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    madvise(p, bytes, MADV_HUGEPAGE); /* a hint */
    return p;
}

static void place_parts(ds_index *x, const head *h)
{
    x->ix = (ds_ix){ .bucket = (uint64_t *)(void *)(x->map + h->bucket_at),
                     .record = (uint64_t *)(void *)(x->map + h->record_at),
                     .extent = (uint64_t *)(void *)(x->map + h->extent_at),
                     .mask = h->mask,
                     .max_blocks = h->max_blocks,
                     .seed = h->seed,
                     .tries = TRIES };
}

static head layout_for(uint32_t max_blocks)
{
    head h = { .max_blocks = max_blocks, .mask = buckets_for(max_blocks) - 1, .bucket_at = 4096 };

    memcpy(h.magic, magic, sizeof magic);
    h.record_at = h.bucket_at + page_up(((uint64_t)h.mask + 1) * DS_IX_BUCKET_WORDS * 8);
    h.extent_at = h.record_at + page_up((uint64_t)max_blocks * DS_IX_RECORD_WORDS * 8);
    h.bytes = h.extent_at + page_up((uint64_t)max_blocks * DS_IX_EXTENT_WORDS * 8);
    return h;
}

ds_rc ds_index_create(ds_index **out, uint32_t max_blocks, ds_err *err)
{
    ds_index *x;
    head h;

    *out = NULL;
    if (max_blocks == 0 || max_blocks > MAX_BLOCKS)
        return ds_fail(err, DS_E_ARG, "index of %u blocks: expected 1 to %d", max_blocks, MAX_BLOCKS);
    x = calloc(1, sizeof *x);
    if (!x)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    h = layout_for(max_blocks);
    x->owner = true;
    x->bytes = h.bytes;
    x->free_record = DS_NONE;
    x->fd = memfd_create("deepserve-kv-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (x->fd < 0 || getrandom(&h.seed, sizeof h.seed, 0) != sizeof h.seed || ftruncate(x->fd, (off_t)h.bytes) != 0)
        goto system;
    h.seed |= 1;
    x->map = mmap(NULL, h.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, x->fd, 0);
    if (x->map == MAP_FAILED) {
        x->map = NULL;
        goto system;
    }
    /* this mapping goes on writing; nobody else's ever does */
    if (fcntl(x->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0)
        goto system;
    madvise(x->map, h.bytes, MADV_HUGEPAGE); /* a hint: refused where huge pages of shared memory are off */
    memcpy(x->map, &h, sizeof h);
    place_parts(x, &h);
    x->link = private_array((uint64_t)max_blocks * sizeof *x->link);
    x->alive = private_array(max_blocks);
    x->free_extent = private_array((uint64_t)max_blocks * sizeof *x->free_extent);
    x->used = private_array((uint64_t)max_blocks * sizeof *x->used);
    if (!x->link || !x->alive || !x->free_extent || !x->used) {
        ds_index_destroy(x);
        return ds_fail(err, DS_E_NOMEM, "out of memory for an index of %u blocks", max_blocks);
    }
    *out = x;
    return DS_OK;
system:;
    int e = errno;
    ds_index_destroy(x);
    return ds_fail(err, DS_E_IO, "shared memory for an index of %u blocks: %s", max_blocks, strerror(e));
}

ds_rc ds_index_attach(ds_index **out, int fd, ds_err *err)
{
    ds_index *x = calloc(1, sizeof *x);
    struct stat st;
    head h, want;

    *out = NULL;
    if (!x)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    x->fd = -1;
    if (fstat(fd, &st) != 0 || st.st_size < 4096 || pread(fd, &h, sizeof h, 0) != sizeof h) {
        free(x);
        return ds_fail(err, DS_E_FORMAT, "index: can't be read");
    }
    if (memcmp(h.magic, magic, sizeof magic) != 0 || h.max_blocks == 0 || h.max_blocks > MAX_BLOCKS) {
        free(x);
        return ds_fail(err, DS_E_FORMAT, "index: it isn't one");
    }
    want = layout_for(h.max_blocks);
    if (h.mask != want.mask || h.record_at != want.record_at || h.extent_at != want.extent_at || h.bucket_at != want.bucket_at ||
        h.bytes != want.bytes || (uint64_t)st.st_size != h.bytes) {
        free(x);
        return ds_fail(err, DS_E_FORMAT, "index: %lld bytes for %u blocks", (long long)st.st_size, h.max_blocks);
    }
    x->bytes = h.bytes;
    x->map = mmap(NULL, h.bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (x->map == MAP_FAILED) {
        free(x);
        return ds_fail(err, DS_E_IO, "index: %s", strerror(errno));
    }
    place_parts(x, &h);
    *out = x;
    return DS_OK;
}

void ds_index_destroy(ds_index *x)
{
    uint64_t n;

    if (!x)
        return;
    n = x->ix.max_blocks;
    if (x->link)
        munmap(x->link, n * sizeof *x->link);
    if (x->alive)
        munmap(x->alive, n);
    if (x->free_extent)
        munmap(x->free_extent, n * sizeof *x->free_extent);
    if (x->used)
        munmap(x->used, n * sizeof *x->used);
    if (x->map)
        munmap(x->map, x->bytes);
    if (x->fd >= 0)
        close(x->fd);
    free(x);
}

int ds_index_fd(const ds_index *x)
{
    return x->fd;
}

uint64_t ds_index_blocks(const ds_index *x)
{
    return x->blocks;
}

uint32_t ds_index_max_blocks(const ds_index *x)
{
    return x->ix.max_blocks;
}

uint32_t ds_index_end(const ds_index *x)
{
    return x->fresh_record;
}

/* ---- looking up ---- */

static uint32_t extent_of(const ds_index *x, uint32_t r)
{
    const uint64_t *p = x->ix.record + (size_t)r * DS_IX_RECORD_WORDS;

    return (uint32_t)load(p + 5 + (load(p + 4) >> 33 & 1));
}

static void hit_of(ds_index_hit *hit, const ds_ix_found *f)
{
    *hit = (ds_index_hit){ .place = { .segment = f->segment,
                                      .offset = f->offset & ~(uint64_t)OF_BITS,
                                      .at = f->what & DS_INDEX_AT,
                                      .of = (uint32_t)(f->offset & OF_BITS),
                                      .crc = f->crc },
                           .record = f->record,
                           .what = f->what };
}

bool ds_index_find(const ds_index *x, const ds_key *key, ds_index_hit *hit)
{
    ds_ix_found f;
    uint64_t w[4];

    words_of(w, key);
    if (!ds_ix_find(&x->ix, w, &f, load))
        return false;
    if (hit)
        hit_of(hit, &f);
    return true;
}

uint32_t ds_index_find_many(const ds_index *x, const ds_key *keys, uint32_t n, ds_index_hit *hits)
{
    const ds_ix *ix = &x->ix;
    uint32_t found = 0;

    for (uint32_t from = 0; from < n; from += BATCH) {
        uint32_t m = n - from < BATCH ? n - from : BATCH;
        uint64_t w[BATCH][4];
        for (uint32_t i = 0; i < m; i++) {
            words_of(w[i], &keys[from + i]);
            __builtin_prefetch(ix->bucket + (size_t)ds_ix_home(ix, w[i]) * DS_IX_BUCKET_WORDS);
        }
        uint32_t guess[BATCH];
        for (uint32_t i = 0; i < m; i++) { /* a guess at the record, only to have it near */
            const uint64_t *b = ix->bucket + (size_t)ds_ix_home(ix, w[i]) * DS_IX_BUCKET_WORDS;
            uint32_t tag = ds_ix_tag(w[i]);
            guess[i] = DS_NONE;
            for (int j = 0; j < DS_IX_ENTRIES; j++) {
                uint64_t e = load(b + j);
                if ((uint32_t)(e >> 32) == tag && (uint32_t)e != 0) {
                    guess[i] = (uint32_t)e - 1;
                    __builtin_prefetch(ix->record + (size_t)guess[i] * DS_IX_RECORD_WORDS);
                    break;
                }
            }
        }
        for (uint32_t i = 0; i < m; i++) /* and at its extent */
            if (guess[i] < ix->max_blocks)
                __builtin_prefetch(ix->extent + (size_t)extent_of(x, guess[i]) * DS_IX_EXTENT_WORDS);
        for (uint32_t i = 0; i < m; i++) {
            ds_ix_found f;
            if (ds_ix_find(ix, w[i], &f, load)) {
                hit_of(&hits[from + i], &f);
                found++;
            } else {
                hits[from + i].record = DS_NONE;
            }
        }
    }
    return found;
}

uint32_t ds_index_match(const ds_index *x, const ds_key *keys, uint32_t n, bool exact)
{
    uint32_t there = 0, out = n; /* keys[0 .. there) are there; keys[out ..) aren't */

    while (there < out) {
        uint32_t mid = there + (out - there) / 2;
        ds_index_hit hit;
        if (ds_index_find(x, &keys[mid], &hit) && !(exact && (hit.what & DS_INDEX_APPROX)))
            there = mid + 1;
        else
            out = mid;
    }
    return there;
}

/* ---- the owner ---- */

static void unlink_record(ds_index *x, uint32_t r)
{
    links *l = &x->link[r];

    if (l->prev != DS_NONE)
        x->link[l->prev].next = l->next;
    else if (l->parent != DS_NONE)
        x->link[l->parent].child = l->next;
    if (l->next != DS_NONE)
        x->link[l->next].prev = l->prev;
    l->parent = l->next = l->prev = DS_NONE;
}

static void link_record(ds_index *x, uint32_t r, uint32_t parent)
{
    links *l = &x->link[r], *p = &x->link[parent];

    l->parent = parent;
    l->next = p->child;
    if (p->child != DS_NONE)
        x->link[p->child].prev = r;
    p->child = r;
}

/* Depths go up by one along a chain, so links never make a circle, whatever a footer says. */
bool ds_index_link(ds_index *x, uint32_t r, uint32_t parent)
{
    if (x->link[r].parent != DS_NONE || x->link[r].depth != x->link[parent].depth + 1)
        return false;
    link_record(x, r, parent);
    return true;
}

static uint32_t new_extent(ds_index *x, uint64_t segment, uint64_t offset, uint32_t of)
{
    uint32_t e = x->n_free_extent ? x->free_extent[--x->n_free_extent] : x->fresh_extent++;

    assert(e < x->ix.max_blocks && offset % 4096 == 0 && of <= DS_SEG_EXTENT_BLOCKS);
    x->alive[e] = 0;
    ds_ix_place(&x->ix, e, segment, offset | of, store);
    return e;
}

static void leave_extent(ds_index *x, uint32_t e)
{
    assert(x->alive[e] > 0);
    if (--x->alive[e] == 0)
        x->free_extent[x->n_free_extent++] = e;
}

static void populate(void *at, uint64_t bytes)
{
    uintptr_t from = (uintptr_t)at / 4096 * 4096;

    madvise((void *)from, (uintptr_t)at + bytes - from, MADV_POPULATE_WRITE); /* a hint: an older kernel has none */
}

/* Memory of records from r on, many at a time: that is cheaper than one page after the other. */
static void take_slice(ds_index *x, uint32_t r)
{
    uint64_t n = x->ix.max_blocks - r < SLICE ? x->ix.max_blocks - r : SLICE;

    populate(x->ix.record + (size_t)r * DS_IX_RECORD_WORDS, n * DS_IX_RECORD_WORDS * 8);
    populate(x->link + r, n * sizeof *x->link);
    populate((uint8_t *)x->used + r * sizeof *x->used, n * sizeof *x->used);
}

static uint32_t new_record(ds_index *x)
{
    uint32_t r = x->free_record;

    if (r == DS_NONE) {
        if (x->fresh_record % SLICE == 0)
            take_slice(x, x->fresh_record);
        return x->fresh_record++;
    }
    x->free_record = x->link[r].next;
    return r;
}

/* Blocks that are there already need none. */
static bool has_room(const ds_index *x, const ds_index_extent *e)
{
    uint32_t free_extents = x->n_free_extent + (x->ix.max_blocks - x->fresh_extent), fresh = e->n;

    if (x->blocks + (uint64_t)fresh > x->ix.max_blocks)
        for (uint32_t i = 0; i < e->n; i++)
            fresh -= ds_index_find(x, &e->keys[i], NULL);
    return x->blocks + (uint64_t)fresh <= x->ix.max_blocks && free_extents > 0;
}

ds_rc ds_index_insert(ds_index *x, const ds_index_extent *e, uint32_t *last, ds_err *err)
{
    uint32_t extent, parent = e->parent;

    assert(x->owner && e->n >= 1 && e->at + e->n <= e->of);
    if (!has_room(x, e))
        return ds_fail(err, DS_E_AGAIN, "the index's %u blocks are all in use", x->ix.max_blocks);
    for (uint32_t i = 0; i < e->n; i++) { /* all their misses at once */
        uint64_t w[4];
        words_of(w, &e->keys[i]);
        __builtin_prefetch(x->ix.bucket + (size_t)ds_ix_home(&x->ix, w) * DS_IX_BUCKET_WORDS, 1);
    }
    extent = new_extent(x, e->segment, e->offset, e->of);
    x->alive[extent] = 1; /* ours while it fills */
    for (uint32_t i = 0; i < e->n; i++) {
        bool approx = e->approx >> i & 1;
        uint32_t what =
            (e->at + i) | (approx ? DS_INDEX_APPROX : 0) | e->layout << DS_INDEX_LAYOUT_SHIFT | e->klass << DS_INDEX_KLASS_SHIFT;
        uint64_t w[4];
        ds_ix_found f;
        uint32_t r;

        words_of(w, &e->keys[i]);
        if (ds_ix_find(&x->ix, w, &f, load)) {
            r = f.record;
            if (!approx || (f.what & DS_INDEX_APPROX)) {
                ds_ix_move(&x->ix, r, what, e->crc[i], extent, load, store);
                leave_extent(x, f.extent);
                x->alive[extent]++;
            }
            x->link[r].tenant = e->tenant;
            ds_index_touch(x, r, e->used);
        } else {
            r = new_record(x);
            x->link[r] = (links){ DS_NONE, DS_NONE, DS_NONE, DS_NONE, e->depth + i, e->tenant, (uint32_t)(e->used / 1000000) };
            if (parent != DS_NONE)
                x->link[r].depth = x->link[parent].depth + 1;
            atomic_store_explicit(&x->used[r], e->used, memory_order_relaxed);
            if (parent != DS_NONE)
                link_record(x, r, parent);
            bool ok = ds_ix_publish(&x->ix, r, w, what, e->crc[i], extent, load, store);
            assert(ok); /* there are more entries than blocks */
            (void)ok;
            x->alive[extent]++;
            x->blocks++;
        }
        parent = r;
    }
    leave_extent(x, extent);
    if (last)
        *last = parent;
    return DS_OK;
}

uint32_t ds_index_remove(ds_index *x, uint32_t root, void (*gone)(void *ctx, uint32_t record), void *ctx)
{
    uint32_t r = root, n = 0;

    for (;;) {
        uint32_t up = x->link[r].parent;
        if (x->link[r].child != DS_NONE) {
            r = x->link[r].child;
            continue;
        }
        if (gone)
            gone(ctx, r);
        uint32_t extent = extent_of(x, r);
        ds_ix_hide(&x->ix, r, load, store);
        leave_extent(x, extent);
        unlink_record(x, r);
        x->link[r].next = x->free_record;
        x->free_record = r;
        x->blocks--;
        n++;
        if (r == root)
            return n;
        r = up;
    }
}

bool ds_index_at(const ds_index *x, uint32_t r, ds_index_info *out)
{
    const uint64_t *p = x->ix.record + (size_t)r * DS_IX_RECORD_WORDS;
    const links *l = &x->link[r];
    ds_ix_found f;
    uint64_t w[4];

    if (r >= x->ix.max_blocks || load(p + 4) >> 32 == 0)
        return false;
    for (int i = 0; i < 4; i++)
        w[i] = load(p + i);
    if (ds_ix_read(&x->ix, r, w, &f, load) <= 0)
        return false;
    memcpy(out->key.b, w, sizeof out->key.b);
    hit_of(&out->hit, &f);
    out->parent = l->parent;
    out->depth = l->depth;
    out->tenant = l->tenant;
    out->entered = l->entered;
    out->leaf = l->child == DS_NONE;
    out->used = atomic_load_explicit(&x->used[r], memory_order_relaxed);
    return true;
}

uint64_t ds_index_touch(ds_index *x, uint32_t r, uint64_t now)
{
    uint64_t was = atomic_load_explicit(&x->used[r], memory_order_relaxed);

    while (was < now && !atomic_compare_exchange_weak_explicit(&x->used[r], &was, now, memory_order_relaxed, memory_order_relaxed))
        ;
    return was;
}

void ds_index_touch_chain(ds_index *x, uint32_t r, uint64_t now)
{
    for (; r != DS_NONE && atomic_load_explicit(&x->used[r], memory_order_relaxed) < now; r = x->link[r].parent)
        ds_index_touch(x, r, now);
}

/* ---- for a checkpoint ---- */

uint32_t ds_index_extents_end(const ds_index *x)
{
    return x->fresh_extent;
}

ds_index_place ds_index_place_at(const ds_index *x, uint32_t e)
{
    const uint64_t *p = x->ix.extent + (size_t)e * DS_IX_EXTENT_WORDS;

    if (x->alive[e] == 0)
        return (ds_index_place){ 0 };
    return (ds_index_place){ p[0], p[1] & ~(uint64_t)OF_BITS, (uint32_t)(p[1] & OF_BITS) };
}

bool ds_index_row_at(const ds_index *x, uint32_t r, ds_index_row *out)
{
    ds_index_info b;

    if (!ds_index_at(x, r, &b))
        return false;
    *out = (ds_index_row){ .key = b.key,
                           .used = b.used,
                           .crc = b.hit.place.crc,
                           .extent = extent_of(x, r),
                           .parent = b.parent,
                           .what = b.hit.what,
                           .depth = b.depth,
                           .tenant = b.tenant };
    return true;
}

void ds_index_take_memory(ds_index *x, uint32_t extents, uint32_t records, const atomic_bool *stop)
{
    uint64_t buckets = ((uint64_t)x->ix.mask + 1) * DS_IX_BUCKET_WORDS * 8, step = 4 << 20;

    populate(x->ix.extent, (uint64_t)extents * DS_IX_EXTENT_WORDS * 8);
    for (uint64_t at = 0; at < buckets && !atomic_load_explicit(stop, memory_order_relaxed); at += step)
        populate((uint8_t *)x->ix.bucket + at, buckets - at < step ? buckets - at : step);
    for (uint32_t r = 0; r < records && !atomic_load_explicit(stop, memory_order_relaxed); r += SLICE)
        take_slice(x, r);
}

bool ds_index_load_place(ds_index *x, const ds_index_place *at)
{
    uint32_t e = x->fresh_extent;

    if (e == x->ix.max_blocks || at->offset & OF_BITS || at->of > DS_SEG_EXTENT_BLOCKS)
        return false;
    ds_ix_place(&x->ix, e, at->segment, at->offset | at->of, store);
    x->fresh_extent++;
    return true;
}

static bool can_be(const ds_index *x, const ds_index_row *row)
{
    const uint32_t bits = DS_INDEX_AT | DS_INDEX_APPROX | 255u << DS_INDEX_LAYOUT_SHIFT | 7u << DS_INDEX_KLASS_SHIFT;
    uint64_t of;

    if (row->extent >= x->fresh_extent || row->what & ~bits || (row->depth == 0) != (row->parent == DS_NONE))
        return false;
    of = x->ix.extent[(size_t)row->extent * DS_IX_EXTENT_WORDS + 1] & OF_BITS;
    return (row->what & DS_INDEX_AT) < of && x->alive[row->extent] < of;
}

bool ds_index_load_rows(ds_index *x, const ds_index_row *rows, uint32_t n)
{
    uint64_t w[4];

    if (n > x->ix.max_blocks - x->fresh_record)
        return false;
    for (uint32_t i = 0; i < n; i++) { /* all their misses at once */
        words_of(w, &rows[i].key);
        __builtin_prefetch(x->ix.bucket + (size_t)ds_ix_home(&x->ix, w) * DS_IX_BUCKET_WORDS, 1);
    }
    for (uint32_t i = 0; i < n; i++) {
        const ds_index_row *row = &rows[i];
        uint32_t r = x->fresh_record++;
        if (row->extent == DS_NONE) {
            x->link[r].next = x->free_record;
            x->free_record = r;
            continue;
        }
        words_of(w, &row->key);
        if (!can_be(x, row) || !ds_ix_publish(&x->ix, r, w, row->what, row->crc, row->extent, load, store))
            return false;
        x->alive[row->extent]++;
        x->link[r] = (links){ row->parent, DS_NONE, DS_NONE, DS_NONE, row->depth, row->tenant, 0 };
        atomic_store_explicit(&x->used[r], row->used, memory_order_relaxed);
        x->blocks++;
    }
    return true;
}

static bool is_free(const ds_index *x, uint32_t r)
{
    return x->ix.record[(size_t)r * DS_IX_RECORD_WORDS + 4] == 0; /* loaded ones have been written once, or never */
}

bool ds_index_load_end(ds_index *x)
{
    for (uint32_t r = 0; r < x->fresh_record; r++) {
        uint32_t parent = x->link[r].parent;
        if (is_free(x, r) || parent == DS_NONE)
            continue;
        x->link[r].parent = DS_NONE;
        if (parent >= x->fresh_record || is_free(x, parent) || !ds_index_link(x, r, parent))
            return false;
    }
    for (uint32_t e = 0; e < x->fresh_extent; e++)
        if (x->alive[e] == 0)
            x->free_extent[x->n_free_extent++] = e;
    return true;
}
