#include "policy/prefill.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/none.h"

uint32_t ds_prefill_tier(uint64_t context_tokens)
{
    static const uint64_t ends[DS_PREFILL_TIERS - 1] = { 16 << 10, 64 << 10, 256 << 10 };
    uint32_t t = 0;

    while (t < DS_PREFILL_TIERS - 1 && context_tokens >= ends[t])
        t++;
    return t;
}

/* k whole chunks and a rest. Every token sees the cached ones, and those of the chunks before its own: over all chunks
 * the latter are half of u^2 without the squares of the chunks, which cost by themselves. */
uint64_t ds_prefill_work_us(const ds_cost *c, uint64_t cached, uint64_t uncached, uint32_t chunk)
{
    double u = (double)uncached, k = (double)(uncached / chunk), rest = (double)(uncached % chunk);
    double squares = k * chunk * chunk + rest * rest;
    double us = c->coef[0] * (k + (rest > 0.0)) + c->coef[1] * u + c->coef[2] * (u * (double)cached + (u * u - squares) / 2.0) +
                c->coef[3] * squares;

    return us < 0x1p62 ? (uint64_t)ceil(us) : UINT64_C(1) << 62;
}

/* The rank with the least ahead; of those the one that took the least so far. */
static uint32_t least_loaded(const ds_prefill_group *g)
{
    uint32_t best = 0;

    for (uint32_t r = 1; r < g->ranks; r++)
        if (g->rank_us[r] < g->rank_us[best] ||
            (g->rank_us[r] == g->rank_us[best] && g->rank_taken_us && g->rank_taken_us[r] < g->rank_taken_us[best]))
            best = r;
    return best;
}

/* One of its ranks is. */
static bool idle(const ds_prefill_group *g)
{
    for (uint32_t r = 0; r < g->ranks; r++)
        if (g->rank_us[r] == 0)
            return true;
    return false;
}

static bool took_less(const ds_prefill_group *a, const ds_prefill_group *b)
{
    double ta = (double)a->taken_us / a->ranks, tb = (double)b->taken_us / b->ranks;

    return ta < tb || (ta == tb && a->id < b->id);
}

/* a is to take work rather than b: it has more time left for each rank, or as much and took less so far. */
static bool rather(const ds_prefill_group *a, const ds_prefill_group *b)
{
    double la = (double)a->left_us / a->ranks, lb = (double)b->left_us / b->ranks;

    return la > lb || (la == lb && took_less(a, b));
}

ds_prefill_place ds_prefill_choose(const ds_prefill_group *groups, uint32_t n, uint32_t tier, uint8_t waiting)
{
    uint32_t best = DS_NONE, best_idle = DS_NONE;

    assert(tier < DS_PREFILL_TIERS);
    for (uint32_t i = 0; i < n; i++) {
        bool own = groups[i].tiers >> tier & 1;
        if (!groups[i].ready)
            continue;
        if ((own || !(groups[i].tiers & waiting)) && (best_idle == DS_NONE || took_less(&groups[i], &groups[best_idle])) &&
            idle(&groups[i]))
            best_idle = i;
        if (own && groups[i].left_us > 0 && (best == DS_NONE || rather(&groups[i], &groups[best])))
            best = i;
    }
    if (best_idle != DS_NONE)
        best = best_idle;
    return (ds_prefill_place){ best, best == DS_NONE ? 0 : least_loaded(&groups[best]) };
}

/* ---- dealing ----
 *
 * Engines stand in a row, those for the shortest prompts first. Tier t has the engines from edge[t] to edge[t + 1],
 * both with it: the engine at an edge serves the tiers on both sides of it. So neighbours share what is less than an
 * engine, and a tier without work costs the others none. */

enum {
    SPANS = 10,                                           /* of neighbouring tiers, lo <= hi, in this order */
    ALL = 3,                                              /* the span of all tiers: also of engines that were not dealt */
    UNDEALT = SPANS,                                      /* what is no span */
    LISTS,                                                /* of engines, by the tiers that they have */
    STEP = DS_PREFILL_MOVES / (DS_PREFILL_TIERS - 1) - 1, /* what an edge moves in a round; it touches one engine more */
};

static const struct {
    uint8_t lo, hi;
} span[SPANS] = { { 0, 0 }, { 0, 1 }, { 0, 2 }, { 0, 3 }, { 1, 1 }, { 1, 2 }, { 1, 3 }, { 2, 2 }, { 2, 3 }, { 3, 3 } };

/* What neighbouring tiers may have of work for each engine that serves one of them, over what all have together. */
static const double most_uneven = 10.0 / 9.0;

typedef struct {
    uint32_t edge[DS_PREFILL_TIERS + 1]; /* rising; 0 first, n - 1 last */
} layout;

static uint8_t tiers_of(uint32_t list)
{
    return list == UNDEALT ? DS_PREFILL_ALL : (uint8_t)((2u << span[list].hi) - (1u << span[list].lo));
}

static uint32_t list_of(uint8_t tiers)
{
    uint32_t list = 0;

    while (list < UNDEALT && tiers != tiers_of(list))
        list++;
    return list;
}

static uint32_t span_of(uint32_t lo, uint32_t hi)
{
    static const uint32_t first[DS_PREFILL_TIERS] = { 0, 4, 7, 9 };

    return first[lo] + hi - lo;
}

/* How many engines have each span in a layout of n. */
static void count(const layout *l, uint32_t n, uint32_t want[LISTS])
{
    memset(want, 0, LISTS * sizeof *want);
    want[span_of(0, 0)] = l->edge[1];
    want[span_of(3, 3)] = n - 1 - l->edge[3];
    for (uint32_t t = 1; t < DS_PREFILL_TIERS - 1; t++)
        want[span_of(t, t)] = l->edge[t + 1] > l->edge[t] ? l->edge[t + 1] - l->edge[t] - 1 : 0;
    for (uint32_t lo = 0, hi; lo < DS_PREFILL_TIERS - 1; lo = hi) {
        for (hi = lo + 1; hi < DS_PREFILL_TIERS - 1 && l->edge[hi + 1] == l->edge[lo + 1];)
            hi++;
        want[span_of(lo, hi)]++;
    }
}

/* As it is: who isn't dealt stands at the end of the row. */
static layout layout_now(const uint32_t have[LISTS], uint32_t n)
{
    layout l = { { 0 } };

    for (uint32_t t = 1; t < DS_PREFILL_TIERS; t++) {
        for (uint32_t s = 0; s < SPANS; s++)
            l.edge[t] += span[s].hi < t ? have[s] : 0;
        l.edge[t] = l.edge[t] < n ? l.edge[t] : n - 1;
    }
    l.edge[DS_PREFILL_TIERS] = n - 1;
    return l;
}

/* shares[t]: the engines that the work of tier t is worth. */
static layout layout_fit(const double shares[DS_PREFILL_TIERS], uint32_t n)
{
    layout l = { { 0 } };
    double sum = 0.0;

    for (uint32_t t = 1; t < DS_PREFILL_TIERS; t++) {
        sum += shares[t - 1];
        l.edge[t] = sum < n ? (uint32_t)sum : n - 1;
    }
    l.edge[DS_PREFILL_TIERS] = n - 1;
    return l;
}

static bool even(const double shares[DS_PREFILL_TIERS], const uint32_t have[LISTS])
{
    for (uint32_t range = 0; range < SPANS; range++) {
        uint32_t engines = have[UNDEALT];
        double work = 0.0;
        for (uint32_t s = 0; s < SPANS; s++)
            engines += span[s].lo <= span[range].hi && span[s].hi >= span[range].lo ? have[s] : 0;
        for (uint32_t t = span[range].lo; t <= span[range].hi; t++)
            work += shares[t];
        if (engines == 0 || work > most_uneven * engines)
            return false;
    }
    return true;
}

/* How many engines each list is to have. */
static void plan(const uint32_t have[LISTS], uint32_t n, const uint64_t demand_us[DS_PREFILL_TIERS], uint32_t want[LISTS])
{
    double all = 0.0, shares[DS_PREFILL_TIERS];
    layout now = layout_now(have, n), fit;
    uint32_t fresh = have[ALL] + have[UNDEALT];

    for (uint32_t t = 0; t < DS_PREFILL_TIERS; t++)
        all += (double)demand_us[t];
    for (uint32_t t = 0; t < DS_PREFILL_TIERS; t++)
        shares[t] = all > 0.0 ? (double)demand_us[t] / all * n : (double)n / DS_PREFILL_TIERS;
    count(&now, n, want);
    if (memcmp(want, have, LISTS * sizeof *want) == 0 && (all <= 0.0 || even(shares, have)))
        return;
    fit = layout_fit(shares, n);
    for (uint32_t t = 1; t < DS_PREFILL_TIERS; t++) {
        uint32_t least = now.edge[t] > STEP ? now.edge[t] - STEP : 0, most = now.edge[t] + fresh + STEP;
        fit.edge[t] = fit.edge[t] < least ? least : fit.edge[t] > most ? most : fit.edge[t];
    }
    count(&fit, n, want);
}

static bool before(const ds_prefill_engine *a, const ds_prefill_engine *b)
{
    return a->live_us < b->live_us || (a->live_us == b->live_us && a->id < b->id);
}

void ds_prefill_deal(const ds_prefill_engine *engines, uint32_t n, const uint64_t demand_us[DS_PREFILL_TIERS], uint8_t *tiers)
{
    uint32_t rows[LISTS][DS_PREFILL_MOVES]; /* of each list the ones with the least ahead, in order */
    uint32_t can[LISTS] = { 0 }, have[LISTS] = { 0 }, given[LISTS] = { 0 }, want[LISTS], from = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t list = list_of(engines[i].tiers), *row = rows[list], at;
        tiers[i] = tiers_of(list);
        have[list]++;
        if (can[list] == DS_PREFILL_MOVES && !before(&engines[i], &engines[row[DS_PREFILL_MOVES - 1]]))
            continue;
        for (at = can[list] < DS_PREFILL_MOVES ? can[list]++ : DS_PREFILL_MOVES - 1; at > 0 && before(&engines[i], &engines[row[at - 1]]);
             at--)
            row[at] = row[at - 1];
        row[at] = i;
    }
    if (n == 0)
        return;
    plan(have, n, demand_us, want);
    /* Edges first: with them every tier has an engine, however few may move. */
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t to = 0; to < SPANS; to++)
            while ((span[to].lo < span[to].hi) == (pass == 0) && have[to] < want[to]) {
                while (from < LISTS && (have[from] <= want[from] || given[from] == can[from]))
                    from++;
                if (from == LISTS)
                    return;
                tiers[rows[from][given[from]++]] = tiers_of(to);
                have[from]--;
                have[to]++;
            }
}

uint32_t ds_prefill_budget_us(const uint32_t *rank_budget_us, uint32_t ranks)
{
    uint32_t least = 0;

    for (uint32_t r = 0; r < ranks; r++)
        if (rank_budget_us[r] > 0 && (least == 0 || rank_budget_us[r] < least))
            least = rank_budget_us[r];
    return least;
}
