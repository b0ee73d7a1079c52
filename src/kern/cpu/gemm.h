/* The matrix product that linear layers and experts share: 16 or 32 outputs of a weight, decoded on the fly, times a
 * set of rows.
 *
 * Order of accumulation: that of the flavour (see README) and never of the number of rows: a (row, output) pair has
 * its own chain of vector FMAs along k, lanes of the vector being added up at the end by one fixed tree.
 *
 * Threads: prep may run on disjoint ranges of rows; block reads the prepared rows only. */
#ifndef DS_KERN_CPU_GEMM_H
#define DS_KERN_CPU_GEMM_H

#include "kern/kern.h"

enum {
    DS_GEMM_OUTS = 16,     /* outputs of a block of vectors */
    DS_GEMM_OUTS_MAX = 32, /* of any block; a multiple of the former */
    DS_GEMM_ROWS = 128,    /* rows of a block at most */
    DS_GEMM_PREP_ROWS = 16 /* a range of prep starts at a multiple of this */
};

typedef struct ds_gemm {
    /* Bytes of a prepared set of rows; a multiple of 64. */
    size_t (*set_bytes)(size_t rows, uint32_t in);
    /* Rows [begin, end) of a set of `rows`: row i is x + (index ? index[i] : i) * ldx. `type` is the weight's; F32 and MXFP4 may have an order of columns of their own. */
    void (*prep)(void *set, const float *x, size_t ldx, const uint32_t *index, size_t rows, size_t begin, size_t end, uint32_t in,
                 ds_mat_type type);
    /* out[r][0..outs) = sum over k of w[o0 + i][k] * row row0 + r, for r < n_rows <= DS_GEMM_ROWS; outputs from n_outs on are left undefined. row0 is a multiple of
     * DS_GEMM_ROWS. work: work_bytes, 64-byte aligned, private to the caller. */
    void (*block)(float *out, const void *set, size_t rows, size_t row0, size_t n_rows, const ds_mat *w, uint64_t o0, uint32_t n_outs,
                  void *work);
    size_t work_bytes;
    size_t set_rows;  /* a set takes the bytes of a multiple of so many rows */
    uint32_t outs;    /* outputs of a block: DS_GEMM_OUTS or DS_GEMM_OUTS_MAX */
    bool f32_weights; /* false: not for DS_MAT_F32 */
} ds_gemm;

/* What a variant multiplies with: one for f32 activations and F32 weights, one for bf16 activations (may be the
 * same). */
typedef struct {
    const ds_gemm *f32, *bf16;
    /* h[i] = w * silu(min(g, limit)) * clamp(u), as swiglu and experts have it; limit <= 0: no bounds. g and u are rounded to bf16 if round_in, h if round_out. h may equal g
     * or u. */
    void (*hidden)(float *h, const float *g, const float *u, size_t n, float w, float limit, bool round_in, bool round_out);
} ds_gemm_pair;

static inline const ds_gemm *ds_gemm_for(const ds_gemm_pair *p, bool bf16, ds_mat_type type)
{
    return bf16 && (type != DS_MAT_F32 || p->bf16->f32_weights) ? p->bf16 : p->f32;
}

extern const ds_gemm ds_gemm_avx2, ds_gemm_avx512, ds_gemm_avx512bf16, ds_gemm_amx;

/* Values of E8M0 codes, and those times 256 (from code 247 on infinity). */
extern const float ds_e8m0_value[256], ds_e8m0_value256[256];
/* E2M1 values times those of a scale: as floats, and as bf16, twice. Exact, as both have 2^-128 and neither has more
 * than 2^127. Filled by ds_gemm_init. */
extern _Alignas(64) float ds_e2m1_scaled[256][16];
extern _Alignas(64) uint16_t ds_e2m1_words[256][32];
/* The eight least E4M3 magnitudes (zero and the subnormal ones) times a scale, as bf16; exact for scales 10 .. 254. */
extern _Alignas(64) uint16_t ds_e4m3_small_words[256][8];
void ds_gemm_init(void); /* any thread, any number of times */
/* A code times 2^7, where bf16 has its exponent, in both halves. */
extern const uint32_t ds_e8m0_words[256];

/* An output's row of a weight. */
typedef struct {
    const uint8_t *data, *scale;
} ds_gemm_row;

static inline ds_gemm_row ds_gemm_row_of(const ds_mat *w, ds_mat_type type, uint64_t o)
{
    size_t in = w->in;
    const uint8_t *data = w->data;

    switch (type) {
    case DS_MAT_F32:
        return (ds_gemm_row){ data + o * in * 4, NULL };
    case DS_MAT_BF16:
        return (ds_gemm_row){ data + o * in * 2, NULL };
    case DS_MAT_FP8_32X32:
        return (ds_gemm_row){ data + o * in, w->scale + o / 32 * (in / 32) };
    case DS_MAT_FP8_ROWS:
        return (ds_gemm_row){ data + o * in, w->scale + o * (in / 32) };
    default:
        return (ds_gemm_row){ data + o * (in / 2), w->scale + o * (in / 32) };
    }
}

/* Four rows of a weight, one behind the other in memory, are used side by side. Their lines are fetched in the order
 * of memory, which the CPU's own prefetching follows (a stream for each row, of a few lines, it doesn't), early
 * enough for the last of the next four rows, and into L2: L1 has the activations. */
typedef struct {
    const uint8_t *data, *scale; /* scale NULL: not worth it */
} ds_gemm_ahead;

static inline size_t ds_gemm_bits(ds_mat_type type)
{
    return type == DS_MAT_F32 ? 32 : type == DS_MAT_BF16 ? 16 : type == DS_MAT_MXFP4 ? 4 : 8;
}

/* data, scale: of the first row. */
static inline ds_gemm_ahead ds_gemm_ahead_of(const uint8_t *data, const uint8_t *scale, size_t in, ds_mat_type type)
{
    enum { LEAD = 4608 };
    size_t bits = ds_gemm_bits(type);
    return (ds_gemm_ahead){ data + 3 * in * bits / 8 + LEAD,
                            type == DS_MAT_MXFP4 || type == DS_MAT_FP8_ROWS ? scale + 3 * in / 32 + LEAD / bits / 4 : NULL };
}

/* At columns c .. c + 32, c a multiple of 32. */
static inline __attribute__((always_inline)) void ds_gemm_fetch(ds_gemm_ahead a, size_t c, ds_mat_type type)
{
    for (size_t i = 0; i < ds_gemm_bits(type) / 4; i++)
        __builtin_prefetch(a.data + c * ds_gemm_bits(type) / 2 + 64 * i, 0, 2);
    if ((type == DS_MAT_MXFP4 || type == DS_MAT_FP8_ROWS) && c % 512 == 0)
        __builtin_prefetch(a.scale + c / 8, 0, 2);
}

/* Where part `i` begins of n things cut into `parts` as even as can be. */
static inline size_t ds_gemm_part(size_t n, size_t parts, size_t i)
{
    return n * i / parts;
}

/* Part `part` of `parts` of what comes after the panel of `columns` columns (a power of two) up to c1 of 16 outputs:
 * the next columns, or the first ones of the next outputs. */
static inline void ds_gemm_fetch_panel(const ds_mat *w, uint64_t o0, size_t c1, size_t columns, size_t part, size_t parts)
{
    size_t bits = ds_gemm_bits(w->type), row = (size_t)w->in * bits / 8, each = columns * bits / 512, lines = DS_GEMM_OUTS * each,
           shift = (size_t)__builtin_ctzl(each);
    const uint8_t *at = (const uint8_t *)w->data + (c1 < w->in ? o0 * row + c1 * bits / 8 : (o0 + DS_GEMM_OUTS) * row);

    for (size_t i = ds_gemm_part(lines, parts, part); i < ds_gemm_part(lines, parts, part + 1); i++)
        __builtin_prefetch(at + (i >> shift) * row + (i & (each - 1)) * 64, 0, 2);
}

void ds_linear_cpu(ds_exec *e, const ds_op_linear *a, const ds_gemm_pair *p);
void ds_experts_part_cpu(ds_exec *e, const ds_op_experts_part *a, const ds_gemm_pair *p);
ds_experts_sum_fn ds_experts_sum_cpu;
size_t ds_gemm_ns(size_t rows, size_t outs, size_t in);                   /* what the product takes one thread, roughly */
size_t ds_gemm_scratch(const ds_kern_limits *lim, const ds_gemm_pair *p); /* of linear and experts; SIZE_MAX: too large to say */

/* ds_exec_for, but small work stays on the calling thread: handing it over costs more than it saves. `cost` is about
 * nanoseconds of one thread. */
void ds_cpu_for(ds_exec *e, size_t n, size_t grain, size_t cost, ds_range_fn *fn, void *arg);

#endif
