/* How much of a prompt need not be computed: the one place that says so.
 *
 * Blocks say how long a hit is, window states how it is gone on from:
 *
 *   cap      behind a hit `margin` tokens at least are computed: a window and the rows of a verify step, 134
 *   L1       the blocks that are there in front of the cap
 *   state    with one in (L1 - DS_KV_BLOCK_TOKENS, L1] the sequence goes on from it. States stand at borders of blocks,
 *            so it is the one at L1
 *   replay   without one, the last window in front of L1 is run again; the hit stays as long as it is
 *   strict   where nothing may rest on a replay, the longest border in front of L1 that has a state, or no hit
 *
 * A sequence that comes back after it lost its place has output too, and its bits stay what they were: it goes on the
 * way that it began, by the same replay or by none, and from a state of its own text.
 *
 * Threads: any; pure functions of what they are told.   Cost: one question for each block at most. */
#ifndef DS_KV_HIT_H
#define DS_KV_HIT_H

#include <stdbool.h>
#include <stdint.h>

typedef enum { DS_HIT_NONE, DS_HIT_STATE, DS_HIT_REPLAY } ds_hit_kind;

typedef struct {
    uint32_t prompt;    /* tokens */
    uint32_t margin;    /* ds_hit_margin */
    bool strict;        /* nothing of it may rest on a replay */
    bool any_state;     /* every layer has seen every token: any state at a border serves */
    uint32_t back;      /* tokens that it has, prompt and output, when it comes back; 0: it is new */
    uint32_t replay_at; /* back: it began by a replay there; 0: it didn't */
} ds_hit_ask;

typedef struct {
    ds_hit_kind kind;
    uint32_t pos; /* tokens that need not be computed, whole blocks; 0 where kind is DS_HIT_NONE */
} ds_hit;

/* Tokens behind a hit at least; also where a model's window is shorter than a block: the published rule. */
uint32_t ds_hit_margin(uint32_t window);
/* Tokens of the longest hit that a prompt may have. */
uint32_t ds_hit_cap(uint32_t prompt, uint32_t margin);
/* Blocks that can be of use to it. */
uint32_t ds_hit_most(const ds_hit_ask *q);

/* blocks: leading ones that are there. state: is there one at this border, with `own` one whose decoder windows are
 * this sequence's own? It is asked from the longest border down, and the answer is used for the last one asked. */
ds_hit ds_hit_find(const ds_hit_ask *q, uint32_t blocks, bool (*state)(void *ctx, uint32_t pos, bool own), void *ctx);

#endif
