/* Making error messages; the types are in ds/err.h.
 *
 * A function that can fail returns a ds_rc and fills an optional ds_err. The code is for the program, the message
 * for the operator: what, where, which value, in one line. The innermost function that knows the facts writes it.
 * Threads: none of this has state.   Memory: none is allocated. */
#ifndef DS_BASE_ERR_H
#define DS_BASE_ERR_H

#include <stdarg.h>
#include <stddef.h>

#include <ds/err.h>

/* Formats into err (may be NULL) and returns rc. */
ds_rc ds_fail(ds_err *err, ds_rc rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Puts text in front of the message, at a module border ("layer 12: "). NULL err is fine. Returns err->rc, or rc if
 * err is NULL. */
ds_rc ds_err_prefix(ds_err *err, ds_rc rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Copies n bytes of outside text (a name from a file, a user's word) into buf as one printable line: control
 * characters, invalid UTF-8 and backslashes are escaped, more than 200 characters are cut with "...". Always
 * NUL-terminated; returns buf. cap >= 8. */
const char *ds_quote(char *buf, size_t cap, const char *text, size_t n);

#endif
