/* Index scores and selection (spec 3.10).
 *
 * Scores: a thread a key, whose codes it holds as signed bytes (twice the value), and all heads' queries in shared
 * memory; a group's products are exact integers (dp4a). Groups, then heads, in order. Bound by integer products: 8
 * dp4a a head and group. Selection: a block a row; the threshold is found in four passes over eight bits each, then
 * what is above it and the lowest of what equals it is written in increasing order. Bound by reading the scores five
 * times from the L2. Scratch: scores of as many rows as fit, at least one. */
#include "common.cuh"

enum { SCORE_THREADS = 128, SELECT_THREADS = 1024, MAX_GROUPS = 16, ROOM = 8192 };

typedef struct {
    ds_step st;
    ds_op_index_topk a;
    float *score;    /* [rows of this launch][max] */
    uint32_t *block; /* [rows of this launch][max_blocks]: keys of the blocks' best scores */
    uint32_t r0, max, max_blocks;
} args;

/* Four codes from the low half of w: twice their values as signed bytes. */
static __device__ __forceinline__ uint32_t four(uint32_t w)
{
    uint32_t at = w & 0x7777u, minus = __byte_perm(0x0000ff00u, 0, w >> 3 & 0x1111u);
    return (__byte_perm(0x03020100u, 0x0c080604u, at) & ~minus) | (__byte_perm(0xfdfeff00u, 0xf4f8fafcu, at) & minus);
}

/* Larger score, larger key; 0 is left for what can't be chosen. -0 is +0, NaN has been made -inf. */
static __device__ __forceinline__ uint32_t key_of(float score)
{
    uint32_t u = bits_of(score + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static __device__ __forceinline__ bool within_pool(const ds_op_index_topk &a)
{
    return a.pool_in && !a.pool_out;
}

template <int NG> static __global__ void __launch_bounds__(SCORE_THREADS) score_kernel(const __grid_constant__ args j)
{
    extern __shared__ uint32_t shared[];
    const ds_op_index_topk &a = j.a;
    uint32_t r = j.r0 + blockIdx.y, s = j.st.seq[r], V = kv_visible(a.keys, j.st.pos[r]), words = a.heads * NG * 8;
    uint32_t n = within_pool(a) ? a.n_pool_in[r] * a.pool_block : V, c = blockIdx.x * SCORE_THREADS + threadIdx.x;
    uint32_t *q = shared;                                          /* [heads][NG][8] */
    float *qs = (float *)(shared + words), *g = qs + a.heads * NG; /* [heads][NG], [heads] */
    const uint32_t groups = a.dim / 32, rec_bytes = a.dim / 2 + groups;

    if (blockIdx.x * SCORE_THREADS >= n)
        return;
    const uint8_t *rec = a.q + (size_t)r * a.heads * rec_bytes;
    for (uint32_t i = threadIdx.x; i < words; i += SCORE_THREADS) {
        uint32_t h = i / (NG * 8), w = i % (NG * 8);
        const uint8_t *p = rec + h * rec_bytes + w * 2;
        q[i] = w / 8 < groups ? four(p[0] | (uint32_t)p[1] << 8) : 0;
    }
    for (uint32_t i = threadIdx.x; i < a.heads * NG; i += SCORE_THREADS)
        qs[i] = i % NG < groups ? e8m0_value(rec[i / NG * rec_bytes + a.dim / 2 + i % NG]) : 0.0f;
    for (uint32_t i = threadIdx.x; i < a.heads; i += SCORE_THREADS)
        g[i] = a.g[(size_t)r * a.heads + i] * a.g_scale;
    __syncthreads();
    if (c >= n)
        return;
    uint32_t entry =
        within_pool(a) ? (uint32_t)a.pool_in[(size_t)r * a.pool_blocks + c / a.pool_block] * a.pool_block + c % a.pool_block : c;
    if (entry >= V)
        return;
    const uint8_t *k = kv_at(a.keys, j.st, s, entry);
    uint32_t key[NG][8];
    float ks[NG], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < NG; i++) {
#pragma unroll
        for (int w = 0; w < 4; w++) {
            uint32_t v = i < (int)groups ? bytes4(k + i * 16 + w * 4) : 0;
            key[i][2 * w] = four(v);
            key[i][2 * w + 1] = four(v >> 16);
        }
        ks[i] = i < (int)groups ? e8m0_value(k[a.dim / 2 + i]) * 0.25f : 0.0f;
    }
    for (uint32_t h = 0; h < a.heads; h++) {
        float dot = 0.0f;
#pragma unroll
        for (int i = 0; i < NG; i++) {
            const uint4 *p = (const uint4 *)(q + (h * NG + i) * 8);
            uint4 lo = p[0], hi = p[1];
            int d = __dp4a((int)lo.x, (int)key[i][0], 0);
            d = __dp4a((int)lo.y, (int)key[i][1], d);
            d = __dp4a((int)lo.z, (int)key[i][2], d);
            d = __dp4a((int)lo.w, (int)key[i][3], d);
            d = __dp4a((int)hi.x, (int)key[i][4], d);
            d = __dp4a((int)hi.y, (int)key[i][5], d);
            d = __dp4a((int)hi.z, (int)key[i][6], d);
            d = __dp4a((int)hi.w, (int)key[i][7], d);
            dot += (float)d * (qs[h * NG + i] * ks[i]);
        }
        if (dot > 0.0f || dot != dot)
            sum += g[h] * dot;
    }
    j.score[(size_t)blockIdx.y * j.max + c] = sum != sum ? -CUDART_INF_F : sum;
}

/* ---- choosing ---- */

typedef struct {
    uint32_t hist[256], warp[SELECT_THREADS / 32], threshold, above, total;
} chooser;

/* The k largest of key(0..n), keys of 0 excluded, ties to the lower index: at(i) of each to out[], increasing. */
template <typename K, typename A>
static __device__ void choose(chooser *s, uint32_t n, uint32_t k, K key, A at, int32_t *out, uint32_t *n_out)
{
    uint32_t prefix = 0, above = 0, total = 0;

    for (int shift = 24; shift >= 0; shift -= 8) {
        for (uint32_t i = threadIdx.x; i < 256; i += SELECT_THREADS)
            s->hist[i] = 0;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < n; i += SELECT_THREADS) {
            uint32_t v = key(i);
            if (v && (shift == 24 || v >> (shift + 8) == prefix))
                atomicAdd(&s->hist[v >> shift & 255], 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t b = 255, seen = 0, all = 0;
            if (shift == 24) {
                for (int i = 0; i < 256; i++)
                    all += s->hist[i];
                s->total = all;
            }
            while (b > 0 && above + seen + s->hist[b] < k)
                seen += s->hist[b--];
            s->threshold = prefix << 8 | b;
            s->above = above + seen;
        }
        __syncthreads();
        prefix = s->threshold;
        above = s->above;
        total = s->total;
        __syncthreads();
    }
    if (total <= k) { /* all of them */
        prefix = 0;
        above = total;
    }
    uint32_t equal = k > above ? k - above : 0, put = 0, seen = 0, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (uint32_t i0 = 0; i0 < n; i0 += SELECT_THREADS) {
        uint32_t i = i0 + threadIdx.x, v = i < n ? key(i) : 0;
        uint32_t more = __ballot_sync(0xffffffffu, v && v > prefix), same = __ballot_sync(0xffffffffu, v && v == prefix);
        if (lane == 0)
            s->warp[warp] = (uint32_t)__popc(more) << 16 | (uint32_t)__popc(same);
        __syncthreads();
        uint32_t before = 0, all = 0;
        for (uint32_t w = 0; w < SELECT_THREADS / 32; w++) {
            before += w < warp ? s->warp[w] : 0;
            all += s->warp[w];
        }
        uint32_t m = put + (before >> 16) + (uint32_t)__popc(more & ((1u << lane) - 1));
        uint32_t e = seen + (before & 0xffff) + (uint32_t)__popc(same & ((1u << lane) - 1));
        if (v && (v > prefix || (v == prefix && e < equal)))
            out[m + min(e, equal)] = at(i);
        put += all >> 16;
        seen += all & 0xffff;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        *n_out = put + min(seen, equal);
    __syncthreads();
}

static __global__ void __launch_bounds__(SELECT_THREADS) select_kernel(const __grid_constant__ args j)
{
    __shared__ chooser s;
    const ds_op_index_topk &a = j.a;
    uint32_t r = j.r0 + blockIdx.x, V = kv_visible(a.keys, j.st.pos[r]);
    const float *score = j.score + (size_t)blockIdx.x * j.max;
    uint32_t *block = j.block + (size_t)blockIdx.x * j.max_blocks;
    const int32_t *pool = a.pool_in ? a.pool_in + (size_t)r * a.pool_blocks : NULL;
    bool packed = within_pool(a);

    auto entry = [&](uint32_t i) {
        return pool ? (int32_t)((uint32_t)pool[i / a.pool_block] * a.pool_block + i % a.pool_block) : (int32_t)i;
    };
    auto key = [&](uint32_t i) {
        uint32_t at = (uint32_t)entry(i);
        return at < V ? key_of(score[packed ? i : at]) : 0u;
    };
    choose(&s, pool ? a.n_pool_in[r] * a.pool_block : V, a.topk, key, entry, a.sel + (size_t)r * a.topk, a.n_sel + r);
    if (!a.pool_out)
        return;
    uint32_t n = (V + a.pool_block - 1) / a.pool_block;
    for (uint32_t b = threadIdx.x; b < n; b += SELECT_THREADS) {
        uint32_t best = 0;
        for (uint32_t i = b * a.pool_block; i < V && i < (b + 1) * a.pool_block; i++)
            best = max(best, key_of(score[i]));
        block[b] = b == n - 1 ? key_of(CUDART_INF_F) : (best == key_of(-CUDART_INF_F) ? 0 : best); /* a block of -inf can't be chosen */
    }
    __syncthreads();
    choose(
        &s, n, a.pool_blocks, [&](uint32_t b) { return block[b]; }, [](uint32_t b) { return (int32_t)b; },
        a.pool_out + (size_t)r * a.pool_blocks, a.n_pool_out + r);
}

static size_t row_bytes(size_t max, size_t max_blocks)
{
    return (max + max_blocks) * sizeof(float);
}

void ds_index_topk_cuda(ds_exec *e, const ds_op_index_topk *a)
{
    typedef void score_fn(args);
    size_t mark = ds_arena_mark(e->scratch), room = e->scratch->cap - mark - 128;
    uint32_t groups = a->dim / 32, rows = a->step->n_rows;
    args j = { *a->step, *a, NULL, NULL, 0, (uint32_t)(a->step->blocks_ld * a->keys.per_block), 0 };
    score_fn *score = groups <= 1   ? score_kernel<1>
                      : groups == 2 ? score_kernel<2>
                      : groups == 3 ? score_kernel<3>
                      : groups == 4 ? score_kernel<4>
                      : groups <= 8 ? score_kernel<8>
                                    : score_kernel<MAX_GROUPS>;
    uint32_t ng = groups <= 4 ? (groups ? groups : 1) : (groups <= 8 ? 8 : MAX_GROUPS);
    size_t shared = (size_t)a->heads * (ng * 9 + 1) * 4;

    if (!rows)
        return;
    j.max_blocks = a->pool_block ? j.max / a->pool_block + 1 : 1;
    size_t chunk = room / row_bytes(j.max, j.max_blocks);
    chunk = chunk > rows ? rows : (chunk ? chunk : 1);
    j.score = (float *)ds_exec_scratch(e, chunk * j.max * sizeof *j.score);
    j.block = (uint32_t *)ds_exec_scratch(e, chunk * j.max_blocks * sizeof *j.block);
    if (shared > 48 << 10)
        cudaFuncSetAttribute((const void *)score, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    for (; j.r0 < rows; j.r0 += (uint32_t)chunk) {
        unsigned n = rows - j.r0 < chunk ? rows - j.r0 : (unsigned)chunk;
        unsigned tiles = blocks_of(a->pool_in && !a->pool_out ? (size_t)a->pool_blocks * a->pool_block : j.max, SCORE_THREADS);
        score<<<dim3(tiles, n), SCORE_THREADS, shared, stream_of(e)>>>(j);
        select_kernel<<<n, SELECT_THREADS, 0, stream_of(e)>>>(j);
    }
    launched(e, "index_topk");
    ds_arena_rewind(e->scratch, mark);
}

size_t ds_index_topk_cuda_scratch(const ds_kern_limits *lim)
{
    size_t one = row_bytes((size_t)lim->max_entries + ROOM, lim->max_entries + (size_t)ROOM), some = (size_t)64 << 20;
    size_t all = one * lim->max_rows;
    return lim->max_entries ? (all < some ? all : (one > some ? one : some)) + 512 : 0;
}
