/* Grammars: the language of each front end, masks against a try of every token, bounds. */
#include "oracle.h"

#include "fault.h"

static ds_rc open_regex(ds_grammar **g, const char *s, ds_err *err)
{
    return ds_grammar_regex(g, s, strlen(s), NULL, err);
}

static void regex_language(void **state)
{
    static const struct {
        const char *pattern, *text;
        size_t at;
        bool match;
    } cases[] = {
        { "abc", "abc", 3, true },
        { "abc", "ab", 2, false },
        { "abc", "abcd", 3, false },
        { "", "", 0, true },
        { "^a|b$", "b", 1, true },
        { "a*", "aaab", 3, false },
        { "(ab?){2,3}", "abaa", 4, true },
        { "(ab?){2,3}", "abaaa", 4, false },
        { "(?:x|yz)+?", "xyzx", 4, true },
        { "(?<name>x)", "x", 1, true },
        { "[^a-c]", "\xc3\xa9", 2, true },
        { "[^a-c]", "b", 0, false },
        { "[^a]", "\xed\xa0\x80", 1, false }, /* a surrogate is no character */
        { "\\u{1F600}|\\uD83D\\uDE01", "\xf0\x9f\x98\x81", 4, true },
        { ".", "\n", 0, false },
        { "[\\s\\S]", "\n", 1, true },
        { "\\p{Lu}\\P{Lu}", "\xc3\x84x", 3, true },
        { "\\d+\\.\\w{2}", "12.a_", 5, true },
        { "[\\d-]+", "1-2", 3, true },
        { "a{,2}", "a{,2}", 5, true },
        { "(a|b|)c", "c", 1, true },
        { "(((x*)*)*)*y", "xxxxy", 5, true },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds_grammar *g;
        ds_err err = { 0 };
        verdict v;
        assert_ok(open_regex(&g, cases[i].pattern, &err));
        v = judge(g, cases[i].text, strlen(cases[i].text));
        if (v.at != cases[i].at || v.match != cases[i].match)
            fail_msg("%s on %s: %zu %d", cases[i].pattern, cases[i].text, v.at, v.match);
        ds_grammar_destroy(g);
    }
}

static void regex_refusals(void **state)
{
    static const char *const cases[][2] = {
        { "a(?=b)", "look-ahead" },
        { "(?<!a)b", "look-behind" },
        { "(a)\\1", "back ref" },
        { "\\bx", "word bound" },
        { "(?i)a", "flags" },
        { "(?>a)", "atomic" },
        { "a++", "possessive" },
        { "a**", "nothing to repeat" },
        { "*", "nothing to repeat" },
        { "a{2}{3}", "nothing to re" },
        { "(a", "no end" },
        { "a)", "no group" },
        { "[a", "no end" },
        { "[b-a]", "no range" },
        { "a^b", "anchors" },
        { "(^a)", "anchors" },
        { "a{3,2}", "wrong order" },
        { "\\p{Greek}", "categories" },
        { "\\ud800", "no code point" },
        { "\\q", "escape" },
        { "[]", "no text is in" },
        { "\xff", "UTF-8" },
        { "a\\", "backslash" },
        { "x{100001}", "repeats" },
        { "(x{1000}){1000}", "more nodes" },
        { "((()){60000}){60000}", "more nodes" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds_grammar *g;
        ds_err err = { 0 };
        assert_refused(open_regex(&g, cases[i][0], &err), DS_E_ARG, cases[i][1]);
        assert_null(g);
    }
}

static void regex_masks(void **state)
{
    static const char *const patterns[] = { "\"[^\"\\\\]*\"", "(yes|no|maybe), .*", "[a-z]+( [a-z]+){0,3}", "[^x]{0,60}",
                                            ".{30,40}!",      "(ab|a)(c|bcd)*",     "\\p{L}{2,5}!?" };

    (void)state;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        ds_grammar *g;
        ds_err err = { 0 };
        assert_ok(open_regex(&g, patterns[i], &err));
        masks_are_exact(g, patterns[i]);
        ds_grammar_destroy(g);
    }
}

static ds_token id_of(const char *text)
{
    for (ds_token id = 0; (uint32_t)id < ds_tokenizer_size(tok); id++) {
        size_t n;
        const char *p = ds_tokenizer_bytes(tok, id, &n);
        if (n == strlen(text) && memcmp(p, text, n) == 0 && ds_tokenizer_kind(tok, id) == DS_TOKEN_TEXT)
            return id;
    }
    fail_msg("no token %s", text);
    return 0;
}

/* Rows end at the first illegal draft, and each is the mask of its position; states are values. */
static void draft_masks(void **state)
{
    ds_token drafts[3] = { id_of("a"), id_of("b"), id_of("z") }, control;
    uint32_t words = ds_token_trie_words(trie), rows, taken;
    uint32_t *got = calloc(4 * words, 4), *one = calloc(words, 4);
    ds_gstate s;
    ds_grammar *g;
    ds_err err = { 0 };

    (void)state;
    assert_ok(open_regex(&g, "ab[cd]|aq", &err));
    s = ds_grammar_start(g);
    assert_ok(ds_grammar_masks(g, trie, s, drafts, 3, got, words, &rows, &err));
    assert_int_equal(rows, 3);
    for (uint32_t i = 0; i < rows; i++) {
        ds_gstate at = ds_grammar_start(g);
        assert_ok(ds_grammar_accept(g, trie, &at, drafts, i, &taken, &err));
        assert_int_equal(taken, i);
        assert_ok(ds_grammar_mask(g, trie, at, one, &err));
        assert_memory_equal(one, got + i * words, words * 4);
    }
    control = ds_tokenizer_control(tok, "</think>");
    assert_int_not_equal(control, DS_TOKEN_NONE);
    assert_ok(ds_grammar_accept(g, trie, &s, &control, 1, &taken, &err));
    assert_int_equal(taken, 0);
    ds_grammar_destroy(g);
    assert_ok(open_regex(&g, "[\\s\\S]*", &err)); /* anything: yet no control token, though its spelling would fit */
    s = ds_grammar_start(g);
    assert_ok(ds_grammar_mask(g, trie, s, one, &err));
    assert_false(one[control / 32] >> control % 32 & 1);
    ds_grammar_destroy(g);
    free(got);
    free(one);
}

static void choices(void **state)
{
    static const char text[] = "[\"red\", \"re\", \"\\u00e9\\n\"]";
    ds_json_doc *doc;
    ds_grammar *g;
    ds_err err = { 0 };

    (void)state;
    assert_ok(ds_json_parse(&doc, text, strlen(text), NULL, &err));
    assert_ok(ds_grammar_choices(&g, ds_json_root(doc), NULL, &err));
    assert_true(judge(g, "re", 2).match);
    assert_true(judge(g, "red", 3).match);
    assert_true(judge(g, "\xc3\xa9\n", 3).match);
    assert_int_equal(judge(g, "rex", 3).at, 2);
    masks_are_exact(g, "choices");
    ds_grammar_destroy(g);
    ds_json_free(doc);
    assert_ok(ds_json_parse(&doc, "[\"a\",1]", 7, NULL, &err));
    assert_refused(ds_grammar_choices(&g, ds_json_root(doc), NULL, &err), DS_E_ARG, "choices[1]");
    ds_json_free(doc);
    assert_ok(ds_json_parse(&doc, "[]", 2, NULL, &err));
    assert_refused(ds_grammar_choices(&g, ds_json_root(doc), NULL, &err), DS_E_ARG, "no text");
    ds_json_free(doc);
}

static ds_rc open_schema(ds_grammar **g, const char *text, ds_err *err)
{
    ds_json_doc *doc = NULL;
    ds_rc rc = ds_json_parse(&doc, text, strlen(text), NULL, err);

    *g = NULL;
    if (rc == DS_OK)
        rc = ds_grammar_json_schema(g, ds_json_root(doc), NULL, err);
    ds_json_free(doc);
    return rc;
}

static void schema_masks(void **state)
{
    static const char *const schemas[] = {
        "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":150},"
        "\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\"]}}},\"required\":[\"name\"]}",
        "{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"type\":\"array\",\"items\":{\"anyOf\":[{\"$ref\":\"#/$defs/"
        "t\"},{\"type\":\"number\"}]}}}}",
        "{}",
        "{\"type\":\"object\",\"properties\":{\"on\":{\"type\":\"boolean\"}},\"additionalProperties\":{\"type\":\"string\",\"maxLength\":3}"
        "}",
        "{\"type\":\"string\",\"pattern\":\"^[a-z\\\"]+( [a-z]+)*$\"}",
        /* bounded strings: far from the end and near it, with a bound below and without */
        "{\"type\":\"string\",\"maxLength\":200}",
        "{\"type\":\"string\",\"minLength\":3,\"maxLength\":45}",
        "{\"type\":\"string\",\"minLength\":9,\"maxLength\":9}",
        "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":20},\"maxItems\":2}",
        "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":12},{\"type\":\"string\",\"minLength\":10,\"maxLength\":20},{\"enum\":[1,12,120,13]"
        "}]}",
        "{\"enum\":[\"a\",\"ab\",\"abc\",\"b\",\"\",1,12,null,\"a\",{\"a\":1},\"abd\",[2]]}",
        "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":7},\"maxItems\":3}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        ds_grammar *g;
        ds_err err = { 0 };
        assert_ok(open_schema(&g, schemas[i], &err));
        masks_are_exact(g, schemas[i]);
        ds_grammar_destroy(g);
    }
}

static void any_json(void **state)
{
    static const ds_grammar_opts compact = { .compact = true };
    ds_grammar *g;
    ds_err err = { 0 };

    (void)state;
    assert_ok(ds_grammar_json(&g, true, NULL, &err));
    assert_true(judge(g, "{\"a\": [1, {}]}", 14).match);
    assert_int_equal(judge(g, "[1]", 3).at, 0);
    masks_are_exact(g, "any object");
    ds_grammar_destroy(g);
    assert_ok(ds_grammar_json(&g, false, &compact, &err));
    assert_true(judge(g, "[1,null]", 8).match);
    assert_int_equal(judge(g, "[1, 2]", 6).at, 3);
    ds_grammar_destroy(g);
}

/* Keys in any order, so many of them, elements that differ. */
static void members(void **state)
{
    static const struct {
        const char *schema, *text;
        bool match;
    } cases[] = {
#define ABC "\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"integer\"},\"c\":{\"const\":\"x\"}}"
        { "{\"type\":\"object\"," ABC ",\"required\":[\"b\"]}", "{\"c\":\"x\", \"b\":1,\"a\":null}", true },
        { "{\"type\":\"object\"," ABC ",\"required\":[\"b\"]}", "{\"b\":1}", true },
        { "{\"type\":\"object\"," ABC ",\"required\":[\"b\"]}", "{\"c\":\"x\",\"a\":null}", false },
        { "{\"type\":\"object\"," ABC ",\"required\":[\"b\"]}", "{\"b\":1,\"b\":1}", false },
        { "{\"type\":\"object\"," ABC ",\"additionalProperties\":{\"type\":\"string\"}}", "{\"x\":\"\",\"b\":1,\"y\":\"\",\"a\":null}",
          true },
        { "{\"type\":\"object\"," ABC ",\"additionalProperties\":{\"type\":\"string\"}}", "{\"x\":\"\",\"a\":\"\"}", false },
        { "{\"type\":\"object\"," ABC ",\"minProperties\":2,\"maxProperties\":2}", "{\"c\":\"x\",\"b\":1}", true },
        { "{\"type\":\"object\"," ABC ",\"minProperties\":2,\"maxProperties\":2}", "{\"c\":\"x\"}", false },
        { "{\"type\":\"object\"," ABC ",\"minProperties\":2,\"maxProperties\":2}", "{\"c\":\"x\",\"b\":1,\"a\":null}", false },
        { "{\"type\":\"object\"," ABC ",\"required\":[\"b\"],\"maxProperties\":1}", "{\"a\":null}", false },
        /* of two names that aren't declared one counts: then the third can't be reached */
        { "{\"type\":\"object\"," ABC ",\"minProperties\":3,\"maxProperties\":3,\"additionalProperties\":{\"const\":1}}",
          "{\"x\":1,\"y\":1,\"b\":1}", false },
        { "{\"type\":\"object\",\"minProperties\":1}", "{}", false },
        { "{\"type\":\"object\",\"minProperties\":1}", "{\"q\":[]}", true },
        { "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[\"a\",\"b\",\"c\",\"b\"]}}", "[\"b\", \"a\"]", true },
        { "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[\"a\",\"b\",\"c\"]}}", "[\"b\",\"a\",\"b\"]", false },
        { "{\"type\":\"array\",\"uniqueItems\":true,\"minItems\":2,\"items\":{\"type\":\"boolean\"}}", "[true,false]", true },
        { "{\"type\":\"array\",\"uniqueItems\":true,\"minItems\":2,\"items\":{\"type\":\"boolean\"}}", "[true]", false },
        { "{\"type\":\"string\",\"pattern\":\"^[a-z]+$\",\"maxLength\":3}", "\"abc\"", true },
        { "{\"type\":\"string\",\"pattern\":\"^[a-z]+$\",\"maxLength\":3}", "\"abcd\"", false },
        { "{\"type\":\"string\",\"pattern\":\"^x|^[^y]{2,9}$\",\"minLength\":3,\"maxLength\":4}", "\"\\n\\\"z\"", true },
        { "{\"type\":\"string\",\"pattern\":\"^x|^[^y]{2,9}$\",\"minLength\":3,\"maxLength\":4}", "\"zz\"", false },
        { "{\"type\":\"string\",\"format\":\"uri\",\"minLength\":1,\"maxLength\":2083}", "\"https://a.example/b?c=d\"", true },
    };
    static const ds_grammar_opts any = { .any_order = true };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds_json_doc *doc;
        ds_grammar *g;
        ds_err err = { 0 };
        verdict v;
        assert_ok(ds_json_parse(&doc, cases[i].schema, strlen(cases[i].schema), NULL, &err));
        assert_ok(ds_grammar_json_schema(&g, ds_json_root(doc), &any, &err));
        v = judge(g, cases[i].text, strlen(cases[i].text));
        if (v.match != cases[i].match)
            fail_msg("%s\nat %zu of: %s", cases[i].schema, v.at, cases[i].text);
        masks_are_exact(g, cases[i].schema);
        ds_grammar_destroy(g);
        ds_json_free(doc);
    }
}

/* Conditions, what depends on members, names, elements of a kind: exactly these texts, in any order of keys. */
static void conditions(void **state)
{
    static const struct {
        const char *schema, *in[5], *out[5];
    } cases[] = {
        { "{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2}},\"dependentRequired\":{\"a\":[\"b\"]}}",
          { "{}", "{\"b\":2}", "{\"a\":1,\"b\":2}", "{\"b\":2,\"a\":1}" },
          { "{\"a\":1}", "[]" } },
        { "{\"dependentRequired\":{\"a\":[\"b\"]}}",
          { "{\"c\":3}", "7", "[]", "{\"b\":1,\"c\":2,\"a\":3}" },
          { "{\"a\":1}", "{\"c\":1,\"a\":1}" } },
        { "{\"dependencies\":{\"a\":[\"b\"],\"b\":[\"a\"]},\"type\":\"object\"}",
          { "{}", "{\"a\":1,\"b\":1}", "{\"c\":1}" },
          { "{\"a\":1}", "{\"b\":1}" } },
        { "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"},\"n\":{\"type\":\"integer\"}},\"dependentSchemas\":{\"a\":{"
          "\"properties\":{\"n\":{\"maximum\":3}}}}}",
          { "{\"n\":4}", "{\"a\":null,\"n\":3}", "{\"a\":null}" },
          { "{\"a\":null,\"n\":4}", "{\"n\":4,\"a\":null}" } },
#define KIND "\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[\"x\",\"y\"]},\"v\":{}}"
        { "{" KIND
          ",\"if\":{\"properties\":{\"k\":{\"const\":\"x\"}}},\"then\":{\"required\":[\"v\"]},\"else\":{\"properties\":{\"v\":false}}}",
          { "{\"k\":\"x\",\"v\":1}", "{\"v\":1,\"k\":\"x\"}", "{\"k\":\"y\"}", "{\"v\":1}" },
          { "{\"k\":\"x\"}", "{\"k\":\"y\",\"v\":1}", "{}" } },
        { "{" KIND
          ",\"required\":[\"k\"],\"allOf\":[{\"if\":{\"properties\":{\"k\":{\"const\":\"x\"}}},\"then\":{\"properties\":{\"v\":{\"type\":"
          "\"null\"}}}},{\"if\":{\"properties\":{\"k\":{\"enum\":[\"y\",\"z\"]}}},\"then\":{\"properties\":{\"v\":{\"type\":\"boolean\"}}}}"
          "]}",
          { "{\"k\":\"x\",\"v\":null}", "{\"k\":\"y\",\"v\":true}", "{\"k\":\"y\"}" },
          { "{\"k\":\"x\",\"v\":true}", "{\"k\":\"y\",\"v\":null}", "{}" } },
        { "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"boolean\"},\"b\":{\"const\":1}},\"if\":{\"properties\":{\"a\":{\"const\":"
          "true}},"
          "\"required\":[\"a\"]},\"then\":{\"required\":[\"b\"]}}",
          { "{}", "{\"a\":false}", "{\"a\":true,\"b\":1}", "{\"b\":1}" },
          { "{\"a\":true}" } },
        { "{\"if\":{\"type\":\"object\",\"required\":[\"a\"]},\"then\":{\"required\":[\"b\"]},\"else\":{\"type\":[\"null\",\"object\"]}}",
          { "null", "{}", "{\"c\":1}", "{\"a\":1,\"b\":2}" },
          { "7", "{\"a\":1}" } },
        { "{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[ab]+$\",\"maxLength\":2},\"additionalProperties\":{\"const\":1}}",
          { "{}", "{\"a\":1}", "{\"ab\":1,\"b\":1}" },
          { "{\"c\":1}", "{\"aba\":1}", "{\"\":1}" } },
        { "{\"type\":\"object\",\"propertyNames\":{\"enum\":[\"p\",\"q\",3]},\"additionalProperties\":{\"type\":\"null\"}}",
          { "{}", "{\"q\":null,\"p\":null}" },
          { "{\"p\":null,\"p\":null}", "{\"r\":null}", "{\"p\":1}" } },
        { "{\"type\":\"object\",\"propertyNames\":{\"$ref\":\"#/$defs/n\"},\"$defs\":{\"n\":{\"const\":\"p\"}}}",
          { "{}", "{\"p\":[]}" },
          { "{\"q\":1}" } },
        { "{\"type\":\"object\",\"propertyNames\":false}", { "{}" }, { "{\"a\":1}" } },
        { "{\"type\":\"object\",\"properties\":{\"ab\":{},\"c\":{}},\"propertyNames\":{\"minLength\":2}}",
          { "{}", "{\"ab\":1}" },
          { "{\"c\":1}" } },
        { "{\"type\":\"object\",\"patternProperties\":{\"^x\":{\"const\":1},\"^y\":{\"const\":2},\"^[^xy]z$\":{\"const\":3}}}",
          { "{}", "{\"x\":1,\"xz\":1}", "{\"y\":2,\"az\":3,\"x1\":1}" },
          { "{\"x\":2}", "{\"az\":1}", "{\"q\":1}" } },
        { "{\"type\":\"object\",\"allOf\":[{\"patternProperties\":{\"^x\":{\"minimum\":1}}},{\"patternProperties\":{\"^x\":{\"maximum\":2},"
          "\"^y\":{}},"
          "\"additionalProperties\":false}],\"additionalProperties\":{\"type\":\"integer\"}}",
          { "{\"x\":1,\"x1\":2}", "{\"y\":9}" },
          { "{\"x\":0}", "{\"x\":3}", "{\"y\":null}" } },
        { "{\"type\":\"array\",\"items\":{\"enum\":[1,2,3]},\"contains\":{\"const\":3},\"minItems\":2,\"maxItems\":3}",
          { "[3,1]", "[1,3]", "[1,2,3]", "[3,3,3]" },
          { "[3]", "[1,2]", "[1,2,1]", "[3,1,1,1]" } },
        { "{\"contains\":{\"type\":\"null\"},\"minItems\":3}",
          { "[null,1,2]", "[1,\"\",null]", "[1,2,3,null,[]]", "\"a\"" },
          { "[null,1]", "[1,2,3]", "[]" } },
        { "{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"contains\":{\"const\":3},\"minContains\":0}",
          { "[]", "[null]" },
          { "[3]" } },
        { "{\"type\":\"array\",\"items\":{\"enum\":[1,2,3]},\"contains\":{\"const\":3},\"minContains\":2,\"maxContains\":3,\"maxItems\":5}",
          { "[3,3]", "[1,3,2,3]", "[3,3,3,1,2]" },
          { "[3]", "[3,1,2]", "[3,3,3,3]", "[1,1,1,1,3]", "[1,1,1,3,3,1]" } },
        { "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"}],\"contains\":{\"type\":\"string\"},\"minContains\":0,\"maxContains\":"
          "1}",
          { "[]", "[null]", "[null,\"a\",1]", "[null,1,2,\"\"]" },
          { "[\"a\"]", "[null,\"a\",\"b\"]", "[null,\"a\",1,\"b\"]" } },
        { "{\"type\":[\"string\",\"integer\",\"null\"],\"not\":{\"enum\":[\"a\",\"ab\",null,3,4,7]}}",
          { "\"\"", "\"abc\"", "5", "-1", "8" },
          { "\"a\"", "\"ab\"", "null", "3", "7" } },
        { "{\"not\":{\"anyOf\":[{\"type\":\"object\",\"required\":[\"a\"]},{\"type\":\"number\",\"minimum\":3},{\"type\":\"string\","
          "\"minLength\":2}]}}",
          { "{\"b\":1}", "2", "\"x\"", "[7]", "{}" },
          { "{\"a\":1}", "3", "\"xy\"" } },
        { "{\"properties\":{\"k\":{\"type\":\"string\"},\"v\":{}},\"required\":[\"k\"],\"if\":{\"properties\":{\"k\":{\"const\":\"x\"}}},"
          "\"then\":{\"required\":[\"v\"]},\"else\":{\"properties\":{\"v\":false}},\"type\":\"object\"}",
          { "{\"k\":\"x\",\"v\":1}", "{\"k\":\"y\"}", "{\"k\":\"xx\"}", "{\"k\":\"\"}" },
          { "{\"k\":\"x\"}", "{\"k\":\"y\",\"v\":1}" } },
        { "{\"if\":{\"type\":\"integer\",\"minimum\":5},\"then\":{\"maximum\":9},\"else\":{\"type\":[\"integer\",\"boolean\"]}}",
          { "5", "9", "-3", "true" },
          { "10", "null" } },
        { "{\"oneOf\":[{\"type\":\"integer\",\"minimum\":2},{\"type\":\"integer\",\"maximum\":4}]}", { "1", "5" }, { "2", "3", "4" } },
        { "{\"enum\":[{\"a\":1},{\"a\":1,\"b\":2},[1],[2]],\"dependentRequired\":{\"a\":[\"b\"]},\"contains\":{\"const\":2}}",
          { "{\"a\":1,\"b\":2}", "[2]" },
          { "{\"a\":1}", "[1]" } },
    };
    static const ds_grammar_opts any = { .any_order = true };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds_json_doc *doc;
        ds_grammar *g;
        ds_err err = { 0 };
        assert_ok(ds_json_parse(&doc, cases[i].schema, strlen(cases[i].schema), NULL, &err));
        if (ds_grammar_json_schema(&g, ds_json_root(doc), &any, &err) != DS_OK)
            fail_msg("%s: %s", cases[i].schema, err.msg);
        for (size_t k = 0; k < 10; k++) {
            const char *text = k < 5 ? cases[i].in[k] : cases[i].out[k - 5];
            if (text && judge(g, text, strlen(text)).match != (k < 5))
                fail_msg("%s: %s", cases[i].schema, text);
        }
        masks_are_exact(g, cases[i].schema);
        ds_grammar_destroy(g);
        ds_json_free(doc);
    }
}

/* What must follow, and its tokens: those that the tokenizer makes of the whole text. */
static void jumps(void **state)
{
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"description\":{\"type\":\"string\"},\"enabled\":{\"const\":true}},"
                                 "\"required\":[\"description\",\"enabled\"]}";
    static const ds_grammar_opts compact = { .compact = true };
    static const char *const whole[] = { "{\"description\":\"Some text\",\"enabled\":true}", "{\"description\":\"\",\"enabled\":true}" };
    ds_encoder *e;
    ds_json_doc *doc;
    ds_grammar *g;
    ds_buf b = { 0 };
    ds_ids ids = { 0 };
    ds_err err = { 0 };
    ds_gstate s;

    (void)state;
    assert_ok(ds_encoder_create(&e, tok, NULL, &err));
    assert_ok(ds_json_parse(&doc, schema, sizeof schema - 1, NULL, &err));
    assert_ok(ds_grammar_json_schema(&g, ds_json_root(doc), &compact, &err));
    s = ds_grammar_start(g);
    assert_ok(ds_grammar_forced(g, &s, &b, &err));
    assert_string_equal(ds_buf_str(&b), "{\"description\":\"");
    s = ds_grammar_start(g);
    assert_ok(ds_grammar_jump(g, trie, e, &s, &ids, &err));
    assert_true(ids.n > 0);
    for (size_t i = 0; i < 2; i++) { /* whatever follows, the tokens are those of the whole */
        ds_ids all = { 0 };
        assert_ok(ds_encoder_text(e, whole[i], strlen(whole[i]), &all, &err));
        assert_true(all.n >= ids.n);
        assert_memory_equal(all.p, ids.p, ids.n * sizeof *ids.p);
        ds_ids_free(&all);
    }
    ds_buf_clear(&b);
    s = ds_grammar_start(g);
    assert_ok(ds_grammar_read(g, &s, whole[0], 26, &(size_t){ 0 }, &err)); /* behind the quote */
    assert_ok(ds_grammar_forced(g, &s, &b, &err));
    assert_string_equal(ds_buf_str(&b), ",\"enabled\":true}");
    assert_true(ds_grammar_accepts(g, s));
    ds_grammar_destroy(g);
    ds_json_free(doc);
    ds_encoder_destroy(e);
    ds_ids_free(&ids);
    ds_buf_free(&b);
}

static void schema_refusals(void **state)
{
    static const char *const cases[][2] = {
        { "{\"properties\":{\"a\":{\"not\":{\"pattern\":\"1\"}}}}", "#/properties/a/not" },
        { "{\"not\":{\"$ref\":\"#/$defs/a\",\"minimum\":1},\"$defs\":{\"a\":{\"minimum\":3}}}", "#/not" },
        { "{\"type\":\"string\",\"pattern\":\"a\",\"not\":{\"const\":\"a\"}}", "#/not" },
        { "{\"if\":{\"pattern\":\"a\"},\"then\":{\"maxLength\":3}}", "#/if" },
        { "{\"enum\":[[1]],\"items\":{\"unevaluatedItems\":{}}}", "#/items/unevaluatedItems" },
        { "{\"contains\":{\"format\":\"date\"},\"maxContains\":2}", "#/contains" },
        { "{\"contains\":{\"const\":1},\"minContains\":65}", "#/contains" },
        { "{\"contains\":{\"const\":1},\"maxItems\":65}", "#/contains" },
        { "{\"patternProperties\":{\"^a\":{},\"z$\":{}}}", "#/patternProperties/z$" },
        { "{\"propertyNames\":{\"anyOf\":[{}]}}", "#/propertyNames/anyOf" },
        { "{\"properties\":{\"k\":{\"type\":\"string\"}},\"if\":{\"properties\":{\"k\":{\"pattern\":\"x\"}}},\"then\":{}}",
          "#/if: what doesn't fit" },
        { "{\"dependentRequired\":{\"a\":[1]}}", "dependentRequired" },
        { "{\"dependencies\":{\"a\":[1]}}", "dependencies" },
        { "{\"type\":\"number\",\"not\":{\"type\":\"integer\"}}", "#/not" },
        { "{\"minProperties\":2}", "minProperties" },
        { "{\"type\":\"string\",\"pattern\":\"a\",\"maxLength\":3}", "#/pattern: the bounds" },
        { "{\"items\":{\"if\":{\"multipleOf\":2},\"then\":false}}", "#/items/if" },
        { "{\"$ref\":\"https://example.com/s\"}", "#/$ref" },
        { "{\"$ref\":\"#/properties\",\"properties\":{}}", "#/$ref" },
        { "{\"$ref\":\"#\"}", "left recursion" },
        { "{\"allOf\":[{\"$ref\":\"#\"}]}", "left recursion" },
        { "{\"oneOf\":[{\"multipleOf\":2},{\"maximum\":2}]}", "#/oneOf" },
        { "{\"type\":\"integer\",\"minimum\":2,\"maximum\":1}", "no text" },
        { "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "no text" },
        { "{\"type\":\"string\",\"pattern\":\"(?=a)\"}", "#/pattern: regex: character 0: look-ahead" },
        { "{\"type\":\"string\",\"format\":\"iri\"}", "#/format" },
        { "{\"type\":\"array\",\"uniqueItems\":true}", "#/uniqueItems" },
        { "{\"type\":\"string\",\"maxLength\":1000000000}", "too large" },
        { "{\"type\":\"integer\",\"multipleOf\":1001}", "#/multipleOf" },
        { "false", "no text" },
        { "3", "got number" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds_grammar *g;
        ds_err err = { 0 };
        assert_refused(open_schema(&g, cases[i][0], &err), DS_E_ARG, cases[i][1]);
        assert_null(g);
    }
}

/* Alternatives that multiply end in a refusal, soon. */
static void schema_hostile(void **state)
{
    ds_buf b = { 0 };
    ds_grammar *g;
    ds_err err = { 0 };

    (void)state;
    ds_buf_puts(&b, "{\"allOf\":[");
    for (int i = 0; i < 20; i++)
        ds_buf_printf(&b, "%s{\"anyOf\":[{\"minimum\":%d},{\"maxLength\":%d}]}", i ? "," : "", i, i);
    ds_buf_puts(&b, "]}");
    assert_refused(open_schema(&g, ds_buf_str(&b), &err), DS_E_ARG, "JSON Schema");
    ds_buf_free(&b);
}

static ds_rc open_ebnf(ds_grammar **g, const char *text, ds_err *err)
{
    return ds_grammar_ebnf(g, text, strlen(text), NULL, err);
}

static void ebnf_language(void **state)
{
    static const char text[] = "# sums\nroot ::= expr \"\\n\"?\nexpr ::= expr [-+] term | term\nterm ::= term \"*\" factor\n | factor\n"
                               "factor ::= [0-9]{1,3} | '(' expr ')'\n";
    static const struct {
        const char *text;
        bool match;
    } cases[] = { { "1+2*3", true }, { "((1))-2\n", true }, { "1+", false }, { "((1)", false }, { "1234", false }, { "", false } };
    ds_grammar *g;
    ds_err err = { 0 };

    (void)state;
    assert_ok(open_ebnf(&g, text, &err));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(judge(g, cases[i].text, strlen(cases[i].text)).match, cases[i].match);
    masks_are_exact(g, "sums");
    ds_grammar_destroy(g);
}

static void ebnf_refusals(void **state)
{
    static const char *const cases[][2] = {
        { "", "no rule root" },
        { "root ::= a", "no rule a" },
        { "root ::= b \"x\"\nb ::= root", "rule root calls itself" },
        { "root ::= root", "no text" },
        { "root ::= root? \"a\"", "left recursion" },
        { "root ::= \"a", "line 1, column 10: the literal" },
        { "root ::= [a", "class" },
        { "root ::= (\"a\"", "parenthesis" },
        { "root ::= \"a\"\n)", "line 2, column 1" },
        { "root ::= \"\\q\"", "escape" },
        { "x", "a rule" },
        { "root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: this rule was there already" },
        { "root ::= \"a\"{3,2}", "no repeat" },
        { "root ::= (\"a\"{1000}){1000}", "more nodes" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds_grammar *g;
        ds_err err = { 0 };
        assert_refused(open_ebnf(&g, cases[i][0], &err), DS_E_ARG, cases[i][1]);
        assert_null(g);
    }
}

/* A language that needs more states than allowed says so, and what was there stays good. */
/* A pattern that may go on at any of a thousand places, whatever comes: a bound of work, and the grammar stays good. */
static void ambiguous(void **state)
{
    uint32_t *words = calloc(ds_token_trie_words(trie), 4);
    ds_buf b = { 0 };
    ds_grammar *g;
    ds_err err = { 0 };
    ds_gstate s;
    size_t taken;

    (void)state;
    ds_buf_puts(&b, "(?:");
    for (char c = 'a'; c <= 'z'; c++)
        ds_buf_printf(&b, "%c?", c);
    ds_buf_puts(&b, "){1500}");
    assert_ok(open_regex(&g, ds_buf_str(&b), &err));
    s = ds_grammar_start(g);
    assert_refused(ds_grammar_mask(g, trie, s, words, &err), DS_E_AGAIN, "steps for one token");
    assert_ok(ds_grammar_read(g, &s, "zebra", 5, &taken, &err));
    assert_int_equal(taken, 5);
    ds_grammar_destroy(g);
    ds_buf_free(&b);
    free(words);
}

static void bounds(void **state)
{
    static const ds_grammar_opts small = { .max_states = 50 };
    static const char pattern[] = "(a|b)*a(a|b){30}";
    ds_grammar *g;
    ds_gstate s, kept;
    size_t taken;
    ds_err err = { 0 };
    ds_rc rc = DS_OK;

    (void)state;
    assert_ok(ds_grammar_regex(&g, pattern, strlen(pattern), &small, &err));
    kept = s = ds_grammar_start(g);
    for (uint32_t i = 0, x = 1; i < 1000 && rc == DS_OK; i++, x = x * 1103515245 + 12345)
        rc = ds_grammar_read(g, &s, x >> 16 & 1 ? "a" : "b", 1, &taken, &err);
    assert_refused(rc, DS_E_AGAIN, "states");
    assert_ok(ds_grammar_read(g, &kept, "a", 1, &taken, &err));
    ds_grammar_destroy(g);
}

static ds_rc attempt(void *ctx, ds_err *err)
{
    ds_grammar *g;
    ds_rc rc = open_regex(&g, "(yes|[^x\\d]{2,4})+", err);

    if (rc == DS_OK)
        rc = ds_grammar_mask(g, trie, ds_grammar_start(g), ctx, err);
    ds_grammar_destroy(g);
    return rc;
}

static ds_rc attempt_schema(void *ctx, ds_err *err)
{
    static const char text[] = "{\"b\":\"x\\";
    ds_grammar *g;
    ds_rc rc = open_schema(&g,
                           "{\"properties\":{\"a\":{\"enum\":[1,12]},\"b\":{\"type\":\"string\",\"maxLength\":70}},\"required\":[\"b\"],"
                           "\"additionalProperties\":{\"type\":\"null\"}}",
                           err);
    ds_gstate s = rc == DS_OK ? ds_grammar_start(g) : 0;
    size_t taken;

    if (rc == DS_OK)
        rc = ds_grammar_prepare(g, trie, err);
    for (size_t i = 0; i < sizeof text - 1 && rc == DS_OK; i++) {
        rc = ds_grammar_read(g, &s, text + i, 1, &taken, err);
        if (rc == DS_OK && i > 4)
            rc = ds_grammar_mask(g, trie, s, ctx, err);
    }
    ds_grammar_destroy(g);
    return rc;
}

static void no_memory(void **state)
{
    uint32_t *got = calloc(ds_token_trie_words(trie), 4);

    (void)state;
    assert_true(fault_every_allocation(attempt, got) > 20);
    assert_true(fault_every_allocation(attempt_schema, got) > 60);
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regex_language),  cmocka_unit_test(regex_refusals), cmocka_unit_test(regex_masks),
        cmocka_unit_test(draft_masks),     cmocka_unit_test(choices),        cmocka_unit_test(schema_masks),
        cmocka_unit_test(any_json),        cmocka_unit_test(members),        cmocka_unit_test(jumps),
        cmocka_unit_test(schema_refusals), cmocka_unit_test(conditions),     cmocka_unit_test(schema_hostile),
        cmocka_unit_test(bounds),          cmocka_unit_test(ambiguous),      cmocka_unit_test(ebnf_language),
        cmocka_unit_test(ebnf_refusals),   cmocka_unit_test(no_memory),
    };

    return oracle_main(tests, sizeof tests / sizeof *tests);
}
