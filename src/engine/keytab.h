/* A fixed-size map from 32-byte keys to numbers below `n`, each number under one key at most.
 *
 * Threads: one owner.   Memory: all taken in init(). */
#ifndef DS_ENGINE_KEYTAB_H
#define DS_ENGINE_KEYTAB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/none.h"
#include "kv/key.h"

typedef struct {
    uint32_t n, mask;
    uint32_t *cell; /* [mask + 1] value + 1; 0 = empty */
    ds_key *key;    /* [n] of each value */
    bool *used;     /* [n] the value is in the table */
} ds_keytab;

/* What init takes at most; linear in n, so that a plan can be solved for n. */
uint64_t ds_keytab_bytes(uint32_t n);
ds_rc ds_keytab_init(ds_keytab *t, uint32_t n, ds_err *err);
void ds_keytab_fini(ds_keytab *t);
uint32_t ds_keytab_find(const ds_keytab *t, const ds_key *k);      /* DS_NONE: not there */
void ds_keytab_put(ds_keytab *t, const ds_key *k, uint32_t value); /* neither key nor value may be in the table */
void ds_keytab_drop(ds_keytab *t, uint32_t value);                 /* nothing if it isn't there */

#endif
