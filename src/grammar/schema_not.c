/* What a schema forbids, as a schema: for `not`, for what an `if` leaves, for elements that aren't counted.
 *
 * Each keyword is turned round where that is one more schema; what is turned round of several keywords holds for one of
 * them at least. The result may leave out values (fractions where a whole number is forbidden, lists and objects where
 * one is), and never holds for a value that the schema takes. */
#include <string.h>

#include "grammar/schema_internal.h"
#include "schema/schema.h"

enum { DEEPEST_NOT = 16, MOST_FORBIDDEN = 256 /* constants */ };

static const int64_t LARGEST = INT64_C(1) << 50;

const char schema_ours[] = "x-ours", schema_others[] = "x-others";

static const ds_json mark = { .type = DS_JSON_TRUE, .key = schema_ours, .key_len = sizeof schema_ours - 1 };
static const ds_json nothing = { .type = DS_JSON_FALSE };
static const ds_json everything = { .type = DS_JSON_OBJECT, .n = 1, .child = &mark };

/* ---- writing schemas ---- */

static const ds_json *with(schema *c, const ds_json *s, const char *key, ds_json v)
{
    ds_json out = *s;

    v.key = key;
    v.key_len = (uint32_t)strlen(key);
    v.next = s->child;
    out.child = schema_make(c, v);
    out.n++;
    return schema_make(c, out);
}

static const ds_json *of_type(schema *c, const char *type)
{
    return with(c, &everything, "type", (ds_json){ .type = DS_JSON_STRING, .text = type, .text_len = (uint32_t)strlen(type) });
}

static const ds_json *with_count(schema *c, const ds_json *s, const char *key, uint64_t n)
{
    return with(c, s, key, *schema_make_integer(c, (int64_t)n));
}

/* One more in front of a list. */
static const ds_json *in_front(schema *c, const ds_json *list, ds_json v)
{
    ds_json out = *list;

    v.key = NULL;
    v.key_len = 0;
    v.next = list->child;
    out.child = schema_make(c, v);
    out.n++;
    return schema_make(c, out);
}

static const ds_json *any_of(schema *c, const ds_json *list)
{
    return list->n == 0 ? &nothing : list->n == 1 ? list->child : with(c, &everything, "anyOf", *list);
}

/* ---- turning round ---- */

static const ds_json *not_bound(schema *c, const ds_json *k, const char *turned)
{
    double x;

    return ds_json_f64(k, &x) ? with(c, of_type(c, "number"), turned, *k) : NULL;
}

/* At least n (what) becomes fewer; at most n more. */
static const ds_json *not_count(schema *c, const ds_json *k, const char *type, const char *turned, bool least)
{
    uint64_t n;

    if (!ds_schema_count(k, &n) || n > INT32_MAX)
        return NULL;
    return least && n == 0 ? &nothing : with_count(c, of_type(c, type), turned, least ? n - 1 : n + 1);
}

static const ds_json *not_required(schema *c, const ds_json *list)
{
    const ds_json *out = &(ds_json){ .type = DS_JSON_ARRAY };

    for (const ds_json *r = list->child; r; r = r->next) {
        ds_json never = nothing, properties = { .type = DS_JSON_OBJECT, .n = 1 };
        never.key = r->text;
        never.key_len = r->text_len;
        properties.child = schema_make(c, never);
        out = in_front(c, out, *with(c, of_type(c, "object"), "properties", properties));
    }
    return any_of(c, out);
}

static const ds_json *turn(schema *c, const ds_json *s, uint32_t depth);

static const ds_json *not_properties(schema *c, const ds_json *list, uint32_t depth)
{
    const ds_json *out = &(ds_json){ .type = DS_JSON_ARRAY };

    for (const ds_json *p = list->child; p; p = p->next) {
        const ds_json *turned = turn(c, p, depth + 1), *s = of_type(c, "object");
        ds_json own, properties = { .type = DS_JSON_OBJECT, .n = 1 },
                     name = { .type = DS_JSON_STRING, .text = p->key, .text_len = p->key_len };
        if (!turned)
            return NULL;
        if (turned->type == DS_JSON_FALSE)
            continue;
        own = *turned;
        own.key = p->key;
        own.key_len = p->key_len;
        own.next = NULL;
        properties.child = schema_make(c, own);
        s = with(c, s, "properties", properties);
        s = with(c, s, "required", *in_front(c, &(ds_json){ .type = DS_JSON_ARRAY }, name));
        out = in_front(c, out, *s);
    }
    return any_of(c, out);
}

/* All of a list turned round, together (all) or one of them. */
static const ds_json *not_list(schema *c, const ds_json *list, bool all, uint32_t depth)
{
    const ds_json *out = &(ds_json){ .type = DS_JSON_ARRAY };

    for (const ds_json *s = list->child; s; s = s->next) {
        const ds_json *turned = turn(c, s, depth + 1);
        if (!turned)
            return NULL;
        if (all || turned->type != DS_JSON_FALSE)
            out = in_front(c, out, *turned);
    }
    return all ? with(c, &everything, "allOf", *out) : any_of(c, out);
}

/* Whole numbers between those that are forbidden. */
static const ds_json *numbers_between(schema *c, const ds_json *out, int64_t *n, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t k = i; k > 0 && n[k - 1] > n[k]; k--) {
            int64_t x = n[k];
            n[k] = n[k - 1];
            n[k - 1] = x;
        }
    for (uint32_t i = 0; i <= count; i++) {
        const ds_json *s = of_type(c, "integer");
        if (i > 0 && i < count && n[i] - n[i - 1] < 2)
            continue;
        if (i > 0)
            s = with(c, s, "minimum", *schema_make_integer(c, n[i - 1] + 1));
        if (i < count)
            s = with(c, s, "maximum", *schema_make_integer(c, n[i] - 1));
        out = in_front(c, out, *s);
    }
    return out;
}

static const ds_json *not_types(schema *c, uint32_t types)
{
    static const struct {
        const char *name;
        uint32_t types;
    } all[] = {
        { "null", NULL_ },    { "boolean", BOOLEAN }, { "number", INTEGER | FRACTION }, /* 1.0 is an integer, so no number is sure */
        { "string", STRING }, { "array", ARRAY },     { "object", OBJECT }
    };
    const ds_json *out = &(ds_json){ .type = DS_JSON_ARRAY };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!(types & all[i].types))
            out = in_front(c, out, (ds_json){ .type = DS_JSON_STRING, .text = all[i].name, .text_len = (uint32_t)strlen(all[i].name) });
    return out->n ? with(c, &everything, "type", *out) : &nothing;
}

/* Values that are none of a list: of other types, other strings, whole numbers and booleans. */
static const ds_json *not_values(schema *c, const ds_json *list, bool single)
{
    const ds_json *out = &(ds_json){ .type = DS_JSON_ARRAY }, *texts = out, *types;
    int64_t whole[MOST_FORBIDDEN];
    uint32_t n_whole = 0, there = 0;
    bool truth[2] = { 0 }, fraction = false;

    for (const ds_json *v = single ? list : list->child; v; v = single ? NULL : v->next) {
        uint32_t kind = v->type == DS_JSON_NULL     ? NULL_
                        : v->type == DS_JSON_NUMBER ? INTEGER
                        : v->type == DS_JSON_STRING ? STRING
                        : v->type == DS_JSON_ARRAY  ? ARRAY
                        : v->type == DS_JSON_OBJECT ? OBJECT
                                                    : BOOLEAN;
        there |= kind;
        truth[v->type == DS_JSON_TRUE] |= kind == BOOLEAN;
        if (kind == STRING)
            texts = in_front(c, texts, *v);
        if (kind != INTEGER)
            continue;
        if (n_whole == MOST_FORBIDDEN)
            return NULL;
        if (ds_json_i64(v, &whole[n_whole]) && whole[n_whole] > -LARGEST && whole[n_whole] < LARGEST)
            n_whole++;
        else
            fraction = true; /* or 1.0, or too large: no number at all */
    }
    types = not_types(c, there);
    if (types->type != DS_JSON_FALSE)
        out = in_front(c, out, *types);
    for (uint32_t i = 0; i < 2 && there & BOOLEAN; i++)
        if (!truth[i])
            out = in_front(c, out, *with(c, &everything, "const", (ds_json){ .type = i ? DS_JSON_TRUE : DS_JSON_FALSE }));
    if (there & INTEGER && !fraction)
        out = numbers_between(c, out, whole, n_whole);
    if (there & STRING) { /* `not` for whoever judges constants by this */
        const ds_json *s = with(c, of_type(c, "string"), schema_others, *texts);
        out = in_front(c, out, *with(c, s, "not", *with(c, &everything, "enum", *texts)));
    }
    return any_of(c, out);
}

static const ds_json *not_keyword(schema *c, const ds_json *s, const ds_json *k, uint32_t depth)
{
    static const struct {
        const char *key, *turned, *type;
        bool least;
    } counts[] = {
        { "minLength", "maxLength", "string", true },
        { "maxLength", "minLength", "string", false },
        { "minItems", "maxItems", "array", true },
        { "maxItems", "minItems", "array", false },
        { "minProperties", "maxProperties", "object", true },
        { "maxProperties", "minProperties", "object", false },
    };
    static const char *const bounds[][2] = { { "minimum", "exclusiveMaximum" },
                                             { "maximum", "exclusiveMinimum" },
                                             { "exclusiveMinimum", "maximum" },
                                             { "exclusiveMaximum", "minimum" } };
    const ds_json *turned;

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (strcmp(k->key, counts[i].key) == 0)
            return not_count(c, k, counts[i].type, counts[i].turned, counts[i].least);
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        if (strcmp(k->key, bounds[i][0]) == 0)
            return not_bound(c, k, bounds[i][1]);
    if (strcmp(k->key, "type") == 0)
        return not_types(c, schema_types(c, with(c, &everything, "type", *k)));
    if (strcmp(k->key, "const") == 0)
        return not_values(c, k, true);
    if (strcmp(k->key, "enum") == 0 && k->type == DS_JSON_ARRAY)
        return not_values(c, k, false);
    if (strcmp(k->key, "required") == 0 && k->type == DS_JSON_ARRAY)
        return not_required(c, k);
    if (strcmp(k->key, "properties") == 0 && k->type == DS_JSON_OBJECT)
        return not_properties(c, k, depth);
    if (strcmp(k->key, "not") == 0)
        return k;
    if (strcmp(k->key, "anyOf") == 0 || strcmp(k->key, "allOf") == 0)
        return k->type == DS_JSON_ARRAY ? not_list(c, k, k->key[1] == 'n', depth) : NULL;
    if (strcmp(k->key, "items") == 0 && k->type != DS_JSON_ARRAY && !ds_json_get(s, "prefixItems")) {
        turned = turn(c, k, depth + 1);
        return !turned || turned->type == DS_JSON_FALSE ? turned : with(c, of_type(c, "array"), "contains", *turned);
    }
    if (strcmp(k->key, "contains") == 0 && !ds_json_get(s, "minContains") && !ds_json_get(s, "maxContains")) {
        turned = turn(c, k, depth + 1);
        return turned ? with(c, of_type(c, "array"), "items", *turned) : NULL;
    }
    if (strcmp(k->key, "$ref") == 0 && s->n == 1) { /* what stands beside it has no say in draft 7 */
        const ds_json *target = schema_target(c, k);
        return target ? turn(c, target, depth + 1) : NULL;
    }
    return NULL;
}

/* NULL: that can't be told. */
static const ds_json *turn(schema *c, const ds_json *s, uint32_t depth)
{
    const ds_json *out = &(ds_json){ .type = DS_JSON_ARRAY };

    if (depth > DEEPEST_NOT || ++c->work > MOST_WORK || c->bad || c->f.failed)
        return NULL;
    if (s->type != DS_JSON_OBJECT)
        return s->type == DS_JSON_FALSE ? &everything : s->type == DS_JSON_TRUE ? &nothing : NULL;
    if (ds_json_get(s, "nullable"))
        return NULL;
    for (const ds_json *k = s->child; k; k = k->next) {
        const ds_json *turned;
        if (schema_is_note(k))
            continue;
        turned = not_keyword(c, s, k, depth);
        if (!turned)
            return NULL;
        if (turned->type != DS_JSON_FALSE)
            out = in_front(c, out, *turned);
    }
    return any_of(c, out);
}

const ds_json *schema_not(schema *c, const ds_json *s)
{
    return turn(c, s, 0);
}
