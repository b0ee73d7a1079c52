#include "format/tensors.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"

typedef struct {
    const ds_config *c;
    ds_tensor_fn *fn;
    void *arg;
    ds_err *err;
    ds_rc rc;
    char prefix[48]; /* "layers.3." */
    int16_t layer;
    int32_t expert;
} walk;

typedef struct {
    ds_tensor_form form;
    ds_tensor_kind kind;
    uint64_t rows, cols; /* rows = 0: a vector of cols */
    bool f32, optional, norm;
} desc;

/* One tensor. The suffix is ".weight" for quantisable ones, whose scale is ".scale" beside it; others give their
 * full name. */
__attribute__((format(printf, 3, 4))) static void emit(walk *k, desc d, const char *fmt, ...)
{
    ds_tensor_want w = {
        .shape = { d.rows ? d.rows : d.cols, d.rows ? d.cols : 1 },
        .ndim = d.rows ? 2 : 1,
        .form = (uint8_t)d.form,
        .kind = (uint8_t)d.kind,
        .plain_dtype = d.form == DS_FORM_I64 ? DS_DT_I64
                       : d.f32               ? DS_DT_F32
                                             : DS_DT_BF16,
        .optional = d.optional,
        .norm = d.norm,
        .layer = k->layer,
        .expert = k->expert,
    };
    char stem[DS_TENSOR_NAME_MAX - 56];
    bool scaled = d.form == DS_FORM_FP8 || d.form == DS_FORM_FP4 || d.form == DS_FORM_ROWS;
    va_list ap;

    if (k->rc != DS_OK)
        return;
    va_start(ap, fmt);
    vsnprintf(stem, sizeof stem, fmt, ap);
    va_end(ap);
    snprintf(w.name, sizeof w.name, "%s%s%s", k->prefix, stem, scaled ? ".weight" : "");
    if (scaled)
        snprintf(w.scale, sizeof w.scale, "%s%s.scale", k->prefix, stem);
    k->rc = k->fn(k->arg, &w, k->err);
}

static desc plain(ds_tensor_kind kind, uint64_t rows, uint64_t cols)
{
    return (desc){ .form = DS_FORM_PLAIN, .kind = kind, .rows = rows, .cols = cols };
}

static desc f32(ds_tensor_kind kind, uint64_t rows, uint64_t cols)
{
    return (desc){ .form = DS_FORM_PLAIN, .kind = kind, .rows = rows, .cols = cols, .f32 = true };
}

static desc norm(uint64_t n)
{
    return (desc){ .form = DS_FORM_PLAIN, .kind = DS_KIND_NORM, .cols = n, .norm = true };
}

static desc fp8(ds_tensor_kind kind, uint64_t rows, uint64_t cols)
{
    return (desc){ .form = DS_FORM_FP8, .kind = kind, .rows = rows, .cols = cols };
}

static desc fp4(uint64_t rows, uint64_t cols)
{
    return (desc){ .form = DS_FORM_FP4, .kind = DS_KIND_EXPERT, .rows = rows, .cols = cols };
}

static void walk_engram(walk *k, uint32_t table)
{
    const ds_config *c = k->c;
    uint64_t width = (uint64_t)ds_config_engram_columns(c) * c->engram_head_dim;
    desc rows = { .form = DS_FORM_ROWS, .kind = DS_KIND_ENGRAM_TABLE, .rows = c->engram_num_embeddings[table], .cols = c->engram_head_dim };

    emit(k, rows, "engram.embed");
    emit(k, fp8(DS_KIND_ENGRAM, (uint64_t)(c->hc_mult + 1) * c->hidden_size, width), "engram.wkv");
    emit(k, plain(DS_KIND_ENGRAM, c->hc_mult, c->hidden_size), "engram.q_weight");
    emit(k, plain(DS_KIND_ENGRAM, c->hc_mult, c->hidden_size), "engram.k_weight");
}

/* The set that backbone and draft blocks share; `part` is "attn" or "ffn". */
static void walk_sublayer_head(walk *k, const char *part)
{
    const ds_config *c = k->c;
    uint64_t m = ds_config_hc_rows(c);

    emit(k, f32(DS_KIND_HC, m, (uint64_t)c->hc_mult * c->hidden_size), "hc_%s_fn", part);
    emit(k, f32(DS_KIND_HC, 0, m), "hc_%s_base", part);
    emit(k, f32(DS_KIND_HC, 0, 3), "hc_%s_scale", part);
    emit(k, norm(c->hidden_size), "%s_norm.weight", part);
}

static void walk_attention(walk *k, bool owns_kv, bool owns_index, uint32_t ratio)
{
    const ds_config *c = k->c;
    uint64_t d = c->hidden_size, hd = (uint64_t)c->num_attention_heads * c->head_dim, u = (uint64_t)c->o_groups * c->o_lora_rank;

    walk_sublayer_head(k, "attn");
    emit(k, f32(DS_KIND_ATTENTION, 0, c->num_attention_heads), "attn.attn_sink");
    emit(k, fp8(DS_KIND_ATTENTION, c->q_lora_rank, d), "attn.wq_a");
    emit(k, norm(c->q_lora_rank), "attn.q_norm.weight");
    emit(k, fp8(DS_KIND_ATTENTION, hd, c->q_lora_rank), "attn.wq_b");
    emit(k, fp8(DS_KIND_ATTENTION, c->head_dim, d), "attn.wkv");
    emit(k, norm(c->head_dim), "attn.kv_norm.weight");
    emit(k, fp8(DS_KIND_ATTENTION, u, hd / c->o_groups), "attn.wo_a");
    emit(k, fp8(DS_KIND_ATTENTION, d, u), "attn.wo_b");
    if (owns_kv) {
        emit(k, plain(DS_KIND_COMPRESSOR, c->head_dim, d), "attn.compressor.wkv.weight");
        if (ratio > 1)
            emit(k, plain(DS_KIND_COMPRESSOR, c->head_dim, d), "attn.compressor.wgate.weight");
        emit(k, norm(c->head_dim), "attn.compressor.norm.weight");
    }
    if (owns_index) {
        emit(k, fp8(DS_KIND_INDEXER, (uint64_t)c->index_n_heads * c->index_head_dim, c->q_lora_rank), "attn.indexer.wq_b");
        emit(k, plain(DS_KIND_INDEXER, c->index_n_heads, d), "attn.indexer.weights_proj.weight");
    }
    if (owns_kv) {
        emit(k, plain(DS_KIND_INDEXER, c->index_head_dim, c->head_dim), "attn.indexer.wk.weight");
        emit(k, norm(c->index_head_dim), "attn.indexer.k_norm.weight");
    }
}

static void walk_moe(walk *k, uint32_t experts)
{
    const ds_config *c = k->c;
    uint64_t d = c->hidden_size, inner = c->moe_intermediate_size;
    desc bias_vl = f32(DS_KIND_ROUTER, 0, experts);

    bias_vl.optional = c->vision.num_hidden_layers == 0;
    walk_sublayer_head(k, "ffn");
    emit(k, plain(DS_KIND_ROUTER, experts, d), "ffn.gate.weight");
    emit(k, f32(DS_KIND_ROUTER, 0, experts), "ffn.gate.bias");
    emit(k, bias_vl, "ffn.gate.bias_vl");
    for (uint32_t e = 0; e < experts && k->rc == DS_OK; e++) {
        k->expert = (int32_t)e;
        emit(k, fp4(inner, d), "ffn.experts.%u.w1", e);
        emit(k, fp4(d, inner), "ffn.experts.%u.w2", e);
        emit(k, fp4(inner, d), "ffn.experts.%u.w3", e);
    }
    k->expert = -1;
    emit(k, fp8(DS_KIND_SHARED, inner, d), "ffn.shared_experts.w1");
    emit(k, fp8(DS_KIND_SHARED, d, inner), "ffn.shared_experts.w2");
    emit(k, fp8(DS_KIND_SHARED, inner, d), "ffn.shared_experts.w3");
}

static bool in_list(const uint16_t *list, uint32_t n, uint32_t layer)
{
    for (uint32_t i = 0; i < n; i++)
        if (list[i] == layer)
            return true;
    return false;
}

static void walk_backbone(walk *k)
{
    const ds_config *c = k->c;
    uint32_t table = 0;

    for (uint32_t l = 0; l < c->num_hidden_layers && k->rc == DS_OK; l++) {
        snprintf(k->prefix, sizeof k->prefix, "layers.%u.", l);
        k->layer = (int16_t)l;
        if (table < c->n_engram_layers && c->engram_layer_ids[table] == l)
            walk_engram(k, table++);
        walk_attention(k, in_list(c->kv_source_layer_ids, c->n_kv_sources, l), in_list(c->index_source_layer_ids, c->n_index_sources, l),
                       c->compress_ratios[l]);
        walk_moe(k, c->n_routed_experts);
    }
}

static void walk_drafts(walk *k)
{
    const ds_config *c = k->c;
    uint32_t n = c->num_nextn_predict_layers;
    uint64_t d = c->hidden_size;

    for (uint32_t m = 0; m < n && k->rc == DS_OK; m++) {
        snprintf(k->prefix, sizeof k->prefix, "mtp.%u.", m);
        k->layer = (int16_t)(c->num_hidden_layers + m);
        if (m == 0) {
            emit(k, fp8(DS_KIND_DRAFT, d, c->n_dspark_targets * d), "main_proj");
            emit(k, norm(d), "main_norm.weight");
        }
        walk_attention(k, false, false, 0);
        walk_moe(k, c->dspark_n_routed_experts);
        if (m == n - 1) {
            emit(k, norm(d), "norm.weight");
            emit(k, plain(DS_KIND_DRAFT, c->vocab_size, c->dspark_markov_rank), "markov_head.embed.weight");
            emit(k, plain(DS_KIND_DRAFT, c->vocab_size, c->dspark_markov_rank), "markov_head.head.weight");
            emit(k, plain(DS_KIND_DRAFT, 1, d + c->dspark_markov_rank), "confidence_head.proj.weight");
        }
    }
}

static void walk_vision(walk *k)
{
    const ds_config *c = k->c;
    uint64_t d = c->hidden_size, v = c->vision.hidden_size, inner = c->vision.intermediate_size, p = c->vision.patch_size,
             s = c->vision.downsample_ratio;
    desc vnorm = norm(v);

    if (c->vision.num_hidden_layers == 0)
        return;
    vnorm.kind = DS_KIND_VISION;
    emit(k, plain(DS_KIND_EMBED, 0, d), "image_start");
    emit(k, plain(DS_KIND_EMBED, 0, d), "image_end");
    emit(k, plain(DS_KIND_EMBED, 0, d), "image_newline");
    emit(k, plain(DS_KIND_VISION, v, 3 * p * p), "vision.patch_embed.proj.weight");
    emit(k, plain(DS_KIND_VISION, 0, v), "vision.patch_embed.proj.bias");
    for (uint32_t b = 0; b < c->vision.num_hidden_layers && k->rc == DS_OK; b++) {
        emit(k, vnorm, "vision.blocks.%u.norm1.weight", b);
        emit(k, plain(DS_KIND_VISION, 3 * v, v), "vision.blocks.%u.attn.wqkv.weight", b);
        emit(k, plain(DS_KIND_VISION, 0, 3 * v), "vision.blocks.%u.attn.wqkv.bias", b);
        emit(k, plain(DS_KIND_VISION, v, v), "vision.blocks.%u.attn.wo.weight", b);
        emit(k, plain(DS_KIND_VISION, 0, v), "vision.blocks.%u.attn.wo.bias", b);
        emit(k, vnorm, "vision.blocks.%u.norm2.weight", b);
        emit(k, plain(DS_KIND_VISION, 2 * inner, v), "vision.blocks.%u.mlp.w1.weight", b);
        emit(k, plain(DS_KIND_VISION, v, inner), "vision.blocks.%u.mlp.w2.weight", b);
    }
    emit(k, vnorm, "vision.norm.weight");
    emit(k, plain(DS_KIND_VISION, d, v * s * s), "aligner.w1.weight");
    emit(k, plain(DS_KIND_VISION, 0, d), "aligner.w1.bias");
    emit(k, plain(DS_KIND_VISION, d, d), "aligner.w2.weight");
    emit(k, plain(DS_KIND_VISION, 0, d), "aligner.w2.bias");
}

static void walk_engram_constants(walk *k)
{
    const ds_config *c = k->c;
    desc d = { .form = DS_FORM_I64, .kind = DS_KIND_ENGRAM, .optional = true };

    if (c->n_engram_layers == 0)
        return;
    d.cols = c->vocab_size;
    emit(k, d, "engram.token_map");
    d.rows = c->n_engram_layers;
    d.cols = ds_config_engram_columns(c);
    emit(k, d, "engram.primes");
    emit(k, d, "engram.offsets");
    d.cols = c->engram_max_ngram_size;
    emit(k, d, "engram.multipliers");
}

ds_rc ds_tensors_each(const ds_config *c, ds_tensor_fn *fn, void *arg, ds_err *err)
{
    walk k = { .c = c, .fn = fn, .arg = arg, .err = err, .rc = DS_OK, .layer = -1, .expert = -1 };

    emit(&k, plain(DS_KIND_EMBED, c->vocab_size, c->hidden_size), "embed.weight");
    walk_backbone(&k);
    k.prefix[0] = '\0';
    k.layer = -1;
    emit(&k, norm(c->hidden_size), "norm.weight");
    emit(&k, plain(DS_KIND_EMBED, c->vocab_size, c->hidden_size), "head.weight");
    walk_drafts(&k);
    k.prefix[0] = '\0';
    k.layer = -1;
    walk_vision(&k);
    walk_engram_constants(&k);
    return k.rc;
}

void ds_want_storage(const ds_tensor_want *w, bool quantised, ds_dtype *dtype, uint64_t shape[2], uint64_t scale_shape[2])
{
    shape[0] = w->shape[0];
    shape[1] = w->shape[1];
    scale_shape[0] = scale_shape[1] = 0;
    *dtype = (ds_dtype)w->plain_dtype;
    if (!quantised || w->form == DS_FORM_PLAIN || w->form == DS_FORM_I64)
        return;
    *dtype = w->form == DS_FORM_FP4 ? DS_DT_I8 : DS_DT_F8_E4M3;
    if (w->form == DS_FORM_FP4)
        shape[1] /= 2;
    scale_shape[0] = w->form == DS_FORM_FP8 ? (w->shape[0] + 31) / 32 : w->shape[0];
    scale_shape[1] = (w->shape[1] + 31) / 32;
}

static const char *show_shape(char buf[96], const uint64_t *shape, unsigned ndim)
{
    size_t at = 1;
    strcpy(buf, "[");
    for (unsigned i = 0; i < ndim && at < 80; i++)
        at += (size_t)snprintf(buf + at, 96 - at, "%s%" PRIu64, i ? ", " : "", shape[i]);
    snprintf(buf + (at < 90 ? at : 90), 6, "]");
    return buf;
}

static bool same_shape(const ds_tensor *t, const uint64_t *shape, unsigned ndim)
{
    return t->ndim == ndim && memcmp(t->shape, shape, ndim * sizeof *shape) == 0;
}

/* The file's name without its directory, which callers put in front. */
static const char *file_of(char buf[112], const ds_st *st, const ds_tensor *t)
{
    const char *path = ds_st_shard_path(st, t->shard), *slash = strrchr(path, '/');
    return ds_file_label(buf, 112, slash ? slash + 1 : path);
}

static ds_rc wrong_shape(const ds_st *st, const ds_tensor *t, const uint64_t *shape, unsigned ndim, ds_err *err)
{
    char have[96], want[96], file[112];
    return ds_fail(err, DS_E_FORMAT, "tensor %s: %s has shape %s, must be %s (in %s)", t->name, ds_dtype_name((ds_dtype)t->dtype),
                   show_shape(have, t->shape, t->ndim), show_shape(want, shape, ndim), file_of(file, st, t));
}

static ds_rc wrong_dtype(const ds_st *st, const ds_tensor *t, const char *want, ds_err *err)
{
    char file[112];
    const char *have = t->dtype == DS_DT_OTHER ? "that is not known" : ds_dtype_name((ds_dtype)t->dtype);
    return ds_fail(err, DS_E_FORMAT, "tensor %s: has dtype %s, must be %s (in %s)", t->name, have, want, file_of(file, st, t));
}

/* A name as the specification has it, or with `model.` in front of it; never both. *t is NULL when there is neither. */
static ds_rc find_named(const ds_tensor **t, const ds_st *st, const char *name, ds_err *err)
{
    char longer[DS_TENSOR_NAME_MAX + 8];
    const ds_tensor *prefixed;

    snprintf(longer, sizeof longer, "model.%s", name);
    prefixed = ds_st_find(st, longer);
    *t = ds_st_find(st, name);
    if (*t && prefixed)
        return ds_fail(err, DS_E_FORMAT, "tensor %s: is there as %s, too; one of them must go", name, longer);
    if (prefixed)
        *t = prefixed;
    return DS_OK;
}

ds_rc ds_weight_find(ds_weight *out, const ds_st *st, const ds_tensor_want *w, ds_err *err)
{
    const ds_tensor *t = NULL, *scale = NULL;
    static const char *const allowed[] = {
        [DS_FORM_PLAIN] = "BF16 or F32",
        [DS_FORM_FP8] = "F8_E4M3 with a scale, or BF16",
        [DS_FORM_FP4] = "I8 with a scale, or BF16",
        [DS_FORM_ROWS] = "F8_E4M3 with a scale, or BF16",
        [DS_FORM_I64] = "I64",
    };
    uint64_t shape[2], scale_shape[2];
    ds_dtype dtype;

    ds_rc rc;

    *out = (ds_weight){ .dtype = DS_DT_OTHER };
    rc = find_named(&t, st, w->name, err);
    if (rc == DS_OK && w->scale[0])
        rc = find_named(&scale, st, w->scale, err);
    if (rc != DS_OK)
        return rc;
    if (!t)
        return w->optional ? DS_OK : ds_fail(err, DS_E_FORMAT, "tensor %s is missing", w->name);
    ds_want_storage(w, true, &dtype, shape, scale_shape);
    bool quantised = scale_shape[0] && t->dtype == dtype;
    bool plain_ok = t->dtype == DS_DT_BF16 || (t->dtype == DS_DT_F32 && w->form == DS_FORM_PLAIN);
    if (w->form == DS_FORM_I64 ? t->dtype != DS_DT_I64 : !quantised && !plain_ok)
        return wrong_dtype(st, t, allowed[w->form], err);
    if (!same_shape(t, quantised ? shape : w->shape, w->ndim))
        return wrong_shape(st, t, quantised ? shape : w->shape, w->ndim, err);
    if (quantised && !scale)
        return ds_fail(err, DS_E_FORMAT, "tensor %s is missing; %s is %s and needs it", w->scale, t->name, ds_dtype_name(dtype));
    if (!quantised && scale)
        return ds_fail(err, DS_E_FORMAT, "tensor %s: a scale beside %s values; only quantised tensors have one", w->scale,
                       ds_dtype_name((ds_dtype)t->dtype));
    if (scale && scale->dtype != DS_DT_F8_E8M0)
        return wrong_dtype(st, scale, "F8_E8M0", err);
    if (scale && !same_shape(scale, scale_shape, 2))
        return wrong_shape(st, scale, scale_shape, 2, err);
    *out = (ds_weight){
        .dtype = (ds_dtype)t->dtype,
        .form = (uint8_t)(quantised || w->form == DS_FORM_I64 ? w->form : DS_FORM_PLAIN),
        .data = t->data,
        .scale = scale ? scale->data : NULL,
        .tensor = t,
        .scale_tensor = scale,
        .rows = w->ndim == 2 ? w->shape[0] : 1,
        .cols = w->ndim == 2 ? w->shape[1] : w->shape[0],
    };
    return DS_OK;
}

static ds_rc check_one(void *arg, const ds_tensor_want *w, ds_err *err)
{
    ds_weight found;
    return ds_weight_find(&found, arg, w, err);
}

ds_rc ds_tensors_check(const ds_config *c, const ds_st *st, ds_err *err)
{
    ds_rc rc = ds_tensors_each(c, check_one, (void *)st, err);
    return rc == DS_OK ? ds_tensors_check_quantisation(c, st, err) : rc;
}

typedef struct {
    const ds_st *st;
    uint64_t linears, experts;                     /* quantisable */
    uint64_t quantised_linears, quantised_experts; /* stored so */
} quant_count;

static ds_rc count_quantised(void *arg, const ds_tensor_want *w, ds_err *err)
{
    quant_count *q = arg;
    ds_weight found;
    ds_rc rc;

    if (w->form != DS_FORM_FP8 && w->form != DS_FORM_FP4)
        return DS_OK;
    rc = ds_weight_find(&found, q->st, w, err);
    if (rc != DS_OK || !found.tensor)
        return rc;
    if (w->form == DS_FORM_FP8) {
        q->linears++;
        q->quantised_linears += found.form == DS_FORM_FP8;
    } else {
        q->experts++;
        q->quantised_experts += found.form == DS_FORM_FP4;
    }
    return DS_OK;
}

ds_rc ds_tensors_check_quantisation(const ds_config *c, const ds_st *st, ds_err *err)
{
    quant_count q = { .st = st };
    ds_rc rc;

    if (!c->has_quantization_config)
        return DS_OK;
    rc = ds_tensors_each(c, count_quantised, &q, err);
    if (rc != DS_OK)
        return rc;
    if (q.linears && !q.quantised_linears)
        return ds_fail(err, DS_E_FORMAT, "config.json: quantization_config says that linears are FP8; all %" PRIu64 " are BF16", q.linears);
    if (c->has_expert_dtype && q.experts && !q.quantised_experts)
        return ds_fail(err, DS_E_FORMAT,
                       "config.json: quantization_config.expert_dtype says that experts are FP4; all %" PRIu64 " are BF16", q.experts);
    return DS_OK;
}

ds_rc ds_weight_check_values(const ds_weight *w, ds_err *err)
{
    const ds_tensor *both[] = { w->tensor, w->scale_tensor };

    for (int i = 0; i < 2; i++) {
        const ds_tensor *t = both[i];
        if (!t)
            continue;
        uint64_t size = ds_dtype_bytes((ds_dtype)t->dtype), bad = ds_st_first_bad((ds_dtype)t->dtype, t->data, t->bytes / size);
        if (bad != UINT64_MAX)
            return ds_fail(err, DS_E_FORMAT, "tensor %s: element %" PRIu64 " is NaN or infinite", t->name, bad);
    }
    return DS_OK;
}

const char *ds_kind_name(unsigned kind)
{
    static const char *const name[DS_N_KINDS] = {
        [DS_KIND_EMBED] = "embedding",
        [DS_KIND_NORM] = "norm",
        [DS_KIND_HC] = "mhc",
        [DS_KIND_ATTENTION] = "attention",
        [DS_KIND_COMPRESSOR] = "compressor",
        [DS_KIND_INDEXER] = "indexer",
        [DS_KIND_ROUTER] = "router",
        [DS_KIND_EXPERT] = "experts",
        [DS_KIND_SHARED] = "shared expert",
        [DS_KIND_ENGRAM_TABLE] = "engram table",
        [DS_KIND_ENGRAM] = "engram",
        [DS_KIND_DRAFT] = "draft",
        [DS_KIND_VISION] = "vision",
    };
    return kind < DS_N_KINDS ? name[kind] : "?";
}

/* ---- Engram's optional tensors ---- */

/* Finds one of them: *t is NULL when it isn't there. */
static ds_rc find_i64(const ds_tensor **t, const char *name, uint64_t rows, uint64_t cols, const ds_st *st, ds_err *err)
{
    uint64_t shape[2] = { rows ? rows : cols, cols };
    unsigned ndim = rows ? 2 : 1;

    ds_rc rc = find_named(t, st, name, err);
    if (rc != DS_OK || !*t)
        return rc;
    if ((*t)->dtype != DS_DT_I64)
        return wrong_dtype(st, *t, "I64", err);
    return same_shape(*t, shape, ndim) ? DS_OK : wrong_shape(st, *t, shape, ndim, err);
}

static int64_t i64_at(const ds_tensor *t, uint64_t i)
{
    int64_t v;
    memcpy(&v, (const char *)t->data + i * sizeof v, sizeof v);
    return v;
}

ds_rc ds_engram_token_map(int32_t *map, bool *present, const ds_config *c, const ds_st *st, ds_err *err)
{
    const ds_tensor *t;
    ds_rc rc = find_i64(&t, "engram.token_map", 0, c->vocab_size, st, err);

    *present = rc == DS_OK && t;
    if (!*present)
        return rc;
    for (uint32_t i = 0; i < c->vocab_size; i++) {
        int64_t v = i64_at(t, i);
        if (v < 0 || v >= (int64_t)c->engram_compressed_vocab_size)
            return ds_fail(err, DS_E_FORMAT, "tensor %s: element %u is %" PRId64 "; classes are 0 to %u", t->name, i, v,
                           c->engram_compressed_vocab_size - 1);
        map[i] = (int32_t)v;
    }
    return DS_OK;
}

ds_rc ds_engram_load(ds_engram_hash *h, const ds_config *c, const ds_st *st, uint32_t table, int32_t pad_class, ds_err *err)
{
    uint32_t columns = ds_config_engram_columns(c);
    const ds_tensor *t;
    ds_rc rc;

    ds_engram_init(h, c, table, pad_class);
    const struct {
        const char *name;
        const uint64_t *derived;
    } equal[] = { { "engram.primes", h->prime }, { "engram.offsets", h->offset } };
    for (int k = 0; k < 2; k++) {
        rc = find_i64(&t, equal[k].name, c->n_engram_layers, columns, st, err);
        if (rc != DS_OK)
            return rc;
        for (uint32_t i = 0; t && i < columns; i++)
            if (i64_at(t, table * columns + i) != (int64_t)equal[k].derived[i])
                return ds_fail(err, DS_E_FORMAT, "tensor %s: element [%u, %u] is %" PRId64 ", must be %" PRIu64, t->name, table, i,
                               i64_at(t, table * columns + i), equal[k].derived[i]);
    }
    rc = find_i64(&t, "engram.multipliers", c->n_engram_layers, c->engram_max_ngram_size, st, err);
    if (rc != DS_OK || !t)
        return rc;
    for (uint32_t i = 0; i < c->engram_max_ngram_size; i++) {
        int64_t v = i64_at(t, table * c->engram_max_ngram_size + i);
        if (v < 1 || v > INT64_MAX / (int64_t)c->engram_compressed_vocab_size)
            return ds_fail(err, DS_E_FORMAT, "tensor %s: element [%u, %u] is %" PRId64 "; products with a class must stay below 2^63",
                           t->name, table, i, v);
        h->multiplier[i] = (uint64_t)v;
    }
    return DS_OK;
}
