/* Attention over window and selected entries, with sink (spec 3.11).
 *
 * A block has a row and HEADS of its heads, a warp each. TILE entries at a time are decoded into shared memory once
 * for all heads; they are keys and values. Softmax with a running maximum over tiles counted from the start of the
 * row's own list, in f32 in both modes. Bound by FMAs and shared memory reads: 2 * dim of each an entry and head. */
#include "common.cuh"

enum { HEADS = 8, THREADS = HEADS * 32, TILE = 16, CHUNK = 16 };

typedef struct {
    ds_step st;
    ds_op_attention a;
    bool bf16;
} args;

/* What a row sees: positions first .. first + n_win - 1, then n - n_win selected entries. */
typedef struct {
    int32_t first;
    uint32_t n_win, n;
} key_list;

static __device__ key_list list_of(const args &j, uint32_t r, uint32_t s)
{
    int32_t p = j.st.pos[r], pos0 = j.st.pos0[s], window = (int32_t)j.a.window;
    int32_t first = j.a.bidir ? pos0 - window : p - window + 1, last = j.a.bidir ? pos0 + (int32_t)j.st.count[s] - 1 : p;
    key_list l;

    l.first = max(0, max(first, j.st.win_lo[s]));
    l.n_win = last >= l.first ? (uint32_t)(last - l.first + 1) : 0;
    l.n = l.n_win + (j.a.sel ? j.a.n_sel[r] : 0);
    return l;
}

/* Columns [c, c + CHUNK) of entry i of the list. */
static __device__ void decode(float *dst, const args &j, uint32_t r, uint32_t s, const key_list &l, uint32_t i, uint32_t c)
{
    uint32_t dim = j.a.dim;

    if (i < l.n_win) {
        int32_t t = l.first + (int32_t)i, pos0 = j.st.pos0[s];
        const uint8_t *rec =
            t >= pos0 ? j.a.rec + (j.st.row0[s] + (size_t)(t - pos0)) * DS_WIN_REC(dim) : ring_at(j.a.ring, j.st.slot[s], t);
        float scale = e8m0_value(rec[dim + c / 32]);
        for (int k = 0; k < CHUNK; k++)
            dst[k] = e4m3_value(rec[c + k]) * scale;
    } else {
        const uint8_t *rec = kv_at(j.a.kv, j.st, s, (uint32_t)j.a.sel[(size_t)r * j.a.topk + (i - l.n_win)]);
        float scale = e4m3_value(rec[dim / 2 + c / 16]);
        for (int k = 0; k < CHUNK; k++)
            dst[k] = e2m1_value(fp4_code(rec, c + k)) * scale;
    }
}

/* NJ: columns a lane, dim / 32 at least. */
template <int NJ> static __global__ void __launch_bounds__(THREADS) attention_kernel(const __grid_constant__ args j)
{
    extern __shared__ float tile[]; /* [TILE][dim] */
    uint32_t r = blockIdx.x, s = j.st.seq[r], lane = threadIdx.x % 32, h = blockIdx.y * HEADS + threadIdx.x / 32, dim = j.a.dim;
    bool mine = h < j.a.heads;
    key_list l = list_of(j, r, s);
    float q[NJ], acc[NJ], max = -CUDART_INF_F, sum = 0.0f;
    size_t at = ((size_t)r * j.a.heads + h) * dim;

#pragma unroll
    for (int k = 0; k < NJ; k++) {
        q[k] = mine && k * 32 + lane < dim ? j.a.q[at + k * 32 + lane] : 0.0f;
        acc[k] = 0.0f;
    }
    for (uint32_t t0 = 0; t0 < l.n; t0 += TILE) {
        uint32_t n = min((uint32_t)TILE, l.n - t0);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < n * (dim / CHUNK); i += THREADS) {
            uint32_t entry = i / (dim / CHUNK), c = i % (dim / CHUNK) * CHUNK;
            decode(tile + entry * dim + c, j, r, s, l, t0 + entry, c);
        }
        __syncthreads();
        if (!mine)
            continue;
        float mine_s = -CUDART_INF_F;
#pragma unroll 4
        for (uint32_t i = 0; i < n; i++) {
            float v = 0.0f;
#pragma unroll
            for (int k = 0; k < NJ; k++)
                if (k * 32 + lane < dim)
                    v += q[k] * tile[i * dim + k * 32 + lane];
            v = warp_sum(v) * j.a.scale;
            mine_s = lane == i ? v : mine_s;
        }
        float most = lane < n ? mine_s : -CUDART_INF_F;
        for (int o = 16; o; o >>= 1)
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, o));
        most = fmaxf(most, max);
        float old = max == most ? 1.0f : expf(max - most), p = lane < n ? expf(mine_s - most) : 0.0f;
        max = most;
        sum = sum * old + warp_sum(p);
#pragma unroll
        for (int k = 0; k < NJ; k++)
            acc[k] *= old;
        for (uint32_t i = 0; i < n; i++) {
            float w = __shfl_sync(0xffffffffu, p, i);
#pragma unroll
            for (int k = 0; k < NJ; k++)
                if (k * 32 + lane < dim)
                    acc[k] += w * tile[i * dim + k * 32 + lane];
        }
    }
    if (!mine)
        return;
    if (l.n)
        sum += expf(j.a.sink[h] - max);
#pragma unroll
    for (int k = 0; k < NJ; k++)
        if (k * 32 + lane < dim)
            j.a.o[at + k * 32 + lane] = l.n ? rounded(j.bf16, acc[k] / sum) : 0.0f;
}

/* ---- bf16 mode, columns of 512: tensor cores ----
 *
 * A block has a row and 64 of its heads, 8 warps. KEYS entries at a time are decoded to bf16 in shared memory,
 * exactly (at most 6 bits), for both products. S = Q E^T: a warp has 16 heads and half of the entries. Softmax with
 * a running maximum, four threads a head. O = P E: a warp has the same 16 heads and half of the columns, in
 * registers; P is a sum of two bf16 values, so that 16 bits of it count. Shared memory (1 block an SM): queries 65
 * KB, entries 65 KB, scores 17 KB, P 18 KB. Bound by mma.sync: 3 times 2 * dim multiplications an entry and head. */

enum { MMA_DIM = 512, MMA_HEADS = 64, KEYS = 64, MMA_THREADS = 256, ROW = MMA_DIM + 8, PROW = KEYS + 8, SROW = KEYS + 4, FLIGHT = 4 };

typedef struct {
    uint16_t q[MMA_HEADS][ROW], e[KEYS][ROW], p[2][MMA_HEADS][PROW]; /* rows are padded by 16 bytes: no bank conflicts */
    float s[MMA_HEADS][SROW], old[MMA_HEADS], sum[MMA_HEADS];
    const uint8_t *rec[KEYS];
} mma_shared;

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void load4(uint32_t r[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p))
                 : "memory");
}

static __device__ __forceinline__ void load4_turned(uint32_t r[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p))
                 : "memory");
}

static __device__ __forceinline__ void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

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
} piece;

static __device__ __forceinline__ piece load_piece(const uint8_t *rec, bool window, uint32_t c)
{
    const uint8_t *p = rec + (window ? c : c / 2);
    piece x = { { 0 }, rec[window ? MMA_DIM + c / 32 : MMA_DIM / 2 + c / 16] };
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
static __device__ __forceinline__ void decode16(uint32_t dst[8], const piece &x, bool window)
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

static __global__ void __launch_bounds__(MMA_THREADS, 1) mma_kernel(const __grid_constant__ args j)
{
    extern __shared__ __align__(16) unsigned char raw[];
    mma_shared &m = *(mma_shared *)raw;
    uint32_t r = blockIdx.x, s = j.st.seq[r], h0 = blockIdx.y * MMA_HEADS, heads = min((uint32_t)MMA_HEADS, j.a.heads - h0);
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, mt = warp % 4 * 16, half = warp / 4, g = lane / 4, c2 = lane % 4 * 2;
    uint32_t head = threadIdx.x / 4, part = threadIdx.x % 4; /* of the softmax */
    key_list l = list_of(j, r, s);
    const float *q = j.a.q + ((size_t)r * j.a.heads + h0) * MMA_DIM;
    float acc[MMA_DIM / 16][4], max = -CUDART_INF_F, sum = 0.0f;

    for (uint32_t i = threadIdx.x; i < MMA_HEADS * MMA_DIM; i += MMA_THREADS)
        m.q[i / MMA_DIM][i % MMA_DIM] = i / MMA_DIM < heads ? (uint16_t)bf16_bits(q[i]) : 0;
#pragma unroll
    for (int n = 0; n < MMA_DIM / 16; n++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            acc[n][k] = 0.0f;
    for (uint32_t t0 = 0; t0 < l.n; t0 += KEYS) {
        uint32_t n = min((uint32_t)KEYS, l.n - t0);
        if (threadIdx.x < n)
            m.rec[threadIdx.x] = record_of(j, r, s, l, t0 + threadIdx.x);
        __syncthreads();
        /* A warp has a whole entry at a time, 16 columns a lane; FLIGHT entries are read before one is decoded. */
        for (uint32_t i0 = warp; i0 < KEYS; i0 += FLIGHT * MMA_THREADS / 32) {
            piece x[FLIGHT];
#pragma unroll
            for (int f = 0; f < FLIGHT; f++) {
                uint32_t i = i0 + f * (MMA_THREADS / 32);
                if (i < n)
                    x[f] = load_piece(m.rec[i], t0 + i < l.n_win, lane * CHUNK);
            }
#pragma unroll
            for (int f = 0; f < FLIGHT; f++) {
                uint32_t i = i0 + f * (MMA_THREADS / 32), v[8] = { 0 };
                if (i < n)
                    decode16(v, x[f], t0 + i < l.n_win);
                ((uint4 *)&m.e[i][lane * CHUNK])[0] = make_uint4(v[0], v[1], v[2], v[3]);
                ((uint4 *)&m.e[i][lane * CHUNK])[1] = make_uint4(v[4], v[5], v[6], v[7]);
            }
        }
        __syncthreads();
        float sc[4][4] = { 0 };
#pragma unroll 4
        for (uint32_t k = 0; k < MMA_DIM; k += 16) {
            uint32_t a[4], b[2][4];
            load4(a, &m.q[mt + lane % 16][k + lane / 16 * 8]);
#pragma unroll
            for (int x = 0; x < 2; x++) {
                load4(b[x], &m.e[half * 32 + x * 16 + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]);
                mma(sc[2 * x], a, b[x][0], b[x][1]);
                mma(sc[2 * x + 1], a, b[x][2], b[x][3]);
            }
        }
#pragma unroll
        for (int x = 0; x < 4; x++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                m.s[mt + g + k / 2 * 8][half * 32 + x * 8 + c2 + k % 2] = sc[x][k] * j.a.scale;
        __syncthreads();
        float most = max, old, mine = 0.0f;
        for (uint32_t i = part; i < n; i += 4)
            most = fmaxf(most, m.s[head][i]);
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        old = max == most ? 1.0f : expf(max - most);
        max = most;
        for (uint32_t i = part; i < KEYS; i += 4) {
            float p = i < n ? expf(m.s[head][i] - max) : 0.0f;
            uint32_t hi = bf16_bits(p);
            m.p[0][head][i] = (uint16_t)hi;
            m.p[1][head][i] = (uint16_t)bf16_bits(p - bf16_value(hi));
            mine += p;
        }
        mine += __shfl_xor_sync(0xffffffffu, mine, 1);
        mine += __shfl_xor_sync(0xffffffffu, mine, 2);
        sum = sum * old + mine;
        if (part == 0)
            m.old[head] = old;
        __syncthreads();
        float up = m.old[mt + g], down = m.old[mt + g + 8];
#pragma unroll
        for (int x = 0; x < MMA_DIM / 16; x++) {
            acc[x][0] *= up;
            acc[x][1] *= up;
            acc[x][2] *= down;
            acc[x][3] *= down;
        }
#pragma unroll
        for (uint32_t k = 0; k < KEYS; k += 16) {
            uint32_t hi[4], lo[4];
            load4(hi, &m.p[0][mt + lane % 16][k + lane / 16 * 8]);
            load4(lo, &m.p[1][mt + lane % 16][k + lane / 16 * 8]);
#pragma unroll
            for (int x = 0; x < MMA_DIM / 32; x++) {
                uint32_t b[4];
                load4_turned(b, &m.e[k + lane % 16][half * 256 + x * 16 + lane / 16 * 8]);
                mma(acc[2 * x], hi, b[0], b[1]);
                mma(acc[2 * x + 1], hi, b[2], b[3]);
                mma(acc[2 * x], lo, b[0], b[1]);
                mma(acc[2 * x + 1], lo, b[2], b[3]);
            }
        }
    }
    if (part == 0)
        m.sum[head] = head < heads && l.n ? sum + expf(j.a.sink[h0 + head] - max) : 1.0f;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t h = mt + g + k * 8;
        float *o = j.a.o + ((size_t)r * j.a.heads + h0 + h) * MMA_DIM + half * 256 + c2, by = m.sum[h];
        if (h < heads)
#pragma unroll
            for (int x = 0; x < MMA_DIM / 16; x++) {
                o[x * 8] = rounded(true, acc[x][2 * k] / by);
                o[x * 8 + 1] = rounded(true, acc[x][2 * k + 1] / by);
            }
    }
}

void ds_attention_cuda(ds_exec *e, const ds_op_attention *a)
{
    typedef void fn(args);
    uint32_t nj = (a->dim + 31) / 32;
    fn *f = nj <= 1    ? attention_kernel<1>
            : nj <= 2  ? attention_kernel<2>
            : nj <= 4  ? attention_kernel<4>
            : nj <= 8  ? attention_kernel<8>
            : nj <= 16 ? attention_kernel<16>
                       : attention_kernel<32>;
    size_t shared = (size_t)TILE * a->dim * sizeof(float);

    if (!a->step->n_rows)
        return;
    if (e->bf16 && a->dim == MMA_DIM) {
        cudaFuncSetAttribute((const void *)mma_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(mma_shared));
        mma_kernel<<<dim3(a->step->n_rows, blocks_of(a->heads, MMA_HEADS)), MMA_THREADS, sizeof(mma_shared), stream_of(e)>>>(
            { *a->step, *a, e->bf16 });
        launched(e, "attention");
        return;
    }
    if (shared > 48 << 10)
        cudaFuncSetAttribute((const void *)f, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    f<<<dim3(a->step->n_rows, blocks_of(a->heads, HEADS)), THREADS, shared, stream_of(e)>>>({ *a->step, *a, e->bf16 });
    launched(e, "attention");
}
