/* Frames: what is accepted is written again as the same bytes; a stream gives what was sent, however it is cut. */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t in[1 << 16];
    uint8_t head[DS_FRAME_HEADER];
    int pair[2], fds[DS_FRAME_MAX_FDS];
    ds_frame f, again;
    ds_err err;

    if (size > 1 << 15)
        return 0;
    if (size >= sizeof head && ds_frame_read(&f, data, &err) == DS_OK) {
        ds_frame_write(head, &f);
        must(memcmp(head, data, sizeof head) == 0);
    }
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        return 0;
    f = (ds_frame){ .type = size ? data[0] : 0, .request = size, .epoch = 7 }; /* the input as a payload */
    must(ds_frame_send(pair[0], &f, data, size, NULL, 0, true, &err) == DS_OK);
    must(ds_frame_receive(pair[1], &again, in, sizeof in, fds, &err) == DS_OK);
    must(again.type == f.type && again.request == size && again.bytes == size && (size == 0 || memcmp(in, data, size) == 0));
    if (size && write(pair[0], data, size) == (ssize_t)size) { /* and as a stream */
        shutdown(pair[0], SHUT_WR);
        while (ds_frame_receive(pair[1], &again, in, sizeof in, fds, &err) == DS_OK)
            must(again.bytes <= sizeof in);
        must(err.msg[0]);
    }
    close(pair[0]);
    close(pair[1]);
    ds_frame_in r = { .at = data, .end = data + size };
    while (!r.bad && r.at < r.end)
        if (ds_frame_u32(&r) % 3 == 0)
            ds_frame_bytes(&r, ds_frame_u64(&r) % 64);
    must(r.at <= r.end);
    return 0;
}
