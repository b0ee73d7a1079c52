/* Index scores, AVX-512. */
#include <string.h>

#include "kern/cpu/vec_avx512.h"

#include "kern/cpu/index_body.h"
