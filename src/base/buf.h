/* A growing byte buffer, for text that is built piece by piece.
 *
 * Zero-initialised is valid and empty. A failed append sets `oom` and leaves the content as it was; later appends
 * then do nothing, so a writer can append freely and check once at the end. The content is always followed by a NUL
 * that `len` doesn't count. Threads: one owner. */
#ifndef DS_BASE_BUF_H
#define DS_BASE_BUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char *p;         /* NULL while empty and never grown */
    size_t len, cap; /* bytes */
    bool oom;
} ds_buf;

bool ds_buf_reserve(ds_buf *b, size_t more_bytes); /* room for that many more; false = oom */
bool ds_buf_put(ds_buf *b, const void *bytes, size_t n);
bool ds_buf_puts(ds_buf *b, const char *s);
bool ds_buf_putc(ds_buf *b, char c);
bool ds_buf_printf(ds_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool ds_buf_vprintf(ds_buf *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
void ds_buf_clear(ds_buf *b);            /* empty, keeps the memory, clears oom */
void ds_buf_free(ds_buf *b);             /* back to zero-initialised */
const char *ds_buf_str(const ds_buf *b); /* never NULL; valid until the next append */

#endif
