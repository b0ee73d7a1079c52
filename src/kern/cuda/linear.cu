/* Linear layers. FP8 in bf16 mode: linear_fp8.cu, but for odd widths. Other types of product.cuh, and those, go to
 * the tensor cores: a block has 32 outputs, its warps share the inputs, and up to 64 rows pass at once. All else
 * (f32 activations, f32 weights, odd widths) is a warp an output with a chain of f32 FMAs a lane. Bound by bytes of
 * the weight up to some 16 rows, then by activations that come through the L2 for every 32 outputs. */
#include "linear_fp8.cuh"
#include "product.cuh"

static __global__ void to_bf16_kernel(uint16_t *dst, const float *x, size_t rows, size_t ldx, size_t n, ds_mat_type type)
{
    after_others();
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, r = i / n, c = i % n;
    if (r < rows)
        dst[r * n + (c & ~(size_t)7) + place_of(type, c & 7)] = (uint16_t)bf16_bits(x[r * ldx + c]);
}

void ds_cuda_to_bf16(ds_exec *e, uint16_t *dst, const float *x, size_t rows, size_t ldx, size_t n, ds_mat_type type)
{
    launch(e, to_bf16_kernel, blocks_of(rows * n, 256), 256, 0, dst, x, rows, ldx, n, type);
}

typedef struct {
    ds_op_linear a;
    weight w;
    const uint16_t *x; /* [rows][groups * in] */
    uint32_t tiles;    /* of a group: pairs of 16 outputs */
    bool bf16;
} args;

static __device__ __forceinline__ void put(const ds_op_linear &a, bool bf16, size_t r, size_t o, float v)
{
    float *y = a.y + r * a.ldy + o;
    if (a.bias)
        v += a.bias[o];
    if (a.add)
        v += *y;
    *y = a.round ? rounded(bf16, v) : v;
}

template <ds_mat_type T, int NT>
static __global__ void __launch_bounds__(PRODUCT_THREADS, NT == 8 ? 1 : 2) linear_kernel(const __grid_constant__ args j)
{
    after_others();
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ float red[WARPS][PAIR][8];
    uint64_t per_group = j.w.out / j.a.groups;
    uint32_t group = blockIdx.x / j.tiles, g = threadIdx.x % 32 / 4;
    uint64_t o0[2] = { group * per_group + blockIdx.x % j.tiles * PAIR, 0 }, end = (group + 1) * per_group;
    size_t r0 = (size_t)blockIdx.y * NT * 8;
    weight w[2] = { j.w, j.w };
    const uint16_t *x[NT];
    float acc[2][NT][4];

    o0[1] = o0[0] + TILE;
#pragma unroll
    for (int n = 0; n < NT; n++)
        x[n] = j.x + min(r0 + n * 8 + g, j.a.rows - 1) * j.a.groups * j.w.in + (size_t)group * j.w.in;
    product<T, NT>(acc, w, o0, x, shared);
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float v = add_warps(acc[0][n], acc[1][n], red);
        size_t r = r0 + n * 8 + threadIdx.x % 8;
        uint64_t o = o0[0] + threadIdx.x / 8;
        if (r < j.a.rows && o < end)
            put(j.a, j.bf16, r, o, v);
    }
}

/* Many rows: a block has 128 outputs and 64 rows. */
template <ds_mat_type T> static __global__ void __launch_bounds__(PRODUCT_THREADS, 2) wide_kernel(const __grid_constant__ args j)
{
    after_others();
    extern __shared__ __align__(16) unsigned char shared[];
    uint64_t per_group = j.w.out / j.a.groups;
    uint32_t tiles = (j.tiles * PAIR + WARPS * TILE - 1) / (WARPS * TILE), group = blockIdx.x / tiles;
    uint64_t o0[1] = { group * per_group + (blockIdx.x % tiles * WARPS + threadIdx.x / 32) * (uint64_t)TILE },
             end = (group + 1) * per_group;
    size_t r0 = (size_t)blockIdx.y * 64;
    float y[1][8][4];

    product_wide<T, 1, 8>(
        y, &j.w, o0, [&](uint32_t i) { return j.x + min(r0 + i, j.a.rows - 1) * j.a.groups * j.w.in + (size_t)group * j.w.in; }, shared);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            size_t r = r0 + n * 8 + row_of(k);
            uint64_t o = o0[0] + out_of(k);
            if (r < j.a.rows && o < end)
                put(j.a, j.bf16, r, o, y[0][n][k]);
        }
}

typedef void narrow_kernel(args);

/* The kernels give the same bits. */
template <ds_mat_type T> static void launch(ds_exec *e, const args *j)
{
    unsigned x = j->tiles * j->a.groups, wide_x = blocks_of((size_t)j->tiles * PAIR, WARPS * TILE) * j->a.groups;
    size_t rows = j->a.rows;
    if (rows <= (T == DS_MAT_FP8_32X32 ? 511 : 128)) { /* as measured */
        narrow_kernel *f = rows <= 8    ? linear_kernel<T, 1>
                           : rows <= 16 ? linear_kernel<T, 2>
                           : rows <= 32 ? linear_kernel<T, 4>
                                        : linear_kernel<T, 8>;
        cudaFuncSetAttribute((const void *)f, cudaFuncAttributeMaxDynamicSharedMemorySize, NARROW_BYTES);
        launch(e, f, dim3(x, blocks_of(rows, 64)), PRODUCT_THREADS, NARROW_BYTES, *j);
    } else {
        cudaFuncSetAttribute((const void *)wide_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)wide<T, 1, 8>::bytes);
        launch(e, wide_kernel<T>, dim3(wide_x, blocks_of(rows, 64)), PRODUCT_THREADS, wide<T, 1, 8>::bytes, *j);
    }
}

/* ---- everything else ---- */

enum { LINEAR_THREADS = 256 };

/* RB rows at once share the decoded weight; a row's chain is the same whatever RB. */
template <int RB> static __global__ void plain_kernel(ds_op_linear a, ds_mat w, bool bf16)
{
    after_others();
    uint64_t o = blockIdx.x * (uint64_t)(LINEAR_THREADS / 32) + threadIdx.x / 32;
    uint32_t lane = threadIdx.x % 32;
    size_t r0 = (size_t)blockIdx.y * RB;
    float acc[RB] = { 0 };

    if (o >= w.out)
        return;
    const float *x = a.x + o / (w.out / a.groups) * w.in;
    for (uint32_t k = lane; k < w.in; k += 32) {
        float v = mat_value(w.type, (const uint8_t *)w.data, w.scale, w.in, o, k);
#pragma unroll
        for (int r = 0; r < RB; r++)
            acc[r] += v * x[min(r0 + r, a.rows - 1) * a.ldx + k];
    }
#pragma unroll
    for (int r = 0; r < RB; r++) {
        float v = warp_sum(acc[r]);
        if (lane == 0 && r0 + r < a.rows)
            put(a, bf16, r0 + r, o, v);
    }
}

static void plain(ds_exec *e, const ds_op_linear *a)
{
    unsigned x = blocks_of(a->w->out, LINEAR_THREADS / 32);
    if (a->rows == 1)
        launch(e, plain_kernel<1>, dim3(x, 1), LINEAR_THREADS, 0, *a, *a->w, e->bf16);
    else
        launch(e, plain_kernel<8>, dim3(x, blocks_of(a->rows, 8)), LINEAR_THREADS, 0, *a, *a->w, e->bf16);
}

void ds_linear_cuda(ds_exec *e, const ds_op_linear *a)
{
    size_t mark = ds_arena_mark(e->scratch), n = (size_t)a->groups * a->w->in;
    const ds_mat *w = a->w;

    if (!a->rows)
        return;
    if (!e->bf16 || !has_product(w)) {
        plain(e, a);
    } else if (ds_linear_fp8_takes(a)) {
        ds_linear_fp8(e, a);
    } else {
        uint16_t *x = (uint16_t *)ds_exec_scratch(e, a->rows * n * sizeof *x);
        args j = { *a, { (const uint8_t *)w->data, w->scale, w->in, w->out }, x, 0, e->bf16 };
        j.tiles = (uint32_t)blocks_of(w->out / a->groups, PAIR);
        ds_cuda_to_bf16(e, x, a->x, a->rows, a->ldx, n, w->type);
        if (w->type == DS_MAT_MXFP4)
            launch<DS_MAT_MXFP4>(e, &j);
        else if (w->type == DS_MAT_FP8_32X32)
            launch<DS_MAT_FP8_32X32>(e, &j);
        else
            launch<DS_MAT_BF16>(e, &j);
    }
    launched(e, "linear");
    ds_arena_rewind(e->scratch, mark);
}

size_t ds_linear_cuda_scratch(const ds_kern_limits *lim)
{
    size_t in = lim->widest_in > lim->heads * lim->head_dim ? lim->widest_in : (size_t)lim->heads * lim->head_dim;
    return ds_linear_fp8_scratch(lim->max_rows, in);
}

static __global__ void dequant_kernel(ds_op_dequant a, ds_mat w)
{
    after_others();
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, r = i / w.in, c = i % w.in;
    if (r < a.rows)
        a.dst[i] = mat_value(w.type, (const uint8_t *)w.data, w.scale, w.in, a.row0 + r, c);
}

void ds_dequant_cuda(ds_exec *e, const ds_op_dequant *a)
{
    if (!a->rows)
        return;
    launch(e, dequant_kernel, blocks_of(a->rows * a->w->in, 256), 256, 0, *a, *a->w);
    launched(e, "dequant");
}
