/* The engine's outside: requests in, events out, the loop's turn. */
#include <assert.h>
#include <string.h>

#include "engine/create_internal.h"
#include "engine/engine_internal.h"

enum { DEADLINE_LOOK_US = 2000, FLUSH_TRIES = 500 };

/* ---- clients ----------------------------------------------------------------------------------------------------- */

ds_rc ds_engine_add(ds_engine *e, const ds_gen_request *q, uint64_t *id, ds_err *err)
{
    ds_eng_request *r = NULL;
    ds_rc rc = ds_mail_room(&e->mail, err); /* before the work, and again after it */

    *id = 0;
    if (rc == DS_OK)
        rc = ds_eng_request_create(&r, e, q, err);
    if (rc == DS_OK)
        rc = ds_mail_put(&e->mail, r, id, err);
    if (rc != DS_OK) {
        ds_eng_request_free(r);
        ds_mail_refused(&e->mail, rc);
    }
    return rc;
}

void ds_engine_cancel(ds_engine *e, uint64_t id)
{
    ds_mail_order(&e->mail, id, true, 0);
}

void ds_engine_finish_sample(ds_engine *e, uint64_t id, uint32_t sample)
{
    if (sample < 32)
        ds_mail_order(&e->mail, id, false, 1u << sample);
}

bool ds_engine_drain(ds_engine *e)
{
    return ds_mail_drain(&e->mail);
}

size_t ds_engine_poll(ds_engine *e, ds_event *ev, size_t cap)
{
    return ds_mail_poll(&e->mail, ev, cap);
}

bool ds_engine_wait(ds_engine *e, uint32_t timeout_ms)
{
    return ds_mail_wait(&e->mail, timeout_ms);
}

void ds_engine_wake_by(ds_engine *e, void (*wake)(void *ctx), void *ctx)
{
    ds_mail_wake_by(&e->mail, wake, ctx);
}

void ds_engine_kick(ds_engine *e)
{
    ds_mail_kick(&e->mail, true);
}

void ds_engine_store_done(ds_engine *e, uint64_t ticket, const ds_store_got *blocks, uint32_t n, const ds_store_got *state)
{
    ds_fetches_done(&e->loop.fetches, ticket, blocks, n, state);
    ds_mail_kick(&e->mail, false);
}

void ds_engine_stats_get(ds_engine *e, ds_gen_stats *out)
{
    ds_mail_stats(&e->mail, out);
}

/* ---- the loop's turn --------------------------------------------------------------------------------------------- */

static void accept_request(ds_eng_loop *e, ds_eng_request *r)
{
    r->fork_pending = r->n_samples > 1 && r->n_prompt > 1;
    e->n_live += r->n_samples;
    e->n_deadlines += r->deadline_us != 0;
    if (r->samples[0].admitted) { /* imported, or goes on */
        r->samples[0].start_event.request = r->id;
        ds_eng_mark(e, &r->samples[0]);
    }
    for (uint32_t i = 0; i < r->n_samples; i++) {
        if (i > 0 && r->fork_pending)
            r->samples[i].state = S_HELD;
        else
            ds_eng_enqueue(e, &r->samples[i]);
    }
    if (r->samples[0].admitted)
        ds_eng_take_back(e, &r->samples[0], e->now_us);
}

static void take_orders(ds_eng_loop *e, ds_mail *mail)
{
    ds_mail_orders in;

    ds_mail_take(mail, &in);
    e->n_kicks = in.n_kicks;
    for (ds_eng_request *r = in.came; r; r = r->next_came)
        accept_request(e, r);
    for (ds_eng_request *r = in.ordered; r; r = r->next_ordered) {
        if (r->export_came) {
            r->export = r->export_came;
            r->export_came = NULL;
            ds_eng_export_came(e, r);
        }
        for (uint32_t i = 0; i < r->n_samples; i++)
            if (r->to_end >> i & 1)
                ds_eng_end(e, &r->samples[i], DS_ENDED_CANCELED, e->now_us);
    }
}

static void deadlines(ds_eng_loop *e, uint64_t now_us)
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

static void publish(ds_engine *e)
{
    ds_eng_loop *l = &e->loop;
    uint64_t begin = ds_eng_now_ns(&e->o);
    ds_mail_waker waker;

    ds_eng_gauges(l);
    waker = ds_mail_publish(&e->mail, l->dirty, l->n_dirty, &l->turn, begin / 1000);
    l->n_dirty = 0;
    l->turn.host_publish_ns = ds_eng_now_ns(&e->o) - begin; /* counted with the next turn; without waking anybody */
    ds_mail_wake(&e->mail, waker);
}

bool ds_engine_turn(ds_engine *e)
{
    ds_eng_loop *l = &e->loop;
    bool planned = false;

    l->now_us = ds_eng_now_us(&e->o);
    take_orders(l, &e->mail);
    deadlines(l, l->now_us);
    if (l->submitted - l->done < DS_DEV_DEPTH)
        planned = ds_eng_plan_step(l, l->now_us);
    if (l->submitted - l->done == DS_DEV_DEPTH || (!planned && l->submitted > l->done)) {
        ds_eng_step *st = &l->step[(l->done + 1) % DS_DEV_DEPTH];
        publish(e); /* before a wait: starts and ends that are known */
        e->dev->fn->wait(e->dev, &st->dev);
        l->now_us = ds_eng_now_us(&e->o);
        take_orders(l, &e->mail); /* before its results: whom a cancel stopped has ended by then */
        ds_eng_finish_step(l, st, l->now_us);
        planned = true;
    }
    l->idle = !planned && l->submitted == l->done;
    if (l->submitted == l->done)
        ds_eng_settle(l, NULL);
    publish(e);
    l->was_empty = l->was_empty || l->n_live == 0;
    return l->n_live > 0 || l->done < l->submitted;
}

static void *loop(void *arg)
{
    ds_engine *e = arg;
    uint32_t sleep_us;

    do { /* who only waits for the store looks at deadlines now and then */
        bool more = ds_engine_turn(e);
        sleep_us = !e->loop.idle ? 0 : more ? DEADLINE_LOOK_US : DS_MAIL_FOREVER;
    } while (ds_mail_go_on(&e->mail, sleep_us));
    return NULL;
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

/* What is committed and wasn't saved yet has a last chance, as long as the store takes it. */
static void flush_saves(ds_engine *e)
{
    ds_eng_loop *l = &e->loop;

    for (int tries = 0; l->saves.n > 0 && tries < FLUSH_TRIES; tries++) {
        while (ds_engine_turn(e))
            ;
        if (l->saves.later)
            e->o.clock.sleep_until_ns(e->o.clock.ctx, ds_eng_now_ns(&e->o) + 1000ull * DEADLINE_LOOK_US);
    }
}

void ds_engine_destroy(ds_engine *e)
{
    if (!e)
        return;
    if (e->threaded) {
        ds_mail_stop(&e->mail);
        pthread_join(e->thread, NULL);
    }
    ds_mail_cancel_all(&e->mail);
    while (ds_engine_turn(e))
        ;
    flush_saves(e);
    ds_eng_free_tables(e);
}
