/* The index against a model of it; with readers in other threads and in another process. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rng.h"
#include "fault.h"
#include "kvstore/index.h"
#include "test.h"

enum { CHAINS = 40, LENGTH = 60 };

static ds_key key_of(uint32_t chain, uint32_t depth)
{
    ds_key k;

    for (uint32_t i = 0; i < 4; i++) {
        uint64_t v = ds_rng_u64(11, (uint64_t)chain << 32 | depth, i);
        memcpy(k.b + 8 * i, &v, 8);
    }
    return k;
}

static uint32_t crc_of(uint32_t chain, uint32_t depth, uint64_t segment)
{
    return (uint32_t)ds_rng_u64(12, (uint64_t)chain << 32 | depth, segment);
}

/* Blocks from .. from + n - 1 of a chain as an extent of a segment. */
static ds_rc insert(ds_index *ix, uint32_t chain, uint32_t from, uint32_t n, uint64_t segment, ds_err *err)
{
    ds_key keys[64];
    uint32_t crc[64];
    ds_index_hit parent = { .record = DS_NONE };
    ds_index_extent x = {
        .segment = segment, .offset = 4096 * (1 + from), .of = n, .n = n, .keys = keys, .crc = crc, .depth = from, .used = 1
    };

    for (uint32_t i = 0; i < n; i++) {
        keys[i] = key_of(chain, from + i);
        crc[i] = crc_of(chain, from + i, segment);
    }
    if (from) {
        ds_key k = key_of(chain, from - 1);
        assert_true(ds_index_find(ix, &k, &parent));
    }
    x.parent = parent.record;
    return ds_index_insert(ix, &x, NULL, err);
}

static void check_hit(const ds_index_hit *h, uint32_t chain, uint32_t depth)
{
    assert_int_equal(h->place.crc, crc_of(chain, depth, h->place.segment));
    assert_true(h->place.at < h->place.of);
    assert_int_equal(h->place.offset / 4096 - 1 + h->place.at, depth);
}

/* Chains grow, are cut, move; what is there is always a prefix of each, and is found. */
static void like_its_model(void **state)
{
    ds_index *ix;
    ds_err err;
    uint32_t length[CHAINS] = { 0 }, total = 0, cap = 700;
    ds_key keys[LENGTH];
    ds_index_hit hits[LENGTH];

    (void)state;
    assert_ok(ds_index_create(&ix, cap, &err));
    for (uint64_t step = 0; step < 20000; step++) {
        uint32_t c = (uint32_t)(ds_rng_u64(1, step, 0) % CHAINS), what = (uint32_t)(ds_rng_u64(1, step, 1) % 4);
        if (what < 2 && length[c] < LENGTH) {
            uint32_t n = 1 + (uint32_t)(ds_rng_u64(1, step, 2) % (LENGTH - length[c]));
            ds_rc rc = insert(ix, c, length[c], n, 1 + step, &err);
            if (total + n <= cap) {
                assert_int_equal(rc, DS_OK);
                length[c] += n;
                total += n;
            } else {
                assert_int_equal(rc, DS_E_AGAIN);
            }
        } else if (what == 2 && length[c]) {
            uint32_t at = (uint32_t)(ds_rng_u64(1, step, 2) % length[c]);
            ds_key k = key_of(c, at);
            ds_index_hit h;
            assert_true(ds_index_find(ix, &k, &h));
            assert_int_equal(ds_index_remove(ix, h.record, NULL, NULL), length[c] - at);
            total -= length[c] - at;
            length[c] = at;
        } else if (what == 3 && length[c] && total + length[c] <= cap) { /* written again elsewhere */
            assert_ok(insert(ix, c, 0, length[c], 1 + step, &err));
        }
        assert_int_equal(ds_index_blocks(ix), total);
        if (step % 16 == 0)
            for (uint32_t d = 0; d < LENGTH; d++)
                keys[d] = key_of(c, d);
        if (step % 16 == 0) {
            assert_int_equal(ds_index_match(ix, keys, LENGTH, false), length[c]);
            assert_int_equal(ds_index_find_many(ix, keys, LENGTH, hits), length[c]);
            for (uint32_t d = 0; d < LENGTH; d++) {
                assert_int_equal(hits[d].record != DS_NONE, d < length[c]);
                if (d < length[c])
                    check_hit(&hits[d], c, d);
            }
        }
    }
    ds_index_destroy(ix);
}

/* Two chains of one prefix: taking the fork out takes both ends. */
static void forks(void **state)
{
    ds_key a[3] = { key_of(1, 0), key_of(1, 1), key_of(1, 2) }, b[2] = { key_of(2, 1), key_of(2, 2) };
    uint32_t crc[3] = { 1, 2, 3 };
    ds_index_hit h;
    ds_index *ix;
    ds_err err;

    (void)state;
    assert_ok(ds_index_create(&ix, 10, &err));
    ds_index_extent x = { .segment = 1, .offset = 4096, .of = 3, .n = 3, .keys = a, .crc = crc, .parent = DS_NONE, .used = 5 };
    assert_ok(ds_index_insert(ix, &x, NULL, &err));
    assert_true(ds_index_find(ix, &a[0], &h));
    x = (ds_index_extent){
        .segment = 2, .offset = 4096, .of = 2, .n = 2, .keys = b, .crc = crc, .parent = h.record, .depth = 1, .used = 9
    };
    uint32_t last;
    assert_ok(ds_index_insert(ix, &x, &last, &err));
    ds_index_touch_chain(ix, last, 12);
    ds_index_info info;
    assert_true(ds_index_at(ix, h.record, &info));
    assert_int_equal(info.used, 12);
    assert_false(info.leaf);
    assert_int_equal(ds_index_remove(ix, h.record, NULL, NULL), 5);
    assert_int_equal(ds_index_blocks(ix), 0);
    for (int i = 0; i < 2; i++)
        assert_false(ds_index_find(ix, &a[i + 1], &h) || ds_index_find(ix, &b[i], &h));
    ds_index_destroy(ix);
}

/* Keys that are equal but for their last bytes are different keys. */
static void whole_keys_count(void **state)
{
    ds_key k = key_of(3, 0), other;
    uint32_t crc = 1;
    ds_index_hit h;
    ds_index *ix;
    ds_err err;

    (void)state;
    assert_ok(ds_index_create(&ix, 4, &err));
    ds_index_extent x = { .segment = 1, .offset = 4096, .of = 1, .n = 1, .keys = &k, .crc = &crc, .parent = DS_NONE };
    assert_ok(ds_index_insert(ix, &x, NULL, &err));
    assert_true(ds_index_find(ix, &k, &h));
    for (int i = 0; i < 256; i++) {
        other = k;
        other.b[i / 8] ^= (uint8_t)(1 << i % 8);
        assert_false(ds_index_find(ix, &other, &h));
    }
    ds_index_destroy(ix);
}

static void refused(void **state)
{
    ds_index *ix;
    ds_err err;
    char page[4096] = "DSKVIDX1";
    int fd = memfd_create("test", MFD_CLOEXEC);

    (void)state;
    assert_refused(ds_index_create(&ix, 0, &err), DS_E_ARG, "index of 0 blocks");
    assert_refused(ds_index_create(&ix, UINT32_MAX, &err), DS_E_ARG, "blocks");
    assert_refused(ds_index_attach(&ix, fd, &err), DS_E_FORMAT, "can't be read");
    assert_int_equal(write(fd, page, sizeof page), sizeof page);
    assert_refused(ds_index_attach(&ix, fd, &err), DS_E_FORMAT, "isn't one");
    page[8] = 100;
    assert_int_equal(pwrite(fd, page, sizeof page, 0), sizeof page);
    assert_refused(ds_index_attach(&ix, fd, &err), DS_E_FORMAT, "4096 bytes for 100 blocks");
    close(fd);
}

static ds_rc create_and_destroy(void *ctx, ds_err *err)
{
    ds_index *ix;
    ds_rc rc = ds_index_create(&ix, 100, err);

    (void)ctx;
    ds_index_destroy(ix);
    return rc;
}

static void without_memory(void **state)
{
    (void)state;
    fault_every_allocation(create_and_destroy, NULL);
}

/* ---- many readers while one writes ---- */

typedef struct {
    const ds_index *ix;
    atomic_bool stop;
    atomic_ulong found;
} sharing;

/* What stays is found at every look; what comes and goes is right when it is found. */
static void *look(void *arg)
{
    sharing *s = arg;
    unsigned long found = 0;

    for (uint64_t i = 0; i == 0 || !atomic_load(&s->stop); i++) { /* on a busy machine it may begin when all is over */
        uint32_t c = (uint32_t)(i % CHAINS), d = (uint32_t)(ds_rng_u64(5, i, 0) % LENGTH);
        ds_key k = key_of(c, d);
        ds_index_hit h;
        bool got = ds_index_find(s->ix, &k, &h);
        if (c == 0)
            assert_true(got);
        if (got) {
            assert_int_equal(h.place.crc, crc_of(c, d, h.place.segment));
            found++;
        }
    }
    atomic_fetch_add(&s->found, found);
    return NULL;
}

static void churn(ds_index *ix, uint64_t steps)
{
    uint32_t length[CHAINS] = { 0 };
    ds_err err;

    assert_ok(insert(ix, 0, 0, LENGTH, 7, &err));
    for (uint64_t step = 0; step < steps; step++) {
        uint32_t c = 1 + (uint32_t)(ds_rng_u64(2, step, 0) % (CHAINS - 1));
        if (length[c] == 0) {
            if (insert(ix, c, 0, LENGTH, 10 + step, &err) == DS_OK)
                length[c] = LENGTH;
        } else if (ds_rng_u64(2, step, 1) % 2) {
            ds_key k = key_of(c, length[c] / 2);
            ds_index_hit h;
            assert_true(ds_index_find(ix, &k, &h));
            ds_index_remove(ix, h.record, NULL, NULL);
            length[c] /= 2;
        } else {
            assert_int_equal(insert(ix, c, 0, length[c], 10 + step, &err), DS_OK);
        }
    }
}

static void read_by_threads(void **state)
{
    sharing s = { 0 };
    pthread_t t[3];
    ds_index *ix;
    ds_err err;

    (void)state;
    assert_ok(ds_index_create(&ix, CHAINS * LENGTH + LENGTH, &err));
    assert_ok(insert(ix, 0, 0, LENGTH, 7, &err));
    s.ix = ix;
    for (int i = 0; i < 3; i++)
        pthread_create(&t[i], NULL, look, &s);
    churn(ix, 4000);
    atomic_store(&s.stop, true);
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    assert_true(atomic_load(&s.found) > 0);
    ds_index_destroy(ix);
}

/* Another process maps it, reads, and can't write; it goes on reading when the owner is gone. */
static void read_by_a_process(void **state)
{
    ds_index *ix, *other;
    ds_index_hit h;
    ds_err err;
    int status;
    pid_t child;

    (void)state;
    assert_ok(ds_index_create(&ix, 1000, &err));
    assert_ok(insert(ix, 1, 0, LENGTH, 7, &err));
    child = fork();
    if (child == 0) {
        ds_key k = key_of(1, LENGTH - 1), later = key_of(2, 3);
        bool ok = ds_index_attach(&other, ds_index_fd(ix), &err) == DS_OK && ds_index_find(other, &k, &h) &&
                  mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ds_index_fd(ix), 0) == MAP_FAILED &&
                  pwrite(ds_index_fd(ix), "x", 1, 0) < 0 && ftruncate(ds_index_fd(ix), 0) != 0;
        while (ok && !ds_index_find(other, &later, &h)) /* until the parent enters it */
            sched_yield();
        ok = ok && h.place.crc == crc_of(2, 3, 8);
        ds_index_destroy(other);
        _exit(ok ? 0 : 1);
    }
    assert_ok(insert(ix, 2, 0, LENGTH, 8, &err));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    ds_index_destroy(ix);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(like_its_model), cmocka_unit_test(forks),           cmocka_unit_test(whole_keys_count),  cmocka_unit_test(refused),
        cmocka_unit_test(without_memory), cmocka_unit_test(read_by_threads), cmocka_unit_test(read_by_a_process),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
