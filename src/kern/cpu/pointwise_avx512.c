/* Norms, rotations and element by element ops, AVX-512. */
#include <math.h>

#include "kern/cpu/vec_avx512.h"

#include "kern/cpu/pointwise_body.h"
