/* Router and routed experts (spec 3.13). */
#include <math.h>
#include <string.h>

#include "ref_internal.h"

static double softplus(double v)
{
    return v > 0.0 ? v + log1p(exp(-v)) : log1p(exp(v));
}

static double affinity(const ds_op_route *a, size_t r, uint32_t expert)
{
    return sqrt(softplus(a->logit[r * a->experts + expert] / (double)a->temp));
}

static bool among(const int32_t *sel, uint32_t n, uint32_t expert)
{
    for (uint32_t i = 0; i < n; i++)
        if (sel[i] == (int32_t)expert)
            return true;
    return false;
}

static void route_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const ds_op_route *a = arg;
    (void)member;
    for (size_t r = begin; r < end; r++) {
        const float *bias = a->dead && a->dead[r] && a->bias_vl ? a->bias_vl : a->bias;
        int32_t *sel = a->sel + r * a->k;
        double sum = 0.0;
        for (uint32_t i = 0; i < a->k; i++) {
            double best = 0.0;
            sel[i] = -1;
            for (uint32_t x = 0; x < a->experts; x++) {
                if (among(sel, i, x))
                    continue;
                double score = affinity(a, r, x) + bias[x];
                if (sel[i] < 0 || score > best || (isnan(best) && !isnan(score))) {
                    best = score;
                    sel[i] = (int32_t)x;
                }
            }
            sum += affinity(a, r, (uint32_t)sel[i]);
        }
        for (uint32_t i = 0; i < a->k; i++) {
            double s = affinity(a, r, (uint32_t)sel[i]);
            a->w[r * a->k + i] = (float)((a->norm && a->k > 1 ? s / (sum + 1e-20) : s) * (double)a->scale);
        }
    }
}

void ds_route_ref(ds_exec *e, const ds_op_route *a)
{
    ds_exec_for(e, a->rows, 1, route_rows, (void *)a);
}

typedef struct {
    ds_exec *e;
    const ds_op_experts_part *a;
    float *h; /* [members][inner] */
} part_job;

static void part_pairs(void *arg, size_t begin, size_t end, uint32_t member)
{
    const part_job *j = arg;
    const ds_op_experts_part *a = j->a;
    float *h = j->h + (size_t)member * a->inner;

    for (size_t p = begin; p < end; p++) {
        const float *x = a->x + p / a->k * a->d;
        uint32_t m = (uint32_t)a->sel[p] - a->first;
        if (m >= a->n) /* below `first` wraps around */
            continue;
        for (uint32_t o = 0; o < a->inner; o++) {
            double g = bound_gate(rounded(j->e, ds_mat_dot_ref(&a->w1[m], o, x)), a->limit);
            double u = bound_up(rounded(j->e, ds_mat_dot_ref(&a->w3[m], o, x)), a->limit);
            h[o] = rounded(j->e, a->w[p] * silu(g) * u);
        }
        for (uint32_t o = 0; o < a->d; o++)
            a->part[p * a->d + o] = rounded(j->e, ds_mat_dot_ref(&a->w2[m], o, h));
    }
}

void ds_experts_part_ref(ds_exec *e, const ds_op_experts_part *a)
{
    size_t mark = ds_arena_mark(e->scratch);
    part_job j = { e, a, ds_exec_scratch(e, ds_exec_members(e) * (size_t)a->inner * sizeof(float)) };

    ds_exec_for(e, a->rows * a->k, 1, part_pairs, &j);
    ds_arena_rewind(e->scratch, mark);
}

typedef struct {
    ds_exec *e;
    const ds_op_experts_sum *a;
} sum_job;

static void sum_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const sum_job *j = arg;
    const ds_op_experts_sum *a = j->a;
    (void)member;
    for (size_t r = begin; r < end; r++)
        for (uint32_t o = 0; o < a->d; o++) {
            double y = 0.0;
            for (uint32_t i = 0; i < a->k; i++)
                y += a->part[(r * a->k + i) * a->d + o];
            a->y[r * a->d + o] = rounded(j->e, y + a->shared[r * a->d + o]);
        }
}

void ds_experts_sum_ref(ds_exec *e, const ds_op_experts_sum *a)
{
    ds_exec_for(e, a->rows, 1, sum_rows, &(sum_job){ e, a });
}
