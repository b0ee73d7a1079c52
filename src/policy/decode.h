/* Which rank decodes a request.
 *
 * A rank has room for so many requests and so many tokens of KV, and is as full as the fuller of the two says. A
 * request goes where that is least with the request in it. Ranks that are nearly alike in this differ in which of the
 * two they are short of: a short request, which costs a seat, goes to where long caches left seats over, a long one to
 * where few caches left KV over. A rank that also computes prompts has a third measure, the prompt work ahead of it.
 *
 * Above DS_DECODE_ALL ranks only some, drawn by the seed, are compared, so that entries which see the same snapshot
 * don't all run to the same rank. Full ranks and those that aren't ready are no candidates, and a request waits only if
 * there is no other.
 *
 * Threads: any; pure functions, O(ranks), no allocation. The order of rows doesn't matter; ties go to the lower id. */
#ifndef DS_POLICY_DECODE_H
#define DS_POLICY_DECODE_H

#include <stdbool.h>
#include <stdint.h>

enum { DS_DECODE_ALL = 64, DS_DECODE_DRAWN = 16 };

typedef struct {
    uint64_t id;                       /* differs between rows */
    bool ready;                        /* takes new work */
    uint64_t requests, max_requests;   /* live, and never more */
    uint64_t kv_tokens, max_kv_tokens; /* of live requests at their end, and never more */
    uint64_t prefill_us, max_wait_us;  /* prompt work ahead, and what counts as full; max 0: computes no prompts */
} ds_decode_rank;

typedef struct {
    uint64_t kv_tokens;  /* at its end: prompt and the answer that is expected */
    uint64_t prefill_us; /* of its own prompt, on ranks that compute prompts */
    uint64_t seed;       /* of the draw; of no meaning up to DS_DECODE_ALL ranks */
} ds_decode_ask;

/* The row, or DS_NONE: no rank has room. */
uint32_t ds_decode_choose(const ds_decode_rank *ranks, uint32_t n, const ds_decode_ask *ask);

#endif
