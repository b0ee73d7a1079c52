/* EBNF in the notation of GBNF to trees. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "grammar/grammar_internal.h"

enum { DEEPEST = 200 /* parentheses inside each other */, MOST_RULES = 4096, LARGEST_REPEAT = 100000 };

typedef struct {
    const char *p;
    size_t n;
    bool defined;
} rule;

typedef struct {
    ds_forest f;
    const char *p;
    size_t n, at;
    rule *rules; /* as in f.rules; 0 is root */
    uint32_t n_rules, depth;
    ds_err *err;
    bool bad;
} parser;

static uint32_t refuse(parser *r, size_t at, const char *what)
{
    size_t line = 1, column = 1;

    for (size_t i = 0; i < at && i < r->n; i++) {
        column = r->p[i] == '\n' ? 1 : column + 1;
        line += r->p[i] == '\n';
    }
    if (!r->bad)
        ds_fail(r->err, DS_E_ARG, "EBNF: line %zu, column %zu: %s", line, column, what);
    r->bad = true;
    r->at = r->n; /* nothing more is read, also where an escape reached beyond the end */
    return 0;
}

/* White space and comments. */
static void skip(parser *r)
{
    while (r->at < r->n && strchr(" \t\r\n#", r->p[r->at]) && r->p[r->at]) {
        if (r->p[r->at] == '#')
            while (r->at < r->n && r->p[r->at] != '\n')
                r->at++;
        else
            r->at++;
    }
}

static bool eat(parser *r, const char *word)
{
    size_t n = strlen(word);
    bool yes = r->n - r->at >= n && memcmp(r->p + r->at, word, n) == 0;

    r->at += yes ? n : 0;
    return yes;
}

static size_t name_length(const parser *r)
{
    size_t n = 0;

    while (r->at + n < r->n) {
        char c = r->p[r->at + n], lower = (char)(c | 0x20);
        if (!((lower >= 'a' && lower <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_'))
            break;
        n++;
    }
    return n;
}

/* A name and "::=" begin the next rule. */
static bool at_rule(parser *r)
{
    size_t back = r->at, n = name_length(r);
    bool yes;

    r->at += n;
    skip(r);
    yes = n && eat(r, "::=");
    r->at = back;
    return yes;
}

static uint32_t rule_named(parser *r, const char *p, size_t n)
{
    for (uint32_t i = 0; i < r->n_rules; i++)
        if (r->rules[i].n == n && memcmp(r->rules[i].p, p, n) == 0)
            return i;
    if (r->n_rules == MOST_RULES)
        return refuse(r, r->at, "more than 4096 rules");
    r->rules[r->n_rules++] = (rule){ .p = p, .n = n };
    return ds_rule_new(&r->f, 0);
}

/* Digits of a \x, \u or \U escape. */
static bool hex(parser *r, uint32_t digits, uint32_t *cp)
{
    *cp = 0;
    for (uint32_t i = 0; i < digits; i++, r->at++) {
        char c = r->at < r->n ? r->p[r->at] : ' ', lower = (char)(c | 0x20);
        uint32_t v = c >= '0' && c <= '9' ? (uint32_t)(c - '0') : lower >= 'a' && lower <= 'f' ? (uint32_t)(lower - 'a') + 10 : 16;
        if (v == 16 || *cp > 0x10ffff)
            return false;
        *cp = *cp << 4 | v;
    }
    return *cp <= 0x10ffff && !(*cp >= 0xd800 && *cp < 0xe000);
}

static uint32_t literal(parser *r)
{
    size_t start = r->at;
    char quote = r->p[r->at++];
    ds_buf b = { 0 };
    uint32_t t = 0;

    for (;;) {
        uint32_t cp;
        char utf8[4], c;
        size_t n;
        if (r->at >= r->n || r->p[r->at] == '\n') {
            refuse(r, start, "the literal has no end");
            break;
        }
        c = r->p[r->at];
        if (c == quote) {
            r->at++;
            break;
        }
        if (c != '\\') {
            n = ds_utf8_decode(r->p + r->at, r->n - r->at, &cp);
            if (n == 0) {
                refuse(r, r->at, "no UTF-8");
                break;
            }
            ds_buf_put(&b, r->p + r->at, n);
            r->at += n;
            continue;
        }
        c = r->at + 1 < r->n ? r->p[r->at + 1] : '\0';
        r->at += 2;
        if (c == 'n' || c == 'r' || c == 't') {
            ds_buf_putc(&b, c == 'n' ? '\n' : c == 'r' ? '\r' : '\t');
        } else if (c && strchr("\"'\\[]/-^", c)) {
            ds_buf_putc(&b, c);
        } else if ((c == 'x' || c == 'u' || c == 'U') && hex(r, c == 'x' ? 2 : c == 'u' ? 4 : 8, &cp)) {
            ds_buf_put(&b, utf8, ds_utf8_encode(utf8, cp));
        } else {
            refuse(r, r->at < r->n ? r->at : start, "this escape is not supported");
            break;
        }
    }
    r->f.failed |= b.oom;
    if (!r->bad)
        t = ds_tree_text(&r->f, ds_buf_str(&b), b.len);
    ds_buf_free(&b);
    return t;
}

/* [...] as in regular expressions. */
static uint32_t class_(parser *r)
{
    static const ds_regex_opts plain = { 0 };
    size_t start = r->at;
    uint32_t t;
    ds_err why;

    while (r->at < r->n && r->p[r->at] != ']')
        r->at += r->p[r->at] == '\\' ? 2 : 1;
    if (r->at >= r->n)
        return refuse(r, start, "the class has no end");
    r->at++;
    if (ds_regex_tree(&r->f, r->p + start, r->at - start, &plain, &t, &why) != DS_OK)
        return refuse(r, start, why.msg);
    return t;
}

static uint32_t alternatives(parser *r, uint32_t self);

static bool number(parser *r, uint32_t *x)
{
    size_t from = r->at;

    for (*x = 0; r->at < r->n && r->p[r->at] >= '0' && r->p[r->at] <= '9'; r->at++)
        *x = *x > LARGEST_REPEAT ? *x : 10 * *x + (uint32_t)(r->p[r->at] - '0');
    return r->at > from;
}

static uint32_t repeated(parser *r, uint32_t t)
{
    for (;;) {
        uint32_t min = 0, max = TREE_UNBOUNDED;
        size_t start;
        skip(r);
        start = r->at;
        if (eat(r, "*")) {
        } else if (eat(r, "+")) {
            min = 1;
        } else if (eat(r, "?")) {
            max = 1;
        } else if (eat(r, "{")) {
            bool any = number(r, &min);
            max = min;
            if (eat(r, ","))
                max = number(r, &max) ? max : TREE_UNBOUNDED;
            else if (!any)
                return refuse(r, start, "no repeat");
            if (!eat(r, "}") || max < min)
                return refuse(r, start, "no repeat");
            if (min > LARGEST_REPEAT || (max > LARGEST_REPEAT && max != TREE_UNBOUNDED))
                return refuse(r, start, "more than 100000 repeats");
        } else {
            return t;
        }
        t = ds_tree_repeat(&r->f, t, min, max);
    }
}

static uint32_t item(parser *r)
{
    size_t start = r->at, n;
    char c = r->p[r->at];
    uint32_t t;

    if (c == '"' || c == '\'')
        return literal(r);
    if (c == '[')
        return class_(r);
    if (eat(r, ".")) {
        ds_set s = { 0 };
        r->f.failed |= !ds_set_add(&s, 0, 0x10ffff);
        t = ds_tree_class(&r->f, &s);
        free(s.p);
        return t;
    }
    if (eat(r, "(")) {
        if (++r->depth > DEEPEST)
            return refuse(r, start, "parentheses are nested too deeply");
        t = alternatives(r, UNKNOWN);
        r->depth--;
        skip(r);
        return r->bad || eat(r, ")") ? t : refuse(r, start, "the parenthesis has no end");
    }
    n = name_length(r);
    if (n == 0)
        return refuse(r, r->at, "no literal, class, rule or parenthesis");
    t = rule_named(r, r->p + r->at, n);
    r->at += n;
    return ds_tree_call(&r->f, t);
}

/* *left: the sequence began with a call of `self`, which isn't in the tree that is returned. */
static uint32_t sequence(parser *r, uint32_t self, bool *left)
{
    uint32_t t = 0;
    bool first = true;

    *left = false;
    for (;; first = false) {
        uint32_t one;
        skip(r);
        if (r->bad || r->f.failed || r->at == r->n || r->p[r->at] == '|' || r->p[r->at] == ')' || at_rule(r))
            return t;
        one = item(r);
        if (first && self != UNKNOWN && !r->bad && !r->f.failed && r->f.trees.p[one].kind == T_CALL && r->f.trees.p[one].a == self) {
            uint32_t again = repeated(r, one);
            if (again == one) {
                *left = true;
                continue;
            }
            t = again;
            continue;
        }
        t = ds_tree_cat(&r->f, t, repeated(r, one));
    }
}

/* A rule that begins with itself, `a ::= a x | y`, is y followed by any number of x. */
static uint32_t alternatives(parser *r, uint32_t self)
{
    uint32_t bases = ds_tree_new(&r->f, T_NONE, 0, 0), tails = ds_tree_new(&r->f, T_NONE, 0, 0), t;
    bool left, any = false;

    do {
        t = sequence(r, self, &left);
        if (left)
            tails = ds_tree_alt(&r->f, tails, t);
        else
            bases = ds_tree_alt(&r->f, bases, t);
        any |= left;
        skip(r);
    } while (!r->bad && !r->f.failed && eat(r, "|"));
    return any ? ds_tree_cat(&r->f, bases, ds_tree_repeat(&r->f, tails, 0, TREE_UNBOUNDED)) : bases;
}

static void define(parser *r)
{
    size_t start = r->at, n = name_length(r);
    uint32_t i, t;

    if (!at_rule(r)) {
        refuse(r, start, "a rule, name ::= …, is needed");
        return;
    }
    i = rule_named(r, r->p + r->at, n);
    if (r->bad || r->f.failed)
        return;
    if (r->rules[i].defined) {
        refuse(r, start, "this rule was there already");
        return;
    }
    r->rules[i].defined = true;
    r->at += n;
    skip(r);
    eat(r, "::=");
    t = alternatives(r, i);
    if (!r->f.failed)
        r->f.rules.p[i] = t;
    skip(r);
    if (!r->bad && r->at < r->n && !at_rule(r))
        refuse(r, r->at, "nothing that can stand here");
}

static ds_rc build(parser *r, ds_grammar **out)
{
    char(*text)[64] = malloc((size_t)r->n_rules * sizeof *text);
    const char **rule_names = malloc((size_t)r->n_rules * sizeof *rule_names);
    ds_rc rc = DS_OK;

    if (!text || !rule_names)
        rc = ds_fail(r->err, DS_E_NOMEM, "EBNF: out of memory");
    for (uint32_t i = 0; i < r->n_rules && rc == DS_OK; i++) {
        size_t n = r->rules[i].n < sizeof *text - 1 ? r->rules[i].n : sizeof *text - 1;
        memcpy(text[i], r->rules[i].p, n);
        text[i][n] = '\0';
        rule_names[i] = text[i];
        if (!r->rules[i].defined)
            rc = ds_fail(r->err, DS_E_ARG, "EBNF: there is no rule %s", text[i]);
    }
    if (rc == DS_OK)
        rc = ds_grammar_build(out, &r->f, rule_names, "EBNF", r->err);
    free(text);
    free(rule_names);
    return rc;
}

ds_rc ds_grammar_ebnf(ds_grammar **out, const char *text, size_t n, const ds_grammar_opts *opts, ds_err *err)
{
    parser r = { .p = text, .n = n, .err = err };
    ds_rc rc = DS_E_ARG;

    *out = NULL;
    ds_forest_init(&r.f, opts);
    r.rules = malloc(MOST_RULES * sizeof *r.rules);
    r.f.failed |= !r.rules;
    if (!r.f.failed)
        rule_named(&r, "root", 4);
    for (skip(&r); r.at < n && !r.bad && !r.f.failed; skip(&r))
        define(&r);
    if (!r.bad)
        rc = r.f.failed ? ds_grammar_build(out, &r.f, NULL, "EBNF", err) : build(&r, out);
    free(r.rules);
    ds_forest_free(&r.f);
    return rc;
}
