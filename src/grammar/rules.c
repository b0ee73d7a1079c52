/* Rules with names, whatever their notation. */
#include "grammar/rules_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "base/utf8.h"

bool ds_rules_init(ds_rules *r)
{
    r->rules = malloc(RULES_MOST * sizeof *r->rules);
    r->f->failed |= !r->rules;
    return r->rules != NULL;
}

void ds_rules_fini(ds_rules *r)
{
    free(r->rules);
}

uint32_t ds_rules_refuse(ds_rules *r, size_t at, const char *what)
{
    size_t line = 1, column = 1;

    for (size_t i = 0; i < at && i < r->n; i++) {
        column = r->p[i] == '\n' ? 1 : column + 1;
        line += r->p[i] == '\n';
    }
    if (!r->bad)
        ds_fail(r->err, DS_E_ARG, "%s: line %zu, column %zu: %s", r->what, line, column, what);
    r->bad = true;
    r->at = r->n; /* nothing more is read, also where an escape reached beyond the end */
    return 0;
}

bool ds_rules_eat(ds_rules *r, const char *word)
{
    size_t n = strlen(word);
    bool yes = r->n - r->at >= n && memcmp(r->p + r->at, word, n) == 0;

    r->at += yes ? n : 0;
    return yes;
}

bool ds_rules_number(ds_rules *r, uint32_t *x)
{
    size_t from = r->at;

    for (*x = 0; r->at < r->n && r->p[r->at] >= '0' && r->p[r->at] <= '9'; r->at++)
        *x = *x > RULES_LARGEST_REPEAT ? *x : 10 * *x + (uint32_t)(r->p[r->at] - '0');
    return r->at > from;
}

size_t ds_rules_name(const ds_rules *r)
{
    size_t n = 0;

    while (r->at + n < r->n) {
        char c = r->p[r->at + n], lower = (char)(c | 0x20);
        if (!((lower >= 'a' && lower <= 'z') || (c >= '0' && c <= '9') || (c == '-' && !r->no_dashes) || c == '_'))
            break;
        n++;
    }
    return n;
}

uint32_t ds_rules_named(ds_rules *r, const char *p, size_t n)
{
    for (uint32_t i = 0; i < r->n_rules; i++)
        if (r->rules[i].n == n && memcmp(r->rules[i].p, p, n) == 0)
            return i;
    if (r->n_rules == RULES_MOST)
        return ds_rules_refuse(r, r->at, "more than 4096 rules");
    r->rules[r->n_rules] = (ds_named_rule){ .p = p, .n = n, .number = ds_rule_new(r->f, 0) };
    return r->n_rules++;
}

/* Digits of a \x, \u or \U escape. */
static bool hex(ds_rules *r, uint32_t digits, uint32_t *cp)
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

bool ds_rules_literal(ds_rules *r, ds_buf *b)
{
    size_t start = r->at;
    char quote = r->p[r->at++];

    for (;;) {
        uint32_t cp;
        char utf8[4], c;
        size_t n;
        if (r->at >= r->n || r->p[r->at] == '\n')
            return ds_rules_refuse(r, start, "the literal has no end");
        c = r->p[r->at];
        if (c == quote) {
            r->at++;
            break;
        }
        if (c != '\\') {
            n = ds_utf8_decode(r->p + r->at, r->n - r->at, &cp);
            if (n == 0)
                return ds_rules_refuse(r, r->at, "no UTF-8");
            ds_buf_put(b, r->p + r->at, n);
            r->at += n;
            continue;
        }
        c = r->at + 1 < r->n ? r->p[r->at + 1] : '\0';
        r->at += 2;
        if (c == 'n' || c == 'r' || c == 't') {
            ds_buf_putc(b, c == 'n' ? '\n' : c == 'r' ? '\r' : '\t');
        } else if (c && strchr("\"'\\[]/-^", c)) {
            ds_buf_putc(b, c);
        } else if ((c == 'x' || c == 'u' || c == 'U') && hex(r, c == 'x' ? 2 : c == 'u' ? 4 : 8, &cp)) {
            ds_buf_put(b, utf8, ds_utf8_encode(utf8, cp));
        } else {
            return ds_rules_refuse(r, r->at < r->n ? r->at : start, "this escape is not supported");
        }
    }
    r->f->failed |= b->oom;
    return true;
}

/* *left: the sequence began with a call of `self`, which isn't in the tree that is returned. */
static uint32_t sequence(ds_rules *r, uint32_t self, bool *left)
{
    uint32_t t = 0;
    bool first = true;

    *left = false;
    for (;; first = false) {
        uint32_t one, again;
        const ds_tree *tree;
        r->skip(r);
        if (r->bad || r->f->failed || r->at == r->n || r->p[r->at] == '|' || r->ends(r))
            return t;
        one = r->item(r);
        again = r->bad || r->f->failed ? 0 : r->repeated(r, one);
        tree = r->bad || r->f->failed ? NULL : r->f->trees.p + one;
        if (first && self != UNKNOWN && again == one && tree && tree->kind == T_CALL && tree->a == self)
            *left = true;
        else
            t = ds_tree_cat(r->f, t, again);
    }
}

uint32_t ds_rules_alternatives(ds_rules *r, uint32_t self)
{
    uint32_t bases = ds_tree_new(r->f, T_NONE, 0, 0), tails = ds_tree_new(r->f, T_NONE, 0, 0), t;
    bool left, any = false;

    do {
        t = sequence(r, self, &left);
        if (left)
            tails = ds_tree_alt(r->f, tails, t);
        else
            bases = ds_tree_alt(r->f, bases, t);
        any |= left;
        r->skip(r);
    } while (!r->bad && !r->f->failed && ds_rules_eat(r, "|"));
    return any ? ds_tree_cat(r->f, bases, ds_tree_repeat(r->f, tails, 0, TREE_UNBOUNDED)) : bases;
}

uint32_t ds_rules_parentheses(ds_rules *r, const char *close)
{
    size_t start = r->at - 1;
    uint32_t t;

    if (++r->depth > RULES_DEEPEST)
        return ds_rules_refuse(r, start, "parentheses are nested too deeply");
    t = ds_rules_alternatives(r, UNKNOWN);
    r->depth--;
    r->skip(r);
    return r->bad || ds_rules_eat(r, close) ? t : ds_rules_refuse(r, start, "the parenthesis has no end");
}

void ds_rules_define(ds_rules *r, uint32_t i, size_t start)
{
    uint32_t t;

    if (r->bad || r->f->failed)
        return;
    if (r->rules[i].defined) {
        ds_rules_refuse(r, start, "this rule was there already");
        return;
    }
    r->rules[i].defined = true;
    t = ds_rules_alternatives(r, r->rules[i].number);
    if (!r->f->failed)
        r->f->rules.p[r->rules[i].number] = t;
}

ds_rc ds_rules_check(ds_rules *r)
{
    char q[64];

    for (uint32_t i = 0; i < r->n_rules && !r->bad && !r->f->failed; i++)
        if (!r->rules[i].defined)
            return ds_fail(r->err, DS_E_ARG, "%s: there is no rule %s", r->what, ds_quote(q, sizeof q, r->rules[i].p, r->rules[i].n));
    return r->bad ? DS_E_ARG : DS_OK;
}

ds_rc ds_rules_build(ds_rules *r, ds_grammar **out)
{
    uint32_t n = r->f->rules.n;
    char(*text)[64] = calloc((size_t)n + 1, sizeof *text);
    const char **names = malloc(((size_t)n + 1) * sizeof *names);
    ds_rc rc = ds_rules_check(r);

    if (rc == DS_OK && (!text || !names))
        rc = ds_fail(r->err, DS_E_NOMEM, "%s: out of memory", r->what);
    for (uint32_t i = 0; i < n && rc == DS_OK; i++)
        names[i] = "?";
    for (uint32_t i = 0; i < r->n_rules && rc == DS_OK && !r->f->failed; i++) {
        memcpy(text[i], r->rules[i].p, r->rules[i].n < sizeof *text - 1 ? r->rules[i].n : sizeof *text - 1);
        names[r->rules[i].number] = text[i];
    }
    if (rc == DS_OK)
        rc = ds_grammar_build(out, r->f, names, r->what, r->err);
    free(text);
    free(names);
    return rc;
}
