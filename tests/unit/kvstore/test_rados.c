/* A store in a pool of Ceph, on a librados of the test's (fake_rados.h): every call to it may fail, lie, be late or
 * never be answered, the process may end at every one, and no wrong byte comes, nothing hangs, nothing that was
 * acknowledged is lost.
 *
 * test_rados [N]: until N blocks were fetched and looked at in all weathers (default 20,000). A real cluster is in
 * tests/e2e/test_ceph.py. */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "fake_rados.h"
#include "kvstore/place.h"
#include "kvstore/store_internal.h"
#include "store_rig.h"
#include "test.h"

static uint64_t wanted = 20000;
static const uint64_t aligns[] = { 1, 4096, 40960, 6144 };

static void places(void **state)
{
    static const struct {
        const char *text, *pool, *name_space, *conf, *id; /* pool NULL: refused */
    } cases[] = {
        { "rados://kv", "kv", "", "", "admin" },
        { "rados://kv/", "kv", "", "", "admin" },
        { "rados://kv/a/b", "kv", "a/b", "", "admin" },
        { "rados://kv?conf=/etc/x.conf", "kv", "", "/etc/x.conf", "admin" },
        { "rados://kv/n?id=kvd&conf=%2Fx%3f%26", "kv", "n", "/x?&", "kvd" },
        { "rados://a%20b/%2e", "a b", ".", "", "admin" },
        { "rados://", NULL, NULL, NULL, NULL },
        { "rados:///n", NULL, NULL, NULL, NULL },
        { "rados://?conf=x", NULL, NULL, NULL, NULL },
        { "rados://kv?", NULL, NULL, NULL, NULL },
        { "rados://kv?conf", NULL, NULL, NULL, NULL },
        { "rados://kv?conf=", NULL, NULL, NULL, NULL },
        { "rados://kv?conf=x&", NULL, NULL, NULL, NULL },
        { "rados://kv?size=3", NULL, NULL, NULL, NULL },
        { "rados://kv%", NULL, NULL, NULL, NULL },
        { "rados://kv%2", NULL, NULL, NULL, NULL },
        { "rados://kv%2/2", NULL, NULL, NULL, NULL },
        { "rados://kv%00", NULL, NULL, NULL, NULL },
        { "rados://kv%gg", NULL, NULL, NULL, NULL },
    };
    static const char *const below[][2] = { { "rados://kv", "rados://kv/states" },
                                            { "rados://kv?conf=/a/b", "rados://kv/states?conf=/a/b" },
                                            { "rados://kv/n?id=x", "rados://kv/n.states?id=x" } };
    static const char *const two[] = { "rados://kv", "/srv/kv" };
    char text[400];
    ds_place p;
    ds_err err;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds_rc rc = ds_place_parse(&p, cases[i].text, &err);
        assert_int_equal(rc, cases[i].pool ? DS_OK : DS_E_ARG);
        if (rc != DS_OK)
            continue;
        assert_string_equal(p.pool, cases[i].pool);
        assert_string_equal(p.name_space, cases[i].name_space);
        assert_string_equal(p.conf, cases[i].conf);
        assert_string_equal(p.id, cases[i].id);
    }
    snprintf(text, sizeof text, "rados://%0300d", 0);
    assert_refused(ds_place_parse(&p, text, &err), DS_E_ARG, "expected rados://POOL");
    for (size_t i = 0; i < sizeof below / sizeof *below; i++) {
        char *out;
        assert_ok(ds_kvstore_place_below(&out, below[i][0], "states", &err));
        assert_string_equal(out, below[i][1]);
        free(out);
    }
    assert_refused(ds_kvstore_check_places(two, 2, &err), DS_E_ARG, "all of a store's devices");
    assert_ok(ds_kvstore_check_places(two, 1, &err));
    assert_ok(ds_kvstore_check_places(two + 1, 1, &err));
}

/* ---- a store on the fake ---- */

static const char *const place[] = { "rados://kv/test" };

static void in_pool(rig *r)
{
    rig_init(r, 1, 0);
    r->o.dirs = place;
    r->o.n_dirs = 1;
    r->o.k = 0;
    r->o.readers = 3;
}

static ds_kvstore *open_store(rig *r)
{
    ds_kvstore *s;
    ds_err err;

    assert_ok(ds_kvs_open(&s, &r->o, &fake_rados, &err));
    return s;
}

static ds_kvstore_saved save(ds_kvstore *s, uint32_t chain, uint32_t n)
{
    return rig_save(s, (rig_blocks){ chain, 0, n, n, DS_KVSTORE_AGENT, chain % 2 ? NULL : "tenant", false });
}

static void there_again(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof aligns / sizeof *aligns; i++) {
        ds_kvstore_stats st;
        ds_kvstore_check c;
        uint64_t n;
        ds_err err;
        rig r;

        fake_begin(aligns[i]);
        in_pool(&r);
        r.o.capacity_bytes = 32 << 20;
        ds_kvstore *s = open_store(&r);
        for (uint32_t chain = 0; chain < 20; chain++) {
            assert_int_equal(save(s, chain, 1 + chain * 7), DS_KVSTORE_SAVED);
            assert_int_equal(rig_fetch(s, chain, 0, 1 + chain * 7, 0).n, 1 + chain * 7);
        }
        for (int round = 0; round < 2; round++) {
            ds_kvstore_close(s);
            s = open_store(&r);
            for (uint32_t chain = 0; chain < 20; chain++)
                assert_int_equal(rig_fetch(s, chain, 0, 200, 0).n, 1 + chain * 7);
        }
        assert_ok(ds_kvstore_forget(s, "tenant", &n, &err));
        assert_ok(ds_kvstore_verify(s, DS_KVSTORE_REPAIR, NULL, &c, &err));
        assert_int_equal(n, 10 + 7 * (0 + 2 + 4 + 6 + 8 + 10 + 12 + 14 + 16 + 18));
        assert_true(c.bad == 0 && c.checked == 10 + 7 * (1 + 3 + 5 + 7 + 9 + 11 + 13 + 15 + 17 + 19));
        assert_ok(ds_kvstore_stat(s, &st, &err));
        assert_true(st.k == 1 && st.m == 0 && st.devices == 1 && st.bad_devices == 0 && st.pins == 0 && st.bytes <= st.capacity);
        for (uint32_t chain = 100; chain < 200; chain++) /* more than fits: segments go */
            assert_int_equal(save(s, chain, 200), DS_KVSTORE_SAVED);
        assert_ok(ds_kvstore_stat(s, &st, &err));
        assert_true(st.evicted > 0 && st.bytes <= st.capacity && fake_objects() == st.segments + 1);
        ds_kvstore_close(s);
        rig_fini(&r);
        fake_end();
    }
}

static void spoiled_is_lost_and_never_given(void **state)
{
    ds_kvstore_check c;
    ds_err err;
    rig r;

    (void)state;
    fake_begin(40960);
    in_pool(&r);
    ds_kvstore *s = open_store(&r);
    assert_int_equal(save(s, 1, 64), DS_KVSTORE_SAVED);
    ds_kvstore_close(s);
    size_t n;
    uint8_t *bytes = fake_bytes("0", &n);
    for (size_t at = 40960 + 20000; at < 40960 + 64 * 3000; at += 20000)
        bytes[at] ^= 1;
    s = open_store(&r);
    assert_true(rig_fetch(s, 1, 0, 64, 0).n < 64);
    assert_ok(ds_kvstore_verify(s, DS_KVSTORE_REPAIR, NULL, &c, &err));
    uint32_t left = rig_match(s, 1, 64); /* verification found it, or the repair that the fetch asked for was quicker */
    assert_true(left < 64);
    assert_int_equal(rig_fetch(s, 1, 0, 64, 0).n, left);
    ds_kvstore_close(s);
    rig_fini(&r);
    fake_end();
}

/* ---- one call goes wrong ---- */

typedef struct {
    _Atomic int left; /* calls until it happens; below 0: it has */
    fake_fate fate;
    int error;
    bool for_good;  /* all calls after it fail, too: the process is dead */
    const char *of; /* of this call alone; NULL: of any */
    char call[40];
} trap;

static fake_fate spring(void *ctx, const char *call, int *error)
{
    trap *t = ctx;

    if (t->of && strcmp(t->of, call) != 0)
        return FAKE_WELL;
    int left = t->left--;
    if (left > 0 || (left < 0 && !t->for_good))
        return FAKE_WELL;
    if (left == 0)
        snprintf(t->call, sizeof t->call, "%s", call);
    *error = t->error;
    return left == 0 ? t->fate : FAKE_FAILS;
}

/* Saves, fetches, forgets. The chains that were acknowledged, by bit. */
static uint64_t live(rig *r)
{
    uint64_t saved = 0, n;
    ds_kvstore *s;
    ds_err err;

    if (ds_kvs_open(&s, &r->o, &fake_rados, &err) != DS_OK)
        return 0;
    for (uint32_t chain = 0; chain < 24; chain++) {
        saved |= (uint64_t)(save(s, chain, 40) == DS_KVSTORE_SAVED) << chain;
        rig_fetch(s, 0, 0, 40, 0);
    }
    ds_kvstore_forget(s, "tenant", &n, &err);
    ds_kvstore_close(s);
    return saved;
}

/* What was acknowledged is there and whole, unless it was forgotten or evicted; and it goes on. */
static uint32_t look(rig *r, uint64_t saved)
{
    ds_kvstore *s = open_store(r);
    uint32_t there = 0;

    for (uint32_t chain = 0; chain < 24; chain++) {
        uint32_t match = rig_match(s, chain, 40);
        assert_int_equal(rig_fetch(s, chain, 0, 40, 0).n, match);
        there += (saved >> chain & 1) && match == 40;
    }
    assert_int_equal(save(s, 101, 12), DS_KVSTORE_SAVED);
    assert_int_equal(rig_fetch(s, 101, 0, 12, 0).n, 12);
    ds_kvstore_close(s);
    return there;
}

static const struct {
    fake_fate fate;
    int error;
    bool for_good;
} fates[] = { { FAKE_FAILS, EIO, true }, { FAKE_LIES, ESHUTDOWN, true }, { FAKE_FAILS, ENOSPC, false }, { FAKE_LIES, ETIMEDOUT, false } };

static void at_every_call(void **state)
{
    int calls = 0;

    (void)state;
    for (size_t f = 0; f < sizeof fates / sizeof *fates; f++)
        for (int n = 0, over = 0; !over; n += n < 40 ? 1 : 11 + (int)f, calls++) {
            trap t = { .left = n, .fate = fates[f].fate, .error = fates[f].error, .for_good = fates[f].for_good };
            uint64_t saved;
            rig r;

            fake_begin(aligns[(size_t)n % 4]);
            in_pool(&r);
            r.o.capacity_bytes = 4 << 20;
            r.o.max_blocks = 2048;
            fake_judged_by(spring, &t);
            saved = live(&r);
            over = t.left >= 0;
            fake_judged_by(NULL, NULL);
            fake_expire_locks();
            uint32_t there = look(&r, saved);
            if (t.for_good && !over && __builtin_popcountll(saved) < 6) /* nothing is full yet: all of it */
                assert_int_equal(there, __builtin_popcountll(saved));
            rig_fini(&r);
            fake_end();
        }
    print_message("%d calls went wrong\n", calls);
    assert_true(calls > 300);
}

/* A cluster that doesn't answer has lost nothing: the store isn't opened, and later all is there. */
static void silence_is_no_loss(void **state)
{
    static const char *const calls[] = { "read", "stat", "nobjects_list_open", "nobjects_list_next", "lock_exclusive" };

    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (int n = 0; n < 3; n++) {
            trap t = { .left = n, .fate = FAKE_STALLS, .of = calls[i] };
            ds_kvstore *s;
            ds_err err;
            rig r;

            fake_begin(40960);
            in_pool(&r);
            s = open_store(&r);
            assert_int_equal(save(s, 1, 70), DS_KVSTORE_SAVED);
            ds_kvstore_close(s);
            fake_judged_by(spring, &t);
            if (ds_kvs_open(&s, &r.o, &fake_rados, &err) == DS_OK)
                ds_kvstore_close(s);
            else
                assert_int_equal(err.rc, DS_E_IO);
            fake_judged_by(NULL, NULL);
            fake_expire_locks();
            s = open_store(&r);
            assert_int_equal(rig_fetch(s, 1, 0, 70, 0).n, 70);
            ds_kvstore_close(s);
            rig_fini(&r);
            fake_end();
        }
}

static void deadline_and_cancel(void **state)
{
    trap t = { .left = 0, .fate = FAKE_HANGS, .of = "a read" };
    ds_kvstore_fetched got;
    rig r;

    (void)state;
    fake_begin(40960);
    in_pool(&r);
    ds_kvstore *s = open_store(&r);
    assert_int_equal(save(s, 1, 2), DS_KVSTORE_SAVED);
    fake_judged_by(spring, &t);
    do { /* until a read has begun before the deadline */
        got = rig_fetch(s, 1, 0, 1, ds_now_ns() + 20000000);
        assert_true(got.n == 0 && got.cause == DS_KVSTORE_LATE);
    } while (t.left == 0);
    assert_int_equal(rig_fetch(s, 1, 0, 2, 0).n, 2); /* and the thread that waited is free */
    t = (trap){ .left = 0, .fate = FAKE_FAILS, .error = ENOENT, .of = "a read", .for_good = true };
    got = rig_fetch(s, 1, 0, 2, 0);
    assert_true(got.n == 0 && got.cause == DS_KVSTORE_GONE);
    t = (trap){ .left = 0, .fate = FAKE_FAILS, .error = EIO, .of = "aio_read", .for_good = true };
    got = rig_fetch(s, 1, 0, 2, 0);
    assert_true(got.n == 0 && got.cause == DS_KVSTORE_IO);
    fake_judged_by(NULL, NULL);
    ds_kvstore_close(s);
    rig_fini(&r);
    fake_end();
}

/* Blocks that lie behind each other come in one piece, and what is behind a bad one isn't believed for that. */
static void many_in_one_read(void **state)
{
    trap t = { .left = 1000, .of = "a read" };
    ds_kvstore_fetched got;
    rig r;

    (void)state;
    fake_begin(40960);
    in_pool(&r);
    ds_kvstore *s = open_store(&r);
    assert_int_equal(save(s, 1, 64), DS_KVSTORE_SAVED);
    fake_judged_by(spring, &t);
    assert_int_equal(rig_fetch(s, 1, 0, 64, 0).n, 64);
    assert_int_equal(t.left, 999);
    assert_int_equal(rig_fetch(s, 1, 10, 3, 0).n, 3);
    assert_int_equal(t.left, 998);
    fake_judged_by(NULL, NULL);
    size_t n;
    uint8_t *bytes = fake_bytes("0", &n);
    bytes[40960 + 128 + 48 * 64 + 30 * (64 + 3008) + 1000] ^= 1; /* in block 30 or near it */
    got = rig_fetch(s, 1, 0, 64, 0);
    assert_true(got.n >= 28 && got.n <= 30 && got.cause == DS_KVSTORE_CORRUPT);
    assert_int_equal(rig_fetch(s, 1, got.n + 1, 63 - got.n, 0).n, 63 - got.n); /* nothing else was hurt */
    ds_kvstore_close(s);
    rig_fini(&r);
    fake_end();
}

/* One whose lease ran out goes on without knowing: it can't write any more, and harms nobody. */
static void two_with_one_store(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof aligns / sizeof *aligns; i++) {
        ds_kvstore *old, *new;
        rig r;

        fake_begin(aligns[i]);
        in_pool(&r);
        old = open_store(&r);
        assert_int_equal(save(old, 1, 10), DS_KVSTORE_SAVED);
        fake_expire_locks();
        new = open_store(&r);
        assert_int_equal(rig_fetch(new, 1, 0, 10, 0).n, 10);
        assert_int_equal(save(old, 2, 10), DS_KVSTORE_FAILED); /* its segment was finished by the other */
        if (save(new, 3, 10) != DS_KVSTORE_SAVED)
            assert_int_equal(save(new, 3, 10), DS_KVSTORE_SAVED);
        save(old, 4, 10); /* the number of its next segment may be taken, or not */
        save(old, 5, 10);
        if (save(new, 6, 10) != DS_KVSTORE_SAVED) /* a number that the other took; the next is free */
            assert_int_equal(save(new, 6, 10), DS_KVSTORE_SAVED);
        for (uint32_t chain = 1; chain < 7; chain++) {
            assert_int_equal(rig_fetch(old, chain, 0, 10, 0).n, rig_match(old, chain, 10));
            assert_int_equal(rig_fetch(new, chain, 0, 10, 0).n, rig_match(new, chain, 10));
        }
        ds_kvstore_close(old);
        ds_kvstore_close(new);
        fake_expire_locks();
        new = open_store(&r);
        assert_int_equal(rig_fetch(new, 1, 0, 10, 0).n, 10);
        assert_int_equal(rig_fetch(new, 3, 0, 10, 0).n, 10);
        assert_int_equal(rig_fetch(new, 6, 0, 10, 0).n, 10);
        ds_kvstore_close(new);
        rig_fini(&r);
        fake_end();
    }
}

/* ---- everything by chance ---- */

enum { CHAINS = 120, LENGTH = 48, WORKERS = 3 };

typedef struct {
    uint64_t draws;
    atomic_uint rate; /* of 1000 calls that go wrong */
    atomic_ulong made;
} weather;

static fake_fate by_chance(void *ctx, const char *call, int *error)
{
    static const int errors[] = { EIO, ENOSPC, ETIMEDOUT, ENOENT, EBUSY, EINTR, ECANCELED, ENOMEM };
    weather *w = ctx;
    uint64_t d = ds_rng_u64(31, w->draws++, 0);

    if (d % 1000 >= atomic_load(&w->rate) || strcmp(call, "lock_exclusive") == 0) /* a lost lease has its own test */
        return FAKE_WELL;
    atomic_fetch_add(&w->made, 1);
    *error = errors[d >> 10 & 7];
    switch (d >> 13 & 7) {
    case 0:
    case 1:
        return FAKE_FAILS;
    case 2:
        return FAKE_LIES;
    case 3:
        return d >> 16 & 15 ? FAKE_SPOILS : FAKE_STALLS;
    default:
        return strcmp(call, "a read") == 0 ? FAKE_SPOILS : FAKE_FAILS;
    }
}

typedef struct {
    ds_kvstore *s;
    uint32_t number;
    atomic_bool *stop;
    atomic_uint_least64_t *looked_at;
} worker;

static void *use(void *arg)
{
    worker *u = arg;

    for (uint64_t i = 0; !atomic_load(u->stop); i++) {
        uint64_t d = ds_rng_u64(200 + u->number, i, 0);
        uint32_t chain = (uint32_t)(d % CHAINS), known = rig_match(u->s, chain, LENGTH);
        if (known < LENGTH)
            rig_save(u->s, (rig_blocks){ chain, known, LENGTH - known, LENGTH, (ds_kvstore_class)(d >> 44 & 1),
                                         chain % 10 ? NULL : "tenant", false });
        for (int again = 0; again < 3; again++)
            atomic_fetch_add(u->looked_at,
                             rig_fetch(u->s, chain, 0, LENGTH, ds_now_ns() + (d >> 32 & 15 ? 200000000 : (d >> 40) % 2000000)).n);
    }
    return NULL;
}

static void in_all_weathers(void **state)
{
    atomic_uint_least64_t looked_at = 0;
    weather w = { 0 };

    (void)state;
    for (uint32_t round = 0; atomic_load(&looked_at) < wanted || round < 4; round++) {
        uint64_t from = atomic_load(&looked_at), until = ds_now_ns() + 100000000000u, forgotten;
        atomic_bool stop = false;
        pthread_t t[WORKERS];
        worker u[WORKERS];
        ds_kvstore_stats st;
        ds_kvstore_check c;
        ds_err err;
        rig r;

        fake_begin(aligns[round % 4]);
        in_pool(&r);
        r.o.capacity_bytes = 12 << 20;
        ds_kvstore *s = open_store(&r);
        atomic_store(&w.rate, 16 << round % 4);
        fake_judged_by(by_chance, &w);
        for (uint32_t i = 0; i < WORKERS; i++) {
            u[i] = (worker){ s, i + round * WORKERS, &stop, &looked_at };
            assert_int_equal(pthread_create(&t[i], NULL, use, &u[i]), 0);
        }
        for (uint32_t step = 0; atomic_load(&looked_at) - from < wanted / 4; step++) {
            assert_true(ds_now_ns() < until); /* it goes on whatever happens */
            nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
            if (step % 64 == 20)
                ds_kvstore_verify(s, DS_KVSTORE_REPAIR, NULL, &c, &err);
            else if (step % 64 == 40)
                ds_kvstore_forget(s, "tenant", &forgotten, &err);
        }
        atomic_store(&stop, true);
        for (uint32_t i = 0; i < WORKERS; i++)
            pthread_join(t[i], NULL);
        assert_ok(ds_kvstore_stat(s, &st, &err));
        assert_int_equal(st.pins, 0);
        assert_true(st.bytes <= st.capacity);
        ds_kvstore_close(s);
        fake_judged_by(NULL, NULL);
        fake_expire_locks();
        s = open_store(&r);
        for (uint32_t chain = 0; chain < CHAINS; chain++)
            atomic_fetch_add(&looked_at, rig_fetch(s, chain, 0, LENGTH, 0).n);
        ds_kvstore_close(s);
        rig_fini(&r);
        fake_end();
    }
    print_message("%lu blocks looked at, %lu calls went wrong\n", (unsigned long)atomic_load(&looked_at), atomic_load(&w.made));
    assert_true(atomic_load(&w.made) > wanted / 1000);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(places),
                                        cmocka_unit_test(there_again),
                                        cmocka_unit_test(spoiled_is_lost_and_never_given),
                                        cmocka_unit_test(deadline_and_cancel),
                                        cmocka_unit_test(many_in_one_read),
                                        cmocka_unit_test(two_with_one_store),
                                        cmocka_unit_test(silence_is_no_loss),
                                        cmocka_unit_test(at_every_call),
                                        cmocka_unit_test(in_all_weathers) };

    if (argc > 1)
        wanted = strtoull(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
