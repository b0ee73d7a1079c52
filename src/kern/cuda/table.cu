/* Which bodies make up the table. */
#include "common.cuh"

#include <string.h>

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

size_t ds_cuda_scratch_bytes(const ds_kern_limits *lim)
{
    return larger(larger(larger(ds_linear_cuda_scratch(lim), ds_experts_cuda_scratch(lim)), ds_sample_cuda_scratch(lim)),
                  larger(ds_index_topk_cuda_scratch(lim), ds_mhc_cuda_scratch(lim)));
}

void ds_cuda_use(ds_kern *k)
{
    memset(k, 0, sizeof *k);
    k->name = "cuda";
    k->scratch_bytes = ds_cuda_scratch_bytes;
    k->rows = ds_rows_cuda;
    k->linear = ds_linear_cuda;
    k->dequant = ds_dequant_cuda;
    k->rmsnorm = ds_rmsnorm_cuda;
    k->rope = ds_rope_cuda;
    k->add = ds_add_cuda;
    k->swiglu = ds_swiglu_cuda;
    k->gelu = ds_gelu_cuda;
    k->argmax = ds_argmax_cuda;
    k->copy = ds_copy_cuda;
    k->scatter = ds_scatter_cuda;
    k->finite = ds_finite_cuda;
    k->embed = ds_embed_cuda;
    k->mhc = ds_mhc_cuda;
    k->stream_mean = ds_stream_mean_cuda;
    k->ring_store = ds_ring_store_cuda;
    k->ring_load = ds_ring_load_cuda;
    k->win_quant = ds_win_quant_cuda;
    k->idx_quant = ds_idx_quant_cuda;
    k->pool_pairs = ds_pool_pairs_cuda;
    k->kv_store = ds_kv_store_cuda;
    k->idx_store = ds_idx_store_cuda;
    k->index_topk = ds_index_topk_cuda;
    k->attention = ds_attention_cuda;
    k->route = ds_route_cuda;
    k->experts_part = ds_experts_part_cuda;
    k->experts_sum = ds_experts_sum_cuda;
    k->engram_hash = ds_engram_hash_cuda;
    k->engram_gather = ds_engram_gather_cuda;
    k->engram_fuse = ds_engram_fuse_cuda;
    k->rope2d = ds_rope2d_cuda;
    k->vit_attention = ds_vit_attention_cuda;
    k->cells = ds_cells_cuda;
    k->sample = ds_sample_cuda;
    k->accept = ds_accept_cuda;
}
