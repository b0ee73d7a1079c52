#include "coord/coord_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/clock.h"
#include "net/addr.h"

enum { MAX_ETCD = 100 }; /* bytes of its address: its prefix is part of every key */

/* ---- waiting ---- */

static struct timespec in_ms(uint32_t ms)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += (long)(ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

void ds_coord_pause(ds_coord *c, uint32_t ms)
{
    struct timespec t = in_ms(ms);

    pthread_cond_timedwait(&c->woken, &c->mu, &t);
}

/* ---- what the coord says ---- */

static void tell_changed(ds_coord *c)
{
    if (c->o.changed)
        c->o.changed(c->o.ctx);
}

void ds_coord_is_up(ds_coord *c, uint32_t ttl_ms)
{
    bool was;

    pthread_mutex_lock(&c->mu);
    was = c->now.up;
    c->now.up = true;
    c->now.why[0] = '\0';
    if (!was)
        c->up_us = ds_now_us();
    for (uint32_t i = 0; i < c->n_seen && !was; i++)
        c->seen[i].confirmed = false;
    c->ttl_ms = ttl_ms;
    c->dirty = c->mine.instance != 0;
    pthread_mutex_unlock(&c->mu);
    if (!was)
        ds_logf(c->o.log, DS_LOG_INFO, "coord %s: is there", c->address);
}

void ds_coord_is_away(ds_coord *c, const char *why)
{
    size_t n = strlen(c->address);
    bool was, news;

    if (strncmp(why, c->address, n) == 0 && strncmp(why + n, ": ", 2) == 0) /* it is said anyway */
        why += n + 2;

    pthread_mutex_lock(&c->mu);
    was = c->now.up;
    news = !c->closing && (was || !c->now.why[0]);
    c->now.up = false;
    snprintf(c->now.why, sizeof c->now.why, "%.150s", why);
    if (c->order == DS_ORDER_SENT)
        c->order = DS_ORDER_WAITS;
    pthread_cond_broadcast(&c->woken);
    pthread_mutex_unlock(&c->mu);
    if (news)
        ds_logf(c->o.log, DS_LOG_WARN, "coord %s: is away, what it said last stays: %s", c->address, why);
}

void ds_coord_said(ds_coord *c, uint64_t epoch)
{
    pthread_mutex_lock(&c->mu);
    c->now.epoch = epoch;
    c->now.why[0] = '\0';
    pthread_cond_broadcast(&c->woken);
    pthread_mutex_unlock(&c->mu);
}

void ds_coord_refused(ds_coord *c, const char *why)
{
    bool news;

    pthread_mutex_lock(&c->mu);
    news = strncmp(c->now.why, why, 150) != 0;
    c->now.epoch = 0;
    snprintf(c->now.why, sizeof c->now.why, "%.150s", why);
    pthread_mutex_unlock(&c->mu);
    if (news)
        ds_logf(c->o.log, DS_LOG_ERROR, "coord %s: refuses this process: %s", c->address, why);
}

void ds_coord_answered(ds_coord *c, ds_rc rc, const char *why)
{
    pthread_mutex_lock(&c->mu);
    if (c->order == DS_ORDER_SENT) {
        c->order = DS_ORDER_DONE;
        c->order_answer.rc = rc;
        snprintf(c->order_answer.msg, sizeof c->order_answer.msg, "%s", why);
        pthread_cond_broadcast(&c->woken);
    }
    pthread_mutex_unlock(&c->mu);
}

/* [mu] Whether a member that the coord hasn't named since it is there may stay: as long as it may not have come back
 * itself. */
static bool holds(const ds_coord *c, const ds_coord_seen *s)
{
    return !s->confirmed && ds_now_us() - c->up_us < (uint64_t)c->ttl_ms * 1500;
}

static bool same_for_others(const ds_coord_member *a, const ds_coord_member *b)
{
    return a->instance == b->instance && a->epoch == b->epoch && a->state == b->state && a->drain == b->drain &&
           strcmp(a->name, b->name) == 0 && strcmp(a->role, b->role) == 0 && strcmp(a->address, b->address) == 0 &&
           strcmp(a->version, b->version) == 0;
}

/* [mu] Whether somebody is another one than before. */
static bool differs(const ds_coord *c, const ds_coord_seen *seen, uint32_t n)
{
    if (n != c->n_seen)
        return true;
    for (uint32_t i = 0; i < n; i++)
        if (!same_for_others(&seen[i].m, &c->seen[i].m))
            return true;
    return false;
}

/* [mu] The view becomes that one. */
static bool take_view(ds_coord *c, ds_coord_seen *seen, uint32_t n)
{
    bool news = differs(c, seen, n) || !c->now.seen;

    free(c->seen);
    c->seen = seen;
    c->n_seen = c->now.n = n;
    c->now.seen = true;
    c->now.revision += news;
    for (uint32_t i = 0; i < n && c->mine.instance; i++)
        if (seen[i].m.instance == c->mine.instance && seen[i].m.drain)
            c->now.drain = true;
    pthread_cond_broadcast(&c->woken);
    return news;
}

void ds_coord_view(ds_coord *c, const ds_coord_member *m, uint32_t n)
{
    ds_coord_seen *seen;
    uint32_t i = 0, k = 0, out = 0;
    bool news;

    pthread_mutex_lock(&c->mu);
    seen = calloc((size_t)n + c->n_seen + 1, sizeof *seen);
    if (!seen) { /* the last view stays */
        pthread_mutex_unlock(&c->mu);
        return;
    }
    while (i < n || k < c->n_seen) {
        int order = i == n ? 1 : k == c->n_seen ? -1 : strcmp(m[i].name, c->seen[k].m.name);
        if (order <= 0) {
            seen[out++] = (ds_coord_seen){ m[i++], true };
            k += order == 0;
            continue;
        }
        if (holds(c, &c->seen[k]) && out < DS_COORD_MAX_MEMBERS)
            seen[out++] = c->seen[k];
        k++;
    }
    news = take_view(c, seen, out);
    pthread_mutex_unlock(&c->mu);
    if (news)
        tell_changed(c);
}

void ds_coord_tick(ds_coord *c)
{
    uint32_t out = 0;
    bool news;

    pthread_mutex_lock(&c->mu);
    for (uint32_t i = 0; i < c->n_seen && c->now.up; i++) /* while it is away nobody goes */
        if (c->seen[i].confirmed || holds(c, &c->seen[i]))
            c->seen[out++] = c->seen[i];
    news = c->now.up && out != c->n_seen;
    if (news) {
        c->n_seen = c->now.n = out;
        c->now.revision++;
    }
    pthread_mutex_unlock(&c->mu);
    if (news)
        tell_changed(c);
}

/* ---- what this process says and asks ---- */

ds_rc ds_coord_say(ds_coord *c, const ds_coord_member *mine, ds_err *err)
{
    ds_coord_member m = *mine;
    ds_rc rc;

    pthread_mutex_lock(&c->mu);
    if (!m.instance)
        m.instance = c->mine.instance;
    while (!m.instance)
        if (getrandom(&m.instance, sizeof m.instance, 0) != sizeof m.instance)
            m.instance = 0;
    m.epoch = 0;
    m.drain = false;
    rc = ds_coord_member_check(&m, err);
    if (rc == DS_OK) {
        c->mine = m;
        c->dirty = true;
        pthread_cond_broadcast(&c->woken);
    }
    pthread_mutex_unlock(&c->mu);
    return rc;
}

void ds_coord_status(ds_coord *c, uint32_t live, uint64_t kv_used, uint64_t kv_total)
{
    pthread_mutex_lock(&c->mu);
    c->mine.live = live;
    c->mine.kv_used = kv_used;
    c->mine.kv_total = kv_total;
    pthread_mutex_unlock(&c->mu);
}

ds_coord_now ds_coord_get(ds_coord *c)
{
    ds_coord_now n;

    pthread_mutex_lock(&c->mu);
    n = c->now;
    pthread_mutex_unlock(&c->mu);
    return n;
}

uint32_t ds_coord_members(ds_coord *c, ds_coord_member *out, uint32_t cap)
{
    uint32_t n;

    pthread_mutex_lock(&c->mu);
    n = c->n_seen;
    for (uint32_t i = 0; i < n && i < cap; i++)
        out[i] = c->seen[i].m;
    pthread_mutex_unlock(&c->mu);
    return n;
}

ds_rc ds_coord_wait(ds_coord *c, uint32_t timeout_ms, ds_err *err)
{
    struct timespec t = in_ms(timeout_ms);
    ds_rc rc = DS_OK;

    pthread_mutex_lock(&c->mu);
    while (!c->now.seen && rc == DS_OK)
        if (pthread_cond_timedwait(&c->woken, &c->mu, &t) == ETIMEDOUT && !c->now.seen)
            rc = ds_fail(err, DS_E_IO, "coord %s: %s", c->address, c->now.why[0] ? c->now.why : "no answer in time");
    pthread_mutex_unlock(&c->mu);
    return rc;
}

ds_rc ds_coord_drain(ds_coord *c, const char *name, uint32_t timeout_ms, ds_err *err)
{
    struct timespec t = in_ms(timeout_ms);
    bool in_time = true;
    ds_rc rc;

    if (strlen(name) >= DS_COORD_NAME)
        return ds_fail(err, DS_E_ARG, "there is no process '%.40s…'", name);
    pthread_mutex_lock(&c->mu);
    while (c->order != DS_ORDER_NONE && in_time) /* one at a time */
        in_time = pthread_cond_timedwait(&c->woken, &c->mu, &t) != ETIMEDOUT;
    if (c->order == DS_ORDER_NONE) {
        c->order = DS_ORDER_WAITS;
        snprintf(c->order_name, sizeof c->order_name, "%s", name);
        pthread_cond_broadcast(&c->woken);
        while (c->order != DS_ORDER_DONE && in_time)
            in_time = pthread_cond_timedwait(&c->woken, &c->mu, &t) != ETIMEDOUT;
        rc = c->order == DS_ORDER_DONE ? c->order_answer.rc : DS_E_IO;
        if (c->order == DS_ORDER_DONE && rc != DS_OK)
            ds_fail(err, rc, "%s", c->order_answer.msg);
        else if (rc != DS_OK)
            ds_fail(err, rc, "coord %s: %s", c->address, c->now.why[0] ? c->now.why : "no answer in time");
        c->order = DS_ORDER_NONE;
        pthread_cond_broadcast(&c->woken);
    } else {
        rc = ds_fail(err, DS_E_AGAIN, "another order waits for its answer");
    }
    pthread_mutex_unlock(&c->mu);
    return rc;
}

/* ---- open and closed ---- */

static void *thread(void *arg)
{
    ds_coord *c = arg;

    c->run(c);
    return NULL;
}

static ds_rc set_address(ds_coord *c, const char *address, ds_err *err)
{
    ds_addr at;

    if (strlen(address) >= sizeof c->address)
        return ds_fail(err, DS_E_ARG, "%.40s…: an address of at most %zu bytes", address, sizeof c->address - 1);
    snprintf(c->address, sizeof c->address, "%s", address);
    if (strncmp(address, "etcd:", 5) == 0) {
        c->run = ds_coord_run_etcd;
        if (strlen(address) > MAX_ETCD)
            return ds_fail(err, DS_E_ARG, "%.60s…: an address of at most %d bytes", address, MAX_ETCD);
        return strncmp(address + 5, "http://", 7) == 0 || strncmp(address + 5, "https://", 8) == 0
                   ? DS_OK
                   : ds_fail(err, DS_E_ARG, "%s: expected etcd:http://HOST:PORT or etcd:https://HOST:PORT", address);
    }
    c->run = ds_coord_run_link;
    return ds_addr_parse(&at, address, err);
}

ds_rc ds_coord_open(ds_coord **out, const char *address, const ds_coord_opts *o, ds_err *err)
{
    ds_coord *c = calloc(1, sizeof *c);
    pthread_condattr_t attr;
    ds_rc rc;

    *out = NULL;
    if (!c)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    c->o = *o;
    c->o.retry_ms = o->retry_ms ? o->retry_ms : 500;
    c->ttl_ms = c->o.ttl_ms = o->ttl_ms ? o->ttl_ms : 10000;
    pthread_mutex_init(&c->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->woken, &attr);
    pthread_condattr_destroy(&attr);
    rc = set_address(c, address, err);
    if (rc == DS_OK) {
        c->has_thread = pthread_create(&c->thread, NULL, thread, c) == 0;
        if (!c->has_thread)
            rc = ds_fail(err, DS_E_IO, "a thread can't be started");
    }
    if (rc == DS_OK)
        *out = c;
    else
        ds_coord_close(c);
    return rc;
}

void ds_coord_close(ds_coord *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->mu);
    c->closing = true;
    pthread_cond_broadcast(&c->woken);
    pthread_mutex_unlock(&c->mu);
    if (c->has_thread)
        pthread_join(c->thread, NULL);
    free(c->seen);
    pthread_cond_destroy(&c->woken);
    pthread_mutex_destroy(&c->mu);
    free(c);
}
