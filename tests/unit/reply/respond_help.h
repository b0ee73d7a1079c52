/* Runs a request and a model output through a ds_stream and writes down the events, one a line ("name data"), and
 * the body. JSON is written in these tests with ' for ". */
#ifndef DS_TEST_RESPOND_HELP_H
#define DS_TEST_RESPOND_HELP_H

#include <ds/stream.h>

#include "base/buf.h"
#include "base/json.h"
#include "test.h"

#define D "｜DSML｜"
#define CALLS(x) "\n\n<" D " calls>\n" x "\n</" D " calls>"
#define CALL(name, params) "<" D " invoke name=\"" name "\">\n" params "\n</" D " invoke>\n"
#define STR(key, value) "<" D " parameter name=\"" key "\" string=\"true\">" value "</" D " parameter>"
#define RAW(key, value) "<" D " parameter name=\"" key "\" string=\"false\">" value "</" D " parameter>"

#pragma GCC diagnostic ignored "-Wmissing-field-initializers" /* a case leaves out what it doesn't need */

typedef struct {
    const char *what;
    const char *request; /* members after "model":"m" */
    const char *set;     /* an option, or NULL */
    const char *output;  /* the model's; pieces end at \x1f */
    ds_stream_end end;
    const char *events; /* texts that stand in the event log in this order, separated by \n; a leading ! must not stand anywhere */
    const char *body;   /* the same for the body */
} respond_case;

static inline char *unquote(const char *s)
{
    char *t = strdup(s);

    for (char *c = t; *c; c++)
        if (*c == '\'')
            *c = '"';
    return t;
}

static inline void log_event(void *ctx, const char *event, const char *data, size_t n)
{
    ds_buf *log = ctx;
    ds_json_doc *doc;
    ds_err err;

    assert_int_equal(strlen(data), n);
    assert_null(strchr(data, '\n'));
    assert_null(strstr(data, "\xe2\x80\xa8")); /* U+2028 is escaped */
    assert_ok(ds_json_parse(&doc, data, n, &(ds_json_opts){ .max_depth = 200 }, &err));
    if (event)
        assert_true(ds_json_str_eq(ds_json_get(ds_json_root(doc), "type"), event));
    ds_json_free(doc);
    ds_buf_printf(log, "%s %s\n", event ? event : "", data);
}

static inline void expect(const char *what, const char *log, const char *want)
{
    char *list = unquote(want), *at = list;
    const char *from = log;

    while (at) {
        char *next = strchr(at, '\n');
        if (next)
            *next++ = '\0';
        if (*at == '!') {
            if (strstr(log, at + 1))
                fail_msg("%s: '%s' stands in\n%s", what, at + 1, log);
        } else if (*at) {
            const char *found = strstr(from, at);
            if (!found)
                fail_msg("%s: '%s' is missing%s in\n%s", what, at, strstr(log, at) ? " there" : "", log);
            from = found + strlen(at);
        }
        at = next;
    }
    free(list);
}

static inline ds_request *make_request(ds_proto proto, const char *members, const char *set)
{
    ds_recipe_opts o;
    ds_request_parse_args args = { .proto = proto, .opts = &o };
    ds_api_error refusal;
    ds_request *r;
    ds_buf body = { 0 };
    ds_err err = { 0 };
    char *m = unquote(members);

    ds_recipe_opts_init(&o);
    if (set)
        assert_ok(ds_recipe_opts_set(&o, set, &err));
    ds_buf_printf(&body, "{\"model\":\"m\",%s}", m);
    if (ds_request_parse(&r, &args, body.p, body.len, &refusal, &err) != DS_OK)
        fail_msg("%s: %s", body.p, err.msg);
    ds_buf_free(&body);
    free(m);
    return r;
}

/* Feeds the output to every choice and finishes. */
static inline void feed(ds_stream *s, const char *output, ds_stream_end end)
{
    ds_err err;

    assert_ok(ds_stream_ready(s, 20, 12, NULL, &err));
    for (const char *at = output; *at;) {
        size_t n = strcspn(at, "\x1f");
        for (uint32_t k = 0; k < ds_stream_choices(s); k++)
            assert_ok(ds_stream_text(s, k, at, n, 1, &err));
        at += n + (at[n] != 0);
    }
    for (uint32_t k = 0; k < ds_stream_choices(s); k++)
        assert_ok(ds_stream_finish(s, k, end, &err));
}

static inline void run_respond(ds_proto proto, const respond_case *c)
{
    ds_buf log = { 0 }, plain = { 0 };
    ds_stream *s;
    ds_err err;
    const char *json;
    size_t n;
    ds_request *r = make_request(proto, c->request, c->set);

    for (int events = 1; events >= 0; events--) { /* the body doesn't depend on whether events were made */
        ds_stream_opts so = { .id = "R", .created = 7, .sink = events ? log_event : NULL, .ctx = &log };
        assert_ok(ds_stream_create(&s, r, &so, &err));
        feed(s, c->output, c->end);
        assert_ok(ds_stream_body(s, &json, &n, &err));
        if (events)
            ds_buf_put(&plain, json, n);
        else
            assert_string_equal(json, ds_buf_str(&plain));
        ds_stream_destroy(s);
    }
    if (c->events)
        expect(c->what, ds_buf_str(&log), c->events);
    if (c->body)
        expect(c->what, ds_buf_str(&plain), c->body);
    ds_buf_free(&log);
    ds_buf_free(&plain);
    ds_request_destroy(r);
}

#define RUN_RESPOND(proto, cases)                                   \
    for (size_t i_ = 0; i_ < sizeof(cases) / sizeof *(cases); i_++) \
    run_respond(proto, &(cases)[i_])

#endif
