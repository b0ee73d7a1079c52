/* A sequence on its way from one engine to another, as bytes (docs/formats/handoff.md).
 *
 * What it has said so far, how it came to be, the keys of its whole blocks, and where it was interrupted: the window
 * state and the block that isn't whole. Reading is reading of outside bytes: all is checked, and what comes out lies
 * within the record. Threads: plain data.   Memory: none is allocated; what is read points into the record. */
#ifndef DS_KV_HANDOFF_H
#define DS_KV_HANDOFF_H

#include <stddef.h>

#include <ds/token.h>

#include "base/err.h"
#include "kv/key.h"

enum { DS_KV_HANDOFF_HEADER = 128, DS_KV_HANDOFF_DIGEST = 32 };
#define DS_KV_HANDOFF_VERSION 1u

typedef enum { DS_KV_BEGAN_COLD, DS_KV_BEGAN_FROM_STATE, DS_KV_BEGAN_BY_REPLAY } ds_kv_began;

typedef struct {
    ds_key ns;                /* in front of its first block's key */
    uint32_t n_prompt, n_out; /* tokens */
    uint32_t pos;             /* positions that are processed; 0: nothing of it is here */
    ds_kv_began began;
    uint32_t began_pos;    /* positions that weren't computed then */
    bool approx;           /* rests on a replay */
    uint32_t n_keys;       /* whole blocks in front of pos */
    uint64_t state_bytes;  /* header and slot (kv/state.h); 0: pos is 0 */
    uint64_t block_bytes;  /* 0: pos is a block's border */
    const uint8_t *tokens; /* [n_prompt + n_out] 4 bytes each, least significant first */
    const uint8_t *keys;   /* [n_keys] 32 bytes each */
    const uint8_t *state, *block;
} ds_kv_handoff;

static inline ds_token ds_kv_handoff_token(const ds_kv_handoff *h, uint32_t i)
{
    const uint8_t *at = h->tokens + 4 * (size_t)i;
    return (ds_token)((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
}

/* Of the record, from its counts and sizes. */
size_t ds_kv_handoff_bytes(const ds_kv_handoff *h);
/* Writes the header, and sets where tokens, keys, state and block are to be put; `seal` then ends it. */
typedef struct {
    uint8_t *tokens, *keys, *state, *block;
} ds_kv_handoff_places;
void ds_kv_handoff_begin(uint8_t *out, const ds_kv_handoff *h, ds_kv_handoff_places *places);
void ds_kv_handoff_seal(uint8_t *out, size_t n); /* n: ds_kv_handoff_bytes */

/* DS_E_FORMAT says what is wrong. */
ds_rc ds_kv_handoff_read(ds_kv_handoff *h, const uint8_t *in, size_t n, ds_err *err);

#endif
