/* The cases: shapes of the released model, and those of the demonstration model where they differ in kind. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernbench/bench_internal.h"
#include "format/numfmt.h"
#include "kv/layout.h"

/* The largest difference in units of the sum of the terms' sizes, coarse: the unit tests check the contract. */
static ds_rc compare(const char *op, const float *got, const float *want, size_t n, double bound, ds_err *err)
{
    double most = 0.0, size = 0.0;

    for (size_t i = 0; i < n; i++) {
        most = fmax(most, isnan(got[i]) ? INFINITY : fabs((double)got[i] - (double)want[i]));
        size = fmax(size, fabs((double)want[i]));
    }
    if (most > bound * size)
        return ds_fail(err, DS_E_FORMAT, "bench: %s differs from ref by %.2g of the largest value, more than %.2g", op, most / size, bound);
    return DS_OK;
}

static ds_rc no_memory(ds_err *err)
{
    return ds_fail(err, DS_E_NOMEM, "bench: out of memory");
}

static const char *const type_names[] = { "f32", "bf16", "fp8", "fp8rows", "mxfp4" };

static size_t mat_bytes(ds_mat_type type, size_t out, size_t in)
{
    return type == DS_MAT_BF16 ? out * in * 2 : type == DS_MAT_MXFP4 ? out * in / 2 : out * in;
}

static size_t scale_bytes(ds_mat_type type, size_t out, size_t in)
{
    return type == DS_MAT_BF16 ? 0 : type == DS_MAT_MXFP4 ? out * in / 32 : (out + 31) / 32 * (in / 32);
}

/* Weight i of as many as the cold bytes hold. Random bytes are no good as bf16, whose exponents would be anything:
 * `bf16` is one such weight, used when the type asks for it. */
static ds_mat cold_mat(const run *r, size_t i, ds_mat_type type, uint32_t in, uint64_t out, const uint8_t *scales)
{
    size_t bytes = (mat_bytes(type, out, in) + 63) / 64 * 64, n = r->cold_bytes / bytes;
    return (ds_mat){ .type = type, .in = in, .out = out, .data = r->cold + i % n * bytes, .scale = type == DS_MAT_BF16 ? NULL : scales };
}

/* ---- linear ---- */

typedef struct {
    run *r;
    ds_mat_type type;
    uint32_t in;
    uint64_t out;
    size_t rows;
    float *x, *y;
    uint8_t *scale;
} product;

static void product_once(void *arg, size_t rep)
{
    product *p = arg;
    ds_mat w = cold_mat(p->r, rep, p->type, p->in, p->out, p->scale);
    p->r->k.linear(&p->r->e, &(ds_op_linear){
                                 .y = p->y, .x = p->x, .w = &w, .rows = p->rows, .ldx = p->in, .ldy = p->out, .groups = 1, .round = true });
}

static ds_rc check_product(product *p, ds_err *err)
{
    enum { OUT = 48 };
    run *r = p->r;
    size_t rows = p->rows < 5 ? p->rows : 5;
    float *want = take_zeroed(rows, OUT * sizeof *want), *got = take_zeroed(rows, OUT * sizeof *got);
    ds_mat w = cold_mat(r, 0, p->type, p->in, OUT, p->scale);
    ds_op_linear a = { .y = want, .x = p->x, .w = &w, .rows = rows, .ldx = p->in, .ldy = OUT, .groups = 1 };
    ds_rc rc = want && got ? DS_OK : no_memory(err);

    if (rc == DS_OK) {
        r->ref.linear(&r->e, &a);
        a.y = got;
        r->k.linear(&r->e, &a);
        rc = compare("linear", got, want, rows * OUT, 1e-4, err);
    }
    free(want);
    free(got);
    return rc;
}

ds_rc bench_products(run *r, bool gemv, ds_err *err)
{
    static const ds_mat_type types[] = { DS_MAT_MXFP4, DS_MAT_FP8_32X32, DS_MAT_BF16 };
    static const size_t counts[] = { 1, 8, 64 };
    ds_rc rc = DS_OK;

    for (size_t t = 0; t < 3 && rc == DS_OK; t++)
        for (size_t n = gemv ? 0 : 1; n < (gemv ? 1 : 3) && rc == DS_OK; n++) {
            product p = { .r = r, .type = types[t], .in = 5120, .out = 4608, .rows = counts[n] };
            p.x = take_zeroed(p.rows * p.in, sizeof *p.x);
            p.y = take_zeroed(p.rows * p.out, sizeof *p.y);
            p.scale = take_zeroed(scale_bytes(DS_MAT_MXFP4, p.out, p.in) + 1, 1);
            if (p.x && p.y && p.scale) {
                for (size_t i = 0; i < p.rows * p.in; i++)
                    p.x[i] = random_float(r);
                memset(p.scale, 118, scale_bytes(DS_MAT_MXFP4, p.out, p.in));
                for (int bf16 = 0; bf16 < 2 && rc == DS_OK && !r->stopped; bf16++) {
                    r->e.bf16 = bf16;
                    rc = check_product(&p, err);
                    ds_bench_case c = { .op = gemv ? "gemv" : "gemm", .act = bf16 ? "bf16" : "f32" };
                    snprintf(c.shape, sizeof c.shape, "%s %llux%u rows=%zu", type_names[p.type], (unsigned long long)p.out, p.in, p.rows);
                    /* one row: the weight's bytes, read once; more: two operations for each weight and row */
                    double bytes = (double)(mat_bytes(p.type, p.out, p.in) + scale_bytes(p.type, p.out, p.in));
                    double flops = 2.0 * (double)p.out * p.in * (double)p.rows;
                    if (rc == DS_OK)
                        time_case(r, &c, product_once, &p, gemv ? bytes : flops, gemv ? ROOF_READ : (bf16 ? ROOF_BF16 : ROOF_FMA));
                }
            } else {
                rc = no_memory(err);
            }
            free(p.x);
            free(p.y);
            free(p.scale);
        }
    r->e.bf16 = false;
    return rc;
}

/* ---- experts ---- */

enum { EXPERTS = 16, TOP = 6 };

typedef struct {
    run *r;
    uint32_t d, inner;
    size_t rows;
    float *x, *shared, *part, *y, *w;
    int32_t *sel;
    uint8_t *scale;
    ds_mat mat[3][EXPERTS];
} moe;

static void moe_with(moe *m, size_t rep, const ds_kern *k)
{
    size_t n = 0;

    for (size_t x = 0; x < EXPERTS; x++) /* other bytes each time */
        for (int i = 0; i < 3; i++)
            m->mat[i][x] =
                cold_mat(m->r, rep * 3 * EXPERTS + n++, DS_MAT_MXFP4, i == 2 ? m->inner : m->d, i == 2 ? m->d : m->inner, m->scale);
    k->experts_part(&m->r->e, &(ds_op_experts_part){ .part = m->part,
                                                     .x = m->x,
                                                     .w1 = m->mat[0],
                                                     .w3 = m->mat[1],
                                                     .w2 = m->mat[2],
                                                     .sel = m->sel,
                                                     .w = m->w,
                                                     .rows = m->rows,
                                                     .d = m->d,
                                                     .inner = m->inner,
                                                     .n = EXPERTS,
                                                     .k = TOP,
                                                     .limit = 10.0f });
    k->experts_sum(&m->r->e, &(ds_op_experts_sum){ .y = m->y, .part = m->part, .shared = m->shared, .rows = m->rows, .d = m->d, .k = TOP });
}

static void moe_once(void *arg, size_t rep)
{
    moe *m = arg;
    moe_with(m, rep, &m->r->k);
}

/* The first row against ref. */
static ds_rc check_moe(moe *m, ds_err *err)
{
    run *r = m->r;
    size_t rows = m->rows;
    float *want = take_zeroed(m->d, sizeof *want);
    ds_rc rc = want ? DS_OK : no_memory(err);

    if (rc == DS_OK) {
        moe ref = *m;
        ref.rows = m->rows = 1;
        ref.y = want;
        moe_with(&ref, 0, &r->ref);
        moe_with(m, 0, &r->k);
        rc = compare("experts", m->y, want, m->d, r->e.bf16 ? 0.02 : 1e-4, err);
    }
    m->rows = rows;
    free(want);
    return rc;
}

ds_rc bench_experts(run *r, ds_err *err)
{
    static const struct {
        uint32_t d, inner;
        size_t rows;
    } cases[] = { { 5120, 2304, 1 }, { 5120, 2304, 32 }, { 384, 256, 1 }, { 384, 256, 256 } };
    ds_rc rc = DS_OK;

    for (size_t i = 0; i < sizeof cases / sizeof *cases && rc == DS_OK; i++) {
        moe m = { .r = r, .d = cases[i].d, .inner = cases[i].inner, .rows = cases[i].rows };
        size_t n = m.rows * m.d, one = (size_t)m.d * m.inner;
        m.x = take_zeroed(n, sizeof *m.x);
        m.y = take_zeroed(n, sizeof *m.y);
        m.shared = take_zeroed(n, sizeof *m.shared);
        m.part = take_zeroed(n * TOP, sizeof *m.part);
        m.w = take_zeroed(m.rows * TOP, sizeof *m.w);
        m.sel = take_zeroed(m.rows * TOP, sizeof *m.sel);
        m.scale = take_zeroed(one / 32, 1);
        if (m.x && m.y && m.shared && m.part && m.w && m.sel && m.scale) {
            for (size_t k = 0; k < n; k++)
                m.x[k] = random_float(r);
            for (size_t k = 0; k < m.rows; k++)
                for (uint32_t t = 0; t < TOP; t++) {
                    m.sel[k * TOP + t] = (int32_t)((k * 7 + t * 3) % EXPERTS);
                    m.w[k * TOP + t] = 0.25f;
                }
            memset(m.scale, 116, one / 32);
            for (int bf16 = 0; bf16 < 2 && rc == DS_OK && !r->stopped; bf16++) {
                size_t active = m.rows * TOP < EXPERTS ? m.rows * TOP : EXPERTS;
                bool bytes = m.rows == 1;
                ds_bench_case c = { .op = "experts", .act = bf16 ? "bf16" : "f32" };
                r->e.bf16 = bf16;
                rc = check_moe(&m, err);
                snprintf(c.shape, sizeof c.shape, "mxfp4 d=%u inner=%u top %d of %d rows=%zu", m.d, m.inner, TOP, EXPERTS, m.rows);
                /* three matrices: the bytes of the chosen ones, or two operations for each weight, row and rank */
                double work = bytes ? 3.0 * (double)active * (double)one * 17 / 32 : 6.0 * (double)one * (double)(m.rows * TOP);
                if (rc == DS_OK)
                    time_case(r, &c, moe_once, &m, work, bytes ? ROOF_READ : (bf16 ? ROOF_BF16 : ROOF_FMA));
            }
        } else {
            rc = no_memory(err);
        }
        free(m.x);
        free(m.y);
        free(m.shared);
        free(m.part);
        free(m.w);
        free(m.sel);
        free(m.scale);
    }
    r->e.bf16 = false;
    return rc;
}

/* ---- a sequence with a cache ---- */

enum { BLOCK = DS_KV_BLOCK_TOKENS };

typedef struct {
    run *r;
    ds_step st;
    int32_t *pos, pos0, zero;
    uint32_t *seq, *blocks, row0, count, slot;
    uint8_t *kv, *ring, *rec;
    float *q, *o, *g, *sink, *want;
    uint8_t *iq;
    int32_t *sel;
    uint32_t *n_sel;
    uint32_t heads, dim, window, topk, entries, rows;
} cached;

static void free_cached(cached *c)
{
    void *all[] = { c->pos, c->seq, c->blocks, c->kv, c->ring, c->rec, c->q, c->o, c->g, c->sink, c->want, c->iq, c->sel, c->n_sel };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static bool make_cached(cached *c, size_t rec_bytes)
{
    uint32_t n_blocks = (c->entries + BLOCK - 1) / BLOCK;
    size_t rows = c->rows, D = c->dim;
    run *r = c->r;

    c->pos = take_zeroed(rows, sizeof *c->pos);
    c->seq = take_zeroed(rows, sizeof *c->seq);
    c->blocks = take_zeroed(n_blocks, sizeof *c->blocks);
    c->kv = take_zeroed((size_t)n_blocks * BLOCK, rec_bytes);
    c->ring = take_zeroed(c->window + 1, DS_WIN_REC(D));
    c->rec = take_zeroed(rows, DS_WIN_REC(D));
    c->q = take_zeroed(rows * c->heads, D * sizeof *c->q);
    c->o = take_zeroed(rows * c->heads, D * sizeof *c->o);
    c->want = take_zeroed(rows * c->heads, D * sizeof *c->want);
    c->g = take_zeroed(rows * c->heads, sizeof *c->g);
    c->sink = take_zeroed(c->heads, sizeof *c->sink);
    c->iq = take_zeroed(rows * c->heads, DS_IDX_REC(D));
    c->sel = take_zeroed(rows * c->topk, sizeof *c->sel);
    c->n_sel = take_zeroed(rows, sizeof *c->n_sel);
    if (!c->pos || !c->seq || !c->blocks || !c->kv || !c->ring || !c->rec || !c->q || !c->o || !c->want || !c->g || !c->sink || !c->iq ||
        !c->sel || !c->n_sel)
        return false;
    for (uint32_t i = 0; i < n_blocks; i++)
        c->blocks[i] = i;
    c->pos0 = (int32_t)(c->entries - c->rows);
    for (uint32_t i = 0; i < c->rows; i++)
        c->pos[i] = c->pos0 + (int32_t)i;
    c->count = c->rows;
    for (size_t i = 0; i < rows * c->heads * D; i++)
        c->q[i] = random_float(r);
    for (size_t i = 0; i < rows * c->heads; i++) {
        c->g[i] = random_float(r);
        ds_kv_index_pack(c->iq + i * DS_IDX_REC(D), c->q + i * D, D);
    }
    c->st = (ds_step){ .n_rows = c->rows,
                       .n_seqs = 1,
                       .pos = c->pos,
                       .seq = c->seq,
                       .row0 = &c->row0,
                       .count = &c->count,
                       .pos0 = &c->pos0,
                       .slot = &c->slot,
                       .win_lo = &c->zero,
                       .store_from = &c->zero,
                       .blocks = c->blocks,
                       .blocks_ld = n_blocks };
    return true;
}

static ds_kv_view view_of(const cached *c, uint32_t rec_bytes)
{
    return (ds_kv_view){ .base = c->kv, .block_bytes = (size_t)BLOCK * rec_bytes, .rec_bytes = rec_bytes, .ratio = 1, .per_block = BLOCK };
}

static ds_op_attention attention_op(const cached *c)
{
    return (ds_op_attention){ .step = &c->st,
                              .o = c->o,
                              .q = c->q,
                              .sink = c->sink,
                              .scale = (float)(1.0 / sqrt(c->dim)),
                              .heads = c->heads,
                              .dim = c->dim,
                              .window = c->window,
                              .ring = { .base = c->ring, .slot_bytes = 0, .len = c->window + 1, .rec_bytes = DS_WIN_REC(c->dim) },
                              .rec = c->rec,
                              .kv = view_of(c, DS_MAIN_REC(c->dim)),
                              .sel = c->sel,
                              .n_sel = c->n_sel,
                              .topk = c->topk };
}

static void attention_once(void *arg, size_t rep)
{
    cached *c = arg;
    ds_op_attention a = attention_op(c);
    (void)rep;
    c->r->k.attention(&c->r->e, &a);
}

ds_rc bench_attention(run *r, ds_err *err)
{
    static const struct {
        uint32_t heads, dim, topk, rows;
    } cases[] = { { 64, 512, 512, 1 }, { 64, 512, 512, 8 }, { 6, 64, 128, 1 }, { 6, 64, 128, 64 } };
    ds_rc rc = DS_OK;

    for (size_t i = 0; i < sizeof cases / sizeof *cases && rc == DS_OK && !r->stopped; i++) {
        cached c = { .r = r,
                     .heads = cases[i].heads,
                     .dim = cases[i].dim,
                     .window = 128,
                     .topk = cases[i].topk,
                     .entries = 4096,
                     .rows = cases[i].rows };
        ds_bench_case b = { .op = "attention", .act = "f32" };
        if (make_cached(&c, DS_MAIN_REC(c.dim))) {
            float *v = c.o; /* room for a vector */
            for (uint32_t k = 0; k < c.entries; k++) {
                for (uint32_t d = 0; d < c.dim; d++)
                    v[d] = random_float(r);
                ds_kv_main_pack(c.kv + (size_t)k * DS_MAIN_REC(c.dim), v, c.dim);
                if (k < c.window + 1)
                    ds_kv_window_pack(c.ring + (size_t)k * DS_WIN_REC(c.dim), v, c.dim);
                if (k < c.rows)
                    ds_kv_window_pack(c.rec + (size_t)k * DS_WIN_REC(c.dim), v, c.dim);
            }
            for (uint32_t k = 0; k < c.rows; k++) {
                c.n_sel[k] = c.topk;
                for (uint32_t t = 0; t < c.topk; t++)
                    c.sel[k * c.topk + t] = (int32_t)(t * (c.entries / 2 / c.topk) + k);
            }
            ds_op_attention a = attention_op(&c);
            a.o = c.want;
            r->ref.attention(&r->e, &a);
            a.o = c.o;
            r->k.attention(&r->e, &a);
            rc = compare("attention", c.o, c.want, (size_t)c.rows * c.heads * c.dim, 1e-5, err);
            snprintf(b.shape, sizeof b.shape, "heads=%u dim=%u entries=%u+%u rows=%u", c.heads, c.dim, c.window, c.topk, c.rows);
            if (rc == DS_OK) /* scores and values: two operations each for every head, entry and dimension */
                time_case(r, &b, attention_once, &c, 4.0 * c.heads * c.dim * (double)(c.window + c.topk) * c.rows, ROOF_FMA);
        } else {
            rc = no_memory(err);
        }
        free_cached(&c);
    }
    return rc;
}

static ds_op_index_topk index_op(const cached *c)
{
    return (ds_op_index_topk){ .step = &c->st,
                               .keys = view_of(c, DS_IDX_REC(c->dim)),
                               .q = c->iq,
                               .g = c->g,
                               .g_scale = 0.01f,
                               .heads = c->heads,
                               .dim = c->dim,
                               .topk = c->topk,
                               .sel = c->sel,
                               .n_sel = c->n_sel };
}

static void index_once(void *arg, size_t rep)
{
    cached *c = arg;
    ds_op_index_topk a = index_op(c);
    (void)rep;
    c->r->k.index_topk(&c->r->e, &a);
}

/* Sums in f32 and in double may choose another entry right at the edge. */
static ds_rc check_index(cached *c, ds_err *err)
{
    run *r = c->r;
    size_t rows = c->rows, same = 0;
    int32_t *sel = c->sel, *want = take_zeroed(c->topk, sizeof *want);
    uint32_t *n_sel = c->n_sel, n_want = 0, n_got = 0;
    ds_op_index_topk a;

    if (!want)
        return no_memory(err);
    c->st.n_rows = c->count = 1;
    a = index_op(c);
    r->k.index_topk(&r->e, &a);
    n_got = n_sel[0];
    a.sel = want;
    a.n_sel = &n_want;
    r->ref.index_topk(&r->e, &a);
    c->st.n_rows = c->count = (uint32_t)rows;
    for (uint32_t i = 0, k = 0; i < n_want; i++) {
        while (k < n_got && sel[k] < want[i])
            k++;
        same += k < n_got && sel[k] == want[i];
    }
    free(want);
    if (n_got != n_want || same * 100 < (size_t)n_want * 98)
        return ds_fail(err, DS_E_FORMAT, "bench: index_topk chose %u entries, %zu of them as ref, which has %u", n_got, same, n_want);
    return DS_OK;
}

ds_rc bench_index(run *r, ds_err *err)
{
    static const struct {
        uint32_t heads, dim, topk, entries, rows;
    } cases[] = { { 32, 128, 512, 65536, 1 }, { 32, 128, 512, 16384, 16 }, { 4, 32, 128, 1024, 1 }, { 4, 32, 128, 1024, 64 } };
    ds_rc rc = DS_OK;

    for (size_t i = 0; i < sizeof cases / sizeof *cases && rc == DS_OK && !r->stopped; i++) {
        cached c = { .r = r,
                     .heads = cases[i].heads,
                     .dim = cases[i].dim,
                     .window = 1,
                     .topk = cases[i].topk,
                     .entries = cases[i].entries,
                     .rows = cases[i].rows };
        ds_bench_case b = { .op = "index_topk", .act = "-" };
        if (make_cached(&c, DS_IDX_REC(c.dim))) {
            for (uint32_t k = 0; k < c.entries; k++) {
                float v[128];
                for (uint32_t d = 0; d < c.dim; d++)
                    v[d] = random_float(r);
                ds_kv_index_pack(c.kv + (size_t)k * DS_IDX_REC(c.dim), v, c.dim);
            }
            snprintf(b.shape, sizeof b.shape, "heads=%u dim=%u entries=%u top %u rows=%u", c.heads, c.dim, c.entries, c.topk, c.rows);
            if (c.entries <= 16384)
                rc = check_index(&c, err);
            if (rc == DS_OK) /* two operations for each byte product */
                time_case(r, &b, index_once, &c, 2.0 * c.heads * c.dim * (double)c.entries * c.rows, ROOF_BYTES);
        } else {
            rc = no_memory(err);
        }
        free_cached(&c);
    }
    return rc;
}

/* ---- mHC ---- */

typedef struct {
    run *r;
    ds_op_mhc a;
} turn;

static void turn_once(void *arg, size_t rep)
{
    turn *t = arg;
    (void)rep;
    t->r->k.mhc(&t->r->e, &t->a);
}

/* x and the mix of the first row; X is left as ref makes it. */
static ds_rc check_mhc(turn *t, ds_err *err)
{
    run *r = t->r;
    size_t d = t->a.d, nd = t->a.n * d, out = (size_t)(2 + t->a.n) * t->a.n;
    float *X = take_zeroed(nd, sizeof *X), *x = take_zeroed(d, sizeof *x), *mix = take_zeroed(out, sizeof *mix);
    ds_op_mhc one = t->a, ref = t->a;
    ds_rc rc = X && x && mix ? DS_OK : no_memory(err);

    if (rc == DS_OK) {
        one.rows = ref.rows = 1;
        memcpy(X, t->a.X, nd * sizeof *X);
        ref.X = X;
        ref.x = x;
        ref.mix_out = mix;
        r->ref.mhc(&r->e, &ref);
        r->k.mhc(&r->e, &one);
        rc = compare("mhc", t->a.x, x, d, 1e-5, err);
        if (rc == DS_OK)
            rc = compare("mhc", t->a.mix_out, mix, out, 1e-4, err);
    }
    free(X);
    free(x);
    free(mix);
    return rc;
}

ds_rc bench_mhc(run *r, ds_err *err)
{
    static const struct {
        uint32_t d;
        size_t rows;
    } cases[] = { { 5120, 1 }, { 5120, 64 }, { 384, 1 }, { 384, 64 } };
    ds_rc rc = DS_OK;

    for (size_t i = 0; i < sizeof cases / sizeof *cases && rc == DS_OK && !r->stopped; i++) {
        size_t rows = cases[i].rows, d = cases[i].d, n = 4, out = (2 + n) * n;
        float *X = take_zeroed(rows * n * d, sizeof *X), *y = take_zeroed(rows * d, sizeof *y), *x = take_zeroed(rows * d, sizeof *x);
        float *mix = take_zeroed(rows * out, sizeof *mix), *fn = take_zeroed(out * n * d + out + 4, sizeof *fn);
        ds_bench_case c = { .op = "mhc", .act = "f32" };
        if (X && y && x && mix && fn) {
            float *base = fn + out * n * d, *scale = base + out;
            for (size_t k = 0; k < rows * n * d; k++)
                X[k] = random_float(r);
            for (size_t k = 0; k < out * n * d; k++)
                fn[k] = random_float(r) * 0.01f;
            for (size_t k = 0; k < rows * out; k++)
                mix[k] = 0.25f;
            for (size_t k = 0; k < 3; k++)
                scale[k] = 0.1f;
            turn t = { r,
                       { .X = X,
                         .y = y,
                         .mix_in = mix,
                         .x = x,
                         .mix_out = mix,
                         .fn = fn,
                         .base = base,
                         .scale = scale,
                         .rows = rows,
                         .n = (uint32_t)n,
                         .d = (uint32_t)d,
                         .iters = 20,
                         .eps = 1e-20f,
                         .hc_eps = 1e-6f } };
            snprintf(c.shape, sizeof c.shape, "n=4 d=%zu rows=%zu", d, rows);
            rc = check_mhc(&t, err);
            if (rc == DS_OK) /* the projection to 24 values, and 24 products and sums for each of the d columns */
                time_case(r, &c, turn_once, &t, 2.0 * (double)(rows * d) * (double)(out * n + 24), ROOF_FMA);
        } else {
            rc = no_memory(err);
        }
        free(X);
        free(y);
        free(x);
        free(mix);
        free(fn);
    }
    return rc;
}

/* ---- handing over ---- */

static void nothing(void *arg, uint32_t member, uint32_t n)
{
    (void)n;
    ((volatile char *)arg)[64 * (size_t)member]++;
}

static void pool_once(void *arg, size_t rep)
{
    run *r = arg;
    static char touched[64 * 1024];
    (void)rep;
    ds_pool_run(r->pool, nothing, touched);
}

ds_rc bench_pool(run *r, ds_err *err)
{
    ds_bench_case c = { .op = "pool", .act = "-", .shape = "empty job" };
    (void)err;
    time_case(r, &c, pool_once, r, 0.0, ROOF_NONE);
    return DS_OK;
}
