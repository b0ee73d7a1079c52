/* The header of a saved state: its bytes, and what isn't one. */
#include "base/rng.h"
#include "kv/state.h"
#include "test.h"

static void bytes(void **state)
{
    static const uint8_t want[DS_KV_STATE_HEADER] = {
        'D',  'S',  'K',  'V',  'S', 'T', 'A', 'T', 1, 0, 0, 0, 5, 0, 0,    0,    0x04, 0x03,
        0x02, 0x01, 0x44, 0x33, 1,   0,   3,   0,   0, 0, 0, 0, 0, 0, 0xf8, 0xff, 0xee, 0xcc
    };
    ds_kv_state s = { .pos = 0x01020304, .next = 0x13344, .decoding = true, .approx = true, .dec_start = 3, .slot_bytes = 0xcceefff8 }, got;
    uint8_t b[DS_KV_STATE_HEADER];
    ds_err err;

    (void)state;
    memset(b, 0xee, sizeof b);
    ds_kv_state_write(b, &s);
    assert_memory_equal(b, want, sizeof b);
    assert_ok(ds_kv_state_read(&got, b, &err));
    assert_true(got.pos == s.pos && got.next == s.next && got.decoding && !got.ended && got.approx && got.dec_start == 3 &&
                got.slot_bytes == s.slot_bytes);
}

/* Whatever is accepted is written down as it was read. */
static void others_are_refused(void **state)
{
    ds_kv_state s = { .pos = 384, .next = 7, .decoding = true, .dec_start = DS_KV_STATE_ENCODER, .slot_bytes = 64 }, got;
    uint8_t right[DS_KV_STATE_HEADER], b[DS_KV_STATE_HEADER], again[DS_KV_STATE_HEADER];
    uint32_t refused = 0;

    (void)state;
    ds_kv_state_write(right, &s);
    for (uint32_t i = 0; i < DS_KV_STATE_HEADER * 256; i++) {
        memcpy(b, right, sizeof b);
        b[i / 256] = (uint8_t)i;
        if (ds_kv_state_read(&got, b, NULL) != DS_OK) {
            refused++;
            continue;
        }
        ds_kv_state_write(again, &got);
        assert_memory_equal(again, b, sizeof b);
    }
    assert_true(refused > 255 * (12 + 28)); /* magic, version, most bits, reserved bytes */
    for (uint32_t i = 0; i < 100000; i++) {
        memcpy(b, right, sizeof b);
        for (int k = 0; k < 3; k++)
            b[8 + ds_rng_u64(1, (uint32_t)k, i) % 36] = (uint8_t)ds_rng_u64(2, (uint32_t)k, i);
        if (ds_kv_state_read(&got, b, NULL) != DS_OK)
            continue;
        ds_kv_state_write(again, &got);
        assert_memory_equal(again, b, sizeof b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(bytes), cmocka_unit_test(others_are_refused) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
