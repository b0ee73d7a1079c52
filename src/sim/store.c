#include "sim/store.h"

#include <math.h>
#include <stdlib.h>

#include "base/none.h"

typedef struct {
    uint64_t key, tokens, used_ns;
    uint32_t newer, older, next; /* in its class by last use; in its bucket, or among the free ones */
    uint32_t class;
} entry;

struct ds_sim_store {
    ds_sim_store_opts o;
    ds_sim_store_sum sum;
    entry *e;
    uint32_t *bucket, buckets; /* a power of two */
    uint32_t cap, free, newest[DS_SIM_CLASSES], oldest[DS_SIM_CLASSES];
};

static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 33;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 33;
}

ds_rc ds_sim_store_create(ds_sim_store **out, const ds_sim_store_opts *o, ds_err *err)
{
    ds_sim_store *s = calloc(1, sizeof *s);

    *out = NULL;
    if (!s)
        return ds_fail(err, DS_E_NOMEM, "out of memory for the store");
    s->o = *o;
    s->free = DS_NONE;
    for (uint32_t c = 0; c < DS_SIM_CLASSES; c++)
        s->newest[c] = s->oldest[c] = DS_NONE;
    *out = s;
    return DS_OK;
}

void ds_sim_store_destroy(ds_sim_store *s)
{
    if (!s)
        return;
    free(s->e);
    free(s->bucket);
    free(s);
}

static uint64_t bytes_of(const ds_sim_store *s, uint64_t tokens)
{
    return (uint64_t)((double)tokens * s->o.bytes_token);
}

static uint32_t find(const ds_sim_store *s, uint64_t key)
{
    uint32_t i;

    if (s->buckets == 0)
        return DS_NONE;
    for (i = s->bucket[mix(key) & (s->buckets - 1)]; i != DS_NONE && s->e[i].key != key;)
        i = s->e[i].next;
    return i;
}

static void unlink_use(ds_sim_store *s, uint32_t i)
{
    entry *e = &s->e[i];

    *(e->newer == DS_NONE ? &s->newest[e->class] : &s->e[e->newer].older) = e->older;
    *(e->older == DS_NONE ? &s->oldest[e->class] : &s->e[e->older].newer) = e->newer;
}

static void link_use(ds_sim_store *s, uint32_t i, uint64_t now_ns)
{
    entry *e = &s->e[i];

    e->used_ns = now_ns;
    e->newer = DS_NONE;
    e->older = s->newest[e->class];
    *(e->older == DS_NONE ? &s->oldest[e->class] : &s->e[e->older].newer) = i;
    s->newest[e->class] = i;
}

static void drop(ds_sim_store *s, uint32_t i, uint64_t *cause)
{
    entry *e = &s->e[i];
    uint32_t *at = &s->bucket[mix(e->key) & (s->buckets - 1)];
    uint64_t bytes = bytes_of(s, e->tokens);

    while (*at != i)
        at = &s->e[*at].next;
    *at = e->next;
    unlink_use(s, i);
    *cause += bytes;
    s->sum.held_bytes -= bytes;
    s->sum.entries--;
    e->next = s->free;
    s->free = i;
}

static void expire(ds_sim_store *s, uint64_t now_ns)
{
    for (uint32_t c = 0; c < DS_SIM_CLASSES; c++)
        while (s->oldest[c] != DS_NONE && (double)(now_ns - s->e[s->oldest[c]].used_ns) > s->o.ttl_s[c] * 1e9)
            drop(s, s->oldest[c], &s->sum.expired_bytes);
}

static void make_room(ds_sim_store *s)
{
    while ((double)s->sum.held_bytes > s->o.capacity_bytes && s->sum.entries > 0) {
        uint32_t i = DS_NONE;
        for (uint32_t c = 0; c < DS_SIM_CLASSES; c++)
            if (s->oldest[c] != DS_NONE && (i == DS_NONE || s->e[s->oldest[c]].used_ns < s->e[i].used_ns))
                i = s->oldest[c];
        drop(s, i, &s->sum.evicted_bytes);
    }
}

uint64_t ds_sim_store_get(ds_sim_store *s, uint64_t key, uint64_t now_ns, uint64_t *idle_ns)
{
    uint32_t i;

    expire(s, now_ns);
    i = find(s, key);
    *idle_ns = 0;
    if (i == DS_NONE)
        return 0;
    *idle_ns = now_ns - s->e[i].used_ns;
    unlink_use(s, i);
    link_use(s, i, now_ns);
    return s->e[i].tokens;
}

static bool grow(ds_sim_store *s)
{
    uint32_t cap = s->cap ? s->cap * 2 : 1024, *bucket;
    entry *e;

    if (cap > UINT32_MAX / 4)
        return false;
    e = realloc(s->e, cap * sizeof *e);
    if (!e)
        return false;
    s->e = e;
    bucket = realloc(s->bucket, cap * sizeof *bucket);
    if (!bucket)
        return false;
    s->bucket = bucket;
    s->buckets = cap;
    for (uint32_t b = 0; b < cap; b++)
        bucket[b] = DS_NONE;
    for (uint32_t i = 0; i < s->cap; i++) { /* it grows when none is free: all are in use */
        uint32_t *at = &bucket[mix(e[i].key) & (cap - 1)];
        e[i].next = *at;
        *at = i;
    }
    for (uint32_t i = s->cap; i < cap; i++) {
        e[i].next = s->free;
        s->free = i;
    }
    s->cap = cap;
    return true;
}

bool ds_sim_store_put(ds_sim_store *s, uint64_t key, uint32_t class, uint64_t tokens, uint64_t now_ns)
{
    uint32_t i, *at;

    expire(s, now_ns);
    i = find(s, key);
    if (i == DS_NONE) {
        if (s->free == DS_NONE && !grow(s))
            return false;
        i = s->free;
        s->free = s->e[i].next;
        at = &s->bucket[mix(key) & (s->buckets - 1)];
        s->e[i] = (entry){ .key = key, .next = *at, .class = class };
        *at = i;
        s->sum.entries++;
    } else
        unlink_use(s, i);
    link_use(s, i, now_ns);
    if (tokens > s->e[i].tokens) {
        uint64_t more = bytes_of(s, tokens) - bytes_of(s, s->e[i].tokens);
        s->e[i].tokens = tokens;
        s->sum.written_bytes += more;
        s->sum.held_bytes += more;
    }
    make_room(s);
    if (s->sum.held_bytes > s->sum.most_bytes)
        s->sum.most_bytes = s->sum.held_bytes;
    return true;
}

ds_sim_store_sum ds_sim_store_sums(const ds_sim_store *s)
{
    return s->sum;
}
