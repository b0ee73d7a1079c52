#include "kv/hit.h"

#include "kv/layout.h"

enum { BLOCK = DS_KV_BLOCK_TOKENS };

uint32_t ds_hit_margin(uint32_t window)
{
    return (window > BLOCK ? window : BLOCK) + DS_KV_ROLLBACK;
}

uint32_t ds_hit_cap(uint32_t prompt, uint32_t margin)
{
    return prompt > margin ? (prompt - margin) / BLOCK * BLOCK : 0;
}

uint32_t ds_hit_most(const ds_hit_ask *q)
{
    if (q->back)
        return (q->back - 1) / BLOCK; /* something is left to compute */
    return ds_hit_cap(q->prompt, q->margin) / BLOCK;
}

ds_hit ds_hit_find(const ds_hit_ask *q, uint32_t blocks, bool (*state)(void *ctx, uint32_t pos, bool own), void *ctx)
{
    uint32_t most = ds_hit_most(q), n = blocks < most ? blocks : most;

    if (q->back && q->replay_at) {
        if (n * BLOCK >= q->replay_at)
            return (ds_hit){ DS_HIT_REPLAY, q->replay_at };
        return (ds_hit){ DS_HIT_NONE, 0 };
    }
    for (; n > 0; n--) {
        uint32_t pos = n * BLOCK;
        /* The decoder has seen the end of the prompt and what follows: in front of that its windows are empty, behind
         * it they are this text's own, and in between no other sequence's state serves. */
        bool any = q->any_state || pos + q->margin <= q->prompt;
        if ((any || pos >= q->prompt) && state(ctx, pos, !any))
            return (ds_hit){ DS_HIT_STATE, pos };
        if (!q->strict && !q->back)
            return (ds_hit){ DS_HIT_REPLAY, pos };
    }
    return (ds_hit){ DS_HIT_NONE, 0 };
}
