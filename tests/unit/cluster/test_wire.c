/* Requests and events as bytes: what is written is read back, and nothing else is. */
#include "test.h"

#include "base/rng.h"
#include "cluster/wire.h"

enum { HIDDEN = 3 };

static ds_gen_request full(void)
{
    static const ds_token prompt[] = { 5, 6, 7, 8 }, ids[] = { 1, 2, 3 }, output[] = { 9 };
    static const ds_token_bias bias[] = { { 4, 0.5f }, { 5, -100.0f } };
    static const ds_token_seq bad[] = { { ids, 2 }, { ids, 3 } };
    static const ds_str stop[] = { { "abc", 3 }, { "\0x", 2 } };
    static const float rows[2 * HIDDEN] = { 1, 2, 3, 4, 5, 6 };
    static const ds_gen_image images[] = { { 1, 2, rows, { 1, 2, 3 } } };
    static const ds_gen_grammar g = { .what = { "what", 4 } };

    return (ds_gen_request){ .prompt = prompt,
                             .n_prompt = 4,
                             .max_tokens = 11,
                             .min_tokens = 2,
                             .n = 1,
                             .sampling = { .temperature = 0.7,
                                           .top_p = 0.9,
                                           .min_p = 0.1,
                                           .top_k = 4,
                                           .repetition_penalty = 1.1,
                                           .seed = UINT64_MAX,
                                           .seeded = true },
                             .bias = bias,
                             .n_bias = 2,
                             .bad = bad,
                             .n_bad = 2,
                             .allowed = ids,
                             .n_allowed = 3,
                             .stop_ids = ids,
                             .n_stop_ids = 1,
                             .report_stop_id = true,
                             .stop = stop,
                             .n_stop = 2,
                             .logprobs = true,
                             .n_top = 3,
                             .priority = 2,
                             .cache_domain = "",
                             .cache_salt = NULL,
                             .replay = DS_REPLAY_NEVER,
                             .images = images,
                             .n_images = 1,
                             .grammar = &g,
                             .tag = 77,
                             .output = output,
                             .n_output = 1 };
}

static void requests_come_back(void **state)
{
    ds_gen_request q = full();
    ds_buf a = { 0 }, b = { 0 };
    ds_cw_request *r, *again;
    ds_err err;

    (void)state;
    ds_cw_put_request(&a, &q, HIDDEN);
    assert_ok(ds_cw_read_request(&r, (const uint8_t *)a.p, a.len, HIDDEN, &err));
    ds_gen_request *got = ds_cw_request_get(r);
    assert_int_equal(got->n_prompt, 4);
    assert_string_equal(got->cache_domain, "");
    assert_null(got->cache_salt);
    assert_int_equal(got->stop[1].n, 2);
    assert_memory_equal(got->images[0].embedding, q.images[0].embedding, 2 * HIDDEN * sizeof(float));
    assert_memory_equal(got->grammar->what.p, "what", 4);
    ds_cw_put_request(&b, got, HIDDEN);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.p, b.p, a.len);
    b.p[0] ^= 32; /* a grammar that the bits don't know of */
    assert_int_equal(ds_cw_read_request(&again, (const uint8_t *)b.p, b.len, HIDDEN, &err), DS_E_FORMAT);
    b.p[0] ^= 32;
    b.p[100] = 2; /* neither a text nor none */
    assert_int_equal(ds_cw_read_request(&again, (const uint8_t *)b.p, b.len, HIDDEN, &err), DS_E_FORMAT);
    ds_cw_request_free(r);
    for (size_t n = 0; n < a.len; n++)
        assert_int_equal(ds_cw_read_request(&r, (const uint8_t *)a.p, n, HIDDEN, &err), DS_E_FORMAT);
    ds_buf_putc(&a, 0);
    assert_int_equal(ds_cw_read_request(&r, (const uint8_t *)a.p, a.len, HIDDEN, &err), DS_E_FORMAT);
    for (uint64_t i = 0; i < 200000; i++) { /* whatever is read can be written and is the same again */
        size_t at = (size_t)(ds_rng_u64(7, 1, i) % (a.len - 1));
        char was = a.p[at];
        a.p[at] = (char)ds_rng_u64(7, 2, i);
        if (ds_cw_read_request(&r, (const uint8_t *)a.p, a.len - 1, HIDDEN, &err) == DS_OK)
            ds_cw_request_free(r);
        a.p[at] = was;
    }
    ds_buf_free(&a);
    ds_buf_free(&b);
}

/* The grammar that was made of a request is the request's own, whatever becomes of who made it. */
static void a_grammar_that_was_made_stays(void **state)
{
    static const ds_gen_grammar_fn fn = { 0 };
    ds_gen_grammar what = { .what = { "ab", 2 } }, made = { .fn = &fn, .ctx = &made };
    ds_token prompt[] = { 1, 2 };
    ds_gen_request q = { .prompt = prompt, .n_prompt = 2, .max_tokens = 1, .sampling = DS_SAMPLING_DEFAULT, .grammar = &what };
    ds_cw_request *r;
    ds_buf b = { 0 };
    ds_err err;

    (void)state;
    ds_cw_put_request(&b, &q, 1);
    assert_ok(ds_cw_read_request(&r, (const uint8_t *)b.p, b.len, 1, &err));
    ds_buf_free(&b);
    ds_cw_request_made(r, &made);
    made = (ds_gen_grammar){ .fn = NULL };
    const ds_gen_grammar *g = ds_cw_request_get(r)->grammar;
    assert_ptr_equal(g->fn, &fn);
    assert_ptr_equal(g->ctx, &made);
    assert_int_equal(g->what.n, 2);
    assert_memory_equal(g->what.p, "ab", 2);
    ds_cw_request_free(r);
}

static void events_come_back(void **state)
{
    ds_event ev[4] = { { .kind = DS_EV_START, .sample = 1, .start = { 10, 128, 7, 99 } },
                       { .kind = DS_EV_TOKEN, .sample = 2 },
                       { .kind = DS_EV_PROMPT },
                       { .kind = DS_EV_END, .sample = 3 } };
    ds_buf b = { 0 };
    ds_event got;

    (void)state;
    ev[1].token.id = 5;
    ev[1].token.index = 3;
    ev[1].token.logprob = -1.5f;
    ev[1].token.n_top = 2;
    ev[1].token.top[1] = (ds_gen_logprob){ 8, -2.0f };
    ev[1].token.readable_us = 900;
    ev[2].token.id = -3;
    ev[3].end.reason = DS_ENDED_FAILED;
    ev[3].end.rc = DS_E_AGAIN;
    ev[3].end.cut_bytes = 6;
    ev[3].end.decode_us = UINT64_MAX;
    ev[3].end.last = true;
    for (int i = 0; i < 4; i++)
        ds_cw_put_event(&b, 40 + (uint64_t)i, &ev[i], 1000);
    ds_frame_in in = { (const uint8_t *)b.p, (const uint8_t *)b.p + b.len, false };
    for (int i = 0; i < 4; i++) {
        assert_true(ds_cw_read_event(&got, &in, 5000));
        assert_int_equal(got.kind, ev[i].kind);
        assert_int_equal(got.sample, ev[i].sample);
        assert_int_equal(got.request, 40 + i);
        if (i == 0)
            assert_memory_equal(&got.start, &ev[0].start, sizeof got.start);
        if (i == 1) {
            assert_int_equal(got.token.readable_us, 4900); /* as long ago as there */
            assert_int_equal(got.token.top[1].id, 8);
        }
        if (i == 2)
            assert_int_equal(got.token.id, -3);
        if (i == 3)
            assert_true(got.end.rc == DS_E_AGAIN && got.end.last && got.end.cut_bytes == 6 && got.end.decode_us == UINT64_MAX);
    }
    assert_false(ds_cw_read_event(&got, &in, 5000) || in.bad);
    for (size_t n = 1; n < b.len; n++) { /* cut anywhere: whole events, then the end or bad */
        in = (ds_frame_in){ (const uint8_t *)b.p, (const uint8_t *)b.p + n, false };
        while (ds_cw_read_event(&got, &in, 0))
            ;
        assert_true(in.bad || in.at == in.end);
    }
    ds_buf_free(&b);
}

/* Where a sequence that left is; what can't be is refused. */
static void where_it_left_comes_back(void **state)
{
    const ds_gen_from from = { .address = "unix:/x", .epoch = UINT64_MAX, .ticket = 3 };
    const ds_token ids[] = { 1, 2 };
    ds_gen_request q = {
        .prompt = ids, .n_prompt = 2, .max_tokens = 5, .n = 1, .sampling = DS_SAMPLING_DEFAULT, .output = ids, .n_output = 1
    };
    ds_cw_request *r;
    ds_err err;

    (void)state;
    for (int wrong = 0; wrong < 6; wrong++) {
        ds_gen_from f = from;
        ds_gen_request w = q;
        ds_buf b = { 0 };
        w.from = &f;
        f.ticket = wrong == 1 ? 0 : 3;
        f.address = wrong == 2 ? NULL : from.address;
        w.hand_over = wrong == 3;
        w.n = wrong == 4 ? 2 : 1;
        w.n_output = wrong == 5 ? 0 : 1;
        ds_cw_put_request(&b, &w, HIDDEN);
        ds_rc rc = ds_cw_read_request(&r, (const uint8_t *)b.p, b.len, HIDDEN, &err);
        assert_int_equal(rc, wrong ? DS_E_FORMAT : DS_OK);
        if (rc == DS_OK) {
            const ds_gen_from *got = ds_cw_request_get(r)->from;
            assert_string_equal(got->address, "unix:/x");
            assert_true(got->epoch == UINT64_MAX && got->ticket == 3);
            ds_cw_request_free(r);
        }
        ds_buf_free(&b);
    }
    q.hand_over = true;
    ds_buf b = { 0 };
    ds_cw_put_request(&b, &q, HIDDEN);
    assert_ok(ds_cw_read_request(&r, (const uint8_t *)b.p, b.len, HIDDEN, &err));
    assert_true(ds_cw_request_get(r)->hand_over && !ds_cw_request_get(r)->from);
    ds_cw_request_free(r);
    ds_buf_free(&b);
}

static void statistics_and_plans_come_back(void **state)
{
    ds_gen_stats s, t;
    ds_gen_plan p, plans[DS_GEN_MANY_MAX];
    ds_cw_engine m = { { { 1 }, { 2 } }, { 9, 8 }, "0.1 avx2 f32", DS_CW_DECODE }, got, other_self;
    const ds_cw_model other = { { 1 }, { 3 } };
    ds_buf b = { 0 };
    uint32_t engine, n;
    ds_err err;

    (void)state;
    memset(&s, 0, sizeof s);
    s.waiting = 3;
    s.cost[3] = 0.25;
    s.kept[DS_GEN_MAX_DRAFTS - 1] = UINT64_MAX;
    s.total.bucket[DS_GEN_HIST - 1] = 12;
    ds_cw_put_stats(&b, 2, &s);
    assert_ok(ds_cw_read_stats(&engine, &t, (const uint8_t *)b.p, b.len, &err));
    assert_int_equal(engine, 2);
    assert_memory_equal(&s, &t, sizeof s);
    assert_int_equal(ds_cw_read_stats(&engine, &t, (const uint8_t *)b.p, b.len - 1, &err), DS_E_FORMAT);
    ds_buf_clear(&b);
    memset(&p, 0, sizeof p);
    p.kv_blocks = 7;
    p.largest_context = 9;
    p.kv_tokens = 1ull << 40;
    ds_cw_put_welcome(&b, &m, &p, 1);
    assert_ok(ds_cw_read_welcome(&got, plans, &n, (const uint8_t *)b.p, b.len, &err));
    assert_int_equal(n, 1);
    assert_int_equal(got.role, DS_CW_DECODE);
    assert_memory_equal(&plans[0], &p, sizeof p);
    assert_memory_equal(&m, &got, sizeof m);
    for (size_t cut = 0; cut < b.len; cut++)
        assert_int_equal(ds_cw_read_welcome(&got, plans, &n, (const uint8_t *)b.p, cut, &err), DS_E_FORMAT);
    b.p[68 + 32 + 4 + 12] = DS_CW_ROLES;
    assert_refused(ds_cw_read_welcome(&other_self, plans, &n, (const uint8_t *)b.p, b.len, &err), DS_E_FORMAT, "an engine of role 3");
    assert_ok(ds_cw_same_model(&m.model, &m.model, &err));
    assert_refused(ds_cw_same_model(&other, &m.model, &err), DS_E_ARG, "config.json is 02000000, the entry's 03000000");
    ds_buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(requests_come_back), cmocka_unit_test(a_grammar_that_was_made_stays),
                                        cmocka_unit_test(events_come_back), cmocka_unit_test(where_it_left_comes_back),
                                        cmocka_unit_test(statistics_and_plans_come_back) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
