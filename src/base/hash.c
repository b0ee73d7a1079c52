/* Hashes.
 *
 * ds_hash64 folds 16 bytes a step: both halves of the 128-bit product of two words, each mixed with the state or a
 * constant. Short inputs take two overlapping loads, so that there is no loop over a tail. Both factors are masked
 * with values made from the seed: a constant mask could be cancelled by chosen input, which would zero the product
 * and forget everything before. The constants are odd digits of sqrt(2), sqrt(3) and sqrt(5). */
#include "base/hash.h"

#include <string.h>

/* The calls on a context of the caller's: SHA256() in one go looks its algorithm up each time, with locks and the
 * heap, which costs as much as 500 bytes' hashing. */
#define OPENSSL_API_COMPAT 0x10100000L
#include <openssl/sha.h>

static const uint64_t K0 = 0x6a09e667f3bcc909u, K1 = 0xbb67ae8584caa73bu, K2 = 0x3c6ef372fe94f82bu;

static inline uint64_t load64(const unsigned char *p)
{
    uint64_t x;

    memcpy(&x, p, sizeof x);
    return x;
}

static inline uint64_t load32(const unsigned char *p)
{
    uint32_t x;

    memcpy(&x, p, sizeof x);
    return x;
}

static inline uint64_t fold(uint64_t a, uint64_t b)
{
    unsigned __int128 r = (unsigned __int128)a * b;

    return (uint64_t)r ^ (uint64_t)(r >> 64);
}

uint64_t ds_hash64(const void *bytes, size_t n, uint64_t seed)
{
    const unsigned char *p = bytes;
    uint64_t h = fold(seed ^ K0, K1), mask = fold(seed ^ K2, K0) ^ K1, a = 0, b = 0;
    size_t left = n;

    for (; left > 16; left -= 16, p += 16)
        h = fold(load64(p) ^ mask, load64(p + 8) ^ h);
    if (left >= 8) {
        a = load64(p);
        b = load64(p + left - 8);
    } else if (left >= 4) {
        a = load32(p);
        b = load32(p + left - 4);
    } else if (left > 0) {
        a = (uint64_t)p[0] | (uint64_t)p[left / 2] << 8 | (uint64_t)p[left - 1] << 16;
    }
    return fold(fold(a ^ mask, b ^ h) ^ K2, K0 ^ n);
}

void ds_sha256(uint8_t out[32], const void *bytes, size_t n)
{
    SHA256_CTX c;

    SHA256_Init(&c);
    SHA256_Update(&c, bytes, n);
    SHA256_Final(out, &c);
}

void ds_hex(char *out, const uint8_t *bytes, size_t n)
{
    static const char digit[] = "0123456789abcdef";

    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digit[bytes[i] >> 4];
        out[2 * i + 1] = digit[bytes[i] & 15];
    }
    out[2 * n] = '\0';
}
