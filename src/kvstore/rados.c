/* Segments as objects of a Ceph RADOS pool. One device: what keeps bytes when disks die is the pool's own code.
 *
 * Names are those of files in a directory, `store.json` and `<16 hex>.seg`, in the namespace of the place. Writes are
 * asynchronous and in order; an acknowledged one is as durable as the pool makes it. An erasure-coded pool takes writes
 * only at an object's end and at multiples of its stripe, which becomes the volume's alignment.
 *
 * Two processes with one store. The lock on `store.json` is a lease: its owner renews it, and who was killed loses it
 * after LEASE_S. Who lost it without knowing does no harm: an object is created exclusively and carries the name of its
 * writer, each write asks for that name, and who recovers an unfinished segment puts its own in its place.
 *
 * Every call to the cluster ends: librados gives up an operation after OP_LIMIT (the configuration file's
 * rados_osd_op_timeout, where it is set), and what is read with a deadline is cancelled at it.
 *
 * Threads: the writer; readers, each with a queue; librados's own, which call back; the keeper, which renews the lease
 * and removes what couldn't be removed at once. No lock is held during a call to librados. */
#include "kvstore/files_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/hash.h"
#include "kvstore/format.h"
#include "kvstore/place.h"
#include "kvstore/rados_api.h"

enum {
    STORE_FILE_MAX_BYTES = 4096,
    LEASE_S = 6, /* renewed every third of it */
    MAX_WRITES = 64,
    MAX_WRITE_BYTES = 64 << 20, /* under way, but one write of any size may be */
    MAX_FILES = 16,             /* open for writing: one for each class, and what is finished after a kill */
    MAX_DOOMED = 256,
    RUN_BYTES = 2 << 20, /* more bring little more, and each reader has as much memory (bench/results) */
};

static const char op_limit[] = "30", connect_limit[] = "20"; /* seconds */
static const char store_name[] = "store.json", lock_name[] = "store", writer_attr[] = "writer";

/* A write under way. */
typedef struct {
    struct pool *of;
    void *completion; /* NULL: this one isn't used */
    uint32_t file;    /* MAX_FILES: of none that is still written */
    size_t bytes;
    bool done; /* [mu] */
} write_op;

/* [writer] A segment that is written. */
typedef struct {
    bool used, failed;
    uint64_t segment, size; /* size: with what is under way */
} file;

typedef struct pool {
    ds_files base; /* first */
    /* [const] */
    const ds_rados_api *api;
    ds_place place;
    char label[120];
    void *cluster, *io;
    char writer[33]; /* who we are */
    bool locked, has_keeper;
    pthread_t keeper;
    /* [atomic] relaxed: words between threads, by which nothing is published */
    atomic_bool lost;              /* another process has the lease */
    atomic_uint_least64_t mute;    /* operations that the cluster didn't answer in time */
    atomic_uint_least64_t ours_ns; /* until then nobody else can have the lease */
    /* [writer] */
    write_op op[MAX_WRITES];
    size_t bytes; /* under way */
    file file[MAX_FILES];
    /* [mu] */
    pthread_mutex_t mu;
    pthread_cond_t done, wake; /* a write is done; the keeper has to do something */
    uint64_t doomed[MAX_DOOMED];
    uint32_t n_doomed;
    bool stopping;
} pool;

static pool *of(ds_files *f)
{
    return (pool *)f;
}

static void object_name(char out[24], uint64_t segment)
{
    snprintf(out, 24, "%016" PRIx64 ".seg", segment);
}

/* Notes what the cluster said, and passes it on. */
static int heard(pool *x, int rc)
{
    if (rc == -ETIMEDOUT)
        atomic_fetch_add_explicit(&x->mute, 1, memory_order_relaxed);
    return rc;
}

static ds_rc failed(const pool *x, int rc, const char *what, ds_err *err)
{
    return ds_fail(err, rc == -ENOMEM ? DS_E_NOMEM : DS_E_IO, "%s: %s: %s", x->label, what, strerror(-rc));
}

/* ---- the cluster ---- */

/* Sets an option that the configuration file leaves as it is by itself. */
static int set_if(pool *x, const char *option, const char *unset, const char *value)
{
    char now[64] = "";
    int rc = x->api->conf_get(x->cluster, option, now, sizeof now);

    return rc == 0 && strtod(now, NULL) == strtod(unset, NULL) ? x->api->conf_set(x->cluster, option, value) : rc;
}

static ds_rc connect_pool(pool *x, ds_err *err)
{
    const ds_rados_api *a = x->api;
    uint64_t align = 0;
    int rc = a->create(&x->cluster, x->place.id);

    if (rc != 0) {
        x->cluster = NULL;
        return failed(x, rc, "librados", err);
    }
    rc = a->conf_set(x->cluster, "err_to_stderr", "false"); /* what it has to say comes as our message */
    if (rc == 0)
        rc = a->conf_read_file(x->cluster, x->place.conf[0] ? x->place.conf : NULL);
    if (rc != 0)
        return failed(x, rc, x->place.conf[0] ? x->place.conf : "no configuration of Ceph, such as /etc/ceph/ceph.conf", err);
    rc = set_if(x, "rados_osd_op_timeout", "0", op_limit);
    rc = rc ? rc : set_if(x, "rados_mon_op_timeout", "0", op_limit);
    rc = rc ? rc : set_if(x, "client_mount_timeout", "300", connect_limit);
    rc = rc ? rc : a->connect(x->cluster);
    if (rc != 0)
        return failed(x, rc, "the cluster can't be reached", err);
    rc = a->ioctx_create(x->cluster, x->place.pool, &x->io);
    if (rc != 0) {
        x->io = NULL;
        return failed(x, rc, "the pool", err);
    }
    a->ioctx_set_namespace(x->io, x->place.name_space);
    rc = a->ioctx_pool_required_alignment2(x->io, &align);
    if (rc != 0)
        return failed(x, rc, "the pool", err);
    while (align > 1 && (x->base.align < align || x->base.align % align) && x->base.align <= DS_SEG_MAX_ALIGN)
        x->base.align += DS_SEG_ALIGN; /* a common multiple */
    return x->base.align <= DS_SEG_MAX_ALIGN
               ? DS_OK
               : ds_fail(err, DS_E_ARG, "%s: the pool's stripes of %" PRIu64 " bytes are too large", x->label, align);
}

static void close_pool(ds_files *f)
{
    pool *x = of(f);

    if (x->has_keeper) {
        pthread_mutex_lock(&x->mu);
        x->stopping = true;
        pthread_cond_signal(&x->wake);
        pthread_mutex_unlock(&x->mu);
        pthread_join(x->keeper, NULL);
    }
    for (int i = 0; i < MAX_WRITES; i++) { /* their callbacks write here; each comes, if only because it is late */
        pthread_mutex_lock(&x->mu);
        while (x->op[i].completion && !x->op[i].done)
            pthread_cond_wait(&x->done, &x->mu);
        pthread_mutex_unlock(&x->mu);
        if (x->op[i].completion)
            x->api->aio_release(x->op[i].completion);
    }
    if (x->locked)
        x->api->unlock(x->io, store_name, lock_name, x->writer);
    if (x->io)
        x->api->ioctx_destroy(x->io);
    if (x->cluster)
        x->api->shutdown(x->cluster);
    pthread_cond_destroy(&x->done);
    pthread_cond_destroy(&x->wake);
    pthread_mutex_destroy(&x->mu);
    free(x);
}

static uint64_t mute(ds_files *f)
{
    return atomic_load_explicit(&of(f)->mute, memory_order_relaxed);
}

/* ---- the store file and the lease ---- */

static ds_rc read_store(ds_files *f, uint32_t place, char **text, ds_err *err)
{
    pool *x = of(f);
    char *p = malloc(STORE_FILE_MAX_BYTES + 1);
    int n;

    (void)place;
    *text = NULL;
    if (!p)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    n = heard(x, x->api->read(x->io, store_name, p, STORE_FILE_MAX_BYTES, 0));
    if (n < 0) {
        free(p);
        return n == -ENOENT ? DS_OK : failed(x, n, store_name, err);
    }
    p[n] = 0;
    *text = p;
    return DS_OK;
}

static int lock_store(pool *x, uint8_t flags)
{
    struct timeval lease = { .tv_sec = LEASE_S };
    uint64_t from = ds_now_ns();
    int rc = heard(x, x->api->lock_exclusive(x->io, store_name, lock_name, x->writer, "deepserve", &lease, flags));

    if (rc == 0)
        atomic_store_explicit(&x->ours_ns, from + (LEASE_S - 1) * (uint64_t)1000000000, memory_order_relaxed);
    return rc;
}

/* Removes an object if the store is certainly ours: another process may have it in its index. */
static int remove_object(pool *x, uint64_t segment)
{
    char name[24];
    int rc;

    if (ds_now_ns() >= atomic_load_explicit(&x->ours_ns, memory_order_relaxed))
        return -EAGAIN;
    object_name(name, segment);
    rc = heard(x, x->api->remove(x->io, name));
    return rc == -ENOENT ? 0 : rc;
}

static void *keep(void *arg)
{
    pool *x = arg;

    pthread_mutex_lock(&x->mu);
    while (!x->stopping) {
        uint64_t until = ds_now_ns() + LEASE_S * (uint64_t)1000000000 / 3;
        struct timespec t = { .tv_sec = (time_t)(until / 1000000000), .tv_nsec = (long)(until % 1000000000) };
        pthread_cond_timedwait(&x->wake, &x->mu, &t);
        if (x->stopping)
            break;
        uint64_t segment = x->n_doomed ? x->doomed[0] : 0;
        pthread_mutex_unlock(&x->mu);
        int rc = lock_store(x, DS_RADOS_LOCK_RENEW);
        if (rc == -EBUSY)
            atomic_store_explicit(&x->lost, true, memory_order_relaxed);
        bool gone = segment && remove_object(x, segment) == 0;
        pthread_mutex_lock(&x->mu);
        if (gone)
            x->doomed[0] = x->doomed[--x->n_doomed];
    }
    pthread_mutex_unlock(&x->mu);
    return NULL;
}

/* Waits for a lease that may be of a process that was killed. */
static int take_lease(pool *x)
{
    uint64_t until = ds_now_ns() + (LEASE_S + 2) * (uint64_t)1000000000; /* the OSD counts whole seconds */
    int rc;

    while ((rc = lock_store(x, 0)) == -EBUSY && ds_now_ns() < until)
        nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
    return rc;
}

static void detach(ds_files *f, uint32_t d)
{
    (void)d;
    of(f)->api->remove(of(f)->io, store_name);
}

static ds_rc attach(ds_files *f, uint32_t place, uint32_t d, const char *text, ds_err *err)
{
    pool *x = of(f);
    void *op = text ? x->api->create_write_op() : NULL;
    int rc = 0;

    (void)place;
    if (text && !op)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    if (text) {
        x->api->write_op_create(op, DS_RADOS_CREATE_EXCLUSIVE, NULL);
        x->api->write_op_write(op, text, strlen(text), 0);
        rc = heard(x, x->api->write_op_operate(op, x->io, store_name, NULL, DS_RADOS_FULL_TRY));
        x->api->release_write_op(op);
        if (rc != 0)
            return failed(x, rc, store_name, err);
    }
    rc = take_lease(x);
    x->locked = rc == 0;
    if (rc == 0 && pthread_create(&x->keeper, NULL, keep, x) == 0)
        x->has_keeper = true;
    else if (rc == 0)
        rc = -EAGAIN;
    if (rc == 0)
        return DS_OK;
    if (text)
        detach(f, d);
    return rc == -EBUSY ? ds_fail(err, DS_E_AGAIN, "%s: another process has this store open", x->label)
                        : failed(x, rc, "the store's lock", err);
}

static ds_rc list(ds_files *f, uint32_t d, bool (*each)(void *ctx, uint64_t segment), void *ctx, ds_err *err)
{
    pool *x = of(f);
    const char *name;
    void *l;
    bool ok = true;
    int rc = heard(x, x->api->nobjects_list_open(x->io, &l));

    (void)d;
    if (rc != 0)
        return failed(x, rc, "its objects can't be listed", err);
    while (ok && (rc = heard(x, x->api->nobjects_list_next(l, &name, NULL, NULL))) == 0)
        if (strlen(name) == 20 && strcmp(name + 16, ".seg") == 0 && strspn(name, "0123456789abcdef") == 16)
            ok = each(ctx, strtoull(name, NULL, 16));
    x->api->nobjects_list_close(l);
    if (!ok)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    return rc == -ENOENT ? DS_OK : failed(x, rc, "its objects can't be listed", err);
}

/* ---- writing ---- */

static void written(void *completion, void *arg)
{
    write_op *o = arg;
    pool *x = o->of;

    (void)completion;
    pthread_mutex_lock(&x->mu);
    o->done = true;
    pthread_cond_signal(&x->done);
    pthread_mutex_unlock(&x->mu);
}

/* Takes the results of writes that are done. */
static void reap(pool *x)
{
    for (int i = 0; i < MAX_WRITES; i++) {
        write_op *o = &x->op[i];
        if (!o->completion)
            continue;
        pthread_mutex_lock(&x->mu);
        bool done = o->done;
        pthread_mutex_unlock(&x->mu);
        if (!done)
            continue;
        int rc = heard(x, x->api->aio_get_return_value(o->completion));
        x->api->aio_release(o->completion);
        if (rc != 0 && o->file < MAX_FILES)
            x->file[o->file].failed = true;
        x->bytes -= o->bytes;
        o->completion = NULL;
    }
}

static bool is_under_way(const write_op *o, uint32_t of_file)
{
    return o->completion && (of_file == MAX_FILES || o->file == of_file);
}

/* Waits until one of the writes of a file is done, MAX_FILES: of any. False: none is under way. */
static bool await_write(pool *x, uint32_t of_file)
{
    bool some = false, one = false;

    pthread_mutex_lock(&x->mu);
    for (;;) {
        for (int i = 0; i < MAX_WRITES; i++) {
            some = some || is_under_way(&x->op[i], of_file);
            one = one || (is_under_way(&x->op[i], of_file) && x->op[i].done);
        }
        if (!some || one)
            break;
        pthread_cond_wait(&x->done, &x->mu);
    }
    pthread_mutex_unlock(&x->mu);
    reap(x);
    return some;
}

static write_op *free_op(pool *x, size_t bytes)
{
    for (reap(x); x->bytes && x->bytes + bytes > MAX_WRITE_BYTES;)
        await_write(x, MAX_FILES);
    for (;;) {
        for (int i = 0; i < MAX_WRITES; i++)
            if (!x->op[i].completion)
                return &x->op[i];
        await_write(x, MAX_FILES);
    }
}

static int free_file(pool *x, uint64_t segment)
{
    for (int i = 0; i < MAX_FILES; i++)
        if (!x->file[i].used) {
            x->file[i] = (file){ .used = true, .segment = segment };
            return i;
        }
    return -1;
}

static int create(ds_files *f, uint32_t d, uint64_t segment) /* the object is made by the first write */
{
    (void)d;
    return atomic_load_explicit(&of(f)->lost, memory_order_relaxed) ? -1 : free_file(of(f), segment);
}

/* What a process left unfinished becomes ours before its size is looked at: that one can't write to it any more. */
static int open_write(ds_files *f, uint32_t d, uint64_t segment)
{
    pool *x = of(f);
    char name[24];
    uint64_t size = 0;
    void *op = x->api->create_write_op();
    int h = op ? free_file(x, segment) : -1, rc;

    (void)d;
    if (!op)
        return -1;
    object_name(name, segment);
    x->api->write_op_setxattr(op, writer_attr, x->writer, sizeof x->writer - 1);
    rc = heard(x, x->api->write_op_operate(op, x->io, name, NULL, DS_RADOS_FULL_TRY));
    x->api->release_write_op(op);
    rc = rc ? rc : heard(x, x->api->stat(x->io, name, &size, NULL));
    if (h >= 0 && rc != 0)
        x->file[h].used = false;
    else if (h >= 0)
        x->file[h].size = size;
    return rc == 0 ? h : -1;
}

static bool begin_write(pool *x, file *w, const uint8_t *bytes, size_t n)
{
    write_op *o = free_op(x, n);
    void *op = x->api->create_write_op();
    char name[24];
    int rc;

    if (!op)
        return false;
    object_name(name, w->segment);
    if (w->size == 0) {
        x->api->write_op_create(op, DS_RADOS_CREATE_EXCLUSIVE, NULL);
        x->api->write_op_setxattr(op, writer_attr, x->writer, sizeof x->writer - 1);
    } else {
        x->api->write_op_cmpxattr(op, writer_attr, DS_RADOS_EQUAL, x->writer, sizeof x->writer - 1);
    }
    x->api->write_op_write(op, (const char *)bytes, n, w->size);
    *o = (write_op){ .of = x, .file = (uint32_t)(w - x->file), .bytes = n };
    rc = x->api->aio_create_completion2(o, written, &o->completion);
    if (rc != 0) {
        o->completion = NULL;
    } else {
        rc = x->api->aio_write_op_operate(op, x->io, o->completion, name, NULL, DS_RADOS_FULL_TRY);
        if (rc != 0) { /* it didn't begin, and won't call back */
            x->api->aio_release(o->completion);
            o->completion = NULL;
        } else {
            x->bytes += n;
            w->size += n;
        }
    }
    x->api->release_write_op(op);
    return rc == 0;
}

static void unmake(ds_files *f, uint32_t d, int h, uint64_t segment)
{
    pool *x = of(f);
    void *op = x->api->create_write_op();
    char name[24];

    (void)d;
    (void)h;
    if (!op)
        return;
    object_name(name, segment);
    x->api->write_op_cmpxattr(op, writer_attr, DS_RADOS_EQUAL, x->writer, sizeof x->writer - 1);
    x->api->write_op_remove(op);
    heard(x, x->api->write_op_operate(op, x->io, name, NULL, DS_RADOS_FULL_TRY));
    x->api->release_write_op(op);
}

static bool write_file(ds_files *f, uint32_t d, int h, const uint8_t *bytes, size_t n, uint64_t at)
{
    pool *x = of(f);
    file *w = &x->file[h];

    (void)d;
    if (!w->failed && (at != w->size || atomic_load_explicit(&x->lost, memory_order_relaxed) || !begin_write(x, w, bytes, n)))
        w->failed = true;
    return !w->failed;
}

static bool all_written(pool *x, int h)
{
    while (await_write(x, (uint32_t)h))
        ;
    return !x->file[h].failed;
}

static bool named(ds_files *f, uint32_t d, int h)
{
    (void)d;
    return all_written(of(f), h);
}

/* A pool's object can't be cut; it has to be so. */
static bool cut(ds_files *f, uint32_t d, int h, uint64_t size)
{
    (void)d;
    return !of(f)->file[h].failed && of(f)->file[h].size == size;
}

static uint32_t sync_files(ds_files *f, const int *h, uint32_t n)
{
    (void)n;
    return h[0] >= 0 && !all_written(of(f), h[0]) ? 1 : 0;
}

static void close_write(ds_files *f, uint32_t d, int h)
{
    (void)d;
    for (int i = 0; i < MAX_WRITES; i++) /* nobody asks any more what becomes of them */
        if (of(f)->op[i].completion && of(f)->op[i].file == (uint32_t)h)
            of(f)->op[i].file = MAX_FILES;
    of(f)->file[h].used = false;
}

/* What can't be removed now is tried again until the store is closed; then the next one that opens it finds it. */
static void remove_file(ds_files *f, uint32_t d, uint64_t segment)
{
    pool *x = of(f);

    (void)d;
    if (remove_object(x, segment) == 0)
        return;
    pthread_mutex_lock(&x->mu);
    if (x->n_doomed < MAX_DOOMED)
        x->doomed[x->n_doomed++] = segment;
    pthread_mutex_unlock(&x->mu);
}

/* ---- reading ---- */

static int open_read(ds_files *f, uint32_t d, uint64_t segment) /* objects are known by their names */
{
    (void)f;
    (void)d;
    (void)segment;
    return 0;
}

static void close_read(ds_files *f, uint32_t d, int h)
{
    (void)f;
    (void)d;
    (void)h;
}

static bool size_of(ds_files *f, uint32_t d, int h, uint64_t segment, uint64_t *bytes)
{
    char name[24];

    (void)d;
    (void)h;
    object_name(name, segment);
    return heard(of(f), of(f)->api->stat(of(f)->io, name, bytes, NULL)) == 0;
}

static bool read_file(ds_files *f, uint32_t d, int h, uint64_t segment, uint8_t *dst, size_t n, uint64_t at)
{
    char name[24];
    int got = 1;

    (void)d;
    (void)h;
    object_name(name, segment);
    for (; n && got > 0; n -= got > 0 ? (size_t)got : 0) {
        got = heard(of(f), of(f)->api->read(of(f)->io, name, (char *)dst, n, at));
        dst += got > 0 ? got : 0;
        at += got > 0 ? (uint64_t)got : 0;
    }
    return n == 0;
}

struct ds_files_queue {
    /* [const] */
    pool *x;
    /* [owner] */
    void *completion; /* NULL: nothing is under way */
    int result;       /* not 0: it is known without an operation, or there is none */
    bool asked;
    /* What was read ahead: bytes of an object don't change, so they stay good. Filled by the operation under way where
     * into_ahead says so. */
    uint8_t *ahead;
    size_t ahead_bytes, from_ahead, n_ahead; /* room, and what is there that wasn't given */
    uint64_t ahead_segment, ahead_at;
    bool into_ahead;
    uint8_t *dst; /* and how much of it goes there */
    size_t n;
    /* [mu] */
    pthread_mutex_t mu;
    pthread_cond_t come;
    bool done;
};

static ds_rc queue_create(ds_files_queue **out, ds_files *f, ds_err *err)
{
    ds_files_queue *q = calloc(1, sizeof *q);
    pthread_condattr_t a;

    *out = NULL;
    if (!q)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    q->x = of(f);
    pthread_mutex_init(&q->mu, NULL);
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&q->come, &a);
    pthread_condattr_destroy(&a);
    *out = q;
    return DS_OK;
}

static void queue_destroy(ds_files_queue *q)
{
    pthread_cond_destroy(&q->come);
    pthread_mutex_destroy(&q->mu);
    free(q->ahead);
    free(q);
}

static void has_come(void *completion, void *arg)
{
    ds_files_queue *q = arg;

    (void)completion;
    pthread_mutex_lock(&q->mu);
    q->done = true;
    pthread_cond_signal(&q->come);
    pthread_mutex_unlock(&q->mu);
}

/* Whether what is asked for was read already; then it is there. What was given isn't given twice: who asks again has
 * doubts, but for the page in which the next part begins. */
static bool have_it(ds_files_queue *q, uint64_t segment, uint8_t *dst, size_t n, uint64_t at)
{
    uint64_t skip;

    if (segment != q->ahead_segment || at < q->ahead_at || at - q->ahead_at > q->n_ahead || q->n_ahead - (at - q->ahead_at) < n)
        return false;
    memcpy(dst, q->ahead + q->from_ahead + (at - q->ahead_at), n);
    skip = at + n - DS_SEG_ALIGN - q->ahead_at;
    q->ahead_at += skip;
    q->from_ahead += skip;
    q->n_ahead -= skip;
    return true;
}

static void ask(ds_files_queue *q, uint32_t d, int h, uint64_t segment, uint8_t *dst, size_t n, uint64_t at, size_t ahead)
{
    const ds_rados_api *a = q->x->api;
    char name[24];

    (void)d;
    (void)h;
    q->asked = true;
    q->done = false;
    q->result = 0;
    q->completion = NULL;
    if (have_it(q, segment, dst, n, at)) {
        q->result = (int)n;
        return;
    }
    q->into_ahead = ahead > 0;
    q->dst = dst;
    q->n = n;
    if (ahead && n + ahead > q->ahead_bytes) {
        free(q->ahead);
        q->ahead = malloc(n + ahead);
        q->ahead_bytes = q->ahead ? n + ahead : 0;
        q->into_ahead = q->ahead != NULL;
    }
    if (q->into_ahead) {
        q->n_ahead = 0;
        q->ahead_segment = segment;
        q->ahead_at = at;
    }
    object_name(name, segment);
    q->result = a->aio_create_completion2(q, has_come, &q->completion);
    if (q->result) {
        q->completion = NULL;
        return;
    }
    q->result = q->into_ahead ? a->aio_read(q->x->io, name, q->completion, (char *)q->ahead, n + ahead, at)
                              : a->aio_read(q->x->io, name, q->completion, (char *)dst, n, at);
    if (q->result) {
        a->aio_release(q->completion);
        q->completion = NULL;
    }
}

static int answer(ds_files_queue *q, uint64_t until_ns, int *res)
{
    struct timespec t = { .tv_sec = (time_t)(until_ns / 1000000000), .tv_nsec = (long)(until_ns % 1000000000) };

    pthread_mutex_lock(&q->mu);
    while (!(q->asked && (q->result || q->done)) && ds_now_ns() < until_ns)
        pthread_cond_timedwait(&q->come, &q->mu, &t);
    bool here = q->asked && (q->result || q->done);
    pthread_mutex_unlock(&q->mu);
    if (!here)
        return -1;
    *res = q->result;
    if (q->completion) {
        *res = heard(q->x, q->x->api->aio_get_return_value(q->completion));
        q->x->api->aio_release(q->completion);
        q->completion = NULL;
        if (q->into_ahead && *res > 0) {
            q->n_ahead = (size_t)*res < q->ahead_bytes ? (size_t)*res : q->ahead_bytes;
            q->from_ahead = 0;
            if (!have_it(q, q->ahead_segment, q->dst, q->n, q->ahead_at))
                *res = (int)q->n_ahead; /* less than was asked for: a failure */
            else
                *res = (int)q->n;
        }
    }
    q->asked = false;
    return 0;
}

static void hurry(ds_files_queue *q, uint32_t d)
{
    (void)d;
    if (q->completion)
        q->x->api->aio_cancel(q->x->io, q->completion);
}

static const ds_files_ops ops = { .close = close_pool,
                                  .mute = mute,
                                  .read_store = read_store,
                                  .attach = attach,
                                  .detach = detach,
                                  .list = list,
                                  .create = create,
                                  .open_write = open_write,
                                  .unmake = unmake,
                                  .write = write_file,
                                  .named = named,
                                  .cut = cut,
                                  .sync = sync_files,
                                  .close_write = close_write,
                                  .remove = remove_file,
                                  .open_read = open_read,
                                  .close_read = close_read,
                                  .size = size_of,
                                  .read = read_file,
                                  .queue_create = queue_create,
                                  .queue_destroy = queue_destroy,
                                  .ask = ask,
                                  .answer = answer,
                                  .hurry = hurry };

ds_rc ds_files_rados(ds_files **out, const char *place, const ds_rados_api *api, ds_err *err)
{
    pool *x = calloc(1, sizeof *x);
    uint8_t who[16];
    pthread_condattr_t a;
    ds_rc rc = x ? DS_OK : ds_fail(err, DS_E_NOMEM, "out of memory");

    *out = NULL;
    if (rc != DS_OK)
        return rc;
    pthread_mutex_init(&x->mu, NULL);
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&x->done, &a);
    pthread_cond_init(&x->wake, &a);
    pthread_condattr_destroy(&a);
    x->base = (ds_files){ .ops = &ops, .align = DS_SEG_ALIGN, .run_bytes = RUN_BYTES, .direct = true };
    x->api = api;
    ds_file_label(x->label, sizeof x->label, place);
    rc = ds_place_parse(&x->place, place, err);
    if (rc == DS_OK && !x->api)
        rc = ds_rados_load(&x->api, err);
    if (rc == DS_OK && getrandom(who, sizeof who, 0) != sizeof who)
        rc = ds_fail(err, DS_E_IO, "no random numbers: %s", strerror(errno));
    if (rc == DS_OK) {
        ds_hex(x->writer, who, sizeof who);
        rc = connect_pool(x, err);
    }
    if (rc != DS_OK) {
        close_pool(&x->base);
        return rc;
    }
    *out = &x->base;
    return DS_OK;
}
