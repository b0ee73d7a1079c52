/* Return codes and error messages.
 *
 * A function that can fail returns a ds_rc and fills an optional ds_err. The code is for the program, the message for the
 * operator: what, where, which value, in one line. The innermost function that knows the facts writes it.
 * Threads: none of this has state.   Memory: none is allocated. */
#ifndef DS_BASE_ERR_H
#define DS_BASE_ERR_H

#include <stdarg.h>
#include <stddef.h>

typedef enum {
    DS_OK = 0,
    DS_E_NOMEM = -1,    /* the heap is exhausted */
    DS_E_ARG = -2,      /* the caller's bug, or a value that the user gave */
    DS_E_FORMAT = -3,   /* outside bytes are malformed */
    DS_E_IO = -4,       /* the OS refused */
    DS_E_AGAIN = -5,    /* a bounded pool is full: retry later */
    DS_E_CANCELED = -6, /* somebody asked to stop */
    DS_E_DEVICE = -7,   /* the accelerator failed: this context is dead */
} ds_rc;

typedef struct {
    ds_rc rc;
    char msg[248]; /* NUL-terminated; longer text is cut at a UTF-8 border and ends in "..." */
} ds_err;

/* Formats into err (may be NULL) and returns rc. */
ds_rc ds_fail(ds_err *err, ds_rc rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Puts text in front of the message, at a module border ("layer 12: "). NULL err is fine. Returns err->rc, or rc if err is NULL. */
ds_rc ds_err_prefix(ds_err *err, ds_rc rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Copies n bytes of outside text (a name from a file, a user's word) into buf as one printable line: control characters, invalid UTF-8 and
 * backslashes are escaped, more than 200 characters are cut with "...". Always NUL-terminated; returns buf. cap >= 8. */
const char *ds_quote(char *buf, size_t cap, const char *text, size_t n);

#endif
