#include "single.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

enum { DEFAULT_CHUNK = 512, MAX_DRAFTS = 64 };

/* AUTO verifies drafts while the running product of confidences stays above this, and at least one. (spec 7, row 12) */
static const double KEEP_ABOVE = 0.3;
/* AUTO compares the time a token with drafts on and off: so many steps of each, then the better one for as many
 * times more. */
enum { TRIAL_STEPS = 8, TRIAL_EVERY = 16 };

struct ds_single {
    const ds_model *m;
    ds_single_opts o;
    ds_model_layout lay;
    ds_runner *run;
    ds_solo solo;
    ds_sampler_scratch *tmp;
    uint32_t max_context;
    uint32_t drafts; /* proposed in a step, 0: none */

    /* AUTO: how drafting has done so far, over all requests */
    double ns_token[2];  /* off, on: moving averages; 0 = not known */
    uint32_t steps_left; /* of the current trial or choice */
    bool drafting;

    /* the request that runs */
    const ds_single_request *q;
    ds_single_result *res;
    ds_sampler *sampler;
    float *first; /* [vocab] logits after the prompt */
};

static uint32_t context_of(const ds_model *m, const ds_single_opts *o)
{
    uint32_t limit = ds_model_config(m)->max_position_embeddings;
    return o->max_context && o->max_context < limit ? o->max_context : limit;
}

static ds_runner_opts runner_opts(const ds_model *m, const ds_single_opts *o)
{
    ds_model_layout lay;
    uint32_t chunk = o->chunk ? o->chunk : DEFAULT_CHUNK, context = context_of(m, o);

    ds_model_layout_get(m, &lay);
    if (chunk > context)
        chunk = context;
    return (ds_runner_opts){
        .bf16 = o->bf16,
        .max_rows = chunk > lay.rollback ? chunk : lay.rollback,
        .max_logits = lay.rollback,
        .max_context = context,
        .n_tails = !o->exact,
        .no_drafts = o->speculate == 0,
        .pool = o->pool,
    };
}

bool ds_single_bytes(const ds_model *m, const ds_single_opts *o, size_t *bytes)
{
    ds_runner_opts ro = runner_opts(m, o);
    ds_runner_size size;

    *bytes = 0;
    if (!ds_runner_bytes(m, &ro, &size))
        return false;
    *bytes = size.total;
    return true;
}

ds_rc ds_single_create(ds_single **out, const ds_model *m, const ds_single_opts *o, ds_err *err)
{
    uint32_t vocab = ds_model_config(m)->vocab_size;
    ds_single *s = calloc(1, sizeof *s);
    ds_runner_opts ro = runner_opts(m, o);
    ds_rc rc;

    *out = NULL;
    if (!s)
        return ds_fail(err, DS_E_NOMEM, "generation: out of memory");
    s->m = m;
    s->o = *o;
    s->max_context = ro.max_context;
    ds_model_layout_get(m, &s->lay);
    s->drafts = o->speculate == 0 ? 0 : s->lay.drafts;
    if (o->speculate > 0 && (uint32_t)o->speculate < s->drafts)
        s->drafts = (uint32_t)o->speculate;
    s->first = ds_calloc_aligned(vocab, sizeof *s->first);
    if (o->speculate > 0 && s->lay.drafts == 0)
        rc = ds_fail(err, DS_E_ARG, "speculation: the model has no draft blocks");
    else if (o->speculate > 0 && (uint32_t)o->speculate > s->lay.drafts)
        rc = ds_fail(err, DS_E_ARG, "speculation: %d drafts a step, the model makes %u", o->speculate, s->lay.drafts);
    else if (!s->first)
        rc = ds_fail(err, DS_E_NOMEM, "generation: out of memory");
    else
        rc = ds_runner_create(&s->run, m, &ro, err);
    if (rc == DS_OK)
        rc = ds_solo_init(&s->solo, s->run, o->chunk && o->chunk < ro.max_rows ? o->chunk : ro.max_rows, !o->exact, err);
    if (rc == DS_OK)
        rc = ds_sampler_scratch_create(&s->tmp, vocab, err);
    if (rc != DS_OK) {
        ds_single_destroy(s);
        return rc;
    }
    *out = s;
    return DS_OK;
}

void ds_single_destroy(ds_single *s)
{
    if (!s)
        return;
    ds_sampler_scratch_destroy(s->tmp);
    ds_solo_fini(&s->solo);
    ds_runner_destroy(s->run);
    free(s->first);
    free(s);
}

static ds_rc check(const ds_single *s, const ds_single_request *q, ds_err *err)
{
    uint32_t vocab = ds_model_config(s->m)->vocab_size;

    if (q->n_prompt == 0)
        return ds_fail(err, DS_E_ARG, "the prompt is empty");
    if (q->n_prompt >= s->max_context)
        return ds_fail(err, DS_E_ARG, "the prompt has %u tokens and the context ends at %u: no room for an answer", q->n_prompt,
                       s->max_context);
    if (q->max_tokens == 0)
        return ds_fail(err, DS_E_ARG, "max_tokens: 0 is not at least 1");
    for (uint32_t i = 0; i < q->n_prompt; i++)
        if (q->prompt[i] < 0 || (uint32_t)q->prompt[i] >= vocab)
            return ds_fail(err, DS_E_ARG, "prompt: token id %d at position %u is outside the vocabulary (0 .. %u)", q->prompt[i], i,
                           vocab - 1);
    return DS_OK;
}

static ds_rc keep_logits(void *ctx, const float *logits, uint32_t rows, uint32_t vocab, ds_err *err)
{
    ds_single *s = ctx;
    (void)err;
    memcpy(s->first, logits + (size_t)(rows - 1) * vocab, vocab * sizeof *logits);
    return DS_OK;
}

static bool report_progress(void *ctx, uint32_t done, uint32_t total)
{
    const ds_single *s = ctx;
    return s->q->progress(s->q->ctx, done, total);
}

static ds_rc prefill(ds_single *s, ds_err *err)
{
    s->solo.n = 0;
    s->solo.progress = s->q->progress ? report_progress : NULL;
    s->solo.progress_ctx = s;
    return ds_solo_prefill(&s->solo, s->q->prompt, s->q->n_prompt, 1, keep_logits, s, err);
}

typedef enum { GO_ON, OVER } verdict;

/* Draws output token number n_output from a row and reports it. */
static ds_rc emit(ds_single *s, const float *logits, int32_t *token, verdict *v, ds_err *err)
{
    const ds_single_request *q = s->q;
    ds_logprob top[64];
    ds_single_token t = { 0 };
    ds_rc rc = ds_sampler_draw(s->sampler, s->tmp, logits, q->allowed ? q->allowed(q->ctx) : NULL, s->res->n_output, token, err);

    *v = OVER;
    if (rc != DS_OK)
        return rc;
    for (size_t i = 0; i < q->n_stop_ids; i++) {
        if (*token == q->stop_ids[i]) {
            s->res->finish = DS_SINGLE_STOP;
            return DS_OK;
        }
    }
    t.id = *token;
    if (q->logprobs) {
        ds_logprobs(logits, ds_model_config(s->m)->vocab_size, *token, &t.logprob, top, q->n_top);
        t.top = top;
    }
    ds_sampler_see_output(s->sampler, *token);
    s->res->n_output++;
    if (!q->token(q->ctx, &t)) {
        s->res->finish = DS_SINGLE_ENDED;
        return DS_OK;
    }
    if (s->res->n_output >= q->max_tokens || q->n_prompt + s->res->n_output >= s->max_context) {
        s->res->finish = DS_SINGLE_LENGTH;
        return DS_OK;
    }
    *v = GO_ON;
    return DS_OK;
}

/* Whether this step drafts. AUTO tries both ways now and then and keeps to the faster one. */
static bool wants_drafts(ds_single *s)
{
    if (s->drafts == 0 || s->o.speculate != DS_SPECULATE_AUTO)
        return s->drafts > 0;
    if (s->steps_left == 0) {
        bool known = s->ns_token[0] > 0.0 && s->ns_token[1] > 0.0;
        if (!known) {
            s->drafting = s->ns_token[1] <= 0.0;
            s->steps_left = TRIAL_STEPS;
        } else if (s->drafting == (s->ns_token[1] < s->ns_token[0])) {
            s->drafting = !s->drafting; /* the other way, to hear how it does now */
            s->steps_left = TRIAL_STEPS / 4;
        } else {
            s->drafting = s->ns_token[1] < s->ns_token[0];
            s->steps_left = TRIAL_STEPS * TRIAL_EVERY;
        }
    }
    s->steps_left--;
    return s->drafting;
}

static void learn(ds_single *s, bool drafting, uint64_t ns, uint32_t tokens)
{
    double *avg = &s->ns_token[drafting], now = (double)ns / tokens;
    *avg = *avg > 0.0 ? 0.875 * *avg + 0.125 * now : now;
}

/* How many of the proposed drafts to verify. */
static uint32_t worth_verifying(const ds_single *s, const float *conf)
{
    double product = 1.0;
    uint32_t k = 0;

    if (s->o.speculate != DS_SPECULATE_AUTO)
        return s->drafts;
    while (k < s->drafts && ((product *= (double)conf[k]) >= KEEP_ABOVE || k == 0))
        k++;
    return k;
}

/* One step: token y stands at the next position and isn't processed yet. Afterwards *y is the new one of that kind. */
static ds_rc step(ds_single *s, int32_t *y, verdict *v, ds_err *err)
{
    int32_t rows[MAX_DRAFTS + 1] = { *y };
    float conf[MAX_DRAFTS];
    const float *logits;
    uint32_t vocab = ds_model_config(s->m)->vocab_size, k = 0, pos = s->solo.n, kept = 0;
    uint64_t begin = ds_now_ns();
    bool drafting = wants_drafts(s);
    ds_rc rc = DS_OK;

    if (drafting) {
        ds_draft_seq d = { .slot = 0, .pos = pos, .token = *y, .win_lo = s->solo.dec_win };
        rc = ds_runner_draft(s->run, &d, 1, rows + 1, conf, err);
        if (rc != DS_OK)
            return rc;
        k = worth_verifying(s, conf);
        if (k > s->max_context - pos - 1)
            k = s->max_context - pos - 1;
    }
    rc = ds_solo_decode(&s->solo, rows, k + 1, &logits, err);
    if (rc != DS_OK)
        return rc;
    for (;; kept++) { /* row `kept` was computed from tokens that all stand */
        rc = emit(s, logits + (size_t)kept * vocab, y, v, err);
        if (rc != DS_OK || *v == OVER || kept == k || *y != rows[kept + 1])
            break;
    }
    s->solo.n = pos + kept + 1;
    s->res->steps++;
    s->res->drafted += k;
    s->res->accepted += kept;
    if (s->o.speculate == DS_SPECULATE_AUTO && s->drafts)
        learn(s, drafting, ds_now_ns() - begin, kept + 1);
    return rc;
}

ds_rc ds_single_run(ds_single *s, const ds_single_request *q, ds_single_result *res, ds_err *err)
{
    uint64_t begin = ds_now_ns(), first;
    int32_t y = 0;
    verdict v = OVER;
    ds_rc rc = check(s, q, err);

    *res = (ds_single_result){ .finish = DS_SINGLE_ENDED };
    if (rc != DS_OK)
        return rc;
    rc = ds_sampler_create(&s->sampler, ds_model_device(s->m), ds_model_config(s->m)->vocab_size, &q->sampling, q->bias, q->n_bias, err);
    if (rc != DS_OK)
        return rc;
    s->q = q;
    s->res = res;
    ds_sampler_see_prompt(s->sampler, q->prompt, q->n_prompt);
    rc = prefill(s, err);
    first = ds_now_ns();
    if (rc == DS_OK)
        rc = emit(s, s->first, &y, &v, err);
    res->prompt_ns = ds_now_ns() - begin;
    while (rc == DS_OK && v == GO_ON)
        rc = step(s, &y, &v, err);
    if (rc == DS_E_CANCELED)
        rc = DS_OK; /* the progress callback ended it */
    res->output_ns = ds_now_ns() - first;
    ds_sampler_destroy(s->sampler);
    s->sampler = NULL;
    return rc;
}
