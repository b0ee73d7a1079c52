/* Memory that lives as long as one request: many small pieces, freed at once.
 *
 * Pieces come from chained chunks, so a request takes a handful of heap blocks whatever its shape. A bound stops a
 * request from growing beyond what its body justifies. After the first failure every later allocation fails too, so
 * callers may check once at the end. Threads: one owner. */
#ifndef DS_RECIPE_REGION_H
#define DS_RECIPE_REGION_H

#include <stdbool.h>
#include <stddef.h>

#include <ds/request.h>

typedef struct ds_region_chunk ds_region_chunk;

typedef struct {
    ds_region_chunk *head; /* the one being filled */
    size_t used_bytes;     /* of all chunks */
    size_t limit_bytes;    /* 0 = no bound */
    bool failed;
} ds_region; /* zero-initialised is valid */

void *ds_region_alloc(ds_region *g, size_t bytes); /* zeroed, 16-byte aligned; NULL = failed */
void *ds_region_array(ds_region *g, size_t n, size_t size);
/* A copy with a NUL behind it; an absent string when it failed. */
ds_str ds_region_str(ds_region *g, const char *p, size_t n);
ds_str ds_region_printf(ds_region *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
ds_str ds_region_join(ds_region *g, ds_str a, ds_str b); /* a then b; either may be absent */
void ds_region_free(ds_region *g);

#endif
