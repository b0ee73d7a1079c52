/* The KV store of the engines of this process: local directories, `--kv-dir`, or a kvd, `--kv`.
 *
 * Blocks lie in the directories themselves, window states in a store of their own in their subdirectories "states".
 * One process has them open at a time. A kvd serves several: it has window states in its memory for minutes, and on its
 * devices too those that a hit needs (exact mode, greedy and seeded requests).
 * Threads: open and close; the ports' engines do the rest.   Memory: the stores' own. */
#ifndef DS_KVLINK_KVDIR_H
#define DS_KVLINK_KVDIR_H

#include <ds/kvstore.h>

#include "engine/engine.h"
#include "kv/layout.h"
#include "kvlink/kvport.h"

typedef struct {
    const char *address;     /* of a kvd, "unix:PATH"; NULL: directories */
    const char *const *dirs; /* made where they aren't there */
    uint32_t n_dirs;
    uint32_t n_ports;                   /* 1..DS_KVDIR_PORTS */
    uint64_t capacity_bytes;            /* of all files together; 0: no bound */
    const ds_engine_identity *identity; /* nothing in it may be zeros: keys would be good in one process only */
    const ds_kv_layout *layout;         /* ds_engine_kv_layout */
} ds_kvdir_opts;

enum { DS_KVDIR_PORTS = 64 };
typedef struct {
    ds_kvstore *blocks, *states;
    ds_kvport *port[DS_KVDIR_PORTS];
    ds_store store[DS_KVDIR_PORTS]; /* [n_ports] one for each engine: ds_engine_opts.store */
    uint32_t n_ports;
} ds_kvdir;

/* DS_E_ARG: an address, an identity with zeros, a capacity that is too small. DS_E_AGAIN: another process has it
 * open. DS_E_IO, DS_E_FORMAT, DS_E_NOMEM. */
ds_rc ds_kvdir_open(ds_kvdir *out, const ds_kvdir_opts *o, ds_err *err);
void ds_kvdir_close(ds_kvdir *d); /* after the engines. Zeros are fine */

#endif
