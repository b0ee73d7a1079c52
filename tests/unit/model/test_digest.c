/* The digest of a checkpoint: what changes it and what doesn't, what is remembered and when that is believed. Its
 * value is checked against another derivation in tests/e2e/test_kv_formats.py. */
#include "golden.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "fault.h"

static const char *const files[] = { "config.json",
                                     "tokenizer.json",
                                     "model.safetensors.index.json",
                                     "model-00001-of-00003.safetensors",
                                     "model-00002-of-00003.safetensors",
                                     "model-00003-of-00003.safetensors" };
enum { N_FILES = sizeof files / sizeof *files };

static char base[] = "/tmp/ds-digest-XXXXXX", dir[64], copy[64], cache[64];

static char *path_of(const char *in, const char *name)
{
    static char path[600];

    snprintf(path, sizeof path, "%s/%s", in, name);
    return path;
}

static void write_file(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void copy_model(const char *to)
{
    ds_err err;

    mkdir(to, 0700);
    for (size_t i = 0; i < N_FILES; i++) {
        char *text;
        size_t n;
        assert_ok(ds_file_read(&text, &n, path_of(DS_TEST_ROOT "/tests/golden/tiny-a/model", files[i]), 1 << 24, &err));
        write_file(path_of(to, files[i]), text, n);
        free(text);
    }
}

/* XORs a byte; from the end when `at` is negative. */
static void flip(const char *path, off_t at)
{
    int fd = open(path, O_RDWR);
    uint8_t b;

    assert_true(fd != -1);
    if (at < 0)
        at += lseek(fd, 0, SEEK_END);
    assert_int_equal(pread(fd, &b, 1, at), 1);
    b ^= 1;
    assert_int_equal(pwrite(fd, &b, 1, at), 1);
    close(fd);
}

static void settle(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL); /* longer than the tick of file times */
}

static ds_rc digest_of(uint8_t out[32], const char *of, ds_model_digest_opts o, ds_model_digest_info *info, ds_err *err)
{
    ds_model *m;
    ds_rc rc = ds_model_open(&m, of, &(ds_model_opts){ .no_data = true }, err);

    if (rc != DS_OK)
        return rc;
    if (!o.settle_ms)
        o.settle_ms = 1;
    rc = ds_model_digest(out, m, of, &o, info, err);
    ds_model_close(m);
    return rc;
}

static const ds_model_digest_opts by_samples = { .whole_file_bytes = 600 << 10, .whole_tensor_bytes = 64 << 10 };

static void copies_are_equal(void **state)
{
    uint8_t a[32], b[32];
    ds_model_digest_info info;
    ds_err err;

    (void)state;
    for (int s = 0; s < 2; s++) {
        ds_model_digest_opts o = s ? by_samples : (ds_model_digest_opts){ 0 };
        assert_ok(digest_of(a, dir, o, &info, &err));
        assert_true(info.read_bytes > 1 << 20 && !info.remembered);
        assert_ok(digest_of(b, copy, o, &info, &err));
        assert_memory_equal(a, b, 32);
    }
}

/* One bit of anything that is read. */
static void any_change_is_seen(void **state)
{
    static const struct {
        int file;
        off_t at;
    } changes[] = { { 1, 40 }, { 3, -1 }, { 4, -1 }, { 5, -1 }, { 3, 400000 } };
    uint8_t d[1 + sizeof changes / sizeof *changes][32];
    ds_model_digest_info info;
    ds_err err;
    size_t n = 0;

    (void)state;
    assert_ok(digest_of(d[n++], copy, (ds_model_digest_opts){ 0 }, &info, &err));
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        flip(path_of(copy, files[changes[i].file]), changes[i].at);
        assert_ok(digest_of(d[n++], copy, (ds_model_digest_opts){ 0 }, &info, &err));
        flip(path_of(copy, files[changes[i].file]), changes[i].at);
    }
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            assert_memory_not_equal(d[i], d[j], 32);
    assert_ok(digest_of(d[1], copy, (ds_model_digest_opts){ 0 }, &info, &err));
    assert_memory_equal(d[1], d[0], 32);
}

/* The same bits whoever hashes what. */
static void any_team(void **state)
{
    uint8_t a[32], b[32];
    ds_model_digest_info info;
    ds_err err;

    (void)state;
    for (uint32_t threads = 1; threads <= 5; threads += 2) {
        ds_model_digest_opts o = by_samples;
        ds_pool *pool;
        assert_ok(digest_of(a, dir, by_samples, &info, &err));
        assert_ok(ds_pool_create(&pool, &(ds_pool_opts){ .n_threads = threads }, &err));
        o.pool = pool;
        assert_ok(digest_of(b, dir, o, &info, &err));
        ds_pool_destroy(pool);
        assert_memory_equal(a, b, 32);
    }
}

/* No tokenizer and no index: other content, not a failure. */
static void files_that_may_be_missing(void **state)
{
    uint8_t a[32], b[32], c[32];
    ds_model_digest_info info;
    ds_err err;

    (void)state;
    assert_ok(digest_of(a, copy, (ds_model_digest_opts){ 0 }, &info, &err));
    assert_int_equal(unlink(path_of(copy, "tokenizer.json")), 0);
    assert_ok(digest_of(b, copy, (ds_model_digest_opts){ 0 }, &info, &err));
    assert_int_equal(unlink(path_of(copy, "model.safetensors.index.json")), 0);
    assert_ok(digest_of(c, copy, (ds_model_digest_opts){ 0 }, &info, &err));
    assert_memory_not_equal(a, b, 32);
    assert_memory_not_equal(a, c, 32);
    assert_memory_not_equal(b, c, 32);
    copy_model(copy);
}

static char *record_of(const char *of)
{
    static char path[200];
    char hex[65], real[4096];
    uint8_t h[32];

    assert_non_null(realpath(of, real));
    ds_sha256(h, real, strlen(real));
    ds_hex(hex, h, 32);
    snprintf(path, sizeof path, "%s/model-%.16s", cache, hex);
    return path;
}

static void remembered_until_something_changes(void **state)
{
    ds_model_digest_opts o = { .cache_dir = cache };
    ds_model_digest_info info;
    struct timespec old[2];
    struct stat st;
    uint8_t a[32], b[32];
    ds_err err;

    (void)state;
    settle();
    assert_ok(digest_of(a, copy, o, &info, &err));
    assert_true(!info.remembered && info.unkept.rc == DS_OK);
    assert_ok(digest_of(b, copy, o, &info, &err));
    assert_true(info.remembered && info.read_bytes == 0);
    assert_memory_equal(a, b, 32);

    /* changed in place, with its size and its time set back */
    assert_int_equal(stat(path_of(copy, files[4]), &st), 0);
    flip(path_of(copy, files[4]), -1);
    old[0] = st.st_atim;
    old[1] = st.st_mtim;
    assert_int_equal(utimensat(AT_FDCWD, path_of(copy, files[4]), old, 0), 0);
    settle();
    assert_ok(digest_of(b, copy, o, &info, &err));
    assert_false(info.remembered);
    assert_memory_not_equal(a, b, 32);
    flip(path_of(copy, files[4]), -1);

    /* another rule */
    settle();
    assert_ok(digest_of(b, copy, o, &info, &err));
    o.whole_file_bytes = by_samples.whole_file_bytes;
    assert_ok(digest_of(b, copy, o, &info, &err));
    assert_false(info.remembered);
    assert_memory_not_equal(a, b, 32);
}

static void changed_just_now_is_not_remembered(void **state)
{
    ds_model_digest_opts o = { .cache_dir = cache, .settle_ms = 60000 };
    ds_model_digest_info info;
    uint8_t a[32];
    ds_err err;

    (void)state;
    unlink(record_of(copy));
    for (int i = 0; i < 2; i++) {
        assert_ok(digest_of(a, copy, o, &info, &err));
        assert_false(info.remembered);
    }
    assert_int_equal(access(record_of(copy), F_OK), -1);
}

/* Whatever stands in the record: it is whole and of these files, or it isn't used. */
static void damaged_records_are_not_believed(void **state)
{
    ds_model_digest_opts o = { .cache_dir = cache };
    ds_model_digest_info info;
    uint8_t a[32], b[32];
    char *text, bad[200];
    size_t n;
    ds_err err;

    (void)state;
    settle();
    assert_ok(digest_of(a, copy, o, &info, &err));
    assert_ok(ds_file_read(&text, &n, record_of(copy), 1000, &err));
    assert_int_equal(n, 130);
    for (size_t i = 0; i < 8; i++) {
        size_t size = n;
        memcpy(bad, text, n);
        switch (i) {
        case 0:
            size = 0;
            break;
        case 1:
            size = n - 1;
            break;
        case 2:
            bad[size++] = '\n';
            break;
        case 3:
            bad[0] = bad[0] == '0' ? '1' : '0';
            break;
        case 4:
            bad[64] = '\t';
            break;
        case 5:
            bad[65] = 'g';
            break;
        case 6:
            bad[128] = '\0';
            break;
        default:
            memset(bad, 0, size);
            break;
        }
        write_file(record_of(copy), bad, size);
        assert_ok(digest_of(b, copy, o, &info, &err));
        assert_false(info.remembered);
        assert_memory_equal(a, b, 32);
    }
    assert_ok(digest_of(b, copy, o, &info, &err));
    assert_true(info.remembered);
    free(text);
}

static void a_cache_that_cannot_be_written(void **state)
{
    ds_model_digest_opts o = { .cache_dir = "/dev/null/cache" };
    ds_model_digest_info info;
    uint8_t a[32], b[32];
    ds_err err;

    (void)state;
    settle();
    assert_ok(digest_of(a, copy, o, &info, &err));
    assert_int_equal(info.unkept.rc, DS_E_IO);
    assert_non_null(strstr(info.unkept.msg, "/dev/null/cache/model-"));
    o.cache_dir = NULL;
    assert_ok(digest_of(b, copy, o, &info, &err));
    assert_memory_equal(a, b, 32);
}

static void refused(void **state)
{
    ds_model_digest_info info;
    uint8_t a[32];
    ds_model *m;
    ds_err err;

    (void)state;
    assert_refused(digest_of(a, copy, (ds_model_digest_opts){ .whole_tensor_bytes = 5000 }, &info, &err), DS_E_ARG, "65536..1048576");
    assert_ok(ds_model_open(&m, copy, &(ds_model_opts){ .no_data = true }, &err));
    assert_int_equal(unlink(path_of(copy, files[4])), 0);
    assert_refused(ds_model_digest(a, m, copy, NULL, &info, &err), DS_E_IO, files[4]);
    assert_int_equal(mkdir(path_of(copy, files[4]), 0700), 0);
    assert_refused(ds_model_digest(a, m, copy, NULL, &info, &err), DS_E_IO, files[4]);
    assert_int_equal(rmdir(path_of(copy, files[4])), 0);
    ds_model_close(m);
    copy_model(copy);
}

static ds_rc attempt(void *ctx, ds_err *err)
{
    ds_model_digest_info info;
    uint8_t a[32];
    ds_model_digest_opts o = by_samples;

    return ds_model_digest(a, ctx, dir, &o, &info, err);
}

static void allocations_fail(void **state)
{
    ds_model *m;
    ds_err err;

    (void)state;
    assert_ok(ds_model_open(&m, dir, &(ds_model_opts){ .no_data = true }, &err));
    assert_true(fault_every_allocation(attempt, m) > 8);
    ds_model_close(m);
}

static int begin(void **state)
{
    (void)state;
    if (!mkdtemp(base))
        return -1;
    snprintf(dir, sizeof dir, "%s/a", base);
    snprintf(copy, sizeof copy, "%s/b", base);
    snprintf(cache, sizeof cache, "%s/cache/deep/er", base);
    copy_model(dir);
    copy_model(copy);
    return 0;
}

static int end(void **state)
{
    char command[100];

    (void)state;
    snprintf(command, sizeof command, "rm -r %s", base);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_are_equal),
        cmocka_unit_test(any_change_is_seen),
        cmocka_unit_test(any_team),
        cmocka_unit_test(files_that_may_be_missing),
        cmocka_unit_test(remembered_until_something_changes),
        cmocka_unit_test(changed_just_now_is_not_remembered),
        cmocka_unit_test(damaged_records_are_not_believed),
        cmocka_unit_test(a_cache_that_cannot_be_written),
        cmocka_unit_test(refused),
        cmocka_unit_test(allocations_fail),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
