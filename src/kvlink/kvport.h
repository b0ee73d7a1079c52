/* A KV store (ds/kvstore.h) as an engine's store (engine/store.h).
 *
 * Between the engine's loop, which may neither wait nor take memory, and the store, which does both, stands a thread
 * for each engine. The buffers of the engine's stage memory are kept like host memory: what was read or is to be
 * written stays in its buffer, findable, until the buffer is needed for something else (engine/tier.h). Blocks are
 * written in the order in which they were committed, a chain's blocks together; a text's window states go to a store
 * of their own, since they are of another size.
 *
 * Threads: as engine/store.h has it.   Memory: taken in attach, by what the engine has. */
#ifndef DS_KVLINK_KVPORT_H
#define DS_KVLINK_KVPORT_H

#include <ds/kvstore.h>

#include "engine/store.h"

typedef struct ds_kvport ds_kvport;

/* For one engine, which must be gone before destroy; the stores outlive the port, and several ports may share them.
 * brief: states that aren't needed for a hit go to the memory of the store's process only (ds_kvstore_save_req). */
ds_rc ds_kvport_create(ds_kvport **out, ds_kvstore *blocks, ds_kvstore *states, bool brief, ds_err *err);
void ds_kvport_destroy(ds_kvport *p); /* NULL is fine */
ds_store ds_kvport_store(ds_kvport *p);

#endif
