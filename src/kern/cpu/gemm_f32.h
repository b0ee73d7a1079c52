/* What gemm_body.h multiplies with f32 weights and rows, over the vectors of vec_*.h: a chunk is two vectors, the even
 * elements before the odd ones, which is how codes are decoded; F32 weights stay as they are. */
#ifndef DS_KERN_CPU_GEMM_F32_H
#define DS_KERN_CPU_GEMM_F32_H

#include <string.h>

#include "format/numfmt.h"
#include "kern/cpu/gemm.h"

enum { UNITS = 2, UNIT = VW, CHUNK = UNITS * UNIT, KC = 1024, F32_WEIGHTS = 1 };

typedef float elem;
typedef vf unit;

static inline unit unit_of(const elem *x)
{
    return vf_load(x);
}

static inline vf mul(vf acc, unit w, unit x)
{
    return vf_fma(w, x, acc);
}

static inline void prep_chunk(elem *d, const float *x, size_t left, ds_mat_type type)
{
    vf a = vf_load_n(x, left), b = left > VW ? vf_load_n(x + VW, left - VW) : vf_zero();

    if (type != DS_MAT_F32)
        vf_deinterleave(&a, &b, a, b);
    vf_store(d, a);
    vf_store(d + VW, b);
}

/* A chunk whose scale has no float 256 times as large; codes one by one. */
static __attribute__((noinline)) void decode_huge(float *d, const uint8_t *codes, uint8_t scale)
{
    for (size_t i = 0; i < VW; i++) {
        d[i] = ds_e4m3_to_f32(codes[2 * i]) * ds_e8m0_value[scale];
        d[VW + i] = ds_e4m3_to_f32(codes[2 * i + 1]) * ds_e8m0_value[scale];
    }
}

/* Elements c .. c + CHUNK of a row, c a multiple of CHUNK; `type` is a constant where this is used. */
static inline __attribute__((always_inline)) void decode(unit d[UNITS], ds_mat_type type, ds_gemm_row r, size_t c, size_t in)
{
    size_t left = in - c;

    switch (type) {
    case DS_MAT_F32:
        d[0] = vf_load_n((const float *)(const void *)(r.data + c * 4), left);
        d[1] = left > VW ? vf_load_n((const float *)(const void *)(r.data + c * 4) + VW, left - VW) : vf_zero();
        break;
    case DS_MAT_BF16:
        if (left >= CHUNK) {
            vf_of_bf16(&d[0], &d[1], r.data + c * 2);
        } else {
            uint16_t rest[CHUNK] = { 0 };
            memcpy(rest, r.data + c * 2, left * sizeof *rest);
            vf_of_bf16(&d[0], &d[1], rest);
        }
        break;
    case DS_MAT_FP8_32X32:
    case DS_MAT_FP8_ROWS:
        if (__builtin_expect(r.scale[c / 32] > 246, 0)) {
            float huge[CHUNK];
            decode_huge(huge, r.data + c, r.scale[c / 32]);
            d[0] = vf_load(huge);
            d[1] = vf_load(huge + VW);
        } else {
            vf_of_e4m3(&d[0], &d[1], r.data + c, ds_e8m0_value256[r.scale[c / 32]]);
        }
        break;
    case DS_MAT_MXFP4:
        vf_of_e2m1(&d[0], &d[1], r.data + c / 2, ds_e2m1_scaled[r.scale[c / 32]]);
        break;
    }
}

/* Rows up to which decoding them anew for each MR rows costs less than a panel. */
static inline size_t direct_rows(ds_mat_type type)
{
    bool codes = type != DS_MAT_F32 && type != DS_MAT_BF16;
    return VW == 8 && codes ? 4 : VW == 16 && codes && type != DS_MAT_MXFP4 ? 32 : DS_GEMM_ROWS;
}

#endif
