/* Rules in the notation of Lark to trees: rules, terminals, strings, regular expressions, %import common, %ignore.
 *
 * Lark cuts a text into terminals first and then parses them. Here a text is in the language when it can be cut so
 * that the rules fit, whichever way: where Lark would prefer another cut (the longest match, priorities) and then
 * fail, the text counts. Ignored terminals may stand in front of everything and behind each terminal of a rule. */
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "base/utf8.h"
#include "grammar/rules_internal.h"

typedef struct {
    uint32_t ignore;  /* the rule of what is ignored, UNKNOWN: nothing is */
    uint32_t ignored; /* its alternatives so far */
    bool in_rule;     /* a rule is being read, not a terminal */
} lark;

static void skip(ds_rules *r)
{
    for (;; r->at++) {
        if (r->at < r->n && (r->p[r->at] == '#' || (r->p[r->at] == '/' && r->at + 1 < r->n && r->p[r->at + 1] == '/')))
            while (r->at < r->n && r->p[r->at] != '\n')
                r->at++;
        if (r->at >= r->n || !(r->p[r->at] == ' ' || r->p[r->at] == '\t' || r->p[r->at] == '\r' || r->p[r->at] == '\n'))
            return;
    }
}

static bool is_terminal(const char *p, size_t n)
{
    while (n > 1 && *p == '_') {
        p++;
        n--;
    }
    return *p >= 'A' && *p <= 'Z';
}

/* A definition begins here: marks, a name, perhaps a priority, a colon. On success *name .. are its name, and r->at is
 * behind the colon. */
static bool head(ds_rules *r, size_t *name, size_t *n, bool *priority)
{
    size_t back = r->at;
    uint32_t x;

    while (ds_rules_eat(r, "?") || ds_rules_eat(r, "!"))
        ;
    *name = r->at;
    *n = ds_rules_name(r);
    r->at += *n;
    skip(r);
    *priority = *n && ds_rules_eat(r, ".");
    if (*priority) {
        ds_rules_eat(r, "-");
        if (!ds_rules_number(r, &x))
            *n = 0;
        skip(r);
    }
    if (*n && ds_rules_eat(r, ":"))
        return true;
    r->at = back;
    return false;
}

static bool at_definition(ds_rules *r)
{
    size_t back = r->at, name, n;
    bool priority, yes = (r->at < r->n && r->p[r->at] == '%') || head(r, &name, &n, &priority);

    r->at = back;
    return yes;
}

/* The end of an alternative; a name for it is read over. */
static bool ends(ds_rules *r)
{
    if (ds_rules_eat(r, "->")) {
        skip(r);
        r->at += ds_rules_name(r);
        return true;
    }
    return r->p[r->at] == ')' || r->p[r->at] == ']' || at_definition(r);
}

static bool flags(ds_rules *r, ds_regex_opts *o)
{
    for (; r->at < r->n; r->at++) {
        if (r->p[r->at] == 'i')
            o->icase = true;
        else if (r->p[r->at] == 's')
            o->dot_all = true;
        else if (r->p[r->at] == 'u')
            continue;
        else if (ds_rules_name(r) == 0)
            return true;
        else
            return ds_rules_refuse(r, r->at, "only the flags i, s and u are supported");
    }
    return true;
}

/* A literal, or a range of characters between two. */
static uint32_t literal(ds_rules *r)
{
    ds_regex_opts o = { .verbatim = true };
    size_t start = r->at;
    ds_buf a = { 0 }, b = { 0 };
    uint32_t t = 0, lo = 0, hi = 0;
    ds_err why;

    if (!ds_rules_literal(r, &a)) {
    } else if (ds_rules_eat(r, "..")) {
        ds_set s = { 0 };
        if (r->at >= r->n || r->p[r->at] != '"')
            ds_rules_refuse(r, r->at, "the range has no end");
        else if (ds_rules_literal(r, &b)) {
            if (ds_utf8_decode(ds_buf_str(&a), a.len, &lo) != a.len || ds_utf8_decode(ds_buf_str(&b), b.len, &hi) != b.len || !a.len ||
                !b.len || lo > hi)
                ds_rules_refuse(r, start, "no range");
            else
                r->f->failed |= !ds_set_add(&s, lo, hi);
            t = ds_tree_class(r->f, &s);
            free(s.p);
        }
    } else if (flags(r, &o)) {
        if (ds_regex_tree(r->f, ds_buf_str(&a), a.len, &o, &t, &why) != DS_OK)
            ds_rules_refuse(r, start, why.msg);
    }
    ds_buf_free(&a);
    ds_buf_free(&b);
    return t;
}

static uint32_t expression(ds_rules *r)
{
    ds_regex_opts o = { 0 };
    size_t start = r->at++, end;
    uint32_t t = 0;
    ds_err why;

    while (r->at < r->n && r->p[r->at] != '/' && r->p[r->at] != '\n')
        r->at += r->p[r->at] == '\\' ? 2 : 1;
    if (r->at >= r->n || r->p[r->at] != '/')
        return ds_rules_refuse(r, start, "the regular expression has no end");
    end = r->at++;
    if (flags(r, &o) && ds_regex_tree(r->f, r->p + start + 1, end - start - 1, &o, &t, &why) != DS_OK)
        return ds_rules_refuse(r, start, why.msg);
    return t;
}

static uint32_t item(ds_rules *r)
{
    lark *l = r->own;
    char c = r->p[r->at];
    bool terminal = true;
    uint32_t t, i;
    size_t n;

    if (c == '"') {
        t = literal(r);
    } else if (c == '/') {
        t = expression(r);
    } else if (ds_rules_eat(r, "(")) {
        return ds_rules_parentheses(r, ")");
    } else if (ds_rules_eat(r, "[")) {
        return ds_tree_repeat(r->f, ds_rules_parentheses(r, "]"), 0, 1);
    } else {
        n = ds_rules_name(r);
        if (n == 0)
            return ds_rules_refuse(r, r->at, "no string, regular expression, name or parenthesis");
        terminal = is_terminal(r->p + r->at, n);
        if (!terminal && !l->in_rule)
            return ds_rules_refuse(r, r->at, "a rule inside a terminal");
        i = ds_rules_named(r, r->p + r->at, n);
        if (r->bad)
            return 0;
        r->at += n;
        if (r->at < r->n && r->p[r->at] == '{')
            return ds_rules_refuse(r, r->at, "templates are not supported");
        t = ds_tree_call(r->f, r->rules[i].number);
    }
    return terminal && l->in_rule && l->ignore != UNKNOWN ? ds_tree_cat(r->f, t, ds_tree_call(r->f, l->ignore)) : t;
}

static uint32_t repeated(ds_rules *r, uint32_t t)
{
    uint32_t min = 0, max = TREE_UNBOUNDED;
    size_t start;

    skip(r);
    if (r->at >= r->n || at_definition(r)) /* a question mark may be the next rule's */
        return t;
    start = r->at;
    if (ds_rules_eat(r, "*")) {
    } else if (ds_rules_eat(r, "+")) {
        min = 1;
    } else if (ds_rules_eat(r, "?")) {
        max = 1;
    } else if (ds_rules_eat(r, "~")) {
        skip(r);
        if (!ds_rules_number(r, &min))
            return ds_rules_refuse(r, start, "no repeat");
        max = min;
        skip(r);
        if (ds_rules_eat(r, "..")) {
            skip(r);
            if (!ds_rules_number(r, &max) || max < min)
                return ds_rules_refuse(r, start, "no repeat");
        }
        if (max > RULES_LARGEST_REPEAT)
            return ds_rules_refuse(r, start, "more than 100000 repeats");
    } else {
        return t;
    }
    return ds_tree_repeat(r->f, t, min, max);
}

/* ---- directives ---- */

/* Terminals of Lark's module `common`. */
static const struct {
    const char *name, *expression;
} common[] = {
    { "DIGIT", "[0-9]" },
    { "HEXDIGIT", "[0-9A-Fa-f]" },
    { "INT", "[0-9]+" },
    { "SIGNED_INT", "[+-]?[0-9]+" },
    { "DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+" },
    { "FLOAT", "[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?" },
    { "SIGNED_FLOAT", "[+-]?(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?)" },
    { "NUMBER", "(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?" },
    { "SIGNED_NUMBER", "[+-]?(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?" },
    { "ESCAPED_STRING", "\"(?:[^\"\\\\\\n]|\\\\.)*\"" },
    { "LCASE_LETTER", "[a-z]" },
    { "UCASE_LETTER", "[A-Z]" },
    { "LETTER", "[A-Za-z]" },
    { "WORD", "[A-Za-z]+" },
    { "CNAME", "[A-Za-z_][0-9A-Za-z_]*" },
    { "WS_INLINE", "[ \\t]+" },
    { "WS", "[ \\t\\f\\r\\n]+" },
    { "CR", "\\r" },
    { "LF", "\\n" },
    { "NEWLINE", "(?:\\r?\\n)+" },
    { "SH_COMMENT", "#[^\\n]*" },
    { "CPP_COMMENT", "//[^\\n]*" },
    { "SQL_COMMENT", "--[^\\n]*" },
    { "C_COMMENT", "/\\*[^*]*\\*+(?:[^*/][^*]*\\*+)*/" },
};

/* One terminal, which is `as` here. */
static void import_one(ds_rules *r, size_t at, size_t n, size_t as, size_t as_n)
{
    static const ds_regex_opts plain = { 0 };
    uint32_t i, t = 0;

    for (size_t k = 0; k < sizeof common / sizeof *common; k++)
        if (strlen(common[k].name) == n && memcmp(common[k].name, r->p + at, n) == 0) {
            i = ds_rules_named(r, r->p + as, as_n);
            if (r->bad || r->f->failed ||
                ds_regex_tree(r->f, common[k].expression, strlen(common[k].expression), &plain, &t, r->err) != DS_OK)
                return;
            if (r->rules[i].defined)
                ds_rules_refuse(r, at, "this terminal was there already");
            r->rules[i].defined = true;
            if (!r->f->failed)
                r->f->rules.p[r->rules[i].number] = t;
            return;
        }
    ds_rules_refuse(r, at, "no terminal of `common`");
}

static void import_names(ds_rules *r)
{
    size_t at, n, as, as_n;
    bool list;

    skip(r);
    if (!ds_rules_eat(r, "common")) {
        ds_rules_refuse(r, r->at, "only terminals of `common` can be imported");
        return;
    }
    list = !ds_rules_eat(r, ".");
    skip(r);
    if (list && !ds_rules_eat(r, "(")) {
        ds_rules_refuse(r, r->at, "what is imported is missing");
        return;
    }
    do {
        skip(r);
        at = as = r->at;
        n = as_n = ds_rules_name(r);
        r->at += n;
        if (!list) {
            size_t back = r->at;
            skip(r);
            if (ds_rules_eat(r, "->")) {
                skip(r);
                as = r->at;
                as_n = ds_rules_name(r);
                r->at += as_n;
            } else {
                r->at = back;
            }
        }
        if (!n || !as_n || !is_terminal(r->p + as, as_n))
            ds_rules_refuse(r, at, "a terminal's name is needed");
        else
            import_one(r, at, n, as, as_n);
        skip(r);
    } while (list && !r->bad && ds_rules_eat(r, ","));
    if (list && !r->bad && !ds_rules_eat(r, ")"))
        ds_rules_refuse(r, r->at, "the list of imports has no end");
}

static void define(ds_rules *r)
{
    lark *l = r->own;
    size_t start = r->at, name, n;
    bool priority;
    uint32_t i;

    if (ds_rules_eat(r, "%import")) {
        import_names(r);
    } else if (ds_rules_eat(r, "%ignore")) {
        l->in_rule = false;
        l->ignored = ds_tree_alt(r->f, l->ignored, ds_rules_alternatives(r, UNKNOWN));
    } else if (r->p[r->at] == '%') {
        ds_rules_refuse(r, start, "only the directives %import and %ignore are supported");
    } else if (!head(r, &name, &n, &priority)) {
        ds_rules_refuse(r, start, "a definition, name: …, is needed");
    } else if (priority) {
        ds_rules_refuse(r, start, "priorities are not supported");
    } else {
        l->in_rule = !is_terminal(r->p + name, n);
        i = ds_rules_named(r, r->p + name, n);
        ds_rules_define(r, i, start);
    }
    skip(r);
    if (!r->bad && r->at < r->n && !at_definition(r))
        ds_rules_refuse(r, r->at, "nothing that can stand here");
}

/* Reads all of it; the tree of `start`. */
static uint32_t read_all(ds_rules *r)
{
    lark *l = r->own;
    uint32_t t;

    l->ignore = memmem(r->p, r->n, "%ignore", 7) ? ds_rule_new(r->f, 0) : UNKNOWN;
    l->ignored = ds_tree_new(r->f, T_NONE, 0, 0);
    ds_rules_named(r, "start", 5);
    for (skip(r); r->at < r->n && !r->bad && !r->f->failed; skip(r))
        define(r);
    if (r->bad || r->f->failed)
        return 0;
    t = ds_tree_call(r->f, r->rules[0].number);
    if (l->ignore != UNKNOWN && !r->f->failed) {
        r->f->rules.p[l->ignore] = ds_tree_repeat(r->f, l->ignored, 0, TREE_UNBOUNDED);
        t = ds_tree_cat(r->f, ds_tree_call(r->f, l->ignore), t);
    }
    return t;
}

static ds_rules rules_of(ds_forest *f, lark *l, const char *text, size_t n, ds_err *err)
{
    return (ds_rules){ .f = f,
                       .what = "Lark",
                       .p = text,
                       .n = n,
                       .err = err,
                       .no_dashes = true,
                       .own = l,
                       .skip = skip,
                       .ends = ends,
                       .item = item,
                       .repeated = repeated };
}

ds_rc ds_lark_tree(ds_forest *f, const char *text, size_t n, uint32_t *tree, ds_err *err)
{
    lark l = { 0 };
    ds_rules r = rules_of(f, &l, text, n, err);
    ds_rc rc;

    *tree = ds_rules_init(&r) ? read_all(&r) : 0;
    rc = ds_rules_check(&r);
    ds_rules_fini(&r);
    return rc;
}

ds_rc ds_grammar_lark(ds_grammar **out, const char *text, size_t n, const ds_grammar_opts *opts, ds_err *err)
{
    lark l = { 0 };
    ds_forest f;
    ds_rules r = rules_of(&f, &l, text, n, err);
    uint32_t tree;
    ds_rc rc;

    *out = NULL;
    ds_forest_init(&f, opts);
    ds_rule_new(&f, 0);
    tree = ds_rules_init(&r) ? read_all(&r) : 0;
    if (!f.failed)
        f.rules.p[0] = tree;
    rc = ds_rules_build(&r, out);
    ds_rules_fini(&r);
    ds_forest_free(&f);
    return rc;
}
