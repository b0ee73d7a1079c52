/* Placements of experts, for random shapes and loads: always valid, the same again, never worse than what they start
 * from, and near it where they have to be. */
#include "base/mem.h"
#include "base/rng.h"
#include "parallel/balance.h"
#include "test.h"

typedef struct {
    uint64_t seed, n;
} numbers;

static uint32_t below(numbers *g, uint32_t n)
{
    return (uint32_t)(ds_rng_u64(g->seed, 1, g->n++) % n);
}

static double normal(numbers *g)
{
    return ds_rng_normal(g->seed, 2, g->n++);
}

typedef struct {
    ds_balance_shape s;
    float *load;
    uint16_t *place;
    size_t n; /* slots in all */
    void *scratch;
} fixture;

/* The shape is a good one. Loads: a few heavy experts, some without any, all of them moving between records. */
static bool make(fixture *f, numbers *g)
{
    uint32_t ranks = 1 + below(g, 12), nodes = below(g, 3) == 0 ? 2 : 1, per = 1 + below(g, 9);

    f->s = (ds_balance_shape){
        .ranks = ranks * nodes, .nodes = nodes, .groups = nodes * (1 + below(g, 4)), .records = 1 + below(g, DS_BALANCE_RECORDS)
    };
    f->s.experts = f->s.groups * per;
    f->s.slots = (f->s.experts + f->s.ranks - 1) / f->s.ranks + below(g, 4);
    if (ds_balance_bad_shape(&f->s))
        return false;
    f->n = (size_t)f->s.ranks * f->s.slots;
    f->load = calloc((size_t)f->s.records * f->s.experts, sizeof *f->load);
    f->place = calloc(f->n, sizeof *f->place);
    f->scratch = ds_calloc_aligned(1, ds_balance_scratch_bytes(&f->s));
    assert_non_null(f->scratch);
    for (uint32_t e = 0; e < f->s.experts; e++) {
        double popular = below(g, 8) ? exp(1.3 * normal(g)) : 0.0;
        for (uint32_t b = 0; b < f->s.records; b++)
            f->load[b * f->s.experts + e] = (float)(100.0 * popular * exp(0.3 * normal(g)));
    }
    return true;
}

static void drop(fixture *f)
{
    free(f->load);
    free(f->place);
    free(f->scratch);
}

static double cost(const fixture *f, const uint16_t *place)
{
    double mean, c = ds_balance_cost(&f->s, f->load, place, &mean, f->scratch);

    assert_true(c >= mean * 0.9999);
    return c;
}

static void check(const fixture *f, const uint16_t *place, const char *what)
{
    const char *wrong = ds_balance_bad_place(&f->s, place, f->scratch);

    if (wrong)
        fail_msg("%s, %u experts on %u ranks with %u slots in %u nodes: %s", what, f->s.experts, f->s.ranks, f->s.slots, f->s.nodes, wrong);
}

/* Slots whose expert their rank didn't have. */
static uint32_t moved(const fixture *f, const uint16_t *from, const uint16_t *to)
{
    uint32_t n = 0;

    for (uint32_t r = 0; r < f->s.ranks; r++)
        for (uint32_t i = 0; i < f->s.slots; i++) {
            bool had = false;
            for (uint32_t j = 0; j < f->s.slots; j++)
                had = had || from[r * f->s.slots + j] == to[r * f->s.slots + i];
            n += !had;
        }
    return n;
}

static void plans_are_valid_and_no_worse(void **state)
{
    uint32_t made = 0, better = 0;
    (void)state;

    for (uint64_t seed = 1; seed < 600; seed++) {
        numbers g = { seed, 0 };
        fixture f;
        double greedy, ours;
        uint16_t *again;
        if (!make(&f, &g))
            continue;
        made++;
        ds_balance_greedy(&f.s, f.load, f.place, f.scratch);
        check(&f, f.place, "greedy");
        greedy = cost(&f, f.place);
        ds_balance_plan(&f.s, f.load, f.place, f.scratch);
        check(&f, f.place, "plan");
        ours = cost(&f, f.place);
        assert_true(ours <= greedy * 1.00001);
        better += ours < greedy * 0.999;
        again = calloc(f.n, sizeof *again);
        memset(f.scratch, 0xa5, ds_balance_scratch_bytes(&f.s));
        ds_balance_plan(&f.s, f.load, again, f.scratch);
        assert_memory_equal(again, f.place, f.n * sizeof *again);
        free(again);
        drop(&f);
    }
    assert_true(made > 250 && better > 50);
}

static void moves_are_few_and_help(void **state)
{
    uint32_t helped = 0;
    (void)state;

    for (uint64_t seed = 1; seed < 600; seed++) {
        numbers g = { seed, 0 };
        fixture f;
        uint16_t *before;
        if (!make(&f, &g))
            continue;
        ds_balance_plan(&f.s, f.load, f.place, f.scratch);
        before = calloc(f.n, sizeof *before);
        for (uint32_t round = 0; round < 4; round++) {
            uint32_t most = (uint32_t)(f.n / (round == 3 ? 3 : 10)), said;
            double was;
            for (uint32_t e = 0; e < f.s.experts; e++) /* time goes on */
                for (uint32_t b = 0; b < f.s.records; b++)
                    f.load[b * f.s.experts + e] *= (float)exp(0.5 * normal(&g));
            memcpy(before, f.place, f.n * sizeof *before);
            was = cost(&f, f.place);
            said = ds_balance_move(&f.s, f.load, f.place, most, f.scratch);
            check(&f, f.place, "move");
            assert_true(said <= most && moved(&f, before, f.place) <= said);
            assert_true(cost(&f, f.place) <= was * 1.00001);
            helped += cost(&f, f.place) < was * 0.99;
        }
        free(before);
        drop(&f);
    }
    assert_true(helped > 100);
}

/* What can be checked by hand: two heavy experts don't share a rank, and the only spare slot goes to the heaviest. */
static void small_ones(void **state)
{
    const ds_balance_shape s = { .experts = 4, .ranks = 2, .slots = 2, .records = 1 },
                           spare = { .experts = 3, .ranks = 2, .slots = 2, .records = 1 };
    const float load[] = { 10, 10, 1, 1 }, heavy[] = { 1, 8, 1 };
    uint16_t place[4];
    void *scratch = ds_calloc_aligned(1, ds_balance_scratch_bytes(&s));
    (void)state;

    ds_balance_plan(&s, load, place, scratch);
    assert_true(ds_balance_cost(&s, load, place, NULL, scratch) == 11.0);
    ds_balance_plan(&spare, heavy, place, scratch);
    assert_true(ds_balance_cost(&spare, heavy, place, NULL, scratch) == 5.0);
    place[0] = place[1];
    assert_string_equal(ds_balance_bad_place(&spare, place, scratch), "a rank has two copies of an expert");
    free(scratch);
}

static void bad_shapes(void **state)
{
    static const ds_balance_shape bad[] = {
        { .experts = 0, .ranks = 1, .slots = 1, .records = 1 },
        { .experts = 8, .ranks = 4, .slots = 1, .records = 1 },
        { .experts = 8, .ranks = 2, .slots = 9, .records = 1 },
        { .experts = 8, .ranks = 2, .slots = 4, .records = 9 },
        { .experts = 8, .ranks = 3, .slots = 4, .records = 1, .nodes = 2 },
        { .experts = 8, .ranks = 2, .slots = 4, .records = 0 },
        { .experts = 9, .ranks = 2, .slots = 5, .records = 1, .nodes = 2, .groups = 2 },
        { .experts = 8, .ranks = 4, .slots = 5, .records = 1, .nodes = 2, .groups = 2 },
    };
    (void)state;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_non_null(ds_balance_bad_shape(&bad[i]));
    assert_null(ds_balance_bad_shape(&(ds_balance_shape){ .experts = 384, .ranks = 64, .slots = 7, .records = 8 }));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_are_valid_and_no_worse),
        cmocka_unit_test(moves_are_few_and_help),
        cmocka_unit_test(small_ones),
        cmocka_unit_test(bad_shapes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
