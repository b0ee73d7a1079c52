#include <immintrin.h>

#include "kernbench/roof.h"

#define REP12(x) x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7) x(8) x(9) x(10) x(11)

double ds_roof_dpbf16(size_t rounds)
{
    __m512 b = _mm512_setzero_ps();
#define X(i) __m512 a##i = _mm512_set1_ps(i);
    REP12(X)
#undef X
    for (size_t r = 0; r < rounds; r++) {
#define X(i) __asm__ volatile("vdpbf16ps %1, %1, %0" : "+v"(a##i) : "v"(b));
        REP12(X)
#undef X
    }
    return (double)rounds * 12 * 64;
}
