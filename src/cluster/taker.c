#include "cluster/taker.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "cluster/greet.h"
#include "cluster/handoff.h"
#include "net/addr.h"

enum { PART = 1 << 20, AHEAD = 4, LOOK_MS = 20, CONNECT_MS = 1000 };

/* A taking while it goes on: the connection's thread fills in, the caller's waits. */
struct ds_taking {
    /* [const] */
    ds_conn *conn;
    uint64_t epoch, ticket, most;
    /* [mu] */
    pthread_mutex_t mu;
    pthread_cond_t moved;
    uint8_t *p; /* NULL: its size isn't known yet */
    size_t n_record, n_blocks;
    uint64_t all, asked, came; /* bytes; all: 0: not known yet */
    bool over;
    ds_err why; /* over: rc is DS_OK where it is whole */
};

static void end(ds_taking *k, const ds_err *why)
{
    if (!k->over && why)
        k->why = *why;
    k->over = true;
    pthread_cond_broadcast(&k->moved);
}

/* Asks for the next parts. With mu. */
static ds_rc ask(ds_taking *k, ds_err *err)
{
    ds_frame f = { .type = DS_CW_TAKE, .request = k->ticket, .epoch = k->epoch };
    ds_rc rc = DS_OK;

    while (rc == DS_OK && k->asked < k->came + AHEAD * (uint64_t)PART && k->asked < k->all) {
        uint64_t n = k->all - k->asked < PART ? k->all - k->asked : PART;
        ds_buf b = { 0 };
        ds_cw_put_take(&b, k->asked, (uint32_t)n);
        rc = b.oom ? ds_fail(err, DS_E_NOMEM, "out of memory") : ds_conn_send(k->conn, &f, b.p, b.len, err);
        ds_buf_free(&b);
        k->asked += n;
    }
    return rc;
}

/* The first part says how much there is. With mu. */
static ds_rc make_room(ds_taking *k, const ds_cw_part *p, ds_err *err)
{
    uint64_t all = p->n_record + p->n_blocks;

    if (k->p)
        return p->n_record == k->n_record && p->n_blocks == k->n_blocks ? DS_OK : ds_fail(err, DS_E_FORMAT, "it changed its size");
    if (!all)
        return ds_fail(err, DS_E_FORMAT, "a sequence of no bytes");
    if (all > k->most)
        return ds_fail(err, DS_E_NOMEM, "a sequence of %llu bytes, at most %llu", (unsigned long long)all, (unsigned long long)k->most);
    k->p = mmap(NULL, (size_t)all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (k->p == MAP_FAILED) {
        k->p = NULL;
        return ds_fail(err, DS_E_NOMEM, "out of memory for a sequence of %llu bytes", (unsigned long long)all);
    }
    k->n_record = (size_t)p->n_record;
    k->n_blocks = (size_t)p->n_blocks;
    k->all = all;
    return DS_OK;
}

static ds_rc on_part(ds_taking *k, const uint8_t *bytes, size_t n, ds_err *err)
{
    ds_cw_part p;
    ds_rc rc = ds_cw_read_part(&p, bytes, n, err);

    pthread_mutex_lock(&k->mu);
    if (rc == DS_OK && !k->over) {
        rc = make_room(k, &p, err);
        if (rc == DS_OK && (p.from != k->came || p.n == 0 || p.n > k->asked - k->came))
            rc = ds_fail(err, DS_E_FORMAT, "%zu bytes from %llu on, which nobody asked for", p.n, (unsigned long long)p.from);
        if (rc == DS_OK) {
            memcpy(k->p + k->came, p.p, p.n);
            k->came += p.n;
            if (k->asked > k->all) /* the first question was for more than there is */
                k->asked = k->all;
            rc = ask(k, err);
        }
        if (rc == DS_OK && k->came == k->all)
            end(k, NULL);
    }
    if (rc != DS_OK)
        end(k, err);
    pthread_cond_broadcast(&k->moved);
    pthread_mutex_unlock(&k->mu);
    return rc;
}

static ds_rc message(void *ctx, const ds_frame *f, const uint8_t *p, size_t n, ds_err *err)
{
    ds_taking *k = ctx;

    switch (f->type) {
    case DS_CW_PART:
        return f->request == k->ticket ? on_part(k, p, n, err) : ds_fail(err, DS_E_FORMAT, "a part of something else");
    case DS_CW_NOTHING:
        return ds_fail(err, DS_E_ARG, "it hasn't got this sequence any more");
    case DS_CW_STATS:
    case DS_CW_DRAINING: /* as it says them to everybody */
        return DS_OK;
    default:
        return ds_fail(err, DS_E_FORMAT, "a message of type %u", f->type);
    }
}

static void gone(void *ctx, const ds_err *why)
{
    ds_taking *k = ctx;

    pthread_mutex_lock(&k->mu);
    end(k, why);
    pthread_mutex_unlock(&k->mu);
}

static ds_rc connect_to(ds_taking *k, const ds_take_opts *o, ds_err *err)
{
    const ds_conn_fn fn = { message, gone, k };
    const ds_conn_opts conn = { .max_message = DS_CW_MAX_PART + 64, .silence_ms = o->silence_ms };
    ds_greeting g;
    ds_addr at;
    int fd;
    ds_rc rc = ds_addr_parse(&at, o->from->address, err);

    if (rc == DS_OK)
        rc = ds_addr_connect(&at, CONNECT_MS, &fd, err);
    if (rc != DS_OK)
        return rc;
    rc = ds_greet(fd, o->model, &g, err);
    if (rc == DS_OK && g.epoch != o->from->epoch)
        rc = ds_fail(err, DS_E_IO, "it isn't the process that had it");
    if (rc != DS_OK) {
        close(fd);
        return rc;
    }
    pthread_mutex_lock(&k->mu); /* its callbacks wait for it */
    rc = ds_conn_start(&k->conn, fd, &fn, &conn, err);
    if (rc == DS_OK) {
        k->all = PART;
        rc = ask(k, err);
        k->all = 0;
    }
    pthread_mutex_unlock(&k->mu);
    return rc;
}

/* Until it is over; a silence, or `stop`, ends it. */
static ds_rc wait_for_all(ds_taking *k, const ds_take_opts *o, ds_err *err)
{
    uint64_t silence_us = (o->silence_ms ? o->silence_ms : 2000) * UINT64_C(1000), since = ds_now_us(), had = 0;
    ds_rc rc = DS_OK;

    pthread_mutex_lock(&k->mu);
    while (!k->over && rc == DS_OK) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_nsec += LOOK_MS * 1000000;
        t.tv_sec += t.tv_nsec / 1000000000;
        t.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&k->moved, &k->mu, &t);
        if (k->came != had) {
            had = k->came;
            since = ds_now_us();
        }
        if (k->over)
            break;
        if (o->stop && atomic_load_explicit(o->stop, memory_order_relaxed)) /* a hint: nothing is read behind it */
            rc = ds_fail(err, DS_E_CANCELED, "canceled");
        else if (ds_now_us() - since > silence_us)
            rc = ds_fail(err, DS_E_IO, "nothing comes");
    }
    if (rc == DS_OK && k->why.rc != DS_OK) {
        *err = k->why;
        rc = err->rc;
    }
    k->over = true;
    pthread_mutex_unlock(&k->mu);
    return rc;
}

static void close_taking(ds_taking *k)
{
    ds_conn_destroy(k->conn);
    pthread_cond_destroy(&k->moved);
    pthread_mutex_destroy(&k->mu);
    free(k);
}

ds_rc ds_take(ds_taken *t, const ds_take_opts *o, ds_err *err)
{
    ds_taking *k = calloc(1, sizeof *k);
    pthread_condattr_t attr;
    ds_err local;
    ds_rc rc;

    *t = (ds_taken){ 0 };
    err = err ? err : &local;
    if (!k)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    k->epoch = o->from->epoch;
    k->ticket = o->from->ticket;
    k->most = o->most;
    pthread_mutex_init(&k->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&k->moved, &attr);
    pthread_condattr_destroy(&attr);
    rc = connect_to(k, o, err);
    if (rc == DS_OK)
        rc = wait_for_all(k, o, err);
    if (rc == DS_OK) {
        *t = (ds_taken){ k, k->p, k->n_record, k->n_blocks };
        return DS_OK;
    }
    ds_conn_destroy(k->conn); /* it fills in no more */
    k->conn = NULL;
    ds_taken_free(k->p, k->n_record + k->n_blocks);
    close_taking(k);
    return rc;
}

void ds_take_end(ds_taken *t, bool taken)
{
    ds_taking *k = t->how;
    const ds_frame f = { .type = DS_CW_FORGET, .request = k->ticket, .epoch = k->epoch };

    if (taken)
        ds_conn_send(k->conn, &f, NULL, 0, NULL);
    close_taking(k);
    t->how = NULL;
}

void ds_taken_free(const uint8_t *p, size_t n)
{
    if (p)
        munmap((void *)p, n);
}
