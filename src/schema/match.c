/* Does a JSON value satisfy a JSON Schema? For the end of an output that nothing constrained.
 *
 * The keywords of a constrained decoder (check.c), `not`, conditions and what depends on members are judged; others,
 * references that lead nowhere and patterns that don't compile say nothing. Work is bounded: a value that needs more
 * than MAX_STEPS, or MAX_LEVELS of schemas inside each other, counts as fitting. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <arpa/inet.h>
#include <math.h>
#include <pcre2.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "schema/schema.h"

enum { MAX_LEVELS = 256, MAX_STEPS = 1000000, MATCH_LIMIT = 1000000 };

typedef struct {
    const ds_json *root;
    const ds_json *list, *element; /* an enum that has this very value; NULL: none */
    char *why;                     /* the first mismatch; NULL: nobody asks */
    size_t cap;
    uint32_t steps;
    char path[200];
    size_t path_n;
} matcher;

static bool match(matcher *m, const ds_json *schema, const ds_json *v, uint32_t level);

static bool no(const matcher *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool no(const matcher *m, const char *fmt, ...)
{
    char what[160];
    va_list ap;

    if (!m->why || m->why[0])
        return false;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    snprintf(m->why, m->cap, "$%.*s: %s", (int)m->path_n, m->path, what);
    return false;
}

/* Goes into a member or an element; returns where to come back to. */
static size_t enter(matcher *m, const ds_json *child, size_t index)
{
    size_t before = m->path_n, room = sizeof m->path - before;
    char q[64];
    int n;

    if (child->key)
        n = snprintf(m->path + before, room, ".%.40s", ds_quote(q, sizeof q, child->key, child->key_len));
    else
        n = snprintf(m->path + before, room, "[%zu]", index);
    m->path_n += (size_t)n < room ? (size_t)n : 0;
    return before;
}

static bool same(const ds_json *a, const ds_json *b, uint32_t level)
{
    double x, y;

    if (a->type != b->type || level > MAX_LEVELS)
        return false;
    switch (a->type) {
    case DS_JSON_NUMBER:
        if (a->text_len == b->text_len && memcmp(a->text, b->text, a->text_len) == 0)
            return true;
        return ds_json_f64(a, &x) && ds_json_f64(b, &y) && x == y && fabs(x) < 0x1p53;
    case DS_JSON_STRING:
        return a->text_len == b->text_len && memcmp(a->text, b->text, a->text_len) == 0;
    case DS_JSON_ARRAY:
        if (a->n != b->n)
            return false;
        for (a = a->child, b = b->child; a; a = a->next, b = b->next)
            if (!same(a, b, level + 1))
                return false;
        return true;
    case DS_JSON_OBJECT:
        if (a->n != b->n)
            return false;
        for (a = a->child; a; a = a->next) {
            const ds_json *other = ds_json_get(b, a->key);
            if (!other || !same(a, other, level + 1))
                return false;
        }
        return true;
    default:
        return true;
    }
}

/* ---- one keyword each ---- */

static bool is_type(const ds_json *v, const ds_json *name)
{
    double x;

    if (ds_json_str_eq(name, "integer"))
        return v->type == DS_JSON_NUMBER && (!strpbrk(v->text, ".eE") || (ds_json_f64(v, &x) && x == floor(x)));
    return ds_json_str_eq(name, ds_json_type_name(v));
}

static bool check_type(const matcher *m, const ds_json *type, const ds_json *v)
{
    bool list = ds_json_is(type, DS_JSON_ARRAY);

    if (!list && !ds_json_is(type, DS_JSON_STRING))
        return true;
    for (const ds_json *t = list ? type->child : type; t; t = list ? t->next : NULL)
        if (is_type(v, t))
            return true;
    return list ? no(m, "%s is none of the types", ds_json_type_name(v))
                : no(m, "expected %.20s, got %s", type->text, ds_json_type_name(v));
}

static bool regex_matches(const char *pattern, size_t n, const ds_json *v)
{
    int code, rc = 0;
    PCRE2_SIZE at;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, n, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
    pcre2_match_data *data = re ? pcre2_match_data_create(1, NULL) : NULL;
    pcre2_match_context *limits = data ? pcre2_match_context_create(NULL) : NULL;

    if (limits) {
        pcre2_set_match_limit(limits, MATCH_LIMIT);
        rc = pcre2_match(re, (PCRE2_SPTR)v->text, v->text_len, 0, 0, data, limits);
    }
    pcre2_match_context_free(limits);
    pcre2_match_data_free(data);
    pcre2_code_free(re);
    return rc != PCRE2_ERROR_NOMATCH;
}

static bool fits_format(const ds_json *format, const ds_json *v)
{
    static const struct {
        const char *name, *pattern;
    } known[] = {
        { "uuid", "^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\\z" },
        { "date", "^\\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\\d|3[01])\\z" },
        { "time", "^([01]\\d|2[0-3]):[0-5]\\d:([0-5]\\d|60)(\\.\\d+)?([Zz]|[+-]([01]\\d|2[0-3]):[0-5]\\d)\\z" },
        { "date-time", "^\\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\\d|3[01])[Tt "
                       "]([01]\\d|2[0-3]):[0-5]\\d:([0-5]\\d|60)(\\.\\d+)?([Zz]|[+-]([01]\\d|2[0-3]):[0-5]\\d)\\z" },
        { "email", "^[^@\\s]+@[^@\\s]+\\z" },
        { "hostname", "^(?=.{1,253}\\z)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*\\z" },
    };
    unsigned char address[16];

    if (ds_json_str_eq(format, "ipv4") || ds_json_str_eq(format, "ipv6"))
        return strlen(v->text) == v->text_len && inet_pton(format->text[3] == '4' ? AF_INET : AF_INET6, v->text, address) == 1;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (ds_json_str_eq(format, known[i].name))
            return regex_matches(known[i].pattern, strlen(known[i].pattern), v);
    return true;
}

bool ds_schema_count(const ds_json *v, uint64_t *out)
{
    double x;

    if (ds_json_u64(v, out))
        return true;
    if (!v || !ds_json_f64(v, &x) || x < 0.0 || x != floor(x) || x >= 0x1p63)
        return false;
    *out = (uint64_t)x;
    return true;
}

static size_t code_points(const ds_json *v)
{
    size_t n = 0;

    for (uint32_t i = 0; i < v->text_len; i++)
        n += ((unsigned char)v->text[i] & 0xc0) != 0x80;
    return n;
}

static bool check_string(const matcher *m, const ds_json *schema, const ds_json *v)
{
    const ds_json *pattern = ds_json_get(schema, "pattern"), *format = ds_json_get(schema, "format");
    uint64_t bound;

    if (ds_schema_count(ds_json_get(schema, "minLength"), &bound) && code_points(v) < bound)
        return no(m, "shorter than %llu characters", (unsigned long long)bound);
    if (ds_schema_count(ds_json_get(schema, "maxLength"), &bound) && code_points(v) > bound)
        return no(m, "longer than %llu characters", (unsigned long long)bound);
    if (ds_json_is(pattern, DS_JSON_STRING) && !regex_matches(pattern->text, pattern->text_len, v))
        return no(m, "doesn't match the pattern");
    if (ds_json_is(format, DS_JSON_STRING) && !fits_format(format, v))
        return no(m, "is no %.40s", format->text);
    return true;
}

static bool check_number(const matcher *m, const ds_json *schema, const ds_json *v)
{
    const ds_json *xmin = ds_json_get(schema, "exclusiveMinimum"), *xmax = ds_json_get(schema, "exclusiveMaximum");
    double x, bound;

    if (!ds_json_f64(v, &x))
        return true;
    if (ds_json_f64(ds_json_get(schema, "minimum"), &bound) && (x < bound || (x == bound && ds_json_is(xmin, DS_JSON_TRUE))))
        return no(m, "%s is less than allowed", v->text);
    if (ds_json_f64(ds_json_get(schema, "maximum"), &bound) && (x > bound || (x == bound && ds_json_is(xmax, DS_JSON_TRUE))))
        return no(m, "%s is more than allowed", v->text);
    if ((ds_json_f64(xmin, &bound) && x <= bound) || (ds_json_f64(xmax, &bound) && x >= bound))
        return no(m, "%s lies outside of the bounds", v->text);
    if (ds_json_f64(ds_json_get(schema, "multipleOf"), &bound) && bound > 0.0 && fabs(x / bound) < 0x1p53 &&
        fabs(x / bound - round(x / bound)) > 1e-9)
        return no(m, "%s is no multiple of %g", v->text, bound);
    return true;
}

/* Whether it fits; the complaint isn't kept. */
static bool quietly(matcher *m, const ds_json *schema, const ds_json *v, uint32_t level)
{
    char *why = m->why;
    bool ok;

    m->why = NULL;
    ok = match(m, schema, v, level + 1);
    m->why = why;
    return ok;
}

static bool check_contains(matcher *m, const ds_json *schema, const ds_json *v, uint32_t level)
{
    const ds_json *kind = ds_json_get(schema, "contains");
    uint64_t n = 0, least = 1, most = UINT64_MAX;

    if (!kind)
        return true;
    ds_schema_count(ds_json_get(schema, "minContains"), &least);
    ds_schema_count(ds_json_get(schema, "maxContains"), &most);
    for (const ds_json *e = v->child; e; e = e->next)
        n += quietly(m, kind, e, level);
    return (n >= least && n <= most) || no(m, "has %llu elements of the kind that `contains` asks for", (unsigned long long)n);
}

static bool check_array(matcher *m, const ds_json *schema, const ds_json *v, uint32_t level)
{
    const ds_json *items = ds_json_get(schema, "items"), *prefix = ds_json_get(schema, "prefixItems");
    size_t i = 0;
    uint64_t bound;

    if (ds_schema_count(ds_json_get(schema, "minItems"), &bound) && v->n < bound)
        return no(m, "has %u elements, at least %llu are wanted", v->n, (unsigned long long)bound);
    if (ds_schema_count(ds_json_get(schema, "maxItems"), &bound) && v->n > bound)
        return no(m, "has %u elements, at most %llu are allowed", v->n, (unsigned long long)bound);
    if (ds_json_is(items, DS_JSON_ARRAY)) { /* older drafts */
        prefix = items;
        items = ds_json_get(schema, "additionalItems");
    }
    for (const ds_json *e = ds_json_is(ds_json_get(schema, "uniqueItems"), DS_JSON_TRUE) ? v->child : NULL; e; e = e->next)
        for (const ds_json *o = e->next; o && ++m->steps <= MAX_STEPS; o = o->next)
            if (same(e, o, 0))
                return no(m, "two elements are equal");
    if (!check_contains(m, schema, v, level))
        return false;
    prefix = ds_json_is(prefix, DS_JSON_ARRAY) ? prefix->child : NULL;
    for (const ds_json *e = v->child; e; e = e->next, i++) {
        const ds_json *s = prefix ? prefix : items;
        size_t back = enter(m, e, i);
        bool ok = !s || match(m, s, e, level + 1);
        m->path_n = back;
        if (!ok)
            return false;
        prefix = prefix ? prefix->next : NULL;
    }
    return true;
}

static bool check_required(const matcher *m, const ds_json *list, const ds_json *v)
{
    for (const ds_json *r = ds_json_is(list, DS_JSON_ARRAY) ? list->child : NULL; r; r = r->next)
        if (ds_json_is(r, DS_JSON_STRING) && !ds_json_get(v, r->text))
            return no(m, "'%.60s' is missing", r->text);
    return true;
}

/* What the presence of some members asks for. */
static bool check_dependent(matcher *m, const ds_json *schema, const ds_json *v, uint32_t level)
{
    static const char *const words[] = { "dependentRequired", "dependentSchemas", "dependencies" };

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const ds_json *list = ds_json_get(schema, words[i]);
        for (const ds_json *d = ds_json_is(list, DS_JSON_OBJECT) ? list->child : NULL; d; d = d->next) {
            if (!ds_json_get(v, d->key))
                continue;
            if (d->type == DS_JSON_ARRAY ? !check_required(m, d, v) : !match(m, d, v, level + 1))
                return false;
        }
    }
    return true;
}

static bool check_object(matcher *m, const ds_json *schema, const ds_json *v, uint32_t level)
{
    const ds_json *known = ds_json_get(schema, "properties");
    const ds_json *rest = ds_json_get(schema, "additionalProperties"), *patterns = ds_json_get(schema, "patternProperties");
    uint64_t bound;

    if (ds_schema_count(ds_json_get(schema, "minProperties"), &bound) && v->n < bound)
        return no(m, "has %u members, at least %llu are wanted", v->n, (unsigned long long)bound);
    if (ds_schema_count(ds_json_get(schema, "maxProperties"), &bound) && v->n > bound)
        return no(m, "has %u members, at most %llu are allowed", v->n, (unsigned long long)bound);
    if (!check_required(m, ds_json_get(schema, "required"), v))
        return false;
    if (!check_dependent(m, schema, v, level))
        return false;
    for (const ds_json *e = v->child; e; e = e->next) {
        const ds_json *s = ds_json_get(known, e->key), *only = ds_json_get(schema, "propertyNames");
        ds_json name = { .type = DS_JSON_STRING, .text = e->key, .text_len = e->key_len };
        if (only && !quietly(m, only, &name, level))
            return no(m, "'%.60s' is no name that `propertyNames` allows", e->key);
        size_t back = enter(m, e, 0);
        bool ok = !s || match(m, s, e, level + 1), known_key = s != NULL;
        for (const ds_json *p = ds_json_is(patterns, DS_JSON_OBJECT) ? patterns->child : NULL; p && ok; p = p->next)
            if (ds_schema_pattern_matches((ds_str){ p->key, p->key_len }, (ds_str){ e->key, e->key_len })) {
                known_key = true;
                ok = match(m, p, e, level + 1);
            }
        if (ok && !known_key && ds_json_is(rest, DS_JSON_FALSE))
            ok = no(m, "is not in the schema");
        else if (ok && !known_key && rest)
            ok = match(m, rest, e, level + 1);
        m->path_n = back;
        if (!ok)
            return false;
    }
    return true;
}

static bool check_value(const matcher *m, const ds_json *schema, const ds_json *v)
{
    const ds_json *type = ds_json_get(schema, "type"), *all = ds_json_get(schema, "enum"), *one = ds_json_get(schema, "const"), *e;

    if (type && !check_type(m, type, v))
        return false;
    if (one && !same(one, v, 0))
        return no(m, "is not the one value that is allowed");
    if (!ds_json_is(all, DS_JSON_ARRAY))
        return true;
    if (all == m->list && v == m->element)
        return true;
    for (e = all->child; e && !same(e, v, 0); e = e->next)
        ;
    return e || no(m, "is none of the values that are allowed");
}

/* How many of the schemas accept the value; their complaints aren't kept. */
static uint32_t count(matcher *m, const ds_json *schemas, const ds_json *v, uint32_t level)
{
    char *why = m->why;
    uint32_t n = 0;

    m->why = NULL;
    for (const ds_json *s = ds_json_is(schemas, DS_JSON_ARRAY) ? schemas->child : schemas; s;
         s = ds_json_is(schemas, DS_JSON_ARRAY) ? s->next : NULL)
        n += match(m, s, v, level + 1);
    m->why = why;
    return n;
}

static bool check_combined(matcher *m, const ds_json *schema, const ds_json *v, uint32_t level)
{
    const ds_json *all = ds_json_get(schema, "allOf"), *any = ds_json_get(schema, "anyOf"), *one = ds_json_get(schema, "oneOf"),
                  *never = ds_json_get(schema, "not"), *test = ds_json_get(schema, "if");

    for (const ds_json *s = ds_json_is(all, DS_JSON_ARRAY) ? all->child : NULL; s; s = s->next)
        if (!match(m, s, v, level + 1))
            return false;
    if (ds_json_is(any, DS_JSON_ARRAY) && count(m, any, v, level) == 0)
        return no(m, "fits none of the schemas of anyOf");
    if (ds_json_is(one, DS_JSON_ARRAY) && count(m, one, v, level) != 1)
        return no(m, "doesn't fit exactly one schema of oneOf");
    if (never && count(m, never, v, level))
        return no(m, "is what `not` forbids");
    if (test && (test = ds_json_get(schema, count(m, test, v, level) ? "then" : "else")))
        return match(m, test, v, level + 1);
    return true;
}

/* "#", "#/$defs/name": a JSON pointer into the schema. NULL: leads nowhere. */
const ds_json *ds_schema_resolve(const ds_json *root, const ds_json *ref)
{
    const char *p = ref->text;
    char key[256];

    if (*p++ != '#')
        return NULL;
    while (root && *p == '/') {
        size_t n = 0;
        for (p++; *p && *p != '/' && n < sizeof key - 1; p++) {
            char c = *p;
            if (c == '~' && (p[1] == '0' || p[1] == '1'))
                c = *++p == '0' ? '~' : '/';
            key[n++] = c;
        }
        key[n] = '\0';
        root = ds_json_is(root, DS_JSON_ARRAY) ? ds_json_at(root, (size_t)strtoul(key, NULL, 10)) : ds_json_get(root, key);
    }
    return *p ? NULL : root;
}

static bool match(matcher *m, const ds_json *schema, const ds_json *v, uint32_t level)
{
    const ds_json *ref;

    if (level > MAX_LEVELS || ++m->steps > MAX_STEPS)
        return true;
    if (schema->type == DS_JSON_FALSE)
        return no(m, "nothing is allowed here");
    if (schema->type != DS_JSON_OBJECT)
        return true;
    ref = ds_json_get(schema, "$ref");
    if (ds_json_is(ref, DS_JSON_STRING)) {
        const ds_json *target = ds_schema_resolve(m->root, ref);
        if (target && !match(m, target, v, level + 1))
            return false;
    }
    if (!check_value(m, schema, v) || !check_combined(m, schema, v, level))
        return false;
    switch (v->type) {
    case DS_JSON_STRING:
        return check_string(m, schema, v);
    case DS_JSON_NUMBER:
        return check_number(m, schema, v);
    case DS_JSON_ARRAY:
        return check_array(m, schema, v, level);
    case DS_JSON_OBJECT:
        return check_object(m, schema, v, level);
    default:
        return true;
    }
}

bool ds_schema_matches(const ds_json *schema, const ds_json *value, char *why, size_t cap)
{
    matcher m = { .root = schema, .why = why, .cap = cap };

    if (cap)
        why[0] = '\0';
    return match(&m, schema, value, 0);
}

bool ds_schema_matches_in(const ds_json *root, const ds_json *schema, const ds_json *value, const ds_json *list)
{
    matcher m = { .root = root, .list = list, .element = value };

    return match(&m, schema, value, 0);
}

bool ds_schema_same(const ds_json *a, const ds_json *b)
{
    return same(a, b, 0);
}

bool ds_schema_pattern_matches(ds_str pattern, ds_str text)
{
    ds_json v = { .type = DS_JSON_STRING, .text = text.n ? text.p : "", .text_len = (uint32_t)text.n };

    return regex_matches(pattern.p, pattern.n, &v);
}
