#include "recipe/image_size.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "recipe/media_text.h"

static uint32_t be16(const unsigned char *p)
{
    return (uint32_t)p[0] << 8 | p[1];
}

static uint32_t be32(const unsigned char *p)
{
    return be16(p) << 16 | be16(p + 2);
}

static uint32_t le16(const unsigned char *p)
{
    return (uint32_t)p[1] << 8 | p[0];
}

static uint32_t le24(const unsigned char *p)
{
    return (uint32_t)p[2] << 16 | le16(p);
}

/* Segments up to the first frame header. */
static bool jpeg(const unsigned char *b, size_t n, uint32_t *w, uint32_t *h)
{
    size_t i = 2;

    while (i + 4 <= n) {
        unsigned m;

        if (b[i] != 0xFF)
            return false;
        m = b[i + 1];
        if (m == 0xFF) { /* fill byte */
            i++;
            continue;
        }
        if (m == 0x01 || (m >= 0xD0 && m <= 0xD8)) { /* markers without a length */
            i += 2;
            continue;
        }
        if (m >= 0xC0 && m <= 0xCF && m != 0xC4 && m != 0xC8 && m != 0xCC) {
            if (i + 9 > n)
                return false;
            *h = be16(b + i + 5);
            *w = be16(b + i + 7);
            return true;
        }
        if (m == 0xD9 || m == 0xDA || be16(b + i + 2) < 2)
            return false;
        i += 2 + be16(b + i + 2);
    }
    return false;
}

static bool webp(const unsigned char *b, size_t n, uint32_t *w, uint32_t *h)
{
    if (n < 30)
        return false;
    if (memcmp(b + 12, "VP8 ", 4) == 0 && memcmp(b + 23, "\x9d\x01\x2a", 3) == 0) {
        *w = le16(b + 26) & 0x3FFF;
        *h = le16(b + 28) & 0x3FFF;
        return true;
    }
    if (memcmp(b + 12, "VP8L", 4) == 0 && b[20] == 0x2F) {
        uint32_t bits = le16(b + 21) | le16(b + 23) << 16;

        *w = (bits & 0x3FFF) + 1;
        *h = (bits >> 14 & 0x3FFF) + 1;
        return true;
    }
    if (memcmp(b + 12, "VP8X", 4) == 0) {
        *w = le24(b + 24) + 1;
        *h = le24(b + 27) + 1;
        return true;
    }
    return false;
}

ds_rc ds_image_size(const unsigned char *b, size_t n, uint32_t *width, uint32_t *height, ds_err *err)
{
    bool known = true, ok = false;

    *width = *height = 0;
    if (n >= 24 && memcmp(b, "\x89PNG\r\n\x1a\n", 8) == 0 && memcmp(b + 12, "IHDR", 4) == 0) {
        *width = be32(b + 16);
        *height = be32(b + 20);
        ok = true;
    } else if (n >= 10 && (memcmp(b, "GIF87a", 6) == 0 || memcmp(b, "GIF89a", 6) == 0)) {
        *width = le16(b + 6);
        *height = le16(b + 8);
        ok = true;
    } else if (n >= 4 && b[0] == 0xFF && b[1] == 0xD8) {
        ok = jpeg(b, n, width, height);
    } else if (n >= 12 && memcmp(b, "RIFF", 4) == 0 && memcmp(b + 8, "WEBP", 4) == 0) {
        ok = webp(b, n, width, height);
    } else {
        known = false;
    }
    if (!ok || !*width || !*height)
        return ds_fail(err, DS_E_FORMAT, known ? "damaged image: no size in it" : "not a JPEG, PNG, GIF or WebP image");
    return DS_OK;
}

ds_rc ds_image_bytes(const ds_image *image, unsigned char **out, size_t *n, ds_err *err)
{
    *out = NULL;
    *n = 0;
    if (image->kind != DS_IMAGE_DATA)
        return ds_fail(err, DS_E_ARG, "the image is not given as data");
    *out = malloc(image->source.n + 4);
    if (!*out)
        return ds_fail(err, DS_E_NOMEM, "image of %zu characters: out of memory", image->source.n);
    if (!(image->percent ? ds_percent_decode(image->source, (char *)*out, n) : ds_base64_decode(image->source, (char *)*out, n))) {
        free(*out);
        *out = NULL;
        return ds_fail(err, DS_E_FORMAT, image->percent ? "a broken percent escape in the image" : "the image is not base64");
    }
    return DS_OK;
}
