/* A store behind the engine, one situation after the other: what is found there, what waits for what, and what happens
 * when it doesn't come. On the null backend, which checks every byte that comes back, and a clock that stands still. */
#include <pthread.h>
#include <unistd.h>

#include "engine/engine_internal.h"
#include "fake_store.h"
#include "test.h"

enum { VOCAB = 100, PROMPT = 400, HIT = 256 };

static const ds_engine_stub stub = { .vocab = VOCAB, .verify = true };
static int32_t ids[4][1000];
static uint64_t now_ns;
static fake_store *store;
static ds_store the_store;

static uint64_t clock_now(void *ctx)
{
    (void)ctx;
    return now_ns;
}

static void clock_sleep(void *ctx, uint64_t ns)
{
    (void)ctx;
    now_ns = ns > now_ns ? ns : now_ns;
}

/* What is likely happens, what isn't doesn't. */
static uint32_t middle(uint32_t below)
{
    return below / 2;
}

static void new_store(bool on_commit)
{
    uint64_t block, slot;

    ds_backend_null_bytes(&stub, &block, &slot);
    store = fake_store_new(&(fake_store_opts){ .rnd = middle, .records = 100, .per_cent = 100, .on_commit = on_commit }, block,
                           slot + DS_KV_STATE_HEADER);
    the_store = fake_store_store(store);
}

static ds_engine *make(ds_engine_opts o)
{
    ds_engine *e;
    ds_err err;

    now_ns = now_ns ? now_ns : 1000000;
    o.max_context = 1000;
    o.store = &the_store;
    o.token_bytes = NULL;
    o.clock = (ds_engine_clock){ .now_ns = clock_now, .sleep_until_ns = clock_sleep };
    assert_ok(ds_engine_create_stub(&e, &stub, &o, &err));
    return e;
}

static void turns(ds_engine *e, int n)
{
    for (int i = 0; i < n; i++) {
        const char *wrong;
        fake_store_turn(store);
        ds_engine_turn(e);
        wrong = ds_engine_check(e);
        if (!wrong)
            wrong = ds_backend_null_fault(e->dev);
        if (wrong)
            fail_msg("%s", wrong);
    }
}

static uint64_t add(ds_engine *e, int which, ds_gen_request q)
{
    uint64_t id;
    ds_err err;

    q.prompt = ids[which];
    q.n_prompt = PROMPT;
    q.max_tokens = 5;
    q.sampling = DS_SAMPLING_DEFAULT;
    assert_ok(ds_engine_add(e, &q, &id, &err));
    return id;
}

typedef struct {
    uint32_t started, ended, cached, replayed, tokens;
    ds_end_reason reason;
} seen;

static seen read_events(ds_engine *e)
{
    seen s = { 0 };
    ds_event ev[64];
    size_t n = ds_engine_poll(e, ev, 64);

    assert_true(n < 64);
    for (size_t i = 0; i < n; i++) {
        if (ev[i].kind == DS_EV_START) {
            s.started++;
            s.cached = ev[i].start.cached;
            s.replayed = ev[i].start.replayed;
        }
        if (ev[i].kind == DS_EV_END) {
            s.ended++;
            s.reason = ev[i].end.reason;
        }
        s.tokens += ev[i].kind == DS_EV_TOKEN;
    }
    return s;
}

static ds_gen_stats stats(ds_engine *e)
{
    ds_gen_stats st;

    ds_engine_stats_get(e, &st);
    return st;
}

/* An engine that computed prompt 0 and is gone; the store has it. */
static void prepare(ds_engine_opts o, bool on_commit)
{
    ds_engine *e;

    new_store(on_commit);
    e = make(o);
    add(e, 0, (ds_gen_request){ 0 });
    turns(e, 40);
    assert_int_equal(read_events(e).tokens, 5);
    ds_engine_destroy(e);
}

static void done(ds_engine *e)
{
    assert_int_equal(fake_store_tickets(store), 0);
    ds_engine_destroy(e);
    fake_store_free(store);
}

static const ds_engine_opts modes[] = { { .mode = DS_ENGINE_EXACT },
                                        { .mode = DS_ENGINE_CED, .no_replay = true },
                                        { .mode = DS_ENGINE_CED } };
enum { N_MODES = sizeof modes / sizeof *modes };

/* What one engine saved when it was committed, another one finds. */
static void another_engine_hits(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODES; m++) {
        ds_engine *e;
        ds_gen_stats st;
        seen s;
        prepare(modes[m], true);
        e = make(modes[m]);
        add(e, 0, (ds_gen_request){ 0 });
        turns(e, 40);
        s = read_events(e);
        st = stats(e);
        assert_true(s.tokens == 5 && s.cached == HIT);
        assert_int_equal(s.replayed, m == 2 ? 128 : 0); /* a short prompt isn't cut for a state where a replay will do */
        assert_int_equal(st.fetched_blocks, 2);
        assert_int_equal(st.fetched_states, m < 2);
        assert_int_equal(st.hit_host_tokens + st.hit_store_tokens, HIT);
        assert_int_equal(st.computed_tokens, PROMPT - HIT + s.replayed);
        done(e);
    }
}

/* The second request with the prefix of one that waits for the store waits too, asks for nothing and computes
 * nothing twice. Others pass both. */
static void the_second_waits(void **state)
{
    ds_gen_stats st;
    ds_engine *e;
    seen s;

    (void)state;
    prepare(modes[0], true);
    fake_store_set(store, 0, 0);
    e = make(modes[0]);
    add(e, 0, (ds_gen_request){ 0 });
    add(e, 0, (ds_gen_request){ 0 });
    turns(e, 10);
    assert_int_equal(read_events(e).started, 0);
    assert_int_equal(fake_store_tickets(store), 1);
    assert_int_equal(stats(e).waiting, 2);
    add(e, 1, (ds_gen_request){ 0 });
    turns(e, 30);
    s = read_events(e);
    assert_true(s.started == 1 && s.ended == 1 && s.cached == 0);
    fake_store_set(store, 100, 0);
    turns(e, 40);
    s = read_events(e);
    st = stats(e);
    assert_true(s.ended == 2 && s.cached == HIT);
    assert_int_equal(st.fetches, 1);
    assert_int_equal(st.computed_tokens, PROMPT + 2 * (PROMPT - HIT));
    done(e);
}

/* At its deadline a fetch is given up and counted, the request computes, and so does who waited with it; the store is
 * left alone for a while. What comes too late is nobody's. */
static void late(void **state)
{
    ds_gen_stats st;
    ds_engine *e;
    seen s;

    (void)state;
    prepare(modes[0], true);
    fake_store_set(store, 0, 0);
    e = make((ds_engine_opts){ .mode = DS_ENGINE_EXACT, .fetch_ms = 10 });
    add(e, 0, (ds_gen_request){ 0 });
    add(e, 0, (ds_gen_request){ 0 });
    turns(e, 5);
    now_ns += 9000000;
    turns(e, 5);
    assert_int_equal(read_events(e).started, 0);
    now_ns += 1000000;
    turns(e, 1);
    assert_int_equal(fake_store_tickets(store), 0);
    fake_store_set(store, 100, 0);
    turns(e, 40);
    s = read_events(e);
    st = stats(e);
    assert_int_equal(s.ended, 2);
    assert_int_equal(st.fetches, 1);
    assert_int_equal(st.fetch_missed[DS_STORE_LATE], 3); /* two blocks, a state */
    assert_int_equal(st.hit_state_tokens, HIT);          /* the second found what the first computed */
    assert_int_equal(st.computed_tokens, PROMPT + PROMPT - HIT);
    done(e);
}

/* What doesn't come is counted by its cause, and the request computes; a store that is busy has its time first. */
static void failing(void **state)
{
    ds_gen_stats st;
    ds_engine *e;

    (void)state;
    prepare(modes[0], true);
    fake_store_set(store, 100, 100);
    e = make(modes[0]);
    add(e, 0, (ds_gen_request){ 0 });
    turns(e, 5);
    assert_int_equal(read_events(e).started, 0);
    now_ns += 1000000000;
    turns(e, 40);
    assert_int_equal(read_events(e).tokens, 5);
    st = stats(e);
    assert_int_equal(st.fetches, 1); /* it isn't asked again */
    assert_int_equal(st.fetch_missed[DS_STORE_BUSY], 3);
    assert_int_equal(st.computed_tokens, PROMPT);
    done(e);
}

/* Cancel, and the request's own deadline, end it while it waits for the store, and the ticket with it. */
static void ended_while_fetching(void **state)
{
    (void)state;
    for (int way = 0; way < 3; way++) {
        ds_engine *e;
        uint64_t id;
        prepare(modes[0], true);
        fake_store_set(store, 0, 0);
        e = make(modes[0]);
        id = add(e, 0, (ds_gen_request){ .deadline_us = way == 1 ? 50 : 0 });
        turns(e, 3);
        assert_int_equal(fake_store_tickets(store), 1);
        if (way == 0)
            ds_engine_cancel(e, id);
        now_ns += way == 1 ? 10000000 : 0;
        if (way == 2) { /* destroyed as it is */
            ds_engine_destroy(e);
            fake_store_free(store);
            continue;
        }
        turns(e, 1);
        assert_int_equal(read_events(e).reason, way == 0 ? DS_ENDED_CANCELED : DS_ENDED_DEADLINE);
        assert_int_equal(e->loop.blocks.n_idle, e->loop.blocks.n);
        done(e);
    }
}

/* What a replay left comes back with its mark: never to a request that must be reproducible. */
static void approximate_ones(void **state)
{
    ds_engine *e;
    seen s;

    (void)state;
    new_store(true);
    e = make((ds_engine_opts){ .mode = DS_ENGINE_CED, .saved_states = 2 });
    add(e, 0, (ds_gen_request){ 0 });
    turns(e, 40);
    read_events(e);
    ds_engine_destroy(e);
    fake_store_forget_states(store); /* so that the next one goes on by replay */
    memcpy(ids[3], ids[0], sizeof ids[3]);
    ids[3][PROMPT - 100] ^= 1; /* in the third block */
    e = make((ds_engine_opts){ .mode = DS_ENGINE_CED });
    add(e, 3, (ds_gen_request){ 0 });
    turns(e, 40);
    s = read_events(e);
    assert_true(s.cached == HIT && s.replayed > 0 && s.tokens == 5);
    ds_engine_destroy(e);
    e = make((ds_engine_opts){ .mode = DS_ENGINE_CED });
    add(e, 3, (ds_gen_request){ .replay = DS_REPLAY_NEVER });
    turns(e, 40);
    s = read_events(e);
    assert_true(s.cached == 0 && s.replayed == 0 && s.tokens == 5);
    done(e);
}

/* A store that takes only what leaves is offered just that. */
static void only_what_leaves(void **state)
{
    ds_engine *e;

    (void)state;
    new_store(false);
    e = make((ds_engine_opts){ .mode = DS_ENGINE_EXACT, .kv_blocks = 8, .max_running = 1, .saved_states = 2 });
    for (int round = 0; round < 2; round++)
        for (int p = 0; p < 3; p++) {
            add(e, p, (ds_gen_request){ 0 });
            turns(e, 60);
            assert_int_equal(read_events(e).cached, round ? HIT : 0);
        }
    assert_true(stats(e).fetched_blocks > 0);
    done(e);
}

/* ---- with threads ---- */

static atomic_bool over;
static void *store_thread(void *arg)
{
    (void)arg;
    while (!atomic_load(&over)) {
        fake_store_turn(store);
        usleep(100);
    }
    return NULL;
}

/* The store answers from a thread of its own and wakes a loop that sleeps. */
static void from_another_thread(void **state)
{
    ds_engine_opts o = { .mode = DS_ENGINE_EXACT, .max_context = 1000, .fetch_ms = 60000, .store = &the_store };
    ds_engine *e;
    pthread_t thread;
    ds_gen_stats st;
    ds_err err;

    (void)state;
    prepare(modes[0], true);
    assert_ok(ds_engine_create_stub(&e, &stub, &o, &err));
    assert_ok(ds_engine_start(e, &err));
    atomic_store(&over, false);
    assert_int_equal(pthread_create(&thread, NULL, store_thread, NULL), 0);
    for (int i = 0; i < 20; i++) {
        ds_event ev[64];
        uint32_t ended = 0;
        fake_store_set(store, i % 2 ? 60 : 0, 0);
        add(e, i % 3, (ds_gen_request){ 0 });
        usleep(300);
        fake_store_set(store, 60, 0);
        while (!ended) {
            size_t n;
            ds_engine_wait(e, 1000);
            n = ds_engine_poll(e, ev, 64);
            for (size_t k = 0; k < n; k++)
                ended += ev[k].kind == DS_EV_END;
        }
    }
    ds_engine_stats_get(e, &st);
    assert_int_equal(st.ended[DS_ENDED_LENGTH], 20);
    assert_true(st.fetches >= 1 && st.fetched_blocks == 2);
    ds_engine_destroy(e);
    atomic_store(&over, true);
    pthread_join(thread, NULL);
    fake_store_free(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_engine_hits),
        cmocka_unit_test(the_second_waits),
        cmocka_unit_test(late),
        cmocka_unit_test(failing),
        cmocka_unit_test(approximate_ones),
        cmocka_unit_test(only_what_leaves),
        cmocka_unit_test(ended_while_fetching),
        cmocka_unit_test(from_another_thread),
    };

    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 1000; i++)
            ids[p][i] = (i * 7 + p * 13 + 1) % VOCAB;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
