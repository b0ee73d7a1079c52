/* Safetensors: files that must open, and the table of those that must not. */
#include "test.h"

#include <sys/stat.h>
#include <unistd.h>

#include "format/safetensors.h"

static char dir[64];

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/ds_st_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    return system(cmd);
}

static const char *in_dir(const char *name)
{
    static char path[4][512];
    static int i;
    i = (i + 1) % 4;
    snprintf(path[i], sizeof path[i], "%s/%s", dir, name);
    return path[i];
}

static void put_file(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(in_dir(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static void put_text(const char *name, const char *text)
{
    put_file(name, text, strlen(text));
}

/* A file with that header text and n bytes of data 0, 1, 2, …; header_len 0 means the text's length. */
static void put_st(const char *name, const char *header, uint64_t header_len, size_t n)
{
    size_t h = strlen(header);
    char *bytes = calloc(1, 8 + h + n + 1);
    uint64_t len = header_len ? header_len : h;
    for (int i = 0; i < 8; i++)
        bytes[i] = (char)(len >> (8 * i));
    memcpy(bytes + 8, header, h);
    for (size_t i = 0; i < n; i++)
        bytes[8 + h + i] = (char)i;
    put_file(name, bytes, 8 + h + n);
    free(bytes);
}

#define T(name, dtype, shape, a, b) "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #a "," #b "]}"

static void one_file(void **state)
{
    (void)state;
    ds_err err;
    ds_st *st;
    size_t n;
    put_st("one.safetensors",
           " { \"__metadata__\" : {\"a\":[1,{\"b\":null}], \"a\":-1.5e3} ,\n" T("b", "BF16", "[2, 3]", 5, 17) "," T(
               "odd", "U8", "[5]", 0, 5) "," T("empty", "F32", "[0,7]", 5, 5) "," T("scalar", "I64", "[]", 17,
                                                                                    25) "," T("strange", "F4_X", "[9,9]", 25,
                                                                                              28) "," T("\\u00e9\\n\\\"", "BOOL", "[1]", 28,
                                                                                                        29) "}   ",
           0, 29);
    assert_ok(ds_st_open(&st, in_dir("one.safetensors"), &err));
    ds_st_tensors(st, &n);
    assert_int_equal(n, 6);
    assert_int_equal(ds_st_shards(st), 1);
    assert_int_equal(ds_st_data_bytes(st), 29);
    const ds_tensor *t = ds_st_find(st, "b");
    assert_non_null(t);
    assert_int_equal(t->dtype, DS_DT_BF16);
    assert_int_equal(t->ndim, 2);
    assert_int_equal(t->shape[0], 2);
    assert_int_equal(t->shape[1], 3);
    assert_int_equal(t->bytes, 12);
    assert_int_equal(((const uint8_t *)t->data)[0], 5);
    assert_int_equal(ds_st_find(st, "scalar")->ndim, 0);
    assert_int_equal(ds_st_find(st, "strange")->dtype, DS_DT_OTHER);
    assert_int_equal(ds_st_find(st, "empty")->bytes, 0);
    assert_non_null(ds_st_find(st, "\xc3\xa9\n\""));
    assert_null(ds_st_find(st, "c"));
    assert_null(ds_st_find(st, ""));
    ds_st_close(st);
    ds_st_close(NULL);
    put_st("none.safetensors", "{}", 0, 0);
    assert_ok(ds_st_open(&st, in_dir("none.safetensors"), &err));
    assert_null(ds_st_find(st, "x"));
    ds_st_close(st);
}

static void refused_files(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        uint64_t len;
        size_t data;
        const char *message;
    } cases[] = {
        { "", 0, 0, "ends too early" },
        { "[]", 0, 0, "expected an object" },
        { "{", 0, 0, "ends too early" },
        { "{}x", 0, 0, "text after the value" },
        { "{}", 100, 0, "a header of 100 bytes in a file of 10" },
        { "{}", 100000001, 0, "at most 100000000 are allowed" },
        { "{}", UINT64_MAX, 0, "at most 100000000 are allowed" },
        { "{}", 0, 1, "1 bytes after the last tensor" },
        { "{" T("a", "U8", "[4]", 0, 4) "}", 0, 3, "tensor a: span 0..4 lies outside the 3 bytes of data" },
        { "{" T("a", "U8", "[4]", 0, 4) "}", 0, 5, "1 bytes after the last tensor" },
        { "{" T("a", "U8", "[4]", 4, 0) "}", 0, 4, "span 4..0 lies outside" },
        { "{" T("a", "U8", "[4]", 1, 5) "}", 0, 5, "tensor a: span starts at 1, behind a hole that starts at 0" },
        { "{" T("a", "U8", "[4]", 0, 4) "," T("b", "U8", "[4]", 5, 9) "}", 0, 9,
          "tensor b: span starts at 5, behind a hole that starts at 4" },
        { "{" T("a", "U8", "[4]", 0, 4) "," T("b", "U8", "[4]", 3, 7) "}", 0, 7,
          "tensor b: span starts at 3, inside the one before, which ends at 4" },
        { "{" T("b", "U8", "[4]", 0, 4) "," T("a", "U8", "[4]", 0, 4) "}", 0, 4, "span starts at 0, inside the one before" },
        { "{" T("a", "U8", "[8]", 0, 8) "," T("e", "U8", "[0]", 4, 4) "}", 0, 8, "tensor e: span starts at 4, inside" },
        { "{" T("a", "F32", "[4]", 0, 4) "}", 0, 4, "tensor a: a span of 4 bytes; shape x F32 is 16" },
        { "{" T("a", "U8", "[]", 0, 0) "}", 0, 0, "a span of 0 bytes; shape x U8 is 1" },
        { "{" T("a", "F32", "[4611686018427387904, 4]", 0, 0) "}", 0, 0, "shape x F32 is too large" },
        { "{" T("a", "F32", "[4294967296, 4294967296]", 0, 4) "}", 0, 4, "shape x F32 is too large" },
        { "{" T("a", "F32", "[0, 4294967296, 4294967296]", 0, 4) "}", 0, 4, "shape x F32 is 0" },
        { "{" T("a", "U8", "[99999999999999999999]", 0, 4) "}", 0, 4, "too large" },
        { "{" T("a", "U8", "[4.0]", 0, 4) "}", 0, 4, "whole number" },
        { "{" T("a", "U8", "[-4]", 0, 4) "}", 0, 4, "whole number" },
        { "{" T("a", "U8", "[04]", 0, 4) "}", 0, 4, "whole number" },
        { "{" T("a", "U8", "[4,]", 0, 4) "}", 0, 4, "element" },
        { "{" T("a", "U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", 0, 1) "}", 0, 1,
          "more than 32 dimensions" },
        { "{" T("a", "U8", "[4]", 0, 4) "," T("a", "U8", "[4]", 4, 8) "}", 0, 8, "tensor a stands twice" },
        { "{" T("a", "U8", "[4]", 0, 4) "," T("\\u0061", "U8", "[4]", 4, 8) "}", 0, 8, "tensor a stands twice" },
        { "{\"__metadata__\":{},\"__metadata__\":{}}", 0, 0, "__metadata__ stands twice" },
        { "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 0, 1, "dtype stands twice" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,1]}}", 0, 1, "shape stands twice" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"data_offsets\":[0,1]}}", 0, 1, "data_offsets stands twice" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 0, 0, "needs dtype, shape and data_offsets" },
        { "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 0, 1, "needs dtype, shape and data_offsets" },
        { "{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 0, 1, "needs dtype, shape and data_offsets" },
        { "{\"a\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,1]}}", 0, 1, "expected a string" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}}", 0, 1, "expected a list" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 0, 1, "data_offsets must be two" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]}}", 0, 1, "data_offsets must be two" },
        { "{\"a\":7}", 0, 0, "expected an object" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}", 0, 1, "ends too early" },
        { "{\"\xff\":{}}", 0, 0, "is not UTF-8" },
        { "\xef\xbb\xbf{}", 0, 0, "expected an object" },
        { "{\"a\x01\":{}}", 0, 0, "control character" },
        { "{\"a\\q\":{}}", 0, 0, "wrong escape" },
        { "{\"a\\ud800\":{}}", 0, 0, "wrong escape" },
        { "{\"a\\udc00\\ud800\":{}}", 0, 0, "wrong escape" },
        { "{\"a\\u00g0\":{}}", 0, 0, "wrong escape" },
        { "{\"a", 0, 0, "ends inside a string" },
        { "{\"__metadata__\":{\"a\":01}}", 0, 0, "expected , or }" },
        { "{\"__metadata__\":{\"a\":-}}", 0, 0, "wrong number" },
        { "{\"__metadata__\":{\"a\":1.}}", 0, 0, "wrong number" },
        { "{\"__metadata__\":{\"a\":nul}}", 0, 0, "expected a value" },
        { "{\"__metadata__\":{\"a\":}}", 0, 0, "expected a value" },
        { "{\"__metadata__\":[1,]}", 0, 0, "element" },
    };
    ds_err err;
    ds_st *st;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_st("bad.safetensors", cases[i].header, cases[i].len, cases[i].data);
        err = (ds_err){ 0 };
        ds_rc rc = ds_st_open(&st, in_dir("bad.safetensors"), &err);
        if (rc != DS_E_FORMAT || st || !strstr(err.msg, cases[i].message) || !strstr(err.msg, "bad.safetensors"))
            fail_msg("%s: returned %d '%s', expected '%s'", cases[i].header, rc, err.msg, cases[i].message);
    }
}

static void depth_limit(void **state)
{
    (void)state;
    char header[400];
    ds_err err;
    ds_st *st;
    for (int extra = 0; extra < 2; extra++) {
        strcpy(header, "{\"__metadata__\":");
        for (int i = 0; i < 63 + extra; i++)
            strcat(header, "[");
        for (int i = 0; i < 63 + extra; i++)
            strcat(header, "]");
        strcat(header, "}");
        put_st("deep.safetensors", header, 0, 0);
        if (extra) {
            assert_refused(ds_st_open(&st, in_dir("deep.safetensors"), &err), DS_E_FORMAT, "64 levels");
        } else {
            assert_ok(ds_st_open(&st, in_dir("deep.safetensors"), &err));
            ds_st_close(st);
        }
    }
}

static void every_truncation(void **state)
{
    (void)state;
    static const char header[] = "{" T("a", "U8", "[4]", 0, 4) "," T("b", "F32", "[2]", 4, 12) "}";
    char bytes[8 + sizeof header - 1 + 12] = { (char)(sizeof header - 1) };
    ds_err err;
    ds_st *st;
    memcpy(bytes + 8, header, sizeof header - 1);
    for (size_t n = 0; n < sizeof bytes; n++) {
        put_file("cut.safetensors", bytes, n);
        assert_int_equal(ds_st_open(&st, in_dir("cut.safetensors"), &err), DS_E_FORMAT);
    }
    put_file("cut.safetensors", bytes, sizeof bytes);
    assert_ok(ds_st_open(&st, in_dir("cut.safetensors"), &err));
    ds_st_close(st);
}

static void odd_files(void **state)
{
    (void)state;
    ds_err err;
    ds_st *st;
    assert_refused(ds_st_open(&st, in_dir("absent.safetensors"), &err), DS_E_IO, "No such file");
    assert_int_equal(mkfifo(in_dir("pipe.safetensors"), 0600), 0);
    assert_refused(ds_st_open(&st, in_dir("pipe.safetensors"), &err), DS_E_IO, "is not a regular file");
    unlink(in_dir("pipe.safetensors"));
    assert_refused(ds_st_open(&st, "/dev/zero", &err), DS_E_IO, "is not a regular file");
    assert_int_equal(mkdir(in_dir("empty"), 0700), 0);
    assert_refused(ds_st_open(&st, in_dir("empty"), &err), DS_E_IO, "holds no .safetensors file");
}

static void directory_without_index(void **state)
{
    (void)state;
    ds_err err;
    ds_st *st;
    assert_int_equal(mkdir(in_dir("plain"), 0700), 0);
    put_st("plain/x.safetensors", "{" T("a", "U8", "[1]", 0, 1) "}", 0, 1);
    put_st("plain/y.safetensors", "{" T("b", "U8", "[1]", 0, 1) "}", 0, 1);
    put_text("plain/notes.txt", "no tensors here");
    put_text("plain/.safetensors", "neither here");
    assert_ok(ds_st_open(&st, in_dir("plain"), &err));
    assert_int_equal(ds_st_shards(st), 2);
    assert_non_null(ds_st_find(st, "a"));
    assert_int_equal(ds_st_find(st, "b")->shard, 1);
    assert_non_null(strstr(ds_st_shard_path(st, 1), "y.safetensors"));
    ds_st_close(st);
    put_st("plain/z.safetensors", "{" T("a", "U8", "[1]", 0, 1) "}", 0, 1);
    assert_refused(ds_st_open(&st, in_dir("plain"), &err), DS_E_FORMAT, "tensor a is also in");
}

#define INDEX "sharded/model.safetensors.index.json"

static void sharded(void **state)
{
    (void)state;
    ds_err err;
    ds_st *st;
    size_t n;
    assert_int_equal(mkdir(in_dir("sharded"), 0700), 0);
    put_st("sharded/x.safetensors", "{" T("a", "U8", "[1]", 0, 1) "," T("both", "U8", "[1]", 1, 2) "}", 0, 2);
    put_st("sharded/y.safetensors", "{" T("both", "U8", "[1]", 0, 1) "," T("unlisted", "U8", "[1]", 1, 2) "}", 0, 2);
    put_text("sharded/other.safetensors", "not read, the index doesn't list it");
    put_text(INDEX, "{\"metadata\":{\"total_size\":-1},\"weight_map\":{\"a\":\"x.safetensors\",\"both\":\"y.safetensors\"}}");
    assert_ok(ds_st_open(&st, in_dir("sharded"), &err));
    ds_st_tensors(st, &n);
    assert_int_equal(n, 2);
    assert_int_equal(ds_st_find(st, "both")->shard, 1);
    assert_null(ds_st_find(st, "unlisted"));
    assert_int_equal(ds_st_data_bytes(st), 2);
    ds_st_close(st);

    static const struct {
        const char *index;
        ds_rc rc;
        const char *message;
    } cases[] = {
        { "{\"weight_map\":{\"a\":\"x.safetensors\",\"c\":\"x.safetensors\"}}", DS_E_FORMAT, "tensor c is not in" },
        { "{\"weight_map\":{\"a\":\"y.safetensors\"}}", DS_E_FORMAT, "tensor a is not in" },
        { "{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"x.safetensors\"}}", DS_E_FORMAT, "tensor a stands twice" },
        { "{\"weight_map\":{\"both\":\"x.safetensors\",\"both\":\"y.safetensors\"}}", DS_E_FORMAT, "tensor both stands twice" },
        { "{\"weight_map\":{\"a\":\"gone.safetensors\"}}", DS_E_IO, "gone.safetensors" },
        { "{\"weight_map\":{\"a\":\"../sharded/x.safetensors\"}}", DS_E_FORMAT, "not the name of a file in the same directory" },
        { "{\"weight_map\":{\"a\":\"/etc/passwd\"}}", DS_E_FORMAT, "not the name of a file" },
        { "{\"weight_map\":{\"a\":\"..\"}}", DS_E_FORMAT, "not the name of a file" },
        { "{\"weight_map\":{\"a\":\"\"}}", DS_E_FORMAT, "not the name of a file" },
        { "{\"weight_map\":{\"a\":\"x\\u0000\"}}", DS_E_FORMAT, "not the name of a file" },
        { "{\"weight_map\":{\"a\":7}}", DS_E_FORMAT, "expected a string" },
        { "{\"weight_map\":[]}", DS_E_FORMAT, "expected an object" },
        { "{\"weight_map\":{},\"weight_map\":{}}", DS_E_FORMAT, "weight_map stands twice" },
        { "{\"metadata\":{}}", DS_E_FORMAT, "weight_map is missing" },
        { "{\"metadata\":{},\"metadata\":{},\"weight_map\":{}}", DS_E_FORMAT, "a key that stands twice" },
        { "{\"weight_map\":{\"a\":\"x.safetensors\"", DS_E_FORMAT, "ends too early" },
        { "{\"weight_map\":{\"a\":\"other.safetensors\"}}", DS_E_FORMAT, "other.safetensors" },
        { "", DS_E_FORMAT, "ends too early" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_text(INDEX, cases[i].index);
        err = (ds_err){ 0 };
        ds_rc rc = ds_st_open(&st, in_dir("sharded"), &err);
        if (rc != cases[i].rc || !strstr(err.msg, cases[i].message))
            fail_msg("%s: returned %d '%s', expected '%s'", cases[i].index, rc, err.msg, cases[i].message);
    }
    put_text(INDEX, "{\"weight_map\":{}}");
    assert_ok(ds_st_open(&st, in_dir("sharded"), &err));
    assert_null(ds_st_find(st, "a"));
    ds_st_close(st);
}

static void a_long_path_keeps_the_message(void **state)
{
    (void)state;
    char sub[220] = "", path[320];
    ds_err err;
    ds_st *st;
    memset(sub, 'd', 200);
    assert_int_equal(mkdir(in_dir(sub), 0700), 0);
    snprintf(path, sizeof path, "%s/bad.safetensors", sub);
    put_st(path, "{" T("a", "U8", "[4]", 0, 4) "}", 0, 3);
    assert_refused(ds_st_open(&st, in_dir(path), &err), DS_E_FORMAT, "bad.safetensors: tensor a: span 0..4");
    char control[] = "ctl\n\x1b[1m.safetensors";
    put_st(control, "{}", 0, 5);
    assert_int_equal(ds_st_open(&st, in_dir(control), &err), DS_E_FORMAT);
    assert_null(strchr(err.msg, '\n'));
    assert_null(strchr(err.msg, '\x1b'));
    unlink(in_dir(control));
}

static void bad_values(void **state)
{
    (void)state;
    enum { N = 10001 };
    static unsigned char raw[N * 8 + 1], *p = raw + 1; /* misaligned on purpose */
    static const struct {
        ds_dtype t;
        uint64_t bad, good;
    } cases[] = {
        { DS_DT_F8_E4M3, 0xff, 0x7e },         { DS_DT_F8_E4M3, 0x7f, 0xfe },         { DS_DT_F8_E8M0, 0xff, 0xfe },
        { DS_DT_BF16, 0x7f80, 0x7f7f },        { DS_DT_BF16, 0xffc1, 0xff7f },        { DS_DT_F16, 0xfc00, 0x7bff },
        { DS_DT_F32, 0x7fc00000, 0x7f7fffff }, { DS_DT_F32, 0xff800000, 0x00000001 }, { DS_DT_F64, 0x7ff0000000000000, 0x7fefffffffffffff },
    };
    static const size_t at[] = { 0, 1, 4095, 4096, 8191, N - 1 };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        size_t size = ds_dtype_bytes(cases[k].t);
        for (size_t i = 0; i < N; i++)
            memcpy(p + i * size, &cases[k].good, size);
        assert_true(ds_st_first_bad(cases[k].t, p, N) == UINT64_MAX);
        for (size_t a = sizeof at / sizeof *at; a-- > 0;) {
            memcpy(p + at[a] * size, &cases[k].bad, size);
            assert_true(ds_st_first_bad(cases[k].t, p, N) == at[a]);
            assert_true(ds_st_first_bad(cases[k].t, p, at[a]) == UINT64_MAX);
        }
    }
    memset(p, 0xff, 8 * N);
    assert_true(ds_st_first_bad(DS_DT_I8, p, N) == UINT64_MAX);
    assert_true(ds_st_first_bad(DS_DT_I64, p, N) == UINT64_MAX);
    assert_true(ds_st_first_bad(DS_DT_BF16, p, 0) == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_file),    cmocka_unit_test(refused_files),
        cmocka_unit_test(depth_limit), cmocka_unit_test(every_truncation),
        cmocka_unit_test(odd_files),   cmocka_unit_test(directory_without_index),
        cmocka_unit_test(sharded),     cmocka_unit_test(a_long_path_keeps_the_message),
        cmocka_unit_test(bad_values),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
