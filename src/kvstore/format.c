#include "kvstore/format.h"

#include <assert.h>
#include <isa-l/crc.h>
#include <limits.h>
#include <string.h>

static const char seg_magic[8] = "DSKVSEG1", ext_magic[8] = "DSKVEXT1", end_magic[8] = "DSKVEND1", tail_magic[8] = "DSKVTAIL";

enum { VERSION = 1, HEADER_CRC_SPAN = 128, CRC_AT = 8 };

static void put(uint8_t *at, uint64_t v, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get(const uint8_t *at, unsigned bytes)
{
    uint64_t v = 0;

    for (unsigned i = 0; i < bytes; i++)
        v |= (uint64_t)at[i] << (8 * i);
    return v;
}

static uint32_t get32(const uint8_t *at)
{
    return (uint32_t)get(at, 4);
}

/* The library counts bytes with an int and leaves the initial and the final XOR to the caller. */
static uint32_t crc_more(uint32_t crc, const uint8_t *p, size_t n)
{
    while (n) {
        size_t part = n < INT_MAX ? n : INT_MAX & ~63;
        crc = crc32_iscsi((unsigned char *)(uintptr_t)p, (int)part, crc);
        p += part;
        n -= part;
    }
    return crc;
}

uint32_t ds_crc32c(const void *bytes, size_t n)
{
    return ~crc_more(~0u, bytes, n);
}

/* Of n bytes whose own CRC stands at CRC_AT. */
static uint32_t crc_around(const uint8_t *p, size_t n)
{
    static const uint8_t zeros[4];
    uint32_t crc = crc_more(~0u, p, CRC_AT);

    crc = crc_more(crc, zeros, 4);
    return ~crc_more(crc, p + CRC_AT + 4, n - CRC_AT - 4);
}

static uint64_t aligned(uint64_t n)
{
    return (n + DS_SEG_ALIGN - 1) / DS_SEG_ALIGN * DS_SEG_ALIGN;
}

/* ---- a file's header ---- */

uint32_t ds_seg_shard_bytes(uint32_t block_bytes, uint32_t k)
{
    return (block_bytes + 64 * k - 1) / (64 * k) * 64;
}

void ds_seg_header_write(uint8_t out[DS_SEG_HEADER_BYTES], const ds_seg_header *h)
{
    memset(out, 0, DS_SEG_HEADER_BYTES);
    memcpy(out, seg_magic, 8);
    put(out + 12, VERSION, 4);
    memcpy(out + 16, h->store, 16);
    put(out + 32, h->segment, 8);
    put(out + 40, h->generation, 8);
    put(out + 48, h->device, 4);
    put(out + 52, h->k, 2);
    put(out + 54, h->m, 2);
    put(out + 56, h->klass, 4);
    put(out + 60, h->block_bytes, 4);
    put(out + 64, h->begun_s, 8);
    put(out + 72, h->expires_s, 8);
    memcpy(out + 80, h->layout, 32);
    put(out + 112, h->shard_bytes, 4);
    put(out + CRC_AT, crc_around(out, HEADER_CRC_SPAN), 4);
}

ds_rc ds_seg_header_read(ds_seg_header *h, const uint8_t in[DS_SEG_HEADER_BYTES], ds_err *err)
{
    if (memcmp(in, seg_magic, 8) != 0)
        return ds_fail(err, DS_E_FORMAT, "no segment of a KV store");
    if (crc_around(in, HEADER_CRC_SPAN) != get32(in + CRC_AT))
        return ds_fail(err, DS_E_FORMAT, "segment header: wrong checksum");
    if (get32(in + 12) != VERSION)
        return ds_fail(err, DS_E_FORMAT, "segment header: version %u, this program knows %d", get32(in + 12), VERSION);
    memcpy(h->store, in + 16, 16);
    h->segment = get(in + 32, 8);
    h->generation = get(in + 40, 8);
    h->device = get32(in + 48);
    h->k = (uint32_t)get(in + 52, 2);
    h->m = (uint32_t)get(in + 54, 2);
    h->klass = get32(in + 56);
    h->block_bytes = get32(in + 60);
    h->begun_s = get(in + 64, 8);
    h->expires_s = get(in + 72, 8);
    memcpy(h->layout, in + 80, 32);
    h->shard_bytes = get32(in + 112);
    if (h->k == 0 || h->k + h->m > DS_SEG_MAX_DEVICES || h->device >= h->k + h->m)
        return ds_fail(err, DS_E_FORMAT, "segment header: device %u of %u+%u", h->device, h->k, h->m);
    if (h->block_bytes == 0 || h->block_bytes > DS_SEG_MAX_BLOCK_BYTES || h->shard_bytes != ds_seg_shard_bytes(h->block_bytes, h->k))
        return ds_fail(err, DS_E_FORMAT, "segment header: blocks of %u bytes in shards of %u", h->block_bytes, h->shard_bytes);
    return DS_OK;
}

/* ---- extents ---- */

uint64_t ds_seg_extent_bytes(uint32_t n, uint32_t shard_bytes)
{
    return aligned(ds_seg_record_at(n, n, shard_bytes));
}

void ds_seg_extent_write(uint8_t *out, const ds_seg_extent *x, const ds_seg_header *h)
{
    assert(x->n >= 1 && x->n <= DS_SEG_EXTENT_BLOCKS && x->offset % DS_SEG_ALIGN == 0);
    memset(out, 0, ds_seg_extent_header_bytes(x->n));
    memcpy(out, ext_magic, 8);
    put(out + 12, x->n, 4);
    put(out + 16, h->segment, 8);
    put(out + 24, h->generation, 8);
    put(out + 32, x->offset, 8);
    memcpy(out + 40, x->parent.b, 32);
    put(out + 72, x->depth, 4);
    put(out + 76, x->tenant, 4);
    for (uint32_t i = 0; i < x->n; i++) {
        uint8_t *e = out + DS_SEG_EXTENT_HEADER + i * DS_SEG_EXTENT_ENTRY;
        memcpy(e, x->block[i].key.b, 32);
        put(e + 32, x->block[i].crc, 4);
        put(e + 36, x->block[i].flags, 4);
    }
    put(out + CRC_AT, crc_around(out, ds_seg_extent_header_bytes(x->n)), 4);
}

ds_rc ds_seg_extent_read(ds_seg_extent *x, const uint8_t *in, size_t n_in, uint64_t offset, const ds_seg_header *h, ds_err *err)
{
    if (n_in < ds_seg_extent_header_bytes(1) || memcmp(in, ext_magic, 8) != 0)
        return ds_fail(err, DS_E_FORMAT, "no extent at %llu", (unsigned long long)offset);
    x->n = get32(in + 12);
    if (x->n == 0 || x->n > DS_SEG_EXTENT_BLOCKS || n_in < ds_seg_extent_header_bytes(x->n))
        return ds_fail(err, DS_E_FORMAT, "extent at %llu: %u blocks", (unsigned long long)offset, x->n);
    if (crc_around(in, ds_seg_extent_header_bytes(x->n)) != get32(in + CRC_AT))
        return ds_fail(err, DS_E_FORMAT, "extent at %llu: wrong checksum", (unsigned long long)offset);
    if (get(in + 16, 8) != h->segment || get(in + 24, 8) != h->generation || get(in + 32, 8) != offset)
        return ds_fail(err, DS_E_FORMAT, "extent at %llu: it belongs to another place or generation", (unsigned long long)offset);
    x->offset = offset;
    memcpy(x->parent.b, in + 40, 32);
    x->depth = get32(in + 72);
    x->tenant = get32(in + 76);
    if (x->depth > UINT32_MAX - DS_SEG_EXTENT_BLOCKS)
        return ds_fail(err, DS_E_FORMAT, "extent at %llu: %u blocks in front", (unsigned long long)offset, x->depth);
    for (uint32_t i = 0; i < x->n; i++) {
        const uint8_t *e = in + DS_SEG_EXTENT_HEADER + i * DS_SEG_EXTENT_ENTRY;
        memcpy(x->block[i].key.b, e, 32);
        x->block[i].crc = get32(e + 32);
        x->block[i].flags = get32(e + 36);
        if (x->block[i].flags & ~(uint32_t)DS_SEG_APPROX)
            return ds_fail(err, DS_E_FORMAT, "extent at %llu: flags %x of block %u", (unsigned long long)offset, x->block[i].flags, i);
    }
    return DS_OK;
}

void ds_seg_record_write(uint8_t out[DS_SEG_RECORD_HEADER], const ds_seg_record *r)
{
    memcpy(out, r->key.b, 32);
    put(out + 32, r->segment, 8);
    put(out + 40, r->generation, 8);
    put(out + 48, r->crc, 4);
    put(out + 52, r->shard_crc, 4);
    put(out + 56, r->device, 4);
    put(out + 60, ds_crc32c(out, 60), 4);
}

bool ds_seg_record_read(ds_seg_record *r, const uint8_t in[DS_SEG_RECORD_HEADER])
{
    memcpy(r->key.b, in, 32);
    r->segment = get(in + 32, 8);
    r->generation = get(in + 40, 8);
    r->crc = get32(in + 48);
    r->shard_crc = get32(in + 52);
    r->device = get32(in + 56);
    return get32(in + 60) == ds_crc32c(in, 60);
}

/* ---- the footer ---- */

uint64_t ds_seg_footer_bytes(uint64_t n)
{
    return aligned(DS_SEG_FOOTER_HEADER + n * DS_SEG_FOOTER_ENTRY + DS_SEG_TAIL_BYTES);
}

void ds_seg_footer_write(uint8_t *out, const ds_seg_item *items, uint64_t n, uint64_t at, const ds_seg_header *h)
{
    uint64_t bytes = ds_seg_footer_bytes(n);

    memset(out, 0, bytes);
    memcpy(out, end_magic, 8);
    put(out + 16, h->segment, 8);
    put(out + 24, h->generation, 8);
    put(out + 32, n, 8);
    put(out + 40, bytes, 8);
    for (uint64_t i = 0; i < n; i++) {
        uint8_t *e = out + DS_SEG_FOOTER_HEADER + i * DS_SEG_FOOTER_ENTRY;
        memcpy(e, items[i].key.b, 32);
        memcpy(e + 32, items[i].parent.b, 32);
        put(e + 64, items[i].offset, 8);
        put(e + 72, items[i].at, 4);
        put(e + 76, items[i].depth, 4);
        put(e + 80, items[i].crc, 4);
        put(e + 84, items[i].of, 4);
        put(e + 88, items[i].flags, 4);
        put(e + 92, items[i].tenant, 4);
    }
    memcpy(out + bytes - 16, tail_magic, 8);
    put(out + bytes - 8, at, 8);
    put(out + CRC_AT, crc_around(out, bytes), 4);
}

bool ds_seg_tail_read(uint64_t *at, const uint8_t in[DS_SEG_TAIL_BYTES], uint64_t file_bytes)
{
    *at = get(in + 8, 8);
    return memcmp(in, tail_magic, 8) == 0 && *at >= DS_SEG_HEADER_BYTES && *at % DS_SEG_ALIGN == 0 && *at < file_bytes &&
           file_bytes - *at >= ds_seg_footer_bytes(0);
}

ds_rc ds_seg_footer_read(uint64_t *n, const uint8_t *in, size_t n_in, uint64_t at, const ds_seg_header *h, ds_err *err)
{
    if (n_in < ds_seg_footer_bytes(0) || memcmp(in, end_magic, 8) != 0 || get(in + 40, 8) != n_in)
        return ds_fail(err, DS_E_FORMAT, "no footer at %llu", (unsigned long long)at);
    if (crc_around(in, n_in) != get32(in + CRC_AT))
        return ds_fail(err, DS_E_FORMAT, "footer: wrong checksum");
    if (get(in + 16, 8) != h->segment || get(in + 24, 8) != h->generation || get(in + n_in - 8, 8) != at)
        return ds_fail(err, DS_E_FORMAT, "footer: it belongs to another place or generation");
    *n = get(in + 32, 8);
    if (*n > n_in / DS_SEG_FOOTER_ENTRY || ds_seg_footer_bytes(*n) != n_in)
        return ds_fail(err, DS_E_FORMAT, "footer: %llu entries in %zu bytes", (unsigned long long)*n, n_in);
    for (uint64_t i = 0; i < *n; i++) {
        ds_seg_item x = ds_seg_footer_item(in, i);
        if (x.offset < DS_SEG_HEADER_BYTES || x.offset % DS_SEG_ALIGN || x.offset >= at || x.of > DS_SEG_EXTENT_BLOCKS || x.at >= x.of ||
            (x.flags & ~(uint32_t)DS_SEG_APPROX))
            return ds_fail(err, DS_E_FORMAT, "footer: entry %llu lies at %llu, block %u", (unsigned long long)i,
                           (unsigned long long)x.offset, x.at);
    }
    return DS_OK;
}

ds_seg_item ds_seg_footer_item(const uint8_t *in, uint64_t i)
{
    const uint8_t *e = in + DS_SEG_FOOTER_HEADER + i * DS_SEG_FOOTER_ENTRY;
    ds_seg_item x = { .offset = get(e + 64, 8),
                      .at = get32(e + 72),
                      .depth = get32(e + 76),
                      .crc = get32(e + 80),
                      .of = get32(e + 84),
                      .flags = get32(e + 88),
                      .tenant = get32(e + 92) };

    memcpy(x.key.b, e, 32);
    memcpy(x.parent.b, e + 32, 32);
    return x;
}
