/* Ops that go row by row: against ref with the tolerance of their contract, in f32 and bf16 mode; the same bits for
 * rows together, alone and on any number of threads. */
#include "kern_test.h"

/* One op on rows [r0, r0 + n) of a case; out[0 .. rows*width) is what it writes, and is filled from `init` first
 * (ops in place). */
typedef struct row_case row_case;
typedef void row_run(const ds_kern *k, ds_exec *e, row_case *c, size_t r0, size_t n);
typedef double row_bound(const row_case *c, size_t r, size_t i, double want); /* without the bf16 step */

struct row_case {
    const char *name;
    size_t rows, width; /* out */
    float *out, *init;
    row_run *run;
    row_bound *bound;
    bool exact; /* no tolerance, no rounding */
    /* inputs, as the op needs them */
    float *x, *y, *w, *v, *u;
    int32_t *id;
    uint8_t *dead;
    uint64_t *at;
    uint32_t n, d, k;
    float scale;
    bool flag;
    ds_mat mat;
};

static void run_rows(variant *v, const ds_kern *k, row_case *c, size_t r0, size_t n, float *out)
{
    c->out = out;
    memcpy(out + r0 * c->width, c->init + r0 * c->width, n * c->width * sizeof *out);
    c->run(k, &v->e, c, r0, n);
}

static void check_rows(variant *v, row_case *c)
{
    size_t len = c->rows * c->width;
    float *want = zero_floats(len), *got = zero_floats(len), *part = zero_floats(len);
    char what[128];

    snprintf(what, sizeof what, "%s, %zu rows of %zu, bf16 %d", c->name, c->rows, c->width, v->e.bf16);
    if (!c->init)
        c->init = zero_floats(len);
    run_rows(v, &v->ref, c, 0, c->rows, want);
    run_rows(v, &v->k, c, 0, c->rows, got);
    for (size_t r = 0; r < c->rows; r++)
        for (size_t i = 0; i < c->width; i++) {
            double w = want[r * c->width + i], g = got[r * c->width + i],
                   b = c->exact ? 0.0 : c->bound(c, r, i, w) + (v->e.bf16 ? fabs(w) * 0x1p-7 : 0.0);
            if (c->exact ? memcmp(&want[r * c->width + i], &got[r * c->width + i], sizeof *want) != 0
                         : (isnan(w) ? !isnan(g) : !(g == w || fabs(g - w) <= b)))
                fail_msg("%s: row %zu, element %zu: %.9g, expected %.9g within %.3g", what, r, i, g, w, b);
        }
    for (size_t r = 0; r < c->rows; r++)
        run_rows(v, &v->k, c, r, 1, part);
    assert_same_bits(part, got, len * sizeof *got, what);
    for (size_t r = 0; r < c->rows; r += 3)
        run_rows(v, &v->k, c, r, c->rows - r < 3 ? c->rows - r : 3, part);
    assert_same_bits(part, got, len * sizeof *got, what);
    for (size_t t = 0; t < 3; t++) {
        ds_err err;
        assert_ok(ds_pool_create(&v->e.pool, &(ds_pool_opts){ .n_threads = thread_counts[t] }, &err));
        run_rows(v, &v->k, c, 0, c->rows, part);
        ds_pool_destroy(v->e.pool);
        v->e.pool = NULL;
        assert_same_bits(part, got, len * sizeof *got, what);
    }
    free(want);
    free(got);
    free(part);
}

static void free_case(row_case *c)
{
    free(c->init);
    free(c->x);
    free(c->y);
    free(c->w);
    free(c->v);
    free(c->u);
    free(c->id);
    free(c->dead);
    free(c->at);
}

static double relative_2e6(const row_case *c, size_t r, size_t i, double want)
{
    (void)c;
    (void)r;
    (void)i;
    return 2e-6 * fabs(want);
}

static double relative_4e6(const row_case *c, size_t r, size_t i, double want)
{
    (void)c;
    (void)r;
    (void)i;
    return 4e-6 * fabs(want) + 1e-37;
}

/* ---- rmsnorm ---- */

static void run_rmsnorm(const ds_kern *k, ds_exec *e, row_case *c, size_t r0, size_t n)
{
    k->rmsnorm(e, &(ds_op_rmsnorm){ .y = c->out + r0 * c->width,
                                    .x = c->flag ? c->out + r0 * c->width : c->x + r0 * c->n,
                                    .w = c->w,
                                    .rows = n,
                                    .ldx = c->flag ? c->width : c->n,
                                    .ldy = c->width,
                                    .dim = c->d,
                                    .eps = c->scale });
}

static void rmsnorm(void **state)
{
    variant *v = *state;
    uint64_t s = 1;
    static const struct {
        size_t rows;
        uint32_t d;
        float size, eps;
    } cases[] = { { 0, 16, 1, 1e-6f },         { 1, 16, 1, 1e-6f },      { 3, 1040, 1, 1e-20f }, { 5, 37, 1, 1e-6f },
                  { 7, 384, 1, 1e-20f },       { 2, 5120, 1, 1e-20f },   { 2, 64, 0, 1e-6f },    { 2, 64, 0, 1e-20f },
                  { 2, 4096, 1e-18f, 1e-20f }, { 2, 64, 1e-25f, 1e-6f }, { 2, 64, 1e18f, 1e-6f } };

    for (int bf16 = 0; bf16 < 2; bf16++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            for (int in_place = 0; in_place < 2; in_place++) {
                size_t rows = cases[i].rows, d = cases[i].d;
                row_case c = { .name = "rmsnorm",
                               .rows = rows,
                               .width = d,
                               .run = run_rmsnorm,
                               .bound = relative_2e6,
                               .n = (uint32_t)d + 8,
                               .d = (uint32_t)d,
                               .scale = cases[i].eps,
                               .flag = in_place };
                v->e.bf16 = bf16;
                c.x = random_floats(&s, rows * c.n, cases[i].size, bf16);
                c.init = random_floats(&s, rows * d, cases[i].size, bf16);
                c.w = random_floats(&s, d, 1.0f, true);
                check_rows(v, &c);
                free_case(&c);
            }
}

static void rmsnorm_passes_nan_on(void **state)
{
    variant *v = *state;
    uint64_t s = 2;
    float *x = random_floats(&s, 3 * 64, 1.0f, false), *w = random_floats(&s, 64, 1.0f, false), *y = zero_floats(3 * 64);

    x[64 + 7] = NAN;
    v->k.rmsnorm(&v->e, &(ds_op_rmsnorm){ .y = y, .x = x, .w = w, .rows = 3, .ldx = 64, .ldy = 64, .dim = 64, .eps = 1e-6f });
    for (int i = 0; i < 64; i++) {
        assert_true(isfinite(y[i]) && isfinite(y[128 + i]));
        assert_true(isnan(y[64 + i]));
    }
    free(x);
    free(w);
    free(y);
}

/* ---- rope ---- */

static void run_rope(const ds_kern *k, ds_exec *e, row_case *c, size_t r0, size_t n)
{
    k->rope(e, &(ds_op_rope){ .x = c->out + r0 * c->width,
                              .pos = c->id + r0,
                              .tab = { c->y, c->k },
                              .rows = n,
                              .ldx = c->width,
                              .heads = c->n,
                              .dim = c->d,
                              .shift = -1,
                              .inverse = c->flag });
}

static double rope_bound(const row_case *c, size_t r, size_t i, double want)
{
    size_t at = r * c->width + i, pair = (i % c->d - (c->d - c->k)) & 1 ? at - 1 : at;
    (void)want;
    return i % c->d < c->d - c->k ? 0.0 : 2e-7 * hypot(c->init[pair], c->init[pair + 1]);
}

static void rope(void **state)
{
    variant *v = *state;
    uint64_t s = 3;
    static const struct {
        uint32_t heads, dim, rd;
    } cases[] = { { 1, 64, 32 }, { 3, 32, 6 }, { 5, 32, 32 }, { 2, 512, 64 }, { 1, 32, 2 }, { 2, 96, 18 } };

    for (int bf16 = 0; bf16 < 2; bf16++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            for (int inverse = 0; inverse < 2; inverse++) {
                size_t rows = 6, width = (size_t)cases[i].heads * cases[i].dim;
                row_case c = { .name = "rope",
                               .rows = rows,
                               .width = width,
                               .run = run_rope,
                               .bound = rope_bound,
                               .n = cases[i].heads,
                               .d = cases[i].dim,
                               .k = cases[i].rd,
                               .flag = inverse };
                v->e.bf16 = bf16;
                c.init = random_floats(&s, rows * width, 1.0f, bf16);
                c.y = zero_floats(100 * c.k);
                c.id = calloc(rows, sizeof *c.id);
                for (size_t p = 0; p < 100; p++)
                    for (uint32_t t = 0; t < c.k; t += 2) {
                        c.y[p * c.k + t] = (float)cos((double)p * (1.0 + t));
                        c.y[p * c.k + t + 1] = (float)sin((double)p * (1.0 + t));
                    }
                for (size_t r = 0; r < rows; r++)
                    c.id[r] = (int32_t)(r * 17);
                check_rows(v, &c);
                free_case(&c);
            }
}

/* ---- gates ---- */

static void run_swiglu(const ds_kern *k, ds_exec *e, row_case *c, size_t r0, size_t n)
{
    k->swiglu(e, &(ds_op_swiglu){ .h = c->out + r0 * c->width,
                                  .g = c->out + r0 * c->width,
                                  .u = c->x + r0 * c->width,
                                  .rows = n,
                                  .ldg = c->width,
                                  .ldu = c->width,
                                  .ldh = c->width,
                                  .n = c->n,
                                  .limit = c->scale });
}

static void swiglu(void **state)
{
    variant *v = *state;
    uint64_t s = 4;
    static const uint32_t sizes[] = { 1, 16, 37, 256 };
    static const float special[] = { 0.0f, -0.0f, 1e-30f, -1e-30f, 88.0f, -88.0f, -104.0f, 200.0f, -1e30f, 3e38f, INFINITY, NAN };

    for (int bf16 = 0; bf16 < 2; bf16++)
        for (size_t i = 0; i < 4; i++)
            for (int limit = 0; limit < 2; limit++) {
                row_case c = { .name = "swiglu",
                               .rows = 5,
                               .width = sizes[i],
                               .run = run_swiglu,
                               .bound = relative_4e6,
                               .n = sizes[i],
                               .scale = limit ? 10.0f : 0.0f };
                v->e.bf16 = bf16;
                c.init = random_floats(&s, c.rows * c.width, 8.0f, bf16);
                c.x = random_floats(&s, c.rows * c.width, 8.0f, bf16);
                for (size_t t = 0; t < sizeof special / sizeof *special && t < c.width; t++)
                    c.init[t] = bf16 ? ds_bf16_round(special[t]) : special[t];
                check_rows(v, &c);
                free_case(&c);
            }
}

static void run_gelu(const ds_kern *k, ds_exec *e, row_case *c, size_t r0, size_t n)
{
    k->gelu(e, &(ds_op_gelu){ .x = c->out + r0 * c->width, .n = n * c->width });
}

static double gelu_bound(const row_case *c, size_t r, size_t i, double want)
{
    (void)c;
    (void)r;
    (void)i;
    return 4e-6 * fabs(want) + 1e-7;
}

static void gelu(void **state)
{
    variant *v = *state;
    uint64_t s = 5;

    for (int bf16 = 0; bf16 < 2; bf16++) {
        row_case c = { .name = "gelu", .rows = 7, .width = 93, .run = run_gelu, .bound = gelu_bound };
        v->e.bf16 = bf16;
        c.init = random_floats(&s, c.rows * c.width, 3.0f, bf16);
        c.init[0] = 0.0f;
        c.init[1] = 100.0f;
        c.init[2] = -100.0f;
        c.init[3] = NAN;
        check_rows(v, &c);
        free_case(&c);
    }
}

/* ---- moving and choosing ---- */

static void run_add(const ds_kern *k, ds_exec *e, row_case *c, size_t r0, size_t n)
{
    k->add(e, &(ds_op_add){ .y = c->out + r0 * c->width, .x = c->x + r0 * c->width, .n = n * c->width });
}

static void run_copy(const ds_kern *k, ds_exec *e, row_case *c, size_t r0, size_t n)
{
    k->copy(e, &(ds_op_copy){ .dst = c->out + r0 * c->width,
                              .src = c->x,
                              .index = (const uint32_t *)c->id + r0,
                              .rows = n,
                              .ldd = c->width,
                              .lds = c->width + 3,
                              .n = c->width });
}

static void run_argmax(const ds_kern *k, ds_exec *e, row_case *c, size_t r0, size_t n)
{
    k->argmax(e, &(ds_op_argmax){ .id = (int32_t *)(void *)c->out + r0, .x = c->x + r0 * c->n, .rows = n, .ldx = c->n, .n = c->n });
}

static void moving(void **state)
{
    variant *v = *state;
    uint64_t s = 6;

    v->e.bf16 = false;
    for (size_t width = 1; width < 200; width += width < 20 ? 1 : 57) {
        row_case c = { .name = "add", .rows = 9, .width = width, .run = run_add, .exact = true };
        c.init = random_floats(&s, c.rows * width, 1.0f, false);
        c.x = random_floats(&s, c.rows * (width + 3), 1.0f, false);
        check_rows(v, &c);
        c.name = "copy";
        c.run = run_copy;
        c.id = calloc(c.rows, sizeof *c.id);
        for (size_t r = 0; r < c.rows; r++)
            c.id[r] = (int32_t)(r * 5 % c.rows);
        check_rows(v, &c);
        free_case(&c);
        c = (row_case){ .name = "argmax", .rows = 9, .width = 1, .run = run_argmax, .exact = true, .n = (uint32_t)width };
        c.x = random_floats(&s, c.rows * width, 1.0f, false);
        for (size_t i = 0; i < width; i++) {
            c.x[i] = NAN;                        /* all */
            c.x[width + i] = i % 3 ? 7.0f : NAN; /* ties, NaN first */
            c.x[2 * width + i] = -INFINITY;
            c.x[3 * width + i] = i % 2 ? 0.0f : -0.0f;
            c.x[4 * width + i] = i + 1 == width ? INFINITY : c.x[4 * width + i];
        }
        check_rows(v, &c);
        free_case(&c);
    }
}

/* ---- tables ---- */

static void run_embed(const ds_kern *k, ds_exec *e, row_case *c, size_t r0, size_t n)
{
    k->embed(e, &(ds_op_embed){
                    .y = c->out + r0 * c->width, .id = c->id + r0, .table = &c->mat, .extra = c->x, .rows = n, .copies = c->n, .tag = 9 });
}

static void run_gather(const ds_kern *k, ds_exec *e, row_case *c, size_t r0, size_t n)
{
    k->engram_gather(e, &(ds_op_engram_gather){ .y = c->out + r0 * c->width,
                                                .row = c->at + r0 * c->n,
                                                .dead = c->dead + r0,
                                                .table = &c->mat,
                                                .rows = n,
                                                .cols = c->n,
                                                .tag = 9 });
}

static void tables(void **state)
{
    variant *v = *state;
    uint64_t s = 7;
    static const ds_mat_type embeds[] = { DS_MAT_F32, DS_MAT_BF16 }, gathers[] = { DS_MAT_FP8_ROWS, DS_MAT_BF16, DS_MAT_F32 };

    for (int bf16 = 0; bf16 < 2; bf16++) {
        v->e.bf16 = bf16;
        for (size_t t = 0; t < 2; t++)
            for (uint32_t d = 20; d < 100; d += 44) {
                row_case c = { .name = "embed", .rows = 6, .width = 3 * d, .run = run_embed, .exact = true, .n = 3 };
                c.mat = random_mat(&s, embeds[t], d, 30);
                c.x = random_floats(&s, 4 * d, 1.0f, true);
                c.id = calloc(c.rows, sizeof *c.id);
                for (size_t r = 0; r < c.rows; r++)
                    c.id[r] = r % 3 == 2 ? -1 - (int32_t)r / 3 : (int32_t)(r * 5);
                check_rows(v, &c);
                assert_int_equal(v->fault.kind, DS_FAULT_NONE);
                uint16_t nan = 0x7fc0;
                memcpy((uint8_t *)c.mat.data + (size_t)5 * d * (t ? 2 : 4) + (t ? 6 : 6), &nan, 2); /* token 5: row 1 */
                run_rows(v, &v->k, &c, 0, c.rows, c.init);
                assert_int_equal(v->fault.kind, DS_FAULT_VALUE);
                assert_int_equal(v->fault.tag, 9);
                assert_int_equal(v->fault.row, 5);
                for (size_t i = 0; i < c.width; i++)
                    assert_true(c.init[c.width + i] == 0.0f);
                v->fault = (ds_fault){ 0 };
                free_mat(&c.mat);
                free_case(&c);
            }
        for (size_t t = 0; t < 3; t++) {
            row_case c = { .name = "engram_gather", .rows = 5, .width = 6 * 32, .run = run_gather, .exact = true, .n = 6 };
            c.mat = random_mat(&s, gathers[t], 32, 50);
            c.at = calloc(c.rows * c.n, sizeof *c.at);
            c.dead = calloc(c.rows, 1);
            c.dead[3] = 1;
            for (size_t i = 0; i < c.rows * c.n; i++)
                c.at[i] = next_random(&s) % 49;
            check_rows(v, &c);
            assert_int_equal(v->fault.kind, DS_FAULT_NONE);
            if (gathers[t] == DS_MAT_FP8_ROWS)
                ((uint8_t *)c.mat.scale)[49] = 255;
            else
                memset((uint8_t *)c.mat.data + (size_t)49 * 32 * (gathers[t] == DS_MAT_BF16 ? 2 : 4), 0xff, 4);
            c.at[2 * c.n + 1] = 49;
            run_rows(v, &v->k, &c, 0, c.rows, c.init);
            assert_int_equal(v->fault.kind, DS_FAULT_VALUE);
            assert_int_equal(v->fault.row, 49);
            for (size_t i = 0; i < 32; i++)
                assert_true(c.init[2 * c.width + 32 + i] == 0.0f);
            v->fault = (ds_fault){ 0 };
            free_mat(&c.mat);
            free_case(&c);
        }
    }
}

/* ---- streams ---- */

enum { PART_UPDATE = 1, PART_COLLAPSE = 2, PART_MIX = 4 };

/* out: X, then x, then the mix row */
static void run_mhc(const ds_kern *k, ds_exec *e, row_case *c, size_t r0, size_t n)
{
    size_t nd = (size_t)c->n * c->d, out = (size_t)(2 + c->n) * c->n;
    float *X = zero_floats(n * nd), *x = zero_floats(n * c->d), *mix = copy_floats(c->w + r0 * out, n * out);
    ds_op_mhc a = { .X = X, .mix_in = mix, .rows = n, .n = c->n, .d = c->d, .iters = 20, .eps = 1e-20f, .hc_eps = 1e-6f };

    for (size_t r = 0; r < n; r++)
        memcpy(X + r * nd, c->out + (r0 + r) * c->width, nd * sizeof *X);
    a.y = c->k & PART_UPDATE ? c->y + r0 * c->d : NULL;
    a.x = c->k & PART_COLLAPSE ? x : NULL;
    if (c->k & PART_MIX) {
        a.mix_out = mix;
        a.fn = c->x + 1; /* aligned to four bytes only */
        a.base = c->v;
        a.scale = c->u;
    }
    k->mhc(e, &a);
    for (size_t r = 0; r < n; r++) {
        float *d = c->out + (r0 + r) * c->width;
        memcpy(d, X + r * nd, nd * sizeof *d);
        memcpy(d + nd, x + r * c->d, c->d * sizeof *d);
        memcpy(d + nd + c->d, mix + r * out, out * sizeof *d);
    }
    free(X);
    free(x);
    free(mix);
}

static double mhc_bound(const row_case *c, size_t r, size_t i, double want)
{
    size_t nd = (size_t)c->n * c->d, out = (size_t)(2 + c->n) * c->n, col = i % c->d;
    double sum = 0.0;

    if (i >= nd + c->d)
        return 1e-5 * fabs(want);
    if (c->k & PART_UPDATE)
        sum += fabs((double)c->y[r * c->d + col]) * 2.0;
    for (uint32_t s = 0; s < c->n; s++)
        sum += fabs((double)c->init[r * c->width + s * c->d + col]);
    (void)out;
    return 2e-7 * 4.0 * sum; /* mix values reach 2, and x is a sum of new X */
}

static void mhc(void **state)
{
    variant *v = *state;
    uint64_t s = 8;
    static const struct {
        uint32_t n, d;
        size_t rows;
    } cases[] = { { 4, 384, 9 }, { 4, 64, 1 }, { 4, 37, 6 }, { 4, 5120, 2 }, { 4, 40, 140 },
                  { 1, 32, 3 },  { 2, 48, 5 }, { 8, 32, 4 }, { 3, 64, 0 } };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t n = cases[i].n, d = cases[i].d;
        size_t out = (size_t)(2 + n) * n, rows = cases[i].rows, nd = (size_t)n * d, width = nd + d + out;
        for (uint32_t parts = 1; parts < 8; parts++) {
            row_case c = { .name = "mhc", .rows = rows, .width = width, .run = run_mhc, .bound = mhc_bound, .n = n, .d = d, .k = parts };
            v->e.bf16 = false;
            c.init = random_floats(&s, rows * width, 1.0f, true);
            c.y = random_floats(&s, rows * d, 1.0f, true);
            c.x = random_floats(&s, out * nd + 1, 0.02f, false);
            c.v = random_floats(&s, out, 1.0f, false);
            c.u = random_floats(&s, 3, 0.1f, false);
            c.w = zero_floats(rows * out);
            for (size_t k = 0; k < rows * out; k++)
                c.w[k] = 0.1f + 0.5f * fabsf(random_unit(&s));
            check_rows(v, &c);
            if (parts == 7) { /* in one call and in three: the same bits, bf16 too */
                for (int bf16 = 0; bf16 < 2; bf16++) {
                    float *one = copy_floats(c.init, rows * width), *three = copy_floats(c.init, rows * width);
                    v->e.bf16 = bf16;
                    c.k = 7;
                    run_rows(v, &v->k, &c, 0, rows, one);
                    float *mix = c.w;
                    c.k = PART_UPDATE;
                    run_rows(v, &v->k, &c, 0, rows, three);
                    float *X = copy_floats(three, rows * width), *start = c.init;
                    c.init = X;
                    c.k = PART_COLLAPSE | PART_MIX;
                    run_rows(v, &v->k, &c, 0, rows, three);
                    c.init = start;
                    c.w = mix;
                    assert_same_bits(three, one, rows * width * sizeof *one, "mhc in parts");
                    free(X);
                    free(one);
                    free(three);
                }
            }
            free_case(&c);
        }
    }
}

static void run_mean(const ds_kern *k, ds_exec *e, row_case *c, size_t r0, size_t n)
{
    k->stream_mean(e, &(ds_op_stream_mean){
                          .t = c->out + r0 * c->width, .X = c->x + r0 * c->n * c->d, .rows = n, .ldt = c->width, .n = c->n, .d = c->d });
}

static double mean_bound(const row_case *c, size_t r, size_t i, double want)
{
    double sum = 0.0;
    (void)want;
    for (uint32_t s = 0; i < c->d && s < c->n; s++)
        sum += fabs((double)c->x[(r * c->n + s) * c->d + i]);
    return 2e-7 * sum;
}

static void run_fuse(const ds_kern *k, ds_exec *e, row_case *c, size_t r0, size_t n)
{
    k->engram_fuse(e, &(ds_op_engram_fuse){ .X = c->out + r0 * c->width,
                                            .kv = c->x + r0 * (c->n + 1) * c->d,
                                            .qw = c->w,
                                            .kw = c->v,
                                            .dead = c->dead + r0,
                                            .rows = n,
                                            .n = c->n,
                                            .d = c->d,
                                            .eps = 1e-20f });
}

static double fuse_bound(const row_case *c, size_t r, size_t i, double want)
{
    size_t col = i % c->d;
    (void)want;
    return 4e-6 * (fabs((double)c->init[r * c->width + i]) + fabs((double)c->x[(r * (c->n + 1) + c->n) * c->d + col]));
}

static void means_and_gates(void **state)
{
    variant *v = *state;
    uint64_t s = 9;

    for (int bf16 = 0; bf16 < 2; bf16++)
        for (uint32_t d = 29; d < 500; d += 355) {
            row_case c = { .name = "stream_mean", .rows = 5, .width = d + 2, .run = run_mean, .bound = mean_bound, .n = 4, .d = d };
            v->e.bf16 = bf16;
            c.x = random_floats(&s, c.rows * 4 * d, 1.0f, bf16);
            check_rows(v, &c);
            free_case(&c);
            c = (row_case){ .name = "engram_fuse", .rows = 5, .width = 4 * d, .run = run_fuse, .bound = fuse_bound, .n = 4, .d = d };
            c.init = random_floats(&s, c.rows * 4 * d, 1.0f, bf16);
            c.x = random_floats(&s, c.rows * 5 * d, 1.0f, bf16);
            memset(c.x, 0, 4 * d * sizeof *c.x); /* keys of the first row: a dot of zero */
            c.w = random_floats(&s, 4 * d, 1.0f, true);
            c.v = random_floats(&s, 4 * d, 1.0f, true);
            c.dead = calloc(c.rows, 1);
            c.dead[2] = 1;
            check_rows(v, &c);
            free_case(&c);
        }
}

/* ---- router ---- */

/* out: weights, then ids */
static void run_route(const ds_kern *k, ds_exec *e, row_case *c, size_t r0, size_t n)
{
    int32_t *sel = calloc(n * c->k + 1, sizeof *sel);
    float *w = zero_floats(n * c->k);

    k->route(e, &(ds_op_route){ .sel = sel,
                                .w = w,
                                .logit = c->x + r0 * c->n,
                                .bias = c->v,
                                .bias_vl = c->u,
                                .dead = c->dead + r0,
                                .rows = n,
                                .experts = c->n,
                                .k = c->k,
                                .temp = 1.0f,
                                .scale = 1.5f,
                                .norm = c->flag });
    for (size_t r = 0; r < n; r++)
        for (uint32_t i = 0; i < c->k; i++) {
            c->out[(r0 + r) * c->width + i] = w[r * c->k + i];
            c->out[(r0 + r) * c->width + c->k + i] = (float)sel[r * c->k + i];
        }
    free(sel);
    free(w);
}

static void route(void **state)
{
    variant *v = *state;
    uint64_t s = 10;
    static const struct {
        uint32_t experts, k;
    } cases[] = { { 16, 2 }, { 384, 6 }, { 4, 2 }, { 7, 7 }, { 1, 1 }, { 33, 3 } };

    v->e.bf16 = false;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int norm = 0; norm < 2; norm++) {
            uint32_t n = cases[i].experts;
            row_case c = { .name = "route",
                           .rows = 40,
                           .width = 2 * cases[i].k,
                           .run = run_route,
                           .bound = relative_4e6,
                           .n = n,
                           .k = cases[i].k,
                           .flag = norm };
            c.x = random_floats(&s, c.rows * n, 4.0f, false);
            c.v = random_floats(&s, n, 0.1f, false);
            c.u = random_floats(&s, n, 0.1f, false);
            c.dead = calloc(c.rows, 1);
            c.dead[5] = 1;
            for (size_t e = 0; e < n; e++) {
                c.x[e] = 0.0f; /* ties but for the bias */
                c.x[n + e] = -200.0f - (float)e;
                c.x[2 * n + e] = 1000.0f + (float)e;
                c.x[3 * n + e] = -20.0f - (float)e * 0.25f;
                c.x[4 * n + e] = (float)e - (float)n / 2;
            }
            check_rows(v, &c);
            for (size_t e = 0; e < n; e++) { /* whatever the logits, ids are valid and different */
                c.x[e] = NAN;
                c.x[n + e] = e % 2 ? NAN : (float)e;
                c.x[2 * n + e] = e % 2 ? -INFINITY : INFINITY;
            }
            memset(c.v, 0, n * sizeof *c.v);
            memset(c.u, 0, n * sizeof *c.u);
            float *out = zero_floats(c.rows * c.width);
            run_rows(v, &v->k, &c, 0, c.rows, out);
            for (size_t r = 0; r < c.rows; r++)
                for (uint32_t a = 0; a < c.k; a++) {
                    float id = out[r * c.width + c.k + a];
                    assert_true(id >= 0.0f && id < (float)n);
                    for (uint32_t b = 0; b < a; b++)
                        assert_true(out[r * c.width + c.k + b] != id);
                }
            if (n > 2 * c.k)
                for (uint32_t a = 0; a < c.k; a++) { /* numbers before NaN; ties to the lower id */
                    assert_true((uint32_t)out[c.width + c.k + a] % 2 == 0);
                    assert_true(out[c.k + a] == (float)a);
                }
            free(out);
            free_case(&c);
        }
}

/* ---- records ---- */

static void records_are_exact(void **state)
{
    variant *v = *state;
    uint64_t s = 11;

    for (uint32_t dim = 32; dim <= 512; dim *= 2)
        for (int kind = 0; kind < 2; kind++) {
            enum { ROWS = 40 };
            size_t rec = kind ? DS_IDX_REC(dim) : DS_WIN_REC(dim);
            uint8_t *want = calloc(ROWS, rec), *got = calloc(ROWS, rec);
            float *x = random_floats(&s, ROWS * dim, 1.0f, false);
            for (size_t r = 0; r < ROWS; r++)
                for (size_t i = 0; i < dim; i++) {
                    float *p = &x[r * dim + i];
                    *p = r == 1             ? 0.0f
                         : r == 2           ? *p * 1e-30f
                         : r == 3           ? *p * 1e30f
                         : r == 4 && i == 7 ? NAN
                         : r == 5 && i == 9 ? INFINITY
                         : r > 20           ? *p * exp2f((float)(i % 40) - 20.0f)
                                            : *p;
                    if (r == 6) /* ties */
                        *p = ((float)(next_random(&s) % 64) - 32.0f) * 0.25f;
                    if (r == 7)
                        *p = i % 2 ? -0.0f : 1e-42f;
                }
            for (int t = -1; t < 3; t++) {
                ds_err err;
                if (t >= 0)
                    assert_ok(ds_pool_create(&v->e.pool, &(ds_pool_opts){ .n_threads = thread_counts[t] }, &err));
                for (int ref = 1; ref >= 0; ref--) {
                    const ds_kern *k = ref ? &v->ref : &v->k;
                    if (kind)
                        k->idx_quant(&v->e, &(ds_op_idx_quant){ .rec = ref ? want : got, .x = x, .n = ROWS, .dim = dim });
                    else
                        k->win_quant(&v->e, &(ds_op_win_quant){ .rec = ref ? want : got, .x = x, .rows = ROWS, .ldx = dim, .dim = dim });
                }
                ds_pool_destroy(v->e.pool);
                v->e.pool = NULL;
                assert_same_bits(got, want, ROWS * rec, kind ? "idx_quant" : "win_quant");
            }
            free(want);
            free(got);
            free(x);
        }
}

/* ---- vision ---- */

static void run_rope2d(const ds_kern *k, ds_exec *e, row_case *c, size_t r0, size_t n)
{
    float *x = copy_floats(c->init, c->rows * c->width); /* a row's place in the image counts, so all rows are done */
    k->rope2d(e, &(ds_op_rope2d){ .x = x, .cs = c->y, .rows = c->rows, .ldx = c->width, .heads = c->n, .dim = c->d, .n_w = 3 });
    memcpy(c->out + r0 * c->width, x + r0 * c->width, n * c->width * sizeof *x);
    free(x);
}

static double rope2d_bound(const row_case *c, size_t r, size_t i, double want)
{
    size_t h = c->d / 2, at = r * c->width + i, pair = i % c->d < h ? at + h : at - h;
    (void)want;
    return 3e-7 * hypot(c->init[at], c->init[pair]);
}

static void run_vit(const ds_kern *k, ds_exec *e, row_case *c, size_t r0, size_t n)
{
    float *o = zero_floats(c->rows * c->width);
    k->vit_attention(e, &(ds_op_vit_attention){ .o = o,
                                                .q = c->x,
                                                .k = c->x + c->width,
                                                .v = c->x + 2 * c->width,
                                                .n = c->rows,
                                                .ld = 3 * c->width,
                                                .heads = c->n,
                                                .dim = c->d,
                                                .scale = c->scale });
    memcpy(c->out + r0 * c->width, o + r0 * c->width, n * c->width * sizeof *o);
    free(o);
}

static double vit_bound(const row_case *c, size_t r, size_t i, double want)
{
    double most = 0.0;
    (void)r;
    (void)want;
    for (size_t t = 0; t < c->rows; t++)
        most = fmax(most, fabs((double)c->x[t * 3 * c->width + 2 * c->width + i]));
    return 4e-6 * most;
}

static void vision(void **state)
{
    variant *v = *state;
    uint64_t s = 12;
    static const struct {
        uint32_t heads, dim;
        size_t n;
    } cases[] = { { 2, 16, 12 }, { 4, 64, 50 }, { 3, 20, 1 }, { 1, 8, 17 } };

    for (int bf16 = 0; bf16 < 2; bf16++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            size_t width = (size_t)cases[i].heads * cases[i].dim, n = cases[i].n;
            row_case c = { .name = "rope2d",
                           .rows = n,
                           .width = width,
                           .run = run_rope2d,
                           .bound = rope2d_bound,
                           .n = cases[i].heads,
                           .d = cases[i].dim };
            v->e.bf16 = bf16;
            c.init = random_floats(&s, n * width, 1.0f, bf16);
            c.y = random_floats(&s, (n + 1) * c.d / 2, 0.5f, false);
            check_rows(v, &c);
            free_case(&c);
            c = (row_case){ .name = "vit_attention",
                            .rows = n,
                            .width = width,
                            .run = run_vit,
                            .bound = vit_bound,
                            .n = cases[i].heads,
                            .d = cases[i].dim,
                            .scale = 0.3f };
            c.x = random_floats(&s, n * 3 * width, 1.0f, bf16);
            check_rows(v, &c);
            free_case(&c);
        }
}

static void cells(void **state)
{
    variant *v = *state;
    uint64_t s = 13;
    float *x = random_floats(&s, 5 * 7 * 6, 1.0f, false), *want = zero_floats(2 * 3 * 6 * 9), *got = zero_floats(2 * 3 * 6 * 9);
    ds_op_cells a = { .out = want, .x = x, .n_h = 5, .n_w = 7, .dim = 6, .s = 3 };

    v->ref.cells(&v->e, &a);
    a.out = got;
    v->k.cells(&v->e, &a);
    assert_same_bits(got, want, 2 * 3 * 6 * 9 * sizeof *got, "cells");
    free(x);
    free(want);
    free(got);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm),
        cmocka_unit_test(rmsnorm_passes_nan_on),
        cmocka_unit_test(rope),
        cmocka_unit_test(swiglu),
        cmocka_unit_test(gelu),
        cmocka_unit_test(moving),
        cmocka_unit_test(tables),
        cmocka_unit_test(mhc),
        cmocka_unit_test(means_and_gates),
        cmocka_unit_test(route),
        cmocka_unit_test(records_are_exact),
        cmocka_unit_test(vision),
        cmocka_unit_test(cells),
    };

    return ds_test_every_variant(tests, argc, argv);
}
