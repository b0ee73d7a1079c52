/* How many drafts pay: played against worlds whose best answer is known. */
#include "base/rng.h"
#include "policy/spec.h"
#include "test.h"

typedef struct {
    double step_us, row_us, draft_us; /* of a step; of each row; of drafting for a sequence */
    double kept;                      /* chance that a draft is kept, once it is reached */
} world;

static uint64_t draws;

static double tokens_per_step(const world *w, uint32_t k)
{
    double all = 1.0, t = 1.0;

    for (uint32_t i = 0; i < k; i++)
        t += all *= w->kept;
    return t;
}

static double rate(const world *w, uint32_t k, uint32_t n)
{
    return n * tokens_per_step(w, k) / (w->step_us + n * (1 + k) * w->row_us + (k ? n * w->draft_us : 0));
}

static void one_step(ds_spec *s, const world *w, uint32_t n, uint32_t k)
{
    ds_cost_work x = { n * (1.0 + k), n * (1.0 + k) * 1000, n * (1.0 + k) * (1.0 + k) };
    double draft = k ? n * w->draft_us : 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t kept = 0;
        while (kept < k && (double)(ds_rng_u64(5, 1, draws++) >> 11) / 9007199254740992.0 < w->kept)
            kept++;
        ds_spec_learn_row(s, k, kept);
    }
    ds_spec_learn_step(s, &x, w->step_us + x.q * w->row_us + draft, draft, k ? n : 0);
}

/* The share of the best rate that the controller gets over its last 2,000 steps of 4,000, trials included. */
static double share_of_best(const world *w, uint32_t n, uint32_t *last)
{
    ds_spec s;
    double tokens = 0, us = 0, best = 0;

    ds_spec_init(&s, 5, -1);
    for (int i = 0; i < 4000; i++) {
        uint32_t k = ds_spec_choose(&s, n, n * 1000.0, 1000);
        assert_int_equal(k, s.asked);
        assert_true(k <= 5);
        one_step(&s, w, n, k);
        if (i >= 2000) {
            tokens += n * tokens_per_step(w, k);
            us += w->step_us + n * (1 + k) * w->row_us + (k ? n * w->draft_us : 0);
        }
        *last = k;
    }
    for (uint32_t k = 0; k <= 5; k++)
        best = rate(w, k, n) > best ? rate(w, k, n) : best;
    return tokens / us / best;
}

static void near_the_best(void **state)
{
    static const world worlds[] = {
        { 1000, 10, 20, 0.9 }, { 1000, 10, 20, 0.3 }, { 100, 100, 50, 0.9 }, { 1000, 1, 2000, 0.9 }, { 500, 50, 50, 0.7 }
    };
    uint32_t last;

    (void)state;
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++)
        for (uint32_t n = 1; n <= 16; n *= 4)
            assert_true(share_of_best(&worlds[i], n, &last) > 0.96);
    assert_true(share_of_best(&(world){ 1000, 0.1, 1, 0.95 }, 1, &last) > 0.96);
    assert_true(last >= 4); /* rows for nothing: all of them */
}

/* A world that changes is noticed, however long nothing paid before. */
static void notices_a_change(void **state)
{
    world w = { 100, 100, 50, 0.5 };
    ds_spec s;
    uint32_t k = 0, i;

    (void)state;
    ds_spec_init(&s, 5, -1);
    for (i = 0; i < 20000; i++)
        one_step(&s, &w, 4, k = ds_spec_choose(&s, 4, 4000, 1000));
    w = (world){ 2000, 1, 2, 0.95 };
    for (i = 0; i < 20000 && !(s.probe_every == 64 && k >= 3); i++)
        one_step(&s, &w, 4, k = ds_spec_choose(&s, 4, 4000, 1000));
    assert_true(i < 20000);
}

static void keeps_to_what_was_asked(void **state)
{
    ds_spec s;

    (void)state;
    ds_spec_init(&s, 5, 3);
    assert_int_equal(ds_spec_choose(&s, 1, 100, 1000), 3);
    assert_int_equal(ds_spec_choose(&s, 10, 100, 20), 2); /* all together at most 20 rows */
    assert_int_equal(ds_spec_choose(&s, 0, 0, 20), 0);
    ds_spec_init(&s, 5, 0);
    assert_int_equal(ds_spec_choose(&s, 1, 100, 1000), 0);
    ds_spec_init(&s, 0, -1);
    assert_int_equal(ds_spec_choose(&s, 1, 100, 1000), 0);
    ds_spec_init(&s, 40, 40); /* no more than it keeps counts of */
    assert_int_equal(ds_spec_choose(&s, 1, 100, 1000), DS_SPEC_MAX);
    ds_spec_learn_row(&s, DS_SPEC_MAX, DS_SPEC_MAX);
    assert_true(s.kept[DS_SPEC_MAX - 1] == 1.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(near_the_best), cmocka_unit_test(notices_a_change),
                                        cmocka_unit_test(keeps_to_what_was_asked) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
