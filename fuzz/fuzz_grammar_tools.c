/* Calls of tools: the input is a JSON array of schemas, of which each is a tool's; strict by its position. Members are
 * calls; where a random one spells markup it is refused at that place. */
#include "grammar.h"

enum { MOST = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[MOST] = { "a", "b", "c::d", "e", "f", "g", "h", "i" };
    static const char *const never[] = { "<end>" };
    ds_grammar_tool tools[MOST] = { 0 };
    ds_grammar_calls k = {
        .tools = tools, .dsml = "#", .block = " calls", .call = " invoke", .parameter = " parameter", .never = never, .n_never = 1
    };
    ds_grammar *g;
    ds_err err = { 0 };
    ds_json_doc *doc;

    if (ds_json_parse(&doc, (const char *)data, size, NULL, &err) != DS_OK)
        return 0;
    for (const ds_json *v = ds_json_root(doc)->child; v && k.n_tools < MOST; v = v->next, k.n_tools++) {
        ds_grammar_tool *t = &tools[k.n_tools];
        *t =
            (ds_grammar_tool){ .name = names[k.n_tools], .name_bytes = strlen(names[k.n_tools]), .parameters = v, .strict = k.n_tools % 2 };
        if (ds_json_is(v, DS_JSON_STRING)) {
            t->input = DS_TOOL_LARK;
            t->definition = v->text;
            t->definition_bytes = v->text_len;
        }
    }
    k.start = (ds_calls_start)(size % 3);
    k.single = size % 2;
    if (ds_grammar_tools(&g, &k, &small, &err) != DS_OK) {
        must(!g && err.msg[0]);
    } else {
        for (uint64_t i = 0; i < 3; i++) {
            ds_gstate s = ds_grammar_start(g);
            ds_buf b = { 0 };
            size_t taken;
            must(ds_grammar_sample(g, size, i, &b, &err) == DS_OK);
            if (ds_grammar_read(g, &s, b.p, b.len, &taken, &err) == DS_OK && !memmem(b.p, b.len, "<#", 2) &&
                !memmem(b.p, b.len, "</#", 3) && !memmem(b.p, b.len, "<end>", 5))
                must(taken == b.len && ds_grammar_accepts(g, s));
            ds_buf_free(&b);
        }
        ds_grammar_destroy(g);
    }
    ds_json_free(doc);
    return 0;
}
