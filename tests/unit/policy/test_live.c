/* Load is the size of a set of live records, whatever happens to them. */
#include "base/rng.h"
#include "fault.h"
#include "policy/live.h"
#include "test.h"

static ds_live *make(uint32_t records, uint32_t owners, uint32_t places)
{
    ds_err err = { 0 };
    ds_live *l;

    assert_ok(ds_live_create(&l, &(ds_live_opts){ records, owners, places }, &err));
    return l;
}

static void an_end_counts_once(void **state)
{
    ds_live *l = make(2, 1, 2);
    uint64_t a = ds_live_add(l, 0, 1, &(ds_live_weight){ 10, 20, 30 }), b;

    (void)state;
    assert_int_equal(ds_live_at(l, 1).records, 1);
    assert_int_equal(ds_live_at(l, 1).weight.patches, 30);
    assert_true(ds_live_end(l, a));
    assert_false(ds_live_end(l, a));
    b = ds_live_add(l, 0, 1, &(ds_live_weight){ 1, 2, 3 });
    assert_false(ds_live_end(l, a)); /* its place was taken by another */
    assert_false(ds_live_weigh(l, a, &(ds_live_weight){ 7, 7, 7 }));
    assert_false(ds_live_move(l, a, 0));
    assert_int_equal(ds_live_at(l, 1).weight.tokens, 1);
    assert_true(ds_live_move(l, b, 0));
    assert_int_equal(ds_live_at(l, 1).records, 0);
    assert_int_equal(ds_live_at(l, 0).weight.work_us, 2);
    assert_false(ds_live_end(l, 0));
    assert_false(ds_live_end(l, UINT64_MAX));
    assert_true(ds_live_check(l));
    ds_live_destroy(l);
}

static void full_is_said(void **state)
{
    ds_live *l = make(2, 1, 1);
    ds_live_weight w = { 1, 1, 1 };

    (void)state;
    assert_true(ds_live_add(l, 0, 0, &w) && ds_live_add(l, 0, 0, &w));
    assert_int_equal(ds_live_add(l, 0, 0, &w), 0);
    assert_int_equal(ds_live_all(l).records, 2);
    assert_int_equal(ds_live_end_place(l, 0), 2);
    assert_true(ds_live_add(l, 0, 0, &w));
    ds_live_destroy(l);
}

/* Owners and places die at any time; the set agrees with a plain list of what should be in it. */
static void nothing_stays_behind(void **state)
{
    enum { N = 64, OWNERS = 5, PLACES = 7 };
    struct {
        uint64_t id, tokens;
        uint32_t owner, place;
    } mine[N] = { 0 };
    ds_live *l = make(N, OWNERS, PLACES);

    (void)state;
    for (uint64_t step = 0; step < 20000; step++) {
        uint32_t what = (uint32_t)(ds_rng_u64(1, 1, step) % 100), i = (uint32_t)(ds_rng_u64(1, 2, step) % N);
        uint32_t owner = (uint32_t)(ds_rng_u64(1, 3, step) % OWNERS), place = (uint32_t)(ds_rng_u64(1, 4, step) % PLACES), died = 0;
        ds_live_weight w = { step, step * 3, step * 5 };
        if (what < 60 && !mine[i].id) {
            mine[i].id = ds_live_add(l, owner, place, &w);
            assert_true(mine[i].id);
            mine[i].owner = owner;
            mine[i].place = place;
            mine[i].tokens = step;
        } else if (what < 75 && mine[i].id) {
            assert_true(ds_live_end(l, mine[i].id));
            mine[i].id = 0;
        } else if (what < 85 && mine[i].id) {
            assert_true(ds_live_move(l, mine[i].id, place));
            mine[i].place = place;
        } else if (what < 95 && mine[i].id) {
            assert_true(ds_live_weigh(l, mine[i].id, &w));
            mine[i].tokens = step;
        } else if (what == 98 || what == 99) {
            for (uint32_t k = 0; k < N; k++)
                if (mine[k].id && (what == 98 ? mine[k].owner == owner : mine[k].place == place)) {
                    mine[k].id = 0;
                    died++;
                }
            assert_int_equal(what == 98 ? ds_live_end_owner(l, owner) : ds_live_end_place(l, place), died);
        }
        if (step % 16)
            continue;
        assert_true(ds_live_check(l));
        for (uint32_t p = 0; p < PLACES; p++) {
            uint64_t n = 0, tokens = 0;
            for (uint32_t k = 0; k < N; k++)
                if (mine[k].id && mine[k].place == p) {
                    n++;
                    tokens += mine[k].tokens;
                }
            assert_int_equal(ds_live_at(l, p).records, n);
            assert_int_equal(ds_live_at(l, p).weight.tokens, tokens);
        }
    }
    for (uint32_t o = 0; o < OWNERS; o++)
        ds_live_end_owner(l, o);
    assert_int_equal(ds_live_all(l).records, 0);
    assert_int_equal(ds_live_all(l).weight.work_us, 0);
    assert_true(ds_live_check(l));
    ds_live_destroy(l);
}

static ds_rc attempt(void *ctx, ds_err *err)
{
    ds_live *l;
    ds_rc rc = ds_live_create(&l, &(ds_live_opts){ 4, 2, 2 }, err);

    (void)ctx;
    ds_live_destroy(l);
    return rc;
}

static void refused(void **state)
{
    ds_err err = { 0 };
    ds_live *l;

    (void)state;
    assert_refused(ds_live_create(&l, &(ds_live_opts){ 0, 1, 1 }, &err), DS_E_ARG, "live set");
    assert_null(l);
    assert_int_equal(fault_every_allocation(attempt, NULL), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(an_end_counts_once), cmocka_unit_test(full_is_said),
                                        cmocka_unit_test(nothing_stays_behind), cmocka_unit_test(refused) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
