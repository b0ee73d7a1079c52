/* Costs from measured steps: the cost that made them comes back, and what can't be read is said with its row. */
#include "sim/measured.h"
#include "test.h"

static void the_cost_comes_back(void **state)
{
    const ds_cost made = { .coef = { 3000.0, 25.0, 4e-4, 1e-3 } };
    static char text[64 * 1024];
    ds_sim_measured m;
    ds_err err = { 0 };
    size_t n = 0;

    (void)state;
    for (int sequences = 1; sequences <= 64; sequences *= 4)
        for (int each = 1; each <= 512; each *= 8)
            for (int context = 0; context <= 100000; context = context ? context * 10 : 1000) {
                ds_cost_work x = { 0 };
                for (int i = 0; i < sequences; i++)
                    ds_cost_add(&x, each, context);
                n += (size_t)snprintf(text + n, sizeof text - n, "{\"sequences\":%d,\"rows\":%d,\"context\":%d,\"us\":%.9g}\n", sequences,
                                      sequences * each, context, ds_cost_of(&made, &x));
            }
    assert_int_equal(ds_sim_measured_parse(&m, text, n, "steps", &err), DS_OK);
    assert_int_equal(m.steps, 4 * 4 * 4);
    assert_true(m.most_off < 0.02);
    assert_true(fabs(m.cost.coef[1] - 25.0) < 0.5 && fabs(m.cost.coef[2] - 4e-4) < 1e-5);
}

static void refuses(void **state)
{
    static const char ok[] = "{\"sequences\":1,\"rows\":1,\"context\":0,\"us\":5}\n";
    static const struct {
        const char *last, *says;
    } cases[] = {
        { "", "steps: 1 steps, at least 4" },
        { "{", "steps: row 2: line 1" },
        { "[]", "steps: row 2: sequences" },
        { "{\"sequences\":2,\"rows\":1,\"context\":0,\"us\":5}", "steps: row 2: rows" },
        { "{\"sequences\":1,\"rows\":1,\"context\":-1,\"us\":5}", "steps: row 2: context" },
        { "{\"sequences\":1,\"rows\":1,\"context\":0,\"us\":0}", "steps: row 2: us" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        ds_sim_measured m;
        ds_err err = { 0 };
        snprintf(text, sizeof text, "%s%s", ok, cases[i].last);
        assert_int_equal(ds_sim_measured_parse(&m, text, strlen(text), "steps", &err), DS_E_FORMAT);
        if (strncmp(err.msg, cases[i].says, strlen(cases[i].says)) != 0)
            fail_msg("case %zu says: %s", i, err.msg);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(the_cost_comes_back), cmocka_unit_test(refuses) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
