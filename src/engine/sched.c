/* Planning a step: who gets rows. Decode first; prompts share what the time budget leaves. */
#include <assert.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "policy/chunk.h"

_Static_assert((int)DS_CHUNK_GRID == (int)DS_KV_BLOCK_TOKENS, "chunks end where blocks end");
_Static_assert((int)DS_SPEC_MAX == (int)DS_DEV_MAX_DRAFTS, "the controller knows every draft");

/* A draft with a chance below this costs more rows than it brings tokens, at any price of a row seen so far. */
#define LEAST_CHANCE 0.1f

void ds_eng_op(ds_eng_step *st, ds_dev_op_kind kind, uint32_t src, uint32_t dst)
{
    assert(st->dev.n_ops < st->dev.cap_ops);
    st->dev.ops[st->dev.n_ops++] = (ds_dev_op){ .kind = kind, .src = src, .dst = dst };
}

uint32_t ds_eng_ops_left(const ds_eng_loop *e, const ds_eng_step *st)
{
    uint32_t used = st->dev.n_ops + e->ops_reserved;

    return used < st->dev.cap_ops ? st->dev.cap_ops - used : 0;
}

void ds_eng_after_step(ds_eng_step *st, ds_eng_after_kind kind, uint32_t what)
{
    assert(st->n_after < st->cap_after);
    st->after[st->n_after++] = (ds_eng_after){ kind, what };
}

/* Blocks for positions 0 .. end-1. On false the sample itself had to leave, or has less than it wants: it then has
 * what it had. */
static bool cover(ds_eng_loop *e, ds_eng_step *st, ds_eng_sample *s, uint32_t end)
{
    uint32_t want = ds_eng_blocks_for(end);

    assert(want <= s->cap_blocks);
    while (s->n_blocks < want) {
        uint32_t b = ds_eng_take_block(e, st);
        if (b == DS_NONE) {
            if (!ds_eng_make_room(e, s))
                return false;
            b = ds_eng_take_block(e, st);
            if (b == DS_NONE)
                return false; /* whoever leaves has rows in flight: next time */
        }
        s->blocks[s->n_blocks++] = b;
    }
    return true;
}

/* The part that decode rows have. */
static ds_dev_rows *new_row(ds_eng_loop *e, ds_eng_step *st, ds_eng_sample *s, uint32_t save)
{
    uint32_t i = st->dev.n_rows++;
    ds_dev_rows *r = &st->dev.rows[i];

    assert(i < st->dev.cap_rows);
    st->who[i] = s;
    st->save[i] = save;
    r->sample = &s->dev;
    r->blocks = s->blocks;
    r->n_blocks = s->n_blocks;
    r->slot = s->seat;
    r->save_to = save == DS_NONE ? DS_NONE : ds_states_slot(&e->states, save);
    r->drafts = 0;
    r->decode = true;
    s->busy_until = st->dev.no;
    return r;
}

/* A saved state for rows that may cross a border, unless nobody would find it. */
static uint32_t want_save(ds_eng_loop *e, ds_eng_step *st, const ds_eng_sample *s)
{
    return s->req->no_cache ? DS_NONE : ds_eng_take_state(e, st);
}

/* ---- decode ------------------------------------------------------------------------------------------------------ */

static void decode_rows(ds_eng_loop *e, ds_eng_step *st)
{
    uint32_t n = 0, drafts, left = e->o->verify_rows;
    double context = 0.0;
    int parity = st->dev.no % DS_DEV_DEPTH;

    for (uint32_t i = 0; i < e->n_running; i++) {
        if (i + PREFETCH < e->n_running)
            ds_eng_prefetch(e->running[i + PREFETCH]);
        if (e->running[i]->state == S_DECODE) {
            n++;
            context += e->running[i]->pos_max;
        }
    }
    drafts = ds_spec_choose(&e->spec, n, context, e->o->verify_rows);
    st->dev.draft_rows = drafts ? e->o->verify_rows : 0;
    st->dev.least_chance = e->spec.fixed ? 0.0f : LEAST_CHANCE;
    for (uint32_t i = 0; i < e->n_running; i++) {
        ds_eng_sample *s = e->running[i];
        uint32_t k = drafts < left ? drafts : left, limit = s->dev.limit, end, save = DS_NONE;
        ds_dev_rows *r;
        if (s->state != S_DECODE || s->pos_max + 1 >= limit)
            continue; /* its last rows may be in flight already */
        end = s->pos_max + 1 + k < limit ? s->pos_max + 1 + k : limit - 1;
        if (!cover(e, st, s, end)) {
            if (s->state != S_DECODE || !cover(e, st, s, s->pos_max + 1))
                continue;
            k = 0;
            end = s->pos_max + 1;
        }
        if (end / DS_KV_BLOCK_TOKENS > s->pos / DS_KV_BLOCK_TOKENS)
            save = want_save(e, st, s);
        r = new_row(e, st, s, save);
        r->drafts = k;
        left -= k;
        s->in_rows[parity] = end - s->pos_max;
        s->pos_max = end;
        st->n_decode++;
    }
}

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

/* Where a chunk that starts at s->pos_max must end at the latest: at the goal, where the decoder's part changes, and
 * at borders whose state is wanted. */
static uint32_t chunk_end(const ds_eng_loop *e, const ds_eng_sample *s)
{
    uint32_t end = s->goal, pos = s->pos_max, n = s->req->n_prompt;

    if (e->o->mode == DS_ENGINE_CED && pos < n && end > n)
        end = n;
    for (uint32_t i = 0; i < s->n_snap; i++)
        if (s->snap[i] > pos && s->snap[i] < end)
            end = s->snap[i];
    return end;
}

static bool wants_state_at(const ds_eng_sample *s, uint32_t pos)
{
    for (uint32_t i = 0; i < s->n_snap; i++)
        if (s->snap[i] == pos)
            return true;
    return false;
}

/* The ids in front of the first replayed row: nothing else remembers them. */
static void tokens_before(const ds_eng_loop *e, const ds_eng_sample *s, ds_dev_rows *r)
{
    const ds_eng_request *q = s->req;

    r->n_before = r->pos < e->dev->lookback ? r->pos : e->dev->lookback;
    for (uint32_t i = 0; i < r->n_before; i++) {
        uint32_t p = r->pos - r->n_before + i;
        r->before[i] = p < q->n_prompt && q->embedding && q->embedding[p] ? -1 : ds_eng_token(s, p);
    }
}

/* Rows of a prompt whose own log-probabilities are wanted. */
static bool wants_all_logits(const ds_eng_sample *s)
{
    return s->dev.prompt_lp && s->pos_max < s->req->n_prompt;
}

static void prompt_rows(ds_eng_loop *e, ds_eng_step *st, ds_eng_sample *s, uint32_t n)
{
    const ds_eng_request *q = s->req;
    uint32_t pos = s->pos_max, end = pos + n, prompt = q->n_prompt, save = DS_NONE;
    ds_dev_rows *r;

    if (pos < prompt && end > prompt) /* prompt and output lie in two arrays */
        end = prompt;
    n = end - pos;
    if (end % DS_KV_BLOCK_TOKENS == 0 && wants_state_at(s, end))
        save = want_save(e, st, s);
    r = new_row(e, st, s, save);
    r->decode = false;
    r->pos = pos;
    r->n = n;
    r->tail = r->n_before = DS_NONE;
    r->dec_win = 0;
    r->tokens = pos < prompt ? q->prompt + pos : s->out + (pos - prompt);
    r->image = pos < prompt && q->embedding ? q->embedding + pos : NULL;
    r->enc_win = s->enc_win;
    r->store_from = s->store_from;
    r->dec_from = pos;
    r->all_logits = wants_all_logits(s);
    if (e->o->mode == DS_ENGINE_CED && pos < prompt && !q->prompt_lp) {
        bool final = end == (s->goal < prompt ? s->goal : prompt);
        r->tail = s->tail;
        r->dec_from = !final ? end : s->dev.dec_start < end ? s->dev.dec_start : end;
        r->dec_win = final ? r->dec_from : 0;
    }
    if (s->replay_first)
        tokens_before(e, s, r);
    s->replay_first = false;
    s->in_rows[st->dev.no % DS_DEV_DEPTH] = n;
    s->pos_max = end;
    st->n_prompt++;
    if (e->o->mode == DS_ENGINE_CED && s->tail != DS_NONE && end >= (s->goal < prompt ? s->goal : prompt)) {
        ds_eng_after_step(st, AFTER_FREE_TAIL, s->tail);
        s->tail = DS_NONE;
    }
    r->draw = end == s->goal && s->n_out == 0 && !s->fork;
    r->begin = end < s->goal || r->draw ? -1 : ds_eng_token(s, end);
}

static void all_prompt_rows(ds_eng_loop *e, ds_eng_step *st)
{
    ds_chunk c = { .cost = &e->cost, .budget_us = e->o->target_tbt_us, .alone = st->n_decode == 0, .first = true };
    uint32_t room = e->o->step_tokens - st->n_decode, kept = 0, logits_room = DS_DEV_PROMPT_LOGITS;

    if (e->n_prefilling == 0)
        return;
    for (uint32_t i = 0; i < st->dev.n_rows; i++)
        ds_cost_add(&c.work, 1.0 + st->dev.rows[i].drafts, st->who[i]->pos_max);
    for (uint32_t i = 0; i < e->n_prefilling; i++) {
        ds_eng_sample *s = e->prefilling[i];
        if (s->state == S_PROMPT && s->pos_max < s->goal && st->dev.n_rows < st->dev.cap_rows) {
            bool all_logits = wants_all_logits(s);
            uint32_t n;
            c.pos = s->pos_max;
            c.most = chunk_end(e, s) - c.pos;
            if (c.most > room)
                c.most = room;
            if (all_logits && c.most > logits_room)
                c.most = logits_room;
            n = ds_chunk_rows(&c);
            if (n > 0) {
                prompt_rows(e, st, s, n);
                ds_cost_add(&c.work, s->pos_max - c.pos, c.pos);
                room -= s->pos_max - c.pos;
                logits_room -= all_logits ? s->pos_max - c.pos : 0;
                c.first = false;
            }
        }
        if (s->state == S_PROMPT && s->pos_max == s->goal && !s->fork)
            s->state = S_DECODE;
        if (s->state == S_PROMPT)
            e->prefilling[kept++] = s;
    }
    e->n_prefilling = kept;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* The prompt of a request with several samples is done: the others get its blocks and its state. Operations come
 * before rows, so this sees the state as the prompt left it, and sample 0 goes on in the same step. */
static void fork_samples(ds_eng_loop *e, ds_eng_step *st, ds_eng_sample *s)
{
    ds_eng_request *r = s->req;
    uint32_t n = ds_eng_blocks_for(s->goal), state = s->fork_state;

    assert(s->pos == s->goal && n == s->n_blocks && state != DS_NONE);
    ds_eng_op(st, DS_DEV_COPY_SLOT, s->seat, ds_states_slot(&e->states, state));
    s->busy_until = st->dev.no;
    for (uint32_t k = 1; k < r->n_samples; k++) {
        ds_eng_sample *c = &r->samples[k];
        if (c->state != S_HELD)
            continue;
        memcpy(c->blocks, s->blocks, n * sizeof *c->blocks);
        for (uint32_t i = 0; i < n; i++)
            ds_blocks_ref(&e->blocks, c->blocks[i]);
        c->n_blocks = n;
        c->n_published = s->n_published;
        c->pos = c->pos_max = s->goal;
        c->hit = s->hit;
        c->replayed = 0;
        c->approx = s->approx;
        c->shared_partial = s->goal % DS_KV_BLOCK_TOKENS != 0;
        c->parked = state;
        ds_states_pin(&e->states, state);
        e->n_parked++;
        c->first_hit = s->first_hit;
        c->first_hit_pos = s->first_hit_pos;
        ds_eng_enqueue(e, c);
    }
    ds_eng_after_step(st, AFTER_UNPIN, state);
    s->fork_state = DS_NONE;
    s->fork = false;
    r->fork_pending = false;
    s->state = S_DECODE;
}

bool ds_eng_plan_step(ds_eng_loop *e, uint64_t now_us)
{
    ds_eng_step *st = &e->step[(e->submitted + 1) % DS_DEV_DEPTH];
    uint64_t begin = ds_eng_now_ns(e->o);

    st->dev.no = e->submitted + 1;
    st->dev.n_ops = st->dev.n_rows = st->n_after = st->n_decode = st->n_prompt = 0;
    if (e->store) {
        ds_eng_take_arrivals(e, st);
        ds_eng_plan_saves(e, st);
    }
    if (e->exports)
        ds_eng_plan_exports(e, st);
    ds_eng_settle(e, st);
    for (uint32_t i = 0; i < e->n_running; i++) {
        ds_eng_sample *s = e->running[i];
        if (s->state == S_PROMPT && s->fork && s->pos == s->goal)
            fork_samples(e, st, s);
    }
    ds_eng_admit(e, st, now_us);
    decode_rows(e, st);
    all_prompt_rows(e, st);
    e->turn.host_plan_ns += ds_eng_now_ns(e->o) - begin;
    if (st->dev.n_ops + st->dev.n_rows == 0)
        return false;
    st->dev.after_work = !e->was_empty;
    e->was_empty = false;
    e->submitted++;
    e->dev->fn->submit(e->dev, &st->dev);
    return true;
}
