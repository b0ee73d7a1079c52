/* Body of the AMX product (bf16 activations), over the tile operations TILE_* that the including file defines: the
 * CPU's own, or a model of them in the tests.
 *
 * Weights are tile A: 16 outputs x 32 columns, a row of the tile being one group of 32 codes, decoded in the order
 * of its type. Activations are tile B: 16 pairs of columns x 16 rows of the batch, made once for all outputs (prep).
 * Tile C: 16 outputs x 16 rows. So a product is one chain of TDPBF16PS along the columns, for one row or for many;
 * with a single row, tile B is one pair wide, which is the row in that order. A block is 32 outputs, and a step two
 * tiles A times two tiles B, so that each tile that is loaded is used twice. Weights are decoded for a panel of
 * PANEL columns, which stays in L1; while the tile unit works on a panel (64 cycles a step), the next one is decoded
 * between its steps, far enough ahead that no load waits for a store. With more than 32 rows, tile C rests in memory
 * between two panels, which changes no bit. */
#include <immintrin.h>
#include <string.h>

#include "format/numfmt.h"
#include "kern/cpu/bf16_decode.h"
#include "kern/cpu/gemm.h"
#include "kern/cpu/vec_avx512.h"

enum { STEP = 32, GROUP = 16, OUTS = 2 * GROUP, PANEL = 256, STEPS = PANEL / STEP };

typedef __m512i panel[2][STEPS][16]; /* tiles A of both halves of the outputs */

typedef struct {
    panel a[2]; /* this panel and the next */
    float c[DS_GEMM_ROWS / GROUP][2][16][16];
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

static void prep(void *set, const float *x, size_t ldx, const uint32_t *index, size_t rows, size_t begin, size_t end, uint32_t in,
                 ds_mat_type type)
{
    size_t ld = padded(in);
    if (rows == 1) {
        for (size_t c = 0; begin < end && c < in; c += STEP)
            _mm512_storeu_si512((uint16_t *)set + c, bf16_of(x + (index ? index[0] : 0) * ldx + c, in - c, type));
        return;
    }
    for (size_t r = begin; r < end; r += GROUP) {
        uint16_t *d = (uint16_t *)set + r * ld;
        for (size_t c = 0; c < in; c += STEP, d += STEP * GROUP) {
            vf t[16];
            for (size_t i = 0; i < GROUP; i++)
                t[i] = r + i < end ? _mm512_castsi512_ps(bf16_of(x + (index ? index[r + i] : r + i) * ldx + c, in - c, type)) : vf_zero();
            vf_transpose(t);
            for (size_t i = 0; i < GROUP; i++)
                vf_store((float *)(void *)d + i * 16, t[i]);
        }
    }
}

/* ---- decoding ---- */

/* A panel that is being decoded, tile by tile. */
typedef struct {
    __m512i (*a)[STEPS][16];
    const ds_gemm_row *row;     /* [OUTS] */
    size_t in, c0, steps, left; /* `left` tiles aren't done yet; the next is step `step` of `half` */
    size_t half, step;
    ds_mat_type type;
} filler;

/* With each tile, two of its sixteen rows are fetched into L2 for the panel after the one that is being decoded;
 * after a row's last columns come the first ones of the next block. */
static inline __attribute__((always_inline)) void fetch_rows(const filler *f, ds_mat_type type)
{
    size_t bits = ds_gemm_bits(type), row_bytes = f->in * bits / 8, each = PANEL * bits / 8;
    size_t at = f->c0 + PANEL < f->in ? (f->c0 + PANEL) * bits / 8 : OUTS * row_bytes;
    const ds_gemm_row *row = f->row + f->half * GROUP + f->step * 2;

    for (size_t i = 0; i < 2; i++) {
        for (size_t b = 0; b < each; b += 64)
            __builtin_prefetch(row[i].data + at + b, 0, 2);
        if (type == DS_MAT_MXFP4 || type == DS_MAT_FP8_ROWS)
            __builtin_prefetch(row[i].scale + at * 8 / bits / 32, 0, 2);
    }
}

static inline __attribute__((always_inline)) void fill_tile(filler *f, ds_mat_type type)
{
    __m512i *a = f->a[f->half][f->step];
    const ds_gemm_row *row = f->row + f->half * GROUP;
    size_t c = f->c0 + f->step * STEP;

    fetch_rows(f, type);
#pragma GCC unroll 4
    for (int i = 0; i < 16; i++)
        _mm512_store_si512(&a[i], decode_bf16(type, row[i], c, f->in));
}

static void fill_one(filler *f)
{
    switch (f->type) {
    case DS_MAT_BF16:
        fill_tile(f, DS_MAT_BF16);
        break;
    case DS_MAT_FP8_32X32:
        fill_tile(f, DS_MAT_FP8_32X32);
        break;
    case DS_MAT_FP8_ROWS:
        fill_tile(f, DS_MAT_FP8_ROWS);
        break;
    default:
        fill_tile(f, DS_MAT_MXFP4);
    }
    f->left--;
    if (++f->step == f->steps) {
        f->step = 0;
        f->half++;
    }
}

/* The filler of the panel at column c0; there is nothing to do beyond the last. */
static filler fill_of(panel *a, const ds_gemm_row *row, const ds_mat *w, size_t c0, size_t halves)
{
    size_t ld = padded(w->in), steps = c0 >= ld ? 0 : (ld - c0 < PANEL ? ld - c0 : PANEL) / STEP;
    return (filler){ .a = *a, .row = row, .in = w->in, .c0 = c0, .steps = steps, .left = halves * steps, .type = w->type };
}

/* ---- products ---- */

/* Up to 32 rows over one panel. */
typedef struct {
    const panel *a;
    const uint16_t *b; /* first step of the first group of rows */
    size_t group_len, pitch, steps;
    float (*c)[2][16][16];  /* of the groups */
    bool zero, load, store; /* tiles C at the start and at the end; neither zero nor load: they are where they were */
    size_t all_steps;       /* of this panel, for all rows: the next panel is spread over them */
} part;

static inline __attribute__((always_inline)) void run_part(const part *p, filler *f, size_t *owed, size_t tiles, bool two_halves,
                                                           bool two_groups)
{
    if (p->zero) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    if (p->load) {
        TILE_LOAD(0, p->c[0][0], p->pitch);
        if (two_groups)
            TILE_LOAD(1, p->c[1][0], p->pitch);
        if (two_halves)
            TILE_LOAD(2, p->c[0][1], p->pitch);
        if (two_halves && two_groups)
            TILE_LOAD(3, p->c[1][1], p->pitch);
    }
    for (size_t s = 0; s < p->steps; s++) {
        const uint16_t *b = p->b + s * STEP * (p->pitch / 4);
        TILE_LOAD(4, (*p->a)[0][s], 64);
        TILE_LOAD(6, b, p->pitch);
        TILE_DOT(0, 4, 6);
        if (two_groups) {
            TILE_LOAD(7, b + p->group_len, p->pitch);
            TILE_DOT(1, 4, 7);
        }
        if (two_halves) {
            TILE_LOAD(5, (*p->a)[1][s], 64);
            TILE_DOT(2, 5, 6);
        }
        if (two_halves && two_groups)
            TILE_DOT(3, 5, 7);
        for (*owed += tiles; *owed >= p->all_steps; *owed -= p->all_steps)
            fill_one(f);
    }
    if (p->store) {
        TILE_STORE(0, p->c[0][0], p->pitch);
        if (two_groups)
            TILE_STORE(1, p->c[1][0], p->pitch);
        if (two_halves)
            TILE_STORE(2, p->c[0][1], p->pitch);
        if (two_halves && two_groups)
            TILE_STORE(3, p->c[1][1], p->pitch);
    }
}

static void block(float *out, const void *set, size_t rows, size_t row0, size_t n_rows, const ds_mat *w, uint64_t o0, uint32_t n_outs,
                  void *work)
{
    size_t ld = padded(w->in), width = rows == 1 ? 1 : GROUP, halves = n_outs > GROUP ? 2 : 1, groups = (n_rows + GROUP - 1) / GROUP;
    const uint16_t *x = (const uint16_t *)set + row0 * ld;
    work_area *wa = work;
    ds_gemm_row row[OUTS];
    tile_config cfg = { .palette = 1 };

    for (uint32_t i = 0; i < OUTS; i++) /* beyond the last output: that one again */
        row[i] = ds_gemm_row_of(w, w->type, o0 + (i < n_outs ? i : n_outs - 1));
    for (int t = 0; t < 8; t++) {
        cfg.rows[t] = 16;
        cfg.row_bytes[t] = (uint16_t)(t == 4 || t == 5 ? 64 : 4 * width);
    }
    TILE_CONFIG(&cfg);
    filler f = fill_of(&wa->a[0], row, w, 0, halves);
    while (f.left)
        fill_one(&f);
    for (size_t c0 = 0, at = 0; c0 < ld; c0 += PANEL, at ^= 1) {
        size_t steps = (ld - c0 < PANEL ? ld - c0 : PANEL) / STEP, owed = 0, tiles;
        bool rest = groups > 2;
        f = fill_of(&wa->a[at ^ 1], row, w, c0 + PANEL, halves);
        tiles = f.left;
        for (size_t g = 0; g < groups; g += 2) {
            part p = { .a = (const panel *)&wa->a[at],
                       .b = x + g * GROUP * ld + c0 * width,
                       .group_len = GROUP * ld,
                       .pitch = 4 * width,
                       .steps = steps,
                       .c = &wa->c[g],
                       .zero = c0 == 0,
                       .load = rest && c0 > 0,
                       .store = rest || c0 + PANEL >= ld,
                       .all_steps = (groups + 1) / 2 * steps };
            if (halves == 2 && groups - g > 1)
                run_part(&p, &f, &owed, tiles, true, true);
            else if (halves == 2)
                run_part(&p, &f, &owed, tiles, true, false);
            else if (groups - g > 1)
                run_part(&p, &f, &owed, tiles, false, true);
            else
                run_part(&p, &f, &owed, tiles, false, false);
        }
    }
    TILE_RELEASE();
    for (size_t h = 0; h < halves; h++) {
        if (width == 1) {
            memcpy(out + h * GROUP, wa->c[0][h], GROUP * sizeof *out);
            continue;
        }
        for (size_t g = 0; g < groups; g++) {
            vf t[16];
            for (int i = 0; i < 16; i++)
                t[i] = vf_load(wa->c[g][h][i]);
            vf_transpose(t);
            for (size_t i = 0; i < GROUP && g * GROUP + i < n_rows; i++)
                vf_store(out + (g * GROUP + i) * OUTS + h * GROUP, t[i]);
        }
    }
}
