/* The team of threads.
 *
 * A job is published by raising `epoch`; members wait for it to differ from the last one they saw. The last member
 * to finish brings `left` to 0, which the caller waits for. Either side spins first and then sleeps on the futex of
 * the word it waits for.
 *
 * No wake-up is lost: who goes to sleep first announces it (`sleepers`, `owner_sleeps`) and then looks at the word
 * again, in the kernel, atomically with going to sleep; who changes the word looks at the announcement after the
 * change. All four are sequentially consistent, so at least one of the two sees the other. */
#include "base/pool.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool_internal.h"

enum { THREADS_MAX = 1024, DEFAULT_SPIN_US = 50, PAUSES = 16 /* between two looks at the clock */, YIELD_AFTER_NS = 1500 };

typedef struct {
    ds_pool *pool;
    pthread_t thread;
    uint32_t index;
} member;

struct ds_pool {
    /* [const] set in create */
    uint32_t n_members;
    uint64_t spin_ns;
    member *members; /* members[0] is the caller and has no thread */
    /* [owner] the thread that runs jobs */
    uint32_t n_started;
    bool running;
    /* [epoch] written by the owner while no job runs, read by members once they have seen the new epoch */
    ds_pool_fn *fn;
    void *arg;
    bool stop;
    /* [atomic] see the top of this file; each on a cache line of its own, for members spin on one while others write to the next */
    _Alignas(64) atomic_uint epoch;
    atomic_uint sleepers;          /* members in, or on their way into, the kernel */
    _Alignas(64) atomic_uint left; /* members that haven't finished the job */
    atomic_uint owner_sleeps;
};

static inline void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(atomic_uint *word, unsigned value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0); /* EINTR, EAGAIN: the caller looks again */
}

static void futex_wake(atomic_uint *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* Spins until *word differs from `value` (when `differs`) or equals it; false when the time is over. Acquires what
 * was released with it. After a few microseconds it offers the CPU between looks: the one we wait for may be queued
 * behind us on this very CPU, when others keep the rest of the machine busy. */
static bool spin(atomic_uint *word, unsigned value, bool differs, uint64_t spin_ns)
{
    uint64_t start, waited = 0;

    if ((atomic_load_explicit(word, memory_order_acquire) != value) == differs)
        return true;
    if (spin_ns == 0)
        return false;
    start = ds_now_ns();
    do {
        for (int i = 0; i < PAUSES; i++) {
            pause_cpu();
            if ((atomic_load_explicit(word, memory_order_acquire) != value) == differs)
                return true;
        }
        if (waited > YIELD_AFTER_NS)
            sched_yield();
        waited = ds_now_ns() - start;
    } while (waited < spin_ns);
    return false;
}

static void *member_main(void *arg)
{
    member *m = arg;
    ds_pool *p = m->pool;
    unsigned seen = 0;

    for (;;) {
        if (!spin(&p->epoch, seen, true, p->spin_ns)) {
            atomic_fetch_add(&p->sleepers, 1);
            while (atomic_load(&p->epoch) == seen)
                futex_wait(&p->epoch, seen);
            atomic_fetch_sub(&p->sleepers, 1);
        }
        seen++; /* the owner raises it once a job, and not before this member has finished the one before */
        if (p->stop)
            return NULL;
        p->fn(p->arg, m->index, p->n_members);
        if (atomic_fetch_sub(&p->left, 1) == 1 && atomic_load(&p->owner_sleeps))
            futex_wake(&p->left, 1);
    }
}

static void raise_epoch(ds_pool *p)
{
    atomic_fetch_add(&p->epoch, 1); /* publishes fn, arg, stop and left */
    if (atomic_load(&p->sleepers) > 0)
        futex_wake(&p->epoch, INT_MAX);
}

static ds_rc start_member(ds_pool *p, uint32_t i, const uint32_t *cpu, ds_err *err)
{
    member *m = &p->members[i];
    pthread_attr_t attr;
    char name[16];
    size_t set_bytes = 0;
    cpu_set_t *set = NULL;
    int e;

    *m = (member){ .pool = p, .index = i };
    e = pthread_attr_init(&attr);
    if (e)
        return ds_fail(err, DS_E_NOMEM, "thread %u of %u: %s", i, p->n_members, strerror(e));
    if (cpu) {
        set_bytes = CPU_ALLOC_SIZE(cpu[i] + 1);
        set = CPU_ALLOC(cpu[i] + 1);
        if (set) {
            CPU_ZERO_S(set_bytes, set);
            CPU_SET_S(cpu[i], set_bytes, set);
            e = pthread_attr_setaffinity_np(&attr, set_bytes, set);
            CPU_FREE(set);
        } else {
            e = ENOMEM;
        }
    }
    if (!e)
        e = pthread_create(&m->thread, &attr, member_main, m);
    pthread_attr_destroy(&attr);
    if (e)
        return ds_fail(err, e == ENOMEM ? DS_E_NOMEM : DS_E_IO, "thread %u of %u can't start: %s", i, p->n_members, strerror(e));
    p->n_started++;
    snprintf(name, sizeof name, "ds-pool-%u", i % THREADS_MAX);
    pthread_setname_np(m->thread, name);
    return DS_OK;
}

ds_rc ds_pool_create(ds_pool **out, const ds_pool_opts *opts, ds_err *err)
{
    ds_pool_opts o = opts ? *opts : (ds_pool_opts){ 0 };
    uint32_t n_cpus = ds_cpu_count(), *cpu = NULL, n_allowed = 0;
    sigset_t all, old;
    ds_pool *p;
    ds_rc rc = DS_OK;

    *out = NULL;
    if (o.n_threads == 0)
        o.n_threads = n_cpus < THREADS_MAX ? n_cpus : THREADS_MAX;
    if (o.n_threads > THREADS_MAX)
        return ds_fail(err, DS_E_ARG, "%u threads; at most %d", o.n_threads, THREADS_MAX);
    p = ds_calloc_aligned(1, sizeof *p);
    if (p)
        p->members = calloc(o.n_threads, sizeof *p->members);
    if (!p || !p->members) {
        rc = ds_fail(err, DS_E_NOMEM, "pool of %u threads: out of memory", o.n_threads);
        goto done;
    }
    p->n_members = o.n_threads;
    p->spin_ns = o.n_threads > n_cpus ? 0 : 1000ull * (o.spin_us ? o.spin_us : DEFAULT_SPIN_US);
    if (o.pin) {
        rc = ds_cpus_allowed(&cpu, &n_allowed, err);
        if (rc != DS_OK)
            goto done;
        if (o.first_cpu + (uint64_t)o.n_threads > n_allowed) {
            free(cpu);
            cpu = NULL;
        }
    }
    sigfillset(&all); /* signals belong to the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (uint32_t i = 1; i < p->n_members && rc == DS_OK; i++)
        rc = start_member(p, i, cpu ? cpu + o.first_cpu : NULL, err);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
done:
    free(cpu);
    if (rc != DS_OK) {
        ds_pool_destroy(p);
        return rc;
    }
    *out = p;
    return DS_OK;
}

void ds_pool_destroy(ds_pool *p)
{
    if (!p)
        return;
    assert(!p->running);
    p->stop = true;
    if (p->n_started > 0)
        raise_epoch(p);
    for (uint32_t i = 1; i <= p->n_started; i++)
        pthread_join(p->members[i].thread, NULL);
    free(p->members);
    free(p);
}

uint32_t ds_pool_size(const ds_pool *p)
{
    return p->n_members;
}

void ds_pool_run(ds_pool *p, ds_pool_fn *fn, void *arg)
{
    unsigned left;

    if (p->n_members == 1) {
        fn(arg, 0, 1);
        return;
    }
    assert(!p->running); /* neither from inside a job nor from two threads */
    p->running = true;
    p->fn = fn;
    p->arg = arg;
    atomic_store_explicit(&p->left, p->n_members - 1, memory_order_relaxed); /* raise_epoch publishes it */
    raise_epoch(p);
    fn(arg, 0, p->n_members);
    if (!spin(&p->left, 0, false, p->spin_ns)) {
        atomic_store(&p->owner_sleeps, 1);
        while ((left = atomic_load(&p->left)) != 0)
            futex_wait(&p->left, left);
        atomic_store(&p->owner_sleeps, 0);
    }
    p->running = false;
}
