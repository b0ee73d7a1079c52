#include "format/numfmt.h"

#include <assert.h>
#include <math.h>

/* clang-format off: eight codes a line */
const float ds_e4m3_value[256] = {
    0.0f,       0x1p-9f,    0x1p-8f,    0x1.8p-8f,  0x1p-7f,    0x1.4p-7f,  0x1.8p-7f,  0x1.cp-7f,  0x1p-6f,    0x1.2p-6f,  0x1.4p-6f,
    0x1.6p-6f,  0x1.8p-6f,  0x1.ap-6f,  0x1.cp-6f,  0x1.ep-6f,  0x1p-5f,    0x1.2p-5f,  0x1.4p-5f,  0x1.6p-5f,  0x1.8p-5f,  0x1.ap-5f,
    0x1.cp-5f,  0x1.ep-5f,  0x1p-4f,    0x1.2p-4f,  0x1.4p-4f,  0x1.6p-4f,  0x1.8p-4f,  0x1.ap-4f,  0x1.cp-4f,  0x1.ep-4f,  0x1p-3f,
    0x1.2p-3f,  0x1.4p-3f,  0x1.6p-3f,  0x1.8p-3f,  0x1.ap-3f,  0x1.cp-3f,  0x1.ep-3f,  0x1p-2f,    0x1.2p-2f,  0x1.4p-2f,  0x1.6p-2f,
    0x1.8p-2f,  0x1.ap-2f,  0x1.cp-2f,  0x1.ep-2f,  0x1p-1f,    0x1.2p-1f,  0x1.4p-1f,  0x1.6p-1f,  0x1.8p-1f,  0x1.ap-1f,  0x1.cp-1f,
    0x1.ep-1f,  0x1p+0f,    0x1.2p+0f,  0x1.4p+0f,  0x1.6p+0f,  0x1.8p+0f,  0x1.ap+0f,  0x1.cp+0f,  0x1.ep+0f,  0x1p+1f,    0x1.2p+1f,
    0x1.4p+1f,  0x1.6p+1f,  0x1.8p+1f,  0x1.ap+1f,  0x1.cp+1f,  0x1.ep+1f,  0x1p+2f,    0x1.2p+2f,  0x1.4p+2f,  0x1.6p+2f,  0x1.8p+2f,
    0x1.ap+2f,  0x1.cp+2f,  0x1.ep+2f,  0x1p+3f,    0x1.2p+3f,  0x1.4p+3f,  0x1.6p+3f,  0x1.8p+3f,  0x1.ap+3f,  0x1.cp+3f,  0x1.ep+3f,
    0x1p+4f,    0x1.2p+4f,  0x1.4p+4f,  0x1.6p+4f,  0x1.8p+4f,  0x1.ap+4f,  0x1.cp+4f,  0x1.ep+4f,  0x1p+5f,    0x1.2p+5f,  0x1.4p+5f,
    0x1.6p+5f,  0x1.8p+5f,  0x1.ap+5f,  0x1.cp+5f,  0x1.ep+5f,  0x1p+6f,    0x1.2p+6f,  0x1.4p+6f,  0x1.6p+6f,  0x1.8p+6f,  0x1.ap+6f,
    0x1.cp+6f,  0x1.ep+6f,  0x1p+7f,    0x1.2p+7f,  0x1.4p+7f,  0x1.6p+7f,  0x1.8p+7f,  0x1.ap+7f,  0x1.cp+7f,  0x1.ep+7f,  0x1p+8f,
    0x1.2p+8f,  0x1.4p+8f,  0x1.6p+8f,  0x1.8p+8f,  0x1.ap+8f,  0x1.cp+8f,  NAN,        -0.0f,      -0x1p-9f,   -0x1p-8f,   -0x1.8p-8f,
    -0x1p-7f,   -0x1.4p-7f, -0x1.8p-7f, -0x1.cp-7f, -0x1p-6f,   -0x1.2p-6f, -0x1.4p-6f, -0x1.6p-6f, -0x1.8p-6f, -0x1.ap-6f, -0x1.cp-6f,
    -0x1.ep-6f, -0x1p-5f,   -0x1.2p-5f, -0x1.4p-5f, -0x1.6p-5f, -0x1.8p-5f, -0x1.ap-5f, -0x1.cp-5f, -0x1.ep-5f, -0x1p-4f,   -0x1.2p-4f,
    -0x1.4p-4f, -0x1.6p-4f, -0x1.8p-4f, -0x1.ap-4f, -0x1.cp-4f, -0x1.ep-4f, -0x1p-3f,   -0x1.2p-3f, -0x1.4p-3f, -0x1.6p-3f, -0x1.8p-3f,
    -0x1.ap-3f, -0x1.cp-3f, -0x1.ep-3f, -0x1p-2f,   -0x1.2p-2f, -0x1.4p-2f, -0x1.6p-2f, -0x1.8p-2f, -0x1.ap-2f, -0x1.cp-2f, -0x1.ep-2f,
    -0x1p-1f,   -0x1.2p-1f, -0x1.4p-1f, -0x1.6p-1f, -0x1.8p-1f, -0x1.ap-1f, -0x1.cp-1f, -0x1.ep-1f, -0x1p+0f,   -0x1.2p+0f, -0x1.4p+0f,
    -0x1.6p+0f, -0x1.8p+0f, -0x1.ap+0f, -0x1.cp+0f, -0x1.ep+0f, -0x1p+1f,   -0x1.2p+1f, -0x1.4p+1f, -0x1.6p+1f, -0x1.8p+1f, -0x1.ap+1f,
    -0x1.cp+1f, -0x1.ep+1f, -0x1p+2f,   -0x1.2p+2f, -0x1.4p+2f, -0x1.6p+2f, -0x1.8p+2f, -0x1.ap+2f, -0x1.cp+2f, -0x1.ep+2f, -0x1p+3f,
    -0x1.2p+3f, -0x1.4p+3f, -0x1.6p+3f, -0x1.8p+3f, -0x1.ap+3f, -0x1.cp+3f, -0x1.ep+3f, -0x1p+4f,   -0x1.2p+4f, -0x1.4p+4f, -0x1.6p+4f,
    -0x1.8p+4f, -0x1.ap+4f, -0x1.cp+4f, -0x1.ep+4f, -0x1p+5f,   -0x1.2p+5f, -0x1.4p+5f, -0x1.6p+5f, -0x1.8p+5f, -0x1.ap+5f, -0x1.cp+5f,
    -0x1.ep+5f, -0x1p+6f,   -0x1.2p+6f, -0x1.4p+6f, -0x1.6p+6f, -0x1.8p+6f, -0x1.ap+6f, -0x1.cp+6f, -0x1.ep+6f, -0x1p+7f,   -0x1.2p+7f,
    -0x1.4p+7f, -0x1.6p+7f, -0x1.8p+7f, -0x1.ap+7f, -0x1.cp+7f, -0x1.ep+7f, -0x1p+8f,   -0x1.2p+8f, -0x1.4p+8f, -0x1.6p+8f, -0x1.8p+8f,
    -0x1.ap+8f, -0x1.cp+8f, NAN,
};
/* clang-format on */

const float ds_e2m1_value[16] = {
    0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f,
};

static const float FP8_MAX = 448.0f, FP4_MAX = 6.0f;
static const float FP8_AMAX_MIN = 1e-4f;              /* activations and window KV */
static const float FP8_WEIGHT_AMAX_MIN = 0x1.cp-118f; /* 448 * 2^-126 */
static const float MXFP4_AMAX_MIN = 0x1.8p-124f;      /* 6 * 2^-126 */
static const float KVFP4_AMAX_MIN = 0x1.8p-7f;        /* 6 * 2^-9: keeps the scale above zero */

/* Largest |x| of n values, at least `least`. NaN counts as larger than infinity, so a poisoned group shows in the
 * result. */
static float amax_of(const float *x, size_t n, float least)
{
    uint32_t m = ds_f32_bits(least);
    for (size_t i = 0; i < n; i++) {
        uint32_t a = ds_f32_bits(x[i]) & 0x7fffffffu;
        m = a > m ? a : m;
    }
    return ds_f32_of_bits(m);
}

static uint8_t fp8_scale(float amax)
{
    return ds_e8m0_ceil(amax * (1.0f / FP8_MAX));
}

void ds_bf16_to_f32_row(float *y, const uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = ds_bf16_to_f32(x[i]);
}

void ds_bf16_from_f32_row(uint16_t *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = ds_bf16_from_f32(x[i]);
}

void ds_bf16_round_row(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = ds_bf16_round(x[i]);
}

void ds_fp8_quant(uint8_t *codes, uint8_t *scales, const float *x, size_t n)
{
    assert(n % DS_FP8_GROUP == 0);
    for (size_t g = 0; g < n / DS_FP8_GROUP; g++, x += DS_FP8_GROUP, codes += DS_FP8_GROUP) {
        scales[g] = fp8_scale(amax_of(x, DS_FP8_GROUP, FP8_AMAX_MIN));
        if (scales[g] == 255) {
            memset(codes, 0, DS_FP8_GROUP);
            continue;
        }
        float inv = ds_e8m0_inverse(scales[g]);
        for (size_t i = 0; i < DS_FP8_GROUP; i++)
            codes[i] = ds_e4m3_from_f32(x[i] * inv);
    }
}

void ds_fp8_dequant(float *y, const uint8_t *codes, const uint8_t *scales, size_t n)
{
    assert(n % DS_FP8_GROUP == 0);
    for (size_t i = 0; i < n; i++)
        y[i] = ds_e4m3_value[codes[i]] * ds_e8m0_to_f32(scales[i / DS_FP8_GROUP]);
}

/* `scale_inverse` != 0: multiply (exact, the scale is a power of two); else divide by `scale`. */
static void fp4_codes(uint8_t *codes, const float *x, size_t n, float scale, float scale_inverse)
{
    for (size_t i = 0; i < n; i += 2) {
        float a = scale_inverse != 0.0f ? x[i] * scale_inverse : x[i] / scale;
        float b = scale_inverse != 0.0f ? x[i + 1] * scale_inverse : x[i + 1] / scale;
        codes[i / 2] = (uint8_t)(ds_e2m1_from_f32(a) | ds_e2m1_from_f32(b) << 4);
    }
}

void ds_mxfp4_quant(uint8_t *codes, uint8_t *scales, const float *x, size_t n)
{
    assert(n % DS_MXFP4_GROUP == 0);
    for (size_t g = 0; g < n / DS_MXFP4_GROUP; g++, x += DS_MXFP4_GROUP, codes += DS_MXFP4_GROUP / 2) {
        scales[g] = ds_e8m0_ceil(amax_of(x, DS_MXFP4_GROUP, MXFP4_AMAX_MIN) / FP4_MAX);
        if (scales[g] == 255)
            memset(codes, 0, DS_MXFP4_GROUP / 2);
        else
            fp4_codes(codes, x, DS_MXFP4_GROUP, 0.0f, ds_e8m0_inverse(scales[g]));
    }
}

void ds_mxfp4_dequant(float *y, const uint8_t *codes, const uint8_t *scales, size_t n)
{
    assert(n % DS_MXFP4_GROUP == 0);
    for (size_t i = 0; i < n; i++)
        y[i] = ds_e2m1_value[ds_fp4_get(codes, i)] * ds_e8m0_to_f32(scales[i / DS_MXFP4_GROUP]);
}

void ds_kvfp4_quant(uint8_t *codes, uint8_t *scales, const float *x, size_t n)
{
    assert(n % DS_KV_FP4_GROUP == 0);
    for (size_t g = 0; g < n / DS_KV_FP4_GROUP; g++, x += DS_KV_FP4_GROUP, codes += DS_KV_FP4_GROUP / 2) {
        float amax = amax_of(x, DS_KV_FP4_GROUP, KVFP4_AMAX_MIN);
        if (!isfinite(amax)) {
            scales[g] = 0x7f;
            memset(codes, 0, DS_KV_FP4_GROUP / 2);
            continue;
        }
        scales[g] = ds_e4m3_from_f32(amax / FP4_MAX);
        fp4_codes(codes, x, DS_KV_FP4_GROUP, ds_e4m3_value[scales[g]], 0.0f);
    }
}

void ds_kvfp4_dequant(float *y, const uint8_t *codes, const uint8_t *scales, size_t n)
{
    assert(n % DS_KV_FP4_GROUP == 0);
    for (size_t i = 0; i < n; i++)
        y[i] = ds_e2m1_value[ds_fp4_get(codes, i)] * ds_e4m3_value[scales[i / DS_KV_FP4_GROUP]];
}

void ds_fp8_round(float *y, const float *x, size_t n)
{
    uint8_t codes[DS_FP8_GROUP], scale;
    for (size_t i = 0; i < n; i += DS_FP8_GROUP) {
        ds_fp8_quant(codes, &scale, x + i, DS_FP8_GROUP);
        ds_fp8_dequant(y + i, codes, &scale, DS_FP8_GROUP);
    }
}

void ds_mxfp4_round(float *y, const float *x, size_t n)
{
    uint8_t codes[DS_MXFP4_GROUP / 2], scale;
    for (size_t i = 0; i < n; i += DS_MXFP4_GROUP) {
        ds_mxfp4_quant(codes, &scale, x + i, DS_MXFP4_GROUP);
        ds_mxfp4_dequant(y + i, codes, &scale, DS_MXFP4_GROUP);
    }
}

void ds_kvfp4_round(float *y, const float *x, size_t n)
{
    uint8_t codes[DS_KV_FP4_GROUP / 2], scale;
    for (size_t i = 0; i < n; i += DS_KV_FP4_GROUP) {
        ds_kvfp4_quant(codes, &scale, x + i, DS_KV_FP4_GROUP);
        ds_kvfp4_dequant(y + i, codes, &scale, DS_KV_FP4_GROUP);
    }
}

void ds_fp8_block_quant(uint8_t *codes, uint8_t *scales, const float *w, size_t rows, size_t cols)
{
    size_t block_cols = (cols + 31) / 32;
    for (size_t r0 = 0; r0 < rows; r0 += 32) {
        size_t r1 = r0 + 32 < rows ? r0 + 32 : rows;
        for (size_t b = 0; b < block_cols; b++) {
            size_t c0 = b * 32, nc = c0 + 32 < cols ? 32 : cols - c0;
            float amax = FP8_WEIGHT_AMAX_MIN;
            for (size_t r = r0; r < r1; r++)
                amax = amax_of(w + r * cols + c0, nc, amax);
            uint8_t scale = fp8_scale(amax);
            float inv = ds_e8m0_inverse(scale);
            scales[r0 / 32 * block_cols + b] = scale;
            for (size_t r = r0; r < r1; r++)
                for (size_t c = c0; c < c0 + nc; c++)
                    codes[r * cols + c] = scale == 255 ? 0 : ds_e4m3_from_f32(w[r * cols + c] * inv);
        }
    }
}

void ds_fp8_block_dequant(float *w, const uint8_t *codes, const uint8_t *scales, size_t row0, size_t n, size_t cols)
{
    size_t block_cols = (cols + 31) / 32;
    for (size_t r = row0; r < row0 + n; r++)
        for (size_t c = 0; c < cols; c++)
            *w++ = ds_e4m3_value[codes[r * cols + c]] * ds_e8m0_to_f32(scales[r / 32 * block_cols + c / 32]);
}

void ds_kv_main_pack(uint8_t *rec, const float *x, size_t head_dim)
{
    ds_kvfp4_quant(rec, rec + head_dim / 2, x, head_dim);
}

void ds_kv_main_unpack(float *y, const uint8_t *rec, size_t head_dim)
{
    ds_kvfp4_dequant(y, rec, rec + head_dim / 2, head_dim);
}

void ds_kv_index_pack(uint8_t *rec, const float *x, size_t index_head_dim)
{
    ds_mxfp4_quant(rec, rec + index_head_dim / 2, x, index_head_dim);
}

void ds_kv_index_unpack(float *y, const uint8_t *rec, size_t index_head_dim)
{
    ds_mxfp4_dequant(y, rec, rec + index_head_dim / 2, index_head_dim);
}

void ds_kv_window_pack(uint8_t *rec, const float *x, size_t head_dim)
{
    ds_fp8_quant(rec, rec + head_dim, x, head_dim);
}

void ds_kv_window_unpack(float *y, const uint8_t *rec, size_t head_dim)
{
    ds_fp8_dequant(y, rec, rec + head_dim, head_dim);
}
