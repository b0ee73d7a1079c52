/* JSON: a strict reader that keeps number text, key order and duplicates' meaning, and a writer. (recipe spec 4.1)
 *
 * Input must be UTF-8 without byte order mark. Refused with line and column: anything that RFC 8259 doesn't allow,
 * invalid UTF-8, lone surrogate escapes, NaN and Infinity, nesting beyond max_depth, text after the value. \u0000
 * inside strings is legal. Numbers keep their text; nothing is rounded until somebody asks. Threads: a document is
 * immutable after parsing. Memory: a document is a few blocks, freed at once: the input's length plus 48 bytes a
 * value. A value can be two bytes of input ("0,"), so a reader of outside bytes bounds n, or the values by
 * max_values. Time: linear, whatever the keys; objects with many keys are checked for duplicates by a keyed hash. */
#ifndef DS_BASE_JSON_H
#define DS_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

typedef enum {
    DS_JSON_NULL,
    DS_JSON_FALSE,
    DS_JSON_TRUE,
    DS_JSON_NUMBER,
    DS_JSON_STRING,
    DS_JSON_ARRAY,
    DS_JSON_OBJECT,
} ds_json_type;

typedef struct ds_json ds_json;
struct ds_json {
    ds_json_type type;
    uint32_t n;           /* array, object: number of children */
    uint32_t key_len;     /* member of an object: bytes of key */
    uint32_t text_len;    /* string, number: bytes of text */
    const char *key;      /* decoded, NUL-terminated (NULs inside count in key_len); NULL outside objects */
    const char *text;     /* string: decoded UTF-8, NUL-terminated; number: as written, NUL-terminated; else NULL */
    const ds_json *child; /* first child, in the order of the input */
    const ds_json *next;  /* next sibling */
};

enum { DS_JSON_MAX_DEPTH = 1024 }; /* what the writer's recursion is good for */

typedef struct {
    uint32_t max_depth;     /* 0 = 128, at most DS_JSON_MAX_DEPTH; a scalar at the top has depth 0 */
    uint32_t max_values;    /* 0 = no bound; every scalar, array and object counts */
    bool refuse_duplicates; /* false: a key that stands twice keeps its first place and its last value */
} ds_json_opts;

typedef struct ds_json_doc ds_json_doc; /* owns every node and text */

/* On success *out owns the document. DS_E_FORMAT (message "line L, column C: what"), DS_E_NOMEM. Input of at most 4
 * GiB - 1. `text` isn't needed afterwards. opts may be NULL. */
ds_rc ds_json_parse(ds_json_doc **out, const char *text, size_t n, const ds_json_opts *opts, ds_err *err);
void ds_json_free(ds_json_doc *doc); /* NULL is fine */
const ds_json *ds_json_root(const ds_json_doc *doc);

/* Member of an object by key; NULL when absent or when `obj` is NULL or no object. O(members): for many look-ups in
 * a large object, walk it once and build a table. */
const ds_json *ds_json_get(const ds_json *obj, const char *key);
/* Element i of an array; NULL when there is none. O(i): walk child/next in loops. */
const ds_json *ds_json_at(const ds_json *arr, size_t i);
bool ds_json_is(const ds_json *v, ds_json_type type); /* false for NULL */
bool ds_json_str_eq(const ds_json *v, const char *s); /* a string equal to s */
/* A number written as an integer (no fraction, no exponent; "-0" is 0) within the range; false otherwise, *out
 * unchanged. */
bool ds_json_i64(const ds_json *v, int64_t *out);
bool ds_json_u64(const ds_json *v, uint64_t *out);
bool ds_json_f64(const ds_json *v, double *out); /* any number; false if it overflows to infinity */
const char *ds_json_type_name(const ds_json *v); /* "null", "boolean", "number", "string", "array", "object"; "nothing" for NULL */

/* How text is written. */
typedef enum {
    DS_JSON_COMPACT, /* {"a":1,"b":[2]}   numbers as written, non-ASCII kept */
    DS_JSON_PYTHON, /* {"a": 1, "b": [2]} as Python's json.dumps(ensure_ascii=False): integers keep their digits ("-0" is "0"), floats in Python's repr (recipe 2.5);
                        a number beyond double's range stays as written, for Python's "Infinity" is no JSON */
    DS_JSON_SSE,    /* compact, with U+2028, U+2029, U+0085 escaped (recipe 4.1) */
} ds_json_style;

void ds_json_write(ds_buf *b, const ds_json *v, ds_json_style style);
/* One JSON string with its quotes: escapes \" \\ \b \f \n \r \t and \u00xx for other control characters. Each
 * maximal piece of invalid UTF-8 becomes one U+FFFD. */
void ds_json_write_str(ds_buf *b, const char *s, size_t n, ds_json_style style);
/* Shortest text that reads back as the same double, in Python's layout ("1e-05", "1.0"); nan and inf become null. */
void ds_json_write_f64(ds_buf *b, double x);

#endif
