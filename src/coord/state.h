/* Who is in the cluster: the coord's table, changed by operations that mean the same whenever they are applied again
 * from a journal.
 *
 *   ANNOUNCE   a process is there, or says something else of itself. A new instance of a name gets the next epoch
 *   REMOVE     it withdrew, or its lease is over
 *   DRAIN      somebody wants that process away, as long as it is the same one
 *
 * Each counts the revision up by one. Threads: one owner.   Memory: at most DS_COORD_MAX_MEMBERS members. */
#ifndef DS_COORD_STATE_H
#define DS_COORD_STATE_H

#include "coord/member.h"

typedef struct {
    uint64_t revision, epoch; /* epoch: the last one given */
    uint32_t n;
    ds_coord_member *m; /* [n], by name */
} ds_coord_state;

typedef enum { DS_COORD_ANNOUNCE = 1, DS_COORD_REMOVE, DS_COORD_DRAIN } ds_coord_op_kind;

typedef struct {
    ds_coord_op_kind kind;
    ds_coord_member m; /* ANNOUNCE: all of it; REMOVE, DRAIN: name and instance */
} ds_coord_op;

void ds_coord_state_fini(ds_coord_state *s); /* back to zeros, which are an empty table */
ds_coord_member *ds_coord_state_find(const ds_coord_state *s, const char *name);

/* Whether the operation would change something, and may. DS_E_ARG: it may not; DS_E_AGAIN: the table is full;
 * DS_E_CANCELED: it is about a process that isn't there, or changes nothing. */
ds_rc ds_coord_state_may(const ds_coord_state *s, const ds_coord_op *op, ds_err *err);
/* Applies it; DS_E_NOMEM changes nothing. Otherwise as _may. */
ds_rc ds_coord_state_apply(ds_coord_state *s, const ds_coord_op *op, ds_err *err);

void ds_coord_put_op(ds_buf *b, uint64_t revision, const ds_coord_op *op); /* revision: that it leads to */
/* Reads and applies one of those; one that is in the table already is skipped. DS_E_FORMAT, DS_E_NOMEM. */
ds_rc ds_coord_read_op(ds_coord_state *s, const uint8_t *p, size_t n, ds_err *err);
void ds_coord_put_state(ds_buf *b, const ds_coord_state *s);
/* DS_E_FORMAT, DS_E_NOMEM; then *s is as it was. */
ds_rc ds_coord_read_state(ds_coord_state *s, const uint8_t *p, size_t n, ds_err *err);

#endif
