/* OpenAI Chat Completions. (recipe spec 4.2) */
#include <stdio.h>
#include <string.h>

#include "recipe/request_internal.h"

enum {
    F_MODEL,
    F_MESSAGES,
    F_STREAM,
    F_STREAM_OPTIONS,
    F_MAX_TOKENS,
    F_MAX_COMPLETION_TOKENS,
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
    F_LOGPROBS,
    F_TOP_LOGPROBS,
    F_LOGIT_BIAS,
    F_IGNORE_EOS,
    F_MIN_TOKENS,
    F_PROMPT_LOGPROBS,
    F_STOP_IDS,
    F_ALLOWED_IDS,
    F_BAD_WORDS,
    F_INCLUDE_STOP,
    F_TRUNCATE_PROMPT,
    F_TOOLS,
    F_TOOL_CHOICE,
    F_PARALLEL,
    F_RESPONSE_FORMAT,
    F_THINKING,
    F_EFFORT,
    F_FUNCTIONS,
    F_FUNCTION_CALL,
    F_USER,
    F_USER_ID,
    F_SAFETY,
    F_CACHE_KEY,
    F_AUDIO,
    F_MODALITIES,
    F_TEMPLATE_KWARGS,
    F_CONTINUE_FINAL,
    F_GENERATION_PROMPT,
    F_GUIDED_JSON,
    F_GUIDED_REGEX,
    F_GUIDED_CHOICE,
    F_GUIDED_GRAMMAR,
    F_STRUCTURED,
    F_EXTRA_BODY,
    N_FIELDS
};
const char *const ds_chat_members[N_FIELDS + 1] = { "model",
                                                    "messages",
                                                    "stream",
                                                    "stream_options",
                                                    "max_tokens",
                                                    "max_completion_tokens",
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
                                                    "logprobs",
                                                    "top_logprobs",
                                                    "logit_bias",
                                                    "ignore_eos",
                                                    "min_tokens",
                                                    "prompt_logprobs",
                                                    "stop_token_ids",
                                                    "allowed_token_ids",
                                                    "bad_words",
                                                    "include_stop_str_in_output",
                                                    "truncate_prompt_tokens",
                                                    "tools",
                                                    "tool_choice",
                                                    "parallel_tool_calls",
                                                    "response_format",
                                                    "thinking",
                                                    "reasoning_effort",
                                                    "functions",
                                                    "function_call",
                                                    "user",
                                                    "user_id",
                                                    "safety_identifier",
                                                    "prompt_cache_key",
                                                    "audio",
                                                    "modalities",
                                                    "chat_template_kwargs",
                                                    "continue_final_message",
                                                    "add_generation_prompt",
                                                    "guided_json",
                                                    "guided_regex",
                                                    "guided_choice",
                                                    "guided_grammar",
                                                    "structured_outputs",
                                                    "extra_body" };

/* ---- options ---- */

static void stream(ds_rp *p, const ds_json **f)
{
    static const char *const names[] = { "include_usage" };
    ds_path at = { NULL, "stream_options", 0 };
    const ds_json *o[1];

    ds_rp_bool(p, f[F_STREAM], NULL, "stream", &p->r->info.stream);
    if (!ds_rp_object(p, f[F_STREAM_OPTIONS], NULL, "stream_options"))
        return;
    ds_fields(f[F_STREAM_OPTIONS], names, 1, o);
    ds_rp_bool(p, o[0], &at, "include_usage", &p->r->info.include_usage);
    if (!p->r->info.stream)
        ds_rp_refuse(p, DS_STAGE_SAMPLING, NULL, "stream_options", "needs stream to be true");
}

static int thinking_type(ds_rp *p, const ds_json *v, const ds_path *at)
{
    static const char *const names[] = { "type" };
    const ds_json *t[1];
    int i;

    if (!ds_rp_object(p, v, at, NULL))
        return -1;
    ds_fields(v, names, 1, t);
    if (!t[0]) {
        ds_rp_missing(p, at, "type");
        return -1;
    }
    i = ds_rp_enum(p, t[0], at, "type", "disabled|enabled|adaptive");
    return i < 0 ? -1 : i > 0;
}

/* thinking.type, then the template's own switches, then the effort; servers' extensions only fill in what the body
 * doesn't say. */
static void thinking(ds_rp *p, const ds_json **f)
{
    static const char *const kwargs_names[] = { "thinking", "enable_thinking", "reasoning_effort" };
    static const char *const extra_names[] = { "thinking", "reasoning_effort", "chat_template_kwargs" };
    ds_path at = { NULL, "thinking", 0 }, extra = { NULL, "extra_body", 0 }, extra_thinking = { &extra, "thinking", 0 };
    ds_path kwargs_at = { NULL, "chat_template_kwargs", 0 }, extra_kwargs = { &extra, "chat_template_kwargs", 0 };
    const ds_json *k[3] = { NULL }, *x[3] = { NULL }, *kwargs = f[F_TEMPLATE_KWARGS];
    const ds_path *where = &kwargs_at;
    ds_effort effort = DS_EFFORT_HIGH;
    uint32_t number = 0;
    bool has_effort, flag;
    int on;

    if (ds_rp_object(p, f[F_EXTRA_BODY], NULL, "extra_body"))
        ds_fields(f[F_EXTRA_BODY], extra_names, 3, x);
    if (!kwargs && x[2]) {
        kwargs = x[2];
        where = &extra_kwargs;
    }
    if (ds_rp_object(p, kwargs, where, NULL))
        ds_fields(kwargs, kwargs_names, 3, k);
    on = thinking_type(p, f[F_THINKING], &at);
    if (on < 0)
        on = thinking_type(p, x[0], &extra_thinking);
    if (on < 0 && (ds_rp_bool(p, k[0], where, "thinking", &flag) || ds_rp_bool(p, k[1], where, "enable_thinking", &flag)))
        on = flag;
    has_effort = ds_rp_effort(p, f[F_EFFORT], NULL, "reasoning_effort", true, true, &effort, &number);
    if (!has_effort && !f[F_EFFORT])
        has_effort = ds_rp_effort(p, x[1], &extra, "reasoning_effort", true, true, &effort, &number) ||
                     ds_rp_effort(p, k[2], where, "reasoning_effort", true, true, &effort, &number);
    ds_rp_thinking(p, on, has_effort, effort, number);
}

static void user_name(ds_rp *p, const ds_json **f)
{
    static const int order[] = { F_USER_ID, F_SAFETY, F_USER };

    for (size_t i = 0; i < 3 && !p->r->info.user.n; i++)
        p->r->info.user = ds_json_str_of(f[order[i]]);
    p->r->info.prompt_cache_key = ds_json_str_of(f[F_CACHE_KEY]);
}

static void modalities(ds_rp *p, const ds_json **f)
{
    ds_path at = { NULL, "modalities", 0 }, item = { &at, NULL, 0 };

    if (f[F_AUDIO])
        ds_rp_refuse(p, DS_STAGE_SAMPLING, NULL, "audio", "audio output is not supported");
    if (!f[F_MODALITIES] || f[F_MODALITIES]->type != DS_JSON_ARRAY)
        return;
    for (const ds_json *m = f[F_MODALITIES]->child; m; m = m->next, item.index++)
        if (!ds_json_str_eq(m, "text"))
            ds_rp_refuse(p, DS_STAGE_SAMPLING, &item, NULL, "only \"text\" is supported");
}

/* ---- tools ---- */

static void function(ds_rp *p, const ds_json *v, const ds_path *at)
{
    static const char *const names[] = { "name", "description", "parameters", "strict" };
    const ds_json *f[4];
    ds_str name = { 0 }, description = { 0 };
    bool strict = false;
    char word[96];

    if (!ds_rp_object(p, v, at, NULL))
        return;
    ds_fields(v, names, 4, f);
    if (!f[0])
        ds_rp_missing(p, at, "name");
    ds_rp_str(p, f[0], at, "name", &name);
    ds_rp_str(p, f[1], at, "description", &description);
    ds_rp_object(p, f[2], at, "parameters");
    ds_rp_bool(p, f[3], at, "strict", &strict);
    if (ds_rp_stop(p))
        return;
    if (!ds_rp_name_ok(name))
        ds_rp_refuse(p, DS_STAGE_TOOLS, at, "name", "'%s' must be 1 to 128 of A-Z a-z 0-9 _ -", ds_str_word(word, sizeof word, name));
    ds_rp_add_tool(p, name, description, f[2], strict, v, at);
}

static void tools(ds_rp *p, const ds_json **f)
{
    static const char *const names[] = { "type", "function", "custom" };
    ds_path list = { NULL, "tools", 0 }, item = { &list, NULL, 0 };
    const ds_json *t[3], *legacy = f[F_FUNCTIONS];

    if (!ds_rp_array(p, f[F_TOOLS], NULL, "tools") || f[F_TOOLS]->n == 0) {
        if (!ds_rp_array(p, legacy, NULL, "functions") || legacy->n == 0)
            return;
        list.key = "functions";
        ds_rp_tools_begin(p, legacy->n);
        p->r->info.legacy_functions = true;
        for (const ds_json *e = legacy->child; e && !ds_rp_stop(p); e = e->next, item.index++)
            function(p, e, &item);
        return;
    }
    ds_rp_tools_begin(p, f[F_TOOLS]->n);
    for (const ds_json *e = f[F_TOOLS]->child; e && !ds_rp_stop(p); e = e->next, item.index++) {
        ds_path fn = { &item, "function", 0 }, custom = { &item, "custom", 0 };
        int kind;

        if (!ds_rp_object(p, e, &item, NULL))
            return;
        ds_fields(e, names, 3, t);
        if (!t[0])
            ds_rp_missing(p, &item, "type");
        kind = ds_rp_enum(p, t[0], &item, "type", "function|custom");
        if (kind == 0 && !t[1])
            ds_rp_missing(p, &item, "function");
        else if (kind == 0)
            function(p, t[1], &fn);
        else if (kind == 1 && !t[2])
            ds_rp_missing(p, &item, "custom");
        else if (kind == 1 && ds_rp_object(p, t[2], &item, "custom"))
            ds_rp_add_custom(p, t[2], &custom, true);
    }
}

static void choose(ds_rp *p, const ds_json *v, const char *field, bool legacy)
{
    static const char *const names[] = { "type", "function", "custom", "allowed_tools", "name", "mode", "tools" };
    static const char *const inner_names[] = { "name" };
    ds_path at = { NULL, field, 0 }, inner = { &at, NULL, 0 };
    const ds_json *f[7], *n[1], *holder;
    ds_str name;
    int kind = 0;

    if (!v || p->rc != DS_OK)
        return;
    if (v->type == DS_JSON_STRING) {
        kind = ds_rp_enum(p, v, NULL, field, legacy ? "none|auto" : "none|auto|required");
        p->r->info.tool_choice = kind == 0 ? DS_CHOICE_NONE : kind == 2 ? DS_CHOICE_REQUIRED : DS_CHOICE_AUTO;
        return;
    }
    if (v->type != DS_JSON_OBJECT) {
        ds_rp_type(p, NULL, field, "expected a string or an object, got %s", ds_json_type_name(v));
        return;
    }
    ds_fields(v, names, 7, f);
    if (!legacy) {
        if (!f[0])
            ds_rp_missing(p, &at, "type");
        kind = ds_rp_enum(p, f[0], &at, "type", "function|custom|allowed_tools");
        if (kind < 0)
            return;
    }
    if (kind == 2) {
        inner.key = "allowed_tools";
        if (f[3] && ds_rp_object(p, f[3], &at, "allowed_tools"))
            ds_rp_choose_allowed(p, f[3], &inner, true);
        else if (!f[3])
            ds_rp_choose_allowed(p, v, &at, true);
        return;
    }
    inner.key = kind == 1 ? "custom" : "function";
    holder = kind == 1 ? f[2] : f[1];
    if (legacy || (!holder && f[4])) { /* the flat form is what Responses clients send */
        n[0] = f[4];
        inner = at;
    } else if (!holder) {
        ds_rp_missing(p, &at, inner.key);
        return;
    } else {
        if (!ds_rp_object(p, holder, &at, inner.key))
            return;
        ds_fields(holder, inner_names, 1, n);
    }
    if (!n[0])
        ds_rp_missing(p, &inner, "name");
    if (ds_rp_str(p, n[0], &inner, "name", &name))
        ds_rp_choose_named(p, name, &inner, "name");
}

/* ---- messages ---- */

enum { M_ROLE, M_CONTENT, M_REASONING, M_REASONING_ALIAS, M_TOOL_CALLS, M_FUNCTION_CALL, M_PREFIX, M_CALL_ID, M_TASK, M_NAME, N_MESSAGE };
static const char *const message_fields[N_MESSAGE] = { "role",          "content", "reasoning_content", "reasoning", "tool_calls",
                                                       "function_call", "prefix",  "tool_call_id",      "task",      "name" };

typedef struct {
    ds_rp *p;
    const ds_msg *caller; /* whose results must come now; NULL = none */
    uint32_t open;        /* of its calls, not yet answered */
    uint32_t caller_index;
    bool continue_final; /* the last message is a prefix */
    ds_str legacy_id;    /* Chat functions: the call that a `function` message answers */
    uint32_t n_legacy;
} history;

static void text_part(ds_rp *p, ds_parts *to, ds_str s, const ds_path *at, const char *key)
{
    ds_rp_check_text(p, DS_STAGE_MESSAGES, s, at, key);
    ds_rp_note_json(p, s);
    ds_parts_text(to, p->mem, s, "\n\n");
}

static void image_block(ds_rp *p, ds_parts *to, const ds_json *v, const ds_path *at)
{
    static const char *const names[] = { "url", "detail" };
    ds_path in = { at, "image_url", 0 };
    const ds_json *f[2];

    if (!v) {
        ds_rp_missing(p, at, "image_url");
    } else if (v->type == DS_JSON_STRING) {
        ds_rp_image_url(p, to, v, NULL, at, "image_url", "detail");
    } else if (ds_rp_object(p, v, at, "image_url")) {
        ds_fields(v, names, 2, f);
        if (!f[0])
            ds_rp_missing(p, &in, "url");
        ds_rp_image_url(p, to, f[0], f[1], &in, "url", "detail");
    }
}

static void file_block(ds_rp *p, ds_parts *to, const ds_json *v, const ds_path *at)
{
    static const char *const names[] = { "file_data", "file_id" };
    ds_path in = { at, "file", 0 };
    const ds_json *f[2];
    ds_str s;

    if (!v)
        ds_rp_missing(p, at, "file");
    if (!ds_rp_object(p, v, at, "file"))
        return;
    ds_fields(v, names, 2, f);
    if (f[1] && ds_rp_str(p, f[1], &in, "file_id", &s))
        ds_rp_image_file(p, to, s, NULL, &in, "file_id");
    else if (!f[0])
        ds_rp_missing(p, &in, "file_data");
    else if (ds_rp_str(p, f[0], &in, "file_data", &s) && !ds_rp_data_url_content(p, to, s, &in, "file_data"))
        ds_rp_refuse(p, DS_STAGE_MESSAGES, &in, "file_data", "expected a data URL of an image or of text");
}

/* allowed: the block types of this role, the first is text */
static void content(ds_rp *p, ds_parts *to, const ds_json *v, const ds_path *at, const char *allowed)
{
    static const char *const names[] = { "type", "text", "image_url", "file", "refusal" };
    ds_path list = { at, "content", 0 }, item = { &list, NULL, 0 };
    const ds_json *f[5];
    ds_str s;

    if (!v || p->rc != DS_OK)
        return;
    if (v->type == DS_JSON_STRING) {
        text_part(p, to, ds_json_str_of(v), at, "content");
        return;
    }
    if (v->type != DS_JSON_ARRAY) {
        ds_rp_type(p, at, "content", "expected a string or a list of content blocks, got %s", ds_json_type_name(v));
        return;
    }
    if (v->n == 0)
        ds_parts_text(to, p->mem, ds_lit(""), "");
    for (const ds_json *e = v->child; e && !ds_rp_stop(p); e = e->next, item.index++) {
        int kind;

        if (!ds_rp_object(p, e, &item, NULL)) {
            ds_rp_type(p, &item, NULL, "expected an object, got null");
            return;
        }
        ds_fields(e, names, 5, f);
        if (!f[0])
            ds_rp_missing(p, &item, "type");
        kind = ds_rp_enum(p, f[0], &item, "type", allowed);
        if (kind == 0) {
            if (!f[1])
                ds_rp_missing(p, &item, "text");
            if (ds_rp_str(p, f[1], &item, "text", &s))
                text_part(p, to, s, &item, "text");
        } else if (kind > 0 && ds_json_str_eq(f[0], "refusal")) {
            if (!f[4])
                ds_rp_missing(p, &item, "refusal");
            if (ds_rp_str(p, f[4], &item, "refusal", &s))
                text_part(p, to, s, &item, "refusal");
        } else if (kind > 0 && ds_json_str_eq(f[0], "image_url")) {
            image_block(p, to, f[2], &item);
        } else if (kind > 0) {
            file_block(p, to, f[3], &item);
        }
    }
}

static void one_call(history *h, ds_msg *m, const ds_json *e, const ds_path *item)
{
    static const char *const names[] = { "id", "type", "function", "custom" };
    static const char *const inner_names[] = { "name", "arguments", "input" };
    ds_rp *p = h->p;
    ds_path inner = { item, "function", 0 };
    const ds_json *f[4], *g[3];
    ds_str id = { 0 }, name = { 0 }, input = { 0 };
    ds_call *c;
    int kind = 0;

    if (!ds_rp_object(p, e, item, NULL))
        return;
    ds_fields(e, names, 4, f);
    if (!f[0])
        ds_rp_missing(p, item, "id");
    ds_rp_str(p, f[0], item, "id", &id);
    if (f[1])
        kind = ds_rp_enum(p, f[1], item, "type", "function|custom");
    if (kind == 1)
        inner.key = "custom";
    if (!f[kind == 1 ? 3 : 2])
        ds_rp_missing(p, item, inner.key);
    if (!ds_rp_object(p, f[kind == 1 ? 3 : 2], item, inner.key))
        return;
    ds_fields(f[kind == 1 ? 3 : 2], inner_names, 3, g);
    if (!g[0])
        ds_rp_missing(p, &inner, "name");
    ds_rp_str(p, g[0], &inner, "name", &name);
    if (ds_rp_stop(p))
        return;
    if (!id.n)
        ds_rp_refuse(p, DS_STAGE_MESSAGES, item, "id", "must not be empty");
    c = ds_msg_call(m, p->mem, id, name);
    if (!c)
        return;
    ds_rp_call_name(p, c, &inner, "name");
    if (kind == 1) {
        if (!g[2])
            ds_rp_missing(p, &inner, "input");
        else if (ds_rp_str(p, g[2], &inner, "input", &input))
            ds_rp_call_input(p, c, input, &inner, "input");
    } else if (!g[1]) {
        ds_rp_missing(p, &inner, "arguments");
    } else {
        ds_rp_call_text(p, c, g[1], &inner, "arguments");
    }
}

static void calls(history *h, ds_msg *m, const ds_json *v, const ds_path *at)
{
    ds_rp *p = h->p;
    ds_path list = { at, "tool_calls", 0 }, item = { &list, NULL, 0 };
    uint32_t k = 0;
    char word[96];

    if (!ds_rp_array(p, v, at, "tool_calls") || v->n == 0)
        return;
    for (const ds_json *e = v->child; e && !ds_rp_stop(p); e = e->next, item.index++)
        one_call(h, m, e, &item);
    if (ds_rp_stop(p) || !ds_idmap_reset(&p->ids, p->mem, m->n_calls))
        return;
    for (const ds_call *c = m->calls; c; c = c->next, k++) {
        item.index = k;
        if (!ds_idmap_put(&p->ids, c->id, 0))
            ds_rp_refuse(p, DS_STAGE_MESSAGES, &item, "id", "'%s' stands twice in one message", ds_str_word(word, sizeof word, c->id));
    }
    h->caller = m;
    h->open = p->ids.n;
}

static void legacy_call(history *h, ds_msg *m, const ds_json *v, const ds_path *at)
{
    static const char *const names[] = { "name", "arguments" };
    ds_rp *p = h->p;
    ds_path in = { at, "function_call", 0 };
    const ds_json *f[2];
    ds_str name = { 0 };
    ds_call *c;

    if (m->calls || !ds_rp_object(p, v, at, "function_call"))
        return;
    ds_fields(v, names, 2, f);
    if (!f[0])
        ds_rp_missing(p, &in, "name");
    if (!f[1])
        ds_rp_missing(p, &in, "arguments");
    if (!ds_rp_str(p, f[0], &in, "name", &name))
        return;
    h->legacy_id = ds_region_printf(p->mem, "function_%u", h->n_legacy++);
    c = ds_msg_call(m, p->mem, h->legacy_id, name);
    if (!c)
        return;
    ds_rp_call_name(p, c, &in, "name");
    ds_rp_call_text(p, c, f[1], &in, "arguments");
}

static void assistant(history *h, const ds_json **f, const ds_path *at, bool last)
{
    ds_rp *p = h->p;
    ds_msg *m = ds_conv_add(&p->r->conv, p->mem, DS_ROLE_ASSISTANT);
    const ds_json *why = f[M_REASONING] ? f[M_REASONING] : f[M_REASONING_ALIAS];
    const char *key = f[M_REASONING] ? "reasoning_content" : "reasoning";
    ds_str s;

    if (!m)
        return;
    content(p, &m->content, f[M_CONTENT], at, "text|refusal");
    if (ds_rp_str(p, why, at, key, &s)) {
        ds_rp_check_text(p, DS_STAGE_MESSAGES, s, at, key);
        ds_parts_text(&m->reasoning, p->mem, s, "");
    }
    calls(h, m, f[M_TOOL_CALLS], at);
    legacy_call(h, m, f[M_FUNCTION_CALL], at);
    if (!f[M_CONTENT] && !m->calls)
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "content", "an assistant message needs content or tool_calls");
    ds_rp_bool(p, f[M_PREFIX], at, "prefix", &m->prefix);
    m->prefix = m->prefix || (last && h->continue_final);
    if (m->prefix) {
        if (!last)
            ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "prefix", "only the last message can be a prefix");
        else if (m->calls)
            ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "prefix", "a message with tool calls can't be a prefix");
        else if (p->r->info.tool_choice == DS_CHOICE_REQUIRED)
            ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "prefix", "not possible when tool_choice demands a call");
    }
    if (p->o->require_reasoning && p->r->info.thinking && p->r->info.n_tools && !m->reasoning.first && !m->prefix)
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "reasoning_content", "must be passed back when tools are declared");
}

static void tool(history *h, const ds_json **f, const ds_path *at)
{
    ds_rp *p = h->p;
    ds_msg *m = ds_conv_add(&p->r->conv, p->mem, DS_ROLE_TOOL);
    struct ds_idmap_slot *s;
    char word[96];

    if (!m)
        return;
    if (!f[M_CALL_ID])
        ds_rp_missing(p, at, "tool_call_id");
    if (!f[M_CONTENT])
        ds_rp_missing(p, at, "content");
    ds_rp_str(p, f[M_CALL_ID], at, "tool_call_id", &m->call_id);
    content(p, &m->content, f[M_CONTENT], at, "text|image_url|file");
    if (ds_rp_stop(p))
        return;
    s = h->caller ? ds_idmap_find(&p->ids, m->call_id) : NULL;
    if (!h->caller) {
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "role", "a tool message must follow the assistant message whose call it answers");
    } else if (!s) {
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "tool_call_id", "'%s' is no call of the preceding assistant message",
                     ds_str_word(word, sizeof word, m->call_id));
    } else if (s->value) {
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "tool_call_id", "'%s' is answered twice", ds_str_word(word, sizeof word, m->call_id));
    } else {
        s->value = 1;
        h->open--;
    }
}

static void legacy_result(history *h, const ds_json **f, const ds_path *at)
{
    ds_rp *p = h->p;
    ds_msg *m = ds_conv_add(&p->r->conv, p->mem, DS_ROLE_TOOL);

    if (!m)
        return;
    if (!f[M_NAME])
        ds_rp_missing(p, at, "name");
    if (!f[M_CONTENT])
        ds_rp_missing(p, at, "content");
    if (!h->legacy_id.p)
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "role", "a function message must follow the assistant message whose call it answers");
    m->call_id = h->legacy_id;
    h->legacy_id = (ds_str){ NULL, 0 };
    content(p, &m->content, f[M_CONTENT], at, "text");
}

static void end_results(history *h)
{
    ds_path list = { NULL, "messages", 0 }, item = { &list, NULL, h->caller_index };
    char word[96];

    if (h->caller && h->open)
        ds_rp_refuse(h->p, DS_STAGE_MESSAGES, &item, "tool_calls", "no tool message directly behind it answers '%s'",
                     ds_str_word(word, sizeof word, ds_rp_unanswered(h->p, h->caller)));
    h->caller = NULL;
}

static void message(history *h, const ds_json *e, const ds_path *at, bool last)
{
    static const char roles[] = "system|developer|user|assistant|tool|latest_reminder|function";
    static const ds_task tasks[] = { DS_TASK_ACTION, DS_TASK_QUERY, DS_TASK_AUTHORITY, DS_TASK_DOMAIN, DS_TASK_TITLE, DS_TASK_READ_URL };
    ds_rp *p = h->p;
    const ds_json *f[N_MESSAGE];
    ds_msg *m;
    ds_parts parts = { 0 };
    bool flag;
    int role, task;

    if (e->type != DS_JSON_OBJECT) {
        ds_rp_type(p, at, NULL, "expected an object, got %s", ds_json_type_name(e));
        return;
    }
    ds_fields(e, message_fields, N_MESSAGE, f);
    if (!f[M_ROLE])
        ds_rp_missing(p, at, "role");
    role = ds_rp_enum(p, f[M_ROLE], at, "role", roles);
    if (role < 0)
        return;
    if (role != 4)
        end_results(h);
    if (role != 3 && role != 4 && role != 6 && !f[M_CONTENT])
        ds_rp_missing(p, at, "content");
    if (role != 3 && ds_rp_bool(p, f[M_PREFIX], at, "prefix", &flag) && flag)
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "prefix", "only an assistant message can be a prefix");
    switch (role) {
    case 0:
    case 1:
        content(p, &parts, f[M_CONTENT], at, "text");
        if (parts.bytes && (m = ds_conv_add(&p->r->conv, p->mem, DS_ROLE_SYSTEM)))
            m->content = parts;
        break;
    case 2:
        m = ds_conv_add(&p->r->conv, p->mem, DS_ROLE_USER);
        if (!m)
            return;
        content(p, &m->content, f[M_CONTENT], at, "text|image_url|file");
        if (p->o->tasks && f[M_TASK]) {
            task = ds_rp_enum(p, f[M_TASK], at, "task", "action|query|authority|domain|title|read_url");
            m->task = task >= 0 ? tasks[task] : DS_TASK_NONE;
        }
        break;
    case 3:
        h->caller_index = at->index;
        assistant(h, f, at, last);
        break;
    case 4:
        tool(h, f, at);
        break;
    case 5:
        m = ds_conv_add(&p->r->conv, p->mem, DS_ROLE_REMINDER);
        if (m)
            content(p, &m->content, f[M_CONTENT], at, "text");
        break;
    default:
        legacy_result(h, f, at);
        break;
    }
}

/* Where the prompt ends: vLLM's words for it. */
static void ending(ds_rp *p, const ds_json **f, bool *continue_final)
{
    bool header = true;

    *continue_final = false;
    ds_rp_bool(p, f[F_CONTINUE_FINAL], NULL, "continue_final_message", continue_final);
    if (ds_rp_bool(p, f[F_GENERATION_PROMPT], NULL, "add_generation_prompt", &header) && header && *continue_final)
        ds_rp_refuse(p, DS_STAGE_MESSAGES, NULL, "add_generation_prompt", "not possible together with continue_final_message");
    p->r->conv.no_header = !header && !*continue_final;
    if (p->r->conv.no_header && p->r->info.tool_choice == DS_CHOICE_REQUIRED)
        ds_rp_refuse(p, DS_STAGE_MESSAGES, NULL, "add_generation_prompt", "must not be false when tool_choice demands a call");
}

static void messages(ds_rp *p, const ds_json *v, bool continue_final)
{
    history h = { .p = p, .continue_final = continue_final };
    ds_path list = { NULL, "messages", 0 }, item = { &list, NULL, 0 };

    if (!v)
        ds_rp_missing(p, NULL, "messages");
    if (!ds_rp_array(p, v, NULL, "messages"))
        return;
    if (v->n == 0)
        ds_rp_refuse(p, DS_STAGE_MESSAGES, NULL, "messages", "must not be empty");
    for (const ds_json *e = v->child; e && !ds_rp_stop(p); e = e->next, item.index++)
        message(&h, e, &item, !e->next);
    end_results(&h);
    if (continue_final && !ds_rp_stop(p) && !(p->r->conv.last && p->r->conv.last->prefix))
        ds_rp_refuse(p, DS_STAGE_MESSAGES, NULL, "continue_final_message", "the last message isn't the assistant's");
}

void ds_request_chat(ds_rp *p, const ds_json *body)
{
    ds_request_info_data *i = &p->r->info;
    ds_path format = { NULL, "response_format", 0 };
    const ds_json *f[N_FIELDS];
    bool continue_final;

    ds_fields(body, ds_chat_members, N_FIELDS, f);
    p->mentions_json = !f[F_RESPONSE_FORMAT]; /* nobody asks then */
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
                                             .logprobs = f[F_LOGPROBS],
                                             .top_logprobs = f[F_TOP_LOGPROBS],
                                             .logit_bias = f[F_LOGIT_BIAS],
                                             .ignore_eos = f[F_IGNORE_EOS],
                                             .min_tokens = f[F_MIN_TOKENS],
                                             .prompt_logprobs = f[F_PROMPT_LOGPROBS],
                                             .stop_ids = f[F_STOP_IDS],
                                             .allowed_ids = f[F_ALLOWED_IDS],
                                             .bad_words = f[F_BAD_WORDS],
                                             .include_stop = f[F_INCLUDE_STOP],
                                             .truncate_prompt = f[F_TRUNCATE_PROMPT] });
    ds_rp_max_tokens(p, f[F_MAX_TOKENS], "max_tokens");
    ds_rp_max_tokens(p, f[F_MAX_COMPLETION_TOKENS], "max_completion_tokens");
    ds_rp_stop_list(p, f[F_STOP], "stop", false, false);
    stream(p, f);
    if (i->stream && i->prompt_logprobs)
        ds_rp_refuse(p, DS_STAGE_SAMPLING, NULL, "prompt_logprobs", "not possible together with stream");
    thinking(p, f);
    user_name(p, f);
    modalities(p, f);
    i->parallel_tool_calls = true;
    ds_rp_bool(p, f[F_PARALLEL], NULL, "parallel_tool_calls", &i->parallel_tool_calls);
    if (ds_rp_stop(p))
        return;
    tools(p, f);
    if (f[F_TOOL_CHOICE])
        choose(p, f[F_TOOL_CHOICE], "tool_choice", false);
    else if (i->legacy_functions)
        choose(p, f[F_FUNCTION_CALL], "function_call", true);
    if (ds_rp_stop(p))
        return;
    ds_rp_guided(p, &(ds_guided_fields){ .json = f[F_GUIDED_JSON],
                                         .regex = f[F_GUIDED_REGEX],
                                         .choice = f[F_GUIDED_CHOICE],
                                         .grammar = f[F_GUIDED_GRAMMAR],
                                         .structured = f[F_STRUCTURED] });
    ds_rp_tools_end(p, ds_json_get(f[F_RESPONSE_FORMAT], "json_schema"));
    ending(p, f, &continue_final);
    messages(p, f[F_MESSAGES], continue_final);
    if (!ds_rp_stop(p))
        ds_rp_response_format(p, f[F_RESPONSE_FORMAT], &format, true, true, true);
}
