/* From the store to the device: what a waiting sample's prefix has there comes into blocks and a saved state that are
 * held for it, and is then a hit like any other. */
#include <assert.h>

#include "engine/engine_internal.h"

enum { RESTS = 4 }; /* times the deadline */

/* The sample gives up what came for it, or is about to. */
void ds_eng_let_go(ds_eng_loop *e, ds_eng_sample *s)
{
    if (!s->holds)
        return;
    if (s->state == S_FETCHING) {
        ds_fetch *f = &e->fetches.f[s->fetch];
        e->store->fn->drop(e->store->ctx, f->ticket);
        for (uint32_t i = 0; i < f->n; i++)
            ds_blocks_miss(&e->blocks, f->block[i]);
        if (f->state != DS_NONE)
            ds_states_unpin(&e->states, f->state);
        e->fetches.n_under_way--;
        ds_fetches_give(&e->fetches, f);
        s->state = S_WAITING;
    }
    while (s->n_blocks > 0)
        ds_blocks_unref(&e->blocks, s->blocks[--s->n_blocks]);
    if (s->held_state != DS_NONE)
        ds_states_unpin(&e->states, s->held_state);
    s->held_state = DS_NONE;
    s->holds = false;
    e->n_holding--;
}

void ds_eng_end_fetch(ds_eng_loop *e, uint32_t index)
{
    ds_fetch *f = &e->fetches.f[index];

    e->store->fn->drop(e->store->ctx, f->ticket);
    ds_fetches_give(&e->fetches, f);
}

/* What was asked for and isn't: an approximate block for a sample that mustn't rest on a replay. */
static void refuse_wrong(const ds_fetch *f, ds_store_got *got)
{
    if (got->result == DS_STORE_OK && f->exact && got->approx)
        got->result = DS_STORE_GONE;
}

static void note_time(ds_eng_loop *e, const ds_fetch *f)
{
    ds_eng_hist_add(&e->turn.fetch, e->now_us + 1000ull * e->o->fetch_ms - f->deadline_us);
}

/* Operations that bring what has come; it is found by others from now on, for whoever reads it does so behind them.
 * The buffers are read until the step is done. */
static void plan_loads(ds_eng_loop *e, ds_eng_step *st, ds_fetch *f)
{
    ds_eng_sample *s = f->who;
    uint32_t kept = 0, came = 0, missed = 0, busy = 0;

    note_time(e, f);
    for (uint32_t i = 0; i < f->n; i++) {
        ds_store_got *got = &f->got[i];
        refuse_wrong(f, got);
        if (got->result == DS_STORE_OK) {
            ds_eng_op(st, DS_DEV_LOAD_BLOCK, got->buffer, f->block[i]);
            ds_blocks_arrive(&e->blocks, f->block[i], &f->key[i], got->approx);
            s->n_fetched++;
            s->n_fetched_far += got->durable;
            came++;
            continue;
        }
        missed++;
        busy += got->result == DS_STORE_BUSY;
        e->turn.fetch_missed[got->result]++;
        ds_blocks_miss(&e->blocks, f->block[i]);
        for (uint32_t k = 0; k < s->n_blocks; k++)
            if (s->blocks[k] == f->block[i])
                s->blocks[k] = DS_NONE;
        ds_blocks_unref(&e->blocks, f->block[i]);
    }
    for (uint32_t k = 0; missed && k < s->n_blocks; k++)
        if (s->blocks[k] != DS_NONE)
            s->blocks[kept++] = s->blocks[k];
    if (missed)
        s->n_blocks = kept;
    if (f->with_state) {
        refuse_wrong(f, &f->got_state);
        if (f->got_state.result == DS_STORE_OK) {
            ds_eng_op(st, DS_DEV_LOAD_SLOT, f->got_state.buffer, ds_states_slot(&e->states, f->state));
            ds_states_name(&e->states, f->state, &f->state_key, f->got_state.dec_start, f->got_state.approx, e->now_us);
            s->held_state = f->state;
            came++;
        } else {
            ds_states_unpin(&e->states, f->state);
            missed++;
            busy += f->got_state.result == DS_STORE_BUSY;
            e->turn.fetch_missed[f->got_state.result]++;
        }
    }
    e->turn.fetched_blocks += came - (f->with_state && f->got_state.result == DS_STORE_OK);
    e->turn.fetched_states += f->with_state && f->got_state.result == DS_STORE_OK;
    s->fetch = DS_NONE;
    s->state = S_WAITING;
    f->who = NULL;
    e->fetches.n_under_way--;
    if (came) {
        ds_eng_after_step(st, AFTER_DROP, ds_fetches_index(&e->fetches, f));
    } else {
        ds_eng_end_fetch(e, ds_fetches_index(&e->fetches, f));
        s->fetch_seen++; /* this one had no buffers to give back */
    }
    /* What the store had no buffer for may come once it has; any other miss would come again. */
    s->fetch_over = missed > busy;
    s->fetch_waits = busy > 0;
    if (came || !s->fetch_until_us)
        s->fetch_until_us = e->now_us + 1000ull * e->o->fetch_ms;
}

void ds_eng_fetch(ds_eng_loop *e, ds_eng_step *st, ds_eng_sample *s, const ds_eng_prefix *p)
{
    ds_fetch *f = ds_fetches_take(&e->fetches);
    uint32_t at = 0;

    assert(!s->holds && s->n_blocks == 0 && s->state == S_WAITING);
    /* All that is there is held before the first block is taken: taking one must not take these. */
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t b = ds_eng_device_block(e, s, i, p->exact);
        s->blocks[i] = b;
        if (b != DS_NONE)
            ds_blocks_ref(&e->blocks, b);
        else
            f->key[at++] = s->keys[i];
    }
    s->n_blocks = p->n;
    s->holds = true;
    e->n_holding++;
    s->fetch = ds_fetches_index(&e->fetches, f);
    s->state = S_FETCHING;
    e->fetches.n_under_way++;
    f->who = s;
    f->n = at;
    f->exact = p->exact;
    f->with_state = p->fetch_state;
    f->state = DS_NONE;
    f->deadline_us = e->now_us + 1000ull * e->o->fetch_ms;
    if (p->fetch_state)
        f->state_key = s->keys[p->n - 1];
    if (p->state != DS_NONE)
        ds_states_pin(&e->states, s->held_state = p->state);
    s->fetch_seen = e->n_kicks + e->fetches.n_given;
    e->turn.fetches++;
    e->store->fn->fetch(e->store->ctx, &(ds_store_want){ .ticket = f->ticket,
                                                         .deadline_ns = 1000 * f->deadline_us,
                                                         .blocks = f->key,
                                                         .n_blocks = f->n,
                                                         .state = f->with_state ? &f->state_key : NULL,
                                                         .exact = f->exact });
    for (uint32_t i = 0, k = 0; i < p->n; i++) {
        if (s->blocks[i] != DS_NONE)
            continue;
        s->blocks[i] = f->block[k] = ds_eng_take_block(e, st);
        assert(s->blocks[i] != DS_NONE);
        ds_blocks_expect(&e->blocks, s->blocks[i], &f->key[k++]);
    }
    if (p->fetch_state) {
        f->state = ds_eng_take_state(e, st);
        assert(f->state != DS_NONE);
    }
    if (ds_fetches_answered(&e->fetches, f))
        plan_loads(e, st, f);
}

/* Late: whatever comes now comes too late, and the sample does without. A store that is late once has a rest, so that
 * not every request of many waits for it in turn. */
static void give_up(ds_eng_loop *e, ds_eng_sample *s)
{
    const ds_fetch *f = &e->fetches.f[s->fetch];

    note_time(e, f);
    e->turn.fetch_missed[DS_STORE_LATE] += f->n + f->with_state;
    ds_eng_let_go(e, s);
    s->fetch_over = true;
    e->store_rest_us = e->now_us + RESTS * 1000ull * e->o->fetch_ms;
}

void ds_eng_take_arrivals(ds_eng_loop *e, ds_eng_step *st)
{
    for (uint32_t i = 0; i < e->fetches.n && e->fetches.n_under_way > 0; i++) {
        ds_fetch *f = &e->fetches.f[i];
        if (!f->ticket || !f->who)
            continue;
        if (ds_fetches_answered(&e->fetches, f)) {
            if (ds_eng_ops_left(e, st) >= f->n + 1)
                plan_loads(e, st, f);
        } else if (e->now_us >= f->deadline_us) {
            give_up(e, f->who);
        }
    }
}
