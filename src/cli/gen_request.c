#include "cli/gen_request.h"

#include <stdlib.h>
#include <string.h>

#include <ds/recipe.h>

#include "role/service.h"

enum { MAX_SAMPLES = 16, MAX_TOP = 20 };

ds_sampling ds_cli_sampling(const ds_cli_gen_opts *o)
{
    return (ds_sampling){ .temperature = o->temperature,
                          .top_p = o->top_p,
                          .min_p = o->min_p,
                          .top_k = (uint32_t)o->top_k,
                          .repetition_penalty = o->repetition,
                          .presence_penalty = o->presence,
                          .frequency_penalty = o->frequency,
                          .seed = (uint64_t)o->seed };
}

ds_rc ds_cli_request_init(ds_cli_request *q, const ds_cli_gen_opts *o, uint64_t line, ds_err *err)
{
    *q = (ds_cli_request){
        .max_tokens = (uint32_t)o->max_tokens,
        .info = { .n = 1, .min_tokens = (uint32_t)o->min_tokens, .ignore_eos = o->ignore_eos, .sampling = DS_SAMPLING_MISSING },
        .sampling = ds_cli_sampling(o),
        .what = o->what,
    };
    q->sampling.seed += line;
    q->sampling.seeded = true;
    if (o->stop.n == 0)
        return DS_OK;
    q->info.stop = q->stop = calloc(o->stop.n, sizeof *q->stop);
    if (!q->stop)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    for (size_t i = 0; i < o->stop.n; i++)
        if (*o->stop.v[i])
            q->stop[q->info.n_stop++] = (ds_str){ o->stop.v[i], strlen(o->stop.v[i]) };
    return DS_OK;
}

void ds_cli_request_fini(ds_cli_request *q)
{
    ds_ids_free(&q->ids);
    free(q->stop);
    free(q->bias);
    free(q->rule_ids);
    free(q->words);
    ds_bad_words_free(&q->bad);
    for (size_t i = 0; i < q->n_images; i++)
        free((void *)q->images[i].embedding);
    free(q->images);
    ds_constrained_end(q->grammar);
    ds_json_free(q->doc);
    ds_request_destroy(q->chat);
    *q = (ds_cli_request){ 0 };
}

static ds_rc push_id(ds_cli_request *q, ds_token id, ds_err *err)
{
    if (q->ids.n == q->ids.cap) {
        size_t cap = q->ids.cap ? 2 * q->ids.cap : 64;
        ds_token *p = realloc(q->ids.p, cap * sizeof *p);
        if (!p)
            return ds_fail(err, DS_E_NOMEM, "out of memory");
        q->ids.p = p;
        q->ids.cap = cap;
    }
    q->ids.p[q->ids.n++] = id;
    return DS_OK;
}

ds_rc ds_cli_request_text(ds_cli_request *q, ds_cli_gen *g, const char *text, size_t n, ds_err *err)
{
    ds_rc rc = push_id(q, ds_model_config(g->model)->bos_token_id, err);
    return rc == DS_OK ? ds_encoder_text(g->encoder, text, n, &q->ids, err) : rc;
}

/* ---- JSON ---- */

static ds_rc wrong_type(const ds_json *v, const char *field, const char *want, ds_err *err)
{
    return ds_fail(err, DS_E_FORMAT, "%s: expected %s, got %.40s", field, want,
                   ds_json_is(v, DS_JSON_NUMBER) ? v->text : ds_json_type_name(v));
}

/* Null counts as absent. */
static const ds_json *member(const ds_json *obj, const char *field)
{
    const ds_json *v = ds_json_get(obj, field);
    return ds_json_is(v, DS_JSON_NULL) ? NULL : v;
}

/* A field that is absent leaves *out as it is. */
static ds_rc get_real(const ds_json *obj, const char *field, double *out, ds_err *err)
{
    const ds_json *v = member(obj, field);
    if (!v || ds_json_f64(v, out))
        return DS_OK;
    return wrong_type(v, field, "a number", err);
}

static ds_rc get_int(const ds_json *obj, const char *field, int64_t *out, int64_t min, int64_t max, ds_err *err)
{
    const ds_json *v = member(obj, field);
    int64_t x;

    if (!v)
        return DS_OK;
    if (!ds_json_i64(v, &x))
        return wrong_type(v, field, "a whole number", err);
    if (x < min || x > max)
        return ds_fail(err, DS_E_FORMAT, "%s: %lld is not within %lld..%lld", field, (long long)x, (long long)min, (long long)max);
    *out = x;
    return DS_OK;
}

static ds_rc get_bool(const ds_json *obj, const char *field, bool *out, ds_err *err)
{
    const ds_json *v = member(obj, field);

    if (!v)
        return DS_OK;
    *out = v->type == DS_JSON_TRUE;
    return *out || v->type == DS_JSON_FALSE ? DS_OK : wrong_type(v, field, "true or false", err);
}

/* {"id": bias, …}; the engine checks the values. */
static ds_rc get_bias(ds_cli_request *q, const ds_json *v, uint32_t vocab, ds_err *err)
{
    if (!v)
        return DS_OK;
    if (v->type != DS_JSON_OBJECT)
        return wrong_type(v, "logit_bias", "an object", err);
    q->bias = calloc(v->n ? v->n : 1, sizeof *q->bias);
    if (!q->bias)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    for (const ds_json *b = v->child; b; b = b->next) {
        char *end;
        unsigned long id = strtoul(b->key, &end, 10);
        double bias;
        if (b->key_len == 0 || strspn(b->key, "0123456789") != b->key_len || id >= vocab)
            return ds_fail(err, DS_E_FORMAT, "logit_bias: '%.24s' is no token id of 0..%u", b->key, vocab - 1);
        if (!ds_json_f64(b, &bias))
            return wrong_type(b, "logit_bias", "numbers", err);
        q->bias[q->info.n_logit_bias++] = (ds_token_bias){ (uint32_t)id, (float)bias };
    }
    q->info.logit_bias = q->bias;
    return DS_OK;
}

static ds_rc get_stop(ds_cli_request *q, const ds_json *v, ds_err *err)
{
    const ds_json *s = v && v->type == DS_JSON_ARRAY ? v->child : v;
    size_t n = v && v->type == DS_JSON_ARRAY ? v->n : 1;

    if (!v)
        return DS_OK;
    if (v->type != DS_JSON_STRING && v->type != DS_JSON_ARRAY)
        return wrong_type(v, "stop", "a string or a list of strings", err);
    if (n > DS_CLI_MAX_STOPS)
        return ds_fail(err, DS_E_FORMAT, "stop: %zu strings, at most %d", n, DS_CLI_MAX_STOPS);
    free(q->stop);
    q->info.n_stop = 0;
    q->info.stop = q->stop = calloc(n ? n : 1, sizeof *q->stop);
    if (!q->stop)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    for (; s; s = v->type == DS_JSON_ARRAY ? s->next : NULL) {
        if (s->type != DS_JSON_STRING)
            return wrong_type(s, "stop", "strings", err);
        if (s->text_len)
            q->stop[q->info.n_stop++] = (ds_str){ s->text, s->text_len };
    }
    return DS_OK;
}

/* `logprobs`: true, or how many alternatives; `top_logprobs` as chat clients have it. */
static ds_rc get_logprobs(ds_cli_request *q, const ds_json *obj, ds_err *err)
{
    const ds_json *v = ds_json_get(obj, "logprobs");
    int64_t top = 0;
    ds_rc rc;

    if (ds_json_is(v, DS_JSON_NUMBER)) {
        rc = get_int(obj, "logprobs", &top, 0, MAX_TOP, err);
        q->info.logprobs = true;
    } else if (!v || v->type == DS_JSON_NULL || v->type == DS_JSON_FALSE || v->type == DS_JSON_TRUE) {
        rc = get_int(obj, "top_logprobs", &top, 0, MAX_TOP, err);
        q->info.logprobs = ds_json_is(v, DS_JSON_TRUE);
    } else {
        return wrong_type(v, "logprobs", "a boolean or a whole number", err);
    }
    q->info.top_logprobs = q->info.logprobs ? (uint32_t)top : 0;
    top = -1; /* absent */
    if (rc == DS_OK)
        rc = get_int(obj, "prompt_logprobs", &top, 0, MAX_TOP, err);
    q->info.prompt_logprobs = top >= 0;
    q->info.prompt_top_logprobs = top >= 0 ? (uint32_t)top : 0;
    return rc;
}

/* A list of token ids, to the end of what q->rule_ids holds. */
static ds_rc get_ids(const ds_json *v, const char *field, uint32_t vocab, ds_token *to, uint32_t *n, ds_err *err)
{
    if (!v)
        return DS_OK;
    if (v->type != DS_JSON_ARRAY)
        return wrong_type(v, field, "a list of token ids", err);
    for (const ds_json *t = v->child; t; t = t->next) {
        int64_t id;
        if (!ds_json_i64(t, &id))
            return wrong_type(t, field, "whole numbers", err);
        if (id < 0 || id >= vocab)
            return ds_fail(err, DS_E_FORMAT, "%s: %lld is outside the vocabulary, 0..%u", field, (long long)id, vocab - 1);
        to[(*n)++] = (ds_token)id;
    }
    return DS_OK;
}

/* What says which tokens may come and end the text, and where the prompt begins. */
static ds_rc get_rules(ds_cli_request *q, const ds_json *obj, uint32_t vocab, ds_err *err)
{
    const ds_json *stop = member(obj, "stop_token_ids"), *allowed = member(obj, "allowed_token_ids"), *bad = member(obj, "bad_words");
    uint32_t n_stop = stop ? stop->n : 0, n_allowed = allowed ? allowed->n : 0, n_bad = bad ? bad->n : 0;
    ds_request_info_data *i = &q->info;
    ds_rc rc;

    q->rule_ids = calloc((size_t)n_stop + n_allowed + 1, sizeof *q->rule_ids);
    q->words = calloc((size_t)n_bad + 1, sizeof *q->words);
    if (!q->rule_ids || !q->words)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    i->stop_ids = q->rule_ids;
    i->allowed_ids = q->rule_ids + n_stop;
    i->bad_words = q->words;
    rc = get_ids(stop, "stop_token_ids", vocab, q->rule_ids, &i->n_stop_ids, err);
    if (rc == DS_OK)
        rc = get_ids(allowed, "allowed_token_ids", vocab, q->rule_ids + n_stop, &i->n_allowed_ids, err);
    if (rc == DS_OK && allowed && !i->n_allowed_ids)
        return ds_fail(err, DS_E_FORMAT, "allowed_token_ids: the list is empty");
    if (rc == DS_OK && bad && bad->type != DS_JSON_ARRAY)
        return wrong_type(bad, "bad_words", "a list of strings", err);
    for (const ds_json *w = bad ? bad->child : NULL; rc == DS_OK && w; w = w->next) {
        if (w->type != DS_JSON_STRING || !w->text_len)
            return ds_fail(err, DS_E_FORMAT, "bad_words: expected strings that aren't empty");
        q->words[i->n_bad_words++] = (ds_str){ w->text, w->text_len };
    }
    if (rc == DS_OK)
        rc = get_bool(obj, "include_stop_str_in_output", &i->include_stop, err);
    if (rc == DS_OK)
        rc = get_int(obj, "truncate_prompt_tokens", &i->truncate_prompt, -1, INT32_MAX, err);
    if (rc == DS_OK && member(obj, "truncate_prompt_tokens") && i->truncate_prompt == 0)
        return ds_fail(err, DS_E_FORMAT, "truncate_prompt_tokens: 0 leaves no prompt");
    return rc;
}

static ds_rc get_common(ds_cli_request *q, const ds_json *obj, uint32_t vocab, ds_err *err)
{
    ds_request_info_data *i = &q->info;
    int64_t max_tokens = q->max_tokens, min_tokens = i->min_tokens, top_k = DS_TOP_K_MISSING, seed = 0, n = 1;
    ds_sampling *s = &i->sampling;
    ds_rc rc = get_int(obj, "max_tokens", &max_tokens, 1, INT32_MAX, err);

    if (rc == DS_OK)
        rc = get_int(obj, "min_tokens", &min_tokens, 0, INT32_MAX, err);
    if (rc == DS_OK)
        rc = get_bool(obj, "ignore_eos", &i->ignore_eos, err);
    if (rc == DS_OK)
        rc = get_bias(q, member(obj, "logit_bias"), vocab, err);
    if (rc == DS_OK)
        rc = get_int(obj, "top_k", &top_k, 0, INT32_MAX, err);
    if (rc == DS_OK)
        rc = get_int(obj, "seed", &seed, INT64_MIN, INT64_MAX, err);
    if (rc == DS_OK)
        rc = get_int(obj, "n", &n, 1, MAX_SAMPLES, err);
    if (rc == DS_OK)
        rc = get_real(obj, "temperature", &s->temperature, err);
    if (rc == DS_OK)
        rc = get_real(obj, "top_p", &s->top_p, err);
    if (rc == DS_OK)
        rc = get_real(obj, "min_p", &s->min_p, err);
    if (rc == DS_OK)
        rc = get_real(obj, "repetition_penalty", &s->repetition_penalty, err);
    if (rc == DS_OK)
        rc = get_real(obj, "presence_penalty", &s->presence_penalty, err);
    if (rc == DS_OK)
        rc = get_real(obj, "frequency_penalty", &s->frequency_penalty, err);
    if (rc == DS_OK)
        rc = get_logprobs(q, obj, err);
    if (rc == DS_OK)
        rc = get_rules(q, obj, vocab, err);
    q->max_tokens = (uint32_t)max_tokens;
    i->min_tokens = (uint32_t)min_tokens;
    s->top_k = (uint32_t)top_k;
    s->seeded = member(obj, "seed") != NULL;
    s->seed = (uint64_t)seed;
    i->n = (uint32_t)n;
    return rc == DS_OK ? get_stop(q, member(obj, "stop"), err) : rc;
}

static ds_rc get_tokens(ds_cli_request *q, const ds_json *v, uint32_t vocab, ds_err *err)
{
    ds_rc rc = DS_OK;

    if (v->type != DS_JSON_ARRAY)
        return wrong_type(v, "tokens", "a list of token ids", err);
    if (v->n == 0)
        return ds_fail(err, DS_E_FORMAT, "tokens: the list is empty");
    for (const ds_json *t = v->child; t && rc == DS_OK; t = t->next) {
        int64_t id;
        bool number = ds_json_i64(t, &id);
        if (!number && !(ds_json_is(t, DS_JSON_NUMBER) && strspn(t->text, "-0123456789") == t->text_len))
            return wrong_type(t, "tokens", "whole numbers", err);
        if (!number || id < 0 || id >= vocab)
            return ds_fail(err, DS_E_FORMAT, "tokens: token id %.24s at position %zu is outside the vocabulary, 0..%u", t->text, q->ids.n,
                           vocab - 1);
        rc = push_id(q, (uint32_t)id, err);
    }
    return rc;
}

static ds_rc token_rules(ds_cli_request *q, ds_cli_gen *g, ds_err *err)
{
    int64_t most = q->info.truncate_prompt == -1 ? (int64_t)g->context - 1 : q->info.truncate_prompt;

    if (most && q->ids.n > (size_t)most) {
        if (q->n_images)
            return ds_fail(err, DS_E_FORMAT, "truncate_prompt_tokens: not possible with pictures in the prompt");
        memmove(q->ids.p, q->ids.p + (q->ids.n - (size_t)most), (size_t)most * sizeof *q->ids.p);
        q->ids.n = (size_t)most;
    }
    return q->info.n_bad_words ? ds_bad_words_make(&q->bad, q->info.bad_words, q->info.n_bad_words, g->encoder, err) : DS_OK;
}

/* What the request asks of its answers; if that is nothing, the options' value stays. */
static ds_rc want(ds_cli_request *q, ds_err *err)
{
    ds_constrain_what what = { 0 };
    bool any;
    ds_rc rc = ds_constrain_want(&what, &any, ds_request_info(q->chat), err);

    if (rc != DS_OK)
        return ds_err_prefix(err, rc, "%s: ", what.param);
    if (any)
        q->what = what;
    return DS_OK;
}

/* Members by which a request says what its answers must be; some are refused by name. */
static const char *const constraints[] = { "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
                                           "response_format",    "json_schema", "regex",        "ebnf",          "grammar",
                                           "structural_tag" };

static bool asks(const ds_json *line)
{
    for (size_t i = 0; i < sizeof constraints / sizeof *constraints; i++)
        if (member(line, constraints[i]))
            return true;
    return false;
}

/* What a line with a raw prompt asks of its answers, by way of the request that it would be over HTTP: what is refused
 * there, by name, is refused here. */
static ds_rc get_constraint(ds_cli_request *q, const ds_json *line, ds_err *err)
{
    ds_recipe_opts opts;
    ds_api_error refusal;
    ds_buf b = { 0 };
    bool any = false;
    ds_rc rc;

    ds_buf_puts(&b, "{\"model\":\"local\",\"prompt\":\"\"");
    for (size_t i = 0; i < sizeof constraints / sizeof *constraints; i++) {
        const ds_json *v = member(line, constraints[i]);
        if (!v)
            continue;
        any = true;
        ds_buf_printf(&b, ",\"%s\":", constraints[i]);
        ds_json_write(&b, v, DS_JSON_COMPACT);
    }
    ds_buf_putc(&b, '}');
    ds_recipe_opts_init(&opts);
    opts.own_decoder = true;
    if (b.oom)
        rc = ds_fail(err, DS_E_NOMEM, "out of memory");
    else
        rc = any ? ds_request_parse(&q->chat, &(ds_request_parse_args){ .proto = DS_PROTO_COMPLETIONS, .opts = &opts }, b.p, b.len,
                                    &refusal, err)
                 : DS_OK;
    ds_buf_free(&b);
    return rc == DS_OK && any ? want(q, err) : rc;
}

/* What the options ask for as a member of a chat request, so that it means there what it means over HTTP: with tools,
 * and for thinking. */
static void put_constraint(ds_buf *b, const ds_constrain_what *w)
{
    bool json = w->kind == DS_CONSTRAINT_JSON_SCHEMA, choice = w->kind == DS_CONSTRAINT_CHOICE;

    ds_buf_printf(b, "\"structured_outputs\":{\"%s\":",
                  json                             ? "json"
                  : choice                         ? "choice"
                  : w->kind == DS_CONSTRAINT_REGEX ? "regex"
                                                   : "grammar");
    if (json || choice)
        ds_buf_put(b, w->text.p, w->text.n);
    else
        ds_json_write_str(b, w->text.p, w->text.n, DS_JSON_COMPACT);
    ds_buf_puts(b, "},");
}

/* The request as the protocol library reads it; what the client left out keeps the options' value. */
static ds_rc get_chat(ds_cli_request *q, ds_cli_gen *g, const char *line, size_t n, ds_err *err)
{
    ds_request_info_data given;
    const ds_run *runs;
    size_t n_runs;
    ds_api_error refusal;
    ds_recipe_opts opts;
    ds_buf whole = { 0 };
    ds_constraint_kind of_options = asks(ds_json_root(q->doc)) ? DS_CONSTRAINT_NONE : q->what.kind;
    size_t brace = (size_t)((const char *)memchr(line, '{', n) - line) + 1;
    ds_rc rc;

    ds_recipe_opts_init(&opts);
    ds_recipe_opts_fit(&opts, g->tokenizer);
    opts.own_decoder = opts.allow_regex = true;
    ds_buf_putc(&whole, '{');
    if (!ds_json_get(ds_json_root(q->doc), "model")) /* the program has only one */
        ds_buf_puts(&whole, "\"model\":\"local\",");
    if (of_options != DS_CONSTRAINT_NONE)
        put_constraint(&whole, &q->what);
    if (!ds_buf_put(&whole, line + brace, n - brace)) {
        ds_buf_free(&whole);
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    }
    rc = ds_request_parse(&q->chat, &(ds_request_parse_args){ .proto = DS_PROTO_CHAT, .opts = &opts }, whole.p, whole.len, &refusal, err);
    ds_buf_free(&whole);
    if (rc != DS_OK)
        return refusal.param[0] && strncmp(err->msg, refusal.param, strlen(refusal.param)) != 0
                   ? ds_err_prefix(err, rc, "%s: ", refusal.param)
                   : rc;
    given = *ds_request_info(q->chat);
    if (!given.n_stop) {
        given.stop = q->info.stop;
        given.n_stop = q->info.n_stop;
    }
    if (given.has_max_tokens)
        q->max_tokens = given.max_tokens;
    if (!given.min_tokens)
        given.min_tokens = q->info.min_tokens;
    given.ignore_eos = given.ignore_eos || q->info.ignore_eos;
    q->info = given;
    q->what = (ds_constrain_what){ 0 };
    rc = want(q, err);
    if (of_options != DS_CONSTRAINT_NONE && q->what.kind != DS_CONSTRAINT_NONE)
        q->what.kind = of_options; /* which of the two notations rules are in isn't guessed */
    if (rc == DS_OK)
        rc = ds_request_render(q->chat, 0, &runs, &n_runs, err);
    if (rc == DS_OK)
        rc = ds_encoder_runs(g->encoder, runs, n_runs, &q->ids, err);
    return rc == DS_OK ? ds_cli_request_images(q, g, err) : rc;
}

static ds_rc check(const ds_cli_request *q, ds_err *err)
{
    const ds_request_info_data *i = &q->info;

    if (i->min_tokens > q->max_tokens)
        return ds_fail(err, DS_E_FORMAT, "min_tokens: %u is more than max_tokens, %u", i->min_tokens, q->max_tokens);
    if (i->n_stop > DS_CLI_MAX_STOPS)
        return ds_fail(err, DS_E_FORMAT, "stop: %u strings, at most %d", i->n_stop, DS_CLI_MAX_STOPS);
    for (uint32_t k = 0; k < i->n_stop; k++)
        if (i->stop[k].n > DS_CLI_MAX_STOP_BYTES)
            return ds_fail(err, DS_E_FORMAT, "stop: a string of %zu bytes, at most %d", i->stop[k].n, DS_CLI_MAX_STOP_BYTES);
    return DS_OK;
}

static ds_rc read_json(ds_cli_request *q, ds_cli_gen *g, const char *line, size_t n, ds_err *err)
{
    const ds_json *root, *prompt, *tokens, *messages;
    ds_rc rc = ds_json_parse(&q->doc, line, n, NULL, err);

    if (rc != DS_OK)
        return rc;
    root = ds_json_root(q->doc);
    if (root->type != DS_JSON_OBJECT)
        return wrong_type(root, "the line", "an object", err);
    prompt = member(root, "prompt");
    tokens = member(root, "tokens");
    messages = member(root, "messages");
    if (!!prompt + !!tokens + !!messages != 1)
        return ds_fail(err, DS_E_FORMAT, "expected one of prompt, tokens and messages");
    if (messages)
        return get_chat(q, g, line, n, err);
    rc = get_common(q, root, ds_model_config(g->model)->vocab_size, err);
    if (rc == DS_OK)
        rc = get_constraint(q, root, err);
    if (rc != DS_OK)
        return rc;
    if (tokens)
        return get_tokens(q, tokens, ds_model_config(g->model)->vocab_size, err);
    if (prompt->type != DS_JSON_STRING)
        return wrong_type(prompt, "prompt", "a string", err);
    return ds_cli_request_text(q, g, prompt->text, prompt->text_len, err);
}

ds_rc ds_cli_request_json(ds_cli_request *q, ds_cli_gen *g, const char *line, size_t n, ds_err *err)
{
    ds_rc rc = read_json(q, g, line, n, err);

    if (rc == DS_OK)
        rc = token_rules(q, g, err);
    return rc == DS_OK ? check(q, err) : rc;
}

ds_rc ds_cli_request_begin(ds_cli_request *q, ds_cli_gen *g, ds_err *err)
{
    ds_constrain *table;
    ds_rc rc;

    if ((q->what.kind == DS_CONSTRAINT_NONE && !q->what.calls) || q->grammar)
        return DS_OK;
    rc = ds_llm_grammars(g->llm, &table, err);
    if (rc == DS_OK)
        rc = ds_constrain_begin(&q->grammar, table, NULL, &q->what, q->info.n, err);
    return rc == DS_E_ARG && q->what.param ? ds_err_prefix(err, rc, "%s: ", q->what.param) : rc;
}

ds_rc ds_cli_request_failure(const ds_cli_request *q, const ds_event *end, ds_err *err)
{
    const char *why = q->grammar && end->end.reason == DS_ENDED_FAILED ? ds_constrained_failure(q->grammar) : NULL;

    return why ? ds_fail(err, DS_E_FORMAT, "%s", why) : ds_cli_gen_failure(end, err);
}

ds_gen_request ds_cli_request_engine(const ds_cli_request *q, const ds_cli_gen *g, ds_gen_room *room)
{
    ds_gen_request r = ds_gen_request_of(&q->info,
                                         &(ds_gen_beside){ .ids = q->ids.p,
                                                           .n_ids = q->ids.n,
                                                           .max_tokens = q->max_tokens,
                                                           .sampling = q->sampling,
                                                           .stop_ids = g->stop_ids,
                                                           .n_stop_ids = g->n_stop_ids,
                                                           .bad = q->bad.list,
                                                           .n_bad = q->bad.n,
                                                           .stop_strings = true,
                                                           .images = q->images,
                                                           .n_images = q->n_images },
                                         room);

    r.grammar = q->grammar ? ds_constrained_grammar(q->grammar) : NULL;
    return r;
}
