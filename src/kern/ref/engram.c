/* Engram: n-gram hashes, table rows, gate (spec 3.12). */
#include <math.h>
#include <string.h>

#include "ref_internal.h"

typedef struct {
    ds_exec *e;
    const void *a;
} job;

enum { DEAD = -1, MAX_NGRAM = 8 };

typedef struct {
    int32_t pos, class;
} history_rec;

static int32_t class_of_row(const ds_op_engram_hash *a, size_t r)
{
    const ds_step *st = a->step;
    return st->dead[r] || st->id[r] < 0 ? DEAD : a->map[st->id[r]];
}

/* The class of the token `back` places before row r, or DEAD. back <= pos[r]. */
static int32_t class_before(const job *j, size_t r, uint32_t back)
{
    const ds_op_engram_hash *a = j->a;
    const ds_step *st = a->step;
    uint32_t s = st->seq[r];
    int32_t at = st->pos[r] - (int32_t)back;

    if (at >= st->pos0[s])
        return class_of_row(a, r - back);
    history_rec rec = { -1, DEAD };
    if (st->slot[s] != DS_NONE)
        memcpy(&rec, ds_ring_at(&a->hist, st->slot[s], at), sizeof rec);
    if (rec.pos != at) {
        ds_exec_fault(j->e, DS_FAULT_HISTORY, a->tag, at);
        return DEAD;
    }
    return rec.class;
}

static void hash_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_engram_hash *a = j->a;
    (void)member;
    for (size_t r = begin; r < end; r++) {
        int64_t t[MAX_NGRAM];
        bool open = true;
        for (uint32_t s = 0; s < a->max_ngram; s++) {
            int32_t c = open && (int32_t)s <= a->step->pos[r] ? class_before(j, r, s) : DEAD;
            open = open && c != DEAD;
            t[s] = open ? c : a->pad;
        }
        uint64_t *row = a->row + r * (a->max_ngram - 1) * a->heads;
        uint64_t h = (uint64_t)t[0] * a->mult[0];
        for (uint32_t o = 1, c = 0; o < a->max_ngram; o++) {
            h ^= (uint64_t)t[o] * a->mult[o];
            for (uint32_t k = 0; k < a->heads; k++, c++)
                row[c] = h % a->prime[c] + a->offset[c];
        }
    }
}

void ds_engram_hash_ref(ds_exec *e, const ds_op_engram_hash *a)
{
    const ds_step *st = a->step;

    ds_exec_for(e, st->n_rows, 1, hash_rows, &(job){ e, a });
    for (uint32_t r = 0; a->store && r < st->n_rows; r++) { /* after every reader of the old state */
        uint32_t s = st->seq[r];
        if (st->slot[s] == DS_NONE || st->row0[s] + st->count[s] - r > a->hist.len)
            continue;
        history_rec rec = { st->pos[r], class_of_row(a, r) };
        memcpy(ds_ring_at(&a->hist, st->slot[s], st->pos[r]), &rec, sizeof rec);
    }
}

static void gather_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_engram_gather *a = j->a;
    size_t width = a->table->in;
    (void)member;
    for (size_t r = begin; r < end; r++) {
        for (uint32_t c = 0; c < a->cols; c++) {
            float *y = a->y + (r * a->cols + c) * width;
            uint64_t row = a->row[r * a->cols + c];
            bool finite = true;
            memset(y, 0, width * sizeof *y);
            if (a->dead && a->dead[r])
                continue;
            ds_mat_row_ref(y, a->table, row, 0, a->table->in);
            for (size_t i = 0; i < width; i++) {
                finite = finite && isfinite(y[i]);
                y[i] = rounded(j->e, y[i]);
            }
            if (!finite) {
                memset(y, 0, width * sizeof *y);
                ds_exec_fault(j->e, DS_FAULT_VALUE, a->tag, (int64_t)row);
            }
        }
    }
}

void ds_engram_gather_ref(ds_exec *e, const ds_op_engram_gather *a)
{
    ds_exec_for(e, a->rows, 1, gather_rows, &(job){ e, a });
}

static void fuse_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_engram_fuse *a = j->a;
    size_t d = a->d;
    (void)member;
    for (size_t r = begin; r < end; r++) {
        const float *kv = a->kv + r * (a->n + 1) * d, *val = kv + a->n * d;
        for (uint32_t s = 0; s < a->n && !(a->dead && a->dead[r]); s++) {
            float *X = a->X + (r * a->n + s) * d;
            const float *key = kv + s * d;
            double dot = 0.0, xx = 0.0, kk = 0.0;
            for (size_t i = 0; i < d; i++) {
                dot += (double)X[i] * a->qw[s * d + i] * a->kw[s * d + i] * key[i];
                xx += (double)X[i] * X[i];
                kk += (double)key[i] * key[i];
            }
            dot /= sqrt(xx / (double)d + (double)a->eps) * sqrt(kk / (double)d + (double)a->eps) * sqrt((double)d);
            double root = sqrt(fmax(fabs(dot), 1e-6)), gate = sigmoid(dot < 0.0 ? -root : root);
            for (size_t i = 0; i < d; i++)
                X[i] = rounded(j->e, X[i] + gate * val[i]);
        }
    }
}

void ds_engram_fuse_ref(ds_exec *e, const ds_op_engram_fuse *a)
{
    ds_exec_for(e, a->rows, 1, fuse_rows, &(job){ e, a });
}
