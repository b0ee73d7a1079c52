/* linear, experts, dequant: every weight type against ref, and the same bits whatever the number of rows and
 * threads. */
#include "kern_test.h"

static const ds_mat_type types[] = { DS_MAT_F32, DS_MAT_BF16, DS_MAT_FP8_32X32, DS_MAT_FP8_ROWS, DS_MAT_MXFP4 };
enum { N_TYPES = sizeof types / sizeof *types };

/* y, and what sum(eps) allows around it */
static void reference_linear(variant *v, const ds_op_linear *a, double *bound)
{
    size_t in = a->w->in, per_group = a->w->out / a->groups;
    float *row = zero_floats(in);

    for (size_t o = 0; o < a->w->out; o++) {
        v->ref.dequant(&v->e, &(ds_op_dequant){ .dst = row, .w = a->w, .row0 = o, .rows = 1 });
        for (size_t r = 0; r < a->rows; r++) {
            const float *x = a->x + r * a->ldx + o / per_group * in;
            double sum = a->bias ? fabs((double)a->bias[o]) : 0.0;
            for (size_t i = 0; i < in; i++)
                sum += fabs((double)row[i] * x[i]);
            if (a->add)
                sum += fabs((double)a->y[r * a->ldy + o]);
            bound[r * a->ldy + o] = 2e-6 * sum;
        }
    }
    free(row);
    v->ref.linear(&v->e, a);
    for (size_t r = 0; r < a->rows; r++)
        for (size_t o = 0; o < a->w->out; o++)
            if (a->round && v->e.bf16)
                bound[r * a->ldy + o] += fabs((double)a->y[r * a->ldy + o]) * 0x1p-7;
}

static void check_linear(variant *v, uint64_t *s, ds_mat_type type, uint32_t in, uint64_t out, size_t rows, uint32_t groups, bool extras)
{
    size_t ldx = (size_t)in * groups + (extras ? 5 : 0), ldy = out + (extras ? 3 : 0);
    ds_mat w = random_mat(s, type, in, out);
    float *x = random_floats(s, rows * ldx, 1.0f, v->e.bf16), *bias = random_floats(s, out, 1.0f, true);
    float *want = random_floats(s, rows * ldy, 1.0f, true), *got = copy_floats(want, rows * ldy);
    double *bound = calloc(rows * ldy + 1, sizeof *bound);
    ds_op_linear a = { .y = want,
                       .x = x,
                       .w = &w,
                       .bias = extras ? bias : NULL,
                       .rows = rows,
                       .ldx = ldx,
                       .ldy = ldy,
                       .groups = groups,
                       .round = !extras,
                       .add = extras };
    char what[128];

    snprintf(what, sizeof what, "type %d, %llux%u, %zu rows, %u groups, bf16 %d", (int)type, (unsigned long long)out, in, rows, groups,
             v->e.bf16);
    reference_linear(v, &a, bound);
    a.y = got;
    v->k.linear(&v->e, &a);
    assert_within(got, want, bound, rows * ldy, what);
    free_mat(&w);
    free(x);
    free(bias);
    free(want);
    free(got);
    free(bound);
}

static void linear_matches_ref(void **state)
{
    variant *v = *state;
    uint64_t s = 1;
    static const struct {
        uint32_t in;
        uint64_t out;
        size_t rows;
        uint32_t groups;
    } cases[] = {
        { 32, 1, 0, 1 },    { 32, 1, 1, 1 },    { 64, 16, 1, 1 },   { 96, 40, 3, 1 },     { 384, 33, 1, 1 },
        { 384, 33, 17, 1 }, { 192, 256, 5, 2 }, { 64, 6, 9, 3 },    { 1056, 20, 6, 1 },   { 2304, 18, 2, 1 },
        { 160, 47, 70, 1 }, { 32, 16, 200, 1 }, { 5120, 34, 1, 1 }, { 128, 192, 100, 2 }, { 256, 96, 20, 3 },
    };

    for (int bf16 = 0; bf16 < 2; bf16++) {
        v->e.bf16 = bf16;
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            for (int t = 0; t < N_TYPES; t++)
                for (int extras = 0; extras < 2; extras++)
                    check_linear(v, &s, types[t], cases[i].in, cases[i].out, cases[i].rows, cases[i].groups, extras);
        for (uint32_t in = 1; in < 100; in += in < 36 ? 1 : 13) /* tails */
            for (int t = 0; t < 2; t++) {
                check_linear(v, &s, types[t], in, 5, 1, 1, false);
                check_linear(v, &s, types[t], in, 17, 6, 1, true);
            }
    }
}

/* Scales at the ends of their range, zeros and every code. */
static void linear_takes_every_scale(void **state)
{
    variant *v = *state;
    uint64_t s = 2;

    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int t = 2; t < N_TYPES; t++)
            for (unsigned i = 0; i < 2 * 255; i++) {
                unsigned scale = i / 2, in = i % 2 ? 128 : 32;
                ds_mat w = random_mat(&s, types[t], in, 3);
                float *x = random_floats(&s, 2 * in, scale < 64 ? 0x1p40f : 0x1p-40f, true), want[6], got[6];
                double bound[6];
                v->e.bf16 = bf16;
                memset((void *)w.scale, (int)scale, w.type == DS_MAT_FP8_32X32 ? in / 32 : 3 * in / 32);
                ds_op_linear a = { .y = want, .x = x, .w = &w, .rows = 2, .ldx = in, .ldy = 3, .groups = 1 };
                reference_linear(v, &a, bound);
                for (int k = 0; k < 6; k++)
                    bound[k] =
                        (double)want[k] > 3e38 || (double)want[k] < -3e38 ? INFINITY : bound[k] + (bf16 ? in * 0x1p-126 * 0x1p42 : 1e-37);
                a.y = got;
                v->k.linear(&v->e, &a);
                for (int k = 0; k < 6; k++)
                    if (!isfinite(want[k]))
                        got[k] = want[k];
                assert_within(got, want, bound, 6, "scale");
                free_mat(&w);
                free(x);
            }
}

static void linear_is_row_invariant(void **state)
{
    variant *v = *state;
    uint64_t s = 3;
    enum { ROWS = 150 };
    static const struct {
        uint32_t in;
        uint64_t out;
    } shapes[] = { { 96, 21 }, { 2112, 19 }, { 640, 70 } };

    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int t = 0; t < N_TYPES; t++)
            for (size_t c = 0; c < sizeof shapes / sizeof *shapes; c++) {
                uint32_t in = shapes[c].in;
                size_t out = shapes[c].out;
                ds_mat w = random_mat(&s, types[t], in, out);
                float *x = random_floats(&s, (size_t)ROWS * in, 1.0f, bf16), *alone = zero_floats(ROWS * out), *y = zero_floats(ROWS * out);
                ds_op_linear a = { .w = &w, .ldx = in, .ldy = out, .groups = 1, .round = true };
                v->e.bf16 = bf16;
                for (size_t r = 0; r < ROWS; r++) {
                    a.y = alone + r * out;
                    a.x = x + r * in;
                    a.rows = 1;
                    v->k.linear(&v->e, &a);
                }
                for (size_t n = 1; n <= ROWS; n += n < 70 ? 1 : 40) {
                    memset(y, 0, ROWS * out * sizeof *y);
                    a.y = y;
                    a.x = x;
                    a.rows = n;
                    v->k.linear(&v->e, &a);
                    assert_same_bits(y, alone, n * out * sizeof *y, "rows together and alone");
                }
                for (size_t i = 0; i < 3; i++) {
                    ds_pool *pool;
                    ds_err err;
                    assert_ok(ds_pool_create(&pool, &(ds_pool_opts){ .n_threads = thread_counts[i] }, &err));
                    v->e.pool = pool;
                    memset(y, 0, ROWS * out * sizeof *y);
                    v->k.linear(
                        &v->e, &(ds_op_linear){ .y = y, .x = x, .w = &w, .rows = ROWS, .ldx = in, .ldy = out, .groups = 1, .round = true });
                    v->e.pool = NULL;
                    ds_pool_destroy(pool);
                    assert_same_bits(y, alone, ROWS * out * sizeof *y, "threads");
                }
                free_mat(&w);
                free(x);
                free(alone);
                free(y);
            }
}

static void linear_passes_nan_on(void **state)
{
    variant *v = *state;
    uint64_t s = 4;

    for (int t = 0; t < N_TYPES; t++)
        for (size_t rows = 1; rows < 7; rows += 5) {
            ds_mat w = random_mat(&s, types[t], 64, 8);
            float *x = random_floats(&s, rows * 64, 1.0f, true), *clean = zero_floats(rows * 8), *y = zero_floats(rows * 8);
            ds_op_linear a = { .y = clean, .x = x, .w = &w, .rows = rows, .ldx = 64, .ldy = 8, .groups = 1 };
            v->k.linear(&v->e, &a);
            x[(rows - 1) * 64 + 33] = NAN;
            a.y = y;
            v->k.linear(&v->e, &a);
            for (size_t i = 0; i < 8; i++)
                assert_true(isnan(y[(rows - 1) * 8 + i]));
            assert_same_bits(y, clean, (rows - 1) * 8 * sizeof *y, "rows without NaN");
            free_mat(&w);
            free(x);
            free(clean);
            free(y);
        }
}

/* ---- experts ---- */

typedef struct {
    uint32_t d, inner, experts, k;
    size_t rows;
    ds_mat w1[16], w3[16], w2[16];
    float *x, *shared, *w;
    int32_t *sel;
} moe;

static moe make_moe(uint64_t *s, ds_mat_type type, ds_mat_type type2, size_t rows, uint32_t d, uint32_t inner, uint32_t experts, uint32_t k,
                    bool bf16)
{
    moe m = { .d = d, .inner = inner, .experts = experts, .k = k, .rows = rows };

    for (uint32_t i = 0; i < experts; i++) {
        m.w1[i] = random_mat(s, type, d, inner);
        m.w3[i] = random_mat(s, type, d, inner);
        m.w2[i] = random_mat(s, type2, inner, d);
    }
    m.x = random_floats(s, rows * d, 1.0f, bf16);
    m.shared = random_floats(s, rows * d, 1.0f, bf16);
    m.w = zero_floats(rows * k);
    m.sel = calloc(rows * k + 1, sizeof *m.sel);
    for (size_t r = 0; r < rows; r++) {
        uint32_t first = next_random(s) % experts, step = 1 + next_random(s) % 3;
        for (uint32_t i = 0; i < k; i++) { /* different ones: experts is prime to the steps or larger than k * 3 */
            m.sel[r * k + i] = (int32_t)((first + i * step) % experts);
            m.w[r * k + i] = 0.2f + 0.3f * fabsf(random_unit(s));
        }
    }
    return m;
}

static void free_moe(moe *m)
{
    for (uint32_t i = 0; i < m->experts; i++) {
        free_mat(&m->w1[i]);
        free_mat(&m->w3[i]);
        free_mat(&m->w2[i]);
    }
    free(m->x);
    free(m->shared);
    free(m->w);
    free(m->sel);
}

/* Rows [r0, r0 + rows) to y, by places that own `each` experts: their results stand side by side in one buffer, and
 * a place touches only its own. */
static void run_moe(const ds_kern *k, ds_exec *e, const moe *m, float *y, const float *shared, size_t r0, size_t rows, uint32_t each)
{
    size_t n = rows * m->k * m->d;
    float *part = zero_floats(n), *before = zero_floats(n);

    for (size_t i = 0; i < n; i++)
        part[i] = -1234.5f;
    for (uint32_t first = 0; first < m->experts; first += each) {
        uint32_t owned = m->experts - first < each ? m->experts - first : each;
        memcpy(before, part, n * sizeof *part);
        k->experts_part(e, &(ds_op_experts_part){ .part = part,
                                                  .x = m->x + r0 * m->d,
                                                  .w1 = m->w1 + first,
                                                  .w3 = m->w3 + first,
                                                  .w2 = m->w2 + first,
                                                  .sel = m->sel + r0 * m->k,
                                                  .w = m->w + r0 * m->k,
                                                  .rows = rows,
                                                  .d = m->d,
                                                  .inner = m->inner,
                                                  .first = first,
                                                  .n = owned,
                                                  .k = m->k,
                                                  .limit = 10.0f });
        for (size_t p = 0; p < rows * m->k; p++)
            if ((uint32_t)m->sel[r0 * m->k + p] - first >= owned)
                assert_same_bits(part + p * m->d, before + p * m->d, m->d * sizeof *part, "a result of another place's expert");
    }
    k->experts_sum(e, &(ds_op_experts_sum){ .y = y, .part = part, .shared = shared, .rows = rows, .d = m->d, .k = m->k });
    free(part);
    free(before);
}

/* sum(4e-6) over both layers: the size of a hidden value is that of its gate and up sums. */
static void moe_bound(variant *v, const moe *m, double *bound)
{
    float *row = zero_floats(m->d + m->inner);
    double *h = calloc(m->inner, sizeof *h);

    for (size_t r = 0; r < m->rows; r++)
        for (uint32_t i = 0; i < m->k; i++) {
            int32_t e = m->sel[r * m->k + i];
            for (uint32_t o = 0; o < m->inner; o++) {
                double g = 0.0, u = 0.0;
                v->ref.dequant(&v->e, &(ds_op_dequant){ .dst = row, .w = &m->w1[e], .row0 = o, .rows = 1 });
                for (uint32_t c = 0; c < m->d; c++)
                    g += fabs((double)row[c] * m->x[r * m->d + c]);
                v->ref.dequant(&v->e, &(ds_op_dequant){ .dst = row, .w = &m->w3[e], .row0 = o, .rows = 1 });
                for (uint32_t c = 0; c < m->d; c++)
                    u += fabs((double)row[c] * m->x[r * m->d + c]);
                h[o] = (double)m->w[r * m->k + i] * fmin(g, 10.0) * fmin(u, 10.0);
            }
            for (uint32_t o = 0; o < m->d; o++) {
                double y = 0.0;
                v->ref.dequant(&v->e, &(ds_op_dequant){ .dst = row, .w = &m->w2[e], .row0 = o, .rows = 1 });
                for (uint32_t c = 0; c < m->inner; c++)
                    y += fabs((double)row[c]) * h[c];
                bound[r * m->d + o] += y;
            }
        }
    for (size_t i = 0; i < m->rows * m->d; i++)
        bound[i] = (bound[i] + fabs((double)m->shared[i])) * (v->e.bf16 ? 0x1p-7 : 4e-6);
    free(row);
    free(h);
}

static void experts_match_ref(void **state)
{
    variant *v = *state;
    uint64_t s = 5;
    static const struct {
        ds_mat_type t1, t2;
        size_t rows;
        uint32_t d, inner, experts, k;
    } cases[] = {
        { DS_MAT_MXFP4, DS_MAT_MXFP4, 0, 64, 32, 4, 2 },    { DS_MAT_MXFP4, DS_MAT_MXFP4, 1, 64, 32, 1, 1 },
        { DS_MAT_MXFP4, DS_MAT_MXFP4, 1, 96, 64, 16, 3 },   { DS_MAT_MXFP4, DS_MAT_MXFP4, 40, 64, 96, 11, 2 },
        { DS_MAT_BF16, DS_MAT_BF16, 9, 64, 32, 7, 6 },      { DS_MAT_BF16, DS_MAT_F32, 5, 40, 17, 7, 2 },
        { DS_MAT_F32, DS_MAT_F32, 5, 33, 20, 7, 2 },        { DS_MAT_FP8_32X32, DS_MAT_MXFP4, 12, 64, 64, 5, 2 },
        { DS_MAT_MXFP4, DS_MAT_MXFP4, 300, 32, 32, 2, 1 },  { DS_MAT_MXFP4, DS_MAT_MXFP4, 3, 512, 256, 5, 2 },
        { DS_MAT_MXFP4, DS_MAT_MXFP4, 13, 256, 512, 3, 2 }, { DS_MAT_MXFP4, DS_MAT_MXFP4, 5, 64, 64, 5, 2 },
    };
    const size_t MIXED = sizeof cases / sizeof *cases - 1; /* W3 of another type than W1, which may mean another order of columns */

    for (int bf16 = 0; bf16 < 2; bf16++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            v->e.bf16 = bf16;
            moe m = make_moe(&s, cases[i].t1, cases[i].t2, cases[i].rows, cases[i].d, cases[i].inner, cases[i].experts, cases[i].k, bf16);
            if (i == MIXED)
                for (uint32_t x = 0; x < m.experts; x++) {
                    free_mat(&m.w3[x]);
                    m.w3[x] = random_mat(&s, DS_MAT_FP8_32X32, m.d, m.inner);
                }
            size_t n = m.rows * m.d;
            float *want = zero_floats(n), *got = copy_floats(m.shared, n), *part = zero_floats(n);
            double *bound = calloc(n + 1, sizeof *bound);
            run_moe(&v->ref, &v->e, &m, want, m.shared, 0, m.rows, m.experts);
            moe_bound(v, &m, bound);
            run_moe(&v->k, &v->e, &m, got, got, 0, m.rows, m.experts); /* y may be shared */
            assert_within(got, want, bound, n, "experts");

            for (size_t r = 0; r < m.rows; r++)
                run_moe(&v->k, &v->e, &m, part + r * m.d, m.shared + r * m.d, r, 1, m.experts);
            assert_same_bits(part, got, n * sizeof *got, "rows together and alone");
            for (uint32_t each = 1; each < m.experts; each += 2) {
                run_moe(&v->k, &v->e, &m, part, m.shared, 0, m.rows, each);
                assert_same_bits(part, got, n * sizeof *got, "experts of several places");
            }
            for (size_t t = 0; t < 3; t++) {
                ds_pool *pool;
                ds_err err;
                assert_ok(ds_pool_create(&pool, &(ds_pool_opts){ .n_threads = thread_counts[t] }, &err));
                v->e.pool = pool;
                run_moe(&v->k, &v->e, &m, part, m.shared, 0, m.rows, m.experts);
                v->e.pool = NULL;
                ds_pool_destroy(pool);
                assert_same_bits(part, got, n * sizeof *got, "threads");
            }
            free(want);
            free(got);
            free(part);
            free(bound);
            free_moe(&m);
        }
}

/* Backends have other bodies for more rows of an expert. */
static void experts_are_row_invariant(void **state)
{
    enum { D = 256, INNER = 256, ROWS = 260 };
    static const size_t counts[] = { 1, 10, 24, 50, 100, 180 };
    variant *v = *state;
    uint64_t s = 7;

    v->e.bf16 = true;
    moe m = make_moe(&s, DS_MAT_MXFP4, DS_MAT_MXFP4, ROWS, D, INNER, 2, 1, true);
    float *all = zero_floats(ROWS * D), *some = zero_floats(ROWS * D);
    run_moe(&v->k, &v->e, &m, all, m.shared, 0, ROWS, 2);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        size_t r0 = ROWS - counts[i];
        run_moe(&v->k, &v->e, &m, some, m.shared + r0 * D, r0, counts[i], 2);
        assert_same_bits(some, all + r0 * D, counts[i] * D * sizeof *some, "some rows of many");
    }
    free(all);
    free(some);
    free_moe(&m);
}

static void dequant_is_exact(void **state)
{
    variant *v = *state;
    uint64_t s = 6;

    for (int t = 0; t < N_TYPES; t++) {
        ds_mat w = random_mat(&s, types[t], 96, 40);
        float *want = zero_floats(96 * 40), *got = zero_floats(96 * 40);
        ds_op_dequant a = { .dst = want, .w = &w, .row0 = 3, .rows = 37 };
        v->ref.dequant(&v->e, &a);
        a.dst = got;
        v->k.dequant(&v->e, &a);
        assert_same_bits(got, want, 96 * 37 * sizeof *got, "dequant");
        free_mat(&w);
        free(want);
        free(got);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_matches_ref),   cmocka_unit_test(linear_takes_every_scale), cmocka_unit_test(linear_is_row_invariant),
        cmocka_unit_test(linear_passes_nan_on), cmocka_unit_test(experts_match_ref),        cmocka_unit_test(experts_are_row_invariant),
        cmocka_unit_test(dequant_is_exact),
    };

    return ds_test_every_variant(tests, argc, argv);
}
