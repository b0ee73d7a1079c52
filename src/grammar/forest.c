/* Syntax trees and sets of code points, for the front ends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "grammar/grammar_internal.h"

enum { LAST = 0x10ffff, SURROGATE_LO = 0xd800, SURROGATE_HI = 0xdfff };

static bool room(void **p, uint32_t n, uint32_t *cap, size_t size)
{
    uint32_t more = *cap ? *cap * 2 : 64;
    void *q;

    if (n < *cap)
        return true;
    if (more <= *cap || !(q = realloc(*p, (size_t)more * size)))
        return false;
    *p = q;
    *cap = more;
    return true;
}
#define ADD(v, x) (room((void **)&(v).p, (v).n, &(v).cap, sizeof *(v).p) && (((v).p[(v).n++] = (x)), true))

void ds_forest_init(ds_forest *f, const ds_grammar_opts *opts)
{
    *f = (ds_forest){ .opts = opts ? *opts : (ds_grammar_opts){ 0 } };
    if (!f->opts.max_bytes)
        f->opts.max_bytes = 32u << 20;
    if (!f->opts.max_nodes)
        f->opts.max_nodes = 1u << 18;
    if (!f->opts.max_states)
        f->opts.max_states = 1u << 16;
    f->failed = !ADD(f->trees, ((ds_tree){ .kind = T_EMPTY }));
}

void ds_forest_free(ds_forest *f)
{
    free(f->trees.p);
    free(f->ranges.p);
    free(f->rules.p);
    free(f->items.p);
    ds_buf_free(&f->pool);
    ds_buf_free(&f->never);
}

uint32_t ds_tree_new(ds_forest *f, ds_tree_kind kind, uint32_t a, uint32_t b)
{
    f->large |= f->trees.n >= f->opts.max_nodes;
    if (f->failed || f->large || !ADD(f->trees, ((ds_tree){ .kind = kind, .a = a, .b = b }))) {
        f->failed = true;
        return 0;
    }
    return f->trees.n - 1;
}

uint32_t ds_tree_text(ds_forest *f, const char *p, size_t n)
{
    uint32_t at = (uint32_t)f->pool.len;

    if (n == 0)
        return 0;
    f->large |= f->pool.len + n > f->opts.max_bytes;
    if (f->large || !ds_buf_put(&f->pool, p, n)) {
        f->failed = true;
        return 0;
    }
    return ds_tree_new(f, T_TEXT, at, (uint32_t)n);
}

uint32_t ds_tree_control(ds_forest *f, const char *spelling)
{
    char p[256];
    int n = snprintf(p, sizeof p, "%c%s%c", (char)CONTROL_BEGIN, spelling, (char)CONTROL_END);

    f->failed |= n < 0 || (size_t)n >= sizeof p;
    return f->failed ? 0 : ds_tree_text(f, p, (size_t)n);
}

uint32_t ds_tree_anything(ds_forest *f)
{
    ds_set s = { 0 };
    uint32_t t;

    f->failed |= !ds_set_add(&s, 0, LAST);
    t = ds_tree_repeat(f, ds_tree_class(f, &s), 0, TREE_UNBOUNDED);
    free(s.p);
    return t;
}

uint32_t ds_tree_cat(ds_forest *f, uint32_t a, uint32_t b)
{
    if (f->failed)
        return 0;
    if (f->trees.p[a].kind == T_EMPTY)
        return b;
    return f->trees.p[b].kind == T_EMPTY ? a : ds_tree_new(f, T_CAT, a, b);
}

uint32_t ds_tree_alt(ds_forest *f, uint32_t a, uint32_t b)
{
    if (f->failed)
        return 0;
    if (f->trees.p[a].kind == T_NONE)
        return b;
    return f->trees.p[b].kind == T_NONE ? a : ds_tree_new(f, T_ALT, a, b);
}

uint32_t ds_tree_repeat(ds_forest *f, uint32_t a, uint32_t min, uint32_t max)
{
    uint32_t t = ds_tree_new(f, T_REPEAT, a, 0);

    if (!f->failed) {
        f->trees.p[t].min = min;
        f->trees.p[t].max = max;
    }
    return t;
}

uint32_t ds_tree_call(ds_forest *f, uint32_t rule)
{
    return ds_tree_new(f, T_CALL, rule, 0);
}

uint32_t ds_rule_new(ds_forest *f, uint32_t tree)
{
    if (f->failed || !ADD(f->rules, tree)) {
        f->failed = true;
        return 0;
    }
    return f->rules.n - 1;
}

void ds_forest_item(ds_forest *f, uint32_t x)
{
    if (f->failed || !ADD(f->items, x))
        f->failed = true;
}

bool ds_set_add(ds_set *s, uint32_t lo, uint32_t hi)
{
    return ADD(*s, ((ds_range){ lo, hi }));
}

static int by_lo(const void *a, const void *b)
{
    const ds_range *x = a, *y = b;

    return (x->lo > y->lo) - (x->lo < y->lo);
}

bool ds_set_normal(ds_set *s)
{
    uint32_t n = 0;

    if (s->n)
        qsort(s->p, s->n, sizeof *s->p, by_lo);
    for (uint32_t i = 0; i < s->n; i++)
        if (n && s->p[i].lo <= s->p[n - 1].hi + 1)
            s->p[n - 1].hi = s->p[i].hi > s->p[n - 1].hi ? s->p[i].hi : s->p[n - 1].hi;
        else
            s->p[n++] = s->p[i];
    s->n = n;
    return true;
}

bool ds_set_invert(ds_set *s)
{
    ds_set out = { 0 };
    uint32_t from = 0;
    bool ok = ds_set_normal(s);

    for (uint32_t i = 0; ok && i < s->n; i++) {
        if (s->p[i].lo > from)
            ok = ds_set_add(&out, from, s->p[i].lo - 1);
        from = s->p[i].hi + 1;
    }
    if (ok && from <= LAST)
        ok = ds_set_add(&out, from, LAST);
    free(s->p);
    *s = out;
    return ok;
}

/* Names of the categories in the order of utf8proc's numbers; a group is its first letter. */
static const char *const categories[] = { "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
                                          "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co" };
static const struct {
    const char *name, *category;
} long_names[] = { { "Letter", "L" }, { "Mark", "M" },      { "Number", "N" }, { "Punctuation", "P" },
                   { "Symbol", "S" }, { "Separator", "Z" }, { "Other", "C" } };

bool ds_set_category(ds_set *s, const char *name, size_t n, bool *known)
{
    uint32_t wanted = 0, from = UNKNOWN;

    for (size_t i = 0; i < sizeof long_names / sizeof *long_names; i++)
        if (strlen(long_names[i].name) == n && memcmp(long_names[i].name, name, n) == 0) {
            name = long_names[i].category;
            n = 1;
            break;
        }
    for (uint32_t i = 0; i < sizeof categories / sizeof *categories; i++)
        if ((n == 1 || n == 2) && memcmp(categories[i], name, n) == 0)
            wanted |= 1u << i;
    *known = wanted != 0;
    for (uint32_t cp = 0; cp <= LAST + 1; cp++) {
        bool in = cp <= LAST && (wanted >> utf8proc_category((utf8proc_int32_t)cp) & 1);
        if (in && from == UNKNOWN)
            from = cp;
        if (!in && from != UNKNOWN) {
            if (!ds_set_add(s, from, cp - 1))
                return false;
            from = UNKNOWN;
        }
    }
    return true;
}

uint32_t ds_tree_class(ds_forest *f, ds_set *s)
{
    uint32_t at = f->ranges.n;

    if (!ds_set_normal(s))
        f->failed = true;
    for (uint32_t i = 0; i < s->n && !f->failed; i++) {
        ds_range r = s->p[i];
        if (f->ranges.n >= f->opts.max_nodes)
            f->failed = f->large = true;
        if (r.lo < SURROGATE_LO && r.hi >= SURROGATE_LO)
            f->failed |= !ADD(f->ranges, ((ds_range){ r.lo, SURROGATE_LO - 1 }));
        if (r.lo <= SURROGATE_HI && r.hi >= SURROGATE_LO)
            r.lo = SURROGATE_HI + 1;
        if (r.lo <= r.hi)
            f->failed |= !ADD(f->ranges, r);
    }
    return f->ranges.n == at ? ds_tree_new(f, T_NONE, 0, 0) : ds_tree_new(f, T_CLASS, at, f->ranges.n - at);
}
