/* Attention over window and selected entries, over the vectors of vec_*.h.
 *
 * A row's entries are decoded once for all heads, in the order of its own list: as rows of `dim` values for the
 * weighted sum, and turned, VW entries side by side, for the scores. Within a row each chunk of 2*VW values has its
 * even elements first, as codes are decoded; queries are put into the same order and outputs back. Scores: a chain
 * along dim in each lane. Sum of values: a chain along the list. So a result depends on the row's list alone. Bound
 * by FMA units: 2 * heads * entries * dim products a row; decoding is 1/heads of that. */
#include "kern/cpu/attention.h"
#include "kern/cpu/bodies.h"

#include "format/numfmt.h"
#include "kern/cpu/gemm.h"
#include "kern/cpu/softmax_body.h"

enum { CHUNK = 2 * VW, HB = 4 };

static void decode_window(float *d, const uint8_t *rec, size_t dim)
{
    for (size_t c = 0; c < dim; c += CHUNK) {
        uint8_t s = rec[dim + c / 32];
        vf a, b;
        bool huge = s > 246 && s < 255;
        vf_of_e4m3(&a, &b, rec + c, huge ? 256.0f : ds_e8m0_value256[s]);
        if (huge) {
            a = vf_mul(a, vf_set1(ds_e8m0_value[s]));
            b = vf_mul(b, vf_set1(ds_e8m0_value[s]));
        }
        vf_store(d + c, a);
        vf_store(d + c + VW, b);
    }
}

static void decode_main(float *d, const uint8_t *rec, size_t dim)
{
    for (size_t c = 0; c < dim; c += CHUNK) {
        vf a, b, s = vf_group_scales(rec + dim / 2 + c / 16);
        vf_of_e2m1(&a, &b, rec + c / 2, ds_e2m1_scaled[127]);
        vf_store(d + c, vf_mul(a, s));
        vf_store(d + c + VW, vf_mul(b, s));
    }
}

/* Entries [i0, i1) of the list, i0 a multiple of VW; lanes beyond the list are zero. */
static void decode_entries(const ds_attention_row *w, size_t i0, size_t i1)
{
    size_t dim = w->dim;

    for (size_t i = i0; i < i1; i += VW) {
        for (size_t k = i; k < i + VW; k++) {
            float *d = w->entry + k * dim;
            if (k >= w->n)
                memset(d, 0, dim * sizeof *d);
            else if (k < w->n_window)
                decode_window(d, w->rec[k], dim);
            else
                decode_main(d, w->rec[k], dim);
        }
        for (size_t c = 0; c < dim; c += VW) {
            vf t[VW];
            for (size_t k = 0; k < VW; k++)
                t[k] = vf_load(w->entry + (i + k) * dim + c);
            vf_transpose(t);
            for (size_t k = 0; k < VW; k++)
                vf_store(w->turned + (c + k) * w->padded + i, t[k]);
        }
    }
}

static inline __attribute__((always_inline)) void values(float *o, const float *s, size_t lds, const float *total,
                                                         const ds_attention_row *w, int heads, bool bf16)
{
    size_t dim = w->dim;

    for (size_t c = 0; c < dim; c += CHUNK) {
        vf a[HB], b[HB];
        for (int h = 0; h < heads; h++)
            a[h] = b[h] = vf_zero();
        for (size_t i = 0; i < w->n; i++) {
            vf x = vf_load(w->entry + i * dim + c), y = vf_load(w->entry + i * dim + c + VW);
            for (int h = 0; h < heads; h++) {
                vf p = vf_set1(s[(size_t)h * lds + i]);
                a[h] = vf_fma(p, x, a[h]);
                b[h] = vf_fma(p, y, b[h]);
            }
        }
        for (int h = 0; h < heads; h++) {
            vf x, y, t = vf_set1(total[h]);
            vf_interleave(&x, &y, vf_div(a[h], t), vf_div(b[h], t));
            vf_store(o + (size_t)h * dim + c, bf16 ? vf_bf16(x) : x);
            vf_store(o + (size_t)h * dim + c + VW, bf16 ? vf_bf16(y) : y);
        }
    }
}

/* Heads [h0, h1) of a row; q is put into the decoded order at `order`, [HB][dim], scores at s, [HB][padded]. */
static void heads_of(const ds_attention_row *w, const ds_op_attention *a, size_t r, uint32_t h0, uint32_t h1, float *order, float *s,
                     bool bf16)
{
    size_t dim = a->dim;

    for (uint32_t h = h0; h < h1; h += HB) {
        uint32_t n = h1 - h < HB ? h1 - h : HB;
        const float *q = a->q + (r * a->heads + h) * dim;
        float *o = a->o + (r * a->heads + h) * dim, total[HB];
        if (w->n == 0) {
            memset(o, 0, n * dim * sizeof *o);
            continue;
        }
        for (size_t c = 0; c < n * dim; c += CHUNK) {
            vf x, y;
            vf_deinterleave(&x, &y, vf_load(q + c), vf_load(q + c + VW));
            vf_store(order + c, x);
            vf_store(order + c + VW, y);
        }
        switch (n) {
        case 1:
            scores(s, order, dim, w->turned, dim, w->padded, 1);
            break;
        case 2:
            scores(s, order, dim, w->turned, dim, w->padded, 2);
            break;
        case 3:
            scores(s, order, dim, w->turned, dim, w->padded, 3);
            break;
        default:
            scores(s, order, dim, w->turned, dim, w->padded, HB);
        }
        for (uint32_t i = 0; i < n; i++)
            total[i] = weights(s + i * w->padded, w->n, w->padded, a->scale, a->sink[h + i]);
        switch (n) {
        case 1:
            values(o, s, w->padded, total, w, 1, bf16);
            break;
        case 2:
            values(o, s, w->padded, total, w, 2, bf16);
            break;
        case 3:
            values(o, s, w->padded, total, w, 3, bf16);
            break;
        default:
            values(o, s, w->padded, total, w, HB, bf16);
        }
    }
}

static const ds_attention_body body = { .lanes = VW, .head_block = HB, .decode = decode_entries, .heads = heads_of };

void V(ds_attention)(ds_exec *e, const ds_op_attention *a)
{
    ds_attention_cpu(e, a, &body);
}
