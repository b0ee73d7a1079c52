/* Arrays and objects of a JSON Schema. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "grammar/schema_internal.h"
#include "schema/schema.h"

enum { MOST_PLACES_OF_A_KIND = 64, MOST_PATTERNS = 16 };

static const ds_json no_name = { .type = DS_JSON_FALSE };

/* What stands between elements or members. */
static uint32_t comma(schema *c)
{
    if (c->call)
        return text(c, "\n");
    return cat(c, cat(c, c->space, text(c, ",")), c->space);
}

/* Element i of arrays, or those behind the first ones: what each part says of it. */
static void element_parts(schema *c, const parts *in, size_t i, bool rest, parts *of)
{
    of->n = 0;
    for (uint32_t k = 0; k < in->n; k++) {
        const ds_json *s = in->p[k].s, *items = ds_json_get(s, "items"), *first = ds_json_get(s, "prefixItems"), *e = NULL;
        if (ds_json_is(items, DS_JSON_ARRAY)) { /* before 2020-12 */
            first = items;
            items = ds_json_get(s, "additionalItems");
        }
        if (!rest)
            e = ds_json_at(first, i);
        schema_join(c, of, e ? e : items, s);
    }
}

static uint32_t element(schema *c, const parts *in, size_t i, bool rest)
{
    parts of;

    element_parts(c, in, i, rest, &of);
    return schema_value(c, &of);
}

static uint32_t brackets(schema *c, uint32_t body)
{
    return cat(c, cat(c, text(c, "["), c->space), cat(c, body, cat(c, c->space, text(c, "]"))));
}

/* Elements that are all different: each of a few values at most once. */
static uint32_t different(schema *c, const parts *in, const ds_json *at, size_t prefix, uint64_t min, uint64_t max)
{
    uint32_t trees[MOST_MEMBERS], n = 0;
    ds_member_item list[MOST_MEMBERS];
    ds_members m = { .min = (uint32_t)min, .max = max < UINT32_MAX ? (uint32_t)max : UNKNOWN };
    parts of;

    element_parts(c, in, 0, true, &of);
    if (prefix || !schema_each(c, &of, trees, MOST_MEMBERS, &n))
        return schema_refuse(c, at, "uniqueItems is supported for elements of an enum of at most 256 values, or of at most one element");
    if (min > n)
        return none(c);
    for (uint32_t i = 0; i < n; i++)
        list[i] = (ds_member_item){ .rule = ds_rule_new(&c->f, trees[i]) };
    m.n = n;
    m.separator = ds_rule_new(&c->f, comma(c));
    return brackets(c, ds_tree_members(&c->f, m, list));
}

/* What `contains` of the parts asks for: least to most elements of a kind. */
typedef struct {
    const ds_json *kind; /* NULL: nothing */
    uint64_t least, most;
} kinds;

/* Elements of which so many are of a kind: a rule for each place and number found so far, of what comes then. Without a
 * bound the last place stays; where only the least number matters, any element will do for one that isn't counted. */
static uint32_t some_of_a_kind(schema *c, const parts *in, const kinds *k, size_t prefix, uint64_t min, uint64_t max)
{
    uint64_t rows = max != UINT64_MAX ? max : min > prefix ? min : prefix, found = k->most != UINT64_MAX ? k->most : k->least;
    uint32_t sep = comma(c), counted[MOST_PLACES_OF_A_KIND + 1], other[MOST_PLACES_OF_A_KIND + 1], first;
    const ds_json *without = k->most != UINT64_MAX ? schema_not(c, k->kind) : NULL;

    rows += rows == 0;
    if (rows > MOST_PLACES_OF_A_KIND || found > MOST_PLACES_OF_A_KIND)
        return schema_refuse(c, k->kind, "contains is supported with at most 64 elements, where that is bounded, and 64 that are counted");
    if (k->most != UINT64_MAX && !without)
        return c->bad ? 0 : schema_refuse(c, k->kind, "what doesn't fit this can't be written: it is not supported beside maxContains");
    for (uint32_t i = 0; i <= rows; i++) {
        const ds_json *before = c->instead;
        parts of, of_kind;
        if (i > prefix) { /* as the one before */
            counted[i] = counted[i - 1];
            other[i] = other[i - 1];
            continue;
        }
        element_parts(c, in, i, i == prefix, &of);
        of_kind = of;
        schema_join(c, &of_kind, k->kind, k->kind);
        schema_join(c, &of, without, k->kind);
        c->instead = k->kind;
        counted[i] = ds_tree_call(&c->f, ds_rule_new(&c->f, schema_value(c, &of_kind)));
        other[i] = ds_tree_call(&c->f, ds_rule_new(&c->f, schema_value(c, &of)));
        c->instead = before;
    }
    first = c->f.rules.n;
    for (uint32_t i = 0; i < (rows + 1) * (found + 1) && !c->bad && !c->f.failed; i++)
        schema_rule(c, NULL, "elements");
    for (uint32_t i = 0; i <= rows && !c->bad && !c->f.failed; i++)
        for (uint32_t n = 0; n <= found; n++) {
            uint32_t row = first + i * (uint32_t)(found + 1), next = i < rows ? row + (uint32_t)found + 1 : row, more = none(c);
            if (i < rows || max == UINT64_MAX) {
                more = cat(c, other[i], ds_tree_call(&c->f, next + n));
                if (n < found || k->most == UINT64_MAX)
                    more = alt(c, more, cat(c, counted[i], ds_tree_call(&c->f, next + (n < found ? n + 1 : n))));
                more = i ? cat(c, sep, more) : more;
            }
            schema_rule_set(c, row + n, i >= min && n >= k->least ? alt(c, ds_tree_new(&c->f, T_EMPTY, 0, 0), more) : more);
        }
    return brackets(c, ds_tree_call(&c->f, first));
}

/* The one keyword contains of the parts that asks for anything; false: it is refused. */
static bool kind_of(schema *c, const parts *in, kinds *k)
{
    *k = (kinds){ 0 };
    for (uint32_t i = 0; i < in->n; i++) {
        const ds_json *s = in->p[i].s, *one = ds_json_get(s, "contains");
        kinds own = { one, 1, UINT64_MAX };
        if (!one)
            continue;
        ds_schema_count(ds_json_get(s, "minContains"), &own.least);
        ds_schema_count(ds_json_get(s, "maxContains"), &own.most);
        if (own.least == 0 && own.most == UINT64_MAX)
            continue;
        if (k->kind)
            return schema_refuse(c, one, "two of contains for one array are not supported"), false;
        *k = own;
    }
    return true;
}

uint32_t schema_array(schema *c, const parts *in)
{
    uint64_t min, max;
    size_t prefix = 0, shown;
    uint32_t t, sep = comma(c), rest;
    const ds_json *unique = NULL;
    kinds k;

    schema_count(in, "minItems", "maxItems", &min, &max);
    for (uint32_t i = 0; i < in->n; i++) {
        const ds_json *items = ds_json_get(in->p[i].s, "items"), *first = ds_json_get(in->p[i].s, "prefixItems");
        first = ds_json_is(items, DS_JSON_ARRAY) ? items : first;
        if (ds_json_is(first, DS_JSON_ARRAY) && first->n > prefix)
            prefix = first->n;
        if (ds_json_is(ds_json_get(in->p[i].s, "uniqueItems"), DS_JSON_TRUE) && max > 1)
            unique = ds_json_get(in->p[i].s, "uniqueItems");
    }
    if (min > max)
        return none(c);
    if (min > c->f.opts.max_nodes || (max != UINT64_MAX && max > c->f.opts.max_nodes)) {
        c->f.failed = c->f.large = true;
        return 0;
    }
    if (!kind_of(c, in, &k))
        return 0;
    if (k.kind && (k.least > max || k.least > k.most))
        return none(c);
    if (unique && k.kind)
        return schema_refuse(c, k.kind, "contains beside uniqueItems is not supported");
    if (unique)
        return different(c, in, unique, prefix, min, max);
    if (k.kind)
        return some_of_a_kind(c, in, &k, prefix, min, max);
    shown = prefix < max ? prefix : (size_t)max;
    if (max > prefix) {
        rest = element(c, in, 0, true);
        uint32_t least = min > prefix ? (uint32_t)(min - prefix) : 0, most = max == UINT64_MAX ? TREE_UNBOUNDED : (uint32_t)(max - prefix);
        if (prefix) {
            t = ds_tree_repeat(&c->f, cat(c, sep, rest), least, most);
        } else {
            t = cat(c, rest, ds_tree_repeat(&c->f, cat(c, sep, rest), least ? least - 1 : 0, most == TREE_UNBOUNDED ? most : most - 1));
            t = least ? t : maybe(c, t);
        }
    } else {
        t = 0;
    }
    for (size_t i = shown; i-- > 0;) {
        t = cat(c, element(c, in, i, false), t);
        t = i ? cat(c, sep, t) : t;
        t = i < min ? t : maybe(c, t);
    }
    return brackets(c, t);
}

typedef struct {
    const ds_json **p; /* members of `properties`, or strings of `required`: unique names */
    uint32_t n;
} names;

static const char *name_of(const ds_json *k, uint32_t *n)
{
    *n = k->key ? k->key_len : k->text_len;
    return k->key ? k->key : k->text;
}

static int name_compare(const void *a, const void *b)
{
    uint32_t n, m;
    const char *p = name_of(*(const ds_json *const *)a, &n), *q = name_of(*(const ds_json *const *)b, &m);
    int c = memcmp(p, q, n < m ? n : m);

    return c ? c : (n > m) - (n < m);
}

/* The characters behind `at` bytes of the sorted names[0..n): any but those of a name. */
static uint32_t other_than(schema *c, const ds_json *const *list, uint32_t n, uint32_t at)
{
    ds_set others = { 0 };
    uint32_t t = 0, i = 0;
    bool ends = false;

    if (n == 0)
        return schema_plain_rest(c);
    t = none(c);
    while (i < n) {
        uint32_t len, k, cp = 0;
        const char *p = name_of(list[i], &len);
        size_t bytes;
        if (len == at) {
            ends = true;
            i++;
            continue;
        }
        bytes = ds_utf8_decode(p + at, len - at, &cp);
        for (k = i + 1; k < n; k++) {
            uint32_t m;
            const char *q = name_of(list[k], &m);
            if (m < at + bytes || memcmp(p, q, at + bytes) != 0)
                break;
        }
        if (cp >= 0x20 && cp != '"' && cp != '\\') { /* a name with others can't be written here */
            t = alt(c, t, cat(c, ds_tree_text(&c->f, p + at, bytes), other_than(c, list + i, k - i, at + (uint32_t)bytes)));
            c->f.failed |= !ds_set_add(&others, cp, cp);
        }
        i = k;
    }
    c->f.failed |=
        !(ds_set_add(&others, 0, 0x1f) && ds_set_add(&others, '"', '"') && ds_set_add(&others, '\\', '\\') && ds_set_invert(&others));
    t = alt(c, t, cat(c, ds_tree_class(&c->f, &others), schema_plain_rest(c)));
    free(others.p);
    return ends ? t : maybe(c, t);
}

uint32_t schema_other_strings(schema *c, const ds_json *list)
{
    const ds_json **p = malloc((list->n + 1) * sizeof *p);
    uint32_t n = 0, t = 0;

    c->f.failed |= !p;
    for (const ds_json *v = list->child; v && p && !c->bad; v = v->next) {
        if (v->text_len > LONGEST_NAME)
            schema_refuse(c, v, "a string of more than 256 bytes that is not allowed is not supported");
        p[n++] = v;
    }
    if (p && !c->bad) {
        qsort(p, n, sizeof *p, name_compare);
        t = other_than(c, p, n, 0);
    }
    free(p);
    return t;
}

bool schema_member(schema *c, const parts *in, const char *name, uint32_t n, parts *out)
{
    out->n = 0;
    for (uint32_t i = 0; i < in->n; i++) {
        const ds_json *s = in->p[i].s, *own = ds_json_get(ds_json_get(s, "properties"), name);
        const ds_json *patterns = ds_json_get(s, "patternProperties");
        bool known = own != NULL;
        schema_join(c, out, own, s);
        for (const ds_json *p = patterns ? patterns->child : NULL; p; p = p->next)
            if (ds_schema_pattern_matches((ds_str){ p->key, p->key_len }, (ds_str){ name, n })) {
                schema_join(c, out, p, s);
                known = true;
            }
        if (!known)
            schema_join(c, out, ds_json_get(s, "additionalProperties"), s);
    }
    for (uint32_t i = 0; i < out->n; i++)
        if (out->p[i].s->type == DS_JSON_FALSE)
            return false;
    return true;
}

bool schema_required(const parts *in, const char *name)
{
    for (uint32_t i = 0; i < in->n; i++) {
        const ds_json *list = ds_json_get(in->p[i].s, "required");
        for (const ds_json *r = list ? list->child : NULL; r; r = r->next)
            if (ds_json_str_eq(r, name))
                return true;
    }
    return false;
}

/* A member: its key as written, and what fits. */
static uint32_t member_tree(schema *c, uint32_t key, const parts *of)
{
    uint32_t colon;

    if (c->call)
        return schema_parameter(c, key, of);
    colon = cat(c, c->space, cat(c, text(c, ":"), c->space));
    return cat(c, key, cat(c, colon, schema_value(c, of)));
}

/* The key between its quotes, where it has any. */
static uint32_t quoted_key(schema *c, uint32_t key)
{
    return c->call ? key : schema_quoted(c, key);
}

/* ---- names that aren't declared ---- */

/* What the parts say of a member whose name matches the pattern, and no other; false: one forbids it. */
static bool matched(schema *c, const parts *in, const ds_json *pattern, parts *of)
{
    of->n = 0;
    for (uint32_t i = 0; i < in->n; i++) {
        const ds_json *own = ds_json_get(ds_json_get(in->p[i].s, "patternProperties"), pattern->key);
        const ds_json *say = own ? own : ds_json_get(in->p[i].s, "additionalProperties");
        if (ds_json_is(say, DS_JSON_FALSE))
            return false;
        schema_join(c, of, say, in->p[i].s);
    }
    return true;
}

/* Members that match a pattern. Two patterns of one name would need what fits both, and what fits one alone. */
static uint32_t by_pattern(schema *c, const ds_json *const *patterns, uint32_t n, const parts *in, const names *known)
{
    const ds_regex_opts inside = { .search = true, .json = true, .ecma = true };
    uint32_t t = 0, key;
    parts of;

    for (uint32_t i = 0; i < n && !c->bad; i++) {
        const ds_json *p = patterns[i];
        for (uint32_t k = 0; k < known->n; k++) {
            uint32_t bytes;
            const char *name = name_of(known->p[k], &bytes);
            if (ds_schema_pattern_matches((ds_str){ p->key, p->key_len }, (ds_str){ name, bytes }))
                return schema_refuse(c, p, "a pattern that a declared property matches is not supported");
        }
        for (uint32_t k = 0; k < i; k++)
            if (!ds_regex_apart((ds_str){ patterns[k]->key, patterns[k]->key_len }, (ds_str){ p->key, p->key_len }))
                return schema_refuse(c, p, "two patterns that one name matches, as far as can be told, are not supported");
        if (c->call)
            return schema_refuse(c, p, "patternProperties of a call's parameters are not supported");
        if (!matched(c, in, p, &of))
            continue;
        if (ds_regex_tree(&c->f, p->key, p->key_len, &inside, &key, c->err) != DS_OK) {
            ds_err why = *c->err;
            return schema_refuse(c, p, why.msg);
        }
        key = member_tree(c, quoted_key(c, key), &of);
        t = t ? alt(c, t, key) : key;
    }
    return t;
}

/* All that propertyNames of the parts say; false: it is refused. What it holds is what a string's schema does. */
static bool name_parts(schema *c, const parts *in, parts *of)
{
    static const char *const words[] = { "type", "const", "enum", "pattern", "minLength", "maxLength", "$ref", "allOf" };

    of->n = 0;
    for (uint32_t i = 0; i < in->n; i++)
        schema_join(c, of, ds_json_get(in->p[i].s, "propertyNames"), in->p[i].s);
    if (!schema_expand(c, of, true)) { /* no name fits */
        of->n = 1;
        of->p[0] = (part){ .s = &no_name };
        return !c->bad;
    }
    for (uint32_t i = 0; i < of->n; i++)
        for (const ds_json *k = of->p[i].s->child; k; k = k->next) {
            bool fine = schema_is_note(k);
            for (size_t w = 0; w < sizeof words / sizeof *words; w++)
                fine |= strcmp(words[w], k->key) == 0;
            if (!fine)
                return schema_refuse(c, k, "this keyword is not supported in propertyNames"), false;
        }
    return true;
}

static bool name_fits(schema *c, const parts *of, const char *name, uint32_t n)
{
    ds_json v = { .type = DS_JSON_STRING, .text = name, .text_len = n };

    for (uint32_t i = 0; i < of->n; i++)
        if (!ds_schema_matches_in(c->root, of->p[i].s, &v, NULL))
            return false;
    return true;
}

/* The names that an enum or a const in propertyNames leaves; NULL: it isn't that. */
static const ds_json *few_names(const parts *of)
{
    for (uint32_t i = 0; i < of->n; i++) {
        const ds_json *one = ds_json_get(of->p[i].s, "const"), *all = ds_json_get(of->p[i].s, "enum");
        if (one || all || of->p[i].s->type == DS_JSON_FALSE)
            return one ? one : all ? all : of->p[i].s;
    }
    return NULL;
}

/* Without additionalProperties there are no names beside those of such a schema. */
static bool declares(const ds_json *s)
{
    const ds_json *own = ds_json_get(s, "properties"), *list = ds_json_get(s, "required");

    return (own && own->n) || (list && list->n);
}

/* Members that are none of the names: the tree, or 0 when there may be none. only: what propertyNames say. */
static uint32_t extra(schema *c, const parts *in, names *known, const parts *only)
{
    const ds_json *patterns[MOST_PATTERNS], *last = NULL;
    parts of = { .n = 0 };
    uint32_t n = 0;
    bool declared = false, open = false;

    if (few_names(only))
        return 0; /* they are all known */
    for (uint32_t i = 0; i < in->n; i++) {
        const ds_json *list = ds_json_get(in->p[i].s, "patternProperties");
        for (const ds_json *p = list ? list->child : NULL; p; p = p->next) {
            uint32_t k = 0;
            while (k < n && (patterns[k]->key_len != p->key_len || memcmp(patterns[k]->key, p->key, p->key_len) != 0))
                k++;
            if (k == MOST_PATTERNS)
                return schema_refuse(c, p, "more than 16 patterns in patternProperties are not supported");
            if (k == n)
                patterns[n++] = last = p;
        }
        declared |= !in->p[i].ours && declares(in->p[i].s);
        open |= ds_json_get(in->p[i].s, "additionalProperties") != NULL;
    }
    if (n && only->n)
        return schema_refuse(c, last, "patternProperties beside propertyNames are not supported");
    if (n)
        return by_pattern(c, patterns, n, in, known);
    for (uint32_t i = 0; i < in->n; i++) {
        const ds_json *more = ds_json_get(in->p[i].s, "additionalProperties");
        if (ds_json_is(more, DS_JSON_FALSE))
            return 0;
        schema_join(c, &of, more, in->p[i].s);
    }
    if (!open && declared)
        return 0;
    if (only->n) {
        if (known->n || c->call)
            return schema_refuse(c, only->p[0].s, "propertyNames beside declared names and others, or in a call, are not supported");
        return member_tree(c, schema_string(c, only), &of);
    }
    for (uint32_t i = 0; i < known->n; i++)
        if (known->p[i]->key ? known->p[i]->key_len > LONGEST_NAME : known->p[i]->text_len > LONGEST_NAME)
            return schema_refuse(c, known->p[i], "a name of more than 256 bytes beside additionalProperties is not supported");
    if (known->n)
        qsort(known->p, known->n, sizeof *known->p, name_compare);
    else if (!c->call)
        return member_tree(c, schema_any_string(c), &of);
    return member_tree(c, quoted_key(c, other_than(c, known->p, known->n, 0)), &of);
}

static bool known_already(const names *k, const ds_json *v)
{
    for (uint32_t i = 0; i < k->n; i++)
        if (name_compare(&k->p[i], &v) == 0)
            return true;
    return false;
}

static bool collect(schema *c, const parts *in, const parts *only, names *k)
{
    const ds_json *few = few_names(only);
    size_t most = few ? few->n + 1 : 0;

    for (uint32_t i = 0; i < in->n; i++) {
        const ds_json *a = ds_json_get(in->p[i].s, "properties"), *b = ds_json_get(in->p[i].s, "required");
        most += (a ? a->n : 0) + (b ? b->n : 0);
    }
    if (most > MOST_NAMES)
        return schema_refuse(c, in->p[0].s, "more than 4000 names in one object are not supported"), false;
    *k = (names){ .p = malloc((most + 1) * sizeof *k->p) };
    if (!k->p) {
        c->f.failed = true;
        return false;
    }
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < in->n; i++) {
            const ds_json *list = ds_json_get(in->p[i].s, pass ? "required" : "properties");
            for (const ds_json *v = list ? list->child : NULL; v; v = v->next)
                if ((pass == 0 && in->n == 1) || !known_already(k, v))
                    k->p[k->n++] = v;
        }
    if (few && few->type == DS_JSON_STRING) { /* a const: it has a key of its own, which isn't meant */
        few = schema_make(c, (ds_json){ .type = DS_JSON_STRING, .text = few->text, .text_len = few->text_len });
        if (!known_already(k, few))
            k->p[k->n++] = few;
    }
    for (const ds_json *v = few && few->type == DS_JSON_ARRAY ? few->child : NULL; v; v = v->next)
        if (v->type == DS_JSON_STRING && !known_already(k, v))
            k->p[k->n++] = v;
    return true;
}

static uint32_t braces(schema *c, uint32_t body)
{
    return c->call ? body : cat(c, cat(c, text(c, "{"), c->space), cat(c, body, cat(c, c->space, text(c, "}"))));
}

/* Whether members.c is needed: it keeps count, and knows any order. */
static bool counted(const schema *c, const parts *in, uint32_t n)
{
    uint64_t min, max;

    return schema_count(in, "minProperties", "maxProperties", &min, &max) || (c->f.opts.any_order && n > 1 && n <= MOST_MEMBERS);
}

/* items: tree, needed, ...; `more`: the tree of others, 0: none. */
static uint32_t members(schema *c, const parts *in, const uint32_t *items, uint32_t n, uint32_t more)
{
    ds_member_item list[MOST_MEMBERS];
    ds_members m = { .n = n, .ordered = !c->f.opts.any_order };
    uint64_t min, max;

    schema_count(in, "minProperties", "maxProperties", &min, &max);
    if (min > max || min > n + (more != 0)) {
        if (more && min <= max)
            return schema_refuse(c, in->p[0].s, "minProperties beyond the declared properties and one more is not supported");
        return none(c);
    }
    if (n > MOST_MEMBERS)
        return schema_refuse(c, in->p[0].s, "minProperties and maxProperties beside more than 256 properties are not supported");
    for (uint32_t i = 0; i < n; i++)
        list[i] = (ds_member_item){ ds_rule_new(&c->f, items[2 * i]), items[2 * i + 1] };
    m.min = (uint32_t)min;
    m.max = max < UINT32_MAX ? (uint32_t)max : UNKNOWN;
    m.separator = ds_rule_new(&c->f, comma(c));
    m.extra = more ? ds_rule_new(&c->f, more) : 0;
    return braces(c, ds_tree_members(&c->f, m, list));
}

uint32_t schema_object(schema *c, const parts *in)
{
    names k;
    parts only;
    uint32_t *items, n = 0, at, t = 0;

    if (!name_parts(c, in, &only) || !collect(c, in, &only, &k))
        return 0;
    items = malloc((2 * (size_t)k.n + 2) * sizeof *items);
    c->f.failed |= !items;
    for (uint32_t i = 0; i < k.n && items && !c->bad; i++) {
        uint32_t len;
        const char *name = name_of(k.p[i], &len);
        bool needed = schema_required(in, name);
        parts of;
        ds_buf b = { 0 };
        if (memchr(name, 0, len)) {
            schema_refuse(c, k.p[i], "a name with a NUL is not supported");
            break;
        }
        if (!name_fits(c, &only, name, len) || !schema_member(c, in, name, len, &of)) {
            if (needed)
                t = none(c);
            continue;
        }
        if (c->call) {
            if (memchr(name, '"', len)) {
                schema_refuse(c, k.p[i], "a parameter's name with a quote is not supported");
                break;
            }
            ds_buf_put(&b, name, len);
        } else {
            ds_json_write_str(&b, name, len, DS_JSON_COMPACT);
            b.len -= b.len > 0;
        }
        c->f.failed |= b.oom;
        items[2 + 2 * n] = member_tree(c, quoted_key(c, ds_tree_text(&c->f, ds_buf_str(&b) + !c->call, b.len - !c->call)), &of);
        items[3 + 2 * n] = needed;
        ds_buf_free(&b);
        n++;
    }
    if (items && !c->bad && !t && counted(c, in, n)) {
        t = members(c, in, items + 2, n, extra(c, in, &k, &only));
    } else if (items && !c->bad) {
        uint32_t body;
        items[0] = comma(c);
        items[1] = extra(c, in, &k, &only);
        at = c->f.items.n;
        for (uint32_t i = 0; i < 2 * n + 2; i++)
            ds_forest_item(&c->f, items[i]);
        body = ds_tree_new(&c->f, T_CHAIN, at, n);
        t = t ? t : braces(c, body);
    }
    free(items);
    free(k.p);
    return t;
}
