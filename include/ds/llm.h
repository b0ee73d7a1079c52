/* A model directory opened for generation in one call: model, tokenizer, end-of-text ids, thread team and a running
 * engine.
 *
 *   ds_llm_open      opens all of it; what doesn't fit into memory is refused, or the context made smaller when none
 *                    was asked for
 *   ds_llm_engine    the engine: requests go there (ds/engine.h)
 *   ds_llm_embed     a picture for a request
 *   ds_llm_constrain what an answer must be
 *   ds_llm_close     cancels what is left and gives everything back
 *
 * Threads: open and close from one thread, embed from any; what the engine allows holds for it, the rest is constant
 * after open. */
#ifndef DS_LLM_H
#define DS_LLM_H

#include <ds/engine.h>
#include <ds/image.h>
#include <ds/request.h>
#include <ds/tokenizer.h>

typedef struct ds_llm ds_llm;

enum { DS_LLM_STOP_IDS = 16 };

/* Zero means the default that is named. */
typedef struct {
    const char *device;    /* "cpu", "cuda", "cuda:N"; "auto" = a GPU where there is one; the CPU */
    const char *kernels;   /* of the CPU: "ref", "avx2", "avx512", "amx"; NULL = the best here */
    ds_engine_mode mode;   /* CED */
    bool bf16;             /* activations; f32 */
    bool pin;              /* helper threads stay each on a CPU of its own, unless there are more threads than CPUs; no */
    uint32_t threads;      /* one for each CPU */
    uint32_t max_context;  /* tokens of prompt and output; the model's limit, or what fits into memory */
    uint32_t max_running;  /* sequences decoded at a time; 16 */
    int drafts;            /* as in ds_engine_opts: 0 = off, N, DS_ENGINE_DRAFTS_AUTO */
    uint32_t step_tokens;  /* rows of a step at most; 512. Changes no result */
    const char *kv_dir;    /* prefixes are kept in this directory, for later opens too; none. One process has it open at a time */
    uint64_t kv_capacity;  /* bytes of its files at most; no bound */
    const char *cache_dir; /* with kv_dir: where the digest of the model's files is remembered; it is computed each time */
} ds_llm_opts;

/* opts may be NULL. On failure *out is NULL and nothing is held. DS_E_ARG, DS_E_FORMAT, DS_E_IO, DS_E_NOMEM. */
ds_rc ds_llm_open(ds_llm **out, const char *dir, const ds_llm_opts *opts, ds_err *err);
void ds_llm_close(ds_llm *l); /* NULL is fine */

ds_engine *ds_llm_engine(const ds_llm *l); /* valid until close, like all that follow */
const ds_tokenizer *ds_llm_tokenizer(const ds_llm *l);
const ds_token *ds_llm_stop_ids(const ds_llm *l, size_t *n); /* ids that end a text: generation_config.json, else config.json */
uint32_t ds_llm_context(const ds_llm *l);                    /* tokens of prompt and output that one sequence may have */
uint32_t ds_llm_vocab(const ds_llm *l);
const char *ds_llm_device(const ds_llm *l); /* that it runs on: "cpu", "cuda:0" */
ds_token ds_llm_bos(const ds_llm *l);       /* goes in front of raw text */

/* How this model wants pictures prepared and laid out, and the id that stands for their positions in a prompt
 * (ds_request_expand_images). False: it takes none. */
bool ds_llm_pictures(const ds_llm *l, ds_image_rule *rule, ds_token *token);
/* A prepared picture through the vision tower: out [layout.tokens][ds_llm_hidden], for ds_gen_image. The tower has
 * buffers of its own: pictures wait for each other, and not for the engine's steps. DS_E_ARG: the model
 * takes none, or not this one; DS_E_NOMEM. */
ds_rc ds_llm_embed(ds_llm *l, const ds_picture *p, float *out, ds_err *err);
uint32_t ds_llm_hidden(const ds_llm *l);

/* What a request of the HTTP API says that its answers must be (response_format, structured_outputs, tools …), for
 * requests to this engine with so many samples. body: a Chat request, or one of completions, whose prompt nobody looks
 * at. *out is NULL when it asks for nothing. DS_E_FORMAT: the body is refused; DS_E_ARG: the constraint is, each with
 * the place; DS_E_AGAIN: too many different ones are in use; DS_E_NOMEM. The first one takes longer: the vocabulary is
 * prepared then. From any thread; all are ended before close. */
typedef struct ds_constrained ds_llm_constraint;
ds_rc ds_llm_constrain(ds_llm *l, ds_proto proto, const char *body, size_t n_body, uint32_t samples, ds_llm_constraint **out, ds_err *err);
const ds_gen_grammar *ds_llm_constraint_grammar(const ds_llm_constraint *c); /* for ds_gen_request, until end */
const char *ds_llm_constraint_failure(ds_llm_constraint *c);                 /* why a sample failed, if that was its grammar; else NULL */
void ds_llm_constraint_end(ds_llm_constraint *c);                            /* its request's last event has been polled. NULL is fine */

/* Sizes of the structs that a binding writes down again, in the order of the list in llm.c; *n their number. */
const size_t *ds_llm_abi(size_t *n);

#endif
