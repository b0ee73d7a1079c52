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
#include "cli/term.h"
#include "cli/wrap.h"
#include "reply/parser.h"

typedef struct {
    ds_cli_gen_opts g;
    const char *system, *history;
    int think;
    bool show_thinking, echo, rates;
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
    { .name = "rates",
      .type = DS_OPT_FLAG,
      .offset = offsetof(options, rates),
      .help = "print tokens and speed after each answer; /rates does it once" },
    { .name = "history",
      .type = DS_OPT_STR,
      .offset = offsetof(options, history),
      .arg = "FILE",
      .help = "keep what is typed here for the next time; without it until the end" },
    { .name = "echo",
      .type = DS_OPT_FLAG,
      .offset = offsetof(options, echo),
      .help = "print each message before its answer; for input that isn't a terminal" },
    { 0 },
};

static const ds_opt_cmd command = {
    .command = "deepserve chat",
    .summary = "Talks with a model. Lines can be edited, and the arrow keys bring back earlier ones. Ctrl-C stops an answer, twice at the "
               "prompt it ends, as\n"
               "Ctrl-D does. A line that ends with a backslash goes on in the next one, and a message of several lines can stand between "
               "two lines of \"\"\".\n"
               "/new starts over, /undo takes the last turn back, /help lists all.\n"
               "Without a terminal each line of standard input is a turn and the answers are printed.",
    .usage = "--model DIR [options]",
    .example = "deepserve chat --model models/demo --temperature 0.7",
    .opts = table,
};

/* The conversation is kept as the body of a chat request: what the model sees is exactly what an API client would
 * get. */
typedef struct {
    const options *o;
    ds_cli_gen g;
    ds_buf messages; /* JSON, comma-separated, after the system message */
    size_t before;   /* length of `messages` before the last turn, for /undo */
    uint64_t turn;
    bool tty;
    ds_term *term; /* NULL without a terminal */
    ds_wrap wrap;
    bool interrupted; /* Ctrl-C was the last thing typed */
    /* the answer in work, and the last one's figures */
    size_t n_prompt;
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

static void end_thinking(chat *c, const char *lines)
{
    if (c->tty) {
        ds_wrap_end(&c->wrap);
        fputs("\033[0m", stdout);
    }
    fputs(lines, stdout);
    c->thinking_shown = false;
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
            end_thinking(c, "\n\n");
    } else {
        return;
    }
    if (c->tty) {
        ds_wrap_put(&c->wrap, ev->bytes, ev->n);
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
        size_t n = ds_decoder_push(&c->dec, ev->token.id, c->room, &n_tokens);
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

static void print_figures(const chat *c)
{
    uint32_t n = c->end.end.n_tokens;

    if (!c->n_prompt) {
        fputs("there is no answer yet\n", stderr);
        return;
    }
    fprintf(stderr, "\033[2m%zu tokens, %u of them cached, first answer after %.0f ms; %u new", c->n_prompt, c->start,
            (double)c->end.end.prefill_us / 1e3, n);
    if (n > 1 && c->end.end.decode_us)
        fprintf(stderr, ", %.0f/s", (double)(n - 1) * 1e6 / (double)c->end.end.decode_us);
    fputs("\033[0m\n", stderr);
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
            .prompt = ids.p,
            .n_prompt = (uint32_t)ids.n,
            .max_tokens = (uint32_t)o->max_tokens,
            .sampling = ds_cli_sampling(o),
            .stop_ids = c->g.stop_ids,
            .n_stop_ids = c->g.n_stop_ids,
        };
        q.sampling.seed += c->turn;
        ds_decoder_init(&c->dec, c->g.tokenizer, false);
        rc = ds_cli_gen_run(&c->g, &q, take_engine_event, c, err);
    }
    if (rc == DS_OK) {
        ds_parser_finish(c->parser, c->end.end.reason == DS_ENDED_LENGTH ? DS_BACKEND_LENGTH : DS_BACKEND_STOP);
        if (c->thinking_shown)
            end_thinking(c, "");
        else if (c->tty)
            ds_wrap_end(&c->wrap);
        fputc('\n', stdout);
        fflush(stdout);
        c->n_prompt = ids.n;
        if (c->tty && (c->cut || c->end.end.reason == DS_ENDED_LENGTH))
            fprintf(stderr, "\033[2m(%s)\033[0m\n", c->cut ? "stopped" : "cut at its limit");
        if (c->tty && c->o->rates)
            print_figures(c);
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
    fputs("/new    start over\n"
          "/undo   take the last turn back\n"
          "/rates  the last answer's tokens and speed\n"
          "/help   this list\n"
          "/quit   leave; so do Ctrl-D, and Ctrl-C twice\n"
          "Ctrl-C stops an answer. A \\ at its end continues a line, and \"\"\"\n"
          "begins and ends a message of several lines.\n",
          stderr);
}

/* A line that is a slash and a word, alone or in front of a space, is meant for us; in front of a slash or a point
 * it is a path, and so a message. False: it is a message. A space in front makes one of anything. */
static bool slash_command(chat *c, const char *line, bool *quit)
{
    size_t n = line[0] == '/' ? 1 + strspn(line + 1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-") : 0;

    if (n < 2 || (line[n] != '\0' && line[n] != ' '))
        return false;
    if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0) {
        *quit = true;
    } else if (strcmp(line, "/new") == 0) {
        ds_buf_clear(&c->messages);
        c->before = 0;
        fputs("a new conversation\n", stderr);
    } else if (strcmp(line, "/undo") == 0) {
        fputs(c->messages.len > c->before ? "the last turn is forgotten\n" : "nothing to take back\n", stderr);
        c->messages.len = c->before;
    } else if (strcmp(line, "/rates") == 0) {
        print_figures(c);
    } else if (strcmp(line, "/help") == 0) {
        print_commands();
    } else {
        fprintf(stderr, "unknown command: %s\n/help lists them; a space in front makes a message of it\n", line);
    }
    return true;
}

typedef enum { TURN, NO_MORE, AGAIN } got_turn;

static bool ends_with(const ds_buf *b, const char *end)
{
    size_t n = strlen(end);

    return b->len >= n && memcmp(b->p + b->len - n, end, n) == 0;
}

/* A message typed in the terminal, its lines joined. AGAIN: Ctrl-C took it back. */
static got_turn typed_turn(chat *c, ds_buf *turn, bool *quit)
{
    static const char marks[] = "\"\"\"";
    ds_buf line = { 0 };
    bool block = false, more = false, typed = false;
    ds_term_got got;

    ds_buf_clear(turn);
    while ((got = ds_term_line(c->term, more, &line, &typed)) == DS_TERM_LINE) {
        if (line.len)
            ds_term_remember(c->term, ds_buf_str(&line));
        if (!more && line.len >= 3 && memcmp(line.p, marks, 3) == 0) {
            block = true;
            memmove(line.p, line.p + 3, line.len - 3);
            line.len -= 3;
        }
        bool closed = block && ends_with(&line, marks), on = !block && ends_with(&line, "\\");
        if (closed)
            line.len -= 3;
        if (on)
            line.len--;
        if (turn->len && line.len + !closed)
            ds_buf_putc(turn, '\n');
        ds_buf_put(turn, ds_buf_str(&line), line.len);
        more = (block && !closed) || on;
        if (!more)
            break;
    }
    ds_buf_free(&line);
    if (got == DS_TERM_LINE) {
        c->interrupted = false;
        return TURN;
    }
    fputc('\n', stderr);
    if (got == DS_TERM_END || ds_cli_signal() != SIGINT)
        return NO_MORE;
    if (c->interrupted && !typed && !more) {
        *quit = true;
        return NO_MORE;
    }
    c->interrupted = true;
    fputs("\033[2m(Ctrl-C again leaves)\033[0m\n", stderr);
    return AGAIN;
}

/* A turn of standard input that is no terminal: one line. */
static got_turn piped_turn(ds_cli_input *in, ds_buf *line, ds_rc *rc, ds_err *err)
{
    uint64_t bytes;

    if (!ds_cli_input_line(in, "standard input", line, &bytes, rc, err)) {
        if (*rc == DS_E_CANCELED)
            *rc = DS_OK;
        return NO_MORE;
    }
    if (bytes > DS_CLI_LINE_MAX_BYTES) {
        *rc =
            ds_fail(err, DS_E_FORMAT, "standard input: the line has %" PRIu64 " bytes, at most %d are taken", bytes, DS_CLI_LINE_MAX_BYTES);
        return NO_MORE;
    }
    if (line->len > 0 && line->p[line->len - 1] == '\r')
        line->p[--line->len] = '\0';
    return TURN;
}

static ds_rc talk(chat *c, ds_err *err)
{
    ds_cli_input in = { .fd = STDIN_FILENO };
    ds_buf line = { 0 };
    bool quit = false;
    ds_rc rc = DS_OK;

    while (!quit && rc == DS_OK) {
        ds_err bad = { 0 };
        ds_cli_signal_forget();
        got_turn got = c->tty ? typed_turn(c, &line, &quit) : piped_turn(&in, &line, &rc, err);
        if (got == NO_MORE)
            break;
        if (line.oom) {
            rc = ds_fail(err, DS_E_NOMEM, "out of memory for a message");
            break;
        }
        if (got == AGAIN || line.len == 0 || (c->tty && slash_command(c, ds_buf_str(&line), &quit)))
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
        rc = c.tty ? ds_term_open(&c.term, o.history, &err) : DS_OK;
    }
    if (rc == DS_OK) {
        c.wrap = (ds_wrap){ .out = stdout, .columns = ds_term_columns };
        rc = talk(&c, &err);
        ds_rc closed = ds_term_close(c.term, rc == DS_OK ? &err : NULL);
        rc = rc == DS_OK ? closed : rc;
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
