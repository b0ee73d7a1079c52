/* f32 matrix product, AVX-512. */
#include "kern/cpu/vec_avx512.h"

#include "kern/cpu/gemm_f32.h"

#define DS_KERN_CPU_TILE_ROWS 4
#include "kern/cpu/gemm_body.h"
