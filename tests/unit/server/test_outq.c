#include "test.h"

#include "server/outq.h"

static void in_order_and_bounded(void **state)
{
    ds_outq q = { 0 };
    char out[7];
    unsigned put = 0, got = 0;

    (void)state;
    for (int round = 0; round < 5000; round++) {
        char piece[13];
        size_t n = (size_t)(round % 13) + 1, m;
        for (size_t i = 0; i < n; i++)
            piece[i] = (char)(put + i);
        if (ds_outq_put(&q, piece, n, 100))
            put += (unsigned)n;
        else
            assert_true(ds_outq_bytes(&q) + n > 100);
        assert_true(ds_outq_bytes(&q) <= 100);
        m = ds_outq_take(&q, out, 1 + (size_t)round % sizeof out);
        for (size_t i = 0; i < m; i++)
            assert_int_equal((unsigned char)out[i], (unsigned char)(got + i));
        got += (unsigned)m;
    }
    while (ds_outq_take(&q, out, sizeof out) > 0)
        ;
    assert_int_equal(ds_outq_bytes(&q), 0);
    assert_true(put > 10000);
    ds_outq_free(&q);
}

static void memory_goes_back(void **state)
{
    static char big[100000];
    ds_outq q = { 0 };
    char *to;

    (void)state;
    assert_true(ds_outq_put(&q, big, sizeof big, sizeof big));
    assert_null(ds_outq_reserve(&q, 1, sizeof big));
    while (ds_outq_take(&q, big, 999) > 0)
        ;
    assert_null(q.b.p);
    to = ds_outq_reserve(&q, 10, 10);
    assert_non_null(to);
    memset(to, 'x', 10);
    ds_outq_commit(&q, 4); /* less than was reserved */
    assert_int_equal(ds_outq_bytes(&q), 4);
    assert_null(ds_outq_reserve(&q, SIZE_MAX, 10));
    ds_outq_free(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(in_order_and_bounded), cmocka_unit_test(memory_goes_back) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
