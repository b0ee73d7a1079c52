/* The record of a sequence that comes from another engine: what is accepted lies within it. The digest is put right
 * first, so that the fuzzer gets behind it. */
#include <stdlib.h>
#include <string.h>

#include "kv/handoff.h"
#include "kv/state.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *in = malloc(size + 1);
    ds_kv_handoff h;
    ds_kv_state s;
    uint32_t sum = 0;

    if (!in)
        return 0;
    memcpy(in, data, size);
    if (size > DS_KV_HANDOFF_DIGEST)
        ds_kv_handoff_seal(in, size);
    if (ds_kv_handoff_read(&h, in, size, NULL) == DS_OK) {
        for (uint32_t i = 0; i < h.n_prompt + h.n_out; i++)
            sum += (uint32_t)ds_kv_handoff_token(&h, i);
        for (size_t i = 0; i < h.state_bytes; i++)
            sum += h.state[i];
        for (size_t i = 0; i < h.block_bytes; i++)
            sum += h.block[i];
        for (size_t i = 0; i < 32 * (size_t)h.n_keys; i++)
            sum += h.keys[i];
        if (h.state_bytes >= DS_KV_STATE_HEADER && ds_kv_state_read(&s, h.state, NULL) == DS_OK)
            sum += s.pos;
    }
    free(in);
    return sum == 1 && size == SIZE_MAX;
}
