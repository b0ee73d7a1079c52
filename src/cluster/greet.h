/* How a connection to an engine process begins: HELLO and what answers it (docs/formats/cluster.md).
 *
 * Threads: any; it waits for the engine, up to five seconds.   Memory: what the answer needs, while it is read. */
#ifndef DS_CLUSTER_GREET_H
#define DS_CLUSTER_GREET_H

#include "cluster/wire.h"

typedef struct {
    uint64_t epoch; /* the engine's */
    ds_cw_engine self;
    uint32_t n_plans; /* engines of the process */
    ds_gen_plan plans[DS_GEN_MANY_MAX];
} ds_greeting;

/* fd: connected, non-blocking; it stays the caller's. DS_E_IO: no answer; DS_E_ARG: it refuses, or is of another model;
 * DS_E_FORMAT: what answers is no engine; DS_E_NOMEM. */
ds_rc ds_greet(int fd, const ds_cw_model *model, ds_greeting *out, ds_err *err);

#endif
