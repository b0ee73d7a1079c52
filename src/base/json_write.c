/* The JSON writer. */
#include "base/json.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_internal.h"
#include "base/utf8.h"

/* Significant digits (no leading or trailing zeros) and the decimal exponent of the first one. */
typedef struct {
    char digit[20];
    int n, exp10;
} decimal;

static void to_decimal(decimal *d, double x, int precision)
{
    char t[40];
    const char *s;

    snprintf(t, sizeof t, "%.*e", precision - 1, x); /* d.ddde±xx; the point may be another character in a foreign locale */
    d->n = 0;
    for (s = t; *s != 'e'; s++)
        if (*s >= '0' && *s <= '9')
            d->digit[d->n++] = *s;
    d->exp10 = atoi(s + 1);
    while (d->n > 1 && d->digit[d->n - 1] == '0')
        d->n--;
}

static double from_decimal(const decimal *d)
{
    char t[40];

    snprintf(t, sizeof t, "%.*se%d", d->n, d->digit, d->exp10 - (d->n - 1)); /* all digits before the point: no locale in it */
    return strtod(t, NULL);
}

/* One more in the last place of `precision` digits. */
static void step_up(decimal *d, int precision)
{
    int i = precision - 1;

    while (d->n < precision)
        d->digit[d->n++] = '0';
    while (i >= 0 && d->digit[i] == '9')
        d->digit[i--] = '0';
    if (i >= 0) {
        d->digit[i]++;
    } else {
        d->digit[0] = '1';
        d->exp10++;
    }
    while (d->n > 1 && d->digit[d->n - 1] == '0')
        d->n--;
}

/* The fewest digits that read back as x > 0, nearest to x among those. A normal double survives 15 digits if any
 * shorter text does, so the search starts there; a subnormal has fewer bits. Below a power of two doubles lie twice
 * as dense as above, so there the nearest decimal can miss while the next one up still reads back as x. */
static void shortest(decimal *d, double x)
{
    int exp2;
    bool edge = frexp(x, &exp2) == 0.5;

    for (int precision = x < DBL_MIN ? 1 : 15; precision < 17; precision++) {
        to_decimal(d, x, precision);
        if (from_decimal(d) == x)
            return;
        if (edge && from_decimal(d) < x) {
            step_up(d, precision);
            if (from_decimal(d) == x)
                return;
        }
    }
    to_decimal(d, x, 17);
}

void ds_json_write_f64(ds_buf *b, double x)
{
    decimal d;
    char t[48];
    size_t n = 0;

    if (!isfinite(x)) {
        ds_buf_put(b, "null", 4);
        return;
    }
    if (fabs(x) < 1e15 && x == floor(x)) {
        n = (size_t)snprintf(t, sizeof t, "%s%llu.0", signbit(x) ? "-" : "", (unsigned long long)fabs(x));
        ds_buf_put(b, t, n);
        return;
    }
    shortest(&d, fabs(x));
    if (signbit(x))
        t[n++] = '-';
    if (d.exp10 < -4 || d.exp10 >= 16) {
        t[n++] = d.digit[0];
        if (d.n > 1) {
            t[n++] = '.';
            memcpy(t + n, d.digit + 1, (size_t)d.n - 1);
            n += (size_t)d.n - 1;
        }
        n += (size_t)snprintf(t + n, sizeof t - n, "e%c%02d", d.exp10 < 0 ? '-' : '+', abs(d.exp10));
    } else if (d.exp10 < 0) {
        t[n++] = '0';
        t[n++] = '.';
        for (int i = -1; i > d.exp10; i--)
            t[n++] = '0';
        memcpy(t + n, d.digit, (size_t)d.n);
        n += (size_t)d.n;
    } else {
        for (int i = 0; i < d.n || i <= d.exp10 + 1; i++) {
            if (i == d.exp10 + 1)
                t[n++] = '.';
            t[n++] = i < d.n ? d.digit[i] : '0';
        }
    }
    ds_buf_put(b, t, n);
}

/* The escape of a code point, or NULL if it is written as it is. */
static const char *escape(char room[8], uint32_t cp, ds_json_style style)
{
    switch (cp) {
    case '"':
        return "\\\"";
    case '\\':
        return "\\\\";
    case '\b':
        return "\\b";
    case '\f':
        return "\\f";
    case '\n':
        return "\\n";
    case '\r':
        return "\\r";
    case '\t':
        return "\\t";
    }
    if (cp >= 0x20 && !(style == DS_JSON_SSE && (cp == 0x85 || cp == 0x2028 || cp == 0x2029)))
        return NULL;
    snprintf(room, 8, "\\u%04x", cp & 0xffffu);
    return room;
}

void ds_json_write_str(ds_buf *b, const char *s, size_t n, ds_json_style style)
{
    size_t run = 0; /* start of what is not yet written */
    char room[8];

    ds_buf_reserve(b, n + 2);
    ds_buf_putc(b, '"');
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        const char *esc;
        size_t len = 1;
        uint32_t cp = c;
        bool cut;

        if (n - i >= 8) {
            uint64_t w, end;
            memcpy(&w, s + i, 8);
            end = ds_json_run_end(w) | (w & 0x8080808080808080u);
            i += end ? (size_t)__builtin_ctzll(end) / 8 : 8;
            if (!end)
                continue;
            c = (unsigned char)s[i];
            cp = c;
        }
        if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') {
            i++;
            continue;
        }
        if (c >= 0x80)
            len = ds_utf8_decode(s + i, n - i, &cp);
        if (len == 0) {
            len = ds_utf8_bad(s + i, n - i, &cut);
            esc = "\xef\xbf\xbd";
        } else {
            esc = escape(room, cp, style);
        }
        if (esc) {
            ds_buf_put(b, s + run, i - run);
            ds_buf_puts(b, esc);
            run = i + len;
        }
        i += len;
    }
    ds_buf_put(b, s + run, n - run);
    ds_buf_putc(b, '"');
}

static void write_number(ds_buf *b, const ds_json *v, ds_json_style style)
{
    double x;

    if (style == DS_JSON_PYTHON) {
        if (strcmp(v->text, "-0") == 0) {
            ds_buf_putc(b, '0');
            return;
        }
        if (strpbrk(v->text, ".eE") && ds_json_f64(v, &x)) {
            ds_json_write_f64(b, x);
            return;
        }
    }
    ds_buf_put(b, v->text, v->text_len);
}

void ds_json_write(ds_buf *b, const ds_json *v, ds_json_style style)
{
    bool object = v->type == DS_JSON_OBJECT;

    switch (v->type) {
    case DS_JSON_NULL:
        ds_buf_put(b, "null", 4);
        return;
    case DS_JSON_FALSE:
        ds_buf_put(b, "false", 5);
        return;
    case DS_JSON_TRUE:
        ds_buf_put(b, "true", 4);
        return;
    case DS_JSON_NUMBER:
        write_number(b, v, style);
        return;
    case DS_JSON_STRING:
        ds_json_write_str(b, v->text, v->text_len, style);
        return;
    case DS_JSON_ARRAY:
    case DS_JSON_OBJECT:
        break;
    }
    ds_buf_putc(b, object ? '{' : '[');
    for (const ds_json *c = v->child; c; c = c->next) {
        if (c != v->child)
            ds_buf_puts(b, style == DS_JSON_PYTHON ? ", " : ",");
        if (object) {
            ds_json_write_str(b, c->key, c->key_len, style);
            ds_buf_puts(b, style == DS_JSON_PYTHON ? ": " : ":");
        }
        ds_json_write(b, c, style);
    }
    ds_buf_putc(b, object ? '}' : ']');
}
