#include "base/utf8.h"
#include "test.h"

/* What the standard says, one code point at a time: the only valid form of cp, or none. */
static size_t encode_plainly(unsigned char *out, uint32_t cp)
{
    if (cp < 0x80) {
        out[0] = (unsigned char)cp;
        return 1;
    }
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, cp >>= 6)
        out[i] = (unsigned char)(0x80 | (cp & 0x3f));
    out[0] = (unsigned char)(cp | (n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0));
    return n;
}

static void every_code_point(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp <= 0x110400; cp++) {
        unsigned char want[4];
        char got[4];
        uint32_t back = 0;
        size_t n = encode_plainly(want, cp);
        bool legal = cp <= 0x10ffff && !(cp >= 0xd800 && cp < 0xe000);

        if (ds_utf8_decode((char *)want, n, &back) != (legal ? n : 0) || ds_utf8_valid((char *)want, n) != legal)
            fail_msg("U+%04X", cp);
        if (!legal)
            continue;
        if (back != cp || ds_utf8_encode(got, cp) != n || memcmp(got, want, n) != 0)
            fail_msg("U+%04X", cp);
        for (size_t cut = 1; cut < n; cut++) { /* incomplete */
            bool open = false;
            if (ds_utf8_decode(got, cut, &back) != 0 || ds_utf8_valid(got, cut) || ds_utf8_bad(got, cut, &open) != cut || !open)
                fail_msg("U+%04X, %zu bytes of it", cp, cut);
        }
    }
}

/* All texts of three bytes from a set that has every class of byte: validation agrees with decoding. */
static void every_mixture(void **state)
{
    static const unsigned char set[] = { 0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf,
                                         0xe0, 0xe1, 0xec, 0xed, 0xee, 0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xff };
    enum { N = sizeof set };

    (void)state;
    for (size_t k = 0; k < (size_t)N * N * N * N; k++) {
        const char s[4] = { (char)set[k % N], (char)set[k / N % N], (char)set[k / N / N % N], (char)set[k / N / N / N] };
        bool valid = true;
        uint32_t cp;
        for (size_t i = 0; i < 4 && valid;) {
            size_t n = ds_utf8_decode(s + i, 4 - i, &cp);
            valid = n > 0;
            i += n;
        }
        if (ds_utf8_valid(s, 4) != valid)
            fail_msg("%02x %02x %02x %02x", (unsigned char)s[0], (unsigned char)s[1], (unsigned char)s[2], (unsigned char)s[3]);
    }
}

/* The fast path for ASCII steps by 16 bytes: a bad byte anywhere is found, a good character anywhere isn't. */
static void every_position(void **state)
{
    char s[70];

    (void)state;
    for (size_t n = 0; n <= sizeof s; n++)
        for (size_t i = 0; i < n; i++) {
            memset(s, 'a', sizeof s);
            assert_true(ds_utf8_valid(s, n));
            s[i] = (char)0xff;
            assert_false(ds_utf8_valid(s, n));
            memset(s, 'a', sizeof s);
            if (i + 4 <= n) {
                memcpy(s + i, "\xf0\x9f\x98\x80", 4);
                assert_true(ds_utf8_valid(s, n));
                assert_false(ds_utf8_valid(s, i + 3));
            }
        }
}

/* As Python's bytes.decode(errors="replace") cuts them. */
static void bad_pieces(void **state)
{
    static const struct {
        const char *s;
        size_t n, piece;
        bool cut;
    } cases[] = {
        { "\x80", 1, 1, false },          { "\xff\xff", 2, 1, false },         { "\xc3", 1, 1, true },
        { "\xc3(", 2, 1, false },         { "\xe2\x82", 2, 2, true },          { "\xe2\x82(", 3, 2, false },
        { "\xe0\x80\x80", 3, 1, false },  { "\xed\xa0\x80", 3, 1, false },     { "\xf0\x9f\x98", 3, 3, true },
        { "\xf0\x9f\x98(", 4, 3, false }, { "\xf0\x8f\x80\x80", 4, 1, false }, { "\xf4\x90\x80\x80", 4, 1, false },
        { "\xf5\x80", 2, 1, false },      { "\xc0\x80", 2, 1, false },         { "\xf4\x8f\xbf", 3, 3, true },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool cut;
        assert_int_equal(ds_utf8_bad(cases[i].s, cases[i].n, &cut), cases[i].piece);
        assert_int_equal(cut, cases[i].cut);
    }
}

static void where_text_can_be_cut(void **state)
{
    const char s[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z";
    static const size_t at[] = { 0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11 };

    (void)state;
    for (size_t n = 0; n < sizeof at / sizeof at[0]; n++)
        assert_int_equal(ds_utf8_floor(s, n), at[n]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point), cmocka_unit_test(every_mixture),         cmocka_unit_test(every_position),
        cmocka_unit_test(bad_pieces),       cmocka_unit_test(where_text_can_be_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
