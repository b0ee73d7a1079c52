#include "server/spans.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <curl/curl.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"

enum { WAITING_MAX_BYTES = 1 << 20, TIMEOUT_MS = 2000 };

struct ds_spans {
    /* [const] */
    char *url;
    const ds_log *log;
    int64_t wall_minus_clock_us;
    pthread_t thread;
    bool started;
    /* [mu] */
    pthread_mutex_t mu;
    pthread_cond_t more;
    ds_buf waiting; /* JSON objects, comma-separated */
    uint64_t dropped;
    bool quit;
};

static size_t ignore(char *p, size_t size, size_t n, void *ctx)
{
    (void)p;
    (void)ctx;
    return size * n;
}

static void post(const ds_spans *s, CURL *c, const char *spans)
{
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    ds_buf body = { 0 };
    long status = 0;
    CURLcode rc = CURLE_OUT_OF_MEMORY;

    ds_buf_printf(&body,
                  "{\"resourceSpans\":[{\"resource\":{\"attributes\":[{\"key\":\"service.name\",\"value\":{\"stringValue\":\"deepserve\"}}]"
                  "},\"scopeSpans\":[{\"scope\":{"
                  "\"name\":\"deepserve\",\"version\":\"%s\"},\"spans\":[",
                  DS_VERSION);
    ds_buf_puts(&body, spans);
    ds_buf_puts(&body, "]}]}]}");
    if (headers && !body.oom) {
        curl_easy_setopt(c, CURLOPT_URL, s->url);
        curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, body.p);
        curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body.len);
        curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)TIMEOUT_MS);
        curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, ignore);
        rc = curl_easy_perform(c);
        curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
    }
    if (rc != CURLE_OK || status >= 300)
        ds_logf(s->log, DS_LOG_WARN, "spans status=%ld message=\"%s\"", status, curl_easy_strerror(rc));
    curl_slist_free_all(headers);
    ds_buf_free(&body);
}

static void *send_all(void *arg)
{
    ds_spans *s = arg;
    CURL *c = curl_easy_init();
    bool last = false;

    while (!last) {
        struct timespec t;
        ds_buf take;
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_sec++;
        pthread_mutex_lock(&s->mu);
        while (!s->quit && pthread_cond_timedwait(&s->more, &s->mu, &t) == 0)
            ;
        last = s->quit;
        take = s->waiting;
        s->waiting = (ds_buf){ 0 };
        uint64_t dropped = s->dropped;
        s->dropped = 0;
        pthread_mutex_unlock(&s->mu);
        if (take.len && c)
            post(s, c, take.p);
        if (dropped)
            ds_logf(s->log, DS_LOG_WARN, "spans dropped=%" PRIu64, dropped);
        ds_buf_free(&take);
    }
    curl_easy_cleanup(c);
    return NULL;
}

ds_rc ds_spans_create(ds_spans **out, const char *url, const ds_log *log, ds_err *err)
{
    ds_spans *s = calloc(1, sizeof *s);
    struct timespec t;
    int n = (int)strlen(url);

    *out = NULL;
    if (!s || pthread_mutex_init(&s->mu, NULL) != 0 || pthread_cond_init(&s->more, NULL) != 0) {
        free(s);
        return ds_fail(err, DS_E_NOMEM, "spans: out of memory");
    }
    clock_gettime(CLOCK_REALTIME, &t);
    s->wall_minus_clock_us = (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000 - (int64_t)ds_now_us();
    s->log = log;
    if (asprintf(&s->url, "%.*s/v1/traces", n && url[n - 1] == '/' ? n - 1 : n, url) < 0)
        s->url = NULL;
    if (!s->url || curl_global_init(CURL_GLOBAL_DEFAULT) != 0) {
        ds_spans_destroy(s);
        return ds_fail(err, DS_E_NOMEM, "spans: out of memory");
    }
    if (pthread_create(&s->thread, NULL, send_all, s) != 0) {
        ds_spans_destroy(s);
        return ds_fail(err, DS_E_IO, "spans: no thread");
    }
    s->started = true;
    *out = s;
    return DS_OK;
}

void ds_spans_destroy(ds_spans *s)
{
    if (!s)
        return;
    if (s->started) {
        pthread_mutex_lock(&s->mu);
        s->quit = true;
        pthread_cond_signal(&s->more);
        pthread_mutex_unlock(&s->mu);
        pthread_join(s->thread, NULL);
    }
    ds_buf_free(&s->waiting);
    pthread_mutex_destroy(&s->mu);
    pthread_cond_destroy(&s->more);
    free(s->url);
    free(s);
}

static void put_int(ds_buf *b, const char *key, uint64_t v)
{
    if (v)
        ds_buf_printf(b, "%s{\"key\":\"%s\",\"value\":{\"intValue\":\"%" PRIu64 "\"}}", b->p[b->len - 1] == '[' ? "" : ",", key, v);
}

void ds_spans_add(ds_spans *s, const ds_span *x)
{
    ds_buf b = { 0 };

    if (!s)
        return;
    ds_buf_printf(&b, "{\"traceId\":\"%.32s\",\"spanId\":\"%016" PRIx64 "\",", x->trace, x->id);
    if (x->parent)
        ds_buf_printf(&b, "\"parentSpanId\":\"%.16s\",", x->parent);
    ds_buf_printf(
        &b, "\"name\":\"%s\",\"kind\":%d,\"startTimeUnixNano\":\"%" PRIu64 "000\",\"endTimeUnixNano\":\"%" PRIu64 "000\",\"attributes\":[",
        x->name, x->server ? 2 : 1, x->start_us + (uint64_t)s->wall_minus_clock_us, x->end_us + (uint64_t)s->wall_minus_clock_us);
    if (x->request_id)
        ds_buf_printf(&b, "{\"key\":\"request_id\",\"value\":{\"stringValue\":\"%s\"}}", x->request_id);
    if (b.p) {
        put_int(&b, "http.response.status_code", (uint64_t)x->status);
        put_int(&b, "gen_ai.usage.input_tokens", x->prompt_tokens);
        put_int(&b, "gen_ai.usage.output_tokens", x->output_tokens);
    }
    ds_buf_printf(&b, "],\"status\":{\"code\":%d}}", x->status >= 500 ? 2 : 0);
    pthread_mutex_lock(&s->mu);
    if (b.oom || s->waiting.len + b.len > WAITING_MAX_BYTES) {
        s->dropped++;
    } else {
        if (s->waiting.len)
            ds_buf_putc(&s->waiting, ',');
        ds_buf_put(&s->waiting, b.p, b.len);
    }
    pthread_mutex_unlock(&s->mu);
    ds_buf_free(&b);
}
