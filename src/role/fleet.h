/* The engines of an entry, as the coord of its cluster names them: they come and go while requests run.
 *
 * An engine that is named and takes work is connected to. One that isn't named any more goes when its connection is
 * gone too: what works is never cut because of what the coord says, or doesn't. An engine that promises a shorter
 * context than those of the start isn't taken, and the log says so.
 *
 * Threads: open and close from one; one of its own, and those of the tie (coord/coord.h) and of the remotes.   Locks:
 * `mu`; nothing is called with it.   Memory: DS_GEN_MANY_MAX remotes. */
#ifndef DS_ROLE_FLEET_H
#define DS_ROLE_FLEET_H

#include <ds/gen.h>

#include "cluster/remote.h"
#include "coord/coord.h"

typedef struct ds_fleet ds_fleet;

typedef struct {
    const char *coord; /* address */
    const ds_remote_opts *remote;
    uint32_t wait_ms; /* for a first engine to be there; 0 = 60000 */
    const ds_log *log;
} ds_fleet_opts;

/* Role by which engines are known that take whole requests. */
bool ds_fleet_is_engine(const ds_coord_member *m);

/* Waits for the coord and a first engine. DS_E_IO: none within the time; DS_E_ARG: the address. */
ds_rc ds_fleet_open(ds_fleet **out, const ds_fleet_opts *o, ds_err *err);
/* All engines as one; until close. */
ds_gen_many *ds_fleet_many(ds_fleet *f);
/* No engine comes or goes any more, and the remotes are closed: no event of theirs comes. */
void ds_fleet_stop(ds_fleet *f);
void ds_fleet_close(ds_fleet *f); /* stops it if need be, and frees what _many gave. NULL is fine */

#endif
