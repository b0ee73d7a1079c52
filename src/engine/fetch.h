/* Fetches under way: tickets of the store, and what came of them.
 *
 * A ticket has blocks of the device that wait for their bytes, perhaps a saved state that does, and the sample for
 * whom they are. The store answers from any thread into the ticket's own memory; the loop looks at it in its turn.
 *
 *     free ──begin──> under way ──done──> answered ──operations planned──> read ──step done──> free
 *                        └── drop: cancel, deadline, memory ──> free
 *
 * Threads: the loop's, but ds_fetches_done from any; `mu` guards what both see.   Memory: all taken in init(). */
#ifndef DS_ENGINE_FETCH_H
#define DS_ENGINE_FETCH_H

#include <pthread.h>

#include "base/err.h"
#include "engine/store.h"

struct ds_eng_sample;

typedef struct {
    /* [loop]; ticket is written with mu */
    uint64_t ticket;           /* 0: free */
    struct ds_eng_sample *who; /* NULL: its operations are planned */
    uint64_t deadline_us;
    uint32_t n;
    uint32_t *block; /* [cap] of the device */
    ds_key *key;     /* [cap] */
    bool exact, with_state;
    uint32_t state; /* saved state that waits */
    ds_key state_key;
    /* [mu] until it is answered, then [loop] */
    bool answered;
    ds_store_got *got; /* [cap] */
    ds_store_got got_state;
} ds_fetch;

typedef struct {
    /* [const] */
    uint32_t n, cap;
    bool ready;
    /* [mu] */
    pthread_mutex_t mu;
    /* [loop] */
    ds_fetch *f;                  /* [n] */
    uint32_t n_free, n_under_way; /* under way: with a sample */
    uint64_t n_begun, n_given;
} ds_fetches;

uint64_t ds_fetches_bytes(uint32_t n, uint32_t cap); /* that init takes */
ds_rc ds_fetches_init(ds_fetches *t, uint32_t n, uint32_t cap, ds_err *err);
void ds_fetches_fini(ds_fetches *t); /* zeros are fine */

/* A free one, with a ticket; there must be one. */
ds_fetch *ds_fetches_take(ds_fetches *t);
void ds_fetches_give(ds_fetches *t, ds_fetch *f);
static inline uint32_t ds_fetches_index(const ds_fetches *t, const ds_fetch *f)
{
    return (uint32_t)(f - t->f);
}
bool ds_fetches_answered(ds_fetches *t, const ds_fetch *f);

/* [any thread] */
void ds_fetches_done(ds_fetches *t, uint64_t ticket, const ds_store_got *blocks, uint32_t n, const ds_store_got *state);

#endif
