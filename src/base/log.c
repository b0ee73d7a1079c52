/* Log lines. */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/utf8.h"

enum { LINE_MAX_BYTES = 2048 }; /* below PIPE_BUF: lines of several threads and processes don't mix in a pipe */

void ds_logf(const ds_log *log, ds_log_level level, const char *fmt, ...)
{
    static const char *const names[] = { "error ", "warn ", "info ", "debug " };
    char line[LINE_MAX_BYTES];
    size_t n, at = 0;
    va_list ap;
    int wrote;

    if (!log || log->fd < 0 || level > log->level)
        return;
    n = strlen(names[level]);
    memcpy(line, names[level], n);
    va_start(ap, fmt);
    wrote = vsnprintf(line + n, sizeof line - n - 1, fmt, ap);
    va_end(ap);
    if (wrote < 0)
        return;
    if ((size_t)wrote >= sizeof line - n - 1) { /* too long: cut between characters */
        size_t keep = ds_utf8_floor(line, sizeof line - 6);
        memcpy(line + keep, "...", 4);
        n = keep + 3;
    } else {
        n += (size_t)wrote;
    }
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f) /* outside text must not begin a line of its own */
            line[i] = ' ';
    line[n++] = '\n';
    while (at < n) {
        ssize_t w = write(log->fd, line + at, n - at);
        if (w > 0)
            at += (size_t)w;
        else if (w == 0 || errno != EINTR)
            return; /* a log that can't be written must not stop the program */
    }
}
