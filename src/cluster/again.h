/* A generator whose requests outlive the engines that compute them.
 *
 * It stands on another one, several remote engines as one (ds_gen_many over cluster/remote.h). A sample that ends there
 * with DS_ENDED_LOST, or that an engine refused after all because it is full, is asked for again, behind the tokens
 * that were reported (ds_gen_request.output): its reader gets each token once and in order, with the bits of one
 * engine. What doesn't find an engine within the patience ends with what it ended with.
 *
 * A sample that lost five engines without a token between them isn't asked for again: it may be what they died of.
 *
 * A request whose prompt's log-probabilities are asked for can't go on once it has tokens: it ends with DS_ENDED_LOST.
 * Its grammar goes to the engine as what it is made from; its functions aren't called.
 *
 * Threads: as ds/gen.h. wait() also comes back, after a while, while something looks for an engine: poll looks.
 * Locks: `mu`, nothing is called with it.   Memory: a copy of each live request, pictures too, and 4 bytes a token. */
#ifndef DS_CLUSTER_AGAIN_H
#define DS_CLUSTER_AGAIN_H

#include <ds/gen.h>

typedef struct ds_again ds_again;

/* patience_ms: that a sample waits for an engine; 0 = 10000. hidden: floats of a picture's row. below: polled by
 * nobody else. DS_E_NOMEM. */
ds_rc ds_again_create(ds_again **out, ds_gen below, uint32_t hidden, uint32_t patience_ms, ds_err *err);
ds_gen ds_again_gen(ds_again *a);
uint32_t ds_again_live(ds_again *a);    /* requests that haven't ended */
uint64_t ds_again_resumed(ds_again *a); /* samples that were asked for again, in all */
/* When what is below has nothing of it any more: after the remotes are closed. NULL is fine. */
void ds_again_destroy(ds_again *a);

#endif
