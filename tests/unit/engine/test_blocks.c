/* The block manager: references, the order in which cached blocks go, keys that are taken over, and all of it at
 * random against a model that is too slow to be wrong. */
#include <malloc.h>

#include "base/rng.h"
#include "engine/blocks.h"
#include "fault.h"
#include "test.h"

enum { NOTHING = -1, MAX = 16 };

static ds_key key_of(uint32_t name)
{
    ds_key k = { { (uint8_t)name } };

    k.b[31] = 1;
    return k;
}

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
    ds_key k = key_of(name);

    assert_true(i < b->n);
    assert_true(ds_blocks_publish(b, i, &k, false));
    return i;
}

static uint32_t find(const ds_blocks *b, uint32_t name)
{
    ds_key k = key_of(name);

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
    ds_key one = key_of(1), two = key_of(2);

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
        ds_key k = key_of(1);
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

/* ---- at random ---- */

typedef struct {
    uint32_t n, ref[MAX], idle[MAX], n_idle; /* idle: the next to be given out first */
    int key[MAX];
    bool approx[MAX];
} model;

static void model_leave(model *m, uint32_t block)
{
    uint32_t at = 0;

    while (m->idle[at] != block)
        at++;
    memmove(m->idle + at, m->idle + at + 1, (--m->n_idle - at) * sizeof *m->idle);
}

static void model_join(model *m, uint32_t block)
{
    if (m->key[block] != NOTHING) {
        m->idle[m->n_idle++] = block;
        return;
    }
    memmove(m->idle + 1, m->idle, m->n_idle++ * sizeof *m->idle);
    m->idle[0] = block;
}

static int model_find(const model *m, int name)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (m->key[i] == name)
            return (int)i;
    return NOTHING;
}

static bool model_publish(model *m, uint32_t block, int name, bool approx)
{
    int old = model_find(m, name);

    if (m->key[block] != NOTHING || (old != NOTHING && (approx || !m->approx[old])))
        return false;
    if (old != NOTHING) {
        m->key[old] = NOTHING;
        if (m->ref[old] == 0) {
            model_leave(m, (uint32_t)old);
            model_join(m, (uint32_t)old);
        }
    }
    m->key[block] = name;
    m->approx[block] = approx;
    return true;
}

static void assert_equal(const model *m, const ds_blocks *b)
{
    uint32_t at = b->next[b->n], cached = 0;

    assert_int_equal(b->n_idle, m->n_idle);
    for (uint32_t i = 0; i < m->n_idle; i++, at = b->next[at]) {
        assert_int_equal(at, m->idle[i]);
        assert_int_equal(b->next[b->prev[at]], at);
        cached += m->key[at] != NOTHING;
    }
    assert_int_equal(at, b->n);
    assert_int_equal(b->n_cached, cached);
    for (uint32_t i = 0; i < m->n; i++) {
        assert_int_equal(b->ref[i], m->ref[i]);
        assert_int_equal(b->keys.used[i], m->key[i] != NOTHING);
        if (m->key[i] != NOTHING) {
            assert_int_equal(find(b, (uint32_t)m->key[i]), i);
            assert_int_equal(b->approx[i], m->approx[i]);
        }
    }
}

static void random_operations(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= MAX; n = 2 * n + 1) {
        ds_blocks b = make(n);
        model m = { .n = n, .n_idle = n };
        for (uint32_t i = 0; i < n; i++) {
            m.idle[i] = i;
            m.key[i] = NOTHING;
        }
        for (uint32_t step = 0; step < 30000; step++) {
            uint64_t r = ds_rng_u64(n, 0, step);
            uint32_t i = (uint32_t)(r >> 8) % n;
            int name = (int)((r >> 40) % (2 * n));
            bool approx = r >> 60 & 1;
            ds_key k = key_of((uint32_t)name);
            switch (r % 6) {
            case 0:
            case 1: {
                uint32_t got = ds_blocks_take(&b);
                assert_int_equal(got, m.n_idle ? m.idle[0] : UINT32_MAX);
                if (m.n_idle) {
                    model_leave(&m, got);
                    m.key[got] = NOTHING;
                    m.ref[got] = 1;
                }
                break;
            }
            case 2: /* a hit */
                if (m.key[i] != NOTHING || m.ref[i] > 0) {
                    ds_blocks_ref(&b, i);
                    if (m.ref[i]++ == 0)
                        model_leave(&m, i);
                }
                break;
            case 3:
            case 4:
                if (m.ref[i] > 0) {
                    ds_blocks_unref(&b, i);
                    if (--m.ref[i] == 0)
                        model_join(&m, i);
                }
                break;
            default:
                if (m.ref[i] > 0)
                    assert_int_equal(ds_blocks_publish(&b, i, &k, approx), model_publish(&m, i, name, approx));
            }
            assert_equal(&m, &b);
        }
        ds_blocks_fini(&b);
    }
}

/* The plan says what is taken: never less, and not much more. */
static void bytes_are_what_is_taken(void **state)
{
    (void)state;
    for (uint32_t n = 1000; n < 300000; n = 3 * n + 1) {
        struct mallinfo2 before = mallinfo2(), after;
        uint64_t taken;
        ds_blocks b = make(n);
        after = mallinfo2();
        taken = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd;
        ds_blocks_fini(&b);
        if (taken == 0)
            skip();                                           /* another allocator, which doesn't count */
        assert_true(taken <= ds_blocks_bytes(n) + 16 * 4096); /* the heap's own pages */
        assert_true(taken >= ds_blocks_bytes(n) / 2);
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
    assert_int_equal(fault_every_allocation(attempt, NULL), 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_once),  cmocka_unit_test(the_last_reference_counts), cmocka_unit_test(eviction_order),
        cmocka_unit_test(leaves_go_first),   cmocka_unit_test(one_block_a_key),           cmocka_unit_test(exact_ones_take_over),
        cmocka_unit_test(random_operations), cmocka_unit_test(allocations_fail),          cmocka_unit_test(bytes_are_what_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
