/* Engram: n-gram hashes, table rows, gate (spec 3.12). */
#include "common.cuh"

enum { THREADS = 128, MAX_NGRAM = 8, DEAD = -1 };

typedef struct {
    int32_t pos, cls;
} history_rec;

static __device__ int32_t class_of_row(const ds_step &st, const ds_op_engram_hash &a, size_t r)
{
    return st.dead[r] || st.id[r] < 0 ? DEAD : a.map[st.id[r]];
}

static __device__ int32_t class_before(const ds_step &st, const ds_op_engram_hash &a, ds_fault *f, size_t r, uint32_t back)
{
    uint32_t s = st.seq[r];
    int32_t at = st.pos[r] - (int32_t)back;

    if (at >= st.pos0[s])
        return class_of_row(st, a, r - back);
    history_rec rec = { -1, DEAD };
    if (st.slot[s] != DS_NONE)
        rec = *(const history_rec *)ring_at(a.hist, st.slot[s], at);
    if (rec.pos != at) {
        fault(f, DS_FAULT_HISTORY, a.tag, at);
        return DEAD;
    }
    return rec.cls;
}

/* A thread a row: a few dozen integer operations. */
static __global__ void hash_kernel(ds_step st, ds_op_engram_hash a, ds_fault *f)
{
    after_others();
    uint32_t r = blockIdx.x * blockDim.x + threadIdx.x;
    int64_t t[MAX_NGRAM];
    bool open = true;

    if (r >= st.n_rows)
        return;
    for (uint32_t s = 0; s < a.max_ngram; s++) {
        int32_t c = open && (int32_t)s <= st.pos[r] ? class_before(st, a, f, r, s) : DEAD;
        open = open && c != DEAD;
        t[s] = open ? c : a.pad;
    }
    uint64_t *row = a.row + (size_t)r * (a.max_ngram - 1) * a.heads;
    uint64_t h = (uint64_t)t[0] * a.mult[0];
    for (uint32_t o = 1, c = 0; o < a.max_ngram; o++) {
        h ^= (uint64_t)t[o] * a.mult[o];
        for (uint32_t k = 0; k < a.heads; k++, c++)
            row[c] = h % a.prime[c] + a.offset[c];
    }
}

static __global__ void history_kernel(ds_step st, ds_op_engram_hash a)
{
    after_others();
    uint32_t r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= st.n_rows || st.slot[st.seq[r]] == DS_NONE || !stays_in_ring(st, r, a.hist.len))
        return;
    *(history_rec *)ring_at(a.hist, st.slot[st.seq[r]], st.pos[r]) = { st.pos[r], class_of_row(st, a, r) };
}

void ds_engram_hash_cuda(ds_exec *e, const ds_op_engram_hash *a)
{
    unsigned blocks = blocks_of(a->step->n_rows, THREADS);
    if (!blocks)
        return;
    launch(e, hash_kernel, blocks, THREADS, 0, *a->step, *a, e->fault);
    if (a->store) /* after every reader of the old state */
        launch(e, history_kernel, blocks, THREADS, 0, *a->step, *a);
    launched(e, "engram_hash");
}

/* A block a table row. */
static __global__ void gather_kernel(ds_op_engram_gather a, ds_mat t, ds_fault *f, bool bf16)
{
    after_others();
    size_t i = (size_t)blockIdx.x, r = i / a.cols;
    uint64_t row = a.row[i];
    float *y = a.y + i * t.in;
    bool dead = a.dead && a.dead[r], bad = false;

    for (uint32_t c = threadIdx.x; c < t.in; c += blockDim.x) {
        float v = dead ? 0.0f : mat_value(t.type, (const uint8_t *)t.data, t.scale, t.in, row, c);
        bad = bad || !isfinite(v);
        y[c] = rounded(bf16, v);
    }
    if (!__syncthreads_or(bad))
        return;
    for (uint32_t c = threadIdx.x; c < t.in; c += blockDim.x)
        y[c] = 0.0f;
    if (threadIdx.x == 0)
        fault(f, DS_FAULT_VALUE, a.tag, (int64_t)row);
}

void ds_engram_gather_cuda(ds_exec *e, const ds_op_engram_gather *a)
{
    if (!a->rows)
        return;
    launch(e, gather_kernel, (unsigned)(a->rows * a->cols), THREADS, 0, *a, *a->table, e->fault, e->bf16);
    launched(e, "engram_gather");
}

/* A block a (row, stream). Bound by bytes of X and kv. */
static __global__ void fuse_kernel(ds_op_engram_fuse a, bool bf16)
{
    after_others();
    __shared__ float part[33];
    size_t r = blockIdx.x / a.n, s = blockIdx.x % a.n, d = a.d;
    const float *kv = a.kv + r * (a.n + 1) * d, *key = kv + s * d, *val = kv + a.n * d, *qw = a.qw + s * d, *kw = a.kw + s * d;
    float *X = a.X + (r * a.n + s) * d, dot = 0.0f, xx = 0.0f, kk = 0.0f;

    if (a.dead && a.dead[r])
        return;
    for (size_t i = threadIdx.x; i < d; i += blockDim.x) {
        dot += X[i] * qw[i] * kw[i] * key[i];
        xx += X[i] * X[i];
        kk += key[i] * key[i];
    }
    dot = block_sum(dot, part);
    xx = block_sum(xx, part);
    kk = block_sum(kk, part);
    float fd = (float)a.d;
    dot /= sqrtf(xx / fd + a.eps) * sqrtf(kk / fd + a.eps) * sqrtf(fd);
    float root = sqrtf(fmaxf(fabsf(dot), 1e-6f)), gate = sigmoid(dot < 0.0f ? -root : root);
    for (size_t i = threadIdx.x; i < d; i += blockDim.x)
        X[i] = rounded(bf16, X[i] + gate * val[i]);
}

void ds_engram_fuse_cuda(ds_exec *e, const ds_op_engram_fuse *a)
{
    if (!a->rows)
        return;
    launch(e, fuse_kernel, (unsigned)(a->rows * a->n), 256, 0, *a, e->bf16);
    launched(e, "engram_fuse");
}
