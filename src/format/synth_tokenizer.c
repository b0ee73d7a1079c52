/* tokenizer.json for random models: bytes and special tokens, no merges. tests/configs/README.md describes it. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "format/synth.h"

static const char *const first[3] = { "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>" };
static const char *const special[8] = {
    "<｜System｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜", "<｜latest_reminder｜>", "<｜deepseek_image｜>",
};

/* The released splits: digits by three, Chinese and Japanese runs, then words, punctuation and white space. */
static const char *const splits[3] = {
    "\\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
     "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"),
};

static void put_str(ds_buf *b, const char *s)
{
    ds_json_write_str(b, s, strlen(s), DS_JSON_COMPACT);
}

/* The printable character that stands for a byte. */
static uint32_t byte_character(uint32_t byte)
{
    uint32_t n = 0x100;
    for (uint32_t b = 0; b <= byte; b++) {
        bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (b == byte)
            return printable ? b : n;
        n += !printable;
    }
    return 0;
}

static void put_added(ds_buf *b, uint32_t id, const char *content, bool is_special)
{
    ds_buf_printf(b, "%s\n{\"id\":%u,\"content\":", id ? "," : "", id);
    put_str(b, content);
    ds_buf_printf(b, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":%s,\"special\":%s}",
                  is_special ? "false" : "true", is_special ? "true" : "false");
}

void ds_synth_tokenizer(ds_buf *b, uint32_t vocab_size)
{
    char name[64];

    ds_buf_puts(b, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    for (uint32_t i = 0; i < 3; i++)
        put_added(b, i, first[i], true);
    for (uint32_t i = 259; i < vocab_size; i++) {
        uint32_t k = i - 259;
        if (k >= 8)
            snprintf(name, sizeof name, "<｜place▁holder▁no▁%u｜>", k - 8);
        put_added(b, i, k < 8 ? special[k] : name, k != 0); /* <｜System｜> isn't special in the released file either */
    }
    ds_buf_puts(
        b, "],\n\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[]},\n\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (uint32_t i = 0; i < 3; i++) {
        ds_buf_puts(b, "\n{\"type\":\"Split\",\"pattern\":{\"Regex\":");
        put_str(b, splits[i]);
        ds_buf_puts(b, "},\"behavior\":\"Isolated\",\"invert\":false},");
    }
    ds_buf_puts(
        b, "\n{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}]},\n"
           "\"post_processor\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":false,\"use_regex\":true},\n"
           "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},\n"
           "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
           "\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{");
    for (uint32_t i = 0; i < 3; i++) {
        put_str(b, first[i]);
        ds_buf_printf(b, ":%u,", i);
    }
    for (uint32_t i = 0; i < 256; i++) {
        char c[5] = "";
        ds_utf8_encode(c, byte_character(i));
        put_str(b, c);
        ds_buf_printf(b, ":%u%s", 3 + i, i < 255 ? "," : "");
    }
    ds_buf_puts(b, "},\"merges\":[]}}\n");
}
