/* deepserve generate: prompts to text, one from the command line or many from a file. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "cli/gen_request.h"
#include "role/service.h"
#include "cli/input.h"
#include "base/file.h"

enum { COUNT_NS = 300000000, CONSTRAINT_MAX_BYTES = 16 << 20 }; /* an interrupted run ends within a second */

typedef struct {
    ds_cli_gen_opts g;
    const char *prompt, *tokens, *input;
    const char *json_schema, *regex, *ebnf, *lark, *choices;
    bool json, fetch;
} options;

static const ds_opt table[] = {
    DS_CLI_GEN_TABLE(options),
    { .name = "prompt",
      .type = DS_OPT_STR,
      .offset = offsetof(options, prompt),
      .arg = "TEXT",
      .help = "raw text to go on from, no chat template" },
    DS_CLI_OPT_IDS(offsetof(options, tokens), false, "prompt as ids: 1,2,3 or @FILE with a JSON array"),
    { .name = "input",
      .type = DS_OPT_STR,
      .offset = offsetof(options, input),
      .arg = "F.jsonl",
      .help = "many: {\"prompt\":…}, {\"tokens\":[…]} or a chat request a line; - = standard input" },
    { .name = "min-tokens",
      .type = DS_OPT_INT,
      .offset = offsetof(options, g.min_tokens),
      .def = "0",
      .arg = "N",
      .min = 0,
      .max = INT32_MAX,
      .help = "the model may not end an answer before" },
    { .name = "ignore-eos", .type = DS_OPT_FLAG, .offset = offsetof(options, g.ignore_eos), .help = "answers go on to --max-tokens" },
    { .name = "json-schema",
      .type = DS_OPT_STR,
      .offset = offsetof(options, json_schema),
      .arg = "F.json",
      .help = "answers are JSON that fits" },
    { .name = "regex",
      .type = DS_OPT_STR,
      .offset = offsetof(options, regex),
      .arg = "S",
      .help = "answers match this regular expression, the whole of them" },
    { .name = "ebnf",
      .type = DS_OPT_STR,
      .offset = offsetof(options, ebnf),
      .arg = "F",
      .help = "answers follow rules in the notation of GBNF" },
    { .name = "lark",
      .type = DS_OPT_STR,
      .offset = offsetof(options, lark),
      .arg = "F",
      .help = "answers follow rules in the notation of Lark" },
    { .name = "choices",
      .type = DS_OPT_STR,
      .offset = offsetof(options, choices),
      .arg = "F.json",
      .help = "answers are one string of a JSON array" },
    { .name = "parallel",
      .type = DS_OPT_INT,
      .offset = offsetof(options, g.parallel),
      .def = "16",
      .arg = "N",
      .min = 1,
      .max = 1024,
      .help = "prompts of --input worked on at a time" },
    { .name = "fetch",
      .type = DS_OPT_FLAG,
      .offset = offsetof(options, fetch),
      .help = "follow http(s) addresses of pictures in chat requests; without it they are refused" },
    { .name = "json", .type = DS_OPT_FLAG, .offset = offsetof(options, json), .help = "one result line for each prompt" },
    { 0 },
};

static const ds_opt_cmd command = {
    .command = "deepserve generate",
    .summary = "Continues prompts. A line of --input may carry max_tokens, min_tokens, temperature, top_p, top_k, min_p, seed, stop, "
               "stop_token_ids, "
               "ignore_eos, n, logprobs,\n"
               "prompt_logprobs, structured_outputs, "
               "logit_bias and the penalties; they win over the options. Without a seed of its own line i uses --seed + i.",
    .usage = "--model DIR (--prompt TEXT | --tokens IDS | --input F.jsonl) [options]",
    .example = "deepserve generate --model models/demo --prompt 'Once upon a time' --max-tokens 64",
    .opts = table,
};

/* One answer of a request. */
typedef struct {
    ds_cli_text text;
    ds_token *ids;
    uint32_t n_ids, cap_ids, completion_tokens;
    ds_buf logprobs;
    const char *reason;
} sample;

/* One line of the input, from reading to its result lines. */
typedef struct task task;
struct task {
    task *next; /* in the order of the input */
    uint64_t index, id;
    ds_cli_request q;
    sample *samples; /* [q.n] */
    uint32_t cached;
    ds_buf prompt_logprobs;
    bool added, ended;
    ds_err err; /* why it can't be served; rc DS_OK: it can */
};

typedef struct {
    const options *o;
    ds_cli_gen *g;
    ds_cli_input in; /* fd -1: one prompt from the command line */
    ds_buf line;
    task *head, **tail;
    uint64_t index, open, done, failed; /* lines read; tasks in the list; results written, errors among them */
    uint64_t new_tokens, in_bytes, in_total, begin_ns, bar_ns;
    bool eof, live, bar; /* live: text goes out as it comes; bar: a progress line on the terminal */
} job;

static void show_bar(job *j, bool last)
{
    uint64_t now = ds_now_ns();
    double s = (double)(now - j->begin_ns) / 1e9, part = j->in_total ? (double)j->in_bytes / (double)j->in_total : 0.0;
    char bar[21] = "--------------------";

    if (!j->bar || (!last && now - j->bar_ns < 100000000))
        return;
    j->bar_ns = now;
    if (last) {
        fputs("\r\033[K", stderr);
        return;
    }
    part *= j->index ? (double)(j->index - j->open) / (double)j->index : 0.0; /* of what was read, what is done */
    memset(bar, '#', (size_t)(20.0 * (part < 1.0 ? part : 1.0)));
    fputs("\r\033[K", stderr);
    if (j->in_total)
        fprintf(stderr, "[%s] ", bar);
    fprintf(stderr, "%" PRIu64 " done, %" PRIu64 " in work, %.0f tokens/s", j->done + j->failed, j->open,
            (double)j->new_tokens / (s > 0.0 ? s : 1.0));
    fflush(stderr);
}

/* ---- one answer ---- */

static void note_logprob(ds_buf *b, const ds_event *ev)
{
    if (b->len)
        ds_buf_putc(b, ',');
    if (isnan(ev->token.logprob)) { /* inside a picture */
        ds_buf_puts(b, "null");
        return;
    }
    ds_buf_printf(b, "{\"id\":%d,\"logprob\":", ev->token.id);
    ds_json_write_f64(b, (double)ev->token.logprob);
    if (ev->kind == DS_EV_PROMPT)
        ds_buf_printf(b, ",\"rank\":%u", ev->token.rank);
    ds_buf_puts(b, ",\"top\":[");
    for (uint32_t i = 0; i < ev->token.n_top && ev->token.top[i].id >= 0; i++) {
        ds_buf_printf(b, "%s{\"id\":%d,\"logprob\":", i ? "," : "", ev->token.top[i].id);
        ds_json_write_f64(b, (double)ev->token.top[i].logprob);
        ds_buf_putc(b, '}');
    }
    ds_buf_puts(b, "]}");
}

static bool take_id(sample *s, ds_token id)
{
    if (s->n_ids == s->cap_ids) {
        uint32_t cap = s->cap_ids ? 2 * s->cap_ids : 256;
        ds_token *p = realloc(s->ids, cap * sizeof *p);
        if (!p)
            return false;
        s->ids = p;
        s->cap_ids = cap;
    }
    s->ids[s->n_ids++] = id;
    return true;
}

static void show_text(job *j, sample *s, size_t upto)
{
    if (!j->live || upto <= s->text.sent)
        return;
    fwrite(s->text.text.p + s->text.sent, 1, upto - s->text.sent, stdout);
    s->text.sent = upto;
    fflush(stdout);
}

/* An end of text that is reported, and isn't one that the line named: no part of the answer. */
static bool ends_by_itself(const ds_cli_gen *g, const ds_cli_request *q, ds_token id)
{
    bool own = false;

    for (size_t i = 0; i < g->n_stop_ids && !q->info.ignore_eos; i++)
        own = own || g->stop_ids[i] == id;
    for (uint32_t i = 0; i < q->info.n_stop_ids; i++)
        if (q->info.stop_ids[i] == id)
            return false;
    return own;
}

static void take_event(job *j, const ds_event *ev)
{
    static const char *const reasons[DS_N_ENDED] = { "stop", "stop", "length", "stop", "stop", "stop", "stop" };
    task *t = (task *)(uintptr_t)ev->cookie;
    sample *s = &t->samples[ev->sample];

    switch (ev->kind) {
    case DS_EV_START:
        t->cached = ev->start.cached;
        if (t->q.info.prompt_logprobs && ev->sample == 0) /* nothing stands in front of the first */
            ds_buf_puts(&t->prompt_logprobs, "null");
        break;
    case DS_EV_TOKEN:
        j->new_tokens++;
        if (t->q.info.include_stop && ends_by_itself(j->g, &t->q, ev->token.id))
            break;
        if (!take_id(s, ev->token.id))
            ds_fail(&t->err, DS_E_NOMEM, "out of memory for the answer");
        if (t->q.info.logprobs)
            note_logprob(&s->logprobs, ev);
        ds_cli_text_push(&s->text, ev->token.id, ev->token.held_bytes);
        show_text(j, s, ds_cli_text_safe(&s->text));
        break;
    case DS_EV_PROMPT:
        note_logprob(&t->prompt_logprobs, ev);
        break;
    case DS_EV_END:
        s->completion_tokens = ev->end.completion_tokens;
        s->reason = reasons[ev->end.reason];
        if (ev->end.reason == DS_ENDED_STOP_STRING)
            ds_cli_text_cut(&s->text, t->q.info.stop[ev->end.stop], t->q.info.include_stop);
        show_text(j, s, s->text.text.len);
        if (ev->end.reason == DS_ENDED_FAILED || ev->end.reason == DS_ENDED_LOST)
            ds_cli_request_failure(&t->q, ev, &t->err);
        if (ev->end.reason == DS_ENDED_LOST)
            ds_service_state(ds_llm_service(j->g->llm), &t->err); /* says more, if it says something */
        if (s->text.text.oom || s->logprobs.oom || t->prompt_logprobs.oom)
            ds_fail(&t->err, DS_E_NOMEM, "out of memory for the answer");
        t->ended = t->ended || ev->end.last;
        break;
    }
}

/* ---- tasks ---- */

static void free_task(task *t)
{
    for (uint32_t k = 0; t->samples && k < t->q.info.n; k++) {
        ds_cli_text_fini(&t->samples[k].text);
        free(t->samples[k].ids);
        ds_buf_free(&t->samples[k].logprobs);
    }
    ds_buf_free(&t->prompt_logprobs);
    free(t->samples);
    ds_cli_request_fini(&t->q);
    free(t);
}

static task *new_task(job *j)
{
    task *t = calloc(1, sizeof *t);

    if (!t)
        return NULL;
    t->index = j->index++;
    *j->tail = t;
    j->tail = &t->next;
    j->open++;
    return t;
}

/* Hands it to the engine. Anything but DS_E_AGAIN settles it. */
static void submit(job *j, task *t)
{
    ds_gen_request r;
    ds_gen_room room;

    if (!t->samples) {
        t->samples = calloc(t->q.info.n, sizeof *t->samples);
        if (!t->samples)
            ds_fail(&t->err, DS_E_NOMEM, "out of memory");
        for (uint32_t k = 0; k < t->q.info.n && t->err.rc == DS_OK; k++)
            ds_cli_text_init(&t->samples[k].text, j->g->tokenizer, &t->err);
        if (t->err.rc != DS_OK)
            return;
    }
    switch (ds_cli_request_begin(&t->q, j->g, &t->err)) {
    case DS_OK:
        break;
    case DS_E_AGAIN:
        t->err = (ds_err){ 0 };
        return;
    default:
        return;
    }
    r = ds_cli_request_engine(&t->q, j->g, &room);
    r.cookie = (uintptr_t)t;
    switch (ds_engine_add(j->g->engine, &r, &t->id, &t->err)) {
    case DS_OK:
        t->added = true;
        break;
    case DS_E_AGAIN:
        t->err = (ds_err){ 0 };
        break;
    default:
        break;
    }
}

static void put_sample(const task *t, uint32_t k, ds_buf *b)
{
    const sample *s = &t->samples[k];

    ds_buf_printf(b, "{\"index\":%" PRIu64, t->index);
    if (t->q.info.n > 1)
        ds_buf_printf(b, ",\"sample\":%u", k);
    ds_buf_puts(b, ",\"ids\":[");
    for (uint32_t i = 0; i < s->n_ids; i++)
        ds_buf_printf(b, "%s%d", i ? "," : "", s->ids[i]);
    ds_buf_puts(b, "],\"text\":");
    ds_json_write_str(b, ds_buf_str(&s->text.text), s->text.text.len, DS_JSON_COMPACT);
    ds_buf_printf(b, ",\"finish_reason\":\"%s\",\"usage\":{\"prompt_tokens\":%zu,\"completion_tokens\":%u,\"cached_tokens\":%u}", s->reason,
                  t->q.ids.n, s->completion_tokens, t->cached);
    if (t->q.info.logprobs) {
        ds_buf_puts(b, ",\"logprobs\":[");
        ds_buf_put(b, ds_buf_str(&s->logprobs), s->logprobs.len);
        ds_buf_putc(b, ']');
    }
    if (t->q.info.prompt_logprobs) {
        ds_buf_puts(b, ",\"prompt_logprobs\":[");
        ds_buf_put(b, ds_buf_str(&t->prompt_logprobs), t->prompt_logprobs.len);
        ds_buf_putc(b, ']');
    }
    ds_buf_puts(b, "}\n");
}

/* The task's result lines, or its error line. */
static void put_task(job *j, const task *t)
{
    ds_buf b = { 0 };

    for (uint32_t k = 0; t->err.rc == DS_OK && k < t->q.info.n; k++)
        put_sample(t, k, &b);
    if (b.oom || t->err.rc != DS_OK) {
        const char *why = b.oom ? "out of memory for the answer" : t->err.msg;
        ds_buf_clear(&b);
        ds_buf_printf(&b, "{\"index\":%" PRIu64 ",\"error\":{\"message\":", t->index);
        ds_json_write_str(&b, why, strlen(why), DS_JSON_COMPACT);
        ds_buf_puts(&b, "}}\n");
        j->failed++;
    } else {
        j->done++;
    }
    fwrite(ds_buf_str(&b), 1, b.len, stdout);
    fflush(stdout);
    ds_buf_free(&b);
}

/* ---- many requests ---- */

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

/* The next line as a task. False: there is none (*rc stays DS_OK), or it can't be read. */
static bool read_task(job *j, ds_rc *rc, ds_err *err)
{
    uint64_t bytes;

    while (ds_cli_input_line(&j->in, j->o->input, &j->line, &bytes, rc, err)) {
        j->in_bytes += bytes + 1;
        if (blank(&j->line)) {
            j->index++;
            continue;
        }
        task *t = new_task(j);
        if (!t) {
            *rc = ds_fail(err, DS_E_NOMEM, "out of memory");
            return false;
        }
        if (bytes > DS_CLI_LINE_MAX_BYTES)
            ds_fail(&t->err, DS_E_FORMAT, "the line has %" PRIu64 " bytes, at most %d are taken", bytes, DS_CLI_LINE_MAX_BYTES);
        else if (ds_cli_request_init(&t->q, &j->o->g, t->index, &t->err) == DS_OK)
            ds_cli_request_json(&t->q, j->g, j->line.p, j->line.len, &t->err);
        if (t->err.rc == DS_E_CANCELED) /* its pictures were on their way when the signal came: it counts as missing */
            t->err = (ds_err){ 0 };
        return true;
    }
    return false;
}

/* Whether a read would not wait, so that a slow writer doesn't hold up results that are there. */
static bool input_ready(const job *j)
{
    struct pollfd p = { .fd = j->in.fd, .events = POLLIN };
    return j->in.at < j->in.n || poll(&p, 1, 0) != 0;
}

/* Lines that are left, as far as they can be counted at once: what comes through a pipe may never end. */
static uint64_t count_rest(job *j, bool *more)
{
    const uint64_t begin = ds_now_ns();
    uint64_t lines = 0;
    bool text = false;

    j->in.deaf = true;
    *more = j->in_total == 0;
    for (uint64_t n = 1; !*more; n++) {
        int c = ds_cli_input_byte(&j->in);
        text = text || (c != -1 && !is_space(c));
        if ((c == '\n' || c == -1) && text) {
            lines++;
            text = false;
        }
        if (c == -1)
            break;
        *more = n % 65536 == 0 && ds_now_ns() - begin > COUNT_NS;
    }
    return lines;
}

/* Lets the engine have as many requests as keep it busy, and reads on no further than that. */
static ds_rc feed(job *j, ds_err *err)
{
    ds_rc rc = DS_OK;
    uint64_t enough = 4 * (uint64_t)j->g->parallel;

    for (task *t = j->head; t; t = t->next)
        if (!t->added && t->err.rc == DS_OK)
            submit(j, t);
    while (!j->eof && j->open < enough && !ds_cli_signal() && (!j->head || input_ready(j))) {
        task **at = j->tail;
        if (!read_task(j, &rc, err))
            j->eof = true;
        else if ((*at)->err.rc == DS_OK && !ds_cli_signal())
            submit(j, *at);
    }
    return rc;
}

/* Nothing more will happen to it. */
static bool settled(const task *t)
{
    return t->ended || (!t->added && t->err.rc != DS_OK);
}

static ds_rc run_lines(job *j, ds_err *err)
{
    ds_event ev[256];

    while (!ds_cli_signal()) {
        ds_rc rc = feed(j, err);
        if (rc != DS_OK && rc != DS_E_CANCELED)
            return rc;
        if (!j->head)
            break;
        if (j->head->added && ds_engine_wait(j->g->engine, 50)) {
            size_t n = ds_engine_poll(j->g->engine, ev, sizeof ev / sizeof *ev);
            for (size_t i = 0; i < n; i++)
                take_event(j, &ev[i]);
        }
        for (task *t = j->head; t && settled(t); t = j->head) {
            put_task(j, t);
            j->head = t->next;
            if (!j->head)
                j->tail = &j->head;
            j->open--;
            free_task(t);
        }
        if (ferror(stdout))
            return ds_fail(err, DS_E_IO, "standard output: %s", strerror(errno));
        show_bar(j, false);
    }
    return ds_cli_signal() ? ds_fail(err, DS_E_CANCELED, "stopped") : DS_OK;
}

/* ---- one request ---- */

static bool one_event(void *ctx, const ds_event *ev)
{
    if (ev)
        take_event(ctx, ev);
    return !ds_cli_signal();
}

static ds_rc run_one(job *j, ds_cli_ids *ids, ds_err *err)
{
    task *t = new_task(j);
    ds_gen_request r;
    ds_gen_room room;
    ds_rc rc = t ? ds_cli_request_init(&t->q, &j->o->g, 0, err) : ds_fail(err, DS_E_NOMEM, "out of memory");

    if (rc == DS_OK && j->o->prompt) {
        rc = ds_cli_request_text(&t->q, j->g, j->o->prompt, strlen(j->o->prompt), err);
    } else if (rc == DS_OK) {
        t->q.ids = (ds_ids){ ids->p, ids->n, ids->n };
        ids->p = NULL;
    }
    if (rc == DS_OK) {
        t->samples = calloc(1, sizeof *t->samples);
        rc = t->samples ? ds_cli_text_init(&t->samples->text, j->g->tokenizer, err) : ds_fail(err, DS_E_NOMEM, "out of memory");
    }
    if (rc == DS_OK)
        rc = ds_cli_request_begin(&t->q, j->g, err);
    if (rc == DS_OK) {
        r = ds_cli_request_engine(&t->q, j->g, &room);
        r.cookie = (uintptr_t)t;
        rc = ds_cli_gen_run(j->g, &r, one_event, j, err);
    }
    if (t && t->err.rc != DS_OK) /* says more than the run's own */
        rc = ds_fail(err, t->err.rc, "%s", t->err.msg);
    if (rc == DS_OK && ds_cli_signal())
        return ds_fail(err, DS_E_CANCELED, "stopped");
    if (rc != DS_OK)
        return rc;
    if (j->o->json) {
        put_task(j, t);
        return DS_OK;
    }
    fwrite(ds_buf_str(&t->samples->text.text) + t->samples->text.sent, 1, t->samples->text.text.len - t->samples->text.sent, stdout);
    putchar('\n');
    j->done++;
    return DS_OK;
}

/* ---- the end ---- */

static double upto(const ds_gen_hist *h, double part)
{
    uint64_t seen = 0;

    for (int i = 0; i < DS_GEN_HIST; i++) {
        seen += h->bucket[i];
        if (h->n && (double)seen >= part * (double)h->n)
            return (double)(2ull << i) / 1e3;
    }
    return 0.0;
}

static void print_figures(const job *j)
{
    double wall = (double)(ds_now_ns() - j->begin_ns) / 1e9;
    uint64_t drafted = 0, kept = 0;
    ds_gen_stats st;

    ds_engine_stats_get(j->g->engine, &st);
    for (int i = 0; i < DS_GEN_MAX_DRAFTS; i++) {
        drafted += st.drafted[i];
        kept += st.kept[i];
    }
    fprintf(stderr, "%" PRIu64 " request%s in %.2f s: %" PRIu64 " prompt tokens, %" PRIu64 " new ones, %.0f/s", j->done,
            j->done == 1 ? "" : "s", wall, st.prompt_tokens, st.output_tokens, wall > 0.0 ? (double)st.output_tokens / wall : 0.0);
    if (drafted)
        fprintf(stderr, "; %.0f %% of the drafts kept", 100.0 * (double)kept / (double)drafted);
    fputc('\n', stderr);
    if (j->in.fd == -1)
        return;
    fprintf(stderr,
            "  cached prompt tokens      %12" PRIu64 "\n  steps, rows a step        %12" PRIu64
            " %8.1f\n  device busy               %12.1f %%\n"
            "  first token, within (ms)  p50 %.0f  p90 %.0f  p99 %.0f\n  between tokens (ms)       p50 %.1f  p90 %.1f  p99 %.1f\n",
            st.hit_state_tokens + st.hit_replay_tokens, st.steps, st.steps ? (double)st.step_rows / (double)st.steps : 0.0,
            100.0 * (double)st.device_busy_ns / (double)(st.device_busy_ns + st.device_idle_ns + 1), upto(&st.ttft, 0.5),
            upto(&st.ttft, 0.9), upto(&st.ttft, 0.99), upto(&st.tbt, 0.5), upto(&st.tbt, 0.9), upto(&st.tbt, 0.99));
}

/* Writes what is complete, in order, and says how much isn't. */
static int stopped_by_signal(job *j)
{
    uint64_t missing = 0;
    bool more;

    if (j->in.fd == -1) {
        fputs("deepserve generate: stopped, the result is missing\n", stderr);
        return 128 + ds_cli_signal();
    }
    for (const task *t = j->head; t; t = t->next) {
        if (settled(t))
            put_task(j, t);
        else
            missing++;
    }
    missing += count_rest(j, &more);
    fprintf(stderr, "deepserve generate: stopped with %" PRIu64 " results complete, %" PRIu64 "%s missing\n", j->done + j->failed, missing,
            more ? " or more" : "");
    return 128 + ds_cli_signal();
}

/* What the engine would refuse in every request. */
static bool options_fit(const options *o)
{
    size_t n = 0;

    for (size_t i = 0; i < o->g.stop.n; i++) {
        if (strlen(o->g.stop.v[i]) > DS_CLI_MAX_STOP_BYTES)
            return ds_cli_wrong("generate", "--stop: a string of %zu bytes, at most %d", strlen(o->g.stop.v[i]), DS_CLI_MAX_STOP_BYTES),
                   false;
        n += *o->g.stop.v[i] != '\0';
    }
    if (n > DS_CLI_MAX_STOPS)
        return ds_cli_wrong("generate", "--stop: %zu strings, at most %d", n, DS_CLI_MAX_STOPS), false;
    if (o->g.min_tokens > o->g.max_tokens)
        return ds_cli_wrong("generate", "--min-tokens is more than --max-tokens"), false;
    return true;
}

/* What --json-schema and its like say, into o->g.what. *text is what it points into, to be freed. */
static ds_rc read_constraint(options *o, char **text, ds_err *err)
{
    const struct {
        const char *file;
        ds_constraint_kind kind;
    } files[] = { { o->json_schema, DS_CONSTRAINT_JSON_SCHEMA },
                  { o->ebnf, DS_CONSTRAINT_EBNF },
                  { o->lark, DS_CONSTRAINT_LARK },
                  { o->choices, DS_CONSTRAINT_CHOICE } };
    size_t n;
    ds_rc rc;

    if (o->regex)
        o->g.what = (ds_constrain_what){ .kind = DS_CONSTRAINT_REGEX, .text = { o->regex, strlen(o->regex) } };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (!files[i].file)
            continue;
        rc = ds_file_read(text, &n, files[i].file, CONSTRAINT_MAX_BYTES, err);
        if (rc != DS_OK)
            return rc;
        o->g.what = (ds_constrain_what){ .kind = files[i].kind, .text = { *text, n } };
    }
    return DS_OK;
}

/* Said before any line is read. */
static ds_rc check_constraint(const options *o, ds_cli_gen *g, ds_err *err)
{
    ds_cli_request q = { .info = { .n = 1 }, .what = o->g.what };
    ds_rc rc = ds_cli_request_begin(&q, g, err);

    ds_cli_request_fini(&q);
    return rc;
}

/* Whatever the engine still works on is canceled; when this returns it calls no grammar. */
static void cancel_rest(job *j)
{
    ds_event ev[64];
    uint64_t left = 0;

    for (task *t = j->head; t; t = t->next)
        if (t->added && !t->ended) {
            ds_engine_cancel(j->g->engine, t->id);
            left++;
        }
    while (left > 0) {
        size_t n = ds_engine_wait(j->g->engine, 50) ? ds_engine_poll(j->g->engine, ev, sizeof ev / sizeof *ev) : 0;
        for (size_t i = 0; i < n; i++)
            left -= ev[i].kind == DS_EV_END && ev[i].end.last;
    }
    for (task *t = j->head, *next; t; t = next) {
        next = t->next;
        free_task(t);
    }
}

int ds_cmd_generate(int argc, char **argv)
{
    options o = { 0 };
    char *constraint = NULL;
    ds_err err = { 0 };
    ds_cli_gen g = { 0 };
    ds_cli_ids ids = { 0 };
    job j = { .o = &o, .g = &g, .tail = &j.head, .in = { .fd = -1 } };
    struct stat st = { 0 };
    char q[112];
    int speculate, status = ds_cli_parse(&command, &o, argc, argv, NULL);
    bool wrong = false;
    ds_rc rc = DS_OK;

    if (status != -1)
        return status;
    if (!!o.prompt + !!o.tokens + !!o.input != 1)
        return ds_cli_wrong("generate", "expected one of --prompt, --tokens and --input");
    status = ds_cli_speculate(&speculate, o.g.speculate, "generate");
    if (status != -1)
        return status;
    if (!options_fit(&o))
        return 2;
    if (!!o.json_schema + !!o.regex + !!o.ebnf + !!o.lark + !!o.choices > 1)
        return ds_cli_wrong("generate", "at most one of --json-schema, --regex, --ebnf, --lark and --choices");
    ds_cli_signals_end();
    if (o.tokens)
        rc = ds_cli_ids_parse(&ids, o.tokens, &wrong, &err);
    if (wrong)
        return ds_cli_wrong("generate", "%s", err.msg);
    if (rc == DS_OK && o.input) {
        j.in.fd = strcmp(o.input, "-") == 0 ? STDIN_FILENO : open(o.input, O_RDONLY | O_CLOEXEC);
        if (j.in.fd == -1 || fstat(j.in.fd, &st) == -1)
            rc = ds_fail(&err, DS_E_IO, "%s: %s", ds_file_label(q, sizeof q, o.input), strerror(errno));
        else if (S_ISDIR(st.st_mode))
            rc = ds_fail(&err, DS_E_IO, "%s: is a directory", ds_file_label(q, sizeof q, o.input));
    }
    if (rc == DS_OK)
        rc = read_constraint(&o, &constraint, &err);
    if (rc == DS_OK)
        rc = ds_cli_gen_open(&g, &o.g, speculate, o.input ? (uint32_t)o.g.parallel : 1, &err);
    g.fetch = o.fetch;
    if (rc == DS_OK)
        rc = ds_cli_ids_check(&ids, ds_model_config(g.model)->vocab_size, &err);
    if (rc == DS_OK)
        rc = check_constraint(&o, &g, &err);
    if (rc == DS_OK) {
        j.live = !o.json && !o.input && isatty(1);
        j.bar = o.input && isatty(2);
        j.in_total = o.input && S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
        ds_cli_signals_catch();
        j.begin_ns = ds_now_ns();
        rc = o.input ? run_lines(&j, &err) : run_one(&j, &ids, &err);
        show_bar(&j, true);
        if (rc == DS_OK)
            print_figures(&j);
    }
    status = rc == DS_OK ? j.failed > 0 : (rc == DS_E_CANCELED ? stopped_by_signal(&j) : ds_cli_fail("generate", &err));
    cancel_rest(&j);
    ds_cli_gen_close(&g);
    free(constraint);
    ds_buf_free(&j.line);
    free(ids.p);
    if (j.in.fd > STDIN_FILENO)
        close(j.in.fd);
    return status;
}
