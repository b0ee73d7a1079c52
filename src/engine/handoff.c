/* Sequences that leave for another engine, and that come from one: export and import. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "engine/engine_internal.h"
#include "kv/handoff.h"

typedef enum { ON_ITS_WAY, THERE, LOST } outcome;

struct ds_engine_export {
    pthread_mutex_t mu;
    pthread_cond_t over;
    /* [mu] */
    outcome how;
    uint32_t refs; /* the caller's and the engine's */
    bool sealed;
    /* [loop] until it is over, then the caller's */
    uint8_t *record; /* [cap] */
    size_t cap;
    ds_kv_handoff h;
    uint8_t *blocks; /* [cap_blocks] bytes of the whole ones; NULL: they aren't asked for */
    size_t cap_blocks, block_bytes;
    ds_eng_sample *who;
    bool with_token;           /* [const] */
    bool planned, begun;       /* operations are; the record is written */
    uint32_t n_saved, n_round; /* whole blocks that are in `blocks`, and on their way there */
    ds_engine_export *next;
};

/* ---- the caller of an export ------------------------------------------------------------------------------------- */

static void let_go(ds_engine_export *x)
{
    bool last;

    pthread_mutex_lock(&x->mu);
    last = --x->refs == 0;
    pthread_mutex_unlock(&x->mu);
    if (!last)
        return;
    pthread_mutex_destroy(&x->mu);
    pthread_cond_destroy(&x->over);
    if (x->blocks)
        munmap(x->blocks, x->cap_blocks);
    free(x->record);
    free(x);
}

/* Place for all blocks that its longest text could have; only what is written takes memory. */
static bool map_blocks(ds_engine_export *x, const ds_engine *e, const ds_mail_export_size *size)
{
    x->cap_blocks = (size_t)size->cap_blocks * e->dev->stage.block_bytes;
    x->blocks = mmap(NULL, x->cap_blocks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (x->blocks == MAP_FAILED)
        x->blocks = NULL;
    return x->blocks != NULL;
}

static ds_rc new_export(ds_engine_export **out, const ds_engine *e, const ds_mail_export_size *size, ds_engine_export_how how, ds_err *err)
{
    ds_engine_export *x = calloc(1, sizeof *x);
    pthread_condattr_t attr;

    if (x) {
        x->cap = ds_kv_handoff_bytes(&(ds_kv_handoff){ .n_prompt = size->n_prompt,
                                                       .n_out = size->cap_out,
                                                       .n_keys = size->cap_blocks,
                                                       .state_bytes = e->dev->stage.state_bytes,
                                                       .block_bytes = e->dev->stage.block_bytes });
        x->record = malloc(x->cap);
    }
    if (!x || !x->record || (how.with_blocks && !map_blocks(x, e, size))) {
        if (x)
            free(x->record);
        free(x);
        return ds_fail(err, DS_E_NOMEM, "export: out of memory");
    }
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&x->mu, NULL);
    pthread_cond_init(&x->over, &attr);
    pthread_condattr_destroy(&attr);
    x->with_token = how.with_token;
    x->block_bytes = e->dev->stage.block_bytes;
    x->refs = 2;
    *out = x;
    return DS_OK;
}

ds_rc ds_engine_export_begin(ds_engine_export **out, ds_engine *e, uint64_t id, ds_engine_export_how how, ds_err *err)
{
    ds_mail_export_size size;
    ds_rc rc;

    *out = NULL;
    if (!e->o.handoff)
        return ds_fail(err, DS_E_ARG, "export: this engine has no place for it (handoff)");
    rc = ds_mail_export_ask(&e->mail, id, &size, err);
    if (rc == DS_OK)
        rc = new_export(out, e, &size, how, err);
    if (rc == DS_OK)
        rc = ds_mail_export(&e->mail, id, *out, err);
    if (rc != DS_OK && *out) {
        let_go(*out);
        let_go(*out);
        *out = NULL;
    }
    return rc;
}

ds_rc ds_engine_export_wait(ds_engine_export *x, uint32_t timeout_ms, const uint8_t **record, size_t *n, ds_err *err)
{
    struct timespec until;
    outcome how;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&x->mu);
    while (x->how == ON_ITS_WAY && timeout_ms && pthread_cond_timedwait(&x->over, &x->mu, &until) != ETIMEDOUT)
        ;
    how = x->how;
    *n = ds_kv_handoff_bytes(&x->h);
    if (how == THERE && !x->sealed)
        ds_kv_handoff_seal(x->record, *n);
    x->sealed = how == THERE;
    pthread_mutex_unlock(&x->mu);
    *record = x->record;
    return how == THERE  ? DS_OK
           : how == LOST ? ds_fail(err, DS_E_CANCELED, "export: the request ended before")
                         : ds_fail(err, DS_E_AGAIN, "export: it isn't there yet");
}

const uint8_t *ds_engine_export_blocks(const ds_engine_export *x, size_t *n)
{
    *n = x->block_bytes * x->n_saved;
    return x->blocks;
}

void ds_engine_export_free(ds_engine_export *x)
{
    if (x)
        let_go(x);
}

static void tell(ds_engine_export *x, outcome how)
{
    pthread_mutex_lock(&x->mu);
    x->how = how;
    pthread_cond_broadcast(&x->over);
    pthread_mutex_unlock(&x->mu);
    let_go(x);
}

void ds_eng_export_lost(ds_engine_export *x)
{
    tell(x, LOST);
}

/* ---- the loop's side of it --------------------------------------------------------------------------------------- */

void ds_eng_export_came(ds_eng_loop *e, ds_eng_request *r)
{
    if (r->samples[0].state == S_GONE) { /* it came in this turn, with a text that is over */
        tell(r->export, LOST);
        r->export = NULL;
        return;
    }
    r->export->who = &r->samples[0];
    r->export->next = e->exports;
    e->exports = r->export;
}

static void take_out(ds_eng_loop *e, ds_engine_export *x)
{
    ds_engine_export **p = &e->exports;

    while (*p != x)
        p = &(*p)->next;
    *p = x->next;
    x->who->req->export = NULL;
}

void ds_eng_export_gone(ds_eng_loop *e, ds_eng_request *r)
{
    ds_engine_export *x = r->export;

    if (!x)
        return;
    take_out(e, x);
    if (e->exporting == x)
        e->exporting = NULL; /* its operations run into the buffers, and nobody looks */
    tell(x, LOST);
}

/* The record, but for its digest; the state and the block, where there are such, are in the stage memory. */
static void write_record(ds_eng_loop *e, ds_engine_export *x)
{
    const ds_eng_sample *s = x->who;
    const ds_store_stage *stage = &e->dev->stage;
    ds_kv_handoff_places at;

    x->h.ns = s->req->ns;
    x->h.n_prompt = s->req->n_prompt;
    x->h.n_out = s->n_out;
    x->h.began = s->first_hit == DS_HIT_STATE    ? DS_KV_BEGAN_FROM_STATE
                 : s->first_hit == DS_HIT_REPLAY ? DS_KV_BEGAN_BY_REPLAY
                                                 : DS_KV_BEGAN_COLD;
    x->h.began_pos = s->first_hit_pos;
    x->h.approx = s->approx;
    x->h.n_keys = x->h.pos / DS_KV_BLOCK_TOKENS;
    x->h.state_bytes = x->h.pos ? stage->state_bytes : 0;
    x->h.block_bytes = x->h.pos % DS_KV_BLOCK_TOKENS ? stage->block_bytes : 0;
    assert(ds_kv_handoff_bytes(&x->h) <= x->cap);
    ds_kv_handoff_begin(x->record, &x->h, &at);
    for (uint32_t i = 0; i < x->h.n_prompt + x->h.n_out; i++) {
        uint32_t token = (uint32_t)ds_eng_token(s, i);
        for (int b = 0; b < 4; b++)
            at.tokens[4 * (size_t)i + (size_t)b] = (uint8_t)(token >> (8 * b));
    }
    memcpy(at.keys, s->keys, x->h.n_keys * sizeof *s->keys);
    memcpy(at.state, stage->states + e->handoff_state * stage->state_bytes, (size_t)x->h.state_bytes);
    memcpy(at.block, stage->blocks + e->handoff_block * stage->block_bytes, (size_t)x->h.block_bytes);
}

static void finish(ds_eng_loop *e, ds_engine_export *x)
{
    ds_eng_sample *s = x->who;

    if (!x->begun)
        write_record(e, x);
    take_out(e, x);
    tell(x, THERE);
    ds_eng_end(e, s, DS_ENDED_CANCELED, e->now_us);
}

/* Its state and its last block into the stage memory. */
static void plan_record(ds_eng_loop *e, ds_eng_step *st, const ds_eng_sample *s)
{
    ds_eng_op(st, DS_DEV_SAVE_SLOT, ds_states_slot(&e->states, s->parked), e->handoff_state);
    st->dev.ops[st->dev.n_ops - 1].dec_start = s->dev.dec_start;
    st->dev.ops[st->dev.n_ops - 1].approx = s->approx;
    if (s->pos % DS_KV_BLOCK_TOKENS)
        ds_eng_op(st, DS_DEV_SAVE_BLOCK, s->blocks[s->pos / DS_KV_BLOCK_TOKENS], e->handoff_block);
}

/* The first buffer that this step's whole blocks go to. */
static uint32_t first_whole(const ds_eng_loop *e, const ds_engine_export *x)
{
    return e->handoff_block + (!x->begun && x->h.pos % DS_KV_BLOCK_TOKENS > 0);
}

/* A parked one: first the record's part, with it and behind it whole blocks, as many as there are buffers. */
static void plan_export(ds_eng_loop *e, ds_eng_step *st, ds_engine_export *x)
{
    ds_eng_sample *s = x->who;
    uint32_t first, room;

    if (e->handoff_busy)
        return;
    x->h.pos = s->req->no_cache ? 0 : s->pos; /* whole blocks without keys can't be had elsewhere */
    if (x->h.pos == 0) {
        finish(e, x);
        return;
    }
    if (!x->begun)
        plan_record(e, st, s);
    first = first_whole(e, x);
    room = e->handoff_block + e->o->handoff - first;
    x->n_round = x->blocks ? x->h.pos / DS_KV_BLOCK_TOKENS - x->n_saved : 0;
    x->n_round = x->n_round < room ? x->n_round : room;
    for (uint32_t i = 0; i < x->n_round; i++)
        ds_eng_op(st, DS_DEV_SAVE_BLOCK, s->blocks[x->n_saved + i], first + i);
    ds_eng_after_step(st, AFTER_HANDOFF, 0);
    e->handoff_busy = true;
    e->exporting = x;
    x->planned = true;
}

bool ds_eng_leaves(const ds_eng_request *r)
{
    return r->export && !(r->export->with_token && !r->samples[0].first_us);
}

void ds_eng_plan_exports(ds_eng_loop *e, ds_eng_step *st)
{
    for (ds_engine_export *x = e->exports, *next; x; x = next) {
        ds_eng_sample *s = x->who;
        next = x->next;
        if (x->planned || s->ended || !ds_eng_leaves(s->req))
            continue;
        ds_eng_let_go(e, s);
        if (s->state == S_WAITING && s->parked != DS_NONE) {
            plan_export(e, st, x);
        } else if (s->state == S_WAITING) {
            x->h.pos = 0; /* what it had went to somebody else */
            x->n_saved = 0;
            x->begun = false;
            finish(e, x);
        } else if (s->state == S_DECODE && s->n_out > 0) {
            s->state = S_LEAVING;
            s->then = THEN_PARK;
        }
    }
}

void ds_eng_handoff_done(ds_eng_loop *e, bool right)
{
    ds_engine_export *x = e->exporting;

    e->handoff_busy = false;
    e->exporting = NULL;
    if (x && right) {
        const uint8_t *from = e->dev->stage.blocks + first_whole(e, x) * x->block_bytes;
        if (!x->begun)
            write_record(e, x);
        x->begun = true;
        if (x->n_round)
            memcpy(x->blocks + x->n_saved * x->block_bytes, from, x->n_round * x->block_bytes);
        x->n_saved += x->n_round;
        x->planned = false;
        if (!x->blocks || x->n_saved == x->h.n_keys)
            finish(e, x);
    } else if (x) {
        ds_eng_sample *s = x->who;
        ds_eng_export_gone(e, s->req);
        s->end_event.end.rc = DS_E_DEVICE;
        ds_eng_end(e, s, DS_ENDED_FAILED, e->now_us);
    }
}

/* ---- import ------------------------------------------------------------------------------------------------------ */

/* What a request has to be for the record to be its. */
static ds_rc check_record(const ds_engine *e, const ds_eng_request *r, const ds_kv_handoff *h, ds_err *err)
{
    const ds_eng_sample *s = &r->samples[0];
    ds_kv_state st;

    if (!ds_key_equal(&h->ns, &r->ns) && !r->no_cache)
        return ds_fail(err, DS_E_FORMAT, "handoff: the sequence is of another model, template, layout or tenant");
    if (h->n_prompt != r->n_prompt || h->n_out >= s->cap_out)
        return ds_fail(err, DS_E_FORMAT, "handoff: %u tokens of prompt and %u of output, the request has %u and room for %u", h->n_prompt,
                       h->n_out, r->n_prompt, s->cap_out);
    for (uint32_t i = 0; i < h->n_prompt + h->n_out; i++) {
        ds_token token = ds_kv_handoff_token(h, i);
        if (i < h->n_prompt ? token != r->prompt[i] : token < 0 || (uint32_t)token >= e->dev->vocab)
            return ds_fail(err, DS_E_FORMAT, "handoff: token %u is %d", i, token);
    }
    if (h->pos == 0)
        return DS_OK;
    if (h->state_bytes != e->dev->stage.state_bytes || (h->block_bytes && h->block_bytes != e->dev->stage.block_bytes))
        return ds_fail(err, DS_E_FORMAT, "handoff: a state and a block of other sizes");
    if (ds_kv_state_read(&st, h->state, err) != DS_OK)
        return DS_E_FORMAT;
    if (st.pos != h->pos || !st.decoding || st.ended || st.next != ds_kv_handoff_token(h, h->pos) || st.slot_bytes != e->dev->slot_bytes ||
        st.dec_start != s->dev.dec_start)
        return ds_fail(err, DS_E_FORMAT, "handoff: the state isn't that of the tokens");
    return DS_OK;
}

/* The sample as it was when it left. The keys behind the prompt are computed again and must be the record's. */
static ds_rc fill_in(ds_engine *e, ds_eng_request *r, const ds_kv_handoff *h, ds_err *err)
{
    ds_eng_sample *s = &r->samples[0];

    for (uint32_t i = 0; i < h->n_out; i++)
        s->out[i] = ds_kv_handoff_token(h, h->n_prompt + i);
    ds_eng_go_on_behind(r, h->n_out);
    while (!r->no_cache && s->n_keys < h->n_keys)
        ds_eng_next_key(s);
    if (h->n_keys && memcmp(s->keys, h->keys, h->n_keys * sizeof *s->keys) != 0)
        return ds_fail(err, DS_E_FORMAT, "handoff: the blocks' keys aren't those of the tokens");
    s->approx = h->approx;
    s->first_hit = h->began == DS_KV_BEGAN_FROM_STATE ? DS_HIT_STATE : h->began == DS_KV_BEGAN_BY_REPLAY ? DS_HIT_REPLAY : DS_HIT_NONE;
    s->first_hit_pos = s->hit = h->began_pos;
    s->start_event.start.cached = h->began_pos;
    if (h->pos == 0 || r->no_cache)
        return DS_OK;
    s->import = malloc(sizeof *s->import + h->state_bytes + h->block_bytes);
    if (!s->import)
        return ds_fail(err, DS_E_NOMEM, "engine: out of memory for a sequence that is imported");
    s->import->pos = h->pos;
    s->import->blocks = (ds_engine_blocks){ 0 };
    memcpy(s->import->bytes, h->state, h->state_bytes);
    memcpy(s->import->bytes + h->state_bytes, h->block, h->block_bytes);
    (void)e;
    return DS_OK;
}

/* What the request says that it has is what the record has. */
static ds_rc check_output(const ds_gen_request *q, const ds_kv_handoff *h, ds_err *err)
{
    if (q->n_output && q->n_output != h->n_out)
        return ds_fail(err, DS_E_FORMAT, "handoff: %u tokens of output, the request has %u", h->n_out, q->n_output);
    for (uint32_t i = 0; i < q->n_output; i++)
        if (q->output[i] != ds_kv_handoff_token(h, h->n_prompt + i))
            return ds_fail(err, DS_E_FORMAT, "handoff: token %u of the output is another one", i);
    return DS_OK;
}

/* On success they are the sample's, or nobody needs them. */
static ds_rc take_blocks(const ds_engine *e, ds_eng_sample *s, const ds_kv_handoff *h, const ds_engine_blocks *blocks, ds_err *err)
{
    if (blocks && blocks->p && blocks->n != h->n_keys * (size_t)e->dev->stage.block_bytes)
        return ds_fail(err, DS_E_FORMAT, "handoff: %zu bytes of blocks, %u of %llu are wanted", blocks->n, h->n_keys,
                       (unsigned long long)e->dev->stage.block_bytes);
    if (s->import && h->n_keys && blocks)
        s->import->blocks = *blocks;
    return DS_OK;
}

ds_rc ds_engine_import(ds_engine *e, const ds_gen_request *q, const uint8_t *record, size_t n, const ds_engine_blocks *blocks, uint64_t *id,
                       ds_err *err)
{
    ds_gen_request all = *q;
    ds_eng_request *r = NULL;
    ds_kv_handoff h;
    bool kept;
    ds_rc rc = ds_mail_room(&e->mail, err);

    *id = 0;
    all.output = NULL;
    all.n_output = 0;
    if (rc == DS_OK && !e->o.handoff)
        rc = ds_fail(err, DS_E_ARG, "import: this engine has no place for it (handoff)");
    if (rc == DS_OK && (q->n > 1 || q->prompt_logprobs))
        rc = ds_fail(err, DS_E_ARG, "import: of one sample, without log-probabilities of the prompt");
    if (rc == DS_OK)
        rc = ds_kv_handoff_read(&h, record, n, err);
    if (rc == DS_OK)
        rc = check_output(q, &h, err);
    if (rc == DS_OK)
        rc = ds_eng_request_create(&r, e, &all, err);
    if (rc == DS_OK)
        rc = check_record(e, r, &h, err);
    if (rc == DS_OK)
        rc = fill_in(e, r, &h, err);
    if (rc == DS_OK)
        rc = take_blocks(e, &r->samples[0], &h, blocks, err);
    kept = rc == DS_OK && r->samples[0].import && r->samples[0].import->blocks.p;
    if (rc == DS_OK)
        rc = ds_mail_put(&e->mail, r, id, err);
    if (rc != DS_OK) {
        if (kept)
            r->samples[0].import->blocks.p = NULL;
        ds_eng_request_free(r);
        ds_mail_refused(&e->mail, rc);
    } else if (!kept && blocks && blocks->p) {
        blocks->free(blocks->ctx, blocks->p, blocks->n);
    }
    return rc;
}

void ds_eng_land(ds_eng_loop *e, ds_eng_step *st, ds_eng_sample *s, uint32_t n, bool exact)
{
    const ds_store_stage *stage = &e->dev->stage;
    uint32_t n_loaded = 0, there = 0;

    assert(!e->handoff_busy && s->import->blocks.p);
    /* All that is there is held before the first block is taken: taking one must not take these. */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t b = ds_eng_device_block(e, s, i, exact);
        if (b != DS_NONE)
            ds_blocks_ref(&e->blocks, b);
    }
    ds_eng_let_go(e, s);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t b = ds_eng_device_block(e, s, i, exact);
        if (b != DS_NONE)
            s->blocks[there++] = b;
    }
    s->n_blocks = there;
    s->holds = true;
    e->n_holding++;
    for (uint32_t i = 0; i < n && n_loaded < e->o->handoff; i++) {
        uint32_t b = ds_eng_device_block(e, s, i, exact), buffer = e->handoff_block + n_loaded;
        if (b != DS_NONE)
            continue;
        b = s->blocks[s->n_blocks++] = ds_eng_take_block(e, st);
        assert(b != DS_NONE);
        memcpy(stage->blocks + buffer * stage->block_bytes, s->import->blocks.p + i * stage->block_bytes, stage->block_bytes);
        ds_eng_op(st, DS_DEV_LOAD_BLOCK, buffer, b);
        ds_blocks_publish(&e->blocks, b, &s->keys[i], s->approx);
        n_loaded++;
    }
    ds_eng_after_step(st, AFTER_HANDOFF, 0);
    e->handoff_busy = true;
}

void ds_eng_place_import(ds_eng_loop *e, ds_eng_step *st, ds_eng_sample *s, uint32_t block)
{
    const ds_store_stage *stage = &e->dev->stage;

    assert(!e->handoff_busy);
    memcpy(stage->states + e->handoff_state * stage->state_bytes, s->import->bytes, stage->state_bytes);
    ds_eng_op(st, DS_DEV_LOAD_SLOT, e->handoff_state, s->seat);
    if (block != DS_NONE) {
        memcpy(stage->blocks + e->handoff_block * stage->block_bytes, s->import->bytes + stage->state_bytes, stage->block_bytes);
        ds_eng_op(st, DS_DEV_LOAD_BLOCK, e->handoff_block, block);
    }
    ds_eng_after_step(st, AFTER_HANDOFF, 0);
    e->handoff_busy = true;
    ds_eng_drop_import(s);
}

void ds_eng_drop_import(ds_eng_sample *s)
{
    if (s->import && s->import->blocks.p)
        s->import->blocks.free(s->import->blocks.ctx, s->import->blocks.p, s->import->blocks.n);
    free(s->import);
    s->import = NULL;
}
