/* The engine's outside: creation, requests in, events out, the loop's turn. */
#include <assert.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/create_internal.h"
#include "engine/engine_internal.h"

enum { DEADLINE_LOOK_US = 2000 };

/* ---- requests in --------------------------------------------------------------------------------------------------------------------- */

static ds_rc refuse(ds_engine *e, ds_rc rc)
{
    pthread_mutex_lock(&e->mu);
    if (rc == DS_E_AGAIN)
        e->stats.refused_busy++;
    else
        e->stats.refused_arg++;
    pthread_mutex_unlock(&e->mu);
    return rc;
}

static ds_rc room(ds_engine *e, ds_err *err) /* with mu */
{
    if (e->draining)
        return ds_fail(err, DS_E_AGAIN, "engine: draining, no new requests");
    if (e->n_free_index == 0)
        return ds_fail(err, DS_E_AGAIN, "engine: busy with %u requests", e->o.max_requests);
    return DS_OK;
}

ds_rc ds_engine_add(ds_engine *e, const ds_gen_request *q, uint64_t *id, ds_err *err)
{
    ds_eng_request *r;
    uint32_t index;
    ds_rc rc;

    *id = 0;
    pthread_mutex_lock(&e->mu);
    rc = room(e, err); /* before the work, and again after it */
    pthread_mutex_unlock(&e->mu);
    if (rc == DS_OK)
        rc = ds_eng_request_create(&r, e, q, err);
    if (rc != DS_OK)
        return refuse(e, rc);
    pthread_mutex_lock(&e->mu);
    rc = room(e, err);
    if (rc != DS_OK) {
        pthread_mutex_unlock(&e->mu);
        ds_eng_request_free(r);
        return refuse(e, rc);
    }
    index = e->free_index[--e->n_free_index];
    e->table[index] = r;
    *id = r->id = (uint64_t)++e->generation[index] << 32 | index;
    r->order = ++e->n_added;
    for (uint32_t i = 0; i < r->n_samples; i++)
        r->samples[i].order = r->order;
    if (e->in_tail)
        e->in_tail->next_in = r;
    else
        e->in_head = r;
    e->in_tail = r;
    e->stats.accepted++;
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->mu);
    return DS_OK;
}

static ds_eng_request *by_id(const ds_engine *e, uint64_t id) /* with mu */
{
    uint32_t index = (uint32_t)id;

    if (index >= e->o.max_requests || !e->table[index] || e->table[index]->id != id)
        return NULL;
    return e->table[index];
}

static void order(ds_engine *e, uint64_t id, bool cancel, uint32_t samples)
{
    ds_eng_request *r;

    pthread_mutex_lock(&e->mu);
    r = by_id(e, id);
    if (r) {
        r->cancel = r->cancel || cancel;
        r->finish_mask |= samples;
        if (!r->has_order) {
            r->has_order = true;
            r->next_order = e->order_head;
            e->order_head = r;
        }
        pthread_cond_signal(&e->work);
    }
    pthread_mutex_unlock(&e->mu);
}

void ds_engine_cancel(ds_engine *e, uint64_t id)
{
    order(e, id, true, 0);
}

void ds_engine_finish_sample(ds_engine *e, uint64_t id, uint32_t sample)
{
    if (sample < 32)
        order(e, id, false, 1u << sample);
}

bool ds_engine_drain(ds_engine *e)
{
    bool over;

    pthread_mutex_lock(&e->mu);
    e->draining = true;
    over = e->in_head == NULL;
    for (uint32_t i = 0; over && i < e->o.max_requests; i++)
        over = !e->table[i] || e->table[i]->all_gone; /* events of those may be left */
    pthread_mutex_unlock(&e->mu);
    return over;
}

/* ---- the loop's turn ----------------------------------------------------------------------------------------------------------------- */

static void accept_request(ds_engine *e, ds_eng_request *r)
{
    r->fork_pending = r->n_samples > 1 && r->n_prompt > 1;
    e->n_live += r->n_samples;
    e->n_deadlines += r->deadline_us != 0;
    for (uint32_t i = 0; i < r->n_samples; i++) {
        if (i > 0 && r->fork_pending)
            r->samples[i].state = S_HELD;
        else
            ds_eng_enqueue(e, &r->samples[i]);
    }
}

/* Under mu throughout: poll could free a request that an order still names. Cancelling is rare, and ds_eng_end is short. */
static void take_orders(ds_engine *e, uint64_t now_us)
{
    pthread_mutex_lock(&e->mu);
    for (ds_eng_request *r = e->in_head, *next; r; r = next) {
        next = r->next_in;
        accept_request(e, r);
    }
    e->in_head = e->in_tail = NULL;
    for (ds_eng_request *r = e->order_head; r; r = r->next_order) {
        r->has_order = false;
        for (uint32_t i = 0; i < r->n_samples; i++)
            if (r->cancel || (i < 32 && r->finish_mask >> i & 1))
                ds_eng_end(e, &r->samples[i], DS_ENDED_CANCELED, now_us);
        r->finish_mask = 0;
    }
    e->order_head = NULL;
    pthread_mutex_unlock(&e->mu);
}

static void deadlines(ds_engine *e, uint64_t now_us)
{
    if (e->n_deadlines == 0 || now_us < e->next_deadlines_us)
        return;
    e->next_deadlines_us = now_us + DEADLINE_LOOK_US;
    for (uint32_t i = 0; i < e->n_running; i++) {
        ds_eng_sample *s = e->running[i];
        if (s->req->deadline_us && now_us >= s->req->deadline_us)
            ds_eng_end(e, s, DS_ENDED_DEADLINE, now_us);
    }
    for (uint32_t l = 0; l < N_LEVELS; l++)
        for (ds_eng_sample *s = e->level_head[l], *next; s; s = next) {
            next = s->next;
            if (s->req->deadline_us && now_us >= s->req->deadline_us)
                ds_eng_end(e, s, DS_ENDED_DEADLINE, now_us);
        }
}

bool ds_engine_run(ds_engine *e)
{
    uint64_t now_us = ds_now_us();
    bool planned = false;

    e->now_us = now_us;
    take_orders(e, now_us);
    deadlines(e, now_us);
    if (e->submitted - e->done < DS_DEV_DEPTH)
        planned = ds_eng_plan_step(e, now_us);
    if (e->submitted - e->done == DS_DEV_DEPTH || (!planned && e->submitted > e->done)) {
        ds_eng_step *st = &e->step[(e->done + 1) % DS_DEV_DEPTH];
        ds_eng_publish(e); /* before a wait: starts and ends that are known */
        e->dev->fn->wait(e->dev, &st->dev);
        e->now_us = now_us = ds_now_us();
        ds_eng_finish_step(e, st, now_us);
    }
    if (e->submitted == e->done)
        ds_eng_settle(e, NULL);
    ds_eng_publish(e);
    e->was_empty = e->was_empty || e->n_live == 0;
    return e->n_live > 0;
}

static void *loop(void *arg)
{
    ds_engine *e = arg;

    for (;;) {
        bool more = ds_engine_run(e), stop;
        pthread_mutex_lock(&e->mu);
        while (!more && !e->stop && !e->in_head && !e->order_head)
            pthread_cond_wait(&e->work, &e->mu);
        stop = e->stop;
        pthread_mutex_unlock(&e->mu);
        if (stop)
            return NULL;
    }
}

ds_rc ds_engine_start(ds_engine *e, ds_err *err)
{
    int rc;

    assert(!e->threaded);
    rc = pthread_create(&e->thread, NULL, loop, e);
    if (rc != 0)
        return ds_fail(err, DS_E_IO, "engine: the loop's thread can't start: %s", strerror(rc));
    pthread_setname_np(e->thread, "ds-engine");
    e->threaded = true;
    return DS_OK;
}

static void cancel_all(ds_engine *e)
{
    pthread_mutex_lock(&e->mu);
    for (uint32_t i = 0; i < e->o.max_requests; i++)
        if (e->table[i]) {
            ds_eng_request *r = e->table[i];
            r->cancel = true;
            if (!r->has_order) {
                r->has_order = true;
                r->next_order = e->order_head;
                e->order_head = r;
            }
        }
    pthread_mutex_unlock(&e->mu);
}

void ds_engine_destroy(ds_engine *e)
{
    if (!e)
        return;
    if (e->threaded) {
        pthread_mutex_lock(&e->mu);
        e->stop = true;
        pthread_cond_signal(&e->work);
        pthread_mutex_unlock(&e->mu);
        pthread_join(e->thread, NULL);
    }
    if (e->dev && e->table) {
        cancel_all(e);
        while (ds_engine_run(e))
            ;
        assert(e->submitted == e->done || e->n_live == 0);
        while (e->done < e->submitted)
            ds_engine_run(e);
        for (uint32_t i = 0; i < e->o.max_requests; i++)
            ds_eng_request_free(e->table[i]);
    }
    ds_eng_free_tables(e);
}

/* ---- events out ---------------------------------------------------------------------------------------------------------------------- */

static void push_ready(ds_engine *e, ds_eng_request *r) /* with mu */
{
    if (r->is_ready)
        return;
    r->is_ready = true;
    r->next_ready = NULL;
    if (e->ready_tail)
        e->ready_tail->next_ready = r;
    else
        e->ready_head = r;
    e->ready_tail = r;
}

/* The loop and the reader are both done with it. */
static void forget(ds_engine *e, ds_eng_request *r) /* with mu */
{
    uint32_t index = (uint32_t)r->id;

    assert(!r->is_ready);
    for (ds_eng_request **p = &e->order_head; r->has_order; p = &(*p)->next_order)
        if (*p == r) {
            *p = r->next_order;
            break;
        }
    e->table[index] = NULL;
    e->free_index[e->n_free_index++] = index;
    ds_eng_request_free(r);
}

static bool all_read(const ds_eng_request *r)
{
    return r->all_gone && r->n_read_end == r->n_samples;
}

void ds_eng_publish(ds_engine *e)
{
    ds_eng_request *gone = NULL;
    uint64_t begin = ds_now_ns();
    void (*fn)(void *ctx), *ctx;
    bool wake;

    pthread_mutex_lock(&e->mu);
    fn = e->wake;
    ctx = e->wake_ctx;
    wake = e->ready_head == NULL;
    for (uint32_t i = 0; i < e->n_dirty; i++) {
        ds_eng_sample *s = e->dirty[i];
        ds_eng_request *r = s->req;
        bool end = s->ended && (s->state == S_GONE || !s->borrows);
        if ((s->admitted && !s->pub_start) || s->n_out != s->pub_out || (end && !s->pub_end))
            push_ready(e, r);
        if (s->pub_out == s->read_out)
            s->unread_us = begin / 1000;
        s->dirty = false;
        s->pub_start = s->admitted;
        s->pub_out = s->n_out;
        s->pub_end = end;
        if (r->n_gone == r->n_samples && !r->all_gone) {
            r->all_gone = true;
            e->n_deadlines -= r->deadline_us != 0;
            r->next_in = gone;
            gone = r;
        }
    }
    e->n_dirty = 0;
    for (ds_eng_request *r = gone, *next; r; r = next) { /* those that were read to the end already; the others go with their last event */
        next = r->next_in;
        if (all_read(r) && !r->is_ready)
            forget(e, r);
    }
    e->turn.host_publish_ns += ds_now_ns() - begin;
    ds_eng_count(e);
    wake = wake && e->ready_head != NULL;
    if (wake)
        pthread_cond_broadcast(&e->events);
    pthread_mutex_unlock(&e->mu);
    if (wake && fn)
        fn(ctx);
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
    ev->token.readable_us = s->unread_us;
    if (s->top)
        memcpy(ev->token.top, s->top + (size_t)i * s->dev.n_top, s->dev.n_top * sizeof *s->top);
}

/* What the reader hasn't had of a sample, at most cap. */
static size_t read_sample(ds_eng_sample *s, ds_event *ev, size_t cap)
{
    size_t n = 0;

    if (s->pub_start && !s->read_start && n < cap) {
        ev[n++] = s->start_event;
        s->read_start = true;
    }
    while (s->read_out < s->pub_out && n < cap)
        token_event(&ev[n++], s, s->read_out++);
    if (s->pub_end && !s->read_end && s->read_out == s->pub_out && n < cap) {
        s->read_end = true;
        ev[n] = s->end_event;
        ev[n++].end.last = ++s->req->n_read_end == s->req->n_samples;
    }
    return n;
}

size_t ds_engine_poll(ds_engine *e, ds_event *ev, size_t cap)
{
    size_t n = 0;

    pthread_mutex_lock(&e->mu);
    while (e->ready_head && n < cap) {
        ds_eng_request *r = e->ready_head;
        for (uint32_t i = 0; i < r->n_samples && n < cap; i++)
            n += read_sample(&r->samples[i], ev + n, cap - n);
        if (n == cap)
            break; /* it may have more; if not, the next call finds nothing in it */
        e->ready_head = r->next_ready;
        if (!e->ready_head)
            e->ready_tail = NULL;
        r->is_ready = false;
        if (all_read(r))
            forget(e, r);
    }
    pthread_mutex_unlock(&e->mu);
    return n;
}

void ds_engine_wake_by(ds_engine *e, void (*wake)(void *ctx), void *ctx)
{
    pthread_mutex_lock(&e->mu);
    e->wake = wake;
    e->wake_ctx = ctx;
    pthread_mutex_unlock(&e->mu);
}

bool ds_engine_wait(ds_engine *e, uint32_t timeout_ms)
{
    struct timespec t;
    bool there;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += timeout_ms / 1000;
    t.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&e->mu);
    while (!e->ready_head && timeout_ms && pthread_cond_timedwait(&e->events, &e->mu, &t) == 0)
        ;
    there = e->ready_head != NULL;
    pthread_mutex_unlock(&e->mu);
    return there;
}
