/* Cache records: quantising, pooling, storing (spec 3.8, 3.9, 4.4). Bytes as the scalar code of format/numfmt. A
 * warp has a record at a time; a lane quantises whole groups' codes where a group fits one. All are bound by
 * latency: a step writes a few hundred records. */
#include "common.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

/* ---- formats, as numfmt.h ---- */

static __device__ __forceinline__ uint32_t e4m3_from(float x)
{
    uint32_t u = bits_of(x), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return sign | 0x7fu;
    if (a < 0x3c800000u) /* below 2^-6: multiples of 2^-9, which is the last place of 2^14 + a */
        return sign | (bits_of(__fadd_rn(float_of(a), 16384.0f)) - 0x46800000u);
    return sign | min(((a + 0x7ffffu + (a >> 20 & 1u)) >> 20) - (120u << 3), 0x7eu);
}

static __device__ __forceinline__ uint32_t e2m1_from(float x)
{
    uint32_t u = bits_of(x), sign = u >> 28 & 8u, a = u & 0x7fffffffu;
    if (a < 0x3f800000u) /* below 1: multiples of 0.5, which is the last place of 2^22 + a */
        return sign | (bits_of(__fadd_rn(float_of(a), 4194304.0f)) - 0x4a800000u);
    return sign | min(((a + 0x1fffffu + (a >> 22 & 1u)) >> 22) - 252u, 7u);
}

static __device__ __forceinline__ uint32_t e8m0_ceil(float x)
{
    uint32_t u = bits_of(x) & 0x7fffffffu;
    if (u >= 0x7f800000u)
        return 255;
    if (u <= 0x00400000u)
        return 0;
    return min((u >> 23) + ((u & 0x7fffffu) != 0), 254u);
}

static __device__ __forceinline__ float e8m0_inverse(uint32_t code)
{
    return float_of(code == 254 ? 0x00400000u : (254 - code) << 23);
}

/* Largest |x| of n values, at least `least`; NaN counts as larger than infinity. */
static __device__ __forceinline__ float amax_of(const float *x, int n, float least)
{
    uint32_t m = bits_of(least);
    for (int i = 0; i < n; i++)
        m = max(m, bits_of(x[i]) & 0x7fffffffu);
    return float_of(m);
}

/* One group each; `codes` of n/2 bytes. */
static __device__ void fp8_group(uint8_t *codes, uint8_t *scale, const float *x)
{
    uint32_t s = e8m0_ceil(__fmul_rn(amax_of(x, 32, 1e-4f), 1.0f / 448.0f));
    *scale = (uint8_t)s;
    for (int i = 0; i < 32; i++)
        codes[i] = s == 255 ? 0 : (uint8_t)e4m3_from(__fmul_rn(x[i], e8m0_inverse(s)));
}

static __device__ void mxfp4_group(uint8_t *codes, uint8_t *scale, const float *x)
{
    uint32_t s = e8m0_ceil(__fdiv_rn(amax_of(x, 32, 0x1.8p-124f), 6.0f));
    float inv = e8m0_inverse(s);
    *scale = (uint8_t)s;
    for (int i = 0; i < 16; i++)
        codes[i] = s == 255 ? 0 : (uint8_t)(e2m1_from(__fmul_rn(x[2 * i], inv)) | e2m1_from(__fmul_rn(x[2 * i + 1], inv)) << 4);
}

static __device__ void kvfp4_group(uint8_t *codes, uint8_t *scale, const float *x)
{
    float amax = amax_of(x, 16, 0x1.8p-7f);
    bool bad = bits_of(amax) >= 0x7f800000u;
    uint32_t s = bad ? 0x7fu : e4m3_from(__fdiv_rn(amax, 6.0f));
    float v = e4m3_value(s);
    *scale = (uint8_t)s;
    for (int i = 0; i < 8; i++)
        codes[i] = bad ? 0 : (uint8_t)(e2m1_from(__fdiv_rn(x[2 * i], v)) | e2m1_from(__fdiv_rn(x[2 * i + 1], v)) << 4);
}

typedef enum { WINDOW, MAIN, INDEX } rec_kind;

/* Group g of a record. */
static __device__ void quantise(rec_kind kind, uint8_t *rec, const float *x, uint32_t dim, uint32_t g)
{
    if (kind == WINDOW)
        fp8_group(rec + g * 32, rec + dim + g, x + g * 32);
    else if (kind == INDEX)
        mxfp4_group(rec + g * 16, rec + dim / 2 + g, x + g * 32);
    else
        kvfp4_group(rec + g * 8, rec + dim / 2 + g, x + g * 16);
}

static inline uint32_t groups_of(rec_kind kind, uint32_t dim)
{
    return dim / (kind == MAIN ? 16 : 32);
}

/* ---- quantisers: a thread a group ---- */

static __global__ void quant_kernel(rec_kind kind, uint8_t *rec, size_t rec_bytes, const float *x, size_t ldx, size_t rows, uint32_t dim,
                                    uint32_t groups)
{
    after_others();
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, r = i / groups;
    if (r < rows)
        quantise(kind, rec + r * rec_bytes, x + r * ldx, dim, (uint32_t)(i % groups));
}

void ds_win_quant_cuda(ds_exec *e, const ds_op_win_quant *a)
{
    uint32_t groups = groups_of(WINDOW, a->dim);
    if (!a->rows)
        return;
    launch(e, quant_kernel, blocks_of(a->rows * groups, THREADS), THREADS, 0, WINDOW, a->rec, DS_WIN_REC(a->dim), a->x, a->ldx,
                                                                                     a->rows, a->dim, groups);
    launched(e, "win_quant");
}

void ds_idx_quant_cuda(ds_exec *e, const ds_op_idx_quant *a)
{
    uint32_t groups = groups_of(INDEX, a->dim);
    if (!a->n)
        return;
    launch(e, quant_kernel, blocks_of(a->n * groups, THREADS), THREADS, 0, INDEX, a->rec, DS_IDX_REC(a->dim), a->x, a->dim, a->n,
                                                                                  a->dim, groups);
    launched(e, "idx_quant");
}

static __global__ void store_kernel(rec_kind kind, ds_step st, ds_kv_view kv, const float *x, uint32_t dim, uint32_t groups)
{
    after_others();
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, r = i / groups;
    if (r >= st.n_rows)
        return;
    int32_t p = st.pos[r], ratio = (int32_t)kv.ratio;
    uint32_t s = st.seq[r];
    if ((p + 1) % ratio == 0 && p >= st.store_from[s])
        quantise(kind, kv_at(kv, st, s, (uint32_t)(p / ratio)), x + (size_t)r * dim, dim, i % groups);
}

static void store(ds_exec *e, const ds_op_kv_store *a, rec_kind kind)
{
    uint32_t groups = groups_of(kind, a->dim);
    if (!a->step->n_rows)
        return;
    launch(e, store_kernel, blocks_of((size_t)a->step->n_rows * groups, THREADS), THREADS, 0, kind, *a->step, a->kv, a->x, a->dim,
                                                                                                     groups);
    launched(e, "kv_store");
}

void ds_kv_store_cuda(ds_exec *e, const ds_op_kv_store *a)
{
    store(e, a, MAIN);
}

void ds_idx_store_cuda(ds_exec *e, const ds_op_kv_store *a)
{
    store(e, a, INDEX);
}

/* ---- rings: a block a row, bytes ---- */

static __global__ void ring_store_kernel(ds_step st, ds_op_ring_store a)
{
    after_others();
    uint32_t r = blockIdx.x, slot = a.slot[st.seq[r]];
    if (slot == DS_NONE || !stays_in_ring(st, r, a.ring.len))
        return;
    uint8_t *to = ring_at(a.ring, slot, st.pos[r]);
    for (uint32_t i = threadIdx.x; i < a.ring.rec_bytes; i += blockDim.x)
        to[i] = ((const uint8_t *)a.src)[r * a.src_bytes + i];
}

void ds_ring_store_cuda(ds_exec *e, const ds_op_ring_store *a)
{
    if (!a->step->n_rows)
        return;
    launch(e, ring_store_kernel, a->step->n_rows, 128, 0, *a->step, *a);
    launched(e, "ring_store");
}

static __global__ void ring_load_kernel(ds_step st, ds_op_ring_load a)
{
    after_others();
    uint32_t r = blockIdx.x, slot = a.slot[st.seq[r]];
    if (slot == DS_NONE)
        return;
    const uint8_t *from = ring_at(a.ring, slot, st.pos[r]);
    for (uint32_t i = threadIdx.x; i < a.ring.rec_bytes; i += blockDim.x)
        ((uint8_t *)a.dst)[r * a.dst_bytes + i] = from[i];
}

void ds_ring_load_cuda(ds_exec *e, const ds_op_ring_load *a)
{
    if (!a->step->n_rows)
        return;
    launch(e, ring_load_kernel, a->step->n_rows, 128, 0, *a->step, *a);
    launched(e, "ring_load");
}

/* ---- pairs ---- */

static __global__ void pool_kernel(ds_step st, ds_op_pool_pairs a, ds_fault *f, bool bf16)
{
    after_others();
    uint32_t r = blockIdx.x, s = st.seq[r];
    int32_t p = st.pos[r];
    const float *k1 = a.k + (size_t)r * a.dim, *z1 = a.z + (size_t)r * a.dim, *k0 = NULL, *z0 = NULL;

    if (p % 2 != 0 && p >= st.store_from[s]) {
        if (r > st.row0[s]) {
            k0 = k1 - a.dim;
            z0 = z1 - a.dim;
        } else {
            const uint8_t *rec = st.slot[s] == DS_NONE ? NULL : ring_at(a.open, st.slot[s], p - 1);
            if (rec && *(const int32_t *)rec == p - 1) {
                k0 = (const float *)(rec + 64);
                z0 = k0 + a.dim;
            } else if (threadIdx.x == 0) {
                fault(f, DS_FAULT_GROUP, a.tag, p - 1);
            }
        }
    }
    for (uint32_t c = threadIdx.x; c < a.dim; c += blockDim.x) {
        float u = 0.0f;
        if (k0) {
            float max = fmaxf(z0[c], z1[c]), w0 = expf(z0[c] - max), w1 = expf(z1[c] - max);
            u = rounded(bf16, (w0 * k0[c] + w1 * k1[c]) / (w0 + w1));
        }
        a.u[(size_t)r * a.dim + c] = u;
    }
}

static __global__ void open_kernel(ds_step st, ds_op_pool_pairs a)
{
    after_others();
    uint32_t r = blockIdx.x, slot = st.slot[st.seq[r]];
    if (slot == DS_NONE || !stays_in_ring(st, r, a.open.len))
        return;
    uint32_t *rec = (uint32_t *)ring_at(a.open, slot, st.pos[r]);
    for (uint32_t i = threadIdx.x; i < 16; i += blockDim.x)
        rec[i] = i ? 0 : (uint32_t)st.pos[r];
    for (uint32_t c = threadIdx.x; c < a.dim; c += blockDim.x) {
        rec[16 + c] = bits_of(a.k[(size_t)r * a.dim + c]);
        rec[16 + a.dim + c] = bits_of(a.z[(size_t)r * a.dim + c]);
    }
}

/* Two launches: every reader of the old state is done before it is written. */
void ds_pool_pairs_cuda(ds_exec *e, const ds_op_pool_pairs *a)
{
    if (!a->step->n_rows)
        return;
    launch(e, pool_kernel, a->step->n_rows, 128, 0, *a->step, *a, e->fault, e->bf16);
    launch(e, open_kernel, a->step->n_rows, 128, 0, *a->step, *a);
    launched(e, "pool_pairs");
}
