/* How many drafts to verify: from the measured cost of a step, the measured cost of drafting and how often drafts at each place were kept.
 *
 * With k drafts a step gives 1 + p_1 + p_1 p_2 + … + (p_1 … p_k) tokens a sequence, p_i = the share of drafts at place i that were kept
 * among those reached. The controller takes the k with most tokens a microsecond, 0 if drafting doesn't pay. Now and then it tries
 * another k, so that neither cost nor shares grow stale: every 64 steps, and ever more seldom while the answer is 0. Threads: one owner. */
#ifndef DS_ENGINE_SPEC_H
#define DS_ENGINE_SPEC_H

#include <ds/engine.h>

#include "engine/cost.h"

typedef struct {
    uint32_t max;                                               /* drafts that the model makes; 0: none */
    bool fixed;                                                 /* always `max` */
    double kept[DS_GEN_MAX_DRAFTS], reached[DS_GEN_MAX_DRAFTS]; /* decayed counts */
    double draft_us, draft_seqs;                                /* decayed: time of drafting, sequences drafted for */
    ds_cost decode;                                             /* of steps without prompt rows */
    uint64_t steps, probes;
    uint32_t probe_every, since_probe; /* steps */
    uint32_t asked;                    /* the last answer of choose */
} ds_spec;

void ds_spec_init(ds_spec *s, uint32_t model_drafts, int option);
/* Drafts for each of n sequences whose contexts sum to `context`; all together at most `rows`. */
uint32_t ds_spec_choose(ds_spec *s, uint32_t n, double context, uint32_t rows);
void ds_spec_learn_row(ds_spec *s, uint32_t drafted, uint32_t kept);
void ds_spec_learn_step(ds_spec *s, const ds_cost_load *x, double run_us, double draft_us, uint32_t drafted_seqs);

#endif
