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
                                   .left_us = (int64_t)under(17, s, 7) * 1000 - 4000,
                                   .taken_us = under(22, s, 3) * 5000 };
    }
    return n;
}

static bool idle(const ds_prefill_group *g)
{
    for (uint32_t r = 0; r < g->ranks; r++)
        if (!g->rank_us[r])
            return true;
    return false;
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
        if (any_idle) /* nobody stands behind others beside an idle engine */
            assert_true(idle(&g[p.group]));
        else
            assert_true(g[p.group].tiers >> tier & 1 && g[p.group].left_us > 0);
        for (uint32_t r = 0; r < g[p.group].ranks; r++)
            assert_true(us[p.group][r] >= us[p.group][p.rank]);
        for (uint32_t i = 0; i < n; i++)
            other[i] = g[n - 1 - i];
        q = ds_prefill_choose(other, n, tier, waiting);
        assert_int_equal(other[q.group].id, g[p.group].id);
        assert_int_equal(q.rank, p.rank);
        /* less time left, more work ahead and more taken never get a group chosen */
        for (uint32_t j = 0; j < n; j++) {
            uint64_t more[RANKS];
            if (j == p.group)
                continue;
            memcpy(other, g, sizeof g);
            for (uint32_t r = 0; r < RANKS; r++)
                more[r] = us[j][r] + under(19, seed * MOST + j, 3) * 500;
            other[j].rank_us = more;
            other[j].left_us -= (int64_t)under(20, seed * MOST + j, 3) * 1500;
            other[j].taken_us += under(23, seed * MOST + j, 3) * 2500;
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

/* ---- the three ways to place prompts, on engines that compute them in order of arrival ---- */

enum { ROUND = 1000000, ENGINES = 16, PROMPTS = 4000 };

typedef struct {
    uint64_t at_us, work_us;
    uint32_t tier;
} prompt;

typedef struct {
    uint32_t n;
    uint64_t free_us[ENGINES], did_us[ENGINES], ahead_us[ENGINES], end_us[ENGINES][PROMPTS];
    uint32_t live_from[ENGINES], live_to[ENGINES]; /* of end_us */
} site;

/* Of the prompts of the three kinds of load: short ones alone; short and middle; a few long ones too. */
static void make_prompts(prompt *p, uint32_t kind, double used, uint32_t engines)
{
    ds_cost c = { .coef = { 300.0, 20.0, 1e-4, 1e-4 } };
    uint64_t sum = 0, at = 0, span = 0;

    for (uint32_t k = 0; k < PROMPTS; k++) {
        uint64_t tokens = 100 + under(51, k, 1u << (6 + under(52, k, 8)));
        if (kind > 0 && under(53, k, 6) == 0)
            tokens = 20000 + under(54, k, 40000);
        if (kind > 1 && under(55, k, 200) == 0)
            tokens = 100000;
        p[k] = (prompt){ .work_us = ds_prefill_work_us(&c, 0, tokens, 8192), .tier = ds_prefill_tier(tokens) };
        sum += p[k].work_us;
        span += under(56, k, 1000);
    }
    for (uint32_t k = 0; k < PROMPTS; k++) {
        at += under(56, k, 1000);
        p[k].at_us = (uint64_t)((double)at / (double)span * (double)sum / (used * engines));
    }
}

static void advance(site *s, uint64_t now)
{
    for (uint32_t i = 0; i < s->n; i++) {
        s->ahead_us[i] = s->free_us[i] > now ? s->free_us[i] - now : 0;
        while (s->live_from[i] < s->live_to[i] && s->end_us[i][s->live_from[i]] <= now)
            s->live_from[i]++;
    }
}

static void put(site *s, uint32_t i, uint64_t now, uint64_t work_us)
{
    s->free_us[i] = (s->free_us[i] > now ? s->free_us[i] : now) + work_us;
    s->end_us[i][s->live_to[i]++] = s->free_us[i];
    s->did_us[i] += work_us;
    s->ahead_us[i] = s->free_us[i] - now;
}

static double slowest_over_mean(const site *s)
{
    uint64_t sum = 0, most = 0;

    for (uint32_t i = 0; i < s->n; i++) {
        sum += s->did_us[i];
        most = s->did_us[i] > most ? s->did_us[i] : most;
    }
    return (double)most * s->n / (double)sum;
}

static double by_turns(const prompt *p, uint32_t n, bool least_requests)
{
    site *s = calloc(1, sizeof *s);
    double answer;

    assert_non_null(s);
    s->n = n;
    for (uint32_t k = 0; k < PROMPTS; k++) {
        uint32_t to = k % n;
        advance(s, p[k].at_us);
        for (uint32_t i = 0; i < n && least_requests; i++)
            to = i == 0 || s->live_to[i] - s->live_from[i] < s->live_to[to] - s->live_from[to] ? i : to;
        put(s, to, p[k].at_us, p[k].work_us);
    }
    answer = slowest_over_mean(s);
    free(s);
    return answer;
}

/* As policy/prefill.h says: a queue for each tier, asked again at rounds and whenever a group falls idle. */
static double by_balancer(const prompt *p, uint32_t n)
{
    site *s = calloc(1, sizeof *s);
    ds_prefill_group g[ENGINES];
    ds_prefill_engine e[ENGINES];
    uint8_t tiers[ENGINES];
    uint64_t demand[4] = { 0 }, came[4] = { 0 }, round = ROUND;
    static uint32_t queue[4][PROMPTS];
    uint32_t head[4] = { 0 }, tail[4] = { 0 }, next = 0, placed = 0;
    double answer;

    assert_non_null(s);
    s->n = n;
    for (uint32_t i = 0; i < n; i++)
        g[i] =
            (ds_prefill_group){ .id = i, .ready = true, .tiers = DS_PREFILL_ALL, .ranks = 1, .rank_us = &s->ahead_us[i], .left_us = ROUND };
    while (placed < PROMPTS) {
        uint64_t now = next < PROMPTS && p[next].at_us < round ? p[next].at_us : round, last = now;
        for (uint32_t i = 0; i < n; i++)
            if (s->ahead_us[i] > 0 && s->free_us[i] < now)
                now = s->free_us[i];
        advance(s, now);
        for (; now == last && next < PROMPTS && p[next].at_us == now; next++) {
            queue[p[next].tier][tail[p[next].tier]++] = next;
            came[p[next].tier] += p[next].work_us;
        }
        if (now == round) {
            for (uint32_t i = 0; i < n; i++) {
                g[i].left_us = ds_prefill_refill(g[i].left_us, 1, ROUND);
                e[i] = (ds_prefill_engine){ .id = i, .tiers = g[i].tiers, .live_us = s->ahead_us[i] };
            }
            ds_prefill_demand(demand, came);
            ds_prefill_deal(e, n, demand, tiers);
            for (uint32_t i = 0; i < n; i++)
                g[i].tiers = tiers[i];
            memset(came, 0, sizeof came);
            round += ROUND;
        }
        for (uint32_t t = 0; t < 4; t++)
            while (head[t] < tail[t]) {
                uint8_t waiting = 0;
                uint64_t work_us = p[queue[t][head[t]]].work_us;
                ds_prefill_place to;
                for (uint32_t w = 0; w < 4; w++)
                    waiting |= (uint8_t)((head[w] < tail[w]) << w);
                to = ds_prefill_choose(g, n, t, waiting);
                if (to.group == DS_NONE)
                    break;
                put(s, to.group, now, work_us);
                g[to.group].left_us -= (int64_t)work_us;
                g[to.group].taken_us += work_us;
                head[t]++;
                placed++;
            }
    }
    answer = slowest_over_mean(s);
    free(s);
    return answer;
}

/* The slowest engine has at most 1.10 of the mean work, and less than under either of the plain rules. */
static void balance(void **state)
{
    static prompt p[PROMPTS];
    static const double used[] = { 0.1, 0.3, 0.6, 0.9 };

    (void)state;
    for (uint32_t kind = 0; kind < 3; kind++)
        for (uint32_t n = 4; n <= ENGINES; n *= 2)
            for (uint32_t u = 0; u < 4; u++) {
                double ours;
                make_prompts(p, kind, used[u], n);
                ours = by_balancer(p, n);
                assert_true(ours <= 1.10);
                assert_true(ours < by_turns(p, n, false));
                assert_true(ours < by_turns(p, n, true));
            }
}

/* ---- dealing ---- */

static void deal(ds_prefill_engine *e, uint32_t n, const uint64_t demand[4], uint32_t rounds, uint32_t *moved)
{
    uint8_t tiers[64];

    for (uint32_t round = 0; round < rounds; round++) {
        *moved = 0;
        ds_prefill_deal(e, n, demand, tiers);
        for (uint32_t i = 0; i < n; i++) {
            *moved += tiers[i] != e[i].tiers && e[i].tiers != 0 && e[i].tiers != DS_PREFILL_ALL;
            e[i].tiers = tiers[i];
        }
        assert_true(*moved <= DS_PREFILL_MOVES);
    }
}

static uint32_t serve(const ds_prefill_engine *e, uint32_t n, uint8_t any_of)
{
    uint32_t k = 0;

    for (uint32_t i = 0; i < n; i++)
        k += (e[i].tiers & any_of) != 0;
    return k;
}

static void dealt_by_demand(void **state)
{
    enum { N = 40 };
    ds_prefill_engine e[N], was[N];
    uint64_t demand[4] = { 600, 300, 100, 0 };
    uint32_t moved;

    (void)state;
    for (uint32_t i = 0; i < N; i++)
        e[i] = (ds_prefill_engine){ .id = i, .live_us = i % 3 };
    deal(e, N, demand, 12, &moved);
    assert_int_equal(moved, 0); /* equal rounds end all moving */
    assert_in_range(serve(e, N, 1), 23, 26);
    assert_in_range(serve(e, N, 2), 11, 14);
    assert_in_range(serve(e, N, 4), 3, 6);
    assert_int_equal(serve(e, N, 8), 1);               /* no work, and yet one */
    assert_true(serve(e, N, 8 | 4) == serve(e, N, 4)); /* that its neighbour has as well */
    /* a little more or less moves nobody */
    demand[0] = 630;
    demand[1] = 285;
    memcpy(was, e, sizeof e);
    deal(e, N, demand, 1, &moved);
    assert_memory_equal(was, e, sizeof e);
    /* a tier whose engines died has one at once */
    for (uint32_t i = 0; i < N; i++)
        if (e[i].tiers & 12)
            e[i].tiers = 1;
    deal(e, N, demand, 1, &moved);
    assert_true(serve(e, N, 4) > 0 && serve(e, N, 8) > 0);
    /* with short prompts alone every engine serves them, and with a few engines too */
    for (uint32_t n = 1; n < N; n++) {
        for (uint32_t i = 0; i < n; i++)
            e[i].tiers = 0;
        deal(e, n, (const uint64_t[]){ 5, 0, 0, 0 }, 20, &moved);
        assert_int_equal(serve(e, n, 1), n);
        assert_true(serve(e, n, 14) >= 1 && serve(e, n, 14) <= 2); /* one for those that may come */
    }
}

/* Work of every range of tiers for each engine that serves one of them, over what all have. */
static double unevenness(const ds_prefill_engine *e, uint32_t n, const uint64_t demand[4])
{
    double all = 0.0, worst = 0.0;

    for (uint32_t t = 0; t < 4; t++)
        all += (double)demand[t];
    for (uint32_t lo = 0; lo < 4 && all > 0.0; lo++)
        for (uint32_t hi = lo; hi < 4; hi++) {
            double work = 0.0;
            for (uint32_t t = lo; t <= hi; t++)
                work += (double)demand[t];
            work *= n / all / serve(e, n, (uint8_t)((2u << hi) - (1u << lo)));
            worst = work > worst ? work : worst;
        }
    return worst;
}

static void dealing_properties(void **state)
{
    enum { N = 48 };

    (void)state;
    for (uint64_t seed = 0; seed < 2000; seed++) {
        ds_prefill_engine e[N], turned[N];
        uint8_t tier[N], other[N];
        uint64_t demand[4];
        uint32_t n = (uint32_t)under(40, seed, N), moved;
        for (uint32_t t = 0; t < 4; t++)
            demand[t] = under(41, seed * 4 + t, 3) ? under(42, seed * 4 + t, 1000000) : 0;
        for (uint32_t i = 0; i < n; i++) {
            uint64_t s = seed * N + i;
            e[i] = (ds_prefill_engine){ .id = 900 - i,
                                        .tiers = (uint8_t)(under(43, s, 6) ? 1u << under(44, s, 4) : under(46, s, 20)),
                                        .live_us = under(45, s, 3) };
        }
        ds_prefill_deal(e, n, demand, tier);
        for (uint32_t i = 0; i < n; i++)
            turned[i] = e[n - 1 - i];
        ds_prefill_deal(turned, n, demand, other);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(other[n - 1 - i], tier[i]);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t lowest = tier[i] & -tier[i];
            e[i].tiers = tier[i];
            assert_true(tier[i] > 0 && tier[i] <= DS_PREFILL_ALL);
            assert_int_equal((tier[i] + lowest) & tier[i], 0); /* neighbours */
        }
        for (uint32_t t = 0; t < 4; t++)
            assert_true(n == 0 || serve(e, n, (uint8_t)(1 << t)) > 0);
        deal(e, n, demand, 20, &moved);
        memcpy(turned, e, sizeof e);
        deal(e, n, demand, 1, &moved);
        assert_memory_equal(turned, e, n * sizeof *e); /* at rest */
        assert_true(unevenness(e, n, demand) <= 10.0 / 9.0 + 1e-9);
        /* Four tiers in a row have three edges: all other engines serve one tier. */
        moved = 0;
        for (uint32_t i = 0; i < n; i++)
            moved += (e[i].tiers & (e[i].tiers - 1)) != 0;
        assert_true(moved <= 3);
    }
}

/* While little is to do the ranks of a group take turns by what they took. */
static void idle_ranks(void **state)
{
    enum { N = 3, OF = 4 };
    static const uint64_t nothing[OF];
    uint64_t taken[N][OF] = { { 0 } }, sum = 0, most = 0;
    ds_prefill_group g[N];

    (void)state;
    for (uint32_t i = 0; i < N; i++)
        g[i] = (ds_prefill_group){
            .id = i, .ready = true, .tiers = DS_PREFILL_ALL, .ranks = OF, .rank_us = nothing, .left_us = 1000, .rank_taken_us = taken[i]
        };
    for (uint64_t k = 0; k < 3000; k++) {
        uint64_t us = 1 + under(60, k, 1000);
        ds_prefill_place p = ds_prefill_choose(g, N, (uint32_t)under(61, k, 4), 0);
        g[p.group].taken_us += us;
        taken[p.group][p.rank] += us;
        sum += us;
    }
    for (uint32_t i = 0; i < N * OF; i++)
        most = taken[i / OF][i % OF] > most ? taken[i / OF][i % OF] : most;
    assert_true((double)most * N * OF <= 1.02 * (double)sum);
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
                                        cmocka_unit_test(idle_ranks),
                                        cmocka_unit_test(the_least_budget) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
