/* The block manager: references, the order in which cached blocks go, keys that are taken over, and all of it at
 * random against a model that is too slow to be wrong. */
#include <malloc.h>

#include "engine/blocks.h"
#include "fault.h"
#include "lru_model.h"

static ds_blocks make(uint32_t n)
{
    ds_blocks b;
    ds_err err;

    assert_ok(ds_blocks_init(&b, n, &err));
    assert_int_equal(ds_blocks_available(&b), n);
    return b;
}

/* A used block that is published under `name`. */
static uint32_t take_named(ds_blocks *b, uint32_t name)
{
    uint32_t i = ds_blocks_take(b);
    ds_key k = lru_key(name);

    assert_true(i < b->n);
    assert_true(ds_blocks_publish(b, i, &k, false));
    return i;
}

static uint32_t find(const ds_blocks *b, uint32_t name)
{
    ds_key k = lru_key(name);

    return ds_blocks_find(b, &k);
}

static void every_block_once(void **state)
{
    ds_blocks b = make(5);
    bool seen[5] = { false };

    (void)state;
    for (int i = 0; i < 5; i++) {
        uint32_t k = ds_blocks_take(&b);
        assert_true(k < 5 && !seen[k]);
        seen[k] = true;
        assert_int_equal(ds_blocks_available(&b), 4 - i);
    }
    assert_int_equal(ds_blocks_take(&b), UINT32_MAX);
    assert_int_equal(ds_blocks_take(&b), UINT32_MAX);
    ds_blocks_unref(&b, 3);
    assert_int_equal(ds_blocks_take(&b), 3);
    ds_blocks_fini(&b);
}

static void the_last_reference_counts(void **state)
{
    ds_blocks b = make(2);
    uint32_t i = ds_blocks_take(&b);

    (void)state;
    ds_blocks_ref(&b, i);
    ds_blocks_ref(&b, i);
    ds_blocks_unref(&b, i);
    ds_blocks_unref(&b, i);
    assert_int_equal(ds_blocks_available(&b), 1);
    ds_blocks_unref(&b, i);
    assert_int_equal(ds_blocks_available(&b), 2);
    ds_blocks_fini(&b);
}

/* Free ones first, then those left longest ago; a hit makes a block young again. */
static void eviction_order(void **state)
{
    ds_blocks b = make(4);
    uint32_t x = take_named(&b, 1), y = take_named(&b, 2), z = take_named(&b, 3), w = ds_blocks_take(&b);

    (void)state;
    ds_blocks_unref(&b, y);
    ds_blocks_unref(&b, x);
    ds_blocks_unref(&b, z);
    ds_blocks_unref(&b, w); /* has no key: goes before all of them */
    assert_int_equal(b.n_cached, 3);
    assert_int_equal(find(&b, 2), y);
    ds_blocks_ref(&b, y);
    ds_blocks_unref(&b, y);
    assert_int_equal(ds_blocks_take(&b), w);
    assert_int_equal(b.evicted, 0);
    assert_int_equal(ds_blocks_take(&b), x);
    assert_int_equal(find(&b, 1), UINT32_MAX);
    assert_int_equal(ds_blocks_take(&b), z);
    assert_int_equal(find(&b, 2), y);
    assert_int_equal(ds_blocks_take(&b), y);
    assert_int_equal(find(&b, 2), UINT32_MAX);
    assert_int_equal(b.evicted, 3);
    assert_int_equal(b.n_cached, 0);
    assert_int_equal(ds_blocks_take(&b), UINT32_MAX);
    ds_blocks_fini(&b);
}

/* A sequence gives its blocks back from the last to the first: a parent outlives its children. */
static void leaves_go_first(void **state)
{
    ds_blocks b = make(3);
    uint32_t chain[3];

    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        chain[i] = take_named(&b, i);
    for (int i = 2; i >= 0; i--)
        ds_blocks_unref(&b, chain[i]);
    for (int i = 2; i >= 0; i--)
        assert_int_equal(ds_blocks_take(&b), chain[i]);
    ds_blocks_fini(&b);
}

static void one_block_a_key(void **state)
{
    ds_blocks b = make(3);
    uint32_t first = take_named(&b, 1), second = ds_blocks_take(&b);
    ds_key one = lru_key(1), two = lru_key(2);

    (void)state;
    assert_false(ds_blocks_publish(&b, second, &one, false)); /* stays private */
    assert_false(ds_blocks_publish(&b, first, &two, false));  /* has its key */
    assert_int_equal(find(&b, 1), first);
    assert_int_equal(find(&b, 2), UINT32_MAX);
    assert_int_equal(b.published, 1);
    ds_blocks_unref(&b, second);
    assert_int_equal(b.n_cached, 0);
    ds_blocks_unref(&b, first);
    assert_int_equal(b.n_cached, 1);
    ds_blocks_fini(&b);
}

/* An exact block takes the key of an approximate one, used or cached, and never the other way round. */
static void exact_ones_take_over(void **state)
{
    (void)state;
    for (int cached = 0; cached < 2; cached++) {
        ds_blocks b = make(4);
        uint32_t old = ds_blocks_take(&b), exact = ds_blocks_take(&b), late = ds_blocks_take(&b);
        ds_key k = lru_key(1);
        assert_true(ds_blocks_publish(&b, old, &k, true));
        assert_false(ds_blocks_publish(&b, late, &k, true));
        if (cached)
            ds_blocks_unref(&b, old);
        assert_int_equal(b.n_cached, cached);
        assert_true(ds_blocks_publish(&b, exact, &k, false));
        assert_int_equal(find(&b, 1), exact);
        assert_false(b.approx[exact]);
        assert_int_equal(b.n_cached, 0);
        assert_false(ds_blocks_publish(&b, late, &k, true));
        assert_false(ds_blocks_publish(&b, late, &k, false));
        if (cached) {
            assert_int_equal(ds_blocks_take(&b), old); /* it is free now, and the first to be given out */
            assert_int_equal(b.evicted, 0);
        }
        ds_blocks_unref(&b, old);
        ds_blocks_unref(&b, exact);
        assert_int_equal(b.n_cached, 1);
        assert_int_equal(find(&b, 1), exact);
        ds_blocks_fini(&b);
    }
}

/* Bytes on the way: nobody finds them, and whoever asks learns that they come. Computed ones take the key. */
static void expected_ones(void **state)
{
    ds_blocks b = make(4);
    uint32_t coming = ds_blocks_take(&b), other = ds_blocks_take(&b), lost = ds_blocks_take(&b), approx;
    ds_key one = lru_key(1), two = lru_key(2);

    (void)state;
    assert_true(ds_blocks_expect(&b, coming, &one));
    assert_false(ds_blocks_expect(&b, other, &one));
    assert_int_equal(find(&b, 1), UINT32_MAX);
    assert_true(ds_blocks_is_expected(&b, &one));
    assert_true(ds_blocks_arrive(&b, coming, &one, false));
    assert_int_equal(find(&b, 1), coming);
    assert_false(ds_blocks_is_expected(&b, &one));
    assert_true(ds_blocks_expect(&b, lost, &two));
    assert_true(ds_blocks_publish(&b, other, &two, true)); /* somebody was faster */
    assert_int_equal(find(&b, 2), other);
    assert_false(b.expected[lost]);
    assert_true(ds_blocks_arrive(&b, lost, &two, false)); /* and it is an exact one after all */
    assert_int_equal(find(&b, 2), lost);
    ds_blocks_unref(&b, other);
    ds_blocks_unref(&b, coming);
    assert_int_equal(b.n_cached, 1);
    approx = ds_blocks_take(&b);
    assert_true(ds_blocks_expect(&b, approx, &(ds_key){ { 9 } }));
    ds_blocks_miss(&b, approx);
    assert_false(ds_blocks_is_expected(&b, &(ds_key){ { 9 } }));
    ds_blocks_miss(&b, approx);
    ds_blocks_unref(&b, approx);
    ds_blocks_unref(&b, lost);
    assert_int_equal(ds_blocks_available(&b), 4);
    ds_blocks_fini(&b);
}

/* ---- at random ---- */

static bool expected[LRU_MAX];

static bool model_publish(lru_model *m, uint32_t block, int name, bool approx)
{
    int old = lru_find(m, name);

    if (m->name[block] != LRU_NONE || (old != LRU_NONE && !expected[old] && (approx || !m->approx[old])))
        return false;
    if (old != LRU_NONE)
        expected[old] = false;
    lru_rename(m, block, name, approx);
    return true;
}

static void assert_equal(const lru_model *m, const ds_blocks *b)
{
    uint32_t cached = 0;

    lru_compare(m, b->next, b->prev, b->ref, b->keys.used);
    assert_int_equal(b->n_idle, m->n_idle);
    for (uint32_t i = 0; i < m->n; i++) {
        ds_key k = lru_key((uint32_t)m->name[i]);
        cached += m->held[i] == 0 && m->name[i] != LRU_NONE;
        assert_int_equal(b->expected[i], expected[i]);
        if (m->name[i] == LRU_NONE)
            continue;
        assert_int_equal(ds_blocks_find(b, &k), expected[i] ? UINT32_MAX : i);
        assert_int_equal(ds_blocks_is_expected(b, &k), expected[i]);
        if (!expected[i])
            assert_int_equal(b->approx[i], m->approx[i]);
    }
    assert_int_equal(b->n_cached, cached);
}

/* A used block and a name: published, expected, there, or not coming after all. */
static void name_one(lru_model *m, ds_blocks *b, uint64_t r, uint32_t i, int name)
{
    bool approx = r >> 60 & 1;
    ds_key k = lru_key((uint32_t)name), own = lru_key((uint32_t)m->name[i]);

    if (m->held[i] == 0)
        return;
    switch (r >> 56 & 3) {
    case 0:
        if (m->name[i] == LRU_NONE) {
            expected[i] = lru_find(m, name) == LRU_NONE;
            if (expected[i])
                m->name[i] = name;
            assert_int_equal(ds_blocks_expect(b, i, &k), expected[i]);
        }
        break;
    case 1:
        if (expected[i]) {
            assert_true(ds_blocks_arrive(b, i, &own, approx));
            m->approx[i] = approx;
            expected[i] = false;
        }
        break;
    case 2:
        ds_blocks_miss(b, i);
        if (expected[i])
            m->name[i] = LRU_NONE;
        expected[i] = false;
        break;
    default:
        assert_int_equal(ds_blocks_publish(b, i, &k, approx), model_publish(m, i, name, approx));
    }
}

static void random_operations(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= LRU_MAX; n += 5) {
        ds_blocks b = make(n);
        lru_model m = lru_new(n);
        memset(expected, 0, sizeof expected);
        for (uint32_t step = 0; step < LRU_STEPS; step++) {
            uint64_t r = ds_rng_u64(n, 0, step);
            uint32_t i = (uint32_t)(r >> 8) % n;
            switch (r % 6) {
            case 0:
            case 1:
                assert_int_equal(ds_blocks_take(&b), lru_take(&m));
                break;
            case 2: /* a hit */
                if ((m.name[i] != LRU_NONE || m.held[i] > 0) && !expected[i]) {
                    ds_blocks_ref(&b, i);
                    lru_hold(&m, i);
                }
                break;
            case 3:
            case 4:
                if (m.held[i] > 0 && !expected[i]) {
                    ds_blocks_unref(&b, i);
                    lru_let(&m, i);
                }
                break;
            default:
                name_one(&m, &b, r, i, (int)((r >> 40) % (2 * n)));
            }
            assert_equal(&m, &b);
        }
        ds_blocks_fini(&b);
    }
}

static void bytes_are_what_is_taken(void **state)
{
    (void)state;
    for (uint32_t n = 1000; n < 300000; n = 3 * n + 1) {
        struct mallinfo2 before = mallinfo2(), after;
        ds_blocks b = make(n);
        after = mallinfo2();
        ds_blocks_fini(&b);
        lru_bytes(after.uordblks + after.hblkhd - before.uordblks - before.hblkhd, ds_blocks_bytes(n));
    }
}

static ds_rc attempt(void *ctx, ds_err *err)
{
    ds_blocks b;
    ds_rc rc = ds_blocks_init(&b, 10, err);

    (void)ctx;
    if (rc == DS_OK)
        ds_blocks_fini(&b);
    return rc;
}

static void allocations_fail(void **state)
{
    (void)state;
    assert_int_equal(fault_every_allocation(attempt, NULL), 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_once),        cmocka_unit_test(the_last_reference_counts), cmocka_unit_test(eviction_order),
        cmocka_unit_test(leaves_go_first),         cmocka_unit_test(one_block_a_key),           cmocka_unit_test(exact_ones_take_over),
        cmocka_unit_test(expected_ones),           cmocka_unit_test(random_operations),         cmocka_unit_test(allocations_fail),
        cmocka_unit_test(bytes_are_what_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
