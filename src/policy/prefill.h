/* Which engine computes a prompt.
 *
 * Prompts are of four tiers by their whole context, so that short ones don't stand behind long ones. Engines are dealt
 * to tiers by the work that came in the last rounds; a tier has as much of a round's time as its engines have. What is
 * less than an engine neighbouring tiers share: an engine may serve several tiers, and a tier without work keeps none
 * for itself. Work is what the fitted cost predicts for the tokens that are not in the cache: any engine can hit any
 * prefix in the store, so that where a prefix was computed is of no importance.
 *
 * An engine is a group of ranks. A prompt goes to a group with a rank that has nothing to do, of whatever tier, to the
 * one that took the least so far: while some are idle there is nothing to keep apart. When none is, tiers count. Each
 * round a group gets the time of one round for each rank, and a prompt takes what it will cost; one that costs more
 * than is left is a debt of the rounds to come. Prompts go to the group of their tier with most left. In a group
 * they go to the rank with the least ahead, and stand there in order of arrival. Time that wasn't used isn't saved up.
 *
 *   round      a second or less: ds_prefill_refill for each group, ds_prefill_demand and ds_prefill_deal for the tiers
 *   prompt     ds_prefill_tier, ds_prefill_work_us, ds_prefill_choose; left_us of the group falls by the work, and
 *              taken_us, of group and rank, rises by it
 *   no group   the prompt waits, first come first served in its tier, and is asked for again when a round begins or a
 *              rank falls idle
 *
 * Threads: any; pure functions, no allocation. The order of rows doesn't matter; ties go to the lower id. */
#ifndef DS_POLICY_PREFILL_H
#define DS_POLICY_PREFILL_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/cost.h"

enum {
    DS_PREFILL_TIERS = 4,  /* below 16K tokens, 64K, 256K, and more */
    DS_PREFILL_MOVES = 16, /* engines that change their tier in one round, at most */
    DS_PREFILL_ALL = (1 << DS_PREFILL_TIERS) - 1,
};

/* context_tokens: the whole prompt, cached or not. */
uint32_t ds_prefill_tier(uint64_t context_tokens);

/* What `uncached` tokens behind `cached` ones cost in chunks of `chunk` (> 0), in microseconds. O(1). */
uint64_t ds_prefill_work_us(const ds_cost *c, uint64_t cached, uint64_t uncached, uint32_t chunk);

typedef struct {
    uint64_t id;                   /* differs between rows */
    bool ready;                    /* takes new work */
    uint8_t tiers;                 /* bit t: computes prompts of tier t */
    uint32_t ranks;                /* > 0 */
    const uint64_t *rank_us;       /* predicted work ahead of each */
    int64_t left_us;               /* of the round */
    uint64_t taken_us;             /* predicted work that it took so far, of all rounds */
    const uint64_t *rank_taken_us; /* the same of each rank; NULL: not known */
} ds_prefill_group;

typedef struct {
    uint32_t group; /* row; DS_NONE: it waits */
    uint32_t rank;  /* in the group */
} ds_prefill_place;

/* Where a prompt of a tier goes. `waiting` has bit t for every tier with prompts that wait. An idle group of other
 * tiers takes it too, but never one for whose own tiers prompts wait. So no engine is idle while a prompt waits, and
 * a flooded tier can't keep the engines of another for itself. O(groups + ranks). */
ds_prefill_place ds_prefill_choose(const ds_prefill_group *groups, uint32_t n, uint32_t tier, uint8_t waiting);

/* A round begins. */
static inline int64_t ds_prefill_refill(int64_t left_us, uint32_t ranks, uint64_t round_us)
{
    int64_t whole = (int64_t)(round_us * ranks);

    return left_us < 0 ? left_us + whole : whole;
}

typedef struct {
    uint64_t id;      /* differs between rows */
    uint8_t tiers;    /* as in ds_prefill_group; 0 or all: it was not dealt yet */
    uint64_t live_us; /* work ahead: who has little moves first */
} ds_prefill_engine;

/* A round is over in which so much work came: an eighth of what counts is forgotten. One round alone, with a few
 * prompts, says little about the next. */
static inline void ds_prefill_demand(uint64_t demand_us[DS_PREFILL_TIERS], const uint64_t came_us[DS_PREFILL_TIERS])
{
    for (int t = 0; t < DS_PREFILL_TIERS; t++)
        demand_us[t] += came_us[t] - demand_us[t] / 8;
}

/* Deals the engines to tiers by the work that came: tiers[i] for each row. An engine serves one tier or neighbouring
 * ones, and every tier has one. Dealt engines stay as they are while no tier, and no neighbouring ones together, have a
 * ninth more work for each engine that serves them than all have: equal rounds end all moving. O(n). */
void ds_prefill_deal(const ds_prefill_engine *engines, uint32_t n, const uint64_t demand_us[DS_PREFILL_TIERS], uint8_t *tiers);

/* The budget of a step that a group's ranks take together: the least of the ranks' own; 0: none has one. */
uint32_t ds_prefill_budget_us(const uint32_t *rank_budget_us, uint32_t ranks);

#endif
