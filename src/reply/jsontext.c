/* Checks JSON text in place: what the parser needs to decide whether a parameter's value may be passed on as it is. */
#include <string.h>

#include "base/utf8.h"
#include "reply/parser.h"

typedef struct {
    const unsigned char *s;
    size_t n, i;
    unsigned max_depth;
    bool (*key)(void *ctx, const char *raw, size_t raw_bytes);
    void *ctx;
} scan;

static void skip_ws(scan *j)
{
    while (j->i < j->n && (j->s[j->i] == ' ' || j->s[j->i] == '\n' || j->s[j->i] == '\r' || j->s[j->i] == '\t'))
        j->i++;
}

static int hex4(const unsigned char *s)
{
    int v = 0;
    for (int k = 0; k < 4; k++) {
        unsigned char c = s[k];
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (d < 0)
            return -1;
        v = v * 16 + d;
    }
    return v;
}

/* The text is valid UTF-8 already: the parser replaced what wasn't. */
static bool string(scan *j, size_t *from, size_t *to)
{
    if (j->i >= j->n || j->s[j->i] != '"')
        return false;
    *from = ++j->i;
    while (j->i < j->n) {
        unsigned char c = j->s[j->i];
        if (c == '"') {
            *to = j->i++;
            return true;
        }
        if (c < 0x20)
            return false;
        if (c != '\\') {
            j->i++;
            continue;
        }
        if (j->n - j->i < 2)
            return false;
        c = j->s[j->i + 1];
        if (c != 'u') {
            if (!c || !strchr("\"\\/bfnrt", c))
                return false;
            j->i += 2;
            continue;
        }
        if (j->n - j->i < 6)
            return false;
        int u = hex4(j->s + j->i + 2);
        j->i += 6;
        if (u < 0 || (u >= 0xdc00 && u < 0xe000))
            return false;
        if (u >= 0xd800 && u < 0xdc00) {
            if (j->n - j->i < 6 || j->s[j->i] != '\\' || j->s[j->i + 1] != 'u')
                return false;
            u = hex4(j->s + j->i + 2);
            if (u < 0xdc00 || u >= 0xe000)
                return false;
            j->i += 6;
        }
    }
    return false;
}

/* Whether a number with a fraction or an exponent rounds to infinity: its first digits and decimal exponent against
 * the border between the largest double and infinity, 1.7976931348623158079…e308. */
static bool overflows(const unsigned char *s, size_t n)
{
    static const char border[] = "179769313486231580793728971405";
    char digits[sizeof border - 1];
    size_t nd = 0, i = s[0] == '-';
    long point = 0; /* the value is 0.DIGITS * 10^point */
    bool after = false, nonzero = false;

    for (; i < n && s[i] != 'e' && s[i] != 'E'; i++) {
        if (s[i] == '.') {
            after = true;
            continue;
        }
        nonzero |= s[i] != '0';
        if (nonzero) {
            if (nd < sizeof digits)
                digits[nd++] = (char)s[i];
            point += !after;
        } else {
            point -= after;
        }
    }
    if (!nonzero)
        return false;
    if (i < n) {
        bool neg = s[++i] == '-';
        long e = 0;
        i += s[i] == '-' || s[i] == '+';
        for (; i < n; i++)
            if (e < 1000000000000L)
                e = e * 10 + (s[i] - '0');
        point += neg ? -e : e;
    }
    if (point != 309)
        return point > 309;
    memset(digits + nd, '0', sizeof digits - nd);
    return memcmp(digits, border, sizeof digits) >= 0;
}

static bool is_digit(const scan *j)
{
    return j->i < j->n && j->s[j->i] >= '0' && j->s[j->i] <= '9';
}

static bool number(scan *j)
{
    size_t from = j->i;
    bool real = false;

    if (j->i < j->n && j->s[j->i] == '-')
        j->i++;
    if (!is_digit(j))
        return false;
    if (j->s[j->i] == '0')
        j->i++;
    else
        while (is_digit(j))
            j->i++;
    if (j->i < j->n && j->s[j->i] == '.') {
        real = true;
        j->i++;
        if (!is_digit(j))
            return false;
        while (is_digit(j))
            j->i++;
    }
    if (j->i < j->n && (j->s[j->i] == 'e' || j->s[j->i] == 'E')) {
        real = true;
        j->i++;
        if (j->i < j->n && (j->s[j->i] == '+' || j->s[j->i] == '-'))
            j->i++;
        if (!is_digit(j))
            return false;
        while (is_digit(j))
            j->i++;
    }
    return !real || !overflows(j->s + from, j->i - from);
}

static bool word(scan *j, const char *w)
{
    size_t n = strlen(w);
    if (j->n - j->i < n || memcmp(j->s + j->i, w, n) != 0)
        return false;
    j->i += n;
    return true;
}

/* Iterative; bit d of `object` says what the container at depth d is. */
static bool document(scan *j, bool want_object)
{
    unsigned char object[DS_PARSER_MAX_DEPTH * 2];
    unsigned depth = 0;
    size_t from, to;

    if (j->max_depth > sizeof object)
        return false;
    skip_ws(j);
    if (want_object && (j->i >= j->n || j->s[j->i] != '{'))
        return false;
value:
    skip_ws(j);
    if (j->i >= j->n)
        return false;
    switch (j->s[j->i]) {
    case '{':
    case '[':
        if (depth == j->max_depth)
            return false;
        object[depth++] = j->s[j->i++] == '{';
        skip_ws(j);
        if (j->i < j->n && j->s[j->i] == (object[depth - 1] ? '}' : ']')) {
            j->i++;
            depth--;
            break;
        }
        if (object[depth - 1])
            goto key;
        goto value;
    case '"':
        if (!string(j, &from, &to))
            return false;
        break;
    case 't':
        if (!word(j, "true"))
            return false;
        break;
    case 'f':
        if (!word(j, "false"))
            return false;
        break;
    case 'n':
        if (!word(j, "null"))
            return false;
        break;
    default:
        if (!number(j))
            return false;
    }
after:
    skip_ws(j);
    if (depth == 0)
        return j->i == j->n;
    if (j->i >= j->n)
        return false;
    if (j->s[j->i] == ',') {
        j->i++;
        if (!object[depth - 1])
            goto value;
        goto key;
    }
    if (j->s[j->i] != (object[depth - 1] ? '}' : ']'))
        return false;
    j->i++;
    depth--;
    goto after;
key:
    skip_ws(j);
    if (!string(j, &from, &to))
        return false;
    if (depth == 1 && j->key && !j->key(j->ctx, (const char *)j->s + from, to - from))
        return false;
    skip_ws(j);
    if (j->i >= j->n || j->s[j->i] != ':')
        return false;
    j->i++;
    goto value;
}

bool ds_json_text_ok(const char *s, size_t n, unsigned max_depth)
{
    scan j = { .s = (const unsigned char *)s, .n = n, .max_depth = max_depth };
    return document(&j, false);
}

bool ds_json_text_object(const char *s, size_t n, unsigned max_depth, bool (*key)(void *ctx, const char *raw, size_t raw_bytes), void *ctx)
{
    scan j = { .s = (const unsigned char *)s, .n = n, .max_depth = max_depth, .key = key, .ctx = ctx };
    return document(&j, true);
}

size_t ds_json_text_unescape(char *out, const char *s, size_t n)
{
    size_t o = 0;

    for (size_t i = 0; i < n; i++) {
        static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
        if (s[i] != '\\' || i + 1 >= n) {
            out[o++] = s[i];
            continue;
        }
        i++;
        const char *at = s[i] ? strchr(from, s[i]) : NULL;
        if (at) {
            out[o++] = to[at - from];
        } else if (s[i] == 'u' && n - i >= 5) {
            unsigned u = (unsigned)hex4((const unsigned char *)s + i + 1);
            i += 4;
            if (u >= 0xd800 && u < 0xdc00 && n - i > 6) {
                u = 0x10000 + ((u - 0xd800) << 10) + ((unsigned)hex4((const unsigned char *)s + i + 3) - 0xdc00);
                i += 6;
            }
            o += ds_utf8_encode(out + o, u);
        } else {
            out[o++] = s[i];
        }
    }
    return o;
}
