/* Roofs that any CPU has. */
#include "bench/roof.h"

double ds_roof_scalar(size_t rounds)
{
    float a[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };

    for (size_t i = 0; i < rounds; i++) {
        for (int k = 0; k < 8; k++)
            a[k] = a[k] * 0.5f + 1.0f;
        __asm__ volatile("" : : "m"(a) : "memory");
    }
    return (double)rounds * 16;
}

uint64_t ds_roof_read(const void *p, size_t n)
{
    const uint64_t *q = p;
    uint64_t s[8] = { 0 };

    for (size_t i = 0; i < n / 8; i += 8)
        for (int k = 0; k < 8; k++)
            s[k] += q[i + (size_t)k];
    return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}
