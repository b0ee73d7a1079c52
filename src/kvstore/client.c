/* A store that another process serves, with the same functions as one of our own.
 *
 * Requests are cut into chunks of a few blocks; each has slots of shared memory of its own until its answer is there.
 * What a fetch gives is copied out of the slots and its checksum is taken over the copy. A caller's request ends at
 * its deadline or when it is cancelled, whatever the store does: its chunks keep their slots until they are answered.
 * A window state that the store has in memory is copied from there at once, without asking.
 *
 * Threads: one receives, watches deadlines and connects again; callers send.   Locks: mu; `attached` alone, for who
 * looks into the index. No callback under a lock. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "kvstore/index.h"
#include "kvstore/kvstore_internal.h"
#include "kvstore/local.h"
#include "kvstore/winpool.h"
#include "kvstore/wire_internal.h"

enum { MAX_REQUESTS = 256, AGAIN_MS = 500, ANSWER_TIMEOUT_S = 10, CLOSE_S = 10 };
#define DEFAULT_LIMIT_NS 5000000000u

/* What a caller asked for. */
typedef struct {
    bool used, over; /* over: its caller is being told */
    bool fetch, brief;
    bool ending;                    /* nothing more of it is sent */
    bool given_up;                  /* it ends as soon as nobody copies */
    bool copying;                   /* the receiver writes to its blocks */
    uint32_t gen, n, next, waiting; /* next: first block that wasn't sent; waiting: chunks without an answer */
    uint32_t bad, replayed;         /* fetch: first block that doesn't come; first that rests on a replay */
    ds_kvstore_cause cause;
    ds_kvstore_saved result;
    uint64_t begun_ns, deadline_ns;
    ds_key *keys;
    uint8_t **blocks;
    uint32_t *crc;
    ds_key parent;
    uint32_t depth, exact, klass;
    char *tenant;
    void (*fetched)(void *ctx, const ds_kvstore_fetched *r);
    void (*saved)(void *ctx, ds_kvstore_saved r);
    void *ctx, *memory;
} request;

/* Some of its blocks, on their way. */
typedef struct {
    uint64_t id; /* 0: free */
    uint32_t request, gen, first, n;
    uint32_t slot[DS_WIRE_CHUNK];
} chunk;

typedef struct {
    ds_kvstore base;
    /* [const] */
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    ds_kvstore_user user;
    uint8_t *layout;
    uint32_t block_bytes;
    pthread_t thread;
    bool has_thread;
    /* [attached] */
    pthread_rwlock_t attached;
    ds_index *ix;
    ds_winpool *windows; /* NULL: the store has none for us */
    /* [mu] */
    pthread_mutex_t mu;
    pthread_cond_t change, idle; /* for the thread between connections; all requests ended */
    int fd;                      /* -1: not connected */
    int bell[2];                 /* wakes the thread in poll */
    uint64_t epoch, next_id;
    ds_wire_slots slots;
    uint32_t free_slot[DS_WIRE_SLOTS], n_free;
    chunk chunk[DS_WIRE_REQUESTS];
    uint32_t n_chunks;
    request request[MAX_REQUESTS];
    uint32_t n_requests, turn; /* whose blocks are sent next */
    bool closing, stopping;
    uint8_t *in, *out; /* [thread], [mu]: a frame's payload each */
    /* [atomic] relaxed: for statistics only */
    _Atomic uint64_t copy_ns, verify_ns;
} client;

static client *of(ds_kvstore *s)
{
    return (client *)s;
}

/* ---- connecting ---- */

static ds_rc connect_to(const char *path, int *out, ds_err *err)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    struct timeval t = { .tv_sec = ANSWER_TIMEOUT_S };
    int size = DS_WIRE_SOCKET_BYTES, fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    strcpy(a.sun_path, path);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        int e = errno;
        if (fd >= 0)
            close(fd);
        return ds_fail(err, DS_E_IO, "unix:%s: %s", path, strerror(e));
    }
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    *out = fd;
    return DS_OK;
}

/* Says HELLO and gets an answer. Descriptors that came are in fds. */
static ds_rc greet(int fd, const ds_kvstore_user *u, uint8_t *buf, ds_frame *f, int fds[DS_FRAME_MAX_FDS], ds_err *err)
{
    ds_frame hello = { .type = DS_WIRE_HELLO };
    ds_frame_out out = { .buf = buf, .cap = DS_FRAME_MAX_PAYLOAD };
    ds_rc rc;

    ds_frame_put_u32(&out, u != NULL);
    if (u) {
        ds_frame_put(&out, u->model, 32);
        ds_frame_put(&out, u->tokenizer, 32);
        ds_frame_put(&out, u->dialect, 32);
        ds_frame_put_u32(&out, (uint32_t)u->layout_bytes);
        ds_frame_put(&out, u->layout, u->layout_bytes);
    }
    rc = ds_frame_send(fd, &hello, buf, out.n, NULL, 0, true, err);
    if (rc == DS_OK)
        rc = ds_frame_receive(fd, f, buf, DS_FRAME_MAX_PAYLOAD, fds, err);
    if (rc == DS_OK && f->type == DS_WIRE_REFUSED)
        return ds_fail(err, DS_E_ARG, "the store refused: %.*s", (int)(f->bytes < 400 ? f->bytes : 400), (const char *)buf);
    if (rc == DS_OK && f->type != DS_WIRE_WELCOME)
        return ds_fail(err, DS_E_FORMAT, "the store answered with a frame of type %u", f->type);
    return rc;
}

/* Maps what came with the welcome. */
static ds_rc attach(client *c, const ds_frame *f, const uint8_t *payload, const int fds[DS_FRAME_MAX_FDS], ds_index **ix,
                    ds_winpool **windows, ds_wire_slots *slots, ds_err *err)
{
    ds_frame_in in = { .at = payload, .end = payload + f->bytes };
    struct stat st;
    uint32_t stride, block_bytes;
    ds_rc rc;

    slots->n = ds_frame_u32(&in);
    stride = ds_frame_u32(&in);
    block_bytes = ds_frame_u32(&in);
    if (in.bad || slots->n == 0 || slots->n > DS_WIRE_SLOTS || block_bytes != c->block_bytes || stride != ds_wire_stride(block_bytes) ||
        fds[0] < 0 || fds[1] < 0)
        return ds_fail(err, DS_E_FORMAT, "the store's welcome makes no sense");
    slots->stride = stride;
    slots->bytes = ds_wire_slots_head(slots->n) + slots->n * slots->stride;
    if (fstat(fds[1], &st) != 0 || (uint64_t)st.st_size != slots->bytes)
        return ds_fail(err, DS_E_FORMAT, "the store's slots have %lld bytes, not %llu", (long long)st.st_size,
                       (unsigned long long)slots->bytes);
    slots->map = mmap(NULL, slots->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0);
    if (slots->map == MAP_FAILED)
        return ds_fail(err, DS_E_IO, "the store's slots: %s", strerror(errno));
    rc = ds_index_attach(ix, fds[0], err);
    if (rc == DS_OK && fds[2] >= 0 && fds[3] >= 0)
        rc = ds_winpool_attach(windows, fds + 2, err);
    if (rc == DS_OK && *windows && ds_winpool_slot_bytes(*windows) != block_bytes)
        rc = ds_fail(err, DS_E_FORMAT, "the store's window states have another size");
    if (rc != DS_OK) {
        ds_winpool_destroy(*windows);
        ds_index_destroy(*ix);
        munmap(slots->map, slots->bytes);
    }
    return rc;
}

static ds_rc open_connection(client *c, ds_err *err)
{
    int fd = -1, fds[DS_FRAME_MAX_FDS] = { -1, -1, -1, -1 };
    ds_wire_slots slots = { 0 };
    ds_index *ix = NULL;
    ds_winpool *windows = NULL;
    ds_frame f;
    ds_err mine;
    ds_rc rc;

    err = err ? err : &mine;
    rc = connect_to(c->path, &fd, err);
    if (rc == DS_OK)
        rc = greet(fd, &c->user, c->in, &f, fds, err);
    if (rc == DS_OK)
        rc = attach(c, &f, c->in, fds, &ix, &windows, &slots, err);
    for (int i = 0; i < DS_FRAME_MAX_FDS; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (rc != DS_OK) {
        if (fd >= 0)
            close(fd);
        return rc;
    }
    pthread_rwlock_wrlock(&c->attached);
    c->ix = ix;
    c->windows = windows;
    pthread_rwlock_unlock(&c->attached);
    pthread_mutex_lock(&c->mu);
    c->fd = fd;
    c->epoch = f.epoch;
    c->slots = slots;
    c->n_free = slots.n;
    for (uint32_t i = 0; i < slots.n; i++)
        c->free_slot[i] = slots.n - 1 - i;
    pthread_mutex_unlock(&c->mu);
    return DS_OK;
}

/* ---- the end of a request ---- */

/* [mu on entry and return] */
static void end_request(client *c, request *r)
{
    ds_kvstore_fetched f = {
        .n = r->bad, .cause = r->bad < r->n ? r->cause : DS_KVSTORE_HIT, .ns = ds_now_ns() - r->begun_ns, .crc = r->crc
    };

    f.exact = r->replayed < r->bad ? r->replayed : r->bad;
    r->gen++; /* its chunks know it no more */
    r->over = r->ending = true;
    pthread_mutex_unlock(&c->mu);
    if (r->fetch)
        r->fetched(r->ctx, &f);
    else
        r->saved(r->ctx, r->result);
    free(r->tenant);
    free(r->memory);
    pthread_mutex_lock(&c->mu);
    r->used = false;
    if (--c->n_requests == 0)
        pthread_cond_broadcast(&c->idle);
}

/* Decides a fetch's end at block i, if nothing before it decided already. [mu] */
static void miss(request *r, uint32_t i, ds_kvstore_cause cause)
{
    if (i < r->bad) {
        r->bad = i;
        r->cause = cause;
    }
    r->ending = true;
}

/* The first block of those whose answer isn't there; n: there are all. */
static uint32_t first_waiting(const client *c, const request *r)
{
    uint32_t first = r->next;

    for (uint32_t i = 0; i < DS_WIRE_REQUESTS && r->waiting; i++)
        if (c->chunk[i].id && &c->request[c->chunk[i].request] == r && c->chunk[i].gen == r->gen && c->chunk[i].first < first)
            first = c->chunk[i].first;
    return first;
}

/* Ends it now, with what has come: no answer is waited for. [mu] */
static void give_up(client *c, request *r, ds_kvstore_cause cause)
{
    miss(r, first_waiting(c, r), cause);
    r->result = DS_KVSTORE_FAILED;
    r->given_up = true;
    if (!r->copying)
        end_request(c, r);
}

/* Answers that are still to come may not matter any more. */
static bool complete(const client *c, const request *r)
{
    if (r->fetch)
        return first_waiting(c, r) >= r->bad;
    return r->waiting == 0 && (r->ending || r->next == r->n);
}

/* ---- sending ---- */

static bool send_frame(client *c, ds_frame *f, const ds_frame_out *out)
{
    f->epoch = c->epoch;
    if (c->fd >= 0 && !out->full && ds_frame_send(c->fd, f, out->buf, out->n, NULL, 0, false, NULL) == DS_OK)
        return true;
    if (c->fd >= 0)
        shutdown(c->fd, SHUT_RDWR); /* the thread sees it and ends everything */
    return false;
}

static void put_keys(ds_frame_out *out, const ds_key *keys, uint32_t n)
{
    ds_frame_put_u32(out, n);
    ds_frame_put(out, keys, n * sizeof *keys);
}

static bool send_chunk(client *c, request *r, chunk *k)
{
    ds_frame f = { .type = r->fetch ? DS_WIRE_FETCH : DS_WIRE_SAVE, .request = k->id };
    ds_frame_out out = { .buf = c->out, .cap = DS_FRAME_MAX_PAYLOAD };
    uint64_t now = ds_now_ns();

    if (r->fetch) {
        f.left_ns = r->deadline_ns > now ? r->deadline_ns - now : 1;
    } else {
        f.flags = r->brief ? DS_WIRE_BRIEF : 0;
        size_t name = r->tenant ? strlen(r->tenant) : 0;
        ds_frame_put(&out, k->first ? r->keys[k->first - 1].b : r->parent.b, 32);
        ds_frame_put_u32(&out, r->depth + k->first);
        ds_frame_put_u32(&out, r->exact <= k->first ? 0 : r->exact - k->first < k->n ? r->exact - k->first : k->n);
        ds_frame_put_u32(&out, r->klass);
        ds_frame_put_u32(&out, r->tenant ? (uint32_t)name : UINT32_MAX);
        ds_frame_put(&out, r->tenant, name);
        for (uint32_t i = 0; i < k->n; i++)
            memcpy(ds_wire_slot(&c->slots, k->slot[i]), r->blocks[k->first + i], c->block_bytes);
    }
    put_keys(&out, r->keys + k->first, k->n);
    for (uint32_t i = 0; i < k->n; i++) {
        ds_wire_own(&c->slots, k->slot[i], k->id);
        ds_frame_put_u32(&out, k->slot[i]);
    }
    return send_frame(c, &f, &out);
}

static void free_chunk(client *c, chunk *k)
{
    for (uint32_t i = 0; i < k->n; i++) {
        ds_wire_own(&c->slots, k->slot[i], 0);
        c->free_slot[c->n_free++] = k->slot[i];
    }
    k->id = 0;
    c->n_chunks--;
}

/* Sends what there are slots for, a chunk of each request in turn. [mu] */
static void pump(client *c)
{
    uint32_t idle = 0;

    while (c->fd >= 0 && idle < MAX_REQUESTS && c->n_free && c->n_chunks < DS_WIRE_REQUESTS) {
        request *r = &c->request[c->turn = (c->turn + 1) % MAX_REQUESTS];
        chunk *k = c->chunk;
        if (!r->used || r->over || r->ending || r->next == r->n) {
            idle++;
            continue;
        }
        idle = 0;
        while (k->id)
            k++;
        *k = (chunk){ .id = ++c->next_id, .request = (uint32_t)(r - c->request), .gen = r->gen, .first = r->next };
        while (k->n < DS_WIRE_CHUNK && r->next < r->n && c->n_free) {
            k->slot[k->n++] = c->free_slot[--c->n_free];
            r->next++;
        }
        c->n_chunks++;
        r->waiting++;
        if (!send_chunk(c, r, k))
            return;
    }
}

/* ---- receiving ---- */

static chunk *find_chunk(client *c, uint64_t id)
{
    for (uint32_t i = 0; i < DS_WIRE_REQUESTS; i++)
        if (c->chunk[i].id == id && id)
            return &c->chunk[i];
    return NULL;
}

/* Copies a chunk's blocks out. Number of those that are what the store says they are. */
static uint32_t copy_out(client *c, const request *r, const chunk *k, ds_frame_in *in, uint32_t n)
{
    uint32_t i = 0;

    for (; i < n; i++) {
        uint32_t crc = ds_frame_u32(in), at = k->first + i;
        if (at >= r->bad)
            return i;
        uint64_t begun = ds_now_ns(), copied;
        memcpy(r->blocks[at], ds_wire_slot(&c->slots, k->slot[i]), c->block_bytes);
        copied = ds_now_ns();
        bool right = ds_wire_owner(&c->slots, k->slot[i]) == k->id && ds_crc32c(r->blocks[at], c->block_bytes) == crc;
        atomic_fetch_add_explicit(&c->copy_ns, copied - begun, memory_order_relaxed);
        atomic_fetch_add_explicit(&c->verify_ns, ds_now_ns() - copied, memory_order_relaxed);
        if (!right)
            return i;
        r->crc[at] = crc;
    }
    return i;
}

/* False: the stream makes no sense. [mu] */
static bool on_fetched(client *c, chunk *k, request *r, ds_frame_in *in)
{
    uint32_t n = ds_frame_u32(in), exact = ds_frame_u32(in), cause = ds_frame_u32(in), right = n;
    chunk copy = *k;

    if (in->bad || n > k->n || exact > n || cause >= DS_KVSTORE_CAUSES || (size_t)(in->end - in->at) != 4 * (size_t)n ||
        (n < k->n) == (cause == 0))
        return false;
    if (r && n) {
        r->copying = true;
        pthread_mutex_unlock(&c->mu); /* its blocks are ours until copying is false */
        right = copy_out(c, r, &copy, in, n);
        pthread_mutex_lock(&c->mu);
        r->copying = false;
    }
    if (r) {
        if (right < copy.n && copy.first + right < r->bad)
            miss(r, copy.first + right, right < n ? DS_KVSTORE_CORRUPT : (ds_kvstore_cause)cause);
        if (exact < n && copy.first + exact < r->replayed)
            r->replayed = copy.first + exact;
    }
    return true;
}

static bool on_answer(client *c, const ds_frame *f, ds_frame_in *in)
{
    chunk *k = find_chunk(c, f->request);
    request *r;
    bool ok = true;

    if (!k)
        return false;
    r = &c->request[k->request];
    r = r->used && !r->over && r->gen == k->gen ? r : NULL; /* NULL: it ended without this */
    if (r && r->fetch != (f->type == DS_WIRE_FETCHED))
        return false;
    if (f->type == DS_WIRE_FETCHED) {
        ok = on_fetched(c, k, r, in);
    } else {
        uint32_t result = ds_frame_u32(in);
        ok = !in->bad && result <= DS_KVSTORE_FAILED;
        if (ok && r && result != DS_KVSTORE_SAVED) {
            r->result = r->result == DS_KVSTORE_SAVED ? (ds_kvstore_saved)result : r->result;
            r->ending = true;
        }
    }
    if (!ok)
        return false;
    free_chunk(c, k);
    if (r) {
        r->waiting--;
        if (r->given_up || complete(c, r))
            end_request(c, r);
    }
    pump(c);
    return true;
}

/* Ends what is beyond its deadline. When the next one is. [mu] */
static uint64_t look_at_clock(client *c)
{
    uint64_t now = ds_now_ns(), next = UINT64_MAX;

    for (uint32_t i = 0; i < MAX_REQUESTS; i++) {
        request *r = &c->request[i];
        if (!r->used || r->over || !r->fetch || r->copying)
            continue;
        if (r->deadline_ns <= now)
            give_up(c, r, DS_KVSTORE_LATE);
        else if (r->deadline_ns < next)
            next = r->deadline_ns;
    }
    return next;
}

/* Serves a connection until it ends. [mu on entry and return] */
static void receive(client *c)
{
    int fds[DS_FRAME_MAX_FDS], fd = c->fd;
    ds_frame f;
    bool ok = true;

    while (ok && !c->stopping) {
        uint64_t next = look_at_clock(c), now = ds_now_ns();
        struct pollfd p[2] = { { .fd = fd, .events = POLLIN }, { .fd = c->bell[0], .events = POLLIN } };
        int ms = next == UINT64_MAX ? -1 : (int)((next > now ? next - now : 0) / 1000000 + 1);
        char bells[64];
        pthread_mutex_unlock(&c->mu);
        poll(p, 2, ms);
        if (p[1].revents && read(c->bell[0], bells, sizeof bells) < 0)
            p[1].revents = 0; /* somebody else's bell: nothing to do */
        if (p[0].revents) {
            ok = ds_frame_receive(fd, &f, c->in, DS_FRAME_MAX_PAYLOAD, fds, NULL) == DS_OK;
            for (int i = 0; ok && i < DS_FRAME_MAX_FDS; i++)
                if (fds[i] >= 0)
                    close(fds[i]);
        }
        pthread_mutex_lock(&c->mu);
        if (ok && p[0].revents) {
            ds_frame_in in = { .at = c->in, .end = c->in + f.bytes };
            ok = f.epoch == c->epoch && (f.type == DS_WIRE_FETCHED || f.type == DS_WIRE_SAVED) && on_answer(c, &f, &in);
        }
    }
}

/* Everything under way is lost; memory that was shared goes. [mu on entry and return] */
static void lose_connection(client *c)
{
    ds_index *ix;
    ds_winpool *windows;

    close(c->fd);
    c->fd = -1;
    for (uint32_t i = 0; i < MAX_REQUESTS; i++)
        if (c->request[i].used && !c->request[i].over)
            give_up(c, &c->request[i], DS_KVSTORE_LOST);
    for (uint32_t i = 0; i < DS_WIRE_REQUESTS; i++)
        c->chunk[i].id = 0;
    c->n_chunks = c->n_free = 0;
    munmap(c->slots.map, c->slots.bytes);
    c->slots = (ds_wire_slots){ 0 };
    pthread_mutex_unlock(&c->mu);
    pthread_rwlock_wrlock(&c->attached);
    ix = c->ix;
    windows = c->windows;
    c->ix = NULL;
    c->windows = NULL;
    pthread_rwlock_unlock(&c->attached);
    ds_index_destroy(ix);
    ds_winpool_destroy(windows);
    pthread_mutex_lock(&c->mu);
}

static void *run(void *arg)
{
    client *c = arg;

    pthread_mutex_lock(&c->mu);
    while (!c->stopping) {
        if (c->fd < 0) {
            uint64_t at = ds_now_ns() + AGAIN_MS * 1000000ull;
            struct timespec t = { .tv_sec = (time_t)(at / 1000000000), .tv_nsec = (long)(at % 1000000000) };
            pthread_cond_timedwait(&c->change, &c->mu, &t);
            if (c->stopping)
                break;
            pthread_mutex_unlock(&c->mu);
            open_connection(c, NULL);
            pthread_mutex_lock(&c->mu);
            continue;
        }
        receive(c);
        lose_connection(c);
    }
    if (c->fd >= 0)
        lose_connection(c);
    pthread_mutex_unlock(&c->mu);
    return NULL;
}

/* ---- the caller ---- */

static uint32_t match_remote(ds_kvstore *s, const ds_key *keys, uint32_t n, bool exact)
{
    client *c = of(s);
    ds_winpool_place at;
    uint32_t found = 0;

    pthread_rwlock_rdlock(&c->attached);
    if (c->windows && n == 1) /* a state has no chain */
        found = ds_winpool_find(c->windows, keys, exact, &at);
    if (c->ix && !found)
        found = ds_index_match(c->ix, keys, n, exact);
    pthread_rwlock_unlock(&c->attached);
    return found;
}

/* A free one, or NULL. [mu] */
static request *new_request(client *c, uint32_t n, const ds_key *keys, const void *blocks)
{
    request *r = c->request;
    uint32_t gen;
    char *p;

    if (c->n_requests == MAX_REQUESTS || c->closing)
        return NULL;
    while (r->used)
        r++;
    p = malloc(n * (sizeof *r->blocks + sizeof *r->keys + sizeof *r->crc));
    if (!p)
        return NULL;
    gen = r->gen + 1;
    *r = (request){ .used = true, .gen = gen, .n = n, .bad = n, .replayed = n, .begun_ns = ds_now_ns(), .memory = p };
    r->blocks = (uint8_t **)(void *)p;
    r->keys = (ds_key *)(void *)(p + n * sizeof *r->blocks);
    r->crc = (uint32_t *)(void *)(r->keys + n);
    memcpy(r->blocks, blocks, n * sizeof *r->blocks);
    memcpy(r->keys, keys, n * sizeof *r->keys);
    c->n_requests++;
    return r;
}

static void ring(client *c)
{
    if (write(c->bell[1], "", 1) < 0)
        assert(errno == EAGAIN); /* it has been rung often enough */
}

/* A state out of the store's memory, at once. False: it isn't there, or went meanwhile. */
static bool fetch_window(client *c, const ds_kvstore_fetch_req *q)
{
    uint64_t begun = ds_now_ns();
    ds_winpool_place at;
    bool came;

    pthread_rwlock_rdlock(&c->attached);
    came = c->windows && q->n == 1 && ds_winpool_find(c->windows, q->keys, false, &at) && ds_winpool_read(c->windows, &at, q->blocks[0]);
    pthread_rwlock_unlock(&c->attached);
    if (came)
        q->done(q->ctx, &(ds_kvstore_fetched){ .n = 1, .exact = !at.approx, .ns = ds_now_ns() - begun, .crc = &at.crc });
    return came;
}

static void touch_remote(ds_kvstore *s, const ds_key *keys, uint32_t n)
{
    client *c = of(s);
    ds_frame f = { .type = DS_WIRE_TOUCH };

    n = n < DS_KVSTORE_MAX_BLOCKS ? n : DS_KVSTORE_MAX_BLOCKS;
    pthread_mutex_lock(&c->mu);
    ds_frame_out out = { .buf = c->out, .cap = DS_FRAME_MAX_PAYLOAD };
    put_keys(&out, keys, n);
    if (c->fd >= 0)
        send_frame(c, &f, &out);
    pthread_mutex_unlock(&c->mu);
}

static ds_rc fetch_remote(ds_kvstore *s, const ds_kvstore_fetch_req *q, uint64_t *ticket, ds_err *err)
{
    client *c = of(s);
    request *r;

    if (fetch_window(c, q)) {
        if (ticket)
            *ticket = UINT64_MAX; /* it is over */
        touch_remote(s, q->keys, 1);
        return DS_OK;
    }
    pthread_mutex_lock(&c->mu);
    r = new_request(c, q->n, q->keys, q->blocks);
    if (!r) {
        pthread_mutex_unlock(&c->mu);
        return ds_fail(err, DS_E_AGAIN, "%d requests are under way", MAX_REQUESTS);
    }
    r->fetch = true;
    r->fetched = q->done;
    r->ctx = q->ctx;
    r->deadline_ns = q->deadline_ns ? q->deadline_ns : r->begun_ns + DEFAULT_LIMIT_NS;
    if (ticket)
        *ticket = (uint64_t)r->gen << 32 | (uint32_t)(r - c->request);
    if (c->fd < 0)
        give_up(c, r, DS_KVSTORE_LOST);
    else
        pump(c);
    pthread_mutex_unlock(&c->mu);
    ring(c); /* its deadline may be the next */
    return DS_OK;
}

static bool cancel_remote(ds_kvstore *s, uint64_t ticket)
{
    client *c = of(s);
    uint32_t i = (uint32_t)ticket;
    request *r;
    bool found;

    if (i >= MAX_REQUESTS)
        return false;
    pthread_mutex_lock(&c->mu);
    r = &c->request[i];
    found = r->used && !r->over && r->fetch && !r->given_up && r->gen == ticket >> 32;
    for (uint32_t k = 0; found && k < DS_WIRE_REQUESTS; k++)
        if (c->chunk[k].id && c->chunk[k].request == i && c->chunk[k].gen == r->gen) {
            ds_frame f = { .type = DS_WIRE_CANCEL, .request = c->chunk[k].id };
            send_frame(c, &f, &(ds_frame_out){ 0 });
        }
    if (found)
        give_up(c, r, DS_KVSTORE_CANCELED);
    pthread_mutex_unlock(&c->mu);
    return found;
}

static ds_rc save_remote(ds_kvstore *s, const ds_kvstore_save_req *q, ds_err *err)
{
    client *c = of(s);
    char *tenant = q->tenant ? strdup(q->tenant) : NULL;
    request *r;

    if (q->tenant && (!tenant || strlen(tenant) > DS_WIRE_TENANT_BYTES)) {
        ds_rc rc = tenant ? ds_fail(err, DS_E_ARG, "save: a tenant's name of %zu bytes", strlen(tenant))
                          : ds_fail(err, DS_E_NOMEM, "out of memory");
        free(tenant);
        return rc;
    }
    pthread_mutex_lock(&c->mu);
    r = new_request(c, q->n, q->keys, q->blocks);
    if (!r) {
        pthread_mutex_unlock(&c->mu);
        free(tenant);
        return ds_fail(err, DS_E_AGAIN, "%d requests are under way", MAX_REQUESTS);
    }
    r->saved = q->done;
    r->ctx = q->ctx;
    r->parent = q->parent;
    r->depth = q->depth;
    r->exact = q->exact;
    r->klass = (uint32_t)q->klass;
    r->tenant = tenant;
    r->brief = q->brief;
    if (c->fd < 0)
        give_up(c, r, DS_KVSTORE_LOST);
    else
        pump(c);
    pthread_mutex_unlock(&c->mu);
    return DS_OK;
}

/* ---- looking after it: a connection for each question ---- */

typedef struct {
    int fd;
    uint64_t epoch;
    uint8_t *buf;
} question;

static void end_question(question *q)
{
    if (q->fd >= 0)
        close(q->fd);
    free(q->buf);
}

static ds_rc ask(client *c, question *q, uint16_t type, const void *payload, size_t n, ds_err *err)
{
    int fds[DS_FRAME_MAX_FDS];
    struct timeval forever = { 0 };
    ds_frame f;
    ds_rc rc;

    *q = (question){ .fd = -1, .buf = malloc(DS_FRAME_MAX_PAYLOAD) };
    rc = q->buf ? connect_to(c->path, &q->fd, err) : ds_fail(err, DS_E_NOMEM, "out of memory");
    if (rc == DS_OK)
        rc = greet(q->fd, NULL, q->buf, &f, fds, err);
    if (rc != DS_OK)
        return rc;
    setsockopt(q->fd, SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof forever); /* verification takes what it takes */
    q->epoch = f.epoch;
    f = (ds_frame){ .type = type, .request = 1, .epoch = q->epoch };
    return ds_frame_send(q->fd, &f, payload, n, NULL, 0, true, err);
}

/* The next frame of an answer; of the type that is expected, or the store's refusal as an error. */
static ds_rc hear(question *q, ds_frame *f, uint16_t type, ds_err *err)
{
    int fds[DS_FRAME_MAX_FDS];
    ds_rc rc = ds_frame_receive(q->fd, f, q->buf, DS_FRAME_MAX_PAYLOAD, fds, err);

    for (int i = 0; rc == DS_OK && i < DS_FRAME_MAX_FDS; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (rc == DS_OK && f->type == DS_WIRE_REFUSED)
        return ds_fail(err, DS_E_IO, "%.*s", (int)(f->bytes < 400 ? f->bytes : 400), (const char *)q->buf);
    if (rc == DS_OK && (f->type != type || f->epoch != q->epoch))
        return ds_fail(err, DS_E_FORMAT, "the store answered with a frame of type %u", f->type);
    return rc;
}

/* n numbers of 8 bytes in answer to a question. */
static ds_rc numbers(client *c, uint16_t type, const void *payload, size_t bytes, uint16_t answer, uint64_t *out, size_t n, ds_err *err)
{
    question q;
    ds_frame f;
    ds_rc rc = ask(c, &q, type, payload, bytes, err);

    if (rc == DS_OK)
        rc = hear(&q, &f, answer, err);
    if (rc == DS_OK && f.bytes != n * 8)
        rc = ds_fail(err, DS_E_FORMAT, "the store answered with %u bytes, not %zu", f.bytes, n * 8);
    if (rc == DS_OK) {
        ds_frame_in in = { .at = q.buf, .end = q.buf + f.bytes };
        for (size_t i = 0; i < n; i++)
            out[i] = ds_frame_u64(&in);
    }
    end_question(&q);
    return rc;
}

static ds_rc stat_remote(ds_kvstore *s, ds_kvstore_stats *out, ds_err *err)
{
    uint64_t word[sizeof *out / 8];
    ds_rc rc = numbers(of(s), DS_WIRE_STAT, NULL, 0, DS_WIRE_STATS, word, sizeof word / 8, err);

    if (rc != DS_OK)
        return rc;
    memcpy(out, word, sizeof *out);
    out->copy_ns += atomic_load_explicit(&of(s)->copy_ns, memory_order_relaxed);
    out->verify_ns += atomic_load_explicit(&of(s)->verify_ns, memory_order_relaxed);
    return DS_OK;
}

static ds_rc verify_remote(ds_kvstore *s, unsigned how, const volatile bool *stop, ds_kvstore_check *out, ds_err *err)
{
    uint8_t buf[4];
    ds_frame_out o = { .buf = buf, .cap = sizeof buf };
    uint64_t word[3];
    ds_rc rc;

    (void)stop; /* the connection is the caller's process's: it ends with it */
    ds_frame_put_u32(&o, how);
    rc = numbers(of(s), DS_WIRE_VERIFY, buf, o.n, DS_WIRE_CHECKED, word, 3, err);
    if (rc == DS_OK)
        *out = (ds_kvstore_check){ .checked = word[0], .bad = word[1], .repaired = word[2] };
    return rc;
}

static ds_rc forget_remote(ds_kvstore *s, const char *tenant, uint64_t *n, ds_err *err)
{
    if (!tenant || strlen(tenant) > DS_WIRE_TENANT_BYTES)
        return ds_fail(err, DS_E_ARG, "forget: no tenant is named, or its name is too long");
    return numbers(of(s), DS_WIRE_FORGET, tenant, strlen(tenant), DS_WIRE_FORGOTTEN, n, 1, err);
}

static ds_kvstore_item item_in(ds_frame_in *in)
{
    ds_kvstore_item x = { 0 };
    uint32_t bits;

    memcpy(x.key.b, ds_frame_bytes(in, 32), 32);
    memcpy(x.parent.b, ds_frame_bytes(in, 32), 32);
    x.segment = ds_frame_u64(in);
    x.used_s = (int64_t)ds_frame_u64(in);
    x.depth = ds_frame_u32(in);
    x.block_bytes = ds_frame_u32(in);
    x.tenant = ds_frame_u32(in);
    bits = ds_frame_u32(in);
    x.klass = (ds_kvstore_class)(bits & 255);
    x.exact = bits & 256;
    return x;
}

static ds_rc list_remote(ds_kvstore *s, bool (*fn)(void *ctx, const ds_kvstore_item *item), void *ctx, ds_err *err)
{
    question q;
    ds_frame f = { 0 };
    bool more = true;
    ds_rc rc = ask(of(s), &q, DS_WIRE_LIST, NULL, 0, err);

    while (rc == DS_OK && more && !(f.flags & DS_WIRE_LAST)) {
        rc = hear(&q, &f, DS_WIRE_ITEMS, err);
        if (rc == DS_OK && f.bytes % DS_WIRE_ITEM_BYTES)
            rc = ds_fail(err, DS_E_FORMAT, "the store answered with %u bytes of items", f.bytes);
        ds_frame_in in = { .at = q.buf, .end = q.buf + f.bytes };
        while (rc == DS_OK && more && in.at < in.end) {
            ds_kvstore_item x = item_in(&in);
            more = fn(ctx, &x);
        }
    }
    end_question(&q);
    return rc;
}

/* ---- the object ---- */

static void close_remote(ds_kvstore *s)
{
    client *c = of(s);
    struct timespec t;
    uint64_t at;

    if (c->has_thread) {
        pthread_mutex_lock(&c->mu);
        c->closing = true;
        for (uint32_t i = 0; i < MAX_REQUESTS; i++)
            if (c->request[i].used && !c->request[i].over && c->request[i].fetch && !c->request[i].given_up)
                give_up(c, &c->request[i], DS_KVSTORE_CANCELED);
        at = ds_now_ns() + CLOSE_S * 1000000000ull; /* for saves that were accepted */
        t = (struct timespec){ .tv_sec = (time_t)(at / 1000000000), .tv_nsec = (long)(at % 1000000000) };
        while (c->n_requests && pthread_cond_timedwait(&c->idle, &c->mu, &t) == 0)
            ;
        c->stopping = true;
        pthread_cond_broadcast(&c->change);
        pthread_mutex_unlock(&c->mu);
        ring(c);
        pthread_join(c->thread, NULL);
        pthread_mutex_lock(&c->mu);
        while (c->n_requests) /* callbacks that others began */
            pthread_cond_wait(&c->idle, &c->mu);
        pthread_mutex_unlock(&c->mu);
    }
    ds_index_destroy(c->ix);
    ds_winpool_destroy(c->windows);
    if (c->fd >= 0) {
        munmap(c->slots.map, c->slots.bytes);
        close(c->fd);
    }
    for (int i = 0; i < 2; i++)
        if (c->bell[i] >= 0)
            close(c->bell[i]);
    pthread_cond_destroy(&c->change);
    pthread_cond_destroy(&c->idle);
    pthread_mutex_destroy(&c->mu);
    pthread_rwlock_destroy(&c->attached);
    free(c->layout);
    free(c->in);
    free(c->out);
    free(c);
}

static const ds_kvstore_ops ops = { .close = close_remote,
                                    .match = match_remote,
                                    .fetch = fetch_remote,
                                    .cancel = cancel_remote,
                                    .save = save_remote,
                                    .touch = touch_remote,
                                    .stat = stat_remote,
                                    .verify = verify_remote,
                                    .forget = forget_remote,
                                    .list = list_remote };

static ds_rc make_bell(client *c, ds_err *err)
{
    return pipe2(c->bell, O_CLOEXEC | O_NONBLOCK) == 0 ? DS_OK : ds_fail(err, DS_E_IO, "pipe: %s", strerror(errno));
}

ds_rc ds_kvstore_connect(ds_kvstore **out, const char *address, const ds_kvstore_user *user, ds_err *err)
{
    client *c;
    pthread_condattr_t a;
    uint8_t id[32];
    ds_rc rc = DS_OK;

    *out = NULL;
    if (strncmp(address, "unix:", 5) != 0 || !address[5] || strlen(address + 5) >= sizeof c->path)
        return ds_fail(err, DS_E_ARG, "%.200s: expected unix:PATH, with at most %zu bytes of path", address, sizeof c->path - 1);
    c = calloc(1, sizeof *c);
    if (!c)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&c->change, &a);
    pthread_cond_init(&c->idle, &a);
    pthread_condattr_destroy(&a);
    pthread_mutex_init(&c->mu, NULL);
    pthread_rwlock_init(&c->attached, NULL);
    c->base.ops = &ops;
    c->fd = c->bell[0] = c->bell[1] = -1;
    strcpy(c->path, address + 5);
    c->in = malloc(DS_FRAME_MAX_PAYLOAD);
    c->out = malloc(DS_FRAME_MAX_PAYLOAD);
    if (!c->in || !c->out)
        rc = ds_fail(err, DS_E_NOMEM, "out of memory");
    if (rc == DS_OK && user) {
        rc = ds_kvstore_check_user(user, id, &c->block_bytes, err);
        c->user = *user;
        c->layout = rc == DS_OK ? malloc(user->layout_bytes) : NULL;
        if (rc == DS_OK && !c->layout)
            rc = ds_fail(err, DS_E_NOMEM, "out of memory");
        if (rc == DS_OK) {
            memcpy(c->layout, user->layout, user->layout_bytes);
            c->user.layout = c->layout;
            c->base.has_user = c->base.brief = true;
            rc = make_bell(c, err);
        }
        if (rc == DS_OK)
            rc = open_connection(c, err);
        if (rc == DS_OK && pthread_create(&c->thread, NULL, run, c) != 0)
            rc = ds_fail(err, DS_E_IO, "no thread for the connection");
        c->has_thread = rc == DS_OK;
    } else if (rc == DS_OK) { /* that it can be asked */
        ds_kvstore_stats st;
        rc = stat_remote(&c->base, &st, err);
    }
    if (rc != DS_OK) {
        close_remote(&c->base);
        return rc;
    }
    *out = &c->base;
    return DS_OK;
}
