/* The layout's bytes and id. */
#include "kv/layout.h"
#include "test.h"

static ds_kv_layout some_layout(void)
{
    return (ds_kv_layout){
        .version = 0x01020304,
        .block_tokens = DS_KV_BLOCK_TOKENS,
        .window = 5,
        .ring = 6,
        .rollback = 7,
        .mode = DS_KV_EXACT,
        .bf16 = 1,
        .numerics = "avx512",
        .block_bytes = 0x1122334455667788,
        .slot_bytes = 9,
        .n_parts = 2,
        .part = { { DS_KV_MAIN, 1, 2, 3, 4, 0x8877665544332211 }, { DS_KV_HISTORY, 0, 1, 8, 16, 64 } },
    };
}

static uint32_t le32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void bytes(void **state)
{
    static uint8_t b[DS_KV_LAYOUT_MAX_BYTES];
    static const uint32_t head[] = { 0x01020304, 128, 5, 6, 7, 2, 1, 2, 0x55667788, 0x11223344, 9, 0 };
    static const uint32_t parts[] = { 1, 1, 2, 3, 4, 0, 0x44332211, 0x88776655, 5, 0, 1, 8, 16, 0, 64, 0 };
    ds_kv_layout l = some_layout();

    (void)state;
    memset(b, 0xee, sizeof b);
    assert_int_equal(ds_kv_layout_write(b, &l), 72 + 2 * 32);
    assert_memory_equal(b, "DSKVLAYO", 8);
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        assert_int_equal(le32(b + 8 + 4 * i), head[i]);
    assert_memory_equal(b + 56, "avx512\0\0\0\0\0\0\0\0\0\0", 16);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_int_equal(le32(b + 72 + 4 * i), parts[i]);
    assert_int_equal(b[72 + 64], 0xee);
    l.n_parts = DS_KV_MAX_PARTS;
    assert_int_equal(ds_kv_layout_write(b, &l), sizeof b);
}

/* Each member makes another id; parts behind n_parts make none. */
static void every_member_is_in_the_id(void **state)
{
    uint8_t id[32][32];
    ds_kv_layout l;
    size_t n = 0;

    (void)state;
#define WITH(change)                  \
    do {                              \
        l = some_layout();            \
        change;                       \
        ds_kv_layout_id(id[n++], &l); \
    } while (0)
    WITH((void)0);
    WITH(l.version++);
    WITH(l.block_tokens++);
    WITH(l.window++);
    WITH(l.ring++);
    WITH(l.rollback++);
    WITH(l.mode = DS_KV_CED);
    WITH(l.mode = DS_KV_CED_STRICT);
    WITH(l.bf16 = 0);
    WITH(l.numerics[5] = '3');
    WITH(l.block_bytes++);
    WITH(l.slot_bytes++);
    WITH(l.n_parts = 1);
    WITH(l.n_parts = 3);
    WITH(l.part[1].record = DS_KV_OPEN);
    WITH(l.part[1].of++);
    WITH(l.part[1].ratio++);
    WITH(l.part[1].bytes++);
    WITH(l.part[1].count++);
    WITH(l.part[1].offset++);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            if (memcmp(id[i], id[j], 32) == 0)
                fail_msg("changes %zu and %zu: equal ids", j, i);
    WITH(l.part[2].offset = 7);
    assert_memory_equal(id[n - 1], id[0], 32);
#undef WITH
}

/* What was written is read back; one byte less or more, or a part that doesn't fit, is refused. */
static void read_back(void **state)
{
    static uint8_t b[DS_KV_LAYOUT_MAX_BYTES + 1], again[DS_KV_LAYOUT_MAX_BYTES];
    static ds_kv_layout l, m;
    char text[200];
    ds_err err;
    size_t n;

    (void)state;
    l = some_layout();
    l.version = DS_KV_LAYOUT_VERSION;
    l.block_bytes = 64;
    l.slot_bytes = 512;
    l.part[0].offset = 52;
    n = ds_kv_layout_write(b, &l);
    assert_ok(ds_kv_layout_read(&m, b, n, &err));
    assert_int_equal(ds_kv_layout_write(again, &m), n);
    assert_memory_equal(b, again, n);
    assert_string_equal(ds_kv_layout_difference(text, sizeof text, &l, &m), "");
    for (size_t cut = 0; cut < n; cut++)
        assert_int_equal(ds_kv_layout_read(&m, b, cut, &err), DS_E_FORMAT);
    assert_refused(ds_kv_layout_read(&m, b, n + 1, &err), DS_E_FORMAT, "parts");
    for (size_t at = 0; at < n; at++) {
        b[at] ^= 0x80;
        if (ds_kv_layout_read(&m, b, n, &err) == DS_OK) {
            ds_kv_layout_write(again, &m);
            assert_memory_equal(b, again, n);
            assert_string_not_equal(ds_kv_layout_difference(text, sizeof text, &l, &m), "");
        }
        b[at] ^= 0x80;
    }
    l.part[1].offset = 512 - 8 * 16 + 1;
    n = ds_kv_layout_write(b, &l);
    assert_refused(ds_kv_layout_read(&m, b, n, &err), DS_E_FORMAT, "behind its end");
    l = some_layout();
    m = l;
    strcpy(m.numerics, "ref");
    assert_string_equal(ds_kv_layout_difference(text, sizeof text, &l, &m), "kernels: avx512 and ref");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes),
        cmocka_unit_test(every_member_is_in_the_id),
        cmocka_unit_test(read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
