/* EBNF in the notation of GBNF to trees. */
#include <stdlib.h>
#include <string.h>

#include "grammar/rules_internal.h"

static void skip(ds_rules *r)
{
    while (r->at < r->n && strchr(" \t\r\n#", r->p[r->at]) && r->p[r->at]) {
        if (r->p[r->at] == '#')
            while (r->at < r->n && r->p[r->at] != '\n')
                r->at++;
        else
            r->at++;
    }
}

/* A name and "::=" begin the next rule. */
static bool at_rule(ds_rules *r)
{
    size_t back = r->at, n = ds_rules_name(r);
    bool yes;

    r->at += n;
    skip(r);
    yes = n && ds_rules_eat(r, "::=");
    r->at = back;
    return yes;
}

static bool ends(ds_rules *r)
{
    return r->p[r->at] == ')' || at_rule(r);
}

/* [...] as in regular expressions. */
static uint32_t class_(ds_rules *r)
{
    static const ds_regex_opts plain = { 0 };
    size_t start = r->at;
    uint32_t t;
    ds_err why;

    while (r->at < r->n && r->p[r->at] != ']')
        r->at += r->p[r->at] == '\\' ? 2 : 1;
    if (r->at >= r->n)
        return ds_rules_refuse(r, start, "the class has no end");
    r->at++;
    if (ds_regex_tree(r->f, r->p + start, r->at - start, &plain, &t, &why) != DS_OK)
        return ds_rules_refuse(r, start, why.msg);
    return t;
}

static uint32_t repeated(ds_rules *r, uint32_t t)
{
    for (;;) {
        uint32_t min = 0, max = TREE_UNBOUNDED;
        size_t start;
        skip(r);
        start = r->at;
        if (ds_rules_eat(r, "*")) {
        } else if (ds_rules_eat(r, "+")) {
            min = 1;
        } else if (ds_rules_eat(r, "?")) {
            max = 1;
        } else if (ds_rules_eat(r, "{")) {
            bool any = ds_rules_number(r, &min);
            max = min;
            if (ds_rules_eat(r, ","))
                max = ds_rules_number(r, &max) ? max : TREE_UNBOUNDED;
            else if (!any)
                return ds_rules_refuse(r, start, "no repeat");
            if (!ds_rules_eat(r, "}") || max < min)
                return ds_rules_refuse(r, start, "no repeat");
            if (min > RULES_LARGEST_REPEAT || (max > RULES_LARGEST_REPEAT && max != TREE_UNBOUNDED))
                return ds_rules_refuse(r, start, "more than 100000 repeats");
        } else {
            return t;
        }
        t = ds_tree_repeat(r->f, t, min, max);
    }
}

static uint32_t item(ds_rules *r)
{
    char c = r->p[r->at];
    ds_buf b = { 0 };
    uint32_t t = 0, i;
    size_t n;

    if (c == '"' || c == '\'') {
        if (ds_rules_literal(r, &b))
            t = ds_tree_text(r->f, ds_buf_str(&b), b.len);
        ds_buf_free(&b);
        return t;
    }
    if (c == '[')
        return class_(r);
    if (ds_rules_eat(r, ".")) {
        ds_set s = { 0 };
        r->f->failed |= !ds_set_add(&s, 0, 0x10ffff);
        t = ds_tree_class(r->f, &s);
        free(s.p);
        return t;
    }
    if (ds_rules_eat(r, "("))
        return ds_rules_parentheses(r, ")");
    n = ds_rules_name(r);
    if (n == 0)
        return ds_rules_refuse(r, r->at, "no literal, class, rule or parenthesis");
    i = ds_rules_named(r, r->p + r->at, n);
    if (r->bad)
        return 0;
    r->at += n;
    return ds_tree_call(r->f, r->rules[i].number);
}

static void define(ds_rules *r)
{
    size_t start = r->at, n = ds_rules_name(r);
    uint32_t i;

    if (!at_rule(r)) {
        ds_rules_refuse(r, start, "a rule, name ::= …, is needed");
        return;
    }
    i = ds_rules_named(r, r->p + r->at, n);
    if (r->bad)
        return;
    r->at += n;
    skip(r);
    ds_rules_eat(r, "::=");
    ds_rules_define(r, i, start);
    skip(r);
    if (!r->bad && r->at < r->n && !at_rule(r))
        ds_rules_refuse(r, r->at, "nothing that can stand here");
}

ds_rc ds_grammar_ebnf(ds_grammar **out, const char *text, size_t n, const ds_grammar_opts *opts, ds_err *err)
{
    ds_forest f;
    ds_rules r = { .f = &f, .what = "EBNF", .p = text, .n = n, .err = err, .skip = skip, .ends = ends, .item = item, .repeated = repeated };
    ds_rc rc;

    *out = NULL;
    ds_forest_init(&f, opts);
    if (ds_rules_init(&r))
        ds_rules_named(&r, "root", 4);
    for (skip(&r); r.at < n && !r.bad && !f.failed; skip(&r))
        define(&r);
    rc = ds_rules_build(&r, out);
    ds_rules_fini(&r);
    ds_forest_free(&f);
    return rc;
}
