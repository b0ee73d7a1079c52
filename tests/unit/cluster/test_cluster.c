/* Engines behind connections: answers as from one engine, lost and found engines, orders, strangers. Engines without a
 * model, in this process, so that their counts can be looked at. */
#include "test.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "cluster/again.h"
#include "cluster/host.h"
#include "cluster/remote.h"
#include "engine/engine.h"
#include "net/addr.h"

enum { VOCAB = 1000, MAX_TOKENS = 200, REQUESTS = 24, SAMPLES = 3, PROMPT = 300 };

static const ds_cw_model model = { { 1 }, { 2 } };
static ds_token prompt[PROMPT];
static char folder[] = "/tmp/ds_cluster_XXXXXX";

typedef struct {
    ds_engine *e;
    ds_host *h;
    char address[64];
} server;

static void serve_with(server *s, int number, uint64_t step_us, const ds_host_opts *ho)
{
    const ds_engine_stub stub = { .vocab = VOCAB, .step_ns = step_us * 1000 };
    const ds_engine_opts o = { .max_context = 4096, .kv_blocks = 4096, .max_running = 64, .max_requests = 256, .max_samples = 32 };
    ds_err err;

    snprintf(s->address, sizeof s->address, "unix:%s/%d", folder, number);
    assert_ok(ds_engine_create_stub(&s->e, &stub, &o, &err));
    assert_ok(ds_engine_start(s->e, &err));
    assert_ok(ds_host_start(&s->h, s->address, ds_engine_gen(s->e), ho, &err));
}

static const ds_host_opts plain = {
    .self = { .model = { { 1 }, { 2 } }, .weights = { 3 }, .how = "as ever" }, .hidden = 1, .stats_ms = 20, .conn = { .ping_ms = 20 }
};

static void serve(server *s, int number, uint64_t step_us)
{
    serve_with(s, number, step_us, &plain);
}

static void stop(server *s)
{
    ds_host_stop(s->h);
    ds_engine_destroy(s->e);
}

static ds_remote *ask(const server *s)
{
    const ds_remote_opts o = { .model = model, .hidden = 1, .retry_ms = 5, .conn = { .ping_ms = 20 } };
    ds_remote *r;
    ds_err err;

    assert_ok(ds_remote_open(&r, s->address, &o, &err));
    return r;
}

/* ---- answers ---- */

typedef struct {
    uint32_t n;
    ds_token out[MAX_TOKENS];
    bool ended;
    ds_end_reason reason;
} answer;

static answer answers[REQUESTS][SAMPLES];
static uint32_t n_ended[REQUESTS];

static ds_gen_request asked(uint32_t i)
{
    ds_gen_request q = { .prompt = prompt,
                         .n_prompt = 20 + 7 * i,
                         .max_tokens = 20 + 5 * i,
                         .n = i % 3 == 2 ? SAMPLES : 1,
                         .sampling = DS_SAMPLING_DEFAULT,
                         .cookie = i };

    q.sampling.seed = 100 + i;
    return q;
}

static void take(const ds_event *ev)
{
    answer *a = &answers[ev->cookie][ev->sample];

    assert_false(a->ended);
    if (ev->kind == DS_EV_TOKEN) {
        assert_int_equal(ev->token.index, a->n);
        a->out[a->n++] = ev->token.id;
    } else if (ev->kind == DS_EV_END) {
        a->ended = true;
        a->reason = ev->end.reason;
        n_ended[ev->cookie]++;
        assert_int_equal(ev->end.last, n_ended[ev->cookie] == (ev->cookie % 3 == 2 ? SAMPLES : 1));
    }
}

static size_t take_some(ds_gen g)
{
    ds_event ev[16];
    size_t n;

    ds_gen_wait(g, 20);
    n = ds_gen_poll(g, ev, 16);
    for (size_t i = 0; i < n; i++)
        take(&ev[i]);
    return n;
}

static bool all_ended(void)
{
    for (uint32_t i = 0; i < REQUESTS; i++)
        if (n_ended[i] < (i % 3 == 2 ? SAMPLES : 1))
            return false;
    return true;
}

static void forget(void)
{
    memset(answers, 0, sizeof answers);
    memset(n_ended, 0, sizeof n_ended);
}

static answer wanted[REQUESTS][SAMPLES];

/* From one engine of this process. */
static int make_wanted(void **state)
{
    server s;
    ds_err err;
    uint64_t id;

    (void)state;
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = i * 37 % VOCAB;
    assert_non_null(mkdtemp(folder));
    const ds_engine_stub stub = { .vocab = VOCAB };
    const ds_engine_opts o = { .max_context = 4096, .kv_blocks = 4096, .max_running = 64, .max_requests = 256, .max_samples = 32 };
    assert_ok(ds_engine_create_stub(&s.e, &stub, &o, &err));
    assert_ok(ds_engine_start(s.e, &err));
    for (uint32_t i = 0; i < REQUESTS; i++) {
        ds_gen_request q = asked(i);
        assert_ok(ds_gen_add(ds_engine_gen(s.e), &q, &id, &err));
    }
    while (!all_ended())
        take_some(ds_engine_gen(s.e));
    memcpy(wanted, answers, sizeof wanted);
    ds_engine_destroy(s.e);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

static void compare(void)
{
    for (uint32_t i = 0; i < REQUESTS; i++)
        for (uint32_t s = 0; s < (i % 3 == 2 ? SAMPLES : 1); s++) {
            assert_int_equal(answers[i][s].reason, wanted[i][s].reason);
            assert_int_equal(answers[i][s].n, wanted[i][s].n);
            assert_memory_equal(answers[i][s].out, wanted[i][s].out, wanted[i][s].n * sizeof(ds_token));
        }
}

/* Until nothing of a peer is left in an engine. */
static void wait_idle(const server *s)
{
    ds_gen_stats st;

    do {
        ds_engine_stats_get(s->e, &st);
        poll(NULL, 0, 1);
    } while (st.running || st.waiting || ds_host_stat(s->h).requests);
    assert_int_equal(st.slots_used, 0);
}

static void answers_are_an_engines(void **state)
{
    server s;
    ds_remote *r;
    ds_gen_stats st;
    ds_gen_plan p;
    ds_err err;
    uint64_t id;

    (void)state;
    forget();
    serve(&s, 1, 0);
    r = ask(&s);
    ds_gen g = ds_remote_gen(r);
    assert_int_equal(ds_gen_n_engines(g), 1);
    assert_true(ds_gen_plan_get(g, 0, &p));
    assert_int_equal(p.max_context, 4096);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        ds_gen_request q = asked(i);
        assert_ok(ds_gen_add(g, &q, &id, &err));
    }
    while (!all_ended())
        take_some(g);
    compare();
    while (!ds_gen_stats_get(g, 0, &st) || st.output_tokens == 0)
        poll(NULL, 0, 1);
    ds_gen_request bad = asked(0); /* what only the engine knows comes as an end */
    bad.n_prompt = 300;
    bad.max_tokens = 0;
    forget();
    assert_ok(ds_gen_add(g, &bad, &id, &err));
    while (!n_ended[0])
        take_some(g);
    assert_int_equal(answers[0][0].reason, DS_ENDED_FAILED);
    ds_gen_grammar here = { .fn = NULL };
    bad = asked(0);
    bad.grammar = &here;
    assert_refused(ds_gen_add(g, &bad, &id, &err), DS_E_ARG, "can't leave its process");
    ds_remote_close(r);
    wait_idle(&s);
    stop(&s);
}

static void what_is_canceled_is_gone(void **state)
{
    server s;
    ds_remote *r;
    ds_err err;
    uint64_t id[REQUESTS];

    (void)state;
    forget();
    serve(&s, 1, 2000);
    r = ask(&s);
    ds_gen g = ds_remote_gen(r);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        ds_gen_request q = asked(i);
        assert_ok(ds_gen_add(g, &q, &id[i], &err));
    }
    ds_gen_finish_sample(g, id[2], 1);
    while (!answers[2][1].ended)
        take_some(g);
    assert_int_equal(answers[2][1].reason, DS_ENDED_CANCELED);
    for (uint32_t i = 0; i < REQUESTS; i++)
        if (i != 2)
            ds_gen_cancel(g, id[i]);
    while (!all_ended())
        take_some(g);
    wait_idle(&s);
    forget(); /* a peer that goes takes its requests with it */
    for (uint32_t i = 0; i < REQUESTS; i++) {
        ds_gen_request q = asked(i);
        assert_ok(ds_gen_add(g, &q, &id[i], &err));
    }
    ds_remote_close(r);
    wait_idle(&s);
    stop(&s);
}

/* Grammars that take as long as they want; each is malformed in the end. */
typedef struct {
    pthread_mutex_t mu;
    pthread_cond_t news;
    uint32_t begun;
    bool open;
} slow_grammars;

static ds_rc slow_grammar(void *ctx, ds_gen_grammar *out, void **held, ds_str what, uint32_t samples, const ds_token *seen, uint32_t n_seen,
                          ds_err *err)
{
    slow_grammars *s = ctx;

    (void)out, (void)held, (void)samples, (void)seen, (void)n_seen;
    pthread_mutex_lock(&s->mu);
    s->begun++;
    pthread_cond_broadcast(&s->news);
    while (!s->open)
        pthread_cond_wait(&s->news, &s->mu);
    pthread_mutex_unlock(&s->mu);
    return ds_fail(err, DS_E_FORMAT, "%.*s is no grammar", (int)what.n, what.p);
}

static void no_grammar_end(void *ctx, void *held)
{
    (void)ctx;
    assert_null(held);
}

/* Two are being made, one waits, the next is one too many; all other requests and orders go on meanwhile. */
static void nothing_waits_behind_a_grammar(void **state)
{
    slow_grammars slow = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, false };
    ds_host_opts ho = plain;
    ds_gen_grammar g = { .what = { "x", 1 } };
    uint64_t id[REQUESTS], canceled;
    ds_gen_request q;
    ds_remote *r;
    server s;
    ds_err err;

    (void)state;
    forget();
    ho.grammar = slow_grammar;
    ho.grammar_end = no_grammar_end;
    ho.ctx = &slow;
    ho.max_waiting = 1;
    serve_with(&s, 1, 1000, &ho);
    r = ask(&s);
    ds_gen gen = ds_remote_gen(r);
    for (uint32_t i = 0; i < 3; i++) {
        q = asked(3 * i); /* one sample each */
        q.grammar = &g;
        assert_ok(ds_gen_add(gen, &q, &id[i], &err));
        pthread_mutex_lock(&slow.mu);
        while (i < 2 && slow.begun <= i)
            pthread_cond_wait(&slow.news, &slow.mu);
        pthread_mutex_unlock(&slow.mu);
    }
    q = asked(9);
    q.grammar = &g;
    assert_ok(ds_gen_add(gen, &q, &id[3], &err));
    q = asked(12);
    assert_ok(ds_gen_add(gen, &q, &id[4], &err));
    q = asked(15);
    q.max_tokens = MAX_TOKENS;
    assert_ok(ds_gen_add(gen, &q, &canceled, &err));
    while (!n_ended[9] || !n_ended[12])
        take_some(gen);
    assert_int_equal(answers[9][0].reason, DS_ENDED_FAILED);
    assert_int_equal(answers[12][0].n, wanted[12][0].n);
    ds_gen_cancel(gen, canceled);
    while (!n_ended[15])
        take_some(gen);
    ds_gen_cancel(gen, id[0]);
    ds_gen_cancel(gen, id[2]);
    q = asked(18); /* an order behind those two: they have been heard when it ends */
    q.max_tokens = 1;
    assert_ok(ds_gen_add(gen, &q, &id[5], &err));
    while (!n_ended[18])
        take_some(gen);
    assert_true(!n_ended[0] && !n_ended[3] && !n_ended[6]);
    pthread_mutex_lock(&slow.mu);
    slow.open = true;
    pthread_cond_broadcast(&slow.news);
    pthread_mutex_unlock(&slow.mu);
    while (!n_ended[0] || !n_ended[3] || !n_ended[6])
        take_some(gen);
    assert_int_equal(answers[3][0].reason, DS_ENDED_FAILED);
    assert_int_equal(answers[6][0].reason, DS_ENDED_CANCELED); /* before it was begun */
    assert_int_equal(slow.begun, 2);
    q = asked(21); /* stopped with one that waits, and one whose peer is gone */
    q.grammar = &g;
    assert_ok(ds_gen_add(gen, &q, &id[6], &err));
    ds_remote_close(r);
    wait_idle(&s);
    stop(&s);
}

/* Engines of one entry have the same weights, at the start and whenever one comes back. */
static void one_model(void **state)
{
    ds_host_opts other = plain;
    ds_family family;
    ds_remote_opts o = { .model = model, .family = &family, .hidden = 1, .retry_ms = 5, .conn = { .ping_ms = 20 } };
    ds_gen_request q = asked(0);
    ds_remote *r[2];
    uint64_t id;
    server s[2];
    ds_err err;

    (void)state;
    ds_family_init(&family);
    other.self.weights[0] = 4;
    serve(&s[0], 1, 0);
    serve_with(&s[1], 2, 0, &other);
    assert_ok(ds_remote_open(&r[0], s[0].address, &o, &err));
    assert_refused(ds_remote_open(&r[1], s[1].address, &o, &err), DS_E_ARG, "its weights are 04000000, those of engine unix:");
    stop(&s[1]);
    stop(&s[0]);
    serve_with(&s[0], 1, 0, &other);
    while (ds_host_stat(s[0].h).accepted < 3) /* it comes again and again, and asks for nothing */
        poll(NULL, 0, 1);
    assert_int_equal(ds_gen_add(ds_remote_gen(r[0]), &q, &id, &err), DS_E_IO);
    stop(&s[0]);
    serve(&s[0], 1, 0);
    while (ds_gen_add(ds_remote_gen(r[0]), &q, &id, &err) == DS_E_IO)
        poll(NULL, 0, 1);
    ds_remote_close(r[0]);
    stop(&s[0]);
    ds_family_fini(&family);
}

/* Whoever closes doesn't wait for an engine that never answers. */
static void an_engine_that_came_back_mute(void **state)
{
    ds_remote *r;
    ds_addr at;
    server s;
    int mute, fd = -1;
    ds_err err;

    (void)state;
    serve(&s, 1, 0);
    r = ask(&s);
    stop(&s);
    assert_ok(ds_addr_parse(&at, s.address, &err));
    assert_ok(ds_addr_listen(&at, &mute, &err));
    while (ds_addr_accept(mute, &fd, &err) != DS_OK)
        poll(NULL, 0, 1);
    ds_remote_close(r);
    close(fd);
    close(mute);
    unlink(at.text + 5);
}

static void a_lost_engine_ends_what_it_had(void **state)
{
    server s;
    ds_remote *r;
    ds_err err;
    uint64_t id;
    ds_gen_request q;

    (void)state;
    forget();
    serve(&s, 1, 3000);
    r = ask(&s);
    ds_gen g = ds_remote_gen(r);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        q = asked(i);
        assert_ok(ds_gen_add(g, &q, &id, &err));
    }
    while (!take_some(g))
        ;
    stop(&s);
    while (!all_ended())
        take_some(g);
    for (uint32_t i = 0; i < REQUESTS; i++)
        assert_true(answers[i][0].reason == DS_ENDED_LOST || answers[i][0].reason == wanted[i][0].reason);
    q = asked(0);
    assert_refused(ds_gen_add(g, &q, &id, &err), DS_E_IO, "is gone");
    forget();
    serve(&s, 1, 0); /* and it is back, another one */
    while (ds_gen_add(g, &q, &id, &err) == DS_E_IO)
        poll(NULL, 0, 1);
    while (!n_ended[0])
        take_some(g);
    assert_memory_equal(answers[0][0].out, wanted[0][0].out, wanted[0][0].n * sizeof(ds_token));
    ds_remote_close(r);
    stop(&s);
}

/* Engines go one after the other in the middle of everything; every answer is whole. */
static void answers_outlive_their_engines(void **state)
{
    server s[2];
    ds_remote *r[2];
    ds_gen parts[2];
    ds_gen_many *many;
    ds_again *a;
    ds_err err;
    uint64_t id;
    uint32_t events = 0, next = 40, victim = 0;

    (void)state;
    forget();
    for (int i = 0; i < 2; i++) {
        serve(&s[i], 1 + i, 500);
        r[i] = ask(&s[i]);
        parts[i] = ds_remote_gen(r[i]);
    }
    assert_ok(ds_gen_many_create(&many, parts, 2, &err));
    assert_ok(ds_again_create(&a, ds_gen_many_gen(many), 1, 60000, &err));
    ds_gen g = ds_again_gen(a);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        ds_gen_request q = asked(i);
        assert_ok(ds_gen_add(g, &q, &id, &err));
    }
    while (!all_ended()) {
        events += (uint32_t)take_some(g);
        if (events >= next && events < 1200) {
            stop(&s[victim]);
            serve(&s[victim], 1 + (int)victim, 500);
            victim = !victim;
            next = events + 350; /* four of them: a sample in the queue loses each one that it is in */
        }
    }
    compare();
    assert_true(ds_again_resumed(a) > 5);
    assert_true(ds_gen_drain(g));
    ds_gen_request q = asked(0);
    assert_int_equal(ds_gen_add(g, &q, &id, &err), DS_E_AGAIN);
    for (int i = 0; i < 2; i++) {
        ds_remote_close(r[i]);
        wait_idle(&s[i]);
        stop(&s[i]);
    }
    ds_again_destroy(a);
    ds_gen_many_destroy(many);
}

/* No engine is left: what waits for one is canceled, or ends when the patience does. */
static void without_any_engine(void **state)
{
    server s;
    ds_remote *r;
    ds_gen_many *many;
    ds_again *a;
    ds_err err;
    uint64_t id[REQUESTS];

    (void)state;
    forget();
    serve(&s, 1, 3000);
    r = ask(&s);
    assert_ok(ds_gen_many_create(&many, (ds_gen[]){ ds_remote_gen(r) }, 1, &err));
    assert_ok(ds_again_create(&a, ds_gen_many_gen(many), 1, 300, &err));
    ds_gen g = ds_again_gen(a);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        ds_gen_request q = asked(i);
        assert_ok(ds_gen_add(g, &q, &id[i], &err));
    }
    while (!take_some(g))
        ;
    stop(&s);
    ds_gen_cancel(g, id[REQUESTS - 1]);
    while (!all_ended())
        take_some(g);
    assert_int_equal(answers[REQUESTS - 1][0].reason, DS_ENDED_CANCELED);
    assert_int_equal(answers[REQUESTS - 2][0].reason, DS_ENDED_LOST);
    ds_remote_close(r);
    ds_again_destroy(a);
    ds_gen_many_destroy(many);
}

/* What engines die of isn't given to all of them. */
static void what_engines_die_of(void **state)
{
    ds_gen_request q = asked(0);
    ds_gen_many *many;
    ds_remote *r;
    ds_again *a;
    server s;
    ds_err err;
    uint64_t id;

    (void)state;
    forget();
    serve(&s, 1, 200000);
    r = ask(&s);
    assert_ok(ds_gen_many_create(&many, (ds_gen[]){ ds_remote_gen(r) }, 1, &err));
    assert_ok(ds_again_create(&a, ds_gen_many_gen(many), 1, 60000, &err));
    ds_gen g = ds_again_gen(a);
    assert_ok(ds_gen_add(g, &q, &id, &err));
    for (int died = 0; died < 5; died++) {
        while (!ds_host_stat(s.h).requests)
            take_some(g);
        assert_false(answers[0][0].ended);
        stop(&s);
        serve(&s, 1, 200000);
    }
    while (!n_ended[0])
        take_some(g);
    assert_true(answers[0][0].reason == DS_ENDED_LOST || answers[0][0].n); /* a slow machine: there was a token */
    ds_gen_cancel(g, id);
    ds_remote_close(r);
    ds_again_destroy(a);
    ds_gen_many_destroy(many);
    stop(&s);
}

static void a_draining_host_takes_nothing_new(void **state)
{
    server s;
    ds_remote *r;
    ds_err err;
    uint64_t id;

    (void)state;
    forget();
    serve(&s, 1, 1000);
    r = ask(&s);
    ds_gen g = ds_remote_gen(r);
    ds_gen_request q = asked(5);
    assert_ok(ds_gen_add(g, &q, &id, &err));
    while (!take_some(g))
        ;
    ds_host_drain(s.h);
    q = asked(0);
    while (ds_gen_add(g, &q, &id, &err) != DS_E_AGAIN) { /* until it has heard */
        while (!n_ended[0])
            take_some(g);
        assert_int_equal(answers[0][0].reason, DS_ENDED_FAILED);
        memset(answers[0], 0, sizeof answers[0]);
        n_ended[0] = 0;
    }
    while (n_ended[5] < SAMPLES)
        take_some(g);
    assert_int_equal(answers[5][0].n, wanted[5][0].n);
    while (!ds_host_drain(s.h))
        poll(NULL, 0, 1);
    ds_remote_close(r);
    stop(&s);
}

/* Whoever isn't what he should be is sent away, and the engine never hears of him. */
static void strangers(void **state)
{
    const ds_cw_model other = { { 9 }, { 2 } };
    ds_remote_opts o = { .model = other, .hidden = 1, .wait_ms = 2000 };
    uint8_t bytes[64 + DS_FRAME_HEADER], in[16];
    ds_gen_stats st;
    ds_remote *r;
    ds_addr at;
    server s;
    int fd;
    ds_err err;

    (void)state;
    serve(&s, 1, 0);
    assert_refused(ds_remote_open(&r, s.address, &o, &err), DS_E_ARG, "tokenizer.json is 01000000, the entry's 09000000");
    assert_ok(ds_addr_parse(&at, s.address, &err));
    for (int how = 0; how < 3; how++) {
        ds_frame f = { .type = how == 1 ? DS_CW_ADD : DS_CW_HELLO };
        struct pollfd p = { .events = POLLIN };
        memset(bytes, 'x', sizeof bytes);
        if (how)
            ds_frame_write(bytes, &f); /* no HELLO first, and one that is empty */
        assert_ok(ds_addr_connect(&at, 1000, &fd, &err));
        assert_true(write(fd, bytes, how ? DS_FRAME_HEADER : sizeof bytes) > 0);
        p.fd = fd;
        while (poll(&p, 1, 10000) == 1 && read(fd, in, sizeof in) > 0) /* a refusal perhaps, then the end */
            ;
        assert_true(p.revents & (POLLIN | POLLHUP));
        close(fd);
    }
    while (ds_host_stat(s.h).refused < 4 || ds_host_stat(s.h).peers)
        poll(NULL, 0, 1);
    ds_engine_stats_get(s.e, &st);
    assert_int_equal(st.accepted + st.refused_arg + st.refused_busy, 0);
    stop(&s);
    o.wait_ms = 50;
    assert_int_equal(ds_remote_open(&r, s.address, &o, &err), DS_E_IO);
    assert_int_equal(ds_remote_open(&r, "nowhere", &o, &err), DS_E_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_an_engines),
        cmocka_unit_test(what_is_canceled_is_gone),
        cmocka_unit_test(nothing_waits_behind_a_grammar),
        cmocka_unit_test(one_model),
        cmocka_unit_test(an_engine_that_came_back_mute),
        cmocka_unit_test(a_lost_engine_ends_what_it_had),
        cmocka_unit_test(answers_outlive_their_engines),
        cmocka_unit_test(without_any_engine),
        cmocka_unit_test(what_engines_die_of),
        cmocka_unit_test(a_draining_host_takes_nothing_new),
        cmocka_unit_test(strangers),
    };
    return cmocka_run_group_tests(tests, make_wanted, remove_folder);
}
