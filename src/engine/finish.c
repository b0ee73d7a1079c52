/* What a step's results mean: tokens to requests, full blocks and states to the cache, ends. */
#include <assert.h>
#include <string.h>

#include "engine/engine_internal.h"

void ds_eng_mark(ds_eng_loop *e, ds_eng_sample *s)
{
    if (s->dirty)
        return;
    assert(e->n_dirty < e->cap_dirty);
    s->dirty = true;
    e->dirty[e->n_dirty++] = s;
}

void ds_eng_gone(ds_eng_loop *e, ds_eng_sample *s)
{
    ds_eng_request *r = s->req;

    s->state = S_GONE;
    ds_eng_drop_import(s);
    ds_eng_export_gone(e, r);
    e->n_live--;
    if (++r->n_gone == r->n_samples)
        e->n_deadlines -= r->deadline_us != 0;
    ds_eng_mark(e, s);
}

/* Samples that wait for this one's prompt have to go on their own. */
static void free_held(ds_eng_loop *e, ds_eng_request *r)
{
    if (!r->fork_pending)
        return;
    r->fork_pending = false;
    for (uint32_t k = 1; k < r->n_samples; k++)
        if (r->samples[k].state == S_HELD)
            ds_eng_enqueue(e, &r->samples[k]);
}

void ds_eng_end(ds_eng_loop *e, ds_eng_sample *s, ds_end_reason reason, uint64_t now_us)
{
    ds_event *ev = &s->end_event;

    if (s->ended)
        return;
    s->ended = true;
    atomic_store_explicit(&s->dev.stopped, true, memory_order_relaxed);
    ev->kind = DS_EV_END;
    ev->sample = s->index;
    ev->request = s->req->id;
    ev->cookie = s->req->cookie;
    ev->end.reason = reason;
    ev->end.n_tokens = s->n_out;
    ev->end.completion_tokens = s->n_out + (reason == DS_ENDED_STOP_ID && !s->req->report_stop_id);
    ev->end.drafted = s->drafted;
    ev->end.accepted = s->accepted;
    ev->end.prefill_us = s->first_us ? s->first_us - s->admit_us : s->admitted ? now_us - s->admit_us : 0;
    ev->end.decode_us = s->first_us ? now_us - s->first_us : 0;
    e->turn.ended[reason]++;
    ds_eng_hist_add(&e->turn.total, now_us - s->req->added_us);
    ds_eng_mark(e, s);
    if (s->index == 0)
        free_held(e, s->req);
    ds_eng_let_go(e, s);
    if (s->state == S_WAITING || s->state == S_HELD) {
        if (s->state == S_WAITING)
            ds_eng_dequeue(e, s);
        ds_eng_release(e, s);
        ds_eng_gone(e, s);
        return;
    }
    if (s->state == S_LEAVING && s->then == THEN_PARKED) { /* its copy is on the device */
        s->then = THEN_END;
        return;
    }
    s->state = S_LEAVING;
    s->then = THEN_END;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* Runs the bytes of a token through all stop strings. True: one is complete; which and how many bytes of the text it
 * cuts are in the end event. */
static bool stop_string(ds_eng_loop *e, ds_eng_sample *s, ds_token token)
{
    const ds_eng_request *r = s->req;
    size_t n, i;
    const char *bytes = e->o->token_bytes(e->o->ctx, token, &n);
    uint32_t best = DS_NONE, held = 0;

    for (i = 0; i < n && best == DS_NONE; i++)
        for (uint32_t k = 0; k < r->n_stop; k++) {
            const char *p = r->stop + r->stop_at[k];
            const uint16_t *fail = r->stop_fail + r->stop_at[k];
            uint32_t len = r->stop_at[k + 1] - r->stop_at[k], m = s->matched[k];
            while (m > 0 && p[m] != bytes[i])
                m = fail[m - 1];
            m += p[m] == bytes[i];
            if (m == len) {
                if (s->n_out > r->min_tokens && (best == DS_NONE || len > r->stop_at[best + 1] - r->stop_at[best]))
                    best = k;
                m = fail[m - 1];
            }
            s->matched[k] = (uint16_t)m;
        }
    if (best != DS_NONE) {
        s->end_event.end.stop = best;
        s->end_event.end.cut_bytes = r->stop_at[best + 1] - r->stop_at[best] + (uint32_t)(n - i);
        s->held[s->n_out - 1] = 0;
        return true;
    }
    for (uint32_t k = 0; k < r->n_stop; k++)
        held = s->matched[k] > held ? s->matched[k] : held;
    s->held[s->n_out - 1] = (uint16_t)held;
    return false;
}

static bool is_stop_id(const ds_eng_sample *s, ds_token token)
{
    for (uint32_t i = 0; i < s->dev.n_stop_ids; i++)
        if (s->dev.stop_ids[i] == token)
            return true;
    return false;
}

/* A text's last token is reported before its end, and an engine may go between the two: then nothing is left to
 * compute here. The order of the ends is that of take_tokens. */
void ds_eng_take_back(ds_eng_loop *e, ds_eng_sample *s, uint64_t now_us)
{
    uint32_t n = s->n_out;
    ds_token last = s->out[n - 1];
    bool stopped = false;

    if (s->req->report_stop_id && is_stop_id(s, last)) {
        s->end_event.end.stop_id = last;
        ds_eng_end(e, s, DS_ENDED_STOP_ID, now_us);
        return;
    }
    if (s->held)
        for (s->n_out = 1; s->n_out <= n; s->n_out++)
            stopped = stop_string(e, s, s->out[s->n_out - 1]);
    s->n_out = n;
    if (stopped)
        ds_eng_end(e, s, DS_ENDED_STOP_STRING, now_us);
    else if (n == s->cap_out)
        ds_eng_end(e, s, DS_ENDED_LENGTH, now_us);
}

static void take_tokens(ds_eng_loop *e, ds_eng_sample *s, const ds_dev_out *out, uint64_t now_us)
{
    for (uint32_t i = 0; i < out->n_tokens; i++) {
        ds_token token = out->token[i];
        uint64_t since = s->n_out ? s->last_us : s->req->added_us;
        if (!s->first_us)
            s->first_us = now_us;
        bool stop = is_stop_id(s, token);
        if (stop && !s->req->report_stop_id) {
            s->end_event.end.stop_id = token;
            ds_eng_end(e, s, DS_ENDED_STOP_ID, now_us);
            return;
        }
        assert(s->n_out < s->cap_out);
        if (s->lp)
            s->lp[s->n_out] = out->logprob[i];
        if (s->top)
            memcpy(s->top + (size_t)s->n_out * s->dev.n_top, out->top + i * DS_DEV_MAX_TOP, s->dev.n_top * sizeof *s->top);
        s->out[s->n_out++] = token;
        e->turn.output_tokens++;
        ds_eng_hist_add(s->n_out == 1 ? &e->turn.ttft : &e->turn.tbt, now_us - since);
        s->last_us = now_us;
        if (stop) {
            s->end_event.end.stop_id = token;
            ds_eng_end(e, s, DS_ENDED_STOP_ID, now_us);
            return;
        }
        if (s->held && stop_string(e, s, token)) {
            e->turn.dropped_tokens += out->n_tokens - 1 - i;
            ds_eng_end(e, s, DS_ENDED_STOP_STRING, now_us);
            return;
        }
    }
    if (out->n_tokens > 0)
        ds_eng_mark(e, s);
    if (out->rc != DS_OK) {
        e->lost = e->lost || out->rc == DS_E_DEVICE;
        s->end_event.end.rc = out->rc;
        ds_eng_end(e, s, out->rc == DS_E_DEVICE ? DS_ENDED_LOST : DS_ENDED_FAILED, now_us);
    } else if (out->ended) {
        ds_eng_end(e, s, DS_ENDED_LENGTH, now_us);
    }
}

/* ---- the cache --------------------------------------------------------------------------------------------------- */

static const ds_key *key_before(const ds_eng_sample *s, uint32_t i)
{
    return i > 0 ? &s->keys[i - 1] : &s->req->ns;
}

static void block_key(ds_eng_sample *s, uint32_t i)
{
    ds_token tokens[DS_KV_BLOCK_TOKENS];
    uint32_t pos = i * DS_KV_BLOCK_TOKENS;

    for (uint32_t k = 0; k < DS_KV_BLOCK_TOKENS; k++)
        tokens[k] = ds_eng_token(s, pos + k);
    ds_chain_next(&s->keys[i], key_before(s, i), tokens, pos, s->req->spans, s->req->n_spans);
}

void ds_eng_next_key(ds_eng_sample *s)
{
    block_key(s, s->n_keys);
    s->n_keys++;
}

/* Blocks whose last token has been committed get their keys. */
static void publish_blocks(ds_eng_loop *e, ds_eng_sample *s)
{
    for (; (s->n_published + 1) * DS_KV_BLOCK_TOKENS <= s->pos && !s->req->no_cache; s->n_published++) {
        if (s->n_keys == s->n_published)
            ds_eng_next_key(s);
        if (s->n_published < s->n_blocks && ds_blocks_publish(&e->blocks, s->blocks[s->n_published], &s->keys[s->n_published], s->approx))
            ds_eng_want_saved(e, &(ds_eng_save){ .at = s->blocks[s->n_published],
                                                 .key = s->keys[s->n_published],
                                                 .parent = *key_before(s, s->n_published),
                                                 .depth = s->n_published });
    }
}

static void want_state_saved(ds_eng_loop *e, const ds_eng_sample *s, uint32_t state, uint32_t border)
{
    ds_eng_want_saved(e, &(ds_eng_save){ .is_state = true,
                                         .at = state,
                                         .key = s->keys[border - 1],
                                         .parent = *key_before(s, border - 1),
                                         .depth = border - 1,
                                         .needed = ds_eng_is_strict(e, s) });
}

/* A state is saved at each border that decoding crosses, and each is as large as a dozen blocks: only the text's last
 * one, which its next turn goes on from, is worth a place in a store. */
static void want_last_saved(ds_eng_loop *e, const ds_eng_sample *s, uint64_t now_us)
{
    uint32_t border = s->pos / DS_KV_BLOCK_TOKENS, state;

    if (e->saves.cap == 0 || s->req->no_cache || border == 0 || border > s->n_keys || border * DS_KV_BLOCK_TOKENS <= s->req->n_prompt)
        return;
    state = ds_states_find(&e->states, &s->keys[border - 1], now_us);
    if (state != DS_NONE)
        want_state_saved(e, s, state, border);
}

static void name_state(ds_eng_loop *e, ds_eng_sample *s, uint32_t state, const ds_dev_out *out, bool decode, uint64_t now_us)
{
    uint32_t border = out->pos / DS_KV_BLOCK_TOKENS;

    if (!out->skipped && out->saved && border > 0 && border * DS_KV_BLOCK_TOKENS <= s->pos && border <= s->n_keys) {
        bool complete = e->o->mode == DS_ENGINE_EXACT || decode;
        ds_states_name(&e->states, state, &s->keys[border - 1],
                       !complete                       ? DS_NONE
                       : e->o->mode == DS_ENGINE_EXACT ? 0
                                                       : s->dev.dec_start,
                       s->approx, now_us);
        if (!decode && e->states.keys.used[state])
            want_state_saved(e, s, state, border);
    }
    ds_states_unpin(&e->states, state);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static void finish_rows(ds_eng_loop *e, ds_eng_step *st, uint32_t i, uint64_t now_us)
{
    ds_eng_sample *s = st->who[i];
    const ds_dev_rows *r = &st->dev.rows[i];
    const ds_dev_out *out = &st->dev.out[i];
    uint32_t committed;
    bool had_ended = s->ended;

    s->in_rows[st->dev.no % DS_DEV_DEPTH] = 0;
    if (out->skipped) {
        assert(r->decode || s->ended);
        if (st->save[i] != DS_NONE)
            ds_states_unpin(&e->states, st->save[i]);
        return;
    }
    if (!r->decode)
        e->turn.computed_tokens += r->n;
    for (uint32_t k = 0; k < out->drafted; k++) {
        e->turn.drafted[k]++;
        e->turn.kept[k] += k + 1 < out->n_tokens;
    }
    if (r->decode) {
        uint32_t kept = out->n_tokens ? out->n_tokens - 1 : 0;
        s->drafted += out->drafted;
        s->accepted += kept;
        ds_spec_learn_row(&e->spec, out->drafted, kept);
    }
    if (s->ended)
        e->turn.dropped_tokens += out->n_tokens;
    else
        take_tokens(e, s, out, now_us);
    committed = s->dev.n_prompt + s->n_out;
    if (out->rc == DS_OK || r->decode)
        s->pos = out->pos < committed ? out->pos : committed;
    if (s->dev.prompt_lp && !s->scored && s->pos + 1 >= s->req->n_prompt) {
        s->scored = true;
        ds_eng_mark(e, s);
    }
    if (r->decode || (r->draw && out->n_tokens == 0)) {
        s->pos_max = s->pos;
        for (int k = 0; k < DS_DEV_DEPTH; k++)
            s->pos_max += s->in_rows[k];
        if (s->pos_max > s->dev.limit - 1)
            s->pos_max = s->dev.limit - 1;
    }
    if (out->rc == DS_OK)
        publish_blocks(e, s);
    if (st->save[i] != DS_NONE)
        name_state(e, s, st->save[i], out, r->decode, now_us);
    if (s->ended && !had_ended)
        want_last_saved(e, s, now_us);
}

void ds_eng_finish_step(ds_eng_loop *e, ds_eng_step *st, uint64_t now_us)
{
    uint64_t begin = ds_eng_now_ns(e->o);
    ds_cost_work work = { st->dev.q, st->dev.qc, st->dev.qq };

    assert(st->dev.no == e->done + 1);
    e->done = st->dev.no;
    for (uint32_t i = 0; i < st->dev.n_rows; i++) {
        if (i + PREFETCH < st->dev.n_rows)
            ds_eng_prefetch(st->who[i + PREFETCH]);
        finish_rows(e, st, i, now_us);
    }
    for (uint32_t i = 0; i < st->n_after; i++)
        switch (st->after[i].kind) {
        case AFTER_UNPIN:
            ds_states_unpin(&e->states, st->after[i].what);
            break;
        case AFTER_UNREF:
            ds_blocks_unref(&e->blocks, st->after[i].what);
            break;
        case AFTER_FREE_TAIL:
            e->tail[e->n_free_tails++] = st->after[i].what;
            break;
        case AFTER_HANDOFF:
            ds_eng_handoff_done(e, st->dev.ops_rc == DS_OK);
            break;
        case AFTER_DROP:
            ds_eng_end_fetch(e, st->after[i].what);
            break;
        }
    ds_eng_saves_done(e, st);
    e->turn.steps++;
    e->turn.step_rows += (uint64_t)st->dev.q;
    e->turn.device_busy_ns += st->dev.run_ns;
    e->turn.device_idle_ns += st->dev.idle_ns;
    e->turn.draft_ns += st->dev.draft_ns;
    if (st->dev.run_ns > 0 && work.q > 0.0 && !st->dev.cut) {
        double us = (double)st->dev.run_ns / 1e3;
        ds_eng_hist_add(st->n_prompt ? &e->turn.step_prefill : &e->turn.step_decode, st->dev.run_ns / 1000);
        ds_cost_learn(&e->cost, &work, us);
        if (st->n_prompt == 0)
            ds_spec_learn_step(&e->spec, &work, us, (double)st->dev.draft_ns / 1e3, st->dev.draft_ns ? st->n_decode : 0);
    }
    e->turn.host_finish_ns += ds_eng_now_ns(e->o) - begin;
}
