/* The switches that the recipe names, by name: `--set NAME=VALUE`. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ds/request.h>

#include "base/err.h"

typedef enum { BOOL, BOOL_CHOICE, U32, CHOICE, EFFORTS, TRISTATE, OLD_REASONING } kind;

/* CHOICE, BOOL_CHOICE: values is a "|"-separated list, the index is stored in an enum or a bool. OLD_REASONING: a
 * boolean name that stands for one value of old_reasoning. */
static const struct opt {
    const char *name;
    kind kind;
    size_t offset;
    int value;
    uint32_t min, max;
    const char *values, *help;
} opts[] = {
    { "keep_all", OLD_REASONING, 0, DS_REASONING_KEEP_ALL, 0, 0, NULL,
      "keep_all=true|false  (false) reasoning of earlier turns stays in the prompt, with or without tools" },
    { "drop_all", OLD_REASONING, 0, DS_REASONING_DROP_ALL, 0, 0, NULL,
      "drop_all=true|false  (false) reasoning of turns before the last user message is dropped, also with tools" },
    { "require_reasoning", BOOL, offsetof(ds_recipe_opts, require_reasoning), 0, 0, 0, NULL,
      "require_reasoning=true|false  (false) with tools, an assistant turn without its reasoning is refused" },
    { "schema_style", BOOL_CHOICE, offsetof(ds_recipe_opts, official_schemas), 0, 0, 0, "recipe|official",
      "schema_style=recipe|official  (recipe) tools block: name, description, parameters | the client's object unchanged" },
    { "v4_checkpoint", BOOL_CHOICE, offsetof(ds_recipe_opts, v4_preview), 0, 0, 0, "0731|preview",
      "v4_checkpoint=0731|preview  (0731) which effort paragraphs V4 knows" },
    { "effort_table", EFFORTS, 0, 0, 0, 0, NULL,
      "effort_table=LOW/HIGH/XHIGH/MAX  (50/75/75/100) numbers of the V4.1 effort line, 1-100 each" },
    { "plain_tools_prose", BOOL, offsetof(ds_recipe_opts, plain_tools_prose), 0, 0, 0, NULL,
      "plain_tools_prose=true|false  (false) tag words inside the prose of the tools block are text, not control tokens" },
    { "grounding_tokens", BOOL, offsetof(ds_recipe_opts, grounding_tokens), 0, 0, 0, NULL,
      "grounding_tokens=true|false  (true) box, point, polygon and ref marks in assistant text are control tokens" },
    { "default_max_tokens", U32, offsetof(ds_recipe_opts, default_max_tokens), 0, 1, 1u << 30, NULL,
      "default_max_tokens=N  (8192) output limit of a request that names none, thinking off" },
    { "default_max_tokens_thinking", U32, offsetof(ds_recipe_opts, default_max_tokens_thinking), 0, 1, 1u << 30, NULL,
      "default_max_tokens_thinking=N  (65536) the same with thinking on" },
    { "max_context_tokens", U32, offsetof(ds_recipe_opts, max_context_tokens), 0, 0, 1u << 30, NULL,
      "max_context_tokens=N  (1048576) bound of prompt and output together; 0 = none" },
    { "max_tools", U32, offsetof(ds_recipe_opts, max_tools), 0, 1, 16384, NULL, "max_tools=N  (1024) a longer list of tools is refused" },
    { "max_images", U32, offsetof(ds_recipe_opts, max_images), 0, 0, 4096, NULL, "max_images=N  (600) more images are refused" },
    { "thinking", CHOICE, offsetof(ds_recipe_opts, thinking), 0, 0, 0, "auto|on|off",
      "thinking=auto|on|off  (auto) a request that doesn't mention it thinks; auto: not when it forces a tool or a strict schema" },
    { "unknown_members", CHOICE, offsetof(ds_recipe_opts, unknown_members), 0, 0, 0, "ignore|warn|refuse",
      "unknown_members=ignore|warn|refuse  (ignore) members of a request that no table has; warn: the server logs them" },
    { "tasks", BOOL, offsetof(ds_recipe_opts, tasks), 0, 0, 0, NULL,
      "tasks=true|false  (false) the last user message may name a quick task: action, query, authority, domain, title, read_url" },
    { "recipe_call_order", BOOL, offsetof(ds_recipe_opts, recipe_call_order), 0, 0, 0, NULL,
      "recipe_call_order=true|false  (false) calls of a turn sorted by id as strings instead of by arrival: Responses, and V4 everywhere" },
    { "lenient_history", BOOL, offsetof(ds_recipe_opts, lenient_history), 0, 0, 0, NULL,
      "lenient_history=true|false  (false) Responses: a missing output becomes [No output], a late one moves to its call" },
    { "refuse_web_search", BOOL, offsetof(ds_recipe_opts, refuse_web_search), 0, 0, 0, NULL,
      "refuse_web_search=true|false  (false) Responses: a web search tool is refused instead of ignored" },
    { "ignore_web_search", BOOL, offsetof(ds_recipe_opts, ignore_web_search), 0, 0, 0, NULL,
      "ignore_web_search=true|false  (false) Messages: a web search tool and its blocks are ignored instead of refused" },
    { "ignore_server_tools", BOOL, offsetof(ds_recipe_opts, ignore_server_tools), 0, 0, 0, NULL,
      "ignore_server_tools=true|false  (false) Messages: every typed tool and its blocks are ignored instead of refused" },
    { "allow_regex", BOOL, offsetof(ds_recipe_opts, allow_regex), 0, 0, 0, NULL,
      "allow_regex=true|false  (false) Chat: response_format of type regex becomes a constraint instead of a refusal" },
    { "refuse_bad_sealed", BOOL, offsetof(ds_recipe_opts, refuse_bad_sealed), 0, 0, 0, NULL,
      "refuse_bad_sealed=true|false  (false) encrypted reasoning that isn't ours is refused instead of dropped" },
    { "openai_errors", BOOL, offsetof(ds_recipe_opts, openai_errors), 0, 0, 0, NULL,
      "openai_errors=true|false  (false) Messages: error bodies in OpenAI's shape" },
    { "no_constraints", BOOL, offsetof(ds_recipe_opts, no_constraints), 0, 0, 0, NULL,
      "no_constraints=true|false  (false) nothing can constrain the output: what needs it is refused" },
    { "usage_shape", CHOICE, offsetof(ds_recipe_opts, usage_shape), 0, 0, 0, "deepseek|openai",
      "usage_shape=deepseek|openai  (deepseek) Chat streams: usage on the finishing chunk | in an extra chunk" },
    { "unknown_tool", CHOICE, offsetof(ds_recipe_opts, unknown_tool), 0, 0, 0, "pass|content",
      "unknown_tool=pass|content  (pass) a call of an undeclared tool is a call | text" },
    { "strict_thinking", BOOL, offsetof(ds_recipe_opts, strict_thinking), 0, 0, 0, NULL,
      "strict_thinking=true|false  (false) calls inside reasoning are reasoning text" },
    { "recover_orphan_invoke", BOOL, offsetof(ds_recipe_opts, recover_orphan_invoke), 0, 0, 0, NULL,
      "recover_orphan_invoke=true|false  (false) a closed call of a declared tool counts without its block" },
    { "preserve_newlines", BOOL, offsetof(ds_recipe_opts, preserve_newlines), 0, 0, 0, NULL,
      "preserve_newlines=true|false  (false) leading newlines of content and reasoning are kept" },
    { "wrapper_repair", BOOL, offsetof(ds_recipe_opts, wrapper_repair), 0, 0, 0, NULL,
      "wrapper_repair=true|false  (false) arguments wrapped in one undeclared parameter are unwrapped" },
    { "stream_raw_values", BOOL, offsetof(ds_recipe_opts, stream_raw_values), 0, 0, 0, NULL,
      "stream_raw_values=true|false  (false) JSON values of arguments stream as they arrive, unrepaired" },
    { "schema_coercion", BOOL, offsetof(ds_recipe_opts, schema_coercion), 0, 0, 0, NULL,
      "schema_coercion=true|false  (false) argument values take the type that the tool's schema gives" },
    { "normalize_lookalikes", BOOL, offsetof(ds_recipe_opts, normalize_lookalikes), 0, 0, 0, NULL,
      "normalize_lookalikes=true|false  (false) markup written with other bars counts as markup" },
    { "eof_is_stop", BOOL, offsetof(ds_recipe_opts, eof_is_stop), 0, 0, 0, NULL,
      "eof_is_stop=true|false  (false) output that ends without a reason after calls finishes with stop" },
    { "suppress_markup", TRISTATE, offsetof(ds_recipe_opts, suppress_markup), 0, 0, 0, NULL,
      "suppress_markup=auto|true|false  (auto) tools off: a well-formed call block is dropped; auto: for tool_choice none" },
};
#define N_OPTS (sizeof opts / sizeof *opts)

void ds_recipe_opts_init(ds_recipe_opts *o)
{
    *o = (ds_recipe_opts){
        .encoding = DS_ENC_V41,
        .grounding_tokens = true,
        .effort_v41 = { 50, 75, 75, 100 },
        .default_max_tokens = 8192,
        .default_max_tokens_thinking = 65536,
        .max_context_tokens = 1048576,
        .max_tools = 1024,
        .max_images = 600,
        .suppress_markup = -1,
        .image_token = "<｜deepseek_image｜>",
    };
}

/* -1: none of the list */
static int choice_of(const char *values, const char *word)
{
    size_t n = strlen(word);
    int i = 0;

    for (const char *p = values; *p; i++) {
        size_t len = strcspn(p, "|");

        if (len == n && memcmp(p, word, n) == 0)
            return i;
        p += len + (p[len] == '|');
    }
    return -1;
}

static bool parse_u32(const char *s, uint32_t min, uint32_t max, uint32_t *out, const char **end)
{
    char *stop;
    unsigned long v;

    if (!isdigit((unsigned char)*s))
        return false;
    errno = 0;
    v = strtoul(s, &stop, 10);
    if (errno || v < min || v > max)
        return false;
    *out = (uint32_t)v;
    *end = stop;
    return true;
}

static bool set_value(ds_recipe_opts *o, const struct opt *d, const char *v)
{
    char *at = (char *)o + d->offset;
    int flag = choice_of("false|true", v);
    const char *end;
    uint32_t x;

    switch (d->kind) {
    case BOOL:
        if (flag < 0)
            return false;
        *(bool *)at = flag;
        return true;
    case OLD_REASONING:
        if (flag < 0)
            return false;
        if (flag)
            o->old_reasoning = (ds_old_reasoning)d->value;
        else if (o->old_reasoning == (ds_old_reasoning)d->value)
            o->old_reasoning = DS_REASONING_OFFICIAL;
        return true;
    case TRISTATE:
        flag = choice_of("false|true|auto", v);
        if (flag < 0)
            return false;
        *(int8_t *)at = (int8_t)(flag == 2 ? -1 : flag);
        return true;
    case U32:
        if (!parse_u32(v, d->min, d->max, &x, &end) || *end)
            return false;
        *(uint32_t *)at = x;
        return true;
    case CHOICE:
        flag = choice_of(d->values, v);
        if (flag < 0)
            return false;
        memcpy(at, &flag, sizeof flag);
        return true;
    case BOOL_CHOICE:
        flag = choice_of(d->values, v);
        if (flag < 0)
            return false;
        *(bool *)at = flag;
        return true;
    case EFFORTS: {
        uint8_t table[4];

        for (int i = 0; i < 4; i++) {
            if (!parse_u32(v, 1, 100, &x, &end) || *end != (i < 3 ? '/' : 0))
                return false;
            table[i] = (uint8_t)x;
            v = end + 1;
        }
        memcpy(o->effort_v41, table, sizeof table);
        return true;
    }
    }
    return false;
}

ds_rc ds_recipe_opts_set(ds_recipe_opts *o, const char *assignment, ds_err *err)
{
    const char *eq = strchr(assignment, '=');
    size_t n = eq ? (size_t)(eq - assignment) : strlen(assignment);
    char quoted[256];

    for (size_t i = 0; i < N_OPTS; i++) {
        if (strlen(opts[i].name) != n || memcmp(opts[i].name, assignment, n) != 0)
            continue;
        if (!set_value(o, &opts[i], eq ? eq + 1 : "true"))
            return ds_fail(err, DS_E_ARG, "%s: expected %s", ds_quote(quoted, sizeof quoted, assignment, strlen(assignment)), opts[i].help);
        return DS_OK;
    }
    return ds_fail(err, DS_E_ARG, "no option named '%s'; `--set help` lists them", ds_quote(quoted, sizeof quoted, assignment, n));
}

const char *ds_recipe_opts_help(size_t i)
{
    return i < N_OPTS ? opts[i].help : NULL;
}
