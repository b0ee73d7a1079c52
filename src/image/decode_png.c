/* PNG by libpng: all colour types, depths and interlacing, as 8-bit RGB.
 *
 * The library reports errors by not returning; everything between setjmp and longjmp lives in struct png, which
 * belongs to the caller of run(). Chunks that can't change the pixels as Pillow shows them (gamma, profiles, text,
 * …) are skipped unread, so they can't hold anything up. What follows the last row isn't read. */
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <png.h>

#include "image/image_internal.h"

typedef struct {
    png_structp png;
    png_infop info;
    ds_decode *d;
    size_t at; /* bytes read */
    ds_rc rc;
    jmp_buf back;
    uint8_t *rows; /* one row, or all of an interlaced picture */
} png_state;

static void on_error(png_structp png, png_const_charp text)
{
    png_state *s = png_get_error_ptr(png);

    if (s->rc == DS_OK)
        s->rc = strcmp(text, "Out of memory") == 0 || strcmp(text, "Insufficient memory") == 0
                    ? ds_fail(s->d->err, DS_E_NOMEM, "PNG image: out of memory")
                    : ds_fail(s->d->err, DS_E_FORMAT, "damaged PNG image: %s", text);
    longjmp(s->back, 1);
}

static void on_warning(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text;
}

static void read_bytes(png_structp png, png_bytep to, size_t n)
{
    png_state *s = png_get_io_ptr(png);

    if (n > s->d->n - s->at) {
        s->rc = ds_fail(s->d->err, DS_E_FORMAT, "the PNG image is cut off");
        longjmp(s->back, 1);
    }
    memcpy(to, s->d->bytes + s->at, n);
    s->at += n;
}

/* Anything to 8-bit RGB; a palette's and a colour key's transparency is ignored. */
static void set_conversion(png_state *s, int type, int depth)
{
    if (depth == 16)
        png_set_strip_16(s->png);
    if (type == PNG_COLOR_TYPE_PALETTE)
        png_set_palette_to_rgb(s->png);
    if (type == PNG_COLOR_TYPE_GRAY && depth < 8)
        png_set_expand_gray_1_2_4_to_8(s->png);
    if (!(type & PNG_COLOR_MASK_COLOR))
        png_set_gray_to_rgb(s->png);
    png_set_strip_alpha(s->png);
}

static ds_rc run(png_state *s)
{
    /* tRNS is among them: without it a palette has no transparency that would have to be stripped again */
    static const png_byte ignored[] =
        "acTL\0bKGD\0cHRM\0cICP\0cLLI\0eXIf\0fcTL\0fdAT\0gAMA\0hIST\0iCCP\0iTXt\0mDCV\0oFFs\0pCAL\0pHYs\0sBIT\0sCAL\0sPLT\0"
        "sRGB\0sTER\0tEXt\0tIME\0tRNS\0zTXt";
    png_uint_32 w, h;
    int depth, type, interlace, passes;
    size_t line;
    ds_rc rc;

    if (setjmp(s->back))
        return s->rc;
    png_set_read_fn(s->png, s, read_bytes);
    png_set_user_limits(s->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX); /* ours follow before anything is allocated */
    png_set_chunk_malloc_max(s->png, 8 << 20);
    png_set_keep_unknown_chunks(s->png, PNG_HANDLE_CHUNK_NEVER, NULL, 0);
    png_set_keep_unknown_chunks(s->png, PNG_HANDLE_CHUNK_NEVER, ignored, sizeof ignored / 5);
    png_read_info(s->png, s->info);
    png_get_IHDR(s->png, s->info, &w, &h, &depth, &type, &interlace, NULL, NULL);
    rc = ds_decode_begin(s->d, "PNG", w, h, interlace == PNG_INTERLACE_NONE ? 0 : 3);
    if (rc != DS_OK)
        return rc;
    set_conversion(s, type, depth);
    passes = png_set_interlace_handling(s->png);
    png_read_update_info(s->png, s->info);
    line = (size_t)w * 3;
    if (png_get_rowbytes(s->png, s->info) != line)
        return ds_fail(s->d->err, DS_E_FORMAT, "PNG image of colour type %d with %d bits", type, depth);
    s->rows = calloc(passes > 1 ? h : 1, line);
    if (!s->rows)
        return ds_fail(s->d->err, DS_E_NOMEM, "PNG image of %u x %u pixels: out of memory", w, h);
    for (int pass = 0; pass < passes; pass++) {
        for (png_uint_32 y = 0; y < h; y++) {
            uint8_t *row = s->rows + (passes > 1 ? y * line : 0);

            rc = ds_decode_check(s->d);
            if (rc != DS_OK)
                return rc;
            png_read_row(s->png, row, NULL);
            if (pass == passes - 1)
                rc = s->d->row(s->d->ctx, y, row, s->d->err);
            if (rc != DS_OK)
                return rc;
        }
    }
    return DS_OK;
}

ds_rc ds_decode_png(ds_decode *d)
{
    png_state s = { .d = d };
    ds_rc rc = DS_E_NOMEM;

    s.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &s, on_error, on_warning);
    if (s.png)
        s.info = png_create_info_struct(s.png);
    if (s.info)
        rc = run(&s);
    else
        ds_fail(d->err, rc, "PNG image: out of memory");
    png_destroy_read_struct(&s.png, &s.info, NULL);
    free(s.rows);
    return rc;
}
