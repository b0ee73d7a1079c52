/* Engram ids: primes, offsets and multipliers of the hash, and the hash itself (model spec, section 3.12).
 *
 * Threads: plain data, read by anybody.   Memory: none is allocated. */
#ifndef DS_FORMAT_ENGRAM_H
#define DS_FORMAT_ENGRAM_H

#include <stdint.h>

#include "base/err.h"
#include "format/config.h"

#define DS_ENGRAM_DEAD (-1) /* a compressed id that doesn't exist: image span, or before the start */

typedef struct {
    uint32_t columns; /* orders x heads, order-major */
    uint32_t n_heads;
    uint32_t max_ngram;
    int32_t pad_class; /* map[engram_pad_token_id] */
    uint64_t rows;     /* sum of the primes */
    uint64_t prime[DS_CONFIG_MAX_ENGRAM_COLUMNS];
    uint64_t offset[DS_CONFIG_MAX_ENGRAM_COLUMNS];
    uint64_t multiplier[DS_CONFIG_MAX_ENGRAM_NGRAM];
} ds_engram_hash; /* one Engram layer */

/* Primes and offsets of `count` = layers x columns columns, layer by layer. prime[] and offset[] have `count`
 * entries. The caller guarantees the bounds of config.h. About 50 us for each thousand of the search start's square
 * root. */
void ds_engram_primes(uint64_t *prime, uint64_t *offset, uint32_t n_layers, uint32_t columns, uint64_t search_start);

/* The `n` odd multipliers of real layer number `layer`, as NumPy's default_rng(10007 * layer).integers draws them. */
void ds_engram_multipliers(uint64_t *multiplier, uint32_t n, uint32_t layer, uint32_t compressed_vocab);

/* Everything of Engram table `table` (an ordinal in engram_layer_ids). pad_class: the token map's entry for
 * engram_pad_token_id. */
void ds_engram_init(ds_engram_hash *h, const ds_config *c, uint32_t table, int32_t pad_class);

/* Row ids of one position: ids[columns]. history[s] is the compressed id at p - s, DS_ENGRAM_DEAD from the first
 * unavailable step on (later entries are then ignored); s = 0 .. max_ngram - 1. */
void ds_engram_ids(uint64_t *ids, const ds_engram_hash *h, const int32_t *history);

#endif
