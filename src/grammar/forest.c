/* Syntax trees and sets of code points, for the front ends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "grammar/grammar_internal.h"

enum { LAST = 0x10ffff, SURROGATE_LO = 0xd800, SURROGATE_HI = 0xdfff, WORD_LEVELS = 32 /* of beginnings in common */ };

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
    free(f->members.p);
    free(f->member_items.p);
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

static int text_order(const ds_forest *f, uint32_t a, uint32_t b)
{
    const ds_tree *x = f->trees.p + a, *y = f->trees.p + b;
    uint32_t n = x->b < y->b ? x->b : y->b;
    int c = n ? memcmp(f->pool.p + x->a, f->pool.p + y->a, n) : 0;

    return c ? c : (x->b > y->b) - (x->b < y->b);
}

static void sort_texts(const ds_forest *f, uint32_t *p, uint32_t *tmp, uint32_t n)
{
    uint32_t h = n / 2, i = 0, k = h, at = 0;

    if (n < 2)
        return;
    sort_texts(f, p, tmp, h);
    sort_texts(f, p + h, tmp, n - h);
    while (i < h || k < n)
        tmp[at++] = k == n || (i < h && text_order(f, p[i], p[k]) <= 0) ? p[i++] : p[k++];
    memcpy(p, tmp, n * sizeof *p);
}

/* Of sorted texts that agree in their first `from` bytes, the rest. */
static uint32_t words_from(ds_forest *f, const uint32_t *p, uint32_t n, uint32_t from, uint32_t level)
{
    uint32_t same = from, t = ds_tree_new(f, T_NONE, 0, 0), k = 0;
    ds_tree first, last;

    if (f->failed)
        return 0;
    first = f->trees.p[p[0]];
    last = f->trees.p[p[n - 1]];
    if (level == WORD_LEVELS) {
        for (uint32_t i = 0; i < n && !f->failed; i++)
            t = ds_tree_alt(f, t, ds_tree_new(f, T_TEXT, f->trees.p[p[i]].a + from, f->trees.p[p[i]].b - from));
        return t;
    }
    while (same < first.b && same < last.b && f->pool.p[first.a + same] == f->pool.p[last.a + same])
        same++;
    while (k < n && f->trees.p[p[k]].b == same) /* the text itself, perhaps several times */
        k++;
    if (k > 0)
        t = ds_tree_new(f, T_EMPTY, 0, 0);
    for (uint32_t end; k < n && !f->failed; k = end) {
        char byte = f->pool.p[f->trees.p[p[k]].a + same];
        for (end = k + 1; end < n && f->pool.p[f->trees.p[p[end]].a + same] == byte; end++)
            ;
        t = ds_tree_alt(f, t,
                        end - k == 1 ? ds_tree_new(f, T_TEXT, f->trees.p[p[k]].a + same, f->trees.p[p[k]].b - same)
                                     : words_from(f, p + k, end - k, same, level + 1));
    }
    return same == from ? t : ds_tree_cat(f, ds_tree_new(f, T_TEXT, first.a + from, same - from), t);
}

uint32_t ds_tree_words(ds_forest *f, uint32_t *texts, uint32_t n)
{
    uint32_t *tmp = malloc(((size_t)n + 1) * sizeof *tmp);

    f->failed |= !tmp;
    if (!f->failed)
        sort_texts(f, texts, tmp, n);
    free(tmp);
    if (f->failed)
        return 0;
    return n ? words_from(f, texts, n, 0, 0) : ds_tree_new(f, T_NONE, 0, 0);
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

uint32_t ds_tree_members(ds_forest *f, ds_members m, const ds_member_item *items)
{
    m.first = f->member_items.n;
    for (uint32_t i = 0; i < m.n; i++)
        f->failed |= !ADD(f->member_items, items[i]);
    f->failed |= !ADD(f->members, m);
    return ds_tree_new(f, T_MEMBERS, f->members.n - 1, 0);
}

static uint64_t times(uint64_t a, uint64_t b)
{
    return a && b > (uint64_t)UINT32_MAX / a ? UINT32_MAX : a * b;
}

bool ds_tree_length(const ds_forest *f, uint32_t tree, uint64_t *min, uint64_t *max)
{
    uint64_t lo, hi;

    *min = *max = 0;
    for (;;) { /* along lists, which lean to the left */
        const ds_tree *t = f->trees.p + tree;
        if (t->one || t->kind == T_CLASS) {
            ++*min;
            ++*max;
            return true;
        }
        if (t->kind == T_EMPTY)
            return true;
        if (t->kind == T_TEXT) {
            for (uint32_t i = 0; i < t->b; i++)
                *min += ((uint8_t)f->pool.p[t->a + i] & 0xc0) != 0x80, *max += ((uint8_t)f->pool.p[t->a + i] & 0xc0) != 0x80;
            return true;
        }
        if (t->kind == T_CAT) {
            if (!ds_tree_length(f, t->b, &lo, &hi))
                return false;
            tree = t->a;
        } else if (t->kind == T_REPEAT) {
            if (!ds_tree_length(f, t->a, &lo, &hi))
                return false;
            lo = times(lo, t->min);
            hi = t->max == TREE_UNBOUNDED && hi ? UINT32_MAX : times(hi, t->max);
            tree = 0;
        } else if (t->kind == T_ALT) {
            uint64_t a, b;
            if (!ds_tree_length(f, t->a, &lo, &hi) || !ds_tree_length(f, t->b, &a, &b))
                return false;
            lo = lo < a ? lo : a;
            hi = hi > b ? hi : b;
            tree = 0;
        } else {
            return false;
        }
        *min += lo;
        *max = *max + hi < UINT32_MAX ? *max + hi : UINT32_MAX;
    }
}

bool ds_tree_fit(ds_forest *f, uint32_t *tree, uint64_t min, uint64_t max)
{
    uint32_t list[64], n = 0, at = *tree, open = UNKNOWN;
    uint64_t lo, hi, fixed = 0;
    ds_tree r;

    if (f->failed || !ds_tree_length(f, at, &lo, &hi))
        return f->failed;
    if (lo >= min && (hi <= max || max == UINT64_MAX) && (hi < UINT32_MAX || max == UINT64_MAX))
        return true;
    if (f->trees.p[at].kind == T_ALT) {
        uint32_t a = f->trees.p[at].a, b = f->trees.p[at].b;
        if (!ds_tree_fit(f, &a, min, max) || !ds_tree_fit(f, &b, min, max))
            return false;
        *tree = ds_tree_alt(f, a, b);
        return true;
    }
    while (f->trees.p[at].kind == T_CAT && n < 63) {
        list[n++] = f->trees.p[at].b;
        at = f->trees.p[at].a;
    }
    list[n++] = at;
    for (uint32_t i = 0; i < n; i++) {
        if (!ds_tree_length(f, list[i], &lo, &hi) || (lo != hi && open != UNKNOWN))
            return false;
        if (lo != hi)
            open = i;
        else
            fixed += lo;
    }
    if (open == UNKNOWN) { /* one length, which isn't within the bounds */
        *tree = ds_tree_new(f, T_NONE, 0, 0);
        return true;
    }
    r = f->trees.p[list[open]];
    if (r.kind != T_REPEAT || !ds_tree_length(f, r.a, &lo, &hi) || lo != 1 || hi != 1)
        return false;
    if (min > fixed && min - fixed > r.min)
        r.min = min - fixed < UINT32_MAX ? (uint32_t)(min - fixed) : UINT32_MAX - 1;
    if (max != UINT64_MAX && (max < fixed || max - fixed < r.max))
        r.max = max < fixed ? 0 : (uint32_t)(max - fixed);
    if ((max != UINT64_MAX && max < fixed) || r.min > r.max) {
        *tree = ds_tree_new(f, T_NONE, 0, 0);
        return true;
    }
    list[open] = ds_tree_repeat(f, r.a, r.min, r.max);
    for (*tree = list[--n]; n-- > 0;)
        *tree = ds_tree_cat(f, *tree, list[n]);
    return true;
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
