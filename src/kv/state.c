#include "kv/state.h"

#include <string.h>

#include "kv/bytes_internal.h"

enum { DECODING = 1, ENDED = 2, APPROX = 4 };

void ds_kv_state_write(uint8_t out[DS_KV_STATE_HEADER], const ds_kv_state *s)
{
    memset(out, 0, DS_KV_STATE_HEADER);
    memcpy(out, "DSKVSTAT", 8);
    put_le(out + 8, DS_KV_STATE_VERSION, 4);
    put_le(out + 12, (s->decoding ? DECODING : 0) | (s->ended ? ENDED : 0) | (s->approx ? APPROX : 0), 4);
    put_le(out + 16, s->pos, 4);
    put_le(out + 20, (uint32_t)s->next, 4);
    put_le(out + 24, s->dec_start, 4);
    put_le(out + 32, s->slot_bytes, 8);
}

ds_rc ds_kv_state_read(ds_kv_state *s, const uint8_t in[DS_KV_STATE_HEADER], ds_err *err)
{
    uint32_t version = (uint32_t)get_le(in + 8, 4), flags = (uint32_t)get_le(in + 12, 4);

    if (memcmp(in, "DSKVSTAT", 8) != 0)
        return ds_fail(err, DS_E_FORMAT, "state: not a saved state");
    if (version != DS_KV_STATE_VERSION)
        return ds_fail(err, DS_E_FORMAT, "state: version %u, this program reads %u", version, DS_KV_STATE_VERSION);
    *s = (ds_kv_state){ .pos = (uint32_t)get_le(in + 16, 4),
                        .next = (ds_token)get_le(in + 20, 4),
                        .decoding = flags & DECODING,
                        .ended = flags & ENDED,
                        .approx = flags & APPROX,
                        .dec_start = (uint32_t)get_le(in + 24, 4),
                        .slot_bytes = get_le(in + 32, 8) };
    if (flags & ~(uint32_t)(DECODING | ENDED | APPROX) || get_le(in + 28, 4) || s->next < -1 || (s->decoding && s->next < 0) ||
        (s->dec_start != DS_KV_STATE_ENCODER && s->dec_start > s->pos))
        return ds_fail(err, DS_E_FORMAT, "state: the header's values mean nothing");
    for (int i = 40; i < DS_KV_STATE_HEADER; i++)
        if (in[i])
            return ds_fail(err, DS_E_FORMAT, "state: the header's values mean nothing");
    return DS_OK;
}
