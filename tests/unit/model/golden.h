/* Helpers of the model's tests: golden manifests, opening models, and a collector for what the observer shows. */
#ifndef DS_TEST_GOLDEN_H
#define DS_TEST_GOLDEN_H

#include <ds/tokenizer.h>

#include "base/json.h"
#include "base/file.h"
#include "format/npy.h"
#include "kern/locked.h"
#include "model/model.h"
#include "test.h"

typedef struct {
    char dir[512];    /* tests/golden/NAME */
    ds_json_doc *doc; /* its manifest */
    const ds_json *cases;
} golden;

static inline void golden_open(golden *g, const char *name)
{
    ds_err err;
    char path[600], *text;
    size_t n;

    snprintf(g->dir, sizeof g->dir, "%s/tests/golden/%s", DS_TEST_ROOT, name);
    snprintf(path, sizeof path, "%s/golden.json", g->dir);
    assert_ok(ds_file_read(&text, &n, path, 1 << 24, &err));
    assert_ok(ds_json_parse(&g->doc, text, n, NULL, &err));
    free(text);
    g->cases = ds_json_get(ds_json_root(g->doc), "cases");
    assert_non_null(g->cases);
}

static inline ds_npy golden_array(const golden *g, const char *file)
{
    ds_err err;
    char path[1024];
    ds_npy a;

    snprintf(path, sizeof path, "%s/%s", g->dir, file);
    assert_ok(ds_npy_read(&a, path, &err));
    return a;
}

static inline uint32_t json_uint(const ds_json *v)
{
    uint64_t u = 0;

    assert_true(ds_json_u64(v, &u));
    return (uint32_t)u;
}

static inline double json_real(const ds_json *v)
{
    double x = 0.0;

    assert_true(ds_json_f64(v, &x));
    return x;
}

/* An array of ids; free() it. */
static inline int32_t *json_ids(const ds_json *list, uint32_t *n)
{
    int32_t *ids = calloc(list->n + 1u, sizeof *ids);

    *n = 0;
    for (const ds_json *v = list->child; v; v = v->next)
        ids[(*n)++] = (int32_t)json_uint(v);
    return ids;
}

static inline ds_rc test_token_map(void *ctx, const char *dir, int32_t *map, uint32_t vocab, ds_err *err)
{
    char path[1024];
    ds_tokenizer *t;
    uint32_t classes;
    ds_rc rc;

    (void)ctx;
    (void)vocab;
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    rc = ds_tokenizer_open(&t, path, err);
    if (rc == DS_OK)
        rc = ds_tokenizer_engram_map(t, (uint32_t *)map, &classes, err);
    ds_tokenizer_destroy(t);
    return rc;
}

/* The device of all models that a test opens; NULL: each has the CPU for its own. */
static ds_device *test_device;

/* For the last arguments of a test program: KERNELS of the CPU, and "locked" for the device that the host can't look
 * into, or the name of a device (device.h). Where there is none the program ends, skipped (77). */
static inline const char *test_choose_device(int argc, char **argv, int from)
{
    const char *kernels = argc > from && strcmp(argv[from], "best") != 0 ? argv[from] : NULL;
    const char *device = argc > from + 1 ? argv[from + 1] : NULL;
    ds_err err;

    if (!device)
        return kernels;
    if (strcmp(device, "locked") == 0) {
        if (locked_create(&test_device, kernels, &err) == DS_OK)
            return kernels;
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    if (ds_device_open(&test_device, device, NULL, &err) != DS_OK) {
        printf("skipped: %s\n", err.msg);
        exit(77);
    }
    return kernels;
}

static inline ds_model *test_model(const char *name, const char *kernels)
{
    ds_err err;
    char path[600];
    ds_model *m;

    snprintf(path, sizeof path, "%s/tests/golden/%s/model", DS_TEST_ROOT, name);
    assert_ok(ds_model_open(&m, path, &(ds_model_opts){ .device = test_device, .kernels = kernels, .token_map = test_token_map }, &err));
    return m;
}

/* Everything that the observer shows, joined by name and layer: the rows of all calls one after another. */
typedef struct {
    struct {
        char what[16];
        int layer;
        size_t rows, row_bytes;
        uint8_t *data;
    } s[1024];
    size_t n;
} collector;

static inline void collect(void *ctx, const char *what, int layer, const void *data, size_t rows, size_t row_bytes)
{
    collector *c = ctx;
    size_t i = 0;

    while (i < c->n && (c->s[i].layer != layer || strcmp(c->s[i].what, what) != 0))
        i++;
    if (i == c->n) {
        assert_true(c->n < sizeof c->s / sizeof *c->s);
        snprintf(c->s[i].what, sizeof c->s[i].what, "%s", what);
        c->s[i].layer = layer;
        c->s[i].row_bytes = row_bytes;
        c->n++;
    }
    assert_int_equal(c->s[i].row_bytes, row_bytes);
    c->s[i].data = realloc(c->s[i].data, (c->s[i].rows + rows + 1) * row_bytes);
    memcpy(c->s[i].data + c->s[i].rows * row_bytes, data, rows * row_bytes);
    c->s[i].rows += rows;
}

static inline void collector_clear(collector *c)
{
    for (size_t i = 0; i < c->n; i++)
        free(c->s[i].data);
    *c = (collector){ 0 };
}

/* Row `back` from the end (0 = the last one) of what was collected; NULL: nothing was. */
static inline const uint8_t *collected(const collector *c, const char *what, int layer, size_t back)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->s[i].layer == layer && strcmp(c->s[i].what, what) == 0) {
            assert_true(back < c->s[i].rows);
            return c->s[i].data + (c->s[i].rows - 1 - back) * c->s[i].row_bytes;
        }
    return NULL;
}

/* Rows of logits as they come. */
typedef struct {
    float *data;
    size_t rows, vocab;
} logit_rows;

static inline ds_rc keep_logits(void *ctx, const float *logits, uint32_t rows, uint32_t vocab, ds_err *err)
{
    logit_rows *l = ctx;

    (void)err;
    l->vocab = vocab;
    l->data = realloc(l->data, (l->rows + rows) * vocab * sizeof *l->data);
    memcpy(l->data + l->rows * vocab, logits, rows * vocab * sizeof *l->data);
    l->rows += rows;
    return DS_OK;
}

#endif
