/* What the three request fuzzers check: a body is refused with a complete error, or it renders the same twice and
 * its runs keep their promises. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <ds/request.h>

#include "base/json.h"
#include "base/utf8.h"

static inline void must(int ok)
{
    if (!ok)
        __builtin_trap();
}

static inline void check_refusal(const ds_api_error *e, ds_proto proto)
{
    char body[2048];
    ds_json_doc *doc;
    size_t n = ds_api_error_body(body, sizeof body, e, proto, false, "req_x");

    must(e->status >= 400 && e->type && e->code && e->message[0] && n < sizeof body);
    if (ds_json_parse(&doc, body, n, NULL, NULL) != DS_OK)
        __builtin_trap();
    ds_json_free(doc);
}

static inline void check_request(ds_request *r)
{
    const ds_request_info_data *i = ds_request_info(r);
    const ds_run *runs;
    ds_str items;
    size_t n;

    must(i->n_prompts >= 1 && i->n >= 1 && i->max_tokens >= 1);
    for (uint32_t k = 0; k < i->n_prompts; k++) {
        must(ds_request_render(r, k, &runs, &n, NULL) == DS_OK && n > 0);
        for (size_t j = 0; j < n; j++) {
            must(runs[j].n > 0 && ds_utf8_valid(runs[j].p, runs[j].n));
            must(j == 0 || runs[j].control || runs[j - 1].control);
        }
        must(runs[0].control);
    }
    for (uint32_t k = 0; k < i->n_tools; k++)
        must(ds_request_tool(r, i->tools[k].name.p, i->tools[k].name.n) == &i->tools[k]);
    for (uint32_t k = 0; k < i->n_images; k++)
        must(i->images[k].param && i->images[k].source.p);
    must(ds_request_items(r, &items, NULL) == DS_OK);
}

/* The first byte picks the encoding and some switches, the rest is the body. */
static inline int fuzz_request(ds_proto proto, const uint8_t *data, size_t n)
{
    ds_recipe_opts o;
    ds_request_parse_args args = { .proto = proto, .opts = &o };
    ds_api_error why;
    ds_request *r;
    ds_rc rc;

    if (n == 0)
        return 0;
    ds_recipe_opts_init(&o);
    o.encoding = data[0] & 1 ? DS_ENC_V4 : DS_ENC_V41;
    o.lenient_history = data[0] & 2;
    o.recipe_call_order = data[0] & 4;
    o.tasks = data[0] & 8;
    o.official_schemas = data[0] & 16;
    o.ignore_server_tools = data[0] & 32;
    o.allow_regex = data[0] & 64;
    rc = ds_request_parse(&r, &args, (const char *)data + 1, n - 1, &why, NULL);
    if (rc == DS_OK)
        check_request(r);
    else if (rc == DS_E_FORMAT)
        check_refusal(&why, proto);
    else
        must(rc == DS_E_NOMEM);
    ds_request_destroy(r);
    return 0;
}
