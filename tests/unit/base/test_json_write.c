#include "base/json.h"
#include "fault.h"
#include "test.h"

static void expect(const char *text, ds_json_style style, const char *want)
{
    ds_buf b = { 0 };
    ds_json_doc *doc;
    ds_err err;

    assert_ok(ds_json_parse(&doc, text, strlen(text), NULL, &err));
    ds_json_write(&b, ds_json_root(doc), style);
    assert_string_equal(ds_buf_str(&b), want);
    ds_json_free(doc);
    ds_buf_free(&b);
}

static void three_styles(void **state)
{
    const char *text = " { \"a\" : [ 1 , 2.50 , -0 , 1E5 , 100000000000000000000000 , true , false , null ] , \"b\" : { } , \"c\" : [ ] , "
                       "\"\xc3\xa9\\/\" : \"\\u20ac\" } ";

    (void)state;
    expect(text, DS_JSON_COMPACT,
           "{\"a\":[1,2.50,-0,1E5,100000000000000000000000,true,false,null],\"b\":{},\"c\":[],\"\xc3\xa9/\":\"\xe2\x82\xac\"}");
    expect(text, DS_JSON_SSE,
           "{\"a\":[1,2.50,-0,1E5,100000000000000000000000,true,false,null],\"b\":{},\"c\":[],\"\xc3\xa9/\":\"\xe2\x82\xac\"}");
    expect(text, DS_JSON_PYTHON,
           "{\"a\": [1, 2.5, 0, 100000.0, 100000000000000000000000, true, false, null], \"b\": {}, \"c\": [], \"\xc3\xa9/\": "
           "\"\xe2\x82\xac\"}");
    expect("[1e999,-1e999,1e-999,-0.0]", DS_JSON_PYTHON, "[1e999, -1e999, 0.0, -0.0]");
}

static void escapes(void **state)
{
    ds_buf b = { 0 };

    (void)state;
    ds_json_write_str(&b, "\"\\/\b\f\n\r\t\0\x01\x1f\x7f\xc3\xa9", 14, DS_JSON_COMPACT);
    assert_string_equal(b.p, "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u0001\\u001f\x7f\xc3\xa9\"");
    ds_buf_clear(&b);
    ds_json_write_str(&b, "a\xe2\x80\xa8\xe2\x80\xa9\xc2\x85z", 10, DS_JSON_SSE);
    assert_string_equal(b.p, "\"a\\u2028\\u2029\\u0085z\"");
    ds_buf_clear(&b);
    ds_json_write_str(&b, "a\xe2\x80\xa8\xe2\x80\xa9\xc2\x85z", 10, DS_JSON_PYTHON);
    assert_string_equal(b.p, "\"a\xe2\x80\xa8\xe2\x80\xa9\xc2\x85z\"");
    ds_buf_clear(&b);
    ds_json_write_str(&b,
                      "\xff"
                      "a\xe2\x82"
                      "b\xf0\x9f\x98",
                      8, DS_JSON_COMPACT);
    assert_string_equal(b.p, "\"\xef\xbf\xbd"
                             "a\xef\xbf\xbd"
                             "b\xef\xbf\xbd\"");
    ds_buf_clear(&b);
    ds_json_write_str(&b, NULL, 0, DS_JSON_COMPACT);
    assert_string_equal(b.p, "\"\"");
    ds_buf_free(&b);
}

/* A character that needs care at every position of texts around the 8-byte steps. */
static void escapes_at_every_position(void **state)
{
    static const struct {
        const char *in, *out;
    } specials[] = { { "\"", "\\\"" },           { "\n", "\\n" },           { "\x02", "\\u0002" }, { "\xe2\x80\xa8", "\\u2028" },
                     { "\xff", "\xef\xbf\xbd" }, { "\xc3\xa9", "\xc3\xa9" } };

    (void)state;
    for (size_t s = 0; s < sizeof specials / sizeof specials[0]; s++)
        for (int before = 0; before < 20; before++)
            for (int after = 0; after < 20; after++) {
                char in[64], want[80];
                ds_buf b = { 0 };
                int n =
                    snprintf(in, sizeof in, "%.*s%s%.*s", before, "aaaaaaaaaaaaaaaaaaaa", specials[s].in, after, "bbbbbbbbbbbbbbbbbbbb");
                snprintf(want, sizeof want, "\"%.*s%s%.*s\"", before, "aaaaaaaaaaaaaaaaaaaa", specials[s].out, after,
                         "bbbbbbbbbbbbbbbbbbbb");
                ds_json_write_str(&b, in, (size_t)n, DS_JSON_SSE);
                assert_string_equal(b.p, want);
                ds_buf_free(&b);
            }
}

/* Python's repr() of the same doubles. */
static void floats_as_python(void **state)
{
    static const struct {
        double x;
        const char *text;
    } cases[] = {
        { 0x0.0p+0, "0.0" },
        { -0x0.0p+0, "-0.0" },
        { 0x1.0000000000000p+0, "1.0" },
        { -0x1.8000000000000p+0, "-1.5" },
        { 0x1.999999999999ap-4, "0.1" },
        { 0x1.3333333333333p-2, "0.3" },
        { 0x1.5555555555555p-2, "0.3333333333333333" },
        { 0x1.5555555555555p-1, "0.6666666666666666" },
        { 0x1.9000000000000p+6, "100.0" },
        { 0x1.86a0000000000p+16, "100000.0" },
        { 0x1.e240c9fbe76c9p+16, "123456.789" },
        { 0x1.c6bf526340000p+49, "1000000000000000.0" },
        { 0x1.c6bf52633ffffp+49, "999999999999999.9" },
        { 0x1.1c37937e08000p+53, "1e+16" },
        { 0x1.1c37937e07fffp+53, "9999999999999998.0" },
        { 0x1.5ee2a2eb5a5c4p+53, "1.2345678901234568e+16" },
        { 0x1.6345785d8a000p+56, "1e+17" },
        { 0x1.aa535d3d0c000p+53, "1.5e+16" },
        { 0x1.b1ae4d6e2ef50p+69, "1e+21" },
        { 0x1.0f0cf064dd592p+73, "1e+22" },
        { 0x1.52d02c7e14af6p+76, "1e+23" },
        { 0x1.fffffffffffffp+1023, "1.7976931348623157e+308" },
        { 0x1.0000000000000p-1022, "2.2250738585072014e-308" },
        { 0x0.fffffffffffffp-1022, "2.225073858507201e-308" },
        { 0x0.0000000000001p-1022, "5e-324" },
        { 0x0.0000000000002p-1022, "1e-323" },
        { 0x0.0000000000003p-1022, "1.5e-323" },
        { 0x1.a36e2eb1c432dp-14, "0.0001" },
        { 0x1.02e4b6ce5dc68p-13, "0.00012345" },
        { 0x1.a36e2eb1c432dp-14, "0.0001" },
        { 0x1.a36371ea531a8p-14, "9.999e-05" },
        { 0x1.4f8b588e368f1p-17, "1e-05" },
        { 0x1.a36e2eb1c432dp-17, "1.25e-05" },
        { 0x1.ad7f29abcaf48p-24, "1e-07" },
        { -0x1.12e0be826d695p-32, "-2.5e-10" },
        { 0x1.249ad2594c37dp+332, "1e+100" },
        { 0x1.14626eab6dbc7p-332, "1.234e-100" },
        { 0x1.0000000000000p-44, "5.684341886080802e-14" },
        { 0x1.0000000000000p-1022, "2.2250738585072014e-308" },
        { 0x1.0000000000000p+53, "9007199254740992.0" },
        { 0x1.0000000000000p+54, "1.8014398509481984e+16" },
        { 0x1.0000000000000p-24, "5.960464477539063e-08" },
        { 0x1.0000000000000p+971, "1.99584030953472e+292" },
        { 0x1.0000000000000p+53, "9007199254740992.0" },
        { 0x1.3333333333334p-2, "0.30000000000000004" },
        { 0x1.1666666666666p+2, "4.35" },
        { 0x1.5666666666666p+1, "2.675" },
        { 0x1.a36e2eb1c432dp-15, "5e-05" },
        { 0x1.2a05f20000000p+33, "10000000000.0" },
        { 0x1.921fb54442d18p+1, "3.141592653589793" },
        { 0x1.5bf0a8b145769p+1, "2.718281828459045" },
        { 0x1.fe185ca57c517p+78, "6.02214076e+23" },
        { 0x1.7a4da290c1653p-63, "1.602176634e-19" },
        { 0x1.1de784a000000p+28, "299792458.0" },
        { 0x1.6666666666666p-1, "0.7" },
        { 0x1.0c6f7a0b5ed8dp-20, "1e-06" },
        { 0x1.9cb8320b15070p-17, "1.23e-05" },
        { 0x1.c7e83209e90b2p+72, "8.41e+21" },
        { 0x0.0000000000003p-1022, "1.5e-323" },
        { 0x1.0000000000000p+100, "1.2676506002282294e+30" },
        { 0x1.0000000000000p+52, "4503599627370496.0" },
        { 0x1.0000000000000p-1, "0.5" },
        { 0x1.0000000000000p-6, "0.015625" },
        { 0x1.dcd6500000000p+29, "1000000000.0" },
        { -0x1.56e1fc2f8f359p-997, "-1e-300" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ds_buf b = { 0 };
        ds_json_write_f64(&b, cases[i].x);
        assert_string_equal(b.p, cases[i].text);
        ds_buf_free(&b);
    }
}

static void no_infinity_in_json(void **state)
{
    ds_buf b = { 0 };

    (void)state;
    ds_json_write_f64(&b, NAN);
    ds_json_write_f64(&b, INFINITY);
    ds_json_write_f64(&b, -INFINITY);
    assert_string_equal(b.p, "nullnullnull");
    ds_buf_free(&b);
}

/* Every power of two and its neighbours, where the spacing of doubles changes, reads back as the same double. */
static void powers_of_two_read_back(void **state)
{
    (void)state;
    for (int e = -1074; e < 1024; e++)
        for (int k = -1; k <= 1; k++) {
            double x = ldexp(1, e);
            ds_buf b = { 0 };
            if (k)
                x = nextafter(x, k < 0 ? 0 : INFINITY);
            ds_json_write_f64(&b, x);
            if (strtod(b.p, NULL) != x)
                fail_msg("%a became %s", x, b.p);
            ds_buf_free(&b);
        }
}

static void deepest_document(void **state)
{
    char text[2 * DS_JSON_MAX_DEPTH];
    ds_buf b = { 0 };
    ds_json_doc *doc;
    ds_err err;

    (void)state;
    memset(text, '[', DS_JSON_MAX_DEPTH);
    memset(text + DS_JSON_MAX_DEPTH, ']', DS_JSON_MAX_DEPTH);
    assert_ok(ds_json_parse(&doc, text, sizeof text, &(ds_json_opts){ .max_depth = DS_JSON_MAX_DEPTH }, &err));
    ds_json_write(&b, ds_json_root(doc), DS_JSON_PYTHON);
    assert_int_equal(b.len, sizeof text);
    assert_memory_equal(b.p, text, sizeof text);
    ds_json_free(doc);
    ds_buf_free(&b);
}

static void out_of_memory_is_remembered(void **state)
{
    const char *text = "{\"a\":[1,2,3,\"some longer text, so that the buffer has to grow more than once while it is written\"]}";
    ds_json_doc *doc;
    ds_err err;

    (void)state;
    assert_ok(ds_json_parse(&doc, text, strlen(text), NULL, &err));
    for (unsigned n = 1; n <= 2; n++) {
        ds_buf b = { 0 };
        fault_arm(n, false);
        ds_json_write(&b, ds_json_root(doc), DS_JSON_PYTHON);
        assert_true(fault_disarm());
        assert_true(b.oom);
        ds_buf_free(&b);
    }
    ds_json_free(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_styles),
        cmocka_unit_test(escapes),
        cmocka_unit_test(floats_as_python),
        cmocka_unit_test(escapes_at_every_position),
        cmocka_unit_test(deepest_document),
        cmocka_unit_test(no_infinity_in_json),
        cmocka_unit_test(powers_of_two_read_back),
        cmocka_unit_test(out_of_memory_is_remembered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
