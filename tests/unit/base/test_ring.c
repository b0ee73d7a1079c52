#include <pthread.h>
#include <sched.h>

#include "base/ring.h"
#include "fault.h"
#include "test.h"

static void full_and_empty(void **state)
{
    ds_ring *r;
    ds_err err;
    int x;

    (void)state;
    assert_ok(ds_ring_create(&r, 3, sizeof x, &err)); /* becomes 4 */
    assert_false(ds_ring_pop(r, &x));
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 4; i++) {
            assert_int_equal(ds_ring_count(r), i);
            assert_true(ds_ring_push(r, &i));
        }
        x = 99;
        assert_false(ds_ring_push(r, &x));
        for (int i = 0; i < 4; i++) {
            assert_true(ds_ring_pop(r, &x));
            assert_int_equal(x, i);
        }
        assert_false(ds_ring_pop(r, &x));
        x = round; /* shift the start, so that the next round wraps elsewhere */
        assert_true(ds_ring_push(r, &x) && ds_ring_pop(r, &x));
        assert_int_equal(x, round);
    }
    ds_ring_destroy(r);
    ds_ring_destroy(NULL);
}

static void refuses(void **state)
{
    ds_ring *r = (ds_ring *)1;
    ds_err err;

    (void)state;
    assert_refused(ds_ring_create(&r, 0, 4, &err), DS_E_ARG, "ring of 0");
    assert_null(r);
    assert_refused(ds_ring_create(&r, 4, 0, &err), DS_E_ARG, "ring");
    assert_refused(ds_ring_create(&r, SIZE_MAX, 4, &err), DS_E_ARG, "ring");
    assert_refused(ds_ring_create(&r, SIZE_MAX / 4, 1024, &err), DS_E_NOMEM, "out of memory");
}

static ds_rc attempt(void *ctx, ds_err *err)
{
    ds_ring *r;
    ds_rc rc = ds_ring_create(&r, 100, 24, err);

    (void)ctx;
    ds_ring_destroy(r);
    return rc;
}

static void failing_allocations(void **state)
{
    (void)state;
    assert_int_equal(fault_every_allocation(attempt, NULL), 2);
}

enum { MESSAGES = 200000 };
typedef struct {
    uint64_t number, twice;
} message;

static void *producer(void *arg)
{
    for (uint64_t i = 0; i < MESSAGES; i++) {
        message m = { i, 2 * i };
        while (!ds_ring_push(arg, &m))
            sched_yield();
    }
    return NULL;
}

static void two_threads(void **state)
{
    pthread_t thread;
    ds_ring *r;
    ds_err err;

    (void)state;
    assert_ok(ds_ring_create(&r, 64, sizeof(message), &err));
    assert_int_equal(pthread_create(&thread, NULL, producer, r), 0);
    for (uint64_t i = 0; i < MESSAGES; i++) {
        message m;
        while (!ds_ring_pop(r, &m))
            sched_yield();
        if (m.number != i || m.twice != 2 * i)
            fail_msg("message %lu holds %lu and %lu", i, m.number, m.twice);
    }
    pthread_join(thread, NULL);
    assert_int_equal(ds_ring_count(r), 0);
    ds_ring_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_and_empty),
        cmocka_unit_test(refuses),
        cmocka_unit_test(failing_allocations),
        cmocka_unit_test(two_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
