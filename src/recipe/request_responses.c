/* OpenAI Responses: options, tools, and what the response object repeats. The items are in responses_items.c.
 * (recipe spec 4.4) */
#include <math.h>
#include <string.h>

#include "recipe/request_internal.h"
#include "recipe/responses_items.h"

enum {
    F_MODEL,
    F_INPUT,
    F_INSTRUCTIONS,
    F_STREAM,
    F_MAX_TOKENS,
    F_TEMPERATURE,
    F_TOP_P,
    F_TOP_K,
    F_SEED,
    F_MIN_P,
    F_FREQUENCY,
    F_PRESENCE,
    F_REPETITION,
    F_LOGIT_BIAS,
    F_IGNORE_EOS,
    F_MIN_TOKENS,
    F_REASONING,
    F_TEXT,
    F_TOOLS,
    F_TOOL_CHOICE,
    F_PARALLEL,
    F_PREVIOUS,
    F_CONVERSATION,
    F_STORE,
    F_INCLUDE,
    F_TOP_LOGPROBS,
    F_STOP,
    F_BACKGROUND,
    F_TRUNCATION,
    F_PROMPT,
    F_METADATA,
    F_USER,
    F_SAFETY,
    F_CACHE_KEY,
    F_SERVICE_TIER,
    F_MAX_TOOL_CALLS,
    N_FIELDS
};
const char *const ds_responses_members[N_FIELDS + 1] = { "model",
                                                         "input",
                                                         "instructions",
                                                         "stream",
                                                         "max_output_tokens",
                                                         "temperature",
                                                         "top_p",
                                                         "top_k",
                                                         "seed",
                                                         "min_p",
                                                         "frequency_penalty",
                                                         "presence_penalty",
                                                         "repetition_penalty",
                                                         "logit_bias",
                                                         "ignore_eos",
                                                         "min_tokens",
                                                         "reasoning",
                                                         "text",
                                                         "tools",
                                                         "tool_choice",
                                                         "parallel_tool_calls",
                                                         "previous_response_id",
                                                         "conversation",
                                                         "store",
                                                         "include",
                                                         "top_logprobs",
                                                         "stop",
                                                         "background",
                                                         "truncation",
                                                         "prompt",
                                                         "metadata",
                                                         "user",
                                                         "safety_identifier",
                                                         "prompt_cache_key",
                                                         "service_tier",
                                                         "max_tool_calls" };

/* ---- options ---- */

static void thinking(ds_rp *p, const ds_json **f)
{
    static const char *const names[] = { "effort" };
    ds_path at = { NULL, "reasoning", 0 };
    const ds_json *o[1] = { NULL };
    ds_effort effort = DS_EFFORT_HIGH;
    uint32_t number = 0;
    bool has;

    if (ds_rp_object(p, f[F_REASONING], NULL, "reasoning"))
        ds_fields(f[F_REASONING], names, 1, o);
    has = ds_rp_effort(p, o[0], &at, "effort", true, true, &effort, &number);
    ds_rp_thinking(p, -1, has, effort, number);
}

static void include(ds_rp *p, const ds_json *v)
{
    ds_path at = { NULL, "include", 0 }, item = { &at, NULL, 0 };

    if (!ds_rp_array(p, v, NULL, "include"))
        return;
    for (const ds_json *e = v->child; e; e = e->next, item.index++) {
        if (e->type != DS_JSON_STRING)
            ds_rp_type(p, &item, NULL, "expected a string, got %s", ds_json_type_name(e));
        else if (ds_json_str_eq(e, "reasoning.encrypted_content"))
            p->r->info.include_encrypted_reasoning = true;
        else if (ds_json_str_eq(e, "message.output_text.logprobs"))
            p->r->info.include_logprobs = p->r->info.logprobs = true;
    }
}

static void options(ds_rp *p, const ds_json **f)
{
    ds_request_info_data *i = &p->r->info;
    bool background = false;
    ds_str s;

    if (!p->count) {
        ds_rp_max_tokens(p, f[F_MAX_TOKENS], "max_output_tokens");
        ds_rp_bool(p, f[F_STREAM], NULL, "stream", &i->stream);
    }
    ds_rp_stop_list(p, f[F_STOP], "stop", false, false);
    i->parallel_tool_calls = true;
    ds_rp_bool(p, f[F_PARALLEL], NULL, "parallel_tool_calls", &i->parallel_tool_calls);
    i->store = true;
    ds_rp_bool(p, f[F_STORE], NULL, "store", &i->store);
    if (ds_rp_bool(p, f[F_BACKGROUND], NULL, "background", &background) && background)
        ds_rp_refuse(p, DS_STAGE_SAMPLING, NULL, "background", "background responses are not supported");
    if (f[F_PROMPT])
        ds_rp_refuse(p, DS_STAGE_SAMPLING, NULL, "prompt", "stored prompt templates are not supported");
    i->truncation_auto = ds_rp_enum(p, f[F_TRUNCATION], NULL, "truncation", "disabled|auto") == 1;
    include(p, f[F_INCLUDE]);
    i->user = ds_json_str_of(f[F_SAFETY] ? f[F_SAFETY] : f[F_USER]);
    i->prompt_cache_key = ds_json_str_of(f[F_CACHE_KEY]);
    ds_rp_str(p, f[F_PREVIOUS], NULL, "previous_response_id", &i->previous_response_id);
    if (f[F_CONVERSATION]) {
        const ds_json *id = f[F_CONVERSATION]->type == DS_JSON_OBJECT ? ds_json_get(f[F_CONVERSATION], "id") : f[F_CONVERSATION];

        if (!id)
            ds_rp_missing(p, NULL, "conversation.id");
        if (ds_rp_str(p, id, NULL, "conversation", &s))
            i->conversation_id = s;
        if (i->previous_response_id.p)
            ds_rp_refuse(p, DS_STAGE_SAMPLING, NULL, "conversation", "not together with previous_response_id");
    }
}

/* ---- tools ---- */

static void function(ds_rp *p, const ds_json *e, const ds_path *at, ds_str ns, ds_str ns_description)
{
    static const char *const names[] = { "name", "description", "parameters", "strict" };
    const ds_json *f[4];
    ds_str name = { 0 }, description = { 0 }, full;
    bool strict = false;
    ds_tool *t;
    char word[96];

    ds_fields(e, names, 4, f);
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
    if (!ns.p) {
        ds_rp_add_tool(p, name, description, f[2], strict, e, at);
        return;
    }
    full = ds_region_join(p->mem, ds_region_join(p->mem, ns, ds_lit("::")), name);
    if (ns_description.n)
        description = ds_region_join(p->mem, ds_region_join(p->mem, ns_description, ds_lit("\n")), description);
    if (ds_rp_stop(p))
        return;
    t = ds_rp_add_tool(p, full, description, f[2], strict, NULL, at);
    if (t) {
        t->ns = ns;
        t->fn = name;
    }
}

static void namespace_tools(ds_rp *p, const ds_json *e, const ds_path *at, ds_idmap *seen)
{
    static const char *const names[] = { "name", "description", "tools" };
    static const char *const inner_names[] = { "type" };
    ds_path list = { at, "tools", 0 }, item = { &list, NULL, 0 };
    const ds_json *f[3], *t[1];
    ds_str name = { 0 }, description = { 0 };
    char word[96];

    ds_fields(e, names, 3, f);
    if (!f[0])
        ds_rp_missing(p, at, "name");
    if (!f[2])
        ds_rp_missing(p, at, "tools");
    ds_rp_str(p, f[0], at, "name", &name);
    ds_rp_str(p, f[1], at, "description", &description);
    if (!ds_rp_array(p, f[2], at, "tools") || ds_rp_stop(p))
        return;
    if (!ds_rp_name_ok(name))
        ds_rp_refuse(p, DS_STAGE_TOOLS, at, "name", "'%s' must be 1 to 128 of A-Z a-z 0-9 _ -", ds_str_word(word, sizeof word, name));
    if (!ds_idmap_put(seen, name, 0)) {
        ds_rp_refuse(p, DS_STAGE_TOOLS, at, "name", "namespace '%s' is declared twice", ds_str_word(word, sizeof word, name));
        return;
    }
    for (const ds_json *c = f[2]->child; c && !ds_rp_stop(p); c = c->next, item.index++) {
        if (!ds_rp_object(p, c, &item, NULL))
            return;
        ds_fields(c, inner_names, 1, t);
        if (t[0] && !ds_json_str_eq(t[0], "function"))
            ds_rp_refuse(p, DS_STAGE_TOOLS, &item, "type", "only functions are supported inside a namespace");
        else
            function(p, c, &item, name, description);
    }
}

static void tools(ds_rp *p, const ds_json *v)
{
    static const char *const names[] = { "type" };
    ds_path list = { NULL, "tools", 0 }, item = { &list, NULL, 0 };
    ds_idmap namespaces = { 0 };
    const ds_json *t[1];
    size_t n = 0;

    if (!ds_rp_array(p, v, NULL, "tools") || v->n == 0)
        return;
    for (const ds_json *e = v->child; e; e = e->next) {
        const ds_json *inner = ds_json_get(e, "tools");
        const ds_json *type = ds_json_get(e, "type");

        if (ds_json_str_eq(type, "namespace") && ds_json_is(inner, DS_JSON_ARRAY))
            n += inner->n;
        else
            n += ds_json_str_eq(type, "function") || ds_json_str_eq(type, "custom");
    }
    ds_rp_tools_begin(p, n);
    if (!ds_idmap_reset(&namespaces, p->mem, v->n))
        return;
    for (const ds_json *e = v->child; e && !ds_rp_stop(p); e = e->next, item.index++) {
        ds_str type;
        char word[96];

        if (!ds_rp_object(p, e, &item, NULL)) {
            ds_rp_type(p, &item, NULL, "expected an object, got null");
            return;
        }
        ds_fields(e, names, 1, t);
        if (!t[0])
            ds_rp_missing(p, &item, "type");
        if (!ds_rp_str(p, t[0], &item, "type", &type))
            return;
        if (ds_str_is(type, "function"))
            function(p, e, &item, (ds_str){ NULL, 0 }, (ds_str){ NULL, 0 });
        else if (ds_str_is(type, "namespace"))
            namespace_tools(p, e, &item, &namespaces);
        else if (ds_str_is(type, "custom"))
            ds_rp_add_custom(p, e, &item, false);
        else if (ds_str_starts(type, "web_search") && p->o->refuse_web_search)
            ds_rp_refuse(p, DS_STAGE_TOOLS, &item, "type", "'%s' is not supported", ds_str_word(word, sizeof word, type));
        /* other hosted kinds aren't shown to the model */
    }
}

static void choose(ds_rp *p, const ds_json *v)
{
    static const char *const names[] = { "type", "name", "namespace" };
    ds_path at = { NULL, "tool_choice", 0 };
    const ds_json *f[3];
    ds_str type, name, ns = { 0 };
    int i;

    if (!v || p->rc != DS_OK)
        return;
    if (v->type == DS_JSON_STRING) {
        i = ds_rp_enum(p, v, NULL, "tool_choice", "none|auto|required");
        p->r->info.tool_choice = i == 0 ? DS_CHOICE_NONE : i == 2 ? DS_CHOICE_REQUIRED : DS_CHOICE_AUTO;
        return;
    }
    if (v->type != DS_JSON_OBJECT) {
        ds_rp_type(p, NULL, "tool_choice", "expected a string or an object, got %s", ds_json_type_name(v));
        return;
    }
    ds_fields(v, names, 3, f);
    if (!f[0])
        ds_rp_missing(p, &at, "type");
    if (!ds_rp_str(p, f[0], &at, "type", &type))
        return;
    if (ds_str_is(type, "allowed_tools")) {
        ds_rp_choose_allowed(p, v, &at, false);
    } else if (ds_str_is(type, "function") || ds_str_is(type, "custom")) {
        if (!f[1])
            ds_rp_missing(p, &at, "name");
        if (!ds_rp_str(p, f[1], &at, "name", &name))
            return;
        if (ds_rp_str(p, f[2], &at, "namespace", &ns) && ns.n)
            name = ds_region_join(p->mem, ds_region_join(p->mem, ns, ds_lit("::")), name);
        if (!ds_rp_stop(p))
            ds_rp_choose_named(p, name, &at, "name");
    }
    /* hosted kinds behave like auto */
}

/* ---- what the response repeats ---- */

static void echo_text(ds_rp *p, ds_echo *list, const char *name, ds_str json)
{
    ds_request_info_data *i = &p->r->info;

    list[i->n_echo++] = (ds_echo){ ds_lit(name), json };
}

static void echo(ds_rp *p, ds_echo *list, const char *name, const ds_json *v, const char *otherwise)
{
    echo_text(p, list, name, v ? ds_rp_json_text(p, v, DS_JSON_SSE) : ds_lit(otherwise));
}

static void echo_reasoning(ds_rp *p, ds_echo *list, const ds_json *reasoning)
{
    static const char *const names[] = { "effort", "summary" };
    ds_buf b = { 0 };
    const ds_json *f[2];

    ds_fields(reasoning, names, 2, f);
    ds_buf_puts(&b, "{\"effort\":");
    if (f[0])
        ds_json_write(&b, f[0], DS_JSON_SSE);
    else
        ds_buf_puts(&b, "null");
    ds_buf_puts(&b, ",\"summary\":");
    if (f[1])
        ds_json_write(&b, f[1], DS_JSON_SSE);
    else
        ds_buf_puts(&b, "null");
    ds_buf_puts(&b, "}");
    if (b.oom)
        ds_rp_oom(p);
    else
        echo_text(p, list, "reasoning", ds_region_str(p->mem, b.p, b.len));
    ds_buf_free(&b);
}

/* The client's object, with the format that holds where it names none. */
static void echo_format(ds_rp *p, ds_echo *list, const ds_json *text)
{
    const ds_json *format = ds_json_get(text, "format");
    ds_buf b = { 0 };

    ds_buf_puts(&b, "{\"format\":");
    if (format && format->type != DS_JSON_NULL)
        ds_json_write(&b, format, DS_JSON_SSE);
    else
        ds_buf_puts(&b, "{\"type\":\"text\"}");
    for (const ds_json *m = text ? text->child : NULL; m; m = m->next) {
        if (m == format)
            continue;
        ds_buf_putc(&b, ',');
        ds_json_write_str(&b, m->key, m->key_len, DS_JSON_SSE);
        ds_buf_putc(&b, ':');
        ds_json_write(&b, m, DS_JSON_SSE);
    }
    ds_buf_putc(&b, '}');
    if (b.oom)
        ds_rp_oom(p);
    else
        echo_text(p, list, "text", ds_region_str(p->mem, b.p, b.len));
    ds_buf_free(&b);
}

static void echoes(ds_rp *p, const ds_json **f)
{
    ds_echo *list = ds_region_array(p->mem, 24, sizeof *list);

    if (!list)
        return;
    p->r->info.echo = list;
    echo(p, list, "background", NULL, "false");
    echo(p, list, "instructions", f[F_INSTRUCTIONS], "null");
    echo(p, list, "max_output_tokens", f[F_MAX_TOKENS], "null");
    echo(p, list, "max_tool_calls", f[F_MAX_TOOL_CALLS], "null");
    echo(p, list, "metadata", f[F_METADATA], "{}");
    echo(p, list, "parallel_tool_calls", f[F_PARALLEL], "true");
    echo(p, list, "previous_response_id", f[F_PREVIOUS], "null");
    echo(p, list, "prompt_cache_key", f[F_CACHE_KEY], "null");
    echo_reasoning(p, list, f[F_REASONING]);
    echo(p, list, "safety_identifier", f[F_SAFETY], "null");
    echo(p, list, "service_tier", f[F_SERVICE_TIER], "\"default\"");
    echo(p, list, "store", f[F_STORE], "true");
    echo(p, list, "temperature", f[F_TEMPERATURE], "1.0");
    echo_format(p, list, f[F_TEXT]);
    echo(p, list, "tool_choice", f[F_TOOL_CHOICE], "\"auto\"");
    echo(p, list, "tools", f[F_TOOLS], "[]");
    echo(p, list, "top_logprobs", f[F_TOP_LOGPROBS], "0");
    echo(p, list, "top_p", f[F_TOP_P], "1.0");
    echo(p, list, "truncation", f[F_TRUNCATION], "\"disabled\"");
    echo(p, list, "user", f[F_USER], "null");
}

void ds_request_responses(ds_rp *p, const ds_json *body)
{
    ds_path text = { NULL, "text", 0 }, format = { &text, "format", 0 };
    const ds_json *f[N_FIELDS], *v;

    ds_fields(body, ds_responses_members, N_FIELDS, f);
    p->mentions_json = !f[F_TEXT]; /* nobody asks then */
    ds_rp_model(p, f[F_MODEL]);
    ds_rp_sampling(p, &(ds_sampling_fields){ .temperature = f[F_TEMPERATURE],
                                             .top_p = f[F_TOP_P],
                                             .top_k = f[F_TOP_K],
                                             .seed = f[F_SEED],
                                             .min_p = f[F_MIN_P],
                                             .presence = f[F_PRESENCE],
                                             .frequency = f[F_FREQUENCY],
                                             .repetition = f[F_REPETITION],
                                             .logit_bias = f[F_LOGIT_BIAS],
                                             .ignore_eos = f[F_IGNORE_EOS],
                                             .min_tokens = f[F_MIN_TOKENS],
                                             .top_logprobs = f[F_TOP_LOGPROBS] });
    options(p, f);
    thinking(p, f);
    if (ds_rp_stop(p))
        return;
    tools(p, f[F_TOOLS]);
    choose(p, f[F_TOOL_CHOICE]);
    if (ds_rp_stop(p))
        return;
    ds_rp_tools_end(p, ds_json_get(f[F_TEXT], "format"));
    ds_responses_input(p, f[F_INPUT], f[F_INSTRUCTIONS]);
    if (ds_rp_stop(p) || (f[F_TEXT] && !ds_rp_object(p, f[F_TEXT], NULL, "text")))
        return;
    v = ds_json_get(f[F_TEXT], "format");
    if (v && v->type != DS_JSON_NULL)
        ds_rp_response_format(p, v, &format, false, false, true);
    if (!ds_rp_stop(p))
        echoes(p, f);
}
