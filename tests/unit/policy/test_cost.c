/* The fitted cost of a step. */
#include "base/rng.h"
#include "policy/cost.h"
#include "test.h"

static uint64_t draws;

static double between(double lo, double hi)
{
    return lo + (hi - lo) * (double)(ds_rng_u64(3, 1, draws++) >> 11) / 9007199254740992.0;
}

/* Loads as a server has them: some decoding sequences, perhaps a chunk of a prompt. */
static ds_cost_work some_work(bool prompt)
{
    ds_cost_work x = { 0 };
    int n = (int)between(1, 33);

    for (int i = 0; i < n; i++)
        ds_cost_add(&x, 1.0, between(100, 30000));
    if (prompt)
        ds_cost_add(&x, between(16, 512), between(0, 50000));
    return x;
}

static double truth(const double w[4], const ds_cost_work *x)
{
    return w[0] + w[1] * x->q + w[2] * x->qc + w[3] * x->qq;
}

static void finds_its_coefficients(void **state)
{
    static const double worlds[][4] = { { 500, 20, 0.002, 0.001 }, { 100, 5, 0, 0 }, { 3000, 0, 0.01, 0 }, { 0, 50, 0, 0.02 } };

    (void)state;
    for (size_t k = 0; k < sizeof worlds / sizeof *worlds; k++) {
        ds_cost c = { 0 };
        double worst = 0.0;
        for (int i = 0; i < 3000; i++) {
            ds_cost_work x = some_work(i % 2);
            ds_cost_learn(&c, &x, truth(worlds[k], &x) * between(0.97, 1.03));
        }
        assert_true(ds_cost_known(&c));
        for (int i = 0; i < 200; i++) {
            ds_cost_work x = some_work(i % 2);
            double real = truth(worlds[k], &x),
                   off = fabs(ds_cost_of(&c, &x) - real) / (real + 1000.0); /* small steps hide in the noise of large ones */
            worst = off > worst ? off : worst;
        }
        assert_true(worst < 0.05);
    }
}

/* What would be negative is left out and the others fitted again: an answer below zero would promise rows for
 * nothing. */
static void never_negative(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        ds_cost c = { 0 };
        for (int i = 0; i < 60; i++) {
            ds_cost_work x = some_work(i % 3 == 0);
            ds_cost_learn(&c, &x, between(1, 5000)); /* nothing to do with x */
            for (int k = 0; k < 4; k++)
                assert_true(c.coef[k] >= 0.0 && isfinite(c.coef[k]));
        }
    }
}

static void forgets(void **state)
{
    ds_cost c = { 0 };
    ds_cost_work x = { 0 };

    (void)state;
    ds_cost_add(&x, 8, 1000);
    for (int i = 0; i < 2000; i++)
        ds_cost_learn(&c, &x, 100);
    for (int i = 0; i < 256; i++)
        ds_cost_learn(&c, &x, 300);
    assert_true(fabs(ds_cost_of(&c, &x) - 200) < 10);
}

/* The rows that fit: one more would be too many. */
static void fits_as_many_as_possible(void **state)
{
    (void)state;
    for (int round = 0; round < 2000; round++) {
        ds_cost c = { .coef = { between(0, 500), between(0, 20), between(0, 0.01), round % 3 ? between(0, 0.05) : 0.0 }, .n = 100 };
        ds_cost_work base = some_work(false), with;
        double context = between(0, 100000), budget = between(0, 20000);
        uint32_t q = ds_cost_fit(&c, &base, context, budget, 4096);
        if (q > 0) {
            with = base;
            ds_cost_add(&with, q, context);
            assert_true(ds_cost_of(&c, &with) <= budget * (1 + 1e-9));
        }
        if (q < 4096) {
            with = base;
            ds_cost_add(&with, q + 1, context);
            assert_true(ds_cost_of(&c, &with) > budget * (1 - 1e-9));
        }
    }
}

static void nothing_known_fits_all(void **state)
{
    ds_cost c = { 0 };

    (void)state;
    assert_false(ds_cost_known(&c));
    assert_int_equal(ds_cost_fit(&c, &(ds_cost_work){ 0 }, 0, 1, 77), 77);
    assert_int_equal(ds_cost_fit(&c, &(ds_cost_work){ 0 }, 0, 0, 77), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(finds_its_coefficients), cmocka_unit_test(never_negative),
                                        cmocka_unit_test(forgets), cmocka_unit_test(fits_as_many_as_possible),
                                        cmocka_unit_test(nothing_known_fits_all) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
