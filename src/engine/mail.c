#include "engine/mail.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/engine_internal.h"

ds_rc ds_mail_init(ds_mail *m, uint32_t max_requests, ds_err *err)
{
    pthread_condattr_t attr;

    *m = (ds_mail){ .max_requests = max_requests };
    m->generation = calloc(max_requests, sizeof *m->generation);
    m->free_index = calloc(max_requests, sizeof *m->free_index);
    m->table = calloc(max_requests, sizeof(ds_eng_request *));
    if (!m->generation || !m->free_index || !m->table) {
        free(m->table);
        m->table = NULL;
        ds_mail_fini(m);
        return ds_fail(err, DS_E_NOMEM, "engine: out of memory for %u requests", max_requests);
    }
    for (; m->n_free_index < max_requests; m->n_free_index++)
        m->free_index[m->n_free_index] = max_requests - 1 - m->n_free_index;
    pthread_mutex_init(&m->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&m->work, &attr);
    pthread_cond_init(&m->events, &attr);
    pthread_condattr_destroy(&attr);
    return DS_OK;
}

void ds_mail_fini(ds_mail *m)
{
    if (m->table) { /* it is whole */
        for (uint32_t i = 0; i < m->max_requests; i++)
            ds_eng_request_free(m->table[i]);
        pthread_mutex_destroy(&m->mu);
        pthread_cond_destroy(&m->work);
        pthread_cond_destroy(&m->events);
    }
    free(m->generation);
    free(m->free_index);
    free(m->table);
    *m = (ds_mail){ 0 };
}

static struct timespec in_us(uint64_t us)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)(us / 1000000);
    t.tv_nsec += (long)(us % 1000000) * 1000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

/* ---- in ---------------------------------------------------------------------------------------------------------- */

static ds_rc room(const ds_mail *m, ds_err *err) /* with mu */
{
    if (m->draining)
        return ds_fail(err, DS_E_AGAIN, "engine: draining, no new requests");
    if (m->stats.lost)
        return ds_fail(err, DS_E_DEVICE, "engine: its device failed");
    if (m->n_free_index == 0)
        return ds_fail(err, DS_E_AGAIN, "engine: busy with %u requests", m->max_requests);
    return DS_OK;
}

ds_rc ds_mail_room(ds_mail *m, ds_err *err)
{
    ds_rc rc;

    pthread_mutex_lock(&m->mu);
    rc = room(m, err);
    pthread_mutex_unlock(&m->mu);
    return rc;
}

void ds_mail_refused(ds_mail *m, ds_rc rc)
{
    pthread_mutex_lock(&m->mu);
    if (rc == DS_E_AGAIN)
        m->stats.refused_busy++;
    else
        m->stats.refused_arg++;
    pthread_mutex_unlock(&m->mu);
}

ds_rc ds_mail_put(ds_mail *m, ds_eng_request *r, uint64_t *id, ds_err *err)
{
    uint32_t index;
    ds_rc rc;

    pthread_mutex_lock(&m->mu);
    rc = room(m, err);
    if (rc != DS_OK) {
        pthread_mutex_unlock(&m->mu);
        return rc;
    }
    index = m->free_index[--m->n_free_index];
    m->table[index] = r;
    *id = r->id = (uint64_t)++m->generation[index] << 32 | index;
    r->order = ++m->n_added;
    for (uint32_t i = 0; i < r->n_samples; i++)
        r->samples[i].order = r->order;
    if (m->in_tail)
        m->in_tail->mail.next_in = r;
    else
        m->in_head = r;
    m->in_tail = r;
    m->stats.accepted++;
    pthread_cond_signal(&m->work);
    pthread_mutex_unlock(&m->mu);
    return DS_OK;
}

static void push_order(ds_mail *m, ds_eng_request *r) /* with mu */
{
    if (r->mail.has_order)
        return;
    r->mail.has_order = true;
    r->mail.next_order = m->order_head;
    m->order_head = r;
}

void ds_mail_order(ds_mail *m, uint64_t id, bool cancel, uint32_t samples)
{
    uint32_t index = (uint32_t)id;

    pthread_mutex_lock(&m->mu);
    if (index < m->max_requests && m->table[index] && m->table[index]->id == id) {
        ds_eng_request *r = m->table[index];
        r->mail.cancel = r->mail.cancel || cancel;
        r->mail.finish_mask |= samples;
        push_order(m, r);
        for (uint32_t i = 0; cancel && i < r->n_samples; i++) /* the device may act on it at once; the loop takes orders behind each step */
            atomic_store_explicit(&r->samples[i].dev.stopped, true, memory_order_relaxed);
        pthread_cond_signal(&m->work);
    }
    pthread_mutex_unlock(&m->mu);
}

static ds_rc export_of(ds_mail *m, uint64_t id, ds_eng_request **out, ds_err *err) /* with mu */
{
    uint32_t index = (uint32_t)id;
    ds_eng_request *r = index < m->max_requests ? m->table[index] : NULL;

    if (!r || r->id != id || r->mail.all_gone)
        return ds_fail(err, DS_E_ARG, "export: there is no such request");
    if (r->n_samples > 1 || r->prompt_lp)
        return ds_fail(err, DS_E_ARG, "export: of one sample, and without log-probabilities of the prompt");
    if (r->mail.exported)
        return ds_fail(err, DS_E_ARG, "export: the request is exported already");
    *out = r;
    return DS_OK;
}

ds_rc ds_mail_export_ask(ds_mail *m, uint64_t id, ds_mail_export_size *size, ds_err *err)
{
    ds_eng_request *r = NULL;
    ds_rc rc;

    pthread_mutex_lock(&m->mu);
    rc = export_of(m, id, &r, err);
    if (rc == DS_OK)
        *size = (ds_mail_export_size){ r->n_prompt, r->samples[0].cap_out, r->samples[0].cap_blocks };
    pthread_mutex_unlock(&m->mu);
    return rc;
}

ds_rc ds_mail_export(ds_mail *m, uint64_t id, ds_engine_export *x, ds_err *err)
{
    ds_eng_request *r = NULL;
    ds_rc rc;

    pthread_mutex_lock(&m->mu);
    rc = export_of(m, id, &r, err);
    if (rc == DS_OK) {
        r->mail.exported = true;
        r->mail.export = x;
        push_order(m, r);
        pthread_cond_signal(&m->work);
    }
    pthread_mutex_unlock(&m->mu);
    return rc;
}

/* Nobody will answer it: the loop is done with the request. */
static void forget_export(ds_eng_request *r) /* with mu */
{
    if (r->mail.export)
        ds_eng_export_lost(r->mail.export);
    r->mail.export = NULL;
}

void ds_mail_cancel_all(ds_mail *m)
{
    pthread_mutex_lock(&m->mu);
    for (uint32_t i = 0; i < m->max_requests; i++)
        if (m->table[i]) {
            m->table[i]->mail.cancel = true;
            push_order(m, m->table[i]);
        }
    pthread_mutex_unlock(&m->mu);
}

bool ds_mail_drain(ds_mail *m)
{
    bool over;

    pthread_mutex_lock(&m->mu);
    m->draining = true;
    over = m->in_head == NULL;
    for (uint32_t i = 0; over && i < m->max_requests; i++)
        over = !m->table[i] || m->table[i]->mail.all_gone; /* events of those may be left */
    pthread_mutex_unlock(&m->mu);
    return over;
}

void ds_mail_stop(ds_mail *m)
{
    pthread_mutex_lock(&m->mu);
    m->stop = true;
    pthread_cond_signal(&m->work);
    pthread_mutex_unlock(&m->mu);
}

void ds_mail_take(ds_mail *m, ds_mail_orders *out)
{
    ds_eng_request **came = &out->came;

    out->ordered = NULL;
    pthread_mutex_lock(&m->mu);
    for (ds_eng_request *r = m->in_head; r; r = r->mail.next_in) {
        *came = r;
        came = &r->next_came;
    }
    *came = NULL;
    out->n_kicks = m->n_kicks;
    m->in_head = m->in_tail = NULL;
    for (ds_eng_request *r = m->order_head; r; r = r->mail.next_order) {
        r->mail.has_order = false;
        if (r->mail.all_gone) {
            forget_export(r);
            continue; /* poll may free it at any time */
        }
        r->export_came = r->mail.export;
        r->mail.export = NULL;
        r->to_end = r->mail.cancel ? UINT32_MAX : r->mail.finish_mask;
        r->mail.finish_mask = 0;
        r->next_ordered = out->ordered;
        out->ordered = r;
    }
    m->order_head = NULL;
    pthread_mutex_unlock(&m->mu);
}

void ds_mail_kick(ds_mail *m, bool counts)
{
    pthread_mutex_lock(&m->mu);
    m->kicked = true;
    m->n_kicks += counts;
    pthread_cond_signal(&m->work);
    pthread_mutex_unlock(&m->mu);
}

bool ds_mail_go_on(ds_mail *m, uint32_t sleep_us)
{
    struct timespec until;
    bool go_on;
    int rc = 0;

    if (sleep_us && sleep_us != DS_MAIL_FOREVER)
        until = in_us(sleep_us);
    pthread_mutex_lock(&m->mu);
    while (sleep_us && rc == 0 && !m->stop && !m->kicked && !m->in_head && !m->order_head)
        rc = sleep_us == DS_MAIL_FOREVER ? pthread_cond_wait(&m->work, &m->mu) : pthread_cond_timedwait(&m->work, &m->mu, &until);
    m->kicked = false;
    go_on = !m->stop;
    pthread_mutex_unlock(&m->mu);
    return go_on;
}

/* ---- out --------------------------------------------------------------------------------------------------------- */

static void push_ready(ds_mail *m, ds_eng_request *r) /* with mu */
{
    if (r->mail.is_ready)
        return;
    r->mail.is_ready = true;
    r->mail.next_ready = NULL;
    if (m->ready_tail)
        m->ready_tail->mail.next_ready = r;
    else
        m->ready_head = r;
    m->ready_tail = r;
}

/* The loop and the reader are both done with it. */
static void forget(ds_mail *m, ds_eng_request *r) /* with mu */
{
    uint32_t index = (uint32_t)r->id;

    assert(!r->mail.is_ready);
    for (ds_eng_request **p = &m->order_head; r->mail.has_order; p = &(*p)->mail.next_order)
        if (*p == r) {
            *p = r->mail.next_order;
            break;
        }
    forget_export(r);
    m->table[index] = NULL;
    m->free_index[m->n_free_index++] = index;
    ds_eng_request_free(r);
}

static bool all_read(const ds_eng_request *r)
{
    return r->mail.all_gone && r->mail.n_read_end == r->n_samples;
}

/* The totals and times are one run of 64-bit counters, from `accepted` to the end; in front of them stand the
 * gauges. */
_Static_assert((sizeof(ds_gen_stats) - offsetof(ds_gen_stats, accepted)) % sizeof(uint64_t) == 0, "only counters stand there");

static void count(ds_mail *m, ds_gen_stats *turn) /* with mu */
{
    uint64_t *to = &m->stats.accepted, *from = &turn->accepted;
    size_t n = (sizeof *turn - offsetof(ds_gen_stats, accepted)) / sizeof(uint64_t);

    memcpy(&m->stats, turn, offsetof(ds_gen_stats, accepted));
    m->stats.requests = m->max_requests - m->n_free_index;
    for (size_t i = 0; i < n; i++)
        to[i] += from[i];
    memset(from, 0, n * sizeof *from);
}

ds_mail_waker ds_mail_publish(ds_mail *m, ds_eng_sample *const *samples, uint32_t n, ds_gen_stats *turn, uint64_t now_us)
{
    ds_mail_waker who = { 0 };
    ds_eng_request *gone = NULL;
    bool wake;

    pthread_mutex_lock(&m->mu);
    wake = m->ready_head == NULL;
    for (uint32_t i = 0; i < n; i++) {
        ds_eng_sample *s = samples[i];
        ds_eng_request *r = s->req;
        bool end = s->ended && (s->state == S_GONE || !s->borrows);
        if ((s->admitted && !s->mail.start) || (s->scored && !s->mail.scored) || s->n_out != s->mail.out || (end && !s->mail.end))
            push_ready(m, r);
        if (s->mail.out == s->mail.read_out)
            s->mail.unread_us = now_us;
        s->dirty = false;
        s->mail.start = s->admitted;
        s->mail.scored = s->scored;
        s->mail.out = s->n_out;
        s->mail.end = end;
        if (r->n_gone == r->n_samples && !r->mail.all_gone) {
            r->mail.all_gone = true;
            r->mail.next_in = gone;
            gone = r;
        }
    }
    for (ds_eng_request *r = gone, *next; r; r = next) { /* those that were read to the end already; the others go with their last event */
        next = r->mail.next_in;
        if (all_read(r) && !r->mail.is_ready)
            forget(m, r);
    }
    count(m, turn);
    wake = wake && m->ready_head != NULL;
    if (wake)
        who = (ds_mail_waker){ true, m->waker.fn, m->waker.ctx };
    pthread_mutex_unlock(&m->mu);
    return who;
}

void ds_mail_wake(ds_mail *m, ds_mail_waker who)
{
    if (who.news)
        pthread_cond_broadcast(&m->events);
    if (who.fn)
        who.fn(who.ctx);
}

static void token_event(ds_event *ev, const ds_eng_sample *s, uint32_t i)
{
    ev->kind = DS_EV_TOKEN;
    ev->sample = s->index;
    ev->request = s->req->id;
    ev->cookie = s->req->cookie;
    ev->token.id = s->out[i];
    ev->token.index = i;
    ev->token.held_bytes = s->held ? s->held[i] : 0;
    ev->token.logprob = s->lp ? s->lp[i] : 0.0f;
    ev->token.n_top = s->dev.n_top;
    ev->token.readable_us = s->mail.unread_us;
    if (s->top)
        memcpy(ev->token.top, s->top + (size_t)i * s->dev.n_top, s->dev.n_top * sizeof *s->top);
}

static void prompt_event(ds_event *ev, const ds_eng_sample *s, uint32_t pos)
{
    const ds_eng_request *r = s->req;
    bool image = r->embedding && r->embedding[pos];

    ev->kind = DS_EV_PROMPT;
    ev->sample = s->index;
    ev->request = r->id;
    ev->cookie = r->cookie;
    ev->token.id = r->prompt[pos];
    ev->token.index = pos;
    ev->token.held_bytes = 0;
    ev->token.logprob = image ? NAN : r->prompt_lp[pos];
    ev->token.rank = r->prompt_rank[pos];
    ev->token.n_top = image ? 0 : s->dev.n_prompt_top;
    ev->token.readable_us = s->mail.unread_us;
    if (ev->token.n_top)
        memcpy(ev->token.top, r->prompt_top + (size_t)pos * ev->token.n_top, ev->token.n_top * sizeof *r->prompt_top);
}

/* What the reader hasn't had of a sample, at most cap. */
static size_t read_sample(ds_eng_sample *s, ds_event *ev, size_t cap)
{
    size_t n = 0;

    if (s->mail.start && !s->mail.read_start && n < cap) {
        ev[n++] = s->start_event;
        s->mail.read_start = true;
    }
    while (s->mail.scored && s->mail.read_prompt + 1 < s->req->n_prompt && n < cap)
        prompt_event(&ev[n++], s, ++s->mail.read_prompt);
    while (s->mail.read_out < s->mail.out && n < cap)
        token_event(&ev[n++], s, s->mail.read_out++);
    if (s->mail.end && !s->mail.read_end && s->mail.read_out == s->mail.out && n < cap) {
        s->mail.read_end = true;
        ev[n] = s->end_event;
        ev[n++].end.last = ++s->req->mail.n_read_end == s->req->n_samples;
    }
    return n;
}

size_t ds_mail_poll(ds_mail *m, ds_event *ev, size_t cap)
{
    size_t n = 0;

    pthread_mutex_lock(&m->mu);
    while (m->ready_head && n < cap) {
        ds_eng_request *r = m->ready_head;
        for (uint32_t i = 0; i < r->n_samples && n < cap; i++)
            n += read_sample(&r->samples[i], ev + n, cap - n);
        if (n == cap)
            break; /* it may have more; if not, the next call finds nothing in it */
        m->ready_head = r->mail.next_ready;
        if (!m->ready_head)
            m->ready_tail = NULL;
        r->mail.is_ready = false;
        if (all_read(r))
            forget(m, r);
    }
    pthread_mutex_unlock(&m->mu);
    return n;
}

void ds_mail_wake_by(ds_mail *m, void (*wake)(void *ctx), void *ctx)
{
    pthread_mutex_lock(&m->mu);
    m->waker = (ds_mail_waker){ .fn = wake, .ctx = ctx };
    pthread_mutex_unlock(&m->mu);
}

bool ds_mail_wait(ds_mail *m, uint32_t timeout_ms)
{
    struct timespec t = in_us(1000ull * timeout_ms);
    bool there;

    pthread_mutex_lock(&m->mu);
    while (!m->ready_head && timeout_ms && pthread_cond_timedwait(&m->events, &m->mu, &t) == 0)
        ;
    there = m->ready_head != NULL;
    pthread_mutex_unlock(&m->mu);
    return there;
}

void ds_mail_stats(ds_mail *m, ds_gen_stats *out)
{
    pthread_mutex_lock(&m->mu);
    *out = m->stats;
    pthread_mutex_unlock(&m->mu);
}
