/* Which rank decodes: properties on random snapshots, and the cases that the rule is for. */
#include "base/none.h"
#include "base/rng.h"
#include "policy/decode.h"
#include "test.h"

enum { MOST = 200 };

static uint64_t under(uint64_t stream, uint64_t i, uint64_t n)
{
    return ds_rng_u64(7, stream, i) % n;
}

/* Equal rows are likely: few values of each. */
static uint32_t snapshot(ds_decode_rank *r, uint64_t seed)
{
    uint32_t n = (uint32_t)(under(1, seed, 4) ? under(2, seed, 20) : under(2, seed, MOST));

    for (uint32_t i = 0; i < n; i++) {
        uint64_t s = seed * MOST + i;
        r[i] = (ds_decode_rank){ .id = 1000 - i,
                                 .ready = under(3, s, 8) > 0,
                                 .requests = under(4, s, 5) * 16,
                                 .max_requests = 64,
                                 .kv_tokens = under(5, s, 9) * 125000,
                                 .max_kv_tokens = 1000000,
                                 .prefill_us = under(6, s, 4) * 100000,
                                 .max_wait_us = seed % 2 ? 1000000 : 0 };
    }
    return n;
}

static ds_decode_ask ask_of(uint64_t seed)
{
    return (ds_decode_ask){ .kv_tokens = under(8, seed, 200000), .prefill_us = under(9, seed, 300000), .seed = seed };
}

static bool room(const ds_decode_rank *r, const ds_decode_ask *a)
{
    return r->ready && r->requests < r->max_requests && r->kv_tokens + a->kv_tokens <= r->max_kv_tokens;
}

static void swap(ds_decode_rank *a, ds_decode_rank *b)
{
    ds_decode_rank t = *a;

    *a = *b;
    *b = t;
}

static void properties(void **state)
{
    static ds_decode_rank r[MOST], other[MOST];

    (void)state;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        uint32_t n = snapshot(r, seed), got, again;
        ds_decode_ask ask = ask_of(seed);
        bool any = false;
        for (uint32_t i = 0; i < n; i++)
            any = any || room(&r[i], &ask);
        got = ds_decode_choose(r, n, &ask);
        /* work conservation; hard caps */
        assert_int_equal(got != DS_NONE, any);
        assert_int_equal(ds_decode_choose(r, n, &ask), got);
        if (!any)
            continue;
        assert_true(got < n && room(&r[got], &ask));
        /* the order of rows */
        memcpy(other, r, n * sizeof *r);
        for (uint32_t i = n - 1; i > 0; i--)
            swap(&other[i], &other[under(10, seed * MOST + i, i + 1)]);
        again = ds_decode_choose(other, n, &ask);
        assert_int_equal(other[again].id, r[got].id);
        /* more load on a rank that wasn't chosen doesn't get it chosen */
        for (uint32_t k = 0; k < 8; k++) {
            uint32_t j = (uint32_t)under(11, seed * 8 + k, n);
            if (j == got)
                continue;
            memcpy(other, r, n * sizeof *r);
            other[j].requests += under(12, seed * 8 + k, 3);
            other[j].kv_tokens += under(13, seed * 8 + k, 100000);
            other[j].prefill_us += under(14, seed * 8 + k, 100000);
            assert_int_not_equal(ds_decode_choose(other, n, &ask), j);
        }
    }
}

static void kinds_of_shortage(void **state)
{
    /* equally full: one of caches, one of seats */
    ds_decode_rank r[2] = { { .id = 1, .ready = true, .requests = 16, .max_requests = 64, .kv_tokens = 750000, .max_kv_tokens = 1000000 },
                            { .id = 2, .ready = true, .requests = 48, .max_requests = 64, .kv_tokens = 250000, .max_kv_tokens = 1000000 } };

    (void)state;
    assert_int_equal(ds_decode_choose(r, 2, &(ds_decode_ask){ .kv_tokens = 1000 }), 0);
    assert_int_equal(ds_decode_choose(r, 2, &(ds_decode_ask){ .kv_tokens = 100000 }), 1);
    assert_int_equal(ds_decode_choose(r, 2, &(ds_decode_ask){ .kv_tokens = 300000 }), 1); /* a hard cap */
    r[1].requests = 64;
    assert_int_equal(ds_decode_choose(r, 2, &(ds_decode_ask){ .kv_tokens = 300000 }), DS_NONE);
    assert_int_equal(ds_decode_choose(r, 0, &(ds_decode_ask){ .kv_tokens = 1 }), DS_NONE);
    assert_int_equal(ds_decode_choose(r, 1, &(ds_decode_ask){ .kv_tokens = UINT64_MAX }), DS_NONE);
    r[0].max_kv_tokens = r[0].max_requests = 0; /* says nothing of itself: takes nothing */
    assert_int_equal(ds_decode_choose(r, 1, &(ds_decode_ask){ .kv_tokens = 0 }), DS_NONE);
}

static void a_long_wait_counts(void **state)
{
    ds_decode_rank r[2] = { { .id = 1, .ready = true, .max_requests = 64, .max_kv_tokens = 1000, .prefill_us = 900, .max_wait_us = 1000 },
                            { .id = 2, .ready = true, .requests = 32, .max_requests = 64, .max_kv_tokens = 1000, .max_wait_us = 1000 } };

    (void)state;
    assert_int_equal(ds_decode_choose(r, 2, &(ds_decode_ask){ .kv_tokens = 1, .prefill_us = 50 }), 1);
    r[0].max_wait_us = r[1].max_wait_us = 0;
    assert_int_equal(ds_decode_choose(r, 2, &(ds_decode_ask){ .kv_tokens = 1, .prefill_us = 50 }), 0);
}

/* Many entries with one snapshot: seeds spread what one rule for all would send to one rank. */
static void entries_do_not_herd(void **state)
{
    static ds_decode_rank r[MOST];
    uint32_t got[MOST] = { 0 }, most = 0;

    (void)state;
    for (uint32_t i = 0; i < MOST; i++)
        r[i] = (ds_decode_rank){ .id = i, .ready = true, .max_requests = 64, .max_kv_tokens = 1000000 };
    for (uint64_t seed = 0; seed < 2000; seed++)
        got[ds_decode_choose(r, MOST, &(ds_decode_ask){ .kv_tokens = 10, .seed = ds_rng_u64(3, 3, seed) })]++;
    for (uint32_t i = 0; i < MOST; i++)
        most = got[i] > most ? got[i] : most;
    assert_true(most < 2000 / 8);
}

/* Requests of very different lengths fill ranks to the same height in both measures. */
static void balance(void **state)
{
    ds_decode_rank r[8];
    double mean[2] = { 0 }, top[2] = { 0 };

    (void)state;
    for (uint32_t i = 0; i < 8; i++)
        r[i] = (ds_decode_rank){ .id = i, .ready = true, .max_requests = 256, .max_kv_tokens = 8000000 };
    for (uint64_t k = 0; k < 1200; k++) {
        uint64_t tokens = under(20, k, 10) == 0 ? 100000 + under(21, k, 100000) : 500 + under(21, k, 8000);
        uint32_t at = ds_decode_choose(r, 8, &(ds_decode_ask){ .kv_tokens = tokens });
        assert_true(at < 8);
        r[at].requests++;
        r[at].kv_tokens += tokens;
    }
    for (uint32_t i = 0; i < 8; i++) {
        double is[2] = { (double)r[i].requests, (double)r[i].kv_tokens };
        for (int m = 0; m < 2; m++) {
            mean[m] += is[m] / 8;
            top[m] = is[m] > top[m] ? is[m] : top[m];
        }
    }
    assert_true(top[0] <= 1.10 * mean[0]);
    assert_true(top[1] <= 1.10 * mean[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(properties), cmocka_unit_test(kinds_of_shortage),
                                        cmocka_unit_test(a_long_wait_counts), cmocka_unit_test(entries_do_not_herd),
                                        cmocka_unit_test(balance) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
