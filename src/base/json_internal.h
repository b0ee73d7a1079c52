/* Shared by the JSON reader and writer. */
#ifndef DS_BASE_JSON_INTERNAL_H
#define DS_BASE_JSON_INTERNAL_H

#include <stdint.h>

/* Of 8 bytes of text (loaded in memory order; little-endian, as all our formats): the lowest bit set is the high bit
 * of the first byte that is a quote, a backslash or a control character; 0 = there is none. Bits above the lowest
 * may be wrong. */
static inline uint64_t ds_json_run_end(uint64_t w)
{
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    uint64_t quote = w ^ ones * '"', slash = w ^ ones * '\\';

    return (((w - ones * 0x20) & ~w) | ((quote - ones) & ~quote) | ((slash - ones) & ~slash)) & high;
}

#endif
