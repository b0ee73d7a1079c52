/* The engine: many requests at once on one model. Who opens one: ds_llm_open (ds/llm.h).
 *
 *   ds_engine_add        one request: prompt ids, sampling, limits; answers at once (DS_E_AGAIN when the queue is full)
 *   ds_engine_poll       what happened, copied out: tokens and ends
 *   ds_engine_cancel     ends a request in whatever state it is
 *   ds_engine_drain      no new requests; finish those there are
 *   ds_engine_stats_get  all that a metrics page shows
 *
 * What a caller may rely on
 *   - Every request that add() accepted ends with exactly one DS_EV_END for each of its samples; each token is
 *     reported once, in order, before it.
 *   - The text of a request is a pure function of model, mode, prompt, sampling and seed: not of load, batch,
 *     chunks, preemption, speculation or the number of threads. The one exception is mode CED for a request that
 *     may `replay`: a prefix hit may be continued by replay (DS_EV_START says how many tokens were
 *     replayed), or rest on what a replay left.
 *   - Events never point into the engine. A reader that stops reading holds back its own requests' events and
 *     nothing else: output is kept in memory that add() took.
 *   - After a sample's DS_EV_END nothing of the caller's is used for it any more: no callback runs, no embedding is
 *     read.
 *
 * Threads: all functions from any thread at any time. Callbacks of a request run on the engine's own threads and must
 * not call the engine.   Memory: add takes the request's own tables, given back when its last event has been polled. */
#ifndef DS_ENGINE_H
#define DS_ENGINE_H

#include <ds/gen.h>

typedef struct ds_engine ds_engine;

typedef enum {
    DS_ENGINE_CED,   /* prompts: decoder on the last window only; hits continue from saved window state or by replay */
    DS_ENGINE_EXACT, /* all layers on every token; hits continue from saved window state only, so that a hit never changes a bit */
} ds_engine_mode;

#define DS_ENGINE_DRAFTS_AUTO (-1)

/* ---- requests ---------------------------------------------------------------------------------------------------- */

/* DS_OK: *id names the request until its last event has been polled. Any failure: nothing was taken. DS_E_AGAIN:
 * max_requests, or draining. DS_E_ARG: a value out of range, the prompt doesn't fit the context or could never fit
 * the blocks. DS_E_NOMEM. O(prompt): the cache's keys are computed here. */
ds_rc ds_engine_add(ds_engine *e, const ds_gen_request *q, uint64_t *id, ds_err *err);

/* Ends all samples of a request, each with DS_ENDED_CANCELED unless it ended before. Ids that are gone are ignored. */
void ds_engine_cancel(ds_engine *e, uint64_t id);

/* Ends one sample with the given reason at the next turn, keeping what it has (a stop that only the reader of the
 * text can see). */
void ds_engine_finish_sample(ds_engine *e, uint64_t id, uint32_t sample);

/* No new requests from now on. True once all are ended (they may still have events to poll). */
bool ds_engine_drain(ds_engine *e);

/* ---- events ------------------------------------------------------------------------------------------------------ */

/* Copies up to cap events, oldest request first, and returns their number: fewer than cap means that there are no
 * more now. */
size_t ds_engine_poll(ds_engine *e, ds_event *ev, size_t cap);
/* Waits until poll would give something, for at most timeout_ms (0: looks only). True: it would. Not needed with
 * wake_by; only useful with start. */
bool ds_engine_wait(ds_engine *e, uint32_t timeout_ms);
/* `wake` is called when events become available after there were none, from the loop's thread; then poll until it
 * gives fewer events than there was room for. NULL: nobody is. */
void ds_engine_wake_by(ds_engine *e, void (*wake)(void *ctx), void *ctx);

/* ---- statistics -------------------------------------------------------------------------------------------------- */

void ds_engine_stats_get(ds_engine *e, ds_gen_stats *out);
ds_rc ds_engine_plan_of(const ds_engine *e, ds_gen_plan *out);

/* ---- as a generator ---------------------------------------------------------------------------------------------- */

/* This engine behind the functions of ds/gen.h: valid as long as the engine. */
ds_gen ds_engine_gen(ds_engine *e);

#endif
