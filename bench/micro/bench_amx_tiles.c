/* The AMX product without its multiplications, on a CPU that has AVX-512: a tile load is 16 loads, a tile store 16
 * stores, and a multiplication takes no time. So what is measured is all that surrounds the tile unit (decoding,
 * packing, moving, waiting for memory), for each of its multiplications. It tells one structure from another; it
 * isn't the speed of a CPU with AMX. */
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "bench.h"

static size_t n_dots;

static inline __attribute__((always_inline)) void load_tile(const void *p, size_t pitch)
{
    for (size_t i = 0; i < 16; i++) {
        const char *q = (const char *)p + i * pitch;
        if (pitch == 64)
            __asm__ volatile("vmovdqu64 %0, %%zmm31" : : "m"(*(const char(*)[64])q) : "xmm31", "memory");
        else
            __asm__ volatile("vmovd %0, %%xmm31" : : "m"(*(const char(*)[4])q) : "xmm31", "memory");
    }
}

static inline __attribute__((always_inline)) void store_tile(void *p, size_t pitch)
{
    for (size_t i = 0; i < 16; i++) {
        char *q = (char *)p + i * pitch;
        if (pitch == 64)
            __asm__ volatile("vmovdqu64 %%zmm31, %0" : "=m"(*(char(*)[64])q) : : "memory");
        else
            __asm__ volatile("vmovd %%xmm31, %0" : "=m"(*(char(*)[4])q) : : "memory");
    }
}

#define TILE_CONFIG(cfg) __asm__ volatile("" : : "r"(cfg) : "memory")
#define TILE_RELEASE() ((void)0)
#define TILE_ZERO(t) ((void)0)
#define TILE_LOAD(t, p, pitch) load_tile(p, pitch)
#define TILE_STORE(t, p, pitch) store_tile(p, pitch)
#define TILE_DOT(c, a, b) ((void)n_dots++)

#include "kern/cpu/gemm_amx_body.h"

enum { IN = 5120, OUT = 4608, MAX_ROWS = 64, REPS = 9 };
static const size_t COLD = (size_t)256 << 20;

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* All outputs of a weight, or its first block as often. */
static uint64_t product(const ds_mat *w, size_t rows, const void *set, float *out, void *work, bool hot)
{
    uint64_t start = cpu_ns();
    for (uint64_t o = 0; o < OUT; o += OUTS)
        block(out, set, rows, 0, rows, w, hot ? 0 : o, OUTS, work);
    return cpu_ns() - start;
}

int main(void)
{
    static const ds_mat_type types[] = { DS_MAT_MXFP4, DS_MAT_FP8_32X32, DS_MAT_BF16 };
    static const char *const names[] = { "mxfp4", "fp8", "bf16" };
    static const size_t row_counts[] = { 1, 8, 32, MAX_ROWS };
    uint8_t *cold, *scales, *set;
    float *x, *out;
    void *work;
    uint64_t seed = 1;

    if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
        puts("skipped: this CPU has no AVX-512");
        return 77;
    }
    cold = ds_calloc_aligned(COLD, 1);
    scales = ds_calloc_aligned((size_t)OUT * IN / 32, 1);
    x = ds_calloc_aligned((size_t)MAX_ROWS * IN, sizeof *x);
    out = ds_calloc_aligned((size_t)DS_GEMM_ROWS * OUTS, sizeof *out);
    set = ds_calloc_aligned(set_bytes(MAX_ROWS, IN), 1);
    work = ds_calloc_aligned(sizeof(work_area), 1);
    if (!cold || !scales || !x || !out || !set || !work)
        return 1;
    for (size_t i = 0; i < COLD; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        cold[i] = (seed >> 56) & 0xbf;
    }
    for (size_t i = 0; i < (size_t)OUT * IN / 32; i++)
        scales[i] = (uint8_t)(118 + i % 6);
    ds_gemm_init();
    for (size_t t = 0; t < 3; t++)
        for (size_t k = 0; k < 4; k++) {
            size_t rows = row_counts[k],
                   bits = types[t] == DS_MAT_MXFP4  ? 4
                          : types[t] == DS_MAT_BF16 ? 16
                                                    : 8,
                   bytes = (size_t)OUT * IN * bits / 8;
            uint64_t cold_ns[REPS], hot_ns[REPS], c, h, p95;
            prep(set, x, IN, NULL, rows, 0, rows, IN, types[t]);
            for (size_t i = 0; i < REPS; i++) {
                ds_mat w = { .type = types[t], .in = IN, .out = OUT, .data = cold + i % (COLD / bytes) * bytes, .scale = scales };
                n_dots = 0;
                cold_ns[i] = product(&w, rows, set, out, work, false);
                hot_ns[i] = product(&w, rows, set, out, work, true);
            }
            bench_stats(cold_ns, REPS, &c, &p95);
            bench_stats(hot_ns, REPS, &h, &p95);
            printf("op=amx_surroundings weight=%s shape=%dx%d rows=%zu cold_ns_a_dot=%.1f hot_ns_a_dot=%.1f\n", names[t], OUT, IN, rows,
                   2.0 * (double)c / (double)n_dots, 2.0 * (double)h / (double)n_dots);
        }
    free(cold);
    free(scales);
    free(x);
    free(out);
    free(set);
    free(work);
    return 0;
}
