#include "role/service_internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ds/recipe.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/pool.h"
#include "cluster/again.h"
#include "cluster/apart.h"
#include "cluster/remote.h"
#include "kvlink/kvdir.h"
#include "role/ranks.h"

struct ds_service {
    /* [const] after open */
    ds_config config;
    ds_pool *pool;
    ds_model *model;
    ds_tokenizer *tokenizer;
    ds_pool *teams[DS_GEN_MANY_MAX]; /* of several engines; one has `pool` */
    ds_engine *engines[DS_GEN_MANY_MAX];
    ds_ranks *ranks; /* NULL: there are no others */
    ds_kvdir kv;     /* one port for each engine; zeros: none */
    uint32_t n_engines;
    ds_family family;                    /* of remotes */
    ds_remote *remotes[DS_GEN_MANY_MAX]; /* instead: engines of other processes */
    uint32_t n_remotes;
    ds_gen_many *many;            /* several engines as one */
    ds_service_engines elsewhere; /* who holds it; zeros: this service does */
    ds_again *again;              /* in front of remotes */
    ds_apart *apart;              /* between them, where they have roles; NULL: they don't */
    ds_gen gen;
    ds_service_plan plan;
    ds_token stop_ids[DS_LLM_STOP_IDS];
    size_t n_stop_ids;
    uint32_t context;
    ds_token image_token; /* DS_TOKEN_NONE: no pictures */
    bool bf16;            /* activations */
    bool identified;
    ds_engine_identity identity;
    ds_model_digest_info digest;
    /* [mu] pictures go one after the other: each takes the next number and waits for its turn. Innermost */
    pthread_mutex_t mu;
    pthread_cond_t turn;
    uint64_t next, now;
    bool has_queue;
    /* whose turn it is */
    ds_runner *tower;
};

static const char *token_bytes(void *ctx, ds_token id, size_t *n)
{
    const ds_service *s = ctx;

    *n = 0;
    if (ds_tokenizer_kind(s->tokenizer, (uint32_t)id) == DS_TOKEN_DROPPED)
        return "";
    return ds_tokenizer_bytes(s->tokenizer, (uint32_t)id, n);
}

static ds_rc in_dir(char *path, size_t cap, const char *dir, const char *name, ds_err *err)
{
    return (size_t)snprintf(path, cap, "%s/%s", dir, name) < cap
               ? DS_OK
               : ds_fail(err, DS_E_ARG, "model directory: the path is longer than %zu bytes", cap - 16);
}

/* ---- steps of open ---- */

static ds_rc open_tokenizer(ds_service *s, const char *dir, ds_err *err)
{
    char path[4096];
    ds_rc rc = in_dir(path, sizeof path, dir, "tokenizer.json", err);

    return rc == DS_OK ? ds_tokenizer_open(&s->tokenizer, path, err) : rc;
}

static ds_rc open_queue(ds_service *s, ds_err *err)
{
    if (pthread_mutex_init(&s->mu, NULL) != 0)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    if (pthread_cond_init(&s->turn, NULL) != 0) {
        pthread_mutex_destroy(&s->mu);
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    }
    s->has_queue = true;
    return DS_OK;
}

static ds_rc open_tower(ds_service *s, const ds_service_opts *o, ds_err *err)
{
    ds_recipe_opts recipe;
    ds_runner_opts ro;

    s->image_token = DS_TOKEN_NONE;
    if (!ds_service_tower(s->model, o->engine.bf16, &ro) || o->no_pictures)
        return DS_OK;
    ds_recipe_opts_init(&recipe);
    ds_recipe_opts_fit(&recipe, s->tokenizer);
    s->image_token = ds_tokenizer_control(s->tokenizer, o->image_token ? o->image_token : recipe.image_token);
    return ds_runner_create(&s->tower, s->model, &ro, err);
}

/* Several engines have teams of their own, side by side on the CPUs; the one for all was for opening the model. */
static ds_rc create_engine(ds_service *s, uint32_t i, ds_pool *pool, const ds_engine_opts *each, ds_err *err)
{
    ds_engine_opts own = *each;

    own.comm = s->ranks ? ds_ranks_comm(s->ranks) : NULL;
    own.store = each->store ? &s->kv.store[i] : NULL;
    return ds_engine_create(&s->engines[i], s->model, pool, &own, err);
}

static ds_rc create_engines(ds_service *s, const ds_service_opts *o, const ds_engine_opts *each, ds_err *err)
{
    uint32_t n = s->n_engines, threads = ds_pool_size(s->pool), first = 0;
    ds_rc rc = DS_OK;

    if (n == 1)
        return create_engine(s, 0, s->pool, each, err);
    ds_pool_destroy(s->pool);
    s->pool = NULL;
    for (uint32_t i = 0; i < n && rc == DS_OK; i++) {
        ds_pool_opts po = { .n_threads = threads / n + (i < threads % n), .pin = o->place.team.pin, .first_cpu = first };
        first += po.n_threads;
        rc = ds_pool_create(&s->teams[i], &po, err);
        if (rc == DS_OK)
            rc = create_engine(s, i, s->teams[i], each, err);
    }
    return rc;
}

/* Prefixes on disk, for all engines. */
static ds_rc open_store(ds_service *s, const ds_service_opts *o, ds_engine_opts *engine, ds_err *err)
{
    ds_kv_layout *layout = malloc(sizeof *layout);
    ds_rc rc;

    if (!layout)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    ds_engine_kv_layout(layout, s->model, engine);
    rc = ds_kvdir_open(&s->kv,
                       &(ds_kvdir_opts){ .address = o->kv_address,
                                         .dirs = o->kv_dirs,
                                         .n_dirs = o->n_kv_dirs,
                                         .n_ports = s->n_engines,
                                         .capacity_bytes = o->kv_capacity,
                                         .identity = &s->identity,
                                         .layout = layout },
                       err);
    free(layout);
    engine->store = s->kv.store; /* whose plan is that of all */
    return rc;
}

/* The other ranks, which open their part of the model beside this one. Each has its share of the threads. */
static ds_rc start_ranks(ds_service *s, const char *dir, ds_service_opts *o, ds_err *err)
{
    uint32_t threads = o->place.team.n_threads ? o->place.team.n_threads : ds_cpu_count();

    if (s->n_engines > 1)
        return ds_fail(err, DS_E_ARG, "%u ranks and %u engines: ranks have one engine", o->ranks, s->n_engines);
    o->place.team.n_threads = threads > o->ranks ? threads / o->ranks : 1;
    return ds_ranks_start(
        &s->ranks,
        &(ds_ranks_opts){
            .n = o->ranks, .program = o->program, .dir = dir, .place = o->place, .bf16 = o->engine.bf16, .lost = o->lost, .ctx = o->ctx },
        err);
}

static ds_rc open_model(ds_service *s, const char *dir, const ds_service_opts *o, ds_err *err)
{
    uint32_t threads = o->place.team.n_threads ? o->place.team.n_threads : ds_cpu_count();
    ds_service_opts own = *o;
    ds_engine_opts each;
    ds_rc rc = o->ranks > 1 ? start_ranks(s, dir, &own, err) : DS_OK;

    if (rc != DS_OK)
        return rc;
    if (s->n_engines > threads)
        return ds_fail(err, DS_E_ARG, "%u engines: each needs a thread of the model, there %s %u", s->n_engines,
                       threads == 1 ? "is" : "are", threads);
    rc = ds_llm_open_rank(&s->pool, &s->model, dir, &own.place, o->ranks, 0, err);
    if (rc != DS_OK)
        return rc;
    s->config = *ds_model_config(s->model);
    rc = open_tokenizer(s, dir, err);
    if (rc == DS_OK)
        rc = ds_llm_check_vocab(s->tokenizer, dir, s->config.vocab_size, err);
    if (rc == DS_OK && o->dialect) {
        rc = ds_llm_identity(&s->identity, s->model, dir, o->dialect, &(ds_model_digest_opts){ .cache_dir = o->cache_dir, .pool = s->pool },
                             &s->digest, err);
        s->identified = rc == DS_OK;
    }
    own.engine.token_bytes = token_bytes;
    own.engine.ctx = s;
    own.engine.identity = s->identity;
    if (rc == DS_OK && (o->n_kv_dirs || o->kv_address))
        rc = open_store(s, o, &own.engine, err);
    if (rc == DS_OK)
        rc = ds_service_plan_get(&s->plan, &each, s->model, &own, err);
    if (rc == DS_OK && s->ranks)
        rc = ds_ranks_meet(s->ranks, s->model, dir, s->plan.engine.step_rows, err);
    if (rc == DS_OK)
        rc = open_tower(s, o, err);
    return rc == DS_OK ? create_engines(s, o, &each, err) : rc;
}

static ds_rc open_stub(ds_service *s, const char *dir, const ds_service_opts *o, ds_err *err)
{
    enum { BLOCKS = 16384 }; /* none holds anything */
    ds_engine_stub stub = *o->stub;
    ds_engine_opts each = ds_service_deal(o);
    char path[4096];
    uint32_t least;
    ds_rc rc = in_dir(path, sizeof path, dir, "config.json", err);

    s->image_token = DS_TOKEN_NONE;
    if (rc == DS_OK)
        rc = ds_config_load(&s->config, path, err);
    if (rc == DS_OK)
        rc = open_tokenizer(s, dir, err);
    if (rc != DS_OK)
        return rc;
    stub.vocab = ds_tokenizer_size(s->tokenizer);
    each.token_bytes = token_bytes;
    each.ctx = s;
    each.memory_bytes = 0;
    if (!each.max_context)
        each.max_context = s->config.max_position_embeddings;
    least = each.max_context / DS_KV_BLOCK_TOKENS + 2;
    if (!each.kv_blocks)
        each.kv_blocks = least > BLOCKS ? least : BLOCKS;
    for (uint32_t i = 0; i < s->n_engines && rc == DS_OK; i++)
        rc = ds_engine_create_stub(&s->engines[i], &stub, &each, err);
    return rc;
}

static ds_rc digest_file(uint8_t out[32], const char *dir, const char *name, ds_err *err)
{
    enum { MOST = 256 << 20 };
    char path[4096], *text = NULL;
    size_t n = 0;
    ds_rc rc = in_dir(path, sizeof path, dir, name, err);

    if (rc == DS_OK)
        rc = ds_file_read(&text, &n, path, MOST, err);
    if (rc == DS_OK)
        ds_sha256(out, text, n);
    free(text);
    return rc;
}

ds_rc ds_service_wire_model(ds_cw_model *m, const char *dir, ds_err *err)
{
    ds_rc rc = digest_file(m->tokenizer, dir, "tokenizer.json", err);

    return rc == DS_OK ? digest_file(m->config, dir, "config.json", err) : rc;
}

void ds_service_wire_self(const ds_service *s, ds_cw_engine *e)
{
    memcpy(e->weights, s->identity.model, sizeof e->weights);
    snprintf(e->how, sizeof e->how, "%s %s %s", DS_VERSION, s->model ? ds_model_kernels(s->model) : "none", s->bf16 ? "bf16" : "f32");
}

ds_rc ds_service_wire_digest(uint8_t out[32], const char *dir, ds_err *err)
{
    ds_cw_model m;
    ds_rc rc = ds_service_wire_model(&m, dir, err);

    if (rc == DS_OK)
        ds_sha256(out, &m, sizeof m);
    return rc;
}

uint32_t ds_service_live(const ds_service *s)
{
    return s->again ? ds_again_live(s->again) : 0;
}

/* The engines of other processes, as one generator whose requests outlive them. The context is the smallest. */
static ds_rc open_remotes(ds_service *s, const char *dir, const ds_service_opts *o, ds_err *err)
{
    ds_remote_opts ro = { .family = &s->family, .wait_ms = o->engine_wait_ms, .log = o->log };
    ds_gen parts[DS_GEN_MANY_MAX] = { 0 };
    bool apart = false;
    char path[4096];
    ds_rc rc = in_dir(path, sizeof path, dir, "config.json", err);

    s->image_token = DS_TOKEN_NONE;
    if (o->n_engines_at > DS_GEN_MANY_MAX)
        return ds_fail(err, DS_E_ARG, "%u engines: at most %d", o->n_engines_at, DS_GEN_MANY_MAX);
    if (rc == DS_OK)
        rc = ds_config_load(&s->config, path, err);
    if (rc == DS_OK)
        rc = open_tokenizer(s, dir, err);
    if (rc == DS_OK)
        rc = ds_service_wire_model(&ro.model, dir, err);
    ro.hidden = s->config.hidden_size;
    s->n_engines = 0;
    if (rc == DS_OK && o->engines_of) {
        rc = o->engines_of->open(o->engines_of->ctx, &ro, &s->many, err);
        if (rc == DS_OK)
            s->elsewhere = *o->engines_of;
    }
    for (; s->n_remotes < o->n_engines_at && rc == DS_OK; s->n_remotes += rc == DS_OK) {
        rc = ds_remote_open(&s->remotes[s->n_remotes], o->engines_at[s->n_remotes], &ro, err);
        if (rc == DS_OK)
            parts[s->n_remotes] = ds_remote_gen(s->remotes[s->n_remotes]);
    }
    if (rc == DS_OK && !s->many)
        rc = ds_apart_check(s->remotes, s->n_remotes, &apart, err);
    if (rc == DS_OK && apart)
        rc = ds_apart_create(&s->apart, s->remotes, s->n_remotes, ro.hidden, o->log, err);
    else if (rc == DS_OK && !s->many)
        rc = ds_gen_many_create(&s->many, parts, s->n_remotes, err);
    if (rc == DS_OK)
        rc = ds_again_create(&s->again, s->apart ? ds_apart_gen(s->apart) : ds_gen_many_gen(s->many), ro.hidden, 0, err);
    if (rc != DS_OK)
        return rc;
    s->gen = ds_again_gen(s->again);
    s->plan.engines = ds_gen_n_engines(s->gen);
    for (uint32_t i = 0; i < s->plan.engines; i++) {
        ds_gen_plan p;
        if (!ds_gen_plan_get(s->gen, i, &p))
            continue;
        if (i == 0 || p.max_context < s->plan.engine.max_context)
            s->plan.engine = p;
        s->plan.total += p.total;
    }
    s->context = s->plan.engine.max_context;
    return DS_OK;
}

static ds_rc start(ds_service *s, ds_err *err)
{
    ds_gen parts[DS_GEN_MANY_MAX] = { 0 };
    ds_rc rc = DS_OK;

    for (uint32_t i = 0; i < s->n_engines; i++)
        parts[i] = ds_engine_gen(s->engines[i]);
    s->gen = parts[0];
    if (s->n_engines > 1) {
        rc = ds_gen_many_create(&s->many, parts, s->n_engines, err);
        if (rc == DS_OK)
            s->gen = ds_gen_many_gen(s->many);
    }
    for (uint32_t i = 0; i < s->n_engines && rc == DS_OK; i++)
        rc = ds_engine_start(s->engines[i], err);
    return rc;
}

static ds_rc open_all(ds_service *s, const char *dir, const ds_service_opts *o, ds_err *err)
{
    ds_rc rc;

    s->n_engines = o->engines ? o->engines : 1;
    if (s->n_engines > DS_GEN_MANY_MAX)
        return ds_fail(err, DS_E_ARG, "%u engines: at most %d", s->n_engines, DS_GEN_MANY_MAX);
    rc = open_queue(s, err);
    if (rc == DS_OK)
        rc = o->n_engines_at || o->engines_of ? open_remotes(s, dir, o, err)
             : o->stub                        ? open_stub(s, dir, o, err)
                                              : open_model(s, dir, o, err);
    if (rc == DS_OK)
        rc = ds_llm_read_stop_ids(s->stop_ids, &s->n_stop_ids, dir, &s->config, err);
    if (rc != DS_OK || o->n_engines_at || o->engines_of)
        return rc;
    ds_engine_plan_of(s->engines[0], &s->plan.engine);
    s->context = s->plan.engine.max_context;
    if (o->stub) {
        s->plan.engines = s->n_engines;
        s->plan.total = s->plan.engine.total * s->n_engines;
    }
    return start(s, err);
}

ds_rc ds_service_open(ds_service **out, const char *dir, const ds_service_opts *o, ds_err *err)
{
    ds_service *s = calloc(1, sizeof *s);
    ds_rc rc;

    *out = NULL;
    if (!s)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    ds_family_init(&s->family);
    s->bf16 = o->engine.bf16;
    rc = open_all(s, dir, o, err);
    if (rc != DS_OK) {
        ds_service_close(s);
        return rc;
    }
    *out = s;
    return DS_OK;
}

ds_rc ds_service_state(const ds_service *s, ds_err *err)
{
    return s->ranks ? ds_ranks_state(s->ranks, err) : DS_OK;
}

void ds_service_stop(ds_service *s)
{
    for (uint32_t i = 0; i < s->n_engines && i < DS_GEN_MANY_MAX; i++) {
        ds_engine_destroy(s->engines[i]);
        s->engines[i] = NULL;
    }
    ds_ranks_stop(s->ranks);
    s->ranks = NULL;
    for (uint32_t i = 0; i < s->n_remotes; i++) {
        ds_remote_close(s->remotes[i]);
        s->remotes[i] = NULL;
    }
    if (s->elsewhere.stop)
        s->elsewhere.stop(s->elsewhere.ctx);
    ds_again_destroy(s->again);
    s->again = NULL;
    ds_apart_destroy(s->apart);
    s->apart = NULL;
    if (s->elsewhere.close)
        s->elsewhere.close(s->elsewhere.ctx);
    else
        ds_gen_many_destroy(s->many);
    s->elsewhere = (ds_service_engines){ .ctx = NULL };
    s->many = NULL;
    s->gen = (ds_gen){ 0 };
    ds_kvdir_close(&s->kv);
}

void ds_service_close(ds_service *s)
{
    if (!s)
        return;
    ds_service_stop(s);
    ds_runner_destroy(s->tower);
    ds_tokenizer_destroy(s->tokenizer);
    ds_model_close(s->model);
    for (uint32_t i = 0; i < DS_GEN_MANY_MAX; i++)
        ds_pool_destroy(s->teams[i]);
    ds_pool_destroy(s->pool);
    if (s->has_queue) {
        pthread_cond_destroy(&s->turn);
        pthread_mutex_destroy(&s->mu);
    }
    ds_family_fini(&s->family);
    free(s);
}

/* ---- parts ---- */

const ds_model *ds_service_model(const ds_service *s)
{
    return s->model;
}

const ds_config *ds_service_config(const ds_service *s)
{
    return &s->config;
}

const ds_tokenizer *ds_service_tokenizer(const ds_service *s)
{
    return s->tokenizer;
}

const ds_token *ds_service_stop_ids(const ds_service *s, size_t *n)
{
    *n = s->n_stop_ids;
    return s->stop_ids;
}

uint32_t ds_service_context(const ds_service *s)
{
    return s->context;
}

const ds_service_plan *ds_service_plan_of(const ds_service *s)
{
    return &s->plan;
}

const ds_engine_identity *ds_service_identity(const ds_service *s, const ds_model_digest_info **how)
{
    *how = &s->digest;
    return s->identified ? &s->identity : NULL;
}

ds_gen ds_service_gen(const ds_service *s)
{
    return s->gen;
}

ds_engine *ds_service_engine(const ds_service *s, uint32_t i)
{
    return i < s->n_engines ? s->engines[i] : NULL;
}

/* ---- pictures ---- */

bool ds_service_pictures(const ds_service *s, ds_image_rule *rule, ds_token *token)
{
    const ds_config *c = &s->config;

    *rule = (ds_image_rule){ .patch = c->vision.patch_size,
                             .merge = c->vision.downsample_ratio,
                             .max_tokens = c->vision.max_image_tokens,
                             .min_pixels = c->vision.min_pixels,
                             .max_wh_ratio = c->vision.max_wh_ratio };
    *token = s->image_token;
    return s->tower && s->image_token != DS_TOKEN_NONE;
}

ds_rc ds_service_picture(ds_service *s, const float *patches, uint32_t n_h, uint32_t n_w, float *out, ds_err *err)
{
    uint64_t mine;
    ds_rc rc;

    if (!s->tower)
        return ds_fail(err, DS_E_ARG, "this model takes no images");
    pthread_mutex_lock(&s->mu);
    mine = s->next++;
    while (s->now != mine)
        pthread_cond_wait(&s->turn, &s->mu);
    pthread_mutex_unlock(&s->mu);
    rc = ds_runner_image(s->tower, patches, n_h, n_w, out, err);
    pthread_mutex_lock(&s->mu);
    s->now++;
    pthread_cond_broadcast(&s->turn);
    pthread_mutex_unlock(&s->mu);
    return rc;
}
