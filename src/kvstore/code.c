#include "kvstore/code.h"

#include <assert.h>
#include <isa-l/erasure_code.h>
#include <string.h>

ds_rc ds_code_init(ds_code *c, uint32_t k, uint32_t m, ds_err *err)
{
    *c = (ds_code){ .k = k, .m = m };
    if (k == 0 || k > DS_SEG_MAX_DEVICES || m > DS_SEG_MAX_DEVICES - k)
        return ds_fail(err, DS_E_ARG, "code %u+%u: expected 1 to %d devices, one for data at least", k, m, DS_SEG_MAX_DEVICES);
    gf_gen_cauchy1_matrix(c->matrix, (int)(k + m), (int)k);
    if (m)
        ec_init_tables((int)k, (int)m, c->matrix + (size_t)k * k, c->tables);
    return DS_OK;
}

void ds_code_encode(const ds_code *c, uint8_t *const *shard, size_t bytes)
{
    assert(bytes <= INT32_MAX);
    if (c->m)
        ec_encode_data((int)bytes, (int)c->k, (int)c->m, (uint8_t *)(uintptr_t)c->tables, (uint8_t **)(uintptr_t)shard,
                       (uint8_t **)(uintptr_t)(shard + c->k));
}

void ds_code_decode(const ds_code *c, uint8_t *const *shard, const bool *have, size_t bytes)
{
    uint8_t square[DS_SEG_MAX_DEVICES * DS_SEG_MAX_DEVICES], inverse[DS_SEG_MAX_DEVICES * DS_SEG_MAX_DEVICES],
        rows[DS_SEG_MAX_DEVICES * DS_SEG_MAX_DEVICES], tables[DS_SEG_MAX_DEVICES * DS_SEG_MAX_DEVICES * 32];
    uint8_t *from[DS_SEG_MAX_DEVICES], *to[DS_SEG_MAX_DEVICES];
    uint32_t n_from = 0, n_to = 0;

    for (uint32_t i = 0; i < c->k + c->m && n_from < c->k; i++)
        if (have[i]) {
            memcpy(square + n_from * c->k, c->matrix + i * c->k, c->k);
            from[n_from++] = shard[i];
        }
    assert(n_from == c->k);
    for (uint32_t i = 0; i < c->k; i++)
        n_to += !have[i];
    if (n_to == 0)
        return;
    /* every square part of the identity over a Cauchy matrix can be inverted */
    int singular = gf_invert_matrix(square, inverse, (int)c->k);
    assert(singular == 0);
    (void)singular;
    n_to = 0;
    for (uint32_t i = 0; i < c->k; i++)
        if (!have[i]) {
            memcpy(rows + n_to * c->k, inverse + i * c->k, c->k);
            to[n_to++] = shard[i];
        }
    ec_init_tables((int)c->k, (int)n_to, rows, tables);
    ec_encode_data((int)bytes, (int)c->k, (int)n_to, tables, from, to);
}
