/* Pictures behind http(s) addresses, by libcurl, several at a time on the calling thread.
 *
 * The address check sits where a socket is made for the very address that is about to be connected to. So it holds
 * for every name, every redirect and every reconnection, and it doesn't matter what a name server says the next
 * time. */
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <curl/curl.h>

#include "image/image_internal.h"

#define POLL_MS 10
#define FIRST_BYTES ((size_t)64 << 10)

void ds_fetch_opts_init(ds_fetch_opts *o)
{
    *o = (ds_fetch_opts){
        .max_bytes = (size_t)32 << 20, .max_redirects = 5, .connect_ms = 5000, .total_ms = 20000, .parallel = 8, .user_agent = "deepserve"
    };
}

typedef struct {
    const ds_fetch_opts *opts;
    ds_fetch_item *item; /* NULL: idle */
    CURL *easy;
    size_t cap;
    bool too_large, oom, private_address, bad_port;
    char error[CURL_ERROR_SIZE];
} transfer;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool ready; /* written once, by start_curl */

static void start_curl(void)
{
    ready = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
}

static size_t on_bytes(char *p, size_t size, size_t n, void *arg)
{
    transfer *t = arg;
    ds_fetch_item *item = t->item;

    n *= size;
    if (n > t->opts->max_bytes - item->n) {
        t->too_large = true;
        return CURL_WRITEFUNC_ERROR;
    }
    if (item->n + n > t->cap) {
        size_t cap = t->cap < FIRST_BYTES ? FIRST_BYTES : 2 * t->cap;
        unsigned char *bigger;

        cap = cap < item->n + n ? item->n + n : cap;
        bigger = realloc(item->bytes, cap);
        if (!bigger) {
            t->oom = true;
            return CURL_WRITEFUNC_ERROR;
        }
        item->bytes = bigger;
        t->cap = cap;
    }
    memcpy(item->bytes + item->n, p, n);
    item->n += n;
    return n;
}

static unsigned port_of(const struct curl_sockaddr *a)
{
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;

    if (a->family == AF_INET && a->addrlen >= sizeof v4) {
        memcpy(&v4, &a->addr, sizeof v4);
        return ntohs(v4.sin_port);
    }
    if (a->family == AF_INET6 && a->addrlen >= sizeof v6) {
        memcpy(&v6, &a->addr, sizeof v6);
        return ntohs(v6.sin6_port);
    }
    return 0;
}

static curl_socket_t on_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *a)
{
    transfer *t = arg;
    unsigned port = port_of(a);

    (void)purpose;
    if (!t->opts->allow_private) {
        if (!ds_address_public(&a->addr, a->addrlen)) {
            t->private_address = true;
            return CURL_SOCKET_BAD;
        }
        if (port != 80 && port != 443 && port < 1024) {
            t->bad_port = true;
            return CURL_SOCKET_BAD;
        }
    }
    return socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
}

static void fail_item(ds_fetch_item *item, int status, const char *reason)
{
    size_t n = 0;

    free(item->bytes);
    item->bytes = NULL;
    item->n = 0;
    item->status = status;
    for (; reason[n] && n < sizeof item->reason - 1; n++) /* the library quotes names from the address */
        item->reason[n] = (unsigned char)reason[n] < 0x20 || reason[n] == 0x7F ? '?' : reason[n];
    item->reason[n] = 0;
}

/* What became of it; on success the body stays. */
static void settle(transfer *t, CURLcode code)
{
    char text[160];
    long status = 0, connects = 0;

    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(t->easy, CURLINFO_NUM_CONNECTS, &connects);
    if (t->oom) {
        fail_item(t->item, 500, "out of memory");
    } else if (t->too_large || code == CURLE_FILESIZE_EXCEEDED) {
        snprintf(text, sizeof text, "it has more than %zu bytes", t->opts->max_bytes);
        fail_item(t->item, 400, text);
    } else if (code == CURLE_OK && status == 200) {
        if (t->item->n == 0)
            fail_item(t->item, 400, "the answer is empty");
    } else if (code == CURLE_OK || code == CURLE_HTTP_RETURNED_ERROR) {
        snprintf(text, sizeof text, "the server answered with status %ld", status);
        fail_item(t->item, status >= 500 || status == 408 || status == 425 || status == 429 ? 500 : 400, text);
    } else if (t->private_address && code == CURLE_COULDNT_CONNECT) {
        fail_item(t->item, 400, "the address isn't public");
    } else if (t->bad_port && code == CURLE_COULDNT_CONNECT) {
        fail_item(t->item, 400, "the port isn't one of 80, 443, 1024-65535");
    } else if (code == CURLE_TOO_MANY_REDIRECTS) {
        snprintf(text, sizeof text, "more than %u redirects", t->opts->max_redirects);
        fail_item(t->item, 400, text);
    } else if (code == CURLE_UNSUPPORTED_PROTOCOL && (status != 0 || connects == 0)) { /* else: an answer that isn't HTTP */
        fail_item(t->item, 400, "only http and https are fetched");
    } else if (code == CURLE_URL_MALFORMAT) {
        fail_item(t->item, 400, "not a valid URL");
    } else if (code == CURLE_LOGIN_DENIED) {
        fail_item(t->item, 400, "a URL with a user name isn't fetched");
    } else {
        fail_item(t->item, 500, t->error[0] ? t->error : curl_easy_strerror(code));
    }
}

static bool set_up(transfer *t)
{
    const ds_fetch_opts *o = t->opts;
    CURL *e = t->easy;
    bool ok = true;

#define SET(name, value) ok = curl_easy_setopt(e, CURLOPT_##name, value) == CURLE_OK && ok
    SET(URL, t->item->url);
    SET(PRIVATE, t);
    SET(ERRORBUFFER, t->error);
    SET(NOSIGNAL, 1L);
    SET(QUICK_EXIT, 1L); /* a cancelled look-up isn't waited for */
    SET(PROTOCOLS_STR, "http,https");
    SET(REDIR_PROTOCOLS_STR, "http,https");
    SET(FOLLOWLOCATION, 1L);
    SET(MAXREDIRS, (long)o->max_redirects);
    SET(FAILONERROR, 1L);
    SET(DISALLOW_USERNAME_IN_URL, 1L);
    SET(PROXY, ""); /* whatever the environment says */
    SET(NOPROXY, "*");
    SET(NETRC, (long)CURL_NETRC_IGNORED);
    SET(CONNECTTIMEOUT_MS, (long)o->connect_ms);
    SET(TIMEOUT_MS, (long)o->total_ms);
    SET(MAXFILESIZE_LARGE, (curl_off_t)o->max_bytes);
    SET(WRITEFUNCTION, on_bytes);
    SET(WRITEDATA, t);
    SET(OPENSOCKETFUNCTION, on_socket);
    SET(OPENSOCKETDATA, t);
    SET(DNS_CACHE_TIMEOUT, 0L);
    if (o->user_agent)
        SET(USERAGENT, o->user_agent);
#undef SET
    return ok;
}

static ds_rc start(CURLM *multi, transfer *t, ds_fetch_item *item, ds_err *err)
{
    t->item = item;
    t->cap = 0;
    t->too_large = t->oom = t->private_address = t->bad_port = false;
    t->error[0] = 0;
    t->easy = curl_easy_init();
    if (!t->easy || !set_up(t) || curl_multi_add_handle(multi, t->easy) != CURLM_OK)
        return ds_fail(err, DS_E_NOMEM, "fetching an image: out of memory");
    return DS_OK;
}

static void stop(CURLM *multi, transfer *t)
{
    if (t->easy) {
        curl_multi_remove_handle(multi, t->easy);
        curl_easy_cleanup(t->easy);
    }
    t->easy = NULL;
    t->item = NULL;
}

typedef struct {
    CURLM *multi;
    transfer *slots;
    ds_fetch_item *items;
    size_t n, next, ended;
    const ds_fetch_opts *opts;
    ds_fetch_arrived *arrived;
    void *ctx;
    ds_err *err;
} job;

static ds_rc fill_slots(job *j)
{
    for (size_t i = 0; i < j->opts->parallel && j->next < j->n; i++) {
        ds_rc rc = j->slots[i].item ? DS_OK : start(j->multi, &j->slots[i], &j->items[j->next++], j->err);

        if (rc != DS_OK)
            return rc;
    }
    return DS_OK;
}

static ds_rc take_ended(job *j)
{
    CURLMsg *m;
    int left;

    while ((m = curl_multi_info_read(j->multi, &left)) != NULL) {
        CURLcode code = m->data.result;
        ds_fetch_item *item;
        bool oom;
        transfer *t;
        ds_rc rc = DS_OK;

        if (m->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&t);
        settle(t, code);
        item = t->item;
        oom = t->oom || code == CURLE_OUT_OF_MEMORY;
        stop(j->multi, t);
        j->ended++;
        if (oom)
            return ds_fail(j->err, DS_E_NOMEM, "fetching an image: out of memory");
        if (j->arrived)
            rc = j->arrived(j->ctx, item, j->err);
        if (rc != DS_OK)
            return rc;
    }
    return DS_OK;
}

static ds_rc drive(job *j)
{
    int running;
    ds_rc rc;

    while (j->ended < j->n) {
        if (j->opts->canceled && j->opts->canceled(j->opts->cancel_ctx))
            return ds_fail(j->err, DS_E_CANCELED, "canceled");
        rc = fill_slots(j);
        if (rc != DS_OK)
            return rc;
        if (curl_multi_perform(j->multi, &running) != CURLM_OK)
            return ds_fail(j->err, DS_E_NOMEM, "fetching an image: out of memory");
        rc = take_ended(j);
        if (rc != DS_OK)
            return rc;
        if (running && curl_multi_poll(j->multi, NULL, 0, POLL_MS, NULL) != CURLM_OK)
            return ds_fail(j->err, DS_E_NOMEM, "fetching an image: out of memory");
    }
    return DS_OK;
}

ds_rc ds_fetch(ds_fetch_item *items, size_t n, const ds_fetch_opts *opts, ds_fetch_arrived *arrived, void *ctx, ds_err *err)
{
    ds_fetch_opts o;
    job j = { .items = items, .n = n, .opts = &o, .arrived = arrived, .ctx = ctx, .err = err };
    ds_rc rc = DS_E_NOMEM;

    ds_fetch_opts_init(&o);
    if (opts)
        o = *opts;
    if (o.parallel < 1 || o.parallel > 64)
        return ds_fail(err, DS_E_ARG, "fetch: %u transfers at a time, 1 to 64 are possible", o.parallel);
    for (size_t i = 0; i < n; i++)
        items[i] = (ds_fetch_item){ .url = items[i].url };
    pthread_once(&once, start_curl);
    if (!ready)
        return ds_fail(err, DS_E_IO, "fetch: libcurl doesn't start");
    j.slots = calloc(o.parallel, sizeof *j.slots);
    j.multi = curl_multi_init();
    for (size_t i = 0; j.slots && i < o.parallel; i++)
        j.slots[i].opts = &o;
    if (j.slots && j.multi)
        rc = drive(&j);
    else
        ds_fail(err, rc, "fetch: out of memory");
    for (size_t i = 0; j.slots && i < o.parallel; i++)
        stop(j.multi, &j.slots[i]);
    curl_multi_cleanup(j.multi);
    free(j.slots);
    for (size_t i = 0; rc != DS_OK && i < n; i++) {
        free(items[i].bytes);
        items[i] = (ds_fetch_item){ .url = items[i].url };
    }
    return rc;
}
