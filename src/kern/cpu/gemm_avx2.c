/* f32 matrix product, AVX2 and FMA. */
#include <string.h>

#include "format/numfmt.h"
#include "kern/cpu/vec_avx2.h"

#define DS_KERN_CPU_TILE_ROWS 2
#include "kern/cpu/gemm_body.h"
