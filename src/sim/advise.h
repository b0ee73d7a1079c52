/* How many instances of each role a load needs: `deepserve plan`.
 *
 * A deployment is enough when so large a share of the answers is within the objective. More instances of a role are
 * taken to be no worse; with this the cheapest counts are found by bisection: the fewest that do beside as many of the
 * other role as there may be, then along the edge between. What it finds is therefore the cheapest of what was looked
 * at, and every count of it is one that with one less isn't enough.
 *
 * Threads: one owner.   Memory: one result at a time, and what was tried. */
#ifndef DS_SIM_ADVISE_H
#define DS_SIM_ADVISE_H

#include "base/buf.h"
#include "sim/sim.h"

enum { DS_SIM_CHANGES = 16 };

typedef struct {
    uint32_t count[DS_SIM_GROUPS]; /* thinned ones count for all that they stand for */
    double good;                   /* share of answers, of all that should have had one */
    double first_p99_s, pace_p99_s;
    double output_s, good_s; /* tokens in a second */
    double effective_s;      /* tokens of done answers and of their prompts, hit or computed, in a second */
    double uncached;         /* computed prompt tokens for each output token */
    double hit;
    double price, price_of_million; /* for an hour; for a million good output tokens */
} ds_sim_option;

typedef struct {
    char what[64];
    ds_sim_option is;
} ds_sim_variant;

typedef struct {
    ds_sim_option needed; /* nothing away */
    ds_sim_option best;   /* with those that may be away, none of them away */
    uint32_t n_variants;  /* of `best`, each with one thing changed */
    ds_sim_variant variants[DS_SIM_CHANGES];
    uint32_t tried;
} ds_sim_advice;

/* DS_E_ARG: nothing is enough; the message says by how much. DS_E_*: as ds_sim_run. The plan has a search. */
ds_rc ds_sim_advise(const ds_sim_plan *p, ds_sim_advice *out, ds_err *err);

void ds_sim_advice_text(ds_buf *b, const ds_sim_plan *p, const ds_sim_advice *a);
void ds_sim_advice_json(ds_buf *b, const ds_sim_plan *p, const ds_sim_advice *a);

#endif
