/* Several generators as one. Each request goes to the part with the least work ahead; what it is told and what it
 * says is the same as from one.
 *
 * A record stands for each request between add and its last event. Its place and its generation make the id that the
 * caller knows, and the cookie that the part knows. Work ahead is summed over the records at each add, so that it
 * cannot drift from what is there. */
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/err.h"
#include "base/none.h"
#include "base/table.h"
#include "gen/many_internal.h"

enum {
    OUTPUT_TOKENS = 256, /* of an answer, as long as none has ended */
    OUTPUT_WEIGHT = 16,  /* the mean of answers' lengths is one over about so many of them */
    FINISH_SAMPLES = 32, /* more than an engine computes of one request */
};

typedef struct {
    ds_record at;
    uint64_t cookie, part_id;
    uint32_t part;
    bool known; /* part_id is */
    /* orders that came before it was */
    bool cancel;
    uint32_t finish;
    /* work ahead */
    bool started;
    uint32_t prompt;  /* tokens to compute before the first of the answer, as far as it is known */
    uint32_t samples; /* not ended */
    uint32_t expect;  /* tokens of each sample's answer */
    uint64_t n_out;   /* tokens that came of those samples */
} record;

/* A place for a part. Who calls a function of it is `inside` meanwhile, so that none goes under a caller. */
typedef struct {
    ds_gen g;
    bool used, leaves; /* leaves: takes nothing new */
    uint32_t inside;
} slot;

struct ds_gen_many {
    /* [poll] by whoever polls */
    uint32_t first; /* part that is asked first, in turns */
    /* [mu] no function of a part is called with it, and no wake */
    pthread_mutex_t mu;
    pthread_cond_t woken;
    slot slots[DS_GEN_MANY_MAX];
    uint32_t n; /* places up to the last that was ever used */
    ds_table records;
    uint32_t output; /* mean tokens of an answer */
    uint64_t n_wakes;
    void (*wake)(void *ctx), *wake_ctx;
};

/* ---- parts ---- */

/* With mu. */
static ds_gen enter_locked(ds_gen_many *m, uint32_t i)
{
    m->slots[i].inside++;
    return m->slots[i].g;
}

/* False: there is no part at that place. */
static bool enter(ds_gen_many *m, uint32_t i, ds_gen *part)
{
    bool there;

    pthread_mutex_lock(&m->mu);
    there = i < m->n && m->slots[i].used;
    if (there)
        *part = enter_locked(m, i);
    pthread_mutex_unlock(&m->mu);
    return there;
}

static void leave(ds_gen_many *m, uint32_t i)
{
    pthread_mutex_lock(&m->mu);
    m->slots[i].inside--;
    pthread_mutex_unlock(&m->mu);
}

static uint32_t n_slots(ds_gen_many *m)
{
    uint32_t n;

    pthread_mutex_lock(&m->mu);
    n = m->n;
    pthread_mutex_unlock(&m->mu);
    return n;
}

/* ---- records: with mu ---- */

static record *of_id(ds_gen_many *m, uint64_t id)
{
    return ds_table_get(&m->records, id);
}

static record *take_record(ds_gen_many *m, const ds_gen_request *q)
{
    record *r = ds_table_take(&m->records);

    if (!r)
        return NULL;
    r->cookie = q->cookie;
    r->prompt = q->n_prompt;
    r->samples = q->n ? q->n : 1;
    r->expect = q->max_tokens < m->output ? q->max_tokens : m->output;
    return r;
}

/* Tokens yet to be computed. A prompt's and an answer's count alike; a sample that is longer than expected has one
 * more to come. */
static uint64_t work(const record *r)
{
    uint64_t all = (uint64_t)r->samples * r->expect;

    return r->prompt + (all > r->n_out + r->samples ? all - r->n_out : r->samples);
}

/* The part with the least work ahead of those whose bit isn't in `tried`; the first of equals. DS_NONE: all were
 * tried. */
static uint32_t choose(const ds_gen_many *m, uint64_t tried)
{
    uint64_t ahead[DS_GEN_MANY_MAX] = { 0 };
    uint32_t best = DS_NONE;

    for (const record *r = ds_table_next(&m->records, NULL); r; r = ds_table_next(&m->records, r))
        ahead[r->part] += work(r);
    for (uint32_t i = 0; i < m->n; i++)
        if (m->slots[i].used && !m->slots[i].leaves && !(tried >> i & 1) && (best == DS_NONE || ahead[i] < ahead[best]))
            best = i;
    return best;
}

/* ---- requests in ---- */

/* The part has it: its id is known, and what was ordered meanwhile is passed on. All events of it may have been
 * polled already. */
static void know(ds_gen_many *m, uint64_t id, ds_gen part, uint64_t part_id)
{
    bool cancel = false;
    uint32_t finish = 0;
    record *r;

    pthread_mutex_lock(&m->mu);
    r = of_id(m, id);
    if (r) {
        r->known = true;
        r->part_id = part_id;
        cancel = r->cancel;
        finish = r->finish;
    }
    pthread_mutex_unlock(&m->mu);
    if (cancel)
        ds_gen_cancel(part, part_id);
    for (uint32_t i = 0; i < FINISH_SAMPLES && !cancel; i++)
        if (finish >> i & 1)
            ds_gen_finish_sample(part, part_id, i);
}

/* A part that is full, or gone, took nothing: another may. What is wrong with a request is wrong everywhere. */
static ds_rc add(void *h, const ds_gen_request *q, uint64_t *id, ds_err *err)
{
    ds_gen_many *m = h;
    ds_gen_request mine = *q;
    uint64_t tried = 0, part_id;
    uint32_t part;
    ds_gen g = { NULL, NULL };
    ds_rc rc = DS_OK, answer = DS_OK;
    record *r;

    *id = 0;
    pthread_mutex_lock(&m->mu);
    part = choose(m, 0);
    r = part == DS_NONE ? NULL : take_record(m, q);
    if (r) {
        r->part = part;
        mine.cookie = r->at.id;
        g = enter_locked(m, part);
    }
    pthread_mutex_unlock(&m->mu);
    if (part == DS_NONE)
        return ds_fail(err, DS_E_IO, "there is no engine");
    if (!r)
        return ds_fail(err, DS_E_NOMEM, "out of memory for a request");
    for (;;) {
        ds_err why = { 0 };
        rc = ds_gen_add(g, &mine, &part_id, &why);
        if (rc == DS_OK) {
            know(m, mine.cookie, g, part_id);
            leave(m, part);
            *id = mine.cookie;
            return DS_OK;
        }
        if (answer != DS_E_AGAIN) { /* a full one will have room again: that is what the caller should hear */
            answer = rc;
            if (err)
                *err = why;
        }
        tried |= UINT64_C(1) << part;
        pthread_mutex_lock(&m->mu);
        m->slots[part].inside--;
        r = of_id(m, mine.cookie);
        part = rc == DS_E_AGAIN || rc == DS_E_IO ? choose(m, tried) : DS_NONE;
        if (part == DS_NONE) {
            ds_table_give(&m->records, r);
        } else {
            r->part = part;
            g = enter_locked(m, part);
        }
        pthread_mutex_unlock(&m->mu);
        if (part == DS_NONE)
            return rc == DS_E_AGAIN || rc == DS_E_IO ? answer : rc;
    }
}

/* Where an order goes: the part is entered. False: the request is gone, or the order is kept until its part's id is
 * known. */
static bool order_goes(ds_gen_many *m, uint64_t id, bool cancel, uint32_t finish, ds_gen *part, uint32_t *at, uint64_t *part_id)
{
    bool goes;
    record *r;

    pthread_mutex_lock(&m->mu);
    r = of_id(m, id);
    goes = r && r->known;
    if (goes) {
        *at = r->part;
        *part = enter_locked(m, r->part);
        *part_id = r->part_id;
    } else if (r) {
        r->cancel = r->cancel || cancel;
        r->finish |= finish;
    }
    pthread_mutex_unlock(&m->mu);
    return goes;
}

static void cancel(void *h, uint64_t id)
{
    uint64_t part_id;
    uint32_t at;
    ds_gen part;

    if (order_goes(h, id, true, 0, &part, &at, &part_id)) {
        ds_gen_cancel(part, part_id);
        leave(h, at);
    }
}

static void finish_sample(void *h, uint64_t id, uint32_t sample)
{
    uint64_t part_id;
    uint32_t at;
    ds_gen part;

    if (sample < FINISH_SAMPLES && order_goes(h, id, false, UINT32_C(1) << sample, &part, &at, &part_id)) {
        ds_gen_finish_sample(part, part_id, sample);
        leave(h, at);
    }
}

/* ---- events out ---- */

static void note_end(ds_gen_many *m, record *r, const ds_event *ev)
{
    uint32_t n = ev->end.n_tokens;

    if (ev->end.reason <= DS_ENDED_LENGTH) {
        int64_t off = ((int64_t)n - (int64_t)m->output) / OUTPUT_WEIGHT;
        m->output = (uint32_t)((int64_t)m->output + (off ? off : n > m->output ? 1 : n < m->output && m->output > 1 ? -1 : 0));
    }
    r->samples -= r->samples > 0;
    r->n_out -= n < r->n_out ? n : r->n_out;
}

/* With mu. A part's event becomes ours. */
static void translate(ds_gen_many *m, ds_event *ev)
{
    record *r = of_id(m, ev->cookie);

    assert(r);
    ev->request = r->at.id;
    ev->cookie = r->cookie;
    switch (ev->kind) {
    case DS_EV_START:
        if (!r->started)
            r->prompt = ev->start.n_prompt - ev->start.cached + ev->start.replayed;
        r->started = true;
        break;
    case DS_EV_PROMPT: /* passes as it is */
        break;
    case DS_EV_TOKEN:
        r->prompt = 0;
        r->n_out++;
        break;
    case DS_EV_END:
        note_end(m, r, ev);
        if (ev->end.last)
            ds_table_give(&m->records, r);
        break;
    }
}

static size_t poll_events(void *h, ds_event *ev, size_t cap)
{
    ds_gen_many *m = h;
    uint32_t places = n_slots(m);
    size_t n = 0;

    for (uint32_t i = 0; i < places && n < cap; i++) {
        uint32_t at = (m->first + i) % places;
        ds_gen part;
        if (!enter(m, at, &part))
            continue;
        n += ds_gen_poll(part, ev + n, cap - n);
        leave(m, at);
    }
    m->first = (m->first + 1) % places; /* a part with much to say doesn't hold back the others */
    if (n == 0)
        return 0;
    pthread_mutex_lock(&m->mu);
    for (size_t i = 0; i < n; i++)
        translate(m, &ev[i]);
    pthread_mutex_unlock(&m->mu);
    return n;
}

static bool any_has(ds_gen_many *m)
{
    bool has = false;

    for (uint32_t i = 0, n = n_slots(m); i < n && !has; i++) {
        ds_gen part;
        if (!enter(m, i, &part))
            continue;
        has = ds_gen_wait(part, 0);
        leave(m, i);
    }
    return has;
}

static bool wait_events(void *h, uint32_t timeout_ms)
{
    ds_gen_many *m = h;
    struct timespec t;
    bool in_time = timeout_ms > 0, there;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += timeout_ms / 1000;
    t.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    for (;;) {
        pthread_mutex_lock(&m->mu);
        uint64_t seen = m->n_wakes;
        pthread_mutex_unlock(&m->mu);
        there = any_has(m); /* what comes after this look is a wake that wasn't seen */
        if (there || !in_time)
            return there;
        pthread_mutex_lock(&m->mu);
        while (in_time && m->n_wakes == seen)
            in_time = pthread_cond_timedwait(&m->woken, &m->mu, &t) == 0;
        pthread_mutex_unlock(&m->mu);
    }
}

static void part_woke(void *ctx)
{
    ds_gen_many *m = ctx;
    void (*fn)(void *ctx), *fn_ctx;

    pthread_mutex_lock(&m->mu);
    m->n_wakes++;
    fn = m->wake;
    fn_ctx = m->wake_ctx;
    pthread_cond_broadcast(&m->woken);
    pthread_mutex_unlock(&m->mu);
    if (fn)
        fn(fn_ctx);
}

static void wake_by(void *h, void (*wake)(void *ctx), void *ctx)
{
    ds_gen_many *m = h;

    pthread_mutex_lock(&m->mu);
    m->wake = wake;
    m->wake_ctx = ctx;
    pthread_mutex_unlock(&m->mu);
}

/* ---- the rest ---- */

static bool drain(void *h)
{
    ds_gen_many *m = h;
    bool over = true;

    for (uint32_t i = 0, n = n_slots(m); i < n; i++) {
        ds_gen part;
        if (!enter(m, i, &part))
            continue;
        over = ds_gen_drain(part) && over;
        leave(m, i);
    }
    return over;
}

static uint32_t n_engines(void *h)
{
    ds_gen_many *m = h;
    uint32_t all = 0;

    for (uint32_t i = 0, n = n_slots(m); i < n; i++) {
        ds_gen part;
        if (!enter(m, i, &part))
            continue;
        all += ds_gen_n_engines(part);
        leave(m, i);
    }
    return all;
}

/* Enters the part that has an engine, whose number becomes that within the part. DS_NONE: there are fewer. */
static uint32_t enter_with(ds_gen_many *m, uint32_t *engine, ds_gen *part)
{
    for (uint32_t i = 0, n = n_slots(m); i < n; i++) {
        uint32_t its;
        if (!enter(m, i, part))
            continue;
        its = ds_gen_n_engines(*part);
        if (*engine < its)
            return i;
        *engine -= its;
        leave(m, i);
    }
    return DS_NONE;
}

static bool stats(void *h, uint32_t engine, ds_gen_stats *out)
{
    ds_gen part;
    uint32_t at = enter_with(h, &engine, &part);
    bool known = at != DS_NONE && ds_gen_stats_get(part, engine, out);

    if (at != DS_NONE)
        leave(h, at);
    return known;
}

static bool plan(void *h, uint32_t engine, ds_gen_plan *out)
{
    ds_gen part;
    uint32_t at = enter_with(h, &engine, &part);
    bool known = at != DS_NONE && ds_gen_plan_get(part, engine, out);

    if (at != DS_NONE)
        leave(h, at);
    return known;
}

/* ---- parts that come and go ---- */

ds_rc ds_gen_many_add(ds_gen_many *m, ds_gen part, uint32_t *place, ds_err *err)
{
    uint32_t i = 0;

    ds_gen_wake_by(part, part_woke, m);
    pthread_mutex_lock(&m->mu);
    while (i < DS_GEN_MANY_MAX && m->slots[i].used)
        i++;
    if (i < DS_GEN_MANY_MAX) {
        m->slots[i] = (slot){ .g = part, .used = true };
        m->n = i < m->n ? m->n : i + 1;
    }
    pthread_mutex_unlock(&m->mu);
    *place = i;
    if (i < DS_GEN_MANY_MAX) {
        part_woke(m); /* who waits for an engine looks */
        return DS_OK;
    }
    ds_gen_wake_by(part, NULL, NULL);
    return ds_fail(err, DS_E_AGAIN, "%d engines are there already", DS_GEN_MANY_MAX);
}

bool ds_gen_many_remove(ds_gen_many *m, uint32_t place)
{
    slot *s = &m->slots[place];
    bool gone;

    pthread_mutex_lock(&m->mu);
    assert(place < m->n && s->used);
    s->leaves = true;
    gone = s->inside == 0;
    for (const record *r = ds_table_next(&m->records, NULL); r && gone; r = ds_table_next(&m->records, r))
        gone = r->part != place;
    if (gone)
        *s = (slot){ .used = false };
    pthread_mutex_unlock(&m->mu);
    return gone;
}

ds_gen ds_gen_many_gen(ds_gen_many *m)
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
    return (ds_gen){ &fn, m };
}

ds_rc ds_gen_many_create(ds_gen_many **out, const ds_gen *parts, size_t n, ds_err *err)
{
    pthread_condattr_t attr;
    ds_gen_many *m;

    *out = NULL;
    if (n == 0 || n > DS_GEN_MANY_MAX)
        return ds_fail(err, DS_E_ARG, "%zu generators as one: 1..%d", n, DS_GEN_MANY_MAX);
    m = calloc(1, sizeof *m);
    if (!m)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    m->n = (uint32_t)n;
    m->records.bytes = sizeof(record);
    m->output = OUTPUT_TOKENS;
    pthread_mutex_init(&m->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&m->woken, &attr);
    pthread_condattr_destroy(&attr);
    for (size_t i = 0; i < n; i++) {
        m->slots[i] = (slot){ .g = parts[i], .used = true };
        ds_gen_wake_by(parts[i], part_woke, m);
    }
    *out = m;
    return DS_OK;
}

void ds_gen_many_destroy(ds_gen_many *m)
{
    if (!m)
        return;
    pthread_cond_destroy(&m->woken);
    pthread_mutex_destroy(&m->mu);
    ds_table_fini(&m->records);
    free(m);
}

void ds_gen_many_work_get(ds_gen_many *m, ds_gen_many_work *out)
{
    *out = (ds_gen_many_work){ 0 };
    pthread_mutex_lock(&m->mu);
    for (const record *r = ds_table_next(&m->records, NULL); r; r = ds_table_next(&m->records, r)) {
        out->requests[r->part]++;
        out->tokens[r->part] += work(r);
    }
    pthread_mutex_unlock(&m->mu);
}
