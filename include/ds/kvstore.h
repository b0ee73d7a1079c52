/* The KV-cache store as a library: blocks of cached KV that outlive the process.
 *
 * A block is found by its key, which says everything that its bytes depend on; it is never changed, and it counts
 * only while the block in front of it does, so that what is known of a chain is always a prefix of it. A match is a
 * promise to try: between it and the fetch blocks may go. A fetch gives right bytes or says why not. Whoever uses a
 * store can always compute instead.
 *
 * Threads: any function from any thread. Callbacks come from threads of the store, without any lock held, and may
 * call match, fetch, save and cancel.   Memory: bounded by the options; DS_E_AGAIN where a bound is reached. */
#ifndef DS_KVSTORE_H
#define DS_KVSTORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ds/err.h>
#include <ds/key.h>

typedef struct ds_kvstore ds_kvstore;

/* How long a block is kept after its last use. */
typedef enum {
    DS_KVSTORE_AGENT, /* 3 days */
    DS_KVSTORE_CHAT,  /* 7 days */
    DS_KVSTORE_CLASSES,
} ds_kvstore_class;

/* What the user's blocks are of: the identity that its keys begin with, and what the bytes of a block are. */
typedef struct {
    uint8_t model[32], tokenizer[32], dialect[32]; /* as in docs/formats/block-key.md; none of them zeros */
    const uint8_t *layout;                         /* canonical bytes, docs/formats/kv-block.md; borrowed by open */
    size_t layout_bytes;
} ds_kvstore_user;

typedef struct {
    const char *const *dirs; /* a device each, or a pool of Ceph: see below; borrowed by open */
    uint32_t n_dirs;
    uint32_t k, m;                      /* erasure code; k = 0: as the store has it, a new one gets the default for n_dirs */
    uint64_t capacity_bytes;            /* of all files together, never exceeded; 0: no bound */
    uint64_t segment_bytes;             /* 0: 256 MiB, in a pool 32 MiB; less where the capacity is small */
    uint32_t max_blocks;                /* that the index has room for; 0: by capacity and block, 4 Mi at most */
    uint32_t readers;                   /* threads that fetch; 0: 4, for a pool 16 */
    uint32_t max_fetches, max_saves;    /* that may wait or run at a time; 0: 256 */
    uint64_t ttl_s[DS_KVSTORE_CLASSES]; /* 0: 3 days, 7 days */
    const ds_kvstore_user *user;        /* NULL: for looking after the store; match, fetch and save are refused */
    bool read_only;                     /* nothing on the devices is changed */
} ds_kvstore_opts;

/* A pool of Ceph is "rados://POOL[/NAMESPACE][?conf=FILE][&id=NAME]", %XX standing for a byte, and it is all of a
 * store's places. Whether places are so, as far as words tell. DS_E_ARG. */
ds_rc ds_kvstore_check_places(const char *const *places, uint32_t n, ds_err *err);
bool ds_kvstore_in_pool(const char *place);
/* The place for another store by the side of a place's: a directory of that name in it, which is made, or a namespace.
 * *out is a string to free. DS_E_IO, DS_E_NOMEM. */
ds_rc ds_kvstore_place_below(char **out, const char *place, const char *name, ds_err *err);

/* Opens the directories, making a new store of empty ones, and learns what is there. DS_E_ARG: options; an identity
 * with zeros in it, whose keys are good in one process only. DS_E_FORMAT, DS_E_IO, DS_E_NOMEM. DS_E_AGAIN: another
 * process has the store open. */
ds_rc ds_kvstore_open(ds_kvstore **out, const ds_kvstore_opts *o, ds_err *err);
/* Connects to a store that another process serves ("unix:PATH"); user NULL: to look after it. When the connection is
 * lost, what is under way ends (DS_KVSTORE_LOST, DS_KVSTORE_FAILED), nothing matches, and twice a second it is tried
 * again. DS_E_ARG: the address; the store refused, its words in the message. DS_E_IO: nobody listens. */
ds_rc ds_kvstore_connect(ds_kvstore **out, const char *address, const ds_kvstore_user *user, ds_err *err);
/* Waits for saves that were accepted, cancels fetches. No callback comes after it. NULL is fine. */
void ds_kvstore_close(ds_kvstore *s);

/* How many leading blocks of a chain are there, with `exact` only of those that rest on no replay: keys[0] is that of
 * its first block. O(log n), no I/O. */
uint32_t ds_kvstore_match(ds_kvstore *s, const ds_key *keys, uint32_t n, bool exact);

/* Why a block wasn't given. */
typedef enum {
    DS_KVSTORE_HIT,
    DS_KVSTORE_ABSENT,  /* no such key, or no more */
    DS_KVSTORE_LAYOUT,  /* it is of another layout or size */
    DS_KVSTORE_GONE,    /* collected between look-up and reading */
    DS_KVSTORE_IO,      /* too few devices answered */
    DS_KVSTORE_CORRUPT, /* too few of its parts are what they should be */
    DS_KVSTORE_LATE,    /* the deadline passed */
    DS_KVSTORE_CANCELED,
    DS_KVSTORE_BUSY, /* a bound of the store's process is reached */
    DS_KVSTORE_LOST, /* the store's process is gone */
    DS_KVSTORE_CAUSES,
} ds_kvstore_cause;
const char *ds_kvstore_cause_name(ds_kvstore_cause c); /* "hit", "absent" … */

typedef struct {
    uint32_t n;             /* leading blocks that are in their buffers, each verified; the other buffers hold anything */
    uint32_t exact;         /* of these, leading ones that rest on no replay */
    ds_kvstore_cause cause; /* of block n, DS_KVSTORE_HIT when all came */
    uint64_t ns;            /* from the call to the end */
    const uint32_t *crc;    /* [n] CRC32C of each; valid during the call */
} ds_kvstore_fetched;

typedef struct {
    const ds_key *keys;     /* [n] consecutive blocks of a chain; copied */
    uint8_t *const *blocks; /* [n] where each goes; the pointers are copied, the buffers are the store's until done */
    uint32_t n;
    uint64_t deadline_ns; /* CLOCK_MONOTONIC; 0: in 5 s */
    void (*done)(void *ctx, const ds_kvstore_fetched *r);
    void *ctx;
} ds_kvstore_fetch_req;
/* Begins to fetch. `done` comes exactly once if it returns DS_OK, perhaps before it returns. DS_E_AGAIN: too many are
 * under way; DS_E_ARG. */
ds_rc ds_kvstore_fetch(ds_kvstore *s, const ds_kvstore_fetch_req *r, uint64_t *ticket, ds_err *err);
/* Makes a fetch end as soon as nothing writes to its buffers any more. False: it has ended or ends by itself. */
bool ds_kvstore_cancel(ds_kvstore *s, uint64_t ticket);

typedef enum {
    DS_KVSTORE_SAVED,  /* all are durable and can be found */
    DS_KVSTORE_ORPHAN, /* the block in front of the first isn't there (any more): nothing was saved */
    DS_KVSTORE_FULL,   /* the capacity is reached, and nothing can be dropped for it */
    DS_KVSTORE_FAILED, /* too few devices took it, or the store's process is gone; none of it counts that didn't before */
} ds_kvstore_saved;

typedef struct {
    const ds_key *keys;           /* [n] consecutive blocks; copied */
    const uint8_t *const *blocks; /* [n]; the pointers are copied, the bytes are borrowed until done */
    uint32_t n;
    ds_key parent;  /* of keys[0]: the key in front of it, for the chain's first block the chain's ns */
    uint32_t depth; /* blocks of the chain in front of keys[0] */
    uint32_t exact; /* leading ones that rest on no replay; n: all */
    ds_kvstore_class klass;
    const char *tenant; /* whose they are, for forget; NULL: nobody's; copied */
    bool brief;         /* window states (a layout without parts) of a store that another process serves: in its memory, for minutes */
    void (*done)(void *ctx, ds_kvstore_saved r);
    void *ctx;
} ds_kvstore_save_req;
/* Begins to save; blocks that are there already are not written again (an exact one replaces one that isn't). `done`
 * comes exactly once if it returns DS_OK. DS_E_AGAIN: too many are under way; DS_E_ARG. */
ds_rc ds_kvstore_save(ds_kvstore *s, const ds_kvstore_save_req *r, ds_err *err);

/* Says that a prefix was used without being fetched, so that it isn't the next to go. */
void ds_kvstore_touch(ds_kvstore *s, const ds_key *keys, uint32_t n);

/* ---- looking after it ---- */

enum { DS_KVSTORE_HIST = 12 }; /* bucket i: less than 4^i seconds and not less than 4^(i-1); the last also what is above */
typedef struct {
    uint64_t blocks, max_blocks, bytes, capacity; /* capacity 0: no bound */
    uint64_t restored; /* blocks that were known at once when it was opened: from the checkpoint of a clean stop */
    uint64_t segments, devices, bad_devices, k, m;
    uint64_t hits, misses[DS_KVSTORE_CAUSES];     /* blocks fetched, and not fetched by cause */
    uint64_t matches, matched, asked;             /* calls; blocks found; blocks asked for */
    uint64_t saved, known, orphans, full, failed; /* blocks: written, there already, refused by result */
    uint64_t expired, evicted, moved, forgotten;  /* blocks that were dropped or copied by collection */
    uint64_t hedged, decoded;                     /* fetched blocks that waited for a slow device; that were put together from parity */
    uint64_t bad_shards;                          /* parts of blocks that weren't what they should be */
    uint64_t repairs;                             /* segments that were rewritten for that, or for a disk that was replaced */
    uint64_t incomplete;                          /* segments that lack a part which a device could have: they are rewritten one by one */
    uint64_t pins;                                /* fetches and saves under way */
    /* Phases of fetches, sums over blocks: look-up; waiting for a thread; for devices; computing what a device didn't
     * give; checksums; copying. Of a store that another process serves, the last two have also this process's share. */
    uint64_t lookup_ns, queue_ns, device_ns, decode_ns, verify_ns, copy_ns;
    uint64_t lifetime[DS_KVSTORE_HIST];  /* blocks that left, by the time since they were saved, of those that were saved since the start */
    uint64_t reuse_gap[DS_KVSTORE_HIST]; /* fetched blocks, by the time since their last use */
    /* window states in memory: there; that there is room for; bytes of each; put; uses; whose time was over; whose place was needed */
    uint64_t windows, max_windows, window_bytes, window_puts, window_hits, window_expired, window_displaced;
} ds_kvstore_stats;
/* A store in this process can always be asked; another one may be gone: DS_E_IO, DS_E_FORMAT, and zeros. */
ds_rc ds_kvstore_stat(ds_kvstore *s, ds_kvstore_stats *out, ds_err *err);

typedef struct {
    uint64_t checked, bad, repaired; /* blocks: looked at; that can't be given any more; whose parts were written anew */
} ds_kvstore_check;
enum { DS_KVSTORE_REPAIR = 1, DS_KVSTORE_SLOWLY = 2, DS_KVSTORE_USE = 4 };
/* Reads every block, all parts of it, with DS_KVSTORE_SLOWLY in `how` at 64 MiB/s, and with DS_KVSTORE_USE as a use.
 * What can't be given any more is forgotten; with DS_KVSTORE_REPAIR what has wrong or missing parts is written anew.
 * DS_E_CANCELED: *stop became true (NULL: it never does); DS_E_IO. */
ds_rc ds_kvstore_verify(ds_kvstore *s, unsigned how, const volatile bool *stop, ds_kvstore_check *out, ds_err *err);

/* Drops all that was saved with this tenant's name, from the devices too: it is gone when this returns DS_OK. *n:
 * blocks. DS_E_AGAIN: no room to copy what shares segments with it. */
ds_rc ds_kvstore_forget(ds_kvstore *s, const char *tenant, uint64_t *n, ds_err *err);

typedef struct {
    ds_key key, parent;
    uint64_t segment;
    uint32_t depth, block_bytes, tenant; /* tenant: first 4 bytes of the SHA-256 of its name, 0: nobody's */
    ds_kvstore_class klass;
    bool exact;
    int64_t used_s; /* Unix time of its last use */
} ds_kvstore_item;
/* Calls fn for every block, in no order; it may be called for what goes or comes meanwhile. fn false: stop. Errors as
 * of stat. */
ds_rc ds_kvstore_list(ds_kvstore *s, bool (*fn)(void *ctx, const ds_kvstore_item *item), void *ctx, ds_err *err);

#endif
