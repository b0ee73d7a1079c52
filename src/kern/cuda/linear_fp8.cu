/* Linear layers of FP8 32x32 weights in bf16 mode, read as the file has them.
 *
 * A block has some outputs and one part of the inputs; the parts' blocks form a cluster and add up their sums, in
 * order, through each other's shared memory. How many parts there are depends on the weight's shape alone, so a
 * row's bits don't depend on the number of rows. Within a part there is one chain over the inputs, mma.sync or
 * wgmma, which add in the same way.
 *
 * Order of inputs: of 64, a lane has the 16 that stand together at 16 (lane % 4), in four steps. Step j takes its
 * codes 4 j and 4 j + 2 as the fragment's first two inputs, 4 j + 1 and 4 j + 3 as its last two: then decoding needs
 * no byte moved. Activations are put into that order when they are rounded.
 *
 *   turn   rounds the activations and puts them into that order
 *   few    up to 16 rows: 64 outputs a block, mma.sync; all threads send steps of 128 inputs ahead of the products
 *   many   a warpgroup for each 64 outputs, wgmma, and one that sends
 *
 * Launches overlap: weights come while the kernel before still runs. Bound by bytes of the weight with few rows. */
#include "linear_fp8.cuh"

#include "hopper.cuh"

enum { KC = 128, TILE_OUTS = 64, FEW_THREADS = 128, TILE_BYTES = TILE_OUTS * KC, MAX_PARTS = 8 };

typedef struct {
    ds_op_linear a;
    const uint8_t *w, *scale;
    const uint16_t *x;  /* `many`: as `turn` writes it */
    uint32_t in, tiles; /* tiles: of a group */
    uint64_t out, group_outs;
    bool bf16;
} args;

/* By the shape alone. */
static uint32_t parts_of(const ds_mat *w)
{
    uint64_t tiles = (w->out + TILE_OUTS - 1) / TILE_OUTS;
    uint32_t parts = tiles >= 320 ? 1 : (tiles >= 160 ? 2 : (tiles > 40 ? 4 : MAX_PARTS));

    while (parts > w->in / KC)
        parts /= 2;
    return parts;
}

/* The first output of this block, whose outputs are of one group. */
static __device__ __forceinline__ uint64_t first_out(const args &j, uint32_t outs)
{
    return blockIdx.y / j.tiles * j.group_outs + blockIdx.y % j.tiles * (uint64_t)outs;
}

/* Steps of KC inputs that this block has. */
typedef struct {
    uint32_t begin, end;
} part_of;

static __device__ __forceinline__ part_of my_part(uint32_t in)
{
    uint32_t steps = in / KC;
    return { steps * blockIdx.x / gridDim.x, steps * (blockIdx.x + 1) / gridDim.x };
}

/* Factors as in product.cuh: too large for one bf16 above 134. In shared memory, [32 outputs][group of 32
 * inputs][2]: true if any is large. */
static __device__ __forceinline__ bool put_factors(uint32_t at, const args &j, uint64_t o0, uint32_t out_blocks, part_of p, uint32_t thread,
                                                   uint32_t threads)
{
    uint32_t groups = (p.end - p.begin) * (KC / 32), per_row = j.in / 32;
    uint64_t last = (j.out - 1) / 32;
    bool large = false;

    for (uint32_t i = thread; i < out_blocks * groups; i += threads) {
        uint64_t row = o0 / 32 + i / groups;
        uint32_t s = j.scale[(row < last ? row : last) * per_row + p.begin * (KC / 32) + i % groups];
        uint32_t f = min(s + 120, 254u), g = s + 120 - f + 127;
        put_shared_8(at + i * 8, make_uint2(f * 0x800080u, g * 0x800080u));
        large = large || s > 134;
    }
    return large;
}

/* Four codes of one output as two registers of A, too small by 2^120. */
static __device__ __forceinline__ void small_codes(uint32_t *even, uint32_t *odd, uint32_t w)
{
    *odd = (w & 0x80008000u) | (w >> 4 & 0x07f007f0u);
    *even = (w << 8 & 0x80008000u) | (w << 4 & 0x07f007f0u);
}

template <bool LARGE> static __device__ __forceinline__ void unpack(uint32_t a[4], uint32_t w, uint32_t w8, uint2 f)
{
    small_codes(&a[0], &a[2], w);
    small_codes(&a[1], &a[3], w8);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        a[i] = mul2(a[i], f.x);
        if (LARGE)
            a[i] = mul2(a[i], f.y);
    }
}

static __device__ __forceinline__ uint32_t word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : (i == 1 ? v.y : (i == 2 ? v.z : v.w));
}

/* What one of 128 threads sends of a tile's step: 16 bytes of every sixteenth output. Odd outputs have their halves
 * exchanged: no bank conflicts. */
typedef struct {
    const uint8_t *from; /* of step 0 */
    size_t stride;       /* of 16 outputs */
    uint32_t to;         /* within the tile */
    int valid;           /* outputs that the weight has */
} sender;

static __device__ __forceinline__ sender sender_of(const args &j, uint64_t o0)
{
    uint32_t row = threadIdx.x % 128 / 8, piece = threadIdx.x % 8;
    uint64_t left = j.out > o0 + row ? (j.out - o0 - row + 15) / 16 : 0;
    sender s = { j.w + (left ? o0 + row : 0) * j.in + piece * 16, (size_t)j.in * 16, row * KC + (piece ^ (row % 2 * 4)) * 16,
                 (int)min(left, (uint64_t)64) };
    return s;
}

template <int OUTS> static __device__ __forceinline__ void send(const sender &s, uint32_t tile, uint32_t step)
{
    const uint8_t *from = s.from + (size_t)step * KC;
#pragma unroll
    for (int i = 0; i < OUTS / 16; i++, from += i < s.valid ? s.stride : 0)
        copy_16(tile + s.to + i * 16 * KC, from, i < s.valid);
}

/* This thread's codes of 64 inputs: outputs g and g + 8 of the warp's 16. `at`: of the tile's row for lane / 4. */
static __device__ __forceinline__ void load_codes(uint4 c[2], uint32_t at, uint32_t half)
{
    uint32_t lane = threadIdx.x % 32, piece = (half * 4 + lane % 4) ^ (lane / 4 % 2 * 4);
    c[0] = shared_16(at + piece * 16);
    c[1] = shared_16(at + 8 * KC + piece * 16);
}

static __device__ __forceinline__ void put(const ds_op_linear &a, bool bf16, size_t r, uint64_t o, float v)
{
    float *y = a.y + r * a.ldy + o;
    if (a.bias)
        v += a.bias[o];
    if (a.add)
        v += *y;
    *y = a.round ? rounded(bf16, v) : v;
}

/* Four outputs of a row. */
static __device__ __forceinline__ void put_4(const ds_op_linear &a, bool bf16, size_t r, uint64_t o, float4 v)
{
    float4 *y = (float4 *)(a.y + r * a.ldy + o);

    if (a.bias)
        v = make_float4(v.x + a.bias[o], v.y + a.bias[o + 1], v.z + a.bias[o + 2], v.w + a.bias[o + 3]);
    if (a.add) {
        float4 w = *y;
        v = make_float4(v.x + w.x, v.y + w.y, v.z + w.z, v.w + w.w);
    }
    if (a.round)
        v = make_float4(rounded(bf16, v.x), rounded(bf16, v.y), rounded(bf16, v.z), rounded(bf16, v.w));
    *y = v;
}

/* Sums of four outputs, part by part; all are on their way before the first is added. */
template <int PARTS> static __device__ __forceinline__ float4 sum_of(uint32_t at)
{
    float4 v[PARTS], sum;
#pragma unroll
    for (uint32_t p = 0; p < PARTS; p++)
        v[p] = cluster_16(in_block(at, p));
    sum = v[0];
#pragma unroll
    for (uint32_t p = 1; p < PARTS; p++)
        sum = make_float4(sum.x + v[p].x, sum.y + v[p].y, sum.z + v[p].z, sum.w + v[p].w);
    return sum;
}

template <int OUTS, int PARTS> static __device__ __forceinline__ void add_these(uint32_t at, const args &j, uint64_t o0, size_t r0, uint32_t rows)
{
    uint64_t end = (blockIdx.y / j.tiles + 1) * j.group_outs;
    bool by_4 = j.a.ldy % 4 == 0 && ((uintptr_t)j.a.y & 15) == 0 && o0 % 4 == 0;

#pragma unroll 2
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < rows * (OUTS / 4); i += PARTS * blockDim.x) {
        uint32_t r = i / (OUTS / 4), o = i % (OUTS / 4) * 4;
        float4 sum = sum_of<PARTS>(at + (r * (OUTS + 4) + o) * 4);
        if (by_4 && o0 + o + 4 <= end) {
            put_4(j.a, j.bf16, r0 + r, o0 + o, sum);
            continue;
        }
        const float v[4] = { sum.x, sum.y, sum.z, sum.w };
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (o0 + o + k < end)
                put(j.a, j.bf16, r0 + r, o0 + o + k, v[k]);
    }
}

/* Adds up the parts and stores. Each block has put [rows][OUTS + 4] sums at `at` of its shared memory. All threads
 * of all blocks. */
template <int OUTS> static __device__ __forceinline__ void add_parts(uint32_t at, const args &j, uint64_t o0, size_t r0, uint32_t rows)
{
    cluster_sync();
    after_others();
    switch (gridDim.x) { /* a power of 2 up to MAX_PARTS */
    case 1: add_these<OUTS, 1>(at, j, o0, r0, rows); break;
    case 2: add_these<OUTS, 2>(at, j, o0, r0, rows); break;
    case 4: add_these<OUTS, 4>(at, j, o0, r0, rows); break;
    default: add_these<OUTS, 8>(at, j, o0, r0, rows);
    }
    cluster_sync(); /* nobody's shared memory goes before all have read it */
}

/* A thread's accumulators to shared memory, for add_parts. */
template <int OUTS, int NT> static __device__ __forceinline__ void put_sums(uint32_t at, const float (&acc)[NT][4], uint32_t warp)
{
    uint32_t lane = threadIdx.x % 32;
    at += (lane % 4 * 2 * (OUTS + 4) + warp * 16 + lane / 4) * 4;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            put_shared_4(at + ((n * 8 + k % 2) * (OUTS + 4) + k / 2 * 8) * 4, bits_of(acc[n][k]));
}

/* ---- up to 16 rows ---- */

template <int NT, int STAGES> static uint32_t few_bytes(uint32_t in, uint32_t parts)
{
    uint32_t steps = (in / KC + parts - 1) / parts;
    return 1024 + STAGES * TILE_BYTES + NT * 8 * steps * KC * 2 + 2 * steps * (KC / 32) * 8;
}

template <bool LARGE, int NT, int STAGES>
static __device__ __forceinline__ void few_steps(float (&acc)[NT][4], const sender &from, part_of p, uint32_t ring, uint32_t x,
                                                 uint32_t factors)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    x += lane % 8 * 128;
    factors += (warp / 2 * (p.end - p.begin) * (KC / 32) + lane % 4 / 2) * 8;
    for (uint32_t s = 0, slot = 0; s < p.end - p.begin; s++) {
        uint32_t at = ring + slot * TILE_BYTES + (warp * 16 + lane / 4) * KC;
        copies_wait<STAGES - 2>();
        __syncthreads();
        if (p.begin + s + STAGES - 1 < p.end)
            send<TILE_OUTS>(from, ring + (slot ? slot - 1 : STAGES - 1) * TILE_BYTES, p.begin + s + STAGES - 1);
        copies_sent();
        slot = slot + 1 == STAGES ? 0 : slot + 1;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint4 c[2];
            uint32_t b[NT][2][4];
            load_codes(c, at, half);
            uint2 f = shared_8(factors + (s * (KC / 32) + half * 2) * 8);
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    matrices(b[n][i], x + ((s * 2 + half) * NT * 8 + n * 8) * 128 + ((i * 4 + lane / 8) ^ lane % 8) * 16);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                uint32_t a[4];
                unpack<LARGE>(a, word_of(c[0], k), word_of(c[1], k), f);
#pragma unroll
                for (int n = 0; n < NT; n++)
                    mma16(acc[n], a, b[n][k / 2][k % 2 * 2], b[n][k / 2][k % 2 * 2 + 1]);
            }
        }
    }
}

template <int NT, int STAGES> static __global__ void __launch_bounds__(FEW_THREADS) few_kernel(const __grid_constant__ args j)
{
    extern __shared__ uint32_t shared[];
    __shared__ __align__(8) uint64_t bar;
    const part_of p = my_part(j.in);
    const uint64_t o0 = first_out(j, TILE_OUTS);
    const uint32_t x_bytes = (p.end - p.begin) * KC * NT * 16, ring = (shared_at(shared) + 1023) & ~1023u;
    const uint32_t x = ring + STAGES * TILE_BYTES, factors = x + x_bytes;
    const sender from = sender_of(j, o0);
    float acc[NT][4] = { 0 };

    for (uint32_t s = 0; s < STAGES - 1; s++) {
        if (p.begin + s < p.end)
            send<TILE_OUTS>(from, ring + s * TILE_BYTES, p.begin + s);
        copies_sent();
    }
    if (threadIdx.x == 0)
        barrier_init(shared_at(&bar), 1);
    bool large = put_factors(factors, j, o0, 2, p, threadIdx.x, FEW_THREADS);
    let_others_start();
    barriers_are_ready();
    if (threadIdx.x == 0) {
        after_others();
        barrier_expect(shared_at(&bar), x_bytes);
        bulk_copy(x, j.x + (blockIdx.y / j.tiles * (j.in / 64) + p.begin * 2) * (size_t)NT * 8 * 64, x_bytes, shared_at(&bar),
                  policy_keep());
    }
    large = __syncthreads_or(large);
    barrier_wait(shared_at(&bar), 0);
    if (large)
        few_steps<true, NT, STAGES>(acc, from, p, ring, x, factors);
    else
        few_steps<false, NT, STAGES>(acc, from, p, ring, x, factors);
    copies_wait<0>();
    __syncthreads();
    put_sums<TILE_OUTS>(ring, acc, threadIdx.x / 32);
    add_parts<TILE_OUTS>(ring, j, o0, 0, (uint32_t)j.a.rows);
}

/* ---- more rows ---- */

enum { TURN_THREADS = 256 };

/* x as products take it: [block of N rows][groups * in / 64][N][128 bytes], pieces of 16 bytes XOR row % 8; zeros
 * behind the last row. A thread has a step's 16 inputs of 64. */
static __global__ void __launch_bounds__(TURN_THREADS)
    turn_kernel(uint16_t *to, const float *x, uint32_t rows, size_t ldx, uint32_t n, uint32_t N)
{
    uint32_t r = blockIdx.y, i = blockIdx.x * TURN_THREADS + threadIdx.x, k64 = i / 4, j = i % 4;
    const bool aligned = ldx % 4 == 0 && ((uintptr_t)x & 15) == 0;
    uint32_t lo[4], hi[4];

    let_others_start();
    after_others();
    if (k64 >= n / 64)
        return;
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const float *at = x + r * ldx + k64 * 64 + t * 16 + j * 4;
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (r < rows)
            v = aligned ? *(const float4 *)at : make_float4(at[0], at[1], at[2], at[3]);
        lo[t] = bf16_pair(v.x, v.z);
        hi[t] = bf16_pair(v.y, v.w);
    }
    uint4 *row = (uint4 *)(to + ((size_t)(r / N) * (n / 64) + k64) * N * 64) + r % N * 8;
    row[(2 * j) ^ (r % N % 8)] = make_uint4(lo[0], lo[1], lo[2], lo[3]);
    row[(2 * j + 1) ^ (r % N % 8)] = make_uint4(hi[0], hi[1], hi[2], hi[3]);
}

template <int N_, int GROUPS_, int STAGES_> struct shape {
    static constexpr int N = N_, GROUPS = GROUPS_, STAGES = STAGES_, OUTS = GROUPS * TILE_OUTS, THREADS = GROUPS * 128 + 128;
    static constexpr uint32_t w_bytes = OUTS * KC, x_bytes = N * KC * 2, stage = w_bytes + x_bytes;
    static constexpr int REGS = GROUPS == 2 ? 208 : (GROUPS == 3 ? 152 : 104), SENDER_REGS = GROUPS == 4 ? 64 : 56;
    static constexpr int SENDERS = 96;    /* threads that copy weights; one more copies activations */
    static uint32_t bytes(uint32_t steps) /* of a part */
    {
        uint32_t ring = STAGES * stage, sums = N * (OUTS + 4) * 4;
        return (ring > sums ? ring : sums) + OUTS / 32 * steps * (KC / 32) * 8 + 1024;
    }
};

template <typename S, bool LARGE>
static __device__ __forceinline__ void many_steps(float (&acc)[S::N / 8][4], part_of p, uint32_t stages, uint32_t full, uint32_t empty,
                                                  uint32_t factors)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, group = threadIdx.x / 128 - 1;
    uint32_t slot = 0, parity = 0, before = 0;

    factors += ((group * 2 + warp / 2) * (p.end - p.begin) * (KC / 32) + lane % 4 / 2) * 8;
    for (uint32_t s = p.begin; s < p.end; s++) {
        uint32_t at = stages + slot * S::stage, w = at + (group * TILE_OUTS + warp * 16 + lane / 4) * KC, x = at + S::w_bytes;
        uint4 c[2][2];
        uint2 f[2];
        barrier_wait(full + slot * 8, parity);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            load_codes(c[half], w, half);
            f[half] = shared_8(factors + ((s - p.begin) * (KC / 32) + half * 2) * 8);
        }
#pragma unroll
        for (int q = 0; q < 4; q++) { /* 32 inputs */
            uint32_t a[2][4];
            unpack<LARGE>(a[0], word_of(c[q / 2][0], q % 2 * 2), word_of(c[q / 2][1], q % 2 * 2), f[q / 2]);
            unpack<LARGE>(a[1], word_of(c[q / 2][0], q % 2 * 2 + 1), word_of(c[q / 2][1], q % 2 * 2 + 1), f[q / 2]);
            wgmma_begin();
#pragma unroll
            for (int k = 0; k < 2; k++)
                wgmma(acc, a[k], rows_128(x + q / 2 * S::N * 128) + (q % 2 * 2 + k) * 2, s > p.begin || q + k > 0);
            wgmma_send();
            wgmma_wait<1>();
            if (q == 0 && s > p.begin && lane == 0)
                barrier_arrive(empty + before * 8);
        }
        before = slot;
        slot = slot + 1 == S::STAGES ? 0 : slot + 1;
        parity ^= slot == 0;
    }
    wgmma_wait<0>();
    wgmma_settled(acc);
}

template <typename S> static __global__ void __launch_bounds__(S::THREADS, 1) many_kernel(const __grid_constant__ args j)
{
    extern __shared__ uint32_t shared[];
    __shared__ __align__(8) uint64_t bars[2 * S::STAGES];
    const part_of p = my_part(j.in);
    const uint64_t o0 = first_out(j, S::OUTS);
    const uint32_t stages = (shared_at(shared) + 1023) & ~1023u, full = shared_at(bars), empty = full + S::STAGES * 8;
    const uint32_t factors = stages + max((uint32_t)(S::STAGES * S::stage), (uint32_t)(S::N * (S::OUTS + 4) * 4));
    const size_t r0 = (size_t)blockIdx.z * S::N;

    if (threadIdx.x == 0)
        for (int i = 0; i < S::STAGES; i++) {
            barrier_init(full + i * 8, 128 + 1);
            barrier_init(empty + i * 8, S::GROUPS * 4);
        }
    barriers_are_ready();
    bool large = put_factors(factors, j, o0, S::OUTS / 32, p, threadIdx.x, S::THREADS);
    large = __syncthreads_or(large);
    let_others_start();
    if (threadIdx.x < 128) {
        give_registers<S::SENDER_REGS>();
        const size_t groups = (size_t)j.a.groups, width = groups * j.in / 64;
        const uint16_t *x = j.x + ((size_t)blockIdx.z * width + blockIdx.y / j.tiles * (j.in / 64)) * S::N * 64;
        const sender from = sender_of(j, o0);
        for (uint32_t s = p.begin, slot = 0, turn = 0; s < p.end; s++) {
            uint32_t at = stages + slot * S::stage;
            if (turn)
                barrier_wait(empty + slot * 8, (turn - 1) & 1);
            send<S::OUTS>(from, at, s);
            barrier_arrive_with_copies(full + slot * 8);
            if (threadIdx.x == 0) {
                if (s == p.begin)
                    after_others();
                barrier_expect(full + slot * 8, S::x_bytes);
                bulk_copy(at + S::w_bytes, x + (size_t)s * 2 * S::N * 64, S::x_bytes, full + slot * 8, policy_keep());
            }
            slot = slot + 1 == S::STAGES ? 0 : slot + 1;
            turn += slot == 0;
        }
        __syncthreads();
    } else {
        take_registers<S::REGS>();
        float acc[S::N / 8][4];
        if (large)
            many_steps<S, true>(acc, p, stages, full, empty, factors);
        else
            many_steps<S, false>(acc, p, stages, full, empty, factors);
        __syncthreads(); /* nobody reads the stages any more */
        put_sums<S::OUTS>(stages, acc, threadIdx.x / 32 - 4);
    }
    add_parts<S::OUTS>(stages, j, o0, r0, (uint32_t)min((size_t)S::N, j.a.rows - r0));
}

/* ---- launching ---- */

typedef void fp8_kernel(args);

static void launch(ds_exec *e, const args *j, fp8_kernel *f, dim3 grid, unsigned threads, size_t shared)
{
    cudaLaunchAttribute at[2];
    cudaLaunchConfig_t c = {};

    cudaFuncSetAttribute((const void *)f, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    at[0].id = cudaLaunchAttributeClusterDimension;
    at[0].val.clusterDim.x = grid.x;
    at[0].val.clusterDim.y = at[0].val.clusterDim.z = 1;
    at[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    at[1].val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = grid;
    c.blockDim = dim3(threads);
    c.dynamicSmemBytes = shared;
    c.stream = stream_of(e);
    c.attrs = at;
    c.numAttrs = 2;
    cudaLaunchKernelEx(&c, f, *j);
}

static void turn(ds_exec *e, args *j, uint32_t N)
{
    uint32_t n = j->a.groups * j->in, rows = blocks_of(j->a.rows, N) * N;
    uint16_t *x = (uint16_t *)ds_exec_scratch(e, (size_t)rows * n * sizeof *x);
    cudaLaunchAttribute at[1];
    cudaLaunchConfig_t c = {};

    at[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    at[0].val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = dim3(blocks_of(n / 16, TURN_THREADS), rows);
    c.blockDim = dim3(TURN_THREADS);
    c.stream = stream_of(e);
    c.attrs = at;
    c.numAttrs = 1;
    cudaLaunchKernelEx(&c, turn_kernel, x, j->a.x, (uint32_t)j->a.rows, j->a.ldx, n, N);
    j->x = x;
}

/* As many steps ahead as leave room on the multiprocessors for all blocks at once, if that is possible. */
template <int NT> static void few(ds_exec *e, args *j, uint32_t parts)
{
    enum { MOST_SHARED = 227 << 10, RESERVED = 1 << 10 }; /* of a multiprocessor; of a block */

    turn(e, j, NT * 8);
    j->tiles = blocks_of(j->group_outs, TILE_OUTS);
    dim3 grid(parts, j->tiles * j->a.groups);
    uint32_t more = few_bytes<NT, 6>(j->in, parts);
    if (MOST_SHARED / (more + RESERVED) * ds_cuda_sms(e) >= grid.x * grid.y)
        launch(e, j, few_kernel<NT, 6>, grid, FEW_THREADS, more);
    else
        launch(e, j, few_kernel<NT, 4>, grid, FEW_THREADS, few_bytes<NT, 4>(j->in, parts));
}

template <typename S> static void many(ds_exec *e, args *j, uint32_t parts)
{
    turn(e, j, S::N);
    j->tiles = blocks_of(j->group_outs, S::OUTS);
    launch(e, j, many_kernel<S>, dim3(parts, j->tiles * j->a.groups, blocks_of(j->a.rows, S::N)), S::THREADS,
           S::bytes((j->in / KC + parts - 1) / parts));
}

bool ds_linear_fp8_takes(const ds_op_linear *a)
{
    return a->w->type == DS_MAT_FP8_32X32 && a->w->in % KC == 0 && a->w->in <= 16384 && (a->groups == 1 || a->w->out / a->groups % 32 == 0);
}

void ds_linear_fp8(ds_exec *e, const ds_op_linear *a)
{
    const ds_mat *w = a->w;
    uint32_t parts = parts_of(w);
    args j = { *a, (const uint8_t *)w->data, w->scale, NULL, w->in, 0, w->out, w->out / a->groups, e->bf16 };

    if (a->rows <= 8)
        few<1>(e, &j, parts);
    else if (a->rows <= 16)
        few<2>(e, &j, parts);
    else if (a->rows <= 32)
        many<shape<32, 3, 4>>(e, &j, parts);
    else if (a->rows <= 64)
        many<shape<64, 3, 4>>(e, &j, parts);
    else if (a->rows <= 512)
        many<shape<88, 4, 3>>(e, &j, parts);
    else
        many<shape<128, 3, 3>>(e, &j, parts);
}

size_t ds_linear_fp8_scratch(size_t rows, size_t in)
{
    return (rows + 128) * in * sizeof(uint16_t) + 64;
}
