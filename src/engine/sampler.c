#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct ds_sampler_scratch {
    ds_draw_scratch d;
};

struct ds_sampler {
    uint32_t vocab;
    ds_draw how;
    ds_mem mem; /* its tables: stage memory */
};

static ds_rc refuse(ds_err *err, const char *field, double value, const char *range)
{
    return ds_fail(err, DS_E_ARG, "%s: %g is not %s", field, value, range);
}

ds_rc ds_sample_check(const ds_sampling *s, ds_err *err)
{
    if (!(s->temperature >= 0.0 && s->temperature <= 100.0))
        return refuse(err, "temperature", s->temperature, "within 0..100");
    if (!(s->top_p > 0.0 && s->top_p <= 1.0))
        return refuse(err, "top_p", s->top_p, "above 0 and at most 1");
    if (!(s->min_p >= 0.0 && s->min_p <= 1.0))
        return refuse(err, "min_p", s->min_p, "within 0..1");
    if (s->top_k == DS_TOP_K_MISSING)
        return refuse(err, "top_k", (double)s->top_k, "a number of tokens");
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
        s->d.logit = ds_calloc_aligned(vocab, sizeof *s->d.logit);
        s->d.cands = ds_calloc_aligned(vocab, sizeof *s->d.cands);
        s->d.prob = ds_calloc_aligned(vocab, sizeof *s->d.prob);
    }
    if (!s || !s->d.logit || !s->d.cands || !s->d.prob) {
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
    free(s->d.logit);
    free(s->d.cands);
    free(s->d.prob);
    free(s);
}

ds_rc ds_sampler_create(ds_sampler **out, ds_device *d, uint32_t vocab, const ds_sampling *opts, const ds_token_bias *bias, size_t n_bias,
                        ds_err *err)
{
    *out = NULL;
    ds_rc rc = ds_sample_check(opts, err);
    if (rc != DS_OK)
        return rc;
    for (size_t i = 0; i < n_bias; i++) {
        if ((uint32_t)bias[i].id >= vocab)
            return ds_fail(err, DS_E_ARG, "logit_bias: id %d is outside the vocabulary of %u", bias[i].id, vocab);
        if (!isfinite(bias[i].bias))
            return ds_fail(err, DS_E_ARG, "logit_bias: the value for id %d is not finite", bias[i].id);
    }

    ds_sampler *s = calloc(1, sizeof *s);
    if (!s)
        return ds_fail(err, DS_E_NOMEM, "sampler: out of memory");
    s->vocab = vocab;
    s->mem.d = d;
    s->how = (ds_draw){ .temperature = opts->temperature,
                        .top_p = opts->top_p,
                        .min_p = opts->min_p,
                        .repetition_penalty = opts->repetition_penalty,
                        .presence_penalty = opts->presence_penalty,
                        .frequency_penalty = opts->frequency_penalty,
                        .seed = opts->seed,
                        .top_k = opts->top_k,
                        .n_bias = (uint32_t)n_bias };
    bool repetition = opts->repetition_penalty != 1.0;
    bool counts = repetition || opts->presence_penalty != 0.0 || opts->frequency_penalty != 0.0;
    ds_token_bias *list = n_bias ? ds_mem_take(&s->mem, DS_MEM_STAGE, n_bias * sizeof *bias, NULL) : NULL;
    if (list)
        s->how.bias = memcpy(list, bias, n_bias * sizeof *bias);
    if (counts)
        s->how.n_output = ds_mem_take(&s->mem, DS_MEM_STAGE, vocab * sizeof *s->how.n_output, NULL);
    if (repetition)
        s->how.in_prompt = ds_mem_take(&s->mem, DS_MEM_STAGE, vocab, NULL);
    if ((n_bias && !s->how.bias) || (counts && !s->how.n_output) || (repetition && !s->how.in_prompt)) {
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
    ds_mem_free(&s->mem);
    free(s);
}

void ds_sampler_see_prompt(ds_sampler *s, const ds_token *ids, size_t n)
{
    uint8_t *seen = (uint8_t *)s->how.in_prompt; /* const for the draws */

    for (size_t i = 0; seen && i < n; i++)
        seen[ids[i]] = 1;
}

void ds_sampler_see_output(ds_sampler *s, ds_token id)
{
    if (s->how.n_output)
        s->how.n_output[id]++;
}

ds_rc ds_sampler_set_stops(ds_sampler *s, const ds_token *ids, size_t n, uint32_t upto, ds_err *err)
{
    ds_token *list = n ? ds_mem_take(&s->mem, DS_MEM_STAGE, n * sizeof *ids, NULL) : NULL;

    if (n && !list)
        return ds_fail(err, DS_E_NOMEM, "sampler: out of memory");
    if (n)
        memcpy(list, ids, n * sizeof *ids);
    s->how.stop = list;
    s->how.n_stop = (uint32_t)n;
    s->how.stop_upto = n ? upto : 0;
    return DS_OK;
}

const ds_draw *ds_sampler_how(const ds_sampler *s)
{
    return &s->how;
}

ds_rc ds_sampler_draw(const ds_sampler *s, ds_sampler_scratch *tmp, const float *logits, const uint32_t *allowed, uint64_t index,
                      ds_token *token, ds_err *err)
{
    return ds_draw_token(&s->how, s->vocab, &tmp->d, logits, allowed, index, token)
               ? DS_OK
               : ds_fail(err, DS_E_ARG, "sampler: no token is allowed");
}

ds_rc ds_sampler_probs(const ds_sampler *s, ds_sampler_scratch *tmp, const float *logits, const uint32_t *allowed, uint64_t index,
                       float *probs, ds_err *err)
{
    return ds_draw_probs(&s->how, s->vocab, &tmp->d, logits, allowed, index, probs)
               ? DS_OK
               : ds_fail(err, DS_E_ARG, "sampler: no token is allowed");
}
