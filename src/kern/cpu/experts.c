/* Routed experts on top of a ds_gemm (spec 3.13).
 *
 * Owned pairs (row, rank) are sorted by expert, so that each expert's weights are read once whatever the number of
 * rows. First all hidden values, then the outputs. */
#include <string.h>

#include "format/numfmt.h"
#include "kern/cpu/cpu.h"
#include "kern/cpu/gemm.h"
#include "kern/ref/ref.h"

typedef struct {
    ds_exec *e;
    const ds_op_experts_part *a;
    const ds_gemm_pair *p;
    const ds_gemm *g1, *g3, *g2;
    size_t pairs, n_active; /* pairs: all until they are sorted, then the owned ones */
    uint32_t *expert;       /* [n_active] those that have rows, counted from a->first */
    uint32_t *first;        /* [n_active + 1] first pair in expert order */
    uint32_t *order, *row;  /* [pairs] in expert order: pair r*k + i, and its r */
    size_t *x_at, *h_at;    /* [n_active] where an expert's prepared rows and hidden values stand */
    uint8_t *x, *h;
    float *hidden; /* [pairs][inner], expert order */
    uint8_t *work; /* of each member: two results, what g takes */
    size_t each;
} job;

enum { OUT_FLOATS = DS_GEMM_ROWS * DS_GEMM_OUTS_MAX };

static size_t up64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Which of the owned experts pair p has; `n` or more: none of them. */
static uint32_t expert_of(const ds_op_experts_part *a, size_t p)
{
    return (uint32_t)a->sel[p] - a->first; /* below `first` wraps around */
}

/* Expert order by counting. `count` [n] is scratch. */
static void sort_pairs(job *j, uint32_t *count)
{
    const ds_op_experts_part *a = j->a;
    uint32_t at = 0;

    memset(count, 0, a->n * sizeof *count);
    for (size_t p = 0; p < j->pairs; p++)
        if (expert_of(a, p) < a->n)
            count[expert_of(a, p)]++;
    for (uint32_t x = 0; x < a->n; x++) {
        uint32_t n = count[x];
        count[x] = at;
        if (n) {
            j->expert[j->n_active] = x;
            j->first[j->n_active++] = at;
        }
        at += n;
    }
    j->first[j->n_active] = at;
    for (size_t p = 0; p < j->pairs; p++) {
        if (expert_of(a, p) >= a->n)
            continue;
        uint32_t to = count[expert_of(a, p)]++;
        j->order[to] = (uint32_t)p;
        j->row[to] = (uint32_t)(p / a->k);
    }
    j->pairs = at;
}

static void prep_experts(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_experts_part *a = j->a;
    (void)member;
    for (size_t i = begin; i < end; i++) {
        size_t n = j->first[i + 1] - j->first[i];
        j->g1->prep(j->x + j->x_at[i], a->x, a->d, j->row + j->first[i], n, 0, n, a->d, a->w1[j->expert[i]].type);
    }
}

static void hidden_blocks(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_experts_part *a = j->a;
    uint32_t outs = j->g1->outs;
    size_t blocks = (a->inner + outs - 1) / outs;
    float *g = (float *)(void *)(j->work + member * j->each), *u = g + OUT_FLOATS;
    void *work = u + OUT_FLOATS;

    for (size_t b = begin; b < end; b++) {
        size_t i = b / blocks, o0 = b % blocks * outs, rows = j->first[i + 1] - j->first[i];
        uint32_t n = (uint32_t)(a->inner - o0 < outs ? a->inner - o0 : outs);
        for (size_t r0 = 0; r0 < rows; r0 += DS_GEMM_ROWS) {
            size_t nr = rows - r0 < DS_GEMM_ROWS ? rows - r0 : DS_GEMM_ROWS;
            j->g1->block(g, j->x + j->x_at[i], rows, r0, nr, &a->w1[j->expert[i]], o0, n, work);
            j->g3->block(u, j->x + j->x_at[i], rows, r0, nr, &a->w3[j->expert[i]], o0, n, work);
            for (size_t r = 0; r < nr; r++) {
                size_t p = j->first[i] + r0 + r;
                j->p->hidden(j->hidden + p * a->inner + o0, g + r * outs, u + r * outs, n, a->w[j->order[p]], a->limit, j->e->bf16,
                             j->e->bf16);
            }
        }
    }
}

static void prep_hidden(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_experts_part *a = j->a;
    (void)member;
    for (size_t i = begin; i < end; i++) {
        size_t n = j->first[i + 1] - j->first[i];
        j->g2->prep(j->h + j->h_at[i], j->hidden + (size_t)j->first[i] * a->inner, a->inner, NULL, n, 0, n, a->inner,
                    a->w2[j->expert[i]].type);
    }
}

static void output_blocks(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_experts_part *a = j->a;
    uint32_t outs = j->g2->outs;
    size_t blocks = (a->d + outs - 1) / outs;
    float *out = (float *)(void *)(j->work + member * j->each);
    void *work = out + 2 * OUT_FLOATS;

    for (size_t b = begin; b < end; b++) {
        size_t i = b / blocks, o0 = b % blocks * outs, rows = j->first[i + 1] - j->first[i];
        uint32_t n = (uint32_t)(a->d - o0 < outs ? a->d - o0 : outs);
        for (size_t r0 = 0; r0 < rows; r0 += DS_GEMM_ROWS) {
            size_t nr = rows - r0 < DS_GEMM_ROWS ? rows - r0 : DS_GEMM_ROWS;
            j->g2->block(out, j->h + j->h_at[i], rows, r0, nr, &a->w2[j->expert[i]], o0, n, work);
            for (size_t r = 0; r < nr; r++) {
                float *part = a->part + (size_t)j->order[j->first[i] + r0 + r] * a->d + o0;
                if (j->e->bf16)
                    ds_bf16_round_row(part, out + r * outs, n);
                else
                    memcpy(part, out + r * outs, n * sizeof *part);
            }
        }
    }
}

/* One preparation must do for an expert's W1 and W3, and one ds_gemm for every expert. */
static bool uniform(const ds_op_experts_part *a, const ds_gemm_pair *p, bool bf16)
{
    for (uint32_t x = 0; x < a->n; x++) {
        ds_mat_type t1 = a->w1[x].type, t3 = a->w3[x].type;
        if ((t1 == DS_MAT_F32) != (t3 == DS_MAT_F32) || (t1 == DS_MAT_MXFP4) != (t3 == DS_MAT_MXFP4) ||
            (t1 == DS_MAT_F32) != (a->w1[0].type == DS_MAT_F32) ||
            ds_gemm_for(p, bf16, a->w2[x].type) != ds_gemm_for(p, bf16, a->w2[0].type))
            return false;
    }
    return true;
}

static size_t member_bytes(const ds_gemm_pair *p)
{
    return up64(larger(p->f32->work_bytes, p->bf16->work_bytes)) + 2 * OUT_FLOATS * sizeof(float);
}

void ds_experts_part_cpu(ds_exec *e, const ds_op_experts_part *a, const ds_gemm_pair *p)
{
    size_t mark = ds_arena_mark(e->scratch), x_bytes = 0, h_bytes = 0;
    job j = { .e = e, .a = a, .p = p, .pairs = a->rows * a->k };
    uint32_t *count;

    if (a->rows == 0 || a->n == 0)
        return;
    if (!uniform(a, p, e->bf16)) {
        ds_experts_part_ref(e, a);
        return;
    }
    j.g1 = ds_gemm_for(p, e->bf16, a->w1[0].type);
    j.g3 = ds_gemm_for(p, e->bf16, a->w3[0].type);
    j.g2 = ds_gemm_for(p, e->bf16, a->w2[0].type);
    count = ds_exec_scratch(e, a->n * sizeof *count);
    j.expert = ds_exec_scratch(e, j.pairs * sizeof *j.expert);
    j.first = ds_exec_scratch(e, (j.pairs + 1) * sizeof *j.first);
    j.order = ds_exec_scratch(e, j.pairs * sizeof *j.order);
    j.row = ds_exec_scratch(e, j.pairs * sizeof *j.row);
    j.x_at = ds_exec_scratch(e, j.pairs * sizeof *j.x_at);
    j.h_at = ds_exec_scratch(e, j.pairs * sizeof *j.h_at);
    sort_pairs(&j, count);
    for (size_t i = 0; i < j.n_active; i++) {
        size_t n = j.first[i + 1] - j.first[i];
        j.x_at[i] = x_bytes;
        j.h_at[i] = h_bytes;
        x_bytes += j.g1->set_bytes(n, a->d);
        h_bytes += j.g2->set_bytes(n, a->inner);
    }
    j.x = ds_exec_scratch(e, x_bytes);
    j.h = ds_exec_scratch(e, h_bytes);
    j.hidden = ds_exec_scratch(e, j.pairs * a->inner * sizeof *j.hidden);
    j.each = member_bytes(p);
    j.work = ds_exec_scratch(e, ds_exec_members(e) * j.each);

    size_t in_blocks = (a->inner + j.g1->outs - 1) / j.g1->outs, out_blocks = (a->d + j.g2->outs - 1) / j.g2->outs;
    ds_cpu_for(e, j.n_active, 1, j.pairs * a->d / 8, prep_experts, &j);
    ds_cpu_for(e, j.n_active * in_blocks, 1, ds_gemm_ns(j.pairs, 2 * a->inner, a->d), hidden_blocks, &j);
    ds_cpu_for(e, j.n_active, 1, j.pairs * a->inner / 8, prep_hidden, &j);
    ds_cpu_for(e, j.n_active * out_blocks, 1, ds_gemm_ns(j.pairs, a->inner, a->d), output_blocks, &j);
    ds_arena_rewind(e->scratch, mark);
}

enum { SUM_COLUMNS = 64 };

typedef struct {
    const ds_op_experts_sum *a;
    bool bf16;
} sum_job;

/* Pieces of SUM_COLUMNS columns: a row alone is work for several threads. */
static void sum_pieces(void *arg, size_t begin, size_t end, uint32_t member)
{
    const sum_job *j = arg;
    const ds_op_experts_sum *a = j->a;
    size_t pieces = (a->d + SUM_COLUMNS - 1) / SUM_COLUMNS;
    (void)member;

    for (size_t b = begin; b < end; b++) {
        size_t r = b / pieces, o0 = b % pieces * SUM_COLUMNS, n = a->d - o0 < SUM_COLUMNS ? a->d - o0 : SUM_COLUMNS;
        const float *part = a->part + r * a->k * a->d + o0, *shared = a->shared + r * a->d + o0;
        float y[SUM_COLUMNS] = { 0 };
        for (uint32_t i = 0; i < a->k; i++, part += a->d)
            for (size_t o = 0; o < n; o++)
                y[o] += part[o];
        for (size_t o = 0; o < n; o++)
            y[o] += shared[o];
        if (j->bf16)
            ds_bf16_round_row(y, y, n);
        memcpy(a->y + r * a->d + o0, y, n * sizeof *y);
    }
}

void ds_experts_sum_cpu(ds_exec *e, const ds_op_experts_sum *a)
{
    size_t pieces = a->rows * ((a->d + SUM_COLUMNS - 1) / SUM_COLUMNS);

    ds_cpu_for(e, pieces, 1, pieces * SUM_COLUMNS * (a->k + 1) / 4, sum_pieces, &(sum_job){ a, e->bf16 });
}

static size_t product(size_t a, size_t b)
{
    size_t r;
    return ds_size_mul(&r, a, b) ? r : SIZE_MAX;
}

static size_t sum(size_t a, size_t b)
{
    size_t r;
    return ds_size_add(&r, a, b) ? r : SIZE_MAX;
}

/* A set of n rows in parts that are each rounded up. */
static size_t set_at_most(const ds_gemm_pair *p, size_t rows, size_t parts, size_t in)
{
    size_t one = larger(p->f32->set_bytes(1, (uint32_t)in), p->bf16->set_bytes(1, (uint32_t)in));
    return product(one, sum(rows, product(parts, p->bf16->set_rows - 1)));
}

size_t ds_gemm_scratch(const ds_kern_limits *lim, const ds_gemm_pair *p)
{
    size_t threads = lim->threads ? lim->threads : 1, pairs = product(lim->max_rows, lim->k),
           active = lim->experts < pairs ? lim->experts : pairs;
    size_t wide = larger(lim->widest_in, product(lim->heads, lim->head_dim)); /* the groups of a grouped linear together */
    size_t lin = sum(set_at_most(p, lim->max_rows, lim->heads + 1, wide), product(threads, member_bytes(p)));
    size_t exp = product(pairs, 2 * sizeof(size_t) + 4 * sizeof(uint32_t) + lim->inner * sizeof(float));

    exp = sum(exp, sum(product(lim->experts, sizeof(uint32_t)), sizeof(uint32_t)));
    exp = sum(exp, sum(set_at_most(p, pairs, active, lim->d), set_at_most(p, pairs, active, lim->inner)));
    exp = sum(exp, product(threads, member_bytes(p)));
    return sum(larger(lin, exp), 4096); /* each piece is rounded up to 64 bytes */
}
