/* What a store knows when it is opened: by its checkpoint, or by what its segments say; and the checkpoint of one that
 * is closed. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/none.h"
#include "kvstore/checkpoint.h"
#include "kvstore/store_internal.h"

typedef struct {
    ds_key key, parent;
} orphan;

/* Blocks of one extent, until the next begins. */
typedef struct {
    ds_kvs *st;
    ds_index_extent x;
    ds_key keys[DS_SEG_EXTENT_BLOCKS], parent;
    uint32_t crc[DS_SEG_EXTENT_BLOCKS];
    orphan *orphans; /* extents whose parents may still come */
    size_t n_orphans, cap_orphans;
    uint64_t now;
    bool looked_for;     /* the checkpoint, when the store's directories are ours */
    ds_checkpoint *ckpt; /* NULL: there is none */
    uint64_t *known;     /* [n_known] segments that it says all of */
    uint64_t n_known;
    bool tried; /* the index may have half of it */
    const ds_kvstore_opts *o;
    ds_rc rc;
} rebuild;

static void enter_extent(rebuild *b)
{
    ds_kvs *st = b->st;
    ds_index_hit hit;
    ds_index_info front;

    if (b->x.n == 0 || b->rc != DS_OK)
        return;
    b->x.keys = b->keys;
    b->x.crc = b->crc;
    b->x.parent = DS_NONE;
    if (b->x.depth && ds_index_find(st->ix, &b->parent, &hit) && ds_index_at(st->ix, hit.record, &front) && front.depth + 1 == b->x.depth)
        b->x.parent = hit.record;
    if (ds_index_insert(st->ix, &b->x, NULL, NULL) != DS_OK) { /* full: what is left stays on the devices, unknown, until it is collected */
        b->x.n = 0;
        return;
    }
    if (b->x.depth && b->x.parent == DS_NONE && ds_index_find(st->ix, &b->keys[0], &hit)) {
        if (b->n_orphans == b->cap_orphans) {
            size_t cap = b->cap_orphans ? 2 * b->cap_orphans : 1024;
            orphan *p = realloc(b->orphans, cap * sizeof *p);
            if (!p) {
                b->rc = DS_E_NOMEM;
                return;
            }
            b->orphans = p;
            b->cap_orphans = cap;
        }
        b->orphans[b->n_orphans++] = (orphan){ .key = b->keys[0], .parent = b->parent };
    }
    b->x.n = 0;
}

static void found_block(void *ctx, const ds_seg_header *h, const ds_seg_item *item)
{
    rebuild *b = ctx;
    ds_index_extent *x = &b->x;
    uint32_t layout;

    if (x->n && (x->segment != h->segment || x->offset != item->offset || x->at + x->n != item->at ||
                 !ds_key_equal(&b->keys[x->n - 1], &item->parent)))
        enter_extent(b);
    if (h->expires_s <= b->now) /* it counts no more; the first tidying removes it */
        return;
    if (x->n == 0) {
        layout = ds_kvs_layout_of(b->st, h->layout, h->block_bytes);
        if (layout == DS_NONE)
            return;
        *x = (ds_index_extent){ .segment = h->segment,
                                .offset = item->offset,
                                .of = item->of,
                                .at = item->at,
                                .layout = layout,
                                .klass = h->klass < DS_KVSTORE_CLASSES ? h->klass : DS_KVSTORE_CHAT,
                                .depth = item->depth,
                                .tenant = item->tenant,
                                .used = h->begun_s < UINT32_MAX ? h->begun_s * 1000000 : 0 };
        b->parent = item->parent;
    }
    b->keys[x->n] = item->key;
    b->crc[x->n] = item->crc;
    x->approx |= (uint64_t)(item->flags & DS_SEG_APPROX) << x->n;
    x->n++;
}

/* Links what came before its parent; what has none goes, with all that stands behind it. */
static void link_orphans(rebuild *b)
{
    ds_index *ix = b->st->ix;
    ds_index_hit hit, parent;
    ds_index_info info;

    for (size_t i = 0; i < b->n_orphans; i++) {
        const orphan *o = &b->orphans[i];
        if (!ds_index_find(ix, &o->key, &hit) || !ds_index_at(ix, hit.record, &info) || info.parent != DS_NONE)
            continue;
        if (!ds_index_find(ix, &o->parent, &parent) || !ds_index_link(ix, hit.record, parent.record))
            ds_index_remove(ix, hit.record, NULL, NULL);
    }
    free(b->orphans);
}

/* ---- by the checkpoint ---- */

/* The volume is locked by now. Whoever may change it removes the checkpoint, which is of what was there before. */
static void look_for_checkpoint(rebuild *b)
{
    b->looked_for = true;
    for (uint32_t i = 0; i < b->o->n_dirs; i++) {
        ds_rc rc = b->ckpt ? DS_E_IO : ds_checkpoint_open(&b->ckpt, b->o->dirs[i], NULL);
        if (!b->o->read_only && !ds_checkpoint_remove(b->o->dirs[i]) && rc == DS_OK) { /* it would be believed again later */
            ds_checkpoint_close(b->ckpt);
            b->ckpt = NULL;
        }
        if (rc == DS_E_NOMEM)
            b->rc = rc;
    }
    b->known = b->ckpt ? calloc(ds_checkpoint_what(b->ckpt)->n_segments + 1, sizeof *b->known) : NULL;
    if (b->ckpt && !b->known)
        b->rc = DS_E_NOMEM;
}

static bool known_segment(void *ctx, const ds_seg_header *h)
{
    rebuild *b = ctx;
    const ds_checkpoint_of *w;
    uint64_t i = b->n_known;

    if (!b->looked_for)
        look_for_checkpoint(b);
    if (!b->known)
        return false;
    w = ds_checkpoint_what(b->ckpt);
    while (i < w->n_segments && w->segments[i].segment < h->segment) /* both come in order */
        i++;
    if (i == w->n_segments || w->segments[i].segment != h->segment || w->segments[i].generation != h->generation ||
        memcmp(w->store, h->store, sizeof w->store) != 0)
        return false;
    b->known[b->n_known++] = h->segment;
    return true;
}

/* False: it isn't of what is there, or isn't right. */
static bool load_checkpoint(rebuild *b)
{
    const ds_checkpoint_of *w = ds_checkpoint_what(b->ckpt);
    uint32_t layout[DS_CHECKPOINT_LAYOUTS];

    if (b->n_known != w->n_segments || ds_index_end(b->st->ix) > 0)
        return false;
    for (uint32_t i = 0; i < w->n_layouts; i++) {
        layout[i] = ds_kvs_layout_of(b->st, w->layouts[i].id, w->layouts[i].block_bytes);
        if (layout[i] == UINT32_MAX)
            return false;
    }
    b->tried = true;
    if (ds_checkpoint_load(b->ckpt, b->st->ix, layout, NULL) != DS_OK)
        return false;
    DS_KVS_COUNT(b->st, restored, ds_index_blocks(b->st->ix));
    return true;
}

/* Reads after all what was left out for the checkpoint's sake. */
static ds_rc list_known(rebuild *b, ds_err *err)
{
    uint32_t max_blocks = ds_index_max_blocks(b->st->ix);
    ds_rc rc = DS_OK;

    if (b->tried) {
        ds_index_destroy(b->st->ix);
        rc = ds_index_create(&b->st->ix, max_blocks, err);
    }
    for (uint64_t i = 0; i < b->n_known && rc == DS_OK; i++)
        rc = ds_volume_list(b->st->v, b->known[i], found_block, b, err);
    return rc;
}

/* ---- */

static ds_rc copy_names(ds_kvs *st, const ds_kvstore_opts *o, ds_err *err)
{
    st->dir = calloc(o->n_dirs + 1, sizeof *st->dir);
    for (uint32_t i = 0; st->dir && i < o->n_dirs; i++)
        if (!(st->dir[i] = strdup(o->dirs[i])))
            return ds_fail(err, DS_E_NOMEM, "out of memory");
    return st->dir ? DS_OK : ds_fail(err, DS_E_NOMEM, "out of memory");
}

ds_rc ds_kvs_restart(ds_kvs *st, const ds_kvstore_opts *o, const struct ds_rados_api *rados, ds_err *err)
{
    rebuild b = { .st = st, .now = (uint64_t)ds_wall_s(), .o = o };
    ds_rc rc = copy_names(st, o, err);

    if (rc == DS_OK)
        rc = ds_volume_open(&st->v,
                            &(ds_volume_opts){ .dirs = o->dirs,
                                               .n_dirs = o->n_dirs,
                                               .k = o->k,
                                               .m = o->m,
                                               .segment_bytes = st->segment_bytes,
                                               .capacity_bytes = o->capacity_bytes,
                                               .rados = rados,
                                               .read_only = o->read_only,
                                               .known = known_segment,
                                               .found = found_block,
                                               .ctx = &b },
                            err);
    if (rc == DS_OK)
        st->run_bytes = ds_volume_run_bytes(st->v);
    if (rc == DS_OK && !b.looked_for)
        look_for_checkpoint(&b);
    if (rc == DS_OK)
        enter_extent(&b);
    if (rc == DS_OK && b.known && !load_checkpoint(&b)) {
        rc = list_known(&b, err);
        enter_extent(&b);
    }
    if (rc == DS_OK && b.rc != DS_OK)
        rc = ds_fail(err, b.rc, "out of memory");
    link_orphans(&b);
    ds_checkpoint_close(b.ckpt);
    free(b.known);
    return rc;
}

/* ---- closing ---- */

typedef struct {
    ds_checkpoint_segment *s;
    uint64_t n, cap;
    bool whole;
} segments;

static void add_segment(void *ctx, const ds_seg_header *h, uint64_t bytes, bool open)
{
    segments *l = ctx;

    (void)bytes;
    if (l->n == l->cap || open) {
        l->whole = false;
        return;
    }
    l->s[l->n++] = (ds_checkpoint_segment){ h->segment, h->generation };
}

void ds_kvs_write_checkpoint(ds_kvs *st)
{
    ds_checkpoint_layout layouts[DS_CHECKPOINT_LAYOUTS];
    ds_checkpoint_of w = { .layouts = layouts, .n_layouts = st->n_layouts };
    segments l = { .whole = true };
    ds_volume_stats v;
    bool sealed = true, done = false;

    if (st->read_only)
        return;
    for (uint32_t c = 0; c < DS_VOLUME_CLASSES; c++)
        sealed = ds_volume_seal(st->v, c, NULL) == DS_OK && sealed;
    ds_volume_stat(st->v, &v);
    memcpy(w.store, v.store, sizeof w.store);
    l.cap = v.segments;
    l.s = calloc(l.cap + 1, sizeof *l.s);
    if (!sealed || !l.s) {
        free(l.s);
        return;
    }
    ds_volume_each(st->v, add_segment, &l);
    w.segments = l.s;
    w.n_segments = l.n;
    for (uint32_t i = 0; i < st->n_layouts; i++) {
        memcpy(layouts[i].id, st->layout[i].id, 32);
        layouts[i].block_bytes = st->layout[i].block_bytes;
    }
    if (l.whole && (!st->capacity || v.bytes + ds_checkpoint_bytes(&w, st->ix) <= st->capacity))
        for (uint32_t i = 0; i < st->n_devices && !done; i++)
            done = ds_checkpoint_write(st->dir[i], &w, st->ix, NULL) == DS_OK;
    free(l.s);
}
