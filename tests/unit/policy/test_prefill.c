/* Where prompts are computed: properties on random snapshots, a virtual clock, and how engines are dealt. */
#include "base/none.h"
#include "base/rng.h"
#include "policy/prefill.h"
#include "test.h"

enum { MOST = 24, RANKS = 4 };

static uint64_t under(uint64_t stream, uint64_t i, uint64_t n)
{
    return ds_rng_u64(9, stream, i) % n;
}

static void tiers(void **state)
{
    (void)state;
    assert_int_equal(ds_prefill_tier(0), 0);
    assert_int_equal(ds_prefill_tier(16383), 0);
    assert_int_equal(ds_prefill_tier(16384), 1);
    assert_int_equal(ds_prefill_tier(65536), 2);
    assert_int_equal(ds_prefill_tier(262143), 2);
    assert_int_equal(ds_prefill_tier(262144), 3);
    assert_int_equal(ds_prefill_tier(UINT64_MAX), 3);
}

/* The closed form is the sum over the chunks. */
static void work(void **state)
{
    ds_cost c = { .coef = { 300.0, 2.5, 1e-4, 2e-4 } };

    (void)state;
    assert_int_equal(ds_prefill_work_us(&c, 5000, 0, 512), 0);
    for (uint64_t i = 0; i < 300; i++) {
        uint64_t cached = under(1, i, 100000), uncached = under(2, i, 40000), at = cached;
        uint32_t chunk = 1 + (uint32_t)under(3, i, 8192);
        double sum = 0.0;
        for (uint64_t left = uncached; left > 0;) {
            uint64_t q = left < chunk ? left : chunk;
            ds_cost_work x = { 0 };
            ds_cost_add(&x, (double)q, (double)at);
            sum += ds_cost_of(&c, &x);
            at += q;
            left -= q;
        }
        assert_true(fabs((double)ds_prefill_work_us(&c, cached, uncached, chunk) - sum) <= 1.0 + 1e-9 * sum);
    }
}

static uint32_t snapshot(ds_prefill_group *g, uint64_t us[MOST][RANKS], uint64_t seed)
{
    uint32_t n = (uint32_t)under(10, seed, MOST);

    for (uint32_t i = 0; i < n; i++) {
        uint64_t s = seed * MOST + i;
        bool is_idle = under(11, s, 4) == 0;
        for (uint32_t r = 0; r < RANKS; r++)
            us[i][r] = is_idle ? 0 : under(12, s * RANKS + r, 4) * 1000;
        g[i] = (ds_prefill_group){ .id = 100 - i,
                                   .ready = under(13, s, 6) > 0,
                                   .tiers = (uint8_t)(under(14, s, 5) ? 1 << under(15, s, 4) : DS_PREFILL_ALL),
                                   .ranks = 1 + (uint32_t)under(16, s, RANKS),
                                   .rank_us = us[i],
                                   .left_us = (int64_t)under(17, s, 7) * 1000 - 4000 };
    }
    return n;
}

static bool idle(const ds_prefill_group *g)
{
    for (uint32_t r = 0; r < g->ranks; r++)
        if (g->rank_us[r])
            return false;
    return true;
}

static void properties(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 5000; seed++) {
        ds_prefill_group g[MOST], other[MOST];
        uint64_t us[MOST][RANKS];
        uint32_t n = snapshot(g, us, seed), tier = (uint32_t)under(18, seed, 4);
        uint8_t waiting = (uint8_t)under(21, seed, 16);
        ds_prefill_place p = ds_prefill_choose(g, n, tier, waiting), q;
        bool in_tier = false, any_idle = false;
        for (uint32_t i = 0; i < n; i++) {
            in_tier = in_tier || (g[i].ready && g[i].tiers >> tier & 1 && g[i].left_us > 0);
            any_idle = any_idle || (g[i].ready && idle(&g[i]) && (g[i].tiers >> tier & 1 || !(g[i].tiers & waiting)));
        }
        /* work conservation: nobody waits beside time that is left, or an engine that is idle for all its tiers */
        assert_int_equal(p.group != DS_NONE, in_tier || any_idle);
        if (p.group == DS_NONE)
            continue;
        assert_true(g[p.group].ready && p.rank < g[p.group].ranks);
        if (in_tier)
            assert_true(g[p.group].tiers >> tier & 1 && g[p.group].left_us > 0);
        for (uint32_t r = 0; r < g[p.group].ranks; r++)
            assert_true(us[p.group][r] >= us[p.group][p.rank]);
        for (uint32_t i = 0; i < n; i++)
            other[i] = g[n - 1 - i];
        q = ds_prefill_choose(other, n, tier, waiting);
        assert_int_equal(other[q.group].id, g[p.group].id);
        assert_int_equal(q.rank, p.rank);
        /* less time left, and more work ahead, never get a group chosen */
        for (uint32_t j = 0; j < n; j++) {
            uint64_t more[RANKS];
            if (j == p.group)
                continue;
            memcpy(other, g, sizeof g);
            for (uint32_t r = 0; r < RANKS; r++)
                more[r] = us[j][r] + under(19, seed * MOST + j, 3) * 500;
            other[j].rank_us = more;
            other[j].left_us -= (int64_t)under(20, seed * MOST + j, 3) * 1500;
            assert_int_not_equal(ds_prefill_choose(other, n, tier, waiting).group, j);
        }
    }
}

/* A tier that is flooded, and one prompt in each of the others: that one waits for some rounds, never for ever. */
static void nobody_starves(void **state)
{
    enum { ROUND = 10000 };
    uint64_t ahead[4] = { 0 };
    ds_prefill_group g[4];
    bool placed[4] = { 0 };

    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        g[i] = (ds_prefill_group){ .id = i, .ready = true, .tiers = (uint8_t)(1 << i), .ranks = 1, .rank_us = &ahead[i], .left_us = ROUND };
    for (uint32_t round = 0; round < 60; round++) {
        uint8_t waiting = 1;
        for (uint32_t t = 1; t < 4 && round >= 20; t++)
            waiting |= (uint8_t)(placed[t] ? 0 : 1 << t);
        for (uint32_t k = 0; k < 40; k++) { /* far more than all engines can do */
            ds_prefill_place p = ds_prefill_choose(g, 4, 0, waiting);
            if (p.group == DS_NONE)
                break;
            g[p.group].left_us -= 3 * ROUND;
            ahead[p.group] += 3 * ROUND;
        }
        for (uint32_t t = 1; t < 4 && round >= 20; t++) {
            ds_prefill_place p = placed[t] ? (ds_prefill_place){ DS_NONE, 0 } : ds_prefill_choose(g, 4, t, waiting);
            if (p.group != DS_NONE) {
                placed[t] = true;
                g[p.group].left_us -= ROUND;
                ahead[p.group] += ROUND;
            }
        }
        for (uint32_t i = 0; i < 4; i++) {
            ahead[i] -= ahead[i] < ROUND ? ahead[i] : ROUND;
            g[i].left_us = ds_prefill_refill(g[i].left_us, 1, ROUND);
            assert_true(g[i].left_us <= ROUND && g[i].left_us >= -3 * ROUND);
        }
    }
    assert_true(placed[1] && placed[2] && placed[3]);
}

/* Prompts of very different sizes on engines of one tier: what each did is within a tenth of the mean. */
static void balance(void **state)
{
    enum { ROUND = 1000000, N = 8 };
    ds_cost c = { .coef = { 300.0, 20.0, 1e-4, 1e-4 } };
    uint64_t ahead[N] = { 0 }, did[N] = { 0 }, sum = 0, most = 0;
    ds_prefill_group g[N];

    (void)state;
    for (uint32_t i = 0; i < N; i++)
        g[i] = (ds_prefill_group){ .id = i, .ready = true, .tiers = 1, .ranks = 1, .rank_us = &ahead[i], .left_us = ROUND };
    for (uint64_t round = 0; round < 200; round++)
        for (uint64_t k = 0; k < 60 && round < 200; k++) {
            uint64_t us = ds_prefill_work_us(&c, under(31, round * 60 + k, 8000), 100 + under(32, round * 60 + k, 8000), 2048);
            ds_prefill_place p = ds_prefill_choose(g, N, 0, 1);
            if (p.group != DS_NONE) {
                g[p.group].left_us -= (int64_t)us;
                ahead[p.group] += us;
                did[p.group] += us;
            }
            for (uint32_t i = 0; i < N && k == 59; i++) {
                ahead[i] -= ahead[i] < ROUND ? ahead[i] : ROUND;
                g[i].left_us = ds_prefill_refill(g[i].left_us, 1, ROUND);
            }
        }
    for (uint32_t i = 0; i < N; i++) {
        sum += did[i];
        most = did[i] > most ? did[i] : most;
    }
    assert_true((double)most * N <= 1.10 * (double)sum);
}

static void counts(const uint8_t *tier, uint32_t n, uint32_t have[5])
{
    memset(have, 0, 5 * sizeof *have);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t t = 0; t < 5; t++)
            have[t] += t < 4 ? tier[i] == 1 << t : tier[i] == DS_PREFILL_ALL;
}

static void dealt_by_demand(void **state)
{
    enum { N = 40 };
    ds_prefill_engine e[N];
    uint8_t tier[N];
    uint64_t demand[4] = { 600, 300, 100, 0 };
    uint32_t have[5], moved;

    (void)state;
    for (uint32_t i = 0; i < N; i++)
        e[i] = (ds_prefill_engine){ .id = i, .live_us = i % 3 };
    for (int round = 0; round < 12; round++) {
        ds_prefill_deal(e, N, demand, tier);
        moved = 0;
        for (uint32_t i = 0; i < N; i++) {
            moved += tier[i] != e[i].tiers && e[i].tiers != 0;
            e[i].tiers = tier[i];
        }
        assert_true(moved <= DS_PREFILL_MOVES || round == 0);
    }
    assert_int_equal(moved, 0); /* equal rounds end all moving */
    counts(tier, N, have);
    assert_int_equal(have[4], 0);
    assert_in_range(have[0], 21, 25);
    assert_in_range(have[1], 10, 13);
    assert_in_range(have[2], 3, 5);
    assert_int_equal(have[3], 1); /* no work, and yet one */
    /* a little more or less moves nobody */
    demand[0] = 630;
    demand[1] = 285;
    ds_prefill_deal(e, N, demand, tier);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(tier[i], e[i].tiers);
    /* a tier whose only engine died has one at once */
    for (uint32_t i = 0; i < N; i++)
        if (e[i].tiers == 8)
            e[i].tiers = 1;
    ds_prefill_deal(e, N, demand, tier);
    counts(tier, N, have);
    assert_int_equal(have[3], 1);
}

static void dealing_properties(void **state)
{
    enum { N = 48 };

    (void)state;
    for (uint64_t seed = 0; seed < 2000; seed++) {
        ds_prefill_engine e[N], turned[N];
        uint8_t tier[N], other[N];
        uint64_t demand[4];
        uint32_t n = (uint32_t)under(40, seed, N), have[5];
        for (uint32_t t = 0; t < 4; t++)
            demand[t] = under(41, seed * 4 + t, 3) ? under(42, seed * 4 + t, 1000000) : 0;
        for (uint32_t i = 0; i < n; i++) {
            uint64_t s = seed * N + i;
            e[i] = (ds_prefill_engine){ .id = 900 - i,
                                        .tiers = (uint8_t)(under(43, s, 6) ? 1 << under(44, s, 4) : 0),
                                        .live_us = under(45, s, 3) };
        }
        ds_prefill_deal(e, n, demand, tier);
        counts(tier, n, have);
        for (uint32_t t = 0; t < 4; t++)
            assert_true(n == 0 || have[t] > 0 || have[4] > 0);
        assert_int_equal(have[0] + have[1] + have[2] + have[3] + have[4], n);
        if (n < 4)
            assert_int_equal(have[4], n);
        for (uint32_t i = 0; i < n; i++)
            turned[i] = e[n - 1 - i];
        ds_prefill_deal(turned, n, demand, other);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(other[n - 1 - i], tier[i]);
        for (int round = 0; round < 8; round++) {
            for (uint32_t i = 0; i < n; i++)
                e[i].tiers = tier[i];
            ds_prefill_deal(e, n, demand, tier);
        }
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(tier[i], e[i].tiers); /* at rest */
    }
}

static void the_least_budget(void **state)
{
    (void)state;
    assert_int_equal(ds_prefill_budget_us((const uint32_t[]){ 0, 0 }, 2), 0);
    assert_int_equal(ds_prefill_budget_us((const uint32_t[]){ 0, 900, 300, 500 }, 4), 300);
    assert_int_equal(ds_prefill_budget_us(NULL, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(tiers),
                                        cmocka_unit_test(work),
                                        cmocka_unit_test(properties),
                                        cmocka_unit_test(nobody_starves),
                                        cmocka_unit_test(balance),
                                        cmocka_unit_test(dealt_by_demand),
                                        cmocka_unit_test(dealing_properties),
                                        cmocka_unit_test(the_least_budget) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
