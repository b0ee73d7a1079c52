/* Vectors of 8 floats; see vec_avx512.h, which has the same names. */
#ifndef DS_KERN_CPU_VEC_H
#define DS_KERN_CPU_VEC_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "format/numfmt.h"

#define V(name) name##_avx2
enum { VW = 8 };

typedef __m256 vf;

static inline __m256i vf_first(size_t n) /* n <= 8 */
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vf vf_zero(void)
{
    return _mm256_setzero_ps();
}
static inline vf vf_set1(float x)
{
    return _mm256_set1_ps(x);
}
static inline vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
static inline void vf_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v);
}
static inline vf vf_load_n(const float *p, size_t n)
{
    return n >= VW ? vf_load(p) : _mm256_maskload_ps(p, vf_first(n));
}
static inline void vf_store_n(float *p, vf v, size_t n)
{
    if (n >= VW)
        vf_store(p, v);
    else
        _mm256_maskstore_ps(p, vf_first(n), v);
}
static inline vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
static inline vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
static inline vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
static inline vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
static inline vf vf_sqrt(vf a)
{
    return _mm256_sqrt_ps(a);
}
static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
static inline vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
static inline vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
static inline vf vf_abs(vf a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
static inline vf vf_less(vf a, vf b, vf x, vf y)
{
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
static inline vf vf_number_or(vf a, vf b)
{
    return _mm256_blendv_ps(a, b, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
static inline int vf_all_finite(vf a)
{
    vf zero = _mm256_sub_ps(a, a); /* NaN unless finite */
    return _mm256_movemask_ps(_mm256_cmp_ps(zero, zero, _CMP_UNORD_Q)) == 0;
}
static inline vf vf_copysign(vf mag, vf sign)
{
    vf bit = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(bit, mag), _mm256_and_ps(bit, sign));
}
static inline vf vf_nearest(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf vf_scale2(vf a, vf n) /* |n| < 252 */
{
    __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1), rest = _mm256_sub_epi32(i, half), bias = _mm256_set1_epi32(127);
    a = _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}

static inline vf vf_bf16(vf a)
{
    __m256i u = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    vf quiet = _mm256_castsi256_ps(_mm256_or_si256(u, _mm256_set1_epi32(0x400000)));

    r = _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(r), quiet, _mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
    return _mm256_castsi256_ps(_mm256_and_si256(r, _mm256_set1_epi32((int)0xffff0000u)));
}

static inline vf vf_sums(const vf v[VW])
{
    __m256 t[2];

    for (int i = 0; i < 2; i++) {
        const vf *a = v + 4 * i;
        __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a[0], a[1]), _mm256_unpackhi_ps(a[0], a[1]));
        __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(a[2], a[3]), _mm256_unpackhi_ps(a[2], a[3]));
        __m256d p = _mm256_castps_pd(ab), q = _mm256_castps_pd(cd);
        t[i] = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(p, q)), _mm256_castpd_ps(_mm256_unpackhi_pd(p, q)));
    }
    return _mm256_add_ps(_mm256_permute2f128_ps(t[0], t[1], 0x20), _mm256_permute2f128_ps(t[0], t[1], 0x31));
}

static inline float vf_sum(vf v)
{
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}

static inline float vf_largest(vf v)
{
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

static inline void vf_transpose(vf v[VW])
{
    __m256 a[8], b[8];

    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            __m256d p = _mm256_castps_pd(a[i + j]), q = _mm256_castps_pd(a[i + 2 + j]);
            b[i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(p, q));
            b[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(p, q));
        }
    for (int c = 0; c < 4; c++) {
        v[c] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x20);
        v[4 + c] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x31);
    }
}

static inline void vf_transpose4(vf v[4])
{
    __m256 a = _mm256_unpacklo_ps(v[0], v[2]), b = _mm256_unpackhi_ps(v[0], v[2]), c = _mm256_unpacklo_ps(v[1], v[3]),
           d = _mm256_unpackhi_ps(v[1], v[3]);
    v[0] = _mm256_unpacklo_ps(a, c);
    v[1] = _mm256_unpackhi_ps(a, c);
    v[2] = _mm256_unpacklo_ps(b, d);
    v[3] = _mm256_unpackhi_ps(b, d);
}

static inline void vf_of_bf16(vf *even, vf *odd, const void *p)
{
    __m256i v = _mm256_loadu_si256(p);
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000u)));
}

static inline void vf_of_e2m1(vf *even, vf *odd, const void *p, const float value[16])
{
    const __m256i sign = _mm256_set1_epi32(INT32_MIN);
    __m256 scaled = _mm256_loadu_ps(value); /* the positive ones */
    __m256i d = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)),
            o = _mm256_srli_epi32(d, 4); /* a permutation reads three bits of each index */
    *even = _mm256_or_ps(_mm256_permutevar8x32_ps(scaled, d), _mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(d, 28), sign)));
    *odd = _mm256_or_ps(_mm256_permutevar8x32_ps(scaled, o), _mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(d, 24), sign)));
}

static inline void vf_of_e4m3(vf *even, vf *odd, const void *p, float scale256)
{
    __m128i v = _mm_loadu_si128(p), mask = _mm_set1_epi16((short)0xbf80);
    __m128i e = _mm_and_si128(_mm_srai_epi16(_mm_slli_epi16(v, 8), 1), mask), o = _mm_and_si128(_mm_srai_epi16(v, 1), mask);
    *even = _mm256_mul_ps(_mm256_cvtph_ps(e), _mm256_set1_ps(scale256));
    *odd = _mm256_mul_ps(_mm256_cvtph_ps(o), _mm256_set1_ps(scale256));
}

static inline vf vf_group_scales(const uint8_t *codes)
{
    return _mm256_set1_ps(ds_e4m3_to_f32(codes[0]));
}

static inline void vf_deinterleave(vf *even, vf *odd, vf a, vf b)
{
    __m256 e = _mm256_shuffle_ps(a, b, 0x88), o = _mm256_shuffle_ps(a, b, 0xdd); /* a0 a2 b0 b2 | a4 a6 b4 b6 */
    *even = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(e), 0xd8));
    *odd = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(o), 0xd8));
}
static inline void vf_interleave(vf *a, vf *b, vf even, vf odd)
{
    __m256 l = _mm256_unpacklo_ps(even, odd), h = _mm256_unpackhi_ps(even, odd);
    *a = _mm256_permute2f128_ps(l, h, 0x20);
    *b = _mm256_permute2f128_ps(l, h, 0x31);
}
static inline vf vf_swap_pairs(vf a)
{
    return _mm256_permute_ps(a, 0xb1);
}
static inline vf vf_dup_even(vf a)
{
    return _mm256_moveldup_ps(a);
}
static inline vf vf_dup_odd(vf a)
{
    return _mm256_movehdup_ps(a);
}
static inline vf vf_negate_even(vf a)
{
    return _mm256_xor_ps(a, _mm256_castsi256_ps(_mm256_set1_epi64x(0x80000000ll)));
}

static inline vf vb_dot32(const uint32_t *codes, const int8_t *b, int32_t base)
{
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < 8; i++) {
        int32_t four;
        memcpy(&four, b + 4 * i, 4);
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(_mm256_loadu_si256((const void *)(codes + i * VW)), _mm256_set1_epi32(four)));
    }
    return _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)), _mm256_set1_epi32(base)));
}

static inline size_t vb_count_ge(const int32_t *key, int32_t t)
{
    __m256i less = _mm256_cmpgt_epi32(_mm256_set1_epi32(t), _mm256_loadu_si256((const void *)key));
    return 8 - (size_t)__builtin_popcount((unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(less)));
}

#endif
