/* Whose turn it is, and who has to go. */
#include "base/rng.h"
#include "policy/queue.h"
#include "test.h"

static void priority_then_arrival(void **state)
{
    (void)state;
    assert_true(ds_queue_before(&(ds_queue_wait){ 0, 0, 9 }, &(ds_queue_wait){ 1, 0, 1 }, 1000));
    assert_true(ds_queue_before(&(ds_queue_wait){ 3, 5, 1 }, &(ds_queue_wait){ 3, 5, 2 }, 1000));
    assert_false(ds_queue_before(&(ds_queue_wait){ 3, 5, 2 }, &(ds_queue_wait){ 3, 5, 1 }, 1000));
    assert_true(ds_queue_before(&(ds_queue_wait){ 3, 6, 2 }, &(ds_queue_wait){ 3, 5, 1 }, 1000));
}

static void waiting_wins_in_the_end(void **state)
{
    (void)state;
    assert_false(ds_queue_before(&(ds_queue_wait){ 7, 6999999, 1 }, &(ds_queue_wait){ 0, 0, 2 }, 1000));
    assert_true(ds_queue_before(&(ds_queue_wait){ 7, 7000000, 1 }, &(ds_queue_wait){ 0, 0, 2 }, 1000));
    assert_true(ds_queue_before(&(ds_queue_wait){ 7, UINT64_MAX / 4, 1 }, &(ds_queue_wait){ 0, 0, 2 }, UINT32_MAX));
}

/* It is an order: a queue sorted by it has one head. */
static void an_order(void **state)
{
    ds_queue_wait w[12];

    (void)state;
    for (uint32_t i = 0; i < 12; i++)
        w[i] = (ds_queue_wait){ (uint32_t)ds_rng_u64(1, 1, i) % 3, ds_rng_u64(1, 2, i) % 4 * 1000, i };
    for (int a = 0; a < 12; a++)
        for (int b = 0; b < 12; b++) {
            assert_int_equal(ds_queue_before(&w[a], &w[b], 1), a != b && !ds_queue_before(&w[b], &w[a], 1));
            for (int c = 0; c < 12; c++)
                if (ds_queue_before(&w[a], &w[b], 1) && ds_queue_before(&w[b], &w[c], 1))
                    assert_true(ds_queue_before(&w[a], &w[c], 1));
        }
}

static void what_waiting_made_of_it(void **state)
{
    (void)state;
    assert_int_equal(ds_queue_aged(5, 0, 1000), 5);
    assert_int_equal(ds_queue_aged(5, 999999, 1000), 5);
    assert_int_equal(ds_queue_aged(5, 1000000, 1000), 4);
    assert_int_equal(ds_queue_aged(5, 5000000, 1000), 0);
    assert_int_equal(ds_queue_aged(5, UINT64_MAX, 1), 0);
}

static void the_worst_goes(void **state)
{
    (void)state;
    assert_true(ds_queue_worse(&(ds_queue_place){ 2, 1, 0 }, &(ds_queue_place){ 1, 9, 9 }));
    assert_true(ds_queue_worse(&(ds_queue_place){ 1, 2, 0 }, &(ds_queue_place){ 1, 1, 9 }));
    assert_true(ds_queue_worse(&(ds_queue_place){ 1, 1, 3 }, &(ds_queue_place){ 1, 1, 2 }));
    assert_false(ds_queue_worse(&(ds_queue_place){ 1, 1, 2 }, &(ds_queue_place){ 1, 1, 2 }));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(priority_then_arrival), cmocka_unit_test(waiting_wins_in_the_end),
                                        cmocka_unit_test(an_order), cmocka_unit_test(what_waiting_made_of_it),
                                        cmocka_unit_test(the_worst_goes) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
