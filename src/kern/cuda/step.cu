/* What a step begins and ends with: metadata of rows (a block a sequence), small records put in their places (a
 * thread a byte), a look for values that aren't finite (16 bytes a thread and turn), draft blocks behind what was
 * drawn (a thread a sequence). Bound by the launch, and the look by bytes. */
#include "common.cuh"

enum { THREADS = 128, LOOK_THREADS = 256, LOOK_EACH = 16 };

/* ---- rows ---- */

static __global__ void rows_kernel(ds_op_rows a)
{
    after_others();
    uint32_t s = blockIdx.x, t = threadIdx.x;
    ds_seq_rows q = a.seq[s];

    if (t == 0) {
        a.pos0[s] = q.pos0;
        a.row0[s] = q.row0;
        a.count[s] = q.count;
        a.slot[s] = q.slot;
        a.tail[s] = q.tail;
        a.win_lo[s] = q.win_lo;
        a.dec_lo[s] = q.dec_lo;
        a.store_from[s] = q.store_from;
    }
    for (uint32_t i = t; i < q.n_blocks; i += blockDim.x)
        a.blocks[s * a.blocks_ld + i] = a.block[q.block0 + i];
    for (uint32_t k = t; k < q.count; k += blockDim.x) {
        uint32_t r = q.row0 + k;
        int32_t p = q.pos0 + (int32_t)k;
        a.pos[r] = p;
        a.of_seq[r] = s;
        if (a.id_in) {
            a.id[r] = a.id_in[r];
            a.dead[r] = a.id_in[r] < 0;
        } else {
            uint32_t index = p >= q.src_pos ? q.src_row + (uint32_t)(p - q.src_pos) : 0;
            a.id[r] = 0;
            a.index[r] = index;
            a.dead[r] = a.dead_in[index];
        }
    }
}

void ds_rows_cuda(ds_exec *e, const ds_op_rows *a)
{
    if (!a->n_seqs)
        return;
    launch(e, rows_kernel, a->n_seqs, THREADS, 0, *a);
    launched(e, "rows");
}

/* ---- scatter ---- */

static __global__ void scatter_kernel(ds_op_scatter a)
{
    after_others();
    size_t at = blockIdx.x * (size_t)blockDim.x + threadIdx.x, i = at / a.bytes;
    if (i < a.n)
        ((uint8_t *)a.dst)[a.off[i] + at % a.bytes] = ((const uint8_t *)a.src)[at];
}

void ds_scatter_cuda(ds_exec *e, const ds_op_scatter *a)
{
    if (!a->n || !a->bytes)
        return;
    launch(e, scatter_kernel, blocks_of(a->n * a->bytes, THREADS), THREADS, 0, *a);
    launched(e, "scatter");
}

/* ---- finite ---- */

static __global__ void finite_kernel(ds_op_finite a, ds_fault *f)
{
    after_others();
    size_t r = blockIdx.y, end = min(a.n, (size_t)(blockIdx.x + 1) * LOOK_THREADS * LOOK_EACH);
    const float *x = a.x + r * a.ldx;

    for (size_t i = blockIdx.x * (size_t)LOOK_THREADS * LOOK_EACH + threadIdx.x; i < end; i += LOOK_THREADS)
        if (!isfinite(x[i]))
            fault(f, DS_FAULT_FINITE, a.tag, (int64_t)(r * a.n + i));
}

void ds_finite_cuda(ds_exec *e, const ds_op_finite *a)
{
    if (!a->rows || !a->n)
        return;
    launch(e, finite_kernel, dim3(blocks_of(a->n, LOOK_THREADS * LOOK_EACH), (unsigned)a->rows), LOOK_THREADS, 0, *a, e->fault);
    launched(e, "finite");
}

/* ---- accept ---- */

static __global__ void accept_kernel(ds_op_accept a)
{
    after_others();
    uint32_t s = blockIdx.x * blockDim.x + threadIdx.x;

    if (s >= a.n)
        return;
    ds_seq_rows q = a.first[s];
    uint32_t n = a.drawn[s].n, more = n > 1 ? n - 1 : 0;
    q.pos0 += (int32_t)more;
    a.seq[s] = q;
    for (uint32_t k = 0; k < q.count; k++)
        a.id[s * q.count + k] = k > 0 ? a.fill : (n ? a.drawn[s].token[n - 1] : 0);
    if (a.draw)
        a.draw[s].index += more;
}

void ds_accept_cuda(ds_exec *e, const ds_op_accept *a)
{
    if (!a->n)
        return;
    launch(e, accept_kernel, blocks_of(a->n, 32), 32, 0, *a);
    launched(e, "accept");
}
