#include "test.h"

static void message_and_code(void **state)
{
    ds_err err = { 0 };

    (void)state;
    assert_int_equal(ds_fail(&err, DS_E_FORMAT, "%s: layer %d", "a.json", 7), DS_E_FORMAT);
    assert_int_equal(err.rc, DS_E_FORMAT);
    assert_string_equal(err.msg, "a.json: layer 7");
    assert_int_equal(ds_fail(NULL, DS_E_IO, "nobody reads %d", 1), DS_E_IO);
}

static void arguments_may_be_the_message_itself(void **state)
{
    ds_err err = { 0 };

    (void)state;
    ds_fail(&err, DS_E_IO, "inner");
    ds_fail(&err, DS_E_IO, "outer: %s", err.msg);
    assert_string_equal(err.msg, "outer: inner");
}

/* Every length around the limit, of characters of 1 to 4 bytes: the cut text is whole characters and "...". */
static void long_messages_are_cut_between_characters(void **state)
{
    static const char *const chars[] = { "x", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80" };
    char text[400];
    ds_err err;

    (void)state;
    for (size_t k = 0; k < 4; k++)
        for (size_t pad = 0; pad < 4; pad++)
            for (size_t n = 40; n < 90 * (4 / (k + 1)); n++) {
                size_t len = 0;
                for (; len < pad; len++)
                    text[len] = 'p';
                for (size_t i = 0; i < n && len + 4 < sizeof text; i++)
                    for (const char *c = chars[k]; *c; c++)
                        text[len++] = *c;
                text[len] = '\0';
                ds_fail(&err, DS_E_IO, "%s", text);
                if (len < sizeof err.msg) {
                    assert_string_equal(err.msg, text);
                    continue;
                }
                size_t got = strlen(err.msg);
                assert_true(got < sizeof err.msg && got > sizeof err.msg - 8);
                assert_string_equal(err.msg + got - 3, "...");
                assert_memory_equal(err.msg, text, got - 3);
                assert_int_equal((got - 3 - pad) % (k + 1), 0);
            }
}

static void prefix_keeps_code_and_text(void **state)
{
    ds_err err = { 0 };
    char longer[600];

    (void)state;
    ds_fail(&err, DS_E_FORMAT, "bad scale");
    assert_int_equal(ds_err_prefix(&err, DS_E_IO, "layer %d: ", 12), DS_E_FORMAT);
    assert_string_equal(err.msg, "layer 12: bad scale");
    assert_int_equal(ds_err_prefix(NULL, DS_E_IO, "layer 12: "), DS_E_IO);
    memset(longer, 'y', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    ds_err_prefix(&err, DS_E_IO, "%s", longer);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    assert_string_equal(err.msg + sizeof err.msg - 4, "...");
}

static void quotes_are_printable(void **state)
{
    static const struct {
        const char *in;
        size_t n;
        const char *out;
    } cases[] = {
        { "plain", 5, "plain" },
        { "", 0, "" },
        { "a\nb\tc\rd\\", 8, "a\\nb\\tc\\rd\\\\" },
        { "\x1b[31m\x7f\0z", 8, "\\x1b[31m\\x7f\\x00z" },
        { "\xc3\xa9\xc3", 3, "\xc3\xa9\\xc3" },
        { "\xc2\x85\xe2\x80\xa8\xe2\x80\xae", 8, "\\u0085\\u2028\\u202e" },
    };
    char buf[1024];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(ds_quote(buf, sizeof buf, cases[i].in, cases[i].n), cases[i].out);
}

static void quotes_are_cut(void **state)
{
    char text[300], buf[1024], small[8];

    (void)state;
    memset(text, 'x', sizeof text);
    assert_int_equal(strlen(ds_quote(buf, sizeof buf, text, 200)), 200);
    assert_int_equal(strlen(ds_quote(buf, sizeof buf, text, 201)), 203);
    assert_string_equal(buf + 200, "...");
    assert_string_equal(ds_quote(small, sizeof small, "1234567", 7), "1234567");
    assert_string_equal(ds_quote(small, sizeof small, "12345678", 8), "1234...");
    for (size_t cap = 8; cap < 40; cap++) /* never past the end, always terminated */
        assert_true(strlen(ds_quote(buf, cap, "\xf0\x9f\x98\x80\n\x01\xff\xf0\x9f\x98\x80 and so on and on", 28)) < cap);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(message_and_code),
        cmocka_unit_test(arguments_may_be_the_message_itself),
        cmocka_unit_test(long_messages_are_cut_between_characters),
        cmocka_unit_test(prefix_keeps_code_and_text),
        cmocka_unit_test(quotes_are_printable),
        cmocka_unit_test(quotes_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
