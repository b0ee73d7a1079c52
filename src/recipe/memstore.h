/* Stored responses in memory: the smallest implementation of ds_response_store. The oldest record goes when a bound is reached.
 *
 * Threads: any; one lock inside, held for a table look-up only. A loaded record stays valid after it was put out, until its release. */
#ifndef DS_RECIPE_MEMSTORE_H
#define DS_RECIPE_MEMSTORE_H

#include <ds/request.h>

typedef struct ds_memstore ds_memstore;

/* Both bounds > 0. DS_E_ARG, DS_E_NOMEM. */
ds_rc ds_memstore_create(ds_memstore **out, size_t max_records, size_t max_bytes, ds_err *err);
void ds_memstore_destroy(ds_memstore *s); /* NULL is fine; nothing may be loaded */
/* Copies id and record; replaces a record of that id. DS_E_AGAIN: the record alone is above max_bytes. */
ds_rc ds_memstore_put(ds_memstore *s, const char *id, const char *json, size_t n, ds_err *err);
bool ds_memstore_remove(ds_memstore *s, const char *id);        /* false: not there */
const ds_response_store *ds_memstore_interface(ds_memstore *s); /* as long as s */

#endif
