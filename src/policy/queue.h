/* Whose turn it is, and who has to go.
 *
 * Requests have a priority, 0 is served first. Waiting ages: so many milliseconds are worth one priority, without
 * end, so that nobody waits for ever behind a better one. Equal ones go in order of arrival.
 *
 * Threads: any; pure functions, O(1). */
#ifndef DS_POLICY_QUEUE_H
#define DS_POLICY_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint32_t level;     /* priority */
    uint64_t waited_us; /* since it came, or came back, to the queue */
    uint64_t order;     /* of arrival */
} ds_queue_wait;

/* a is to be looked at before b. ageing_ms > 0. */
bool ds_queue_before(const ds_queue_wait *a, const ds_queue_wait *b, uint32_t ageing_ms);
/* What waiting made of a priority: what was won by waiting is kept when a seat is taken. */
uint32_t ds_queue_aged(uint32_t level, uint64_t waited_us, uint32_t ageing_ms);

typedef struct {
    uint32_t level;
    uint64_t order;
    uint32_t sample; /* of its request */
} ds_queue_place;

/* a is to be sent away rather than b: the worse priority, then the later arrival. Ageing doesn't count: who runs
 * does not wait. */
bool ds_queue_worse(const ds_queue_place *a, const ds_queue_place *b);

#endif
