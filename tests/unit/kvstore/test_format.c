/* Headers and footers: what is written is read, and any byte that is another is noticed. */
#include "kvstore/format.h"
#include "test.h"

static ds_seg_header header(uint32_t device)
{
    ds_seg_header h = { .segment = 77,
                        .generation = 0x1122334455667788,
                        .begun_s = 5,
                        .expires_s = 500,
                        .device = device,
                        .k = 4,
                        .m = 2,
                        .klass = 3,
                        .block_bytes = 113920 };

    memset(h.store, 9, sizeof h.store);
    memset(h.layout, 8, sizeof h.layout);
    h.shard_bytes = ds_seg_shard_bytes(h.block_bytes, h.k);
    return h;
}

static void file_headers(void **state)
{
    uint8_t a[DS_SEG_HEADER_BYTES], b[DS_SEG_HEADER_BYTES];
    ds_seg_header h = header(5), got;
    ds_err err;

    (void)state;
    ds_seg_header_write(a, &h);
    assert_ok(ds_seg_header_read(&got, a, &err));
    ds_seg_header_write(b, &got);
    assert_memory_equal(a, b, sizeof a);
    for (size_t i = 0; i < 128; i++)
        for (int bit = 0; bit < 8; bit++) {
            a[i] ^= (uint8_t)(1 << bit);
            assert_int_equal(ds_seg_header_read(&got, a, &err), DS_E_FORMAT);
            a[i] ^= (uint8_t)(1 << bit);
        }
    h.device = 6;
    ds_seg_header_write(a, &h);
    assert_refused(ds_seg_header_read(&got, a, &err), DS_E_FORMAT, "device 6 of 4+2");
    h = header(0);
    h.shard_bytes += 64;
    ds_seg_header_write(a, &h);
    assert_refused(ds_seg_header_read(&got, a, &err), DS_E_FORMAT, "in shards of");
    h = header(0);
    h.k = 40;
    ds_seg_header_write(a, &h);
    assert_refused(ds_seg_header_read(&got, a, &err), DS_E_FORMAT, "of 40+2");
}

static void extents(void **state)
{
    static uint8_t a[DS_SEG_ALIGN];
    ds_seg_header h = header(1), other = h;
    ds_seg_extent x = { .offset = 3 * DS_SEG_ALIGN, .depth = 12, .n = 64 }, got;
    ds_err err;

    (void)state;
    memset(x.parent.b, 3, 32);
    for (uint32_t i = 0; i < x.n; i++) {
        memset(x.block[i].key.b, (int)i + 1, 32);
        x.block[i].crc = i * 1000;
    }
    for (x.n = 1; x.n <= 64; x.n += 21) {
        ds_seg_extent_write(a, &x, &h);
        size_t n = ds_seg_extent_header_bytes(x.n);
        assert_ok(ds_seg_extent_read(&got, a, n, x.offset, &h, &err));
        assert_true(got.n == x.n && got.depth == 12 && ds_key_equal(&got.parent, &x.parent) && got.block[x.n - 1].crc == (x.n - 1) * 1000);
        assert_int_equal(ds_seg_extent_read(&got, a, n - 1, x.offset, &h, &err), DS_E_FORMAT);
        assert_refused(ds_seg_extent_read(&got, a, n, x.offset + DS_SEG_ALIGN, &h, &err), DS_E_FORMAT, "another place");
        other.generation = h.generation + 1;
        assert_refused(ds_seg_extent_read(&got, a, n, x.offset, &other, &err), DS_E_FORMAT, "generation");
        for (size_t i = 0; i < n; i++) {
            a[i] ^= 0x10;
            assert_int_equal(ds_seg_extent_read(&got, a, n, x.offset, &h, &err), DS_E_FORMAT);
            a[i] ^= 0x10;
        }
        assert_int_equal(ds_seg_record_at(x.n, 0, h.shard_bytes) % 64, 0);
        assert_true(ds_seg_record_at(x.n, 0, h.shard_bytes) >= n);
    }
}

static void records(void **state)
{
    uint8_t a[DS_SEG_RECORD_HEADER];
    ds_seg_record r = { .segment = 1, .generation = 2, .crc = 3, .shard_crc = 4, .device = 5 }, got;

    (void)state;
    memset(r.key.b, 6, 32);
    ds_seg_record_write(a, &r);
    assert_true(ds_seg_record_read(&got, a) && ds_key_equal(&got.key, &r.key) && got.segment == 1 && got.generation == 2 && got.crc == 3 &&
                got.shard_crc == 4 && got.device == 5);
    for (size_t i = 0; i < sizeof a; i++) {
        a[i] ^= 1;
        assert_false(ds_seg_record_read(&got, a));
        a[i] ^= 1;
    }
}

static void footers(void **state)
{
    ds_seg_item items[100];
    ds_seg_header h = header(2);
    uint64_t at = 1000 * (uint64_t)DS_SEG_ALIGN, n, where;
    ds_err err;

    (void)state;
    for (uint32_t i = 0; i < 100; i++) {
        items[i] = (ds_seg_item){ .offset = (1 + i) * (uint64_t)DS_SEG_ALIGN, .at = i % 4, .of = 4, .depth = i, .crc = i };
        memset(items[i].key.b, (int)i, 32);
    }
    for (uint64_t count = 0; count <= 100; count += 50) {
        size_t bytes = ds_seg_footer_bytes(count);
        uint8_t *a = malloc(bytes);
        ds_seg_footer_write(a, items, count, at, &h);
        assert_true(ds_seg_tail_read(&where, a + bytes - DS_SEG_TAIL_BYTES, at + bytes) && where == at);
        assert_false(ds_seg_tail_read(&where, a + bytes - DS_SEG_TAIL_BYTES, at));
        assert_ok(ds_seg_footer_read(&n, a, bytes, at, &h, &err));
        assert_int_equal(n, count);
        for (uint64_t i = 0; i < n; i++) {
            ds_seg_item got = ds_seg_footer_item(a, i);
            assert_true(ds_key_equal(&got.key, &items[i].key) && got.offset == items[i].offset && got.at == items[i].at && got.of == 4 &&
                        got.crc == i);
        }
        for (size_t i = 0; i < bytes; i += 7) {
            a[i] ^= 0x80;
            assert_int_equal(ds_seg_footer_read(&n, a, bytes, at, &h, &err), DS_E_FORMAT);
            a[i] ^= 0x80;
        }
        free(a);
    }
    items[3].offset = at; /* behind the extents */
    uint8_t *a = malloc(ds_seg_footer_bytes(10));
    ds_seg_footer_write(a, items, 10, at, &h);
    assert_refused(ds_seg_footer_read(&n, a, ds_seg_footer_bytes(10), at, &h, &err), DS_E_FORMAT, "entry 3");
    free(a);
}

static void crc(void **state)
{
    (void)state;
    assert_int_equal(ds_crc32c("123456789", 9), 0xe3069283u); /* the check value of CRC-32C */
    assert_int_equal(ds_crc32c("", 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(file_headers), cmocka_unit_test(extents), cmocka_unit_test(records),
                                        cmocka_unit_test(footers), cmocka_unit_test(crc) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
