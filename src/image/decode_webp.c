/* WebP by libwebp: lossy, lossless, with or without alpha; of an animation the first frame on its canvas, which is
 * black elsewhere. */
#include <stdlib.h>
#include <string.h>

#include <webp/decode.h>
#include <webp/demux.h>

#include "image/image_internal.h"

static ds_rc bad(ds_decode *d, VP8StatusCode code)
{
    if (code == VP8_STATUS_OUT_OF_MEMORY)
        return ds_fail(d->err, DS_E_NOMEM, "WebP image: out of memory");
    if (code == VP8_STATUS_NOT_ENOUGH_DATA || code == VP8_STATUS_SUSPENDED)
        return ds_fail(d->err, DS_E_FORMAT, "the WebP image is cut off");
    return ds_fail(d->err, DS_E_FORMAT, "damaged WebP image (fault %d)", (int)code);
}

/* The bitstream at `bytes` into the canvas, its upper left corner at `to`. */
static ds_rc decode_into(ds_decode *d, const uint8_t *bytes, size_t n, uint8_t *to, size_t stride, uint32_t w, uint32_t h)
{
    WebPDecoderConfig c;
    VP8StatusCode code;

    if (!WebPInitDecoderConfig(&c))
        return ds_fail(d->err, DS_E_FORMAT, "WebP image: libwebp is not the one this was built for");
    code = WebPGetFeatures(bytes, n, &c.input);
    if (code != VP8_STATUS_OK)
        return bad(d, code);
    if ((uint32_t)c.input.width != w || (uint32_t)c.input.height != h)
        return ds_fail(d->err, DS_E_FORMAT, "damaged WebP image: %d x %d pixels where %u x %u were announced", c.input.width,
                       c.input.height, w, h);
    c.output.colorspace = MODE_RGB;
    c.output.is_external_memory = 1;
    c.output.u.RGBA.rgba = to;
    c.output.u.RGBA.stride = (int)stride;
    c.output.u.RGBA.size = stride * (h - 1) + (size_t)w * 3;
    code = WebPDecode(bytes, n, &c);
    WebPFreeDecBuffer(&c.output);
    return code == VP8_STATUS_OK ? DS_OK : bad(d, code);
}

static ds_rc first_frame(ds_decode *d, uint8_t *canvas, uint32_t w, uint32_t h)
{
    WebPData data = { d->bytes, d->n };
    WebPDemuxState state;
    WebPDemuxer *x = WebPDemuxPartial(&data, &state); /* a file that is cut off after the first frame has that frame */
    WebPIterator it;
    ds_rc rc;

    if (!x || !WebPDemuxGetFrame(x, 1, &it)) {
        WebPDemuxDelete(x);
        return ds_fail(d->err, DS_E_FORMAT, state == WEBP_DEMUX_PARSE_ERROR ? "damaged WebP animation" : "the WebP image is cut off");
    }
    if (!it.complete)
        rc = bad(d, VP8_STATUS_NOT_ENOUGH_DATA);
    else if (it.x_offset < 0 || it.y_offset < 0 || it.width <= 0 || it.height <= 0 || (uint64_t)it.x_offset + (uint64_t)it.width > w ||
             (uint64_t)it.y_offset + (uint64_t)it.height > h)
        rc = ds_fail(d->err, DS_E_FORMAT, "damaged WebP animation: the first frame lies outside the canvas");
    else
        rc = decode_into(d, it.fragment.bytes, it.fragment.size, canvas + ((size_t)it.y_offset * w + (size_t)it.x_offset) * 3,
                         (size_t)w * 3, (uint32_t)it.width, (uint32_t)it.height);
    WebPDemuxReleaseIterator(&it);
    WebPDemuxDelete(x);
    return rc;
}

ds_rc ds_decode_webp(ds_decode *d)
{
    WebPBitstreamFeatures f;
    VP8StatusCode code = WebPGetFeatures(d->bytes, d->n, &f);
    uint32_t w, h;
    uint8_t *canvas;
    ds_rc rc;

    if (code != VP8_STATUS_OK)
        return bad(d, code);
    w = (uint32_t)f.width;
    h = (uint32_t)f.height;
    rc = ds_decode_begin(d, "WebP", w, h, 8); /* the canvas, and what the library keeps of a lossless picture */
    if (rc != DS_OK)
        return rc;
    canvas = calloc((size_t)w * h, 3);
    if (!canvas)
        return ds_fail(d->err, DS_E_NOMEM, "WebP image of %u x %u pixels: out of memory", w, h);
    rc = ds_decode_check(d);
    if (rc == DS_OK)
        rc = f.has_animation ? first_frame(d, canvas, w, h) : decode_into(d, d->bytes, d->n, canvas, (size_t)w * 3, w, h);
    if (rc == DS_OK)
        rc = ds_decode_check(d);
    for (uint32_t y = 0; y < h && rc == DS_OK; y++)
        rc = d->row(d->ctx, y, canvas + (size_t)y * w * 3, d->err);
    free(canvas);
    return rc;
}
