/* The bytes of a segment (docs/formats/segment.md): headers and footer to structs and back.
 *
 * Reading is reading of outside bytes: everything is checked, and what comes out is within its limits. Writing takes
 * what reading gives. Threads: no state.   Memory: the caller's. */
#ifndef DS_KVSTORE_FORMAT_H
#define DS_KVSTORE_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kv/key.h"

enum {
    DS_SEG_ALIGN = 4096,        /* extents, footer and file are multiples of it */
    DS_SEG_MAX_ALIGN = 4 << 20, /* what they may have to be a multiple of on another kind of device */
    DS_SEG_HEADER_BYTES = 4096, /* of the file */
    DS_SEG_EXTENT_BLOCKS = 64,  /* at most */
    DS_SEG_EXTENT_HEADER = 128, /* bytes in front of the blocks' entries */
    DS_SEG_EXTENT_ENTRY = 48,   /* bytes of one */
    DS_SEG_RECORD_HEADER = 64,  /* bytes in front of each shard */
    DS_SEG_EXTENT_MAX_HEADER = DS_SEG_EXTENT_HEADER + DS_SEG_EXTENT_BLOCKS * DS_SEG_EXTENT_ENTRY,
    DS_SEG_FOOTER_HEADER = 128,
    DS_SEG_FOOTER_ENTRY = 96,
    DS_SEG_TAIL_BYTES = 16,
    DS_SEG_MAX_DEVICES = 32,
    DS_SEG_MAX_BLOCK_BYTES = 64 << 20,
};

/* What all of a segment's files have in common, and which of them this is. */
typedef struct {
    uint8_t store[16], layout[32];
    uint64_t segment, generation, begun_s, expires_s;
    uint32_t device, k, m, klass, block_bytes, shard_bytes;
} ds_seg_header;

/* k + m <= DS_SEG_MAX_DEVICES, k >= 1, block_bytes 1..DS_SEG_MAX_BLOCK_BYTES. */
uint32_t ds_seg_shard_bytes(uint32_t block_bytes, uint32_t k);
void ds_seg_header_write(uint8_t out[DS_SEG_HEADER_BYTES], const ds_seg_header *h);
/* DS_E_FORMAT says what is wrong. */
ds_rc ds_seg_header_read(ds_seg_header *h, const uint8_t in[DS_SEG_HEADER_BYTES], ds_err *err);

/* What is said of a block besides its bytes. Bits that aren't here are refused. */
enum { DS_SEG_APPROX = 1 }; /* rests on a replay */

typedef struct {
    ds_key key;
    uint32_t crc; /* of the block */
    uint32_t flags;
} ds_seg_entry;

typedef struct {
    uint64_t offset; /* in the file */
    ds_key parent;
    uint32_t depth, n;
    uint32_t tenant; /* whose: first 4 bytes of the SHA-256 of the name, least significant first; 0: nobody's */
    ds_seg_entry block[DS_SEG_EXTENT_BLOCKS];
} ds_seg_extent;

static inline uint32_t ds_seg_extent_header_bytes(uint32_t n)
{
    return DS_SEG_EXTENT_HEADER + n * DS_SEG_EXTENT_ENTRY;
}
/* Where the record of block i begins in an extent of n blocks; record n would begin where the records end. */
static inline uint64_t ds_seg_record_at(uint32_t n, uint32_t i, uint32_t shard_bytes)
{
    return (ds_seg_extent_header_bytes(n) + 63) / 64 * 64 + (uint64_t)i * (DS_SEG_RECORD_HEADER + shard_bytes);
}
/* Of the whole extent in the file, a multiple of DS_SEG_ALIGN. */
uint64_t ds_seg_extent_bytes(uint32_t n, uint32_t shard_bytes);
/* Writes ds_seg_extent_header_bytes(x->n) bytes. */
void ds_seg_extent_write(uint8_t *out, const ds_seg_extent *x, const ds_seg_header *h);
/* in: n_in bytes from where the extent begins, DS_SEG_EXTENT_MAX_HEADER or up to the file's end. x->offset: where it
 * was read. */
ds_rc ds_seg_extent_read(ds_seg_extent *x, const uint8_t *in, size_t n_in, uint64_t offset, const ds_seg_header *h, ds_err *err);

/* In front of a shard: what it is a shard of. */
typedef struct {
    ds_key key;
    uint64_t segment, generation;
    uint32_t crc, shard_crc, device;
} ds_seg_record;
void ds_seg_record_write(uint8_t out[DS_SEG_RECORD_HEADER], const ds_seg_record *r);
bool ds_seg_record_read(ds_seg_record *r, const uint8_t in[DS_SEG_RECORD_HEADER]); /* false: wrong checksum */

typedef struct {
    ds_key key, parent;
    uint64_t offset; /* of its extent */
    uint32_t at, of; /* block `at` of the `of` in its extent */
    uint32_t depth;  /* blocks of the chain in front of it */
    uint32_t crc, flags, tenant;
} ds_seg_item;

/* Of a footer with n items. */
uint64_t ds_seg_footer_bytes(uint64_t n);
/* `at`: where in the file it goes. out: ds_seg_footer_bytes(n). */
void ds_seg_footer_write(uint8_t *out, const ds_seg_item *items, uint64_t n, uint64_t at, const ds_seg_header *h);
/* From a file's last DS_SEG_TAIL_BYTES: where its footer begins; false: it has none. */
bool ds_seg_tail_read(uint64_t *at, const uint8_t in[DS_SEG_TAIL_BYTES], uint64_t file_bytes);
/* The whole footer of n_in bytes, which was read at `at`: number of items. Each lies in front of `at`. */
ds_rc ds_seg_footer_read(uint64_t *n, const uint8_t *in, size_t n_in, uint64_t at, const ds_seg_header *h, ds_err *err);
ds_seg_item ds_seg_footer_item(const uint8_t *in, uint64_t i); /* i < n of a footer that was read */

uint32_t ds_crc32c(const void *bytes, size_t n);

#endif
