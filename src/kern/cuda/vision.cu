/* Vision tower (spec 3.15). It runs once an image, so these are plain: a thread a pair, a warp a (patch, head). */
#include "common.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, MAX_DIM = 256 };

static __global__ void rope2d_kernel(ds_op_rope2d a, bool bf16)
{
    after_others();
    uint32_t half = a.dim / 2, quarter = a.dim / 4;
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, r = i / ((size_t)a.heads * half);
    uint32_t h = (uint32_t)(i / half % a.heads), p = (uint32_t)(i % half);

    if (r >= a.rows)
        return;
    const float *cs = a.cs + (p < quarter ? r / a.n_w * quarter + p : r % a.n_w * quarter + (p - quarter)) * 2;
    float *x = a.x + r * a.ldx + (size_t)h * a.dim + p, u = x[0], v = x[half];
    x[0] = rounded(bf16, u * cs[0] - v * cs[1]);
    x[half] = rounded(bf16, v * cs[0] + u * cs[1]);
}

void ds_rope2d_cuda(ds_exec *e, const ds_op_rope2d *a)
{
    size_t n = a->rows * a->heads * (a->dim / 2);
    if (!n)
        return;
    launch(e, rope2d_kernel, blocks_of(n, THREADS), THREADS, 0, *a, e->bf16);
    launched(e, "rope2d");
}

/* A warp has one query; 32 keys at a time, a lane each for the scores, then all lanes share the columns. Softmax
 * with a running maximum. */
static __global__ void vit_kernel(ds_op_vit_attention a, bool bf16)
{
    after_others();
    uint32_t lane = threadIdx.x % 32;
    size_t i = blockIdx.x * (size_t)WARPS + threadIdx.x / 32, r = i / a.heads, h = i % a.heads;
    float acc[MAX_DIM / 32] = { 0 }, max = -CUDART_INF_F, sum = 0.0f;

    if (r >= a.n)
        return;
    const float *q = a.q + r * a.ld + h * a.dim;
    for (size_t t0 = 0; t0 < a.n; t0 += 32) {
        size_t t = t0 + lane, n = a.n - t0 < 32 ? a.n - t0 : 32;
        const float *k = a.k + (t < a.n ? t : 0) * a.ld + h * a.dim;
        float s = 0.0f, most;
        for (uint32_t c = 0; c < a.dim; c++)
            s += q[c] * k[c];
        s = t < a.n ? s * a.scale : -CUDART_INF_F;
        most = s;
        for (int o = 16; o; o >>= 1)
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, o));
        most = fmaxf(most, max);
        float old = expf(max - most), p = t < a.n ? expf(s - most) : 0.0f;
        max = most;
        sum = sum * old + warp_sum(p);
#pragma unroll
        for (int j = 0; j < MAX_DIM / 32; j++)
            acc[j] *= old;
        for (uint32_t x = 0; x < n; x++) {
            float w = __shfl_sync(0xffffffffu, p, x);
            const float *v = a.v + (t0 + x) * a.ld + h * a.dim;
#pragma unroll
            for (int j = 0; j < MAX_DIM / 32; j++)
                if (j * 32 + lane < a.dim)
                    acc[j] += w * v[j * 32 + lane];
        }
    }
#pragma unroll
    for (int j = 0; j < MAX_DIM / 32; j++)
        if (j * 32 + lane < a.dim)
            a.o[r * a.heads * a.dim + h * a.dim + j * 32 + lane] = rounded(bf16, acc[j] / sum);
}

void ds_vit_attention_cuda(ds_exec *e, const ds_op_vit_attention *a)
{
    if (!a->n)
        return;
    launch(e, vit_kernel, blocks_of(a->n * a->heads, WARPS), THREADS, 0, *a, e->bf16);
    launched(e, "vit_attention");
}

static __global__ void cells_kernel(ds_op_cells a, size_t n, uint32_t gw)
{
    after_others();
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, each = (size_t)a.dim * a.s * a.s, cell = i / each;
    if (i >= n)
        return;
    uint32_t c = (uint32_t)(i % each / (a.s * a.s)), dy = (uint32_t)(i % each / a.s % a.s), dx = (uint32_t)(i % a.s);
    size_t y = cell / gw * a.s + dy, x = cell % gw * a.s + dx;
    a.out[i] = y < a.n_h && x < a.n_w ? a.x[(y * a.n_w + x) * a.dim + c] : 0.0f;
}

void ds_cells_cuda(ds_exec *e, const ds_op_cells *a)
{
    size_t gh = (a->n_h + a->s - 1) / a->s, gw = (a->n_w + a->s - 1) / a->s, n = gh * gw * a->dim * a->s * a->s;
    if (!n)
        return;
    launch(e, cells_kernel, blocks_of(n, THREADS), THREADS, 0, *a, n, (uint32_t)gw);
    launched(e, "cells");
}
