/* Norms, rotations and element by element ops, AVX2. */
#include <math.h>

#include "kern/cpu/vec_avx2.h"

#include "kern/cpu/pointwise_body.h"
