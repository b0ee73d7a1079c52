/* Attention in bf16 mode over entries of 512 columns.
 *
 * A block has a row and 64 of its heads. Entries are taken 64 at a time: a warpgroup decodes them to bf16 in shared
 * memory, exactly (at most 6 bits), once for both products, one tile ahead; two warpgroups multiply. Each of these
 * computes the scores of all 64 heads, S = Q E^T, and the softmax with a running maximum over tiles counted from the
 * start of the row's list; then O = P E for half of the columns, in registers. P stays in the registers where S was
 * and is the sum of two bf16 values, so that 16 bits of it count. While one multiplies the other has its softmax.
 *
 * Queries and entries: [64 columns][64 heads or entries][128 bytes], 16-byte pieces XOR row % 8. For S that is an
 * operand with columns together; for O the same bytes are one with entries one behind the other, which wgmma turns
 * over. Shared memory: queries 64 KB, entries 2 * 64 KB, one block a multiprocessor. Bound by wgmma: 4 * 2 * 512
 * multiplications an entry and head, of which two count. */
#include "attention.cuh"
#include "hopper.cuh"

enum { HEADS = 64, KEYS = 64, TILES = 2 };
enum { LOADERS = 128, READERS = 256, THREADS = LOADERS + READERS };
/* A loading warp's records on their way: STAGES groups of GROUP. */
enum { GROUP = 4, STAGES = 4, EACH = KEYS / (LOADERS / 32), RAW_BYTES = LOADERS / 32 * STAGES * GROUP * DS_WIN_REC(MMA_DIM) };
enum { CHUNK_BYTES = 64 * 128, TILE_BYTES = MMA_DIM / 64 * CHUNK_BYTES, SHARED_BYTES = (1 + TILES) * TILE_BYTES + RAW_BYTES + 1024 };
enum { LOADER_REGS = 56, READER_REGS = 224 };

typedef struct {
    ds_step st;
    ds_op_attention a;
} args;

/* ---- finding ---- */

/* Of the entries that a warp has in two tiles, the lane's: what is known of it so far. */
typedef struct {
    uint32_t sel, block;
} finding;

/* Entry of the list that the lane has in batch b. */
static __device__ __forceinline__ uint32_t mine_of(uint32_t b, uint32_t warp, uint32_t lane)
{
    return (2 * b + lane / EACH) * KEYS + warp * EACH + lane % EACH;
}

/* The first two of three steps, each of which waits for the one before. */
static __device__ __forceinline__ void find_selected(finding *f, const args &j, uint32_t r, const key_list &l, uint32_t e)
{
    f->sel = e >= l.n_win && e < l.n ? (uint32_t)j.a.sel[(size_t)r * j.a.topk + (e - l.n_win)] : 0;
}

static __device__ __forceinline__ void find_block(finding *f, const args &j, uint32_t s, const key_list &l, uint32_t e)
{
    f->block = e >= l.n_win && e < l.n ? j.st.blocks[s * j.st.blocks_ld + f->sel / j.a.kv.per_block] : 0;
}

static __device__ __forceinline__ const uint8_t *record_of(const finding &f, const args &j, uint32_t s, const key_list &l, uint32_t e)
{
    const ds_kv_view &v = j.a.kv;
    int32_t t = l.first + (int32_t)e, pos0 = j.st.pos0[s];

    if (e >= l.n)
        return (const uint8_t *)j.a.o; /* isn't read */
    if (e >= l.n_win)
        return v.base + f.block * v.block_bytes + v.off + (size_t)(f.sel % v.per_block) * v.rec_bytes;
    return t >= pos0 ? j.a.rec + (j.st.row0[s] + (size_t)(t - pos0)) * DS_WIN_REC(MMA_DIM) : ring_at(j.a.ring, j.st.slot[s], t);
}

/* ---- decoding ---- */

/* Entries stand in shared memory as bf16 that are too small by SHRINK, exactly: a scale has four bits at most and a
 * code two or four. So a code of a selected entry, which lands in the exponent's low bits and is too small by 2^126,
 * takes one multiplication. A NaN stands in the scale alone. Of eight columns the order is 0 4 1 5 2 6 3 7, as codes
 * come out with the fewest operations; queries have it too, and outputs are put in order again. */
#define SHRINK 0x1p8f

/* Eight columns of a window's entry, and of a selected one. */
static __device__ __forceinline__ void window_codes(uint32_t dst[4], uint2 w, uint32_t scale)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
        dst[k] = mul2(mul2(small_e4m3(__byte_perm(w.x, w.y, k << 4 | (4 + k) << 12)), 0x77807780u), scale); /* 2^112 */
}

static __device__ __forceinline__ void selected_codes(uint32_t dst[4], uint32_t w, uint32_t scale)
{
    dst[0] = mul2((w << 12 & 0x80008000u) | (w << 6 & 0x01c001c0u), scale);
    dst[1] = mul2((w << 8 & 0x80008000u) | (w << 2 & 0x01c001c0u), scale);
    dst[2] = mul2((w << 4 & 0x80008000u) | (w >> 2 & 0x01c001c0u), scale);
    dst[3] = mul2((w & 0x80008000u) | (w >> 6 & 0x01c001c0u), scale);
}

/* A lane has columns 16 lane .. 16 lane + 15 of an entry: two pieces, which half of the lanes take in the other order
 * so that stores don't meet in a bank. All of a group are read before the first is stored. */
typedef struct {
    uint2 a, b; /* a selected entry's: x alone */
    uint32_t scale;
} codes;

template <bool WINDOW> static __device__ __forceinline__ void take(codes *c, uint32_t rec, uint32_t lane)
{
    const uint32_t swap = lane / 4 % 2;

    if (WINDOW) {
        c->a = shared_8(rec + lane * 16 + swap * 8);
        c->b = shared_8(rec + lane * 16 + 8 - swap * 8);
        c->scale = shared_1(rec + MMA_DIM + lane / 2);
    } else {
        c->a.x = shared_4(rec + lane * 8 + swap * 4);
        c->b.x = shared_4(rec + lane * 8 + 4 - swap * 4);
        c->scale = shared_1(rec + MMA_DIM / 2 + lane);
    }
}

template <bool WINDOW> static __device__ __forceinline__ void put_entry(uint32_t to, const codes &c)
{
    uint32_t v[2][4];

    if (WINDOW) {
        uint32_t scale = bf16_bits(e8m0_value(c.scale)) * 0x10001u;
        window_codes(v[0], c.a, scale);
        window_codes(v[1], c.b, scale);
    } else {
        /* 2^118 times the scale, which as bf16 with its bits moved is too small by 2^120 */
        uint32_t scale = ((c.scale & 0x7fu) << 4 | (c.scale & 0x80u) << 8) * 0x10001u;
        scale = mul2(mul2(scale, 0x7b807b80u), 0x7a807a80u);
        scale = (c.scale & 0x7fu) == 0x7fu ? 0x7fc07fc0u : scale;
        selected_codes(v[0], c.a.x, scale);
        selected_codes(v[1], c.b.x, scale);
    }
    put_shared_16(to, v[0][0], v[0][1], v[0][2], v[0][3]);
    put_shared_16(to ^ 16, v[1][0], v[1][1], v[1][2], v[1][3]);
}

/* ---- loading ---- */

/* A warp has EACH entries of each tile, in groups. Their records are on their way STAGES - 1 groups ahead, and where
 * they are is found two tiles at a time, two steps ahead. */
static __device__ void load(const args &j, uint32_t r, uint32_t s, const key_list &l, uint32_t tiles, uint32_t full, uint32_t empty,
                            uint32_t raw)
{
    enum { BATCH = 2 * EACH / GROUP }; /* groups of a batch that is found together */
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, groups = (l.n + KEYS - 1) / KEYS * (EACH / GROUP);
    const uint32_t to = tiles + lane / 4 * CHUNK_BYTES + warp * EACH * 128 + (lane % 4 * 2 + lane / 4 % 2) * 16;
    finding now, next;
    const uint8_t *rec = NULL;

    auto first_of = [&](uint32_t g) { return g / (EACH / GROUP) * KEYS + warp * EACH + g % (EACH / GROUP) * GROUP; };
    auto send = [&](uint32_t g) { /* in turn; nobody reads its stage any more */
        if (g < groups) {
            if (g % BATCH == 0) {
                uint32_t b = g / BATCH;
                rec = record_of(now, j, s, l, mine_of(b, warp, lane));
                now = next;
                find_block(&now, j, s, l, mine_of(b + 1, warp, lane));
                find_selected(&next, j, r, l, mine_of(b + 2, warp, lane));
            }
            const uint32_t at = raw + (warp * STAGES + g % STAGES) * GROUP * DS_WIN_REC(MMA_DIM) + lane * 16, e = first_of(g);
            const uint8_t *its[GROUP];
#pragma unroll
            for (uint32_t i = 0; i < GROUP; i++)
                its[i] = (const uint8_t *)__shfl_sync(0xffffffffu, (unsigned long long)rec, g % BATCH * GROUP + i) + lane * 16;
#pragma unroll
            for (uint32_t i = 0; i < GROUP; i++) {
                const uint8_t *from = its[i];
                bool window = e + i < l.n_win;
                if (window || lane < DS_MAIN_REC(MMA_DIM) / 16)
                    copy_16(at + i * DS_WIN_REC(MMA_DIM), from, e + i < l.n);
                if (window && lane == 0)
                    copy_16(at + i * DS_WIN_REC(MMA_DIM) + MMA_DIM, from + MMA_DIM, true);
            }
        }
        copies_sent(); /* an empty group too: they are counted */
    };
    find_selected(&now, j, r, l, mine_of(0, warp, lane));
    find_selected(&next, j, r, l, mine_of(1, warp, lane));
    find_block(&now, j, s, l, mine_of(0, warp, lane));
    for (uint32_t g = 0; g < STAGES - 1; g++)
        send(g);
    for (uint32_t g = 0; g < groups; g++) {
        const uint32_t t = g / (EACH / GROUP), buf = t % TILES, turn = t / TILES, q0 = g % (EACH / GROUP) * GROUP, e = first_of(g),
                       at = raw + (warp * STAGES + g % STAGES) * GROUP * DS_WIN_REC(MMA_DIM),
                       row = (to + buf * TILE_BYTES + q0 * 128) ^ q0 % 8 * 16;

        copies_wait<STAGES - 2>();
        __syncwarp();
        send(g + STAGES - 1);
        if (q0 == 0 && turn)
            barrier_wait(empty + buf * 8, (turn - 1) & 1);
        codes c[GROUP];
        if (e >= l.n_win) {
#pragma unroll
            for (uint32_t i = 0; i < GROUP; i++)
                take<false>(&c[i], at + i * DS_WIN_REC(MMA_DIM), lane);
#pragma unroll
            for (uint32_t i = 0; i < GROUP; i++)
                put_entry<false>((row ^ i * 16) + i * 128, c[i]);
        } else if (e + GROUP <= l.n_win) {
#pragma unroll
            for (uint32_t i = 0; i < GROUP; i++)
                take<true>(&c[i], at + i * DS_WIN_REC(MMA_DIM), lane);
#pragma unroll
            for (uint32_t i = 0; i < GROUP; i++)
                put_entry<true>((row ^ i * 16) + i * 128, c[i]);
        } else { /* both kinds */
#pragma unroll 1
            for (uint32_t i = 0; i < GROUP; i++) {
                if (e + i < l.n_win) {
                    take<true>(&c[0], at + i * DS_WIN_REC(MMA_DIM), lane);
                    put_entry<true>((row ^ i * 16) + i * 128, c[0]);
                } else {
                    take<false>(&c[0], at + i * DS_WIN_REC(MMA_DIM), lane);
                    put_entry<false>((row ^ i * 16) + i * 128, c[0]);
                }
            }
        }
        if (q0 == EACH - GROUP) {
            proxy_fence_shared();
            __syncwarp();
            if (lane == 0)
                barrier_arrive(full + buf * 8);
        }
    }
}

/* ---- multiplying ---- */

/* 0 for what is smaller than any normal number. */
static __device__ __forceinline__ float power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Sends S = Q E^T. */
static __device__ __forceinline__ void send_scores(float (&sc)[KEYS / 8][4], uint32_t q, uint32_t tile)
{
    wgmma_begin();
#pragma unroll
    for (int c = 0; c < MMA_DIM / 64; c++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma_shared(sc, rows_128(q + c * CHUNK_BYTES) + k * 2, rows_128(tile + c * CHUNK_BYTES) + k * 2, c + k > 0);
    wgmma_send();
}

static __device__ void multiply(const args &j, uint32_t r, const key_list &l, uint32_t h0, uint32_t q, uint32_t tiles, uint32_t full,
                                uint32_t empty)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, half = (threadIdx.x - LOADERS) / 128,
                   n_tiles = (l.n + KEYS - 1) / KEYS;
    const float scale = j.a.scale * SHRINK * 1.44269504f; /* powers of 2 from here on */
    float acc[MMA_DIM / 16][4], sc[KEYS / 8][4], most[2] = { -CUDART_INF_F, -CUDART_INF_F }, sum[2] = { 0.0f, 0.0f };

#pragma unroll
    for (int n = 0; n < MMA_DIM / 16; n++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            acc[n][k] = 0.0f;
    if (n_tiles) {
        barrier_wait(full, 0);
        send_scores(sc, q, tiles);
        wgmma_wait<0>();
    }
    for (uint32_t t = 0; t < n_tiles; t++) {
        const uint32_t buf = t % TILES, n = l.n - t * KEYS;
        uint32_t hi[KEYS / 16][4], lo[KEYS / 16][4];
        float old[2];

        wgmma_settled(sc);
        wgmma_settled(acc);
#pragma unroll
        for (int h = 0; h < 2; h++) { /* heads lane / 4 and + 8 of the warp's */
            float top = most[h];
#pragma unroll
            for (int c = 0; c < KEYS / 8; c++)
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    float v = sc[c][2 * h + k];
                    if (n < KEYS && c * 8 + lane % 4 * 2 + k >= n)
                        v = -CUDART_INF_F;
                    sc[c][2 * h + k] = v;
                    top = fmaxf(top, v);
                }
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            old[h] = most[h] == top ? 1.0f : power_of_2((most[h] - top) * scale);
            most[h] = top;
            sum[h] *= old[h];
            top *= -scale;
#pragma unroll
            for (int c = 0; c < KEYS / 8; c++) {
                float a = power_of_2(fmaf(sc[c][2 * h], scale, top)), b = power_of_2(fmaf(sc[c][2 * h + 1], scale, top));
                uint32_t p = bf16_pair(a, b);
                hi[c / 2][c % 2 * 2 + h] = p;
                lo[c / 2][c % 2 * 2 + h] = bf16_pair(a - low_of(p), b - high_of(p));
                sum[h] += a + b;
            }
        }
        if (__any_sync(0xffffffffu, old[0] != 1.0f || old[1] != 1.0f))
#pragma unroll
            for (int c = 0; c < MMA_DIM / 16; c++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    acc[c][k] *= old[k / 2];
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            uint64_t e = columns_128(tiles + buf * TILE_BYTES + half * (MMA_DIM / 128) * CHUNK_BYTES + k * 16 * 128, CHUNK_BYTES);
            wgmma_turned(acc, hi[k], e);
            wgmma_turned(acc, lo[k], e);
        }
        wgmma_send();
        if (t + 1 < n_tiles) {
            barrier_wait(full + (t + 1) % TILES * 8, (t + 1) / TILES & 1);
            send_scores(sc, q, tiles + (t + 1) % TILES * TILE_BYTES);
            wgmma_wait<1>();
        } else {
            wgmma_wait<0>();
        }
        if (lane == 0)
            barrier_arrive(empty + buf * 8);
        wgmma_wait<0>();
    }
    wgmma_settled(acc);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t head = h0 + warp * 16 + lane / 4 + h * 8;
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
        bool wanted = head < j.a.heads;
        float by = l.n ? SHRINK / (sum[h] + exp2f((wanted ? j.a.sink[head] : 0.0f) * 1.44269504f - most[h] * scale)) : 0.0f;
        float *o = j.a.o + ((size_t)r * j.a.heads + head) * MMA_DIM + half * (MMA_DIM / 2) + (lane % 4 / 2 + lane % 2 * 2) * 2;
#pragma unroll
        for (int c = 0; c < MMA_DIM / 16; c++) { /* columns i and i + 4; with the neighbour's two that follow each other */
            uint32_t v = bf16_pair(acc[c][2 * h] * by, acc[c][2 * h + 1] * by), w = __shfl_xor_sync(0xffffffffu, v, 1);
            v = __byte_perm(v, w, lane % 2 ? 0x3276 : 0x5410);
            if (wanted)
                *(float2 *)(o + c * 8) = make_float2(low_of(v), high_of(v));
        }
    }
}

static __global__ void __launch_bounds__(THREADS, 1) mma_kernel(const __grid_constant__ args j)
{
    after_others();
    extern __shared__ uint32_t shared[];
    __shared__ __align__(8) uint64_t bars[2 * TILES];
    const uint32_t r = blockIdx.x, s = j.st.seq[r], h0 = blockIdx.y * HEADS;
    const uint32_t q = (shared_at(shared) + 1023) & ~1023u, tiles = q + TILE_BYTES, raw = tiles + TILES * TILE_BYTES,
                   full = shared_at(bars), empty = full + TILES * 8;
    const key_list l = list_of(j.st, j.a, r, s);

    if (threadIdx.x == 0) {
        for (int i = 0; i < TILES; i++) {
            barrier_init(full + i * 8, LOADERS / 32);
            barrier_init(empty + i * 8, READERS / 32);
        }
    }
    barriers_are_ready();
    if (threadIdx.x < LOADERS) {
        give_registers<LOADER_REGS>();
        load(j, r, s, l, tiles, full, empty, raw);
        return;
    }
    take_registers<READER_REGS>();
#pragma unroll 8
    for (uint32_t i = threadIdx.x - LOADERS; i < HEADS * MMA_DIM / 8; i += READERS) {
        uint32_t h = i / (MMA_DIM / 8), c = i % (MMA_DIM / 8);
        float4 lo = make_float4(0.0f, 0.0f, 0.0f, 0.0f), hi = lo;
        if (h0 + h < j.a.heads) {
            const float4 *from = (const float4 *)(j.a.q + ((size_t)r * j.a.heads + h0 + h) * MMA_DIM) + 2 * c;
            lo = from[0];
            hi = from[1];
        }
        put_shared_16(q + c / 8 * CHUNK_BYTES + h * 128 + (c % 8 ^ h % 8) * 16, bf16_pair(lo.x, hi.x), bf16_pair(lo.y, hi.y),
                      bf16_pair(lo.z, hi.z), bf16_pair(lo.w, hi.w));
    }
    proxy_fence_shared();
    group_sync(2, READERS);
    multiply(j, r, l, h0, q, tiles, full, empty);
}

void ds_attention_mma(ds_exec *e, const ds_op_attention *a)
{
    cudaFuncSetAttribute((const void *)mma_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    launch(e, mma_kernel, dim3(a->step->n_rows, blocks_of(a->heads, HEADS)), THREADS, SHARED_BYTES, args{ *a->step, *a });
    launched(e, "attention");
}
