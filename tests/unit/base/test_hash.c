#include "base/hash.h"
#include "base/rng.h"
#include "test.h"

/* Every length up to two steps and every single bit: all hashes differ, and each flips about half of the bits. */
static void bits_and_lengths_matter(void **state)
{
    unsigned char text[48];
    double flipped = 0;
    size_t cases = 0;

    (void)state;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (unsigned char)ds_rng_u64(1, 0, i);
    for (size_t n = 0; n <= sizeof text; n++) {
        uint64_t h = ds_hash64(text, n, 7);
        if (n > 0)
            assert_true(h != ds_hash64(text, n - 1, 7));
        assert_true(h != ds_hash64(text, n, 8));
        for (size_t bit = 0; bit < 8 * n; bit++) {
            text[bit / 8] ^= (unsigned char)(1 << bit % 8);
            uint64_t g = ds_hash64(text, n, 7);
            text[bit / 8] ^= (unsigned char)(1 << bit % 8);
            int d = __builtin_popcountll(g ^ h);
            assert_true(d >= 8 && d <= 56);
            flipped += d;
            cases++;
        }
    }
    assert_true(fabs(flipped / (double)cases - 32) < 0.5);
}

static void zeros_of_different_length_differ(void **state)
{
    static const char zero[100];

    (void)state;
    for (size_t n = 0; n < sizeof zero; n++)
        for (size_t m = 0; m < n; m++)
            assert_true(ds_hash64(zero, n, 0) != ds_hash64(zero, m, 0));
}

/* A million consecutive numbers into a table of as many slots: as evenly as random ones (the standard deviation of a
 * slot's count is 1). */
static void low_bits_spread(void **state)
{
    enum { N = 1 << 16 };
    static uint32_t count[N];
    double sum = 0;

    (void)state;
    for (uint64_t i = 0; i < N; i++)
        count[ds_hash64(&i, sizeof i, 3) % N]++;
    for (size_t i = 0; i < N; i++)
        sum += ((double)count[i] - 1) * ((double)count[i] - 1);
    assert_true(fabs(sum / N - 1) < 0.05);
}

/* FIPS 180-2, appendix B. */
static void sha256_vectors(void **state)
{
    uint8_t h[32];
    char hex[65];

    (void)state;
    ds_sha256(h, "abc", 3);
    ds_hex(hex, h, 32);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    ds_sha256(h, "", 0);
    ds_hex(hex, h, 32);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    ds_hex(hex, h, 0);
    assert_string_equal(hex, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_and_lengths_matter),
        cmocka_unit_test(zeros_of_different_length_differ),
        cmocka_unit_test(low_bits_spread),
        cmocka_unit_test(sha256_vectors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
