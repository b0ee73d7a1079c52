/* Embedding rows and the residual streams (spec 3.3, 3.4). */
#include "hopper.cuh"

enum { THREADS = 256, MAX_STREAMS = 8, MAX_OUTS = (2 + MAX_STREAMS) * MAX_STREAMS };

/* ---- embed: a block a row ---- */

static __global__ void embed_kernel(ds_op_embed a, ds_mat t, ds_fault *f, bool bf16)
{
    after_others();
    size_t r = blockIdx.x, d = t.in;
    int32_t id = a.id[r];
    float *y = a.y + r * a.copies * d;
    bool bad = false;

    for (size_t c = threadIdx.x; c < d; c += blockDim.x) {
        float v = id >= 0 ? mat_value(t.type, (const uint8_t *)t.data, t.scale, d, (size_t)id, c) : a.extra[(size_t)(-1 - id) * d + c];
        bad = bad || (id >= 0 && !isfinite(v));
        v = rounded(bf16, v);
        for (uint32_t k = 0; k < a.copies; k++)
            y[k * d + c] = v;
    }
    if (!__syncthreads_or(bad))
        return;
    for (size_t c = threadIdx.x; c < d * a.copies; c += blockDim.x)
        y[c] = 0.0f;
    if (threadIdx.x == 0)
        fault(f, DS_FAULT_VALUE, a.tag, id);
}

void ds_embed_cuda(ds_exec *e, const ds_op_embed *a)
{
    if (!a->rows)
        return;
    launch(e, embed_kernel, (unsigned)a->rows, THREADS, 0, *a, *a->table, e->fault, e->bf16);
    launched(e, "embed");
}

/* ---- mHC ----
 *
 * With fn, two kernels. `turn` has RB rows and a piece of the columns: new streams and x, which go to shared memory
 * too, and their products with fn, half of the outputs a half of the block. Then the mix, a warp a row, Sinkhorn in
 * registers. The columns are cut into SPLITS pieces whatever the number of rows, whose sums are added in order; fn
 * comes through the L2 once for RB rows. Bound by bytes of X with many rows, by those of fn with few. For other
 * numbers of streams than four the products are a kernel of their own. */

enum { SPLITS = 8, OUTS = 8, PRODUCT_THREADS = 128 };

/* Column i of a row: v = its new streams, which part 1 stores; x of part 2. mix: the row's, in shared memory. */
template <int N>
static __device__ __forceinline__ void streams_at(float v[N], const ds_op_mhc &a, bool bf16, const float *mix, size_t r, size_t i)
{
    float *X = a.X + r * N * a.d + i;

#pragma unroll
    for (int k = 0; k < N; k++)
        v[k] = X[k * (size_t)a.d];
    if (a.y) {
        float old[N], y = a.y[r * a.d + i];
#pragma unroll
        for (int k = 0; k < N; k++)
            old[k] = v[k];
#pragma unroll
        for (int k = 0; k < N; k++) {
            float s = mix[N + k] * y;
#pragma unroll
            for (int j = 0; j < N; j++)
                s += mix[2 * N + j * N + k] * old[j];
            v[k] = rounded(bf16, s);
            X[k * (size_t)a.d] = v[k];
        }
    }
    if (a.x) {
        float s = 0.0f;
#pragma unroll
        for (int k = 0; k < N; k++)
            s += mix[k] * v[k];
        a.x[r * a.d + i] = rounded(bf16, s);
    }
}

template <int N> static __global__ void streams_kernel(ds_op_mhc a, bool bf16)
{
    after_others();
    __shared__ float mix[(2 + N) * N];
    size_t r = blockIdx.y, i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    float v[N];

    for (uint32_t o = threadIdx.x; o < (2 + N) * N; o += blockDim.x)
        mix[o] = a.mix_in[r * (2 + N) * N + o];
    __syncthreads();
    if (i < a.d)
        streams_at<N>(v, a, bf16, mix, r, i);
}

/* ---- four streams ---- */

enum { FOUR = 4, FOUR_OUTS = 24, TURN_THREADS = 256, HALF = TURN_THREADS / 2, HALF_OUTS = FOUR_OUTS / 2 };

/* v[k] of all lanes added up, k < 32: lane k has the sum. */
static __device__ __forceinline__ float sums_of(float v[32])
{
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < 5; step++)
#pragma unroll
        for (int k = 0; k < 16; k++) {
            const int o = 16 >> step;
            if (k < o) {
                float keep = lane & o ? v[k + o] : v[k], give = lane & o ? v[k] : v[k + o];
                v[k] = keep + __shfl_xor_sync(0xffffffffu, give, o);
            }
        }
    return v[0];
}

template <int RB>
static __global__ void __launch_bounds__(TURN_THREADS, RB > 4 ? 1 : 2)
    turn_kernel(const __grid_constant__ ds_op_mhc a, float *part, bool bf16)
{
    after_others();
    enum { VALUES = (RB * HALF_OUTS + 31) / 32 * 32 };
    __shared__ float mix[RB][FOUR_OUTS], v[2][RB][FOUR][HALF], red[TURN_THREADS / 32][VALUES], squares[TURN_THREADS / 32][RB];
    const uint32_t half = threadIdx.x / HALF, t = threadIdx.x % HALF, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t r0 = blockIdx.x * (size_t)RB, d = a.d, each = (d + SPLITS - 1) / SPLITS, begin = blockIdx.y * each,
                 end = min(begin + each, d);
    const float *fn = a.fn + (size_t)half * HALF_OUTS * FOUR * d;
    float acc[VALUES] = { 0 }, ss[RB] = { 0 };

    for (uint32_t i = threadIdx.x; i < RB * FOUR_OUTS && (a.x || a.y); i += TURN_THREADS)
        mix[i / FOUR_OUTS][i % FOUR_OUTS] = a.mix_in[min(r0 + i / FOUR_OUTS, a.rows - 1) * FOUR_OUTS + i % FOUR_OUTS];
    __syncthreads();
    let_others_start();
    int buf = 0;
    for (size_t i0 = begin; i0 < end; i0 += HALF, buf ^= 1) {
        size_t i = i0 + t;
#pragma unroll
        for (int r = 0; r < RB; r++) { /* rows in turn for the halves */
            if (RB > 1 && r % 2 != (int)half)
                continue;
            float x[FOUR] = { 0 };
            if (i < end && r0 + r < a.rows && (RB > 1 || half == 0))
                streams_at<FOUR>(x, a, bf16, mix[r], r0 + r, i);
#pragma unroll
            for (int k = 0; k < FOUR; k++) {
                if (RB > 1 || half == 0)
                    v[buf][r][k][t] = x[k];
                ss[r] += x[k] * x[k];
            }
        }
        __syncthreads();
        if (i < end)
#pragma unroll
            for (int k = 0; k < FOUR; k++) {
                float x[RB];
#pragma unroll
                for (int r = 0; r < RB; r++)
                    x[r] = v[buf][r][k][t];
#pragma unroll
                for (int o = 0; o < HALF_OUTS; o++) {
                    float f = fn[(o * (size_t)FOUR + k) * d + i];
#pragma unroll
                    for (int r = 0; r < RB; r++)
                        acc[r * HALF_OUTS + o] += f * x[r];
                }
            }
    }
#pragma unroll
    for (int c = 0; c < VALUES; c += 32)
        red[warp][c + lane] = sums_of(acc + c);
#pragma unroll
    for (int r = 0; r < RB; r++) {
        float s = warp_sum(ss[r]);
        if (lane == 0)
            squares[warp][r] = s;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < RB * (FOUR_OUTS + 1); i += TURN_THREADS) {
        uint32_t r = i / (FOUR_OUTS + 1), o = i % (FOUR_OUTS + 1), first = o / HALF_OUTS * (HALF / 32);
        float s = 0.0f;
        if (o == FOUR_OUTS)
            for (int w = 0; w < HALF / 32; w++) /* one half has the row */
                s += squares[(RB > 1 ? r % 2 * (HALF / 32) : 0) + w][r];
        else
            for (int w = 0; w < HALF / 32; w++)
                s += red[first + w][r * HALF_OUTS + o % HALF_OUTS];
        if (r0 + r < a.rows)
            part[((r0 + r) * SPLITS + blockIdx.y) * (FOUR_OUTS + 1) + o] = s;
    }
}

template <int RB> static __global__ void products_kernel(ds_op_mhc a, float *part, uint32_t n_out)
{
    after_others();
    __shared__ float red[PRODUCT_THREADS / 32][RB][OUTS + 1];
    size_t len = (size_t)a.n * a.d, each = (len + SPLITS - 1) / SPLITS, begin = blockIdx.y * each, end = min(begin + each, len);
    size_t r0 = blockIdx.x * (size_t)RB;
    uint32_t o0 = blockIdx.z * OUTS, outs = min((uint32_t)OUTS, n_out - o0);
    float acc[RB][OUTS] = { 0 }, ss[RB] = { 0 };

    for (size_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
        float x[RB];
#pragma unroll
        for (int r = 0; r < RB; r++) {
            x[r] = a.X[min(r0 + r, a.rows - 1) * len + i];
            ss[r] += x[r] * x[r];
        }
#pragma unroll
        for (int o = 0; o < OUTS; o++) {
            float f = a.fn[(o0 + min((uint32_t)o, outs - 1)) * len + i];
#pragma unroll
            for (int r = 0; r < RB; r++)
                acc[r][o] += f * x[r];
        }
    }
#pragma unroll
    for (int r = 0; r < RB; r++) {
#pragma unroll
        for (int o = 0; o < OUTS; o++) {
            float v = warp_sum(acc[r][o]);
            if (threadIdx.x % 32 == 0)
                red[threadIdx.x / 32][r][o] = v;
        }
        float v = warp_sum(ss[r]);
        if (threadIdx.x % 32 == 0)
            red[threadIdx.x / 32][r][OUTS] = v;
    }
    __syncthreads();
    uint32_t r = threadIdx.x / (OUTS + 1), o = threadIdx.x % (OUTS + 1);
    if (r < RB && r0 + r < a.rows && (o < outs || (o == OUTS && o0 == 0))) {
        float v = 0.0f;
        for (int w = 0; w < PRODUCT_THREADS / 32; w++)
            v += red[w][r][o];
        part[((r0 + r) * SPLITS + blockIdx.y) * (n_out + 1) + (o == OUTS ? n_out : o0 + o)] = v;
    }
}

static __global__ void mix_kernel(ds_op_mhc a, const float *part, uint32_t n_out)
{
    after_others();
    __shared__ float m[MAX_OUTS], B[MAX_STREAMS * MAX_STREAMS];
    size_t r = blockIdx.x;
    uint32_t n = a.n, t = threadIdx.x, row = t / n, col = t % n;
    float *out = a.mix_out + r * n_out, ss = 0.0f;

    part += r * SPLITS * (n_out + 1);
    for (int s = 0; s < SPLITS; s++)
        ss += part[s * (n_out + 1) + n_out];
    float inv = 1.0f / sqrtf(ss / ((float)n * (float)a.d) + a.eps);
    for (uint32_t o = t; o < n_out; o += blockDim.x) {
        float v = 0.0f;
        for (int s = 0; s < SPLITS; s++)
            v += part[s * (n_out + 1) + o];
        m[o] = v * inv * a.scale[o < n ? 0 : (o < 2 * n ? 1 : 2)] + a.base[o];
    }
    __syncthreads();
    if (t < n) {
        out[t] = sigmoid(m[t]) + a.hc_eps;
        out[n + t] = 2.0f * sigmoid(m[n + t]);
    }
    float b = 0.0f;
    if (t < n * n) { /* the softmax stands for the first row pass */
        const float *mb = m + 2 * n + row * n;
        float max = mb[0], sum = 0.0f;
        for (uint32_t k = 1; k < n; k++)
            max = fmaxf(max, mb[k]);
        for (uint32_t k = 0; k < n; k++)
            sum += expf(mb[k] - max);
        b = expf(mb[col] - max) / sum + a.hc_eps;
        B[t] = b;
    }
    for (uint32_t it = 0; it < 2 * a.iters; it++) { /* even: columns; odd: rows */
        float sum = 0.0f;
        if (it == 2 * a.iters - 1)
            break; /* the last pass is one of columns */
        __syncthreads();
        if (t < n * n)
            for (uint32_t k = 0; k < n; k++)
                sum += it % 2 ? B[row * n + k] : B[k * n + col];
        __syncthreads();
        if (t < n * n)
            B[t] = b = b / (sum + a.hc_eps);
    }
    if (t < n * n)
        out[2 * n + t] = b;
}

/* Four streams: a warp a row, a lane an element of the matrix. */
static __global__ void __launch_bounds__(128) four_mix_kernel(ds_op_mhc a, const float *part)
{
    after_others();
    const size_t r = blockIdx.x * (size_t)4 + threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32, o = min(lane, (uint32_t)FOUR_OUTS - 1);
    float scale = a.scale[o < FOUR ? 0 : (o < 2 * FOUR ? 1 : 2)], base = a.base[o], ss = 0.0f, m = 0.0f;

    after_others();
    if (r >= a.rows)
        return;
    part += r * SPLITS * (FOUR_OUTS + 1);
#pragma unroll
    for (int s = 0; s < SPLITS; s++) {
        ss += part[s * (FOUR_OUTS + 1) + FOUR_OUTS];
        m += part[s * (FOUR_OUTS + 1) + o];
    }
    m = m / sqrtf(ss / ((float)FOUR * (float)a.d) + a.eps) * scale + base;
    float b = __shfl_sync(0xffffffffu, m, 2 * FOUR + lane % 16), max = fmaxf(b, __shfl_xor_sync(0xffffffffu, b, 1));
    max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
    b = expf(b - max); /* the softmax stands for the first row pass */
    float sum = b + __shfl_xor_sync(0xffffffffu, b, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    b = b / sum + a.hc_eps;
    for (uint32_t it = 0; it + 1 < 2 * a.iters; it++) { /* even: columns; odd: rows; the last pass is one of columns */
        int across = it % 2 ? 1 : FOUR;
        sum = b + __shfl_xor_sync(0xffffffffu, b, across);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2 * across);
        b = __fdividef(b, sum + a.hc_eps);
    }
    float *out = a.mix_out + r * FOUR_OUTS;
    if (lane < 2 * FOUR)
        out[lane] = lane < FOUR ? sigmoid(m) + a.hc_eps : 2.0f * sigmoid(m);
    if (lane < FOUR * FOUR)
        out[2 * FOUR + lane] = b;
}

static void four(ds_exec *e, const ds_op_mhc *a, float *part)
{
    cudaLaunchAttribute at[1];
    cudaLaunchConfig_t c = {};

    if (a->rows <= 8)
        launch(e, turn_kernel<1>, dim3((unsigned)a->rows, SPLITS), TURN_THREADS, 0, *a, part, e->bf16);
    else if (a->rows <= 128)
        launch(e, turn_kernel<4>, dim3(blocks_of(a->rows, 4), SPLITS), TURN_THREADS, 0, *a, part, e->bf16);
    else
        launch(e, turn_kernel<8>, dim3(blocks_of(a->rows, 8), SPLITS), TURN_THREADS, 0, *a, part, e->bf16);
    at[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    at[0].val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = dim3(blocks_of(a->rows, 4));
    c.blockDim = dim3(128);
    c.stream = stream_of(e);
    c.attrs = at;
    c.numAttrs = 1;
    cudaLaunchKernelEx(&c, four_mix_kernel, *a, (const float *)part);
}

void ds_mhc_cuda(ds_exec *e, const ds_op_mhc *a)
{
    typedef void streams_fn(ds_op_mhc, bool);
    static streams_fn *const streams[] = { streams_kernel<1>, streams_kernel<2>, streams_kernel<3>, streams_kernel<4>,
                                           streams_kernel<5>, streams_kernel<6>, streams_kernel<7>, streams_kernel<8> };
    size_t mark = ds_arena_mark(e->scratch);
    uint32_t n_out = (2 + a->n) * a->n, chunks = (n_out + OUTS - 1) / OUTS;

    if (!a->rows)
        return;
    if ((a->y || a->x) && !(a->fn && a->n == FOUR))
        launch(e, streams[a->n - 1], dim3(blocks_of(a->d, THREADS), (unsigned)a->rows), THREADS, 0, *a, e->bf16);
    if (a->fn) {
        float *part = (float *)ds_exec_scratch(e, a->rows * SPLITS * (n_out + 1) * sizeof(float));
        if (a->n == FOUR)
            four(e, a, part);
        else if (a->rows < 3)
            launch(e, products_kernel<1>, dim3((unsigned)a->rows, SPLITS, chunks), PRODUCT_THREADS, 0, *a, part, n_out);
        else
            launch(e, products_kernel<4>, dim3(blocks_of(a->rows, 4), SPLITS, chunks), PRODUCT_THREADS, 0, *a, part, n_out);
        if (a->n != FOUR)
            launch(e, mix_kernel, (unsigned)a->rows, 64, 0, *a, part, n_out);
    }
    launched(e, "mhc");
    ds_arena_rewind(e->scratch, mark);
}

size_t ds_mhc_cuda_scratch(const ds_kern_limits *lim)
{
    return (size_t)lim->max_rows * SPLITS * ((2 + (size_t)lim->n) * lim->n + 1) * sizeof(float) + 64;
}

static __global__ void mean_kernel(ds_op_stream_mean a, bool bf16)
{
    after_others();
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, r = i / a.d, c = i % a.d;
    float v = 0.0f;

    if (r >= a.rows)
        return;
    for (uint32_t k = 0; k < a.n; k++)
        v += a.X[(r * a.n + k) * a.d + c];
    a.t[r * a.ldt + c] = rounded(bf16, v / (float)a.n);
}

void ds_stream_mean_cuda(ds_exec *e, const ds_op_stream_mean *a)
{
    if (!a->rows)
        return;
    launch(e, mean_kernel, blocks_of(a->rows * a->d, THREADS), THREADS, 0, *a, e->bf16);
    launched(e, "stream_mean");
}
