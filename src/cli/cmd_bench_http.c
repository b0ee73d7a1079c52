/* deepserve bench http: load on a server, and what its users see. */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/json.h"
#include "loadgen/load.h"

typedef struct {
    const char *url, *model, *key_file, *extra, *trace;
    int protocol;
    double rate, spread, speed;
    int64_t requests, closed, input, output, prefix, prefixes, turns, max_live, seed;
    uint64_t duration, warmup, think, timeout, want_first, want_pace;
    bool stream, keepalive, json;
} options;

/* clang-format off */
static const ds_opt table[] = {
    { .name = "url", .type = DS_OPT_STR, .offset = offsetof(options, url), .def = "http://127.0.0.1:8000", .arg = "URL", .help = "the server, without /v1" },
    { .name = "protocol", .type = DS_OPT_ENUM, .offset = offsetof(options, protocol), .def = "chat", .choices = "chat|completions", .help = "which endpoint" },
    { .name = "model", .type = DS_OPT_STR, .offset = offsetof(options, model), .def = "deepserve", .arg = "NAME", .help = "model name in the requests" },
    { .name = "key-file", .type = DS_OPT_STR, .offset = offsetof(options, key_file), .arg = "FILE", .help = "API key: the first line of this file" },
    { .name = "rate", .type = DS_OPT_REAL, .offset = offsetof(options, rate), .def = "1", .arg = "N", .min = 0, .max = 1e6, .open_min = true,
      .help = "arrivals a second on average, Poisson; with --turns of conversations" },
    { .name = "closed", .type = DS_OPT_INT, .offset = offsetof(options, closed), .def = "0", .arg = "USERS", .min = 0, .max = 1000000,
      .help = "no arrivals: so many users, each asking again --think after an answer (say --think 0s); for the greatest throughput, not for latencies" },
    { .name = "requests", .type = DS_OPT_INT, .offset = offsetof(options, requests), .def = "0", .arg = "N", .min = 0, .max = 1e12, .help = "arrivals at most; 0 = as --duration says" },
    { .name = "duration", .type = DS_OPT_MS, .offset = offsetof(options, duration), .def = "30s", .arg = "TIME", .min = 0, .max = 7 * 86400e3,
      .help = "new requests for so long; 0 = until --requests or the end of the trace" },
    { .name = "warmup", .type = DS_OPT_MS, .offset = offsetof(options, warmup), .def = "0s", .arg = "TIME", .min = 0, .max = 86400e3, .help = "the first requests, for so long, are not counted" },
    { .name = "input", .type = DS_OPT_INT, .offset = offsetof(options, input), .def = "256", .arg = "WORDS", .min = 1, .max = 1 << 24, .help = "length of a prompt; a word is about a token" },
    { .name = "output", .type = DS_OPT_INT, .offset = offsetof(options, output), .def = "64", .arg = "TOKENS", .min = 1, .max = 1 << 24, .help = "max_tokens" },
    { .name = "spread", .type = DS_OPT_REAL, .offset = offsetof(options, spread), .def = "0", .arg = "F", .min = 0, .max = 1, .help = "lengths lie evenly within +- this part of the above" },
    { .name = "prefix", .type = DS_OPT_INT, .offset = offsetof(options, prefix), .def = "0", .arg = "WORDS", .min = 0, .max = 1 << 24, .help = "so many of the prompt's words are shared" },
    { .name = "prefixes", .type = DS_OPT_INT, .offset = offsetof(options, prefixes), .def = "1", .arg = "N", .min = 1, .max = 1 << 30, .help = "different shared beginnings, drawn evenly" },
    { .name = "turns", .type = DS_OPT_INT, .offset = offsetof(options, turns), .def = "1", .arg = "N", .min = 1, .max = 65535, .help = "turns of a conversation; each sends the whole history" },
    { .name = "think", .type = DS_OPT_MS, .offset = offsetof(options, think), .def = "5s", .arg = "TIME", .min = 0, .max = 86400e3,
      .help = "mean time from an answer to the next turn, exponential" },
    { .name = "trace", .type = DS_OPT_STR, .offset = offsetof(options, trace), .arg = "FILE",
      .help = "times and lengths from JSON lines {\"timestamp\": ms, \"input_length\", \"output_length\", \"hash_ids\"} instead; equal ids are the same 512 words" },
    { .name = "speed", .type = DS_OPT_REAL, .offset = offsetof(options, speed), .def = "1", .arg = "F", .min = 0, .max = 1e6, .open_min = true, .help = "the trace's time runs so much faster" },
    { .name = "stream", .type = DS_OPT_FLAG, .offset = offsetof(options, stream), .def = "true", .help = "streamed answers; --no-stream for whole ones" },
    { .name = "keepalive", .type = DS_OPT_FLAG, .offset = offsetof(options, keepalive), .def = "true", .help = "use a connection again; --no-keepalive for a new one each time" },
    { .name = "extra", .type = DS_OPT_STR, .offset = offsetof(options, extra), .arg = "JSON", .help = "an object whose members go into each request: {\"temperature\": 0}" },
    { .name = "timeout", .type = DS_OPT_MS, .offset = offsetof(options, timeout), .def = "10m", .arg = "TIME", .min = 1, .max = 86400e3, .help = "for a request, from the time it was due" },
    { .name = "max-live", .type = DS_OPT_INT, .offset = offsetof(options, max_live), .arg = "N", .min = 1, .max = 1000000,
      .help = "requests under way at most; one more fails at once, counted as \"limit\" (default: 16384, or what may be open, ulimit -n)" },
    { .name = "want-first", .type = DS_OPT_MS, .offset = offsetof(options, want_first), .def = "0s", .arg = "TIME", .min = 0, .max = 86400e3,
      .help = "time to first token that a good request has at most; 0 = any" },
    { .name = "want-pace", .type = DS_OPT_MS, .offset = offsetof(options, want_pace), .def = "0s", .arg = "TIME", .min = 0, .max = 86400e3,
      .help = "mean time between tokens that it has at most; 0 = any" },
    { .name = "seed", .type = DS_OPT_INT, .offset = offsetof(options, seed), .def = "0", .arg = "N", .min = 0, .max = 0x1p62, .help = "the same seed gives the same requests" },
    { .name = "json", .type = DS_OPT_FLAG, .offset = offsetof(options, json), .help = "one JSON object, times in milliseconds" },
    { 0 },
};
/* clang-format on */

static const ds_opt_cmd command = {
    .command = "deepserve bench http",
    .summary =
        "Puts load on a server and reports what its users see. Requests leave when they are due, however slow the server is, and every\n"
        "latency counts from then.",
    .usage = "[options]",
    .example = "deepserve bench http --url http://127.0.0.1:8000 --rate 20 --duration 2m --input 4000 --prefix 3000 --prefixes 10 --json",
    .opts = table,
};

/* ---- the address ---- */

typedef struct {
    char host[256], port[6], path[256];
} address;

static bool parse_port(char *out, const char *p, size_t n)
{
    int x = 0;

    if (n == 0 || n > 5 || strspn(p, "0123456789") < n)
        return false;
    for (size_t i = 0; i < n; i++)
        x = x * 10 + (p[i] - '0');
    memcpy(out, p, n);
    out[n] = '\0';
    return x > 0 && x < 65536;
}

/* http://HOST[:PORT][/PATH]; NULL, or what is wrong. */
static const char *parse_url(address *a, const char *url)
{
    const char *p = url, *end, *colon;
    size_t n;

    if (strncasecmp(p, "https://", 8) == 0)
        return "TLS isn't spoken here: put the load on the plain port";
    if (strncasecmp(p, "http://", 7) != 0)
        return "an address begins with http://";
    p += 7;
    end = p + strcspn(p, "/?#");
    if (strpbrk(end, "?#") || strpbrk(url, " \r\n\t@"))
        return "no user, query or fragment belongs there";
    snprintf(a->port, sizeof a->port, "80");
    if (*p == '[') {
        const char *close = memchr(p, ']', (size_t)(end - p));
        if (!close)
            return "a bracket isn't closed";
        colon = close + 1;
        p++;
        n = (size_t)(close - p);
        if (colon < end && *colon != ':')
            return "a colon belongs behind the bracket";
    } else {
        colon = memchr(p, ':', (size_t)(end - p));
        if (!colon)
            colon = end;
        n = (size_t)(colon - p);
    }
    if (n == 0 || n >= sizeof a->host)
        return "there is no host in it";
    memcpy(a->host, p, n);
    a->host[n] = '\0';
    if (colon < end && !parse_port(a->port, colon + 1, (size_t)(end - colon - 1)))
        return "the port is no number from 1 to 65535";
    n = strlen(end);
    while (n && end[n - 1] == '/')
        n--;
    if (n >= sizeof a->path)
        return "its path is too long";
    memcpy(a->path, end, n);
    a->path[n] = '\0';
    return NULL;
}

/* ---- what is printed ---- */

static void put_times(ds_buf *b, const char *name, const ds_times *t)
{
    ds_buf_printf(b, ",\"%s\":{\"n\":%" PRIu64, name, t->n);
    if (t->n)
        ds_buf_printf(b, ",\"mean\":%.6g,\"p50\":%.6g,\"p90\":%.6g,\"p99\":%.6g,\"p99_9\":%.6g,\"max\":%.6g", t->sum / (double)t->n / 1e6,
                      (double)ds_times_quantile(t, 0.5) / 1e6, (double)ds_times_quantile(t, 0.9) / 1e6,
                      (double)ds_times_quantile(t, 0.99) / 1e6, (double)ds_times_quantile(t, 0.999) / 1e6, (double)t->max / 1e6);
    ds_buf_putc(b, '}');
}

static double per_second(uint64_t n, const ds_loadgen_report *r)
{
    return r->elapsed_ns ? (double)n * 1e9 / (double)r->elapsed_ns : 0.0;
}

static int print_json(const ds_loadgen_report *r, const options *o)
{
    static const char *const protocols[] = { "chat", "completions" };
    ds_buf b = { 0 };
    bool first = true;

    ds_buf_printf(&b, "{\"op\":\"http\",\"variant\":\"%s%s\",\"shape\":", protocols[o->protocol], o->stream ? " stream" : "");
    if (o->trace) {
        ds_json_write_str(&b, o->trace, strlen(o->trace), DS_JSON_COMPACT);
        ds_buf_printf(&b, ",\"speed\":%.6g", o->speed);
    } else {
        ds_buf_printf(&b, "\"%" PRId64 "+%" PRId64 "\"", o->input, o->output);
        if (o->closed)
            ds_buf_printf(&b, ",\"closed\":%" PRId64, o->closed);
        else
            ds_buf_printf(&b, ",\"rate\":%.6g", o->rate);
    }
    ds_buf_printf(&b,
                  ",\"seconds\":%.6g,\"scheduled\":%" PRIu64 ",\"sent\":%" PRIu64 ",\"completed\":%" PRIu64 ",\"good\":%" PRIu64
                  ",\"warmup\":%" PRIu64 ",\"max_live\":%" PRIu64,
                  (double)r->elapsed_ns / 1e9, r->scheduled, r->sent, r->completed, r->good, r->warmup, r->max_live);
    ds_buf_puts(&b, ",\"errors\":{");
    for (int i = 0; i < DS_LOAD_N_ERRORS; i++)
        if (r->errors[i]) {
            ds_buf_printf(&b, "%s\"%s\":%" PRIu64, first ? "" : ",", ds_loadgen_error_names[i], r->errors[i]);
            first = false;
        }
    ds_buf_printf(&b,
                  "},\"requests_s\":%.6g,\"prompt_tokens\":%" PRIu64 ",\"cached_tokens\":%" PRIu64 ",\"completion_tokens\":%" PRIu64
                  ",\"prompt_tokens_s\":%.6g,\"completion_tokens_s\":%.6g",
                  per_second(r->completed, r), r->prompt_tokens, r->cached_tokens, r->completion_tokens, per_second(r->prompt_tokens, r),
                  per_second(r->completion_tokens, r));
    ds_buf_printf(&b, ",\"without_usage\":%" PRIu64 ",\"bytes_in\":%" PRIu64 ",\"connections\":%" PRIu64, r->without_usage, r->bytes_in,
                  r->connections);
    put_times(&b, "first_token_ms", &r->first_token);
    put_times(&b, "between_events_ms", &r->gap);
    put_times(&b, "per_token_ms", &r->pace);
    put_times(&b, "end_to_end_ms", &r->total);
    put_times(&b, "send_lag_ms", &r->lag);
    ds_buf_puts(&b, "}");
    if (!b.oom)
        puts(b.p);
    ds_buf_free(&b);
    return b.oom;
}

static void print_row(const char *name, const ds_times *t)
{
    if (t->n)
        printf("%-22s %10.3f %10.3f %10.3f %10.3f %10.3f\n", name, (double)ds_times_quantile(t, 0.5) / 1e6,
               (double)ds_times_quantile(t, 0.9) / 1e6, (double)ds_times_quantile(t, 0.99) / 1e6, (double)ds_times_quantile(t, 0.999) / 1e6,
               (double)t->max / 1e6);
}

static void print_table(const ds_loadgen_report *r, const options *o)
{
    uint64_t failed = r->scheduled - r->completed;
    const char *before = " (";

    printf("%" PRIu64 " requests in %.1f s: %" PRIu64 " completed, %" PRIu64 " failed", r->scheduled, (double)r->elapsed_ns / 1e9,
           r->completed, failed);
    for (int i = 0; i < DS_LOAD_N_ERRORS; i++)
        if (r->errors[i]) {
            printf("%s%s %" PRIu64, before, ds_loadgen_error_names[i], r->errors[i]);
            before = ", ";
        }
    puts(failed ? ")" : "");
    printf("%.2f requests/s, %.1f tokens/s out, %.1f tokens/s in (%.1f %% cached), at most %" PRIu64 " at once\n",
           per_second(r->completed, r), per_second(r->completion_tokens, r), per_second(r->prompt_tokens, r),
           r->prompt_tokens ? 100.0 * (double)r->cached_tokens / (double)r->prompt_tokens : 0.0, r->max_live);
    if (o->want_first || o->want_pace)
        printf("%.2f %% good (within the wanted times), %.2f good requests/s\n",
               r->scheduled ? 100.0 * (double)r->good / (double)r->scheduled : 0.0, per_second(r->good, r));
    if (r->without_usage)
        printf("%" PRIu64 " answers without usage: their events are counted as tokens\n", r->without_usage);
    printf("\n%-22s %10s %10s %10s %10s %10s\n", "milliseconds", "p50", "p90", "p99", "p99.9", "max");
    print_row("time to first token", &r->first_token);
    print_row("between events", &r->gap);
    print_row("per token, mean", &r->pace);
    print_row("end to end", &r->total);
    print_row("sent late (generator)", &r->lag);
}

/* ---- the run ---- */

static volatile sig_atomic_t stopped;

static void on_signal(int signal)
{
    if (stopped)
        _exit(128 + signal);
    stopped = signal;
}

static bool stop(void *ctx)
{
    (void)ctx;
    return stopped != 0;
}

static void progress(void *ctx, const ds_loadgen_report *r, uint64_t now_ns)
{
    uint64_t failed = 0;

    (void)ctx;
    for (int i = 0; i < DS_LOAD_N_ERRORS; i++)
        failed += r->errors[i];
    fprintf(stderr, "\r%6.1f s  %" PRIu64 " sent  %" PRIu64 " under way  %" PRIu64 " completed  %" PRIu64 " failed\033[K",
            (double)now_ns / 1e9, r->sent + r->warmup, r->live, r->completed, failed);
    fflush(stderr);
}

/* A line of printable characters; free() it. */
static ds_rc read_key(char **key, const char *path, ds_err *err)
{
    FILE *f = fopen(path, "re");
    size_t cap = 0;
    ssize_t n;

    *key = NULL;
    if (!f)
        return ds_fail(err, DS_E_IO, "%s: %s", path, strerror(errno));
    n = getline(key, &cap, f);
    fclose(f);
    while (n > 0 && ((*key)[n - 1] == '\n' || (*key)[n - 1] == '\r' || (*key)[n - 1] == ' '))
        (*key)[--n] = '\0';
    for (ssize_t i = 0; i < n; i++)
        if ((*key)[i] <= ' ' || (*key)[i] >= 127)
            n = 0;
    if (n > 0 && n < 4096)
        return DS_OK;
    free(*key);
    *key = NULL;
    return ds_fail(err, DS_E_FORMAT, "%s: its first line is no key", path);
}

/* The members of a JSON object as text; free with ds_buf_free. */
static bool read_extra(ds_buf *out, const char *text, ds_err *err)
{
    ds_json_doc *doc;

    if (ds_json_parse(&doc, text, strlen(text), NULL, err) != DS_OK)
        return false;
    if (!ds_json_is(ds_json_root(doc), DS_JSON_OBJECT)) {
        ds_fail(err, DS_E_ARG, "not a JSON object");
        ds_json_free(doc);
        return false;
    }
    ds_json_write(out, ds_json_root(doc), DS_JSON_COMPACT);
    ds_json_free(doc);
    if (out->oom)
        return false;
    out->p[--out->len] = '\0'; /* the braces go */
    memmove(out->p, out->p + 1, out->len--);
    return true;
}

enum { MAX_LIVE = 16384, OTHER_FILES = 64 };

/* Each request under way is a descriptor. *max_live of 0 becomes the default. */
static ds_rc raise_files(int64_t *max_live, ds_err *err)
{
    int64_t want = *max_live ? *max_live : MAX_LIVE;
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) != 0)
        return ds_fail(err, DS_E_IO, "ulimit -n: %s", strerror(errno));
    if (*max_live == 0 && r.rlim_max < (rlim_t)want + OTHER_FILES)
        want = r.rlim_max > 2 * OTHER_FILES ? (int64_t)r.rlim_max - OTHER_FILES : OTHER_FILES;
    *max_live = want;
    if (r.rlim_cur >= (rlim_t)want + OTHER_FILES)
        return DS_OK;
    if (r.rlim_max < (rlim_t)want + OTHER_FILES)
        return ds_fail(err, DS_E_IO, "--max-live %" PRId64 ": this process may open %llu files (ulimit -n)", want,
                       (unsigned long long)r.rlim_max);
    r.rlim_cur = (rlim_t)want + OTHER_FILES;
    return setrlimit(RLIMIT_NOFILE, &r) == 0 ? DS_OK : ds_fail(err, DS_E_IO, "ulimit -n: %s", strerror(errno));
}

static ds_rc run(const options *o, const address *a, const char *extra, ds_loadgen_report *r, ds_err *err)
{
    ds_plan_opts po = { .rate = o->rate,
                        .requests = (uint64_t)o->requests,
                        .duration_ns = o->closed ? 0 : o->duration * 1000000,
                        .input_tokens = (uint32_t)o->input,
                        .output_tokens = (uint32_t)o->output,
                        .spread = o->spread,
                        .prefix_tokens = (uint32_t)o->prefix,
                        .prefixes = (uint32_t)o->prefixes,
                        .trace = o->trace,
                        .speed = o->speed,
                        .seed = (uint64_t)o->seed };
    ds_loadgen_opts lo = { .host = a->host,
                           .port = a->port,
                           .path = a->path,
                           .model = o->model,
                           .extra = extra,
                           .completions = o->protocol == 1,
                           .no_stream = !o->stream,
                           .closed = (uint32_t)o->closed,
                           .closed_ns = o->duration * 1000000,
                           .no_keepalive = !o->keepalive,
                           .turns = (uint32_t)o->turns,
                           .think_ns = o->think * 1000000,

                           .timeout_ns = o->timeout * 1000000,
                           .warmup_ns = o->warmup * 1000000,
                           .want_first_ns = o->want_first * 1000000,
                           .want_pace_ns = o->want_pace * 1000000,
                           .progress = isatty(STDERR_FILENO) ? progress : NULL,
                           .stop = stop };
    ds_plan *plan = NULL;
    char *key = NULL;
    int64_t max_live = o->max_live;
    ds_rc rc = raise_files(&max_live, err);

    if (rc == DS_OK && o->key_file)
        rc = read_key(&key, o->key_file, err);
    if (rc == DS_OK)
        rc = ds_plan_create(&plan, &po, err);
    lo.key = key;
    lo.max_live = (uint32_t)max_live;
    if (rc == DS_OK)
        rc = ds_loadgen_run(r, plan, &lo, err);
    if (lo.progress)
        fputs("\r\033[K", stderr);
    ds_plan_destroy(plan);
    free(key);
    return rc;
}

/* A server that answers nothing is a failure, with its reasons. */
static ds_rc none_completed(const ds_loadgen_report *r, ds_err *err)
{
    ds_buf b = { 0 };
    ds_rc rc;

    for (int i = 0; i < DS_LOAD_N_ERRORS; i++)
        if (r->errors[i])
            ds_buf_printf(&b, "%s%s %" PRIu64, b.len ? ", " : ": ", ds_loadgen_error_names[i], r->errors[i]);
    if (r->first_error_status)
        ds_buf_printf(&b, "; the first refusal was status %" PRIu64, r->first_error_status);
    rc = ds_fail(err, DS_E_IO, "of %" PRIu64 " requests none was completed%s", r->scheduled, ds_buf_str(&b));
    ds_buf_free(&b);
    return rc;
}

static int check(const options *o, const bool *given, address *a)
{
    const char *wrong = parse_url(a, o->url);
    char q[220];

    if (wrong)
        return ds_cli_wrong("bench http", "--url %s: %s", ds_quote(q, sizeof q, o->url, strlen(o->url)), wrong);
    if (!o->trace && o->requests == 0 && o->duration == 0)
        return ds_cli_wrong("bench http", "without --requests, --duration or --trace there is no end");
    if (!o->trace && o->prefix > o->input)
        return ds_cli_wrong("bench http", "--prefix %" PRId64 ": is a part of the prompt, which has --input %" PRId64 " words", o->prefix,
                            o->input);
    if (o->turns > 1 && o->protocol == 1)
        return ds_cli_wrong("bench http", "--turns: conversations need --protocol chat");
    for (size_t i = 0; o->trace && table[i].name; i++) {
        static const char *const drawn[] = { "rate", "input", "output", "spread", "prefix", "prefixes", "closed", NULL };
        for (size_t k = 0; drawn[k] && given[i]; k++)
            if (strcmp(table[i].name, drawn[k]) == 0)
                return ds_cli_wrong("bench http", "--trace says times and lengths: not together with --%s", drawn[k]);
    }
    for (size_t i = 0; o->closed && table[i].name; i++)
        if (given[i] && strcmp(table[i].name, "rate") == 0)
            return ds_cli_wrong("bench http", "--closed has no --rate: users come when they are done");
    return -1;
}

int ds_cmd_bench_http(int argc, char **argv)
{
    bool given[sizeof table / sizeof table[0]], help;
    options o = { 0 };
    address a;
    const char *word;
    size_t n;
    ds_buf extra = { 0 };
    ds_err err = { 0 };
    ds_loadgen_report *r;
    int status;

    if (ds_opt_parse(&command, &o, argc, argv, &word, 0, &n, given, &help, &err) != DS_OK)
        return ds_cli_wrong("bench http", "%s", err.msg);
    if (help) {
        ds_opt_print_help(&command, stdout);
        return 0;
    }
    for (size_t i = 0; table[i].name; i++) /* a trace, or a number of requests, ends by itself unless a time is given */
        if (strcmp(table[i].name, "duration") == 0 && !given[i] && (o.trace || o.requests))
            o.duration = 0;
    status = check(&o, given, &a);
    if (status >= 0)
        return status;
    if (o.extra && !read_extra(&extra, o.extra, &err))
        return ds_cli_wrong("bench http", "--extra: %s", err.msg);
    r = malloc(sizeof *r);
    if (!r) {
        ds_buf_free(&extra);
        ds_fail(&err, DS_E_NOMEM, "out of memory");
        return ds_cli_fail("bench http", &err);
    }
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    status = run(&o, &a, ds_buf_str(&extra), r, &err) == DS_OK && (r->completed || none_completed(r, &err) == DS_OK)
                 ? 0
                 : ds_cli_fail("bench http", &err);
    if (status == 0 && o.json)
        status = print_json(r, &o);
    else if (status == 0)
        print_table(r, &o);
    if (status == 0 && stopped)
        status = 128 + stopped;
    free(r);
    ds_buf_free(&extra);
    return status;
}
