/* Opening a store, appending, sealing, dropping. */
#include "kvstore/volume_internal.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <ds/kvstore.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"

enum { HOUR_S = 3600 };
/* Objects of a size that is written and read as fast as any (bench/results), so many that dropping one is little. */
enum { RADOS_SEGMENT = 32 << 20, RADOS_READERS = 16, DIRS_SEGMENT = 256 << 20, DIRS_READERS = 4 };

static uint32_t need(const ds_volume *v)
{
    return v->m ? v->k + 1 : v->k;
}

/* ---- the store's devices ---- */

void ds_volume_default_code(uint32_t n, uint32_t *k, uint32_t *m)
{
    *m = n >= 6 ? 2 : n >= 2 ? 1 : 0;
    *k = n - *m;
}

void ds_volume_suits(const char *place, uint64_t *segment_bytes, uint32_t *readers)
{
    bool rados = ds_kvstore_in_pool(place);

    *segment_bytes = rados ? RADOS_SEGMENT : DIRS_SEGMENT;
    *readers = rados ? RADOS_READERS : DIRS_READERS;
}

typedef struct {
    bool there;
    uint8_t store[16];
    uint32_t device, devices, k, m, align;
} store_file;

static bool member_u32(const ds_json *o, const char *name, uint32_t *out)
{
    int64_t v;

    if (!ds_json_i64(ds_json_get(o, name), &v) || v < 0 || v > UINT32_MAX)
        return false;
    *out = (uint32_t)v;
    return true;
}

static ds_rc read_store_file(store_file *f, const ds_volume *v, const char *place, uint32_t i, ds_err *err)
{
    char label[120], *text;
    ds_json_doc *doc;
    const ds_json *o, *id;
    uint32_t format = 0;
    bool ok;
    ds_rc rc = v->files->ops->read_store(v->files, i, &text, err);

    *f = (store_file){ .align = DS_SEG_ALIGN };
    if (rc != DS_OK || !text)
        return rc;
    rc = ds_json_parse(&doc, text, strlen(text), &(ds_json_opts){ .max_depth = 4, .refuse_duplicates = true }, err);
    free(text);
    ds_file_label(label, sizeof label, place);
    if (rc != DS_OK)
        return ds_err_prefix(err, rc, "%s/store.json: ", label);
    o = ds_json_root(doc);
    id = ds_json_get(o, "store");
    ok = member_u32(o, "format", &format) && member_u32(o, "device", &f->device) && member_u32(o, "devices", &f->devices) &&
         member_u32(o, "k", &f->k) && member_u32(o, "m", &f->m) && id && id->type == DS_JSON_STRING && id->text_len == 32 &&
         strspn(id->text, "0123456789abcdef") == 32 && (!ds_json_get(o, "align") || member_u32(o, "align", &f->align));
    for (int b = 0; ok && b < 16; b++)
        sscanf(id->text + 2 * b, "%2hhx", &f->store[b]);
    ds_json_free(doc);
    if (format > 1)
        return ds_fail(err, DS_E_FORMAT, "%s/store.json: format %u, this program knows 1", label, format);
    if (!ok || f->k == 0 || f->k > DS_SEG_MAX_DEVICES || f->m > DS_SEG_MAX_DEVICES || f->k + f->m != f->devices ||
        f->device >= f->devices || f->devices > DS_SEG_MAX_DEVICES || f->align == 0 || f->align % DS_SEG_ALIGN ||
        f->align > DS_SEG_MAX_ALIGN)
        return ds_fail(err, DS_E_FORMAT, "%s/store.json: not what a store's file holds", label);
    f->there = true;
    return DS_OK;
}

/* Which directory is which device; for a new store all of them in the order given. *empty: places, by bit, where a
 * device is gone and a new one can be made. */
static ds_rc find_devices(ds_volume *v, const ds_volume_opts *o, uint32_t device[DS_SEG_MAX_DEVICES], bool *fresh, uint32_t *empty,
                          ds_err *err)
{
    store_file f[DS_SEG_MAX_DEVICES];
    const store_file *one = NULL;
    bool taken[DS_SEG_MAX_DEVICES] = { false };
    char label[120];
    uint32_t there = 0;

    for (uint32_t i = 0; i < o->n_dirs; i++) {
        ds_rc rc = read_store_file(&f[i], v, o->dirs[i], i, err);
        if (rc != DS_OK)
            return rc;
        there += f[i].there;
        one = f[i].there ? &f[i] : one;
    }
    *fresh = !one;
    v->n = o->n_dirs;
    v->k = o->k;
    v->m = o->m;
    v->align = v->files->align;
    if (one) {
        if (o->k && (o->k != one->k || o->m != one->m))
            return ds_fail(err, DS_E_ARG, "the store has the code %u+%u, not %u+%u", one->k, one->m, o->k, o->m);
        if (o->n_dirs != one->devices)
            return ds_fail(err, DS_E_ARG, "the store has %u devices, %u directories are given", one->devices, o->n_dirs);
        v->k = one->k;
        v->m = one->m;
        v->align = one->align;
        if (v->align % v->files->align)
            return ds_fail(err, DS_E_FORMAT, "%s: it takes writes at multiples of %u, the store has %u",
                           ds_file_label(label, sizeof label, o->dirs[0]), v->files->align, v->align);
        memcpy(v->store, one->store, sizeof v->store);
    } else {
        if (v->k == 0)
            ds_volume_default_code(v->n, &v->k, &v->m);
        if (v->k > DS_SEG_MAX_DEVICES || v->m > DS_SEG_MAX_DEVICES || v->k + v->m != v->n)
            return ds_fail(err, DS_E_ARG, "code %u+%u needs %u directories, %u are given", v->k, v->m, v->k + v->m, v->n);
        if (o->read_only)
            return ds_fail(err, DS_E_FORMAT, "%s: no KV store", ds_file_label(label, sizeof label, o->dirs[0]));
        if (getrandom(v->store, sizeof v->store, 0) != sizeof v->store)
            return ds_fail(err, DS_E_IO, "no random numbers: %s", strerror(errno));
    }
    for (uint32_t i = 0; i < o->n_dirs; i++) {
        device[i] = one ? f[i].device : i;
        if (!one || !f[i].there)
            continue;
        if (memcmp(f[i].store, one->store, sizeof one->store) != 0 || f[i].k != one->k || f[i].m != one->m || f[i].align != one->align)
            return ds_fail(err, DS_E_FORMAT, "%s: belongs to another store than the directories before it",
                           ds_file_label(label, sizeof label, o->dirs[i]));
        if (taken[device[i]])
            return ds_fail(err, DS_E_FORMAT, "%s: is device %u, and so is one before it", ds_file_label(label, sizeof label, o->dirs[i]),
                           device[i]);
        taken[device[i]] = true;
    }
    if (one && there < one->k)
        return ds_fail(err, DS_E_FORMAT, "%u of the store's %u devices are there, %u are needed", there, one->devices, one->k);
    *empty = 0;
    for (uint32_t i = 0, free_one = 0; one && i < o->n_dirs; i++) /* a place without a store stands for a device that is gone */
        if (!f[i].there) {
            while (taken[free_one])
                free_one++;
            device[i] = free_one;
            taken[free_one] = true;
            if (!o->read_only && v->files->ops->is_empty && v->files->ops->is_empty(v->files, i))
                *empty |= 1u << i;
            else
                v->missing |= 1u << device[i];
        }
    v->bad = v->missing;
    return DS_OK;
}

static ds_rc open_device(ds_volume *v, uint32_t place, uint32_t device, bool fresh, ds_err *err)
{
    char text[256], hex[33], align[32] = "";

    if (v->missing & 1u << device)
        return DS_OK;
    ds_hex(hex, v->store, 16);
    if (v->align != DS_SEG_ALIGN)
        snprintf(align, sizeof align, ",\"align\":%u", v->align);
    snprintf(text, sizeof text, "{\"format\":1,\"store\":\"%s\",\"device\":%u,\"devices\":%u,\"k\":%u,\"m\":%u%s}\n", hex, device, v->n,
             v->k, v->m, align);
    return v->files->ops->attach(v->files, place, device, fresh ? text : NULL, err);
}

ds_rc ds_volume_open(ds_volume **out, const ds_volume_opts *o, ds_err *err)
{
    uint32_t device[DS_SEG_MAX_DEVICES] = { 0 }, empty = 0, readers;
    bool fresh = false;
    ds_volume *v;
    ds_rc rc;

    *out = NULL;
    if (o->n_dirs == 0 || o->n_dirs > DS_SEG_MAX_DEVICES)
        return ds_fail(err, DS_E_ARG, "%u directories: expected 1 to %d", o->n_dirs, DS_SEG_MAX_DEVICES);
    v = calloc(1, sizeof *v);
    if (!v)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    pthread_rwlock_init(&v->mu, NULL);
    v->segment_bytes = o->segment_bytes;
    if (!v->segment_bytes)
        ds_volume_suits(o->dirs[0], &v->segment_bytes, &readers);
    v->capacity_bytes = o->capacity_bytes;
    v->read_only = o->read_only;
    v->next = 1;
    rc = ds_kvstore_check_places(o->dirs, o->n_dirs, err);
    if (rc == DS_OK && ds_kvstore_in_pool(o->dirs[0]))
        rc = ds_files_rados(&v->files, o->dirs[0], o->rados, err);
    else if (rc == DS_OK)
        rc = ds_files_dirs(&v->files, o->dirs, o->n_dirs, err);
    if (rc == DS_OK)
        rc = find_devices(v, o, device, &fresh, &empty, err);
    if (rc == DS_OK)
        rc = ds_code_init(&v->code, v->k, v->m, err);
    uint32_t made = 0;
    for (uint32_t i = 0; rc == DS_OK && i < o->n_dirs; i++)
        if (!(empty & 1u << i)) {
            rc = open_device(v, i, device[i], fresh, err);
            made |= rc == DS_OK ? 1u << i : 0;
        }
    for (uint32_t i = 0; rc == DS_OK && i < o->n_dirs; i++) /* when nobody else has the store */
        if (empty & 1u << i && open_device(v, i, device[i], true, NULL) != DS_OK)
            v->bad = v->missing |= 1u << device[i];
    if (rc == DS_OK)
        rc = ds_vol_recover(v, o, err);
    if (rc != DS_OK) {
        for (uint32_t i = 0; fresh && i < o->n_dirs; i++) /* no half of a new store stays behind */
            if (made & 1u << i)
                v->files->ops->detach(v->files, device[i]);
        ds_volume_close(v);
        return rc;
    }
    *out = v;
    return DS_OK;
}

void ds_volume_close(ds_volume *v)
{
    if (!v)
        return;
    for (uint32_t c = 0; c < DS_VOLUME_CLASSES; c++)
        if (v->open[c])
            ds_vol_seal(v, v->open[c]);
    for (uint32_t i = 0; i < v->n_seg; i++)
        ds_vol_give(v, v->seg[i]);
    free(v->seg);
    for (uint32_t d = 0; d < DS_SEG_MAX_DEVICES; d++)
        free(v->buf[d]);
    if (v->files)
        v->files->ops->close(v->files);
    pthread_rwlock_destroy(&v->mu);
    free(v);
}

/* A part of it is nowhere, and there is a device that could have it. [mu] */
static bool is_incomplete(const ds_volume *v, const ds_vol_segment *s)
{
    for (uint32_t d = 0; d < v->n; d++)
        if (s->fd[d] < 0 && !(v->bad & 1u << d))
            return !s->open;
    return false;
}

void ds_volume_stat(ds_volume *v, ds_volume_stats *out)
{
    pthread_rwlock_rdlock(&v->mu);
    *out = (ds_volume_stats){ .k = v->k,
                              .m = v->m,
                              .segments = v->n_seg,
                              .bad_devices = (uint32_t)__builtin_popcount(v->bad),
                              .direct = v->files->direct,
                              .bytes = v->bytes,
                              .extents = v->extents,
                              .blocks = v->blocks };
    memcpy(out->store, v->store, sizeof out->store);
    for (uint32_t i = 0; i < v->n_seg; i++)
        out->incomplete += is_incomplete(v, v->seg[i]);
    pthread_rwlock_unlock(&v->mu);
}

/* ---- segments ---- */

ds_vol_segment *ds_vol_segment_new(ds_volume *v)
{
    ds_vol_segment *s = calloc(1, sizeof *s);

    if (!s)
        return NULL;
    for (uint32_t d = 0; d < DS_SEG_MAX_DEVICES; d++)
        s->fd[d] = s->write_fd[d] = -1;
    memcpy(s->h.store, v->store, sizeof s->h.store);
    s->h.k = v->k;
    s->h.m = v->m;
    atomic_init(&s->refs, 1);
    return s;
}

/* Number of segments before the first that isn't below `segment`. [mu] */
static uint32_t lower_bound(const ds_volume *v, uint64_t segment)
{
    uint32_t low = 0, high = v->n_seg;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (v->seg[mid]->h.segment < segment)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

ds_vol_segment *ds_vol_take(ds_volume *v, uint64_t segment)
{
    ds_vol_segment *s = NULL;
    uint32_t i;

    pthread_rwlock_rdlock(&v->mu);
    i = lower_bound(v, segment);
    if (i < v->n_seg && v->seg[i]->h.segment == segment) {
        s = v->seg[i];
        atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed); /* the table's own reference keeps it alive here */
    }
    pthread_rwlock_unlock(&v->mu);
    return s;
}

void ds_vol_give(ds_volume *v, ds_vol_segment *s)
{
    if (atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (uint32_t d = 0; d < DS_SEG_MAX_DEVICES; d++) {
        if (s->fd[d] >= 0)
            v->files->ops->close_read(v->files, d, s->fd[d]);
        if (s->write_fd[d] >= 0)
            v->files->ops->close_write(v->files, d, s->write_fd[d]);
    }
    free(s->items);
    free(s);
}

bool ds_vol_insert(ds_volume *v, ds_vol_segment *s)
{
    bool ok = true;

    pthread_rwlock_wrlock(&v->mu);
    if (v->n_seg == v->cap_seg) {
        uint32_t cap = v->cap_seg ? 2 * v->cap_seg : 64;
        ds_vol_segment **p = realloc(v->seg, cap * sizeof *p);
        ok = p != NULL;
        if (ok) {
            v->seg = p;
            v->cap_seg = cap;
        }
    }
    if (ok) {
        uint32_t i = lower_bound(v, s->h.segment);
        memmove(v->seg + i + 1, v->seg + i, (v->n_seg - i) * sizeof *v->seg);
        v->seg[i] = s;
        v->n_seg++;
    }
    pthread_rwlock_unlock(&v->mu);
    return ok;
}

static void account(ds_volume *v, ds_vol_segment *s, uint64_t bytes, bool add)
{
    pthread_rwlock_wrlock(&v->mu);
    v->bytes = add ? v->bytes + bytes : v->bytes - bytes;
    s->file_bytes = add ? s->file_bytes + bytes : s->file_bytes - bytes;
    pthread_rwlock_unlock(&v->mu);
}

static void note_bad(ds_volume *v, uint32_t d)
{
    pthread_rwlock_wrlock(&v->mu);
    v->bad |= 1u << d;
    pthread_rwlock_unlock(&v->mu);
}

/* A device failed for this segment: it gets nothing more of it. */
static void give_up(ds_volume *v, ds_vol_segment *s, uint32_t d)
{
    v->files->ops->close_write(v->files, d, s->write_fd[d]);
    s->write_fd[d] = -1;
    note_bad(v, d);
}

static uint32_t writable(const ds_volume *v, const ds_vol_segment *s)
{
    uint32_t n = 0;

    for (uint32_t d = 0; d < v->n; d++)
        n += s->write_fd[d] >= 0;
    return n;
}

static bool write_all(const ds_volume *v, uint32_t d, int h, uint8_t *p, size_t n, uint64_t at)
{
    bool lie = false;
    int64_t part = v->faults ? v->faults->write(v->faults->ctx, d, p, n, &lie) : (int64_t)n;

    if (part < 0)
        return false;
    if (part < (int64_t)n)
        return v->files->ops->write(v->files, d, h, p, (size_t)part, at) && lie;
    return v->files->ops->write(v->files, d, h, p, n, at);
}

static void sync_segment(ds_volume *v, ds_vol_segment *s)
{
    uint32_t bad = v->files->ops->sync(v->files, s->write_fd, v->n);

    for (uint32_t d = 0; d < v->n; d++)
        if (s->write_fd[d] >= 0 && ((bad & 1u << d) || (v->faults && v->faults->sync(v->faults->ctx, d) < 0)))
            give_up(v, s, d);
}

/* ---- writing ---- */

static uint64_t footers(const ds_volume *v, uint64_t items)
{
    return ds_seg_footer_bytes(items) * v->n;
}

/* Room that open segments need for their footers, `more` items in segment s counted in. */
static uint64_t promised(const ds_volume *v, const ds_vol_segment *s, uint64_t more)
{
    uint64_t bytes = 0;

    for (uint32_t c = 0; c < DS_VOLUME_CLASSES; c++)
        if (v->open[c])
            bytes += footers(v, v->open[c]->n_items + (v->open[c] == s ? more : 0));
    return bytes;
}

static bool fits(const ds_volume *v, const ds_vol_segment *s, uint64_t items, uint64_t bytes)
{
    return v->capacity_bytes == 0 || v->bytes + bytes + promised(v, s, items) <= v->capacity_bytes;
}

static bool is_missing(const ds_volume *v, uint32_t d)
{
    return v->missing & 1u << d;
}

static void remove_files(const ds_volume *v, uint64_t segment)
{
    for (uint32_t d = 0; d < v->n; d++)
        if (!is_missing(v, d)) {
            if (v->faults)
                v->faults->remove(v->faults->ctx, d);
            v->files->ops->remove(v->files, d, segment);
        }
}

static void unmake(const ds_volume *v, const ds_vol_segment *s, uint32_t d)
{
    if (v->faults)
        v->faults->remove(v->faults->ctx, d);
    v->files->ops->unmake(v->files, d, s->write_fd[d], s->h.segment);
}

/* A segment that isn't begun after all. */
static void unmake_all(ds_volume *v, ds_vol_segment *s)
{
    for (uint32_t d = 0; d < v->n; d++)
        if (s->write_fd[d] >= 0)
            unmake(v, s, d);
    ds_vol_give(v, s);
}

/* The file of one device: its header, and a second handle to read by. False: this device won't have the segment. */
static bool begin_on(const ds_volume *v, ds_vol_segment *s, uint32_t d, uint8_t *head)
{
    ds_seg_header h = s->h;

    if (is_missing(v, d))
        return false;
    h.device = d;
    ds_seg_header_write(head, &h);
    s->write_fd[d] = v->files->ops->create(v->files, d, h.segment);
    if (s->write_fd[d] < 0)
        return false;
    if (write_all(v, d, s->write_fd[d], head, v->align, 0) && v->files->ops->named(v->files, d, s->write_fd[d]))
        s->fd[d] = v->files->ops->open_read(v->files, d, h.segment);
    if (s->fd[d] < 0)
        unmake(v, s, d);
    return s->fd[d] >= 0;
}

static ds_rc begin(ds_volume *v, const ds_volume_extent *x, ds_err *err)
{
    ds_vol_segment *s;
    uint64_t heads = (uint64_t)v->align * v->n;
    uint8_t *head;

    if (!fits(v, NULL, 0, heads + footers(v, x->n)))
        return ds_fail(err, DS_E_AGAIN, "the store's capacity is reached");
    s = ds_vol_segment_new(v);
    head = s ? calloc(1, v->align) : NULL;
    if (!head) {
        if (s)
            ds_vol_give(v, s);
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    }
    s->h.segment = v->next++;
    s->h.klass = x->klass;
    s->h.block_bytes = x->block_bytes;
    s->h.shard_bytes = ds_seg_shard_bytes(x->block_bytes, v->k);
    s->h.begun_s = (uint64_t)ds_wall_s();
    s->h.expires_s = x->expires_s;
    memcpy(s->h.layout, x->layout, sizeof s->h.layout);
    if (getrandom(&s->h.generation, sizeof s->h.generation, 0) != sizeof s->h.generation) {
        free(head);
        ds_vol_give(v, s);
        return ds_fail(err, DS_E_IO, "no random numbers: %s", strerror(errno));
    }
    for (uint32_t d = 0; d < v->n; d++)
        if (!begin_on(v, s, d, head) && s->write_fd[d] >= 0)
            give_up(v, s, d);
        else if (s->write_fd[d] < 0 && !is_missing(v, d))
            note_bad(v, d);
    free(head);
    uint32_t took = writable(v, s);
    if (took < need(v)) {
        unmake_all(v, s);
        return ds_fail(err, DS_E_IO, "a new segment: %u of %u devices took it, %u are needed", took, v->n, need(v));
    }
    if (!ds_vol_insert(v, s)) {
        unmake_all(v, s);
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    }
    s->open = s->dirty = true;
    s->used = s->committed = v->align;
    account(v, s, heads, true);
    v->open[x->klass] = s;
    return DS_OK;
}

void ds_vol_seal(ds_volume *v, ds_vol_segment *s)
{
    uint64_t bytes = ds_seg_footer_bytes(s->n_items);
    uint8_t *foot = s->n_items ? calloc(1, bytes) : NULL;

    v->open[s->h.klass] = NULL;
    s->open = s->dirty = false;
    if (foot) { /* without one the extents are found by their headers */
        ds_seg_footer_write(foot, s->items, s->n_items, s->used, &s->h);
        for (uint32_t d = 0; d < v->n; d++)
            if (s->write_fd[d] >= 0 &&
                (!v->files->ops->cut(v->files, d, s->write_fd[d], s->used) || !write_all(v, d, s->write_fd[d], foot, bytes, s->used)))
                give_up(v, s, d);
        account(v, s, bytes * v->n, true);
        sync_segment(v, s);
    }
    free(foot);
    for (uint32_t d = 0; d < v->n; d++)
        if (s->write_fd[d] >= 0) {
            v->files->ops->close_write(v->files, d, s->write_fd[d]);
            s->write_fd[d] = -1;
        }
    free(s->items);
    s->items = NULL;
    if (s->n_items == 0)
        ds_volume_drop(v, s->h.segment);
}

/* The class's open segment with room for the extent. */
static ds_rc segment_for(ds_volume *v, const ds_volume_extent *x, ds_vol_segment **out, ds_err *err)
{
    ds_vol_segment *s = v->open[x->klass];
    uint64_t bytes = ds_vol_extent_bytes(v, x->n, ds_seg_shard_bytes(x->block_bytes, v->k));
    bool full = s && s->n_items && s->used + bytes > v->segment_bytes;
    ds_rc rc = DS_OK;

    if (s && (full || memcmp(s->h.layout, x->layout, 32) != 0 || s->h.block_bytes != x->block_bytes || writable(v, s) < need(v) ||
              x->expires_s < s->h.expires_s || x->expires_s >= s->h.expires_s + HOUR_S)) {
        rc = ds_volume_commit(v, err);
        if (v->open[x->klass]) /* a commit that failed has sealed it already, and it may be gone */
            ds_vol_seal(v, s);
        s = NULL;
    }
    if (rc == DS_OK && !s)
        rc = begin(v, x, err);
    if (rc != DS_OK)
        return rc;
    s = v->open[x->klass];
    if (!fits(v, s, x->n, bytes * v->n))
        return ds_fail(err, DS_E_AGAIN, "the store's capacity is reached");
    if (s->n_items + x->n > s->cap_items) {
        uint64_t cap = s->cap_items ? 2 * s->cap_items : 1024;
        ds_seg_item *p = realloc(s->items, cap * sizeof *p);
        if (!p)
            return ds_fail(err, DS_E_NOMEM, "out of memory");
        s->items = p;
        s->cap_items = cap;
    }
    *out = s;
    return DS_OK;
}

static bool grow_buffers(ds_volume *v, size_t bytes)
{
    if (bytes <= v->buf_bytes)
        return true;
    v->buf_bytes = 0;
    for (uint32_t d = 0; d < v->n; d++) {
        free(v->buf[d]);
        v->buf[d] = aligned_alloc(DS_SEG_ALIGN, bytes); /* a multiple of it */
        if (!v->buf[d])
            return false;
    }
    v->buf_bytes = bytes;
    return true;
}

/* Shards of block i of the extent into the devices' buffers, each behind its record's head. */
static void lay_down(ds_volume *v, const ds_vol_segment *s, const ds_volume_extent *x, uint32_t i, uint32_t crc)
{
    uint32_t sb = s->h.shard_bytes;
    uint64_t at = ds_seg_record_at(x->n, i, sb) + DS_SEG_RECORD_HEADER;
    uint8_t *shard[DS_SEG_MAX_DEVICES];

    for (uint32_t d = 0; d < v->n; d++)
        shard[d] = v->buf[d] + at;
    for (uint32_t d = 0; d < v->k; d++) {
        uint64_t from = (uint64_t)d * sb, n = from < x->block_bytes ? x->block_bytes - from : 0;
        n = n < sb ? n : sb;
        memcpy(shard[d], x->blocks[i] + (n ? from : 0), n);
        memset(shard[d] + n, 0, sb - n);
    }
    ds_code_encode(&v->code, shard, sb);
    for (uint32_t d = 0; d < v->n; d++)
        ds_seg_record_write(shard[d] - DS_SEG_RECORD_HEADER, &(ds_seg_record){ .key = x->keys[i],
                                                                               .segment = s->h.segment,
                                                                               .generation = s->h.generation,
                                                                               .crc = crc,
                                                                               .shard_crc = ds_crc32c(shard[d], sb),
                                                                               .device = d });
}

ds_rc ds_volume_append(ds_volume *v, const ds_volume_extent *x, ds_volume_place *first, ds_err *err)
{
    ds_seg_extent e = { .parent = x->parent, .depth = x->depth, .n = x->n, .tenant = x->tenant };
    ds_vol_segment *s = NULL;
    uint64_t bytes, head;
    ds_rc rc;

    if (v->read_only || x->klass >= DS_VOLUME_CLASSES || x->n == 0 || x->n > DS_SEG_EXTENT_BLOCKS || x->block_bytes == 0 ||
        x->block_bytes > DS_SEG_MAX_BLOCK_BYTES || x->depth > UINT32_MAX - DS_SEG_EXTENT_BLOCKS)
        return ds_fail(err, DS_E_ARG, "append: %u blocks of %u bytes, class %u", x->n, x->block_bytes, x->klass);
    rc = segment_for(v, x, &s, err);
    if (rc != DS_OK)
        return rc;
    bytes = ds_vol_extent_bytes(v, x->n, s->h.shard_bytes);
    if (!grow_buffers(v, bytes))
        return ds_fail(err, DS_E_NOMEM, "out of memory for an extent of %u blocks", x->n);
    e.offset = s->used;
    for (uint32_t i = 0; i < x->n; i++) {
        e.block[i] = (ds_seg_entry){ .key = x->keys[i], .crc = ds_crc32c(x->blocks[i], x->block_bytes), .flags = x->approx >> i & 1 };
        if (x->crc)
            x->crc[i] = e.block[i].crc;
        lay_down(v, s, x, i, e.block[i].crc);
    }
    head = ds_seg_extent_header_bytes(x->n);
    for (uint32_t d = 0; d < v->n; d++) {
        uint64_t end = ds_seg_record_at(x->n, x->n, s->h.shard_bytes);
        ds_seg_extent_write(v->buf[d], &e, &s->h);
        memset(v->buf[d] + head, 0, ds_seg_record_at(x->n, 0, s->h.shard_bytes) - head);
        memset(v->buf[d] + end, 0, bytes - end);
        if (s->write_fd[d] >= 0 && !write_all(v, d, s->write_fd[d], v->buf[d], bytes, s->used))
            give_up(v, s, d);
    }
    if (writable(v, s) < need(v))
        return ds_fail(err, DS_E_IO, "segment %" PRIu64 ": %u of %u devices took the extent, %u are needed", s->h.segment, writable(v, s),
                       v->n, need(v));
    *first = (ds_volume_place){ .segment = s->h.segment, .offset = s->used, .at = 0, .of = x->n, .crc = e.block[0].crc };
    for (uint32_t i = 0; i < x->n; i++)
        s->items[s->n_items++] = (ds_seg_item){ .key = x->keys[i],
                                                .parent = i ? x->keys[i - 1] : x->parent,
                                                .offset = s->used,
                                                .at = i,
                                                .of = x->n,
                                                .depth = x->depth + i,
                                                .crc = e.block[i].crc,
                                                .flags = e.block[i].flags,
                                                .tenant = x->tenant };
    s->used += bytes;
    s->dirty = true;
    account(v, s, bytes * v->n, true);
    pthread_rwlock_wrlock(&v->mu);
    v->extents++;
    v->blocks += x->n;
    pthread_rwlock_unlock(&v->mu);
    return DS_OK;
}

ds_rc ds_volume_commit(ds_volume *v, ds_err *err)
{
    ds_rc rc = DS_OK;

    for (uint32_t c = 0; c < DS_VOLUME_CLASSES; c++) {
        ds_vol_segment *s = v->open[c];
        if (!s || !s->dirty)
            continue;
        sync_segment(v, s);
        s->dirty = false;
        if (writable(v, s) >= need(v)) {
            s->committed = s->used;
            s->n_committed = s->n_items;
            continue;
        }
        rc = ds_fail(err, DS_E_IO, "segment %" PRIu64 ": it is on stable storage on %u of %u devices, %u are needed", s->h.segment,
                     writable(v, s), v->n, need(v));
        account(v, s, (s->used - s->committed) * v->n, false);
        s->used = s->committed;
        s->n_items = s->n_committed;
        ds_vol_seal(v, s); /* with what counts */
    }
    return rc;
}

ds_rc ds_volume_seal(ds_volume *v, uint32_t klass, ds_err *err)
{
    ds_rc rc = ds_volume_commit(v, err);

    if (v->open[klass])
        ds_vol_seal(v, v->open[klass]);
    return rc;
}

bool ds_volume_drop(ds_volume *v, uint64_t segment)
{
    ds_vol_segment *s = NULL;

    pthread_rwlock_wrlock(&v->mu);
    uint32_t i = lower_bound(v, segment);
    if (i < v->n_seg && v->seg[i]->h.segment == segment && !v->seg[i]->open) {
        s = v->seg[i];
        v->n_seg--;
        memmove(v->seg + i, v->seg + i + 1, (v->n_seg - i) * sizeof *v->seg);
        v->bytes -= s->file_bytes;
    }
    pthread_rwlock_unlock(&v->mu);
    if (!s)
        return false;
    remove_files(v, segment);
    ds_vol_give(v, s);
    return true;
}

uint64_t ds_volume_incomplete(ds_volume *v, uint64_t after)
{
    uint64_t segment = 0;

    pthread_rwlock_rdlock(&v->mu);
    for (uint32_t i = lower_bound(v, after + 1); i < v->n_seg && !segment; i++)
        if (is_incomplete(v, v->seg[i]))
            segment = v->seg[i]->h.segment;
    pthread_rwlock_unlock(&v->mu);
    return segment;
}

void ds_volume_each(ds_volume *v, ds_volume_segment_fn *fn, void *ctx)
{
    pthread_rwlock_rdlock(&v->mu);
    for (uint32_t i = 0; i < v->n_seg; i++)
        fn(ctx, &v->seg[i]->h, v->seg[i]->file_bytes, v->seg[i]->open);
    pthread_rwlock_unlock(&v->mu);
}

uint64_t ds_volume_run_bytes(const ds_volume *v)
{
    return v->files->run_bytes;
}

uint64_t ds_vol_extent_bytes(const ds_volume *v, uint32_t n, uint32_t shard_bytes)
{
    return (ds_seg_extent_bytes(n, shard_bytes) + v->align - 1) / v->align * v->align;
}

uint64_t ds_volume_extent_bytes(const ds_volume *v, uint32_t n, uint32_t block_bytes)
{
    return (ds_vol_extent_bytes(v, n, ds_seg_shard_bytes(block_bytes, v->k)) + n * (uint64_t)DS_SEG_FOOTER_ENTRY) * v->n;
}
