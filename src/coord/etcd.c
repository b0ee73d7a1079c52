/* The tie to an etcd of version 3, over its JSON gateway. Under the prefix, "/deepserve" by default:
 *
 *   who/m/NAME   a member's bytes (coord/member.h), with a lease
 *   who/o/NAME   an order to drain: the instance, in decimal, with the lease of nobody
 *   how/NAME     the same member with how busy it is, with the lease
 *
 * A watch on who/ says when to look again; what is there is then read whole, so that no event can be missed. An epoch
 * is the revision at which an instance was written first. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <curl/curl.h>
#include <openssl/evp.h>

#include "base/clock.h"
#include "base/json.h"
#include "coord/coord_internal.h"
#include "coord/state.h"

enum { REQUEST_MS = 3000, LOOK_MS = 100, MAX_ANSWER = 8 << 20, MAX_VALUES = 1 << 18 };

typedef struct {
    ds_coord *c;
    char base[256], prefix[128];
    CURL *ask;    /* one request after the other */
    CURL *watch;  /* NULL: none runs */
    CURLM *multi; /* what it runs in */
    struct curl_slist *headers;
    ds_buf watch_body; /* borrowed by its handle */
    bool look;         /* something may be another one */
    bool watch_failed;
    char lease[24];   /* decimal; "": none */
    uint64_t epoch;   /* of this instance */
    uint64_t next_us; /* when the lease is kept */
} etcd;

/* ---- requests ---- */

static void put_b64(ds_buf *b, const void *p, size_t n)
{
    size_t room = 4 * ((n + 2) / 3) + 1;

    if (ds_buf_reserve(b, room + 2)) {
        ds_buf_putc(b, '"');
        b->len += (size_t)EVP_EncodeBlock((unsigned char *)b->p + b->len, p, (int)n);
        ds_buf_putc(b, '"');
    }
}

/* Decoded text of a JSON string, with a NUL behind it; free() it. NULL: it is none. */
static uint8_t *get_b64(const ds_json *v, size_t *n)
{
    uint8_t *out;
    int got;

    if (!ds_json_is(v, DS_JSON_STRING) || v->text_len % 4 != 0)
        return NULL;
    out = malloc(v->text_len / 4 * 3 + 1);
    if (!out)
        return NULL;
    got = EVP_DecodeBlock(out, (const unsigned char *)v->text, (int)v->text_len);
    if (got < 0) {
        free(out);
        return NULL;
    }
    *n = (size_t)got;
    for (size_t i = v->text_len; i > 0 && v->text[i - 1] == '=' && *n > 0; i--)
        (*n)--;
    out[*n] = 0;
    return out;
}

/* "12" and 12 alike: the gateway writes 64-bit numbers as text. */
static bool get_number(const ds_json *v, uint64_t *out)
{
    char *end;

    if (ds_json_u64(v, out))
        return true;
    if (!ds_json_is(v, DS_JSON_STRING) || !v->text_len || strspn(v->text, "0123456789") != v->text_len)
        return false;
    *out = strtoull(v->text, &end, 10);
    return *end == '\0';
}

static size_t collect(char *p, size_t size, size_t n, void *ctx)
{
    ds_buf *b = ctx;

    return b->len + size * n <= MAX_ANSWER && ds_buf_put(b, p, size * n) ? size * n : 0;
}

/* Asks and reads the answer. DS_E_IO: nobody answers, or etcd says no. */
static ds_rc ask(etcd *e, const char *path, const ds_buf *body, uint32_t timeout_ms, ds_json_doc **out, ds_err *err)
{
    char url[320], why[CURL_ERROR_SIZE] = "";
    ds_buf answer = { 0 };
    long status = 0;
    CURLcode code;
    ds_rc rc = DS_OK;

    *out = NULL;
    if (body->oom)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    snprintf(url, sizeof url, "%s/v3/%s", e->base, path);
    curl_easy_setopt(e->ask, CURLOPT_URL, url);
    curl_easy_setopt(e->ask, CURLOPT_HTTPHEADER, e->headers);
    curl_easy_setopt(e->ask, CURLOPT_POSTFIELDS, ds_buf_str(body));
    curl_easy_setopt(e->ask, CURLOPT_POSTFIELDSIZE, (long)body->len);
    curl_easy_setopt(e->ask, CURLOPT_TIMEOUT_MS, (long)timeout_ms);
    curl_easy_setopt(e->ask, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e->ask, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(e->ask, CURLOPT_WRITEFUNCTION, collect);
    curl_easy_setopt(e->ask, CURLOPT_WRITEDATA, &answer);
    code = curl_easy_perform(e->ask);
    curl_easy_setopt(e->ask, CURLOPT_ERRORBUFFER, NULL);
    curl_easy_getinfo(e->ask, CURLINFO_RESPONSE_CODE, &status);
    if (code != CURLE_OK) {
        rc = ds_fail(err, DS_E_IO, "%s", *why ? why : curl_easy_strerror(code));
    } else if (status != 200) {
        char q[120];
        rc = ds_fail(err, DS_E_IO, "%s: status %ld: %s", path, status,
                     ds_quote(q, sizeof q, ds_buf_str(&answer), strnlen(ds_buf_str(&answer), 100)));
    } else {
        rc = ds_json_parse(out, ds_buf_str(&answer), answer.len, &(ds_json_opts){ .max_depth = 16, .max_values = MAX_VALUES }, err);
    }
    ds_buf_free(&answer);
    return rc;
}

/* The revision of an answer's header; 0: it has none. */
static uint64_t revision_of(const ds_json_doc *d)
{
    uint64_t r = 0;

    get_number(ds_json_get(ds_json_get(ds_json_root(d), "header"), "revision"), &r);
    return r;
}

static void put_key(ds_buf *b, const etcd *e, const char *kind, const char *name)
{
    char key[256];
    int n = snprintf(key, sizeof key, "%s/%s%s", e->prefix, kind, name);

    put_b64(b, key, (size_t)n);
}

/* All keys that begin so: up to the same with its last byte one higher. */
static void put_range(ds_buf *b, const etcd *e, const char *kind)
{
    char key[256];
    int n = snprintf(key, sizeof key, "%s/%s", e->prefix, kind);

    ds_buf_puts(b, "\"key\":");
    put_b64(b, key, (size_t)n);
    key[n - 1]++;
    ds_buf_puts(b, ",\"range_end\":");
    put_b64(b, key, (size_t)n);
}

/* ---- what is there ---- */

/* The members, orders and loads as one table. */
static ds_rc read_range(etcd *e, const char *kind, ds_json_doc **out, ds_err *err)
{
    ds_buf b = { 0 };
    ds_rc rc;

    ds_buf_putc(&b, '{');
    put_range(&b, e, kind);
    ds_buf_printf(&b, ",\"limit\":%d}", 3 * DS_COORD_MAX_MEMBERS);
    rc = ask(e, "kv/range", &b, REQUEST_MS, out, err);
    ds_buf_free(&b);
    return rc;
}

static void take_member(ds_coord_state *s, const ds_json *kv, const char *name)
{
    size_t n;
    uint8_t *value = get_b64(ds_json_get(kv, "value"), &n);
    ds_frame_in in = { value, value ? value + n : NULL, false };
    ds_coord_op op = { .kind = DS_COORD_ANNOUNCE };
    ds_coord_member *m;
    uint64_t revision = 0;

    if (value && ds_coord_read_member(&op.m, &in) && strcmp(op.m.name, name) == 0) {
        uint64_t epoch = op.m.epoch;
        get_number(ds_json_get(kv, "mod_revision"), &revision);
        op.m.drain = false;
        if (ds_coord_state_apply(s, &op, NULL) == DS_OK && (m = ds_coord_state_find(s, name)))
            m->epoch = epoch ? epoch : revision;
    }
    free(value);
}

static void take_order(ds_coord_state *s, const ds_json *kv, const char *name)
{
    size_t n;
    uint8_t *value = get_b64(ds_json_get(kv, "value"), &n);
    ds_coord_member *m = ds_coord_state_find(s, name);

    if (value && m && strtoull((const char *)value, NULL, 10) == m->instance)
        m->drain = true;
    free(value);
}

static void take_load(ds_coord_state *s, const ds_json *kv, const char *name)
{
    size_t n;
    uint8_t *value = get_b64(ds_json_get(kv, "value"), &n);
    ds_frame_in in = { value, value ? value + n : NULL, false };
    ds_coord_member *m = ds_coord_state_find(s, name), load;

    if (value && m && ds_coord_read_member(&load, &in) && load.instance == m->instance) {
        m->live = load.live;
        m->kv_used = load.kv_used;
        m->kv_total = load.kv_total;
    }
    free(value);
}

/* Each value of a range by its name, which is the key behind the prefix. */
static void each(const etcd *e, const ds_json_doc *d, const char *kind, ds_coord_state *s,
                 void (*take)(ds_coord_state *s, const ds_json *kv, const char *name))
{
    const ds_json *kvs = ds_json_get(ds_json_root(d), "kvs");
    char begin[256];
    size_t skip = (size_t)snprintf(begin, sizeof begin, "%s/%s", e->prefix, kind);

    for (const ds_json *kv = ds_json_is(kvs, DS_JSON_ARRAY) ? kvs->child : NULL; kv; kv = kv->next) {
        size_t n;
        uint8_t *key = get_b64(ds_json_get(kv, "key"), &n);
        if (key && n > skip && strlen((const char *)key) == n && memcmp(key, begin, skip) == 0)
            take(s, kv, (const char *)key + skip);
        free(key);
    }
}

static ds_rc read_all(etcd *e, ds_coord_state *s, uint64_t *revision, ds_err *err)
{
    ds_json_doc *who = NULL, *how = NULL;
    ds_rc rc = read_range(e, "who/", &who, err);

    if (rc == DS_OK)
        rc = read_range(e, "how/", &how, err);
    if (rc == DS_OK) {
        each(e, who, "who/m/", s, take_member);
        each(e, who, "who/o/", s, take_order);
        each(e, how, "how/", s, take_load);
        *revision = revision_of(who);
    }
    ds_json_free(who);
    ds_json_free(how);
    return rc;
}

static ds_rc look(etcd *e, ds_err *err)
{
    ds_coord_state s = { 0 };
    uint64_t revision;
    ds_rc rc = read_all(e, &s, &revision, err);

    if (rc == DS_OK)
        ds_coord_view(e->c, s.m, s.n);
    ds_coord_state_fini(&s);
    return rc;
}

/* ---- what this process says ---- */

static ds_rc grant(etcd *e, ds_err *err)
{
    ds_buf b = { 0 };
    ds_json_doc *d;
    uint64_t id = 0;
    ds_rc rc;

    ds_buf_printf(&b, "{\"TTL\":%u}", (e->c->o.ttl_ms + 999) / 1000);
    rc = ask(e, "lease/grant", &b, REQUEST_MS, &d, err);
    ds_buf_free(&b);
    if (rc == DS_OK && !get_number(ds_json_get(ds_json_root(d), "ID"), &id))
        rc = ds_fail(err, DS_E_IO, "no lease was given");
    if (rc == DS_OK)
        snprintf(e->lease, sizeof e->lease, "%" PRIu64, id);
    ds_json_free(d);
    return rc;
}

/* A lease that etcd doesn't know any more is given up; the next put takes another. */
static ds_rc keep(etcd *e, ds_err *err)
{
    ds_buf b = { 0 };
    ds_json_doc *d;
    uint64_t ttl = 0;
    ds_rc rc;

    ds_buf_printf(&b, "{\"ID\":\"%s\"}", e->lease);
    rc = ask(e, "lease/keepalive", &b, REQUEST_MS, &d, err);
    ds_buf_free(&b);
    if (rc == DS_OK && (!get_number(ds_json_get(ds_json_get(ds_json_root(d), "result"), "TTL"), &ttl) || ttl == 0))
        e->lease[0] = '\0';
    ds_json_free(d);
    return rc;
}

/* `lease` may be NULL: it stays. *revision: of the write. */
static ds_rc put(etcd *e, const char *kind, const char *name, const void *value, size_t n, const char *lease, uint64_t *revision,
                 ds_err *err)
{
    ds_json_doc *d;
    ds_buf b = { 0 };
    ds_rc rc;

    ds_buf_puts(&b, "{\"key\":");
    put_key(&b, e, kind, name);
    ds_buf_puts(&b, ",\"value\":");
    put_b64(&b, value, n);
    if (lease)
        ds_buf_printf(&b, ",\"lease\":\"%s\"", lease);
    ds_buf_putc(&b, '}');
    rc = ask(e, "kv/put", &b, REQUEST_MS, &d, err);
    ds_buf_free(&b);
    if (rc == DS_OK)
        *revision = revision_of(d);
    ds_json_free(d);
    return rc;
}

static ds_rc put_self(etcd *e, const char *kind, const ds_coord_member *m, uint64_t *revision, ds_err *err)
{
    ds_buf b = { 0 };
    ds_rc rc;

    ds_coord_put_member(&b, m);
    rc = b.oom ? ds_fail(err, DS_E_NOMEM, "out of memory") : put(e, kind, m->name, b.p, b.len, e->lease, revision, err);
    ds_buf_free(&b);
    return rc;
}

/* Says what this process is. Another model than that of the others is refused here, since etcd looks at nothing. */
static ds_rc say(etcd *e, ds_coord_member m, ds_err *err)
{
    const ds_coord_op op = { .kind = DS_COORD_ANNOUNCE, .m = m };
    ds_coord_state s = { 0 };
    uint64_t revision = 0;
    ds_err why = { 0 };
    ds_rc rc = e->lease[0] ? DS_OK : grant(e, err), may;

    if (rc == DS_OK)
        rc = read_all(e, &s, &revision, err);
    may = rc == DS_OK ? ds_coord_state_may(&s, &op, &why) : rc;
    ds_coord_state_fini(&s);
    if (rc != DS_OK)
        return rc;
    if (may != DS_OK && may != DS_E_CANCELED) {
        ds_coord_refused(e->c, why.msg);
        return DS_OK;
    }
    m.epoch = e->epoch;
    rc = put_self(e, "who/m/", &m, &revision, err);
    if (rc != DS_OK)
        return rc;
    e->epoch = e->epoch ? e->epoch : revision;
    ds_coord_said(e->c, e->epoch);
    return DS_OK;
}

static ds_rc order(etcd *e, const char *name, ds_err *err)
{
    ds_coord_state s = { 0 };
    const ds_coord_member *m;
    uint64_t revision, instance;
    char value[24], why[160], q[112];
    ds_rc rc = read_all(e, &s, &revision, err);

    m = rc == DS_OK ? ds_coord_state_find(&s, name) : NULL;
    instance = m ? m->instance : 0;
    ds_coord_state_fini(&s);
    if (rc != DS_OK)
        return rc;
    if (!instance) {
        snprintf(why, sizeof why, "there is no process '%s'", ds_quote(q, sizeof q, name, strlen(name)));
        ds_coord_answered(e->c, DS_E_ARG, why);
        return DS_OK;
    }
    rc = put(e, "who/o/", name, value, (size_t)snprintf(value, sizeof value, "%" PRIu64, instance), NULL, &revision, err);
    if (rc == DS_OK)
        ds_coord_answered(e->c, DS_OK, "");
    return rc;
}

/* What is to be said now, if anything. */
static ds_rc say_all(etcd *e, ds_err *err)
{
    ds_coord *c = e->c;
    uint64_t now = ds_now_us(), revision;
    char name[DS_COORD_NAME] = "";
    ds_coord_member mine;
    bool due, again;
    ds_rc rc = DS_OK;

    pthread_mutex_lock(&c->mu);
    mine = c->mine;
    due = mine.instance && now >= e->next_us;
    again = c->dirty || (due && !c->now.epoch);
    c->dirty = false;
    if (c->order == DS_ORDER_WAITS) {
        c->order = DS_ORDER_SENT;
        memcpy(name, c->order_name, sizeof name);
    }
    pthread_mutex_unlock(&c->mu);
    if (due && e->lease[0])
        rc = keep(e, err);
    if (rc == DS_OK && mine.instance && (again || (due && !e->lease[0])))
        rc = say(e, mine, err);
    if (rc == DS_OK && due && e->lease[0] && e->epoch) {
        mine.epoch = e->epoch;
        rc = put_self(e, "how/", &mine, &revision, err);
    }
    if (due)
        e->next_us = now + (uint64_t)c->o.ttl_ms * 1000 / 5;
    if (rc == DS_OK && *name)
        rc = order(e, name, err);
    return rc;
}

static void withdraw(etcd *e)
{
    ds_buf b = { 0 };
    ds_json_doc *d;

    if (!e->lease[0])
        return;
    ds_buf_printf(&b, "{\"ID\":\"%s\"}", e->lease);
    ask(e, "lease/revoke", &b, 1000, &d, NULL);
    ds_json_free(d);
    ds_buf_free(&b);
}

/* ---- the watch ---- */

/* Whatever comes is a reason to look. */
static size_t heard(char *p, size_t size, size_t n, void *ctx)
{
    etcd *e = ctx;

    (void)p;
    e->look = true;
    return size * n;
}

static void end_watch(etcd *e)
{
    if (!e->watch)
        return;
    curl_multi_remove_handle(e->multi, e->watch);
    curl_easy_cleanup(e->watch);
    e->watch = NULL;
}

static ds_rc begin_watch(etcd *e, ds_err *err)
{
    char url[320];

    e->watch = curl_easy_init();
    ds_buf_clear(&e->watch_body);
    ds_buf_puts(&e->watch_body, "{\"create_request\":{");
    put_range(&e->watch_body, e, "who/");
    ds_buf_puts(&e->watch_body, "}}");
    if (!e->watch || e->watch_body.oom)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    snprintf(url, sizeof url, "%s/v3/watch", e->base);
    curl_easy_setopt(e->watch, CURLOPT_URL, url);
    curl_easy_setopt(e->watch, CURLOPT_HTTPHEADER, e->headers);
    curl_easy_setopt(e->watch, CURLOPT_POSTFIELDS, e->watch_body.p);
    curl_easy_setopt(e->watch, CURLOPT_POSTFIELDSIZE, (long)e->watch_body.len);
    curl_easy_setopt(e->watch, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e->watch, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(e->watch, CURLOPT_WRITEFUNCTION, heard);
    curl_easy_setopt(e->watch, CURLOPT_WRITEDATA, e);
    e->watch_failed = curl_multi_add_handle(e->multi, e->watch) != CURLM_OK;
    e->look = true; /* what changed before it began; its own first answer says look again */
    return DS_OK;
}

/* Runs the watch for a moment. */
static ds_rc attend(etcd *e, ds_err *err)
{
    int running = 0, left;
    CURLMsg *m;

    curl_multi_perform(e->multi, &running);
    while ((m = curl_multi_info_read(e->multi, &left)))
        if (m->msg == CURLMSG_DONE)
            e->watch_failed = true;
    if (e->watch_failed)
        return ds_fail(err, DS_E_IO, "its watch has ended");
    if (e->look) {
        e->look = false;
        return look(e, err);
    }
    curl_multi_poll(e->multi, NULL, 0, LOOK_MS, NULL);
    return DS_OK;
}

/* ---- the tie's life ---- */

static bool is_closing(ds_coord *c)
{
    bool closing;

    pthread_mutex_lock(&c->mu);
    closing = c->closing;
    pthread_mutex_unlock(&c->mu);
    return closing;
}

/* Until something fails, or the tie closes. */
static ds_rc talk(etcd *e, ds_err *err)
{
    ds_coord *c = e->c;
    ds_rc rc = look(e, err);

    if (rc == DS_OK)
        ds_coord_is_up(c, c->o.ttl_ms);
    if (rc == DS_OK)
        rc = begin_watch(e, err);
    while (rc == DS_OK && !is_closing(c)) {
        rc = say_all(e, err);
        if (rc == DS_OK)
            rc = attend(e, err);
        ds_coord_tick(c);
    }
    end_watch(e);
    return rc;
}

/* http://HOST:PORT[/PREFIX] in its parts. */
static void take_apart(etcd *e)
{
    const char *url = e->c->address + 5, *slash = strchr(strstr(url, "://") + 3, '/');
    size_t n = slash ? (size_t)(slash - url) : strlen(url);

    snprintf(e->base, sizeof e->base, "%.*s", (int)n, url);
    snprintf(e->prefix, sizeof e->prefix, "%s", slash && slash[1] ? slash : "/deepserve");
    n = strlen(e->prefix);
    if (e->prefix[n - 1] == '/')
        e->prefix[n - 1] = '\0';
}

void ds_coord_run_etcd(ds_coord *c)
{
    etcd e = { .c = c };
    bool global = curl_global_init(CURL_GLOBAL_DEFAULT) == 0;

    take_apart(&e);
    e.ask = global ? curl_easy_init() : NULL;
    e.multi = global ? curl_multi_init() : NULL;
    e.headers = curl_slist_append(NULL, "Content-Type: application/json");
    while (!is_closing(c)) {
        ds_err err = { 0 };
        ds_rc rc = e.ask && e.multi && e.headers ? talk(&e, &err) : ds_fail(&err, DS_E_NOMEM, "out of memory");
        if (rc != DS_OK)
            ds_coord_is_away(c, err.msg);
        pthread_mutex_lock(&c->mu);
        if (!c->closing)
            ds_coord_pause(c, c->o.retry_ms);
        pthread_mutex_unlock(&c->mu);
    }
    if (e.ask)
        withdraw(&e);
    curl_slist_free_all(e.headers);
    curl_easy_cleanup(e.ask);
    curl_multi_cleanup(e.multi);
    ds_buf_free(&e.watch_body);
    if (global)
        curl_global_cleanup();
}
