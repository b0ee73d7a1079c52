/* Open addressing, linear probing, at most half full; removal shifts later cells back, so there are no tombstones. */
#include "engine/keytab.h"

#include <assert.h>
#include <stdlib.h>

enum { LEAST_CELLS = 16 };

uint64_t ds_keytab_bytes(uint32_t n) /* a power of two of cells: below four a value */
{
    return LEAST_CELLS * sizeof(uint32_t) + (n + 1ull) * (4 * sizeof(uint32_t) + sizeof(ds_key) + sizeof(bool));
}

ds_rc ds_keytab_init(ds_keytab *t, uint32_t n, ds_err *err)
{
    uint64_t cells = LEAST_CELLS;

    *t = (ds_keytab){ .n = n };
    while (cells < 2ull * n)
        cells *= 2;
    t->mask = (uint32_t)(cells - 1);
    t->cell = calloc(cells, sizeof *t->cell);
    t->key = calloc(n ? n : 1, sizeof *t->key);
    t->used = calloc(n ? n : 1, sizeof *t->used);
    if (!t->cell || !t->key || !t->used) {
        ds_keytab_fini(t);
        return ds_fail(err, DS_E_NOMEM, "engine: out of memory for a table of %u keys", n);
    }
    return DS_OK;
}

void ds_keytab_fini(ds_keytab *t)
{
    free(t->cell);
    free(t->key);
    free(t->used);
    *t = (ds_keytab){ 0 };
}

static uint32_t home(const ds_keytab *t, const ds_key *k)
{
    return ds_key_hash(k) & t->mask;
}

static uint32_t cell_of(const ds_keytab *t, const ds_key *k)
{
    uint32_t i = home(t, k);

    while (t->cell[i] && !ds_key_equal(&t->key[t->cell[i] - 1], k))
        i = (i + 1) & t->mask;
    return i;
}

uint32_t ds_keytab_find(const ds_keytab *t, const ds_key *k)
{
    return t->cell[cell_of(t, k)] - 1; /* 0 - 1 is DS_NONE */
}

void ds_keytab_put(ds_keytab *t, const ds_key *k, uint32_t value)
{
    uint32_t i = cell_of(t, k);

    assert(value < t->n && !t->used[value] && t->cell[i] == 0);
    t->cell[i] = value + 1;
    t->key[value] = *k;
    t->used[value] = true;
}

void ds_keytab_drop(ds_keytab *t, uint32_t value)
{
    uint32_t i, hole;

    if (!t->used[value])
        return;
    hole = cell_of(t, &t->key[value]);
    assert(t->cell[hole] == value + 1);
    t->used[value] = false;
    for (i = (hole + 1) & t->mask; t->cell[i]; i = (i + 1) & t->mask)
        if (((i - home(t, &t->key[t->cell[i] - 1])) & t->mask) >= ((i - hole) & t->mask)) { /* it may stand as far back as the hole */
            t->cell[hole] = t->cell[i];
            hole = i;
        }
    t->cell[hole] = 0;
}
