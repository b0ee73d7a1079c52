/* Keywords that ask of a value what something else about it decides: dependentRequired, dependentSchemas and
 * dependencies, if with then and else. A value is split into cases, in each of which that is decided: a member that
 * is there or isn't, or has some of the few values that the schema gives it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/schema_internal.h"
#include "schema/schema.h"

enum { MOST_DECIDED = 256 /* values of a member that decides */ };

static const ds_json is_object = { .type = DS_JSON_STRING, .key = "type", .key_len = 4, .text = "object", .text_len = 6 };
static const ds_json objects = { .type = DS_JSON_OBJECT, .n = 1, .child = &is_object };

static const ds_json others[] = { { .type = DS_JSON_STRING, .text = "null", .text_len = 4, .next = others + 1 },
                                  { .type = DS_JSON_STRING, .text = "boolean", .text_len = 7, .next = others + 2 },
                                  { .type = DS_JSON_STRING, .text = "number", .text_len = 6, .next = others + 3 },
                                  { .type = DS_JSON_STRING, .text = "string", .text_len = 6, .next = others + 4 },
                                  { .type = DS_JSON_STRING, .text = "array", .text_len = 5 } };
static const ds_json are_others = { .type = DS_JSON_ARRAY, .n = 5, .key = "type", .key_len = 4, .child = others };
static const ds_json no_objects = { .type = DS_JSON_OBJECT, .n = 1, .child = &are_others };
static const ds_json nothing = { .type = DS_JSON_FALSE };

const ds_json *schema_make(schema *c, ds_json v)
{
    schema_made *m = malloc(sizeof *m);

    if (!m) {
        c->f.failed = true;
        return &nothing;
    }
    *m = (schema_made){ .next = c->made, .v = v };
    c->made = m;
    return &m->v;
}

const ds_json *schema_make_integer(schema *c, int64_t n)
{
    const ds_json *v = schema_make(c, (ds_json){ .type = DS_JSON_NUMBER });

    if (!c->f.failed) { /* v is the newest one's */
        c->made->v.text_len = (uint32_t)snprintf(c->made->text, sizeof c->made->text, "%lld", (long long)n);
        c->made->v.text = c->made->text;
    }
    return v;
}

/* Objects that have this member, or may have it, with such a value (NULL: any). */
static const ds_json *with_member(schema *c, const char *name, uint32_t n, const ds_json *value, bool needed)
{
    ds_json own = value ? *value : nothing, list = { .type = DS_JSON_ARRAY, .n = 1, .key = "required", .key_len = 8 },
            properties = { .type = DS_JSON_OBJECT, .n = 1, .key = "properties", .key_len = 10 }, s = { .type = DS_JSON_OBJECT };

    if (needed) {
        list.child = schema_make(c, (ds_json){ .type = DS_JSON_STRING, .text = name, .text_len = n });
        s.child = schema_make(c, list);
        s.n++;
    }
    if (value) {
        own.key = name;
        own.key_len = n;
        own.next = NULL;
        properties.child = schema_make(c, own);
        properties.next = s.child;
        s.child = schema_make(c, properties);
        s.n++;
    }
    return schema_make(c, s);
}

/* A part of ours: its names say nothing about what else may be there. */
static void join(schema *c, parts *to, const ds_json *s, const ds_json *at)
{
    schema_join(c, to, s, at);
    if (to->n)
        to->p[to->n - 1].ours = true;
}

static uint32_t types_of(schema *c, const parts *in)
{
    uint32_t types = ALL;

    for (uint32_t i = 0; i < in->n; i++)
        types &= schema_types(c, in->p[i].s);
    return types;
}

/* The value under one schema more, which may be NULL. */
static uint32_t value_and(schema *c, const parts *in, const ds_json *more, const ds_json *at)
{
    parts with = *in;

    schema_join(c, &with, more, at);
    return schema_value(c, &with);
}

/* ---- dependencies ---- */

static const ds_json *dependency(const ds_json *s, uint32_t number)
{
    static const char *const words[] = { "dependentRequired", "dependentSchemas", "dependencies" };

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const ds_json *list = ds_json_get(s, words[i]);
        for (const ds_json *d = ds_json_is(list, DS_JSON_OBJECT) ? list->child : NULL; d; d = d->next)
            if (number-- == 0)
                return d;
    }
    return NULL;
}

static uint32_t dependent(schema *c, const parts *in, uint32_t at, const ds_json *d)
{
    parts with = *in, absent;
    ds_json list = *d;
    uint32_t t = none(c);

    if (types_of(c, in) & ~(uint32_t)OBJECT) { /* they have no members */
        for (uint32_t i = 0; i < with.n; i++)
            with.p[i].dependent = UINT32_MAX;
        join(c, &with, &no_objects, d);
        t = schema_value(c, &with);
        with = *in;
    }
    with.p[at].dependent++;
    join(c, &with, &objects, d);
    absent = with;
    join(c, &absent, with_member(c, d->key, d->key_len, &nothing, false), d);
    t = alt(c, t, schema_value(c, &absent));
    join(c, &with, with_member(c, d->key, d->key_len, NULL, true), d);
    if (d->type != DS_JSON_ARRAY)
        return alt(c, t, value_and(c, &with, d, d));
    list.key = "required";
    list.key_len = 8;
    list.next = NULL;
    join(c, &with, schema_make(c, (ds_json){ .type = DS_JSON_OBJECT, .n = 1, .child = schema_make(c, list) }), d);
    return alt(c, t, schema_value(c, &with));
}

/* ---- if ---- */

typedef struct {
    const ds_json *test, *then, *otherwise; /* the last two: NULL where there are none */
} condition;

/* Whether a schema says nothing but that the value is one of a few. */
static bool is_constants(const ds_json *s)
{
    bool any = false;

    for (const ds_json *k = s->child; k && s->type == DS_JSON_OBJECT; k = k->next) {
        bool list = strcmp(k->key, "enum") == 0, one = strcmp(k->key, "const") == 0;
        if (!list && !one && !schema_is_note(k))
            return false;
        any |= list || one;
    }
    return any;
}

static bool is_test(const ds_json *s)
{
    if (s->type != DS_JSON_OBJECT)
        return true;
    for (const ds_json *k = s->child; k; k = k->next) {
        if (schema_is_note(k) || strcmp(k->key, "required") == 0 || (strcmp(k->key, "type") == 0 && ds_json_str_eq(k, "object")))
            continue;
        if (strcmp(k->key, "properties") != 0)
            return false;
        for (const ds_json *p = k->child; p; p = p->next)
            if (p->type != DS_JSON_TRUE && !is_constants(p))
                return false;
    }
    return true;
}

/* The member that the test asks for as number i: of its `properties`, then of `required`; false: there is none. */
static bool asked(const ds_json *test, uint32_t i, const ds_json **values, ds_str *name, bool *needed)
{
    const ds_json *own = ds_json_get(test, "properties"), *list = ds_json_get(test, "required");

    *values = NULL;
    *needed = true;
    for (const ds_json *p = own ? own->child : NULL; p; p = p->next)
        if (i-- == 0) {
            *name = (ds_str){ p->key, p->key_len };
            *values = p->type == DS_JSON_TRUE ? NULL : p;
            *needed = false;
            for (const ds_json *r = list ? list->child : NULL; r; r = r->next)
                *needed |= r->text_len == p->key_len && memcmp(r->text, p->key, p->key_len) == 0;
            return true;
        }
    for (const ds_json *r = list ? list->child : NULL; r; r = r->next)
        if (!ds_json_get(own, r->text) && i-- == 0) {
            *name = (ds_str){ r->text, r->text_len };
            return true;
        }
    return false;
}

/* The values that the schemas give a member, and of them those that the test wants last; false: they aren't few. */
static bool decided(schema *c, const parts *in, ds_str name, const ds_json *wanted, const ds_json **values, uint32_t *n, uint32_t *n_others)
{
    static const ds_json truth[] = { { .type = DS_JSON_TRUE, .next = truth + 1 }, { .type = DS_JSON_FALSE } };
    const ds_json *list = NULL, *one = NULL;
    parts of;

    *n = *n_others = 0;
    if (!schema_member(c, in, name.p, (uint32_t)name.n, &of) || !schema_expand(c, &of, true))
        return !c->bad;
    for (uint32_t i = 0; i < of.n; i++) {
        const ds_json *all = ds_json_get(of.p[i].s, "enum");
        one = one ? one : ds_json_get(of.p[i].s, "const");
        list = list ? list : all;
    }
    if (!one && !list && !(types_of(c, &of) & ~(uint32_t)BOOLEAN))
        one = truth; /* both of them */
    for (const ds_json *v = one ? one : list ? list->child : NULL; v; v = one && one != truth ? NULL : v->next) {
        if (*n == MOST_DECIDED || ++c->work > MOST_WORK)
            return false;
        values[(*n)++] = v;
    }
    for (uint32_t i = 0; i < *n; i++)
        if (!ds_schema_matches_in(c->root, wanted, values[i], NULL)) {
            const ds_json *v = values[i];
            values[i] = values[*n_others];
            values[(*n_others)++] = v;
        }
    return one || list;
}

static uint32_t tested(schema *c, const parts *in, const condition *if_, uint32_t i)
{
    const ds_json *wanted, *values[MOST_DECIDED], *list = NULL;
    uint32_t t = none(c), n, n_others;
    bool needed, sure;
    parts with = *in;
    ds_str name;

    if (c->bad || c->f.failed)
        return 0;
    if (!asked(if_->test, i, &wanted, &name, &needed))
        return value_and(c, in, if_->then, if_->test);
    sure = schema_required(in, name.p);
    if (!sure) {
        join(c, &with, with_member(c, name.p, (uint32_t)name.n, &nothing, false), if_->test);
        t = needed ? value_and(c, &with, if_->otherwise, if_->test) : tested(c, &with, if_, i + 1);
        with = *in;
    }
    if (!wanted) {
        if (!sure)
            join(c, &with, with_member(c, name.p, (uint32_t)name.n, NULL, true), if_->test);
        return alt(c, t, tested(c, &with, if_, i + 1));
    }
    if (!decided(c, in, name, wanted, values, &n, &n_others))
        return c->bad ? 0 : schema_refuse(c, if_->test, "a member that decides must have an enum or a const beside the if");
    if (n > n_others) {
        if (!sure || n_others)
            join(c, &with, with_member(c, name.p, (uint32_t)name.n, wanted, true), if_->test);
        t = alt(c, t, tested(c, &with, if_, i + 1));
        with = *in;
    }
    if (n_others) {
        for (uint32_t k = n_others; k-- > 0;) {
            ds_json v = *values[k];
            v.key = NULL;
            v.next = list;
            list = schema_make(c, v);
        }
        list = schema_make(c, (ds_json){ .type = DS_JSON_ARRAY, .n = n_others, .child = list, .key = "enum", .key_len = 4 });
        list = schema_make(c, (ds_json){ .type = DS_JSON_OBJECT, .n = 1, .child = list });
        if (!sure || n > n_others)
            join(c, &with, with_member(c, name.p, (uint32_t)name.n, list, true), if_->test);
        t = alt(c, t, value_and(c, &with, if_->otherwise, if_->test));
    }
    return t;
}

/* Whether the schemas give each member that the test asks for a few values. */
static bool all_decided(schema *c, const parts *in, const ds_json *test)
{
    const ds_json *wanted, *values[MOST_DECIDED];
    uint32_t n, n_others;
    bool needed;
    ds_str name;

    for (uint32_t i = 0; asked(test, i, &wanted, &name, &needed); i++)
        if (wanted && !decided(c, in, name, wanted, values, &n, &n_others))
            return false;
    return true;
}

/* What fits the test and `then`, and what doesn't fit it, as far as that can be written, and `else`. */
static uint32_t either(schema *c, const parts *in, const condition *if_)
{
    const ds_json *turned = schema_not(c, if_->test), *before = c->instead;
    parts with = *in;
    uint32_t t;

    if (!turned)
        return c->bad ? 0 : schema_refuse(c, if_->test, "what doesn't fit this can't be written: it is not supported in if");
    c->instead = if_->test;
    join(c, &with, if_->test, if_->test);
    t = value_and(c, &with, if_->then, if_->test);
    with = *in;
    join(c, &with, turned, if_->test);
    t = alt(c, t, value_and(c, &with, if_->otherwise, if_->test));
    c->instead = before;
    return t;
}

static uint32_t conditional(schema *c, const parts *in, uint32_t at, const ds_json *test)
{
    condition if_ = { test, ds_json_get(in->p[at].s, "then"), ds_json_get(in->p[at].s, "else") };
    parts with = *in;
    uint32_t t = none(c), types = types_of(c, in);

    with.p[at].conditional = true;
    if (test->type == DS_JSON_FALSE)
        return value_and(c, &with, if_.otherwise, test);
    if (test->type == DS_JSON_TRUE || (test->n == 0 && test->type == DS_JSON_OBJECT))
        return value_and(c, &with, if_.then, test);
    if (!is_test(test) || !all_decided(c, in, test))
        return c->bad ? 0 : either(c, &with, &if_);
    if (types & ~(uint32_t)OBJECT) {
        parts plain = with;
        join(c, &plain, &no_objects, test);
        t = value_and(c, &plain, ds_json_get(test, "type") ? if_.otherwise : if_.then, test);
    }
    if (types & OBJECT) {
        if (types != OBJECT)
            join(c, &with, &objects, test);
        t = alt(c, t, tested(c, &with, &if_, 0));
    }
    return t;
}

bool schema_cases(schema *c, const parts *in, uint32_t *t)
{
    for (uint32_t i = 0; i < in->n; i++) {
        const ds_json *s = in->p[i].s, *test = in->p[i].conditional ? NULL : ds_json_get(s, "if");
        const ds_json *d = in->p[i].dependent == UINT32_MAX ? NULL : dependency(s, in->p[i].dependent);
        if (test && (ds_json_get(s, "then") || ds_json_get(s, "else")))
            return *t = conditional(c, in, i, test), true;
        if (d && (types_of(c, in) & OBJECT))
            return *t = dependent(c, in, i, d), true;
    }
    return false;
}
