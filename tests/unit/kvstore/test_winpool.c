/* The window pool: what is put is found and read until its time is over or its slot is needed, and never as anything
 * else, whoever reads while it goes. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rng.h"
#include "kvstore/winpool.h"
#include "test.h"

enum { BYTES = 4096 + 64, MODEL_KEYS = 40 };
#define S 1000000000ull

static ds_key key_of(uint64_t n)
{
    ds_key k;

    for (int i = 0; i < 4; i++, n = n * 6364136223846793005u + 1442695040888963407u)
        memcpy(k.b + 8 * i, &n, 8);
    return k;
}

/* Every byte of a state says whose it is and in which version. */
static void fill(uint8_t *b, uint64_t n, uint64_t version)
{
    for (uint32_t i = 0; i < BYTES; i += 8) {
        uint64_t w = n << 32 | version << 16 | i / 8;
        memcpy(b + i, &w, 8);
    }
}

static bool is(const uint8_t *b, uint64_t n, uint64_t version)
{
    uint8_t want[BYTES];

    fill(want, n, version);
    return memcmp(b, want, BYTES) == 0;
}

static ds_winpool *pool(uint32_t slots)
{
    ds_winpool *p;
    ds_err err;

    assert_ok(ds_winpool_create(&p, &(ds_winpool_opts){ .host = 3, .slots = slots, .slot_bytes = BYTES }, &err));
    return p;
}

static void put(ds_winpool *p, uint64_t n, uint64_t version, bool approx, uint64_t now)
{
    uint8_t b[BYTES];
    ds_key k = key_of(n);

    fill(b, n, version);
    ds_winpool_put(p, &k, b, approx, now);
}

/* 0: there is none. */
static uint64_t get(const ds_winpool *p, uint64_t n, bool exact)
{
    ds_winpool_place at;
    uint8_t b[BYTES];
    ds_key k = key_of(n);

    if (!ds_winpool_find(p, &k, exact, &at))
        return 0;
    assert_true(ds_winpool_read(p, &at, b));
    for (uint64_t v = 1; v < 8; v++)
        if (is(b, n, v))
            return v;
    fail_msg("key %lu: wrong bytes", (unsigned long)n);
    return 0;
}

static void what_is_put_is_there(void **state)
{
    ds_winpool *p = pool(4);
    ds_winpool_stats st;

    (void)state;
    assert_int_equal(get(p, 1, false), 0);
    put(p, 1, 1, true, 5 * S);
    assert_int_equal(get(p, 1, false), 1);
    assert_int_equal(get(p, 1, true), 0);
    put(p, 1, 2, true, 6 * S); /* it has it already */
    assert_int_equal(get(p, 1, false), 1);
    put(p, 1, 3, false, 7 * S); /* an exact one is better */
    assert_int_equal(get(p, 1, true), 3);
    put(p, 1, 4, true, 8 * S); /* and stays */
    assert_int_equal(get(p, 1, true), 3);
    ds_winpool_stat(p, &st);
    assert_true(st.used == 1 && st.put == 2 && st.known == 2 && st.slots == 4 && st.bytes == BYTES);
    ds_winpool_destroy(p);
    ds_winpool_destroy(NULL);
}

/* Who has a place from before doesn't get what stands there now. */
static void places_grow_old(void **state)
{
    ds_winpool *p = pool(1);
    ds_winpool_place at, far;
    uint8_t b[BYTES];
    ds_key k = key_of(1);

    (void)state;
    put(p, 1, 1, false, S);
    assert_true(ds_winpool_find(p, &k, true, &at) && at.host == 3 && ds_winpool_read(p, &at, b) && is(b, 1, 1));
    put(p, 2, 1, false, S);
    assert_false(ds_winpool_find(p, &k, false, &far));
    assert_false(ds_winpool_read(p, &at, b));
    put(p, 1, 2, false, S);
    assert_false(ds_winpool_read(p, &at, b));
    assert_true(ds_winpool_find(p, &k, true, &at) && ds_winpool_read(p, &at, b) && is(b, 1, 2));
    far = at;
    far.host = 4;
    assert_false(ds_winpool_read(p, &far, b));
    far = at;
    far.slot = 1;
    assert_false(ds_winpool_read(p, &far, b));
    far = at;
    far.crc ^= 1;
    assert_false(ds_winpool_read(p, &far, b));
    ds_winpool_tick(p, 1000 * S);
    assert_false(ds_winpool_read(p, &at, b));
    ds_winpool_destroy(p);
}

/* Against a list that is searched through: who is there after any order of puts, uses and time. */
static void as_a_list_would(void **state)
{
    uint64_t drawn = 0;

    (void)state;
    for (uint32_t slots = 1; slots <= 16; slots *= 4) {
        ds_winpool *p = pool(slots);
        struct {
            bool there;
            uint64_t since, order;
        } m[MODEL_KEYS] = { 0 };
        uint64_t now = 12345 * S, order = 0, tick = 180 * S / 254 + 1;
        for (int step = 0; step < 6000; step++) {
            uint64_t n = ds_rng_u64(7, 0, drawn++) % MODEL_KEYS;
            ds_key k = key_of(n);
            uint32_t used = 0;
            now += ds_rng_u64(7, 0, drawn++) % 16 == 0 ? ds_rng_u64(7, 0, drawn++) % (100 * S) : ds_rng_u64(7, 0, drawn++) % S;
            ds_winpool_tick(p, now);
            for (uint32_t i = 0; i < MODEL_KEYS; i++) {
                if (m[i].there && now / tick >= (m[i].since + 180 * S) / tick + 1)
                    m[i].there = false;
                used += m[i].there;
            }
            if (ds_rng_u64(7, 0, drawn++) % 3 == 0) {
                assert_int_equal(ds_winpool_touch(p, &k, now), m[n].there);
                if (m[n].there) {
                    m[n].since = now;
                    m[n].order = ++order;
                }
            } else {
                if (!m[n].there && used == slots) { /* the one whose time ends first goes; of equal ones the earlier */
                    uint32_t first = MODEL_KEYS;
                    for (uint32_t i = 0; i < MODEL_KEYS; i++)
                        if (m[i].there && (first == MODEL_KEYS || m[i].order < m[first].order))
                            first = i;
                    m[first].there = false;
                }
                put(p, n, 1, false, now);
                m[n].there = true;
                m[n].since = now;
                m[n].order = ++order;
            }
            for (uint32_t i = 0; i < MODEL_KEYS; i++)
                assert_int_equal(get(p, i, true), m[i].there);
        }
        ds_winpool_destroy(p);
    }
}

/* ---- others read while it changes ---- */

typedef struct {
    ds_winpool *p;
    volatile uint64_t read, missed, rounds;
} reader;

static void *read_on(void *arg)
{
    reader *x = arg;
    uint8_t b[BYTES];
    uint64_t seed = 1;

    while (x->rounds) {
        uint64_t n = (seed = seed * 6364136223846793005u + 1) >> 60;
        ds_key k = key_of(n);
        ds_winpool_place at;
        uint64_t w;
        if (!ds_winpool_find(x->p, &k, false, &at) || !ds_winpool_read(x->p, &at, b)) {
            x->missed++;
            continue;
        }
        memcpy(&w, b, 8);
        if (!is(b, n, w >> 16 & 0xffff))
            abort();
        x->read++;
        x->rounds--;
    }
    return NULL;
}

/* In another process, on a mapping of its own: the writer goes on until it has read enough. */
static void never_a_wrong_byte(void **state)
{
    ds_winpool *p = pool(6);
    int fd[2], status;
    pid_t child;

    (void)state;
    ds_winpool_fds(p, fd);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        reader x = { .rounds = 20000 };
        if (ds_winpool_attach(&x.p, fd, NULL) != DS_OK)
            _exit(2);
        alarm(100);
        read_on(&x);
        ds_winpool_destroy(x.p);
        _exit(0);
    }
    for (uint64_t i = 0; waitpid(child, &status, WNOHANG) == 0; i++)
        put(p, i * 7 % 16, 1 + i / 16 % 60000, false, i * S);
    assert_int_equal(status, 0);
    ds_winpool_destroy(p);
}

/* The same in one process, for the thread sanitizer. */
static void in_one_process(void **state)
{
    reader x = { .p = pool(6), .rounds = 2000 };
    pthread_t t;

    (void)state;
    assert_int_equal(pthread_create(&t, NULL, read_on, &x), 0);
    for (uint64_t i = 0; i < 20000; i++)
        put(x.p, i * 7 % 16, 1 + i / 16 % 60000, false, i * S);
    for (uint64_t i = 0; i < 16; i++) /* what stands still is found */
        put(x.p, i, 1, false, 30000 * S);
    pthread_join(t, NULL);
    assert_true(x.read == 2000);
    ds_winpool_destroy(x.p);
}

static void what_is_none_is_refused(void **state)
{
    ds_winpool *p = pool(3), *q;
    int fd[2], swapped[2], other;
    static uint8_t page[4096 * 8];
    ds_err err;

    (void)state;
    assert_int_equal(ds_winpool_create(&q, &(ds_winpool_opts){ .slots = 0, .slot_bytes = 64 }, &err), DS_E_ARG);
    assert_int_equal(ds_winpool_create(&q, &(ds_winpool_opts){ .slots = 1, .slot_bytes = 63 }, &err), DS_E_ARG);
    ds_winpool_fds(p, fd);
    swapped[0] = fd[1];
    swapped[1] = fd[0];
    assert_int_equal(ds_winpool_attach(&q, swapped, &err), DS_E_FORMAT);
    other = memfd_create("other", MFD_CLOEXEC);
    assert_true(pread(fd[1], page, sizeof page, 0) == sizeof page);
    for (uint32_t i = 0; i < 48 * 8; i++) { /* any bit of the head */
        int both[2] = { fd[0], other };
        page[i / 8] ^= (uint8_t)(1 << i % 8);
        assert_true(pwrite(other, page, sizeof page, 0) == sizeof page);
        q = p;
        if (ds_winpool_attach(&q, both, &err) == DS_OK) { /* another host's number or bytes of a state: reads find out */
            assert_true((i >= 64 && i < 96) || (i >= 128 && i < 192));
            ds_winpool_destroy(q);
        } else {
            assert_null(q);
        }
        page[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    assert_ok(ds_winpool_attach(&q, fd, &err));
    ds_winpool_destroy(q);
    /* nobody else can write */
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd[1], 0), MAP_FAILED);
    close(other);
    ds_winpool_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(what_is_put_is_there), cmocka_unit_test(places_grow_old),
                                        cmocka_unit_test(as_a_list_would),      cmocka_unit_test(never_a_wrong_byte),
                                        cmocka_unit_test(in_one_process),       cmocka_unit_test(what_is_none_is_refused) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
