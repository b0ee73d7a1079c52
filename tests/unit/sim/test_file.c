/* The file: what it becomes, and what is refused with line and column. */
#include <math.h>

#include "sim/file.h"
#include "sim/quantity.h"
#include "test.h"

#define GOOD                                      \
    "machines:\n"                                 \
    "  m: {step: 2 ms, row: 30 us}\n"             \
    "instances:\n"                                \
    "  - {role: prefill, machine: m, count: 2}\n" \
    "  - {role: decode, machine: m, count: 4, kv: 1 Mtokens}\n"
#define LOAD            \
    "duration: 2 min\n" \
    "load:\n"           \
    "  - {name: a, rate: 3 /s, input: {from: 10 tokens, to: 20 tokens}, output: 5 tokens}\n"

static void units(void **state)
{
    static const struct {
        const char *text;
        ds_sim_kind kind;
        double is; /* NAN: refused */
    } cases[] = {
        { "3 ms", DS_SIM_TIME, 3e-3 },
        { "3ms", DS_SIM_TIME, 3e-3 },
        { "1.5 h", DS_SIM_TIME, 5400 },
        { "0 s", DS_SIM_TIME, 0 },
        { "1e3 us", DS_SIM_TIME, 1e-3 },
        { "4.8 TB/s", DS_SIM_BYTE_RATE, 4.8e12 },
        { "85 %", DS_SIM_SHARE, 0.85 },
        { "2 KiB", DS_SIM_BYTES, 2048 },
        { "7", DS_SIM_COUNT, 7 },
        { "60 /min", DS_SIM_RATE, 1 },
        { "3", DS_SIM_TIME, NAN },
        { "3 s", DS_SIM_COUNT, NAN },
        { "-3 s", DS_SIM_TIME, NAN },
        { "+3 s", DS_SIM_TIME, NAN },
        { "inf s", DS_SIM_TIME, NAN },
        { "nan s", DS_SIM_TIME, NAN },
        { "0x10 s", DS_SIM_TIME, NAN },
        { "1e999 s", DS_SIM_TIME, NAN },
        { "1.2.3 s", DS_SIM_TIME, NAN },
        { "3 S", DS_SIM_TIME, NAN },
        { "3 s ", DS_SIM_TIME, NAN },
        { "", DS_SIM_TIME, NAN },
        { ".", DS_SIM_COUNT, NAN },
        { "1e s", DS_SIM_TIME, NAN },
        { "3 tokens/s", DS_SIM_TOKENS, NAN },
        { "1e308 d", DS_SIM_TIME, NAN },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double x = -1.0;
        bool ok = ds_sim_quantity(cases[i].text, cases[i].kind, &x);
        if (ok != !isnan(cases[i].is) || (ok && fabs(x - cases[i].is) > 1e-9 * cases[i].is) || (!ok && x != -1.0))
            fail_msg("'%s' is %g", cases[i].text, x);
    }
}

static void reads(void **state)
{
    ds_sim_plan *p;
    ds_err err = { 0 };
    static const char text[] = GOOD LOAD "drafts: [80 %, 50 %]\nstore: {capacity: 1 GB, ttl: 1 h}\n"
                                         "events:\n  - {at: 1 min, fail: decode, lasts: 5 s}\n  - {at: 0 s, traffic: 2}\n";

    (void)state;
    assert_int_equal(ds_sim_plan_parse(&p, text, sizeof text - 1, "f.yaml", "", &err), DS_OK);
    assert_int_equal(p->n_groups, 2);
    assert_int_equal(p->groups[1].role, DS_SIM_DECODE);
    assert_int_equal(p->groups[1].kv_tokens, 1000000);
    assert_true(fabs(p->machines[0].cost.coef[0] - 2000.0) < 1e-9 && fabs(p->machines[0].cost.coef[1] - 30.0) < 1e-9);
    assert_true(!p->machines[0].predicted && p->duration_s == 120.0 && p->n_kept == 2 && p->kept[1] == 0.5);
    assert_true(p->loads[0].input.shape == DS_SIM_EVEN && p->loads[0].input.b == 20.0 && p->loads[0].ttl_s == 3600.0);
    assert_int_equal(p->changes[0].what, DS_SIM_FAIL);
    assert_true(p->changes[1].what == DS_SIM_TRAFFIC && p->changes[1].factor == 2.0);
    ds_sim_plan_free(p);
    ds_sim_plan_free(NULL);
}

static void refuses(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        { GOOD LOAD "sede: 3\n", "f.yaml:9:1: 'sede': no key of the file; did you mean seed?" },
        { GOOD, "f.yaml:1:1: the file: load is missing" },
        { "machines: {m: {step: 2}}\ninstances: []\nload: []\n", "f.yaml:1:16: step: '2', expected a number with a unit: ps, ns" },
        { "machines: {m: {row: 2 GB}}\ninstances: []\nload: []\n", "f.yaml:1:16: row: '2 GB', expected" },
        { "machines: {m: {price: 2 /h}}\ninstances: []\nload: []\n", "f.yaml:1:12: m: steps take no time" },
        { "machines: {m: {step: 1 ms, predicted: {bandwidth: 1 GB/s}}}\ninstances: []\nload: []\n",
          "f.yaml:1:28: predicted: peak is missing" },
        { "machines: {m: {step: 1 ms}}\ninstances: []\nload: []\n", "f.yaml:2:1: instances: expected a list" },
        { "machines: {m: {step: 1 ms}}\ninstances:\n- {role: decode, machine: m, count: 1}\nload: []\n",
          "f.yaml:2:1: instances: prefill is missing" },
        { "machines: {m: {step: 1 ms}}\ninstances:\n- {role: decode, machine: x, count: 1}\nload: []\n",
          "f.yaml:3:18: machine: 'x' isn't" },
        { "machines: {m: {step: 1 ms}}\ninstances:\n- {role: decode, machine: m, count: 1.5}\nload: []\n",
          "f.yaml:3:30: count: expected a whole" },
        { "machines: {m: {step: 1 ms}}\ninstances:\n- {role: decode, machine: m, count: 100000}\nload: []\n",
          "f.yaml:3:3: instances: 100000 ranks" },
        { "machines: {m: {step: 1 ms}}\ninstances:\n- {role: decode, machine: m, count: 3}\nthin: 2\nload: []\n",
          "f.yaml:3:30: count: 3 can't" },
        { "machines: {m: {step: 1 ms}}\ninstances:\n- {role: mixed, machine: m, count: 3}\n- {role: decode, machine: m, count: 3}\nload: "
          "[]\n",
          "f.yaml:2:1: instances: mixed" },
        { GOOD "load:\n  - {name: a, rate: 3 /s, input: 1 tokens, output: 5 tokens}\n", "f.yaml:1:1: duration is missing" },
        { GOOD "load:\n  - {name: a, rate: 3, input: 1 tokens, output: 5 tokens}\n", "f.yaml:7:15: rate: '3', expected" },
        { GOOD "load:\n  - {name: a, rate: 3 /s, input: {p50: 3 tokens}, output: 5 tokens}\n",
          "f.yaml:7:27: input: expected a number, {mean}" },
        { GOOD "load:\n  - {name: a, rate: 3 /s, input: {from: 3 tokens, to: 2 tokens}, output: 5 tokens}\n",
          "f.yaml:7:51: to: '2 tokens' is too small" },
        { GOOD "load:\n  - {name: a}\n", "f.yaml:7:5: load: trace, rate or sessions" },
        { GOOD "load:\n  - {name: a, trace: x, form: csv}\n", "f.yaml:7:25: form: 'csv', expected one of mooncake" },
        { GOOD LOAD "  - {name: a, rate: 3 /s, input: 1 tokens, output: 5 tokens}\n", "f.yaml:9:6: name: another" },
        { GOOD LOAD "events:\n  - {at: 1 s}\n", "f.yaml:10:5: an event: fail" },
        { GOOD LOAD "events:\n  - {at: 1 s, fail: mixed}\n", "f.yaml:10:15: fail: there is no instance" },
        { GOOD LOAD "events:\n  - {at: 1 s, slow: decode}\n", "f.yaml:10:5: slow: factor" },
        { GOOD LOAD "events:\n  - {at: 1 s, fail: decode, traffic: 3}\n", "f.yaml:10:29: traffic: the event is fail" },
        { GOOD LOAD "drafts: [120 %]\n", "f.yaml:9:10: value: '120 %' is too large" },
        { GOOD LOAD "warmup: 3 min\n", "f.yaml:9:1: warmup: as long" },
        { GOOD LOAD "sweep: {load: [2, 1]}\n", "f.yaml:9:19: load: doesn't rise" },
        { GOOD LOAD "sweep: {load: [1, 2 h]}\n", "f.yaml:9:19: value: '2 h', expected a number" },
        { GOOD LOAD "sweep: {ttl: [1 h]}\n", "f.yaml:9:1: sweep: capacity and ttl" },
        { GOOD LOAD "sweep: {ttl: [1 h], capacity: [1 GB]}\n", "f.yaml:9:1: sweep: there is no store" },
        { "3", "f.yaml:1:1: the file: a scalar, expected a map" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds_sim_plan *p;
        ds_err err = { 0 };
        assert_int_equal(ds_sim_plan_parse(&p, cases[i].text, strlen(cases[i].text), "f.yaml", "", &err), DS_E_FORMAT);
        assert_null(p);
        if (strncmp(err.msg, cases[i].says, strlen(cases[i].says)) != 0)
            fail_msg("case %zu says: %s", i, err.msg);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(units), cmocka_unit_test(reads), cmocka_unit_test(refuses) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
