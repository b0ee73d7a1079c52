/* .npy: what we write is what NumPy would, what NumPy writes is read, and bad headers are refused. */
#include "test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "format/npy.h"

static void write_and_read_back(void **state)
{
    (void)state;
    char dir[] = "/tmp/ds_npy_XXXXXX", path[64];
    float x[3][4] = { { 1, 2, 3, 4 }, { -0.0f, 1e-40f, INFINITY, 5 }, { 6, 7, 8, 9 } };
    unsigned char head[128];
    ds_npy_writer *w;
    ds_err err;
    ds_npy a;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/f.npy", dir);
    assert_ok(ds_npy_create(&w, path, 4, &err));
    assert_ok(ds_npy_append(w, x[0], 2, &err));
    assert_int_equal(access(path, F_OK), -1); /* nothing is seen before commit */
    assert_ok(ds_npy_append(w, x[2], 1, &err));
    assert_ok(ds_npy_commit(w, &err));
    assert_ok(ds_npy_read(&a, path, &err));
    assert_int_equal(a.type, DS_NPY_F32);
    assert_int_equal(a.ndim, 2);
    assert_int_equal(a.shape[0], 3);
    assert_int_equal(a.shape[1], 4);
    assert_memory_equal(a.data, x, sizeof x);
    ds_npy_free(&a);
    int fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, head, sizeof head), 128);
    close(fd);
    assert_int_equal((head[8] | head[9] << 8) + 10, 128); /* data start on a multiple of 64 */
    assert_int_equal(head[127], '\n');
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    mode_t mask = umask(0);
    umask(mask);
    assert_int_equal(st.st_mode & 0777, 0666 & ~mask);

    /* Replaced by a second run, untouched by one that gives up; no rows at all is legal. */
    assert_ok(ds_npy_create(&w, path, 4, &err));
    assert_ok(ds_npy_append(w, x[1], 1, &err));
    ds_npy_abort(w);
    assert_ok(ds_npy_read(&a, path, &err));
    assert_int_equal(a.shape[0], 3);
    ds_npy_free(&a);
    assert_ok(ds_npy_create(&w, path, 7, &err));
    assert_ok(ds_npy_commit(w, &err));
    assert_ok(ds_npy_read(&a, path, &err));
    assert_int_equal(a.shape[0], 0);
    assert_int_equal(a.shape[1], 7);
    assert_int_equal(a.count, 0);
    ds_npy_free(&a);

    unlink(path);
    assert_int_equal(rmdir(dir), 0); /* no temporary file is left */
    ds_npy_abort(NULL);
}

static void targets_that_are_refused(void **state)
{
    (void)state;
    ds_npy_writer *w;
    ds_err err;
    assert_refused(ds_npy_create(&w, "/dev/null", 4, &err), DS_E_IO, "is not a regular file");
    assert_refused(ds_npy_create(&w, "/tmp", 4, &err), DS_E_IO, "is not a regular file");
    assert_refused(ds_npy_create(&w, "/nowhere/at/all.npy", 4, &err), DS_E_IO, "No such file");
    assert_null(w);
}

/* A version-1 file with that dictionary and n bytes of data. */
static size_t make(unsigned char *out, const char *dict, size_t n)
{
    size_t h = strlen(dict);
    memcpy(out, "\x93NUMPY\x01\x00", 8);
    out[8] = (unsigned char)h;
    out[9] = (unsigned char)(h >> 8);
    memcpy(out + 10, dict, h);
    memset(out + 10 + h, 7, n);
    return 10 + h + n;
}

static void dictionaries(void **state)
{
    (void)state;
    static const struct {
        const char *dict;
        size_t data;
        const char *message;
    } cases[] = {
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }      \n", 24, NULL },
        { "{'shape':(2,3),'fortran_order':False,'descr':\"<f8\"}", 48, NULL },
        { "{'descr': '<i4', 'fortran_order': False, 'shape': (3,)}", 12, NULL },
        { "{'descr': '<i8', 'fortran_order': False, 'shape': ()}", 8, NULL },
        { "{'descr': '|u1', 'fortran_order': False, 'shape': (0, 5)}", 0, NULL },
        { "{'descr': '|b1', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 2)}", 2, NULL },
        { "{'descr': '>f4', 'fortran_order': False, 'shape': (2,)}", 8, "descr" },
        { "{'descr': '<c8', 'fortran_order': False, 'shape': (2,)}", 16, "descr" },
        { "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", 8, "descr" },
        { "{'descr': '<f4', 'fortran_order': True, 'shape': (2,)}", 8, "fortran_order" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2)}", 8, "shape" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}", 8, "shape" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 1, 1)}", 4, "shape" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", 8, "shape" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", 8, "differ from the shape" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387905,)}", 4, "differ from the shape" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}", 8, "8 bytes of data differ from the shape" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", 5, "5 bytes of data differ" },
        { "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", 8, "once each" },
        { "{'descr': '<f4', 'fortran_order': False}", 8, "once each" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}", 8, "once each" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x", 8, "text after" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)", 8, "doesn't end" },
        { "[]", 0, "no dictionary" },
        { "", 0, "no dictionary" },
    };
    unsigned char bytes[512];
    ds_err err;
    ds_npy a;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = make(bytes, cases[i].dict, cases[i].data);
        err = (ds_err){ 0 };
        ds_rc rc = ds_npy_parse(&a, bytes, n, "x.npy", &err);
        if (cases[i].message ? rc != DS_E_FORMAT || !strstr(err.msg, cases[i].message) || a.data : rc != DS_OK)
            fail_msg("%s: returned %d '%s'", cases[i].dict, rc, err.msg);
        ds_npy_free(&a);
        for (size_t cut = 0; !cases[i].message && cut < n; cut++)
            assert_int_equal(ds_npy_parse(&a, bytes, cut, "x.npy", &err), DS_E_FORMAT);
    }
    /* Versions 2 and 3 have a 4-byte length. */
    static const char dict[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}";
    for (unsigned char v = 0; v < 5; v++) {
        memcpy(bytes, "\x93NUMPY\x02\x00\x00\x00\x00\x00", 12);
        bytes[6] = v;
        bytes[8] = sizeof dict - 1;
        memcpy(bytes + 12, dict, sizeof dict - 1);
        ds_rc rc = ds_npy_parse(&a, bytes, 12 + sizeof dict - 1 + 4, "x.npy", &err);
        assert_int_equal(rc, v == 2 || v == 3 ? DS_OK : DS_E_FORMAT);
        ds_npy_free(&a);
    }
    assert_refused(ds_npy_read(&a, "/nowhere.npy", &err), DS_E_IO, "No such file");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(write_and_read_back),
        cmocka_unit_test(targets_that_are_refused),
        cmocka_unit_test(dictionaries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
