/* A generator in another process: what ds/gen.h promises, over a connection to an engine process (cluster/host.h).
 *
 *   ds_remote_open     connects, and from then on stays connected: when the engine goes, what it had ends with
 *                      DS_ENDED_LOST, add says DS_E_IO, and it is tried again until it is back
 *   ds_remote_gen      the generator
 *   ds_remote_close
 *
 * An engine of another model is refused, or with other weights than its family's, at the start and when it comes back.
 * An engine that says anything malformed, a token twice or out of order, or an event of a request that it doesn't
 * have, is cut off like one that is gone.
 *
 * The bytes of requests are copied into a message, pictures too; a grammar goes as what it is made from, and without
 * that (ds_gen_grammar.what) the request is refused with DS_E_ARG. ds_gen_drain ends nothing for others: it stops what
 * comes from here.
 *
 * Threads: as ds/gen.h; one that connects, one of the connection.   Locks: `mu`, nothing is called with it.   Memory:
 * a record a live request and events that aren't polled. */
#ifndef DS_CLUSTER_REMOTE_H
#define DS_CLUSTER_REMOTE_H

#include <ds/gen.h>

#include "base/log.h"
#include "cluster/family.h"
#include "net/conn.h"

typedef struct ds_remote ds_remote;

/* Zero means the default that is named. */
typedef struct {
    ds_cw_model model; /* that the engine must serve */
    ds_family *family; /* it must be one of these engines; NULL: of any. Outlives the remote */
    uint32_t hidden;   /* floats of a picture's row */
    uint32_t wait_ms;  /* for the engine at the start; 10000 */
    uint32_t retry_ms; /* between attempts when it is gone; 200 */
    ds_conn_opts conn;
    const ds_log *log; /* NULL: silent */
} ds_remote_opts;

/* DS_E_IO: nobody answers within wait_ms; DS_E_ARG: the address, or an engine of another model; DS_E_FORMAT: what
 * answers is no engine; DS_E_NOMEM. */
ds_rc ds_remote_open(ds_remote **out, const char *address, const ds_remote_opts *o, ds_err *err);
ds_gen ds_remote_gen(ds_remote *r);
/* What its process is for; constant. */
ds_cw_role ds_remote_role(const ds_remote *r);
bool ds_remote_ready(ds_remote *r); /* it is there and takes requests */
/* Names what a request of its handed over (ds_event.end.ticket), as long as r is open and the engine the same
 * process. */
ds_gen_from ds_remote_from(ds_remote *r, uint64_t ticket);
void ds_remote_forget(ds_remote *r, uint64_t epoch, uint64_t ticket); /* nobody wants it any more */
/* Its requests are canceled over there; no event of them comes any more. NULL is fine. */
void ds_remote_close(ds_remote *r);

#endif
