/* The window pool: saved window states for minutes, in memory of the host that made them.
 *
 * One copy of each, in slots of one size, under the key that its block's key leads to (kv/chain.h). One process owns
 * the pool; any other of the host maps it, finds a state and copies it out without telling anybody. The directory says
 * key -> (host, slot, generation): a slot gets a new generation with every state that is put into it, and who copied
 * looks at it again afterwards and takes the checksum of the copy, so that a state that went meanwhile is a miss and
 * never a wrong byte. Another host's slots are read by sending it the place: it does the same `read` and answers with
 * the bytes.
 *
 * A state goes when its time is over (a timer wheel), or when its slot is needed: the one whose time ends first. Losing
 * one costs a replay, never the blocks.
 *
 * Threads: put, touch and tick one at a time, by the owner; find and read from any thread of any process.   Memory:
 * slots x slot_bytes of shared memory, used as it fills; about 150 bytes a slot besides. Others' mappings are
 * read-only, and the files are sealed against writing. */
#ifndef DS_KVSTORE_WINPOOL_H
#define DS_KVSTORE_WINPOOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "kv/key.h"

typedef struct ds_winpool ds_winpool;

enum { DS_WINPOOL_MAX_SLOTS = 1 << 24 };

typedef struct {
    uint32_t host;       /* number of this one, below 2^20 */
    uint32_t slots;      /* 1 .. DS_WINPOOL_MAX_SLOTS */
    uint64_t slot_bytes; /* of a state: a multiple of 8 */
    uint64_t ttl_ns;     /* 0: 180 s */
} ds_winpool_opts;

/* Where a state is and what it must be. */
typedef struct {
    uint32_t host, slot, crc;
    uint64_t generation;
    bool approx; /* rests on a replay */
} ds_winpool_place;

typedef struct {
    uint64_t slots, used, bytes;             /* bytes: of a slot */
    uint64_t put, known, expired, displaced; /* states put; there already; whose time was over; whose slot was needed */
    uint64_t hits;                           /* uses that were noted */
} ds_winpool_stats;

/* DS_E_ARG, DS_E_NOMEM; DS_E_IO: no shared memory. */
ds_rc ds_winpool_create(ds_winpool **out, const ds_winpool_opts *o, ds_err *err);
/* Maps another process's: its two descriptors, which stay the caller's. DS_E_FORMAT: they lead to no pool. */
ds_rc ds_winpool_attach(ds_winpool **out, const int fd[2], ds_err *err);
void ds_winpool_destroy(ds_winpool *p); /* NULL is fine */
/* For attach: valid until destroy. [owner] */
void ds_winpool_fds(const ds_winpool *p, int fd[2]);
uint64_t ds_winpool_slot_bytes(const ds_winpool *p);

/* False: there is none, or with `exact` one that rests on a replay. O(1). */
bool ds_winpool_find(const ds_winpool *p, const ds_key *key, bool exact, ds_winpool_place *at);
/* Its bytes into out [slot_bytes]. False: it went, or is another host's; out holds anything then. */
bool ds_winpool_read(const ds_winpool *p, const ds_winpool_place *at, uint8_t *out);

/* ---- the owner ---- */

/* Keeps a state for its time from now on. One that is there already stays, but an exact one takes the place of one
 * that rests on a replay. `bytes` may be memory that another process writes to: what is in the slot is what counts. */
void ds_winpool_put(ds_winpool *p, const ds_key *key, const uint8_t *bytes, bool approx, uint64_t now_ns);
/* It was used: its time begins anew. False: it is gone. */
bool ds_winpool_touch(ds_winpool *p, const ds_key *key, uint64_t now_ns);
/* Drops what has lived long enough; to be called now and then. */
void ds_winpool_tick(ds_winpool *p, uint64_t now_ns);
void ds_winpool_stat(const ds_winpool *p, ds_winpool_stats *out);

#endif
