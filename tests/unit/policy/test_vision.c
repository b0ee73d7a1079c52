/* Where pictures go, and whose turn it is. */
#include "base/none.h"
#include "base/rng.h"
#include "policy/vision.h"
#include "test.h"

static uint64_t under(uint64_t stream, uint64_t i, uint64_t n)
{
    return ds_rng_u64(5, stream, i) % n;
}

static void classes(void **state)
{
    (void)state;
    assert_int_equal(ds_vision_class(0), 0);
    assert_int_equal(ds_vision_class(1024), 0);
    assert_int_equal(ds_vision_class(1025), 1);
    assert_int_equal(ds_vision_class(4096), 1);
    assert_int_equal(ds_vision_class(4097), 2);
}

static bool room(const ds_vision_instance *v, uint64_t patches)
{
    uint64_t all = v->ahead[0] + v->ahead[1] + v->ahead[2];

    return v->ready && (all == 0 || all + patches <= v->max_patches);
}

static void properties(void **state)
{
    enum { MOST = 24 };

    (void)state;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        ds_vision_instance r[MOST], other[MOST];
        uint32_t n = (uint32_t)under(1, seed, MOST), got, again;
        uint64_t patches = 1 + under(2, seed, 9000);
        bool any = false;
        for (uint32_t i = 0; i < n; i++) {
            uint64_t s = seed * MOST + i;
            r[i] = (ds_vision_instance){ .id = 500 - i,
                                         .ready = under(3, s, 6) > 0,
                                         .ahead = { under(4, s, 3) * 500, under(5, s, 3) * 2000, under(6, s, 3) * 5000 },
                                         .max_patches = 15000,
                                         .patches_s = 1000 + under(7, s, 2) * 1000 };
            any = any || room(&r[i], patches);
        }
        got = ds_vision_choose(r, n, patches);
        assert_int_equal(got != DS_NONE, any);
        if (!any)
            continue;
        assert_true(got < n && room(&r[got], patches));
        for (uint32_t i = 0; i < n; i++)
            other[i] = r[n - 1 - i];
        again = ds_vision_choose(other, n, patches);
        assert_int_equal(other[again].id, r[got].id);
        for (uint32_t j = 0; j < n; j++) {
            if (j == got)
                continue;
            memcpy(other, r, sizeof r);
            other[j].ahead[under(8, seed * MOST + j, 3)] += 1 + under(9, seed * MOST + j, 3000);
            assert_int_not_equal(ds_vision_choose(other, n, patches), j);
        }
    }
}

static void small_ones_pass_behind_large(void **state)
{
    ds_vision_instance r[2] = { { .id = 1, .ready = true, .ahead = { 900, 0, 0 }, .max_patches = 100000, .patches_s = 1000 },
                                { .id = 2, .ready = true, .ahead = { 0, 0, 20000 }, .max_patches = 100000, .patches_s = 1000 } };

    (void)state;
    assert_int_equal(ds_vision_choose(r, 2, 100), 1); /* 200 patches until it is done, not 20,100 */
    assert_int_equal(ds_vision_choose(r, 2, 5000), 0);
    r[0].max_patches = 10;
    r[0].ahead[0] = 0;
    assert_int_equal(ds_vision_choose(r, 1, 5000), 0); /* an idle one takes any */
}

static void turns_are_fair(void **state)
{
    ds_vision_turns t = { 0 };
    const uint64_t first[3] = { 100, 2000, 9000 };
    uint64_t served[3] = { 0 };

    (void)state;
    assert_int_equal(ds_vision_turn(&t, 0, first), DS_NONE);
    for (int i = 0; i < 2000; i++) {
        uint32_t c = ds_vision_turn(&t, 7, first);
        served[c] += first[c];
        for (int a = 0; a < 3; a++)
            for (int b = 0; b < 3; b++)
                assert_true(served[a] <= served[b] + 9000 + first[a]); /* nobody starves */
    }
    /* one that was away has saved nothing up */
    for (int i = 0; i < 1000; i++)
        assert_int_equal(ds_vision_turn(&t, 1, first), 0);
    assert_true(ds_vision_turn(&t, 5, first) != DS_NONE);
    served[0] = served[2] = 0;
    for (int i = 0; i < 200; i++) {
        uint32_t c = ds_vision_turn(&t, 5, first);
        served[c] += first[c];
    }
    assert_true(served[2] <= served[0] + 2 * 9000);
    /* all were away: they begin level */
    assert_int_equal(ds_vision_turn(&t, 0, first), DS_NONE);
    assert_int_equal(ds_vision_turn(&t, 7, first), 0);
    assert_int_equal(ds_vision_turn(&t, 7, first), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(classes), cmocka_unit_test(properties),
                                        cmocka_unit_test(small_ones_pass_behind_large), cmocka_unit_test(turns_are_fair) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
