/* The residual streams, AVX2. */
#include <math.h>
#include <string.h>

#include "kern/cpu/vec_avx2.h"

#include "kern/cpu/streams_body.h"
