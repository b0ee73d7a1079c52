/* deepserve tokenize: text to token ids, ids to text. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ds/tokenizer.h>

#include "base/buf.h"
#include "base/json.h"
#include "cli/input.h"

typedef struct {
    const char *tokenizer;
    bool decode;
    bool pieces;
} options;

static const ds_opt table[] = {
    { .name = "tokenizer",
      .type = DS_OPT_STR,
      .offset = offsetof(options, tokenizer),
      .arg = "F.json",
      .required = true,
      .help = "tokenizer.json of the model" },
    { .name = "decode", .type = DS_OPT_FLAG, .offset = offsetof(options, decode), .help = "read a JSON array of ids, write their bytes" },
    { .name = "pieces",
      .type = DS_OPT_FLAG,
      .offset = offsetof(options, pieces),
      .help = "with --decode: a JSON array with the text that is released after each id" },
    { 0 },
};

static const ds_opt_cmd command = {
    .command = "deepserve tokenize",
    .summary = "Writes the token ids of the text on standard input as a JSON array. No id is put in front, and text that spells a special "
               "token is text.\n"
               "With --decode the other way round; special tokens give their spelling. Ids outside the vocabulary are refused, "
               "but with --pieces, which shows\n"
               "what a stream does, they give nothing.",
    .usage = "--tokenizer F.json [--decode [--pieces]] < input",
    .example = "echo -n 'Hello world' | deepserve tokenize --tokenizer tokenizer.json",
    .opts = table,
};

static ds_rc encode(const ds_tokenizer *t, const ds_buf *in, ds_buf *out, ds_err *err)
{
    ds_encoder *e;
    ds_ids ids = { 0 };
    ds_rc rc = ds_encoder_create(&e, t, NULL, err);

    if (rc == DS_OK)
        rc = ds_encoder_text(e, ds_buf_str(in), in->len, &ids, err);
    if (rc == DS_OK) {
        ds_buf_putc(out, '[');
        for (size_t i = 0; i < ids.n; i++)
            ds_buf_printf(out, i ? ",%u" : "%u", ids.p[i]);
        ds_buf_puts(out, "]\n");
    }
    ds_ids_free(&ids);
    ds_encoder_destroy(e);
    return rc;
}

/* Bytes of all ids one after another. */
static void put_bytes(const ds_tokenizer *t, ds_token id, ds_buf *out)
{
    size_t n;
    const char *p = ds_tokenizer_bytes(t, id, &n);

    ds_buf_put(out, p, n);
}

static ds_rc decode_ids(const ds_tokenizer *t, const ds_json *list, bool pieces, ds_buf *out, ds_err *err)
{
    char *text = malloc(ds_decoder_room(t));
    size_t i = 0, unknown = 0;
    ds_decoder d;
    ds_rc rc = DS_OK;

    if (!text)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    ds_decoder_init(&d, t, true);
    if (pieces)
        ds_buf_putc(out, '[');
    for (const ds_json *v = list->child; v; v = v->next, i++) {
        uint64_t id;

        if (!ds_json_u64(v, &id)) {
            rc = ds_fail(err, DS_E_ARG, "standard input: element %zu of the array is no token id", i);
            break;
        }
        if (id >= ds_tokenizer_size(t) && !pieces) {
            rc = ds_fail(err, DS_E_ARG, "standard input: element %zu, %lu, is outside the vocabulary of %u ids", i, id,
                         ds_tokenizer_size(t));
            break;
        }
        if (id >= ds_tokenizer_size(t)) { /* a stream goes on (recipe 1.7) */
            unknown++;
            id = DS_TOKEN_NONE;
        }
        if (pieces) {
            if (i)
                ds_buf_putc(out, ',');
            ds_json_write_str(out, text, ds_decoder_push(&d, (ds_token)id, text, NULL), DS_JSON_COMPACT);
        } else {
            put_bytes(t, (ds_token)id, out);
        }
    }
    if (pieces)
        ds_buf_puts(out, "]\n");
    if (rc == DS_OK && unknown)
        fprintf(stderr, "deepserve tokenize: %zu of %zu ids are not in the vocabulary and gave nothing\n", unknown, i);
    free(text);
    return rc;
}

static ds_rc decode(const ds_tokenizer *t, const ds_buf *in, bool pieces, ds_buf *out, ds_err *err)
{
    ds_json_doc *doc;
    ds_rc rc = ds_json_parse(&doc, ds_buf_str(in), in->len, NULL, err);

    if (rc != DS_OK)
        return ds_err_prefix(err, rc, "standard input: ");
    if (ds_json_is(ds_json_root(doc), DS_JSON_ARRAY))
        rc = decode_ids(t, ds_json_root(doc), pieces, out, err);
    else
        rc = ds_fail(err, DS_E_ARG, "standard input: a JSON array of ids is needed, not %s", ds_json_type_name(ds_json_root(doc)));
    ds_json_free(doc);
    return rc;
}

int ds_cmd_tokenize(int argc, char **argv)
{
    options o = { 0 };
    ds_buf in = { 0 }, out = { 0 };
    ds_tokenizer *t = NULL;
    ds_err err = { 0 };
    ds_rc rc;
    int status = ds_cli_parse(&command, &o, argc, argv, NULL);

    if (status >= 0)
        return status;
    if (o.pieces && !o.decode)
        return ds_cli_wrong("tokenize", "--pieces needs --decode");
    rc = ds_tokenizer_open(&t, o.tokenizer, &err);
    if (rc == DS_OK)
        rc = ds_cli_read_all(STDIN_FILENO, "standard input", DS_TOKENIZER_TEXT_MAX, &in, &err);
    if (rc == DS_OK)
        rc = o.decode ? decode(t, &in, o.pieces, &out, &err) : encode(t, &in, &out, &err);
    if (rc == DS_OK && out.oom)
        rc = ds_fail(&err, DS_E_NOMEM, "out of memory");
    if (rc == DS_OK)
        rc = ds_cli_write_all(&out, &err);
    ds_buf_free(&in);
    ds_buf_free(&out);
    ds_tokenizer_destroy(t);
    return rc == DS_OK ? 0 : ds_cli_fail("tokenize", &err);
}
