/* A connection between two processes that exchange messages: frames (net/frame.h) over a stream, in order, in both
 * directions, on a thread of its own.
 *
 * A message is one frame, or several whose flag DS_CONN_MORE says that the next goes on with it. Sending never waits:
 * what the socket doesn't take is queued, and the queue has a bound. Both sides say something at least every ping_ms;
 * a peer that is silent for silence_ms is gone, whether it was killed, stopped or cut off. What is wrong with a stream
 * ends it; nothing behind is looked at.
 *
 * Threads: send and stop from any, callbacks on the connection's own, one at a time.   Memory: as the bounds say. */
#ifndef DS_NET_CONN_H
#define DS_NET_CONN_H

#include "net/frame.h"

#define DS_CONN_MORE 0x80000000u /* flag: the message goes on in the next frame */
enum { DS_CONN_PING = 0xffff };  /* type of frames that say nothing; never a message's */

typedef struct ds_conn ds_conn;

typedef struct {
    /* A message; *f is its first frame's header. payload until it returns. Not DS_OK: the connection ends, *err says
     * why. */
    ds_rc (*message)(void *ctx, const ds_frame *f, const uint8_t *payload, size_t n, ds_err *err);
    /* The last call: the connection is over. */
    void (*gone)(void *ctx, const ds_err *why);
    void *ctx;
} ds_conn_fn;

/* Zero means the default that is named. */
typedef struct {
    uint32_t ping_ms;    /* 500 */
    uint32_t silence_ms; /* 5000 */
    size_t max_queue;    /* bytes that wait to be sent; 64 MiB */
    size_t max_message;  /* bytes of a message that is taken; 64 MiB */
} ds_conn_opts;

/* Takes the connected, non-blocking descriptor, also when it fails. opts may be NULL. DS_E_NOMEM, DS_E_IO. */
ds_rc ds_conn_start(ds_conn **out, int fd, const ds_conn_fn *fn, const ds_conn_opts *opts, ds_err *err);
/* Sends a message with the type, request, owner, epoch, deadline and trace of *f. DS_E_AGAIN: the queue is full, and
 * nothing was sent; DS_E_IO: the connection is over; DS_E_NOMEM. */
ds_rc ds_conn_send(ds_conn *c, const ds_frame *f, const void *payload, size_t n, ds_err *err);
/* Ends it soon, as if the peer had; gone() is called if it wasn't. */
void ds_conn_stop(ds_conn *c);
/* Not from a callback. No callback runs afterwards. NULL is fine. */
void ds_conn_destroy(ds_conn *c);

#endif
