/* config.json of a model: every field that changes a result, checked (model spec, sections 1, 2, 6 "Loading rules", 8).
 *
 * Field names are those of the file. A value that this struct holds is legal: types, ranges, topology, divisibility
 * and the Engram tables' row counts were checked, so that nobody needs to check them again. Each refusal is one
 * line: file, field, value, rule. Threads: plain data, read by anybody.   Memory: the struct holds everything;
 * parsing takes O(file) and frees it. */
#ifndef DS_FORMAT_CONFIG_H
#define DS_FORMAT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define DS_CONFIG_FILE_MAX_BYTES (1u << 20)
#define DS_CONFIG_MAX_LAYERS 256 /* backbone and drafts together */
#define DS_CONFIG_MAX_DRAFT_LAYERS 16
#define DS_CONFIG_MAX_ENGRAM_LAYERS 32
#define DS_CONFIG_MAX_ENGRAM_NGRAM 8
#define DS_CONFIG_MAX_ENGRAM_COLUMNS 64 /* orders x heads */
#define DS_CONFIG_MAX_HC 8
#define DS_CONFIG_MAX_TARGETS 16

typedef struct {
    /* root */
    uint32_t bos_token_id, eos_token_id, pad_token_id; /* 0, 1, 2 when the file has none */
    int32_t image_token_id;                            /* -1: none */

    /* quantization_config; informative: a loader decides by each tensor's dtype */
    bool has_quantization_config, has_expert_dtype; /* the latter: a member of it */

    /* text_config: shape */
    uint32_t vocab_size;
    uint32_t hidden_size;
    uint32_t num_hidden_layers; /* backbone */
    uint32_t num_attention_heads;
    uint32_t head_dim;
    uint32_t qk_rope_head_dim;
    uint32_t q_lora_rank;
    uint32_t o_groups;
    uint32_t o_lora_rank;
    double rms_norm_eps;
    uint32_t max_position_embeddings; /* 1048576 when the file has none */

    /* rotary */
    double rope_theta;
    double compress_rope_theta;
    bool yarn; /* false: the four fields below are 0 */
    double rope_factor;
    uint32_t rope_original_max_position_embeddings;
    double rope_beta_fast, rope_beta_slow;

    /* attention */
    uint32_t sliding_window;
    uint8_t compress_ratios[DS_CONFIG_MAX_LAYERS]; /* num_hidden_layers + num_nextn_predict_layers entries: 0, 1 or 2 */
    uint32_t n_kv_sources;
    uint16_t kv_source_layer_ids[DS_CONFIG_MAX_LAYERS];
    uint32_t n_index_sources;
    uint16_t index_source_layer_ids[DS_CONFIG_MAX_LAYERS];
    uint32_t index_n_heads;
    uint32_t index_head_dim;
    uint32_t index_topk;
    int32_t candidate_source_layer_id; /* -1: no candidate pool */
    uint32_t candidate_topk_blocks;
    uint32_t candidate_block_size;

    /* residual streams */
    uint32_t hc_mult;
    uint32_t hc_sinkhorn_iters;
    double hc_eps;

    /* experts */
    uint32_t n_routed_experts;
    uint32_t num_experts_per_tok;
    uint32_t moe_intermediate_size;
    bool norm_topk_prob;
    double routed_scaling_factor;
    double swiglu_limit; /* <= 0: no limit */
    double gate_temp;

    /* Engram; n_engram_layers == 0: none, the rest is 0 */
    uint32_t n_engram_layers;
    uint16_t engram_layer_ids[DS_CONFIG_MAX_ENGRAM_LAYERS];
    uint64_t engram_num_embeddings[DS_CONFIG_MAX_ENGRAM_LAYERS]; /* rows of each table */
    uint32_t engram_max_ngram_size;
    uint32_t engram_vocab_size; /* where the search for primes starts */
    uint32_t engram_n_heads;
    uint32_t engram_head_dim; /* row width */
    uint32_t engram_pad_token_id;
    uint32_t engram_compressed_vocab_size;

    /* DSpark; num_nextn_predict_layers == 0: none, the rest is 0 */
    uint32_t num_nextn_predict_layers;
    uint32_t dspark_block_size;
    uint32_t dspark_noise_token_id;
    uint32_t n_dspark_targets;
    uint16_t dspark_target_layer_ids[DS_CONFIG_MAX_TARGETS]; /* in increasing order whatever the order in the file */
    uint32_t dspark_markov_rank;
    uint32_t dspark_n_routed_experts;
    uint32_t dspark_num_experts_per_tok;

    /* vision_config; num_hidden_layers == 0: none, the rest is 0 */
    struct {
        uint32_t num_hidden_layers;
        uint32_t hidden_size;
        uint32_t num_attention_heads;
        uint32_t intermediate_size;
        uint32_t patch_size;
        double rope_theta;
        uint32_t downsample_ratio;
        uint32_t max_image_tokens; /* delimiters included */
        uint32_t min_pixels;
        double max_wh_ratio; /* 0: none */
    } vision;
} ds_config;

/* `name` is what messages call the file. On failure *out is undefined. DS_E_FORMAT, DS_E_NOMEM. */
ds_rc ds_config_parse(ds_config *out, const char *text, size_t n, const char *name, ds_err *err);
/* `path` is a config.json or the directory that holds it. Also DS_E_IO. */
ds_rc ds_config_load(ds_config *out, const char *path, ds_err *err);

/* Derived sizes. */
static inline uint32_t ds_config_hc_rows(const ds_config *c) /* rows of an mHC fn: 24 for 4 streams */
{
    return (2 + c->hc_mult) * c->hc_mult;
}

static inline uint32_t ds_config_engram_columns(const ds_config *c) /* hashed ids a token and table: 24 */
{
    return c->n_engram_layers ? (c->engram_max_ngram_size - 1) * c->engram_n_heads : 0;
}

static inline uint32_t ds_config_layers(const ds_config *c) /* backbone and drafts */
{
    return c->num_hidden_layers + c->num_nextn_predict_layers;
}

#endif
