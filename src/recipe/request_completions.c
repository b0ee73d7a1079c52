/* Legacy completions and fill-in-the-middle. (recipe spec 2.10, 4.8) */
#include <math.h>

#include "recipe/request_internal.h"

#define MAX_PROMPTS 20

enum {
    F_MODEL,
    F_PROMPT,
    F_SUFFIX,
    F_MAX_TOKENS,
    F_TEMPERATURE,
    F_TOP_P,
    F_TOP_K,
    F_MIN_P,
    F_FREQUENCY,
    F_PRESENCE,
    F_REPETITION,
    F_SEED,
    F_N,
    F_STOP,
    F_STREAM,
    F_STREAM_OPTIONS,
    F_ECHO,
    F_LOGPROBS,
    F_LOGIT_BIAS,
    F_IGNORE_EOS,
    F_MIN_TOKENS,
    F_PROMPT_LOGPROBS,
    F_STOP_IDS,
    F_ALLOWED_IDS,
    F_BAD_WORDS,
    F_INCLUDE_STOP,
    F_TRUNCATE_PROMPT,
    F_GUIDED_JSON,
    F_GUIDED_REGEX,
    F_GUIDED_CHOICE,
    F_GUIDED_GRAMMAR,
    F_STRUCTURED,
    F_BEST_OF,
    F_USER,
    N_FIELDS
};
const char *const ds_completions_members[N_FIELDS + 1] = { "model",
                                                           "prompt",
                                                           "suffix",
                                                           "max_tokens",
                                                           "temperature",
                                                           "top_p",
                                                           "top_k",
                                                           "min_p",
                                                           "frequency_penalty",
                                                           "presence_penalty",
                                                           "repetition_penalty",
                                                           "seed",
                                                           "n",
                                                           "stop",
                                                           "stream",
                                                           "stream_options",
                                                           "echo",
                                                           "logprobs",
                                                           "logit_bias",
                                                           "ignore_eos",
                                                           "min_tokens",
                                                           "prompt_logprobs",
                                                           "stop_token_ids",
                                                           "allowed_token_ids",
                                                           "bad_words",
                                                           "include_stop_str_in_output",
                                                           "truncate_prompt_tokens",
                                                           "guided_json",
                                                           "guided_regex",
                                                           "guided_choice",
                                                           "guided_grammar",
                                                           "structured_outputs",
                                                           "best_of",
                                                           "user" };

static void ids_prompt(ds_rp *p, const ds_json *list, const ds_path *at, struct ds_prompt *to)
{
    ds_path item = { at, NULL, 0 };

    to->ids = ds_region_array(p->mem, list->n ? list->n : 1, sizeof *to->ids);
    if (!to->ids)
        return;
    if (list->n == 0)
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, NULL, "must not be empty");
    for (const ds_json *e = list->child; e && p->rc == DS_OK; e = e->next, item.index++) {
        char word[96];
        int64_t id;

        if (e->type != DS_JSON_NUMBER || !ds_json_i64(e, &id) || id < 0 || id > INT32_MAX)
            ds_rp_type(p, &item, NULL, "expected a token id, got %s",
                       e->type == DS_JSON_NUMBER ? ds_str_word(word, sizeof word, (ds_str){ e->text, e->text_len }) : ds_json_type_name(e));
        else
            to->ids[to->n_ids++] = (ds_token)id;
    }
}

static void prompt(ds_rp *p, const ds_json *v)
{
    ds_request *r = p->r;
    ds_path at = { NULL, "prompt", 0 }, item = { &at, NULL, 0 };
    bool flat;

    if (!v) {
        ds_rp_missing(p, NULL, "prompt");
        return;
    }
    r->prompts = ds_region_array(p->mem, MAX_PROMPTS, sizeof *r->prompts);
    if (ds_rp_stop(p))
        return;
    flat = v->type == DS_JSON_ARRAY && ds_json_is(v->child, DS_JSON_NUMBER);
    if (v->type == DS_JSON_STRING || flat) {
        r->info.n_prompts = 1;
        if (flat)
            ids_prompt(p, v, &at, &r->prompts[0]);
        else
            r->prompts[0].text = ds_json_str_of(v);
        return;
    }
    if (v->type != DS_JSON_ARRAY) {
        ds_rp_type(p, NULL, "prompt", "expected a string, a list of strings, token ids or a list of their lists, got %s",
                   ds_json_type_name(v));
        return;
    }
    if (v->n == 0)
        ds_rp_refuse(p, DS_STAGE_MESSAGES, NULL, "prompt", "must not be empty");
    if (v->n > MAX_PROMPTS) {
        ds_rp_refuse(p, DS_STAGE_MESSAGES, NULL, "prompt", "%u prompts, at most %d are taken", v->n, MAX_PROMPTS);
        return;
    }
    for (const ds_json *e = v->child; e && p->rc == DS_OK; e = e->next, item.index++) {
        struct ds_prompt *to = &r->prompts[r->info.n_prompts++];

        if (e->type == DS_JSON_STRING)
            to->text = ds_json_str_of(e);
        else if (e->type == DS_JSON_ARRAY)
            ids_prompt(p, e, &item, to);
        else
            ds_rp_type(p, &item, NULL, "expected a string or a list of token ids, got %s", ds_json_type_name(e));
    }
}

void ds_request_completions(ds_rp *p, const ds_json *body)
{
    static const char *const stream_names[] = { "include_usage" };
    ds_path options = { NULL, "stream_options", 0 };
    ds_request_info_data *i = &p->r->info;
    const ds_json *f[N_FIELDS], *o[1];
    int64_t x;

    ds_fields(body, ds_completions_members, N_FIELDS, f);
    ds_rp_model(p, f[F_MODEL]);
    ds_rp_sampling(p, &(ds_sampling_fields){ .temperature = f[F_TEMPERATURE],
                                             .top_p = f[F_TOP_P],
                                             .top_k = f[F_TOP_K],
                                             .min_p = f[F_MIN_P],
                                             .presence = f[F_PRESENCE],
                                             .frequency = f[F_FREQUENCY],
                                             .repetition = f[F_REPETITION],
                                             .seed = f[F_SEED],
                                             .n = f[F_N],
                                             .logit_bias = f[F_LOGIT_BIAS],
                                             .ignore_eos = f[F_IGNORE_EOS],
                                             .min_tokens = f[F_MIN_TOKENS],
                                             .prompt_logprobs = f[F_PROMPT_LOGPROBS],
                                             .stop_ids = f[F_STOP_IDS],
                                             .allowed_ids = f[F_ALLOWED_IDS],
                                             .bad_words = f[F_BAD_WORDS],
                                             .include_stop = f[F_INCLUDE_STOP],
                                             .truncate_prompt = f[F_TRUNCATE_PROMPT] });
    ds_rp_guided(p, &(ds_guided_fields){ .json = f[F_GUIDED_JSON],
                                         .regex = f[F_GUIDED_REGEX],
                                         .choice = f[F_GUIDED_CHOICE],
                                         .grammar = f[F_GUIDED_GRAMMAR],
                                         .structured = f[F_STRUCTURED] });
    i->json_mode = false; /* nothing is parsed here */
    ds_rp_max_tokens(p, f[F_MAX_TOKENS], "max_tokens");
    ds_rp_stop_list(p, f[F_STOP], "stop", false, false);
    ds_rp_bool(p, f[F_STREAM], NULL, "stream", &i->stream);
    if (ds_rp_object(p, f[F_STREAM_OPTIONS], NULL, "stream_options")) {
        ds_fields(f[F_STREAM_OPTIONS], stream_names, 1, o);
        ds_rp_bool(p, o[0], &options, "include_usage", &i->include_usage);
        if (!i->stream)
            ds_rp_refuse(p, DS_STAGE_SAMPLING, NULL, "stream_options", "needs stream to be true");
    }
    if (i->stream && i->prompt_logprobs)
        ds_rp_refuse(p, DS_STAGE_SAMPLING, NULL, "prompt_logprobs", "not possible together with stream");
    ds_rp_bool(p, f[F_ECHO], NULL, "echo", &i->echo_prompt);
    if (f[F_LOGPROBS] && (f[F_LOGPROBS]->type == DS_JSON_TRUE || f[F_LOGPROBS]->type == DS_JSON_FALSE)) {
        i->logprobs = f[F_LOGPROBS]->type == DS_JSON_TRUE;
    } else if (ds_rp_i64(p, f[F_LOGPROBS], NULL, "logprobs", &x)) {
        if (x < 0 || x > 20)
            ds_rp_refuse(p, DS_STAGE_SAMPLING, NULL, "logprobs", "%lld lies outside of [0, 20]", (long long)x);
        i->logprobs = true;
        i->top_logprobs = (uint32_t)(x & 31);
    }
    if (ds_rp_i64(p, f[F_BEST_OF], NULL, "best_of", &x) && x != i->n)
        ds_rp_refuse(p, DS_STAGE_SAMPLING, NULL, "best_of", "only the value of n is supported");
    i->user = ds_json_str_of(f[F_USER]);
    if (ds_rp_stop(p))
        return;
    prompt(p, f[F_PROMPT]);
    i->has_suffix = ds_rp_str(p, f[F_SUFFIX], NULL, "suffix", &p->r->suffix);
    if (i->has_suffix && p->r->prompts && i->n_prompts) {
        for (uint32_t k = 0; k < i->n_prompts; k++)
            if (!p->r->prompts[k].text.p)
                ds_rp_refuse(p, DS_STAGE_MESSAGES, NULL, "suffix", "needs a prompt of text");
        if (i->echo_prompt)
            ds_rp_refuse(p, DS_STAGE_MESSAGES, NULL, "echo", "not possible together with suffix");
    }
}
