/* The scalar oracle: one plain body for each op, written from the contracts in kern.h for reading and comparing, not
 * for speed. Rows are shared among the threads of the context, nothing else is clever. */
#ifndef DS_KERN_REF_REF_H
#define DS_KERN_REF_REF_H

#include "kern/kern.h"

size_t ds_scratch_bytes_ref(const ds_kern_limits *lim);

ds_rows_fn ds_rows_ref;
ds_linear_fn ds_linear_ref;
ds_dequant_fn ds_dequant_ref;
ds_rmsnorm_fn ds_rmsnorm_ref;
ds_rope_fn ds_rope_ref;
ds_add_fn ds_add_ref;
ds_swiglu_fn ds_swiglu_ref;
ds_gelu_fn ds_gelu_ref;
ds_argmax_fn ds_argmax_ref;
ds_copy_fn ds_copy_ref;
ds_scatter_fn ds_scatter_ref;
ds_finite_fn ds_finite_ref;
ds_embed_fn ds_embed_ref;
ds_mhc_fn ds_mhc_ref;
ds_stream_mean_fn ds_stream_mean_ref;
ds_ring_store_fn ds_ring_store_ref;
ds_ring_load_fn ds_ring_load_ref;
ds_win_quant_fn ds_win_quant_ref;
ds_idx_quant_fn ds_idx_quant_ref;
ds_pool_pairs_fn ds_pool_pairs_ref;
ds_kv_store_fn ds_kv_store_ref;
ds_kv_store_fn ds_idx_store_ref;
ds_index_topk_fn ds_index_topk_ref;
ds_attention_fn ds_attention_ref;
ds_route_fn ds_route_ref;
ds_experts_part_fn ds_experts_part_ref;
ds_experts_sum_fn ds_experts_sum_ref;
ds_engram_hash_fn ds_engram_hash_ref;
ds_engram_gather_fn ds_engram_gather_ref;
ds_engram_fuse_fn ds_engram_fuse_ref;
ds_rope2d_fn ds_rope2d_ref;
ds_vit_attention_fn ds_vit_attention_ref;
ds_cells_fn ds_cells_ref;
ds_sample_fn ds_sample_ref;
ds_accept_fn ds_accept_ref;

#endif
