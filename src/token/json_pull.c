#include "token/json_pull.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

bool ds_pull_fail(ds_pull *j, ds_rc rc, const char *fmt, ...)
{
    size_t line = 1, col = 1;
    char what[200];
    va_list ap;

    if (j->rc != DS_OK)
        return false;
    for (const char *q = j->start; q < j->p; q++) {
        if (*q == '\n') {
            line++;
            col = 1;
        } else if (((unsigned char)*q & 0xc0) != 0x80) {
            col++;
        }
    }
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    j->rc = ds_fail(j->err, rc, "line %zu, column %zu: %s", line, col, what);
    return false;
}

static bool fail_nomem(ds_pull *j)
{
    return ds_pull_fail(j, DS_E_NOMEM, "out of memory");
}

bool ds_pull_init(ds_pull *j, const char *text, size_t n, ds_err *err)
{
    *j = (ds_pull){ .start = text, .p = text, .end = text + n, .err = err };
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        return ds_pull_fail(j, DS_E_FORMAT, "the text starts with a byte order mark");
    return true;
}

void ds_pull_fini(ds_pull *j)
{
    free(j->keys);
    ds_buf_free(&j->key_text);
    ds_buf_free(&j->scratch);
    j->keys = NULL;
}

static inline void skip_space(ds_pull *j)
{
    while (j->p < j->end && (*j->p == ' ' || *j->p == '\n' || *j->p == '\r' || *j->p == '\t'))
        j->p++;
}

/* Refuses the character at p, where `wanted` belongs. */
static bool unexpected(ds_pull *j, const char *wanted)
{
    unsigned char c;

    if (j->rc != DS_OK)
        return false;
    if (j->p >= j->end)
        return ds_pull_fail(j, DS_E_FORMAT, "the text ends where %s belongs", wanted);
    c = (unsigned char)*j->p;
    if (c > 0x20 && c < 0x7f)
        return ds_pull_fail(j, DS_E_FORMAT, "'%c' where %s belongs", c, wanted);
    return ds_pull_fail(j, DS_E_FORMAT, "byte 0x%02x where %s belongs", c, wanted);
}

char ds_pull_peek(ds_pull *j)
{
    if (j->rc != DS_OK)
        return 0;
    skip_space(j);
    if (j->p < j->end) {
        char c = *j->p;
        if (c == '{' || c == '[' || c == '"' || c == 't' || c == 'f' || c == 'n')
            return c;
        if (c == '-' || (c >= '0' && c <= '9'))
            return '0';
    }
    unexpected(j, "a value");
    return 0;
}

static bool open_level(ds_pull *j, char c, bool own_keys)
{
    if (ds_pull_peek(j) != c)
        return unexpected(j, c == '{' ? "an object" : "an array");
    if (j->depth == DS_PULL_MAX_DEPTH)
        return ds_pull_fail(j, DS_E_FORMAT, "nested deeper than %d levels", DS_PULL_MAX_DEPTH);
    j->p++;
    j->open[j->depth].first = true;
    j->open[j->depth].object = c == '{';
    j->open[j->depth].own_keys = own_keys;
    j->open[j->depth].keys_mark = j->n_keys;
    j->open[j->depth].text_mark = j->key_text.len;
    j->depth++;
    return true;
}

bool ds_pull_object(ds_pull *j, bool own_keys)
{
    return open_level(j, '{', own_keys);
}

bool ds_pull_array(ds_pull *j)
{
    return open_level(j, '[', true);
}

/* Moves to the next child of the innermost level; false at its closing bracket, which is consumed, and on failure. */
static bool next_child(ds_pull *j, char close)
{
    bool first;

    if (j->rc != DS_OK)
        return false;
    first = j->open[j->depth - 1].first;
    skip_space(j);
    if (j->p < j->end && *j->p == close) {
        j->p++;
        j->depth--;
        return false;
    }
    if (!first) {
        if (j->p >= j->end || *j->p != ',')
            return unexpected(j, close == '}' ? "',' or '}'" : "',' or ']'");
        j->p++;
        skip_space(j);
    }
    j->open[j->depth - 1].first = false;
    return true;
}

bool ds_pull_item(ds_pull *j)
{
    return next_child(j, ']');
}

static const char *key_at(const ds_pull *j, const struct ds_pull_key *k)
{
    return k->p ? k->p : j->key_text.p + k->off;
}

static int compare_keys(const void *a, const void *b, void *arg)
{
    const struct ds_pull_key *x = a, *y = b;

    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return x->n ? memcmp(key_at(arg, x), key_at(arg, y), x->n) : 0;
}

/* The innermost object has ended: no key may stand in it twice. */
static bool check_keys(ds_pull *j)
{
    uint32_t mark = j->open[j->depth].keys_mark, n = j->n_keys - mark;
    struct ds_pull_key *k;

    if (n < 2)
        goto done;
    k = j->keys + mark;
    qsort_r(k, n, sizeof *k, compare_keys, j);
    for (uint32_t i = 1; i < n; i++) {
        if (compare_keys(&k[i - 1], &k[i], j) == 0) {
            char quoted[256];
            return ds_pull_fail(j, DS_E_FORMAT, "the object that ends here has the key \"%.120s\" twice",
                                ds_quote(quoted, sizeof quoted, key_at(j, &k[i]), k[i].n));
        }
    }
done:
    j->n_keys = mark;
    j->key_text.len = j->open[j->depth].text_mark;
    return true;
}

static bool remember_key(ds_pull *j, ds_span key)
{
    bool escaped = key.p < j->start || key.p >= j->end;

    if (j->n_keys == j->cap_keys) {
        uint32_t cap = j->cap_keys ? j->cap_keys * 2 : 64;
        struct ds_pull_key *keys = realloc(j->keys, cap * sizeof *keys);
        if (!keys)
            return fail_nomem(j);
        j->keys = keys;
        j->cap_keys = cap;
    }
    j->keys[j->n_keys++] = (struct ds_pull_key){ .p = escaped ? NULL : key.p, .off = j->key_text.len, .n = key.n };
    if (escaped && !ds_buf_put(&j->key_text, key.p, key.n))
        return fail_nomem(j);
    return true;
}

bool ds_pull_key(ds_pull *j, ds_span *key)
{
    if (!next_child(j, '}')) {
        if (j->rc == DS_OK && !j->open[j->depth].own_keys)
            check_keys(j);
        return false;
    }
    if (j->p >= j->end || *j->p != '"')
        return unexpected(j, "a key");
    if (!ds_pull_string(j, key) || (!j->open[j->depth - 1].own_keys && !remember_key(j, *key)))
        return false;
    skip_space(j);
    if (j->p >= j->end || *j->p != ':')
        return unexpected(j, "':'");
    j->p++;
    return true;
}

static bool read_hex4(ds_pull *j, uint32_t *out)
{
    uint32_t v = 0;

    for (int i = 0; i < 4; i++, j->p++) {
        char c = j->p < j->end ? *j->p : 0;
        if (c >= '0' && c <= '9')
            v = v << 4 | (uint32_t)(c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            v = v << 4 | (uint32_t)((c | 0x20) - 'a' + 10);
        else
            return unexpected(j, "a hexadecimal digit");
    }
    *out = v;
    return true;
}

/* p is behind a backslash. */
static bool read_escape(ds_pull *j)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char utf8[4];
    uint32_t cp = 0, low = 0;
    const char *at;

    if (j->p >= j->end)
        return unexpected(j, "an escape");
    if (*j->p != 'u') {
        at = memchr(from, *j->p, sizeof from - 1);
        if (!at)
            return unexpected(j, "an escape");
        j->p++;
        return ds_buf_putc(&j->scratch, to[at - from]) || fail_nomem(j);
    }
    j->p++;
    if (!read_hex4(j, &cp))
        return false;
    if (cp >= 0xd800 && cp < 0xdc00 && j->end - j->p >= 6 && j->p[0] == '\\' && j->p[1] == 'u') {
        j->p += 2;
        if (!read_hex4(j, &low))
            return false;
        if (low < 0xdc00 || low > 0xdfff)
            return ds_pull_fail(j, DS_E_FORMAT, "lone surrogate \\u%04x", cp);
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
    } else if (cp >= 0xd800 && cp < 0xe000) {
        return ds_pull_fail(j, DS_E_FORMAT, "lone surrogate \\u%04x", cp);
    }
    return ds_buf_put(&j->scratch, utf8, ds_utf8_encode(utf8, cp)) || fail_nomem(j);
}

/* All that isn't ASCII stands in strings, else it is refused as what it isn't: so it is checked here, and only here. */
static bool check_utf8(ds_pull *j, const char *p, const char *end)
{
    while (p < end) {
        uint32_t cp;
        size_t n;

        if ((unsigned char)*p < 0x80) {
            p++;
            continue;
        }
        n = ds_utf8_decode(p, (size_t)(end - p), &cp);
        if (n == 0) {
            j->p = p;
            return ds_pull_fail(j, DS_E_FORMAT, "byte 0x%02x is not UTF-8", (unsigned char)*p);
        }
        p += n;
    }
    return true;
}

/* Moves to the next character that can't stand in a string as it is, or to the end. Eight bytes at a time: strings
 * are most of such a file. */
static bool skip_plain(ds_pull *j)
{
    const uint64_t ones = 0x0101010101010101u, high = ones << 7;
    const char *from = j->p;
    uint64_t seen = 0, w;

    while (j->end - j->p >= 8) {
        memcpy(&w, j->p, 8);
        uint64_t quote = w ^ ones * '"', back = w ^ ones * '\\';
        /* the lowest bit that is set is right; those above it may not be */
        uint64_t hit = ((quote - ones) & ~quote) | ((back - ones) & ~back) | ((w - ones * 0x20) & ~w);
        hit &= high;
        if (hit) {
            int bytes = __builtin_ctzll(hit) / 8;
            seen |= w & ~(~(uint64_t)0 << 8 * bytes);
            j->p += bytes;
            goto done;
        }
        seen |= w;
        j->p += 8;
    }
    while (j->p < j->end && *j->p != '"' && *j->p != '\\' && (unsigned char)*j->p >= 0x20)
        seen |= (unsigned char)*j->p++;
done:
    return !(seen & high) || check_utf8(j, from, j->p);
}

bool ds_pull_string(ds_pull *j, ds_span *s)
{
    const char *from;

    if (j->rc != DS_OK || ds_pull_peek(j) != '"')
        return unexpected(j, "a string");
    from = ++j->p;
    if (!skip_plain(j))
        return false;
    if (j->p < j->end && *j->p == '"') {
        *s = (ds_span){ from, (size_t)(j->p - from) };
        j->p++;
        return true;
    }
    ds_buf_clear(&j->scratch);
    for (;;) {
        if (!ds_buf_put(&j->scratch, from, (size_t)(j->p - from)))
            return fail_nomem(j);
        if (j->p >= j->end)
            return unexpected(j, "the end of a string");
        if (*j->p == '"')
            break;
        if (*j->p != '\\')
            return unexpected(j, "a character of a string");
        j->p++;
        if (!read_escape(j))
            return false;
        from = j->p;
        if (!skip_plain(j))
            return false;
    }
    j->p++;
    *s = (ds_span){ ds_buf_str(&j->scratch), j->scratch.len };
    return true;
}

static bool read_word(ds_pull *j, const char *word)
{
    size_t n = strlen(word);

    if ((size_t)(j->end - j->p) < n || memcmp(j->p, word, n) != 0)
        return unexpected(j, "a value");
    j->p += n;
    return true;
}

bool ds_pull_bool(ds_pull *j, bool *out)
{
    char c = ds_pull_peek(j);

    if (c != 't' && c != 'f')
        return unexpected(j, "true or false");
    *out = c == 't';
    return read_word(j, *out ? "true" : "false");
}

bool ds_pull_null(ds_pull *j)
{
    return ds_pull_peek(j) == 'n' && read_word(j, "null");
}

static bool is_digit(const ds_pull *j)
{
    return j->p < j->end && *j->p >= '0' && *j->p <= '9';
}

static bool read_digits(ds_pull *j)
{
    if (!is_digit(j))
        return unexpected(j, "a digit");
    while (is_digit(j))
        j->p++;
    return true;
}

/* Any JSON number; *whole: it has neither sign, fraction nor exponent. */
static bool read_number(ds_pull *j, bool *whole)
{
    *whole = true;
    if (*j->p == '-') {
        *whole = false;
        j->p++;
    }
    if (j->p < j->end && *j->p == '0')
        j->p++;
    else if (!read_digits(j))
        return false;
    if (j->p < j->end && *j->p == '.') {
        *whole = false;
        j->p++;
        if (!read_digits(j))
            return false;
    }
    if (j->p < j->end && (*j->p == 'e' || *j->p == 'E')) {
        *whole = false;
        j->p++;
        if (j->p < j->end && (*j->p == '+' || *j->p == '-'))
            j->p++;
        return read_digits(j);
    }
    return true;
}

bool ds_pull_u32(ds_pull *j, uint32_t max, uint32_t *out)
{
    const char *from;
    uint64_t v = 0;
    bool whole;

    if (ds_pull_peek(j) != '0')
        return unexpected(j, "an integer");
    from = j->p;
    if (!read_number(j, &whole))
        return false;
    for (const char *q = from; whole && q < j->p; q++) {
        v = v * 10 + (uint64_t)(*q - '0');
        whole = v <= max;
    }
    if (!whole) {
        char quoted[256];
        return ds_pull_fail(j, DS_E_FORMAT, "%.40s is no integer of 0 to %u", ds_quote(quoted, sizeof quoted, from, (size_t)(j->p - from)),
                            max);
    }
    *out = (uint32_t)v;
    return true;
}

bool ds_pull_skip(ds_pull *j)
{
    uint32_t base = j->depth;
    ds_span s;
    bool b;

    do {
        switch (ds_pull_peek(j)) {
        case '{':
            ds_pull_object(j, false);
            break;
        case '[':
            ds_pull_array(j);
            break;
        case '"':
            ds_pull_string(j, &s);
            break;
        case '0':
            read_number(j, &b);
            break;
        case 'n':
            ds_pull_null(j);
            break;
        default:
            ds_pull_bool(j, &b);
            break;
        }
        /* Leave levels that end here; stop in front of the next value. */
        while (j->rc == DS_OK && j->depth > base) {
            if (j->open[j->depth - 1].object ? ds_pull_key(j, &s) : ds_pull_item(j))
                break;
        }
    } while (j->rc == DS_OK && j->depth > base);
    return j->rc == DS_OK;
}

bool ds_pull_end(ds_pull *j)
{
    if (j->rc != DS_OK)
        return false;
    skip_space(j);
    return j->p == j->end || ds_pull_fail(j, DS_E_FORMAT, "there is more text after the value");
}
