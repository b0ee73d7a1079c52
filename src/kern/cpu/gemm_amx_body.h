/* Body of the AMX product (bf16 activations), over the tile operations TILE_* that the including file defines: the CPU's own, or a model of them in the tests.
 *
 * Weights are tile A: 16 outputs x 32 columns, a row of the tile being one group of 32 codes, decoded in memory order. Activations are tile B: 16 pairs of columns x 16 rows of the batch, made once for all
 * outputs (prep). Tile C: 16 outputs x 16 rows. So a product is one chain of TDPBF16PS along the columns, for one row or for many; with a single row, tile B is one pair wide, which is the row
 * as it lies in memory.
 * While the tile unit works on a step (16 cycles for each 16 rows), the next one is decoded (about 90 instructions). One row is bound by decoding or by memory, 64 rows by the tile
 * unit. */
#include <immintrin.h>
#include <string.h>

#include "format/numfmt.h"
#include "kern/cpu/bf16_decode.h"
#include "kern/cpu/gemm.h"
#include "kern/cpu/vec_avx512.h"

enum { STEP = 32, GROUP = 16, PASS = 4 * GROUP, TILE_BYTES = 1024 };

typedef struct {
    __m512i a[2][16]; /* tile A of this step and of the next */
    float c[PASS / GROUP][16][16];
} work_area;

/* What LDTILECFG reads. */
typedef struct {
    uint8_t palette, start_row, zero[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

static size_t padded(size_t in)
{
    return (in + STEP - 1) / STEP * STEP;
}

/* Rows that a set has room for: whole groups, or a single row. */
static size_t room(size_t rows)
{
    return rows == 1 ? 1 : (rows + GROUP - 1) / GROUP * GROUP;
}

static size_t set_bytes(size_t rows, uint32_t in)
{
    return room(rows) * padded(in) * 2;
}

/* 32 floats (those of `left` that there are) as 16 pairs of bf16. */
static inline __m512i pairs(const float *x, size_t left)
{
    __m512i lo = _mm512_castps_si512(vf_bf16(vf_load_n(x, left)));
    __m512i hi = _mm512_castps_si512(vf_bf16(left > 16 ? vf_load_n(x + 16, left - 16) : vf_zero()));
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_srli_epi32(lo, 16))),
                              _mm512_cvtepi32_epi16(_mm512_srli_epi32(hi, 16)), 1);
}

static void prep(void *set, const float *x, size_t ldx, const uint32_t *index, size_t rows, size_t begin, size_t end, uint32_t in,
                 ds_mat_type type)
{
    size_t ld = padded(in);
    (void)type;
    if (rows == 1) {
        for (size_t c = 0; begin < end && c < in; c += STEP)
            _mm512_storeu_si512((uint16_t *)set + c, pairs(x + (index ? index[0] : 0) * ldx + c, in - c));
        return;
    }
    for (size_t r = begin; r < end; r += GROUP) {
        uint16_t *d = (uint16_t *)set + r * ld;
        for (size_t c = 0; c < in; c += STEP, d += STEP * GROUP) {
            vf t[16];
            for (size_t i = 0; i < GROUP; i++)
                t[i] = r + i < end ? _mm512_castsi512_ps(pairs(x + (index ? index[r + i] : r + i) * ldx + c, in - c)) : vf_zero();
            vf_transpose(t);
            for (size_t i = 0; i < GROUP; i++)
                vf_store((float *)(void *)d + i * 16, t[i]);
        }
    }
}

static inline __attribute__((always_inline)) void fill_a(__m512i a[16], const code_row *row, size_t c, size_t in, ds_mat_type type)
{
    for (int i = 0; i < 16; i++) {
        if (type != DS_MAT_MXFP4 || c % 128 == 0)
            _mm_prefetch((const char *)row[i].data + (type == DS_MAT_BF16 ? 2 * c : type == DS_MAT_MXFP4 ? c / 2 : c) + 512, _MM_HINT_T0);
        _mm512_store_si512(&a[i], decode_bf16(type, row[i], c, in));
    }
}

/* At most PASS rows, in n_groups groups at b. */
static inline __attribute__((always_inline)) void pass_of(work_area *wa, const uint16_t *b, size_t group_len, size_t b_pitch, int n_groups,
                                                          const code_row *row, size_t in, ds_mat_type type)
{
    size_t at = 0;

    TILE_ZERO(0);
    if (n_groups > 1)
        TILE_ZERO(1);
    if (n_groups > 2)
        TILE_ZERO(2);
    if (n_groups > 3)
        TILE_ZERO(3);
    fill_a(wa->a[0], row, 0, in, type);
    for (size_t c = 0; c < in; c += STEP, at ^= 1) {
        const uint16_t *step = b + c * (b_pitch / 4);
        TILE_LOAD(4, wa->a[at], 64);
        if (c + STEP < in)
            fill_a(wa->a[at ^ 1], row, c + STEP, in, type);
        TILE_LOAD(5, step, b_pitch);
        TILE_DOT(0, 4, 5);
        if (n_groups > 1) {
            TILE_LOAD(6, step + group_len, b_pitch);
            TILE_DOT(1, 4, 6);
        }
        if (n_groups > 2) {
            TILE_LOAD(5, step + 2 * group_len, b_pitch);
            TILE_DOT(2, 4, 5);
        }
        if (n_groups > 3) {
            TILE_LOAD(6, step + 3 * group_len, b_pitch);
            TILE_DOT(3, 4, 6);
        }
    }
    TILE_STORE(0, wa->c[0], b_pitch);
    if (n_groups > 1)
        TILE_STORE(1, wa->c[1], 64);
    if (n_groups > 2)
        TILE_STORE(2, wa->c[2], 64);
    if (n_groups > 3)
        TILE_STORE(3, wa->c[3], 64);
}

static inline __attribute__((always_inline)) void pass_typed(work_area *wa, const uint16_t *b, size_t group_len, size_t b_pitch,
                                                             size_t n_groups, const code_row *row, size_t in, ds_mat_type type)
{
    switch (n_groups) {
    case 1:
        pass_of(wa, b, group_len, b_pitch, 1, row, in, type);
        break;
    case 2:
        pass_of(wa, b, group_len, b_pitch, 2, row, in, type);
        break;
    case 3:
        pass_of(wa, b, group_len, b_pitch, 3, row, in, type);
        break;
    default:
        pass_of(wa, b, group_len, b_pitch, 4, row, in, type);
    }
}

static void pass(work_area *wa, const uint16_t *b, size_t group_len, size_t b_pitch, size_t n_groups, const code_row *row, size_t in,
                 ds_mat_type type)
{
    switch (type) {
    case DS_MAT_BF16:
        pass_typed(wa, b, group_len, b_pitch, n_groups, row, in, DS_MAT_BF16);
        break;
    case DS_MAT_FP8_32X32:
        pass_typed(wa, b, group_len, b_pitch, n_groups, row, in, DS_MAT_FP8_32X32);
        break;
    case DS_MAT_FP8_ROWS:
        pass_typed(wa, b, group_len, b_pitch, n_groups, row, in, DS_MAT_FP8_ROWS);
        break;
    default:
        pass_typed(wa, b, group_len, b_pitch, n_groups, row, in, DS_MAT_MXFP4);
    }
}

static void block(float *out, const void *set, size_t rows, size_t row0, size_t n_rows, const ds_mat *w, uint64_t o0, uint32_t n_outs,
                  void *work)
{
    size_t in = w->in, ld = padded(in), width = rows == 1 ? 1 : GROUP;
    work_area *wa = work;
    code_row row[16];
    tile_config cfg = { .palette = 1 };

    for (uint32_t i = 0; i < 16; i++) /* beyond the last output: that one again */
        row[i] = code_row_of(w, w->type, o0 + (i < n_outs ? i : n_outs - 1));
    for (int t = 0; t < 7; t++) {
        cfg.rows[t] = 16;
        cfg.row_bytes[t] = (uint16_t)(t == 4 ? 64 : 4 * width);
    }
    TILE_CONFIG(&cfg);
    for (size_t r = 0; r < n_rows; r += PASS) {
        size_t nr = n_rows - r < PASS ? n_rows - r : PASS;
        pass(wa, (const uint16_t *)set + (row0 + r) * ld, GROUP * ld, 4 * width, (nr + GROUP - 1) / GROUP, row, in, w->type);
        if (width == 1) {
            memcpy(out, wa->c[0], 16 * sizeof *out);
            continue;
        }
        for (size_t g = 0; g * GROUP < nr; g++) {
            vf t[16];
            for (int i = 0; i < 16; i++)
                t[i] = vf_load(wa->c[g][i]);
            vf_transpose(t);
            for (size_t i = 0; i < GROUP && g * GROUP + i < nr; i++)
                vf_store(out + (r + g * GROUP + i) * DS_GEMM_OUTS, t[i]);
        }
    }
    TILE_RELEASE();
}
