#include "fake_rados.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum { OBJECTS = 512, ATTR = 64, STALL_NS = 200000000 };

typedef struct {
    bool there;
    char name[32];
    uint8_t *bytes;
    size_t n;
    char writer[ATTR], lock[ATTR];
} object;

typedef struct completion {
    ds_rados_callback *done;
    void *arg;
    int rc;
    unsigned refs; /* of the caller, and of the thread while it is queued */
    bool cancelled;
    /* what is asked for */
    struct write_op *op; /* NULL: a read */
    char name[32];
    char *buf;
    size_t n;
    uint64_t at, stalled_until;
    struct completion *later;
} completion;

typedef struct write_op {
    bool create, write, set, compare, remove;
    char value[ATTR], want[ATTR];
    uint8_t *bytes;
    size_t n;
    uint64_t at;
} write_op;

static struct {
    pthread_mutex_t mu;
    pthread_cond_t more;
    pthread_t thread;
    bool running, stopping;
    uint64_t align;
    object o[OBJECTS];
    fake_judge *judge;
    void *ctx;
    completion *queue;
    char gone[ATTR]; /* who lost a lease last */
} f = { .mu = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER };

/* ---- objects; all with the lock held ---- */

static object *find(const char *name)
{
    for (int i = 0; i < OBJECTS; i++)
        if (f.o[i].there && strcmp(f.o[i].name, name) == 0)
            return &f.o[i];
    return NULL;
}

static object *make(const char *name)
{
    for (int i = 0; i < OBJECTS; i++)
        if (!f.o[i].there) {
            f.o[i] = (object){ .there = true };
            snprintf(f.o[i].name, sizeof f.o[i].name, "%s", name);
            return &f.o[i];
        }
    return NULL;
}

static void drop(object *o)
{
    free(o->bytes);
    *o = (object){ 0 };
}

static fake_fate judge(const char *call, int *rc)
{
    int e = EIO;
    fake_fate x = f.judge ? f.judge(f.ctx, call, &e) : FAKE_WELL;

    *rc = -e;
    return x;
}

static int do_write(const write_op *op, const char *name)
{
    object *o = find(name);

    if ((op->create && o) || (op->compare && o && strcmp(o->writer, op->want) != 0))
        return op->create ? -EEXIST : -ECANCELED;
    if (op->compare && !o)
        return -ECANCELED;
    if (op->write && f.align > 1 && (op->at % f.align || op->at != (o ? o->n : 0)))
        return -EOPNOTSUPP;
    if (op->remove) {
        if (o)
            drop(o);
        return o ? 0 : -ENOENT;
    }
    o = o ? o : make(name);
    if (!o)
        return -ENOSPC;
    if (op->set)
        memcpy(o->writer, op->value, sizeof o->writer);
    if (op->write && op->at + op->n > o->n) {
        uint8_t *p = realloc(o->bytes, op->at + op->n);
        if (!p)
            return -ENOMEM;
        memset(p + o->n, 0, op->at + op->n - o->n);
        o->bytes = p;
        o->n = op->at + op->n;
    }
    if (op->write)
        memcpy(o->bytes + op->at, op->bytes, op->n);
    return 0;
}

static int do_read(const char *name, char *buf, size_t n, uint64_t at, bool spoil)
{
    const object *o = find(name);

    if (!o)
        return -ENOENT;
    n = at >= o->n ? 0 : n < o->n - at ? n : o->n - at;
    memcpy(buf, o->bytes + at, n);
    if (spoil && n && at / 512 % 2)
        n = n / 2;
    else if (spoil && n)
        buf[(at / 64 * 7919) % n] ^= 4;
    return (int)n;
}

/* ---- the cluster ---- */

static int fate_of(const char *call)
{
    int rc;

    pthread_mutex_lock(&f.mu);
    fake_fate x = judge(call, &rc);
    pthread_mutex_unlock(&f.mu);
    return x == FAKE_WELL || x == FAKE_SPOILS ? 0 : x == FAKE_STALLS ? -ETIMEDOUT : rc;
}

static int create(void **cluster, const char *id)
{
    (void)id;
    *cluster = &f;
    return fate_of("create");
}

static int conf_read_file(void *cluster, const char *path)
{
    (void)cluster;
    (void)path;
    return fate_of("conf_read_file");
}

static int conf_get(void *cluster, const char *option, char *buf, size_t len)
{
    (void)cluster;
    snprintf(buf, len, "%s", strcmp(option, "client_mount_timeout") == 0 ? "300" : "0");
    return fate_of("conf_get");
}

static int conf_set(void *cluster, const char *option, const char *value)
{
    (void)cluster;
    (void)option;
    (void)value;
    return fate_of("conf_set");
}

static int connect_cluster(void *cluster)
{
    (void)cluster;
    return fate_of("connect");
}

static void nothing(void *handle)
{
    (void)handle;
}

static int ioctx_create(void *cluster, const char *pool, void **io)
{
    (void)cluster;
    (void)pool;
    *io = &f;
    return fate_of("ioctx_create");
}

static void set_namespace(void *io, const char *name)
{
    (void)io;
    (void)name;
}

static int alignment(void *io, uint64_t *align)
{
    (void)io;
    *align = f.align;
    return fate_of("ioctx_pool_required_alignment2");
}

static int list_open(void *io, void **list)
{
    int rc = fate_of("nobjects_list_open");

    (void)io;
    *list = rc == 0 ? calloc(1, sizeof(int)) : NULL;
    return rc;
}

static int list_next(void *list, const char **entry, const char **key, const char **name)
{
    int *i = list, rc = fate_of("nobjects_list_next");

    (void)key;
    (void)name;
    if (rc != 0)
        return rc;
    while (*i < OBJECTS && !f.o[*i].there)
        ++*i;
    if (*i == OBJECTS)
        return -ENOENT;
    *entry = f.o[(*i)++].name;
    return 0;
}

static int stat_object(void *io, const char *oid, uint64_t *size, time_t *mtime)
{
    int rc;

    (void)io;
    (void)mtime;
    pthread_mutex_lock(&f.mu);
    fake_fate x = judge("stat", &rc);
    const object *o = find(oid);
    if (o)
        *size = o->n;
    rc = x == FAKE_STALLS ? -ETIMEDOUT : x == FAKE_FAILS || x == FAKE_LIES ? rc : o ? 0 : -ENOENT;
    pthread_mutex_unlock(&f.mu);
    return rc;
}

static int read_object(void *io, const char *oid, char *buf, size_t len, uint64_t off)
{
    int rc;

    (void)io;
    pthread_mutex_lock(&f.mu);
    fake_fate x = judge("read", &rc);
    rc = x == FAKE_STALLS ? -ETIMEDOUT : x == FAKE_FAILS || x == FAKE_LIES ? rc : do_read(oid, buf, len, off, x == FAKE_SPOILS);
    pthread_mutex_unlock(&f.mu);
    return rc;
}

static int remove_object(void *io, const char *oid)
{
    int rc;

    (void)io;
    pthread_mutex_lock(&f.mu);
    fake_fate x = judge("remove", &rc);
    object *o = find(oid);
    if (x == FAKE_WELL || x == FAKE_SPOILS)
        rc = o ? 0 : -ENOENT;
    if (o && x != FAKE_FAILS)
        drop(o);
    pthread_mutex_unlock(&f.mu);
    return x == FAKE_STALLS ? -ETIMEDOUT : rc;
}

static int lock_exclusive(void *io, const char *oid, const char *name, const char *cookie, const char *desc, struct timeval *duration,
                          uint8_t flags)
{
    int rc;

    (void)io;
    (void)name;
    (void)desc;
    (void)duration;
    pthread_mutex_lock(&f.mu);
    fake_fate x = judge("lock_exclusive", &rc);
    object *o = find(oid);
    if (x == FAKE_WELL || x == FAKE_SPOILS || x == FAKE_LIES) {
        bool mine = o && strcmp(o->lock, cookie) == 0;
        int real = !o                                       ? -ENOENT
                   : strcmp(cookie, f.gone) == 0            ? -EBUSY
                   : o->lock[0] && !mine                    ? -EBUSY
                   : mine && !(flags & DS_RADOS_LOCK_RENEW) ? -EEXIST
                                                            : 0;
        if (real == 0)
            snprintf(o->lock, sizeof o->lock, "%s", cookie);
        rc = x == FAKE_LIES ? rc : real;
    }
    pthread_mutex_unlock(&f.mu);
    return x == FAKE_STALLS ? -ETIMEDOUT : rc;
}

static int unlock(void *io, const char *oid, const char *name, const char *cookie)
{
    int rc;

    (void)io;
    (void)name;
    pthread_mutex_lock(&f.mu);
    fake_fate x = judge("unlock", &rc);
    object *o = find(oid);
    if (x == FAKE_WELL && o && strcmp(o->lock, cookie) == 0)
        o->lock[0] = 0;
    pthread_mutex_unlock(&f.mu);
    return x == FAKE_WELL ? 0 : rc;
}

static void *create_write_op(void)
{
    return calloc(1, sizeof(write_op));
}

static void release_write_op(void *op)
{
    if (op)
        free(((write_op *)op)->bytes);
    free(op);
}

static void write_op_create(void *op, int exclusive, const char *category)
{
    (void)category;
    ((write_op *)op)->create = exclusive == DS_RADOS_CREATE_EXCLUSIVE;
}

static void write_op_write(void *op, const char *buf, size_t len, uint64_t off)
{
    write_op *o = op;

    o->write = true;
    o->bytes = malloc(len + 1);
    memcpy(o->bytes, buf, len);
    o->n = len;
    o->at = off;
}

static void copy_value(char out[ATTR], const char *value, size_t len)
{
    memset(out, 0, ATTR);
    memcpy(out, value, len < ATTR ? len : ATTR - 1);
}

static void write_op_setxattr(void *op, const char *name, const char *value, size_t len)
{
    (void)name;
    ((write_op *)op)->set = true;
    copy_value(((write_op *)op)->value, value, len);
}

static void write_op_cmpxattr(void *op, const char *name, uint8_t comparison, const char *value, size_t len)
{
    (void)name;
    ((write_op *)op)->compare = comparison == DS_RADOS_EQUAL;
    copy_value(((write_op *)op)->want, value, len);
}

static void write_op_remove(void *op)
{
    ((write_op *)op)->remove = true;
}

static int write_op_operate(void *op, void *io, const char *oid, time_t *mtime, int flags)
{
    int rc, real = 0;

    (void)io;
    (void)mtime;
    (void)flags;
    pthread_mutex_lock(&f.mu);
    fake_fate x = judge("write_op_operate", &rc);
    if (x != FAKE_FAILS)
        real = do_write(op, oid);
    pthread_mutex_unlock(&f.mu);
    return x == FAKE_STALLS ? -ETIMEDOUT : x == FAKE_FAILS || x == FAKE_LIES ? rc : real;
}

/* ---- asynchronous ---- */

static int create_completion(void *arg, ds_rados_callback *done, void **out)
{
    int rc = fate_of("aio_create_completion2");
    completion *c = rc == 0 ? calloc(1, sizeof *c) : NULL;

    if (c)
        *c = (completion){ .done = done, .arg = arg, .refs = 1 };
    *out = c;
    return rc;
}

static void give(completion *c)
{
    pthread_mutex_lock(&f.mu);
    bool last = --c->refs == 0;
    pthread_mutex_unlock(&f.mu);
    if (last)
        free(c);
}

static int enqueue(completion *c)
{
    pthread_mutex_lock(&f.mu);
    completion **end = &f.queue;
    while (*end)
        end = &(*end)->later;
    *end = c;
    c->refs++;
    pthread_cond_signal(&f.more);
    pthread_mutex_unlock(&f.mu);
    return 0;
}

static int aio_write(void *op, void *io, void *c_, const char *oid, time_t *mtime, int flags)
{
    int rc = fate_of("aio_write_op_operate");
    completion *c = c_;
    write_op *copy = rc == 0 ? malloc(sizeof *copy) : NULL;

    (void)io;
    (void)mtime;
    (void)flags;
    if (!copy)
        return rc;
    *copy = *(write_op *)op;
    ((write_op *)op)->bytes = NULL; /* it is the copy's now */
    c->op = copy;
    snprintf(c->name, sizeof c->name, "%s", oid);
    return enqueue(c);
}

static int aio_read(void *io, const char *oid, void *c_, char *buf, size_t len, uint64_t off)
{
    completion *c = c_;
    int rc = fate_of("aio_read");

    (void)io;
    if (rc != 0)
        return rc;
    snprintf(c->name, sizeof c->name, "%s", oid);
    c->buf = buf;
    c->n = len;
    c->at = off;
    return enqueue(c);
}

static int get_return_value(void *c)
{
    return ((completion *)c)->rc;
}

static void aio_release(void *c)
{
    give(c);
}

static int aio_cancel(void *io, void *c)
{
    (void)io;
    pthread_mutex_lock(&f.mu);
    ((completion *)c)->cancelled = true;
    pthread_cond_signal(&f.more);
    pthread_mutex_unlock(&f.mu);
    return 0;
}

/* Does one request. False: it is stalled. [locked] */
static bool perform(completion *c)
{
    int rc = 0;
    fake_fate x;

    if (c->stalled_until) {
        if (!c->cancelled && ds_now_ns() < c->stalled_until)
            return false;
        c->rc = c->cancelled ? -ECANCELED : -ETIMEDOUT;
        return true;
    }
    x = judge(c->op ? "a write" : "a read", &rc);
    if (x == FAKE_STALLS || x == FAKE_HANGS) {
        c->stalled_until = x == FAKE_HANGS ? UINT64_MAX : ds_now_ns() + STALL_NS;
        return perform(c);
    }
    c->rc = rc;
    if (c->op && x != FAKE_FAILS) {
        int real = do_write(c->op, c->name);
        c->rc = x == FAKE_LIES ? rc : real;
    } else if (!c->op && x != FAKE_FAILS && x != FAKE_LIES) {
        c->rc = do_read(c->name, c->buf, c->n, c->at, x == FAKE_SPOILS);
    }
    return true;
}

static void *work(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&f.mu);
    while (!f.stopping || f.queue) {
        completion **at = &f.queue, *c;
        while (*at && !perform(*at))
            at = &(*at)->later;
        if (!*at) {
            struct timespec t;
            clock_gettime(CLOCK_REALTIME, &t);
            t.tv_nsec += 1000000;
            t.tv_sec += t.tv_nsec / 1000000000;
            t.tv_nsec %= 1000000000;
            if (f.queue)
                pthread_cond_timedwait(&f.more, &f.mu, &t);
            else
                pthread_cond_wait(&f.more, &f.mu);
            continue;
        }
        c = *at;
        *at = c->later;
        if (c->op) {
            free(c->op->bytes);
            free(c->op);
        }
        pthread_mutex_unlock(&f.mu);
        c->done(c, c->arg);
        give(c);
        pthread_mutex_lock(&f.mu);
    }
    pthread_mutex_unlock(&f.mu);
    return NULL;
}

const ds_rados_api fake_rados = { .create = create,
                                  .conf_read_file = conf_read_file,
                                  .conf_get = conf_get,
                                  .conf_set = conf_set,
                                  .connect = connect_cluster,
                                  .shutdown = nothing,
                                  .ioctx_create = ioctx_create,
                                  .ioctx_destroy = nothing,
                                  .ioctx_set_namespace = set_namespace,
                                  .ioctx_pool_required_alignment2 = alignment,
                                  .nobjects_list_open = list_open,
                                  .nobjects_list_next = list_next,
                                  .nobjects_list_close = free,
                                  .stat = stat_object,
                                  .read = read_object,
                                  .remove = remove_object,
                                  .lock_exclusive = lock_exclusive,
                                  .unlock = unlock,
                                  .create_write_op = create_write_op,
                                  .release_write_op = release_write_op,
                                  .write_op_create = write_op_create,
                                  .write_op_write = write_op_write,
                                  .write_op_setxattr = write_op_setxattr,
                                  .write_op_cmpxattr = write_op_cmpxattr,
                                  .write_op_remove = write_op_remove,
                                  .write_op_operate = write_op_operate,
                                  .aio_write_op_operate = aio_write,
                                  .aio_create_completion2 = create_completion,
                                  .aio_read = aio_read,
                                  .aio_get_return_value = get_return_value,
                                  .aio_release = aio_release,
                                  .aio_cancel = aio_cancel };

/* ---- the test's side ---- */

void fake_begin(uint64_t align)
{
    f.align = align;
    f.judge = NULL;
    f.stopping = false;
    f.gone[0] = 0;
    for (int i = 0; i < OBJECTS; i++) /* a test that failed left some, and the thread */
        drop(&f.o[i]);
    if (!f.running)
        pthread_create(&f.thread, NULL, work, NULL);
    f.running = true;
}

void fake_end(void)
{
    pthread_mutex_lock(&f.mu);
    f.stopping = true;
    pthread_cond_broadcast(&f.more); /* a test that failed left its thread behind */
    pthread_mutex_unlock(&f.mu);
    pthread_join(f.thread, NULL);
    f.running = false;
    for (int i = 0; i < OBJECTS; i++)
        drop(&f.o[i]);
}

void fake_judged_by(fake_judge *how, void *ctx)
{
    pthread_mutex_lock(&f.mu);
    f.judge = how;
    f.ctx = ctx;
    pthread_mutex_unlock(&f.mu);
}

void fake_expire_locks(void)
{
    pthread_mutex_lock(&f.mu);
    for (int i = 0; i < OBJECTS; i++)
        if (f.o[i].lock[0]) {
            memcpy(f.gone, f.o[i].lock, sizeof f.gone);
            f.o[i].lock[0] = 0;
        }
    pthread_mutex_unlock(&f.mu);
}

uint32_t fake_objects(void)
{
    uint32_t n = 0;

    pthread_mutex_lock(&f.mu);
    for (int i = 0; i < OBJECTS; i++)
        n += f.o[i].there;
    pthread_mutex_unlock(&f.mu);
    return n;
}

uint8_t *fake_bytes(const char *begin, size_t *n)
{
    uint8_t *p = NULL;

    pthread_mutex_lock(&f.mu);
    for (int i = 0; i < OBJECTS && !p; i++)
        if (f.o[i].there && strncmp(f.o[i].name, begin, strlen(begin)) == 0) {
            p = f.o[i].bytes;
            *n = f.o[i].n;
        }
    pthread_mutex_unlock(&f.mu);
    return p;
}
