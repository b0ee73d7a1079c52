/* bf16 matrix product by AMX tiles. */
#include <immintrin.h>

/* The compiler's tile loads don't say what they read: memory must be up to date before them. */
static inline void settled(const void *p)
{
    __asm__ volatile("" : : "r"(p) : "memory");
}

#define TILE_CONFIG(cfg) (settled(cfg), _tile_loadconfig(cfg))
#define TILE_RELEASE() _tile_release()
#define TILE_ZERO(t) _tile_zero(t)
#define TILE_LOAD(t, p, pitch)    \
    do {                          \
        settled(p);               \
        _tile_loadd(t, p, pitch); \
    } while (0)
#define TILE_STORE(t, p, pitch)    \
    do {                           \
        _tile_stored(t, p, pitch); \
        settled(p);                \
    } while (0)
#define TILE_DOT(c, a, b) _tile_dpbf16ps(c, a, b)

#include "kern/cpu/gemm_amx_body.h"

const ds_gemm ds_gemm_amx = {
    .set_bytes = set_bytes, .prep = prep, .block = block, .work_bytes = sizeof(work_area), .set_rows = GROUP, .outs = OUTS
};
