/* A saved state outside its slot: a header, then the slot's bytes (docs/formats/window-state.md).
 *
 * The header has what the rings don't say: how far the sequence is and what stands there (the device's live record),
 * and what the state is good for. Threads: plain data.   Memory: none is allocated. */
#ifndef DS_KV_STATE_H
#define DS_KV_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include <ds/token.h>

#include "base/err.h"

enum { DS_KV_STATE_HEADER = 64 };
#define DS_KV_STATE_VERSION 1u
#define DS_KV_STATE_ENCODER UINT32_MAX /* dec_start: no decoder windows */

typedef struct {
    uint32_t pos;        /* P: the position that comes next */
    ds_token next;       /* the token that stands there; -1: it isn't known, more prompt rows follow */
    bool decoding;       /* `next` may be processed */
    bool ended;          /* the text is complete */
    bool approx;         /* rests on a replay */
    uint32_t dec_start;  /* first position in the decoder's windows, or DS_KV_STATE_ENCODER */
    uint64_t slot_bytes; /* that follow */
} ds_kv_state;

void ds_kv_state_write(uint8_t out[DS_KV_STATE_HEADER], const ds_kv_state *s);
/* DS_E_FORMAT says what is wrong: not a state, of another version, or bytes that mean nothing. */
ds_rc ds_kv_state_read(ds_kv_state *s, const uint8_t in[DS_KV_STATE_HEADER], ds_err *err);

#endif
