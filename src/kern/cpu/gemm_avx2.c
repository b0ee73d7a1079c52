/* f32 matrix product, AVX2 and FMA. */
#include "kern/cpu/vec_avx2.h"

#include "kern/cpu/gemm_f32.h"

#define DS_KERN_CPU_TILE_ROWS 2
#include "kern/cpu/gemm_body.h"
