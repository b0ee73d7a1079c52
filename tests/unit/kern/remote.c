#include "kern/remote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANGES = 64, ALIGN = 256, GAP = 64 };
#define REGION_BYTES ((size_t)128 << 20)
#define SCRATCH_BYTES ((size_t)96 << 20)

typedef struct {
    const void *host;
    size_t at, bytes;
    bool written;
} range;

static struct {
    ds_device *d;
    ds_mem mem;
    ds_stream *s;
    ds_fence *e;
    unsigned char *region, *sent, *back; /* device, stage, stage */
    ds_arena scratch;                    /* its base is device memory */
    ds_fault *fault;                     /* stage */
    range r[MAX_RANGES];
    size_t n, used;
    ds_exec *caller;
    ds_exec exec;
} the;

static void die(const char *what, const char *more)
{
    fprintf(stderr, "remote device: %s %s\n", what, more);
    abort();
}

static void *range_of(const void *host, size_t bytes, bool written)
{
    const char *h = host;
    range *r;

    if (!host)
        return NULL;
    for (size_t i = 0; i < the.n; i++) { /* in place, or a part of it */
        const char *base = the.r[i].host;
        if (h >= base && h < base + the.r[i].bytes) {
            if ((size_t)(h - base) + bytes > the.r[i].bytes)
                die("ranges overlap in part", "");
            return the.region + the.r[i].at + (h - base);
        }
    }
    if (the.n == MAX_RANGES || bytes > REGION_BYTES - the.used - ALIGN - GAP)
        die("too much for one op", "");
    r = &the.r[the.n++];
    *r = (range){ host, the.used, bytes, written };
    if (bytes)
        memcpy(the.sent + the.used, host, bytes);
    size_t next = (the.used + bytes + GAP + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    memset(the.sent + the.used + bytes, 0xa5, next - the.used - bytes);
    the.used = next;
    return the.region + r->at;
}

/* What is written comes before what is only read, so that an input in place finds it. */
static void *io(void *host, size_t bytes)
{
    return range_of(host, bytes, true);
}

static void *in(const void *host, size_t bytes)
{
    return range_of(host, bytes, false);
}

static ds_exec *begin(ds_exec *e)
{
    the.n = 0;
    the.used = 0;
    the.caller = e;
    the.exec = (ds_exec){ .scratch = &the.scratch, .fault = the.fault, .bf16 = e->bf16, .stream = the.s };
    *the.fault = *e->fault;
    return &the.exec;
}

/* Everything stands there: to the device. */
static void send(void)
{
    the.d->fn->write(the.d, the.s, the.region, the.sent, the.used);
}

static void end(const char *op)
{
    ds_err err;
    size_t at = 0;

    the.d->fn->read(the.d, the.s, the.back, the.region, the.used);
    the.d->fn->mark(the.d, the.s, the.e);
    if (the.d->fn->wait(the.d, the.e, &err) != DS_OK)
        die(op, err.msg);
    for (size_t i = 0; i <= the.n; i++) { /* between the ranges that may be written */
        if (i < the.n && !the.r[i].written)
            continue;
        size_t upto = i < the.n ? the.r[i].at : the.used;
        if (memcmp(the.sent + at, the.back + at, upto - at) != 0)
            die(op, "wrote where it must not");
        if (i < the.n) {
            memcpy((void *)the.r[i].host, the.back + upto, the.r[i].bytes);
            at = upto + the.r[i].bytes;
        }
    }
    *the.caller->fault = *the.fault;
    if (the.scratch.used)
        die(op, "kept scratch");
}

/* ---- extents ---- */

static size_t span(size_t rows, size_t ld, size_t width)
{
    return rows ? ((rows - 1) * ld + width) * sizeof(float) : 0;
}

static ds_mat mat(const ds_mat *m)
{
    ds_mat d = *m;
    size_t n = (size_t)m->out * m->in;
    d.data = in(m->data, m->type == DS_MAT_F32 ? n * 4 : m->type == DS_MAT_BF16 ? n * 2 : m->type == DS_MAT_MXFP4 ? n / 2 : n);
    d.scale = in(m->scale, m->type == DS_MAT_FP8_32X32 ? (size_t)((m->out + 31) / 32) * ((m->in + 31) / 32) : n / 32);
    return d;
}

static ds_step step(const ds_step *st)
{
    ds_step d = *st;
    size_t rows = st->n_rows, seqs = st->n_seqs, word = sizeof(uint32_t);
    d.pos = in(st->pos, rows * word);
    d.seq = in(st->seq, rows * word);
    d.id = in(st->id, rows * word);
    d.dead = in(st->dead, rows);
    d.row0 = in(st->row0, seqs * word);
    d.count = in(st->count, seqs * word);
    d.pos0 = in(st->pos0, seqs * word);
    d.slot = in(st->slot, seqs * word);
    d.tail = in(st->tail, seqs * word);
    d.win_lo = in(st->win_lo, seqs * word);
    d.store_from = in(st->store_from, seqs * word);
    d.blocks = in(st->blocks, seqs * st->blocks_ld * word);
    return d;
}

static ds_ring_view ring(const ds_ring_view *r, const ds_step *st, const uint32_t *slot, bool written)
{
    ds_ring_view d = *r;
    size_t slots = 0;
    for (uint32_t s = 0; s < st->n_seqs; s++)
        if (slot[s] != DS_NONE && slot[s] >= slots)
            slots = slot[s] + (size_t)1;
    d.base = range_of(r->base, slots * r->slot_bytes, written);
    return d;
}

static ds_kv_view view(const ds_kv_view *v, const ds_step *st, bool written)
{
    ds_kv_view d = *v;
    size_t blocks = 0;
    for (size_t i = 0; i < st->n_seqs * st->blocks_ld; i++)
        if (st->blocks[i] >= blocks)
            blocks = st->blocks[i] + (size_t)1;
    d.base = range_of(v->base, blocks * v->block_bytes, written);
    return d;
}

/* ---- ops ---- */

#define RUN(name)             \
    do {                      \
        send();               \
        the.d->k.name(x, &b); \
        end(#name);           \
    } while (0)

static void rows(ds_exec *e, const ds_op_rows *a)
{
    ds_exec *x = begin(e);
    ds_op_rows b = *a;
    size_t rows = 0, blocks = 0, from = 0, seqs = a->n_seqs, word = sizeof(uint32_t);
    for (uint32_t s = 0; s < a->n_seqs; s++) {
        const ds_seq_rows *q = &a->seq[s];
        rows += q->count;
        blocks = q->block0 + q->n_blocks > blocks ? q->block0 + q->n_blocks : blocks;
        for (uint32_t k = 0; k < q->count; k++) {
            size_t row = q->pos0 + (int32_t)k >= q->src_pos ? q->src_row + (size_t)(q->pos0 + (int32_t)k - q->src_pos) : 0;
            from = row >= from ? row + 1 : from;
        }
    }
    b.seq = in(a->seq, seqs * sizeof *a->seq);
    b.block = in(a->block, blocks * word);
    b.id_in = in(a->id_in, rows * word);
    b.dead_in = a->id_in ? NULL : in(a->dead_in, from);
    b.pos = io(a->pos, rows * word);
    b.id = io(a->id, rows * word);
    b.of_seq = io(a->of_seq, rows * word);
    b.index = io(a->index, rows * word);
    b.dead = io(a->dead, rows);
    b.row0 = io(a->row0, seqs * word);
    b.count = io(a->count, seqs * word);
    b.slot = io(a->slot, seqs * word);
    b.tail = io(a->tail, seqs * word);
    b.blocks = io(a->blocks, seqs * a->blocks_ld * word);
    b.pos0 = io(a->pos0, seqs * word);
    b.win_lo = io(a->win_lo, seqs * word);
    b.dec_lo = io(a->dec_lo, seqs * word);
    b.store_from = io(a->store_from, seqs * word);
    RUN(rows);
}

static void scatter(ds_exec *e, const ds_op_scatter *a)
{
    ds_exec *x = begin(e);
    ds_op_scatter b = *a;
    size_t upto = 0;
    for (size_t i = 0; i < a->n; i++)
        upto = a->off[i] + a->bytes > upto ? a->off[i] + a->bytes : upto;
    b.dst = io(a->dst, upto);
    b.off = in(a->off, a->n * sizeof *a->off);
    b.src = in(a->src, a->n * a->bytes);
    RUN(scatter);
}

static void all_finite(ds_exec *e, const ds_op_finite *a)
{
    ds_exec *x = begin(e);
    ds_op_finite b = *a;
    b.x = in(a->x, span(a->rows, a->ldx, a->n));
    RUN(finite);
}

static void linear(ds_exec *e, const ds_op_linear *a)
{
    ds_exec *x = begin(e);
    ds_op_linear b = *a;
    b.y = io(a->y, span(a->rows, a->ldy, a->w->out));
    b.x = in(a->x, span(a->rows, a->ldx, (size_t)a->groups * a->w->in));
    ds_mat w = mat(a->w);
    b.w = &w;
    b.bias = in(a->bias, a->w->out * sizeof(float));
    RUN(linear);
}

static void dequant(ds_exec *e, const ds_op_dequant *a)
{
    ds_exec *x = begin(e);
    ds_op_dequant b = *a;
    b.dst = io(a->dst, a->rows * a->w->in * sizeof(float));
    ds_mat w = mat(a->w);
    b.w = &w;
    RUN(dequant);
}

static void rmsnorm(ds_exec *e, const ds_op_rmsnorm *a)
{
    ds_exec *x = begin(e);
    ds_op_rmsnorm b = *a;
    b.y = io(a->y, span(a->rows, a->ldy, a->dim));
    b.x = in(a->x, span(a->rows, a->ldx, a->dim));
    b.w = in(a->w, a->dim * sizeof(float));
    RUN(rmsnorm);
}

static void rope(ds_exec *e, const ds_op_rope *a)
{
    ds_exec *x = begin(e);
    ds_op_rope b = *a;
    int32_t most = 0;
    for (size_t r = 0; r < a->rows; r++)
        most = a->pos[r] + a->shift > most ? a->pos[r] + a->shift : most;
    b.x = io(a->x, span(a->rows, a->ldx, (size_t)a->heads * a->dim));
    b.pos = in(a->pos, a->rows * sizeof *a->pos);
    b.tab.cs = in(a->tab.cs, ((size_t)most + 1) * a->tab.rd * sizeof(float));
    RUN(rope);
}

static void add(ds_exec *e, const ds_op_add *a)
{
    ds_exec *x = begin(e);
    ds_op_add b = *a;
    b.y = io(a->y, a->n * sizeof(float));
    b.x = in(a->x, a->n * sizeof(float));
    RUN(add);
}

static void swiglu(ds_exec *e, const ds_op_swiglu *a)
{
    ds_exec *x = begin(e);
    ds_op_swiglu b = *a;
    b.h = io(a->h, span(a->rows, a->ldh, a->n));
    b.g = in(a->g, span(a->rows, a->ldg, a->n));
    b.u = in(a->u, span(a->rows, a->ldu, a->n));
    RUN(swiglu);
}

static void gelu(ds_exec *e, const ds_op_gelu *a)
{
    ds_exec *x = begin(e);
    ds_op_gelu b = *a;
    b.x = io(a->x, a->n * sizeof(float));
    RUN(gelu);
}

static void argmax(ds_exec *e, const ds_op_argmax *a)
{
    ds_exec *x = begin(e);
    ds_op_argmax b = *a;
    b.id = io(a->id, a->rows * sizeof *a->id);
    b.x = in(a->x, span(a->rows, a->ldx, a->n));
    RUN(argmax);
}

static void copy(ds_exec *e, const ds_op_copy *a)
{
    ds_exec *x = begin(e);
    ds_op_copy b = *a;
    size_t rows = a->index ? 0 : a->rows;
    for (size_t r = 0; a->index && r < a->rows; r++)
        rows = a->index[r] >= rows ? a->index[r] + (size_t)1 : rows;
    b.dst = io(a->dst, span(a->rows, a->ldd, a->n));
    b.src = in(a->src, span(rows, a->lds, a->n));
    b.index = in(a->index, a->rows * sizeof *a->index);
    RUN(copy);
}

static void embed(ds_exec *e, const ds_op_embed *a)
{
    ds_exec *x = begin(e);
    ds_op_embed b = *a;
    size_t extra = 0;
    for (size_t r = 0; r < a->rows; r++)
        if (a->id[r] < 0 && (size_t)-a->id[r] > extra)
            extra = (size_t)-a->id[r];
    b.y = io(a->y, a->rows * a->copies * a->table->in * sizeof(float));
    b.id = in(a->id, a->rows * sizeof *a->id);
    b.extra = in(a->extra, extra * a->table->in * sizeof(float));
    ds_mat w = mat(a->table);
    b.table = &w;
    RUN(embed);
}

static void mhc(ds_exec *e, const ds_op_mhc *a)
{
    ds_exec *x = begin(e);
    ds_op_mhc b = *a;
    size_t f = sizeof(float), out = (size_t)(2 + a->n) * a->n, nd = (size_t)a->n * a->d;
    b.X = io(a->X, a->rows * nd * f);
    b.x = io(a->x, a->rows * a->d * f);
    b.y = in(a->y, a->rows * a->d * f);
    b.mix_out = a->fn ? io(a->mix_out, a->rows * out * f) : NULL;
    b.mix_in = in(a->mix_in, a->rows * out * f);
    b.fn = in(a->fn, out * nd * f);
    b.base = in(a->base, out * f);
    b.scale = in(a->scale, 3 * f);
    RUN(mhc);
}

static void stream_mean(ds_exec *e, const ds_op_stream_mean *a)
{
    ds_exec *x = begin(e);
    ds_op_stream_mean b = *a;
    b.t = io(a->t, span(a->rows, a->ldt, a->d));
    b.X = in(a->X, a->rows * a->n * a->d * sizeof(float));
    RUN(stream_mean);
}

static void ring_store(ds_exec *e, const ds_op_ring_store *a)
{
    ds_exec *x = begin(e);
    ds_op_ring_store b = *a;
    b.ring = ring(&a->ring, a->step, a->slot, true);
    ds_step st = step(a->step);
    b.step = &st;
    b.slot = in(a->slot, a->step->n_seqs * sizeof *a->slot);
    b.src = in(a->src, a->step->n_rows * a->src_bytes);
    RUN(ring_store);
}

static void ring_load(ds_exec *e, const ds_op_ring_load *a)
{
    ds_exec *x = begin(e);
    ds_op_ring_load b = *a;
    b.dst = io(a->dst, a->step->n_rows * a->dst_bytes);
    b.ring = ring(&a->ring, a->step, a->slot, false);
    ds_step st = step(a->step);
    b.step = &st;
    b.slot = in(a->slot, a->step->n_seqs * sizeof *a->slot);
    RUN(ring_load);
}

static void win_quant(ds_exec *e, const ds_op_win_quant *a)
{
    ds_exec *x = begin(e);
    ds_op_win_quant b = *a;
    b.rec = io(a->rec, a->rows * DS_WIN_REC(a->dim));
    b.x = in(a->x, span(a->rows, a->ldx, a->dim));
    RUN(win_quant);
}

static void idx_quant(ds_exec *e, const ds_op_idx_quant *a)
{
    ds_exec *x = begin(e);
    ds_op_idx_quant b = *a;
    b.rec = io(a->rec, a->n * DS_IDX_REC(a->dim));
    b.x = in(a->x, a->n * a->dim * sizeof(float));
    RUN(idx_quant);
}

static void pool_pairs(ds_exec *e, const ds_op_pool_pairs *a)
{
    ds_exec *x = begin(e);
    ds_op_pool_pairs b = *a;
    size_t n = (size_t)a->step->n_rows * a->dim * sizeof(float);
    b.open = ring(&a->open, a->step, a->step->slot, true);
    b.u = io(a->u, n);
    b.k = in(a->k, n);
    b.z = in(a->z, n);
    ds_step st = step(a->step);
    b.step = &st;
    RUN(pool_pairs);
}

static void store(ds_exec *e, const ds_op_kv_store *a, bool index)
{
    ds_exec *x = begin(e);
    ds_op_kv_store b = *a;
    b.kv = view(&a->kv, a->step, true);
    b.x = in(a->x, (size_t)a->step->n_rows * a->dim * sizeof(float));
    ds_step st = step(a->step);
    b.step = &st;
    if (index)
        RUN(idx_store);
    else
        RUN(kv_store);
}

static void kv_store(ds_exec *e, const ds_op_kv_store *a)
{
    store(e, a, false);
}

static void idx_store(ds_exec *e, const ds_op_kv_store *a)
{
    store(e, a, true);
}

static void index_topk(ds_exec *e, const ds_op_index_topk *a)
{
    ds_exec *x = begin(e);
    ds_op_index_topk b = *a;
    size_t rows = a->step->n_rows, word = sizeof(uint32_t);
    b.sel = io(a->sel, rows * a->topk * word);
    b.n_sel = io(a->n_sel, rows * word);
    b.pool_out = io(a->pool_out, rows * a->pool_blocks * word);
    b.n_pool_out = io(a->n_pool_out, rows * word);
    b.pool_in = in(a->pool_in, rows * a->pool_blocks * word);
    b.n_pool_in = in(a->n_pool_in, rows * word);
    b.keys = view(&a->keys, a->step, false);
    b.q = in(a->q, rows * a->heads * DS_IDX_REC(a->dim));
    b.g = in(a->g, rows * a->heads * sizeof(float));
    ds_step st = step(a->step);
    b.step = &st;
    RUN(index_topk);
}

static void attention(ds_exec *e, const ds_op_attention *a)
{
    ds_exec *x = begin(e);
    ds_op_attention b = *a;
    size_t rows = a->step->n_rows, n = rows * a->heads * a->dim * sizeof(float);
    b.o = io(a->o, n);
    b.q = in(a->q, n);
    b.sink = in(a->sink, a->heads * sizeof(float));
    b.ring = ring(&a->ring, a->step, a->step->slot, false);
    b.rec = in(a->rec, rows * DS_WIN_REC(a->dim));
    if (a->sel)
        b.kv = view(&a->kv, a->step, false);
    b.sel = in(a->sel, rows * a->topk * sizeof *a->sel);
    b.n_sel = in(a->n_sel, rows * sizeof *a->n_sel);
    ds_step st = step(a->step);
    b.step = &st;
    RUN(attention);
}

static void route(ds_exec *e, const ds_op_route *a)
{
    ds_exec *x = begin(e);
    ds_op_route b = *a;
    size_t f = sizeof(float);
    b.sel = io(a->sel, a->rows * a->k * sizeof *a->sel);
    b.w = io(a->w, a->rows * a->k * f);
    b.logit = in(a->logit, a->rows * a->experts * f);
    b.bias = in(a->bias, a->experts * f);
    b.bias_vl = in(a->bias_vl, a->experts * f);
    b.dead = in(a->dead, a->rows);
    RUN(route);
}

static void experts_part(ds_exec *e, const ds_op_experts_part *a)
{
    ds_exec *x = begin(e);
    ds_op_experts_part b = *a;
    ds_mat *w[3];
    const ds_mat *from[3] = { a->w1, a->w3, a->w2 };
    ds_mem mem = { .d = the.d };
    ds_err err;

    b.part = io(a->part, a->rows * a->k * a->d * sizeof(float));
    b.x = in(a->x, a->rows * a->d * sizeof(float));
    b.sel = in(a->sel, a->rows * a->k * sizeof *a->sel);
    b.w = in(a->w, a->rows * a->k * sizeof(float));
    for (int i = 0; i < 3; i++) {
        w[i] = malloc((a->n + 1) * sizeof **w);
        if (!w[i])
            die("experts_part", "out of memory");
        memcpy(w[i], from[i], a->n * sizeof **w);
    }
    if (the.d->fn->place_experts && the.d->fn->place_experts(the.d, &mem, w[0], w[1], w[2], a->n, &err) != DS_OK)
        die("experts_part", err.msg);
    b.w1 = w[0];
    b.w3 = w[1];
    b.w2 = w[2];
    RUN(experts_part);
    ds_mem_free(&mem);
    for (int i = 0; i < 3; i++)
        free(w[i]);
}

static void experts_sum(ds_exec *e, const ds_op_experts_sum *a)
{
    ds_exec *x = begin(e);
    ds_op_experts_sum b = *a;
    size_t n = a->rows * a->d * sizeof(float);
    b.y = io(a->y, n);
    b.part = in(a->part, n * a->k);
    b.shared = in(a->shared, n);
    RUN(experts_sum);
}

static void engram_hash(ds_exec *e, const ds_op_engram_hash *a)
{
    ds_exec *x = begin(e);
    ds_op_engram_hash b = *a;
    size_t cols = (size_t)(a->max_ngram - 1) * a->heads, ids = 0;
    for (uint32_t r = 0; r < a->step->n_rows; r++)
        if (a->step->id[r] >= 0 && (size_t)a->step->id[r] >= ids)
            ids = (size_t)a->step->id[r] + 1;
    b.hist = ring(&a->hist, a->step, a->step->slot, true);
    b.row = io(a->row, a->step->n_rows * cols * sizeof *a->row);
    b.map = in(a->map, ids * sizeof *a->map);
    b.mult = in(a->mult, a->max_ngram * sizeof *a->mult);
    b.prime = in(a->prime, cols * sizeof *a->prime);
    b.offset = in(a->offset, cols * sizeof *a->offset);
    ds_step st = step(a->step);
    b.step = &st;
    RUN(engram_hash);
}

static void engram_gather(ds_exec *e, const ds_op_engram_gather *a)
{
    ds_exec *x = begin(e);
    ds_op_engram_gather b = *a;
    b.y = io(a->y, a->rows * a->cols * a->table->in * sizeof(float));
    b.row = in(a->row, a->rows * a->cols * sizeof *a->row);
    b.dead = in(a->dead, a->rows);
    ds_mat w = mat(a->table);
    b.table = &w;
    RUN(engram_gather);
}

static void engram_fuse(ds_exec *e, const ds_op_engram_fuse *a)
{
    ds_exec *x = begin(e);
    ds_op_engram_fuse b = *a;
    size_t nd = (size_t)a->n * a->d * sizeof(float);
    b.X = io(a->X, a->rows * nd);
    b.kv = in(a->kv, a->rows * (nd + a->d * sizeof(float)));
    b.qw = in(a->qw, nd);
    b.kw = in(a->kw, nd);
    b.dead = in(a->dead, a->rows);
    RUN(engram_fuse);
}

static void rope2d(ds_exec *e, const ds_op_rope2d *a)
{
    ds_exec *x = begin(e);
    ds_op_rope2d b = *a;
    size_t positions = a->rows / a->n_w + 1;
    positions = positions < a->n_w ? a->n_w : positions;
    b.x = io(a->x, span(a->rows, a->ldx, (size_t)a->heads * a->dim));
    b.cs = in(a->cs, a->rows ? (positions < a->rows + 1 ? positions : a->rows + 1) * (a->dim / 2) * sizeof(float) : 0);
    RUN(rope2d);
}

static void vit_attention(ds_exec *e, const ds_op_vit_attention *a)
{
    ds_exec *x = begin(e);
    ds_op_vit_attention b = *a;
    size_t width = (size_t)a->heads * a->dim;
    const float *base = a->q < a->k ? a->q : a->k;
    base = a->v < base ? a->v : base;
    b.o = io(a->o, a->n * width * sizeof(float));
    const float *qkv = in(base, span(a->n, a->ld, 3 * width)); /* side by side in a row */
    b.q = qkv + (a->q - base);
    b.k = qkv + (a->k - base);
    b.v = qkv + (a->v - base);
    RUN(vit_attention);
}

static void cells(ds_exec *e, const ds_op_cells *a)
{
    ds_exec *x = begin(e);
    ds_op_cells b = *a;
    size_t gh = (a->n_h + a->s - 1) / a->s, gw = (a->n_w + a->s - 1) / a->s;
    b.out = io(a->out, gh * gw * a->dim * a->s * a->s * sizeof(float));
    b.x = in(a->x, (size_t)a->n_h * a->n_w * a->dim * sizeof(float));
    RUN(cells);
}

static void sample(ds_exec *e, const ds_op_sample *a)
{
    ds_exec *x = begin(e);
    ds_op_sample b = *a;
    ds_sample_rows *seq = calloc(a->n_seqs + (size_t)1, sizeof *seq);
    size_t rows = 0;

    if (!seq)
        die("sample", "out of memory");
    for (uint32_t s = 0; s < a->n_seqs; s++) {
        ds_sample_rows *q = &seq[s];
        *q = a->seq[s];
        rows = q->row + q->n > rows ? q->row + q->n : rows;
        q->how.bias = in(q->how.bias, q->how.n_bias * sizeof *q->how.bias);
        q->how.stop = in(q->how.stop, q->how.n_stop * sizeof *q->how.stop);
        q->how.n_output = range_of(q->how.n_output, a->vocab * sizeof *q->how.n_output, !a->id);
        q->how.in_prompt = in(q->how.in_prompt, a->vocab);
        q->allowed = in(q->allowed, span(q->n, q->allowed_ld, (a->vocab + 31) / 32));
    }
    b.seq = in(seq, a->n_seqs * sizeof *seq);
    b.logits = in(a->logits, span(rows, a->ld, a->vocab));
    b.id = io(a->id, a->n_seqs * sizeof *a->id);
    b.out = a->id ? NULL : io(a->out, a->n_seqs * sizeof *a->out);
    b.top = a->id ? NULL : io(a->top, (size_t)a->n_seqs * DS_MAX_DRAWS * DS_MAX_TOP * sizeof *a->top);
    RUN(sample);
    free(seq);
}

static void accept_draws(ds_exec *e, const ds_op_accept *a)
{
    ds_exec *x = begin(e);
    ds_op_accept b = *a;
    size_t rows = 0;
    for (uint32_t s = 0; s < a->n; s++)
        rows += a->first[s].count;
    b.drawn = in(a->drawn, a->n * sizeof *a->drawn);
    b.first = in(a->first, a->n * sizeof *a->first);
    b.seq = io(a->seq, a->n * sizeof *a->seq);
    b.id = io(a->id, rows * sizeof *a->id);
    b.draw = io(a->draw, a->n * sizeof *a->draw);
    RUN(accept);
}

/* ---- the table ---- */

void remote_close(void)
{
    if (!the.d)
        return;
    the.d->fn->stream_destroy(the.d, the.s);
    the.d->fn->fence_destroy(the.d, the.e);
    ds_mem_free(&the.mem);
    memset(&the, 0, sizeof the);
}

ds_rc remote_open(ds_kern *k, ds_device *d, ds_err *err)
{
    the.d = d;
    the.mem.d = d;
    the.region = ds_mem_take(&the.mem, DS_MEM_DEVICE, REGION_BYTES, err);
    the.sent = ds_mem_take(&the.mem, DS_MEM_STAGE, REGION_BYTES, err);
    the.back = ds_mem_take(&the.mem, DS_MEM_STAGE, REGION_BYTES, err);
    the.scratch = (ds_arena){ .base = ds_mem_take(&the.mem, DS_MEM_DEVICE, SCRATCH_BYTES, err), .cap = SCRATCH_BYTES };
    the.fault = ds_mem_take(&the.mem, DS_MEM_STAGE, sizeof *the.fault, err);
    if (!the.region || !the.sent || !the.back || !the.scratch.base || !the.fault || d->fn->stream_create(d, &the.s, err) != DS_OK ||
        d->fn->fence_create(d, &the.e, err) != DS_OK) {
        remote_close();
        return err->rc;
    }
    *k = (ds_kern){ .name = d->k.name,
                    .scratch_bytes = d->k.scratch_bytes,
                    .rows = rows,
                    .linear = linear,
                    .dequant = dequant,
                    .rmsnorm = rmsnorm,
                    .rope = rope,
                    .add = add,
                    .swiglu = swiglu,
                    .gelu = gelu,
                    .argmax = argmax,
                    .copy = copy,
                    .scatter = scatter,
                    .finite = all_finite,
                    .embed = embed,
                    .mhc = mhc,
                    .stream_mean = stream_mean,
                    .ring_store = ring_store,
                    .ring_load = ring_load,
                    .win_quant = win_quant,
                    .idx_quant = idx_quant,
                    .pool_pairs = pool_pairs,
                    .kv_store = kv_store,
                    .idx_store = idx_store,
                    .index_topk = index_topk,
                    .attention = attention,
                    .route = route,
                    .experts_part = experts_part,
                    .experts_sum = experts_sum,
                    .engram_hash = engram_hash,
                    .engram_gather = engram_gather,
                    .engram_fuse = engram_fuse,
                    .rope2d = rope2d,
                    .vit_attention = vit_attention,
                    .cells = cells,
                    .sample = sample,
                    .accept = accept_draws };
    return DS_OK;
}
