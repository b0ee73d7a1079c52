/* Sampler: what a sequence's draws need (ds_op_sample of kern.h draws): options, bias, stop ids and the counts of
 * penalties, in memory that the device can read.
 *
 * Threads: a ds_sampler belongs to one sequence, a ds_sampler_scratch to one thread; different ones may run at once.
 * Memory: all taken in create(); sampling allocates nothing. */
#ifndef DS_ENGINE_SAMPLER_H
#define DS_ENGINE_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ds/sampling.h>

#include "kern/device.h"
#include "kern/sample.h"

/* Every value in its range, else DS_E_ARG naming the field and the range. */
ds_rc ds_sample_check(const ds_sampling *s, ds_err *err);

typedef struct ds_sampler_scratch ds_sampler_scratch;
ds_rc ds_sampler_scratch_create(ds_sampler_scratch **out, uint32_t vocab, ds_err *err);
void ds_sampler_scratch_destroy(ds_sampler_scratch *s); /* NULL is fine */

typedef struct ds_sampler ds_sampler;
/* Tables are stage memory of `d`, which must outlive it. `bias` is copied. Counting tables are only taken when a
 * penalty is on. DS_E_ARG, DS_E_NOMEM. */
ds_rc ds_sampler_create(ds_sampler **out, ds_device *d, uint32_t vocab, const ds_sampling *opts, const ds_token_bias *bias, size_t n_bias,
                        ds_err *err);
void ds_sampler_destroy(ds_sampler *s); /* NULL is fine */

/* Tell the sampler of prompt tokens (repetition penalty only) and of each token that became output. Ids < vocab. */
void ds_sampler_see_prompt(ds_sampler *s, const ds_token *ids, size_t n);
void ds_sampler_see_output(ds_sampler *s, ds_token id);
/* Ids (< vocab, copied) that end a text. None is drawn for an output position below `upto`, unless nothing else is
 * allowed there. DS_E_NOMEM. */
ds_rc ds_sampler_set_stops(ds_sampler *s, const ds_token *ids, size_t n, uint32_t upto, ds_err *err);

/* For ds_op_sample, until destroy; while it is on the device nobody else touches the sampler. */
const ds_draw *ds_sampler_how(const ds_sampler *s);

/* ---- drawing on the host, from logits that are there ---- */

/* The token for output position `index`. logits: [vocab], finite, not changed. allowed: bit i % 32 of word i / 32
 * set = token i may be drawn, or NULL. If the mask forbids everything: DS_E_ARG. O(vocab). */
ds_rc ds_sampler_draw(const ds_sampler *s, ds_sampler_scratch *tmp, const float *logits, const uint32_t *allowed, uint64_t index,
                      ds_token *token, ds_err *err);

/* The final distribution for position `index` (after all filters) as probs[vocab], sums to 1: what rejection
 * sampling compares. Same conditions. */
ds_rc ds_sampler_probs(const ds_sampler *s, ds_sampler_scratch *tmp, const float *logits, const uint32_t *allowed, uint64_t index,
                       float *probs, ds_err *err);

#endif
