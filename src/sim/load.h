/* Who asks for what, and when: traces, requests at a rate, sessions whose turns follow one another.
 *
 * What a load asks for depends on the seed and on the number of the request alone; when a session's next turn comes
 * also depends on when it got its answer. `traffic` events make every load's own clock run faster or slower.
 *
 * Threads: one owner.   Memory: a row of each trace, 48 bytes for each session that is under way. */
#ifndef DS_SIM_LOAD_H
#define DS_SIM_LOAD_H

#include "sim/file.h"
#include "sim/store.h"

typedef struct ds_sim_loads ds_sim_loads;

typedef struct {
    uint64_t at_ns;
    uint32_t load;
    uint32_t input, output; /* tokens, each >= 1 */
    uint64_t text;          /* key in the store of what the prompt begins with; 0: nobody else has it */
    uint32_t text_tokens;   /* so many of the prompt are of that text */
    bool text_grows;        /* the answer goes on with it */
    uint32_t known_hit;     /* as it was recorded; DS_NONE: the store says it */
    uint64_t *blocks;       /* of a trace, keys in the store; free() them */
    uint32_t n_blocks;
    uint32_t session; /* DS_NONE: none */
} ds_sim_ask;

/* On success *out owns the loads, else *out is NULL. DS_E_IO, DS_E_FORMAT (of a trace), DS_E_NOMEM. The plan is
 * borrowed. */
ds_rc ds_sim_loads_create(ds_sim_loads **out, const ds_sim_plan *p, ds_err *err);
void ds_sim_loads_destroy(ds_sim_loads *l);

/* The next arrival of a load; *more is false when there is none any more. DS_E_FORMAT, DS_E_IO, DS_E_NOMEM. */
ds_rc ds_sim_loads_next(ds_sim_loads *l, uint32_t load, ds_sim_ask *ask, bool *more, ds_err *err);
/* A session got its answer: when its next turn comes, UINT64_MAX: it was the last. */
uint64_t ds_sim_loads_answered(ds_sim_loads *l, uint32_t session, const ds_sim_ask *ask, uint64_t now_ns);
/* What that turn asks for. */
void ds_sim_loads_turn(ds_sim_loads *l, uint32_t session, uint64_t now_ns, ds_sim_ask *ask);
/* A session ends without an answer. */
void ds_sim_loads_end(ds_sim_loads *l, uint32_t session);
uint32_t ds_sim_loads_sessions(const ds_sim_loads *l); /* under way */

#endif
