/* JSON Schemas: whatever is accepted has members; they are JSON, fit the schema, and match at every split. */
#include "grammar.h"
#include "schema/schema.h"

static void fits(void *schema, const ds_buf *b)
{
    ds_json_opts deep = { .max_depth = DS_JSON_MAX_DEPTH };
    ds_json_doc *doc;
    ds_err err;

    must(ds_json_parse(&doc, b->p, b->len, &deep, &err) == DS_OK);
    must(ds_schema_matches(schema, ds_json_root(doc), NULL, 0));
    ds_json_free(doc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ds_grammar *g;
    ds_err err = { 0 };
    ds_json_doc *schema;
    ds_grammar_opts opts = small;
    ds_rc rc = ds_json_parse(&schema, (const char *)data, size, NULL, &err);

    if (rc != DS_OK)
        return 0;
    opts.any_order = size % 2;
    rc = ds_grammar_json_schema(&g, ds_json_root(schema), &opts, &err);
    check_grammar(g, rc, &err, size, fits, (void *)ds_json_root(schema));
    ds_json_free(schema);
    return 0;
}
