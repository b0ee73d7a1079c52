/* Any k of k + m shards give the rest, and the parity is the one that the format's document describes. */
#include "kvstore/code.h"
#include "test.h"

enum { BYTES = 192 };

static uint8_t mul(uint8_t a, uint8_t b)
{
    uint8_t p = 0;

    for (; b; b >>= 1) {
        p ^= b & 1 ? a : 0;
        a = (uint8_t)(a << 1) ^ (a & 0x80 ? 0x1d : 0);
    }
    return p;
}

static uint8_t inverse(uint8_t a)
{
    for (unsigned b = 1; b < 256; b++)
        if (mul(a, (uint8_t)b) == 1)
            return (uint8_t)b;
    return 0;
}

static void parity_as_documented(void **state)
{
    static const uint32_t codes[][2] = { { 1, 1 }, { 2, 1 }, { 4, 2 }, { 10, 2 }, { 5, 3 } };
    uint8_t bytes[DS_SEG_MAX_DEVICES][BYTES], *shard[DS_SEG_MAX_DEVICES];
    ds_code c;
    ds_err err;

    (void)state;
    for (size_t t = 0; t < sizeof codes / sizeof *codes; t++) {
        uint32_t k = codes[t][0], m = codes[t][1];
        assert_ok(ds_code_init(&c, k, m, &err));
        for (uint32_t d = 0; d < k + m; d++) {
            shard[d] = bytes[d];
            for (int b = 0; b < BYTES; b++)
                bytes[d][b] = d < k ? (uint8_t)(d * 37 + (uint32_t)b * 11 + 5) : 0xAA;
        }
        ds_code_encode(&c, shard, BYTES);
        for (uint32_t d = k; d < k + m; d++)
            for (int b = 0; b < BYTES; b++) {
                uint8_t want = 0;
                for (uint32_t j = 0; j < k; j++)
                    want ^= mul(inverse((uint8_t)(d ^ j)), bytes[j][b]);
                assert_int_equal(bytes[d][b], want);
            }
    }
}

static void every_loss(void **state)
{
    (void)state;
    for (uint32_t k = 1; k <= 5; k++)
        for (uint32_t m = 0; m <= 3; m++) {
            uint8_t bytes[8][BYTES], copy[8][BYTES], *shard[8];
            ds_code c;
            ds_err err;

            assert_ok(ds_code_init(&c, k, m, &err));
            for (uint32_t d = 0; d < k + m; d++)
                shard[d] = bytes[d];
            for (uint32_t d = 0; d < k; d++)
                for (int b = 0; b < BYTES; b++)
                    bytes[d][b] = (uint8_t)(d * 101 + (uint32_t)b * 7 + k);
            ds_code_encode(&c, shard, BYTES);
            memcpy(copy, bytes, sizeof copy);
            for (uint32_t lost = 0; lost < 1u << (k + m); lost++) {
                bool have[8];
                if ((uint32_t)__builtin_popcount(lost) > m)
                    continue;
                memcpy(bytes, copy, sizeof bytes);
                for (uint32_t d = 0; d < k + m; d++) {
                    have[d] = !(lost >> d & 1);
                    if (!have[d])
                        memset(bytes[d], 0x5A, BYTES);
                }
                ds_code_decode(&c, shard, have, BYTES);
                assert_memory_equal(bytes, copy, (size_t)k * BYTES);
            }
        }
}

static void refused(void **state)
{
    ds_code c;
    ds_err err;

    (void)state;
    assert_refused(ds_code_init(&c, 0, 1, &err), DS_E_ARG, "0+1");
    assert_refused(ds_code_init(&c, 31, 2, &err), DS_E_ARG, "31+2");
    assert_refused(ds_code_init(&c, 1, UINT32_MAX, &err), DS_E_ARG, "1+");
    assert_ok(ds_code_init(&c, 30, 2, &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(parity_as_documented), cmocka_unit_test(every_loss), cmocka_unit_test(refused) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
