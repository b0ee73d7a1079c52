/* Text on a small tokenizer that the target builds itself: ids give the bytes back, cuts and threads don't change
 * them, decoded text is valid UTF-8 whatever the ids, and pieces joined are the same at every split.
 *
 * The first byte picks what is done; the rest is text, or with the highest bit set a list of 16-bit ids. */
#include <stdlib.h>
#include <string.h>

#include <ds/tokenizer.h>

#include "base/buf.h"
#include "base/utf8.h"
#include "token/tokenizer_internal.h"

#define CHECK(x)              \
    do {                      \
        if (!(x))             \
            __builtin_trap(); \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static ds_tokenizer *tok;
static ds_encoder *enc;

/* Tokens beyond the single bytes, each the result of one merge: runs, words, characters, and parts of characters. */
static const char *const merged[][2] = {
    { " ", " " },       { "  ", "  " }, { "a", "a" },        { "aa", "a" },          { "a", "b" },       { "t", "h" },
    { "th", "e" },      { " ", "the" }, { "\xe6", "\xbc" },  { "\xe6\xbc", "\xa2" }, { "\xe5", "\xad" }, { "\xe5\xad", "\x97" },
    { "\xa2", "\xe5" }, { "漢", "字" }, { " ", "\xe6\xbc" }, { "\n", "\n" },         { "\r", "\n" },     { "1", "2" },
    { "12", "3" },      { "字", "漢" }, { "\xbc", "\xa2" },
};

static void put_json(ds_buf *b, const char *bytes, const uint16_t of_byte[256])
{
    for (; *bytes; bytes++) {
        char utf8[4];
        if (*bytes == '"' || *bytes == '\\')
            ds_buf_putc(b, '\\');
        ds_buf_put(b, utf8, ds_utf8_encode(utf8, of_byte[(unsigned char)*bytes]));
    }
}

static void build(void)
{
    uint16_t of_byte[256], of_char[0x144];
    ds_buf b = { 0 };
    ds_err err;
    uint32_t id = 0;

    ds_tok_alphabet(of_byte, of_char);
    ds_buf_puts(&b, "{\"added_tokens\":[{\"id\":300,\"content\":\"<\xef\xbd\x9cUser\xef\xbd\x9c>\"},{\"id\":301,\"content\":\"<"
                    "\xef\xbd\x9cplace\xe2\x96\x81"
                    "holder\xe2\x96\x81no\xe2\x96\x81"
                    "7\xef\xbd\x9c>\"}],\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (int i = 0; i < 3; i++) {
        ds_buf_puts(&b, "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"");
        for (const char *p = ds_tok_released[i]; *p; p++) {
            if (*p == '\r' || *p == '\n') {
                ds_buf_puts(&b, *p == '\r' ? "\\r" : "\\n");
                continue;
            }
            if (*p == '"' || *p == '\\')
                ds_buf_putc(&b, '\\');
            ds_buf_putc(&b, *p);
        }
        ds_buf_puts(&b, "\"}},");
    }
    ds_buf_puts(&b, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (; id < 256; id++) {
        char utf8[4];
        ds_buf_puts(&b, id ? ",\"" : "\"");
        if (of_byte[id] == '"' || of_byte[id] == '\\')
            ds_buf_putc(&b, '\\');
        ds_buf_put(&b, utf8, ds_utf8_encode(utf8, of_byte[id]));
        ds_buf_printf(&b, "\":%u", id);
    }
    for (size_t i = 0; i < sizeof merged / sizeof *merged; i++) {
        ds_buf_puts(&b, ",\"");
        put_json(&b, merged[i][0], of_byte);
        put_json(&b, merged[i][1], of_byte);
        ds_buf_printf(&b, "\":%u", id++);
    }
    for (; id < 300; id++) /* unused ids: the numbers must have no holes */
        ds_buf_printf(&b, ",\"unused%u\":%u", id, id);
    ds_buf_puts(&b, "},\"merges\":[");
    for (size_t i = 0; i < sizeof merged / sizeof *merged; i++) {
        ds_buf_puts(&b, i ? ",[\"" : "[\"");
        put_json(&b, merged[i][0], of_byte);
        ds_buf_puts(&b, "\",\"");
        put_json(&b, merged[i][1], of_byte);
        ds_buf_puts(&b, "\"]");
    }
    ds_buf_puts(&b, "]}}");
    CHECK(ds_tokenizer_parse(&tok, ds_buf_str(&b), b.len, &err) == DS_OK);
    CHECK(tok->regex == NULL && tok->ordered);
    CHECK(ds_encoder_create(&enc, tok, &(ds_encoder_opts){ .cache_entries = 1024 }, &err) == DS_OK);
    ds_buf_free(&b);
}

static void encode(const char *text, size_t n, ds_ids *ids)
{
    ds_err err;

    CHECK(ds_encoder_text(enc, text, n, ids, &err) == DS_OK);
}

static void check_text(const char *text, size_t n, uint8_t where)
{
    ds_ids whole = { 0 }, parts = { 0 }, joined = { 0 };
    ds_err err;
    size_t at = 0, k = n ? where % n : 0, cut;

    encode(text, n, &whole);
    for (size_t i = 0; i < whole.n; i++) {
        size_t len;
        const char *p = ds_tokenizer_bytes(tok, whole.p[i], &len);
        CHECK(ds_tokenizer_kind(tok, whole.p[i]) == DS_TOKEN_TEXT);
        CHECK(len <= n - at && memcmp(p, text + at, len) == 0);
        at += len;
    }
    CHECK(at == n);
    cut = n ? ds_tok_safe_cut(tok, text, n, k) : 0;
    if (cut) {
        encode(text, cut, &parts);
        encode(text + cut, n - cut, &parts);
        CHECK(parts.n == whole.n && memcmp(parts.p, whole.p, whole.n * sizeof *whole.p) == 0);
    }
    /* runs of text that are cut anywhere are one text */
    const ds_run runs[] = { { text, k, false }, { text + k, n - k, false } };
    CHECK(ds_encoder_runs(enc, runs, 2, &joined, &err) == DS_OK);
    CHECK(joined.n == whole.n && (!whole.n || memcmp(joined.p, whole.p, whole.n * sizeof *whole.p) == 0));
    /* long pieces and short ones are merged by different bodies */
    if (n && n <= 96) {
        ds_tok_long *l = ds_tok_long_create(tok);
        ds_token ids[96];
        size_t m = 0, from = 0;
        CHECK(l);
        for (const uint8_t *p = (const uint8_t *)text, *end = p + n, *q; p < end; p = q, from += m) {
            q = ds_tok_scan(&tok->uc, p, end);
            m = ds_tok_long_merge(l, p, (size_t)(q - p), ids);
            CHECK(m && from + m <= whole.n && memcmp(ids, whole.p + from, m * sizeof *ids) == 0);
        }
        CHECK(from == whole.n);
        ds_tok_long_destroy(l);
    }
    ds_ids_free(&whole);
    ds_ids_free(&parts);
    ds_ids_free(&joined);
}

static void check_ids(const uint8_t *data, size_t n, bool keep)
{
    char *out = malloc(ds_decoder_room(tok));
    ds_decoder d;
    uint64_t tokens = 0;
    uint32_t k;
    ds_buf all = { 0 }, bytes = { 0 };

    ds_decoder_init(&d, tok, keep);
    for (size_t i = 0; i + 2 <= n; i += 2) {
        uint32_t id = (uint32_t)(data[i] | data[i + 1] << 8) % 320;
        size_t len, w = ds_decoder_push(&d, id, out, &k);
        const char *p = ds_tokenizer_bytes(tok, id, &len);
        CHECK(w <= ds_decoder_room(tok) && ds_utf8_valid(out, w));
        CHECK(d.n_held <= 3);
        tokens += k;
        ds_buf_put(&all, out, w);
        if (keep || ds_tokenizer_kind(tok, id) != DS_TOKEN_DROPPED)
            ds_buf_put(&bytes, p, len);
    }
    ds_buf_put(&all, out, ds_decoder_finish(&d, true, out, &k));
    CHECK(tokens + k <= n / 2);
    /* the same bytes one at a time */
    size_t at = 0;
    ds_decoder_init(&d, tok, keep);
    for (size_t i = 0; i < bytes.len; i++) {
        size_t w = ds_decoder_push(&d, tok->byte_id[(uint8_t)bytes.p[i]], out, NULL);
        CHECK(w <= all.len - at && memcmp(all.p + at, out, w) == 0);
        at += w;
    }
    at += ds_decoder_finish(&d, true, out, NULL);
    CHECK(at == all.len);
    ds_buf_free(&all);
    ds_buf_free(&bytes);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!tok)
        build();
    if (size == 0)
        return 0;
    if (data[0] & 0x80)
        check_ids(data + 1, size - 1, data[0] & 1);
    else
        check_text((const char *)data + 1, size - 1, data[0]);
    return 0;
}
