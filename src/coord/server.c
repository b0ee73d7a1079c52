#include "coord/server.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "coord/proto.h"
#include "coord/state.h"
#include "net/addr.h"

/* BETWEEN_US: between two tables that all who watch hear, so that many changes at once are one. */
enum { BETWEEN_US = 50000, TICK_MS = 100, HELLO_MS = 5000, COMPACT_BYTES = 4 << 20 };
static const char journal_name[] = "coord.journal";

typedef struct peer peer;
struct peer {
    /* [const] */
    ds_coord_server *s;
    uint64_t since_us;
    /* [mu] */
    peer *next;
    ds_conn *conn;
    bool known, gone;
    bool watches;             /* all members */
    bool watches_self;        /* only its own */
    char name[DS_COORD_NAME]; /* of the member that it is; "": none */
    uint64_t instance;
};

/* What isn't in the journal, beside the table's members and in their order. */
typedef struct {
    char name[DS_COORD_NAME];
    uint64_t heard_us;
} lease;

struct ds_coord_server {
    /* [const] */
    ds_coord_server_opts o;
    ds_addr at;
    int listener, wake;
    pthread_t thread;
    bool has_thread;
    /* [mu] */
    pthread_mutex_t mu;
    ds_journal *journal;
    ds_coord_state state;
    uint64_t told_us; /* when all who watch heard the table last */
    bool untold;      /* and it is another one since */
    lease leases[DS_COORD_MAX_MEMBERS];
    uint32_t n_leases;
    peer *peers;
    uint32_t n_peers;
};

/* ---- leases: with mu ---- */

static lease *lease_of(ds_coord_server *s, const char *name)
{
    for (uint32_t i = 0; i < s->n_leases; i++)
        if (strcmp(s->leases[i].name, name) == 0)
            return &s->leases[i];
    return NULL;
}

static void renew(ds_coord_server *s, const char *name)
{
    lease *l = lease_of(s, name);

    if (!l) {
        l = &s->leases[s->n_leases++]; /* as many as there are members */
        memcpy(l->name, name, sizeof l->name);
    }
    l->heard_us = ds_now_us();
}

static void drop_lease(ds_coord_server *s, const char *name)
{
    lease *l = lease_of(s, name);

    if (l)
        *l = s->leases[--s->n_leases];
}

/* ---- the table: with mu ---- */

static void tell(const peer *p, uint16_t type, uint64_t request, const ds_buf *b)
{
    const ds_frame f = { .type = type, .request = request };

    if (p->gone || (b && b->oom) || ds_conn_send(p->conn, &f, b ? b->p : NULL, b ? b->len : 0, NULL) != DS_OK)
        ds_conn_stop(p->conn); /* whoever doesn't hear everything comes again */
}

static void tell_view(ds_coord_server *s, const peer *only)
{
    ds_buf b = { 0 };

    ds_coord_put_state(&b, &s->state);
    for (const peer *p = s->peers; p; p = p->next)
        if (p->watches && !p->gone && (!only || p == only))
            tell(p, DS_COORD_VIEW, 0, &b);
    ds_buf_free(&b);
}

/* A table of one, for who only wants to hear of itself. */
static void tell_self(const ds_coord_server *s, const peer *p)
{
    ds_coord_member *m = ds_coord_state_find(&s->state, p->name);
    const ds_coord_state own = { .revision = s->state.revision, .epoch = s->state.epoch, .n = m != NULL, .m = m };
    ds_buf b = { 0 };

    ds_coord_put_state(&b, &own);
    tell(p, DS_COORD_VIEW, 0, &b);
    ds_buf_free(&b);
}

/* Those who watch all hear of it now, or soon with what comes after it. */
static void tell_change(ds_coord_server *s, const char *name)
{
    uint64_t now = ds_now_us();

    for (const peer *p = s->peers; p; p = p->next)
        if (p->watches_self && !p->gone && strcmp(p->name, name) == 0)
            tell_self(s, p);
    s->untold = now - s->told_us < BETWEEN_US;
    if (s->untold)
        return;
    s->told_us = now;
    tell_view(s, NULL);
}

/* Written down first, then true, then told. DS_E_CANCELED: nothing changes by it. */
static ds_rc change(ds_coord_server *s, const ds_coord_op *op, ds_err *err)
{
    ds_buf b = { 0 };
    ds_rc rc = ds_coord_state_may(&s->state, op, err);

    if (rc != DS_OK)
        return rc;
    if (ds_journal_bytes(s->journal) > COMPACT_BYTES) {
        ds_coord_put_state(&b, &s->state);
        rc = b.oom ? ds_fail(err, DS_E_NOMEM, "out of memory") : ds_journal_compact(s->journal, b.p, b.len, err);
        ds_buf_clear(&b);
    }
    if (rc == DS_OK) {
        ds_coord_put_op(&b, s->state.revision + 1, op);
        rc = b.oom ? ds_fail(err, DS_E_NOMEM, "out of memory") : ds_journal_append(s->journal, b.p, b.len, err);
    }
    ds_buf_free(&b);
    if (rc == DS_OK)
        rc = ds_coord_state_apply(&s->state, op, err);
    if (rc != DS_OK) {
        ds_logf(s->o.log, DS_LOG_ERROR, "coord: %s", err->msg);
        return rc;
    }
    tell_change(s, op->m.name);
    return DS_OK;
}

/* ---- what is asked ---- */

static ds_rc refuse(const peer *p, uint64_t request, const ds_err *why)
{
    ds_buf b = { 0 };

    ds_coord_put_u32(&b, (uint32_t)-why->rc);
    ds_coord_put_text(&b, why->msg);
    tell(p, DS_COORD_REFUSED, request, &b);
    ds_buf_free(&b);
    return DS_OK;
}

static const peer *other_of(const ds_coord_server *s, const char *name, uint64_t instance)
{
    for (const peer *p = s->peers; p; p = p->next)
        if (!p->gone && p->instance != instance && strcmp(p->name, name) == 0)
            return p;
    return NULL;
}

static ds_rc on_say(peer *p, uint64_t request, const uint8_t *bytes, size_t n, ds_err *err)
{
    ds_coord_server *s = p->s;
    ds_frame_in in = { bytes, bytes + n, false };
    ds_coord_op op = { .kind = DS_COORD_ANNOUNCE };
    const ds_coord_member *old;
    ds_err why = { 0 };
    ds_buf b = { 0 };
    ds_rc rc;

    if (!ds_coord_read_member(&op.m, &in) || in.at != in.end)
        return ds_fail(err, DS_E_FORMAT, "a malformed member");
    if (*p->name && (strcmp(p->name, op.m.name) != 0 || p->instance != op.m.instance))
        return ds_fail(err, DS_E_FORMAT, "a connection of two members");
    old = ds_coord_state_find(&s->state, op.m.name);
    if (old && other_of(s, op.m.name, op.m.instance)) {
        ds_fail(&why, DS_E_ARG, "the name %s is that of another process, at %s", op.m.name, old->address);
        return refuse(p, request, &why);
    }
    bool is_new = !old || old->instance != op.m.instance;
    ds_instance_state before = old ? old->state : DS_INSTANCE_READY;
    rc = change(s, &op, &why);
    if (rc != DS_OK && rc != DS_E_CANCELED)
        return refuse(p, request, &why);
    memcpy(p->name, op.m.name, sizeof p->name);
    p->instance = op.m.instance;
    renew(s, p->name);
    old = ds_coord_state_find(&s->state, p->name);
    if (is_new)
        ds_logf(s->o.log, DS_LOG_INFO, "coord: %s is there: %s at %s, epoch %" PRIu64, p->name, op.m.role, op.m.address, old->epoch);
    else if (op.m.state != before)
        ds_logf(s->o.log, DS_LOG_INFO, "coord: %s is %s", p->name, ds_instance_state_name(op.m.state));
    ds_coord_put_u64(&b, old->epoch);
    tell(p, DS_COORD_SAID, request, &b);
    ds_buf_free(&b);
    if (p->watches_self) /* it has a name only now; and may have been wanted away before */
        tell_self(s, p);
    return DS_OK;
}

static ds_rc on_status(peer *p, const uint8_t *bytes, size_t n, ds_err *err)
{
    ds_frame_in in = { bytes, bytes + n, false };
    uint32_t live = ds_frame_u32(&in);
    uint64_t used = ds_frame_u64(&in), total = ds_frame_u64(&in);
    ds_coord_member *m = *p->name ? ds_coord_state_find(&p->s->state, p->name) : NULL;

    if (in.bad || in.at != in.end)
        return ds_fail(err, DS_E_FORMAT, "a malformed status");
    if (!m || m->instance != p->instance) /* its lease was over; it says who it is again when it comes again */
        return ds_fail(err, DS_E_CANCELED, "%s isn't a member any more", *p->name ? p->name : "it");
    m->live = live;
    m->kv_used = used;
    m->kv_total = total;
    renew(p->s, p->name);
    return DS_OK;
}

static void on_withdraw(peer *p, uint64_t request)
{
    ds_coord_op op = { .kind = DS_COORD_REMOVE };
    ds_err why = { 0 };

    memcpy(op.m.name, p->name, sizeof op.m.name);
    op.m.instance = p->instance;
    if (*p->name && change(p->s, &op, &why) == DS_OK) {
        ds_logf(p->s->o.log, DS_LOG_INFO, "coord: %s has left", p->name);
        drop_lease(p->s, p->name);
    }
    p->name[0] = '\0';
    p->instance = 0;
    tell(p, DS_COORD_DONE, request, NULL);
}

static ds_rc on_order(peer *p, uint64_t request, const uint8_t *bytes, size_t n, ds_err *err)
{
    ds_frame_in in = { bytes, bytes + n, false };
    ds_coord_op op = { .kind = DS_COORD_DRAIN };
    const ds_coord_member *m;
    ds_err why = { 0 };
    ds_rc rc;

    ds_coord_read_text(op.m.name, sizeof op.m.name, &in);
    if (in.bad || in.at != in.end)
        return ds_fail(err, DS_E_FORMAT, "a malformed order");
    m = ds_coord_state_find(&p->s->state, op.m.name);
    if (!m) {
        char q[112];
        ds_fail(&why, DS_E_ARG, "there is no process '%s'", ds_quote(q, sizeof q, op.m.name, strnlen(op.m.name, 40)));
        return refuse(p, request, &why);
    }
    op.m.instance = m->instance;
    rc = change(p->s, &op, &why);
    if (rc != DS_OK && rc != DS_E_CANCELED)
        return refuse(p, request, &why);
    if (rc == DS_OK)
        ds_logf(p->s->o.log, DS_LOG_INFO, "coord: %s should drain", op.m.name);
    tell(p, DS_COORD_DONE, request, NULL);
    return DS_OK;
}

static ds_rc on_hello(peer *p, uint64_t request, const uint8_t *bytes, size_t n, ds_err *err)
{
    ds_frame_in in = { bytes, bytes + n, false };
    uint32_t version = ds_frame_u32(&in);
    ds_buf b = { 0 };

    if (in.bad || in.at != in.end)
        return ds_fail(err, DS_E_FORMAT, "a malformed HELLO");
    if (version != DS_COORD_VERSION) {
        ds_err why;
        ds_fail(&why, DS_E_ARG, "it speaks version %u, the coord %d", version, DS_COORD_VERSION);
        return refuse(p, request, &why);
    }
    p->known = true;
    ds_coord_put_u32(&b, DS_COORD_VERSION);
    ds_coord_put_u32(&b, p->s->o.ttl_ms);
    tell(p, DS_COORD_WELCOME, request, &b);
    ds_buf_free(&b);
    return DS_OK;
}

static ds_rc message_locked(peer *p, const ds_frame *f, const uint8_t *bytes, size_t n, ds_err *err)
{
    if (!p->known)
        return f->type == DS_COORD_HELLO ? on_hello(p, f->request, bytes, n, err) : ds_fail(err, DS_E_FORMAT, "no HELLO");
    switch (f->type) {
    case DS_COORD_SAY:
        return on_say(p, f->request, bytes, n, err);
    case DS_COORD_STATUS:
        return on_status(p, bytes, n, err);
    case DS_COORD_WITHDRAW:
        if (n)
            break;
        on_withdraw(p, f->request);
        return DS_OK;
    case DS_COORD_WATCH:
        if (n != 4)
            break;
        p->watches_self = ds_frame_u32(&(ds_frame_in){ bytes, bytes + n, false }) != 0;
        p->watches = !p->watches_self;
        if (p->watches)
            tell_view(p->s, p);
        else
            tell_self(p->s, p);
        return DS_OK;
    case DS_COORD_ORDER:
        return on_order(p, f->request, bytes, n, err);
    default:
        break;
    }
    return ds_fail(err, DS_E_FORMAT, "a message of type %u and %zu bytes", f->type, n);
}

static ds_rc message(void *ctx, const ds_frame *f, const uint8_t *bytes, size_t n, ds_err *err)
{
    peer *p = ctx;
    ds_rc rc;

    pthread_mutex_lock(&p->s->mu);
    rc = message_locked(p, f, bytes, n, err);
    pthread_mutex_unlock(&p->s->mu);
    return rc;
}

/* Its member stays as long as the lease lasts: it may only have lost the connection. */
static void gone(void *ctx, const ds_err *why)
{
    peer *p = ctx;

    pthread_mutex_lock(&p->s->mu);
    if (!p->known || why->rc == DS_E_FORMAT)
        ds_logf(p->s->o.log, DS_LOG_WARN, "coord: a connection was refused: %s", why->msg);
    p->gone = true;
    pthread_mutex_unlock(&p->s->mu);
}

/* ---- its own thread ---- */

static void take_peer(ds_coord_server *s, int fd)
{
    peer *p = calloc(1, sizeof *p);
    const ds_conn_fn fn = { message, gone, p };
    ds_err err = { 0 };

    pthread_mutex_lock(&s->mu);
    if (p && s->n_peers < s->o.max_peers) {
        *p = (peer){ .s = s, .since_us = ds_now_us() };
        if (ds_conn_start(&p->conn, fd, &fn, &s->o.conn, &err) == DS_OK) { /* its callbacks wait for mu */
            p->next = s->peers;
            s->peers = p;
            s->n_peers++;
            p = NULL;
        }
    } else {
        close(fd);
    }
    pthread_mutex_unlock(&s->mu);
    free(p);
}

/* Connections that are over go; who doesn't say HELLO is sent away. */
static void bury(ds_coord_server *s)
{
    uint64_t now = ds_now_us();
    peer *dead = NULL;

    pthread_mutex_lock(&s->mu);
    for (peer **at = &s->peers; *at;) {
        peer *p = *at;
        if (!p->known && !p->gone && now - p->since_us > (uint64_t)HELLO_MS * 1000)
            ds_conn_stop(p->conn);
        if (!p->gone) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        p->next = dead;
        dead = p;
        s->n_peers--;
    }
    pthread_mutex_unlock(&s->mu);
    while (dead) {
        peer *p = dead;
        dead = p->next;
        ds_conn_destroy(p->conn);
        free(p);
    }
}

static void end_leases(ds_coord_server *s)
{
    uint64_t now = ds_now_us();

    pthread_mutex_lock(&s->mu);
    for (uint32_t i = 0; i < s->n_leases;) {
        ds_coord_op op = { .kind = DS_COORD_REMOVE };
        const ds_coord_member *m = ds_coord_state_find(&s->state, s->leases[i].name);
        ds_err why = { 0 };
        if (now - s->leases[i].heard_us < (uint64_t)s->o.ttl_ms * 1000) {
            i++;
            continue;
        }
        op.m.instance = m ? m->instance : 0;
        memcpy(op.m.name, s->leases[i].name, sizeof op.m.name);
        ds_rc rc = change(s, &op, &why);
        if (rc == DS_OK)
            ds_logf(s->o.log, DS_LOG_WARN, "coord: %s hasn't been heard of for %u ms and isn't a member any more", op.m.name, s->o.ttl_ms);
        if (rc == DS_OK || rc == DS_E_CANCELED)
            drop_lease(s, op.m.name);
        else
            s->leases[i++].heard_us = now; /* the disk has no room: later */
    }
    pthread_mutex_unlock(&s->mu);
}

static void tell_late(ds_coord_server *s)
{
    pthread_mutex_lock(&s->mu);
    if (s->untold) {
        s->untold = false;
        s->told_us = ds_now_us();
        tell_view(s, NULL);
    }
    pthread_mutex_unlock(&s->mu);
}

static void *run(void *arg)
{
    ds_coord_server *s = arg;
    struct pollfd p[2] = { { .fd = s->listener, .events = POLLIN }, { .fd = s->wake, .events = POLLIN } };

    while (poll(p, 2, TICK_MS) >= 0 || errno == EINTR) {
        ds_err err = { 0 };
        int fd;
        if (p[1].revents)
            return NULL;
        if (p[0].revents) {
            ds_rc rc = ds_addr_accept(s->listener, &fd, &err);
            if (rc == DS_OK) {
                take_peer(s, fd);
            } else if (rc == DS_E_IO) { /* out of descriptors: they come back */
                ds_logf(s->o.log, DS_LOG_WARN, "coord: %s", err.msg);
                poll(NULL, 0, TICK_MS);
            }
        }
        bury(s);
        end_leases(s);
        tell_late(s);
    }
    return NULL;
}

/* ---- start and stop ---- */

static ds_rc read_record(void *ctx, bool first, const uint8_t *p, size_t n, ds_err *err)
{
    ds_coord_server *s = ctx;

    return first ? ds_coord_read_state(&s->state, p, n, err) : ds_coord_read_op(&s->state, p, n, err);
}

static ds_rc open_journal(ds_coord_server *s, const ds_disk *disk, ds_err *err)
{
    ds_coord_state empty = { 0 };
    uint64_t cut = 0;
    ds_buf b = { 0 };
    ds_rc rc;

    ds_coord_put_state(&b, &empty);
    rc = b.oom ? ds_fail(err, DS_E_NOMEM, "out of memory")
               : ds_journal_open(&s->journal, disk, journal_name, b.p, b.len, read_record, s, &cut, err);
    ds_buf_free(&b);
    if (rc != DS_OK)
        return rc;
    if (cut)
        ds_logf(s->o.log, DS_LOG_WARN, "coord: %s ended with %" PRIu64 " bytes of a record that a crash cut off", journal_name, cut);
    for (uint32_t i = 0; i < s->state.n; i++)
        renew(s, s->state.m[i].name);
    if (s->state.n)
        ds_logf(s->o.log, DS_LOG_INFO, "coord: %u members were there, revision %" PRIu64, s->state.n, s->state.revision);
    return DS_OK;
}

ds_rc ds_coord_server_start(ds_coord_server **out, const char *address, const ds_disk *disk, const ds_coord_server_opts *o, ds_err *err)
{
    ds_coord_server *s = calloc(1, sizeof *s);
    ds_rc rc;

    *out = NULL;
    if (!s)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    s->o = *o;
    s->o.ttl_ms = o->ttl_ms ? o->ttl_ms : 10000;
    s->o.max_peers = o->max_peers ? o->max_peers : 2048;
    s->listener = s->wake = -1;
    pthread_mutex_init(&s->mu, NULL);
    rc = ds_addr_parse(&s->at, address, err);
    if (rc == DS_OK && (s->wake = eventfd(0, EFD_CLOEXEC)) < 0)
        rc = ds_fail(err, DS_E_IO, "eventfd: %s", strerror(errno));
    if (rc == DS_OK)
        rc = ds_addr_listen(&s->at, &s->listener, err); /* first: whoever has the address has the journal */
    if (rc == DS_OK)
        rc = open_journal(s, disk, err);
    if (rc == DS_OK) {
        s->has_thread = pthread_create(&s->thread, NULL, run, s) == 0;
        if (!s->has_thread)
            rc = ds_fail(err, DS_E_IO, "a thread can't be started");
    }
    if (rc == DS_OK)
        *out = s;
    else
        ds_coord_server_stop(s);
    return rc;
}

const char *ds_coord_server_address(const ds_coord_server *s)
{
    return s->at.text;
}

void ds_coord_server_stop(ds_coord_server *s)
{
    uint64_t one = 1;

    if (!s)
        return;
    if (s->has_thread && write(s->wake, &one, sizeof one) == sizeof one)
        pthread_join(s->thread, NULL);
    for (peer *p = s->peers, *next; p; p = next) {
        next = p->next;
        ds_conn_destroy(p->conn);
        free(p);
    }
    if (s->listener >= 0) {
        close(s->listener);
        if (s->at.local)
            unlink(s->at.text + 5);
    }
    if (s->wake >= 0)
        close(s->wake);
    ds_journal_close(s->journal);
    ds_coord_state_fini(&s->state);
    pthread_mutex_destroy(&s->mu);
    free(s);
}
