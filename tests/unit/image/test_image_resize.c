/* Resizing and preparing equal Pillow byte for byte (tests/golden/common); patches, digests, the size rule with
 * other numbers. */
#include "samples.h"

#include "image/image_internal.h"

static ds_pixels formula_picture(uint32_t w, uint32_t h)
{
    ds_pixels p = { w, h, malloc((size_t)w * h * 3) };

    assert_non_null(p.rgb);
    for (uint32_t y = 0; y < h; y++)
        for (uint32_t x = 0; x < w; x++)
            for (uint32_t c = 0; c < 3; c++)
                p.rgb[((size_t)y * w + x) * 3 + c] = (uint8_t)(7 * x + 13 * y + 50 * c + ((x * y) >> 3));
    return p;
}

/* A rule under which a w x h picture is fitted to fit_w x fit_h isn't always there, so this pads by hand as prepare
 * does. */
static void golden_pictures(void **state)
{
    static const struct {
        uint32_t w, h, to_w, to_h, in_w, in_h;
    } cases[] = {
        { 97, 61, 98, 70, 98, 62 }, { 30, 41, 42, 42, 31, 42 }, { 150, 90, 42, 28, 42, 25 },
        { 13, 77, 28, 84, 14, 84 }, { 60, 60, 60, 60, 60, 60 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t left = (uint32_t)rint((cases[i].to_w - cases[i].in_w) / 2.0), top = (uint32_t)rint((cases[i].to_h - cases[i].in_h) / 2.0);
        ds_pixels p = formula_picture(cases[i].w, cases[i].h);
        size_t line = (size_t)cases[i].to_w * 3, n;
        uint8_t *got = malloc(line * cases[i].to_h);
        unsigned char *npy;
        char name[64];
        ds_resizer r;
        ds_err err;

        snprintf(name, sizeof name, "resize-%ux%u.npy", cases[i].w, cases[i].h);
        npy = read_file(DS_TEST_ROOT "/tests/golden/common/", name, &n);
        assert_true(n > line * cases[i].to_h);
        memset(got, 127, line * cases[i].to_h);
        assert_ok(ds_resizer_init(&r, p.width, p.height, cases[i].in_w, cases[i].in_h, got + top * line + left * 3, line, &err));
        for (uint32_t y = 0; y < p.height; y++)
            ds_resizer_row(&r, y, p.rgb + (size_t)y * p.width * 3);
        ds_resizer_end(&r);
        ds_resizer_free(&r);
        assert_memory_equal(got, npy + n - line * cases[i].to_h, line * cases[i].to_h);
        free(npy);
        free(got);
        ds_pixels_free(&p);
    }
}

/* The picture that the golden model's image case was made of: its rule, prepared, and as patches. */
static void golden_preparation(void **state)
{
    ds_pixels p = formula_picture(97, 61);
    ds_prepare_opts o;
    ds_picture pic;
    float *patches;
    unsigned char *npy;
    size_t n, pixels;
    ds_err err;

    (void)state;
    ds_prepare_opts_init(&o);
    o.rule.max_tokens = 64;
    o.rule.min_pixels = 1764;
    assert_ok(ds_image_prepare_pixels(&pic, &p, &o, &err));
    assert_int_equal(pic.layout.fitted_w, 98);
    assert_int_equal(pic.layout.fitted_h, 70);
    assert_int_equal(pic.layout.tokens, 10);
    assert_int_equal(pic.n_h, 5);
    assert_int_equal(pic.n_w, 7);
    pixels = 98 * 70 * 3;
    npy = read_file(DS_TEST_ROOT "/tests/golden/tiny-a/", "image.prepared.npy", &n);
    assert_memory_equal(pic.pixels, npy + n - pixels, pixels);
    free(npy);

    patches = malloc(35 * 588 * sizeof *patches);
    assert_non_null(patches);
    ds_image_patches(&pic, patches);
    for (size_t i = 0; i < 35 * 588; i++) {
        size_t at = i % 588, c = at / 196, y = i / 588 / 7 * 14 + at % 196 / 14, x = i / 588 % 7 * 14 + at % 14;
        float exact = ((float)pic.pixels[(y * 98 + x) * 3 + c] / 255.0f - 0.5f) / 0.5f;
        uint32_t bits;

        memcpy(&bits, &patches[i], 4);
        assert_int_equal(bits & 0xFFFF, 0);
        assert_true(fabsf(patches[i] - exact) <= fabsf(exact) / 256);
    }
    free(patches);
    ds_picture_free(&pic);
    ds_pixels_free(&p);
}

static void released_sizes(void **state)
{
    static const struct {
        uint32_t w, h;
        double ratio;
        uint32_t fit_w, fit_h, tokens;
    } cases[] = {
        { 1, 1, 0, 546, 546, 184 },        { 640, 480, 0, 644, 490, 206 },     { 1920, 1080, 0, 1708, 966, 968 },
        { 158, 10000, 0, 126, 7966, 762 }, { 10000, 158, 0, 10010, 168, 962 }, { 16809, 11841, 0, 1540, 1092, 990 },
        { 8191, 3, 0, 28434, 14, 680 },    { 10000, 158, 3, 952, 322, 194 },   { 2000, 600, 3, 1806, 602, 662 },
        { 640, 480, 3, 644, 490, 206 },    { 8191, 3, 3, 952, 322, 194 },      { 14, 9000, 3, 28, 13804, 660 },
    };
    ds_err err;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds_image im = { .width = cases[i].w, .height = cases[i].h };
        ds_image_rule rule;

        ds_image_rule_init(&rule);
        rule.max_wh_ratio = cases[i].ratio;
        assert_ok(ds_image_layout_by(&im, &rule, &err));
        assert_int_equal(im.fitted_w, cases[i].fit_w);
        assert_int_equal(im.fitted_h, cases[i].fit_h);
        assert_int_equal(im.tokens, cases[i].tokens);
    }
}

static void bad_rules(void **state)
{
    ds_image im = { .width = 5, .height = 5 };
    ds_image_rule rule;
    ds_err err;

    (void)state;
    ds_image_rule_init(&rule);
    rule.patch = 0;
    assert_refused(ds_image_layout_by(&im, &rule, &err), DS_E_ARG, "out of range");
    ds_image_rule_init(&rule);
    rule.max_wh_ratio = NAN;
    assert_refused(ds_image_layout_by(&im, &rule, &err), DS_E_ARG, "out of range");
    ds_image_rule_init(&rule);
    rule.max_tokens = 7;
    assert_refused(ds_image_layout_by(&im, &rule, &err), DS_E_ARG, "out of range");
}

/* Extreme ratios end in one row or column of pixels between gray ones, never in nothing. */
static void extreme_ratios(void **state)
{
    static const uint32_t sizes[][2] = { { 1, 1 }, { 1, 20000 }, { 20000, 1 }, { 3, 8191 }, { 1, 2 }, { 545, 543 } };
    ds_err err;

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ds_pixels p = { sizes[i][0], sizes[i][1], malloc((size_t)sizes[i][0] * sizes[i][1] * 3) };
        ds_picture pic;
        size_t total, white = 0;

        assert_non_null(p.rgb);
        memset(p.rgb, 255, (size_t)p.width * p.height * 3);
        assert_ok(ds_image_prepare_pixels(&pic, &p, NULL, &err));
        total = (size_t)pic.layout.fitted_w * pic.layout.fitted_h * 3;
        for (size_t k = 0; k < total; k++) {
            assert_true(pic.pixels[k] == 255 || pic.pixels[k] == 127);
            white += pic.pixels[k] == 255;
        }
        assert_true(white > 0);
        ds_picture_free(&pic);
        ds_pixels_free(&p);
    }
}

static void squeezed_when_wider_than_the_ratio(void **state)
{
    ds_pixels p = formula_picture(400, 30);
    ds_prepare_opts o;
    ds_picture pic;
    uint8_t *plain;
    ds_err err;

    (void)state;
    ds_prepare_opts_init(&o);
    o.rule.max_wh_ratio = 3;
    assert_ok(ds_image_prepare_pixels(&pic, &p, &o, &err));
    plain = malloc((size_t)pic.layout.fitted_w * pic.layout.fitted_h * 3);
    assert_ok(ds_image_resize(plain, pic.layout.fitted_w, pic.layout.fitted_h, p.rgb, p.width, p.height, &err));
    assert_memory_equal(plain, pic.pixels, (size_t)pic.layout.fitted_w * pic.layout.fitted_h * 3);
    free(plain);
    ds_picture_free(&pic);
    ds_pixels_free(&p);
}

/* The same pixels in other files have the same digest; a changed pixel or shape has another. */
static void digests(void **state)
{
    static const char *const same[] = { "rgb8.png",       "rgb8key.png",   "rgb8gamma.png", "rgba8.png",
                                        "interlaced.png", "lossless.webp", "rgb16.png" };
    uint8_t first[32] = { 0 };
    ds_prepare_opts o;
    ds_picture pic;
    ds_pixels p;
    ds_err err;

    (void)state;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        size_t n;
        unsigned char *bytes = read_file(SAMPLES, same[i], &n);

        assert_ok(ds_image_prepare(&pic, bytes, n, NULL, &err));
        if (i == 0)
            memcpy(first, pic.digest, 32);
        assert_memory_equal(first, pic.digest, 32);
        ds_picture_free(&pic);
        if (i == 0) {
            assert_ok(ds_image_decode(&p, bytes, n, NULL, &err));
            p.rgb[5] ^= 255;
            assert_ok(ds_image_prepare_pixels(&pic, &p, NULL, &err));
            assert_memory_not_equal(first, pic.digest, 32);
            ds_picture_free(&pic);
            ds_pixels_free(&p);
        }
        ds_prepare_opts_init(&o);
        o.size_only = true;
        assert_ok(ds_image_prepare(&pic, bytes, n, &o, &err));
        assert_null(pic.pixels);
        assert_int_equal(pic.layout.width, 11);
        assert_int_equal(pic.layout.height, 7);
        assert_true(pic.layout.tokens > 0);
        ds_picture_free(&pic);
        free(bytes);
    }
}

static void bad_resizes(void **state)
{
    uint8_t pixel[3] = { 0 };
    ds_err err;

    (void)state;
    assert_refused(ds_image_resize(pixel, 0, 1, pixel, 1, 1, &err), DS_E_ARG, "1 to 16777216");
    assert_refused(ds_image_resize(pixel, 1, 1, pixel, 1, 1u << 25, &err), DS_E_ARG, "33554432");
    assert_ok(ds_image_resize(pixel, 1, 1, pixel, 1, 1, &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_pictures), cmocka_unit_test(golden_preparation), cmocka_unit_test(released_sizes),
        cmocka_unit_test(bad_rules),       cmocka_unit_test(extreme_ratios),     cmocka_unit_test(squeezed_when_wider_than_the_ratio),
        cmocka_unit_test(digests),         cmocka_unit_test(bad_resizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
