#include "policy/prefill.h"

#include <assert.h>
#include <math.h>

#include "base/none.h"

/* What the worst tier has to gain before an engine moves to it. */
static const double gain = 0.9;

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

static uint32_t least_loaded(const ds_prefill_group *g)
{
    uint32_t best = 0;

    for (uint32_t r = 1; r < g->ranks; r++)
        if (g->rank_us[r] < g->rank_us[best])
            best = r;
    return best;
}

static bool idle(const ds_prefill_group *g)
{
    for (uint32_t r = 0; r < g->ranks; r++)
        if (g->rank_us[r] > 0)
            return false;
    return true;
}

/* How far a group's tiers are from one, with those for shorter prompts before those for longer ones. */
static uint32_t distance(uint8_t tiers, uint32_t tier)
{
    for (uint32_t d = 0; d <= tier; d++)
        if (tiers >> (tier - d) & 1)
            return d;
    for (uint32_t t = tier + 1; t < DS_PREFILL_TIERS; t++)
        if (tiers >> t & 1)
            return t; /* at least tier + 1: farther than any shorter one */
    return DS_PREFILL_TIERS;
}

/* Of the time left for each rank. */
static bool more_left(const ds_prefill_group *a, const ds_prefill_group *b)
{
    double la = (double)a->left_us / a->ranks, lb = (double)b->left_us / b->ranks;

    return la > lb || (la == lb && a->id < b->id);
}

ds_prefill_place ds_prefill_choose(const ds_prefill_group *groups, uint32_t n, uint32_t tier, uint8_t waiting)
{
    uint32_t best = DS_NONE, nearest = DS_PREFILL_TIERS + 1;

    assert(tier < DS_PREFILL_TIERS);
    for (uint32_t i = 0; i < n; i++)
        if (groups[i].ready && groups[i].tiers >> tier & 1 && groups[i].left_us > 0 &&
            (best == DS_NONE || more_left(&groups[i], &groups[best])))
            best = i;
    if (best != DS_NONE)
        return (ds_prefill_place){ best, least_loaded(&groups[best]) };
    for (uint32_t i = 0; i < n; i++) {
        uint32_t d = distance(groups[i].tiers, tier);
        if (!groups[i].ready || d > nearest || (d > 0 && groups[i].tiers & waiting) || !idle(&groups[i]))
            continue;
        if (d < nearest || more_left(&groups[i], &groups[best])) {
            best = i;
            nearest = d;
        }
    }
    return (ds_prefill_place){ best, 0 };
}

/* ---- dealing ---- */

enum { UNDEALT = DS_PREFILL_TIERS, LISTS };

static uint32_t list_of(const ds_prefill_engine *e)
{
    for (uint32_t t = 0; t < DS_PREFILL_TIERS; t++)
        if (e->tiers == 1 << t)
            return t;
    return UNDEALT;
}

/* The tier with most work for each engine; one that has none comes first. */
static uint32_t worst_off(const uint64_t demand[DS_PREFILL_TIERS], const uint32_t have[LISTS])
{
    uint32_t w = 0;

    for (uint32_t t = 0; t < DS_PREFILL_TIERS; t++) {
        if (have[t] == 0)
            return t;
        if ((double)demand[t] * have[w] > (double)demand[w] * have[t])
            w = t;
    }
    return w;
}

/* Who gives an engine to `to`: the undealt ones, else the tier that is best off without it. LISTS: nobody can. */
static uint32_t giver(const uint64_t demand[DS_PREFILL_TIERS], const uint32_t have[LISTS], const uint32_t can[LISTS], uint32_t to)
{
    uint32_t from = LISTS;
    double least = 0.0;

    if (can[UNDEALT] > 0)
        return UNDEALT;
    for (uint32_t t = 0; t < DS_PREFILL_TIERS; t++) {
        if (t == to || have[t] < 2 || can[t] == 0)
            continue;
        double after = (double)demand[t] / (have[t] - 1);
        if (from == LISTS || after < least) {
            from = t;
            least = after;
        }
    }
    if (from == LISTS || have[to] == 0)
        return from;
    return least < gain * (double)demand[to] / have[to] ? from : LISTS;
}

static bool before(const ds_prefill_engine *a, const ds_prefill_engine *b)
{
    return a->live_us < b->live_us || (a->live_us == b->live_us && a->id < b->id);
}

void ds_prefill_deal(const ds_prefill_engine *engines, uint32_t n, const uint64_t demand_us[DS_PREFILL_TIERS], uint8_t *tiers)
{
    uint32_t rows[LISTS][DS_PREFILL_MOVES]; /* of each list the ones with the least ahead, in order */
    uint32_t can[LISTS] = { 0 }, have[LISTS] = { 0 }, given[LISTS] = { 0 };

    for (uint32_t i = 0; i < n; i++) {
        uint32_t list = list_of(&engines[i]), *row = rows[list], at;
        tiers[i] = n < DS_PREFILL_TIERS || list == UNDEALT ? DS_PREFILL_ALL : engines[i].tiers;
        have[list]++;
        if (can[list] == DS_PREFILL_MOVES && !before(&engines[i], &engines[row[DS_PREFILL_MOVES - 1]]))
            continue;
        for (at = can[list] < DS_PREFILL_MOVES ? can[list]++ : DS_PREFILL_MOVES - 1; at > 0 && before(&engines[i], &engines[row[at - 1]]);
             at--)
            row[at] = row[at - 1];
        row[at] = i;
    }
    for (uint32_t move = 0; move < DS_PREFILL_MOVES && n >= DS_PREFILL_TIERS; move++) {
        uint32_t to = worst_off(demand_us, have), from = giver(demand_us, have, can, to);
        if (from == LISTS)
            return;
        tiers[rows[from][given[from]++]] = (uint8_t)(1 << to);
        can[from]--;
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
