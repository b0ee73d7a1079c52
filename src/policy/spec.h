/* How many drafts to verify: from the measured cost of a step, the measured cost of drafting and how often drafts at
 * each place were kept.
 *
 * With k drafts a step gives 1 + p_1 + p_1 p_2 + … + (p_1 … p_k) tokens a sequence, p_i = the share of drafts at
 * place i that were kept among those reached. The controller takes the k with most tokens a microsecond, 0 if
 * drafting doesn't pay. Now and then it tries another k, so that neither cost nor shares grow stale: every 64 steps,
 * and ever more seldom while the answer is 0. It counts steps and looks at no clock: what it answers depends on what
 * it was told alone.
 *
 *   choose      before a step is planned
 *   learn_row   after it, for each sequence that decoded
 *   learn_step  after it, when it had no prompt rows
 *
 * Threads: one owner.   Memory: the caller's. Every call is O(DS_SPEC_MAX). */
#ifndef DS_POLICY_SPEC_H
#define DS_POLICY_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "policy/cost.h"

enum { DS_SPEC_MAX = 15 }; /* drafts of a sequence in a step */

typedef struct {
    uint32_t max;                                   /* drafts that the model makes; 0: none */
    bool fixed;                                     /* always `max` */
    double kept[DS_SPEC_MAX], reached[DS_SPEC_MAX]; /* decayed counts */
    double draft_us, draft_seqs;                    /* decayed: time of drafting, sequences drafted for */
    ds_cost decode;                                 /* of steps without prompt rows */
    uint64_t steps, probes;
    uint32_t probe_every, since_probe; /* steps */
    uint32_t asked;                    /* the last answer of choose */
} ds_spec;

/* model_drafts: that the model makes in one go, more than DS_SPEC_MAX count as so many. option: 0 = never, N =
 * always N, below 0 = while it pays. */
void ds_spec_init(ds_spec *s, uint32_t model_drafts, int option);
/* Drafts for each of n sequences whose contexts sum to `context`; all together at most `rows`. Also in `asked`. */
uint32_t ds_spec_choose(ds_spec *s, uint32_t n, double context, uint32_t rows);
/* A sequence's row was verified with `drafted` drafts behind it, of which the first `kept` were kept. */
void ds_spec_learn_row(ds_spec *s, uint32_t drafted, uint32_t kept);
/* A step of decode rows took run_us, of them draft_us for proposing drafts to drafted_seqs sequences. */
void ds_spec_learn_step(ds_spec *s, const ds_cost_work *x, double run_us, double draft_us, uint32_t drafted_seqs);

#endif
