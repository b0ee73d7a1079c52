/* Number formats, bit for bit (model spec, section 4): bf16, E4M3FN, E2M1, E8M0, the groups that share a scale, and
 * cache records.
 *
 * Rounding is to nearest, ties to the even code; E4M3 and E2M1 saturate (infinity too); a negative value that rounds
 * to zero keeps its sign. NaN: bf16 keeps sign and upper payload and becomes quiet; E4M3 gives 0x7F with the sign;
 * E2M1 has no NaN and gives +-6; E8M0 gives 255. A group that holds a NaN or an infinity becomes NaN as a whole: its
 * scale is NaN (E8M0 255, E4M3 0x7F) and its codes are 0. Everything here is scalar, exact, needs the default
 * rounding mode, and is the oracle for faster bodies. Threads: any; nothing has state.   Memory: none is allocated. */
#ifndef DS_FORMAT_NUMFMT_H
#define DS_FORMAT_NUMFMT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DS_FP8_GROUP 32    /* activations, window KV, Engram rows; weight blocks are 32 x 32 */
#define DS_MXFP4_GROUP 32  /* expert weights, indexer queries and keys */
#define DS_KV_FP4_GROUP 16 /* main KV entries */

extern const float ds_e4m3_value[256]; /* NaN at 0x7F and 0xFF */
extern const float ds_e2m1_value[16];

static inline uint32_t ds_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float ds_f32_of_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* ---- elements ---- */

static inline float ds_bf16_to_f32(uint16_t h)
{
    return ds_f32_of_bits((uint32_t)h << 16);
}

static inline uint16_t ds_bf16_from_f32(float x)
{
    uint32_t u = ds_f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* x rounded to bfloat16, as f32. */
static inline float ds_bf16_round(float x)
{
    return ds_bf16_to_f32(ds_bf16_from_f32(x));
}

static inline float ds_e4m3_to_f32(uint8_t code)
{
    return ds_e4m3_value[code];
}

static inline uint8_t ds_e4m3_from_f32(float x)
{
    uint32_t u = ds_f32_bits(x), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu, code;
    if (a > 0x7f800000u)
        return (uint8_t)(sign | 0x7fu);
    if (a < 0x3c800000u) /* below 2^-6: multiples of 2^-9, which is the last place of 2^14 + a */
        return (uint8_t)(sign | (ds_f32_bits(ds_f32_of_bits(a) + 16384.0f) - 0x46800000u));
    code = ((a + 0x7ffffu + (a >> 20 & 1u)) >> 20) - (120u << 3);
    return (uint8_t)(sign | (code < 0x7eu ? code : 0x7eu));
}

static inline float ds_e2m1_to_f32(uint8_t code)
{
    return ds_e2m1_value[code & 15u];
}

static inline uint8_t ds_e2m1_from_f32(float x)
{
    uint32_t u = ds_f32_bits(x), sign = u >> 28 & 8u, a = u & 0x7fffffffu, code;
    if (a < 0x3f800000u) /* below 1: multiples of 0.5, which is the last place of 2^22 + a */
        return (uint8_t)(sign | (ds_f32_bits(ds_f32_of_bits(a) + 4194304.0f) - 0x4a800000u));
    code = ((a + 0x1fffffu + (a >> 22 & 1u)) >> 22) - 252u;
    return (uint8_t)(sign | (code < 7u ? code : 7u));
}

static inline float ds_e8m0_to_f32(uint8_t code)
{
    if (code == 255)
        return ds_f32_of_bits(0x7fc00000u);
    return ds_f32_of_bits(code ? (uint32_t)code << 23 : 0x00400000u); /* 2^-127 is subnormal */
}

/* Smallest code whose value is >= x, for x >= 0; at most 254. NaN and infinity give 255. */
static inline uint8_t ds_e8m0_ceil(float x)
{
    uint32_t u = ds_f32_bits(x) & 0x7fffffffu, code;
    if (u >= 0x7f800000u)
        return 255;
    if (u <= 0x00400000u)
        return 0;
    code = (u >> 23) + ((u & 0x7fffffu) != 0);
    return (uint8_t)(code < 254u ? code : 254u);
}

/* 1 / value of the code, exact for 0..254; NaN for 255. */
static inline float ds_e8m0_inverse(uint8_t code)
{
    if (code == 255)
        return ds_f32_of_bits(0x7fc00000u);
    return ds_f32_of_bits(code == 254 ? 0x00400000u : (uint32_t)(254 - code) << 23);
}

static inline uint8_t ds_fp4_get(const uint8_t *codes, size_t i)
{
    return (uint8_t)(codes[i >> 1] >> ((i & 1) * 4) & 15);
}

/* ---- rows ---- */

void ds_bf16_to_f32_row(float *y, const uint16_t *x, size_t n);
void ds_bf16_from_f32_row(uint16_t *y, const float *x, size_t n);
void ds_bf16_round_row(float *y, const float *x, size_t n); /* y may equal x */

/* ---- groups along a row; n is a multiple of the group ----
 * fp8:    codes[n], scales[n/32] E8M0 = 2^ceil(log2(max(amax, 1e-4) / 448))      activations, window KV, Engram rows
 * mxfp4:  codes[n/2], scales[n/32] E8M0 = 2^ceil(log2(max(amax, 6*2^-126) / 6))  indexer queries and keys, expert
 *         weight rows
 * kvfp4:  codes[n/2], scales[n/16] E4M3 = e4m3(max(amax, 6*2^-9) / 6)            main KV
 * The result of *_dequant is the exact product. */
void ds_fp8_quant(uint8_t *codes, uint8_t *scales, const float *x, size_t n);
void ds_fp8_dequant(float *y, const uint8_t *codes, const uint8_t *scales, size_t n);
void ds_mxfp4_quant(uint8_t *codes, uint8_t *scales, const float *x, size_t n);
void ds_mxfp4_dequant(float *y, const uint8_t *codes, const uint8_t *scales, size_t n);
void ds_kvfp4_quant(uint8_t *codes, uint8_t *scales, const float *x, size_t n);
void ds_kvfp4_dequant(float *y, const uint8_t *codes, const uint8_t *scales, size_t n);

/* Quantise and dequantise in one go; y may equal x. */
void ds_fp8_round(float *y, const float *x, size_t n);
void ds_mxfp4_round(float *y, const float *x, size_t n);
void ds_kvfp4_round(float *y, const float *x, size_t n);

/* ---- weights [rows][cols] ---- FP8 blocks: codes [rows][cols], scales [ceil(rows/32)][ceil(cols/32)] E8M0 =
 * 2^ceil(log2(max(amax, 448*2^-126) / 448)): unlike activations, tiny weights keep their digits. `rows` of quant
 * must be whole blocks of the matrix or reach its end. Rows of an MXFP4 weight are ds_mxfp4_* with cols % 32 == 0. */
void ds_fp8_block_quant(uint8_t *codes, uint8_t *scales, const float *w, size_t rows, size_t cols);
/* Rows row0 .. row0 + n - 1 of the matrix that starts at codes and scales. */
void ds_fp8_block_dequant(float *w, const uint8_t *codes, const uint8_t *scales, size_t row0, size_t n, size_t cols);

/* ---- cache records (section 4.4): codes, then scales; dim % 32 == 0 ---- */
static inline size_t ds_kv_main_bytes(size_t head_dim)
{
    return head_dim / 2 + head_dim / DS_KV_FP4_GROUP; /* 288 for 512 */
}

static inline size_t ds_kv_index_bytes(size_t index_head_dim)
{
    return index_head_dim / 2 + index_head_dim / DS_MXFP4_GROUP; /* 68 for 128 */
}

static inline size_t ds_kv_window_bytes(size_t head_dim)
{
    return head_dim + head_dim / DS_FP8_GROUP; /* 528 for 512 */
}

void ds_kv_main_pack(uint8_t *rec, const float *x, size_t head_dim);
void ds_kv_main_unpack(float *y, const uint8_t *rec, size_t head_dim);
void ds_kv_index_pack(uint8_t *rec, const float *x, size_t index_head_dim);
void ds_kv_index_unpack(float *y, const uint8_t *rec, size_t index_head_dim);
void ds_kv_window_pack(uint8_t *rec, const float *x, size_t head_dim);
void ds_kv_window_unpack(float *y, const uint8_t *rec, size_t head_dim);

#endif
