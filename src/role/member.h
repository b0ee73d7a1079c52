/* A process as a member of its cluster: it says what it is and how busy, several times a second to its tie
 * (coord/coord.h), and hears that it is wanted away.
 *
 * Threads: open and close from one; one of its own, which looks. Nothing waits for the coord. */
#ifndef DS_ROLE_MEMBER_H
#define DS_ROLE_MEMBER_H

#include "coord/coord.h"

typedef struct ds_member ds_member;

typedef struct {
    const char *coord, *name, *role; /* borrowed while it opens */
    const char *address;             /* where the process listens: unix:PATH, HOST:PORT, http://… */
    const uint8_t *model;            /* [32] digest of what engines and entries must have in common; NULL: none */
    /* How it is now: state, live, kv_used and kv_total of *m, which has what it was. */
    void (*look)(void *ctx, ds_coord_member *m);
    void (*drain)(void *ctx); /* it is wanted away: called once */
    void *ctx;
    const ds_log *log;
} ds_member_opts;

/* DS_E_ARG: the coord's address or the name; DS_E_IO, DS_E_NOMEM. */
ds_rc ds_member_open(ds_member **out, const ds_member_opts *o, ds_err *err);
void ds_member_close(ds_member *m); /* takes back what it said. NULL is fine */

#endif
