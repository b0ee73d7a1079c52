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

/* Codes land in the exponent's low bits, so a value is too small by 2^126 (E2M1) or 2^120 (E4M3); the factor puts that right and applies the
 * scale, exactly. What a bf16 factor can't hold of a large scale (above 128 or 134: hardly any weight) goes into a second one. */
typedef struct {
    uint32_t first, second;
} factors;

template <ds_mat_type T> static __device__ __forceinline__ factors factors_of(uint32_t scale)
{
    constexpr uint32_t up = T == DS_MAT_MXFP4 ? 126 : 120;
    uint32_t f = min(scale + up, 254u), g = scale + up - f + 127;
    return { f * 0x800080u, g * 0x800080u };
}

template <ds_mat_type T> static __device__ __forceinline__ bool is_large(uint32_t scale)
{
    return form<T>::scaled && scale > (T == DS_MAT_MXFP4 ? 128 : 134);
}

/* Piece p of a lane's 16 bytes: r[0], r[1] the first instruction's k and k + 8, r[2], r[3] the second's. */
template <ds_mat_type T, bool LARGE> static __device__ __forceinline__ void decode(uint32_t r[4], const uint4 &w, uint32_t p, factors f)
{
    const uint32_t v[4] = { w.x, w.y, w.z, w.w };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (T == DS_MAT_BF16) {
            r[i] = v[i];
            continue;
        }
        if (T == DS_MAT_MXFP4)
            r[i] = small_e2m1(v[p] >> 4 * i);
        else
            r[i] = small_e4m3(__byte_perm(v[(2 * p + i / 2) % 4], 0, i % 2 ? 0x3424 : 0x1404));
        r[i] = mul2(r[i], f.first);
        if (LARGE)
            r[i] = mul2(r[i], f.second);
    }
}

static __device__ __forceinline__ void mma(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

struct yes {
    static constexpr bool value = true;
};

struct no {
    static constexpr bool value = false;
};

/* One weight as the product sees it. */
typedef struct {
    const uint8_t *data, *scale;
    uint32_t in;
    uint64_t out; /* rows from here on are not read */
} weight;

/* Where a lane reads outputs g and g + 8 of a tile: its 16 bytes of step 0, and their scale. A step further are 64 bytes and step / 32 scales. */
typedef struct {
    const uint8_t *data[2], *scale[2];
} place;

template <ds_mat_type T> static __device__ __forceinline__ place place_in(const weight &w, uint64_t o0)
{
    uint32_t lane = threadIdx.x % 32, k = lane % 4 * form<T>::lane;
    place p;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint64_t o = min(o0 + lane / 4 + 8 * h, w.out - 1); /* results of outputs that aren't there are dropped */
        p.data[h] = w.data + (o * w.in + k) * 16 / form<T>::lane;
        p.scale[h] = form<T>::scaled ? w.scale + (T == DS_MAT_FP8_32X32 ? o / 32 : o) * (w.in / 32) + k / 32 : NULL;
    }
    return p;
}

template <ds_mat_type T> static __device__ __forceinline__ uint32_t scale_of(const place &p, int h, uint32_t step)
{
    return form<T>::scaled ? p.scale[h][step * (form<T>::step / 32)] : 0;
}

/* Weights pass through shared memory, each lane's to itself, so that STAGES - 1 steps are on their way without a register. */
enum { STAGES = 4, AHEAD = 3 /* steps whose scales are on their way */, NARROW_BYTES = WARPS * STAGES * 4 * 512 };

static __device__ __forceinline__ void copy16(void *to, const void *from, bool inside)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(inside ? 16 : 0)
                 : "memory");
}

/* acc[tile][nt] = this warp's part of the product with rows x[nt] (of lane / 4): bf16, [in], in the order of place_of. */
template <ds_mat_type T, int NT>
static __device__ __forceinline__ void product(float acc[2][NT][4], const weight w[2], const uint64_t o0[2], const uint16_t *const x[NT],
                                               unsigned char *shared)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, in = w[0].in, steps = (in + form<T>::step - 1) / form<T>::step;
    const uint32_t begin = steps * warp / WARPS, end = steps * (warp + 1) / WARPS, quad = lane % 4 * form<T>::lane;
    const place at[2] = { place_in<T>(w[0], o0[0]), place_in<T>(w[1], o0[1]) };
    unsigned char *ring = shared + warp * (STAGES * 4 * 512) + lane * 16;
    uint32_t scale[AHEAD][2][2];

    auto send = [&](uint32_t s) {
        if (s < end) {
            bool inside = s * form<T>::step + quad < in;
#pragma unroll
            for (int i = 0; i < 4; i++)
                copy16(ring + (s % STAGES * 4 + i) * 512, at[i / 2].data[i % 2] + (inside ? s * 64 : 0), inside);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    auto scale_at = [&](uint32_t s, int t, int h) { return s < end && s * form<T>::step + quad < in ? scale_of<T>(at[t], h, s) : 0; };
    auto step = [&](auto large, uint32_t s, const uint32_t now[2][2]) {
        uint32_t k = s * form<T>::step + quad;
        bool inside = k < in;
        uint4 mine[2][2];
        factors f[2][2];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            mine[i / 2][i % 2] = *(const uint4 *)(ring + (s % STAGES * 4 + i) * 512);
            f[i / 2][i % 2] = factors_of<T>(now[i / 2][i % 2]);
        }
#pragma unroll
        for (uint32_t p = 0; p < form<T>::pieces; p++) {
            uint32_t a[2][2][4];
#pragma unroll
            for (int t = 0; t < 2; t++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    decode<T, decltype(large)::value>(a[t][h], mine[t][h], p, f[t][h]);
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
    };

    for (uint32_t i = 0; i < STAGES - 1; i++)
        send(begin + i);
#pragma unroll
    for (int d = 0; d < AHEAD; d++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            scale[d][i / 2][i % 2] = scale_at(begin + d, i / 2, i % 2);
#pragma unroll
    for (int t = 0; t < 2; t++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[t][n][i] = 0.0f;
    for (uint32_t s = begin; s < end; s++) {
        uint32_t now[2][2];
        bool large = false;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            now[i / 2][i % 2] = scale[0][i / 2][i % 2];
            large = large || is_large<T>(now[i / 2][i % 2]);
#pragma unroll
            for (int d = 0; d + 1 < AHEAD; d++)
                scale[d][i / 2][i % 2] = scale[d + 1][i / 2][i % 2];
            scale[AHEAD - 1][i / 2][i % 2] = scale_at(s + AHEAD, i / 2, i % 2);
        }
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        if (__any_sync(0xffffffffu, large))
            step(yes(), s, now);
        else
            step(no(), s, now);
        send(s + STAGES - 1);
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
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

/* ---- many rows ----
 *
 * The warps of a block have tiles of their own, MT each, and share the activations, which go through shared memory once for all. The parts that the warps of `product` have are
 * done one after the other, each with a chain of its own, and added in the same order: the bits are the same. */

template <ds_mat_type T, int MT, int NT> struct wide {
    static constexpr uint32_t rows = NT * 8, x_bytes = rows * form<T>::step * 2, w_bytes = WARPS * MT * 2 * 512;
    static constexpr uint32_t bytes = STAGES * (x_bytes + w_bytes);
    static constexpr uint32_t chunks = x_bytes / 16, each = (chunks + PRODUCT_THREADS - 1) / PRODUCT_THREADS; /* of x, a thread */
};

/* total[tile][nt] = the product of tiles o0[t] of w[t] and the rows that `row` gives: row(i), i < 8 * NT, is where row i stands. */
template <ds_mat_type T, int MT, int NT, typename R>
static __device__ __forceinline__ void product_wide(float total[MT][NT][4], const weight w[MT], const uint64_t o0[MT], R row,
                                                    unsigned char *shared)
{
    typedef wide<T, MT, NT> W;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, in = w[0].in, steps = (in + form<T>::step - 1) / form<T>::step;
    const uint32_t per_row = form<T>::step / 8, quad = lane % 4 * form<T>::lane;
    unsigned char *xs = shared, *ws = shared + STAGES * W::x_bytes + warp * (MT * 2 * 512);
    const uint16_t *x[W::each];
    uint32_t to[W::each];
    place at[MT];
    uint32_t scale[AHEAD][MT][2];

#pragma unroll
    for (uint32_t i = 0; i < W::each; i++) {
        uint32_t c = threadIdx.x + i * PRODUCT_THREADS, r = c / per_row, j = c % per_row;
        x[i] = row(min(r, W::rows - 1)) + j * 8;
        to[i] = ((j % form<T>::pieces * W::rows + r) * 4 + j / form<T>::pieces) * 16;
    }
#pragma unroll
    for (int t = 0; t < MT; t++) {
        at[t] = place_in<T>(w[t], o0[t]);
#pragma unroll
        for (int h = 0; h < 2; h++)
            for (int d = 0; d < AHEAD; d++)
                scale[d][t][h] = d * form<T>::step + quad < in ? scale_of<T>(at[t], h, d) : 0;
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                total[t][n][k] = 0.0f;
    }
    auto send = [&](uint32_t s) {
        uint32_t slot = s % STAGES;
        if (s < steps) {
#pragma unroll
            for (uint32_t i = 0; i < W::each; i++) {
                uint32_t c = threadIdx.x + i * PRODUCT_THREADS, k = s * form<T>::step + c % per_row * 8;
                if (W::chunks % PRODUCT_THREADS == 0 || c < W::chunks)
                    copy16(xs + slot * W::x_bytes + to[i], k < in ? x[i] + s * form<T>::step : x[i], k < in);
            }
            bool inside = s * form<T>::step + quad < in;
#pragma unroll
            for (int t = 0; t < MT; t++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    copy16(ws + slot * W::w_bytes + (t * 2 + h) * 512 + lane * 16, inside ? at[t].data[h] + s * 64 : at[t].data[h], inside);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };

    auto step = [&](auto large, float acc[MT][NT][4], uint32_t slot, const uint32_t now[MT][2]) {
        uint4 mine[MT][2];
        factors f[MT][2];
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                mine[t][h] = *(const uint4 *)(ws + slot * W::w_bytes + (t * 2 + h) * 512 + lane * 16);
                f[t][h] = factors_of<T>(now[t][h]);
            }
        const unsigned char *b0 = xs + slot * W::x_bytes + lane * 16; /* lane is row % 8 * 4 + quarter */
#pragma unroll
        for (uint32_t p = 0; p < form<T>::pieces; p++) {
            uint32_t a[MT][2][4];
#pragma unroll
            for (int t = 0; t < MT; t++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    decode<T, decltype(large)::value>(a[t][h], mine[t][h], p, f[t][h]);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                uint4 b = *(const uint4 *)(b0 + (p * W::rows + n * 8) * 64);
#pragma unroll
                for (int t = 0; t < MT; t++)
                    mma(acc[t][n], a[t][0][0], a[t][1][0], a[t][0][1], a[t][1][1], b.x, b.y);
#pragma unroll
                for (int t = 0; t < MT; t++)
                    mma(acc[t][n], a[t][0][2], a[t][1][2], a[t][0][3], a[t][1][3], b.z, b.w);
            }
        }
    };

    __syncthreads(); /* shared memory is in use until here */
    for (uint32_t s = 0; s < STAGES - 1; s++)
        send(s);
    for (uint32_t part = 0, s = 0; part < WARPS; part++) {
        float acc[MT][NT][4] = { 0 };
        for (uint32_t end = steps * (part + 1) / WARPS; s < end; s++) {
            uint32_t now[MT][2];
            bool large = false;
#pragma unroll
            for (int t = 0; t < MT; t++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    now[t][h] = scale[0][t][h];
                    large = large || is_large<T>(now[t][h]);
#pragma unroll
                    for (int d = 0; d + 1 < AHEAD; d++)
                        scale[d][t][h] = scale[d + 1][t][h];
                    scale[AHEAD - 1][t][h] = (s + AHEAD) * form<T>::step + quad < in ? scale_of<T>(at[t], h, s + AHEAD) : 0;
                }
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            __syncthreads();
            send(s + STAGES - 1);
            if (__any_sync(0xffffffffu, large))
                step(yes(), acc, s % STAGES, now);
            else
                step(no(), acc, s % STAGES, now);
        }
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    total[t][n][k] += acc[t][n][k];
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

/* Of a thread's accumulators [t][n][k]: the output within the tile, the row within 8. */
static __device__ __forceinline__ uint32_t out_of(int k)
{
    return threadIdx.x % 32 / 4 + k / 2 * 8;
}

static __device__ __forceinline__ uint32_t row_of(int k)
{
    return threadIdx.x % 4 * 2 + k % 2;
}

/* dst[r][place_of(c)] = bf16(x[r][c]); n a multiple of 8. */
void ds_cuda_to_bf16(ds_exec *e, uint16_t *dst, const float *x, size_t rows, size_t ldx, size_t n, ds_mat_type type);

#endif
