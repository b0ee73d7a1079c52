#include <string.h>

#include "engine/engine_internal.h"

void ds_eng_hist_add(ds_gen_hist *h, uint64_t us)
{
    int i = us < 2 ? 0 : 63 - __builtin_clzll(us);

    h->n++;
    h->sum_us += us;
    h->bucket[i < DS_GEN_HIST ? i : DS_GEN_HIST - 1]++;
}

void ds_eng_gauges(ds_eng_loop *e)
{
    ds_gen_stats *s = &e->turn;

    s->lost = e->lost;
    s->waiting = e->n_waiting;
    s->parked = e->n_parked;
    s->prefilling = e->n_prefilling;
    s->running = e->n_running;
    s->kv_blocks = e->blocks.n;
    s->kv_used = e->blocks.n - e->blocks.n_idle;
    s->kv_cached = e->blocks.n_cached;
    s->states = e->states.n_saved;
    s->states_used = e->states.n_pinned;
    s->slots = e->states.n_seats;
    s->slots_used = e->states.n_seats - e->states.n_free_seats;
    s->drafts_per_seq = e->spec.asked;
    memcpy(s->cost, e->cost.coef, sizeof s->cost);
    s->states_saved = e->states.saved;
    s->states_evicted = e->states.evicted;
    s->blocks_published = e->blocks.published;
    s->blocks_evicted = e->blocks.evicted;
    if (e->store && e->store->fn->stats)
        e->store->fn->stats(e->store->ctx, s);
    e->states.saved = e->states.evicted = e->blocks.published = e->blocks.evicted = 0;
}
