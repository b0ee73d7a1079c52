/* Index scores and selection (spec 3.10).
 *
 * Rows of a sequence are scored in batches against all visible entries, so that keys are decoded once a batch; a row
 * whose candidate pool leaves entries out is scored alone, against the pool's entries only. The threads share the
 * entries. Then the k best of each row are found without sorting: the threshold is built bit by bit from the top, by
 * counting. */
#include "kern/cpu/index.h"

#include <math.h>
#include <string.h>

#include "format/numfmt.h"
#include "kern/cpu/gemm.h"

enum { MAX_LANES = 16, BATCH = 8, SMALL_BATCH = 32, SMALL = 2048 }; /* rows of a batch; more of them while there are few entries */

typedef struct {
    ds_exec *e;
    const ds_op_index_topk *a;
    const ds_index_body *b;
    ds_index_query *q; /* [batch] */
    size_t r0, rows;   /* of the batch */
    size_t n, ld;      /* entries scored, and distance between rows' scores */
    int32_t *list;     /* [n] the entries, increasing; NULL: 0 .. n-1 */
    int32_t *pool;     /* room for the entries of one row's pool */
    float *score;      /* [batch][ld] */
    int32_t *key;      /* [members][ld]: ordered like scores */
    uint32_t *codes;   /* [members][dim/4][lanes] */
    float *scales;     /* [members][dim/32][lanes] */
} job;

static size_t up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The record of row r's head h to bytes: of a group first the even elements, then the odd ones. */
static void query(const ds_op_index_topk *a, size_t r, ds_index_query *q)
{
    size_t groups = a->dim / 32;

    q->g = a->g + r * a->heads;
    q->g_scale = a->g_scale;
    q->finite = true;
    for (uint32_t h = 0; h < a->heads; h++) {
        const uint8_t *rec = a->q + (r * a->heads + h) * DS_IDX_REC(a->dim);
        q->finite = q->finite && isfinite(q->g[h] * a->g_scale);
        for (size_t g = 0; g < groups; g++) {
            int8_t *d = q->q + h * a->dim + g * 32;
            int32_t sum = 0;
            for (size_t i = 0; i < 16; i++) {
                d[i] = (int8_t)(2.0f * ds_e2m1_value[rec[g * 16 + i] & 15]);
                d[16 + i] = (int8_t)(2.0f * ds_e2m1_value[rec[g * 16 + i] >> 4]);
                sum += d[i] + d[16 + i];
            }
            q->base[h * groups + g] = -12 * sum;
            q->scale[h * groups + g] = 0.25f * ds_e8m0_value[rec[a->dim / 2 + g]];
        }
    }
}

static void score_entries(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_index_topk *a = j->a;
    size_t lanes = j->b->lanes;
    uint32_t seq = a->step->seq[j->r0], *codes = j->codes + member * (a->dim / 4) * lanes;
    float *scales = j->scales + member * (a->dim / 32) * lanes;

    for (size_t i = begin; i < end; i += lanes) {
        const uint8_t *rec[MAX_LANES];
        for (size_t k = 0; k < lanes; k++) {
            size_t at = i + k < j->n ? i + k : j->n - 1;
            rec[k] = ds_kv_at(&a->keys, a->step, seq, j->list ? (uint32_t)j->list[at] : (uint32_t)at);
        }
        j->b->keys(codes, scales, rec, a->dim);
        for (size_t r = 0; r < j->rows; r++)
            j->b->score(j->score + r * j->ld + i, &j->q[r], codes, scales, a->heads, a->dim);
    }
}

/* Numbers in the order of scores; NaN like minus infinity. */
static int32_t key_of(float s)
{
    uint32_t u = ds_f32_bits(s == 0.0f || !(s == s) ? (s == s ? 0.0f : -INFINITY) : s);
    return (int32_t)(u ^ ((uint32_t)((int32_t)u >> 31) & 0x7fffffffu));
}

/* The k best of key[0..n) that are above `floor`, as their places (or list entries) in increasing order. */
static uint32_t choose(const ds_index_body *b, int32_t *out, const int32_t *key, size_t n, size_t k, int32_t floor, const int32_t *list)
{
    uint32_t t = 0; /* threshold, unsigned order */
    uint32_t m = 0;
    size_t ties = 0;
    int32_t at;

    if (k == 0)
        return 0;
    if (k >= n) {
        at = INT32_MIN;
        ties = n;
    } else {
        size_t count = 0;
        for (int bit = 31; bit >= 0 && count != k; bit--) {
            uint32_t next = t | 1u << bit;
            size_t c = b->count(key, n, (int32_t)(next ^ 0x80000000u));
            if (c >= k) {
                t = next;
                count = c;
            }
        }
        at = (int32_t)(t ^ 0x80000000u);
        if (count == k)
            ties = k;
        else /* exactly at the threshold: the lower places */
            ties = k - (at == INT32_MAX ? 0 : b->count(key, n, at + 1));
    }
    for (size_t i = 0; i < n; i++) {
        size_t tie = key[i] == at && ties > 0;
        out[m] = list ? list[i] : (int32_t)i;
        m += (uint32_t)((key[i] > at || tie) && key[i] > floor);
        ties -= tie;
        if (m == k)
            break;
    }
    return m;
}

/* Entries of the pool's blocks that row r sees. */
static size_t list_pool(const ds_op_index_topk *a, size_t r, size_t visible, int32_t *list)
{
    size_t n = 0;

    for (uint32_t i = 0; i < a->n_pool_in[r]; i++) {
        size_t at = (size_t)a->pool_in[r * a->pool_blocks + i] * a->pool_block;
        for (size_t k = 0; k < a->pool_block && at + k < visible; k++)
            list[n++] = (int32_t)(at + k);
    }
    return n;
}

/* The pool of row r leaves a visible entry out. */
static bool restricted(const ds_op_index_topk *a, size_t r, size_t visible)
{
    return a->pool_in && a->n_pool_in[r] < (visible + a->pool_block - 1) / a->pool_block;
}

static void choose_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_index_topk *a = j->a;
    int32_t *key = j->key + member * j->ld;

    for (size_t i = begin; i < end; i++) {
        size_t r = j->r0 + i, visible = ds_kv_visible(&a->keys, a->step->pos[r]), n = j->list ? j->n : visible;
        const float *score = j->score + i * j->ld;
        for (size_t k = 0; k < n; k++)
            key[k] = key_of(score[k]);
        if (j->list || !restricted(a, r, visible))
            a->n_sel[r] = choose(j->b, a->sel + r * a->topk, key, n, a->topk, INT32_MIN, j->list);
        if (!a->pool_out)
            continue;
        size_t blocks = (visible + a->pool_block - 1) / a->pool_block;
        for (size_t k = 0; k < blocks; k++) { /* in place: a block's best comes no later than its entries */
            size_t last = (k + 1) * a->pool_block < n ? (k + 1) * a->pool_block : n;
            int32_t best = key[k * a->pool_block];
            for (size_t m = k * a->pool_block + 1; m < last; m++)
                best = key[m] > best ? key[m] : best;
            key[k] = k + 1 == blocks ? key_of(INFINITY) : best;
        }
        a->n_pool_out[r] = choose(j->b, a->pool_out + r * a->pool_blocks, key, blocks, a->pool_blocks, key_of(-INFINITY), NULL);
        if (restricted(a, r, visible)) { /* a pool in and a pool out: such a batch has one row */
            n = list_pool(a, r, visible, j->pool);
            for (size_t k = 0; k < n; k++)
                key[k] = key_of(score[j->pool[k]]);
            a->n_sel[r] = choose(j->b, a->sel + r * a->topk, key, n, a->topk, INT32_MIN, j->pool);
        }
    }
}

static void run_batch(job *j, size_t r0, size_t rows)
{
    const ds_op_index_topk *a = j->a;

    j->r0 = r0;
    j->rows = rows;
    for (size_t i = 0; i < rows; i++)
        query(a, r0 + i, &j->q[i]);
    if (j->n)
        ds_cpu_for(j->e, j->n, j->b->lanes, j->n * (a->dim / 2 + rows * a->heads * a->dim / 16) / 4, score_entries, j);
    ds_cpu_for(j->e, rows, 1, rows * j->n * 2, choose_rows, j);
}

void ds_index_topk_cpu(ds_exec *e, const ds_op_index_topk *a, const ds_index_body *b)
{
    const ds_step *st = a->step;
    size_t mark = ds_arena_mark(e->scratch), members = ds_exec_members(e), max = 0, groups = a->dim / 32;
    job j = { .e = e, .a = a, .b = b };

    if (st->n_rows == 0)
        return;
    for (uint32_t s = 0; s < st->n_seqs; s++)
        max = larger(max, ds_kv_visible(&a->keys, st->pos0[s] + (int32_t)st->count[s] - 1));
    j.ld = up(max, MAX_LANES);
    size_t batch = max <= SMALL ? SMALL_BATCH : BATCH;
    j.pool = ds_exec_scratch(e, j.ld * sizeof *j.pool);
    j.score = ds_exec_scratch(e, batch * j.ld * sizeof *j.score);
    j.key = ds_exec_scratch(e, members * j.ld * sizeof *j.key);
    j.codes = ds_exec_scratch(e, members * (a->dim / 4) * b->lanes * sizeof *j.codes);
    j.scales = ds_exec_scratch(e, members * groups * b->lanes * sizeof *j.scales);
    j.q = ds_exec_scratch(e, batch * sizeof *j.q);
    for (size_t i = 0; i < batch; i++) {
        j.q[i].q = ds_exec_scratch(e, (size_t)a->heads * a->dim);
        j.q[i].base = ds_exec_scratch(e, a->heads * groups * sizeof(int32_t));
        j.q[i].scale = ds_exec_scratch(e, a->heads * groups * sizeof(float));
    }
    for (size_t r = 0; r < st->n_rows;) {
        size_t visible = ds_kv_visible(&a->keys, st->pos[r]), rows = 1, end = (size_t)st->row0[st->seq[r]] + st->count[st->seq[r]];
        if (!a->pool_out && !restricted(a, r, visible) && visible <= a->topk) { /* all of them */
            a->n_sel[r] = (uint32_t)visible;
            for (size_t i = 0; i < visible; i++)
                a->sel[r * a->topk + i] = (int32_t)i;
            r++;
            continue;
        }
        bool alone = restricted(a, r, visible);
        if (alone && !a->pool_out) {
            j.list = j.pool;
            j.n = list_pool(a, r, visible, j.pool);
        } else {
            while (!alone && rows < batch && r + rows < end && !restricted(a, r + rows, ds_kv_visible(&a->keys, st->pos[r + rows])))
                rows++;
            j.list = NULL;
            j.n = ds_kv_visible(&a->keys, st->pos[r + rows - 1]);
        }
        if (a->pool_out)
            for (size_t i = 0; i < rows; i++)
                a->n_pool_out[r + i] = 0;
        run_batch(&j, r, rows);
        r += rows;
    }
    ds_arena_rewind(e->scratch, mark);
}

size_t ds_index_scratch(const ds_kern_limits *lim)
{
    size_t threads = lim->threads ? lim->threads : 1, per_entry, entries = (size_t)lim->max_entries + MAX_LANES;
    size_t batch = lim->max_entries <= SMALL ? SMALL_BATCH : BATCH, scores,
           small = SMALL_BATCH * (size_t)(SMALL + MAX_LANES) * sizeof(float);
    size_t query_bytes =
        SMALL_BATCH * ((size_t)lim->index_heads * (lim->index_dim + lim->index_dim / 32 * 8) + 3 * 64 + sizeof(ds_index_query));
    size_t member = (size_t)lim->index_dim * MAX_LANES * 2, all;

    if (!ds_size_mul(&scores, entries, batch * sizeof(float)) || !ds_size_mul(&per_entry, threads + 1, sizeof(int32_t)) ||
        !ds_size_mul(&per_entry, per_entry, entries) || !ds_size_mul(&member, member, threads) ||
        !ds_size_add(&all, larger(scores, small), per_entry) || !ds_size_add(&all, all, member) ||
        !ds_size_add(&all, all, query_bytes + 1024))
        return SIZE_MAX;
    return all;
}
