/* Against the reference: cache records byte for byte, the golden checkpoints, and Engram rows from tokens. */
#include "test.h"

#include <unistd.h>

#include "base/json.h"
#include "format/engram.h"
#include "base/file.h"
#include "format/npy.h"
#include "format/numfmt.h"
#include "format/tensors.h"

#define GOLDEN DS_TEST_ROOT "/tests/golden/"

static ds_npy array(const char *path, ds_npy_type type)
{
    ds_err err;
    ds_npy a;
    assert_ok(ds_npy_read(&a, path, &err));
    assert_int_equal(a.type, type);
    return a;
}

static void records(void **state)
{
    (void)state;
    ds_npy x = array(GOLDEN "common/formats.x.npy", DS_NPY_F32);
    static const struct {
        const char *file;
        void (*pack)(uint8_t *, const float *, size_t);
        size_t bytes;
    } kinds[] = {
        { GOLDEN "common/formats.main.npy", ds_kv_main_pack, 18 },
        { GOLDEN "common/formats.index.npy", ds_kv_index_pack, 17 },
        { GOLDEN "common/formats.window.npy", ds_kv_window_pack, 33 },
    };
    assert_int_equal(x.shape[1], 32);
    for (int k = 0; k < 3; k++) {
        ds_npy want = array(kinds[k].file, DS_NPY_U8);
        assert_int_equal(want.shape[0], x.shape[0]);
        assert_int_equal(want.shape[1], kinds[k].bytes);
        for (uint64_t i = 0; i < x.shape[0]; i++) {
            uint8_t rec[33];
            kinds[k].pack(rec, (const float *)x.data + 32 * i, 32);
            if (memcmp(rec, (const uint8_t *)want.data + i * kinds[k].bytes, kinds[k].bytes) != 0)
                fail_msg("%s: row %llu differs", kinds[k].file, (unsigned long long)i);
        }
        ds_npy_free(&want);
    }
    ds_npy_free(&x);
}

static ds_rc check_values(void *arg, const ds_tensor_want *w, ds_err *err)
{
    ds_weight found;
    ds_rc rc = ds_weight_find(&found, arg, w, err);
    return rc == DS_OK && found.data ? ds_weight_check_values(&found, err) : rc;
}

static void checkpoints(void **state)
{
    (void)state;
    static const char *const models[] = { GOLDEN "tiny-a/model", GOLDEN "tiny-b/model", GOLDEN "tiny-c/model" };
    ds_err err;
    for (int i = 0; i < 3; i++) {
        ds_config c;
        ds_st *st;
        assert_ok(ds_config_load(&c, models[i], &err));
        assert_ok(ds_st_open(&st, models[i], &err));
        assert_ok(ds_tensors_check(&c, st, &err));
        assert_ok(ds_tensors_each(&c, check_values, st, &err));
        ds_st_close(st);
    }
}

/* tiny-b carries the optional tensors; its exact case stores the rows that each position reads. */
static void engram_rows(void **state)
{
    (void)state;
    static const char dir[] = GOLDEN "tiny-b/";
    ds_err err;
    ds_config c;
    ds_st *st;
    bool present;
    char *text, path[512];
    size_t n, checked = 0;
    ds_json_doc *doc;
    int32_t map[1024];

    assert_ok(ds_config_load(&c, GOLDEN "tiny-b/model", &err));
    assert_ok(ds_st_open(&st, GOLDEN "tiny-b/model", &err));
    assert_true(c.vocab_size <= 1024);
    assert_ok(ds_engram_token_map(map, &present, &c, st, &err));
    assert_true(present);
    snprintf(path, sizeof path, "%sgolden.json", dir);
    assert_ok(ds_file_read(&text, &n, path, 16 << 20, &err));
    assert_ok(ds_json_parse(&doc, text, n, NULL, &err));
    for (const ds_json *k = ds_json_at(ds_json_get(ds_json_root(doc), "cases"), 0); k; k = k->next) {
        const ds_json *file = ds_json_get(k, "engram"), *tokens = ds_json_get(k, "tokens");
        if (ds_json_is(file, DS_JSON_OBJECT))
            file = ds_json_get(file, "file");
        if (!ds_json_is(file, DS_JSON_STRING))
            continue;
        snprintf(path, sizeof path, "%s%s", dir, file->text);
        ds_npy want = array(path, DS_NPY_I64);
        assert_int_equal(want.shape[0], c.n_engram_layers);
        assert_int_equal(want.shape[1], tokens->n);
        for (uint32_t t = 0; t < c.n_engram_layers; t++) {
            ds_engram_hash h;
            int32_t history[DS_CONFIG_MAX_ENGRAM_NGRAM];
            uint64_t ids[DS_CONFIG_MAX_ENGRAM_COLUMNS];
            assert_ok(ds_engram_load(&h, &c, st, t, map[c.engram_pad_token_id], &err));
            for (uint32_t s = 0; s < DS_CONFIG_MAX_ENGRAM_NGRAM; s++)
                history[s] = DS_ENGRAM_DEAD;
            uint64_t p = 0;
            for (const ds_json *id = tokens->child; id; id = id->next, p++) {
                int64_t v;
                assert_true(ds_json_i64(id, &v));
                memmove(history + 1, history, sizeof history - sizeof *history);
                history[0] = map[v];
                ds_engram_ids(ids, &h, history);
                for (uint32_t col = 0; col < h.columns; col++, checked++)
                    assert_int_equal(((const int64_t *)want.data)[(t * want.shape[1] + p) * h.columns + col], ids[col]);
            }
        }
        ds_npy_free(&want);
    }
    assert_true(checked > 100);
    ds_json_free(doc);
    free(text);
    ds_st_close(st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records),
        cmocka_unit_test(checkpoints),
        cmocka_unit_test(engram_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
