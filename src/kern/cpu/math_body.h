/* exp, and what is made of it, over the vectors of vec_*.h. */
#ifndef DS_KERN_CPU_MATH_BODY_H
#define DS_KERN_CPU_MATH_BODY_H

/* e^x, within 1e-7 relative; 0 and infinity beyond the range of floats; NaN stays. x = n ln 2 + r, |r| <= ln 2 / 2,
 * then eight terms of the series. */
static inline vf vf_exp(vf x)
{
    vf n, r, p;

    x = vf_min(vf_set1(89.0f), vf_max(vf_set1(-104.0f), x));
    n = vf_nearest(vf_mul(x, vf_set1(1.44269504f)));
    r = vf_fma(n, vf_set1(-0x1.62e4p-1f), x); /* ln 2 in two parts; the first has few digits, so the product is exact */
    r = vf_fma(n, vf_set1(-0x1.7f7d1cp-20f), r);
    p = vf_set1(1.0f / 5040.0f);
    p = vf_fma(p, r, vf_set1(1.0f / 720.0f));
    p = vf_fma(p, r, vf_set1(1.0f / 120.0f));
    p = vf_fma(p, r, vf_set1(1.0f / 24.0f));
    p = vf_fma(p, r, vf_set1(1.0f / 6.0f));
    p = vf_fma(p, r, vf_set1(0.5f));
    p = vf_fma(p, r, vf_set1(1.0f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_scale2(p, n);
}

/* x / (1 + e^-x) */
static inline vf vf_silu(vf x)
{
    return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), x))));
}

static inline vf vf_sigmoid(vf x)
{
    return vf_div(vf_set1(1.0f), vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), x))));
}

/* ln(1 + t) for 0 <= t <= 1: 2 artanh(t / (2 + t)) */
static inline vf vf_log1p(vf t)
{
    vf s = vf_div(t, vf_add(vf_set1(2.0f), t)), q = vf_mul(s, s), p = vf_set1(1.0f / 15.0f);

    p = vf_fma(p, q, vf_set1(1.0f / 13.0f));
    p = vf_fma(p, q, vf_set1(1.0f / 11.0f));
    p = vf_fma(p, q, vf_set1(1.0f / 9.0f));
    p = vf_fma(p, q, vf_set1(1.0f / 7.0f));
    p = vf_fma(p, q, vf_set1(1.0f / 5.0f));
    p = vf_fma(p, q, vf_set1(1.0f / 3.0f));
    p = vf_mul(p, q);
    s = vf_add(s, s);
    return vf_fma(p, s, s);
}

#endif
