/* Random deployments with random troubles: nothing is lost, nothing appears from nowhere, and it is the same again. */
#include <math.h>

#include "base/rng.h"
#include "fault.h"
#include "sim/report.h"
#include "sim/sim.h"
#include "test.h"

static ds_sim_result result, again;

static uint64_t under(uint64_t stream, uint64_t seed, uint64_t n)
{
    return ds_rng_u64(77, stream, seed) % n;
}

static ds_sim_plan *parse(const char *text)
{
    ds_sim_plan *p;
    ds_err err = { 0 };

    if (ds_sim_plan_parse(&p, text, strlen(text), "f.yaml", "", &err) != DS_OK)
        fail_msg("%s\n%s", err.msg, text);
    return p;
}

static void put(char **at, char *end, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void put(char **at, char *end, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    *at += vsnprintf(*at, (size_t)(end - *at), fmt, ap);
    va_end(ap);
    assert_true(*at < end);
}

static ds_sim_plan *random_plan(uint64_t seed)
{
    static const char *const rules[] = { "balanced", "turns", "least" };
    char text[8192], *at = text, *end = text + sizeof text;
    bool mixed = under(1, seed, 3) == 0;
    const char *roles[2] = { mixed ? "mixed" : "prefill", mixed ? "mixed" : "decode" };

    put(&at, end, "seed: %u\nduration: %u s\n", (unsigned)seed, (unsigned)(60 + under(2, seed, 200)));
    put(&at, end, "machines:\n  m: {step: %u ms, row: %u us, row_context: %u ps, row_row: %u ps, draft: 20 us}\n",
        (unsigned)(1 + under(3, seed, 5)), (unsigned)(5 + under(4, seed, 40)), (unsigned)under(5, seed, 200),
        (unsigned)under(6, seed, 200));
    put(&at, end, "instances:\n");
    for (int r = 0; r < (mixed ? 1 : 2); r++)
        put(&at, end,
            "  - {role: %s, machine: m, count: %u, ranks: %u, requests: %u, kv: %u ktokens, rows: %u, prompts: %u, budget: %u ms}\n",
            roles[r], (unsigned)(1 + under(7, seed * 2 + r, 6)), (unsigned)(1 + under(8, seed * 2 + r, 3)),
            (unsigned)(1 + under(9, seed, 30)), (unsigned)(400 + under(10, seed, 3000)), (unsigned)(128 + under(11, seed, 9000)),
            (unsigned)(1 + under(12, seed, 16)), (unsigned)under(13, seed, 60));
    put(&at, end, "balance: {prefill: %s, decode: %s}\n", rules[under(14, seed, 3)], rules[under(15, seed, 3)]);
    if (under(16, seed, 3))
        put(&at, end, "store: {capacity: %u MB, ttl: %u s, fetch: 1 GB/s, window: 10 s}\n", (unsigned)(10 + under(17, seed, 900)),
            (unsigned)(5 + under(18, seed, 100)));
    if (under(19, seed, 2))
        put(&at, end, "transfer: 2 GB/s\nlatency: 1 ms\n");
    if (under(20, seed, 2))
        put(&at, end, "drafts: [85 %%, 70 %%, 40 %%]\n");
    if (under(21, seed, 2))
        put(&at, end, "limits: {live: %u, wait: %u s}\n", (unsigned)(5 + under(22, seed, 400)), (unsigned)(1 + under(23, seed, 20)));
    put(&at, end,
        "load:\n  - {name: a, rate: %u /s, input: {mean: 3000 tokens}, output: {from: 1 tokens, to: 80 tokens}, shared: 900 tokens, texts: "
        "4}\n",
        (unsigned)(1 + under(24, seed, 12)));
    put(&at, end,
        "  - {name: b, sessions: %u /min, turns: {mean: 6}, input: {p50: 20000 tokens, p99: 90000 tokens}, growth: {mean: 700 tokens},\n"
        "     output: {mean: 60 tokens}, gap: {p50: 1 s, p99: 20 s}, reset: 10 %%, priority: 1, ttl: 30 s}\n",
        (unsigned)(1 + under(25, seed, 40)));
    put(&at, end, "events:\n  - {at: 20 s, traffic: %u}\n", (unsigned)under(26, seed, 4));
    for (uint32_t e = 0; e < 6; e++) {
        unsigned when = (unsigned)under(27, seed * 8 + e, 120), lasts = (unsigned)under(28, seed * 8 + e, 30);
        const char *role = roles[under(29, seed * 8 + e, 2)];
        switch (under(30, seed * 8 + e, 4)) {
        case 0:
            put(&at, end, "  - {at: %u s, fail: %s, count: %u, lasts: %u s}\n", when, role, (unsigned)(1 + under(31, seed * 8 + e, 3)),
                lasts);
            break;
        case 1:
            put(&at, end, "  - {at: %u s, slow: %s, factor: 3, lasts: %u s}\n", when, role, lasts);
            break;
        case 2:
            put(&at, end, "  - {at: %u s, restart: %s, lasts: 2 s}\n", when, role);
            break;
        default:
            put(&at, end, "  - {at: %u s, traffic: %u}\n", when, (unsigned)(1 + under(32, seed * 8 + e, 2)));
        }
    }
    return parse(text);
}

static void conserved(const ds_sim_plan *p, const ds_sim_result *r)
{
    const ds_sim_sum *s = &r->sum;
    uint64_t arrived = 0, done = 0, failed = 0, prompts = 0, hits = 0;

    assert_int_equal(s->arrived, s->done + s->failed + s->live);
    assert_int_equal(s->failed, s->refused + s->late);
    assert_int_equal(s->prompt_tokens, s->hit_tokens + s->computed_tokens);
    assert_true(s->output_tokens >= s->done_output_tokens);
    assert_true(s->done_output_tokens >= s->done);
    assert_int_equal(s->first.n, s->done);
    assert_true(s->good <= s->counted && s->good_tokens <= s->done_output_tokens);
    assert_int_equal(r->store.written_bytes, r->store.held_bytes + r->store.evicted_bytes + r->store.expired_bytes);
    assert_true((double)r->store.most_bytes <= p->capacity_bytes || !p->has_store);
    if (!p->has_store)
        assert_true(s->hit_tokens == 0 || s->restarted > 0);
    for (uint32_t b = 0; b < r->n_bins; b++) {
        arrived += r->bins[b].arrived;
        done += r->bins[b].done;
        failed += r->bins[b].failed;
    }
    for (uint32_t l = 0; l < p->n_loads; l++) {
        prompts += r->loads[l].prompt_tokens;
        hits += r->loads[l].hit_tokens;
    }
    assert_int_equal(arrived, s->arrived);
    assert_int_equal(done, s->done);
    assert_int_equal(failed, s->failed);
    assert_int_equal(prompts, s->prompt_tokens);
    assert_int_equal(hits, s->hit_tokens);
    for (uint32_t g = 0; g < p->n_groups; g++)
        assert_true(r->groups[g].busy >= 0.0 && r->groups[g].busy <= 1.0 + 1e-9);
}

static void nothing_is_lost(void **state)
{
    uint64_t done = 0, restarted = 0, failed = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 150; seed++) {
        ds_sim_plan *p = random_plan(seed);
        ds_err err = { 0 };
        assert_int_equal(ds_sim_run(p, &result, &err), DS_OK);
        conserved(p, &result);
        assert_int_equal(ds_sim_run(p, &again, &err), DS_OK);
        assert_memory_equal(&result, &again, sizeof result);
        done += result.sum.done;
        restarted += result.sum.restarted;
        failed += result.sum.failed;
        ds_sim_plan_free(p);
    }
    assert_true(done > 10000 && restarted > 100 && failed > 100); /* all of it happens */
}

/* Instances that fail, are slow and are restarted one after the other, and the load ends: every request is done. */
static void everything_ends(void **state)
{
    static const char *const roles[] = { "prefill", "decode" };

    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        char text[4096], *at = text, *end = text + sizeof text;
        ds_sim_plan *p;
        ds_err err = { 0 };
        put(&at, end,
            "seed: %u\nduration: 2000 s\nmachines: {m: {step: 2 ms, row: 20 us}}\n"
            "instances:\n- {role: prefill, machine: m, count: 3}\n- {role: decode, machine: m, count: 3}\n"
            "load:\n- {name: a, rate: 4 /s, input: {mean: 4000 tokens}, output: {mean: 500 tokens}}\n"
            "store: {}\nevents:\n- {at: 1000 s, traffic: 0}\n",
            (unsigned)seed);
        for (int e = 0; e < 8; e++)
            put(&at, end, "- {at: %u s, fail: %s, lasts: %u s}\n", (unsigned)under(40, seed * 8 + e, 900), roles[e % 2],
                (unsigned)under(41, seed * 8 + e, 40));
        put(&at, end, "- {at: 100 s, restart: decode, lasts: 5 s}\n- {at: 100 s, restart: prefill, lasts: 5 s}\n");
        p = parse(text);
        assert_int_equal(ds_sim_run(p, &result, &err), DS_OK);
        conserved(p, &result);
        assert_int_equal(result.sum.live, 0);
        assert_int_equal(result.sum.failed, 0);
        assert_true(result.sum.done > 3500);
        assert_int_equal(result.sum.output_tokens, result.sum.done_output_tokens); /* each token once */
        ds_sim_plan_free(p);
    }
}

/* A rolling restart without failures computes nothing again but what was under way when it moved. */
static void restart_moves(void **state)
{
    ds_sim_plan *p = parse("duration: 3000 s\nmachines: {m: {step: 20 ms, row: 20 us}}\n"
                           "instances:\n- {role: prefill, machine: m, count: 2}\n- {role: decode, machine: m, count: 4}\n"
                           "load:\n- {name: a, rate: 1 /s, input: 1000 tokens, output: 8000 tokens}\n"
                           "events:\n- {at: 300 s, restart: decode, lasts: 5 s}\n- {at: 2000 s, traffic: 0}\n");
    ds_err err = { 0 };

    (void)state;
    assert_int_equal(ds_sim_run(p, &result, &err), DS_OK);
    conserved(p, &result);
    assert_int_equal(result.sum.live + result.sum.failed, 0);
    assert_int_equal(result.sum.restarted, 0);
    assert_true(result.sum.moved_bytes > (double)result.sum.done * 1000 * 890); /* some moved twice */
    ds_sim_plan_free(p);
}

/* Reports of the same result are the same, and the JSON is one line. */
static void reports(void **state)
{
    ds_sim_plan *p = random_plan(3);
    ds_err err = { 0 };
    ds_buf a = { 0 }, b = { 0 };

    (void)state;
    assert_int_equal(ds_sim_run(p, &result, &err), DS_OK);
    ds_sim_report_json(&a, p, &result);
    ds_sim_report_json(&b, p, &result);
    assert_string_equal(a.p, b.p);
    assert_ptr_equal(strchr(a.p, '\n'), a.p + a.len - 1);
    ds_buf_clear(&a);
    ds_sim_report_text(&a, p, &result);
    assert_true(!a.oom && a.len > 500);
    ds_buf_free(&a);
    ds_buf_free(&b);
    ds_sim_plan_free(p);
}

static ds_rc attempt(void *ctx, ds_err *err)
{
    return ds_sim_run(ctx, &result, err);
}

static void memory_ends(void **state)
{
    ds_sim_plan *p = parse("duration: 3 s\nmachines: {m: {step: 2 ms, row: 20 us}}\n"
                           "instances:\n- {role: prefill, machine: m, count: 1}\n- {role: decode, machine: m, count: 1}\n"
                           "load:\n- {name: a, rate: 20 /s, input: 1000 tokens, output: 50 tokens, shared: 500 tokens, texts: 2}\n"
                           "- {name: b, sessions: 2 /s, turns: 3, input: 1000 tokens, growth: 10 tokens, output: 50 tokens, gap: 100 ms}\n"
                           "store: {}\n");

    (void)state;
    assert_true(fault_every_allocation(attempt, p) > 15);
    ds_sim_plan_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(nothing_is_lost), cmocka_unit_test(everything_ends),
                                        cmocka_unit_test(restart_moves), cmocka_unit_test(reports), cmocka_unit_test(memory_ends) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
