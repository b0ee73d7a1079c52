/* The cost of steps from measured ones.
 *
 * A file of JSON lines, each a step: {"sequences": 4, "rows": 24, "context": 1000, "us": 1371.7}: so many rows of all
 * sequences together, evenly, each sequence with so many tokens in front. The fit is that of the engine
 * (policy/cost.h): no coefficient is negative.   Threads: any.   Reading is reading of outside bytes. */
#ifndef DS_SIM_MEASURED_H
#define DS_SIM_MEASURED_H

#include "base/err.h"
#include "policy/cost.h"

typedef struct {
    ds_cost cost;
    uint32_t steps;
    double most_off; /* the largest difference between a step and what the cost says, over the step */
} ds_sim_measured;

/* DS_E_IO; DS_E_FORMAT: a row, or fewer steps than the cost has coefficients. */
ds_rc ds_sim_measured_read(ds_sim_measured *out, const char *path, ds_err *err);
ds_rc ds_sim_measured_parse(ds_sim_measured *out, const char *text, size_t n, const char *label, ds_err *err);

#endif
