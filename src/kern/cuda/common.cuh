/* What every kernel file here shares: launching, rounding, block reductions, addresses in caches. */
#ifndef DS_KERN_CUDA_COMMON_CUH
#define DS_KERN_CUDA_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math_constants.h>
#include <stdint.h>

extern "C" {
#include "kern/cuda/cuda.h"
#include "kern/device.h"
}

struct ds_cuda_device;

struct ds_stream {
    cudaStream_t s;
    struct ds_cuda_device *d;
};

/* Remembers the first failure of a device (device.cu). */
void ds_cuda_failed(struct ds_cuda_device *d, cudaError_t rc, const char *what);

/* Multiprocessors of the device that e runs on (device.cu). */
unsigned ds_cuda_sms(const ds_exec *e);

static inline cudaStream_t stream_of(const ds_exec *e)
{
    return ((const struct ds_stream *)e->stream)->s;
}

static inline void launched(const ds_exec *e, const char *op)
{
    cudaError_t rc = cudaGetLastError();
    if (rc != cudaSuccess)
        ds_cuda_failed(((const struct ds_stream *)e->stream)->d, rc, op);
}

static inline unsigned blocks_of(size_t n, size_t each)
{
    return (unsigned)((n + each - 1) / each);
}

/* ---- launches that overlap ---- */

/* Everything that kernels before this one wrote is there, and nothing that they read is needed any more. Every block calls it. */
static __device__ __forceinline__ void after_others(void)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* The next kernel may start. */
static __device__ __forceinline__ void let_others_start(void)
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* Launches f(args), converted to its parameters. It may start before the kernel in front has ended: every kernel calls
 * after_others before it reads or writes anything that others know of, and every block does, or what is in front of
 * the one in front might still run when the next begins. */
template <typename... P, typename... A>
static void launch(const ds_exec *e, void (*f)(P...), dim3 grid, unsigned threads, size_t shared, const A &...a)
{
    cudaLaunchAttribute at[1];
    cudaLaunchConfig_t c = {};

    at[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    at[0].val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = grid;
    c.blockDim = dim3(threads);
    c.dynamicSmemBytes = shared;
    c.stream = stream_of(e);
    c.attrs = at;
    c.numAttrs = 1;
    cudaLaunchKernelEx(&c, f, (P)a...);
}

/* ---- values ---- */

static __device__ __forceinline__ uint32_t bits_of(float x)
{
    return __float_as_uint(x);
}

static __device__ __forceinline__ float float_of(uint32_t u)
{
    return __uint_as_float(u);
}

static __device__ __forceinline__ float bf16_value(uint32_t h)
{
    return float_of(h << 16);
}

/* To the nearest, ties to even; a NaN keeps its sign and upper payload and becomes quiet, as ds_bf16_from_f32. */
static __device__ __forceinline__ uint32_t bf16_bits(float x)
{
    uint32_t u = bits_of(x);
    return (u & 0x7fffffffu) > 0x7f800000u ? (u >> 16 | 0x40u) : (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

/* The value that an output called "rounded" stores. */
static __device__ __forceinline__ float rounded(bool bf16, float v)
{
    return bf16 ? bf16_value(bf16_bits(v)) : v;
}

static __device__ __forceinline__ float sigmoid(float v)
{
    return 1.0f / (1.0f + expf(-v));
}

static __device__ __forceinline__ float silu(float v)
{
    return v / (1.0f + expf(-v));
}

/* min(g, limit) and clamp(u, -limit, limit); limit <= 0: no bounds. NaN stays NaN. */
static __device__ __forceinline__ float bound_gate(float g, float limit)
{
    return limit > 0.0f && g > limit ? limit : g;
}

static __device__ __forceinline__ float bound_up(float u, float limit)
{
    return limit > 0.0f && u > limit ? limit : (limit > 0.0f && u < -limit ? -limit : u);
}

static __device__ __forceinline__ float e8m0_value(uint32_t code)
{
    return code == 255 ? float_of(0x7fc00000u) : float_of(code ? code << 23 : 0x00400000u);
}

/* Normal codes shift into place; the rest are multiples of 2^-9. */
static __device__ __forceinline__ float e4m3_value(uint32_t code)
{
    uint32_t a = code & 0x7fu, sign = (code & 0x80u) << 24;
    float v = a < 8 ? (float)a * 0x1p-9f : float_of((a << 20) + (120u << 23));
    return a == 0x7fu ? float_of(0x7fc00000u) : float_of(bits_of(v) | sign);
}

static __device__ __forceinline__ float e2m1_value(uint32_t code)
{
    uint32_t a = code & 7u, sign = (code & 8u) << 28;
    float v = a < 2 ? (float)a * 0.5f : float_of((a << 22) + (126u << 23));
    return float_of(bits_of(v) | sign);
}

static __device__ __forceinline__ uint32_t fp4_code(const uint8_t *codes, size_t i)
{
    return codes[i >> 1] >> ((i & 1) * 4) & 15u;
}

/* Four bytes at any address. */
static __device__ __forceinline__ uint32_t bytes4(const uint8_t *p)
{
    if (((uintptr_t)p & 3) == 0)
        return *(const uint32_t *)p;
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Two bf16 products, subnormals kept. */
static __device__ __forceinline__ uint32_t mul2(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

/* Two E4M3 codes in the high bytes of both halves, or two E2M1 codes in their low nibbles, as bf16 that are too small by 2^120, or 2^126: the
 * bits land in the exponent's low end. */
static __device__ __forceinline__ uint32_t small_e4m3(uint32_t v)
{
    return (v & 0x80008000u) | (v >> 4 & 0x07f007f0u);
}

static __device__ __forceinline__ uint32_t small_e2m1(uint32_t v)
{
    return (v << 12 & 0x80008000u) | (v << 6 & 0x01c001c0u);
}

/* Element (r, c) of a weight in its file's form. */
static __device__ __forceinline__ float mat_value(ds_mat_type type, const uint8_t *data, const uint8_t *scale, size_t in, size_t r,
                                                  size_t c)
{
    size_t at = r * in + c;

    switch (type) {
    case DS_MAT_F32:
        return ((const float *)data)[at];
    case DS_MAT_BF16:
        return bf16_value(((const uint16_t *)data)[at]);
    case DS_MAT_FP8_32X32:
        return e4m3_value(data[at]) * e8m0_value(scale[r / 32 * ((in + 31) / 32) + c / 32]);
    case DS_MAT_FP8_ROWS:
        return e4m3_value(data[at]) * e8m0_value(scale[at / 32]);
    default:
        return e2m1_value(fp4_code(data, at)) * e8m0_value(scale[at / 32]);
    }
}

/* ---- within a warp or block ---- */

enum { ALL_LANES = (int)0xffffffffu };

/* Fixed tree: the same bits whatever else runs. */
static __device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int o = 16; o; o >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

/* Of all threads; `part` [33] floats of shared memory. Every thread gets it. blockDim.x is a multiple of 32. */
static __device__ __forceinline__ float block_sum(float v, float *part)
{
    v = warp_sum(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = warp_sum(threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.0f);
        if (threadIdx.x == 0)
            part[32] = v;
    }
    __syncthreads();
    return part[32];
}

/* A place in a row of numbers: larger first, then the lower index; NaN below every number. */
typedef struct {
    double v;
    int at; /* -1: none */
} best_place;

static __device__ __forceinline__ best_place better(best_place a, best_place b)
{
    bool na = a.v != a.v, nb = b.v != b.v;
    if (a.at < 0 || b.at < 0)
        return a.at < 0 ? b : a;
    if (na != nb)
        return na ? b : a;
    if (!na && a.v != b.v)
        return a.v > b.v ? a : b;
    return a.at < b.at ? a : b;
}

/* `part` [33] in shared memory; every thread gets the best. */
static __device__ __forceinline__ best_place block_best(best_place p, best_place *part)
{
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        best_place q = { __shfl_xor_sync(0xffffffffu, p.v, o), __shfl_xor_sync(0xffffffffu, p.at, o) };
        p = better(p, q);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = p;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (unsigned w = 1; w < blockDim.x / 32; w++)
            p = better(p, part[w]);
        part[32] = p;
    }
    __syncthreads();
    return part[32];
}

/* ---- caches, faults ---- */

static __device__ __forceinline__ uint8_t *kv_at(const ds_kv_view &v, const ds_step &st, uint32_t seq, uint32_t entry)
{
    uint32_t block = st.blocks[seq * st.blocks_ld + entry / v.per_block];
    return v.base + block * v.block_bytes + v.off + (size_t)(entry % v.per_block) * v.rec_bytes;
}

static __device__ __forceinline__ uint32_t kv_visible(const ds_kv_view &v, int32_t pos)
{
    return (uint32_t)(pos + 1) / v.ratio;
}

static __device__ __forceinline__ uint8_t *ring_at(const ds_ring_view &r, uint32_t slot, int32_t pos)
{
    return r.base + slot * r.slot_bytes + r.off + (size_t)((uint32_t)pos % r.len) * r.rec_bytes;
}

/* Row r is among the last `len` rows of its sequence, so that no later row of the step takes its place in a ring. */
static __device__ __forceinline__ bool stays_in_ring(const ds_step &st, uint32_t r, uint32_t len)
{
    uint32_t s = st.seq[r];
    return st.row0[s] + st.count[s] - r <= len;
}

/* The first fault wins; the host reads it after a wait, which orders everything. */
static __device__ __forceinline__ void fault(ds_fault *f, ds_fault_kind kind, uint32_t tag, int64_t row)
{
    if (atomicExch((unsigned *)&f->busy, 1u))
        return;
    f->tag = tag;
    f->row = row;
    __threadfence_system();
    *(volatile unsigned *)&f->kind = kind;
}

#endif
