/* A generator: where prompts go in and tokens come out, whatever is behind it.
 *
 * Two things are here: what goes in and comes out (requests, events, statistics, the memory plan), and a table of
 * functions with a handle that stands for one engine in this process (ds_engine_gen, ds/engine.h), for several of
 * them (ds_gen_many), or for what is yet to come behind a wire. Whoever serves requests holds a `ds_gen` and knows
 * no engine.
 *
 *   ds_gen_add             one request; its answer is what events say
 *   ds_gen_poll            what happened, copied out: tokens and ends. ds_gen_wake_by and ds_gen_wait say when to look
 *   ds_gen_cancel          ends a request in whatever state it is
 *   ds_gen_finish_sample   ends one sample of it
 *   ds_gen_drain           no new requests; finish those there are
 *   ds_gen_stats, _plan    of each engine behind it
 *
 * What a caller may rely on
 *   - Every request that add() accepted ends with exactly one DS_EV_END for each of its samples, also when the
 *     engine behind it is gone; each token is reported once, in order, before it. Events of different requests come
 *     in any order.
 *   - What add() can know at once it answers at once. What only a distant engine knows (its queue is full, it
 *     doesn't like a value) may come as an end: DS_ENDED_FAILED with the code that add() would have returned, and no
 *     START or token before it.
 *   - An id is given by add() without asking anybody, and is never used again within any time that matters.
 *   - After a sample's DS_EV_END nothing of the caller's is used for it any more: no callback runs, no embedding is
 *     read.
 *   - No function waits for an engine, except wait().
 *
 * Threads: all functions from any thread at any time, poll from one at a time; wake_by before the first add.
 * Callbacks of a request run on threads of the engine and must not call the generator.   Memory: a generator's
 * functions take none but what add says. */
#ifndef DS_GEN_H
#define DS_GEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ds/err.h>
#include <ds/sampling.h>
#include <ds/str.h>
#include <ds/token.h>

/* ---- requests ---------------------------------------------------------------------------------------------------- */

#define DS_GEN_PRIORITIES 8 /* 0 = first served .. 7 */
enum { DS_GEN_MAX_STOP_IDS = 64 };

/* Which tokens may come next, for constrained texts: a table of functions, so that whoever asks for a text (a server,
 * a test, the other end of a wire) brings its own. An engine asks for masks while its device computes and reads the
 * rows that it needs afterwards; a sample whose masks aren't there in time waits for them and nobody else does.
 *
 * For a sample, never two calls at once, on threads of the engine's: accept() with what was drawn since the masks
 * before, each token once and in order, nothing of it ever taken back; then masks(). The last tokens of a text may
 * never be accepted, and masks() may be asked again for the same text, for other drafts. */
typedef struct {
    /* Row r, at words + r * ld, is for the place behind the text and drafts 0 .. r-1: bit i % 32 of word i / 32 for
     * every token i that may stand there, all other bits of the vocabulary's words clear (they hold anything
     * before). Ids that end a text are tokens like any other. Returns the number of rows that are filled in: one, and
     * one more for each draft in front of the first that may not stand where it does. 0: the text can't go on, and
     * the sample ends with DS_ENDED_FAILED, as it does where a row allows nothing. */
    uint32_t (*masks)(void *ctx, uint32_t sample, const ds_token *drafts, uint32_t n, uint32_t *words, size_t ld);
    void (*accept)(void *ctx, uint32_t sample, const ds_token *tokens, uint32_t n);
} ds_gen_grammar_fn;

/* fn stays what it is until the request's last event; ctx and what.p too. */
typedef struct {
    const ds_gen_grammar_fn *fn;
    void *ctx;
    ds_str what; /* from which another process makes the same (constrain/constrain.h); empty: it can't leave this one */
} ds_gen_grammar;

/* Whether a prefix hit may go on by replay, or on what a replay left, whose bits differ from those of a cold run. */
typedef enum {
    DS_REPLAY_AUTO, /* not for a request that is seeded, greedy or asks for log-probabilities: it wants the same bits again */
    DS_REPLAY_FREE,
    DS_REPLAY_NEVER,
} ds_gen_replay;

/* An image span: the positions pos .. pos + n - 1 of the prompt. */
typedef struct {
    uint32_t pos, n;
    const float *embedding; /* [n][hidden_size]; borrowed until the request's last event has been polled */
    uint8_t digest[32];     /* of what the embedding was made from: goes into the prefix cache's keys */
} ds_gen_image;

/* What a request handed over to whoever goes on with it (hand_over). */
typedef struct {
    const char *address; /* of the engine process that has it */
    uint64_t epoch;      /* of that process */
    uint64_t ticket;     /* from the end event */
} ds_gen_from;

typedef struct {
    const ds_token *prompt; /* copied */
    uint32_t n_prompt;      /* >= 1, and room for one token after it */
    uint32_t max_tokens;    /* >= 1; the context may end a text before */
    uint32_t min_tokens; /* <= max_tokens: stop_ids aren't drawn before, unless nothing else is allowed; strings of `stop` that are complete
                              within so many tokens are text */
    uint32_t n;          /* samples; 0 = 1 */
    ds_sampling sampling; /* nothing missing */
    const ds_token_bias *bias;
    size_t n_bias;
    const ds_token_seq *bad;  /* copied; sequences that the output doesn't complete: the last id isn't drawn behind the others */
    size_t n_bad;             /* <= 1024, of 1..256 ids */
    const ds_token *allowed;  /* copied; nothing else is drawn, no stop id either */
    size_t n_allowed;         /* 0 = all */
    const ds_token *stop_ids; /* end the text; counted */
    size_t n_stop_ids;        /* <= DS_GEN_MAX_STOP_IDS */
    bool report_stop_id;      /* the one that ends the text has a DS_EV_TOKEN of its own, as its last */
    const ds_str *stop;       /* strings of 1..256 bytes; the text ends before the first byte of the first that is complete */
    size_t n_stop;            /* <= 16 */
    bool logprobs;
    uint32_t n_top;        /* 0..20 */
    bool prompt_logprobs;  /* of the prompt's own tokens: DS_EV_PROMPT. Its rows go through all layers; no cached prefix is used or left */
    uint32_t n_prompt_top; /* 0..20 */
    uint32_t priority;     /* 0 = first served .. 7 */
    uint64_t deadline_us;  /* from now; 0 = none. Then the request ends with DS_ENDED_DEADLINE */
    const char *cache_domain; /* requests share cached prefixes only within a domain; NULL = the common one */
    const char *cache_salt;   /* the same, chosen by the client; NULL = none */
    bool no_cache;            /* neither use nor leave cached prefixes */
    ds_gen_replay replay;
    const ds_gen_image *images; /* copied; in order, not overlapping */
    size_t n_images;
    const ds_gen_grammar *grammar; /* copied; NULL = none */
    uint64_t cookie;               /* comes back in every event; means something to the caller alone and never leaves its process */
    uint64_t tag;                  /* an engine without a model hands it to its token function; others don't look at it */
    const ds_token
        *output;       /* copied; what the request's one sample has already, from an engine that is gone. Events go on behind it, max_tokens
                                      and min_tokens count it, and a grammar must be where it leads. The bits are those of one engine; a text
                                      that is over with it has its end and no token */
    uint32_t n_output; /* 0: nothing; <= max_tokens. Not with prompt_logprobs */
    bool hand_over; /* stops behind its first token, unless it is over, and ends with DS_ENDED_CANCELED and a ticket. For engine processes,
                                      of one sample and without prompt_logprobs; others don't look at it */
    const ds_gen_from *from; /* copied; goes on with what another engine process has of it, which is behind `output`. NULL: with nothing. As
                                      hand_over; not both */
} ds_gen_request;

/* ---- events ------------------------------------------------------------------------------------------------------ */

typedef enum {
    DS_EV_START, /* a sample's prompt is being computed: n_prompt, cached, replayed */
    DS_EV_TOKEN,
    DS_EV_END,
    DS_EV_PROMPT, /* sample 0, prompt_logprobs: what `token` says of each position of the prompt from 1 on, in order, before its first token */
} ds_event_kind;

typedef enum {
    DS_ENDED_STOP_ID,
    DS_ENDED_STOP_STRING,
    DS_ENDED_LENGTH,   /* max_tokens, or the end of the context */
    DS_ENDED_CANCELED, /* cancel, finish_sample, destroy */
    DS_ENDED_DEADLINE,
    DS_ENDED_FAILED, /* `rc` says: DS_E_AGAIN, DS_E_ARG, DS_E_NOMEM: refused after all, as add would have; else the model gave values that aren't
                        finite, or a mask forbade everything */
    DS_ENDED_LOST, /* the engine behind it is gone; what was reported is right, what would have followed never comes */
} ds_end_reason;
enum { DS_N_ENDED = DS_ENDED_LOST + 1 };

typedef struct {
    ds_token id;
    float logprob;
} ds_gen_logprob;

typedef struct {
    ds_event_kind kind;
    uint32_t sample;
    uint64_t request;
    uint64_t cookie;
    union {
        struct {
            uint32_t n_prompt;
            uint32_t cached;   /* a multiple of 128, at most n_prompt - 134 */
            uint32_t replayed; /* of the cached ones, computed again for window state */
            uint64_t queued_us;
        } start;
        struct {
            ds_token id;
            uint32_t index;      /* 0, 1, 2, …; PROMPT: the position */
            uint32_t held_bytes; /* trailing bytes of the text so far that a stop string may still swallow */
            float logprob;       /* natural logarithm, of the raw logits; 0 when none were asked for; NaN inside an image */
            uint32_t rank;       /* PROMPT: 1 = no other token was more likely */
            uint32_t n_top;
            uint64_t readable_us;   /* on the generator's clock: since when this, or an older token read with it, could be read */
            ds_gen_logprob top[20]; /* best first; DS_TOKEN_NONE: the vocabulary is smaller */
        } token;
        struct {
            ds_end_reason reason;
            ds_rc rc;
            ds_token stop_id;               /* STOP_ID: which */
            uint32_t stop;                  /* STOP_STRING: which */
            uint32_t cut_bytes;             /* STOP_STRING: this many trailing bytes of the text don't belong to it */
            uint32_t n_tokens;              /* reported */
            uint32_t completion_tokens;     /* n_tokens, and the stop id that wasn't reported */
            uint32_t drafted, accepted;     /* drafts verified for it and kept */
            uint64_t prefill_us, decode_us; /* from START to the first token; from there to the end */
            uint64_t ticket;                /* CANCELED: what it was goes on from there (ds_gen_request.hand_over); 0: nothing does */
            bool last;                      /* of the request's samples: its id is gone now */
        } end;
    };
} ds_event;

/* ---- statistics -------------------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t kv_blocks, state_slots, saved_states, max_context, max_running, step_tokens;
    uint32_t step_rows;                /* of a step at most, drafts too */
    uint32_t host_blocks, host_states; /* that host memory behind them holds */
    uint64_t block_bytes, slot_bytes;
    uint64_t host_kv;                                         /* bytes of that memory; in `total` */
    uint64_t kv, states, tails, tables, buffers, host, total; /* bytes */
    uint64_t device;                                          /* of that, in the memory that memory_bytes bounds: a GPU's own, or all */
    uint64_t kv_tokens;                                       /* that all blocks together hold */
    uint32_t largest_context; /* where the plan doesn't fit its budget: the longest context of which one sequence would; 0: none */
} ds_gen_plan;

#define DS_GEN_HIST 32 /* bucket i: [2^i, 2^(i+1)) microseconds, the first also what is below, the last what is above */
#define DS_GEN_MAX_DRAFTS 15
#define DS_GEN_MISSES 6 /* by ds_store_result, engine/store.h: 0 isn't one, gone, late, busy, I/O, corrupt */

typedef struct {
    uint64_t n, sum_us;
    uint64_t bucket[DS_GEN_HIST];
} ds_gen_hist;

typedef struct {
    /* now: samples. running: with a seat, prefilling ones among them; waiting: in the queue, parked ones among them */
    uint32_t waiting, prefilling, running, parked, requests;
    uint32_t lost;                          /* engines whose device failed: they take no requests any more */
    uint32_t kv_blocks, kv_used, kv_cached; /* cached: kept for hits, free for anyone */
    uint32_t states, states_used, slots, slots_used;
    uint32_t host_blocks, host_blocks_used, host_states, host_states_used; /* of host memory behind the device's */
    double drafts_per_seq;                                                 /* that the controller asks for */
    double cost[4]; /* a, b, d, e of the fitted step time in us: a + b q + d q c + e q^2 */
    /* totals */
    uint64_t accepted, refused_busy, refused_arg;               /* requests, by add's answer */
    uint64_t ended[DS_N_ENDED];                                 /* samples by ds_end_reason */
    uint64_t prompt_tokens, computed_tokens, recomputed_tokens; /* rows of prompts; of them again after preemption */
    uint64_t hit_state_tokens, hit_replay_tokens,
        replayed_tokens;                        /* cached tokens continued from saved state; by replay; rows that replay cost */
    uint64_t hit_host_tokens, hit_store_tokens; /* of the cached tokens those whose blocks came from host memory, and from behind it */
    uint64_t fetches, fetched_blocks, fetched_states; /* from there; what was asked for and didn't come, by cause */
    uint64_t fetch_missed[DS_GEN_MISSES];
    uint64_t saves_lost; /* blocks and states that had left the device before the store took them */
    uint64_t host_blocks_saved, host_blocks_evicted, host_states_saved, host_states_evicted;
    uint64_t output_tokens, dropped_tokens;                       /* reported; computed after the end was known */
    uint64_t drafted[DS_GEN_MAX_DRAFTS], kept[DS_GEN_MAX_DRAFTS]; /* by position in the block */
    uint64_t preempted_parked, preempted_recomputed;
    uint64_t states_saved, states_evicted, blocks_published, blocks_evicted;
    uint64_t steps, step_rows;
    uint64_t device_busy_ns, device_idle_ns;                          /* idle: while there was work */
    uint64_t host_plan_ns, host_finish_ns, host_publish_ns, draft_ns; /* draft: what steps waited for drafts */
    /* times */
    ds_gen_hist queue, ttft, tbt, step_prefill, step_decode, total;
    ds_gen_hist fetch; /* from asking a store to having all that came, or to giving up */
} ds_gen_stats;

/* ---- the generator ----------------------------------------------------------------------------------------------- */

typedef struct {
    ds_rc (*add)(void *h, const ds_gen_request *q, uint64_t *id, ds_err *err);
    void (*cancel)(void *h, uint64_t id);
    void (*finish_sample)(void *h, uint64_t id, uint32_t sample);
    size_t (*poll)(void *h, ds_event *ev, size_t cap);
    bool (*wait)(void *h, uint32_t timeout_ms);
    void (*wake_by)(void *h, void (*wake)(void *ctx), void *ctx);
    bool (*drain)(void *h);
    uint32_t (*n_engines)(void *h);
    bool (*stats)(void *h, uint32_t engine, ds_gen_stats *out);
    bool (*plan)(void *h, uint32_t engine, ds_gen_plan *out);
} ds_gen_fn;

/* Borrowed from whoever made what is behind it; copy with =. */
typedef struct {
    const ds_gen_fn *fn;
    void *h;
} ds_gen;

/* DS_OK: *id, which is never 0, names the request until its last event has been polled. Any failure: nothing was
 * taken. DS_E_AGAIN: too many requests, or draining. DS_E_IO: the engine is known to be gone; once one was lost, add
 * says so until it is there again. DS_E_ARG: a value out of range, a prompt that doesn't fit. DS_E_NOMEM. O(prompt). */
static inline ds_rc ds_gen_add(ds_gen g, const ds_gen_request *q, uint64_t *id, ds_err *err)
{
    return g.fn->add(g.h, q, id, err);
}
/* Ends all samples of a request, each with DS_ENDED_CANCELED unless it ended before. Ids that are gone are ignored. */
static inline void ds_gen_cancel(ds_gen g, uint64_t id)
{
    g.fn->cancel(g.h, id);
}
/* Ends one sample with DS_ENDED_CANCELED soon, keeping what it has (a stop that only the reader of the text can
 * see). */
static inline void ds_gen_finish_sample(ds_gen g, uint64_t id, uint32_t sample)
{
    g.fn->finish_sample(g.h, id, sample);
}
/* Copies up to cap events and returns their number: fewer than cap means that there are no more now. */
static inline size_t ds_gen_poll(ds_gen g, ds_event *ev, size_t cap)
{
    return g.fn->poll(g.h, ev, cap);
}
/* Waits until poll would give something, for at most timeout_ms (0: looks only). True: it would. */
static inline bool ds_gen_wait(ds_gen g, uint32_t timeout_ms)
{
    return g.fn->wait(g.h, timeout_ms);
}
/* wake is called when events become available after there were none, from a thread of the generator's: write to an
 * event loop's descriptor there, and then poll until it gives fewer events than there was room for. It may be called
 * more often. NULL: nobody is called. */
static inline void ds_gen_wake_by(ds_gen g, void (*wake)(void *ctx), void *ctx)
{
    g.fn->wake_by(g.h, wake, ctx);
}
/* No new requests from now on. True once all are ended (they may still have events to poll). */
static inline bool ds_gen_drain(ds_gen g)
{
    return g.fn->drain(g.h);
}
/* Engines behind it; constant, but where parts come and go (ds_gen_many_add). */
static inline uint32_t ds_gen_n_engines(ds_gen g)
{
    return g.fn->n_engines(g.h);
}
/* Of one engine, as far as it has told. False: nothing is known of it, *out is unchanged. */
static inline bool ds_gen_stats_get(ds_gen g, uint32_t engine, ds_gen_stats *out)
{
    return g.fn->stats(g.h, engine, out);
}
static inline bool ds_gen_plan_get(ds_gen g, uint32_t engine, ds_gen_plan *out)
{
    return g.fn->plan(g.h, engine, out);
}

/* Adds what has a sum: all but drafts_per_seq and cost, which stay as they are. */
void ds_gen_stats_add(ds_gen_stats *to, const ds_gen_stats *s);

/* ---- several as one ---------------------------------------------------------------------------------------------- */

/* A request goes to the part with the least work ahead: prompt tokens not computed yet, without cached ones once
 * they are known, and expected tokens of the answers, from their limit and the mean length of those before. Of
 * equals it is the first. A part that answers DS_E_AGAIN or DS_E_IO leaves the request to the next; only if none
 * takes it the caller hears of it. Other refusals are every part's, and are answered at once. Memory: add takes a
 * record for as long as a request is live, from a table that grows to the most there were. */
enum { DS_GEN_MANY_MAX = 64 };
typedef struct ds_gen_many ds_gen_many;

/* The parts are copied; their wakes are its own from here on, and nobody else polls them. DS_E_ARG: n isn't within
 * 1..DS_GEN_MANY_MAX; DS_E_NOMEM. */
ds_rc ds_gen_many_create(ds_gen_many **out, const ds_gen *parts, size_t n, ds_err *err);
/* One more, while requests run. *place names it. DS_E_AGAIN: there are DS_GEN_MANY_MAX. */
ds_rc ds_gen_many_add(ds_gen_many *m, ds_gen part, uint32_t *place, ds_err *err);
/* The part at that place (those of create have 0 .. n - 1) gets nothing new from now on. True: every event of its
 * requests was polled, nobody is in a function of it, and it is no part any more: it may be destroyed. False: it is
 * asked for again. Engines behind it move up in their numbers. */
bool ds_gen_many_remove(ds_gen_many *m, uint32_t place);
/* After its parts, which wake it as long as they live. NULL is fine. */
void ds_gen_many_destroy(ds_gen_many *m);
ds_gen ds_gen_many_gen(ds_gen_many *m);

#endif
