/* What is under way, as a set of live records.
 *
 * Load is the size of this set and nothing else: whoever adds work holds the record of it, and the work counts for as
 * long as the record is there. A record has an owner (who sent the work, and whose death ends it) and a place (who does
 * it, and whose death ends it too). The sums of a place change with its records alone, by what the record itself says
 * it weighs, so that they cannot drift; ds_live_check proves it.
 *
 * An id is a place in the table and a generation: a record that ended twice, or ended after its owner died, is told
 * apart from the one that took its place.
 *
 * Threads: one owner, or the caller's lock.   Memory: all taken in create(). */
#ifndef DS_POLICY_LIVE_H
#define DS_POLICY_LIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

typedef struct ds_live ds_live;

typedef struct {
    uint32_t records; /* > 0 */
    uint32_t owners;  /* > 0; numbered from 0 */
    uint32_t places;  /* > 0; numbered from 0 */
} ds_live_opts;

typedef struct {
    uint64_t tokens;  /* of KV, at the end of the request */
    uint64_t work_us; /* predicted, not yet done */
    uint64_t patches;
} ds_live_weight;

typedef struct {
    uint64_t records;
    ds_live_weight weight;
} ds_live_sum;

/* On success *out owns the set, else *out is NULL. DS_E_ARG, DS_E_NOMEM. */
ds_rc ds_live_create(ds_live **out, const ds_live_opts *opts, ds_err *err);
void ds_live_destroy(ds_live *l);

/* 0: the set is full, and nothing changed. O(1). */
uint64_t ds_live_add(ds_live *l, uint32_t owner, uint32_t place, const ds_live_weight *w);
/* Weighs another amount from now on (work was done, tokens came). False: there is no such record any more. O(1). */
bool ds_live_weigh(ds_live *l, uint64_t id, const ds_live_weight *w);
/* Goes on elsewhere. False: there is no such record any more. O(1). */
bool ds_live_move(ds_live *l, uint64_t id, uint32_t place);
/* Ended. False: it had ended before, and nothing changed. O(1). */
bool ds_live_end(ds_live *l, uint64_t id);
/* All records of an owner, or at a place, end. How many there were. O(those). */
uint32_t ds_live_end_owner(ds_live *l, uint32_t owner);
uint32_t ds_live_end_place(ds_live *l, uint32_t place);

/* What lies at a place, and everywhere. O(1). */
ds_live_sum ds_live_at(const ds_live *l, uint32_t place);
ds_live_sum ds_live_all(const ds_live *l);

/* Every sum equals that of the records, and every record is in its lists once. For tests. O(all). */
bool ds_live_check(const ds_live *l);

#endif
