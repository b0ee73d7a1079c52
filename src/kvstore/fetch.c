/* Fetches: a queue of blocks to read, the threads that read them, and who watches their deadlines. */
#include "kvstore/store_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"

#define DEFAULT_LIMIT_NS 5000000000u
#define SLOW_TIMES 8u

/* ---- the queue; all with mu held ---- */

static void enqueue(ds_kvs *st, ds_kvs_fetch *f)
{
    f->later = NULL;
    f->queued = true;
    if (st->last)
        st->last->later = f;
    else
        st->first = f;
    st->last = f;
}

static void dequeue(ds_kvs *st, ds_kvs_fetch *f)
{
    ds_kvs_fetch *before = NULL;

    if (!f->queued)
        return;
    for (ds_kvs_fetch *q = st->first; q != f; q = q->later)
        before = q;
    if (before)
        before->later = f->later;
    else
        st->first = f->later;
    if (st->last == f)
        st->last = before;
    f->queued = false;
}

/* Block i isn't given: those behind it aren't needed. */
static void miss(ds_kvs *st, ds_kvs_fetch *f, uint32_t i, ds_kvstore_cause cause)
{
    if (i < f->bad) {
        f->bad = i;
        f->cause = cause;
    }
    if (f->next >= f->bad)
        dequeue(st, f);
}

static bool ended(const ds_kvs_fetch *f)
{
    return f->running == 0 && (f->next >= f->n || f->next >= f->bad || !f->queued);
}

/* Gives the slot back and tells. Returns without mu. */
static void finish(ds_kvs *st, ds_kvs_fetch *f)
{
    ds_kvstore_fetched r = { .n = f->bad, .cause = f->bad < f->n ? f->cause : DS_KVSTORE_HIT, .ns = ds_now_ns() - f->begun_ns };
    void (*done)(void *, const ds_kvstore_fetched *) = f->done;
    void *ctx = f->ctx, *memory = f->memory;

    r.crc = f->crc;
    for (uint32_t i = 0; i < r.n; i++)
        f->crc[i] = f->hits[i].place.crc;
    while (r.exact < r.n && !(f->hits[r.exact].what & DS_INDEX_APPROX))
        r.exact++;
    DS_KVS_COUNT(st, hits, r.n);
    if (r.n < f->n)
        DS_KVS_COUNT(st, misses[r.cause], f->n - r.n);
    st->n_pins--;
    pthread_mutex_unlock(&st->mu);
    done(ctx, &r);
    free(memory);
    pthread_mutex_lock(&st->mu);
    f->used = false; /* only now: while it is used somebody may be called back */
    st->n_fetches--;
    if (st->n_fetches == 0)
        pthread_cond_broadcast(&st->idle);
    pthread_mutex_unlock(&st->mu);
}

/* ---- the caller ---- */

static bool allocate(ds_kvs_fetch *f, const ds_kvstore_fetch_req *r)
{
    size_t n = r->n;
    char *p = malloc(n * (sizeof *f->hits + sizeof *f->blocks + sizeof *f->keys + sizeof *f->crc));

    if (!p)
        return false;
    f->memory = p;
    f->hits = (ds_index_hit *)(void *)p;
    f->blocks = (uint8_t **)(void *)(p + n * sizeof *f->hits);
    f->keys = (ds_key *)(void *)(p + n * (sizeof *f->hits + sizeof *f->blocks));
    f->crc = (uint32_t *)(void *)(f->keys + n);
    memcpy(f->blocks, r->blocks, n * sizeof *f->blocks);
    memcpy(f->keys, r->keys, n * sizeof *f->keys);
    return true;
}

static void look_up(ds_kvs *st, ds_kvs_fetch *f, uint32_t layout)
{
    uint64_t t = ds_now_ns();
    uint32_t i = 0;

    ds_index_find_many(st->ix, f->keys, f->n, f->hits);
    while (i < f->n && f->hits[i].record != DS_NONE && (f->hits[i].what >> DS_INDEX_LAYOUT_SHIFT & 255) == layout)
        i++;
    f->bad = i;
    if (i < f->n)
        f->cause = f->hits[i].record == DS_NONE ? DS_KVSTORE_ABSENT : DS_KVSTORE_LAYOUT;
    DS_KVS_COUNT(st, lookup_ns, ds_now_ns() - t);
}

static uint64_t ticket_of(const ds_kvs *st, const ds_kvs_fetch *f)
{
    return (uint64_t)f->gen << 32 | (uint32_t)(f - st->fetch);
}

ds_rc ds_kvs_fetch_begin(ds_kvs *st, uint32_t layout, const ds_kvstore_fetch_req *r, uint64_t *ticket, ds_err *err)
{
    ds_kvs_fetch *f = NULL;
    uint64_t now = ds_now_ns();

    pthread_mutex_lock(&st->mu);
    for (uint32_t i = 0; i < st->max_fetches && !f && !st->stopping; i++)
        f = st->fetch[i].used ? NULL : &st->fetch[i];
    if (!f) {
        pthread_mutex_unlock(&st->mu);
        return ds_fail(err, DS_E_AGAIN, "%u fetches are under way", st->max_fetches);
    }
    f->used = true;
    f->gen++;
    f->queued = false;
    f->next = f->running = f->bad = f->n = 0; /* nobody acts on it yet: not queued */
    st->n_fetches++;
    st->n_pins++;
    if (ticket)
        *ticket = ticket_of(st, f);
    pthread_mutex_unlock(&st->mu);
    if (!allocate(f, r)) {
        pthread_mutex_lock(&st->mu);
        f->used = false;
        st->n_pins--;
        if (--st->n_fetches == 0)
            pthread_cond_broadcast(&st->idle);
        pthread_mutex_unlock(&st->mu);
        return ds_fail(err, DS_E_NOMEM, "fetch of %u blocks: out of memory", r->n);
    }
    f->n = r->n;
    f->begun_ns = now;
    f->use_us = ds_kvs_use_us(st);
    f->deadline_ns = r->deadline_ns ? r->deadline_ns : now + DEFAULT_LIMIT_NS;
    f->done = r->done;
    f->ctx = r->ctx;
    f->cause = DS_KVSTORE_HIT;
    atomic_store(&f->stop, false);
    look_up(st, f, layout);
    pthread_mutex_lock(&st->mu);
    f->block_bytes = st->layout[layout].block_bytes;
    if (st->stopping)
        miss(st, f, 0, DS_KVSTORE_CANCELED);
    if (f->bad == 0) {
        finish(st, f);
        return DS_OK;
    }
    enqueue(st, f);
    pthread_cond_broadcast(&st->work);
    pthread_cond_signal(&st->tick);
    pthread_mutex_unlock(&st->mu);
    return DS_OK;
}

bool ds_kvs_cancel(ds_kvs *st, uint64_t ticket)
{
    uint32_t i = (uint32_t)ticket;
    ds_kvs_fetch *f;

    if (i >= st->max_fetches)
        return false;
    f = &st->fetch[i];
    pthread_mutex_lock(&st->mu);
    if (!f->used || f->gen != ticket >> 32 || !(f->queued || f->running)) {
        pthread_mutex_unlock(&st->mu);
        return false;
    }
    atomic_store_explicit(&f->stop, true, memory_order_relaxed);
    miss(st, f, f->next, DS_KVSTORE_CANCELED);
    dequeue(st, f);
    if (f->running == 0)
        finish(st, f);
    else
        pthread_mutex_unlock(&st->mu);
    return true;
}

void ds_kvs_cancel_all(ds_kvs *st)
{
    pthread_mutex_lock(&st->mu);
    st->stopping = true;
    for (uint32_t i = 0; i < st->max_fetches; i++) {
        uint64_t ticket = ticket_of(st, &st->fetch[i]);
        bool used = st->fetch[i].used;
        pthread_mutex_unlock(&st->mu);
        if (used)
            ds_kvs_cancel(st, ticket);
        pthread_mutex_lock(&st->mu);
    }
    while (st->n_fetches)
        pthread_cond_wait(&st->idle, &st->mu);
    pthread_mutex_unlock(&st->mu);
}

/* ---- the threads ---- */

/* Moves the estimates: of the median, up or down by one part; of the 95th percentile, up by 19 parts when a read took
 * longer, down by one when not. While a device is slow many reads take as long as others wait for it, so that the wait
 * itself would make the wait longer: a few times the median is the most. */
static void note_time(ds_kvs *st, uint64_t ns)
{
    uint64_t q = atomic_load_explicit(&st->slow_ns, memory_order_relaxed), m = atomic_load_explicit(&st->median_ns, memory_order_relaxed);

    m = ns > m ? m + m / 64 + 1 : m - m / 64;
    q = ns > q ? q + q * 19 / 320 : q - q / 320;
    q = q > SLOW_TIMES * m ? SLOW_TIMES * m : q;
    q = q < 200000 ? 200000 : q > 100000000 ? 100000000 : q;
    atomic_store_explicit(&st->median_ns, m, memory_order_relaxed);
    atomic_store_explicit(&st->slow_ns, q, memory_order_relaxed);
}

static ds_kvstore_cause cause_of(ds_read_result r, bool stopped)
{
    switch (r) {
    case DS_READ_OK:
        return DS_KVSTORE_HIT;
    case DS_READ_GONE:
        return DS_KVSTORE_GONE;
    case DS_READ_IO:
        return DS_KVSTORE_IO;
    case DS_READ_CORRUPT:
        return DS_KVSTORE_CORRUPT;
    case DS_READ_LATE:
    default:
        return stopped ? DS_KVSTORE_CANCELED : DS_KVSTORE_LATE;
    }
}

static void note_suspect(ds_kvs *st, uint64_t segment)
{
    pthread_mutex_lock(&st->mu);
    bool known = st->n_suspects == DS_KVS_SUSPECTS; /* more than that are found again by the next scrub */
    for (uint32_t i = 0; i < st->n_suspects && !known; i++)
        known = st->suspect[i] == segment;
    if (!known)
        st->suspect[st->n_suspects++] = segment;
    pthread_mutex_unlock(&st->mu);
}

/* How many blocks from i on one thread reads, because they lie behind each other where one large read is cheaper. */
static uint32_t run_from(const ds_kvs *st, const ds_kvs_fetch *f, uint32_t i)
{
    uint32_t end = f->n < f->bad ? f->n : f->bad, n = 1;
    const ds_volume_place *p = &f->hits[i].place;

    while (i + n < end && (n + 1) * f->block_bytes <= st->run_bytes && p->at + n < p->of && f->hits[i + n].place.segment == p->segment &&
           f->hits[i + n].place.offset == p->offset && f->hits[i + n].place.at == p->at + n)
        n++;
    return n;
}

/* Reads block i into its buffer, `ahead` more of its run being next. A block that was collected meanwhile may stand
 * elsewhere by now. */
static ds_kvstore_cause read_block(ds_kvs *st, ds_volume_reader *r, ds_kvs_fetch *f, uint32_t i, uint32_t ahead)
{
    uint64_t t = ds_now_ns();
    ds_read_opts o = { .deadline_ns = f->deadline_ns,
                       .hedge_ns = atomic_load_explicit(&st->slow_ns, memory_order_relaxed),
                       .ahead = ahead,
                       .stop = &f->stop };
    ds_index_hit *h = &f->hits[i];
    ds_read_info info;
    ds_read_result got;

    DS_KVS_COUNT(st, queue_ns, t - f->begun_ns);
    got = ds_volume_read(r, &h->place, &f->keys[i], f->blocks[i], f->block_bytes, &o, &info);
    for (int again = 0; got == DS_READ_GONE && again < 8; again++) {
        uint32_t layout = h->what >> DS_INDEX_LAYOUT_SHIFT & 255;
        if (!ds_index_find(st->ix, &f->keys[i], h) || (h->what >> DS_INDEX_LAYOUT_SHIFT & 255) != layout)
            break;
        got = ds_volume_read(r, &h->place, &f->keys[i], f->blocks[i], f->block_bytes, &o, &info);
    }
    if (info.bad && !st->read_only)
        note_suspect(st, h->place.segment);
    DS_KVS_COUNT(st, bad_shards, info.bad);
    DS_KVS_COUNT(st, decoded, info.decoded);
    DS_KVS_COUNT(st, hedged, info.hedged);
    DS_KVS_COUNT(st, device_ns, info.device_ns);
    DS_KVS_COUNT(st, decode_ns, info.decode_ns);
    DS_KVS_COUNT(st, verify_ns, info.verify_ns);
    DS_KVS_COUNT(st, copy_ns, info.copy_ns);
    if (got == DS_READ_OK) {
        note_time(st, ds_now_ns() - t);
        uint64_t was = ds_index_touch(st->ix, h->record, f->use_us);
        DS_KVS_COUNT_TIME(st, reuse_gap, was < f->use_us ? (f->use_us - was) / 1000000 : 0);
    }
    return cause_of(got, atomic_load_explicit(&f->stop, memory_order_relaxed));
}

void *ds_kvs_reader(void *arg)
{
    ds_kvs_reader_arg *a = arg;
    ds_kvs *st = a->st;

    pthread_mutex_lock(&st->mu);
    for (;;) {
        ds_kvs_fetch *f = st->first;
        uint32_t i, n;
        if (!f) {
            if (st->stopping && st->n_fetches == 0)
                break;
            pthread_cond_wait(&st->work, &st->mu);
            continue;
        }
        i = f->next;
        n = run_from(st, f, i);
        f->next += n;
        f->running++;
        if (f->next >= f->n || f->next >= f->bad)
            dequeue(st, f);
        for (uint32_t end = i + n; i < end && i < f->bad; i++) {
            pthread_mutex_unlock(&st->mu);
            ds_kvstore_cause cause = read_block(st, a->r, f, i, end - i - 1);
            pthread_mutex_lock(&st->mu);
            if (cause != DS_KVSTORE_HIT)
                miss(st, f, i, cause);
        }
        f->running--;
        if (ended(f)) {
            finish(st, f);
            pthread_mutex_lock(&st->mu);
        }
    }
    pthread_mutex_unlock(&st->mu);
    ds_volume_reader_destroy(a->r);
    free(a);
    return NULL;
}

/* Ends what waits for a thread beyond its deadline; what is being read ends by itself. */
void *ds_kvs_clock(void *arg)
{
    ds_kvs *st = arg;

    pthread_mutex_lock(&st->mu);
    while (!(st->stopping && st->n_fetches == 0)) {
        uint64_t now = ds_now_ns(), next = UINT64_MAX;
        ds_kvs_fetch *late = NULL;
        for (ds_kvs_fetch *f = st->first; f && !late; f = f->later) {
            if (f->deadline_ns <= now)
                late = f;
            else if (f->deadline_ns < next)
                next = f->deadline_ns;
        }
        if (late) {
            miss(st, late, late->next, DS_KVSTORE_LATE);
            dequeue(st, late);
            if (late->running == 0) {
                finish(st, late);
                pthread_mutex_lock(&st->mu);
            }
        } else if (next == UINT64_MAX) {
            pthread_cond_wait(&st->tick, &st->mu);
        } else {
            struct timespec t = { .tv_sec = (time_t)(next / 1000000000), .tv_nsec = (long)(next % 1000000000) };
            pthread_cond_timedwait(&st->tick, &st->mu, &t);
        }
    }
    pthread_mutex_unlock(&st->mu);
    return NULL;
}
