/* Norms, rotations and everything that goes element by element. */
#include <math.h>
#include <string.h>

#include "ref_internal.h"

/* An op's arguments with its context, for the members. */
typedef struct {
    ds_exec *e;
    const void *a;
} job;

static void rmsnorm_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_rmsnorm *a = j->a;
    (void)member;
    for (size_t r = begin; r < end; r++) {
        const float *x = a->x + r * a->ldx;
        float *y = a->y + r * a->ldy;
        double ss = 0.0;
        for (uint32_t c = 0; c < a->dim; c++)
            ss += (double)x[c] * x[c];
        double s = 1.0 / sqrt(ss / a->dim + (double)a->eps);
        for (uint32_t c = 0; c < a->dim; c++)
            y[c] = rounded(j->e, x[c] * s * a->w[c]);
    }
}

void ds_rmsnorm_ref(ds_exec *e, const ds_op_rmsnorm *a)
{
    ds_exec_for(e, a->rows, 1, rmsnorm_rows, &(job){ e, a });
}

static void rope_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_rope *a = j->a;
    uint32_t rd = a->tab.rd;
    (void)member;
    for (size_t r = begin; r < end; r++) {
        int32_t p = a->pos[r] + a->shift;
        const float *cs = a->tab.cs + (size_t)(p < 0 ? 0 : p) * rd;
        for (uint32_t h = 0; h < a->heads; h++) {
            float *x = a->x + r * a->ldx + (size_t)h * a->dim + (a->dim - rd);
            for (uint32_t i = 0; i < rd; i += 2) {
                double c = cs[i], s = a->inverse ? -cs[i + 1] : cs[i + 1], u = x[i], v = x[i + 1];
                x[i] = rounded(j->e, u * c - v * s);
                x[i + 1] = rounded(j->e, u * s + v * c);
            }
        }
    }
}

void ds_rope_ref(ds_exec *e, const ds_op_rope *a)
{
    ds_exec_for(e, a->rows, 1, rope_rows, &(job){ e, a });
}

static void add_range(void *arg, size_t begin, size_t end, uint32_t member)
{
    const ds_op_add *a = arg;
    (void)member;
    for (size_t i = begin; i < end; i++)
        a->y[i] += a->x[i];
}

void ds_add_ref(ds_exec *e, const ds_op_add *a)
{
    ds_exec_for(e, a->n, 16, add_range, (void *)a);
}

static void swiglu_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_swiglu *a = j->a;
    (void)member;
    for (size_t r = begin; r < end; r++)
        for (uint32_t i = 0; i < a->n; i++) {
            double g = bound_gate(a->g[r * a->ldg + i], a->limit), u = bound_up(a->u[r * a->ldu + i], a->limit);
            a->h[r * a->ldh + i] = rounded(j->e, silu(g) * u);
        }
}

void ds_swiglu_ref(ds_exec *e, const ds_op_swiglu *a)
{
    ds_exec_for(e, a->rows, 1, swiglu_rows, &(job){ e, a });
}

static void gelu_range(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_gelu *a = j->a;
    (void)member;
    for (size_t i = begin; i < end; i++)
        a->x[i] = rounded(j->e, a->x[i] * 0.5 * (1.0 + erf(a->x[i] * M_SQRT1_2)));
}

void ds_gelu_ref(ds_exec *e, const ds_op_gelu *a)
{
    ds_exec_for(e, a->n, 16, gelu_range, &(job){ e, a });
}

static void argmax_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const ds_op_argmax *a = arg;
    (void)member;
    for (size_t r = begin; r < end; r++) {
        const float *x = a->x + r * a->ldx;
        uint32_t best = 0;
        for (uint32_t i = 1; i < a->n; i++)
            if (x[i] > x[best] || (isnan(x[best]) && !isnan(x[i])))
                best = i;
        a->id[r] = (int32_t)best;
    }
}

void ds_argmax_ref(ds_exec *e, const ds_op_argmax *a)
{
    ds_exec_for(e, a->rows, 1, argmax_rows, (void *)a);
}

static void copy_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const ds_op_copy *a = arg;
    (void)member;
    for (size_t r = begin; r < end; r++)
        memcpy(a->dst + r * a->ldd, a->src + (a->index ? a->index[r] : r) * a->lds, a->n * sizeof(float));
}

void ds_copy_ref(ds_exec *e, const ds_op_copy *a)
{
    ds_exec_for(e, a->rows, 1, copy_rows, (void *)a);
}
