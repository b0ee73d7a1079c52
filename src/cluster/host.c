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
#include "cluster/handoff.h"
#include "cluster/taker.h"
#include "net/addr.h"

enum {
    BATCH = 256,
    HELLO_MS = 5000,
    ADMITTING = 2, /* threads */
    TAKERS = 4,    /* threads */
    MAX_TICKETS = 1024,
    KEEP_BYTES = 1 << 20 /* of an empty buffer */
};

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
    bool takes; /* it came for a sequence */
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
    bool hand_over, settled; /* settled: `held` is what it will be */
    void *held;              /* its export, ds_host_handoff; NULL: there is none */
    uint32_t finish;         /* bit for each sample that was finished before gen_id was known */
    ds_cw_request *q;        /* lends its memory to the generator */
    void *grammar;
    uint64_t next; /* id of the one that waits behind it for its grammar; 0: none */
} record;

/* A thread that takes sequences from other engines. */
typedef struct {
    ds_host *h;
    pthread_t thread;
    bool runs;
    uint64_t id;      /* [mu] whose it takes now; 0: nobody's */
    atomic_bool stop; /* set with mu, read by whoever waits for bytes */
} taker;

struct ds_host {
    /* [const] */
    ds_gen gen;
    ds_host_opts o;
    ds_addr at;
    int listener, wake; /* wake: of the accepting thread */
    uint64_t epoch;
    ds_tickets *tickets; /* NULL: nothing is handed over */
    taker takers[TAKERS];
    pthread_t accepting, polling, admitting[ADMITTING];
    bool has_accepting, has_polling;
    uint32_t n_admitting;
    /* [mu] */
    pthread_mutex_t mu;
    pthread_cond_t waiting;       /* for those who admit */
    pthread_cond_t settled, more; /* an export is begun; something is to be taken */
    uint64_t *coming;             /* [n_coming] requests that are to be taken */
    uint32_t n_coming, cap_coming, n_leaving;
    peer *peers;
    uint32_t n_peers;
    ds_table records;
    uint64_t first_waiting, last_waiting; /* ids of requests that wait for their grammars; 0: none */
    uint32_t n_waiting;
    uint64_t accepted, refused;
    bool draining, stop, no_more; /* no_more: sequences come */
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

static void free_record(ds_host *h, record *x)
{
    h->n_leaving -= x->hand_over;
    ds_table_give(&h->records, x);
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

    if (reason != DS_ENDED_CANCELED && why)
        say(h, DS_LOG_DEBUG, "a request was refused", why->msg);
    pthread_mutex_lock(&h->mu);
    x = of_id(h, id);
    assert(x);
    q = x->q;
    grammar = x->grammar;
    if (x->from)
        tell_ends(h, x->from, x->theirs, samples_of(ds_cw_request_get(q)), reason, why ? why->rc : DS_OK);
    free_record(h, x);
    pthread_mutex_unlock(&h->mu);
    give_back(h, q, grammar);
}

/* The generator has it: what was ordered before is passed on. */
static void went(ds_host *h, uint64_t id, uint64_t gen_id)
{
    uint32_t finish = 0;
    bool canceled = false;
    record *x;

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

/* To those that take sequences. With mu. */
static ds_rc queue_coming(ds_host *h, uint64_t id, ds_err *err)
{
    if (h->n_coming == h->cap_coming) {
        uint32_t cap = h->cap_coming ? 2 * h->cap_coming : 16;
        uint64_t *more = realloc(h->coming, cap * sizeof *more);
        if (!more)
            return ds_fail(err, DS_E_NOMEM, "out of memory for a request");
        h->coming = more;
        h->cap_coming = cap;
    }
    h->coming[h->n_coming++] = id;
    pthread_cond_signal(&h->more);
    return DS_OK;
}

/* A request that was added leaves. Its last event waits for this. */
static void begin_leaving(ds_host *h, uint64_t id, uint64_t gen_id)
{
    void *held = NULL;
    ds_err err = { 0 };
    ds_rc rc = h->o.handoff.begin(h->o.handoff.ctx, gen_id, &held, &err);
    record *x;

    pthread_mutex_lock(&h->mu);
    x = of_id(h, id);
    assert(x);
    x->held = rc == DS_OK ? held : NULL;
    x->settled = true;
    pthread_cond_broadcast(&h->settled);
    pthread_mutex_unlock(&h->mu);
    if (rc != DS_OK && rc != DS_E_ARG) /* ARG: it was over before */
        say(h, DS_LOG_WARN, "a sequence doesn't leave", err.msg);
}

/* Gives a request to the generator, or to those that take its sequence. */
static void submit(ds_host *h, uint64_t id)
{
    uint64_t gen_id = 0, now = ds_now_us(), until;
    ds_gen_request *q;
    bool canceled, comes, leaves;
    ds_err why = { 0 };
    ds_rc rc = DS_OK;
    record *x;

    pthread_mutex_lock(&h->mu);
    x = of_id(h, id);
    assert(x);
    q = ds_cw_request_get(x->q);
    canceled = x->canceled;
    until = x->until_us;
    q->cookie = id;
    q->deadline_us = until > now ? until - now : 0;
    leaves = q->hand_over; /* when it is added, it may be over */
    comes = q->from != NULL && !canceled && !(until && now >= until);
    if (comes)
        rc = queue_coming(h, id, &why);
    pthread_mutex_unlock(&h->mu);
    if (canceled || (until && now >= until)) {
        end_record(h, id, canceled ? DS_ENDED_CANCELED : DS_ENDED_DEADLINE, NULL);
        return;
    }
    if (!comes)
        rc = ds_gen_add(h->gen, q, &gen_id, &why);
    if (rc != DS_OK) {
        end_record(h, id, DS_ENDED_FAILED, &why);
        return;
    }
    if (comes)
        return;
    if (leaves)
        begin_leaving(h, id, gen_id);
    went(h, id, gen_id);
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

static void admit(ds_host *h, uint64_t id)
{
    ds_gen_grammar g;
    const ds_gen_request *q;
    ds_cw_request *r;
    ds_err why = { 0 };
    void *held = NULL;
    bool canceled;
    record *x;
    ds_rc rc;

    pthread_mutex_lock(&h->mu);
    x = of_id(h, id);
    assert(x);
    canceled = x->canceled;
    r = x->q;
    q = ds_cw_request_get(r);
    pthread_mutex_unlock(&h->mu);
    if (canceled) {
        end_record(h, id, DS_ENDED_CANCELED, NULL);
        return;
    }
    rc = h->o.grammar(h->o.ctx, &g, &held, q->grammar->what, samples_of(q), q->output, q->n_output, &why);
    if (rc != DS_OK) {
        why.rc = rc == DS_E_FORMAT ? DS_E_ARG : rc;
        end_record(h, id, DS_ENDED_FAILED, &why);
        return;
    }
    ds_cw_request_made(r, &g);
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

/* Whether this host can do it at all, and now. With mu. */
static ds_rc check_handoff(ds_host *h, const ds_gen_request *q, ds_err *err)
{
    if ((q->hand_over || q->from) && !h->tickets)
        return ds_fail(err, DS_E_ARG, "this engine hands no sequences over, and takes none");
    if (q->hand_over && (samples_of(q) > 1 || q->prompt_logprobs))
        return ds_fail(err, DS_E_ARG, "a sequence leaves without others, and without log-probabilities of its prompt");
    if (q->hand_over && h->n_leaving + ds_tickets_n(h->tickets) >= MAX_TICKETS)
        return ds_fail(err, DS_E_AGAIN, "%d sequences wait to be taken", MAX_TICKETS);
    return DS_OK;
}

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
    else if ((rc = check_handoff(h, q, &why)) == DS_OK && !(x = ds_table_take(&h->records)))
        rc = ds_fail(&why, DS_E_NOMEM, "out of memory for a request");
    if (x) {
        id = x->at.id;
        x->from = p;
        x->theirs = f->request;
        x->until_us = f->left_ns ? ds_now_us() + f->left_ns / 1000 : 0;
        x->q = r;
        x->hand_over = q->hand_over;
        h->n_leaving += x->hand_over;
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

/* With mu: whoever takes this request's sequence stops. */
static void stop_taking(ds_host *h, uint64_t id)
{
    for (int i = 0; i < TAKERS; i++)
        if (h->takers[i].id == id)
            atomic_store_explicit(&h->takers[i].stop, true, memory_order_relaxed);
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
        if (x->canceled && !gen_id)
            stop_taking(p->h, x->at.id);
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

/* A part of what left, for who takes it. */
static ds_rc on_take(peer *p, uint64_t ticket, const uint8_t *bytes, size_t n, ds_err *err)
{
    ds_host *h = p->h;
    ds_frame f = { .type = DS_CW_PART, .request = ticket, .epoch = h->epoch };
    const ds_handed *what;
    ds_buf b = { 0 };
    uint64_t from;
    uint32_t want;
    ds_rc rc = ds_cw_read_take(&from, &want, bytes, n, err);

    if (rc != DS_OK)
        return rc;
    pthread_mutex_lock(&h->mu);
    p->takes = true;
    pthread_mutex_unlock(&h->mu);
    what = h->tickets ? ds_tickets_pin(h->tickets, ticket) : NULL;
    if (!what) {
        f.type = DS_CW_NOTHING;
        return ds_conn_send(p->conn, &f, NULL, 0, err);
    }
    ds_cw_put_part(&b, what, from, want);
    ds_tickets_unpin(h->tickets, what);
    rc = b.oom ? ds_fail(err, DS_E_NOMEM, "out of memory for a part of a sequence") : ds_conn_send(p->conn, &f, b.p, b.len, err);
    ds_buf_free(&b);
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
    case DS_CW_TAKE:
        return on_take(p, f->request, bytes, n, err);
    case DS_CW_FORGET:
        if (n)
            break;
        if (p->h->tickets)
            ds_tickets_forget(p->h->tickets, f->request);
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

    say(h, p->takes ? DS_LOG_DEBUG : DS_LOG_INFO, p->known ? "a peer is gone" : "a connection was refused", why->msg);
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
            if (!gen_id)
                stop_taking(h, x->at.id);
            last = x->at.id;
            more = true;
        }
        if (!more && h->tickets)
            ds_tickets_forget_of(h->tickets, p); /* no more come: none of its requests is here */
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

/* What a request leaves behind when it is over. */
typedef struct {
    ds_cw_request *q;
    void *grammar, *held;
} remains;

/* What left with the request that this event ends; held: NULL if nothing did. */
static void find_left(ds_host *h, const ds_event *ev, ds_handed *out)
{
    const ds_host_handoff *o = &h->o.handoff;
    record *x;

    *out = (ds_handed){ 0 };
    if (!h->tickets || ev->kind != DS_EV_END)
        return;
    pthread_mutex_lock(&h->mu);
    while ((x = of_id(h, ev->cookie)) && x->hand_over && !x->settled)
        pthread_cond_wait(&h->settled, &h->mu);
    assert(x);
    out->held = x->held;
    pthread_mutex_unlock(&h->mu);
    out->free = o->end;
    out->ctx = o->ctx;
    if (out->held && o->left(o->ctx, out->held, &out->record, &out->n_record, &out->blocks, &out->n_blocks) != DS_OK)
        out->record = NULL;
}

/* With mu. The peer that hears of an event; what its request held, when that is over. */
static void route(ds_host *h, ds_event *ev, const ds_handed *left, uint64_t now_us, remains *rest)
{
    record *x = of_id(h, ev->cookie);

    assert(x);
    if (left->held) {
        bool goes_on = left->record && x->from && !x->canceled && ev->end.reason == DS_ENDED_CANCELED;
        if (!goes_on || ds_tickets_put(h->tickets, x->from, left, &ev->end.ticket, NULL) != DS_OK)
            rest->held = left->held;
        if (goes_on && rest->held) {
            ev->end.reason = DS_ENDED_LOST;
            ev->end.rc = DS_E_NOMEM;
        }
    }
    if (x->from)
        ds_cw_put_event(&x->from->out, x->theirs, ev, now_us);
    if (ev->kind == DS_EV_END && ev->end.last) {
        rest->q = x->q;
        rest->grammar = x->grammar;
        free_record(h, x);
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
        remains rest[BATCH];
        ds_handed left[BATCH];
        uint64_t now = ds_now_us();
        for (size_t i = 0; i < n; i++)
            find_left(h, &ev[i], &left[i]);
        pthread_mutex_lock(&h->mu);
        for (size_t i = 0; i < n; i++) {
            rest[n_over] = (remains){ 0 };
            route(h, &ev[i], &left[i], now, &rest[n_over]);
            n_over += rest[n_over].q != NULL;
        }
        tell_all(h);
        pthread_mutex_unlock(&h->mu);
        for (size_t i = 0; i < n_over; i++) {
            if (rest[i].held)
                h->o.handoff.end(h->o.handoff.ctx, rest[i].held);
            give_back(h, rest[i].q, rest[i].grammar);
        }
        if (now >= next_stats) {
            next_stats = now + (uint64_t)h->o.stats_ms * 1000;
            tell_stats(h);
        }
        bury(h);
    }
    return NULL;
}

/* ---- sequences that come from other engines ---- */

static bool is_canceled(ds_host *h, uint64_t id)
{
    bool canceled;

    pthread_mutex_lock(&h->mu);
    canceled = of_id(h, id)->canceled;
    pthread_mutex_unlock(&h->mu);
    return canceled;
}

static void take_one(taker *k, uint64_t id, const ds_gen_request *q)
{
    ds_host *h = k->h;
    const ds_host_handoff *o = &h->o.handoff;
    ds_end_reason reason = DS_ENDED_LOST;
    ds_err why = { 0 };
    uint64_t gen_id;
    ds_taken t;
    ds_rc rc = ds_take(&t, &(ds_take_opts){ .model = &h->o.self.model, .from = q->from, .most = o->most, .stop = &k->stop }, &why);

    if (rc == DS_OK) {
        reason = DS_ENDED_FAILED;
        if (is_canceled(h, id))
            rc = ds_fail(&why, DS_E_CANCELED, "canceled");
        else
            rc = o->come(o->ctx, q, t.p, t.n_record, t.n_blocks, &gen_id, &why);
        ds_take_end(&t, rc == DS_OK);
        if (rc != DS_OK)
            ds_taken_free(t.p, t.n_record + t.n_blocks);
    }
    if (rc != DS_OK) {
        end_record(h, id, rc == DS_E_CANCELED ? DS_ENDED_CANCELED : reason, rc == DS_E_CANCELED ? NULL : &why);
        return;
    }
    went(h, id, gen_id);
}

static void *take_sequences(void *arg)
{
    taker *k = arg;
    ds_host *h = k->h;
    const ds_gen_request *q;

    pthread_mutex_lock(&h->mu);
    for (;;) {
        while (!h->n_coming && !h->no_more)
            pthread_cond_wait(&h->more, &h->mu);
        if (!h->n_coming)
            break;
        k->id = h->coming[0];
        memmove(h->coming, h->coming + 1, --h->n_coming * sizeof *h->coming);
        record *x = of_id(h, k->id);
        q = ds_cw_request_get(x->q);
        atomic_store_explicit(&k->stop, x->canceled || h->stop, memory_order_relaxed);
        pthread_mutex_unlock(&h->mu);
        take_one(k, k->id, q);
        pthread_mutex_lock(&h->mu);
        k->id = 0;
    }
    pthread_mutex_unlock(&h->mu);
    return NULL;
}

static ds_rc start_takers(ds_host *h, ds_err *err)
{
    ds_rc rc = ds_tickets_create(&h->tickets, MAX_TICKETS, err);

    for (int i = 0; i < TAKERS && rc == DS_OK; i++) {
        h->takers[i].h = h;
        h->takers[i].runs = pthread_create(&h->takers[i].thread, NULL, take_sequences, &h->takers[i]) == 0;
        if (!h->takers[i].runs)
            rc = ds_fail(err, DS_E_IO, "a thread can't be started");
    }
    return rc;
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
    pthread_cond_init(&h->settled, NULL);
    pthread_cond_init(&h->more, NULL);
    rc = ds_addr_parse(&h->at, address, err);
    if (rc == DS_OK && (getrandom(&h->epoch, sizeof h->epoch, 0) != sizeof h->epoch || (h->wake = eventfd(0, EFD_CLOEXEC)) < 0))
        rc = ds_fail(err, DS_E_IO, "%s: %s", address, strerror(errno));
    h->epoch |= 1; /* 0 is nobody's */
    if (rc == DS_OK)
        rc = ds_addr_listen(&h->at, &h->listener, err);
    if (rc == DS_OK && o->handoff.begin)
        rc = start_takers(h, err);
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
    over = h->records.n_live == 0 && !(h->tickets && ds_tickets_n(h->tickets));
    pthread_mutex_unlock(&h->mu);
    return ds_gen_drain(h->gen) && over;
}

ds_host_stats ds_host_stat(ds_host *h)
{
    ds_host_stats s;

    pthread_mutex_lock(&h->mu);
    s = (ds_host_stats){ h->n_peers, h->records.n_live, h->tickets ? ds_tickets_n(h->tickets) : 0, h->accepted, h->refused };
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
    for (int i = 0; i < TAKERS; i++)
        atomic_store_explicit(&h->takers[i].stop, true, memory_order_relaxed);
    pthread_cond_broadcast(&h->waiting);
    pthread_mutex_unlock(&h->mu);
    for (uint32_t i = 0; i < h->n_admitting; i++) /* they may give the takers something to do */
        pthread_join(h->admitting[i], NULL);
    pthread_mutex_lock(&h->mu);
    h->no_more = true;
    pthread_cond_broadcast(&h->more);
    pthread_mutex_unlock(&h->mu);
    for (int i = 0; i < TAKERS; i++)
        if (h->takers[i].runs)
            pthread_join(h->takers[i].thread, NULL);
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
    ds_tickets_destroy(h->tickets);
    free(h->coming);
    ds_table_fini(&h->records);
    pthread_cond_destroy(&h->settled);
    pthread_cond_destroy(&h->more);
    pthread_cond_destroy(&h->waiting);
    pthread_mutex_destroy(&h->mu);
    free(h);
}
