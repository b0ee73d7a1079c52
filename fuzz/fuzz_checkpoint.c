/* An index's checkpoint: what is accepted makes an index that can be read, listed and emptied. Checksums are put right
 * first, so that the fuzzer gets behind them. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/none.h"
#include "kvstore/checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PAGE = 4096, CHUNK = 1 << 20, ROOM = 600 };

static void must(int ok)
{
    if (!ok)
        __builtin_trap();
}

static void put(uint8_t *at, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get(const uint8_t *at)
{
    uint64_t v;

    memcpy(&v, at, 8);
    return v;
}

static void make_right(uint8_t *p, size_t size)
{
    uint64_t table = PAGE;
    static const uint64_t item[4] = { 40, 16, 16, 64 };

    for (int i = 0; i < 4; i++) {
        if (get(p + 32 + 8 * i) > size)
            return;
        table += (get(p + 32 + 8 * i) * item[i] + PAGE - 1) / PAGE * PAGE;
    }
    if (table >= size || (size - table) % PAGE)
        return;
    for (uint64_t at = PAGE, i = 0; at < table; at += CHUNK, i++)
        put(p + table + 4 * i, ds_crc32c(p + at, table - at < CHUNK ? table - at : CHUNK), 4);
    put(p + 64, size, 8);
    put(p + 72, ds_crc32c(p + table, size - table), 4);
    put(p + 8, 0, 4);
    put(p + 8, ds_crc32c(p, PAGE), 4);
}

static void use(ds_index *ix)
{
    ds_index_info b;
    uint32_t left = 0;

    for (uint32_t i = 0; i < ds_index_end(ix); i++)
        if (ds_index_at(ix, i, &b)) {
            ds_index_find(ix, &b.key, NULL);
            must(b.hit.place.at < b.hit.place.of && b.hit.place.of <= DS_SEG_EXTENT_BLOCKS);
            left++;
        }
    must(left == ds_index_blocks(ix));
    for (uint32_t i = 0; i < ds_index_end(ix); i++)
        while (ds_index_at(ix, i, &b))
            must(ds_index_remove(ix, i, NULL, NULL) >= 1);
    must(ds_index_blocks(ix) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t whole = (size + PAGE - 1) / PAGE * PAGE;
    int fd = memfd_create("checkpoint", MFD_CLOEXEC);
    uint8_t *p = calloc(1, whole + 1);
    uint32_t layout[DS_CHECKPOINT_LAYOUTS] = { 0 };
    ds_checkpoint *c;
    ds_index *ix;

    must(fd >= 0 && p);
    memcpy(p, data, size);
    if (whole >= 2 * PAGE)
        make_right(p, whole);
    must(write(fd, p, whole) == (ssize_t)whole);
    free(p);
    if (ds_checkpoint_read(&c, fd, NULL) != DS_OK)
        return 0;
    must(ds_index_create(&ix, ROOM, NULL) == DS_OK);
    if (ds_checkpoint_load(c, ix, layout, NULL) == DS_OK)
        use(ix);
    ds_index_destroy(ix);
    ds_checkpoint_close(c);
    return 0;
}
