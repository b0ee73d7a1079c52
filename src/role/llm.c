#include <ds/llm.h>
#include <ds/recipe.h>

#include <pthread.h>
#include <stdlib.h>

#include "constrain/constrain.h"
#include "kern/device.h"
#include "role/service.h"

struct ds_llm {
    ds_service *s;
    /* [mu] */
    pthread_mutex_t mu;
    ds_constrain *grammars; /* NULL: nobody wanted one yet */
};

ds_rc ds_llm_open(ds_llm **out, const char *dir, const ds_llm_opts *opts, ds_err *err)
{
    return ds_llm_open_ranks(out, dir, opts, 1, NULL, err);
}

ds_rc ds_llm_open_ranks(ds_llm **out, const char *dir, const ds_llm_opts *opts, uint32_t ranks, const char *program, ds_err *err)
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
        .ranks = ranks,
        .program = program,
    };
    ds_llm *l = calloc(1, sizeof *l);
    ds_rc rc = l ? ds_service_open(&l->s, dir, &so, err) : ds_fail(err, DS_E_NOMEM, "out of memory");

    *out = rc == DS_OK ? l : NULL;
    if (rc != DS_OK)
        free(l);
    else
        pthread_mutex_init(&l->mu, NULL);
    return rc;
}

void ds_llm_close(ds_llm *l)
{
    if (!l)
        return;
    ds_service_stop(l->s);
    ds_constrain_destroy(l->grammars);
    ds_service_close(l->s);
    pthread_mutex_destroy(&l->mu);
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

ds_rc ds_llm_grammars(ds_llm *l, ds_constrain **out, ds_err *err)
{
    size_t n_stop_ids;
    const ds_token *stop_ids = ds_llm_stop_ids(l, &n_stop_ids);
    ds_rc rc = DS_OK;

    pthread_mutex_lock(&l->mu);
    if (!l->grammars)
        rc = ds_constrain_create(&l->grammars, ds_llm_tokenizer(l), stop_ids, n_stop_ids, NULL, err);
    *out = l->grammars;
    pthread_mutex_unlock(&l->mu);
    return rc;
}

ds_rc ds_llm_constrain(ds_llm *l, ds_proto proto, const char *body, size_t n_body, uint32_t samples, ds_llm_constraint **out, ds_err *err)
{
    ds_recipe_opts o;
    ds_constrain *table;
    ds_constrain_what what;
    ds_request *r;
    ds_api_error why;
    bool any = false;
    ds_rc rc;

    *out = NULL;
    ds_recipe_opts_init(&o);
    ds_recipe_opts_fit(&o, ds_llm_tokenizer(l));
    o.own_decoder = o.allow_regex = true;
    rc = ds_request_parse(&r, &(ds_request_parse_args){ .proto = proto, .opts = &o }, body, n_body, &why, err);
    if (rc != DS_OK)
        return rc;
    rc = ds_constrain_want(&what, &any, ds_request_info(r), err);
    if (rc == DS_OK && any)
        rc = ds_llm_grammars(l, &table, err);
    if (rc == DS_OK && any)
        rc = ds_constrain_begin(out, table, NULL, &what, samples, err);
    if (rc == DS_E_ARG)
        ds_err_prefix(err, rc, "%s: ", what.param);
    ds_request_destroy(r);
    return rc;
}

const ds_gen_grammar *ds_llm_constraint_grammar(const ds_llm_constraint *c)
{
    return ds_constrained_grammar(c);
}

const char *ds_llm_constraint_failure(ds_llm_constraint *c)
{
    return ds_constrained_failure(c);
}

void ds_llm_constraint_end(ds_llm_constraint *c)
{
    ds_constrained_end(c);
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
