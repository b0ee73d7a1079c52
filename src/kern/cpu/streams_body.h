/* The residual streams, over the vectors of vec_*.h: mHC turns and their mean.
 *
 * An mHC turn is three passes: the update of X and the collapse to x, row by row; m = fn . X, by tiles of 4 outputs
 * x MR rows whose chains run along the streams; the mixes, MIX_ROWS rows at a time with a row of B in each 128-bit
 * part of a vector. Bound by the bytes of X in the first pass, by FMA units in the second (by the bytes of fn for a
 * single row). */
#include "format/numfmt.h"
#include "kern/cpu/bodies.h"
#include "kern/cpu/gemm.h"
#include "kern/cpu/math_body.h"

enum { MAX_STREAMS = 8, MAX_OUT = (2 + MAX_STREAMS) * MAX_STREAMS, MR = VW / 4, MIX_ROWS = VW / 4 };

typedef struct {
    ds_exec *e;
    const ds_op_mhc *a;
    float *m;  /* [rows][quads * 4] */
    float *ss; /* [rows] */
    size_t quads;
} mhc_job;

static inline __attribute__((always_inline)) vf rounded(vf v, bool bf16)
{
    return bf16 ? vf_bf16(v) : v;
}

/* Parts 1 and 2 on n = 4 streams. */
static void turn4(const ds_op_mhc *a, size_t r, const float *mix, bool bf16)
{
    size_t d = a->d;
    float *X = a->X + r * 4 * d;

    for (size_t i = 0; i < d; i += VW) {
        size_t left = d - i;
        vf v[4];
        for (size_t k = 0; k < 4; k++)
            v[k] = vf_load_n(X + k * d + i, left);
        if (a->y) {
            vf old[4] = { v[0], v[1], v[2], v[3] }, y = vf_load_n(a->y + r * d + i, left);
            for (size_t k = 0; k < 4; k++) {
                vf s = vf_mul(vf_set1(mix[4 + k]), y);
                for (size_t t = 0; t < 4; t++)
                    s = vf_fma(vf_set1(mix[8 + t * 4 + k]), old[t], s);
                v[k] = rounded(s, bf16);
                vf_store_n(X + k * d + i, v[k], left);
            }
        }
        if (a->x) {
            vf s = vf_mul(vf_set1(mix[0]), v[0]);
            for (size_t k = 1; k < 4; k++)
                s = vf_fma(vf_set1(mix[k]), v[k], s);
            vf_store_n(a->x + r * d + i, rounded(s, bf16), left);
        }
    }
}

static void turn_any(const ds_op_mhc *a, size_t r, const float *mix, bool bf16)
{
    size_t d = a->d, n = a->n;
    float *X = a->X + r * n * d;

    for (size_t i = 0; i < d; i += VW) {
        size_t left = d - i;
        vf old[MAX_STREAMS], v[MAX_STREAMS];
        for (size_t k = 0; k < n; k++)
            v[k] = old[k] = vf_load_n(X + k * d + i, left);
        if (a->y) {
            vf y = vf_load_n(a->y + r * d + i, left);
            for (size_t k = 0; k < n; k++) {
                vf s = vf_mul(vf_set1(mix[n + k]), y);
                for (size_t t = 0; t < n; t++)
                    s = vf_fma(vf_set1(mix[2 * n + t * n + k]), old[t], s);
                v[k] = rounded(s, bf16);
                vf_store_n(X + k * d + i, v[k], left);
            }
        }
        if (a->x) {
            vf s = vf_mul(vf_set1(mix[0]), v[0]);
            for (size_t k = 1; k < n; k++)
                s = vf_fma(vf_set1(mix[k]), v[k], s);
            vf_store_n(a->x + r * d + i, rounded(s, bf16), left);
        }
    }
}

static void turn_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const mhc_job *j = arg;
    const ds_op_mhc *a = j->a;
    size_t len = (size_t)a->n * a->d, mix_len = (size_t)(2 + a->n) * a->n;
    (void)member;
    for (size_t r = begin; r < end; r++) {
        const float *mix = a->mix_in + r * mix_len;
        if ((a->y || a->x) && a->n == 4)
            turn4(a, r, mix, j->e->bf16);
        else if (a->y || a->x)
            turn_any(a, r, mix, j->e->bf16);
        if (a->fn) {
            const float *X = a->X + r * len;
            vf s0 = vf_zero(), s1 = vf_zero();
            size_t i = 0;
            for (; i + 2 * VW <= len; i += 2 * VW) {
                vf v0 = vf_load(X + i), v1 = vf_load(X + i + VW);
                s0 = vf_fma(v0, v0, s0);
                s1 = vf_fma(v1, v1, s1);
            }
            for (; i < len; i += VW) {
                vf v = vf_load_n(X + i, len - i);
                s0 = vf_fma(v, v, s0);
            }
            j->ss[r] = vf_sum(vf_add(s0, s1));
        }
    }
}

/* m of 4 outputs and n_rows <= MR rows. */
static inline __attribute__((always_inline)) void project_tile(const mhc_job *j, size_t r0, size_t q, int n_rows)
{
    const ds_op_mhc *a = j->a;
    size_t len = (size_t)a->n * a->d, n_out = (size_t)(2 + a->n) * a->n, last = n_out - 1, o = 4 * q;
    const float *x = a->X + r0 * len;
    const float *w0 = a->fn + o * len, *w1 = a->fn + (o + 1 < last ? o + 1 : last) * len, *w2 = a->fn + (o + 2 < last ? o + 2 : last) * len,
                *w3 = a->fn + (o + 3 < last ? o + 3 : last) * len;
    vf c[VW];
    float sums[VW];

    for (size_t i = 0; i < VW; i++)
        c[i] = vf_zero();
    for (size_t k = 0; k < len; k += VW) {
        size_t left = len - k;
        vf v0 = vf_load_n(w0 + k, left), v1 = vf_load_n(w1 + k, left), v2 = vf_load_n(w2 + k, left), v3 = vf_load_n(w3 + k, left);
        for (int r = 0; r < n_rows; r++) {
            vf v = vf_load_n(x + (size_t)r * len + k, left);
            c[4 * r] = vf_fma(v0, v, c[4 * r]);
            c[4 * r + 1] = vf_fma(v1, v, c[4 * r + 1]);
            c[4 * r + 2] = vf_fma(v2, v, c[4 * r + 2]);
            c[4 * r + 3] = vf_fma(v3, v, c[4 * r + 3]);
        }
    }
    vf_store(sums, vf_sums(c));
    for (int r = 0; r < n_rows; r++)
        memcpy(j->m + (r0 + (size_t)r) * j->quads * 4 + o, sums + 4 * r, 4 * sizeof *sums);
}

static void project_tiles(void *arg, size_t begin, size_t end, uint32_t member)
{
    const mhc_job *j = arg;
    (void)member;
    for (size_t t = begin; t < end; t++) {
        size_t r0 = t / j->quads * MR, left = j->a->rows - r0;
        switch (left) {
        case 1:
            project_tile(j, r0, t % j->quads, 1);
            break;
        case 2:
            project_tile(j, r0, t % j->quads, 2);
            break;
        case 3:
            project_tile(j, r0, t % j->quads, MR < 3 ? MR : 3);
            break;
        default:
            project_tile(j, r0, t % j->quads, MR);
        }
    }
}

/* m of row r to pre, post and the rows of exp(B - max), in place at v. */
static void mix_start(const mhc_job *j, size_t r, float *v)
{
    const ds_op_mhc *a = j->a;
    size_t n = a->n, n_out = (2 + n) * n;
    float inv = (float)(1.0 / sqrt((double)j->ss[r] / (double)(n * a->d) + (double)a->eps)), t[MAX_OUT + VW] = { 0 };

    for (size_t o = 0; o < n_out; o++)
        t[o] = j->m[r * j->quads * 4 + o] * inv * a->scale[o < n ? 0 : (o < 2 * n ? 1 : 2)] + a->base[o];
    for (size_t o = 0; o < 2 * n; o += VW)
        vf_store(v + o, vf_sigmoid(vf_load(t + o)));
    for (size_t k = 0; k < n; k++) {
        v[k] += a->hc_eps;
        v[n + k] *= 2.0f;
    }
    for (size_t s = 0; s < n; s++) {
        float *b = t + 2 * n + s * n, max = b[0];
        for (size_t k = 1; k < n; k++)
            max = b[k] > max ? b[k] : max;
        for (size_t k = 0; k < n; k++)
            b[k] -= max;
    }
    float e[MAX_OUT + VW];
    for (size_t o = 0; o < n * n; o += VW)
        vf_store(e + o, vf_exp(vf_load(t + 2 * n + o)));
    memcpy(v + 2 * n, e, n * n * sizeof *e);
}

/* B of one row, any n: rows to sum 1, then columns and rows in turn. */
static void balance_any(const ds_op_mhc *a, float *B)
{
    size_t n = a->n;

    for (uint32_t it = 0; it < a->iters; it++) {
        for (size_t r = 0; r < n; r++) {
            float sum = 0.0f;
            for (size_t k = 0; k < n; k++)
                sum += B[r * n + k];
            for (size_t k = 0; k < n; k++)
                B[r * n + k] = it == 0 ? B[r * n + k] / sum + a->hc_eps : B[r * n + k] / (sum + a->hc_eps);
        }
        for (size_t k = 0; k < n; k++) {
            float sum = 0.0f;
            for (size_t r = 0; r < n; r++)
                sum += B[r * n + k];
            for (size_t r = 0; r < n; r++)
                B[r * n + k] /= sum + a->hc_eps;
        }
    }
}

/* Divides the columns of the 4x4 matrices in b[0..4) by their sums. */
static inline __attribute__((always_inline)) void columns4(vf b[4], vf eps)
{
    vf inv = vf_div(vf_set1(1.0f), vf_add(vf_add(vf_add(b[0], b[1]), vf_add(b[2], b[3])), eps));
    for (int i = 0; i < 4; i++)
        b[i] = vf_mul(b[i], inv);
}

/* The same for n = 4 and MIX_ROWS rows at once: b[i] holds row i of each matrix. */
static void balance4(vf b[4], uint32_t iters, float hc_eps)
{
    vf eps = vf_set1(hc_eps);

    for (uint32_t it = 0; it < iters; it++) {
        vf_transpose4(b);
        columns4(b, it == 0 ? vf_zero() : eps);
        if (it == 0)
            for (int i = 0; i < 4; i++)
                b[i] = vf_add(b[i], eps);
        vf_transpose4(b);
        columns4(b, eps);
    }
}

static void mix_groups(void *arg, size_t begin, size_t end, uint32_t member)
{
    const mhc_job *j = arg;
    const ds_op_mhc *a = j->a;
    size_t n = a->n, mix_len = (2 + n) * n;
    (void)member;
    for (size_t g = begin; g < end; g++) {
        size_t r0 = g * MIX_ROWS, rows = a->rows - r0 < MIX_ROWS ? a->rows - r0 : MIX_ROWS;
        float v[MIX_ROWS][MAX_OUT + VW];
        for (size_t r = 0; r < rows; r++)
            mix_start(j, r0 + r, v[r]);
        if (n == 4) {
            float t[4][VW] = { { 0 } };
            vf b[4];
            for (size_t r = 0; r < MIX_ROWS; r++)
                for (size_t i = 0; i < 4; i++)
                    memcpy(t[i] + 4 * r, v[r < rows ? r : 0] + 8 + 4 * i, 4 * sizeof(float));
            for (int i = 0; i < 4; i++)
                b[i] = vf_load(t[i]);
            balance4(b, a->iters, a->hc_eps);
            for (int i = 0; i < 4; i++)
                vf_store(t[i], b[i]);
            for (size_t r = 0; r < rows; r++)
                for (size_t i = 0; i < 4; i++)
                    memcpy(v[r] + 8 + 4 * i, t[i] + 4 * r, 4 * sizeof(float));
        } else {
            for (size_t r = 0; r < rows; r++)
                balance_any(a, v[r] + 2 * n);
        }
        for (size_t r = 0; r < rows; r++)
            memcpy(a->mix_out + (r0 + r) * mix_len, v[r], mix_len * sizeof(float));
    }
}

void V(ds_mhc)(ds_exec *e, const ds_op_mhc *a)
{
    size_t mark = ds_arena_mark(e->scratch), n_out = (size_t)(2 + a->n) * a->n, len = (size_t)a->n * a->d;
    mhc_job j = { .e = e, .a = a, .quads = (n_out + 3) / 4 };

    if (a->fn) {
        j.m = ds_exec_scratch(e, a->rows * j.quads * 4 * sizeof *j.m);
        j.ss = ds_exec_scratch(e, a->rows * sizeof *j.ss);
    }
    ds_cpu_for(e, a->rows, 1, a->rows * len / 4, turn_rows, &j);
    if (a->fn) {
        ds_cpu_for(e, (a->rows + MR - 1) / MR * j.quads, 1, ds_gemm_ns(a->rows, n_out, len), project_tiles, &j);
        ds_cpu_for(e, (a->rows + MIX_ROWS - 1) / MIX_ROWS, 1, a->rows * 16 * a->iters, mix_groups, &j);
    }
    ds_arena_rewind(e->scratch, mark);
}

/* ---- mean ---- */

typedef struct {
    ds_exec *e;
    const void *a;
} job;

static void mean_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_stream_mean *a = j->a;
    size_t d = a->d;
    (void)member;
    for (size_t r = begin; r < end; r++)
        for (size_t i = 0; i < d; i += VW) {
            vf s = vf_load_n(a->X + r * a->n * d + i, d - i);
            for (size_t k = 1; k < a->n; k++)
                s = vf_add(s, vf_load_n(a->X + (r * a->n + k) * d + i, d - i));
            vf_store_n(a->t + r * a->ldt + i, rounded(vf_div(s, vf_set1((float)a->n)), j->e->bf16), d - i);
        }
}

void V(ds_stream_mean)(ds_exec *e, const ds_op_stream_mean *a)
{
    ds_cpu_for(e, a->rows, 1, a->rows * a->n * a->d / 8, mean_rows, &(job){ e, a });
}

/* ---- Engram gate ---- */

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
            const float *key = kv + s * d, *qw = a->qw + s * d, *kw = a->kw + s * d;
            vf dots = vf_zero(), xs = vf_zero(), ks = vf_zero();
            for (size_t i = 0; i < d; i += VW) {
                vf x = vf_load_n(X + i, d - i), k = vf_load_n(key + i, d - i),
                   w = vf_mul(vf_load_n(qw + i, d - i), vf_load_n(kw + i, d - i));
                dots = vf_fma(vf_mul(x, w), k, dots);
                xs = vf_fma(x, x, xs);
                ks = vf_fma(k, k, ks);
            }
            double dot = vf_sum(dots), xx = vf_sum(xs), kk = vf_sum(ks), root, gate;
            dot /= sqrt(xx / (double)d + (double)a->eps) * sqrt(kk / (double)d + (double)a->eps) * sqrt((double)d);
            root = sqrt(fmax(fabs(dot), 1e-6));
            gate = 1.0 / (1.0 + exp(dot < 0.0 ? root : -root));
            vf g = vf_set1((float)gate);
            for (size_t i = 0; i < d; i += VW)
                vf_store_n(X + i, rounded(vf_fma(g, vf_load_n(val + i, d - i), vf_load_n(X + i, d - i)), j->e->bf16), d - i);
        }
    }
}

void V(ds_engram_fuse)(ds_exec *e, const ds_op_engram_fuse *a)
{
    ds_cpu_for(e, a->rows, 1, a->rows * a->n * a->d / 4, fuse_rows, &(job){ e, a });
}
