/* Frames between processes: a fixed header of 64 bytes, then a payload (docs/formats/frame.md).
 *
 * Reading is reading of outside bytes: magic, version, both checksums and the length are checked before anything is
 * believed. Sending and receiving are for blocking sockets of one stream. Threads: one sender and one receiver at a
 * time a socket.   Memory: the caller's. */
#ifndef DS_NET_FRAME_H
#define DS_NET_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { DS_FRAME_HEADER = 64, DS_FRAME_MAX_PAYLOAD = 4 << 20, DS_FRAME_MAX_FDS = 4 };
#define DS_FRAME_VERSION 1

typedef struct {
    uint16_t type;
    uint32_t flags, bytes;   /* bytes: of the payload */
    uint64_t request, owner; /* together the request's id of 128 bits */
    uint64_t epoch;          /* of whom it is for; what is older is dropped */
    uint64_t left_ns;        /* until the deadline; 0: none */
    uint64_t trace;
    uint32_t payload_crc;
} ds_frame;

void ds_frame_write(uint8_t out[DS_FRAME_HEADER], const ds_frame *f);
uint32_t ds_frame_crc(const void *bytes, size_t n); /* CRC32C, as payload_crc is */
/* DS_E_FORMAT says what is wrong. */
ds_rc ds_frame_read(ds_frame *f, const uint8_t in[DS_FRAME_HEADER], ds_err *err);

/* Sends a frame; bytes and payload_crc of *f are filled in. fds go with it (n_fds <= DS_FRAME_MAX_FDS). `wait`: false
 * fails where the socket has no room for all of it, and then the stream is broken. DS_E_IO: the peer is gone. */
ds_rc ds_frame_send(int fd, ds_frame *f, const void *payload, size_t n, const int *fds, uint32_t n_fds, bool wait, ds_err *err);
/* Receives one: payload into buf of cap bytes, descriptors into fds (all of DS_FRAME_MAX_FDS are written, -1: none).
 * DS_E_IO: the stream ended or failed; DS_E_FORMAT: what came is no frame, or too long. */
ds_rc ds_frame_receive(int fd, ds_frame *f, uint8_t *buf, size_t cap, int fds[DS_FRAME_MAX_FDS], ds_err *err);

/* ---- payloads ---- */

/* Reads numbers and bytes one after the other. What lies behind the end reads as zeros and sets bad. */
typedef struct {
    const uint8_t *at, *end;
    bool bad;
} ds_frame_in;
uint32_t ds_frame_u32(ds_frame_in *in);
uint64_t ds_frame_u64(ds_frame_in *in);
const uint8_t *ds_frame_bytes(ds_frame_in *in, size_t n); /* NULL where bad */

/* Writes them; more than cap sets full. */
typedef struct {
    uint8_t *buf;
    size_t n, cap;
    bool full;
} ds_frame_out;
void ds_frame_put_u32(ds_frame_out *o, uint32_t v);
void ds_frame_put_u64(ds_frame_out *o, uint64_t v);
void ds_frame_put(ds_frame_out *o, const void *bytes, size_t n);

#endif
