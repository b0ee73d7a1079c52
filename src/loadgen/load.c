/* The event loop: a timer for what is due, an epoll set for what is under way.
 *
 * A connection is free -> connecting -> sending -> receiving -> idle (kept alive) or free. Requests under way hang
 * in a list ordered by the time due, which is also the order of their deadlines. A request on a kept connection that
 * turns out to be closed goes out again on a new one, once; it stays due when it was. */
#include "loadgen/load.h"

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
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "loadgen/answer.h"

enum {
    READ_BYTES = 256 * 1024,
    EVENTS = 256,
    BEGIN_MAX = 64, /* requests begun before the sockets are looked at again */
    FAILED_PAUSE_NS = 10000000,
    KEEP_BYTES = 16 * 1024,     /* of a request's text, once it is sent */
    CONVERSATION_MAX = 4 << 20, /* bytes; a longer conversation ends */
};
#define SECOND UINT64_C(1000000000)
#define NEVER UINT64_MAX

const char *const ds_loadgen_error_names[DS_LOAD_N_ERRORS] = { "connect",  "closed",   "timeout", "http_429",  "http_503", "http_4xx",
                                                               "http_5xx", "protocol", "stream",  "truncated", "limit",    "unfinished" };

typedef struct {
    ds_plan_item item;
    uint32_t turn;
    ds_buf text; /* members of "messages" so far */
} conversation;

typedef enum { FREE, CONNECTING, SENDING, RECEIVING, IDLE } conn_state;

typedef struct {
    conn_state state;
    int fd;
    bool reused, got_bytes, measured, out_watched;
    int32_t prev, next; /* list of those under way; next also links free and idle ones; -1 ends */
    uint64_t due, first, last;
    uint64_t events;
    conversation *talk; /* NULL: a single request */
    ds_answer answer;
    ds_buf out;
    size_t out_at;
    struct loop *loop;
} conn;

typedef struct {
    uint64_t at;
    conversation *talk;
} later;

typedef struct loop {
    const ds_loadgen_opts *o;
    ds_loadgen_report *r;
    ds_plan *plan;
    int epoll, timer;
    struct sockaddr_storage addr;
    socklen_t addr_len;
    char host[300]; /* for the Host header */
    conn *conns;
    uint32_t n_conns; /* used so far */
    int32_t free, idle, oldest, newest;
    later *heap;
    size_t n_heap, cap_heap;
    uint64_t start, now, last_done, last_progress;
    uint64_t users; /* closed: that came again so far */
    ds_plan_item next;
    bool has_next;
    char *in;
    ds_buf body;
} loop;

/* ---- a heap of turns to come ---- */

static bool heap_push(loop *l, uint64_t at, conversation *talk)
{
    size_t i = l->n_heap;

    if (l->n_heap == l->cap_heap) {
        size_t cap = l->cap_heap ? l->cap_heap * 2 : 256;
        later *h = realloc(l->heap, cap * sizeof *h);
        if (!h)
            return false;
        l->heap = h;
        l->cap_heap = cap;
    }
    for (l->n_heap++; i && l->heap[(i - 1) / 2].at > at; i = (i - 1) / 2)
        l->heap[i] = l->heap[(i - 1) / 2];
    l->heap[i] = (later){ at, talk };
    return true;
}

static later heap_pop(loop *l)
{
    later top = l->heap[0], x = l->heap[--l->n_heap];
    size_t i = 0;

    for (size_t k; (k = 2 * i + 1) < l->n_heap; i = k) {
        if (k + 1 < l->n_heap && l->heap[k + 1].at < l->heap[k].at)
            k++;
        if (x.at <= l->heap[k].at)
            break;
        l->heap[i] = l->heap[k];
    }
    l->heap[i] = x;
    return top;
}

static void talk_free(conversation *t)
{
    if (t)
        ds_buf_free(&t->text);
    free(t);
}

/* ---- the list of requests under way ---- */

/* Turns of conversations are due in the order in which they start, for both come from one queue of times. */
static void link_live(loop *l, conn *c)
{
    int32_t i = (int32_t)(c - l->conns);

    c->prev = l->newest;
    c->next = -1;
    if (l->newest >= 0)
        l->conns[l->newest].next = i;
    else
        l->oldest = i;
    l->newest = i;
    if (++l->r->live > l->r->max_live)
        l->r->max_live = l->r->live;
}

static void unlink_live(loop *l, conn *c)
{
    if (c->prev >= 0)
        l->conns[c->prev].next = c->next;
    else
        l->oldest = c->next;
    if (c->next >= 0)
        l->conns[c->next].prev = c->prev;
    else
        l->newest = c->prev;
    l->r->live--;
}

/* ---- connections ---- */

static bool watch(loop *l, conn *c, int op, bool out)
{
    struct epoll_event e = { .events = out ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.u32 = (uint32_t)(c - l->conns) };

    c->out_watched = out;
    return epoll_ctl(l->epoll, op, c->fd, &e) == 0;
}

static void shut(conn *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

/* A closed connection's place can be used again. It isn't in the list of those under way any more. */
static void put_free(loop *l, conn *c)
{
    shut(c);
    c->state = FREE;
    c->next = l->free;
    l->free = (int32_t)(c - l->conns);
}

static bool start_connect(loop *l, conn *c)
{
    int one = 1;

    c->fd = socket(l->addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        return false;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    l->r->connections++;
    c->state = CONNECTING;
    c->reused = false;
    if (connect(c->fd, (struct sockaddr *)&l->addr, l->addr_len) != 0 && errno != EINPROGRESS)
        return false;
    return watch(l, c, EPOLL_CTL_ADD, true);
}

/* ---- the end of a request ---- */

/* Closed loop: whoever had this request comes again. After a failure not at once, or a server that refuses would be
 * asked without pause. */
static void come_again(loop *l, bool failed)
{
    uint64_t at = l->now - l->start, think;

    if (!l->o->closed)
        return;
    think = ds_plan_think_ns(l->plan, l->users++, 0, l->o->think_ns);
    if (failed && think < FAILED_PAUSE_NS)
        think = FAILED_PAUSE_NS;
    heap_push(l, at + think, NULL); /* without memory there is a user less */
}

static void fail(loop *l, conn *c, ds_loadgen_error why)
{
    if (c->measured) {
        l->r->errors[why]++;
        if (!l->r->first_error_status && c->answer.status >= 300)
            l->r->first_error_status = (uint64_t)c->answer.status;
    }
    l->last_done = l->now;
    talk_free(c->talk);
    c->talk = NULL;
    unlink_live(l, c);
    put_free(l, c);
    come_again(l, true);
}

static void record(loop *l, conn *c)
{
    ds_loadgen_report *r = l->r;
    const ds_loadgen_opts *o = l->o;
    uint64_t tokens = c->answer.has_usage ? c->answer.completion : c->events, pace = 0;
    uint64_t first = c->first ? c->first - c->due : 0;

    r->completed++;
    r->prompt_tokens += c->answer.prompt;
    r->cached_tokens += c->answer.cached;
    r->completion_tokens += tokens;
    r->without_usage += !c->answer.has_usage;
    ds_times_add(&r->total, l->now - c->due);
    if (!o->no_stream && c->first) {
        ds_times_add(&r->first_token, first);
        if (tokens > 1) {
            pace = (c->last - c->first) / (tokens - 1);
            ds_times_add(&r->pace, pace);
        }
    }
    if ((!o->want_first_ns || first <= o->want_first_ns) && (!o->want_pace_ns || pace <= o->want_pace_ns))
        r->good++;
}

/* The next turn is due a thinking time from now. */
static void go_on(loop *l, conversation *t)
{
    if (++t->turn >= l->o->turns || t->text.oom || t->text.len > CONVERSATION_MAX ||
        !heap_push(l, l->now - l->start + ds_plan_think_ns(l->plan, t->item.index, t->turn, l->o->think_ns), t)) {
        talk_free(t);
        come_again(l, false);
    }
}

static void finish(loop *l, conn *c)
{
    const ds_answer *a = &c->answer;
    bool kept = !a->close && !l->o->no_keepalive;

    if (a->status != 200) {
        fail(l, c,
             a->status == 429                       ? DS_LOAD_HTTP_429
             : a->status == 503 || a->status == 529 ? DS_LOAD_HTTP_503
             : a->status >= 500                     ? DS_LOAD_HTTP_5XX
             : a->status >= 400                     ? DS_LOAD_HTTP_4XX
                                                    : DS_LOAD_PROTOCOL);
        return;
    }
    if (a->stream && (a->failed || !a->ended)) {
        fail(l, c, a->failed ? DS_LOAD_STREAM : DS_LOAD_TRUNCATED);
        return;
    }
    if (a->stream == l->o->no_stream) {
        fail(l, c, DS_LOAD_PROTOCOL);
        return;
    }
    if (c->measured)
        record(l, c);
    l->last_done = l->now;
    if (c->talk) {
        ds_buf_puts(&c->talk->text, "\"}");
        go_on(l, c->talk);
        c->talk = NULL;
    } else {
        come_again(l, false);
    }
    unlink_live(l, c);
    if (!kept) {
        put_free(l, c);
        return;
    }
    c->state = IDLE;
    c->next = l->idle;
    l->idle = (int32_t)(c - l->conns);
}

/* The connection is gone before the answer is complete. */
static void lost(loop *l, conn *c, ds_loadgen_error why)
{
    if (c->reused && !c->got_bytes) { /* the server had closed it while it was idle */
        shut(c);
        ds_answer_begin(&c->answer);
        c->out_at = 0;
        if (start_connect(l, c))
            return;
        why = DS_LOAD_CONNECT;
    }
    fail(l, c, why);
}

/* ---- sending ---- */

static void try_send(loop *l, conn *c)
{
    while (c->out_at < c->out.len) {
        ssize_t n = send(c->fd, c->out.p + c->out_at, c->out.len - c->out_at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            c->state = SENDING;
            if (!c->out_watched && !watch(l, c, EPOLL_CTL_MOD, true))
                lost(l, c, DS_LOAD_CLOSED);
            return;
        }
        if (n < 0) {
            lost(l, c, DS_LOAD_CLOSED);
            return;
        }
        c->out_at += (size_t)n;
    }
    c->state = RECEIVING;
    if (!c->reused && c->out.cap > KEEP_BYTES) /* it won't go out again */
        ds_buf_free(&c->out);
    if (c->out_watched && !watch(l, c, EPOLL_CTL_MOD, false))
        lost(l, c, DS_LOAD_CLOSED);
}

static void write_body(loop *l, const ds_plan_item *it, const conversation *talk)
{
    const ds_loadgen_opts *o = l->o;
    ds_buf *b = &l->body;

    ds_buf_clear(b);
    ds_buf_puts(b, "{\"model\":");
    ds_json_write_str(b, o->model, strlen(o->model), DS_JSON_COMPACT);
    if (talk) {
        ds_buf_puts(b, ",\"messages\":[");
        ds_buf_put(b, talk->text.p, talk->text.len);
        ds_buf_puts(b, "]");
    } else {
        ds_buf text = { 0 };
        ds_plan_prompt(l->plan, it, &text);
        ds_buf_puts(b, o->completions ? ",\"prompt\":\"" : ",\"messages\":[{\"role\":\"user\",\"content\":\"");
        ds_buf_put(b, text.p, text.len);
        ds_buf_puts(b, o->completions ? "\"" : "\"}]");
        b->oom |= text.oom;
        ds_buf_free(&text);
    }
    ds_buf_printf(b, ",\"max_tokens\":%u", it->output_tokens);
    if (!o->no_stream)
        ds_buf_puts(b, ",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    if (o->extra && *o->extra) {
        ds_buf_putc(b, ',');
        ds_buf_puts(b, o->extra);
    }
    ds_buf_putc(b, '}');
}

static void write_request(loop *l, ds_buf *out, const ds_plan_item *it, const conversation *talk)
{
    const ds_loadgen_opts *o = l->o;

    write_body(l, it, talk);
    ds_buf_clear(out);
    ds_buf_printf(out,
                  "POST %s/v1/%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: deepserve-bench\r\nContent-Type: application/json\r\nAccept: "
                  "%s\r\nContent-Length: %zu\r\n",
                  o->path, o->completions ? "completions" : "chat/completions", l->host,
                  o->no_stream ? "application/json" : "text/event-stream", l->body.len);
    if (o->key)
        ds_buf_printf(out, "Authorization: Bearer %s\r\n", o->key);
    if (o->no_keepalive)
        ds_buf_puts(out, "Connection: close\r\n");
    ds_buf_puts(out, "\r\n");
    ds_buf_put(out, l->body.p, l->body.len);
    out->oom |= l->body.oom;
}

/* Output of an answer: one event of a stream, or the whole. */
static void on_output(void *ctx, const char *text, size_t n)
{
    conn *c = ctx;
    loop *l = c->loop;

    if (c->first == 0)
        c->first = l->now;
    else if (c->measured)
        ds_times_add(&l->r->gap, l->now - c->last);
    c->last = l->now;
    c->events++;
    if (c->talk && n)
        ds_buf_put(&c->talk->text, text, n);
}

static conn *take_conn(loop *l)
{
    conn *c = NULL;

    if (l->idle >= 0) {
        c = &l->conns[l->idle];
        l->idle = c->next;
        c->reused = true;
    } else if (l->free >= 0) {
        c = &l->conns[l->free];
        l->free = c->next;
    } else if (l->n_conns < l->o->max_live) {
        c = &l->conns[l->n_conns++];
        *c = (conn){ .fd = -1, .loop = l, .answer = { .output = on_output, .ctx = c } };
    }
    return c;
}

static bool talk_says(loop *l, conversation *t)
{
    ds_buf said = { 0 };

    if (t->turn == 0)
        ds_plan_prompt(l->plan, &t->item, &said);
    else
        ds_plan_turn(l->plan, &t->item, t->turn, &said);
    if (t->text.len)
        ds_buf_putc(&t->text, ',');
    ds_buf_puts(&t->text, "{\"role\":\"user\",\"content\":\"");
    ds_buf_put(&t->text, said.p, said.len);
    ds_buf_puts(&t->text, "\"}");
    t->text.oom |= said.oom;
    ds_buf_free(&said);
    return !t->text.oom;
}

/* A request is due (at a time from the start). Owns `talk`. */
static void begin(loop *l, const ds_plan_item *it, uint64_t at, conversation *talk)
{
    bool measured = at >= l->o->warmup_ns;
    conn *c = take_conn(l);

    if (measured)
        l->r->scheduled++;
    else
        l->r->warmup++;
    if (!c || (talk && !talk_says(l, talk))) {
        if (measured)
            l->r->errors[DS_LOAD_LIMIT]++;
        if (c)
            put_free(l, c);
        talk_free(talk);
        come_again(l, true);
        return;
    }
    ds_answer_begin(&c->answer);
    c->due = l->start + at;
    c->first = c->last = c->events = 0;
    c->got_bytes = false;
    c->measured = measured;
    c->talk = talk;
    c->out_at = 0;
    link_live(l, c);
    write_request(l, &c->out, it, talk);
    if (talk)
        ds_buf_puts(&talk->text, ",{\"role\":\"assistant\",\"content\":\"");
    l->now = ds_now_ns();
    if (c->out.oom) {
        fail(l, c, DS_LOAD_LIMIT);
        return;
    }
    if (measured) {
        l->r->sent++;
        ds_times_add(&l->r->lag, l->now - c->due);
    }
    if (c->fd >= 0)
        try_send(l, c);
    else if (!start_connect(l, c))
        fail(l, c, DS_LOAD_CONNECT);
}

/* NULL: single requests. */
static conversation *new_talk(const loop *l, const ds_plan_item *it)
{
    conversation *t = l->o->turns > 1 ? calloc(1, sizeof *t) : NULL;

    if (t)
        t->item = *it;
    return t;
}

static void begin_due(loop *l)
{
    for (int i = 0; i < BEGIN_MAX; i++) {
        uint64_t at = l->has_next ? l->next.at_ns : NEVER;
        conversation *talk = NULL;
        ds_plan_item it = l->next;

        if (l->n_heap && l->heap[0].at < at)
            at = l->heap[0].at;
        if (at == NEVER || l->start + at > l->now)
            return;
        if (l->n_heap && l->heap[0].at == at)
            talk = heap_pop(l).talk;
        if (talk) {
            it = talk->item;
        } else if (l->o->closed) {
            if ((l->o->closed_ns && at >= l->o->closed_ns) || !ds_plan_next(l->plan, &it))
                continue; /* this user goes home */
            talk = new_talk(l, &it);
        } else {
            l->has_next = ds_plan_next(l->plan, &l->next);
            talk = new_talk(l, &it);
        }
        begin(l, &it, at, talk);
    }
}

/* ---- receiving ---- */

static void on_readable(loop *l, conn *c)
{
    ssize_t n = recv(c->fd, l->in, READ_BYTES, 0);
    ds_answer_state state;
    size_t used;

    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return;
    l->now = ds_now_ns();
    if (n <= 0) {
        if (n == 0 && ds_answer_eof(&c->answer) == DS_ANSWER_DONE)
            finish(l, c);
        else
            lost(l, c, DS_LOAD_CLOSED);
        return;
    }
    if (!c->got_bytes && c->state == RECEIVING && c->out.cap > KEEP_BYTES)
        ds_buf_free(&c->out);
    c->got_bytes = true;
    l->r->bytes_in += (uint64_t)n;
    state = ds_answer_feed(&c->answer, l->in, (size_t)n, &used);
    if (state == DS_ANSWER_BAD) {
        fail(l, c, DS_LOAD_PROTOCOL);
    } else if (state == DS_ANSWER_DONE) {
        if (used < (size_t)n || c->state != RECEIVING) /* more than was asked for, or an answer before the question */
            c->answer.close = true;
        finish(l, c);
    }
}

static void on_event(loop *l, conn *c, uint32_t events)
{
    int e = 0;
    socklen_t n = sizeof e;

    switch (c->state) {
    case FREE:
        return;
    case IDLE: /* the server closes it, or talks out of turn: either way it is of no use. It stays in the list, and connects when it is taken */
        shut(c);
        return;
    case CONNECTING:
        if (!(events & (EPOLLOUT | EPOLLERR | EPOLLHUP)))
            return;
        l->now = ds_now_ns();
        if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &e, &n) != 0 || e != 0) {
            fail(l, c, DS_LOAD_CONNECT);
            return;
        }
        try_send(l, c);
        return;
    case SENDING: /* a refusal may come before the whole body is out */
        if (events & EPOLLIN)
            on_readable(l, c);
        else if (events & (EPOLLERR | EPOLLHUP))
            lost(l, c, DS_LOAD_CLOSED);
        else if (events & EPOLLOUT)
            try_send(l, c);
        return;
    case RECEIVING:
        on_readable(l, c);
        return;
    }
}

static void check_deadlines(loop *l)
{
    while (l->oldest >= 0 && l->now - l->conns[l->oldest].due >= l->o->timeout_ns && l->now >= l->conns[l->oldest].due)
        fail(l, &l->conns[l->oldest], DS_LOAD_TIMEOUT);
}

static void arm(loop *l)
{
    uint64_t at = l->has_next ? l->start + l->next.at_ns : NEVER, tick = l->last_progress + SECOND / 4;
    struct itimerspec t = { 0 };

    if (l->n_heap && l->start + l->heap[0].at < at)
        at = l->start + l->heap[0].at;
    if (l->oldest >= 0 && l->conns[l->oldest].due + l->o->timeout_ns < at)
        at = l->conns[l->oldest].due + l->o->timeout_ns;
    if (tick < at)
        at = tick;
    t.it_value.tv_sec = (time_t)(at / SECOND);
    t.it_value.tv_nsec = (long)(at % SECOND);
    if (at == 0)
        t.it_value.tv_nsec = 1;
    timerfd_settime(l->timer, TFD_TIMER_ABSTIME, &t, NULL);
}

static bool turn(loop *l)
{
    struct epoll_event events[EVENTS];
    uint64_t fired;
    int n;

    l->now = ds_now_ns();
    begin_due(l);
    l->now = ds_now_ns();
    check_deadlines(l);
    if (l->now - l->last_progress >= SECOND / 4) {
        l->last_progress = l->now;
        if (l->o->stop && l->o->stop(l->o->ctx))
            return false;
        if (l->o->progress)
            l->o->progress(l->o->ctx, l->r, l->now - l->start);
    }
    if (!l->has_next && !l->n_heap && l->oldest < 0)
        return false;
    arm(l);
    n = epoll_wait(l->epoll, events, EVENTS, -1);
    for (int i = 0; i < n; i++) {
        if (events[i].data.u32 == UINT32_MAX) {
            if (read(l->timer, &fired, sizeof fired) < 0)
                continue;
        } else {
            on_event(l, &l->conns[events[i].data.u32], events[i].events);
        }
    }
    return true;
}

/* ---- setting up ---- */

static ds_rc resolve(loop *l, ds_err *err)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *list;
    int e = getaddrinfo(l->o->host, l->o->port, &hints, &list);

    if (e != 0)
        return ds_fail(err, DS_E_IO, "%s: %s", l->o->host, gai_strerror(e));
    memcpy(&l->addr, list->ai_addr, list->ai_addrlen);
    l->addr_len = list->ai_addrlen;
    freeaddrinfo(list);
    snprintf(l->host, sizeof l->host, strchr(l->o->host, ':') ? "[%s]:%s" : "%s:%s", l->o->host, l->o->port);
    return DS_OK;
}

static ds_rc open_loop(loop *l, ds_err *err)
{
    struct epoll_event e = { .events = EPOLLIN, .data.u32 = UINT32_MAX };
    ds_rc rc = resolve(l, err);

    if (rc != DS_OK)
        return rc;
    l->in = malloc(READ_BYTES);
    l->conns = calloc(l->o->max_live, sizeof *l->conns);
    if (!l->in || !l->conns)
        return ds_fail(err, DS_E_NOMEM, "%u connections: out of memory", l->o->max_live);
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (l->epoll < 0 || l->timer < 0 || epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->timer, &e) != 0)
        return ds_fail(err, DS_E_IO, "event loop: %s", strerror(errno));
    return DS_OK;
}

static void close_loop(loop *l)
{
    for (uint32_t i = 0; i < l->n_conns; i++) {
        conn *c = &l->conns[i];
        shut(c);
        talk_free(c->talk);
        ds_answer_fini(&c->answer);
        ds_buf_free(&c->out);
    }
    while (l->n_heap)
        talk_free(heap_pop(l).talk);
    if (l->epoll >= 0)
        close(l->epoll);
    if (l->timer >= 0)
        close(l->timer);
    free(l->heap);
    free(l->conns);
    free(l->in);
    ds_buf_free(&l->body);
}

ds_rc ds_loadgen_run(ds_loadgen_report *r, ds_plan *plan, const ds_loadgen_opts *o, ds_err *err)
{
    loop l = { .o = o, .r = r, .plan = plan, .epoll = -1, .timer = -1, .free = -1, .idle = -1, .oldest = -1, .newest = -1 };
    ds_rc rc;

    assert(o->max_live > 0);
    memset(r, 0, sizeof *r);
    rc = open_loop(&l, err);
    if (rc == DS_OK) {
        l.start = l.now = l.last_done = l.last_progress = ds_now_ns();
        for (uint32_t i = 0; i < o->closed; i++)
            heap_push(&l, 0, NULL);
        l.has_next = !o->closed && ds_plan_next(plan, &l.next);
        while (turn(&l))
            ;
        while (l.oldest >= 0)
            fail(&l, &l.conns[l.oldest], DS_LOAD_UNFINISHED);
        if (l.last_done > l.start + o->warmup_ns)
            r->elapsed_ns = l.last_done - l.start - o->warmup_ns;
    }
    close_loop(&l);
    return rc;
}
