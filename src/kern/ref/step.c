/* What a step begins and ends with: metadata of rows, small records put in their places, a look for values that
 * aren't finite. */
#include <math.h>
#include <string.h>

#include "ref_internal.h"

static void rows_of_seq(const ds_op_rows *a, uint32_t s)
{
    const ds_seq_rows *q = &a->seq[s];

    a->pos0[s] = q->pos0;
    a->row0[s] = q->row0;
    a->count[s] = q->count;
    a->slot[s] = q->slot;
    a->tail[s] = q->tail;
    a->win_lo[s] = q->win_lo;
    a->dec_lo[s] = q->dec_lo;
    a->store_from[s] = q->store_from;
    memcpy(a->blocks + s * a->blocks_ld, a->block + q->block0, q->n_blocks * sizeof *a->blocks);
    for (uint32_t k = 0; k < q->count; k++) {
        uint32_t r = q->row0 + k;
        int32_t p = q->pos0 + (int32_t)k;
        a->pos[r] = p;
        a->of_seq[r] = s;
        if (a->id_in) {
            a->id[r] = a->id_in[r];
            a->dead[r] = a->id_in[r] < 0;
        } else {
            a->id[r] = 0;
            a->index[r] = p >= q->src_pos ? q->src_row + (uint32_t)(p - q->src_pos) : 0;
            a->dead[r] = a->dead_in[a->index[r]];
        }
    }
}

void ds_rows_ref(ds_exec *e, const ds_op_rows *a)
{
    (void)e;
    for (uint32_t s = 0; s < a->n_seqs; s++)
        rows_of_seq(a, s);
}

void ds_accept_ref(ds_exec *e, const ds_op_accept *a)
{
    (void)e;
    for (uint32_t s = 0; s < a->n; s++) {
        const ds_drawn *d = &a->drawn[s];
        uint32_t more = d->n > 1 ? d->n - 1 : 0, count = a->first[s].count;
        a->seq[s] = a->first[s];
        a->seq[s].pos0 += (int32_t)more;
        for (uint32_t k = 0; k < count; k++)
            a->id[s * count + k] = k > 0 ? a->fill : d->n ? d->token[d->n - 1] : 0;
        if (a->draw)
            a->draw[s].index += more;
    }
}

void ds_scatter_ref(ds_exec *e, const ds_op_scatter *a)
{
    (void)e;
    for (size_t i = 0; i < a->n; i++)
        memcpy((char *)a->dst + a->off[i], (const char *)a->src + i * a->bytes, a->bytes);
}

typedef struct {
    ds_exec *e;
    const ds_op_finite *a;
} job;

/* Sums of x * 0 are NaN when an x isn't finite: a test without branches, 16 values at a time. */
static bool all_finite(const float *x, size_t n)
{
    enum { LANES = 16 };
    float sum[LANES] = { 0 }, all = 0.0f;
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (size_t k = 0; k < LANES; k++)
            sum[k] += x[i + k] * 0.0f;
    for (; i < n; i++)
        all += x[i] * 0.0f;
    for (size_t k = 0; k < LANES; k++)
        all += sum[k];
    return all == 0.0f;
}

static void look(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    (void)member;
    for (size_t r = begin; r < end; r++) {
        const float *x = j->a->x + r * j->a->ldx;
        if (all_finite(x, j->a->n))
            continue;
        for (size_t i = 0; i < j->a->n; i++)
            if (!isfinite(x[i])) {
                ds_exec_fault(j->e, DS_FAULT_FINITE, j->a->tag, (int64_t)(r * j->a->n + i));
                return;
            }
    }
}

void ds_finite_ref(ds_exec *e, const ds_op_finite *a)
{
    ds_exec_for(e, a->rows, 1, look, &(job){ e, a });
}
