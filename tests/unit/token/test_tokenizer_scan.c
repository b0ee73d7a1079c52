/* The hand-written split against the same three patterns run by PCRE2, and the safe cuts, on random text. */
#include "test.h"

#include <ds/tokenizer.h>

#include "base/rng.h"
#include "base/utf8.h"
#include "token/tokenizer_internal.h"

#define SMALL DS_TEST_ROOT "/tests/golden/tokenizer/small.json"

static ds_tokenizer *tok;
static ds_tok_regex *regex;
static ds_tok_regex_ctx *ctx;

static int set_up(void **state)
{
    ds_err err;

    (void)state;
    if (ds_tokenizer_open(&tok, SMALL, &err) != DS_OK || ds_tok_regex_create(&regex, &err) != DS_OK)
        return 1;
    for (int i = 0; i < 3; i++) {
        if (ds_tok_regex_add(regex, ds_tok_released[i], strlen(ds_tok_released[i]), &err) != DS_OK)
            return 1;
    }
    return ds_tok_regex_ctx_create(&ctx, regex, &err) != DS_OK;
}

static int tear_down(void **state)
{
    (void)state;
    ds_tok_regex_ctx_destroy(ctx);
    ds_tok_regex_destroy(regex);
    ds_tokenizer_destroy(tok);
    return 0;
}

/* A text of characters from a few ranges in short runs; some bytes that are no UTF-8. */
static size_t random_text(uint64_t stream, char *out, size_t cap)
{
    static const struct {
        uint32_t from, n;
    } ranges[] = {
        { 0x20, 95 },  { 0x20, 1 },     { 0x0a, 1 },     { 0x0d, 1 },    { 0x09, 5 },    { 0x30, 10 },  { 0x00, 32 },    { 0x80, 128 },
        { 0x300, 16 }, { 0x3000, 256 }, { 0x4e00, 256 }, { 0x9fa0, 16 }, { 0x2000, 64 }, { 0x660, 10 }, { 0x1f600, 64 }, { 0xac00, 64 },
        { 0x61, 26 },  { 0x21, 15 },    { 0xff00, 128 }, { 0x2160, 16 }, { 0x370, 16 },  { 0x85, 1 },   { 0xe000, 2 },   { 0x10000, 256 },
    };
    size_t n = 0;
    uint64_t i = 0;
    size_t want = 1 + ds_rng_u64(3, stream, i++) % (cap - 40);

    while (n < want) {
        uint64_t r = ds_rng_u64(3, stream, i++);
        uint32_t run = 1 + (r >> 8) % 4, k = (uint32_t)(r % (sizeof ranges / sizeof *ranges));
        if ((r >> 16) % 40 == 0)
            out[n++] = (char)(0x80 + (r >> 24) % 0x80);
        while (run-- && n < want)
            n += ds_utf8_encode(out + n, ranges[k].from + (uint32_t)(ds_rng_u64(3, stream, i++) % ranges[k].n));
    }
    return n;
}

typedef struct {
    const char *p, *from;
    size_t text;
} walker;

static bool same_piece(void *arg, const char *p, size_t n)
{
    walker *w = arg;
    const uint8_t *end = ds_tok_scan(&tok->uc, (const uint8_t *)w->p, (const uint8_t *)w->from + w->text);

    if (p != w->p || (const uint8_t *)p + n != end) {
        fprintf(stderr, "text of %zu bytes, piece at %td: scanner to %td, patterns from %td to %td\n", w->text, w->p - w->from,
                end - (const uint8_t *)w->from, p - w->from, p + n - w->from);
        for (size_t i = 0; i < w->text; i++)
            fprintf(stderr, "%02x", (unsigned char)w->from[i]);
        fprintf(stderr, "\n");
        return false;
    }
    w->p = (const char *)end;
    return true;
}

static void scanner_equals_patterns(void **state)
{
    char text[256];
    ds_err err;

    (void)state;
    for (uint64_t i = 0; i < 40000; i++) {
        size_t n = random_text(i, text, sizeof text);
        walker w = { text, text, n };
        bool mongolian = memmem(text, n, "\xe1\xa0\x8e", 3); /* PCRE2 takes U+180E for white space */
        if (mongolian)
            continue;
        assert_ok(ds_tok_regex_split(ctx, text, n, same_piece, &w, &err));
        assert_ptr_equal(w.p, text + n);
    }
}

/* Encoding both sides of a safe cut alone gives the ids of the whole. */
static void cuts_are_safe(void **state)
{
    char text[256];
    size_t found = 0;
    ds_encoder *e;
    ds_err err;

    (void)state;
    assert_ok(ds_encoder_create(&e, tok, NULL, &err));
    for (uint64_t i = 0; i < 20000; i++) {
        size_t n = random_text(i + 1000000, text, sizeof text);
        size_t cut = ds_tok_safe_cut(tok, text, n, ds_rng_u64(5, 0, i) % n);
        ds_ids whole = { 0 }, parts = { 0 };
        if (cut == 0)
            continue;
        found++;
        assert_true(cut < n);
        assert_ok(ds_encoder_text(e, text, n, &whole, &err));
        assert_ok(ds_encoder_text(e, text, cut, &parts, &err));
        assert_ok(ds_encoder_text(e, text + cut, n - cut, &parts, &err));
        assert_int_equal(whole.n, parts.n);
        assert_memory_equal(whole.p, parts.p, whole.n * sizeof *whole.p);
        ds_ids_free(&whole);
        ds_ids_free(&parts);
    }
    assert_true(found > 10000);
    ds_encoder_destroy(e);
}

/* The numbers of characters that Unicode 16.0 has, and some that 15.1 and 16.0 brought. */
static void classes_are_of_unicode_16(void **state)
{
    static ds_uc_table t;
    static const struct {
        uint32_t cp;
        uint8_t class;
    } some[] = {
        { 0x1fae9, DS_UC_PUNCT },
        { 0x10d40, DS_UC_NUMBER },
        { 0x10d50, DS_UC_LETTER },
        { 0x1c89, DS_UC_LETTER },
        { 0x2ebf0, DS_UC_LETTER },
        { 0x1ccf0, DS_UC_NUMBER },
        { 0x2ffc, DS_UC_PUNCT },
        { 0x113b8, DS_UC_LETTER },
        { 0x378, 0 },
        { 0xfeff, 0 },
        { 0x180e, 0 },
        { 0x200b, 0 },
        { 0xd800, 0 },
        { 0xe000, 0 },
        { 0x10ffff, 0 },
        { 0x3000, DS_UC_SPACE },
        { 0x85, DS_UC_SPACE },
        { 0xa0, DS_UC_SPACE },
        { 0x2028, DS_UC_SPACE },
        { 0x4e00, DS_UC_LETTER | DS_UC_CJK },
    };
    uint32_t letters = 0, numbers = 0, puncts = 0, spaces = 0;

    (void)state;
    ds_uc_table_fill(&t);
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        uint8_t c = ds_uc_class(&t, cp);
        letters += (c & DS_UC_LETTER) != 0;
        numbers += (c & DS_UC_NUMBER) != 0;
        puncts += (c & DS_UC_PUNCT) != 0;
        spaces += (c & DS_UC_SPACE) != 0;
    }
    assert_int_equal(letters, 143529);
    assert_int_equal(numbers, 1911);
    assert_int_equal(puncts, 9369);
    assert_int_equal(spaces, 25);
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        assert_int_equal(ds_uc_class(&t, some[i].cp), some[i].class);
    assert_true(ds_uc_assigned('a') && ds_uc_assigned(0x31350) && ds_uc_assigned(0x10fffd));
    assert_false(ds_uc_assigned(0x378) || ds_uc_assigned(0x2ebf0) || ds_uc_assigned(0x10d50) || ds_uc_assigned(0x10ffff));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(classes_are_of_unicode_16), cmocka_unit_test(scanner_equals_patterns),
                                        cmocka_unit_test(cuts_are_safe) };
    return cmocka_run_group_tests_name("tokenizer scan", tests, set_up, tear_down);
}
