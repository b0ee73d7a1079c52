/* Experts with packed MXFP4 weights (packed.cuh), bf16 mode: three launches.
 *
 *   plan    one block: pairs (row, rank) by expert, each expert's in blocks of N slots
 *   gather  rows as bf16, to their slots, in the form that the products take
 *   product as many blocks as fit the GPU at once, each with tiles (256 outputs, a block of N slots): first all of
 *   W1 and W3, then all of
 *           W2, so that weights stream without a break. A tile of W2 waits until W1 and W3 are done for its slots.
 *
 * In `product` one thread sends bulk copies, STAGES of KC inputs ahead; warpgroups unpack weights into registers as
 * operand A and multiply by the slots: mma.sync for N of 8 and 16, wgmma for more. Both add the steps of 16 inputs
 * in the same way, so a row's bits don't depend on N. One chain over all inputs for each output.
 *
 * Slots and hidden values: [block of slots][inputs / 64][N][128 bytes], 16-byte pieces XOR slot % 8: every copy is
 * one piece of memory, and neither ldmatrix nor wgmma finds bank conflicts. */
#include "experts_packed.cuh"
#include "hopper.cuh"
#include "packed.cuh"

enum { NONE = -1, PLAN_THREADS = 1024, GATHER_THREADS = 256, TILE_ALL = 256 /* outputs of a block's tile */ };

/* What the launches share, in scratch. */
typedef struct {
    ds_op_experts_part a;
    const ds_cuda_expert *w;
    uint32_t *n_blocks, *ready; /* of slots; [blocks]: warps that have written hidden values */
    uint32_t *expert;           /* [blocks] */
    int32_t *pair, *slot;       /* [slots], [pairs]: each other's, or NONE */
    float *weight;              /* [slots] */
    uint16_t *x, *h;            /* [slots][d], [slots][inner] */
} work;

/* ---- plan ---- */

/* f(pair, its expert here, or a number that none has), some of them read ahead. */
template <typename F> static __device__ __forceinline__ void for_pairs(const work &j, F f)
{
    enum { AHEAD = 8 };
    size_t pairs = j.a.rows * j.a.k;

    for (size_t p0 = threadIdx.x; p0 < pairs; p0 += AHEAD * PLAN_THREADS) {
        uint32_t x[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            x[i] = p0 + i * PLAN_THREADS < pairs ? (uint32_t)j.a.sel[p0 + i * PLAN_THREADS] - j.a.first : 0;
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (p0 + i * PLAN_THREADS < pairs)
                f(p0 + i * PLAN_THREADS, x[i]);
    }
}

static __global__ void __launch_bounds__(PLAN_THREADS) plan_kernel(work j, uint32_t N)
{
    after_others();
    extern __shared__ uint32_t shared[];
    uint32_t n = j.a.n, *count = shared, *next = shared + n, lane = threadIdx.x % 32;

    for (uint32_t x = threadIdx.x; x < n; x += PLAN_THREADS)
        count[x] = 0;
    __syncthreads();
    for_pairs(j, [&](size_t, uint32_t x) {
        if (x < n)
            atomicAdd(&count[x], 1u);
    });
    __syncthreads();
    if (threadIdx.x < 32) { /* running sums of 32 experts at a time */
        uint32_t at = 0;
        for (uint32_t x0 = 0; x0 < n; x0 += 32) {
            uint32_t blocks = x0 + lane < n ? (count[x0 + lane] + N - 1) / N : 0, upto = blocks;
            for (int o = 1; o < 32; o <<= 1) {
                uint32_t v = __shfl_up_sync(0xffffffffu, upto, o);
                upto += lane >= (uint32_t)o ? v : 0;
            }
            if (x0 + lane < n)
                next[x0 + lane] = (at + upto - blocks) * N;
            at += __shfl_sync(0xffffffffu, upto, 31);
        }
        if (lane == 0)
            *j.n_blocks = at;
    }
    __syncthreads();
    for (uint32_t x = threadIdx.x / 32; x < n; x += PLAN_THREADS / 32) {
        uint32_t first = next[x], end = first + (count[x] + N - 1) / N * N;
        for (uint32_t b = first / N + lane; b < end / N; b += 32) {
            j.expert[b] = x;
            j.ready[b] = 0;
        }
        for (uint32_t s = first + count[x] + lane; s < end; s += 32)
            j.pair[s] = NONE;
    }
    __syncthreads();
    for_pairs(j, [&](size_t p, uint32_t x) { /* order within an expert is whatever comes: slots are independent */
                                             uint32_t slot = x < n ? atomicAdd(&next[x], 1u) : 0;
                                             if (x < n)
                                                 j.pair[slot] = (int32_t)p;
                                             j.slot[p] = x < n ? (int32_t)slot : NONE;
    });
}

/* ---- gather: a thread has 16 bytes of a row, which go to all the row's slots ---- */

static __global__ void __launch_bounds__(GATHER_THREADS) gather_kernel(work j, uint32_t N)
{
    after_others();
    uint32_t r = blockIdx.x, i = blockIdx.y * GATHER_THREADS + threadIdx.x;
    const float4 *x = (const float4 *)(j.a.x + (size_t)r * j.a.d);

    if (i >= j.a.d / 8)
        return;
    float4 lo = x[2 * i], hi = x[2 * i + 1];
    uint4 v = make_uint4(bf16_pair(lo.x, lo.y), bf16_pair(lo.z, lo.w), bf16_pair(hi.x, hi.y), bf16_pair(hi.z, hi.w));
    for (uint32_t k = 0; k < j.a.k; k++) {
        int32_t slot = j.slot[(size_t)r * j.a.k + k];
        if (slot == NONE)
            continue;
        uint32_t block = (uint32_t)slot / N, in = (uint32_t)slot % N;
        ((uint4 *)j.x)[((size_t)block * (j.a.d / 64) + i / 8) * N * 8 + in * 8 + ((i % 8) ^ (in % 8))] = v;
        if (i == 0)
            j.weight[slot] = j.a.w[(size_t)r * j.a.k + k];
    }
}

/* ---- product ---- */

/* GROUPS warpgroups with 4 / GROUPS tiles of 64 outputs each, and one more whose first thread sends. */
template <int N_, int GROUPS_, int KC_, int STAGES_> struct shape {
    static constexpr int N = N_, GROUPS = GROUPS_, KC = KC_, STAGES = STAGES_;
    static constexpr int TILES = 4 / GROUPS, THREADS = GROUPS * 128 + 128, WARPS = GROUPS * 4;
    static constexpr bool WIDE = N > 16; /* wgmma */
    static constexpr uint32_t tile_bytes = KC / BLOCK_INS * BLOCK_BYTES, w_bytes = 4 * tile_bytes, x_bytes = KC * N * 2;
    static constexpr uint32_t stage = w_bytes + x_bytes, bytes = STAGES * stage + 1024;
    static constexpr int REGS = GROUPS == 2 ? 240 : 112, SENDER_REGS = 24;
};

/* Where a tile's operands are. */
typedef struct {
    const uint8_t *w, *x;
    uint32_t in, block, outs; /* outs: the tile's number among the outputs */
    bool last;                /* W2 */
} tile_of;

static __device__ __forceinline__ tile_of find_tile(const work &j, uint32_t i, uint32_t blocks, uint32_t N)
{
    uint32_t t13 = 2 * j.a.inner / TILE_ALL, t2 = j.a.d / TILE_ALL;
    tile_of t;

    t.last = i >= blocks * t13;
    i -= t.last ? blocks * t13 : 0;
    t.block = i / (t.last ? t2 : t13);
    t.outs = i % (t.last ? t2 : t13);
    t.in = t.last ? j.a.inner : j.a.d;
    t.w = j.w[j.expert[t.block]].w[t.last ? 2 : 0] + (size_t)t.outs * (TILE_ALL / TILE_OUTS) * (t.in / BLOCK_INS) * BLOCK_BYTES;
    t.x = (const uint8_t *)(t.last ? j.h : j.x) + (size_t)t.block * N * t.in * 2;
    return t;
}

template <typename S> static __device__ void send(const work &j, uint32_t stages, uint32_t full, uint32_t empty)
{
    uint32_t blocks = *j.n_blocks, tiles = blocks * (2 * j.a.inner / TILE_ALL + j.a.d / TILE_ALL), slot = 0, turn = 0;
    /* Weights that are read once don't push out what comes again; with many rows blocks of slots share an expert's weights. */
    uint64_t once = S::WIDE ? policy_none() : policy_once(), keep = S::WIDE ? policy_none() : policy_keep();

    for (uint32_t i = blockIdx.x; i < tiles; i += gridDim.x) {
        tile_of t = find_tile(j, i, blocks, S::N);
        if (t.last) {
            while (count_of(j.ready + t.block) < 2 * j.a.inner / TILE_ALL * S::WARPS)
                ;
            proxy_fence();
        }
        for (uint32_t k = 0; k < t.in; k += S::KC) {
            uint32_t at = stages + slot * S::stage, bar = full + slot * 8;
            if (turn)
                barrier_wait(empty + slot * 8, (turn - 1) & 1);
            barrier_expect(bar, S::stage);
#pragma unroll
            for (int n = 0; n < 4; n++)
                bulk_copy(at + n * S::tile_bytes, t.w + ((size_t)n * t.in + k) / BLOCK_INS * BLOCK_BYTES, S::tile_bytes, bar, once);
            bulk_copy(at + S::w_bytes, t.x + (size_t)k * S::N * 2, S::x_bytes, bar, keep);
            slot = slot + 1 == S::STAGES ? 0 : slot + 1;
            turn += slot == 0;
        }
    }
}

/* A thread's place in the stages that come. */
typedef struct {
    uint32_t slot, parity;
} turn_of;

template <typename S> static __device__ __forceinline__ void advance(turn_of *t)
{
    t->slot = t->slot + 1 == S::STAGES ? 0 : t->slot + 1;
    t->parity ^= t->slot == 0;
}

/* acc += a tile with mma.sync. w: of this thread's first tile in stage 0. */
template <typename S>
static __device__ __forceinline__ void multiply(float (&acc)[S::TILES][S::N / 8][4], uint32_t in, uint32_t stages, uint32_t full,
                                                uint32_t empty, turn_of *turn)
{
    const uint32_t lane = threadIdx.x % 32, thread = threadIdx.x % 128, group = threadIdx.x / 128 - 1;
    const uint32_t w0 = stages + group * S::TILES * S::tile_bytes, x0 = stages + S::w_bytes + lane % 8 * 128;
    const uint32_t codes0 = w0 + thread * 16, scales0 = w0 + BLOCK_SCALES + thread / 4 * 8, piece = lane / 8;

#pragma unroll
    for (int t = 0; t < S::TILES; t++)
#pragma unroll
        for (int n = 0; n < S::N / 8; n++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                acc[t][n][k] = 0.0f;
    for (uint32_t k0 = 0; k0 < in; k0 += S::KC) {
        uint32_t at = turn->slot * S::stage;
        uint4 codes[2][S::TILES];
        uint2 scales[2][S::TILES];
        barrier_wait(full + turn->slot * 8, turn->parity);
#pragma unroll
        for (int t = 0; t < S::TILES; t++) {
            codes[0][t] = shared_16(codes0 + at + t * S::tile_bytes);
            scales[0][t] = shared_8(scales0 + at + t * S::tile_bytes);
        }
#pragma unroll
        for (int q = 0; q < S::KC / 64; q++) { /* 64 inputs; the next are read ahead */
            uint32_t b[S::N / 8][2][4];
            if (q + 1 < S::KC / 64)
#pragma unroll
                for (int t = 0; t < S::TILES; t++) {
                    codes[(q + 1) % 2][t] = shared_16(codes0 + at + t * S::tile_bytes + (q + 1) / 2 * BLOCK_BYTES + (q + 1) % 2 * 2048);
                    if (q % 2)
                        scales[(q + 1) / 2 % 2][t] = shared_8(scales0 + at + t * S::tile_bytes + (q + 1) / 2 * BLOCK_BYTES);
                }
#pragma unroll
            for (int n = 0; n < S::N / 8; n++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    matrices(b[n][h], x0 + at + (q * S::N + n * 8) * 128 + ((h * 4 + piece) ^ lane % 8) * 16);
#pragma unroll
            for (int s = 0; s < 4; s++)
#pragma unroll
                for (int t = 0; t < S::TILES; t++) {
                    const uint4 &c = codes[q % 2][t];
                    const uint2 &f = scales[q / 2 % 2][t];
                    uint32_t a[4];
                    unpack(a, s == 0 ? c.x : (s == 1 ? c.y : (s == 2 ? c.z : c.w)), packed_factors(q % 2 ? f.y : f.x, s / 2));
#pragma unroll
                    for (int n = 0; n < S::N / 8; n++)
                        mma16(acc[t][n], a, b[n][s / 2][s % 2 * 2], b[n][s / 2][s % 2 * 2 + 1]);
                }
        }
        __syncwarp();
        if (lane == 0)
            barrier_arrive(empty + turn->slot * 8);
        advance<S>(turn);
    }
}

/* The same with wgmma: 32 inputs are unpacked while the products of the 32 before them run. */
template <typename S>
static __device__ __forceinline__ void multiply_wide(float (&acc)[S::TILES][S::N / 8][4], uint32_t in, uint32_t stages, uint32_t full,
                                                     uint32_t empty, turn_of *turn)
{
    const uint32_t lane = threadIdx.x % 32, thread = threadIdx.x % 128, group = threadIdx.x / 128 - 1;
    const uint32_t w0 = stages + group * S::TILES * S::tile_bytes, x0 = stages + S::w_bytes;
    const uint32_t codes0 = w0 + thread * 16, scales0 = w0 + BLOCK_SCALES + thread / 4 * 8;
    uint32_t before = 0; /* the stage whose last products are still running */

    for (uint32_t k0 = 0; k0 < in; k0 += S::KC) {
        uint32_t at = turn->slot * S::stage;
        uint2 scales[S::TILES];
        barrier_wait(full + turn->slot * 8, turn->parity);
#pragma unroll
        for (int q = 0; q < S::KC / 64; q++) {
            uint4 codes[S::TILES];
#pragma unroll
            for (int t = 0; t < S::TILES; t++) {
                codes[t] = shared_16(codes0 + at + t * S::tile_bytes + q / 2 * BLOCK_BYTES + q % 2 * 2048);
                if (q % 2 == 0)
                    scales[t] = shared_8(scales0 + at + t * S::tile_bytes + q / 2 * BLOCK_BYTES);
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t a[S::TILES][2][4];
#pragma unroll
                for (int t = 0; t < S::TILES; t++) {
                    uint32_t f = packed_factors(q % 2 ? scales[t].y : scales[t].x, h);
                    unpack(a[t][0], h ? codes[t].z : codes[t].x, f);
                    unpack(a[t][1], h ? codes[t].w : codes[t].y, f);
                }
                wgmma_begin();
#pragma unroll
                for (int t = 0; t < S::TILES; t++)
#pragma unroll
                    for (int s = 0; s < 2; s++)
                        wgmma(acc[t], a[t][s], rows_128(x0 + at + q * S::N * 128) + (h * 2 + s) * 2, k0 + q + h + s > 0);
                wgmma_send();
                wgmma_wait<1>();
                if (q == 0 && h == 0 && k0 > 0 && lane == 0)
                    barrier_arrive(empty + before * 8);
            }
        }
        before = turn->slot;
        advance<S>(turn);
    }
    wgmma_wait<0>();
    if (lane == 0)
        barrier_arrive(empty + before * 8);
#pragma unroll
    for (int t = 0; t < S::TILES; t++)
        wgmma_settled(acc[t]);
}

/* To 2e-6 relative for arguments that bf16 can tell apart. */
static __device__ __forceinline__ float quick_silu(float v)
{
    return __fdividef(v, 1.0f + __expf(-v));
}

/* Gate, up and routing weight: hidden values in the form of slots. */
template <typename S>
static __device__ __forceinline__ void put_hidden(const work &j, const tile_of &at, float (&acc)[S::TILES][S::N / 8][4])
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, group = threadIdx.x / 128 - 1;
    const float *weight = j.weight + (size_t)at.block * S::N + lane % 4 * 2;
    uint8_t *h = (uint8_t *)(j.h + (size_t)at.block * S::N * j.a.inner);

#pragma unroll
    for (int t = 0; t < S::TILES; t++) {
        uint32_t piece = (at.outs * 4 + group * S::TILES + t) * 4 + warp; /* of 8 hidden values */
        uint8_t *to = h + (size_t)(piece / 8) * S::N * 128 + lane / 4 * 128 + ((piece % 8) ^ (lane / 4)) * 16 + lane % 4 * 4;
#pragma unroll
        for (int n = 0; n < S::N / 8; n++) {
            float2 w = *(const float2 *)(weight + n * 8);
            uint32_t gate = bf16_pair(acc[t][n][0], acc[t][n][1]), up = bf16_pair(acc[t][n][2], acc[t][n][3]);
            float a = w.x * quick_silu(bound_gate(low_of(gate), j.a.limit)) * bound_up(low_of(up), j.a.limit);
            float b = w.y * quick_silu(bound_gate(high_of(gate), j.a.limit)) * bound_up(high_of(up), j.a.limit);
            *(uint32_t *)(to + n * 1024) = turned(bf16_pair(a, b));
        }
    }
    proxy_fence();
    __syncwarp();
    if (lane == 0)
        count_up(j.ready + at.block);
}

template <typename S> static __device__ __forceinline__ void put_part(const work &j, const tile_of &at, float (&acc)[S::TILES][S::N / 8][4])
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, group = threadIdx.x / 128 - 1;
    const int32_t *pair = j.pair + (size_t)at.block * S::N + lane % 4 * 2;
    float *to = j.a.part + at.outs * TILE_ALL + group * S::TILES * TILE_OUTS + warp * 16 + lane / 4 * 2;

#pragma unroll
    for (int n = 0; n < S::N / 8; n++) {
        int2 p = *(const int2 *)(pair + n * 8);
#pragma unroll
        for (int t = 0; t < S::TILES; t++) {
            uint32_t first = bf16_pair(acc[t][n][0], acc[t][n][2]), second = bf16_pair(acc[t][n][1], acc[t][n][3]);
            if (p.x >= 0)
                *(float2 *)(to + (size_t)p.x * j.a.d + t * TILE_OUTS) = make_float2(low_of(first), high_of(first));
            if (p.y >= 0)
                *(float2 *)(to + (size_t)p.y * j.a.d + t * TILE_OUTS) = make_float2(low_of(second), high_of(second));
        }
    }
}

template <typename S> static __global__ void __launch_bounds__(S::THREADS, 1) product_kernel(const __grid_constant__ work j)
{
    after_others();
    extern __shared__ uint32_t shared[];
    __shared__ __align__(8) uint64_t bars[2 * S::STAGES];
    const uint32_t stages = (shared_at(shared) + 1023) & ~1023u, full = shared_at(bars), empty = full + S::STAGES * 8;

    if (threadIdx.x == 0)
        for (int i = 0; i < S::STAGES; i++) {
            barrier_init(full + i * 8, 1);
            barrier_init(empty + i * 8, S::WARPS);
        }
    barriers_are_ready();
    if (threadIdx.x < 128) {
        give_registers<S::SENDER_REGS>();
        if (threadIdx.x == 0)
            send<S>(j, stages, full, empty);
        return;
    }
    take_registers<S::REGS>();
    uint32_t blocks = *j.n_blocks, tiles = blocks * (2 * j.a.inner / TILE_ALL + j.a.d / TILE_ALL);
    turn_of turn = { 0, 0 };
    for (uint32_t i = blockIdx.x; i < tiles; i += gridDim.x) {
        tile_of t = find_tile(j, i, blocks, S::N);
        float acc[S::TILES][S::N / 8][4];
        if constexpr (S::WIDE)
            multiply_wide<S>(acc, t.in, stages, full, empty, &turn);
        else
            multiply<S>(acc, t.in, stages, full, empty, &turn);
        if (t.last)
            put_part<S>(j, t, acc);
        else
            put_hidden<S>(j, t, acc);
    }
}

/* ---- launching ---- */

/* Slots of a block if n experts share so many pairs evenly: the bits are the same with any. */
static uint32_t slots_for(size_t pairs, size_t n)
{
    static const uint32_t sizes[] = { 8, 16, 32, 64, 96 };
    size_t active = pairs < n ? pairs : n, each = (pairs + active - 1) / active;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (each <= sizes[i])
            return sizes[i];
    return 128;
}

static size_t slots_in_all(size_t pairs, size_t n, uint32_t N)
{
    return ((pairs + (pairs < n ? pairs : n) * (N - 1)) / N + 1) * N;
}

size_t ds_experts_packed_scratch(const ds_kern_limits *lim)
{
    size_t pairs = (size_t)lim->max_rows * lim->k, most = 0;

    for (size_t n = 1; pairs && n <= lim->experts; n++) {
        size_t all = slots_in_all(pairs, n, slots_for(pairs, n));
        most = all > most ? all : most;
    }
    return most * ((size_t)(lim->d + lim->inner) * sizeof(uint16_t) + 5 * sizeof(uint32_t)) + 1024;
}

template <typename S> static void launch(ds_exec *e, const work *j, unsigned sms)
{
    cudaFuncSetAttribute((const void *)product_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)S::bytes);
    launch(e, product_kernel<S>, sms, S::THREADS, S::bytes, *j);
}

void ds_experts_packed(ds_exec *e, const ds_op_experts_part *a, const ds_cuda_expert *w)
{
    size_t pairs = a->rows * a->k;
    uint32_t N = slots_for(pairs, a->n);
    size_t slots = slots_in_all(pairs, a->n, N);
    unsigned sms = ds_cuda_sms(e);
    work j = { *a, w };

    j.n_blocks = (uint32_t *)ds_exec_scratch(e, sizeof(uint32_t));
    j.ready = (uint32_t *)ds_exec_scratch(e, slots / N * sizeof(uint32_t));
    j.expert = (uint32_t *)ds_exec_scratch(e, slots / N * sizeof(uint32_t));
    j.pair = (int32_t *)ds_exec_scratch(e, slots * sizeof(int32_t));
    j.slot = (int32_t *)ds_exec_scratch(e, pairs * sizeof(int32_t));
    j.weight = (float *)ds_exec_scratch(e, slots * sizeof(float));
    j.x = (uint16_t *)ds_exec_scratch(e, slots * a->d * sizeof(uint16_t));
    j.h = (uint16_t *)ds_exec_scratch(e, slots * a->inner * sizeof(uint16_t));
    launch(e, plan_kernel, 1, PLAN_THREADS, 2 * a->n * sizeof(uint32_t), j, N);
    launch(e, gather_kernel, dim3((unsigned)a->rows, blocks_of(a->d / 8, GATHER_THREADS)), GATHER_THREADS, 0, j, N);
    switch (N) {
    case 8:
        launch<shape<8, 2, 256, 5>>(e, &j, sms);
        break;
    case 16:
        launch<shape<16, 2, 256, 5>>(e, &j, sms);
        break;
    case 32:
        launch<shape<32, 4, 256, 4>>(e, &j, sms);
        break;
    case 64:
        launch<shape<64, 4, 256, 3>>(e, &j, sms);
        break;
    case 96:
        launch<shape<96, 2, 128, 5>>(e, &j, sms);
        break;
    default:
        launch<shape<128, 2, 128, 4>>(e, &j, sms);
        break;
    }
}

/* ---- packing, at load ---- */

enum { PACK_THREADS = 256 };

typedef struct {
    uint8_t *to;
    const uint8_t *data[2], *scale[2]; /* of W1 and W3, or of W2 */
    uint32_t in, which;                /* 0: W1 and W3; 2: W2 */
    size_t words;
} packing;

/* A thread a word of codes; the first of every 16 of a half does a byte of scales. */
static __global__ void __launch_bounds__(PACK_THREADS) pack_kernel(packing j)
{
    after_others();
    size_t i = blockIdx.x * (size_t)PACK_THREADS + threadIdx.x, block = i / 1024, tile = block / (j.in / BLOCK_INS);
    uint32_t w = i % 1024, half = w / 512, thread = w % 512 / 4, step = w % 4, k = (uint32_t)(block % (j.in / BLOCK_INS)) * BLOCK_INS;
    uint32_t warp = thread / 32, g = thread % 32 / 4, v = 0;

    if (i >= j.words)
        return;
    auto out_of = [&](uint32_t warp, uint32_t g, uint32_t high) -> size_t {
        return j.which == 2 ? tile * 64 + warp * 16 + 2 * g + high : tile * 32 + warp * 8 + g;
    };
    for (uint32_t r = 0; r < 4; r++) {
        size_t at = out_of(warp, g, r % 2) * j.in + k + half * 64 + step * 16 + r / 2 * 8 + thread % 4 * 2;
        uint32_t two = j.data[j.which == 2 ? 0 : r % 2][at / 2];
        v |= fragment_bits(two & 15, (int)r, 0) | fragment_bits(two >> 4, (int)r, 1);
    }
    *(uint32_t *)(j.to + block * BLOCK_BYTES + half * 2048 + thread * 16 + step * 4) = v;
    if (w < 256) { /* [warp][g][half, high, group of 32] */
        uint32_t high = w % 4 / 2, group = w % 8 / 4 * 2 + w % 2;
        uint32_t s = j.scale[j.which == 2 ? 0 : high][out_of(w / 64, w / 8 % 8, high) * (j.in / 32) + k / 32 + group];
        j.to[block * BLOCK_BYTES + BLOCK_SCALES + w] = (uint8_t)(s + 126);
    }
}

cudaError_t ds_cuda_pack(uint8_t *w13, uint8_t *w2, const uint8_t *const data[3], const uint8_t *const scale[3], uint32_t d, uint32_t inner)
{
    packing one = { w13, { data[0], data[1] }, { scale[0], scale[1] }, d, 0, (size_t)inner * 2 * d / 8 };
    packing two = { w2, { data[2], NULL }, { scale[2], NULL }, inner, 2, (size_t)inner * d / 8 };

    pack_kernel<<<blocks_of(one.words, PACK_THREADS), PACK_THREADS>>>(one);
    pack_kernel<<<blocks_of(two.words, PACK_THREADS), PACK_THREADS>>>(two);
    return cudaGetLastError();
}
