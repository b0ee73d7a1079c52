/* deepserve render: an API request as the prompt that the model sees. */
#include "cli/cli.h"
#include "cli/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ds/image.h>
#include <ds/recipe.h>

#include "base/buf.h"
#include "base/json.h"
#include "cli/input.h"

#define MAX_INPUT ((size_t)256 << 20)

typedef struct {
    int protocol, encoding;
    const char *tokenizer;
    ds_opt_list set;
    bool jsonl, fetch, members;
} options;

static const ds_opt table[] = {
    DS_CLI_OPT_PROTOCOL(offsetof(options, protocol), "what the body is written for"),
    DS_CLI_OPT_ENCODING(offsetof(options, encoding)),
    { .name = "tokenizer", .type = DS_OPT_STR, .offset = offsetof(options, tokenizer), .arg = "F.json", .help = "adds the token ids" },
    DS_CLI_OPT_SET(offsetof(options, set)),
    { .name = "fetch",
      .type = DS_OPT_FLAG,
      .offset = offsetof(options, fetch),
      .help = "fetch pictures behind http(s) addresses, for their size; without it such a picture has no size" },
    { .name = "members",
      .type = DS_OPT_FLAG,
      .offset = offsetof(options, members),
      .help = "writes the table of request members as Markdown instead" },
    { .name = "jsonl",
      .type = DS_OPT_FLAG,
      .offset = offsetof(options, jsonl),
      .help = "one body a line, one result line each; blank lines are skipped" },
    { 0 },
};

static const ds_opt_cmd command = {
    .command = "deepserve render",
    .summary =
        "Reads the body of an API request on standard input and writes the prompt, its runs of control tokens and text, and what "
        "else the engine is\n"
        "told, as one JSON object; a completions body gives one for each prompt. A refused request gives the protocol's error body and\n"
        "exit status 1.",
    .usage = "[--protocol P] [--encoding E] [--tokenizer F.json] [--set NAME=VALUE]... < body",
    .example = "echo '{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}' | deepserve render --protocol chat",
    .opts = table,
};

typedef struct {
    ds_proto proto;
    ds_recipe_opts opts;
    ds_encoder *encoder;
    bool fetch;
} renderer;

/* All pictures that come with the request are decoded, as the server would, but only for their size. Addresses are
 * fetched when asked. */
static ds_rc size_images(renderer *c, ds_request *r, ds_api_error *refusal, ds_err *err)
{
    uint32_t n = ds_request_info(r)->n_images;
    ds_picture *pictures = n ? calloc(n, sizeof *pictures) : NULL;
    ds_images_opts o;
    ds_rc rc;

    if (n == 0)
        return DS_OK;
    if (!pictures)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    ds_images_opts_init(&o);
    o.skip_urls = !c->fetch;
    o.max_inline_bytes = MAX_INPUT;
    o.prepare.size_only = true;
    o.prepare.limits.max_bytes = MAX_INPUT;
    o.prepare.limits.max_side = 65535;
    o.prepare.limits.max_pixels = (uint64_t)1 << 28;
    o.prepare.limits.max_memory = (size_t)1 << 31;
    o.prepare.limits.max_ms = 60000;
    rc = ds_request_images(r, pictures, &o, refusal, err);
    free(pictures); /* none has pixels */
    return rc;
}

/* One body to one line; each prompt of a completions body has its own. *refused: the line is an error body. */
static ds_rc one(renderer *c, const char *body, size_t n, ds_buf *out, bool *refused, ds_err *err)
{
    ds_request_parse_args args = { .proto = c->proto, .opts = &c->opts };
    ds_api_error refusal;
    ds_request *r = NULL;
    size_t start = out->len, n_json;
    char *json;
    ds_rc rc = ds_request_parse(&r, &args, body, n, &refusal, err);

    if (rc == DS_OK)
        rc = size_images(c, r, &refusal, err);
    for (uint32_t k = 0; rc == DS_OK && k < ds_request_info(r)->n_prompts; k++) {
        rc = ds_request_json(r, k, c->encoder, &json, &n_json, &refusal, err);
        if (rc != DS_OK)
            break;
        ds_buf_put(out, json, n_json);
        ds_buf_putc(out, '\n');
        ds_recipe_free(json);
        if (out->oom)
            rc = ds_fail(err, DS_E_NOMEM, "out of memory");
    }
    if (rc == DS_E_FORMAT) {
        size_t need = ds_api_error_body(NULL, 0, &refusal, c->proto, c->opts.openai_errors, NULL);

        *refused = true;
        out->len = start;
        if (ds_buf_reserve(out, need + 2)) {
            ds_api_error_body(out->p + out->len, need + 1, &refusal, c->proto, c->opts.openai_errors, NULL);
            out->len += need;
            ds_buf_putc(out, '\n');
        }
        rc = out->oom ? ds_fail(err, DS_E_NOMEM, "out of memory") : DS_OK;
    }
    if (rc != DS_OK)
        out->len = start;
    ds_request_destroy(r);
    return rc;
}

static ds_rc open_tokenizer(renderer *c, ds_tokenizer **t, const char *path, ds_err *err)
{
    ds_rc rc = ds_tokenizer_open(t, path, err);

    if (rc == DS_OK)
        rc = ds_encoder_create(&c->encoder, *t, NULL, err);
    if (rc == DS_OK)
        ds_recipe_opts_fit(&c->opts, *t);
    return rc;
}

static ds_rc render_lines(renderer *c, const ds_buf *in, bool *refused, ds_err *err)
{
    ds_buf out = { 0 };
    ds_rc rc = DS_OK;

    for (size_t at = 0; at < in->len && rc == DS_OK;) {
        const char *line = in->p + at, *end = memchr(line, '\n', in->len - at);
        size_t n = end ? (size_t)(end - line) : in->len - at;

        at += n + 1;
        if (!ds_cli_blank(line, n))
            rc = one(c, line, n, &out, refused, err);
        if (rc == DS_OK && (out.len > 1 << 20 || at >= in->len)) {
            rc = ds_cli_write_all(&out, err);
            ds_buf_clear(&out);
        }
    }
    ds_buf_free(&out);
    return rc;
}

/* What docs/server.md has. */
static void print_members(void)
{
    const ds_request_member *m;

    puts("| member | Chat | Responses | Messages | Completions | |\n| --- | --- | --- | --- | --- | --- |");
    for (size_t i = 0; (m = ds_request_member_at(i)); i++) {
        printf("| `%s` |", m->name);
        for (int p = 0; p < 4; p++)
            printf(" %s |", m->on[p] == 'T' ? "taken" : m->on[p] == 'I' ? "ignored" : "400");
        printf(" %s", m->note);
        if (m->neutral && strchr(m->on, 'R'))
            printf("; not refused: `%s`", m->neutral);
        puts(" |");
    }
}

int ds_cmd_render(int argc, char **argv)
{
    options o = { 0 };
    renderer c = { 0 };
    ds_buf in = { 0 }, out = { 0 };
    ds_tokenizer *t = NULL;
    ds_err err = { 0 };
    bool refused = false;
    ds_rc rc = DS_OK;
    int status = ds_cli_parse(&command, &o, argc, argv, NULL);

    if (status >= 0)
        return status;
    if (o.members) {
        print_members();
        return 0;
    }
    ds_recipe_opts_init(&c.opts);
    c.opts.encoding = o.encoding == 1 ? DS_ENC_V4 : DS_ENC_V41;
    c.proto = (ds_proto)o.protocol;
    c.fetch = o.fetch;
    for (size_t i = 0; i < o.set.n; i++) {
        if (strcmp(o.set.v[i], "help") == 0) {
            for (size_t k = 0; ds_recipe_opts_help(k); k++)
                puts(ds_recipe_opts_help(k));
            return 0;
        }
        if (ds_recipe_opts_set(&c.opts, o.set.v[i], &err) != DS_OK)
            return ds_cli_wrong("render", "--set: %s", err.msg);
    }
    if (o.tokenizer)
        rc = open_tokenizer(&c, &t, o.tokenizer, &err);
    if (rc == DS_OK)
        rc = ds_cli_read_all(STDIN_FILENO, "standard input", MAX_INPUT, &in, &err);
    if (rc == DS_OK && o.jsonl) {
        rc = render_lines(&c, &in, &refused, &err);
    } else if (rc == DS_OK) {
        rc = one(&c, ds_buf_str(&in), in.len, &out, &refused, &err);
        if (rc == DS_OK)
            rc = ds_cli_write_all(&out, &err);
    }
    ds_buf_free(&in);
    ds_buf_free(&out);
    ds_encoder_destroy(c.encoder);
    ds_tokenizer_destroy(t);
    return rc == DS_OK ? refused : ds_cli_fail("render", &err);
}
