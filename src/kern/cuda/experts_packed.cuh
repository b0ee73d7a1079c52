/* Experts whose weights are packed (packed.cuh), in bf16 mode. */
#ifndef DS_KERN_CUDA_EXPERTS_PACKED_CUH
#define DS_KERN_CUDA_EXPERTS_PACKED_CUH

#include "common.cuh"

/* w: where the experts' matrices are, in device memory. The caller rewinds scratch. */
void ds_experts_packed(ds_exec *e, const ds_op_experts_part *a, const ds_cuda_expert *w);
size_t ds_experts_packed_scratch(const ds_kern_limits *lim);

#endif
