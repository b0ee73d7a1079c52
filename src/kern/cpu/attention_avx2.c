/* Attention, AVX2. */
#include <math.h>
#include <string.h>

#include "kern/cpu/vec_avx2.h"

#include "kern/cpu/attention_body.h"
