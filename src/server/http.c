/* Connections: the HTTP library's callbacks, clocks, responses and streams. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "server/server_internal.h"

enum {
    POOL_EXTRA_BYTES = 28 << 10, /* of a connection's memory besides the head: the list of its lines, then the response */
    PEM_MAX_BYTES = 1 << 20,
    CALLBACK_BLOCK = 16 << 10,
    PIECE_BYTES = 256 << 10, /* larger bodies are handed out in pieces, so that a reader's progress shows */
    BACKLOG = 1024,
    SMALL_CHUNK_BYTES = 2048,
};

/* ---- streams ---- */

static void suspend(ds_exchange *x)
{
    assert(!x->suspended && !x->gone && !x->c->dead);
    MHD_suspend_connection(x->c->mhd);
    x->suspended = true;
}

static void resume(ds_exchange *x)
{
    if (!x->suspended)
        return;
    x->suspended = false;
    x->c->l->due = true;
    MHD_resume_connection(x->c->mhd);
}

void ds_http_kill(ds_conn *c)
{
    if (c->dead)
        return;
    c->dead = true;
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &(struct linger){ .l_onoff = 1 },
               sizeof(struct linger)); /* what waits in the kernel goes too */
    shutdown(c->fd, SHUT_RDWR);
    c->l->due = true;
    if (c->x) {
        c->x->gone = true;
        if (c->x->call)
            ds_call_abandon(c->x->call);
        resume(c->x);
    }
}

static void client_gone(ds_conn *c)
{
    ds_exchange *x = c->x;

    c->l->due = true;
    if (!x || !x->complete || x->gone)
        return;
    x->gone = true;
    x->s->m.disconnected++;
    if (x->call)
        ds_call_abandon(x->call);
    resume(x);
}

static void delivered(ds_server *s, uint64_t *event_us, uint64_t now_us)
{
    if (*event_us)
        ds_histogram_delay(&s->m.delivery, (double)(now_us - *event_us) / 1e6);
    *event_us = 0;
}

/* Sends `chunk_n` bytes of the queue as one chunk, of which `chunk_at` bytes, framing and all, are out already. */
static ssize_t send_chunk(ds_exchange *x, size_t *total)
{
    char buf[SMALL_CHUNK_BYTES], begin[24], end[] = "\r\n";
    size_t n_begin = x->http10 ? 0 : (size_t)snprintf(begin, sizeof begin, "%zx\r\n", x->chunk_n), n_end = x->http10 ? 0 : 2;
    size_t skip = x->chunk_at;

    *total = n_begin + x->chunk_n + n_end;
    if (*total <= sizeof buf) { /* a copy costs less than a list of parts */
        memcpy(buf, begin, n_begin);
        memcpy(buf + n_begin, ds_outq_first(&x->out), x->chunk_n);
        memcpy(buf + n_begin + x->chunk_n, end, n_end);
        return send(x->c->fd, buf + skip, *total - skip, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    struct iovec part[] = { { begin, n_begin }, { (void *)ds_outq_first(&x->out), x->chunk_n }, { end, n_end } };
    for (size_t i = 0; i < 3; i++) {
        size_t cut = skip < part[i].iov_len ? skip : part[i].iov_len;
        part[i].iov_base = (char *)part[i].iov_base + cut;
        part[i].iov_len -= cut;
        skip -= cut;
    }
    return sendmsg(x->c->fd, &(struct msghdr){ .msg_iov = part, .msg_iovlen = 3 }, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* While the library has a stream suspended, everything that it took is sent, and what comes next goes to the socket
 * from here: for a token the library would look at every suspended connection and twice at this one. It comes back
 * for the end of the stream. False: no more now. */
static bool push_chunk(ds_exchange *x)
{
    size_t total;
    ssize_t n;

    if (x->chunk_n == 0)
        x->chunk_n = ds_outq_bytes(&x->out);
    n = send_chunk(x, &total);
    if (n < 0 && errno != EAGAIN && errno != EINTR)
        client_gone(x->c);
    if (n <= 0)
        return false;
    x->take_us = ds_now_us();
    x->chunk_at += (size_t)n;
    if (x->chunk_at < total)
        return true; /* on to the refusal that makes the kernel report when there is room */
    delivered(x->s, &x->event_us, x->take_us);
    ds_outq_drop(&x->out, x->chunk_n);
    x->sent += x->chunk_n;
    x->chunk_n = x->chunk_at = 0;
    return true;
}

static void push(ds_exchange *x)
{
    if (!x->suspended || x->gone)
        return; /* the library has it */
    while (ds_outq_bytes(&x->out) && push_chunk(x))
        ;
    if (x->finished && ds_outq_bytes(&x->out) == 0)
        resume(x);
}

void ds_http_push(ds_server *s)
{
    for (ds_exchange *x = s->to_push, *next; x; x = next) {
        next = x->next_push;
        x->to_push = false;
        push(x);
    }
    s->to_push = NULL;
}

/* The stream has something new. */
static void have_push(ds_exchange *x)
{
    ds_server *s = x->s;

    if (x->c->l->tls) {
        resume(x);
    } else if (!x->to_push) {
        x->to_push = true;
        x->next_push = s->to_push;
        s->to_push = x;
    }
}

char *ds_out_reserve(ds_exchange *x, size_t n)
{
    char *to = x->gone ? NULL : ds_outq_reserve(&x->out, n, x->s->o.max_output_queue);

    if (!to && !x->gone) {
        x->s->m.stalled++;
        x->why = "output queue full";
        ds_http_kill(x->c);
    }
    return to;
}

void ds_out_put(ds_exchange *x, size_t n)
{
    assert(x->stream && !x->gone);
    if (ds_outq_bytes(&x->out) == 0) {
        x->take_us = x->s->now_us;
        x->event_us = x->s->event_us;
    }
    ds_outq_commit(&x->out, n);
    have_push(x);
}

void ds_out_end(ds_exchange *x)
{
    assert(x->stream && !x->finished);
    x->finished = true;
    have_push(x);
}

static void stream_comment(ds_exchange *x, uint64_t now_us)
{
    static const char comment[] = DS_SSE_COMMENT;
    char *to = ds_out_reserve(x, sizeof comment - 1);

    if (!to)
        return;
    memcpy(to, comment, sizeof comment - 1);
    ds_out_put(x, sizeof comment - 1);
    x->put_us = now_us;
}

/* Is anybody there? After the end of a client's sending, bytes to one that is gone come back as a reset within a
 * round trip; one that only closed its sending side skips them: a comment of the stream, or before the response an
 * interim status. */
static void probe(ds_conn *c)
{
    static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";
    ds_exchange *x = c->x;

    if (x->probed)
        return;
    x->probed = true;
    if (x->replied && x->stream)
        stream_comment(x, ds_now_us());
    else if (c->l->tls)
        ds_http_kill(c); /* TLS has no half-open clients */
    else if (!x->replied && !x->http10)
        (void)!send(c->fd, interim, sizeof interim - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static ssize_t read_stream(void *cls, uint64_t pos, char *buf, size_t max)
{
    ds_exchange *x = cls;
    size_t n;

    (void)pos;
    if (x->gone)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    x->take_us = ds_now_us();
    delivered(x->s, &x->taken_us, x->take_us); /* it asks when it has sent what it took */
    n = ds_outq_take(&x->out, buf, max);
    if (n) {
        x->taken_us = x->event_us;
        x->event_us = 0;
        x->sent += n;
        return (ssize_t)n;
    }
    if (x->finished)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (x->c->half_closed && !x->probed) {
        probe(x->c);
        return x->gone ? MHD_CONTENT_READER_END_WITH_ERROR : (ssize_t)ds_outq_take(&x->out, buf, max);
    }
    suspend(x);
    return 0;
}

/* A large body of known length. */
static ssize_t read_body(void *cls, uint64_t pos, char *buf, size_t max)
{
    ds_exchange *x = cls;
    size_t n = x->reply.len > pos ? x->reply.len - (size_t)pos : 0;

    if (x->gone)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (n > max)
        n = max;
    memcpy(buf, x->reply.p + pos, n);
    x->take_us = ds_now_us();
    x->sent += n;
    return n ? (ssize_t)n : MHD_CONTENT_READER_END_OF_STREAM;
}

/* ---- responses ---- */

void ds_reply(ds_exchange *x, int status, const char *type, ds_buf *body)
{
    if (body->oom) {
        ds_buf_free(body);
        ds_reply_static(
            x, 500, "application/json",
            "{\"error\":{\"message\":\"out of memory\",\"type\":\"internal_error\",\"param\":null,\"code\":\"internal_error\"}}", 98);
        return;
    }
    assert(!x->have_reply && !x->replied);
    x->reply = *body;
    *body = (ds_buf){ 0 };
    x->status = status;
    x->type = type;
    x->have_reply = true;
    resume(x);
}

void ds_reply_static(ds_exchange *x, int status, const char *type, const char *body, size_t n)
{
    assert(!x->have_reply && !x->replied);
    x->fixed = body;
    x->fixed_n = n;
    x->status = status;
    x->type = type;
    x->have_reply = true;
    resume(x);
}

void ds_reply_error(ds_exchange *x, const ds_api_error *e, ds_refused why)
{
    const char *id = x->proto == DS_PROTO_MESSAGES ? x->id : NULL;
    bool openai = x->s->recipe.openai_errors;
    size_t n = ds_api_error_body(NULL, 0, e, x->proto, openai, id);
    ds_buf b = { 0 };

    if (why != DS_N_REFUSED)
        x->s->m.refused[why]++;
    if (!x->why)
        x->why = e->code ? e->code : e->type;
    if (ds_buf_reserve(&b, n + 1)) {
        ds_api_error_body(b.p, n + 1, e, x->proto, openai, id);
        b.len = n;
    }
    ds_reply(x, e->status, "application/json", &b);
}

void ds_reply_stream(ds_exchange *x)
{
    assert(!x->have_reply && !x->replied);
    x->stream = true;
    x->status = 200;
    x->type = "text/event-stream; charset=utf-8";
    x->have_reply = true;
    x->s->m.streams++;
    x->put_us = x->take_us = ds_now_us();
    resume(x);
}

static void add_headers(struct MHD_Response *r, const ds_exchange *x)
{
    char number[24];

    MHD_add_response_header(r, "Content-Type", x->type);
    MHD_add_response_header(r, "x-request-id", x->id);
    if (x->fixed == ds_page_html)
        MHD_add_response_header(r, "Content-Security-Policy", ds_page_csp);
    if (x->proto == DS_PROTO_MESSAGES)
        MHD_add_response_header(r, "request-id", x->id);
    if (x->trace[0])
        MHD_add_response_header(r, "traceparent", x->trace);
    if (x->stream) {
        MHD_add_response_header(r, "Cache-Control", "no-cache");
        MHD_add_response_header(r, "X-Accel-Buffering", "no");
    }
    if (x->retry_s) {
        snprintf(number, sizeof number, "%u", x->retry_s);
        MHD_add_response_header(r, "Retry-After", number);
    }
    if (x->status == 401)
        MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (x->status == 405 && x->route)
        MHD_add_response_header(r, "Allow", x->route->methods);
    if (x->s->cors) {
        MHD_add_response_header(r, "Access-Control-Allow-Origin", x->s->cors);
        MHD_add_response_header(r, "Access-Control-Expose-Headers", "x-request-id, request-id, retry-after");
        if (strcmp(x->s->cors, "*") != 0)
            MHD_add_response_header(r, "Vary", "Origin");
        if (x->preflight) {
            MHD_add_response_header(r, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
            MHD_add_response_header(r, "Access-Control-Allow-Headers",
                                    "authorization, content-type, x-api-key, anthropic-version, anthropic-beta, x-request-id, *");
            MHD_add_response_header(r, "Access-Control-Max-Age", "3600");
        }
    }
    if (x->close || x->s->draining)
        MHD_add_response_header(r, "Connection", "close");
}

static void free_bytes(void *p)
{
    free(p);
}

static enum MHD_Result queue_reply(ds_exchange *x)
{
    struct MHD_Response *r;
    enum MHD_Result ok;

    if (x->stream) {
        r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, CALLBACK_BLOCK, read_stream, x, NULL);
    } else if (x->fixed) {
        r = MHD_create_response_from_buffer(x->fixed_n, (void *)x->fixed, MHD_RESPMEM_PERSISTENT);
        x->sent = x->fixed_n;
    } else if (x->reply.len > PIECE_BYTES) {
        x->take_us = ds_now_us();
        r = MHD_create_response_from_callback(x->reply.len, CALLBACK_BLOCK, read_body, x, NULL);
    } else {
        r = MHD_create_response_from_buffer_with_free_callback(x->reply.len, x->reply.p ? x->reply.p : strdup(""), free_bytes);
        x->sent = x->reply.len;
        x->reply = (ds_buf){ 0 };
    }
    if (!r)
        return MHD_NO;
    add_headers(r, x);
    x->have_reply = false;
    x->replied = true;
    x->s->m.http[x->status / 100 < 6 ? x->status / 100 : 0]++;
    ok = MHD_queue_response(x->c->mhd, (unsigned)x->status, r);
    MHD_destroy_response(r);
    return ok;
}

/* ---- requests ---- */

const char *ds_header(ds_exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->c->mhd, MHD_HEADER_KIND, name);
}

const char *ds_query(ds_exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->c->mhd, MHD_GET_ARGUMENT_KIND, name);
}

static ds_conn *conn_of(struct MHD_Connection *m)
{
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(m, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return i ? i->socket_context : NULL;
}

/* The request line was read: the earliest that is heard of a request. Its result is the con_cls of all that follows. */
static void *on_target(void *cls, const char *target, struct MHD_Connection *m)
{
    ds_listener *l = cls;
    ds_conn *c = conn_of(m);
    size_t n = strlen(target);
    ds_exchange *x = c ? calloc(1, sizeof *x + n + 1) : NULL;

    if (!x)
        return NULL;
    memcpy(x + 1, target, n + 1);
    x->target = (const char *)(x + 1);
    x->path_n = strcspn(x->target, "?");
    x->s = l->s;
    x->c = c;
    x->start_us = ds_now_us();
    assert(!c->x);
    c->x = x;
    c->fresh = false;
    return x;
}

static enum MHD_Result on_header(void *cls, enum MHD_ValueKind kind, const char *name, size_t name_n, const char *value, size_t value_n)
{
    (void)kind;
    ds_framing_header(cls, name, name_n, value, value_n);
    return MHD_YES;
}

static bool good_id(const char *s)
{
    size_t n = strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
    return n >= 1 && n <= DS_REQUEST_ID_MAX && s[n] == '\0';
}

/* version-trace-parent-flags, lower-case hexadecimal, of version 00. */
static bool good_trace(const char *s)
{
    if (strlen(s) != 55 || strncmp(s, "00-", 3) != 0 || s[35] != '-' || s[52] != '-')
        return false;
    for (int i = 3; i < 55; i++)
        if (i != 35 && i != 52 && !strchr("0123456789abcdef", s[i]))
            return false;
    return strncmp(s + 3, "00000000000000000000000000000000", 32) != 0 && strncmp(s + 36, "0000000000000000", 16) != 0;
}

/* The head is complete. */
static void begin(ds_exchange *x, const char *method, const char *version)
{
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(x->c->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    size_t head = i ? i->header_size : 0;
    const char *why, *v;
    ds_framing f;
    ds_api_error e;

    x->started = true;
    x->upload_us = x->upload_from_us = ds_now_us();
    x->c->in_head = false;
    snprintf(x->method, sizeof x->method, "%s", method);
    x->head = strcmp(method, "HEAD") == 0;
    ds_framing_start(&f, method, strlen(x->target), version);
    MHD_get_connection_values_n(x->c->mhd, MHD_HEADER_KIND, on_header, &f);
    why = ds_framing_end(&f, head);
    x->http10 = f.http10;
    v = ds_header(x, "x-request-id");
    if (v && good_id(v))
        strcpy(x->id, v);
    else
        ds_server_make_id(x->s, x->id, sizeof x->id, "req_");
    v = ds_header(x, "traceparent");
    if (v && good_trace(v))
        strcpy(x->trace, v);
    for (const char *t = x->target; *t && !why; t++)
        if ((unsigned char)*t <= 0x20 || (unsigned char)*t >= 0x7f)
            why = "the target has characters that must be escaped";
    if (!why && head > x->s->o.max_head)
        ds_api_fail(&e, 431, "invalid_request_error", "request_header_fields_too_large", NULL, "the head of the request is above %zu bytes",
                    x->s->o.max_head);
    else if (why)
        ds_api_fail(&e, 400, NULL, "bad_request_framing", NULL, "%s", why);
    else {
        ds_route_begin(x, &f);
        return;
    }
    x->close = true;
    ds_reply_error(x, &e, DS_REFUSED_FRAMING);
}

/* A piece of body. */
static void take_body(ds_exchange *x, const char *data, size_t n)
{
    x->upload_us = ds_now_us();
    x->uploaded += n;
    if (!x->refused && x->body.len + n > x->s->o.max_body) {
        ds_api_error e;
        ds_api_fail(&e, 413, NULL, NULL, NULL, "the body is above %zu bytes", x->s->o.max_body);
        x->close = true;
        x->refused = true;
        ds_buf_free(&x->body);
        ds_reply_error(x, &e, DS_REFUSED_TOO_LARGE); /* goes out when the body has ended */
    }
    if (x->refused) {
        x->discarded += n;
        if (x->discarded > 4 * (uint64_t)x->s->o.max_body)
            ds_http_kill(x->c);
        return;
    }
    if (x->body.oom || !ds_buf_put(&x->body, data, n))
        ds_http_kill(x->c);
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *m, const char *url, const char *method, const char *version,
                                  const char *data, size_t *data_n, void **con_cls)
{
    ds_exchange *x = *con_cls;

    (void)cls;
    (void)url;
    (void)m;
    if (!x || x->c->dead)
        return MHD_NO;
    if (!x->started) {
        begin(x, method, version);
        /* A refusal that closes goes out at once; others wait for the body, lest the client's writing fails before it reads. */
        if (x->have_reply && x->close)
            return queue_reply(x);
        x->refused = x->have_reply;
        return MHD_YES;
    }
    if (*data_n) {
        take_body(x, data, *data_n);
        *data_n = 0;
        return x->c->dead ? MHD_NO : MHD_YES;
    }
    if (!x->complete) {
        x->complete = true;
        x->body_us = ds_now_us();
        if (!x->have_reply)
            ds_route_run(x);
    }
    if (x->gone)
        return MHD_NO;
    if (x->have_reply)
        return queue_reply(x);
    if (!x->asked) {
        /* Suspended now, the library would read once more when it is resumed, find the end of a client's sending and close. It forgets
         * about reading when it is told once that there is no response yet; then it asks again. */
        x->asked = true;
        x->c->l->due = true;
        return MHD_YES;
    }
    suspend(x);
    if (x->c->half_closed)
        probe(x->c);
    return MHD_YES;
}

static void log_access(ds_exchange *x, uint64_t now)
{
    ds_buf *b = &x->s->access;
    struct timespec ts;
    struct tm tm;
    char when[40];

    if (x->s->o.access_fd < 0 || b->len > (1u << 20))
        return;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    ds_buf_printf(b, "{\"time\":\"%s.%03ldZ\",\"request_id\":\"%s\",\"method\":", when, ts.tv_nsec / 1000000, x->id);
    ds_json_write_str(b, x->method, strlen(x->method), DS_JSON_COMPACT);
    ds_buf_puts(b, ",\"path\":"); /* without the query, which may hold a key; without ids of stored things */
    ds_json_write_str(b, x->target, x->path_n < 200 ? x->path_n : 200, DS_JSON_COMPACT);
    ds_buf_printf(b, ",\"status\":%d,\"ms\":%.3f,\"bytes\":%llu", x->replied ? x->status : 0, (double)(now - x->start_us) / 1e3,
                  (unsigned long long)x->sent);
    if (x->route)
        ds_buf_printf(b, ",\"route\":\"%s\"", x->route->name);
    if (x->key_name[0])
        ds_buf_printf(b, ",\"key\":\"%s\",\"tenant\":\"%s\"", x->key_name, x->tenant);
    if (x->stream)
        ds_buf_puts(b, ",\"stream\":true");
    if (x->prompt_tokens)
        ds_buf_printf(b, ",\"prompt_tokens\":%llu,\"cached_tokens\":%llu,\"output_tokens\":%llu", (unsigned long long)x->prompt_tokens,
                      (unsigned long long)x->cached_tokens, (unsigned long long)x->output_tokens);
    if (x->first_us) /* where the time to the first token went */
        ds_buf_printf(b, ",\"first_token_ms\":%.3f,\"prepare_ms\":%.3f,\"queue_ms\":%.3f,\"prefill_ms\":%.3f",
                      (double)(x->first_us - x->body_us) / 1e3, (double)(x->prepared_us - x->body_us) / 1e3, (double)x->queued_us / 1e3,
                      (double)(x->first_us - x->begun_us) / 1e3);
    if (x->finish)
        ds_buf_printf(b, ",\"finish\":\"%s\"", x->finish);
    if (x->why)
        ds_buf_printf(b, ",\"reason\":\"%s\"", x->why);
    if (x->trace[0])
        ds_buf_printf(b, ",\"trace_id\":\"%.32s\"", x->trace + 3);
    ds_buf_puts(b, x->gone ? ",\"disconnected\":true}\n" : "}\n");
}

/* The request as a span, and where its time went as spans below it. */
static void add_spans(ds_exchange *x, uint64_t now)
{
    ds_spans *spans = x->s->spans;
    char random[40], parent[17];
    const char *trace = x->trace[0] ? x->trace + 3 : random;
    uint64_t id, decode;

    if (!spans || !x->route || !x->route->model || (x->trace[0] && !(x->trace[54] & 1))) /* the last digit of the flags: sampled */
        return;
    ds_server_make_id(x->s, random, sizeof random, "");
    id = strtoull(random + 16, NULL, 16) | 1;
    snprintf(parent, sizeof parent, "%016llx", (unsigned long long)id);
    ds_spans_add(spans, &(ds_span){ .name = x->route->name,
                                    .trace = trace,
                                    .parent = x->trace[0] ? x->trace + 36 : NULL,
                                    .id = id,
                                    .start_us = x->start_us,
                                    .end_us = now,
                                    .server = true,
                                    .status = x->replied ? x->status : 0,
                                    .request_id = x->id,
                                    .prompt_tokens = x->prompt_tokens,
                                    .output_tokens = x->output_tokens });
    if (!x->first_us)
        return;
    decode = now > x->first_us ? now : x->first_us;
    const ds_span parts[] = {
        { .name = "prepare", .start_us = x->body_us, .end_us = x->prepared_us },
        { .name = "queue", .start_us = x->begun_us - x->queued_us, .end_us = x->begun_us },
        { .name = "prefill", .start_us = x->begun_us, .end_us = x->first_us },
        { .name = "decode", .start_us = x->first_us, .end_us = decode },
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        ds_span p = parts[i];
        p.trace = trace;
        p.parent = parent;
        p.id = id + 2 * (i + 1);
        ds_spans_add(spans, &p);
    }
}

void ds_http_flush_access(ds_server *s)
{
    size_t at = 0;

    while (at < s->access.len) {
        ssize_t n = write(s->o.access_fd, s->access.p + at, s->access.len - at);
        if (n > 0)
            at += (size_t)n;
        else if (n == 0 || errno != EINTR)
            break; /* a log that can't be written must not stop the server */
    }
    ds_buf_clear(&s->access);
}

static void on_completed(void *cls, struct MHD_Connection *m, void **con_cls, enum MHD_RequestTerminationCode code)
{
    ds_exchange *x = *con_cls;
    ds_server *s;
    uint64_t now = ds_now_us();

    (void)cls;
    (void)m;
    *con_cls = NULL;
    if (!x)
        return;
    s = x->s;
    if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK && x->started && !x->gone && !x->c->dead) { /* a write failed before we looked */
        x->gone = true;
        s->m.disconnected += x->complete;
    }
    if (x->call) /* the response isn't out */
        ds_call_abandon(x->call);
    for (ds_exchange **p = &s->to_push; x->to_push && *p; p = &(*p)->next_push)
        if (*p == x) {
            *p = x->next_push;
            break;
        }
    s->m.bytes_out += x->sent;
    if (x->stream)
        s->m.streams--;
    if (x->started) {
        log_access(x, now);
        add_spans(x, now);
    }
    assert(x->c->x == x);
    x->c->x = NULL;
    x->c->since_us = now;
    x->c->in_head = false;
    ds_buf_free(&x->body);
    ds_buf_free(&x->reply);
    ds_outq_free(&x->out);
    free(x);
}

/* ---- connections ---- */

static void on_connection(void *cls, struct MHD_Connection *m, void **context, enum MHD_ConnectionNotificationCode code)
{
    ds_listener *l = cls;
    ds_server *s = l->s;
    ds_conn *c = *context;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *i = MHD_get_connection_info(m, MHD_CONNECTION_INFO_CONNECTION_FD);
        c = i ? calloc(1, sizeof *c) : NULL;
        if (!c)
            return; /* a connection without a record gets no answer: on_target makes no exchange for it */
        *c = (ds_conn){ .l = l, .mhd = m, .fd = i->connect_fd, .fresh = true, .since_us = ds_now_us(), .next = s->conns };
        if (s->conns)
            s->conns->prev = c;
        s->conns = c;
        s->m.connections++;
        s->m.connections_total++;
        if (!l->is_unix)
            setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
        ds_conn_bound_buffer(c);
        epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, c->fd,
                  &(struct epoll_event){ .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c });
        *context = c;
        return;
    }
    if (!c)
        return;
    assert(!c->x);
    epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    if (c->next)
        c->next->prev = c->prev;
    *(c->prev ? &c->prev->next : &s->conns) = c->next;
    s->m.connections--;
    *context = NULL;
    free(c);
}

void ds_http_conn_event(ds_conn *c, uint32_t events)
{
    if (events & (EPOLLHUP | EPOLLERR)) {
        client_gone(c);
    } else if ((events & EPOLLRDHUP) && !c->half_closed) {
        c->half_closed = true;
        if (c->x && c->x->complete && !c->x->gone && (!c->x->replied || c->x->stream))
            probe(c);
    }
    if ((events & EPOLLOUT) && c->x && c->x->stream && c->x->suspended)
        have_push(c->x);
    if ((events & EPOLLIN) && !c->x && !c->in_head) { /* the first bytes of a head */
        c->in_head = true;
        c->since_us = ds_now_us();
    }
}

/* `then` may be later than the time that the sweep began with. */
static bool past(uint64_t now_us, uint64_t then_us, uint64_t limit_ms)
{
    return now_us > then_us && now_us - then_us > limit_ms * 1000;
}

static bool nothing_unread(const ds_conn *c)
{
    int n = 0;
    return ioctl(c->fd, FIONREAD, &n) != 0 || n == 0;
}

static void sweep_conn(ds_server *s, ds_conn *c, uint64_t now)
{
    ds_exchange *x = c->x;

    if (c->dead)
        return;
    if (c->half_closed && (!x || !x->complete) &&
        nothing_unread(c)) { /* the rest of the request won't come; the library misses an end that comes with data */
        ds_http_kill(c);
    } else if (!x || !x->started) {
        uint64_t limit = c->in_head || c->fresh || x ? s->o.header_ms : s->o.idle_ms;
        if (past(now, c->since_us, limit) || (!x && !c->in_head && s->draining))
            ds_http_kill(c);
    } else if (!x->complete) {
        if (past(now, x->upload_us, s->o.body_ms) || past(now, x->upload_from_us, s->o.body_ms + x->uploaded * 1000 / s->o.body_rate))
            ds_http_kill(c);
    } else if (x->replied) {
        bool waits = x->stream ? ds_outq_bytes(&x->out) > 0 : x->reply.len > 0;
        if ((waits && past(now, x->take_us, s->o.stall_ms)) || past(now, ds_conn_unread_since(c, now), s->o.stall_ms)) {
            s->m.stalled++;
            x->why = "client stalled";
            ds_http_kill(c);
        } else if (x->stream && !x->finished && past(now, x->put_us, s->o.keepalive_ms)) {
            stream_comment(x, now);
        }
    }
}

void ds_http_sweep(ds_server *s, uint64_t now_us)
{
    for (ds_conn *c = s->conns, *next; c; c = next) { /* nothing here frees a connection, that is the library's */
        next = c->next;
        sweep_conn(s, c, now_us);
    }
}

/* ---- listening ---- */

static ds_rc listen_unix(int *out, const char *path, ds_err *err)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    struct stat st;
    char q[220];
    int fd, probe_fd;

    ds_quote(q, sizeof q, path, strlen(path));
    if (strlen(path) >= sizeof a.sun_path)
        return ds_fail(err, DS_E_ARG, "%s: a socket's path has at most %zu bytes", q, sizeof a.sun_path - 1);
    strcpy(a.sun_path, path);
    if (lstat(path, &st) == 0) {
        if (!S_ISSOCK(st.st_mode))
            return ds_fail(err, DS_E_IO, "%s: is there and no socket", q);
        probe_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool alive = probe_fd >= 0 && connect(probe_fd, (struct sockaddr *)&a, sizeof a) == 0;
        if (probe_fd >= 0)
            close(probe_fd);
        if (alive)
            return ds_fail(err, DS_E_IO, "%s: another program listens there", q);
        unlink(path);
    }
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || chmod(path, 0600) != 0 || listen(fd, BACKLOG) != 0) {
        ds_rc rc = ds_fail(err, DS_E_IO, "%s: %s", q, strerror(errno));
        if (fd >= 0)
            close(fd);
        return rc;
    }
    *out = fd;
    return DS_OK;
}

static ds_rc listen_tcp(ds_server *s, int *out, ds_err *err)
{
    const char *host = s->host ? s->host : "127.0.0.1";
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV }, *list = NULL;
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    char port[8], name[128], q[220];
    int fd = -1, e, why = 0;

    ds_quote(q, sizeof q, host, strlen(host));
    snprintf(port, sizeof port, "%u", s->o.port);
    e = getaddrinfo(host, port, &hints, &list);
    if (e != 0)
        return ds_fail(err, DS_E_IO, "--host %s: %s", q, gai_strerror(e));
    for (struct addrinfo *i = list; i && fd < 0; i = i->ai_next) {
        fd = socket(i->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd >= 0) {
            setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int));
            if (bind(fd, i->ai_addr, i->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
                break;
        }
        why = errno;
        if (fd >= 0)
            close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    if (fd < 0)
        return ds_fail(err, DS_E_IO, "%s port %u: %s", q, s->o.port, strerror(why));
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0 ||
        getnameinfo((struct sockaddr *)&a, n, name, sizeof name, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        close(fd);
        return ds_fail(err, DS_E_IO, "%s: no address", q);
    }
    snprintf(s->url, sizeof s->url, a.ss_family == AF_INET6 ? "%s://[%s]:%s" : "%s://%s:%s", s->cert ? "https" : "http", name, port);
    *out = fd;
    return DS_OK;
}

/* Whose request did the library just refuse? One whose head is over and of which we haven't heard is it. Else it is
 * among those with a body, or with a head, on its way, and must be the only one: nobody may get another's refusal. */
static ds_conn *refused_by_library(ds_server *s, bool in_body)
{
    ds_conn *found = NULL;
    bool several = false;

    for (ds_conn *c = s->conns; c; c = c->next) {
        bool over = MHD_get_connection_info(c->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE) != NULL, heard = c->x && c->x->started;
        if (c->dead || c->l->tls || (c->x && (c->x->complete || c->x->replied)))
            continue;
        if (over && !heard)
            return c;
        if (heard != in_body)
            continue;
        several |= found != NULL;
        found = c;
    }
    return several ? NULL : found;
}

/* The library answers some malformed requests itself, in HTML and after a malformed Content-Length with two heads,
 * and says so beforehand to its log only. Our answer goes out then, and the socket is shut before the library's. */
static void answer_for_library(ds_server *s, unsigned status, bool in_body)
{
    ds_conn *c = refused_by_library(s, in_body);
    ds_exchange *x = c ? c->x : NULL;
    char id[DS_REQUEST_ID_MAX + 1], body[600], out[1200];
    const char *phrase = status == 413   ? "Content Too Large"
                         : status == 414 ? "URI Too Long"
                         : status == 431 ? "Request Header Fields Too Large"
                                         : "Bad Request";
    ds_api_error e;
    size_t n;

    if (!c)
        return;
    if (status == 413)
        ds_api_fail(&e, 413, NULL, NULL, NULL, "the body is above %zu bytes", s->o.max_body);
    else if (status == 414 || status == 431)
        ds_api_fail(&e, (int)status, "invalid_request_error", "request_header_fields_too_large", NULL,
                    "the head of the request is above %zu bytes", s->o.max_head);
    else
        ds_api_fail(&e, 400, NULL, "bad_request_framing", NULL, "the framing of the request is malformed");
    ds_server_make_id(s, id, sizeof id, "req_");
    if (x)
        ds_route_proto(x);
    if (x && !x->id[0])
        strcpy(x->id, id);
    n = ds_api_error_body(body, sizeof body, &e, x ? x->proto : DS_PROTO_CHAT, s->recipe.openai_errors, x ? x->id : id);
    n = (size_t)snprintf(
        out, sizeof out,
        "HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Type: application/json\r\nx-request-id: %s\r\nContent-Length: %zu\r\n\r\n%s",
        e.status, phrase, x ? x->id : id, n, body);
    c->dead = true;
    (void)!send(c->fd, out, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    for (int i = 0; i < 64 && recv(c->fd, out, sizeof out, MSG_DONTWAIT) > 0; i++)
        ; /* what is unread when the socket is closed would make a reset of it */
    shutdown(c->fd, SHUT_WR);
    s->m.refused[status == 413 ? DS_REFUSED_TOO_LARGE : DS_REFUSED_FRAMING]++;
    s->m.http[4]++;
    if (!x)
        return;
    x->started = x->replied = true;
    x->status = e.status;
    x->why = e.code ? e.code : e.type;
}

static void on_library_log(void *cls, const char *fmt, va_list ap)
{
    static const char refuses[] = "Error processing request (HTTP response code is %u";
    ds_server *s = cls;
    char line[300];
    va_list again;

    if (strncmp(fmt, refuses, sizeof refuses - 1) == 0) {
        va_copy(again, ap);
        unsigned status = va_arg(again, unsigned);
        answer_for_library(s, status, strstr(va_arg(again, const char *), "chunk") != NULL);
        va_end(again);
    }
    vsnprintf(line, sizeof line, fmt, ap);
    ds_logf(s->o.log, DS_LOG_DEBUG, "http message=\"%s\"", line);
}

static ds_rc start_daemon(ds_listener *l, ds_err *err)
{
    ds_server *s = l->s;
    const union MHD_DaemonInfo *i;
    struct MHD_OptionItem opts[20];
    int n = 0;

    opts[n++] = (struct MHD_OptionItem){ MHD_OPTION_LISTEN_SOCKET, l->fd, NULL };
    opts[n++] = (struct MHD_OptionItem){ MHD_OPTION_CONNECTION_LIMIT, s->o.max_connections, NULL };
    opts[n++] = (struct MHD_OptionItem){ MHD_OPTION_CONNECTION_MEMORY_LIMIT, (intptr_t)(s->o.max_head + POOL_EXTRA_BYTES), NULL };
    opts[n++] = (struct MHD_OptionItem){ MHD_OPTION_CONNECTION_TIMEOUT, (intptr_t)((s->o.idle_ms + 999) / 1000 + 1), NULL };
    opts[n++] = (struct MHD_OptionItem){ MHD_OPTION_STRICT_FOR_CLIENT, 1, NULL };
    opts[n++] = (struct MHD_OptionItem){ MHD_OPTION_NOTIFY_COMPLETED, (intptr_t)on_completed, l };
    opts[n++] = (struct MHD_OptionItem){ MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)on_connection, l };
    opts[n++] = (struct MHD_OptionItem){ MHD_OPTION_URI_LOG_CALLBACK, (intptr_t)on_target, l };
    if (l->tls) {
        opts[n++] = (struct MHD_OptionItem){ MHD_OPTION_HTTPS_MEM_CERT, 0, s->cert };
        opts[n++] = (struct MHD_OptionItem){ MHD_OPTION_HTTPS_MEM_KEY, 0, s->key_pem };
    }
    opts[n] = (struct MHD_OptionItem){ MHD_OPTION_END, 0, NULL };
    l->daemon = MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | (l->tls ? MHD_USE_TLS : 0), 0, NULL, NULL,
                                 on_request, l, MHD_OPTION_EXTERNAL_LOGGER, on_library_log, s, MHD_OPTION_ARRAY, opts, MHD_OPTION_END);
    if (!l->daemon)
        return ds_fail(err, DS_E_IO, "the HTTP library refused to start; --log-level debug says more");
    l->fd = -1; /* the library closes it */
    i = MHD_get_daemon_info(l->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    if (!i)
        return ds_fail(err, DS_E_IO, "the HTTP library has no epoll");
    l->epoll_fd = i->epoll_fd;
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, l->epoll_fd, &(struct epoll_event){ .events = EPOLLIN, .data.ptr = l }) != 0)
        return ds_fail(err, DS_E_IO, "epoll: %s", strerror(errno));
    return DS_OK;
}

static ds_listener *add_listener(ds_server *s)
{
    ds_listener *l = &s->listeners[s->n_listeners++];
    *l = (ds_listener){ .s = s, .fd = -1, .epoll_fd = -1 };
    return l;
}

ds_rc ds_http_listen(ds_server *s, ds_err *err)
{
    ds_rc rc = DS_OK;
    ds_listener *l;
    size_t n;

    if (s->o.tls_cert)
        rc = ds_file_read(&s->cert, &n, s->o.tls_cert, PEM_MAX_BYTES, err);
    if (rc == DS_OK && s->o.tls_key)
        rc = ds_file_read(&s->key_pem, &n, s->o.tls_key, PEM_MAX_BYTES, err);
    if (rc == DS_OK && s->o.tls_cert && s->o.tls_key)
        rc = ds_tls_check(s->o.tls_cert, s->cert, s->o.tls_key, s->key_pem, err);
    if (rc == DS_OK && !s->o.no_tcp) {
        l = add_listener(s);
        l->tls = s->cert != NULL;
        rc = listen_tcp(s, &l->fd, err);
    }
    if (rc == DS_OK && s->unix_path) {
        l = add_listener(s);
        l->is_unix = true;
        if (!s->url[0])
            snprintf(s->url, sizeof s->url, "unix:%s", s->unix_path);
        rc = listen_unix(&l->fd, s->unix_path, err);
        l->bound = rc == DS_OK;
    }
    if (rc == DS_OK && s->admin_path) {
        l = add_listener(s);
        l->is_unix = l->admin = true;
        rc = listen_unix(&l->fd, s->admin_path, err);
        l->bound = rc == DS_OK;
    }
    for (size_t i = 0; i < s->n_listeners && rc == DS_OK; i++)
        rc = start_daemon(&s->listeners[i], err);
    return rc;
}

void ds_http_close(ds_server *s)
{
    for (ds_conn *c = s->conns; c; c = c->next)
        ds_http_kill(c);
    for (size_t i = 0; i < s->n_listeners; i++) {
        ds_listener *l = &s->listeners[i];
        if (l->daemon) {
            MHD_run(l->daemon); /* resumed connections become ordinary ones again */
            epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, l->epoll_fd, NULL);
            MHD_stop_daemon(l->daemon);
        }
        if (l->fd >= 0)
            close(l->fd);
        if (l->is_unix && l->bound)
            unlink(l->admin ? s->admin_path : s->unix_path);
    }
    s->n_listeners = 0;
}

/* ---- turns ---- */

void ds_http_turn(ds_server *s, bool all)
{
    ds_http_push(s);
    for (size_t i = 0; i < s->n_listeners; i++) {
        ds_listener *l = &s->listeners[i];
        if (!l->due && !all)
            continue;
        l->due = false;
        MHD_run(l->daemon);
    }
}

int ds_http_timeout_ms(ds_server *s, int most)
{
    for (size_t i = 0; i < s->n_listeners; i++) {
        MHD_UNSIGNED_LONG_LONG ms;
        if (s->listeners[i].due)
            return 0;
        if (MHD_get_timeout(s->listeners[i].daemon, &ms) == MHD_YES && ms < (MHD_UNSIGNED_LONG_LONG)most) {
            most = (int)ms;
            if (ms == 0)
                s->listeners[i].due = true;
        }
    }
    return most;
}
