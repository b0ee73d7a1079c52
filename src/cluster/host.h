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
 * Where its engine hands sequences over (ds_host_handoff), a request may leave it behind its first token, under a
 * ticket (cluster/handoff.h) that belongs to the peer that asked for it, and other engines take it; and a request may
 * go on with what another engine has of it, which this one takes there (cluster/taker.h). Else such requests are
 * refused.
 *
 * The host polls the generator; nobody else may. Threads: one that accepts, one that polls, two that make grammars,
 * four that take sequences, one a peer.   Locks: `mu`; under it only a connection's own and the tickets'.   Memory: a
 * request's message as long as it lives. */
#ifndef DS_CLUSTER_HOST_H
#define DS_CLUSTER_HOST_H

#include <ds/gen.h>

#include "base/log.h"
#include "cluster/wire.h"
#include "net/conn.h"

typedef struct ds_host ds_host;

/* How sequences leave the generator and come to it: the generator's engine's functions (engine/engine.h). NULL: they
 * don't. */
typedef struct {
    ds_rc (*begin)(void *ctx, uint64_t id, void **held, ds_err *err); /* this request leaves; right after add */
    /* Its request ended: what left, until end(held). Not DS_OK: it ended otherwise. */
    ds_rc (*left)(void *ctx, void *held, const uint8_t **record, size_t *n_record, const uint8_t **blocks, size_t *n_blocks);
    void (*end)(void *ctx, void *held); /* from any thread */
    /* As add, for one that left elsewhere; DS_OK: taken is the callee's, for ds_taken_free(p, n_record + n_blocks). */
    ds_rc (*come)(void *ctx, const ds_gen_request *q, const uint8_t *p, size_t n_record, size_t n_blocks, uint64_t *id, ds_err *err);
    uint64_t most; /* bytes that one may take */
    void *ctx;
} ds_host_handoff;

/* Zero means the default that is named. */
typedef struct {
    ds_cw_engine self;
    ds_host_handoff handoff;
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
    uint32_t peers, requests, tickets;
    uint64_t accepted, refused; /* connections; refused: malformed ones and strangers among them */
} ds_host_stats;
ds_host_stats ds_host_stat(ds_host *h);

/* Before the generator is destroyed: its requests are canceled and waited for. NULL is fine. */
void ds_host_stop(ds_host *h);

#endif
