#include "role/fleet.h"

#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

enum { TICK_MS = 100, ATTEMPT_MS = 200, RETRY_MS = 1000 };

typedef struct {
    char name[DS_COORD_NAME], address[DS_COORD_ADDRESS];
    ds_remote *r; /* NULL: it couldn't be had yet */
    uint32_t place;
    bool named, leaves, said;
    uint64_t next_us; /* when it is tried again */
} part;

struct ds_fleet {
    /* [const] */
    ds_fleet_opts o;
    ds_remote_opts remote;
    ds_coord *coord;
    pthread_t thread;
    bool has_thread;
    /* [its thread], and before there is one who opens, and after it who closes */
    part parts[DS_COORD_MAX_MEMBERS];
    uint32_t n;
    ds_gen_many *many; /* NULL: no engine was there yet */
    uint32_t context;  /* that is promised to clients; 0: nothing yet */
    uint64_t revision; /* of the view that the parts were made from */
    ds_coord_member members[DS_COORD_MAX_MEMBERS];
    /* [mu] */
    pthread_mutex_t mu;
    pthread_cond_t woken;
    bool changed, closing;
};

bool ds_fleet_is_engine(const ds_coord_member *m)
{
    return strcmp(m->role, "mixed") == 0;
}

/* ---- one engine ---- */

static uint32_t context_of(ds_gen g)
{
    uint32_t least = 0;

    for (uint32_t i = 0; i < ds_gen_n_engines(g); i++) {
        ds_gen_plan p;
        if (ds_gen_plan_get(g, i, &p) && (!least || p.max_context < least))
            least = p.max_context;
    }
    return least;
}

static bool is_up(ds_gen g)
{
    ds_gen_stats s;

    return !ds_gen_stats_get(g, 0, &s) || !s.lost; /* nothing is known of one that has just come */
}

static ds_rc take(ds_fleet *f, part *p, ds_gen g, ds_err *err)
{
    uint32_t context = context_of(g);
    ds_rc rc;

    if (context < f->context)
        return ds_fail(err, DS_E_ARG, "its context is %u tokens, this entry promises %u", context, f->context);
    if (f->many)
        return ds_gen_many_add(f->many, g, &p->place, err);
    rc = ds_gen_many_create(&f->many, &g, 1, err);
    p->place = 0;
    return rc;
}

static void try_to_have(ds_fleet *f, part *p)
{
    ds_err err = { 0 };
    ds_rc rc = ds_remote_open(&p->r, p->address, &f->remote, &err);

    if (rc == DS_OK) {
        rc = take(f, p, ds_remote_gen(p->r), &err);
        if (rc != DS_OK) {
            ds_remote_close(p->r);
            p->r = NULL;
        }
    }
    p->next_us = ds_now_us() + (uint64_t)RETRY_MS * 1000;
    if (rc == DS_OK)
        ds_logf(f->o.log, DS_LOG_INFO, "engine %s at %s: takes requests", p->name, p->address);
    else if (!p->said)
        ds_logf(f->o.log, DS_LOG_WARN, "engine %s at %s: not yet: %s", p->name, p->address, err.msg);
    p->said = rc != DS_OK;
}

/* ---- all of them ---- */

static part *part_at(ds_fleet *f, const char *address)
{
    for (uint32_t i = 0; i < f->n; i++)
        if (!f->parts[i].leaves && strcmp(f->parts[i].address, address) == 0)
            return &f->parts[i];
    return NULL;
}

/* Takes over who is named. */
static void hear(ds_fleet *f)
{
    uint64_t revision = ds_coord_get(f->coord).revision;
    uint32_t n;

    if (revision == f->revision)
        return;
    f->revision = revision;
    n = ds_coord_members(f->coord, f->members, DS_COORD_MAX_MEMBERS);
    for (uint32_t i = 0; i < f->n; i++)
        f->parts[i].named = false;
    for (uint32_t i = 0; i < n && i < DS_COORD_MAX_MEMBERS; i++) {
        const ds_coord_member *m = &f->members[i];
        part *p = ds_fleet_is_engine(m) ? part_at(f, m->address) : NULL;
        if (!p && ds_fleet_is_engine(m) && m->state == DS_INSTANCE_READY && f->n < DS_COORD_MAX_MEMBERS) {
            p = &f->parts[f->n++];
            *p = (part){ .r = NULL };
            memcpy(p->address, m->address, sizeof p->address);
        }
        if (p) {
            p->named = true;
            memcpy(p->name, m->name, sizeof p->name);
        }
    }
}

/* Who isn't named and isn't there goes. True: it is no part any more. */
static bool let_go(ds_fleet *f, part *p)
{
    if (p->named && !p->leaves)
        return false;
    if (!p->r)
        return true;
    if (!p->leaves && is_up(ds_remote_gen(p->r)))
        return false;
    p->leaves = true;
    if (!ds_gen_many_remove(f->many, p->place))
        return false;
    ds_remote_close(p->r);
    p->r = NULL;
    ds_logf(f->o.log, DS_LOG_INFO, "engine %s at %s: has left", p->name, p->address);
    return true;
}

static void turn(ds_fleet *f)
{
    uint64_t now = ds_now_us();

    hear(f);
    for (uint32_t i = 0; i < f->n;) {
        part *p = &f->parts[i];
        if (let_go(f, p)) {
            *p = f->parts[--f->n];
            continue;
        }
        if (!p->r && now >= p->next_us)
            try_to_have(f, p);
        i++;
    }
}

static void changed(void *ctx)
{
    ds_fleet *f = ctx;

    pthread_mutex_lock(&f->mu);
    f->changed = true;
    pthread_cond_signal(&f->woken);
    pthread_mutex_unlock(&f->mu);
}

static void *run(void *arg)
{
    ds_fleet *f = arg;
    bool closing = false;

    while (!closing) {
        struct timespec t;
        turn(f);
        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_nsec += (long)TICK_MS * 1000000;
        t.tv_sec += t.tv_nsec / 1000000000;
        t.tv_nsec %= 1000000000;
        pthread_mutex_lock(&f->mu);
        if (!f->changed && !f->closing)
            pthread_cond_timedwait(&f->woken, &f->mu, &t);
        f->changed = false;
        closing = f->closing;
        pthread_mutex_unlock(&f->mu);
    }
    return NULL;
}

/* ---- open and closed ---- */

/* Until an engine is there. All that are named by then are asked once. */
static ds_rc wait_for_one(ds_fleet *f, ds_err *err)
{
    uint64_t until = ds_now_us() + (uint64_t)(f->o.wait_ms ? f->o.wait_ms : 60000) * 1000;

    for (;;) {
        turn(f);
        if (f->many)
            break;
        if (ds_now_us() >= until) {
            ds_coord_now now = ds_coord_get(f->coord);
            if (!now.seen)
                return ds_fail(err, DS_E_IO, "coord %s: %s", f->o.coord, now.why[0] ? now.why : "no answer in time");
            return ds_fail(err, DS_E_IO, "coord %s: of %u members none is an engine that takes requests", f->o.coord, now.n);
        }
        poll(NULL, 0, 20);
    }
    f->context = context_of(ds_gen_many_gen(f->many));
    return DS_OK;
}

ds_rc ds_fleet_open(ds_fleet **out, const ds_fleet_opts *o, ds_err *err)
{
    ds_fleet *f = calloc(1, sizeof *f);
    pthread_condattr_t attr;
    ds_rc rc;

    *out = NULL;
    if (!f)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    f->o = *o;
    f->remote = *o->remote;
    f->remote.wait_ms = ATTEMPT_MS;
    pthread_mutex_init(&f->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&f->woken, &attr);
    pthread_condattr_destroy(&attr);
    rc = ds_coord_open(&f->coord, o->coord, &(ds_coord_opts){ .watch = true, .changed = changed, .ctx = f },
                       err); /* the member's tie says how the coord is */
    if (rc == DS_OK)
        rc = wait_for_one(f, err);
    if (rc == DS_OK) {
        f->has_thread = pthread_create(&f->thread, NULL, run, f) == 0;
        if (!f->has_thread)
            rc = ds_fail(err, DS_E_IO, "a thread can't be started");
    }
    if (rc == DS_OK)
        *out = f;
    else
        ds_fleet_close(f);
    return rc;
}

ds_gen_many *ds_fleet_many(ds_fleet *f)
{
    return f->many;
}

void ds_fleet_stop(ds_fleet *f)
{
    pthread_mutex_lock(&f->mu);
    f->closing = true;
    pthread_cond_signal(&f->woken);
    pthread_mutex_unlock(&f->mu);
    if (f->has_thread)
        pthread_join(f->thread, NULL);
    f->has_thread = false;
    ds_coord_close(f->coord);
    f->coord = NULL;
    for (uint32_t i = 0; i < f->n; i++)
        ds_remote_close(f->parts[i].r);
    f->n = 0;
}

void ds_fleet_close(ds_fleet *f)
{
    if (!f)
        return;
    ds_fleet_stop(f);
    ds_gen_many_destroy(f->many);
    pthread_cond_destroy(&f->woken);
    pthread_mutex_destroy(&f->mu);
    free(f);
}
