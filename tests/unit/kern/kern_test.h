/* For tests of ops: every variant that this CPU has, or a device, against ref, random inputs from a fixed seed,
 * thread pools. */
#ifndef DS_KERN_TEST_H
#define DS_KERN_TEST_H

#include "test.h"

#include "base/mem.h"
#include "base/pool.h"
#include "format/numfmt.h"
#include "kern/device.h"
#include "kern/remote.h"

/* What a test of a variant gets as *state. */
typedef struct {
    ds_kern k, ref;
    ds_arena arena;
    ds_fault fault;
    ds_exec e; /* one thread; fault is looked at by the test */
} variant;

static inline uint32_t next_random(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 32);
}

static inline float random_unit(uint64_t *s) /* -1 .. 1 */
{
    return (float)(int32_t)next_random(s) * 0x1p-31f;
}

/* About normal. */
static inline float random_normal(uint64_t *s)
{
    return random_unit(s) + random_unit(s) + random_unit(s);
}

/* n floats, 64-byte aligned; bf16 values if asked for. */
static inline float *random_floats(uint64_t *s, size_t n, float scale, bool bf16)
{
    float *p = ds_calloc_aligned(n + 16, sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) {
        p[i] = random_normal(s) * scale;
        if (bf16)
            p[i] = ds_bf16_round(p[i]);
    }
    return p;
}

static inline float *zero_floats(size_t n)
{
    float *p = ds_calloc_aligned(n + 16, sizeof *p);
    assert_non_null(p);
    return p;
}

static inline float *copy_floats(const float *x, size_t n)
{
    float *p = zero_floats(n);
    memcpy(p, x, n * sizeof *p);
    return p;
}

/* A random weight; data on an odd address where its elements are bytes. free_mat() it. */
static inline ds_mat random_mat(uint64_t *s, ds_mat_type type, uint32_t in, uint64_t out)
{
    size_t n = (size_t)out * in, scales = type == DS_MAT_FP8_32X32 ? (out + 31) / 32 * ((in + 31) / 32) : n / 32;
    uint8_t *data = malloc(n * 4 + 64), *scale = malloc(scales + 64);
    ds_mat w = { .type = type, .in = in, .out = out };

    assert_non_null(data);
    assert_non_null(scale);
    memset(data, 0, n * 4 + 64);
    for (size_t i = 0; i < scales; i++)
        scale[i] = (uint8_t)(117 + next_random(s) % 6);
    for (size_t i = 0; i < n; i++) {
        float v = random_normal(s);
        uint16_t h = ds_bf16_from_f32(v * 0.1f);
        switch (type) {
        case DS_MAT_F32:
            v *= 0.1f;
            memcpy(data + i * 4, &v, 4);
            break;
        case DS_MAT_BF16:
            memcpy(data + i * 2, &h, 2);
            break;
        case DS_MAT_FP8_32X32:
        case DS_MAT_FP8_ROWS:
            data[1 + i] = (uint8_t)next_random(s); /* every code, subnormals among them, but NaN */
            if ((data[1 + i] & 0x7f) == 0x7f)
                data[1 + i] = 0x04;
            break;
        case DS_MAT_MXFP4:
            data[1 + i / 2] = (uint8_t)next_random(s);
            break;
        }
    }
    w.data = data + (type == DS_MAT_F32 || type == DS_MAT_BF16 ? 0 : 1);
    w.scale = type == DS_MAT_F32 || type == DS_MAT_BF16 ? NULL : scale;
    if (!w.scale)
        free(scale);
    return w;
}

static inline void free_mat(ds_mat *w)
{
    free((void *)((uintptr_t)w->data - (w->scale ? 1 : 0)));
    free((void *)w->scale);
}

/* Runs `test` once for every variant that this CPU has. */
typedef void variant_test(variant *v);

static const char *tested;       /* the variant, or the device */
static ds_device *tested_device; /* NULL: a variant of this CPU */
static ds_kern tested_kern;

static inline int setup_variant(void **state)
{
    ds_err err;
    variant *v = calloc(1, sizeof *v);

    if (!v || ds_kern_init(&v->ref, "ref", &err) != DS_OK || (!tested_device && ds_kern_init(&tested_kern, tested, &err) != DS_OK) ||
        ds_arena_init(&v->arena, (size_t)96 << 20, &err) != DS_OK) {
        free(v);
        return -1;
    }
    v->k = tested_kern;
    v->e = (ds_exec){ .scratch = &v->arena, .fault = &v->fault };
    *state = v;
    return 0;
}

static inline int teardown_variant(void **state)
{
    variant *v = *state;
    ds_arena_fini(&v->arena);
    free(v);
    return 0;
}

static inline int run_tested(const char *name, const struct CMUnitTest *tests, size_t n)
{
    struct CMUnitTest list[32];
    char names[32][96];

    tested = name;
    for (size_t t = 0; t < n && t < 32; t++) {
        snprintf(names[t], sizeof names[t], "%s %s", name, tests[t].name);
        list[t] = tests[t];
        list[t].name = names[t];
        list[t].setup_func = setup_variant;
        list[t].teardown_func = teardown_variant;
    }
    return _cmocka_run_group_tests(name, list, n < 32 ? n : 32, NULL, NULL);
}

/* Runs all tests of the list for each variant, or, when the program was given the name of a device, for that one;
 * skips (77) when there is none. */
static inline int ds_test_every_variant_(const struct CMUnitTest *tests, size_t n, int argc, char **argv)
{
    static const char *const all[] = { "avx2", "avx512", "amx" };
    int failed = 0, ran = 0;
    ds_err err;

    if (argc > 1) {
        if (ds_device_open(&tested_device, argv[1], NULL, &err) != DS_OK) {
            printf("skipped: %s\n", err.msg);
            return 77;
        }
        if (remote_open(&tested_kern, tested_device, &err) != DS_OK) {
            printf("%s\n", err.msg);
            return 1;
        }
        failed = run_tested(argv[1], tests, n);
        remote_close();
        ds_device_close(tested_device);
        return failed;
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        ds_kern k;
        if (ds_kern_init(&k, all[i], &err) != DS_OK) {
            print_message("%s\n", err.msg);
            continue;
        }
        assert_string_equal(k.name, all[i]);
        failed += run_tested(all[i], tests, n);
        ran++;
    }
    if (!ran) {
        puts("skipped: this CPU has none of avx2, avx512, amx");
        return 77;
    }
    return failed;
}
#define ds_test_every_variant(tests, argc, argv) ds_test_every_variant_(tests, sizeof(tests) / sizeof *(tests), argc, argv)

/* |got - want| <= bound[i] everywhere, NaN where NaN is expected. `slack` bounds are per element. */
static inline void assert_within(const float *got, const float *want, const double *bound, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++) {
        double g = got[i], w = want[i];
        bool ok = isnan(w) ? isnan(g) : (g == w || fabs(g - w) <= bound[i]);
        if (!ok)
            fail_msg("%s: element %zu of %zu: %.9g, expected %.9g within %.3g", what, i, n, g, w, bound[i]);
    }
}

static inline void assert_same_bits(const void *got, const void *want, size_t bytes, const char *what)
{
    const uint8_t *a = got, *b = want;
    for (size_t i = 0; i < bytes; i++)
        if (a[i] != b[i])
            fail_msg("%s: byte %zu of %zu differs", what, i, bytes);
}

static const uint32_t thread_counts[] = { 2, 3, 5 };

#endif
