#include "yaml/yaml.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/file.h"

enum { SLAB_NODES = 256, MAX_KEYS = 1024 /* of one map: each is looked up among the others */ };

typedef struct slab {
    struct slab *next;
    ds_yaml nodes[SLAB_NODES];
} slab;

struct ds_yaml_doc {
    char label[104];
    const ds_yaml *root;
    slab *slabs;
    uint32_t n_nodes; /* in all; of the first slab those that are left over a multiple of SLAB_NODES */
};

/* A list or map that isn't closed yet. */
typedef struct {
    ds_yaml *node, *last;
    ds_yaml_kind kind;
    char *key; /* MAP: read, and its value not yet */
    uint32_t line, column;
} level;

typedef struct {
    ds_yaml_doc *d;
    level open[DS_YAML_MAX_DEPTH];
    uint32_t depth;
    ds_err *err;
} reader;

static ds_rc fail_at(const ds_yaml_doc *d, size_t line, size_t column, ds_err *err, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

static ds_rc fail_at(const ds_yaml_doc *d, size_t line, size_t column, ds_err *err, const char *fmt, ...)
{
    char what[200];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return ds_fail(err, DS_E_FORMAT, "%s:%zu:%zu: %s", d->label, line, column, what);
}

ds_rc ds_yaml_fail(const ds_yaml_doc *d, const ds_yaml *at, ds_err *err, const char *fmt, ...)
{
    char what[200];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return fail_at(d, at->line, at->column, err, "%s", what);
}

static ds_yaml *take_node(ds_yaml_doc *d)
{
    uint32_t at = d->n_nodes % SLAB_NODES;

    if (at == 0) {
        slab *s = calloc(1, sizeof *s);
        if (!s)
            return NULL;
        s->next = d->slabs;
        d->slabs = s;
    }
    d->n_nodes++;
    return &d->slabs->nodes[at];
}

/* Puts a node where the reader is: the root, the next of a list, the value of the key that was read. */
static ds_rc place(reader *r, const yaml_event_t *ev, ds_yaml_kind kind, ds_yaml **out)
{
    size_t line = ev->start_mark.line + 1, column = ev->start_mark.column + 1;
    level *in = r->depth ? &r->open[r->depth - 1] : NULL;
    ds_yaml *v;

    *out = NULL;
    if (r->d->n_nodes == DS_YAML_MAX_NODES)
        return fail_at(r->d, line, column, r->err, "more than %d values", DS_YAML_MAX_NODES);
    v = take_node(r->d);
    if (!v)
        return ds_fail(r->err, DS_E_NOMEM, "%s: out of memory", r->d->label);
    *v = (ds_yaml){ .kind = kind, .line = (uint32_t)line, .column = (uint32_t)column };
    if (!in) {
        r->d->root = v;
    } else {
        if (in->kind == DS_YAML_MAP) {
            v->key = in->key;
            v->line = in->line;
            v->column = in->column;
            in->key = NULL;
        }
        if (in->last)
            in->last->next = v;
        else
            in->node->child = v;
        in->last = v;
        in->node->n++;
    }
    *out = v;
    return DS_OK;
}

static ds_rc key(reader *r, const yaml_event_t *ev)
{
    level *in = &r->open[r->depth - 1];
    const char *text = (const char *)ev->data.scalar.value;
    const ds_yaml *other = ds_yaml_get(in->node, text);
    size_t line = ev->start_mark.line + 1, column = ev->start_mark.column + 1;
    char q[112];

    if (other)
        return fail_at(r->d, line, column, r->err, "%s stands twice, first in line %u", ds_quote(q, sizeof q, text, strnlen(text, 40)),
                       other->line);
    if (in->node->n == MAX_KEYS)
        return fail_at(r->d, line, column, r->err, "more than %d keys in one map", MAX_KEYS);
    in->key = strdup(text);
    in->line = (uint32_t)line;
    in->column = (uint32_t)column;
    return in->key ? DS_OK : ds_fail(r->err, DS_E_NOMEM, "%s: out of memory", r->d->label);
}

static ds_rc scalar(reader *r, const yaml_event_t *ev)
{
    const level *in = r->depth ? &r->open[r->depth - 1] : NULL;
    size_t n = ev->data.scalar.length;
    ds_yaml *v;
    ds_rc rc;

    if (memchr(ev->data.scalar.value, 0, n))
        return fail_at(r->d, ev->start_mark.line + 1, ev->start_mark.column + 1, r->err, "a NUL inside");
    if (in && in->kind == DS_YAML_MAP && !in->key)
        return key(r, ev);
    rc = place(r, ev, DS_YAML_SCALAR, &v);
    if (rc != DS_OK)
        return rc;
    v->plain = ev->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    v->text = strndup((const char *)ev->data.scalar.value, n);
    return v->text ? DS_OK : ds_fail(r->err, DS_E_NOMEM, "%s: out of memory", r->d->label);
}

static ds_rc begin(reader *r, const yaml_event_t *ev, ds_yaml_kind kind)
{
    size_t line = ev->start_mark.line + 1, column = ev->start_mark.column + 1;
    const level *in = r->depth ? &r->open[r->depth - 1] : NULL;
    ds_yaml *v;
    ds_rc rc;

    if (in && in->kind == DS_YAML_MAP && !in->key)
        return fail_at(r->d, line, column, r->err, "%s as a key", ds_yaml_kind_name(kind));
    if (r->depth == DS_YAML_MAX_DEPTH)
        return fail_at(r->d, line, column, r->err, "more than %d levels", DS_YAML_MAX_DEPTH);
    rc = place(r, ev, kind, &v);
    if (rc == DS_OK)
        r->open[r->depth++] = (level){ .node = v, .kind = kind };
    return rc;
}

static ds_rc plain_value(reader *r, const yaml_event_t *ev, const yaml_char_t *tag)
{
    return tag ? fail_at(r->d, ev->start_mark.line + 1, ev->start_mark.column + 1, r->err, "a tag: values have none here") : DS_OK;
}

static ds_rc on_event(reader *r, const yaml_event_t *ev)
{
    ds_rc rc = DS_OK;

    switch (ev->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (r->d->root)
            rc = fail_at(r->d, ev->start_mark.line + 1, ev->start_mark.column + 1, r->err, "a second document");
        break;
    case YAML_ALIAS_EVENT:
        rc = fail_at(r->d, ev->start_mark.line + 1, ev->start_mark.column + 1, r->err, "an alias: write the value out");
        break;
    case YAML_SCALAR_EVENT:
        rc = plain_value(r, ev, ev->data.scalar.tag);
        rc = rc == DS_OK ? scalar(r, ev) : rc;
        break;
    case YAML_SEQUENCE_START_EVENT:
        rc = plain_value(r, ev, ev->data.sequence_start.tag);
        rc = rc == DS_OK ? begin(r, ev, DS_YAML_LIST) : rc;
        break;
    case YAML_MAPPING_START_EVENT:
        rc = plain_value(r, ev, ev->data.mapping_start.tag);
        rc = rc == DS_OK ? begin(r, ev, DS_YAML_MAP) : rc;
        break;
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        r->depth--;
        break;
    default:
        break;
    }
    return rc;
}

static ds_rc parser_failed(const reader *r, const yaml_parser_t *p)
{
    const char *what = p->problem ? p->problem : "not YAML";

    if (p->error == YAML_MEMORY_ERROR)
        return ds_fail(r->err, DS_E_NOMEM, "%s: out of memory", r->d->label);
    if (p->error == YAML_READER_ERROR) /* which knows no line */
        return ds_fail(r->err, DS_E_FORMAT, "%s: byte %zu: %s", r->d->label, p->problem_offset, what);
    return fail_at(r->d, p->problem_mark.line + 1, p->problem_mark.column + 1, r->err, "%s%s%s", what, p->context ? " " : "",
                   p->context ? p->context : "");
}

static ds_rc read_all(reader *r, yaml_parser_t *p)
{
    ds_rc rc = DS_OK;
    bool over = false;

    while (rc == DS_OK && !over) {
        yaml_event_t ev;
        if (!yaml_parser_parse(p, &ev))
            return parser_failed(r, p);
        rc = on_event(r, &ev);
        over = ev.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&ev);
    }
    if (rc == DS_OK && !r->d->root)
        rc = ds_fail(r->err, DS_E_FORMAT, "%s: nothing is in it", r->d->label);
    return rc;
}

ds_rc ds_yaml_parse(ds_yaml_doc **out, const char *text, size_t n, const char *label, ds_err *err)
{
    ds_yaml_doc *d = calloc(1, sizeof *d);
    reader r = { .d = d, .err = err };
    yaml_parser_t p;
    ds_rc rc;

    *out = NULL;
    if (!d)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    snprintf(d->label, sizeof d->label, "%s", label);
    if (n > DS_YAML_MAX_BYTES) {
        rc = ds_fail(err, DS_E_FORMAT, "%s: %zu bytes, at most %d", label, n, DS_YAML_MAX_BYTES);
    } else if (!yaml_parser_initialize(&p)) {
        rc = ds_fail(err, DS_E_NOMEM, "out of memory");
    } else {
        yaml_parser_set_encoding(&p, YAML_UTF8_ENCODING);
        yaml_parser_set_input_string(&p, (const unsigned char *)text, n);
        rc = read_all(&r, &p);
        yaml_parser_delete(&p);
    }
    for (uint32_t i = 0; i < r.depth; i++)
        free(r.open[i].key);
    if (rc == DS_OK)
        *out = d;
    else
        ds_yaml_free(d);
    return rc;
}

ds_rc ds_yaml_load(ds_yaml_doc **out, const char *path, ds_err *err)
{
    char *text, label[104];
    size_t n;
    ds_rc rc = ds_file_read(&text, &n, path, DS_YAML_MAX_BYTES, err);

    *out = NULL;
    if (rc != DS_OK)
        return rc;
    rc = ds_yaml_parse(out, text, n, ds_file_label(label, sizeof label, path), err);
    free(text);
    return rc;
}

void ds_yaml_free(ds_yaml_doc *d)
{
    if (!d)
        return;
    for (uint32_t left = d->n_nodes; d->slabs; left -= (left - 1) % SLAB_NODES + 1) {
        slab *s = d->slabs;
        d->slabs = s->next;
        for (uint32_t i = 0; i < (left - 1) % SLAB_NODES + 1; i++) {
            free((char *)(uintptr_t)s->nodes[i].key);
            free((char *)(uintptr_t)s->nodes[i].text);
        }
        free(s);
    }
    free(d);
}

const ds_yaml *ds_yaml_root(const ds_yaml_doc *d)
{
    return d->root;
}

const ds_yaml *ds_yaml_get(const ds_yaml *map, const char *key)
{
    if (!map || map->kind != DS_YAML_MAP)
        return NULL;
    for (const ds_yaml *v = map->child; v; v = v->next)
        if (strcmp(v->key, key) == 0)
            return v;
    return NULL;
}

const char *ds_yaml_kind_name(ds_yaml_kind k)
{
    static const char *const names[] = { "a scalar", "a list", "a map" };

    return names[k];
}
