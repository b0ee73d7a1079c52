#include "cluster/host.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/table.h"
#include "net/addr.h"

enum { BATCH = 256, HELLO_MS = 5000, ADMITTING = 2 /* threads */, KEEP_BYTES = 1 << 20 /* of an empty buffer */ };

typedef struct peer peer;
struct peer {
    /* [const] */
    ds_host *h;
    uint64_t since_us;
    /* [mu] */
    peer *next;
    ds_conn *conn;
    bool known; /* its HELLO came and fits */
    bool gone;  /* by its connection's last call; the polling thread frees it */
    ds_buf out;
};

/* A request of a peer's, from before add until its last event. */
typedef struct {
    ds_record at;      /* its id is the generator's cookie */
    peer *from;        /* NULL: it is gone */
    uint64_t theirs;   /* how the peer calls it */
    uint64_t gen_id;   /* 0: not known yet */
    uint64_t until_us; /* its deadline; 0: none */
    bool canceled;
    uint32_t finish;  /* bit for each sample that was finished before gen_id was known */
    ds_cw_request *q; /* lends its memory to the generator */
    void *grammar;
    uint64_t next; /* id of the one that waits behind it for its grammar; 0: none */
} record;

struct ds_host {
    /* [const] */
    ds_gen gen;
    ds_host_opts o;
    ds_addr at;
    int listener, wake; /* wake: of the accepting thread */
    uint64_t epoch;
    pthread_t accepting, polling, admitting[ADMITTING];
    bool has_accepting, has_polling;
    uint32_t n_admitting;
    /* [mu] */
    pthread_mutex_t mu;
    pthread_cond_t waiting; /* for those who admit */
    peer *peers;
    uint32_t n_peers;
    ds_table records;
    uint64_t first_waiting, last_waiting; /* ids of requests that wait for their grammars; 0: none */
    uint32_t n_waiting;
    uint64_t accepted, refused;
    bool draining, stop;
};

/* ---- records: with mu ---- */

static record *of_id(ds_host *h, uint64_t id)
{
    return ds_table_get(&h->records, id);
}

static record *of_peer(ds_host *h, const peer *p, uint64_t theirs)
{
    for (record *x = ds_table_next(&h->records, NULL); x; x = ds_table_next(&h->records, x))
        if (x->from == p && x->theirs == theirs)
            return x;
    return NULL;
}

/* What a record held, outside of mu. */
static void give_back(ds_host *h, ds_cw_request *q, void *grammar)
{
    if (grammar)
        h->o.grammar_end(h->o.ctx, grammar);
    ds_cw_request_free(q);
}

/* ---- what a peer asks for ---- */

static void say(const ds_host *h, ds_log_level level, const char *what, const char *why)
{
    if (h->o.log)
        ds_logf(h->o.log, level, "%s: %s%s%s", h->at.text, what, *why ? ": " : "", why);
}

/* With mu. The ends of all samples of a request that the generator didn't take. A peer that can't be told is cut
 * off. */
static void tell_ends(ds_host *h, peer *p, uint64_t theirs, uint32_t samples, ds_end_reason reason, ds_rc why)
{
    const ds_frame f = { .type = DS_CW_EVENTS, .epoch = h->epoch };
    ds_buf b = { 0 };

    for (uint32_t s = 0; s < samples; s++) {
        ds_event ev = { .kind = DS_EV_END, .sample = s };
        ev.end.reason = reason;
        ev.end.rc = why;
        ev.end.last = s + 1 == samples;
        ds_cw_put_event(&b, theirs, &ev, 0);
    }
    if (b.oom || ds_conn_send(p->conn, &f, b.p, b.len, NULL) != DS_OK)
        ds_conn_stop(p->conn);
    ds_buf_free(&b);
}

static uint32_t samples_of(const ds_gen_request *q)
{
    return q->n ? q->n : 1;
}

/* A record whose request never came to the generator is over. */
static void end_record(ds_host *h, uint64_t id, ds_end_reason reason, const ds_err *why)
{
    void *grammar;
    ds_cw_request *q;
    record *x;

    if (reason == DS_ENDED_FAILED)
        say(h, DS_LOG_DEBUG, "a request was refused", why->msg);
    pthread_mutex_lock(&h->mu);
    x = of_id(h, id);
    assert(x);
    q = x->q;
    grammar = x->grammar;
    if (x->from)
        tell_ends(h, x->from, x->theirs, samples_of(ds_cw_request_get(q)), reason, reason == DS_ENDED_FAILED ? why->rc : DS_OK);
    ds_table_give(&h->records, x);
    pthread_mutex_unlock(&h->mu);
    give_back(h, q, grammar);
}

/* Gives a request to the generator, with what was ordered before it was there. */
static void submit(ds_host *h, uint64_t id)
{
    uint64_t gen_id = 0, now = ds_now_us(), until;
    ds_gen_request *q;
    uint32_t finish = 0;
    bool canceled;
    ds_err why = { 0 };
    record *x;

    pthread_mutex_lock(&h->mu);
    x = of_id(h, id);
    assert(x);
    q = ds_cw_request_get(x->q);
    canceled = x->canceled;
    until = x->until_us;
    pthread_mutex_unlock(&h->mu);
    if (canceled || (until && now >= until)) {
        end_record(h, id, canceled ? DS_ENDED_CANCELED : DS_ENDED_DEADLINE, NULL);
        return;
    }
    q->cookie = id;
    q->deadline_us = until ? until - now : 0;
    if (ds_gen_add(h->gen, q, &gen_id, &why) != DS_OK) {
        end_record(h, id, DS_ENDED_FAILED, &why);
        return;
    }
    pthread_mutex_lock(&h->mu);
    x = of_id(h, id); /* NULL: all its events were polled already */
    if (x) {
        x->gen_id = gen_id;
        canceled = x->canceled;
        finish = x->finish;
    }
    pthread_mutex_unlock(&h->mu);
    if (canceled)
        ds_gen_cancel(h->gen, gen_id);
    for (uint32_t i = 0; i < DS_CW_MAX_SAMPLES && finish >> i && !canceled; i++)
        if (finish >> i & 1)
            ds_gen_finish_sample(h->gen, gen_id, i);
}

/* ---- grammars, which take their time: on threads of their own, so that orders don't wait behind them ---- */

/* With mu. */
static void queue_up(ds_host *h, record *x)
{
    record *last = of_id(h, h->last_waiting);

    if (last)
        last->next = x->at.id;
    else
        h->first_waiting = x->at.id;
    h->last_waiting = x->at.id;
    h->n_waiting++;
    pthread_cond_signal(&h->waiting);
}

/* Waits for one; 0: the host stops, and nobody waits. */
static uint64_t take_waiting(ds_host *h)
{
    record *x;
    uint64_t id;

    pthread_mutex_lock(&h->mu);
    while (!h->first_waiting && !h->stop)
        pthread_cond_wait(&h->waiting, &h->mu);
    id = h->first_waiting;
    x = of_id(h, id);
    if (x) {
        h->first_waiting = x->next;
        if (!x->next)
            h->last_waiting = 0;
        h->n_waiting--;
    }
    pthread_mutex_unlock(&h->mu);
    return id;
}

static ds_rc make_grammar(ds_host *h, ds_gen_request *q, ds_gen_grammar *g, void **held, ds_err *err)
{
    ds_rc rc = h->o.grammar(h->o.ctx, g, held, q->grammar->what, samples_of(q), q->output, q->n_output, err);

    q->grammar = g;
    return rc == DS_E_FORMAT ? (err->rc = DS_E_ARG) : rc;
}

static void admit(ds_host *h, uint64_t id)
{
    ds_gen_grammar g;
    ds_gen_request *q;
    ds_err why = { 0 };
    void *held = NULL;
    bool canceled;
    record *x;

    pthread_mutex_lock(&h->mu);
    x = of_id(h, id);
    assert(x);
    canceled = x->canceled;
    q = ds_cw_request_get(x->q);
    pthread_mutex_unlock(&h->mu);
    if (canceled) {
        end_record(h, id, DS_ENDED_CANCELED, NULL);
        return;
    }
    if (make_grammar(h, q, &g, &held, &why) != DS_OK) {
        end_record(h, id, DS_ENDED_FAILED, &why);
        return;
    }
    pthread_mutex_lock(&h->mu);
    x = of_id(h, id);
    assert(x);
    x->grammar = held;
    pthread_mutex_unlock(&h->mu);
    submit(h, id);
}

static void *admit_all(void *arg)
{
    uint64_t id;

    while ((id = take_waiting(arg)))
        admit(arg, id);
    return NULL;
}

/* ---- requests and orders ---- */

static ds_rc on_add(peer *p, const ds_frame *f, const uint8_t *bytes, size_t n, ds_err *err)
{
    ds_host *h = p->h;
    ds_cw_request *r;
    ds_gen_request *q;
    ds_err why = { 0 };
    bool twice, waits = false;
    uint64_t id = 0;
    record *x = NULL;
    ds_rc rc = ds_cw_read_request(&r, bytes, n, h->o.hidden, err);

    if (rc != DS_OK)
        return rc;
    q = ds_cw_request_get(r);
    pthread_mutex_lock(&h->mu);
    twice = of_peer(h, p, f->request) != NULL;
    if (twice)
        rc = ds_fail(err, DS_E_FORMAT, "a request twice");
    else if (h->draining)
        rc = ds_fail(&why, DS_E_AGAIN, "draining");
    else if (q->grammar && !h->o.grammar)
        rc = ds_fail(&why, DS_E_ARG, "this engine makes no grammars");
    else if (q->grammar && h->n_waiting >= h->o.max_waiting)
        rc = ds_fail(&why, DS_E_AGAIN, "%u requests wait for their grammars", h->n_waiting);
    else if (!(x = ds_table_take(&h->records)))
        rc = ds_fail(&why, DS_E_NOMEM, "out of memory for a request");
    if (x) {
        id = x->at.id;
        x->from = p;
        x->theirs = f->request;
        x->until_us = f->left_ns ? ds_now_us() + f->left_ns / 1000 : 0;
        x->q = r;
        waits = q->grammar != NULL;
        if (waits)
            queue_up(h, x);
    } else if (!twice) {
        tell_ends(h, p, f->request, samples_of(q), DS_ENDED_FAILED, rc);
        rc = DS_OK;
    }
    pthread_mutex_unlock(&h->mu);
    if (!x) {
        if (!twice)
            say(h, DS_LOG_DEBUG, "a request was refused", why.msg);
        ds_cw_request_free(r);
        return rc;
    }
    if (!waits)
        submit(h, id);
    return DS_OK;
}

/* An order for a request that ended meanwhile is nothing; one that is too early is kept. */
static void on_order(peer *p, uint64_t theirs, bool cancel, uint32_t sample)
{
    uint64_t gen_id = 0;
    record *x;

    pthread_mutex_lock(&p->h->mu);
    x = of_peer(p->h, p, theirs);
    if (x) {
        gen_id = x->gen_id;
        x->canceled = x->canceled || cancel;
        if (!cancel && sample < DS_CW_MAX_SAMPLES)
            x->finish |= UINT32_C(1) << sample;
    }
    pthread_mutex_unlock(&p->h->mu);
    if (gen_id && cancel)
        ds_gen_cancel(p->h->gen, gen_id);
    else if (gen_id)
        ds_gen_finish_sample(p->h->gen, gen_id, sample);
}

static ds_rc on_hello(peer *p, const uint8_t *bytes, size_t n, ds_err *err)
{
    ds_host *h = p->h;
    uint32_t n_engines = ds_gen_n_engines(h->gen);
    ds_gen_plan plans[DS_GEN_MANY_MAX] = { { 0 } };
    ds_frame f = { .type = DS_CW_WELCOME, .epoch = h->epoch };
    ds_cw_model asks;
    ds_buf b = { 0 };
    ds_rc rc = ds_cw_read_hello(&asks, bytes, n, err);

    if (rc == DS_OK)
        rc = ds_cw_same_model(&asks, &h->o.self.model, err);
    if (rc != DS_OK) {
        f.type = DS_CW_REFUSED;
        ds_conn_send(p->conn, &f, err->msg, strlen(err->msg), NULL);
        return rc;
    }
    for (uint32_t i = 0; i < n_engines; i++)
        ds_gen_plan_get(h->gen, i, &plans[i]);
    ds_cw_put_welcome(&b, &h->o.self, plans, n_engines);
    rc = b.oom ? ds_fail(err, DS_E_NOMEM, "out of memory") : ds_conn_send(p->conn, &f, b.p, b.len, err);
    ds_buf_free(&b);
    f.type = DS_CW_DRAINING;
    pthread_mutex_lock(&h->mu);
    p->known = rc == DS_OK;
    if (rc == DS_OK && h->draining)
        rc = ds_conn_send(p->conn, &f, NULL, 0, err);
    pthread_mutex_unlock(&h->mu);
    return rc;
}

static ds_rc message(void *ctx, const ds_frame *f, const uint8_t *bytes, size_t n, ds_err *err)
{
    peer *p = ctx;
    bool known;

    pthread_mutex_lock(&p->h->mu);
    known = p->known;
    pthread_mutex_unlock(&p->h->mu);
    if (!known)
        return f->type == DS_CW_HELLO ? on_hello(p, bytes, n, err) : ds_fail(err, DS_E_FORMAT, "no HELLO");
    if (f->epoch != p->h->epoch)
        return ds_fail(err, DS_E_FORMAT, "a message of another epoch");
    switch (f->type) {
    case DS_CW_ADD:
        return on_add(p, f, bytes, n, err);
    case DS_CW_CANCEL:
        if (n)
            break;
        on_order(p, f->request, true, 0);
        return DS_OK;
    case DS_CW_FINISH:
        if (n != 4)
            break;
        on_order(p, f->request, false, ds_frame_u32(&(ds_frame_in){ bytes, bytes + n, false }));
        return DS_OK;
    default:
        break;
    }
    return ds_fail(err, DS_E_FORMAT, "a message of type %u and %zu bytes", f->type, n);
}

/* With mu. The first record, or the one behind a place, whose record may be over. */
static record *next_of(ds_host *h, uint64_t last)
{
    uint32_t place = last ? (uint32_t)last + 1 : 0;

    while (place < h->records.n && !ds_table_at(&h->records, place))
        place++;
    return ds_table_at(&h->records, place);
}

/* Its requests are nobody's any more: they are canceled, and go with their last events. */
static void gone(void *ctx, const ds_err *why)
{
    peer *p = ctx;
    ds_host *h = p->h;
    uint64_t last = 0;
    bool more = true;

    say(h, DS_LOG_INFO, p->known ? "a peer is gone" : "a connection was refused", why->msg);
    while (more) {
        uint64_t gen_id = 0;
        pthread_mutex_lock(&h->mu);
        more = false;
        for (record *x = next_of(h, last); x && !more; x = ds_table_next(&h->records, x)) {
            if (x->from != p)
                continue;
            x->from = NULL;
            x->canceled = true;
            gen_id = x->gen_id;
            last = x->at.id;
            more = true;
        }
        if (!more) {
            p->gone = true;
            h->refused += !p->known;
        }
        pthread_mutex_unlock(&h->mu);
        if (gen_id)
            ds_gen_cancel(h->gen, gen_id);
    }
}

/* ---- events ---- */

/* With mu. The peer that hears of an event; what its request held, when that is over. */
static void route(ds_host *h, const ds_event *ev, uint64_t now_us, ds_cw_request **q, void **grammar)
{
    record *x = of_id(h, ev->cookie);

    assert(x);
    if (x->from)
        ds_cw_put_event(&x->from->out, x->theirs, ev, now_us);
    if (ev->kind == DS_EV_END && ev->end.last) {
        *q = x->q;
        *grammar = x->grammar;
        ds_table_give(&h->records, x);
    }
}

/* With mu: connections don't go while they are told something. */
static void tell_all(ds_host *h)
{
    const ds_frame f = { .type = DS_CW_EVENTS, .epoch = h->epoch };

    for (peer *p = h->peers; p; p = p->next) {
        if (p->out.len == 0 && !p->out.oom)
            continue;
        if (!p->gone && (p->out.oom || ds_conn_send(p->conn, &f, p->out.p, p->out.len, NULL) != DS_OK))
            ds_conn_stop(p->conn);
        if (p->out.cap > KEEP_BYTES)
            ds_buf_free(&p->out);
        ds_buf_clear(&p->out);
    }
}

static void tell_stats(ds_host *h)
{
    uint32_t n = ds_gen_n_engines(h->gen);
    const ds_frame f = { .type = DS_CW_STATS, .epoch = h->epoch };
    ds_gen_stats s;
    ds_buf b = { 0 };

    for (uint32_t i = 0; i < n; i++) {
        if (!ds_gen_stats_get(h->gen, i, &s))
            continue;
        ds_buf_clear(&b);
        ds_cw_put_stats(&b, i, &s);
        pthread_mutex_lock(&h->mu);
        for (peer *p = h->peers; p && !b.oom; p = p->next)
            if (p->known && !p->gone)
                ds_conn_send(p->conn, &f, b.p, b.len, NULL); /* whoever has no room for it hears the next */
        pthread_mutex_unlock(&h->mu);
    }
    ds_buf_free(&b);
}

static void free_peer(peer *p)
{
    ds_conn_destroy(p->conn);
    ds_buf_free(&p->out);
    free(p);
}

/* Those that are gone; who doesn't say HELLO in time goes. */
static void bury(ds_host *h)
{
    peer *dead = NULL;

    pthread_mutex_lock(&h->mu);
    for (peer **at = &h->peers; *at;) {
        peer *p = *at;
        if (!p->known && !p->gone && ds_now_us() - p->since_us > (uint64_t)HELLO_MS * 1000)
            ds_conn_stop(p->conn);
        if (!p->gone) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        p->next = dead;
        dead = p;
        h->n_peers--;
    }
    pthread_mutex_unlock(&h->mu);
    for (peer *p = dead, *next; p; p = next) {
        next = p->next;
        free_peer(p);
    }
}

static bool is_over(ds_host *h)
{
    bool over;

    pthread_mutex_lock(&h->mu);
    over = h->stop && h->records.n_live == 0;
    pthread_mutex_unlock(&h->mu);
    return over;
}

static void *poll_gen(void *arg)
{
    ds_host *h = arg;
    ds_event ev[BATCH];
    uint64_t next_stats = 0;

    while (!is_over(h)) {
        ds_gen_wait(h->gen, 50);
        size_t n = ds_gen_poll(h->gen, ev, BATCH), n_over = 0;
        ds_cw_request *q[BATCH];
        void *grammar[BATCH];
        uint64_t now = ds_now_us();
        pthread_mutex_lock(&h->mu);
        for (size_t i = 0; i < n; i++) {
            q[n_over] = NULL;
            grammar[n_over] = NULL;
            route(h, &ev[i], now, &q[n_over], &grammar[n_over]);
            n_over += q[n_over] != NULL;
        }
        tell_all(h);
        pthread_mutex_unlock(&h->mu);
        for (size_t i = 0; i < n_over; i++)
            give_back(h, q[i], grammar[i]);
        if (now >= next_stats) {
            next_stats = now + (uint64_t)h->o.stats_ms * 1000;
            tell_stats(h);
        }
        bury(h);
    }
    return NULL;
}

/* ---- connections ---- */

static void take_peer(ds_host *h, int fd)
{
    peer *p = calloc(1, sizeof *p);
    const ds_conn_fn fn = { message, gone, p };
    ds_err err = { 0 };
    bool room;

    pthread_mutex_lock(&h->mu);
    room = p && h->n_peers < h->o.max_peers && !h->stop;
    h->accepted++;
    h->refused += !room;
    if (room) {
        *p = (peer){ .h = h, .since_us = ds_now_us() };
        if (ds_conn_start(&p->conn, fd, &fn, &h->o.conn, &err) == DS_OK) { /* its callbacks wait for mu */
            p->next = h->peers;
            h->peers = p;
            h->n_peers++;
            p = NULL;
        }
    } else {
        close(fd);
    }
    pthread_mutex_unlock(&h->mu);
    free(p);
}

static void *accept_peers(void *arg)
{
    ds_host *h = arg;
    struct pollfd p[2] = { { .fd = h->listener, .events = POLLIN }, { .fd = h->wake, .events = POLLIN } };

    for (;;) {
        ds_err err = { 0 };
        int fd;
        if (poll(p, 2, -1) < 0 && errno != EINTR)
            return NULL;
        if (p[1].revents)
            return NULL;
        ds_rc rc = ds_addr_accept(h->listener, &fd, &err);
        if (rc == DS_OK)
            take_peer(h, fd);
        else if (rc == DS_E_IO) { /* out of descriptors: they come back */
            say(h, DS_LOG_WARN, "accept", err.msg);
            poll(NULL, 0, 100);
        }
    }
}

/* ---- start and stop ---- */

ds_rc ds_host_start(ds_host **out, const char *address, ds_gen gen, const ds_host_opts *o, ds_err *err)
{
    ds_host *h = calloc(1, sizeof *h);
    ds_rc rc;

    *out = NULL;
    if (!h)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    h->gen = gen;
    h->o = *o;
    h->o.max_peers = o->max_peers ? o->max_peers : 64;
    h->o.max_waiting = o->max_waiting ? o->max_waiting : 256;
    h->o.stats_ms = o->stats_ms ? o->stats_ms : 250;
    h->o.conn.max_message = o->conn.max_message ? o->conn.max_message : (size_t)256 << 20;
    h->listener = h->wake = -1;
    h->records.bytes = sizeof(record);
    pthread_mutex_init(&h->mu, NULL);
    pthread_cond_init(&h->waiting, NULL);
    rc = ds_addr_parse(&h->at, address, err);
    if (rc == DS_OK && (getrandom(&h->epoch, sizeof h->epoch, 0) != sizeof h->epoch || (h->wake = eventfd(0, EFD_CLOEXEC)) < 0))
        rc = ds_fail(err, DS_E_IO, "%s: %s", address, strerror(errno));
    h->epoch |= 1; /* 0 is nobody's */
    if (rc == DS_OK)
        rc = ds_addr_listen(&h->at, &h->listener, err);
    if (rc == DS_OK) {
        h->has_polling = pthread_create(&h->polling, NULL, poll_gen, h) == 0;
        while (h->has_polling && h->n_admitting < ADMITTING && pthread_create(&h->admitting[h->n_admitting], NULL, admit_all, h) == 0)
            h->n_admitting++;
        h->has_accepting = h->n_admitting == ADMITTING && pthread_create(&h->accepting, NULL, accept_peers, h) == 0;
        if (!h->has_accepting)
            rc = ds_fail(err, DS_E_IO, "%s: a thread can't be started", address);
    }
    if (rc != DS_OK) {
        ds_host_stop(h);
        return rc;
    }
    *out = h;
    return DS_OK;
}

const char *ds_host_address(const ds_host *h)
{
    return h->at.text;
}

bool ds_host_drain(ds_host *h)
{
    const ds_frame f = { .type = DS_CW_DRAINING, .epoch = h->epoch };
    bool first, over;

    pthread_mutex_lock(&h->mu);
    first = !h->draining;
    h->draining = true;
    for (peer *p = h->peers; p && first; p = p->next)
        if (p->known && !p->gone && ds_conn_send(p->conn, &f, NULL, 0, NULL) != DS_OK)
            ds_conn_stop(p->conn);
    over = h->records.n_live == 0;
    pthread_mutex_unlock(&h->mu);
    return ds_gen_drain(h->gen) && over;
}

ds_host_stats ds_host_stat(ds_host *h)
{
    ds_host_stats s;

    pthread_mutex_lock(&h->mu);
    s = (ds_host_stats){ h->n_peers, h->records.n_live, h->accepted, h->refused };
    pthread_mutex_unlock(&h->mu);
    return s;
}

void ds_host_stop(ds_host *h)
{
    uint64_t one = 1;

    if (!h)
        return;
    if (h->has_accepting && write(h->wake, &one, sizeof one) == sizeof one)
        pthread_join(h->accepting, NULL);
    pthread_mutex_lock(&h->mu);
    h->stop = h->draining = true;
    for (peer *p = h->peers; p; p = p->next)
        ds_conn_stop(p->conn);
    pthread_cond_broadcast(&h->waiting);
    pthread_mutex_unlock(&h->mu);
    for (uint32_t i = 0; i < h->n_admitting; i++)
        pthread_join(h->admitting[i], NULL);
    if (h->has_polling)
        pthread_join(h->polling, NULL);
    for (peer *p = h->peers, *next; p; p = next) {
        next = p->next;
        free_peer(p);
    }
    if (h->listener >= 0)
        close(h->listener);
    if (h->wake >= 0)
        close(h->wake);
    if (h->listener >= 0 && h->at.local)
        unlink(h->at.text + 5);
    ds_table_fini(&h->records);
    pthread_cond_destroy(&h->waiting);
    pthread_mutex_destroy(&h->mu);
    free(h);
}
