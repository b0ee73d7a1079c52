#include <immintrin.h>

#include "kernbench/roof.h"

#define REP10(x) x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7) x(8) x(9)

double ds_roof_fma_avx2(size_t rounds)
{
    __m256 b = _mm256_set1_ps(0.5f), c = _mm256_set1_ps(1.0f);
#define X(i) __m256 a##i = _mm256_set1_ps(i);
    REP10(X)
#undef X
    for (size_t r = 0; r < rounds; r++) {
#define X(i) __asm__ volatile("vfmadd213ps %2, %1, %0" : "+x"(a##i) : "x"(b), "x"(c));
        REP10(X)
#undef X
    }
    return (double)rounds * 10 * 16;
}

double ds_roof_bytes_avx2(size_t rounds)
{
    __m256i b = _mm256_set1_epi8(3);
#define X(i) __m256i a##i = _mm256_set1_epi8(i);
    REP10(X)
#undef X
    for (size_t r = 0; r < rounds; r++) {
#define X(i) __asm__ volatile("vpmaddubsw %1, %0, %0" : "+x"(a##i) : "x"(b));
        REP10(X)
#undef X
    }
    return (double)rounds * 10 * 64;
}

#define DS_ROOF_READ ds_roof_read_avx2
#include "kernbench/roof_read_body.h"
