/* Preparation of a call: body to prompt ids. Runs in any thread; touches nothing but the call, its kit and what is
 * constant in the server. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "server/server_internal.h"

enum { SSE_FRAME_BYTES = 20 }; /* what ds_sse_frame adds, and its NUL */

/* ---- the store as the request library sees it ---- */

typedef struct {
    ds_call *c;
    ds_response_store face;
} store_face;

static ds_rc load(void *ctx, const char *id, const char **json, size_t *n, void **hold, ds_err *err)
{
    const ds_call *c = ((store_face *)ctx)->c;
    char *text;
    ds_rc rc = ds_store_get(c->s->store, c->tenant, id, DS_STORE_ITEMS, ds_server_wall(c->s), &text, n, err);

    *json = text;
    *hold = text;
    return rc;
}

static void release(void *ctx, void *hold)
{
    (void)ctx;
    free(hold);
}

/* ---- one step each; the refusal is filled when they fail ---- */

static ds_rc internal(ds_call *c, ds_rc rc, const ds_err *err)
{
    ds_logf(c->s->o.log, DS_LOG_ERROR, "prepare id=%s message=\"%s\"", c->id, err->msg);
    if (rc == DS_E_NOMEM)
        ds_api_fail(&c->refusal, 503, NULL, NULL, NULL, "the server is out of memory");
    else
        ds_api_fail(&c->refusal, 500, NULL, NULL, NULL, "the request could not be prepared");
    return rc;
}

static ds_rc parse(ds_call *c)
{
    store_face face = { .c = c };
    ds_request_io io = { .store = &face.face, .seal = c->s->seal };
    ds_request_parse_args args = { .proto = c->proto, .opts = &c->s->recipe, .io = &io, .count_tokens = c->kind == DS_CALL_COUNT };
    ds_err err = { 0 };
    ds_rc rc;

    face.face = (ds_response_store){ &face, load, release };
    rc = ds_request_parse(&c->req, &args, ds_buf_str(&c->body), c->body.len, &c->refusal, &err);
    if (rc != DS_OK)
        return rc == DS_E_FORMAT ? rc : internal(c, rc, &err);
    c->info = ds_request_info(c->req);
    if (c->info->unknown_members.n && c->s->recipe.unknown_members == DS_UNKNOWN_MEMBERS_WARN)
        ds_logf(c->s->o.log, DS_LOG_WARN, "members id=%s unknown=\"%.*s\"", c->id, (int)c->info->unknown_members.n,
                c->info->unknown_members.p);
    return DS_OK;
}

static bool check_ids(ds_call *c, const char *field, const ds_token *ids, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++)
        if ((uint32_t)ids[k] >= ds_tokenizer_size(c->s->model.tokenizer)) {
            ds_api_fail(&c->refusal, 400, NULL, NULL, field, "the model has no token %d", ids[k]);
            return false;
        }
    return true;
}

/* What this server can't do, in the order of the fields. */
static ds_rc check(ds_call *c)
{
    const ds_server_opts *o = &c->s->o;
    const ds_request_info_data *i = c->info;
    bool known = !o->strict_model || !i->model.n;

    for (size_t k = 0; k < o->n_names && !known; k++)
        known = strlen(o->names[k]) == i->model.n && memcmp(o->names[k], i->model.p, i->model.n) == 0;
    if (!known)
        return ds_api_fail(&c->refusal, 404, "not_found_error", "model_not_found", "model", "the model %.*s does not exist here",
                           (int)(i->model.n < 200 ? i->model.n : 200), i->model.p);
    if (i->min_tokens > i->max_tokens)
        return ds_api_fail(&c->refusal, 400, NULL, NULL, "min_tokens", "min_tokens: %u is more than the output limit, %u", i->min_tokens,
                           i->max_tokens);
    for (uint32_t k = 0; k < i->n_logit_bias; k++)
        if ((uint32_t)i->logit_bias[k].id >= ds_tokenizer_size(c->s->model.tokenizer))
            return ds_api_fail(&c->refusal, 400, NULL, NULL, "logit_bias", "the model has no token %d", i->logit_bias[k].id);
    if (!check_ids(c, "stop_token_ids", i->stop_ids, i->n_stop_ids) || !check_ids(c, "allowed_token_ids", i->allowed_ids, i->n_allowed_ids))
        return DS_E_FORMAT;
    if (i->n_images && !c->s->model.vision.embed)
        return ds_api_fail(&c->refusal, 400, NULL, NULL, i->images[0].param, "this model takes no images");
    return DS_OK;
}

/* Gets and decodes the pictures; their number of tokens is known then. */
static ds_rc get_pictures(ds_call *c)
{
    ds_images_opts o;
    ds_err err = { 0 };
    ds_rc rc;

    if (c->info->n_images == 0)
        return DS_OK;
    c->pictures = calloc(c->info->n_images, sizeof *c->pictures);
    if (!c->pictures)
        return internal(c, ds_fail(&err, DS_E_NOMEM, "pictures"), &err);
    ds_images_opts_init(&o);
    o.prepare.rule = c->s->model.vision.rule;
    o.prepare.size_only = c->kind != DS_CALL_GENERATE;
    o.no_fetch = c->s->o.no_image_urls;
    rc = ds_request_images(c->req, c->pictures, &o, &c->refusal, &err);
    if (rc != DS_OK)
        return rc == DS_E_FORMAT ? rc : internal(c, rc, &err);
    c->n_pictures = c->info->n_images;
    return DS_OK;
}

/* Each placeholder becomes as many as its picture has tokens. */
static ds_rc widen(ds_call *c, ds_ids *ids)
{
    size_t cap = ids->n + ds_request_image_extra_tokens(c->req);
    ds_err err = { 0 };
    ds_token *p;

    if (c->n_pictures == 0)
        return DS_OK;
    p = realloc(ids->p, cap * sizeof *p);
    if (!p)
        return internal(c, ds_fail(&err, DS_E_NOMEM, "prompt ids"), &err);
    ids->p = p;
    ids->cap = cap;
    ids->n = ds_request_expand_images(c->req, c->s->model.vision.token_id, p, ids->n, cap);
    return ids->n ? DS_OK : internal(c, ds_fail(&err, DS_E_FORMAT, "placeholders and pictures differ"), &err);
}

static ds_rc embed(ds_call *c, const ds_picture *p, ds_gen_image *out, ds_err *err)
{
    const ds_server_vision *v = &c->s->model.vision;
    float *patches = calloc((size_t)p->n_h * p->n_w, (size_t)3 * p->patch * p->patch * sizeof(float)),
          *e = calloc(p->layout.tokens, v->hidden * sizeof(float));
    ds_rc rc = patches && e ? DS_OK : ds_fail(err, DS_E_NOMEM, "a picture of %u tokens", p->layout.tokens);

    if (rc == DS_OK) {
        ds_image_patches(p, patches);
        rc = v->embed(v->ctx, patches, p->n_h, p->n_w, e, err);
    }
    free(patches);
    out->embedding = e;
    out->n = p->layout.tokens;
    memcpy(out->digest, p->digest, sizeof out->digest);
    return rc;
}

/* Pictures through the tower, and where they stand in the prompt. */
static ds_rc embed_pictures(ds_call *c)
{
    const ds_ids *ids = &c->prompts[0].ids;
    ds_err err = { 0 };
    ds_rc rc = DS_OK;
    size_t at = 0;

    if (c->n_pictures == 0)
        return DS_OK;
    c->images = calloc(c->n_pictures, sizeof *c->images);
    if (!c->images)
        rc = ds_fail(&err, DS_E_NOMEM, "pictures");
    for (uint32_t i = 0; i < c->n_pictures && rc == DS_OK; i++) {
        while (at < ids->n && ids->p[at] != c->s->model.vision.token_id)
            at++;
        c->images[i].pos = (uint32_t)at;
        rc = embed(c, &c->pictures[i], &c->images[i], &err);
        at += c->images[i].n;
        ds_picture_free(&c->pictures[i]);
    }
    return rc == DS_OK ? DS_OK : internal(c, rc, &err);
}

static ds_rc encode(ds_call *c, ds_kit *k, uint32_t i)
{
    ds_call_prompt *p = &c->prompts[i];
    const ds_run *runs;
    const ds_token *ids;
    size_t n, n_runs;
    ds_err err = { 0 };
    ds_rc rc;

    p->ids.n = 0;
    ds_request_prompt_ids(c->req, i, &ids, &n);
    if (ids) {
        for (size_t t = 0; t < n; t++)
            if ((uint32_t)ids[t] >= ds_tokenizer_size(c->s->model.tokenizer))
                return ds_api_fail(&c->refusal, 400, NULL, NULL, "prompt", "the model has no token %d", ids[t]);
        assert(n > 0); /* the parser has refused it */
        p->ids = (ds_ids){ malloc(n * sizeof *ids), n, n };
        if (!p->ids.p) {
            p->ids = (ds_ids){ 0 };
            return internal(c, ds_fail(&err, DS_E_NOMEM, "prompt ids"), &err);
        }
        memcpy(p->ids.p, ids, n * sizeof *ids);
        return DS_OK;
    }
    rc = ds_request_render(c->req, i, &runs, &n_runs, &err);
    if (rc == DS_OK && c->kind == DS_CALL_TOKENIZE &&
        c->proto == DS_PROTO_COMPLETIONS) { /* the text alone, without the beginning of a sentence */
        runs++;
        n_runs--;
    }
    if (rc == DS_OK)
        rc = ds_encoder_runs(k->encoder, runs, n_runs, &p->ids, &err);
    if (rc == DS_E_ARG) /* a marker that the model's tokenizer hasn't, or a text beyond a pattern's limit */
        return ds_api_fail(&c->refusal, 400, NULL, NULL, NULL, "%s", err.msg);
    return rc == DS_OK ? widen(c, &p->ids) : internal(c, rc, &err);
}

/* The prompt's last tokens, where the client asked for so many at most. */
static ds_rc truncate_prompt(ds_call *c, uint32_t i)
{
    int64_t most = c->info->truncate_prompt;
    ds_ids *ids = &c->prompts[i].ids;
    ds_err err = { 0 };
    ds_rc rc;

    if (most == -1)
        most = c->s->model.max_context - 1;
    if (most == 0 || ids->n <= (size_t)most)
        return DS_OK;
    if (c->n_pictures)
        return ds_api_fail(&c->refusal, 400, NULL, NULL, "truncate_prompt_tokens", "not possible with pictures in the prompt");
    memmove(ids->p, ids->p + (ids->n - (size_t)most), (size_t)most * sizeof *ids->p);
    ids->n = (size_t)most;
    rc = ds_request_set_prompt_ids(c->req, i, ids->p, ids->n, &err);
    return rc == DS_OK ? DS_OK : internal(c, rc, &err);
}

/* What the answers must be: a grammar for each prompt, the same one. */
static ds_rc constrain(ds_call *c)
{
    ds_constrain_what what;
    ds_err err = { 0 };
    bool any = false;
    ds_rc rc = c->s->recipe.no_constraints ? DS_OK : ds_constrain_want(&what, &any, c->info, &err);

    for (uint32_t i = 0; i < c->n_prompts && any && rc == DS_OK; i++)
        rc = ds_constrain_begin(&c->prompts[i].constrained, c->s->constrain, c->keyed ? c->tenant : NULL, &what, c->info->n, &err);
    if (rc == DS_E_ARG)
        return ds_api_fail(&c->refusal, 400, NULL, NULL, what.param, "%s: %s", what.param, err.msg);
    if (rc == DS_E_AGAIN)
        return ds_api_fail(&c->refusal, 503, NULL, NULL, NULL, "%s; try again in 1s", err.msg);
    return rc == DS_OK ? DS_OK : internal(c, rc, &err);
}

/* Encodes all prompts; what is too long loses its oldest turns where the client asked for that. */
static ds_rc encode_all(ds_call *c, ds_kit *k)
{
    bool generate = c->kind == DS_CALL_GENERATE;
    ds_err err = { 0 };
    ds_rc rc = DS_OK;

    c->n_prompts = c->info->n_prompts;
    c->prompts = calloc(c->n_prompts, sizeof *c->prompts);
    if (!c->prompts)
        return internal(c, ds_fail(&err, DS_E_NOMEM, "prompts"), &err);
    for (uint32_t i = 0; i < c->n_prompts && rc == DS_OK; i++) {
        for (;;) {
            size_t over;
            uint32_t turns;
            rc = encode(c, k, i);
            if (rc == DS_OK && generate)
                rc = truncate_prompt(c, i);
            if (rc != DS_OK || !generate)
                break;
            rc = ds_request_check_length(c->req, c->prompts[i].ids.n, &c->prompts[i].max_tokens, &c->refusal);
            if (rc == DS_OK || !c->info->truncation_auto || c->n_pictures) /* pictures of dropped turns would be gone from the list */
                break;
            over = c->prompts[i].ids.n + 1 - c->s->model.max_context;
            if (ds_request_drop_oldest(c->req, over < 16 ? 16 : over, &turns, &err) != DS_OK || turns == 0)
                break;
        }
        c->n_prompt_tokens += c->prompts[i].ids.n;
    }
    return rc;
}

static ds_rc encode_bad_words(ds_call *c, ds_kit *k)
{
    const ds_request_info_data *s = c->info;
    ds_err err = { 0 };
    ds_rc rc = s->n_bad_words ? ds_bad_words_make(&c->bad_words, s->bad_words, s->n_bad_words, k->encoder, &err) : DS_OK;

    if (rc == DS_E_ARG)
        return ds_api_fail(&c->refusal, 400, NULL, NULL, "bad_words", "%s", err.msg);
    return rc == DS_OK ? DS_OK : internal(c, rc, &err);
}

static void on_event(void *ctx, const char *event, const char *data, size_t n)
{
    ds_call *c = ctx;
    size_t most = n + (event ? strlen(event) : 0) + SSE_FRAME_BYTES;
    char *to = c->x ? ds_out_reserve(c->x, most) : NULL;

    if (to)
        ds_out_put(c->x, ds_sse_frame(to, most, event, data, n));
}

static int64_t now(void)
{
    return (int64_t)time(NULL);
}

static ds_rc make_stream(ds_call *c)
{
    ds_stream_opts so = {
        .id = c->id,
        .created = c->created,
        .model = c->info->model.n ? NULL : c->s->o.names[0],
        .now = now,
        .tokenizer = c->s->model.tokenizer,
        .seal = c->s->seal,
        .keep = c->proto == DS_PROTO_RESPONSES && c->info->store ? ds_call_keep : NULL,
        .sink = c->info->stream ? on_event : NULL,
        .ctx = c,
    };
    ds_err err = { 0 };
    ds_rc rc = ds_stream_create(&c->stream, c->req, &so, &err);

    if (rc != DS_OK)
        return internal(c, rc, &err);
    c->n_samples = c->info->n;
    c->unfinished = ds_stream_choices(c->stream);
    c->choices = calloc(c->unfinished, sizeof *c->choices);
    return c->choices ? DS_OK : internal(c, ds_fail(&err, DS_E_NOMEM, "choices"), &err);
}

void ds_call_prepare(ds_call *c, ds_kit *k)
{
    c->rc = parse(c);
    if (c->rc == DS_OK)
        c->rc = check(c);
    if (c->rc == DS_OK)
        c->rc = get_pictures(c);
    if (c->rc == DS_OK)
        c->rc = encode_all(c, k);
    if (c->rc == DS_OK && c->kind == DS_CALL_GENERATE)
        c->rc = encode_bad_words(c, k);
    if (c->rc == DS_OK && c->kind == DS_CALL_GENERATE)
        c->rc = constrain(c);
    if (c->rc == DS_OK && c->kind == DS_CALL_GENERATE)
        c->rc = embed_pictures(c);
    if (c->rc == DS_OK && c->kind == DS_CALL_GENERATE)
        c->rc = make_stream(c);
    if (!c->s->o.tag) /* the request owns what it needs of its body */
        ds_buf_free(&c->body);
    c->prepared_us = ds_now_us();
}
