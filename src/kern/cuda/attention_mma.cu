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

enum { HEADS = 64, KEYS = 64, TILES = 2, COLUMNS = 16 /* a lane's */, LIST = 2048 };
enum { LOADERS = 128, READERS = 256, THREADS = LOADERS + READERS };
enum { CHUNK_BYTES = 64 * 128, TILE_BYTES = MMA_DIM / 64 * CHUNK_BYTES, SHARED_BYTES = (1 + TILES) * TILE_BYTES + 1024 };
enum { LOADER_REGS = 56, READER_REGS = 224, FLIGHT = 4 /* entries that a warp reads at once */ };

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

/* ---- decoding ---- */

/* A lane's 16 columns of a record: codes, and the scale's byte. */
typedef struct {
    uint32_t w[4], scale;
} piece_of;

static __device__ __forceinline__ void load_piece(piece_of *x, const uint8_t *rec, bool window, uint32_t lane)
{
    if (window) {
        const uint8_t *p = rec + lane * COLUMNS;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (((uintptr_t)rec & 15) == 0)
            v = *(const uint4 *)p;
        else
            v = make_uint4(bytes4(p), bytes4(p + 4), bytes4(p + 8), bytes4(p + 12));
        x->w[0] = v.x, x->w[1] = v.y, x->w[2] = v.z, x->w[3] = v.w;
        x->scale = rec[MMA_DIM + lane / 2];
    } else {
        const uint8_t *p = rec + lane * (COLUMNS / 2);
        uint2 v = make_uint2(0, 0);
        if (((uintptr_t)rec & 7) == 0)
            v = *(const uint2 *)p;
        else
            v = make_uint2(bytes4(p), bytes4(p + 4));
        x->w[0] = v.x, x->w[1] = v.y;
        x->scale = rec[MMA_DIM / 2 + lane];
    }
}

/* Entries stand in shared memory as bf16 that are too small by SHRINK, exactly: a scale has four bits at most and a
 * code two or four. So a code of a selected entry, which lands in the exponent's low bits and is too small by 2^126,
 * takes one multiplication. A NaN stands in the scale alone. */
#define SHRINK 0x1p8f

static __device__ __forceinline__ void decode_window(uint32_t dst[8], const piece_of &x)
{
    uint32_t scale = bf16_bits(e8m0_value(x.scale)) * 0x10001u;
#pragma unroll
    for (int k = 0; k < 8; k++)
        dst[k] = mul2(mul2(small_e4m3(__byte_perm(x.w[k / 2], 0, k % 2 ? 0x3424 : 0x1404)), 0x77807780u), scale); /* 2^112 */
}

static __device__ __forceinline__ void decode_selected(uint32_t dst[8], const piece_of &x)
{
    /* 2^118 times the scale, which as bf16 with its bits moved is too small by 2^120 */
    uint32_t scale = ((x.scale & 0x7fu) << 4 | (x.scale & 0x80u) << 8) * 0x10001u;
    scale = mul2(mul2(scale, 0x7b807b80u), 0x7a807a80u);
    scale = (x.scale & 0x7fu) == 0x7fu ? 0x7fc07fc0u : scale;
#pragma unroll
    for (int w = 0; w < 2; w++)
#pragma unroll
        for (int b = 0; b < 4; b++) {
            uint32_t two = x.w[w] >> 8 * b & 0xffu; /* the first code to the low half, the second to the high half */
            dst[4 * w + b] = mul2((two * 0x1001000u & 0x80008000u) | (two * 0x40040u & 0x01c001c0u), scale);
        }
}

/* Where entries [e0, e0 + LIST) are, and them on their way to the L2. */
static __device__ void find(const uint8_t **list, const args &j, uint32_t r, uint32_t s, const key_list &l, uint32_t e0)
{
    group_sync(1, LOADERS); /* the list is in use until here */
#pragma unroll 4
    for (uint32_t i = e0 + threadIdx.x; i < min(l.n, e0 + LIST); i += LOADERS) {
        const uint8_t *rec = record_of(j, r, s, l, i);
        uint32_t bytes = i < l.n_win ? DS_WIN_REC(MMA_DIM) : DS_MAIN_REC(MMA_DIM);
        list[i - e0] = rec;
        for (uint32_t b = 0; b < bytes; b += 128)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(rec + b));
    }
    group_sync(1, LOADERS);
}

/* A warp has 16 entries of each tile, FLIGHT of them on their way to its registers. */
static __device__ void load(const args &j, uint32_t r, uint32_t s, const key_list &l, uint32_t tiles, uint32_t full, uint32_t empty,
                            const uint8_t **list)
{
    enum { EACH = KEYS / (LOADERS / 32) };
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t row0 = tiles + lane / 4 * CHUNK_BYTES + warp * EACH * 128, first = lane % 4 * 2, swap = lane / 4 % 2;

    for (uint32_t e0 = 0; e0 < l.n; e0 += LIST) {
        uint32_t n = min(l.n - e0, (uint32_t)LIST), mine = (n + KEYS - 1) / KEYS * EACH;
        piece_of x[FLIGHT];

        find(list, j, r, s, l, e0);
        auto take = [&](piece_of *x, uint32_t q) {
            uint32_t e = q / EACH * KEYS + warp * EACH + q % EACH;
            if (e < n)
                load_piece(x, list[e], e0 + e < l.n_win, lane);
        };
#pragma unroll
        for (int f = 0; f < FLIGHT; f++)
            take(&x[f], f);
        for (uint32_t q0 = 0; q0 < mine; q0 += FLIGHT) {
            const uint32_t t = e0 / KEYS + q0 / EACH, buf = t % TILES, turn = t / TILES;
            if (q0 % EACH == 0 && turn)
                barrier_wait(empty + buf * 8, (turn - 1) & 1);
#pragma unroll
            for (int f = 0; f < FLIGHT; f++) {
                uint32_t q = q0 + f, e = q / EACH * KEYS + warp * EACH + q % EACH, v[8];
                uint32_t row = row0 + buf * TILE_BYTES + q % EACH * 128, at = row + (first ^ q % 8) * 16,
                         then = row + ((first + 1) ^ q % 8) * 16;
#pragma unroll
                for (int k = 0; k < 8; k++)
                    v[k] = 0;
                if (e < n) {
                    if (e0 + e < l.n_win)
                        decode_window(v, x[f]);
                    else
                        decode_selected(v, x[f]);
                }
                take(&x[f], q + FLIGHT);
                put_shared_16(swap ? then : at, swap ? v[4] : v[0], swap ? v[5] : v[1], swap ? v[6] : v[2], swap ? v[7] : v[3]);
                put_shared_16(swap ? at : then, swap ? v[0] : v[4], swap ? v[1] : v[5], swap ? v[2] : v[6], swap ? v[3] : v[7]);
            }
            if (q0 % EACH == EACH - FLIGHT) {
                proxy_fence();
                __syncwarp();
                if (lane == 0)
                    barrier_arrive(full + buf * 8);
            }
        }
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
        float by = l.n ? SHRINK / (sum[h] + exp2f(j.a.sink[head] * 1.44269504f - most[h])) : 0.0f;
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
    __shared__ const uint8_t *list[LIST];
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
