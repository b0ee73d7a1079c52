/* Reading small model files and writing whole files safely. Threads: any. */
#ifndef DS_BASE_FILE_H
#define DS_BASE_FILE_H

#include <stdint.h>
#include <stddef.h>

#include "base/err.h"

/* Opens a regular file for reading; anything else (directory, pipe, device) is refused without blocking. *fd is -1
 * on failure. */
ds_rc ds_file_open(int *fd, uint64_t *bytes, const char *path, ds_err *err);

/* The whole content of a regular file of at most max_bytes, followed by a NUL that *n doesn't count; free() it. On
 * failure *out is NULL. */
ds_rc ds_file_read(char **out, size_t *n, const char *path, size_t max_bytes, ds_err *err);

/* Exactly n bytes at an offset; a file that ends earlier is DS_E_FORMAT. */
ds_rc ds_file_pread(int fd, void *dst, size_t n, uint64_t offset, const char *path, ds_err *err);

/* All n bytes, whatever the OS takes at a time. */
ds_rc ds_file_write(int fd, const void *src, size_t n, const char *path, ds_err *err);

/* What messages call a file: its path, or from 90 bytes on its last part, on one printable line. Returns buf. */
const char *ds_file_label(char *buf, size_t cap, const char *path);

#endif
