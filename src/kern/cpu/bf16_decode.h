/* Weight codes to bf16, 32 at a time in memory order, with AVX-512 BW. Exact, but for values below 2^-126, which the products that use this count as zero anyway. */
#ifndef DS_KERN_CPU_BF16_DECODE_H
#define DS_KERN_CPU_BF16_DECODE_H

#include <immintrin.h>
#include <string.h>

#include "format/numfmt.h"
#include "kern/cpu/gemm.h"

/* A row of a weight. */
typedef struct {
    const uint8_t *data, *scale;
} code_row;

static inline code_row code_row_of(const ds_mat *w, ds_mat_type type, uint64_t o)
{
    size_t in = w->in;
    const uint8_t *data = w->data;

    switch (type) {
    case DS_MAT_BF16:
        return (code_row){ data + o * in * 2, NULL };
    case DS_MAT_FP8_32X32:
        return (code_row){ data + o * in, w->scale + o / 32 * (in / 32) };
    case DS_MAT_FP8_ROWS:
        return (code_row){ data + o * in, w->scale + o * (in / 32) };
    default:
        return (code_row){ data + o * (in / 2), w->scale + o * (in / 32) };
    }
}

/* Scales at the ends of the range. */
static __attribute__((noinline)) __m512i decode_bf16_slow(ds_mat_type type, const uint8_t *codes, uint8_t scale)
{
    uint16_t v[32];

    for (size_t i = 0; i < 32; i++)
        v[i] = ds_bf16_from_f32((type == DS_MAT_MXFP4 ? ds_e2m1_to_f32(ds_fp4_get(codes, i)) : ds_e4m3_to_f32(codes[i])) *
                                ds_e8m0_to_f32(scale));
    return _mm512_loadu_si512(v);
}

/* A bf16 value less the bias of a scale's code, so that adding the code in the exponent's place multiplies by the scale. */
#define LESS(v) ((short)((v)-127 * 128))

/* Elements c .. c + 32 of a row, c a multiple of 32; `type` is a constant where this is used. */
static inline __attribute__((always_inline)) __m512i decode_bf16(ds_mat_type type, code_row r, size_t c, size_t in)
{
    if (type == DS_MAT_BF16)
        return in - c >= 32 ? _mm512_loadu_si512(r.data + 2 * c) : _mm512_maskz_loadu_epi16((1u << (in - c)) - 1u, r.data + 2 * c);

    uint8_t scale = r.scale[c / 32];
    if (type == DS_MAT_MXFP4) {
        if (__builtin_expect((uint8_t)(scale - 2) > 250, 0))
            return decode_bf16_slow(type, r.data + c / 2, scale);
        __m512i scaled =
            _mm512_load_si512(ds_e2m1_words[scale]); /* a permutation reads five bits of each index, the fifth is whatever stands there */
        __m512i d = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(r.data + c / 2)));
        return _mm512_permutexvar_epi16(_mm512_or_si512(d, _mm512_slli_epi32(d, 12)), scaled);
    }
    if (__builtin_expect((uint8_t)(scale - 10) > 236, 0))
        return decode_bf16_slow(type, r.data + c, scale);
    __m512i v = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)(r.data + c)));
    __m512i w = _mm512_add_epi16(_mm512_and_si512(_mm512_slli_epi16(v, 4), _mm512_set1_epi16((short)0x87f0)),
                                 _mm512_set1_epi32((int)ds_e8m0_words[scale - 7]));
    __mmask32 tiny = _mm512_testn_epi16_mask(v, _mm512_set1_epi16(0x78));
    if (tiny) { /* zeros and subnormals, by their three bits */
        const __m512i value = _mm512_castsi128_si512(
            _mm_setr_epi16(0, LESS(0x3b00), LESS(0x3b80), LESS(0x3bc0), LESS(0x3c00), LESS(0x3c20), LESS(0x3c40), LESS(0x3c60)));
        __m512i scaled = _mm512_mask_add_epi16(value, 0xfe, value, _mm512_set1_epi32((int)ds_e8m0_words[scale]));
        __m512i small = _mm512_or_si512(_mm512_permutexvar_epi16(v, scaled), _mm512_and_si512(v, _mm512_set1_epi16((short)0x8000)));
        w = _mm512_mask_blend_epi16(tiny, w, small);
    }
    return w;
}

static inline __attribute__((always_inline)) void decode_bf16_range(__m512i *d, code_row r, size_t c0, size_t c1, size_t in,
                                                                    ds_mat_type type)
{
    for (size_t c = c0; c < c1; c += 32)
        _mm512_store_si512(d++, decode_bf16(type, r, c, in));
}

/* Columns c0 .. c1 of output o. */
static inline void decode_bf16_row(__m512i *d, const ds_mat *w, uint64_t o, size_t c0, size_t c1)
{
    code_row r = code_row_of(w, w->type, o);

    switch (w->type) {
    case DS_MAT_BF16:
        decode_bf16_range(d, r, c0, c1, w->in, DS_MAT_BF16);
        break;
    case DS_MAT_FP8_32X32:
        decode_bf16_range(d, r, c0, c1, w->in, DS_MAT_FP8_32X32);
        break;
    case DS_MAT_FP8_ROWS:
        decode_bf16_range(d, r, c0, c1, w->in, DS_MAT_FP8_ROWS);
        break;
    default:
        decode_bf16_range(d, r, c0, c1, w->in, DS_MAT_MXFP4);
        break;
    }
}

/* A row of floats as bf16, with zeros up to a multiple of 32. */
static inline void bf16_row(uint16_t *d, const float *x, size_t n)
{
    for (size_t c = 0; c < n; c += 16) {
        __m512 v = _mm512_maskz_loadu_ps((__mmask16)(n - c >= 16 ? 0xffff : (1u << (n - c)) - 1u), x + c);
        __m512i u = _mm512_castps_si512(v), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
        __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        r = _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
        _mm256_storeu_si256((void *)(d + c), _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
    }
    if ((n + 15) / 16 % 2)
        memset(d + (n + 15) / 16 * 16, 0, 32);
}

#undef LESS

#endif
