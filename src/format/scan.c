#include "format/scan_internal.h"

#include <string.h>

#include "base/utf8.h"

bool scan_fail(scan *x, const char *problem)
{
    if (x->rc == DS_OK)
        x->rc = ds_fail(x->err, DS_E_FORMAT, "%s: byte %zu of the JSON text: %s", x->what, (size_t)(x->p - x->start), problem);
    return false;
}

bool scan_init(scan *x, char *text, size_t n, const char *what, ds_err *err)
{
    *x = (scan){ .start = text, .p = text, .end = text + n, .what = what, .err = err, .rc = DS_OK };
    if (!ds_utf8_valid(text, n))
        return scan_fail(x, "is not UTF-8");
    return true;
}

static void skip_space(scan *x)
{
    while (x->p < x->end && (*x->p == ' ' || *x->p == '\n' || *x->p == '\r' || *x->p == '\t'))
        x->p++;
}

/* The next character that isn't white space, without taking it; 0 at the end. */
static char peek(scan *x)
{
    skip_space(x);
    return x->p < x->end ? *x->p : '\0';
}

static bool take(scan *x, char c, const char *problem)
{
    if (x->rc != DS_OK)
        return false;
    if (peek(x) != c)
        return scan_fail(x, x->p == x->end ? "ends too early" : problem);
    x->p++;
    return true;
}

bool scan_object(scan *x)
{
    return take(x, '{', "expected an object");
}

bool scan_array(scan *x)
{
    return take(x, '[', "expected a list");
}

bool scan_element(scan *x, bool *first, bool *open)
{
    if (x->rc != DS_OK)
        return false;
    *open = true;
    if (peek(x) == ']') {
        x->p++;
        *open = false;
        return true;
    }
    if (!*first && (!take(x, ',', "expected , or ]") || peek(x) == ']'))
        return scan_fail(x, "expected an element");
    *first = false;
    return true;
}

bool scan_member(scan *x, bool *first, bool *open, scan_str *key)
{
    if (x->rc != DS_OK)
        return false;
    *open = true;
    if (peek(x) == '}') {
        x->p++;
        *open = false;
        return true;
    }
    if (!*first && !take(x, ',', "expected , or }"))
        return false;
    *first = false;
    return scan_string(x, key) && take(x, ':', "expected :");
}

static int hex4(const char *p, const char *end)
{
    int v = 0;
    if (end - p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (d < 0)
            return -1;
        v = v * 16 + d;
    }
    return v;
}

/* p stands behind "\u"; writes the character and returns where reading goes on, NULL if it is none. */
static char *unescape_u(char *p, const char *end, char **out)
{
    int hi = hex4(p, end), lo;
    uint32_t cp = (uint32_t)hi;

    if (hi < 0 || (hi >= 0xdc00 && hi < 0xe000))
        return NULL;
    p += 4;
    if (hi >= 0xd800 && hi < 0xdc00) {
        if (end - p < 6 || p[0] != '\\' || p[1] != 'u')
            return NULL;
        lo = hex4(p + 2, end);
        if (lo < 0xdc00 || lo >= 0xe000)
            return NULL;
        cp = 0x10000 + ((uint32_t)(hi - 0xd800) << 10) + (uint32_t)(lo - 0xdc00);
        p += 6;
    }
    *out += ds_utf8_encode(*out, cp);
    return p;
}

bool scan_string(scan *x, scan_str *out)
{
    char *p, *w;

    if (!take(x, '"', "expected a string"))
        return false;
    out->s = p = w = x->p;
    while (p < x->end) {
        unsigned char c = (unsigned char)*p++;
        if (c == '"') {
            out->n = (size_t)(w - out->s);
            x->p = p;
            return true;
        }
        if (c < 0x20) {
            x->p = p - 1;
            return scan_fail(x, "a control character in a string");
        }
        if (c != '\\') {
            *w++ = (char)c;
            continue;
        }
        static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
        char e = p < x->end ? *p++ : '\0';
        const char *at = e ? strchr(from, e) : NULL;
        if (at) {
            *w++ = to[at - from];
        } else {
            char *next = e == 'u' ? unescape_u(p, x->end, &w) : NULL;
            if (!next) {
                x->p = p;
                return scan_fail(x, "a wrong escape in a string");
            }
            p = next;
        }
    }
    x->p = x->end;
    return scan_fail(x, "ends inside a string");
}

bool scan_u64(scan *x, uint64_t *out)
{
    uint64_t v = 0;
    char *p;

    if (x->rc != DS_OK)
        return false;
    peek(x);
    for (p = x->p; p < x->end && *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, (uint64_t)(*p - '0'), &v))
            return scan_fail(x, "a number that is too large");
    if (p == x->p || (*x->p == '0' && p > x->p + 1))
        return scan_fail(x, "expected a whole number");
    if (p < x->end && (*p == '.' || *p == 'e' || *p == 'E'))
        return scan_fail(x, "expected a whole number");
    x->p = p;
    *out = v;
    return true;
}

static bool skip_digits(scan *x)
{
    char *from = x->p;
    while (x->p < x->end && *x->p >= '0' && *x->p <= '9')
        x->p++;
    return x->p > from;
}

static bool skip_number(scan *x)
{
    bool ok;
    if (*x->p == '-')
        x->p++;
    if (x->p < x->end && *x->p == '0') {
        x->p++;
        ok = true;
    } else {
        ok = skip_digits(x);
    }
    if (ok && x->p < x->end && *x->p == '.') {
        x->p++;
        ok = skip_digits(x);
    }
    if (ok && x->p < x->end && (*x->p == 'e' || *x->p == 'E')) {
        x->p++;
        if (x->p < x->end && (*x->p == '+' || *x->p == '-'))
            x->p++;
        ok = skip_digits(x);
    }
    return ok || scan_fail(x, "a wrong number");
}

static bool skip_word(scan *x, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(x->end - x->p) < n || memcmp(x->p, word, n) != 0)
        return scan_fail(x, "expected a value");
    x->p += n;
    return true;
}

static bool skip_value(scan *x, int depth)
{
    scan_str s;
    bool first = true, open;
    char c;

    if (x->rc != DS_OK)
        return false;
    c = peek(x);
    if ((c == '{' || c == '[') && depth == SCAN_MAX_DEPTH)
        return scan_fail(x, "is nested more than 64 levels deep");
    switch (c) {
    case '{':
        x->p++;
        while (scan_member(x, &first, &open, &s) && open)
            if (!skip_value(x, depth + 1))
                return false;
        return x->rc == DS_OK;
    case '[':
        x->p++;
        while (scan_element(x, &first, &open) && open)
            if (!skip_value(x, depth + 1))
                return false;
        return x->rc == DS_OK;
    case '"':
        return scan_string(x, &s);
    case 't':
        return skip_word(x, "true");
    case 'f':
        return skip_word(x, "false");
    case 'n':
        return skip_word(x, "null");
    case '\0':
        return scan_fail(x, x->p == x->end ? "ends too early" : "expected a value");
    default:
        return c == '-' || (c >= '0' && c <= '9') ? skip_number(x) : scan_fail(x, "expected a value");
    }
}

bool scan_skip(scan *x)
{
    return skip_value(x, 1); /* the file's own object is level 1 */
}

bool scan_end(scan *x)
{
    if (x->rc != DS_OK)
        return false;
    skip_space(x);
    return x->p == x->end || scan_fail(x, "text after the value");
}
