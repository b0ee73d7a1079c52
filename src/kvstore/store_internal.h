/* A store in this process: one volume, its index, and the threads that work for them.
 *
 * Threads: `readers` threads fetch; one, the writer, saves, collects, repairs and is the only one that changes index
 * and volume; one watches deadlines. Lock order: mu alone or book alone, never one inside the other; no lock is held
 * during I/O or a callback. */
#ifndef DS_KVSTORE_STORE_INTERNAL_H
#define DS_KVSTORE_STORE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "kvstore/index.h"
#include "kvstore/kvstore_internal.h"

enum { DS_KVS_LAYOUTS = 256, DS_KVS_SUSPECTS = 64 };

typedef struct {
    uint8_t id[32];
    uint32_t block_bytes;
} ds_kvs_layout;

typedef struct ds_kvs_fetch {
    /* [mu] */
    bool used;
    uint32_t gen, n, next, running; /* next: first block that no thread has taken */
    uint32_t bad;                   /* first block that isn't given; n: none so far */
    ds_kvstore_cause cause;         /* of it */
    struct ds_kvs_fetch *later;     /* in the queue */
    bool queued;
    atomic_bool stop; /* set under mu, read by readers without it: a word to hurry */
    /* [const] while used */
    uint64_t begun_ns, deadline_ns;
    uint64_t use_us; /* one time for all of its blocks */
    ds_key *keys;
    ds_index_hit *hits;
    uint8_t **blocks;
    uint32_t *crc; /* filled at the end */
    size_t block_bytes;
    void (*done)(void *ctx, const ds_kvstore_fetched *r);
    void *ctx;
    void *memory;
} ds_kvs_fetch;

typedef struct ds_kvs_save {
    struct ds_kvs_save *later;
    uint32_t n, from, exact, depth, klass, layout, tenant; /* from: first block that is to be written */
    ds_key parent;
    ds_key *keys;
    const uint8_t **blocks;
    uint32_t *crc;
    ds_volume_place *place; /* of the first block of each extent */
    uint32_t n_extents, extent_blocks;
    void (*done)(void *ctx, ds_kvstore_saved r);
    void *ctx;
} ds_kvs_save;

/* Something that the writer does for another thread. */
struct ds_kvs;
typedef struct ds_kvs_job {
    struct ds_kvs_job *later;
    void (*run)(struct ds_kvs *st, void *arg);
    void *arg;
    bool done;
} ds_kvs_job;

typedef struct ds_kvs {
    ds_kvstore base; /* first */
    /* [const] */
    ds_volume *v;
    ds_index *ix;
    uint32_t n_devices;
    char **dir; /* [n_devices] where a checkpoint may be */
    uint64_t capacity, segment_bytes, run_bytes, ttl_s[DS_KVSTORE_CLASSES];
    uint32_t user_layout, max_fetches, max_saves, n_readers;
    bool read_only, has_threads;
    pthread_t *reader, writer, clock;
    ds_volume_reader *own; /* the writer's */
    /* [book] the owner's part of the index, for those who list it */
    pthread_rwlock_t book;
    /* [mu] */
    pthread_mutex_t mu;
    pthread_cond_t work, idle, more, tick, job_done; /* for readers; who waits for all to end; the writer; the clock; who gave a job */
    ds_kvs_layout layout[DS_KVS_LAYOUTS];
    uint32_t n_layouts;
    ds_kvs_fetch *fetch, *first, *last;  /* slots; queue of those with blocks that no thread has taken */
    uint32_t n_fetches, n_pins, n_saves; /* slots in use; fetches that haven't ended; saves that haven't */
    ds_kvs_save *saves, **saves_end;
    ds_kvs_job *jobs, **jobs_end;
    uint64_t suspect[DS_KVS_SUSPECTS]; /* segments to rewrite */
    uint32_t n_suspects;
    uint64_t repaired_to, repair_at_s; /* [writer] segments that lack a part: looked at up to here; not before that time */
    bool stopping, writer_stopping;
    /* [atomic] relaxed: counters, read for statistics only */
    _Atomic uint64_t count[sizeof(ds_kvstore_stats) / 8];
    _Atomic uint64_t slow_ns, median_ns; /* a read that takes longer than 95 of 100, and than half of them */
    _Atomic uint64_t last_use_us;
    _Atomic int64_t skew_s; /* what a test adds to the clock */
} ds_kvs;

static inline void ds_kvs_count(ds_kvs *st, size_t offset, uint64_t n)
{
    atomic_fetch_add_explicit(&st->count[offset / 8], n, memory_order_relaxed);
}
#define DS_KVS_COUNT(st, member, n) ds_kvs_count((st), offsetof(ds_kvstore_stats, member), (n))

/* store.c. ds_kvstore_open with a test's librados; NULL: the real one. */
ds_rc ds_kvs_open(ds_kvstore **out, const ds_kvstore_opts *o, const struct ds_rados_api *rados, ds_err *err);
/* Number of a layout, which is learned if there is room for it; DS_NONE: there is none. */
uint32_t ds_kvs_layout_of(ds_kvs *st, const uint8_t id[32], uint32_t block_bytes);
void ds_kvs_touch(ds_kvs *st, const ds_key *keys, uint32_t n);
uint32_t ds_kvs_tenant(const char *name); /* NULL: 0 */
/* Unix time in seconds, and in microseconds: the second never twice the same or less than before. */
uint64_t ds_kvs_wall_s(ds_kvs *st);
uint64_t ds_kvs_use_us(ds_kvs *st);
/* Has the writer do something and waits for it. */
void ds_kvs_run(ds_kvs *st, void (*run)(ds_kvs *st, void *arg), void *arg);

/* One more in a histogram of times. */
static inline void ds_kvs_count_time(ds_kvs *st, size_t offset, uint64_t seconds)
{
    uint32_t i = seconds ? (63 - (uint32_t)__builtin_clzll(seconds)) / 2 + 1 : 0;

    ds_kvs_count(st, offset + 8 * (i < DS_KVSTORE_HIST ? i : DS_KVSTORE_HIST - 1), 1);
}
#define DS_KVS_COUNT_TIME(st, member, s) ds_kvs_count_time((st), offsetof(ds_kvstore_stats, member), (s))

/* restart.c. Opens the volume, and enters what it has into the index. */
ds_rc ds_kvs_restart(ds_kvs *st, const ds_kvstore_opts *o, const struct ds_rados_api *rados, ds_err *err);
/* Seals the volume, and writes down what is in it where there is room. The threads have ended. */
void ds_kvs_write_checkpoint(ds_kvs *st);

/* fetch.c */
ds_rc ds_kvs_fetch_begin(ds_kvs *st, uint32_t layout, const ds_kvstore_fetch_req *r, uint64_t *ticket, ds_err *err);
bool ds_kvs_cancel(ds_kvs *st, uint64_t ticket);
void ds_kvs_cancel_all(ds_kvs *st); /* and waits for their end */
void *ds_kvs_reader(void *arg);     /* thread, of a ds_kvs_reader_arg that it frees */
void *ds_kvs_clock(void *arg);      /* thread, of a ds_kvs */
typedef struct {
    ds_kvs *st;
    ds_volume_reader *r;
} ds_kvs_reader_arg;

/* save.c */
ds_rc ds_kvs_save_begin(ds_kvs *st, uint32_t layout, const ds_kvstore_save_req *r, ds_err *err);
/* Does all of a list of saves and frees them. [writer] */
void ds_kvs_save_all(ds_kvs *st, ds_kvs_save *list);
/* Blocks in an extent at most. */
uint32_t ds_kvs_extent_blocks(const ds_kvs *st, uint32_t block_bytes);

/* tidy.c. [writer] */
/* Whether so many more bytes and blocks have room, what collection itself needs left free. */
bool ds_kvs_fits(const ds_kvs *st, uint64_t bytes, uint64_t blocks);
/* Makes room for them; false: there is none to be had. */
bool ds_kvs_room(ds_kvs *st, uint64_t bytes, uint64_t blocks);
/* What is to be done now and then: expiry, rotation, repair of one segment. */
void ds_kvs_tidy(ds_kvs *st);
typedef struct {
    uint64_t segment;
    bool (*keep)(void *ctx, const ds_index_info *block);
    void *ctx;
    size_t counter; /* offset in ds_kvstore_stats of what counts blocks that aren't kept */
    bool force;     /* what can't be read now is given up: the segment must go */
} ds_kvs_move;
/* Copies what is kept of a segment elsewhere and removes the segment. On failure it stays. DS_E_AGAIN: no room. */
ds_rc ds_kvs_evacuate(ds_kvs *st, const ds_kvs_move *m, ds_err *err);
ds_rc ds_kvs_verify(ds_kvs *st, unsigned how, const volatile bool *stop, ds_kvstore_check *out, ds_err *err);
ds_rc ds_kvs_forget(ds_kvs *st, const char *tenant, uint64_t *n, ds_err *err);

#endif
