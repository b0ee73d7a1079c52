/* Vision ops, AVX2. */
#include <math.h>

#include "kern/cpu/vec_avx2.h"

#include "kern/ref/ref.h"

#include "kern/cpu/vision_body.h"
