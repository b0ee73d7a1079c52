/* The table of keys: clusters that wrap around, removal from every place in them, a full table, keys that differ in
 * their last bit alone. */
#include "base/rng.h"
#include "engine/keytab.h"
#include "fault.h"
#include "test.h"

enum { NONE_LEFT = -1 };

/* A key that belongs to cell `home` (of any table with at most 2^32 cells); `tail` tells keys of one cell apart. */
static ds_key key_at(uint32_t home, uint8_t tail)
{
    ds_key k = { { 0 } };

    for (int i = 0; i < 4; i++)
        k.b[i] = (uint8_t)(home >> (8 * i));
    k.b[31] = tail;
    return k;
}

static void assert_whole(const ds_keytab *t)
{
    uint32_t filled = 0, used = 0;

    for (uint32_t i = 0; i <= t->mask; i++)
        filled += t->cell[i] != 0;
    for (uint32_t v = 0; v < t->n; v++) {
        used += t->used[v];
        if (t->used[v])
            assert_int_equal(ds_keytab_find(t, &t->key[v]), v);
    }
    assert_int_equal(filled, used);
}

static void puts_finds_drops(void **state)
{
    ds_key a = key_at(3, 0), b = key_at(3, 1);
    ds_keytab t;
    ds_err err;

    (void)state;
    assert_ok(ds_keytab_init(&t, 2, &err));
    assert_int_equal(ds_keytab_find(&t, &a), UINT32_MAX);
    ds_keytab_drop(&t, 0); /* wasn't there */
    ds_keytab_put(&t, &a, 1);
    assert_int_equal(ds_keytab_find(&t, &a), 1);
    assert_int_equal(ds_keytab_find(&t, &b), UINT32_MAX);
    ds_keytab_put(&t, &b, 0);
    assert_int_equal(ds_keytab_find(&t, &b), 0);
    ds_keytab_drop(&t, 1);
    ds_keytab_drop(&t, 1);
    assert_int_equal(ds_keytab_find(&t, &a), UINT32_MAX);
    assert_int_equal(ds_keytab_find(&t, &b), 0);
    ds_keytab_put(&t, &a, 1);
    assert_whole(&t);
    ds_keytab_fini(&t);
    ds_keytab_fini(&t);
}

static void no_values(void **state)
{
    ds_key a = key_at(0, 0);
    ds_keytab t;
    ds_err err;

    (void)state;
    assert_ok(ds_keytab_init(&t, 0, &err));
    assert_int_equal(ds_keytab_find(&t, &a), UINT32_MAX);
    ds_keytab_fini(&t);
}

/* Seven keys whose clusters lie over the table's end, removed in each of the 5,040 orders: what stays is found, what
 * went isn't. */
static void removal_in_every_order(void **state)
{
    static const uint32_t home[] = { 13, 15, 15, 14, 0, 15, 1 };
    enum { N = sizeof home / sizeof *home };
    uint32_t order[N], turn[N] = { 0 };
    ds_keytab t;
    ds_err err;
    unsigned orders = 0;

    (void)state;
    for (uint32_t i = 0; i < N; i++)
        order[i] = i;
    assert_ok(ds_keytab_init(&t, 8, &err));
    assert_int_equal(t.mask, 15);
    for (uint32_t i = 0;;) { /* Heap's permutations */
        bool gone[N] = { false };
        for (uint32_t v = 0; v < N; v++) {
            ds_key k = key_at(home[v], (uint8_t)v);
            ds_keytab_put(&t, &k, v);
        }
        for (uint32_t d = 0; d < N; d++) {
            ds_keytab_drop(&t, order[d]);
            gone[order[d]] = true;
            for (uint32_t v = 0; v < N; v++) {
                ds_key k = key_at(home[v], (uint8_t)v);
                assert_int_equal(ds_keytab_find(&t, &k), gone[v] ? UINT32_MAX : v);
            }
        }
        orders++;
        while (i < N && turn[i] >= i)
            turn[i++] = 0;
        if (i == N)
            break;
        uint32_t with = i % 2 ? turn[i] : 0, keep = order[with];
        order[with] = order[i];
        order[i] = keep;
        turn[i]++;
        i = 0;
    }
    assert_int_equal(orders, 5040);
    assert_whole(&t);
    ds_keytab_fini(&t);
}

/* All values in, all in one cluster that begins in the last cell: looking for another key of it ends. */
static void full(void **state)
{
    enum { N = 64 };
    ds_key other = key_at(127, 200);
    ds_keytab t;
    ds_err err;

    (void)state;
    assert_ok(ds_keytab_init(&t, N, &err));
    assert_int_equal(t.mask, 127);
    for (uint32_t v = 0; v < N; v++) {
        ds_key k = key_at(127, (uint8_t)v);
        ds_keytab_put(&t, &k, v);
    }
    assert_int_equal(ds_keytab_find(&t, &other), UINT32_MAX);
    assert_whole(&t);
    ds_keytab_fini(&t);
}

/* Against an array, with keys of few cells. */
static void random_operations(void **state)
{
    enum { N = 100, KEYS = 300, STEPS = 200000 };
    int value_of[KEYS];
    bool used[N] = { false };
    ds_key key[KEYS];
    ds_keytab t;
    ds_err err;

    (void)state;
    assert_ok(ds_keytab_init(&t, N, &err));
    for (uint32_t i = 0; i < KEYS; i++) {
        value_of[i] = NONE_LEFT;
        key[i] = key_at((uint32_t)ds_rng_u64(1, 0, i) % 24 + 240, (uint8_t)i);
        key[i].b[30] = (uint8_t)(i >> 8);
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        uint64_t r = ds_rng_u64(2, 0, step);
        uint32_t k = (uint32_t)(r % KEYS), v = (uint32_t)(r >> 32) % N;
        if (value_of[k] != NONE_LEFT) {
            ds_keytab_drop(&t, (uint32_t)value_of[k]);
            used[value_of[k]] = false;
            value_of[k] = NONE_LEFT;
        } else if (!used[v]) {
            ds_keytab_put(&t, &key[k], v);
            used[v] = true;
            value_of[k] = (int)v;
        }
        k = (uint32_t)(r >> 16) % KEYS;
        assert_int_equal(ds_keytab_find(&t, &key[k]), value_of[k] == NONE_LEFT ? UINT32_MAX : (uint32_t)value_of[k]);
        if (step % 1000 == 0)
            assert_whole(&t);
    }
    ds_keytab_fini(&t);
}

static ds_rc attempt(void *ctx, ds_err *err)
{
    ds_keytab t;
    ds_rc rc = ds_keytab_init(&t, 10, err);

    (void)ctx;
    if (rc == DS_OK)
        ds_keytab_fini(&t);
    return rc;
}

static void allocations_fail(void **state)
{
    (void)state;
    assert_int_equal(fault_every_allocation(attempt, NULL), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(puts_finds_drops),       cmocka_unit_test(no_values),
        cmocka_unit_test(removal_in_every_order), cmocka_unit_test(full),
        cmocka_unit_test(random_operations),      cmocka_unit_test(allocations_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
