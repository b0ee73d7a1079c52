/* Between the files of this folder: ranks and the requests on them. */
#ifndef DS_SIM_INTERNAL_H
#define DS_SIM_INTERNAL_H

#include "policy/decode.h"
#include "policy/instance.h"
#include "policy/live.h"
#include "policy/prefill.h"
#include "policy/queue.h"
#include "sim/events.h"
#include "sim/load.h"
#include "sim/sim.h"

enum { SIM_LEVELS = 4, SIM_STEP_PROMPTS = 16 };

/* Where a request is. */
typedef enum {
    SIM_FREE,
    SIM_WAITS,   /* for a rank that computes its prompt */
    SIM_FETCHES, /* its blocks, from the store */
    SIM_PROMPT,  /* on a rank */
    SIM_SEEKS,   /* a rank that decodes */
    SIM_MOVES,   /* its blocks to that rank */
    SIM_DECODES,
} sim_state;

typedef struct {
    ds_sim_ask ask;
    sim_state state;
    uint32_t epoch; /* what an event of an older one says is dropped */
    uint32_t rank, next;
    uint64_t live;                           /* in the live set */
    uint64_t first_ns, waits_ns;             /* first token, 0: none yet; since when it waits */
    uint32_t given;                          /* tokens of the answer that were delivered */
    uint32_t had;                            /* of them when this attempt began: they are part of its prompt */
    uint32_t prompt, hit, replay, pos, tier; /* of this attempt; pos: computed so far */
    uint32_t kept;                           /* tokens of KV that outlived its last instance */
    uint64_t work_us;
    double joined; /* the rank's count of tokens when it joined, less `given` */
} sim_request;

typedef struct {
    uint32_t head, tail;
} sim_list;

typedef struct {
    double at; /* the rank's count of tokens at which it has all */
    uint32_t request;
} sim_end;

typedef struct {
    uint32_t instance;
    const ds_sim_machine *machine;
    const ds_sim_group *group;
    double slow; /* times as long */
    ds_spec spec;
    sim_list prompts[SIM_LEVELS], joining;
    sim_end *ends; /* a heap by `at` */
    uint32_t n_ends, cap_ends, n_prompts;
    double given;   /* tokens that a sequence got which was here from the beginning */
    double context; /* of all that decode */
    /* The step, or the equal steps, under way. */
    bool running;
    uint32_t gen, steps, n_step;
    uint64_t start_ns, end_ns;
    double step_ns, more_ns; /* of the first step, and how much longer each next one is */
    double tokens;           /* of each sequence in a step */
    uint32_t step[SIM_STEP_PROMPTS], rows[SIM_STEP_PROMPTS];
    uint64_t busy_ns;
} sim_rank;

typedef struct {
    uint32_t group, first_rank;
    ds_instance st;
    bool dead, drain;
    uint32_t gen; /* of what is to happen to it */
} sim_instance;

typedef struct {
    const ds_sim_plan *p;
    ds_sim_result *r;
    ds_err *err;
    ds_rc rc;
    uint64_t now_ns, end_ns, bin_ns;
    ds_sim_events q;
    ds_sim_loads *loads;
    ds_sim_store *store;
    ds_live *live;
    ds_sim_ask *next; /* of each load */
    sim_request *req;
    uint32_t n_req, cap_req, free_req;
    sim_rank *ranks;
    sim_instance *inst;
    uint32_t n_ranks, n_inst, n_open_loads, pending_turns;
    bool mixed;
    sim_list waiting[DS_PREFILL_TIERS][SIM_LEVELS], seeking;
    uint32_t n_waiting, n_seeking, n_decoding, turn[2];
    /* What the balancers see. */
    uint32_t n_prefill, n_decode;
    ds_prefill_group *prefill;
    ds_prefill_engine *engines;
    uint8_t *tiers;
    uint64_t *ahead_us, *taken_us; /* of each rank */
    ds_decode_rank *decode;
    uint32_t *prefill_inst, *decode_rank, *row_of; /* rows to instances and ranks, and back */
    uint64_t demand_us[DS_PREFILL_TIERS], came_us[DS_PREFILL_TIERS];
} sim;

/* Events. who: load, rank, request, change, instance; which: gen or epoch. */
enum { EV_ARRIVE, EV_TURN, EV_ROUND, EV_STEP, EV_FETCHED, EV_MOVED, EV_CHANGE, EV_DUE, EV_BACK, EV_UNSLOW, EV_RESTARTED };

void sim_put(sim *s, double at_ns, uint32_t what, uint32_t who, uint64_t which);
void sim_out_of_memory(sim *s);

/* ---- lists of requests ---- */
void sim_push(sim *s, sim_list *l, uint32_t request);
uint32_t sim_pop(sim *s, sim_list *l);
/* The list whose first request is next; DS_NONE: all are empty. */
uint32_t sim_whose_turn(const sim *s, const sim_list lists[SIM_LEVELS]);

/* ---- rank.c ---- */
void sim_rank_init(sim *s, sim_rank *k);
void sim_rank_prompt(sim *s, uint32_t rank, uint32_t request);
void sim_rank_join(sim *s, uint32_t rank, uint32_t request);
void sim_rank_step(sim *s, uint32_t rank);  /* the step under way ended */
void sim_rank_clear(sim *s, uint32_t rank); /* nothing is on it any more; what its sequences got is written down */
bool sim_rank_idle(const sim_rank *k);

/* ---- sim.c, called by ranks ---- */
void sim_prompt_done(sim *s, uint32_t request); /* the first token is there */
void sim_done(sim *s, uint32_t request);        /* all tokens are there */
void sim_rank_changed(sim *s, uint32_t rank);   /* what the balancers see of it */
void sim_rank_rests(sim *s, uint32_t rank);     /* it has nothing to do, or has room again */

#endif
