#include "cluster/again.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/table.h"
#include "cluster/wire.h"

enum { WHOLE = 63, LOOK_MS = 50, MAX_LOSSES = 4 /* engines that a sample may lose without a token between them */ };

typedef enum {
    WITH_ALL,
    ALONE,
    PENDING,
    ENDED
} state; /* of a sample: in its request's first attempt, in one of its own, between engines */

typedef struct {
    state state;
    bool started, finish;
    uint64_t below;    /* ALONE: 0 = not known yet */
    uint64_t until_us; /* when it gives up, since it had to look for an engine; 0: it has one that answers */
    uint64_t next_us;  /* PENDING: when it looks again */
    uint32_t losses;   /* since its last token */
    ds_event last;     /* PENDING: how it ended below */
    ds_token *out;
    uint32_t n_out, cap_out;
} sample;

typedef struct {
    ds_record at;
    uint64_t cookie;
    ds_cw_request *copy;
    ds_gen_grammar grammar;
    uint64_t below;    /* of the first attempt; 0 = not known yet */
    uint64_t until_us; /* its deadline; 0: none */
    uint32_t n, left;  /* samples; that haven't ended */
    uint32_t prompt_seen;
    bool canceled;
    sample *samples; /* [n] */
} record;

struct ds_again {
    /* [const] */
    ds_gen below;
    uint32_t hidden;
    uint64_t patience_us;
    /* [mu] */
    pthread_mutex_t mu;
    ds_table records;
    uint32_t n_pending;
    uint64_t resumed;
    bool draining;
    ds_event *ends; /* of samples that ended between engines */
    size_t n_ends, cap_ends;
    void (*wake)(void *ctx), *wake_ctx;
};

/* ---- records: with mu ---- */

/* A cookie for what is below: the record, and which sample of it, or WHOLE. Of the generation it has 24 bits: one that
 * is over is never asked about, since what is below ends before the record does. */
static uint64_t cookie_of(const record *x, uint32_t s)
{
    return x->at.id << 8 >> 40 << 40 | (uint64_t)s << 32 | (uint32_t)x->at.id;
}

static record *of_cookie(ds_again *a, uint64_t cookie, uint32_t *s)
{
    record *x = ds_table_at(&a->records, (uint32_t)cookie);

    *s = cookie >> 32 & 0xff;
    assert(x && cookie_of(x, *s) == cookie);
    return x;
}

static record *of_id(ds_again *a, uint64_t id)
{
    return ds_table_get(&a->records, id);
}

static void free_record(ds_again *a, record *x)
{
    for (uint32_t s = 0; x->samples && s < x->n; s++)
        free(x->samples[s].out);
    free(x->samples);
    ds_cw_request_free(x->copy);
    x->samples = NULL;
    x->copy = NULL;
    ds_table_give(&a->records, x);
}

/* ---- ends ---- */

/* A sample is over: its event gets what the caller knows. */
static void end_sample(ds_again *a, record *x, uint32_t s, ds_event *ev)
{
    sample *p = &x->samples[s];

    a->n_pending -= p->state == PENDING;
    p->state = ENDED;
    ev->request = x->at.id;
    ev->cookie = x->cookie;
    ev->sample = s;
    ev->end.last = x->left == 1;
    if (--x->left == 0)
        free_record(a, x);
}

/* One that is between engines ends here; there is room for its event, made when it became PENDING. */
static void end_pending(ds_again *a, record *x, uint32_t s, ds_end_reason reason, ds_rc rc)
{
    ds_event ev = x->samples[s].last;

    ev.end.reason = reason;
    ev.end.rc = rc;
    ev.end.n_tokens = ev.end.completion_tokens = x->samples[s].n_out;
    end_sample(a, x, s, &ev);
    a->ends[a->n_ends++] = ev;
}

/* ---- asking again ---- */

static bool may_go_on(const record *x, const ds_event *ev)
{
    const sample *p = &x->samples[ev->sample];
    const ds_gen_request *q = ds_cw_request_get(x->copy);
    bool full = ev->end.reason == DS_ENDED_FAILED && ev->end.rc == DS_E_AGAIN;

    if (x->canceled || p->finish || (ev->end.reason != DS_ENDED_LOST && !full))
        return false;
    if (p->losses >= MAX_LOSSES || (p->until_us && ds_now_us() >= p->until_us))
        return false;
    return !(q->prompt_logprobs && p->n_out);
}

/* With mu. False: there is no memory for it. */
static bool make_pending(ds_again *a, record *x, uint32_t s, const ds_event *ev)
{
    sample *p = &x->samples[s];

    if (a->n_ends + a->n_pending + 1 > a->cap_ends) {
        size_t cap = a->cap_ends ? 2 * a->cap_ends : 64;
        ds_event *more = realloc(a->ends, cap * sizeof *more);
        if (!more)
            return false;
        a->ends = more;
        a->cap_ends = cap;
    }
    a->n_pending++;
    p->state = PENDING;
    p->last = *ev;
    if (ev->end.reason == DS_ENDED_LOST)
        p->losses++;
    p->next_us = ev->end.reason == DS_ENDED_LOST ? 0 : ds_now_us() + LOOK_MS * 1000;
    if (!p->until_us)
        p->until_us = ds_now_us() + a->patience_us;
    return true;
}

static ds_gen_request rest_of(const record *x, uint32_t s, uint64_t now_us)
{
    ds_gen_request q = *ds_cw_request_get(x->copy);

    q.n = 1;
    q.sampling.seed = ds_sample_seed(q.sampling.seed, s);
    q.output = x->samples[s].out;
    q.n_output = x->samples[s].n_out;
    q.cookie = cookie_of(x, s);
    q.grammar = q.grammar ? &x->grammar : NULL;
    q.deadline_us = x->until_us ? x->until_us - now_us : 0;
    return q;
}

/* Asks for one that is between engines. By who polls, with mu, which is let go while it is asked for. */
static void ask_again(ds_again *a, record *x, uint32_t s)
{
    uint64_t id = x->at.id, below = 0, now = ds_now_us();
    sample *p = &x->samples[s];
    ds_gen_request q;
    bool cancel;
    ds_rc rc;

    if (x->until_us && now >= x->until_us) {
        end_pending(a, x, s, DS_ENDED_DEADLINE, DS_OK);
        return;
    }
    q = rest_of(x, s, now);
    ds_gen_grammar g = x->grammar;
    q.grammar = q.grammar ? &g : NULL;
    p->state = ALONE;
    p->below = 0;
    a->n_pending--;
    pthread_mutex_unlock(&a->mu);
    rc = ds_gen_add(a->below, &q, &below, NULL); /* what it copies from is the record's, which stays: its sample hasn't ended */
    pthread_mutex_lock(&a->mu);
    x = of_id(a, id);
    assert(x);
    p = &x->samples[s];
    cancel = x->canceled || p->finish;
    if (rc == DS_OK) {
        p->below = below;
        a->resumed++;
        if (cancel) {
            pthread_mutex_unlock(&a->mu);
            ds_gen_cancel(a->below, below);
            pthread_mutex_lock(&a->mu);
        }
        return;
    }
    p->state = PENDING; /* the room for its end is still there */
    a->n_pending++;
    if (cancel)
        end_pending(a, x, s, DS_ENDED_CANCELED, DS_OK);
    else if (rc != DS_E_AGAIN && rc != DS_E_IO)
        end_pending(a, x, s, DS_ENDED_FAILED, rc);
    else if (now >= p->until_us)
        end_pending(a, x, s, p->last.end.reason, p->last.end.rc);
    else
        p->next_us = now + LOOK_MS * 1000;
}

static void look_for_engines(ds_again *a)
{
    uint64_t now = ds_now_us();

    for (uint32_t place = 0; place < a->records.n && a->n_pending; place++) { /* asking lets go of mu: records may move */
        record *x = ds_table_at(&a->records, place);
        uint64_t id = x ? x->at.id : 0;
        for (uint32_t s = 0; (x = of_id(a, id)) && s < x->n; s++)
            if (x->samples[s].state == PENDING && x->samples[s].next_us <= now)
                ask_again(a, x, s);
    }
}

/* ---- events ---- */

static bool keep_token(sample *p, ds_token id)
{
    if (p->n_out == p->cap_out) {
        uint32_t cap = p->cap_out ? 2 * p->cap_out : 64;
        ds_token *more = realloc(p->out, cap * sizeof *more);
        if (!more)
            return false;
        p->out = more;
        p->cap_out = cap;
    }
    p->out[p->n_out++] = id;
    return true;
}

/* With mu. Whether the caller gets it. */
static bool translate(ds_again *a, ds_event *ev)
{
    uint32_t which;
    record *x = of_cookie(a, ev->cookie, &which);
    sample *p;

    if (which != WHOLE)
        ev->sample = which;
    p = &x->samples[ev->sample];
    ev->request = x->at.id;
    ev->cookie = x->cookie;
    switch (ev->kind) {
    case DS_EV_START:
        if (p->started)
            return false;
        p->started = true;
        return true;
    case DS_EV_PROMPT:
        if (ev->sample != 0 || ev->token.index != x->prompt_seen + 1)
            return false;
        x->prompt_seen++;
        return true;
    case DS_EV_TOKEN:
        p->losses = 0;
        p->until_us = 0;
        if (!keep_token(p, ev->token.id)) /* it can't be asked for again then */
            p->finish = true;
        return true;
    case DS_EV_END:
        if (may_go_on(x, ev) && make_pending(a, x, ev->sample, ev))
            return false;
        if (x->canceled && ev->end.reason == DS_ENDED_LOST)
            ev->end.reason = DS_ENDED_CANCELED, ev->end.rc = DS_OK;
        end_sample(a, x, ev->sample, ev);
        return true;
    }
    return false;
}

static size_t take_ends(ds_again *a, ds_event *ev, size_t cap)
{
    size_t n = a->n_ends < cap ? a->n_ends : cap;

    memcpy(ev, a->ends, n * sizeof *ev);
    a->n_ends -= n;
    memmove(a->ends, a->ends + n, a->n_ends * sizeof *ev);
    return n;
}

static size_t poll_events(void *h, ds_event *ev, size_t cap)
{
    ds_again *a = h;
    size_t n = 0, got, kept;

    do { /* fewer than cap means that there are no more */
        got = ds_gen_poll(a->below, ev + n, cap - n);
        pthread_mutex_lock(&a->mu);
        kept = 0;
        for (size_t i = 0; i < got; i++)
            if (translate(a, &ev[n + i]))
                ev[n + kept++] = ev[n + i];
        n += kept;
        look_for_engines(a);
        if (n < cap && a->n_ends)
            n += take_ends(a, ev + n, cap - n);
        pthread_mutex_unlock(&a->mu);
    } while (got && n < cap);
    return n;
}

/* ---- the generator ---- */

/* With mu. On failure the record is free again, and the copy the caller's. */
static ds_rc fill(ds_again *a, record *x, const ds_gen_request *q, ds_cw_request *copy)
{
    bool ok;

    x->cookie = q->cookie;
    x->n = x->left = q->n ? q->n : 1;
    x->until_us = q->deadline_us ? ds_now_us() + q->deadline_us : 0;
    if (q->grammar)
        x->grammar = *q->grammar;
    x->samples = calloc(x->n, sizeof *x->samples);
    ok = x->samples != NULL;
    for (uint32_t i = 0; ok && i < q->n_output; i++)
        ok = keep_token(&x->samples[0], q->output[i]);
    if (ok)
        x->copy = copy;
    else
        free_record(a, x);
    return ok ? DS_OK : DS_E_NOMEM;
}

static ds_rc add(void *h, const ds_gen_request *q, uint64_t *id, ds_err *err)
{
    ds_again *a = h;
    ds_gen_request mine = *q;
    ds_cw_request *copy = NULL;
    ds_buf b = { 0 };
    uint64_t below;
    uint32_t finish = 0;
    bool cancel = false;
    record *x;
    ds_rc rc;

    *id = 0;
    if (q->n > DS_CW_MAX_SAMPLES || q->n_stop_ids > DS_GEN_MAX_STOP_IDS)
        return ds_fail(err, DS_E_ARG, "n: %u, %zu stop ids: at most %d and %d", q->n, q->n_stop_ids, DS_CW_MAX_SAMPLES,
                       DS_GEN_MAX_STOP_IDS);
    ds_cw_put_request(&b, q, a->hidden);
    rc = b.oom ? ds_fail(err, DS_E_NOMEM, "out of memory for a request")
               : ds_cw_read_request(&copy, (const uint8_t *)b.p, b.len, a->hidden, err);
    ds_buf_free(&b);
    if (rc != DS_OK)
        return rc;
    pthread_mutex_lock(&a->mu);
    x = a->draining ? NULL : ds_table_take(&a->records);
    rc = a->draining ? ds_fail(err, DS_E_AGAIN, "draining") : x ? fill(a, x, q, copy) : DS_E_NOMEM;
    if (rc == DS_OK) {
        mine.cookie = cookie_of(x, WHOLE);
        *id = x->at.id;
    }
    pthread_mutex_unlock(&a->mu);
    if (rc != DS_OK) {
        ds_cw_request_free(copy);
        return rc == DS_E_NOMEM ? ds_fail(err, rc, "out of memory for a request") : rc;
    }
    rc = ds_gen_add(a->below, &mine, &below, err);
    pthread_mutex_lock(&a->mu);
    x = of_id(a, *id);
    if (x && rc == DS_OK) {
        x->below = below;
        cancel = x->canceled;
        for (uint32_t s = 0; s < x->n; s++)
            finish |= (uint32_t)(x->samples[s].finish && x->samples[s].state == WITH_ALL) << s;
    } else if (x) {
        free_record(a, x);
    }
    pthread_mutex_unlock(&a->mu);
    if (rc != DS_OK)
        *id = 0;
    if (cancel)
        ds_gen_cancel(a->below, below);
    for (uint32_t s = 0; s < DS_CW_MAX_SAMPLES && finish >> s && !cancel; s++)
        if (finish >> s & 1)
            ds_gen_finish_sample(a->below, below, s);
    return rc;
}

/* Ends one sample, or all. Below, what is there; here, what is between engines. */
static void order(ds_again *a, uint64_t id, uint32_t only)
{
    uint64_t whole = 0, alone[DS_CW_MAX_SAMPLES];
    uint32_t n_alone = 0;
    void (*wake)(void *ctx) = NULL, *wake_ctx = NULL;
    record *x;

    pthread_mutex_lock(&a->mu);
    x = of_id(a, id);
    if (x && only == WHOLE)
        x->canceled = true;
    for (uint32_t s = 0; x && x->at.id == id && s < x->n; s++) {
        sample *p = &x->samples[s];
        if (only != WHOLE && only != s)
            continue;
        p->finish = true;
        if (p->state == WITH_ALL)
            whole = x->below;
        else if (p->state == ALONE && p->below)
            alone[n_alone++] = p->below;
        else if (p->state == PENDING) {
            end_pending(a, x, s, DS_ENDED_CANCELED, DS_OK);
            wake = a->wake;
            wake_ctx = a->wake_ctx;
        }
    }
    pthread_mutex_unlock(&a->mu);
    if (whole && only == WHOLE)
        ds_gen_cancel(a->below, whole);
    else if (whole)
        ds_gen_finish_sample(a->below, whole, only);
    for (uint32_t i = 0; i < n_alone; i++)
        ds_gen_cancel(a->below, alone[i]);
    if (wake)
        wake(wake_ctx);
}

static void cancel(void *h, uint64_t id)
{
    order(h, id, WHOLE);
}

static void finish_sample(void *h, uint64_t id, uint32_t s)
{
    if (s < DS_CW_MAX_SAMPLES)
        order(h, id, s);
}

static bool has_own(ds_again *a, bool *pending)
{
    bool has;

    pthread_mutex_lock(&a->mu);
    has = a->n_ends > 0;
    *pending = a->n_pending > 0;
    pthread_mutex_unlock(&a->mu);
    return has;
}

static bool wait_events(void *h, uint32_t timeout_ms)
{
    ds_again *a = h;
    uint64_t until = ds_now_us() + (uint64_t)timeout_ms * 1000, now;
    bool pending;

    for (;;) {
        if (has_own(a, &pending))
            return true;
        now = ds_now_us();
        uint32_t left = now < until ? (uint32_t)((until - now + 999) / 1000) : 0;
        if (ds_gen_wait(a->below, left < LOOK_MS ? left : LOOK_MS))
            return true;
        if (pending && timeout_ms)
            return true;
        if (!left)
            return false;
    }
}

static void wake_by(void *h, void (*wake)(void *ctx), void *ctx)
{
    ds_again *a = h;

    pthread_mutex_lock(&a->mu);
    a->wake = wake;
    a->wake_ctx = ctx;
    pthread_mutex_unlock(&a->mu);
    ds_gen_wake_by(a->below, wake, ctx);
}

static bool drain(void *h)
{
    ds_again *a = h;
    bool over;

    pthread_mutex_lock(&a->mu);
    a->draining = true;
    over = a->records.n_live == 0;
    pthread_mutex_unlock(&a->mu);
    return over;
}

static uint32_t n_engines(void *h)
{
    return ds_gen_n_engines(((ds_again *)h)->below);
}

static bool stats(void *h, uint32_t engine, ds_gen_stats *out)
{
    return ds_gen_stats_get(((ds_again *)h)->below, engine, out);
}

static bool plan(void *h, uint32_t engine, ds_gen_plan *out)
{
    return ds_gen_plan_get(((ds_again *)h)->below, engine, out);
}

ds_gen ds_again_gen(ds_again *a)
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
    return (ds_gen){ &fn, a };
}

ds_rc ds_again_create(ds_again **out, ds_gen below, uint32_t hidden, uint32_t patience_ms, ds_err *err)
{
    ds_again *a = calloc(1, sizeof *a);

    *out = a;
    if (!a)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    a->below = below;
    a->hidden = hidden;
    a->patience_us = (uint64_t)(patience_ms ? patience_ms : 10000) * 1000;
    a->records.bytes = sizeof(record);
    pthread_mutex_init(&a->mu, NULL);
    return DS_OK;
}

uint32_t ds_again_live(ds_again *a)
{
    uint32_t n;

    pthread_mutex_lock(&a->mu);
    n = a->records.n_live;
    pthread_mutex_unlock(&a->mu);
    return n;
}

uint64_t ds_again_resumed(ds_again *a)
{
    uint64_t n;

    pthread_mutex_lock(&a->mu);
    n = a->resumed;
    pthread_mutex_unlock(&a->mu);
    return n;
}

void ds_again_destroy(ds_again *a)
{
    if (!a)
        return;
    for (record *x = ds_table_next(&a->records, NULL); x; x = ds_table_next(&a->records, x))
        free_record(a, x);
    ds_table_fini(&a->records);
    free(a->ends);
    pthread_mutex_destroy(&a->mu);
    free(a);
}
