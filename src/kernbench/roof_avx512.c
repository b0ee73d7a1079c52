#include <immintrin.h>

#include "kernbench/roof.h"

#define REP12(x) x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7) x(8) x(9) x(10) x(11)

double ds_roof_fma_avx512(size_t rounds)
{
    __m512 b = _mm512_set1_ps(0.5f), c = _mm512_set1_ps(1.0f);
#define X(i) __m512 a##i = _mm512_set1_ps(i);
    REP12(X)
#undef X
    for (size_t r = 0; r < rounds; r++) {
#define X(i) __asm__ volatile("vfmadd213ps %2, %1, %0" : "+v"(a##i) : "v"(b), "v"(c));
        REP12(X)
#undef X
    }
    return (double)rounds * 12 * 32;
}

double ds_roof_bytes_avx512(size_t rounds)
{
    __m512i b = _mm512_set1_epi8(3);
#define X(i) __m512i a##i = _mm512_set1_epi8(i);
    REP12(X)
#undef X
    for (size_t r = 0; r < rounds; r++) {
#define X(i) __asm__ volatile("vpmaddubsw %1, %0, %0" : "+v"(a##i) : "v"(b));
        REP12(X)
#undef X
    }
    return (double)rounds * 12 * 128;
}

#define DS_ROOF_READ ds_roof_read_avx512
#include "kernbench/roof_read_body.h"
