/* deepserve generate: prompts to text, one from the command line or many from a file. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "cli/gen_request.h"
#include "cli/input.h"
#include "format/file.h"

enum {
    COUNT_NS = 300000000, /* an interrupted run ends within a second */
};

typedef struct {
    ds_cli_gen_opts g;
    const char *prompt, *tokens, *input;
    bool json;
} options;

static const ds_opt table[] = {
    DS_CLI_GEN_TABLE(options),
    { .name = "prompt",
      .type = DS_OPT_STR,
      .offset = offsetof(options, prompt),
      .arg = "TEXT",
      .help = "raw text to go on from, no chat template" },
    { .name = "tokens",
      .type = DS_OPT_STR,
      .offset = offsetof(options, tokens),
      .arg = "IDS",
      .help = "prompt as ids: 1,2,3 or @FILE with a JSON array" },
    { .name = "input",
      .type = DS_OPT_STR,
      .offset = offsetof(options, input),
      .arg = "F.jsonl",
      .help = "many: {\"prompt\":…}, {\"tokens\":[…]} or a chat request a line; - = standard input" },
    { .name = "json", .type = DS_OPT_FLAG, .offset = offsetof(options, json), .help = "one result line for each prompt" },
    { 0 },
};

static const ds_opt_cmd command = {
    .command = "deepserve generate",
    .summary = "Continues prompts. A line of --input may carry max_tokens, temperature, top_p, top_k, min_p, seed, stop, n, logprobs and "
               "the penalties; they\n"
               "win over the options. Without a seed of its own line i uses --seed + i.",
    .usage = "--model DIR (--prompt TEXT | --tokens IDS | --input F.jsonl) [options]",
    .example = "deepserve generate --model models/demo --prompt 'Once upon a time' --max-tokens 64",
    .opts = table,
};

/* Seeds of a request's samples lie far apart: seeds of neighbouring lines differ by 1. */
static const uint64_t SAMPLE_STEP = 0x9e3779b97f4a7c15u;

/* What the summary adds up. */
typedef struct {
    uint64_t prompt_tokens, output_tokens, prompt_ns, output_ns, steps, drafted, accepted;
    uint64_t begin_ns;
} totals;

typedef struct {
    const options *o;
    ds_cli_gen *g;
    totals sum;
    uint64_t index, done, failed, missing;
    bool live; /* text goes out as it comes */
    bool bar;  /* a progress line on the terminal */
    bool more_missing;
    uint64_t in_bytes, in_total;
    uint64_t bar_ns;
    /* the answer in work */
    const ds_gen_request *q;
    ds_cli_text text;
    int32_t *ids;
    ds_buf logprobs;
    uint32_t n_ids, cap_ids;
    bool oom;
} job;

static void show_bar(job *j, bool last)
{
    uint64_t now = ds_now_ns();
    double s = (double)(now - j->sum.begin_ns) / 1e9;

    if (!j->bar || (!last && now - j->bar_ns < 100000000))
        return;
    j->bar_ns = now;
    fprintf(stderr, "\r\033[K%" PRIu64 " done", j->done);
    if (j->in_total)
        fprintf(stderr, ", %3.0f %% of the input", 100.0 * (double)j->in_bytes / (double)j->in_total);
    fprintf(stderr, ", %.0f tokens/s", (double)(j->sum.output_tokens + j->n_ids) / (s > 0.0 ? s : 1.0));
    if (last)
        fputs("\r\033[K", stderr);
    fflush(stderr);
}

static void note_logprob(job *j, const ds_single_token *t)
{
    ds_buf *b = &j->logprobs;

    ds_buf_printf(b, "%s{\"id\":%d,\"logprob\":", b->len ? "," : "", t->id);
    ds_json_write_f64(b, (double)t->logprob);
    ds_buf_puts(b, ",\"top\":[");
    for (uint32_t i = 0; i < j->q->n_top && t->top[i].id >= 0; i++) {
        ds_buf_printf(b, "%s{\"id\":%d,\"logprob\":", i ? "," : "", t->top[i].id);
        ds_json_write_f64(b, (double)t->top[i].logprob);
        ds_buf_putc(b, '}');
    }
    ds_buf_puts(b, "]}");
}

static bool take_token(void *ctx, const ds_single_token *t)
{
    job *j = ctx;

    if (j->n_ids == j->cap_ids) {
        uint32_t cap = j->cap_ids ? 2 * j->cap_ids : 256;
        int32_t *p = realloc(j->ids, cap * sizeof *p);
        if (!p) {
            j->oom = true;
            return false;
        }
        j->ids = p;
        j->cap_ids = cap;
    }
    j->ids[j->n_ids++] = t->id;
    if (j->q->logprobs)
        note_logprob(j, t);
    bool stop = ds_cli_text_push(&j->text, t->id);
    if (j->live) {
        size_t safe = ds_cli_text_safe(&j->text);
        fwrite(j->text.text.p + j->text.sent, 1, safe - j->text.sent, stdout);
        j->text.sent = safe;
        fflush(stdout);
    }
    show_bar(j, false);
    return !stop && !ds_cli_signal();
}

static bool keep_going(void *ctx, uint32_t done, uint32_t total)
{
    (void)done;
    (void)total;
    show_bar(ctx, false);
    return !ds_cli_signal();
}

static void put_result(job *j, uint32_t sample, const ds_single_result *res)
{
    ds_buf b = { 0 };
    const char *reason = res->finish == DS_SINGLE_LENGTH ? "length" : "stop";

    ds_buf_printf(&b, "{\"index\":%" PRIu64, j->index);
    if (j->q->n > 1)
        ds_buf_printf(&b, ",\"sample\":%u", sample);
    ds_buf_puts(&b, ",\"ids\":[");
    for (uint32_t i = 0; i < j->n_ids; i++)
        ds_buf_printf(&b, "%s%d", i ? "," : "", j->ids[i]);
    ds_buf_puts(&b, "],\"text\":");
    ds_json_write_str(&b, ds_buf_str(&j->text.text), j->text.text.len, DS_JSON_COMPACT);
    ds_buf_printf(&b, ",\"finish_reason\":\"%s\",\"usage\":{\"prompt_tokens\":%zu,\"completion_tokens\":%u,\"cached_tokens\":0}", reason,
                  j->q->ids.n, j->n_ids + (res->finish == DS_SINGLE_STOP));
    if (j->q->logprobs) {
        ds_buf_puts(&b, ",\"logprobs\":[");
        ds_buf_put(&b, ds_buf_str(&j->logprobs), j->logprobs.len);
        ds_buf_putc(&b, ']');
    }
    ds_buf_puts(&b, "}\n");
    if (b.oom)
        j->oom = true;
    else
        fwrite(b.p, 1, b.len, stdout);
    fflush(stdout);
    ds_buf_free(&b);
}

/* All samples of one request. DS_E_CANCELED: a signal came. */
static ds_rc answer(job *j, const ds_gen_request *q, ds_err *err)
{
    ds_rc rc = ds_cli_text_init(&j->text, j->g->tokenizer, q->stop, q->n_stop, err);

    j->q = q;
    for (uint32_t k = 0; k < q->n && rc == DS_OK; k++) {
        ds_single_result res;
        ds_single_request r = {
            .prompt = (const int32_t *)q->ids.p,
            .n_prompt = (uint32_t)q->ids.n,
            .max_tokens = q->max_tokens,
            .sampling = q->sampling,
            .bias = q->bias,
            .n_bias = q->n_bias,
            .stop_ids = j->g->stop_ids,
            .n_stop_ids = j->g->n_stop_ids,
            .logprobs = q->logprobs,
            .n_top = q->n_top,
            .token = take_token,
            .progress = keep_going,
            .ctx = j,
        };
        r.sampling.seed += k * SAMPLE_STEP;
        j->n_ids = 0;
        j->oom = false;
        ds_buf_clear(&j->logprobs);
        ds_cli_text_clear(&j->text);
        rc = ds_single_run(j->g->single, &r, &res, err);
        if (rc == DS_OK && ds_cli_signal())
            rc = ds_fail(err, DS_E_CANCELED, "stopped");
        if (rc == DS_OK && (j->oom || j->text.text.oom || j->logprobs.oom))
            rc = ds_fail(err, DS_E_NOMEM, "out of memory for the answer");
        if (rc != DS_OK)
            break;
        j->sum.prompt_tokens += q->ids.n;
        j->sum.output_tokens += j->n_ids;
        j->sum.prompt_ns += res.prompt_ns;
        j->sum.output_ns += res.output_ns;
        j->sum.steps += res.steps;
        j->sum.drafted += res.drafted;
        j->sum.accepted += res.accepted;
        if (j->o->json || j->o->input) {
            put_result(j, k, &res);
        } else {
            fwrite(ds_buf_str(&j->text.text) + j->text.sent, 1, j->text.text.len - j->text.sent, stdout);
            putchar('\n');
        }
    }
    ds_cli_text_fini(&j->text);
    return rc;
}

static void put_error(const job *j, const ds_err *e)
{
    ds_buf b = { 0 };

    ds_buf_printf(&b, "{\"index\":%" PRIu64 ",\"error\":{\"message\":", j->index);
    ds_json_write_str(&b, e->msg, strlen(e->msg), DS_JSON_COMPACT);
    ds_buf_puts(&b, "}}\n");
    if (!b.oom)
        fwrite(b.p, 1, b.len, stdout);
    fflush(stdout);
    ds_buf_free(&b);
}

static bool is_space(int c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool blank(const ds_buf *line)
{
    for (size_t i = 0; i < line->len; i++)
        if (!is_space(line->p[i]))
            return false;
    return true;
}

/* Adds the lines that are left to those missing, as far as they can be counted at once: what comes through a pipe may never end. */
static void count_rest(job *j, ds_cli_input *in)
{
    const uint64_t begin = ds_now_ns();
    struct stat st;
    bool text = false;
    int c;

    in->deaf = true;
    j->more_missing = fstat(in->fd, &st) != 0 || !S_ISREG(st.st_mode);
    for (uint64_t n = 1; !j->more_missing; n++) {
        c = ds_cli_input_byte(in);
        text = text || (c != -1 && !is_space(c));
        if ((c == '\n' || c == -1) && text) {
            j->missing++;
            text = false;
        }
        if (c == -1)
            return;
        j->more_missing = n % 65536 == 0 && ds_now_ns() - begin > COUNT_NS;
    }
}

static ds_rc run_lines(job *j, int fd, const char *name, ds_err *err)
{
    ds_cli_input in = { .fd = fd };
    ds_buf line = { 0 };
    uint64_t bytes;
    ds_rc rc = DS_OK;

    for (j->index = 0; rc == DS_OK && ds_cli_input_line(&in, name, &line, &bytes, &rc, err); j->index++) {
        ds_gen_request q = { 0 };
        ds_err bad = { 0 };
        j->in_bytes += bytes + 1;
        if (blank(&line))
            continue;
        if (bytes > DS_CLI_LINE_MAX_BYTES)
            ds_fail(&bad, DS_E_FORMAT, "the line has %" PRIu64 " bytes, at most %d are taken", bytes, DS_CLI_LINE_MAX_BYTES);
        else if (ds_gen_request_init(&q, &j->o->g, j->index, &bad) == DS_OK &&
                 ds_gen_request_json(&q, j->g, line.p, line.len, &bad) == DS_OK)
            answer(j, &q, &bad);
        ds_gen_request_fini(&q);
        if (bad.rc == DS_E_CANCELED) {
            rc = DS_E_CANCELED;
            j->missing = 1;
        } else if (bad.rc != DS_OK) {
            put_error(j, &bad);
            j->failed++;
        } else {
            j->done++;
        }
        if (ferror(stdout))
            rc = ds_fail(err, DS_E_IO, "standard output: %s", strerror(errno));
    }
    if (rc == DS_E_CANCELED)
        count_rest(j, &in);
    ds_buf_free(&line);
    return rc;
}

static ds_rc run_one(job *j, ds_cli_ids *ids, ds_err *err)
{
    ds_gen_request q = { 0 };
    ds_rc rc = ds_gen_request_init(&q, &j->o->g, 0, err);

    if (rc == DS_OK && j->o->prompt) {
        rc = ds_gen_request_text(&q, j->g, j->o->prompt, strlen(j->o->prompt), err);
    } else if (rc == DS_OK) {
        q.ids = (ds_ids){ (uint32_t *)ids->p, ids->n, ids->n };
        ids->p = NULL;
    }
    if (rc == DS_OK)
        rc = answer(j, &q, err);
    j->done += rc == DS_OK;
    ds_gen_request_fini(&q);
    return rc;
}

static void print_totals(const totals *t, uint64_t requests)
{
    double wall = (double)(ds_now_ns() - t->begin_ns) / 1e9, in = (double)t->prompt_ns / 1e9, out = (double)t->output_ns / 1e9;

    fprintf(stderr, "%" PRIu64 " request%s in %.2f s: %" PRIu64 " prompt tokens, %.0f/s; %" PRIu64 " new tokens, %.0f/s", requests,
            requests == 1 ? "" : "s", wall, t->prompt_tokens, in > 0.0 ? (double)t->prompt_tokens / in : 0.0, t->output_tokens,
            out > 0.0 ? (double)t->output_tokens / out : 0.0);
    if (t->drafted)
        fprintf(stderr, "; drafts kept %.0f %%, %.2f tokens a step", 100.0 * (double)t->accepted / (double)t->drafted,
                (double)(t->accepted + t->steps) / (double)t->steps);
    fputc('\n', stderr);
}

static ds_rc run(job *j, int fd, ds_cli_ids *ids, ds_err *err)
{
    ds_rc rc;

    j->sum.begin_ns = ds_now_ns();
    if (fd == -1)
        rc = run_one(j, ids, err);
    else
        rc = run_lines(j, fd, j->o->input, err);
    show_bar(j, true);
    free(j->ids);
    ds_buf_free(&j->logprobs);
    return rc;
}

/* Results that are out stay out. */
static int stopped_by_signal(const job *j)
{
    if (j->o->input)
        fprintf(stderr, "deepserve generate: stopped with %" PRIu64 " results complete, %" PRIu64 "%s missing\n", j->done + j->failed,
                j->missing, j->more_missing ? " or more" : "");
    else
        fputs("deepserve generate: stopped, the result is missing\n", stderr);
    return 128 + ds_cli_signal();
}

int ds_cmd_generate(int argc, char **argv)
{
    options o = { 0 };
    ds_err err = { 0 };
    ds_cli_gen g = { 0 };
    ds_cli_ids ids = { 0 };
    struct stat st = { 0 };
    char q[112];
    int fd = -1, speculate, status = ds_cli_parse(&command, &o, argc, argv, NULL);
    bool wrong = false;
    ds_rc rc = DS_OK;

    if (status != -1)
        return status;
    if (!!o.prompt + !!o.tokens + !!o.input != 1)
        return ds_cli_wrong("generate", "expected one of --prompt, --tokens and --input");
    if (!ds_cli_speculate_parse(&speculate, o.g.speculate))
        return ds_cli_wrong("generate", "--speculate: expected auto, off or a number up to 64");
    ds_cli_signals_end();
    if (o.tokens)
        rc = ds_cli_ids_parse(&ids, o.tokens, &wrong, &err);
    if (wrong)
        return ds_cli_wrong("generate", "%s", err.msg);
    if (rc == DS_OK && o.input) {
        fd = strcmp(o.input, "-") == 0 ? STDIN_FILENO : open(o.input, O_RDONLY | O_CLOEXEC);
        if (fd == -1 || fstat(fd, &st) == -1)
            rc = ds_fail(&err, DS_E_IO, "%s: %s", ds_file_label(q, sizeof q, o.input), strerror(errno));
        else if (S_ISDIR(st.st_mode))
            rc = ds_fail(&err, DS_E_IO, "%s: is a directory", ds_file_label(q, sizeof q, o.input));
    }
    if (rc == DS_OK)
        rc = ds_cli_gen_open(&g, &o.g, speculate, &err);
    if (rc == DS_OK)
        rc = ds_cli_ids_check(&ids, ds_model_config(g.m.model)->vocab_size, &err);
    job j = { .o = &o, .g = &g, .live = !o.json && !o.input && isatty(1), .bar = o.input && isatty(2) };
    if (rc == DS_OK) {
        j.in_total = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
        ds_cli_signals_catch();
        rc = run(&j, fd, &ids, &err);
        if (rc == DS_OK)
            print_totals(&j.sum, j.done);
    }
    ds_cli_gen_close(&g);
    free(ids.p);
    if (fd > STDIN_FILENO)
        close(fd);
    if (rc == DS_E_CANCELED)
        return stopped_by_signal(&j);
    if (rc != DS_OK)
        return ds_cli_fail("generate", &err);
    return j.failed ? 1 : 0;
}
