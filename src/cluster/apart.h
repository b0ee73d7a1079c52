/* Engines that compute prompts, and engines that decode, as one generator.
 *
 * A request goes to an engine for prompts, which computes the prompt and the first token; behind that its sequence goes
 * to an engine for decoding (cluster/handoff.h), which takes it from the first one. Its reader hears of one request,
 * with the bits of one engine. An engine for both is one of each, and what it computed a prompt of it decodes itself.
 *
 *   prompts    by tier and quota of a round (policy/prefill.h), in predicted time, from each engine's own fitted cost.
 *              What has to wait waits in the queue of the engine with the least ahead
 *   decoding   by requests and KV (policy/decode.h). What finds no room goes where it is least crowded, and waits there
 *
 * Where no engine for decoding is there, those for prompts decode too, which the log says when it begins and ends. So
 * they do what can't leave: requests without a cache, and those that want their prompt's log-probabilities. Of several
 * samples each goes its own way.
 *
 * An engine for decoding that is lost, or doesn't want a sequence before it had it, leaves it to the next, in the end
 * to the one that has it. After that, and when the other one is lost, the sample ends with DS_ENDED_LOST: who goes on
 * behind its tokens (cluster/again.h) asks for it like for a new one.
 *
 * Threads: as ds/gen.h.   Locks: `mu`; under it a remote's own, never the other way round.   Memory: a copy of each
 * live request, and 4 bytes a token. */
#ifndef DS_CLUSTER_APART_H
#define DS_CLUSTER_APART_H

#include "base/log.h"
#include "cluster/remote.h"

typedef struct ds_apart ds_apart;

/* Whether engines of these roles are apart at all, and enough: DS_E_ARG, in one line, where one of the two is missing.
 * *apart is false where all are for both. */
ds_rc ds_apart_check(ds_remote *const *remotes, uint32_t n, bool *apart, ds_err *err);
/* The remotes are polled by nobody else; they are closed before destroy. hidden: floats of a picture's row; log may be
 * NULL. DS_E_NOMEM. */
ds_rc ds_apart_create(ds_apart **out, ds_remote *const *remotes, uint32_t n, uint32_t hidden, const ds_log *log, ds_err *err);
ds_gen ds_apart_gen(ds_apart *a);
typedef struct {
    uint32_t requests; /* live */
    uint64_t moved;    /* sequences that an engine for decoding took */
} ds_apart_stats;
ds_apart_stats ds_apart_stat(ds_apart *a);
void ds_apart_destroy(ds_apart *a); /* NULL is fine */

#endif
