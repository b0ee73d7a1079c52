/* Is a value a JSON Schema, and can a constrained decoder enforce it? Shapes of keywords only; references are not
 * followed. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "schema/schema.h"

typedef enum {
    ANY,     /* any value */
    SCHEMA,  /* object or boolean */
    SCHEMAS, /* non-empty list of schemas */
    ITEMS,   /* schema or list of schemas (older drafts) */
    MAP,     /* object whose values are schemas */
    DEPS,    /* object whose values are schemas or lists of strings (older drafts) */
    NEEDS,   /* object whose values are lists of strings */
    STRINGS, /* list of strings */
    TYPE,    /* a type name or a list of them */
    LIST,    /* a list */
    STRING,
    NUMBER,
    BOUND,    /* a number, or a boolean (draft 4) */
    POSITIVE, /* number > 0 */
    COUNT,    /* integer >= 0 */
    BOOLEAN,
} shape;

static const struct keyword {
    const char *name;
    shape shape;
    bool enforceable;
} keywords[] = {
    { "type", TYPE, true },
    { "properties", MAP, true },
    { "required", STRINGS, true },
    { "additionalProperties", SCHEMA, true },
    { "items", ITEMS, true },
    { "prefixItems", SCHEMAS, true },
    { "enum", LIST, true },
    { "const", ANY, true },
    { "anyOf", SCHEMAS, true },
    { "oneOf", SCHEMAS, true },
    { "allOf", SCHEMAS, true },
    { "$ref", STRING, true },
    { "$defs", MAP, true },
    { "definitions", MAP, true },
    { "pattern", STRING, true },
    { "format", STRING, true },
    { "minLength", COUNT, true },
    { "maxLength", COUNT, true },
    { "minimum", NUMBER, true },
    { "maximum", NUMBER, true },
    { "exclusiveMinimum", BOUND, true },
    { "exclusiveMaximum", BOUND, true },
    { "multipleOf", POSITIVE, true },
    { "minItems", COUNT, true },
    { "maxItems", COUNT, true },
    { "title", STRING, true },
    { "description", STRING, true },
    { "default", ANY, true },
    { "examples", LIST, true },
    { "example", ANY, true },
    { "deprecated", BOOLEAN, true },
    { "readOnly", BOOLEAN, true },
    { "writeOnly", BOOLEAN, true },
    { "nullable", BOOLEAN, false },
    { "$schema", STRING, true },
    { "$id", STRING, true },
    { "$comment", STRING, true },
    { "$anchor", STRING, false },
    { "$dynamicRef", STRING, false },
    { "$dynamicAnchor", STRING, false },
    { "not", SCHEMA, false },
    { "if", SCHEMA, false },
    { "then", SCHEMA, false },
    { "else", SCHEMA, false },
    { "patternProperties", MAP, false },
    { "propertyNames", SCHEMA, false },
    { "minProperties", COUNT, false },
    { "maxProperties", COUNT, false },
    { "uniqueItems", BOOLEAN, false },
    { "contains", SCHEMA, false },
    { "minContains", COUNT, false },
    { "maxContains", COUNT, false },
    { "additionalItems", SCHEMA, false },
    { "dependencies", DEPS, false },
    { "dependentRequired", NEEDS, false },
    { "dependentSchemas", MAP, false },
    { "unevaluatedItems", SCHEMA, false },
    { "unevaluatedProperties", SCHEMA, false },
    { "contentEncoding", STRING, false },
    { "contentMediaType", STRING, false },
    { "contentSchema", SCHEMA, false },
};

static const char *const formats[] = { "email", "hostname", "ipv4", "ipv6", "uuid", "date", "time", "date-time" };

static const struct keyword *find(const ds_json *m)
{
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (keywords[i].name[0] == m->key[0] && strlen(keywords[i].name) == m->key_len && memcmp(keywords[i].name, m->key, m->key_len) == 0)
            return &keywords[i];
    return NULL;
}

static bool is_type_name(const ds_json *v)
{
    static const char *const names[] = { "string", "object", "array", "number", "integer", "boolean", "null" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (ds_json_str_eq(v, names[i]))
            return true;
    return false;
}

static bool is_bool(const ds_json *v)
{
    return v->type == DS_JSON_TRUE || v->type == DS_JSON_FALSE;
}

/* Calls itself for the schemas inside; depth is bounded by the JSON reader. strict: also every keyword must be
 * enforceable. */
static bool check(const ds_json *schema, bool strict, char *what, size_t cap);

static bool check_all(const ds_json *list, bool strict, char *what, size_t cap)
{
    for (const ds_json *c = list->child; c; c = c->next)
        if (!check(c, strict, what, cap))
            return false;
    return true;
}

static bool is_strings(const ds_json *v)
{
    if (v->type != DS_JSON_ARRAY)
        return false;
    for (const ds_json *c = v->child; c; c = c->next)
        if (c->type != DS_JSON_STRING)
            return false;
    return true;
}

static bool fits(const ds_json *v, shape s, bool strict, char *what, size_t cap, const char **want)
{
    int64_t i;
    double x;

    *want = NULL; /* stays NULL when an inner schema is at fault */
    switch (s) {
    case ANY:
        return true;
    case SCHEMA:
        return check(v, strict, what, cap);
    case SCHEMAS:
        if (v->type == DS_JSON_ARRAY && v->n > 0)
            return check_all(v, strict, what, cap);
        *want = "a list of schemas";
        return false;
    case ITEMS:
        return v->type == DS_JSON_ARRAY ? check_all(v, strict, what, cap) : check(v, strict, what, cap);
    case MAP:
        if (v->type == DS_JSON_OBJECT)
            return check_all(v, strict, what, cap);
        *want = "an object of schemas";
        return false;
    case DEPS:
    case NEEDS:
        *want = s == DEPS ? "an object of schemas or lists of strings" : "an object of lists of strings";
        if (v->type != DS_JSON_OBJECT)
            return false;
        for (const ds_json *c = v->child; c; c = c->next) {
            if (c->type == DS_JSON_ARRAY || s == NEEDS) {
                if (!is_strings(c))
                    return false;
            } else if (!check(c, strict, what, cap)) {
                *want = NULL;
                return false;
            }
        }
        return true;
    case STRINGS:
        *want = "a list of strings";
        return is_strings(v);
    case TYPE:
        *want = "a type name or a list of them";
        if (v->type == DS_JSON_ARRAY) {
            for (const ds_json *c = v->child; c; c = c->next)
                if (!is_type_name(c))
                    return false;
            return v->n > 0;
        }
        return is_type_name(v);
    case LIST:
        *want = "a list";
        return v->type == DS_JSON_ARRAY;
    case STRING:
        *want = "a string";
        return v->type == DS_JSON_STRING;
    case NUMBER:
        *want = "a number";
        return v->type == DS_JSON_NUMBER;
    case BOUND:
        *want = "a number";
        return v->type == DS_JSON_NUMBER || is_bool(v);
    case POSITIVE:
        *want = "a positive number";
        return ds_json_f64(v, &x) && x > 0;
    case COUNT:
        *want = "a count";
        if (ds_json_i64(v, &i))
            return i >= 0;
        return ds_json_f64(v, &x) && x >= 0 && x < 1e18 && x == (double)(int64_t)x;
    case BOOLEAN:
        *want = "true or false";
        return is_bool(v);
    }
    return false;
}

static bool check(const ds_json *schema, bool strict, char *what, size_t cap)
{
    char word[96];
    const char *want;

    if (is_bool(schema))
        return true;
    if (schema->type != DS_JSON_OBJECT) {
        snprintf(what, cap, "a schema must be an object, got %s", ds_json_type_name(schema));
        return false;
    }
    for (const ds_json *m = schema->child; m; m = m->next) {
        const struct keyword *k = find(m);
        bool known = false;

        if (strict && (!k || !k->enforceable)) {
            snprintf(what, cap, "keyword '%s'", ds_str_word(word, sizeof word, (ds_str){ m->key, m->key_len }));
            return false;
        }
        if (!k) /* unknown keywords are annotations */
            continue;
        if (!fits(m, k->shape, strict, what, cap, &want)) {
            if (want)
                snprintf(what, cap, "'%s' must be %s", k->name, want);
            return false;
        }
        if (strict && strcmp(k->name, "format") == 0) {
            for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
                known = known || ds_json_str_eq(m, formats[i]);
            if (!known) {
                snprintf(what, cap, "format '%s'", ds_str_word(word, sizeof word, ds_json_str_of(m)));
                return false;
            }
        }
    }
    return true;
}

bool ds_schema_valid(const ds_json *schema, char *what, size_t cap)
{
    return check(schema, false, what, cap);
}

bool ds_schema_enforceable(const ds_json *schema, char *what, size_t cap)
{
    return check(schema, true, what, cap);
}
