/* Embedding rows and the residual streams (spec 3.3, 3.4). */
#include <math.h>
#include <string.h>

#include "ref_internal.h"

enum { MAX_STREAMS = 8 };

typedef struct {
    ds_exec *e;
    const void *a;
} job;

static void embed_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_embed *a = j->a;
    size_t d = a->table->in;
    (void)member;
    for (size_t r = begin; r < end; r++) {
        float *y = a->y + r * a->copies * d;
        bool finite = true;
        if (a->id[r] >= 0)
            ds_mat_row_ref(y, a->table, (uint64_t)a->id[r], 0, a->table->in);
        else
            memcpy(y, a->extra + (size_t)(-1 - a->id[r]) * d, d * sizeof *y);
        for (size_t i = 0; i < d; i++) {
            finite = finite && isfinite(y[i]);
            y[i] = rounded(j->e, y[i]);
        }
        if (!finite && a->id[r] >= 0) {
            memset(y, 0, d * sizeof *y);
            ds_exec_fault(j->e, DS_FAULT_VALUE, a->tag, a->id[r]);
        }
        for (uint32_t c = 1; c < a->copies; c++)
            memcpy(y + c * d, y, d * sizeof *y);
    }
}

void ds_embed_ref(ds_exec *e, const ds_op_embed *a)
{
    ds_exec_for(e, a->rows, 1, embed_rows, &(job){ e, a });
}

/* Steps 1 to 4: the mix row that the streams X [n][d] ask for. */
static void mix_of(float *out, const float *X, const ds_op_mhc *a)
{
    uint32_t n = a->n, n_out = (2 + n) * n;
    size_t len = (size_t)n * a->d;
    double m[(2 + MAX_STREAMS) * MAX_STREAMS], B[MAX_STREAMS][MAX_STREAMS], ss = 0.0;

    for (size_t i = 0; i < len; i++)
        ss += (double)X[i] * X[i];
    double inv = 1.0 / sqrt(ss / (double)len + (double)a->eps);
    for (uint32_t o = 0; o < n_out; o++) {
        double sum = 0.0;
        for (size_t i = 0; i < len; i++)
            sum += (double)a->fn[o * len + i] * X[i];
        m[o] = sum * inv * a->scale[o < n ? 0 : (o < 2 * n ? 1 : 2)] + a->base[o];
    }
    for (uint32_t k = 0; k < n; k++) {
        out[k] = (float)(sigmoid(m[k]) + (double)a->hc_eps);
        out[n + k] = (float)(2.0 * sigmoid(m[n + k]));
    }
    for (uint32_t r = 0; r < n; r++) {
        const double *b = m + 2 * n + r * n;
        double max = b[0], sum = 0.0;
        for (uint32_t k = 1; k < n; k++)
            max = fmax(max, b[k]);
        for (uint32_t k = 0; k < n; k++)
            sum += B[r][k] = exp(b[k] - max);
        for (uint32_t k = 0; k < n; k++)
            B[r][k] = B[r][k] / sum + (double)a->hc_eps;
    }
    for (uint32_t it = 0; it < a->iters; it++) {
        for (uint32_t r = 0; it > 0 && r < n; r++) { /* the softmax stands for the first row pass */
            double sum = 0.0;
            for (uint32_t k = 0; k < n; k++)
                sum += B[r][k];
            for (uint32_t k = 0; k < n; k++)
                B[r][k] /= sum + (double)a->hc_eps;
        }
        for (uint32_t k = 0; k < n; k++) {
            double sum = 0.0;
            for (uint32_t r = 0; r < n; r++)
                sum += B[r][k];
            for (uint32_t r = 0; r < n; r++)
                B[r][k] /= sum + (double)a->hc_eps;
        }
    }
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t k = 0; k < n; k++)
            out[2 * n + r * n + k] = (float)B[r][k];
}

static void mhc_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_mhc *a = j->a;
    uint32_t n = a->n;
    size_t d = a->d, mix_len = (size_t)(2 + n) * n;
    (void)member;
    for (size_t r = begin; r < end; r++) {
        float *X = a->X + r * n * d, mix[(2 + MAX_STREAMS) * MAX_STREAMS];
        if (a->mix_in)
            memcpy(mix, a->mix_in + r * mix_len, mix_len * sizeof *mix);
        for (size_t i = 0; a->y && i < d; i++) {
            double old[MAX_STREAMS];
            for (uint32_t k = 0; k < n; k++)
                old[k] = X[k * d + i];
            for (uint32_t k = 0; k < n; k++) {
                double v = (double)mix[n + k] * a->y[r * d + i];
                for (uint32_t s = 0; s < n; s++)
                    v += mix[2 * n + s * n + k] * old[s];
                X[k * d + i] = rounded(j->e, v);
            }
        }
        for (size_t i = 0; a->x && i < d; i++) {
            double v = 0.0;
            for (uint32_t k = 0; k < n; k++)
                v += (double)mix[k] * X[k * d + i];
            a->x[r * d + i] = rounded(j->e, v);
        }
        if (a->fn)
            mix_of(a->mix_out + r * mix_len, X, a);
    }
}

void ds_mhc_ref(ds_exec *e, const ds_op_mhc *a)
{
    ds_exec_for(e, a->rows, 1, mhc_rows, &(job){ e, a });
}

static void mean_rows(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    const ds_op_stream_mean *a = j->a;
    size_t d = a->d;
    (void)member;
    for (size_t r = begin; r < end; r++)
        for (size_t i = 0; i < d; i++) {
            double v = 0.0;
            for (uint32_t k = 0; k < a->n; k++)
                v += a->X[(r * a->n + k) * d + i];
            a->t[r * a->ldt + i] = rounded(j->e, v / a->n);
        }
}

void ds_stream_mean_ref(ds_exec *e, const ds_op_stream_mean *a)
{
    ds_exec_for(e, a->rows, 1, mean_rows, &(job){ e, a });
}
