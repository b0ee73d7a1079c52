#include "recipe/memstore.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

typedef struct record record;
struct record {
    record *older, *newer;
    char *id, *json; /* both in the same block */
    size_t n, bytes;
    size_t refs; /* the list's one included */
};

struct ds_memstore {
    /* [const] */
    size_t max_records, max_bytes;
    ds_response_store face;
    /* [mu] */
    pthread_mutex_t mu;
    record *oldest, *newest;
    size_t n, bytes;
};

static void unref(record *r)
{
    if (--r->refs == 0)
        free(r);
}

static void unlink_record(ds_memstore *s, record *r)
{
    *(r->older ? &r->older->newer : &s->oldest) = r->newer;
    *(r->newer ? &r->newer->older : &s->newest) = r->older;
    s->n--;
    s->bytes -= r->bytes;
    unref(r);
}

/* O(records): the store is for tests and for one person's machine. */
static record *find(ds_memstore *s, const char *id)
{
    record *r = s->newest;

    while (r && strcmp(r->id, id) != 0)
        r = r->older;
    return r;
}

static ds_rc load(void *ctx, const char *id, const char **json, size_t *n, void **hold, ds_err *err)
{
    ds_memstore *s = ctx;
    record *r;

    (void)err;
    *json = NULL;
    *n = 0;
    *hold = NULL;
    pthread_mutex_lock(&s->mu);
    r = find(s, id);
    if (r) {
        r->refs++;
        *json = r->json;
        *n = r->n;
        *hold = r;
    }
    pthread_mutex_unlock(&s->mu);
    return DS_OK;
}

static void release(void *ctx, void *hold)
{
    ds_memstore *s = ctx;

    pthread_mutex_lock(&s->mu);
    unref(hold);
    pthread_mutex_unlock(&s->mu);
}

ds_rc ds_memstore_create(ds_memstore **out, size_t max_records, size_t max_bytes, ds_err *err)
{
    ds_memstore *s;

    *out = NULL;
    if (!max_records || !max_bytes)
        return ds_fail(err, DS_E_ARG, "response store: bounds must be positive");
    s = calloc(1, sizeof *s);
    if (!s || pthread_mutex_init(&s->mu, NULL) != 0) {
        free(s);
        return ds_fail(err, DS_E_NOMEM, "response store: out of memory");
    }
    s->max_records = max_records;
    s->max_bytes = max_bytes;
    s->face = (ds_response_store){ s, load, release };
    *out = s;
    return DS_OK;
}

void ds_memstore_destroy(ds_memstore *s)
{
    if (!s)
        return;
    while (s->oldest)
        unlink_record(s, s->oldest);
    pthread_mutex_destroy(&s->mu);
    free(s);
}

ds_rc ds_memstore_put(ds_memstore *s, const char *id, const char *json, size_t n, ds_err *err)
{
    size_t id_n = strlen(id) + 1, bytes = sizeof(record) + id_n + n + 1;
    record *r, *old;

    if (n > s->max_bytes || bytes > s->max_bytes)
        return ds_fail(err, DS_E_AGAIN, "response store: a record of %zu bytes is above the bound of %zu", bytes, s->max_bytes);
    r = calloc(1, bytes);
    if (!r)
        return ds_fail(err, DS_E_NOMEM, "response store: out of memory");
    r->id = (char *)(r + 1);
    r->json = r->id + id_n;
    memcpy(r->id, id, id_n);
    memcpy(r->json, json, n);
    r->n = n;
    r->bytes = bytes;
    r->refs = 1;
    pthread_mutex_lock(&s->mu);
    old = find(s, id);
    if (old)
        unlink_record(s, old);
    while (s->n >= s->max_records || s->bytes > s->max_bytes - bytes)
        unlink_record(s, s->oldest);
    r->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = r;
    s->newest = r;
    s->n++;
    s->bytes += bytes;
    pthread_mutex_unlock(&s->mu);
    return DS_OK;
}

bool ds_memstore_remove(ds_memstore *s, const char *id)
{
    record *r;

    pthread_mutex_lock(&s->mu);
    r = find(s, id);
    if (r)
        unlink_record(s, r);
    pthread_mutex_unlock(&s->mu);
    return r != NULL;
}

const ds_response_store *ds_memstore_interface(ds_memstore *s)
{
    return &s->face;
}
