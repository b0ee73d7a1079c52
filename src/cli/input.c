#include "cli/input.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "cli/gen.h"

/* Signals are let in while it waits and at no other time, so none can come between the look at the flag and the wait. */
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
