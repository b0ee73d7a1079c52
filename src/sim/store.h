/* What a KV store would still have: lengths of prefixes, with their last use.
 *
 * An entry is a text's prefix (of a session, of a shared beginning) or a block of a trace. What was used the longest
 * ago goes first where bytes are short; what was used longer ago than the time to live of its class is gone. Only
 * lengths are kept, no bytes.
 *
 * Threads: one owner.   Memory: 56 bytes an entry.   Cost: O(1), and O(what it throws out). */
#ifndef DS_SIM_STORE_H
#define DS_SIM_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum { DS_SIM_CLASSES = 16 };

typedef struct ds_sim_store ds_sim_store;

typedef struct {
    double bytes_token;           /* of KV, > 0 */
    double capacity_bytes;        /* INFINITY: no bound */
    double ttl_s[DS_SIM_CLASSES]; /* INFINITY: for ever */
} ds_sim_store_opts;

typedef struct {
    uint64_t evicted_bytes, expired_bytes, written_bytes; /* written = evicted + expired + held */
    uint64_t held_bytes, most_bytes;
    uint64_t entries;
} ds_sim_store_sum;

/* On success *out owns the store, else *out is NULL. DS_E_NOMEM. */
ds_rc ds_sim_store_create(ds_sim_store **out, const ds_sim_store_opts *o, ds_err *err);
void ds_sim_store_destroy(ds_sim_store *s);

/* Tokens that are there under a key; they count as used. idle_ns: since the last use. 0: none. */
uint64_t ds_sim_store_get(ds_sim_store *s, uint64_t key, uint64_t now_ns, uint64_t *idle_ns);
/* `tokens` are there under a key from now on, unless more were; they count as used. False: out of memory. */
bool ds_sim_store_put(ds_sim_store *s, uint64_t key, uint32_t class, uint64_t tokens, uint64_t now_ns);
ds_sim_store_sum ds_sim_store_sums(const ds_sim_store *s);

#endif
