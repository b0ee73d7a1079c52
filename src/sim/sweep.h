/* The same plan under other loads and with other stores: what curves and maps are made of.
 *
 * Threads: one owner.   Memory: one result at a time. */
#ifndef DS_SIM_SWEEP_H
#define DS_SIM_SWEEP_H

#include "sim/sim.h"

typedef struct {
    double load; /* times as much as the plan says */
    double first_p50_s, first_p99_s, pace_p50_s;
    double output_s; /* tokens in a second */
    double good;     /* share of answers */
    double price;    /* for a million tokens of good answers; 0: none was good, or machines have no price */
    double busy;     /* of the ranks that decode */
    double failed;   /* share */
} ds_sim_point;

typedef struct {
    uint32_t n_points;
    ds_sim_point points[DS_SIM_SWEEP];
    double hits[DS_SIM_SWEEP][DS_SIM_SWEEP]; /* by time to live and capacity: share of prompt tokens; of n_ttls x n_capacities */
} ds_sim_sweeps;

/* What the plan's `sweep` asks for, one after the other. DS_E_*: as ds_sim_run. */
ds_rc ds_sim_sweep(const ds_sim_plan *p, ds_sim_sweeps *out, ds_err *err);

/* For a million output tokens of answers within the objective; 0: there were none, or machines have no price. */
double ds_sim_price_of_million(const ds_sim_plan *p, const ds_sim_result *r);

#endif
