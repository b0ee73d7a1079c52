/* The router, AVX-512. */
#include <math.h>

#include "kern/cpu/vec_avx512.h"

#include "kern/cpu/route_body.h"
