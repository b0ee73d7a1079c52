/* YAML files that people write: clusters, simulations, plans. A tree in which every value knows its line and column,
 * so that whoever reads it can say where something is wrong.
 *
 * Of YAML 1.1 what such files need: maps with scalar keys, lists, scalars as text. Refused by place: aliases, tags,
 * a key that stands twice, more than one document, more than DS_YAML_MAX_BYTES, _NODES or _DEPTH. Reading is
 * reading of outside bytes.   Threads: a document is immutable.   Memory: a few blocks, freed at once. */
#ifndef DS_YAML_YAML_H
#define DS_YAML_YAML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { DS_YAML_MAX_BYTES = 1 << 20, DS_YAML_MAX_NODES = 1 << 16, DS_YAML_MAX_DEPTH = 32 };

typedef enum { DS_YAML_SCALAR, DS_YAML_LIST, DS_YAML_MAP } ds_yaml_kind;

typedef struct ds_yaml ds_yaml;
struct ds_yaml {
    ds_yaml_kind kind;
    bool plain;            /* SCALAR: without quotes: `null` and `~` may mean nothing there */
    uint32_t line, column; /* from 1; of a map's member those of its key */
    uint32_t n;            /* LIST, MAP: children */
    const char *key;       /* member of a map; else NULL */
    const char *text;      /* SCALAR; "" where nothing stands. Has no NUL inside */
    const ds_yaml *child, *next;
};

typedef struct ds_yaml_doc ds_yaml_doc; /* owns every node and text */

/* label: what messages call it, copied. DS_E_FORMAT ("label:LINE:COLUMN: what"), DS_E_NOMEM; then *out is NULL. */
ds_rc ds_yaml_parse(ds_yaml_doc **out, const char *text, size_t n, const char *label, ds_err *err);
/* The same of a file; DS_E_IO besides. */
ds_rc ds_yaml_load(ds_yaml_doc **out, const char *path, ds_err *err);
void ds_yaml_free(ds_yaml_doc *d); /* NULL is fine */
const ds_yaml *ds_yaml_root(const ds_yaml_doc *d);

const ds_yaml *ds_yaml_get(const ds_yaml *map, const char *key); /* NULL: absent, or no map. O(members) */
const char *ds_yaml_kind_name(ds_yaml_kind k);                   /* "a scalar", "a list", "a map" */
/* Says what is wrong with a value, with label, line and column in front. Returns DS_E_FORMAT. */
ds_rc ds_yaml_fail(const ds_yaml_doc *d, const ds_yaml *at, ds_err *err, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

#endif
