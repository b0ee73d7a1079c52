/* What the decoders share: each checks the picture's size, announces it, and hands over its rows from top to bottom. */
#ifndef DS_IMAGE_INTERNAL_H
#define DS_IMAGE_INTERNAL_H

#include <ds/image.h>

#include "base/err.h"

typedef struct {
    /* [const] */
    const unsigned char *bytes;
    size_t n;
    ds_image_limits limits;
    uint64_t deadline_ns;
    ds_rc (*begin)(void *ctx, uint32_t w, uint32_t h, ds_err *err);
    ds_rc (*row)(void *ctx, uint32_t y, const uint8_t *rgb, ds_err *err); /* y = 0, 1 … h - 1, once each */
    void *ctx;
    ds_err *err;
} ds_decode;

/* Side, pixel and memory limits (`held`: bytes that the decoder would keep for each pixel, 0 = rows only), then
 * begin(). */
ds_rc ds_decode_begin(ds_decode *d, const char *format, uint64_t w, uint64_t h, size_t held);
/* Cancelled, or out of time? */
ds_rc ds_decode_check(ds_decode *d);

ds_rc ds_decode_jpeg(ds_decode *d);
ds_rc ds_decode_png(ds_decode *d);
ds_rc ds_decode_gif(ds_decode *d);
ds_rc ds_decode_webp(ds_decode *d);

/* Finds the format and runs its decoder; the caller sets all members but deadline_ns. */
ds_rc ds_decode_run(ds_decode *d);

/* One direction of a resize: output i is the sum over k < count[i] of weight[i * taps + k] * input[first[i] + k], in
 * units of 2^-22. */
#define DS_RESAMPLE_BITS 22
typedef struct {
    uint32_t in, out, taps;
    uint32_t *first, *count; /* [out]; first + count <= in */
    int32_t *weight;         /* [out][taps] */
} ds_resample;

ds_rc ds_resample_init(ds_resample *r, uint32_t in, uint32_t out, ds_err *err);
void ds_resample_free(ds_resample *r);

/* The sums, built once for each instruction set from resize_body.h. */
#define DS_RESIZE_ROWS 8 /* done at a time by rows() */
typedef struct {
    /* Resamples n <= DS_RESIZE_ROWS rows of 3 * in bytes, which lie one behind the other (room for DS_RESIZE_ROWS of them), to rows at `out`, `stride`
     * bytes apart. scratch: DS_RESIZE_ROWS * 3 * (in + out) bytes. */
    void (*rows)(const ds_resample *r, uint8_t *out, size_t stride, const uint8_t *rows, uint32_t n, uint8_t *scratch);
    /* Output row i of n bytes from rows of n bytes. */
    void (*column)(const ds_resample *r, uint32_t i, uint8_t *out, const uint8_t *in, size_t n);
} ds_resize_kern;
extern const ds_resize_kern ds_resize_base, ds_resize_avx2;

/* A resize that is fed rows, in order. */
typedef struct {
    const ds_resize_kern *kern;
    uint32_t w, h, out_w, out_h;
    ds_resample x, y; /* empty when that side doesn't change */
    uint8_t *between; /* [h][out_w][3]; NULL when the height doesn't change */
    uint8_t *rows;    /* those that wait for others; NULL when the width doesn't change */
    uint32_t waiting;
    uint8_t *scratch;
    uint8_t *out;      /* borrowed; row y at out + y * out_stride */
    size_t out_stride; /* bytes */
} ds_resizer;

ds_rc ds_resizer_init(ds_resizer *r, uint32_t w, uint32_t h, uint32_t out_w, uint32_t out_h, uint8_t *out, size_t out_stride, ds_err *err);
void ds_resizer_row(ds_resizer *r, uint32_t y, const uint8_t *rgb);
void ds_resizer_end(ds_resizer *r); /* all rows are in */
void ds_resizer_free(ds_resizer *r);

/* Is this address, a struct sockaddr of n bytes, one of the public internet? */
bool ds_address_public(const void *sockaddr, size_t n);

#endif
