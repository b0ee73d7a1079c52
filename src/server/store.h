/* Stored responses: what GET /v1/responses/{id} and previous_response_id read. SQLite, in a file or in memory.
 *
 * A record belongs to a tenant and isn't there for another one. It goes after its time to live; when all records
 * together exceed the bound, the oldest go. Threads: any; one lock, held for a statement. put and remove are durable
 * against a crash of the program, not of the machine (the log is synced by sweep). Memory: SQLite's cache of 2 MiB. */
#ifndef DS_SERVER_STORE_H
#define DS_SERVER_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ds/request.h>

typedef struct ds_store ds_store;

/* path NULL: in memory. A new file is for its owner only. DS_E_IO, DS_E_FORMAT (a database of another kind or
 * version), DS_E_NOMEM. */
ds_rc ds_store_open(ds_store **out, const char *path, uint64_t ttl_s, uint64_t max_bytes, ds_err *err);
void ds_store_close(ds_store *s); /* NULL is fine */

typedef struct {
    const char *tenant, *id;
    const char *body, *items; /* the response object; the items of the whole chain as a record {"items":[…]} */
    size_t body_n, items_n;
    size_t n_input_bytes; /* of items' list, the part that was input */
    int64_t now_s;
} ds_store_record;
/* DS_E_AGAIN: larger than the bound alone. DS_E_IO, DS_E_NOMEM. */
ds_rc ds_store_put(ds_store *s, const ds_store_record *r, ds_err *err);
bool ds_store_remove(ds_store *s, const char *tenant, const char *id, int64_t now_s);

typedef enum { DS_STORE_BODY, DS_STORE_ITEMS, DS_STORE_INPUT /* the input items, without brackets */ } ds_store_part;
/* *text (free() it) is NULL when there is no such record. DS_E_IO, DS_E_NOMEM. */
ds_rc ds_store_get(ds_store *s, const char *tenant, const char *id, ds_store_part part, int64_t now_s, char **text, size_t *n, ds_err *err);
/* Drops what is too old and writes the log back. Now and then, from a thread that may wait for the disk. */
void ds_store_sweep(ds_store *s, int64_t now_s);
void ds_store_usage(ds_store *s, uint64_t *records, uint64_t *bytes);

#endif
