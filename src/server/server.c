/* The server's life: options, the event loop, drain and stop. */
#include "server/server.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include "base/clock.h"
#include "base/hash.h"
#include "recipe/seal.h"
#include "server/server_internal.h"

enum {
    SWEEP_US = 100000, /* how often clocks are looked at */
    STORE_SWEEP_US = 30000000,
    LAST_WORD_US = 1000000,
    EVENTS = 256,
    GEN_EVENTS = 128, /* in a turn, so that a step of many tokens doesn't keep the loop from clients that leave */
};

int64_t ds_server_wall(const ds_server *s)
{
    return s->o.wall_s ? s->o.wall_s() : (int64_t)time(NULL);
}

/* Unguessable, for stored responses are addressed by it: 128 bits of a keyed hash of a counter. */
void ds_server_make_id(ds_server *s, char *out, size_t cap, const char *prefix)
{
    uint8_t in[24], hash[32];
    char hex[33];

    s->id_count++;
    memcpy(in, s->id_seed, 16);
    memcpy(in + 16, &s->id_count, 8);
    ds_sha256(hash, in, sizeof in);
    ds_hex(hex, hash, 16);
    snprintf(out, cap, "%s%s", prefix, hex);
}

/* ---- create ---- */

static ds_rc copy(char **out, const char *s, ds_err *err)
{
    *out = s ? strdup(s) : NULL;
    return s && !*out ? ds_fail(err, DS_E_NOMEM, "out of memory") : DS_OK;
}

static void defaults(ds_server_opts *o)
{
    if (!o->max_head)
        o->max_head = 32 << 10;
    if (!o->max_body)
        o->max_body = (size_t)48 << 20;
    if (!o->max_output_queue)
        o->max_output_queue = 1 << 20;
    if (!o->worker_body)
        o->worker_body = 16 << 10;
    if (!o->max_connections)
        o->max_connections = 4096;
    if (!o->workers)
        o->workers = 1;
    if (!o->header_ms)
        o->header_ms = 10000;
    if (!o->body_ms)
        o->body_ms = 30000;
    if (!o->body_rate)
        o->body_rate = 4096;
    if (!o->stall_ms)
        o->stall_ms = 10000;
    if (!o->keepalive_ms)
        o->keepalive_ms = 10000;
    if (!o->idle_ms)
        o->idle_ms = 120000;
    if (!o->drain_ms)
        o->drain_ms = 60000;
    if (!o->responses_ttl_ms)
        o->responses_ttl_ms = UINT64_C(30) * 24 * 3600 * 1000;
    if (!o->responses_bytes)
        o->responses_bytes = UINT64_C(256) << 20;
}

static ds_rc make_secrets(ds_server *s, ds_err *err)
{
    uint8_t key[1][DS_SEAL_KEY_BYTES];
    ds_rc rc;

    if (RAND_bytes(key[0], sizeof key[0]) != 1 || RAND_bytes((unsigned char *)s->id_seed, sizeof s->id_seed) != 1)
        return ds_fail(err, DS_E_IO, "no random bytes");
    rc = ds_seal_create(&s->seal, (const uint8_t(*)[DS_SEAL_KEY_BYTES])key, 1, err);
    OPENSSL_cleanse(key, sizeof key);
    return rc;
}

static ds_rc set_up(ds_server *s, ds_err *err)
{
    const ds_server_opts *o = &s->o;
    ds_rc rc;

    if (o->n_names == 0 || o->n_names > DS_SERVER_MAX_NAMES)
        return ds_fail(err, DS_E_ARG, "between 1 and %d model names are needed", DS_SERVER_MAX_NAMES);
    if (!o->tls_cert != !o->tls_key)
        return ds_fail(err, DS_E_ARG, "certificate and key belong together");
    if (o->no_tcp && !o->unix_path)
        return ds_fail(err, DS_E_ARG, "nothing to listen on");
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->epoll_fd < 0 || s->wake_fd < 0 ||
        epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->wake_fd, &(struct epoll_event){ .events = EPOLLIN, .data.ptr = NULL }) != 0)
        return ds_fail(err, DS_E_IO, "epoll: %s", strerror(errno));
    if (pthread_mutex_init(&s->mu, NULL) != 0 || pthread_cond_init(&s->more, NULL) != 0)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    rc = copy(&s->host, o->host, err);
    if (rc == DS_OK)
        rc = copy(&s->unix_path, o->unix_path, err);
    if (rc == DS_OK)
        rc = copy(&s->admin_path, o->admin_path, err);
    if (rc == DS_OK)
        rc = copy(&s->cors, o->cors_origin, err);
    if (rc == DS_OK)
        rc = copy(&s->prefix, o->metrics_prefix ? o->metrics_prefix : "deepserve_", err);
    if (rc == DS_OK)
        rc = make_secrets(s, err);
    if (rc == DS_OK && o->keys_file)
        rc = ds_auth_open(&s->auth, o->keys_file, err);
    if (rc == DS_OK)
        rc = ds_store_open(&s->store, o->responses_db, o->responses_ttl_ms / 1000, o->responses_bytes, err);
    if (rc == DS_OK && o->otlp_url)
        rc = ds_spans_create(&s->spans, o->otlp_url, o->log, err);
    return rc == DS_OK ? ds_http_listen(s, err) : rc;
}

ds_rc ds_server_create(ds_server **out, const ds_server_opts *o, ds_err *err)
{
    ds_server *s = calloc(1, sizeof *s);
    ds_rc rc;

    *out = NULL;
    if (!s)
        return ds_fail(err, DS_E_NOMEM, "server: out of memory");
    s->o = *o;
    s->epoll_fd = s->wake_fd = -1;
    defaults(&s->o);
    if (o->recipe)
        s->recipe = *o->recipe;
    else
        ds_recipe_opts_init(&s->recipe);
    s->recipe.own_decoder = !s->recipe.no_constraints;
    rc = set_up(s, err);
    if (rc != DS_OK) {
        ds_server_destroy(s);
        return rc;
    }
    *out = s;
    return DS_OK;
}

void ds_server_destroy(ds_server *s)
{
    if (!s)
        return;
    ds_http_close(s);
    ds_spans_destroy(s->spans);
    ds_auth_close(s->auth);
    ds_store_close(s->store);
    ds_seal_destroy(s->seal);
    ds_encoder_destroy(s->kit.encoder);
    ds_constrain_destroy(s->constrain);
    if (s->epoll_fd >= 0)
        close(s->epoll_fd);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    ds_buf_free(&s->access);
    if (s->key_pem)
        OPENSSL_cleanse(s->key_pem, strlen(s->key_pem));
    free(s->host);
    free(s->unix_path);
    free(s->admin_path);
    free(s->cors);
    free(s->prefix);
    free(s->cert);
    free(s->key_pem);
    free(s);
}

const char *ds_server_url(const ds_server *s)
{
    return s->url;
}

/* ---- from other threads and signal handlers: nothing but atomics and write() ---- */

void ds_server_wake(void *server)
{
    const ds_server *s = server;
    uint64_t one = 1;
    int keep = errno;
    (void)!write(s->wake_fd, &one, sizeof one);
    errno = keep;
}

void ds_server_ask(ds_server *s, ds_server_ask_kind what)
{
    atomic_fetch_or_explicit(&s->asks, (unsigned)what, memory_order_relaxed);
    ds_server_wake(s);
}

/* ---- the loop ---- */

static void *load(void *arg)
{
    ds_server *s = arg;

    s->load_rc = s->hooks.load(s->hooks.ctx, &s->model, &s->load_err);
    if (s->load_rc == DS_OK)
        s->load_rc = ds_constrain_create(&s->constrain, s->model.tokenizer, s->model.stop_ids, s->model.n_stop_ids, NULL, &s->load_err);
    atomic_store_explicit(&s->loaded, true, memory_order_release);
    ds_server_wake(s);
    return NULL;
}

static ds_rc come_up(ds_server *s, ds_err *err)
{
    ds_rc rc = s->load_rc;

    if (rc != DS_OK) {
        *err = s->load_err;
        return rc;
    }
    if (s->model.n_stop_ids > DS_SERVER_STOP_IDS)
        return ds_fail(err, DS_E_ARG, "too many stop ids");
    s->recipe.max_context_tokens = s->model.max_context;
    rc = ds_encoder_create(&s->kit.encoder, s->model.tokenizer, NULL, err);
    if (rc == DS_OK)
        rc = ds_workers_start(s, err);
    if (rc != DS_OK)
        return rc;
    ds_gen_wake_by(s->model.gen, ds_server_wake, s);
    s->up = true;
    if (s->hooks.ready)
        s->hooks.ready(s->hooks.ctx);
    return DS_OK;
}

static void take_events(ds_server *s)
{
    ds_event ev[GEN_EVENTS];
    size_t n;

    n = ds_gen_poll(s->model.gen, ev, GEN_EVENTS);
    for (size_t i = 0; i < n; i++) {
        ds_call_event((ds_call *)(uintptr_t)ev[i].cookie, &ev[i]);
        if (i + 1 == n || ev[i + 1].cookie != ev[i].cookie)
            ds_http_push(s);
    }
    s->more_events = n == GEN_EVENTS;
}

static void take_prepared(ds_server *s)
{
    for (ds_call *c = ds_workers_take(s), *next; c; c = next) {
        assert(s->m.preparing > 0 && c->preparing);
        next = c->next;
        s->m.preparing--;
        ds_call_prepared(c);
    }
}

static void take_asks(ds_server *s, uint64_t now)
{
    unsigned asks = atomic_exchange_explicit(&s->asks, 0, memory_order_relaxed);
    ds_err err;

    if ((asks & DS_SERVER_RELOAD) && s->auth) {
        if (ds_auth_reload(s->auth, &err) == DS_OK)
            ds_logf(s->o.log, DS_LOG_INFO, "server keys=reloaded");
        else
            ds_logf(s->o.log, DS_LOG_ERROR, "server keys=kept message=\"%s\"", err.msg);
    }
    if ((asks & DS_SERVER_DRAIN) && !s->draining) {
        s->draining = true;
        s->drain_until_us = now + s->o.drain_ms * 1000;
        s->next_sweep_us = 0;
        ds_logf(s->o.log, DS_LOG_INFO, "server state=draining requests=%u", s->n_calls);
    }
    if (asks & DS_SERVER_STOP)
        s->stopping = true;
}

/* Requests whose answer isn't completely with the connection yet. */
static bool busy(const ds_server *s)
{
    if (s->n_calls)
        return true;
    for (const ds_conn *c = s->conns; c; c = c->next)
        if (c->x && c->x->started && !c->x->gone)
            return true;
    return false;
}

/* The time for draining is over: whoever still waits is told, and has a moment to hear it. */
static void end_overdue(ds_server *s, uint64_t now)
{
    ds_logf(s->o.log, DS_LOG_WARN, "server state=overdue requests=%u", s->n_calls);
    s->overdue = true;
    s->drain_until_us = now + LAST_WORD_US;
    for (ds_conn *c = s->conns; c; c = c->next)
        if (c->x && c->x->call && !c->dead)
            ds_call_shut_down(c->x->call);
}

static void wait_events(ds_server *s)
{
    struct epoll_event ev[EVENTS];
    int ms = ds_http_timeout_ms(s, s->conns || s->draining ? SWEEP_US / 1000 : 1000);
    int n = epoll_wait(s->epoll_fd, ev, EVENTS, s->more_events ? 0 : ms);

    s->now_us = ds_now_us();
    for (int i = 0; i < n; i++) {
        void *p = ev[i].data.ptr;
        if (!p) {
            uint64_t count;
            (void)!read(s->wake_fd, &count, sizeof count);
        } else if ((char *)p >= (char *)s->listeners && (char *)p < (char *)(s->listeners + 3)) {
            ((ds_listener *)p)->due = true;
        } else {
            ds_http_conn_event(p, ev[i].events);
        }
    }
}

static void check(const ds_server *s)
{
#ifdef DS_DEBUG
    bool always = true;
#else
    bool always = false;
#endif
    const char *wrong = always || s->o.check ? ds_server_check(s) : NULL;

    if (wrong)
        ds_logf(s->o.log, DS_LOG_ERROR, "server broken=\"%s\"", wrong);
    assert(!wrong);
}

static ds_rc serve(ds_server *s, ds_err *err)
{
    ds_rc rc = DS_OK;

    while (rc == DS_OK && !s->stopping) {
        uint64_t now;
        bool all = false;

        wait_events(s);
        now = s->now_us;
        take_asks(s, now);
        if (!s->up && atomic_load_explicit(&s->loaded, memory_order_acquire) && !s->draining)
            rc = come_up(s, err);
        if (rc == DS_OK && s->up) {
            take_prepared(s);
            take_events(s);
        }
        if (now >= s->next_sweep_us) {
            ds_http_sweep(s, now);
            s->next_sweep_us = now + SWEEP_US;
            all = true;
        }
        if (now >= s->next_store_us && s->up) {
            ds_workers_sweep(s);
            s->next_store_us = now + STORE_SWEEP_US;
        }
        ds_http_turn(s, all);
        ds_http_flush_access(s);
        check(s);
        if (s->draining && (!busy(s) || (s->overdue && now >= s->drain_until_us)))
            s->stopping = true;
        else if (s->draining && now >= s->drain_until_us)
            end_overdue(s, now);
    }
    return rc;
}

/* Everything that is left is canceled, and the generator's last events for it are waited for. */
static void end_calls(ds_server *s)
{
    for (ds_conn *c = s->conns; c; c = c->next)
        ds_http_kill(c);
    ds_http_turn(s, true);
    if (!s->up)
        return;
    ds_gen_drain(s->model.gen);
    while (s->n_calls) {
        wait_events(s);
        take_prepared(s);
        take_events(s);
        ds_http_turn(s, true);
        check(s);
    }
}

ds_rc ds_server_run(ds_server *s, const ds_server_hooks *h, ds_err *err)
{
    pthread_t loader;
    ds_rc rc;
    int e;

    s->hooks = *h;
    e = pthread_create(&loader, NULL, load, s);
    if (e != 0)
        return ds_fail(err, DS_E_IO, "a thread: %s", strerror(e));
    rc = serve(s, err);
    end_calls(s);
    ds_workers_stop(s);
    ds_http_close(s);
    ds_http_flush_access(s);
    pthread_join(loader, NULL); /* a load that was overtaken by a stop is waited for: what it opened is its caller's to close */
    return rc;
}
