/* Cache records: quantising, pooling, storing (spec 3.8, 3.9, 4.4). */
#include <math.h>
#include <string.h>

#include "ref_internal.h"

typedef struct {
    ds_exec *e;
    const void *a;
} job;

/* Row r is among the last `len` rows of its sequence, so that no later row of the step takes its place in a ring. */
static bool stays_in_ring(const ds_step *st, uint32_t r, uint32_t len)
{
    uint32_t s = st->seq[r];
    return st->row0[s] + st->count[s] - r <= len;
}

static void ring_store_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const ds_op_ring_store *a = arg;
    (void)member;
    for (size_t r = begin; r < end; r++) {
        uint32_t slot = a->slot[a->step->seq[r]];
        if (slot != DS_NONE && stays_in_ring(a->step, (uint32_t)r, a->ring.len))
            memcpy(ds_ring_at(&a->ring, slot, a->step->pos[r]), (const uint8_t *)a->src + r * a->src_bytes, a->ring.rec_bytes);
    }
}

void ds_ring_store_ref(ds_exec *e, const ds_op_ring_store *a)
{
    ds_exec_for(e, a->step->n_rows, 1, ring_store_rows, (void *)a);
}

static void ring_load_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const ds_op_ring_load *a = arg;
    (void)member;
    for (size_t r = begin; r < end; r++) {
        uint32_t slot = a->slot[a->step->seq[r]];
        if (slot != DS_NONE)
            memcpy((uint8_t *)a->dst + r * a->dst_bytes, ds_ring_at(&a->ring, slot, a->step->pos[r]), a->ring.rec_bytes);
    }
}

void ds_ring_load_ref(ds_exec *e, const ds_op_ring_load *a)
{
    ds_exec_for(e, a->step->n_rows, 1, ring_load_rows, (void *)a);
}

static void win_quant_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const ds_op_win_quant *a = arg;
    (void)member;
    for (size_t r = begin; r < end; r++)
        ds_kv_window_pack(a->rec + r * DS_WIN_REC(a->dim), a->x + r * a->ldx, a->dim);
}

void ds_win_quant_ref(ds_exec *e, const ds_op_win_quant *a)
{
    ds_exec_for(e, a->rows, 1, win_quant_rows, (void *)a);
}

static void idx_quant_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const ds_op_idx_quant *a = arg;
    (void)member;
    for (size_t i = begin; i < end; i++)
        ds_kv_index_pack(a->rec + i * DS_IDX_REC(a->dim), a->x + i * a->dim, a->dim);
}

void ds_idx_quant_ref(ds_exec *e, const ds_op_idx_quant *a)
{
    ds_exec_for(e, a->n, 1, idx_quant_rows, (void *)a);
}

static void pool_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_pool_pairs *a = j->a;
    const ds_step *st = a->step;
    size_t dim = a->dim;
    (void)member;
    for (size_t r = begin; r < end; r++) {
        uint32_t s = st->seq[r];
        int32_t p = st->pos[r], partner = -1;
        const float *k1 = a->k + r * dim, *z1 = a->z + r * dim, *k0, *z0;
        float *u = a->u + r * dim;
        memset(u, 0, dim * sizeof *u);
        if (p % 2 == 0 || p < st->store_from[s])
            continue;
        if (r > st->row0[s]) {
            k0 = k1 - dim;
            z0 = z1 - dim;
        } else {
            const uint8_t *rec = st->slot[s] == DS_NONE ? NULL : ds_ring_at(&a->open, st->slot[s], p - 1);
            if (rec)
                memcpy(&partner, rec, sizeof partner);
            if (partner != p - 1) {
                ds_exec_fault(j->e, DS_FAULT_GROUP, a->tag, p - 1);
                continue;
            }
            k0 = (const float *)(const void *)(rec + 64);
            z0 = k0 + dim;
        }
        for (size_t c = 0; c < dim; c++) {
            double max = fmax(z0[c], z1[c]), w0 = exp(z0[c] - max), w1 = exp(z1[c] - max);
            u[c] = rounded(j->e, (w0 * k0[c] + w1 * k1[c]) / (w0 + w1));
        }
    }
}

void ds_pool_pairs_ref(ds_exec *e, const ds_op_pool_pairs *a)
{
    const ds_step *st = a->step;

    ds_exec_for(e, st->n_rows, 1, pool_rows, &(job){ e, a });
    for (uint32_t r = 0; r < st->n_rows; r++) { /* after every reader of the old state */
        uint32_t slot = st->slot[st->seq[r]];
        if (slot == DS_NONE || !stays_in_ring(st, r, a->open.len))
            continue;
        uint8_t *rec = ds_ring_at(&a->open, slot, st->pos[r]);
        memset(rec, 0, 64);
        memcpy(rec, &st->pos[r], sizeof st->pos[r]);
        memcpy(rec + 64, a->k + (size_t)r * a->dim, a->dim * sizeof(float));
        memcpy(rec + 64 + a->dim * sizeof(float), a->z + (size_t)r * a->dim, a->dim * sizeof(float));
    }
}

typedef void pack_fn(uint8_t *rec, const float *x, size_t dim);

typedef struct {
    const ds_op_kv_store *a;
    pack_fn *pack;
} store_job;

static void store_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const store_job *j = arg;
    const ds_op_kv_store *a = j->a;
    const ds_step *st = a->step;
    int32_t ratio = (int32_t)a->kv.ratio;
    (void)member;
    for (size_t r = begin; r < end; r++) {
        int32_t p = st->pos[r];
        if ((p + 1) % ratio == 0 && p >= st->store_from[st->seq[r]])
            j->pack(ds_kv_at(&a->kv, st, st->seq[r], (uint32_t)(p / ratio)), a->x + r * a->dim, a->dim);
    }
}

void ds_kv_store_ref(ds_exec *e, const ds_op_kv_store *a)
{
    ds_exec_for(e, a->step->n_rows, 1, store_rows, &(store_job){ a, ds_kv_main_pack });
}

void ds_idx_store_ref(ds_exec *e, const ds_op_kv_store *a)
{
    ds_exec_for(e, a->step->n_rows, 1, store_rows, &(store_job){ a, ds_kv_index_pack });
}
