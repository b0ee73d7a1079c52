/* The router, AVX2. */
#include <math.h>

#include "kern/cpu/vec_avx2.h"

#include "kern/cpu/route_body.h"
