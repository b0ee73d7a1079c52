/* The arithmetic of ds_op_sample for one row, for its body on the CPU and for tests. Host memory; any thread. */
#ifndef DS_KERN_SAMPLE_H
#define DS_KERN_SAMPLE_H

#include "kern/kern.h"

typedef struct {
    float logit; /* relative to the maximum, over the temperature: at most 0 */
    uint32_t id;
} ds_draw_cand;

/* [vocab] each: logits after penalties, bias and mask; candidates; their probabilities, not normalised. */
typedef struct {
    float *logit;
    ds_draw_cand *cands;
    double *prob;
} ds_draw_scratch;

/* The token for output position `index`. logits: [vocab], finite. allowed: NULL or bits. False: nothing is allowed.
 * O(vocab). */
bool ds_draw_token(const ds_draw *s, uint32_t vocab, ds_draw_scratch *tmp, const float *logits, const uint32_t *allowed, uint64_t index,
                   ds_token *token);
/* The final distribution for that position, sums to 1. False: nothing is allowed. */
bool ds_draw_probs(const ds_draw *s, uint32_t vocab, ds_draw_scratch *tmp, const float *logits, const uint32_t *allowed, uint64_t index,
                   float *probs);
/* True when the draw is argmax(logits) and nothing else: temperature 0, no penalty, no bias, nothing held back. */
bool ds_draw_is_argmax(const ds_draw *s, uint64_t index);

int32_t ds_argmax(const float *logits, uint32_t vocab); /* ties: lower id */

/* log softmax of the raw logits: *chosen for `token`, top[0..n_top) the n_top most likely in falling order (ties:
 * lower id; id -1: the vocabulary is smaller). O(vocab). */
void ds_logprobs(const float *logits, uint32_t vocab, ds_token token, float *chosen, ds_logprob *top, uint32_t n_top);

/* Scratch that ds_sample_ref takes for each member. */
size_t ds_sample_scratch(uint32_t vocab);

#endif
