#include "server/framing.h"

#include <string.h>
#include <strings.h>

enum { MAX_HEAD_BYTES = 16 << 20 }; /* a distance above it is between two buffers, not inside one line */

/* RFC 9110: token characters. */
static bool is_token(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (!((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c && strchr("!#$%&'*+-.^_`|~", c))))
            return false;
    }
    return n > 0;
}

static bool is(const char *name, size_t n, const char *want)
{
    return strlen(want) == n && strncasecmp(name, want, n) == 0;
}

static void refuse(ds_framing *f, const char *why)
{
    if (!f->why)
        f->why = why;
}

void ds_framing_start(ds_framing *f, const char *method, size_t target_bytes, const char *version)
{
    *f = (ds_framing){ .bytes = strlen(method) + 1 + target_bytes + 1 + strlen(version) + 2 };
    if (!is_token(method, strlen(method)))
        refuse(f, "the method is malformed");
    if (target_bytes == 0)
        refuse(f, "the request line has no target");
    f->http10 = strcmp(version, "HTTP/1.0") == 0;
    if (!f->http10 && strcmp(version, "HTTP/1.1") != 0)
        refuse(f, "the version must be HTTP/1.1 or HTTP/1.0");
}

static void content_length(ds_framing *f, const char *v, size_t n)
{
    uint64_t x = 0;

    for (size_t i = 0; i < n; i++) {
        if (v[i] < '0' || v[i] > '9' || x > (UINT64_MAX - 9) / 10) {
            refuse(f, "Content-Length is no number");
            return;
        }
        x = 10 * x + (uint64_t)(v[i] - '0');
    }
    if (n == 0)
        refuse(f, "Content-Length is empty");
    if (f->has_length && x != f->length)
        refuse(f, "two Content-Length headers differ");
    f->has_length = true;
    f->length = x;
}

void ds_framing_header(ds_framing *f, const char *name, size_t name_n, const char *value, size_t value_n)
{
    size_t space = (size_t)((uintptr_t)value - (uintptr_t)name) - name_n - 1;

    if (!is_token(name, name_n)) {
        refuse(f, "a header name is malformed");
        return;
    }
    if (!value) {
        refuse(f, "a header line has no value");
        return;
    }
    if (space > MAX_HEAD_BYTES) {
        refuse(f, "a header value is folded over lines");
        return;
    }
    if (f->next && (uintptr_t)name != f->next)
        refuse(f, "the head has bytes that belong to no header");
    f->next = (uintptr_t)value + value_n + 2;
    f->bytes += name_n + 1 + space + value_n + 2;
    if (value_n == 0)
        f->empty_value = true;
    for (size_t i = 0; i < value_n; i++)
        if (((unsigned char)value[i] < 0x20 && value[i] != '\t') || value[i] == 0x7f)
            refuse(f, "a header value has control characters");
    while (value_n && (value[value_n - 1] == ' ' || value[value_n - 1] == '\t'))
        value_n--;
    if (is(name, name_n, "content-length")) {
        content_length(f, value, value_n);
    } else if (is(name, name_n, "transfer-encoding")) {
        if (f->has_coding)
            refuse(f, "more than one Transfer-Encoding header");
        if (!is(value, value_n, "chunked"))
            refuse(f, "the only Transfer-Encoding that is taken is chunked");
        f->has_coding = f->chunked = true;
    } else if (is(name, name_n, "host")) {
        if (f->has_host)
            refuse(f, "more than one Host header");
        f->has_host = true;
    }
}

const char *ds_framing_end(ds_framing *f, size_t head_bytes)
{
    if (f->has_length && f->has_coding)
        refuse(f, "Content-Length and Transfer-Encoding exclude each other");
    if (f->http10 && f->has_coding)
        refuse(f, "HTTP/1.0 has no Transfer-Encoding");
    if (!f->http10 && !f->has_host)
        refuse(f, "the Host header is missing");
    if (f->bytes + 2 != head_bytes)
        refuse(f, "the head has bytes that belong to no header");
    return f->why;
}
