#include "format/npy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/file.h"

static const char magic[6] = "\x93NUMPY";

/* ---- writing ---- */

enum { HEADER_BYTES = 128 }; /* preamble and dictionary; room for two 20-digit numbers */

struct ds_npy_writer {
    FILE *f;
    char *path;
    char *temp; /* name of the temporary file; "" while it has none */
    uint64_t rows, cols;
    char label[112];
};

static ds_rc io_error(const ds_npy_writer *w, ds_err *err)
{
    return ds_fail(err, DS_E_IO, "%s: %s", w->label, strerror(errno));
}

/* An unnamed file in the target's directory, or where those aren't supported one with a temporary name. -1 on
 * failure. */
static int open_temp(ds_npy_writer *w)
{
    char *slash = strrchr(w->path, '/');
    int fd;
    mode_t mask;

    if (slash) {
        *slash = '\0';
        fd = open(slash == w->path ? "/" : w->path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
        *slash = '/';
    } else {
        fd = open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    }
    if (fd != -1) {
        w->temp[0] = '\0';
        return fd;
    }
    fd = mkostemp(w->temp, O_CLOEXEC);
    if (fd == -1) {
        w->temp[0] = '\0';
        return -1;
    }
    mask = umask(0); /* mkostemp gives 0600; the result should have the user's usual mode */
    umask(mask);
    if (fchmod(fd, 0666 & ~mask) == -1) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool put_header(ds_npy_writer *w)
{
    char h[HEADER_BYTES + 1];
    int n = snprintf(h + 10, sizeof h - 10, "{'descr': '<f4', 'fortran_order': False, 'shape': (%llu, %llu), }",
                     (unsigned long long)w->rows, (unsigned long long)w->cols);
    memcpy(h, magic, 6);
    h[6] = 1;
    h[7] = 0;
    h[8] = HEADER_BYTES - 10;
    h[9] = 0;
    memset(h + 10 + n, ' ', (size_t)(HEADER_BYTES - 10 - n));
    h[HEADER_BYTES - 1] = '\n';
    return fwrite(h, 1, HEADER_BYTES, w->f) == HEADER_BYTES;
}

ds_rc ds_npy_create(ds_npy_writer **out, const char *path, uint64_t cols, ds_err *err)
{
    ds_npy_writer *w = calloc(1, sizeof *w);
    struct stat st;
    ds_rc rc;
    int fd;

    *out = NULL;
    if (!w)
        return ds_fail(err, DS_E_NOMEM, "npy: out of memory");
    ds_file_label(w->label, sizeof w->label, path);
    w->cols = cols;
    w->path = strdup(path);
    if (!w->path || asprintf(&w->temp, "%s.tmp.XXXXXX", path) < 0) {
        w->temp = NULL;
        rc = ds_fail(err, DS_E_NOMEM, "%s: out of memory", w->label);
        goto fail;
    }
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        w->temp[0] = '\0';
        rc = ds_fail(err, DS_E_IO, "%s: is there and is not a regular file", w->label);
        goto fail;
    }
    fd = open_temp(w);
    w->f = fd == -1 ? NULL : fdopen(fd, "wb");
    if (!w->f) {
        rc = io_error(w, err);
        if (fd != -1)
            close(fd);
        goto fail;
    }
    setvbuf(w->f, NULL, _IOFBF, 65536);
    if (!put_header(w)) { /* written again by commit, when the rows are known */
        rc = io_error(w, err);
        goto fail;
    }
    *out = w;
    return DS_OK;
fail:
    ds_npy_abort(w);
    return rc;
}

ds_rc ds_npy_append(ds_npy_writer *w, const float *rows, uint64_t n_rows, ds_err *err)
{
    size_t n = (size_t)(n_rows * w->cols);

    if (fwrite(rows, sizeof *rows, n, w->f) != n)
        return io_error(w, err);
    w->rows += n_rows;
    return DS_OK;
}

/* Gives an unnamed file a temporary name next to its final one. */
static bool name_it(ds_npy_writer *w)
{
    char fd_path[40];

    snprintf(fd_path, sizeof fd_path, "/proc/self/fd/%d", fileno(w->f));
    for (unsigned i = 0; i < 100; i++) {
        sprintf(w->temp, "%s.tmp.%06x", w->path, ((unsigned)getpid() * 100u + i) & 0xffffffu); /* as long as the name with XXXXXX */
        if (linkat(AT_FDCWD, fd_path, AT_FDCWD, w->temp, AT_SYMLINK_FOLLOW) == 0)
            return true;
        if (errno != EEXIST)
            break;
    }
    w->temp[0] = '\0';
    return false;
}

ds_rc ds_npy_commit(ds_npy_writer *w, ds_err *err)
{
    ds_rc rc = DS_OK;

    if (fseek(w->f, 0, SEEK_SET) == -1 || !put_header(w) || fflush(w->f) != 0 || (!w->temp[0] && !name_it(w)) ||
        rename(w->temp, w->path) == -1)
        rc = io_error(w, err);
    else
        w->temp[0] = '\0';
    ds_npy_abort(w);
    return rc;
}

void ds_npy_abort(ds_npy_writer *w)
{
    if (!w)
        return;
    if (w->f)
        fclose(w->f);
    if (w->temp && w->temp[0])
        unlink(w->temp);
    free(w->temp);
    free(w->path);
    free(w);
}

/* ---- reading ---- */

typedef struct {
    const char *p, *end;
} text;

static void skip_space(text *t)
{
    while (t->p < t->end && (*t->p == ' ' || *t->p == '\n' || *t->p == '\t'))
        t->p++;
}

static bool take(text *t, char c)
{
    skip_space(t);
    if (t->p == t->end || *t->p != c)
        return false;
    t->p++;
    return true;
}

static bool take_word(text *t, const char *word)
{
    size_t n = strlen(word);
    skip_space(t);
    if ((size_t)(t->end - t->p) < n || memcmp(t->p, word, n) != 0)
        return false;
    t->p += n;
    return true;
}

static bool take_type(text *t, ds_npy *a)
{
    static const struct {
        const char *descr;
        ds_npy_type type;
        size_t bytes;
    } types[] = {
        { "<f4", DS_NPY_F32, 4 }, { "<f8", DS_NPY_F64, 8 }, { "<i4", DS_NPY_I32, 4 },
        { "<i8", DS_NPY_I64, 8 }, { "|u1", DS_NPY_U8, 1 },  { "|b1", DS_NPY_BOOL, 1 },
    };
    char quote = take(t, '\'') ? '\'' : take(t, '"') ? '"' : '\0';
    if (!quote)
        return false;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (take_word(t, types[i].descr)) {
            a->type = types[i].type;
            a->element_bytes = types[i].bytes;
            return take(t, quote);
        }
    return false;
}

static bool take_shape(text *t, ds_npy *a)
{
    if (!take(t, '('))
        return false;
    while (!take(t, ')')) {
        uint64_t v = 0;
        const char *from = t->p;
        if (a->ndim == DS_NPY_MAX_NDIM)
            return false;
        for (; t->p < t->end && *t->p >= '0' && *t->p <= '9'; t->p++)
            if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, (uint64_t)(*t->p - '0'), &v))
                return false;
        if (t->p == from)
            return false;
        a->shape[a->ndim++] = v;
        if (!take(t, ',')) {
            if (a->ndim < 2) /* one dimension is written (n,) */
                return false;
            return take(t, ')');
        }
    }
    return true;
}

/* {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } in any order of keys. NULL, or what is wrong. */
static const char *read_dictionary(text *t, ds_npy *a)
{
    bool descr = false, order = false, shape = false;

    if (!take(t, '{'))
        return "the header is no dictionary";
    while (!take(t, '}')) {
        if (!descr && (take_word(t, "'descr'") || take_word(t, "\"descr\""))) {
            descr = true;
            if (!take(t, ':') || !take_type(t, a))
                return "descr must be <f4, <f8, <i4, <i8, |u1 or |b1";
        } else if (!order && (take_word(t, "'fortran_order'") || take_word(t, "\"fortran_order\""))) {
            order = true;
            if (!take(t, ':') || !take_word(t, "False"))
                return "fortran_order must be False";
        } else if (!shape && (take_word(t, "'shape'") || take_word(t, "\"shape\""))) {
            shape = true;
            if (!take(t, ':') || !take_shape(t, a))
                return "shape must be a tuple of at most 8 whole numbers";
        } else {
            return "the header needs descr, fortran_order and shape, once each";
        }
        if (!take(t, ',')) {
            if (!take(t, '}'))
                return "the header's dictionary doesn't end";
            break;
        }
    }
    skip_space(t);
    if (!descr || !order || !shape)
        return "the header needs descr, fortran_order and shape, once each";
    return t->p == t->end ? NULL : "text after the header's dictionary";
}

static bool element_count(const ds_npy *a, uint64_t *count)
{
    uint64_t n = 1;
    bool empty = false;

    for (uint32_t i = 0; i < a->ndim; i++)
        empty = empty || a->shape[i] == 0;
    for (uint32_t i = 0; i < a->ndim && !empty; i++)
        if (__builtin_mul_overflow(n, a->shape[i], &n))
            return false;
    *count = empty ? 0 : n;
    return true;
}

ds_rc ds_npy_parse(ds_npy *out, const void *bytes, size_t n, const char *name, ds_err *err)
{
    const unsigned char *b = bytes;
    ds_npy a = { 0 };
    char file[112];
    const char *wrong;
    size_t at, header;

    memset(out, 0, sizeof *out);
    ds_file_label(file, sizeof file, name);
    if (n < 10 || memcmp(b, magic, 6) != 0)
        return ds_fail(err, DS_E_FORMAT, "%s: is not a .npy file", file);
    if (b[6] < 1 || b[6] > 3)
        return ds_fail(err, DS_E_FORMAT, "%s: .npy version %u; 1 to 3 are supported", file, b[6]);
    at = b[6] == 1 ? 10 : 12;
    if (n < at)
        return ds_fail(err, DS_E_FORMAT, "%s: ends inside the header", file);
    header = b[8] | (size_t)b[9] << 8;
    if (b[6] != 1)
        header |= (size_t)b[10] << 16 | (size_t)b[11] << 24;
    if (header > n - at)
        return ds_fail(err, DS_E_FORMAT, "%s: a header of %zu bytes in a file of %zu", file, header, n);
    text t = { (const char *)b + at, (const char *)b + at + header };
    wrong = read_dictionary(&t, &a);
    if (wrong)
        return ds_fail(err, DS_E_FORMAT, "%s: %s", file, wrong);
    at += header;
    if (!element_count(&a, &a.count) || a.count > (n - at) / a.element_bytes || a.count * a.element_bytes != n - at)
        return ds_fail(err, DS_E_FORMAT, "%s: %zu bytes of data differ from the shape", file, n - at);
    a.data = ds_calloc_aligned((size_t)a.count, a.element_bytes);
    if (!a.data)
        return ds_fail(err, DS_E_NOMEM, "%s: out of memory", file);
    memcpy(a.data, b + at, n - at);
    *out = a;
    return DS_OK;
}

ds_rc ds_npy_read(ds_npy *out, const char *path, ds_err *err)
{
    char *bytes;
    size_t n;
    ds_rc rc;

    memset(out, 0, sizeof *out);
    rc = ds_file_read(&bytes, &n, path, DS_NPY_MAX_BYTES, err);
    if (rc != DS_OK)
        return rc;
    rc = ds_npy_parse(out, bytes, n, path, err);
    free(bytes);
    return rc;
}

void ds_npy_free(ds_npy *a)
{
    free(a->data);
    memset(a, 0, sizeof *a);
}
