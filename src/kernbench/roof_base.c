/* Roofs that any CPU has. */
#include "kernbench/roof.h"

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

#define DS_ROOF_READ ds_roof_read_base
#include "kernbench/roof_read_body.h"
