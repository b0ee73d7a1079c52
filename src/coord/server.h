/* The coord itself: who is in the cluster, told to everybody who watches.
 *
 * A process says what it is and keeps its lease by saying how busy it is; a name whose lease is over goes. A name
 * belongs to one process: another one gets it when that one's connection is gone. All but how busy a process is goes
 * into the journal before anybody hears of it, and after a restart every lease is as fresh as it can be: nobody goes
 * because the coord was away.
 *
 * It knows who is there, not what they compute: nothing waits for it but status pages (coord/coord.h).
 *
 * Threads: one of its own, and one a connection.   Locks: `mu`; under it the journal's disk and a connection's own.
 * Memory: DS_COORD_MAX_MEMBERS members, max_peers connections. */
#ifndef DS_COORD_SERVER_H
#define DS_COORD_SERVER_H

#include "base/log.h"
#include "coord/journal.h"
#include "net/conn.h"

typedef struct ds_coord_server ds_coord_server;

/* Zero means the default that is named. */
typedef struct {
    uint32_t ttl_ms;    /* a lease; 10000 */
    uint32_t max_peers; /* 2048 */
    ds_conn_opts conn;
    const ds_log *log; /* NULL: silent */
} ds_coord_server_opts;

/* Reads the journal "coord.journal" of that disk, which must outlive it, and listens at the address (net/addr.h).
 * DS_E_AGAIN: somebody listens there; DS_E_FORMAT: the journal; DS_E_ARG, DS_E_IO, DS_E_NOMEM. */
ds_rc ds_coord_server_start(ds_coord_server **out, const char *address, const ds_disk *disk, const ds_coord_server_opts *o, ds_err *err);
const char *ds_coord_server_address(const ds_coord_server *s); /* with the port that it got */
void ds_coord_server_stop(ds_coord_server *s);                 /* NULL is fine */

#endif
