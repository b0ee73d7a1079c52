/* Index scores and selection (spec 3.10).
 *
 * Scores of keys of 128 dimensions and up to 64 heads: a warpgroup takes 64 keys at a time as operand A of wgmma,
 * decoded in registers to bf16, exactly, and all heads' queries as operand B in shared memory. A lane has one of the
 * four groups of a key: queries stand in that order. Heads are added up by lanes, then over the four lanes of a key.
 * Bound by the tensor cores, then by decoding. Others: a thread a key, whose codes it holds as signed bytes (twice
 * the value), and all heads' queries in shared memory; a group's products are exact integers (dp4a). Groups, then
 * heads, in order. Bound by integer products: 8 dp4a a head and group. Selection: a cluster a row, whose blocks have
 * each a piece of the keys, in shared memory if it fits; the threshold is found in four passes over eight bits each,
 * with sums of counts over the cluster, then what is above it and the lowest of what equals it is written in
 * increasing order. Scratch: scores of as many rows as fit, at least one. */
#include "hopper.cuh"

enum { SCORE_THREADS = 128, MAX_GROUPS = 16, ROOM = 8192 };

typedef struct {
    ds_step st;
    ds_op_index_topk a;
    float *score;    /* [rows of this launch][max] */
    uint32_t *block; /* [rows of this launch][max_blocks]: keys of the blocks' best scores */
    uint32_t r0, max, max_blocks;
    uint32_t shift; /* keys.per_block is 1 << shift */
    uint32_t tiles; /* of 64 keys, of a block that scores on tensor cores */
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
    after_others();
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

/* ---- scores on tensor cores ---- */

enum { WIDE_DIM = 128, WIDE_GROUPS = 4, WIDE_KEYS = 64, WIDE_TILES = 16 /* of a block, at most */, WIDE_REC = 68 };

/* Eight codes as four pairs, codes i and i + 4, too small by 2^126. */
static __device__ __forceinline__ void small_pairs(uint32_t r[4], uint32_t w)
{
    r[0] = (w << 12 & 0x80008000u) | (w << 6 & 0x01c001c0u);
    r[1] = (w << 8 & 0x80008000u) | (w << 2 & 0x01c001c0u);
    r[2] = (w << 4 & 0x80008000u) | (w >> 2 & 0x01c001c0u);
    r[3] = (w & 0x80008000u) | (w >> 6 & 0x01c001c0u);
}

/* The two factors of a scale (product.cuh); the second is not 1 for those above 128, and NaN for 255. */
static __device__ __forceinline__ uint2 wide_factors(uint32_t scale)
{
    uint32_t f = min(scale + 126, 254u), g = scale + 126 - f + 127;
    return make_uint2(f * 0x800080u, scale == 255 ? 0x7fc07fc0u : g * 0x800080u);
}

/* A lane's group of a key. */
typedef struct {
    uint32_t w[4], scale;
} key_group;

static __device__ __forceinline__ key_group load_group(const uint8_t *rec, uint32_t group)
{
    key_group k;
    k.scale = rec[WIDE_DIM / 2 + group];
    rec += group * 16;
    if (((uintptr_t)rec & 3) == 0) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            k.w[i] = ((const uint32_t *)rec)[i];
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            k.w[i] = bytes4(rec + i * 4);
    }
    return k;
}

/* N: heads, rounded up to 32 or 64. */
template <int N> static __global__ void __launch_bounds__(SCORE_THREADS, 4) wide_score_kernel(const __grid_constant__ args j)
{
    after_others();
    __shared__ __align__(1024) uint8_t queries[2 * N * 128]; /* [64 inputs][N][128 bytes], pieces XOR head % 8 */
    const ds_op_index_topk &a = j.a;
    const uint32_t r = j.r0 + blockIdx.y, s = j.st.seq[r], V = kv_visible(a.keys, j.st.pos[r]), lane = threadIdx.x % 32, group = lane % 4;
    const uint32_t n = within_pool(a) ? a.n_pool_in[r] * a.pool_block : V, begin = blockIdx.x * j.tiles * WIDE_KEYS;
    const uint32_t q = shared_at(queries), mine = begin + threadIdx.x / 32 * 16 + lane / 4;
    const uint32_t *blocks = j.st.blocks + (size_t)s * j.st.blocks_ld;
    float g[N / 8][2];

    if (begin >= n)
        return;
    auto entry_of = [&](uint32_t c) {
        return within_pool(a) ? (uint32_t)a.pool_in[(size_t)r * a.pool_blocks + c / a.pool_block] * a.pool_block + c % a.pool_block : c;
    };
    auto group_of = [&](uint32_t c) { /* of whatever key where there is none */
                                      uint32_t e = c < n ? entry_of(c) : 0;
                                      e = e < V ? e : 0;
                                      return load_group(a.keys.base + blocks[e >> j.shift] * a.keys.block_bytes + a.keys.off +
                                                            (size_t)(e & ((1u << j.shift) - 1)) * WIDE_REC,
                                                        group);
    };
    key_group next[2] = { group_of(mine), group_of(mine + 8) };
#pragma unroll
    for (uint32_t round = 0; round < N * 16 / SCORE_THREADS; round++) { /* eight codes */
        uint32_t i = round * SCORE_THREADS + threadIdx.x, h = i / 16, t = i % 16 / 4, w = i % 4, v[4] = { 0 };
        if (h < a.heads) {
            const uint8_t *rec = a.q + ((size_t)r * a.heads + h) * WIDE_REC;
            uint2 f = wide_factors(rec[WIDE_DIM / 2 + t]);
            small_pairs(v, bytes4(rec + t * 16 + w * 4));
#pragma unroll
            for (int k = 0; k < 4; k++)
                v[k] = mul2(mul2(v[k], f.x), f.y);
        }
#pragma unroll
        for (int k = 0; k < 4; k++) /* step 2 w + k / 2 of 16 inputs, its half k % 2 */
            put_shared_4(q + w / 2 * N * 128 + h * 128 + ((w % 2 * 4 + k) ^ h % 8) * 16 + t * 4, v[k]);
    }
#pragma unroll
    for (int c = 0; c < N / 8; c++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint32_t h = c * 8 + group * 2 + k;
            g[c][k] = h < a.heads ? a.g[(size_t)r * a.heads + h] * a.g_scale : 0.0f;
        }
    proxy_fence_shared();
    __syncthreads();
    for (uint32_t t = 0; t < j.tiles && begin + t * WIDE_KEYS < n; t++) {
        uint32_t c = mine + t * WIDE_KEYS, x[8][4];
        float acc[N / 8][4], sum[2] = { 0.0f, 0.0f };
        key_group k[2] = { next[0], next[1] };
        uint2 f[2] = { wide_factors(k[0].scale), wide_factors(k[1].scale) };

        if (t + 1 < j.tiles) {
            next[0] = group_of(c + WIDE_KEYS);
            next[1] = group_of(c + WIDE_KEYS + 8);
        }
#pragma unroll
        for (int w = 0; w < 4; w++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t v[4];
                small_pairs(v, k[h].w[w]);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    x[2 * w + i / 2][i % 2 * 2 + h] = mul2(v[i], f[h].x);
            }
        if (__any_sync(0xffffffffu, k[0].scale > 128 || k[1].scale > 128))
#pragma unroll
            for (int w = 0; w < 8; w++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    x[w][i] = mul2(x[w][i], f[i % 2].y);
        wgmma_begin();
#pragma unroll
        for (int w = 0; w < 8; w++)
            wgmma(acc, x[w], rows_128(q + w / 4 * N * 128) + w % 4 * 2, w > 0);
        wgmma_send();
        wgmma_wait<0>();
        wgmma_settled(acc);
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int i = 0; i < N / 8; i++)
#pragma unroll
                for (int b = 0; b < 2; b++) {
                    float dot = acc[i][2 * h + b];
                    if (!(dot <= 0.0f))
                        sum[h] += g[i][b] * dot;
                }
            sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
            sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
            if (group == 0 && c + 8 * h < n && entry_of(c + 8 * h) < V)
                j.score[(size_t)blockIdx.y * j.max + c + 8 * h] = sum[h] != sum[h] ? -CUDART_INF_F : sum[h];
        }
    }
}

/* ---- choosing ---- */

enum { SELECT_THREADS = 512, SELECT_WARPS = SELECT_THREADS / 32, SELECT_BLOCKS = 8 /* of a cluster */, CACHE = 16384 };

typedef struct {
    uint32_t hist[4][256], sum[256], warp[SELECT_WARPS][2], mine[2], above, bin, total;
} chooser;

static __device__ __forceinline__ uint32_t of_block(const uint32_t *p, uint32_t rank)
{
    uint32_t v;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(in_block(shared_at(p), rank)));
    return v;
}

/* The k largest of key(0..n), keys of 0 excluded, ties to the lower index: at(i) of each to out[], increasing. All
 * blocks of the cluster; `cache` has CACHE words. */
template <typename K, typename A>
static __device__ void choose(chooser *s, uint32_t *cache, uint32_t n, uint32_t k, K key, A at, int32_t *out, uint32_t *n_out)
{
    const uint32_t rank = blockIdx.x, ranks = gridDim.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t each = (n + ranks - 1) / ranks, begin = min(n, rank * each), end = min(n, begin + each), len = end - begin;
    const uint32_t rounds = (len + SELECT_THREADS - 1) / SELECT_THREADS, all = rounds * SELECT_THREADS;
    const bool cached = len <= CACHE;
    uint32_t prefix = 0, above = 0, total = 0;

    auto sync = [&]() {
        if (ranks > 1)
            cluster_sync();
        else
            __syncthreads();
    };
    auto get = [&](uint32_t i) { return i < len ? (cached ? cache[i] : key(begin + i)) : 0u; };
    for (uint32_t i = threadIdx.x; i < 4 * 256; i += SELECT_THREADS)
        s->hist[i / 256][i % 256] = 0;
    if (cached)
#pragma unroll 8
        for (uint32_t i = threadIdx.x; i < len; i += SELECT_THREADS)
            cache[i] = key(begin + i);
    __syncthreads();
    for (int pass = 0; pass < 4; pass++) {
        int shift = 24 - 8 * pass;
        for (uint32_t i = threadIdx.x; i < all; i += SELECT_THREADS) {
            uint32_t v = get(i), b = v >> shift & 255;
            bool counts = v && (pass == 0 || v >> (shift + 8) == prefix);
            if (pass) {
                if (counts)
                    atomicAdd(&s->hist[pass][b], 1u);
                continue;
            }
            uint32_t same = __match_any_sync(0xffffffffu, counts ? b : 256u); /* hardly any different ones: one addition for each */
            if (counts && lane == (uint32_t)__ffs((int)same) - 1)
                atomicAdd(&s->hist[0][b], (uint32_t)__popc(same));
        }
        sync();
        uint32_t mine = 0, upto;
        if (threadIdx.x < 256) /* the largest bin first */
            for (uint32_t c = 0; c < ranks; c++)
                mine += ranks > 1 ? of_block(&s->hist[pass][255 - threadIdx.x], c) : s->hist[pass][255 - threadIdx.x];
        upto = mine;
        for (int o = 1; o < 32; o <<= 1) {
            uint32_t v = __shfl_up_sync(0xffffffffu, upto, o);
            upto += lane >= (uint32_t)o ? v : 0;
        }
        if (lane == 31 && warp < 8)
            s->sum[warp] = upto;
        __syncthreads();
        for (uint32_t w = 0; w < 8 && w < warp; w++)
            upto += s->sum[w];
        bool enough = threadIdx.x < 256 && above + upto >= k;
        int found = __syncthreads_count(enough); /* bins at and below the threshold */
        if (threadIdx.x == (found ? 256 - (uint32_t)found : 255u)) {
            s->bin = 255 - threadIdx.x;
            s->above = above + upto - mine;
        }
        if (threadIdx.x == 255)
            s->total = upto;
        __syncthreads();
        prefix = prefix << 8 | s->bin;
        above = s->above;
        if (pass == 0)
            total = s->total;
        __syncthreads();
    }
    if (total <= k) { /* all of them */
        prefix = 0;
        above = total;
    }
    /* A warp has a piece of the block's keys. */
    const uint32_t equal = k > above ? k - above : 0, span = (len + SELECT_THREADS - 1) / SELECT_THREADS * 32, w0 = warp * span;
    uint32_t more = 0, same = 0;
    for (uint32_t i = w0; i < w0 + span; i += 32) {
        uint32_t v = get(i + lane);
        more += (uint32_t)__popc(__ballot_sync(0xffffffffu, v && v > prefix));
        same += (uint32_t)__popc(__ballot_sync(0xffffffffu, v && v == prefix));
    }
    if (lane == 0) {
        s->warp[warp][0] = more;
        s->warp[warp][1] = same;
    }
    __syncthreads();
    if (threadIdx.x < 2) {
        uint32_t sum = 0;
        for (int w = 0; w < SELECT_WARPS; w++)
            sum += s->warp[w][threadIdx.x];
        s->mine[threadIdx.x] = sum;
    }
    sync();
    more = same = 0;
    for (uint32_t c = 0; c < rank; c++) {
        more += of_block(&s->mine[0], c);
        same += of_block(&s->mine[1], c);
    }
    if (rank == ranks - 1 && threadIdx.x == 0)
        *n_out = more + s->mine[0] + min(same + s->mine[1], equal);
    for (uint32_t w = 0; w < warp; w++) {
        more += s->warp[w][0];
        same += s->warp[w][1];
    }
    for (uint32_t i = w0; i < w0 + span; i += 32) {
        uint32_t v = get(i + lane), below = (1u << lane) - 1;
        uint32_t ups = __ballot_sync(0xffffffffu, v && v > prefix), ties = __ballot_sync(0xffffffffu, v && v == prefix);
        uint32_t m = more + (uint32_t)__popc(ups & below), e = same + (uint32_t)__popc(ties & below);
        if (v && (v > prefix || (v == prefix && e < equal)))
            out[m + min(e, equal)] = at(begin + i + lane);
        more += (uint32_t)__popc(ups);
        same += (uint32_t)__popc(ties);
    }
    sync(); /* others have read this block's counts */
}

static __global__ void __launch_bounds__(SELECT_THREADS) select_kernel(const __grid_constant__ args j)
{
    after_others();
    extern __shared__ uint32_t cache[];
    __shared__ chooser s;
    const ds_op_index_topk &a = j.a;
    uint32_t r = j.r0 + blockIdx.y, V = kv_visible(a.keys, j.st.pos[r]);
    const float *score = j.score + (size_t)blockIdx.y * j.max;
    uint32_t *block = j.block + (size_t)blockIdx.y * j.max_blocks;
    const int32_t *pool = a.pool_in ? a.pool_in + (size_t)r * a.pool_blocks : NULL;
    bool packed = within_pool(a);

    auto entry = [&](uint32_t i) {
        return pool ? (int32_t)((uint32_t)pool[i / a.pool_block] * a.pool_block + i % a.pool_block) : (int32_t)i;
    };
    auto key = [&](uint32_t i) {
        uint32_t at = (uint32_t)entry(i);
        return at < V ? key_of(score[packed ? i : at]) : 0u;
    };
    choose(&s, cache, pool ? a.n_pool_in[r] * a.pool_block : V, a.topk, key, entry, a.sel + (size_t)r * a.topk, a.n_sel + r);
    if (!a.pool_out)
        return;
    uint32_t n = (V + a.pool_block - 1) / a.pool_block;
    for (uint32_t b = blockIdx.x * SELECT_THREADS + threadIdx.x; b < n; b += gridDim.x * SELECT_THREADS) {
        uint32_t best = 0;
        for (uint32_t i = b * a.pool_block; i < V && i < (b + 1) * a.pool_block; i++)
            best = max(best, key_of(score[i]));
        block[b] = b == n - 1 ? key_of(CUDART_INF_F) : (best == key_of(-CUDART_INF_F) ? 0 : best); /* a block of -inf can't be chosen */
    }
    __threadfence();
    cluster_sync();
    choose(
        &s, cache, n, a.pool_blocks, [&](uint32_t b) { return __ldcg(block + b); }, [](uint32_t b) { return (int32_t)b; },
        a.pool_out + (size_t)r * a.pool_blocks, a.n_pool_out + r);
}

static void choose_rows(ds_exec *e, const args *j, unsigned rows)
{
    unsigned blocks = j->max > SELECT_THREADS * 16 ? SELECT_BLOCKS : 1;
    cudaLaunchAttribute at[1];
    cudaLaunchConfig_t c = {};

    cudaFuncSetAttribute((const void *)select_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, CACHE * sizeof(uint32_t));
    at[0].id = cudaLaunchAttributeClusterDimension;
    at[0].val.clusterDim.x = blocks;
    at[0].val.clusterDim.y = at[0].val.clusterDim.z = 1;
    c.gridDim = dim3(blocks, rows);
    c.blockDim = dim3(SELECT_THREADS);
    c.dynamicSmemBytes = CACHE * sizeof(uint32_t);
    c.stream = stream_of(e);
    c.attrs = at;
    c.numAttrs = 1;
    cudaLaunchKernelEx(&c, select_kernel, *j);
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
    args j = { *a->step, *a, NULL, NULL, 0, (uint32_t)(a->step->blocks_ld * a->keys.per_block), 0, 0, 0 };
    score_fn *score = groups <= 1   ? score_kernel<1>
                      : groups == 2 ? score_kernel<2>
                      : groups == 3 ? score_kernel<3>
                      : groups == 4 ? score_kernel<4>
                      : groups <= 8 ? score_kernel<8>
                                    : score_kernel<MAX_GROUPS>;
    uint32_t ng = groups <= 4 ? (groups ? groups : 1) : (groups <= 8 ? 8 : MAX_GROUPS);
    size_t shared = (size_t)a->heads * (ng * 9 + 1) * 4;

    score_fn *wide = NULL; /* by the shapes of model and cache alone */
    if (a->dim == WIDE_DIM && a->heads <= 64 && (a->keys.per_block & (a->keys.per_block - 1)) == 0)
        wide = a->heads <= 32 ? wide_score_kernel<32> : wide_score_kernel<64>;
    while (j.a.keys.per_block >> j.shift > 1)
        j.shift++;

    if (!rows)
        return;
    j.max_blocks = a->pool_block ? j.max / a->pool_block + 1 : 1;
    size_t keys = a->pool_in && !a->pool_out ? (size_t)a->pool_blocks * a->pool_block : j.max;
    size_t chunk = room / row_bytes(j.max, j.max_blocks);
    chunk = chunk > rows ? rows : (chunk ? chunk : 1);
    j.score = (float *)ds_exec_scratch(e, chunk * j.max * sizeof *j.score);
    j.block = (uint32_t *)ds_exec_scratch(e, chunk * j.max_blocks * sizeof *j.block);
    if (shared > 48 << 10)
        cudaFuncSetAttribute((const void *)score, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    for (; j.r0 < rows; j.r0 += (uint32_t)chunk) {
        unsigned n = rows - j.r0 < chunk ? rows - j.r0 : (unsigned)chunk;
        j.tiles = WIDE_TILES; /* fewer where blocks are few */
        while (j.tiles > 1 && (size_t)n * blocks_of(keys, j.tiles * WIDE_KEYS) < 4 * (size_t)ds_cuda_sms(e))
            j.tiles /= 2;
        if (wide)
            launch(e, wide, dim3(blocks_of(keys, j.tiles * WIDE_KEYS), n), SCORE_THREADS, 0, j);
        else
            launch(e, score, dim3(blocks_of(keys, SCORE_THREADS), n), SCORE_THREADS, shared, j);
        choose_rows(e, &j, n);
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
