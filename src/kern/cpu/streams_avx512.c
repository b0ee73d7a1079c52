/* The residual streams, AVX-512. */
#include <math.h>
#include <string.h>

#include "kern/cpu/vec_avx512.h"

#include "kern/cpu/streams_body.h"
