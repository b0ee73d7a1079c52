/* bf16 matrix product, AVX-512 with VDPBF16PS: weights decode exactly to bf16 (values that are subnormal in bf16
 * count as zero, as the instruction has it).
 *
 * As gemm_body.h has it, with a chunk of 32 products in one vector of pairs, in the order of bf16_decode.h: chain <-
 * chain + odd*odd + even*even in each of 16 lanes, as the CPU rounds it. One row is bound by the bytes of the weight
 * or by decoding (three to seven instructions for 32 codes), more rows by VDPBF16PS. */
#include "kern/cpu/bf16_decode.h"

#undef V
#define V(name) name##_avx512bf16
#define DS_KERN_CPU_TILE_ROWS 4

enum { UNITS = 1, UNIT = 32, CHUNK = UNIT, KC = 2048, F32_WEIGHTS = 0 };

typedef uint16_t elem;
typedef __m512i unit;

static inline unit unit_of(const elem *x)
{
    return _mm512_loadu_si512(x);
}

static inline vf mul(vf acc, unit w, unit x)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x);
}

static inline void prep_chunk(elem *d, const float *x, size_t left, ds_mat_type type)
{
    _mm512_storeu_si512(d, bf16_of(x, left, type));
}

static inline __attribute__((always_inline)) void decode(unit d[UNITS], ds_mat_type type, ds_gemm_row r, size_t c, size_t in)
{
    d[0] = decode_bf16(type, r, c, in);
}

static inline size_t direct_rows(ds_mat_type type)
{
    return type == DS_MAT_MXFP4 || type == DS_MAT_BF16 ? DS_GEMM_ROWS : 8;
}

#include "kern/cpu/gemm_body.h"
