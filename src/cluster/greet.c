#include "cluster/greet.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"

enum { HELLO_MS = 5000 };

static ds_rc readable_by(int fd, uint32_t timeout_ms, ds_err *err)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };

    return poll(&p, 1, (int)timeout_ms) == 1 ? DS_OK : ds_fail(err, DS_E_IO, "no answer within %u ms", timeout_ms);
}

/* Reads exactly n bytes of a greeting by a deadline. */
static ds_rc read_by(int fd, uint8_t *to, size_t n, uint64_t until_ms, ds_err *err)
{
    while (n) {
        uint64_t now = ds_now_us() / 1000;
        ssize_t got;
        ds_rc rc = now < until_ms ? readable_by(fd, (uint32_t)(until_ms - now), err) : ds_fail(err, DS_E_IO, "no answer in time");
        if (rc != DS_OK)
            return rc;
        got = recv(fd, to, n, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (got <= 0)
            return ds_fail(err, DS_E_IO, "%s", got < 0 ? strerror(errno) : "it closed the connection");
        to += got;
        n -= (size_t)got;
    }
    return DS_OK;
}

ds_rc ds_greet(int fd, const ds_cw_model *model, ds_greeting *out, ds_err *err)
{
    uint64_t until_ms = ds_now_us() / 1000 + HELLO_MS;
    uint8_t head[DS_FRAME_HEADER], *p = NULL;
    ds_buf b = { 0 };
    ds_frame f = { .type = DS_CW_HELLO };
    ds_rc rc;

    ds_cw_put_hello(&b, model);
    rc = b.oom ? ds_fail(err, DS_E_NOMEM, "out of memory") : ds_frame_send(fd, &f, b.p, b.len, NULL, 0, false, err);
    ds_buf_free(&b);
    if (rc == DS_OK)
        rc = read_by(fd, head, sizeof head, until_ms, err);
    if (rc == DS_OK)
        rc = ds_frame_read(&f, head, err);
    if (rc == DS_OK && !(p = malloc((size_t)f.bytes + 1)))
        rc = ds_fail(err, DS_E_NOMEM, "out of memory");
    if (rc == DS_OK)
        rc = read_by(fd, p, f.bytes, until_ms, err);
    if (rc == DS_OK && ds_frame_crc(p, f.bytes) != f.payload_crc)
        rc = ds_fail(err, DS_E_FORMAT, "frame: wrong checksum of its payload");
    if (rc == DS_OK && f.type == DS_CW_REFUSED)
        rc = ds_fail(err, DS_E_ARG, "%.*s", (int)f.bytes, (const char *)p);
    else if (rc == DS_OK && f.type != DS_CW_WELCOME)
        rc = ds_fail(err, DS_E_FORMAT, "what answers is no engine");
    if (rc == DS_OK)
        rc = ds_cw_read_welcome(&out->self, out->plans, &out->n_plans, p, f.bytes, err);
    if (rc == DS_OK)
        rc = ds_cw_same_model(model, &out->self.model, err);
    out->epoch = f.epoch;
    free(p);
    return rc;
}
