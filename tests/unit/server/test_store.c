#include "test.h"

#include <sys/stat.h>
#include <unistd.h>

#include "server/store.h"

static void put(ds_store *s, const char *tenant, const char *id, const char *body, const char *items, size_t input, int64_t now)
{
    ds_err err = { 0 };
    ds_store_record r = { .tenant = tenant,
                          .id = id,
                          .body = body,
                          .body_n = strlen(body),
                          .items = items,
                          .items_n = strlen(items),
                          .n_input_bytes = input,
                          .now_s = now };
    assert_ok(ds_store_put(s, &r, &err));
}

static bool has(ds_store *s, const char *tenant, const char *id, ds_store_part part, int64_t now, const char *want)
{
    char *text;
    size_t n;
    ds_err err = { 0 };

    assert_ok(ds_store_get(s, tenant, id, part, now, &text, &n, &err));
    bool there = text != NULL;
    if (there && want)
        assert_string_equal(text, want);
    free(text);
    return there;
}

static void records(void **state)
{
    char path[] = "/tmp/ds-store-XXXXXX", wal[64];
    ds_store *s;
    ds_err err = { 0 };
    uint64_t n, bytes;

    (void)state;
    close(mkstemp(path));
    for (int file = 0; file < 2; file++) {
        assert_ok(ds_store_open(&s, file ? path : NULL, 100, 1 << 20, &err));
        put(s, "t", "r1", "{\"b\":1}", "{\"items\":[{\"i\":1},{\"o\":1}]}", 7, 1000);
        assert_true(has(s, "t", "r1", DS_STORE_BODY, 1000, "{\"b\":1}"));
        assert_true(has(s, "t", "r1", DS_STORE_ITEMS, 1000, "{\"items\":[{\"i\":1},{\"o\":1}]}"));
        assert_true(has(s, "t", "r1", DS_STORE_INPUT, 1000, "{\"i\":1}"));
        assert_false(has(s, "u", "r1", DS_STORE_BODY, 1000, NULL));
        assert_false(ds_store_remove(s, "u", "r1", 1000));
        assert_false(has(s, "t", "r1", DS_STORE_BODY, 1100, NULL)); /* its time is over */
        put(s, "t", "r2", "{}", "{\"items\":[]}", 0, 1050);
        ds_store_sweep(s, 1120);
        ds_store_usage(s, &n, &bytes);
        assert_int_equal(n, 1);
        assert_true(has(s, "t", "r2", DS_STORE_INPUT, 1120, ""));
        if (file) { /* what was stored is there after a restart */
            ds_store_close(s);
            assert_ok(ds_store_open(&s, path, 100, 1 << 20, &err));
            assert_true(has(s, "t", "r2", DS_STORE_BODY, 1120, "{}"));
        }
        assert_true(ds_store_remove(s, "t", "r2", 1120));
        assert_false(ds_store_remove(s, "t", "r2", 1120));
        ds_store_usage(s, &n, &bytes);
        assert_int_equal(bytes, 0);
        ds_store_close(s);
    }
    FILE *f = fopen(path, "w"); /* no database */
    fputs("something else entirely, and longer than a header of SQLite's, which has a hundred bytes, so that it is read and refused", f);
    fclose(f);
    assert_refused(ds_store_open(&s, path, 100, 1 << 20, &err), DS_E_FORMAT, path);
    unlink(path);
    for (int i = 0; i < 2; i++) {
        snprintf(wal, sizeof wal, "%s%s", path, i ? "-wal" : "-shm");
        unlink(wal);
    }
}

static void files_are_for_their_owner(void **state)
{
    char dir[] = "/tmp/ds-store-XXXXXX", path[64], missing[64];
    static const char *const ends[] = { "", "-wal", "-shm" };
    struct stat st;
    ds_store *s;
    ds_err err = { 0 };

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(missing, sizeof missing, "%s/none/r.db", dir);
    assert_refused(ds_store_open(&s, missing, 100, 1 << 20, &err), DS_E_IO, missing);
    assert_refused(ds_store_open(&s, dir, 100, 1 << 20, &err), DS_E_IO, dir);
    snprintf(path, sizeof path, "%s/r.db", dir);
    assert_ok(ds_store_open(&s, path, 100, 1 << 20, &err));
    put(s, "t", "r1", "{}", "{\"items\":[]}", 0, 1);
    for (int i = 0; i < 3; i++) {
        char name[80];
        snprintf(name, sizeof name, "%s%s", path, ends[i]);
        assert_int_equal(stat(name, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
    }
    ds_store_close(s);
    unlink(path);
    rmdir(dir);
}

static void bound(void **state)
{
    static char body[2001];
    ds_store *s;
    ds_err err = { 0 };
    uint64_t n, bytes;
    char id[16];

    (void)state;
    memset(body, 'x', 2000);
    assert_ok(ds_store_open(&s, NULL, 100, 10000, &err));
    for (int i = 0; i < 20; i++) {
        snprintf(id, sizeof id, "r%d", i);
        put(s, "t", id, body, "{\"items\":[]}", 0, 1);
        ds_store_usage(s, &n, &bytes);
        assert_true(bytes <= 10000);
    }
    assert_int_equal(n, 4);
    assert_true(has(s, "t", "r19", DS_STORE_BODY, 1, NULL) && has(s, "t", "r16", DS_STORE_BODY, 1, NULL) &&
                !has(s, "t", "r15", DS_STORE_BODY, 1, NULL));
    ds_store_record big = { .tenant = "t", .id = "big", .body = body, .body_n = 20000, .items = "", .now_s = 1 };
    assert_refused(ds_store_put(s, &big, &err), DS_E_AGAIN, "above the bound");
    ds_store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(records), cmocka_unit_test(files_are_for_their_owner), cmocka_unit_test(bound) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
