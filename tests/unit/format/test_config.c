/* config.json: the released values, the tiny ones, every refusal, the layer table, and the Engram hash. */
#include "test.h"

#include "format/config.h"
#include "format/engram.h"
#include "base/file.h"
#include "format/topology.h"

#define REAL_CONFIG DS_TEST_ROOT "/models/configs/deepseek-v4.1-flash.json"
#define TINY(x) DS_TEST_ROOT "/tests/configs/tiny-" x ".json"

static char *text_of(const char *path)
{
    ds_err err;
    char *text;
    size_t n;
    assert_ok(ds_file_read(&text, &n, path, 1 << 20, &err));
    return text;
}

/* `text` with the first `from` replaced by `to`; free() it. */
static char *edited(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    char *out = malloc(strlen(text) + strlen(to) + 1);
    if (!at)
        fail_msg("test: '%s' is not in the file", from);
    sprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return out;
}

static void released_config(void **state)
{
    (void)state;
    ds_err err;
    ds_config c;
    assert_ok(ds_config_load(&c, REAL_CONFIG, &err));
    assert_int_equal(c.vocab_size, 129280);
    assert_int_equal(c.hidden_size, 5120);
    assert_true(c.rms_norm_eps == 1e-20);
    assert_true(c.yarn);
    assert_true(c.rope_factor == 16);
    assert_int_equal(c.n_kv_sources, 4);
    assert_int_equal(c.n_index_sources, 8);
    assert_int_equal(c.engram_num_embeddings[1], 384016682);
    assert_int_equal(c.n_dspark_targets, 3);
    assert_int_equal(c.vision.min_pixels, 295936);
    assert_true(c.vision.max_wh_ratio == 0);
    assert_int_equal(c.image_token_id, 129264);
    assert_true(c.gate_temp == 1.0);
    assert_int_equal(ds_config_hc_rows(&c), 24);
    assert_int_equal(ds_config_engram_columns(&c), 24);
    assert_int_equal(ds_config_layers(&c), 43);
}

static void tiny_configs(void **state)
{
    (void)state;
    static const char *const path[] = { TINY("a"), TINY("b"), TINY("c"), TINY("d") };
    ds_err err;
    ds_config c;
    for (size_t i = 0; i < 4; i++)
        assert_ok(ds_config_load(&c, path[i], &err));
}

/* The table of section 2, row by row. */
static void released_topology(void **state)
{
    (void)state;
    static const struct {
        int first, last, half, ratio, mode, kv, index;
    } rows[] = {
        { 0, 1, DS_HALF_ENCODER, 0, DS_MODE_WINDOW, -1, -1 },  { 2, 2, DS_HALF_ENCODER, 2, DS_MODE_FULL, 2, 2 },
        { 3, 7, DS_HALF_ENCODER, 2, DS_MODE_REUSE, 2, 2 },     { 8, 8, DS_HALF_ENCODER, 2, DS_MODE_FULL, 8, 8 },
        { 9, 13, DS_HALF_ENCODER, 2, DS_MODE_REUSE, 8, 8 },    { 14, 14, DS_HALF_ENCODER, 2, DS_MODE_FULL, 14, 14 },
        { 15, 19, DS_HALF_ENCODER, 2, DS_MODE_REUSE, 14, 14 }, { 20, 20, DS_HALF_DECODER, 1, DS_MODE_FULL, 20, 20 },
        { 21, 23, DS_HALF_DECODER, 1, DS_MODE_REUSE, 20, 20 }, { 24, 24, DS_HALF_DECODER, 1, DS_MODE_REINDEX, 20, 24 },
        { 25, 27, DS_HALF_DECODER, 1, DS_MODE_REUSE, 20, 24 }, { 28, 28, DS_HALF_DECODER, 1, DS_MODE_REINDEX, 20, 28 },
        { 29, 31, DS_HALF_DECODER, 1, DS_MODE_REUSE, 20, 28 }, { 32, 32, DS_HALF_DECODER, 1, DS_MODE_REINDEX, 20, 32 },
        { 33, 35, DS_HALF_DECODER, 1, DS_MODE_REUSE, 20, 32 }, { 36, 36, DS_HALF_DECODER, 1, DS_MODE_REINDEX, 20, 36 },
        { 37, 39, DS_HALF_DECODER, 1, DS_MODE_REUSE, 20, 36 }, { 40, 42, DS_HALF_DRAFT, 0, DS_MODE_WINDOW, -1, -1 },
    };
    ds_err err;
    ds_config c;
    ds_topology t;
    int l = 0;
    assert_ok(ds_config_load(&c, REAL_CONFIG, &err));
    ds_topology_init(&t, &c);
    assert_int_equal(t.n_layers, 43);
    assert_int_equal(t.n_backbone, 40);
    assert_int_equal(t.first_decoder, 20);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (assert_int_equal(rows[i].first, l); l <= rows[i].last; l++) {
            const ds_layer_topo *y = &t.layer[l];
            assert_int_equal(y->half, rows[i].half);
            assert_int_equal(y->ratio, rows[i].ratio);
            assert_int_equal(y->mode, rows[i].mode);
            assert_int_equal(y->kv_source, rows[i].kv);
            assert_int_equal(y->index_source, rows[i].index);
            assert_int_equal(y->kv_slot, rows[i].kv < 0 ? -1 : rows[i].kv == 20 ? 3 : rows[i].kv / 6);
            assert_int_equal(y->rope, rows[i].ratio ? DS_ROPE_COMPRESS : DS_ROPE_PLAIN);
            assert_int_equal(y->engram, l == 1 ? 0 : l == 14 ? 1 : -1);
            assert_int_equal(y->candidate_source, l == 20);
            assert_int_equal(y->uses_candidates, rows[i].mode == DS_MODE_REINDEX);
            assert_int_equal(y->dspark_target, l >= 37 && l < 40 ? l - 37 : -1);
        }
    assert_int_equal(l, 43);
    assert_string_equal(ds_half_name(DS_HALF_DECODER), "decoder");
    assert_string_equal(ds_mode_name(DS_MODE_REINDEX), "reindex");
}

static void tiny_c_topology(void **state) /* an encoder Reindex layer, no candidates, no drafts */
{
    (void)state;
    static const int mode[] = {
        DS_MODE_FULL, DS_MODE_WINDOW, DS_MODE_REINDEX, DS_MODE_FULL, DS_MODE_REUSE, DS_MODE_REINDEX, DS_MODE_REUSE
    };
    static const int kv[] = { 0, -1, 0, 3, 3, 3, 3 }, index[] = { 0, -1, 2, 3, 3, 5, 5 };
    ds_err err;
    ds_config c;
    ds_topology t;
    assert_ok(ds_config_load(&c, TINY("c"), &err));
    ds_topology_init(&t, &c);
    assert_int_equal(t.first_decoder, 3);
    for (int l = 0; l < 7; l++) {
        assert_int_equal(t.layer[l].mode, mode[l]);
        assert_int_equal(t.layer[l].kv_source, kv[l]);
        assert_int_equal(t.layer[l].index_source, index[l]);
        assert_false(t.layer[l].uses_candidates);
    }
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *message;
    } cases[] = {
        { "\"hidden_size\": 5120", "\"hidden_size\": 5121", "text_config.hidden_size = 5121: must be a multiple of 32" },
        { "\"hidden_size\": 5120", "\"hidden_size\": 5120.0", "hidden_size = 5120.0: must be a whole number" },
        { "\"hidden_size\": 5120", "\"hidden_size\": \"5120\"", "hidden_size = \"5120\": must be a whole number" },
        { "\"hidden_size\": 5120", "\"hidden_size\": 0", "hidden_size = 0: must be a whole number from 1" },
        { "\"hidden_size\": 5120", "\"hidden_size\": -32", "hidden_size = -32" },
        { "\"hidden_size\": 5120", "\"hidden_size\": 1e3", "hidden_size = 1e3" },
        { "\"hidden_size\": 5120", "\"hidden_size\": 4294967328", "hidden_size = 4294967328" },
        { "\"hidden_size\": 5120", "\"hidden_size\": 99999999999999999999999", "hidden_size = 99999999999999999999999" },
        { "\"hidden_size\": 5120", "\"hidden_size\": null", "hidden_size = null" },
        { "\"hidden_size\": 5120", "\"hidden_size\": [5120]", "hidden_size = array" },
        { "\"hidden_size\": 5120", "\"hidden_sise\": 5120", "text_config.hidden_size is missing" },
        { "\"hidden_size\": 5120", "\"hidden_size\": 5120, \"hidden_size\": 5120", "hidden_size" },
        { "\"vocab_size\": 129280", "\"vocab_size\": 2", "engram_compressed_vocab_size = 99092: must not exceed vocab_size = 2" },
        { "\"vocab_size\": 129280", "\"vocab_size\": 2000000000", "vocab_size = 2000000000" },
        { "\"q_lora_rank\": 1280", "\"q_lora_rank\": 1281", "q_lora_rank = 1281: must be a multiple of 32" },
        { "\"head_dim\": 512", "\"head_dim\": 520", "head_dim = 520: must be a multiple of 32" },
        { "\"o_lora_rank\": 1024", "\"o_lora_rank\": 1023", "o_groups * o_lora_rank = 8184: must be a multiple of 32" },
        { "\"o_groups\": 8", "\"o_groups\": 7", "o_groups = 7: must divide num_attention_heads = 64" },
        { "\"o_groups\": 8", "\"o_groups\": 0", "o_groups = 0" },
        { "\"moe_intermediate_size\": 2304", "\"moe_intermediate_size\": 2300", "moe_intermediate_size = 2300: must be a multiple of 32" },
        { "\"index_head_dim\": 128", "\"index_head_dim\": 120", "index_head_dim = 120: must be a multiple of 32" },
        { "\"qk_rope_head_dim\": 64", "\"qk_rope_head_dim\": 63", "qk_rope_head_dim = 63: must be even" },
        { "\"qk_rope_head_dim\": 64", "\"qk_rope_head_dim\": 160",
          "qk_rope_head_dim = 160: must not exceed head_dim = 512 nor index_head_dim = 128" },
        { "\"num_experts_per_tok\": 6", "\"num_experts_per_tok\": 200", NULL },
        { "\"n_routed_experts\": 384", "\"n_routed_experts\": 5", "num_experts_per_tok = 6: must not exceed n_routed_experts = 5" },
        { "\"n_shared_experts\": 1", "\"n_shared_experts\": 2", "n_shared_experts = 2: only 1 is supported" },
        { "\"n_shared_experts\": 1,", "", "n_shared_experts is missing" },
        { "\"num_key_value_heads\": 1", "\"num_key_value_heads\": 8", "num_key_value_heads = 8: only 1" },
        { "\"num_key_value_heads\": 1,", "", NULL },
        { "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "hidden_act = \"gelu\": only silu" },
        { "\"attention_bias\": false", "\"attention_bias\": true", "attention_bias = true: only false" },
        { "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", "tie_word_embeddings" },
        { "\"topk_method\": \"noaux_tc\"", "\"topk_method\": \"greedy\"", "topk_method = \"greedy\"" },
        { "\"scoring_func\": \"sqrtsoftplus\"", "\"scoring_func\": \"sigmoid\"", "scoring_func = \"sigmoid\"" },
        { "\"model_type\": \"deepseek_v41\"", "\"model_type\": \"deepseek_v4\"", "model_type = \"deepseek_v4\": only deepseek_v41" },
        { "\"model_type\": \"deepseek_v41_text\"", "\"model_type\": \"llama\"", "text_config.model_type" },
        { "\"model_type\": \"deepseek_v41_vision\"", "\"model_type\": \"clip\"", "vision_config.model_type" },
        { "\"attention_dropout\": 0.0", "\"attention_dropout\": 0.5", NULL },
        { "\"norm_topk_prob\": true", "\"norm_topk_prob\": 1", "norm_topk_prob = 1: must be true or false" },
        { "\"rms_norm_eps\": 1e-20", "\"rms_norm_eps\": \"1e-20\"", "rms_norm_eps = \"1e-20\"" },
        { "\"rms_norm_eps\": 1e-20", "\"rms_norm_eps\": 1e400", "rms_norm_eps = 1e400" },
        { "\"rms_norm_eps\": 1e-20", "\"rms_norm_eps\": 0", "rms_norm_eps = 0" },
        { "\"swiglu_limit\": 10.0", "\"swiglu_limit\": 0", NULL },
        { "\"swiglu_limit\": 10.0", "\"swiglu_limit\": 10.0, \"gate_temp\": 0", "gate_temp = 0" },
        { "\"swiglu_limit\": 10.0", "\"swiglu_limit\": 10.0, \"gate_temp\": 1.25", NULL },
        { "\"swiglu_limit\": 10.0", "\"swiglu_limit\": NaN", "column" },
        { "\"rope_type\": \"yarn\"", "\"rope_type\": \"linear\"", "rope_scaling.rope_type = \"linear\": only yarn" },
        { "\"factor\": 16", "\"factor\": 0", "rope_scaling.factor = 0" },
        { "\"factor\": 16,", "", "rope_scaling.factor is missing" },
        { "\"original_max_position_embeddings\": 65536", "\"original_max_position_embeddings\": 0", NULL },
        { "\"compress_rope_theta\": 160000", "\"compress_rope_theta\": 1", "compress_rope_theta = 1: must be above 1" },
        { "\"compress_rope_theta\": 160000", "\"compress_rope_theta\": 160000.0", NULL },
        { "\"compress_ratios\": [0, 0,", "\"compress_ratios\": [0,",
          "compress_ratios has 42 entries; num_hidden_layers + num_nextn_predict_layers = 43" },
        { "\"compress_ratios\": [0, 0,", "\"compress_ratios\": [0, 4,", "compress_ratios[1] = 4: must be a whole number from 0 to 2" },
        { "\"compress_ratios\": [0, 0,", "\"compress_ratios\": [0, 2,", "compress_ratios[1] = 2: no KV source at or before layer 1" },
        { "\"compress_ratios\": [0, 0, 2, 2,", "\"compress_ratios\": [0, 0, 2, 1,",
          "compress_ratios[3] = 1: its KV source, layer 2, has ratio 2" },
        { "\"compress_ratios\": [0, 0, 2,", "\"compress_ratios\": [0, 0, 0,", "kv_source_layer_ids: layer 2 has compress_ratios 0" },
        { "0, 0, 0]", "0, 0, 1]", "compress_ratios[42] = 1: draft layers must have ratio 0" },
        { "\"kv_source_layer_ids\": [2, 8, 14, 20]", "\"kv_source_layer_ids\": [2, 14, 8, 20]",
          "kv_source_layer_ids: 8 after 14: must be strictly increasing" },
        { "\"kv_source_layer_ids\": [2, 8, 14, 20]", "\"kv_source_layer_ids\": [2, 2, 8, 20]", "2 after 2: must be strictly increasing" },
        { "\"kv_source_layer_ids\": [2, 8, 14, 20]", "\"kv_source_layer_ids\": [2, 8, 14, 20, 40]",
          "kv_source_layer_ids[4] = 40: must be a whole number from 0 to 39" },
        { "\"kv_source_layer_ids\": [2, 8, 14, 20]", "\"kv_source_layer_ids\": [2, 8, 14, -1]", "kv_source_layer_ids[3] = -1" },
        { "\"kv_source_layer_ids\": [2, 8, 14, 20]", "\"kv_source_layer_ids\": []", "kv_source_layer_ids is empty" },
        { "\"kv_source_layer_ids\": [2, 8, 14, 20]", "\"kv_source_layer_ids\": 2", "kv_source_layer_ids = 2: must be a list" },
        { "\"kv_source_layer_ids\": [2, 8, 14, 20]", "\"kv_source_layer_ids\": [2, 8, 14, 20, 26]",
          "layer 26 is not in index_source_layer_ids" },
        { "\"kv_source_layer_ids\": [2, 8, 14, 20]", "\"kv_source_layer_ids\": [2, 8, 14, 20, 24]",
          "candidate_source_layer_id = 20: later index sources have another KV source" },
        { "\"index_source_layer_ids\": [2,", "\"index_source_layer_ids\": [1, 2,",
          "index_source_layer_ids: layer 1 has compress_ratios 0" },
        { "\"candidate_source_layer_id\": 20", "\"candidate_source_layer_id\": 21",
          "candidate_source_layer_id = 21: must be in index_source_layer_ids" },
        { "\"candidate_source_layer_id\": 20", "\"candidate_source_layer_id\": 14", "candidate_source_layer_id = 14: later index sources" },
        { "\"candidate_source_layer_id\": 20", "\"candidate_source_layer_id\": 40", "candidate_source_layer_id = 40" },
        { "\"candidate_source_layer_id\": 20,", "", NULL },
        { "\"candidate_source_layer_id\": 20", "\"candidate_source_layer_id\": -7", NULL },
        { "\"candidate_topk_blocks\": 2048", "\"candidate_topk_blocks\": 64",
          "(candidate_topk_blocks - 1) * candidate_block_size + 1 = 505 must be at least index_topk = 512" },
        { "\"candidate_topk_blocks\": 2048", "\"candidate_topk_blocks\": 65", NULL },
        { "\"candidate_topk_blocks\": 2048,", "", "candidate_topk_blocks is missing" },
        { "\"engram_layer_ids\": [1, 14]", "\"engram_layer_ids\": [14, 1]", "engram_layer_ids: 1 after 14" },
        { "\"engram_layer_ids\": [1, 14]", "\"engram_layer_ids\": [1]", "engram_num_embeddings has 2 entries; engram_layer_ids has 1" },
        { "\"engram_layer_ids\": [1, 14]", "\"engram_layer_ids\": []", NULL },
        { "384006168", "384006169", "engram_num_embeddings[0] = 384006169: must be 384006168" },
        { "\"engram_head_dim\": 256", "\"engram_head_dim\": 250", "engram_head_dim = 250: must be a multiple of 32" },
        { "\"engram_max_ngram_size\": 4", "\"engram_max_ngram_size\": 1", "engram_max_ngram_size = 1" },
        { "\"engram_compressed_vocab_size\": 99092", "\"engram_compressed_vocab_size\": 129281", "must not exceed vocab_size" },
        { "\"engram_pad_token_id\": 2", "\"engram_pad_token_id\": 129280", "engram_pad_token_id = 129280: must be below" },
        { "\"dspark_noise_token_id\": 128799", "\"dspark_noise_token_id\": 129280", "dspark_noise_token_id = 129280: must be below" },
        { "\"dspark_target_layer_ids\": [37, 38, 39]", "\"dspark_target_layer_ids\": [37, 37, 39]", "a layer may stand only once" },
        { "\"dspark_target_layer_ids\": [37, 38, 39]", "\"dspark_target_layer_ids\": [39, 37, 38]", NULL },
        { "\"dspark_target_layer_ids\": [37, 38, 39]", "\"dspark_target_layer_ids\": []", "dspark_target_layer_ids is empty" },
        { "\"dspark_num_experts_per_tok\": 3", "\"dspark_num_experts_per_tok\": 129", "must not exceed dspark_n_routed_experts = 128" },
        { "\"num_nextn_predict_layers\": 3", "\"num_nextn_predict_layers\": 17", "num_nextn_predict_layers = 17" },
        { "\"num_hidden_layers\": 40", "\"num_hidden_layers\": 4000000000", "num_hidden_layers = 4000000000" },
        { "\"num_attention_heads\": 16", "\"num_attention_heads\": 15",
          "vision_config.hidden_size = 1024: must be a multiple of 4 * num_attention_heads = 60" },
        { "\"max_wh_ratio\": null", "\"max_wh_ratio\": 0", "max_wh_ratio = 0" },
        { "\"max_wh_ratio\": null", "\"max_wh_ratio\": 8.5", NULL },
        { "\"image_token_id\": 129264", "\"image_token_id\": 129280", "image_token_id = 129280" },
        { "\"image_token_id\": 129264,", "", "image_token_id is missing" },
        { "\"eos_token_id\": 1", "\"eos_token_id\": 129280", "eos_token_id = 129280" },
        { "\"pad_token_id\": 2,", "", NULL },
        { "\"weight_block_size\": [32, 32]", "\"weight_block_size\": [128, 128]", "weight_block_size = array: only [32, 32]" },
        { "\"expert_dtype\": \"fp4\"", "\"expert_dtype\": \"fp8\"", "expert_dtype = \"fp8\": only fp4" },
        { "\"text_config\": {", "\"text_konfig\": {", "text_config is missing" },
        /* what other engines read and what changes the maths: the default or nothing */
        { "\"hc_mult\": 4", "\"hc_mult\": 4, \"use_fp4_sparse_kv\": true", NULL },
        { "\"hc_mult\": 4", "\"hc_mult\": 4, \"use_fp4_sparse_kv\": false",
          "text_config.use_fp4_sparse_kv = false: only true is supported" },
        { "\"hc_mult\": 4", "\"hc_mult\": 4, \"hc_shifted\": false", "hc_shifted = false" },
        { "\"hc_mult\": 4", "\"hc_mult\": 4, \"dspark_target_attn_input\": false", "dspark_target_attn_input = false" },
        { "\"hc_mult\": 4", "\"hc_mult\": 4, \"index_k_source_layer_ids\": [2, 8, 14, 20]", NULL },
        { "\"hc_mult\": 4", "\"hc_mult\": 4, \"index_k_source_layer_ids\": [2, 8, 14, 24]",
          "index_k_source_layer_ids = array: only the layers" },
        { "\"hc_mult\": 4", "\"hc_mult\": 4, \"index_k_source_layer_ids\": [2, 8]", "index_k_source_layer_ids" },
        { "[\"DeepseekV41ForCausalLM\"]", "[\"DeepseekV3ForCausalLM\"]", "architectures[0] = \"DeepseekV3ForCausalLM\": only DeepseekV41" },
        { "[\"DeepseekV41ForCausalLM\"]", "\"DeepseekV41ForCausalLM\"", "architectures = " },
        { "[\"DeepseekV41ForCausalLM\"]", "null", NULL },
        { "\"dtype\"", "\xef\xbb\xbf\"dtype\"", "column" },
        { "\"dtype\": \"bfloat16\"", "\"dtype\": \"\xff\"", "column" },
    };
    ds_err err;
    ds_config c;
    char *real = text_of(REAL_CONFIG);
    int wrong = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = edited(real, cases[i].from, cases[i].to);
        err = (ds_err){ 0 };
        ds_rc rc = ds_config_parse(&c, text, strlen(text), "config.json", &err);
        if (cases[i].message ? rc != DS_E_FORMAT || !strstr(err.msg, cases[i].message) || !strstr(err.msg, "config.json") : rc != DS_OK) {
            print_error("%s -> %s: returned %d '%s', expected '%s'\n", cases[i].from, cases[i].to, rc, err.msg,
                        cases[i].message ? cases[i].message : "success");
            wrong++;
        }
        free(text);
    }
    free(real);
    assert_int_equal(wrong, 0);
}

static void targets_are_sorted(void **state)
{
    (void)state;
    ds_err err;
    ds_config c;
    char *real = text_of(REAL_CONFIG), *text = edited(real, "[37, 38, 39]", "[39, 5, 38]");
    assert_ok(ds_config_parse(&c, text, strlen(text), "c", &err));
    assert_int_equal(c.dspark_target_layer_ids[0], 5);
    assert_int_equal(c.dspark_target_layer_ids[1], 38);
    assert_int_equal(c.dspark_target_layer_ids[2], 39);
    free(text);
    free(real);
}

static void depth_size_and_kind_of_file(void **state)
{
    (void)state;
    ds_err err;
    ds_config c;
    char deep[256] = "";
    for (int i = 0; i < 66; i++)
        strcat(deep, "[");
    assert_refused(ds_config_parse(&c, deep, strlen(deep), "c.json", &err), DS_E_FORMAT, "c.json");
    assert_refused(ds_config_parse(&c, "[]", 2, "c.json", &err), DS_E_FORMAT, "must hold an object, holds array");
    assert_refused(ds_config_parse(&c, "", 0, "c.json", &err), DS_E_FORMAT, "c.json");
    char *big = malloc((1 << 20) + 1);
    memset(big, ' ', (1 << 20) + 1);
    assert_refused(ds_config_parse(&c, big, (1 << 20) + 1, "c.json", &err), DS_E_FORMAT, "at most 1048576");
    free(big);
    assert_refused(ds_config_load(&c, DS_TEST_ROOT "/nowhere/config.json", &err), DS_E_IO, "No such file");
    assert_refused(ds_config_load(&c, DS_TEST_ROOT "/src", &err), DS_E_IO, "config.json");
    assert_refused(ds_config_load(&c, "/dev/zero", &err), DS_E_IO, "is not a regular file");
}

/* ---- Engram ---- */

static void engram_primes_and_multipliers(void **state)
{
    (void)state;
    static const uint64_t first[24] = { 16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183,
                                        16000189, 16000207, 16000211, 16000253, 16000277, 16000289, 16000307, 16000321,
                                        16000339, 16000381, 16000393, 16000399, 16000403, 16000409, 16000447, 16000463 };
    static const uint64_t second[24] = { 16000477, 16000487, 16000499, 16000507, 16000511, 16000573, 16000609, 16000627,
                                         16000667, 16000669, 16000693, 16000697, 16000711, 16000729, 16000759, 16000769,
                                         16000781, 16000799, 16000813, 16000819, 16000841, 16000877, 16000879, 16000889 };
    static const uint64_t m1[4] = { 76632096046245, 4839876093313, 35959672319349, 73987337458391 };
    static const uint64_t m14[4] = { 67716810739261, 51510806800915, 30921347202721, 82619226485591 };
    ds_err err;
    ds_config c;
    ds_engram_hash h;
    assert_ok(ds_config_load(&c, REAL_CONFIG, &err));
    ds_engram_init(&h, &c, 0, 2);
    assert_memory_equal(h.prime, first, sizeof first);
    assert_memory_equal(h.multiplier, m1, sizeof m1);
    assert_int_equal(h.rows, 384006168);
    assert_int_equal(h.offset[0], 0);
    assert_int_equal(h.offset[1], 16000057);
    assert_int_equal(h.offset[23], 384006168 - 16000463);
    ds_engram_init(&h, &c, 1, 2);
    assert_memory_equal(h.prime, second, sizeof second);
    assert_memory_equal(h.multiplier, m14, sizeof m14);
    assert_int_equal(h.rows, 384016682);
}

/* Other ranges, recorded from NumPy: 2 * integers(0, (2^63 - 1) // V // 2) + 1. */
static void engram_multipliers_in_every_range(void **state)
{
    (void)state;
    static const struct {
        uint32_t layer, vocab;
        uint64_t m[8];
    } recorded[] = {
        { 0,
          355,
          { 16549111592643767u, 7009417553928523u, 1064546633590135u, 429409947518769u, 21129842204636583u, 23714603571680499u,
            15761204086666791u, 18953290652286015u } },
        { 2,
          302,
          { 25103570167327111u, 12172502381712301u, 7431042148948341u, 23435767221531229u, 17702529394915323u, 10605853410375005u,
            30151603280654853u, 17614571351140503u } },
        { 1,
          99092,
          { 76632096046245u, 4839876093313u, 35959672319349u, 73987337458391u, 39957143537345u, 70403400187673u, 20704857218653u,
            2098151033087u } },
        { 7,
          3,
          { 2720886630486869843u, 2304737312365378273u, 2471455791987932471u, 228825450118593667u, 55844979477271875u, 719927828232938465u,
            2224281256814202523u, 301159787834916273u } },
        { 1,
          1,
          { 7593627661414633239u, 479593001838623259u, 3563315849468963733u, 7331553243427025311u, 3959433267402557499u,
            6976413731397036915u, 2051685711510836337u, 207909982170572131u } },
        { 3,
          4194304,
          { 650335099847u, 1929230101691u, 256995191009u, 1660791577431u, 1030447930915u, 1948232439715u, 1313615895865u,
            2103838812519u } },
        { 255,
          995,
          { 4426868165619915u, 4167036082371909u, 8328451170340149u, 5188448372375533u, 8904396797724933u, 232785962067243u,
            6704862714659225u, 3976772210717379u } },
    };
    for (size_t i = 0; i < sizeof recorded / sizeof *recorded; i++) {
        uint64_t m[8];
        ds_engram_multipliers(m, 8, recorded[i].layer, recorded[i].vocab);
        assert_memory_equal(m, recorded[i].m, sizeof m);
    }
}

static void engram_hash_vectors(void **state)
{
    (void)state;
    static const int32_t ids[6] = { 10, 20, 30, 40, DS_ENGRAM_DEAD, 60 };
    static const struct {
        uint32_t table, position;
        uint64_t first[3], last;
    } v[] = {
        { 0, 0, { 9400104, 24924096, 42335591 }, 382122658 },  { 1, 0, { 11315085, 19412660, 45130897 }, 379075217 },
        { 0, 3, { 1326936, 22120929, 40011923 }, 378628807 },  { 1, 3, { 5403109, 26519290, 42262171 }, 378588994 },
        { 0, 5, { 12517458, 31476119, 47746026 }, 382374170 }, { 1, 5, { 15304368, 29517117, 40176349 }, 378309230 },
    };
    ds_err err;
    ds_config c;
    assert_ok(ds_config_load(&c, REAL_CONFIG, &err));
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        ds_engram_hash h;
        uint64_t out[24];
        int32_t history[4];
        for (uint32_t s = 0; s < 4; s++)
            history[s] = v[i].position >= s ? ids[v[i].position - s] : DS_ENGRAM_DEAD;
        ds_engram_init(&h, &c, v[i].table, 2);
        ds_engram_ids(out, &h, history);
        assert_memory_equal(out, v[i].first, sizeof v[i].first);
        assert_int_equal(out[23], v[i].last);
        for (uint32_t k = 0; k < 24; k++)
            assert_true(out[k] >= h.offset[k] && out[k] < h.offset[k] + h.prime[k]);
        /* What stands behind the first unavailable step doesn't count. */
        if (v[i].position == 5) {
            history[2] = 77;
            history[3] = 78;
            uint64_t again[24];
            ds_engram_ids(again, &h, history);
            assert_memory_equal(out, again, sizeof out);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_config),
        cmocka_unit_test(tiny_configs),
        cmocka_unit_test(released_topology),
        cmocka_unit_test(tiny_c_topology),
        cmocka_unit_test(refusals),
        cmocka_unit_test(targets_are_sorted),
        cmocka_unit_test(depth_size_and_kind_of_file),
        cmocka_unit_test(engram_primes_and_multipliers),
        cmocka_unit_test(engram_multipliers_in_every_range),
        cmocka_unit_test(engram_hash_vectors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
