/* Vision tower and aligner (spec 3.15): pixels of one image -> embeddings of its span. */
#include <math.h>

#include "model/model_internal.h"

static const ds_kern *kern(const ds_runner *r)
{
    return ds_runner_kern(r);
}

static uint32_t cells(uint32_t n, uint32_t s)
{
    return n / s + (n % s != 0);
}

uint32_t ds_model_span(const ds_model *m, uint32_t n_h, uint32_t n_w)
{
    const uint32_t s = m->c.vision.downsample_ratio;
    uint64_t n;

    if (m->c.vision.num_hidden_layers == 0 || n_h == 0 || n_w == 0)
        return 0;
    n = (uint64_t)cells(n_h, s) * ((uint64_t)cells(n_w, s) + 1) + 2;
    return n <= m->c.vision.max_image_tokens ? (uint32_t)n : 0;
}

static void linear(ds_runner *r, float *y, const float *x, const ds_mat *w, const float *bias, size_t rows)
{
    kern(r)->linear(
        &r->e,
        &(ds_op_linear){ .y = y, .x = x, .w = w, .bias = bias, .rows = rows, .ldx = w->in, .ldy = w->out, .groups = 1, .round = true });
}

static void norm(ds_runner *r, float *y, const float *x, const float *w, size_t rows)
{
    uint32_t d = r->m->c.vision.hidden_size;
    kern(r)->rmsnorm(&r->e, &(ds_op_rmsnorm){ .y = y, .x = x, .w = w, .rows = rows, .ldx = d, .ldy = d, .dim = d, .eps = 1e-6f });
}

static void block(ds_runner *r, const ds_w_block *w, size_t n, uint32_t n_w)
{
    const ds_config *c = &r->m->c;
    uint32_t d = c->vision.hidden_size, H = c->vision.num_attention_heads, hd = d / H, inner = c->vision.intermediate_size;

    norm(r, r->v.xn, r->v.x, w->norm1, n);
    linear(r, r->v.qkv, r->v.xn, &w->qkv, w->qkv_bias, n);
    for (int part = 0; part < 2; part++)
        kern(r)->rope2d(
            &r->e,
            &(ds_op_rope2d){
                .x = r->v.qkv + (size_t)part * d, .cs = r->vit_rope, .rows = n, .ldx = 3 * (size_t)d, .heads = H, .dim = hd, .n_w = n_w });
    kern(r)->vit_attention(&r->e, &(ds_op_vit_attention){ .o = r->v.o,
                                                          .q = r->v.qkv,
                                                          .k = r->v.qkv + d,
                                                          .v = r->v.qkv + 2 * (size_t)d,
                                                          .n = n,
                                                          .ld = 3 * (size_t)d,
                                                          .heads = H,
                                                          .dim = hd,
                                                          .scale = (float)(1.0 / sqrt((double)hd)) });
    linear(r, r->v.xn, r->v.o, &w->o, w->o_bias, n);
    kern(r)->add(&r->e, &(ds_op_add){ .y = r->v.x, .x = r->v.xn, .n = n * d });

    norm(r, r->v.xn, r->v.x, w->norm2, n);
    linear(r, r->v.h, r->v.xn, &w->w1, NULL, n);
    kern(r)->swiglu(&r->e, &(ds_op_swiglu){ .h = r->v.h,
                                            .g = r->v.h,
                                            .u = r->v.h + inner,
                                            .rows = n,
                                            .ldg = 2 * (size_t)inner,
                                            .ldu = 2 * (size_t)inner,
                                            .ldh = 2 * (size_t)inner,
                                            .n = inner });
    kern(r)->linear(
        &r->e, &(ds_op_linear){
                   .y = r->v.xn, .x = r->v.h, .w = &w->w2, .rows = n, .ldx = 2 * (size_t)inner, .ldy = d, .groups = 1, .round = true });
    kern(r)->add(&r->e, &(ds_op_add){ .y = r->v.x, .x = r->v.xn, .n = n * d });
}

static void rows(ds_runner *r, float *dst, size_t ldd, const float *src, size_t lds, size_t n, size_t n_rows)
{
    kern(r)->copy(&r->e, &(ds_op_copy){ .dst = dst, .src = src, .rows = n_rows, .ldd = ldd, .lds = lds, .n = n });
}

ds_rc ds_runner_image(ds_runner *r, const float *patches, uint32_t n_h, uint32_t n_w, float *out, ds_err *err)
{
    const ds_config *c = &r->m->c;
    const ds_weights *w = &r->m->w;
    size_t n = (size_t)n_h * n_w, d = c->hidden_size;
    uint32_t s = c->vision.downsample_ratio, span = ds_model_span(r->m, n_h, n_w);
    size_t patch = 3 * (size_t)c->vision.patch_size * c->vision.patch_size;
    size_t gh, gw;
    float *a, *b;
    ds_rc rc;

    if (span == 0)
        return ds_fail(err, DS_E_ARG, "image of %u x %u patches: %s", n_w, n_h,
                       c->vision.num_hidden_layers ? "empty, or more tokens than the model takes" : "the model has no vision tower");
    if (n > r->o.max_patches)
        return ds_fail(err, DS_E_ARG, "image of %u x %u patches: this run takes at most %u", n_w, n_h, r->o.max_patches);
    gh = cells(n_h, s);
    gw = cells(n_w, s);

    rc = ds_ferry_put(&r->ferry, r->v.patches, patches, n * patch * sizeof(float), err);
    if (rc != DS_OK)
        return rc;
    linear(r, r->v.x, r->v.patches, &w->patch, w->patch_bias, n);
    for (uint32_t i = 0; i < c->vision.num_hidden_layers; i++)
        block(r, &w->block[i], n, n_w);
    norm(r, r->v.x, r->v.x, w->vision_norm, n);
    kern(r)->cells(&r->e, &(ds_op_cells){ .out = r->v.cells, .x = r->v.x, .n_h = n_h, .n_w = n_w, .dim = c->vision.hidden_size, .s = s });
    a = r->v.a;
    b = r->v.a + (size_t)r->o.max_patches * d;
    linear(r, a, r->v.cells, &w->aligner1, w->aligner1_bias, gh * gw);
    kern(r)->gelu(&r->e, &(ds_op_gelu){ .x = a, .n = gh * gw * d });
    linear(r, b, a, &w->aligner2, w->aligner2_bias, gh * gw);

    /* START, (cells, NEWLINE) x rows, END */
    rows(r, r->v.span, d, w->image_start, d, d, 1);
    rows(r, r->v.span + d, (gw + 1) * d, b, gw * d, gw * d, gh);
    rows(r, r->v.span + (gw + 1) * d, (gw + 1) * d, w->image_newline, 0, d, gh);
    rows(r, r->v.span + (span - 1) * d, d, w->image_end, d, d, 1);
    ds_observe(r, "span", -1, r->v.span, span, d * sizeof(float));
    kern(r)->finite(&r->e, &(ds_op_finite){ .x = r->v.span, .rows = span, .ldx = d, .n = d, .tag = TAG_IMAGE });
    ds_runner_ask(r, r->answer, r->done);
    rc = ds_runner_wait(r, err);
    return rc == DS_OK ? ds_ferry_get(&r->ferry, out, r->v.span, span * d * sizeof(float), err) : rc;
}
