/* The weights of an opened model, as the layers use them.
 *
 * All but `map_host` is for ops: the device reads mapped files and the heap where they are, or gets copies in its
 * own memory and form. Which members of a layer are set follows from the topology: compressor and index keys in KV
 * sources, the indexer's query side in index sources, Engram where the layer has a table. Threads: constant after
 * open, but for what `seen` points to. */
#ifndef DS_MODEL_WEIGHTS_H
#define DS_MODEL_WEIGHTS_H

#include <stdatomic.h>

#include "format/safetensors.h"
#include "kern/device.h"
#include "model/model.h"
#include "parallel/dispatch.h"

typedef struct {
    const float *fn, *base, *scale; /* [(2+n)n][n*d], [(2+n)n], [3] */
} ds_w_hc;

typedef struct {
    ds_w_hc hc_attn, hc_ffn;
    const float *attn_norm, *ffn_norm, *q_norm, *kv_norm, *sink;
    ds_mat wq_a, wq_b, wkv, wo_a, wo_b;
    /* KV sources */
    ds_mat c_wkv, c_wgate; /* c_wgate at ratio 2 only */
    const float *c_norm;
    ds_mat i_wk;
    const float *i_knorm;
    /* index sources */
    ds_mat i_wq_b, i_weights;
    /* experts */
    ds_mat gate, s1, s3, s2;
    const float *bias, *bias_vl; /* bias_vl NULL: not in the file */
    ds_mat *w1, *w3, *w2;        /* [n_own] */
    atomic_uchar *seen;          /* [n_own] values were looked at and are good; NULL: all were at load. Relaxed: a flag
                                    that is missed costs another look */
    uint32_t n_experts, k;
    uint32_t first, n_own;        /* experts that are here; all of them, where there are no other ranks */
    const ds_expert_place *place; /* [n_experts] where each is */
    /* Engram */
    ds_mat e_table, e_wkv;
    const float *e_q, *e_k; /* [n][d] */
} ds_w_layer;

typedef struct {
    const float *norm1, *norm2, *qkv_bias, *o_bias;
    ds_mat qkv, o, w1, w2;
} ds_w_block;

typedef struct {
    ds_mat embed, head;
    const float *norm;
    ds_w_layer *layer; /* backbone, then drafts */

    /* drafts */
    ds_mat main_proj, markov_embed, markov_head, conf;
    const float *main_norm, *draft_norm;

    /* vision */
    const float *image_start, *image_end, *image_newline; /* [d] */
    ds_mat patch, aligner1, aligner2;
    const float *patch_bias, *aligner1_bias, *aligner2_bias, *vision_norm;
    ds_w_block *block;

    /* Engram hash, by ordinal */
    const int32_t *map, *map_host; /* [vocab] */
    int32_t pad;
    const uint64_t *prime, *offset; /* [tables][columns] */
    const uint64_t *mult;           /* [tables][max_ngram] */

    /* what is held */
    void **blocks; /* heap pieces, freed in close */
    size_t n_blocks, cap_blocks;
    ds_mem mem; /* of the device */
    ds_st *files;
    ds_model_stats stats;
} ds_weights;

ds_rc ds_weights_open(ds_weights *w, const char *dir, const ds_config *c, const ds_topology *t, ds_device *d, const ds_model_opts *o,
                      ds_err *err);
void ds_weights_close(ds_weights *w); /* copes with every half-built state */

#endif
