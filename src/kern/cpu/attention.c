/* Rows of attention: their lists and who does them. See attention_body.h for the work itself. */
#include "kern/cpu/attention.h"

#include "kern/cpu/gemm.h"

/* The records of row r in the order of the contract. */
static void list_records(ds_attention_row *w, const ds_op_attention *a, size_t r)
{
    const ds_step *st = a->step;
    uint32_t s = st->seq[r];
    int32_t pos0 = st->pos0[s], p = st->pos[r], window = (int32_t)a->window;
    int32_t first = a->bidir ? pos0 - window : p - window + 1, last = a->bidir ? pos0 + (int32_t)st->count[s] - 1 : p;
    size_t n = 0;

    first = first < st->win_lo[s] ? st->win_lo[s] : first;
    for (int32_t t = first < 0 ? 0 : first; t <= last; t++)
        w->rec[n++] = t >= pos0 ? a->rec + (st->row0[s] + (size_t)(t - pos0)) * DS_WIN_REC(a->dim) : ds_ring_at(&a->ring, st->slot[s], t);
    w->n_window = n;
    for (uint32_t i = 0; a->sel && i < a->n_sel[r]; i++)
        w->rec[n++] = ds_kv_at(&a->kv, st, s, (uint32_t)a->sel[r * a->topk + i]);
    w->n = n;
}

typedef struct {
    ds_exec *e;
    const ds_op_attention *a;
    const ds_attention_body *b;
    ds_attention_row *row; /* [members]; of a shared row, [1] */
    float *order, *score;  /* [members] of those */
    size_t order_len, score_len, r;
} job;

static size_t up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static void whole_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    ds_attention_row *w = &j->row[member];

    for (size_t r = begin; r < end; r++) {
        list_records(w, j->a, r);
        w->padded = up(w->n, j->b->lanes);
        j->b->decode(w, 0, w->padded);
        j->b->heads(w, j->a, r, 0, j->a->heads, j->order + member * j->order_len, j->score + member * j->score_len, j->e->bf16);
    }
}

static void shared_decode(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    (void)member;
    j->b->decode(j->row, begin, up(end, j->b->lanes));
}

static void shared_heads(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    j->b->heads(j->row, j->a, j->r, (uint32_t)begin, (uint32_t)end, j->order + member * j->order_len, j->score + member * j->score_len,
                j->e->bf16);
}

static size_t longest_list(const ds_op_attention *a)
{
    size_t n = a->window + (a->sel ? a->topk : 0), most = 0;
    for (uint32_t s = 0; a->bidir && s < a->step->n_seqs; s++)
        most = a->step->count[s] > most ? a->step->count[s] : most;
    return n + most;
}

void ds_attention_cpu(ds_exec *e, const ds_op_attention *a, const ds_attention_body *b)
{
    size_t mark = ds_arena_mark(e->scratch), members = ds_exec_members(e), rows = a->step->n_rows, list = up(longest_list(a), b->lanes);
    size_t cost = list * a->dim * a->heads / 8;
    bool shared = rows < members && rows * cost > 40000; /* few rows: each is done by all */
    job j = { .e = e, .a = a, .b = b, .order_len = b->head_block * a->dim, .score_len = b->head_block * list };

    if (rows == 0)
        return;
    j.row = ds_exec_scratch(e, members * sizeof *j.row);
    for (size_t i = 0; i < (shared ? 1 : members); i++) {
        j.row[i].dim = a->dim;
        j.row[i].rec = ds_exec_scratch(e, list * sizeof *j.row[i].rec);
        j.row[i].entry = ds_exec_scratch(e, list * a->dim * sizeof(float));
        j.row[i].turned = ds_exec_scratch(e, list * a->dim * sizeof(float));
    }
    j.order = ds_exec_scratch(e, members * j.order_len * sizeof *j.order);
    j.score = ds_exec_scratch(e, members * j.score_len * sizeof *j.score);
    if (!shared)
        ds_cpu_for(e, rows, 1, rows * cost, whole_rows, &j);
    for (j.r = 0; shared && j.r < rows; j.r++) {
        list_records(j.row, a, j.r);
        j.row->padded = up(j.row->n, b->lanes);
        ds_exec_for(e, j.row->n, b->lanes, shared_decode, &j);
        ds_exec_for(e, a->heads, b->head_block, shared_heads, &j);
    }
    ds_arena_rewind(e->scratch, mark);
}

size_t ds_attention_scratch(const ds_kern_limits *lim)
{
    size_t threads = lim->threads ? lim->threads : 1, list = (size_t)lim->window + lim->topk + lim->max_rows + 16, each, all;

    /* a member: records, entries twice, four heads of queries and scores */
    if (!ds_size_mul(&each, list, 2 * (size_t)lim->head_dim * sizeof(float) + sizeof(uint8_t *) + 4 * sizeof(float)) ||
        !ds_size_add(&each, each, (4 * (size_t)lim->head_dim + 128) * sizeof(float)) || !ds_size_mul(&all, each, threads))
        return SIZE_MAX;
    return all;
}
