/* config.json -> ds_config. Three passes: fields by table (type and range), lists, then the rules that join several
 * fields. */
#include "format/config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "format/engram.h"
#include "base/file.h"

typedef enum { F_U32, F_REAL, F_BOOL } field_type;

typedef struct {
    const char *name;
    field_type type;
    size_t offset;
    double min, max; /* F_U32 and F_REAL */
    bool optional;   /* absent: the value stays as it was */
} field;

#define U32(f, lo, hi)                                   \
    {                                                    \
#f, F_U32, offsetof(ds_config, f), lo, hi, false \
    }
#define REAL(f, lo, hi)                                   \
    {                                                     \
#f, F_REAL, offsetof(ds_config, f), lo, hi, false \
    }
#define FLAG(f)                                         \
    {                                                   \
#f, F_BOOL, offsetof(ds_config, f), 0, 0, false \
    }
#define END                         \
    {                               \
        NULL, F_U32, 0, 0, 0, false \
    }

#define DIM_MAX 65536 /* hidden sizes and ranks */
#define VOCAB_MAX 4194304
#define CONTEXT_MAX 16777216
#define REAL_MAX 1e30

static const field text_fields[] = {
    U32(vocab_size, 1, VOCAB_MAX),
    U32(hidden_size, 1, DIM_MAX),
    U32(num_hidden_layers, 1, DS_CONFIG_MAX_LAYERS),
    U32(num_attention_heads, 1, 1024),
    U32(head_dim, 1, 4096),
    U32(qk_rope_head_dim, 1, 4096),
    U32(q_lora_rank, 1, DIM_MAX),
    U32(o_groups, 1, 1024),
    U32(o_lora_rank, 1, DIM_MAX),
    REAL(rms_norm_eps, 1e-37, 1), /* a row of zeros must stay finite in f32 */
    { "max_position_embeddings", F_U32, offsetof(ds_config, max_position_embeddings), 1, CONTEXT_MAX, true },
    REAL(rope_theta, 1, REAL_MAX),
    REAL(compress_rope_theta, 1, REAL_MAX),
    U32(sliding_window, 1, 65536),
    U32(index_n_heads, 1, 1024),
    U32(index_head_dim, 1, 4096),
    U32(index_topk, 1, 65536),
    U32(hc_mult, 1, DS_CONFIG_MAX_HC),
    U32(hc_sinkhorn_iters, 1, 1000),
    REAL(hc_eps, 0, 1),
    U32(n_routed_experts, 1, 8192),
    U32(num_experts_per_tok, 1, 256),
    U32(moe_intermediate_size, 1, DIM_MAX),
    FLAG(norm_topk_prob),
    REAL(routed_scaling_factor, -REAL_MAX, REAL_MAX),
    REAL(swiglu_limit, -REAL_MAX, REAL_MAX),
    { "gate_temp", F_REAL, offsetof(ds_config, gate_temp), 0, REAL_MAX, true },
    { "num_nextn_predict_layers", F_U32, offsetof(ds_config, num_nextn_predict_layers), 0, DS_CONFIG_MAX_DRAFT_LAYERS, true },
    END,
};

static const field rope_fields[] = {
    { "factor", F_REAL, offsetof(ds_config, rope_factor), 1e-6, 1e9, false },
    { "original_max_position_embeddings", F_U32, offsetof(ds_config, rope_original_max_position_embeddings), 0, CONTEXT_MAX, false },
    { "beta_fast", F_REAL, offsetof(ds_config, rope_beta_fast), 1e-6, 1e9, false },
    { "beta_slow", F_REAL, offsetof(ds_config, rope_beta_slow), 1e-6, 1e9, false },
    END,
};

static const field candidate_fields[] = {
    U32(candidate_topk_blocks, 1, CONTEXT_MAX),
    U32(candidate_block_size, 1, 65536),
    END,
};

static const field engram_fields[] = {
    U32(engram_max_ngram_size, 2, DS_CONFIG_MAX_ENGRAM_NGRAM),
    U32(engram_vocab_size, 2, 1u << 30),
    U32(engram_n_heads, 1, DS_CONFIG_MAX_ENGRAM_COLUMNS),
    U32(engram_head_dim, 1, 4096),
    U32(engram_pad_token_id, 0, VOCAB_MAX),
    U32(engram_compressed_vocab_size, 1, VOCAB_MAX),
    END,
};

static const field dspark_fields[] = {
    U32(dspark_block_size, 1, 64),         U32(dspark_noise_token_id, 0, VOCAB_MAX), U32(dspark_markov_rank, 1, DIM_MAX),
    U32(dspark_n_routed_experts, 1, 8192), U32(dspark_num_experts_per_tok, 1, 256),  END,
};

static const field vision_fields[] = {
    { "hidden_size", F_U32, offsetof(ds_config, vision.hidden_size), 1, DIM_MAX, false },
    { "num_attention_heads", F_U32, offsetof(ds_config, vision.num_attention_heads), 1, 1024, false },
    { "intermediate_size", F_U32, offsetof(ds_config, vision.intermediate_size), 1, DIM_MAX, false },
    { "patch_size", F_U32, offsetof(ds_config, vision.patch_size), 1, 256, false },
    { "rope_theta", F_REAL, offsetof(ds_config, vision.rope_theta), 1, REAL_MAX, false },
    { "downsample_ratio", F_U32, offsetof(ds_config, vision.downsample_ratio), 1, 16, false },
    { "max_image_tokens", F_U32, offsetof(ds_config, vision.max_image_tokens), 4, 65536, false },
    { "min_pixels", F_U32, offsetof(ds_config, vision.min_pixels), 1, 1u << 30, false },
    END,
};

/* Fields that must have one value if they are there at all. `text` is the JSON text of scalars. */
typedef struct {
    const char *name;
    ds_json_type type;
    const char *value;
    bool required;
} fixed;

static const fixed text_fixed[] = {
    { "model_type", DS_JSON_STRING, "deepseek_v41_text", false },
    { "num_key_value_heads", DS_JSON_NUMBER, "1", false },
    { "hidden_act", DS_JSON_STRING, "silu", false },
    { "attention_bias", DS_JSON_FALSE, "false", false },
    { "tie_word_embeddings", DS_JSON_FALSE, "false", false },
    { "topk_method", DS_JSON_STRING, "noaux_tc", false },
    { "scoring_func", DS_JSON_STRING, "sqrtsoftplus", true },
    { "n_shared_experts", DS_JSON_NUMBER, "1", true },
    /* Read by the released engine, in no released configuration: other values are another model (model spec, 7). */
    { "use_fp4_sparse_kv", DS_JSON_TRUE, "true", false },
    { "hc_shifted", DS_JSON_TRUE, "true", false },
    { "dspark_target_attn_input", DS_JSON_TRUE, "true", false },
    { NULL, DS_JSON_NULL, NULL, false },
};

static const fixed root_fixed[] = {
    { "model_type", DS_JSON_STRING, "deepseek_v41", false },
    { "tie_word_embeddings", DS_JSON_FALSE, "false", false },
    { NULL, DS_JSON_NULL, NULL, false },
};

static const fixed vision_fixed[] = {
    { "model_type", DS_JSON_STRING, "deepseek_v41_vision", false },
    { NULL, DS_JSON_NULL, NULL, false },
};

static const fixed rope_fixed[] = {
    { "rope_type", DS_JSON_STRING, "yarn", false },
    { NULL, DS_JSON_NULL, NULL, false },
};

static const fixed quant_fixed[] = {
    { "quant_method", DS_JSON_STRING, "fp8", false },
    { "activation_scheme", DS_JSON_STRING, "dynamic", false },
    { "scale_fmt", DS_JSON_STRING, "ue8m0", false },
    { "expert_dtype", DS_JSON_STRING, "fp4", false },
    { NULL, DS_JSON_NULL, NULL, false },
};

typedef struct {
    const char *file;
    ds_config *c;
    ds_err *err;
} ctx;

/* What stands in the file, short and printable, for a message. */
static const char *show(char buf[80], const ds_json *v)
{
    if (ds_json_is(v, DS_JSON_STRING)) {
        char q[64];
        snprintf(buf, 80, "\"%s\"", ds_quote(q, 48, v->text, v->text_len));
    } else if (ds_json_is(v, DS_JSON_NUMBER)) {
        snprintf(buf, 80, "%.40s%s", v->text, v->text_len > 40 ? "..." : "");
    } else if (ds_json_is(v, DS_JSON_TRUE) || ds_json_is(v, DS_JSON_FALSE)) {
        snprintf(buf, 80, "%s", v->type == DS_JSON_TRUE ? "true" : "false");
    } else {
        snprintf(buf, 80, "%s", ds_json_type_name(v));
    }
    return buf;
}

static ds_rc refuse(const ctx *x, const char *where, const char *field_name, const ds_json *v, const char *rule)
{
    char buf[80];
    if (!v)
        return ds_fail(x->err, DS_E_FORMAT, "%s: %s%s is missing; %s", x->file, where, field_name, rule);
    return ds_fail(x->err, DS_E_FORMAT, "%s: %s%s = %s: %s", x->file, where, field_name, show(buf, v), rule);
}

static ds_rc read_field(const ctx *x, const char *where, const ds_json *obj, const field *f)
{
    const ds_json *v = ds_json_get(obj, f->name);
    char *dst = (char *)x->c + f->offset, rule[96];
    int64_t i;
    double d;

    if (!v && f->optional)
        return DS_OK;
    switch (f->type) {
    case F_U32:
        snprintf(rule, sizeof rule, "must be a whole number from %.0f to %.0f", f->min, f->max);
        if (!ds_json_i64(v, &i) || (double)i < f->min || (double)i > f->max)
            return refuse(x, where, f->name, v, rule);
        *(uint32_t *)(void *)dst = (uint32_t)i;
        return DS_OK;
    case F_REAL:
        snprintf(rule, sizeof rule, "must be a number from %g to %g", f->min, f->max);
        if (!ds_json_f64(v, &d) || !(d >= f->min && d <= f->max))
            return refuse(x, where, f->name, v, rule);
        *(double *)(void *)dst = d;
        return DS_OK;
    case F_BOOL:
        if (!ds_json_is(v, DS_JSON_TRUE) && !ds_json_is(v, DS_JSON_FALSE))
            return refuse(x, where, f->name, v, "must be true or false");
        *(bool *)(void *)dst = v->type == DS_JSON_TRUE;
        return DS_OK;
    }
    return DS_OK;
}

static ds_rc read_fields(const ctx *x, const char *where, const ds_json *obj, const field *f)
{
    for (; f->name; f++) {
        ds_rc rc = read_field(x, where, obj, f);
        if (rc != DS_OK)
            return rc;
    }
    return DS_OK;
}

static ds_rc check_fixed(const ctx *x, const char *where, const ds_json *obj, const fixed *f)
{
    char rule[96];
    for (; f->name; f++) {
        const ds_json *v = ds_json_get(obj, f->name);
        int64_t i = 0;
        bool same;
        if (!v && !f->required)
            continue;
        if (f->type == DS_JSON_NUMBER)
            same = ds_json_i64(v, &i) && i == atoi(f->value);
        else if (f->type == DS_JSON_STRING)
            same = ds_json_str_eq(v, f->value);
        else
            same = ds_json_is(v, f->type);
        if (same)
            continue;
        snprintf(rule, sizeof rule, "only %s is supported", f->value);
        return refuse(x, where, f->name, v, rule);
    }
    return DS_OK;
}

/* A list of whole numbers in [0, limit); *n <= cap. */
static ds_rc read_list(const ctx *x, const ds_json *obj, const char *name, uint64_t *out, uint32_t cap, uint64_t limit, uint32_t *n)
{
    const ds_json *v = ds_json_get(obj, name);
    char rule[96], item[96];
    uint32_t i = 0;

    if (!ds_json_is(v, DS_JSON_ARRAY))
        return refuse(x, "text_config.", name, v, "must be a list of whole numbers");
    if (v->n > cap)
        return ds_fail(x->err, DS_E_FORMAT, "%s: text_config.%s has %u entries; at most %u are allowed", x->file, name, v->n, cap);
    for (const ds_json *e = v->child; e; e = e->next, i++) {
        if (ds_json_u64(e, &out[i]) && out[i] < limit)
            continue;
        snprintf(item, sizeof item, "%s[%u]", name, i);
        snprintf(rule, sizeof rule, "must be a whole number from 0 to %" PRIu64, limit - 1);
        return refuse(x, "text_config.", item, e, rule);
    }
    *n = v->n;
    return DS_OK;
}

/* A strictly increasing list of layer numbers. */
static ds_rc read_layers(const ctx *x, const ds_json *obj, const char *name, uint16_t *out, uint32_t cap, bool any_order, uint32_t *n)
{
    uint64_t tmp[DS_CONFIG_MAX_LAYERS];
    ds_rc rc = read_list(x, obj, name, tmp, cap, x->c->num_hidden_layers, n);
    if (rc != DS_OK)
        return rc;
    if (any_order) {
        for (uint32_t i = 1; i < *n; i++)
            for (uint32_t j = i; j > 0 && tmp[j - 1] > tmp[j]; j--) {
                uint64_t t = tmp[j];
                tmp[j] = tmp[j - 1];
                tmp[j - 1] = t;
            }
    }
    for (uint32_t i = 0; i < *n; i++) {
        if (i && tmp[i] <= tmp[i - 1])
            return ds_fail(x->err, DS_E_FORMAT, "%s: text_config.%s: %" PRIu64 " after %" PRIu64 ": %s", x->file, name, tmp[i], tmp[i - 1],
                           any_order ? "a layer may stand only once" : "must be strictly increasing");
        out[i] = (uint16_t)tmp[i];
    }
    return DS_OK;
}

static bool has_layer(const uint16_t *list, uint32_t n, uint32_t layer)
{
    for (uint32_t i = 0; i < n; i++)
        if (list[i] == layer)
            return true;
    return false;
}

/* Largest entry <= layer, or -1. */
static int source_of(const uint16_t *list, uint32_t n, uint32_t layer)
{
    int found = -1;
    for (uint32_t i = 0; i < n && list[i] <= layer; i++)
        found = list[i];
    return found;
}

/* Another engine can take index keys from other layers than entries; here they come from the same ones. */
static ds_rc check_index_keys(const ctx *x, const ds_json *text)
{
    static const char name[] = "index_k_source_layer_ids";
    uint16_t ids[DS_CONFIG_MAX_LAYERS];
    uint32_t n;
    ds_rc rc;

    if (!ds_json_get(text, name))
        return DS_OK;
    rc = read_layers(x, text, name, ids, DS_CONFIG_MAX_LAYERS, false, &n);
    if (rc != DS_OK)
        return rc;
    if (n != x->c->n_kv_sources || memcmp(ids, x->c->kv_source_layer_ids, n * sizeof *ids) != 0)
        return refuse(x, "text_config.", name, ds_json_get(text, name), "only the layers of kv_source_layer_ids are supported");
    return DS_OK;
}

static ds_rc check_topology(const ctx *x)
{
    const ds_config *c = x->c;
    const uint8_t *ratio = c->compress_ratios;

    if (c->n_kv_sources == 0)
        return ds_fail(x->err, DS_E_FORMAT, "%s: text_config.kv_source_layer_ids is empty; at least one layer must own a KV cache",
                       x->file);
    for (uint32_t i = 0; i < c->n_kv_sources; i++) {
        uint32_t l = c->kv_source_layer_ids[i];
        if (!has_layer(c->index_source_layer_ids, c->n_index_sources, l))
            return ds_fail(x->err, DS_E_FORMAT,
                           "%s: text_config.kv_source_layer_ids: layer %u is not in index_source_layer_ids; every KV source must be",
                           x->file, l);
        if (ratio[l] == 0)
            return ds_fail(x->err, DS_E_FORMAT,
                           "%s: text_config.kv_source_layer_ids: layer %u has compress_ratios 0; a source must have ratio 1 or 2", x->file,
                           l);
    }
    for (uint32_t i = 0; i < c->n_index_sources; i++) {
        uint32_t l = c->index_source_layer_ids[i];
        if (ratio[l] == 0)
            return ds_fail(x->err, DS_E_FORMAT,
                           "%s: text_config.index_source_layer_ids: layer %u has compress_ratios 0; a source must have ratio 1 or 2",
                           x->file, l);
    }
    for (uint32_t l = 0; l < ds_config_layers(c); l++) {
        if (l >= c->num_hidden_layers && ratio[l] != 0)
            return ds_fail(x->err, DS_E_FORMAT, "%s: text_config.compress_ratios[%u] = %u: draft layers must have ratio 0", x->file, l,
                           ratio[l]);
        if (ratio[l] == 0)
            continue;
        int kv = source_of(c->kv_source_layer_ids, c->n_kv_sources, l);
        if (kv < 0)
            return ds_fail(x->err, DS_E_FORMAT, "%s: text_config.compress_ratios[%u] = %u: no KV source at or before layer %u", x->file, l,
                           ratio[l], l);
        if (ratio[kv] != ratio[l])
            return ds_fail(x->err, DS_E_FORMAT,
                           "%s: text_config.compress_ratios[%u] = %u: its KV source, layer %d, has ratio %u; both must be equal", x->file,
                           l, ratio[l], kv, ratio[kv]);
        int is = source_of(c->index_source_layer_ids, c->n_index_sources, l);
        int is_kv = is < 0 ? -1 : source_of(c->kv_source_layer_ids, c->n_kv_sources, (uint32_t)is);
        if (is_kv != kv)
            return ds_fail(x->err, DS_E_FORMAT,
                           "%s: text_config.index_source_layer_ids: layer %u selects with layer %d but reads KV of layer %d", x->file, l,
                           is, kv);
    }
    if (c->candidate_source_layer_id < 0)
        return DS_OK;
    uint32_t cand = (uint32_t)c->candidate_source_layer_id;
    if (!has_layer(c->index_source_layer_ids, c->n_index_sources, cand))
        return ds_fail(x->err, DS_E_FORMAT, "%s: text_config.candidate_source_layer_id = %u: must be in index_source_layer_ids", x->file,
                       cand);
    int cand_kv = source_of(c->kv_source_layer_ids, c->n_kv_sources, cand);
    if (cand_kv != c->kv_source_layer_ids[c->n_kv_sources - 1])
        return ds_fail(x->err, DS_E_FORMAT,
                       "%s: text_config.candidate_source_layer_id = %u: later index sources have another KV source than layer %d", x->file,
                       cand, cand_kv);
    uint64_t reach = (uint64_t)(c->candidate_topk_blocks - 1) * c->candidate_block_size + 1;
    if (reach < c->index_topk)
        return ds_fail(x->err, DS_E_FORMAT,
                       "%s: text_config.candidate_topk_blocks = %u: (candidate_topk_blocks - 1) * candidate_block_size + 1 = %" PRIu64
                       " must be at least index_topk = %u",
                       x->file, c->candidate_topk_blocks, reach, c->index_topk);
    return DS_OK;
}

/* The groups of 32 that FP8 and FP4 need, for every checkpoint whether quantised or not (section 8). */
static ds_rc check_shape(const ctx *x)
{
    const ds_config *c = x->c;
    const struct {
        const char *name;
        uint64_t v;
    } by32[] = {
        { "hidden_size", c->hidden_size },
        { "q_lora_rank", c->q_lora_rank },
        { "moe_intermediate_size", c->moe_intermediate_size },
        { "o_groups * o_lora_rank", (uint64_t)c->o_groups * c->o_lora_rank },
        { "head_dim", c->head_dim },
        { "index_head_dim", c->index_head_dim },
        { "num_attention_heads * head_dim / o_groups", (uint64_t)c->num_attention_heads * c->head_dim / c->o_groups },
        { "engram_head_dim", c->engram_head_dim },
        { "(engram_max_ngram_size - 1) * engram_n_heads * engram_head_dim", (uint64_t)ds_config_engram_columns(c) * c->engram_head_dim },
    };

    if (c->num_attention_heads % c->o_groups != 0)
        return ds_fail(x->err, DS_E_FORMAT, "%s: text_config.o_groups = %u: must divide num_attention_heads = %u", x->file, c->o_groups,
                       c->num_attention_heads);
    for (size_t i = 0; i < sizeof by32 / sizeof *by32; i++)
        if (by32[i].v % 32 != 0)
            return ds_fail(x->err, DS_E_FORMAT, "%s: text_config.%s = %" PRIu64 ": must be a multiple of 32", x->file, by32[i].name,
                           by32[i].v);
    if (c->qk_rope_head_dim % 2 != 0)
        return ds_fail(x->err, DS_E_FORMAT, "%s: text_config.qk_rope_head_dim = %u: must be even", x->file, c->qk_rope_head_dim);
    if (c->qk_rope_head_dim > c->head_dim || c->qk_rope_head_dim > c->index_head_dim)
        return ds_fail(x->err, DS_E_FORMAT, "%s: text_config.qk_rope_head_dim = %u: must not exceed head_dim = %u nor index_head_dim = %u",
                       x->file, c->qk_rope_head_dim, c->head_dim, c->index_head_dim);
    if (c->num_experts_per_tok > c->n_routed_experts)
        return ds_fail(x->err, DS_E_FORMAT, "%s: text_config.num_experts_per_tok = %u: must not exceed n_routed_experts = %u", x->file,
                       c->num_experts_per_tok, c->n_routed_experts);
    if (c->gate_temp <= 0)
        return ds_fail(x->err, DS_E_FORMAT, "%s: text_config.gate_temp = %g: must be above 0", x->file, c->gate_temp);
    if (c->num_hidden_layers + c->num_nextn_predict_layers > DS_CONFIG_MAX_LAYERS)
        return ds_fail(x->err, DS_E_FORMAT, "%s: text_config.num_hidden_layers = %u: with the draft layers at most %u are allowed", x->file,
                       c->num_hidden_layers, DS_CONFIG_MAX_LAYERS);
    return DS_OK;
}

static ds_rc check_engram(const ctx *x)
{
    const ds_config *c = x->c;
    uint32_t columns = ds_config_engram_columns(c);
    uint64_t prime[DS_CONFIG_MAX_ENGRAM_LAYERS * DS_CONFIG_MAX_ENGRAM_COLUMNS],
        offset[DS_CONFIG_MAX_ENGRAM_LAYERS * DS_CONFIG_MAX_ENGRAM_COLUMNS];

    if (columns > DS_CONFIG_MAX_ENGRAM_COLUMNS)
        return ds_fail(x->err, DS_E_FORMAT, "%s: text_config.engram_n_heads = %u: orders x heads is %u; at most %u are allowed", x->file,
                       c->engram_n_heads, columns, DS_CONFIG_MAX_ENGRAM_COLUMNS);
    if (c->engram_compressed_vocab_size > c->vocab_size)
        return ds_fail(x->err, DS_E_FORMAT, "%s: text_config.engram_compressed_vocab_size = %u: must not exceed vocab_size = %u", x->file,
                       c->engram_compressed_vocab_size, c->vocab_size);
    if (c->engram_pad_token_id >= c->vocab_size)
        return ds_fail(x->err, DS_E_FORMAT, "%s: text_config.engram_pad_token_id = %u: must be below vocab_size = %u", x->file,
                       c->engram_pad_token_id, c->vocab_size);
    ds_engram_primes(prime, offset, c->n_engram_layers, columns, c->engram_vocab_size);
    for (uint32_t t = 0; t < c->n_engram_layers; t++) {
        uint64_t rows = offset[(t + 1) * columns - 1] + prime[(t + 1) * columns - 1];
        if (rows != c->engram_num_embeddings[t])
            return ds_fail(x->err, DS_E_FORMAT,
                           "%s: text_config.engram_num_embeddings[%u] = %" PRIu64 ": must be %" PRIu64 ", the sum of the table's %u primes",
                           x->file, t, c->engram_num_embeddings[t], rows, columns);
    }
    return DS_OK;
}

static ds_rc read_engram(const ctx *x, const ds_json *text)
{
    ds_config *c = x->c;
    uint32_t n;
    ds_rc rc;

    if (!ds_json_get(text, "engram_layer_ids"))
        return DS_OK;
    rc = read_layers(x, text, "engram_layer_ids", c->engram_layer_ids, DS_CONFIG_MAX_ENGRAM_LAYERS, false, &c->n_engram_layers);
    if (rc != DS_OK || c->n_engram_layers == 0)
        return rc;
    rc = read_fields(x, "text_config.", text, engram_fields);
    if (rc != DS_OK)
        return rc;
    rc = read_list(x, text, "engram_num_embeddings", c->engram_num_embeddings, DS_CONFIG_MAX_ENGRAM_LAYERS, (uint64_t)1 << 40, &n);
    if (rc != DS_OK)
        return rc;
    if (n != c->n_engram_layers)
        return ds_fail(x->err, DS_E_FORMAT, "%s: text_config.engram_num_embeddings has %u entries; engram_layer_ids has %u", x->file, n,
                       c->n_engram_layers);
    return check_engram(x);
}

static ds_rc read_dspark(const ctx *x, const ds_json *text)
{
    ds_config *c = x->c;
    ds_rc rc;

    if (c->num_nextn_predict_layers == 0)
        return DS_OK;
    rc = read_fields(x, "text_config.", text, dspark_fields);
    if (rc != DS_OK)
        return rc;
    rc = read_layers(x, text, "dspark_target_layer_ids", c->dspark_target_layer_ids, DS_CONFIG_MAX_TARGETS, true, &c->n_dspark_targets);
    if (rc != DS_OK)
        return rc;
    if (c->n_dspark_targets == 0)
        return ds_fail(x->err, DS_E_FORMAT, "%s: text_config.dspark_target_layer_ids is empty; drafts need at least one layer", x->file);
    if (c->dspark_noise_token_id >= c->vocab_size)
        return ds_fail(x->err, DS_E_FORMAT, "%s: text_config.dspark_noise_token_id = %u: must be below vocab_size = %u", x->file,
                       c->dspark_noise_token_id, c->vocab_size);
    if (c->dspark_num_experts_per_tok > c->dspark_n_routed_experts)
        return ds_fail(x->err, DS_E_FORMAT, "%s: text_config.dspark_num_experts_per_tok = %u: must not exceed dspark_n_routed_experts = %u",
                       x->file, c->dspark_num_experts_per_tok, c->dspark_n_routed_experts);
    return DS_OK;
}

static ds_rc read_text(const ctx *x, const ds_json *text)
{
    ds_config *c = x->c;
    const ds_json *v;
    uint64_t ratios[DS_CONFIG_MAX_LAYERS];
    uint32_t n;
    int64_t cand;
    ds_rc rc;

    c->max_position_embeddings = 1048576;
    c->gate_temp = 1.0;
    c->candidate_source_layer_id = -1;
    rc = check_fixed(x, "text_config.", text, text_fixed);
    if (rc == DS_OK)
        rc = read_fields(x, "text_config.", text, text_fields);
    if (rc != DS_OK)
        return rc;

    v = ds_json_get(text, "rope_scaling");
    if (v && !ds_json_is(v, DS_JSON_NULL)) {
        if (!ds_json_is(v, DS_JSON_OBJECT))
            return refuse(x, "text_config.", "rope_scaling", v, "must be an object or null");
        rc = check_fixed(x, "text_config.rope_scaling.", v, rope_fixed);
        if (rc == DS_OK)
            rc = read_fields(x, "text_config.rope_scaling.", v, rope_fields);
        if (rc != DS_OK)
            return rc;
        c->yarn = c->rope_original_max_position_embeddings > 0;
        if (c->yarn && c->compress_rope_theta <= 1.0)
            return ds_fail(x->err, DS_E_FORMAT, "%s: text_config.compress_rope_theta = %g: must be above 1 for YaRN", x->file,
                           c->compress_rope_theta);
        if (!c->yarn)
            c->rope_factor = c->rope_beta_fast = c->rope_beta_slow = 0;
    }

    v = ds_json_get(text, "candidate_source_layer_id");
    if (v) {
        if (!ds_json_i64(v, &cand) || cand >= (int64_t)c->num_hidden_layers)
            return refuse(x, "text_config.", "candidate_source_layer_id", v, "must be a whole number below num_hidden_layers");
        c->candidate_source_layer_id = cand < 0 ? -1 : (int32_t)cand;
    }
    if (c->candidate_source_layer_id >= 0) {
        rc = read_fields(x, "text_config.", text, candidate_fields);
        if (rc != DS_OK)
            return rc;
    }

    rc = check_shape(x);
    if (rc == DS_OK)
        rc = read_list(x, text, "compress_ratios", ratios, DS_CONFIG_MAX_LAYERS, 3, &n);
    if (rc != DS_OK)
        return rc;
    if (n != ds_config_layers(c))
        return ds_fail(x->err, DS_E_FORMAT,
                       "%s: text_config.compress_ratios has %u entries; num_hidden_layers + num_nextn_predict_layers = %u", x->file, n,
                       ds_config_layers(c));
    for (uint32_t i = 0; i < n; i++)
        c->compress_ratios[i] = (uint8_t)ratios[i];
    rc = read_layers(x, text, "kv_source_layer_ids", c->kv_source_layer_ids, DS_CONFIG_MAX_LAYERS, false, &c->n_kv_sources);
    if (rc == DS_OK)
        rc = read_layers(x, text, "index_source_layer_ids", c->index_source_layer_ids, DS_CONFIG_MAX_LAYERS, false, &c->n_index_sources);
    if (rc == DS_OK)
        rc = check_index_keys(x, text);
    if (rc == DS_OK)
        rc = check_topology(x);
    if (rc == DS_OK)
        rc = read_engram(x, text);
    if (rc == DS_OK)
        rc = read_dspark(x, text);
    if (rc == DS_OK)
        rc = check_shape(x); /* again: now with the Engram fields */
    return rc;
}

static ds_rc read_vision(const ctx *x, const ds_json *root)
{
    static const field layers = {
        "num_hidden_layers", F_U32, offsetof(ds_config, vision.num_hidden_layers), 0, DS_CONFIG_MAX_LAYERS, false
    };
    ds_config *c = x->c;
    const ds_json *v = ds_json_get(root, "vision_config"), *r;
    ds_rc rc;

    if (!v || ds_json_is(v, DS_JSON_NULL))
        return DS_OK;
    if (!ds_json_is(v, DS_JSON_OBJECT))
        return refuse(x, "", "vision_config", v, "must be an object");
    rc = check_fixed(x, "vision_config.", v, vision_fixed);
    if (rc == DS_OK)
        rc = read_field(x, "vision_config.", v, &layers);
    if (rc != DS_OK || c->vision.num_hidden_layers == 0)
        return rc;
    rc = read_fields(x, "vision_config.", v, vision_fields);
    if (rc != DS_OK)
        return rc;
    r = ds_json_get(v, "max_wh_ratio");
    if (r && !ds_json_is(r, DS_JSON_NULL) &&
        (!ds_json_f64(r, &c->vision.max_wh_ratio) || !(c->vision.max_wh_ratio > 0 && c->vision.max_wh_ratio <= 1e6)))
        return refuse(x, "vision_config.", "max_wh_ratio", r, "must be null or a number above 0, at most 1e6");
    if (c->vision.hidden_size % c->vision.num_attention_heads != 0 || c->vision.hidden_size / c->vision.num_attention_heads % 4 != 0)
        return ds_fail(
            x->err, DS_E_FORMAT,
            "%s: vision_config.hidden_size = %u: must be a multiple of 4 * num_attention_heads = %u (rows and columns rotate pairs)",
            x->file, c->vision.hidden_size, 4 * c->vision.num_attention_heads);
    return DS_OK;
}

/* `architectures` may be missing or null; what it names must be this model. */
static ds_rc check_architectures(const ctx *x, const ds_json *root)
{
    static const char ours[] = "DeepseekV41ForCausalLM";
    const ds_json *v = ds_json_get(root, "architectures"), *first;

    if (!v || ds_json_is(v, DS_JSON_NULL))
        return DS_OK;
    if (!ds_json_is(v, DS_JSON_ARRAY))
        return refuse(x, "", "architectures", v, "must be a list of names");
    first = ds_json_at(v, 0);
    for (uint32_t i = 0; i < v->n; i++) {
        if (ds_json_str_eq(ds_json_at(v, i), ours))
            return DS_OK;
    }
    return first ? refuse(x, "", "architectures[0]", first, "only DeepseekV41ForCausalLM is supported") : DS_OK;
}

static ds_rc read_root(const ctx *x, const ds_json *root)
{
    ds_config *c = x->c;
    const field ids[] = {
        { "bos_token_id", F_U32, offsetof(ds_config, bos_token_id), 0, c->vocab_size - 1.0, true },
        { "eos_token_id", F_U32, offsetof(ds_config, eos_token_id), 0, c->vocab_size - 1.0, true },
        { "pad_token_id", F_U32, offsetof(ds_config, pad_token_id), 0, c->vocab_size - 1.0, true },
    };
    const ds_json *v;
    int64_t image;
    ds_rc rc;

    c->bos_token_id = 0;
    c->eos_token_id = 1;
    c->pad_token_id = 2;
    c->image_token_id = -1;
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        if (ds_json_is(ds_json_get(root, ids[i].name), DS_JSON_NULL))
            continue;
        rc = read_field(x, "", root, &ids[i]);
        if (rc != DS_OK)
            return rc;
    }
    if (c->vocab_size < 3)
        return ds_fail(x->err, DS_E_FORMAT, "%s: text_config.vocab_size = %u: must hold the begin, end and padding ids", x->file,
                       c->vocab_size);
    v = ds_json_get(root, "image_token_id");
    if (ds_json_i64(v, &image) && image >= 0 && image < (int64_t)c->vocab_size) {
        c->image_token_id = (int32_t)image;
    } else if (c->vision.num_hidden_layers) { /* a text model may name an id that it doesn't have */
        char rule[96];
        snprintf(rule, sizeof rule, "a model with a vision tower needs a whole number from 0 to %u", c->vocab_size - 1);
        return refuse(x, "", "image_token_id", v, rule);
    }
    v = ds_json_get(root, "quantization_config");
    if (v && !ds_json_is(v, DS_JSON_NULL)) {
        const ds_json *block = ds_json_get(v, "weight_block_size"), *b0 = ds_json_at(block, 0), *b1 = ds_json_at(block, 1);
        int64_t n0 = 0, n1 = 0;
        if (!ds_json_is(v, DS_JSON_OBJECT))
            return refuse(x, "", "quantization_config", v, "must be an object");
        rc = check_fixed(x, "quantization_config.", v, quant_fixed);
        if (rc != DS_OK)
            return rc;
        if (block &&
            !(ds_json_is(block, DS_JSON_ARRAY) && block->n == 2 && ds_json_i64(b0, &n0) && n0 == 32 && ds_json_i64(b1, &n1) && n1 == 32))
            return refuse(x, "quantization_config.", "weight_block_size", block, "only [32, 32] is supported");
        c->has_quantization_config = true;
        c->has_expert_dtype = ds_json_get(v, "expert_dtype") != NULL;
    }
    return DS_OK;
}

ds_rc ds_config_parse(ds_config *out, const char *text, size_t n, const char *name, ds_err *err)
{
    static const ds_json_opts opts = { .max_depth = 64, .refuse_duplicates = true };
    char file[112];
    ctx x = { .file = ds_file_label(file, sizeof file, name), .c = out, .err = err };
    ds_json_doc *doc;
    const ds_json *root, *tc;
    ds_rc rc;

    memset(out, 0, sizeof *out);
    if (n > DS_CONFIG_FILE_MAX_BYTES)
        return ds_fail(err, DS_E_FORMAT, "%s: is %zu bytes long; at most %u are allowed", x.file, n, DS_CONFIG_FILE_MAX_BYTES);
    rc = ds_json_parse(&doc, text, n, &opts, err);
    if (rc != DS_OK)
        return ds_err_prefix(err, rc, "%s: ", x.file);
    root = ds_json_root(doc);
    tc = ds_json_get(root, "text_config");
    if (!ds_json_is(root, DS_JSON_OBJECT))
        rc = ds_fail(err, DS_E_FORMAT, "%s: must hold an object, holds %s", x.file, ds_json_type_name(root));
    else
        rc = check_fixed(&x, "", root, root_fixed);
    if (rc == DS_OK)
        rc = check_architectures(&x, root);
    if (rc == DS_OK && !ds_json_is(tc, DS_JSON_OBJECT))
        rc = refuse(&x, "", "text_config", tc, "must be an object");
    if (rc == DS_OK)
        rc = read_text(&x, tc);
    if (rc == DS_OK)
        rc = read_vision(&x, root);
    if (rc == DS_OK)
        rc = read_root(&x, root);
    ds_json_free(doc);
    return rc;
}

ds_rc ds_config_load(ds_config *out, const char *path, ds_err *err)
{
    struct stat st;
    char *text, *joined = NULL;
    size_t n;
    ds_rc rc;

    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        if (asprintf(&joined, "%s/config.json", path) < 0)
            return ds_fail(err, DS_E_NOMEM, "config.json: out of memory");
        path = joined;
    }
    rc = ds_file_read(&text, &n, path, DS_CONFIG_FILE_MAX_BYTES, err);
    if (rc == DS_OK) {
        rc = ds_config_parse(out, text, n, path, err);
        free(text);
    }
    free(joined);
    return rc;
}
