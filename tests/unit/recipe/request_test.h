/* Helpers of the tests of requests: a body in, a prompt or a refusal out. */
#ifndef DS_REQUEST_TEST_H
#define DS_REQUEST_TEST_H

#include <ds/request.h>

#include "base/buf.h"
#include "test.h"

/* The prompt as one string; NULL when refused (*refusal tells why). *keep receives the request; the caller destroys
 * it. Free the result. */
static inline char *prompt_of(const ds_request_parse_args *args, const char *body, ds_request **keep, ds_api_error *refusal)
{
    ds_err err = { 0 };
    const ds_run *runs;
    ds_buf b = { 0 };
    size_t n;
    ds_rc rc = ds_request_parse(keep, args, body, strlen(body), refusal, &err);

    if (rc == DS_E_FORMAT) {
        assert_null(*keep);
        assert_true(refusal->status >= 400);
        assert_true(refusal->message[0]);
        return NULL;
    }
    if (rc != DS_OK)
        fail_msg("%s: %s", body, err.msg);
    assert_ok(ds_request_render(*keep, 0, &runs, &n, &err));
    for (size_t i = 0; i < n; i++) {
        assert_true(runs[i].n > 0);
        assert_true(i == 0 || runs[i].control || runs[i - 1].control); /* text runs are joined */
        ds_buf_put(&b, runs[i].p, runs[i].n);
    }
    assert_false(b.oom);
    ds_buf_putc(&b, 0);
    return b.p;
}

#pragma GCC diagnostic ignored "-Wmissing-field-initializers" /* a case leaves out what it doesn't need */

typedef struct {
    const char *name;
    const char *body;
    const char *want;  /* expected: the prompt's tail; NULL = refused */
    const char *param; /* refused: the field */
    const char *word;  /* refused: in the message */
    const char *set;   /* an option, or NULL */
} request_case;

static inline void run_case(ds_proto proto, ds_encoding enc, const request_case *c)
{
    ds_recipe_opts o;
    ds_request_parse_args args = { .proto = proto, .opts = &o };
    ds_api_error why;
    ds_request *r;
    ds_err err = { 0 };
    char *got;

    ds_recipe_opts_init(&o);
    o.encoding = enc;
    if (c->set)
        assert_ok(ds_recipe_opts_set(&o, c->set, &err));
    got = prompt_of(&args, c->body, &r, &why);
    if (c->want) {
        size_t n, m = strlen(c->want);

        if (!got)
            fail_msg("%s: refused: %s", c->name, why.message);
        n = strlen(got);
        if (n < m || strcmp(got + n - m, c->want) != 0)
            fail_msg("%s: prompt\n%s\ndoes not end in\n%s", c->name, got, c->want);
    } else {
        if (got)
            fail_msg("%s: accepted as\n%s", c->name, got);
        if (c->param && strcmp(why.param, c->param) != 0)
            fail_msg("%s: refused at '%s' (%s), expected at '%s'", c->name, why.param, why.message, c->param);
        if (c->word && !strstr(why.message, c->word))
            fail_msg("%s: message '%s' lacks '%s'", c->name, why.message, c->word);
    }
    free(got);
    ds_request_destroy(r);
}

/* Bodies are written with ' for ", to be readable. */
static inline char *quoted(const char *s)
{
    char *t = strdup(s);

    for (char *c = t; *c; c++)
        if (*c == '\'')
            *c = '"';
    return t;
}

static inline void run_cases(ds_proto proto, ds_encoding enc, const request_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        request_case c = cases[i];
        char *body = quoted(c.body);

        c.body = body;
        if (!c.name)
            c.name = cases[i].body;
        run_case(proto, enc, &c);
        free(body);
    }
}
#define RUN_CASES(proto, enc, cases) run_cases(proto, enc, cases, sizeof(cases) / sizeof *(cases))

#endif
