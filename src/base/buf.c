/* A growing byte buffer. */
#include "base/buf.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool ds_buf_reserve(ds_buf *b, size_t more_bytes)
{
    size_t need, cap;
    char *p;

    if (b->oom)
        return false;
    if (more_bytes < b->cap - b->len) /* one byte stays for the NUL; cap > len once anything was taken */
        return true;
    if (__builtin_add_overflow(b->len, more_bytes, &need) || need > SIZE_MAX / 2 - 1) {
        b->oom = true;
        return false;
    }
    need++;
    cap = b->cap ? b->cap * 2 : 64;
    if (cap < need)
        cap = need;
    p = realloc(b->p, cap);
    if (!p) {
        b->oom = true;
        return false;
    }
    p[b->len] = '\0';
    b->p = p;
    b->cap = cap;
    return true;
}

bool ds_buf_put(ds_buf *b, const void *bytes, size_t n)
{
    if (!ds_buf_reserve(b, n))
        return false;
    if (n > 0)
        memcpy(b->p + b->len, bytes, n);
    b->len += n;
    b->p[b->len] = '\0';
    return true;
}

bool ds_buf_puts(ds_buf *b, const char *s)
{
    return ds_buf_put(b, s, strlen(s));
}

bool ds_buf_putc(ds_buf *b, char c)
{
    return ds_buf_put(b, &c, 1);
}

bool ds_buf_vprintf(ds_buf *b, const char *fmt, va_list ap)
{
    va_list again;
    size_t room;
    int n;

    if (!ds_buf_reserve(b, 1))
        return false;
    room = b->cap - b->len;
    va_copy(again, ap);
    n = vsnprintf(b->p + b->len, room, fmt, ap);
    if (n >= 0 && (size_t)n >= room) {
        b->p[b->len] = '\0';
        if (!ds_buf_reserve(b, (size_t)n)) {
            va_end(again);
            return false;
        }
        n = vsnprintf(b->p + b->len, (size_t)n + 1, fmt, again);
    }
    va_end(again);
    if (n < 0) { /* the C library couldn't format it: only for lack of memory with our formats */
        b->p[b->len] = '\0';
        b->oom = true;
        return false;
    }
    b->len += (size_t)n;
    return true;
}

bool ds_buf_printf(ds_buf *b, const char *fmt, ...)
{
    va_list ap;
    bool ok;

    va_start(ap, fmt);
    ok = ds_buf_vprintf(b, fmt, ap);
    va_end(ap);
    return ok;
}

void ds_buf_clear(ds_buf *b)
{
    b->len = 0;
    b->oom = false;
    if (b->p)
        b->p[0] = '\0';
}

void ds_buf_free(ds_buf *b)
{
    free(b->p);
    *b = (ds_buf){ 0 };
}

const char *ds_buf_str(const ds_buf *b)
{
    return b->p ? b->p : "";
}
