/* What a service takes of memory, and how much it may. */
#include "role/ranks.h"
#include "role/service_internal.h"

bool ds_service_tower(const ds_model *m, bool bf16, ds_runner_opts *o)
{
    const ds_config *c = ds_model_config(m);

    *o = (ds_runner_opts){ .bf16 = bf16,
                           .max_rows = 1,
                           .max_context = 128,
                           .max_patches = c->vision.max_image_tokens * c->vision.downsample_ratio * c->vision.downsample_ratio,
                           .no_drafts = true };
    return c->vision.num_hidden_layers > 0;
}

static uint64_t dealt(uint64_t v, uint32_t n)
{
    return v / n + (v % n != 0);
}

ds_engine_opts ds_service_deal(const ds_service_opts *o)
{
    ds_engine_opts e = o->engine;
    uint32_t n = o->engines ? o->engines : 1;

    e.max_running = (uint32_t)dealt(e.max_running, n);
    e.max_requests = (uint32_t)dealt(e.max_requests, n);
    e.prefills = (uint32_t)dealt(e.prefills, n);
    e.kv_blocks = (uint32_t)dealt(e.kv_blocks, n);
    e.saved_states = (uint32_t)dealt(e.saved_states, n);
    e.kv_memory /= n;
    return e;
}

static ds_rc other_ranks(ds_service_plan *p, const ds_model *m, const ds_service_opts *o, ds_err *err)
{
    ds_engine_opts e = ds_service_deal(o);
    ds_gen_plan plan;
    ds_rc rc;

    e.memory_bytes = 0;
    rc = ds_engine_plan_get(&plan, m, &e, err);
    if (rc == DS_OK && !ds_ranks_bytes(m, o->ranks, e.bf16, plan.step_rows, &p->ranks))
        rc = ds_fail(err, DS_E_NOMEM, "%u ranks take more memory than can be addressed", o->ranks);
    return rc;
}

static ds_rc begin(ds_service_plan *p, const ds_model *m, const ds_service_opts *o, ds_err *err)
{
    ds_runner_opts tower;
    ds_runner_size size = { 0 };
    ds_model_stats st;
    uint64_t rest;
    ds_rc rc;

    *p = (ds_service_plan){ .engines = o->engines ? o->engines : 1, .available = ds_llm_available_bytes(m) };
    if (o->engine.max_context > ds_model_config(m)->max_position_embeddings)
        return ds_fail(err, DS_E_ARG, "a context of %u tokens exceeds the model's limit of %u", o->engine.max_context,
                       ds_model_config(m)->max_position_embeddings);
    if (ds_service_tower(m, o->engine.bf16, &tower) && !o->no_pictures && !ds_runner_bytes(m, &tower, &size))
        return ds_fail(err, DS_E_NOMEM, "the vision tower takes more memory than can be addressed");
    p->tower = size.total;
    p->tower_device = ds_model_room(m, &rest) ? size.total - size.stage : size.total;
    ds_model_stat(m, &st);
    p->weights = st.packed_bytes ? 0 : st.file_bytes - st.kind_bytes[DS_KIND_ENGRAM_TABLE]; /* of all ranks, which share this memory */
    p->chosen = st.chosen_bytes;
    if (o->ranks > 1) {
        rc = other_ranks(p, m, o, err);
        if (rc != DS_OK)
            return rc;
    }
    rest = p->available / 10 * 9;
    rest = rest > p->weights ? rest - p->weights : 0;
    if (rest < p->available / 4)
        rest = p->available / 4;
    p->budget = o->engine.memory_bytes ? o->engine.memory_bytes : rest;
    return DS_OK;
}

static void add_up(ds_service_plan *p)
{
    p->total = p->engine.total * p->engines + p->tower + p->ranks;
    p->device = p->engine.device * p->engines + p->tower_device + p->ranks;
}

/* Of the budget, for each engine; at least a byte, since 0 isn't a limit. */
static uint64_t share(const ds_service_plan *p)
{
    uint64_t taken = p->tower_device + p->ranks, left = p->budget > taken ? (p->budget - taken) / p->engines : 0;

    return left ? left : 1;
}

/* With as many blocks as fit. */
static uint32_t largest_context(const ds_service_plan *p, const ds_model *m, const ds_engine_opts *each)
{
    ds_engine_opts o = *each;
    ds_gen_plan plan = { 0 };
    ds_rc rc;

    o.max_context = 0;
    o.kv_blocks = 0;
    o.memory_bytes = share(p);
    rc = ds_engine_plan_get(&plan, m, &o, NULL);
    return rc == DS_OK ? plan.max_context : rc == DS_E_NOMEM ? plan.largest_context : 0;
}

ds_rc ds_service_plan_wish(ds_service_plan *p, const ds_model *m, const ds_service_opts *o, ds_err *err)
{
    ds_engine_opts each = ds_service_deal(o);
    ds_rc rc = begin(p, m, o, err);

    each.memory_bytes = 0;
    if (rc == DS_OK)
        rc = ds_engine_plan_get(&p->engine, m, &each, err);
    if (rc != DS_OK)
        return rc;
    add_up(p);
    p->largest_context = largest_context(p, m, &each);
    return DS_OK;
}

ds_rc ds_service_plan_get(ds_service_plan *p, ds_engine_opts *each, const ds_model *m, const ds_service_opts *o, ds_err *err)
{
    ds_rc rc = begin(p, m, o, err);

    *each = ds_service_deal(o);
    if (rc == DS_OK && p->tower_device + p->ranks >= p->budget)
        rc = ds_fail(err, DS_E_NOMEM, "%llu bytes of memory: the vision tower alone%s takes %llu", (unsigned long long)p->budget,
                     p->ranks ? ", with the other ranks," : "", (unsigned long long)(p->tower_device + p->ranks));
    if (rc != DS_OK)
        return rc;
    p->largest_context = largest_context(p, m, each);
    each->memory_bytes = 0;
    if (!o->engine.memory_bytes) {
        rc = ds_engine_plan_get(&p->engine, m, each, err);
        add_up(p);
        if (rc != DS_OK || p->device <= p->budget)
            return rc;
    }
    each->memory_bytes = share(p);
    rc = ds_engine_plan_get(&p->engine, m, each, err);
    if (rc == DS_E_NOMEM && !o->engine.max_context && p->largest_context) {
        each->max_context = p->largest_context;
        rc = ds_engine_plan_get(&p->engine, m, each, err);
    }
    if (rc != DS_OK)
        return p->engines > 1 ? ds_err_prefix(err, rc, "each of %u engines: ", p->engines) : rc;
    add_up(p);
    return DS_OK;
}
