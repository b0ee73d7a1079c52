/* What is simulated: the file of `deepserve sim`, read and checked.
 *
 * Everything is in seconds, bytes and tokens here. What stands in the file is docs/planning.md. Every key is checked
 * with line and column, and what contradicts is said in the same way.
 *
 * Threads: a plan is immutable.   Memory: the plan alone. */
#ifndef DS_SIM_FILE_H
#define DS_SIM_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "policy/cost.h"
#include "policy/spec.h"
#include "sim/trace.h"

enum {
    DS_SIM_NAME = 32,
    DS_SIM_MACHINES = 16,
    DS_SIM_GROUPS = 16,
    DS_SIM_LOADS = 16,
    DS_SIM_EVENTS = 256,
    DS_SIM_RANKS = 4096,
    DS_SIM_SWEEP = 12
};

typedef struct {
    char name[DS_SIM_NAME];
    bool predicted;        /* from bandwidth and peak, not measured */
    char steps_file[1024]; /* its cost is fitted to measured steps: that of ds_sim_plan_load */
    uint32_t steps;        /* so many */
    double most_off;       /* of these, the largest part that one is off */
    ds_cost cost;          /* of a step */
    double draft_s;        /* for each sequence that drafts */
    double price;          /* for an hour */
} ds_sim_machine;

typedef enum { DS_SIM_PREFILL, DS_SIM_DECODE, DS_SIM_MIXED, DS_SIM_ROLES } ds_sim_role;

typedef struct {
    ds_sim_role role;
    uint32_t machine; /* of each rank */
    uint32_t count, ranks;
    uint32_t requests;  /* of a rank, at most */
    uint64_t kv_tokens; /* of a rank, at most */
    uint32_t rows;      /* of a step */
    uint32_t prompts;   /* in a step */
    double budget_s;    /* of a step with prompts beside sequences that decode; 0: none */
} ds_sim_group;

typedef enum { DS_SIM_FIXED, DS_SIM_EVEN, DS_SIM_EXPONENTIAL, DS_SIM_LOGNORMAL } ds_sim_shape;

typedef struct {
    ds_sim_shape shape;
    double a, b; /* FIXED: a; EVEN: from a to b; EXPONENTIAL: mean a; LOGNORMAL: mu a, sigma b */
} ds_sim_dist;

typedef enum { DS_SIM_LOAD_TRACE, DS_SIM_LOAD_RATE, DS_SIM_LOAD_SESSIONS } ds_sim_load_kind;

typedef struct {
    char name[DS_SIM_NAME];
    ds_sim_load_kind kind;
    uint32_t priority;
    double ttl_s; /* of what it leaves in the store */
    char trace[1024];
    ds_sim_form form;
    double speed, rate; /* TRACE: 2 is twice as fast; RATE: of requests; SESSIONS: of sessions; in a second */
    ds_sim_dist input, output;
    double shared_tokens; /* RATE: the first tokens are one of so many texts */
    uint32_t texts;
    ds_sim_dist turns, growth, gap_s; /* SESSIONS: `input` is that of the first turn */
    double reset;                     /* how often a turn begins anew, with as much as the first one had */
    double context;                   /* tokens; a turn that would be longer begins anew */
} ds_sim_load;

typedef enum { DS_SIM_FAIL, DS_SIM_SLOW, DS_SIM_RESTART, DS_SIM_TRAFFIC } ds_sim_what;

typedef struct {
    ds_sim_what what;
    double at_s;
    ds_sim_role role;
    uint32_t count;
    double factor;  /* SLOW: times as long; TRAFFIC: times as much */
    double lasts_s; /* FAIL, SLOW: until it is as before, INFINITY: never; RESTART: from the end to the start of one */
} ds_sim_change;

typedef enum { DS_SIM_BALANCED, DS_SIM_TURNS, DS_SIM_LEAST } ds_sim_rule;

typedef struct {
    uint64_t seed;
    double duration_s; /* INFINITY: until everything is done */
    double warmup_s;   /* what comes before doesn't count in times */
    uint32_t thin;     /* of so many sessions, requests and instances one is simulated */
    uint32_t n_machines, n_groups, n_loads, n_changes;
    ds_sim_machine machines[DS_SIM_MACHINES];
    ds_sim_group groups[DS_SIM_GROUPS];
    ds_sim_load loads[DS_SIM_LOADS];
    ds_sim_change changes[DS_SIM_EVENTS];
    bool has_store;
    double capacity_bytes, token_bytes, fetch_s_byte, window_s;
    double transfer_s_byte, latency_s;
    uint32_t n_kept;
    double kept[DS_SPEC_MAX]; /* how often a draft at each place is kept, of those reached */
    ds_sim_rule prefill, decode;
    double round_s;
    double first_s, gap_s; /* objective; INFINITY: any */
    uint32_t max_live;
    double max_wait_s;
    /* What `deepserve plan` looks for. */
    bool has_search;
    double search_good;       /* share of answers within the objective */
    uint32_t search_failures; /* so many instances of each role may be away */
    uint32_t search_most;     /* instances of a group, thinned */
    /* What else is simulated for the pictures: so many times the load; stores of other sizes and times to live. */
    uint32_t n_sweep_loads, n_sweep_capacities, n_sweep_ttls;
    double sweep_loads[DS_SIM_SWEEP], sweep_capacities[DS_SIM_SWEEP], sweep_ttls[DS_SIM_SWEEP];
} ds_sim_plan;

/* `dir`: what relative names of traces begin at; "" or ending in '/'. On failure *out is NULL. DS_E_FORMAT
 * ("label:LINE:COLUMN: what"), DS_E_NOMEM. */
ds_rc ds_sim_plan_parse(ds_sim_plan **out, const char *text, size_t n, const char *label, const char *dir, ds_err *err);
/* The same of a file, with its folder as `dir`, and measured steps read too; DS_E_IO besides. */
ds_rc ds_sim_plan_load(ds_sim_plan **out, const char *path, ds_err *err);
void ds_sim_plan_free(ds_sim_plan *p); /* NULL is fine */

const char *ds_sim_role_name(ds_sim_role r);
/* "predicted", "as given", "fitted to 8 measured steps, at most 5.0 % off". Returns buf. */
const char *ds_sim_machine_origin(char buf[64], const ds_sim_machine *m);

#endif
