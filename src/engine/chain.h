/* Keys of cached prefixes: a chain of SHA-256 values with length-prefixed fields (design.md, section 4).
 *
 *   ns  = H("deepserve prefix 1", model revision, tokenizer, template, layout, tenant domain, salt)
 *   k_i = H(k_{i-1}, H(tokens of block i, image spans in block i)),   k_{-1} = ns
 *
 * H(a, b, …) hashes, for each field, its length as 8 bytes, least significant first, then its bytes. Tokens are 4 bytes each, the same
 * way round. An image span that touches the block adds a field of 40 bytes: the digest, its first position inside the block, and the cell
 * of the image that stands there.
 * Threads: any; no state. */
#ifndef DS_ENGINE_CHAIN_H
#define DS_ENGINE_CHAIN_H

#include <ds/engine.h>

#include "engine/keytab.h"

/* Fields may be NULL, which differs from "". */
void ds_chain_ns(ds_key *out, const ds_engine_opts *o, const char *layout, const char *domain, const char *salt);
/* Key of the block at `pos` (a multiple of 128) with these 128 tokens. images: of the whole prompt. */
void ds_chain_next(ds_key *out, const ds_key *before, const int32_t *tokens, uint32_t pos, const ds_gen_image *images, size_t n_images);

#endif
