/* Engines: how they are made, turned and taken apart. What their users see is ds/engine.h.
 *
 *   ds_engine_create     from a model and options; everything that depends on load is sized and taken here
 *   ds_engine_turn       one turn of the loop by the caller, or
 *   ds_engine_start      a thread that does it
 *   ds_engine_export_*, ds_engine_import
 *                        a sequence goes on in another engine
 *
 * Nothing is taken from the heap while the loop runs.
 *
 * Threads: run from one thread at a time, not together with start; create and destroy from one.   Memory: create
 * takes what the plan says. */
#ifndef DS_ENGINE_ENGINE_H
#define DS_ENGINE_ENGINE_H

#include <ds/engine.h>

struct ds_model; /* an opened model: model/model.h */
struct ds_pool;  /* a team of threads: base/pool.h */
struct ds_comm;  /* to other ranks: parallel/comm.h */

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* What a cached block depends on besides its tokens and what this engine knows itself, as SHA-256 values. They go
 * into the blocks' keys (docs/formats/block-key.md). Zeros: not known; keys are then good inside this engine alone. */
typedef struct {
    uint8_t model[32];     /* of the checkpoint's content: ds_model_digest */
    uint8_t tokenizer[32]; /* of tokenizer.json */
    uint8_t dialect[32];   /* of the name of the prompts' template: "v4.1" */
} ds_engine_identity;

/* Where time comes from: nanoseconds from any origin, 1,000 or more (0 us stands for never). A simulator gives a
 * clock of its own: the loop never waits for time, it only looks at it (deadlines, ageing, the age of states, all
 * measured times), and a device without a model sleeps until its step would be done. Called from the loop's thread
 * and in add. */
typedef struct {
    uint64_t (*now_ns)(void *ctx);
    void (*sleep_until_ns)(void *ctx, uint64_t ns); /* returns when now_ns gives ns or more */
    void *ctx;
} ds_engine_clock;

/* Zero means the default that is named. */
typedef struct {
    ds_engine_mode mode;
    bool no_replay; /* CED: continue from saved state only; then hits never change a bit */
    uint32_t
        replay_keep; /* tokens of the prefix that a replay computes again; 0 = the model's window, which is the least. More come closer to a
                             cold run, and cost as much more */
    bool no_prefix_cache;
    bool bf16;              /* activations */
    uint32_t max_context;   /* tokens of prompt and output of one sequence; 0 = the model's limit */
    uint32_t max_running;   /* sequences decoded at a time; 0 = 16, at most 4096 */
    uint32_t max_requests;  /* accepted and not yet completely polled, all states together; 0 = 4096. More: DS_E_AGAIN */
    uint32_t max_samples;   /* n of one request; 0 = 16 */
    uint32_t step_tokens;   /* rows of a step at most; 0 = 512. Changes no result */
    uint32_t kv_blocks;     /* blocks of 128 tokens; 0 = what memory_bytes leaves, or 4 full-length shares */
    uint32_t saved_states;  /* recent-state pool: window states kept for hits and preemption; 0 = 2 x max_running */
    uint32_t prefills;      /* prompts in progress at a time; 0 = 4 */
    uint64_t memory_bytes;  /* the plan's `device` may not exceed it; 0 = unbounded */
    uint64_t kv_memory;     /* bytes of host memory for prefixes that leave the device's blocks; 0 = none. Part of the plan */
    uint32_t state_ttl_ms;  /* a saved state not used for so long is dropped; 0 = 600,000 */
    uint32_t target_tbt_us; /* wanted time between tokens: prefill chunks get what decoding leaves of it; 0 = none */
    uint32_t ageing_ms;     /* waiting so long is worth one priority level; 0 = 1,000 */
    int drafts;             /* drafts verified for a sequence in a step: 0 = off, N, DS_ENGINE_DRAFTS_AUTO = while it pays */
    uint32_t verify_rows;   /* draft rows of all sequences in a step at most; 0 = 64 */

    /* A store of blocks outside the engine (struct ds_store, engine/store.h), which must outlive it; NULL: none, or
     * with kv_memory the engine's own. kv_memory is what its buffers take; 0 = 64 blocks and 4 states. */
    const struct ds_store *store;
    uint32_t fetches;  /* requests that wait for something from a store at a time; 0 = 8 */
    uint32_t fetch_ms; /* they wait so long at most, and then compute; 0 = 1,000 */
    uint32_t handoff;  /* sequences may be exported and imported, so many blocks in a step; takes so many blocks and a state of stage
                          memory; 0 = they may not */

    /* To the model's other ranks; NULL: the model has none. All ranks have the same step_rows. A create that
     * fails gives up for all of them; destroy waits until all have left. */
    struct ds_comm *comm;

    ds_engine_identity identity;

    /* Bytes of a token for stop strings; NULL: stop strings are refused. Called from the thread that runs the loop; valid until its next
     * call. */
    const char *(*token_bytes)(void *ctx, ds_token id, size_t *n);
    void *ctx;

    ds_engine_clock clock; /* zeros: the monotonic clock */
} ds_engine_opts;

/* What create would take. DS_E_NOMEM when memory_bytes is too small: of *out only largest_context counts then;
 * DS_E_ARG as create. */
ds_rc ds_engine_plan_get(ds_gen_plan *out, const struct ds_model *m, const ds_engine_opts *o, ds_err *err);

/* The model must outlive the engine. pool: a team for the device thread, borrowed and
 * used by nobody else; NULL: the device thread alone. DS_E_ARG, DS_E_NOMEM. */
ds_rc ds_engine_create(ds_engine **out, const struct ds_model *m, struct ds_pool *pool, const ds_engine_opts *o, ds_err *err);
/* Cancels what is left and waits for the device. NULL is fine. */
void ds_engine_destroy(ds_engine *e);

/* An engine without a model: tokens come from a function, time from a setting. For tests and benchmarks of what
 * stands on the engine. */
typedef struct {
    uint32_t vocab;  /* 0 = 129,280 */
    uint32_t drafts; /* 0..15: a step gives 1 + 0..drafts tokens, at random from the seed */
    uint64_t seed;
    uint64_t step_ns; /* a step takes at least so long; 0 = as fast as it goes */
    uint64_t row_ns;  /* and so much for each row */
    uint32_t phases;  /* steps from a sequence's token to its next, as if several engines took turns; 0 = 1 */
    /* Token number `index` of a sample of a request with that tag; NULL: a function of prompt, seed and index. May be called twice for one token. */
    ds_token (*token)(void *ctx, uint64_t tag, uint32_t sample, uint32_t index);
    void *ctx;
    bool verify; /* model KV and window state by value and check every read; slow, for tests */
} ds_engine_stub;
ds_rc ds_engine_create_stub(ds_engine **out, const ds_engine_stub *s, const ds_engine_opts *o, ds_err *err);

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

/* One turn: plans and submits a step if there is room on the device, then takes one result. False: nothing is left
 * to do. */
bool ds_engine_turn(ds_engine *e);
/* A thread turns until destroy, sleeping when idle. DS_E_IO: it can't start. */
ds_rc ds_engine_start(ds_engine *e, ds_err *err);

/* ---- handoff ----
 *
 * A sequence leaves one engine and goes on in another with the bits that it would have had in one. Its record
 * (docs/formats/handoff.md) has its tokens, its window state and the block that isn't whole. Whole blocks go beside it,
 * where they are asked for, or by their keys through a store that both engines have. What the other one doesn't get it
 * computes again. */

typedef struct ds_engine_export ds_engine_export;
typedef struct {
    bool with_blocks; /* its whole blocks too */
    bool with_token;  /* not before it has a token from this engine; else who waits for its turn leaves at once */
} ds_engine_export_how;
/* Takes a request with one sample out of this engine. While its prompt is computed it goes on; at its first token or
 * behind, it stops. It ends here with DS_ENDED_CANCELED. DS_E_ARG: no such request, several samples, exported already,
 * or the engine has no `handoff`. DS_E_NOMEM. */
ds_rc ds_engine_export_begin(ds_engine_export **out, ds_engine *e, uint64_t id, ds_engine_export_how how, ds_err *err);
/* Waits for the record for at most timeout_ms. DS_OK: *record of *n bytes, until free. DS_E_AGAIN: not yet.
 * DS_E_CANCELED: the request ended before. */
ds_rc ds_engine_export_wait(ds_engine_export *x, uint32_t timeout_ms, const uint8_t **record, size_t *n, ds_err *err);
/* When it is there: the whole blocks in front of the record's positions, one behind the other, until free. *n bytes;
 * 0: none were asked for, or there are none. */
const uint8_t *ds_engine_export_blocks(const ds_engine_export *x, size_t *n);
void ds_engine_export_free(ds_engine_export *x); /* at any time; NULL is fine */

/* As add, for a request that an engine of the same identity exported: q is what that one was given, but its cookie;
 * max_tokens counts the tokens of before. Its output is the record's; if q has some, it must be that. The same events
 * come but for those tokens. A grammar must be where these
 * tokens lead. blocks: NULL, or the whole blocks; copied into the device's while it waits for its turn, and then given
 * back by `free`, as they are when it never comes. On failure they stay the caller's. DS_E_FORMAT: not a record, or not
 * of this request or engine. */
typedef struct {
    const uint8_t *p;
    size_t n;
    void (*free)(void *ctx, const uint8_t *p, size_t n); /* from any thread, once */
    void *ctx;
} ds_engine_blocks;
ds_rc ds_engine_import(ds_engine *e, const ds_gen_request *q, const uint8_t *record, size_t n, const ds_engine_blocks *blocks, uint64_t *id,
                       ds_err *err);

#endif
