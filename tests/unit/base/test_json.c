#include <time.h>

#include "base/clock.h"
#include "base/json.h"
#include "fault.h"
#include "test.h"

static ds_json_doc *parse(const char *text)
{
    ds_json_doc *doc;
    ds_err err;

    assert_ok(ds_json_parse(&doc, text, strlen(text), NULL, &err));
    return doc;
}

static void types_and_members(void **state)
{
    ds_json_doc *doc = parse(" {\"n\":null,\"f\":false,\"t\":true,\"i\":-12,\"s\":\"x\",\"a\":[1,[],{}],\"\":{\"k\":0}}\r\n\t ");
    const ds_json *root = ds_json_root(doc), *a = ds_json_get(root, "a");

    (void)state;
    assert_int_equal(root->type, DS_JSON_OBJECT);
    assert_int_equal(root->n, 7);
    assert_null(root->key);
    assert_true(ds_json_is(ds_json_get(root, "n"), DS_JSON_NULL));
    assert_true(ds_json_is(ds_json_get(root, "f"), DS_JSON_FALSE));
    assert_true(ds_json_is(ds_json_get(root, "t"), DS_JSON_TRUE));
    assert_string_equal(ds_json_get(root, "i")->text, "-12");
    assert_true(ds_json_str_eq(ds_json_get(root, "s"), "x"));
    assert_false(ds_json_str_eq(ds_json_get(root, "s"), "xy"));
    assert_false(ds_json_str_eq(ds_json_get(root, "i"), "-12"));
    assert_int_equal(a->n, 3);
    assert_string_equal(ds_json_at(a, 0)->text, "1");
    assert_true(ds_json_at(a, 1)->type == DS_JSON_ARRAY && ds_json_at(a, 1)->n == 0 && !ds_json_at(a, 1)->child);
    assert_true(ds_json_at(a, 2)->type == DS_JSON_OBJECT);
    assert_null(ds_json_at(a, 3));
    assert_null(ds_json_at(root, 0));
    assert_null(ds_json_at(NULL, 0));
    assert_non_null(ds_json_get(ds_json_get(root, ""), "k"));
    assert_null(ds_json_get(root, "k"));
    assert_null(ds_json_get(a, "k"));
    assert_null(ds_json_get(NULL, "k"));
    assert_false(ds_json_is(NULL, DS_JSON_NULL));
    ds_json_free(doc);
    ds_json_free(NULL);
}

static void names_of_types(void **state)
{
    static const char *const names[] = { "null", "boolean", "boolean", "number", "string", "array", "object" };
    ds_json_doc *doc = parse("[null,false,true,0,\"\",[],{}]");
    size_t i = 0;

    (void)state;
    for (const ds_json *v = ds_json_root(doc)->child; v; v = v->next)
        assert_string_equal(ds_json_type_name(v), names[i++]);
    assert_int_equal(i, 7);
    assert_string_equal(ds_json_type_name(NULL), "nothing");
    ds_json_free(doc);
}

static void strings(void **state)
{
    static const struct {
        const char *in, *out;
        size_t n;
    } cases[] = {
        { "\"\"", "", 0 },
        { "\"abcdefgh\"", "abcdefgh", 8 },
        { "\"abcdefghijklmnopq\"", "abcdefghijklmnopq", 17 },
        { "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8 },
        { "\"a\\u0000b\"", "a\0b", 3 },
        { "\"\\u00e9\\u20AC\\uD83d\\uDe00\"", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9 },
        { "\"\\uffff\\ud7ff\\ue000\"", "\xef\xbf\xbf\xed\x9f\xbf\xee\x80\x80", 9 },
        { "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xf4\x8f\xbf\xbf\x7f\"", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xf4\x8f\xbf\xbf\x7f", 14 },
        { "\"1234567\\n\"", "1234567\n", 8 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ds_json_doc *doc = parse(cases[i].in);
        const ds_json *v = ds_json_root(doc);
        assert_int_equal(v->type, DS_JSON_STRING);
        assert_int_equal(v->text_len, cases[i].n);
        assert_memory_equal(v->text, cases[i].out, cases[i].n + 1);
        ds_json_free(doc);
    }
}

/* What is refused, and the place and words with which. */
static void refused(void **state)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        { "", "line 1, column 1: expected a value, found the end of the text" },
        { "  \n ", "line 2, column 2: expected a value" },
        { "\xef\xbb\xbf{}", "line 1, column 1: byte order mark" },
        { "{} x", "line 1, column 4: expected nothing more after the value, found 'x'" },
        { "[1,]", "line 1, column 4: expected a value, found ']'" },
        { "[,1]", "line 1, column 2: expected a value, found ','" },
        { "[1 2]", "line 1, column 4: expected ',' or ']', found '2'" },
        { "[1}", "line 1, column 3: expected ',' or ']'" },
        { "{\"a\":1,}", "line 1, column 8: expected a key in quotes, found '}'" },
        { "{a:1}", "line 1, column 2: expected a key in quotes, found 'a'" },
        { "{\"a\" 1}", "line 1, column 6: expected ':', found '1'" },
        { "{\"a\":1]", "line 1, column 7: expected ',' or '}'" },
        { "{\"a\":}", "line 1, column 6: expected a value" },
        { "\n\n  {\"\xc3\xa9\xf0\x9f\x98\x80\":?}", "line 3, column 9: expected a value, found '?'" },
        { "nul", "expected a value" },
        { "nulll", "line 1, column 5: expected nothing more" },
        { "True", "expected a value, found 'T'" },
        { "NaN", "expected a value" },
        { "Infinity", "expected a value" },
        { "-Infinity", "line 1, column 2: expected a digit, found 'I'" },
        { "+1", "expected a value" },
        { ".5", "expected a value" },
        { "01", "can't begin with 0" },
        { "-01", "can't begin with 0" },
        { "-", "expected a digit, found the end" },
        { "1.", "expected a digit" },
        { "1.e5", "line 1, column 3: expected a digit, found 'e'" },
        { "1e", "expected a digit" },
        { "1e+", "expected a digit" },
        { "0x10", "expected nothing more" },
        { "1_000", "expected nothing more" },
        { "'a'", "expected a value" },
        { "/**/1", "expected a value" },
        { "\"a", "line 1, column 1: the string that begins here doesn't end" },
        { "[\"a\nb\"]", "line 1, column 4: control character" },
        { "\"long enough\x1f for a step\"", "column 13: control character" },
        { "\"\\x41\"", "line 1, column 2: unknown escape" },
        { "\"\\", "the text ends inside a string" },
        { "\"\\u12g4\"", "four hexadecimal digits" },
        { "\"\\u123", "four hexadecimal digits" },
        { "\"\\ud83d\"", "line 1, column 2: lone surrogate escape" },
        { "\"\\ud83dx\"", "lone surrogate escape" },
        { "\"\\ud83d\\n\"", "lone surrogate escape" },
        { "\"\\ud83d\\u0041\"", "lone surrogate escape" },
        { "\"\\ud83d\\ud83d\"", "lone surrogate escape" },
        { "\"\\ude00\\ud83d\"", "lone surrogate escape" },
        { "\"a\xff\"", "line 1, column 3: invalid UTF-8" },
        { "\"\xed\xa0\xbd\xed\xb8\x80\"", "line 1, column 2: invalid UTF-8" },
        { "\"\xc0\x80\"", "invalid UTF-8" },
        { "\"\xe2\x82\"", "invalid UTF-8" },
        { "\"\xf4\x90\x80\x80\"", "invalid UTF-8" },
        { "{\"\xc3(\":1}", "line 1, column 3: invalid UTF-8" },
        { "\xc3\xa9", "found '\xc3\xa9'" },
        { "\xff", "found '\\xff'" },
        { "\x01", "found '\\x01'" },
        { "[1,\v2]", "expected a value" },
    };
    ds_json_doc *doc;
    ds_err err;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        doc = (ds_json_doc *)1;
        assert_refused(ds_json_parse(&doc, cases[i].text, strlen(cases[i].text), NULL, &err), DS_E_FORMAT, cases[i].message);
        assert_null(doc);
    }
    assert_refused(ds_json_parse(&doc, "\0", 1, NULL, &err), DS_E_FORMAT, "found '\\x00'");
    assert_refused(ds_json_parse(&doc, "\"\\\0\"", 4, NULL, &err), DS_E_FORMAT, "unknown escape");
    assert_refused(ds_json_parse(&doc, "1\0", 2, NULL, &err), DS_E_FORMAT, "nothing more");
}

static const char *const documents[] = {
    "{\"a\":[1,-2.5e+3,true,false,null],\"\\u00e9\xe2\x82\xac\":{\"k\":\"v\\n\\ud83d\\ude00\"},\"a\":{}}",
    " [ [ ] , { } , \"some text that is longer than eight bytes \xf0\x9f\x98\x80\" , { \"x\" : [ { \"y\" : 0 } ] } ]",
    "\"only a string with \\\\ and \\u20ac\"",
    "[0.125,1E5,-0,10,123456789012345678901234567890]",
};

/* Every document's every beginning is refused, in a block that ends where the text does. */
static void every_truncation(void **state)
{
    (void)state;
    for (size_t d = 0; d < sizeof documents / sizeof documents[0]; d++) {
        size_t n = strlen(documents[d]);
        for (size_t cut = 0; cut <= n; cut++) {
            char *copy = malloc(cut ? cut : 1);
            ds_json_doc *doc;
            ds_err err;
            memcpy(copy, documents[d], cut);
            if (cut == n) {
                assert_ok(ds_json_parse(&doc, copy, cut, NULL, &err));
                ds_json_free(doc);
            } else {
                assert_refused(ds_json_parse(&doc, copy, cut, NULL, &err), DS_E_FORMAT, "line 1, column ");
            }
            free(copy);
        }
    }
}

/* Every byte of every document replaced by every other: never a crash, and what is accepted can be walked. */
static size_t walk(const ds_json *v)
{
    size_t n = v->text_len + v->key_len + (v->text ? strlen(v->text) : 0);

    for (const ds_json *c = v->child; c; c = c->next)
        n += walk(c);
    return n;
}

static void every_byte_changed(void **state)
{
    (void)state;
    for (size_t d = 0; d < sizeof documents / sizeof documents[0]; d++) {
        size_t n = strlen(documents[d]);
        char *copy = strdup(documents[d]);
        for (size_t i = 0; i < n; i++) {
            for (int c = 0; c < 256; c++) {
                ds_json_doc *doc;
                copy[i] = (char)c;
                if (ds_json_parse(&doc, copy, n, NULL, NULL) == DS_OK) {
                    assert_true(walk(ds_json_root(doc)) < 4 * n);
                    ds_json_free(doc);
                }
            }
            copy[i] = documents[d][i];
        }
        free(copy);
    }
}

static void depth(void **state)
{
    static char text[2 * 2000 + 1];
    ds_json_doc *doc;
    ds_err err;

    (void)state;
    for (size_t max = 1; max <= DS_JSON_MAX_DEPTH; max = max < 128 ? max * 2 : max + 128) {
        const ds_json_opts opts = { .max_depth = (uint32_t)max };
        for (size_t n = max - 1; n <= max + 1; n++) {
            memset(text, '[', n);
            memset(text + n, ']', n);
            if (n <= max && n > 0) {
                assert_ok(ds_json_parse(&doc, text, 2 * n, &opts, &err));
                ds_json_free(doc);
            } else if (n > 0) {
                assert_refused(ds_json_parse(&doc, text, 2 * n, &opts, &err), DS_E_FORMAT, "nested too deep");
            }
        }
    }
    memset(text, '[', 128);
    memset(text + 128, ']', 128);
    assert_ok(ds_json_parse(&doc, text, 256, NULL, &err));
    ds_json_free(doc);
    memset(text, '[', 129);
    assert_refused(ds_json_parse(&doc, text, 258, NULL, &err), DS_E_FORMAT, "line 1, column 129: nested too deep");
    assert_ok(ds_json_parse(&doc, "7", 1, &(ds_json_opts){ .max_depth = 1 }, &err));
    ds_json_free(doc);
    assert_refused(ds_json_parse(&doc, "7", 1, &(ds_json_opts){ .max_depth = 1025 }, &err), DS_E_ARG, "1025");
}

static void bounded_values(void **state)
{
    const ds_json_opts opts = { .max_values = 5 };
    ds_json_doc *doc;
    ds_err err;

    (void)state;
    assert_ok(ds_json_parse(&doc, "[1,{\"a\":2},3]", 13, &opts, &err));
    ds_json_free(doc);
    assert_refused(ds_json_parse(&doc, "[1,{\"a\":2},3,4]", 15, &opts, &err), DS_E_FORMAT, "line 1, column 14: too many values");
}

static void duplicates_keep_first_place_and_last_value(void **state)
{
    ds_json_doc *doc = parse("{\"a\":1,\"b\":[1,2],\"a\":\"x\",\"c\":3,\"b\":{\"d\":4},\"a\":[5,6,7]}");
    const ds_json *root = ds_json_root(doc), *v = root->child;

    (void)state;
    assert_int_equal(root->n, 3);
    assert_string_equal(v->key, "a");
    assert_int_equal(v->type, DS_JSON_ARRAY);
    assert_int_equal(v->n, 3);
    assert_string_equal(v->child->next->next->text, "7");
    v = v->next;
    assert_string_equal(v->key, "b");
    assert_int_equal(v->type, DS_JSON_OBJECT);
    assert_null(v->text);
    assert_string_equal(ds_json_get(v, "d")->text, "4");
    v = v->next;
    assert_string_equal(v->key, "c");
    assert_null(v->next);
    ds_json_free(doc);
}

/* Objects of every size around the one at which the table takes over; keys that differ in a NUL only are different. */
static void duplicates_in_objects_of_every_size(void **state)
{
    (void)state;
    for (int n = 1; n < 70; n++) {
        ds_buf b = { 0 };
        ds_json_doc *doc;
        ds_err err;
        int i = 0;
        ds_buf_puts(&b, "{\"x\":0,\"x\\u0000\":0");
        for (int k = 0; k < 3 * n; k++)
            ds_buf_printf(&b, ",\"key%d\":%d", k % n, k);
        ds_buf_puts(&b, "}");
        assert_ok(ds_json_parse(&doc, b.p, b.len, NULL, &err));
        assert_int_equal(ds_json_root(doc)->n, n + 2);
        for (const ds_json *v = ds_json_root(doc)->child->next->next; v; v = v->next, i++) {
            char key[16];
            int64_t x = -1;
            snprintf(key, sizeof key, "key%d", i);
            assert_string_equal(v->key, key);
            assert_true(ds_json_i64(v, &x) && x == 2 * n + i);
        }
        assert_int_equal(i, n);
        ds_json_free(doc);
        assert_refused(ds_json_parse(&doc, b.p, b.len, &(ds_json_opts){ .refuse_duplicates = true }, &err), DS_E_FORMAT, "stands twice");
        ds_buf_free(&b);
    }
}

/* What this thread has worked: a busy machine doesn't count. */
static uint64_t work_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Twice the members may cost at most about twice the time: 400,000 keys, half of them duplicates, are read well
 * within a second. */
static void many_keys_in_linear_time(void **state)
{
    uint64_t start, ns[2];
    ds_json_doc *doc;
    ds_err err;

    (void)state;
    for (int turn = 0; turn < 2; turn++) {
        int n = turn ? 400000 : 100000;
        ds_buf b = { 0 };
        ds_buf_puts(&b, "{");
        for (int i = 0; i < n; i++)
            ds_buf_printf(&b, "%s\"k%d\":%d", i ? "," : "", i % (n / 2), i);
        ds_buf_puts(&b, "}");
        start = work_ns();
        assert_ok(ds_json_parse(&doc, b.p, b.len, NULL, &err));
        ns[turn] = work_ns() - start;
        assert_int_equal(ds_json_root(doc)->n, n / 2);
        ds_json_free(doc);
        ds_buf_free(&b);
    }
    if (ns[1] > 40 * ns[0] && ns[1] > 2000000000)
        fail_msg("100,000 keys: %lu us, 400,000: %lu us", ns[0] / 1000, ns[1] / 1000);
}

static void integers(void **state)
{
    static const struct {
        const char *text;
        bool is_i64, is_u64;
        int64_t i;
        uint64_t u;
    } cases[] = {
        { "0", true, true, 0, 0 },
        { "-0", true, true, 0, 0 },
        { "42", true, true, 42, 42 },
        { "-1", true, false, -1, 0 },
        { "9223372036854775807", true, true, INT64_MAX, INT64_MAX },
        { "9223372036854775808", false, true, 0, 9223372036854775808u },
        { "-9223372036854775808", true, false, INT64_MIN, 0 },
        { "-9223372036854775809", false, false, 0, 0 },
        { "18446744073709551615", false, true, 0, UINT64_MAX },
        { "18446744073709551616", false, false, 0, 0 },
        { "100000000000000000000000", false, false, 0, 0 },
        { "1.0", false, false, 0, 0 },
        { "1e2", false, false, 0, 0 },
        { "\"1\"", false, false, 0, 0 },
        { "true", false, false, 0, 0 },
    };

    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        ds_json_doc *doc = parse(cases[k].text);
        int64_t i = -77;
        uint64_t u = 77;
        assert_int_equal(ds_json_i64(ds_json_root(doc), &i), cases[k].is_i64);
        assert_true(i == (cases[k].is_i64 ? cases[k].i : -77));
        assert_int_equal(ds_json_u64(ds_json_root(doc), &u), cases[k].is_u64);
        assert_true(u == (cases[k].is_u64 ? cases[k].u : 77));
        ds_json_free(doc);
    }
    int64_t i;
    uint64_t u;
    assert_false(ds_json_i64(NULL, &i) || ds_json_u64(NULL, &u));
}

static void reals(void **state)
{
    static const struct {
        const char *text;
        double x;
    } cases[] = {
        { "0", 0 },
        { "-0.0", 0 },
        { "1", 1 },
        { "0.1", 0.1 },
        { "-2.5e-3", -0.0025 },
        { "1E5", 100000 },
        { "1e-400", 0 },
        { "1.7976931348623157e308", 1.7976931348623157e308 },
        { "123456789012345678901234567890", 123456789012345678901234567890.0 },
    };
    double x;

    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        ds_json_doc *doc = parse(cases[k].text);
        assert_true(ds_json_f64(ds_json_root(doc), &x));
        assert_true(x == cases[k].x);
        ds_json_free(doc);
    }
    x = 5;
    ds_json_doc *doc = parse("[1e999,-1e999,\"1\",null]");
    for (const ds_json *v = ds_json_root(doc)->child; v; v = v->next)
        assert_false(ds_json_f64(v, &x));
    assert_false(ds_json_f64(NULL, &x));
    assert_true(x == 5);
    ds_json_free(doc);
}

static ds_rc attempt(void *ctx, ds_err *err)
{
    const ds_buf *text = ctx;
    ds_json_doc *doc;
    ds_rc rc = ds_json_parse(&doc, text->p, text->len, NULL, err);

    ds_json_free(doc);
    return rc;
}

static void failing_allocations(void **state)
{
    ds_buf b = { 0 };
    unsigned n;

    (void)state;
    ds_buf_puts(&b, "{");
    for (int i = 0; i < 5000; i++)
        ds_buf_printf(&b, "%s\"k%d\":[%d,{}]", i ? "," : "", i, i);
    ds_buf_puts(&b, "}");
    n = fault_every_allocation(attempt, &b);
    assert_in_range(n, 5, 20); /* a document is a few blocks */
    ds_buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_and_members),
        cmocka_unit_test(names_of_types),
        cmocka_unit_test(strings),
        cmocka_unit_test(refused),
        cmocka_unit_test(every_truncation),
        cmocka_unit_test(every_byte_changed),
        cmocka_unit_test(depth),
        cmocka_unit_test(bounded_values),
        cmocka_unit_test(duplicates_keep_first_place_and_last_value),
        cmocka_unit_test(duplicates_in_objects_of_every_size),
        cmocka_unit_test(many_keys_in_linear_time),
        cmocka_unit_test(integers),
        cmocka_unit_test(reals),
        cmocka_unit_test(failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
