/* The store's side of connections. */
#include "kvstore/server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "kv/layout.h"
#include "kvstore/local.h"
#include "kvstore/store_internal.h"
#include "kvstore/winpool.h"
#include "kvstore/wire_internal.h"

enum { DEFAULT_PEERS = 64, LOOK_MS = 200, SEND_TIMEOUT_S = 5, ITEMS = 512 };

typedef struct peer peer;

/* A request under way. */
typedef struct op {
    struct op *next; /* [peer.mu] */
    peer *p;
    uint64_t request, ticket;
    bool begun, done; /* [peer.mu] whoever comes second frees it */
    bool fetch;
} op;

struct peer {
    /* [const] */
    ds_kvserver *s;
    int fd;
    pthread_t thread;
    /* [its thread] */
    bool welcome, engine;
    bool windows; /* an engine's window states go to the pool */
    uint32_t layout, block_bytes;
    ds_wire_slots slots;
    uint8_t *in;
    /* [mu] */
    pthread_mutex_t mu; /* also: one frame at a time is sent */
    pthread_cond_t idle;
    op *ops;
    uint32_t n_ops;
    /* [server.mu] */
    bool ended;
    peer *next;
    /* [atomic] set by who sees that it is gone, read by long work of its thread; nothing is published by it */
    volatile bool stop;
};

struct ds_kvserver {
    /* [const] */
    ds_kvs *st;
    const ds_log *log;
    int listener, wake;
    uint64_t epoch;
    uint32_t max_peers;
    uint64_t window_bytes, window_ttl_ns;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    /* [mu] */
    pthread_mutex_t mu;
    peer *peers;
    uint32_t n_peers, n_engines;
    ds_kv_layout *layout; /* of the engines that are connected */
    /* [pool_mu] */
    pthread_mutex_t pool_mu;
    ds_winpool *pool;   /* NULL: nobody asked for it yet, or there is no memory for it */
    uint32_t n_windows; /* connections that use it */
};

/* ---- answers ---- */

/* Sends without waiting: the answers of all requests together fit into the socket's buffer, so a peer whose buffer is
 * full doesn't read, and is cut off. */
static void answer(peer *p, uint16_t type, uint64_t request, const void *payload, size_t n)
{
    ds_frame f = { .type = type, .request = request, .epoch = p->s->epoch };

    pthread_mutex_lock(&p->mu);
    if (ds_frame_send(p->fd, &f, payload, n, NULL, 0, false, NULL) != DS_OK)
        shutdown(p->fd, SHUT_RDWR);
    pthread_mutex_unlock(&p->mu);
}

static void refuse(peer *p, uint64_t request, const char *why)
{
    answer(p, DS_WIRE_REFUSED, request, why, strlen(why));
}

/* ---- requests under way ---- */

static op *new_op(peer *p, uint64_t request, bool fetch)
{
    op *o = NULL;

    pthread_mutex_lock(&p->mu);
    if (p->n_ops < DS_WIRE_REQUESTS && (o = calloc(1, sizeof *o))) {
        *o = (op){ .next = p->ops, .p = p, .request = request, .fetch = fetch };
        p->ops = o;
        p->n_ops++;
    }
    pthread_mutex_unlock(&p->mu);
    return o;
}

/* [peer.mu] */
static void unlink_op(peer *p, op *o)
{
    op **at = &p->ops;

    while (*at != o)
        at = &(*at)->next;
    *at = o->next;
    p->n_ops--;
    free(o);
    if (p->n_ops == 0)
        pthread_cond_signal(&p->idle);
}

/* The request was accepted, or wasn't; or it ended: the second of both forgets it. */
static void settle(op *o, bool begun, bool done)
{
    peer *p = o->p;

    pthread_mutex_lock(&p->mu);
    o->begun = o->begun || begun;
    o->done = o->done || done;
    if (o->begun && o->done)
        unlink_op(p, o);
    pthread_mutex_unlock(&p->mu);
}

static void fetched(void *ctx, const ds_kvstore_fetched *r)
{
    op *o = ctx;
    uint8_t *buf = malloc(12 + 4 * (size_t)r->n);
    ds_frame_out out = { .buf = buf, .cap = 12 + 4 * (size_t)r->n };

    if (buf) {
        ds_frame_put_u32(&out, r->n);
        ds_frame_put_u32(&out, r->exact);
        ds_frame_put_u32(&out, r->cause);
        for (uint32_t i = 0; i < r->n; i++)
            ds_frame_put_u32(&out, r->crc[i]);
        answer(o->p, DS_WIRE_FETCHED, o->request, buf, out.n);
    } else {
        shutdown(o->p->fd, SHUT_RDWR);
    }
    free(buf);
    settle(o, false, true);
}

static void no_block(peer *p, uint64_t request, ds_kvstore_cause cause)
{
    uint8_t buf[12];
    ds_frame_out out = { .buf = buf, .cap = sizeof buf };

    ds_frame_put_u32(&out, 0);
    ds_frame_put_u32(&out, 0);
    ds_frame_put_u32(&out, cause);
    answer(p, DS_WIRE_FETCHED, request, buf, out.n);
}

static void saved_as(peer *p, uint64_t request, ds_kvstore_saved r)
{
    uint8_t buf[4];
    ds_frame_out out = { .buf = buf, .cap = sizeof buf };

    ds_frame_put_u32(&out, r);
    answer(p, DS_WIRE_SAVED, request, buf, out.n);
}

static void saved(void *ctx, ds_kvstore_saved r)
{
    op *o = ctx;

    saved_as(o->p, o->request, r);
    settle(o, false, true);
}

/* ---- requests ---- */

/* A list of keys, at most what a frame holds. NULL: malformed. The bytes of keys need no alignment. */
static const ds_key *keys_in(ds_frame_in *in, uint32_t *n)
{
    *n = ds_frame_u32(in);
    if (in->bad || *n > DS_FRAME_MAX_PAYLOAD / sizeof(ds_key)) {
        in->bad = true;
        return NULL;
    }
    return (const ds_key *)(const void *)ds_frame_bytes(in, *n * sizeof(ds_key));
}

/* Addresses of the slots that a request owns. NULL: it doesn't own them all, or out of memory. */
static uint8_t **slots_in(peer *p, ds_frame_in *in, uint32_t n, uint64_t request)
{
    uint8_t **at = malloc(n * sizeof *at + 1);

    for (uint32_t i = 0; at && i < n; i++) {
        uint32_t slot = ds_frame_u32(in);
        if (in->bad || slot >= p->slots.n || ds_wire_owner(&p->slots, slot) != request) {
            free(at);
            return NULL;
        }
        at[i] = ds_wire_slot(&p->slots, slot);
    }
    return at;
}

static bool on_fetch(peer *p, const ds_frame *f, ds_frame_in *in)
{
    uint32_t n;
    const ds_key *keys = keys_in(in, &n);
    uint8_t **blocks = keys && n ? slots_in(p, in, n, f->request) : NULL;
    op *o;
    uint64_t ticket = 0;
    ds_kvstore_fetch_req r = { .keys = keys, .blocks = blocks, .n = n, .done = fetched };

    if (!blocks || in->at != in->end) {
        free(blocks);
        return false;
    }
    r.deadline_ns = f->left_ns && f->left_ns < 1ull << 60 ? ds_now_ns() + f->left_ns : 0;
    o = new_op(p, f->request, true);
    r.ctx = o;
    if (!o || ds_kvs_fetch_begin(p->s->st, p->layout, &r, &ticket, NULL) != DS_OK) {
        if (o)
            settle(o, true, true);
        no_block(p, f->request, DS_KVSTORE_BUSY);
    } else {
        pthread_mutex_lock(&p->mu);
        o->ticket = ticket; /* it isn't freed yet: it wasn't begun */
        pthread_mutex_unlock(&p->mu);
        settle(o, true, false);
    }
    free(blocks);
    return true;
}

static void on_cancel(peer *p, uint64_t request)
{
    uint64_t ticket = 0;
    bool found = false;

    pthread_mutex_lock(&p->mu);
    for (op *o = p->ops; o && !found; o = o->next)
        if (o->fetch && o->request == request) {
            ticket = o->ticket;
            found = true;
        }
    pthread_mutex_unlock(&p->mu);
    if (found)
        ds_kvs_cancel(p->s->st, ticket);
}

/* Into the window pool: then others find them at once. */
static void put_windows(peer *p, const ds_key *keys, uint8_t *const *blocks, uint32_t n, uint32_t exact)
{
    for (uint32_t i = 0; i < n; i++) {
        pthread_mutex_lock(&p->s->pool_mu);
        ds_winpool_put(p->s->pool, &keys[i], blocks[i], i >= exact, ds_now_ns());
        pthread_mutex_unlock(&p->s->pool_mu);
    }
}

static bool on_save(peer *p, const ds_frame *f, ds_frame_in *in)
{
    char tenant[DS_WIRE_TENANT_BYTES + 1];
    const uint8_t *parent = ds_frame_bytes(in, sizeof(ds_key)), *name;
    uint32_t depth = ds_frame_u32(in), exact = ds_frame_u32(in), klass = ds_frame_u32(in), name_bytes = ds_frame_u32(in), n;
    const ds_key *keys;
    uint8_t **blocks;
    op *o;

    if (name_bytes != UINT32_MAX && (name_bytes > DS_WIRE_TENANT_BYTES || !(name = ds_frame_bytes(in, name_bytes))))
        return false;
    if (name_bytes != UINT32_MAX) {
        memcpy(tenant, in->at - name_bytes, name_bytes);
        tenant[name_bytes] = 0;
    }
    keys = keys_in(in, &n);
    blocks = keys && n ? slots_in(p, in, n, f->request) : NULL;
    if (!parent || !blocks || in->at != in->end || exact > n || klass >= DS_KVSTORE_CLASSES ||
        depth > UINT32_MAX - 2 * DS_KVSTORE_MAX_BLOCKS) {
        free(blocks);
        return false;
    }
    ds_kvstore_save_req r = { .keys = keys,
                              .blocks = (const uint8_t *const *)blocks,
                              .n = n,
                              .depth = depth,
                              .exact = exact,
                              .klass = (ds_kvstore_class)klass,
                              .tenant = name_bytes == UINT32_MAX ? NULL : tenant,
                              .done = saved };
    memcpy(r.parent.b, parent, sizeof r.parent.b);
    if (p->windows)
        put_windows(p, keys, blocks, n, exact);
    if (f->flags & DS_WIRE_BRIEF) {
        saved_as(p, f->request, p->windows ? DS_KVSTORE_SAVED : DS_KVSTORE_FULL);
        free(blocks);
        return true;
    }
    o = new_op(p, f->request, false);
    r.ctx = o;
    if (!o || ds_kvs_save_begin(p->s->st, p->layout, &r, NULL) != DS_OK) {
        if (o)
            settle(o, true, true);
        saved_as(p, f->request, DS_KVSTORE_FAILED);
    } else {
        settle(o, true, false);
    }
    free(blocks);
    return true;
}

static bool on_touch(peer *p, ds_frame_in *in)
{
    uint32_t n;
    const ds_key *keys = keys_in(in, &n);

    if (!keys || in->at != in->end)
        return false;
    ds_kvs_touch(p->s->st, keys, n);
    pthread_mutex_lock(&p->s->pool_mu);
    for (uint32_t i = 0; p->windows && i < n; i++)
        ds_winpool_touch(p->s->pool, &keys[i], ds_now_ns());
    pthread_mutex_unlock(&p->s->pool_mu);
    return true;
}

/* ---- who looks after the store ---- */

static void stat_windows(ds_kvserver *s, ds_kvstore_stats *st)
{
    ds_winpool_stats w = { 0 };

    pthread_mutex_lock(&s->pool_mu);
    if (s->pool)
        ds_winpool_stat(s->pool, &w);
    pthread_mutex_unlock(&s->pool_mu);
    st->windows = w.used;
    st->max_windows = w.slots;
    st->window_bytes = w.bytes;
    st->window_puts = w.put;
    st->window_hits = w.hits;
    st->window_expired = w.expired;
    st->window_displaced = w.displaced;
}

static void on_stat(peer *p, uint64_t request)
{
    uint8_t buf[sizeof(ds_kvstore_stats)];
    ds_frame_out out = { .buf = buf, .cap = sizeof buf };
    ds_kvstore_stats st;
    uint64_t word;

    ds_kvstore_stat(&p->s->st->base, &st, NULL);
    stat_windows(p->s, &st);
    for (size_t i = 0; i < sizeof st; i += sizeof word) {
        memcpy(&word, (const char *)&st + i, sizeof word);
        ds_frame_put_u64(&out, word);
    }
    answer(p, DS_WIRE_STATS, request, buf, out.n);
}

typedef struct {
    peer *p;
    uint64_t request;
    ds_frame_out out;
    bool failed;
} listing;

/* Waits for the reader, for so long: it is this connection's own thread. */
static void send_items(listing *l, bool last)
{
    ds_frame f = { .type = DS_WIRE_ITEMS, .request = l->request, .epoch = l->p->s->epoch, .flags = last ? DS_WIRE_LAST : 0 };

    l->failed = l->failed || ds_frame_send(l->p->fd, &f, l->out.buf, l->out.n, NULL, 0, true, NULL) != DS_OK;
    l->out.n = 0;
}

static bool add_item(void *ctx, const ds_kvstore_item *x)
{
    listing *l = ctx;

    ds_frame_put(&l->out, x->key.b, 32);
    ds_frame_put(&l->out, x->parent.b, 32);
    ds_frame_put_u64(&l->out, x->segment);
    ds_frame_put_u64(&l->out, (uint64_t)x->used_s);
    ds_frame_put_u32(&l->out, x->depth);
    ds_frame_put_u32(&l->out, x->block_bytes);
    ds_frame_put_u32(&l->out, x->tenant);
    ds_frame_put_u32(&l->out, (uint32_t)x->klass | (x->exact ? 256 : 0));
    if (l->out.cap - l->out.n < DS_WIRE_ITEM_BYTES)
        send_items(l, false);
    return !l->failed;
}

static void on_list(peer *p, uint64_t request)
{
    uint8_t buf[ITEMS * DS_WIRE_ITEM_BYTES];
    listing l = { .p = p, .request = request, .out = { .buf = buf, .cap = sizeof buf } };

    ds_kvstore_list(&p->s->st->base, add_item, &l, NULL);
    send_items(&l, true);
    if (l.failed)
        shutdown(p->fd, SHUT_RDWR);
}

static bool on_verify(peer *p, uint64_t request, ds_frame_in *in)
{
    uint32_t how = ds_frame_u32(in);
    uint8_t buf[24];
    ds_frame_out out = { .buf = buf, .cap = sizeof buf };
    ds_kvstore_check c = { 0 };
    ds_err err = { 0 };

    if (in->bad || in->at != in->end)
        return false;
    if (ds_kvs_verify(p->s->st, how, &p->stop, &c, &err) != DS_OK) {
        refuse(p, request, err.msg);
        return true;
    }
    ds_frame_put_u64(&out, c.checked);
    ds_frame_put_u64(&out, c.bad);
    ds_frame_put_u64(&out, c.repaired);
    answer(p, DS_WIRE_CHECKED, request, buf, out.n);
    return true;
}

static bool on_forget(peer *p, uint64_t request, const uint8_t *name, size_t n)
{
    char tenant[DS_WIRE_TENANT_BYTES + 1];
    uint8_t buf[8];
    ds_frame_out out = { .buf = buf, .cap = sizeof buf };
    uint64_t blocks = 0;
    ds_err err = { 0 };

    if (n > DS_WIRE_TENANT_BYTES || memchr(name, 0, n))
        return false;
    memcpy(tenant, name, n);
    tenant[n] = 0;
    if (ds_kvs_forget(p->s->st, tenant, &blocks, &err) != DS_OK) {
        refuse(p, request, err.msg);
        return true;
    }
    ds_frame_put_u64(&out, blocks);
    answer(p, DS_WIRE_FORGOTTEN, request, buf, out.n);
    return true;
}

/* ---- the beginning of a connection ---- */

static int make_slots(ds_wire_slots *s, uint32_t block_bytes, ds_err *err)
{
    int fd = memfd_create("deepserve-kv-slots", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    s->n = DS_WIRE_SLOTS;
    s->stride = ds_wire_stride(block_bytes);
    s->bytes = ds_wire_slots_head(s->n) + s->n * s->stride;
    if (fd < 0 || ftruncate(fd, (off_t)s->bytes) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        goto fail;
    s->map = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (s->map != MAP_FAILED)
        return fd;
    s->map = NULL;
fail:
    ds_fail(err, DS_E_IO, "shared memory for an engine's slots: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    return -1;
}

/* [server.mu] All engines have one layout. One without parts is of their window states, which are of another size. */
static ds_rc join_layout(ds_kvserver *s, const ds_kv_layout *l, ds_err *err)
{
    char text[200];

    if (l->n_parts == 0) {
        s->n_engines++;
        return DS_OK;
    }
    if (s->n_engines && s->layout->n_parts && *ds_kv_layout_difference(text, sizeof text, s->layout, l))
        return ds_fail(err, DS_E_ARG, "another layout than that of the engines that are connected: %s", text);
    *s->layout = *l;
    s->n_engines++;
    return DS_OK;
}

/* The pool for states of this size, made when the first engine comes that has such. It outlives the engines, so that
 * one that starts again finds its states; for states of another size it is made anew when nobody uses it. Without one
 * the engine does without. */
static void join_windows(peer *p, int fds[2])
{
    ds_kvserver *s = p->s;
    ds_winpool_opts o = { .slot_bytes = p->block_bytes, .ttl_ns = s->window_ttl_ns };
    uint64_t slots = s->window_bytes / ds_wire_stride(p->block_bytes);
    ds_err err;

    o.slots = slots < DS_WINPOOL_MAX_SLOTS ? (uint32_t)slots : DS_WINPOOL_MAX_SLOTS;
    if (s->window_bytes == 0)
        return;
    pthread_mutex_lock(&s->pool_mu);
    if (s->pool && s->n_windows == 0 && ds_winpool_slot_bytes(s->pool) != p->block_bytes) {
        ds_winpool_destroy(s->pool);
        s->pool = NULL;
    }
    if (!s->pool && ds_winpool_create(&s->pool, &o, &err) != DS_OK)
        ds_logf(s->log, DS_LOG_WARN, "kvd keeps no window states: %s", err.msg);
    p->windows = s->pool && ds_winpool_slot_bytes(s->pool) == p->block_bytes;
    if (p->windows) {
        s->n_windows++;
        ds_winpool_fds(s->pool, fds);
    }
    pthread_mutex_unlock(&s->pool_mu);
}

/* fds: of the slots, and of the window pool's two parts, -1 where there is none. The first is the caller's to close. */
static ds_rc welcome_engine(peer *p, ds_frame_in *in, int fds[3], ds_err *err)
{
    ds_kvstore_user u = { 0 };
    const uint8_t *model = ds_frame_bytes(in, 32), *tokenizer = ds_frame_bytes(in, 32), *dialect = ds_frame_bytes(in, 32);
    ds_kv_layout *l;
    uint8_t id[32];
    ds_rc rc;

    u.layout_bytes = ds_frame_u32(in);
    u.layout = ds_frame_bytes(in, u.layout_bytes);
    if (in->bad || in->at != in->end)
        return ds_fail(err, DS_E_FORMAT, "HELLO: malformed");
    memcpy(u.model, model, 32);
    memcpy(u.tokenizer, tokenizer, 32);
    memcpy(u.dialect, dialect, 32);
    rc = ds_kvstore_check_user(&u, id, &p->block_bytes, err);
    if (rc != DS_OK)
        return rc;
    p->layout = ds_kvs_layout_of(p->s->st, id, p->block_bytes);
    if (p->layout == DS_NONE)
        return ds_fail(err, DS_E_AGAIN, "the store knows %d layouts already", DS_KVS_LAYOUTS);
    l = malloc(sizeof *l);
    rc = l ? ds_kv_layout_read(l, u.layout, u.layout_bytes, err) : ds_fail(err, DS_E_NOMEM, "out of memory");
    if (rc == DS_OK) {
        pthread_mutex_lock(&p->s->mu);
        rc = join_layout(p->s, l, err);
        pthread_mutex_unlock(&p->s->mu);
        p->engine = rc == DS_OK;
    }
    if (rc == DS_OK && (fds[0] = make_slots(&p->slots, p->block_bytes, err)) < 0)
        rc = DS_E_IO;
    if (rc == DS_OK && l->n_parts == 0)
        join_windows(p, fds + 1);
    free(l);
    return rc;
}

static bool on_hello(peer *p, const ds_frame *f, ds_frame_in *in)
{
    uint32_t engine = ds_frame_u32(in);
    uint8_t buf[12];
    ds_frame_out out = { .buf = buf, .cap = sizeof buf };
    ds_frame w = { .type = DS_WIRE_WELCOME, .request = f->request, .epoch = p->s->epoch };
    int fds[4] = { ds_index_fd(p->s->st->ix), -1, -1, -1 };
    ds_err err = { 0 };
    ds_rc rc = DS_OK;

    if (in->bad || engine > 1)
        return false;
    if (engine)
        rc = welcome_engine(p, in, fds + 1, &err);
    if (rc != DS_OK) {
        ds_logf(p->s->log, DS_LOG_WARN, "kvd refused: %s", err.msg);
        refuse(p, f->request, err.msg);
        return false;
    }
    ds_frame_put_u32(&out, p->slots.n);
    ds_frame_put_u32(&out, (uint32_t)p->slots.stride);
    ds_frame_put_u32(&out, p->block_bytes);
    rc = ds_frame_send(p->fd, &w, buf, out.n, fds, p->windows ? 4 : engine ? 2 : 0, true, NULL);
    if (fds[1] >= 0)
        close(fds[1]); /* our mapping stays */
    p->welcome = true;
    return rc == DS_OK;
}

/* False: the connection is to end. */
static bool dispatch(peer *p, const ds_frame *f, const uint8_t *payload)
{
    ds_frame_in in = { .at = payload, .end = payload + f->bytes };

    if (!p->welcome)
        return f->type == DS_WIRE_HELLO && on_hello(p, f, &in);
    if (f->epoch != p->s->epoch) {
        refuse(p, f->request, "the frame is for another epoch");
        return false;
    }
    switch (f->type) {
    case DS_WIRE_FETCH:
        return p->engine && on_fetch(p, f, &in);
    case DS_WIRE_CANCEL:
        on_cancel(p, f->request);
        return p->engine;
    case DS_WIRE_SAVE:
        return p->engine && on_save(p, f, &in);
    case DS_WIRE_TOUCH:
        return p->engine && on_touch(p, &in);
    case DS_WIRE_STAT:
        on_stat(p, f->request);
        return true;
    case DS_WIRE_LIST:
        if (p->engine)
            return false;
        on_list(p, f->request);
        return true;
    case DS_WIRE_VERIFY:
        return !p->engine && on_verify(p, f->request, &in);
    case DS_WIRE_FORGET:
        return !p->engine && on_forget(p, f->request, payload, f->bytes);
    default:
        return false;
    }
}

/* ---- connections ---- */

static void release(peer *p)
{
    ds_kvserver *s = p->s;

    for (bool found = true; found;) { /* its share: fetches are cancelled, saves end by themselves */
        uint64_t ticket = 0;
        found = false;
        pthread_mutex_lock(&p->mu);
        for (op *o = p->ops; o && !found; o = o->next)
            if (o->fetch) {
                ticket = o->ticket;
                o->fetch = false; /* once is enough */
                found = true;
            }
        pthread_mutex_unlock(&p->mu);
        if (found)
            ds_kvs_cancel(s->st, ticket);
    }
    pthread_mutex_lock(&p->mu);
    while (p->n_ops)
        pthread_cond_wait(&p->idle, &p->mu);
    pthread_mutex_unlock(&p->mu);
    if (p->slots.map)
        munmap(p->slots.map, p->slots.bytes);
    free(p->in);
    p->in = NULL;
    pthread_mutex_lock(&s->pool_mu);
    s->n_windows -= p->windows;
    pthread_mutex_unlock(&s->pool_mu);
    pthread_mutex_lock(&s->mu);
    s->n_engines -= p->engine;
    p->ended = true;
    pthread_mutex_unlock(&s->mu);
    eventfd_write(s->wake, 1);
}

static void *serve_peer(void *arg)
{
    peer *p = arg;
    int fds[DS_FRAME_MAX_FDS];
    ds_frame f;
    ds_err err = { 0 };

    while (ds_frame_receive(p->fd, &f, p->in, DS_FRAME_MAX_PAYLOAD, fds, &err) == DS_OK) {
        for (int i = 0; i < DS_FRAME_MAX_FDS; i++)
            if (fds[i] >= 0)
                close(fds[i]); /* nobody has any to give us */
        if (!dispatch(p, &f, p->in)) {
            ds_logf(p->s->log, DS_LOG_WARN, "kvd cut off: a frame of type %u that makes no sense here", f.type);
            break;
        }
    }
    shutdown(p->fd, SHUT_RDWR);
    release(p);
    return NULL;
}

static void free_peer(peer *p)
{
    close(p->fd);
    pthread_cond_destroy(&p->idle);
    pthread_mutex_destroy(&p->mu);
    free(p->in);
    free(p);
}

static void accept_one(ds_kvserver *s)
{
    int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC), size = DS_WIRE_SOCKET_BYTES;
    struct timeval t = { .tv_sec = SEND_TIMEOUT_S };
    peer *p;

    if (fd < 0)
        return;
    p = s->n_peers < s->max_peers ? calloc(1, sizeof *p) : NULL;
    if (p)
        p->in = malloc(DS_FRAME_MAX_PAYLOAD);
    if (!p || !p->in) {
        ds_logf(s->log, DS_LOG_WARN, "kvd refused: %u connections", s->n_peers);
        free(p);
        close(fd);
        return;
    }
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
    p->s = s;
    p->fd = fd;
    pthread_mutex_init(&p->mu, NULL);
    pthread_cond_init(&p->idle, NULL);
    if (pthread_create(&p->thread, NULL, serve_peer, p) != 0) {
        free_peer(p);
        return;
    }
    pthread_mutex_lock(&s->mu);
    p->next = s->peers;
    s->peers = p;
    s->n_peers++;
    pthread_mutex_unlock(&s->mu);
}

/* Joins those that ended; tells those whose other side has gone while they work at length. */
static void look_at_peers(ds_kvserver *s)
{
    peer *gone = NULL;

    pthread_mutex_lock(&s->mu);
    for (peer **at = &s->peers, *p; (p = *at);) {
        char c;
        if (!p->ended) {
            if (recv(p->fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
                p->stop = true;
            at = &p->next;
            continue;
        }
        *at = p->next;
        p->next = gone;
        gone = p;
        s->n_peers--;
    }
    pthread_mutex_unlock(&s->mu);
    for (peer *next; gone; gone = next) {
        next = gone->next;
        pthread_join(gone->thread, NULL);
        free_peer(gone);
    }
}

static ds_rc listen_at(ds_kvserver *s, ds_err *err)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    mode_t was;
    int e;

    strcpy(a.sun_path, s->path);
    s->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->listener < 0)
        return ds_fail(err, DS_E_IO, "socket: %s", strerror(errno));
    if (connect(s->listener, (struct sockaddr *)&a, sizeof a) == 0)
        return ds_fail(err, DS_E_AGAIN, "unix:%s: another process listens there", s->path);
    if (errno == ECONNREFUSED)
        unlink(s->path); /* left by one that was killed */
    was = umask(0177);
    e = bind(s->listener, (struct sockaddr *)&a, sizeof a) != 0 || listen(s->listener, 64) != 0 ? errno : 0;
    umask(was);
    return e ? ds_fail(err, DS_E_IO, "unix:%s: %s", s->path, strerror(e)) : DS_OK;
}

ds_rc ds_kvserver_open(ds_kvserver **out, const ds_kvserver_opts *o, ds_err *err)
{
    ds_kvserver *s = calloc(1, sizeof *s);
    ds_rc rc = DS_OK;

    *out = NULL;
    if (!s)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    s->listener = s->wake = -1;
    pthread_mutex_init(&s->mu, NULL);
    pthread_mutex_init(&s->pool_mu, NULL);
    s->window_bytes = o->window_bytes;
    s->window_ttl_ns = o->window_ttl_ns;
    s->st = (ds_kvs *)o->store;
    s->log = o->log;
    s->max_peers = o->max_peers ? o->max_peers : DEFAULT_PEERS;
    s->layout = malloc(sizeof *s->layout);
    if (!s->layout)
        rc = ds_fail(err, DS_E_NOMEM, "out of memory");
    else if (strlen(o->path) == 0 || strlen(o->path) >= sizeof s->path)
        rc = ds_fail(err, DS_E_ARG, "a socket's path has 1 to %zu bytes", sizeof s->path - 1);
    else
        strcpy(s->path, o->path);
    if (rc == DS_OK && (s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
        rc = ds_fail(err, DS_E_IO, "eventfd: %s", strerror(errno));
    if (rc == DS_OK && getrandom(&s->epoch, sizeof s->epoch, 0) != sizeof s->epoch)
        rc = ds_fail(err, DS_E_IO, "no random numbers: %s", strerror(errno));
    if (rc == DS_OK)
        rc = listen_at(s, err);
    if (rc != DS_OK) {
        s->path[0] = 0; /* it isn't ours */
        ds_kvserver_close(s);
        return rc;
    }
    *out = s;
    return DS_OK;
}

void ds_kvserver_run(ds_kvserver *s)
{
    bool stop = false;
    eventfd_t n;

    while (!stop) {
        struct pollfd p[2] = { { .fd = s->listener, .events = POLLIN }, { .fd = s->wake, .events = POLLIN } };
        poll(p, 2, LOOK_MS);
        if (p[1].revents && eventfd_read(s->wake, &n) == 0)
            stop = n >= 1ull << 32;
        if (p[0].revents)
            accept_one(s);
        look_at_peers(s);
        pthread_mutex_lock(&s->pool_mu);
        if (s->pool)
            ds_winpool_tick(s->pool, ds_now_ns());
        pthread_mutex_unlock(&s->pool_mu);
    }
    pthread_mutex_lock(&s->mu);
    for (peer *p = s->peers; p; p = p->next) {
        p->stop = true;
        shutdown(p->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&s->mu);
    while (s->n_peers) {
        struct pollfd p = { .fd = s->wake, .events = POLLIN };
        poll(&p, 1, LOOK_MS);
        eventfd_read(s->wake, &n);
        look_at_peers(s);
    }
}

void ds_kvserver_stop(ds_kvserver *s)
{
    eventfd_write(s->wake, 1ull << 32); /* peers that end add ones */
}

void ds_kvserver_close(ds_kvserver *s)
{
    if (!s)
        return;
    if (s->listener >= 0) {
        close(s->listener);
        if (s->path[0])
            unlink(s->path);
    }
    if (s->wake >= 0)
        close(s->wake);
    pthread_mutex_destroy(&s->mu);
    pthread_mutex_destroy(&s->pool_mu);
    ds_winpool_destroy(s->pool);
    free(s->layout);
    free(s);
}
