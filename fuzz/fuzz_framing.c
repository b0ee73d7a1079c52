/* Heads of requests: what is accepted is framed in exactly one way, by a reading of its own here. */
#include <string.h>
#include <strings.h>

#include "server/framing.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok)
        __builtin_trap();
}

enum { HEAD_MAX = 4096 };

/* The bytes as an HTTP library takes them apart: lines end at LF with or without CR, names at the first colon,
 * leading white space of values goes, a NUL ends a value, a line that begins with white space or a colon is left
 * out. What was lost so must show. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char head[HEAD_MAX + 1];
    ds_framing f;
    size_t hosts = 0, lengths = 0, codings = 0, at, line_n;
    int odd = 0;

    if (size > HEAD_MAX || size == 0 || data[size - 1] != '\n')
        return 0;
    memcpy(head, data, size);
    head[size] = '\0';
    ds_framing_start(&f, "POST", 1, data[0] & 1 ? "HTTP/1.1" : "HTTP/1.0");
    for (at = 0; at < size; at += line_n + 1) {
        char *line = head + at, *lf = memchr(line, '\n', size - at), *colon, *value;
        line_n = (size_t)(lf - line);
        size_t n = line_n;
        if (n == 0 || (n == 1 && *line == '\r')) /* the head would end here */
            return 0;
        if (line[n - 1] != '\r' && line[n - 1] != '\0') /* the library leaves NULs where a line ended: the two can't be told apart */
            odd = 1;
        else
            n--;
        line[n] = '\0';
        colon = memchr(line, ':', n);
        if (!colon || colon == line || *line == ' ' || *line == '\t') {
            odd = 1;
            continue;
        }
        value = colon + 1 + strspn(colon + 1, " \t");
        odd |= strlen(value) != (size_t)(line + n - value);
        for (const char *p = value; *p; p++)
            odd |= ((unsigned char)*p < 0x20 && *p != '\t') || *p == 0x7f;
        size_t name_n = (size_t)(colon - line);
        hosts += name_n == 4 && strncasecmp(line, "host", 4) == 0;
        lengths += name_n == 14 && strncasecmp(line, "content-length", 14) == 0;
        codings += name_n == 17 && strncasecmp(line, "transfer-encoding", 17) == 0;
        ds_framing_header(&f, line, name_n, value, strlen(value));
    }
    const char *why = ds_framing_end(&f, 4 + 1 + 1 + 1 + 8 + 2 + size + 2);
    if (why) {
        must(*why && !strchr(why, '\n'));
        return 0;
    }
    must(!odd && hosts <= 1 && (f.http10 || hosts == 1) && codings <= 1 && !(lengths && codings) && !(f.http10 && codings));
    must(f.has_length == (lengths > 0) && f.chunked == (codings > 0));
    return 0;
}
