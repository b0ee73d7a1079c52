/* A pull reader for large JSON files whose shape is known: the caller asks for what it expects and nothing is built
 * in between.
 *
 * As strict as base/json.h (RFC 8259, valid UTF-8 without byte order mark, no lone surrogates, bounded depth,
 * nothing after the value), and a key that stands twice in one object is refused. Use base/json.h unless the file
 * has hundreds of thousands of values. The first failure fills the error with "line L, column C: what"; every later
 * call fails too, so a caller may check once in a while. Threads: one owner.   Memory: scratch for escaped strings
 * and for the keys of the open objects. Time is linear. */
#ifndef DS_TOKEN_JSON_PULL_H
#define DS_TOKEN_JSON_PULL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

#define DS_PULL_MAX_DEPTH 64

typedef struct {
    const char *start, *p, *end;
    ds_err *err;    /* may be NULL */
    ds_rc rc;       /* of the first failure */
    uint32_t depth; /* open arrays and objects */
    struct {
        bool first; /* nothing read from it yet */
        bool object;
        bool own_keys;      /* the caller finds duplicate keys itself */
        uint32_t keys_mark; /* of the keys below this object */
        size_t text_mark;
    } open[DS_PULL_MAX_DEPTH];
    struct ds_pull_key {
        const char *p; /* into the input; NULL: at `off` of key_text */
        size_t off, n;
    } * keys; /* of all open objects, innermost last */
    uint32_t n_keys, cap_keys;
    ds_buf key_text; /* decoded keys that had escapes */
    ds_buf scratch;  /* the last string that had escapes */
} ds_pull;

typedef struct {
    const char *p; /* not terminated; valid until the next string or key is read */
    size_t n;
} ds_span;

/* False: a byte order mark. ds_pull_fini is legal in any case. */
bool ds_pull_init(ds_pull *j, const char *text, size_t n, ds_err *err);
void ds_pull_fini(ds_pull *j);

/* First character of the next value: one of { [ " t f n, '0' for a number; 0 on failure. Consumes white space only. */
char ds_pull_peek(ds_pull *j);

/* bool ok = ds_pull_object(j, false); while (ds_pull_key(j, &key)) { read one value } if (j->rc) … */
bool ds_pull_object(ds_pull *j, bool own_keys);
bool ds_pull_key(ds_pull *j, ds_span *key); /* false: the object has ended, or failure */
bool ds_pull_array(ds_pull *j);
bool ds_pull_item(ds_pull *j); /* false: the array has ended, or failure */

bool ds_pull_string(ds_pull *j, ds_span *s);
bool ds_pull_bool(ds_pull *j, bool *out);
bool ds_pull_null(ds_pull *j);                             /* consumes a null if there is one; false otherwise, which is no failure */
bool ds_pull_u32(ds_pull *j, uint32_t max, uint32_t *out); /* an integer 0 .. max */
bool ds_pull_skip(ds_pull *j);                             /* any value, fully checked */
bool ds_pull_end(ds_pull *j);                              /* nothing but white space is left */

/* Refuses what was just read: "line L, column C: …" at the current place. Returns false. */
bool ds_pull_fail(ds_pull *j, ds_rc rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static inline bool ds_span_is(ds_span s, const char *word)
{
    return s.n == __builtin_strlen(word) && __builtin_memcmp(s.p, word, s.n) == 0;
}

#endif
