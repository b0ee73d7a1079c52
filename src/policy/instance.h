/* How an instance of the cluster leaves: Ready, Draining, Grace, Moving, KV-only, Gone.
 *
 *   Ready      takes new work
 *   Draining   is announced as taking none; what was sent before everyone knew may still come
 *   Grace      nothing new comes; what is live has a minute to end by itself
 *   Moving     the rest moves once, with its KV, under the next epoch
 *   KV-only    computes nothing; others still read its blocks
 *   Gone       holds nothing of anyone
 *
 * A drain may be taken back until something moves. Every state but Ready has an end whatever others do: a sender that
 * never answers, a request that never ends, a reader that never lets go. Death leads to Gone from everywhere. The
 * states are passed in this order and none is entered twice in one drain.
 *
 * Threads: any; pure functions, O(1). Time is a parameter. */
#ifndef DS_POLICY_INSTANCE_H
#define DS_POLICY_INSTANCE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    DS_INSTANCE_READY,
    DS_INSTANCE_DRAINING,
    DS_INSTANCE_GRACE,
    DS_INSTANCE_MOVING,
    DS_INSTANCE_KV_ONLY,
    DS_INSTANCE_GONE,
    DS_INSTANCE_STATES,
} ds_instance_state;

typedef struct { /* zeros: Ready since the beginning of time */
    ds_instance_state state;
    uint64_t since_us;
    uint32_t epoch; /* of its requests; what comes with an older one is dropped */
} ds_instance;

typedef struct {
    bool dead;        /* its lease is over, or its process is */
    bool drain;       /* is wanted away */
    uint32_t senders; /* that have not said yet that they know */
    uint32_t live;    /* requests on it */
    uint32_t readers; /* that hold blocks of it */
} ds_instance_facts;

typedef struct { /* in microseconds, each > 0 */
    uint64_t announce_us, grace_us, move_us, kv_us;
} ds_instance_limits;

#define DS_INSTANCE_LIMITS                                                                   \
    (ds_instance_limits)                                                                     \
    {                                                                                        \
        .announce_us = 5000000, .grace_us = 60000000, .move_us = 30000000, .kv_us = 60000000 \
    }

typedef struct {
    ds_instance next;
    bool move;      /* now: what is live moves, under next.epoch */
    bool recompute; /* now: what is live still goes on elsewhere without its KV, under next.epoch */
} ds_instance_step;

/* What follows from the facts at a time. All that follows at once is done in one call: with the same facts and time a
 * second one changes nothing. A clock that stands before since_us counts as since_us. */
ds_instance_step ds_instance_next(const ds_instance *i, const ds_instance_facts *f, const ds_instance_limits *l, uint64_t now_us);

/* When to ask again if no fact changes; UINT64_MAX: never. */
uint64_t ds_instance_due_us(const ds_instance *i, const ds_instance_limits *l);

const char *ds_instance_state_name(ds_instance_state s);

#endif
