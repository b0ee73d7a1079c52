/* Numbers of a JSON Schema: bounds and multiples, digit by digit. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/schema_internal.h"

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
                return schema_refuse(c, v, "a number is needed"), false;
            if (!ds_json_i64(v, &whole)) {
                if (fabs(x) > 1e15)
                    return schema_refuse(c, v, "bounds beyond 1e15 that aren't written as integers are not supported"), false;
                edge = whole = (int64_t)(keys[k].upper ? floor(x) : ceil(x));
                if (keys[k].open && (double)whole == x)
                    whole += keys[k].upper ? -1 : 1;
            } else {
                edge = whole;
            }
            if (keys[k].open && ds_json_i64(v, &whole)) {
                if (whole == INT64_MAX || whole == INT64_MIN)
                    return schema_refuse(c, v, "this bound is not supported"), false;
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
            return schema_refuse(c, at, "more than 2000 multiples within the bounds");
        for (int64_t x = first; x <= b->max; x += m) {
            snprintf(one, sizeof one, "%lld", (long long)x);
            t = alt(c, t, text(c, one));
        }
        return t;
    }
    if (m > LARGEST_DIVISOR)
        return schema_refuse(c, at, "multiples of more than 1000 without bounds are not supported");
    t = ds_tree_new(&c->f, T_DIGITS, (uint32_t)m, 0);
    if (!b->has_min && !b->has_max)
        return cat(c, maybe(c, text(c, "-")), t);
    if (b->has_min && (b->min == 0 || b->min < 0))
        return t; /* the negative ones are left out */
    return schema_refuse(c, at, "multipleOf with this bound alone is not supported");
}

static uint32_t any_number(schema *c, bool fractions)
{
    uint32_t *rule = &c->number_rules[fractions];

    if (!*rule) {
        *rule = schema_rule(c, NULL, "number");
        schema_rule_set(c, *rule, schema_regex(c, fractions ? "-?(?:0|[1-9]\\d*)(?:\\.\\d+)?(?:[eE][+-]?\\d{1,2})?" : "0|-?[1-9]\\d*"));
    }
    return ds_tree_call(&c->f, *rule);
}

uint32_t schema_number(schema *c, const parts *in, bool fractions)
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
            return schema_refuse(c, v, "two different multipleOf for one number are not supported");
        of = v ? v : of;
    }
    if (of) {
        if (!ds_json_f64(of, &x) || x <= 0.0)
            return schema_refuse(c, of, "a number above 0 is needed");
        if (x >= 1.0 && x == floor(x) && x < 1e15) {
            m = (int64_t)x;
            if (m > 1)
                return multiples(c, of, &b, m);
            fractions = false;
        } else if (!fractions) {
            return schema_refuse(c, of, "a divisor that is no integer is not supported for integers");
        } else {
            for (double p = 10.0; p < 1e10 && decimals == 0; p *= 10.0)
                decimals = fabs(x * p - 1.0) < 1e-9 ? (uint32_t)lround(log10(p)) : 0;
            if (!decimals)
                return schema_refuse(c, of, "only integers and 0.1, 0.01, … are supported as divisors");
        }
    }
    if (!decimals && !b.has_min && !b.has_max)
        return any_number(c, fractions);
    t = signed_range(c, &b);
    if (!fractions)
        return t;
    /* a fraction that isn't zero lies strictly between whole numbers that are both within the bounds */
    bounds f = b;
    uint32_t point =
        decimals ? cat(c, text(c, "."), ds_tree_repeat(&c->f, digits(c, '0', '9'), 1, decimals)) : schema_regex(c, "\\.\\d*[1-9]\\d*");
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
