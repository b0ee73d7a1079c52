/* Making a request: every value checked, every byte taken, before the loop hears of it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/engine_internal.h"

static ds_sampling sampling_of(const ds_gen_request *q, uint32_t sample)
{
    ds_sampling s = q->sampling;

    s.seed = ds_sample_seed(s.seed, sample);
    return s;
}

/* A hit must give the bits of a cold run. */
static bool wants_same_bits(const ds_gen_request *q)
{
    if (q->replay == DS_REPLAY_AUTO)
        return q->sampling.seeded || q->sampling.temperature == 0.0 || q->logprobs;
    return q->replay == DS_REPLAY_NEVER;
}

static ds_rc check_images(const ds_gen_request *q, ds_err *err)
{
    uint32_t end = 0;

    for (size_t i = 0; i < q->n_images; i++) {
        const ds_gen_image *m = &q->images[i];
        if (m->n == 0 || m->pos < end || m->n > q->n_prompt || m->pos > q->n_prompt - m->n || !m->embedding)
            return ds_fail(err, DS_E_ARG,
                           "image %zu: positions %u .. %llu of a prompt of %u tokens: out of range, overlapping or without embedding", i,
                           m->pos, (unsigned long long)m->pos + m->n, q->n_prompt);
        end = m->pos + m->n;
    }
    return DS_OK;
}

static bool in_image(const ds_gen_request *q, uint32_t pos)
{
    for (size_t i = 0; i < q->n_images; i++)
        if (pos >= q->images[i].pos && pos - q->images[i].pos < q->images[i].n)
            return true;
    return false;
}

static ds_rc check(const ds_engine *e, const ds_gen_request *q, ds_err *err)
{
    uint32_t n = q->n ? q->n : 1, vocab = e->dev->vocab;
    ds_rc rc;

    if (q->n_prompt == 0 || !q->prompt)
        return ds_fail(err, DS_E_ARG, "the prompt is empty");
    if (q->n_prompt >= e->o.max_context)
        return ds_fail(err, DS_E_ARG, "the prompt has %u tokens and the context ends at %u: no room for an answer", q->n_prompt,
                       e->o.max_context);
    if (q->max_tokens == 0)
        return ds_fail(err, DS_E_ARG, "max_tokens: 0 is not at least 1");
    if (q->min_tokens > q->max_tokens)
        return ds_fail(err, DS_E_ARG, "min_tokens: %u is more than max_tokens, %u", q->min_tokens, q->max_tokens);
    if (n > e->o.max_samples)
        return ds_fail(err, DS_E_ARG, "n: %u is not within 1..%u", n, e->o.max_samples);
    if (q->priority >= N_LEVELS)
        return ds_fail(err, DS_E_ARG, "priority: %u is not within 0..%d", q->priority, N_LEVELS - 1);
    if (q->n_top > DS_DEV_MAX_TOP)
        return ds_fail(err, DS_E_ARG, "top logprobs: %u is more than %d", q->n_top, DS_DEV_MAX_TOP);
    if (q->n_prompt_top > DS_DEV_MAX_TOP)
        return ds_fail(err, DS_E_ARG, "prompt logprobs: %u is more than %d", q->n_prompt_top, DS_DEV_MAX_TOP);
    if (q->n_stop_ids > MAX_STOP_IDS || q->n_stop > MAX_STOPS)
        return ds_fail(err, DS_E_ARG, "stop: %zu strings and %zu ids: at most %d and %d", q->n_stop, q->n_stop_ids, MAX_STOPS,
                       MAX_STOP_IDS);
    for (size_t i = 0; i < q->n_stop_ids; i++)
        if (q->stop_ids[i] < 0 || (uint32_t)q->stop_ids[i] >= vocab)
            return ds_fail(err, DS_E_ARG, "stop: token id %d is outside the vocabulary (0 .. %u)", q->stop_ids[i], vocab - 1);
    if (q->n_stop && !e->o.token_bytes)
        return ds_fail(err, DS_E_ARG, "stop: this engine knows no text, only ids");
    for (size_t i = 0; i < q->n_stop; i++)
        if (q->stop[i].n == 0 || q->stop[i].n > MAX_STOP_BYTES)
            return ds_fail(err, DS_E_ARG, "stop: string %zu has %zu bytes: 1..%d", i, q->stop[i].n, MAX_STOP_BYTES);
    rc = ds_sample_check(&q->sampling, err);
    if (rc == DS_OK)
        rc = check_images(q, err);
    if (rc != DS_OK)
        return rc;
    if (q->n_output && (n > 1 || q->prompt_logprobs || q->n_output > q->max_tokens || q->n_output > e->o.max_context - q->n_prompt))
        return ds_fail(err, DS_E_ARG,
                       "output: %u tokens to go on behind: of one sample, not more than it may have, without prompt_logprobs", q->n_output);
    for (uint32_t i = 0; i < q->n_output; i++)
        if (q->output[i] < 0 || (uint32_t)q->output[i] >= vocab)
            return ds_fail(err, DS_E_ARG, "output: token id %d is outside the vocabulary (0 .. %u)", q->output[i], vocab - 1);
    for (size_t i = 0; i < q->n_bias; i++)
        if ((uint32_t)q->bias[i].id >= vocab || !isfinite(q->bias[i].bias))
            return ds_fail(err, DS_E_ARG, "logit_bias: %g for id %d: outside the vocabulary of %u, or not finite", (double)q->bias[i].bias,
                           q->bias[i].id, vocab);
    for (uint32_t i = 0; i < q->n_prompt; i++)
        if ((q->prompt[i] < 0 || (uint32_t)q->prompt[i] >= vocab) && !in_image(q, i))
            return ds_fail(err, DS_E_ARG, "prompt: token id %d at position %u is outside the vocabulary (0 .. %u)", q->prompt[i], i,
                           vocab - 1);
    return DS_OK;
}

/* Where a match of `k` bytes goes on after a byte that doesn't continue it. */
static void failure_function(uint16_t *fail, const char *s, size_t n)
{
    fail[0] = 0;
    for (size_t i = 1, k = 0; i < n; i++) {
        while (k > 0 && s[i] != s[k])
            k = fail[k - 1];
        k += s[i] == s[k];
        fail[i] = (uint16_t)k;
    }
}

static bool copy_stops(ds_eng_request *r, const ds_gen_request *q)
{
    size_t total = 0;

    for (size_t i = 0; i < q->n_stop; i++)
        total += q->stop[i].n;
    r->n_stop = (uint32_t)q->n_stop;
    if (total == 0)
        return true;
    r->stop = malloc(total);
    r->stop_fail = malloc(total * sizeof *r->stop_fail);
    if (!r->stop || !r->stop_fail)
        return false;
    for (uint32_t i = 0; i < r->n_stop; i++) {
        size_t n = q->stop[i].n;
        memcpy(r->stop + r->stop_at[i], q->stop[i].p, n);
        failure_function(r->stop_fail + r->stop_at[i], q->stop[i].p, n);
        r->stop_at[i + 1] = r->stop_at[i] + (uint32_t)n;
    }
    return true;
}

static bool copy_images(ds_eng_request *r, const ds_gen_request *q, uint32_t hidden)
{
    if (q->n_images == 0)
        return true;
    r->n_spans = q->n_images;
    r->spans = malloc(q->n_images * sizeof *r->spans);
    r->embedding = calloc(r->n_prompt, sizeof *r->embedding);
    if (!r->spans || !r->embedding)
        return false;
    for (size_t i = 0; i < q->n_images; i++) {
        const ds_gen_image *m = &q->images[i];
        r->spans[i] = (ds_kv_span){ .pos = m->pos, .n = m->n };
        memcpy(r->spans[i].digest, m->digest, sizeof m->digest);
        for (uint32_t k = 0; k < m->n; k++)
            r->embedding[m->pos + k] = m->embedding + (size_t)k * hidden;
    }
    return true;
}

static bool take_scores(ds_eng_request *r, const ds_gen_request *q)
{
    if (!q->prompt_logprobs)
        return true;
    r->prompt_lp = calloc(r->n_prompt, sizeof *r->prompt_lp);
    r->prompt_rank = calloc(r->n_prompt, sizeof *r->prompt_rank);
    if (q->n_prompt_top)
        r->prompt_top = calloc(r->n_prompt, q->n_prompt_top * sizeof *r->prompt_top);
    return r->prompt_lp && r->prompt_rank && (r->prompt_top || !q->n_prompt_top);
}

/* Ids at image positions are nobody's words. */
static void see_prompt(ds_sampler *sampler, const ds_eng_request *r)
{
    for (uint32_t i = 0; i < r->n_prompt; i++)
        if (!r->embedding || !r->embedding[i])
            ds_sampler_see_prompt(sampler, &r->prompt[i], 1);
}

static ds_rc make_sample(ds_eng_sample *s, const ds_engine *e, ds_eng_request *r, const ds_gen_request *q, uint32_t index, ds_err *err)
{
    ds_sampling so = sampling_of(q, index);
    uint32_t room = e->o.max_context - r->n_prompt, longest = q->max_tokens < room ? q->max_tokens : room, window = e->dev->window;
    ds_rc rc;

    s->req = r;
    s->index = index;
    s->cap_out = longest;
    s->borrows = q->grammar || q->n_images || e->stub;
    s->seat = s->tail = s->parked = s->fork_state = s->held_state = s->fetch = DS_NONE;
    s->level = q->priority;
    s->cap_blocks = ds_eng_blocks_for(r->n_prompt + longest);
    s->dev = (ds_dev_sample){ .rules = r->rules,
                              .grammar = q->grammar ? &r->grammar : NULL,
                              .sample = index,
                              .stop_ids = r->stop_ids,
                              .n_stop_ids = (uint32_t)q->n_stop_ids,
                              .n_prompt = r->n_prompt,
                              .limit = r->n_prompt + longest,
                              .n_top = q->logprobs ? q->n_top : 0,
                              .logprobs = q->logprobs,
                              .prompt = r->prompt,
                              .n_prompt_top = q->prompt_logprobs ? q->n_prompt_top : 0,
                              .prompt_lp = index == 0 ? r->prompt_lp : NULL,
                              .prompt_rank = r->prompt_rank,
                              .prompt_top = r->prompt_top,
                              .seed = so.seed,
                              .cookie = q->cookie,
                              .tag = q->tag };
    if (e->o.mode == DS_ENGINE_CED && !q->prompt_logprobs)
        s->dev.dec_start = r->n_prompt > window ? r->n_prompt - window : 0;
    s->blocks = calloc(s->cap_blocks, sizeof *s->blocks);
    s->keys = calloc(s->cap_blocks, sizeof *s->keys);
    s->out = calloc(longest, sizeof *s->out);
    if (q->logprobs)
        s->lp = calloc(longest, sizeof *s->lp);
    if (s->dev.n_top)
        s->top = calloc((size_t)longest * s->dev.n_top, sizeof *s->top);
    if (r->n_stop)
        s->held = calloc(longest, sizeof *s->held);
    if (r->rules)
        s->dev.tail = calloc(ds_rules_memory(r->rules) + 1, sizeof *s->dev.tail);
    if (!s->blocks || !s->keys || !s->out || (r->rules && !s->dev.tail) || (q->logprobs && !s->lp) || (s->dev.n_top && !s->top) ||
        (r->n_stop && !s->held))
        return ds_fail(err, DS_E_NOMEM, "engine: out of memory for a request of %u tokens", r->n_prompt + longest);
    if (e->stub)
        return DS_OK;
    rc = ds_sampler_create(&s->dev.sampler, e->dev->device, e->dev->vocab, &so, q->bias, q->n_bias, err);
    if (rc != DS_OK)
        return rc;
    see_prompt(s->dev.sampler, r);
    return ds_sampler_set_stops(s->dev.sampler, r->stop_ids, q->n_stop_ids, q->min_tokens, err);
}

static void prompt_keys(const ds_engine *e, ds_eng_request *r, const ds_gen_request *q)
{
    ds_key before;
    uint32_t n = r->n_prompt / DS_KV_BLOCK_TOKENS;

    if (r->no_cache)
        return;
    ds_chain_ns(&r->ns, &e->identity, q->cache_domain, q->cache_salt);
    before = r->ns;
    for (uint32_t i = 0; i < n; i++) {
        ds_chain_next(&r->samples[0].keys[i], &before, r->prompt + (size_t)i * DS_KV_BLOCK_TOKENS, i * DS_KV_BLOCK_TOKENS, r->spans,
                      r->n_spans);
        before = r->samples[0].keys[i];
    }
    for (uint32_t k = 0; k < r->n_samples; k++) {
        if (k > 0)
            memcpy(r->samples[k].keys, r->samples[0].keys, n * sizeof(ds_key));
        r->samples[k].n_keys = n;
    }
}

void ds_eng_go_on_behind(ds_eng_request *r, uint32_t n_out)
{
    ds_eng_sample *s = &r->samples[0];
    uint32_t memory = r->rules ? ds_rules_memory(r->rules) : 0, kept = n_out < memory ? n_out : memory;

    for (uint32_t i = 0; i < n_out && s->dev.sampler; i++)
        ds_sampler_see_output(s->dev.sampler, s->out[i]);
    if (kept)
        memcpy(s->dev.tail, s->out + n_out - kept, kept * sizeof *s->dev.tail);
    s->dev.n_tail = kept;
    s->n_out = s->mail.out = s->mail.read_out = n_out;
    s->admitted = n_out > 0;
    s->last_us = s->admit_us = r->added_us;
    s->start_event = (ds_event){ .kind = DS_EV_START, .cookie = r->cookie, .start = { .n_prompt = r->n_prompt } };
}

ds_rc ds_eng_request_create(ds_eng_request **out, const ds_engine *e, const ds_gen_request *q, ds_err *err)
{
    ds_rc rc = check(e, q, err);
    ds_eng_request *r;

    *out = NULL;
    if (rc != DS_OK)
        return rc;
    r = ds_calloc_aligned(1, sizeof *r);
    if (!r)
        return ds_fail(err, DS_E_NOMEM, "engine: out of memory");
    r->cookie = q->cookie;
    r->n_prompt = q->n_prompt;
    r->n_samples = q->n ? q->n : 1;
    r->no_cache = q->no_cache || q->prompt_logprobs || e->o.no_prefix_cache;
    r->reproducible = wants_same_bits(q);
    r->report_stop_id = q->report_stop_id;
    r->min_tokens = q->min_tokens;
    r->level = q->priority;
    r->added_us = ds_eng_now_us(&e->o);
    r->deadline_us = q->deadline_us ? r->added_us + q->deadline_us : 0;
    if (q->grammar)
        r->grammar = *q->grammar;
    if (q->n_stop_ids)
        memcpy(r->stop_ids, q->stop_ids, q->n_stop_ids * sizeof *r->stop_ids);
    r->prompt = malloc(q->n_prompt * sizeof *r->prompt);
    r->samples = ds_calloc_aligned(r->n_samples, sizeof *r->samples);
    if (!r->prompt || !r->samples || !copy_stops(r, q) || !copy_images(r, q, e->hidden) || !take_scores(r, q)) {
        ds_eng_request_free(r);
        return ds_fail(err, DS_E_NOMEM, "engine: out of memory for a request of %u tokens", q->n_prompt);
    }
    memcpy(r->prompt, q->prompt, q->n_prompt * sizeof *r->prompt);
    if (!e->stub) /* a stub's tokens are given */
        rc = ds_rules_create(&r->rules, q, e->dev->vocab, err);
    for (uint32_t i = 0; i < r->n_samples && rc == DS_OK; i++)
        rc = make_sample(&r->samples[i], e, r, q, i, err);
    if (rc != DS_OK) {
        ds_eng_request_free(r);
        return rc;
    }
    prompt_keys(e, r, q);
    if (q->n_output) {
        ds_eng_sample *s = &r->samples[0];
        memcpy(s->out, q->output, q->n_output * sizeof *s->out);
        ds_eng_go_on_behind(r, q->n_output);
        while (!r->no_cache && (s->n_keys + 1) * DS_KV_BLOCK_TOKENS <= q->n_prompt + q->n_output)
            ds_eng_next_key(s);
    }
    *out = r;
    return DS_OK;
}

void ds_eng_request_free(ds_eng_request *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; r->samples && i < r->n_samples; i++) {
        ds_eng_sample *s = &r->samples[i];
        free(s->blocks);
        free(s->keys);
        free(s->out);
        free(s->lp);
        free(s->top);
        free(s->held);
        free(s->dev.tail);
        ds_eng_drop_import(s);
        ds_sampler_destroy(s->dev.sampler);
    }
    free(r->samples);
    free(r->prompt);
    free(r->spans);
    free(r->embedding);
    free(r->prompt_lp);
    free(r->prompt_rank);
    free(r->prompt_top);
    free(r->stop);
    free(r->stop_fail);
    ds_rules_destroy(r->rules);
    free(r);
}
