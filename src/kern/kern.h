/* The op table: everything that the model computes, as about thirty operations that a backend fills in.
 *
 * What holds for every op and every backend:
 *  - An op gets the execution context, then one argument struct. It only enqueues or computes: it doesn't allocate
 *    (scratch comes from the context), doesn't synchronise, and doesn't make the host look at a result. Zero rows
 *    are fine and touch nothing.
 *  - All pointers are memory of the device (device.h), 64-byte aligned unless a comment says otherwise. Leading
 *    dimensions (ld...) count elements and may exceed the row.
 *  - Activations are f32. In bf16 mode (ds_exec.bf16) the outputs called "rounded" are rounded to the nearest bf16
 *    value, ties to even, at the end of the op; in f32 mode nothing is rounded. In bf16 mode the input x of every
 *    linear holds bf16 values.
 *  - Batch invariance: the bits of a row's result depend on that row's inputs, the weights and the variant alone;
 *    not on the other rows, the number of rows, the cut into chunks or the number of threads. So: one order of
 *    accumulation for each (op, weight shape), attention tiles counted from the start of a row's own key list,
 *    experts summed in rank order, no float atomics.
 *  - Ties go to the lower index. -0 equals +0. A NaN score or logit counts as below every number, and never makes an
 *    index invalid.
 *  - Outputs don't overlap inputs unless a comment allows it.
 *  - ref sums in double and rounds once to f32; it is the oracle. Tolerances are those of a variant against ref, for
 *    finite inputs. "sum(eps)" means |y - ref| <= eps * (sum of the absolute values of the terms), plus one bf16
 *    step where the output is rounded.
 *
 * Threads: a filled table is constant and shared. */
#ifndef DS_KERN_KERN_H
#define DS_KERN_KERN_H

#include <ds/sampling.h>

#include "base/none.h"
#include "kern/exec.h"

/* ---- weights ---- */

typedef enum {
    DS_MAT_F32,
    DS_MAT_BF16,
    DS_MAT_FP8_32X32, /* E4M3 data, one E8M0 scale for each 32x32 block: scale [ceil(out/32)][ceil(in/32)] */
    DS_MAT_FP8_ROWS,  /* E4M3 data, one E8M0 scale for 32 elements of a row: scale [out][in/32] (Engram tables) */
    DS_MAT_MXFP4,     /* E2M1 pairs, low nibble first: data [out][in/2]; E8M0 scale [out][in/32] */
} ds_mat_type;

/* A weight matrix, [out][in], where the file has it. No alignment is promised for data and scale. No NaN or infinity
 * in either, except in tables that only embed and engram_gather read. in % 32 == 0 for the FP8 and MXFP4 types. */
typedef struct {
    ds_mat_type type;
    uint32_t in;
    uint64_t out;
    const void *data;
    const uint8_t *scale; /* NULL for F32 and BF16 */
    const void *packed;   /* the backend's own form, made when the model is loaded (device.h); NULL: not packed */
} ds_mat;

/* ---- step metadata ---- */

/* Which row is what. Rows of one sequence stand together, at increasing, consecutive positions: position p of
 * sequence s is row row0[s] + (p - pos0[s]). Arrays are device buffers. */
typedef struct {
    uint32_t n_rows, n_seqs;
    /* for each row */
    const int32_t *pos;  /* absolute position, 0-based */
    const uint32_t *seq; /* index into the arrays below */
    const int32_t *id;   /* raw token id >= 0; at an image position -1-k, k a row of the image embeddings (embed's `extra`) */
    const uint8_t *dead; /* 1 inside an image span, delimiters included: router bias_vl, closed Engram gate, no n-grams; else 0 */
    /* for each sequence */
    const uint32_t *row0, *count; /* count >= 1 */
    const int32_t *pos0;
    const uint32_t *slot;      /* state slot */
    const uint32_t *tail;      /* tail slot, or DS_NONE */
    const int32_t *win_lo;     /* window attention sees no key before this position */
    const int32_t *store_from; /* entries completed by earlier positions are cached already and not written */
    const uint32_t *blocks;    /* [n_seqs][blocks_ld]: ids of the sequence's KV blocks in order */
    size_t blocks_ld;
} ds_step;

/* One sequence of a step as the host describes it. */
typedef struct {
    int32_t pos0;
    uint32_t row0, count; /* count >= 1; row0: the rows of the sequences before it */
    uint32_t slot, tail;
    int32_t win_lo, dec_lo; /* win_lo of encoder and decoder layers */
    int32_t store_from;
    uint32_t block0, n_blocks; /* its block ids: n_blocks of op's `block` from block0 on, at most blocks_ld */
    /* rows taken from another set: position p >= src_pos is row src_row + (p - src_pos) there, earlier ones stand in no row */
    int32_t src_pos;
    uint32_t src_row;
} ds_seq_rows;

/* Metadata of n_rows rows from that of their sequences: all arrays of a ds_step. Per sequence its members, and
 * blocks[s][0 .. n_blocks); per row pos and seq. With `id_in`: id[r] = id_in[r], dead[r] = id_in[r] < 0. Without:
 * id[r] = 0, index[r] = the row's place in the other set (0 if it has none), dead[r] = dead_in[index[r]]. */
typedef struct {
    const ds_seq_rows *seq; /* [n_seqs] */
    const uint32_t *block;
    const int32_t *id_in;   /* [n_rows] */
    const uint8_t *dead_in; /* used if id_in is NULL */
    uint32_t n_seqs;
    size_t blocks_ld;
    /* results */
    int32_t *pos, *id;
    uint32_t *of_seq, *index;
    uint8_t *dead;
    uint32_t *row0, *count, *slot, *tail, *blocks;
    int32_t *pos0, *win_lo, *dec_lo, *store_from;
} ds_op_rows;
typedef void ds_rows_fn(ds_exec *e, const ds_op_rows *a);

/* Records of one kind inside the KV blocks: entry j of sequence s is record j % (block_tokens/ratio) of block
 * blocks[s][j / (block_tokens/ratio)]. */
typedef struct {
    uint8_t *base; /* block 0 */
    size_t block_bytes;
    size_t off; /* of the first record inside a block */
    uint32_t rec_bytes;
    uint32_t ratio;     /* tokens an entry: 1 or 2 */
    uint32_t per_block; /* block_tokens / ratio */
} ds_kv_view;

static inline uint8_t *ds_kv_at(const ds_kv_view *v, const ds_step *st, uint32_t seq, uint32_t entry)
{
    uint32_t block = st->blocks[seq * st->blocks_ld + entry / v->per_block];
    return v->base + block * v->block_bytes + v->off + (size_t)(entry % v->per_block) * v->rec_bytes;
}

/* Entries that a query at position pos may see. */
static inline uint32_t ds_kv_visible(const ds_kv_view *v, int32_t pos)
{
    return (uint32_t)(pos + 1) / v->ratio;
}

/* A ring of records in the state slots (or tail slots), addressed by position: no record is ever moved or cleared, a
 * reader knows which positions are valid. */
typedef struct {
    uint8_t *base; /* slot 0 */
    size_t slot_bytes;
    size_t off;   /* of the ring inside a slot */
    uint32_t len; /* records */
    uint32_t rec_bytes;
} ds_ring_view;

static inline uint8_t *ds_ring_at(const ds_ring_view *r, uint32_t slot, int32_t pos)
{
    return r->base + slot * r->slot_bytes + r->off + (size_t)((uint32_t)pos % r->len) * r->rec_bytes;
}

/* Record sizes: window D + D/32 bytes (E4M3 codes, then E8M0 scales), main D/2 + D/16 (E2M1 codes, then E4M3
 * scales), index key or index query of dimension Di: Di/2 + Di/32 (E2M1 codes, then E8M0 scales). Spec 4.2-4.4;
 * byte-exact in every variant. */
#define DS_WIN_REC(D) ((D) + (D) / 32)
#define DS_MAIN_REC(D) ((D) / 2 + (D) / 16)
#define DS_IDX_REC(Di) ((Di) / 2 + (Di) / 32)

/* Cosine and sine of position times frequency, [positions][rd/2][2] f32: cos then sin. Built on the host, the same
 * for every backend. */
typedef struct {
    const float *cs;
    uint32_t rd; /* rotary dims, even */
} ds_rope_tab;

/* ---- linear algebra ---- */

/* y[r][g*o + i] = sum_k W[g*o + i][k] * x[r][g*in + k]  (+ bias[g*o + i])  (+ the old y, if add),   o = w->out /
 *                                                       groups, in = w->in
 * Grouped: group g of the outputs sees its own slice of x; groups = 1 is the plain linear. o needn't be a multiple
 * of 32 (scale blocks count from row 0 of W). y rounded if `round`. Any out >= 1, any in >= 1 (F32, BF16), in % 32
 * == 0 (others). y must not overlap x. Tolerance: sum(2e-6). */
typedef struct {
    float *y;
    const float *x;
    const ds_mat *w;
    const float *bias; /* [out], NULL: none */
    size_t rows, ldx, ldy;
    uint32_t groups;
    bool round, add;
} ds_op_linear;
typedef void ds_linear_fn(ds_exec *e, const ds_op_linear *a);

/* dst[r][c] = W[row0 + r][c] as f32, exact. */
typedef struct {
    float *dst;
    const ds_mat *w;
    uint64_t row0;
    size_t rows;
} ds_op_dequant;
typedef void ds_dequant_fn(ds_exec *e, const ds_op_dequant *a);

/* y[r][c] = x[r][c] * rsqrt(mean_c(x[r][c]^2) + eps) * w[c], rounded. y may equal x. eps may be as small as 1e-20.
 * An all-zero row gives zeros. Tolerance: 2e-6 relative. */
typedef struct {
    float *y;
    const float *x;
    const float *w; /* [dim] */
    size_t rows, ldx, ldy;
    uint32_t dim;
    float eps;
} ds_op_rmsnorm;
typedef void ds_rmsnorm_fn(ds_exec *e, const ds_op_rmsnorm *a);

/* Rotates the last rd of each head's `dim` values, adjacent pairs, in place (spec 3.6), at position max(0, pos[r] +
 * shift); the inverse uses -sin. Rounded. Row r, head h at x + r*ldx + h*dim. Tolerance: 2e-7 of the pair's norm
 * (products and sum in f32, no contraction needed). */
typedef struct {
    float *x;
    const int32_t *pos; /* [rows] */
    ds_rope_tab tab;
    size_t rows, ldx;
    uint32_t heads, dim;
    int32_t shift;
    bool inverse;
} ds_op_rope;
typedef void ds_rope_fn(ds_exec *e, const ds_op_rope *a);

/* y[i] += x[i]; not rounded. */
typedef struct {
    float *y;
    const float *x;
    size_t n;
} ds_op_add;
typedef void ds_add_fn(ds_exec *e, const ds_op_add *a);

/* h[r][i] = silu(min(g, limit)) * clamp(u, -limit, limit), g = g[r][i], u = u[r][i]; limit <= 0: no bounds. silu(v)
 * = v / (1 + exp(-v)). Rounded. h may equal g or u (same ld). Tolerance: 4e-6 relative. */
typedef struct {
    float *h;
    const float *g, *u;
    size_t rows, ldg, ldu, ldh;
    uint32_t n;
    float limit;
} ds_op_swiglu;
typedef void ds_swiglu_fn(ds_exec *e, const ds_op_swiglu *a);

/* x[i] = x[i] * (1 + erf(x[i] / sqrt 2)) / 2, in place, rounded. Tolerance: 4e-6 relative + 1e-7. */
typedef struct {
    float *x;
    size_t n;
} ds_op_gelu;
typedef void ds_gelu_fn(ds_exec *e, const ds_op_gelu *a);

/* id[r] = index of the largest x[r][0..n); a row of NaN gives 0. */
typedef struct {
    int32_t *id;
    const float *x;
    size_t rows, ldx;
    uint32_t n;
} ds_op_argmax;
typedef void ds_argmax_fn(ds_exec *e, const ds_op_argmax *a);

/* dst[r][0..n) = src[index[r]][0..n) (index NULL: src[r]); moves 4-byte words whatever they mean. lds 0: the same
 * row again and again. */
typedef struct {
    float *dst;
    const float *src;
    const uint32_t *index;
    size_t rows, ldd, lds;
    size_t n;
} ds_op_copy;
typedef void ds_copy_fn(ds_exec *e, const ds_op_copy *a);

/* `bytes` bytes from src + i * bytes to dst + off[i], i < n. Places don't overlap. */
typedef struct {
    void *dst;
    const uint64_t *off;
    const void *src;
    size_t n, bytes;
} ds_op_scatter;
typedef void ds_scatter_fn(ds_exec *e, const ds_op_scatter *a);

/* If a value of x[r][0..n) is NaN or infinite: DS_FAULT_FINITE(tag, r * n + i) with one such. */
typedef struct {
    const float *x;
    size_t rows, ldx;
    size_t n;
    uint32_t tag;
} ds_op_finite;
typedef void ds_finite_fn(ds_exec *e, const ds_op_finite *a);

/* ---- tokens and streams ---- */

/* y[r][c][0..d) = table row id[r] for id >= 0, else row -1-id of extra; c = 0..copies-1. Rounded (table rows are
 * exact anyway). A NaN or infinity in a table row: zeros and DS_FAULT_VALUE(tag, id). The ids are valid. Table types
 * F32, BF16. */
typedef struct {
    float *y;
    const int32_t *id;
    const ds_mat *table; /* [vocab][d] */
    const float *extra;  /* [..][d] */
    size_t rows;
    uint32_t copies;
    uint32_t tag;
} ds_op_embed;
typedef void ds_embed_fn(ds_exec *e, const ds_op_embed *a);

/* One mHC turn (spec 3.4) in up to three parts, row by row. X [rows][n][d]; a mix row is [pre n | post n | B n*n],
 * B[j*n + k].
 *   1. y != NULL:   X_k <- rounded( post_k * y + sum_j B_jk X_j ),  post and B from mix_in: step 7 of the sublayer
 *      that made y
 *   2. x != NULL:   x = rounded( sum_j pre_j X_j ),  pre from mix_in, the carried mix: step 5 of the next sublayer
 *   3. fn != NULL:  mix_out = steps 1-4 of the next sublayer on the new X;  fn [(2+n)n][n*d], base [(2+n)n], scale
 *      [3], all f32
 * mix_in and mix_out may be the same buffer (a row's mix_in is read before its mix_out is written). n <= 8. x may
 * equal y. One call with several parts gives the same bits as several calls. Tolerance: X and x sum(2e-7); m = fn.v
 * sum(1e-6); mix_out 1e-5 relative (20 Sinkhorn rounds in f32 or better). */
typedef struct {
    float *X;
    const float *y;
    const float *mix_in;
    float *x;
    float *mix_out;
    const float *fn, *base, *scale; /* fn needn't be aligned to more than 4 bytes */
    size_t rows;
    uint32_t n, d, iters;
    float eps, hc_eps;
} ds_op_mhc;
typedef void ds_mhc_fn(ds_exec *e, const ds_op_mhc *a);

/* t[r*ldt + i] = rounded( mean over j of X[r][j][i] ). Tolerance: sum(2e-7). */
typedef struct {
    float *t;
    const float *X;
    size_t rows, ldt;
    uint32_t n, d;
} ds_op_stream_mean;
typedef void ds_stream_mean_fn(ds_exec *e, const ds_op_stream_mean *a);

/* ---- caches ---- */

/* Copies row r's bytes into its ring at position pos[r]; of a sequence with more than ring.len rows only the last
 * ring.len. Sequences whose slot is DS_NONE are skipped. `slot` is step->slot or step->tail. Source rows src +
 * r*src_bytes, the first rec_bytes of each. */
typedef struct {
    const ds_step *step;
    ds_ring_view ring;
    const uint32_t *slot;
    const void *src;
    size_t src_bytes;
} ds_op_ring_store;
typedef void ds_ring_store_fn(ds_exec *e, const ds_op_ring_store *a);

/* The way back: row r's record at pos[r] to dst + r*dst_bytes. Rows of sequences without a slot stay as they are. */
typedef struct {
    const ds_step *step;
    ds_ring_view ring;
    const uint32_t *slot;
    void *dst;
    size_t dst_bytes;
} ds_op_ring_load;
typedef void ds_ring_load_fn(ds_exec *e, const ds_op_ring_load *a);

/* Window records (spec 4.3): rec[r] of DS_WIN_REC(dim) bytes from x[r][0..dim). dim % 32 == 0. Bytes as
 * ds_kv_window_pack. */
typedef struct {
    uint8_t *rec; /* [rows][DS_WIN_REC(dim)] */
    const float *x;
    size_t rows, ldx;
    uint32_t dim;
} ds_op_win_quant;
typedef void ds_win_quant_fn(ds_exec *e, const ds_op_win_quant *a);

/* Index records (spec 4.2) of n vectors, vector i at x + i*dim: rec[i] of DS_IDX_REC(dim) bytes. dim % 32 == 0.
 * Bytes as ds_kv_index_pack. */
typedef struct {
    uint8_t *rec;
    const float *x;
    size_t n;
    uint32_t dim;
} ds_op_idx_quant;
typedef void ds_idx_quant_fn(ds_exec *e, const ds_op_idx_quant *a);

/* Pools pairs of tokens (spec 3.9, ratio 2). For a row at odd position p >= store_from: u[r] = rounded( w0 * k_{p-1}
 * + w1 * k_p ), (w0, w1) = softmax(z_{p-1}, z_p) per channel; the partner p-1 is the row before, or, when p is its
 * sequence's first row, the slot's open-group record, which must carry position p-1 (else zeros and
 * DS_FAULT_GROUP(tag, p-1)). All other rows: u[r] = 0. Afterwards the last ring.len rows of each sequence are
 * written to the open-group ring. Open record: int32 position, padded to 64 bytes, then f32 k[dim], z[dim].
 * Tolerance: 2e-6 relative to max(|k_{p-1}|, |k_p|). */
typedef struct {
    const ds_step *step;
    ds_ring_view open; /* rec_bytes = DS_OPEN_REC(dim) */
    float *u;
    const float *k, *z; /* [rows][dim] */
    uint32_t dim;
    uint32_t tag;
} ds_op_pool_pairs;
typedef void ds_pool_pairs_fn(ds_exec *e, const ds_op_pool_pairs *a);
#define DS_OPEN_REC(D) (64 + 2 * (size_t)(D) * sizeof(float))

/* For every row whose position completes an entry ((pos+1) % ratio == 0) and is >= store_from: quantises x[r] and
 * writes the record of entry pos / ratio.
 * kv_store: main records, dim = D.  idx_store: index records, dim = Di. Bytes as ds_kv_main_pack, ds_kv_index_pack. */
typedef struct {
    const ds_step *step;
    ds_kv_view kv;
    const float *x; /* [rows][dim] */
    uint32_t dim;
} ds_op_kv_store;
typedef void ds_kv_store_fn(ds_exec *e, const ds_op_kv_store *a);

/* ---- sparse attention ---- */

/* Scores and selection (spec 3.10). For row r at position p, V = visible entries of `keys`:
 *   score_j = sum_h (g[r][h] * g_scale) * max(0, q_h . ik_j),   heads in increasing order, q and ik the dequantised
 *                                                               records
 *   admissible: j < V and, if pool_in, block j / pool_block is in pool_in[r] sel[r] = the min(topk, admissible)
 *   best, tie to the lower j, written in increasing order; n_sel[r] = how many pool_out: block score = best score of
 *   its visible entries; the block that holds entry V-1 is always kept; the min(pool_blocks, blocks) best whose
 *   score is above -inf, increasing order; sel itself isn't restricted by it.
 * V = 0: n_sel = 0, n_pool = 0. A NaN score is -inf and still admissible (sorted last). Dots of a 32-group are exact
 * in f32; tolerance of a score: sum(1e-6). */
typedef struct {
    const ds_step *step;
    ds_kv_view keys;
    const uint8_t *q; /* [rows][heads][DS_IDX_REC(dim)] */
    const float *g;   /* [rows][heads] */
    float g_scale;
    uint32_t heads, dim, topk;
    int32_t *sel;           /* [rows][topk] */
    uint32_t *n_sel;        /* [rows] */
    const int32_t *pool_in; /* [rows][pool_blocks], NULL: no restriction */
    const uint32_t *n_pool_in;
    int32_t *pool_out; /* [rows][pool_blocks], NULL: not wanted */
    uint32_t *n_pool_out;
    uint32_t pool_blocks, pool_block; /* how many, and entries a block */
} ds_op_index_topk;
typedef void ds_index_topk_fn(ds_exec *e, const ds_op_index_topk *a);

/* Attention with sink (spec 3.11). The key list of row r (position p, sequence s): window positions first..last in
 * increasing order, then the selected main entries in increasing order (sel NULL: none).
 *   causal:     first = max(win_lo[s], p - window + 1), last = p
 *   bidir:      first = max(win_lo[s], pos0[s] - window), last = pos0[s] + count[s] - 1: a draft block sees the ring
 *               and all of itself
 *   both:       first >= 0; positions >= pos0[s] are this step's own records rec[row]; earlier ones are in the ring
 *   s_i = (q_h . e_i) * scale;  o_h = sum exp(s_i - M) e_i / (sum exp(s_i - M) + exp(sink_h - M)),  M = max s_i
 * An entry is key and value. An empty list gives zeros. o rounded; o may equal q. Tolerance: 4e-6 * max |e_i| (f32
 * mode). */
typedef struct {
    const ds_step *step;
    float *o;
    const float *q;    /* [rows][heads][dim] */
    const float *sink; /* [heads] */
    float scale;
    uint32_t heads, dim, window;
    bool bidir;
    ds_ring_view ring;  /* window records, by step->slot */
    const uint8_t *rec; /* [rows][DS_WIN_REC(dim)] */
    ds_kv_view kv;      /* main records; used if sel */
    const int32_t *sel; /* [rows][topk] */
    const uint32_t *n_sel;
    uint32_t topk;
} ds_op_attention;
typedef void ds_attention_fn(ds_exec *e, const ds_op_attention *a);

/* ---- experts ---- */

/* Router (spec 3.13). s_e = sqrt(softplus(logit[r][e] / temp)); the k best s_e + b_e with b = dead[r] ? bias_vl :
 * bias; sel[r][0..k) in
 * falling order of s_e + b_e (the rank order), w[r][i] = s / (sum of the chosen s + 1e-20) * scale  if norm (and k >
 *                                                                                                   1), else s *
 *                                                                                                   scale.
 * bias_vl NULL: bias. dead NULL: no row is. softplus is exact for large and small inputs (log1p). sel holds k
 * different valid ids whatever the logits. Tolerance: w 4e-6 relative; equal choice unless two scores are within
 * 1e-6. */
typedef struct {
    int32_t *sel;       /* [rows][k] */
    float *w;           /* [rows][k] */
    const float *logit; /* [rows][experts] */
    const float *bias, *bias_vl;
    const uint8_t *dead;
    size_t rows;
    uint32_t experts, k;
    float temp, scale;
    bool norm;
} ds_op_route;
typedef void ds_route_fn(ds_exec *e, const ds_op_route *a);

/* Routed experts (spec 3.13), those that this place owns: experts first .. first + n - 1, whose matrices are
 * w1[0..n) and so on. For each pair (r, i) with x = sel[r][i] - first in [0, n):
 *   g = rounded(W1_x x[r]), u = rounded(W3_x x[r]), h = rounded( w[r][i] * silu(min(g, limit)) * clamp(u) ),
 *   part[r][i] = rounded(W2_x h)
 * The results of other pairs are not touched: another place computes them, and what all computed is put together
 * before experts_sum. Tolerance: sum(4e-6) over both layers. */
typedef struct {
    float *part;                /* [rows][k][d] */
    const float *x;             /* [rows][d] */
    const ds_mat *w1, *w3, *w2; /* [n] each */
    const int32_t *sel;         /* [rows][k] */
    const float *w;             /* [rows][k] */
    size_t rows;
    uint32_t d, inner, first, n, k;
    float limit;
} ds_op_experts_part;
typedef void ds_experts_part_fn(ds_exec *e, const ds_op_experts_part *a);

/* y[r] = rounded( (((part[r][0] + part[r][1]) + part[r][2]) + ...) + shared[r] ). y may equal shared. Tolerance:
 * sum(1e-6). */
typedef struct {
    float *y;
    const float *part;   /* [rows][k][d] */
    const float *shared; /* [rows][d] */
    size_t rows;
    uint32_t d, k;
} ds_op_experts_sum;
typedef void ds_experts_sum_fn(ds_exec *e, const ds_op_experts_sum *a);

/* ---- Engram ---- */

/* Table rows of each token (spec 3.12). t_0.. = map[id] at p, p-1, ...; going back stops at position 0 and at a dead
 * token; from there on `pad`. Earlier tokens are rows of this step or history records; a missing one: pad and
 * DS_FAULT_HISTORY(tag, position). row[r][c] for column c = (order - 2) * heads + head: (t_0 m_0 ^ ... ^ t_{order-1}
 * m_{order-1}) % prime[c] + offset[c], uint64 arithmetic. store: afterwards the last hist.len rows of each sequence
 * are written to the history. History record: int32 position, int32 class or -1 when dead. Ids below 0 are dead
 * rows. */
typedef struct {
    const ds_step *step;
    ds_ring_view hist;  /* rec_bytes 8 */
    uint64_t *row;      /* [rows][cols], cols = (max_ngram - 1) * heads */
    const int32_t *map; /* [vocab] */
    int32_t pad;
    const uint64_t *mult, *prime, *offset; /* [max_ngram], [cols], [cols] */
    uint32_t max_ngram, heads;             /* max_ngram <= 8 */
    bool store;
    uint32_t tag;
} ds_op_engram_hash;
typedef void ds_engram_hash_fn(ds_exec *e, const ds_op_engram_hash *a);

/* y[r][c*width ..] = table row row[r][c], dequantised (exact, rounded). NaN or infinity in a row or its scales:
 * zeros and DS_FAULT_VALUE(tag, row). Table types FP8_ROWS, BF16, F32. The table may be hundreds of gigabytes of
 * mapped file: touch only the rows asked for. Dead rows (step->dead) may be left zero without reading. */
typedef struct {
    float *y;
    const uint64_t *row; /* [rows][cols] */
    const uint8_t *dead;
    const ds_mat *table;
    size_t rows;
    uint32_t cols;
    uint32_t tag;
} ds_op_engram_gather;
typedef void ds_engram_gather_fn(ds_exec *e, const ds_op_engram_gather *a);

/* Gate and add (spec 3.12), in place on X. kv[r] = [key_0 | ... | key_{n-1} | val], each d wide. w = q_weight *
 * k_weight, [n][d]. Dead rows keep their X. X rounded. Tolerance: dot sum(1e-6), X sum(2e-6). */
typedef struct {
    float *X;        /* [rows][n][d] */
    const float *kv; /* [rows][(n+1)*d] */
    const float *qw, *kw;
    const uint8_t *dead;
    size_t rows;
    uint32_t n, d;
    float eps;
} ds_op_engram_fuse;
typedef void ds_engram_fuse_fn(ds_exec *e, const ds_op_engram_fuse *a);

/* ---- vision ---- */

/* 2-D rotary embedding in place (spec 3.15): patch r is (row, col) = (r / n_w, r % n_w); in each head dims i and i +
 * dim/2 are a pair; angle i < dim/4: row * f_i, else col * f_{i - dim/4}. cs [positions][dim/4][2]. Rounded. dim % 4
 * == 0. */
typedef struct {
    float *x;
    const float *cs;
    size_t rows, ldx;
    uint32_t heads, dim, n_w;
} ds_op_rope2d;
typedef void ds_rope2d_fn(ds_exec *e, const ds_op_rope2d *a);

/* Full attention of n patches: o[i][h] = sum_j softmax_j(q_i,h . k_j,h * scale) v_j,h. Head h at h*dim in a row; q,
 * k, v share ld. o [n][heads*dim], rounded. Tolerance: 4e-6 * max |v|. */
typedef struct {
    float *o;
    const float *q, *k, *v;
    size_t n, ld;
    uint32_t heads, dim;
    float scale;
} ds_op_vit_attention;
typedef void ds_vit_attention_fn(ds_exec *e, const ds_op_vit_attention *a);

/* out[(cy*gw + cx)][c*s*s + dy*s + dx] = x[(cy*s + dy)*n_w + cx*s + dx][c], 0 outside the image; gh = ceil(n_h/s),
 * gw = ceil(n_w/s). */
typedef struct {
    float *out;
    const float *x; /* [n_h*n_w][dim] */
    uint32_t n_h, n_w, dim, s;
} ds_op_cells;
typedef void ds_cells_fn(ds_exec *e, const ds_op_cells *a);

/* ---- drawing tokens ---- */

enum { DS_MAX_DRAWS = 16, DS_MAX_TOP = 20 }; /* rows of a sequence; likeliest tokens reported for each */

/* How a sequence's tokens are drawn. What it points to is stage memory. */
typedef struct {
    double temperature, top_p, min_p; /* 0: greedy; 1: off; 0: off */
    double repetition_penalty, presence_penalty, frequency_penalty;
    uint64_t seed;
    uint32_t top_k; /* 0: off */
    uint32_t n_bias, n_stop;
    uint32_t stop_upto;        /* stop ids aren't drawn for output positions below this, unless nothing else is allowed */
    const ds_token_bias *bias; /* [n_bias] */
    const ds_token *stop;      /* [n_stop]: they end a text and aren't counted */
    uint32_t *n_output;        /* [vocab] times seen in the output; NULL when no penalty is on */
    const uint8_t *in_prompt;  /* [vocab]; NULL when the repetition penalty is off */
} ds_draw;

/* Rows of logits of one sequence: row .. row + n - 1 belong to its output positions index .. index + n - 1. */
typedef struct {
    ds_draw how;
    uint64_t index;
    const uint32_t *allowed; /* bits of the tokens allowed at each of the n rows; NULL: all at all. Stage memory */
    size_t allowed_ld;       /* words from one row's bits to the next one's */
    uint32_t row, n;         /* n <= DS_MAX_DRAWS */
    uint32_t n_top;          /* <= DS_MAX_TOP */
    bool logprobs;
    ds_token draft[DS_MAX_DRAWS - 1]; /* [n - 1]: the tokens that rows behind the first were computed with */
} ds_sample_rows;

typedef struct {
    uint32_t n;   /* draws that stand: the first one, and one more for each draft that was drawn before */
    bool stopped; /* the last is a stop id */
    bool none;    /* behind them nothing is allowed */
    ds_token token[DS_MAX_DRAWS];
    float logprob[DS_MAX_DRAWS]; /* of the raw logits */
} ds_drawn;

typedef struct {
    ds_token id; /* DS_TOKEN_NONE: the vocabulary is smaller than the list */
    float logprob;
} ds_logprob;

/* Draws tokens, and keeps drafts that equal the draw at their place: the draw for output position i is a pure
 * function of the logits, the seed, i and the tokens in front, so drafts never change a text. Order of operations
 * for a row: penalties and bias on the raw logits, mask, what is held back, temperature, top-k, top-p (the smallest
 * set of the renormalised remainder that reaches p), min-p, draw with random number (seed, i). Ties go to the lower
 * id everywhere. Tokens that stand are counted in n_output, stop ids excepted, and the counts in front of a row
 * include them. With `id`: rows are proposals, n is 1, nothing is counted or masked, and where nothing is allowed
 * the largest logit is taken. After a fault of an op in front nothing is drawn or counted: n is 0, ids stay as they
 * were. On the CPU every variant has the bits of ref; other backends may round probabilities
 * otherwise, and say how. */
typedef struct {
    const float *logits; /* finite */
    size_t ld;
    uint32_t vocab;
    const ds_sample_rows *seq;
    uint32_t n_seqs;
    uint32_t later;  /* added to every index */
    int32_t *id;     /* [n_seqs], else NULL, and then */
    ds_drawn *out;   /* [n_seqs] */
    ds_logprob *top; /* [n_seqs][DS_MAX_DRAWS][DS_MAX_TOP]; may be NULL when nobody has n_top */
} ds_op_sample;
typedef void ds_sample_fn(ds_exec *e, const ds_op_sample *a);

/* Draft blocks behind what has just been drawn, as descriptions of rows: seq[s] is first[s], which is right for one
 * draw that stands, moved on by the others; id[s] is the last of the draws (0 if none stands), then `fill`. draw[s],
 * how the block's tokens will be drawn, moves on likewise (its index). */
typedef struct {
    const ds_drawn *drawn;    /* [n] */
    const ds_seq_rows *first; /* [n]; all with the same count */
    uint32_t n;
    ds_token fill;
    ds_seq_rows *seq;     /* [n] */
    int32_t *id;          /* [n][count] */
    ds_sample_rows *draw; /* [n]; NULL: not wanted */
} ds_op_accept;
typedef void ds_accept_fn(ds_exec *e, const ds_op_accept *a);

/* ---- the table ---- */

/* The largest call of each kind that scratch must do for. Zero: that op isn't used. */
typedef struct {
    uint32_t threads, max_rows;
    uint32_t d, n, widest_in, widest_out; /* over all linears, the vocabulary excluded */
    uint32_t vocab;                       /* of sample */
    uint32_t heads, head_dim, window, ring_len;
    uint32_t index_heads, index_dim, topk, pool_blocks, pool_block, max_entries;
    uint32_t experts, k, inner;
    uint32_t patches, vit_heads, vit_dim;
} ds_kern_limits;

typedef struct {
    const char *name; /* "ref", "avx2", "avx512", "amx" */

    /* Bytes of ds_exec.scratch that any op of this table takes at most, within these limits. SIZE_MAX: too large to say. */
    size_t (*scratch_bytes)(const ds_kern_limits *lim);

    ds_rows_fn *rows;
    ds_linear_fn *linear;
    ds_dequant_fn *dequant;
    ds_rmsnorm_fn *rmsnorm;
    ds_rope_fn *rope;
    ds_add_fn *add;
    ds_swiglu_fn *swiglu;
    ds_gelu_fn *gelu;
    ds_argmax_fn *argmax;
    ds_copy_fn *copy;
    ds_scatter_fn *scatter;
    ds_finite_fn *finite;
    ds_embed_fn *embed;
    ds_mhc_fn *mhc;
    ds_stream_mean_fn *stream_mean;
    ds_ring_store_fn *ring_store;
    ds_ring_load_fn *ring_load;
    ds_win_quant_fn *win_quant;
    ds_idx_quant_fn *idx_quant;
    ds_pool_pairs_fn *pool_pairs;
    ds_kv_store_fn *kv_store;
    ds_kv_store_fn *idx_store;
    ds_index_topk_fn *index_topk;
    ds_attention_fn *attention;
    ds_route_fn *route;
    ds_experts_part_fn *experts_part;
    ds_experts_sum_fn *experts_sum;
    ds_engram_hash_fn *engram_hash;
    ds_engram_gather_fn *engram_gather;
    ds_engram_fuse_fn *engram_fuse;
    ds_rope2d_fn *rope2d;
    ds_vit_attention_fn *vit_attention;
    ds_cells_fn *cells;
    ds_sample_fn *sample;
    ds_accept_fn *accept;
} ds_kern;

/* Fills the table for this machine. want: NULL = the best here, or "ref", "avx2", "avx512", "amx". An op without a
 * body in the wanted set has that of the next lower one. DS_E_ARG: no such set, or this CPU lacks it. */
ds_rc ds_kern_init(ds_kern *k, const char *want, ds_err *err);

#endif
