/* One request at a time on one ds_runner, without the engine: what the engine's texts are compared with.
 *
 * Drafts never change a text. Each output position has one draw, a pure function of the request's seed and the
 * position; a draft is kept when it equals the draw at its place, so sampled and greedy output are the same tokens
 * with and without drafts, whatever was accepted.
 *
 * Threads: one owner; the pool does the computing.   Memory: all taken in create(), but for the request's own tables
 * (penalties). */
#ifndef DS_ENGINE_SINGLE_H
#define DS_ENGINE_SINGLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/pool.h"
#include "engine/sampler.h"
#include "model/model.h"

#define DS_SPECULATE_AUTO (-1)

typedef struct {
    bool bf16;            /* activations */
    bool exact;           /* all layers on the whole prompt; else CED prefill */
    uint32_t chunk;       /* prompt tokens of a step; 0 = 512 */
    uint32_t max_context; /* tokens of prompt and output; 0 = the model's limit */
    int speculate;        /* drafts verified a step; 0 = off; DS_SPECULATE_AUTO = by confidence, and off while it doesn't pay */
    ds_pool *pool;        /* borrowed until destroy; NULL = the calling thread */
} ds_single_opts;

typedef struct ds_single ds_single;

/* Bytes that create will take; false: sizes overflow. */
bool ds_single_bytes(const ds_model *m, const ds_single_opts *o, size_t *bytes);
/* The model must outlive it. DS_E_ARG (also: drafts wanted, and the model has none), DS_E_NOMEM. */
ds_rc ds_single_create(ds_single **out, const ds_model *m, const ds_single_opts *o, ds_err *err);
void ds_single_destroy(ds_single *s); /* NULL is fine */

typedef struct {
    int32_t id;
    float logprob;         /* of the raw logits; 0 when none were asked for */
    const ds_logprob *top; /* [n_top], until the callback returns */
} ds_single_token;

/* A new token of the output, in order. False ends the request: nothing after this token is computed or reported. */
typedef bool ds_single_fn(void *ctx, const ds_single_token *t);
/* Prompt tokens processed so far; false ends the request. */
typedef bool ds_single_progress_fn(void *ctx, uint32_t done, uint32_t total);

typedef struct {
    const int32_t *prompt;
    uint32_t n_prompt;   /* >= 1, and room for one token after it */
    uint32_t max_tokens; /* >= 1 */
    ds_sampling sampling;
    const ds_token_bias *bias;
    size_t n_bias;
    const int32_t *stop_ids; /* end the text; not reported as a token */
    size_t n_stop_ids;
    bool logprobs;
    uint32_t n_top; /* 0..64 */
    ds_single_fn *token;
    ds_single_progress_fn *progress;       /* may be NULL */
    const uint32_t *(*allowed)(void *ctx); /* bits of the tokens that the next one may be, after each `token`; NULL: all */
    void *ctx;
} ds_single_request;

typedef enum { DS_SINGLE_STOP, DS_SINGLE_LENGTH, DS_SINGLE_ENDED } ds_single_finish; /* a stop id; max_tokens or the context; a callback */

typedef struct {
    ds_single_finish finish;
    uint32_t n_output;                 /* tokens reported */
    uint64_t prompt_ns, output_ns;     /* until the first token; from there to the end */
    uint32_t steps, drafted, accepted; /* decode steps, drafts verified and kept */
} ds_single_result;

/* DS_E_ARG: the request is out of range (ids, lengths, sampling); DS_E_FORMAT: the model gave logits that aren't
 * finite. Afterwards the next request can be run. */
ds_rc ds_single_run(ds_single *s, const ds_single_request *q, ds_single_result *res, ds_err *err);

#endif
