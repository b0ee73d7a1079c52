/* A segment's header, extents' headers, records and footers: what is accepted lies within its limits and is written
 * down as it was read. The first byte chooses. Checksums are put right first, so that the fuzzer gets behind them. */
#include <stdlib.h>
#include <string.h>

#include "kvstore/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok)
        __builtin_trap();
}

/* As the format's CRCs are made: over n bytes, their own field at 8 taken as zero. */
static void make_right(uint8_t *p, size_t n)
{
    uint32_t crc;

    memset(p + 8, 0, 4);
    crc = ds_crc32c(p, n);
    for (int i = 0; i < 4; i++)
        p[8 + i] = (uint8_t)(crc >> (8 * i));
}

static void file_header(const uint8_t *data, size_t size)
{
    uint8_t in[DS_SEG_HEADER_BYTES] = { 0 }, out[DS_SEG_HEADER_BYTES];
    ds_seg_header h;

    memcpy(in, data, size < 128 ? size : 128);
    make_right(in, 128);
    if (ds_seg_header_read(&h, in, NULL) != DS_OK)
        return;
    must(h.k >= 1 && h.k + h.m <= DS_SEG_MAX_DEVICES && h.device < h.k + h.m && h.block_bytes <= DS_SEG_MAX_BLOCK_BYTES);
    must((uint64_t)h.shard_bytes * h.k >= h.block_bytes);
    ds_seg_header_write(out, &h);
    memset(in + 116, 0, 12); /* not looked at */
    make_right(in, 128);
    must(memcmp(in, out, sizeof in) == 0);
}

static void extent(const uint8_t *data, size_t size)
{
    static uint8_t in[DS_SEG_EXTENT_MAX_HEADER], out[DS_SEG_EXTENT_MAX_HEADER];
    ds_seg_header h = { .segment = 1, .generation = 2, .k = 1 };
    size_t n = size < sizeof in ? size : sizeof in;
    ds_seg_extent x;

    memset(in, 0, sizeof in);
    memcpy(in, data, n);
    uint32_t count = n > 15 ? in[12] : 0;
    if (count >= 1 && count <= DS_SEG_EXTENT_BLOCKS && n >= ds_seg_extent_header_bytes(count))
        make_right(in, ds_seg_extent_header_bytes(count));
    if (ds_seg_extent_read(&x, in, n, DS_SEG_ALIGN, &h, NULL) != DS_OK)
        return;
    must(x.n >= 1 && x.n <= DS_SEG_EXTENT_BLOCKS && ds_seg_extent_header_bytes(x.n) <= n);
    ds_seg_extent_write(out, &x, &h);
    must(memcmp(in + 40, out + 40, 36) == 0 && memcmp(in + DS_SEG_EXTENT_HEADER, out + DS_SEG_EXTENT_HEADER, 36) == 0);
}

static void footer(const uint8_t *data, size_t size)
{
    ds_seg_header h = { .segment = 1, .generation = 2, .k = 1 };
    uint64_t n, at = 16 * DS_SEG_ALIGN, where;
    size_t whole = (size + DS_SEG_ALIGN) / DS_SEG_ALIGN * DS_SEG_ALIGN;
    uint8_t *in = calloc(1, whole);

    memcpy(in, data, size);
    if (whole > 64)
        make_right(in, whole);
    if (ds_seg_tail_read(&where, in + whole - DS_SEG_TAIL_BYTES, at + whole))
        must(where < at + whole && where >= DS_SEG_HEADER_BYTES);
    if (ds_seg_footer_read(&n, in, whole, at, &h, NULL) == DS_OK)
        for (uint64_t i = 0; i < n; i++) {
            ds_seg_item x = ds_seg_footer_item(in, i);
            must(x.offset >= DS_SEG_HEADER_BYTES && x.offset < at && x.at < x.of && x.of <= DS_SEG_EXTENT_BLOCKS);
        }
    free(in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ds_seg_record r;

    if (size == 0)
        return 0;
    if (size > DS_SEG_RECORD_HEADER)
        ds_seg_record_read(&r, data + 1);
    switch (data[0] % 3) {
    case 0:
        file_header(data + 1, size - 1);
        break;
    case 1:
        extent(data + 1, size - 1);
        break;
    default:
        footer(data + 1, size - 1);
    }
    return 0;
}
