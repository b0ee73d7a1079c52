/* How many rows of a prompt go into a step.
 *
 * A prompt is computed in chunks, each beside the rows of the sequences that decode. A chunk takes what the step's
 * time budget leaves: the largest multiple of DS_CHUNK_GRID that the fitted cost allows, measured from position 0,
 * so that chunks end where blocks end; a half, a quarter or an eighth of the grid where not even that fits. The
 * first prompt of a step always moves, by DS_CHUNK_LEAST rows at least: a prompt that decoding starves would never
 * end.
 *
 * Threads: any; a pure function. */
#ifndef DS_POLICY_CHUNK_H
#define DS_POLICY_CHUNK_H

#include "policy/cost.h"

enum { DS_CHUNK_GRID = 128, DS_CHUNK_LEAST = 16 };

typedef struct {
    const ds_cost *cost;
    ds_cost_work work;  /* what the step has already */
    uint32_t pos;       /* where the chunk begins */
    uint32_t most;      /* rows at most: to where it has to end, and what the step has room for */
    uint32_t budget_us; /* of the whole step; 0: none */
    bool alone;         /* nobody decodes in this step, so that nobody waits for it */
    bool first;         /* of the step's prompts */
} ds_chunk;

/* 0 .. most; 0: none in this step. Before the cost is known a chunk is one grid. */
uint32_t ds_chunk_rows(const ds_chunk *c);

#endif
