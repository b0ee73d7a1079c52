#include "role/member.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LOOK_MS = 100 };

struct ds_member {
    /* [const] */
    ds_member_opts o;
    ds_coord *coord;
    pthread_t thread;
    bool has_thread;
    /* [its thread] */
    ds_coord_member me;
    bool told;
    /* [mu] */
    pthread_mutex_t mu;
    pthread_cond_t woken;
    bool closing;
};

static void look(ds_member *m)
{
    ds_instance_state before = m->me.state;

    m->o.look(m->o.ctx, &m->me);
    ds_coord_status(m->coord, m->me.live, m->me.kv_used, m->me.kv_total);
    if (m->me.state != before)
        ds_coord_say(m->coord, &m->me, NULL); /* it was taken with another state */
    if (!m->told && ds_coord_get(m->coord).drain) {
        m->told = true;
        m->o.drain(m->o.ctx);
    }
}

static void *run(void *arg)
{
    ds_member *m = arg;
    bool closing = false;

    while (!closing) {
        struct timespec t;
        look(m);
        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_nsec += (long)LOOK_MS * 1000000;
        t.tv_sec += t.tv_nsec / 1000000000;
        t.tv_nsec %= 1000000000;
        pthread_mutex_lock(&m->mu);
        if (!m->closing)
            pthread_cond_timedwait(&m->woken, &m->mu, &t);
        closing = m->closing;
        pthread_mutex_unlock(&m->mu);
    }
    return NULL;
}

/* Others may run elsewhere: a socket's path is said from the root. */
static ds_rc set_address(ds_coord_member *me, const char *address, ds_err *err)
{
    char *path = strncmp(address, "unix:", 5) == 0 ? realpath(address + 5, NULL) : NULL;
    int n;

    if (strncmp(address, "unix:", 5) == 0 && !path)
        return ds_fail(err, DS_E_IO, "%s: %s", address, strerror(errno));
    n = path ? snprintf(me->address, sizeof me->address, "unix:%s", path) : snprintf(me->address, sizeof me->address, "%s", address);
    free(path);
    return (size_t)n < sizeof me->address
               ? DS_OK
               : ds_fail(err, DS_E_ARG, "%.60s…: an address of more than %zu bytes", address, sizeof me->address - 1);
}

ds_rc ds_member_open(ds_member **out, const ds_member_opts *o, ds_err *err)
{
    ds_member *m = calloc(1, sizeof *m);
    pthread_condattr_t attr;
    char q[112];
    ds_rc rc;

    *out = NULL;
    if (!m)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    m->o = *o;
    pthread_mutex_init(&m->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&m->woken, &attr);
    pthread_condattr_destroy(&attr);
    rc = set_address(&m->me, o->address, err);
    if (rc == DS_OK && strlen(o->name) >= sizeof m->me.name)
        rc = ds_fail(err, DS_E_ARG, "name '%s': at most %d bytes", ds_quote(q, sizeof q, o->name, 40), DS_COORD_NAME - 1);
    if (rc == DS_OK) {
        snprintf(m->me.name, sizeof m->me.name, "%s", o->name);
        snprintf(m->me.role, sizeof m->me.role, "%s", o->role);
        snprintf(m->me.version, sizeof m->me.version, "%s", DS_VERSION);
        if (o->model)
            memcpy(m->me.model, o->model, sizeof m->me.model);
        rc = ds_coord_open(&m->coord, o->coord, &(ds_coord_opts){ .log = o->log }, err);
    }
    if (rc == DS_OK) {
        o->look(o->ctx, &m->me);
        rc = ds_coord_say(m->coord, &m->me, err);
    }
    if (rc == DS_OK) {
        m->has_thread = pthread_create(&m->thread, NULL, run, m) == 0;
        if (!m->has_thread)
            rc = ds_fail(err, DS_E_IO, "a thread can't be started");
    }
    if (rc == DS_OK)
        *out = m;
    else
        ds_member_close(m);
    return rc;
}

void ds_member_close(ds_member *m)
{
    if (!m)
        return;
    pthread_mutex_lock(&m->mu);
    m->closing = true;
    pthread_cond_signal(&m->woken);
    pthread_mutex_unlock(&m->mu);
    if (m->has_thread)
        pthread_join(m->thread, NULL);
    ds_coord_close(m->coord);
    pthread_cond_destroy(&m->woken);
    pthread_mutex_destroy(&m->mu);
    free(m);
}
