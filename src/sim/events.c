#include "sim/events.h"

#include <stdlib.h>

static bool before(const ds_sim_event *a, const ds_sim_event *b)
{
    return a->at_ns < b->at_ns || (a->at_ns == b->at_ns && a->order < b->order);
}

bool ds_sim_events_put(ds_sim_events *q, uint64_t at_ns, uint32_t what, uint32_t who, uint64_t which)
{
    ds_sim_event e = { at_ns, q->order, what, who, which };
    size_t i = q->n;

    if (q->n == q->cap) {
        size_t cap = q->cap ? q->cap * 2 : 256;
        ds_sim_event *heap = realloc(q->heap, cap * sizeof *heap);
        if (!heap)
            return false;
        q->heap = heap;
        q->cap = cap;
    }
    q->order++;
    q->n++;
    for (; i > 0 && before(&e, &q->heap[(i - 1) / 2]); i = (i - 1) / 2)
        q->heap[i] = q->heap[(i - 1) / 2];
    q->heap[i] = e;
    return true;
}

bool ds_sim_events_take(ds_sim_events *q, ds_sim_event *out)
{
    ds_sim_event e;
    size_t i = 0;

    if (q->n == 0)
        return false;
    *out = q->heap[0];
    e = q->heap[--q->n];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= q->n)
            break;
        if (child + 1 < q->n && before(&q->heap[child + 1], &q->heap[child]))
            child++;
        if (!before(&q->heap[child], &e))
            break;
        q->heap[i] = q->heap[child];
        i = child;
    }
    if (q->n > 0)
        q->heap[i] = e;
    return true;
}

void ds_sim_events_free(ds_sim_events *q)
{
    free(q->heap);
    *q = (ds_sim_events){ 0 };
}
