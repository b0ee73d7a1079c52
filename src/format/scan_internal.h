/* A pull reader of JSON for files with a hundred thousand members, where a document tree would cost too much memory.
 *
 * It works on the caller's own writable buffer: strings are decoded in place and stay valid as long as the buffer.
 * Every reading function returns false after the first error, whose message is then in `err`; so a caller can chain
 * them. The text must be UTF-8 (checked by scan_init). For src/format alone. */
#ifndef DS_FORMAT_SCAN_INTERNAL_H
#define DS_FORMAT_SCAN_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define SCAN_MAX_DEPTH 64

typedef struct {
    char *start, *p, *end;
    const char *what; /* in front of every message: the file */
    ds_err *err;
    ds_rc rc;
} scan;

typedef struct {
    char *s; /* decoded; not NUL-terminated */
    size_t n;
} scan_str;

bool scan_init(scan *x, char *text, size_t n, const char *what, ds_err *err);
bool scan_fail(scan *x, const char *problem); /* false */

/* Members and elements one by one: while (scan_member(&x, &first, &open, &key) && open) read one value. `first`
 * starts true; `open` becomes false at the closing bracket. */
bool scan_object(scan *x);                                         /* { */
bool scan_member(scan *x, bool *first, bool *open, scan_str *key); /* "key":  or  } */
bool scan_array(scan *x);                                          /* [ */
bool scan_element(scan *x, bool *first, bool *open);               /* before an element, or ] */
bool scan_string(scan *x, scan_str *out);
bool scan_u64(scan *x, uint64_t *out); /* digits only */
bool scan_skip(scan *x);               /* any value */
bool scan_end(scan *x);                /* only white space is left */

static inline bool scan_is(scan_str s, const char *word, size_t n)
{
    return s.n == n && __builtin_memcmp(s.s, word, n) == 0;
}
#define SCAN_IS(s, literal) scan_is((s), literal, sizeof(literal) - 1)

#endif
