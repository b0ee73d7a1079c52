/* Index scores, selection, and attention over window and selected entries (spec 3.10, 3.11, 3.14). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ref_internal.h"

typedef struct {
    float score;
    uint32_t at;
} ranked;

static int better_first(const void *pa, const void *pb)
{
    const ranked *a = pa, *b = pb;
    if (a->score != b->score) /* numbers only: -0 equals +0 */
        return a->score > b->score ? -1 : 1;
    return a->at < b->at ? -1 : a->at > b->at;
}

static int lower_first(const void *pa, const void *pb)
{
    const ranked *a = pa, *b = pb;
    return a->at < b->at ? -1 : a->at > b->at;
}

/* The k best of c[0..n) at out[], increasing; returns how many. */
static uint32_t take_best(ranked *c, size_t n, uint32_t k, int32_t *out)
{
    qsort(c, n, sizeof *c, better_first);
    if (k > n)
        k = (uint32_t)n;
    qsort(c, k, sizeof *c, lower_first);
    for (uint32_t i = 0; i < k; i++)
        out[i] = (int32_t)c[i].at;
    return k;
}

typedef struct {
    ds_exec *e;
    const ds_op_index_topk *a;
    size_t max_entries;
    float *score; /* [members][max_entries] */
    ranked *cand; /* [members][max_entries] */
    float *q;     /* [members][heads][dim] */
    float *key;   /* [members][dim] */
} topk_job;

static bool in_pool(const int32_t *pool, uint32_t n, int32_t block)
{
    for (uint32_t i = 0; i < n; i++)
        if (pool[i] == block)
            return true;
    return false;
}

static void topk_row(const topk_job *j, size_t r, uint32_t member)
{
    const ds_op_index_topk *a = j->a;
    const ds_step *st = a->step;
    uint32_t V = ds_kv_visible(&a->keys, st->pos[r]), n = 0;
    float *score = j->score + member * j->max_entries, *q = j->q + (size_t)member * a->heads * a->dim,
          *key = j->key + (size_t)member * a->dim;
    ranked *cand = j->cand + member * j->max_entries;

    for (uint32_t h = 0; h < a->heads; h++)
        ds_kv_index_unpack(q + (size_t)h * a->dim, a->q + (r * a->heads + h) * DS_IDX_REC(a->dim), a->dim);
    for (uint32_t i = 0; i < V; i++) {
        double sum = 0.0;
        ds_kv_index_unpack(key, ds_kv_at(&a->keys, st, st->seq[r], i), a->dim);
        for (uint32_t h = 0; h < a->heads; h++) {
            double dot = 0.0;
            for (uint32_t c = 0; c < a->dim; c++)
                dot += (double)q[h * a->dim + c] * key[c];
            if (dot > 0.0 || isnan(dot))
                sum += (double)(a->g[r * a->heads + h] * a->g_scale) * dot;
        }
        score[i] = isnan(sum) ? -INFINITY : (float)sum;
        if (!a->pool_in || in_pool(a->pool_in + r * a->pool_blocks, a->n_pool_in[r], (int32_t)(i / a->pool_block)))
            cand[n++] = (ranked){ score[i], i };
    }
    a->n_sel[r] = take_best(cand, n, a->topk, a->sel + r * a->topk);
    if (!a->pool_out)
        return;
    n = 0;
    for (uint32_t b = 0; b * a->pool_block < V; b++) {
        float best = -INFINITY;
        for (uint32_t i = b * a->pool_block; i < V && i < (b + 1) * a->pool_block; i++)
            best = score[i] > best ? score[i] : best;
        if (b == (V - 1) / a->pool_block)
            best = INFINITY;
        if (best > -INFINITY)
            cand[n++] = (ranked){ best, b };
    }
    a->n_pool_out[r] = take_best(cand, n, a->pool_blocks, a->pool_out + r * a->pool_blocks);
}

static void topk_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    for (size_t r = begin; r < end; r++)
        topk_row(arg, r, member);
}

void ds_index_topk_ref(ds_exec *e, const ds_op_index_topk *a)
{
    size_t mark = ds_arena_mark(e->scratch), members = ds_exec_members(e), max = 0;

    for (uint32_t s = 0; s < a->step->n_seqs; s++) {
        size_t v = ds_kv_visible(&a->keys, a->step->pos0[s] + (int32_t)a->step->count[s] - 1);
        max = v > max ? v : max;
    }
    topk_job j = { .e = e, .a = a, .max_entries = max };
    j.score = ds_exec_scratch(e, members * max * sizeof *j.score);
    j.cand = ds_exec_scratch(e, members * max * sizeof *j.cand);
    j.q = ds_exec_scratch(e, members * a->heads * a->dim * sizeof *j.q);
    j.key = ds_exec_scratch(e, members * a->dim * sizeof *j.key);
    ds_exec_for(e, a->step->n_rows, 1, topk_rows, &j);
    ds_arena_rewind(e->scratch, mark);
}

typedef struct {
    ds_exec *e;
    const ds_op_attention *a;
    size_t max_list;
    double *s;    /* [members][heads][max_list] */
    double *acc;  /* [members][dim] */
    float *entry; /* [members][max_list][dim] */
} attention_job;

static size_t longest_list(const ds_op_attention *a)
{
    size_t n = a->window + (a->sel ? a->topk : 0), most = 0;
    for (uint32_t s = 0; a->bidir && s < a->step->n_seqs; s++)
        most = a->step->count[s] > most ? a->step->count[s] : most;
    return n + most;
}

/* The row's keys, dequantised, in the order of the contract; returns how many. */
static size_t gather_keys(const ds_op_attention *a, size_t r, float *entry)
{
    const ds_step *st = a->step;
    uint32_t s = st->seq[r];
    int32_t pos0 = st->pos0[s], p = st->pos[r], window = (int32_t)a->window;
    int32_t first = a->bidir ? pos0 - window : p - window + 1, last = a->bidir ? pos0 + (int32_t)st->count[s] - 1 : p;
    size_t n = 0;

    first = first < st->win_lo[s] ? st->win_lo[s] : first;
    for (int32_t t = first < 0 ? 0 : first; t <= last; t++, n++) {
        const uint8_t *rec =
            t >= pos0 ? a->rec + (st->row0[s] + (size_t)(t - pos0)) * DS_WIN_REC(a->dim) : ds_ring_at(&a->ring, st->slot[s], t);
        ds_kv_window_unpack(entry + n * a->dim, rec, a->dim);
    }
    for (uint32_t i = 0; a->sel && i < a->n_sel[r]; i++, n++)
        ds_kv_main_unpack(entry + n * a->dim, ds_kv_at(&a->kv, st, s, (uint32_t)a->sel[r * a->topk + i]), a->dim);
    return n;
}

static void attention_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const attention_job *j = arg;
    const ds_op_attention *a = j->a;
    size_t dim = a->dim;
    float *entry = j->entry + member * j->max_list * dim;
    double *s = j->s + member * j->max_list, *acc = j->acc + member * dim;

    for (size_t r = begin; r < end; r++) {
        size_t n = gather_keys(a, r, entry);
        for (uint32_t h = 0; h < a->heads; h++) {
            const float *q = a->q + (r * a->heads + h) * dim;
            float *o = a->o + (r * a->heads + h) * dim;
            double max = -INFINITY, sum = 0.0;
            for (size_t i = 0; i < n; i++) {
                double dot = 0.0;
                for (size_t c = 0; c < dim; c++)
                    dot += (double)q[c] * entry[i * dim + c];
                s[i] = dot * (double)a->scale;
                max = fmax(max, s[i]);
            }
            memset(acc, 0, dim * sizeof *acc);
            for (size_t i = 0; i < n; i++) {
                double w = exp(s[i] - max);
                sum += w;
                for (size_t c = 0; c < dim; c++)
                    acc[c] += w * entry[i * dim + c];
            }
            if (n)
                sum += exp(a->sink[h] - max);
            for (size_t c = 0; c < dim; c++)
                o[c] = n ? rounded(j->e, acc[c] / sum) : 0.0f;
        }
    }
}

void ds_attention_ref(ds_exec *e, const ds_op_attention *a)
{
    size_t mark = ds_arena_mark(e->scratch), members = ds_exec_members(e);
    attention_job j = { .e = e, .a = a, .max_list = longest_list(a) };

    j.s = ds_exec_scratch(e, members * j.max_list * sizeof *j.s);
    j.acc = ds_exec_scratch(e, members * a->dim * sizeof *j.acc);
    j.entry = ds_exec_scratch(e, members * j.max_list * a->dim * sizeof *j.entry);
    ds_exec_for(e, a->step->n_rows, 1, attention_rows, &j);
    ds_arena_rewind(e->scratch, mark);
}
