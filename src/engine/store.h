/* A store of cached KV, as the engine sees it: where blocks and window states come from that aren't on the device,
 * and where they go.
 *
 * The engine owns this interface and calls it; whoever has blocks to give (host memory behind the device, a store on
 * disks, another host) fills in the table. What the engine asks is a promise at most: it can always compute, so a
 * store answers no in any doubt, and no answer is ever waited for without a deadline.
 *
 *   match, match_state   what of a chain of keys may be had. A promise to try, no I/O, no waiting
 *   fetch                try it: bytes into buffers of stage memory that the store chooses. done() tells, once
 *   drop                 the ticket is over: its buffers are the store's again, and what is under way may stop
 *   save                 a buffer for a committed block or state, or a refusal
 *   saved                it has been filled
 *
 * **Buffers.** The device copies between itself and numbered buffers (ds_store_stage), by operations that run in the
 * order in which they were planned. All buffers belong to the store, which lends them:
 *   - what save() gave is written by the device until saved(). A fetch may answer with that buffer at once: the
 *     operation that reads it runs behind the one that fills it. Only the host must not look before saved(), and
 *     only the device's operations may overwrite it (by another save() of it).
 *   - what done() gave is read by the device until drop(): nobody but operations that were planned before may write it.
 *
 * **Tickets** are numbers that are never used twice. After drop() nothing is owed for a ticket; a done() that was
 * under way is ignored.
 *
 * Threads: the engine calls all functions from its loop's thread, and none after detach. ds_engine_store_done and
 * ds_engine_kick come from any thread, also from inside fetch(), and not after detach has returned.
 * Memory: nothing is taken by any of these calls but attach, neither by the engine nor, on the loop's thread, by the
 * store. */
#ifndef DS_ENGINE_STORE_H
#define DS_ENGINE_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/none.h"
#include "engine/engine.h"
#include "kv/key.h"
#include "kv/layout.h"

struct ds_engine;
struct ds_model;

#define DS_STORE_LATER (UINT32_MAX - 1) /* no buffer now. The store kicks the engine when it is worth asking again */

typedef enum {
    DS_STORE_OK,
    DS_STORE_GONE,    /* it isn't there (any more), or not as it was asked for */
    DS_STORE_LATE,    /* the deadline passed */
    DS_STORE_BUSY,    /* no buffer now. The store kicks the engine when it is worth asking again */
    DS_STORE_IO,      /* a device or a connection failed */
    DS_STORE_CORRUPT, /* bytes that aren't what they should be */
} ds_store_result;
enum { DS_STORE_RESULTS = DS_STORE_CORRUPT + 1 };
_Static_assert((int)DS_STORE_RESULTS == DS_GEN_MISSES, "each has a counter");

/* Stage memory: pinned where the device has such. A state is its header and the slot's bytes (kv/state.h). */
typedef struct {
    uint8_t *blocks, *states;          /* [n_blocks][block_bytes], [n_states][state_bytes] */
    uint32_t n_blocks, n_states;       /* 0: there are none */
    uint64_t block_bytes, state_bytes; /* state_bytes is a multiple of 64 */
    uint32_t n_tickets, ticket_blocks; /* fetches at a time at most; blocks of one */
} ds_store_stage;

typedef struct {
    uint64_t ticket;
    uint64_t deadline_ns; /* on the engine's clock */
    const ds_key *blocks; /* [n_blocks] some of a chain, in order; valid during the call */
    uint32_t n_blocks;    /* may be 0 */
    const ds_key *state;  /* NULL: none is wanted */
    bool exact;           /* what rests on a replay doesn't count */
} ds_store_want;

/* What became of a block or a state. */
typedef struct {
    ds_store_result result;
    /* OK */
    uint32_t buffer;
    bool approx;        /* rests on a replay */
    bool durable;       /* it came from further away than host memory: for statistics */
    uint32_t dec_start; /* of a state */
} ds_store_got;

/* A block or a state that is committed. */
typedef struct {
    bool is_state;
    bool leaving; /* its place on the device is given out: the last chance, not the first */
    ds_key key;
    bool approx;
    uint32_t dec_start; /* state: where its decoder windows start; DS_KV_STATE_ENCODER: none */
    /* not `leaving`: where it stands in its chain */
    ds_key parent;  /* of the block in front, the namespace's for the first; of a state the same as of its block */
    uint32_t depth; /* blocks in front */
    bool needed;    /* state: its text's next turn is no hit without it; else losing it costs a replay */
} ds_store_item;

typedef struct {
    /* Before any other call; what the store needs it takes here. The buffers are there until detach. On failure there
     * is no detach, and the engine can't be made. */
    ds_rc (*attach)(void *ctx, struct ds_engine *e, const ds_store_stage *stage, ds_err *err);
    /* All tickets are dropped by then. It may wait for what is being written, and touches nothing of the engine's any
     * more when it returns. */
    void (*detach)(void *ctx);
    /* How many of the first of these keys may be had. O(n). */
    uint32_t (*match)(void *ctx, const ds_key *keys, uint32_t n, bool exact);
    bool (*match_state)(void *ctx, const ds_key *key, bool exact, uint32_t *dec_start);
    void (*fetch)(void *ctx, const ds_store_want *w);
    void (*drop)(void *ctx, uint64_t ticket);
    uint32_t (*save)(void *ctx, const ds_store_item *item);
    void (*saved)(void *ctx, bool is_state, uint32_t buffer); /* NULL: the store needn't know */
    /* Its share of what a metrics page shows. NULL: none. */
    void (*stats)(void *ctx, ds_gen_stats *out);
    bool on_commit; /* wants blocks and states as soon as they are committed, not only when they leave the device */
} ds_store_fns;

typedef struct ds_store {
    const ds_store_fns *fn;
    void *ctx;
} ds_store;

/* The layout of the blocks of an engine with these options, which its keys are made from: for whoever keeps them. */
void ds_engine_kv_layout(ds_kv_layout *out, const struct ds_model *m, const ds_engine_opts *o);

/* The answer to a fetch: blocks[n], in the order in which they were asked for, and the state, if one was. Copied. */
void ds_engine_store_done(struct ds_engine *e, uint64_t ticket, const ds_store_got *blocks, uint32_t n, const ds_store_got *state);
/* Wakes the loop: something that it asked for, or that refused it, has changed. */
void ds_engine_kick(struct ds_engine *e);

#endif
