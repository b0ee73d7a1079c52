/* Where processes listen: `unix:PATH`, or `HOST:PORT` on this machine.
 *
 * Whoever connects must be the same user or root: on a Unix socket, made with mode 0600, the kernel says who it is, and
 * for a port its table of connections (/proc/net/tcp) does. A port is for this machine only: between machines
 * connections need TLS, which isn't there, so a host that isn't a loopback address is refused by name. Whose process
 * listens isn't looked at: who can't trust every user of a machine with a free port uses Unix sockets in a directory of
 * their own.   Threads: none of its own. Descriptors are non-blocking and closed on exec. */
#ifndef DS_NET_ADDR_H
#define DS_NET_ADDR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/err.h"

enum { DS_ADDR_TEXT = 128 };

typedef struct {
    char text[DS_ADDR_TEXT]; /* as it was written; of a listener with the port that it got */
    bool local;              /* unix: */
    socklen_t n;
    struct sockaddr_storage sa;
} ds_addr;

/* DS_E_ARG says what is wrong. HOST is a numeric loopback address or `localhost`; IPv6 in brackets. */
ds_rc ds_addr_parse(ds_addr *a, const char *text, ds_err *err);
/* Replaces the socket file of a listener that is gone; port 0 takes a free one. DS_E_AGAIN: somebody listens there;
 * DS_E_IO. */
ds_rc ds_addr_listen(ds_addr *a, int *fd, ds_err *err);
/* A connection that came. DS_E_AGAIN: none, or its peer is another user, or gone already, and was sent
 * away; DS_E_IO. */
ds_rc ds_addr_accept(int listener, int *fd, ds_err *err);
/* DS_E_IO: nobody answers within the time. */
ds_rc ds_addr_connect(const ds_addr *a, uint32_t timeout_ms, int *fd, ds_err *err);

#endif
