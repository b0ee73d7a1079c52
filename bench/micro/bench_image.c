/* A photo of 12 million pixels (4032 x 3024, JPEG 4:2:0) to what the vision tower takes, and the parts of it.
 *
 * Times are CPU time of the thread. mb_s counts the picture's RGB bytes (36.6 MB), so the lines compare. Roof of
 * `jpeg_rows`: libjpeg-turbo alone, which nothing that decodes with it can beat; of `resize` and `prepare`: a copy
 * of the RGB bytes; of `patches`: a copy of the f32 result. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <jpeglib.h>

#include <ds/image.h>

#include "bench.h"
#include "image/image_internal.h"

enum { REPS = 9, W = 4032, H = 3024 };

static uint64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Smooth shapes with some grain, so that its entropy is a photo's (about 2 bits a pixel). */
static void draw_row(uint8_t *row, unsigned y)
{
    unsigned noise = y * 2654435761u;

    for (unsigned x = 0; x < W; x++) {
        noise = noise * 1664525u + 1013904223u;
        for (unsigned c = 0; c < 3; c++) {
            unsigned v = (x * (3 + c) + y * 2) / 40 % 256, edge = ((x / 97) ^ (y / 61)) & 1 ? 40 : 0;

            row[3 * x + c] = (uint8_t)((v < 128 ? v : 255 - v) + edge + (noise >> 28));
        }
    }
}

static unsigned long encode(unsigned char **out, uint8_t *rgb)
{
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr e;
    unsigned long n = 0;

    c.err = jpeg_std_error(&e);
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, out, &n);
    c.image_width = W;
    c.image_height = H;
    c.input_components = 3;
    c.in_color_space = JCS_RGB;
    jpeg_set_defaults(&c);
    jpeg_set_quality(&c, 90, TRUE);
    jpeg_start_compress(&c, TRUE);
    for (unsigned y = 0; y < H; y++) {
        uint8_t *row = rgb + (size_t)y * W * 3;

        draw_row(row, y);
        jpeg_write_scanlines(&c, &row, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    return n;
}

/* The library alone: rows into one buffer. */
static void library_rows(const unsigned char *bytes, size_t n, uint8_t *row)
{
    struct jpeg_decompress_struct c;
    struct jpeg_error_mgr e;

    c.err = jpeg_std_error(&e);
    jpeg_create_decompress(&c);
    jpeg_mem_src(&c, bytes, n);
    jpeg_read_header(&c, TRUE);
    jpeg_start_decompress(&c);
    while (c.output_scanline < c.output_height)
        jpeg_read_scanlines(&c, &row, 1);
    jpeg_finish_decompress(&c);
    jpeg_destroy_decompress(&c);
}

static double report(const char *op, uint64_t *ns, double bytes, const char *roof_name, double roof)
{
    uint64_t median, p95;
    double mb_s;

    bench_stats(ns, REPS, &median, &p95);
    mb_s = bytes / (double)median * 1e3;
    printf("op=%s shape=%dx%d reps=%d ns_med=%lu ns_p95=%lu mb_s=%.0f mpixel_s=%.1f", op, W, H, REPS, median, p95, mb_s,
           (double)W * H / (double)median * 1e3);
    if (roof > 0)
        printf(" roof=%s roof_pct=%.1f", roof_name, 100 * mb_s / roof);
    printf("\n");
    return mb_s;
}

#define TIME(body)                    \
    for (int i = -1; i < REPS; i++) { \
        uint64_t start = cpu_ns();    \
        body;                         \
        if (i >= 0)                   \
            ns[i] = cpu_ns() - start; \
    }

int main(void)
{
    size_t bytes = (size_t)W * H * 3, n;
    uint8_t *rgb = malloc(bytes), *other = malloc(bytes), *fitted;
    unsigned char *jpg = NULL;
    ds_image layout = { .width = W, .height = H };
    ds_prepare_opts rows_only;
    uint64_t ns[REPS];
    ds_picture pic;
    float *patches;
    size_t values;
    double copy, library;
    ds_err err;

    if (!rgb || !other || ds_image_layout(&layout, &err) != DS_OK)
        return 1;
    n = encode(&jpg, rgb);
    fitted = malloc((size_t)layout.fitted_w * layout.fitted_h * 3);
    values = (size_t)layout.fitted_w * layout.fitted_h * 3;
    patches = malloc(values * sizeof *patches);
    if (!fitted || !patches)
        return 1;
    printf("# %zu bytes of JPEG -> %u x %u\n", n, layout.fitted_w, layout.fitted_h);
    ds_prepare_opts_init(&rows_only);
    rows_only.size_only = true;
    TIME(memcpy(other, rgb, bytes));
    copy = report("copy", ns, (double)bytes, "", 0);
    TIME(library_rows(jpg, n, other));
    library = report("libjpeg", ns, (double)bytes, "", 0);
    TIME({
        if (ds_image_prepare(&pic, jpg, n, &rows_only, &err) != DS_OK)
            return 1;
    });
    report("jpeg_rows", ns, (double)bytes, "libjpeg", library);
    TIME({
        if (ds_image_resize(fitted, layout.fitted_w, layout.fitted_h, rgb, W, H, &err) != DS_OK)
            return 1;
    });
    report("resize", ns, (double)bytes, "memcpy", copy);
    TIME({
        if (ds_image_prepare(&pic, jpg, n, NULL, &err) != DS_OK)
            return 1;
        if (i + 1 < REPS)
            ds_picture_free(&pic);
    });
    report("prepare", ns, (double)bytes, "libjpeg", library);
    TIME(ds_image_patches(&pic, patches));
    report("patches", ns, (double)values * 4, "memcpy", copy);
    ds_picture_free(&pic);
    free(patches);
    free(fitted);
    free(other);
    free(rgb);
    free(jpg);
    return 0;
}
