/* The index's checkpoint: what was written is what is read; anything else is refused, whatever is wrong with it. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/none.h"
#include "base/rng.h"
#include "kvstore/checkpoint.h"
#include "test.h"

enum { ROOM = 3000, SEGMENTS = 9 };

static ds_key key_of(uint32_t chain, uint32_t depth)
{
    ds_key k;

    for (uint32_t i = 0; i < 4; i++) {
        uint64_t w = ds_rng_u64(chain, depth, i);
        memcpy(k.b + 8 * i, &w, 8);
    }
    return k;
}

/* Chains that were written in pieces, one that forks, some of it removed again: free records and extents in between. */
static ds_index *some_index(void)
{
    ds_index *ix;
    ds_key keys[DS_SEG_EXTENT_BLOCKS];
    uint32_t crc[DS_SEG_EXTENT_BLOCKS], root[200];
    ds_err err;

    assert_ok(ds_index_create(&ix, ROOM, &err));
    for (uint32_t chain = 0; chain < 40; chain++) {
        uint32_t last = DS_NONE, length = 1 + chain * 3 % 90;
        for (uint32_t at = 0; at < length;) {
            uint32_t n = 1 + (chain + at) % 17;
            n = n < length - at ? n : length - at;
            for (uint32_t i = 0; i < n; i++) {
                keys[i] = key_of(chain, at + i);
                crc[i] = chain * 1000 + at + i;
            }
            assert_ok(ds_index_insert(ix,
                                      &(ds_index_extent){ .segment = 10 + chain % SEGMENTS,
                                                          .offset = 4096ull * (1 + chain * 100 + at),
                                                          .of = n,
                                                          .n = n,
                                                          .keys = keys,
                                                          .crc = crc,
                                                          .approx = chain % 5 == 0 ? ~0ull : 0,
                                                          .layout = chain % 3,
                                                          .klass = chain % 2,
                                                          .parent = last,
                                                          .depth = at,
                                                          .tenant = chain,
                                                          .used = 1000000 + chain },
                                      &last, &err));
            if (at == 0) {
                ds_index_hit hit;
                assert_true(ds_index_find(ix, &keys[0], &hit));
                root[chain] = hit.record;
            }
            at += n;
        }
    }
    for (uint32_t chain = 3; chain < 40; chain += 7)
        ds_index_remove(ix, root[chain], NULL, NULL);
    return ix;
}

static const ds_checkpoint_layout layouts[3] = { { { 1 }, 100 }, { { 2 }, 200 }, { { 3 }, 300 } };
static ds_checkpoint_segment segments[SEGMENTS];
static ds_checkpoint_of what = { .store = { 7 }, .layouts = layouts, .segments = segments, .n_layouts = 3, .n_segments = SEGMENTS };
static char dir[64], path[96];

static int setup(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < SEGMENTS; i++)
        segments[i] = (ds_checkpoint_segment){ 10 + i, 1000 * i };
    strcpy(dir, "/tmp/ds-ckpt-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/index.ckpt", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ds_checkpoint_remove(dir);
    return rmdir(dir);
}

static void same(const ds_index *a, const ds_index *b, const uint32_t *layout)
{
    ds_index_info x, y, px, py;

    assert_int_equal(ds_index_blocks(a), ds_index_blocks(b));
    for (uint32_t i = 0; i < ds_index_end(a); i++) {
        ds_index_hit hit;
        if (!ds_index_at(a, i, &x))
            continue;
        assert_true(ds_index_find(b, &x.key, &hit) && ds_index_at(b, hit.record, &y));
        assert_true(x.hit.place.segment == y.hit.place.segment && x.hit.place.offset == y.hit.place.offset &&
                    x.hit.place.at == y.hit.place.at && x.hit.place.of == y.hit.place.of && x.hit.place.crc == y.hit.place.crc);
        assert_int_equal(y.hit.what & 255, x.hit.what & 255);
        assert_int_equal(y.hit.what >> 16, x.hit.what >> 16);
        assert_int_equal(y.hit.what >> 8 & 255, layout[x.hit.what >> 8 & 255]);
        assert_true(x.depth == y.depth && x.tenant == y.tenant && x.used == y.used && x.leaf == y.leaf);
        assert_int_equal(x.parent == DS_NONE, y.parent == DS_NONE);
        if (x.parent != DS_NONE) {
            assert_true(ds_index_at(a, x.parent, &px) && ds_index_at(b, y.parent, &py));
            assert_memory_equal(&px.key, &py.key, sizeof px.key);
        }
    }
}

static void what_was_written_is_read(void **state)
{
    ds_index *a = some_index(), *b;
    uint32_t layout[DS_CHECKPOINT_LAYOUTS] = { 9, 4, 7 };
    ds_checkpoint *c;
    struct stat st;
    ds_key k[ROOM];
    ds_err err;

    (void)state;
    assert_int_equal(ds_checkpoint_open(&c, dir, &err), DS_E_IO);
    assert_ok(ds_checkpoint_write(dir, &what, a, &err));
    assert_true(stat(path, &st) == 0 && (uint64_t)st.st_size == ds_checkpoint_bytes(&what, a));
    assert_ok(ds_checkpoint_open(&c, dir, &err));
    assert_true(ds_checkpoint_what(c)->n_layouts == 3 && ds_checkpoint_what(c)->n_segments == SEGMENTS &&
                memcmp(ds_checkpoint_what(c)->store, what.store, 16) == 0 && ds_checkpoint_what(c)->layouts[2].block_bytes == 300 &&
                ds_checkpoint_what(c)->segments[8].generation == 8000);
    assert_ok(ds_index_create(&b, ROOM, &err));
    assert_ok(ds_checkpoint_load(c, b, layout, &err));
    same(a, b, layout);
    for (uint32_t i = 0; i < 100; i++)
        k[i] = key_of(29, i);
    assert_int_equal(ds_index_match(b, k, 100, false), 1 + 29 * 3 % 90);
    /* it goes on like any other: what was free is used again, and all of it can go */
    for (uint32_t i = 0; i < ROOM - ds_index_blocks(a); i++) {
        ds_key own = key_of(1000 + i, 0);
        uint32_t crc = 0;
        assert_ok(ds_index_insert(b, &(ds_index_extent){ .segment = 1, .of = 1, .n = 1, .keys = &own, .crc = &crc, .parent = DS_NONE },
                                  NULL, &err));
    }
    for (uint32_t i = 0; i < ROOM; i++) {
        ds_index_info x;
        if (ds_index_at(b, i, &x) && x.parent == DS_NONE)
            ds_index_remove(b, i, NULL, NULL);
    }
    assert_int_equal(ds_index_blocks(b), 0);
    ds_index_destroy(b);
    ds_checkpoint_close(c);
    assert_ok(ds_index_create(&b, 100, &err)); /* too small */
    assert_ok(ds_checkpoint_open(&c, dir, &err));
    assert_refused(ds_checkpoint_load(c, b, layout, &err), DS_E_FORMAT, "larger index");
    ds_checkpoint_close(c);
    ds_index_destroy(b);
    ds_index_destroy(a);
    assert_true(ds_checkpoint_remove(dir) && ds_checkpoint_remove(dir));
    assert_int_equal(ds_checkpoint_open(&c, dir, &err), DS_E_IO);
    assert_int_equal(ds_checkpoint_write("/nowhere", &what, a, &err), DS_E_IO);
}

/* Any bit, and any length. */
static void spoiled(void **state)
{
    ds_index *a = some_index(), *b;
    uint32_t layout[DS_CHECKPOINT_LAYOUTS] = { 0 }, tried = 0;
    ds_checkpoint *c;
    size_t n;
    uint8_t *bytes;
    int fd;
    ds_err err;

    (void)state;
    assert_ok(ds_checkpoint_write(dir, &what, a, &err));
    n = ds_checkpoint_bytes(&what, a);
    bytes = malloc(n);
    fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, bytes, n, 0) == (ssize_t)n);
    for (size_t at = 0; at < n; at += 1 + ds_rng_u64(3, at, 0) % 97) {
        uint8_t wrong = bytes[at] ^ (uint8_t)(1 << at % 8);
        assert_int_equal(pwrite(fd, &wrong, 1, (off_t)at), 1);
        if (ds_checkpoint_open(&c, dir, &err) == DS_OK) {
            assert_ok(ds_index_create(&b, ROOM, &err));
            assert_int_equal(ds_checkpoint_load(c, b, layout, &err), DS_E_FORMAT);
            ds_index_destroy(b);
            ds_checkpoint_close(c);
        }
        assert_int_equal(pwrite(fd, &bytes[at], 1, (off_t)at), 1);
        tried++;
    }
    assert_true(tried > 1000);
    for (size_t at = 0; at < n; at += 1000) {
        assert_int_equal(ftruncate(fd, (off_t)at), 0);
        assert_int_equal(ds_checkpoint_open(&c, dir, &err), DS_E_FORMAT);
        assert_int_equal(pwrite(fd, bytes, n, 0), (ssize_t)n);
    }
    close(fd);
    free(bytes);
    ds_index_destroy(a);
    ds_checkpoint_remove(dir);
}

/* With right checksums: an extent whose segment isn't named. */
static void segments_that_are_missing(void **state)
{
    ds_index *a = some_index(), *b;
    uint32_t layout[DS_CHECKPOINT_LAYOUTS] = { 0 };
    ds_checkpoint_of few = what;
    ds_checkpoint *c;
    ds_err err;

    (void)state;
    few.n_segments--;
    assert_ok(ds_checkpoint_write(dir, &few, a, &err));
    assert_ok(ds_checkpoint_open(&c, dir, &err));
    assert_ok(ds_index_create(&b, ROOM, &err));
    assert_refused(ds_checkpoint_load(c, b, layout, &err), DS_E_FORMAT, "doesn't name");
    ds_checkpoint_close(c);
    ds_index_destroy(b);
    few = what;
    few.n_layouts--;
    assert_ok(ds_checkpoint_write(dir, &few, a, &err));
    assert_ok(ds_checkpoint_open(&c, dir, &err));
    assert_ok(ds_index_create(&b, ROOM, &err));
    assert_refused(ds_checkpoint_load(c, b, layout, &err), DS_E_FORMAT, "layout");
    ds_checkpoint_close(c);
    ds_index_destroy(b);
    ds_index_destroy(a);
    ds_checkpoint_remove(dir);
}

/* So large that it is read ahead. */
static void large(void **state)
{
    enum { BLOCKS = 200000, EXTENT = 16 };
    uint32_t layout[DS_CHECKPOINT_LAYOUTS] = { 0 }, crc[EXTENT] = { 0 }, last = DS_NONE;
    ds_key keys[EXTENT];
    ds_index *a, *b;
    ds_checkpoint *c;
    uint8_t byte;
    int fd;
    ds_err err;

    (void)state;
    assert_ok(ds_index_create(&a, BLOCKS, &err));
    for (uint32_t i = 0; i < BLOCKS; i += EXTENT) {
        for (uint32_t k = 0; k < EXTENT; k++)
            keys[k] = key_of(i / 160, i % 160 + k);
        assert_ok(ds_index_insert(a,
                                  &(ds_index_extent){ .segment = 10 + i % SEGMENTS,
                                                      .offset = 4096ull * i,
                                                      .of = EXTENT,
                                                      .n = EXTENT,
                                                      .keys = keys,
                                                      .crc = crc,
                                                      .parent = i % 160 ? last : DS_NONE,
                                                      .depth = i % 160,
                                                      .used = i },
                                  &last, &err));
    }
    assert_ok(ds_checkpoint_write(dir, &what, a, &err));
    assert_true(ds_checkpoint_bytes(&what, a) > 12 << 20);
    for (uint64_t at = 0; at < 13 << 20; at += 3 << 20) { /* as it is, then with a wrong byte ever further behind */
        fd = open(path, O_RDWR);
        assert_true(fd >= 0);
        if (at) {
            assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
            byte ^= 1;
            assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
        }
        assert_ok(ds_index_create(&b, BLOCKS, &err));
        assert_ok(ds_checkpoint_open(&c, dir, &err));
        assert_int_equal(ds_checkpoint_load(c, b, layout, &err), at ? DS_E_FORMAT : DS_OK);
        if (at == 0)
            same(a, b, layout);
        ds_checkpoint_close(c);
        ds_index_destroy(b);
        if (at) {
            byte ^= 1;
            assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
        }
        close(fd);
    }
    ds_index_destroy(a);
    ds_checkpoint_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(what_was_written_is_read), cmocka_unit_test(spoiled),
                                        cmocka_unit_test(segments_that_are_missing), cmocka_unit_test(large) };

    return cmocka_run_group_tests(tests, setup, teardown);
}
