/* UTF-8, strictly: no overlong forms, no surrogates, nothing above U+10FFFF. Threads: any. */
#ifndef DS_BASE_UTF8_H
#define DS_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the character at s (1..4) and its code point; 0 when the bytes there are no complete valid character. */
static inline size_t ds_utf8_decode(const char *s, size_t n, uint32_t *cp)
{
    const unsigned char *p = (const unsigned char *)s;
    uint32_t c, len, least;

    if (n == 0)
        return 0;
    c = p[0];
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    if (c >= 0xc2 && c < 0xe0) {
        len = 2;
        least = 0x80;
        c &= 0x1f;
    } else if (c >= 0xe0 && c < 0xf0) {
        len = 3;
        least = 0x800;
        c &= 0x0f;
    } else if (c >= 0xf0 && c < 0xf5) {
        len = 4;
        least = 0x10000;
        c &= 0x07;
    } else {
        return 0;
    }
    if (n < len)
        return 0;
    for (uint32_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3f);
    }
    if (c < least || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return 0;
    *cp = c;
    return len;
}

/* Where ds_utf8_decode gives 0: bytes (1..3) of the longest piece that could have begun a character. Each such piece
 * becomes one U+FFFD, as Unicode recommends and Python's errors="replace" does. n > 0. *cut: more bytes could still
 * complete the piece (it ends with the text). */
static inline size_t ds_utf8_bad(const char *s, size_t n, bool *cut)
{
    const unsigned char *p = (const unsigned char *)s;
    unsigned char lo = 0x80, hi = 0xbf;
    size_t len = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2, i;

    *cut = false;
    if (p[0] < 0xc2 || p[0] > 0xf4)
        return 1;
    if (p[0] == 0xe0)
        lo = 0xa0;
    else if (p[0] == 0xed)
        hi = 0x9f;
    else if (p[0] == 0xf0)
        lo = 0x90;
    else if (p[0] == 0xf4)
        hi = 0x8f;
    for (i = 1; i < len && i < n; i++) {
        if (p[i] < lo || p[i] > hi)
            return i;
        lo = 0x80;
        hi = 0xbf;
    }
    *cut = i < len;
    return i;
}

/* Writes a code point (valid, no surrogate); returns its bytes, 1..4. */
static inline size_t ds_utf8_encode(char *out, uint32_t cp)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

/* The largest m <= n at which a character of s starts (or the text ends): where text can be cut. O(1). */
static inline size_t ds_utf8_floor(const char *s, size_t n)
{
    size_t m = n;

    for (int back = 0; back < 3 && m > 0 && ((unsigned char)s[m] & 0xc0) == 0x80; back++)
        m--;
    return ((unsigned char)s[m] & 0xc0) == 0x80 ? n : m; /* a run of continuation bytes is no UTF-8: cut anywhere */
}

/* The whole text is valid. O(n), about a byte a nanosecond or better. */
bool ds_utf8_valid(const char *s, size_t n);

#endif
