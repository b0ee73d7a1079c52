/* One layer on a set of rows, written against the op table (spec 3.4-3.13).
 *
 * The residual update of a sublayer is left pending and done together with the next sublayer's collapse and mix, in
 * one pass over the streams, unless something between them needs X itself (Engram, a draft tap, an observer). Both
 * ways give the same bits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "format/numfmt.h"
#include "model/model_internal.h"

void ds_observe(ds_runner *r, const char *what, int layer, const void *data, size_t rows, size_t row_bytes)
{
    size_t bytes = rows * row_bytes;

    if (!r->o.observe)
        return;
    if (bytes > r->seen_cap) {
        void *grown = realloc(r->seen, bytes);
        if (!grown)
            return;
        r->seen = grown;
        r->seen_cap = bytes;
    }
    if (ds_ferry_get(&r->ferry, r->seen, data, bytes, NULL) == DS_OK)
        r->o.observe(r->o.observe_ctx, what, layer, r->seen, rows, row_bytes);
}

static const ds_kern *kern(const ds_runner *r)
{
    return ds_runner_kern(r);
}

static void linear(ds_runner *r, float *y, const float *x, const ds_mat *w, size_t rows, bool round)
{
    kern(r)->linear(&r->e,
                    &(ds_op_linear){ .y = y, .x = x, .w = w, .rows = rows, .ldx = w->in, .ldy = w->out, .groups = 1, .round = round });
}

static void norm(ds_runner *r, float *y, const float *x, const float *w, size_t rows, uint32_t dim)
{
    kern(r)->rmsnorm(
        &r->e,
        &(ds_op_rmsnorm){ .y = y, .x = x, .w = w, .rows = rows, .ldx = dim, .ldy = dim, .dim = dim, .eps = (float)r->m->c.rms_norm_eps });
}

static void rotate(ds_runner *r, const ds_rowset *s, unsigned kind, float *x, uint32_t heads, uint32_t dim, int32_t shift, bool inverse)
{
    kern(r)->rope(&r->e, &(ds_op_rope){ .x = x,
                                        .pos = s->st.pos,
                                        .tab = { r->rope[kind], r->m->c.qk_rope_head_dim },
                                        .rows = s->st.n_rows,
                                        .ldx = (size_t)heads * dim,
                                        .heads = heads,
                                        .dim = dim,
                                        .shift = shift,
                                        .inverse = inverse });
}

/* Update with run->y if `update`, then x and the next mix for hc if not NULL. */
static void mhc(ds_runner *r, ds_rowset *s, bool update, const ds_w_hc *hc)
{
    const ds_config *c = &r->m->c;
    ds_op_mhc a = { .X = s->X,
                    .y = update ? r->y : NULL,
                    .mix_in = s->mix,
                    .rows = s->st.n_rows,
                    .n = c->hc_mult,
                    .d = c->hidden_size,
                    .iters = c->hc_sinkhorn_iters,
                    .eps = (float)c->rms_norm_eps,
                    .hc_eps = (float)c->hc_eps };

    if (hc) {
        a.x = r->x;
        a.mix_out = s->mix;
        a.fn = hc->fn;
        a.base = hc->base;
        a.scale = hc->scale;
    }
    kern(r)->mhc(&r->e, &a);
}

void ds_layer_flush(ds_runner *r, ds_rowset *s)
{
    if (s->pending)
        mhc(r, s, true, NULL);
    s->pending = false;
}

static void engram(ds_runner *r, ds_rowset *s, float *X, uint32_t layer)
{
    const ds_config *c = &r->m->c;
    const ds_w_layer *w = &r->m->w.layer[layer];
    unsigned table = (unsigned)r->m->t.layer[layer].engram;

    kern(r)->engram_gather(&r->e, &(ds_op_engram_gather){ .y = r->ge,
                                                          .row = s->erow[table],
                                                          .dead = s->st.dead,
                                                          .table = &w->e_table,
                                                          .rows = s->st.n_rows,
                                                          .cols = ds_config_engram_columns(c),
                                                          .tag = TAG_ENGRAM + layer });
    linear(r, r->ekv, r->ge, &w->e_wkv, s->st.n_rows, true);
    kern(r)->engram_fuse(&r->e, &(ds_op_engram_fuse){ .X = X,
                                                      .kv = r->ekv,
                                                      .qw = w->e_q,
                                                      .kw = w->e_k,
                                                      .dead = s->st.dead,
                                                      .rows = s->st.n_rows,
                                                      .n = c->hc_mult,
                                                      .d = c->hidden_size,
                                                      .eps = (float)c->rms_norm_eps });
}

/* The window vector of xn, as records. */
static void window_record(ds_runner *r, const ds_rowset *s, uint32_t layer, const float *xn)
{
    const ds_config *c = &r->m->c;
    const ds_w_layer *w = &r->m->w.layer[layer];
    uint32_t rows = s->st.n_rows, D = c->head_dim;

    linear(r, r->kvx, xn, &w->wkv, rows, true);
    norm(r, r->kvx, r->kvx, w->kv_norm, rows, D);
    rotate(r, s, r->m->t.layer[layer].rope, r->kvx, 1, D, 0, false);
    kern(r)->win_quant(&r->e, &(ds_op_win_quant){ .rec = r->rec, .x = r->kvx, .rows = rows, .ldx = D, .dim = D });
}

static void window_store(ds_runner *r, const ds_rowset *s, uint32_t layer)
{
    size_t bytes = ds_kv_window_bytes(r->m->c.head_dim);

    ds_observe(r, "win", (int)layer, r->rec, s->st.n_rows, bytes);
    kern(r)->ring_store(
        &r->e,
        &(ds_op_ring_store){ .step = &s->st, .ring = ds_runner_ring(r, layer), .slot = s->st.slot, .src = r->rec, .src_bytes = bytes });
}

/* Compressor and index keys (spec 3.9, 3.10) from xn. */
static void compress(ds_runner *r, const ds_rowset *s, uint32_t layer, const float *xn)
{
    const ds_config *c = &r->m->c;
    const ds_w_layer *w = &r->m->w.layer[layer];
    const ds_layer_topo *t = &r->m->t.layer[layer];
    uint32_t rows = s->st.n_rows, D = c->head_dim, Di = c->index_head_dim, source = (uint32_t)t->kv_slot;
    int32_t shift = 1 - (int32_t)t->ratio; /* an entry's position is that of its first token */

    if (t->ratio == 1) {
        linear(r, r->lat, xn, &w->c_wkv, rows, true);
    } else {
        linear(r, r->ck, xn, &w->c_wkv, rows, false);
        linear(r, r->cz, xn, &w->c_wgate, rows, false);
        kern(r)->pool_pairs(&r->e, &(ds_op_pool_pairs){ .step = &s->st,
                                                        .open = ds_runner_open_ring(r, source),
                                                        .u = r->lat,
                                                        .k = r->ck,
                                                        .z = r->cz,
                                                        .dim = D,
                                                        .tag = TAG_GROUP + layer });
    }
    norm(r, r->lat, r->lat, w->c_norm, rows, D);

    linear(r, r->ik, r->lat, &w->i_wk, rows, true);
    norm(r, r->ik, r->ik, w->i_knorm, rows, Di);
    rotate(r, s, t->rope, r->ik, 1, Di, shift, false);
    kern(r)->idx_store(&r->e, &(ds_op_kv_store){ .step = &s->st, .kv = ds_runner_kv(r, DS_RECORD_INDEX, source), .x = r->ik, .dim = Di });

    rotate(r, s, t->rope, r->lat, 1, D, shift, false);
    kern(r)->kv_store(&r->e, &(ds_op_kv_store){ .step = &s->st, .kv = ds_runner_kv(r, DS_RECORD_MAIN, source), .x = r->lat, .dim = D });
}

/* Top-k list of an index source into run->sel, and the candidate pool into run->pool (spec 3.10). */
static void select_entries(ds_runner *r, const ds_rowset *s, uint32_t layer, const float *xn)
{
    const ds_config *c = &r->m->c;
    const ds_w_layer *w = &r->m->w.layer[layer];
    const ds_layer_topo *t = &r->m->t.layer[layer];
    uint32_t rows = s->st.n_rows, H = c->index_n_heads, Di = c->index_head_dim;

    linear(r, r->iq, r->qr, &w->i_wq_b, rows, true);
    rotate(r, s, t->rope, r->iq, H, Di, 0, false);
    kern(r)->idx_quant(&r->e, &(ds_op_idx_quant){ .rec = r->iqrec, .x = r->iq, .n = (size_t)rows * H, .dim = Di });
    linear(r, r->g, xn, &w->i_weights, rows, true);
    kern(r)->index_topk(&r->e, &(ds_op_index_topk){
                                   .step = &s->st,
                                   .keys = ds_runner_kv(r, DS_RECORD_INDEX, (uint32_t)t->kv_slot),
                                   .q = r->iqrec,
                                   .g = r->g,
                                   .g_scale = (float)(1.0 / sqrt((double)Di * H)),
                                   .heads = H,
                                   .dim = Di,
                                   .topk = c->index_topk,
                                   .sel = r->sel,
                                   .n_sel = r->n_sel,
                                   .pool_in = t->uses_candidates ? r->pool : NULL,
                                   .n_pool_in = t->uses_candidates ? r->n_pool : NULL,
                                   .pool_out = t->candidate_source ? r->pool : NULL,
                                   .n_pool_out = t->candidate_source ? r->n_pool : NULL,
                                   .pool_blocks = c->candidate_topk_blocks,
                                   .pool_block = c->candidate_block_size,
                               });
    ds_observe(r, "sel", (int)layer, r->sel, rows, c->index_topk * sizeof *r->sel);
    ds_observe(r, "n_sel", (int)layer, r->n_sel, rows, sizeof *r->n_sel);
    if (t->candidate_source) {
        ds_observe(r, "pool", (int)layer, r->pool, rows, c->candidate_topk_blocks * sizeof *r->pool);
        ds_observe(r, "n_pool", (int)layer, r->n_pool, rows, sizeof *r->n_pool);
    }
}

/* run->x -> run->y */
static void attention(ds_runner *r, ds_rowset *s, uint32_t layer, bool with_compress)
{
    const ds_config *c = &r->m->c;
    const ds_w_layer *w = &r->m->w.layer[layer];
    const ds_layer_topo *t = &r->m->t.layer[layer];
    uint32_t rows = s->st.n_rows, H = c->num_attention_heads, D = c->head_dim;
    bool owns_keys = t->mode == DS_MODE_FULL, owns_index = owns_keys || t->mode == DS_MODE_REINDEX;
    ds_op_attention a;

    norm(r, r->xn, r->x, w->attn_norm, rows, c->hidden_size);
    window_record(r, s, layer, r->xn);
    if (owns_keys && with_compress)
        compress(r, s, layer, r->xn);
    linear(r, r->qr, r->xn, &w->wq_a, rows, true);
    norm(r, r->qr, r->qr, w->q_norm, rows, c->q_lora_rank);
    if (owns_index)
        select_entries(r, s, layer, r->xn);
    linear(r, r->q, r->qr, &w->wq_b, rows, true);
    rotate(r, s, t->rope, r->q, H, D, 0, false);

    a = (ds_op_attention){ .step = &s->st,
                           .o = r->q,
                           .q = r->q,
                           .sink = w->sink,
                           .scale = (float)(1.0 / sqrt((double)D)),
                           .heads = H,
                           .dim = D,
                           .window = c->sliding_window,
                           .bidir = s->bidir,
                           .ring = ds_runner_ring(r, layer),
                           .rec = r->rec };
    if (t->ratio) {
        a.kv = ds_runner_kv(r, DS_RECORD_MAIN, (uint32_t)t->kv_slot);
        a.sel = r->sel;
        a.n_sel = r->n_sel;
        a.topk = c->index_topk;
    }
    kern(r)->attention(&r->e, &a);
    if (!s->bidir)
        window_store(r, s, layer);

    rotate(r, s, t->rope, r->q, H, D, 0, true);
    kern(r)->linear(&r->e, &(ds_op_linear){ .y = r->u,
                                            .x = r->q,
                                            .w = &w->wo_a,
                                            .rows = rows,
                                            .ldx = (size_t)H * D,
                                            .ldy = w->wo_a.out,
                                            .groups = c->o_groups,
                                            .round = true });
    linear(r, r->y, r->u, &w->wo_b, rows, true);
}

void ds_layer_experts(ds_runner *r, uint32_t layer, const int32_t *sel, uint32_t first, uint32_t n)
{
    const ds_config *c = &r->m->c;
    const ds_w_layer *w = &r->m->w.layer[layer];
    size_t pair = (size_t)first * w->k;

    kern(r)->experts_part(&r->e, &(ds_op_experts_part){ .part = r->part + pair * c->hidden_size,
                                                        .x = r->xn + (size_t)first * c->hidden_size,
                                                        .w1 = w->w1,
                                                        .w3 = w->w3,
                                                        .w2 = w->w2,
                                                        .sel = sel + pair,
                                                        .w = r->rw + pair,
                                                        .rows = n,
                                                        .d = c->hidden_size,
                                                        .inner = c->moe_intermediate_size,
                                                        .n = w->n_own,
                                                        .k = w->k,
                                                        .limit = (float)c->swiglu_limit });
}

/* Values and scales of a matrix of an expert. */
static bool is_sound(const ds_mat *m)
{
    static const ds_dtype values[] = {
        [DS_MAT_F32] = DS_DT_F32, [DS_MAT_BF16] = DS_DT_BF16, [DS_MAT_MXFP4] = DS_DT_I8 /* which has no bad ones */
    };

    return ds_st_first_bad(values[m->type], m->data, m->out * m->in) == UINT64_MAX &&
           (!m->scale || ds_st_first_bad(DS_DT_F8_E8M0, m->scale, m->out * (m->in / 32)) == UINT64_MAX);
}

typedef struct {
    ds_runner *r;
    uint32_t layer;
} look_job;

static void look_at(void *arg, size_t begin, size_t end, uint32_t member)
{
    ds_runner *r = ((look_job *)arg)->r;
    uint32_t layer = ((look_job *)arg)->layer, d = r->m->c.hidden_size;
    const ds_w_layer *w = &r->m->w.layer[layer];

    (void)member;
    for (size_t pair = begin; pair < end; pair++) {
        int32_t x = r->rsel[pair];
        if (x < 0 || (uint32_t)x >= w->n_own || atomic_load_explicit(&w->seen[x], memory_order_relaxed))
            continue;
        int bad = !is_sound(&w->w1[x]) ? 0 : !is_sound(&w->w3[x]) ? 1 : !is_sound(&w->w2[x]) ? 2 : -1;
        if (bad == -1) {
            atomic_store_explicit(&w->seen[x], 1, memory_order_relaxed);
            continue;
        }
        ds_exec_fault(&r->e, DS_FAULT_VALUE, TAG_EXPERT + layer, (int64_t)x * 3 + bad);
        r->rsel[pair] = -1; /* as other ops do, it goes on with zeros */
        memset(r->part + pair * d, 0, d * sizeof *r->part);
    }
}

/* The first look at experts that weren't looked at when the model was opened. `seen` says that ops read the host's
 * memory, and run at once. */
static void look_at_experts(ds_runner *r, uint32_t layer, uint32_t rows)
{
    const ds_w_layer *w = &r->m->w.layer[layer];

    if (w->seen)
        ds_exec_for(&r->e, (size_t)rows * w->k, 1, look_at, &(look_job){ r, layer });
}

/* run->x -> run->y */
static void moe(ds_runner *r, ds_rowset *s, uint32_t layer)
{
    const ds_config *c = &r->m->c;
    const ds_w_layer *w = &r->m->w.layer[layer];
    uint32_t rows = s->st.n_rows, inner = c->moe_intermediate_size;
    bool draft = layer >= c->num_hidden_layers;

    norm(r, r->xn, r->x, w->ffn_norm, rows, c->hidden_size);
    linear(r, r->rlog, r->xn, &w->gate, rows, false);
    kern(r)->route(&r->e, &(ds_op_route){ .sel = r->rsel,
                                          .w = r->rw,
                                          .logit = r->rlog,
                                          .bias = w->bias,
                                          .bias_vl = w->bias_vl,
                                          .dead = draft ? NULL : s->st.dead,
                                          .rows = rows,
                                          .experts = w->n_experts,
                                          .k = w->k,
                                          .temp = (float)c->gate_temp,
                                          .scale = (float)c->routed_scaling_factor,
                                          .norm = c->norm_topk_prob });
    ds_observe(r, "router", (int)layer, r->rsel, rows, w->k * sizeof *r->rsel);
    linear(r, r->sg, r->xn, &w->s1, rows, true);
    linear(r, r->su, r->xn, &w->s3, rows, true);
    kern(r)->swiglu(&r->e, &(ds_op_swiglu){ .h = r->sg,
                                            .g = r->sg,
                                            .u = r->su,
                                            .rows = rows,
                                            .ldg = inner,
                                            .ldu = inner,
                                            .ldh = inner,
                                            .n = inner,
                                            .limit = (float)c->swiglu_limit });
    linear(r, r->shared, r->sg, &w->s2, rows, true);
    look_at_experts(r, layer, rows);
    if (r->exchange)
        ds_ranks_experts(r, layer, rows);
    else
        ds_layer_experts(r, layer, r->rsel, 0, rows);
    kern(r)->experts_sum(
        &r->e, &(ds_op_experts_sum){ .y = r->y, .part = r->part, .shared = r->shared, .rows = rows, .d = c->hidden_size, .k = w->k });
}

void ds_layer_forward(ds_runner *r, ds_rowset *s, uint32_t layer, bool with_compress)
{
    const ds_config *c = &r->m->c;
    const ds_w_layer *w = &r->m->w.layer[layer];
    const ds_layer_topo *t = &r->m->t.layer[layer];
    bool tap = t->dspark_target >= 0 && !r->o.no_drafts;

    if (t->engram >= 0 || tap)
        ds_layer_flush(r, s);
    if (t->engram >= 0)
        engram(r, s, s->X, layer);
    if (tap)
        kern(r)->stream_mean(&r->e, &(ds_op_stream_mean){ .t = s->taps + (size_t)t->dspark_target * c->hidden_size,
                                                          .X = s->X,
                                                          .rows = s->st.n_rows,
                                                          .ldt = (size_t)c->n_dspark_targets * c->hidden_size,
                                                          .n = c->hc_mult,
                                                          .d = c->hidden_size });
    mhc(r, s, s->pending, &w->hc_attn);
    attention(r, s, layer, with_compress);
    if (!ds_step_goes_on(r, s)) {
        ds_ranks_experts(r, layer, 0);
        return;
    }
    mhc(r, s, true, &w->hc_ffn);
    moe(r, s, layer);
    s->pending = true;
    if (r->o.observe) {
        ds_layer_flush(r, s);
        ds_observe(r, "x", (int)layer, s->X, s->st.n_rows, (size_t)c->hc_mult * c->hidden_size * sizeof(float));
    }
}

void ds_layer_compress(ds_runner *r, ds_rowset *s, uint32_t layer)
{
    const ds_config *c = &r->m->c;
    const ds_w_layer *w = &r->m->w.layer[layer];
    size_t nd = (size_t)c->hc_mult * c->hidden_size;
    float *X = s->X;

    ds_layer_flush(r, s);
    if (r->m->t.layer[layer].engram >= 0) { /* the decoder rows will go through it themselves, from X as it is */
        X = r->dec.X;
        kern(r)->copy(&r->e, &(ds_op_copy){ .dst = X, .src = s->X, .rows = s->st.n_rows, .ldd = nd, .lds = nd, .n = nd });
        engram(r, s, X, layer);
    }
    kern(r)->mhc(&r->e, &(ds_op_mhc){ .X = X,
                                      .mix_in = s->mix,
                                      .x = r->x,
                                      .rows = s->st.n_rows,
                                      .n = c->hc_mult,
                                      .d = c->hidden_size,
                                      .iters = c->hc_sinkhorn_iters,
                                      .eps = (float)c->rms_norm_eps,
                                      .hc_eps = (float)c->hc_eps });
    norm(r, r->xn, r->x, w->attn_norm, s->st.n_rows, c->hidden_size);
    compress(r, s, layer, r->xn);
}

void ds_layer_draft_kv(ds_runner *r, ds_rowset *s)
{
    const ds_config *c = &r->m->c;
    uint32_t rows = s->st.n_rows;

    linear(r, r->mx, s->taps, &r->m->w.main_proj, rows, true);
    norm(r, r->mx, r->mx, r->m->w.main_norm, rows, c->hidden_size);
    ds_observe(r, "tap", -1, r->mx, rows, c->hidden_size * sizeof(float));
    for (uint32_t l = c->num_hidden_layers; l < r->m->t.n_layers; l++) {
        window_record(r, s, l, r->mx);
        window_store(r, s, l);
    }
}
