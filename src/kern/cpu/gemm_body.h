/* Body of a ds_gemm with f32 weights and rows, over the vectors of vec_*.h.
 *
 * Rows are prepared once: padded with zeros to whole chunks of 2*VW, and, but for F32 weights, with the even
 * elements of a chunk before the odd ones, which is how codes are decoded. Tiles of 4 outputs x MR rows decode
 * weights into registers and use them at once: with one row bound by the bytes of the weight or by decoding, with
 * more by the FMA units. Where decoding costs more than that (direct_rows), 16 outputs are decoded for KC columns
 * into a panel in cache, and the same tiles run over it. The chain of a (row, output) pair is always the same: for
 * each chunk in order, the even elements, then the odd ones. Between two panels a chain rests in memory, unrounded. */
#include "kern/cpu/gemm.h"

enum { CHUNK = 2 * VW, KC = 1024, MR = VW / 4, L2_ROWS_BYTES = 320 << 10, QUADS = DS_GEMM_OUTS / 4, TILES = DS_GEMM_ROWS / MR };

typedef struct {
    float panel[DS_GEMM_OUTS][KC];
    vf rest[TILES][QUADS][VW]; /* chains between two panels */
} work_area;

static size_t set_bytes(size_t rows, uint32_t in)
{
    return rows * ((in + CHUNK - 1) / CHUNK) * CHUNK * sizeof(float);
}

static void prep(void *set, const float *x, size_t ldx, const uint32_t *index, size_t rows, size_t begin, size_t end, uint32_t in,
                 ds_mat_type type)
{
    size_t padded = ((size_t)in + CHUNK - 1) / CHUNK * CHUNK;
    (void)rows;
    for (size_t r = begin; r < end; r++) {
        const float *s = x + (index ? index[r] : r) * ldx;
        float *d = (float *)set + r * padded;
        for (size_t c = 0; c < in; c += CHUNK) {
            size_t left = in - c;
            vf a = vf_load_n(s + c, left), b = left > VW ? vf_load_n(s + c + VW, left - VW) : vf_zero();
            if (type != DS_MAT_F32)
                vf_deinterleave(&a, &b, a, b);
            vf_store(d + c, a);
            vf_store(d + c + VW, b);
        }
    }
}

/* An output's row of the weight. */
typedef struct {
    const uint8_t *data, *scale;
} out_row;

static inline out_row row_of(const ds_mat *w, ds_mat_type type, uint64_t o)
{
    size_t in = w->in;
    const uint8_t *data = w->data;

    switch (type) {
    case DS_MAT_F32:
        return (out_row){ data + o * in * 4, NULL };
    case DS_MAT_BF16:
        return (out_row){ data + o * in * 2, NULL };
    case DS_MAT_FP8_32X32:
        return (out_row){ data + o * in, w->scale + o / 32 * (in / 32) };
    case DS_MAT_FP8_ROWS:
        return (out_row){ data + o * in, w->scale + o * (in / 32) };
    default:
        return (out_row){ data + o * (in / 2), w->scale + o * (in / 32) };
    }
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
static inline __attribute__((always_inline)) void decode(vf *a, vf *b, ds_mat_type type, out_row r, size_t c, size_t in)
{
    size_t left = in - c;

    switch (type) {
    case DS_MAT_F32:
        *a = vf_load_n((const float *)(const void *)(r.data + c * 4), left);
        *b = left > VW ? vf_load_n((const float *)(const void *)(r.data + c * 4) + VW, left - VW) : vf_zero();
        break;
    case DS_MAT_BF16:
        if (left >= CHUNK) {
            vf_of_bf16(a, b, r.data + c * 2);
        } else {
            uint16_t rest[CHUNK] = { 0 };
            memcpy(rest, r.data + c * 2, left * sizeof *rest);
            vf_of_bf16(a, b, rest);
        }
        break;
    case DS_MAT_FP8_32X32:
    case DS_MAT_FP8_ROWS:
        if (__builtin_expect(r.scale[c / 32] > 246, 0)) {
            float d[CHUNK];
            decode_huge(d, r.data + c, r.scale[c / 32]);
            *a = vf_load(d);
            *b = vf_load(d + VW);
        } else {
            vf_of_e4m3(a, b, r.data + c, ds_e8m0_value256[r.scale[c / 32]]);
        }
        break;
    case DS_MAT_MXFP4:
        vf_of_e2m1(a, b, r.data + c / 2, ds_e2m1_scaled[r.scale[c / 32]]);
        break;
    }
}

static inline __attribute__((always_inline)) void one_row_of(float *out, const float *x, const ds_mat *w, uint64_t o0, uint32_t n_outs,
                                                             ds_mat_type type)
{
    size_t in = w->in;
    vf acc[DS_GEMM_OUTS];

    for (uint32_t q = 0; q < QUADS; q++) {
        vf c0 = vf_zero(), c1 = vf_zero(), c2 = vf_zero(), c3 = vf_zero(), a, b;
        if (4 * q < n_outs) {
            uint64_t last = o0 + n_outs - 1, o = o0 + 4 * q; /* beyond the last output: that one again */
            out_row r0 = row_of(w, type, o), r1 = row_of(w, type, o + 1 < last ? o + 1 : last);
            out_row r2 = row_of(w, type, o + 2 < last ? o + 2 : last), r3 = row_of(w, type, o + 3 < last ? o + 3 : last);
            ds_gemm_ahead ahead = ds_gemm_ahead_of(r0.data, r0.scale, in, type);
            for (size_t c = 0; c < in; c += CHUNK) {
                vf xa = vf_load(x + c), xb = vf_load(x + c + VW);
                if (c % 32 == 0)
                    ds_gemm_fetch(ahead, c, type);
                decode(&a, &b, type, r0, c, in);
                c0 = vf_fma(b, xb, vf_fma(a, xa, c0));
                decode(&a, &b, type, r1, c, in);
                c1 = vf_fma(b, xb, vf_fma(a, xa, c1));
                decode(&a, &b, type, r2, c, in);
                c2 = vf_fma(b, xb, vf_fma(a, xa, c2));
                decode(&a, &b, type, r3, c, in);
                c3 = vf_fma(b, xb, vf_fma(a, xa, c3));
            }
        }
        acc[4 * q] = c0;
        acc[4 * q + 1] = c1;
        acc[4 * q + 2] = c2;
        acc[4 * q + 3] = c3;
    }
    for (uint32_t i = 0; i < DS_GEMM_OUTS; i += VW)
        vf_store(out + i, vf_sums(acc + i));
}

static void one_row(float *out, const float *x, const ds_mat *w, uint64_t o0, uint32_t n_outs)
{
    switch (w->type) {
    case DS_MAT_F32:
        one_row_of(out, x, w, o0, n_outs, DS_MAT_F32);
        break;
    case DS_MAT_BF16:
        one_row_of(out, x, w, o0, n_outs, DS_MAT_BF16);
        break;
    case DS_MAT_FP8_32X32:
        one_row_of(out, x, w, o0, n_outs, DS_MAT_FP8_32X32);
        break;
    case DS_MAT_FP8_ROWS:
        one_row_of(out, x, w, o0, n_outs, DS_MAT_FP8_ROWS);
        break;
    case DS_MAT_MXFP4:
        one_row_of(out, x, w, o0, n_outs, DS_MAT_MXFP4);
        break;
    }
}

/* 4 outputs times n_rows <= MR rows: each code is decoded once, into registers, for all of them. */
static inline __attribute__((always_inline)) void quad_of(float *out, const float *x, size_t ldx, const out_row w[4], size_t in, bool fetch,
                                                          ds_mat_type type, int n_rows)
{
    ds_gemm_ahead ahead = ds_gemm_ahead_of(w[0].data, w[0].scale, in, type);
    vf acc[VW], xa[MR], xb[MR], a, b;
    float sums[VW];

    for (int i = 0; i < VW; i++)
        acc[i] = vf_zero();
    for (size_t c = 0; c < in; c += CHUNK) {
        if (fetch && c % 32 == 0)
            ds_gemm_fetch(ahead, c, type);
        for (int r = 0; r < n_rows; r++) {
            xa[r] = vf_load(x + (size_t)r * ldx + c);
            xb[r] = vf_load(x + (size_t)r * ldx + c + VW);
        }
        for (int i = 0; i < 4; i++) {
            decode(&a, &b, type, w[i], c, in);
            for (int r = 0; r < n_rows; r++)
                acc[4 * r + i] = vf_fma(b, xb[r], vf_fma(a, xa[r], acc[4 * r + i]));
        }
    }
    vf_store(sums, vf_sums(acc));
    for (int r = 0; r < n_rows; r++)
        memcpy(out + r * DS_GEMM_OUTS, sums + 4 * r, 4 * sizeof *sums);
}

/* Two rows or more. As many of them as L2 has room for take all outputs, in groups of at most MR; the codes of 4
 * outputs stay in L1 for all groups. */
static inline __attribute__((always_inline)) void direct_of(float *out, const float *x, size_t ldx, const ds_mat *w, uint64_t o0,
                                                            uint32_t n_outs, size_t n_rows, ds_mat_type type)
{
    size_t room = L2_ROWS_BYTES / (ldx * sizeof *x), sets;
    uint64_t last = o0 + n_outs - 1;

    room = room < MR ? MR : room;
    sets = (n_rows + room - 1) / room;
    for (size_t k = 0; k < sets; k++) {
        size_t r0 = ds_gemm_part(n_rows, sets, k), nr = ds_gemm_part(n_rows, sets, k + 1) - r0, groups = (nr + MR - 1) / MR;
        for (uint32_t q = 0; 4 * q < n_outs; q++) {
            out_row row[4];
            for (uint64_t i = 0, o = o0 + 4 * q; i < 4; i++) /* beyond the last output: that one again */
                row[i] = row_of(w, type, o + i < last ? o + i : last);
            for (size_t g = 0; g < groups; g++) {
                size_t r = r0 + ds_gemm_part(nr, groups, g), n = r0 + ds_gemm_part(nr, groups, g + 1) - r;
                float *d = out + r * DS_GEMM_OUTS + 4 * q;
                const float *s = x + r * ldx;
                bool fetch = k + g == 0;
#if DS_KERN_CPU_TILE_ROWS == 4
                if (n == 4)
                    quad_of(d, s, ldx, row, w->in, fetch, type, 4);
                else if (n == 3)
                    quad_of(d, s, ldx, row, w->in, fetch, type, 3);
                else
                    quad_of(d, s, ldx, row, w->in, fetch, type, 2);
#else
                if (n == 2)
                    quad_of(d, s, ldx, row, w->in, fetch, type, 2);
                else
                    quad_of(d, s, ldx, row, w->in, fetch, type, 1);
#endif
            }
        }
    }
}

static void direct(float *out, const float *x, size_t ldx, const ds_mat *w, uint64_t o0, uint32_t n_outs, size_t n_rows)
{
    switch (w->type) {
    case DS_MAT_F32:
        direct_of(out, x, ldx, w, o0, n_outs, n_rows, DS_MAT_F32);
        break;
    case DS_MAT_BF16:
        direct_of(out, x, ldx, w, o0, n_outs, n_rows, DS_MAT_BF16);
        break;
    case DS_MAT_FP8_32X32:
        direct_of(out, x, ldx, w, o0, n_outs, n_rows, DS_MAT_FP8_32X32);
        break;
    case DS_MAT_FP8_ROWS:
        direct_of(out, x, ldx, w, o0, n_outs, n_rows, DS_MAT_FP8_ROWS);
        break;
    case DS_MAT_MXFP4:
        direct_of(out, x, ldx, w, o0, n_outs, n_rows, DS_MAT_MXFP4);
        break;
    }
}

static inline __attribute__((always_inline)) void fill_row(float *d, out_row r, size_t c0, size_t c1, size_t in, ds_mat_type type)
{
    for (size_t c = c0; c < c1; c += CHUNK, d += CHUNK) {
        vf a, b;
        decode(&a, &b, type, r, c, in);
        vf_store(d, a);
        vf_store(d + VW, b);
    }
}

/* Columns c0 .. c1 of the outputs, which have codes, into the panel. */
static void fill_panel(work_area *wa, const ds_mat *w, uint64_t o0, uint32_t n_outs, size_t c0, size_t c1)
{
    for (uint32_t i = 0; i < n_outs; i++) {
        float *d = wa->panel[i];
        out_row r = row_of(w, w->type, o0 + i);
        switch (w->type) {
        case DS_MAT_FP8_32X32:
            fill_row(d, r, c0, c1, w->in, DS_MAT_FP8_32X32);
            break;
        case DS_MAT_FP8_ROWS:
            fill_row(d, r, c0, c1, w->in, DS_MAT_FP8_ROWS);
            break;
        default:
            fill_row(d, r, c0, c1, w->in, DS_MAT_MXFP4);
            break;
        }
    }
}

/* chains[r*4 + o] go on over n columns, for n_rows <= MR rows at x, 4 outputs at p; from zero if first, to sums[r*4
 * + o] if last. */
static inline __attribute__((always_inline)) void tile_of(vf *chains, float *sums, const float *x, size_t ldx, const float *p, size_t n,
                                                          int n_rows, bool first, bool last)
{
    vf c[VW];

    for (int i = 0; i < VW; i++)
        c[i] = first || i >= 4 * n_rows ? vf_zero() : chains[i];
    for (size_t k = 0; k < n; k += VW) {
        vf w0 = vf_load(p + k), w1 = vf_load(p + KC + k), w2 = vf_load(p + 2 * KC + k), w3 = vf_load(p + 3 * KC + k);
        for (int r = 0; r < n_rows; r++) {
            vf v = vf_load(x + (size_t)r * ldx + k);
            c[4 * r] = vf_fma(w0, v, c[4 * r]);
            c[4 * r + 1] = vf_fma(w1, v, c[4 * r + 1]);
            c[4 * r + 2] = vf_fma(w2, v, c[4 * r + 2]);
            c[4 * r + 3] = vf_fma(w3, v, c[4 * r + 3]);
        }
    }
    if (last)
        vf_store(sums, vf_sums(c));
    else
        for (int i = 0; i < 4 * n_rows; i++)
            chains[i] = c[i];
}

static void tile(vf *chains, float *sums, const float *x, size_t ldx, const float *p, size_t n, size_t n_rows, bool first, bool last)
{
    switch (n_rows) {
    case 1:
        tile_of(chains, sums, x, ldx, p, n, 1, first, last);
        break;
#if DS_KERN_CPU_TILE_ROWS == 4
    case 2:
        tile_of(chains, sums, x, ldx, p, n, 2, first, last);
        break;
    case 3:
        tile_of(chains, sums, x, ldx, p, n, 3, first, last);
        break;
#endif
    default:
        tile_of(chains, sums, x, ldx, p, n, MR, first, last);
    }
}

/* Rows up to which decoding them anew for each MR rows costs less than a panel. */
static inline size_t direct_rows(ds_mat_type type)
{
    bool codes = type != DS_MAT_F32 && type != DS_MAT_BF16;
    return VW == 8 && codes ? 4 : VW == 16 && codes && type != DS_MAT_MXFP4 ? 32 : DS_GEMM_ROWS;
}

static void block(float *out, const void *set, size_t rows, size_t row0, size_t n_rows, const ds_mat *w, uint64_t o0, uint32_t n_outs,
                  void *work)
{
    size_t in = w->in, padded = (in + CHUNK - 1) / CHUNK * CHUNK;
    const float *x = (const float *)set + row0 * padded;
    work_area *wa = work;
    (void)rows;

    if (n_rows == 1) {
        one_row(out, x, w, o0, n_outs);
        return;
    }
    if (n_rows <= direct_rows(w->type)) {
        direct(out, x, padded, w, o0, n_outs, n_rows);
        return;
    }
    for (size_t c0 = 0; c0 < padded; c0 += KC) {
        size_t c1 = c0 + KC < padded ? c0 + KC : padded;
        fill_panel(wa, w, o0, n_outs, c0, c1);
        for (size_t r = 0; r < n_rows; r += MR) {
            size_t nr = n_rows - r < MR ? n_rows - r : MR;
            for (uint32_t q = 0; 4 * q < n_outs; q++) {
                float sums[VW];
                bool last = c1 == padded;
                ds_gemm_fetch_panel(w, o0, c1, KC, r / MR * QUADS + q, (n_rows + MR - 1) / MR * QUADS);
                tile(wa->rest[r / MR][q], sums, x + r * padded + c0, padded, wa->panel[4 * q], c1 - c0, nr, c0 == 0, last);
                for (size_t i = 0; last && i < nr; i++)
                    memcpy(out + (r + i) * DS_GEMM_OUTS + 4 * q, sums + 4 * i, 4 * sizeof *sums);
            }
        }
    }
}

const ds_gemm V(ds_gemm) = { .set_bytes = set_bytes,
                             .prep = prep,
                             .block = block,
                             .work_bytes = sizeof(work_area),
                             .set_rows = 1,
                             .outs = DS_GEMM_OUTS,
                             .f32_weights = true };
