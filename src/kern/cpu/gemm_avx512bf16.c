/* bf16 matrix product, AVX-512 with VDPBF16PS: weights decode exactly to bf16 (values that are subnormal in bf16
 * count as zero, as the instruction has it).
 *
 * Outline as in gemm_body.h, but a chunk is 32 products in one vector of pairs, in the order of bf16_decode.h: chain
 * <- chain + odd*odd + even*even in each of 16 lanes, as the CPU rounds it. One row is bound by the bytes of the
 * weight or by decoding (three to seven instructions for 32 codes), more rows by VDPBF16PS. */
#include <immintrin.h>
#include <string.h>

#include "format/numfmt.h"
#include "kern/cpu/bf16_decode.h"
#include "kern/cpu/gemm.h"
#include "kern/cpu/vec_avx512.h"

enum {
    KC = 2048,
    MR = 4,
    DIRECT = 8 /* rows at most without a panel, if there is FP8 */,
    L2_ROWS_BYTES = 320 << 10,
    QUADS = DS_GEMM_OUTS / 4,
    TILES = DS_GEMM_ROWS / MR
};

typedef struct {
    __m512i panel[DS_GEMM_OUTS][KC / 32];
    vf rest[TILES][QUADS][VW];
} work_area;

static size_t padded(size_t in)
{
    return (in + 31) / 32 * 32;
}

static size_t set_bytes(size_t rows, uint32_t in)
{
    return rows * padded(in) * 2;
}

static void prep(void *set, const float *x, size_t ldx, const uint32_t *index, size_t rows, size_t begin, size_t end, uint32_t in,
                 ds_mat_type type)
{
    (void)rows;
    for (size_t r = begin; r < end; r++) {
        const float *s = x + (index ? index[r] : r) * ldx;
        uint16_t *d = (uint16_t *)set + r * padded(in);
        for (size_t c = 0; c < in; c += 32)
            _mm512_storeu_si512(d + c, bf16_of(s + c, in - c, type));
    }
}

static inline vf dot(vf acc, __m512i a, __m512i b)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
}

static inline __attribute__((always_inline)) void one_row_of(float *out, const uint16_t *x, const ds_mat *w, uint64_t o0, uint32_t n_outs,
                                                             ds_mat_type type)
{
    size_t in = w->in;
    vf acc[DS_GEMM_OUTS];

    for (uint32_t q = 0; q < QUADS; q++) {
        vf c0 = vf_zero(), c1 = vf_zero(), c2 = vf_zero(), c3 = vf_zero();
        if (4 * q < n_outs) {
            uint64_t last = o0 + n_outs - 1, o = o0 + 4 * q; /* beyond the last output: that one again */
            code_row r0 = code_row_of(w, type, o), r1 = code_row_of(w, type, o + 1 < last ? o + 1 : last);
            code_row r2 = code_row_of(w, type, o + 2 < last ? o + 2 : last), r3 = code_row_of(w, type, o + 3 < last ? o + 3 : last);
            ds_gemm_ahead ahead = ds_gemm_ahead_of(r0.data, r0.scale, in, type);
            for (size_t c = 0; c < in; c += 32) {
                __m512i v = _mm512_loadu_si512(x + c);
                ds_gemm_fetch(ahead, c, type);
                c0 = dot(c0, decode_bf16(type, r0, c, in), v);
                c1 = dot(c1, decode_bf16(type, r1, c, in), v);
                c2 = dot(c2, decode_bf16(type, r2, c, in), v);
                c3 = dot(c3, decode_bf16(type, r3, c, in), v);
            }
        }
        acc[4 * q] = c0;
        acc[4 * q + 1] = c1;
        acc[4 * q + 2] = c2;
        acc[4 * q + 3] = c3;
    }
    vf_store(out, vf_sums(acc));
}

static void one_row(float *out, const uint16_t *x, const ds_mat *w, uint64_t o0, uint32_t n_outs)
{
    switch (w->type) {
    case DS_MAT_BF16:
        one_row_of(out, x, w, o0, n_outs, DS_MAT_BF16);
        break;
    case DS_MAT_FP8_32X32:
        one_row_of(out, x, w, o0, n_outs, DS_MAT_FP8_32X32);
        break;
    case DS_MAT_FP8_ROWS:
        one_row_of(out, x, w, o0, n_outs, DS_MAT_FP8_ROWS);
        break;
    default:
        one_row_of(out, x, w, o0, n_outs, DS_MAT_MXFP4);
        break;
    }
}

/* 4 outputs times n_rows <= MR rows: each code is decoded once, into registers, for all of them. */
static inline __attribute__((always_inline)) void quad_of(float *out, const uint16_t *x, size_t ldx, const code_row w[4], size_t in,
                                                          bool fetch, ds_mat_type type, int n_rows)
{
    ds_gemm_ahead ahead = ds_gemm_ahead_of(w[0].data, w[0].scale, in, type);
    float sums[VW];
    vf acc[VW];
    __m512i v[MR];

    for (int i = 0; i < VW; i++)
        acc[i] = vf_zero();
    for (size_t c = 0; c < in; c += 32) {
        if (fetch)
            ds_gemm_fetch(ahead, c, type);
        for (int r = 0; r < n_rows; r++)
            v[r] = _mm512_loadu_si512(x + (size_t)r * ldx + c);
        for (int i = 0; i < 4; i++) {
            __m512i d = decode_bf16(type, w[i], c, in);
            for (int r = 0; r < n_rows; r++)
                acc[4 * r + i] = dot(acc[4 * r + i], d, v[r]);
        }
    }
    vf_store(sums, vf_sums(acc));
    for (int r = 0; r < n_rows; r++)
        memcpy(out + r * DS_GEMM_OUTS, sums + 4 * r, 4 * sizeof *sums);
}

/* Two rows or more. As many of them as L2 has room for take all outputs, in groups of at most MR; the codes of 4
 * outputs stay in L1 for all groups. */
static inline __attribute__((always_inline)) void direct_of(float *out, const uint16_t *x, size_t ldx, const ds_mat *w, uint64_t o0,
                                                            uint32_t n_outs, size_t n_rows, ds_mat_type type)
{
    size_t room = L2_ROWS_BYTES / (ldx * sizeof *x), sets;
    uint64_t last = o0 + n_outs - 1;

    room = room < MR ? MR : room;
    sets = (n_rows + room - 1) / room;
    for (size_t k = 0; k < sets; k++) {
        size_t r0 = ds_gemm_part(n_rows, sets, k), nr = ds_gemm_part(n_rows, sets, k + 1) - r0, groups = (nr + MR - 1) / MR;
        for (uint32_t q = 0; 4 * q < n_outs; q++) {
            code_row row[4];
            for (uint64_t i = 0, o = o0 + 4 * q; i < 4; i++) /* beyond the last output: that one again */
                row[i] = code_row_of(w, type, o + i < last ? o + i : last);
            for (size_t g = 0; g < groups; g++) {
                size_t r = r0 + ds_gemm_part(nr, groups, g), n = r0 + ds_gemm_part(nr, groups, g + 1) - r;
                float *d = out + r * DS_GEMM_OUTS + 4 * q;
                const uint16_t *s = x + r * ldx;
                bool fetch = k + g == 0;
                if (n == 4)
                    quad_of(d, s, ldx, row, w->in, fetch, type, 4);
                else if (n == 3)
                    quad_of(d, s, ldx, row, w->in, fetch, type, 3);
                else
                    quad_of(d, s, ldx, row, w->in, fetch, type, 2);
            }
        }
    }
}

static void direct(float *out, const uint16_t *x, size_t ldx, const ds_mat *w, uint64_t o0, uint32_t n_outs, size_t n_rows)
{
    switch (w->type) {
    case DS_MAT_BF16:
        direct_of(out, x, ldx, w, o0, n_outs, n_rows, DS_MAT_BF16);
        break;
    case DS_MAT_FP8_32X32:
        direct_of(out, x, ldx, w, o0, n_outs, n_rows, DS_MAT_FP8_32X32);
        break;
    case DS_MAT_FP8_ROWS:
        direct_of(out, x, ldx, w, o0, n_outs, n_rows, DS_MAT_FP8_ROWS);
        break;
    default:
        direct_of(out, x, ldx, w, o0, n_outs, n_rows, DS_MAT_MXFP4);
        break;
    }
}

static inline __attribute__((always_inline)) void fill_row(__m512i *d, code_row r, size_t c0, size_t c1, size_t in, ds_mat_type type)
{
    for (size_t c = c0; c < c1; c += 32)
        *d++ = decode_bf16(type, r, c, in);
}

/* chains[r*4 + o] go on over n chunks, for n_rows <= MR rows at x, 4 outputs at p; from zero if first, to sums[r*4 +
 * o] if last. */
static inline __attribute__((always_inline)) void tile_of(vf *chains, float *sums, const uint16_t *x, size_t ldx, const __m512i *p,
                                                          size_t n, int n_rows, bool first, bool last)
{
    vf c[VW];

    for (int i = 0; i < VW; i++)
        c[i] = first || i >= 4 * n_rows ? vf_zero() : chains[i];
    for (size_t k = 0; k < n; k++) {
        __m512i w0 = p[k], w1 = p[KC / 32 + k], w2 = p[2 * (KC / 32) + k], w3 = p[3 * (KC / 32) + k];
        for (int r = 0; r < n_rows; r++) {
            __m512i v = _mm512_loadu_si512(x + (size_t)r * ldx + 32 * k);
            c[4 * r] = dot(c[4 * r], w0, v);
            c[4 * r + 1] = dot(c[4 * r + 1], w1, v);
            c[4 * r + 2] = dot(c[4 * r + 2], w2, v);
            c[4 * r + 3] = dot(c[4 * r + 3], w3, v);
        }
    }
    if (last)
        vf_store(sums, vf_sums(c));
    else
        for (int i = 0; i < 4 * n_rows; i++)
            chains[i] = c[i];
}

static void tile(vf *chains, float *sums, const uint16_t *x, size_t ldx, const __m512i *p, size_t n, size_t n_rows, bool first, bool last)
{
    switch (n_rows) {
    case 1:
        tile_of(chains, sums, x, ldx, p, n, 1, first, last);
        break;
    case 2:
        tile_of(chains, sums, x, ldx, p, n, 2, first, last);
        break;
    case 3:
        tile_of(chains, sums, x, ldx, p, n, 3, first, last);
        break;
    default:
        tile_of(chains, sums, x, ldx, p, n, MR, first, last);
    }
}

static void block(float *out, const void *set, size_t rows, size_t row0, size_t n_rows, const ds_mat *w, uint64_t o0, uint32_t n_outs,
                  void *work)
{
    size_t in = w->in, ld = padded(in);
    const uint16_t *x = (const uint16_t *)set + row0 * ld;
    work_area *wa = work;
    (void)rows;

    if (n_rows == 1) {
        one_row(out, x, w, o0, n_outs);
        return;
    }
    if (n_rows <= DIRECT || w->type == DS_MAT_MXFP4 || w->type == DS_MAT_BF16) {
        direct(out, x, ld, w, o0, n_outs, n_rows);
        return;
    }
    for (size_t c0 = 0; c0 < ld; c0 += KC) {
        size_t c1 = c0 + KC < ld ? c0 + KC : ld;
        for (uint32_t i = 0; i < n_outs; i++)
            if (w->type == DS_MAT_FP8_ROWS)
                fill_row(wa->panel[i], code_row_of(w, DS_MAT_FP8_ROWS, o0 + i), c0, c1, in, DS_MAT_FP8_ROWS);
            else
                fill_row(wa->panel[i], code_row_of(w, DS_MAT_FP8_32X32, o0 + i), c0, c1, in, DS_MAT_FP8_32X32);
        for (size_t r = 0; r < n_rows; r += MR) {
            size_t nr = n_rows - r < MR ? n_rows - r : MR;
            for (uint32_t q = 0; 4 * q < n_outs; q++) {
                float sums[VW];
                bool last = c1 == ld;
                ds_gemm_fetch_panel(w, o0, c1, KC, r / MR * QUADS + q, (n_rows + MR - 1) / MR * QUADS);
                tile(wa->rest[r / MR][q], sums, x + r * ld + c0, ld, wa->panel[4 * q], (c1 - c0) / 32, nr, c0 == 0, last);
                for (size_t i = 0; last && i < nr; i++)
                    memcpy(out + (r + i) * DS_GEMM_OUTS + 4 * q, sums + 4 * i, 4 * sizeof *sums);
            }
        }
    }
}

const ds_gemm ds_gemm_avx512bf16 = {
    .set_bytes = set_bytes, .prep = prep, .block = block, .work_bytes = sizeof(work_area), .set_rows = 1, .outs = DS_GEMM_OUTS
};
