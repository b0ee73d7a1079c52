/* deepserve render: an API request as the prompt that the model sees. */
#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ds/request.h>
#include <ds/tokenizer.h>

#include "base/buf.h"
#include "base/json.h"
#include "recipe/image_size.h"

#define MAX_INPUT ((size_t)256 << 20)

typedef struct {
    int protocol, encoding;
    const char *tokenizer;
    ds_opt_list set;
    bool jsonl;
} options;

static const ds_opt table[] = {
    { .name = "protocol",
      .type = DS_OPT_ENUM,
      .offset = offsetof(options, protocol),
      .def = "chat",
      .arg = "NAME",
      .choices = "chat|responses|messages|completions",
      .help = "what the body is written for" },
    { .name = "encoding",
      .type = DS_OPT_ENUM,
      .offset = offsetof(options, encoding),
      .def = "v4.1",
      .arg = "NAME",
      .choices = "v4.1|v4",
      .help = "dialect of the model" },
    { .name = "tokenizer", .type = DS_OPT_STR, .offset = offsetof(options, tokenizer), .arg = "F.json", .help = "adds the token ids" },
    { .name = "set",
      .type = DS_OPT_LIST,
      .offset = offsetof(options, set),
      .arg = "NAME=VALUE",
      .help = "a switch of the recipe; `--set help` lists them" },
    { .name = "jsonl", .type = DS_OPT_FLAG, .offset = offsetof(options, jsonl), .help = "one body a line, one result line each" },
    { 0 },
};

static const ds_opt_cmd command = {
    .command = "deepserve render",
    .summary = "Reads the body of an API request on standard input and writes the prompt, its runs of control tokens and text, and what "
               "else the engine is\n"
               "told, as one JSON object. A refused request gives the protocol's error body and exit status 1.",
    .usage = "[--protocol P] [--encoding E] [--tokenizer F.json] [--set NAME=VALUE]... < body",
    .example = "echo '{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}' | deepserve render --protocol chat",
    .opts = table,
};

typedef struct {
    ds_proto proto;
    ds_recipe_opts opts;
    const ds_tokenizer *tokenizer;
    ds_encoder *encoder;
    uint32_t image_id;
    ds_ids ids;
} renderer;

static void put_str(ds_buf *b, const char *p, size_t n)
{
    ds_json_write_str(b, p, n, DS_JSON_COMPACT);
}

static void put_effort(ds_buf *b, const ds_request_info_data *i)
{
    static const char *const names[] = { "none", "low", "high", "xhigh", "max" };

    if (i->effort == DS_EFFORT_NUMBER)
        ds_buf_printf(b, "%u", i->effort_number);
    else
        ds_buf_printf(b, "\"%s\"", names[i->effort]);
}

static void put_tools(ds_buf *b, const ds_request_info_data *i, bool strict_only)
{
    bool first = true;

    ds_buf_putc(b, '[');
    for (uint32_t k = 0; k < i->n_tools; k++) {
        const ds_tool *t = &i->tools[k];

        if (!t->shown || (strict_only && !t->strict))
            continue;
        if (!first)
            ds_buf_putc(b, ',');
        first = false;
        put_str(b, t->name.p, t->name.n);
    }
    ds_buf_putc(b, ']');
}

/* What a constrained decoder is asked to enforce. */
static void put_constraint(ds_buf *b, const ds_request_info_data *i)
{
    bool strict = false;

    for (uint32_t k = 0; k < i->n_tools; k++)
        strict = strict || (i->tools[k].shown && i->tools[k].strict);
    switch (i->constraint.kind) {
    case DS_CONSTRAINT_JSON_OBJECT:
        ds_buf_puts(b, "{\"type\":\"json_object\"");
        break;
    case DS_CONSTRAINT_JSON_SCHEMA:
        ds_buf_printf(b, "{\"type\":\"json_schema\",\"strict\":%s,\"schema\":", i->constraint.strict ? "true" : "false");
        ds_buf_put(b, i->constraint.text.p, i->constraint.text.n);
        break;
    case DS_CONSTRAINT_REGEX:
        ds_buf_puts(b, "{\"type\":\"regex\",\"regex\":");
        put_str(b, i->constraint.text.p, i->constraint.text.n);
        break;
    case DS_CONSTRAINT_LARK:
        ds_buf_puts(b, "{\"type\":\"lark\",\"grammar\":");
        put_str(b, i->constraint.text.p, i->constraint.text.n);
        break;
    default:
        if (i->tool_choice != DS_CHOICE_REQUIRED && !strict) {
            ds_buf_puts(b, "null");
            return;
        }
        ds_buf_puts(b, "{\"type\":\"tool_call\"");
        break;
    }
    if (i->tool_choice == DS_CHOICE_REQUIRED) {
        ds_buf_puts(b, ",\"required\":true,\"tools\":");
        put_tools(b, i, false);
    }
    if (strict) {
        ds_buf_puts(b, ",\"strict_tools\":");
        put_tools(b, i, true);
    }
    ds_buf_putc(b, '}');
}

/* Pictures that come with the request have a size; the others would have to be fetched. */
static ds_rc size_images(ds_request *r, ds_api_error *refusal, ds_err *err)
{
    const ds_request_info_data *i = ds_request_info(r);

    for (uint32_t k = 0; k < i->n_images; k++) {
        const ds_image *im = &i->images[k];
        unsigned char *bytes;
        uint32_t w, h;
        size_t n;
        ds_rc rc;

        if (im->kind != DS_IMAGE_DATA)
            continue;
        rc = ds_image_bytes(im, &bytes, &n, err);
        if (rc == DS_OK)
            rc = ds_image_size(bytes, n, &w, &h, err);
        free(bytes);
        if (rc == DS_OK)
            rc = ds_request_layout_image(r, k, w, h, err);
        if (rc == DS_E_NOMEM)
            return rc;
        if (rc != DS_OK)
            return ds_api_fail(refusal, 400, NULL, NULL, im->param, "%s: %s", im->param, err->msg);
    }
    return DS_OK;
}

static void put_images(ds_buf *b, const ds_request_info_data *i)
{
    ds_buf_printf(b, ",\"images\":%u,\"image_records\":[", i->n_images);
    for (uint32_t k = 0; k < i->n_images; k++) {
        const ds_image *im = &i->images[k];

        ds_buf_puts(b, k ? "," : "");
        if (im->tokens)
            ds_buf_printf(b, "{\"width\":%u,\"height\":%u,\"fitted\":[%u,%u],\"rows\":%u,\"cols\":%u,\"tokens\":%u}", im->width, im->height,
                          im->fitted_w, im->fitted_h, im->rows, im->cols, im->tokens);
        else /* not here yet: its size is not known */
            ds_buf_puts(b, "{\"width\":null,\"height\":null,\"fitted\":null,\"rows\":null,\"cols\":null,\"tokens\":null}");
    }
    ds_buf_putc(b, ']');
}

static ds_rc put_ids(renderer *c, ds_request *r, const ds_run *runs, size_t n_runs, ds_buf *b, ds_api_error *refusal, ds_err *err)
{
    const uint32_t *given;
    size_t n;
    ds_rc rc;

    c->ids.n = 0;
    ds_request_prompt_ids(r, 0, &given, &n);
    if (!given) {
        rc = ds_encoder_runs(c->encoder, runs, n_runs, &c->ids, err);
        if (rc != DS_OK)
            return rc;
        given = c->ids.p;
        n = c->ids.n;
    }
    rc = ds_request_check_length(r, n + ds_request_image_extra_tokens(r), NULL, refusal);
    if (rc != DS_OK)
        return rc;
    ds_buf_puts(b, ",\"ids\":[");
    for (size_t k = 0; k < n; k++)
        ds_buf_printf(b, k ? ",%u" : "%u", given[k]);
    ds_buf_printf(b, "],\"prompt_tokens\":%zu", n + ds_request_image_extra_tokens(r));
    return DS_OK;
}

/* DS_E_FORMAT: refused for its length; what was written so far is to be taken back. */
static ds_rc put_result(renderer *c, ds_request *r, ds_buf *b, ds_api_error *refusal, ds_err *err)
{
    const ds_request_info_data *i = ds_request_info(r);
    ds_buf prompt = { 0 };
    const ds_run *runs;
    size_t n;
    ds_rc rc = ds_request_render(r, 0, &runs, &n, err);

    if (rc != DS_OK)
        return rc;
    for (size_t k = 0; k < n; k++)
        ds_buf_put(&prompt, runs[k].p, runs[k].n);
    ds_buf_puts(b, "{\"prompt\":");
    put_str(b, ds_buf_str(&prompt), prompt.len);
    ds_buf_puts(b, ",\"runs\":[");
    for (size_t k = 0; k < n; k++) {
        ds_buf_puts(b, k ? ",{\"" : "{\"");
        ds_buf_puts(b, runs[k].control ? "control\":" : "text\":");
        put_str(b, runs[k].p, runs[k].n);
        ds_buf_putc(b, '}');
    }
    ds_buf_putc(b, ']');
    if (c->encoder)
        rc = put_ids(c, r, runs, n, b, refusal, err);
    put_images(b, i);
    ds_buf_printf(b, ",\"thinking\":%s,\"effort\":", i->thinking ? "true" : "false");
    put_effort(b, i);
    ds_buf_puts(b, ",\"stop\":[");
    for (uint32_t k = 0; k < i->n_stop; k++) {
        ds_buf_puts(b, k ? "," : "");
        put_str(b, i->stop[k].p, i->stop[k].n);
    }
    ds_buf_printf(b, "],\"max_tokens\":%u,\"constraint\":", i->max_tokens);
    put_constraint(b, i);
    ds_buf_puts(b, "}\n");
    if (rc == DS_OK && (b->oom || prompt.oom))
        rc = ds_fail(err, DS_E_NOMEM, "out of memory");
    ds_buf_free(&prompt);
    return rc;
}

/* One body to one line. *refused: the line is an error body. */
static ds_rc one(renderer *c, const char *body, size_t n, ds_buf *out, bool *refused, ds_err *err)
{
    ds_request_parse_args args = { .proto = c->proto, .opts = &c->opts };
    ds_api_error refusal;
    ds_request *r = NULL;
    size_t start = out->len;
    ds_rc rc = ds_request_parse(&r, &args, body, n, &refusal, err);

    if (rc == DS_OK)
        rc = size_images(r, &refusal, err);
    if (rc == DS_OK)
        rc = put_result(c, r, out, &refusal, err);
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
    static const char *const marks[] = { "<｜/polygon｜>", "<｜polygon｜>", "<｜/point｜>", "<｜point｜>",
                                         "<｜/box｜>",     "<｜box｜>",     "<｜/ref｜>",   "<｜ref｜>" };
    ds_rc rc = ds_tokenizer_open(t, path, err);

    if (rc == DS_OK)
        rc = ds_encoder_create(&c->encoder, *t, NULL, err);
    if (rc != DS_OK)
        return rc;
    if (ds_tokenizer_control(*t, c->opts.image_token) == DS_TOKEN_NONE && ds_tokenizer_control(*t, "<｜image｜>") != DS_TOKEN_NONE)
        c->opts.image_token = "<｜image｜>";
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (ds_tokenizer_control(*t, marks[i]) == DS_TOKEN_NONE)
            c->opts.grounding_tokens = false;
    return DS_OK;
}

static ds_rc read_all(ds_buf *in, ds_err *err)
{
    for (;;) {
        ssize_t n;

        if (!ds_buf_reserve(in, 1 << 16))
            return ds_fail(err, DS_E_NOMEM, "standard input: out of memory after %zu bytes", in->len);
        n = read(STDIN_FILENO, in->p + in->len, 1 << 16);
        if (n == 0)
            return DS_OK;
        if (n == -1 && errno == EINTR)
            continue;
        if (n == -1)
            return ds_fail(err, DS_E_IO, "standard input: %s", strerror(errno));
        in->len += (size_t)n;
        if (in->len > MAX_INPUT)
            return ds_fail(err, DS_E_ARG, "standard input: more than %zu bytes", MAX_INPUT);
    }
}

static ds_rc write_all(const ds_buf *out, ds_err *err)
{
    for (size_t at = 0; at < out->len;) {
        ssize_t n = write(STDOUT_FILENO, out->p + at, out->len - at);

        if (n == -1 && errno == EINTR)
            continue;
        if (n == -1)
            return ds_fail(err, DS_E_IO, "standard output: %s", strerror(errno));
        at += (size_t)n;
    }
    return DS_OK;
}

static ds_rc render_lines(renderer *c, const ds_buf *in, bool *refused, ds_err *err)
{
    ds_buf out = { 0 };
    ds_rc rc = DS_OK;

    for (size_t at = 0; at < in->len && rc == DS_OK;) {
        const char *line = in->p + at, *end = memchr(line, '\n', in->len - at);
        size_t n = end ? (size_t)(end - line) : in->len - at;

        at += n + 1;
        rc = one(c, line, n, &out, refused, err);
        if (rc == DS_OK && (out.len > 1 << 20 || at >= in->len)) {
            rc = write_all(&out, err);
            ds_buf_clear(&out);
        }
    }
    ds_buf_free(&out);
    return rc;
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
    ds_recipe_opts_init(&c.opts);
    c.opts.encoding = o.encoding == 1 ? DS_ENC_V4 : DS_ENC_V41;
    c.proto = (ds_proto)o.protocol;
    for (size_t i = 0; i < o.set.n; i++) {
        if (strcmp(o.set.v[i], "help") == 0) {
            for (size_t k = 0; ds_recipe_opts_help(k); k++)
                puts(ds_recipe_opts_help(k));
            return 0;
        }
        if (ds_recipe_opts_set(&c.opts, o.set.v[i], &err) != DS_OK)
            return ds_cli_wrong("render", "--set %s", err.msg);
    }
    if (o.tokenizer)
        rc = open_tokenizer(&c, &t, o.tokenizer, &err);
    if (rc == DS_OK)
        rc = read_all(&in, &err);
    if (rc == DS_OK && o.jsonl) {
        rc = render_lines(&c, &in, &refused, &err);
    } else if (rc == DS_OK) {
        rc = one(&c, ds_buf_str(&in), in.len, &out, &refused, &err);
        if (rc == DS_OK)
            rc = write_all(&out, &err);
    }
    ds_buf_free(&in);
    ds_buf_free(&out);
    ds_ids_free(&c.ids);
    ds_encoder_destroy(c.encoder);
    ds_tokenizer_destroy(t);
    return rc == DS_OK ? refused : ds_cli_fail("render", &err);
}
