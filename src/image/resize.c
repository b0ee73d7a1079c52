/* Bicubic resizing with the arithmetic of Pillow, whose output it equals byte for byte.
 *
 * Each output sample is a weighted sum of the inputs under the filter (a = -0.5), which is stretched when shrinking.
 * The weights are computed in f64, normalised, and rounded to 22 fractional bits; the rows are done first, and their
 * result is rounded and clipped to 8 bits. (Pillow 13 does the columns first in some cases; the released model was
 * trained before. README.md) The sums are in resize_body.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "image/image_internal.h"

#define MAX_SIDE (1u << 24)

static double bicubic(double x)
{
    const double a = -0.5;

    x = fabs(x);
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0)
        return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
}

ds_rc ds_resample_init(ds_resample *r, uint32_t in, uint32_t out, ds_err *err)
{
    double scale = (double)in / out, wide = scale < 1.0 ? 1.0 : scale, support = 2.0 * wide, narrow = 1.0 / wide;
    size_t taps = (size_t)ceil(support) * 2 + 1;
    double *k = malloc(taps * sizeof *k);

    *r = (ds_resample){ .in = in, .out = out, .taps = (uint32_t)taps };
    r->first = malloc(out * sizeof *r->first);
    r->count = malloc(out * sizeof *r->count);
    r->weight = calloc(out, taps * sizeof *r->weight);
    if (!k || !r->first || !r->count || !r->weight) {
        free(k);
        ds_resample_free(r);
        return ds_fail(err, DS_E_NOMEM, "resizing %u to %u pixels: out of memory", in, out);
    }
    for (uint32_t i = 0; i < out; i++) {
        double center = (i + 0.5) * scale, sum = 0.0;
        int64_t from = (int64_t)(center - support + 0.5), to = (int64_t)(center + support + 0.5), n;

        from = from < 0 ? 0 : from;
        to = to > (int64_t)in ? (int64_t)in : to;
        n = to - from;
        for (int64_t x = 0; x < n; x++) {
            k[x] = bicubic(((double)(x + from) - center + 0.5) * narrow);
            sum += k[x];
        }
        for (int64_t x = 0; x < n; x++) {
            double w = sum != 0.0 ? k[x] / sum : k[x];

            r->weight[i * taps + (size_t)x] = (int32_t)((w < 0 ? -0.5 : 0.5) + w * (1 << DS_RESAMPLE_BITS));
        }
        r->first[i] = (uint32_t)from;
        r->count[i] = (uint32_t)n;
    }
    free(k);
    return DS_OK;
}

void ds_resample_free(ds_resample *r)
{
    free(r->first);
    free(r->count);
    free(r->weight);
    *r = (ds_resample){ 0 };
}

static const ds_resize_kern *pick(void)
{
#ifdef DS_RESIZE_AVX2
    if (__builtin_cpu_supports("avx2"))
        return &ds_resize_avx2;
#endif
    return &ds_resize_base;
}

ds_rc ds_resizer_init(ds_resizer *r, uint32_t w, uint32_t h, uint32_t out_w, uint32_t out_h, uint8_t *out, size_t out_stride, ds_err *err)
{
    size_t line = (size_t)out_w * 3, total;
    ds_rc rc = DS_OK;

    *r = (ds_resizer){ .kern = pick(), .w = w, .h = h, .out_w = out_w, .out_h = out_h, .out = out, .out_stride = out_stride };
    if (w != out_w)
        rc = ds_resample_init(&r->x, w, out_w, err);
    if (rc == DS_OK && h != out_h)
        rc = ds_resample_init(&r->y, h, out_h, err);
    if (rc != DS_OK)
        goto fail;
    if (w != out_w) {
        r->rows = malloc(DS_RESIZE_ROWS * (size_t)w * 3);
        r->scratch = malloc(DS_RESIZE_ROWS * 3 * ((size_t)w + out_w));
    }
    if (h != out_h)
        r->between = ds_size_mul(&total, line, h) ? malloc(total) : NULL;
    if ((w != out_w && (!r->rows || !r->scratch)) || (h != out_h && !r->between)) {
        rc = ds_fail(err, DS_E_NOMEM, "resizing %u x %u to %u x %u pixels: out of memory", w, h, out_w, out_h);
        goto fail;
    }
    return DS_OK;
fail:
    ds_resizer_free(r);
    return rc;
}

/* Rows waiting in r->rows, the last of which is row y. */
static void flush_rows(ds_resizer *r, uint32_t y)
{
    size_t line = r->between ? (size_t)r->out_w * 3 : r->out_stride;
    uint8_t *to = r->between ? r->between : r->out;

    r->kern->rows(&r->x, to + (size_t)(y + 1 - r->waiting) * line, line, r->rows, r->waiting, r->scratch);
    r->waiting = 0;
}

void ds_resizer_row(ds_resizer *r, uint32_t y, const uint8_t *rgb)
{
    size_t line = (size_t)r->w * 3;

    if (!r->rows) {
        memcpy(r->between ? r->between + y * line : r->out + y * r->out_stride, rgb, line);
        return;
    }
    memcpy(r->rows + r->waiting++ * line, rgb, line);
    if (r->waiting == DS_RESIZE_ROWS || y == r->h - 1)
        flush_rows(r, y);
}

void ds_resizer_end(ds_resizer *r)
{
    if (r->between)
        for (uint32_t i = 0; i < r->out_h; i++)
            r->kern->column(&r->y, i, r->out + i * r->out_stride, r->between, (size_t)r->out_w * 3);
}

void ds_resizer_free(ds_resizer *r)
{
    ds_resample_free(&r->x);
    ds_resample_free(&r->y);
    free(r->between);
    free(r->rows);
    free(r->scratch);
    r->between = r->rows = r->scratch = NULL;
}

ds_rc ds_image_resize(uint8_t *out, uint32_t out_w, uint32_t out_h, const uint8_t *rgb, uint32_t w, uint32_t h, ds_err *err)
{
    ds_resizer r;
    ds_rc rc;

    if (w == 0 || h == 0 || out_w == 0 || out_h == 0 || w > MAX_SIDE || h > MAX_SIDE || out_w > MAX_SIDE || out_h > MAX_SIDE)
        return ds_fail(err, DS_E_ARG, "resizing %u x %u to %u x %u pixels: a side has 1 to %u", w, h, out_w, out_h, MAX_SIDE);
    rc = ds_resizer_init(&r, w, h, out_w, out_h, out, (size_t)out_w * 3, err);
    if (rc != DS_OK)
        return rc;
    for (uint32_t y = 0; y < h; y++)
        ds_resizer_row(&r, y, rgb + (size_t)y * w * 3);
    ds_resizer_end(&r);
    ds_resizer_free(&r);
    return DS_OK;
}
