#include "policy/queue.h"

static int64_t rank(const ds_queue_wait *w, uint32_t ageing_ms)
{
    return (int64_t)w->level * ageing_ms * 1000 - (int64_t)w->waited_us;
}

bool ds_queue_before(const ds_queue_wait *a, const ds_queue_wait *b, uint32_t ageing_ms)
{
    int64_t ra = rank(a, ageing_ms), rb = rank(b, ageing_ms);

    return ra < rb || (ra == rb && a->order < b->order);
}

uint32_t ds_queue_aged(uint32_t level, uint64_t waited_us, uint32_t ageing_ms)
{
    uint64_t won = waited_us / (1000ull * ageing_ms);

    return won < level ? level - (uint32_t)won : 0;
}

bool ds_queue_worse(const ds_queue_place *a, const ds_queue_place *b)
{
    if (a->level != b->level)
        return a->level > b->level;
    return a->order > b->order || (a->order == b->order && a->sample > b->sample);
}
