/* Scores and their softmax, for both kinds of attention, over the vectors of vec_*.h. */
#ifndef DS_KERN_CPU_SOFTMAX_BODY_H
#define DS_KERN_CPU_SOFTMAX_BODY_H

#include "kern/cpu/math_body.h"

/* s[h][i] = q_h . key_i for `heads` queries of `dim` values and `padded` keys (a multiple of VW), which stand
 * turned: [dim][padded]. A chain along dim in each lane. */
static inline __attribute__((always_inline)) void scores(float *s, const float *q, size_t ldq, const float *turned, size_t dim,
                                                         size_t padded, int heads)
{
    size_t i = 0;

    for (; i + 2 * VW <= padded; i += 2 * VW) {
        vf a[4], b[4];
        for (int h = 0; h < heads; h++)
            a[h] = b[h] = vf_zero();
        for (size_t c = 0; c < dim; c++) {
            vf x = vf_load(turned + c * padded + i), y = vf_load(turned + c * padded + i + VW);
            for (int h = 0; h < heads; h++) {
                vf v = vf_set1(q[(size_t)h * ldq + c]);
                a[h] = vf_fma(v, x, a[h]);
                b[h] = vf_fma(v, y, b[h]);
            }
        }
        for (int h = 0; h < heads; h++) {
            vf_store(s + (size_t)h * padded + i, a[h]);
            vf_store(s + (size_t)h * padded + i + VW, b[h]);
        }
    }
    for (; i < padded; i += VW) {
        vf a[4];
        for (int h = 0; h < heads; h++)
            a[h] = vf_zero();
        for (size_t c = 0; c < dim; c++) {
            vf x = vf_load(turned + c * padded + i);
            for (int h = 0; h < heads; h++)
                a[h] = vf_fma(vf_set1(q[(size_t)h * ldq + c]), x, a[h]);
        }
        for (int h = 0; h < heads; h++)
            vf_store(s + (size_t)h * padded + i, a[h]);
    }
}

/* s[0..n) to weights; the sum with the sink goes into the return value. Beyond n: zeros. */
static float weights(float *s, size_t n, size_t padded, float scale, float sink)
{
    vf m = vf_set1(-INFINITY), sum = vf_zero(), f = vf_set1(scale);
    float max;

    for (size_t i = 0; i < padded; i += VW) {
        vf v = vf_mul(vf_load(s + i), f);
        if (i + VW > n) {
            float part[VW];
            vf_store(part, v);
            for (size_t k = n - i; k < VW; k++)
                part[k] = -INFINITY;
            v = vf_load(part);
        }
        vf_store(s + i, v);
        m = vf_max(v, m); /* a NaN score doesn't become the largest */
    }
    max = vf_largest(m);
    for (size_t i = 0; i < padded; i += VW) {
        vf v = vf_exp(vf_sub(vf_load(s + i), vf_set1(max)));
        if (i + VW > n)
            v = vf_load_n((vf_store(s + i, v), s + i), n - i);
        vf_store(s + i, v);
        sum = vf_add(sum, v);
    }
    return vf_sum(sum) + expf(sink - max);
}

#endif
