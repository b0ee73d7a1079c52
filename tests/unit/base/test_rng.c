#include "base/clock.h"
#include "base/rng.h"
#include "test.h"

/* The known answers that the authors of Philox publish. */
static void known_answers(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } cases[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { ~0u, ~0u, ~0u, ~0u }, { ~0u, ~0u }, { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
          { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    uint32_t out[4];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ds_philox(out, cases[i].key, cases[i].counter);
        assert_memory_equal(out, cases[i].want, sizeof out);
    }
    assert_true(ds_rng_u64(0, 0, 0) == 0xe169c58d6627e8d5u);
}

static void streams_and_seeds_differ(void **state)
{
    (void)state;
    assert_true(ds_rng_u64(1, 2, 3) == ds_rng_u64(1, 2, 3));
    assert_true(ds_rng_u64(1, 2, 3) != ds_rng_u64(1, 3, 2));
    assert_true(ds_rng_u64(1, 2, 3) != ds_rng_u64(2, 2, 3));
    assert_true(ds_rng_u64(1ull << 32, 0, 0) != ds_rng_u64(1, 0, 0));
    assert_true(ds_rng_u64(0, 1ull << 32, 0) != ds_rng_u64(0, 1, 0));
    assert_true(ds_rng_u64(0, 0, 1ull << 32) != ds_rng_u64(0, 0, 1));
}

static void unit_is_uniform(void **state)
{
    enum { N = 100000 };
    double sum = 0, squares = 0;

    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        double x = ds_rng_unit(5, 0, i);
        assert_true(x >= 0 && x < 1);
        sum += x;
        squares += x * x;
    }
    assert_true(fabs(sum / N - 0.5) < 0.005);
    assert_true(fabs(squares / N - 1.0 / 3) < 0.005);
}

static void normal_has_its_moments(void **state)
{
    enum { N = 100000 };
    double sum[5] = { 0 };

    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        double x = ds_rng_normal(6, 1, i), p = 1;
        assert_true(isfinite(x));
        for (int k = 1; k < 5; k++)
            sum[k] += p *= x;
    }
    assert_true(fabs(sum[1] / N) < 0.015);
    assert_true(fabs(sum[2] / N - 1) < 0.02);
    assert_true(fabs(sum[3] / N) < 0.05);
    assert_true(fabs(sum[4] / N - 3) < 0.15);
}

static void clock_goes_forward(void **state)
{
    uint64_t a = ds_now_ns(), b = ds_now_ns();

    (void)state;
    assert_true(b >= a && a > 0);
    assert_true(ds_now_us() >= a / 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),          cmocka_unit_test(streams_and_seeds_differ), cmocka_unit_test(unit_is_uniform),
        cmocka_unit_test(normal_has_its_moments), cmocka_unit_test(clock_goes_forward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
