#include "recipe/media_text.h"

#include <stdlib.h>

#include "base/err.h"

static int digit64(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' || c == '-' ? 62 : c == '/' || c == '_' ? 63 : -1;
}

bool ds_base64_decode(ds_str text, char *out, size_t *n)
{
    uint32_t acc = 0, bits = 0, digits = 0;
    size_t i = 0;

    *n = 0;
    for (; i < text.n && text.p[i] != '='; i++) {
        int v = digit64(text.p[i]);

        if (text.p[i] == '\r' || text.p[i] == '\n')
            continue;
        if (v < 0)
            return false;
        digits++;
        acc = (acc << 6 | (uint32_t)v) & 0xFFFFFF;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            out[(*n)++] = (char)(acc >> bits);
        }
    }
    for (; i < text.n; i++)
        if (text.p[i] != '=' && text.p[i] != '\r' && text.p[i] != '\n')
            return false;
    return digits % 4 != 1;
}

static int digit16(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool ds_percent_decode(ds_str text, char *out, size_t *n)
{
    *n = 0;
    for (size_t i = 0; i < text.n; i++) {
        if (text.p[i] != '%') {
            out[(*n)++] = text.p[i];
            continue;
        }
        if (text.n - i < 3 || digit16(text.p[i + 1]) < 0 || digit16(text.p[i + 2]) < 0)
            return false;
        out[(*n)++] = (char)(digit16(text.p[i + 1]) << 4 | digit16(text.p[i + 2]));
        i += 2;
    }
    return true;
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
