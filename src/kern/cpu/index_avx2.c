/* Index scores, AVX2. */
#include <string.h>

#include "kern/cpu/vec_avx2.h"

#include "kern/cpu/index_body.h"
