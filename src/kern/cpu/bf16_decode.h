/* Weight codes to bf16, 32 at a time, with AVX-512 BW. Exact, but for values below 2^-126, which the products that
 * use this count as zero anyway.
 *
 * The order is that of memory, but for MXFP4 columns 0, 4, 8 .. 28 come first, then 1, 5 .. 29, and so on, as they
 * are decoded with least work; rows of activations are put into the same order. */
#ifndef DS_KERN_CPU_BF16_DECODE_H
#define DS_KERN_CPU_BF16_DECODE_H

#include <immintrin.h>
#include <string.h>

#include "format/numfmt.h"
#include "kern/cpu/gemm.h"
#include "kern/cpu/vec_avx512.h"

/* FP8 with a scale at the ends of the range. */
static __attribute__((noinline)) __m512i decode_bf16_far(const uint8_t *codes, uint8_t scale)
{
    uint16_t v[32];

    for (size_t i = 0; i < 32; i++)
        v[i] = ds_bf16_from_f32(ds_e4m3_to_f32(codes[i]) * ds_e8m0_to_f32(scale));
    return _mm512_loadu_si512(v);
}

/* Elements c .. c + 32 of a row, c a multiple of 32, in the order of the type; `type` is a constant where this is
 * used. MXFP4: the sixteen bytes of a group stand in each quarter, whose eight words are shifted by 0, 4, 8 and 12
 * bits, which makes all 32 codes indices: a permutation reads five bits of each, and the fifth is whatever stands
 * there, as the table has everything twice. */
static inline __attribute__((always_inline)) __m512i decode_bf16(ds_mat_type type, ds_gemm_row r, size_t c, size_t in)
{
    if (type == DS_MAT_BF16)
        return in - c >= 32 ? _mm512_loadu_si512(r.data + 2 * c) : _mm512_maskz_loadu_epi16((1u << (in - c)) - 1u, r.data + 2 * c);

    uint8_t scale = r.scale[c / 32];
    if (type == DS_MAT_MXFP4) {
        const __m512i by = _mm512_set_epi64(0x000c000c000c000c, 0x000c000c000c000c, 0x0008000800080008, 0x0008000800080008,
                                            0x0004000400040004, 0x0004000400040004, 0, 0);
        __m512i four = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)(r.data + c / 2)));
        return _mm512_permutexvar_epi16(_mm512_srlv_epi16(four, by), _mm512_load_si512(ds_e2m1_words[scale]));
    }
    if (__builtin_expect((uint8_t)(scale - 10) > 236, 0))
        return decode_bf16_far(r.data + c, scale);
    return vw_of_e4m3(r.data + c, scale);
}

/* 32 floats (those of `left` that there are, then zeros) as bf16, in the order in which codes of the type are
 * decoded. */
static inline __m512i bf16_of(const float *x, size_t left, ds_mat_type type)
{
    __m512i lo = _mm512_castps_si512(vf_bf16(vf_load_n(x, left)));
    __m512i hi = _mm512_castps_si512(vf_bf16(left > 16 ? vf_load_n(x + 16, left - 16) : vf_zero()));
    __m512i v = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_srli_epi32(lo, 16))),
                                   _mm512_cvtepi32_epi16(_mm512_srli_epi32(hi, 16)), 1);
    if (type == DS_MAT_MXFP4) {
        const __m512i i = _mm512_set_epi16(31, 27, 23, 19, 15, 11, 7, 3, 30, 26, 22, 18, 14, 10, 6, 2, 29, 25, 21, 17, 13, 9, 5, 1, 28, 24,
                                           20, 16, 12, 8, 4, 0);
        v = _mm512_permutexvar_epi16(i, v);
    }
    return v;
}

#endif
