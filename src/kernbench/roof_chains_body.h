/* A ceiling of products: independent chains of one instruction with all operands in registers. Written once; before
 * each time that it is included:
 *
 *   DS_ROOF_CHAINS        name of the function
 *   DS_ROOF_INSTRUCTION   %0 is the chain, %1 is 0.5 and %2 is 1 everywhere
 *   DS_ROOF_OPS           what it counts for
 *   DS_ROOF_BYTES         of a vector: 32, of which there are 16, or 64, of which there are 32 */
#include "kernbench/roof.h"

#if DS_ROOF_BYTES == 32
#define EACH(x) x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7) x(8) x(9)
#define N_CHAINS 10
#else
#define EACH(x) x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7) x(8) x(9) x(10) x(11)
#define N_CHAINS 12
#endif
#define BEGIN(i) vector a##i = (vector){ 0 } + i;
#define STEP(i) __asm__ volatile(DS_ROOF_INSTRUCTION : "+v"(a##i) : "v"(b), "v"(c));

double DS_ROOF_CHAINS(size_t rounds)
{
    typedef float vector __attribute__((vector_size(DS_ROOF_BYTES)));
    vector b = (vector){ 0 } + 0.5f, c = (vector){ 0 } + 1.0f;

    EACH(BEGIN)
    for (size_t r = 0; r < rounds; r++) {
        EACH(STEP)
    }
    return (double)rounds * N_CHAINS * DS_ROOF_OPS;
}

#undef EACH
#undef N_CHAINS
#undef BEGIN
#undef STEP
#undef DS_ROOF_CHAINS
#undef DS_ROOF_INSTRUCTION
#undef DS_ROOF_OPS
