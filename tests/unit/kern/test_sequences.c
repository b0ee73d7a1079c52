/* Ops that see sequences and their caches: attention, index selection, pooling, rings and stores. Every variant
 * against ref, rows of a step together and cut in any way, any number of threads. */
#include "kern_test.h"

enum { BLOCK = 16, MAX_ROWS = 96, N_SEQS = 3 };

/* Three sequences, their blocks and rings, with records at every place. The step has rows of all three. */
typedef struct {
    uint32_t dim, heads, window, topk, ratio, n_blocks, ring_len;
    ds_step st;
    int32_t pos[MAX_ROWS], id[MAX_ROWS], pos0[N_SEQS], win_lo[N_SEQS], store_from[N_SEQS];
    uint32_t seq[MAX_ROWS], row0[N_SEQS], count[N_SEQS], slot[N_SEQS], tail[N_SEQS], *blocks;
    uint8_t dead[MAX_ROWS];
    uint8_t *main, *index, *ring, *rec;
    float *q, *g, *sink;
    uint8_t *iq;
    int32_t *sel;
    uint32_t n_sel[MAX_ROWS];
} world;

static void fill_main(uint8_t *rec, uint64_t *s, uint32_t dim)
{
    float v[512];
    for (uint32_t i = 0; i < dim; i++)
        v[i] = random_normal(s);
    ds_kv_main_pack(rec, v, dim);
}

static void fill_window(uint8_t *rec, uint64_t *s, uint32_t dim)
{
    float v[512];
    for (uint32_t i = 0; i < dim; i++)
        v[i] = random_normal(s);
    ds_kv_window_pack(rec, v, dim);
}

static void fill_index(uint8_t *rec, uint64_t *s, uint32_t dim)
{
    float v[512];
    for (uint32_t i = 0; i < dim; i++)
        v[i] = random_normal(s);
    ds_kv_index_pack(rec, v, dim);
}

/* Positions pos0[i] .. of sequence i. */
static void set_step(world *w, const int32_t *pos0, const uint32_t *count)
{
    uint32_t r = 0;

    for (uint32_t s = 0; s < N_SEQS; s++) {
        w->pos0[s] = pos0[s];
        w->count[s] = count[s];
        w->row0[s] = r;
        for (uint32_t i = 0; i < count[s]; i++, r++) {
            w->pos[r] = pos0[s] + (int32_t)i;
            w->seq[r] = s;
            w->id[r] = (int32_t)(r * 7 % 50);
        }
    }
    w->st.n_rows = r;
}

static world *make_world(uint64_t *s, uint32_t heads, uint32_t dim, uint32_t window, uint32_t topk, uint32_t ratio)
{
    world *w = calloc(1, sizeof *w);
    size_t entries;

    *w = (world){ .dim = dim, .heads = heads, .window = window, .topk = topk, .ratio = ratio, .n_blocks = 40, .ring_len = window + 6 };
    w->blocks = calloc(N_SEQS * 12, sizeof *w->blocks);
    for (uint32_t i = 0; i < N_SEQS * 12; i++)
        w->blocks[i] = (i * 7 + 3) % w->n_blocks;
    entries = (size_t)w->n_blocks * BLOCK / ratio;
    w->main = calloc(entries, DS_MAIN_REC(dim));
    w->index = calloc(entries, DS_IDX_REC(dim));
    for (size_t i = 0; i < entries; i++) {
        fill_main(w->main + i * DS_MAIN_REC(dim), s, dim);
        fill_index(w->index + i * DS_IDX_REC(dim), s, dim);
    }
    w->ring = calloc((size_t)N_SEQS * w->ring_len, DS_WIN_REC(dim));
    for (size_t i = 0; i < (size_t)N_SEQS * w->ring_len; i++)
        fill_window(w->ring + i * DS_WIN_REC(dim), s, dim);
    w->rec = calloc(MAX_ROWS, DS_WIN_REC(dim));
    w->iq = calloc((size_t)MAX_ROWS * heads, DS_IDX_REC(dim));
    for (size_t i = 0; i < MAX_ROWS; i++)
        fill_window(w->rec + i * DS_WIN_REC(dim), s, dim);
    for (size_t i = 0; i < (size_t)MAX_ROWS * heads; i++)
        fill_index(w->iq + i * DS_IDX_REC(dim), s, dim);
    w->q = random_floats(s, (size_t)MAX_ROWS * heads * dim, 1.0f, true);
    w->g = random_floats(s, (size_t)MAX_ROWS * heads, 1.0f, true);
    w->sink = random_floats(s, heads, 1.0f, false);
    w->sel = calloc((size_t)MAX_ROWS * topk, sizeof *w->sel);
    for (uint32_t i = 0; i < N_SEQS; i++)
        w->slot[i] = N_SEQS - 1 - i;
    w->st = (ds_step){ .n_seqs = N_SEQS,
                       .pos = w->pos,
                       .seq = w->seq,
                       .id = w->id,
                       .dead = w->dead,
                       .row0 = w->row0,
                       .count = w->count,
                       .pos0 = w->pos0,
                       .slot = w->slot,
                       .tail = w->tail,
                       .win_lo = w->win_lo,
                       .store_from = w->store_from,
                       .blocks = w->blocks,
                       .blocks_ld = 12 };
    return w;
}

static void free_world(world *w)
{
    void *all[] = { w->blocks, w->main, w->index, w->ring, w->rec, w->q, w->g, w->sink, w->iq, w->sel, w };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static ds_kv_view view(uint8_t *base, uint32_t rec, uint32_t ratio)
{
    return (ds_kv_view){
        .base = base, .block_bytes = (size_t)BLOCK / ratio * rec, .rec_bytes = rec, .ratio = ratio, .per_block = BLOCK / ratio
    };
}

static ds_ring_view ring_view(const world *w)
{
    return (ds_ring_view){
        .base = w->ring, .slot_bytes = (size_t)w->ring_len * DS_WIN_REC(w->dim), .len = w->ring_len, .rec_bytes = DS_WIN_REC(w->dim)
    };
}

/* Rows [r0, r0 + n) of the step, all of one sequence, as a step of their own whose earlier rows are in `ring`. */
static void one_row_step(ds_step *st, const world *w, uint32_t r, uint32_t *zero, uint32_t *one)
{
    uint32_t s = w->seq[r];
    *zero = 0;
    *one = 1;
    *st = w->st;
    st->n_rows = 1;
    st->n_seqs = 1;
    st->pos += r;
    st->id += r;
    st->dead += r;
    st->seq = zero;
    st->row0 = zero;
    st->count = one;
    st->pos0 = w->pos + r;
    st->slot += s;
    st->win_lo += s;
    st->store_from += s;
    st->blocks += s * st->blocks_ld;
}

/* ---- attention ---- */

static ds_op_attention attention_op(world *w, float *o, bool selected, bool bidir)
{
    return (ds_op_attention){ .step = &w->st,
                              .o = o,
                              .q = w->q,
                              .sink = w->sink,
                              .scale = 0.2f,
                              .heads = w->heads,
                              .dim = w->dim,
                              .window = w->window,
                              .bidir = bidir,
                              .ring = ring_view(w),
                              .rec = w->rec,
                              .kv = view(w->main, DS_MAIN_REC(w->dim), w->ratio),
                              .sel = selected ? w->sel : NULL,
                              .n_sel = w->n_sel,
                              .topk = w->topk };
}

static void random_selection(world *w, uint64_t *s)
{
    for (uint32_t r = 0; r < w->st.n_rows; r++) {
        uint32_t visible = (uint32_t)(w->pos[r] + 1) / w->ratio, n = 0;
        for (uint32_t i = 0; i < visible && n < w->topk; i++)
            if (next_random(s) % 2)
                w->sel[r * w->topk + n++] = (int32_t)i;
        w->n_sel[r] = n;
    }
}

static void attention(void **state)
{
    variant *v = *state;
    uint64_t s = 1;
    static const struct {
        uint32_t heads, dim, window, topk;
    } shapes[] = { { 6, 64, 16, 24 }, { 1, 32, 8, 7 }, { 3, 96, 33, 40 }, { 9, 512, 16, 20 } };
    static const int32_t starts[][N_SEQS] = { { 0, 0, 0 }, { 0, 37, 90 }, { 5, 1, 60 } };
    static const uint32_t counts[][N_SEQS] = { { 1, 1, 1 }, { 20, 1, 4 }, { 1, 40, 6 } };

    for (size_t shape = 0; shape < 4; shape++)
        for (size_t step = 0; step < 3; step++)
            for (int mode = 0; mode < 8; mode++) {
                bool bf16 = mode & 1, selected = mode & 2, bidir = mode & 4;
                world *w = make_world(&s, shapes[shape].heads, shapes[shape].dim, shapes[shape].window, shapes[shape].topk,
                                      1 + (uint32_t)step % 2);
                size_t width = (size_t)w->heads * w->dim, n;
                v->e.bf16 = bf16;
                set_step(w, starts[step], counts[step]);
                w->win_lo[2] = w->pos0[2] - 3; /* a truncated window */
                random_selection(w, &s);
                n = w->st.n_rows * width;
                float *want = zero_floats(n), *got = zero_floats(n), *part = zero_floats(n);
                double *bound = calloc(n, sizeof *bound);
                ds_op_attention a = attention_op(w, want, selected, bidir);
                v->ref.attention(&v->e, &a);
                for (size_t i = 0; i < n; i++)
                    bound[i] =
                        4e-6 * 4.0 + (bf16 ? fabs((double)want[i]) * 0x1p-7 : 0.0); /* entries are below 3, and grow by quantisation */
                a.o = got;
                v->k.attention(&v->e, &a);
                assert_within(got, want, bound, n, "attention");
                for (uint32_t r = 0; r < w->st.n_rows && !bidir; r++) { /* alone, its earlier rows from the ring; o may be q */
                    world *x = w;
                    ds_step st;
                    uint32_t zero, one, seq = w->seq[r];
                    uint8_t *ring = malloc((size_t)N_SEQS * w->ring_len * DS_WIN_REC(w->dim)), *kept = w->ring;
                    memcpy(ring, w->ring, (size_t)N_SEQS * w->ring_len * DS_WIN_REC(w->dim));
                    w->ring = ring;
                    for (uint32_t e = w->row0[seq]; e < r; e++) {
                        ds_ring_view view_ = ring_view(w);
                        memcpy(ds_ring_at(&view_, w->slot[seq], w->pos[e]), w->rec + e * DS_WIN_REC(w->dim), DS_WIN_REC(w->dim));
                    }
                    one_row_step(&st, w, r, &zero, &one);
                    ds_op_attention b = attention_op(x, part + r * width, selected, false);
                    memcpy(part + r * width, w->q + r * width, width * sizeof *part);
                    b.q = part + r * width;
                    b.step = &st;
                    b.rec += r * DS_WIN_REC(w->dim);
                    b.sel = selected ? w->sel + r * w->topk : NULL;
                    b.n_sel += r;
                    v->k.attention(&v->e, &b);
                    w->ring = kept;
                    free(ring);
                }
                if (!bidir)
                    assert_same_bits(part, got, n * sizeof *got, "attention of rows together and alone");
                for (size_t t = 0; t < 3; t++) {
                    ds_err err;
                    assert_ok(ds_pool_create(&v->e.pool, &(ds_pool_opts){ .n_threads = thread_counts[t] }, &err));
                    a.o = part;
                    v->k.attention(&v->e, &a);
                    ds_pool_destroy(v->e.pool);
                    v->e.pool = NULL;
                    assert_same_bits(part, got, n * sizeof *got, "attention on threads");
                }
                free(want);
                free(got);
                free(part);
                free(bound);
                free_world(w);
            }
}

/* A row by all threads at once, which only large ones are. */
static void attention_of_one_large_row(void **state)
{
    variant *v = *state;
    uint64_t s = 2;
    world *w = make_world(&s, 32, 512, 100, 80, 1);
    const int32_t pos0[] = { 0, 0, 170 };
    const uint32_t count[] = { 0, 0, 1 };
    size_t n = 32 * 512;
    float *alone = zero_floats(n), *got = zero_floats(n);

    v->e.bf16 = false;
    set_step(w, pos0, count);
    random_selection(w, &s);
    ds_op_attention a = attention_op(w, alone, true, false);
    v->k.attention(&v->e, &a);
    a.o = got;
    for (size_t t = 0; t < 3; t++) {
        ds_err err;
        assert_ok(ds_pool_create(&v->e.pool, &(ds_pool_opts){ .n_threads = thread_counts[t] }, &err));
        v->k.attention(&v->e, &a);
        ds_pool_destroy(v->e.pool);
        v->e.pool = NULL;
        assert_same_bits(got, alone, n * sizeof *got, "a row by all threads");
    }
    free(alone);
    free(got);
    free_world(w);
}

/* Everything masked, NaN in a record, huge scales. */
static void attention_edges(void **state)
{
    variant *v = *state;
    uint64_t s = 3;
    world *w = make_world(&s, 2, 32, 8, 4, 1);
    const int32_t pos0[] = { 3, 20, 30 };
    const uint32_t count[] = { 1, 1, 1 };
    float *want = zero_floats(3 * 64), *got = zero_floats(3 * 64);

    v->e.bf16 = false;
    set_step(w, pos0, count);
    w->win_lo[0] = 4;                       /* sees nothing */
    memset(w->rec + DS_WIN_REC(32), 0, 32); /* a poisoned group: NaN scale, zero codes */
    w->rec[DS_WIN_REC(32) + 32] = 255;
    w->rec[2 * DS_WIN_REC(32) + 32] = 250; /* values near the end of the range of floats */
    memset(w->rec + 2 * DS_WIN_REC(32), 0, 32);
    w->rec[2 * DS_WIN_REC(32) + 3] = 0x08;
    ds_op_attention a = attention_op(w, want, false, false);
    v->ref.attention(&v->e, &a);
    a.o = got;
    v->k.attention(&v->e, &a);
    for (size_t i = 0; i < 64; i++) {
        assert_true(got[i] == 0.0f && want[i] == 0.0f);
        assert_true(isnan(got[64 + i]) == isnan(want[64 + i]));
        assert_true(isnan(want[128 + i]) ? isnan(got[128 + i])
                                         : fabs((double)got[128 + i] - (double)want[128 + i]) <= 1e-5 * fabs((double)want[128 + i]) + 1e-4);
    }
    free(want);
    free(got);
    free_world(w);
}

/* ---- index selection ---- */

typedef struct {
    int32_t *sel, *pool;
    uint32_t n_sel[MAX_ROWS], n_pool[MAX_ROWS];
} chosen;

static void choose(const ds_kern *k, ds_exec *e, world *w, const ds_step *st, uint32_t r0, chosen *c, uint32_t pools, uint32_t per_pool,
                   bool pool_out, const chosen *in)
{
    k->index_topk(e, &(ds_op_index_topk){ .step = st,
                                          .keys = view(w->index, DS_IDX_REC(w->dim), w->ratio),
                                          .q = w->iq + (size_t)r0 * w->heads * DS_IDX_REC(w->dim),
                                          .g = w->g + r0 * w->heads,
                                          .g_scale = 0.125f,
                                          .heads = w->heads,
                                          .dim = w->dim,
                                          .topk = w->topk,
                                          .sel = c->sel + r0 * w->topk,
                                          .n_sel = c->n_sel + r0,
                                          .pool_in = in ? in->pool + r0 * pools : NULL,
                                          .n_pool_in = in ? in->n_pool + r0 : NULL,
                                          .pool_out = pool_out ? c->pool + r0 * pools : NULL,
                                          .n_pool_out = pool_out ? c->n_pool + r0 : NULL,
                                          .pool_blocks = pools,
                                          .pool_block = per_pool });
}

static chosen make_chosen(const world *w, uint32_t pools)
{
    return (chosen){ .sel = calloc((size_t)MAX_ROWS * w->topk + 1, sizeof(int32_t)),
                     .pool = calloc((size_t)MAX_ROWS * pools + 1, sizeof(int32_t)) };
}

static void free_chosen(chosen *c)
{
    free(c->sel);
    free(c->pool);
}

static void assert_same_choice(const world *w, const chosen *got, const chosen *want, uint32_t pools, bool pool_out, const char *what)
{
    for (uint32_t r = 0; r < w->st.n_rows; r++) {
        bool same = got->n_sel[r] == want->n_sel[r] &&
                    memcmp(got->sel + r * w->topk, want->sel + r * w->topk, want->n_sel[r] * sizeof *got->sel) == 0;
        if (pool_out)
            same = same && got->n_pool[r] == want->n_pool[r] &&
                   memcmp(got->pool + r * pools, want->pool + r * pools, want->n_pool[r] * sizeof *got->pool) == 0;
        if (!same)
            fail_msg("%s: row %u (position %d) chose others: %u, expected %u; blocks %u, expected %u", what, r, w->pos[r], got->n_sel[r],
                     want->n_sel[r], got->n_pool[r], want->n_pool[r]);
    }
}

static void index_selection(void **state)
{
    variant *v = *state;
    uint64_t s = 4;
    static const struct {
        uint32_t heads, dim, topk, pools, per_pool, poison;
    } cases[] = { { 4, 32, 24, 5, 4, 0 },   { 3, 64, 8, 6, 8, 0 }, { 32, 128, 40, 3, 8, 0 }, { 1, 32, 16, 4, 4, 0 },
                  { 4, 32, 200, 50, 4, 0 }, { 2, 32, 9, 4, 4, 1 }, { 2, 32, 9, 4, 4, 2 } };
    static const int32_t starts[][N_SEQS] = { { 0, 37, 90 }, { 150, 1, 60 } };
    static const uint32_t counts[][N_SEQS] = { { 20, 1, 50 }, { 1, 40, 6 } };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t step = 0; step < 2; step++)
            for (uint32_t ratio = 1; ratio <= 2; ratio++) {
                uint32_t pools = cases[i].pools, per = cases[i].per_pool;
                world *w = make_world(&s, cases[i].heads, cases[i].dim, 8, cases[i].topk, ratio);
                chosen want = make_chosen(w, pools), got = make_chosen(w, pools), in = make_chosen(w, pools);
                set_step(w, starts[step], counts[step]);
                if (cases[i].poison == 1) /* NaN keys, and infinite weights whose product is often zero */
                    for (size_t k = 0; k < (size_t)w->n_blocks * BLOCK / ratio; k += 3) {
                        memset(w->index + k * DS_IDX_REC(w->dim), 0, DS_IDX_REC(w->dim));
                        w->index[k * DS_IDX_REC(w->dim) + w->dim / 2] = k % 2 ? 255 : 120;
                        w->g[k % ((size_t)MAX_ROWS * w->heads)] = INFINITY;
                    }
                if (cases[i].poison == 2) /* everything is a tie at zero, or NaN */
                    for (size_t k = 0; k < (size_t)MAX_ROWS * w->heads; k++)
                        w->g[k] = k % 5 == 0 ? NAN : 0.0f;
                for (int pass = 0; pass < 4; pass++) { /* plain; making a pool; within a pool; both */
                    bool out = pass & 1;
                    const chosen *restrict_to = pass >= 2 ? &in : NULL;
                    if (pass == 2)
                        choose(&v->ref, &v->e, w, &w->st, 0, &in, pools, per, true, NULL);
                    choose(&v->ref, &v->e, w, &w->st, 0, &want, pools, per, out, restrict_to);
                    choose(&v->k, &v->e, w, &w->st, 0, &got, pools, per, out, restrict_to);
                    assert_same_choice(w, &got, &want, pools, out, "index_topk");
                    for (uint32_t r = 0; r < w->st.n_rows; r++) {
                        ds_step st;
                        uint32_t zero, one;
                        one_row_step(&st, w, r, &zero, &one);
                        choose(&v->k, &v->e, w, &st, r, &got, pools, per, out, restrict_to);
                    }
                    assert_same_choice(w, &got, &want, pools, out, "index_topk, rows alone");
                    for (size_t t = 0; t < 3; t++) {
                        ds_err err;
                        assert_ok(ds_pool_create(&v->e.pool, &(ds_pool_opts){ .n_threads = thread_counts[t] }, &err));
                        choose(&v->k, &v->e, w, &w->st, 0, &got, pools, per, out, restrict_to);
                        ds_pool_destroy(v->e.pool);
                        v->e.pool = NULL;
                        assert_same_choice(w, &got, &want, pools, out, "index_topk on threads");
                    }
                }
                free_chosen(&want);
                free_chosen(&got);
                free_chosen(&in);
                free_world(w);
            }
}

/* ---- stores ---- */

/* Runs every op that writes to caches, with k; returns all bytes that they may have touched. */
static void write_caches(const ds_kern *k, ds_exec *e, world *w, const float *x, const float *z, uint8_t *open, uint8_t *hist, float *u,
                         uint64_t *rows, uint8_t *loaded)
{
    static const int32_t map[50] = { 3, 1, 4, 1, 5, 9, 2, 6 };
    static const uint64_t mult[4] = { 11, 1000003, 77777777777ull, 13 }, prime[6] = { 101, 103, 107, 109, 113, 127 },
                          offset[6] = { 0, 101, 204, 311, 420, 533 };
    ds_ring_view ring = ring_view(w),
                 open_ring = { .base = open, .slot_bytes = 4 * DS_OPEN_REC(w->dim), .len = 4, .rec_bytes = (uint32_t)DS_OPEN_REC(w->dim) };

    k->pool_pairs(e, &(ds_op_pool_pairs){ .step = &w->st, .open = open_ring, .u = u, .k = x, .z = z, .dim = w->dim, .tag = 3 });
    k->kv_store(e, &(ds_op_kv_store){ .step = &w->st, .kv = view(w->main, DS_MAIN_REC(w->dim), w->ratio), .x = x, .dim = w->dim });
    k->idx_store(e, &(ds_op_kv_store){ .step = &w->st, .kv = view(w->index, DS_IDX_REC(w->dim), w->ratio), .x = z, .dim = w->dim });
    k->ring_store(e,
                  &(ds_op_ring_store){ .step = &w->st, .ring = ring, .slot = w->st.slot, .src = w->rec, .src_bytes = DS_WIN_REC(w->dim) });
    k->ring_load(e, &(ds_op_ring_load){ .step = &w->st, .ring = ring, .slot = w->st.slot, .dst = loaded, .dst_bytes = DS_WIN_REC(w->dim) });
    k->engram_hash(e, &(ds_op_engram_hash){ .step = &w->st,
                                            .hist = { .base = hist, .slot_bytes = 8 * 8, .len = 8, .rec_bytes = 8 },
                                            .row = rows,
                                            .map = map,
                                            .pad = 7,
                                            .mult = mult,
                                            .prime = prime,
                                            .offset = offset,
                                            .max_ngram = 4,
                                            .heads = 2,
                                            .store = true,
                                            .tag = 4 });
}

static void stores(void **state)
{
    variant *v = *state;
    static const int32_t starts[][N_SEQS] = { { 0, 37, 90 }, { 151, 1, 60 } };
    static const uint32_t counts[][N_SEQS] = { { 20, 1, 50 }, { 1, 40, 6 } };

    for (size_t step = 0; step < 2; step++)
        for (uint32_t ratio = 1; ratio <= 2; ratio++)
            for (int t = -1; t < 3; t++) {
                uint64_t s = 5;
                world *w[2] = { make_world(&s, 1, 64, 8, 4, ratio), NULL };
                s = 5;
                w[1] = make_world(&s, 1, 64, 8, 4, ratio);
                uint64_t s2 = 6;
                float *x = random_floats(&s2, MAX_ROWS * 64, 1.0f, false), *z = random_floats(&s2, MAX_ROWS * 64, 3.0f, false), *u[2];
                uint8_t *open[2], *hist[2], *loaded[2];
                uint64_t *rows[2];
                ds_fault fault[2];
                for (int i = 0; i < 2; i++) { /* ref, then the variant */
                    ds_err err;
                    set_step(w[i], starts[step], counts[step]);
                    w[i]->slot[1] = DS_NONE;
                    w[i]->store_from[2] = w[i]->pos0[2] + 2;
                    w[i]->dead[w[i]->row0[2] + 3] = 1;
                    open[i] = calloc(N_SEQS * 4, DS_OPEN_REC(64));
                    hist[i] = calloc(N_SEQS * 8, 8);
                    loaded[i] = calloc(MAX_ROWS, DS_WIN_REC(64));
                    rows[i] = calloc(MAX_ROWS * 6, sizeof **rows);
                    u[i] = zero_floats(MAX_ROWS * 64);
                    v->fault = (ds_fault){ 0 };
                    if (i == 1 && t >= 0)
                        assert_ok(ds_pool_create(&v->e.pool, &(ds_pool_opts){ .n_threads = thread_counts[t] }, &err));
                    write_caches(i ? &v->k : &v->ref, &v->e, w[i], x, z, open[i], hist[i], u[i], rows[i], loaded[i]);
                    ds_pool_destroy(v->e.pool);
                    v->e.pool = NULL;
                    fault[i] = v->fault;
                }
                size_t entries = (size_t)w[0]->n_blocks * BLOCK / ratio;
                assert_same_bits(w[1]->main, w[0]->main, entries * DS_MAIN_REC(64), "kv_store");
                assert_same_bits(w[1]->index, w[0]->index, entries * DS_IDX_REC(64), "idx_store");
                assert_same_bits(w[1]->ring, w[0]->ring, (size_t)N_SEQS * w[0]->ring_len * DS_WIN_REC(64), "ring_store");
                assert_same_bits(loaded[1], loaded[0], MAX_ROWS * DS_WIN_REC(64), "ring_load");
                assert_same_bits(open[1], open[0], N_SEQS * 4 * DS_OPEN_REC(64), "open groups");
                assert_same_bits(hist[1], hist[0], N_SEQS * 8 * 8, "history");
                assert_same_bits(rows[1], rows[0], MAX_ROWS * 6 * sizeof **rows, "engram_hash");
                assert_int_equal(fault[1].kind, fault[0].kind);
                for (size_t i = 0; i < MAX_ROWS * 64; i++) {
                    double size = fmax(fabs((double)x[i]), i >= 64 ? fabs((double)x[i - 64]) : 0.0);
                    assert_true(fabs((double)u[1][i] - (double)u[0][i]) <= 2e-6 * size);
                }
                v->fault = (ds_fault){ 0 };
                for (int i = 0; i < 2; i++) {
                    free(open[i]);
                    free(hist[i]);
                    free(loaded[i]);
                    free(rows[i]);
                    free(u[i]);
                    free_world(w[i]);
                }
                free(x);
                free(z);
            }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention),       cmocka_unit_test(attention_of_one_large_row),
        cmocka_unit_test(attention_edges), cmocka_unit_test(index_selection),
        cmocka_unit_test(stores),
    };

    return ds_test_every_variant(tests, argc, argv);
}
