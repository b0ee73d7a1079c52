/* Pictures: the bytes of a JPEG, PNG, GIF or WebP file -> the size that the model wants -> patches for the vision
 * tower; and where the bytes come from. (recipe spec 2.8, model spec 3.15)
 *
 *   ds_image_decode     all pixels of a picture, RGB
 *   ds_image_prepare    decoded, resized and padded as the model was trained with, in one pass
 *   ds_image_patches    a prepared picture as input of the vision tower
 *   ds_fetch            pictures behind http(s) addresses
 *   ds_request_images   all of the above for a request
 *
 * What a picture is: its first frame, as stored. Orientation notes (EXIF), colour profiles and gamma are not applied
 * and alpha is dropped, not blended, because the released model was trained so (Pillow's convert("RGB")). The format
 * is what the bytes say, whatever media type was declared. 16-bit samples give their high byte.
 *
 * Bytes come from anybody: sizes are checked before anything is allocated, memory and time are bounded by
 * ds_image_limits, and whatever is wrong with a file is one line of DS_E_FORMAT. Threads: any function from any
 * thread; objects have one owner at a time. */
#ifndef DS_IMAGE_H
#define DS_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ds/err.h>
#include <ds/request.h>

typedef enum { DS_FORMAT_UNKNOWN, DS_FORMAT_JPEG, DS_FORMAT_PNG, DS_FORMAT_GIF, DS_FORMAT_WEBP } ds_image_format;

/* By the first bytes. */
ds_image_format ds_image_format_of(const unsigned char *bytes, size_t n);
const char *ds_image_format_name(ds_image_format f); /* "JPEG" …, static */

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

typedef struct {
    size_t max_bytes;            /* of the file */
    uint32_t max_side;           /* pixels */
    uint64_t max_pixels;         /* width * height */
    size_t max_memory;           /* bytes that one decoder may take: a progressive JPEG, an interlaced PNG, a GIF or a WebP is held whole */
    uint32_t max_ms;             /* for one picture */
    bool (*canceled)(void *ctx); /* asked at least once a row (WebP: twice a picture); NULL = never. Any thread may change its mind */
    void *cancel_ctx;
} ds_image_limits;

/* 32 MiB, 32768 a side, 64 Mi pixels, 512 MiB, 10 s. */
void ds_image_limits_init(ds_image_limits *l);

typedef struct {
    uint32_t width, height;
    uint8_t *rgb; /* [height][width][3] */
} ds_pixels;

/* limits may be NULL for the defaults. On success the caller frees with ds_pixels_free; else *out is empty.
 * DS_E_FORMAT: no picture, damaged, cut off, or over a limit (which one is in the message); DS_E_NOMEM;
 * DS_E_CANCELED. Data after the last row is not looked at. */
ds_rc ds_image_decode(ds_pixels *out, const unsigned char *bytes, size_t n, const ds_image_limits *limits, ds_err *err);
void ds_pixels_free(ds_pixels *p);

/* ---- preparing --------------------------------------------------------------------------------------------------- */

/* How Pillow resizes with its bicubic filter: support widened when shrinking (no aliasing), coefficients of 22 bits,
 * horizontal pass first and rounded to 8 bits. Equal to the bytes of Pillow up to version 12. out:
 * [out_h][out_w][3]. All sides > 0, at most 2^24 pixels a side. DS_E_NOMEM, DS_E_ARG. */
ds_rc ds_image_resize(uint8_t *out, uint32_t out_w, uint32_t out_h, const uint8_t *rgb, uint32_t w, uint32_t h, ds_err *err);

typedef struct {
    ds_image_format format;
    ds_image layout;   /* width, height, fitted_w, fitted_h, rows, cols, tokens; the other members are zero */
    uint8_t *pixels;   /* [fitted_h][fitted_w][3]; freed by ds_picture_free */
    uint32_t patch;    /* pixels of a patch's side */
    uint32_t n_h, n_w; /* patches: fitted_h / patch, fitted_w / patch */
    uint8_t digest
        [32]; /* for prefix cache keys: equal digests, equal input of the tower. SHA-256 of "ds image 1\0", fitted_w and fitted_h (u32,
                         * little-endian) and the SHA-256 of the pixels */
} ds_picture;

typedef struct {
    ds_image_limits limits;
    ds_image_rule rule; /* of the model at hand */
    bool size_only;     /* decode and lay out, but keep no pixels: n_h, n_w are set, pixels is NULL and digest zero */
} ds_prepare_opts;

void ds_prepare_opts_init(ds_prepare_opts *o); /* default limits, the released model's rule */

/* opts may be NULL. Takes, besides the decoder's memory, fitted_w x height x 3 bytes for what is between the passes.
 * Errors as ds_image_decode. A side that would shrink to nothing (Pillow refuses) becomes one pixel. */
ds_rc ds_image_prepare(ds_picture *out, const unsigned char *bytes, size_t n, const ds_prepare_opts *opts, ds_err *err);
/* The same from pixels. */
ds_rc ds_image_prepare_pixels(ds_picture *out, const ds_pixels *p, const ds_prepare_opts *opts, ds_err *err);
void ds_picture_free(ds_picture *p); /* back to zero-initialised, which is empty */

/* out: f32 [n_h * n_w][3 * patch * patch]: patches row by row, inside one channel, y, x; each value (v / 255 - 0.5)
 * / 0.5 in f32, rounded to bf16. */
void ds_image_patches(const ds_picture *p, float *out);

/* ---- fetching ---------------------------------------------------------------------------------------------------- */

/* Only http and https on ports 80, 443 and above 1023. Every address that a connection is about to be made to, first
 * or after a redirect, must be public: the check is on the very address that is connected to, so names that change
 * their mind between look-up and use don't help. No proxies, cookies, credentials or compressed answers. */
typedef struct {
    size_t max_bytes; /* of one body */
    uint32_t max_redirects;
    uint32_t connect_ms, total_ms; /* of one address, redirects included */
    uint32_t parallel;             /* transfers at a time in one call, 1..64 */
    bool allow_private;            /* for tests: any address and port */
    const char *user_agent;        /* NULL: none is sent */
    bool (*canceled)(void *ctx);   /* asked every 10 ms; NULL = never */
    void *cancel_ctx;
} ds_fetch_opts;

/* 32 MiB, 5 redirects, 5 s, 20 s, 8 at a time. */
void ds_fetch_opts_init(ds_fetch_opts *o);

typedef struct {
    const char *url;      /* in */
    unsigned char *bytes; /* out: freed by the caller; NULL on failure */
    size_t n;
    int status;       /* 0 = fetched; 400 the address or its answer is at fault, 500 the network or the other server: try again */
    char reason[200]; /* of a failure; one line */
} ds_fetch_item;

/* Called by ds_fetch for each item, on the calling thread, as soon as it has ended, fetched or not. May take `bytes`
 * away (and set it to NULL). Another answer than DS_OK ends everything and is what ds_fetch returns. */
typedef ds_rc ds_fetch_arrived(void *ctx, ds_fetch_item *item, ds_err *err);

/* Fetches all; one that fails doesn't stop the others. DS_OK also when some failed. DS_E_NOMEM, DS_E_CANCELED
 * (within 20 ms, the time in arrived() not counted): no bytes are left. arrived may be NULL: then all bytes are kept
 * until the end. */
ds_rc ds_fetch(ds_fetch_item *items, size_t n, const ds_fetch_opts *opts, ds_fetch_arrived *arrived, void *ctx, ds_err *err);

/* ---- requests ---------------------------------------------------------------------------------------------------- */

typedef struct {
    ds_prepare_opts prepare;
    ds_fetch_opts fetch;
    bool no_fetch;           /* addresses are refused (400) */
    bool skip_urls;          /* addresses are left alone: their pictures stay empty and without layout */
    size_t max_inline_bytes; /* of all data in the request together, decoded */
    size_t max_pixel_bytes;  /* of all prepared pictures together */
    const ds_request_io *io; /* for file ids; NULL: none */
} ds_images_opts;

/* As the parts; 64 MiB inline, 1 GiB of pixels. */
void ds_images_opts_init(ds_images_opts *o);

/* Gets, decodes, prepares and lays out all pictures of a request: pictures[0 .. n_images) are filled in prompt order
 * and freed by the caller, each with ds_picture_free. DS_E_FORMAT: refused, *why (required) names the field of the
 * first picture at fault, those that came with the request before those to be fetched; DS_E_NOMEM, DS_E_CANCELED. On
 * failure no picture is left. opts may be NULL. Blocks while fetching: not for an event loop's thread. */
ds_rc ds_request_images(ds_request *r, ds_picture *pictures, const ds_images_opts *opts, ds_api_error *why, ds_err *err);

#endif
