/* The queue of events against a sorted list, and when memory ends. */
#include "base/rng.h"
#include "fault.h"
#include "sim/events.h"
#include "test.h"

enum { N = 3000 };

static int by_time(const void *a, const void *b)
{
    const ds_sim_event *x = a, *y = b;

    return x->at_ns != y->at_ns ? (x->at_ns < y->at_ns ? -1 : 1) : x->order < y->order ? -1 : 1;
}

/* Puts and takes in any mixture: what comes out is the earliest of what is in it, equal times as they came. */
static void in_order(void **state)
{
    ds_sim_events q = { 0 };
    static ds_sim_event all[N];
    size_t n = 0, at = 0;
    uint64_t now = 0;

    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        ds_sim_event e = { .at_ns = now + ds_rng_u64(1, 2, i) % 50, .order = i, .who = (uint32_t)i };
        assert_true(ds_sim_events_put(&q, e.at_ns, 7, e.who, i * 3));
        all[n++] = e;
        if (ds_rng_u64(1, 3, i) % 3 == 0) {
            ds_sim_event out;
            qsort(all + at, n - at, sizeof *all, by_time);
            assert_true(ds_sim_events_take(&q, &out));
            assert_int_equal(out.who, all[at].who);
            assert_int_equal(out.at_ns, all[at++].at_ns);
            assert_int_equal(out.which, (uint64_t)out.who * 3);
            assert_int_equal(out.what, 7);
            assert_true(out.at_ns >= now);
            now = out.at_ns;
        }
    }
    qsort(all + at, n - at, sizeof *all, by_time);
    for (ds_sim_event out; at < n; at++) {
        assert_true(ds_sim_events_take(&q, &out));
        assert_int_equal(out.who, all[at].who);
    }
    assert_false(ds_sim_events_take(&q, &(ds_sim_event){ 0 }));
    ds_sim_events_free(&q);
}

static void memory_ends(void **state)
{
    ds_sim_events q = { 0 };
    ds_sim_event out;

    (void)state;
    fault_arm(1, false);
    assert_false(ds_sim_events_put(&q, 1, 2, 3, 4));
    assert_true(fault_disarm());
    assert_false(ds_sim_events_take(&q, &out));
    assert_true(ds_sim_events_put(&q, 1, 2, 3, 4));
    assert_true(ds_sim_events_take(&q, &out));
    ds_sim_events_free(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(in_order), cmocka_unit_test(memory_ends) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
