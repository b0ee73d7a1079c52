#include "cluster/apart.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/none.h"
#include "base/table.h"
#include "policy/decode.h"
#include "policy/prefill.h"

enum { ROUND_US = 1000000, CHUNK = 512, ANSWER = 256 /* tokens that are expected at most */, CROWDED = 1024, WHOLE = 63 };

typedef enum { FIRST, SECOND, OVER } phase;

typedef struct {
    phase phase;
    bool started, finish;
    uint32_t at;      /* remote */
    uint64_t below;   /* its id there */
    uint64_t work_us; /* of its prompt, while that isn't computed */
    uint64_t kv;      /* tokens at its end */
    uint32_t source;  /* of its sequence */
    ds_gen_from from; /* ticket 0: it isn't under way */
    uint64_t tried;   /* remotes that it was offered to */
    uint64_t prefill_us;
    ds_token *out;
    uint32_t n_out, cap_out;
} sample;

typedef struct {
    ds_record rec;
    uint64_t cookie, until_us;
    bool whole; /* all samples are one request below */
    uint32_t n, left;
    ds_cw_request *copy;
    ds_gen_grammar grammar;
    sample *samples; /* [n] */
} record;

/* A remote as the balancers see it. */
typedef struct {
    int64_t left_us; /* of the round */
    uint8_t tiers;
    ds_cost cost;
} engine;

struct ds_apart {
    /* [const] */
    ds_remote *remotes[DS_GEN_MANY_MAX];
    ds_gen gen[DS_GEN_MANY_MAX];
    bool prefills[DS_GEN_MANY_MAX], decodes[DS_GEN_MANY_MAX];
    uint32_t n, hidden;
    const ds_log *log;
    /* [poll] */
    uint32_t first;
    /* [mu] */
    pthread_mutex_t mu;
    pthread_cond_t woken;
    ds_table records;
    engine engines[DS_GEN_MANY_MAX];
    uint64_t demand_us[DS_PREFILL_TIERS], round_until_us;
    uint64_t moved, n_wakes;
    bool alone; /* no engine for decoding is there, and the log knows */
    bool draining;
    void (*wake)(void *ctx), *wake_ctx;
};

/* ---- records: with mu ---- */

static uint64_t cookie_of(const record *x, uint32_t s)
{
    return x->rec.id << 8 >> 40 << 40 | (uint64_t)s << 32 | (uint32_t)x->rec.id;
}

/* NULL: it is over, and what comes of it is nobody's. */
static record *of_cookie(ds_apart *a, uint64_t cookie, uint32_t *s)
{
    record *x = ds_table_at(&a->records, (uint32_t)cookie);

    *s = cookie >> 32 & 0xff;
    return x && cookie_of(x, *s) == cookie ? x : NULL;
}

static void free_record(ds_apart *a, record *x)
{
    for (uint32_t s = 0; x->samples && s < x->n; s++)
        free(x->samples[s].out);
    free(x->samples);
    ds_cw_request_free(x->copy);
    ds_table_give(&a->records, x);
}

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

/* ---- which engine: with mu ---- */

/* Time of prompts that are ahead of a remote; decoding requests and their KV. */
typedef struct {
    uint64_t work_us, requests, kv;
} load;

static void loads(const ds_apart *a, load out[DS_GEN_MANY_MAX])
{
    memset(out, 0, DS_GEN_MANY_MAX * sizeof *out);
    for (const record *x = ds_table_next(&a->records, NULL); x; x = ds_table_next(&a->records, x))
        for (uint32_t s = 0; s < x->n; s++) {
            const sample *p = &x->samples[s];
            if (p->phase == OVER)
                continue;
            out[p->at].work_us += p->work_us;
            if (p->work_us)
                continue;
            out[p->at].requests++;
            out[p->at].kv += p->kv;
        }
}

static void learn(ds_apart *a)
{
    ds_gen_stats st;

    for (uint32_t i = 0; i < a->n; i++) {
        ds_cost *c = &a->engines[i].cost;
        if (!ds_gen_stats_get(a->gen[i], 0, &st))
            continue;
        memcpy(c->coef, st.cost, sizeof c->coef);
        c->n = 8;
    }
}

/* Deals the engines for prompts to tiers, and gives each its time. */
static void begin_round(ds_apart *a, uint64_t now_us)
{
    ds_prefill_engine rows[DS_GEN_MANY_MAX];
    uint8_t tiers[DS_GEN_MANY_MAX];
    uint32_t at[DS_GEN_MANY_MAX], n = 0;
    load l[DS_GEN_MANY_MAX];

    if (now_us < a->round_until_us)
        return;
    a->round_until_us = now_us + ROUND_US;
    learn(a);
    loads(a, l);
    for (uint32_t i = 0; i < a->n; i++)
        if (a->prefills[i]) {
            rows[n] = (ds_prefill_engine){ .id = i, .tiers = a->engines[i].tiers, .live_us = l[i].work_us };
            at[n++] = i;
        }
    ds_prefill_deal(rows, n, a->demand_us, tiers);
    for (uint32_t k = 0; k < n; k++) {
        a->engines[at[k]].tiers = tiers[k];
        a->engines[at[k]].left_us = ds_prefill_refill(a->engines[at[k]].left_us, 1, ROUND_US);
    }
    memset(a->demand_us, 0, sizeof a->demand_us);
}

static uint64_t work_at(const ds_apart *a, uint32_t i, uint64_t cached, uint64_t uncached)
{
    uint64_t us = ds_prefill_work_us(&a->engines[i].cost, cached, uncached, CHUNK);

    return us ? us : uncached; /* of whose cost nothing is known yet */
}

/* DS_NONE: nobody is there that wasn't tried. */
static uint32_t choose_prefill(ds_apart *a, uint32_t n_prompt, uint64_t tried)
{
    ds_prefill_group rows[DS_GEN_MANY_MAX];
    uint64_t rank_us[DS_GEN_MANY_MAX];
    uint32_t at[DS_GEN_MANY_MAX], n = 0, best = DS_NONE, tier = ds_prefill_tier(n_prompt);
    load l[DS_GEN_MANY_MAX];
    ds_prefill_place place;

    begin_round(a, ds_now_us());
    loads(a, l);
    for (uint32_t i = 0; i < a->n; i++) {
        if (!a->prefills[i] || tried >> i & 1 || !ds_remote_ready(a->remotes[i]))
            continue;
        rank_us[n] = l[i].work_us;
        rows[n] = (ds_prefill_group){
            .id = i, .ready = true, .tiers = a->engines[i].tiers, .ranks = 1, .rank_us = &rank_us[n], .left_us = a->engines[i].left_us
        };
        at[n++] = i;
    }
    place = ds_prefill_choose(rows, n, tier, (uint8_t)(1u << tier));
    if (place.group != DS_NONE)
        return at[place.group];
    for (uint32_t k = 0; k < n; k++)
        if (best == DS_NONE || rank_us[k] < rank_us[best])
            best = k;
    return best == DS_NONE ? DS_NONE : at[best];
}

/* DS_NONE: no engine for decoding is there that wasn't tried. */
static uint32_t choose_decode(ds_apart *a, const sample *p)
{
    ds_decode_rank rows[DS_GEN_MANY_MAX];
    uint32_t at[DS_GEN_MANY_MAX], n = 0, row;
    load l[DS_GEN_MANY_MAX];
    ds_gen_plan plan;

    loads(a, l);
    for (uint32_t i = 0; i < a->n; i++) {
        if (!a->decodes[i] || p->tried >> i & 1 || !ds_remote_ready(a->remotes[i]) || !ds_gen_plan_get(a->gen[i], 0, &plan))
            continue;
        rows[n] = (ds_decode_rank){ .id = i,
                                    .ready = true,
                                    .requests = l[i].requests,
                                    .max_requests = plan.max_running,
                                    .kv_tokens = l[i].kv,
                                    .max_kv_tokens = plan.kv_tokens,
                                    .prefill_us = l[i].work_us,
                                    .max_wait_us = a->prefills[i] ? 10 * ROUND_US : 0 };
        at[n++] = i;
    }
    ds_decode_ask ask = { .kv_tokens = p->kv };
    row = ds_decode_choose(rows, n, &ask);
    for (uint32_t k = 0; row == DS_NONE && k < n; k++) { /* all are full: the same, with much more room */
        rows[k].max_requests *= CROWDED;
        rows[k].max_kv_tokens *= CROWDED;
        rows[k].max_wait_us *= CROWDED;
    }
    if (row == DS_NONE)
        row = ds_decode_choose(rows, n, &ask);
    return row == DS_NONE ? DS_NONE : at[row];
}

/* Whether sequences can leave at all; the log hears when that changes. */
static bool somebody_decodes(ds_apart *a)
{
    bool there = false;

    for (uint32_t i = 0; i < a->n && !there; i++)
        there = a->decodes[i] && ds_remote_ready(a->remotes[i]);
    if (a->alone == there && a->log)
        ds_logf(a->log, there ? DS_LOG_INFO : DS_LOG_WARN,
                there ? "an engine for decoding is there again" : "no engine for decoding is there: those for prompts decode too");
    a->alone = !there;
    return there;
}

/* ---- requests ---- */

static ds_gen_request asked(record *x, uint32_t s)
{
    ds_gen_request q = *ds_cw_request_get(x->copy);
    const sample *p = &x->samples[s];
    uint64_t now = ds_now_us();

    q.cookie = cookie_of(x, x->whole ? WHOLE : s);
    q.grammar = q.grammar ? &x->grammar : NULL;
    q.deadline_us = !x->until_us ? 0 : x->until_us > now ? x->until_us - now : 1;
    if (!x->whole) {
        q.n = 1;
        q.sampling.seed = ds_sample_seed(q.sampling.seed, s);
    }
    q.output = p->out;
    q.n_output = p->n_out;
    return q;
}

/* Sample s, or all, to an engine for prompts. With mu. */
static ds_rc ask_first(ds_apart *a, record *x, uint32_t s, ds_err *err)
{
    const ds_gen_request *all = ds_cw_request_get(x->copy);
    sample *p = &x->samples[s];
    uint64_t tried = 0, expect = all->max_tokens < ANSWER ? all->max_tokens : ANSWER;
    ds_rc answer = DS_E_IO;

    ds_fail(err, DS_E_IO, "no engine for prompts is there");
    for (;;) {
        uint32_t i = choose_prefill(a, all->n_prompt, tried);
        ds_gen_request q = asked(x, s);
        ds_err why = { 0 };
        ds_rc rc;
        if (i == DS_NONE)
            return answer;
        q.hand_over = !x->whole && !a->decodes[i];
        rc = ds_gen_add(a->gen[i], &q, &p->below, &why);
        if (rc == DS_OK) {
            for (uint32_t k = s; k < (x->whole ? x->n : s + 1); k++) {
                sample *each = &x->samples[k];
                each->phase = FIRST;
                each->at = i;
                each->kv = all->n_prompt + expect;
                each->work_us = k == s ? work_at(a, i, 0, (uint64_t)all->n_prompt + p->n_out) : 0;
            }
            a->engines[i].left_us -= (int64_t)p->work_us;
            a->demand_us[ds_prefill_tier(all->n_prompt)] += p->work_us;
            return DS_OK;
        }
        if (answer != DS_E_AGAIN && err)
            *err = why;
        answer = answer == DS_E_AGAIN ? answer : rc;
        if (rc != DS_E_AGAIN && rc != DS_E_IO)
            return rc;
        tried |= UINT64_C(1) << i;
    }
}

/* Nobody needs its sequence any more. */
static void forget(ds_apart *a, sample *p)
{
    if (p->from.ticket)
        ds_remote_forget(a->remotes[p->source], p->from.epoch, p->from.ticket);
    p->from.ticket = 0;
}

/* Its sequence to the next engine; in the end to the one that has it. False: there is none. With mu. */
static bool ask_second(ds_apart *a, record *x, uint32_t s)
{
    sample *p = &x->samples[s];

    while (!p->finish) {
        ds_gen_request q = asked(x, s);
        uint32_t i = choose_decode(a, p);
        if (i == DS_NONE && (p->tried >> p->source & 1 || !ds_remote_ready(a->remotes[p->source])))
            break;
        if (i == DS_NONE)
            i = p->source;
        p->tried |= UINT64_C(1) << i;
        q.from = &p->from;
        if (ds_gen_add(a->gen[i], &q, &p->below, NULL) != DS_OK)
            continue;
        p->phase = SECOND;
        p->at = i;
        p->work_us = 0;
        return true;
    }
    forget(a, p);
    return false;
}

/* ---- events: with mu ---- */

/* The engine that was asked second has it. */
static void took(ds_apart *a, sample *p)
{
    if (p->phase != SECOND || !p->from.ticket)
        return;
    forget(a, p);
    a->moved++;
}

/* Whether the caller hears of this end, of a sample's. */
static bool ends(ds_apart *a, record *x, uint32_t s, ds_event *ev)
{
    sample *p = &x->samples[s];
    bool lost = ev->end.reason == DS_ENDED_LOST || ev->end.reason == DS_ENDED_FAILED;

    if (p->phase == FIRST && ev->end.ticket) {
        p->prefill_us = ev->end.prefill_us;
        p->source = p->at;
        p->from = ds_remote_from(a->remotes[p->at], ev->end.ticket);
        p->tried = 0;
        if (ask_second(a, x, s))
            return false;
        lost = true;
    } else if (p->phase == SECOND && p->from.ticket && lost) { /* it never had it */
        if (ask_second(a, x, s))
            return false;
    } else {
        forget(a, p);
        lost = false;
    }
    if (lost && !p->finish) {
        ev->end.reason = DS_ENDED_LOST;
        ev->end.rc = DS_E_IO;
    } else if (lost) {
        ev->end.reason = DS_ENDED_CANCELED;
        ev->end.rc = DS_OK;
    }
    if (lost)
        ev->end.n_tokens = ev->end.completion_tokens = p->n_out;
    if (p->phase == SECOND)
        ev->end.prefill_us = p->prefill_us;
    ev->end.ticket = 0;
    p->phase = OVER;
    ev->end.last = x->left == 1;
    if (--x->left == 0)
        free_record(a, x);
    return true;
}

/* Whether the caller gets it. i: the remote that said it. */
static bool translate(ds_apart *a, uint32_t i, ds_event *ev)
{
    uint32_t which;
    record *x = of_cookie(a, ev->cookie, &which);
    sample *p;

    if (!x) {
        if (ev->kind == DS_EV_END && ev->end.ticket) {
            ds_gen_from from = ds_remote_from(a->remotes[i], ev->end.ticket);
            ds_remote_forget(a->remotes[i], from.epoch, from.ticket);
        }
        return false;
    }
    if (which != WHOLE)
        ev->sample = which;
    p = &x->samples[ev->sample];
    ev->request = x->rec.id;
    ev->cookie = x->cookie;
    switch (ev->kind) {
    case DS_EV_START:
        if (p->phase == FIRST && p->work_us)
            p->work_us = work_at(a, i, ev->start.cached, ev->start.n_prompt - ev->start.cached + ev->start.replayed);
        took(a, p);
        if (p->started)
            return false;
        p->started = true;
        return true;
    case DS_EV_PROMPT:
        return true;
    case DS_EV_TOKEN:
        took(a, p);
        p->work_us = 0;
        if (!keep_token(p, ev->token.id)) { /* it can't go on elsewhere */
            p->finish = true;
            ds_gen_finish_sample(a->gen[p->at], p->below, x->whole ? ev->sample : 0);
        }
        return true;
    case DS_EV_END:
        return ends(a, x, ev->sample, ev);
    }
    return false;
}

static size_t poll_events(void *h, ds_event *ev, size_t cap)
{
    ds_apart *a = h;
    size_t n = 0, got;

    do { /* fewer than cap means that there are no more */
        got = 0;
        for (uint32_t k = 0; k < a->n && n < cap; k++) {
            uint32_t i = (a->first + k) % a->n;
            size_t came = ds_gen_poll(a->gen[i], ev + n, cap - n), at = n;
            got += came;
            pthread_mutex_lock(&a->mu);
            for (size_t e = 0; e < came; e++)
                if (translate(a, i, &ev[at + e]))
                    ev[n++] = ev[at + e];
            pthread_mutex_unlock(&a->mu);
        }
        a->first = (a->first + 1) % a->n; /* one with much to say doesn't hold back the others */
    } while (got && n < cap);
    return n;
}

/* ---- the generator ---- */

/* With mu. On failure the record is free again, and the copy too. */
static ds_rc begin(ds_apart *a, const ds_gen_request *q, ds_cw_request *copy, uint64_t *id, ds_err *err)
{
    record *x = a->draining ? NULL : ds_table_take(&a->records);
    ds_rc rc = DS_OK;
    bool ok;

    if (!x) {
        ds_cw_request_free(copy);
        return a->draining ? ds_fail(err, DS_E_AGAIN, "draining") : ds_fail(err, DS_E_NOMEM, "out of memory for a request");
    }
    x->copy = copy;
    x->cookie = q->cookie;
    x->n = x->left = q->n ? q->n : 1;
    x->until_us = q->deadline_us ? ds_now_us() + q->deadline_us : 0;
    if (q->grammar)
        x->grammar = (ds_gen_grammar){ .what = ds_cw_request_get(copy)->grammar->what };
    x->whole = q->prompt_logprobs || q->no_cache || !somebody_decodes(a);
    x->samples = calloc(x->n, sizeof *x->samples);
    ok = x->samples != NULL;
    for (uint32_t s = 0; ok && s < x->n; s++)
        x->samples[s].phase = OVER;
    for (uint32_t k = 0; ok && k < q->n_output; k++)
        ok = keep_token(&x->samples[0], q->output[k]);
    if (!ok)
        rc = ds_fail(err, DS_E_NOMEM, "out of memory for a request");
    for (uint32_t s = 0; s < (x->whole ? 1 : x->n) && rc == DS_OK; s++) {
        rc = ask_first(a, x, s, err);
        for (uint32_t before = 0; rc != DS_OK && before < s; before++) /* what they say finds no record */
            ds_gen_cancel(a->gen[x->samples[before].at], x->samples[before].below);
    }
    *id = rc == DS_OK ? x->rec.id : 0;
    if (rc != DS_OK)
        free_record(a, x);
    return rc;
}

static ds_rc add(void *h, const ds_gen_request *q, uint64_t *id, ds_err *err)
{
    ds_apart *a = h;
    ds_cw_request *copy = NULL;
    ds_buf b = { 0 };
    ds_rc rc;

    *id = 0;
    if (q->n > DS_CW_MAX_SAMPLES || q->n_stop_ids > DS_GEN_MAX_STOP_IDS)
        return ds_fail(err, DS_E_ARG, "n: %u, %zu stop ids: at most %d and %d", q->n, q->n_stop_ids, DS_CW_MAX_SAMPLES,
                       DS_GEN_MAX_STOP_IDS);
    if (q->grammar && !q->grammar->what.n)
        return ds_fail(err, DS_E_ARG, "this grammar can't leave its process");
    ds_cw_put_request(&b, q, a->hidden);
    rc = b.oom ? ds_fail(err, DS_E_NOMEM, "out of memory for a request")
               : ds_cw_read_request(&copy, (const uint8_t *)b.p, b.len, a->hidden, err);
    ds_buf_free(&b);
    if (rc != DS_OK)
        return rc;
    pthread_mutex_lock(&a->mu);
    rc = begin(a, q, copy, id, err);
    pthread_mutex_unlock(&a->mu);
    return rc;
}

static void order(ds_apart *a, uint64_t id, uint32_t only)
{
    record *x;

    pthread_mutex_lock(&a->mu);
    x = ds_table_get(&a->records, id);
    for (uint32_t s = 0; x && s < x->n; s++) {
        sample *p = &x->samples[s];
        if ((only != WHOLE && only != s) || p->phase == OVER)
            continue;
        p->finish = true;
        if (x->whole)
            ds_gen_finish_sample(a->gen[p->at], x->samples[0].below, s);
        else
            ds_gen_cancel(a->gen[p->at], p->below);
    }
    pthread_mutex_unlock(&a->mu);
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

static bool any_has(const ds_apart *a)
{
    for (uint32_t i = 0; i < a->n; i++)
        if (ds_gen_wait(a->gen[i], 0))
            return true;
    return false;
}

static bool wait_events(void *h, uint32_t timeout_ms)
{
    ds_apart *a = h;
    struct timespec t;
    bool in_time = timeout_ms > 0;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += timeout_ms / 1000;
    t.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    for (;;) {
        pthread_mutex_lock(&a->mu);
        uint64_t seen = a->n_wakes;
        pthread_mutex_unlock(&a->mu);
        bool there = any_has(a); /* what comes after this look is a wake that wasn't seen */
        if (there || !in_time)
            return there;
        pthread_mutex_lock(&a->mu);
        while (in_time && a->n_wakes == seen)
            in_time = pthread_cond_timedwait(&a->woken, &a->mu, &t) == 0;
        pthread_mutex_unlock(&a->mu);
    }
}

static void remote_woke(void *ctx)
{
    ds_apart *a = ctx;
    void (*fn)(void *ctx), *fn_ctx;

    pthread_mutex_lock(&a->mu);
    a->n_wakes++;
    fn = a->wake;
    fn_ctx = a->wake_ctx;
    pthread_cond_broadcast(&a->woken);
    pthread_mutex_unlock(&a->mu);
    if (fn)
        fn(fn_ctx);
}

static void wake_by(void *h, void (*wake)(void *ctx), void *ctx)
{
    ds_apart *a = h;

    pthread_mutex_lock(&a->mu);
    a->wake = wake;
    a->wake_ctx = ctx;
    pthread_mutex_unlock(&a->mu);
}

static bool drain(void *h)
{
    ds_apart *a = h;
    bool over;

    pthread_mutex_lock(&a->mu);
    a->draining = true;
    over = a->records.n_live == 0;
    pthread_mutex_unlock(&a->mu);
    return over;
}

/* Each process has one engine, as ds_apart_check says. */
static uint32_t n_engines(void *h)
{
    return ((const ds_apart *)h)->n;
}

static bool stats(void *h, uint32_t i, ds_gen_stats *out)
{
    const ds_apart *a = h;

    return i < a->n && ds_gen_stats_get(a->gen[i], 0, out);
}

static bool plan(void *h, uint32_t i, ds_gen_plan *out)
{
    const ds_apart *a = h;

    return i < a->n && ds_gen_plan_get(a->gen[i], 0, out);
}

ds_gen ds_apart_gen(ds_apart *a)
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

ds_rc ds_apart_check(ds_remote *const *remotes, uint32_t n, bool *apart, ds_err *err)
{
    uint32_t of[DS_CW_ROLES] = { 0 };

    for (uint32_t i = 0; i < n; i++)
        of[ds_remote_role(remotes[i])]++;
    *apart = of[DS_CW_MIXED] < n;
    if (*apart && !of[DS_CW_MIXED] && (!of[DS_CW_PREFILL] || !of[DS_CW_DECODE]))
        return ds_fail(err, DS_E_ARG, "%s for %s, and none for %s", n == 1 ? "the engine is" : "all engines are",
                       of[DS_CW_PREFILL] ? "prompts (--role prefill)" : "decoding (--role decode)",
                       of[DS_CW_PREFILL] ? "decoding (decode or mixed)" : "prompts (prefill or mixed)");
    for (uint32_t i = 0; *apart && i < n; i++)
        if (ds_gen_n_engines(ds_remote_gen(remotes[i])) > 1)
            return ds_fail(err, DS_E_ARG, "an engine process with several engines, whose sequences stay there, next to ones of a role");
    return DS_OK;
}

ds_rc ds_apart_create(ds_apart **out, ds_remote *const *remotes, uint32_t n, uint32_t hidden, const ds_log *log, ds_err *err)
{
    ds_apart *a = calloc(1, sizeof *a);
    pthread_condattr_t attr;

    *out = a;
    if (!a)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    assert(n <= DS_GEN_MANY_MAX);
    a->n = n;
    a->hidden = hidden;
    a->log = log;
    a->records.bytes = sizeof(record);
    pthread_mutex_init(&a->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&a->woken, &attr);
    pthread_condattr_destroy(&attr);
    for (uint32_t i = 0; i < n; i++) {
        ds_cw_role role = ds_remote_role(remotes[i]);
        a->remotes[i] = remotes[i];
        a->gen[i] = ds_remote_gen(remotes[i]);
        a->prefills[i] = role != DS_CW_DECODE;
        a->decodes[i] = role != DS_CW_PREFILL;
        a->engines[i].tiers = DS_PREFILL_ALL;
        ds_gen_wake_by(a->gen[i], remote_woke, a);
    }
    return DS_OK;
}

ds_apart_stats ds_apart_stat(ds_apart *a)
{
    ds_apart_stats s;

    pthread_mutex_lock(&a->mu);
    s = (ds_apart_stats){ a->records.n_live, a->moved };
    pthread_mutex_unlock(&a->mu);
    return s;
}

void ds_apart_destroy(ds_apart *a)
{
    if (!a)
        return;
    for (record *x = ds_table_next(&a->records, NULL); x; x = ds_table_next(&a->records, x))
        free_record(a, x);
    ds_table_fini(&a->records);
    pthread_cond_destroy(&a->woken);
    pthread_mutex_destroy(&a->mu);
    free(a);
}
