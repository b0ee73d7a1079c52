/* Calls of tools. The whole answer is one language: content, the block, calls in it, and in those parameters.
 *
 * A parameter whose value is a string is written raw, so one that may be a string and something else is two
 * alternatives: each is the value's schema with a type beside it. What would end a raw string early is kept out
 * everywhere by the list of texts that may stand nowhere. */
#include <stdio.h>

#include "base/str.h"
#include "grammar/schema_internal.h"
#include "schema/schema.h"

enum { MOST_TOOLS = 1024, LONGEST_TAG = 64 };

/* "<", the control token, name, rest; with `close` "</" first. */
static uint32_t tag(schema *c, bool close, const char *name, const char *rest)
{
    return cat(c, text(c, close ? "</" : "<"), cat(c, ds_tree_control(&c->f, c->calls->dsml), cat(c, text(c, name), text(c, rest))));
}

/* A parameter up to its value, with what may stand in it, to its end. */
static uint32_t written(schema *c, uint32_t name, bool string, uint32_t value)
{
    const char *p = c->calls->parameter;
    uint32_t head = cat(c, tag(c, false, p, " name=\""), cat(c, name, text(c, string ? "\" string=\"true\">" : "\" string=\"false\">")));

    return cat(c, cat(c, head, value), tag(c, true, p, ">"));
}

uint32_t schema_parameter(schema *c, uint32_t name, const parts *of)
{
    static const ds_json string_type = { .type = DS_JSON_STRING, .key = "type", .key_len = 4, .text = "string", .text_len = 6 };
    static const ds_json others[] = {
        { .type = DS_JSON_STRING, .text = "null", .text_len = 4, .next = &others[1] },
        { .type = DS_JSON_STRING, .text = "boolean", .text_len = 7, .next = &others[2] },
        { .type = DS_JSON_STRING, .text = "number", .text_len = 6, .next = &others[3] },
        { .type = DS_JSON_STRING, .text = "array", .text_len = 5, .next = &others[4] },
        { .type = DS_JSON_STRING, .text = "object", .text_len = 6 },
    };
    static const ds_json other_types = { .type = DS_JSON_ARRAY, .n = 5, .key = "type", .key_len = 4, .child = others };
    static const ds_json is_string = { .type = DS_JSON_OBJECT, .n = 1, .child = &string_type };
    static const ds_json is_other = { .type = DS_JSON_OBJECT, .n = 1, .child = &other_types };
    parts a = *of, b = *of;
    bool call = c->call;
    uint32_t t;

    schema_join(c, &a, &is_string, c->root);
    schema_join(c, &b, &is_other, c->root);
    c->call = false;
    c->raw = true;
    t = schema_value(c, &a);
    c->raw = false;
    t = written(c, name, true, t);
    t = alt(c, t, written(c, name, false, schema_value(c, &b)));
    c->call = call;
    return t;
}

/* Any parameters. */
static uint32_t loose(schema *c)
{
    static const parts all = { .n = 0 };
    uint32_t one = schema_parameter(c, schema_regex(c, "[^\"<>\\x00-\\x1f]{1,64}"), &all);

    return maybe(c, cat(c, one, ds_tree_repeat(&c->f, cat(c, text(c, "\n"), one), 0, TREE_UNBOUNDED)));
}

static uint32_t by_schema(schema *c, const ds_json *s)
{
    static const ds_json type = { .type = DS_JSON_STRING, .key = "type", .key_len = 4, .text = "object", .text_len = 6 };
    static const ds_json is_object = { .type = DS_JSON_OBJECT, .n = 1, .child = &type };
    parts p = { .n = 2, .p = { { .s = s }, { .s = &is_object } } };
    char what[160];
    uint32_t t;

    c->root = s;
    if (!ds_schema_valid(s, what, sizeof what))
        return schema_refuse(c, s, what);
    c->call = true;
    t = schema_value(c, &p);
    c->call = false;
    schema_rules(c);
    return t;
}

/* The parameters of a call, or after a refusal anything. */
static uint32_t parameters(schema *c, const ds_grammar_tool *t)
{
    static const ds_regex_opts whole = { 0 };
    uint32_t input = 0;
    ds_rc rc = DS_OK;

    if (t->input == DS_TOOL_JSON)
        return t->parameters ? by_schema(c, t->parameters) : loose(c);
    if (t->input == DS_TOOL_TEXT) {
        c->raw = true;
        input = schema_any_string(c);
        c->raw = false;
    } else if (t->input == DS_TOOL_REGEX) {
        rc = ds_regex_tree(&c->f, t->definition, t->definition_bytes, &whole, &input, c->err);
    } else {
        rc = ds_lark_tree(&c->f, t->definition, t->definition_bytes, &input, c->err);
    }
    if (rc != DS_OK) {
        ds_err_prefix(c->err, rc, "%s: ", c->label);
        c->bad = true;
    }
    return written(c, text(c, "input"), true, input);
}

static uint32_t call_of(schema *c, const ds_grammar_tool *t)
{
    char label[120], q[100];
    uint32_t head, body, before = c->f.rules.n;

    snprintf(label, sizeof label, "tool %s", ds_quote(q, sizeof q, t->name, t->name_bytes));
    if (t->name_bytes == 0 || memchr(t->name, '"', t->name_bytes) || memchr(t->name, '<', t->name_bytes) ||
        memchr(t->name, '>', t->name_bytes) || memchr(t->name, '\n', t->name_bytes)) {
        ds_fail(c->err, DS_E_ARG, "%s: this name can't be written in a call", label);
        c->bad = true;
        return 0;
    }
    c->label = label;
    c->values = c->work = 0; /* each tool has the bounds of a schema */
    body = parameters(c, t);
    if (c->bad && t->input == DS_TOOL_JSON && !t->strict && t->parameters) {
        ds_grammar_tool any = *t;
        schema_forget(c, before);
        any.parameters = NULL;
        c->bad = false;
        body = parameters(c, &any);
    }
    c->label = NULL;
    head = tag(c, false, c->calls->call, " name=\"");
    head = cat(c, cat(c, head, ds_tree_text(&c->f, t->name, t->name_bytes)), text(c, "\">\n"));
    return cat(c, cat(c, head, body), cat(c, text(c, "\n"), tag(c, true, c->calls->call, ">\n")));
}

static uint32_t content(schema *c)
{
    parts p = { .n = 1, .p = { { .s = c->calls->content } } };
    char what[160];
    uint32_t t;

    if (!c->calls->content)
        return ds_tree_anything(&c->f);
    c->root = c->calls->content;
    c->label = "content";
    if (!ds_schema_valid(c->root, what, sizeof what))
        return schema_refuse(c, c->root, what);
    t = schema_value(c, &p);
    schema_rules(c);
    return t;
}

static void forbid(schema *c, const char *a, const char *b)
{
    size_t n = strlen(a) + strlen(b);

    if (n == 0 || n > UINT8_MAX) {
        ds_fail(c->err, DS_E_ARG, "tools: a text that may stand nowhere has %zu bytes", n);
        c->bad = true;
        return;
    }
    ds_buf_putc(&c->f.never, (char)n);
    ds_buf_puts(&c->f.never, a);
    ds_buf_puts(&c->f.never, b);
    c->f.failed |= c->f.never.oom;
}

static uint32_t answer(schema *c)
{
    const ds_grammar_calls *k = c->calls;
    uint32_t any = none(c), one, calls, rest;

    for (uint32_t i = 0; i < k->n_tools && !c->bad && !c->f.failed; i++)
        any = alt(c, any, call_of(c, &k->tools[i]));
    one = schema_rule(c, NULL, "call");
    schema_rule_set(c, one, any);
    calls = ds_tree_repeat(&c->f, ds_tree_call(&c->f, one), 1, k->single ? 1 : TREE_UNBOUNDED);
    rest = cat(c, calls, tag(c, true, k->block, ">"));
    if (k->start == DS_CALLS_OPEN)
        return rest;
    rest = cat(c, tag(c, false, k->block, ">\n"), rest);
    if (k->start == DS_CALLS_MUST || c->bad)
        return cat(c, text(c, "\n\n"), rest);
    if (!k->content)
        return cat(c, content(c), maybe(c, rest));
    rest = cat(c, text(c, "\n\n"), rest);
    return alt(c, cat(c, content(c), maybe(c, rest)), rest);
}

ds_rc ds_grammar_tools(ds_grammar **out, const ds_grammar_calls *calls, const ds_grammar_opts *opts, ds_err *err)
{
    schema c;
    ds_err own;
    uint32_t start;

    *out = NULL;
    if (calls->n_tools == 0 || calls->n_tools > MOST_TOOLS)
        return ds_fail(err, DS_E_ARG, "tools: %u, 1 to %d are supported", calls->n_tools, MOST_TOOLS);
    if (strlen(calls->dsml) > LONGEST_TAG || strlen(calls->block) > LONGEST_TAG || strlen(calls->call) > LONGEST_TAG ||
        strlen(calls->parameter) > LONGEST_TAG)
        return ds_fail(err, DS_E_ARG, "tools: a tag of more than %d bytes", LONGEST_TAG);
    schema_begin(&c, opts, err ? err : &own);
    c.calls = calls;
    start = schema_rule(&c, NULL, "answer");
    forbid(&c, "<", calls->dsml);
    forbid(&c, "</", calls->dsml);
    for (uint32_t i = 0; i < calls->n_never && !c.bad; i++)
        forbid(&c, calls->never[i], "");
    schema_rule_set(&c, start, answer(&c));
    return schema_end(&c, out, "tools");
}
