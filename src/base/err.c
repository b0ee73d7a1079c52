/* Error messages and printable quotes of outside text. */
#include "base/err.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

/* Copies text into dst; what doesn't fit, or was cut by an earlier step, ends in "..." at a character's border. */
static void copy_cut(char *dst, size_t cap, const char *text, bool was_cut)
{
    size_t n = strlen(text);

    if (n < cap && !was_cut) {
        memcpy(dst, text, n + 1);
        return;
    }
    if (n > cap - 4)
        n = cap - 4;
    n = ds_utf8_floor(text, n);
    memcpy(dst, text, n);
    memcpy(dst + n, "...", 4);
}

ds_rc ds_fail(ds_err *err, ds_rc rc, const char *fmt, ...)
{
    char tmp[sizeof err->msg + 4]; /* arguments may point into err itself */
    va_list ap;
    int n;

    if (!err)
        return rc;
    va_start(ap, fmt);
    n = vsnprintf(tmp, sizeof tmp, fmt, ap);
    va_end(ap);
    if (n < 0)
        tmp[0] = '\0';
    err->rc = rc;
    copy_cut(err->msg, sizeof err->msg, tmp, n >= (int)sizeof tmp);
    return rc;
}

ds_rc ds_err_prefix(ds_err *err, ds_rc rc, const char *fmt, ...)
{
    char tmp[2 * sizeof err->msg];
    va_list ap;
    int n;

    if (!err)
        return rc;
    va_start(ap, fmt);
    n = vsnprintf(tmp, sizeof err->msg, fmt, ap);
    va_end(ap);
    if (n < 0)
        n = 0;
    if (n >= (int)sizeof err->msg) {
        copy_cut(err->msg, sizeof err->msg, tmp, true);
        return err->rc;
    }
    memcpy(tmp + n, err->msg, strlen(err->msg) + 1);
    copy_cut(err->msg, sizeof err->msg, tmp, false);
    return err->rc;
}

/* Characters that would break a line or reorder it on a terminal. */
static bool is_unprintable(uint32_t cp)
{
    return cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || cp == 0x061c || cp == 0x200e || cp == 0x200f || (cp >= 0x2028 && cp <= 0x202e) ||
           (cp >= 0x2066 && cp <= 0x2069) || cp == 0xfeff;
}

const char *ds_quote(char *buf, size_t cap, const char *text, size_t n)
{
    size_t at = 0, keep = 0, chars = 0; /* keep: where the text can be cut so that "..." still fits */

    for (size_t i = 0; i < n; chars++) {
        char piece[16];
        uint32_t cp;
        size_t len = ds_utf8_decode(text + i, n - i, &cp), m;

        if (len == 0) {
            m = (size_t)snprintf(piece, sizeof piece, "\\x%02x", (unsigned char)text[i]);
            len = 1;
        } else if (cp == '\n' || cp == '\r' || cp == '\t' || cp == '\\') {
            piece[0] = '\\';
            piece[1] = cp == '\n' ? 'n' : cp == '\r' ? 'r' : cp == '\t' ? 't' : '\\';
            m = 2;
        } else if (is_unprintable(cp)) {
            m = (size_t)snprintf(piece, sizeof piece, cp < 0x80 ? "\\x%02x" : "\\u%04x", cp);
        } else {
            memcpy(piece, text + i, len);
            m = len;
        }
        if (chars == 200 || at + m >= cap) {
            memcpy(buf + keep, "...", 4);
            return buf;
        }
        memcpy(buf + at, piece, m);
        at += m;
        i += len;
        if (at + 4 <= cap)
            keep = at;
    }
    buf[at] = '\0';
    return buf;
}
