/* A simulation's file: whatever is accepted is a deployment of bounded size, and what isn't is said with the file's
 * name. Small deployments without traces run for some virtual seconds. Reading it is reading YAML (yaml/yaml.h). */
#include <math.h>
#include <string.h>

#include "sim/sim.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static ds_sim_result result;
    ds_sim_plan *p;
    ds_err err = { 0 };
    ds_rc rc = ds_sim_plan_parse(&p, (const char *)data, size, "f.yaml", "", &err);
    double rate = 0.0;
    uint32_t ranks = 0, traces = 0;

    if (rc != DS_OK) {
        must(rc == DS_E_FORMAT && !p && strncmp(err.msg, "f.yaml", 6) == 0);
        return 0;
    }
    must(p->n_machines > 0 && p->n_groups > 0 && p->n_loads > 0);
    for (uint32_t g = 0; g < p->n_groups; g++) {
        must(p->groups[g].machine < p->n_machines && p->groups[g].count > 0 && p->groups[g].ranks > 0 && p->groups[g].prompts > 0);
        ranks += p->groups[g].count * p->groups[g].ranks;
    }
    must(ranks <= DS_SIM_RANKS);
    for (uint32_t l = 0; l < p->n_loads; l++) {
        traces += p->loads[l].kind == DS_SIM_LOAD_TRACE;
        rate += p->loads[l].rate;
        /* Sessions whose turns follow at once would be all that is done. */
        traces += p->loads[l].kind == DS_SIM_LOAD_SESSIONS && p->loads[l].gap_s.shape == DS_SIM_FIXED && p->loads[l].gap_s.a < 0.01;
    }
    for (uint32_t m = 0; m < p->n_machines; m++)
        traces += p->machines[m].steps_file[0] != 0; /* not read here */
    for (uint32_t c = 0; c < p->n_changes; c++)
        rate *= p->changes[c].what == DS_SIM_TRAFFIC && p->changes[c].factor > 1.0 ? p->changes[c].factor : 1.0;
    if (traces == 0 && ranks <= 16 && rate <= 100.0 && p->max_live <= 1 << 17 && p->round_s >= 0.1) {
        p->duration_s = fmin(p->duration_s, 5.0);
        rc = ds_sim_run(p, &result, &err);
        must(rc == DS_OK && result.sum.arrived == result.sum.done + result.sum.failed + result.sum.live);
        must(result.sum.prompt_tokens == result.sum.hit_tokens + result.sum.computed_tokens);
    }
    ds_sim_plan_free(p);
    return 0;
}
