/* GIF by giflib: the first frame on its canvas. Outside the frame the canvas shows colour 0, or the transparent one
 * if the frame names one, as Pillow has it. A frame that reaches over the canvas makes it larger. */
#include <stdlib.h>
#include <string.h>

#include <gif_lib.h>

#include "image/image_internal.h"

typedef struct {
    ds_decode *d;
    size_t at;
    GifFileType *gif;
    uint8_t *index; /* [h][w] */
    uint8_t *line;  /* [w][3] */
    int transparent;
} gif;

static int read_bytes(GifFileType *file, GifByteType *to, int n)
{
    gif *g = file->UserData;
    size_t left = g->d->n - g->at, take = (size_t)n < left ? (size_t)n : left;

    memcpy(to, g->d->bytes + g->at, take);
    g->at += take;
    return (int)take;
}

static ds_rc damaged(gif *g, int code)
{
    const char *why = GifErrorString(code);

    if (code == D_GIF_ERR_NOT_ENOUGH_MEM)
        return ds_fail(g->d->err, DS_E_NOMEM, "GIF image: out of memory");
    if (g->at == g->d->n)
        return ds_fail(g->d->err, DS_E_FORMAT, "the GIF image is cut off");
    return ds_fail(g->d->err, DS_E_FORMAT, "damaged GIF image: %s", why ? why : "unknown fault");
}

/* What precedes the first frame: only the transparent colour of its graphics block matters. */
static ds_rc find_frame(gif *g)
{
    GifRecordType type;
    GraphicsControlBlock block;
    GifByteType *ext;
    int code;
    ds_rc rc;

    for (;;) {
        if (DGifGetRecordType(g->gif, &type) == GIF_ERROR)
            return damaged(g, g->gif->Error);
        if (type == IMAGE_DESC_RECORD_TYPE)
            return DS_OK;
        if (type == TERMINATE_RECORD_TYPE)
            return ds_fail(g->d->err, DS_E_FORMAT, "a GIF file without an image");
        if (type != EXTENSION_RECORD_TYPE)
            return ds_fail(g->d->err, DS_E_FORMAT, "damaged GIF image: no block where one should be");
        if (DGifGetExtension(g->gif, &code, &ext) == GIF_ERROR)
            return damaged(g, g->gif->Error);
        if (code == GRAPHICS_EXT_FUNC_CODE && ext && DGifExtensionToGCB(ext[0], ext + 1, &block) == GIF_OK)
            g->transparent = block.TransparentColor;
        while (ext) {
            rc = ds_decode_check(g->d);
            if (rc != DS_OK)
                return rc;
            if (DGifGetExtensionNext(g->gif, &ext) == GIF_ERROR)
                return damaged(g, g->gif->Error);
        }
    }
}

static ds_rc read_frame(gif *g, size_t w)
{
    static const struct {
        int from, step;
    } interlaced[] = { { 0, 8 }, { 4, 8 }, { 2, 4 }, { 1, 2 } }, plain[] = { { 0, 1 } };
    const GifImageDesc *f = &g->gif->Image;
    uint8_t *at = g->index + (size_t)f->Top * w + (size_t)f->Left;
    ds_rc rc;

    for (size_t pass = 0; pass < (f->Interlace ? 4u : 1u); pass++) {
        int from = f->Interlace ? interlaced[pass].from : plain[0].from, step = f->Interlace ? interlaced[pass].step : plain[0].step;

        for (int y = from; y < f->Height; y += step) {
            rc = ds_decode_check(g->d);
            if (rc != DS_OK)
                return rc;
            if (DGifGetLine(g->gif, at + (size_t)y * w, f->Width) == GIF_ERROR)
                return damaged(g, g->gif->Error);
        }
    }
    return DS_OK;
}

static ds_rc put_rows(gif *g, size_t w, size_t h)
{
    const ColorMapObject *map = g->gif->Image.ColorMap ? g->gif->Image.ColorMap : g->gif->SColorMap;
    uint8_t colors[256][3] = { { 0 } };

    for (int i = 0; i < 256; i++) {
        if (!map)
            memset(colors[i], i, 3); /* no colours at all: shades */
        else if (i < map->ColorCount)
            memcpy(colors[i], (uint8_t[]){ map->Colors[i].Red, map->Colors[i].Green, map->Colors[i].Blue }, 3);
    }
    for (size_t y = 0; y < h; y++) {
        ds_rc rc = ds_decode_check(g->d);

        for (size_t x = 0; x < w; x++)
            memcpy(g->line + 3 * x, colors[g->index[y * w + x]], 3);
        if (rc == DS_OK)
            rc = g->d->row(g->d->ctx, (uint32_t)y, g->line, g->d->err);
        if (rc != DS_OK)
            return rc;
    }
    return DS_OK;
}

static ds_rc run(gif *g)
{
    const GifImageDesc *f = &g->gif->Image;
    uint64_t w, h;
    ds_rc rc = find_frame(g);

    if (rc != DS_OK)
        return rc;
    if (DGifGetImageDesc(g->gif) == GIF_ERROR)
        return damaged(g, g->gif->Error);
    if (f->Width <= 0 || f->Height <= 0)
        return ds_fail(g->d->err, DS_E_FORMAT, "GIF image without pixels (%d x %d)", f->Width, f->Height);
    w = (uint64_t)f->Left + (uint64_t)f->Width;
    h = (uint64_t)f->Top + (uint64_t)f->Height;
    w = w > (uint64_t)g->gif->SWidth ? w : (uint64_t)g->gif->SWidth;
    h = h > (uint64_t)g->gif->SHeight ? h : (uint64_t)g->gif->SHeight;
    rc = ds_decode_begin(g->d, "GIF", w, h, 1);
    if (rc != DS_OK)
        return rc;
    g->index = calloc(h, w);
    g->line = malloc(3 * w);
    if (!g->index || !g->line)
        return ds_fail(g->d->err, DS_E_NOMEM, "GIF image of %lu x %lu pixels: out of memory", w, h);
    if (g->transparent > 0)
        memset(g->index, g->transparent, w * h);
    rc = read_frame(g, w);
    return rc == DS_OK ? put_rows(g, w, h) : rc;
}

ds_rc ds_decode_gif(ds_decode *d)
{
    gif g = { .d = d, .transparent = NO_TRANSPARENT_COLOR };
    int code = 0;
    ds_rc rc;

    g.gif = DGifOpen(&g, read_bytes, &code);
    if (!g.gif)
        return damaged(&g, code);
    rc = run(&g);
    DGifCloseFile(g.gif, &code);
    free(g.index);
    free(g.line);
    return rc;
}
