/* The vision tower's own ops, over the vectors of vec_*.h.
 *
 * Attention: head by head, keys are turned once, VW of them side by side; then four queries at a time go over all
 * keys, as in attention_body.h. Bound by FMA units: 2 * n * n * dim products a head. */
#include "kern/cpu/bodies.h"
#include "kern/cpu/gemm.h"
#include "kern/cpu/softmax_body.h"

enum { QB = 4, MAX_PAIR = 512 };

typedef struct {
    ds_exec *e;
    const ds_op_vit_attention *a;
    uint32_t head;
    size_t padded;
    float *turned; /* [dim][padded] */
    float *score;  /* [members][QB][padded] */
} vit_job;

static void turn_keys(void *arg, size_t begin, size_t end, uint32_t member)
{
    const vit_job *j = arg;
    const ds_op_vit_attention *a = j->a;
    (void)member;
    for (size_t i = begin; i < end; i += VW)
        for (size_t c = 0; c < a->dim; c += VW) {
            vf t[VW];
            for (size_t k = 0; k < VW; k++)
                t[k] = i + k < a->n ? vf_load_n(a->k + (i + k) * a->ld + j->head * a->dim + c, a->dim - c) : vf_zero();
            vf_transpose(t);
            for (size_t k = 0; k < VW && c + k < a->dim; k++)
                vf_store(j->turned + (c + k) * j->padded + i, t[k]);
        }
}

static inline __attribute__((always_inline)) void queries(const vit_job *j, float *s, size_t r, int n)
{
    const ds_op_vit_attention *a = j->a;
    size_t dim = a->dim, at = j->head * dim, ldo = a->heads * dim;
    float total[QB];

    scores(s, a->q + r * a->ld + at, a->ld, j->turned, dim, j->padded, n);
    for (int i = 0; i < n; i++)
        total[i] = weights(s + (size_t)i * j->padded, a->n, j->padded, a->scale, -INFINITY);
    for (size_t c = 0; c < dim; c += 2 * VW) {
        size_t left = dim - c, rest = left > VW ? left - VW : 0;
        vf x[QB], y[QB];
        for (int i = 0; i < n; i++)
            x[i] = y[i] = vf_zero();
        for (size_t t = 0; t < a->n; t++) {
            const float *v = a->v + t * a->ld + at + c;
            vf v0 = vf_load_n(v, left), v1 = rest ? vf_load_n(v + VW, rest) : vf_zero();
            for (int i = 0; i < n; i++) {
                vf p = vf_set1(s[(size_t)i * j->padded + t]);
                x[i] = vf_fma(p, v0, x[i]);
                y[i] = vf_fma(p, v1, y[i]);
            }
        }
        for (int i = 0; i < n; i++) {
            float *o = a->o + (r + (size_t)i) * ldo + at + c;
            vf t = vf_set1(total[i]), u = vf_div(x[i], t), w = vf_div(y[i], t);
            vf_store_n(o, j->e->bf16 ? vf_bf16(u) : u, left);
            if (rest)
                vf_store_n(o + VW, j->e->bf16 ? vf_bf16(w) : w, rest);
        }
    }
}

static void query_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const vit_job *j = arg;
    float *s = j->score + member * QB * j->padded;

    for (size_t r = begin; r < end; r += QB)
        switch (end - r) {
        case 1:
            queries(j, s, r, 1);
            break;
        case 2:
            queries(j, s, r, 2);
            break;
        case 3:
            queries(j, s, r, 3);
            break;
        default:
            queries(j, s, r, QB);
        }
}

void V(ds_vit_attention)(ds_exec *e, const ds_op_vit_attention *a)
{
    size_t mark = ds_arena_mark(e->scratch), padded = (a->n + VW - 1) / VW * VW;
    vit_job j = { .e = e, .a = a, .padded = padded };

    j.turned = ds_exec_scratch(e, a->dim * padded * sizeof *j.turned);
    j.score = ds_exec_scratch(e, ds_exec_members(e) * QB * padded * sizeof *j.score);
    for (j.head = 0; j.head < a->heads; j.head++) {
        ds_cpu_for(e, a->n, VW, a->n * a->dim / 4, turn_keys, &j);
        ds_cpu_for(e, a->n, QB, a->n * a->n * a->dim / 16, query_rows, &j);
    }
    ds_arena_rewind(e->scratch, mark);
}

/* ---- rotation in two dimensions ---- */

typedef struct {
    ds_exec *e;
    const ds_op_rope2d *a;
} rope_job;

static void rope2d_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const rope_job *j = arg;
    const ds_op_rope2d *a = j->a;
    size_t half = a->dim / 2, quarter = a->dim / 4;
    float c[MAX_PAIR], s[MAX_PAIR]; /* of a row's pairs */
    (void)member;
    for (size_t r = begin; r < end; r++) {
        const float *row = a->cs + r / a->n_w * quarter * 2, *col = a->cs + r % a->n_w * quarter * 2;
        for (size_t i = 0; i < half; i++) {
            c[i] = i < quarter ? row[2 * i] : col[2 * (i - quarter)];
            s[i] = i < quarter ? row[2 * i + 1] : col[2 * (i - quarter) + 1];
        }
        for (uint32_t h = 0; h < a->heads; h++) {
            float *x = a->x + r * a->ldx + (size_t)h * a->dim;
            for (size_t i = 0; i < half; i += VW) {
                size_t left = half - i;
                vf u = vf_load_n(x + i, left), v = vf_load_n(x + half + i, left), cos = vf_load_n(c + i, left),
                   sin = vf_load_n(s + i, left);
                vf y = vf_fma(u, cos, vf_sub(vf_zero(), vf_mul(v, sin))), z = vf_fma(v, cos, vf_mul(u, sin));
                vf_store_n(x + i, j->e->bf16 ? vf_bf16(y) : y, left);
                vf_store_n(x + half + i, j->e->bf16 ? vf_bf16(z) : z, left);
            }
        }
    }
}

void V(ds_rope2d)(ds_exec *e, const ds_op_rope2d *a)
{
    if (a->dim / 2 > MAX_PAIR)
        ds_rope2d_ref(e, a);
    else
        ds_cpu_for(e, a->rows, 1, a->rows * a->heads * a->dim / 4, rope2d_rows, &(rope_job){ e, a });
}
