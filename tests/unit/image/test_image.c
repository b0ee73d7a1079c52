/* Decoding: every sample gives Pillow's pixels; damaged, cut off and hostile files are refused in one line. */
#include "samples.h"

#include "fault.h"

static void pixels_of(const char *name, const unsigned char *bytes, size_t n, const unsigned char *rgb)
{
    ds_pixels p;
    ds_err err;

    if (ds_image_decode(&p, bytes, n, NULL, &err) != DS_OK)
        fail_msg("%s: %s", name, err.msg);
    if (p.width != le16(rgb) || p.height != le16(rgb + 2))
        fail_msg("%s: %u x %u, expected %u x %u", name, p.width, p.height, le16(rgb), le16(rgb + 2));
    for (size_t i = 0; i < (size_t)p.width * p.height * 3; i++)
        if (p.rgb[i] != rgb[4 + i])
            fail_msg("%s: value %zu is %u, expected %u", name, i, p.rgb[i], rgb[4 + i]);
    ds_pixels_free(&p);
}

static void samples_give_their_pixels(void **state)
{
    (void)state;
    assert_true(every_sample(pixels_of) >= 40);
}

/* A copy of exactly that size, so that the sanitizer sees a read behind it. */
static ds_rc decode_copy(const unsigned char *bytes, size_t n, const ds_image_limits *limits, ds_pixels *p, ds_err *err)
{
    unsigned char *copy = malloc(n ? n : 1);
    ds_rc rc;

    assert_non_null(copy);
    memcpy(copy, bytes, n);
    err->msg[0] = 0;
    rc = ds_image_decode(p, copy, n, limits, err);
    free(copy);
    if (rc != DS_OK) {
        assert_null(p->rgb);
        assert_true(err->msg[0] && !strchr(err->msg, '\n'));
    }
    return rc;
}

static void cut_everywhere(const char *name, const unsigned char *bytes, size_t n, const unsigned char *rgb)
{
    size_t whole = 0;

    for (size_t i = 0; i < n; i++) {
        ds_pixels p;
        ds_err err;
        ds_rc rc = decode_copy(bytes, i, NULL, &p, &err);

        if (rc == DS_OK) { /* nothing was missing but what follows the pixels */
            if (memcmp(p.rgb, rgb + 4, (size_t)p.width * p.height * 3) != 0)
                fail_msg("%s cut to %zu bytes gives other pixels", name, i);
            whole++;
        } else if (rc != DS_E_FORMAT) {
            fail_msg("%s cut to %zu bytes: %d %s", name, i, rc, err.msg);
        }
        ds_pixels_free(&p);
    }
    if (whole > n / 2 + 40)
        fail_msg("%s: %zu of %zu cut copies were taken", name, whole, n);
}

static void cut_files_are_refused(void **state)
{
    (void)state;
    every_sample(cut_everywhere);
}

static void flip_bits(const char *name, const unsigned char *bytes, size_t n, const unsigned char *rgb)
{
    unsigned char *copy = malloc(n);
    ds_image_limits limits;

    (void)rgb;
    assert_non_null(copy);
    ds_image_limits_init(&limits);
    limits.max_pixels = 1 << 16; /* a changed size may be large */
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit += 3) {
            ds_pixels p;
            ds_err err;
            ds_rc rc;

            memcpy(copy, bytes, n);
            copy[i] ^= (unsigned char)(1 << bit);
            rc = decode_copy(copy, n, &limits, &p, &err);
            if (rc != DS_OK && rc != DS_E_FORMAT)
                fail_msg("%s with byte %zu changed: %d %s", name, i, rc, err.msg);
            ds_pixels_free(&p);
        }
    free(copy);
}

static void damaged_files_do_no_harm(void **state)
{
    (void)state;
    every_sample(flip_bits);
}

static void put32(unsigned char *p, uint32_t v)
{
    p[0] = (unsigned char)(v >> 24);
    p[1] = (unsigned char)(v >> 16);
    p[2] = (unsigned char)(v >> 8);
    p[3] = (unsigned char)v;
}

static uint32_t crc32_of(const unsigned char *p, size_t n)
{
    uint32_t c = ~0u;

    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int k = 0; k < 8; k++)
            c = c & 1 ? c >> 1 ^ 0xEDB88320u : c >> 1;
    }
    return ~c;
}

/* Sizes that nothing is behind: refused by the limits, before memory is taken (max_memory is far too small for any
 * of them). */
static void bombs_are_refused(void **state)
{
    static const uint32_t sizes[][2] = { { 0x7FFFFFFF, 0x7FFFFFFF }, { 60000, 60000 }, { 1, 40000 }, { 40000, 1 },
                                         { 32768, 32768 },           { 20000, 20000 } };
    unsigned char *png, *gif, *jpg, *webp;
    size_t n_png, n_gif, n_jpg, n_webp, sof = 0;
    ds_image_limits limits;
    ds_pixels p;
    ds_err err;

    (void)state;
    png = read_file(SAMPLES, "rgb8.png", &n_png);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        put32(png + 16, sizes[i][0]);
        put32(png + 20, sizes[i][1]);
        put32(png + 29, crc32_of(png + 12, 17));
        assert_refused(decode_copy(png, n_png, NULL, &p, &err), DS_E_FORMAT, "PNG image of");
        assert_non_null(strstr(err.msg, "at most"));
    }
    put32(png + 16, 0);
    put32(png + 29, crc32_of(png + 12, 17));
    assert_refused(decode_copy(png, n_png, NULL, &p, &err), DS_E_FORMAT, "PNG");
    free(png);

    gif = read_file(SAMPLES, "plain.gif", &n_gif);
    memset(gif + 6, 0xFF, 4);
    assert_refused(decode_copy(gif, n_gif, NULL, &p, &err), DS_E_FORMAT, "GIF image of 65535 x 65535");
    free(gif);

    jpg = read_file(SAMPLES, "ycc444.jpg", &n_jpg);
    for (size_t i = 0; i + 1 < n_jpg; i++)
        if (jpg[i] == 0xFF && jpg[i + 1] == 0xC0)
            sof = i;
    memset(jpg + sof + 5, 0xFA, 4);
    assert_refused(decode_copy(jpg, n_jpg, NULL, &p, &err), DS_E_FORMAT, "JPEG image of 64250 x 64250");
    memset(jpg + sof + 5, 0, 4);
    assert_refused(decode_copy(jpg, n_jpg, NULL, &p, &err), DS_E_FORMAT, "JPEG");
    free(jpg);

    webp = read_file(SAMPLES, "lossless.webp", &n_webp);
    ds_image_limits_init(&limits);
    limits.max_pixels = 76;
    assert_refused(decode_copy(webp, n_webp, &limits, &p, &err), DS_E_FORMAT, "at most 76");
    limits.max_pixels = 77;
    limits.max_memory = 77 * 8 - 1;
    assert_refused(decode_copy(webp, n_webp, &limits, &p, &err), DS_E_FORMAT, "decoding needs more than 615 bytes");
    limits.max_bytes = n_webp - 1;
    assert_refused(decode_copy(webp, n_webp, &limits, &p, &err), DS_E_FORMAT, "WebP image of");
    free(webp);
}

static void what_is_held_whole_counts(void **state)
{
    static const struct {
        const char *name;
        size_t bytes; /* for each pixel */
    } cases[] = { { "progressive.jpg", 6 }, { "interlaced.png", 3 }, { "animated.webp", 8 } };

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        size_t n;
        unsigned char *bytes = read_file(SAMPLES, cases[i].name, &n);
        ds_image_limits limits;
        ds_pixels p;
        ds_err err;

        ds_image_limits_init(&limits);
        limits.max_memory = 77 * cases[i].bytes - 1;
        assert_refused(decode_copy(bytes, n, &limits, &p, &err), DS_E_FORMAT, "decoding needs more than");
        limits.max_memory++;
        assert_ok(decode_copy(bytes, n, &limits, &p, &err));
        ds_pixels_free(&p);
        free(bytes);
    }
}

static void other_files_are_refused(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
    } cases[] = { { "", 0 },
                  { "\xff", 1 },
                  { "\xff\xd8", 2 },
                  { "BM aaaaaaaaaaaaaaaaaaaaaaa", 26 },
                  { "<svg xmlns=\"http://www.w3.org/2000/svg\"/>", 41 },
                  { "\x89PNG\r\n\x1a", 7 },
                  { "GIF88a\1\0\1\0\0\0\0", 13 },
                  { "RIFF\x10\0\0\0WAVEfmt ", 16 } };
    ds_pixels p;
    ds_err err;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(decode_copy((const unsigned char *)cases[i].bytes, cases[i].n, NULL, &p, &err), DS_E_FORMAT,
                       "not a JPEG, PNG, GIF or WebP image");
    assert_refused(decode_copy((const unsigned char *)"\xff\xd8\xff\xd9", 4, NULL, &p, &err), DS_E_FORMAT, "JPEG");
    assert_refused(decode_copy((const unsigned char *)"GIF89a\1\0\1\0\0\0\0;", 14, NULL, &p, &err), DS_E_FORMAT,
                   "a GIF file without an image");
    assert_refused(decode_copy((const unsigned char *)"\x89PNG\r\n\x1a\nXXXXXXXXXXXX", 20, NULL, &p, &err), DS_E_FORMAT, "PNG");
    assert_refused(decode_copy((const unsigned char *)"RIFF\x10\0\0\0WEBPXXXXXXXXXXXX", 24, NULL, &p, &err), DS_E_FORMAT, "WebP");
}

/* One scan more costs the decoder a pass over the picture and the file a few bytes. */
static void many_scans_are_refused(void **state)
{
    size_t n, at = 0, size, scan;
    unsigned char *jpg = read_file(SAMPLES, "progressive.jpg", &n), *big;
    ds_pixels p;
    ds_err err;

    (void)state;
    for (size_t i = 0; i + 1 < n; i++)
        if (jpg[i] == 0xFF && jpg[i + 1] == 0xDA)
            at = i; /* the last scan */
    scan = n - 2 - at;
    size = at + 200 * scan + 2;
    big = malloc(size);
    assert_non_null(big);
    memcpy(big, jpg, at);
    for (size_t i = 0; i < 200; i++)
        memcpy(big + at + i * scan, jpg + at, scan);
    memcpy(big + size - 2, "\xff\xd9", 2);
    assert_refused(decode_copy(big, size, NULL, &p, &err), DS_E_FORMAT, "scans");
    free(big);
    free(jpg);
}

static bool always(void *ctx)
{
    return ctx == NULL;
}

static void canceled_at_once(const char *name, const unsigned char *bytes, size_t n, const unsigned char *rgb)
{
    ds_image_limits limits;
    ds_pixels p;
    ds_err err;

    (void)rgb;
    ds_image_limits_init(&limits);
    limits.canceled = always;
    if (ds_image_decode(&p, bytes, n, &limits, &err) != DS_E_CANCELED)
        fail_msg("%s isn't canceled", name);
    limits.canceled = NULL;
    limits.max_ms = 0;
    if (ds_image_decode(&p, bytes, n, &limits, &err) != DS_E_FORMAT || !strstr(err.msg, "longer than 0 ms"))
        fail_msg("%s takes any time", name);
}

static void decoding_stops_when_told(void **state)
{
    (void)state;
    every_sample(canceled_at_once);
}

typedef struct {
    const unsigned char *bytes;
    size_t n;
} file;

static ds_rc attempt(void *ctx, ds_err *err)
{
    const file *f = ctx;
    ds_picture p;
    ds_rc rc = ds_image_prepare(&p, f->bytes, f->n, NULL, err);

    ds_picture_free(&p);
    return rc;
}

static void starved(const char *name, const unsigned char *bytes, size_t n, const unsigned char *rgb)
{
    file f = { bytes, n };

    (void)rgb;
    (void)name;
    assert_true(fault_every_allocation(attempt, &f) >= 2);
}

static void failing_allocations(void **state)
{
    (void)state;
    every_sample(starved);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_give_their_pixels), cmocka_unit_test(cut_files_are_refused),
        cmocka_unit_test(damaged_files_do_no_harm),  cmocka_unit_test(bombs_are_refused),
        cmocka_unit_test(what_is_held_whole_counts), cmocka_unit_test(other_files_are_refused),
        cmocka_unit_test(many_scans_are_refused),    cmocka_unit_test(decoding_stops_when_told),
        cmocka_unit_test(failing_allocations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
