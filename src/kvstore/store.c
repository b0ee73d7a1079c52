/* Opening and closing a store in this process; its writer; what is told of it. */
#include "kvstore/store_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/hash.h"
#include "kv/layout.h"
#include "kvstore/local.h"

enum { MAX_READERS = 64, DEFAULT_QUEUE = 256, MAX_QUEUE = 1 << 16, TIDY_NS = 1000000000 };
enum { DEFAULT_INDEX = 4 << 20, MIN_INDEX = 4096 };
#define MIN_SEGMENT ((uint64_t)64 << 10)
#define ROOMY_SEGMENT ((uint64_t)2 << 20)

static ds_kvs *of(ds_kvstore *s)
{
    return (ds_kvs *)s;
}

uint64_t ds_kvs_wall_s(ds_kvs *st)
{
    int64_t now = ds_wall_s() + atomic_load_explicit(&st->skew_s, memory_order_relaxed);

    return now < 0 ? 0 : (uint64_t)now;
}

uint64_t ds_kvs_use_us(ds_kvs *st)
{
    uint64_t was = atomic_load_explicit(&st->last_use_us, memory_order_relaxed), now;

    do {
        now = ds_kvs_wall_s(st) * 1000000;
        now = now > was ? now : was + 1;
    } while (!atomic_compare_exchange_weak_explicit(&st->last_use_us, &was, now, memory_order_relaxed, memory_order_relaxed));
    return now;
}

uint32_t ds_kvs_tenant(const char *name)
{
    uint8_t h[32];
    uint32_t v;

    if (!name)
        return 0;
    ds_sha256(h, name, strlen(name));
    v = (uint32_t)h[0] | (uint32_t)h[1] << 8 | (uint32_t)h[2] << 16 | (uint32_t)h[3] << 24;
    return v ? v : 1;
}

uint32_t ds_kvs_layout_of(ds_kvs *st, const uint8_t id[32], uint32_t block_bytes)
{
    uint32_t i = 0;

    pthread_mutex_lock(&st->mu);
    while (i < st->n_layouts && !(st->layout[i].block_bytes == block_bytes && memcmp(st->layout[i].id, id, 32) == 0))
        i++;
    if (i == st->n_layouts && i < DS_KVS_LAYOUTS) {
        memcpy(st->layout[i].id, id, 32);
        st->layout[i].block_bytes = block_bytes;
        st->n_layouts++;
    }
    pthread_mutex_unlock(&st->mu);
    return i < DS_KVS_LAYOUTS ? i : DS_NONE;
}

/* ---- the writer ---- */

void ds_kvs_run(ds_kvs *st, void (*run)(ds_kvs *st, void *arg), void *arg)
{
    ds_kvs_job j = { .run = run, .arg = arg };

    pthread_mutex_lock(&st->mu);
    *st->jobs_end = &j;
    st->jobs_end = &j.later;
    pthread_cond_signal(&st->more);
    while (!j.done)
        pthread_cond_wait(&st->job_done, &st->mu);
    pthread_mutex_unlock(&st->mu);
}

static void *write_all(void *arg)
{
    ds_kvs *st = arg;
    uint64_t next = ds_now_ns();

    pthread_mutex_lock(&st->mu);
    for (;;) {
        ds_kvs_save *saves = st->saves;
        ds_kvs_job *j = st->jobs;
        struct timespec t = { .tv_sec = (time_t)(next / 1000000000), .tv_nsec = (long)(next % 1000000000) };
        bool due = ds_now_ns() >= next;
        if (!saves && !j && st->writer_stopping)
            break;
        if (!saves && !j && !due) {
            pthread_cond_timedwait(&st->more, &st->mu, &t);
            continue;
        }
        st->saves = NULL;
        st->saves_end = &st->saves;
        if (j && !(st->jobs = j->later))
            st->jobs_end = &st->jobs;
        pthread_mutex_unlock(&st->mu);
        if (saves)
            ds_kvs_save_all(st, saves);
        if (j)
            j->run(st, j->arg);
        if (due) {
            ds_kvs_tidy(st);
            next = ds_now_ns() + TIDY_NS;
        }
        pthread_mutex_lock(&st->mu);
        if (j) {
            j->done = true;
            pthread_cond_broadcast(&st->job_done);
        }
    }
    pthread_mutex_unlock(&st->mu);
    return NULL;
}

/* ---- opening and closing ---- */

static bool zeros(const uint8_t d[32])
{
    static const uint8_t none[32];

    return memcmp(d, none, 32) == 0;
}

ds_rc ds_kvstore_check_user(const ds_kvstore_user *u, uint8_t id[32], uint32_t *block_bytes, ds_err *err)
{
    ds_kv_layout *l = malloc(sizeof *l);
    ds_rc rc;

    if (!l)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    if (zeros(u->model) || zeros(u->tokenizer) || zeros(u->dialect)) {
        free(l);
        return ds_fail(err, DS_E_ARG, "the digest of the %s is unknown: such keys are good in one process only, and are not stored",
                       zeros(u->model)       ? "model"
                       : zeros(u->tokenizer) ? "tokenizer"
                                             : "template");
    }
    rc = ds_kv_layout_read(l, u->layout, u->layout_bytes, err);
    if (rc == DS_OK && l->block_bytes > DS_SEG_MAX_BLOCK_BYTES)
        rc = ds_fail(err, DS_E_ARG, "blocks of %llu bytes: at most %d can be stored", (unsigned long long)l->block_bytes,
                     DS_SEG_MAX_BLOCK_BYTES);
    if (rc == DS_OK) {
        ds_sha256(id, u->layout, u->layout_bytes);
        *block_bytes = (uint32_t)l->block_bytes;
    }
    free(l);
    if (rc == DS_E_FORMAT) { /* the caller's, not a file's */
        rc = DS_E_ARG;
        if (err)
            err->rc = rc;
    }
    return rc;
}

static void close_store(ds_kvstore *s)
{
    ds_kvs *st = of(s);

    if (st->has_threads) {
        ds_kvs_cancel_all(st);
        pthread_mutex_lock(&st->mu);
        st->writer_stopping = true;
        pthread_cond_broadcast(&st->work);
        pthread_cond_broadcast(&st->tick);
        pthread_cond_broadcast(&st->more);
        pthread_mutex_unlock(&st->mu);
        for (uint32_t i = 0; i < st->n_readers; i++)
            pthread_join(st->reader[i], NULL);
        pthread_join(st->writer, NULL);
        pthread_join(st->clock, NULL);
        ds_kvs_write_checkpoint(st);
    }
    ds_volume_reader_destroy(st->own);
    ds_volume_close(st->v);
    ds_index_destroy(st->ix);
    pthread_cond_destroy(&st->work);
    pthread_cond_destroy(&st->idle);
    pthread_cond_destroy(&st->more);
    pthread_cond_destroy(&st->tick);
    pthread_cond_destroy(&st->job_done);
    pthread_mutex_destroy(&st->mu);
    pthread_rwlock_destroy(&st->book);
    for (uint32_t i = 0; st->dir && i < st->n_devices; i++)
        free(st->dir[i]);
    free(st->dir);
    free(st->reader);
    free(st->fetch);
    free(st);
}

static void init_locks(ds_kvs *st)
{
    pthread_condattr_t a;

    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_mutex_init(&st->mu, NULL);
    pthread_rwlock_init(&st->book, NULL);
    pthread_cond_init(&st->work, &a);
    pthread_cond_init(&st->idle, &a);
    pthread_cond_init(&st->more, &a);
    pthread_cond_init(&st->tick, &a);
    pthread_cond_init(&st->job_done, &a);
    pthread_condattr_destroy(&a);
    st->saves_end = &st->saves;
    st->jobs_end = &st->jobs;
}

/* Threads that were started are ended by close, which waits for n_readers of them. */
static ds_rc start_threads(ds_kvs *st, uint32_t readers, ds_err *err)
{
    ds_rc rc = ds_volume_reader_create(&st->own, st->v, err);

    if (rc != DS_OK)
        return rc;
    if (pthread_create(&st->writer, NULL, write_all, st) != 0)
        return ds_fail(err, DS_E_IO, "no thread for the store");
    if (pthread_create(&st->clock, NULL, ds_kvs_clock, st) != 0) {
        pthread_mutex_lock(&st->mu);
        st->writer_stopping = true;
        pthread_cond_broadcast(&st->more);
        pthread_mutex_unlock(&st->mu);
        pthread_join(st->writer, NULL);
        return ds_fail(err, DS_E_IO, "no thread for the store");
    }
    st->has_threads = true;
    for (uint32_t i = 0; i < readers; i++) {
        ds_kvs_reader_arg *a = malloc(sizeof *a);
        if (!a)
            return ds_fail(err, DS_E_NOMEM, "out of memory");
        a->st = st;
        rc = ds_volume_reader_create(&a->r, st->v, err);
        if (rc != DS_OK) {
            free(a);
            return rc;
        }
        if (pthread_create(&st->reader[i], NULL, ds_kvs_reader, a) != 0) {
            ds_volume_reader_destroy(a->r);
            free(a);
            return ds_fail(err, DS_E_IO, "no thread for the store");
        }
        st->n_readers++;
    }
    return DS_OK;
}

static uint64_t segment_bytes_for(const ds_kvstore_opts *o)
{
    uint32_t readers;
    uint64_t s = o->segment_bytes;

    if (!s && o->n_dirs)
        ds_volume_suits(o->dirs[0], &s, &readers);
    if (o->capacity_bytes) { /* many, so that what collection needs left free is little; not too small to hold blocks */
        uint64_t few = o->capacity_bytes / (16 * (uint64_t)o->n_dirs), many = o->capacity_bytes / (128 * (uint64_t)o->n_dirs);
        many = many > ROOMY_SEGMENT ? many : ROOMY_SEGMENT;
        s = s < few ? s : few;
        s = s < many ? s : many;
    }
    return s / DS_SEG_ALIGN * DS_SEG_ALIGN;
}

static uint32_t readers_for(const ds_kvstore_opts *o)
{
    uint32_t n = o->readers;
    uint64_t segment;

    if (!n && o->n_dirs)
        ds_volume_suits(o->dirs[0], &segment, &n);
    return n;
}

static uint32_t index_for(const ds_kvstore_opts *o, uint32_t block_bytes)
{
    uint64_t n;

    if (o->max_blocks)
        return o->max_blocks;
    if (!o->capacity_bytes || !block_bytes)
        return DEFAULT_INDEX;
    n = o->capacity_bytes / block_bytes + MIN_INDEX;
    return n < DEFAULT_INDEX ? (uint32_t)n : DEFAULT_INDEX;
}

static uint32_t match_store(ds_kvstore *s, const ds_key *keys, uint32_t n, bool exact)
{
    uint32_t found = ds_index_match(of(s)->ix, keys, n, exact);

    DS_KVS_COUNT(of(s), matches, 1);
    DS_KVS_COUNT(of(s), asked, n);
    DS_KVS_COUNT(of(s), matched, found);
    return found;
}

static ds_rc fetch_store(ds_kvstore *s, const ds_kvstore_fetch_req *r, uint64_t *ticket, ds_err *err)
{
    return ds_kvs_fetch_begin(of(s), of(s)->user_layout, r, ticket, err);
}

static bool cancel_store(ds_kvstore *s, uint64_t ticket)
{
    return ds_kvs_cancel(of(s), ticket);
}

static ds_rc save_store(ds_kvstore *s, const ds_kvstore_save_req *r, ds_err *err)
{
    return ds_kvs_save_begin(of(s), of(s)->user_layout, r, err);
}

void ds_kvs_touch(ds_kvs *st, const ds_key *keys, uint32_t n)
{
    uint64_t now = ds_kvs_use_us(st);
    ds_index_hit hit;

    for (uint32_t i = 0; i < n && ds_index_find(st->ix, &keys[i], &hit); i++)
        ds_index_touch(st->ix, hit.record, now);
}

static void touch_store(ds_kvstore *s, const ds_key *keys, uint32_t n)
{
    ds_kvs_touch(of(s), keys, n);
}

static ds_rc stat_store(ds_kvstore *s, ds_kvstore_stats *out, ds_err *err)
{
    ds_kvs *st = of(s);
    ds_volume_stats v;
    uint64_t *word = (uint64_t *)(void *)out;

    (void)err;
    ds_volume_stat(st->v, &v);
    for (size_t i = 0; i < sizeof *out / 8; i++)
        word[i] = atomic_load_explicit(&st->count[i], memory_order_relaxed);
    pthread_rwlock_rdlock(&st->book);
    out->blocks = ds_index_blocks(st->ix);
    pthread_rwlock_unlock(&st->book);
    out->max_blocks = ds_index_max_blocks(st->ix);
    out->bytes = v.bytes;
    out->capacity = st->capacity;
    out->segments = v.segments;
    out->devices = st->n_devices;
    out->bad_devices = v.bad_devices;
    out->incomplete = v.incomplete;
    out->k = v.k;
    out->m = v.m;
    pthread_mutex_lock(&st->mu);
    out->pins = st->n_pins + st->n_saves;
    pthread_mutex_unlock(&st->mu);
    return DS_OK;
}

static ds_rc verify_store(ds_kvstore *s, unsigned how, const volatile bool *stop, ds_kvstore_check *out, ds_err *err)
{
    return ds_kvs_verify(of(s), how, stop, out, err);
}

static ds_rc forget_store(ds_kvstore *s, const char *tenant, uint64_t *n, ds_err *err)
{
    return ds_kvs_forget(of(s), tenant, n, err);
}

static ds_rc list_store(ds_kvstore *s, bool (*fn)(void *ctx, const ds_kvstore_item *item), void *ctx, ds_err *err)
{
    ds_kvs *st = of(s);
    bool more = true;

    (void)err;
    for (uint32_t i = 0; more; i++) {
        ds_index_info b, parent;
        ds_kvstore_item item;
        bool there;
        pthread_rwlock_rdlock(&st->book);
        more = i < ds_index_end(st->ix);
        there = more && ds_index_at(st->ix, i, &b);
        if (there) {
            item = (ds_kvstore_item){ .key = b.key,
                                      .segment = b.hit.place.segment,
                                      .depth = b.depth,
                                      .block_bytes = st->layout[b.hit.what >> DS_INDEX_LAYOUT_SHIFT & 255].block_bytes,
                                      .tenant = b.tenant,
                                      .klass = (ds_kvstore_class)(b.hit.what >> DS_INDEX_KLASS_SHIFT & 7),
                                      .exact = !(b.hit.what & DS_INDEX_APPROX),
                                      .used_s = (int64_t)(b.used / 1000000) };
            if (b.parent != DS_NONE && ds_index_at(st->ix, b.parent, &parent))
                item.parent = parent.key;
        }
        pthread_rwlock_unlock(&st->book);
        if (there)
            more = fn(ctx, &item);
    }
    return DS_OK;
}

static const ds_kvstore_ops ops = { .close = close_store,
                                    .match = match_store,
                                    .fetch = fetch_store,
                                    .cancel = cancel_store,
                                    .save = save_store,
                                    .touch = touch_store,
                                    .stat = stat_store,
                                    .verify = verify_store,
                                    .forget = forget_store,
                                    .list = list_store };

static ds_rc check_options(const ds_kvstore_opts *o, ds_err *err)
{
    if (o->readers > MAX_READERS || o->max_fetches > MAX_QUEUE || o->max_saves > MAX_QUEUE)
        return ds_fail(err, DS_E_ARG, "at most %d readers and queues of %d", MAX_READERS, MAX_QUEUE);
    if (o->capacity_bytes && o->n_dirs && segment_bytes_for(o) < MIN_SEGMENT)
        return ds_fail(err, DS_E_ARG, "a capacity of %llu bytes: at least %llu", (unsigned long long)o->capacity_bytes,
                       (unsigned long long)(MIN_SEGMENT * 16 * o->n_dirs));
    return DS_OK;
}

ds_rc ds_kvs_open(ds_kvstore **out, const ds_kvstore_opts *o, const struct ds_rados_api *rados, ds_err *err)
{
    static const uint64_t ttl_s[DS_KVSTORE_CLASSES] = { 3 * 24 * 3600, 7 * 24 * 3600 };
    uint32_t block_bytes = 0;
    uint8_t id[32];
    ds_kvs *st;
    ds_rc rc = check_options(o, err);

    *out = NULL;
    if (rc == DS_OK && o->user)
        rc = ds_kvstore_check_user(o->user, id, &block_bytes, err);
    if (rc != DS_OK)
        return rc;
    st = calloc(1, sizeof *st);
    if (!st)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    init_locks(st);
    st->base.ops = &ops;
    st->base.has_user = o->user != NULL;
    st->n_devices = o->n_dirs;
    st->capacity = o->capacity_bytes;
    st->read_only = o->read_only;
    st->max_fetches = o->max_fetches ? o->max_fetches : DEFAULT_QUEUE;
    st->max_saves = o->max_saves ? o->max_saves : DEFAULT_QUEUE;
    atomic_init(&st->slow_ns, 10000000);
    atomic_init(&st->median_ns, 2000000);
    for (int c = 0; c < DS_KVSTORE_CLASSES; c++)
        st->ttl_s[c] = o->ttl_s[c] ? o->ttl_s[c] : ttl_s[c];
    if (o->user)
        st->user_layout = ds_kvs_layout_of(st, id, block_bytes);
    st->fetch = calloc(st->max_fetches, sizeof *st->fetch);
    st->reader = calloc(readers_for(o) + 1, sizeof *st->reader);
    rc = st->fetch && st->reader ? ds_index_create(&st->ix, index_for(o, block_bytes), err) : ds_fail(err, DS_E_NOMEM, "out of memory");
    st->segment_bytes = segment_bytes_for(o);
    if (rc == DS_OK)
        rc = ds_kvs_restart(st, o, rados, err);
    if (rc == DS_OK)
        rc = start_threads(st, readers_for(o), err);
    if (rc != DS_OK) {
        close_store(&st->base);
        return rc;
    }
    *out = &st->base;
    return DS_OK;
}

ds_rc ds_kvstore_open(ds_kvstore **out, const ds_kvstore_opts *o, ds_err *err)
{
    return ds_kvs_open(out, o, NULL, err);
}
