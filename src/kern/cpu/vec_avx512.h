/* Vectors of 16 floats, for bodies that are written once and built for each instruction set (see README). vec_avx2.h
 * has the same names with 8.
 *
 * vf_sums and vf_sum each have one fixed tree of additions, the same for every vector. */
#ifndef DS_KERN_CPU_VEC_H
#define DS_KERN_CPU_VEC_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "format/numfmt.h"
#include "kern/cpu/gemm.h"

#define V(name) name##_avx512
enum { VW = 16 }; /* lanes */

typedef __m512 vf;

static inline __mmask16 vf_first(size_t n) /* n <= 16 */
{
    return (__mmask16)((1u << n) - 1u);
}

static inline vf vf_zero(void)
{
    return _mm512_setzero_ps();
}
static inline vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
static inline vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline void vf_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}
/* The first n lanes; the others are zero. */
static inline vf vf_load_n(const float *p, size_t n)
{
    return n >= VW ? vf_load(p) : _mm512_maskz_loadu_ps(vf_first(n), p);
}
static inline void vf_store_n(float *p, vf v, size_t n)
{
    if (n >= VW)
        vf_store(p, v);
    else
        _mm512_mask_storeu_ps(p, vf_first(n), v);
}
static inline vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
static inline vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
static inline vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
static inline vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
static inline vf vf_sqrt(vf a)
{
    return _mm512_sqrt_ps(a);
}
static inline vf vf_fma(vf a, vf b, vf c) /* a*b + c */
{
    return _mm512_fmadd_ps(a, b, c);
}
/* A NaN in b comes through, one in a doesn't. */
static inline vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
static inline vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
static inline vf vf_abs(vf a)
{
    return _mm512_abs_ps(a);
}
/* a < b ? x : y, lane by lane; y where either is NaN. */
static inline vf vf_less(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
/* NaN lanes of a become b. */
static inline vf vf_number_or(vf a, vf b)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a, b);
}
static inline int vf_all_finite(vf a)
{
    return _mm512_fpclass_ps_mask(a, 0x99) == 0; /* quiet and signalling NaN, both infinities */
}
static inline vf vf_copysign(vf mag, vf sign)
{
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(_mm512_castps_si512(mag), _mm512_castps_si512(sign), _mm512_set1_epi32(INT32_MIN), 0xca));
}
static inline vf vf_nearest(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* a * 2^n, n integral */
static inline vf vf_scale2(vf a, vf n)
{
    return _mm512_scalef_ps(a, n);
}

static inline vf vf_bf16(vf a)
{
    __m512i u = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));

    r = _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
    return _mm512_castsi512_ps(_mm512_and_si512(r, _mm512_set1_epi32((int)0xffff0000u)));
}

/* 16 vectors to the sums of their lanes, in order. */
static inline vf vf_sums(const vf v[VW])
{
    __m512 t[4];

    for (int i = 0; i < 4; i++) {
        const vf *a = v + 4 * i;
        __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a[0], a[1]), _mm512_unpackhi_ps(a[0], a[1]));
        __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(a[2], a[3]), _mm512_unpackhi_ps(a[2], a[3]));
        __m512d p = _mm512_castps_pd(ab), q = _mm512_castps_pd(cd);
        t[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(p, q)), _mm512_castpd_ps(_mm512_unpackhi_pd(p, q)));
    }
    __m512 x = _mm512_add_ps(_mm512_shuffle_f32x4(t[0], t[1], 0x88), _mm512_shuffle_f32x4(t[0], t[1], 0xdd));
    __m512 y = _mm512_add_ps(_mm512_shuffle_f32x4(t[2], t[3], 0x88), _mm512_shuffle_f32x4(t[2], t[3], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
}

static inline float vf_sum(vf v)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}

static inline float vf_largest(vf v)
{
    return _mm512_reduce_max_ps(v);
}

/* v is [16][16] rows; afterwards v[c] holds what was lane c of each row. */
static inline void vf_transpose(vf v[VW])
{
    __m512 a[16], b[16];

    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            __m512d p = _mm512_castps_pd(a[i + j]), q = _mm512_castps_pd(a[i + 2 + j]);
            b[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(p, q));
            b[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(p, q));
        }
    for (int c = 0; c < 4; c++) { /* b[4g + c], lane block l: rows 4g..4g+3 of column 4l + c */
        __m512 x = _mm512_shuffle_f32x4(b[c], b[4 + c], 0x88), y = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0x88);
        __m512 z = _mm512_shuffle_f32x4(b[c], b[4 + c], 0xdd), w = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0xdd);
        v[c] = _mm512_shuffle_f32x4(x, y, 0x88);
        v[8 + c] = _mm512_shuffle_f32x4(x, y, 0xdd);
        v[4 + c] = _mm512_shuffle_f32x4(z, w, 0x88);
        v[12 + c] = _mm512_shuffle_f32x4(z, w, 0xdd);
    }
}

/* 4x4 matrices in the 128-bit parts, row i in v[i], are turned. */
static inline void vf_transpose4(vf v[4])
{
    __m512 a = _mm512_unpacklo_ps(v[0], v[2]), b = _mm512_unpackhi_ps(v[0], v[2]), c = _mm512_unpacklo_ps(v[1], v[3]),
           d = _mm512_unpackhi_ps(v[1], v[3]);
    v[0] = _mm512_unpacklo_ps(a, c);
    v[1] = _mm512_unpackhi_ps(a, c);
    v[2] = _mm512_unpacklo_ps(b, d);
    v[3] = _mm512_unpackhi_ps(b, d);
}

/* ---- codes to values; each gives 2*VW values as even elements and odd elements ---- */

static inline void vf_of_bf16(vf *even, vf *odd, const void *p)
{
    __m512i v = _mm512_loadu_si512(p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000u)));
}

/* value: the sixteen E2M1 values, scaled (vf_of_e2m1 reads four bits of each index). */
static inline void vf_of_e2m1(vf *even, vf *odd, const void *p, const float value[16])
{
    __m512 v = _mm512_loadu_ps(value);
    __m512i d = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    *even = _mm512_permutexvar_ps(d, v);
    *odd = _mm512_permutexvar_ps(_mm512_srli_epi32(d, 4), v);
}

/* E4M3 without its NaN codes, by way of half floats, whose subnormals cost nothing; scale256 = 256 * scale. */
static inline void vf_of_e4m3(vf *even, vf *odd, const void *p, float scale256)
{
    __m256i v = _mm256_loadu_si256(p), mask = _mm256_set1_epi16((short)0xbf80);
    __m256i e = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(v, 8), 1), mask), o = _mm256_and_si256(_mm256_srai_epi16(v, 1), mask);
    *even = _mm512_mul_ps(_mm512_cvtph_ps(e), _mm512_set1_ps(scale256));
    *odd = _mm512_mul_ps(_mm512_cvtph_ps(o), _mm512_set1_ps(scale256));
}

/* 32 E4M3 codes times a scale as bf16, in order; exact for scales 10 .. 246. An exponent and three bits stand in a
 * bf16 four bits further up, less the difference of the biases, which goes into the scale; the eight magnitudes
 * without an exponent come from a table. */
static inline __m512i vw_of_e4m3(const void *p, uint8_t scale)
{
    __m512i v = _mm512_cvtepi8_epi16(_mm256_loadu_si256(p)),
            low = _mm512_castsi128_si512(_mm_load_si128((const void *)ds_e4m3_small_words[scale]));
    __m512i w = _mm512_add_epi16(_mm512_and_si512(_mm512_slli_epi16(v, 4), _mm512_set1_epi16(0x07f0)),
                                 _mm512_set1_epi32((int)ds_e8m0_words[(uint8_t)(scale - 7)]));
    w = _mm512_mask_permutexvar_epi16(w, _mm512_testn_epi16_mask(v, _mm512_set1_epi16(0x78)), v, low);
    return _mm512_ternarylogic_epi32(_mm512_set1_epi16((short)0x8000), v, w, 0xca); /* the sign of v */
}

/* E4M3 scales of groups of 16 along a row, for one such pair of vectors. */
static inline vf vf_group_scales(const uint8_t *codes)
{
    return _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(ds_e4m3_to_f32(codes[0])), _mm512_set1_ps(ds_e4m3_to_f32(codes[1])));
}

/* 2*VW floats in memory order to even and odd elements. */
static inline void vf_deinterleave(vf *even, vf *odd, vf a, vf b)
{
    const __m512i e = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *even = _mm512_permutex2var_ps(a, e, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(e, _mm512_set1_epi32(1)), b);
}
static inline void vf_interleave(vf *a, vf *b, vf even, vf odd)
{
    const __m512i l = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *a = _mm512_permutex2var_ps(even, l, odd);
    *b = _mm512_permutex2var_ps(even, _mm512_add_epi32(l, _mm512_set1_epi32(8)), odd);
}
/* (x0, x1, x2, x3, …) to (x1, x0, x3, x2, …); and the even or the odd elements, each twice. */
static inline vf vf_swap_pairs(vf a)
{
    return _mm512_permute_ps(a, 0xb1);
}
static inline vf vf_dup_even(vf a)
{
    return _mm512_moveldup_ps(a);
}
static inline vf vf_dup_odd(vf a)
{
    return _mm512_movehdup_ps(a);
}
/* -a in even lanes */
static inline vf vf_negate_even(vf a)
{
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), _mm512_set1_epi64(0x80000000ll)));
}

/* ---- integers ---- */

/* base + the sum of 32 products in each lane: codes [8][VW] dwords of four unsigned bytes <= 24, b [32] signed bytes
 * within +-12. */
static inline vf vb_dot32(const uint32_t *codes, const int8_t *b, int32_t base)
{
    __m512i sum = _mm512_setzero_si512();
    for (int i = 0; i < 8; i++) {
        int32_t four;
        memcpy(&four, b + 4 * i, 4);
        sum = _mm512_add_epi16(sum, _mm512_maddubs_epi16(_mm512_loadu_si512(codes + i * VW), _mm512_set1_epi32(four)));
    }
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_madd_epi16(sum, _mm512_set1_epi16(1)), _mm512_set1_epi32(base)));
}

static inline size_t vb_count_ge(const int32_t *key, int32_t t)
{
    return (size_t)__builtin_popcount(_mm512_cmpge_epi32_mask(_mm512_loadu_si512(key), _mm512_set1_epi32(t)));
}

#endif
