/* deepserve chat: a conversation in the terminal. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/gen.h"
#include "cli/input.h"
#include "reply/parser.h"

typedef struct {
    ds_cli_gen_opts g;
    const char *system;
    int think;
    bool show_thinking, echo;
} options;

static const ds_opt table[] = {
    DS_CLI_GEN_TABLE(options),
    { .name = "system", .type = DS_OPT_STR, .offset = offsetof(options, system), .arg = "TEXT", .help = "system message" },
    { .name = "thinking",
      .type = DS_OPT_ENUM,
      .offset = offsetof(options, think),
      .def = "off",
      .arg = "NAME",
      .choices = "off|low|high|max",
      .help = "let the model reason before it answers" },
    { .name = "show-thinking",
      .type = DS_OPT_FLAG,
      .offset = offsetof(options, show_thinking),
      .def = "true",
      .help = "print the reasoning, dimmed" },
    { .name = "echo",
      .type = DS_OPT_FLAG,
      .offset = offsetof(options, echo),
      .help = "print each message before its answer; for input that isn't a terminal" },
    { 0 },
};

static const ds_opt_cmd command = {
    .command = "deepserve chat",
    .summary =
        "Talks with a model. Ctrl-C stops an answer, Ctrl-D ends. /new starts over, /undo takes the last turn back, /help lists all.\n"
        "Without a terminal each line of standard input is a turn and the answers are printed.",
    .usage = "--model DIR [options]",
    .example = "deepserve chat --model models/demo --temperature 0.7",
    .opts = table,
};

/* The conversation is kept as the body of a chat request: what the model sees is exactly what an API client would get. */
typedef struct {
    const options *o;
    ds_cli_gen g;
    ds_buf messages; /* JSON, comma-separated, after the system message */
    size_t before;   /* length of `messages` before the last turn, for /undo */
    uint64_t turn;
    bool tty;
    /* the answer in work */
    ds_parser *parser;
    ds_decoder dec;
    char *room;
    ds_buf content, reasoning;
    bool thinking_shown, cut;
    uint32_t start; /* cached prompt tokens */
    ds_event end;
} chat;

static void add_message(ds_buf *b, const char *role, const char *text, size_t n)
{
    ds_buf_printf(b, "%s{\"role\":\"%s\",\"content\":", b->len ? "," : "", role);
    ds_json_write_str(b, text, n, DS_JSON_COMPACT);
    ds_buf_putc(b, '}');
}

static ds_rc make_request(const chat *c, ds_request **out, ds_err *err)
{
    static const char *const effort[] = { "none", "low", "high", "max" };
    ds_buf body = { 0 };
    ds_api_error refusal;
    ds_recipe_opts opts;
    ds_rc rc;

    ds_buf_printf(&body, "{\"model\":\"local\",\"reasoning_effort\":\"%s\",\"messages\":[", effort[c->o->think]);
    if (c->o->system) {
        ds_buf_puts(&body, "{\"role\":\"system\",\"content\":");
        ds_json_write_str(&body, c->o->system, strlen(c->o->system), DS_JSON_COMPACT);
        ds_buf_puts(&body, "},");
    }
    ds_buf_put(&body, ds_buf_str(&c->messages), c->messages.len);
    ds_buf_puts(&body, "]}");
    ds_recipe_opts_init(&opts);
    if (body.oom)
        rc = ds_fail(err, DS_E_NOMEM, "out of memory");
    else
        rc = ds_request_parse(out, &(ds_request_parse_args){ .proto = DS_PROTO_CHAT, .opts = &opts }, body.p, body.len, &refusal, err);
    ds_buf_free(&body);
    return rc;
}

static void take_event(void *ctx, const ds_parse_event *ev)
{
    chat *c = ctx;

    if (ev->kind == DS_PARSE_REASONING) {
        ds_buf_put(&c->reasoning, ev->bytes, ev->n);
        if (!c->o->show_thinking)
            return;
        if (!c->thinking_shown && c->tty)
            fputs("\033[2m", stdout);
        c->thinking_shown = true;
    } else if (ev->kind == DS_PARSE_CONTENT) {
        ds_buf_put(&c->content, ev->bytes, ev->n);
        if (c->thinking_shown)
            fputs(c->tty ? "\033[0m\n\n" : "\n\n", stdout);
        c->thinking_shown = false;
    } else {
        return;
    }
    fwrite(ev->bytes, 1, ev->n, stdout);
    fflush(stdout);
}

static bool take_engine_event(void *ctx, const ds_event *ev)
{
    chat *c = ctx;
    uint32_t n_tokens;

    if (ev && ev->kind == DS_EV_START)
        c->start = ev->start.cached;
    if (ev && ev->kind == DS_EV_END)
        c->end = *ev;
    if (ev && ev->kind == DS_EV_TOKEN && !c->cut) {
        size_t n = ds_decoder_push(&c->dec, (uint32_t)ev->token.id, c->room, &n_tokens);
        ds_parser_push(c->parser, c->room, n, n_tokens);
    }
    c->cut = ds_cli_signal() != 0;
    return !c->cut && !ds_parser_done(c->parser);
}

static ds_rc make_parser(chat *c, const ds_request_info_data *info, ds_err *err)
{
    const char *stops[DS_OPT_LIST_MAX];
    size_t lens[DS_OPT_LIST_MAX];
    ds_parser_opts po = {
        .sink = take_event,
        .ctx = c,
        .start = info->thinking ? DS_PARSER_REASONING : DS_PARSER_CONTENT,
        .stops = stops,
        .stop_bytes = lens,
        .n_stops = c->o->g.stop.n,
    };
    for (size_t i = 0; i < po.n_stops; i++) {
        stops[i] = c->o->g.stop.v[i];
        lens[i] = strlen(stops[i]);
    }
    return ds_parser_create(&c->parser, &po, err);
}

static void print_figures(const chat *c, size_t n_prompt)
{
    const char *how = c->cut ? "(stopped) " : (c->end.end.reason == DS_ENDED_LENGTH ? "(cut at its limit) " : "");
    uint32_t n = c->end.end.n_tokens;

    fprintf(stderr, "\033[2m%s%zu tokens, %u of them cached, first answer after %.0f ms; %u new, %.0f/s\033[0m\n", how, n_prompt, c->start,
            (double)c->end.end.prefill_us / 1e3, n,
            n > 1 && c->end.end.decode_us ? (double)(n - 1) * 1e6 / (double)c->end.end.decode_us : 0.0);
}

/* Answers the conversation as it stands, printing as it goes. */
static ds_rc answer(chat *c, ds_err *err)
{
    const ds_cli_gen_opts *o = &c->o->g;
    ds_request *r = NULL;
    const ds_run *runs;
    size_t n_runs;
    ds_ids ids = { 0 };
    ds_rc rc = make_request(c, &r, err);

    ds_buf_clear(&c->content);
    ds_buf_clear(&c->reasoning);
    c->thinking_shown = c->cut = false;
    if (rc == DS_OK)
        rc = ds_request_render(r, 0, &runs, &n_runs, err);
    if (rc == DS_OK)
        rc = ds_encoder_runs(c->g.encoder, runs, n_runs, &ids, err);
    if (rc == DS_OK)
        rc = make_parser(c, ds_request_info(r), err);
    if (rc == DS_OK) {
        ds_gen_request q = {
            .prompt = (const int32_t *)ids.p,
            .n_prompt = (uint32_t)ids.n,
            .max_tokens = (uint32_t)o->max_tokens,
            .sampling = { .temperature = o->temperature,
                          .top_p = o->top_p,
                          .min_p = o->min_p,
                          .top_k = (uint32_t)o->top_k,
                          .repetition_penalty = o->repetition,
                          .presence_penalty = o->presence,
                          .frequency_penalty = o->frequency,
                          .seed = (uint64_t)o->seed + c->turn },
            .stop_ids = c->g.stop_ids,
            .n_stop_ids = c->g.n_stop_ids,
        };
        ds_decoder_init(&c->dec, c->g.tokenizer, false);
        rc = ds_cli_gen_run(&c->g, &q, take_engine_event, c, err);
    }
    if (rc == DS_OK) {
        ds_parser_finish(c->parser, c->end.end.reason == DS_ENDED_LENGTH ? DS_BACKEND_LENGTH : DS_BACKEND_STOP);
        fputs(c->thinking_shown && c->tty ? "\033[0m\n" : "\n", stdout);
        fflush(stdout);
        if (c->tty)
            print_figures(c, ids.n);
        add_message(&c->messages, "assistant", ds_buf_str(&c->content), c->content.len);
        if (c->messages.oom || c->content.oom || c->reasoning.oom)
            rc = ds_fail(err, DS_E_NOMEM, "out of memory for the conversation");
    }
    ds_parser_destroy(c->parser);
    c->parser = NULL;
    ds_request_destroy(r);
    ds_ids_free(&ids);
    return rc;
}

static void print_commands(void)
{
    fputs("/new    start over        /undo   take the last turn back\n/help   this list         /quit   leave (also Ctrl-D)\n"
          "Ctrl-C stops an answer.\n",
          stderr);
}

/* A line that starts with a slash and is one of ours. False: it is a message. */
static bool slash_command(chat *c, const char *line, bool *quit)
{
    if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0) {
        *quit = true;
    } else if (strcmp(line, "/new") == 0) {
        ds_buf_clear(&c->messages);
        c->before = 0;
        fputs("a new conversation\n", stderr);
    } else if (strcmp(line, "/undo") == 0) {
        fputs(c->messages.len > c->before ? "the last turn is forgotten\n" : "nothing to take back\n", stderr);
        c->messages.len = c->before;
    } else if (strcmp(line, "/help") == 0) {
        print_commands();
    } else {
        return false;
    }
    return true;
}

static ds_rc talk(chat *c, ds_err *err)
{
    ds_cli_input in = { .fd = STDIN_FILENO };
    ds_buf line = { 0 };
    uint64_t bytes;
    bool quit = false;
    ds_rc rc = DS_OK;

    while (!quit && rc == DS_OK) {
        ds_err bad = { 0 };
        if (c->tty) {
            fputs("\033[1m> \033[0m", stderr);
            fflush(stderr);
        }
        ds_cli_signal_forget();
        if (!ds_cli_input_line(&in, "standard input", &line, &bytes, &rc, err)) {
            if (rc != DS_E_CANCELED)
                break;
            rc = DS_OK;
            if (ds_cli_signal() != SIGINT || !c->tty)
                break;
            fputc('\n', stderr); /* Ctrl-C at the prompt: a fresh line */
            continue;
        }
        if (bytes > DS_CLI_LINE_MAX_BYTES) {
            rc = ds_fail(err, DS_E_FORMAT, "standard input: the line has %" PRIu64 " bytes, at most %d are taken", bytes,
                         DS_CLI_LINE_MAX_BYTES);
            break;
        }
        if (line.len > 0 && line.p[line.len - 1] == '\r')
            line.p[--line.len] = '\0';
        if (line.len == 0 || (c->tty && slash_command(c, line.p, &quit)))
            continue;
        size_t before = c->messages.len;
        if (c->o->echo && !c->tty)
            printf("> %s\n", line.p);
        add_message(&c->messages, "user", line.p, line.len);
        if (answer(c, &bad) == DS_OK) {
            c->before = before;
            c->turn++;
        } else if (c->tty && bad.rc != DS_E_NOMEM) { /* a turn that can't be answered isn't part of the conversation */
            fprintf(stderr, "%s\n", bad.msg);
            c->messages.len = before;
        } else {
            *err = bad;
            rc = bad.rc;
        }
        if (ferror(stdout)) /* main() says so */
            quit = true;
        if (ds_cli_signal() == SIGTERM || (ds_cli_signal() && !c->tty))
            quit = true;
    }
    if (c->tty)
        fputc('\n', stderr);
    ds_buf_free(&line);
    return rc;
}

int ds_cmd_chat(int argc, char **argv)
{
    options o = { 0 };
    ds_err err = { 0 };
    chat c = { .o = &o };
    int speculate, status = ds_cli_parse(&command, &o, argc, argv, NULL);
    ds_rc rc;

    if (status != -1)
        return status;
    status = ds_cli_speculate(&speculate, o.g.speculate, "chat");
    if (status != -1)
        return status;
    rc = ds_cli_gen_open(&c.g, &o.g, speculate, 1, &err);
    if (rc == DS_OK) {
        c.tty = isatty(0) && isatty(1);
        c.room = malloc(ds_decoder_room(c.g.tokenizer));
        if (!c.room)
            rc = ds_fail(&err, DS_E_NOMEM, "out of memory");
    }
    if (rc == DS_OK) {
        if (c.tty) {
            fprintf(stderr, "%s, context of %u tokens, %s kernels\n", o.g.model, c.g.context, ds_model_kernels(c.g.model));
            print_commands();
        }
        ds_cli_signals_catch();
        rc = talk(&c, &err);
    }
    free(c.room);
    ds_buf_free(&c.messages);
    ds_buf_free(&c.content);
    ds_buf_free(&c.reasoning);
    ds_cli_gen_close(&c.g);
    if (rc != DS_OK)
        return ds_cli_fail("chat", &err);
    return ds_cli_signal() ? 128 + ds_cli_signal() : 0;
}
