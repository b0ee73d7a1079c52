/* Masks of random grammars against a try of every token: rules that call each other, repeats of every length, schemas.
 *
 *   test_masks [N] [SEED]     so many grammars of each kind; a failure prints the grammar */
#include "oracle.h"

#include "base/rng.h"

static uint64_t n_grammars = 40, seed = 1, drawn, number;

static uint32_t draw(uint32_t n)
{
    return (uint32_t)(ds_rng_u64(seed, number, drawn++) % n);
}

#define ONE_OF(list) list[draw(sizeof list / sizeof *list)]

/* Half of them; masks don't depend on it. False: a bound was in the way. */
static bool prepare(ds_grammar *g)
{
    ds_err err = { 0 };
    ds_rc rc = number % 2 ? ds_grammar_prepare(g, trie, &err) : DS_OK;

    if (rc != DS_E_AGAIN)
        assert_ok(rc);
    return rc == DS_OK;
}

/* ---- rules ---- */

static void expression(ds_buf *b, uint32_t rules, uint32_t depth)
{
    static const char *const classes[] = { "[a-z]",       "[^\"\\\\]", "[0-9a-f]",          "[^a-m]", "[ \\n]",
                                           "[a-zA-Z_.-]", "[^,<]",     "[\\u4e00-\\u9fff]", "." };
    static const char *const texts[] = { "\"a\"",  "\", \"",  "\"the \"", "\"\\\"\"",     "\"}\"",
                                         "\"er\"", "\"\\n\"", "\"<\"",    "\"\xe5\x86\"", "\"é\"" };
    uint32_t kind = draw(depth ? 8 : 4), n = 1 + draw(3);

    if (kind == 0)
        ds_buf_puts(b, ONE_OF(classes));
    else if (kind < 3)
        ds_buf_puts(b, ONE_OF(texts));
    else if (kind == 3)
        ds_buf_printf(b, "r%u", draw(rules));
    else if (kind < 6) {
        ds_buf_puts(b, "(");
        for (uint32_t i = 0; i <= n; i++) {
            ds_buf_puts(b, i == 0 ? "" : kind == 4 ? " | " : " ");
            expression(b, rules, depth - 1);
        }
        ds_buf_puts(b, ")");
    } else {
        uint32_t min = draw(2) ? draw(12) : draw(3), more = draw(2) ? draw(70) : draw(4);
        if (draw(3))
            ds_buf_printf(b, "r%u", 1 + draw(rules - 1));
        else
            expression(b, rules, 0);
        if (draw(4))
            ds_buf_printf(b, "{%u,%u}", min, min + more);
        else
            ds_buf_puts(b, draw(2) ? "*" : "{2,}");
    }
}

static void random_rules(void **state)
{
    uint32_t good = 0;

    (void)state;
    for (number = 0; number < n_grammars; number++) {
        ds_grammar *g;
        ds_err err = { 0 };
        ds_buf b = { 0 };
        uint32_t rules = 2 + draw(4);
        drawn = 1;
        ds_buf_puts(&b, "root ::= ");
        expression(&b, rules, 3);
        for (uint32_t i = 0; i < rules; i++) {
            ds_buf_printf(&b, "\nr%u ::= ", i);
            if (i == 1)
                ds_buf_puts(&b, "[^\"\\\\] | \"\\\\\" [\"\\\\n]");
            else
                expression(&b, rules, 2);
        }
        if (ds_grammar_ebnf(&g, b.p, b.len, NULL, &err) == DS_OK && prepare(g)) {
            good += masks_along(g, ds_buf_str(&b), 2, 16);
        }
        ds_grammar_destroy(g);
        ds_buf_free(&b);
    }
    assert_true(good * 3 >= n_grammars);
}

/* ---- schemas ---- */

static void schema(ds_buf *b, uint32_t depth)
{
    static const char *const leaves[] = {
        "{\"type\":\"string\"}",
        "{\"type\":\"integer\"}",
        "{\"type\":\"number\"}",
        "{\"type\":\"boolean\"}",
        "{\"type\":[\"string\",\"null\"]}",
        "{\"enum\":[\"a\",\"ab\",\"able\",1,12,null]}",
        "{\"type\":\"string\",\"format\":\"date\"}",
        "{\"type\":\"string\",\"pattern\":\"^[a-z][a-z0-9-]*$\"}",
        "{\"type\":\"integer\",\"minimum\":3,\"maximum\":4071}",
        "{}",
    };
    uint32_t kind = draw(depth ? 6 : 3), n = 1 + draw(3);

    if (kind == 0) {
        ds_buf_puts(b, ONE_OF(leaves));
    } else if (kind < 3) {
        uint32_t min = draw(2) ? 0 : draw(30);
        ds_buf_printf(b, "{\"type\":\"string\",\"minLength\":%u,\"maxLength\":%u}", min, min + draw(90));
    } else if (kind == 3) {
        ds_buf_puts(b, "{\"type\":\"array\",\"items\":");
        schema(b, depth - 1);
        ds_buf_printf(b, ",\"maxItems\":%u}", 1 + draw(15));
    } else if (kind == 4) {
        ds_buf_puts(b, "{\"anyOf\":[");
        for (uint32_t i = 0; i <= n; i++) {
            ds_buf_puts(b, i ? "," : "");
            schema(b, depth - 1);
        }
        ds_buf_puts(b, "]}");
    } else {
        ds_buf_puts(b, "{\"type\":\"object\",\"properties\":{");
        for (uint32_t i = 0; i <= n; i++) {
            ds_buf_printf(b, "%s\"%c%s\":", i ? "," : "", 'a' + (char)i, draw(2) ? "" : "ll");
            schema(b, depth - 1);
        }
        ds_buf_printf(b, "}%s}", draw(2) ? ",\"additionalProperties\":{\"type\":\"string\",\"maxLength\":14}" : "");
    }
}

static void random_schemas(void **state)
{
    uint32_t good = 0;

    (void)state;
    for (number = 0; number < n_grammars; number++) {
        ds_grammar_opts opts = { .any_order = number / 2 % 2 };
        ds_json_doc *doc;
        ds_grammar *g;
        ds_err err = { 0 };
        ds_buf b = { 0 };
        drawn = 0;
        schema(&b, 3);
        assert_ok(ds_json_parse(&doc, b.p, b.len, NULL, &err));
        if (ds_grammar_json_schema(&g, ds_json_root(doc), &opts, &err) == DS_OK)
            good += prepare(g) && masks_along(g, ds_buf_str(&b), 2, 24);
        else
            assert_refused(err.rc, DS_E_ARG, "too large");
        ds_json_free(doc);
        ds_grammar_destroy(g);
        ds_buf_free(&b);
    }
    assert_true(good * 3 >= n_grammars);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(random_rules), cmocka_unit_test(random_schemas) };

    n_grammars = argc > 1 ? strtoull(argv[1], NULL, 10) : n_grammars;
    seed = argc > 2 ? strtoull(argv[2], NULL, 10) : seed;
    return oracle_main(tests, sizeof tests / sizeof *tests);
}
