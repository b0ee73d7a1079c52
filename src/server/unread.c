/* Whether a client reads what the kernel already has: the kernel takes bytes for long after a reader has stopped. */
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "server/server_internal.h"

enum {
    SEND_BUFFER_BYTES = 256 << 10
}; /* the kernel's own bound is megabytes, which is minutes of one answer; it doubles this for its bookkeeping */

void ds_conn_bound_buffer(const ds_conn *c)
{
    setsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &(int){ SEND_BUFFER_BYTES }, sizeof(int));
}

/* A client that reads makes room, and its kernel says so by acknowledging more. A socket of a path has no such
 * count: its bounded buffer, which then is full for the server too, is all. */
uint64_t ds_conn_unread_since(ds_conn *c, uint64_t now_us)
{
    struct tcp_info i = { 0 };
    socklen_t n = sizeof i;
    int waiting = 0;

    if (c->l->is_unix || ioctl(c->fd, SIOCOUTQ, &waiting) != 0 || waiting == 0 || getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &i, &n) != 0 ||
        n < offsetof(struct tcp_info, tcpi_bytes_acked) + sizeof i.tcpi_bytes_acked || i.tcpi_bytes_acked != c->acked || !c->acked_us) {
        c->acked = i.tcpi_bytes_acked;
        c->acked_us = now_us;
    }
    return c->acked_us;
}
