/* Norms, rotations, gates and other ops that go element by element, over the vectors of vec_*.h. Bound by the bytes
 * that they touch, which are in cache. */
#include "format/numfmt.h"
#include "kern/cpu/bodies.h"
#include "kern/cpu/gemm.h"
#include "kern/cpu/math_body.h"

typedef struct {
    ds_exec *e;
    const void *a;
} job;

/* ---- gated hidden values ---- */

void V(ds_hidden)(float *h, const float *g, const float *u, size_t n, float w, float limit, bool round_in, bool round_out)
{
    vf hi = vf_set1(limit), lo = vf_set1(-limit);

    for (size_t i = 0; i < n; i += VW) {
        vf a = vf_load_n(g + i, n - i), b = vf_load_n(u + i, n - i);
        if (round_in) {
            a = vf_bf16(a);
            b = vf_bf16(b);
        }
        if (limit > 0.0f) {
            a = vf_min(hi, a);
            b = vf_max(lo, vf_min(hi, b));
        }
        a = vf_mul(vf_mul(vf_set1(w), vf_silu(a)), b);
        vf_store_n(h + i, round_out ? vf_bf16(a) : a, n - i);
    }
}

static void swiglu_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_swiglu *a = j->a;
    (void)member;
    for (size_t r = begin; r < end; r++)
        V(ds_hidden)(a->h + r * a->ldh, a->g + r * a->ldg, a->u + r * a->ldu, a->n, 1.0f, a->limit, false, j->e->bf16);
}

void V(ds_swiglu)(ds_exec *e, const ds_op_swiglu *a)
{
    ds_cpu_for(e, a->rows, 1, a->rows * a->n, swiglu_rows, &(job){ e, a });
}

/* ---- norm ---- */

static void rmsnorm_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_rmsnorm *a = j->a;
    size_t n = a->dim;
    (void)member;
    for (size_t r = begin; r < end; r++) {
        const float *x = a->x + r * a->ldx;
        float *y = a->y + r * a->ldy;
        vf s0 = vf_zero(), s1 = vf_zero();
        size_t i = 0;
        for (; i + 2 * VW <= n; i += 2 * VW) {
            vf v0 = vf_load(x + i), v1 = vf_load(x + i + VW);
            s0 = vf_fma(v0, v0, s0);
            s1 = vf_fma(v1, v1, s1);
        }
        for (; i < n; i += VW) {
            vf v = vf_load_n(x + i, n - i);
            s0 = vf_fma(v, v, s0);
        }
        float ss = vf_sum(vf_add(s0, s1));
        vf s;
        if (ss > 1e-30f && ss < 1e37f) {
            s = vf_set1((float)(1.0 / sqrt((double)ss / a->dim + (double)a->eps)));
        } else { /* squares beyond the range of floats */
            double sum = 0.0;
            for (size_t c = 0; c < n; c++)
                sum += (double)x[c] * x[c];
            double scale = 1.0 / sqrt(sum / a->dim + (double)a->eps);
            if (!(scale <= 3e38)) {
                for (size_t c = 0; c < n; c++) {
                    double v = x[c] * scale * a->w[c];
                    y[c] = j->e->bf16 ? ds_bf16_round((float)v) : (float)v;
                }
                continue;
            }
            s = vf_set1((float)scale);
        }
        for (i = 0; i < n; i += VW) {
            vf v = vf_mul(vf_mul(vf_load_n(x + i, n - i), s), vf_load_n(a->w + i, n - i));
            vf_store_n(y + i, j->e->bf16 ? vf_bf16(v) : v, n - i);
        }
    }
}

void V(ds_rmsnorm)(ds_exec *e, const ds_op_rmsnorm *a)
{
    ds_cpu_for(e, a->rows, 1, a->rows * a->dim / 4, rmsnorm_rows, &(job){ e, a });
}

/* ---- rotation ---- */

static void rope_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_rope *a = j->a;
    size_t rd = a->tab.rd;
    (void)member;
    for (size_t r = begin; r < end; r++) {
        int32_t p = a->pos[r] + a->shift;
        const float *cs = a->tab.cs + (size_t)(p < 0 ? 0 : p) * rd;
        for (uint32_t h = 0; h < a->heads; h++) {
            float *x = a->x + r * a->ldx + (size_t)h * a->dim + (a->dim - rd);
            for (size_t i = 0; i < rd; i += VW) {
                vf t = vf_load_n(cs + i, rd - i), c = vf_dup_even(t), s = vf_dup_odd(t), v = vf_load_n(x + i, rd - i);
                vf y = vf_mul(vf_swap_pairs(v), s); /* (v s, u s) of a pair (u, v) */
                y = a->inverse ? vf_sub(vf_zero(), vf_negate_even(y)) : vf_negate_even(y);
                y = vf_fma(v, c, y);
                vf_store_n(x + i, j->e->bf16 ? vf_bf16(y) : y, rd - i);
            }
        }
    }
}

void V(ds_rope)(ds_exec *e, const ds_op_rope *a)
{
    ds_cpu_for(e, a->rows, 1, a->rows * a->heads * a->tab.rd / 4, rope_rows, &(job){ e, a });
}

/* ---- add ---- */

static void add_range(void *arg, size_t begin, size_t end, uint32_t member)
{
    const ds_op_add *a = arg;
    (void)member;
    for (size_t i = begin; i < end; i += VW)
        vf_store_n(a->y + i, vf_add(vf_load_n(a->y + i, end - i), vf_load_n(a->x + i, end - i)), end - i);
}

void V(ds_add)(ds_exec *e, const ds_op_add *a)
{
    ds_cpu_for(e, a->n, 64, a->n / 8, add_range, (void *)a);
}
