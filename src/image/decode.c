/* Which decoder, within which limits; and pixels as a whole. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "image/image_internal.h"

void ds_image_limits_init(ds_image_limits *l)
{
    *l = (ds_image_limits){
        .max_bytes = (size_t)32 << 20, .max_side = 32768, .max_pixels = (uint64_t)64 << 20, .max_memory = (size_t)512 << 20, .max_ms = 10000
    };
}

ds_image_format ds_image_format_of(const unsigned char *b, size_t n)
{
    if (n >= 8 && memcmp(b, "\x89PNG\r\n\x1a\n", 8) == 0)
        return DS_FORMAT_PNG;
    if (n >= 6 && (memcmp(b, "GIF87a", 6) == 0 || memcmp(b, "GIF89a", 6) == 0))
        return DS_FORMAT_GIF;
    if (n >= 3 && memcmp(b, "\xff\xd8\xff", 3) == 0)
        return DS_FORMAT_JPEG;
    if (n >= 12 && memcmp(b, "RIFF", 4) == 0 && memcmp(b + 8, "WEBP", 4) == 0)
        return DS_FORMAT_WEBP;
    return DS_FORMAT_UNKNOWN;
}

const char *ds_image_format_name(ds_image_format f)
{
    static const char *const names[] = { "unknown", "JPEG", "PNG", "GIF", "WebP" };

    return names[f];
}

ds_rc ds_decode_begin(ds_decode *d, const char *format, uint64_t w, uint64_t h, size_t held)
{
    const ds_image_limits *l = &d->limits;

    if (w == 0 || h == 0)
        return ds_fail(d->err, DS_E_FORMAT, "%s image without pixels (%lu x %lu)", format, w, h);
    if (w > l->max_side || h > l->max_side)
        return ds_fail(d->err, DS_E_FORMAT, "%s image of %lu x %lu pixels: a side has at most %u", format, w, h, l->max_side);
    if (w * h > l->max_pixels)
        return ds_fail(d->err, DS_E_FORMAT, "%s image of %lu x %lu pixels: at most %lu are taken", format, w, h, l->max_pixels);
    if (held && w * h > l->max_memory / held)
        return ds_fail(d->err, DS_E_FORMAT, "%s image of %lu x %lu pixels: decoding needs more than %zu bytes", format, w, h,
                       l->max_memory);
    return d->begin(d->ctx, (uint32_t)w, (uint32_t)h, d->err);
}

ds_rc ds_decode_check(ds_decode *d)
{
    if (d->limits.canceled && d->limits.canceled(d->limits.cancel_ctx))
        return ds_fail(d->err, DS_E_CANCELED, "canceled");
    if (ds_now_ns() > d->deadline_ns)
        return ds_fail(d->err, DS_E_FORMAT, "the image takes longer than %u ms", d->limits.max_ms);
    return DS_OK;
}

ds_rc ds_decode_run(ds_decode *d)
{
    static ds_rc (*const decoders[])(ds_decode *) = { NULL, ds_decode_jpeg, ds_decode_png, ds_decode_gif, ds_decode_webp };
    ds_image_format f = ds_image_format_of(d->bytes, d->n);

    d->deadline_ns = ds_now_ns() + (uint64_t)d->limits.max_ms * 1000000;
    if (f == DS_FORMAT_UNKNOWN)
        return ds_fail(d->err, DS_E_FORMAT, "not a JPEG, PNG, GIF or WebP image");
    if (d->n > d->limits.max_bytes)
        return ds_fail(d->err, DS_E_FORMAT, "%s image of %zu bytes: at most %zu are taken", ds_image_format_name(f), d->n,
                       d->limits.max_bytes);
    return decoders[f](d);
}

static ds_rc whole_begin(void *ctx, uint32_t w, uint32_t h, ds_err *err)
{
    ds_pixels *p = ctx;

    p->rgb = calloc((size_t)w * h, 3);
    if (!p->rgb)
        return ds_fail(err, DS_E_NOMEM, "image of %u x %u pixels: out of memory", w, h);
    p->width = w;
    p->height = h;
    return DS_OK;
}

static ds_rc whole_row(void *ctx, uint32_t y, const uint8_t *rgb, ds_err *err)
{
    ds_pixels *p = ctx;

    (void)err;
    memcpy(p->rgb + (size_t)y * p->width * 3, rgb, (size_t)p->width * 3);
    return DS_OK;
}

ds_rc ds_image_decode(ds_pixels *out, const unsigned char *bytes, size_t n, const ds_image_limits *limits, ds_err *err)
{
    ds_decode d = { .bytes = bytes, .n = n, .begin = whole_begin, .row = whole_row, .ctx = out, .err = err };
    ds_rc rc;

    *out = (ds_pixels){ 0 };
    if (limits)
        d.limits = *limits;
    else
        ds_image_limits_init(&d.limits);
    rc = ds_decode_run(&d);
    if (rc != DS_OK)
        ds_pixels_free(out);
    return rc;
}

void ds_pixels_free(ds_pixels *p)
{
    free(p->rgb);
    *p = (ds_pixels){ 0 };
}
