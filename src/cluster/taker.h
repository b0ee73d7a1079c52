/* Takes a sequence from the engine process that handed it over: its bytes, over a connection of its own.
 *
 * The other side keeps them until it hears that they were taken. A taking that is given up, or whose process ends,
 * leaves them there for somebody else.
 *
 * Threads: ds_take waits; `stop` may be set from any thread.   Memory: the bytes, mapped; only what came takes some. */
#ifndef DS_CLUSTER_TAKER_H
#define DS_CLUSTER_TAKER_H

#include <stdatomic.h>

#include "cluster/wire.h"
#include "net/conn.h"

typedef struct {
    const ds_cw_model *model;
    const ds_gen_from *from;
    uint64_t most;           /* bytes that are taken at most */
    uint32_t silence_ms;     /* so long without anything that came is a failure; 0 = 2000 */
    const atomic_bool *stop; /* NULL: nobody stops it */
} ds_take_opts;

typedef struct ds_taking ds_taking;
typedef struct {
    ds_taking *how; /* the connection, until ds_take_end */
    uint8_t *p;     /* [n_record + n_blocks], mapped */
    size_t n_record, n_blocks;
} ds_taken;

/* Waits for all of it. DS_E_IO: nobody is there, it is another process than the one that had it, or it is silent;
 * DS_E_ARG: of another model, or the ticket is over; DS_E_FORMAT; DS_E_NOMEM, also where it is more than `most`;
 * DS_E_CANCELED: stopped. On failure nothing is held. */
ds_rc ds_take(ds_taken *t, const ds_take_opts *o, ds_err *err);
/* Ends it. taken: the other side may forget it. The bytes are the caller's: ds_taken_free. */
void ds_take_end(ds_taken *t, bool taken);
void ds_taken_free(const uint8_t *p, size_t n); /* NULL is fine */

#endif
