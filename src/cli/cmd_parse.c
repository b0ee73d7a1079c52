/* deepserve parse: model output as the response, or the stream events, of an API request. */
#include "cli/cli.h"
#include "cli/options.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ds/stream.h>

#include "base/buf.h"
#include "base/json.h"
#include "cli/input.h"

#define MAX_INPUT ((size_t)256 << 20)

typedef struct {
    int protocol, encoding, finish;
    const char *request, *tokenizer;
    bool stream, sse, ids, jsonl;
    int64_t split, prompt_tokens, cached_tokens;
    ds_opt_list set;
} options;

static const ds_opt table[] = {
    DS_CLI_OPT_PROTOCOL(offsetof(options, protocol), "what the request is written for"),
    DS_CLI_OPT_ENCODING(offsetof(options, encoding)),
    { .name = "request",
      .type = DS_OPT_STR,
      .offset = offsetof(options, request),
      .arg = "F.json",
      .help = "body of the request that the output answers" },
    { .name = "stream",
      .type = DS_OPT_FLAG,
      .offset = offsetof(options, stream),
      .help = "the stream's events, one a line, instead of the whole response" },
    { .name = "sse", .type = DS_OPT_FLAG, .offset = offsetof(options, sse), .help = "the events as they go over the wire" },
    { .name = "split",
      .type = DS_OPT_INT,
      .offset = offsetof(options, split),
      .def = "0",
      .arg = "BYTES",
      .max = 1 << 30,
      .min = 0,
      .help = "give the text to the parser in pieces of that many bytes; 0 = whole" },
    { .name = "finish",
      .type = DS_OPT_ENUM,
      .offset = offsetof(options, finish),
      .def = "stop",
      .arg = "REASON",
      .choices = "stop|length|content_filter|none",
      .help = "why the model ended" },
    { .name = "ids",
      .type = DS_OPT_FLAG,
      .offset = offsetof(options, ids),
      .help = "standard input is a JSON array of token ids (needs --tokenizer)" },
    { .name = "tokenizer", .type = DS_OPT_STR, .offset = offsetof(options, tokenizer), .arg = "F.json", .help = "what the ids mean" },
    { .name = "prompt-tokens",
      .type = DS_OPT_INT,
      .offset = offsetof(options, prompt_tokens),
      .def = "0",
      .arg = "TOKENS",
      .min = 0,
      .max = 1e9,
      .help = "length of the prompt, for usage" },
    { .name = "cached-tokens",
      .type = DS_OPT_INT,
      .offset = offsetof(options, cached_tokens),
      .def = "0",
      .arg = "TOKENS",
      .min = 0,
      .max = 1e9,
      .help = "how many of them came from a cache" },
    { .name = "jsonl",
      .type = DS_OPT_FLAG,
      .offset = offsetof(options, jsonl),
      .help = "many answers: standard input has lines {\"request\":{},\"text\":\"\" or \"ids\":[],\"split\":N,\"finish\":\"\"}; each gives "
              "one line" },
    DS_CLI_OPT_SET(offsetof(options, set)),
    { 0 },
};

static const ds_opt_cmd command = {
    .command = "deepserve parse",
    .summary = "Reads what the model wrote on standard input and writes the complete response to the request, or with --stream its events. "
               "The response id is\n"
               "id-0 and all times are 0, so that runs compare. A refused request gives the protocol's error body and exit status 1.",
    .usage = "--request F.json [--protocol P] [--stream] [--split BYTES] [--finish REASON] [--ids --tokenizer F.json] < output",
    .example = "printf 'Let me see.</think>Hello!' | deepserve parse --request body.json --stream --split 4",
    .opts = table,
};

static ds_rc read_file(const char *path, ds_buf *in, ds_err *err)
{
    char quoted[640];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ds_rc rc;

    ds_quote(quoted, sizeof quoted, path, strlen(path));
    if (fd == -1)
        return ds_fail(err, DS_E_IO, "%s: %s", quoted, strerror(errno));
    rc = ds_cli_read_all(fd, quoted, MAX_INPUT, in, err);
    close(fd);
    return rc;
}

typedef struct {
    bool sse, list; /* list: events are elements of one array */
    size_t n;       /* events so far */
    ds_buf out;
} writer;

static void on_event(void *ctx, const char *event, const char *data, size_t n)
{
    writer *w = ctx;

    if (w->sse) {
        size_t need = ds_sse_frame(NULL, 0, event, data, n);
        if (ds_buf_reserve(&w->out, need + 1)) {
            ds_sse_frame(w->out.p + w->out.len, need + 1, event, data, n);
            w->out.len += need;
        }
        return;
    }
    if (w->list && w->n++)
        ds_buf_putc(&w->out, ',');
    if (event)
        ds_buf_printf(&w->out, "{\"event\":\"%s\",\"data\":", event);
    ds_buf_put(&w->out, data, n);
    if (event)
        ds_buf_putc(&w->out, '}');
    if (!w->list)
        ds_buf_putc(&w->out, '\n');
}

/* One run of the command. */
typedef struct {
    const options *o;
    ds_recipe_opts recipe;
    const ds_tokenizer *tokenizer;
    writer w;
    bool refused;
} session;

/* What the model wrote: ids, if not NULL, else text. */
typedef struct {
    ds_buf text;
    const ds_json *ids;
    int64_t split;
    ds_stream_end end;
} output;

/* Every choice gets the same output. */
static ds_rc feed_text(ds_stream *s, const ds_buf *in, size_t split, ds_err *err)
{
    ds_rc rc = DS_OK;

    for (size_t at = 0; at < in->len && rc == DS_OK;) {
        size_t n = split && split < in->len - at ? split : in->len - at;
        for (uint32_t k = 0; k < ds_stream_choices(s) && rc == DS_OK; k++)
            rc = ds_stream_text(s, k, in->p + at, n, 0, err);
        at += n;
    }
    return rc;
}

static ds_rc feed_ids(ds_stream *s, const ds_tokenizer *t, const ds_json *ids, ds_err *err)
{
    size_t i = 0;
    ds_rc rc = DS_OK;

    if (!ds_json_is(ids, DS_JSON_ARRAY))
        return ds_fail(err, DS_E_ARG, "standard input: a JSON array of ids is needed, not %s", ds_json_type_name(ids));
    for (const ds_json *v = ids->child; v && rc == DS_OK; v = v->next, i++) {
        uint64_t id;
        if (!ds_json_u64(v, &id))
            return ds_fail(err, DS_E_ARG, "standard input: element %zu of the array is no token id", i);
        if (id >= ds_tokenizer_size(t))
            id = DS_TOKEN_NONE;
        for (uint32_t k = 0; k < ds_stream_choices(s) && rc == DS_OK; k++)
            rc = ds_stream_token(s, k, (ds_token)id, NULL, err);
    }
    return rc;
}

/* Ends a choice; what its text should be and isn't is said on standard error. */
static ds_rc finish(ds_stream *s, uint32_t choice, ds_stream_end end, ds_err *err)
{
    ds_err why = { 0 };
    ds_rc rc = ds_stream_finish(s, choice, end, err);

    if (rc == DS_OK && ds_stream_check(s, choice, &why) == DS_E_FORMAT)
        fprintf(stderr, "deepserve parse: %s\n", why.msg);
    return rc;
}

/* One answer into the writer. */
static ds_rc answer(session *c, ds_request *r, const output *in, ds_err *err)
{
    const options *o = c->o;
    bool events = o->stream || o->sse;
    ds_stream_opts so = { .id = "id-0", .tokenizer = c->tokenizer, .sink = events ? on_event : NULL, .ctx = &c->w };
    ds_stream *s;
    const char *json;
    size_t n;
    ds_rc rc = ds_stream_create(&s, r, &so, err);

    if (rc != DS_OK)
        return rc;
    rc = ds_stream_ready(s, (uint64_t)o->prompt_tokens, (uint64_t)o->cached_tokens, NULL, err);
    if (rc == DS_OK)
        rc = in->ids ? feed_ids(s, c->tokenizer, in->ids, err) : feed_text(s, &in->text, (size_t)in->split, err);
    for (uint32_t k = 0; k < ds_stream_choices(s) && rc == DS_OK; k++)
        rc = finish(s, k, in->end, err);
    if (rc == DS_OK && !events) {
        rc = ds_stream_body(s, &json, &n, err);
        if (rc == DS_OK)
            ds_buf_put(&c->w.out, json, n);
    }
    if (rc == DS_OK && o->sse)
        ds_buf_puts(&c->w.out, ds_sse_end((ds_proto)o->protocol));
    ds_stream_destroy(s);
    return rc;
}

/* Parses the request and answers it, or writes the refusal. Ends the line. */
static ds_rc one(session *c, const ds_buf *body, const output *in, ds_err *err)
{
    const ds_request_parse_args args = { .proto = (ds_proto)c->o->protocol, .opts = &c->recipe };
    ds_buf *out = &c->w.out;
    ds_api_error refusal;
    ds_request *r;
    ds_rc rc = ds_request_parse(&r, &args, ds_buf_str(body), body->len, &refusal, err);

    if (rc == DS_OK) {
        if (c->w.list)
            ds_buf_putc(out, '[');
        c->w.n = 0;
        rc = answer(c, r, in, err);
        if (c->w.list)
            ds_buf_putc(out, ']');
        if (c->w.list || !(c->o->stream || c->o->sse))
            ds_buf_putc(out, '\n');
    } else if (rc == DS_E_FORMAT) {
        size_t need = ds_api_error_body(NULL, 0, &refusal, args.proto, c->recipe.openai_errors, NULL);
        c->refused = true;
        rc = DS_OK;
        if (ds_buf_reserve(out, need + 2)) {
            ds_api_error_body(out->p + out->len, need + 1, &refusal, args.proto, c->recipe.openai_errors, NULL);
            out->len += need;
            ds_buf_putc(out, '\n');
        }
    }
    ds_request_destroy(r);
    return rc == DS_OK && out->oom ? ds_fail(err, DS_E_NOMEM, "out of memory") : rc;
}

static ds_rc one_line(session *c, const char *line, size_t n, ds_err *err)
{
    static const char *const reasons[] = { "stop", "length", "content_filter", "none" };
    output in = { .split = c->o->split, .end = (ds_stream_end)c->o->finish };
    ds_json_doc *doc;
    ds_buf body = { 0 };
    const ds_json *root, *request, *text, *split, *finish;
    ds_rc rc = ds_json_parse(&doc, line, n, NULL, err);

    if (rc != DS_OK)
        return rc;
    root = ds_json_root(doc);
    request = ds_json_get(root, "request");
    text = ds_json_get(root, "text");
    in.ids = ds_json_get(root, "ids");
    split = ds_json_get(root, "split");
    finish = ds_json_get(root, "finish");
    if (!ds_json_is(request, DS_JSON_OBJECT) || (in.ids ? !c->tokenizer : !ds_json_is(text, DS_JSON_STRING))) {
        rc = ds_fail(err, DS_E_ARG, "standard input: a line needs `request` and `text`, or `ids` and --tokenizer");
        goto done;
    }
    ds_json_write(&body, request, DS_JSON_COMPACT);
    if (!in.ids)
        ds_buf_put(&in.text, text->text, text->text_len);
    if (split && (!ds_json_i64(split, &in.split) || in.split < 0)) {
        rc = ds_fail(err, DS_E_ARG, "standard input: `split` must be a whole number of bytes, 0 or more");
        goto done;
    }
    if (finish) {
        int i = 0;

        while (i < 4 && !ds_json_str_eq(finish, reasons[i]))
            i++;
        if (i == 4) {
            rc = ds_fail(err, DS_E_ARG, "standard input: `finish` must be one of stop, length, content_filter, none");
            goto done;
        }
        in.end = (ds_stream_end)i;
    }
    rc = body.oom || in.text.oom ? ds_fail(err, DS_E_NOMEM, "out of memory") : one(c, &body, &in, err);
done:
    ds_buf_free(&body);
    ds_buf_free(&in.text);
    ds_json_free(doc);
    return rc;
}

static ds_rc run_lines(session *c, const ds_buf *in, ds_err *err)
{
    ds_rc rc = DS_OK;
    size_t number = 0;

    c->w.list = c->o->stream;
    for (size_t at = 0; at < in->len && rc == DS_OK; number++) {
        const char *line = in->p + at, *end = memchr(line, '\n', in->len - at);
        size_t n = end ? (size_t)(end - line) : in->len - at;
        at += n + 1;
        if (!ds_cli_blank(line, n))
            rc = one_line(c, line, n, err);
    }
    if (rc != DS_OK && rc != DS_E_NOMEM)
        ds_err_prefix(err, rc, "line %zu: ", number);
    return rc;
}

/* The request from its file; `in` holds standard input as it came. */
static ds_rc run_one(session *c, output *in, ds_err *err)
{
    ds_buf body = { 0 };
    ds_json_doc *doc = NULL;
    ds_rc rc = read_file(c->o->request, &body, err);

    if (rc == DS_OK && c->o->ids) {
        rc = ds_json_parse(&doc, ds_buf_str(&in->text), in->text.len, NULL, err);
        if (rc == DS_OK)
            in->ids = ds_json_root(doc);
        else
            ds_err_prefix(err, rc, "standard input: ");
    }
    if (rc == DS_OK)
        rc = one(c, &body, in, err);
    ds_json_free(doc);
    ds_buf_free(&body);
    return rc;
}

static ds_rc run(session *c, ds_err *err)
{
    output in = { .split = c->o->split, .end = (ds_stream_end)c->o->finish };
    ds_tokenizer *t = NULL;
    ds_rc rc = c->o->tokenizer ? ds_tokenizer_open(&t, c->o->tokenizer, err) : DS_OK;

    c->tokenizer = t;
    if (rc == DS_OK)
        rc = ds_cli_read_all(STDIN_FILENO, "standard input", MAX_INPUT, &in.text, err);
    if (rc == DS_OK)
        rc = c->o->jsonl ? run_lines(c, &in.text, err) : run_one(c, &in, err);
    if (rc == DS_OK)
        rc = ds_cli_write_all(&c->w.out, err);
    ds_tokenizer_destroy(t);
    ds_buf_free(&in.text);
    return rc;
}

int ds_cmd_parse(int argc, char **argv)
{
    options o = { 0 };
    session c = { .o = &o };
    ds_err err = { 0 };
    ds_rc rc;
    int status = ds_cli_parse(&command, &o, argc, argv, NULL);

    if (status >= 0)
        return status;
    ds_recipe_opts_init(&c.recipe);
    c.recipe.encoding = o.encoding == 1 ? DS_ENC_V4 : DS_ENC_V41;
    for (size_t i = 0; i < o.set.n; i++) {
        if (strcmp(o.set.v[i], "help") == 0) {
            for (size_t k = 0; ds_recipe_opts_help(k); k++)
                puts(ds_recipe_opts_help(k));
            return 0;
        }
        if (ds_recipe_opts_set(&c.recipe, o.set.v[i], &err) != DS_OK)
            return ds_cli_wrong("parse", "--set: %s", err.msg);
    }
    if (!o.request && !o.jsonl)
        return ds_cli_wrong("parse", "--request is needed");
    if (o.jsonl && (o.request || o.ids || o.sse))
        return ds_cli_wrong("parse", "--jsonl excludes --request, --ids and --sse");
    if (o.ids && !o.tokenizer)
        return ds_cli_wrong("parse", "--ids needs --tokenizer");
    if (o.stream && o.sse)
        return ds_cli_wrong("parse", "--stream and --sse exclude each other");
    c.w.sse = o.sse;
    rc = run(&c, &err);
    ds_buf_free(&c.w.out);
    return rc == DS_OK ? c.refused : ds_cli_fail("parse", &err);
}
