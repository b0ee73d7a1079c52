/* Keys of cached prefixes: a chain of SHA-256 values (docs/formats/block-key.md).
 *
 *   ns  = H("deepserve block key 1", model digest, tokenizer digest, dialect digest, layout id, domain, salt)
 *   k_i = H(k_{i-1}, H(tokens of block i, image span, image span, …)),   k_{-1} = ns
 *
 * H(a, b, …) hashes, for each field, its length as 8 bytes, least significant first, then its bytes. Domain and salt
 * may have any length: their field is the SHA-256 of the text, and a field of no bytes where there is none. Tokens
 * are one field of 4 bytes each, least significant first. An image span that touches the block adds a field of 40
 * bytes: its digest, the first position of it inside the block, and which position of the span that is. Everything a
 * key depends on is in the arguments: a process without a model computes the same keys as the one that has it.
 * Threads: any; no state. */
#ifndef DS_KV_CHAIN_H
#define DS_KV_CHAIN_H

#include <stddef.h>

#include <ds/token.h>

#include "kv/key.h"

/* What the bytes of a block depend on besides its tokens. Each is a SHA-256 value, or zeros: unknown, and then keys
 * are good inside one process only. */
typedef struct {
    uint8_t model[32];     /* of the checkpoint's content: ds_model_digest */
    uint8_t tokenizer[32]; /* of tokenizer.json */
    uint8_t dialect[32];   /* of the name of the prompts' template: "v4.1" */
    uint8_t layout[32];    /* ds_kv_layout_id */
} ds_kv_identity;

/* Positions pos .. pos + n - 1 of a prompt, which stand for an image. */
typedef struct {
    uint32_t pos, n;
    uint8_t digest[32]; /* of what their embedding was made from */
} ds_kv_span;

/* The key in front of the first block. domain, salt: NULL differs from "". */
void ds_chain_ns(ds_key *out, const ds_kv_identity *id, const char *domain, const char *salt);
/* Key of the block at `pos` (a multiple of DS_KV_BLOCK_TOKENS) with these DS_KV_BLOCK_TOKENS tokens, from the key of
 * the block before it. spans: of the whole prompt, in order, not overlapping; those outside the block don't matter. */
void ds_chain_next(ds_key *out, const ds_key *before, const ds_token *tokens, uint32_t pos, const ds_kv_span *spans, size_t n_spans);
/* What the window state behind the block with this key is kept under, in a store that has both. */
void ds_chain_state(ds_key *out, const ds_key *block);

#endif
