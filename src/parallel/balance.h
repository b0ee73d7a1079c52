/* Where experts stand: which rank has copies of which, so that the slowest rank of each step has little to do.
 *
 * A step takes as long as its slowest rank, so what counts is the sum over recorded pieces of time of the largest load
 * of a rank; an expert with c copies puts 1/c of its load on each. A placement has at least one copy of each expert,
 * and never two on a rank. With several nodes, the experts of a group stay within one node, where routing that is
 * limited to groups needs no other.
 *
 *   ds_balance_plan    a placement from nothing: copies for the heaviest, packing, then exchanges that help
 *   ds_balance_move    a better one, few slots away from the one there is
 *   ds_balance_greedy  the published algorithm, for comparison: copies and packing by the loads' sums alone
 *
 * Pure functions: equal input, equal output, on any machine of one rounding.   Memory: the caller's. */
#ifndef DS_PARALLEL_BALANCE_H
#define DS_PARALLEL_BALANCE_H

#include <stddef.h>
#include <stdint.h>

enum { DS_BALANCE_RECORDS = 8, DS_BALANCE_MAX_EXPERTS = 1024, DS_BALANCE_MAX_RANKS = 128, DS_BALANCE_MAX_SLOTS = 1024 };

typedef struct {
    uint32_t experts, ranks;
    uint32_t slots;   /* of a rank; all are filled: experts <= ranks * slots, slots <= experts of a node */
    uint32_t nodes;   /* 0 = 1. Ranks of a node stand together */
    uint32_t groups;  /* of experts, which stand together; with more than one node, a multiple of it. 0 = nodes */
    uint32_t records; /* pieces of time with a histogram each, 1 .. DS_BALANCE_RECORDS */
} ds_balance_shape;

/* NULL, or what is wrong with it. */
const char *ds_balance_bad_shape(const ds_balance_shape *s);
size_t ds_balance_scratch_bytes(const ds_balance_shape *s);

/* load: [records][experts] rows of each expert, >= 0.   place: [ranks][slots] experts.   scratch: 64-byte aligned. */
void ds_balance_plan(const ds_balance_shape *s, const float *load, uint16_t *place, void *scratch);
void ds_balance_greedy(const ds_balance_shape *s, const float *load, uint16_t *place, void *scratch);
/* place: from the one there is to the next; at most max_moves slots get an expert that their rank didn't have. Returns
 * how many do. Never worse than it was. */
uint32_t ds_balance_move(const ds_balance_shape *s, const float *load, uint16_t *place, uint32_t max_moves, void *scratch);

/* The sum over records of the largest load of a rank, and (mean, may be NULL) of the mean one. */
double ds_balance_cost(const ds_balance_shape *s, const float *load, const uint16_t *place, double *mean, void *scratch);
/* NULL, or what is wrong with a placement. */
const char *ds_balance_bad_place(const ds_balance_shape *s, const uint16_t *place, void *scratch);

#endif
