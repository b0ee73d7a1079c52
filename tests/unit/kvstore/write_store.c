/* write_store K M DIR…: a small store for the independent reader (tests/e2e/test_segment_format.py). Block number b
 * of a chain has key SHA-256("key b") and its bytes are SHA-256("b 0"), SHA-256("b 1"), … one behind the other, cut
 * at BLOCK. The last extent isn't in a footer: the program ends without closing the store. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "kvstore/volume.h"

enum { BLOCK = 5000, BLOCKS = 40 };

static ds_key key_of(uint32_t b)
{
    char text[32];
    ds_key k;

    ds_sha256(k.b, text, (size_t)snprintf(text, sizeof text, "key %u", b));
    return k;
}

static void fill(uint8_t *out, uint32_t b)
{
    for (uint32_t i = 0; i * 32 < BLOCK; i++) {
        uint8_t hash[32];
        char text[32];
        ds_sha256(hash, text, (size_t)snprintf(text, sizeof text, "%u %u", b, i));
        memcpy(out + i * 32, hash, BLOCK - i * 32 < 32 ? BLOCK - i * 32 : 32);
    }
}

int main(int argc, char **argv)
{
    static uint8_t bytes[8][BLOCK];
    ds_volume *v;
    ds_err err;
    ds_volume_opts o = { .dirs = (const char *const *)argv + 3, .n_dirs = (uint32_t)argc - 3, .segment_bytes = 60000 };
    ds_rc rc;

    if (argc < 4)
        return 2;
    o.k = (uint32_t)strtoul(argv[1], NULL, 10);
    o.m = (uint32_t)strtoul(argv[2], NULL, 10);
    rc = ds_volume_open(&v, &o, &err);
    for (uint32_t b = 0, n = 1; rc == DS_OK && b < BLOCKS; b += n, n = n % 8 + 1) {
        const uint8_t *blocks[8];
        ds_key keys[8];
        ds_volume_place at;
        n = n < BLOCKS - b ? n : BLOCKS - b;
        for (uint32_t i = 0; i < n; i++) {
            keys[i] = key_of(b + i);
            fill(bytes[i], b + i);
            blocks[i] = bytes[i];
        }
        ds_volume_extent x = { .klass = 2,
                               .expires_s = 1u << 31,
                               .block_bytes = BLOCK,
                               .depth = b,
                               .n = n,
                               .keys = keys,
                               .blocks = blocks,
                               .tenant = 0x11223344 };
        for (uint32_t i = 0; i < n; i++)
            x.approx |= (uint64_t)((b + i) % 3 == 0) << i;
        if (b)
            x.parent = key_of(b - 1);
        memset(x.layout, 7, sizeof x.layout);
        rc = ds_volume_append(v, &x, &at, &err);
    }
    if (rc == DS_OK)
        rc = ds_volume_commit(v, &err);
    if (rc != DS_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    fflush(NULL);
    _exit(0); /* killed, as it were: the open segment has no footer */
}
