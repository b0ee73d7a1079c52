/* Output waiting for one client: bytes in, bytes out, with a bound.
 *
 * Threads: owner is the event loop.   Memory: grows to what is waiting, at most the bound; given back when it runs
 * empty after having been large. */
#ifndef DS_SERVER_OUTQ_H
#define DS_SERVER_OUTQ_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

typedef struct {
    ds_buf b;
    size_t at; /* bytes of b that are gone */
} ds_outq;     /* zero-initialised is empty */

static inline size_t ds_outq_bytes(const ds_outq *q)
{
    return q->b.len - q->at;
}
void ds_outq_free(ds_outq *q);
/* Room for n more bytes in one piece, to be filled and then counted with ds_outq_commit. NULL: more than `max` would
 * wait, or no memory. */
char *ds_outq_reserve(ds_outq *q, size_t n, size_t max);
void ds_outq_commit(ds_outq *q, size_t n);
bool ds_outq_put(ds_outq *q, const void *bytes, size_t n, size_t max); /* false: as reserve */
size_t ds_outq_take(ds_outq *q, char *out, size_t cap);
/* The same without a copy: all that waits, until the next call but bytes; then n bytes of it are gone. */
static inline const char *ds_outq_first(const ds_outq *q)
{
    return q->b.p + q->at;
}
void ds_outq_drop(ds_outq *q, size_t n);

#endif
