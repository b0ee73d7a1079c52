/* The loop on its own thread, with clients that add, read and cancel from theirs: on the null backend and on a
 * golden model. Run under the thread sanitizer too. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "../model/golden.h"
#include "base/clock.h"
#include "engine/engine_internal.h"

enum { CLIENTS = 3, EACH = 40, VOCAB_STUB = 50 };

typedef struct {
    uint32_t client, n;
    bool cancelled;
    atomic_uint ends, tokens;
    uint64_t cancel_us, end_us;
    uint32_t read[2]; /* tokens of each sample that its grammar was told */
    ds_gen_grammar grammar;
} note;

static ds_engine *e;
static uint32_t vocab;
static note notes[CLIENTS][EACH];
static atomic_uint wakes, open_requests, adding;

static void wake(void *ctx)
{
    (void)ctx;
    atomic_fetch_add(&wakes, 1);
}

/* Even tokens; counts what it is told, which needs no lock if nobody calls it twice at once. */
static uint32_t even_masks(void *ctx, uint32_t sample, const int32_t *drafts, uint32_t n, uint32_t *words, size_t ld)
{
    (void)ctx;
    (void)sample;
    for (uint32_t row = 0;; row++) {
        memset(words + row * ld, 0x55, (vocab + 31) / 32 * sizeof *words);
        if (row == n || drafts[row] % 2)
            return row + 1;
    }
}

static void even_accept(void *ctx, uint32_t sample, const int32_t *tokens, uint32_t n)
{
    note *k = ctx;

    k->read[sample] += n;
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] % 2)
            abort();
}

static const ds_gen_grammar_fn even = { even_masks, even_accept };

static void *client(void *arg)
{
    uint32_t me = (uint32_t)(uintptr_t)arg, rnd = me + 1;
    int32_t prompt[300];

    for (uint32_t i = 0; i < EACH; i++) {
        ds_gen_request q = { .prompt = prompt,
                             .n_prompt = 1 + (rnd = rnd * 1664525u + 1013904223u) % 300,
                             .max_tokens = 1 + i % 7,
                             .n = 1 + i % 2,
                             .sampling = DS_SAMPLING_DEFAULT,
                             .cookie = (uintptr_t)&notes[me][i] };
        uint64_t id;
        ds_err err;
        ds_rc rc;
        for (uint32_t k = 0; k < q.n_prompt; k++)
            prompt[k] = (int32_t)((k * 7 + i % 3) % vocab);
        notes[me][i].n = q.n;
        notes[me][i].grammar = (ds_gen_grammar){ .fn = &even, .ctx = &notes[me][i] };
        q.grammar = i % 3 ? NULL : &notes[me][i].grammar;
        atomic_fetch_add(&open_requests, 1);
        while ((rc = ds_engine_add(e, &q, &id, &err)) == DS_E_AGAIN)
            usleep(100);
        if (rc != DS_OK)
            abort();
        if (i % 5 == me) {
            ds_gen_stats st;
            usleep(i % 3 * 50);
            notes[me][i].cancelled = true;
            ds_engine_cancel(e, id);
            ds_engine_stats_get(e, &st);
        }
    }
    atomic_fetch_sub(&adding, 1);
    return NULL;
}

static void *reader(void *arg)
{
    (void)arg;
    while (atomic_load(&open_requests) > 0 || atomic_load(&adding) > 0) {
        ds_event ev[16];
        size_t n;
        ds_engine_wait(e, 10);
        n = ds_engine_poll(e, ev, 16);
        for (size_t i = 0; i < n; i++) {
            note *k = (note *)(uintptr_t)ev[i].cookie;
            if (ev[i].kind == DS_EV_TOKEN)
                atomic_fetch_add(&k->tokens, 1);
            if (ev[i].kind == DS_EV_END) {
                atomic_fetch_add(&k->ends, 1);
                if (ev[i].end.last)
                    atomic_fetch_sub(&open_requests, 1);
            }
        }
    }
    return NULL;
}

static void run_clients(void)
{
    pthread_t t[CLIENTS], r;
    ds_err err;

    memset(notes, 0, sizeof notes);
    atomic_store(&open_requests, 0);
    atomic_store(&adding, CLIENTS);
    ds_engine_wake_by(e, wake, NULL);
    assert_ok(ds_engine_start(e, &err));
    assert_int_equal(pthread_create(&r, NULL, reader, NULL), 0);
    for (uintptr_t i = 0; i < CLIENTS; i++)
        assert_int_equal(pthread_create(&t[i], NULL, client, (void *)i), 0);
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(t[i], NULL);
    pthread_join(r, NULL);
    for (int c = 0; c < CLIENTS; c++)
        for (int i = 0; i < EACH; i++) {
            assert_int_equal(atomic_load(&notes[c][i].ends), notes[c][i].n);
            if (!notes[c][i].cancelled)
                assert_int_equal(atomic_load(&notes[c][i].tokens), notes[c][i].n * (1 + (uint32_t)i % 7));
        }
    for (int i = 0; !ds_engine_drain(e); i++) { /* the ends are read; the last step in flight may still run */
        assert_true(i < 60000);
        usleep(1000);
    }
    assert_true(atomic_load(&wakes) > 0);
}

static void clients_of_a_stub(void **state)
{
    ds_err err;

    (void)state;
    vocab = VOCAB_STUB;
    assert_ok(ds_engine_create_stub(&e, &(ds_engine_stub){ .vocab = vocab, .drafts = 3, .step_ns = 20000 },
                                    &(ds_engine_opts){ .max_context = 600, .max_requests = 20, .drafts = DS_ENGINE_DRAFTS_AUTO }, &err));
    run_clients();
    ds_engine_destroy(e);
}

static void clients_of_a_model(void **state)
{
    ds_model *m = test_model("tiny-a", NULL);
    ds_pool *pool;
    ds_err err;

    (void)state;
    vocab = ds_model_config(m)->vocab_size;
    assert_ok(ds_pool_create(&pool, &(ds_pool_opts){ .n_threads = 2 }, &err));
    assert_ok(
        ds_engine_create(&e, m, pool, &(ds_engine_opts){ .max_context = 600, .max_requests = 20, .drafts = DS_ENGINE_DRAFTS_AUTO }, &err));
    run_clients();
    ds_engine_destroy(e);
    ds_pool_destroy(pool);
    ds_model_close(m);
}

/* A client that goes away frees its work within 20 ms, whatever its request is doing. On a busy machine a thread may
 * wait longer than that for its turn: so one of some tries must be that quick. */
static void a_cancel_is_quick(void **state)
{
    static int32_t prompt[60000];
    int tries = 0;
    ds_err err;

    (void)state;
    vocab = VOCAB_STUB;
    assert_ok(ds_engine_create_stub(&e, &(ds_engine_stub){ .vocab = vocab, .step_ns = 2000000 },
                                    &(ds_engine_opts){ .max_context = 70000, .max_running = 1 }, &err));
    assert_ok(ds_engine_start(e, &err));
    for (int k = 0; k < 3;) { /* prefilling, waiting behind it, decoding */
        ds_gen_request q = { .prompt = prompt, .n_prompt = k == 2 ? 5 : 60000, .max_tokens = 5000, .sampling = DS_SAMPLING_DEFAULT };
        uint64_t id, first = 0, begin;
        ds_event ev;
        prompt[0] = k;
        if (k == 1)
            assert_ok(ds_engine_add(e, &q, &first, &err));
        assert_ok(ds_engine_add(e, &q, &id, &err));
        usleep(20000);
        begin = ds_now_us();
        ds_engine_cancel(e, id);
        for (;;) {
            ds_engine_wait(e, 1000);
            if (ds_engine_poll(e, &ev, 1) && ev.kind == DS_EV_END && ev.request == id)
                break;
        }
        if (ds_now_us() - begin < 20000) {
            k++;
            tries = 0;
        } else {
            assert_true(++tries < 50);
        }
        if (first)
            ds_engine_cancel(e, first);
    }
    ds_engine_destroy(e);
}

/* The tokens of one request to its end, or its cancel after so many microseconds. */
static uint32_t ask(const int32_t *prompt, uint32_t n_prompt, int32_t got[8], int cancel_us)
{
    ds_gen_request q = { .prompt = prompt, .n_prompt = n_prompt, .max_tokens = 8, .sampling = DS_SAMPLING_DEFAULT };
    uint32_t n = 0;
    uint64_t id;
    ds_event ev;
    ds_err err;

    q.sampling.temperature = 0;
    assert_ok(ds_engine_add(e, &q, &id, &err));
    if (cancel_us >= 0) {
        usleep((unsigned)cancel_us);
        ds_engine_cancel(e, id);
    }
    for (;;) {
        ds_engine_wait(e, 1000);
        while (ds_engine_poll(e, &ev, 1)) {
            if (ev.kind == DS_EV_TOKEN)
                got[n++] = ev.token.id;
            if (ev.kind == DS_EV_END)
                return n;
        }
    }
}

/* Steps that a cancel cuts short, wherever it finds them, leave nothing behind that another request reads. */
static void a_cancel_leaves_nothing(void **state)
{
    enum { PROMPTS = 12, LENGTH = 420 };
    ds_model *m = test_model("tiny-a", NULL);
    int32_t prompt[PROMPTS][LENGTH], want[PROMPTS][8], got[8];
    ds_pool *pool;
    ds_err err;

    (void)state;
    vocab = ds_model_config(m)->vocab_size;
    assert_ok(ds_pool_create(&pool, &(ds_pool_opts){ .n_threads = 2 }, &err));
    for (int canceling = 0; canceling < 2; canceling++) {
        assert_ok(ds_engine_create(&e, m, pool, &(ds_engine_opts){ .max_context = 600 }, &err));
        assert_ok(ds_engine_start(e, &err));
        for (uint32_t i = 0; i < PROMPTS; i++) {
            for (uint32_t k = 0; k < LENGTH; k++)
                prompt[i][k] = (int32_t)((k * k + 31 * i) % vocab);
            for (int t = 0; canceling && t < 4; t++)
                ask(prompt[i], LENGTH, got, (int)(i * 4 + (uint32_t)t) * 150);
            ask(prompt[i], LENGTH, canceling ? got : want[i], -1);
            if (canceling)
                assert_memory_equal(got, want[i], sizeof got);
        }
        ds_engine_destroy(e);
    }
    ds_pool_destroy(pool);
    ds_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clients_of_a_stub),
        cmocka_unit_test(clients_of_a_model),
        cmocka_unit_test(a_cancel_is_quick),
        cmocka_unit_test(a_cancel_leaves_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
