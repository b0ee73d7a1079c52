/* JSON: whatever is accepted can be written in every style, read again, and is then the same. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok)
        __builtin_trap();
}

static bool same(const ds_json *a, const ds_json *b, bool numbers)
{
    const ds_json *x, *y;

    if (a->type != b->type || a->n != b->n || a->key_len != b->key_len || (a->key_len && memcmp(a->key, b->key, a->key_len) != 0))
        return false;
    if (a->type == DS_JSON_NUMBER && !numbers) {
        double p = 0, q = 0;
        bool has_p = ds_json_f64(a, &p), has_q = ds_json_f64(b, &q);
        return has_p == has_q && p == q;
    }
    if (a->text_len != b->text_len || (a->text_len && memcmp(a->text, b->text, a->text_len) != 0))
        return false;
    for (x = a->child, y = b->child; x && y; x = x->next, y = y->next)
        if (!same(x, y, numbers))
            return false;
    return !x && !y;
}

static void round_trip(const ds_json *v, ds_json_style style)
{
    ds_buf first = { 0 }, second = { 0 };
    ds_json_doc *doc;
    ds_err err;

    ds_json_write(&first, v, style);
    must(!first.oom);
    must(ds_json_parse(&doc, first.p, first.len, NULL, &err) == DS_OK);
    must(same(v, ds_json_root(doc), style != DS_JSON_PYTHON));
    ds_json_write(&second, ds_json_root(doc), style);
    must(first.len == second.len && memcmp(first.p, second.p, first.len) == 0);
    ds_json_free(doc);
    ds_buf_free(&first);
    ds_buf_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const ds_json_opts strict = { .max_depth = 16, .max_values = 1000, .refuse_duplicates = true };
    ds_json_doc *doc;
    ds_buf b = { 0 };
    ds_err err = { 0 };

    if (ds_json_parse(&doc, (const char *)data, size, NULL, &err) == DS_OK) {
        round_trip(ds_json_root(doc), DS_JSON_COMPACT);
        round_trip(ds_json_root(doc), DS_JSON_PYTHON);
        round_trip(ds_json_root(doc), DS_JSON_SSE);
        ds_json_free(doc);
    } else {
        must(err.rc == DS_E_FORMAT && strncmp(err.msg, "line ", 5) == 0);
    }
    if (ds_json_parse(&doc, (const char *)data, size, &strict, NULL) == DS_OK)
        ds_json_free(doc);
    ds_json_write_str(&b, (const char *)data, size, DS_JSON_SSE); /* any bytes become a legal string */
    must(ds_json_parse(&doc, b.p, b.len, NULL, NULL) == DS_OK);
    ds_json_free(doc);
    ds_buf_free(&b);
    return 0;
}
