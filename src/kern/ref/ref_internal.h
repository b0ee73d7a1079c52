/* Helpers of the scalar oracle. */
#ifndef DS_KERN_REF_REF_INTERNAL_H
#define DS_KERN_REF_REF_INTERNAL_H

#include <math.h>

#include "format/numfmt.h"
#include "kern/kern.h"
#include "kern/ref/ref.h"

/* The value that an output called "rounded" stores. */
static inline float rounded(const ds_exec *e, double v)
{
    return e->bf16 ? ds_bf16_round((float)v) : (float)v;
}

static inline double sigmoid(double v)
{
    return 1.0 / (1.0 + exp(-v));
}

static inline double silu(double v)
{
    return v * sigmoid(v);
}

/* min(g, limit) and clamp(u, -limit, limit) of an expert; limit <= 0: no bounds. NaN stays NaN. */
static inline double bound_gate(double g, float limit)
{
    return limit > 0.0f && g > (double)limit ? (double)limit : g;
}

static inline double bound_up(double u, float limit)
{
    if (limit > 0.0f && u > (double)limit)
        return (double)limit;
    return limit > 0.0f && u < -(double)limit ? -(double)limit : u;
}

/* Row r of w, columns [c0, c0 + n); n and c0 are multiples of 32 for the scaled types. Exact. */
void ds_mat_row_ref(float *dst, const ds_mat *w, uint64_t r, uint32_t c0, uint32_t n);
/* sum over k of w[r][k] * x[k], in double. */
double ds_mat_dot_ref(const ds_mat *w, uint64_t r, const float *x);

#endif
