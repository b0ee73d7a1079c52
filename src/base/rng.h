/* Counter-based random numbers: Philox 4x32-10 (Salmon et al., SC 2011).
 *
 * A number is a pure function of (seed, stream, index): a request that owns a stream draws the same numbers whatever
 * else runs, in any order, on any thread. Nothing is stored. */
#ifndef DS_BASE_RNG_H
#define DS_BASE_RNG_H

#include <stdint.h>

void ds_philox(uint32_t out[4], const uint32_t key[2], const uint32_t counter[4]);
uint64_t ds_rng_u64(uint64_t seed, uint64_t stream, uint64_t index);
double ds_rng_unit(uint64_t seed, uint64_t stream, uint64_t index);   /* [0, 1), 53 bits */
double ds_rng_normal(uint64_t seed, uint64_t stream, uint64_t index); /* mean 0, variance 1 (Box-Muller) */

#endif
