/* Comparing and hashing keys; the type is in ds/key.h, kv/chain.h makes them. Threads: plain data. */
#ifndef DS_KV_KEY_H
#define DS_KV_KEY_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <ds/key.h>

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
