/* The record of a sequence on its way: what is written is read, and what was changed isn't. */
#include <stdlib.h>

#include "base/hash.h"
#include "base/rng.h"
#include "kv/handoff.h"
#include "test.h"

static uint8_t record[16384];

static size_t write_one(const ds_kv_handoff *h)
{
    size_t n = ds_kv_handoff_bytes(h);
    ds_kv_handoff_places at;

    assert_true(n <= sizeof record);
    memset(record, 0xee, sizeof record);
    ds_kv_handoff_begin(record, h, &at);
    for (uint32_t i = 0; i < 4 * (h->n_prompt + h->n_out); i += 4)
        at.tokens[i] = (uint8_t)(i / 4 + 1);
    memset(at.keys, 7, 32 * h->n_keys);
    memset(at.state, 8, h->state_bytes);
    memset(at.block, 9, h->block_bytes);
    ds_kv_handoff_seal(record, n);
    assert_int_equal(record[n], 0xee);
    return n;
}

static const ds_kv_handoff some = { .ns = { { 1, 2, 3 } },
                                    .n_prompt = 290,
                                    .n_out = 11,
                                    .pos = 300,
                                    .began = DS_KV_BEGAN_BY_REPLAY,
                                    .began_pos = 128,
                                    .approx = true,
                                    .n_keys = 2,
                                    .state_bytes = 640,
                                    .block_bytes = 100 };
static const ds_kv_handoff border = { .n_prompt = 250, .n_out = 7, .pos = 256, .n_keys = 2, .state_bytes = 64 };
static const ds_kv_handoff nothing = { .n_prompt = 5 };
static const ds_kv_handoff *const all[] = { &some, &border, &nothing };

static void what_is_written_is_read(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        const ds_kv_handoff *h = all[i];
        size_t n = write_one(h);
        ds_kv_handoff got;
        ds_err err;
        assert_ok(ds_kv_handoff_read(&got, record, n, &err));
        assert_true(memcmp(&got.ns, &h->ns, sizeof got.ns) == 0 && got.n_prompt == h->n_prompt && got.n_out == h->n_out &&
                    got.pos == h->pos && got.began == h->began && got.began_pos == h->began_pos && got.approx == h->approx &&
                    got.n_keys == h->n_keys && got.state_bytes == h->state_bytes && got.block_bytes == h->block_bytes);
        for (uint32_t t = 0; t < h->n_prompt + h->n_out; t++)
            assert_int_equal(ds_kv_handoff_token(&got, t), (t + 1) & 255);
        for (size_t b = 0; b < h->state_bytes; b++)
            assert_int_equal(got.state[b], 8);
        for (size_t b = 0; b < h->block_bytes; b++)
            assert_int_equal(got.block[b], 9);
        assert_true(h->n_keys == 0 || got.keys[32 * h->n_keys - 1] == 7);
        for (size_t cut = 0; cut < n; cut++)
            assert_int_equal(ds_kv_handoff_read(&got, record, cut, NULL), DS_E_FORMAT);
        assert_int_equal(ds_kv_handoff_read(&got, record, n + 64, NULL), DS_E_FORMAT);
    }
}

/* One bit anywhere; and headers that mean nothing, with a digest that is right. */
static void what_was_changed_is_refused(void **state)
{
    size_t n = write_one(&some);
    ds_kv_handoff got;

    (void)state;
    for (size_t bit = 0; bit < 8 * n; bit += bit < 8 * 128 ? 1 : 37) {
        record[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_equal(ds_kv_handoff_read(&got, record, n, NULL), DS_E_FORMAT);
        record[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (uint64_t i = 0; i < 200000; i++) {
        size_t at = 12 + ds_rng_u64(1, 0, i) % 76;
        uint8_t before[128];
        memcpy(before, record, sizeof before);
        if (at >= 16 && at < 48)
            continue;
        record[at] = (uint8_t)ds_rng_u64(1, 1, i);
        record[48 + ds_rng_u64(1, 2, i) % 40] = (uint8_t)ds_rng_u64(1, 3, i);
        ds_kv_handoff_seal(record, n);
        if (ds_kv_handoff_read(&got, record, n, NULL) == DS_OK) { /* whatever it says lies within */
            assert_int_equal(ds_kv_handoff_bytes(&got), n);
            assert_true(got.tokens >= record && got.block + got.block_bytes <= record + n - DS_KV_HANDOFF_DIGEST);
        }
        memcpy(record, before, sizeof before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(what_is_written_is_read), cmocka_unit_test(what_was_changed_is_refused) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
