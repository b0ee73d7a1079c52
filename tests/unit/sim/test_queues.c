/* Queues whose answers are known: the mean time to the first token, and what an overloaded deployment does. */
#include <math.h>

#include "sim/sim.h"
#include "test.h"

static ds_sim_result result;

static ds_sim_plan *parse(const char *fmt, ...)
{
    char text[4096];
    ds_sim_plan *p;
    ds_err err = { 0 };
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (ds_sim_plan_parse(&p, text, strlen(text), "f.yaml", "", &err) != DS_OK)
        fail_msg("%s", err.msg);
    return p;
}

/* One rank, a prompt in a step, 1 us a token: the mean service is 0.1 s with 100,000 tokens. */
static double mean_first_s(const char *input, double used, uint64_t seed)
{
    ds_sim_plan *p = parse("duration: 120000 s\nwarmup: 100 s\nseed: %llu\n"
                           "machines: {p: {row: 1 us}, d: {step: 1 us}}\n"
                           "instances:\n- {role: prefill, machine: p, count: 1, rows: 16777216, prompts: 1}\n"
                           "- {role: decode, machine: d, count: 1}\n"
                           "load:\n- {name: x, rate: %.6f /s, input: %s, output: 1 tokens}\n",
                           (unsigned long long)seed, used * 10.0, input);
    ds_err err = { 0 };

    assert_int_equal(ds_sim_run(p, &result, &err), DS_OK);
    ds_sim_plan_free(p);
    assert_int_equal(result.sum.arrived, result.sum.done + result.sum.failed + result.sum.live);
    assert_true(fabs(result.groups[0].busy - used) < 0.01 * used);
    return result.sum.first.sum / (double)result.sum.first.n / 1e9;
}

static void close_to(double is, double want, double relative)
{
    if (fabs(is - want) > relative * want)
        fail_msg("%.6f instead of %.6f", is, want);
}

/* Pollaczek and Khinchine: S + used S (1 + C^2) / (2 (1 - used)). Prompts keep their order within a tier alone: here
 * all are of the two longest ones, and the mean doesn't depend on the order as long as nobody looks at lengths. */
static void poisson_arrivals(void **state)
{
    (void)state;
    close_to(mean_first_s("100000 tokens", 0.5, 1), 0.1 + 0.5 * 0.1 / (2 * 0.5), 0.01);                                         /* M/D/1 */
    close_to(mean_first_s("{mean: 100000 tokens}", 0.5, 2), 0.1 / (1.0 - 0.5), 0.01);                                           /* M/M/1 */
    close_to(mean_first_s("{from: 1 tokens, to: 200000 tokens}", 0.5, 3), 0.1 + 0.5 * 0.1 * (1.0 + 1.0 / 3) / (2 * 0.5), 0.01); /* M/G/1 */
}

/* Twice what it can do: as much is done as can be, and the rest waits. */
static void overload(void **state)
{
    ds_sim_plan *p =
        parse("duration: 1000 s\nmachines: {p: {row: 1 us}, d: {step: 1 us}}\n"
              "instances:\n- {role: prefill, machine: p, count: 4, rows: 16777216, prompts: 1}\n- {role: decode, machine: d, count: 1}\n"
              "limits: {live: 500000}\nload:\n- {name: x, rate: 800 /s, input: 10000 tokens, output: 1 tokens}\n");
    ds_err err = { 0 };

    (void)state;
    assert_int_equal(ds_sim_run(p, &result, &err), DS_OK);
    ds_sim_plan_free(p);
    close_to((double)result.sum.done, 400 * 1000.0, 0.01);
    close_to((double)result.sum.live, 400 * 1000.0, 0.01);
    assert_true(result.groups[0].slowest < 1.01);
    /* half of the time of its arrival, in the mean, each of the done ones waited */
    close_to(result.sum.first.sum / (double)result.sum.first.n / 1e9, 1000.0 / 4, 0.01);
}

/* Decoding alone in the limit: 16 seats with steps of 10 ms. An answer takes 100 steps, and its seat is empty for one:
 * the next request is moved there when it is free, and joins at the step after. */
static void full_seats(void **state)
{
    ds_sim_plan *p = parse("duration: 2000 s\nmachines: {p: {row: 1 ns}, d: {step: 10 ms}}\n"
                           "instances:\n- {role: prefill, machine: p, count: 1}\n- {role: decode, machine: d, count: 1, requests: 16}\n"
                           "load:\n- {name: x, rate: 50 /s, input: 10 tokens, output: 101 tokens}\n");
    ds_err err = { 0 };

    (void)state;
    assert_int_equal(ds_sim_run(p, &result, &err), DS_OK);
    ds_sim_plan_free(p);
    close_to((double)result.sum.done, 2000.0 * 16 / 1.01, 0.005);
    close_to((double)ds_times_quantile(&result.sum.gap, 0.5), 1e7, 0.01);
    close_to(result.groups[1].busy, 1.0, 0.01);
}

/* Drafts: with shares a, b a step gives 1 + a + a b tokens. */
static void drafts(void **state)
{
    ds_sim_plan *p = parse("duration: 500 s\nmachines: {p: {row: 1 ns}, d: {step: 10 ms}}\ndrafts: [80 %%, 50 %%]\n"
                           "instances:\n- {role: prefill, machine: p, count: 1}\n- {role: decode, machine: d, count: 1, requests: 16}\n"
                           "load:\n- {name: x, rate: 100 /s, input: 10 tokens, output: 221 tokens}\n");
    ds_err err = { 0 };

    (void)state;
    assert_int_equal(ds_sim_run(p, &result, &err), DS_OK);
    ds_sim_plan_free(p);
    close_to((double)result.sum.done * 220, 500.0 * 1600 * 2.2, 0.02); /* now and then it tries other lengths */
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(poisson_arrivals), cmocka_unit_test(overload), cmocka_unit_test(full_seats),
                                        cmocka_unit_test(drafts) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
