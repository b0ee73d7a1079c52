/* JSON Schema to trees.
 *
 * A value is compiled under a list of schemas that must all hold ("parts"): one to begin with; `allOf`, `$ref`
 * beside other keywords and the branch taken of an `anyOf` join it. So merging needs no schema to be rewritten. A
 * `$ref` alone calls the rule of its target. What is written may be narrower than the schema: keys in the order of
 * the schema, no keys beyond `properties` unless the schema speaks of them, one way to write a constant. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "grammar/schema_internal.h"
#include "schema/schema.h"

/* ---- messages ---- */

/* The JSON pointer of `to` below `at`; appended to b. */
static bool path_of(ds_buf *b, const ds_json *at, const ds_json *to)
{
    size_t len = b->len, i = 0;

    if (at == to)
        return true;
    for (const ds_json *v = at->child; v; v = v->next, i++) {
        if (v->key)
            ds_buf_printf(b, "/%s", v->key);
        else
            ds_buf_printf(b, "/%zu", i);
        if (path_of(b, v, to))
            return true;
        b->len = len;
    }
    return false;
}

uint32_t schema_refuse(schema *c, const ds_json *at, const char *what)
{
    ds_buf b = { 0 };
    char q[220];

    if (!c->bad) {
        if (!path_of(&b, c->root, at) && c->instead)
            path_of(&b, c->root, c->instead);
        ds_fail(c->err, DS_E_ARG, "%s: #%s: %s", c->label ? c->label : "JSON Schema", ds_quote(q, sizeof q, ds_buf_str(&b), b.len), what);
        ds_buf_free(&b);
    }
    c->bad = true;
    return 0;
}

uint32_t schema_regex(schema *c, const char *p)
{
    static const ds_regex_opts plain = { 0 };
    uint32_t t = 0;

    if (ds_regex_tree(&c->f, p, strlen(p), &plain, &t, c->err) != DS_OK)
        c->bad = true;
    return t;
}

uint32_t schema_rule(schema *c, const ds_json *target, const char *name)
{
    if (c->n_refs == c->cap_refs) {
        uint32_t more = c->cap_refs ? 2 * c->cap_refs : 32;
        ref_rule *p = realloc(c->refs, more * sizeof *p);
        if (!p) {
            c->f.failed = true;
            return 0;
        }
        c->refs = p;
        c->cap_refs = more;
    }
    c->refs[c->n_refs] = (ref_rule){ .target = target, .root = c->root, .name = name, .number = ds_rule_new(&c->f, 0) };
    return c->refs[c->n_refs++].number;
}

void schema_forget(schema *c, uint32_t from)
{
    uint32_t *const made[] = { &c->any_rule, &c->string_rule,   &c->char_rule,       &c->rest_rule,
                               &c->raw_rule, &c->raw_char_rule, &c->number_rules[0], &c->number_rules[1] };

    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        *made[i] = *made[i] < from ? *made[i] : 0;
    for (uint32_t i = 0; i < c->n_refs; i++)
        if (c->refs[i].number >= from)
            c->refs[i].target = NULL;
    c->call = c->raw = false;
}

void schema_rule_set(schema *c, uint32_t rule, uint32_t tree)
{
    if (!c->f.failed)
        c->f.rules.p[rule] = tree;
}

void schema_join(schema *c, parts *to, const ds_json *s, const ds_json *at)
{
    if (!s)
        return;
    if (to->n == MOST_PARTS) {
        schema_refuse(c, at, "too many schemas for one value");
        return;
    }
    to->p[to->n++] = (part){ .s = s, .ours = schema_own(s, schema_ours) != NULL };
}

/* ---- values ---- */

uint32_t schema_types(schema *c, const ds_json *s)
{
    static const struct {
        const char *name;
        uint32_t types;
    } known[] = { { "null", NULL_ },    { "boolean", BOOLEAN }, { "integer", INTEGER }, { "number", INTEGER | FRACTION },
                  { "string", STRING }, { "array", ARRAY },     { "object", OBJECT } };
    const ds_json *type = ds_json_get(s, "type"), *never = ds_json_get(s, "not");
    bool list = ds_json_is(type, DS_JSON_ARRAY);
    uint32_t types = 0, without = 0;

    if (never && s->type == DS_JSON_OBJECT && schema_plain_not(never)) {
        uint32_t out = never->type == DS_JSON_FALSE ? 0 : never->type == DS_JSON_OBJECT ? schema_types(c, never) : ALL;
        if ((out & INTEGER) && !(out & FRACTION))
            schema_refuse(c, never, "integers alone can't be left out"); /* 1.0 is one too */
        without = out;
    }
    if (!type)
        return ALL & ~without;
    for (const ds_json *t = list ? type->child : type; t; t = list ? t->next : NULL) {
        uint32_t one = 0;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (ds_json_str_eq(t, known[i].name))
                one = known[i].types;
        if (!one)
            schema_refuse(c, t, "no type");
        types |= one;
    }
    if (ds_json_is(ds_json_get(s, "nullable"), DS_JSON_TRUE))
        types |= NULL_;
    return types & ~without;
}

/* Keywords that say nothing about values. */
bool schema_is_note(const ds_json *k)
{
    static const char *const notes[] = { "title",
                                         "description",
                                         "default",
                                         "examples",
                                         "example",
                                         "deprecated",
                                         "readOnly",
                                         "writeOnly",
                                         "$defs",
                                         "definitions",
                                         "$schema",
                                         "$id",
                                         "$comment",
                                         "contentEncoding",
                                         "contentMediaType",
                                         "contentSchema",
                                         "markdownDescription" };

    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
        if (strcmp(notes[i], k->key) == 0)
            return true;
    return strncmp(k->key, "x-", 2) == 0;
}

/* Keywords that schema_value() deals with. */
static bool known_keyword(const ds_json *k)
{
    static const char *const words[] = {
        "type",
        "enum",
        "const",
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "items",
        "prefixItems",
        "additionalItems",
        "minItems",
        "maxItems",
        "uniqueItems",
        "minProperties",
        "maxProperties",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
        "nullable",
        "propertyNames",
        "contains",
        "minContains",
        "maxContains",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "if",
        "then",
        "else",
        "not",
    };

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i]) == k->key_len && memcmp(words[i], k->key, k->key_len) == 0)
            return true;
    return false;
}

/* Or a schema that is true or false. */
bool schema_plain_not(const ds_json *k)
{
    if (k->type != DS_JSON_OBJECT)
        return true;
    return k->n == 0 || (k->n == 1 && strcmp(k->child->key, "type") == 0);
}

static bool check(schema *c, const ds_json *s)
{
    if (s->type != DS_JSON_OBJECT)
        return true;
    for (const ds_json *k = s->child; k; k = k->next)
        if (!schema_is_note(k) && !known_keyword(k))
            return schema_refuse(c, k, "this keyword is not supported"), false;
    return true;
}

/* A step of a reference leads from a schema to one: by a keyword, and where that holds several, by a name or a
 * number. What lies at other places wasn't checked to be a schema. */
static bool leads_to_schema(const char *p)
{
    static const char
        *const single[] = { "items", "additionalProperties", "additionalItems", "propertyNames", "contains", "if", "then", "else", "not" },
               *const several[] = { "properties", "patternProperties", "$defs",           "definitions", "anyOf", "oneOf",
                                    "allOf",      "prefixItems",       "dependentSchemas" };

    if (*p++ != '#')
        return false;
    while (*p) {
        size_t n;
        bool one = false, many = false;
        if (*p++ != '/')
            return false;
        n = strcspn(p, "/");
        for (size_t i = 0; i < sizeof single / sizeof *single; i++)
            one |= strlen(single[i]) == n && memcmp(single[i], p, n) == 0;
        for (size_t i = 0; i < sizeof several / sizeof *several; i++)
            many |= strlen(several[i]) == n && memcmp(several[i], p, n) == 0;
        p += n;
        if (many) {
            if (*p++ != '/')
                return false;
            p += strcspn(p, "/");
        } else if (!one) {
            return false;
        }
    }
    return true;
}

const ds_json *schema_target(schema *c, const ds_json *ref)
{
    const ds_json *target = NULL;

    if (ds_json_is(ref, DS_JSON_STRING) && leads_to_schema(ref->text))
        target = ds_schema_resolve(c->root, ref);
    if (!target)
        schema_refuse(c, ref, "only references to schemas within this one are supported");
    return target && (target->type == DS_JSON_OBJECT || target->type == DS_JSON_TRUE || target->type == DS_JSON_FALSE) ? target : NULL;
}

/* Whether no value fits both, as far as that can be told from types, constants and required members. */
static bool disjoint(schema *c, const ds_json *a, const ds_json *b, uint32_t depth)
{
    for (int i = 0; i < 8 && ds_json_get(a, "$ref"); i++)
        a = schema_target(c, ds_json_get(a, "$ref"));
    for (int i = 0; i < 8 && ds_json_get(b, "$ref"); i++)
        b = schema_target(c, ds_json_get(b, "$ref"));
    if (!a || !b || depth > 8 || ++c->work > MOST_WORK)
        return false;
    if (a->type == DS_JSON_FALSE || b->type == DS_JSON_FALSE)
        return true;
    if (a->type != DS_JSON_OBJECT || b->type != DS_JSON_OBJECT)
        return false;
    if (!(schema_types(c, a) & schema_types(c, b)))
        return true;
    for (int side = 0; side < 2; side++) {
        const ds_json *x = side ? b : a, *y = side ? a : b, *one = ds_json_get(x, "const"), *all = ds_json_get(x, "enum");
        if (one && !ds_schema_matches_in(c->root, y, one, NULL))
            return true;
        if (!one && ds_json_is(all, DS_JSON_ARRAY)) {
            const ds_json *e = all->child;
            while (e && !ds_schema_matches_in(c->root, y, e, NULL))
                e = ++c->work > MOST_WORK ? NULL : e->next;
            if (!e && c->work <= MOST_WORK)
                return true;
        }
    }
    if (schema_types(c, a) != OBJECT || schema_types(c, b) != OBJECT)
        return false;
    for (int side = 0; side < 2; side++) {
        const ds_json *x = side ? b : a, *y = side ? a : b, *list = ds_json_get(x, "required");
        for (const ds_json *r = list ? list->child : NULL; r; r = r->next) {
            const ds_json *p = ds_json_get(ds_json_get(x, "properties"), r->text), *q = ds_json_get(ds_json_get(y, "properties"), r->text);
            if (!q && ds_json_is(ds_json_get(y, "additionalProperties"), DS_JSON_FALSE) && !ds_json_get(y, "patternProperties"))
                return true;
            if (p && q && disjoint(c, p, q, depth + 1))
                return true;
        }
    }
    return false;
}

static uint32_t branches(schema *c, const parts *in, uint32_t at, const ds_json *list, bool one)
{
    uint32_t t = none(c), i = 0;

    for (const ds_json *b = list->child; b && !c->bad; b = b->next, i++) {
        parts with = *in;
        for (const ds_json *d = one ? list->child : NULL; d && !c->bad; d = d->next) { /* none of the others */
            const ds_json *turned = NULL;
            if (d == b || !check(c, b) || !check(c, d) || disjoint(c, b, d, 0))
                continue;
            turned = schema_not(c, d);
            if (!turned)
                return c->bad ? 0 : schema_refuse(c, list, "alternatives that can't be told apart are not supported in oneOf");
            schema_join(c, &with, turned, list);
        }
        *(one ? &with.p[at].one : &with.p[at].any) = true;
        schema_join(c, &with, b, list);
        t = alt(c, t, schema_value(c, &with));
    }
    return t;
}

/* A constant as it is written: the value's members in its order, white space as between other tokens. */
static uint32_t constant(schema *c, const ds_json *v)
{
    bool list = v->type == DS_JSON_ARRAY;
    uint32_t t, one;
    ds_buf b = { 0 };

    if (!list && v->type != DS_JSON_OBJECT) {
        ds_json_write(&b, v, DS_JSON_COMPACT);
        c->f.failed |= b.oom;
        t = ds_tree_text(&c->f, ds_buf_str(&b), b.len);
        ds_buf_free(&b);
        return t;
    }
    t = cat(c, text(c, list ? "[" : "{"), c->space);
    for (const ds_json *m = v->child; m; m = m->next) {
        one = constant(c, m);
        if (!list) {
            ds_json_write_str(&b, m->key, m->key_len, DS_JSON_COMPACT);
            c->f.failed |= b.oom;
            one = cat(c, cat(c, ds_tree_text(&c->f, ds_buf_str(&b), b.len), c->space), cat(c, cat(c, text(c, ":"), c->space), one));
            ds_buf_free(&b);
        }
        t = cat(c, cat(c, t, one), c->space);
        if (m->next)
            t = cat(c, cat(c, t, text(c, ",")), c->space);
    }
    return cat(c, t, text(c, list ? "]" : "}"));
}

/* Checks what lies below a schema too: constants are judged by the matcher, which knows no more keywords than this
 * front end, and must not pass over others. */
static bool check_below(schema *c, const ds_json *s, uint32_t depth)
{
    static const char
        *const single[] = { "items", "additionalProperties", "additionalItems", "propertyNames", "contains", "if", "then", "else", "not" },
               *const several[] = {
                   "properties", "patternProperties", "dependentSchemas", "dependencies", "anyOf", "oneOf", "allOf", "prefixItems", "items"
               };
    const ds_json *ref = ds_json_get(s, "$ref"), *k;

    if (depth > 32 || ++c->work > MOST_WORK)
        return schema_refuse(c, s, "too much below constants"), false;
    if (!check(c, s) || (ref && !((k = schema_target(c, ref)) ? check_below(c, k, depth + 1) : false)))
        return false;
    for (size_t i = 0; i < sizeof single / sizeof *single; i++)
        if (ds_json_is(k = ds_json_get(s, single[i]), DS_JSON_OBJECT) && !check_below(c, k, depth + 1))
            return false;
    for (size_t i = 0; i < sizeof several / sizeof *several; i++) {
        k = ds_json_get(s, several[i]);
        for (k = ds_json_is(k, DS_JSON_ARRAY) || i < 4 ? (k ? k->child : NULL) : NULL; k; k = k->next)
            if (k->type == DS_JSON_OBJECT && !check_below(c, k, depth + 1))
                return false;
    }
    return true;
}

static uint32_t constants(schema *c, const parts *in, const ds_json *list, bool single)
{
    uint32_t t = none(c), n = 0, *words = malloc((single ? 1 : list->n) * sizeof *words + 1);

    c->f.failed |= !words;
    for (const ds_json *v = single ? list : list->child; v && words; v = single ? NULL : v->next) {
        bool ok = true, deep = v->type == DS_JSON_ARRAY || v->type == DS_JSON_OBJECT;
        for (uint32_t i = 0; i < in->n && deep; i++)
            if (!check_below(c, in->p[i].s, 0))
                goto out;
        for (uint32_t i = 0; i < in->n && ok; i++)
            ok = ds_schema_matches_in(c->root, in->p[i].s, v, list);
        if (++c->work > MOST_WORK) {
            schema_refuse(c, list, "too many constants under alternatives");
            goto out;
        }
        if (!ok)
            continue;
        if (c->call) {
            schema_refuse(c, list, "constants of whole calls are not supported");
            goto out;
        }
        if (c->raw) /* another part says that it is a string */
            words[n++] = ds_tree_text(&c->f, v->text, v->text_len);
        else if (deep)
            t = alt(c, t, constant(c, v));
        else
            words[n++] = constant(c, v);
    }
    t = alt(c, t, ds_tree_words(&c->f, words, n));
out:
    free(words);
    return t;
}

static uint32_t any_value(schema *c)
{
    static const parts all = { .p = { { .s = NULL } }, .n = 0 };
    uint32_t t;

    if (!c->any_rule) {
        c->any_rule = schema_rule(c, NULL, "value");
        t = alt(c, alt(c, schema_any_string(c), schema_number(c, &all, true)), schema_regex(c, "true|false|null"));
        t = alt(c, t, alt(c, schema_array(c, &all), schema_object(c, &all)));
        schema_rule_set(c, c->any_rule, t);
    }
    return ds_tree_call(&c->f, c->any_rule);
}

static uint32_t call(schema *c, const ds_json *ref)
{
    const ds_json *target = schema_target(c, ref);

    if (!target)
        return 0;
    for (uint32_t i = 0; i < c->n_refs; i++)
        if (c->refs[i].target == target)
            return ds_tree_call(&c->f, c->refs[i].number);
    return ds_tree_call(&c->f, schema_rule(c, target, ref->text));
}

/* What a part says that isn't dealt with yet: nothing (0), only a $ref (1), more (2). */
static int says(const part *p)
{
    bool ref = false;

    if (p->s->type != DS_JSON_OBJECT)
        return p->s->type == DS_JSON_TRUE ? 0 : 2;
    for (const ds_json *k = p->s->child; k; k = k->next) {
        bool note = (p->any && strcmp(k->key, "anyOf") == 0) || (p->one && strcmp(k->key, "oneOf") == 0) ||
                    (p->all && strcmp(k->key, "allOf") == 0) || (p->ref && strcmp(k->key, "$ref") == 0);
        note |= schema_is_note(k);
        if (!note && strcmp(k->key, "$ref") != 0)
            return 2;
        ref |= !note;
    }
    return ref;
}

/* Drops the parts that say nothing more. */
static void drop_silent(parts *p)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->n; i++)
        if (says(&p->p[i]))
            p->p[n++] = p->p[i];
    p->n = n;
}

static uint32_t by_type(schema *c, const parts *in)
{
    uint32_t types = ALL, t = none(c);
    const ds_json *list = NULL;
    bool single = false;

    for (uint32_t i = 0; i < in->n; i++) {
        const ds_json *one = ds_json_get(in->p[i].s, "const"), *all = ds_json_get(in->p[i].s, "enum");
        types &= schema_types(c, in->p[i].s);
        if (one || (all && !single)) {
            list = one ? one : all;
            single = one != NULL;
        }
    }
    if (list)
        return constants(c, in, list, single);
    if (types & NULL_)
        t = alt(c, t, text(c, "null"));
    if (types & BOOLEAN)
        t = alt(c, t, alt(c, text(c, "true"), text(c, "false")));
    if (types & INTEGER)
        t = alt(c, t, schema_number(c, in, (types & FRACTION) != 0));
    if (types & STRING)
        t = alt(c, t, schema_string(c, in));
    if (types & ARRAY)
        t = alt(c, t, schema_array(c, in));
    if (types & OBJECT)
        t = alt(c, t, schema_object(c, in));
    return t;
}

bool schema_expand(schema *c, parts *p, bool refs)
{
    for (uint32_t i = 0; i < p->n && !c->bad; i++) {
        const ds_json *s = p->p[i].s, *ref = ds_json_get(s, "$ref"), *all = ds_json_get(s, "allOf");
        if (s->type == DS_JSON_FALSE)
            return false;
        if (!check(c, s))
            return false;
        if (refs && ref && !p->p[i].ref) {
            const ds_json *target = schema_target(c, ref);
            p->p[i].ref = true;
            if (!target)
                return false;
            schema_join(c, p, target, ref);
        }
        if (all && !p->p[i].all) {
            p->p[i].all = true;
            for (const ds_json *a = all->child; a; a = a->next)
                schema_join(c, p, a, all);
        }
    }
    return !c->bad;
}

bool schema_each(schema *c, const parts *in, uint32_t *trees, uint32_t most, uint32_t *n)
{
    static const char *const words[] = { "null", "true", "false" };
    const ds_json *seen[MOST_MEMBERS], *list = NULL;
    uint32_t types = ALL;
    parts p = *in;

    *n = 0;
    if (!schema_expand(c, &p, true))
        return !c->bad;
    for (uint32_t i = 0; i < p.n; i++) {
        const ds_json *one = ds_json_get(p.p[i].s, "const"), *all = ds_json_get(p.p[i].s, "enum");
        const ds_json *never = ds_json_get(p.p[i].s, "not");
        if (ds_json_get(p.p[i].s, "anyOf") || ds_json_get(p.p[i].s, "oneOf") || ds_json_get(p.p[i].s, "if") ||
            (never && !schema_plain_not(never)))
            return false;
        types &= schema_types(c, p.p[i].s);
        list = one ? one : all && !list ? all : list;
    }
    if (!list) {
        for (uint32_t i = 0; i < 3; i++)
            if (types & (i ? BOOLEAN : NULL_))
                trees[(*n)++] = text(c, words[i]);
        return !(types & ~(uint32_t)(BOOLEAN | NULL_));
    }
    for (const ds_json *v = list->key && strcmp(list->key, "const") == 0 ? list : list->child; v; v = v == list ? NULL : v->next) {
        parts one = p;
        uint32_t k = 0;
        while (k < *n && !ds_schema_same(seen[k], v))
            k++;
        if (k < *n)
            continue;
        if (*n == most || *n == MOST_MEMBERS)
            return false;
        seen[*n] = v;
        trees[*n] = constants(c, &one, v, true);
        if (!c->f.failed && c->f.trees.p[trees[*n]].kind != T_NONE)
            ++*n;
    }
    return true;
}

static uint32_t forbidden(schema *c, const parts *in, uint32_t at, const ds_json *never)
{
    const ds_json *turned = schema_not(c, never), *before = c->instead;
    parts with = *in;
    uint32_t t;

    if (!turned)
        return c->bad ? 0 : schema_refuse(c, never, "what doesn't fit this can't be written: it is not supported in not");
    with.p[at].never = true;
    schema_join(c, &with, turned, never);
    c->instead = never;
    t = schema_value(c, &with);
    c->instead = before;
    return t;
}

static uint32_t value_of(schema *c, const parts *in)
{
    parts p = *in;
    uint32_t t;

    if (!schema_expand(c, &p, false))
        return none(c);
    drop_silent(&p);
    if (p.n == 0)
        return any_value(c);
    if (p.n == 1 && says(&p.p[0]) == 1)
        return call(c, ds_json_get(p.p[0].s, "$ref"));
    if (!schema_expand(c, &p, true))
        return none(c);
    for (uint32_t i = 0; i < p.n; i++) {
        const ds_json *any = ds_json_get(p.p[i].s, "anyOf"), *one = ds_json_get(p.p[i].s, "oneOf");
        if (any && !p.p[i].any)
            return branches(c, &p, i, any, false);
        if (one && !p.p[i].one)
            return branches(c, &p, i, one, true);
    }
    for (uint32_t i = 0; i < p.n; i++) {
        const ds_json *never = ds_json_get(p.p[i].s, "not");
        if (never && !schema_plain_not(never) && !p.p[i].never && !schema_own(p.p[i].s, schema_others))
            return forbidden(c, &p, i, never);
    }
    return schema_cases(c, &p, &t) ? t : by_type(c, &p);
}

uint32_t schema_value(schema *c, const parts *in)
{
    uint32_t t;

    if (c->bad || c->f.failed)
        return 0;
    if (++c->values > MOST_VALUES || c->depth >= DEEPEST)
        return schema_refuse(c, in->n ? in->p[0].s : c->root,
                             c->depth >= DEEPEST ? "nested too deeply" : "too many combinations of alternatives");
    c->depth++;
    t = value_of(c, in);
    c->depth--;
    return t;
}

/* ---- whole grammars ---- */

void schema_begin(schema *c, const ds_grammar_opts *opts, ds_err *err)
{
    *c = (schema){ .err = err };
    ds_forest_init(&c->f, opts);
    c->space = opts && opts->compact ? 0 : schema_regex(c, "(?: |\\r?\\n[ \\t]*)?");
}

void schema_rules(schema *c)
{
    for (uint32_t i = 0; i < c->n_refs && !c->bad && !c->f.failed; i++)
        if (c->refs[i].target && !c->refs[i].done) {
            parts one = { .n = 1, .p = { { .s = c->refs[i].target } } };
            c->refs[i].done = true;
            c->root = c->refs[i].root;
            /* the rule of a target isn't a call of itself: a $ref that is nothing else is followed */
            schema_rule_set(c, c->refs[i].number, schema_value(c, &one));
        }
}

ds_rc schema_end(schema *c, ds_grammar **out, const char *what)
{
    const char **names = malloc((c->f.rules.n + 1) * sizeof *names);
    ds_rc rc = DS_E_ARG;

    c->f.failed |= !names;
    for (uint32_t i = 0; i < c->f.rules.n && names; i++)
        names[i] = "of a tool";
    for (uint32_t i = 0; i < c->n_refs && !c->f.failed; i++)
        names[c->refs[i].number] = c->refs[i].name;
    if (!c->bad)
        rc = ds_grammar_build(out, &c->f, names, what, c->err);
    free(names);
    free(c->refs);
    for (schema_made *m = c->made, *next; m; m = next) {
        next = m->next;
        free(m);
    }
    ds_forest_free(&c->f);
    return rc;
}

ds_rc ds_grammar_json_schema(ds_grammar **out, const ds_json *root, const ds_grammar_opts *opts, ds_err *err)
{
    schema c;
    char what[160];
    ds_err own;

    *out = NULL;
    if (!ds_schema_valid(root, what, sizeof what))
        return ds_fail(err, DS_E_ARG, "JSON Schema: %s", what);
    schema_begin(&c, opts, err ? err : &own);
    c.root = root;
    schema_rule(&c, root, "#");
    schema_rules(&c);
    return schema_end(&c, out, "JSON Schema");
}

ds_rc ds_grammar_json(ds_grammar **out, bool object, const ds_grammar_opts *opts, ds_err *err)
{
    static const ds_json type = { .type = DS_JSON_STRING, .key = "type", .key_len = 4, .text = "object", .text_len = 6 };
    static const ds_json objects = { .type = DS_JSON_OBJECT, .n = 1, .child = &type }, any = { .type = DS_JSON_TRUE };

    return ds_grammar_json_schema(out, object ? &objects : &any, opts, err);
}
