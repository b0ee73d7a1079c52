/* State slots: seats of running sequences, and the recent-state pool.
 *
 * Slots 0 .. n_seats-1 belong to running sequences. Slots n_seats .. n_seats+n_saved-1 hold saved states: the window
 * state of a prefix, found by the prefix's key (for hits and for going on after preemption), or of one parked
 * sequence, which holds it by a pin. A saved state is
 *   free     nothing in it
 *   filling  a step that writes it is planned or on the device; pinned by who planned it
 *   valid    found by key; the least recently used goes first; not found any more after its time to live
 * A pinned one is neither reused nor dropped.
 * Threads: the loop's.   Memory: all taken in init(). */
#ifndef DS_ENGINE_STATES_H
#define DS_ENGINE_STATES_H

#include "engine/keytab.h"

typedef struct {
    uint32_t n_seats, n_saved;
    uint32_t *seat; /* stack of free seats */
    uint32_t n_free_seats;

    uint32_t *pins;      /* by saved state, 0 .. n_saved-1 */
    uint32_t *dec_start; /* what its decoder windows start at; DS_KV_STATE_ENCODER: it has encoder state only */
    bool *approx;        /* rests on a replay */
    uint64_t *touched_us;
    uint32_t *next, *prev; /* unpinned ones, least recently used first; n_saved is the head */
    ds_keytab keys;
    uint32_t n_pinned;
    uint64_t ttl_us;
    uint64_t saved, evicted; /* since the owner last set them to 0 */
} ds_states;

uint64_t ds_states_bytes(uint32_t n_seats, uint32_t n_saved); /* what init takes at most */
ds_rc ds_states_init(ds_states *s, uint32_t n_seats, uint32_t n_saved, uint64_t ttl_us, ds_err *err);
void ds_states_fini(ds_states *s);

uint32_t ds_states_take_seat(ds_states *s); /* a slot; DS_NONE: none is free */
void ds_states_give_seat(ds_states *s, uint32_t slot);

/* A saved state to fill, pinned once; DS_NONE: all are pinned. What it held is forgotten. */
uint32_t ds_states_take(ds_states *s);
/* Which one take would give. */
static inline uint32_t ds_states_next(const ds_states *s)
{
    return s->next[s->n_saved] == s->n_saved ? DS_NONE : s->next[s->n_saved];
}
/* It is filled: findable by key. An older one under that key is forgotten if nobody pins it, else this one stays
 * nameless; so does an approximate one when there is an exact one that isn't too old to be found. The pin stays. */
void ds_states_name(ds_states *s, uint32_t i, const ds_key *k, uint32_t dec_start, bool approx, uint64_t now_us);
void ds_states_pin(ds_states *s, uint32_t i);
void ds_states_unpin(ds_states *s, uint32_t i);
/* DS_NONE: none, or too old. Counts as a use. */
uint32_t ds_states_find(ds_states *s, const ds_key *k, uint64_t now_us);
static inline uint32_t ds_states_slot(const ds_states *s, uint32_t i)
{
    return s->n_seats + i;
}

#endif
