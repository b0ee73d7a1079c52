/* Body of a ds_gemm, over what the file in front of it defines (gemm_f32.h, gemm_avx512bf16.c):
 *
 *   elem           of prepared rows; unit: a vector of UNIT of them, and of as many decoded weights
 *   CHUNK          elements that are decoded at a time, UNITS units
 *   KC             columns of a panel
 *   unit_of        loads a unit of a prepared row
 *   mul            acc + w * x, in lanes
 *   prep_chunk     `left` (or CHUNK) floats of a row, in the order in which weights of the type are decoded
 *   decode         elements c .. c + CHUNK of a row of a weight, c a multiple of CHUNK
 *   direct_rows    rows up to which decoding them anew for each MR rows costs less than a panel
 *   F32_WEIGHTS    is DS_MAT_F32 one of the types?
 *
 * Rows are prepared once: padded with zeros to whole chunks, in the order of decoding. Tiles of 4 outputs x MR rows
 * decode weights into registers and use them at once: with one row bound by the bytes of the weight or by decoding,
 * with more by multiplying. Where decoding costs more than that (direct_rows), 16 outputs are decoded for KC columns
 * into a panel in cache, and the same tiles run over it. The chain of a (row, output) pair is always the same: the
 * units in order. Between two panels a chain rests in memory, unrounded. */
#include "kern/cpu/gemm.h"

enum { MR = DS_KERN_CPU_TILE_ROWS, L2_ROWS_BYTES = 320 << 10, QUADS = DS_GEMM_OUTS / 4, TILES = DS_GEMM_ROWS / MR };

typedef struct {
    unit panel[DS_GEMM_OUTS][KC / UNIT];
    vf rest[TILES][QUADS][VW]; /* chains between two panels */
} work_area;

static size_t padded(size_t in)
{
    return (in + CHUNK - 1) / CHUNK * CHUNK;
}

static size_t set_bytes(size_t rows, uint32_t in)
{
    return rows * padded(in) * sizeof(elem);
}

static void prep(void *set, const float *x, size_t ldx, const uint32_t *index, size_t rows, size_t begin, size_t end, uint32_t in,
                 ds_mat_type type)
{
    (void)rows;
    for (size_t r = begin; r < end; r++) {
        const float *s = x + (index ? index[r] : r) * ldx;
        elem *d = (elem *)set + r * padded(in);
        for (size_t c = 0; c < in; c += CHUNK)
            prep_chunk(d + c, s + c, in - c, type);
    }
}

static inline __attribute__((always_inline)) vf add(vf acc, const unit w[UNITS], const unit x[UNITS])
{
    for (int u = 0; u < UNITS; u++)
        acc = mul(acc, w[u], x[u]);
    return acc;
}

static inline __attribute__((always_inline)) void one_row_of(float *out, const elem *x, const ds_mat *w, uint64_t o0, uint32_t n_outs,
                                                             ds_mat_type type)
{
    size_t in = w->in;
    vf acc[DS_GEMM_OUTS];

    for (uint32_t q = 0; q < QUADS; q++) {
        vf c0 = vf_zero(), c1 = vf_zero(), c2 = vf_zero(), c3 = vf_zero();
        unit d[UNITS], v[UNITS];
        if (4 * q < n_outs) {
            uint64_t last = o0 + n_outs - 1, o = o0 + 4 * q; /* beyond the last output: that one again */
            ds_gemm_row r0 = ds_gemm_row_of(w, type, o), r1 = ds_gemm_row_of(w, type, o + 1 < last ? o + 1 : last);
            ds_gemm_row r2 = ds_gemm_row_of(w, type, o + 2 < last ? o + 2 : last),
                        r3 = ds_gemm_row_of(w, type, o + 3 < last ? o + 3 : last);
            ds_gemm_ahead ahead = ds_gemm_ahead_of(r0.data, r0.scale, in, type);
            for (size_t c = 0; c < in; c += CHUNK) {
                for (int u = 0; u < UNITS; u++)
                    v[u] = unit_of(x + c + u * UNIT);
                if (c % 32 == 0)
                    ds_gemm_fetch(ahead, c, type);
                decode(d, type, r0, c, in);
                c0 = add(c0, d, v);
                decode(d, type, r1, c, in);
                c1 = add(c1, d, v);
                decode(d, type, r2, c, in);
                c2 = add(c2, d, v);
                decode(d, type, r3, c, in);
                c3 = add(c3, d, v);
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

static void one_row(float *out, const elem *x, const ds_mat *w, uint64_t o0, uint32_t n_outs)
{
    switch (w->type) {
    case DS_MAT_F32:
        if (F32_WEIGHTS)
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
static inline __attribute__((always_inline)) void quad_of(float *out, const elem *x, size_t ldx, const ds_gemm_row w[4], size_t in,
                                                          bool fetch, ds_mat_type type, int n_rows)
{
    ds_gemm_ahead ahead = ds_gemm_ahead_of(w[0].data, w[0].scale, in, type);
    unit v[MR][UNITS], d[UNITS];
    float sums[VW];
    vf acc[VW];

    for (int i = 0; i < VW; i++)
        acc[i] = vf_zero();
    for (size_t c = 0; c < in; c += CHUNK) {
        if (fetch && c % 32 == 0)
            ds_gemm_fetch(ahead, c, type);
        for (int r = 0; r < n_rows; r++)
            for (int u = 0; u < UNITS; u++)
                v[r][u] = unit_of(x + (size_t)r * ldx + c + u * UNIT);
        for (int i = 0; i < 4; i++) {
            decode(d, type, w[i], c, in);
            for (int r = 0; r < n_rows; r++)
                acc[4 * r + i] = add(acc[4 * r + i], d, v[r]);
        }
    }
    vf_store(sums, vf_sums(acc));
    for (int r = 0; r < n_rows; r++)
        memcpy(out + r * DS_GEMM_OUTS, sums + 4 * r, 4 * sizeof *sums);
}

/* Two rows or more. As many of them as L2 has room for take all outputs, in groups of at most MR; the codes of 4
 * outputs stay in L1 for all groups. */
static inline __attribute__((always_inline)) void direct_of(float *out, const elem *x, size_t ldx, const ds_mat *w, uint64_t o0,
                                                            uint32_t n_outs, size_t n_rows, ds_mat_type type)
{
    size_t room = L2_ROWS_BYTES / (ldx * sizeof *x), sets;
    uint64_t last = o0 + n_outs - 1;

    room = room < MR ? MR : room;
    sets = (n_rows + room - 1) / room;
    for (size_t k = 0; k < sets; k++) {
        size_t r0 = ds_gemm_part(n_rows, sets, k), nr = ds_gemm_part(n_rows, sets, k + 1) - r0, groups = (nr + MR - 1) / MR;
        for (uint32_t q = 0; 4 * q < n_outs; q++) {
            ds_gemm_row row[4];
            for (uint64_t i = 0, o = o0 + 4 * q; i < 4; i++) /* beyond the last output: that one again */
                row[i] = ds_gemm_row_of(w, type, o + i < last ? o + i : last);
            for (size_t g = 0; g < groups; g++) {
                size_t r = r0 + ds_gemm_part(nr, groups, g), n = r0 + ds_gemm_part(nr, groups, g + 1) - r;
                float *d = out + r * DS_GEMM_OUTS + 4 * q;
                const elem *s = x + r * ldx;
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

static void direct(float *out, const elem *x, size_t ldx, const ds_mat *w, uint64_t o0, uint32_t n_outs, size_t n_rows)
{
    switch (w->type) {
    case DS_MAT_F32:
        if (F32_WEIGHTS)
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

static inline __attribute__((always_inline)) void fill_row(unit *d, ds_gemm_row r, size_t c0, size_t c1, size_t in, ds_mat_type type)
{
    for (size_t c = c0; c < c1; c += CHUNK, d += UNITS)
        decode(d, type, r, c, in);
}

/* Columns c0 .. c1 of the outputs, which have codes, into the panel. */
static void fill_panel(work_area *wa, const ds_mat *w, uint64_t o0, uint32_t n_outs, size_t c0, size_t c1)
{
    for (uint32_t i = 0; i < n_outs; i++) {
        unit *d = wa->panel[i];
        ds_gemm_row r = ds_gemm_row_of(w, w->type, o0 + i);
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

/* chains[r*4 + o] go on over n units, for n_rows <= MR rows at x, 4 outputs at p; from zero if first, to sums[r*4
 * + o] if last. */
static inline __attribute__((always_inline)) void tile_of(vf *chains, float *sums, const elem *x, size_t ldx, const unit *p, size_t n,
                                                          int n_rows, bool first, bool last)
{
    vf c[VW];

    for (int i = 0; i < VW; i++)
        c[i] = first || i >= 4 * n_rows ? vf_zero() : chains[i];
    for (size_t k = 0; k < n; k++) {
        unit w0 = p[k], w1 = p[KC / UNIT + k], w2 = p[2 * (KC / UNIT) + k], w3 = p[3 * (KC / UNIT) + k];
        for (int r = 0; r < n_rows; r++) {
            unit v = unit_of(x + (size_t)r * ldx + k * UNIT);
            c[4 * r] = mul(c[4 * r], w0, v);
            c[4 * r + 1] = mul(c[4 * r + 1], w1, v);
            c[4 * r + 2] = mul(c[4 * r + 2], w2, v);
            c[4 * r + 3] = mul(c[4 * r + 3], w3, v);
        }
    }
    if (last)
        vf_store(sums, vf_sums(c));
    else
        for (int i = 0; i < 4 * n_rows; i++)
            chains[i] = c[i];
}

static void tile(vf *chains, float *sums, const elem *x, size_t ldx, const unit *p, size_t n, size_t n_rows, bool first, bool last)
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

static void block(float *out, const void *set, size_t rows, size_t row0, size_t n_rows, const ds_mat *w, uint64_t o0, uint32_t n_outs,
                  void *work)
{
    size_t ld = padded(w->in);
    const elem *x = (const elem *)set + row0 * ld;
    work_area *wa = work;
    (void)rows;

    if (n_rows == 1) {
        one_row(out, x, w, o0, n_outs);
        return;
    }
    if (n_rows <= direct_rows(w->type)) {
        direct(out, x, ld, w, o0, n_outs, n_rows);
        return;
    }
    for (size_t c0 = 0; c0 < ld; c0 += KC) {
        size_t c1 = c0 + KC < ld ? c0 + KC : ld;
        fill_panel(wa, w, o0, n_outs, c0, c1);
        for (size_t r = 0; r < n_rows; r += MR) {
            size_t nr = n_rows - r < MR ? n_rows - r : MR;
            for (uint32_t q = 0; 4 * q < n_outs; q++) {
                float sums[VW];
                bool last = c1 == ld;
                ds_gemm_fetch_panel(w, o0, c1, KC, r / MR * QUADS + q, (n_rows + MR - 1) / MR * QUADS);
                tile(wa->rest[r / MR][q], sums, x + r * ld + c0, ld, wa->panel[4 * q], (c1 - c0) / UNIT, nr, c0 == 0, last);
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
                             .f32_weights = F32_WEIGHTS };
