/* Several generators as one: parts that are made up, which refuse, are lost and answer in any interleaving, checked
 * event by event; and two real engines without a model, with threads. */
#include "test.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "base/rng.h"
#include "engine/engine.h"
#include "fault.h"
#include "gen/many_internal.h"

enum { PARTS = 3, PART_ROOM = 6, MAX_SAMPLES = 3, LIVE = 64 };

static uint64_t seed, draws;

static uint32_t draw(uint32_t n)
{
    return (uint32_t)(ds_rng_u64(seed, 1, draws++) % n);
}

/* ---- a part that is made up ---- */

typedef struct {
    uint64_t id, cookie, tag;
    uint32_t n, n_prompt, max_tokens;
    uint32_t out[MAX_SAMPLES];
    bool started[MAX_SAMPLES], ended[MAX_SAMPLES], asked[MAX_SAMPLES];
} job;

typedef struct {
    job jobs[PART_ROOM];
    uint64_t next_id;
    ds_event queue[4096];
    uint32_t head, tail;
    bool gone, draining;
    bool away;    /* it is no part: nobody may call it */
    ds_rc refuse; /* the next add */
    uint32_t adds;
    void (*wake)(void *ctx);
    void *wake_ctx;
    void (*in_add)(void); /* called while an add isn't answered yet */
} part;

static part parts[PARTS];

static void say(part *p, const ds_event *ev)
{
    bool none = p->head == p->tail;

    assert_true(p->tail - p->head < 4096);
    p->queue[p->tail++ % 4096] = *ev;
    if (none && p->wake)
        p->wake(p->wake_ctx);
}

static bool over(const job *j)
{
    for (uint32_t i = 0; i < j->n; i++)
        if (!j->ended[i])
            return false;
    return true;
}

static void say_start(part *p, job *j, uint32_t s, uint32_t cached)
{
    j->started[s] = true;
    say(p, &(ds_event){ .kind = DS_EV_START,
                        .sample = s,
                        .request = j->id,
                        .cookie = j->cookie,
                        .start = { .n_prompt = j->n_prompt, .cached = cached } });
}

static void say_token(part *p, job *j, uint32_t s)
{
    say(p, &(ds_event){ .kind = DS_EV_TOKEN,
                        .sample = s,
                        .request = j->id,
                        .cookie = j->cookie,
                        .token = { .index = j->out[s], .id = (int32_t)j->tag } });
    j->out[s]++;
}

static void say_end(part *p, job *j, uint32_t s, ds_end_reason reason, ds_rc rc)
{
    ds_event ev = {
        .kind = DS_EV_END, .sample = s, .request = j->id, .cookie = j->cookie, .end = { .reason = reason, .rc = rc, .n_tokens = j->out[s] }
    };

    j->ended[s] = true;
    ev.end.last = over(j);
    if (ev.end.last)
        j->id = 0;
    say(p, &ev);
}

static job *part_job(part *p, uint64_t id)
{
    for (int i = 0; id && i < PART_ROOM; i++)
        if (p->jobs[i].id == id)
            return &p->jobs[i];
    return NULL;
}

static ds_rc part_add(void *h, const ds_gen_request *q, uint64_t *id, ds_err *err)
{
    part *p = h;
    job *j = NULL;

    assert_false(p->away);
    for (int i = 0; i < PART_ROOM && !j; i++)
        if (!p->jobs[i].id)
            j = &p->jobs[i];
    *id = 0;
    p->adds++;
    if (p->refuse != DS_OK) {
        ds_rc rc = p->refuse;
        p->refuse = DS_OK;
        return ds_fail(err, rc, "refused once");
    }
    if (p->gone)
        return ds_fail(err, DS_E_IO, "gone");
    if (!j || p->draining)
        return ds_fail(err, DS_E_AGAIN, "full");
    *j = (job){ .id = ++p->next_id * PARTS + (uint64_t)(p - parts),
                .cookie = q->cookie,
                .tag = q->tag,
                .n = q->n ? q->n : 1,
                .n_prompt = q->n_prompt,
                .max_tokens = q->max_tokens };
    *id = j->id;
    if (p->in_add)
        p->in_add();
    return DS_OK;
}

/* An id that this part never gave is a bug of whoever orders. */
static void check_id(const part *p, uint64_t id)
{
    assert_true(id % PARTS == (uint64_t)(p - parts) && id / PARTS >= 1 && id / PARTS <= p->next_id);
}

static void part_cancel(void *h, uint64_t id)
{
    part *p = h;
    job *j;

    assert_false(p->away);
    check_id(p, id);
    j = part_job(p, id);
    for (uint32_t i = 0; j && i < j->n; i++)
        j->asked[i] = true;
}

static void part_finish(void *h, uint64_t id, uint32_t sample)
{
    part *p = h;
    job *j;

    assert_false(p->away);
    check_id(p, id);
    j = part_job(p, id);
    if (j && sample < j->n)
        j->asked[sample] = true;
}

static size_t part_poll(void *h, ds_event *ev, size_t cap)
{
    part *p = h;
    size_t n = 0;

    assert_false(p->away);
    while (n < cap && p->head != p->tail)
        ev[n++] = p->queue[p->head++ % 4096];
    return n;
}

static bool part_wait(void *h, uint32_t ms)
{
    part *p = h;

    assert_false(p->away);
    (void)ms;
    return p->head != p->tail;
}

static void part_wake_by(void *h, void (*wake)(void *ctx), void *ctx)
{
    part *p = h;

    p->wake = wake;
    p->wake_ctx = ctx;
}

static bool part_drain(void *h)
{
    part *p = h;
    bool none = true;

    assert_false(p->away);
    p->draining = true;
    for (int i = 0; i < PART_ROOM; i++)
        none = none && !p->jobs[i].id;
    return none;
}

static uint32_t part_engines(void *h)
{
    return h == &parts[1] ? 2 : 1;
}

static bool part_stats(void *h, uint32_t engine, ds_gen_stats *out)
{
    part *p = h;

    *out = (ds_gen_stats){ .steps = (uint64_t)(p - parts) * 10 + engine, .running = 1 };
    return !p->gone;
}

static bool part_plan(void *h, uint32_t engine, ds_gen_plan *out)
{
    part *p = h;

    *out = (ds_gen_plan){ .total = (uint64_t)(p - parts) * 10 + engine };
    return true;
}

/* Something happens to a sample of it. */
static void part_step(part *p)
{
    job *j = &p->jobs[draw(PART_ROOM)];
    uint32_t s = j->id ? draw(j->n) : 0;

    if (!j->id || j->ended[s])
        return;
    if (j->asked[s])
        say_end(p, j, s, DS_ENDED_CANCELED, DS_OK);
    else if (!j->started[s] && draw(20) == 0)
        for (uint32_t i = 0; i < j->n; i++) { /* refused after all, as a whole */
            if (!j->ended[i])
                say_end(p, j, i, DS_ENDED_FAILED, DS_E_AGAIN);
        }
    else if (!j->started[s])
        say_start(p, j, s, draw(j->n_prompt));
    else if (j->out[s] == j->max_tokens || draw(8) == 0)
        say_end(p, j, s, j->out[s] == j->max_tokens ? DS_ENDED_LENGTH : DS_ENDED_STOP_ID, DS_OK);
    else
        say_token(p, j, s);
}

/* Everything that it had is lost; it says so itself, as whoever speaks to it over a wire would. */
static void part_die(part *p)
{
    p->gone = true;
    for (int i = 0; i < PART_ROOM; i++) {
        job *j = &p->jobs[i];
        for (uint32_t s = 0; j->id && s < j->n; s++)
            if (!j->ended[s])
                say_end(p, j, s, DS_ENDED_LOST, DS_E_IO);
    }
}

static ds_gen gen_of(part *p)
{
    static const ds_gen_fn fn = { part_add,     part_cancel, part_finish,  part_poll,  part_wait,
                                  part_wake_by, part_drain,  part_engines, part_stats, part_plan };

    return (ds_gen){ &fn, p };
}

static ds_gen make(ds_gen_many **m)
{
    ds_gen list[PARTS];
    ds_err err;

    memset(parts, 0, sizeof parts);
    for (int i = 0; i < PARTS; i++)
        list[i] = gen_of(&parts[i]);
    assert_ok(ds_gen_many_create(m, list, PARTS, &err));
    return ds_gen_many_gen(*m);
}

static ds_rc add(ds_gen g, uint32_t n_prompt, uint32_t max_tokens, uint64_t *id)
{
    ds_gen_request q = { .n_prompt = n_prompt, .max_tokens = max_tokens, .cookie = 7, .n = 1 };

    return ds_gen_add(g, &q, id, NULL);
}

static size_t read_all(ds_gen g)
{
    ds_event ev[16];
    size_t all = 0, n;

    while ((n = ds_gen_poll(g, ev, 16)) > 0)
        all += n;
    return all;
}

/* ---- where requests go ---- */

static void the_least_work_ahead(void **state)
{
    ds_gen_many *m;
    ds_gen g = make(&m);
    ds_gen_many_work work;
    uint64_t id;

    (void)state;
    assert_int_equal(add(g, 1000, 10, &id), DS_OK); /* equals: the first */
    assert_int_equal(add(g, 100, 10, &id), DS_OK);
    assert_int_equal(add(g, 50, 10, &id), DS_OK);
    assert_int_equal(add(g, 20, 10, &id), DS_OK); /* 1010, 110, 60 */
    assert_int_equal(add(g, 20, 10, &id), DS_OK); /* 1010, 110, 90 */
    assert_int_equal(add(g, 20, 10, &id), DS_OK); /* 1010, 110, 120 */
    ds_gen_many_work_get(m, &work);
    assert_int_equal(work.tokens[0], 1010);
    assert_int_equal(work.tokens[1], 140);
    assert_int_equal(work.tokens[2], 120);
    say_start(&parts[0], &parts[0].jobs[0], 0, 900); /* most of the long prompt was cached */
    read_all(g);
    ds_gen_many_work_get(m, &work);
    assert_int_equal(work.tokens[0], 110);
    assert_int_equal(add(g, 1, 4, &id), DS_OK);
    assert_int_equal(parts[0].adds, 2);
    say_token(&parts[0], &parts[0].jobs[0], 0); /* the prompt is over, and a token of the answer */
    read_all(g);
    ds_gen_many_work_get(m, &work);
    assert_int_equal(work.tokens[0], 9 + 5);
    say_end(&parts[0], &parts[0].jobs[0], 0, DS_ENDED_STOP_ID, DS_OK);
    read_all(g);
    ds_gen_many_work_get(m, &work);
    assert_int_equal(work.tokens[0], 5);
    assert_int_equal(work.requests[0], 1);
    ds_gen_many_destroy(m);
}

static void a_refusal_leaves_it_to_the_next(void **state)
{
    ds_gen_many *m;
    ds_gen g = make(&m);
    ds_gen_many_work work;
    uint64_t id;

    (void)state;
    parts[0].refuse = DS_E_AGAIN;
    assert_int_equal(add(g, 5, 5, &id), DS_OK);
    assert_int_equal(parts[1].adds, 1);
    parts[0].refuse = DS_E_ARG; /* everywhere the same: nobody else is asked */
    assert_int_equal(add(g, 5, 5, &id), DS_E_ARG);
    assert_true(id == 0 && parts[1].adds == 1 && parts[2].adds == 0);
    for (int i = 0; i < PARTS; i++)
        parts[i].refuse = i == 1 ? DS_E_AGAIN : DS_E_IO;
    assert_int_equal(add(g, 5, 5, &id), DS_E_AGAIN); /* one will have room again */
    for (int i = 0; i < PARTS; i++)
        parts[i].refuse = DS_E_IO;
    assert_int_equal(add(g, 5, 5, &id), DS_E_IO);
    ds_gen_many_work_get(m, &work);
    assert_true(work.requests[0] + work.requests[2] == 0 && work.requests[1] == 1);
    ds_gen_many_destroy(m);
}

static ds_gen hooked;
static uint64_t seen_id;

static void poll_in_add(void)
{
    ds_event ev[4];
    part *p = &parts[0];

    say_start(p, &p->jobs[0], 0, 0);
    assert_int_equal(ds_gen_poll(hooked, ev, 4), 1);
    seen_id = ev[0].request;
    ds_gen_cancel(hooked, seen_id);
}

static void end_in_add(void)
{
    part *p = &parts[0];

    say_end(p, &p->jobs[0], 0, DS_ENDED_STOP_ID, DS_OK);
    assert_int_equal(read_all(hooked), 1);
}

/* Whoever polls may hear of a request, order something for it, and see its end, before whoever adds it has its id. */
static void events_before_the_id(void **state)
{
    ds_gen_many *m;
    ds_gen_many_work work;
    uint64_t id;

    (void)state;
    hooked = make(&m);
    parts[0].in_add = poll_in_add;
    assert_int_equal(add(hooked, 5, 5, &id), DS_OK);
    assert_true(id == seen_id);
    assert_true(parts[0].jobs[0].asked[0]);
    say_end(&parts[0], &parts[0].jobs[0], 0, DS_ENDED_CANCELED, DS_OK);
    read_all(hooked);
    parts[0].in_add = end_in_add;
    assert_int_equal(add(hooked, 5, 5, &id), DS_OK);
    ds_gen_cancel(hooked, id); /* gone */
    ds_gen_many_work_get(m, &work);
    assert_int_equal(work.requests[0], 0);
    ds_gen_many_destroy(m);
}

static void engines_of_parts(void **state)
{
    ds_gen_many *m;
    ds_gen g = make(&m);
    ds_gen_stats st, sum = { 0 };
    ds_gen_plan plan;

    (void)state;
    assert_int_equal(ds_gen_n_engines(g), 4);
    assert_true(ds_gen_stats_get(g, 2, &st) && st.steps == 11);
    assert_true(ds_gen_plan_get(g, 3, &plan) && plan.total == 20);
    assert_false(ds_gen_plan_get(g, 4, &plan));
    parts[2].gone = true;
    assert_false(ds_gen_stats_get(g, 3, &st));
    for (uint32_t i = 0; i < 3; i++)
        if (ds_gen_stats_get(g, i, &st))
            ds_gen_stats_add(&sum, &st);
    assert_true(sum.steps == 21 && sum.running == 3);
    ds_gen_many_destroy(m);
}

/* A part goes when all was heard of its requests, and not before; its place is another's then. */
static void parts_come_and_go(void **state)
{
    ds_gen_many *m;
    ds_gen g = make(&m);
    part late = { .gone = false };
    ds_gen_plan plan;
    uint64_t id, other;
    uint32_t place;
    ds_err err = { 0 };

    (void)state;
    assert_int_equal(add(g, 5, 5, &id), DS_OK);
    assert_false(ds_gen_many_remove(m, 0));
    assert_int_equal(add(g, 500, 5, &other), DS_OK); /* nothing new for it */
    assert_true(parts[0].adds == 1 && parts[1].adds == 1);
    ds_gen_cancel(g, id); /* but what is for its request reaches it */
    assert_true(parts[0].jobs[0].asked[0]);
    say_end(&parts[0], &parts[0].jobs[0], 0, DS_ENDED_CANCELED, DS_OK);
    assert_false(ds_gen_many_remove(m, 0)); /* said, and not heard yet */
    assert_int_equal(read_all(g), 1);
    assert_true(ds_gen_many_remove(m, 0));
    parts[0].away = true;
    assert_int_equal(ds_gen_n_engines(g), 3);
    assert_true(ds_gen_plan_get(g, 0, &plan) && plan.total == 10); /* the others have moved up */
    assert_ok(ds_gen_many_add(m, gen_of(&late), &place, &err));
    assert_int_equal(place, 0);
    assert_int_equal(add(g, 1, 1, &id), DS_OK);
    assert_int_equal(late.adds, 1);
    say_end(&late, &late.jobs[0], 0, DS_ENDED_LENGTH, DS_OK);
    assert_int_equal(read_all(g), 1);
    assert_true(ds_gen_many_remove(m, 0) && ds_gen_many_remove(m, 2));
    assert_false(ds_gen_many_remove(m, 1));
    late.away = parts[2].away = true;
    assert_int_equal(add(g, 1, 1, &id), DS_E_IO); /* nobody is there who takes something new */
    say_end(&parts[1], &parts[1].jobs[0], 0, DS_ENDED_LENGTH, DS_OK);
    assert_int_equal(read_all(g), 1);
    assert_true(ds_gen_many_remove(m, 1));
    parts[1].away = true;
    assert_int_equal(ds_gen_n_engines(g), 0);
    assert_false(ds_gen_wait(g, 0));
    assert_true(ds_gen_drain(g) && read_all(g) == 0);
    ds_gen_many_destroy(m);
}

/* Every member of the statistics is a count but two: a sum of a struct with itself is twice that. */
static void sums_are_complete(void **state)
{
    ds_gen_stats one, sum;

    (void)state;
    memset(&one, 0, sizeof one);
    for (size_t i = 0; i < sizeof one / 4; i++)
        ((uint32_t *)&one)[i] = i % 2 ? 0 : (uint32_t)i + 1; /* the low half of what is wide */
    memset(&one.drafts_per_seq, 0, sizeof one.drafts_per_seq + sizeof one.cost);
    sum = one;
    ds_gen_stats_add(&sum, &one);
    for (size_t i = 0; i < sizeof one / 4; i++)
        if (((uint32_t *)&sum)[i] != 2 * ((uint32_t *)&one)[i])
            fail_msg("the member at byte %zu isn't summed", 4 * i);
}

/* ---- any interleaving ---- */

typedef struct {
    bool live, cancelled;
    uint64_t id;
    uint32_t n, max_tokens, out[MAX_SAMPLES];
    bool started[MAX_SAMPLES], ended[MAX_SAMPLES], finished[MAX_SAMPLES];
} shadow;

static shadow shadows[LIVE];
static uint64_t n_ended[DS_N_ENDED], n_tokens, n_busy, n_io;

static void fuzz_add(ds_gen g)
{
    uint32_t at = draw(LIVE);
    shadow *k = &shadows[at];
    uint32_t n = draw(4) ? 1 : 1 + draw(MAX_SAMPLES);
    ds_gen_request q = { .n_prompt = 1 + draw(300), .max_tokens = 1 + draw(12), .n = n, .cookie = at + 1000, .tag = at };
    uint64_t id;
    ds_rc rc;

    if (k->live)
        return;
    rc = ds_gen_add(g, &q, &id, NULL);
    n_busy += rc == DS_E_AGAIN;
    n_io += rc == DS_E_IO;
    assert_true(rc == DS_OK || rc == DS_E_AGAIN || rc == DS_E_IO || rc == DS_E_ARG);
    assert_true((rc == DS_OK) == (id != 0));
    if (rc != DS_OK)
        return;
    for (int i = 0; i < LIVE; i++)
        assert_false(shadows[i].live && shadows[i].id == id);
    *k = (shadow){ .live = true, .id = id, .n = n, .max_tokens = q.max_tokens };
}

static void fuzz_event(const ds_event *ev)
{
    shadow *k = &shadows[ev->cookie - 1000];
    uint32_t s = ev->sample;

    assert_true(ev->cookie >= 1000 && ev->cookie < 1000 + LIVE);
    assert_true(k->live && k->id == ev->request && s < k->n && !k->ended[s]);
    if (ev->kind == DS_EV_START) {
        assert_false(k->started[s]);
        k->started[s] = true;
    } else if (ev->kind == DS_EV_TOKEN) {
        assert_true(k->started[s] && ev->token.index == k->out[s] && ev->token.id == (int32_t)(ev->cookie - 1000));
        k->out[s]++;
        n_tokens++;
    } else {
        bool last = true;
        k->ended[s] = true;
        n_ended[ev->end.reason]++;
        assert_int_equal(ev->end.n_tokens, k->out[s]);
        if (ev->end.reason == DS_ENDED_CANCELED)
            assert_true(k->cancelled || k->finished[s]);
        for (uint32_t i = 0; i < k->n; i++)
            last = last && k->ended[i];
        assert_int_equal(ev->end.last, last);
        k->live = !last;
    }
}

static size_t fuzz_poll(ds_gen g, size_t cap)
{
    ds_event ev[64];
    size_t n = ds_gen_poll(g, ev, cap);

    assert_true(n <= cap);
    for (size_t i = 0; i < n; i++)
        fuzz_event(&ev[i]);
    if (n < cap) /* nothing more now */
        assert_false(ds_gen_wait(g, 0));
    return n;
}

static ds_gen_many *fuzzed;
static uint32_t places[PARTS];
static uint64_t n_left;

/* One part comes and goes; the others stay, so that something is always there. */
static void fuzz_place(void)
{
    uint32_t i = PARTS - 1;

    if (!parts[i].away) {
        parts[i].away = ds_gen_many_remove(fuzzed, places[i]);
        n_left += parts[i].away;
        return;
    }
    memset(&parts[i], 0, sizeof parts[i]);
    assert_int_equal(ds_gen_many_add(fuzzed, gen_of(&parts[i]), &places[i], NULL), DS_OK);
}

static void fuzz_turn(ds_gen g)
{
    shadow *k = &shadows[draw(LIVE)];
    part *p = &parts[draw(PARTS)];
    uint32_t what = draw(1000);

    if (what < 200) {
        fuzz_add(g);
    } else if (what < 750) {
        part_step(p);
    } else if (what < 900) {
        fuzz_poll(g, 1 + draw(64));
    } else if (what < 930) {
        ds_gen_cancel(g, k->id); /* perhaps one that is gone, or never was */
        k->cancelled = k->live;
    } else if (what < 960) {
        uint32_t s = draw(40);
        ds_gen_finish_sample(g, k->id, s);
        if (s < MAX_SAMPLES)
            k->finished[s] = true;
    } else if (what < 980) {
        static const ds_rc why[] = { DS_E_AGAIN, DS_E_IO, DS_E_ARG };
        p->refuse = why[draw(3)];
    } else if (what < 983) {
        part_die(p);
    } else if (what < 990) {
        p->gone = false;
    } else {
        fuzz_place();
    }
}

static void any_interleaving(void **state)
{
    ds_gen_many_work work;

    (void)state;
    for (seed = 1; seed <= 60; seed++) {
        ds_gen_many *m;
        ds_gen g = make(&m);
        memset(shadows, 0, sizeof shadows);
        fuzzed = m;
        for (uint32_t i = 0; i < PARTS; i++)
            places[i] = i;
        for (int i = 0; i < 8000; i++)
            fuzz_turn(g);
        ds_gen_drain(g);
        for (int i = 0; !ds_gen_drain(g); i++) {
            assert_true(i < 1000000);
            part_step(&parts[draw(PARTS)]);
            fuzz_poll(g, 1 + draw(8));
        }
        while (fuzz_poll(g, 64) > 0)
            ;
        for (int i = 0; i < LIVE; i++)
            assert_false(shadows[i].live);
        ds_gen_many_work_get(m, &work);
        for (int i = 0; i < PARTS; i++)
            assert_true(work.requests[i] == 0 && work.tokens[i] == 0);
        ds_gen_many_destroy(m);
    }
    for (int i = 0; i < DS_N_ENDED; i++) /* the test is worth something */
        assert_true(n_ended[i] > 0 || i == DS_ENDED_STOP_STRING || i == DS_ENDED_DEADLINE);
    assert_true(n_busy > 0 && n_io > 0 && n_tokens > 10000 && n_left > 100);
}

/* ---- memory ---- */

static void no_memory_for_a_record(void **state)
{
    ds_gen_many *m;
    ds_gen g = make(&m);
    ds_gen_request q = { .n_prompt = 5, .max_tokens = 5 };
    uint64_t id;
    ds_err err = { 0 };

    (void)state;
    fault_arm(1, false);
    assert_refused(ds_gen_add(g, &q, &id, &err), DS_E_NOMEM, "memory");
    assert_true(fault_disarm());
    assert_true(id == 0 && parts[0].adds == 0);
    assert_ok(ds_gen_add(g, &q, &id, &err));
    ds_gen_many_destroy(m);
    fault_arm(1, false);
    assert_int_equal(ds_gen_many_create(&m, &g, 1, &err), DS_E_NOMEM);
    assert_true(fault_disarm());
    assert_null(m);
    assert_refused(ds_gen_many_create(&m, &g, 65, &err), DS_E_ARG, "1..64");
}

/* ---- real engines, with threads ---- */

enum { ENGINES = 3, CLIENTS = 4, EACH = 100 };

typedef struct {
    atomic_uint tokens, ends;
    uint64_t hash;
    bool cancelled;
} note;

static note notes[CLIENTS * EACH];
static ds_gen real;
static atomic_uint open_requests, wakes;

static void count_wake(void *ctx)
{
    (void)ctx;
    atomic_fetch_add(&wakes, 1);
}

static ds_gen_request request_of(uint32_t i, int32_t prompt[300])
{
    ds_gen_request q = {
        .prompt = prompt, .n_prompt = 1 + i * 37 % 300, .max_tokens = 1 + i % 23, .sampling = DS_SAMPLING_DEFAULT, .cookie = i
    };

    for (uint32_t k = 0; k < q.n_prompt; k++)
        prompt[k] = (int32_t)((i * 31 + k) % 1000);
    q.sampling.seed = i;
    return q;
}

static void *client(void *arg)
{
    int32_t prompt[300];

    for (uint32_t k = 0; k < EACH; k++) {
        uint32_t i = (uint32_t)(uintptr_t)arg * EACH + k;
        ds_gen_request q = request_of(i, prompt);
        uint64_t id;
        ds_rc rc;
        notes[i].cancelled = k % 10 == 9;
        atomic_fetch_add(&open_requests, 1);
        while ((rc = ds_gen_add(real, &q, &id, NULL)) == DS_E_AGAIN)
            sched_yield();
        if (rc != DS_OK)
            atomic_store(&notes[i].ends, 1000);
        if (notes[i].cancelled)
            ds_gen_cancel(real, id);
    }
    return NULL;
}

static void take(const ds_event *ev)
{
    note *k = &notes[ev->cookie];

    if (ev->kind == DS_EV_TOKEN) {
        assert_int_equal(ev->token.index, atomic_load(&k->tokens));
        k->hash = (k->hash ^ (uint64_t)ev->token.id) * UINT64_C(0x100000001b3);
        atomic_fetch_add(&k->tokens, 1);
    } else if (ev->kind == DS_EV_END) {
        atomic_fetch_add(&k->ends, 1);
        atomic_fetch_sub(&open_requests, 1);
    }
}

static void run_real(uint32_t n_engines, uint32_t n_clients)
{
    ds_engine *e[ENGINES];
    ds_gen list[ENGINES];
    ds_gen_many *m;
    ds_gen_many_work work;
    pthread_t t[CLIENTS];
    ds_event ev[32];
    ds_err err;

    memset(notes, 0, sizeof notes);
    atomic_store(&open_requests, 0);
    for (uint32_t i = 0; i < n_engines; i++) {
        assert_ok(ds_engine_create_stub(
            &e[i], &(ds_engine_stub){ .vocab = 1000, .drafts = 3, .step_ns = 5000 },
            &(ds_engine_opts){ .max_context = 600, .max_requests = 8, .max_running = 4, .drafts = DS_ENGINE_DRAFTS_AUTO }, &err));
        list[i] = ds_engine_gen(e[i]);
    }
    assert_ok(ds_gen_many_create(&m, list, n_engines, &err));
    real = ds_gen_many_gen(m);
    ds_gen_wake_by(real, count_wake, NULL);
    for (uint32_t i = 0; i < n_engines; i++)
        assert_ok(ds_engine_start(e[i], &err));
    for (uintptr_t i = 0; i < n_clients; i++)
        assert_int_equal(pthread_create(&t[i], NULL, client, (void *)i), 0);
    for (uint32_t ended = 0; ended < n_clients * EACH;) {
        size_t n = ds_gen_wait(real, 1000) ? ds_gen_poll(real, ev, 32) : 0;
        for (size_t i = 0; i < n; i++) {
            take(&ev[i]);
            ended += ev[i].kind == DS_EV_END;
        }
    }
    for (uint32_t i = 0; i < n_clients; i++)
        pthread_join(t[i], NULL);
    assert_int_equal(atomic_load(&open_requests), 0);
    for (uint32_t i = 0; i < n_clients * EACH; i++) {
        assert_int_equal(atomic_load(&notes[i].ends), 1);
        if (!notes[i].cancelled)
            assert_int_equal(atomic_load(&notes[i].tokens), 1 + i % 23);
    }
    while (!ds_gen_drain(real)) /* the ends are read; the last steps in flight may still run */
        sched_yield();
    ds_gen_many_work_get(m, &work);
    for (uint32_t i = 0; i < n_engines; i++) {
        ds_gen_stats st;
        assert_true(work.requests[i] == 0 && work.tokens[i] == 0);
        assert_true(ds_gen_stats_get(real, i, &st) && st.accepted > 0);
    }
    for (uint32_t i = 0; i < n_engines; i++)
        ds_engine_destroy(e[i]);
    ds_gen_many_destroy(m);
}

static void texts_are_equal_with_any_number(void **state)
{
    static uint64_t alone[CLIENTS * EACH];

    (void)state;
    run_real(1, CLIENTS);
    for (int i = 0; i < CLIENTS * EACH; i++)
        alone[i] = notes[i].hash;
    run_real(ENGINES, CLIENTS);
    assert_true(atomic_load(&wakes) > 0);
    for (int i = 0; i < CLIENTS * EACH; i++)
        if (!notes[i].cancelled)
            assert_true(alone[i] == notes[i].hash);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_work_ahead),
        cmocka_unit_test(a_refusal_leaves_it_to_the_next),
        cmocka_unit_test(events_before_the_id),
        cmocka_unit_test(engines_of_parts),
        cmocka_unit_test(parts_come_and_go),
        cmocka_unit_test(sums_are_complete),
        cmocka_unit_test(any_interleaving),
        cmocka_unit_test(no_memory_for_a_record),
        cmocka_unit_test(texts_are_equal_with_any_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
