/* SHA-256 (OpenSSL) and a fast non-cryptographic 64-bit hash for tables. Threads: any. */
#ifndef DS_BASE_HASH_H
#define DS_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* Keyed by `seed`: tables that hold outside bytes draw their seed at start, so that nobody can aim collisions. */
uint64_t ds_hash64(const void *bytes, size_t n, uint64_t seed);

void ds_sha256(uint8_t out[32], const void *bytes, size_t n);
void ds_hex(char *out /* 2 n + 1 */, const uint8_t *bytes, size_t n);

#endif
