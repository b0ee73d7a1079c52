#include "net/conn.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"

enum { PIECE = 1 << 20, READ_BYTES = 256 << 10, READS = 16 /* in a turn */, KEEP_BYTES = 1 << 20 /* of an empty queue */ };

struct ds_conn {
    /* [const] */
    int fd, wake;
    ds_conn_fn fn;
    ds_conn_opts o;
    pthread_t thread;
    /* [its thread] */
    ds_buf in; /* from in_at on: what hasn't been looked at */
    size_t in_at;
    ds_buf message; /* of several frames */
    ds_frame first; /* of them */
    bool within;    /* a message of several */
    uint64_t heard_ns;
    /* [mu] */
    pthread_mutex_t mu;
    ds_buf out; /* from out_at on: what wasn't sent */
    size_t out_at;
    uint64_t said_ns;
    bool stop, over;
};

/* ---- sending ---- */

static void wake(ds_conn *c)
{
    uint64_t one = 1;
    ssize_t n = write(c->wake, &one, sizeof one);

    (void)n; /* it is full of wakes then */
}

/* [mu] What the socket takes now. False: it is broken. */
static bool push(ds_conn *c)
{
    while (c->out_at < c->out.len) {
        ssize_t n = send(c->fd, c->out.p + c->out_at, c->out.len - c->out_at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK;
        c->out_at += (size_t)n;
        c->said_ns = ds_now_ns();
    }
    if (c->out.cap > KEEP_BYTES)
        ds_buf_free(&c->out);
    ds_buf_clear(&c->out);
    c->out_at = 0;
    return true;
}

/* [mu] Room for n bytes behind what waits; what was sent goes first. */
static bool make_room(ds_conn *c, size_t n)
{
    if (c->out_at > c->out.len / 2) {
        memmove(c->out.p, c->out.p + c->out_at, c->out.len - c->out_at);
        c->out.len -= c->out_at;
        c->out_at = 0;
    }
    return ds_buf_reserve(&c->out, n);
}

ds_rc ds_conn_send(ds_conn *c, const ds_frame *f, const void *payload, size_t n, ds_err *err)
{
    size_t pieces = n ? (n + PIECE - 1) / PIECE : 1, bytes = n + pieces * DS_FRAME_HEADER;
    const char *from = payload;
    ds_rc rc = DS_OK;
    bool waits;

    pthread_mutex_lock(&c->mu);
    if (c->over || c->stop)
        rc = ds_fail(err, DS_E_IO, "the connection is over");
    else if (c->out.len - c->out_at + bytes > c->o.max_queue)
        rc = ds_fail(err, DS_E_AGAIN, "%zu bytes wait for the peer", c->out.len - c->out_at);
    else if (!make_room(c, bytes)) {
        c->out.oom = false;
        rc = ds_fail(err, DS_E_NOMEM, "out of memory for a message of %zu bytes", n);
    }
    for (size_t i = 0; i < pieces && rc == DS_OK; i++) {
        size_t k = n < PIECE ? n : PIECE;
        ds_frame h = *f;
        uint8_t head[DS_FRAME_HEADER];
        h.flags = (f->flags & ~DS_CONN_MORE) | (i + 1 < pieces ? DS_CONN_MORE : 0);
        h.bytes = (uint32_t)k;
        h.payload_crc = ds_frame_crc(from, k);
        ds_frame_write(head, &h);
        ds_buf_put(&c->out, head, sizeof head);
        ds_buf_put(&c->out, from, k);
        from += k;
        n -= k;
    }
    if (rc == DS_OK && !push(c))
        c->stop = true;
    waits = rc == DS_OK && (c->stop || c->out.len);
    pthread_mutex_unlock(&c->mu);
    if (waits)
        wake(c);
    return rc;
}

/* ---- receiving ---- */

/* A frame that is whole. */
static ds_rc take_frame(ds_conn *c, const ds_frame *f, const uint8_t *payload, ds_err *err)
{
    bool more = f->flags & DS_CONN_MORE;

    if (ds_frame_crc(payload, f->bytes) != f->payload_crc)
        return ds_fail(err, DS_E_FORMAT, "frame: wrong checksum of its payload");
    if (c->within && (f->type != c->first.type || f->request != c->first.request))
        return ds_fail(err, DS_E_FORMAT, "frame: another one within a message");
    if (f->type == DS_CONN_PING)
        return more || f->bytes ? ds_fail(err, DS_E_FORMAT, "frame: a ping that says something") : DS_OK;
    if (c->message.len + f->bytes > c->o.max_message)
        return ds_fail(err, DS_E_FORMAT, "a message of more than %zu bytes", c->o.max_message);
    if (!more && !c->within)
        return c->fn.message(c->fn.ctx, f, payload, f->bytes, err);
    if (!c->within)
        c->first = *f;
    c->within = true;
    if (!ds_buf_put(&c->message, payload, f->bytes))
        return ds_fail(err, DS_E_NOMEM, "out of memory for a message");
    if (more)
        return DS_OK;
    ds_rc rc = c->fn.message(c->fn.ctx, &c->first, (const uint8_t *)ds_buf_str(&c->message), c->message.len, err);
    c->within = false;
    ds_buf_free(&c->message);
    return rc;
}

/* Frames that are whole; the rest stays. */
static ds_rc take_frames(ds_conn *c, ds_err *err)
{
    ds_rc rc = DS_OK;

    while (rc == DS_OK && c->in.len - c->in_at >= DS_FRAME_HEADER) {
        const uint8_t *at = (const uint8_t *)c->in.p + c->in_at;
        ds_frame f;
        rc = ds_frame_read(&f, at, err);
        if (rc != DS_OK || c->in.len - c->in_at - DS_FRAME_HEADER < f.bytes)
            break;
        rc = take_frame(c, &f, at + DS_FRAME_HEADER, err);
        c->in_at += DS_FRAME_HEADER + f.bytes;
    }
    if (c->in_at) {
        memmove(c->in.p, c->in.p + c->in_at, c->in.len - c->in_at);
        c->in.len -= c->in_at;
        c->in_at = 0;
    }
    return rc;
}

/* What is there now; of a peer that never pauses some, so that this side may end the connection, and say something. */
static ds_rc hear(ds_conn *c, ds_err *err)
{
    for (int i = 0; i < READS; i++) {
        ssize_t n;
        ds_rc rc;
        if (!ds_buf_reserve(&c->in, READ_BYTES))
            return ds_fail(err, DS_E_NOMEM, "out of memory for what a peer says");
        n = recv(c->fd, c->in.p + c->in.len, READ_BYTES, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return DS_OK;
        if (n <= 0)
            return ds_fail(err, DS_E_IO, "%s", n < 0 ? strerror(errno) : "closed by the peer");
        c->in.len += (size_t)n;
        rc = take_frames(c, err);
        c->heard_ns = ds_now_ns(); /* what this side took for it isn't the peer's silence */
        if (rc != DS_OK)
            return rc;
    }
    return DS_OK;
}

/* ---- the thread ---- */

static void ping(ds_conn *c, uint64_t now)
{
    bool due;

    pthread_mutex_lock(&c->mu);
    due = now - c->said_ns >= (uint64_t)c->o.ping_ms * 1000000 && !c->out.len;
    pthread_mutex_unlock(&c->mu);
    if (due)
        ds_conn_send(c, &(ds_frame){ .type = DS_CONN_PING }, NULL, 0, NULL);
}

static ds_rc turn(ds_conn *c, ds_err *err)
{
    struct pollfd p[2] = { { .fd = c->fd, .events = POLLIN }, { .fd = c->wake, .events = POLLIN } };
    uint64_t n, now;
    bool stop, broken;
    ds_rc rc;

    pthread_mutex_lock(&c->mu);
    if (c->out.len)
        p[0].events |= POLLOUT;
    pthread_mutex_unlock(&c->mu);
    poll(p, 2, (int)c->o.ping_ms / 2 + 1);
    if (p[1].revents && read(c->wake, &n, sizeof n) < 0) {
        /* somebody else's wake was taken with another */
    }
    rc = hear(c, err);
    pthread_mutex_lock(&c->mu);
    broken = !push(c);
    stop = c->stop;
    pthread_mutex_unlock(&c->mu);
    if (rc != DS_OK)
        return rc;
    if (stop || broken)
        return ds_fail(err, DS_E_IO, stop ? "ended by this side" : "broken");
    now = ds_now_ns();
    if (now - c->heard_ns > (uint64_t)c->o.silence_ms * 1000000)
        return ds_fail(err, DS_E_IO, "the peer said nothing for %u ms", c->o.silence_ms);
    ping(c, now);
    return DS_OK;
}

static void *live(void *arg)
{
    ds_conn *c = arg;
    ds_err err = { 0 };

    c->heard_ns = ds_now_ns();
    while (turn(c, &err) == DS_OK)
        ;
    pthread_mutex_lock(&c->mu);
    c->over = true;
    ds_buf_free(&c->out);
    c->out_at = 0;
    pthread_mutex_unlock(&c->mu);
    shutdown(c->fd, SHUT_RDWR);
    c->fn.gone(c->fn.ctx, &err);
    return NULL;
}

static void free_conn(ds_conn *c)
{
    close(c->fd);
    if (c->wake >= 0)
        close(c->wake);
    ds_buf_free(&c->in);
    ds_buf_free(&c->out);
    ds_buf_free(&c->message);
    pthread_mutex_destroy(&c->mu);
    free(c);
}

ds_rc ds_conn_start(ds_conn **out, int fd, const ds_conn_fn *fn, const ds_conn_opts *opts, ds_err *err)
{
    ds_conn *c = calloc(1, sizeof *c);
    int e;

    *out = NULL;
    if (!c) {
        close(fd);
        return ds_fail(err, DS_E_NOMEM, "out of memory for a connection");
    }
    if (opts)
        c->o = *opts;
    c->o.ping_ms = c->o.ping_ms ? c->o.ping_ms : 500;
    c->o.silence_ms = c->o.silence_ms ? c->o.silence_ms : 5000;
    c->o.max_queue = c->o.max_queue ? c->o.max_queue : (size_t)64 << 20;
    c->o.max_message = c->o.max_message ? c->o.max_message : (size_t)64 << 20;
    c->fd = fd;
    c->fn = *fn;
    c->said_ns = ds_now_ns();
    pthread_mutex_init(&c->mu, NULL);
    c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    *out = c; /* callbacks may want it */
    e = c->wake < 0 ? errno : pthread_create(&c->thread, NULL, live, c);
    if (!e)
        return DS_OK;
    *out = NULL;
    free_conn(c);
    return ds_fail(err, DS_E_IO, "connection: %s", strerror(e));
}

void ds_conn_stop(ds_conn *c)
{
    pthread_mutex_lock(&c->mu);
    c->stop = true;
    pthread_mutex_unlock(&c->mu);
    wake(c);
}

void ds_conn_destroy(ds_conn *c)
{
    if (!c)
        return;
    ds_conn_stop(c);
    pthread_join(c->thread, NULL);
    free_conn(c);
}
