/* The key of a block of cached KV: a SHA-256 value, made by kv/chain.h. Threads: plain data. */
#ifndef DS_KV_KEY_H
#define DS_KV_KEY_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    uint8_t b[32];
} ds_key;

static inline bool ds_key_equal(const ds_key *x, const ds_key *y)
{
    return memcmp(x->b, y->b, sizeof x->b) == 0;
}

/* For tables: keys are hash values already, their first bytes are as good as any. */
static inline uint32_t ds_key_hash(const ds_key *k)
{
    return (uint32_t)k->b[0] | (uint32_t)k->b[1] << 8 | (uint32_t)k->b[2] << 16 | (uint32_t)k->b[3] << 24;
}

#endif
