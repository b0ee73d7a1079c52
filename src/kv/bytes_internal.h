/* Numbers in the room's byte formats: least significant byte first. */
#ifndef DS_KV_BYTES_INTERNAL_H
#define DS_KV_BYTES_INTERNAL_H

#include <stdint.h>

static inline void put_le(uint8_t *at, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

static inline uint64_t get_le(const uint8_t *at, int bytes)
{
    uint64_t v = 0;

    for (int i = bytes; i-- > 0;)
        v = v << 8 | at[i];
    return v;
}

#endif
