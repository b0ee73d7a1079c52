/* What handing a job to the thread pool costs: an empty job, back to back (members spin) and after a pause (members
 * sleep).
 *
 * There is no roof to compare with; the target is under 3 us back to back. */
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/pool.h"
#include "bench.h"

enum { REPS = 5000, SLEEPY_REPS = 200 };

static void job(void *arg, uint32_t member, uint32_t n_members)
{
    (void)n_members;
    ((volatile char *)arg)[64 * (size_t)member]++;
}

int main(void)
{
    const struct timespec pause = { .tv_nsec = 1000000 };
    static uint64_t ns[REPS];
    static char touched[64 * 1024];
    uint32_t cpus = ds_cpu_count();

    for (uint32_t n = 2; n <= cpus; n *= 2) {
        ds_pool_opts opts = { .n_threads = n };
        uint64_t median, p95;
        ds_pool *pool;
        ds_err err;

        if (ds_pool_create(&pool, &opts, &err) != DS_OK) {
            fprintf(stderr, "%s\n", err.msg);
            return 1;
        }
        for (int i = -100; i < REPS; i++) {
            uint64_t start = ds_now_ns();
            ds_pool_run(pool, job, touched);
            if (i >= 0)
                ns[i] = ds_now_ns() - start;
        }
        bench_stats(ns, REPS, &median, &p95);
        printf("op=pool_run case=hot threads=%u reps=%d ns_med=%lu ns_p95=%lu\n", n, REPS, median, p95);
        for (int i = 0; i < SLEEPY_REPS; i++) {
            uint64_t start;
            nanosleep(&pause, NULL);
            start = ds_now_ns();
            ds_pool_run(pool, job, touched);
            ns[i] = ds_now_ns() - start;
        }
        bench_stats(ns, SLEEPY_REPS, &median, &p95);
        printf("op=pool_run case=asleep threads=%u reps=%d ns_med=%lu ns_p95=%lu\n", n, SLEEPY_REPS, median, p95);
        ds_pool_destroy(pool);
    }
    return 0;
}
