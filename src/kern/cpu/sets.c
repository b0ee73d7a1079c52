/* Which bodies a set has, and what a CPU must have for it. */
#include "kern/cpu/cpu.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kern/cpu/attention.h"
#include "kern/cpu/bodies.h"
#include "kern/cpu/gemm.h"
#include "kern/cpu/index.h"
#include "kern/ref/ref.h"

/* What Clang 14 has no names for. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && c >> 29 & 1;
}

static bool has_amx_tile_bf16(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 24 & 1 && d >> 22 & 1;
}

bool ds_cpu_has_avx2(const char **lacks)
{
    *lacks = "AVX2, FMA and F16C";
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

bool ds_cpu_has_avx512(const char **lacks)
{
    if (!ds_cpu_has_avx2(lacks))
        return false;
    *lacks = "AVX-512 F, BW, DQ and VL";
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

/* Linux gives a process the tiles' state only when asked; asking twice is fine. */
static bool tiles_allowed(void)
{
    enum { REQUEST_STATE = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0;
}

bool ds_cpu_has_amx(const char **lacks)
{
    if (!ds_cpu_has_avx512(lacks))
        return false;
    *lacks = "AMX-TILE, AMX-BF16 and AVX-512 BF16";
    if (!has_amx_tile_bf16() || !__builtin_cpu_supports("avx512bf16"))
        return false;
    *lacks = "AMX tiles that the operating system hands out";
    return tiles_allowed();
}

static void at_least(size_t *most, size_t bytes)
{
    *most = bytes > *most ? bytes : *most;
}

/* a * b * c bytes and some room for rounding up; SIZE_MAX if that is too large to say. */
static size_t product(size_t a, size_t b, size_t c)
{
    size_t n;
    return ds_size_mul(&n, a, b) && ds_size_mul(&n, n, c) && ds_size_add(&n, n, 4096) ? n : SIZE_MAX;
}

static size_t scratch_of(const ds_kern_limits *lim, const ds_gemm_pair *p)
{
    size_t most = ds_scratch_bytes_ref(lim), threads = lim->threads ? lim->threads : 1;

    at_least(&most, ds_gemm_scratch(lim, p));
    at_least(&most, ds_attention_scratch(lim));
    at_least(&most, ds_index_scratch(lim));
    at_least(&most,
             product((size_t)lim->max_rows + 64, (size_t)(2 + lim->n) * lim->n + 5, sizeof(float))); /* mHC: m and a sum for each row */
    at_least(&most, product(threads, 2 * ((size_t)lim->experts + 16), sizeof(float)));               /* router */
    at_least(&most,
             product((size_t)lim->patches + 16, lim->vit_dim + 4 * threads, sizeof(float))); /* keys of a head, scores of four rows */
    return most;
}

/* ---- avx2 ---- */

static const ds_gemm_pair pair_avx2 = { &ds_gemm_avx2, &ds_gemm_avx2, ds_hidden_avx2 };

static size_t scratch_avx2(const ds_kern_limits *lim)
{
    return scratch_of(lim, &pair_avx2);
}

static void linear_avx2(ds_exec *e, const ds_op_linear *a)
{
    ds_linear_cpu(e, a, &pair_avx2);
}

static void experts_part_avx2(ds_exec *e, const ds_op_experts_part *a)
{
    ds_experts_part_cpu(e, a, &pair_avx2);
}

void ds_cpu_use_avx2(ds_kern *k)
{
    ds_gemm_init();
    k->name = "avx2";
    k->scratch_bytes = scratch_avx2;
    k->linear = linear_avx2;
    k->experts_part = experts_part_avx2;
    k->experts_sum = ds_experts_sum_cpu;
    k->rmsnorm = ds_rmsnorm_avx2;
    k->rope = ds_rope_avx2;
    k->add = ds_add_avx2;
    k->swiglu = ds_swiglu_avx2;
    k->mhc = ds_mhc_avx2;
    k->stream_mean = ds_stream_mean_avx2;
    k->engram_fuse = ds_engram_fuse_avx2;
    k->index_topk = ds_index_topk_avx2;
    k->route = ds_route_avx2;
    k->vit_attention = ds_vit_attention_avx2;
    k->rope2d = ds_rope2d_avx2;
    k->attention = ds_attention_avx2;
}

/* ---- avx512, without and with the bf16 dot product ---- */

static const ds_gemm_pair pair_avx512 = { &ds_gemm_avx512, &ds_gemm_avx512, ds_hidden_avx512 };
static const ds_gemm_pair pair_avx512bf16 = { &ds_gemm_avx512, &ds_gemm_avx512bf16, ds_hidden_avx512 };

static size_t scratch_avx512(const ds_kern_limits *lim)
{
    return scratch_of(lim, &pair_avx512);
}

static void linear_avx512(ds_exec *e, const ds_op_linear *a)
{
    ds_linear_cpu(e, a, &pair_avx512);
}

static void experts_part_avx512(ds_exec *e, const ds_op_experts_part *a)
{
    ds_experts_part_cpu(e, a, &pair_avx512);
}

static size_t scratch_avx512bf16(const ds_kern_limits *lim)
{
    return scratch_of(lim, &pair_avx512bf16);
}

static void linear_avx512bf16(ds_exec *e, const ds_op_linear *a)
{
    ds_linear_cpu(e, a, &pair_avx512bf16);
}

static void experts_part_avx512bf16(ds_exec *e, const ds_op_experts_part *a)
{
    ds_experts_part_cpu(e, a, &pair_avx512bf16);
}

void ds_cpu_use_avx512(ds_kern *k)
{
    bool bf16 = __builtin_cpu_supports("avx512bf16");

    ds_cpu_use_avx2(k);
    k->name = "avx512";
    k->scratch_bytes = bf16 ? scratch_avx512bf16 : scratch_avx512;
    k->linear = bf16 ? linear_avx512bf16 : linear_avx512;
    k->experts_part = bf16 ? experts_part_avx512bf16 : experts_part_avx512;
    k->rmsnorm = ds_rmsnorm_avx512;
    k->rope = ds_rope_avx512;
    k->add = ds_add_avx512;
    k->swiglu = ds_swiglu_avx512;
    k->mhc = ds_mhc_avx512;
    k->stream_mean = ds_stream_mean_avx512;
    k->engram_fuse = ds_engram_fuse_avx512;
    k->index_topk = ds_index_topk_avx512;
    k->route = ds_route_avx512;
    k->vit_attention = ds_vit_attention_avx512;
    k->rope2d = ds_rope2d_avx512;
    k->attention = ds_attention_avx512;
}

/* ---- amx: tiles for bf16 activations, everything else as avx512 ---- */

static const ds_gemm_pair pair_amx = { &ds_gemm_avx512, &ds_gemm_amx, ds_hidden_avx512 };

static size_t scratch_amx(const ds_kern_limits *lim)
{
    return scratch_of(lim, &pair_amx);
}

static void linear_amx(ds_exec *e, const ds_op_linear *a)
{
    ds_linear_cpu(e, a, &pair_amx);
}

static void experts_part_amx(ds_exec *e, const ds_op_experts_part *a)
{
    ds_experts_part_cpu(e, a, &pair_amx);
}

void ds_cpu_use_amx(ds_kern *k)
{
    ds_cpu_use_avx512(k);
    k->name = "amx";
    k->scratch_bytes = scratch_amx;
    k->linear = linear_amx;
    k->experts_part = experts_part_amx;
}
