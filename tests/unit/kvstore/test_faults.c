/* Everything that can go wrong with devices, at once and at every step, and no wrong byte, no hang, no pin.
 *
 * test_faults [N]: until N blocks were fetched and looked at (default 200,000). */
#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "kvstore/store_internal.h"
#include "kvstore/volume_internal.h"
#include "store_rig.h"
#include "test.h"

enum { CHAINS = 400, LENGTH = 48, WORKERS = 3 };

static uint64_t wanted = 200000;

/* ---- faults by chance ---- */

typedef struct {
    atomic_uint_least64_t draw; /* how many were drawn */
    atomic_uint reads, writes;  /* of 1000 that go wrong */
    atomic_uint stalled;        /* this device answers nothing; UINT32_MAX: none */
    atomic_ulong made;          /* faults */
} weather;

static uint64_t draw(weather *w)
{
    return ds_rng_u64(77, atomic_fetch_add(&w->draw, 1), 0);
}

static bool strikes(weather *w, const atomic_uint *rate, uint64_t d)
{
    bool hit = d % 1000 < atomic_load(rate);

    if (hit)
        atomic_fetch_add(&w->made, 1);
    return hit;
}

static void spoil(uint8_t *bytes, size_t n, uint64_t d)
{
    size_t at = (size_t)(d >> 20) % n;

    switch (d >> 12 & 3) {
    case 0: /* a bit */
        bytes[at] ^= (uint8_t)(1 << (d >> 16 & 7));
        break;
    case 1: /* the end is of somebody else */
        memset(bytes + at, (int)(d >> 16 & 255), n - at);
        break;
    case 2: /* a page never came */
        memset(bytes + at / 4096 * 4096, 0, n - at / 4096 * 4096 < 4096 ? n - at / 4096 * 4096 : 4096);
        break;
    default: /* a sector of another place */
        memmove(bytes + at / 512 * 512, bytes, n - at / 512 * 512 < 512 ? n - at / 512 * 512 : 512);
    }
}

static int64_t bad_write(void *ctx, uint32_t device, uint8_t *bytes, size_t n, bool *lie)
{
    weather *w = ctx;
    uint64_t d = draw(w);

    (void)device;
    if (!strikes(w, &w->writes, d))
        return (int64_t)n;
    switch (d >> 10 & 3) {
    case 0:
        return d >> 12 & 1 ? -ENOSPC : -EIO;
    case 1: /* torn, and said so */
        return (int64_t)((d >> 16) % n);
    case 2: /* torn, and not */
        *lie = true;
        return (int64_t)((d >> 16) % n);
    default:
        if (n <= 1 << 20) {
            spoil(bytes, n, d >> 12);
            return (int64_t)n;
        }
        return -EIO;
    }
}

static int bad_sync(void *ctx, uint32_t device)
{
    weather *w = ctx;

    (void)device;
    return strikes(w, &w->writes, draw(w)) ? -EIO : 0;
}

static void no_remove(void *ctx, uint32_t device)
{
    (void)ctx;
    (void)device;
}

static int bad_read(void *ctx, uint32_t device, uint8_t *bytes, int returned)
{
    weather *w = ctx;
    uint64_t d = draw(w);

    (void)device;
    if (!strikes(w, &w->reads, d))
        return returned;
    switch (d >> 10 & 3) {
    case 0:
        return -EIO;
    case 1:
        return (int)((d >> 12) % (uint64_t)returned);
    default:
        spoil(bytes, (size_t)returned, d >> 12);
        return returned;
    }
}

static uint64_t slow(void *ctx, uint32_t device)
{
    weather *w = ctx;
    uint64_t d = draw(w);

    if (atomic_load(&w->stalled) == device)
        return 30000000;
    return d % 100000 < atomic_load(&w->reads) ? 5000000 : 0;
}

/* ---- many users in that weather ---- */

typedef struct {
    ds_kvstore *s;
    weather *w;
    uint32_t number;
    atomic_bool *stop;
    atomic_uint_least64_t *looked_at;
} worker;

static void *use(void *arg)
{
    worker *u = arg;

    for (uint64_t i = 0; !atomic_load(u->stop); i++) {
        uint64_t d = ds_rng_u64(100 + u->number, i, 0);
        uint32_t chain = (uint32_t)(d % CHAINS), n = 1 + (uint32_t)(d >> 20) % LENGTH, known = rig_match(u->s, chain, LENGTH);
        uint64_t deadline = ds_now_ns() + (d >> 32 & 15 ? 200000000 : (d >> 40) % 2000000);
        if (known < n)
            rig_save(u->s, (rig_blocks){ chain, known, n - known, (uint32_t)(d >> 50) % LENGTH, (ds_kvstore_class)(d >> 44 & 1),
                                         chain % 50 ? NULL : "tenant", false });
        for (int again = 0; again < 4; again++)
            atomic_fetch_add(u->looked_at, rig_fetch(u->s, chain, 0, LENGTH, deadline).n);
    }
    return NULL;
}

static const uint32_t codes[][2] = { { 2, 1 }, { 4, 2 }, { 1, 1 }, { 10, 2 }, { 1, 0 } };

static void in_all_weathers(void **state)
{
    atomic_uint_least64_t looked_at = 0;
    unsigned long made = 0;

    (void)state;
    for (uint64_t round = 0; atomic_load(&looked_at) < wanted || round < 10; round++) {
        const uint32_t *code = codes[round % 5];
        weather w = { .draw = round << 40, .stalled = UINT32_MAX };
        ds_vol_faults f = { &w, bad_write, bad_sync, no_remove, bad_read, slow };
        atomic_bool stop = false;
        pthread_t t[WORKERS];
        worker u[WORKERS];
        ds_kvstore_check c;
        ds_kvstore_stats st;
        ds_kvstore *s;
        uint64_t forgotten, from = atomic_load(&looked_at), until;
        rig r;
        ds_err err;

        rig_init(&r, code[0], code[1]);
        r.o.capacity_bytes = (uint64_t)(code[0] + code[1]) << 21;
        r.o.max_blocks = round % 3 ? 1 << 14 : 3000;
        assert_ok(ds_kvstore_open(&s, &r.o, &err));
        ds_kvs *in = (ds_kvs *)s;
        in->v->faults = &f;
        atomic_store(&w.reads, round % 2 ? 30 : 5);
        atomic_store(&w.writes, round % 4 == 1 ? 20 : 0);
        for (uint32_t i = 0; i < WORKERS; i++) {
            u[i] = (worker){ s, &w, i + (uint32_t)round * WORKERS, &stop, &looked_at };
            assert_int_equal(pthread_create(&t[i], NULL, use, &u[i]), 0);
        }
        until = ds_now_ns() + 200000000000u;
        for (uint32_t step = 0; atomic_load(&looked_at) - from < wanted / 10; step++) {
            assert_true(ds_now_ns() < until); /* it goes on whatever happens */
            usleep(2000);
            switch (step % 64) {
            case 5:
                atomic_store(&w.stalled, (uint32_t)round % (code[0] + code[1]));
                break;
            case 8:
                atomic_store(&w.stalled, UINT32_MAX);
                break;
            case 20:
                ds_kvstore_verify(s, DS_KVSTORE_REPAIR, NULL, &c, &err);
                break;
            case 30:
                ds_kvstore_forget(s, "tenant", &forgotten, &err);
                break;
            case 40: /* the clock jumps, back and forth */
                atomic_store(&in->skew_s, (int64_t)(ds_rng_u64(9, round, step) % 2000000) - 1000000);
                break;
            default:
                break;
            }
        }
        atomic_store(&stop, true);
        for (uint32_t i = 0; i < WORKERS; i++)
            pthread_join(t[i], NULL);
        assert_ok(ds_kvstore_stat(s, &st, &err));
        assert_int_equal(st.pins, 0);
        assert_true(st.bytes <= st.capacity);
        ds_kvstore_close(s);
        made += atomic_load(&w.made);
        assert_ok(ds_kvstore_open(&s, &r.o, &err)); /* what bad writes left behind is found out now, or when it is read */
        for (uint32_t chain = 0; chain < CHAINS; chain++)
            atomic_fetch_add(&looked_at, rig_fetch(s, chain, 0, LENGTH, 0).n);
        ds_kvstore_close(s);
        rig_fini(&r);
    }
    print_message("%lu blocks looked at, %lu faults\n", (unsigned long)atomic_load(&looked_at), made);
    assert_true(made > wanted / 1000);
}

/* ---- killed at every step ---- */

typedef struct {
    atomic_int left; /* operations until the process is killed */
} doom;

static void step(doom *d)
{
    if (atomic_fetch_sub(&d->left, 1) == 1)
        _exit(9);
}

/* Killed before a write, or in the middle of it. */
static int64_t last_write(void *ctx, uint32_t device, uint8_t *bytes, size_t n, bool *lie)
{
    doom *d = ctx;

    (void)device;
    (void)bytes;
    step(d);
    if (atomic_load(&d->left) == 1) { /* the next operation is its end: of this one half is done, and nobody hears of it */
        *lie = true;
        return (int64_t)(n / 2);
    }
    return (int64_t)n;
}

static int last_sync(void *ctx, uint32_t device)
{
    (void)device;
    step(ctx);
    return 0;
}

static void last_remove(void *ctx, uint32_t device)
{
    (void)device;
    step(ctx);
}

static int good_read(void *ctx, uint32_t device, uint8_t *bytes, int returned)
{
    (void)ctx;
    (void)device;
    (void)bytes;
    return returned;
}

static uint64_t no_stall(void *ctx, uint32_t device)
{
    (void)ctx;
    (void)device;
    return 0;
}

/* Saves, fills the store until segments are copied and dropped, forgets. Tells each chain that was acknowledged. */
static void live_until_killed(rig *r, int after, int told)
{
    doom d = { .left = after };
    ds_vol_faults f = { &d, last_write, last_sync, last_remove, good_read, no_stall };
    ds_kvstore *s;
    ds_err err;
    uint64_t n;

    if (ds_kvstore_open(&s, &r->o, &err) != DS_OK)
        _exit(1);
    ((ds_kvs *)s)->v->faults = &f;
    for (uint32_t chain = 0; chain < 24; chain++) {
        ds_kvstore_saved got = rig_save(s, (rig_blocks){ chain, 0, 12, 12, DS_KVSTORE_AGENT, chain % 2 ? NULL : "tenant", false });
        if (got == DS_KVSTORE_SAVED && write(told, &chain, sizeof chain) != sizeof chain)
            _exit(1);
        rig_fetch(s, 0, 0, 12, 0);
    }
    ds_kvstore_forget(s, "tenant", &n, &err);
    ds_kvstore_close(s);
    _exit(0);
}

static void killed_at_every_step(void **state)
{
    bool finished = false;
    int n = 1;

    (void)state;
    for (; !finished; n += n < 40 ? 1 : 11) {
        rig r;
        ds_kvstore *s;
        ds_err err;
        uint32_t acknowledged[24], count = 0, there = 0;
        int told[2], status;

        rig_init(&r, 2, 1);
        r.o.capacity_bytes = 3 << 20;
        assert_int_equal(pipe(told), 0);
        pid_t child = fork();
        if (child == 0)
            live_until_killed(&r, n, told[1]);
        close(told[1]);
        while (count < 24 && read(told[0], &acknowledged[count], sizeof *acknowledged) == sizeof *acknowledged)
            count++;
        close(told[0]);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 9 || WEXITSTATUS(status) == 0));
        finished = WEXITSTATUS(status) == 0;
        assert_ok(ds_kvstore_open(&s, &r.o, &err));
        for (uint32_t i = 0; i < count; i++) { /* acknowledged: there, unless it was evicted or forgotten, and whole */
            uint32_t match = rig_match(s, acknowledged[i], 12);
            assert_int_equal(rig_fetch(s, acknowledged[i], 0, 12, 0).n, match);
            there += match == 12;
        }
        assert_true(!finished || there > 0);
        if (!finished && count && count < 6) /* nothing is full yet: all of it */
            assert_int_equal(there, count);
        assert_int_equal(rig_save(s, (rig_blocks){ 100, 0, 12, 12, DS_KVSTORE_AGENT, NULL, false }), DS_KVSTORE_SAVED);
        assert_int_equal(rig_fetch(s, 100, 0, 12, 0).n, 12);
        ds_kvstore_close(s);
        rig_fini(&r);
    }
    print_message("killed at up to %d operations\n", n);
    assert_true(n > 100);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(killed_at_every_step), cmocka_unit_test(in_all_weathers) };

    if (argc > 1)
        wanted = strtoull(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
