/* Generated outputs, well formed and broken, under every option: each split in two, byte by byte and 100 random
 * partitions give the same events, no piece ends inside a character, and the arguments of every complete call are a
 * JSON object. */
#include "parse_help.h"

#define OUTPUTS 2000

static unsigned flags_of(void *ctx, const char *name, size_t n)
{
    (void)ctx;
    if (n == 5 && memcmp(name, "patch", 5) == 0)
        return DS_PARSE_DECLARED | DS_PARSE_CUSTOM;
    return n > 0 && name[0] == 'f' ? DS_PARSE_DECLARED : 0;
}

static int has_key(void *ctx, const char *name, size_t n, const char *key, size_t kn)
{
    return flags_of(ctx, name, n) ? kn == 1 && *key == 'a' : -1;
}

static unsigned key_types(void *ctx, const char *name, size_t n, const char *key, size_t kn)
{
    (void)ctx, (void)name, (void)n;
    return kn == 1 && *key == 'a' ? DS_TYPE_NUMBER | DS_TYPE_OBJECT : kn == 1 ? DS_TYPE_STRING : 0;
}

static const char *pick(uint64_t *seed, const char *const *from, size_t n)
{
    return from[help_random(seed) % n];
}
#define PICK(list) pick(seed, list, sizeof list / sizeof list[0])

static void put_text(ds_buf *b, uint64_t *seed, unsigned most)
{
    static const char *const bits[] = { "a",
                                        " ",
                                        "\n",
                                        "\n\n",
                                        "word ",
                                        "<",
                                        "<b>",
                                        "</",
                                        "</think>",
                                        "<think>",
                                        "\xe6\x97\xa5",
                                        "\xf0\x9f\xa6\x80",
                                        "END",
                                        "EN",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        "\"",
                                        "\\",
                                        "```json\n",
                                        "```",
                                        "`",
                                        "<" D,
                                        "</" D,
                                        D,
                                        "<|DSML|",
                                        OPEN,
                                        CLOSE,
                                        INV("f"),
                                        "\x01",
                                        "\xff",
                                        "\xe6\x97",
                                        EOS,
                                        "<｜" };
    for (unsigned n = (unsigned)(help_random(seed) % (most + 1)); n; n--)
        ds_buf_puts(b, PICK(bits));
}

static void put_value(ds_buf *b, uint64_t *seed)
{
    static const char *const values[] = { "1",    "true", "null",  "[1, 2]", "{\"a\": 1}", "{\"a\": {\"b\": [\"x\"]}}",
                                          "True", "NaN",  "1e999", "",       "\"x\"",      "\"\\ud83d\"",
                                          "-",    "[",    "nul",   "x y\n",  "\n",         "line\n" };
    if (help_random(seed) % 3)
        ds_buf_puts(b, PICK(values));
    else
        put_text(b, seed, 5);
}

static void put_output(ds_buf *b, uint64_t *seed)
{
    static const char *const seps[] = { "\n", "\n", "\n", "", " ", "\n\n", "x" };
    static const char *const names[] = { "f", "f2", "g", "patch", " f ", "", "f<", "a\nb" };
    static const char *const keys[] = { "a", "b", "input", "arguments", "k\"", "" };
    static const char *const flags[] = { " string=\"true\"", " string=\"false\"", "", " string=\"yes\"", "  string = \"true\" x" };
    static const char *const param_ends[] = { "</" D " parameter>", "</" D "parameter>", "</" D " parameter>", "", "</" D " other>" };

    put_text(b, seed, 6);
    if (help_random(seed) % 2) {
        ds_buf_puts(b, "</think>");
        put_text(b, seed, 4);
    }
    if (help_random(seed) % 8 == 0)
        return;
    ds_buf_puts(b, PICK(seps));
    ds_buf_puts(b, help_random(seed) % 4 ? OPEN : "<" D "tool_calls>");
    for (uint64_t calls = help_random(seed) % 3; calls; calls--) {
        ds_buf_puts(b, PICK(seps));
        ds_buf_printf(b, help_random(seed) % 4 ? "<" D " invoke name=\"%s\">" : "<" D "invoke  x=\"1\" name = \"%s\" >", PICK(names));
        if (help_random(seed) % 4 == 0)
            put_value(b, seed);
        for (uint64_t params = help_random(seed) % 4; params; params--) {
            ds_buf_puts(b, PICK(seps));
            ds_buf_printf(b, "<" D " parameter name=\"%s\"%s>", PICK(keys), PICK(flags));
            put_value(b, seed);
            ds_buf_puts(b, PICK(param_ends));
        }
        ds_buf_puts(b, PICK(seps));
        if (help_random(seed) % 6)
            ds_buf_puts(b, INV_END);
    }
    ds_buf_puts(b, PICK(seps));
    if (help_random(seed) % 6)
        ds_buf_puts(b, CLOSE);
    if (help_random(seed) % 3 == 0)
        put_text(b, seed, 3);
    if (help_random(seed) % 4 == 0 && b->len)
        b->len = help_random(seed) % b->len; /* cut anywhere, also in a character */
}

static void all_the_same(void **state)
{
    static const char *const stops[] = { "END",
                                         "\n\n",
                                         "E",
                                         ("\xe6\x97\xa5"
                                          "END"),
                                         "</t",
                                         "]" };
    static const size_t lens[] = { 3, 2, 1, 6, 3, 1 };
    ds_buf text = { 0 }, log = { 0 };
    uint64_t seed = 20261129;
    size_t calls = 0, bytes = 0;

    (void)state;
    for (unsigned i = 0; i < OUTPUTS; i++) {
        uint64_t bits = help_random(&seed);
        ds_parser_opts o = {
            .start = (ds_parser_start)(bits & 7) % 5,
            .tools = bits >> 3 & 3   ? DS_PARSER_TOOLS_ON
                     : bits >> 5 & 1 ? DS_PARSER_TOOLS_OFF
                                     : DS_PARSER_TOOLS_SUPPRESS,
            .json_mode = (bits >> 6 & 7) == 0,
            .strict_thinking = (bits >> 9 & 3) == 0,
            .preserve_newlines = (bits >> 11 & 3) == 0,
            .recover_orphan_invoke = bits >> 13 & 1,
            .repair_wrapper = bits >> 14 & 1,
            .stream_raw = (bits >> 15 & 7) == 0,
            .unknown_tool_as_content = (bits >> 18 & 3) == 0,
            .normalize_lookalikes = (bits >> 20 & 3) == 0,
            .coerce = bits >> 50 & 1,
            .flush_tail = bits >> 22 & 1,
            .keep_stop = bits >> 51 & 1,
            .max_calls = (bits >> 23 & 3) == 0,
            .max_value_bytes = (bits >> 25 & 3) == 0 ? 80 : 0, /* values, bodies and orphans meet their bound */
            .tool_flags = flags_of,
            .tool_has_key = has_key,
            .tool_key_types = key_types,
        };
        if (bits >> 27 & 1) {
            o.stops = stops + (bits >> 28) % 6;
            o.stop_bytes = lens + (bits >> 28) % 6;
            o.n_stops = 1 + (bits >> 32) % (6 - (bits >> 28) % 6);
        }
        ds_parser_stats stats;
        ds_buf_clear(&text);
        put_output(&text, &seed);
        parse_every_way(&o, ds_buf_str(&text), text.len, (ds_backend_end)(bits >> 40 & 3), 100, &log, &stats);
        calls += stats.calls;
        bytes += text.len;
    }
    assert_true(calls > OUTPUTS / 8 && bytes > OUTPUTS * 80); /* the generator still makes what it should */
    ds_buf_free(&text);
    ds_buf_free(&log);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(all_the_same) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
