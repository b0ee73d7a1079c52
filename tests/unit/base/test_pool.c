#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/pool.h"
#include "base/pool_internal.h"
#include "fault.h"
#include "test.h"

enum { MEMBERS_MAX = 64 };
typedef struct {
    uint64_t calls[MEMBERS_MAX][8]; /* a cache line each, plain memory: the hand-off alone orders it */
    uint64_t in;                    /* written by the caller before each job */
    bool wrong;
} record;

static void count(void *arg, uint32_t member, uint32_t n_members)
{
    record *r = arg;

    if (member >= n_members || n_members > MEMBERS_MAX || r->calls[member][0] + 1 != r->in)
        r->wrong = true;
    r->calls[member][0]++;
}

/* Every member runs every job once, sees what the caller wrote before it, and the caller sees what members wrote. */
static void run_jobs(ds_pool *p, uint32_t n, int jobs, long pause_ns)
{
    record r = { .in = 0 };

    assert_int_equal(ds_pool_size(p), n);
    for (int i = 0; i < jobs; i++) {
        r.in = (uint64_t)i + 1;
        ds_pool_run(p, count, &r);
        for (uint32_t m = 0; m < n; m++)
            if (r.calls[m][0] != r.in)
                fail_msg("job %d: member %u of %u has run %lu", i, m, n, r.calls[m][0]);
        if (pause_ns)
            nanosleep(&(struct timespec){ .tv_nsec = pause_ns }, NULL);
    }
    assert_false(r.wrong);
}

static void every_size(void **state)
{
    static const uint32_t sizes[] = { 1, 2, 3, 4, 7, 16, 64 };
    ds_pool *p;
    ds_err err;

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        assert_ok(ds_pool_create(&p, &(ds_pool_opts){ .n_threads = sizes[i] }, &err));
        run_jobs(p, sizes[i], 200, 0);
        ds_pool_destroy(p);
    }
    assert_ok(ds_pool_create(&p, NULL, &err));
    run_jobs(p, ds_cpu_count(), 100, 0);
    ds_pool_destroy(p);
    ds_pool_destroy(NULL);
}

/* Pauses around the spinning time: members are caught spinning, falling asleep, and asleep. A lost wake-up would
 * hang here. */
static void jobs_meet_members_falling_asleep(void **state)
{
    ds_pool *p;
    ds_err err;

    (void)state;
    for (long pause = 0; pause < 40000; pause += 2000) {
        assert_ok(ds_pool_create(&p, &(ds_pool_opts){ .n_threads = 2, .spin_us = 10 }, &err));
        run_jobs(p, 2, 100, pause);
        ds_pool_destroy(p);
    }
    assert_ok(ds_pool_create(&p, &(ds_pool_opts){ .n_threads = 5, .spin_us = 1 }, &err));
    run_jobs(p, 5, 2000, 0);
    ds_pool_destroy(p);
}

static void created_and_destroyed_without_a_job(void **state)
{
    ds_pool *p;
    ds_err err;

    (void)state;
    for (int i = 0; i < 50; i++) {
        assert_ok(ds_pool_create(&p, &(ds_pool_opts){ .n_threads = 4 }, &err));
        ds_pool_destroy(p);
    }
}

static void where(void *arg, uint32_t member, uint32_t n_members)
{
    (void)n_members;
    ((int *)arg)[member] = sched_getcpu();
}

static void pinned(void **state)
{
    uint32_t *cpus, n;
    int got[MEMBERS_MAX];
    ds_pool *p;
    ds_err err;

    (void)state;
    assert_ok(ds_cpus_allowed(&cpus, &n, &err));
    uint32_t members = n < MEMBERS_MAX ? n : MEMBERS_MAX;
    assert_ok(ds_pool_create(&p, &(ds_pool_opts){ .n_threads = members, .pin = true }, &err));
    for (int i = 0; i < 20; i++) {
        ds_pool_run(p, where, got);
        for (uint32_t m = 1; m < members; m++)
            assert_int_equal(got[m], cpus[m]);
    }
    ds_pool_destroy(p);
    assert_ok(ds_pool_create(&p, &(ds_pool_opts){ .n_threads = n + 1, .pin = true }, &err)); /* not possible: ignored */
    ds_pool_destroy(p);
    free(cpus);
}

static void refuses(void **state)
{
    ds_pool *p = (ds_pool *)1;
    ds_err err;

    (void)state;
    assert_refused(ds_pool_create(&p, &(ds_pool_opts){ .n_threads = 1025 }, &err), DS_E_ARG, "1025 threads; at most 1024");
    assert_null(p);
}

static ds_rc attempt(void *ctx, ds_err *err)
{
    ds_pool *p;
    ds_rc rc = ds_pool_create(&p, &(ds_pool_opts){ .n_threads = 2 }, err);

    (void)ctx;
    ds_pool_destroy(p);
    return rc;
}

static void failing_allocations(void **state)
{
    uint32_t *cpus, n;
    ds_err err;

    (void)state;
    fault_every_allocation(attempt, NULL);
    fault_arm(1, false);
    assert_refused(ds_cpus_allowed(&cpus, &n, &err), DS_E_NOMEM, "out of memory");
    assert_true(fault_disarm());
}

static void cpu_counts(void **state)
{
    (void)state;
    assert_in_range(ds_cpu_count(), 1, sysconf(_SC_NPROCESSORS_CONF));
    assert_int_equal(ds_cpu_quota("max 100000\n"), 0);
    assert_int_equal(ds_cpu_quota("100000 100000\n"), 1);
    assert_int_equal(ds_cpu_quota("150000 100000\n"), 2);
    assert_int_equal(ds_cpu_quota("200001 100000\n"), 3);
    assert_int_equal(ds_cpu_quota("1 100000\n"), 1);
    assert_int_equal(ds_cpu_quota("-1\n 100000"), 0);
    assert_int_equal(ds_cpu_quota("50000\n"), 1);
    assert_int_equal(ds_cpu_quota(""), 0);
    assert_int_equal(ds_cpu_quota("9223372036854775807 1"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size),
        cmocka_unit_test(jobs_meet_members_falling_asleep),
        cmocka_unit_test(created_and_destroyed_without_a_job),
        cmocka_unit_test(pinned),
        cmocka_unit_test(refuses),
        cmocka_unit_test(failing_allocations),
        cmocka_unit_test(cpu_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
