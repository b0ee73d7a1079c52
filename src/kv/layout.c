#include "kv/layout.h"

#include <assert.h>
#include <string.h>

#include "base/hash.h"
#include "kv/bytes_internal.h"

enum { HEAD_BYTES = 72, PART_BYTES = 32 };

size_t ds_kv_layout_write(uint8_t *out, const ds_kv_layout *l)
{
    const uint32_t head[] = { l->version, l->block_tokens, l->window, l->ring, l->rollback, (uint32_t)l->mode, l->bf16, l->n_parts };

    assert(l->n_parts <= DS_KV_MAX_PARTS);
    memcpy(out, "DSKVLAYO", 8);
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        put_le(out + 8 + 4 * i, head[i], 4);
    put_le(out + 40, l->block_bytes, 8);
    put_le(out + 48, l->slot_bytes, 8);
    memcpy(out + 56, l->numerics, DS_KV_NUMERICS_BYTES);
    for (uint32_t i = 0; i < l->n_parts; i++) {
        const ds_kv_part *p = &l->part[i];
        uint8_t *at = out + HEAD_BYTES + (size_t)PART_BYTES * i;
        put_le(at, (uint32_t)p->record, 4);
        put_le(at + 4, p->of, 4);
        put_le(at + 8, p->ratio, 4);
        put_le(at + 12, p->bytes, 4);
        put_le(at + 16, p->count, 4);
        put_le(at + 20, 0, 4);
        put_le(at + 24, p->offset, 8);
    }
    return HEAD_BYTES + (size_t)PART_BYTES * l->n_parts;
}

void ds_kv_layout_id(uint8_t id[32], const ds_kv_layout *l)
{
    uint8_t bytes[DS_KV_LAYOUT_MAX_BYTES];

    ds_sha256(id, bytes, ds_kv_layout_write(bytes, l));
}
