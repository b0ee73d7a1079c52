/* How the tokens of a text are drawn: one struct all the way from a request's body to the draw.
 *
 * In a parsed request a value may be missing, so that whoever serves it fills in his own: NaN, or DS_TOP_K_MISSING. An
 * engine refuses what is missing. Plain data; copy with =. */
#ifndef DS_SAMPLING_H
#define DS_SAMPLING_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ds/token.h>

typedef struct {
    double temperature;        /* >= 0; 0 = greedy */
    double top_p;              /* (0, 1]; 1 = off */
    double min_p;              /* [0, 1]; 0 = off */
    uint32_t top_k;            /* 0 = off */
    double repetition_penalty; /* > 0; 1 = off. Tokens of prompt and output: positive logits are divided by it, others multiplied */
    double presence_penalty;   /* subtracted once from tokens of the output; 0 = off */
    double frequency_penalty;  /* subtracted for each time a token stands in the output; 0 = off */
    uint64_t seed;             /* sample k draws with ds_sample_seed(seed, k) */
    bool seeded;               /* the client chose the seed, and so wants the same text again */
} ds_sampling;

#define DS_TOP_K_MISSING UINT32_MAX
#define DS_SAMPLING_DEFAULT ((ds_sampling){ .temperature = 1.0, .top_p = 1.0, .repetition_penalty = 1.0 })
#define DS_SAMPLING_MISSING                    \
    ((ds_sampling){ .temperature = NAN,        \
                    .top_p = NAN,              \
                    .min_p = NAN,              \
                    .top_k = DS_TOP_K_MISSING, \
                    .repetition_penalty = NAN, \
                    .presence_penalty = NAN,   \
                    .frequency_penalty = NAN })

/* The seed of sample k, counted over all prompts of a request. Far apart, since clients number their seeds: sample 1
 * of seed 7 isn't sample 0 of seed 8. ds_sample_seed(ds_sample_seed(s, i), k) is that of sample i + k. */
static inline uint64_t ds_sample_seed(uint64_t seed, uint64_t k)
{
    return seed + k * 0x9e3779b97f4a7c15u;
}

static inline double ds_sampling_pick(double value, double otherwise)
{
    return isnan(value) ? otherwise : value;
}

/* What is missing in `s` from `otherwise`. */
static inline ds_sampling ds_sampling_or(ds_sampling s, const ds_sampling *otherwise)
{
    s.temperature = ds_sampling_pick(s.temperature, otherwise->temperature);
    s.top_p = ds_sampling_pick(s.top_p, otherwise->top_p);
    s.min_p = ds_sampling_pick(s.min_p, otherwise->min_p);
    s.top_k = s.top_k == DS_TOP_K_MISSING ? otherwise->top_k : s.top_k;
    s.repetition_penalty = ds_sampling_pick(s.repetition_penalty, otherwise->repetition_penalty);
    s.presence_penalty = ds_sampling_pick(s.presence_penalty, otherwise->presence_penalty);
    s.frequency_penalty = ds_sampling_pick(s.frequency_penalty, otherwise->frequency_penalty);
    s.seed = s.seeded ? s.seed : otherwise->seed;
    s.seeded = s.seeded || otherwise->seeded;
    return s;
}

typedef struct {
    ds_token id;
    float bias; /* added to the logit; -100 or less forbids, as clients expect */
} ds_token_bias;

typedef struct {
    const ds_token *ids;
    uint32_t n;
} ds_token_seq;

#endif
