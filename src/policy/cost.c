#include "policy/cost.h"

#include <math.h>
#include <string.h>

/* Keep the unknowns of one size: rows in hundreds, products in hundred thousands. */
static const double scale[4] = { 1.0, 1e-2, 1e-5, 1e-5 };
static const double forget = 0.9973, ridge = 1e-6;

static void features(double f[4], const ds_cost_work *x)
{
    f[0] = scale[0];
    f[1] = x->q * scale[1];
    f[2] = x->qc * scale[2];
    f[3] = x->qq * scale[3];
}

/* Solves the unknowns in `on` by Gauss with pivots on the diagonal (the matrix is symmetric and positive with the
 * ridge). */
static void solve(const ds_cost *c, const bool on[4], double w[4])
{
    double M[4][5];
    int id[4], n = 0;

    for (int i = 0; i < 4; i++) {
        w[i] = 0.0;
        if (on[i])
            id[n++] = i;
    }
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++)
            M[i][j] = c->A[id[i]][id[j]] + (i == j ? ridge * (1.0 + c->A[id[i]][id[i]]) : 0.0);
        M[i][n] = c->y[id[i]];
    }
    for (int k = 0; k < n; k++)
        for (int i = k + 1; i < n; i++) {
            double m = M[i][k] / M[k][k];
            for (int j = k; j <= n; j++)
                M[i][j] -= m * M[k][j];
        }
    for (int i = n - 1; i >= 0; i--) {
        double v = M[i][n];
        for (int j = i + 1; j < n; j++)
            v -= M[i][j] * w[id[j]];
        w[id[i]] = v / M[i][i];
    }
}

void ds_cost_learn(ds_cost *c, const ds_cost_work *x, double us)
{
    double f[4], w[4];
    bool on[4] = { true, true, true, true };

    features(f, x);
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++)
            c->A[i][j] = c->A[i][j] * forget + f[i] * f[j];
        c->y[i] = c->y[i] * forget + f[i] * us;
    }
    c->n++;
    for (int round = 0; round < 4; round++) { /* leave out what would be negative, worst first */
        int worst = -1;
        solve(c, on, w);
        for (int i = 0; i < 4; i++)
            if (on[i] && w[i] < 0.0 && (worst < 0 || w[i] < w[worst]))
                worst = i;
        if (worst < 0)
            break;
        on[worst] = false;
        w[worst] = 0.0;
    }
    for (int i = 0; i < 4; i++)
        c->coef[i] = (w[i] > 0.0 ? w[i] : 0.0) * scale[i];
}

double ds_cost_of(const ds_cost *c, const ds_cost_work *x)
{
    return c->coef[0] + c->coef[1] * x->q + c->coef[2] * x->qc + c->coef[3] * x->qq;
}

void ds_cost_add(ds_cost_work *x, double rows, double context)
{
    x->q += rows;
    x->qc += rows * context;
    x->qq += rows * rows;
}

uint32_t ds_cost_fit(const ds_cost *c, const ds_cost_work *base, double context, double budget_us, uint32_t most)
{
    double left = budget_us - ds_cost_of(c, base), b = c->coef[1] + c->coef[2] * context, e = c->coef[3], q;

    if (!(left > 0.0))
        return 0;
    if (e > 0.0) /* e q^2 + b q = left */
        q = 2.0 * left / (b + sqrt(b * b + 4.0 * e * left));
    else if (b > 0.0)
        q = left / b;
    else
        return most;
    return q >= most ? most : (uint32_t)q;
}
