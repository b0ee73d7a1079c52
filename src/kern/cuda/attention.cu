/* Attention over window and selected entries, with sink (spec 3.11). Entries of 512 columns in bf16 mode:
 * attention_mma.cu.
 *
 * A block has a row and HEADS of its heads, a warp each. TILE entries at a time are decoded into shared memory once
 * for all heads; they are keys and values. Softmax with a running maximum over tiles counted from the start of the
 * row's own list, in f32 in both modes. Bound by FMAs and shared memory reads: 2 * dim of each an entry and head. */
#include "attention.cuh"

enum { HEADS = 8, THREADS = HEADS * 32, TILE = 16, CHUNK = 16 };

typedef struct {
    ds_step st;
    ds_op_attention a;
    bool bf16;
} args;

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
    after_others();
    extern __shared__ float tile[]; /* [TILE][dim] */
    uint32_t r = blockIdx.x, s = j.st.seq[r], lane = threadIdx.x % 32, h = blockIdx.y * HEADS + threadIdx.x / 32, dim = j.a.dim;
    bool mine = h < j.a.heads;
    key_list l = list_of(j.st, j.a, r, s);
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

/* Every record begins at a multiple of 16 bytes, as in the released model's blocks and slots. */
static bool copies_by_16(const ds_op_attention *a)
{
    size_t kv = a->sel ? (size_t)a->kv.base | a->kv.block_bytes | a->kv.off | a->kv.rec_bytes : 0;
    return ((kv | (size_t)a->ring.base | a->ring.slot_bytes | a->ring.off | a->ring.rec_bytes | (size_t)a->rec) & 15) == 0;
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
    if (e->bf16 && a->dim == MMA_DIM && copies_by_16(a)) {
        ds_attention_mma(e, a);
        return;
    }
    if (shared > 48 << 10)
        cudaFuncSetAttribute((const void *)f, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    launch(e, f, dim3(a->step->n_rows, blocks_of(a->heads, HEADS)), THREADS, shared, args{ *a->step, *a, e->bf16 });
    launched(e, "attention");
}
