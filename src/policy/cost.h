/* What a step takes, learnt while running: cost = a + b Q + d QC + e QQ in microseconds, where over the sequences of
 * a step
 *   Q = sum of rows q,  QC = sum of q x (context before the rows),  QQ = sum of q x q.
 *
 * Least squares with forgetting (an observation counts half after 256 more) and no negative coefficients.
 *
 * Threads: one owner.   Memory: the caller's; zeros are a cost of which nothing is known.   Every call is O(1). */
#ifndef DS_POLICY_COST_H
#define DS_POLICY_COST_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    double q, qc, qq;
} ds_cost_work;

typedef struct {
    double A[4][4], y[4]; /* normal equations, decayed */
    double coef[4];
    uint64_t n;
} ds_cost;

/* A step with work x took `us`. Neither may be negative or not finite. */
void ds_cost_learn(ds_cost *c, const ds_cost_work *x, double us);
/* What a step with work x would take, in us; 0 before anything was learnt. */
double ds_cost_of(const ds_cost *c, const ds_cost_work *x);
/* Enough was seen for the answers to mean something. */
static inline bool ds_cost_known(const ds_cost *c)
{
    return c->n >= 8;
}
/* One more sequence in a step: `rows` rows behind `context` tokens. */
void ds_cost_add(ds_cost_work *x, double rows, double context);

/* The most rows of a prompt after `context` tokens that keep a step with `base` in it within budget_us; 0: none. */
uint32_t ds_cost_fit(const ds_cost *c, const ds_cost_work *base, double context, double budget_us, uint32_t most);

#endif
