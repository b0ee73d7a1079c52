/* Records that come and go: ids of those that are over find nothing, everything that lives is found once, against a
 * plain list; failing allocations leave the table as it was. */
#include "test.h"

#include "base/rng.h"
#include "base/table.h"
#include "fault.h"

typedef struct {
    ds_record at;
    uint32_t value;
} item;

enum { MOST = 500, STEPS = 20000 };

static void ids_are_never_another_records(void **state)
{
    ds_table t = { .bytes = sizeof(item) };
    uint64_t live[MOST], over[MOST] = { 0 };
    uint32_t values[MOST], n = 0;

    (void)state;
    assert_null(ds_table_next(&t, NULL));
    assert_null(ds_table_get(&t, 1));
    for (uint32_t step = 0; step < STEPS; step++) {
        if (n < MOST && (n == 0 || ds_rng_u64(1, 0, step) % 2)) {
            item *x = ds_table_take(&t);
            assert_non_null(x);
            assert_int_equal(x->value, 0);
            live[n] = x->at.id;
            values[n++] = x->value = step + 1;
        } else {
            uint32_t i = (uint32_t)(ds_rng_u64(1, 1, step) % n);
            over[step % MOST] = live[i];
            ds_table_give(&t, ds_table_get(&t, live[i]));
            live[i] = live[--n];
            values[i] = values[n];
        }
        assert_int_equal(t.n_live, n);
        if (step % 97)
            continue;
        uint32_t seen = 0;
        uint64_t sum = 0;
        for (const item *x = ds_table_next(&t, NULL); x; x = ds_table_next(&t, x), seen++)
            sum += x->value;
        for (uint32_t i = 0; i < n; i++) {
            item *x = ds_table_get(&t, live[i]);
            assert_ptr_equal(x, ds_table_at(&t, (uint32_t)live[i]));
            assert_int_equal(x->value, values[i]);
            sum -= x->value;
        }
        assert_int_equal(seen, n);
        assert_int_equal(sum, 0);
        for (uint32_t i = 0; i < MOST; i++)
            assert_null(ds_table_get(&t, over[i]));
    }
    for (item *x = ds_table_next(&t, NULL); x; x = ds_table_next(&t, x))
        ds_table_give(&t, x);
    assert_int_equal(t.n_live, 0);
    ds_table_fini(&t);
    assert_int_equal(t.n, 0);
}

static void without_memory(void **state)
{
    ds_table t = { .bytes = sizeof(item) };
    uint32_t n = 0;

    (void)state;
    fault_arm(1, false);
    assert_null(ds_table_take(&t));
    assert_true(fault_disarm());
    while (n < 64) {
        assert_non_null(ds_table_take(&t));
        n++;
    }
    fault_arm(1, false);
    assert_null(ds_table_take(&t));
    assert_true(fault_disarm());
    assert_int_equal(t.n_live, n);
    assert_non_null(ds_table_take(&t));
    ds_table_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(ids_are_never_another_records), cmocka_unit_test(without_memory) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
