/* A store that other processes use: a Unix socket, the index and slots in shared memory.
 *
 * Whoever connects owns what it asks for: when it goes, by closing or by dying, its fetches are cancelled, its saves
 * end, and its slots are given back. All engines that are connected have one layout; another one is refused by name.
 *
 * Threads: run from one, stop from anywhere, also a signal handler.   Memory: bounded by the number of connections. */
#ifndef DS_KVSTORE_SERVER_H
#define DS_KVSTORE_SERVER_H

#include <ds/kvstore.h>

#include "base/log.h"

typedef struct ds_kvserver ds_kvserver;

typedef struct {
    ds_kvstore *store;      /* opened in this process; stays the caller's, and outlives the server */
    const char *path;       /* of the socket; one that nobody listens at is replaced */
    uint32_t max_peers;     /* connections at a time; 0: 64 */
    uint64_t window_bytes;  /* memory for window states (kvstore/winpool.h); 0: none are kept in memory */
    uint64_t window_ttl_ns; /* 0: 180 s */
    const ds_log *log;      /* may be NULL */
} ds_kvserver_opts;

/* Listens when it returns DS_OK. DS_E_ARG: the path; DS_E_AGAIN: somebody else listens there; DS_E_IO, DS_E_NOMEM. */
ds_rc ds_kvserver_open(ds_kvserver **out, const ds_kvserver_opts *o, ds_err *err);
/* Serves until stop. */
void ds_kvserver_run(ds_kvserver *s);
void ds_kvserver_stop(ds_kvserver *s);  /* may be called from a signal handler */
void ds_kvserver_close(ds_kvserver *s); /* after run; NULL is fine */

#endif
