#include "net/frame.h"

#include <assert.h>
#include <errno.h>
#include <isa-l/crc.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static const char magic[4] = "DSFR";

enum { HEADER_CRC_AT = 60 };

static void put(uint8_t *at, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get(const uint8_t *at, int bytes)
{
    uint64_t v = 0;

    for (int i = bytes; i-- > 0;)
        v = v << 8 | at[i];
    return v;
}

uint32_t ds_frame_crc(const void *bytes, size_t n)
{
    return ~crc32_iscsi((unsigned char *)(uintptr_t)bytes, (int)n, ~0u);
}

void ds_frame_write(uint8_t out[DS_FRAME_HEADER], const ds_frame *f)
{
    memcpy(out, magic, 4);
    put(out + 4, DS_FRAME_VERSION, 2);
    put(out + 6, f->type, 2);
    put(out + 8, f->flags, 4);
    put(out + 12, f->bytes, 4);
    put(out + 16, f->request, 8);
    put(out + 24, f->owner, 8);
    put(out + 32, f->epoch, 8);
    put(out + 40, f->left_ns, 8);
    put(out + 48, f->trace, 8);
    put(out + 56, f->payload_crc, 4);
    put(out + HEADER_CRC_AT, ds_frame_crc(out, HEADER_CRC_AT), 4);
}

ds_rc ds_frame_read(ds_frame *f, const uint8_t in[DS_FRAME_HEADER], ds_err *err)
{
    if (memcmp(in, magic, 4) != 0)
        return ds_fail(err, DS_E_FORMAT, "no frame");
    if (get(in + HEADER_CRC_AT, 4) != ds_frame_crc(in, HEADER_CRC_AT))
        return ds_fail(err, DS_E_FORMAT, "frame: wrong checksum of its header");
    if (get(in + 4, 2) != DS_FRAME_VERSION)
        return ds_fail(err, DS_E_FORMAT, "frame: version %u, this program speaks %d", (unsigned)get(in + 4, 2), DS_FRAME_VERSION);
    *f = (ds_frame){ .type = (uint16_t)get(in + 6, 2),
                     .flags = (uint32_t)get(in + 8, 4),
                     .bytes = (uint32_t)get(in + 12, 4),
                     .request = get(in + 16, 8),
                     .owner = get(in + 24, 8),
                     .epoch = get(in + 32, 8),
                     .left_ns = get(in + 40, 8),
                     .trace = get(in + 48, 8),
                     .payload_crc = (uint32_t)get(in + 56, 4) };
    if (f->bytes > DS_FRAME_MAX_PAYLOAD)
        return ds_fail(err, DS_E_FORMAT, "frame: a payload of %u bytes, at most %d", f->bytes, DS_FRAME_MAX_PAYLOAD);
    return DS_OK;
}

ds_rc ds_frame_send(int fd, ds_frame *f, const void *payload, size_t n, const int *fds, uint32_t n_fds, bool wait, ds_err *err)
{
    uint8_t head[DS_FRAME_HEADER];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(DS_FRAME_MAX_FDS * sizeof(int))];
    } control;
    struct iovec part[2] = { { head, sizeof head }, { (void *)(uintptr_t)payload, n } };
    struct msghdr m = { .msg_iov = part, .msg_iovlen = n ? 2 : 1 };

    assert(n <= DS_FRAME_MAX_PAYLOAD && n_fds <= DS_FRAME_MAX_FDS);
    f->bytes = (uint32_t)n;
    f->payload_crc = ds_frame_crc(payload, n);
    ds_frame_write(head, f);
    if (n_fds) {
        memset(&control, 0, sizeof control);
        m.msg_control = control.bytes;
        m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
    }
    while (m.msg_iovlen) {
        ssize_t sent = sendmsg(fd, &m, MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT));
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return ds_fail(err, DS_E_IO, "connection: %s", strerror(errno));
        m.msg_control = NULL;
        m.msg_controllen = 0;
        while (m.msg_iovlen && (size_t)sent >= m.msg_iov->iov_len) {
            sent -= (ssize_t)m.msg_iov->iov_len;
            m.msg_iov++;
            m.msg_iovlen--;
        }
        if (m.msg_iovlen) {
            m.msg_iov->iov_base = (char *)m.msg_iov->iov_base + sent;
            m.msg_iov->iov_len -= (size_t)sent;
        }
    }
    return DS_OK;
}

/* Keeps the descriptors that came with a piece; more than there is room for are closed. */
static void take_fds(struct msghdr *m, int fds[DS_FRAME_MAX_FDS], uint32_t *n)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        size_t count = c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS ? (c->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (*n < DS_FRAME_MAX_FDS)
                fds[(*n)++] = fd;
            else
                close(fd);
        }
    }
}

static ds_rc read_all(int fd, uint8_t *to, size_t n, int fds[DS_FRAME_MAX_FDS], uint32_t *n_fds, ds_err *err)
{
    while (n) {
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(2 * DS_FRAME_MAX_FDS * sizeof(int))];
        } control;
        struct iovec part = { to, n };
        struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control };
        ssize_t got = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return ds_fail(err, DS_E_IO, "connection: %s", got < 0 ? strerror(errno) : "closed");
        take_fds(&m, fds, n_fds);
        to += got;
        n -= (size_t)got;
    }
    return DS_OK;
}

ds_rc ds_frame_receive(int fd, ds_frame *f, uint8_t *buf, size_t cap, int fds[DS_FRAME_MAX_FDS], ds_err *err)
{
    uint8_t head[DS_FRAME_HEADER];
    uint32_t n_fds = 0;
    ds_rc rc;

    for (int i = 0; i < DS_FRAME_MAX_FDS; i++)
        fds[i] = -1;
    rc = read_all(fd, head, sizeof head, fds, &n_fds, err);
    if (rc == DS_OK)
        rc = ds_frame_read(f, head, err);
    if (rc == DS_OK && f->bytes > cap)
        rc = ds_fail(err, DS_E_FORMAT, "frame: a payload of %u bytes, at most %zu here", f->bytes, cap);
    if (rc == DS_OK)
        rc = read_all(fd, buf, f->bytes, fds, &n_fds, err);
    if (rc == DS_OK && ds_frame_crc(buf, f->bytes) != f->payload_crc)
        rc = ds_fail(err, DS_E_FORMAT, "frame: wrong checksum of its payload");
    for (uint32_t i = 0; rc != DS_OK && i < n_fds; i++) {
        close(fds[i]);
        fds[i] = -1;
    }
    return rc;
}

const uint8_t *ds_frame_bytes(ds_frame_in *in, size_t n)
{
    const uint8_t *at = in->at;

    if (in->bad || n > (size_t)(in->end - at)) {
        in->bad = true;
        return NULL;
    }
    in->at += n;
    return at;
}

uint32_t ds_frame_u32(ds_frame_in *in)
{
    const uint8_t *at = ds_frame_bytes(in, 4);

    return at ? (uint32_t)get(at, 4) : 0;
}

uint64_t ds_frame_u64(ds_frame_in *in)
{
    const uint8_t *at = ds_frame_bytes(in, 8);

    return at ? get(at, 8) : 0;
}

void ds_frame_put(ds_frame_out *o, const void *bytes, size_t n)
{
    if (o->full || n > o->cap - o->n) {
        o->full = true;
        return;
    }
    if (n)
        memcpy(o->buf + o->n, bytes, n);
    o->n += n;
}

void ds_frame_put_u32(ds_frame_out *o, uint32_t v)
{
    uint8_t b[4];

    put(b, v, 4);
    ds_frame_put(o, b, 4);
}

void ds_frame_put_u64(ds_frame_out *o, uint64_t v)
{
    uint8_t b[8];

    put(b, v, 8);
    ds_frame_put(o, b, 8);
}
