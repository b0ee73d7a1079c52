/* A header, then a body in chunks of 1 MiB, then the chunks' checksums. */
#include "kvstore/checkpoint.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/none.h"

enum { PAGE = 4096, CHUNK = 1 << 20, VERSION = 1, LAYOUT = 40, SEGMENT = 16, EXTENT = 16, ROW = 64, RING = 8, BATCH = 64 };
#define MAX_SEGMENTS ((uint64_t)1 << 32)
#define MAX_ROWS ((uint64_t)1 << 30)

static const char magic[8] = "DSKVCKP1", name[] = "index.ckpt", half[] = "index.ckpt.new";

/* Where everything is: it follows from the counts. */
typedef struct {
    uint64_t n_layouts, n_segments, n_extents, n_rows;
    uint64_t segments_at, extents_at, rows_at, table_at, n_chunks, bytes;
} shape;

/* The next chunks, read and checked by one thread while another enters what is in them. */
typedef struct {
    const ds_checkpoint *c;
    ds_index *ix;
    uint8_t *chunk[RING];
    pthread_t reader, taker;
    bool has_reader, has_taker;
    atomic_bool stop; /* a word to hurry: nothing is published by it */
    pthread_mutex_t mu;
    pthread_cond_t change;
    /* [mu] */
    uint64_t read, needed; /* chunks before `read` are there; those before `needed` may be overwritten */
    bool wrong;            /* the one at `read` can't be had */
} ahead;

struct ds_checkpoint {
    ahead *ahead; /* NULL: nobody reads ahead */
    int fd;
    shape s;
    ds_checkpoint_of what;
    ds_checkpoint_layout *layouts;
    ds_checkpoint_segment *segments;
    uint8_t *table; /* [n_chunks] of 4 bytes */
    uint8_t *chunk;
    uint64_t have; /* which is in chunk; UINT64_MAX: none */
};

static uint64_t aligned(uint64_t n)
{
    return (n + PAGE - 1) / PAGE * PAGE;
}

static shape shape_of(uint64_t n_layouts, uint64_t n_segments, uint64_t n_extents, uint64_t n_rows)
{
    shape s = { .n_layouts = n_layouts, .n_segments = n_segments, .n_extents = n_extents, .n_rows = n_rows };

    s.segments_at = PAGE + aligned(n_layouts * LAYOUT);
    s.extents_at = s.segments_at + aligned(n_segments * SEGMENT);
    s.rows_at = s.extents_at + aligned(n_extents * EXTENT);
    s.table_at = s.rows_at + aligned(n_rows * ROW);
    s.n_chunks = (s.table_at - PAGE + CHUNK - 1) / CHUNK;
    s.bytes = s.table_at + aligned(4 * s.n_chunks);
    return s;
}

static shape shape_for(const ds_checkpoint_of *w, const ds_index *ix)
{
    return shape_of(w->n_layouts, w->n_segments, ds_index_extents_end(ix), ds_index_end(ix));
}

uint64_t ds_checkpoint_bytes(const ds_checkpoint_of *w, const ds_index *ix)
{
    return shape_for(w, ix).bytes;
}

static void put32(uint8_t *at, uint32_t v)
{
    v = htole32(v);
    memcpy(at, &v, 4);
}

static void put64(uint8_t *at, uint64_t v)
{
    v = htole64(v);
    memcpy(at, &v, 8);
}

static uint32_t get32(const uint8_t *at)
{
    uint32_t v;

    memcpy(&v, at, 4);
    return le32toh(v);
}

static uint64_t get64(const uint8_t *at)
{
    uint64_t v;

    memcpy(&v, at, 8);
    return le64toh(v);
}

static uint32_t header_crc(const uint8_t page[PAGE])
{
    uint8_t copy[PAGE];

    memcpy(copy, page, PAGE);
    memset(copy + 8, 0, 4);
    return ds_crc32c(copy, PAGE);
}

/* ---- writing ---- */

typedef struct {
    int fd;
    uint64_t at; /* in the file, of chunk's first byte */
    uint8_t *chunk, *table;
    uint64_t used, n_chunks;
    const char *path;
    ds_rc rc;
    ds_err *err;
} writer;

static void flush(writer *w)
{
    if (w->used == 0 || w->rc != DS_OK)
        return;
    put32(w->table + 4 * w->n_chunks++, ds_crc32c(w->chunk, w->used));
    w->rc = ds_file_write(w->fd, (const char *)w->chunk, w->used, w->path, w->err);
    w->at += w->used;
    w->used = 0;
}

/* Room for the next n bytes, zeros: n divides a chunk, or all of its kind fit into the first. */
static uint8_t *next(writer *w, size_t n)
{
    uint8_t *p;

    if (w->used + n > CHUNK)
        flush(w);
    p = w->chunk + w->used;
    memset(p, 0, n);
    w->used += n;
    return p;
}

static void up_to(writer *w, uint64_t at)
{
    while (w->at + w->used < at) {
        uint64_t n = at - w->at - w->used;
        next(w, n < PAGE ? n : PAGE);
        if (w->used == CHUNK)
            flush(w);
    }
}

static void write_body(writer *w, const shape *s, const ds_checkpoint_of *what, const ds_index *ix)
{
    for (uint32_t i = 0; i < what->n_layouts; i++) {
        uint8_t *p = next(w, LAYOUT);
        memcpy(p, what->layouts[i].id, 32);
        put32(p + 32, what->layouts[i].block_bytes);
    }
    up_to(w, s->segments_at);
    for (uint64_t i = 0; i < s->n_segments; i++) {
        uint8_t *p = next(w, SEGMENT);
        put64(p, what->segments[i].segment);
        put64(p + 8, what->segments[i].generation);
    }
    up_to(w, s->extents_at);
    for (uint64_t i = 0; i < s->n_extents; i++) {
        uint8_t *p = next(w, EXTENT);
        ds_index_place at = ds_index_place_at(ix, (uint32_t)i);
        put64(p, at.segment);
        put64(p + 8, at.offset | at.of);
    }
    up_to(w, s->rows_at);
    for (uint64_t i = 0; i < s->n_rows && w->rc == DS_OK; i++) {
        uint8_t *p = next(w, ROW);
        ds_index_row r;
        if (!ds_index_row_at(ix, (uint32_t)i, &r))
            continue; /* zeros: nothing stands there */
        memcpy(p, r.key.b, 32);
        put64(p + 32, r.used);
        put32(p + 40, r.crc);
        put32(p + 44, r.extent + 1);
        put32(p + 48, r.parent + 1); /* 0: none */
        put32(p + 52, r.what);
        put32(p + 56, r.depth);
        put32(p + 60, r.tenant);
    }
    up_to(w, s->table_at);
    flush(w);
}

static ds_rc write_file(int fd, const char *path, const ds_checkpoint_of *what, const ds_index *ix, ds_err *err)
{
    shape s = shape_for(what, ix);
    uint64_t table_bytes = aligned(4 * s.n_chunks);
    uint8_t head[PAGE] = { 0 };
    writer w = { .fd = fd, .at = PAGE, .path = path, .err = err, .rc = DS_OK };

    w.chunk = malloc(CHUNK);
    w.table = calloc(1, table_bytes);
    if (!w.chunk || !w.table)
        w.rc = ds_fail(err, DS_E_NOMEM, "out of memory for a checkpoint");
    if (w.rc == DS_OK) /* its place; what it says is written when the rest is there */
        w.rc = ds_file_write(fd, (const char *)head, PAGE, path, err);
    if (w.rc == DS_OK) {
        write_body(&w, &s, what, ix);
        assert(w.rc != DS_OK || (w.at == s.table_at && w.n_chunks == s.n_chunks));
    }
    if (w.rc == DS_OK)
        w.rc = ds_file_write(fd, (const char *)w.table, table_bytes, path, err);
    if (w.rc == DS_OK) {
        memcpy(head, magic, sizeof magic);
        put32(head + 12, VERSION);
        memcpy(head + 16, what->store, 16);
        put64(head + 32, s.n_layouts);
        put64(head + 40, s.n_segments);
        put64(head + 48, s.n_extents);
        put64(head + 56, s.n_rows);
        put64(head + 64, s.bytes);
        put32(head + 72, ds_crc32c(w.table, table_bytes));
        put32(head + 8, header_crc(head));
        if (pwrite(fd, head, PAGE, 0) != PAGE || fsync(fd) != 0)
            w.rc = ds_fail(err, DS_E_IO, "%s: %s", path, strerror(errno));
    }
    free(w.chunk);
    free(w.table);
    return w.rc;
}

ds_rc ds_checkpoint_write(const char *dir, const ds_checkpoint_of *w, const ds_index *ix, ds_err *err)
{
    char label[120];
    int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd = -1;
    ds_rc rc;

    if (at >= 0)
        fd = openat(at, half, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        rc = ds_fail(err, DS_E_IO, "%s: no checkpoint: %s", ds_file_label(label, sizeof label, dir), strerror(errno));
    } else {
        rc = write_file(fd, half, w, ix, err);
        close(fd);
        if (rc == DS_OK && (renameat(at, half, at, name) != 0 || fsync(at) != 0))
            rc = ds_fail(err, DS_E_IO, "%s: no checkpoint: %s", ds_file_label(label, sizeof label, dir), strerror(errno));
        if (rc != DS_OK)
            unlinkat(at, half, 0);
    }
    if (at >= 0)
        close(at);
    return rc;
}

bool ds_checkpoint_remove(const char *dir)
{
    int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = true;

    if (at < 0)
        return true; /* what can't be opened can't be read either */
    unlinkat(at, half, 0);
    if (unlinkat(at, name, 0) == 0)
        ok = fsync(at) == 0; /* or it would be there again after a power failure */
    else
        ok = errno == ENOENT;
    close(at);
    return ok;
}

/* ---- reading ---- */

static ds_rc wrong(ds_err *err, const char *what)
{
    return ds_fail(err, DS_E_FORMAT, "checkpoint: %s", what);
}

static bool read_at(int fd, uint8_t *dst, size_t n, uint64_t at)
{
    while (n) {
        ssize_t r = pread(fd, dst, n, (off_t)at);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return false;
        dst += r;
        at += (uint64_t)r;
        n -= (size_t)r;
    }
    return true;
}

static uint64_t chunk_bytes(const ds_checkpoint *c, uint64_t which)
{
    uint64_t from = PAGE + which * CHUNK;

    return c->s.table_at - from < CHUNK ? c->s.table_at - from : CHUNK;
}

static bool read_chunk(const ds_checkpoint *c, uint64_t which, uint8_t *dst)
{
    uint64_t n = chunk_bytes(c, which);

    return read_at(c->fd, dst, n, PAGE + which * CHUNK) && ds_crc32c(dst, n) == get32(c->table + 4 * which);
}

/* ---- reading ahead ---- */

static void *read_on(void *arg)
{
    ahead *a = arg;
    bool more = true;

    while (more) {
        uint64_t which;
        bool right;
        pthread_mutex_lock(&a->mu);
        while (a->read >= a->needed + RING && !atomic_load_explicit(&a->stop, memory_order_relaxed))
            pthread_cond_wait(&a->change, &a->mu);
        which = a->read;
        pthread_mutex_unlock(&a->mu);
        if (which >= a->c->s.n_chunks || atomic_load_explicit(&a->stop, memory_order_relaxed))
            break;
        right = read_chunk(a->c, which, a->chunk[which % RING]);
        pthread_mutex_lock(&a->mu);
        a->read += right;
        more = right;
        a->wrong = !right;
        pthread_cond_broadcast(&a->change);
        pthread_mutex_unlock(&a->mu);
    }
    return NULL;
}

static void *take_memory(void *arg)
{
    ahead *a = arg;

    ds_index_take_memory(a->ix, (uint32_t)a->c->s.n_extents, (uint32_t)a->c->s.n_rows, &a->stop);
    return NULL;
}

static const uint8_t *chunk_ahead(ahead *a, uint64_t which)
{
    const uint8_t *p;

    pthread_mutex_lock(&a->mu);
    a->needed = which;
    pthread_cond_broadcast(&a->change);
    while (a->read <= which && !a->wrong)
        pthread_cond_wait(&a->change, &a->mu);
    p = a->read > which ? a->chunk[which % RING] : NULL;
    pthread_mutex_unlock(&a->mu);
    return p;
}

static void end_ahead(ds_checkpoint *c)
{
    ahead *a = c->ahead;

    if (!a)
        return;
    pthread_mutex_lock(&a->mu);
    atomic_store_explicit(&a->stop, true, memory_order_relaxed);
    pthread_cond_broadcast(&a->change);
    pthread_mutex_unlock(&a->mu);
    if (a->has_reader)
        pthread_join(a->reader, NULL);
    if (a->has_taker)
        pthread_join(a->taker, NULL);
    pthread_cond_destroy(&a->change);
    pthread_mutex_destroy(&a->mu);
    for (int i = 0; i < RING; i++)
        free(a->chunk[i]);
    free(a);
    c->ahead = NULL;
}

/* For a small file it isn't worth it. */
static ds_rc begin_ahead(ds_checkpoint *c, ds_index *ix, ds_err *err)
{
    ahead *a;
    bool memory = true;

    if (c->s.n_chunks <= RING)
        return DS_OK;
    a = calloc(1, sizeof *a);
    if (!a)
        return ds_fail(err, DS_E_NOMEM, "out of memory for a checkpoint");
    a->c = c;
    a->ix = ix;
    a->read = a->needed = (c->s.extents_at - PAGE) / CHUNK;
    pthread_mutex_init(&a->mu, NULL);
    pthread_cond_init(&a->change, NULL);
    c->ahead = a;
    for (int i = 0; i < RING; i++)
        memory = (a->chunk[i] = malloc(CHUNK)) != NULL && memory;
    if (memory)
        a->has_reader = pthread_create(&a->reader, NULL, read_on, a) == 0;
    if (!a->has_reader) {
        end_ahead(c);
        return memory ? DS_OK : ds_fail(err, DS_E_NOMEM, "out of memory for a checkpoint");
    }
    a->has_taker = pthread_create(&a->taker, NULL, take_memory, a) == 0; /* without it the memory comes as it is touched */
    return DS_OK;
}

/* The bytes from `at` on, as many as lie in one chunk, but at most *n. NULL: they can't be read or aren't right. */
static const uint8_t *piece(ds_checkpoint *c, uint64_t at, uint64_t *n)
{
    uint64_t which = (at - PAGE) / CHUNK, from = PAGE + which * CHUNK, left = from + chunk_bytes(c, which) - at;
    const uint8_t *chunk = c->chunk;

    if (c->ahead) {
        chunk = chunk_ahead(c->ahead, which);
        if (!chunk)
            return NULL;
    } else if (c->have != which) {
        c->have = UINT64_MAX;
        if (!read_chunk(c, which, c->chunk))
            return NULL;
        c->have = which;
    }
    *n = left < *n ? left : *n;
    return chunk + (at - from);
}

static ds_rc read_header(ds_checkpoint *c, ds_err *err)
{
    uint8_t page[PAGE];
    struct stat st;
    uint64_t n[4], table_bytes;

    if (fstat(c->fd, &st) != 0 || !S_ISREG(st.st_mode) || !read_at(c->fd, page, PAGE, 0))
        return wrong(err, "it has no header");
    if (memcmp(page, magic, sizeof magic) != 0 || get32(page + 12) != VERSION || get32(page + 8) != header_crc(page))
        return wrong(err, "its header isn't right");
    for (int i = 0; i < 4; i++)
        n[i] = get64(page + 32 + 8 * i);
    if (n[0] > DS_CHECKPOINT_LAYOUTS || n[1] > MAX_SEGMENTS || n[2] > MAX_ROWS || n[3] > MAX_ROWS)
        return wrong(err, "more than a store has");
    c->s = shape_of(n[0], n[1], n[2], n[3]);
    if (c->s.bytes != get64(page + 64) || (uint64_t)st.st_size != c->s.bytes)
        return wrong(err, "it is cut off");
    memcpy(c->what.store, page + 16, 16);
    table_bytes = aligned(4 * c->s.n_chunks);
    c->table = malloc(table_bytes + 1);
    c->chunk = malloc(CHUNK);
    c->layouts = calloc(c->s.n_layouts + 1, sizeof *c->layouts);
    c->segments = malloc((c->s.n_segments + 1) * sizeof *c->segments);
    if (!c->table || !c->chunk || !c->layouts || !c->segments)
        return ds_fail(err, DS_E_NOMEM, "out of memory for a checkpoint");
    if (!read_at(c->fd, c->table, table_bytes, c->s.table_at) || ds_crc32c(c->table, table_bytes) != get32(page + 72))
        return wrong(err, "its checksums aren't right");
    return DS_OK;
}

static ds_rc read_lists(ds_checkpoint *c, ds_err *err)
{
    for (uint64_t i = 0; i < c->s.n_layouts; i++) {
        uint64_t n = LAYOUT;
        const uint8_t *p = piece(c, PAGE + i * LAYOUT, &n);
        if (!p)
            return wrong(err, "its layouts aren't right");
        memcpy(c->layouts[i].id, p, 32);
        c->layouts[i].block_bytes = get32(p + 32);
    }
    for (uint64_t i = 0; i < c->s.n_segments; i++) {
        uint64_t n = SEGMENT;
        const uint8_t *p = piece(c, c->s.segments_at + i * SEGMENT, &n);
        if (!p)
            return wrong(err, "its segments aren't right");
        c->segments[i] = (ds_checkpoint_segment){ get64(p), get64(p + 8) };
        if (i && c->segments[i].segment <= c->segments[i - 1].segment)
            return wrong(err, "its segments aren't in order");
    }
    c->what.layouts = c->layouts;
    c->what.segments = c->segments;
    c->what.n_layouts = (uint32_t)c->s.n_layouts;
    c->what.n_segments = c->s.n_segments;
    return DS_OK;
}

ds_rc ds_checkpoint_read(ds_checkpoint **out, int fd, ds_err *err)
{
    ds_checkpoint *c = calloc(1, sizeof *c);
    ds_rc rc;

    *out = NULL;
    if (!c) {
        close(fd);
        return ds_fail(err, DS_E_NOMEM, "out of memory for a checkpoint");
    }
    c->fd = fd;
    c->have = UINT64_MAX;
    rc = read_header(c, err);
    if (rc == DS_OK)
        rc = read_lists(c, err);
    if (rc != DS_OK) {
        ds_checkpoint_close(c);
        return rc;
    }
    *out = c;
    return DS_OK;
}

ds_rc ds_checkpoint_open(ds_checkpoint **out, const char *dir, ds_err *err)
{
    int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd = at < 0 ? -1 : openat(at, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

    *out = NULL;
    if (at >= 0)
        close(at);
    if (fd < 0)
        return ds_fail(err, DS_E_IO, "no checkpoint");
    return ds_checkpoint_read(out, fd, err);
}

const ds_checkpoint_of *ds_checkpoint_what(const ds_checkpoint *c)
{
    return &c->what;
}

static bool known_segment(const ds_checkpoint *c, uint64_t segment)
{
    uint64_t low = 0, high = c->s.n_segments;

    while (low < high) {
        uint64_t mid = low + (high - low) / 2;
        if (c->segments[mid].segment < segment)
            low = mid + 1;
        else
            high = mid;
    }
    return low < c->s.n_segments && c->segments[low].segment == segment;
}

static ds_rc load_extents(ds_checkpoint *c, ds_index *ix, ds_err *err)
{
    uint64_t last = 0;
    bool any = false;

    for (uint64_t i = 0, n; i < c->s.n_extents; i += n / EXTENT) {
        const uint8_t *p;
        n = (c->s.n_extents - i) * EXTENT;
        p = piece(c, c->s.extents_at + i * EXTENT, &n);
        if (!p)
            return wrong(err, "its extents aren't right");
        for (uint64_t k = 0; k < n; k += EXTENT) {
            uint64_t segment = get64(p + k), offset = get64(p + k + 8);
            ds_index_place at = { .segment = segment, .offset = offset / PAGE * PAGE, .of = (uint32_t)(offset % PAGE) };
            if (at.of && !(any && segment == last) && !known_segment(c, segment))
                return wrong(err, "an extent of a segment that it doesn't name");
            any = any || at.of;
            last = at.of ? segment : last;
            if (!ds_index_load_place(ix, &at))
                return wrong(err, "an extent that can't be");
        }
    }
    return DS_OK;
}

/* False: its layout or class is none. */
static bool row_in(ds_index_row *r, const uint8_t *p, const uint32_t *layout, uint64_t n_layouts)
{
    uint32_t number;

    memcpy(r->key.b, p, 32);
    r->used = get64(p + 32);
    r->crc = get32(p + 40);
    r->extent = get32(p + 44) - 1;
    r->parent = get32(p + 48) - 1;
    r->what = get32(p + 52);
    r->depth = get32(p + 56);
    r->tenant = get32(p + 60);
    if (r->extent == DS_NONE)
        return true;
    number = r->what >> DS_INDEX_LAYOUT_SHIFT & 255;
    if (number >= n_layouts)
        return false;
    r->what = (r->what & ~(255u << DS_INDEX_LAYOUT_SHIFT)) | layout[number] << DS_INDEX_LAYOUT_SHIFT;
    return true;
}

static ds_rc load_rows(ds_checkpoint *c, ds_index *ix, const uint32_t *layout, ds_err *err)
{
    ds_index_row row[BATCH];

    for (uint64_t i = 0, n; i < c->s.n_rows; i += n / ROW) {
        const uint8_t *p;
        n = (c->s.n_rows - i) * ROW;
        p = piece(c, c->s.rows_at + i * ROW, &n);
        if (!p)
            return wrong(err, "its blocks aren't right");
        for (uint64_t k = 0; k < n / ROW; k += BATCH) {
            uint32_t m = n / ROW - k < BATCH ? (uint32_t)(n / ROW - k) : BATCH;
            for (uint32_t j = 0; j < m; j++)
                if (!row_in(&row[j], p + (k + j) * ROW, layout, c->s.n_layouts))
                    return wrong(err, "a block of a layout that it doesn't name");
            if (!ds_index_load_rows(ix, row, m))
                return wrong(err, "a block that can't be");
        }
    }
    return DS_OK;
}

ds_rc ds_checkpoint_load(ds_checkpoint *c, ds_index *ix, const uint32_t layout[DS_CHECKPOINT_LAYOUTS], ds_err *err)
{
    ds_rc rc;

    if (c->s.n_rows > ds_index_max_blocks(ix) || c->s.n_extents > ds_index_max_blocks(ix))
        return wrong(err, "it is of a larger index");
    rc = begin_ahead(c, ix, err);
    if (rc == DS_OK)
        rc = load_extents(c, ix, err);
    if (rc == DS_OK)
        rc = load_rows(c, ix, layout, err);
    end_ahead(c);
    if (rc == DS_OK && !ds_index_load_end(ix))
        rc = wrong(err, "a chain that can't be");
    return rc;
}

void ds_checkpoint_close(ds_checkpoint *c)
{
    if (!c)
        return;
    close(c->fd);
    free(c->table);
    free(c->chunk);
    free(c->layouts);
    free(c->segments);
    free(c);
}
