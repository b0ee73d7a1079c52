#include "cli/input.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli/gen.h"
#include "base/file.h"

/* Signals are let in while it waits and at no other time, so none can come between the look at the flag and the
 * wait. */
static void fill(ds_cli_input *in)
{
    struct pollfd p = { .fd = in->fd, .events = POLLIN };
    sigset_t both, before;
    ssize_t n = 0;

    sigemptyset(&both);
    sigaddset(&both, SIGINT);
    sigaddset(&both, SIGTERM);
    sigprocmask(SIG_BLOCK, &both, &before);
    in->error = ds_cli_signal() && !in->deaf ? EINTR : 0;
    while (!in->error) {
        if (ppoll(&p, 1, NULL, &before) == 1)
            n = read(in->fd, in->buf, sizeof in->buf);
        else
            n = -1;
        if (n >= 0)
            break;
        if (errno != EINTR || (ds_cli_signal() && !in->deaf))
            in->error = errno;
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (n <= 0 && ds_cli_signal() && !in->deaf)
        in->error = EINTR; /* it was pending when the other end closed */
    in->at = 0;
    in->n = n > 0 ? (size_t)n : 0;
}

int ds_cli_input_byte(ds_cli_input *in)
{
    if (in->at == in->n)
        fill(in);
    return in->at < in->n ? (unsigned char)in->buf[in->at++] : -1;
}

bool ds_cli_input_line(ds_cli_input *in, const char *name, ds_buf *line, uint64_t *bytes, ds_rc *rc, ds_err *err)
{
    char q[112];
    int c = 0;

    ds_buf_clear(line);
    for (*bytes = 0; *bytes < DS_CLI_SKIP_MAX_BYTES; ++*bytes) {
        c = ds_cli_input_byte(in);
        if (c == -1 || c == '\n')
            break;
        if (*bytes < DS_CLI_LINE_MAX_BYTES && !ds_buf_putc(line, (char)c)) {
            *rc = ds_fail(err, DS_E_NOMEM, "%s: out of memory for a line", ds_file_label(q, sizeof q, name));
            return false;
        }
    }
    if (c == '\n' || (c == -1 && !in->error))
        return c == '\n' || *bytes > 0;
    if (c == -1 && in->error == EINTR)
        *rc = ds_fail(err, DS_E_CANCELED, "stopped");
    else if (c == -1)
        *rc = ds_fail(err, DS_E_IO, "%s: %s", ds_file_label(q, sizeof q, name), strerror(in->error));
    else
        *rc = ds_fail(err, DS_E_FORMAT, "%s: a line has no end within %d bytes", ds_file_label(q, sizeof q, name), DS_CLI_SKIP_MAX_BYTES);
    return false;
}

ds_rc ds_cli_read_all(int fd, const char *what, size_t most, ds_buf *in, ds_err *err)
{
    for (;;) {
        ssize_t n;

        if (!ds_buf_reserve(in, 1 << 16))
            return ds_fail(err, DS_E_NOMEM, "%s: out of memory after %zu bytes", what, in->len);
        n = read(fd, in->p + in->len, 1 << 16);
        if (n == 0)
            return DS_OK;
        if (n == -1 && errno == EINTR)
            continue;
        if (n == -1)
            return ds_fail(err, DS_E_IO, "%s: %s", what, strerror(errno));
        in->len += (size_t)n;
        if (in->len > most)
            return ds_fail(err, DS_E_ARG, "%s: more than %zu bytes", what, most);
    }
}

ds_rc ds_cli_write_all(const ds_buf *out, ds_err *err)
{
    for (size_t at = 0; at < out->len;) {
        ssize_t n = write(STDOUT_FILENO, out->p + at, out->len - at);

        if (n == -1 && errno == EINTR)
            continue;
        if (n == -1)
            return ds_fail(err, DS_E_IO, "standard output: %s", strerror(errno));
        at += (size_t)n;
    }
    return DS_OK;
}
