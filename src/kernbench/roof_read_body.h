/* Reading, written once and built for each width of vectors: DS_ROOF_READ names the function. Narrow loads can keep
 * a core below what its memory gives. */
#include "kernbench/roof.h"

/* A line of the cache. */
typedef uint64_t line __attribute__((vector_size(64)));

static inline __attribute__((always_inline)) uint64_t read_streams(const uint8_t *p, size_t n, size_t streams, size_t ahead)
{
    enum { PITCH = 4096 };
    line s[4] = { 0 };

    for (size_t at = 0; at < n; at += streams * PITCH)
        for (size_t c = 0; c < PITCH; c += sizeof(line))
            for (size_t k = 0; k < streams; k++) {
                const uint8_t *q = p + at + k * PITCH + c;
                if (ahead)
                    __builtin_prefetch(q + ahead);
                s[k % 4] += *(const line *)(const void *)q;
            }
    s[0] += s[1] + s[2] + s[3];
    return s[0][0] + s[0][1] + s[0][2] + s[0][3] + s[0][4] + s[0][5] + s[0][6] + s[0][7];
}

uint64_t DS_ROOF_READ(const void *p, size_t n, uint32_t pattern)
{
    switch (pattern) {
    case 0:
        return read_streams(p, n, 1, 0);
    case 1:
        return read_streams(p, n, 1, 1024);
    case 2:
        return read_streams(p, n, 4, 0);
    case 3:
        return read_streams(p, n, 4, 1024);
    case 4:
        return read_streams(p, n, 8, 1024);
    case 5:
        return read_streams(p, n, 16, 0);
    default:
        return read_streams(p, n, 16, 1024);
    }
}
