/* What the protocols have in common: model, sampling, thinking, stop strings, response format, calls of the history. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "recipe/request_internal.h"
#include "recipe/seal.h"

#define MAX_STOPS 16
enum { MAX_STOP_IDS = 48, MAX_ALLOWED_IDS = 1 << 18, MAX_BAD_WORDS = 256, MAX_BAD_WORD_BYTES = 256 };
#define MAX_LOGIT_BIAS 4096 /* entries; more can't be told from an attempt to fill memory */

void ds_rp_model(ds_rp *p, const ds_json *v)
{
    if (ds_rp_str(p, v, NULL, "model", &p->r->info.model) && !p->r->info.model.n)
        ds_rp_refuse(p, DS_STAGE_MODEL, NULL, "model", "must not be empty");
}

static void number_in(ds_rp *p, const ds_json *v, const char *key, double min, double max, bool open_min, double *out)
{
    double x;

    *out = NAN;
    if (!ds_rp_f64(p, v, NULL, key, &x))
        return;
    if (x > max || x < min || (open_min && x == min))
        ds_rp_refuse(p, DS_STAGE_SAMPLING, NULL, key, "%g lies outside of %c%g, %g]", x, open_min ? '(' : '[', min, max);
    else
        *out = x;
}

static bool integer_in(ds_rp *p, const ds_json *v, const char *key, int64_t min, int64_t max, int64_t *out)
{
    int64_t x;

    if (!ds_rp_i64(p, v, NULL, key, &x))
        return false;
    if (x < min || x > max) {
        ds_rp_refuse(p, DS_STAGE_SAMPLING, NULL, key, "%lld lies outside of [%lld, %lld]", (long long)x, (long long)min, (long long)max);
        return false;
    }
    *out = x;
    return true;
}

static void logit_bias(ds_rp *p, const ds_json *v)
{
    ds_request_info_data *i = &p->r->info;
    ds_path at = { NULL, "logit_bias", 0 };
    ds_token_bias *list;
    uint32_t n = 0;

    if (!ds_rp_object(p, v, NULL, "logit_bias"))
        return;
    if (v->n > MAX_LOGIT_BIAS) {
        ds_rp_refuse(p, DS_STAGE_SAMPLING, NULL, "logit_bias", "%u entries, at most %d are taken", v->n, MAX_LOGIT_BIAS);
        return;
    }
    list = ds_region_array(p->mem, v->n, sizeof *list);
    if (!list)
        return;
    for (const ds_json *m = v->child; m; m = m->next) {
        char word[96], *end;
        unsigned long id = strtoul(m->key, &end, 10);
        double bias;

        if (m->key_len == 0 || m->key_len > 9 || m->key[0] < '0' || m->key[0] > '9' || end != m->key + m->key_len) {
            ds_rp_refuse(p, DS_STAGE_SAMPLING, NULL, "logit_bias", "'%s' is no token id",
                         ds_str_word(word, sizeof word, (ds_str){ m->key, m->key_len }));
            return;
        }
        if (!ds_rp_f64(p, m, &at, m->key, &bias))
            return;
        if (bias < -100 || bias > 100) {
            ds_rp_refuse(p, DS_STAGE_SAMPLING, &at, m->key, "%g lies outside of [-100, 100]", bias);
            return;
        }
        list[n++] = (ds_token_bias){ (ds_token)id, (float)bias };
    }
    i->logit_bias = list;
    i->n_logit_bias = n;
}

/* A list of token ids; whether the model has them only its vocabulary knows. */
static const ds_token *id_list(ds_rp *p, const ds_json *v, const char *key, uint32_t most, uint32_t *n)
{
    ds_path at = { NULL, key, 0 }, item = { &at, NULL, 0 };
    ds_token *list;
    int64_t id;

    *n = 0;
    if (!ds_rp_array(p, v, NULL, key))
        return NULL;
    if (v->n > most) {
        ds_rp_refuse(p, DS_STAGE_SAMPLING, NULL, key, "%u ids, at most %u are taken", v->n, most);
        return NULL;
    }
    list = ds_region_array(p->mem, v->n ? v->n : 1, sizeof *list);
    for (const ds_json *e = v->child; list && e; e = e->next, item.index++) {
        if (!ds_json_i64(e, &id) || id < 0 || id > INT32_MAX) {
            ds_rp_type(p, &item, NULL, "expected a token id");
            return NULL;
        }
        list[(*n)++] = (ds_token)id;
    }
    return list;
}

static void bad_words(ds_rp *p, const ds_json *v)
{
    ds_request_info_data *i = &p->r->info;
    ds_path at = { NULL, "bad_words", 0 }, item = { &at, NULL, 0 };
    ds_str *list, word;

    if (!ds_rp_array(p, v, NULL, "bad_words"))
        return;
    if (v->n > MAX_BAD_WORDS) {
        ds_rp_refuse(p, DS_STAGE_SAMPLING, NULL, "bad_words", "%u words, at most %d are taken", v->n, MAX_BAD_WORDS);
        return;
    }
    list = ds_region_array(p->mem, v->n ? v->n : 1, sizeof *list);
    for (const ds_json *e = v->child; list && e; e = e->next, item.index++) {
        if (e->type != DS_JSON_STRING)
            ds_rp_type(p, &item, NULL, "expected a string, got %s", ds_json_type_name(e));
        if (!ds_rp_str(p, e, &item, NULL, &word))
            return;
        if (word.n == 0 || word.n > MAX_BAD_WORD_BYTES)
            ds_rp_refuse(p, DS_STAGE_SAMPLING, &item, NULL, "a word has 1 to %d bytes", MAX_BAD_WORD_BYTES);
        list[i->n_bad_words++] = word;
    }
    i->bad_words = list;
}

/* What vLLM's clients send besides. */
static void token_rules(ds_rp *p, const ds_sampling_fields *f)
{
    ds_request_info_data *i = &p->r->info;

    i->stop_ids = id_list(p, f->stop_ids, "stop_token_ids", MAX_STOP_IDS, &i->n_stop_ids);
    i->allowed_ids = id_list(p, f->allowed_ids, "allowed_token_ids", MAX_ALLOWED_IDS, &i->n_allowed_ids);
    if (f->allowed_ids && p->rc == DS_OK && i->n_allowed_ids == 0)
        ds_rp_refuse(p, DS_STAGE_SAMPLING, NULL, "allowed_token_ids", "must not be empty");
    bad_words(p, f->bad_words);
    ds_rp_bool(p, f->include_stop, NULL, "include_stop_str_in_output", &i->include_stop);
    if (integer_in(p, f->truncate_prompt, "truncate_prompt_tokens", -1, INT32_MAX, &i->truncate_prompt) && i->truncate_prompt == 0)
        ds_rp_refuse(p, DS_STAGE_SAMPLING, NULL, "truncate_prompt_tokens", "0 leaves no prompt");
}

void ds_rp_sampling(ds_rp *p, const ds_sampling_fields *f)
{
    ds_request_info_data *i = &p->r->info;
    ds_sampling *s = &i->sampling;
    int64_t x;

    number_in(p, f->temperature, "temperature", 0, 2, false, &s->temperature);
    number_in(p, f->top_p, "top_p", 0, 1, true, &s->top_p);
    number_in(p, f->min_p, "min_p", 0, 1, false, &s->min_p);
    number_in(p, f->presence, "presence_penalty", -2, 2, false, &s->presence_penalty);
    number_in(p, f->frequency, "frequency_penalty", -2, 2, false, &s->frequency_penalty);
    number_in(p, f->repetition, "repetition_penalty", 0, 2, true, &s->repetition_penalty);
    s->top_k = DS_TOP_K_MISSING;
    if (integer_in(p, f->top_k, "top_k", -1, INT32_MAX, &x)) /* -1 is how some servers say "off" */
        s->top_k = x < 0 ? 0 : (uint32_t)x;
    s->seeded = ds_rp_i64(p, f->seed, NULL, "seed", &x);
    if (s->seeded)
        s->seed = (uint64_t)x;
    i->n = 1;
    if (integer_in(p, f->n, "n", 1, 128, &x))
        i->n = (uint32_t)x;
    ds_rp_bool(p, f->logprobs, NULL, "logprobs", &i->logprobs);
    if (integer_in(p, f->top_logprobs, "top_logprobs", 0, 20, &x)) {
        i->top_logprobs = (uint32_t)x;
        if (i->proto == DS_PROTO_CHAT && !i->logprobs)
            ds_rp_refuse(p, DS_STAGE_SAMPLING, NULL, "top_logprobs", "needs logprobs to be true");
    }
    ds_rp_bool(p, f->ignore_eos, NULL, "ignore_eos", &i->ignore_eos);
    if (integer_in(p, f->min_tokens, "min_tokens", 0, INT32_MAX, &x))
        i->min_tokens = (uint32_t)x;
    logit_bias(p, f->logit_bias);
    token_rules(p, f);
    if (integer_in(p, f->prompt_logprobs, "prompt_logprobs", 0, 20, &x)) {
        i->prompt_logprobs = true;
        i->prompt_top_logprobs = (uint32_t)x;
    }
}

void ds_rp_max_tokens(ds_rp *p, const ds_json *v, const char *key)
{
    int64_t x;

    if (!ds_rp_i64(p, v, NULL, key, &x))
        return;
    if (x < 0 || (x == 0 && p->r->info.proto != DS_PROTO_COMPLETIONS)) {
        ds_rp_refuse(p, DS_STAGE_SAMPLING, NULL, key, "%lld is not positive", (long long)x);
        return;
    }
    p->r->info.max_tokens = x < INT32_MAX ? (uint32_t)x : INT32_MAX;
    p->r->info.has_max_tokens = true;
}

void ds_rp_stop_list(ds_rp *p, const ds_json *v, const char *key, bool list_only, bool refuse_empty)
{
    ds_request_info_data *i = &p->r->info;
    ds_path at = { NULL, key, 0 }, item = { &at, NULL, 0 };
    ds_str *list;

    if (!v || p->rc != DS_OK)
        return;
    if (v->type != DS_JSON_ARRAY && (list_only || v->type != DS_JSON_STRING)) {
        ds_rp_type(p, NULL, key, "expected %s, got %s", list_only ? "a list of strings" : "a string or a list of strings",
                   ds_json_type_name(v));
        return;
    }
    list = ds_region_array(p->mem, MAX_STOPS, sizeof *list);
    if (!list)
        return;
    if (v->type == DS_JSON_STRING) {
        if (v->text_len)
            list[i->n_stop++] = ds_json_str_of(v);
        i->stop = list;
        return;
    }
    if (v->n > MAX_STOPS) {
        ds_rp_refuse(p, DS_STAGE_SAMPLING, NULL, key, "%u strings, at most %d are taken", v->n, MAX_STOPS);
        return;
    }
    for (const ds_json *e = v->child; e; e = e->next, item.index++) {
        ds_str s;

        if (e->type == DS_JSON_NULL) {
            ds_rp_type(p, &item, NULL, "expected a string, got null");
            return;
        }
        if (!ds_rp_str(p, e, &item, NULL, &s))
            return;
        if (s.n)
            list[i->n_stop++] = s;
        else if (refuse_empty)
            ds_rp_refuse(p, DS_STAGE_SAMPLING, &item, NULL, "must not be empty");
    }
    i->stop = list;
}

bool ds_rp_effort(ds_rp *p, const ds_json *v, const ds_path *at, const char *key, bool allow_none, bool allow_number, ds_effort *out,
                  uint32_t *number)
{
    static const ds_effort levels[] = { DS_EFFORT_LOW, DS_EFFORT_HIGH, DS_EFFORT_HIGH, DS_EFFORT_XHIGH,
                                        DS_EFFORT_MAX, DS_EFFORT_MAX,  DS_EFFORT_LOW,  DS_EFFORT_NONE };
    int64_t x;
    int i;

    if (!v || p->rc != DS_OK)
        return false;
    if (v->type == DS_JSON_NUMBER && allow_number) {
        if (!ds_rp_i64(p, v, at, key, &x))
            return false;
        if (p->o->encoding == DS_ENC_V4) {
            ds_rp_refuse(p, DS_STAGE_SAMPLING, at, key,
                         "a number needs a V4.1 model; expected one of: none, minimal, low, medium, high, xhigh, ultra, max");
            return false;
        }
        if (x < 1 || x > 100) {
            ds_rp_refuse(p, DS_STAGE_SAMPLING, at, key, "%lld lies outside of [1, 100]", (long long)x);
            return false;
        }
        *out = DS_EFFORT_NUMBER;
        *number = (uint32_t)x;
        return true;
    }
    i = ds_rp_enum(p, v, at, key, allow_none ? "low|medium|high|xhigh|ultra|max|minimal|none" : "low|medium|high|xhigh|ultra|max");
    if (i < 0)
        return false;
    *out = levels[i];
    return true;
}

void ds_rp_thinking(ds_rp *p, int thinking, bool has_effort, ds_effort effort, uint32_t number)
{
    ds_request_info_data *i = &p->r->info;

    p->thinking_asked = thinking >= 0 || has_effort;
    i->thinking = thinking >= 0 ? thinking : !has_effort || effort != DS_EFFORT_NONE;
    if (!i->thinking) {
        i->effort = DS_EFFORT_NONE;
        return;
    }
    i->effort = has_effort && effort != DS_EFFORT_NONE ? effort : DS_EFFORT_HIGH;
    if (i->effort == DS_EFFORT_NUMBER)
        i->effort_number = number;
    else
        i->effort_number = p->o->effort_v41[i->effort - DS_EFFORT_LOW];
}

/* ---- text ---- */

void ds_rp_check_text(ds_rp *p, ds_stage stage, ds_str s, const ds_path *at, const char *key)
{
    const char *token = p->o->image_token;

    if (s.n && p->rc == DS_OK && p->o->encoding == DS_ENC_V41 && !p->o->no_image_token && memmem(s.p, s.n, token, strlen(token)))
        ds_rp_refuse(p, stage, at, key, "text must not contain the image placeholder %s", token);
}

void ds_rp_check_json(ds_rp *p, ds_stage stage, const ds_json *v, const ds_path *at, const char *key)
{
    if (!v)
        return;
    if (v->type == DS_JSON_STRING)
        ds_rp_check_text(p, stage, ds_json_str_of(v), at, key);
    for (const ds_json *c = v->child; c; c = c->next) { /* depth is bounded by the reader */
        if (c->key)
            ds_rp_check_text(p, stage, (ds_str){ c->key, c->key_len }, at, key);
        ds_rp_check_json(p, stage, c, at, key);
    }
}

void ds_rp_note_json(ds_rp *p, ds_str s)
{
    const char *end;

    if (p->mentions_json || s.n < 4)
        return;
    end = s.p + s.n;
    for (const char *c = s.p; c + 4 <= end; c++) {
        if ((c[0] | 32) == 'j' && (c[1] | 32) == 's' && (c[2] | 32) == 'o' && (c[3] | 32) == 'n') {
            p->mentions_json = true;
            return;
        }
    }
}

/* ---- history ---- */

static bool blank(ds_str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (!memchr(" \t\r\n", s.p[i], 4))
            return false;
    return true;
}

void ds_rp_call_text(ds_rp *p, ds_call *c, const ds_json *arguments, const ds_path *at, const char *key)
{
    const ds_json *v;
    ds_str s;

    if (arguments->type == DS_JSON_OBJECT) { /* some clients send the object itself */
        ds_rp_call_object(p, c, arguments, at, key);
        return;
    }
    if (!ds_rp_str(p, arguments, at, key, &s))
        return;
    v = blank(s) ? ds_rp_parse(p, "{}", 2) : ds_rp_parse(p, s.p, s.n);
    if (v && v->type == DS_JSON_STRING) { /* encoded twice */
        const ds_json *inner = ds_rp_parse(p, v->text, v->text_len);

        if (inner && inner->type == DS_JSON_OBJECT)
            v = inner;
    }
    if (v && v->type == DS_JSON_OBJECT) {
        ds_rp_call_object(p, c, v, at, key);
    } else {
        ds_rp_check_text(p, DS_STAGE_MESSAGES, s, at, key);
        c->raw = s;
    }
}

void ds_rp_call_object(ds_rp *p, ds_call *c, const ds_json *input, const ds_path *at, const char *key)
{
    ds_rp_check_json(p, DS_STAGE_MESSAGES, input, at, key);
    c->args = input;
}

void ds_rp_call_input(ds_rp *p, ds_call *c, ds_str input, const ds_path *at, const char *key)
{
    ds_rp_check_text(p, DS_STAGE_MESSAGES, input, at, key);
    c->raw = input;
    c->input_text = true;
}

void ds_rp_call_name(ds_rp *p, const ds_call *c, const ds_path *at, const char *key)
{
    ds_rp_check_text(p, DS_STAGE_MESSAGES, c->name, at, key);
}

ds_str ds_rp_unanswered(const ds_rp *p, const ds_msg *m)
{
    for (const ds_call *c = m->calls; c; c = c->next) {
        const struct ds_idmap_slot *s = ds_idmap_find(&p->ids, c->id);

        if (s && !s->value)
            return c->id;
    }
    return (ds_str){ "", 0 };
}

bool ds_rp_unseal(ds_rp *p, ds_str blob, const ds_path *at, const char *key, ds_str *text)
{
    size_t cap = ds_seal_opened_max(blob.n), n = 0;
    char *out;
    ds_rc rc = DS_E_FORMAT;

    if (p->rc != DS_OK)
        return false;
    if (p->io && p->io->seal && blob.n) {
        out = ds_region_alloc(p->mem, cap + 1);
        if (!out)
            return false;
        rc = ds_seal_open(p->io->seal, blob.p, blob.n, out, cap, &n, NULL);
        if (rc == DS_E_NOMEM) {
            ds_rp_oom(p);
            return false;
        }
        if (rc == DS_OK) {
            out[n] = 0;
            *text = (ds_str){ out, n };
            return true;
        }
    }
    if (p->o->refuse_bad_sealed)
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, key, "not a value that this server made, or damaged");
    return false;
}
