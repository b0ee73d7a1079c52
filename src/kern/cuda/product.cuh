/* The matrix product that linear layers and experts share in bf16 mode: 2 tiles of 16 outputs of a weight, decoded in registers, times
 * 8 * NT rows of activations.
 *
 * mma.sync m16n8k16: outputs of the weight are A, rows of activations are B, so a single row costs as little as eight. Weights stay in the
 * file's form. A lane reads 16 bytes of one output: 32, 16 or 8 codes that stand together, which are its share of a step of 128, 64 or 32
 * inputs. The order of inputs within a step differs from the file's, the same for A and B, and so does that of codes within 8 for MXFP4
 * (`place_of`), where it saves shifts; activations are put into that order when they are rounded to bf16.
 *
 * Order of accumulation: the WARPS warps of a block have each a part of the inputs (cut by steps, so by the shape of the weight alone) and
 * one chain of f32 through it; the warps' sums are added in order. NT and the number of rows don't matter. */
#ifndef DS_KERN_CUDA_PRODUCT_CUH
#define DS_KERN_CUDA_PRODUCT_CUH

#include "common.cuh"

enum { WARPS = 8, PRODUCT_THREADS = WARPS * 32, TILE = 16, PAIR = 2 * TILE };

/* Types for which there is a product, of a given width: a lane's 16 bytes are whole and aligned. */
static inline bool has_product(const ds_mat *w)
{
    return w->type == DS_MAT_MXFP4 || w->type == DS_MAT_FP8_32X32 || (w->type == DS_MAT_BF16 && w->in % 8 == 0);
}

/* Where element k of a group of eight stands among the activations of a product with this type. */
static __device__ __forceinline__ uint32_t place_of(ds_mat_type type, uint32_t k)
{
    return type == DS_MAT_MXFP4 ? (k & ~7u) | (k & 3u) << 1 | (k >> 2 & 1u) : k;
}

template <ds_mat_type T> struct form {
    static constexpr uint32_t lane = T == DS_MAT_MXFP4 ? 32 : (T == DS_MAT_BF16 ? 8 : 16); /* inputs of a lane in a step */
    static constexpr uint32_t step = 4 * lane;
    static constexpr uint32_t pieces = lane / 8; /* of 8 inputs a lane: two instructions */
    static constexpr bool scaled = T != DS_MAT_BF16;
};

static __device__ __forceinline__ uint32_t mul2(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

/* Codes land in the exponent's low bits, so a value is too small by 2^126 (E2M1) or 2^120 (E4M3); the factor puts that right and applies the
 * scale, exactly. What a bf16 factor can't hold of a large scale goes into a second one. */
template <ds_mat_type T> static __device__ __forceinline__ void scale4(uint32_t r[4], uint32_t scale)
{
    constexpr uint32_t up = T == DS_MAT_MXFP4 ? 126 : 120;
    uint32_t f = min(scale + up, 254u);
#pragma unroll
    for (int i = 0; i < 4; i++)
        r[i] = mul2(r[i], f << 7 | f << 23);
    if (scale + up > 254) {
        f = scale + up - 127; /* 254 + f - 254 = scale + up - 127 */
#pragma unroll
        for (int i = 0; i < 4; i++)
            r[i] = mul2(r[i], f << 7 | f << 23);
    }
}

/* Piece p of a lane's 16 bytes: r[0], r[1] the first instruction's k and k + 8, r[2], r[3] the second's. */
template <ds_mat_type T> static __device__ __forceinline__ void decode(uint32_t r[4], const uint32_t w[4], uint32_t p, uint32_t scale)
{
    if (T == DS_MAT_BF16) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            r[i] = w[i];
    } else if (T == DS_MAT_MXFP4) {
        uint32_t v = w[p];
        r[0] = (v << 12 & 0x80008000u) | (v << 6 & 0x01c001c0u);
        r[1] = (v << 8 & 0x80008000u) | (v << 2 & 0x01c001c0u);
        r[2] = (v << 4 & 0x80008000u) | (v >> 2 & 0x01c001c0u);
        r[3] = (v & 0x80008000u) | (v >> 6 & 0x01c001c0u);
        scale4<T>(r, scale);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t v = __byte_perm(w[2 * p + i / 2], 0, i % 2 ? 0x3424 : 0x1404);
            r[i] = (v & 0x80008000u) | (v >> 4 & 0x07f007f0u);
        }
        scale4<T>(r, scale);
    }
}

static __device__ __forceinline__ void mma(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint4 load_once(const uint8_t *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

/* One weight as the product sees it. */
typedef struct {
    const uint8_t *data, *scale;
    uint32_t in;
    uint64_t out; /* rows from here on are not read */
} weight;

/* A lane's share of a step: 2 tiles x 2 outputs. */
typedef struct {
    uint32_t w[2][2][4];
    uint32_t scale[2][2];
} share;

template <ds_mat_type T> static __device__ __forceinline__ void fetch(share *s, const weight w[2], const uint64_t o0[2], uint32_t step)
{
    uint32_t lane = threadIdx.x % 32, k = step * form<T>::step + lane % 4 * form<T>::lane;
#pragma unroll
    for (int t = 0; t < 2; t++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint64_t o = min(o0[t] + lane / 4 + 8 * h, w[t].out - 1); /* results of outputs that aren't there are dropped */
            uint4 v = make_uint4(0, 0, 0, 0);
            uint32_t scale = 0;
            if (k < w[t].in) {
                v = load_once(w[t].data + (o * w[t].in + k) * 16 / form<T>::lane);
                if (T == DS_MAT_FP8_32X32)
                    scale = w[t].scale[o / 32 * (w[t].in / 32) + k / 32];
                else if (form<T>::scaled)
                    scale = w[t].scale[o * (w[t].in / 32) + k / 32];
            }
            s->w[t][h][0] = v.x;
            s->w[t][h][1] = v.y;
            s->w[t][h][2] = v.z;
            s->w[t][h][3] = v.w;
            s->scale[t][h] = scale;
        }
}

/* acc[tile][nt] = this warp's part of the product with rows x[nt] (of lane / 4): bf16, [in], in the order of place_of. */
template <ds_mat_type T, int NT>
static __device__ __forceinline__ void product(float acc[2][NT][4], const weight w[2], const uint64_t o0[2], const uint16_t *const x[NT])
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, steps = (w[0].in + form<T>::step - 1) / form<T>::step;
    uint32_t begin = steps * warp / WARPS, end = steps * (warp + 1) / WARPS;
    share next;

#pragma unroll
    for (int t = 0; t < 2; t++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[t][n][i] = 0.0f;
    if (begin < end)
        fetch<T>(&next, w, o0, begin);
    for (uint32_t s = begin; s < end; s++) {
        share now = next;
        uint32_t k = s * form<T>::step + lane % 4 * form<T>::lane;
        bool inside = k < w[0].in;
        if (s + 1 < end)
            fetch<T>(&next, w, o0, s + 1);
#pragma unroll
        for (uint32_t p = 0; p < form<T>::pieces; p++) {
            uint32_t a[2][2][4];
#pragma unroll
            for (int t = 0; t < 2; t++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    decode<T>(a[t][h], now.w[t][h], p, now.scale[t][h]);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                uint4 b = inside ? *(const uint4 *)(x[n] + k + 8 * p) : make_uint4(0, 0, 0, 0);
#pragma unroll
                for (int t = 0; t < 2; t++) {
                    mma(acc[t][n], a[t][0][0], a[t][1][0], a[t][0][1], a[t][1][1], b.x, b.y);
                    mma(acc[t][n], a[t][0][2], a[t][1][2], a[t][0][3], a[t][1][3], b.z, b.w);
                }
            }
        }
    }
}

/* Adds up the warps' parts of one column of tiles. Thread t gets output t / 8 (of the 32 of both tiles) of row t % 8. */
static __device__ __forceinline__ float add_warps(const float lo[4], const float hi[4], float red[WARPS][PAIR][8])
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4 * 2;
    float sum = 0.0f;

    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        red[warp][g + i / 2 * 8][c + i % 2] = lo[i];
        red[warp][TILE + g + i / 2 * 8][c + i % 2] = hi[i];
    }
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        sum += red[w][threadIdx.x / 8][threadIdx.x % 8];
    return sum;
}

/* dst[r][place_of(c)] = bf16(x[r][c]); n a multiple of 8. */
void ds_cuda_to_bf16(ds_exec *e, uint16_t *dst, const float *x, size_t rows, size_t ldx, size_t n, ds_mat_type type);

#endif
