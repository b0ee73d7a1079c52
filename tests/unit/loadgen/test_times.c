/* Quantiles against the sorted values. */
#include "test.h"

#include "base/rng.h"
#include "loadgen/times.h"

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static void quantiles_are_close(void **state)
{
    static const double qs[] = { 0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0 };
    enum { N = 20000 };
    uint64_t *v = malloc(N * sizeof *v);
    ds_times *t = calloc(1, sizeof *t);

    (void)state;
    for (size_t i = 0; i < N; i++) {
        v[i] = (uint64_t)exp(ds_rng_unit(1, 2, i) * 29.0); /* 1 ns to an hour */
        ds_times_add(t, v[i]);
    }
    qsort(v, N, sizeof *v, by_value);
    for (size_t i = 0; i < sizeof qs / sizeof qs[0]; i++) {
        size_t rank = (size_t)ceil(qs[i] * N);
        uint64_t want = v[rank ? rank - 1 : 0], got = ds_times_quantile(t, qs[i]);
        assert_true(got >= want && (double)got <= (double)want * (1.0 + 1.0 / 128) + 1e-9);
    }
    assert_int_equal(ds_times_quantile(t, 1.0), v[N - 1]);
    free(v);
    free(t);
}

static void edges(void **state)
{
    ds_times *t = calloc(1, sizeof *t);

    (void)state;
    assert_int_equal(ds_times_quantile(t, 0.5), 0);
    ds_times_add(t, 0);
    assert_int_equal(ds_times_quantile(t, 0.99), 0);
    for (uint64_t shift = 0; shift < 64; shift++) /* every power of two and its neighbour lands in the array */
        for (int d = -1; d <= 1; d++)
            ds_times_add(t, (UINT64_C(1) << shift) + (uint64_t)d);
    assert_int_equal(ds_times_quantile(t, 1.0), UINT64_C(0x8000000000000001) > t->max ? UINT64_C(0x8000000000000001) : t->max);
    memset(t, 0, sizeof *t);
    ds_times_add(t, UINT64_C(86400) * 1000000000); /* beyond the top: the longest is kept exactly */
    assert_int_equal(ds_times_quantile(t, 0.5), UINT64_C(86400) * 1000000000);
    free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(quantiles_are_close), cmocka_unit_test(edges) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
