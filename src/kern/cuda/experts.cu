/* Router and routed experts (spec 3.13).
 *
 * Packed weights in bf16 mode: experts_packed.cu. Else owned pairs (row, rank) are sorted by expert in one block.
 * Then, in bf16 mode, two launches over (expert that has rows, outputs): W1 and W3 side by side as the two tiles of
 * product.cuh, gate, up and routing weight in the epilogue; then W2. Rows of an expert pass 8 * NT at a time. Bound
 * by bytes of the weights with few rows an expert. In f32 mode a warp computes an output of a pair. Scratch: sorting
 * arrays, activations and hidden values as bf16 (or f32). */
#include "experts_packed.cuh"
#include "packed.cuh"
#include "product.cuh"

/* ---- router: a block a row ---- */

enum { ROUTE_THREADS = 128, MAX_K = 64 };

static __device__ double affinity(float logit, double temp)
{
    double v = logit / temp;
    return sqrt(v > 0.0 ? v + log1p(exp(-v)) : log1p(exp(v)));
}

static __global__ void route_kernel(ds_op_route a)
{
    after_others();
    extern __shared__ double score[]; /* [experts]; NaN with `taken` below marks the chosen */
    __shared__ best_place part[33];
    __shared__ int32_t chosen[MAX_K];
    size_t r = blockIdx.x;
    const float *logit = a.logit + r * a.experts, *bias = a.dead && a.dead[r] && a.bias_vl ? a.bias_vl : a.bias;
    double sum = 0.0;

    for (uint32_t x = threadIdx.x; x < a.experts; x += blockDim.x)
        score[x] = affinity(logit[x], (double)a.temp) + (double)bias[x];
    for (uint32_t i = 0; i < a.k; i++) {
        best_place p = { 0.0, -1 };
        for (uint32_t x = threadIdx.x; x < a.experts; x += blockDim.x) {
            bool taken = false;
            for (uint32_t c = 0; c < i; c++)
                taken = taken || chosen[c] == (int32_t)x;
            if (!taken)
                p = better(p, { score[x], (int)x });
        }
        p = block_best(p, part);
        if (threadIdx.x == 0)
            chosen[i] = p.at;
        __syncthreads();
    }
    if (threadIdx.x != 0)
        return;
    for (uint32_t i = 0; i < a.k; i++)
        sum += affinity(logit[chosen[i]], (double)a.temp);
    for (uint32_t i = 0; i < a.k; i++) {
        double s = affinity(logit[chosen[i]], (double)a.temp);
        a.sel[r * a.k + i] = chosen[i];
        a.w[r * a.k + i] = (float)((a.norm && a.k > 1 ? s / (sum + 1e-20) : s) * (double)a.scale);
    }
}

void ds_route_cuda(ds_exec *e, const ds_op_route *a)
{
    if (!a->rows)
        return;
    launch(e, route_kernel, (unsigned)a->rows, ROUTE_THREADS, a->experts * sizeof(double), *a);
    launched(e, "route");
}

/* ---- sorting ---- */

enum { SORT_THREADS = 1024 };

typedef struct {
    uint32_t *n_active, *expert, *first, *order; /* [1], [n], [n + 1], [pairs]: as in cpu/experts.c */
} sorted;

/* Order within an expert is whatever the atomics give: rows don't depend on each other. */
static __global__ void sort_kernel(ds_op_experts_part a, sorted s)
{
    after_others();
    extern __shared__ uint32_t count[]; /* [n] */
    size_t pairs = a.rows * a.k;

    for (uint32_t x = threadIdx.x; x < a.n; x += blockDim.x)
        count[x] = 0;
    __syncthreads();
    for (size_t p = threadIdx.x; p < pairs; p += blockDim.x) {
        uint32_t x = (uint32_t)a.sel[p] - a.first;
        if (x < a.n)
            atomicAdd(&count[x], 1u);
    }
    __syncthreads();
    if (threadIdx.x < 32) { /* one warp: running sums of 32 experts at a time */
        uint32_t at = 0, slots = 0, lane = threadIdx.x;
        for (uint32_t x0 = 0; x0 < a.n; x0 += 32) {
            uint32_t n = x0 + lane < a.n ? count[x0 + lane] : 0, upto = n, has = __ballot_sync(0xffffffffu, n > 0);
            for (int o = 1; o < 32; o <<= 1) {
                uint32_t v = __shfl_up_sync(0xffffffffu, upto, o);
                upto += lane >= (uint32_t)o ? v : 0;
            }
            if (n) {
                uint32_t slot = slots + __popc(has & ((1u << lane) - 1));
                s.expert[slot] = x0 + lane;
                s.first[slot] = at + upto - n;
            }
            if (x0 + lane < a.n)
                count[x0 + lane] = at + upto - n;
            at += __shfl_sync(0xffffffffu, upto, 31);
            slots += __popc(has);
        }
        if (lane == 0) {
            s.first[slots] = at;
            *s.n_active = slots;
        }
    }
    __syncthreads();
    for (size_t p = threadIdx.x; p < pairs; p += blockDim.x) {
        uint32_t x = (uint32_t)a.sel[p] - a.first;
        if (x < a.n)
            s.order[atomicAdd(&count[x], 1u)] = (uint32_t)p;
    }
}

/* ---- bf16 mode ---- */

typedef struct {
    ds_op_experts_part a;
    const ds_cuda_expert *w; /* [n] */
    sorted s;
    const uint16_t *x; /* [rows][d] */
    uint16_t *h;       /* [pairs][inner], sorted */
    ds_mat_type t2;
} args;

template <ds_mat_type T, int NT> static __global__ void __launch_bounds__(PRODUCT_THREADS, 3) hidden_kernel(const __grid_constant__ args j)
{
    after_others();
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ float red[WARPS][PAIR][8], gu[PAIR][8];
    uint32_t i = blockIdx.y, g = threadIdx.x % 32 / 4;

    if (i >= *j.s.n_active)
        return;
    const ds_cuda_expert *m = j.w + j.s.expert[i];
    weight w[2] = { { m->w[0], m->scale[0], j.a.d, j.a.inner }, { m->w[1], m->scale[1], j.a.d, j.a.inner } };
    uint64_t o0[2] = { blockIdx.x * (uint64_t)TILE, blockIdx.x * (uint64_t)TILE };
    uint32_t end = j.s.first[i + 1];

    for (uint32_t p0 = j.s.first[i]; p0 < end; p0 += NT * 8) {
        const uint16_t *x[NT];
        float acc[2][NT][4];
#pragma unroll
        for (int n = 0; n < NT; n++)
            x[n] = j.x + (size_t)(j.s.order[min(p0 + n * 8 + g, end - 1)] / j.a.k) * j.a.d;
        product<T, NT>(acc, w, o0, x, shared);
#pragma unroll
        for (int n = 0; n < NT; n++) {
            gu[threadIdx.x / 8][threadIdx.x % 8] = add_warps(acc[0][n], acc[1][n], red);
            __syncthreads();
            uint32_t t = threadIdx.x / 8, p = p0 + n * 8 + threadIdx.x % 8, o = (uint32_t)o0[0] + t;
            if (t < TILE && p < end && o < j.a.inner) {
                float gate = bound_gate(rounded(true, gu[t][threadIdx.x % 8]), j.a.limit);
                float up = bound_up(rounded(true, gu[TILE + t][threadIdx.x % 8]), j.a.limit);
                j.h[(size_t)p * j.a.inner + place_of(j.t2, o)] = (uint16_t)bf16_bits(j.a.w[j.s.order[p]] * silu(gate) * up);
            }
        }
    }
}

template <ds_mat_type T, int NT> static __global__ void __launch_bounds__(PRODUCT_THREADS, 3) output_kernel(const __grid_constant__ args j)
{
    after_others();
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ float red[WARPS][PAIR][8];
    uint32_t i = blockIdx.y, g = threadIdx.x % 32 / 4;

    if (i >= *j.s.n_active)
        return;
    const ds_cuda_expert *m = j.w + j.s.expert[i];
    weight one = { m->w[2], m->scale[2], j.a.inner, j.a.d }, w[2] = { one, one };
    uint64_t o0[2] = { blockIdx.x * (uint64_t)PAIR, blockIdx.x * (uint64_t)PAIR + TILE };
    uint32_t end = j.s.first[i + 1];

    for (uint32_t p0 = j.s.first[i]; p0 < end; p0 += NT * 8) {
        const uint16_t *x[NT];
        float acc[2][NT][4];
#pragma unroll
        for (int n = 0; n < NT; n++)
            x[n] = j.h + (size_t)min(p0 + n * 8 + g, end - 1) * j.a.inner;
        product<T, NT>(acc, w, o0, x, shared);
#pragma unroll
        for (int n = 0; n < NT; n++) {
            float v = add_warps(acc[0][n], acc[1][n], red);
            uint32_t p = p0 + n * 8 + threadIdx.x % 8, o = (uint32_t)o0[0] + threadIdx.x / 8;
            if (p < end && o < j.a.d)
                j.a.part[(size_t)j.s.order[p] * j.a.d + o] = rounded(true, v);
        }
    }
}

/* Many rows an expert: the tiles of a warp are W1 and W3 for the same 16 hidden values, or 32 outputs of W2. */
template <ds_mat_type T, int NT>
static __global__ void __launch_bounds__(PRODUCT_THREADS) wide_hidden_kernel(const __grid_constant__ args j)
{
    after_others();
    extern __shared__ __align__(16) unsigned char shared[];
    uint32_t i = blockIdx.y;

    if (i >= *j.s.n_active)
        return;
    const ds_cuda_expert *m = j.w + j.s.expert[i];
    weight w[2] = { { m->w[0], m->scale[0], j.a.d, j.a.inner }, { m->w[1], m->scale[1], j.a.d, j.a.inner } };
    uint64_t o = (blockIdx.x * WARPS + threadIdx.x / 32) * (uint64_t)TILE, o0[2] = { o, o };
    uint32_t end = j.s.first[i + 1];

    for (uint32_t p0 = j.s.first[i]; p0 < end; p0 += NT * 8) {
        float gu[2][NT][4];
        product_wide<T, 2, NT>(
            gu, w, o0, [&](uint32_t r) { return j.x + (size_t)(j.s.order[min(p0 + r, end - 1)] / j.a.k) * j.a.d; }, shared);
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                uint32_t p = p0 + n * 8 + row_of(k), at = (uint32_t)o + out_of(k);
                if (p < end && at < j.a.inner) {
                    float gate = bound_gate(rounded(true, gu[0][n][k]), j.a.limit), up = bound_up(rounded(true, gu[1][n][k]), j.a.limit);
                    j.h[(size_t)p * j.a.inner + place_of(j.t2, at)] = (uint16_t)bf16_bits(j.a.w[j.s.order[p]] * silu(gate) * up);
                }
            }
    }
}

template <ds_mat_type T, int NT>
static __global__ void __launch_bounds__(PRODUCT_THREADS) wide_output_kernel(const __grid_constant__ args j)
{
    after_others();
    extern __shared__ __align__(16) unsigned char shared[];
    uint32_t i = blockIdx.y;

    if (i >= *j.s.n_active)
        return;
    const ds_cuda_expert *m = j.w + j.s.expert[i];
    weight one = { m->w[2], m->scale[2], j.a.inner, j.a.d }, w[2] = { one, one };
    uint64_t o = (blockIdx.x * WARPS + threadIdx.x / 32) * (uint64_t)PAIR, o0[2] = { o, o + TILE };
    uint32_t end = j.s.first[i + 1];

    for (uint32_t p0 = j.s.first[i]; p0 < end; p0 += NT * 8) {
        float y[2][NT][4];
        product_wide<T, 2, NT>(
            y, w, o0, [&](uint32_t r) { return j.h + (size_t)min(p0 + r, end - 1) * j.a.inner; }, shared);
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                uint32_t p = p0 + n * 8 + row_of(k);
#pragma unroll
                for (int t = 0; t < 2; t++) {
                    uint64_t at = o0[t] + out_of(k);
                    if (p < end && at < j.a.d)
                        j.a.part[(size_t)j.s.order[p] * j.a.d + at] = rounded(true, y[t][n][k]);
                }
            }
    }
}

typedef void part_kernel(args);

typedef struct {
    part_kernel *f;
    uint32_t outs, shared; /* of a block */
} launch_of;

/* By how many rows an expert has, if all have as many: the bits are the same with any. */
template <ds_mat_type T> static launch_of hidden_for(size_t each)
{
    if (each <= 8)
        return { hidden_kernel<T, 1>, TILE, NARROW_BYTES };
    if (each <= 16)
        return { wide_hidden_kernel<T, 2>, WARPS * TILE, wide<T, 2, 2>::bytes };
    if (each <= 32)
        return { wide_hidden_kernel<T, 4>, WARPS * TILE, wide<T, 2, 4>::bytes };
    return { wide_hidden_kernel<T, 8>, WARPS * TILE, wide<T, 2, 8>::bytes };
}

template <ds_mat_type T> static launch_of output_for(size_t each)
{
    if (each <= 8)
        return { output_kernel<T, 1>, PAIR, NARROW_BYTES };
    if (each <= 16)
        return { wide_output_kernel<T, 2>, WARPS * PAIR, wide<T, 2, 2>::bytes };
    if (each <= 32)
        return { wide_output_kernel<T, 4>, WARPS * PAIR, wide<T, 2, 4>::bytes };
    return { wide_output_kernel<T, 8>, WARPS * PAIR, wide<T, 2, 8>::bytes };
}

static void launch(ds_exec *e, const args *j, launch_of l, uint32_t outs, unsigned active)
{
    if (l.shared > 48 << 10)
        cudaFuncSetAttribute((const void *)l.f, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)l.shared);
    launch(e, l.f, dim3(blocks_of(outs, l.outs), active), PRODUCT_THREADS, l.shared, *j);
}

static launch_of kernel_for(ds_mat_type type, size_t each, bool output)
{
    switch (type) {
    case DS_MAT_MXFP4:
        return output ? output_for<DS_MAT_MXFP4>(each) : hidden_for<DS_MAT_MXFP4>(each);
    case DS_MAT_FP8_32X32:
        return output ? output_for<DS_MAT_FP8_32X32>(each) : hidden_for<DS_MAT_FP8_32X32>(each);
    default:
        return output ? output_for<DS_MAT_BF16>(each) : hidden_for<DS_MAT_BF16>(each);
    }
}

/* ---- everything else: a warp an output ---- */

typedef struct {
    ds_op_experts_part a;
    const ds_cuda_expert *w;
    ds_mat_type t1, t3, t2;
    float *h; /* [pairs][inner] */
    bool bf16;
} plain_args;

static __device__ __forceinline__ float dot(ds_mat_type t, const ds_cuda_expert *m, int which, uint32_t in, uint32_t o, const float *x)
{
    bool packed = t == DS_MAT_MXFP4 && !m->scale[which];
    float sum = 0.0f;
    for (uint32_t k = threadIdx.x % 32; k < in; k += 32)
        sum += (packed ? packed_value(m->w[which], which, in, o, k) : mat_value(t, m->w[which], m->scale[which], in, o, k)) * x[k];
    return warp_sum(sum);
}

static __global__ void plain_hidden_kernel(plain_args j)
{
    after_others();
    size_t p = blockIdx.y + (size_t)blockIdx.z * gridDim.y;
    uint32_t o = blockIdx.x * WARPS + threadIdx.x / 32, x = p < j.a.rows * j.a.k ? (uint32_t)j.a.sel[p] - j.a.first : j.a.n;

    if (x >= j.a.n || o >= j.a.inner)
        return;
    const float *in = j.a.x + p / j.a.k * j.a.d;
    float g = bound_gate(rounded(j.bf16, dot(j.t1, j.w + x, 0, j.a.d, o, in)), j.a.limit);
    float u = bound_up(rounded(j.bf16, dot(j.t3, j.w + x, 1, j.a.d, o, in)), j.a.limit);
    if (threadIdx.x % 32 == 0)
        j.h[p * j.a.inner + o] = rounded(j.bf16, j.a.w[p] * silu(g) * u);
}

static __global__ void plain_output_kernel(plain_args j)
{
    after_others();
    size_t p = blockIdx.y + (size_t)blockIdx.z * gridDim.y;
    uint32_t o = blockIdx.x * WARPS + threadIdx.x / 32, x = p < j.a.rows * j.a.k ? (uint32_t)j.a.sel[p] - j.a.first : j.a.n;

    if (x >= j.a.n || o >= j.a.d)
        return;
    float y = dot(j.t2, j.w + x, 2, j.a.inner, o, j.h + p * j.a.inner);
    if (threadIdx.x % 32 == 0)
        j.a.part[p * j.a.d + o] = rounded(j.bf16, y);
}

void ds_experts_part_cuda(ds_exec *e, const ds_op_experts_part *a)
{
    size_t mark = ds_arena_mark(e->scratch), pairs = a->rows * a->k;

    if (!pairs || !a->n)
        return;
    const ds_cuda_expert *table = (const ds_cuda_expert *)a->w1[0].packed;
    if (e->bf16 && !a->w1[0].data) {
        ds_experts_packed(e, a, table);
    } else if (e->bf16 && a->w1[0].type == a->w3[0].type && has_product(&a->w1[0]) && has_product(&a->w2[0])) {
        size_t active = pairs < a->n ? pairs : a->n, each = (pairs + active - 1) / active;
        args j = { *a, table };
        uint16_t *x = (uint16_t *)ds_exec_scratch(e, a->rows * a->d * sizeof *x);
        j.h = (uint16_t *)ds_exec_scratch(e, pairs * a->inner * sizeof *j.h);
        j.x = x;
        j.t2 = a->w2[0].type;
        j.s.n_active = (uint32_t *)ds_exec_scratch(e, sizeof(uint32_t));
        j.s.expert = (uint32_t *)ds_exec_scratch(e, a->n * sizeof(uint32_t));
        j.s.first = (uint32_t *)ds_exec_scratch(e, (a->n + 1) * sizeof(uint32_t));
        j.s.order = (uint32_t *)ds_exec_scratch(e, pairs * sizeof(uint32_t));
        launch(e, sort_kernel, 1, SORT_THREADS, a->n * sizeof(uint32_t), *a, j.s);
        ds_cuda_to_bf16(e, x, a->x, a->rows, a->d, a->d, a->w1[0].type);
        launch(e, &j, kernel_for(a->w1[0].type, each, false), a->inner, (unsigned)active);
        launch(e, &j, kernel_for(j.t2, each, true), a->d, (unsigned)active);
    } else {
        plain_args j = { *a, table, a->w1[0].type, a->w3[0].type, a->w2[0].type, NULL, e->bf16 };
        unsigned y = pairs < 32768 ? (unsigned)pairs : 32768, z = blocks_of(pairs, y);
        j.h = (float *)ds_exec_scratch(e, pairs * a->inner * sizeof *j.h);
        launch(e, plain_hidden_kernel, dim3(blocks_of(a->inner, WARPS), y, z), WARPS * 32, 0, j);
        launch(e, plain_output_kernel, dim3(blocks_of(a->d, WARPS), y, z), WARPS * 32, 0, j);
    }
    launched(e, "experts_part");
    ds_arena_rewind(e->scratch, mark);
}

size_t ds_experts_cuda_scratch(const ds_kern_limits *lim)
{
    size_t pairs = (size_t)lim->max_rows * lim->k, packed = ds_experts_packed_scratch(lim);
    size_t other = (size_t)lim->max_rows * lim->d * sizeof(uint16_t) + pairs * (lim->inner + 1) * sizeof(float) +
                   8 * ((size_t)lim->experts + 64) + 512;
    return packed > other ? packed : other;
}

static __global__ void sum_kernel(ds_op_experts_sum a, bool bf16)
{
    after_others();
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, r = i / a.d, c = i % a.d;
    float y = 0.0f;

    if (r >= a.rows)
        return;
    for (uint32_t k = 0; k < a.k; k++)
        y += a.part[(r * a.k + k) * a.d + c];
    a.y[i] = rounded(bf16, y + a.shared[i]);
}

void ds_experts_sum_cuda(ds_exec *e, const ds_op_experts_sum *a)
{
    if (!a->rows)
        return;
    launch(e, sum_kernel, blocks_of(a->rows * a->d, 256), 256, 0, *a, e->bf16);
    launched(e, "experts_sum");
}
