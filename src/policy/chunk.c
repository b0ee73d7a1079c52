#include "policy/chunk.h"

static uint32_t at_most(uint32_t rows, const ds_chunk *c)
{
    return rows < c->most ? rows : c->most;
}

uint32_t ds_chunk_rows(const ds_chunk *c)
{
    uint32_t fit;

    if (c->most == 0 || c->budget_us == 0 || c->alone)
        return c->most;
    fit = ds_cost_known(c->cost) ? ds_cost_fit(c->cost, &c->work, c->pos, c->budget_us, c->most) : DS_CHUNK_GRID;
    if (fit >= c->most)
        return c->most;
    if (fit >= DS_CHUNK_GRID)
        return (c->pos + fit) / DS_CHUNK_GRID * DS_CHUNK_GRID - c->pos;
    for (uint32_t less = DS_CHUNK_GRID / 2; less >= DS_CHUNK_LEAST; less /= 2)
        if (fit >= less)
            return less;
    return c->first ? at_most(DS_CHUNK_LEAST, c) : 0;
}
