/* A device without mathematics: tokens from a hash of everything in front of them, accepted counts from a seed.
 *
 * It runs a step when it is waited for, which is as late as a real device could be seen to. With `verify` it keeps,
 * in place of KV entries, the hash of the prefix that each was made from, and in place of window state where it
 * begins and ends; every read of a row is then checked: a block that was given away too early, a wrong hit, a
 * missing copy or a stale state shows as a fault, and as a wrong text. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/backend.h"

enum { WINDOW = 128, ROLLBACK = DS_DEV_MAX_DRAFTS + 1, LOOKBACK = 3, HIST = 64, VOCAB = 129280 };

typedef struct {
    bool decoding, ended;
    uint32_t pos; /* DS_NONE: forgotten */
    ds_token next;
    uint64_t h;       /* of the tokens in front of pos */
    uint64_t step_no; /* of the last step that gave tokens */
    /* verify */
    uint64_t hist[HIST]; /* h behind position p, at p % HIST */
    uint32_t win_lo;     /* encoder windows hold win_lo .. pos-1 */
    uint32_t dec_lo, dec_hi;
} live;

typedef struct {
    uint64_t h;
    ds_token token;
} entry;

typedef struct {
    const ds_dev_sample *sample;
    uint32_t lo, hi;
} tail;

typedef struct {
    ds_backend base;
    ds_engine_stub o;
    ds_engine_clock clock;
    ds_backend_size size;
    live *slot;
    entry *kv; /* verify: [blocks][DS_KV_BLOCK_TOKENS]; else the last one of each block only */
    tail *tails;
    uint32_t *words; /* [1 + drafts][n_words] of masks */
    ds_token draft[DS_DEV_MAX_DRAFTS];
    size_t n_words;
    uint64_t draws;   /* index of the next accepted count */
    uint64_t free_ns; /* when the device has done all before */
    uint64_t submitted_ns[DS_DEV_DEPTH];
    uint32_t n_submitted;
    ds_dev_step *queue[DS_DEV_DEPTH];
    char fault[200];
} null_dev;

uint64_t ds_backend_null_fold(uint64_t h, ds_token token)
{
    h = (h ^ (uint32_t)token) * 0x9e3779b97f4a7c15ull;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9ull;
    return h ^ h >> 32;
}

ds_token ds_backend_null_token(uint64_t h, uint64_t seed, uint32_t vocab)
{
    return (ds_token)((ds_backend_null_fold(h ^ seed, 77) >> 16) % vocab);
}

__attribute__((format(printf, 2, 3))) static void wrong(null_dev *d, const char *fmt, ...)
{
    va_list ap;

    if (d->fault[0])
        return;
    va_start(ap, fmt);
    vsnprintf(d->fault, sizeof d->fault, fmt, ap);
    va_end(ap);
}

static entry *at(const null_dev *d, const ds_dev_rows *r, uint32_t pos)
{
    uint32_t b = r->blocks[pos / DS_KV_BLOCK_TOKENS];

    assert(pos / DS_KV_BLOCK_TOKENS < r->n_blocks && b < d->size.n_blocks);
    return d->o.verify ? &d->kv[(size_t)b * DS_KV_BLOCK_TOKENS + pos % DS_KV_BLOCK_TOKENS] : &d->kv[b];
}

static void store(const null_dev *d, const ds_dev_rows *r, uint32_t pos, uint64_t h, ds_token token)
{
    if (d->o.verify || pos % DS_KV_BLOCK_TOKENS == DS_KV_BLOCK_TOKENS - 1)
        *at(d, r, pos) = (entry){ h, token };
}

/* Entries of all positions in front of `pos` continue one another where blocks meet. */
static void check_chain(null_dev *d, const ds_dev_rows *r, uint32_t pos)
{
    for (uint32_t p = DS_KV_BLOCK_TOKENS; p < pos; p += DS_KV_BLOCK_TOKENS) {
        const entry *e = at(d, r, p);
        if (e->h != ds_backend_null_fold(at(d, r, p - 1)->h, e->token))
            wrong(d, "block %u of a table doesn't continue the one before it (at position %u)", p / DS_KV_BLOCK_TOKENS, pos);
    }
}

static void advance(null_dev *d, live *l, const ds_dev_rows *r, uint32_t pos, ds_token token, bool keep)
{
    l->h = ds_backend_null_fold(l->h, token);
    if (keep)
        store(d, r, pos, l->h, token);
    else if (d->o.verify && at(d, r, pos)->h != l->h)
        wrong(d, "replay meets a cached entry of other tokens at position %u", pos);
    l->hist[pos % HIST] = l->h;
    l->pos = pos + 1;
}

static void begin_prompt_rows(null_dev *d, live *l, const ds_dev_rows *r)
{
    bool fresh = l->pos == DS_NONE;

    if (fresh) {
        if (r->enc_win != r->pos || (r->pos > 0 && r->n_before == DS_NONE))
            wrong(d, "prompt rows at %u in an empty slot without a replay", r->pos);
        l->win_lo = r->pos;
        l->dec_lo = l->dec_hi = r->pos;
        l->h = r->pos ? at(d, r, r->pos - 1)->h : 0;
    } else {
        if (l->pos < r->pos || l->pos - r->pos >= ROLLBACK)
            wrong(d, "prompt rows at %u, the slot's state is at %u", r->pos, l->pos);
        l->h = r->pos ? l->hist[(r->pos - 1) % HIST] : 0;
        if (l->dec_hi > r->pos)
            l->dec_hi = r->pos;
    }
    if (!d->o.verify)
        return;
    if (r->pos > 0 && at(d, r, r->pos - 1)->h != l->h)
        wrong(d, "window state and cached entries disagree at position %u", r->pos);
    if (l->win_lo > (r->pos > WINDOW - 1 ? r->pos - (WINDOW - 1) : 0) && r->enc_win < l->win_lo)
        wrong(d, "windows begin at %u, rows at %u look before that", l->win_lo, r->pos);
    check_chain(d, r, r->pos);
}

/* Which rows the decoder sees, and whether their streams are there. */
static void decoder_rows(null_dev *d, live *l, const ds_dev_rows *r)
{
    uint32_t end = r->pos + r->n;

    if (r->tail != DS_NONE) {
        tail *t = &d->tails[r->tail];
        if (t->sample != r->sample || t->hi != r->pos)
            *t = (tail){ r->sample, r->pos, r->pos };
        if (r->dec_from < r->pos && (t->lo > r->dec_from || end - r->dec_from > WINDOW))
            wrong(d, "decoder rows from %u: streams are kept from %u", r->dec_from, t->lo);
        t->hi = end;
    } else if (r->dec_from != r->pos) {
        wrong(d, "decoder rows from %u of rows from %u without a tail", r->dec_from, r->pos);
    }
    if (r->dec_from == end)
        return;
    if (r->dec_from != l->dec_hi || r->dec_win > l->dec_lo)
        l->dec_lo = r->dec_from;
    l->dec_hi = end;
}

/* The token behind the slot's text: the hash's, or the next one that the mask allows. -1: none is. */
static ds_token pick(const null_dev *d, const ds_dev_sample *s, uint64_t h, uint32_t index, const uint32_t *allowed)
{
    ds_token token = d->o.token ? d->o.token(d->o.ctx, s->tag, s->sample, index) : ds_backend_null_token(h, s->seed, d->base.vocab);

    for (uint32_t tried = 0; allowed && !(allowed[token / 32] >> (token % 32) & 1); tried++) {
        if (tried == d->base.vocab)
            return -1;
        token = (ds_token)(((uint32_t)token + 1) % d->base.vocab);
    }
    return token;
}

/* Masks behind a text with hash h, and behind drafts: what no grammar would have changed, up to one that is wrong.
 * Returns how many rows have masks. */
static uint32_t masks(null_dev *d, ds_dev_sample *s, uint64_t h, uint32_t index, uint32_t drafts, uint32_t right)
{
    const ds_gen_grammar *g = s->grammar;

    for (uint32_t i = 0; i < drafts; i++) {
        d->draft[i] = pick(d, s, h, index + i, NULL);
        if (i == right)
            d->draft[i] = (ds_token)(((uint32_t)d->draft[i] + 1) % d->base.vocab);
        h = ds_backend_null_fold(h, d->draft[i]);
    }
    if (s->n_unread)
        g->fn->accept(g->ctx, s->sample, s->unread, s->n_unread);
    s->n_unread = 0;
    return g->fn->masks(g->ctx, s->sample, d->draft, drafts, d->words, d->n_words);
}

/* The next token, from the mask if there is one. */
static ds_token draw(const null_dev *d, const ds_dev_rows *r, const live *l, ds_dev_out *out, const uint32_t *allowed)
{
    ds_dev_sample *s = r->sample;
    uint32_t index = l->pos - s->n_prompt, k = out->n_tokens;
    ds_token token = pick(d, s, l->h, index, allowed);

    if (token < 0) {
        out->rc = DS_E_ARG;
        return -1;
    }
    if (s->grammar)
        s->unread[s->n_unread++] = token;
    if (s->logprobs) {
        out->logprob[k] = -0.5f;
        for (uint32_t i = 0; i < s->n_top; i++)
            out->top[k * DS_DEV_MAX_TOP + i] = (ds_gen_logprob){ (ds_token)(((uint32_t)token + i) % d->base.vocab), -0.5f - (float)i };
    }
    out->token[k] = token;
    out->n_tokens++;
    for (uint32_t i = 0; i < s->n_stop_ids; i++)
        out->ended = out->ended || token == s->stop_ids[i];
    out->ended = out->ended || l->pos + 1 >= s->limit;
    return token;
}

/* Masks are late now and then: rows that need them are as if they had not been there. */
static bool is_late(null_dev *d, const ds_dev_sample *s)
{
    return d->o.verify && s->grammar && ds_rng_u64(d->o.seed, 2, d->draws++) % 8 == 0;
}

/* The last row of a prompt goes back, to be a decoding one. */
static void hold_last(live *l, const ds_dev_rows *r, ds_dev_out *out)
{
    l->pos--;
    l->h = l->pos ? l->hist[(l->pos - 1) % HIST] : 0;
    if (l->dec_hi > l->pos)
        l->dec_hi = l->pos;
    l->next = r->tokens[r->n - 1];
    l->decoding = true;
    l->ended = false;
    out->pos = l->pos;
}

static void run_prompt(null_dev *d, live *l, const ds_dev_rows *r, ds_dev_out *out)
{
    begin_prompt_rows(d, l, r);
    decoder_rows(d, l, r);
    l->decoding = l->ended = false;
    for (uint32_t i = 0; i < r->n; i++)
        advance(d, l, r, r->pos + i, r->tokens[i], r->pos + i >= r->store_from);
    out->pos = l->pos;
    out->ended = false;
    if (r->draw && is_late(d, r->sample)) {
        hold_last(l, r, out);
        return;
    }
    if (r->draw && r->sample->grammar && masks(d, r->sample, l->h, l->pos - r->sample->n_prompt, 0, 0) == 0)
        out->rc = DS_E_ARG;
    l->next = r->draw && out->rc == DS_OK ? draw(d, r, l, out, r->sample->grammar ? d->words : NULL) : r->begin;
    l->decoding = r->draw || r->begin >= 0;
    l->ended = out->ended || out->rc != DS_OK;
}

static void run_decode(null_dev *d, live *l, const ds_dev_rows *r, uint32_t drafts, ds_dev_out *out)
{
    ds_dev_sample *s = r->sample;
    uint32_t begin = l->pos, keep, rows, i;
    bool late = is_late(d, s);

    if (!l->decoding) {
        wrong(d, "decode rows in a slot that isn't decoding");
        out->skipped = true;
        return;
    }
    if (d->o.verify) {
        uint32_t need = begin + 1 > WINDOW ? begin + 1 - WINDOW : 0;
        if (begin > 0 && at(d, r, begin - 1)->h != l->h)
            wrong(d, "window state and cached entries disagree at position %u", begin);
        if (need < s->dec_start)
            need = s->dec_start;
        if (begin > need && (l->dec_hi != begin || l->dec_lo > need))
            wrong(d, "decoder windows hold %u .. %u, position %u needs them from %u", l->dec_lo, l->dec_hi, begin, need);
        check_chain(d, r, begin);
    }
    if (drafts > s->limit - begin - 2)
        drafts = s->limit - begin - 2;
    keep = drafts ? (uint32_t)(ds_rng_u64(d->o.seed, 1, d->draws++) % (drafts + 1)) : 0;
    rows = late ? 0 : s->grammar ? masks(d, s, ds_backend_null_fold(l->h, l->next), begin + 1 - s->n_prompt, drafts, keep) : keep + 1;
    if (rows == 0 && !late)
        out->rc = DS_E_ARG;
    for (i = 0; i <= keep && i < rows && !out->ended && out->rc == DS_OK; i++) {
        if (i > 0 && s->grammar && l->next != d->draft[i - 1])
            break;
        advance(d, l, r, begin + i, l->next, true);
        l->next = draw(d, r, l, out, s->grammar ? d->words + i * d->n_words : NULL);
    }
    for (uint32_t p = l->pos; d->o.verify && p <= begin + drafts; p++) /* rejected rows leave rubbish behind */
        store(d, r, p, ~(uint64_t)p, -1);
    if (l->dec_hi < begin)
        l->dec_lo = begin;
    l->dec_hi = l->pos;
    out->drafted = late ? 0 : drafts;
    out->pos = l->pos;
    l->ended = out->ended || out->rc != DS_OK;
}

static entry *block(const null_dev *d, uint32_t i)
{
    return d->kv + (size_t)i * (d->o.verify ? DS_KV_BLOCK_TOKENS : 1);
}

static void save_slot(null_dev *d, const ds_dev_op *op)
{
    uint8_t *to = d->base.stage.states + op->dst * d->base.stage.state_bytes;
    const live *l = &d->slot[op->src];

    ds_kv_state_write(to, &(ds_kv_state){ .pos = l->pos,
                                          .next = l->decoding ? l->next : -1,
                                          .decoding = l->decoding,
                                          .ended = l->ended,
                                          .approx = op->approx,
                                          .dec_start = op->dec_start,
                                          .slot_bytes = sizeof *l });
    memcpy(to + DS_KV_STATE_HEADER, l, sizeof *l);
}

static void load_slot(null_dev *d, const ds_dev_op *op)
{
    const uint8_t *from = d->base.stage.states + op->src * d->base.stage.state_bytes;
    live *l = &d->slot[op->dst];
    ds_kv_state s;
    ds_err err;

    if (ds_kv_state_read(&s, from, &err) != DS_OK) {
        wrong(d, "a state that was loaded: %s", err.msg);
        return;
    }
    memcpy(l, from + DS_KV_STATE_HEADER, sizeof *l);
    l->decoding = s.decoding;
    l->ended = s.ended;
    l->pos = s.pos;
    l->next = s.next;
}

static void run_op(null_dev *d, const ds_dev_op *op)
{
    const ds_store_stage *stage = &d->base.stage;

    switch (op->kind) {
    case DS_DEV_RESET:
        d->slot[op->dst] = (live){ .pos = DS_NONE };
        break;
    case DS_DEV_COPY_SLOT:
        d->slot[op->dst] = d->slot[op->src];
        break;
    case DS_DEV_COPY_BLOCK:
        memcpy(block(d, op->dst), block(d, op->src), stage->block_bytes);
        break;
    case DS_DEV_SAVE_BLOCK:
        memcpy(stage->blocks + op->dst * stage->block_bytes, block(d, op->src), stage->block_bytes);
        break;
    case DS_DEV_LOAD_BLOCK:
        memcpy(block(d, op->dst), stage->blocks + op->src * stage->block_bytes, stage->block_bytes);
        break;
    case DS_DEV_SAVE_SLOT:
        save_slot(d, op);
        break;
    case DS_DEV_LOAD_SLOT:
        load_slot(d, op);
        break;
    }
}

static void run_step(null_dev *d, ds_dev_step *s)
{
    uint32_t left = s->draft_rows;

    s->ops_rc = DS_OK;
    for (uint32_t i = 0; i < s->n_ops; i++)
        run_op(d, &s->ops[i]);
    for (uint32_t i = 0; i < s->n_rows; i++) {
        ds_dev_rows *r = &s->rows[i];
        ds_dev_out *out = &s->out[i];
        live *l = &d->slot[r->slot];
        uint32_t before, n;

        out->n_tokens = out->drafted = 0;
        out->ended = out->saved = false;
        out->rc = DS_OK;
        out->skipped = atomic_load_explicit(&r->sample->stopped, memory_order_relaxed) || (r->decode && l->decoding && l->ended);
        if (out->skipped)
            continue;
        if (r->decode && s->no - l->step_no < d->o.phases) {
            out->pos = l->pos;
            continue;
        }
        before = r->decode ? l->pos : r->pos;
        if (r->decode) {
            n = r->drafts < left ? r->drafts : left;
            left -= n;
            run_decode(d, l, r, n, out);
        } else {
            run_prompt(d, l, r, out);
        }
        if (out->n_tokens)
            l->step_no = s->no;
        n = l->pos - before;
        s->q += n;
        s->qc += (double)n * before;
        s->qq += (double)n * n;
        if (r->save_to != DS_NONE && !(r->draw && out->n_tokens == 0) && l->pos / DS_KV_BLOCK_TOKENS > before / DS_KV_BLOCK_TOKENS) {
            d->slot[r->save_to] = *l;
            out->saved = true;
        }
    }
}

static void null_submit(ds_backend *b, ds_dev_step *s)
{
    null_dev *d = (null_dev *)b;

    assert(d->n_submitted < DS_DEV_DEPTH);
    d->submitted_ns[d->n_submitted] = d->o.step_ns || d->o.row_ns ? d->clock.now_ns(d->clock.ctx) : 0;
    d->queue[d->n_submitted++] = s;
}

static void null_wait(ds_backend *b, ds_dev_step *s)
{
    null_dev *d = (null_dev *)b;
    uint64_t submitted = d->submitted_ns[0];

    assert(d->n_submitted > 0 && d->queue[0] == s);
    d->n_submitted--;
    d->queue[0] = d->queue[1];
    d->submitted_ns[0] = d->submitted_ns[1];
    s->q = s->qc = s->qq = 0.0;
    s->draft_ns = s->idle_ns = s->run_ns = 0;
    run_step(d, s);
    if (d->o.step_ns || d->o.row_ns) {
        uint64_t start = submitted > d->free_ns ? submitted : d->free_ns;
        s->run_ns = d->o.step_ns + d->o.row_ns * (uint64_t)s->q;
        s->idle_ns = d->free_ns && s->after_work ? start - d->free_ns : 0;
        d->free_ns = start + s->run_ns;
        d->clock.sleep_until_ns(d->clock.ctx, d->free_ns);
    }
}

/* Grammars are called while a step is waited for only. */
static void null_forget(ds_backend *b, ds_dev_sample *s, uint32_t slot)
{
    (void)b;
    (void)s;
    (void)slot;
}

static void null_destroy(ds_backend *b)
{
    null_dev *d = (null_dev *)b;

    free(d->slot);
    free(d->kv);
    free(d->base.stage.blocks);
    free(d->base.stage.states);
    free(d->tails);
    free(d->words);
    free(d);
}

ds_rc ds_backend_null_create(ds_backend **out, const ds_engine_stub *o, const ds_engine_clock *clock, const ds_backend_size *size,
                             ds_err *err)
{
    static const ds_backend_fns fns = { null_submit, null_wait, null_destroy, null_forget };
    null_dev *d = calloc(1, sizeof *d);
    uint32_t vocab = o->vocab ? o->vocab : VOCAB;

    *out = NULL;
    if (!d)
        return ds_fail(err, DS_E_NOMEM, "engine: out of memory");
    d->o = *o;
    d->clock = *clock;
    d->size = *size;
    d->base = (ds_backend){ .fn = &fns,
                            .vocab = vocab,
                            .drafts = o->drafts,
                            .window = WINDOW,
                            .rollback = ROLLBACK,
                            .lookback = LOOKBACK,
                            .max_context = size->max_context };
    ds_backend_null_bytes(o, &d->base.block_bytes, &d->base.slot_bytes);
    d->slot = calloc(size->n_slots, sizeof *d->slot);
    d->kv = calloc(size->n_blocks, sizeof *d->kv * (o->verify ? DS_KV_BLOCK_TOKENS : 1));
    d->base.stage = (ds_store_stage){ .n_blocks = size->n_stage_blocks,
                                      .n_states = size->n_stage_states,
                                      .block_bytes = d->base.block_bytes,
                                      .state_bytes = DS_KV_STATE_HEADER + d->base.slot_bytes };
    d->base.stage.blocks = calloc((size_t)size->n_stage_blocks + 1, d->base.stage.block_bytes);
    d->base.stage.states = calloc((size_t)size->n_stage_states + 1, d->base.stage.state_bytes);
    d->tails = calloc(size->n_tails ? size->n_tails : 1, sizeof *d->tails);
    d->n_words = ((size_t)vocab + 31) / 32;
    d->words = calloc((1 + o->drafts) * d->n_words, sizeof *d->words);
    if (!d->slot || !d->kv || !d->base.stage.blocks || !d->base.stage.states || !d->tails || !d->words) {
        null_destroy(&d->base);
        return ds_fail(err, DS_E_NOMEM, "engine: out of memory for %u blocks and %u slots", size->n_blocks, size->n_slots);
    }
    *out = &d->base;
    return DS_OK;
}

void ds_backend_null_bytes(const ds_engine_stub *o, uint64_t *block_bytes, uint64_t *slot_bytes)
{
    *block_bytes = sizeof(entry) * (o->verify ? DS_KV_BLOCK_TOKENS : 1);
    *slot_bytes = sizeof(live);
}

const char *ds_backend_null_fault(const ds_backend *b)
{
    const null_dev *d = (const null_dev *)b;
    return d->fault[0] ? d->fault : NULL;
}
