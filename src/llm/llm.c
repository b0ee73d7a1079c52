#include <ds/llm.h>
#include <ds/recipe.h>

#include <stdio.h>
#include <stdlib.h>

#include "kern/device.h"
#include "llm/parts.h"

struct ds_llm {
    ds_pool *pool;
    ds_model *model;
    ds_tokenizer *tokenizer;
    ds_engine *engine;
    ds_runner *tower; /* NULL: no picture came yet */
    bool bf16;
    int32_t stop_ids[DS_LLM_STOP_IDS];
    size_t n_stop_ids;
    uint32_t context;
};

static const char *token_bytes(void *ctx, int32_t id, size_t *n)
{
    const ds_llm *l = ctx;

    *n = 0;
    if (ds_tokenizer_kind(l->tokenizer, (uint32_t)id) == DS_TOKEN_DROPPED)
        return "";
    return ds_tokenizer_bytes(l->tokenizer, (uint32_t)id, n);
}

static ds_rc open_tokenizer(ds_llm *l, const char *dir, ds_err *err)
{
    const ds_config *c = ds_model_config(l->model);
    char path[4096];
    ds_rc rc;

    if ((size_t)snprintf(path, sizeof path, "%s/tokenizer.json", dir) >= sizeof path)
        return ds_fail(err, DS_E_ARG, "model directory: the path is longer than %zu bytes", sizeof path - 16);
    rc = ds_tokenizer_open(&l->tokenizer, path, err);
    if (rc == DS_OK)
        rc = ds_llm_check_vocab(l->tokenizer, dir, c->vocab_size, err);
    return rc == DS_OK ? ds_llm_read_stop_ids(l->stop_ids, &l->n_stop_ids, dir, c, err) : rc;
}

/* The plan must fit into what is free. Without a context given, a smaller one is taken. */
static ds_rc fit(const ds_llm *l, ds_engine_opts *eo, bool context_given, ds_err *err)
{
    uint64_t available = ds_llm_available_bytes(l->model);
    ds_gen_plan plan;
    ds_rc rc = ds_engine_plan_get(&plan, l->model, eo, err);

    if (rc != DS_OK || plan.device <= available)
        return rc;
    eo->memory_bytes = available; /* now the number of blocks is what this leaves */
    rc = ds_engine_plan_get(&plan, l->model, eo, err);
    while (rc == DS_E_NOMEM && !context_given && eo->max_context > 256) {
        eo->max_context /= 2;
        rc = ds_engine_plan_get(&plan, l->model, eo, err);
    }
    return rc;
}

static ds_rc open_engine(ds_llm *l, const ds_llm_opts *o, ds_err *err)
{
    uint32_t limit = ds_model_config(l->model)->max_position_embeddings;
    ds_engine_opts eo = {
        .mode = o->mode,
        .bf16 = o->bf16,
        .max_context = o->max_context ? o->max_context : limit,
        .max_running = o->max_running,
        .step_tokens = o->step_tokens,
        .drafts = o->drafts,
        .token_bytes = token_bytes,
        .ctx = l,
    };
    ds_rc rc;

    if (o->max_context > limit)
        return ds_fail(err, DS_E_ARG, "a context of %u tokens exceeds the model's limit of %u", o->max_context, limit);
    rc = fit(l, &eo, o->max_context > 0, err);
    if (rc == DS_OK)
        rc = ds_engine_create(&l->engine, l->model, l->pool, &eo, err);
    if (rc == DS_OK)
        rc = ds_engine_start(l->engine, err);
    l->context = eo.max_context;
    return rc;
}

ds_rc ds_llm_open(ds_llm **out, const char *dir, const ds_llm_opts *opts, ds_err *err)
{
    const ds_llm_opts o = opts ? *opts : (ds_llm_opts){ 0 };
    ds_llm *l = calloc(1, sizeof *l);
    ds_rc rc;

    *out = NULL;
    if (!l)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    l->bf16 = o.bf16;
    rc = ds_llm_open_model(&l->pool, &l->model, dir, &(ds_llm_place){ o.device, o.kernels, { .n_threads = o.threads, .pin = o.pin } }, err);
    if (rc == DS_OK)
        rc = open_tokenizer(l, dir, err);
    if (rc == DS_OK)
        rc = open_engine(l, &o, err);
    if (rc != DS_OK) {
        ds_llm_close(l);
        return rc;
    }
    *out = l;
    return DS_OK;
}

void ds_llm_close(ds_llm *l)
{
    if (!l)
        return;
    ds_engine_destroy(l->engine);
    ds_runner_destroy(l->tower);
    ds_tokenizer_destroy(l->tokenizer);
    ds_model_close(l->model);
    ds_pool_destroy(l->pool);
    free(l);
}

ds_engine *ds_llm_engine(const ds_llm *l)
{
    return l->engine;
}

const ds_model *ds_llm_model(const ds_llm *l)
{
    return l->model;
}

const ds_tokenizer *ds_llm_tokenizer(const ds_llm *l)
{
    return l->tokenizer;
}

const int32_t *ds_llm_stop_ids(const ds_llm *l, size_t *n)
{
    *n = l->n_stop_ids;
    return l->stop_ids;
}

uint32_t ds_llm_context(const ds_llm *l)
{
    return l->context;
}

const char *ds_llm_device(const ds_llm *l)
{
    return ds_model_device(l->model)->name;
}

uint32_t ds_llm_vocab(const ds_llm *l)
{
    return ds_model_config(l->model)->vocab_size;
}

int32_t ds_llm_bos(const ds_llm *l)
{
    return (int32_t)ds_model_config(l->model)->bos_token_id;
}

uint32_t ds_llm_hidden(const ds_llm *l)
{
    return ds_model_config(l->model)->hidden_size;
}

bool ds_llm_pictures(const ds_llm *l, ds_image_rule *rule, uint32_t *token)
{
    const ds_config *c = ds_model_config(l->model);
    ds_recipe_opts o;

    ds_recipe_opts_init(&o);
    ds_recipe_opts_fit(&o, l->tokenizer);
    *rule = (ds_image_rule){ .patch = c->vision.patch_size,
                             .merge = c->vision.downsample_ratio,
                             .max_tokens = c->vision.max_image_tokens,
                             .min_pixels = c->vision.min_pixels,
                             .max_wh_ratio = c->vision.max_wh_ratio };
    *token = ds_tokenizer_control(l->tokenizer, o.image_token);
    return c->vision.num_hidden_layers > 0 && *token != DS_TOKEN_NONE;
}

ds_rc ds_llm_embed(ds_llm *l, const ds_picture *p, float *out, ds_err *err)
{
    const ds_config *c = ds_model_config(l->model);
    const ds_runner_opts o = { .bf16 = l->bf16,
                               .max_rows = 1,
                               .max_context = 128,
                               .max_patches = c->vision.max_image_tokens * c->vision.downsample_ratio * c->vision.downsample_ratio,
                               .no_drafts = true };
    float *patches;
    ds_rc rc = DS_OK;

    if (c->vision.num_hidden_layers == 0)
        return ds_fail(err, DS_E_ARG, "this model takes no images");
    if (!p->pixels || p->patch != c->vision.patch_size || p->layout.tokens != ds_model_span(l->model, p->n_h, p->n_w))
        return ds_fail(err, DS_E_ARG, "the picture wasn't prepared by this model's rule");
    if (!l->tower)
        rc = ds_runner_create(&l->tower, l->model, &o, err);
    if (rc != DS_OK)
        return rc;
    patches = calloc((size_t)p->n_h * p->n_w, (size_t)3 * p->patch * p->patch * sizeof *patches);
    if (!patches)
        return ds_fail(err, DS_E_NOMEM, "out of memory for a picture of %u tokens", p->layout.tokens);
    ds_image_patches(p, patches);
    rc = ds_runner_image(l->tower, patches, p->n_h, p->n_w, out, err);
    free(patches);
    return rc;
}

const size_t *ds_llm_abi(size_t *n)
{
    static const size_t sizes[] = {
        sizeof(ds_err),   sizeof(ds_llm_opts),  sizeof(ds_sampling),   sizeof(ds_token_bias), sizeof(ds_gen_request),
        sizeof(ds_event), sizeof(ds_gen_image), sizeof(ds_image_rule), sizeof(ds_picture),
    };

    *n = sizeof sizes / sizeof *sizes;
    return sizes;
}
