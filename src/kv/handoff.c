#include "kv/handoff.h"

#include <string.h>

#include "base/hash.h"
#include "kv/bytes_internal.h"
#include "kv/layout.h"

enum { APPROX = 1 };

static size_t up64(size_t n)
{
    return (n + 63) / 64 * 64;
}

/* Where its parts begin; the last one: where the digest does. */
static void lay_out(const ds_kv_handoff *h, size_t at[5])
{
    at[0] = DS_KV_HANDOFF_HEADER;
    at[1] = at[0] + up64(4 * ((size_t)h->n_prompt + h->n_out));
    at[2] = at[1] + up64(32 * (size_t)h->n_keys);
    at[3] = at[2] + up64((size_t)h->state_bytes);
    at[4] = at[3] + up64((size_t)h->block_bytes);
}

size_t ds_kv_handoff_bytes(const ds_kv_handoff *h)
{
    size_t at[5];

    lay_out(h, at);
    return at[4] + DS_KV_HANDOFF_DIGEST;
}

void ds_kv_handoff_begin(uint8_t *out, const ds_kv_handoff *h, ds_kv_handoff_places *places)
{
    size_t at[5];

    lay_out(h, at);
    memset(out, 0, at[4] + DS_KV_HANDOFF_DIGEST);
    memcpy(out, "DSKVHAND", 8);
    put_le(out + 8, DS_KV_HANDOFF_VERSION, 4);
    put_le(out + 12, h->approx ? APPROX : 0, 4);
    memcpy(out + 16, h->ns.b, sizeof h->ns.b);
    put_le(out + 48, h->n_prompt, 4);
    put_le(out + 52, h->n_out, 4);
    put_le(out + 56, h->pos, 4);
    put_le(out + 60, h->n_keys, 4);
    put_le(out + 64, (uint32_t)h->began, 4);
    put_le(out + 68, h->began_pos, 4);
    put_le(out + 72, h->state_bytes, 8);
    put_le(out + 80, h->block_bytes, 8);
    *places = (ds_kv_handoff_places){ out + at[0], out + at[1], out + at[2], out + at[3] };
}

void ds_kv_handoff_seal(uint8_t *out, size_t n)
{
    ds_sha256(out + n - DS_KV_HANDOFF_DIGEST, out, n - DS_KV_HANDOFF_DIGEST);
}

static bool is_sane(const ds_kv_handoff *h)
{
    uint64_t tokens = (uint64_t)h->n_prompt + h->n_out;

    if (h->n_prompt == 0 || tokens > INT32_MAX || h->began > DS_KV_BEGAN_BY_REPLAY || h->began_pos > h->n_prompt ||
        (h->began == DS_KV_BEGAN_COLD) != (h->began_pos == 0) || h->state_bytes > SIZE_MAX / 8 || h->block_bytes > SIZE_MAX / 8)
        return false;
    if (h->pos == 0)
        return h->n_keys == 0 && h->state_bytes == 0 && h->block_bytes == 0;
    /* every token but the last one is processed */
    return h->n_out > 0 && h->pos == tokens - 1 && h->n_keys == h->pos / DS_KV_BLOCK_TOKENS && h->state_bytes > 0 &&
           (h->block_bytes > 0) == (h->pos % DS_KV_BLOCK_TOKENS > 0);
}

ds_rc ds_kv_handoff_read(ds_kv_handoff *h, const uint8_t *in, size_t n, ds_err *err)
{
    uint8_t digest[DS_KV_HANDOFF_DIGEST];
    uint32_t version, bits;
    size_t at[5];

    if (n < DS_KV_HANDOFF_HEADER + DS_KV_HANDOFF_DIGEST || memcmp(in, "DSKVHAND", 8) != 0)
        return ds_fail(err, DS_E_FORMAT, "handoff: not a record of a sequence");
    version = (uint32_t)get_le(in + 8, 4);
    bits = (uint32_t)get_le(in + 12, 4);
    if (version != DS_KV_HANDOFF_VERSION)
        return ds_fail(err, DS_E_FORMAT, "handoff: version %u, this program reads %u", version, DS_KV_HANDOFF_VERSION);
    *h = (ds_kv_handoff){ .n_prompt = (uint32_t)get_le(in + 48, 4),
                          .n_out = (uint32_t)get_le(in + 52, 4),
                          .pos = (uint32_t)get_le(in + 56, 4),
                          .n_keys = (uint32_t)get_le(in + 60, 4),
                          .began = (ds_kv_began)get_le(in + 64, 4),
                          .began_pos = (uint32_t)get_le(in + 68, 4),
                          .state_bytes = get_le(in + 72, 8),
                          .block_bytes = get_le(in + 80, 8),
                          .approx = bits & APPROX };
    memcpy(h->ns.b, in + 16, sizeof h->ns.b);
    if (bits & ~(uint32_t)APPROX || !is_sane(h) || ds_kv_handoff_bytes(h) != n)
        return ds_fail(err, DS_E_FORMAT, "handoff: the header's values mean nothing, or aren't those of %zu bytes", n);
    ds_sha256(digest, in, n - DS_KV_HANDOFF_DIGEST);
    if (memcmp(digest, in + n - DS_KV_HANDOFF_DIGEST, sizeof digest) != 0)
        return ds_fail(err, DS_E_FORMAT, "handoff: the record was changed on its way");
    lay_out(h, at);
    h->tokens = in + at[0];
    h->keys = in + at[1];
    h->state = in + at[2];
    h->block = in + at[3];
    return DS_OK;
}
