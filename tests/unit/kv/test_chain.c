/* Keys: what they depend on, and that nothing runs into something else. Their bytes are checked against another
 * derivation in tests/e2e/test_kv_formats.py; one known value stands here. */
#include "base/hash.h"
#include "kv/chain.h"
#include "kv/layout.h"
#include "test.h"

enum { BLOCK = DS_KV_BLOCK_TOKENS, N = 3 * BLOCK };

static int32_t tokens[N];

static ds_kv_identity some_identity(void)
{
    ds_kv_identity id;

    memset(id.model, 1, 32);
    memset(id.tokenizer, 2, 32);
    memset(id.dialect, 3, 32);
    memset(id.layout, 4, 32);
    return id;
}

static int fill(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++)
        tokens[i] = i * 7 - 3;
    return 0;
}

static void assert_all_differ(const ds_key *k, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            if (ds_key_equal(&k[i], &k[j]))
                fail_msg("keys %zu and %zu are equal", j, i);
}

static void equality_and_hash(void **state)
{
    ds_key a = { { 1, 2, 3, 4, 5 } }, b = a;

    (void)state;
    assert_true(ds_key_equal(&a, &b));
    assert_int_equal(ds_key_hash(&a), 0x04030201);
    b.b[31] = 1;
    assert_false(ds_key_equal(&a, &b));
}

static void a_known_value(void **state)
{
    ds_kv_identity id = some_identity();
    ds_kv_span span = { .pos = 100, .n = 60 };
    ds_key ns, k[2];
    char hex[65];

    (void)state;
    memset(span.digest, 5, 32);
    ds_chain_ns(&ns, &id, "tenant", NULL);
    ds_chain_next(&k[0], &ns, tokens, 0, &span, 1);
    ds_chain_next(&k[1], &k[0], tokens + BLOCK, BLOCK, &span, 1);
    ds_hex(hex, k[1].b, 32);
    assert_string_equal(hex, "3bf665f15cc035d837f2198953ce7da730fb62c6301b7de7fedc9b3c629ea1e9");
}

static void every_part_of_the_identity_counts(void **state)
{
    const struct {
        const char *domain, *salt;
    } who[] = { { NULL, NULL }, { "", NULL },  { NULL, "" },  { "", "" },   { "a", NULL },
                { NULL, "a" },  { "ab", "c" }, { "a", "bc" }, { "abc", "" } };
    ds_key k[4 + sizeof who / sizeof *who];
    size_t n = 0;

    (void)state;
    for (int i = 0; i < 4; i++) {
        ds_kv_identity id = some_identity();
        (i == 0 ? id.model : i == 1 ? id.tokenizer : i == 2 ? id.dialect : id.layout)[31] ^= 1;
        ds_chain_ns(&k[n++], &id, NULL, NULL);
    }
    for (size_t i = 0; i < sizeof who / sizeof *who; i++) {
        ds_kv_identity id = some_identity();
        ds_chain_ns(&k[n++], &id, who[i].domain, who[i].salt);
    }
    assert_all_differ(k, n);
}

static void every_token_and_its_place_counts(void **state)
{
    static ds_key k[3 + BLOCK];
    ds_key ns = { { 9 } };
    int32_t t[BLOCK];
    size_t n = 0;

    (void)state;
    ds_chain_next(&k[n++], &ns, tokens, 0, NULL, 0);
    ds_chain_next(&k[n++], &k[0], tokens, 0, NULL, 0); /* the same tokens after another block */
    memcpy(t, tokens, sizeof t);
    t[0] = tokens[1];
    t[1] = tokens[0];
    ds_chain_next(&k[n++], &ns, t, 0, NULL, 0);
    for (int i = 0; i < BLOCK; i++) {
        memcpy(t, tokens, sizeof t);
        t[i] ^= 1 << (i % 31);
        ds_chain_next(&k[n++], &ns, t, 0, NULL, 0);
    }
    assert_all_differ(k, n);
}

/* Where a span doesn't touch a block it doesn't change its key; where it does, digest, place and part of the image
 * do. */
static void spans(void **state)
{
    ds_key ns = { { 9 } }, plain, k[8];
    ds_kv_span one = { .pos = BLOCK - 1, .n = BLOCK + 2 }, moved = { .pos = BLOCK - 2, .n = BLOCK + 3 },
               outside[] = { { .pos = 0, .n = BLOCK }, { .pos = 2 * BLOCK, .n = 9 }, { .pos = BLOCK + 5, .n = 0 } },
               two[] = { { .pos = BLOCK, .n = 4 }, { .pos = BLOCK + 4, .n = 4 } };
    size_t n = 0;

    (void)state;
    ds_chain_next(&plain, &ns, tokens + BLOCK, BLOCK, NULL, 0);
    ds_chain_next(&k[0], &ns, tokens + BLOCK, BLOCK, outside, 3);
    assert_true(ds_key_equal(&plain, &k[0]));
    n = 1;
    ds_chain_next(&k[n++], &ns, tokens + BLOCK, BLOCK, &one, 1);
    ds_chain_next(&k[n++], &ns, tokens + BLOCK, BLOCK, &moved, 1); /* another row of the image stands there */
    one.digest[0] = 1;
    ds_chain_next(&k[n++], &ns, tokens + BLOCK, BLOCK, &one, 1);
    ds_chain_next(&k[n++], &ns, tokens + BLOCK, BLOCK, two, 1);
    ds_chain_next(&k[n++], &ns, tokens + BLOCK, BLOCK, two, 2);
    assert_all_differ(k, n);
}

/* Every position an image of its own: the most that a block's key can be made from. Positions near the end of 32
 * bits don't wrap. */
static void as_many_spans_as_fit(void **state)
{
    static ds_kv_span all[BLOCK + 2];
    ds_key ns = { { 9 } }, a, b;
    uint32_t last = UINT32_MAX / BLOCK * BLOCK;

    (void)state;
    for (uint32_t i = 0; i < BLOCK + 2; i++) {
        all[i] = (ds_kv_span){ .pos = BLOCK - 1 + i, .n = 1 };
        all[i].digest[0] = (uint8_t)i;
    }
    ds_chain_next(&a, &ns, tokens, BLOCK, all, BLOCK + 2);
    ds_chain_next(&b, &ns, tokens, BLOCK, all + 1, BLOCK);
    assert_true(ds_key_equal(&a, &b));
    all[0] = (ds_kv_span){ .pos = last + 1, .n = BLOCK - 1 };
    ds_chain_next(&a, &ns, tokens, last, all, 1);
    ds_chain_next(&b, &ns, tokens, last, NULL, 0);
    assert_false(ds_key_equal(&a, &b));
    ds_chain_next(&a, &ns, tokens, 0, all, 1);
    ds_chain_next(&b, &ns, tokens, 0, NULL, 0);
    assert_true(ds_key_equal(&a, &b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equality_and_hash),
        cmocka_unit_test(a_known_value),
        cmocka_unit_test(every_part_of_the_identity_counts),
        cmocka_unit_test(every_token_and_its_place_counts),
        cmocka_unit_test(spans),
        cmocka_unit_test(as_many_spans_as_fit),
    };
    return cmocka_run_group_tests(tests, fill, NULL);
}
