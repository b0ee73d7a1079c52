/* What happens when: a queue of events by time, those of one time in the order in which they were put there.
 *
 * Threads: one owner.   Memory: grows with the events that are in it.   Cost: O(log n). */
#ifndef DS_SIM_EVENTS_H
#define DS_SIM_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t at_ns, order;
    uint32_t what, who; /* of the owner */
    uint64_t which;
} ds_sim_event;

typedef struct { /* zeros are empty */
    ds_sim_event *heap;
    size_t n, cap;
    uint64_t order;
} ds_sim_events;

/* False: out of memory, nothing changed. */
bool ds_sim_events_put(ds_sim_events *q, uint64_t at_ns, uint32_t what, uint32_t who, uint64_t which);
/* The earliest; false: none. */
bool ds_sim_events_take(ds_sim_events *q, ds_sim_event *out);
void ds_sim_events_free(ds_sim_events *q); /* back to empty */

#endif
