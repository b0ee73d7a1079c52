#include "recipe/conversation.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

ds_msg *ds_conv_add(ds_conv *c, ds_region *g, ds_role role)
{
    ds_msg *m = ds_region_alloc(g, sizeof *m);

    if (!m)
        return NULL;
    m->role = role;
    if (c->last)
        c->last->next = m;
    else
        c->first = m;
    c->last = m;
    return m;
}

static ds_part *add_part(ds_parts *to, ds_region *g, ds_str text, const char *joiner, int32_t image)
{
    ds_part *p = ds_region_alloc(g, sizeof *p);

    if (!p)
        return NULL;
    p->text = text;
    p->joiner = joiner;
    p->image = image;
    if (to->last)
        to->last->next = p;
    else
        to->first = p;
    to->last = p;
    to->bytes += image < 0 ? text.n : 1;
    return p;
}

ds_part *ds_parts_text(ds_parts *p, ds_region *g, ds_str text, const char *joiner)
{
    return add_part(p, g, text, joiner, -1);
}

ds_part *ds_parts_image(ds_parts *p, ds_region *g, uint32_t image)
{
    return add_part(p, g, (ds_str){ NULL, 0 }, "\n\n", (int32_t)image);
}

ds_call *ds_msg_call(ds_msg *m, ds_region *g, ds_str id, ds_str name)
{
    ds_call *c = ds_region_alloc(g, sizeof *c);

    if (!c)
        return NULL;
    c->id = id;
    c->name = name;
    if (m->last_call)
        m->last_call->next = c;
    else
        m->calls = c;
    m->last_call = c;
    m->n_calls++;
    return c;
}

bool ds_idmap_reset(ds_idmap *m, ds_region *g, uint32_t cap)
{
    uint32_t size = 16;

    if (m->slots && cap <= m->cap) {
        m->n = 0;
        m->generation++;
        return true;
    }
    if (cap > 1u << 29) {
        g->failed = true;
        return false;
    }
    while (size < cap * 2)
        size *= 2;
    m->slots = ds_region_array(g, size, sizeof *m->slots);
    if (!m->slots)
        return false;
    m->mask = size - 1;
    m->cap = size / 2;
    m->seed = (uint64_t)(uintptr_t)m->slots; /* differs from run to run, which is enough against aimed collisions */
    m->n = 0;
    m->generation = 1;
    return true;
}

static struct ds_idmap_slot *probe(const ds_idmap *m, ds_str key)
{
    for (uint32_t i = (uint32_t)ds_hash64(key.p, key.n, m->seed) & m->mask;; i = (i + 1) & m->mask) {
        struct ds_idmap_slot *s = &m->slots[i];

        if (s->generation != m->generation || (s->key.n == key.n && memcmp(s->key.p, key.p, key.n) == 0))
            return s;
    }
}

struct ds_idmap_slot *ds_idmap_find(const ds_idmap *m, ds_str key)
{
    struct ds_idmap_slot *s = m->slots ? probe(m, key) : NULL;

    return s && s->generation == m->generation ? s : NULL;
}

bool ds_idmap_put(ds_idmap *m, ds_str key, uint32_t value)
{
    struct ds_idmap_slot *s = probe(m, key);

    if (s->generation == m->generation)
        return false;
    s->key = key;
    s->value = value;
    s->generation = m->generation;
    m->n++;
    return true;
}

typedef struct {
    ds_msg *msg;
    uint32_t rank, at;
} placed;

static int by_rank(const void *a, const void *b)
{
    const placed *x = a, *y = b;

    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* The run is first .. before `end`; n_tool of its messages are results. Only their contents move, so the list stays
 * as it is. */
static bool order_run(ds_msg *first, ds_msg *end, uint32_t n_tool, const ds_msg *caller, ds_idmap *map, ds_region *g)
{
    placed *p = ds_region_array(g, n_tool, sizeof *p);
    ds_msg *copies = ds_region_array(g, n_tool, sizeof *copies);
    uint32_t i = 0;

    if (!p || !copies || !ds_idmap_reset(map, g, caller ? caller->n_calls : 1))
        return false;
    if (caller)
        for (const ds_call *c = caller->calls; c; c = c->next)
            ds_idmap_put(map, c->id, i++);
    i = 0;
    for (ds_msg *m = first; m != end; m = m->next) {
        const struct ds_idmap_slot *s;

        if (m->role != DS_ROLE_TOOL)
            continue;
        s = m->call_id.p ? ds_idmap_find(map, m->call_id) : NULL;
        copies[i] = *m;
        p[i] = (placed){ &copies[i], s ? s->value : 0, i };
        i++;
    }
    qsort(p, n_tool, sizeof *p, by_rank);
    i = 0;
    for (ds_msg *m = first; m != end; m = m->next) {
        ds_msg *next = m->next;

        if (m->role != DS_ROLE_TOOL)
            continue;
        *m = *p[i++].msg;
        m->next = next;
    }
    return true;
}

typedef struct {
    ds_call *call;
    uint32_t at;
} ordered;

static int by_id(const void *a, const void *b)
{
    const ordered *x = a, *y = b;
    ds_str s = x->call->id, t = y->call->id;
    int c = memcmp(s.p, t.p, s.n < t.n ? s.n : t.n);

    if (c == 0 && s.n != t.n)
        c = s.n < t.n ? -1 : 1;
    return c ? c : x->at < y->at ? -1 : x->at > y->at;
}

bool ds_conv_sort_calls(ds_conv *c, ds_region *g)
{
    for (ds_msg *m = c->first; m; m = m->next) {
        uint32_t n = 0;
        ordered *list;

        if (m->n_calls < 2)
            continue;
        list = ds_region_array(g, m->n_calls, sizeof *list);
        if (!list)
            return false;
        for (ds_call *k = m->calls; k; k = k->next, n++)
            list[n] = (ordered){ k, n };
        qsort(list, n, sizeof *list, by_id);
        for (uint32_t i = 0; i < n; i++)
            list[i].call->next = i + 1 < n ? list[i + 1].call : NULL;
        m->calls = list[0].call;
        m->last_call = list[n - 1].call;
    }
    return true;
}

void ds_conv_later_systems_to_user(ds_conv *c)
{
    ds_msg **link = &c->first;
    bool head = true;

    c->last = NULL;
    while (*link) {
        ds_msg *m = *link;

        head = head && m->role == DS_ROLE_SYSTEM;
        if (!head && m->role == DS_ROLE_SYSTEM) {
            if (!m->content.bytes) {
                *link = m->next;
                continue;
            }
            m->role = DS_ROLE_USER;
        }
        c->last = m;
        link = &m->next;
    }
}

bool ds_conv_order_results(ds_conv *c, ds_region *g)
{
    const ds_msg *caller = NULL;
    ds_idmap map = { 0 };

    for (ds_msg *m = c->first; m;) {
        ds_msg *first = m;
        uint32_t n_tool = 0;

        if (m->role != DS_ROLE_USER && m->role != DS_ROLE_TOOL) {
            if (m->role == DS_ROLE_ASSISTANT && m->calls)
                caller = m;
            m = m->next;
            continue;
        }
        while (m && (m->role == DS_ROLE_USER || m->role == DS_ROLE_TOOL)) {
            n_tool += m->role == DS_ROLE_TOOL;
            m = m->next;
        }
        if (n_tool >= 2 && !order_run(first, m, n_tool, caller, &map, g))
            return false;
    }
    return true;
}
