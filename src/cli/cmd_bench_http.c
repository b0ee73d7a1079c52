/* deepserve bench http: load on a running server, as many independent users would make it.
 *
 * Open loop: requests begin when the arrival process says, whatever the server does; a request that finds no free connection waits in the client, and its times count
 * from when it should have begun. One thread, non-blocking sockets, HTTP/1.1 with kept-alive connections; only what the measurement needs of HTTP is understood. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/rng.h"
#include "cli/cli.h"
#include "format/file.h"

enum { READ_BYTES = 64 << 10, EVENTS = 512, SAMPLES_MAX = 16 << 20 };

typedef struct {
    const char *url, *key, *trace, *model;
    bool stream, json, closed;
    double rate, trace_speed, think;
    int64_t requests, connections, prompt, shared, max_tokens, seed;
    uint64_t duration_ms, timeout_ms;
} options;

#define O(field) .offset = offsetof(options, field)
/* clang-format off */
static const ds_opt table[] = {
    { .name = "url", .type = DS_OPT_STR, O(url), .def = "http://127.0.0.1:8000", .arg = "URL", .help = "the server; plain HTTP" },
    { .name = "key", .type = DS_OPT_STR, O(key), .arg = "KEY", .help = "API key" },
    { .name = "model", .type = DS_OPT_STR, O(model), .def = "bench", .arg = "NAME", .help = "model name in requests" },
    { .name = "rate", .type = DS_OPT_REAL, O(rate), .def = "10", .arg = "R", .min = 0, .max = 1e6, .open_min = true, .help = "requests a second, at times of a Poisson process" },
    { .name = "closed", .type = DS_OPT_FLAG, O(closed), .help = "instead: each connection sends its next request when it has its answer (for the greatest throughput)" },
    { .name = "think", .type = DS_OPT_REAL, O(think), .def = "0", .arg = "SECONDS", .min = 0, .max = 3600, .help = "mean pause of a closed connection between requests" },
    { .name = "trace", .type = DS_OPT_STR, O(trace), .arg = "F.jsonl", .help = "arrivals and lengths from lines {\"timestamp\": ms, \"input_length\": tokens, \"output_length\": tokens}" },
    { .name = "trace-speed", .type = DS_OPT_REAL, O(trace_speed), .def = "1", .arg = "X", .min = 0, .max = 1e6, .open_min = true, .help = "how much faster than recorded" },
    { .name = "requests", .type = DS_OPT_INT, O(requests), .def = "100", .arg = "N", .min = 1, .max = 10000000, .help = "how many" },
    { .name = "duration", .type = DS_OPT_MS, O(duration_ms), .def = "0s", .arg = "TIME", .min = 0, .max = 86400000, .help = "no new ones after that; 0 = all" },
    { .name = "timeout", .type = DS_OPT_MS, O(timeout_ms), .def = "60s", .arg = "TIME", .min = 1, .max = 86400000, .help = "of the run after the last arrival" },
    { .name = "connections", .type = DS_OPT_INT, O(connections), .def = "64", .arg = "N", .min = 1, .max = 100000, .help = "at most" },
    { .name = "prompt-tokens", .type = DS_OPT_INT, O(prompt), .def = "32", .arg = "N", .min = 1, .max = 1 << 22, .help = "words of each prompt of its own" },
    { .name = "shared-prefix", .type = DS_OPT_INT, O(shared), .def = "0", .arg = "N", .min = 0, .max = 1 << 22, .help = "words that all prompts begin with" },
    { .name = "max-tokens", .type = DS_OPT_INT, O(max_tokens), .def = "32", .arg = "N", .min = 1, .max = 1 << 20, .help = "of an answer" },
    { .name = "stream", .type = DS_OPT_FLAG, O(stream), .def = "true", .help = "streamed answers" },
    { .name = "seed", .type = DS_OPT_INT, O(seed), .def = "1", .arg = "N", .min = 0, .max = 0x1p53, .help = "of arrivals and prompts" },
    { .name = "json", .type = DS_OPT_FLAG, O(json), .help = "one JSON object" },
    { 0 },
};
/* clang-format on */

static const ds_opt_cmd command = {
    .command = "deepserve bench http",
    .summary = "Sends chat requests to a server and reports what users see. Arrivals don't wait for answers, and times count from the "
               "intended arrival, so a slow server\n"
               "can't make its numbers better by slowing the client.",
    .usage = "[--url URL] [--rate R] [options]",
    .example = "deepserve bench http --url http://127.0.0.1:8000 --rate 50 --requests 1000",
    .opts = table,
};

typedef struct {
    float *v;
    size_t n, cap;
} samples; /* milliseconds */

typedef struct {
    uint64_t at_us; /* intended arrival, from the start */
    uint32_t prompt, output;
} job;

typedef enum { IDLE, CONNECTING, SENDING, HEAD, BODY } state;

typedef struct {
    int fd;
    state st;
    uint32_t watched;
    ds_buf out, head;
    size_t sent;
    uint64_t due_us, last_us, begun_us;
    uint32_t tokens;
    int status;
    bool chunked, keep;
    uint64_t left;   /* bytes of the body or chunk that are still to come */
    int phase;       /* chunked: 0 size, 1 data, 2 end of data, 3 trailers */
    unsigned line_n; /* of the event line: how much of "data: {" was seen; UINT_MAX: another line */
    uint64_t size;
    bool size_any, in_ext, trailer_any, reused;
    uint64_t ready_us; /* closed loop: when it goes on */
} conn;

typedef struct {
    options o;
    struct addrinfo *addr;
    char host[256];
    int epfd;
    job *jobs;
    size_t n_jobs, next;
    conn *conns;
    uint32_t *free_list; /* idle ones */
    size_t n_free, active;
    uint64_t start_us, end_us;
    char *words; /* the shared prefix */
    /* results */
    uint64_t done, failed, refused, tokens, bytes;
    samples ttft, gap, total, wait;
} bench;

static void add(samples *s, double ms)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 4096;
        float *v = cap <= SAMPLES_MAX ? realloc(s->v, cap * sizeof *v) : NULL;
        if (!v)
            return;
        s->v = v;
        s->cap = cap;
    }
    s->v[s->n++] = (float)ms;
}

/* ---- jobs ---- */

static void poisson(bench *b)
{
    double t = 0;

    for (size_t i = 0; i < b->n_jobs; i++) {
        b->jobs[i] = (job){ b->o.closed ? 0 : (uint64_t)(t * 1e6), (uint32_t)b->o.prompt, (uint32_t)b->o.max_tokens };
        t += -log(1 - ds_rng_unit((uint64_t)b->o.seed, 1, i)) / b->o.rate;
    }
}

static ds_rc read_trace(bench *b, ds_err *err)
{
    char *text;
    size_t n, at = 0, line = 1;
    uint64_t first = 0;
    ds_rc rc = ds_file_read(&text, &n, b->o.trace, (size_t)1 << 30, err);

    if (rc != DS_OK)
        return rc;
    for (b->n_jobs = 0; at < n && b->n_jobs < (size_t)b->o.requests && rc == DS_OK; line++) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = end ? (size_t)(end - text) - at : n - at;
        ds_json_doc *doc = NULL;
        double t;
        uint64_t in, out;
        if (strspn(text + at, " \t\r") < len) {
            rc = ds_json_parse(&doc, text + at, len, NULL, err);
            const ds_json *r = rc == DS_OK ? ds_json_root(doc) : NULL;
            if (rc == DS_OK && (!ds_json_f64(ds_json_get(r, "timestamp"), &t) || !ds_json_u64(ds_json_get(r, "input_length"), &in) ||
                                !ds_json_u64(ds_json_get(r, "output_length"), &out) || t < 0 || in > UINT32_MAX || out > UINT32_MAX))
                rc = ds_fail(err, DS_E_FORMAT, "expected timestamp, input_length and output_length");
            if (rc == DS_OK) {
                uint64_t us = (uint64_t)(t * 1000 / b->o.trace_speed);
                if (b->n_jobs == 0)
                    first = us;
                b->jobs[b->n_jobs++] = (job){ us > first ? us - first : 0, in ? (uint32_t)in : 1, out ? (uint32_t)out : 1 };
            } else {
                ds_err_prefix(err, rc, "%s: line %zu: ", b->o.trace, line);
            }
            ds_json_free(doc);
        }
        at += len + 1;
    }
    free(text);
    return rc == DS_OK && b->n_jobs == 0 ? ds_fail(err, DS_E_FORMAT, "%s: no requests", b->o.trace) : rc;
}

static void put_words(ds_buf *b, uint64_t seed, uint64_t stream, uint64_t n)
{
    static const char *const words[16] = { "time ", "sea ", "stone ", "light ", "river ", "wind ", "house ", "road ",
                                           "tree ", "sun ", "rain ",  "bird ",  "hill ",  "fire ", "moon ",  "leaf " };

    for (uint64_t i = 0; i < n; i++)
        ds_buf_puts(b, words[ds_rng_u64(seed, stream, i) % 16]);
}

static bool make_request(bench *b, conn *c, const job *j, size_t number)
{
    ds_buf body = { 0 };

    ds_buf_printf(&body, "{\"model\":\"%s\",\"stream\":%s,\"max_tokens\":%u,\"messages\":[{\"role\":\"user\",\"content\":\"", b->o.model,
                  b->o.stream ? "true" : "false", j->output);
    ds_buf_puts(&body, b->words);
    put_words(&body, (uint64_t)b->o.seed, 1000 + number, j->prompt);
    ds_buf_puts(&body, "\"}]}");
    ds_buf_clear(&c->out);
    ds_buf_printf(&c->out, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n",
                  b->host, body.len);
    if (b->o.key)
        ds_buf_printf(&c->out, "Authorization: Bearer %s\r\n", b->o.key);
    ds_buf_puts(&c->out, "\r\n");
    ds_buf_put(&c->out, ds_buf_str(&body), body.len);
    c->out.oom |= body.oom;
    ds_buf_free(&body);
    return !c->out.oom;
}

/* ---- connections ---- */

static void watch(bench *b, conn *c, uint32_t events)
{
    if (c->watched == events)
        return;
    epoll_ctl(b->epfd, c->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd,
              &(struct epoll_event){ .events = events, .data.u32 = (uint32_t)(c - b->conns) });
    c->watched = events;
}

static void hang_up(conn *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    c->watched = 0;
    c->st = IDLE;
}

static void release(bench *b, conn *c)
{
    c->st = IDLE;
    b->active--;
    b->free_list[b->n_free++] = (uint32_t)(c - b->conns);
    if (b->o.think > 0)
        c->ready_us = ds_now_us() + (uint64_t)(-log(1 - ds_rng_unit((uint64_t)b->o.seed, 2, b->done)) * b->o.think * 1e6);
}

static void failed(bench *b, conn *c)
{
    hang_up(c);
    b->failed++;
    release(b, c);
}

static bool dial(bench *b, conn *c)
{
    c->fd = socket(b->addr->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0)
        return false;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
    return connect(c->fd, b->addr->ai_addr, b->addr->ai_addrlen) == 0 || errno == EINPROGRESS;
}

static void flush(bench *b, conn *c)
{
    while (c->sent < c->out.len) {
        ssize_t n = send(c->fd, c->out.p + c->sent, c->out.len - c->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) {
            watch(b, c, EPOLLIN | EPOLLOUT);
            return;
        }
        if (n < 0) {
            failed(b, c);
            return;
        }
        c->sent += (size_t)n;
    }
    watch(b, c, EPOLLIN);
    c->st = HEAD;
    ds_buf_clear(&c->head);
}

static void begin(bench *b, conn *c, uint64_t now)
{
    const job *j = &b->jobs[b->next];

    c->due_us = b->o.closed ? now : b->start_us + j->at_us;
    c->begun_us = now;
    c->sent = 0;
    c->tokens = 0;
    c->status = 0;
    b->active++;
    add(&b->wait, (double)(now - c->due_us) / 1e3);
    c->reused = c->fd >= 0;
    if (!make_request(b, c, j, b->next++)) {
        failed(b, c);
    } else if (c->reused) {
        c->st = SENDING;
        flush(b, c);
    } else if (dial(b, c)) {
        c->st = CONNECTING;
        watch(b, c, EPOLLIN | EPOLLOUT);
    } else {
        failed(b, c);
    }
}

/* ---- responses ---- */

static void token(bench *b, conn *c, uint64_t now)
{
    if (c->tokens++ == 0)
        add(&b->ttft, (double)(now - c->due_us) / 1e3);
    else
        add(&b->gap, (double)(now - c->last_us) / 1e3);
    c->last_us = now;
    b->tokens++;
}

/* Bytes of an event stream: a line that begins with "data: {" is an event. */
static void scan_events(bench *b, conn *c, const char *p, size_t n, uint64_t now)
{
    static const char want[] = "data: {";

    for (const char *end = p + n; p < end; p++) {
        if (*p == '\n') {
            c->line_n = 0;
        } else if (c->line_n < 7) {
            c->line_n = *p == want[c->line_n] ? c->line_n + 1 : 8;
            if (c->line_n == 7)
                token(b, c, now);
        } else {
            const char *nl = memchr(p, '\n', (size_t)(end - p));
            p = nl ? nl - 1 : end - 1;
        }
    }
}

static void finished(bench *b, conn *c, uint64_t now)
{
    if (c->status == 200) {
        b->done++;
        add(&b->total, (double)(now - c->due_us) / 1e3);
    } else if (c->status == 429 || c->status == 503 || c->status == 529) {
        b->refused++;
    } else {
        b->failed++;
    }
    if (!c->keep)
        hang_up(c);
    release(b, c);
}

/* Chunked coding; true: the body is complete. */
static bool take_chunked(bench *b, conn *c, const char *p, size_t n, uint64_t now)
{
    for (size_t i = 0; i < n;) {
        char ch = p[i];
        if (c->phase == 1) {
            size_t m = n - i < c->left ? n - i : (size_t)c->left;
            scan_events(b, c, p + i, m, now);
            i += m;
            c->left -= m;
            if (c->left == 0)
                c->phase = 2;
            continue;
        }
        i++;
        if (c->phase == 0) {
            int v = ch >= '0' && ch <= '9'   ? ch - '0'
                    : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10
                    : ch >= 'A' && ch <= 'F' ? ch - 'A' + 10
                                             : -1;
            if (v >= 0)
                c->size = c->size << 4 | (uint64_t)v;
            if (ch == '\n') {
                c->left = c->size;
                c->size = 0;
                c->phase = c->left ? 1 : 3;
                c->trailer_any = false;
            }
        } else if (c->phase == 2) {
            if (ch == '\n')
                c->phase = 0;
        } else if (ch == '\n') {
            if (!c->trailer_any)
                return true;
            c->trailer_any = false;
        } else if (ch != '\r') {
            c->trailer_any = true;
        }
    }
    return false;
}

static const char *find_header(const char *head, const char *name)
{
    const char *p = strcasestr(head, name);
    return p ? p + strlen(name) + strspn(p + strlen(name), " ") : NULL;
}

static void take_bytes(bench *b, conn *c, const char *p, size_t n, uint64_t now)
{
    b->bytes += n;
    if (c->st == HEAD) {
        size_t before = c->head.len;
        ds_buf_put(&c->head, p, n);
        char *end = c->head.p ? memmem(c->head.p, c->head.len, "\r\n\r\n", 4) : NULL;
        if (!end) {
            if (c->head.oom || c->head.len > 65536)
                failed(b, c);
            return;
        }
        end[2] = '\0';
        size_t head_n = (size_t)(end - c->head.p) + 4;
        const char *v = find_header(c->head.p, "\r\ncontent-length:");
        c->status = atoi(c->head.p + 9);
        c->chunked = find_header(c->head.p, "\r\ntransfer-encoding:") != NULL;
        c->keep = strcasestr(c->head.p, "\r\nconnection: close") == NULL;
        c->left = v ? strtoull(v, NULL, 10) : 0;
        c->phase = 0;
        c->size = 0;
        c->line_n = 0;
        c->st = BODY;
        p += head_n - before;
        n -= head_n - before;
    }
    if (c->chunked) {
        if (take_chunked(b, c, p, n, now))
            finished(b, c, now);
        return;
    }
    c->left -= n < c->left ? n : c->left;
    if (c->left == 0) {
        if (c->status == 200 && !b->o.stream)
            add(&b->ttft, (double)(now - c->due_us) / 1e3);
        finished(b, c, now);
    }
}

static void on_event(bench *b, conn *c, uint32_t events, char *room)
{
    if (c->st == CONNECTING && (events & (EPOLLOUT | EPOLLERR | EPOLLHUP))) {
        int e = 0;
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &e, &(socklen_t){ sizeof e });
        if (e) {
            failed(b, c);
            return;
        }
        c->st = SENDING;
    }
    if (c->st == SENDING && (events & EPOLLOUT))
        flush(b, c);
    if (c->fd < 0 || !(events & (EPOLLIN | EPOLLERR | EPOLLHUP)))
        return;
    ssize_t n = recv(c->fd, room, READ_BYTES, 0);
    if (n > 0 && c->st >= HEAD)
        take_bytes(b, c, room, (size_t)n, ds_now_us());
    else if (n > 0 || n == 0 || errno != EAGAIN) {
        if (c->st == IDLE)
            hang_up(c);
        else
            failed(b, c);
    }
}

/* ---- the run ---- */

static void start_due(bench *b, uint64_t now)
{
    bool over = b->o.duration_ms && now - b->start_us > b->o.duration_ms * 1000;

    if (over)
        b->n_jobs = b->next;
    for (size_t tries = b->n_free; tries > 0 && b->n_free && b->next < b->n_jobs; tries--) {
        if (!b->o.closed && b->start_us + b->jobs[b->next].at_us > now)
            return;
        conn *c = &b->conns[b->free_list[--b->n_free]];
        if (b->o.closed && c->ready_us > now) { /* thinks: to the other end of the list */
            memmove(b->free_list + 1, b->free_list, b->n_free * sizeof *b->free_list);
            b->free_list[0] = (uint32_t)(c - b->conns);
            b->n_free++;
            continue;
        }
        begin(b, c, now);
    }
}

static void run(bench *b)
{
    struct epoll_event ev[EVENTS];
    char *room = malloc(READ_BYTES);
    uint64_t last_us = 0;

    b->start_us = ds_now_us();
    while (room && (b->next < b->n_jobs || b->active)) {
        uint64_t now = ds_now_us(), due;
        int ms = 100;

        start_due(b, now);
        if (b->next >= b->n_jobs) {
            if (!last_us)
                last_us = now;
            if (now - last_us > b->o.timeout_ms * 1000)
                break;
        } else if (b->n_free && !b->o.closed) {
            due = b->start_us + b->jobs[b->next].at_us;
            ms = due > now ? (int)((due - now) / 1000) : 0;
            ms = ms > 100 ? 100 : ms;
        } else if (b->n_free) {
            ms = 1;
        }
        int n = epoll_wait(b->epfd, ev, EVENTS, ms);
        for (int i = 0; i < n; i++)
            on_event(b, &b->conns[ev[i].data.u32], ev[i].events, room);
    }
    b->end_us = ds_now_us();
    b->failed += b->active;
    free(room);
}

static int by_value(const void *x, const void *y)
{
    float a = *(const float *)x, b = *(const float *)y;
    return (a > b) - (a < b);
}

static void print_samples(const bench *b, const char *name, samples *s, bool last)
{
    static const double at[4] = { 0.5, 0.9, 0.99, 1 };
    double q[4] = { 0 };

    if (s->n)
        qsort(s->v, s->n, sizeof *s->v, by_value);
    for (int i = 0; i < 4 && s->n; i++)
        q[i] = s->v[(size_t)(at[i] * (double)(s->n - 1) + 0.5)];
    if (b->o.json)
        printf("\"%s\":{\"n\":%zu,\"p50\":%.3f,\"p90\":%.3f,\"p99\":%.3f,\"max\":%.3f}%s", name, s->n, q[0], q[1], q[2], q[3],
               last ? "" : ",");
    else
        printf("%-22s %10zu  %10.3f %10.3f %10.3f %10.3f\n", name, s->n, q[0], q[1], q[2], q[3]);
}

static void report(bench *b)
{
    double s = (double)(b->end_us - b->start_us) / 1e6;

    if (b->o.json)
        printf("{\"op\":\"http\",\"requests\":%" PRIu64 ",\"refused\":%" PRIu64 ",\"failed\":%" PRIu64
               ",\"seconds\":%.3f,\"requests_s\":%.1f,\"tokens\":%" PRIu64 ",\"tokens_s\":%.1f,\"bytes\":%" PRIu64 ",",
               b->done, b->refused, b->failed, s, (double)b->done / s, b->tokens, (double)b->tokens / s, b->bytes);
    else
        printf("%" PRIu64 " answered, %" PRIu64 " refused, %" PRIu64
               " failed in %.2f s: %.1f requests/s, %.1f events/s\n%-22s %10s  %10s %10s %10s %10s\n",
               b->done, b->refused, b->failed, s, (double)b->done / s, (double)b->tokens / s, "milliseconds", "n", "p50", "p90", "p99",
               "max");
    print_samples(b, "client_wait", &b->wait, false);
    print_samples(b, "time_to_first_token", &b->ttft, false);
    print_samples(b, "time_between_tokens", &b->gap, false);
    print_samples(b, "total", &b->total, true);
    if (b->o.json)
        puts("}");
}

static ds_rc resolve(bench *b, ds_err *err)
{
    const char *p = b->o.url, *end, *colon;
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    char port[8] = "80", host[200], q[220];

    if (strncmp(p, "http://", 7) != 0)
        return ds_fail(err, DS_E_ARG, "--url: expected http://HOST:PORT");
    p += 7;
    end = p + strcspn(p, "/");
    snprintf(b->host, sizeof b->host, "%.*s", (int)(end - p), p);
    colon = *p == '[' ? strchr(p, ']') : NULL;
    colon = memchr(colon ? colon : p, ':', (size_t)(end - (colon ? colon : p)));
    snprintf(host, sizeof host, "%.*s", (int)((colon ? colon : end) - p - (*p == '[')) - (*p == '['), p + (*p == '['));
    if (colon)
        snprintf(port, sizeof port, "%.*s", (int)(end - colon - 1), colon + 1);
    int e = getaddrinfo(host, port, &hints, &b->addr);
    return e == 0 ? DS_OK : ds_fail(err, DS_E_IO, "%s: %s", ds_quote(q, sizeof q, host, strlen(host)), gai_strerror(e));
}

static ds_rc prepare(bench *b, ds_err *err)
{
    size_t n = (size_t)b->o.connections;
    ds_buf words = { 0 };
    struct rlimit l;
    ds_rc rc = resolve(b, err);

    if (rc != DS_OK)
        return rc;
    if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < l.rlim_max) {
        l.rlim_cur = l.rlim_max;
        setrlimit(RLIMIT_NOFILE, &l);
    }
    put_words(&words, (uint64_t)b->o.seed, 3, (uint64_t)b->o.shared);
    b->words = strdup(ds_buf_str(&words));
    ds_buf_free(&words);
    b->n_jobs = (size_t)b->o.requests;
    b->jobs = calloc(b->n_jobs, sizeof *b->jobs);
    b->conns = calloc(n, sizeof *b->conns);
    b->free_list = calloc(n, sizeof *b->free_list);
    b->epfd = epoll_create1(EPOLL_CLOEXEC);
    if (!b->words || !b->jobs || !b->conns || !b->free_list || b->epfd < 0)
        return ds_fail(err, DS_E_NOMEM, "out of memory for %" PRId64 " requests on %zu connections", b->o.requests, n);
    for (size_t i = 0; i < n; i++) {
        b->conns[i].fd = -1;
        b->free_list[b->n_free++] = (uint32_t)(n - 1 - i);
    }
    if (b->o.trace)
        return read_trace(b, err);
    poisson(b);
    return DS_OK;
}

static void clean_up(bench *b)
{
    for (int64_t i = 0; i < b->o.connections && b->conns; i++) {
        hang_up(&b->conns[i]);
        ds_buf_free(&b->conns[i].out);
        ds_buf_free(&b->conns[i].head);
    }
    if (b->epfd >= 0)
        close(b->epfd);
    if (b->addr)
        freeaddrinfo(b->addr);
    free(b->conns);
    free(b->jobs);
    free(b->free_list);
    free(b->words);
    free(b->ttft.v);
    free(b->gap.v);
    free(b->total.v);
    free(b->wait.v);
}

int ds_cmd_bench_http(int argc, char **argv)
{
    bench b = { .epfd = -1 };
    ds_err err = { 0 };
    const char *word;
    size_t n;
    bool help;
    ds_rc rc;

    if (ds_opt_parse(&command, &b.o, argc, argv, &word, 0, &n, NULL, &help, &err) != DS_OK)
        return ds_cli_wrong("bench", "http: %s", err.msg);
    if (help) {
        ds_opt_print_help(&command, stdout);
        return 0;
    }
    rc = prepare(&b, &err);
    if (rc == DS_OK) {
        run(&b);
        if (b.done == 0)
            rc = ds_fail(&err, DS_E_IO, "no request was answered: %" PRIu64 " refused, %" PRIu64 " failed", b.refused, b.failed);
        else
            report(&b);
    }
    clean_up(&b);
    return rc == DS_OK ? 0 : rc == DS_E_ARG ? ds_cli_wrong("bench", "http: %s", err.msg) : ds_cli_fail("bench", &err);
}
