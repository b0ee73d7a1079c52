/* JSON Schemas: whatever is accepted has members; they are JSON, fit the schema, and match at every split. */
#include <string.h>

#include "grammar/grammar.h"
#include "schema/schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const ds_grammar_opts small = { .max_nodes = 5000, .max_states = 2000, .max_bytes = 4 << 20 };
    ds_grammar *g;
    ds_err err = { 0 };
    ds_buf b = { 0 };
    ds_json_doc *schema, *doc;
    ds_rc rc = ds_json_parse(&schema, (const char *)data, size, NULL, &err);

    if (rc != DS_OK)
        return 0;
    rc = ds_grammar_json_schema(&g, ds_json_root(schema), &small, &err);
    must(rc == DS_OK || rc == DS_E_ARG);
    if (rc != DS_OK) {
        must(!g && err.msg[0]);
        ds_json_free(schema);
        return 0;
    }
    for (uint64_t i = 0; i < 3; i++) {
        ds_json_opts deep = { .max_depth = DS_JSON_MAX_DEPTH };
        ds_gstate s = ds_grammar_start(g), t = s;
        size_t taken, one;
        ds_buf_clear(&b);
        must(ds_grammar_sample(g, size, i, &b, &err) == DS_OK);
        must(ds_json_parse(&doc, b.p, b.len, &deep, &err) == DS_OK);
        must(ds_schema_matches(ds_json_root(schema), ds_json_root(doc), NULL, 0));
        ds_json_free(doc);
        rc = ds_grammar_read(g, &s, b.p, b.len, &taken, &err);
        must(rc == DS_OK || rc == DS_E_AGAIN);
        if (rc != DS_OK)
            break;
        must(taken == b.len && ds_grammar_accepts(g, s));
        for (size_t k = 0; k < b.len; k++)
            must(ds_grammar_read(g, &t, b.p + k, 1, &one, &err) == DS_OK && one == 1);
        must(t == s);
    }
    ds_buf_free(&b);
    ds_json_free(schema);
    ds_grammar_destroy(g);
    return 0;
}
