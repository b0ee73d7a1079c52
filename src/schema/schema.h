/* JSON Schema: is it one, can a constrained decoder enforce it, does a value satisfy it.
 *
 * A schema is the JSON value that it was written as; nothing is compiled or kept. Threads: all functions only
 * read.   Memory: none is kept.   Time: linear in the schema; matching is bounded in steps and depth, and what needs
 * more counts as fitting. */
#ifndef DS_SCHEMA_SCHEMA_H
#define DS_SCHEMA_SCHEMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ds/str.h>

#include "base/json.h"

/* False and *what filled with "keyword 'x'" … when it isn't a JSON Schema. */
bool ds_schema_valid(const ds_json *schema, char *what, size_t cap);
/* False and *what = the first keyword that a constrained decoder can't enforce. */
bool ds_schema_enforceable(const ds_json *schema, char *what, size_t cap);
/* Whether a value satisfies a schema as far as that can be told; if not, `why` says where and what, in one line. */
bool ds_schema_matches(const ds_json *schema, const ds_json *value, char *why, size_t cap);
/* The same for a part of `root`, where its references lead into. list: an enum that has the very value among its own,
 * which spares a look through it; NULL: none. */
bool ds_schema_matches_in(const ds_json *root, const ds_json *schema, const ds_json *value, const ds_json *list);
/* The count that a keyword like maxItems gives, 3 or 3.0; false: v is none, *out unchanged. */
bool ds_schema_count(const ds_json *v, uint64_t *out);
/* Whether two values are equal as JSON Schema has it: 1 is 1.0, members in any order. */
bool ds_schema_same(const ds_json *a, const ds_json *b);
/* What a reference ("#", "#/$defs/name") leads to; NULL: nothing. It need not be a schema. */
const ds_json *ds_schema_resolve(const ds_json *root, const ds_json *ref);
/* Whether the pattern matches somewhere in the text; true also when that can't be told. */
bool ds_schema_pattern_matches(ds_str pattern, ds_str text);

#endif
