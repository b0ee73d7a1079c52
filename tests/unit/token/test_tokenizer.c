/* Encoding, decoding and single tokens, on the small tokenizer of tests/golden/tokenizer. */
#include "test.h"

#include <ds/tokenizer.h>

#include "token/tokenizer_internal.h"

#define SMALL DS_TEST_ROOT "/tests/golden/tokenizer/small.json"

static ds_tokenizer *tok;

static int open_small(void **state)
{
    ds_err err;

    (void)state;
    if (ds_tokenizer_open(&tok, SMALL, &err) == DS_OK)
        return 0;
    print_error("%s\n", err.msg);
    return 1;
}

static int close_small(void **state)
{
    (void)state;
    ds_tokenizer_destroy(tok);
    return 0;
}

static size_t from_hex(const char *hex, size_t n, char *out)
{
    for (size_t i = 0; i < n / 2; i++) {
        unsigned v;
        sscanf(hex + 2 * i, "%2x", &v);
        out[i] = (char)v;
    }
    return n / 2;
}

static void ids_equal_peer(void **state)
{
    FILE *f = fopen(DS_TEST_ROOT "/tests/golden/tokenizer/vectors.txt", "r");
    static char line[1 << 16], text[1 << 15];
    ds_encoder *e;
    ds_err err;
    size_t n_lines = 0;

    (void)state;
    assert_non_null(f);
    assert_ok(ds_encoder_create(&e, tok, NULL, &err));
    while (fgets(line, sizeof line, f)) {
        ds_ids ids = { 0 };
        char *p = strchr(line, ' ');
        size_t n, i = 0;

        if (line[0] == '#')
            continue;
        n_lines++;
        n = from_hex(line, (size_t)(p - line), text);
        assert_ok(ds_encoder_text(e, text, n, &ids, &err));
        while (*p == ' ') {
            long want = strtol(p + 1, &p, 10);
            if (i >= ids.n || ids.p[i] != want)
                fail_msg("line %zu: id %zu is %d, the peer says %ld", n_lines, i, i < ids.n ? ids.p[i] : DS_TOKEN_NONE, want);
            i++;
        }
        assert_int_equal(i, ids.n);
        ds_ids_free(&ids);
    }
    assert_true(n_lines > 300);
    ds_encoder_destroy(e);
    fclose(f);
}

static void decode_gives_bytes_back(void **state)
{
    char text[256], out[1024];
    size_t at = 0;
    ds_ids ids = { 0 };
    ds_encoder *e;
    ds_err err;

    (void)state;
    for (int i = 0; i < 256; i++)
        text[i] = (char)(i * 37);
    assert_ok(ds_encoder_create(&e, tok, NULL, &err));
    assert_ok(ds_encoder_text(e, text, sizeof text, &ids, &err));
    for (size_t i = 0; i < ids.n; i++) {
        size_t n;
        const char *p = ds_tokenizer_bytes(tok, ids.p[i], &n);
        memcpy(out + at, p, n);
        at += n;
    }
    assert_int_equal(at, sizeof text);
    assert_memory_equal(out, text, at);
    ds_ids_free(&ids);
    ds_encoder_destroy(e);
}

static void invalid_bytes_are_pieces(void **state)
{
    /* each byte that is no UTF-8 is one token, and a border for what stands around it */
    static const char text[] = "the\xe6\xbc\xe6\xbc\xa2\xffthe\xc0\x80\xed\xa0\x80";
    static const char *const want[] = { "the", "\xe6", "\xbc", "漢", "\xff", "the", "\xc0", "\x80", "\xed", "\xa0", "\x80" };
    ds_ids ids = { 0 };
    size_t i = 0, at = 0;
    ds_encoder *e;
    ds_err err;

    (void)state;
    assert_ok(ds_encoder_create(&e, tok, NULL, &err));
    assert_ok(ds_encoder_text(e, text, sizeof text - 1, &ids, &err));
    for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
        ds_ids part = { 0 };
        assert_ok(ds_encoder_text(e, want[k], strlen(want[k]), &part, &err));
        if (strlen(want[k]) == 1)
            assert_int_equal(part.n, 1);
        for (size_t j = 0; j < part.n; j++, i++) {
            assert_true(i < ids.n);
            assert_int_equal(ids.p[i], part.p[j]);
        }
        at += strlen(want[k]);
        ds_ids_free(&part);
    }
    assert_int_equal(i, ids.n);
    assert_int_equal(at, sizeof text - 1);
    ds_ids_free(&ids);
    ds_encoder_destroy(e);
}

static void runs_join_text_and_keep_control(void **state)
{
    static const ds_run runs[] = {
        { "<｜User｜>", sizeof "<｜User｜>" - 1, true },
        { "th", 2, false },
        { "", 0, false },
        { "e quick", 7, false },
        { "<think>", 7, true },
        { "<think>", 7, false },
        { "</think>", 8, true },
    };
    static const ds_run unknown[] = { { "the", 3, false }, { "the", 3, true } };
    ds_ids got = { 0 }, want = { 0 };
    ds_encoder *e;
    ds_err err;

    (void)state;
    assert_ok(ds_encoder_create(&e, tok, NULL, &err));
    assert_ok(ds_encoder_runs(e, runs, sizeof runs / sizeof *runs, &got, &err));
    assert_true(ds_ids_reserve(&want, 64));
    want.p[want.n++] = ds_tokenizer_control(tok, "<｜User｜>");
    assert_ok(ds_encoder_text(e, "the quick", 9, &want, &err));
    want.p[want.n++] = ds_tokenizer_control(tok, "<think>");
    assert_ok(ds_encoder_text(e, "<think>", 7, &want, &err));
    want.p[want.n++] = ds_tokenizer_control(tok, "</think>");
    assert_int_equal(got.n, want.n);
    assert_memory_equal(got.p, want.p, got.n * sizeof *got.p);
    /* a vocabulary word is no control token; what was there stays */
    assert_refused(ds_encoder_runs(e, unknown, 2, &got, &err), DS_E_ARG, "no added token \"the\"");
    assert_int_equal(got.n, want.n);
    ds_ids_free(&got);
    ds_ids_free(&want);
    ds_encoder_destroy(e);
}

static void kinds_follow_the_spelling(void **state)
{
    static const struct {
        const char *spelling;
        ds_token_kind kind;
    } cases[] = {
        { "<｜begin▁of▁sentence｜>", DS_TOKEN_DROPPED },
        { "<｜▁pad▁｜>", DS_TOKEN_DROPPED },
        { "<｜place▁holder▁no▁0｜>", DS_TOKEN_DROPPED },
        { "<|place_holder_mm_span_0021|>", DS_TOKEN_DROPPED },
        { "</think>", DS_TOKEN_CONTROL },
        { "｜DSML｜", DS_TOKEN_CONTROL },
        { "<｜deepseek_image｜>", DS_TOKEN_DROPPED },
    };
    size_t n;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t id = ds_tokenizer_control(tok, cases[i].spelling);
        assert_int_equal(ds_tokenizer_kind(tok, id), cases[i].kind);
        assert_string_equal(ds_tokenizer_bytes(tok, id, &n)[0] ? "text" : "none", "text");
        assert_int_equal(n, strlen(cases[i].spelling));
    }
    assert_int_equal(ds_tokenizer_kind(tok, 0), DS_TOKEN_TEXT);
    assert_int_equal(ds_tokenizer_size(tok), 512);
    assert_int_equal(ds_tokenizer_kind(tok, 512), DS_TOKEN_UNKNOWN);
    assert_int_equal(ds_tokenizer_control(tok, "the"), DS_TOKEN_NONE);
    assert_int_equal(ds_tokenizer_control(tok, ""), DS_TOKEN_NONE);
    ds_tokenizer_bytes(tok, 512, &n);
    assert_int_equal(n, 0);
}

/* Pushes one-byte tokens; joined output in out. Returns the tokens accounted for. */
static size_t push_bytes(const char *bytes, size_t n, char *out, size_t *wrote)
{
    ds_decoder d;
    size_t tokens = 0;
    uint32_t k;

    ds_decoder_init(&d, tok, false);
    *wrote = 0;
    for (size_t i = 0; i < n; i++) {
        size_t w = ds_decoder_push(&d, tok->byte_id[(unsigned char)bytes[i]], out + *wrote, &k);
        if (w == 0)
            assert_int_equal(k, 0);
        *wrote += w;
        tokens += k;
    }
    *wrote += ds_decoder_finish(&d, true, out + *wrote, &k);
    return tokens + k;
}

static void decoder_replaces_maximal_subparts(void **state)
{
    static const struct {
        const char *in, *out;
    } cases[] = {
        { "a", "a" },
        { "\xf0\x9f\xa6\x80", "🦀" },
        { "\xef\xbf\xbd", "\xef\xbf\xbd" }, /* a genuine U+FFFD */
        { "\xe4\xb8"
          "a",
          "\xef\xbf\xbd"
          "a" }, /* one character cut short: one replacement */
        { "\xe4\xb8\xe4\xb8\xad", "\xef\xbf\xbd中" },
        { "\xff\xfe", "\xef\xbf\xbd\xef\xbf\xbd" },
        { "\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" }, /* a surrogate has no valid beginning */
        { "\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xe0\x9f\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xf0\x9f\xa6", "\xef\xbf\xbd" }, /* the end: asked to replace */
        { "\xf0\x9f\xa6\xf0\x9f\xa6\x80", "\xef\xbf\xbd🦀" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[256];
        size_t wrote, n = strlen(cases[i].in);
        assert_int_equal(push_bytes(cases[i].in, n, out, &wrote), n);
        out[wrote] = '\0';
        assert_string_equal(out, cases[i].out);
    }
}

static void decoder_accounts_for_tokens(void **state)
{
    uint32_t user = ds_tokenizer_control(tok, "<｜User｜>"), bos = ds_tokenizer_control(tok, "<｜begin▁of▁sentence｜>");
    char *out = malloc(ds_decoder_room(tok));
    ds_decoder d;
    uint32_t n;

    (void)state;
    ds_decoder_init(&d, tok, false);
    assert_int_equal(ds_decoder_push(&d, tok->byte_id[0xf0], out, &n), 0);
    assert_int_equal(n, 0);
    assert_int_equal(ds_decoder_push(&d, bos, out, &n), 0); /* dropped, and counts with what is held */
    assert_int_equal(n, 0);
    assert_int_equal(ds_decoder_push(&d, tok->byte_id[0x9f], out, &n), 0);
    assert_int_equal(ds_decoder_push(&d, tok->byte_id[0xa6], out, &n), 0);
    assert_int_equal(ds_decoder_push(&d, tok->byte_id[0x80], out, &n), 4);
    assert_int_equal(n, 5);
    assert_int_equal(ds_decoder_push(&d, bos, out, &n), 0);
    assert_int_equal(n, 1);
    assert_int_equal(ds_decoder_push(&d, 12345678, out, &n), 0); /* no such id */
    assert_int_equal(n, 1);
    assert_int_equal(ds_decoder_push(&d, user, out, &n), strlen("<｜User｜>"));
    assert_int_equal(n, 1);
    /* a tail that never completes is dropped with its token */
    assert_int_equal(ds_decoder_push(&d, tok->byte_id[0xe4], out, &n), 0);
    assert_int_equal(ds_decoder_finish(&d, false, out, &n), 0);
    assert_int_equal(n, 0);
    /* an invalid byte gives way at once to what follows */
    assert_int_equal(ds_decoder_push(&d, tok->byte_id[0xe4], out, &n), 0);
    assert_int_equal(ds_decoder_push(&d, tok->byte_id['a'], out, &n), 4);
    assert_int_equal(n, 2);
    ds_decoder_init(&d, tok, true);
    assert_int_equal(ds_decoder_push(&d, bos, out, &n), strlen("<｜begin▁of▁sentence｜>"));
    free(out);
}

static void threads_give_the_same_ids(void **state)
{
    static const char *const words[] = { "the ", "quick\n", "漢字",    "、",      "12345",     "  ",
                                         "\xff", "don't ",  "(x)\n\n", "Привет ", "e\xcc\x81", "\xe6\xbc" };
    size_t cap = 1 << 20, n = 0, n_words = sizeof words / sizeof *words;
    char *text = malloc(cap);
    ds_encoder *one, *four;
    ds_err err;
    uint64_t r = 1;

    (void)state;
    while (n + 64 < cap) {
        r = r * 6364136223846793005u + 1442695040888963407u;
        const char *w = words[(r >> 33) % n_words];
        memcpy(text + n, w, strlen(w));
        n += strlen(w);
    }
    assert_ok(ds_encoder_create(&one, tok, NULL, &err));
    assert_ok(ds_encoder_create(&four, tok, &(ds_encoder_opts){ .n_threads = 4, .cache_entries = 1024 }, &err));
    for (int round = 0; round < 3; round++) {
        ds_ids a = { 0 }, b = { 0 };
        size_t len = n - (size_t)round * 777;
        assert_ok(ds_encoder_text(one, text, len, &a, &err));
        assert_ok(ds_encoder_text(four, text, len, &b, &err));
        assert_int_equal(a.n, b.n);
        assert_memory_equal(a.p, b.p, a.n * sizeof *a.p);
        ds_ids_free(&a);
        ds_ids_free(&b);
    }
    /* a batch: short and long items, empty ones too */
    const char *items[300];
    size_t lens[300], ends[300], at = 0;
    for (size_t i = 0; i < 300; i++) {
        items[i] = text + i * 997;
        lens[i] = i == 7 ? 300000 : (i * i) % 2000;
    }
    ds_ids all = { 0 };
    assert_ok(ds_encoder_batch(four, items, lens, 300, &all, ends, &err));
    for (size_t i = 0; i < 300; i++) {
        ds_ids a = { 0 };
        assert_ok(ds_encoder_text(one, items[i], lens[i], &a, &err));
        assert_int_equal(ends[i] - at, a.n);
        if (a.n)
            assert_memory_equal(all.p + at, a.p, a.n * sizeof *a.p);
        at = ends[i];
        ds_ids_free(&a);
    }
    assert_int_equal(at, all.n);
    ds_ids_free(&all);
    ds_encoder_destroy(one);
    ds_encoder_destroy(four);
    free(text);
}

/* The heap and the scanned array are two bodies of one rule. */
static void long_pieces_equal_short_ones(void **state)
{
    static const char *const units[] = { " ", "e", "漢字", "th", "a", "\t" };
    ds_encoder *e;
    ds_err err;

    (void)state;
    assert_ok(ds_encoder_create(&e, tok, NULL, &err));
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t len = strlen(units[u]), n = 200000 / len * len;
        char *text = malloc(n);
        ds_ids ids = { 0 };
        size_t at = 0;
        for (size_t i = 0; i < n; i += len)
            memcpy(text + i, units[u], len);
        assert_ok(ds_encoder_text(e, text, n, &ids, &err));
        for (size_t i = 0; i < ids.n; i++) {
            size_t k;
            const char *p = ds_tokenizer_bytes(tok, ids.p[i], &k);
            assert_memory_equal(text + at, p, k);
            at += k;
        }
        assert_int_equal(at, n);
        ds_ids_free(&ids);
        free(text);
    }
    ds_encoder_destroy(e);
}

static void limits_are_refused(void **state)
{
    ds_encoder *e;
    ds_ids ids = { 0 };
    ds_err err;

    (void)state;
    assert_refused(ds_encoder_create(&e, tok, &(ds_encoder_opts){ .n_threads = 65 }, &err), DS_E_ARG, "65 threads");
    assert_null(e);
    assert_ok(ds_encoder_create(&e, tok, NULL, &err));
    assert_refused(ds_encoder_text(e, "", (size_t)DS_TOKENIZER_TEXT_MAX + 1, &ids, &err), DS_E_ARG, "1073741825 bytes");
    const ds_run runs[] = { { "", DS_TOKENIZER_TEXT_MAX, false }, { "", DS_TOKENIZER_TEXT_MAX, false } };
    assert_refused(ds_encoder_runs(e, runs, 2, &ids, &err), DS_E_ARG, "text of more than");
    assert_ok(ds_encoder_text(e, NULL, 0, &ids, &err));
    assert_int_equal(ids.n, 0);
    ds_encoder_destroy(e);
}

static void engram_classes_fold(void **state)
{
    uint32_t map[512], n;
    ds_err err;

    (void)state;
    assert_ok(ds_tokenizer_engram_map(tok, map, &n, &err));
    assert_true(n < 512 && n > 256);
    assert_int_equal(map[tok->byte_id['a']], map[tok->byte_id['A']]);
    assert_int_equal(map[tok->byte_id['\n']], map[tok->byte_id[' ']]); /* both are one space, which is protected */
    assert_int_not_equal(map[tok->byte_id['a']], map[tok->byte_id['b']]);
    assert_int_not_equal(map[tok->byte_id[0xe4]], map[tok->byte_id[0xe5]]); /* no text: keyed by their spelling */
    for (uint32_t id = 0, next = 0; id < 512; id++) {
        assert_true(map[id] <= next); /* numbered by first appearance */
        next += map[id] == next;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_equal_peer),
        cmocka_unit_test(decode_gives_bytes_back),
        cmocka_unit_test(invalid_bytes_are_pieces),
        cmocka_unit_test(runs_join_text_and_keep_control),
        cmocka_unit_test(kinds_follow_the_spelling),
        cmocka_unit_test(decoder_replaces_maximal_subparts),
        cmocka_unit_test(decoder_accounts_for_tokens),
        cmocka_unit_test(threads_give_the_same_ids),
        cmocka_unit_test(long_pieces_equal_short_ones),
        cmocka_unit_test(limits_are_refused),
        cmocka_unit_test(engram_classes_fold),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, open_small, close_small);
}
