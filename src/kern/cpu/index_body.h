/* Scores of index keys, over integer vectors as wide as those of vec_*.h.
 *
 * A key's codes are whole numbers when doubled. Their bytes, 12 added to make them unsigned, stand four to a dword,
 * VW keys side by side; a query's dword goes to all lanes. The sum of 32 products is exact; groups and heads are
 * added up in f32, in order. Bound by the byte multiplications: heads * dim / 4 of them for VW keys. */
#include "kern/cpu/bodies.h"
#include "kern/cpu/index.h"

static void keys(uint32_t *codes, float *scales, const uint8_t *const *rec, uint32_t dim)
{
    const __m128i value = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0), low = _mm_set1_epi8(15);
    size_t groups = dim / 32;

    for (size_t k = 0; k < VW; k++)
        for (size_t g = 0; g < groups; g++) {
            __m128i c = _mm_loadu_si128((const void *)(rec[k] + g * 16));
            uint32_t d[8];
            _mm_storeu_si128((void *)d, _mm_shuffle_epi8(value, _mm_and_si128(c, low)));
            _mm_storeu_si128((void *)(d + 4), _mm_shuffle_epi8(value, _mm_and_si128(_mm_srli_epi16(c, 4), low)));
            for (size_t i = 0; i < 8; i++)
                codes[(g * 8 + i) * VW + k] = d[i];
            scales[g * VW + k] = ds_e8m0_value[rec[k][dim / 2 + g]];
        }
}

static inline __attribute__((always_inline)) vf dot_of(const ds_index_query *q, size_t h, const uint32_t *codes, const float *scales,
                                                       size_t groups)
{
    vf dot = vf_zero();

    for (size_t g = 0; g < groups; g++) {
        const int8_t *b = q->q + (h * groups + g) * 32;
        vf sum = vb_dot32(codes + g * 8 * VW, b, q->base[h * groups + g]);
        dot = vf_fma(vf_mul(sum, vf_set1(q->scale[h * groups + g])), vf_load(scales + g * VW), dot);
    }
    return dot;
}

static void score(float *out, const ds_index_query *q, const uint32_t *codes, const float *scales, uint32_t heads, uint32_t dim)
{
    size_t groups = dim / 32;
    vf sum = vf_zero();

    if (q->finite) {
        for (size_t h = 0; h < heads; h++)
            sum = vf_fma(vf_set1(q->g[h] * q->g_scale), vf_max(vf_zero(), dot_of(q, h, codes, scales, groups)), sum);
    } else { /* infinity times a product of zero isn't a term */
        for (size_t h = 0; h < heads; h++) {
            vf dot = dot_of(q, h, codes, scales, groups);
            sum = vf_add(sum, vf_less(vf_zero(), dot, vf_mul(vf_set1(q->g[h] * q->g_scale), dot), vf_mul(vf_zero(), dot)));
        }
    }
    vf_store(out, sum);
}

static size_t count(const int32_t *key, size_t n, int32_t t)
{
    size_t c = 0, i = 0;

    for (; i + VW <= n; i += VW)
        c += vb_count_ge(key + i, t);
    for (; i < n; i++)
        c += key[i] >= t;
    return c;
}

static const ds_index_body body = { .lanes = VW, .keys = keys, .score = score, .count = count };

void V(ds_index_topk)(ds_exec *e, const ds_op_index_topk *a)
{
    ds_index_topk_cpu(e, a, &body);
}
