/* Calls of tools: the language, against the parser that will read it and the schemas that its arguments must fit. */
#include "oracle.h"

#include "reply/parser.h"
#include "schema/schema.h"

#define C "\xff｜DSML｜\xfe"
#define OPEN "<" C " calls>\n"
#define INVOKE(name) "<" C " invoke name=\"" name "\">\n"
#define S(name, value) "<" C " parameter name=\"" name "\" string=\"true\">" value "</" C " parameter>"
#define J(name, value) "<" C " parameter name=\"" name "\" string=\"false\">" value "</" C " parameter>"
#define END "\n</" C " invoke>\n"
#define CLOSE "</" C " calls>"

static const char *const never[] = { "<｜end▁of▁sentence｜>" };

static ds_grammar_calls calls_of(const ds_grammar_tool *tools, uint32_t n, ds_calls_start start)
{
    return (ds_grammar_calls){ .tools = tools,
                               .n_tools = n,
                               .start = start,
                               .dsml = "｜DSML｜",
                               .block = " calls",
                               .call = " invoke",
                               .parameter = " parameter",
                               .never = never,
                               .n_never = 1 };
}

static ds_grammar_tool tool(const char *name, ds_json_doc **doc, const char *schema, bool strict)
{
    ds_grammar_tool t = { .name = name, .name_bytes = strlen(name), .strict = strict };
    ds_err err = { 0 };

    *doc = NULL;
    if (schema) {
        assert_ok(ds_json_parse(doc, schema, strlen(schema), NULL, &err));
        t.parameters = ds_json_root(*doc);
    }
    return t;
}

static void expect(ds_grammar *g, const char *text, bool match)
{
    verdict v = judge(g, text, strlen(text));

    if (v.match != match)
        fail_msg("at %zu of: %s", v.at, text);
}

#define WEATHER                                                                                                                 \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"unit\":{\"enum\":[\"C\",\"F\"]},\"days\":{\"type\":" \
    "\"integer\",\"minimum\":1,\"maximum\":7},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},\"x\":{\"type\":["  \
    "\"string\",\"null\"]}},\"required\":[\"city\"],\"additionalProperties\":false}"

static void language(void **state)
{
    ds_json_doc *weather;
    ds_grammar_tool tools[] = { tool("weather", &weather, WEATHER, true), { .name = "now", .name_bytes = 3 } };
    ds_grammar_calls k = calls_of(tools, 2, DS_CALLS_OPEN);
    ds_grammar *g;
    ds_err err = { 0 };

    (void)state;
    assert_ok(ds_grammar_tools(&g, &k, NULL, &err));
    expect(g, INVOKE("weather") S("city", "Berlin") END CLOSE, true);
    expect(g, INVOKE("weather") S("city", "a \"b\" </x> \\n\n") "\n" S("unit", "C") "\n" J("days", "7") END CLOSE, true);
    expect(g, INVOKE("weather") S("city", "") "\n" J("tags", "[\"a\", \"\\n\"]") "\n" J("x", "null") END CLOSE, true);
    expect(g, INVOKE("weather") S("city", "") "\n" S("x", "null") END CLOSE, true);
    expect(g, INVOKE("now") END INVOKE("weather") S("city", "B") END CLOSE, true);
    expect(g, INVOKE("now") S("anything", "x") "\n" J("else", "{\"a\": [1]}") END CLOSE, true);
    expect(g, INVOKE("weather") END CLOSE, false);                    /* city is missing */
    expect(g, INVOKE("weather") J("city", "\"B\"") END CLOSE, false); /* strings are raw */
    expect(g, INVOKE("weather") S("city", "B") "\n" J("days", "8") END CLOSE, false);
    expect(g, INVOKE("weather") S("city", "B") "\n" S("unit", "K") END CLOSE, false);
    expect(g, INVOKE("weather") S("city", "B") "\n" S("other", "K") END CLOSE, false);
    expect(g, INVOKE("other") END CLOSE, false);
    expect(g, CLOSE, false);
    expect(g, INVOKE("weather") S("city", "</｜DSML｜ parameter>") END CLOSE, false); /* spelled, not the token */
    expect(g, INVOKE("weather") S("city", "<<｜DSML｜") END CLOSE, false);
    expect(g, INVOKE("weather") S("city", "<｜end▁of▁sentence｜>") END CLOSE, false);
    expect(g, INVOKE("weather") S("city", "<｜DSML</｜DSML ｜") END CLOSE, true);
    masks_are_exact(g, "open block");
    ds_grammar_destroy(g);
    k.single = true;
    k.start = DS_CALLS_MUST;
    assert_ok(ds_grammar_tools(&g, &k, NULL, &err));
    expect(g, "\n\n" OPEN INVOKE("now") END CLOSE, true);
    expect(g, OPEN INVOKE("now") END CLOSE, false);
    expect(g, "\n\n" OPEN INVOKE("now") END INVOKE("now") END CLOSE, false);
    ds_grammar_destroy(g);
    k.start = DS_CALLS_MAY;
    assert_ok(ds_grammar_tools(&g, &k, NULL, &err));
    expect(g, "", true);
    expect(g, "I will look: <b>", true);
    expect(g, "I will look.\n\n" OPEN INVOKE("now") END CLOSE, true);
    expect(g, "I will look.\n\n" OPEN INVOKE("now") END CLOSE "x", false);
    expect(g, "<｜DSML｜ calls>", false);
    masks_are_exact(g, "perhaps a block");
    ds_grammar_destroy(g);
    k.content = ds_json_root(weather);
    assert_ok(ds_grammar_tools(&g, &k, NULL, &err));
    expect(g, "{\"city\":\"x\"}", true);
    expect(g, "{\"city\":\"x\"}\n\n" OPEN INVOKE("now") END CLOSE, true);
    expect(g, "\n\n" OPEN INVOKE("now") END CLOSE, true);
    expect(g, "hello", false);
    ds_grammar_destroy(g);
    ds_json_free(weather);
}

static void custom_tools(void **state)
{
    static const char date[] = "\\d{4}-\\d{2}<?";
    ds_grammar_tool tools[] = {
        { .name = "patch", .name_bytes = 5, .input = DS_TOOL_TEXT },
        { .name = "day", .name_bytes = 3, .input = DS_TOOL_REGEX, .definition = date, .definition_bytes = sizeof date - 1 }
    };
    ds_grammar_calls k = calls_of(tools, 2, DS_CALLS_OPEN);
    ds_grammar *g;
    ds_err err = { 0 };

    (void)state;
    assert_ok(ds_grammar_tools(&g, &k, NULL, &err));
    expect(g, INVOKE("patch") S("input", "*** Begin\n\"x\" \\") END INVOKE("day") S("input", "2026-01<") END CLOSE, true);
    expect(g, INVOKE("day") S("input", "2026-1") END CLOSE, false);
    masks_are_exact(g, "custom tools");
    ds_grammar_destroy(g);
    tools[1].definition = "(?=a)";
    tools[1].definition_bytes = 5;
    assert_refused(ds_grammar_tools(&g, &k, NULL, &err), DS_E_ARG, "tool day: regex: character 0: look-ahead");
}

/* A schema that isn't supported: an error for a strict tool, any parameters for another. */
static void refusals(void **state)
{
    ds_json_doc *doc;
    ds_grammar_tool tools[2] = { tool(
        "f", &doc,
        "{\"properties\":{\"a\":{\"$ref\":\"#/$defs/n\"},\"b\":{\"unevaluatedItems\":true}},\"$defs\":{\"n\":{\"type\":\"null\"}}}",
        true) };
    ds_grammar_calls k = calls_of(tools, 1, DS_CALLS_OPEN);
    ds_grammar *g;
    ds_err err = { 0 };

    (void)state;
    tools[1] = tools[0];
    tools[1].name = "<";
    tools[1].name_bytes = 1;
    assert_refused(ds_grammar_tools(&g, &k, NULL, &err), DS_E_ARG, "tool f: #/properties/b/unevaluatedItems");
    tools[0].strict = false;
    assert_ok(ds_grammar_tools(&g, &k, NULL, &err));
    expect(g, INVOKE("f") J("a", "1") END CLOSE, true);
    ds_grammar_destroy(g);
    k.n_tools = 2;
    assert_refused(ds_grammar_tools(&g, &k, NULL, &err), DS_E_ARG, "tool <: this name");
    k.n_tools = 0;
    assert_refused(ds_grammar_tools(&g, &k, NULL, &err), DS_E_ARG, "tools: 0");
    ds_json_free(doc);
}

typedef struct {
    ds_buf name, args;
    uint32_t calls, complete;
    const ds_json *schema;
} heard;

static void hear(void *ctx, const ds_parse_event *ev)
{
    heard *h = ctx;
    ds_json_doc *doc;
    ds_err err = { 0 };
    char why[200] = "";

    if (ev->kind == DS_PARSE_CALL)
        ds_buf_clear(&h->args);
    else if (ev->kind == DS_PARSE_ARGS)
        ds_buf_put(&h->args, ev->bytes, ev->n);
    if (ev->kind != DS_PARSE_CALL_END)
        return;
    h->calls++;
    h->complete += ev->complete;
    assert_ok(ds_json_parse(&doc, h->args.p, h->args.len, NULL, &err));
    if (!ds_schema_matches(h->schema, ds_json_root(doc), why, sizeof why))
        fail_msg("%s: %s", why, ds_buf_str(&h->args));
    ds_json_free(doc);
}

/* Every member is read back as calls whose arguments fit the schema. */
static void as_the_parser_reads(void **state)
{
    ds_json_doc *doc;
    ds_grammar_tool tools[] = { tool("weather", &doc, WEATHER, true) };
    ds_grammar_calls k = calls_of(tools, 1, DS_CALLS_MAY);
    heard h = { .schema = tools[0].parameters };
    ds_grammar *g;
    ds_buf b = { 0 };
    ds_err err = { 0 };

    (void)state;
    assert_ok(ds_grammar_tools(&g, &k, NULL, &err));
    for (uint64_t i = 0; i < 300; i++) {
        ds_parser_opts o = { .sink = hear, .ctx = &h, .tools = DS_PARSER_TOOLS_ON };
        ds_parser *p;
        size_t n = 0;
        ds_buf_clear(&b);
        assert_ok(ds_grammar_sample(g, 3, i, &b, &err));
        for (size_t at = 0; at < b.len; at++)
            if (b.p[at] != '\xff' && b.p[at] != '\xfe')
                b.p[n++] = b.p[at];
        assert_ok(ds_parser_create(&p, &o, &err));
        ds_parser_push(p, b.p, n, 1);
        ds_parser_finish(p, DS_BACKEND_STOP);
        assert_int_equal(ds_parser_get_stats(p)->bad_calls, 0);
        assert_int_equal(ds_parser_get_stats(p)->repaired_values, 0);
        assert_int_equal(ds_parser_get_stats(p)->dropped_params, 0);
        ds_parser_destroy(p);
    }
    assert_true(h.calls > 100);
    assert_int_equal(h.calls, h.complete);
    ds_buf_free(&h.args);
    ds_buf_free(&b);
    ds_grammar_destroy(g);
    ds_json_free(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(language), cmocka_unit_test(custom_tools), cmocka_unit_test(refusals),
                                        cmocka_unit_test(as_the_parser_reads) };

    return oracle_main(tests, sizeof tests / sizeof *tests);
}
