/* Regular expressions to trees. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "grammar/grammar_internal.h"

enum { DEEPEST = 200 /* groups inside each other */, LARGEST_REPEAT = 100000 };

typedef struct {
    ds_forest *f;
    const char *p;
    size_t n, at;
    const ds_regex_opts *o;
    uint32_t depth;
    ds_err *err;
    bool bad;
} parser;

static uint32_t refuse(parser *r, size_t at, const char *what)
{
    if (!r->bad)
        ds_fail(r->err, DS_E_ARG, "regex: character %zu: %s", at, what);
    r->bad = true;
    return 0;
}

static bool peek(const parser *r, const char *word)
{
    size_t n = strlen(word);

    return r->n - r->at >= n && memcmp(r->p + r->at, word, n) == 0;
}

static bool eat(parser *r, const char *word)
{
    bool yes = peek(r, word);

    r->at += yes ? strlen(word) : 0;
    return yes;
}

/* Bytes of a JSON string that mean a code point, where they aren't the code point itself. */
static uint32_t json_escape(ds_forest *f, uint32_t cp)
{
    static const char shorts[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    char out[7] = { '\\' };
    static const char hex[] = "0123456789abcdef";

    for (size_t i = 0; i + 1 < sizeof shorts; i += 2)
        if ((uint32_t)shorts[i] == cp) {
            out[1] = shorts[i + 1];
            return ds_tree_text(f, out, 2);
        }
    memcpy(out + 1, "u00", 3);
    out[4] = hex[cp >> 4];
    out[5] = hex[cp & 15];
    return ds_tree_text(f, out, 6);
}

uint32_t ds_tree_json_class(ds_forest *f, ds_set *s)
{
    uint32_t t = ds_tree_new(f, T_NONE, 0, 0);
    ds_set plain = { 0 };

    if (!ds_set_normal(s))
        f->failed = true;
    for (uint32_t i = 0; i < s->n; i++)
        for (uint64_t cp = s->p[i].lo; cp <= s->p[i].hi; cp++) {
            if (cp < 0x20 || cp == '"' || cp == '\\') {
                t = ds_tree_alt(f, t, json_escape(f, (uint32_t)cp));
            } else {
                uint32_t last = cp < '"' && s->p[i].hi >= '"' ? '"' - 1 : cp < '\\' && s->p[i].hi >= '\\' ? '\\' - 1 : s->p[i].hi;
                if (!ds_set_add(&plain, (uint32_t)cp, last))
                    f->failed = true;
                cp = last;
            }
        }
    t = ds_tree_alt(f, t, ds_tree_class(f, &plain));
    free(plain.p);
    return t;
}

enum { MANY_RANGES = 12 };

static uint32_t class_tree(parser *r, ds_set *s)
{
    uint32_t t = r->o->json ? ds_tree_json_class(r->f, s) : ds_tree_class(r->f, s);

    if (s->n > MANY_RANGES) /* as \p{L}: written out once, not for each repeat */
        t = ds_tree_call(r->f, ds_rule_new(r->f, t));
    if (!r->f->failed && t && r->f->trees.p[t].kind != T_NONE)
        r->f->trees.p[t].one = true;
    free(s->p);
    *s = (ds_set){ 0 };
    return t;
}

static bool add(parser *r, ds_set *s, uint32_t lo, uint32_t hi)
{
    if (!ds_set_add(s, lo, hi))
        r->f->failed = true;
    for (uint32_t c = 'A'; c <= 'Z' && r->o->icase; c++)
        if ((lo <= c && c <= hi) != (lo <= (c | 0x20) && (c | 0x20) <= hi) && !(ds_set_add(s, c, c) && ds_set_add(s, c | 0x20, c | 0x20)))
            r->f->failed = true;
    return true;
}

/* \d \w \s and what they leave. */
static bool add_named(parser *r, ds_set *s, char c)
{
    ds_set one = { 0 };
    bool ok = true;

    switch (c | 0x20) {
    case 'd':
        ok = ds_set_add(&one, '0', '9');
        break;
    case 'w':
        ok = ds_set_add(&one, '0', '9') && ds_set_add(&one, 'A', 'Z') && ds_set_add(&one, '_', '_') && ds_set_add(&one, 'a', 'z');
        break;
    case 's':
        ok = ds_set_add(&one, '\t', '\r') && ds_set_add(&one, ' ', ' ');
        break;
    default:
        return false;
    }
    if (c < 'a') /* what ECMA-262 calls white space beyond ASCII is in neither \s nor \S */
        ok = ok &&
             (c != 'S' || (ds_set_add(&one, 0xa0, 0xa0) && ds_set_add(&one, 0x1680, 0x1680) && ds_set_add(&one, 0x2000, 0x200a) &&
                           ds_set_add(&one, 0x2028, 0x2029) && ds_set_add(&one, 0x202f, 0x202f) && ds_set_add(&one, 0x205f, 0x205f) &&
                           ds_set_add(&one, 0x3000, 0x3000) && ds_set_add(&one, 0xfeff, 0xfeff))) &&
             ds_set_invert(&one);
    for (uint32_t i = 0; i < one.n; i++)
        add(r, s, one.p[i].lo, one.p[i].hi);
    free(one.p);
    if (!ok)
        r->f->failed = true;
    return true;
}

static bool hex(parser *r, size_t digits, uint32_t *cp)
{
    *cp = 0;
    if (r->n - r->at < digits)
        return false;
    for (size_t i = 0; i < digits; i++) {
        char c = r->p[r->at + i], lower = (char)(c | 0x20);
        uint32_t v = c >= '0' && c <= '9' ? (uint32_t)(c - '0') : lower >= 'a' && lower <= 'f' ? (uint32_t)(lower - 'a') + 10 : 16;
        if (v == 16)
            return false;
        *cp = *cp << 4 | v;
    }
    r->at += digits;
    return true;
}

/* After a backslash: a set (true, *cp = UNKNOWN) or one code point. */
static bool escape(parser *r, ds_set *s, bool in_class, uint32_t *cp)
{
    static const char plain[] = "^$\\.*+?()[]{}|/-\"'#&~@!%=<>,:;_` ", controls[] = "t\tn\nr\rf\fv\v";
    size_t start = r->at - 1;
    const char *close;
    char c;

    *cp = UNKNOWN;
    if (r->at == r->n)
        return refuse(r, start, "a backslash at the end"), false;
    c = r->p[r->at++];
    if (add_named(r, s, c))
        return true;
    for (size_t i = 0; i + 1 < sizeof controls; i += 2)
        if (c == controls[i]) {
            *cp = (uint8_t)controls[i + 1];
            return true;
        }
    if (strchr(plain, c) && c) {
        *cp = (uint8_t)c;
        return true;
    }
    switch (c) {
    case '0':
        if (r->at < r->n && r->p[r->at] >= '0' && r->p[r->at] <= '9')
            return refuse(r, start, "octal escapes are not supported"), false;
        *cp = 0;
        return true;
    case 'x':
        return hex(r, 2, cp) || refuse(r, start, "two hexadecimal digits are needed");
    case 'u':
        if (eat(r, "{")) {
            size_t n = 0;
            while (r->at + n < r->n && n < 8 && r->p[r->at + n] != '}')
                n++;
            if (!n || n > 6 || !hex(r, n, cp) || !eat(r, "}"))
                return refuse(r, start, "no code point"), false;
        } else if (!hex(r, 4, cp)) {
            return refuse(r, start, "four hexadecimal digits are needed"), false;
        }
        if (*cp >= 0xd800 && *cp < 0xdc00 && eat(r, "\\u")) {
            uint32_t low;
            if (!hex(r, 4, &low) || low < 0xdc00 || low > 0xdfff)
                return refuse(r, start, "half of a surrogate pair"), false;
            *cp = 0x10000 + ((*cp - 0xd800) << 10) + (low - 0xdc00);
        }
        if (*cp > 0x10ffff || (*cp >= 0xd800 && *cp < 0xe000))
            return refuse(r, start, "no code point"), false;
        return true;
    case 'p':
    case 'P': {
        ds_set one = { 0 };
        bool known, ok;
        if (!eat(r, "{") || !(close = memchr(r->p + r->at, '}', r->n - r->at)))
            return refuse(r, start, "\\p needs a category in braces"), false;
        ok = ds_set_category(&one, r->p + r->at, (size_t)(close - r->p) - r->at, &known) && (c == 'p' || ds_set_invert(&one));
        r->at = (size_t)(close - r->p) + 1;
        for (uint32_t i = 0; i < one.n && known; i++)
            add(r, s, one.p[i].lo, one.p[i].hi);
        free(one.p);
        r->f->failed |= !ok;
        return known || refuse(r, start, "only general categories are supported in \\p");
    }
    case 'b':
        if (in_class) {
            *cp = '\b';
            return true;
        }
        return refuse(r, start, "word boundaries are not supported"), false;
    case 'B':
        return refuse(r, start, "word boundaries are not supported"), false;
    case 'A':
    case 'Z':
    case 'z':
    case 'G':
        return refuse(r, start, "this anchor is not supported"), false;
    default:
        if ((c >= '1' && c <= '9') || c == 'k')
            return refuse(r, start, "back references are not supported"), false;
        return refuse(r, start, "this escape is not supported"), false;
    }
}

static bool character(parser *r, uint32_t *cp)
{
    size_t n = ds_utf8_decode(r->p + r->at, r->n - r->at, cp);

    if (n == 0)
        return refuse(r, r->at, "no UTF-8"), false;
    r->at += n;
    return true;
}

static uint32_t class_(parser *r)
{
    size_t start = r->at - 1;
    bool inverted = eat(r, "^"), first = true;
    ds_set s = { 0 };

    while (!r->bad) {
        uint32_t lo, hi;
        if (r->at == r->n) {
            refuse(r, start, "the class has no end");
            break;
        }
        if (eat(r, "]")) {
            if (first && !inverted && r->at < r->n && memchr(r->p + r->at, ']', r->n - r->at))
                refuse(r, start, "an empty class: write \\] for the bracket");
            break;
        }
        first = false;
        if (peek(r, "[:"))
            refuse(r, r->at, "POSIX classes are not supported");
        if (eat(r, "\\") ? !escape(r, &s, true, &lo) : !character(r, &lo))
            break;
        if (!(peek(r, "-") && r->n - r->at > 1 && r->p[r->at + 1] != ']')) {
            if (lo != UNKNOWN)
                add(r, &s, lo, lo);
            continue;
        }
        start = r->at++;
        if (lo == UNKNOWN || (eat(r, "\\") ? !escape(r, &s, true, &hi) : !character(r, &hi)) || hi == UNKNOWN || hi < lo)
            refuse(r, start, "no range");
        else
            add(r, &s, lo, hi);
    }
    if (inverted && !ds_set_invert(&s))
        r->f->failed = true;
    return class_tree(r, &s);
}

static uint32_t alternatives(parser *r, bool top);

static uint32_t group(parser *r)
{
    size_t start = r->at - 1;
    uint32_t t;

    if (eat(r, "?")) {
        if (eat(r, ":")) {
        } else if (peek(r, "=") || peek(r, "!")) {
            return refuse(r, start, "look-ahead is not supported");
        } else if (peek(r, "<=") || peek(r, "<!")) {
            return refuse(r, start, "look-behind is not supported");
        } else if (peek(r, ">")) {
            return refuse(r, start, "atomic groups are not supported");
        } else if (eat(r, "P<") || eat(r, "<")) {
            const char *close = memchr(r->p + r->at, '>', r->n - r->at);
            if (!close || close == r->p + r->at)
                return refuse(r, start, "the group's name has no end");
            r->at = (size_t)(close - r->p) + 1;
        } else {
            return refuse(r, start, "flags and this kind of group are not supported");
        }
    }
    if (++r->depth > DEEPEST)
        return refuse(r, start, "groups are nested too deeply");
    t = alternatives(r, false);
    r->depth--;
    if (!r->bad && !eat(r, ")"))
        return refuse(r, start, "the group has no end");
    return t;
}

static bool number(parser *r, uint32_t *x)
{
    size_t from = r->at;

    for (*x = 0; r->at < r->n && r->p[r->at] >= '0' && r->p[r->at] <= '9'; r->at++)
        *x = *x > LARGEST_REPEAT ? *x : 10 * *x + (uint32_t)(r->p[r->at] - '0');
    return r->at > from;
}

/* {m}, {m,} or {m,n}; anything else leaves the brace as a character. */
static bool braces(parser *r, uint32_t *min, uint32_t *max)
{
    size_t start = r->at;

    if (!eat(r, "{") || !number(r, min))
        goto no;
    *max = *min;
    if (eat(r, ",") && !number(r, max))
        *max = TREE_UNBOUNDED;
    if (eat(r, "}")) {
        if (*max < *min)
            refuse(r, start, "the bounds are in the wrong order");
        else if (*min > LARGEST_REPEAT || (*max > LARGEST_REPEAT && *max != TREE_UNBOUNDED))
            refuse(r, start, "more than 100000 repeats");
        return true;
    }
no:
    r->at = start;
    return false;
}

static uint32_t literal(parser *r, uint32_t cp)
{
    uint32_t lower = cp | 0x20;
    ds_set s = { 0 };
    char utf8[4];

    if (!(r->o->json && (cp < 0x20 || cp == '"' || cp == '\\')) && !(r->o->icase && lower >= 'a' && lower <= 'z'))
        return ds_tree_text(r->f, utf8, ds_utf8_encode(utf8, cp));
    add(r, &s, cp, cp);
    return class_tree(r, &s);
}

static uint32_t atom(parser *r)
{
    ds_set s = { 0 };
    uint32_t cp;
    char c = r->p[r->at];

    if (r->o->verbatim)
        return character(r, &cp) ? literal(r, cp) : 0;
    if (c == '*' || c == '+' || c == '?')
        return refuse(r, r->at, "nothing to repeat");
    if (c == '^' || c == '$')
        return refuse(r, r->at, "anchors are supported at the beginning and end only");
    if (eat(r, "("))
        return group(r);
    if (eat(r, "["))
        return class_(r);
    if (eat(r, ".")) {
        if (!r->o->dot_all)
            add(r, &s, '\n', '\n');
        if (r->o->json || r->o->ecma) {
            add(r, &s, '\r', '\r');
            add(r, &s, 0x2028, 0x2029);
        }
        r->f->failed |= !ds_set_invert(&s);
        return class_tree(r, &s);
    }
    if (eat(r, "\\") ? escape(r, &s, false, &cp) : character(r, &cp))
        if (cp != UNKNOWN) {
            free(s.p);
            return literal(r, cp);
        }
    return class_tree(r, &s);
}

static uint32_t quantified(parser *r)
{
    uint32_t t = atom(r), min = 0, max = 0;

    while (!r->bad && r->at < r->n && !r->o->verbatim) {
        if (eat(r, "*"))
            min = 0, max = TREE_UNBOUNDED;
        else if (eat(r, "+"))
            min = 1, max = TREE_UNBOUNDED;
        else if (eat(r, "?"))
            min = 0, max = 1;
        else if (!braces(r, &min, &max))
            return t;
        t = ds_tree_repeat(r->f, t, min, max);
        if (eat(r, "?")) /* lazy: the language is the same */
            ;
        else if (peek(r, "+"))
            return refuse(r, r->at, "possessive repeats are not supported");
        if (r->at < r->n && (peek(r, "*") || peek(r, "?") || peek(r, "+") || braces(r, &min, &max)))
            return refuse(r, r->at, "nothing to repeat");
        return t;
    }
    return t;
}

static uint32_t anything(parser *r)
{
    ds_set s = { 0 };

    if (!r->o->json)
        return ds_tree_anything(r->f);
    add(r, &s, 0, 0x10ffff);
    return ds_tree_repeat(r->f, class_tree(r, &s), 0, TREE_UNBOUNDED);
}

/* One branch; at the top it may be anchored. */
static uint32_t branch(parser *r, bool top)
{
    bool from = top && !r->o->verbatim && eat(r, "^"), to = false;
    uint32_t t = 0;

    while (r->o->verbatim && !r->bad && r->at < r->n)
        t = ds_tree_cat(r->f, t, atom(r));

    while (!r->bad && r->at < r->n && !peek(r, "|") && !(peek(r, ")") && !top)) {
        if (top && peek(r, "$") && (r->at + 1 == r->n || r->p[r->at + 1] == '|')) {
            r->at++;
            to = true;
            break;
        }
        if (peek(r, ")"))
            return refuse(r, r->at, "no group is open");
        t = ds_tree_cat(r->f, t, quantified(r));
    }
    if (!top || !r->o->search)
        return t;
    if (!from)
        t = ds_tree_cat(r->f, anything(r), t);
    return to ? t : ds_tree_cat(r->f, t, anything(r));
}

static uint32_t alternatives(parser *r, bool top)
{
    uint32_t t = branch(r, top);

    while (!r->bad && eat(r, "|"))
        t = ds_tree_alt(r->f, t, branch(r, top));
    return t;
}

ds_rc ds_regex_tree(ds_forest *f, const char *p, size_t n, const ds_regex_opts *opts, uint32_t *tree, ds_err *err)
{
    parser r = { .f = f, .p = p, .n = n, .o = opts, .err = err };

    *tree = alternatives(&r, true);
    return r.bad ? DS_E_ARG : DS_OK;
}

ds_rc ds_grammar_regex(ds_grammar **out, const char *pattern, size_t n, const ds_grammar_opts *opts, ds_err *err)
{
    static const ds_regex_opts whole = { 0 };
    ds_forest f;
    uint32_t tree;
    ds_rc rc;

    *out = NULL;
    ds_forest_init(&f, opts);
    ds_rule_new(&f, 0);
    rc = ds_regex_tree(&f, pattern, n, &whole, &tree, err);
    if (rc == DS_OK) {
        if (!f.failed)
            f.rules.p[0] = tree;
        rc = ds_grammar_build(out, &f, NULL, "regex", err);
    }
    ds_forest_free(&f);
    return rc;
}
