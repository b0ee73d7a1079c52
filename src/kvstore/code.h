/* Erasure coding of a block over k + m devices, with ISA-L: any k shards give the block back (docs/formats/segment.md).
 *
 * Threads: a code is constant after init; any thread may use it.   Memory: inside the struct. */
#ifndef DS_KVSTORE_CODE_H
#define DS_KVSTORE_CODE_H

#include "kvstore/format.h"

typedef struct {
    uint32_t k, m;
    uint8_t matrix[DS_SEG_MAX_DEVICES * DS_SEG_MAX_DEVICES];      /* [k + m][k], the first k rows are the identity */
    uint8_t tables[DS_SEG_MAX_DEVICES * DS_SEG_MAX_DEVICES * 32]; /* of the last m rows */
} ds_code;

/* DS_E_ARG: k = 0, or k + m > DS_SEG_MAX_DEVICES. */
ds_rc ds_code_init(ds_code *c, uint32_t k, uint32_t m, ds_err *err);

/* From the first k of shard[0..k+m), each `bytes` long, writes the last m. */
void ds_code_encode(const ds_code *c, uint8_t *const *shard, size_t bytes);

/* Fills the missing ones of the first k shards from those that are there: have[i] says so of each. At least k must
 * be there; shard[i] needs memory where i < k or have[i]. O(k * missing * bytes). */
void ds_code_decode(const ds_code *c, uint8_t *const *shard, const bool *have, size_t bytes);

#endif
