/* The engine's outside: refusals, failing allocations, ends of every kind in every state, events, limits,
 * statistics, long prompts. On the null backend. */
#include <time.h>

#include "base/clock.h"
#include "engine/engine_internal.h"
#include "fault.h"
#include "test.h"

enum { VOCAB = 100 };

static int32_t ids[200000];

static const char *token_bytes(void *ctx, int32_t id, size_t *n)
{
    static const char *const words[] = { "ab", "c", "abc", "x" };
    const char *w = words[id % 4];
    (void)ctx;
    *n = strlen(w);
    return w;
}

static int32_t counting(void *ctx, uint64_t tag, uint32_t sample, uint32_t index)
{
    (void)ctx;
    (void)tag;
    (void)sample;
    return (int32_t)(index % VOCAB);
}

static ds_engine *make(const ds_engine_opts *opts, ds_engine_stub stub)
{
    ds_engine *e;
    ds_err err;

    if (!stub.vocab)
        stub.vocab = VOCAB;
    assert_ok(ds_engine_create_stub(&e, &stub, opts, &err));
    return e;
}

static ds_gen_request simple(uint32_t n_prompt, uint32_t max_tokens)
{
    return (ds_gen_request){ .prompt = ids, .n_prompt = n_prompt, .max_tokens = max_tokens, .sampling = DS_SAMPLING_DEFAULT };
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void bad_requests_are_refused(void **state)
{
    ds_engine *e = make(&(ds_engine_opts){ .max_context = 1000, .token_bytes = token_bytes }, (ds_engine_stub){ 0 });
    static const ds_str stop[17] = { { "", 0 } };
    ds_token_bias bias = { VOCAB, 1.0f };
    ds_gen_image image = { .pos = 5, .n = 10, .embedding = (const float *)ids };
    int32_t odd[3] = { 1, VOCAB, 2 };
    ds_gen_request q;
    uint64_t id = 1;
    ds_err err;

    (void)state;
#define REFUSED(part, ...)                                               \
    do {                                                                 \
        q = simple(10, 10);                                              \
        __VA_ARGS__;                                                     \
        assert_refused(ds_engine_add(e, &q, &id, &err), DS_E_ARG, part); \
        assert_int_equal(id, 0);                                         \
    } while (0)
    REFUSED("prompt is empty", q.n_prompt = 0);
    REFUSED("no room for an answer", q.n_prompt = 1000);
    REFUSED("max_tokens: 0", q.max_tokens = 0);
    REFUSED("min_tokens: 11 is more than max_tokens, 10", q.min_tokens = 11);
    REFUSED("stop: token id 100 is outside", q.stop_ids = &odd[1], q.n_stop_ids = 1);
    REFUSED("temperature: -1", q.sampling.temperature = -1.0);
    REFUSED("temperature", q.sampling.temperature = NAN);
    REFUSED("top_p: 0", q.sampling.top_p = 0.0);
    REFUSED("min_p: 2", q.sampling.min_p = 2.0);
    REFUSED("repetition_penalty: 0", q.sampling.repetition_penalty = 0.0);
    REFUSED("presence_penalty", q.sampling.presence_penalty = 1e9);
    REFUSED("token id 100 at position 1", q.prompt = odd, q.n_prompt = 3);
    REFUSED("n: 17", q.n = 17);
    REFUSED("priority: 8", q.priority = 8);
    REFUSED("top logprobs: 21", q.n_top = 21);
    REFUSED("string 0 has 0 bytes", q.stop = stop, q.n_stop = 1);
    REFUSED("17 strings", q.stop = stop, q.n_stop = 17);
    REFUSED("id 100", q.bias = &bias, q.n_bias = 1);
    REFUSED("image 0", q.images = &image, q.n_images = 1);
    ds_engine_destroy(e);
    e = make(&(ds_engine_opts){ .max_context = 1000 }, (ds_engine_stub){ 0 });
    REFUSED("knows no text", q.stop = stop, q.n_stop = 1);
    ds_engine_destroy(e);
}

static void bad_options_are_refused(void **state)
{
    ds_engine_stub s = { .vocab = VOCAB, .drafts = 3 };
    ds_engine *e = (ds_engine *)1;
    ds_err err;

    (void)state;
#define BAD(part, ...)                                                                                         \
    do {                                                                                                       \
        assert_refused(ds_engine_create_stub(&e, &s, &(ds_engine_opts){ __VA_ARGS__ }, &err), DS_E_ARG, part); \
        assert_null(e);                                                                                        \
    } while (0)
    BAD("max_running = 5000", .max_running = 5000);
    BAD("less than the context", .max_context = 1000, .kv_blocks = 3);
    BAD("saved_states = 1", .saved_states = 1);
    BAD("4 drafts a step", .drafts = 4);
    BAD("drafts = -2", .drafts = -2);
    BAD("max_context = 1", .max_context = 1);
    BAD("not even one block and one state", .max_context = 1000, .kv_memory = 100);
    BAD("without a prefix cache", .max_context = 1000, .kv_memory = 1 << 20, .no_prefix_cache = true);
}

static void busy_and_draining(void **state)
{
    ds_engine *e = make(&(ds_engine_opts){ .max_context = 1000, .max_requests = 2 }, (ds_engine_stub){ 0 });
    ds_gen_request q = simple(10, 3);
    uint64_t id;
    ds_event ev[16];
    ds_err err;

    (void)state;
    assert_ok(ds_engine_add(e, &q, &id, &err));
    assert_ok(ds_engine_add(e, &q, &id, &err));
    assert_refused(ds_engine_add(e, &q, &id, &err), DS_E_AGAIN, "busy with 2");
    while (ds_engine_turn(e))
        ;
    assert_refused(ds_engine_add(e, &q, &id, &err), DS_E_AGAIN, "busy"); /* nobody has read the ends */
    assert_int_equal(ds_engine_poll(e, ev, 16), 2 * 5);
    assert_ok(ds_engine_add(e, &q, &id, &err));
    assert_false(ds_engine_drain(e));
    assert_refused(ds_engine_add(e, &q, &id, &err), DS_E_AGAIN, "draining");
    while (ds_engine_turn(e))
        ;
    assert_true(ds_engine_drain(e));
    assert_int_equal(ds_engine_poll(e, ev, 16), 5);
    ds_engine_destroy(e);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static ds_rc create_one(void *ctx, ds_err *err)
{
    ds_engine *e;
    ds_rc rc = ds_engine_create_stub(
        &e, &(ds_engine_stub){ .vocab = VOCAB, .drafts = 2 },
        &(ds_engine_opts){ .max_context = 1000, .max_requests = 8, .identity.model = "r", .drafts = DS_ENGINE_DRAFTS_AUTO }, err);

    (void)ctx;
    if (rc == DS_OK)
        ds_engine_destroy(e);
    return rc;
}

static ds_rc add_one(void *ctx, ds_err *err)
{
    static const ds_str stop[] = { { "abc", 3 }, { "x", 1 } };
    ds_engine *e = ctx;
    ds_gen_image image = { .pos = 5, .n = 10, .embedding = (const float *)ids };
    ds_gen_request q = simple(300, 5);
    uint64_t id;
    ds_event ev[64];
    ds_rc rc;

    q.n = 3;
    q.stop = stop;
    q.n_stop = 2;
    q.logprobs = true;
    q.n_top = 3;
    q.images = &image;
    q.n_images = 1;
    rc = ds_engine_add(e, &q, &id, err);
    if (rc != DS_OK)
        return rc;
    while (ds_engine_turn(e))
        ;
    while (ds_engine_poll(e, ev, 64) > 0)
        ;
    return rc;
}

static void allocations_fail(void **state)
{
    ds_engine *e = make(&(ds_engine_opts){ .max_context = 1000, .token_bytes = token_bytes }, (ds_engine_stub){ 0 });

    (void)state;
    assert_true(fault_every_allocation(create_one, NULL) > 20);
    assert_true(fault_every_allocation(add_one, e) > 10);
    assert_null(ds_engine_check(e));
    assert_int_equal(e->mail.n_free_index, e->o.max_requests);
    ds_engine_destroy(e);
}

/* 200,000 steps take nothing from the heap: with every allocation failing the loop doesn't notice. */
static void the_loop_takes_nothing(void **state)
{
    ds_engine *e =
        make(&(ds_engine_opts){ .max_context = 300000, .max_running = 4, .drafts = 2 }, (ds_engine_stub){ .drafts = 3, .seed = 3 });
    ds_gen_request q = simple(500, 250000);
    ds_event ev[64];
    uint64_t id, tokens = 0;
    ds_err err;

    (void)state;
    for (int i = 0; i < 4; i++)
        assert_ok(ds_engine_add(e, &q, &id, &err));
    fault_arm(1, true);
    while (e->loop.done < 200000 && ds_engine_turn(e)) {
        size_t n = ds_engine_poll(e, ev, 64);
        for (size_t i = 0; i < n; i++)
            tokens += ev[i].kind == DS_EV_TOKEN;
    }
    assert_false(fault_disarm());
    assert_true(tokens > 300000);
    assert_null(ds_engine_check(e));
    ds_engine_destroy(e);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

/* Runs until the request's last event; what its ends were. */
static void finish(ds_engine *e, uint64_t id, ds_event *end, uint32_t *tokens)
{
    ds_event ev[8];
    bool last = false;

    *tokens = 0;
    for (int turns = 0; !last; turns++) {
        size_t n;
        assert_true(turns < 100000);
        ds_engine_turn(e);
        n = ds_engine_poll(e, ev, 8);
        for (size_t i = 0; i < n; i++)
            if (ev[i].request == id) {
                *tokens += ev[i].kind == DS_EV_TOKEN;
                if (ev[i].kind == DS_EV_END) {
                    *end = ev[i];
                    last = ev[i].end.last;
                }
            }
    }
}

static void cancelled_in_every_state(void **state)
{
    (void)state;
    for (int turns = 0; turns < 24; turns++)
        for (int variant = 0; variant < 4; variant++) {
            ds_engine *e = make(&(ds_engine_opts){ .mode = variant % 2 ? DS_ENGINE_EXACT : DS_ENGINE_CED,
                                                   .max_context = 3000,
                                                   .max_running = 2,
                                                   .step_tokens = 300,
                                                   .drafts = 3 },
                                (ds_engine_stub){ .drafts = 3, .verify = true });
            ds_gen_request q = simple(2000, 50), other = simple(150, 400);
            uint64_t id[3];
            ds_event end;
            uint32_t tokens;
            ds_err err;
            q.n = variant < 2 ? 1 : 3;
            assert_ok(ds_engine_add(e, &other, &id[0], &err));
            assert_ok(ds_engine_add(e, &q, &id[1], &err));
            assert_ok(ds_engine_add(e, &q, &id[2], &err));
            for (int t = 0; t < turns; t++)
                ds_engine_turn(e);
            ds_engine_cancel(e, id[2]); /* waiting, or behind the other's prefix */
            ds_engine_cancel(e, id[1]);
            finish(e, id[1], &end, &tokens);
            assert_int_equal(end.end.reason, DS_ENDED_CANCELED);
            finish(e, id[0], &end, &tokens);
            assert_int_equal(end.end.reason, DS_ENDED_LENGTH);
            assert_int_equal(end.end.n_tokens, 400);
            while (ds_engine_turn(e))
                ;
            while (ds_engine_poll(e, &end, 1))
                ;
            ds_engine_cancel(e, id[1]); /* gone: nothing happens */
            assert_null(ds_engine_check(e));
            assert_null(ds_backend_null_fault(e->dev));
            assert_int_equal(e->loop.states.n_pinned, 0);
            assert_int_equal(e->loop.blocks.n_idle, e->loop.blocks.n);
            ds_engine_destroy(e);
        }
}

static void destroyed_in_every_state(void **state)
{
    (void)state;
    for (int turns = 0; turns < 20; turns++) {
        ds_engine *e =
            make(&(ds_engine_opts){ .max_context = 3000, .max_running = 2, .step_tokens = 300 }, (ds_engine_stub){ .verify = true });
        ds_gen_request q = simple(1000, 50);
        uint64_t id;
        ds_err err;
        q.n = 2;
        for (int i = 0; i < 4; i++)
            assert_ok(ds_engine_add(e, &q, &id, &err));
        for (int t = 0; t < turns; t++)
            ds_engine_turn(e);
        ds_engine_destroy(e);
    }
}

static void deadlines(void **state)
{
    ds_engine *e = make(&(ds_engine_opts){ .max_context = 100000, .max_running = 1 }, (ds_engine_stub){ .step_ns = 200000 });
    ds_gen_request q = simple(10, 90000);
    uint64_t id[2];
    uint32_t tokens;
    ds_event end;
    ds_err err;

    (void)state;
    q.deadline_us = 20000;
    for (int i = 0; i < 2; i++) /* one runs, one waits */
        assert_ok(ds_engine_add(e, &q, &id[i], &err));
    finish(e, id[0], &end, &tokens);
    assert_int_equal(end.end.reason, DS_ENDED_DEADLINE);
    assert_true(tokens > 5);
    while (ds_engine_turn(e))
        ;
    while (ds_engine_poll(e, &end, 1))
        if (end.request == id[1] && end.kind == DS_EV_END)
            assert_int_equal(end.end.reason, DS_ENDED_DEADLINE);
    ds_engine_destroy(e);
}

static int32_t scripted(void *ctx, uint64_t tag, uint32_t sample, uint32_t index)
{
    const int32_t *script = (const int32_t *)(uintptr_t)tag;
    (void)ctx;
    (void)sample;
    return script[index];
}

/* "ab" "c" "abc" "x": the text, what is held back, and where it is cut. */
static void stop_strings(void **state)
{
    static const struct {
        int32_t script[6];
        const char *stop[3];
        uint32_t n_stop, tokens, which, cut, held[6];
    } cases[] = {
        { { 0, 1, 3, 3, 3, 3 }, { "bc" }, 1, 2, 0, 2, { 1, 0 } },
        { { 0, 0, 1, 3, 3, 3 }, { "abab", "bc" }, 2, 2, 0, 4, { 2, 0 } },
        { { 3, 0, 0, 1, 3, 3 }, { "ababc" }, 1, 4, 0, 5, { 0, 2, 4, 0 } },
        { { 2, 2, 3, 3, 3, 3 }, { "b" }, 1, 1, 0, 2, { 0 } },                 /* inside a token: "c" behind it is cut too */
        { { 3, 2, 3, 3, 3, 3 }, { "c", "abc", "bc" }, 3, 2, 1, 3, { 0, 0 } }, /* complete at the same byte: the longest */
        { { 0, 0, 0, 2, 3, 3 }, { "aba!", "babc" }, 2, 4, 1, 4, { 2, 3, 3, 0 } },
    };

    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        ds_engine *e = make(&(ds_engine_opts){ .max_context = 1000, .token_bytes = token_bytes, .drafts = 2 },
                            (ds_engine_stub){ .token = scripted, .drafts = 2, .seed = c });
        ds_gen_request q = simple(3, 6);
        uint64_t id;
        ds_event ev[16];
        uint32_t n_tokens = 0;
        size_t n;
        ds_err err;
        ds_str stop[3];
        for (uint32_t i = 0; i < cases[c].n_stop; i++)
            stop[i] = (ds_str){ cases[c].stop[i], strlen(cases[c].stop[i]) };
        q.stop = stop;
        q.n_stop = cases[c].n_stop;
        q.tag = (uintptr_t)cases[c].script;
        assert_ok(ds_engine_add(e, &q, &id, &err));
        while (ds_engine_turn(e))
            ;
        n = ds_engine_poll(e, ev, 16);
        for (size_t i = 0; i < n; i++)
            if (ev[i].kind == DS_EV_TOKEN) {
                assert_int_equal(ev[i].token.held_bytes, cases[c].held[n_tokens]);
                n_tokens++;
            }
        assert_int_equal(ev[n - 1].kind, DS_EV_END);
        assert_int_equal(ev[n - 1].end.reason, DS_ENDED_STOP_STRING);
        assert_int_equal(ev[n - 1].end.stop, cases[c].which);
        assert_int_equal(ev[n - 1].end.cut_bytes, cases[c].cut);
        assert_int_equal(n_tokens, cases[c].tokens);
        ds_engine_destroy(e);
    }
}

static void stop_ids_and_lengths(void **state)
{
    ds_engine *e = make(&(ds_engine_opts){ .max_context = 200 }, (ds_engine_stub){ .token = counting });
    int32_t stops[] = { 7, 5 };
    ds_gen_request q = simple(150, 1000);
    uint64_t id;
    uint32_t tokens;
    ds_event end;
    ds_err err;

    (void)state;
    assert_ok(ds_engine_add(e, &q, &id, &err));
    finish(e, id, &end, &tokens);
    assert_int_equal(end.end.reason, DS_ENDED_LENGTH);
    assert_int_equal(tokens, 50); /* the context ends */
    assert_int_equal(end.end.completion_tokens, 50);
    q.stop_ids = stops;
    q.n_stop_ids = 2;
    assert_ok(ds_engine_add(e, &q, &id, &err));
    finish(e, id, &end, &tokens);
    assert_int_equal(end.end.reason, DS_ENDED_STOP_ID);
    assert_int_equal(end.end.stop_id, 5);
    assert_int_equal(tokens, 5);
    assert_int_equal(end.end.completion_tokens, 6);
    ds_engine_destroy(e);
}

/* An engine may go between a text's last token and its end: the next one says the end. Before, the text goes on. */
static void texts_that_are_over(void **state)
{
    static const int32_t script[6] = { 0, 0, 1, 3, 3, 3 }; /* "ab" "ab" "c" "x" */
    static const int32_t stop_ids[] = { 3 };
    static const struct {
        const char *stop;
        bool stop_id;
        uint32_t max_tokens, n_prompt, whole; /* whole: tokens of the text */
        ds_end_reason reason;
    } cases[] = {
        { NULL, false, 4, 3, 4, DS_ENDED_LENGTH },      { NULL, false, 6, 1000 - 5, 5, DS_ENDED_LENGTH }, /* the context */
        { NULL, true, 6, 3, 4, DS_ENDED_STOP_ID },      { "bc", false, 6, 3, 3, DS_ENDED_STOP_STRING },
        { "bc", false, 3, 3, 3, DS_ENDED_STOP_STRING }, /* before the limit at the same token */
        { "cx", true, 4, 3, 4, DS_ENDED_STOP_ID },
    };

    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (uint32_t has = 0; has <= cases[c].whole; has++) {
            ds_engine *e = make(&(ds_engine_opts){ .max_context = 1000, .token_bytes = token_bytes, .handoff = 1 },
                                (ds_engine_stub){ .token = scripted });
            ds_engine_export *leaving;
            const uint8_t *record;
            ds_gen_request q = simple(cases[c].n_prompt, cases[c].max_tokens);
            ds_str stop = { cases[c].stop, cases[c].stop ? strlen(cases[c].stop) : 0 };
            ds_gen_stats st;
            uint64_t id;
            ds_event ev[16];
            size_t n;
            ds_err err;
            q.tag = (uintptr_t)script;
            q.stop = &stop;
            q.n_stop = cases[c].stop != NULL;
            q.stop_ids = stop_ids;
            q.n_stop_ids = q.report_stop_id = cases[c].stop_id;
            q.output = script;
            q.n_output = has;
            assert_ok(ds_engine_add(e, &q, &id, &err));
            while (ds_engine_turn(e))
                ;
            n = ds_engine_poll(e, ev, 16);
            assert_int_equal(n, 2 + cases[c].whole - has);
            assert_int_equal(ev[0].kind, DS_EV_START);
            for (uint32_t i = has; i < cases[c].whole; i++) {
                assert_int_equal(ev[1 + i - has].token.index, i);
                assert_int_equal(ev[1 + i - has].token.id, script[i]);
            }
            assert_int_equal(ev[n - 1].kind, DS_EV_END);
            assert_int_equal(ev[n - 1].end.reason, cases[c].reason);
            assert_int_equal(ev[n - 1].end.n_tokens, cases[c].whole);
            assert_int_equal(ev[n - 1].end.completion_tokens, cases[c].whole);
            assert_int_equal(ev[n - 1].end.cut_bytes, cases[c].reason == DS_ENDED_STOP_STRING ? 2 : 0);
            assert_int_equal(ev[n - 1].end.stop_id, cases[c].reason == DS_ENDED_STOP_ID ? 3 : 0);
            assert_true(ev[n - 1].end.last);
            ds_engine_stats_get(e, &st);
            assert_int_equal(st.waiting + st.running + st.slots_used, 0);
            if (has == cases[c].whole) { /* what is over can't leave */
                assert_ok(ds_engine_add(e, &q, &id, &err));
                assert_ok(ds_engine_export_begin(&leaving, e, id, (ds_engine_export_how){ .with_blocks = true }, &err));
                while (ds_engine_turn(e))
                    ;
                assert_int_equal(ds_engine_export_wait(leaving, 0, &record, &n, &err), DS_E_CANCELED);
                ds_engine_export_free(leaving);
                assert_int_equal(ds_engine_poll(e, ev, 16), 2);
            }
            q.n_output = (cases[c].max_tokens < 1000 - cases[c].n_prompt ? cases[c].max_tokens : 1000 - cases[c].n_prompt) + 1;
            assert_refused(ds_engine_add(e, &q, &id, &err), DS_E_ARG, "go on behind");
            ds_engine_destroy(e);
        }
}

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

static void prompts_of_any_length(void **state)
{
    static const uint32_t lengths[] = { 1, 127, 128, 129, 134, 262, 4096, 100000 };

    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        ds_engine *e = make(&(ds_engine_opts){ .mode = (ds_engine_mode)mode, .max_context = 110000, .drafts = 2 },
                            (ds_engine_stub){ .drafts = 3, .verify = true });
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (uint32_t turn = 0; turn < 2; turn++) { /* the second one hits */
                ds_gen_request q = simple(lengths[i], 300);
                uint32_t tokens, most = lengths[i] > 134 ? (lengths[i] - 134) / 128 * 128 : 0, cached = 0;
                uint64_t id, h = 0, n = 0;
                ds_event ev[64];
                bool last = false;
                ds_err err;
                ids[0] = (int32_t)i;
                q.sampling.seed = turn;
                assert_ok(ds_engine_add(e, &q, &id, &err));
                for (uint32_t k = 0; k < lengths[i]; k++)
                    h = ds_backend_null_fold(h, ids[k]);
                for (tokens = 0; !last;) {
                    size_t got;
                    ds_engine_turn(e);
                    got = ds_engine_poll(e, ev, 64);
                    for (size_t k = 0; k < got; k++) {
                        if (ev[k].kind == DS_EV_START)
                            cached = ev[k].start.cached;
                        if (ev[k].kind == DS_EV_TOKEN) {
                            assert_int_equal(ev[k].token.id, ds_backend_null_token(h, turn, VOCAB));
                            h = ds_backend_null_fold(h, ev[k].token.id);
                            tokens++;
                        }
                        last = last || ev[k].kind == DS_EV_END;
                    }
                    n++;
                }
                assert_int_equal(tokens, 300);
                assert_int_equal(cached, turn ? most : 0);
                if (ds_backend_null_fault(e->dev))
                    fail_msg("%s", ds_backend_null_fault(e->dev));
            }
        ds_engine_destroy(e);
    }
    ids[0] = 0;
}

static void a_tenant_sees_only_its_own_prefixes(void **state)
{
    static const char *const domain[] = { NULL, "a", "b", "a", "a", "" }, *const salt[] = { NULL, NULL, NULL, "s", "s", NULL };
    static const uint32_t want[] = { 0, 0, 0, 0, 512, 0 };
    ds_engine *e = make(&(ds_engine_opts){ .max_context = 3000 }, (ds_engine_stub){ .verify = true });

    (void)state;
    for (int i = 0; i < 6; i++) {
        ds_gen_request q = simple(700, 2);
        ds_event ev[8];
        uint64_t id;
        ds_err err;
        q.cache_domain = domain[i];
        q.cache_salt = salt[i];
        assert_ok(ds_engine_add(e, &q, &id, &err));
        while (ds_engine_turn(e))
            ;
        assert_true(ds_engine_poll(e, ev, 8) > 0);
        assert_int_equal(ev[0].kind, DS_EV_START);
        assert_int_equal(ev[0].start.cached, want[i]);
    }
    ds_engine_destroy(e);
}

/* The same ids with other pictures are another prompt. */
static void pictures_are_part_of_the_key(void **state)
{
    ds_engine *e = make(&(ds_engine_opts){ .max_context = 3000 }, (ds_engine_stub){ 0 });
    static const uint32_t want[] = { 0, 512, 128, 384, 512 };
    static const uint8_t digest[] = { 1, 1, 2, 1, 1 };
    static const uint32_t n[] = { 50, 50, 50, 251, 50 };

    (void)state;
    for (int i = 0; i < 5; i++) {
        ds_gen_image image = { .pos = 200, .n = n[i], .embedding = (const float *)ids, .digest = { digest[i] } };
        ds_gen_request q = simple(700, 2);
        ds_event ev[8];
        uint64_t id;
        ds_err err;
        if (i == 3)
            image.pos = 199 + 185 + 1; /* another place behind it */
        q.images = &image;
        q.n_images = 1;
        assert_ok(ds_engine_add(e, &q, &id, &err));
        while (ds_engine_turn(e))
            ;
        assert_true(ds_engine_poll(e, ev, 8) > 0);
        assert_int_equal(ev[0].start.cached, i == 3 ? 128 : want[i]);
    }
    ds_engine_destroy(e);
}

/* Who knows identity, tokens and pictures derives every published key, of the prompt's blocks and of the output's,
 * without the engine. */
static void keys_can_be_derived_outside(void **state)
{
    enum { PROMPT = 300, OUT = 250 };
    static int32_t all[PROMPT + OUT];
    ds_engine_opts o = { .mode = DS_ENGINE_EXACT, .max_context = 3000, .identity = { { 1 }, { 2 }, { 3 } } };
    ds_engine *e = make(&o, (ds_engine_stub){ 0 });
    ds_gen_image image = { .pos = 100, .n = 90, .embedding = (const float *)ids, .digest = { 7 } };
    ds_gen_request q = simple(PROMPT, OUT);
    ds_kv_layout layout = { .version = DS_KV_LAYOUT_VERSION, .block_tokens = DS_KV_BLOCK_TOKENS, .mode = DS_KV_EXACT, .numerics = "stub" };
    ds_kv_identity id = { .model = { 1 }, .tokenizer = { 2 }, .dialect = { 3 } };
    ds_kv_span span = { .pos = 100, .n = 90, .digest = { 7 } };
    uint32_t n = PROMPT, block[5];
    uint64_t request;
    ds_event ev[64];
    ds_key key;
    ds_err err;

    (void)state;
    memcpy(all, ids, PROMPT * sizeof *all);
    q.images = &image;
    q.n_images = 1;
    q.cache_domain = "d";
    assert_ok(ds_engine_add(e, &q, &request, &err));
    while (ds_engine_turn(e))
        ;
    for (size_t got; (got = ds_engine_poll(e, ev, 64)) > 0;)
        for (size_t i = 0; i < got; i++)
            if (ev[i].kind == DS_EV_TOKEN)
                all[n++] = ev[i].token.id;
    assert_int_equal(n, PROMPT + OUT);
    ds_kv_layout_id(id.layout, &layout);
    ds_chain_ns(&key, &id, "d", NULL);
    for (uint32_t i = 0; i < (PROMPT + OUT - 1) / DS_KV_BLOCK_TOKENS; i++) {
        ds_key before = key;
        ds_chain_next(&key, &before, all + i * DS_KV_BLOCK_TOKENS, i * DS_KV_BLOCK_TOKENS, &span, 1);
        block[i] = ds_blocks_find(&e->loop.blocks, &key);
        assert_true(block[i] != UINT32_MAX);
        for (uint32_t j = 0; j < i; j++)
            assert_true(block[i] != block[j]);
    }
    ds_engine_destroy(e);
}

/* ---- scheduling -------------------------------------------------------------------------------------------------- */

static void better_priorities_first(void **state)
{
    ds_engine *e = make(&(ds_engine_opts){ .max_context = 1000, .max_running = 1, .ageing_ms = 100000 }, (ds_engine_stub){ 0 });
    uint64_t id[6];
    uint32_t order[6], n = 0;
    ds_event ev[8];
    ds_err err;

    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        ds_gen_request q = simple(10, 5);
        q.priority = i % 3;
        q.cookie = i;
        assert_ok(ds_engine_add(e, &q, &id[i], &err));
    }
    for (bool more = true; more || n < 6;) {
        size_t got;
        more = ds_engine_turn(e);
        got = ds_engine_poll(e, ev, 8);
        for (size_t i = 0; i < got; i++)
            if (ev[i].kind == DS_EV_END)
                order[n++] = (uint32_t)ev[i].cookie;
    }
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(order[i], i < 2 ? 3 * i : i < 4 ? 1 + 3 * (i - 2) : 2 + 3 * (i - 4));
    ds_engine_destroy(e);
}

static void waiting_is_worth_a_priority(void **state)
{
    ds_engine *e = make(&(ds_engine_opts){ .max_context = 1000, .max_running = 1, .ageing_ms = 5 }, (ds_engine_stub){ .step_ns = 100000 });
    ds_gen_request q = simple(10, 20);
    uint64_t low, id, served = 0;
    ds_event ev[8];
    bool done = false;
    ds_err err;

    (void)state;
    q.priority = 7;
    assert_ok(ds_engine_add(e, &q, &low, &err));
    q.priority = 0;
    for (int turn = 0; !done; turn++) { /* there is always somebody better */
        size_t n;
        assert_true(turn < 20000);
        if (turn % 15 == 0)
            (void)ds_engine_add(e, &q, &id, &err);
        ds_engine_turn(e);
        n = ds_engine_poll(e, ev, 8);
        for (size_t i = 0; i < n; i++) {
            served += ev[i].kind == DS_EV_END;
            done = done || (ev[i].kind == DS_EV_END && ev[i].request == low);
        }
    }
    assert_true(served > 2);
    ds_engine_destroy(e);
}

/* The fitted cost finds its coefficients, and chunks keep to the budget that decoding leaves. */
static void chunks_keep_to_the_budget(void **state)
{
    ds_engine *e = make(&(ds_engine_opts){ .max_context = 100000, .max_running = 4, .step_tokens = 4096, .target_tbt_us = 3000 },
                        (ds_engine_stub){ .step_ns = 500000, .row_ns = 2000 });
    ds_gen_request chat = simple(50, 400), longer = simple(40000, 5);
    ds_gen_stats st;
    uint64_t id, above = 0;
    ds_event ev[64];
    ds_err err;

    (void)state;
    assert_ok(ds_engine_add(e, &chat, &id, &err));
    for (int i = 0; i < 40; i++)
        ds_engine_turn(e);
    ids[0] = 9;
    assert_ok(ds_engine_add(e, &longer, &id, &err));
    while (ds_engine_turn(e))
        ds_engine_poll(e, ev, 64);
    ids[0] = 0;
    ds_engine_stats_get(e, &st);
    for (int i = 13; i < DS_GEN_HIST; i++) /* 8 ms and above */
        above += st.step_prefill.bucket[i];
    assert_true(st.step_prefill.n > 30);
    assert_int_equal(above, 0);
    assert_close(((float[]){ (float)st.cost[0], (float)st.cost[1] }), ((float[]){ 500.0f, 2.0f }), 2, 0.1, 0.0);
    ds_engine_destroy(e);
}

/* All saved states are held by samples that wait behind many requests, each of which wants one. */
static void nobody_waits_for_those_behind(void **state)
{
    ds_engine *e = make(&(ds_engine_opts){ .max_context = 1000, .max_running = 1, .saved_states = 2, .ageing_ms = 1000000 },
                        (ds_engine_stub){ .verify = true });
    ds_gen_request low = simple(300, 40), high = simple(300, 3);
    uint32_t ends = 0;
    ds_event ev[64];
    uint64_t id;
    ds_err err;

    (void)state;
    low.n = high.n = 4;
    low.priority = 7;
    assert_ok(ds_engine_add(e, &low, &id, &err));
    for (int i = 0; i < 6; i++)
        ds_engine_turn(e);
    for (int i = 0; i < 100; i++) {
        ids[0] = i;
        assert_ok(ds_engine_add(e, &high, &id, &err));
    }
    ids[0] = 0;
    for (int turn = 0; ds_engine_turn(e); turn++) {
        size_t n = ds_engine_poll(e, ev, 64);
        assert_true(turn < 100000);
        for (size_t i = 0; i < n; i++)
            ends += ev[i].kind == DS_EV_END;
    }
    for (size_t n; (n = ds_engine_poll(e, ev, 64)) > 0;)
        for (size_t i = 0; i < n; i++)
            ends += ev[i].kind == DS_EV_END;
    assert_int_equal(ends, 404);
    assert_null(ds_backend_null_fault(e->dev));
    ds_engine_destroy(e);
}

/* A clock of the test's: an hour of steps passes at once, and every time is exact. */
static uint64_t virtual_ns;

static uint64_t virtual_now(void *ctx)
{
    (void)ctx;
    return virtual_ns;
}

static void virtual_sleep(void *ctx, uint64_t ns)
{
    (void)ctx;
    virtual_ns = ns > virtual_ns ? ns : virtual_ns;
}

static void on_a_virtual_clock(void **state)
{
    ds_engine_opts o = { .max_context = 5000, .max_running = 1, .clock = { virtual_now, virtual_sleep, NULL } };
    ds_gen_request q = simple(100, 3601), late = simple(100, 10);
    uint64_t id, real = ds_now_us();
    ds_gen_stats st;
    ds_engine *e;
    ds_event ev[64];
    ds_err err;

    (void)state;
    virtual_ns = 1000;
    e = make(&o, (ds_engine_stub){ .step_ns = 1000000000 });
    late.deadline_us = 1800000000;
    assert_ok(ds_engine_add(e, &q, &id, &err));
    assert_ok(ds_engine_add(e, &late, &id, &err)); /* waits for the only seat */
    while (ds_engine_turn(e))
        for (size_t i = 0, n = ds_engine_poll(e, ev, 64); i < n; i++) {
            if (ev[i].kind == DS_EV_END && ev[i].request == id) {
                assert_int_equal(ev[i].end.reason, DS_ENDED_DEADLINE);
                assert_true(virtual_ns >= 1800000001000 && virtual_ns <= 1802000001000);
            } else if (ev[i].kind == DS_EV_END) {
                assert_int_equal(ev[i].end.prefill_us, 1000000);
                assert_int_equal(ev[i].end.decode_us, 3600000000);
            }
        }
    assert_int_equal(virtual_ns, 3601000001000);
    ds_engine_stats_get(e, &st);
    assert_int_equal(st.ended[DS_ENDED_DEADLINE], 1);
    assert_int_equal(st.tbt.n, 3600);
    assert_int_equal(st.tbt.sum_us, 3600000000);
    assert_int_equal(st.host_plan_ns, 0); /* nobody's time passes but the device's */
    ds_engine_destroy(e);
    assert_true(ds_now_us() - real < 10000000);
    o.clock.sleep_until_ns = NULL;
    assert_int_equal(ds_engine_create_stub(&e, &(ds_engine_stub){ .vocab = VOCAB }, &o, &err), DS_E_ARG);
}

static void statistics_add_up(void **state)
{
    ds_engine *e = make(&(ds_engine_opts){ .max_context = 3000, .drafts = 2 }, (ds_engine_stub){ .drafts = 2, .verify = true });
    ds_gen_request q = simple(700, 50);
    ds_gen_stats st;
    ds_event ev[64];
    uint64_t id;
    ds_err err;

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_ok(ds_engine_add(e, &q, &id, &err));
        while (ds_engine_turn(e))
            ;
        while (ds_engine_poll(e, ev, 64))
            ;
    }
    ds_engine_stats_get(e, &st);
    assert_int_equal(st.accepted, 3);
    assert_int_equal(st.ended[DS_ENDED_LENGTH], 3);
    assert_int_equal(st.output_tokens, 150);
    assert_int_equal(st.prompt_tokens, 2100);
    assert_int_equal(st.hit_state_tokens + st.hit_replay_tokens, 1024);
    assert_int_equal(st.computed_tokens, 2100 - 1024 + st.replayed_tokens);
    assert_int_equal(st.ttft.n, 3);
    assert_int_equal(st.tbt.n, 147);
    assert_true(st.kept[0] > 0 && st.kept[0] < st.drafted[0] && st.kept[1] <= st.kept[0]);
    assert_int_equal(st.kv_used, 0);
    assert_int_equal(st.slots_used, 0);
    assert_true(st.kv_cached >= 5);
    ds_engine_destroy(e);
}

static uint32_t mask_calls, n_accepted, n_rows;
/* Odd tokens only. Drafts are legal up to the first even one. */
static uint32_t odd_only(void *ctx, uint32_t sample, const int32_t *drafts, uint32_t n, uint32_t *words, size_t ld)
{
    uint32_t rows = 0;

    (void)sample;
    mask_calls++;
    assert_non_null(ctx);
    do
        for (uint32_t w = 0; w < (VOCAB + 31) / 32; w++)
            words[rows * ld + w] = 0xaaaaaaaau;
    while (rows++ < n && drafts[rows - 1] % 2);
    n_rows += rows;
    return rows;
}
static void accepted(void *ctx, uint32_t sample, const int32_t *tokens, uint32_t n)
{
    (void)ctx;
    (void)sample;
    assert_true(mask_calls > 0 && n > 0);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(tokens[i] % 2, 1);
    n_accepted += n;
}
static const ds_gen_grammar_fn odd = { .masks = odd_only, .accept = accepted };

static uint32_t no_way_on(void *ctx, uint32_t sample, const int32_t *drafts, uint32_t n, uint32_t *words, size_t ld)
{
    (void)sample;
    (void)drafts;
    (void)n;
    if (*(bool *)ctx) /* nothing may stand there */
        memset(words, 0, ld * sizeof *words);
    return *(bool *)ctx;
}
static const ds_gen_grammar_fn nothing = { .masks = no_way_on, .accept = accepted };

static void masks(void **state)
{
    ds_engine *e = make(&(ds_engine_opts){ .max_context = 3000, .drafts = 2 }, (ds_engine_stub){ .drafts = 2 });
    ds_gen_grammar g = { .fn = &odd, .ctx = &g };
    ds_gen_request q = simple(700, 50);
    uint32_t tokens;
    uint64_t id;
    ds_event end;
    ds_err err;

    (void)state;
    q.grammar = &g;
    assert_ok(ds_engine_add(e, &q, &id, &err));
    finish(e, id, &end, &tokens);
    assert_int_equal(tokens, 50);
    assert_true(n_accepted >= 47 && n_accepted < 50); /* what the last step drew nobody asks about */
    assert_true(mask_calls < 50 && n_rows >= 50);
    for (int empty = 0; empty < 2; empty++) {
        bool row = empty;
        g = (ds_gen_grammar){ .fn = &nothing, .ctx = &row };
        assert_ok(ds_engine_add(e, &q, &id, &err));
        finish(e, id, &end, &tokens);
        assert_int_equal(end.end.reason, DS_ENDED_FAILED);
        assert_int_equal(end.end.rc, DS_E_ARG);
        assert_int_equal(tokens, 0);
    }
    ds_engine_destroy(e);
}

/* Once the end is out, nobody calls the caller's functions for that sample any more, though a step with its rows was
 * in flight when it was cancelled. */
static void nothing_is_called_after_the_end(void **state)
{
    (void)state;
    for (int turns = 1; turns < 12; turns++) {
        ds_engine *e = make(&(ds_engine_opts){ .max_context = 3000, .step_tokens = 200 }, (ds_engine_stub){ 0 });
        ds_gen_grammar g = { .fn = &odd, .ctx = &g };
        ds_gen_request q = simple(500, 50);
        uint32_t tokens, calls;
        uint64_t id;
        ds_event end;
        ds_err err;
        q.grammar = &g;
        assert_ok(ds_engine_add(e, &q, &id, &err));
        for (int t = 0; t < turns; t++)
            ds_engine_turn(e);
        ds_engine_cancel(e, id);
        finish(e, id, &end, &tokens);
        calls = mask_calls;
        while (ds_engine_turn(e))
            ;
        assert_int_equal(calls, mask_calls);
        ds_engine_destroy(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_requests_are_refused),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(busy_and_draining),
        cmocka_unit_test(allocations_fail),
        cmocka_unit_test(the_loop_takes_nothing),
        cmocka_unit_test(cancelled_in_every_state),
        cmocka_unit_test(destroyed_in_every_state),
        cmocka_unit_test(deadlines),
        cmocka_unit_test(stop_strings),
        cmocka_unit_test(stop_ids_and_lengths),
        cmocka_unit_test(texts_that_are_over),
        cmocka_unit_test(prompts_of_any_length),
        cmocka_unit_test(a_tenant_sees_only_its_own_prefixes),
        cmocka_unit_test(pictures_are_part_of_the_key),
        cmocka_unit_test(keys_can_be_derived_outside),
        cmocka_unit_test(better_priorities_first),
        cmocka_unit_test(waiting_is_worth_a_priority),
        cmocka_unit_test(chunks_keep_to_the_budget),
        cmocka_unit_test(nobody_waits_for_those_behind),
        cmocka_unit_test(on_a_virtual_clock),
        cmocka_unit_test(statistics_add_up),
        cmocka_unit_test(masks),
        cmocka_unit_test(nothing_is_called_after_the_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
