/* The memory plan, and taking what it says. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/create_internal.h"
#include "engine/engine_internal.h"
#include "parallel/comm.h"
#include "kern/device.h"
#include "model/model.h"

static uint32_t or_default(uint32_t v, uint32_t def)
{
    return v ? v : def;
}

static ds_rc range(const char *name, uint64_t v, uint64_t lo, uint64_t hi, ds_err *err)
{
    if (v >= lo && v <= hi)
        return DS_OK;
    return ds_fail(err, DS_E_ARG, "engine: %s = %llu is not within %llu..%llu", name, (unsigned long long)v, (unsigned long long)lo,
                   (unsigned long long)hi);
}

static uint64_t monotonic_now(void *ctx)
{
    (void)ctx;
    return ds_now_ns();
}

static void monotonic_sleep(void *ctx, uint64_t ns)
{
    struct timespec t = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };

    (void)ctx;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0)
        ;
}

/* Defaults, and what doesn't depend on memory. */
static ds_rc fill(ds_engine_opts *o, uint32_t context_limit, uint32_t model_drafts, ds_err *err)
{
    ds_rc rc;

    o->max_context = or_default(o->max_context, context_limit);
    o->max_running = or_default(o->max_running, 16);
    o->max_requests = or_default(o->max_requests, 4096);
    o->max_samples = or_default(o->max_samples, 16);
    o->step_tokens = or_default(o->step_tokens, 512);
    o->prefills = or_default(o->prefills, 4);
    o->state_ttl_ms = or_default(o->state_ttl_ms, 600000);
    o->ageing_ms = or_default(o->ageing_ms, 1000);
    o->verify_rows = or_default(o->verify_rows, 64);
    o->fetches = or_default(o->fetches, 8);
    o->fetch_ms = or_default(o->fetch_ms, 1000);
    if ((rc = range("max_running", o->max_running, 1, 4096, err)) != DS_OK ||
        (rc = range("max_context", o->max_context, 2, context_limit, err)) != DS_OK ||
        (rc = range("max_requests", o->max_requests, 1, 1u << 20, err)) != DS_OK ||
        (rc = range("max_samples", o->max_samples, 1, 32, err)) != DS_OK ||
        (rc = range("step_tokens", o->step_tokens, 1, 1u << 18, err)) != DS_OK ||
        (rc = range("verify_rows", o->verify_rows, 1, 1u << 16, err)) != DS_OK ||
        (rc = range("fetches", o->fetches, 1, 256, err)) != DS_OK || (rc = range("handoff", o->handoff, 0, 4096, err)) != DS_OK ||
        (rc = range("fetch_ms", o->fetch_ms, 1, 600000, err)) != DS_OK || (rc = range("mode", o->mode, 0, DS_ENGINE_EXACT, err)) != DS_OK)
        return rc;
    if (o->prefills > o->max_running)
        o->prefills = o->max_running;
    o->saved_states = or_default(o->saved_states, 2 * o->max_running);
    if ((rc = range("saved_states", o->saved_states, 2, 1u << 18, err)) != DS_OK)
        return rc;
    if (o->step_tokens < o->max_running + 16) /* every sequence has a row, and a prompt always moves */
        o->step_tokens = o->max_running + 16;
    if (!o->clock.now_ns != !o->clock.sleep_until_ns)
        return ds_fail(err, DS_E_ARG, "engine: a clock needs both of its functions");
    if (!o->clock.now_ns)
        o->clock = (ds_engine_clock){ .now_ns = monotonic_now, .sleep_until_ns = monotonic_sleep };
    if (o->drafts > 0 && (uint32_t)o->drafts > model_drafts)
        return ds_fail(err, DS_E_ARG, "engine: %d drafts a step, the model makes %u", o->drafts, model_drafts);
    if (o->drafts < DS_ENGINE_DRAFTS_AUTO)
        return ds_fail(err, DS_E_ARG, "engine: drafts = %d: off is 0, automatic %d", o->drafts, DS_ENGINE_DRAFTS_AUTO);
    if (model_drafts == 0)
        o->drafts = 0;
    return DS_OK;
}

static ds_backend_size sizes(const ds_engine_opts *o, const ds_gen_plan *p)
{
    return (ds_backend_size){
        .max_context = o->max_context,
        .n_blocks = o->kv_blocks,
        .n_slots = o->max_running + o->saved_states,
        .n_tails = o->mode == DS_ENGINE_CED ? o->prefills : 0,
        .max_seqs = o->max_running,
        .max_rows = o->step_tokens + (o->drafts ? o->verify_rows : 0),
        .max_logits = o->max_running + (o->drafts ? o->verify_rows : 0) + DS_DEV_PROMPT_LOGITS,
        .bf16 = o->bf16,
        .no_drafts = o->drafts == 0,
        .comm = o->comm,
        .n_stage_blocks = p->host_blocks + o->handoff,
        .n_stage_states = p->host_states + (o->handoff > 0),
    };
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

/* Host memory for what leaves the device, or comes from a store: one state for so many blocks, since a state is what
 * a hit goes on from. */
enum { BLOCKS_A_STATE = 16, MAX_HOST_BLOCKS = 1 << 28, STAGE_STATES = 4 };

static bool has_store(const ds_engine_opts *o)
{
    return o->store || o->kv_memory;
}

static ds_rc share_host(ds_gen_plan *p, const ds_engine_opts *o, uint64_t block_bytes, uint64_t slot_bytes, ds_err *err)
{
    uint64_t states, blocks, bytes = o->kv_memory;

    slot_bytes += DS_KV_STATE_HEADER;
    if (o->handoff)
        p->host_kv = o->handoff * block_bytes + slot_bytes;
    if (!has_store(o))
        return DS_OK;
    if (!bytes)
        bytes = STAGE_STATES * (BLOCKS_A_STATE * block_bytes + slot_bytes);
    if (o->no_prefix_cache)
        return ds_fail(err, DS_E_ARG, "engine: %s without a prefix cache", o->store ? "a KV store" : "host memory for prefixes");
    if (bytes < block_bytes + slot_bytes)
        return ds_fail(err, DS_E_ARG, "engine: %llu bytes of host memory hold not even one block and one state, %llu",
                       (unsigned long long)bytes, (unsigned long long)(block_bytes + slot_bytes));
    states = bytes / (BLOCKS_A_STATE * block_bytes + slot_bytes);
    if (states == 0)
        states = 1;
    if (states > MAX_HOST_BLOCKS / BLOCKS_A_STATE)
        states = MAX_HOST_BLOCKS / BLOCKS_A_STATE;
    blocks = (bytes - states * slot_bytes) / block_bytes;
    if (blocks > MAX_HOST_BLOCKS)
        blocks = MAX_HOST_BLOCKS;
    p->host_blocks = (uint32_t)blocks;
    p->host_states = (uint32_t)states;
    p->host_kv += blocks * block_bytes + states * slot_bytes;
    return DS_OK;
}

/* Operations of a step at most, without the store's and with them: each block may come from there once and go there
 * once. */
static uint32_t own_ops(const ds_engine_opts *o)
{
    return 6 * o->max_running + 16 + (o->handoff ? o->handoff + 4 : 0);
}
static uint32_t ops_of(const ds_engine_opts *o)
{
    return own_ops(o) + (has_store(o) ? 2 * o->kv_blocks + 4 * o->max_running : 0);
}

static uint32_t afters_of(const ds_engine_opts *o)
{
    return 6 * o->max_running + 16 + (o->handoff > 0) + (has_store(o) ? o->fetches : 0);
}

/* Blocks of a prefix at most, as far as the device has place for them. */
static uint32_t fetch_blocks(const ds_engine_opts *o)
{
    uint32_t longest = ds_eng_blocks_for(o->max_context);

    return longest < o->kv_blocks ? longest : o->kv_blocks;
}

static ds_hoststore_size host_size(const ds_engine_opts *o, const ds_gen_plan *p)
{
    return (ds_hoststore_size){
        .n_blocks = p->host_blocks, .n_states = p->host_states, .n_tickets = o->fetches, .ticket_blocks = fetch_blocks(o)
    };
}

static uint32_t saves_of(const ds_engine_opts *o)
{
    return o->store && o->store->fn->on_commit ? o->kv_blocks + o->saved_states : 0;
}

static uint64_t store_bytes(const ds_engine_opts *o, const ds_gen_plan *p)
{
    ds_hoststore_size host = host_size(o, p);

    return has_store(o) ? ds_fetches_bytes(o->fetches, fetch_blocks(o)) + saves_of(o) * sizeof(ds_eng_save) +
                              (o->store ? 0 : ds_hoststore_bytes(&host))
                        : 0;
}

static uint64_t host_bytes(const ds_engine_opts *o, const ds_gen_plan *p)
{
    return ds_blocks_bytes(o->kv_blocks) + ds_states_bytes(o->max_running, o->saved_states) + store_bytes(o, p) +
           (uint64_t)ops_of(o) * DS_DEV_DEPTH * sizeof(ds_dev_op) + (uint64_t)o->max_requests * (16 + 8ull * o->max_samples) +
           (uint64_t)o->max_running * DS_DEV_DEPTH *
               (sizeof(ds_dev_rows) + sizeof(ds_dev_out) + (DS_DEV_MAX_DRAFTS + 1) * DS_DEV_MAX_TOP * 8);
}

static bool model_bytes(ds_gen_plan *p, const ds_model *m, const ds_engine_opts *o)
{
    ds_backend_size size = sizes(o, p);
    ds_runner_size rs;

    if (!ds_backend_model_bytes(m, &size, &rs))
        return false;
    p->kv = rs.kv;
    p->states = rs.slots;
    p->tails = rs.tails;
    p->tables = rs.tables;
    p->buffers = rs.buffers + rs.scratch;
    p->host = host_bytes(o, p) + rs.stage;
    p->total = rs.total + host_bytes(o, p) + p->host_kv;
    p->device = ds_model_device(m)->fn->room ? rs.total - rs.stage : p->total;
    return true;
}

/* Blocks for a context of `context` tokens within the budget; 0: not even one sequence fits. */
static uint32_t blocks_within(ds_gen_plan *p, const ds_model *m, const ds_engine_opts *opts, uint32_t context)
{
    ds_engine_opts o = *opts;
    uint32_t least = ds_eng_blocks_for(context);
    uint64_t more, block = 0, one;

    o.max_context = context;
    o.kv_blocks = least;
    if (!model_bytes(p, m, &o) || p->device > opts->memory_bytes)
        return 0;
    one = p->device;
    o.kv_blocks = least + 1;
    if (model_bytes(p, m, &o))
        block = p->device - one;
    more = block ? (opts->memory_bytes - one) / block : 0;
    return more > (1u << 28) ? 1u << 28 : least + (uint32_t)more;
}

static ds_rc choose_blocks(ds_gen_plan *p, const ds_model *m, ds_engine_opts *o, ds_err *err)
{
    uint32_t least = ds_eng_blocks_for(o->max_context), lo = 1, hi;

    if (o->kv_blocks && o->kv_blocks < least)
        return ds_fail(err, DS_E_ARG, "engine: %u KV blocks hold %llu tokens, less than the context of %u", o->kv_blocks,
                       1ull * DS_KV_BLOCK_TOKENS * o->kv_blocks, o->max_context);
    if (!o->memory_bytes) {
        uint32_t share = o->max_running < 4 ? o->max_running : 4;
        if (!o->kv_blocks)
            o->kv_blocks = (uint64_t)least * share < (1u << 28) ? least * share : 1u << 28;
        return DS_OK;
    }
    if (o->kv_blocks) {
        if (model_bytes(p, m, o) && p->device <= o->memory_bytes)
            return DS_OK;
    } else if ((o->kv_blocks = blocks_within(p, m, o, o->max_context)) != 0) {
        return DS_OK;
    }
    for (hi = o->max_context; lo < hi;) { /* the largest context of which one sequence fits; 1: none */
        uint32_t mid = lo + (hi - lo + 1) / 2;
        if (blocks_within(p, m, o, mid))
            lo = mid;
        else
            hi = mid - 1;
    }
    p->largest_context = lo < 2 ? 0 : lo;
    if (lo < 2)
        return ds_fail(err, DS_E_NOMEM, "engine: %llu bytes are too few for any context with %u running sequences and %u saved states",
                       (unsigned long long)o->memory_bytes, o->max_running, o->saved_states);
    return ds_fail(err, DS_E_NOMEM,
                   "engine: a context of %u tokens with %u running sequences and %u saved states takes more than %llu bytes; the largest "
                   "context that fits is %u",
                   o->max_context, o->max_running, o->saved_states, (unsigned long long)o->memory_bytes, lo);
}

static ds_rc plan_model(ds_gen_plan *p, const ds_model *m, ds_engine_opts *o, ds_err *err)
{
    ds_model_layout lay;
    ds_rc rc;

    *p = (ds_gen_plan){ 0 };
    ds_model_layout_get(m, &lay);
    rc = fill(o, lay.max_context, lay.drafts, err);
    if (rc == DS_OK)
        rc = share_host(p, o, lay.block_bytes, lay.slot_bytes, err);
    if (rc == DS_OK)
        rc = choose_blocks(p, m, o, err);
    if (rc != DS_OK)
        return rc;
    if (!model_bytes(p, m, o))
        return ds_fail(err, DS_E_NOMEM, "engine: a context of %u tokens: more memory than can be addressed", o->max_context);
    p->block_bytes = lay.block_bytes;
    p->slot_bytes = lay.slot_bytes;
    return DS_OK;
}

static void describe(ds_gen_plan *p, const ds_engine_opts *o)
{
    p->kv_blocks = o->kv_blocks;
    p->kv_tokens = (uint64_t)o->kv_blocks * DS_KV_BLOCK_TOKENS;
    p->state_slots = o->max_running;
    p->saved_states = o->saved_states;
    p->max_context = o->max_context;
    p->max_running = o->max_running;
    p->step_tokens = o->step_tokens;
    p->step_rows = sizes(o, p).max_rows;
}

ds_rc ds_engine_plan_get(ds_gen_plan *out, const struct ds_model *m, const ds_engine_opts *opts, ds_err *err)
{
    ds_engine_opts o = *opts;
    ds_rc rc = plan_model(out, m, &o, err);

    if (rc == DS_OK)
        describe(out, &o);
    return rc;
}

ds_rc ds_engine_plan_of(const ds_engine *e, ds_gen_plan *out)
{
    *out = e->plan;
    return DS_OK;
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static ds_rc take_step(ds_eng_step *st, const ds_engine_opts *o, ds_err *err)
{
    uint32_t n = o->max_running;

    st->dev.cap_rows = n;
    st->dev.cap_ops = ops_of(o);
    st->cap_after = afters_of(o);
    st->dev.rows = ds_calloc_aligned(n, sizeof *st->dev.rows);
    st->dev.out = ds_calloc_aligned(n, sizeof *st->dev.out);
    st->dev.ops = calloc(st->dev.cap_ops, sizeof *st->dev.ops);
    st->who = calloc(n, sizeof *st->who);
    st->save = calloc(n, sizeof *st->save);
    st->after = calloc(st->cap_after, sizeof *st->after);
    st->top = calloc((size_t)n * (DS_DEV_MAX_DRAFTS + 1) * DS_DEV_MAX_TOP, sizeof *st->top);
    if (!st->dev.rows || !st->dev.out || !st->dev.ops || !st->who || !st->save || !st->after || !st->top)
        return ds_fail(err, DS_E_NOMEM, "engine: out of memory for steps of %u sequences", n);
    for (uint32_t i = 0; i < n; i++)
        st->dev.out[i].top = st->top + (size_t)i * (DS_DEV_MAX_DRAFTS + 1) * DS_DEV_MAX_TOP;
    return DS_OK;
}

/* What this engine computes with; places and numerics are set. */
static void set_mode(ds_kv_layout *layout, const ds_engine_opts *o)
{
    layout->mode = o->mode == DS_ENGINE_EXACT ? DS_KV_EXACT : o->no_replay ? DS_KV_CED_STRICT : DS_KV_CED;
    layout->bf16 = o->bf16;
}

void ds_engine_kv_layout(ds_kv_layout *out, const ds_model *m, const ds_engine_opts *o)
{
    ds_model_kv_layout(m, out);
    set_mode(out, o);
}

/* The identity of this engine's blocks. layout: places and numerics are set. */
static void identify(ds_engine *e, ds_kv_layout *layout)
{
    const ds_engine_opts *o = &e->o;

    set_mode(layout, o);
    memcpy(e->identity.model, o->identity.model, sizeof e->identity.model);
    memcpy(e->identity.tokenizer, o->identity.tokenizer, sizeof e->identity.tokenizer);
    memcpy(e->identity.dialect, o->identity.dialect, sizeof e->identity.dialect);
    ds_kv_layout_id(e->identity.layout, layout);
}

static ds_rc take_store(ds_eng_loop *l, ds_engine *e, ds_err *err)
{
    const ds_engine_opts *o = &e->o;
    ds_hoststore_size host = host_size(o, &e->plan);
    ds_store_stage stage;
    ds_rc rc;

    if (!has_store(o))
        return DS_OK;
    rc = ds_fetches_init(&l->fetches, o->fetches, fetch_blocks(o), err);
    l->saves.cap = saves_of(o);
    if (rc == DS_OK && l->saves.cap && !(l->saves.item = calloc(l->saves.cap, sizeof *l->saves.item)))
        rc = ds_fail(err, DS_E_NOMEM, "engine: out of memory for %u blocks to be saved", l->saves.cap);
    if (rc == DS_OK && !o->store) {
        rc = ds_hoststore_create(&e->host, &host, err);
        if (rc == DS_OK)
            e->store = ds_hoststore_store(e->host);
    } else if (o->store) {
        e->store = *o->store;
    }
    if (rc != DS_OK)
        return rc;
    stage = e->dev->stage; /* without what is for handoffs */
    stage.n_blocks = e->plan.host_blocks;
    stage.n_states = e->plan.host_states;
    stage.n_tickets = o->fetches;
    stage.ticket_blocks = fetch_blocks(o);
    rc = e->store.fn->attach(e->store.ctx, e, &stage, err);
    l->store = rc == DS_OK ? &e->store : NULL;
    return rc;
}

static ds_rc take_loop(ds_eng_loop *l, ds_engine *e, ds_err *err)
{
    const ds_engine_opts *o = &e->o;
    ds_rc rc = DS_OK;

    l->o = o;
    l->dev = e->dev;
    l->was_empty = true;
    l->ops_reserved = own_ops(o);
    l->handoff_block = e->plan.host_blocks;
    l->handoff_state = e->plan.host_states;
    l->cap_dirty = o->max_requests * o->max_samples;
    l->running = calloc(o->max_running, sizeof *l->running);
    l->prefilling = calloc(o->max_running, sizeof *l->prefilling);
    l->tail = calloc(o->prefills, sizeof *l->tail);
    l->dirty = calloc(l->cap_dirty, sizeof *l->dirty);
    if (!l->running || !l->prefilling || !l->tail || !l->dirty)
        return ds_fail(err, DS_E_NOMEM, "engine: out of memory for %u requests", o->max_requests);
    for (l->n_free_tails = 0; l->n_free_tails < o->prefills; l->n_free_tails++)
        l->tail[l->n_free_tails] = l->n_free_tails;
    for (int i = 0; i < DS_DEV_DEPTH && rc == DS_OK; i++)
        rc = take_step(&l->step[i], o, err);
    if (rc == DS_OK)
        rc = ds_blocks_init(&l->blocks, o->kv_blocks, err);
    if (rc == DS_OK)
        rc = ds_states_init(&l->states, o->max_running, o->saved_states, 1000ull * o->state_ttl_ms, err);
    if (rc == DS_OK)
        rc = take_store(l, e, err);
    if (rc != DS_OK)
        return rc;
    if (o->replay_keep && o->replay_keep < e->dev->window)
        return ds_fail(err, DS_E_ARG, "replay_keep: %u is less than the model's window, %u", o->replay_keep, e->dev->window);
    l->hit_margin = ds_hit_margin(e->dev->window);
    ds_spec_init(&l->spec, o->drafts ? e->dev->drafts : 0, o->drafts);
    return DS_OK;
}

static void free_loop(ds_eng_loop *l)
{
    ds_blocks_fini(&l->blocks);
    ds_states_fini(&l->states);
    ds_fetches_fini(&l->fetches);
    free(l->saves.item);
    for (int i = 0; i < DS_DEV_DEPTH; i++) {
        ds_eng_step *st = &l->step[i];
        free(st->dev.rows);
        free(st->dev.out);
        free(st->dev.ops);
        free(st->who);
        free(st->save);
        free(st->after);
        free(st->top);
    }
    free(l->running);
    free(l->prefilling);
    free(l->tail);
    free(l->dirty);
}

static ds_rc take_tables(ds_engine *e, ds_err *err)
{
    ds_rc rc = ds_mail_init(&e->mail, e->o.max_requests, err);

    return rc == DS_OK ? take_loop(&e->loop, e, err) : rc;
}

void ds_eng_free_tables(ds_engine *e)
{
    if (e->loop.store)
        e->loop.store->fn->detach(e->loop.store->ctx);
    ds_hoststore_destroy(e->host);
    if (e->dev)
        e->dev->fn->destroy(e->dev);
    ds_mail_fini(&e->mail);
    free_loop(&e->loop);
    free(e);
}

ds_rc ds_engine_create(ds_engine **out, const struct ds_model *m, struct ds_pool *pool, const ds_engine_opts *opts, ds_err *err)
{
    ds_engine *e = calloc(1, sizeof *e);
    ds_backend_size size;
    ds_kv_layout layout;
    ds_rc rc;

    *out = NULL;
    if (!e)
        return ds_fail(err, DS_E_NOMEM, "engine: out of memory");
    e->o = *opts;
    rc = plan_model(&e->plan, m, &e->o, err);
    if (rc == DS_OK) {
        size = sizes(&e->o, &e->plan);
        e->hidden = ds_model_config(m)->hidden_size;
        ds_model_kv_layout(m, &layout);
        identify(e, &layout);
        rc = ds_backend_model_create(&e->dev, m, pool, &size, err);
    }
    if (rc == DS_OK)
        rc = take_tables(e, err);
    if (rc != DS_OK) {
        if (e->o.comm) /* the other ranks don't wait for this one */
            e->o.comm->fn->give_up(e->o.comm, err ? err->msg : "its engine can't be made");
        ds_eng_free_tables(e);
        return rc;
    }
    describe(&e->plan, &e->o);
    *out = e;
    return DS_OK;
}

ds_rc ds_engine_create_stub(ds_engine **out, const ds_engine_stub *s, const ds_engine_opts *opts, ds_err *err)
{
    enum { STUB_CONTEXT = 1 << 20 };
    ds_engine *e = calloc(1, sizeof *e);
    ds_backend_size size;
    ds_rc rc;

    *out = NULL;
    if (!e)
        return ds_fail(err, DS_E_NOMEM, "engine: out of memory");
    e->o = *opts;
    e->stub = true;
    e->hidden = 1;
    rc = fill(&e->o, STUB_CONTEXT, s->drafts, err);
    if (rc == DS_OK && s->drafts > DS_DEV_MAX_DRAFTS)
        rc = ds_fail(err, DS_E_ARG, "engine: a stub with %u drafts: at most %d", s->drafts, DS_DEV_MAX_DRAFTS);
    if (rc == DS_OK) {
        uint64_t block_bytes, slot_bytes;
        ds_backend_null_bytes(s, &block_bytes, &slot_bytes);
        rc = share_host(&e->plan, &e->o, block_bytes, slot_bytes, err);
    }
    if (rc == DS_OK) {
        uint32_t least = ds_eng_blocks_for(e->o.max_context);
        if (e->o.kv_blocks == 0)
            e->o.kv_blocks = least * (e->o.max_running < 4 ? e->o.max_running : 4);
        if (e->o.kv_blocks < least)
            rc = ds_fail(err, DS_E_ARG, "engine: %u KV blocks hold %llu tokens, less than the context of %u", e->o.kv_blocks,
                         1ull * DS_KV_BLOCK_TOKENS * e->o.kv_blocks, e->o.max_context);
    }
    if (rc == DS_OK) {
        size = sizes(&e->o, &e->plan);
        rc = ds_backend_null_create(&e->dev, s, &e->o.clock, &size, err);
    }
    if (rc == DS_OK) {
        ds_kv_layout layout = { .version = DS_KV_LAYOUT_VERSION, .block_tokens = DS_KV_BLOCK_TOKENS, .numerics = "stub" };
        identify(e, &layout);
    }
    if (rc == DS_OK)
        rc = take_tables(e, err);
    if (rc != DS_OK) {
        ds_eng_free_tables(e);
        return rc;
    }
    e->plan.host = host_bytes(&e->o, &e->plan);
    e->plan.total = e->plan.host + e->plan.host_kv;
    describe(&e->plan, &e->o);
    *out = e;
    return DS_OK;
}
