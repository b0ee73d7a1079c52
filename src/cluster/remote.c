#include "cluster/remote.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/table.h"
#include "cluster/greet.h"
#include "net/addr.h"

enum { FIRST_EVENTS = 256, HELLO_MS = 5000, CONNECT_MS = 1000 /* a close waits for it */ };

typedef struct {
    ds_record at;
    uint64_t cookie;
    uint32_t samples, left; /* left: samples that haven't ended */
    uint32_t ended;         /* bit for each sample */
    bool hand_over;
    uint32_t prompt_at; /* the next position whose DS_EV_PROMPT comes */
    uint32_t out[DS_CW_MAX_SAMPLES];
} record;

struct ds_remote {
    /* [const] */
    ds_addr at;
    ds_remote_opts o;
    uint32_t n_engines;
    ds_cw_role role;
    pthread_t thread;
    bool has_thread;
    /* [mu] */
    pthread_mutex_t mu;
    pthread_cond_t woken; /* for the thread, and for wait() */
    ds_conn *conn;        /* NULL: not connected. Made and destroyed by the thread */
    uint64_t epoch;       /* the engine's */
    int greeting;         /* the descriptor of a connection that isn't one yet; -1: none */
    bool up, closing;
    bool draining; /* this side */
    bool no_more;  /* the engine drains */
    ds_table records;
    ds_event *events; /* a ring */
    size_t cap_events, first_event, n_events;
    size_t n_left; /* samples of all records that haven't ended */
    void (*wake)(void *ctx), *wake_ctx;
    ds_gen_plan plans[DS_GEN_MANY_MAX];
    ds_gen_stats *stats; /* [n_engines] */
    uint64_t knows;      /* bit for each engine whose statistics came */
};

static void say(const ds_remote *r, ds_log_level level, const char *what, const char *why)
{
    if (r->o.log)
        ds_logf(r->o.log, level, "engine %s: %s%s%s", r->at.text, what, *why ? ": " : "", why);
}

/* ---- records and events: with mu ---- */

static record *of_id(ds_remote *r, uint64_t id)
{
    return ds_table_get(&r->records, id);
}

static record *take_record(ds_remote *r, const ds_gen_request *q)
{
    record *x = ds_table_take(&r->records);

    if (!x)
        return NULL;
    x->cookie = q->cookie;
    x->samples = x->left = q->n ? q->n : 1;
    x->prompt_at = q->prompt_logprobs ? 1 : 0;
    x->hand_over = q->hand_over;
    for (uint32_t i = 0; i < x->samples; i++)
        x->out[i] = q->n_output;
    r->n_left += x->left;
    return x;
}

static void free_record(ds_remote *r, record *x)
{
    r->n_left -= x->left;
    ds_table_give(&r->records, x);
}

/* Room for `more` events besides the ends of all that live, so that the ends of a lost engine's are never lost. */
static bool room_for(ds_remote *r, size_t more)
{
    size_t need = r->n_events + r->n_left + more, cap = r->cap_events ? r->cap_events : FIRST_EVENTS;
    ds_event *ring;

    if (need <= r->cap_events)
        return true;
    while (cap < need)
        cap *= 2;
    ring = malloc(cap * sizeof *ring);
    if (!ring)
        return false;
    for (size_t i = 0; i < r->n_events; i++)
        ring[i] = r->events[(r->first_event + i) % r->cap_events];
    free(r->events);
    r->events = ring;
    r->cap_events = cap;
    r->first_event = 0;
    return true;
}

static void put_event(ds_remote *r, const ds_event *ev)
{
    assert(r->n_events < r->cap_events);
    r->events[(r->first_event + r->n_events++) % r->cap_events] = *ev;
}

/* ---- what the engine says ---- */

/* Is this what may come next of that request? */
static bool fits(const record *x, const ds_event *ev)
{
    if (ev->sample >= x->samples || x->ended >> ev->sample & 1)
        return false;
    switch (ev->kind) {
    case DS_EV_START:
        return true;
    case DS_EV_PROMPT:
        return ev->sample == 0 && x->prompt_at && ev->token.index == x->prompt_at;
    case DS_EV_TOKEN:
        return ev->token.index == x->out[ev->sample];
    case DS_EV_END:
        return ev->end.last == (x->left == 1) && (x->hand_over || !ev->end.ticket);
    }
    return false;
}

static void note(ds_remote *r, record *x, const ds_event *ev)
{
    if (ev->kind == DS_EV_PROMPT) {
        x->prompt_at++;
    } else if (ev->kind == DS_EV_TOKEN) {
        x->out[ev->sample]++;
    } else if (ev->kind == DS_EV_END) {
        x->ended |= UINT32_C(1) << ev->sample;
        x->left--;
        r->n_left--;
        if (x->left == 0)
            free_record(r, x);
    }
}

static ds_rc on_events(ds_remote *r, const uint8_t *p, size_t n, ds_err *err)
{
    ds_frame_in in = { p, p + n, false };
    uint64_t now = ds_now_us();
    ds_rc rc = DS_OK;
    ds_event ev;

    pthread_mutex_lock(&r->mu);
    while (rc == DS_OK && ds_cw_read_event(&ev, &in, now)) {
        record *x = of_id(r, ev.request);
        if (!x || !fits(x, &ev)) {
            rc = ds_fail(err, DS_E_FORMAT, "an event of a request that can't have it");
        } else if (!room_for(r, ev.kind != DS_EV_END)) {
            rc = ds_fail(err, DS_E_NOMEM, "out of memory for events");
        } else {
            ev.cookie = x->cookie;
            put_event(r, &ev);
            note(r, x, &ev);
        }
    }
    if (rc == DS_OK && in.bad)
        rc = ds_fail(err, DS_E_FORMAT, "malformed events");
    pthread_mutex_unlock(&r->mu);
    return rc;
}

static ds_rc on_stats(ds_remote *r, const uint8_t *p, size_t n, ds_err *err)
{
    ds_gen_stats s;
    uint32_t engine;
    ds_rc rc = ds_cw_read_stats(&engine, &s, p, n, err);

    if (rc == DS_OK && engine >= r->n_engines)
        rc = ds_fail(err, DS_E_FORMAT, "statistics of engine %u of %u", engine, r->n_engines);
    if (rc != DS_OK)
        return rc;
    pthread_mutex_lock(&r->mu);
    r->stats[engine] = s;
    r->knows |= UINT64_C(1) << engine;
    pthread_mutex_unlock(&r->mu);
    return DS_OK;
}

/* Statistics wake too: who waits for an engine with room may look again. */
static void wake_poller(ds_remote *r)
{
    void (*fn)(void *ctx), *ctx;

    pthread_mutex_lock(&r->mu);
    fn = r->wake;
    ctx = r->wake_ctx;
    pthread_cond_broadcast(&r->woken);
    pthread_mutex_unlock(&r->mu);
    if (fn)
        fn(ctx);
}

static ds_rc message(void *ctx, const ds_frame *f, const uint8_t *p, size_t n, ds_err *err)
{
    ds_remote *r = ctx;
    ds_rc rc = DS_OK;

    if (f->epoch != r->epoch)
        return ds_fail(err, DS_E_FORMAT, "a message of another epoch");
    switch (f->type) {
    case DS_CW_EVENTS:
        rc = on_events(r, p, n, err);
        break;
    case DS_CW_STATS:
        rc = on_stats(r, p, n, err);
        break;
    case DS_CW_DRAINING:
        pthread_mutex_lock(&r->mu);
        r->no_more = true;
        pthread_mutex_unlock(&r->mu);
        say(r, DS_LOG_INFO, "takes no new requests", "");
        break;
    default:
        rc = ds_fail(err, DS_E_FORMAT, "a message of type %u", f->type);
    }
    wake_poller(r);
    return rc;
}

/* Everything that lives ends here. */
static void lose_all(ds_remote *r)
{
    pthread_mutex_lock(&r->mu);
    r->up = r->no_more = false;
    r->knows = 0;
    for (record *x = ds_table_next(&r->records, NULL); x; x = ds_table_next(&r->records, x))
        for (uint32_t s = 0; x->at.id && s < x->samples; s++) {
            ds_event ev = { .kind = DS_EV_END, .sample = s, .request = x->at.id, .cookie = x->cookie };
            if (x->ended >> s & 1)
                continue;
            ev.end.reason = DS_ENDED_LOST;
            ev.end.rc = DS_E_IO;
            ev.end.n_tokens = ev.end.completion_tokens = x->out[s];
            ev.end.last = x->left == 1;
            put_event(r, &ev); /* there is room */
            note(r, x, &ev);
        }
    pthread_mutex_unlock(&r->mu);
}

static void gone(void *ctx, const ds_err *why)
{
    ds_remote *r = ctx;
    bool wanted;

    pthread_mutex_lock(&r->mu);
    wanted = r->closing;
    pthread_mutex_unlock(&r->mu);
    if (!wanted)
        say(r, DS_LOG_WARN, "gone", why->msg);
    lose_all(r);
    wake_poller(r);
}

/* ---- connecting ---- */

/* HELLO and its answer. */
static ds_rc greet(ds_remote *r, int fd, ds_greeting *g, ds_err *err)
{
    char note[DS_FAMILY_NOTE] = "";
    ds_rc rc = ds_greet(fd, &r->o.model, g, err);

    if (rc == DS_OK && r->o.family)
        rc = ds_family_join(r->o.family, &g->self, r->at.text, note, err);
    if (note[0])
        say(r, DS_LOG_WARN, note, "");
    return rc;
}

/* The same, and close() can end it. */
static ds_rc greet_on(ds_remote *r, int fd, ds_greeting *g, ds_err *err)
{
    ds_rc rc;

    pthread_mutex_lock(&r->mu);
    r->greeting = r->closing ? -1 : fd;
    pthread_mutex_unlock(&r->mu);
    rc = r->greeting < 0 ? ds_fail(err, DS_E_IO, "closing") : greet(r, fd, g, err);
    pthread_mutex_lock(&r->mu);
    r->greeting = -1;
    pthread_mutex_unlock(&r->mu);
    return rc;
}

static ds_rc connect_once(ds_remote *r, uint32_t timeout_ms, ds_err *err)
{
    const ds_conn_fn fn = { message, gone, r };
    ds_greeting g;
    ds_conn *c;
    int fd;
    ds_rc rc = ds_addr_connect(&r->at, timeout_ms, &fd, err);

    if (rc != DS_OK)
        return rc;
    rc = greet_on(r, fd, &g, err);
    if (rc == DS_OK && r->stats && g.n_plans != r->n_engines)
        rc = ds_fail(err, DS_E_ARG, "it came back with %u engines and had %u", g.n_plans, r->n_engines);
    if (rc == DS_OK && r->stats && g.self.role != r->role)
        rc = ds_fail(err, DS_E_ARG, "it came back for %s and was for %s", ds_cw_role_name(g.self.role), ds_cw_role_name(r->role));
    if (rc == DS_OK && !r->stats) {
        r->n_engines = g.n_plans;
        r->role = g.self.role;
        r->stats = calloc(g.n_plans, sizeof *r->stats);
        if (!r->stats)
            rc = ds_fail(err, DS_E_NOMEM, "out of memory");
    }
    if (rc != DS_OK) {
        close(fd);
        return rc;
    }
    pthread_mutex_lock(&r->mu);
    memcpy(r->plans, g.plans, g.n_plans * sizeof *g.plans);
    r->epoch = g.epoch;
    r->up = true; /* adds fail as long as conn is NULL; gone() may come before it is set */
    pthread_mutex_unlock(&r->mu);
    rc = ds_conn_start(&c, fd, &fn, &r->o.conn, err);
    pthread_mutex_lock(&r->mu);
    r->conn = rc == DS_OK ? c : NULL;
    r->up = r->up && rc == DS_OK;
    pthread_mutex_unlock(&r->mu);
    return rc;
}

/* Keeps the connection: waits until it is gone, and tries again. */
static void *keep(void *arg)
{
    ds_remote *r = arg;
    bool said = false;

    pthread_mutex_lock(&r->mu);
    while (!r->closing) {
        struct timespec t;
        if (r->up) {
            pthread_cond_wait(&r->woken, &r->mu);
            continue;
        }
        ds_conn *old = r->conn;
        r->conn = NULL;
        pthread_mutex_unlock(&r->mu);
        ds_conn_destroy(old);
        ds_err err = { 0 };
        ds_rc rc = connect_once(r, CONNECT_MS, &err);
        if (rc == DS_OK) {
            say(r, DS_LOG_INFO, "is back", "");
            said = false;
        } else if (rc != DS_E_IO && !said) { /* not there isn't news, another one is */
            say(r, DS_LOG_ERROR, "can't be used", err.msg);
            said = true;
        }
        wake_poller(r);
        pthread_mutex_lock(&r->mu);
        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_nsec += (long)(r->o.retry_ms % 1000) * 1000000;
        t.tv_sec += r->o.retry_ms / 1000 + t.tv_nsec / 1000000000;
        t.tv_nsec %= 1000000000;
        while (!r->up && !r->closing && pthread_cond_timedwait(&r->woken, &r->mu, &t) == 0)
            ;
    }
    pthread_mutex_unlock(&r->mu);
    return NULL;
}

/* ---- the generator ---- */

/* Sends to the engine. With mu, which keeps the connection from being destroyed: sending doesn't wait. */
static ds_rc tell(ds_remote *r, uint16_t type, uint64_t id, uint64_t left_ns, const ds_buf *b, ds_err *err)
{
    const ds_frame f = { .type = type, .request = id, .epoch = r->epoch, .left_ns = left_ns };

    if (!r->up || !r->conn)
        return ds_fail(err, DS_E_IO, "engine %s is gone", r->at.text);
    return ds_conn_send(r->conn, &f, b ? b->p : NULL, b ? b->len : 0, err);
}

static ds_rc add(void *h, const ds_gen_request *q, uint64_t *id, ds_err *err)
{
    ds_remote *r = h;
    ds_buf b = { 0 };
    record *x = NULL;
    ds_rc rc = DS_OK;

    *id = 0;
    if (q->grammar && !q->grammar->what.n)
        return ds_fail(err, DS_E_ARG, "this grammar can't leave its process");
    if (q->n > DS_CW_MAX_SAMPLES || q->n_stop_ids > DS_GEN_MAX_STOP_IDS)
        return ds_fail(err, DS_E_ARG, "n: %u, %zu stop ids: at most %d and %d", q->n, q->n_stop_ids, DS_CW_MAX_SAMPLES,
                       DS_GEN_MAX_STOP_IDS);
    ds_cw_put_request(&b, q, r->o.hidden);
    pthread_mutex_lock(&r->mu);
    if (b.oom)
        rc = ds_fail(err, DS_E_NOMEM, "out of memory for a request");
    else if (b.len > r->o.conn.max_message)
        rc = ds_fail(err, DS_E_ARG, "a request of %zu bytes, at most %zu", b.len, r->o.conn.max_message);
    else if (r->draining || (r->up && r->no_more))
        rc = ds_fail(err, DS_E_AGAIN, "draining");
    else if (!(x = take_record(r, q)))
        rc = ds_fail(err, DS_E_NOMEM, "out of memory for a request");
    else if (!room_for(r, 0))
        rc = ds_fail(err, DS_E_NOMEM, "out of memory for events");
    if (rc == DS_OK)
        rc = tell(r, DS_CW_ADD, x->at.id, q->deadline_us * 1000, &b, err);
    if (rc == DS_OK)
        *id = x->at.id;
    else if (x)
        free_record(r, x);
    pthread_mutex_unlock(&r->mu);
    ds_buf_free(&b);
    return rc;
}

/* An engine that doesn't take orders any more is as good as gone. */
static void order(ds_remote *r, uint16_t type, uint64_t id, const ds_buf *b)
{
    pthread_mutex_lock(&r->mu);
    if (of_id(r, id) && r->up && tell(r, type, id, 0, b, NULL) != DS_OK && r->conn)
        ds_conn_stop(r->conn);
    pthread_mutex_unlock(&r->mu);
}

static void cancel(void *h, uint64_t id)
{
    order(h, DS_CW_CANCEL, id, NULL);
}

static void finish_sample(void *h, uint64_t id, uint32_t sample)
{
    uint8_t le[4] = { (uint8_t)sample, (uint8_t)(sample >> 8), (uint8_t)(sample >> 16), (uint8_t)(sample >> 24) };
    const ds_buf b = { .p = (char *)le, .len = sizeof le };

    order(h, DS_CW_FINISH, id, &b);
}

static size_t poll_events(void *h, ds_event *ev, size_t cap)
{
    ds_remote *r = h;
    size_t n = 0;

    pthread_mutex_lock(&r->mu);
    for (; n < cap && r->n_events; n++) {
        ev[n] = r->events[r->first_event];
        r->first_event = (r->first_event + 1) % r->cap_events;
        r->n_events--;
    }
    pthread_mutex_unlock(&r->mu);
    return n;
}

static bool wait_events(void *h, uint32_t timeout_ms)
{
    ds_remote *r = h;
    struct timespec t;
    bool in_time = timeout_ms > 0, there;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    t.tv_sec += timeout_ms / 1000 + t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    pthread_mutex_lock(&r->mu);
    while (!r->n_events && in_time)
        in_time = pthread_cond_timedwait(&r->woken, &r->mu, &t) == 0;
    there = r->n_events > 0;
    pthread_mutex_unlock(&r->mu);
    return there;
}

static void wake_by(void *h, void (*wake)(void *ctx), void *ctx)
{
    ds_remote *r = h;

    pthread_mutex_lock(&r->mu);
    r->wake = wake;
    r->wake_ctx = ctx;
    pthread_mutex_unlock(&r->mu);
}

static bool drain(void *h)
{
    ds_remote *r = h;
    bool over;

    pthread_mutex_lock(&r->mu);
    r->draining = true;
    over = r->records.n_live == 0;
    pthread_mutex_unlock(&r->mu);
    return over;
}

static uint32_t n_engines(void *h)
{
    return ((ds_remote *)h)->n_engines;
}

static bool stats(void *h, uint32_t engine, ds_gen_stats *out)
{
    ds_remote *r = h;
    bool known = false;

    pthread_mutex_lock(&r->mu);
    if (engine < r->n_engines && (r->knows >> engine & 1 || !r->up)) {
        *out = r->stats[engine]; /* the last that was heard; what is there now is nothing while it is gone */
        if (!r->up)
            *out = (ds_gen_stats){ .lost = 1 };
        known = true;
    }
    pthread_mutex_unlock(&r->mu);
    return known;
}

static bool plan(void *h, uint32_t engine, ds_gen_plan *out)
{
    ds_remote *r = h;

    if (engine >= r->n_engines)
        return false;
    pthread_mutex_lock(&r->mu);
    *out = r->plans[engine];
    pthread_mutex_unlock(&r->mu);
    return true;
}

ds_gen ds_remote_gen(ds_remote *r)
{
    static const ds_gen_fn fn = { .add = add,
                                  .cancel = cancel,
                                  .finish_sample = finish_sample,
                                  .poll = poll_events,
                                  .wait = wait_events,
                                  .wake_by = wake_by,
                                  .drain = drain,
                                  .n_engines = n_engines,
                                  .stats = stats,
                                  .plan = plan };
    return (ds_gen){ &fn, r };
}

/* ---- open and closed ---- */

ds_rc ds_remote_open(ds_remote **out, const char *address, const ds_remote_opts *o, ds_err *err)
{
    ds_remote *r = calloc(1, sizeof *r);
    uint64_t until_us;
    pthread_condattr_t attr;
    ds_rc rc;

    *out = NULL;
    if (!r)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    r->o = *o;
    r->o.wait_ms = o->wait_ms ? o->wait_ms : 10000;
    r->o.retry_ms = o->retry_ms ? o->retry_ms : 200;
    r->o.conn.max_message = o->conn.max_message ? o->conn.max_message : (size_t)256 << 20;
    r->o.conn.max_queue = o->conn.max_queue ? o->conn.max_queue : (size_t)512 << 20;
    r->records.bytes = sizeof(record);
    r->greeting = -1;
    pthread_mutex_init(&r->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&r->woken, &attr);
    pthread_condattr_destroy(&attr);
    rc = ds_addr_parse(&r->at, address, err);
    if (rc != DS_OK) {
        ds_remote_close(r);
        return rc;
    }
    until_us = ds_now_us() + (uint64_t)r->o.wait_ms * 1000;
    while (rc == DS_OK && (rc = connect_once(r, r->o.wait_ms, err)) == DS_E_IO && ds_now_us() < until_us) {
        poll(NULL, 0, 50);
        rc = DS_OK;
    }
    if (rc == DS_OK && pthread_create(&r->thread, NULL, keep, r) != 0)
        rc = ds_fail(err, DS_E_IO, "a thread can't be started");
    r->has_thread = rc == DS_OK;
    if (rc != DS_OK) {
        ds_remote_close(r);
        return ds_err_prefix(err, rc, "engine %s: ", address);
    }
    *out = r;
    return DS_OK;
}

ds_cw_role ds_remote_role(const ds_remote *r)
{
    return r->role;
}

bool ds_remote_ready(ds_remote *r)
{
    bool ready;

    pthread_mutex_lock(&r->mu);
    ready = r->up && r->conn && !r->no_more;
    pthread_mutex_unlock(&r->mu);
    return ready;
}

ds_gen_from ds_remote_from(ds_remote *r, uint64_t ticket)
{
    ds_gen_from from = { .address = r->at.text, .ticket = ticket };

    pthread_mutex_lock(&r->mu);
    from.epoch = r->epoch;
    pthread_mutex_unlock(&r->mu);
    return from;
}

void ds_remote_forget(ds_remote *r, uint64_t epoch, uint64_t ticket)
{
    pthread_mutex_lock(&r->mu);
    if (r->up && r->epoch == epoch && tell(r, DS_CW_FORGET, ticket, 0, NULL, NULL) != DS_OK && r->conn)
        ds_conn_stop(r->conn);
    pthread_mutex_unlock(&r->mu);
}

void ds_remote_close(ds_remote *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->mu);
    r->closing = true;
    r->wake = NULL;
    if (r->greeting >= 0)
        shutdown(r->greeting, SHUT_RDWR);
    pthread_cond_broadcast(&r->woken);
    pthread_mutex_unlock(&r->mu);
    if (r->has_thread)
        pthread_join(r->thread, NULL);
    ds_conn_destroy(r->conn);
    ds_table_fini(&r->records);
    free(r->events);
    free(r->stats);
    pthread_cond_destroy(&r->woken);
    pthread_mutex_destroy(&r->mu);
    free(r);
}
