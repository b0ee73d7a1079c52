#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"

enum { DRAW_STREAM = 0 };

/* Logits are binned by their distance from the maximum, so that top-p sorts only the bins that it can reach. */
enum { N_BINS = 1024, BINS_PER_NAT = 16 };

typedef struct {
    float logit; /* relative to the maximum, over the temperature: at most 0 */
    uint32_t id;
} cand;

struct ds_sampler_scratch {
    uint32_t vocab;
    float *logit; /* [vocab] after penalties, bias and mask */
    cand *cands;  /* [vocab] */
    double *prob; /* [vocab] of cands, not normalised */
};

struct ds_sampler {
    uint32_t vocab;
    ds_sample_opts opts;
    ds_token_bias *bias;
    size_t n_bias;
    uint32_t *n_output;  /* [vocab] times seen in the output; NULL when no penalty is on */
    uint8_t *in_prompt;  /* [vocab]; NULL when the repetition penalty is off */
    const int32_t *held; /* [n_held] not drawn below position held_upto */
    size_t n_held;
    uint32_t held_upto;
};

static ds_rc refuse(ds_err *err, const char *field, double value, const char *range)
{
    return ds_fail(err, DS_E_ARG, "%s: %g is not %s", field, value, range);
}

ds_rc ds_sample_check(const ds_sample_opts *s, ds_err *err)
{
    if (!(s->temperature >= 0.0 && s->temperature <= 100.0))
        return refuse(err, "temperature", s->temperature, "within 0..100");
    if (!(s->top_p > 0.0 && s->top_p <= 1.0))
        return refuse(err, "top_p", s->top_p, "above 0 and at most 1");
    if (!(s->min_p >= 0.0 && s->min_p <= 1.0))
        return refuse(err, "min_p", s->min_p, "within 0..1");
    if (!(s->repetition_penalty > 0.0 && s->repetition_penalty <= 100.0))
        return refuse(err, "repetition_penalty", s->repetition_penalty, "above 0 and at most 100");
    if (!(fabs(s->presence_penalty) <= 100.0))
        return refuse(err, "presence_penalty", s->presence_penalty, "within -100..100");
    if (!(fabs(s->frequency_penalty) <= 100.0))
        return refuse(err, "frequency_penalty", s->frequency_penalty, "within -100..100");
    return DS_OK;
}

ds_rc ds_sampler_scratch_create(ds_sampler_scratch **out, uint32_t vocab, ds_err *err)
{
    ds_sampler_scratch *s = calloc(1, sizeof *s);

    *out = NULL;
    if (s) {
        s->vocab = vocab;
        s->logit = ds_calloc_aligned(vocab, sizeof *s->logit);
        s->cands = ds_calloc_aligned(vocab, sizeof *s->cands);
        s->prob = ds_calloc_aligned(vocab, sizeof *s->prob);
    }
    if (!s || !s->logit || !s->cands || !s->prob) {
        ds_sampler_scratch_destroy(s);
        return ds_fail(err, DS_E_NOMEM, "sampler: out of memory for a vocabulary of %u", vocab);
    }
    *out = s;
    return DS_OK;
}

void ds_sampler_scratch_destroy(ds_sampler_scratch *s)
{
    if (!s)
        return;
    free(s->logit);
    free(s->cands);
    free(s->prob);
    free(s);
}

ds_rc ds_sampler_create(ds_sampler **out, uint32_t vocab, const ds_sample_opts *opts, const ds_token_bias *bias, size_t n_bias, ds_err *err)
{
    *out = NULL;
    ds_rc rc = ds_sample_check(opts, err);
    if (rc != DS_OK)
        return rc;
    for (size_t i = 0; i < n_bias; i++) {
        if (bias[i].id >= vocab)
            return ds_fail(err, DS_E_ARG, "logit_bias: id %u is outside the vocabulary of %u", bias[i].id, vocab);
        if (!isfinite(bias[i].bias))
            return ds_fail(err, DS_E_ARG, "logit_bias: the value for id %u is not finite", bias[i].id);
    }

    ds_sampler *s = calloc(1, sizeof *s);
    if (!s)
        return ds_fail(err, DS_E_NOMEM, "sampler: out of memory");
    s->vocab = vocab;
    s->opts = *opts;
    s->n_bias = n_bias;
    bool repetition = opts->repetition_penalty != 1.0;
    bool counts = repetition || opts->presence_penalty != 0.0 || opts->frequency_penalty != 0.0;
    if (n_bias) {
        s->bias = malloc(n_bias * sizeof *bias);
        if (s->bias)
            memcpy(s->bias, bias, n_bias * sizeof *bias);
    }
    if (counts)
        s->n_output = calloc(vocab, sizeof *s->n_output);
    if (repetition)
        s->in_prompt = calloc(vocab, sizeof *s->in_prompt);
    if ((n_bias && !s->bias) || (counts && !s->n_output) || (repetition && !s->in_prompt)) {
        ds_sampler_destroy(s);
        return ds_fail(err, DS_E_NOMEM, "sampler: out of memory for a vocabulary of %u", vocab);
    }
    *out = s;
    return DS_OK;
}

void ds_sampler_destroy(ds_sampler *s)
{
    if (!s)
        return;
    free(s->bias);
    free(s->n_output);
    free(s->in_prompt);
    free(s);
}

void ds_sampler_see_prompt(ds_sampler *s, const int32_t *ids, size_t n)
{
    if (s->in_prompt)
        for (size_t i = 0; i < n; i++)
            s->in_prompt[ids[i]] = 1;
}

void ds_sampler_see_output(ds_sampler *s, int32_t id)
{
    if (s->n_output)
        s->n_output[id]++;
}

void ds_sampler_unsee_output(ds_sampler *s, int32_t id)
{
    if (s->n_output)
        s->n_output[id]--;
}

void ds_sampler_hold_back(ds_sampler *s, const int32_t *ids, size_t n, uint32_t upto)
{
    s->held = ids;
    s->n_held = n;
    s->held_upto = n ? upto : 0;
}

bool ds_sampler_is_argmax(const ds_sampler *s, uint64_t index)
{
    return s->opts.temperature == 0.0 && !s->n_output && !s->n_bias && index >= s->held_upto;
}

int32_t ds_argmax(const float *logits, uint32_t vocab)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

/* Forbids what is held back if that leaves anything. */
static void hold_back(const ds_sampler *s, float *logit)
{
    float max = -INFINITY;

    for (uint32_t i = 0; i < s->vocab; i++) {
        bool held = false;
        for (size_t k = 0; k < s->n_held && logit[i] > max; k++)
            held = held || s->held[k] == (int32_t)i;
        if (logit[i] > max && !held)
            max = logit[i];
    }
    for (size_t k = 0; k < s->n_held && max != -INFINITY; k++)
        logit[s->held[k]] = -INFINITY;
}

/* Penalties, bias, mask and what is held back into tmp->logit; forbidden tokens are -inf. */
static void adjust(const ds_sampler *s, ds_sampler_scratch *tmp, const float *logits, const uint32_t *allowed, uint64_t index)
{
    memcpy(tmp->logit, logits, s->vocab * sizeof *logits);
    for (uint32_t i = 0; s->n_output && i < s->vocab; i++) {
        uint32_t n = s->n_output[i];
        if (s->in_prompt && (n || s->in_prompt[i])) {
            double l = tmp->logit[i];
            tmp->logit[i] = (float)(l > 0.0 ? l / s->opts.repetition_penalty : l * s->opts.repetition_penalty);
        }
        if (n)
            tmp->logit[i] -= (float)(s->opts.presence_penalty + s->opts.frequency_penalty * n);
    }
    for (size_t i = 0; i < s->n_bias; i++) {
        if (s->bias[i].bias <= -100.0f)
            tmp->logit[s->bias[i].id] = -INFINITY;
        else
            tmp->logit[s->bias[i].id] += s->bias[i].bias;
    }
    for (uint32_t i = 0; allowed && i < s->vocab; i++)
        if (!(allowed[i / 32] >> (i % 32) & 1))
            tmp->logit[i] = -INFINITY;
    if (index < s->held_upto)
        hold_back(s, tmp->logit);
}

static bool ranks_before(cand x, cand y)
{
    return x.logit > y.logit || (x.logit == y.logit && x.id < y.id);
}

static int by_rank(const void *a, const void *b)
{
    return ranks_before(*(const cand *)a, *(const cand *)b) ? -1 : 1; /* ids differ, so nothing is equal */
}

static void swap(cand *a, cand *b)
{
    cand t = *a;
    *a = *b;
    *b = t;
}

/* Moves the k best of c[0..n) to the front, in any order. Ranks are unique, so is the set. Expected O(n). */
static void select_best(cand *c, size_t n, size_t k)
{
    size_t lo = 0, hi = n;
    while (hi - lo > 1) {
        swap(&c[lo + (hi - lo) / 2], &c[hi - 1]); /* pivot: the middle, so that sorted input isn't the worst case */
        cand pivot = c[hi - 1];
        size_t at = lo;
        for (size_t i = lo; i < hi - 1; i++)
            if (ranks_before(c[i], pivot))
                swap(&c[i], &c[at++]);
        swap(&c[at], &c[hi - 1]); /* c[lo..at) rank before c[at], the rest after */
        if (k == at || k == at + 1)
            return;
        if (k < at)
            hi = at;
        else
            lo = at + 1;
    }
}

static size_t bin_of(float logit)
{
    double d = -(double)logit * BINS_PER_NAT;
    return d >= N_BINS - 1 ? N_BINS - 1 : (size_t)d;
}

/* Keeps the smallest set, best first, whose probability reaches p of the total; afterwards c[0..result) is sorted. */
static size_t keep_top_p(cand *c, size_t n, double p)
{
    double mass[N_BINS] = { 0 }, total = 0.0;
    for (size_t i = 0; i < n; i++)
        mass[bin_of(c[i].logit)] += exp(c[i].logit);
    for (size_t b = 0; b < N_BINS; b++)
        total += mass[b];

    size_t last = 0; /* the margin keeps a member from being lost to the rounding of the sums */
    for (double sum = mass[0]; last < N_BINS - 1 && sum <= p * total * (1.0 + 1e-12); sum += mass[last])
        last++;
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (bin_of(c[i].logit) <= last)
            swap(&c[m++], &c[i]);
    qsort(c, m, sizeof *c, by_rank);
    double sum = 0.0;
    for (size_t i = 0; i < m; i++) {
        sum += exp(c[i].logit);
        if (sum >= p * total)
            return i + 1;
    }
    return m;
}

/* The candidates that survive every filter; tmp->prob isn't normalised, *total is its sum. 0 when none is allowed. Temperature > 0. */
static size_t filter(const ds_sampler *s, ds_sampler_scratch *tmp, double *total)
{
    float max = tmp->logit[ds_argmax(tmp->logit, s->vocab)];
    size_t n = 0, m = 0;

    *total = 0.0;
    if (max == -INFINITY)
        return 0;
    for (uint32_t i = 0; i < s->vocab; i++)
        if (tmp->logit[i] != -INFINITY)
            tmp->cands[n++] = (cand){ (float)(((double)tmp->logit[i] - max) / s->opts.temperature), i };
    if (s->opts.top_k && s->opts.top_k < n) {
        select_best(tmp->cands, n, s->opts.top_k);
        n = s->opts.top_k;
        qsort(tmp->cands, n, sizeof *tmp->cands, by_rank); /* the draw walks this order: it may not depend on the selection's */
    }
    if (s->opts.top_p < 1.0)
        n = keep_top_p(tmp->cands, n, s->opts.top_p);
    for (size_t i = 0; i < n; i++) {
        double p = exp(tmp->cands[i].logit); /* the best has 1 */
        if (p < s->opts.min_p)
            continue;
        tmp->cands[m] = tmp->cands[i];
        tmp->prob[m++] = p;
        *total += p;
    }
    return m;
}

ds_rc ds_sampler_draw(const ds_sampler *s, ds_sampler_scratch *tmp, const float *logits, const uint32_t *allowed, uint64_t index,
                      int32_t *token, ds_err *err)
{
    if (ds_sampler_is_argmax(s, index) && !allowed) {
        *token = ds_argmax(logits, s->vocab);
        return DS_OK;
    }
    adjust(s, tmp, logits, allowed, index);
    if (s->opts.temperature == 0.0) {
        *token = ds_argmax(tmp->logit, s->vocab);
        if (tmp->logit[*token] == -INFINITY)
            return ds_fail(err, DS_E_ARG, "sampler: no token is allowed");
        return DS_OK;
    }
    double total;
    size_t n = filter(s, tmp, &total), i = 0;
    if (n == 0)
        return ds_fail(err, DS_E_ARG, "sampler: no token is allowed");
    for (double at = ds_rng_unit(s->opts.seed, DRAW_STREAM, index) * total; i + 1 < n; i++) {
        at -= tmp->prob[i];
        if (at < 0.0)
            break;
    }
    *token = (int32_t)tmp->cands[i].id;
    return DS_OK;
}

ds_rc ds_sampler_probs(const ds_sampler *s, ds_sampler_scratch *tmp, const float *logits, const uint32_t *allowed, uint64_t index,
                       float *probs, ds_err *err)
{
    adjust(s, tmp, logits, allowed, index);
    memset(probs, 0, s->vocab * sizeof *probs);
    if (s->opts.temperature == 0.0) {
        int32_t best = ds_argmax(tmp->logit, s->vocab);
        if (tmp->logit[best] == -INFINITY)
            return ds_fail(err, DS_E_ARG, "sampler: no token is allowed");
        probs[best] = 1.0f;
        return DS_OK;
    }
    double total;
    size_t n = filter(s, tmp, &total);
    if (n == 0)
        return ds_fail(err, DS_E_ARG, "sampler: no token is allowed");
    for (size_t i = 0; i < n; i++)
        probs[tmp->cands[i].id] = (float)(tmp->prob[i] / total);
    return DS_OK;
}

void ds_logprobs(const float *logits, uint32_t vocab, int32_t token, float *chosen, ds_logprob *top, uint32_t n_top)
{
    float max = logits[ds_argmax(logits, vocab)];
    double sum = 0.0;
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - max);
    double lse = (double)max + log(sum);
    uint32_t n = 0;

    *chosen = (float)(logits[token] - lse);
    for (uint32_t i = 0; n_top && i < vocab; i++) { /* insertion into a short sorted list */
        if (n == n_top && logits[i] <= top[n - 1].logprob)
            continue;
        uint32_t at = n < n_top ? n++ : n - 1;
        for (; at > 0 && top[at - 1].logprob < logits[i]; at--)
            top[at] = top[at - 1];
        top[at] = (ds_logprob){ (int32_t)i, logits[i] };
    }
    for (uint32_t i = 0; i < n_top; i++)
        top[i] = i < n ? (ds_logprob){ top[i].id, (float)(top[i].logprob - lse) } : (ds_logprob){ -1, -INFINITY };
}
