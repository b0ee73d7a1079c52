/* The router, over the vectors of vec_*.h: affinities of all experts in vectors, then the choice one after the
 * other. */
#include "kern/cpu/bodies.h"
#include "kern/cpu/gemm.h"
#include "kern/cpu/math_body.h"

typedef struct {
    const ds_op_route *a;
    float *s; /* [members][2][padded]: affinity, and with the bias */
    size_t padded;
} job;

/* sqrt(ln(1 + e^x)). Below -20 it is e^(x/2), which doesn't underflow as early. */
static inline vf affinity(vf x)
{
    vf small = vf_exp(vf_mul(x, vf_set1(0.5f)));
    vf plus = vf_add(vf_max(vf_zero(), x), vf_log1p(vf_exp(vf_sub(vf_zero(), vf_abs(x)))));
    return vf_less(x, vf_set1(-20.0f), small, vf_sqrt(plus));
}

/* Of a chosen expert, also where floats have few digits left. */
static inline double chosen_affinity(float s, float x)
{
    return s < 1e-30f ? exp(0.5 * (double)x) : (double)s;
}

/* a ranks before b: NaN comes last; ties leave the earlier one. */
static inline int before(float a, float b)
{
    return a > b || (!(b == b) && a == a);
}

static void route_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_route *a = j->a;
    float *s = j->s + member * 2 * j->padded, *ranked = s + j->padded;
    vf inv = vf_set1(a->temp);

    for (size_t r = begin; r < end; r++) {
        const float *bias = a->dead && a->dead[r] && a->bias_vl ? a->bias_vl : a->bias;
        int32_t *sel = a->sel + r * a->k;
        double sum = 0.0;
        for (size_t i = 0; i < a->experts; i += VW) {
            vf v = affinity(vf_div(vf_load_n(a->logit + r * a->experts + i, a->experts - i), inv));
            vf_store(s + i, v);
            vf_store(ranked + i, vf_add(v, vf_load_n(bias + i, a->experts - i)));
        }
        for (uint32_t i = 0; i < a->k; i++) {
            int32_t best = -1;
            for (uint32_t x = 0; x < a->experts; x++) {
                int taken = 0;
                if (best >= 0 && !before(ranked[x], ranked[best]))
                    continue;
                for (uint32_t t = 0; t < i; t++)
                    taken |= sel[t] == (int32_t)x;
                if (!taken)
                    best = (int32_t)x;
            }
            sel[i] = best;
            sum += chosen_affinity(s[best], a->logit[r * a->experts + (size_t)best] / a->temp);
        }
        for (uint32_t i = 0; i < a->k; i++) {
            double v = chosen_affinity(s[sel[i]], a->logit[r * a->experts + (size_t)sel[i]] / a->temp);
            a->w[r * a->k + i] = (float)((a->norm && a->k > 1 ? v / (sum + 1e-20) : v) * (double)a->scale);
        }
    }
}

void V(ds_route)(ds_exec *e, const ds_op_route *a)
{
    size_t mark = ds_arena_mark(e->scratch);
    job j = { .a = a, .padded = ((size_t)a->experts + VW - 1) / VW * VW };

    j.s = ds_exec_scratch(e, ds_exec_members(e) * 2 * j.padded * sizeof *j.s);
    ds_cpu_for(e, a->rows, 1, a->rows * a->experts * 4, route_rows, &j);
    ds_arena_rewind(e->scratch, mark);
}
