/* Vision ops, AVX-512. */
#include <math.h>

#include "kern/cpu/vec_avx512.h"

#include "kern/ref/ref.h"

#include "kern/cpu/vision_body.h"
