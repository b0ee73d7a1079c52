/* Norms, rotations and everything that goes element by element. All are bound by bytes: a block a row where a row is
 * summed, else a thread an element. No shared memory but for sums. */
#include "common.cuh"

enum { ROW_THREADS = 256 };

static __global__ void rmsnorm_kernel(ds_op_rmsnorm a, bool bf16)
{
    after_others();
    __shared__ float part[33];
    const float *x = a.x + blockIdx.x * a.ldx;
    float *y = a.y + blockIdx.x * a.ldy, ss = 0.0f;

    for (uint32_t c = threadIdx.x; c < a.dim; c += blockDim.x)
        ss += x[c] * x[c];
    float s = 1.0f / sqrtf(block_sum(ss, part) / (float)a.dim + a.eps);
    for (uint32_t c = threadIdx.x; c < a.dim; c += blockDim.x)
        y[c] = rounded(bf16, x[c] * s * a.w[c]);
}

void ds_rmsnorm_cuda(ds_exec *e, const ds_op_rmsnorm *a)
{
    if (!a->rows)
        return;
    launch(e, rmsnorm_kernel, (unsigned)a->rows, ROW_THREADS, 0, *a, e->bf16);
    launched(e, "rmsnorm");
}

static __global__ void rope_kernel(ds_op_rope a, bool bf16)
{
    after_others();
    uint32_t half = a.tab.rd / 2;
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, r = i / ((size_t)a.heads * half);
    uint32_t h = (uint32_t)(i / half % a.heads), p = (uint32_t)(i % half);

    if (r >= a.rows)
        return;
    int32_t at = a.pos[r] + a.shift;
    const float *cs = a.tab.cs + (size_t)(at < 0 ? 0 : at) * a.tab.rd + 2 * p;
    float *x = a.x + r * a.ldx + (size_t)h * a.dim + (a.dim - a.tab.rd) + 2 * p;
    float c = cs[0], s = a.inverse ? -cs[1] : cs[1], u = x[0], v = x[1];
    x[0] = rounded(bf16, u * c - v * s);
    x[1] = rounded(bf16, u * s + v * c);
}

void ds_rope_cuda(ds_exec *e, const ds_op_rope *a)
{
    size_t n = a->rows * a->heads * (a->tab.rd / 2);
    if (!n)
        return;
    launch(e, rope_kernel, blocks_of(n, ROW_THREADS), ROW_THREADS, 0, *a, e->bf16);
    launched(e, "rope");
}

static __global__ void add_kernel(ds_op_add a)
{
    after_others();
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < a.n)
        a.y[i] += a.x[i];
}

void ds_add_cuda(ds_exec *e, const ds_op_add *a)
{
    if (!a->n)
        return;
    launch(e, add_kernel, blocks_of(a->n, ROW_THREADS), ROW_THREADS, 0, *a);
    launched(e, "add");
}

static __global__ void swiglu_kernel(ds_op_swiglu a, bool bf16)
{
    after_others();
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, r = i / a.n, c = i % a.n;
    if (r < a.rows)
        a.h[r * a.ldh + c] = rounded(bf16, silu(bound_gate(a.g[r * a.ldg + c], a.limit)) * bound_up(a.u[r * a.ldu + c], a.limit));
}

void ds_swiglu_cuda(ds_exec *e, const ds_op_swiglu *a)
{
    if (!a->rows)
        return;
    launch(e, swiglu_kernel, blocks_of(a->rows * a->n, ROW_THREADS), ROW_THREADS, 0, *a, e->bf16);
    launched(e, "swiglu");
}

/* 1 + erf(v) = erfc(-v), which keeps its digits for negative v. */
static __global__ void gelu_kernel(ds_op_gelu a, bool bf16)
{
    after_others();
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < a.n)
        a.x[i] = rounded(bf16, a.x[i] * 0.5f * erfcf(a.x[i] * -0.70710678118654752f));
}

void ds_gelu_cuda(ds_exec *e, const ds_op_gelu *a)
{
    if (!a->n)
        return;
    launch(e, gelu_kernel, blocks_of(a->n, ROW_THREADS), ROW_THREADS, 0, *a, e->bf16);
    launched(e, "gelu");
}

static __global__ void argmax_kernel(ds_op_argmax a)
{
    after_others();
    __shared__ best_place part[33];
    const float *x = a.x + blockIdx.x * a.ldx;
    best_place p = { 0.0, -1 };

    for (uint32_t i = threadIdx.x; i < a.n; i += blockDim.x)
        p = better(p, { x[i], (int)i });
    p = block_best(p, part);
    if (threadIdx.x == 0)
        a.id[blockIdx.x] = p.at;
}

void ds_argmax_cuda(ds_exec *e, const ds_op_argmax *a)
{
    if (!a->rows)
        return;
    launch(e, argmax_kernel, (unsigned)a->rows, 1024, 0, *a);
    launched(e, "argmax");
}

static __global__ void copy_kernel(ds_op_copy a)
{
    after_others();
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, r = i / a.n, c = i % a.n;
    if (r < a.rows)
        ((uint32_t *)a.dst)[r * a.ldd + c] = ((const uint32_t *)a.src)[(a.index ? a.index[r] : r) * a.lds + c];
}

void ds_copy_cuda(ds_exec *e, const ds_op_copy *a)
{
    if (!a->rows || !a->n)
        return;
    launch(e, copy_kernel, blocks_of(a->rows * a->n, ROW_THREADS), ROW_THREADS, 0, *a);
    launched(e, "copy");
}
