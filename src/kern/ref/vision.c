/* Vision tower (spec 3.15). */
#include <math.h>
#include <string.h>

#include "ref_internal.h"

typedef struct {
    ds_exec *e;
    const void *a;
    double *s; /* [members][n + dim] */
} job;

static void rope2d_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_rope2d *a = j->a;
    uint32_t half = a->dim / 2, quarter = a->dim / 4;
    (void)member;
    for (size_t r = begin; r < end; r++) {
        size_t row = r / a->n_w, col = r % a->n_w;
        for (uint32_t h = 0; h < a->heads; h++) {
            float *x = a->x + r * a->ldx + (size_t)h * a->dim;
            for (uint32_t i = 0; i < half; i++) {
                const float *cs = a->cs + (i < quarter ? row * quarter + i : col * quarter + (i - quarter)) * 2;
                double u = x[i], v = x[i + half];
                x[i] = rounded(j->e, u * cs[0] - v * cs[1]);
                x[i + half] = rounded(j->e, v * cs[0] + u * cs[1]);
            }
        }
    }
}

void ds_rope2d_ref(ds_exec *e, const ds_op_rope2d *a)
{
    ds_exec_for(e, a->rows, 1, rope2d_rows, &(job){ e, a, NULL });
}

static void vit_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_vit_attention *a = j->a;
    size_t dim = a->dim;
    double *s = j->s + member * (a->n + dim), *acc = s + a->n;

    for (size_t r = begin; r < end; r++)
        for (uint32_t h = 0; h < a->heads; h++) {
            double max = -INFINITY, sum = 0.0;
            for (size_t t = 0; t < a->n; t++) {
                double dot = 0.0;
                for (size_t c = 0; c < dim; c++)
                    dot += (double)a->q[r * a->ld + h * dim + c] * a->k[t * a->ld + h * dim + c];
                s[t] = dot * (double)a->scale;
                max = fmax(max, s[t]);
            }
            memset(acc, 0, dim * sizeof *acc);
            for (size_t t = 0; t < a->n; t++) {
                double w = exp(s[t] - max);
                sum += w;
                for (size_t c = 0; c < dim; c++)
                    acc[c] += w * a->v[t * a->ld + h * dim + c];
            }
            for (size_t c = 0; c < dim; c++)
                a->o[r * a->heads * dim + h * dim + c] = rounded(j->e, acc[c] / sum);
        }
}

void ds_vit_attention_ref(ds_exec *e, const ds_op_vit_attention *a)
{
    size_t mark = ds_arena_mark(e->scratch);
    job j = { e, a, ds_exec_scratch(e, ds_exec_members(e) * (a->n + a->dim) * sizeof(double)) };

    ds_exec_for(e, a->n, 1, vit_rows, &j);
    ds_arena_rewind(e->scratch, mark);
}

static void cells_range(void *arg, size_t begin, size_t end, uint32_t member)
{
    const ds_op_cells *a = arg;
    uint32_t s = a->s, gw = (a->n_w + s - 1) / s;
    (void)member;
    for (size_t cell = begin; cell < end; cell++) {
        float *out = a->out + cell * a->dim * s * s;
        for (uint32_t dy = 0; dy < s; dy++)
            for (uint32_t dx = 0; dx < s; dx++) {
                size_t y = cell / gw * s + dy, x = cell % gw * s + dx;
                bool inside = y < a->n_h && x < a->n_w;
                for (uint32_t c = 0; c < a->dim; c++)
                    out[(c * s + dy) * s + dx] = inside ? a->x[(y * a->n_w + x) * a->dim + c] : 0.0f;
            }
    }
}

void ds_cells_ref(ds_exec *e, const ds_op_cells *a)
{
    size_t gh = (a->n_h + a->s - 1) / a->s, gw = (a->n_w + a->s - 1) / a->s;
    ds_exec_for(e, gh * gw, 1, cells_range, (void *)a);
}
