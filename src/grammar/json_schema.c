/* JSON Schema to trees.
 *
 * A value is compiled under a list of schemas that must all hold ("parts"): one to begin with; `allOf`, `$ref`
 * beside other keywords and the branch taken of an `anyOf` join it. So merging needs no schema to be rewritten. A
 * `$ref` alone calls the rule of its target. What is written may be narrower than the schema: keys in the order of
 * the schema, no keys beyond `properties` unless the schema speaks of them, one way to write a constant. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "base/utf8.h"
#include "grammar/grammar_internal.h"
#include "schema/schema.h"

enum {
    MOST_PARTS = 32,
    MOST_VALUES = 20000, /* lists of parts compiled: combinations of alternatives multiply */
    DEEPEST = 200,
    LONGEST_NAME = 256,
    MOST_WORK = 200000, /* constants judged, pairs of alternatives compared */
    MOST_NAMES = 4000,  /* of an object */
    MOST_MULTIPLES = 2000,
    LARGEST_DIVISOR = 1000,
};

enum { NULL_ = 1, BOOLEAN = 2, INTEGER = 4, FRACTION = 8, STRING = 16, ARRAY = 32, OBJECT = 64, ALL = 127 };

typedef struct {
    const ds_json *s;
    bool ref, all, any, one; /* these keywords are dealt with */
} part;

typedef struct {
    part p[MOST_PARTS];
    uint32_t n;
} parts;

typedef struct {
    const ds_json *target;
    const char *name;
} ref_rule;

typedef struct {
    ds_forest f;
    const ds_json *root;
    ds_err *err;
    bool bad;
    ref_rule *refs; /* of rules 0 .. f.rules.n: NULL target for the built-in ones */
    uint32_t n_refs, cap_refs;
    uint32_t any_rule, string_rule, char_rule, rest_rule; /* 0: not made yet */
    uint32_t values, depth, work;
    uint32_t space; /* white space between tokens */
} schema;

static uint32_t value(schema *c, const parts *in);

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

static uint32_t refuse(schema *c, const ds_json *at, const char *what)
{
    ds_buf b = { 0 };
    char q[220];

    if (!c->bad) {
        path_of(&b, c->root, at);
        ds_fail(c->err, DS_E_ARG, "JSON Schema: #%s: %s", ds_quote(q, sizeof q, ds_buf_str(&b), b.len), what);
        ds_buf_free(&b);
    }
    c->bad = true;
    return 0;
}

/* ---- small trees ---- */

static uint32_t text(schema *c, const char *s)
{
    return ds_tree_text(&c->f, s, strlen(s));
}

static uint32_t none(schema *c)
{
    return ds_tree_new(&c->f, T_NONE, 0, 0);
}

static uint32_t cat(schema *c, uint32_t a, uint32_t b)
{
    return ds_tree_cat(&c->f, a, b);
}

static uint32_t alt(schema *c, uint32_t a, uint32_t b)
{
    return ds_tree_alt(&c->f, a, b);
}

static uint32_t maybe(schema *c, uint32_t a)
{
    return ds_tree_repeat(&c->f, a, 0, 1);
}

static uint32_t regex(schema *c, const char *p)
{
    static const ds_regex_opts plain = { 0 };
    uint32_t t = 0;

    if (ds_regex_tree(&c->f, p, strlen(p), &plain, &t, c->err) != DS_OK)
        c->bad = true;
    return t;
}

static uint32_t rule_new(schema *c, const ds_json *target, const char *name)
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
    c->refs[c->n_refs++] = (ref_rule){ target, name };
    return ds_rule_new(&c->f, 0);
}

static void rule_set(schema *c, uint32_t rule, uint32_t tree)
{
    if (!c->f.failed)
        c->f.rules.p[rule] = tree;
}

/* ---- strings ---- */

#define ESCAPED       \
    "\\\\(?:[\"\\\\/" \
    "bfnrt]|u(?:[0-9A-CEFa-cef][0-9A-Fa-f]{3}|[Dd][0-7][0-9A-Fa-f]{2}|[Dd][89ABab][0-9A-Fa-f]{2}\\\\u[Dd][C-Fc-f][0-9A-Fa-f]{2}))"
#define PLAIN "[^\"\\\\\\x00-\\x1f]"

static uint32_t character(schema *c)
{
    if (!c->char_rule) {
        c->char_rule = rule_new(c, NULL, "character");
        rule_set(c, c->char_rule, regex(c, PLAIN "|" ESCAPED));
    }
    return ds_tree_call(&c->f, c->char_rule);
}

static uint32_t any_string(schema *c)
{
    if (!c->string_rule) {
        c->string_rule = rule_new(c, NULL, "string");
        rule_set(c, c->string_rule, regex(c, "\"(?:" PLAIN "|" ESCAPED ")*\""));
    }
    return ds_tree_call(&c->f, c->string_rule);
}

/* Characters written as themselves, any number of them. */
static uint32_t plain_rest(schema *c)
{
    if (!c->rest_rule) {
        c->rest_rule = rule_new(c, NULL, "rest of a name");
        rule_set(c, c->rest_rule, regex(c, PLAIN "*"));
    }
    return ds_tree_call(&c->f, c->rest_rule);
}

static uint32_t quoted(schema *c, uint32_t inside)
{
    return cat(c, cat(c, text(c, "\""), inside), text(c, "\""));
}

#define DAY                                                                                                                                \
    "(?:000[1-9]|00[1-9]\\d|0[1-9]\\d{2}|[1-9]\\d{3})-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|" \
    "02-(?:0[1-9]|1\\d|2[0-8]))"
#define TIME "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define H "[0-9A-Fa-f]{1,4}"
#define SEGMENT "[A-Za-z0-9._~!$&'()*+,;=:@-]*"

static const struct {
    const char *name, *pattern;
} formats[] = {
    { "date", DAY },
    { "time", TIME },
    { "date-time", DAY "T" TIME },
    { "email", "[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,20})?@" LABEL "(?:\\." LABEL "){1,2}" },
    { "hostname", LABEL "(?:\\." LABEL "){0,2}" },
    { "uuid", "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}" },
    { "ipv4", "(?:(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)\\.){3}(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)" },
    { "ipv6", "(?:" H ":){7}" H "|(?:" H ":){1,6}:" H "|(?:" H ":){1,5}(?::" H "){1,2}|" H ":(?::" H "){1,6}|:(?::" H "){1,7}|(?:" H
              ":){1,7}:|::" },
    { "uri", "[A-Za-z][A-Za-z0-9+.-]*://" LABEL "(?:\\." LABEL "){0,3}(?::[1-9]\\d{0,3})?(?:/" SEGMENT
             ")*(?:\\?[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?(?:#" SEGMENT ")?" },
};

static bool count_of(const parts *in, const char *lower, const char *upper, uint64_t *min, uint64_t *max)
{
    uint64_t x;

    *min = 0;
    *max = UINT64_MAX;
    for (uint32_t i = 0; i < in->n; i++) {
        if (ds_json_u64(ds_json_get(in->p[i].s, lower), &x) && x > *min)
            *min = x;
        if (ds_json_u64(ds_json_get(in->p[i].s, upper), &x) && x < *max)
            *max = x;
    }
    return *min > 0 || *max != UINT64_MAX;
}

static uint32_t string(schema *c, const parts *in)
{
    static const ds_regex_opts inside = { .search = true, .json = true };
    const ds_json *only = NULL;
    uint64_t min, max;
    uint32_t t = 0;
    bool lengths = count_of(in, "minLength", "maxLength", &min, &max);

    for (uint32_t i = 0; i < in->n; i++)
        for (const ds_json *k = in->p[i].s->child; k; k = k->next) {
            if (strcmp(k->key, "pattern") != 0 && strcmp(k->key, "format") != 0)
                continue;
            if (only && !(strcmp(k->key, only->key) == 0 && ds_json_str_eq(k, only->text)))
                return refuse(c, k, "two of pattern and format for one string are not supported");
            only = k;
        }
    if (min > max)
        return none(c);
    if (!only && !lengths)
        return any_string(c);
    if (only && lengths)
        return refuse(c, only, "a pattern or format with minLength or maxLength is not supported");
    if (!only) {
        if (min > c->f.opts.max_nodes || (max != UINT64_MAX && max > c->f.opts.max_nodes)) {
            c->f.failed = c->f.large = true;
            return 0;
        }
        return quoted(c, ds_tree_repeat(&c->f, character(c), (uint32_t)min, max == UINT64_MAX ? TREE_UNBOUNDED : (uint32_t)max));
    }
    if (!ds_json_is(only, DS_JSON_STRING))
        return refuse(c, only, "a string is needed");
    if (strcmp(only->key, "pattern") == 0) {
        if (ds_regex_tree(&c->f, only->text, only->text_len, &inside, &t, c->err) != DS_OK) {
            ds_err why = *c->err;
            return refuse(c, only, why.msg);
        }
        return quoted(c, t);
    }
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (ds_json_str_eq(only, formats[i].name))
            return quoted(c, regex(c, formats[i].pattern));
    return refuse(c, only, "this format is not supported");
}

/* ---- numbers ---- */

static uint32_t digits(schema *c, char lo, char hi)
{
    ds_set s = { 0 };
    uint32_t t;

    if (lo > hi)
        return none(c);
    if (!ds_set_add(&s, (uint8_t)lo, (uint8_t)hi))
        c->f.failed = true;
    t = ds_tree_class(&c->f, &s);
    free(s.p);
    return t;
}

static uint32_t any_digits(schema *c, size_t n)
{
    return ds_tree_repeat(&c->f, digits(c, '0', '9'), (uint32_t)n, (uint32_t)n);
}

/* n digits from lo to hi; either bound may be NULL: none on that side. */
static uint32_t fixed(schema *c, const char *lo, const char *hi, size_t n)
{
    uint32_t t;

    if (n == 0)
        return 0;
    if (!lo && !hi)
        return any_digits(c, n);
    if (lo && hi && *lo == *hi)
        return cat(c, digits(c, *lo, *lo), fixed(c, lo + 1, hi + 1, n - 1));
    t = none(c);
    if (lo)
        t = alt(c, t, cat(c, digits(c, *lo, *lo), fixed(c, lo + 1, NULL, n - 1)));
    if ((lo ? *lo + 1 : '0') <= (hi ? *hi - 1 : '9'))
        t = alt(c, t, cat(c, digits(c, lo ? (char)(*lo + 1) : '0', hi ? (char)(*hi - 1) : '9'), any_digits(c, n - 1)));
    if (hi)
        t = alt(c, t, cat(c, digits(c, *hi, *hi), fixed(c, NULL, hi + 1, n - 1)));
    return t;
}

/* Whole numbers lo..hi without a sign, 0 <= lo; hi < 0: no bound. */
static uint32_t range(schema *c, int64_t lo, int64_t hi)
{
    char a[24], b[24];
    size_t n, m;
    uint32_t t = none(c);

    if (hi >= 0 && lo > hi)
        return t;
    n = (size_t)snprintf(a, sizeof a, "%lld", (long long)lo);
    m = hi < 0 ? n : (size_t)snprintf(b, sizeof b, "%lld", (long long)hi);
    for (size_t len = n; len <= m; len++) {
        char first[24] = "1000000000000000000";
        const char *from = len == n ? a : first, *to = hi >= 0 && len == m ? b : NULL;
        if (len == 1 && lo == 0)
            from = "0";
        t = alt(c, t, fixed(c, from, to, len));
    }
    if (hi < 0) /* more digits */
        t = alt(c, t, cat(c, digits(c, '1', '9'), ds_tree_repeat(&c->f, digits(c, '0', '9'), (uint32_t)n, TREE_UNBOUNDED)));
    return t;
}

typedef struct {
    bool has_min, has_max;
    int64_t min, max;     /* of whole numbers */
    int64_t above, below; /* fractions that aren't zero: from the first on, up to the second */
} bounds;

/* Bounds that a double holds exactly, or that are written as integers; false: refused. */
static bool bounds_of(schema *c, const parts *in, bounds *b)
{
    static const struct {
        const char *key;
        bool upper, open;
    } keys[] = {
        { "minimum", false, false }, { "exclusiveMinimum", false, true }, { "maximum", true, false }, { "exclusiveMaximum", true, true }
    };

    *b = (bounds){ 0 };
    for (uint32_t i = 0; i < in->n; i++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            const ds_json *v = ds_json_get(in->p[i].s, keys[k].key);
            double x;
            int64_t whole, edge;
            if (!v)
                continue;
            if (!ds_json_f64(v, &x))
                return refuse(c, v, "a number is needed"), false;
            if (!ds_json_i64(v, &whole)) {
                if (fabs(x) > 1e15)
                    return refuse(c, v, "bounds beyond 1e15 that aren't written as integers are not supported"), false;
                edge = whole = (int64_t)(keys[k].upper ? floor(x) : ceil(x));
                if (keys[k].open && (double)whole == x)
                    whole += keys[k].upper ? -1 : 1;
            } else {
                edge = whole;
            }
            if (keys[k].open && ds_json_i64(v, &whole)) {
                if (whole == INT64_MAX || whole == INT64_MIN)
                    return refuse(c, v, "this bound is not supported"), false;
                whole += keys[k].upper ? -1 : 1;
            }
            if (whole == INT64_MIN)
                whole++;
            if (edge == INT64_MIN)
                edge++;
            if (keys[k].upper && (!b->has_max || edge < b->below))
                b->below = edge;
            if (!keys[k].upper && (!b->has_min || edge > b->above))
                b->above = edge;
            if (keys[k].upper && (!b->has_max || whole < b->max)) {
                b->max = whole;
                b->has_max = true;
            }
            if (!keys[k].upper && (!b->has_min || whole > b->min)) {
                b->min = whole;
                b->has_min = true;
            }
        }
    return true;
}

static uint32_t signed_range(schema *c, const bounds *b)
{
    uint32_t t = none(c);

    if (!b->has_max || b->max >= 0)
        t = range(c, b->has_min && b->min > 0 ? b->min : 0, b->has_max ? b->max : -1);
    if (!b->has_min || b->min < 0)
        t = alt(c, t, cat(c, text(c, "-"), range(c, b->has_max && b->max < 0 ? -b->max : 1, b->has_min ? -b->min : -1)));
    return t;
}

static uint32_t multiples(schema *c, const ds_json *at, const bounds *b, int64_t m)
{
    uint32_t t = none(c);

    if (b->has_min && b->has_max) {
        int64_t first = b->min / m * m;
        char one[24];
        if (first < b->min)
            first += m;
        if ((double)b->max - (double)first > (double)MOST_MULTIPLES * (double)m)
            return refuse(c, at, "more than 2000 multiples within the bounds");
        for (int64_t x = first; x <= b->max; x += m) {
            snprintf(one, sizeof one, "%lld", (long long)x);
            t = alt(c, t, text(c, one));
        }
        return t;
    }
    if (m > LARGEST_DIVISOR)
        return refuse(c, at, "multiples of more than 1000 without bounds are not supported");
    t = ds_tree_new(&c->f, T_DIGITS, (uint32_t)m, 0);
    if (!b->has_min && !b->has_max)
        return cat(c, maybe(c, text(c, "-")), t);
    if (b->has_min && (b->min == 0 || b->min < 0))
        return t; /* the negative ones are left out */
    return refuse(c, at, "multipleOf with this bound alone is not supported");
}

static uint32_t number(schema *c, const parts *in, bool fractions)
{
    const ds_json *of = NULL;
    bounds b;
    uint32_t t, decimals = 0;
    double x;
    int64_t m;

    if (!bounds_of(c, in, &b))
        return 0;
    for (uint32_t i = 0; i < in->n; i++) {
        const ds_json *v = ds_json_get(in->p[i].s, "multipleOf");
        if (v && of && !(v->type == of->type && strcmp(v->text, of->text) == 0))
            return refuse(c, v, "two different multipleOf for one number are not supported");
        of = v ? v : of;
    }
    if (of) {
        if (!ds_json_f64(of, &x) || x <= 0.0)
            return refuse(c, of, "a number above 0 is needed");
        if (x >= 1.0 && x == floor(x) && x < 1e15) {
            m = (int64_t)x;
            if (m > 1)
                return multiples(c, of, &b, m);
            fractions = false;
        } else if (!fractions) {
            return refuse(c, of, "a divisor that is no integer is not supported for integers");
        } else {
            for (double p = 10.0; p < 1e10 && decimals == 0; p *= 10.0)
                decimals = fabs(x * p - 1.0) < 1e-9 ? (uint32_t)lround(log10(p)) : 0;
            if (!decimals)
                return refuse(c, of, "only integers and 0.1, 0.01, … are supported as divisors");
        }
    }
    t = signed_range(c, &b);
    if (!fractions)
        return t;
    if (decimals || b.has_min || b.has_max) {
        /* a fraction that isn't zero lies strictly between whole numbers that are both within the bounds */
        bounds f = b;
        uint32_t point =
            decimals ? cat(c, text(c, "."), ds_tree_repeat(&c->f, digits(c, '0', '9'), 1, decimals)) : regex(c, "\\.\\d*[1-9]\\d*");
        uint32_t whole = none(c);
        if (!decimals) { /* of these a zero fraction is one too, and the bounds hold for it */
            f.min = f.above;
            f.max = f.below;
        }
        if ((!f.has_max || f.max >= 1) && (!f.has_min || f.min < INT64_MAX))
            whole = range(c, f.has_min && f.min > 0 ? f.min : 0, f.has_max ? f.max - 1 : -1);
        if (!f.has_min || f.min <= -1)
            whole = alt(c, whole, cat(c, text(c, "-"), range(c, f.has_max && f.max < 0 ? -f.max : 0, f.has_min ? -f.min - 1 : -1)));
        return alt(c, t, cat(c, whole, point));
    }
    return regex(c, "-?(?:0|[1-9]\\d*)(?:\\.\\d+)?(?:[eE][+-]?\\d{1,2})?");
}

/* ---- arrays and objects ---- */

static void join(schema *c, parts *to, const ds_json *s, const ds_json *at)
{
    if (!s)
        return;
    if (to->n == MOST_PARTS) {
        refuse(c, at, "too many schemas for one value");
        return;
    }
    to->p[to->n++] = (part){ .s = s };
}

static uint32_t comma(schema *c)
{
    return cat(c, cat(c, c->space, text(c, ",")), c->space);
}

/* Element i of arrays: what each part says of it. */
static uint32_t element(schema *c, const parts *in, size_t i, bool rest)
{
    parts of = { .n = 0 };

    for (uint32_t k = 0; k < in->n; k++) {
        const ds_json *s = in->p[k].s, *items = ds_json_get(s, "items"), *first = ds_json_get(s, "prefixItems"), *e = NULL;
        if (ds_json_is(items, DS_JSON_ARRAY)) { /* before 2020-12 */
            first = items;
            items = ds_json_get(s, "additionalItems");
        }
        if (!rest)
            e = ds_json_at(first, i);
        join(c, &of, e ? e : items, s);
    }
    return value(c, &of);
}

static uint32_t array(schema *c, const parts *in)
{
    uint64_t min, max;
    size_t prefix = 0, shown;
    uint32_t t, sep = comma(c), rest;

    count_of(in, "minItems", "maxItems", &min, &max);
    for (uint32_t i = 0; i < in->n; i++) {
        const ds_json *items = ds_json_get(in->p[i].s, "items"), *first = ds_json_get(in->p[i].s, "prefixItems");
        first = ds_json_is(items, DS_JSON_ARRAY) ? items : first;
        if (ds_json_is(first, DS_JSON_ARRAY) && first->n > prefix)
            prefix = first->n;
        if (ds_json_is(ds_json_get(in->p[i].s, "uniqueItems"), DS_JSON_TRUE) && max > 1)
            return refuse(c, ds_json_get(in->p[i].s, "uniqueItems"), "uniqueItems is not supported for more than one element");
    }
    if (min > max)
        return none(c);
    if (min > c->f.opts.max_nodes || (max != UINT64_MAX && max > c->f.opts.max_nodes)) {
        c->f.failed = c->f.large = true;
        return 0;
    }
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
    return cat(c, cat(c, text(c, "["), c->space), cat(c, t, cat(c, c->space, text(c, "]"))));
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
        return plain_rest(c);
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
    t = alt(c, t, cat(c, ds_tree_class(&c->f, &others), plain_rest(c)));
    free(others.p);
    return ends ? t : maybe(c, t);
}

/* What the parts say of the member with this name; false: one forbids it. */
static bool member(schema *c, const parts *in, const char *name, uint32_t n, parts *out)
{
    out->n = 0;
    for (uint32_t i = 0; i < in->n; i++) {
        const ds_json *s = in->p[i].s, *own = ds_json_get(ds_json_get(s, "properties"), name);
        const ds_json *patterns = ds_json_get(s, "patternProperties");
        bool known = own != NULL;
        join(c, out, own, s);
        for (const ds_json *p = patterns ? patterns->child : NULL; p; p = p->next)
            if (ds_schema_pattern_matches((ds_str){ p->key, p->key_len }, (ds_str){ name, n })) {
                join(c, out, p, s);
                known = true;
            }
        if (!known)
            join(c, out, ds_json_get(s, "additionalProperties"), s);
    }
    for (uint32_t i = 0; i < out->n; i++)
        if (out->p[i].s->type == DS_JSON_FALSE)
            return false;
    return true;
}

static bool required_by(const parts *in, const char *name)
{
    for (uint32_t i = 0; i < in->n; i++) {
        const ds_json *list = ds_json_get(in->p[i].s, "required");
        for (const ds_json *r = list ? list->child : NULL; r; r = r->next)
            if (ds_json_str_eq(r, name))
                return true;
    }
    return false;
}

/* Members that are none of the names: the tree, or 0 when there may be none. */
static uint32_t extra(schema *c, const parts *in, names *known)
{
    const ds_json *pattern = NULL, *owner = NULL;
    parts of = { .n = 0 };
    uint32_t key;
    bool open = known->n == 0;

    for (uint32_t i = 0; i < in->n; i++) {
        const ds_json *patterns = ds_json_get(in->p[i].s, "patternProperties"), *more = ds_json_get(in->p[i].s, "additionalProperties");
        for (const ds_json *p = patterns ? patterns->child : NULL; p; p = p->next) {
            if (pattern)
                return refuse(c, p, "more than one pattern in patternProperties is not supported");
            pattern = p;
            owner = in->p[i].s;
        }
        open |= more != NULL;
    }
    for (uint32_t i = 0; i < in->n; i++) {
        const ds_json *more = ds_json_get(in->p[i].s, "additionalProperties");
        if (in->p[i].s == owner)
            more = pattern;
        if (ds_json_is(more, DS_JSON_FALSE))
            return 0;
        join(c, &of, more, in->p[i].s);
    }
    if (pattern) {
        static const ds_regex_opts inside = { .search = true, .json = true };
        for (uint32_t i = 0; i < known->n; i++) {
            uint32_t n;
            const char *name = name_of(known->p[i], &n);
            if (ds_schema_pattern_matches((ds_str){ pattern->key, pattern->key_len }, (ds_str){ name, n }))
                return refuse(c, pattern, "a pattern that a declared property matches is not supported");
        }
        if (ds_regex_tree(&c->f, pattern->key, pattern->key_len, &inside, &key, c->err) != DS_OK) {
            ds_err why = *c->err;
            return refuse(c, pattern, why.msg);
        }
    } else if (!open) {
        return 0;
    } else {
        for (uint32_t i = 0; i < known->n; i++)
            if (known->p[i]->key ? known->p[i]->key_len > LONGEST_NAME : known->p[i]->text_len > LONGEST_NAME)
                return refuse(c, known->p[i], "a name of more than 256 bytes beside additionalProperties is not supported");
        if (known->n)
            qsort(known->p, known->n, sizeof *known->p, name_compare);
        key = known->n ? other_than(c, known->p, known->n, 0) : 0;
        if (!known->n)
            return cat(c, any_string(c), cat(c, cat(c, c->space, cat(c, text(c, ":"), c->space)), value(c, &of)));
    }
    return cat(c, quoted(c, key), cat(c, cat(c, c->space, cat(c, text(c, ":"), c->space)), value(c, &of)));
}

static bool known_already(const names *k, const ds_json *v)
{
    for (uint32_t i = 0; i < k->n; i++)
        if (name_compare(&k->p[i], &v) == 0)
            return true;
    return false;
}

static bool collect(schema *c, const parts *in, names *k)
{
    size_t most = 0;

    for (uint32_t i = 0; i < in->n; i++) {
        const ds_json *a = ds_json_get(in->p[i].s, "properties"), *b = ds_json_get(in->p[i].s, "required");
        most += (a ? a->n : 0) + (b ? b->n : 0);
    }
    if (most > MOST_NAMES)
        return refuse(c, in->p[0].s, "more than 4000 names in one object are not supported"), false;
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
    return true;
}

static uint32_t object(schema *c, const parts *in)
{
    names k;
    uint32_t *items, n = 0, at, t = 0;

    if (!collect(c, in, &k))
        return 0;
    items = malloc((2 * (size_t)k.n + 2) * sizeof *items);
    c->f.failed |= !items;
    for (uint32_t i = 0; i < k.n && items && !c->bad; i++) {
        uint32_t len, key;
        const char *name = name_of(k.p[i], &len);
        bool needed = required_by(in, name);
        parts of;
        ds_buf b = { 0 };
        if (memchr(name, 0, len)) {
            refuse(c, k.p[i], "a name with a NUL is not supported");
            break;
        }
        if (!member(c, in, name, len, &of)) {
            if (needed)
                t = none(c);
            continue;
        }
        ds_json_write_str(&b, name, len, DS_JSON_COMPACT);
        c->f.failed |= b.oom;
        key = cat(c, ds_tree_text(&c->f, ds_buf_str(&b), b.len), cat(c, c->space, cat(c, text(c, ":"), c->space)));
        ds_buf_free(&b);
        items[2 + 2 * n] = cat(c, key, value(c, &of));
        items[3 + 2 * n] = needed;
        n++;
    }
    if (items && !c->bad) {
        uint32_t body;
        items[0] = comma(c);
        items[1] = extra(c, in, &k);
        at = c->f.items.n;
        for (uint32_t i = 0; i < 2 * n + 2; i++)
            ds_forest_item(&c->f, items[i]);
        body = ds_tree_new(&c->f, T_CHAIN, at, n);
        body = cat(c, cat(c, text(c, "{"), c->space), cat(c, body, cat(c, c->space, text(c, "}"))));
        t = t ? t : body;
    }
    free(items);
    free(k.p);
    return t;
}

/* ---- values ---- */

static uint32_t types_of(schema *c, const ds_json *s)
{
    static const struct {
        const char *name;
        uint32_t types;
    } known[] = { { "null", NULL_ },    { "boolean", BOOLEAN }, { "integer", INTEGER }, { "number", INTEGER | FRACTION },
                  { "string", STRING }, { "array", ARRAY },     { "object", OBJECT } };
    const ds_json *type = ds_json_get(s, "type");
    bool list = ds_json_is(type, DS_JSON_ARRAY);
    uint32_t types = 0;

    if (!type)
        return ALL;
    for (const ds_json *t = list ? type->child : type; t; t = list ? t->next : NULL) {
        uint32_t one = 0;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (ds_json_str_eq(t, known[i].name))
                one = known[i].types;
        if (!one)
            refuse(c, t, "no type");
        types |= one;
    }
    if (ds_json_is(ds_json_get(s, "nullable"), DS_JSON_TRUE))
        types |= NULL_;
    return types;
}

/* Keywords that say nothing about values, and those that value() deals with. */
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
        "$defs",
        "definitions",
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$schema",
        "$id",
        "$comment",
    };

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i]) == k->key_len && memcmp(words[i], k->key, k->key_len) == 0)
            return true;
    return false;
}

static bool check(schema *c, const ds_json *s)
{
    if (s->type != DS_JSON_OBJECT)
        return true;
    for (const ds_json *k = s->child; k; k = k->next)
        if (!known_keyword(k))
            return refuse(c, k, "this keyword is not supported"), false;
    return true;
}

/* A step of a reference leads from a schema to one: by a keyword, and where that holds several, by a name or a
 * number. What lies at other places wasn't checked to be a schema. */
static bool leads_to_schema(const char *p)
{
    static const char *const single[] = { "items", "additionalProperties", "additionalItems" }, *const several[] = {
        "properties", "patternProperties", "$defs", "definitions", "anyOf", "oneOf", "allOf", "prefixItems"
    };

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

static const ds_json *target_of(schema *c, const ds_json *ref)
{
    const ds_json *target = NULL;

    if (ds_json_is(ref, DS_JSON_STRING) && leads_to_schema(ref->text))
        target = ds_schema_resolve(c->root, ref);
    if (!target)
        refuse(c, ref, "only references to schemas within this one are supported");
    return target && (target->type == DS_JSON_OBJECT || target->type == DS_JSON_TRUE || target->type == DS_JSON_FALSE) ? target : NULL;
}

/* Whether no value fits both, as far as that can be told from types, constants and required members. */
static bool disjoint(schema *c, const ds_json *a, const ds_json *b, uint32_t depth)
{
    for (int i = 0; i < 8 && ds_json_get(a, "$ref"); i++)
        a = target_of(c, ds_json_get(a, "$ref"));
    for (int i = 0; i < 8 && ds_json_get(b, "$ref"); i++)
        b = target_of(c, ds_json_get(b, "$ref"));
    if (!a || !b || depth > 8 || ++c->work > MOST_WORK)
        return false;
    if (a->type == DS_JSON_FALSE || b->type == DS_JSON_FALSE)
        return true;
    if (a->type != DS_JSON_OBJECT || b->type != DS_JSON_OBJECT)
        return false;
    if (!(types_of(c, a) & types_of(c, b)))
        return true;
    for (int side = 0; side < 2; side++) {
        const ds_json *x = side ? b : a, *y = side ? a : b, *one = ds_json_get(x, "const"), *all = ds_json_get(x, "enum");
        if (one && !ds_schema_matches_in(c->root, y, one))
            return true;
        if (!one && ds_json_is(all, DS_JSON_ARRAY)) {
            const ds_json *e = all->child;
            while (e && !ds_schema_matches_in(c->root, y, e))
                e = ++c->work > MOST_WORK ? NULL : e->next;
            if (!e && c->work <= MOST_WORK)
                return true;
        }
    }
    if (types_of(c, a) != OBJECT || types_of(c, b) != OBJECT)
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
        for (const ds_json *d = one ? b->next : NULL; d; d = d->next)
            if (!check(c, b) || !check(c, d) || !disjoint(c, b, d, 0))
                return refuse(c, list, "alternatives that can't be told apart are not supported in oneOf");
        *(one ? &with.p[at].one : &with.p[at].any) = true;
        join(c, &with, b, list);
        t = alt(c, t, value(c, &with));
    }
    return t;
}

static uint32_t constants(schema *c, const parts *in, const ds_json *list, bool single)
{
    uint32_t t = none(c);

    for (const ds_json *v = single ? list : list->child; v; v = single ? NULL : v->next) {
        ds_buf b = { 0 };
        bool ok = true;
        for (uint32_t i = 0; i < in->n && ok; i++)
            ok = ds_schema_matches_in(c->root, in->p[i].s, v);
        if (++c->work > MOST_WORK)
            return refuse(c, list, "too many constants under alternatives");
        if (!ok)
            continue;
        ds_json_write(&b, v, DS_JSON_COMPACT);
        c->f.failed |= b.oom;
        t = alt(c, t, ds_tree_text(&c->f, ds_buf_str(&b), b.len));
        ds_buf_free(&b);
    }
    return t;
}

static uint32_t any_value(schema *c)
{
    static const parts all = { .p = { { .s = NULL } }, .n = 0 };
    uint32_t t;

    if (!c->any_rule) {
        c->any_rule = rule_new(c, NULL, "value");
        t = alt(c, alt(c, any_string(c), number(c, &all, true)), regex(c, "true|false|null"));
        t = alt(c, t, alt(c, array(c, &all), object(c, &all)));
        rule_set(c, c->any_rule, t);
    }
    return ds_tree_call(&c->f, c->any_rule);
}

static uint32_t call(schema *c, const ds_json *ref)
{
    const ds_json *target = target_of(c, ref);

    if (!target)
        return 0;
    for (uint32_t i = 0; i < c->n_refs; i++)
        if (c->refs[i].target == target)
            return ds_tree_call(&c->f, i);
    return ds_tree_call(&c->f, rule_new(c, target, ref->text));
}

/* What a part says that isn't dealt with yet: nothing (0), only a $ref (1), more (2). */
static int says(const part *p)
{
    static const char *const notes[] = { "title",     "description", "default",     "examples", "example", "deprecated", "readOnly",
                                         "writeOnly", "$defs",       "definitions", "$schema",  "$id",     "$comment" };
    bool ref = false;

    if (p->s->type != DS_JSON_OBJECT)
        return p->s->type == DS_JSON_TRUE ? 0 : 2;
    for (const ds_json *k = p->s->child; k; k = k->next) {
        bool note = (p->any && strcmp(k->key, "anyOf") == 0) || (p->one && strcmp(k->key, "oneOf") == 0) ||
                    (p->all && strcmp(k->key, "allOf") == 0) || (p->ref && strcmp(k->key, "$ref") == 0);
        for (size_t i = 0; i < sizeof notes / sizeof *notes && !note; i++)
            note = strcmp(notes[i], k->key) == 0;
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
        types &= types_of(c, in->p[i].s);
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
        t = alt(c, t, number(c, in, (types & FRACTION) != 0));
    if (types & STRING)
        t = alt(c, t, string(c, in));
    if (types & ARRAY)
        t = alt(c, t, array(c, in));
    if (types & OBJECT)
        t = alt(c, t, object(c, in));
    return t;
}

/* Takes what allOf holds, or what references lead to, into the list; false: nothing fits or it is refused. */
static bool expand(schema *c, parts *p, bool refs)
{
    for (uint32_t i = 0; i < p->n && !c->bad; i++) {
        const ds_json *s = p->p[i].s, *ref = ds_json_get(s, "$ref"), *all = ds_json_get(s, "allOf");
        if (s->type == DS_JSON_FALSE)
            return false;
        if (!check(c, s))
            return false;
        if (refs && ref && !p->p[i].ref) {
            const ds_json *target = target_of(c, ref);
            p->p[i].ref = true;
            if (!target)
                return false;
            join(c, p, target, ref);
        }
        if (all && !p->p[i].all) {
            p->p[i].all = true;
            for (const ds_json *a = all->child; a; a = a->next)
                join(c, p, a, all);
        }
    }
    return !c->bad;
}

static uint32_t value_of(schema *c, const parts *in)
{
    parts p = *in;

    if (!expand(c, &p, false))
        return none(c);
    drop_silent(&p);
    if (p.n == 0)
        return any_value(c);
    if (p.n == 1 && says(&p.p[0]) == 1)
        return call(c, ds_json_get(p.p[0].s, "$ref"));
    if (!expand(c, &p, true))
        return none(c);
    for (uint32_t i = 0; i < p.n; i++) {
        const ds_json *any = ds_json_get(p.p[i].s, "anyOf"), *one = ds_json_get(p.p[i].s, "oneOf");
        if (any && !p.p[i].any)
            return branches(c, &p, i, any, false);
        if (one && !p.p[i].one)
            return branches(c, &p, i, one, true);
    }
    return by_type(c, &p);
}

static uint32_t value(schema *c, const parts *in)
{
    uint32_t t;

    if (c->bad || c->f.failed)
        return 0;
    if (++c->values > MOST_VALUES || c->depth >= DEEPEST)
        return refuse(c, in->n ? in->p[0].s : c->root, c->depth >= DEEPEST ? "nested too deeply" : "too many combinations of alternatives");
    c->depth++;
    t = value_of(c, in);
    c->depth--;
    return t;
}

ds_rc ds_grammar_json_schema(ds_grammar **out, const ds_json *root, const ds_grammar_opts *opts, ds_err *err)
{
    schema c = { .root = root, .err = err };
    const char **rule_names = NULL;
    char what[160];
    ds_err own;
    ds_rc rc = DS_E_ARG;

    *out = NULL;
    if (!err)
        c.err = &own;
    if (!ds_schema_valid(root, what, sizeof what))
        return ds_fail(err, DS_E_ARG, "JSON Schema: %s", what);
    ds_forest_init(&c.f, opts);
    c.space = regex(&c, "(?: |\\r?\\n[ \\t]*)?");
    rule_new(&c, root, "#");
    for (uint32_t i = 0; i < c.n_refs && !c.bad && !c.f.failed; i++)
        if (c.refs[i].target) {
            parts one = { .n = 1, .p = { { .s = c.refs[i].target } } };
            /* the rule of a target isn't a call of itself: a $ref that is nothing else is followed */
            uint32_t t = value(&c, &one);
            rule_set(&c, i, t);
        }
    rule_names = malloc((c.n_refs + 1) * sizeof *rule_names);
    c.f.failed |= !rule_names;
    for (uint32_t i = 0; i < c.n_refs && rule_names; i++)
        rule_names[i] = c.refs[i].name;
    if (!c.bad)
        rc = ds_grammar_build(out, &c.f, rule_names, "JSON Schema", c.err);
    free(rule_names);
    free(c.refs);
    ds_forest_free(&c.f);
    return rc;
}
