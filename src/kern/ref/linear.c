/* Linear layers: weights are dequantised exactly and summed in double. */
#include <string.h>

#include "ref_internal.h"

void ds_mat_row_ref(float *dst, const ds_mat *w, uint64_t r, uint32_t c0, uint32_t n)
{
    size_t in = w->in, at = r * in + c0;

    switch (w->type) {
    case DS_MAT_F32:
        memcpy(dst, (const uint8_t *)w->data + at * 4, n * sizeof *dst);
        break;
    case DS_MAT_BF16:
        for (uint32_t i = 0; i < n; i++) {
            uint16_t h;
            memcpy(&h, (const uint8_t *)w->data + (at + i) * 2, 2);
            dst[i] = ds_bf16_to_f32(h);
        }
        break;
    case DS_MAT_FP8_32X32:
        for (uint32_t i = 0; i < n; i++) {
            uint8_t scale = w->scale[r / 32 * ((in + 31) / 32) + (c0 + i) / 32];
            dst[i] = ds_e4m3_to_f32(((const uint8_t *)w->data)[at + i]) * ds_e8m0_to_f32(scale);
        }
        break;
    case DS_MAT_FP8_ROWS:
        for (uint32_t i = 0; i < n; i++)
            dst[i] = ds_e4m3_to_f32(((const uint8_t *)w->data)[at + i]) * ds_e8m0_to_f32(w->scale[(at + i) / 32]);
        break;
    case DS_MAT_MXFP4:
        for (uint32_t i = 0; i < n; i++)
            dst[i] = ds_e2m1_to_f32(ds_fp4_get(w->data, at + i)) * ds_e8m0_to_f32(w->scale[(at + i) / 32]);
        break;
    }
}

double ds_mat_dot_ref(const ds_mat *w, uint64_t r, const float *x)
{
    float part[32];
    double sum = 0.0;

    for (uint32_t c = 0; c < w->in; c += 32) {
        uint32_t n = w->in - c < 32 ? w->in - c : 32;
        ds_mat_row_ref(part, w, r, c, n);
        for (uint32_t i = 0; i < n; i++)
            sum += (double)part[i] * x[c + i];
    }
    return sum;
}

typedef struct {
    ds_exec *e;
    const ds_op_linear *a;
    float *row; /* [members][in] */
} linear_job;

static void linear_outputs(void *arg, size_t begin, size_t end, uint32_t member)
{
    const linear_job *j = arg;
    const ds_op_linear *a = j->a;
    size_t in = a->w->in, per_group = a->w->out / a->groups;
    float *row = j->row + member * in;

    for (size_t o = begin; o < end; o++) {
        ds_mat_row_ref(row, a->w, o, 0, a->w->in);
        for (size_t r = 0; r < a->rows; r++) {
            const float *x = a->x + r * a->ldx + o / per_group * in;
            double sum = 0.0;
            for (size_t i = 0; i < in; i++)
                sum += (double)row[i] * x[i];
            if (a->bias)
                sum += a->bias[o];
            float *y = &a->y[r * a->ldy + o];
            if (a->add)
                sum += *y;
            *y = a->round ? rounded(j->e, sum) : (float)sum;
        }
    }
}

void ds_linear_ref(ds_exec *e, const ds_op_linear *a)
{
    size_t mark = ds_arena_mark(e->scratch);
    linear_job j = { e, a, ds_exec_scratch(e, ds_exec_members(e) * (size_t)a->w->in * sizeof(float)) };

    if (a->rows)
        ds_exec_for(e, a->w->out, 1, linear_outputs, &j);
    ds_arena_rewind(e->scratch, mark);
}

static void dequant_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const ds_op_dequant *a = arg;
    (void)member;
    for (size_t r = begin; r < end; r++)
        ds_mat_row_ref(a->dst + r * a->w->in, a->w, a->row0 + r, 0, a->w->in);
}

void ds_dequant_ref(ds_exec *e, const ds_op_dequant *a)
{
    ds_exec_for(e, a->rows, 1, dequant_rows, (void *)a);
}
