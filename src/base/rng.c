/* Philox 4x32-10. Counter words 0-1 are the index and 2-3 the stream; the key is the seed. */
#include "base/rng.h"

#include <math.h>

void ds_philox(uint32_t out[4], const uint32_t key[2], const uint32_t counter[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];

    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static void draw(uint32_t out[4], uint64_t seed, uint64_t stream, uint64_t index)
{
    const uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
    const uint32_t counter[4] = { (uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32) };

    ds_philox(out, key, counter);
}

static double unit53(uint32_t lo, uint32_t hi)
{
    return (double)(((uint64_t)hi << 32 | lo) >> 11) * 0x1p-53;
}

uint64_t ds_rng_u64(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t r[4];

    draw(r, seed, stream, index);
    return (uint64_t)r[1] << 32 | r[0];
}

double ds_rng_unit(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t r[4];

    draw(r, seed, stream, index);
    return unit53(r[0], r[1]);
}

double ds_rng_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    const double two_pi = 6.283185307179586;
    uint32_t r[4];

    draw(r, seed, stream, index);
    return sqrt(-2.0 * log(unit53(r[0], r[1]) + 0x1p-54)) * cos(two_pi * unit53(r[2], r[3])); /* + 2^-54: log never sees 0 */
}
