/* NumPy's .npy files: writing float rows as they come, reading small arrays.
 *
 * Threads: a writer belongs to one thread.   Memory: a writer has a 64 KiB buffer; reading needs the file's size
 * twice for a moment. */
#ifndef DS_FORMAT_NPY_H
#define DS_FORMAT_NPY_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define DS_NPY_MAX_NDIM 8
#define DS_NPY_MAX_BYTES ((size_t)4 << 30)

/* ---- writing [rows, cols] f32 ---- Nothing is seen under `path` until commit, which replaces what was there at
 * once. A program that dies in between leaves nothing where the file system has unnamed files, else a file with
 * ".tmp." in its name. */
typedef struct ds_npy_writer ds_npy_writer;

/* On failure *out is NULL. DS_E_IO (also: path is there and no regular file), DS_E_NOMEM. */
ds_rc ds_npy_create(ds_npy_writer **out, const char *path, uint64_t cols, ds_err *err);
ds_rc ds_npy_append(ds_npy_writer *w, const float *rows, uint64_t n_rows, ds_err *err);
ds_rc ds_npy_commit(ds_npy_writer *w, ds_err *err); /* frees w, whatever it returns */
void ds_npy_abort(ds_npy_writer *w);                /* frees w and forgets its bytes; NULL is fine */

/* ---- reading ---- */
typedef enum { DS_NPY_F32, DS_NPY_F64, DS_NPY_I32, DS_NPY_I64, DS_NPY_U8, DS_NPY_BOOL } ds_npy_type;

typedef struct {
    ds_npy_type type;
    uint32_t ndim; /* 0: a scalar */
    uint64_t shape[DS_NPY_MAX_NDIM];
    uint64_t count; /* elements */
    size_t element_bytes;
    void *data; /* C order, 64-byte aligned; owned */
} ds_npy;

/* Little-endian, C order, exactly as many bytes as the shape says. On failure *out is zero. DS_E_FORMAT, DS_E_IO,
 * DS_E_NOMEM. */
ds_rc ds_npy_read(ds_npy *out, const char *path, ds_err *err);
ds_rc ds_npy_parse(ds_npy *out, const void *bytes, size_t n, const char *name, ds_err *err);
void ds_npy_free(ds_npy *a); /* back to zero */

#endif
