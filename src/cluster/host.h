/* Engines of this process for other processes: the other side of cluster/remote.h.
 *
 *   ds_host_start   listens and answers, on threads of its own
 *   ds_host_drain   no new requests; true once all are ended
 *   ds_host_stop    sends everybody away
 *
 * What a peer asks for belongs to that peer: when it goes, its requests are canceled, and nothing of them is left once
 * the engine has said so. A peer that doesn't read what it is told is cut off, and so is one that says anything
 * malformed; nothing of that reaches an engine. Nobody gets anything before the HELLO that fits.
 *
 * A request's grammar is made on a thread of the host's, so that a peer's orders never wait behind one.
 *
 * The host polls the generator; nobody else may. Threads: one that accepts, one that polls, two that make grammars, one
 * a peer.   Locks: `mu`; under it only a connection's own.   Memory: a request's message as long as it lives. */
#ifndef DS_CLUSTER_HOST_H
#define DS_CLUSTER_HOST_H

#include <ds/gen.h>

#include "base/log.h"
#include "cluster/wire.h"
#include "net/conn.h"

typedef struct ds_host ds_host;

/* Zero means the default that is named. */
typedef struct {
    ds_cw_engine self;
    uint32_t hidden;      /* floats of a picture's row */
    uint32_t max_peers;   /* 64 */
    uint32_t max_waiting; /* requests that wait for their grammars; 256 */
    uint32_t stats_ms;    /* between statistics; 250 */
    ds_conn_opts conn;
    /* A grammar from ds_gen_grammar.what, that has seen the `n_seen` tokens; NULL: requests with one are refused. *held
     * goes to end when the request is over. From several threads at once. */
    ds_rc (*grammar)(void *ctx, ds_gen_grammar *out, void **held, ds_str what, uint32_t samples, const ds_token *seen, uint32_t n_seen,
                     ds_err *err);
    void (*grammar_end)(void *ctx, void *held);
    void *ctx;
    const ds_log *log; /* NULL: silent */
} ds_host_opts;

/* DS_E_ARG: the address; DS_E_AGAIN: somebody listens there; DS_E_IO, DS_E_NOMEM. */
ds_rc ds_host_start(ds_host **out, const char *address, ds_gen gen, const ds_host_opts *o, ds_err *err);
const char *ds_host_address(const ds_host *h); /* with the port that it got */
bool ds_host_drain(ds_host *h);

typedef struct {
    uint32_t peers, requests;
    uint64_t accepted, refused; /* connections; refused: malformed ones and strangers among them */
} ds_host_stats;
ds_host_stats ds_host_stat(ds_host *h);

/* Before the generator is destroyed: its requests are canceled and waited for. NULL is fine. */
void ds_host_stop(ds_host *h);

#endif
