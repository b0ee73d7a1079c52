/* The CUDA backend: kernels for sm_90a behind the op table, and the device under them (kern/device.h).
 *
 * Launchers only put kernels on ds_exec.stream, which is a ds_stream of device.cu; scratch comes from ds_exec, whose
 * arena is device memory, and ds_exec.fault is stage memory. Weights, tables and everything else that an op reads
 * stand where device.cu placed them: 16-byte aligned. What a launch fails with is kept in the stream's device, which
 * is dead then. Threads: a filled table is constant and shared. */
#ifndef DS_KERN_CUDA_CUDA_H
#define DS_KERN_CUDA_CUDA_H

#include "kern/kern.h"

#ifdef __cplusplus
extern "C" {
#endif

void ds_cuda_use(ds_kern *k);

/* Where an expert's matrices stand. A launch can't pass hundreds of pointers, so place_experts writes a table of
 * these to device memory; w1[x].packed is the address of expert x's. */
typedef struct {
    const uint8_t *w[3], *scale[3]; /* of w1, w3, w2 */
} ds_cuda_expert;

size_t ds_cuda_scratch_bytes(const ds_kern_limits *lim);

ds_rows_fn ds_rows_cuda;
ds_linear_fn ds_linear_cuda;
ds_dequant_fn ds_dequant_cuda;
ds_rmsnorm_fn ds_rmsnorm_cuda;
ds_rope_fn ds_rope_cuda;
ds_add_fn ds_add_cuda;
ds_swiglu_fn ds_swiglu_cuda;
ds_gelu_fn ds_gelu_cuda;
ds_argmax_fn ds_argmax_cuda;
ds_copy_fn ds_copy_cuda;
ds_scatter_fn ds_scatter_cuda;
ds_finite_fn ds_finite_cuda;
ds_embed_fn ds_embed_cuda;
ds_mhc_fn ds_mhc_cuda;
ds_stream_mean_fn ds_stream_mean_cuda;
ds_ring_store_fn ds_ring_store_cuda;
ds_ring_load_fn ds_ring_load_cuda;
ds_win_quant_fn ds_win_quant_cuda;
ds_idx_quant_fn ds_idx_quant_cuda;
ds_pool_pairs_fn ds_pool_pairs_cuda;
ds_kv_store_fn ds_kv_store_cuda;
ds_kv_store_fn ds_idx_store_cuda;
ds_index_topk_fn ds_index_topk_cuda;
ds_attention_fn ds_attention_cuda;
ds_route_fn ds_route_cuda;
ds_experts_part_fn ds_experts_part_cuda;
ds_experts_sum_fn ds_experts_sum_cuda;
ds_engram_hash_fn ds_engram_hash_cuda;
ds_engram_gather_fn ds_engram_gather_cuda;
ds_engram_fuse_fn ds_engram_fuse_cuda;
ds_rope2d_fn ds_rope2d_cuda;
ds_vit_attention_fn ds_vit_attention_cuda;
ds_cells_fn ds_cells_cuda;
ds_sample_fn ds_sample_cuda;
ds_accept_fn ds_accept_cuda;

/* What the largest call of an op takes from scratch. */
size_t ds_linear_cuda_scratch(const ds_kern_limits *lim);
size_t ds_experts_cuda_scratch(const ds_kern_limits *lim);
size_t ds_index_topk_cuda_scratch(const ds_kern_limits *lim);
size_t ds_mhc_cuda_scratch(const ds_kern_limits *lim);
size_t ds_sample_cuda_scratch(const ds_kern_limits *lim);

#ifdef __cplusplus
}
#endif

#endif
