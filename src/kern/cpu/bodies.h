/* The bodies that exist for the vectors of both AVX2 and AVX-512; see the *_body.h files. */
#ifndef DS_KERN_CPU_BODIES_H
#define DS_KERN_CPU_BODIES_H

#include "kern/cpu/gemm.h"
#include "kern/kern.h"

ds_rmsnorm_fn ds_rmsnorm_avx2, ds_rmsnorm_avx512;
ds_rope_fn ds_rope_avx2, ds_rope_avx512;
ds_add_fn ds_add_avx2, ds_add_avx512;
ds_swiglu_fn ds_swiglu_avx2, ds_swiglu_avx512;
ds_route_fn ds_route_avx2, ds_route_avx512;
ds_vit_attention_fn ds_vit_attention_avx2, ds_vit_attention_avx512;
ds_rope2d_fn ds_rope2d_avx2, ds_rope2d_avx512;
ds_mhc_fn ds_mhc_avx2, ds_mhc_avx512;
ds_stream_mean_fn ds_stream_mean_avx2, ds_stream_mean_avx512;
ds_engram_fuse_fn ds_engram_fuse_avx2, ds_engram_fuse_avx512;
ds_index_topk_fn ds_index_topk_avx2, ds_index_topk_avx512;
ds_attention_fn ds_attention_avx2, ds_attention_avx512;

typedef void ds_hidden_fn(float *h, const float *g, const float *u, size_t n, float w, float limit, bool round_in, bool round_out);
ds_hidden_fn ds_hidden_avx2, ds_hidden_avx512;

#endif
