/* An engine's functions for sequences that leave and come (engine/engine.h), as a host uses them (cluster/host.h).
 *
 * What comes waits for its turn outside of the engine's KV, and may take as much again; more is refused with
 * DS_E_AGAIN.
 *
 * Threads: any.   Memory: a few words a sequence. */
#ifndef DS_ROLE_HANDING_H
#define DS_ROLE_HANDING_H

#include "cluster/host.h"
#include "engine/engine.h"

typedef struct ds_handing ds_handing;

/* The engine has `handoff`, and outlives it. DS_E_NOMEM. */
ds_rc ds_handing_create(ds_handing **out, ds_engine *e, ds_err *err);
ds_host_handoff ds_handing_fns(ds_handing *x);
/* After the host. What came and waits keeps what it needs. NULL is fine. */
void ds_handing_destroy(ds_handing *x);

#endif
