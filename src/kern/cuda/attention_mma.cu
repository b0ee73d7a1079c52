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

enum { HEADS = 64, KEYS = 64, TILES = 2, LISTS = 4, COLUMNS = 16 /* a lane's */ };
enum { LOADERS = 128, READERS = 256, THREADS = LOADERS + READERS };
enum { CHUNK_BYTES = 64 * 128, TILE_BYTES = MMA_DIM / 64 * CHUNK_BYTES, SHARED_BYTES = (1 + TILES) * TILE_BYTES + 1024 };
enum { LOADER_REGS = 40, READER_REGS = 232, FLIGHT = 4 /* entries that a warp reads at once */ };

typedef struct {
    ds_step st;
    ds_op_attention a;
} args;

/* Where entry i of the list stands. */
static __device__ __forceinline__ const uint8_t *record_of(const args &j, uint32_t r, uint32_t s, const key_list &l, uint32_t i)
{
    if (i >= l.n_win)
        return kv_at(j.a.kv, j.st, s, (uint32_t)j.a.sel[(size_t)r * j.a.topk + (i - l.n_win)]);
    int32_t t = l.first + (int32_t)i, pos0 = j.st.pos0[s];
    return t >= pos0 ? j.a.rec + (j.st.row0[s] + (size_t)(t - pos0)) * DS_WIN_REC(MMA_DIM) : ring_at(j.a.ring, j.st.slot[s], t);
}

/* A lane's 16 columns of a record: codes, and the scale's byte. */
typedef struct {
    uint32_t w[4], scale;
} piece_of;

static __device__ __forceinline__ piece_of load_piece(const uint8_t *rec, bool window, uint32_t c)
{
    const uint8_t *p = rec + (window ? c : c / 2);
    piece_of x = { { 0 }, rec[window ? MMA_DIM + c / 32 : MMA_DIM / 2 + c / 16] };
    if (((uintptr_t)rec & 15) == 0 && window) {
        uint4 v = *(const uint4 *)p;
        x.w[0] = v.x, x.w[1] = v.y, x.w[2] = v.z, x.w[3] = v.w;
    } else if (((uintptr_t)rec & 7) == 0 && !window) {
        uint2 v = *(const uint2 *)p;
        x.w[0] = v.x, x.w[1] = v.y;
    } else {
        for (int w = 0; w < (window ? 4 : 2); w++)
            x.w[w] = bytes4(p + 4 * w);
    }
    return x;
}

/* As bf16: exact, a scale has four bits at most and a code two or four. A NaN stands in the scale alone. */
static __device__ __forceinline__ void decode16(uint32_t dst[8], const piece_of &x, bool window)
{
    if (window) {
        uint32_t scale = bf16_bits(e8m0_value(x.scale)) * 0x10001u;
#pragma unroll
        for (int k = 0; k < 8; k++)
            dst[k] = mul2(mul2(small_e4m3(__byte_perm(x.w[k / 2], 0, k % 2 ? 0x3424 : 0x1404)), 0x7b807b80u), scale); /* 2^120 */
    } else {
        uint32_t scale = bf16_bits(e4m3_value(x.scale)) * 0x10001u;
#pragma unroll
        for (int w = 0; w < 2; w++) {
            uint32_t even = x.w[w] & 0x0f0f0f0fu, odd = x.w[w] >> 4 & 0x0f0f0f0fu;
            dst[4 * w] = mul2(mul2(small_e2m1(__byte_perm(even, odd, 0x0400)), 0x7e807e80u), scale); /* 2^126 */
            dst[4 * w + 1] = mul2(mul2(small_e2m1(__byte_perm(even, odd, 0x0501)), 0x7e807e80u), scale);
            dst[4 * w + 2] = mul2(mul2(small_e2m1(__byte_perm(even, odd, 0x0602)), 0x7e807e80u), scale);
            dst[4 * w + 3] = mul2(mul2(small_e2m1(__byte_perm(even, odd, 0x0703)), 0x7e807e80u), scale);
        }
    }
}

/* ---- decoding ---- */

/* Entries of tile t to `list`, and on their way to the L2. Threads below KEYS. */
static __device__ __forceinline__ void find_tile(const uint8_t **list, const args &j, uint32_t r, uint32_t s, const key_list &l, uint32_t t)
{
    uint32_t i = t * KEYS + threadIdx.x;

    if (i >= l.n)
        return;
    const uint8_t *rec = record_of(j, r, s, l, i);
    uint32_t bytes = i < l.n_win ? DS_WIN_REC(MMA_DIM) : DS_MAIN_REC(MMA_DIM);
    list[threadIdx.x] = rec;
    for (uint32_t b = 0; b < bytes; b += 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(rec + b));
}

static __device__ void load(const args &j, uint32_t r, uint32_t s, const key_list &l, uint32_t tiles, uint32_t full, uint32_t empty,
                            const uint8_t *(*list)[KEYS])
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_tiles = (l.n + KEYS - 1) / KEYS, piece = lane % 4 * 2;

    if (threadIdx.x < KEYS)
        for (uint32_t t = 0; t < 2; t++)
            find_tile(list[t], j, r, s, l, t);
    for (uint32_t t = 0; t < n_tiles; t++) {
        const uint32_t buf = t % TILES, turn = t / TILES, n = min((uint32_t)KEYS, l.n - t * KEYS);
        const uint8_t *const *rec = list[t % LISTS];
        group_sync(1, LOADERS);
        if (threadIdx.x < KEYS)
            find_tile(list[(t + 2) % LISTS], j, r, s, l, t + 2);
        for (uint32_t k0 = warp * (KEYS / (LOADERS / 32)), b = 0; b < KEYS / (LOADERS / 32); b += FLIGHT) {
            piece_of x[FLIGHT];
#pragma unroll
            for (int f = 0; f < FLIGHT; f++)
                if (k0 + b + f < n)
                    x[f] = load_piece(rec[k0 + b + f], t * KEYS + k0 + b + f < l.n_win, lane * COLUMNS);
            if (b == 0 && turn)
                barrier_wait(empty + buf * 8, (turn - 1) & 1);
#pragma unroll
            for (int f = 0; f < FLIGHT; f++) {
                uint32_t k = k0 + b + f, v[8] = { 0 };
                uint32_t row = tiles + buf * TILE_BYTES + lane / 4 * CHUNK_BYTES + k * 128;
                if (k < n)
                    decode16(v, x[f], t * KEYS + k < l.n_win);
                put_shared_16(row + (piece ^ k % 8) * 16, v[0], v[1], v[2], v[3]);
                put_shared_16(row + ((piece + 1) ^ k % 8) * 16, v[4], v[5], v[6], v[7]);
            }
        }
        proxy_fence();
        __syncwarp();
        if (lane == 0)
            barrier_arrive(full + buf * 8);
    }
}

/* ---- multiplying ---- */

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
    const float scale = j.a.scale * 1.44269504f; /* powers of 2 from here on */
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
                    float v = sc[c][2 * h + k] * scale;
                    if (n < KEYS && c * 8 + lane % 4 * 2 + k >= n)
                        v = -CUDART_INF_F;
                    sc[c][2 * h + k] = v;
                    top = fmaxf(top, v);
                }
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            old[h] = most[h] == top ? 1.0f : exp2f(most[h] - top);
            most[h] = top;
            sum[h] *= old[h];
#pragma unroll
            for (int c = 0; c < KEYS / 8; c++) {
                float a = exp2f(sc[c][2 * h] - top), b = exp2f(sc[c][2 * h + 1] - top);
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
        } else
            wgmma_wait<0>();
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
        if (head >= j.a.heads)
            continue;
        float by = l.n ? 1.0f / (sum[h] + exp2f(j.a.sink[head] * 1.44269504f - most[h])) : 0.0f;
        float *o = j.a.o + ((size_t)r * j.a.heads + head) * MMA_DIM + half * (MMA_DIM / 2) + lane % 4 * 2;
#pragma unroll
        for (int c = 0; c < MMA_DIM / 16; c++) {
            uint32_t v = bf16_pair(acc[c][2 * h] * by, acc[c][2 * h + 1] * by);
            *(float2 *)(o + c * 8) = make_float2(low_of(v), high_of(v));
        }
    }
}

static __global__ void __launch_bounds__(THREADS, 1) mma_kernel(const __grid_constant__ args j)
{
    extern __shared__ uint32_t shared[];
    __shared__ __align__(8) uint64_t bars[2 * TILES];
    __shared__ const uint8_t *list[LISTS][KEYS];
    const uint32_t r = blockIdx.x, s = j.st.seq[r], h0 = blockIdx.y * HEADS;
    const uint32_t q = (shared_at(shared) + 1023) & ~1023u, tiles = q + TILE_BYTES, full = shared_at(bars), empty = full + TILES * 8;
    const key_list l = list_of(j.st, j.a, r, s);

    if (threadIdx.x == 0)
        for (int i = 0; i < TILES; i++) {
            barrier_init(full + i * 8, LOADERS / 32);
            barrier_init(empty + i * 8, READERS / 32);
        }
    barriers_are_ready();
    if (threadIdx.x < LOADERS) {
        give_registers<LOADER_REGS>();
        load(j, r, s, l, tiles, full, empty, list);
        return;
    }
    take_registers<READER_REGS>();
#pragma unroll 4
    for (uint32_t i = threadIdx.x - LOADERS; i < HEADS * MMA_DIM / 8; i += READERS) {
        uint32_t h = i / (MMA_DIM / 8), c = i % (MMA_DIM / 8);
        float4 lo = make_float4(0.0f, 0.0f, 0.0f, 0.0f), hi = lo;
        if (h0 + h < j.a.heads) {
            const float4 *from = (const float4 *)(j.a.q + ((size_t)r * j.a.heads + h0 + h) * MMA_DIM) + 2 * c;
            lo = from[0];
            hi = from[1];
        }
        put_shared_16(q + c / 8 * CHUNK_BYTES + h * 128 + (c % 8 ^ h % 8) * 16, bf16_pair(lo.x, lo.y), bf16_pair(lo.z, lo.w),
                      bf16_pair(hi.x, hi.y), bf16_pair(hi.z, hi.w));
    }
    proxy_fence();
    group_sync(2, READERS);
    multiply(j, r, l, h0, q, tiles, full, empty);
}

void ds_attention_mma(ds_exec *e, const ds_op_attention *a)
{
    cudaFuncSetAttribute((const void *)mma_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    mma_kernel<<<dim3(a->step->n_rows, blocks_of(a->heads, HEADS)), THREADS, SHARED_BYTES, stream_of(e)>>>({ *a->step, *a });
    launched(e, "attention");
}
