/* JPEG by libjpeg-turbo: baseline and progressive; gray, YCbCr, RGB, CMYK and YCCK.
 *
 * The library reports errors by not returning from a callback, so everything between setjmp and longjmp lives in
 * struct jpeg, which belongs to the caller of run(). Its warnings (damaged entropy data) are counted nowhere: such
 * files still show something, and Pillow takes them. A file that ends before its pictures does is refused. */
#include <limits.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

#include "image/image_internal.h"

/* A progressive file may go over all its coefficients once a scan; encoders make about ten scans. */
#define MAX_SCANS 100
#define WORKING_MEMORY (64L << 20) /* of the library, besides coefficients */

typedef struct {
    struct jpeg_decompress_struct c;
    struct jpeg_error_mgr error;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    ds_decode *d;
    ds_rc rc; /* set before a jump: already reported */
    jmp_buf back;
    uint8_t *line;
} jpeg;

static void give_up(jpeg *j, ds_rc rc)
{
    j->rc = rc;
    longjmp(j->back, 1);
}

static void on_error(j_common_ptr c)
{
    jpeg *j = c->client_data;
    char text[JMSG_LENGTH_MAX];

    if (c->err->msg_code == JERR_OUT_OF_MEMORY)
        give_up(j, ds_fail(j->d->err, DS_E_NOMEM, "JPEG image: out of memory"));
    c->err->format_message(c, text);
    give_up(j, ds_fail(j->d->err, DS_E_FORMAT, "damaged JPEG image: %s", text));
}

static void on_message(j_common_ptr c, int level)
{
    (void)c;
    (void)level;
}

static void on_progress(j_common_ptr c)
{
    jpeg *j = c->client_data;
    ds_rc rc = ds_decode_check(j->d);

    if (rc != DS_OK)
        give_up(j, rc);
    if (j->c.input_scan_number > MAX_SCANS)
        give_up(j, ds_fail(j->d->err, DS_E_FORMAT, "JPEG image of more than %d scans", MAX_SCANS));
}

static void source_nothing(j_decompress_ptr c)
{
    (void)c;
}

static boolean source_fill(j_decompress_ptr c)
{
    jpeg *j = c->client_data;

    give_up(j, ds_fail(j->d->err, DS_E_FORMAT, "the JPEG image is cut off"));
    return FALSE;
}

static void source_skip(j_decompress_ptr c, long n)
{
    if (n <= 0)
        return;
    if ((size_t)n > c->src->bytes_in_buffer)
        source_fill(c);
    c->src->next_input_byte += n;
    c->src->bytes_in_buffer -= (size_t)n;
}

/* Adobe's inverted CMYK to RGB, rounding as Pillow does. In place: 4 bytes a pixel become 3. */
static void cmyk_row(uint8_t *p, uint32_t w)
{
    for (uint32_t x = 0; x < w; x++) {
        int k = p[4 * x + 3];

        for (int i = 0; i < 3; i++) {
            int t = (255 - p[4 * x + i]) * k + 128, v = k - (((t >> 8) + t) >> 8);

            p[3 * x + i] = (uint8_t)(v < 0 ? 0 : v);
        }
    }
}

static ds_rc size_up(jpeg *j)
{
    size_t held = 0;

    if (j->c.num_components != 1 && j->c.num_components != 3 && j->c.num_components != 4)
        return ds_fail(j->d->err, DS_E_FORMAT, "JPEG image of %d colour components", j->c.num_components);
    if (jpeg_has_multiple_scans(&j->c)) /* 16-bit coefficients, no component larger than the picture and a block row */
        held = (size_t)j->c.num_components * sizeof(JCOEF);
    j->c.out_color_space = j->c.num_components == 4 ? JCS_CMYK : JCS_RGB;
    return ds_decode_begin(j->d, "JPEG", j->c.image_width, j->c.image_height, held);
}

static ds_rc run(jpeg *j)
{
    ds_rc rc;

    if (setjmp(j->back))
        return j->rc;
    jpeg_create_decompress(&j->c);
    j->c.mem->max_memory_to_use = j->d->limits.max_memory < LONG_MAX - WORKING_MEMORY ? (long)j->d->limits.max_memory + WORKING_MEMORY : 0;
    j->c.src = &j->source;
    j->c.progress = &j->progress;
    jpeg_read_header(&j->c, TRUE);
    rc = size_up(j);
    if (rc != DS_OK)
        return rc;
    j->line = malloc((size_t)j->c.image_width * 4);
    if (!j->line)
        return ds_fail(j->d->err, DS_E_NOMEM, "JPEG image: out of memory");
    jpeg_start_decompress(&j->c);
    while (j->c.output_scanline < j->c.output_height) {
        uint32_t y = j->c.output_scanline;

        jpeg_read_scanlines(&j->c, &j->line, 1);
        if (j->c.num_components == 4)
            cmyk_row(j->line, j->c.output_width);
        rc = j->d->row(j->d->ctx, y, j->line, j->d->err);
        if (rc != DS_OK)
            return rc;
    }
    return DS_OK;
}

ds_rc ds_decode_jpeg(ds_decode *d)
{
    jpeg *j = calloc(1, sizeof *j);
    ds_rc rc;

    if (!j)
        return ds_fail(d->err, DS_E_NOMEM, "JPEG image: out of memory");
    j->d = d;
    j->c.client_data = j;
    j->c.err = jpeg_std_error(&j->error);
    j->error.error_exit = on_error;
    j->error.emit_message = on_message;
    j->progress.progress_monitor = on_progress;
    j->source = (struct jpeg_source_mgr){ .next_input_byte = d->bytes,
                                          .bytes_in_buffer = d->n,
                                          .init_source = source_nothing,
                                          .fill_input_buffer = source_fill,
                                          .skip_input_data = source_skip,
                                          .resync_to_restart = jpeg_resync_to_restart,
                                          .term_source = source_nothing };
    rc = run(j);
    jpeg_destroy_decompress(&j->c);
    free(j->line);
    free(j);
    return rc;
}
