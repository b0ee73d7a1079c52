/* One core's products of a weight of 4608 x 5120 with 1 to 64 rows, block by block as linear layers ask for them:
 * from memory (another weight each time) and from L2 (two blocks again and again), by the thread's own CPU clock.
 * What lies between the two is waiting for memory; `deepserve bench` has the roofs.
 *
 * usage: bench_products [PART]    only cases whose name contains PART, such as mxfp4/avx512/ or avx512bf16 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "bench.h"
#include "kern/cpu/gemm.h"

enum { IN = 5120, OUT = 4608, MAX_ROWS = 64, REPS = 9, HOT_REPS = 50, HOT_BLOCKS = 16 };
static const size_t COLD = (size_t)256 << 20;

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

typedef struct {
    const char *name;
    ds_mat_type type;
    double bits; /* of a weight, with its scale */
} form;

static void run(const char *set, const ds_gemm *g, const form *f, size_t rows, const uint8_t *cold, const uint8_t *scales, const float *x)
{
    size_t bytes = (size_t)OUT * IN * ds_gemm_bits(f->type) / 8, n_weights = COLD / bytes;
    uint8_t *prepared = ds_calloc_aligned(g->set_bytes(rows, IN), 1), *work = ds_calloc_aligned(g->work_bytes, 1);
    float *out = ds_calloc_aligned((size_t)DS_GEMM_ROWS * DS_GEMM_OUTS_MAX, sizeof *out);
    double all = (double)OUT * IN * f->bits / 8;
    uint64_t ns[HOT_REPS], cold_ns, hot_ns, p95;

    if (prepared && work && out) {
        g->prep(prepared, x, IN, NULL, rows, 0, rows, IN, f->type);
        for (size_t i = 0; i < REPS; i++) {
            ds_mat w = { .type = f->type, .in = IN, .out = OUT, .data = cold + i % n_weights * bytes, .scale = scales };
            ns[i] = cpu_ns();
            for (uint64_t o = 0; o < OUT; o += g->outs)
                g->block(out, prepared, rows, 0, rows, &w, o, g->outs, work);
            ns[i] = cpu_ns() - ns[i];
        }
        bench_stats(ns, REPS, &cold_ns, &p95);
        for (size_t i = 0; i < HOT_REPS; i++) {
            ds_mat w = { .type = f->type, .in = IN, .out = OUT, .data = cold, .scale = scales };
            ns[i] = cpu_ns();
            for (size_t b = 0; b < HOT_BLOCKS; b++)
                g->block(out, prepared, rows, 0, rows, &w, b % 2 * g->outs, g->outs, work);
            ns[i] = cpu_ns() - ns[i];
        }
        bench_stats(ns, HOT_REPS, &hot_ns, &p95);
        printf("op=product variant=%s weight=%s shape=%dx%d rows=%zu cold_gb_s=%.1f cold_gflop_s=%.1f hot_gb_s=%.1f hot_gflop_s=%.1f\n",
               set, f->name, OUT, IN, rows, all / (double)cold_ns, 2.0 * OUT * IN * (double)rows / (double)cold_ns,
               all * HOT_BLOCKS * g->outs / OUT / (double)hot_ns, 2.0 * HOT_BLOCKS * g->outs * IN * (double)rows / (double)hot_ns);
        fflush(stdout);
    }
    free(prepared);
    free(work);
    free(out);
}

int main(int argc, char **argv)
{
    static const form forms[] = { { "mxfp4", DS_MAT_MXFP4, 4.25 }, { "fp8", DS_MAT_FP8_32X32, 8 }, { "bf16", DS_MAT_BF16, 16 } };
    static const size_t row_counts[] = { 1, 2, 4, 8, 16, 32, MAX_ROWS };
    uint8_t *cold = ds_calloc_aligned(COLD, 1), *scales = ds_calloc_aligned((size_t)OUT * IN / 32, 1);
    float *x = ds_calloc_aligned((size_t)MAX_ROWS * IN, sizeof *x);
    uint64_t seed = 1;

    if (!cold || !scales || !x)
        return 1;
    for (size_t i = 0; i < COLD; i++) { /* valid FP8 codes and small bf16 values */
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        cold[i] = (seed >> 56) & 0xbf;
    }
    for (size_t i = 0; i < (size_t)OUT * IN / 32; i++)
        scales[i] = (uint8_t)(118 + i % 6);
    for (size_t i = 0; i < (size_t)MAX_ROWS * IN; i++)
        x[i] = (float)(i * 7 % 31) / 16 - 1;
    ds_gemm_init();
#ifdef __x86_64__
    const struct {
        const char *name;
        const ds_gemm *g;
        bool there;
    } sets[] = {
        { "avx2", &ds_gemm_avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") },
        { "avx512", &ds_gemm_avx512, __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") },
        { "avx512bf16", &ds_gemm_avx512bf16, __builtin_cpu_supports("avx512bf16") },
    };
    for (size_t s = 0; s < 3; s++)
        for (size_t f = 0; f < 3; f++)
            for (size_t r = 0; sets[s].there && r < sizeof row_counts / sizeof *row_counts; r++) {
                char name[64];
                snprintf(name, sizeof name, "%s/%s/%zu", forms[f].name, sets[s].name, row_counts[r]);
                if (argc < 2 || strstr(name, argv[1]))
                    run(sets[s].name, sets[s].g, &forms[f], row_counts[r], cold, scales, x);
            }
#endif
    free(cold);
    free(scales);
    free(x);
    return 0;
}
