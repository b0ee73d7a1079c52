/* One sequence at a time: slot 0, tail 0, blocks 0, 1, 2, ... */
#include <stdlib.h>

#include "model/model_internal.h"

ds_rc ds_solo_init(ds_solo *s, ds_runner *run, uint32_t chunk, bool ced, ds_err *err)
{
    *s = (ds_solo){ .run = run, .chunk = chunk, .ced = ced };
    if (chunk == 0 || chunk > run->o.max_rows)
        return ds_fail(err, DS_E_ARG, "chunk of %u tokens: 1 .. %u", chunk, run->o.max_rows);
    if (ced && run->o.n_tails == 0)
        return ds_fail(err, DS_E_ARG, "ced mode needs a run with a tail slot");
    s->blocks = calloc(run->o.n_blocks, sizeof *s->blocks);
    if (!s->blocks)
        return ds_fail(err, DS_E_NOMEM, "out of memory for a table of %u blocks", run->o.n_blocks);
    for (uint32_t i = 0; i < run->o.n_blocks; i++)
        s->blocks[i] = i;
    return DS_OK;
}

void ds_solo_fini(ds_solo *s)
{
    free(s->blocks);
    s->blocks = NULL;
}

typedef struct {
    uint32_t from, enc_win, store_from;
    bool replay;
} start;

/* The tokens in front of position `from`, -1 inside images. */
static void remember(const ds_solo *s, const ds_token *tokens, uint32_t from, uint32_t lookback, ds_token *before)
{
    uint32_t n = from < lookback ? from : lookback;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t p = from - n + i;
        before[i] = s->image && s->image[p] ? -1 : tokens[p];
    }
}

static ds_rc run_chunks(ds_solo *s, const start *at, const ds_token *tokens, uint32_t total, uint32_t last, ds_logits_fn *fn, void *ctx,
                        ds_err *err)
{
    const ds_config *c = &s->run->m->c;
    uint32_t tail = s->ced && total > c->sliding_window ? total - c->sliding_window : 0,
             lookback = c->n_engram_layers ? c->engram_max_ngram_size - 1 : 0;
    /* tokens that went through the decoder before are in its windows already, and the rows behind them see them */
    uint32_t dec_from = tail > at->from ? tail : at->from, dec_win = tail >= at->from ? tail : 0;
    ds_token before[DS_CONFIG_MAX_ENGRAM_NGRAM];

    if (last > total - dec_from)
        return ds_fail(err, DS_E_ARG, "logits of the last %u tokens: only %u go through all layers", last, total - dec_from);
    if (at->replay)
        remember(s, tokens, at->from, lookback, before);
    for (uint32_t pos = at->from; pos < total;) {
        uint32_t n = total - pos < s->chunk ? total - pos : s->chunk, end = pos + n, first = total - last;
        const float *logits;
        ds_rc rc;
        if (s->progress && !s->progress(s->progress_ctx, pos, total))
            return ds_fail(err, DS_E_CANCELED, "stopped after %u of %u prompt tokens", pos, total);
        ds_seq q = { .slot = 0,
                     .tail = DS_NONE,
                     .blocks = s->blocks,
                     .n_blocks = s->run->o.n_blocks,
                     .pos = pos,
                     .n = n,
                     .tokens = tokens + pos,
                     .enc_win = at->enc_win,
                     .store_from = at->store_from,
                     .dec_from = pos };
        if (s->image)
            q.image = s->image + pos;
        if (at->replay && pos == at->from)
            q.before = before;
        if (s->ced) {
            q.tail = 0;
            q.dec_from = end < total ? end : dec_from;
            q.dec_win = end < total ? 0 : dec_win;
        }
        if (end == total)
            q.n_logits = s->ced ? last : (last < n ? last : n);
        else if (!s->ced && end > first)
            q.n_logits = end - (first > pos ? first : pos);
        rc = ds_runner_step(s->run, &q, 1, &logits, err);
        if (rc == DS_OK && q.n_logits > 0 && fn)
            rc = fn(ctx, logits, q.n_logits, c->vocab_size, err);
        if (rc != DS_OK)
            return rc;
        pos = end;
        s->n = end;
    }
    s->dec_win = dec_win;
    return DS_OK;
}

static ds_rc check(const ds_solo *s, uint32_t total, ds_err *err)
{
    const ds_runner *r = s->run;

    if (total > r->o.max_context || total > (uint64_t)r->o.n_blocks * DS_KV_BLOCK_TOKENS)
        return ds_fail(err, DS_E_ARG, "%u tokens: the context ends at %llu", total,
                       r->o.max_context < (uint64_t)r->o.n_blocks * DS_KV_BLOCK_TOKENS
                           ? (unsigned long long)r->o.max_context
                           : (unsigned long long)r->o.n_blocks * DS_KV_BLOCK_TOKENS);
    if (total <= s->n)
        return ds_fail(err, DS_E_ARG, "%u tokens, %u of them processed: nothing to do", total, s->n);
    return DS_OK;
}

ds_rc ds_solo_prefill(ds_solo *s, const ds_token *tokens, uint32_t total, uint32_t last, ds_logits_fn *fn, void *ctx, ds_err *err)
{
    start at = { .from = s->n };
    ds_rc rc = check(s, total, err);

    if (rc == DS_OK && s->n == 0)
        ds_runner_reset_slot(s->run, 0);
    return rc == DS_OK ? run_chunks(s, &at, tokens, total, last, fn, ctx, err) : rc;
}

ds_rc ds_solo_resume(ds_solo *s, const ds_token *tokens, uint32_t total, uint32_t last, ds_logits_fn *fn, void *ctx, ds_err *err)
{
    uint32_t window = s->run->m->c.sliding_window, from = s->n > window ? s->n - window : 0;
    start at = { .from = from, .enc_win = from, .store_from = s->n, .replay = true };
    ds_rc rc = check(s, total, err);

    if (rc == DS_OK && !s->ced)
        rc = ds_fail(err, DS_E_ARG, "replay is part of ced mode: exact results need all window state");
    if (rc != DS_OK)
        return rc;
    ds_runner_reset_slot(s->run, 0);
    return run_chunks(s, &at, tokens, total, last, fn, ctx, err);
}

ds_rc ds_solo_decode(ds_solo *s, const ds_token *tokens, uint32_t k, const float **logits, ds_err *err)
{
    ds_seq q = { .slot = 0,
                 .tail = DS_NONE,
                 .blocks = s->blocks,
                 .n_blocks = s->run->o.n_blocks,
                 .pos = s->n,
                 .n = k,
                 .tokens = tokens,
                 .dec_from = s->n,
                 .n_logits = k };
    ds_rc rc = ds_runner_step(s->run, &q, 1, logits, err);

    if (rc == DS_OK)
        s->n += k;
    return rc;
}
