/* The tie to `deepserve coord` (coord/server.h), over net/conn.h. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "coord/coord_internal.h"
#include "coord/proto.h"
#include "coord/state.h"
#include "net/addr.h"
#include "net/conn.h"

enum { CONNECT_MS = 2000, HELLO_MS = 5000, PARTING_MS = 1000 };
enum { NOTHING, SAY, ORDER }; /* the header's request number: what an answer is about */

/* [mu] of the tie, but for conn. */
typedef struct {
    ds_coord *c;
    ds_conn *conn;
    bool greeted, watches, over;
    char why[160];
    uint64_t next_us, parting_us; /* next_us: when this process says again that it is there */
} link;

static ds_rc on_view(ds_coord *c, const uint8_t *p, size_t n, ds_err *err)
{
    ds_coord_state s = { 0 };
    ds_rc rc = ds_coord_read_state(&s, p, n, err);

    if (rc == DS_OK)
        ds_coord_view(c, s.m, s.n);
    ds_coord_state_fini(&s);
    return rc;
}

static ds_rc on_refused(link *l, uint64_t request, const uint8_t *p, size_t n, ds_err *err)
{
    ds_frame_in in = { p, p + n, false };
    ds_rc rc = -(ds_rc)ds_frame_u32(&in);
    char why[248], q[248];

    ds_coord_read_text(why, sizeof why, &in);
    if (in.bad || in.at != in.end || rc >= 0 || rc < DS_E_DEVICE)
        return ds_fail(err, DS_E_FORMAT, "a malformed refusal");
    ds_quote(q, sizeof q, why, strlen(why));
    if (request == SAY)
        ds_coord_refused(l->c, q);
    else if (request == ORDER)
        ds_coord_answered(l->c, rc, q);
    else
        return ds_fail(err, rc, "%s", q);
    return DS_OK;
}

static ds_rc message(void *ctx, const ds_frame *f, const uint8_t *p, size_t n, ds_err *err)
{
    ds_frame_in in = { p, p + n, false };
    link *l = ctx;

    switch (f->type) {
    case DS_COORD_WELCOME: {
        uint32_t version = ds_frame_u32(&in), ttl = ds_frame_u32(&in);
        if (in.bad || in.at != in.end || version != DS_COORD_VERSION || ttl < 100 || ttl > 3600000)
            return ds_fail(err, DS_E_FORMAT, "a WELCOME of version %u", version);
        pthread_mutex_lock(&l->c->mu);
        l->greeted = true;
        pthread_cond_broadcast(&l->c->woken);
        pthread_mutex_unlock(&l->c->mu);
        ds_coord_is_up(l->c, ttl);
        return DS_OK;
    }
    case DS_COORD_SAID: {
        uint64_t epoch = ds_frame_u64(&in);
        if (in.bad || in.at != in.end)
            return ds_fail(err, DS_E_FORMAT, "a malformed answer");
        ds_coord_said(l->c, epoch);
        return DS_OK;
    }
    case DS_COORD_VIEW:
        return on_view(l->c, p, n, err);
    case DS_COORD_REFUSED:
        return on_refused(l, f->request, p, n, err);
    case DS_COORD_DONE:
        if (f->request == ORDER)
            ds_coord_answered(l->c, DS_OK, "");
        pthread_mutex_lock(&l->c->mu);
        l->c->withdrawn = l->c->closing;
        pthread_cond_broadcast(&l->c->woken);
        pthread_mutex_unlock(&l->c->mu);
        return DS_OK;
    default:
        return ds_fail(err, DS_E_FORMAT, "a message of type %u", f->type);
    }
}

static void gone(void *ctx, const ds_err *why)
{
    link *l = ctx;

    pthread_mutex_lock(&l->c->mu);
    l->over = true;
    snprintf(l->why, sizeof l->why, "%.150s", why->msg);
    pthread_cond_broadcast(&l->c->woken);
    pthread_mutex_unlock(&l->c->mu);
}

/* With mu: sending doesn't wait. */
static void send_to(link *l, uint16_t type, uint64_t request, const ds_buf *b)
{
    const ds_frame f = { .type = type, .request = request };

    if ((b && b->oom) || ds_conn_send(l->conn, &f, b ? b->p : NULL, b ? b->len : 0, NULL) != DS_OK)
        ds_conn_stop(l->conn);
}

/* [mu] What there is to say now. What was refused, or not answered, is said again. */
static void say_all(link *l, uint64_t now)
{
    ds_coord *c = l->c;
    ds_buf b = { 0 };
    bool due = c->mine.instance && now >= l->next_us;

    if (due || c->dirty)
        l->next_us = now + (uint64_t)c->ttl_ms * 1000 / 5;
    if (c->dirty || (due && !c->now.epoch)) {
        c->dirty = false;
        ds_coord_put_member(&b, &c->mine);
        send_to(l, DS_COORD_SAY, SAY, &b);
    } else if (due) {
        ds_coord_put_u32(&b, c->mine.live);
        ds_coord_put_u64(&b, c->mine.kv_used);
        ds_coord_put_u64(&b, c->mine.kv_total);
        send_to(l, DS_COORD_STATUS, NOTHING, &b);
    }
    ds_buf_clear(&b);
    if (c->order == DS_ORDER_WAITS) {
        c->order = DS_ORDER_SENT;
        ds_coord_put_text(&b, c->order_name);
        send_to(l, DS_COORD_ORDER, ORDER, &b);
    }
    ds_buf_free(&b);
}

/* [mu] Says that this process goes, once. True: it was heard, or needn't be. */
static bool part(link *l, uint64_t now)
{
    if (!l->c->mine.instance)
        return true;
    if (!l->parting_us) {
        l->parting_us = now;
        send_to(l, DS_COORD_WITHDRAW, NOTHING, NULL);
    }
    return l->c->withdrawn || now - l->parting_us > (uint64_t)PARTING_MS * 1000;
}

/* A connection's life. */
static void talk(link *l)
{
    uint64_t since = ds_now_us();
    ds_coord *c = l->c;
    bool done = false;
    ds_buf b = { 0 };

    ds_coord_put_u32(&b, DS_COORD_VERSION);
    pthread_mutex_lock(&c->mu);
    send_to(l, DS_COORD_HELLO, NOTHING, &b);
    while (!l->over && !done) {
        uint64_t now = ds_now_us();
        if (!l->greeted && (c->closing || now - since > (uint64_t)HELLO_MS * 1000))
            ds_conn_stop(l->conn);
        if (l->greeted && !l->watches) {
            l->watches = true;
            ds_buf_clear(&b);
            ds_coord_put_u32(&b, !c->o.watch);
            send_to(l, DS_COORD_WATCH, NOTHING, &b);
        }
        if (l->greeted && !c->closing)
            say_all(l, now);
        else if (l->greeted)
            done = part(l, now);
        if (!done)
            ds_coord_pause(c, 100);
        pthread_mutex_unlock(&c->mu);
        ds_coord_tick(c);
        pthread_mutex_lock(&c->mu);
    }
    pthread_mutex_unlock(&c->mu);
    ds_buf_free(&b);
}

void ds_coord_run_link(ds_coord *c)
{
    ds_addr at;
    ds_err err = { 0 };
    bool closing = false;

    if (ds_addr_parse(&at, c->address, &err) != DS_OK)
        return; /* it was parsed when the tie was opened */
    while (!closing) {
        const ds_conn_opts co = { .ping_ms = 500, .silence_ms = 5000 };
        link l = { .c = c };
        const ds_conn_fn fn = { message, gone, &l };
        int fd;
        ds_rc rc = ds_addr_connect(&at, CONNECT_MS, &fd, &err);
        if (rc == DS_OK)
            rc = ds_conn_start(&l.conn, fd, &fn, &co, &err);
        if (rc == DS_OK) {
            talk(&l);
            ds_conn_destroy(l.conn);
        }
        ds_coord_is_away(c, rc == DS_OK ? l.why : err.msg);
        pthread_mutex_lock(&c->mu);
        if (!c->closing)
            ds_coord_pause(c, c->o.retry_ms);
        closing = c->closing;
        pthread_mutex_unlock(&c->mu);
    }
}
