/* Sampler: logits of one position -> one token.
 *
 * Order of operations: penalties and bias on the raw logits, allowed-token mask, temperature, top-k, top-p (the smallest set of the
 * renormalised remainder that reaches p), min-p, draw. Temperature 0 is greedy. Ties go to the lower id everywhere. The draw for output
 * token i is a pure function of (seed, i): a request's text doesn't depend on what else runs.
 *
 * Threads: a ds_sampler belongs to one sequence, a ds_sampler_scratch to one thread; different ones may run at once.
 * Memory: all taken in create(); sampling allocates nothing. */
#ifndef DS_ENGINE_SAMPLER_H
#define DS_ENGINE_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef struct {
    double temperature;        /* >= 0; 0 = greedy */
    double top_p;              /* (0, 1]; 1 = off */
    double min_p;              /* [0, 1]; 0 = off */
    uint32_t top_k;            /* 0 = off */
    double repetition_penalty; /* > 0; 1 = off. Tokens of prompt and output: positive logits are divided by it, others multiplied */
    double presence_penalty;   /* subtracted once from tokens of the output */
    double frequency_penalty;  /* subtracted for each time a token stands in the output */
    uint64_t seed;
} ds_sample_opts;

#define DS_SAMPLE_DEFAULT ((ds_sample_opts){ .temperature = 1.0, .top_p = 1.0, .repetition_penalty = 1.0 })

/* Every value in its range, else DS_E_ARG naming the field and the range. */
ds_rc ds_sample_check(const ds_sample_opts *s, ds_err *err);

typedef struct {
    uint32_t id;
    float bias; /* added to the logit; -100 or less forbids, as clients expect */
} ds_token_bias;

typedef struct ds_sampler_scratch ds_sampler_scratch;
ds_rc ds_sampler_scratch_create(ds_sampler_scratch **out, uint32_t vocab, ds_err *err);
void ds_sampler_scratch_destroy(ds_sampler_scratch *s); /* NULL is fine */

typedef struct ds_sampler ds_sampler;
/* `bias` is copied. Counting tables are only taken when a penalty is on. DS_E_ARG, DS_E_NOMEM. */
ds_rc ds_sampler_create(ds_sampler **out, uint32_t vocab, const ds_sample_opts *opts, const ds_token_bias *bias, size_t n_bias,
                        ds_err *err);
void ds_sampler_destroy(ds_sampler *s); /* NULL is fine */

/* Tell the sampler of prompt tokens (repetition penalty only) and of each token that became output. Ids < vocab. */
void ds_sampler_see_prompt(ds_sampler *s, const int32_t *ids, size_t n);
void ds_sampler_see_output(ds_sampler *s, int32_t id);
/* Takes back the last output token that was seen (a rejected draft). */
void ds_sampler_unsee_output(ds_sampler *s, int32_t id);

/* From now on none of these ids (< vocab, borrowed) is drawn for an output position below `upto`, unless nothing else is allowed there. */
void ds_sampler_hold_back(ds_sampler *s, const int32_t *ids, size_t n, uint32_t upto);

/* The token for output position `index`. logits: [vocab], finite, not changed. allowed: bit i % 32 of word i / 32 set = token i may be
 * drawn, or NULL. If the mask forbids everything: DS_E_ARG. O(vocab). */
ds_rc ds_sampler_draw(const ds_sampler *s, ds_sampler_scratch *tmp, const float *logits, const uint32_t *allowed, uint64_t index,
                      int32_t *token, ds_err *err);

/* True when the draw for position `index` is argmax(logits) and nothing else: temperature 0, no penalty, no bias, nothing held back. */
bool ds_sampler_is_argmax(const ds_sampler *s, uint64_t index);

/* The final distribution for position `index` (after all filters) as probs[vocab], sums to 1: what rejection sampling compares. Same conditions. */
ds_rc ds_sampler_probs(const ds_sampler *s, ds_sampler_scratch *tmp, const float *logits, const uint32_t *allowed, uint64_t index,
                       float *probs, ds_err *err);

int32_t ds_argmax(const float *logits, uint32_t vocab); /* ties: lower id */

typedef struct {
    int32_t id; /* -1: the vocabulary is smaller than the list */
    float logprob;
} ds_logprob;
/* log softmax of the raw logits: *chosen for `token`, top[0..n_top) the n_top most likely in falling order (ties: lower id). n_top <= 64.
 * O(vocab). */
void ds_logprobs(const float *logits, uint32_t vocab, int32_t token, float *chosen, ds_logprob *top, uint32_t n_top);

#endif
