#include "kv/layout.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
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

static ds_rc read_part(ds_kv_part *p, const uint8_t *in, uint32_t i, uint64_t end, ds_err *err)
{
    p->record = (ds_kv_record)get_le(in, 4);
    p->of = (uint32_t)get_le(in + 4, 4);
    p->ratio = (uint32_t)get_le(in + 8, 4);
    p->bytes = (uint32_t)get_le(in + 12, 4);
    p->count = (uint32_t)get_le(in + 16, 4);
    p->offset = get_le(in + 24, 8);
    if (p->record < DS_KV_MAIN || p->record > DS_KV_HISTORY || get_le(in + 20, 4) != 0)
        return ds_fail(err, DS_E_FORMAT, "layout: part %u is of kind %d", i, (int)p->record);
    if (p->offset > end || (uint64_t)p->bytes * p->count > end - p->offset)
        return ds_fail(err, DS_E_FORMAT, "layout: part %u lies behind its end", i);
    return DS_OK;
}

ds_rc ds_kv_layout_read(ds_kv_layout *l, const uint8_t *in, size_t n, ds_err *err)
{
    bool slot = false;

    memset(l, 0, sizeof *l);
    if (n < HEAD_BYTES || memcmp(in, "DSKVLAYO", 8) != 0)
        return ds_fail(err, DS_E_FORMAT, "layout: it isn't one");
    l->version = (uint32_t)get_le(in + 8, 4);
    l->block_tokens = (uint32_t)get_le(in + 12, 4);
    l->window = (uint32_t)get_le(in + 16, 4);
    l->ring = (uint32_t)get_le(in + 20, 4);
    l->rollback = (uint32_t)get_le(in + 24, 4);
    l->mode = (ds_kv_mode)get_le(in + 28, 4);
    l->bf16 = (uint32_t)get_le(in + 32, 4);
    l->n_parts = (uint32_t)get_le(in + 36, 4);
    l->block_bytes = get_le(in + 40, 8);
    l->slot_bytes = get_le(in + 48, 8);
    memcpy(l->numerics, in + 56, DS_KV_NUMERICS_BYTES);
    if (l->version != DS_KV_LAYOUT_VERSION || l->block_tokens != DS_KV_BLOCK_TOKENS)
        return ds_fail(err, DS_E_FORMAT, "layout: version %u with blocks of %u tokens, this program knows %u with %d", l->version,
                       l->block_tokens, DS_KV_LAYOUT_VERSION, DS_KV_BLOCK_TOKENS);
    if (l->n_parts > DS_KV_MAX_PARTS || n != HEAD_BYTES + (size_t)PART_BYTES * l->n_parts)
        return ds_fail(err, DS_E_FORMAT, "layout: %zu bytes for %u parts", n, l->n_parts);
    if (l->mode > DS_KV_EXACT || l->bf16 > 1 || l->block_bytes == 0)
        return ds_fail(err, DS_E_FORMAT, "layout: mode %d, activations %u, blocks of %" PRIu64 " bytes", (int)l->mode, l->bf16,
                       l->block_bytes);
    for (uint32_t i = 0; i < l->n_parts; i++) {
        const uint8_t *at = in + HEAD_BYTES + (size_t)PART_BYTES * i;
        ds_rc rc;
        slot = slot || get_le(at, 4) >= DS_KV_WINDOW;
        rc = read_part(&l->part[i], at, i, slot ? l->slot_bytes : l->block_bytes, err);
        if (rc != DS_OK)
            return rc;
    }
    return DS_OK;
}

const char *ds_kv_layout_difference(char *buf, size_t cap, const ds_kv_layout *a, const ds_kv_layout *b)
{
    const struct {
        const char *name;
        uint64_t a, b;
    } facts[] = {
        { "version", a->version, b->version },
        { "block tokens", a->block_tokens, b->block_tokens },
        { "bytes of a block", a->block_bytes, b->block_bytes },
        { "bytes of a slot", a->slot_bytes, b->slot_bytes },
        { "window", a->window, b->window },
        { "ring", a->ring, b->ring },
        { "rollback", a->rollback, b->rollback },
        { "mode", a->mode, b->mode },
        { "activations", a->bf16, b->bf16 },
        { "number of parts", a->n_parts, b->n_parts },
    };
    uint8_t x[DS_KV_LAYOUT_MAX_BYTES], y[DS_KV_LAYOUT_MAX_BYTES];

    buf[0] = 0;
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        if (facts[i].a != facts[i].b) {
            snprintf(buf, cap, "%s: %" PRIu64 " and %" PRIu64, facts[i].name, facts[i].a, facts[i].b);
            return buf;
        }
    if (memcmp(a->numerics, b->numerics, DS_KV_NUMERICS_BYTES) != 0) {
        snprintf(buf, cap, "kernels: %.16s and %.16s", a->numerics, b->numerics);
        return buf;
    }
    ds_kv_layout_write(y, b);
    if (memcmp(x, y, ds_kv_layout_write(x, a)) != 0)
        snprintf(buf, cap, "places of parts");
    return buf;
}
