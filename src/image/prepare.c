/* A picture as the vision tower wants it: laid out, resized while it is decoded, padded, cut into patches. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "image/image_internal.h"

#define PADDING 127 /* gray */

void ds_prepare_opts_init(ds_prepare_opts *o)
{
    *o = (ds_prepare_opts){ 0 };
    ds_image_limits_init(&o->limits);
    ds_image_rule_init(&o->rule);
}

typedef struct {
    const ds_prepare_opts *opts;
    ds_picture *out;
    ds_resizer resizer;
} prepare;

/* The picture inside the fitted size, its ratio kept: one side is full. Python's float arithmetic and rounding. */
static void contain(uint32_t w, uint32_t h, uint32_t fit_w, uint32_t fit_h, uint32_t *in_w, uint32_t *in_h)
{
    double ratio = (double)w / h, fit = (double)fit_w / fit_h;

    *in_w = fit_w;
    *in_h = fit_h;
    if (ratio > fit)
        *in_h = (uint32_t)rint((double)h / w * fit_w);
    else if (ratio < fit)
        *in_w = (uint32_t)rint(ratio * fit_h);
    *in_w = *in_w == 0 ? 1 : *in_w;
    *in_h = *in_h == 0 ? 1 : *in_h;
}

static ds_rc begin(void *ctx, uint32_t w, uint32_t h, ds_err *err)
{
    prepare *p = ctx;
    ds_image *l = &p->out->layout;
    uint32_t in_w, in_h, left, top;
    size_t line;
    ds_rc rc;

    l->width = w;
    l->height = h;
    rc = ds_image_layout_by(l, &p->opts->rule, err);
    if (rc != DS_OK)
        return ds_fail(err, DS_E_FORMAT, "image of %u x %u pixels: the size rule has no answer", w, h);
    p->out->patch = p->opts->rule.patch;
    p->out->n_w = l->fitted_w / p->out->patch;
    p->out->n_h = l->fitted_h / p->out->patch;
    if (p->opts->size_only)
        return DS_OK;
    line = (size_t)l->fitted_w * 3;
    p->out->pixels = malloc(line * l->fitted_h);
    if (!p->out->pixels)
        return ds_fail(err, DS_E_NOMEM, "image of %u x %u pixels: out of memory", w, h);
    if (p->opts->rule.max_wh_ratio > 0 && (double)w > h * p->opts->rule.max_wh_ratio) {
        in_w = l->fitted_w;
        in_h = l->fitted_h;
    } else {
        contain(w, h, l->fitted_w, l->fitted_h, &in_w, &in_h);
    }
    memset(p->out->pixels, PADDING, line * l->fitted_h);
    left = (uint32_t)rint((l->fitted_w - in_w) * 0.5);
    top = (uint32_t)rint((l->fitted_h - in_h) * 0.5);
    return ds_resizer_init(&p->resizer, w, h, in_w, in_h, p->out->pixels + top * line + (size_t)left * 3, line, err);
}

static ds_rc row(void *ctx, uint32_t y, const uint8_t *rgb, ds_err *err)
{
    prepare *p = ctx;

    (void)err;
    if (!p->opts->size_only)
        ds_resizer_row(&p->resizer, y, rgb);
    return DS_OK;
}

static void put_u32(uint8_t *to, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(v >> 8 * i);
}

static void make_digest(ds_picture *p)
{
    static const char name[] = "ds image 1"; /* with its NUL */
    uint8_t text[sizeof name + 8 + 32];

    memcpy(text, name, sizeof name);
    put_u32(text + sizeof name, p->layout.fitted_w);
    put_u32(text + sizeof name + 4, p->layout.fitted_h);
    ds_sha256(text + sizeof name + 8, p->pixels, (size_t)p->layout.fitted_w * p->layout.fitted_h * 3);
    ds_sha256(p->digest, text, sizeof text);
}

/* What follows the last row; takes the resizer down in any case. */
static ds_rc finish(prepare *p, ds_rc rc)
{
    if (rc == DS_OK && !p->opts->size_only) {
        ds_resizer_end(&p->resizer);
        make_digest(p->out);
    }
    ds_resizer_free(&p->resizer);
    if (rc != DS_OK)
        ds_picture_free(p->out);
    return rc;
}

ds_rc ds_image_prepare(ds_picture *out, const unsigned char *bytes, size_t n, const ds_prepare_opts *opts, ds_err *err)
{
    ds_prepare_opts defaults;
    prepare p = { .opts = opts ? opts : &defaults, .out = out };
    ds_decode d = { .bytes = bytes, .n = n, .begin = begin, .row = row, .ctx = &p, .err = err };

    ds_prepare_opts_init(&defaults);
    *out = (ds_picture){ .format = ds_image_format_of(bytes, n) };
    d.limits = p.opts->limits;
    return finish(&p, ds_decode_run(&d));
}

ds_rc ds_image_prepare_pixels(ds_picture *out, const ds_pixels *in, const ds_prepare_opts *opts, ds_err *err)
{
    ds_prepare_opts defaults;
    prepare p = { .opts = opts ? opts : &defaults, .out = out };
    ds_rc rc;

    ds_prepare_opts_init(&defaults);
    *out = (ds_picture){ 0 };
    rc = begin(&p, in->width, in->height, err);
    for (uint32_t y = 0; y < in->height && rc == DS_OK; y++)
        rc = row(&p, y, in->rgb + (size_t)y * in->width * 3, err);
    return finish(&p, rc);
}

void ds_picture_free(ds_picture *p)
{
    free(p->pixels);
    *p = (ds_picture){ 0 };
}

static float to_bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    u = (u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000u; /* to nearest, ties to even; x is finite */
    memcpy(&x, &u, sizeof u);
    return x;
}

void ds_image_patches(const ds_picture *p, float *out)
{
    float value[256];
    size_t s = p->patch, line = (size_t)p->layout.fitted_w * 3;

    for (int v = 0; v < 256; v++)
        value[v] = to_bf16(((float)v / 255.0f - 0.5f) / 0.5f);
    for (size_t py = 0; py < p->n_h; py++)
        for (size_t px = 0; px < p->n_w; px++)
            for (size_t c = 0; c < 3; c++)
                for (size_t y = 0; y < s; y++) {
                    const uint8_t *from = p->pixels + (py * s + y) * line + px * s * 3 + c;

                    for (size_t x = 0; x < s; x++)
                        *out++ = value[from[3 * x]];
                }
}
