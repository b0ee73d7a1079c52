#include "engine/hoststore.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/tier.h"

typedef struct {
    uint64_t ticket; /* 0: free */
    uint32_t n;
    ds_store_got *got; /* [ticket_blocks] */
    ds_store_got state;
} pinned;

struct ds_hoststore {
    ds_tier blocks, states;
    pinned *tickets;
    uint32_t n_tickets, ticket_blocks;
    struct ds_engine *engine;
};

static ds_rc attach(void *ctx, struct ds_engine *e, const ds_store_stage *stage, ds_err *err)
{
    ds_hoststore *s = ctx;

    assert(stage->n_blocks >= s->blocks.n && stage->n_states >= s->states.n);
    (void)stage;
    (void)err;
    s->engine = e;
    return DS_OK;
}

static void detach(void *ctx)
{
    (void)ctx;
}

/* The buffer that holds it; not what rests on a replay where it has to be exact. */
static uint32_t find(ds_tier *t, const ds_key *key, bool exact)
{
    uint32_t i = ds_tier_find(t, key);

    return i != DS_NONE && exact && t->approx[i] ? DS_NONE : i;
}

static uint32_t match(void *ctx, const ds_key *keys, uint32_t n, bool exact)
{
    ds_hoststore *s = ctx;
    uint32_t i = 0;

    while (i < n && find(&s->blocks, &keys[i], exact) != DS_NONE)
        i++;
    return i;
}

static bool match_state(void *ctx, const ds_key *key, bool exact, uint32_t *dec_start)
{
    ds_hoststore *s = ctx;
    uint32_t i = find(&s->states, key, exact);

    if (i != DS_NONE)
        *dec_start = s->states.note[i];
    return i != DS_NONE;
}

static ds_store_got take(ds_tier *t, const ds_key *key, bool exact)
{
    uint32_t i = find(t, key, exact);

    if (i == DS_NONE)
        return (ds_store_got){ .result = DS_STORE_GONE };
    ds_tier_pin(t, i);
    return (ds_store_got){ .result = DS_STORE_OK, .buffer = i, .approx = t->approx[i], .dec_start = t->note[i] };
}

static pinned *of_ticket(ds_hoststore *s, uint64_t ticket)
{
    for (uint32_t i = 0; i < s->n_tickets; i++)
        if (s->tickets[i].ticket == ticket)
            return &s->tickets[i];
    return NULL;
}

static void fetch(void *ctx, const ds_store_want *w)
{
    ds_hoststore *s = ctx;
    pinned *p = of_ticket(s, 0);

    assert(p && w->n_blocks <= s->ticket_blocks);
    p->ticket = w->ticket;
    p->n = w->n_blocks;
    for (uint32_t i = 0; i < w->n_blocks; i++)
        p->got[i] = take(&s->blocks, &w->blocks[i], w->exact);
    p->state = w->state ? take(&s->states, w->state, w->exact) : (ds_store_got){ .result = DS_STORE_GONE };
    ds_engine_store_done(s->engine, w->ticket, p->got, p->n, w->state ? &p->state : NULL);
}

static void drop(void *ctx, uint64_t ticket)
{
    ds_hoststore *s = ctx;
    pinned *p = of_ticket(s, ticket);

    assert(p);
    for (uint32_t i = 0; i < p->n; i++)
        if (p->got[i].result == DS_STORE_OK)
            ds_tier_unpin(&s->blocks, p->got[i].buffer);
    if (p->state.result == DS_STORE_OK)
        ds_tier_unpin(&s->states, p->state.buffer);
    p->ticket = 0;
}

static uint32_t save(void *ctx, const ds_store_item *item)
{
    ds_hoststore *s = ctx;

    return ds_tier_put(item->is_state ? &s->states : &s->blocks, &item->key, item->dec_start, item->approx);
}

static void stats(void *ctx, ds_gen_stats *out)
{
    ds_hoststore *s = ctx;

    out->host_blocks = s->blocks.n;
    out->host_blocks_used = s->blocks.n_used;
    out->host_states = s->states.n;
    out->host_states_used = s->states.n_used;
    out->host_blocks_saved = s->blocks.saved;
    out->host_blocks_evicted = s->blocks.evicted;
    out->host_states_saved = s->states.saved;
    out->host_states_evicted = s->states.evicted;
    s->blocks.saved = s->blocks.evicted = s->states.saved = s->states.evicted = 0;
}

ds_store ds_hoststore_store(ds_hoststore *s)
{
    static const ds_store_fns fns = { .attach = attach,
                                      .detach = detach,
                                      .match = match,
                                      .match_state = match_state,
                                      .fetch = fetch,
                                      .drop = drop,
                                      .save = save,
                                      .stats = stats };
    return (ds_store){ &fns, s };
}

uint64_t ds_hoststore_bytes(const ds_hoststore_size *z)
{
    return sizeof(ds_hoststore) + ds_tier_bytes(z->n_blocks) + ds_tier_bytes(z->n_states) +
           z->n_tickets * (sizeof(pinned) + (uint64_t)z->ticket_blocks * sizeof(ds_store_got));
}

ds_rc ds_hoststore_create(ds_hoststore **out, const ds_hoststore_size *z, ds_err *err)
{
    ds_hoststore *s = calloc(1, sizeof *s);
    ds_rc rc;

    *out = NULL;
    if (!s)
        return ds_fail(err, DS_E_NOMEM, "engine: out of memory");
    s->n_tickets = z->n_tickets;
    s->ticket_blocks = z->ticket_blocks;
    rc = ds_tier_init(&s->blocks, z->n_blocks, err);
    if (rc == DS_OK)
        rc = ds_tier_init(&s->states, z->n_states, err);
    if (rc == DS_OK && !(s->tickets = calloc(z->n_tickets, sizeof *s->tickets)))
        rc = ds_fail(err, DS_E_NOMEM, "engine: out of memory for %u fetches", z->n_tickets);
    for (uint32_t i = 0; i < z->n_tickets && rc == DS_OK; i++)
        if (!(s->tickets[i].got = calloc(z->ticket_blocks, sizeof *s->tickets[i].got)))
            rc = ds_fail(err, DS_E_NOMEM, "engine: out of memory for fetches of %u blocks", z->ticket_blocks);
    if (rc != DS_OK) {
        ds_hoststore_destroy(s);
        return rc;
    }
    *out = s;
    return DS_OK;
}

void ds_hoststore_destroy(ds_hoststore *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; s->tickets && i < s->n_tickets; i++)
        free(s->tickets[i].got);
    free(s->tickets);
    ds_tier_fini(&s->blocks);
    ds_tier_fini(&s->states);
    free(s);
}

const char *ds_hoststore_check(const ds_hoststore *s)
{
    const ds_tier *tiers[] = { &s->blocks, &s->states };

    for (int k = 0; k < 2; k++) {
        const ds_tier *t = tiers[k];
        uint32_t idle = 0, pinned_ones = 0, used = 0;
        for (uint32_t i = t->next[t->n]; i != t->n; i = t->next[i])
            if (t->prev[t->next[i]] != i || t->pins[i] || ++idle > t->n)
                return "host memory: the list of buffers is broken";
        for (uint32_t i = 0; i < t->n; i++) {
            uint32_t pins = 0;
            for (uint32_t p = 0; p < s->n_tickets; p++) {
                const pinned *x = &s->tickets[p];
                for (uint32_t b = 0; x->ticket && k == 0 && b < x->n; b++)
                    pins += x->got[b].result == DS_STORE_OK && x->got[b].buffer == i;
                pins += x->ticket && k == 1 && x->state.result == DS_STORE_OK && x->state.buffer == i;
            }
            if (pins != t->pins[i])
                return "host memory: a buffer's pins aren't those of the tickets";
            pinned_ones += pins != 0;
            used += t->keys.used[i];
            if (t->keys.used[i] && ds_keytab_find(&t->keys, &t->keys.key[i]) != i)
                return "host memory: a buffer isn't found by its key";
        }
        if (idle + pinned_ones != t->n || used != t->n_used)
            return "host memory: buffers are lost";
    }
    return NULL;
}
