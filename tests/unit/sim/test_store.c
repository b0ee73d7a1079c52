/* The store's lengths against a plain list. */
#include <math.h>

#include "base/rng.h"
#include "sim/store.h"
#include "test.h"

enum { KEYS = 60, STEPS = 20000 };

typedef struct {
    uint64_t tokens, used;
    uint32_t class;
    bool there;
} model;

static uint64_t under(uint64_t stream, uint64_t i, uint64_t n)
{
    return ds_rng_u64(5, stream, i) % n;
}

static void expire(model m[KEYS], uint64_t now, const double *ttl_s)
{
    for (uint32_t k = 0; k < KEYS; k++)
        if (m[k].there && (double)(now - m[k].used) > ttl_s[m[k].class] * 1e9)
            m[k].there = false;
}

static uint64_t held(const model m[KEYS])
{
    uint64_t sum = 0;

    for (uint32_t k = 0; k < KEYS; k++)
        sum += m[k].there ? m[k].tokens * 10 : 0;
    return sum;
}

static void against_a_list(void **state)
{
    ds_sim_store_opts o = { .bytes_token = 10.0, .capacity_bytes = 40000.0 };
    static model m[KEYS];
    ds_sim_store *s;
    ds_err err;
    uint64_t now = 0;

    (void)state;
    for (uint32_t c = 0; c < DS_SIM_CLASSES; c++)
        o.ttl_s[c] = c == 1 ? 30e-6 : 200e-6;
    assert_int_equal(ds_sim_store_create(&s, &o, &err), DS_OK);
    for (uint64_t i = 0; i < STEPS; i++) {
        uint32_t k = (uint32_t)under(1, i, KEYS), class = k % 3;
        uint64_t tokens = 1 + under(2, i, 400), idle;
        ds_sim_store_sum sum;
        now += 1 + under(3, i, 3000); /* no two at one time: the order of use is clear */
        expire(m, now, o.ttl_s);
        if (under(4, i, 2)) {
            assert_int_equal(ds_sim_store_get(s, k * 77, now, &idle), m[k].there ? m[k].tokens : 0);
            assert_int_equal(idle, m[k].there ? now - m[k].used : 0);
            m[k].used = now;
        } else {
            assert_true(ds_sim_store_put(s, k * 77, class, tokens, now));
            m[k] = (model){ m[k].there && m[k].tokens > tokens ? m[k].tokens : tokens, now, class, true };
            while (held(m) > 40000) {
                uint32_t oldest = KEYS;
                for (uint32_t j = 0; j < KEYS; j++)
                    if (m[j].there && (oldest == KEYS || m[j].used < m[oldest].used))
                        oldest = j;
                m[oldest].there = false;
            }
        }
        sum = ds_sim_store_sums(s);
        assert_int_equal(sum.held_bytes, held(m));
        assert_int_equal(sum.written_bytes, sum.held_bytes + sum.evicted_bytes + sum.expired_bytes);
        assert_true(sum.held_bytes <= 40000 && sum.most_bytes <= 40000);
    }
    ds_sim_store_destroy(s);
}

static void without_bounds(void **state)
{
    ds_sim_store_opts o = { .bytes_token = 890.0, .capacity_bytes = INFINITY };
    ds_sim_store *s;
    uint64_t idle;

    (void)state;
    for (uint32_t c = 0; c < DS_SIM_CLASSES; c++)
        o.ttl_s[c] = INFINITY;
    assert_int_equal(ds_sim_store_create(&s, &o, NULL), DS_OK);
    assert_int_equal(ds_sim_store_get(s, 1, 5, &idle), 0);
    for (uint64_t k = 1; k <= 5000; k++)
        assert_true(ds_sim_store_put(s, k, k % DS_SIM_CLASSES, k, k));
    for (uint64_t k = 1; k <= 5000; k++)
        assert_int_equal(ds_sim_store_get(s, k, UINT64_C(1) << 60, &idle), k);
    assert_int_equal(ds_sim_store_sums(s).entries, 5000);
    ds_sim_store_destroy(s);
    ds_sim_store_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(against_a_list), cmocka_unit_test(without_bounds) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
