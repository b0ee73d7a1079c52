/* Ranks on one host over shared memory.
 *
 * The segment: a head, a place for each rank, words of two rounds, and the rings with their messages. Rounds use the
 * two sets of words in turn: a rank says its word of round k + 2 only after all have said that of k + 1, and each
 * did that after it had read all words of k. */
#include "parallel/shm.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "parallel/ring_internal.h"

enum {
    VERSION = 1,
    LEAST_DEFAULT = 32 << 10,
    MOST_DEFAULT = 256 << 10,
    RINGS_BYTES = 64 << 20,
    MOST_MESSAGE = 1 << 30,
    MOST_SLOTS = 64,
    BEAT_MS = 100, /* between two signs of life */
    LOOK_MS = 200, /* a sleeper looks up, whether it was woken or not */
    SPIN_US = 20,  /* where each rank has a CPU of its own */
    PAUSES = 16,   /* between two looks at the clock */
    WHY = 232,
};
#define SEGMENT_MAGIC UINT64_C(0x31736b6e61727364)

typedef enum { PEER_NONE, PEER_JOINED, PEER_LEFT } peer_state;
typedef enum { CAUSE_DIED = 1, CAUSE_SILENT, CAUSE_LATE, CAUSE_ITSELF } cause;

typedef struct {
    uint64_t magic;
    uint32_t version, ranks, message_bytes, slots, start_ms, patience_ms, silence_ms, pad;
    uint64_t bytes;
    _Alignas(64) atomic_uint broken;       /* 0, or cause << 16 | rank: the first one wins */
    _Alignas(64) atomic_ullong arrived[2]; /* words said, of all rounds that used this set */
} head;

typedef struct {
    ds_bell bell;
    _Alignas(64) atomic_uint state;
    atomic_uint taken; /* somebody became this rank */
    atomic_uint process;
    atomic_ullong beat_ns; /* its last sign of life, on the host's monotonic clock */
    char why[WHY];         /* written before `broken` says that it failed by itself */
} place;

typedef struct {
    _Alignas(64) atomic_uint round; /* the one that these bytes were said in, its lower half */
    uint8_t bytes[DS_COMM_WORD];
} word;

typedef struct {
    uint32_t bytes;
    uint8_t pad[60];
} message;

_Static_assert(sizeof(word) == 64 && sizeof(message) == 64, "each on lines of its own");
_Static_assert(sizeof(atomic_ullong) == 8 && ATOMIC_LLONG_LOCK_FREE == 2, "shared between processes");

typedef struct {
    ds_comm base;
    /* [const] */
    head *seg;
    size_t bytes;
    place *places;
    word *words;
    uint8_t *rings;
    uint64_t spin_ns;
    pthread_t watcher;
    int stop; /* eventfd */
    bool watching;
    /* [owner] */
    uint64_t round; /* of the last word said */
    unsigned *sent; /* [ranks] messages to each */
    unsigned *got;  /* [ranks] */
    /* [atomic] */
    atomic_bool woken;  /* set by any thread; seq_cst, as the bell's words are */
    atomic_bool failed; /* `why` is written once */
    _Atomic(void (*)(void *)) broken_fn;
    void *broken_ctx; /* set before broken_fn */
} shm;

/* ---- places in the segment --------------------------------------------------------------------------------------- */

static size_t ring_bytes(const head *h)
{
    return sizeof(ds_ring) + (size_t)h->slots * (sizeof(message) + h->message_bytes);
}

static size_t segment_bytes(const head *h)
{
    size_t n = h->ranks;

    return sizeof(head) + n * sizeof(place) + 2 * n * sizeof(word) + n * n * ring_bytes(h);
}

static ds_ring *ring_of(const shm *s, uint32_t from, uint32_t to)
{
    return (ds_ring *)(void *)(s->rings + (from * (size_t)s->base.ranks + to) * ring_bytes(s->seg));
}

static message *slot_of(const shm *s, ds_ring *r, unsigned number)
{
    size_t each = sizeof(message) + s->base.message_bytes;

    return (message *)(void *)((uint8_t *)(r + 1) + number % s->seg->slots * each);
}

/* ---- the words that several change ------------------------------------------------------------------------------- */

static unsigned shared_load(atomic_uint *at)
{
    return atomic_load(at);
}

static void shared_store(atomic_uint *at, unsigned v)
{
    atomic_store(at, v);
}

static void shared_add(atomic_uint *at)
{
    atomic_fetch_add(at, 1);
}

static void shared_sleep(atomic_uint *at, unsigned seen, void *ctx)
{
    struct timespec most = { .tv_nsec = LOOK_MS * 1000000L };
    (void)ctx;

    syscall(SYS_futex, at, FUTEX_WAIT, seen, &most, NULL, 0); /* whatever ends it: the caller looks again */
}

static void shared_wake(atomic_uint *at)
{
    syscall(SYS_futex, at, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static const ds_ring_io io = { shared_load, shared_store, shared_add, shared_sleep, shared_wake };

/* ---- the end ----------------------------------------------------------------------------------------------------- */

static void break_all(shm *s, uint32_t rank, cause why)
{
    unsigned whole = 0;

    if (!atomic_compare_exchange_strong(&s->seg->broken, &whole, (unsigned)why << 16 | rank))
        return;
    for (uint32_t i = 0; i < s->base.ranks; i++) {
        shared_add(&s->places[i].bell.rings);
        shared_wake(&s->places[i].bell.rings);
    }
}

static ds_rc say_broken(const shm *s, ds_err *err)
{
    unsigned b = atomic_load(&s->seg->broken), rank = b & 0xffff;
    const place *p = &s->places[rank < s->base.ranks ? rank : 0];
    unsigned process = atomic_load_explicit(&p->process, memory_order_relaxed);
    const head *h = s->seg;

    switch ((cause)(b >> 16)) {
    case CAUSE_DIED:
        return ds_fail(err, DS_E_IO, "rank %u of %u (process %u) has ended", rank, s->base.ranks, process);
    case CAUSE_SILENT:
        return ds_fail(err, DS_E_IO, "rank %u of %u (process %u) has given no sign of life for %u ms", rank, s->base.ranks, process,
                       h->silence_ms);
    case CAUSE_ITSELF:
        return ds_fail(err, DS_E_IO, "rank %u of %u: %.*s", rank, s->base.ranks, WHY - 1, p->why);
    case CAUSE_LATE:
        if (!process)
            return ds_fail(err, DS_E_IO, "rank %u of %u didn't come up within %u s", rank, s->base.ranks, h->start_ms / 1000);
        return ds_fail(err, DS_E_IO, "rank %u of %u (process %u) kept others waiting for too long", rank, s->base.ranks, process);
    }
    return ds_fail(err, DS_E_IO, "the ranks' shared memory is damaged");
}

static ds_rc whole(const shm *s, ds_err *err)
{
    return atomic_load(&s->seg->broken) ? say_broken(s, err) : DS_OK;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* True: nothing is missing. */
static bool spin(const shm *s, ds_comm_missing_fn *missing, void *ctx)
{
    uint64_t start;

    if (missing(ctx) < 0)
        return true;
    if (s->spin_ns == 0)
        return false;
    start = ds_now_ns();
    do {
        for (int i = 0; i < PAUSES; i++) {
            pause_cpu();
            if (missing(ctx) < 0)
                return true;
        }
    } while (ds_now_ns() - start < s->spin_ns);
    return false;
}

/* most_ms 0: for any time. */
static ds_rc wait_for(shm *s, unsigned why, ds_comm_missing_fn *missing, void *ctx, uint64_t most_ms, ds_err *err)
{
    ds_bell *bell = &s->places[s->base.rank].bell;
    uint64_t until = most_ms ? ds_now_ns() + most_ms * 1000000 : UINT64_MAX;
    int who = -1;

    if (spin(s, missing, ctx))
        return whole(s, err);
    while (!atomic_load(&s->seg->broken) && (who = missing(ctx)) >= 0) {
        if (ds_now_ns() >= until) {
            break_all(s, (uint32_t)who, CAUSE_LATE);
            break;
        }
        ds_bell_sleep(bell, why, missing, ctx, &io);
    }
    return whole(s, err);
}

static ds_rc shm_wait(ds_comm *c, ds_comm_missing_fn *missing, void *ctx, ds_err *err)
{
    shm *s = (shm *)c;

    return wait_for(s, DS_BELL_ANY, missing, ctx, s->seg->patience_ms, err);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static void *shm_room(ds_comm *c, uint32_t to)
{
    shm *s = (shm *)c;
    ds_ring *r = ring_of(s, c->rank, to);

    assert(to < c->ranks && to != c->rank);
    return ds_ring_has_room(r, s->sent[to], s->seg->slots, &io) ? slot_of(s, r, s->sent[to]) + 1 : NULL;
}

static void shm_post(ds_comm *c, uint32_t to, uint32_t bytes)
{
    shm *s = (shm *)c;
    ds_ring *r = ring_of(s, c->rank, to);

    assert(bytes <= c->message_bytes);
    slot_of(s, r, s->sent[to])->bytes = bytes;
    ds_ring_post(r, s->sent[to]++, &io);
    ds_bell_ring(&s->places[to].bell, DS_BELL_ANY, &io);
}

static const void *shm_came(ds_comm *c, uint32_t from, uint32_t *bytes)
{
    shm *s = (shm *)c;
    ds_ring *r = ring_of(s, from, c->rank);
    const message *m;

    assert(from < c->ranks && from != c->rank);
    if (!ds_ring_has_come(r, s->got[from], &io))
        return NULL;
    m = slot_of(s, r, s->got[from]);
    *bytes = m->bytes <= c->message_bytes ? m->bytes : 0;
    return m + 1;
}

static void shm_done(ds_comm *c, uint32_t from)
{
    shm *s = (shm *)c;

    ds_ring_done(ring_of(s, from, c->rank), s->got[from]++, &io);
    ds_bell_ring(&s->places[from].bell, DS_BELL_ANY, &io);
}

/* ---- agreement --------------------------------------------------------------------------------------------------- */

static word *words_of(const shm *s, uint64_t round)
{
    return s->words + (round & 1) * (size_t)s->base.ranks;
}

/* What `arrived` says when all words of a round are there. */
static uint64_t complete(const shm *s, uint64_t round)
{
    return (round / 2 + (round & 1)) * s->base.ranks;
}

static int missing_word(void *ctx)
{
    const shm *s = ctx;
    const word *w = words_of(s, s->round);

    if (atomic_load(&s->seg->arrived[s->round & 1]) == complete(s, s->round))
        return -1;
    for (uint32_t i = 0; i < s->base.ranks; i++)
        if (atomic_load_explicit(&w[i].round, memory_order_relaxed) != (uint32_t)s->round)
            return (int)i;
    return (int)s->base.rank; /* said, and about to be counted */
}

static ds_rc shm_agree(ds_comm *c, const void *mine, void *all, ds_err *err)
{
    shm *s = (shm *)c;
    word *w = words_of(s, ++s->round);
    uint64_t most = s->round == 1 ? s->seg->start_ms : s->seg->patience_ms;
    bool last;
    ds_rc rc;

    memcpy(w[c->rank].bytes, mine, DS_COMM_WORD);
    atomic_store_explicit(&w[c->rank].round, (uint32_t)s->round, memory_order_relaxed);
    /* seq_cst: it releases the word, and is in one order with the bells */
    last = atomic_fetch_add(&s->seg->arrived[s->round & 1], 1) + 1 == complete(s, s->round);
    for (uint32_t i = 0; i < c->ranks; i++)
        if (i != c->rank)
            ds_bell_ring(&s->places[i].bell, last ? DS_BELL_ROUND : DS_BELL_ANY, &io);
    rc = wait_for(s, DS_BELL_ROUND, missing_word, s, most, err);
    if (rc != DS_OK)
        return rc;
    for (uint32_t i = 0; i < c->ranks; i++)
        memcpy((uint8_t *)all + (size_t)i * DS_COMM_WORD, w[i].bytes, DS_COMM_WORD);
    return DS_OK;
}

static bool called(const shm *s)
{
    uint64_t next = s->round + 1;

    return atomic_load(&s->seg->arrived[next & 1]) != complete(s, next) - s->base.ranks;
}

static bool all_left(const shm *s)
{
    for (uint32_t i = 0; i < s->base.ranks; i++)
        if (atomic_load(&s->places[i].state) != PEER_LEFT)
            return false;
    return true;
}

static int missing_call(void *ctx)
{
    const shm *s = ctx;

    return called(s) || atomic_load(&s->woken) || all_left(s) ? -1 : (int)s->base.rank;
}

static ds_rc shm_attend(ds_comm *c, ds_err *err)
{
    shm *s = (shm *)c;
    ds_rc rc = wait_for(s, DS_BELL_ANY, missing_call, s, 0, err);

    if (rc != DS_OK)
        return rc;
    if (called(s))
        return DS_OK;
    if (atomic_exchange(&s->woken, false))
        return ds_fail(err, DS_E_AGAIN, "woken");
    return ds_fail(err, DS_E_CANCELED, "all ranks have left");
}

static void shm_wake(ds_comm *c)
{
    shm *s = (shm *)c;

    atomic_store(&s->woken, true);
    ds_bell_ring(&s->places[c->rank].bell, DS_BELL_ANY, &io);
}

static void shm_leave(ds_comm *c)
{
    shm *s = (shm *)c;

    atomic_store(&s->places[c->rank].state, PEER_LEFT);
    for (uint32_t i = 0; i < c->ranks; i++)
        if (i != c->rank)
            ds_bell_ring(&s->places[i].bell, DS_BELL_ANY, &io);
}

static void shm_give_up(ds_comm *c, const char *why)
{
    shm *s = (shm *)c;
    place *p = &s->places[c->rank];

    if (atomic_exchange(&s->failed, true))
        return;
    snprintf(p->why, sizeof p->why, "%s", why);
    break_all(s, c->rank, CAUSE_ITSELF);
}

static ds_rc shm_state(ds_comm *c, ds_err *err)
{
    return whole((shm *)c, err);
}

static void shm_when_broken(ds_comm *c, void (*fn)(void *ctx), void *ctx)
{
    shm *s = (shm *)c;

    s->broken_ctx = ctx;
    atomic_store(&s->broken_fn, fn);
}

/* ---- signs of life ----------------------------------------------------------------------------------------------- */

/* What the watcher knows of another rank. */
typedef struct {
    unsigned process;
    int fd; /* of the process; -1: none */
} watched;

static void watch_process(shm *s, watched *w, uint32_t rank)
{
    unsigned process = atomic_load(&s->places[rank].process);

    if (process == w->process || rank == s->base.rank)
        return;
    if (w->fd >= 0)
        close(w->fd);
    w->process = process;
    w->fd = (int)syscall(SYS_pidfd_open, (pid_t)process, 0);
    if (w->fd < 0 && errno == ESRCH && !all_left(s))
        break_all(s, rank, CAUSE_DIED);
}

static void judge_silence(shm *s, uint64_t now)
{
    for (uint32_t i = 0; i < s->base.ranks; i++) {
        place *p = &s->places[i];
        if (i == s->base.rank || atomic_load(&p->state) == PEER_NONE || all_left(s))
            continue;
        uint64_t beat = atomic_load_explicit(&p->beat_ns, memory_order_relaxed);
        if (now > beat && now - beat > s->seg->silence_ms * UINT64_C(1000000))
            break_all(s, i, CAUSE_SILENT);
    }
}

static void *watch(void *arg)
{
    shm *s = arg;
    uint32_t n = s->base.ranks;
    place *own = &s->places[s->base.rank];
    watched peer[DS_COMM_MAX_RANKS];
    struct pollfd fd[DS_COMM_MAX_RANKS + 1];
    uint64_t before = ds_now_ns(), forgiven = 0;
    bool told = false;
    void (*fn)(void *ctx);

    for (uint32_t i = 0; i < n; i++)
        peer[i] = (watched){ .fd = -1 };
    for (;;) {
        uint64_t now = ds_now_ns(), late = now - before;
        atomic_store_explicit(&own->beat_ns, now, memory_order_relaxed);
        if (late > 2 * BEAT_MS * UINT64_C(1000000)) /* this rank was held up, and so may the others have been */
            forgiven = now + late;
        if (now >= forgiven)
            judge_silence(s, now);
        before = now;
        if (!told && atomic_load(&s->seg->broken) && (fn = atomic_load(&s->broken_fn))) {
            told = true;
            fn(s->broken_ctx);
        }
        for (uint32_t i = 0; i < n; i++) {
            watch_process(s, &peer[i], i);
            fd[i] = (struct pollfd){ .fd = peer[i].fd, .events = POLLIN };
        }
        fd[n] = (struct pollfd){ .fd = s->stop, .events = POLLIN };
        if (poll(fd, n + 1, BEAT_MS) <= 0)
            continue;
        if (fd[n].revents)
            break;
        for (uint32_t i = 0; i < n; i++) {
            if (!fd[i].revents)
                continue;
            if (!all_left(s))
                break_all(s, i, CAUSE_DIED);
            close(peer[i].fd);
            peer[i].fd = -1; /* and its number stays: it isn't looked for again */
        }
    }
    for (uint32_t i = 0; i < n; i++)
        if (peer[i].fd >= 0)
            close(peer[i].fd);
    return NULL;
}

void ds_comm_shm_expect(ds_comm *c, uint32_t rank, pid_t process)
{
    shm *s = (shm *)c;
    unsigned none = 0;

    atomic_compare_exchange_strong(&s->places[rank].process, &none, (unsigned)process);
}

/* ---- made and left ----------------------------------------------------------------------------------------------- */

static uint32_t default_slots(uint32_t ranks)
{
    return ranks > 16 ? 4 : 16;
}

uint32_t ds_comm_shm_message_bytes(uint32_t ranks)
{
    uint64_t each = RINGS_BYTES / default_slots(ranks) / ranks / ranks & ~UINT64_C(63);

    return each > MOST_DEFAULT ? MOST_DEFAULT : each < LEAST_DEFAULT ? LEAST_DEFAULT : (uint32_t)each;
}

static head head_of(const ds_comm_shm_opts *o)
{
    head h = { .magic = SEGMENT_MAGIC,
               .version = VERSION,
               .ranks = o->ranks,
               .message_bytes = o->message_bytes ? o->message_bytes : ds_comm_shm_message_bytes(o->ranks ? o->ranks : 1),
               .slots = o->slots ? o->slots : default_slots(o->ranks),
               .start_ms = o->start_ms ? o->start_ms : 600000,
               .patience_ms = o->patience_ms ? o->patience_ms : 120000,
               .silence_ms = o->silence_ms ? o->silence_ms : 1500 };

    h.message_bytes = h.message_bytes <= MOST_MESSAGE ? (h.message_bytes + 63) & ~63u : h.message_bytes;
    h.bytes = segment_bytes(&h);
    return h;
}

uint64_t ds_comm_shm_bytes(const ds_comm_shm_opts *o)
{
    return head_of(o).bytes;
}

static bool good_sizes(const head *h)
{
    return h->ranks >= 1 && h->ranks <= DS_COMM_MAX_RANKS && h->message_bytes >= 64 && h->message_bytes <= MOST_MESSAGE &&
           h->message_bytes % 64 == 0 && h->slots >= 1 && h->slots <= MOST_SLOTS && (h->slots & (h->slots - 1)) == 0;
}

ds_rc ds_comm_shm_create(int *fd, const ds_comm_shm_opts *o, ds_err *err)
{
    head h = head_of(o);
    ds_rc rc = DS_OK;

    *fd = -1;
    if (!good_sizes(&h))
        return ds_fail(err, DS_E_ARG, "ranks: %u ranks with %u messages of %u bytes: 1 .. %d ranks, a power of two up to %d, 64 .. 2^30",
                       h.ranks, h.slots, h.message_bytes, DS_COMM_MAX_RANKS, MOST_SLOTS);
    *fd = memfd_create("deepserve-ranks", MFD_CLOEXEC);
    if (*fd < 0)
        return ds_fail(err, DS_E_IO, "ranks: shared memory: %s", strerror(errno));
    if (ftruncate(*fd, (off_t)h.bytes) != 0 || pwrite(*fd, &h, sizeof h, 0) != (ssize_t)sizeof h)
        rc = ds_fail(err, DS_E_NOMEM, "ranks: %llu bytes of shared memory: %s", (unsigned long long)h.bytes, strerror(errno));
    if (rc != DS_OK) {
        close(*fd);
        *fd = -1;
    }
    return rc;
}

static void shm_destroy(ds_comm *c)
{
    shm *s = (shm *)c;
    uint64_t one = 1;

    if (!s)
        return;
    if (s->watching) {
        if (write(s->stop, &one, sizeof one) == (ssize_t)sizeof one)
            pthread_join(s->watcher, NULL);
    }
    if (s->stop >= 0)
        close(s->stop);
    if (s->seg)
        munmap(s->seg, s->bytes);
    free(s->sent);
    free(s->got);
    free(s);
}

static ds_rc map(shm *s, int fd, ds_err *err)
{
    struct stat st;
    head h;
    void *p;

    if (fstat(fd, &st) != 0 || pread(fd, &h, sizeof h, 0) != (ssize_t)sizeof h || h.magic != SEGMENT_MAGIC || !good_sizes(&h) ||
        h.bytes != segment_bytes(&h) || (uint64_t)st.st_size < h.bytes)
        return ds_fail(err, DS_E_FORMAT, "ranks: descriptor %d is no memory of ranks", fd);
    if (h.version != VERSION)
        return ds_fail(err, DS_E_FORMAT, "ranks: memory of version %u, this program has %d", h.version, VERSION);
    p = mmap(NULL, h.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return ds_fail(err, DS_E_NOMEM, "ranks: %llu bytes of shared memory: %s", (unsigned long long)h.bytes, strerror(errno));
    s->seg = p;
    s->bytes = h.bytes;
    s->places = (place *)(void *)(s->seg + 1);
    s->words = (word *)(void *)(s->places + h.ranks);
    s->rings = (uint8_t *)(s->words + 2 * (size_t)h.ranks);
    s->base.ranks = h.ranks;
    s->base.message_bytes = h.message_bytes;
    return DS_OK;
}

static ds_rc become(shm *s, uint32_t rank, ds_err *err)
{
    place *p = &s->places[rank < s->base.ranks ? rank : 0];
    unsigned none = 0;
    int started;

    if (rank >= s->base.ranks)
        return ds_fail(err, DS_E_ARG, "ranks: there is no rank %u among %u", rank, s->base.ranks);
    if (!atomic_compare_exchange_strong(&p->taken, &none, 1))
        return ds_fail(err, DS_E_ARG, "ranks: somebody is rank %u already", rank);
    s->base.rank = rank;
    s->sent = calloc(s->base.ranks, sizeof *s->sent);
    s->got = calloc(s->base.ranks, sizeof *s->got);
    s->stop = eventfd(0, EFD_CLOEXEC);
    if (!s->sent || !s->got || s->stop < 0)
        return ds_fail(err, DS_E_NOMEM, "ranks: out of memory or descriptors");
    atomic_store(&p->process, (unsigned)getpid());
    atomic_store_explicit(&p->beat_ns, ds_now_ns(), memory_order_relaxed);
    atomic_store(&p->state, PEER_JOINED);
    started = pthread_create(&s->watcher, NULL, watch, s);
    if (started != 0)
        return ds_fail(err, DS_E_IO, "ranks: the watching thread can't start: %s", strerror(started));
    s->watching = true;
    pthread_setname_np(s->watcher, "ds-ranks");
    return DS_OK;
}

ds_rc ds_comm_shm_join(ds_comm **out, int fd, uint32_t rank, ds_err *err)
{
    static const ds_comm_fns fns = { shm_room, shm_post,  shm_came,    shm_done,  shm_wait,        shm_agree,  shm_attend,
                                     shm_wake, shm_leave, shm_give_up, shm_state, shm_when_broken, shm_destroy };
    shm *s = calloc(1, sizeof *s);
    ds_rc rc;

    *out = NULL;
    if (!s)
        return ds_fail(err, DS_E_NOMEM, "ranks: out of memory");
    s->base.fn = &fns;
    s->stop = -1;
    rc = map(s, fd, err);
    if (rc == DS_OK) {
        s->spin_ns = s->base.ranks <= ds_cpu_count() ? SPIN_US * 1000 : 0;
        rc = become(s, rank, err);
    }
    if (rc != DS_OK) {
        shm_destroy(&s->base);
        return rc;
    }
    *out = &s->base;
    return DS_OK;
}
