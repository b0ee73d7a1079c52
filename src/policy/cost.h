/* What a step takes, learnt while running: cost = a + b Q + d QC + e QQ in microseconds, where over the sequences of a step
 *   Q = sum of rows q,  QC = sum of q x (context before the rows),  QQ = sum of q x q.
 *
 * Least squares with forgetting (an observation counts half after 256 more) and no negative coefficients. Threads: one owner. */
#ifndef DS_ENGINE_COST_H
#define DS_ENGINE_COST_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    double q, qc, qq;
} ds_cost_load;

typedef struct {
    double A[4][4], y[4]; /* normal equations, decayed */
    double coef[4];
    uint64_t n;
} ds_cost;

void ds_cost_learn(ds_cost *c, const ds_cost_load *x, double us);
double ds_cost_of(const ds_cost *c, const ds_cost_load *x);
static inline bool ds_cost_known(const ds_cost *c)
{
    return c->n >= 8;
}
void ds_cost_add(ds_cost_load *x, double rows, double context);

/* The most rows of a prompt after `context` tokens that keep a step with `base` in it within budget_us; 0: none. */
uint32_t ds_cost_fit(const ds_cost *c, const ds_cost_load *base, double context, double budget_us, uint32_t most);

#endif
