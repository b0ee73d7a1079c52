/* Rows of a prompt in a step. */
#include "policy/chunk.h"
#include "test.h"

static const ds_cost known = { .coef = { 1000, 10, 0, 0 }, .n = 100 };

static uint32_t rows(uint32_t pos, uint32_t most, uint32_t budget_us, bool first)
{
    ds_chunk c = { .cost = &known, .pos = pos, .most = most, .budget_us = budget_us, .first = first };
    return ds_chunk_rows(&c);
}

static void without_a_budget_all(void **state)
{
    ds_chunk c = { .cost = &known, .most = 5000 };

    (void)state;
    assert_int_equal(ds_chunk_rows(&c), 5000);
    c.budget_us = 1;
    c.alone = true; /* nobody waits for a token */
    assert_int_equal(ds_chunk_rows(&c), 5000);
    c.most = 0;
    c.first = true;
    assert_int_equal(ds_chunk_rows(&c), 0);
}

static void ends_on_the_grid(void **state)
{
    (void)state;
    assert_int_equal(rows(0, 5000, 1000 + 10 * 300, true), 256);
    assert_int_equal(rows(128, 5000, 1000 + 10 * 300, true), 256);
    assert_int_equal(rows(100, 5000, 1000 + 10 * 300, true), 284); /* 100 + 284 = 3 x 128 */
    assert_int_equal(rows(100, 200, 1000 + 10 * 300, true), 200);  /* the end of the prompt is wherever it is */
}

static void smaller_where_less_fits(void **state)
{
    (void)state;
    assert_int_equal(rows(0, 5000, 1000 + 10 * 127, true), 64);
    assert_int_equal(rows(0, 5000, 1000 + 10 * 63, true), 32);
    assert_int_equal(rows(0, 5000, 1000 + 10 * 31, true), 16);
    assert_int_equal(rows(0, 20, 1000 + 10 * 31, true), 20);
}

/* However little time decoding leaves. */
static void the_first_always_moves(void **state)
{
    (void)state;
    assert_int_equal(rows(0, 5000, 1, true), 16);
    assert_int_equal(rows(0, 7, 1, true), 7);
    assert_int_equal(rows(0, 5000, 1, false), 0);
    assert_int_equal(rows(0, 5000, 1000 + 10 * 15, false), 0);
}

static void counts_what_the_step_has(void **state)
{
    ds_chunk c = { .cost = &known, .work = { .q = 200 }, .most = 5000, .budget_us = 1000 + 10 * 500 };

    (void)state;
    assert_int_equal(ds_chunk_rows(&c), 256);
}

static void one_grid_before_anything_is_known(void **state)
{
    ds_cost nothing = { 0 };
    ds_chunk c = { .cost = &nothing, .most = 5000, .budget_us = 1 };

    (void)state;
    assert_int_equal(ds_chunk_rows(&c), DS_CHUNK_GRID);
}

/* Any prompt ends, in steps of any budget, and no chunk is more than its step allows or less than 16 rows but for
 * the last. */
static void every_prompt_ends(void **state)
{
    (void)state;
    for (uint32_t budget = 1; budget < 6000; budget += 37)
        for (uint32_t pos = 0, n; pos < 3000; pos += n) {
            uint32_t most = 3000 - pos;
            n = rows(pos, most, budget, true);
            assert_true(n <= most && (n >= DS_CHUNK_LEAST || n == most));
            assert_true(n <= DS_CHUNK_LEAST || 1000 + 10 * n <= budget);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(without_a_budget_all),     cmocka_unit_test(ends_on_the_grid),
                                        cmocka_unit_test(smaller_where_less_fits),  cmocka_unit_test(the_first_always_moves),
                                        cmocka_unit_test(counts_what_the_step_has), cmocka_unit_test(one_grid_before_anything_is_known),
                                        cmocka_unit_test(every_prompt_ends) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
