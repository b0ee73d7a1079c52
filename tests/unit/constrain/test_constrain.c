/* Constraints of requests: what is asked for, places of samples (thought, grammar, end), the bounded table. */
#include <pthread.h>

#include "constrain/constrain.h"
#include "fault.h"
#include "test.h"

enum { EOS_ID = 1, MOST_WORDS = 1024 };

static ds_tokenizer *tok;
static ds_encoder *enc;
static uint32_t n_words;
static ds_token think_end;

static int setup(void **state)
{
    ds_err err;

    (void)state;
    assert_ok(ds_tokenizer_open(&tok, DS_TEST_ROOT "/models/demo/tokenizer.json", &err));
    assert_ok(ds_encoder_create(&enc, tok, NULL, &err));
    n_words = (ds_tokenizer_size(tok) + 31) / 32;
    think_end = ds_tokenizer_control(tok, "</think>");
    assert_true(n_words <= MOST_WORDS && think_end != DS_TOKEN_NONE);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ds_encoder_destroy(enc);
    ds_tokenizer_destroy(tok);
    return 0;
}

static ds_constrain *make(const ds_constrain_opts *o)
{
    int32_t stop[] = { EOS_ID };
    ds_constrain *c;
    ds_err err;

    assert_ok(ds_constrain_create(&c, tok, stop, 1, o, &err));
    return c;
}

static ds_constrain_what regex(const char *pattern)
{
    return (ds_constrain_what){ .kind = DS_CONSTRAINT_REGEX, .text = { pattern, strlen(pattern) } };
}

static ds_constrained *begin(ds_constrain *c, const char *tenant, const ds_constrain_what *w, uint32_t n)
{
    ds_constrained *r;
    ds_err err = { 0 };

    assert_ok(ds_constrain_begin(&r, c, tenant, w, n, &err));
    return r;
}

static uint32_t ids_of(const char *text, int32_t *out)
{
    ds_ids ids = { 0 };
    ds_err err;
    uint32_t n;

    assert_ok(ds_encoder_text(enc, text, strlen(text), &ids, &err));
    n = (uint32_t)ids.n;
    for (uint32_t i = 0; i < n; i++)
        out[i] = (int32_t)ids.p[i];
    ds_ids_free(&ids);
    return n;
}

static bool has(const uint32_t *words, int32_t id)
{
    return words[id / 32] >> (id % 32) & 1;
}

static uint32_t count(const uint32_t *words)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_words; i++)
        n += (uint32_t)__builtin_popcount(words[i]);
    return n;
}

/* Rows of masks with one word between them that nobody may touch. */
static uint32_t rows[8 * (MOST_WORDS + 1)];

static uint32_t ask(ds_constrained *r, uint32_t sample, const int32_t *drafts, uint32_t n)
{
    const ds_gen_grammar *g = ds_constrained_grammar(r);
    uint32_t got;

    memset(rows, 0xa5, sizeof rows);
    got = g->fn->masks(g->ctx, sample, drafts, n, rows, n_words + 1);
    for (uint32_t i = 0; i < got; i++)
        assert_int_equal(rows[i * (n_words + 1) + n_words], 0xa5a5a5a5u);
    return got;
}

static const uint32_t *row(uint32_t i)
{
    return rows + i * (n_words + 1);
}

static void told(ds_constrained *r, uint32_t sample, const int32_t *ids, uint32_t n)
{
    const ds_gen_grammar *g = ds_constrained_grammar(r);
    g->fn->accept(g->ctx, sample, ids, n);
}

/* The grammar begins exactly behind the token that ends the thought, also when drafts go across it; the text may end
 * where the grammar accepts and nowhere else. */
static void thought_and_end(void **state)
{
    ds_constrain *c = make(NULL);
    ds_constrain_what w = regex("ab?");
    ds_constrained *r;
    int32_t a, b, end = (int32_t)think_end, eos = EOS_ID;

    (void)state;
    assert_int_equal(ids_of("a", &a), 1);
    assert_int_equal(ids_of("b", &b), 1);
    w.after_thought = true;
    r = begin(c, NULL, &w, 2);
    assert_int_equal(ask(r, 0, NULL, 0), 1);
    assert_int_equal(count(row(0)), ds_tokenizer_size(tok) - 1); /* all but the end of the text */
    assert_false(has(row(0), eos));
    assert_int_equal(ask(r, 0, (int32_t[]){ b, end, a, b }, 4), 5);
    assert_int_equal(count(row(1)), ds_tokenizer_size(tok) - 1);
    assert_true(has(row(2), a) && !has(row(2), b) && !has(row(2), eos) && !has(row(2), end));
    assert_true(has(row(3), b) && has(row(3), eos) && !has(row(3), a));
    assert_true(has(row(4), eos) && count(row(4)) == 1);
    assert_int_equal(ask(r, 0, (int32_t[]){ b, eos, a }, 3), 2); /* a thought doesn't end the text */
    assert_int_equal(ask(r, 0, (int32_t[]){ end, b, a }, 3), 2); /* the first that may not stand there */
    assert_int_equal(ask(r, 0, (int32_t[]){ end, a, eos }, 3), 3);
    told(r, 0, (int32_t[]){ a, end }, 2);
    assert_int_equal(ask(r, 0, NULL, 0), 1);
    assert_true(has(row(0), a) && !has(row(0), eos) && !has(row(0), b));
    told(r, 0, (int32_t[]){ a, eos }, 2);
    assert_int_equal(ask(r, 0, NULL, 0), 1);
    assert_true(has(row(0), eos) && count(row(0)) == 1); /* whoever goes on has nothing else */
    assert_int_equal(ask(r, 1, NULL, 0), 1);             /* the other sample still thinks */
    assert_int_equal(count(row(0)), ds_tokenizer_size(tok) - 1);
    assert_null(ds_constrained_failure(r));
    ds_constrained_end(r);
    ds_constrain_destroy(c);
}

/* Asking for drafts is what accepting them one by one gives. */
static void drafts_are_steps(void **state)
{
    static const char text[] = "{\"name\": \"Jo\", \"age\": 31}";
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\"}},"
                                 "\"required\":[\"name\",\"age\"],\"additionalProperties\":false}";
    ds_constrain_what w = { .kind = DS_CONSTRAINT_JSON_SCHEMA, .text = { schema, sizeof schema - 1 } };
    ds_constrain *c = make(NULL);
    ds_constrained *r = begin(c, NULL, &w, 2);
    int32_t ids[64];
    uint32_t n = ids_of(text, ids);
    static uint32_t want[64][MOST_WORDS];

    (void)state;
    for (uint32_t i = 0; i <= n; i++) {
        assert_int_equal(ask(r, 0, NULL, 0), 1);
        memcpy(want[i], row(0), n_words * sizeof **want);
        if (i < n) {
            assert_true(has(row(0), ids[i]));
            told(r, 0, &ids[i], 1);
        }
    }
    assert_true(has(want[n], EOS_ID) && count(want[n]) == 1);
    for (uint32_t i = 0; i < n; i += 5) {
        uint32_t some = n - i < 5 ? n - i : 5;
        assert_int_equal(ask(r, 1, ids + i, some), some + 1);
        for (uint32_t k = 0; k <= some; k++)
            assert_memory_equal(row(k), want[i + k], n_words * sizeof **want);
        told(r, 1, ids + i, some);
    }
    ds_constrained_end(r);
    ds_constrain_destroy(c);
}

static void equal_ones_are_shared(void **state)
{
    ds_constrain *c = make(&(ds_constrain_opts){ .max_grammars = 4, .max_tenant = 2 });
    ds_constrain_what w[] = { regex("a"), regex("b"), regex("c"), { .kind = DS_CONSTRAINT_EBNF, .text = { "root ::= \"a\"", 12 } } };
    ds_constrained *r[6], *no;
    ds_err err;

    (void)state;
    r[0] = begin(c, "x", &w[0], 1);
    r[1] = begin(c, "x", &w[0], 3);
    assert_int_equal(ds_constrain_stat(c).compiled, 1);
    r[2] = begin(c, "y", &w[0], 1); /* nothing of another tenant's */
    assert_int_equal(ds_constrain_stat(c).compiled, 2);
    r[3] = begin(c, "x", &w[3], 1); /* another kind */
    assert_int_equal(ds_constrain_stat(c).grammars, 3);
    assert_refused(ds_constrain_begin(&no, c, "x", &w[1], 1, &err), DS_E_AGAIN, "too many different constraints"); /* x uses its two */
    r[4] = begin(c, NULL, &w[1], 1);
    assert_refused(ds_constrain_begin(&no, c, "z", &w[1], 1, &err), DS_E_AGAIN, "too many different constraints"); /* all four */
    ds_constrained_end(r[1]);
    assert_int_equal(ds_constrain_stat(c).in_use, 4);
    ds_constrained_end(r[0]);
    assert_int_equal(ds_constrain_stat(c).in_use, 3);
    r[0] = begin(c, "x", &w[0], 1); /* it was kept */
    assert_int_equal(ds_constrain_stat(c).found, 2);
    ds_constrained_end(r[0]);
    r[0] = begin(c, "x", &w[1], 1); /* now it has to go */
    assert_int_equal(ds_constrain_stat(c).evicted, 1);
    ds_constrained_end(r[2]);
    ds_constrained_end(r[4]);
    r[2] = begin(c, "z", &w[1], 1); /* y's was idle longest */
    assert_int_equal(ds_constrain_stat(c).evicted, 2);
    r[4] = begin(c, NULL, &w[1], 1);
    assert_int_equal(ds_constrain_stat(c).found, 3);
    for (int i = 0; i < 5; i++)
        if (i != 1)
            ds_constrained_end(r[i]);
    assert_int_equal(ds_constrain_stat(c).in_use, 0);
    ds_constrain_destroy(c);

    c = make(&(ds_constrain_opts){ .max_bytes = 1 }); /* one at a time, whatever it takes */
    r[0] = begin(c, NULL, &w[0], 1);
    assert_refused(ds_constrain_begin(&no, c, NULL, &w[1], 1, &err), DS_E_AGAIN, "too many");
    ds_constrained_end(r[0]);
    r[0] = begin(c, NULL, &w[1], 1);
    assert_int_equal(ds_constrain_stat(c).grammars, 1);
    ds_constrained_end(r[0]);
    ds_constrain_destroy(c);
}

/* Bounds: too large to compile is refused; what outgrows them while a text is read ends that text with a reason. */
static void bounds(void **state)
{
    ds_constrain_opts o = { .grammar = { .max_states = 40 } };
    ds_constrain_what small = regex("[a-f]{1,4}"), many = regex("(?:[a-m]{3}[n-z]{3}){1,60}0");
    ds_constrain *c = make(&o);
    ds_constrained *r;
    int32_t id;
    uint32_t got = 1;
    ds_err err = { 0 };

    (void)state;
    ds_constrained_end(begin(c, NULL, &small, 1));
    r = begin(c, NULL, &many, 1);
    for (uint32_t i = 0; i < 400 && got == 1; i++) {
        got = ask(r, 0, NULL, 0);
        assert_int_equal(ids_of(i % 6 < 3 ? "a" : "n", &id), 1);
        if (got == 1)
            told(r, 0, &id, 1);
    }
    assert_int_equal(got, 0);
    assert_non_null(strstr(ds_constrained_failure(r), "states"));
    ds_constrained_end(r);
    assert_refused(ds_constrain_begin(&r, c, NULL,
                                      &(ds_constrain_what){ .kind = DS_CONSTRAINT_JSON_SCHEMA, .text = { "{\"frob\":{}}", 11 } }, 1, &err),
                   DS_E_ARG, "#/frob");
    assert_refused(ds_constrain_begin(&r, c, NULL, &(ds_constrain_what){ .kind = DS_CONSTRAINT_CHOICE, .text = { "[\"a\"", 4 } }, 1, &err),
                   DS_E_ARG, "");
    ds_constrain_destroy(c);
}

/* ---- requests ---- */

static ds_request *parse(const char *body)
{
    ds_recipe_opts o;
    ds_request *r;
    ds_api_error why;
    ds_err err;

    ds_recipe_opts_init(&o);
    o.own_decoder = true;
    assert_ok(ds_request_parse(&r, &(ds_request_parse_args){ .proto = DS_PROTO_CHAT, .opts = &o }, body, strlen(body), &why, &err));
    return r;
}

#define HEAD "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"json\"}],"
#define FN(strict)                                                                                                                      \
    "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":" strict                                                            \
    ",\"parameters\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}},\"required\":[\"x\"],\"additionalProperties\":" \
    "false}}}"
#define FORMAT "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":{\"type\":\"integer\"}}}"

static void what_requests_ask_for(void **state)
{
    static const struct {
        const char *rest;
        bool any, calls, thought;
        ds_constraint_kind kind;
        const char *param, *refused;
    } cases[] = {
        { "\"n\":1}", false, false, false, DS_CONSTRAINT_NONE, NULL, NULL },
        { FORMAT "}", true, false, true, DS_CONSTRAINT_JSON_SCHEMA, "response_format.json_schema.schema", NULL },
        { "\"thinking\":{\"type\":\"disabled\"}," FORMAT "}", true, false, false, DS_CONSTRAINT_JSON_SCHEMA,
          "response_format.json_schema.schema", NULL },
        { "\"guided_regex\":\"a\"}", true, false, false, DS_CONSTRAINT_REGEX, "guided_regex", NULL },
        { "\"structured_outputs\":{\"choice\":[\"a\"],\"regex\":null}}", true, false, false, DS_CONSTRAINT_CHOICE,
          "structured_outputs.choice", NULL },
        { "\"tools\":[" FN("false") "]}", false, false, false, DS_CONSTRAINT_NONE, NULL, NULL },
        { "\"tools\":[" FN("true") "]}", true, true, true, DS_CONSTRAINT_NONE, "tools", NULL },
        { "\"tools\":[" FN("true") "],\"tool_choice\":\"none\"}", false, false, false, DS_CONSTRAINT_NONE, NULL, NULL },
        { "\"tools\":[" FN("false") "],\"tool_choice\":\"required\"}", true, true, false, DS_CONSTRAINT_NONE, "tools", NULL },
        { "\"tools\":[" FN("false") "],\"tool_choice\":\"required\",\"thinking\":{\"type\":\"enabled\"}}", true, true, true,
          DS_CONSTRAINT_NONE, "tools", NULL },
        { "\"tools\":[" FN("false") "]," FORMAT "}", true, true, true, DS_CONSTRAINT_JSON_SCHEMA, "response_format.json_schema.schema",
          NULL },
        { "\"tools\":[" FN("false") "],\"guided_regex\":\"a\"}", true, true, false, DS_CONSTRAINT_REGEX, "guided_regex",
          "together with tools" },
        { "\"continue_final_message\":true,\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"4\"}],"
          "\"guided_regex\":\"a\"}",
          true, false, false, DS_CONSTRAINT_REGEX, "guided_regex", "continued" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[1024];
        ds_constrain_what w;
        ds_request *r;
        ds_err err = { 0 };
        bool any;
        snprintf(body, sizeof body, "%s%s", strstr(cases[i].rest, "\"messages\"") ? "{\"model\":\"m\"," : HEAD, cases[i].rest);
        r = parse(body);
        if (cases[i].refused)
            assert_refused(ds_constrain_want(&w, &any, ds_request_info(r), &err), DS_E_ARG, cases[i].refused);
        else
            assert_ok(ds_constrain_want(&w, &any, ds_request_info(r), &err));
        assert_int_equal(any, cases[i].any);
        if (any) {
            assert_int_equal(w.kind, cases[i].kind);
            assert_int_equal(w.calls != NULL, cases[i].calls);
            assert_string_equal(w.param, cases[i].param);
        }
        if (any && !cases[i].refused)
            assert_int_equal(w.after_thought, cases[i].thought);
        ds_request_destroy(r);
    }
}

/* Requests that differ in anything that the grammar depends on don't share one. */
static void other_tools_other_grammar(void **state)
{
    static const char *const bodies[] = {
        HEAD "\"tools\":[" FN("true") "]}",
        HEAD "\"tools\":[" FN("true") "],\"thinking\":{\"type\":\"disabled\"}}", /* the same */
        HEAD "\"tools\":[" FN("true") "],\"parallel_tool_calls\":false}",
        HEAD "\"tools\":[" FN("true") "],\"tool_choice\":\"required\"}",
        HEAD "\"tools\":[" FN("true") "],\"tool_choice\":\"required\",\"thinking\":{\"type\":\"enabled\"}}",
        HEAD "\"tools\":[" FN("true") "]," FORMAT "}",
        HEAD "\"tools\":[" FN("true") ",{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]}",
        HEAD "\"tools\":[" FN("true") ",{\"type\":\"custom\",\"custom\":{\"name\":\"g\",\"format\":{\"type\":\"grammar\",\"grammar\":{"
                                      "\"syntax\":\"regex\",\"definition\":\"a\"}}}}]}",
    };
    ds_constrain *c = make(NULL);

    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        ds_request *q = parse(bodies[i]);
        ds_constrain_what w;
        ds_err err = { 0 };
        bool any;
        assert_ok(ds_constrain_want(&w, &any, ds_request_info(q), &err));
        ds_constrained_end(begin(c, NULL, &w, 1));
        ds_request_destroy(q);
    }
    assert_int_equal(ds_constrain_stat(c).compiled, sizeof bodies / sizeof *bodies - 1);
    ds_constrain_destroy(c);
}

/* ---- threads ---- */

static ds_constrain *shared;

/* Texts of one grammar from several threads at once; each sees what it sees alone. */
static void *reader(void *arg)
{
    static const char schema[] = "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"maxItems\":9}";
    ds_constrain_what w = { .kind = DS_CONSTRAINT_JSON_SCHEMA, .text = { schema, sizeof schema - 1 } };
    const char *text = arg;

    for (int round = 0; round < 40; round++) {
        uint32_t words[MOST_WORDS];
        int32_t ids[64];
        ds_ids list = { 0 };
        ds_encoder *mine;
        ds_constrained *r;
        ds_err err;
        if (ds_encoder_create(&mine, tok, NULL, &err) != DS_OK || ds_encoder_text(mine, text, strlen(text), &list, &err) != DS_OK ||
            ds_constrain_begin(&r, shared, NULL, &w, 1, &err) != DS_OK)
            return "begin";
        for (size_t i = 0; i < list.n; i++)
            ids[i] = (int32_t)list.p[i];
        for (size_t i = 0; i < list.n; i++) {
            const ds_gen_grammar *g = ds_constrained_grammar(r);
            if (g->fn->masks(g->ctx, 0, NULL, 0, words, n_words) != 1 || !has(words, ids[i]))
                return "a token";
            g->fn->accept(g->ctx, 0, &ids[i], 1);
        }
        ds_constrained_end(r);
        ds_ids_free(&list);
        ds_encoder_destroy(mine);
    }
    return NULL;
}

static void many_threads(void **state)
{
    static const char *const texts[] = { "[1, 2, 3]", "[]", "[10,20,-30 ,4]", "[\n  7\n]" };
    pthread_t t[4];
    void *wrong;

    (void)state;
    shared = make(NULL);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, reader, (void *)texts[i]), 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(t[i], &wrong), 0);
        if (wrong)
            fail_msg("%s: %s", texts[i], (const char *)wrong);
    }
    assert_int_equal(ds_constrain_stat(shared).grammars, 1);
    ds_constrain_destroy(shared);
}

static ds_rc create_and_begin(void *ctx, ds_err *err)
{
    int32_t stop[] = { EOS_ID };
    ds_constrain_what w = regex("[a-c]{2}");
    ds_constrained *r;
    ds_constrain *c;
    ds_rc rc = ds_constrain_create(&c, tok, stop, 1, NULL, err);

    (void)ctx;
    if (rc != DS_OK)
        return rc;
    rc = ds_constrain_begin(&r, c, NULL, &w, 2, err);
    if (rc == DS_OK)
        ds_constrained_end(r);
    ds_constrain_destroy(c);
    return rc;
}

static void allocations_fail(void **state)
{
    (void)state;
    assert_true(fault_every_allocation(create_and_begin, NULL) > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thought_and_end), cmocka_unit_test(drafts_are_steps),      cmocka_unit_test(equal_ones_are_shared),
        cmocka_unit_test(bounds),          cmocka_unit_test(what_requests_ask_for), cmocka_unit_test(other_tools_other_grammar),
        cmocka_unit_test(many_threads),    cmocka_unit_test(allocations_fail),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
