#include <immintrin.h>
#include <string.h>

#include "kernbench/roof.h"

double ds_roof_amx(size_t rounds)
{
    struct {
        uint8_t palette, rest[15];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } cfg = { .palette = 1 };

    for (int t = 0; t < 6; t++) {
        cfg.row_bytes[t] = 64;
        cfg.rows[t] = 16;
    }
    __asm__ volatile("" : : "r"(&cfg) : "memory"); /* the intrinsic doesn't say that it reads all of it */
    _tile_loadconfig(&cfg);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    for (size_t r = 0; r < rounds; r++) {
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 5);
        _tile_dpbf16ps(2, 4, 5);
        _tile_dpbf16ps(3, 4, 5);
    }
    _tile_release();
    return (double)rounds * 4 * 16 * 16 * 32 * 2;
}
