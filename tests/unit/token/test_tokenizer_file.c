/* tokenizer.json: what is accepted, what is refused and how. Files are made from one small valid one by replacing a
 * part. */
#include "test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ds/tokenizer.h>

#include "base/buf.h"
#include "base/utf8.h"
#include "fault.h"
#include "token/tokenizer_internal.h"

/* The parts of a file; NULL: the usual one, "": left out. */
typedef struct {
    const char *version, *added, *normalizer, *splits, *decoder, *model_type, *more_vocab, *vocab_tail, *merges, *model_extra, *top_extra;
} parts;

#define SPLIT(pattern) "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern "\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}"

static void put_member(ds_buf *b, const char *key, const char *value, const char *usual)
{
    if (!value)
        value = usual;
    if (*value)
        ds_buf_printf(b, "%s\"%s\":%s", b->p[b->len - 1] == '{' ? "" : ",", key, value);
}

/* Bytes are ids 0..255; then "ab" 256, "abc" 257, "aa" 258 and an added token 259. */
static void make(ds_buf *b, const parts *p)
{
    uint16_t of_byte[256], of_char[0x144];

    ds_tok_alphabet(of_byte, of_char);
    ds_buf_clear(b);
    ds_buf_putc(b, '{');
    put_member(b, "version", p->version, "\"1.0\"");
    put_member(b, "added_tokens", p->added, "[{\"id\":259,\"content\":\"<x>\",\"special\":false}]");
    put_member(b, "normalizer", p->normalizer, "null");
    put_member(b, "pre_tokenizer", p->splits, "{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT(" ?[a-z]+") "," BYTE_LEVEL "]}");
    put_member(b, "decoder", p->decoder, "{\"type\":\"ByteLevel\"}");
    if (p->top_extra)
        ds_buf_printf(b, ",%s", p->top_extra);
    ds_buf_puts(b, ",\"model\":{");
    put_member(b, "type", p->model_type, "\"BPE\"");
    if (p->model_extra)
        ds_buf_printf(b, ",%s", p->model_extra);
    if (p->merges && p->merges[0] == '<') /* in front of the vocabulary */
        put_member(b, "merges", p->merges + 1, "");
    ds_buf_puts(b, b->p[b->len - 1] == '{' ? "\"vocab\":{" : ",\"vocab\":{");
    for (int i = 0; i < 256; i++) {
        char utf8[4];
        if (p->more_vocab && p->more_vocab[0] == '-' && i == 'z') /* one byte is missing */
            continue;
        ds_buf_putc(b, '"');
        if (of_byte[i] == '"' || of_byte[i] == '\\')
            ds_buf_putc(b, '\\');
        ds_buf_put(b, utf8, ds_utf8_encode(utf8, of_byte[i]));
        ds_buf_printf(b, "\":%d,", i);
    }
    ds_buf_puts(b, p->more_vocab ? p->more_vocab + 1 : "\"ab\":256,\"abc\":257,\"aa\":258");
    ds_buf_puts(b, p->vocab_tail ? p->vocab_tail : "}");
    if (!p->merges || p->merges[0] != '<')
        put_member(b, "merges", p->merges, "[\"a b\",[\"ab\",\"c\"],\"a a\"]");
    ds_buf_puts(b, "}}");
}

static ds_rc load(ds_tokenizer **t, const parts *p, ds_err *err)
{
    ds_buf b = { 0 };
    ds_rc rc;

    make(&b, p);
    rc = ds_tokenizer_parse(t, ds_buf_str(&b), b.len, err);
    ds_buf_free(&b);
    return rc;
}

static void check_ids(ds_tokenizer *t, const char *text, const uint32_t *want, size_t n)
{
    ds_ids ids = { 0 };
    ds_encoder *e;
    ds_err err;

    assert_ok(ds_encoder_create(&e, t, NULL, &err));
    assert_ok(ds_encoder_text(e, text, strlen(text), &ids, &err));
    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.p, want, n * sizeof *want);
    ds_ids_free(&ids);
    ds_encoder_destroy(e);
}

static void accepted_forms(void **state)
{
    static const parts forms[] = {
        { 0 },
        { .version = "" },
        { .merges = "<[\"a b\",\"ab c\",\"a a\"]" }, /* in front of the vocabulary */
        { .normalizer = "{\"normalizers\":[],\"type\":\"Sequence\"}" },
        { .splits = "{\"pretokenizers\":[{\"behavior\":\"Isolated\",\"invert\":false,\"pattern\":{\"Regex\":\" "
                    "?[a-z]+\"},\"type\":\"Split\"}," BYTE_LEVEL "],\"type\":\"Sequence\"}" },
        { .splits = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}" },
        { .decoder = "null" },
        { .model_extra =
              "\"dropout\":0.0,\"unk_token\":null,\"byte_fallback\":false,\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":null" },
        { .top_extra = "\"truncation\":{\"max\":[1,{}]},\"post_processor\":{\"type\":\"ByteLevel\"}" },
        { .added = "[{\"id\":259,\"content\":\"<x>\"},{\"id\":97,\"content\":\"a\"}]" }, /* a word of the vocabulary, under its own id */
    };
    static const uint32_t want[] = { 257, ' ', 256, 'x', 258, 'a', '\n', '<', 'x', '>' };

    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        ds_tokenizer *t;
        ds_err err;
        if (load(&t, &forms[i], &err) != DS_OK)
            fail_msg("form %zu: %s", i, err.msg);
        assert_int_equal(ds_tokenizer_size(t), 260);
        check_ids(t, "abc abxaaa\n<x>", want, 10);
        assert_int_equal(ds_tokenizer_control(t, "<x>"), 259);
        ds_tokenizer_destroy(t);
    }
}

static void refused_files(void **state)
{
    static const struct {
        parts p;
        const char *why;
    } cases[] = {
        { { .version = "\"2.0\"" }, "version \"2.0\"" },
        { { .model_type = "\"WordPiece\"" }, "type \"WordPiece\"" },
        { { .model_type = "" }, "the model has no type" },
        { { .normalizer = "{\"type\":\"NFC\"}" }, "the normalizer has type \"NFC\"" },
        { { .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}" }, "the normalizer is not empty" },
        { { .normalizer = "{}" }, "the normalizer is no Sequence" },
        { { .splits = "{\"type\":\"Whitespace\"}" }, "pre-tokenizer type \"Whitespace\"" },
        { { .splits = "{\"type\":\"Sequence\",\"pretokenizers\":[" BYTE_LEVEL "," SPLIT("a") "]}" }, "behind ByteLevel" },
        { { .splits = "{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT("a(") "," BYTE_LEVEL "]}" }, "split pattern, byte 2" },
        { { .splits = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":"
                      "\"Isolated\"}," BYTE_LEVEL "]}" },
          "a split by \"String\"" },
        { { .splits = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":"
                      "\"Removed\"}," BYTE_LEVEL "]}" },
          "Isolated" },
        { { .splits = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":"
                      "\"Isolated\",\"invert\":true}," BYTE_LEVEL "]}" },
          "inverted" },
        { { .splits = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}" }, "add_prefix_space" },
        { { .splits = "{\"type\":\"ByteLevel\"}" }, "add_prefix_space" },
        { { .splits = "" }, "no ByteLevel pre-tokenizer" },
        { { .splits = "null" }, "'n' where an object belongs" },
        { { .decoder = "{\"type\":\"WordPiece\"}" }, "the decoder has type" },
        { { .model_extra = "\"dropout\":0.1" }, "dropout" },
        { { .model_extra = "\"end_of_word_suffix\":\"</w>\"" }, "end_of_word_suffix" },
        { { .model_extra = "\"unk_token\":null,\"unk_token\":null" }, "the key \"unk_token\" twice" },
        { { .model_extra = "\"unk_token\":null,\"\\u0075nk_token\":null" }, "the key \"unk_token\" twice" },
        { { .top_extra = "\"x\":{\"a\":1,\"b\":{},\"a\":2}" }, "the key \"a\" twice" },
        { { .top_extra = "\"x\":01" }, "'1' where" },
        { { .top_extra = "\"x\":\"\\ud800\"" }, "lone surrogate" },
        { { .top_extra = "\"x\":\"\xff\"" }, "byte 0xff is not UTF-8" },
        { { .top_extra = "\"x\":\"a\nb\"" }, "byte 0x0a where a character of a string belongs" },
        { { .top_extra = "\"x\":[1,]" }, "']' where a value belongs" },
        { { .top_extra = "\"x\":nul" }, "where a value belongs" },
        { { .more_vocab = "+\"ab\":256,\"abc\":257,\"aa\":258,\"ab\":260" }, "the vocabulary has \"ab\" twice" },
        { { .more_vocab = "+\"ab\":256,\"abc\":257,\"aa\":256" }, "id 256 twice" },
        { { .more_vocab = "+\"ab\":256,\"abc\":257,\"aa\":258,\"\":260" }, "an empty token" },
        { { .more_vocab = "+\"ab\":256,\"abc\":257,\"aa\":258,\"q\\u00e9\":261" }, "no token has id 260" },
        { { .more_vocab = "+\"ab\":256,\"abc\":257,\"aa\":-1" }, "-1 is no integer" },
        { { .more_vocab = "+\"ab\":256,\"abc\":257,\"aa\":258.0" }, "258.0 is no integer" },
        { { .more_vocab = "+\"ab\":256,\"abc\":257,\"aa\":\"258\"" }, "where an integer belongs" },
        { { .more_vocab = "+\"ab\":256,\"abc\":257,\"aa\":99999999999" }, "is no integer of 0 to" },
        { { .more_vocab = "-\"ab\":256,\"abc\":257,\"aa\":258,\"zz\":122" }, "no token for byte 0x7a" },
        { { .merges = "[\"a b\",\"ab c\",\"a q\"]" }, "its result \"aq\" is not in the vocabulary" },
        { { .merges = "[\"a b\",\"abq c\"]" }, "merge 1: \"abq\" is not in the vocabulary" },
        { { .merges = "[\"a  b\"]" }, "merge 0 is not two tokens" },
        { { .merges = "[\"ab\"]" }, "merge 0 is not two tokens" },
        { { .merges = "[\" ab\"]" }, "merge 0 has an empty half" },
        { { .merges = "[[\"a\"]]" }, "merge 0 has 1 halves" },
        { { .merges = "[[\"a\",\"b\",\"c\"]]" }, "more than two halves" },
        { { .merges = "[\"a b\",\"a b\"]" }, "merge 1 is the same as merge 0" },
        { { .merges = "[3]" }, "where a string belongs" },
        { { .merges = "{}" }, "where an array belongs" },
        { { .merges = "" }, "the model has no merges" },
        { { .added = "[{\"id\":259}]" }, "an added token without content" },
        { { .added = "[{\"content\":\"x\"}]" }, "an added token without id" },
        { { .added = "[{\"id\":259,\"content\":\"\"}]" }, "added token 259 is empty" },
        { { .added = "[{\"id\":259,\"content\":\"<x>\"},{\"id\":259,\"content\":\"<y>\"}]" }, "id 259 twice" },
        { { .added = "[{\"id\":259,\"content\":\"<x>\"},{\"id\":260,\"content\":\"<x>\"}]" }, "\"<x>\" twice" },
        { { .added = "[{\"id\":97,\"content\":\"<x>\"}]" }, "id 97 is one token in the vocabulary and another" },
        { { .added = "[{\"id\":259,\"content\":\"ab\"}]" }, "added token 259 stands in the vocabulary as id 256" },
        { { .added = "[{\"id\":260,\"content\":\"<x>\"}]" }, "no token has id 259" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds_tokenizer *t = (ds_tokenizer *)1;
        ds_err err = { 0 };
        ds_rc rc = load(&t, &cases[i].p, &err);
        if (rc != DS_E_FORMAT || !strstr(err.msg, cases[i].why) || strchr(err.msg, '\n'))
            fail_msg("case %zu: %d '%s', expected '%s'", i, rc, err.msg, cases[i].why);
        assert_null(t);
    }
}

static void every_beginning_is_refused(void **state)
{
    ds_buf b = { 0 };
    ds_err err;

    (void)state;
    make(&b, &(parts){ .top_extra = "\"x\":[true,false,null,-1.5e+3,\"\\u00e9\\ud83d\\ude00\\n\"]" });
    for (size_t n = 0; n < b.len; n++) {
        /* a block of exactly n bytes: the sanitizer sees any read behind it */
        char *copy = malloc(n ? n : 1);
        ds_tokenizer *t;
        memcpy(copy, b.p, n);
        assert_int_equal(ds_tokenizer_parse(&t, copy, n, &err), DS_E_FORMAT);
        free(copy);
    }
    ds_buf_putc(&b, 'x');
    ds_tokenizer *t;
    assert_refused(ds_tokenizer_parse(&t, b.p, b.len, &err), DS_E_FORMAT, "more text after the value");
    ds_buf_free(&b);
}

static void bounds_of_the_reader(void **state)
{
    char deep[200];
    ds_tokenizer *t;
    ds_err err;
    parts p = { .top_extra = deep };

    (void)state;
    for (size_t n = 63; n <= 64; n++) { /* inside the top object: 64 levels in all are the limit */
        strcpy(deep, "\"x\":");
        memset(deep + 4, '[', n);
        memset(deep + 4 + n, ']', n);
        deep[4 + 2 * n] = '\0';
        if (n == 63) {
            assert_ok(load(&t, &p, &err));
            ds_tokenizer_destroy(t);
        } else {
            assert_refused(load(&t, &p, &err), DS_E_FORMAT, "deeper than 64 levels");
        }
    }
    assert_refused(ds_tokenizer_parse(&t, "\xef\xbb\xbf{}", 5, &err), DS_E_FORMAT, "byte order mark");
    assert_refused(ds_tokenizer_parse(&t, "{}", 2, &err), DS_E_FORMAT, "no model");
    assert_refused(ds_tokenizer_parse(&t, "", 0, &err), DS_E_FORMAT, "line 1, column 1");
    assert_refused(ds_tokenizer_parse(&t, "{\n \"version\": 1}", 16, &err), DS_E_FORMAT, "line 2, column 13");
    assert_refused(ds_tokenizer_parse(&t, "{", (size_t)DS_TOKENIZER_FILE_MAX + 1, &err), DS_E_FORMAT, "the limit is 67108864");
}

static void what_is_no_regular_file(void **state)
{
    char dir[] = "/tmp/ds_tok_XXXXXX", path[64];
    ds_tokenizer *t;
    ds_err err;

    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_refused(ds_tokenizer_open(&t, dir, &err), DS_E_IO, "not a regular file");
    snprintf(path, sizeof path, "%s/a", dir);
    assert_refused(ds_tokenizer_open(&t, path, &err), DS_E_IO, "No such file");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_refused(ds_tokenizer_open(&t, path, &err), DS_E_IO, "not a regular file");
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_int_equal(ftruncate(fd, (off_t)DS_TOKENIZER_FILE_MAX + 1), 0);
    close(fd);
    assert_refused(ds_tokenizer_open(&t, path, &err), DS_E_FORMAT, "the limit is 67108864");
    assert_null(t);
    unlink(path);
    rmdir(dir);
}

static void pattern_gives_up(void **state)
{
    static const parts p = { .splits = "{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT("(a+)+[^a]") "," BYTE_LEVEL "]}" };
    ds_tokenizer *t;
    ds_encoder *e;
    ds_ids ids = { 0 };
    ds_err err;
    char text[64];

    (void)state;
    memset(text, 'a', sizeof text);
    assert_ok(load(&t, &p, &err));
    assert_ok(ds_encoder_create(&e, t, NULL, &err));
    assert_ok(ds_encoder_text(e, "aab", 3, &ids, &err));
    size_t n = ids.n;
    assert_refused(ds_encoder_text(e, text, sizeof text, &ids, &err), DS_E_ARG, "split pattern gives up");
    assert_int_equal(ids.n, n);
    ds_ids_free(&ids);
    ds_encoder_destroy(e);
    ds_tokenizer_destroy(t);
}

/* A file whose merges are in no trainer's order: the heap decides, and agrees with the scanned array. */
static void disordered_merges(void **state)
{
    static const parts p = { .merges = "[\"ab c\",\"a a\",\"a b\"]",
                             .splits = "{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT("[a-z]+") "," BYTE_LEVEL "]}" };
    ds_tokenizer *t;
    ds_encoder *e;
    ds_ids ids = { 0 };
    ds_err err;
    char text[1200];

    (void)state;
    assert_ok(load(&t, &p, &err));
    assert_false(t->ordered);
    /* "aaab" + "abc" again and again: aa, ab, abc */
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "aaababc"[i % 7];
    assert_ok(ds_encoder_create(&e, t, NULL, &err));
    assert_ok(ds_encoder_text(e, text, 70, &ids, &err)); /* scanned */
    size_t n = ids.n;
    assert_ok(ds_encoder_text(e, text, 1190, &ids, &err)); /* heap */
    for (size_t i = n; i < ids.n; i++)
        assert_int_equal(ids.p[i], ids.p[(i - n) % (n / 10)]);
    ds_ids_free(&ids);
    ds_encoder_destroy(e);
    ds_tokenizer_destroy(t);
}

/* A token that no merge makes is reached only as a whole piece, and only where the file says so. */
static void whole_pieces(void **state)
{
    static const char vocab[] = "+\"ab\":256,\"abc\":257,\"aa\":258,\"xyz\":260,\"\u00e6\u00bc\u00a2\":261";
    static const uint32_t merged[] = { 'x', 'y', 'z', '\n', 'x', 'y', 'z', 'a', '\n', 0xe6, 0xbc, 0xa2, 0xe5, 0xad, 0x97 };
    static const uint32_t whole[] = { 260, '\n', 'x', 'y', 'z', 'a', '\n', 0xe6, 0xbc, 0xa2, 0xe5, 0xad, 0x97 };
    parts p = { .more_vocab = vocab };
    ds_tokenizer *t;
    ds_err err;

    (void)state;
    assert_ok(load(&t, &p, &err));
    check_ids(t, "xyz\nxyza\n漢字", merged, 15);
    ds_tokenizer_destroy(t);
    p.model_extra = "\"ignore_merges\":true";
    assert_ok(load(&t, &p, &err));
    check_ids(t, "xyz\nxyza\n漢字", whole, 13);
    ds_tokenizer_destroy(t);
}

/* Strings are read eight bytes at a time: what ends or spoils one is seen at every place of every length. */
static void strings_of_every_length(void **state)
{
    static const struct {
        const char *in, *why;
    } cases[] = {
        { "", NULL },
        { "\\n", NULL },
        { "\xc3\xa9", NULL },
        { "\x7f", NULL },
        { "\xe2\x80\xa9", NULL },
        { "\xf0\x9f\xa6\x80", NULL },
        { "\x1f", "byte 0x1f where a character of a string belongs" },
        { "\\q", "'q' where an escape belongs" },
        { "\xc3", "byte 0xc3 is not UTF-8" },
        { "\xa9", "byte 0xa9 is not UTF-8" },
        { "\xed\xa0\x80", "byte 0xed is not UTF-8" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t n = 0; n < 26; n++) {
            for (size_t at = 0; at <= n; at++) {
                char text[64];
                ds_tokenizer *t;
                ds_err err = { 0 };
                snprintf(text, sizeof text, "\"x\":\"%.*s%s%.*s\"", (int)at, "abcdefghijklmnopqrstuvwxyz", cases[i].in, (int)(n - at),
                         "!#$%&'()*+,-./:;<=>?@[]^_`");
                ds_rc rc = load(&t, &(parts){ .top_extra = text }, &err);
                if (cases[i].why ? rc != DS_E_FORMAT || !strstr(err.msg, cases[i].why) : rc != DS_OK)
                    fail_msg("%s: %d '%s'", text, rc, err.msg);
                ds_tokenizer_destroy(t);
            }
        }
    }
}

/* More tokens than a file of its size was expected to have: every table grows. */
static void a_dense_file(void **state)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    ds_buf vocab = { 0 }, merges = { 0 }, text = { 0 };
    uint32_t want[64 * 64];
    ds_tokenizer *t;
    ds_err err;

    (void)state;
    ds_buf_putc(&vocab, '+');
    for (uint32_t i = 0; i < 64 * 64; i++) {
        ds_buf_printf(&vocab, "%s\"%c%c\":%u", i ? "," : "", letters[i / 64], letters[i % 64], 256 + i);
        ds_buf_printf(&merges, "%s\"%c %c\"", i ? "," : "[", letters[i / 64], letters[i % 64]);
        ds_buf_printf(&text, "%c%c", letters[i / 64], letters[i % 64]);
        want[i] = 256 + i;
    }
    ds_buf_putc(&merges, ']');
    parts p = { .more_vocab = ds_buf_str(&vocab),
                .merges = ds_buf_str(&merges),
                .added = "[]",
                .model_extra = "\"ignore_merges\":true",
                .splits = "{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT("..") "," BYTE_LEVEL "]}" };
    assert_ok(load(&t, &p, &err));
    assert_int_equal(ds_tokenizer_size(t), 256 + 64 * 64);
    check_ids(t, ds_buf_str(&text), want, 64 * 64);
    ds_tokenizer_destroy(t);
    p.model_extra = "\"ignore_merges\":false"; /* by the merges */
    assert_ok(load(&t, &p, &err));
    check_ids(t, ds_buf_str(&text), want, 64 * 64);
    ds_tokenizer_destroy(t);
    ds_buf_free(&vocab);
    ds_buf_free(&merges);
    ds_buf_free(&text);
}

static ds_rc attempt(void *ctx, ds_err *err)
{
    const ds_buf *b = ctx;
    ds_tokenizer *t;
    ds_encoder *e = NULL;
    ds_ids ids = { 0 };
    ds_rc rc = ds_tokenizer_parse(&t, b->p, b->len, err);
    static const ds_run runs[] = { { "<x>", 3, true }, { "abc", 3, false }, { "ab", 2, false } };
    char text[300];

    memset(text, 'a', sizeof text);
    if (rc == DS_OK)
        rc = ds_encoder_create(&e, t, NULL, err);
    if (rc == DS_OK)
        rc = ds_encoder_runs(e, runs, 3, &ids, err);
    if (rc == DS_OK)
        rc = ds_encoder_text(e, text, sizeof text, &ids, err);
    ds_ids_free(&ids);
    ds_encoder_destroy(e);
    ds_tokenizer_destroy(t);
    return rc;
}

static void failing_allocations(void **state)
{
    ds_buf b = { 0 };

    (void)state;
    make(&b, &(parts){ 0 });
    fault_every_allocation(attempt, &b);
    ds_buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted_forms),
        cmocka_unit_test(refused_files),
        cmocka_unit_test(every_beginning_is_refused),
        cmocka_unit_test(bounds_of_the_reader),
        cmocka_unit_test(what_is_no_regular_file),
        cmocka_unit_test(pattern_gives_up),
        cmocka_unit_test(disordered_merges),
        cmocka_unit_test(failing_allocations),
        cmocka_unit_test(whole_pieces),
        cmocka_unit_test(strings_of_every_length),
        cmocka_unit_test(a_dense_file),
    };
    return cmocka_run_group_tests_name("tokenizer file", tests, NULL, NULL);
}
