/* The engine: many requests at once on one model.
 *
 *   ds_engine_create     from a model and options; everything that depends on load is sized and taken here
 *   ds_engine_add        one request: prompt ids, sampling, limits; answers at once (DS_E_AGAIN when the queue is full)
 *   ds_engine_run        one turn of the loop by the caller, or
 *   ds_engine_start      a thread that does it
 *   ds_engine_poll       what happened, copied out: tokens and ends
 *   ds_engine_cancel     ends a request in whatever state it is
 *   ds_engine_drain      no new requests; finish those there are
 *   ds_engine_stats      all that a metrics page shows
 *
 * What a caller may rely on
 *   - Every request that add() accepted ends with exactly one DS_EV_END for each of its samples; each token is reported once, in order,
 *     before it.
 *   - The text of a request is a pure function of model, mode, prompt, sampling and seed: not of load, batch, chunks, preemption,
 *     speculation or the number of threads. The one exception is mode CED for a request that isn't `reproducible`: a prefix hit may be
 *     continued by replay (DS_EV_START says how many tokens were replayed), or rest on what a replay left.
 *   - Events never point into the engine. A reader that stops reading holds back its own requests' events and nothing else: output is
 *     kept in memory that add() took.
 *   - Nothing is taken from the heap while the loop runs.
 *   - After a sample's DS_EV_END nothing of the caller's is used for it any more: no callback runs, no embedding is read.
 *
 * Threads: add, cancel, poll, stats, drain from any thread at any time; run from one thread at a time, not together with start. Callbacks
 * of a request run on the engine's own threads and must not call the engine.   Memory: create takes what the plan says; add takes the
 * request's own tables, given back when its last event has been polled. */
#ifndef DS_ENGINE_H
#define DS_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ds/err.h>

typedef struct ds_engine ds_engine;
struct ds_model; /* an opened model: model/model.h */

/* ---- options ------------------------------------------------------------------------------------------------------------------------- */

typedef enum {
    DS_ENGINE_CED,   /* prompts: decoder on the last window only; hits continue from saved window state or by replay */
    DS_ENGINE_EXACT, /* all layers on every token; hits continue from saved window state only, so that a hit never changes a bit */
} ds_engine_mode;

#define DS_ENGINE_DRAFTS_AUTO (-1)
#define DS_ENGINE_PRIORITIES 8 /* 0 = first served .. 7 */

/* Zero means the default that is named. */
typedef struct {
    ds_engine_mode mode;
    bool no_replay; /* CED: continue from saved state only; then hits never change a bit */
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
    uint64_t memory_bytes;  /* the plan may not exceed it; 0 = not checked */
    uint32_t state_ttl_ms;  /* a saved state not used for so long is dropped; 0 = 600,000 */
    uint32_t target_tbt_us; /* wanted time between tokens: prefill chunks get what decoding leaves of it; 0 = none */
    uint32_t ageing_ms;     /* waiting so long is worth one priority level; 0 = 1,000 */
    int drafts;             /* drafts verified for a sequence in a step: 0 = off, N, DS_ENGINE_DRAFTS_AUTO = while it pays */
    uint32_t verify_rows;   /* draft rows of all sequences in a step at most; 0 = 64 */

    /* Identity of what a cached block depends on besides its tokens; any of them may be NULL. Copied. */
    const char *model_revision, *tokenizer_id, *template_id;

    /* Bytes of a token for stop strings; NULL: stop strings are refused. Called from the thread that runs the loop; valid until its next
     * call. */
    const char *(*token_bytes)(void *ctx, int32_t id, size_t *n);
    /* Called when events become available after there were none, from the loop's thread: write to an event loop's descriptor here, and
     * then poll until it gives fewer events than there was room for. NULL: none. */
    void (*wake)(void *ctx);
    void *ctx; /* for both */
} ds_engine_opts;

typedef struct {
    uint32_t kv_blocks, state_slots, saved_states, max_context, max_running, step_tokens;
    uint64_t block_bytes, slot_bytes;
    uint64_t kv, states, tails, tables, buffers, host, total; /* bytes */
    uint64_t kv_tokens;                                       /* that all blocks together hold */
} ds_engine_plan;

/* What create would take. DS_E_NOMEM with the largest context that would fit when memory_bytes is too small; DS_E_ARG as create. */
ds_rc ds_engine_plan_get(ds_engine_plan *out, const struct ds_model *m, const ds_engine_opts *o, ds_err *err);

/* The model must outlive the engine. pool: a team for the device thread (struct ds_pool, base/pool.h), borrowed and used by nobody else;
 * NULL: the device thread alone. DS_E_ARG, DS_E_NOMEM. */
struct ds_pool;
ds_rc ds_engine_create(ds_engine **out, const struct ds_model *m, struct ds_pool *pool, const ds_engine_opts *o, ds_err *err);
/* Cancels what is left and waits for the device. NULL is fine. */
void ds_engine_destroy(ds_engine *e);
ds_rc ds_engine_plan_of(const ds_engine *e, ds_engine_plan *out);

/* An engine without a model: tokens come from a function, time from a setting. For tests and benchmarks of what stands on the engine. */
typedef struct {
    uint32_t vocab;  /* 0 = 129,280 */
    uint32_t drafts; /* 0..15: a step gives 1 + 0..drafts tokens, at random from the seed */
    uint64_t seed;
    uint64_t step_ns; /* a step takes at least so long; 0 = as fast as it goes */
    uint64_t row_ns;  /* and so much for each row */
    uint32_t phases;  /* steps from a sequence's token to its next, as if several engines took turns; 0 = 1 */
    /* Token number `index` of a sample; NULL: a function of prompt, seed and index. May be called twice for one token. */
    int32_t (*token)(void *ctx, void *user, uint32_t sample, uint32_t index);
    void *ctx;
    bool verify; /* model KV and window state by value and check every read; slow, for tests */
} ds_engine_stub;
ds_rc ds_engine_create_stub(ds_engine **out, const ds_engine_stub *s, const ds_engine_opts *o, ds_err *err);

/* ---- requests ------------------------------------------------------------------------------------------------------------------------ */

typedef struct {
    double temperature;                         /* >= 0; 0 = greedy */
    double top_p;                               /* (0, 1]; 1 = off */
    double min_p;                               /* [0, 1]; 0 = off */
    uint32_t top_k;                             /* 0 = off */
    double repetition_penalty;                  /* > 0; 1 = off */
    double presence_penalty, frequency_penalty; /* 0 = off */
    uint64_t seed;                              /* sample k draws with seed + k * seed_step */
    uint64_t seed_step;                         /* 0 = 1 */
} ds_engine_sampling;

#define DS_ENGINE_SAMPLING_DEFAULT ((ds_engine_sampling){ .temperature = 1.0, .top_p = 1.0, .repetition_penalty = 1.0 })

typedef struct {
    uint32_t id;
    float bias; /* added to the logit; -100 or less forbids */
} ds_engine_bias;

/* Allowed tokens of constrained decoding. For each sample: mask() before a draw, accept() after it, strictly alternating, each token once
 * and in order; what is accepted is never taken back. Called on device threads, never two at once for one sample. A draft that mask()
 * forbids ends the verified prefix. */
typedef struct {
    void *ctx;
    /* Sets bit i % 32 of words[i / 32] for every allowed token (all bits are clear before). False: everything is allowed. */
    bool (*mask)(void *ctx, uint32_t sample, uint32_t *words);
    void (*accept)(void *ctx, uint32_t sample, int32_t token);
} ds_engine_grammar;

/* An image span: the positions pos .. pos + n - 1 of the prompt. */
typedef struct {
    uint32_t pos, n;
    const float *embedding; /* [n][hidden_size]; borrowed until the request's last event has been polled */
    uint8_t digest[32];     /* of what the embedding was made from: goes into the prefix cache's keys */
} ds_engine_image;

typedef struct {
    const int32_t *prompt; /* copied */
    uint32_t n_prompt;     /* >= 1, and room for one token after it */
    uint32_t max_tokens;   /* >= 1; the context may end a text before */
    uint32_t min_tokens;   /* <= max_tokens: stop_ids aren't drawn before, unless nothing else is allowed */
    uint32_t n;            /* samples; 0 = 1 */
    ds_engine_sampling sampling;
    const ds_engine_bias *bias;
    size_t n_bias;
    const int32_t *stop_ids;  /* end the text; counted, not reported */
    size_t n_stop_ids;        /* <= 16 */
    const char *const *stop;  /* strings; the text ends before the first byte of the first that is complete */
    const size_t *stop_bytes; /* lengths, each 1..256; NULL: they are NUL-terminated */
    size_t n_stop;            /* <= 16 */
    bool logprobs;
    uint32_t n_top;                /* 0..20 */
    uint32_t priority;             /* 0 = first served .. 7 */
    uint64_t deadline_us;          /* from now; 0 = none. Then the request ends with DS_ENDED_DEADLINE */
    const char *cache_domain;      /* requests share cached prefixes only within a domain; NULL = the common one */
    const char *cache_salt;        /* the same, chosen by the client; NULL = none */
    bool no_cache;                 /* neither use nor leave cached prefixes */
    bool reproducible;             /* a prefix hit gives the bits of a cold run: never by replay, nor on what a replay left */
    const ds_engine_image *images; /* copied; in order, not overlapping */
    size_t n_images;
    const ds_engine_grammar *grammar; /* copied; NULL = none */
    void *user;                       /* comes back in every event */
} ds_engine_request;

/* DS_OK: *id names the request until its last event has been polled. Any failure: nothing was taken. DS_E_AGAIN: max_requests, or
 * draining. DS_E_ARG: a value out of range, the prompt doesn't fit the context or could never fit the blocks. DS_E_NOMEM. O(prompt): the
 * cache's keys are computed here. */
ds_rc ds_engine_add(ds_engine *e, const ds_engine_request *q, uint64_t *id, ds_err *err);

/* Ends all samples of a request, each with DS_ENDED_CANCELED unless it ended before. Ids that are gone are ignored. */
void ds_engine_cancel(ds_engine *e, uint64_t id);

/* Ends one sample with the given reason at the next turn, keeping what it has (a stop that only the reader of the text can see). */
void ds_engine_finish_sample(ds_engine *e, uint64_t id, uint32_t sample);

/* ---- events -------------------------------------------------------------------------------------------------------------------------- */

typedef enum {
    DS_EV_START, /* a sample's prompt is being computed: n_prompt, cached, replayed */
    DS_EV_TOKEN,
    DS_EV_END,
} ds_event_kind;

typedef enum {
    DS_ENDED_STOP_ID,
    DS_ENDED_STOP_STRING,
    DS_ENDED_LENGTH,   /* max_tokens, or the end of the context */
    DS_ENDED_CANCELED, /* cancel, finish_sample, destroy */
    DS_ENDED_DEADLINE,
    DS_ENDED_FAILED, /* the model gave values that aren't finite, a mask forbade everything: `rc` says */
} ds_end_reason;

typedef struct {
    int32_t id;
    float logprob;
} ds_engine_logprob;

typedef struct {
    ds_event_kind kind;
    uint32_t sample;
    uint64_t request;
    void *user;
    union {
        struct {
            uint32_t n_prompt;
            uint32_t cached;   /* a multiple of 128, at most n_prompt - 134 */
            uint32_t replayed; /* of the cached ones, computed again for window state */
            uint64_t queued_us;
        } start;
        struct {
            int32_t id;
            uint32_t index;      /* 0, 1, 2, … */
            uint32_t held_bytes; /* trailing bytes of the text so far that a stop string may still swallow */
            float logprob;       /* natural logarithm, of the raw logits; 0 when none were asked for */
            uint32_t n_top;
            uint64_t readable_us;      /* on the monotonic clock: since when this, or an older token read with it, could be read */
            ds_engine_logprob top[20]; /* best first; id -1: the vocabulary is smaller */
        } token;
        struct {
            ds_end_reason reason;
            ds_rc rc;
            int32_t stop_id;                /* STOP_ID: which */
            uint32_t stop;                  /* STOP_STRING: which */
            uint32_t cut_bytes;             /* STOP_STRING: this many trailing bytes of the text don't belong to it */
            uint32_t n_tokens;              /* reported */
            uint32_t completion_tokens;     /* n_tokens, and the stop id */
            uint32_t drafted, accepted;     /* drafts verified for it and kept */
            uint64_t prefill_us, decode_us; /* from START to the first token; from there to the end */
            bool last;                      /* of the request's samples: its id is gone now */
        } end;
    };
} ds_event;

/* Copies up to cap events, oldest request first, and returns their number: fewer than cap means that there are no more now. */
size_t ds_engine_poll(ds_engine *e, ds_event *ev, size_t cap);
/* Waits until poll would give something, for at most timeout_ms (0: looks only). True: it would. Not needed with `wake`; only useful with
 * start. */
bool ds_engine_wait(ds_engine *e, uint32_t timeout_ms);

/* ---- the loop ------------------------------------------------------------------------------------------------------------------------ */

/* One turn: plans and submits a step if there is room on the device, then takes one result. False: nothing is left to do. */
bool ds_engine_run(ds_engine *e);
/* A thread turns until destroy, sleeping when idle. DS_E_IO: it can't start. */
ds_rc ds_engine_start(ds_engine *e, ds_err *err);
/* No new requests from now on. True once all are ended (they may still have events to poll). */
bool ds_engine_drain(ds_engine *e);

/* ---- statistics ---------------------------------------------------------------------------------------------------------------------- */

#define DS_ENGINE_HIST 32 /* bucket i: [2^i, 2^(i+1)) microseconds, the first also what is below, the last what is above */
#define DS_ENGINE_MAX_DRAFTS 15

typedef struct {
    uint64_t n, sum_us;
    uint64_t bucket[DS_ENGINE_HIST];
} ds_engine_hist;

typedef struct {
    /* now */
    uint32_t waiting, prefilling, running, parked, requests;
    uint32_t kv_blocks, kv_used, kv_cached; /* cached: kept for hits, free for anyone */
    uint32_t states, states_used, slots, slots_used;
    double drafts_per_seq; /* that the controller asks for */
    double cost[4];        /* a, b, d, e of the fitted step time in us: a + b q + d q c + e q^2 */
    /* totals */
    uint64_t accepted, refused_busy, refused_arg;               /* requests, by add's answer */
    uint64_t ended[6];                                          /* samples by ds_end_reason */
    uint64_t prompt_tokens, computed_tokens, recomputed_tokens; /* rows of prompts; of them again after preemption */
    uint64_t hit_state_tokens, hit_replay_tokens,
        replayed_tokens;                    /* cached tokens continued from saved state; by replay; rows that replay cost */
    uint64_t output_tokens, dropped_tokens; /* reported; computed after the end was known */
    uint64_t drafted[DS_ENGINE_MAX_DRAFTS], kept[DS_ENGINE_MAX_DRAFTS]; /* by position in the block */
    uint64_t preempted_parked, preempted_recomputed;
    uint64_t states_saved, states_evicted, blocks_published, blocks_evicted;
    uint64_t steps, step_rows;
    uint64_t device_busy_ns, device_idle_ns; /* idle: while there was work */
    uint64_t host_plan_ns, host_finish_ns, host_publish_ns, draft_ns, sample_ns;
    /* times */
    ds_engine_hist queue, ttft, tbt, step_prefill, step_decode, total;
} ds_engine_stats;

void ds_engine_stats_get(ds_engine *e, ds_engine_stats *out);

#endif
