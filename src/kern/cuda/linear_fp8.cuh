/* Linear layers of FP8 32x32 weights in bf16 mode. */
#ifndef DS_KERN_CUDA_LINEAR_FP8_CUH
#define DS_KERN_CUDA_LINEAR_FP8_CUH

#include "common.cuh"

bool ds_linear_fp8_takes(const ds_op_linear *a); /* by the weight's shape and groups */
void ds_linear_fp8(ds_exec *e, const ds_op_linear *a);
size_t ds_linear_fp8_scratch(size_t rows, size_t in); /* in: all groups' */

#endif
