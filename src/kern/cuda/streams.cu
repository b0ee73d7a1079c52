/* Embedding rows and the residual streams (spec 3.3, 3.4). */
#include "common.cuh"

enum { THREADS = 256, MAX_STREAMS = 8, MAX_OUTS = (2 + MAX_STREAMS) * MAX_STREAMS };

/* ---- embed: a block a row ---- */

static __global__ void embed_kernel(ds_op_embed a, ds_mat t, ds_fault *f, bool bf16)
{
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
    embed_kernel<<<(unsigned)a->rows, THREADS, 0, stream_of(e)>>>(*a, *a->table, e->fault, e->bf16);
    launched(e, "embed");
}

/* ---- mHC ---- Three kernels: the streams (parts 1 and 2, a thread a column), the products with fn (a block a piece
 * of the streams, RB rows and 8 outputs), then the mix (a block a row). The streams are cut into SPLITS pieces
 * whatever the number of rows, whose sums are added in order; fn comes through the L2 once for RB rows. Bound by
 * bytes of X with many rows, by those of fn with few. */

enum { SPLITS = 8, OUTS = 8, PRODUCT_THREADS = 128 };

template <int N> static __global__ void streams_kernel(ds_op_mhc a, bool bf16)
{
    __shared__ float mix[(2 + N) * N];
    size_t r = blockIdx.y, d = a.d, i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    float *X = a.X + r * N * d, v[N];

    for (uint32_t o = threadIdx.x; o < (2 + N) * N; o += blockDim.x)
        mix[o] = a.mix_in[r * (2 + N) * N + o];
    __syncthreads();
    if (i >= d)
        return;
#pragma unroll
    for (int k = 0; k < N; k++)
        v[k] = X[k * d + i];
    if (a.y) {
        float old[N], y = a.y[r * d + i];
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
            X[k * d + i] = v[k];
        }
    }
    if (a.x) {
        float s = 0.0f;
#pragma unroll
        for (int k = 0; k < N; k++)
            s += mix[k] * v[k];
        a.x[r * d + i] = rounded(bf16, s);
    }
}

template <int RB> static __global__ void products_kernel(ds_op_mhc a, float *part, uint32_t n_out)
{
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

void ds_mhc_cuda(ds_exec *e, const ds_op_mhc *a)
{
    typedef void streams_fn(ds_op_mhc, bool);
    static streams_fn *const streams[] = { streams_kernel<1>, streams_kernel<2>, streams_kernel<3>, streams_kernel<4>,
                                           streams_kernel<5>, streams_kernel<6>, streams_kernel<7>, streams_kernel<8> };
    size_t mark = ds_arena_mark(e->scratch);
    uint32_t n_out = (2 + a->n) * a->n, chunks = (n_out + OUTS - 1) / OUTS;

    if (!a->rows)
        return;
    if (a->y || a->x)
        streams[a->n - 1]<<<dim3(blocks_of(a->d, THREADS), (unsigned)a->rows), THREADS, 0, stream_of(e)>>>(*a, e->bf16);
    if (a->fn) {
        float *part = (float *)ds_exec_scratch(e, a->rows * SPLITS * (n_out + 1) * sizeof(float));
        if (a->rows < 3)
            products_kernel<1><<<dim3((unsigned)a->rows, SPLITS, chunks), PRODUCT_THREADS, 0, stream_of(e)>>>(*a, part, n_out);
        else
            products_kernel<4><<<dim3(blocks_of(a->rows, 4), SPLITS, chunks), PRODUCT_THREADS, 0, stream_of(e)>>>(*a, part, n_out);
        mix_kernel<<<(unsigned)a->rows, 64, 0, stream_of(e)>>>(*a, part, n_out);
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
    mean_kernel<<<blocks_of(a->rows * a->d, THREADS), THREADS, 0, stream_of(e)>>>(*a, e->bf16);
    launched(e, "stream_mean");
}
