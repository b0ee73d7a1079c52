#include <ds/llm.h>

#include <stdlib.h>

#include "kern/device.h"
#include "role/service.h"

struct ds_llm {
    ds_service *s;
};

ds_rc ds_llm_open(ds_llm **out, const char *dir, const ds_llm_opts *opts, ds_err *err)
{
    const ds_llm_opts o = opts ? *opts : (ds_llm_opts){ 0 };
    const ds_service_opts so = {
        .place = { o.device, o.kernels, { .n_threads = o.threads, .pin = o.pin } },
        .engine = {
            .mode = o.mode,
            .bf16 = o.bf16,
            .max_context = o.max_context,
            .max_running = o.max_running,
            .step_tokens = o.step_tokens,
            .drafts = o.drafts,
        },
        .kv_dirs = &o.kv_dir,
        .n_kv_dirs = o.kv_dir != NULL,
        .kv_capacity = o.kv_capacity,
        .dialect = o.kv_dir ? "v4.1" : NULL, /* that this library makes prompts in */
        .cache_dir = o.cache_dir,
    };
    ds_llm *l = calloc(1, sizeof *l);
    ds_rc rc = l ? ds_service_open(&l->s, dir, &so, err) : ds_fail(err, DS_E_NOMEM, "out of memory");

    *out = rc == DS_OK ? l : NULL;
    if (rc != DS_OK)
        free(l);
    return rc;
}

void ds_llm_close(ds_llm *l)
{
    if (l)
        ds_service_close(l->s);
    free(l);
}

ds_service *ds_llm_service(const ds_llm *l)
{
    return l->s;
}

ds_engine *ds_llm_engine(const ds_llm *l)
{
    return ds_service_engine(l->s, 0);
}

const ds_tokenizer *ds_llm_tokenizer(const ds_llm *l)
{
    return ds_service_tokenizer(l->s);
}

const ds_token *ds_llm_stop_ids(const ds_llm *l, size_t *n)
{
    return ds_service_stop_ids(l->s, n);
}

uint32_t ds_llm_context(const ds_llm *l)
{
    return ds_service_context(l->s);
}

const char *ds_llm_device(const ds_llm *l)
{
    return ds_model_device(ds_service_model(l->s))->name;
}

uint32_t ds_llm_vocab(const ds_llm *l)
{
    return ds_service_config(l->s)->vocab_size;
}

ds_token ds_llm_bos(const ds_llm *l)
{
    return (ds_token)ds_service_config(l->s)->bos_token_id;
}

uint32_t ds_llm_hidden(const ds_llm *l)
{
    return ds_service_config(l->s)->hidden_size;
}

bool ds_llm_pictures(const ds_llm *l, ds_image_rule *rule, ds_token *token)
{
    return ds_service_pictures(l->s, rule, token);
}

ds_rc ds_llm_embed(ds_llm *l, const ds_picture *p, float *out, ds_err *err)
{
    const ds_config *c = ds_service_config(l->s);
    float *patches;
    ds_rc rc;

    if (c->vision.num_hidden_layers == 0)
        return ds_fail(err, DS_E_ARG, "this model takes no images");
    if (!p->pixels || p->patch != c->vision.patch_size || p->layout.tokens != ds_model_span(ds_service_model(l->s), p->n_h, p->n_w))
        return ds_fail(err, DS_E_ARG, "the picture wasn't prepared by this model's rule");
    patches = calloc((size_t)p->n_h * p->n_w, (size_t)3 * p->patch * p->patch * sizeof *patches);
    if (!patches)
        return ds_fail(err, DS_E_NOMEM, "out of memory for a picture of %u tokens", p->layout.tokens);
    ds_image_patches(p, patches);
    rc = ds_service_picture(l->s, patches, p->n_h, p->n_w, out, err);
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
