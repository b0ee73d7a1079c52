/* Numbers in the room's byte formats: least significant byte first. */
#ifndef DS_KV_BYTES_INTERNAL_H
#define DS_KV_BYTES_INTERNAL_H

#include <stdint.h>

static inline void put_le(uint8_t *at, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

#endif
