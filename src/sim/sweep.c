#include "sim/sweep.h"

#include <stdlib.h>

double ds_sim_price_of_million(const ds_sim_plan *p, const ds_sim_result *r)
{
    double h = (r->end_s - p->warmup_s) / 3600.0, price = 0.0;

    for (uint32_t g = 0; g < p->n_groups; g++)
        price += r->groups[g].price;
    return r->sum.good_tokens > 0 ? price * h / (double)r->sum.good_tokens * 1e6 : 0.0;
}

static ds_sim_point point_of(const ds_sim_plan *p, const ds_sim_result *r, double load)
{
    const ds_sim_sum *s = &r->sum;
    ds_sim_point at = { .load = load,
                        .first_p50_s = (double)ds_times_quantile(&s->first, 0.5) / 1e9,
                        .first_p99_s = (double)ds_times_quantile(&s->first, 0.99) / 1e9,
                        .pace_p50_s = (double)ds_times_quantile(&s->pace, 0.5) / 1e9,
                        .output_s = r->end_s > 0.0 ? (double)s->output_tokens / r->end_s : 0.0,
                        .good = s->counted ? (double)s->good / (double)s->counted : 0.0,
                        .price = ds_sim_price_of_million(p, r),
                        .failed = s->arrived ? (double)s->failed / (double)s->arrived : 0.0 };
    double ranks = 0.0;

    for (uint32_t g = 0; g < p->n_groups; g++)
        if (p->groups[g].role != DS_SIM_PREFILL) {
            at.busy += r->groups[g].busy * r->groups[g].ranks;
            ranks += r->groups[g].ranks;
        }
    at.busy /= ranks > 0.0 ? ranks : 1.0;
    return at;
}

ds_rc ds_sim_sweep(const ds_sim_plan *p, ds_sim_sweeps *out, ds_err *err)
{
    ds_sim_plan *q = malloc(sizeof *q);
    ds_sim_result *r = malloc(sizeof *r);
    ds_rc rc = q && r ? DS_OK : ds_fail(err, DS_E_NOMEM, "out of memory");

    *out = (ds_sim_sweeps){ 0 };
    for (uint32_t i = 0; i < p->n_sweep_loads && rc == DS_OK; i++) {
        *q = *p;
        for (uint32_t l = 0; l < q->n_loads; l++) {
            q->loads[l].rate *= p->sweep_loads[i];
            q->loads[l].speed *= p->sweep_loads[i];
        }
        rc = ds_sim_run(q, r, err);
        out->points[out->n_points++] = point_of(q, r, p->sweep_loads[i]);
    }
    for (uint32_t t = 0; t < p->n_sweep_ttls; t++)
        for (uint32_t c = 0; c < p->n_sweep_capacities && rc == DS_OK; c++) {
            *q = *p;
            q->capacity_bytes = p->sweep_capacities[c] / p->thin;
            for (uint32_t l = 0; l < q->n_loads; l++)
                q->loads[l].ttl_s = p->sweep_ttls[t];
            rc = ds_sim_run(q, r, err);
            out->hits[t][c] = r->sum.prompt_tokens ? (double)r->sum.hit_tokens / (double)r->sum.prompt_tokens : 0.0;
        }
    free(r);
    free(q);
    return rc;
}
