/* Host memory as a store: what leaves the device stays in stage memory itself, and is found there by its key.
 *
 * A fetch is answered before it returns, with the buffers in which the bytes lie (or are about to, by an operation
 * that is planned already): nothing is copied but by the device. What is fetched is pinned until the ticket is
 * dropped; else the least recently used goes for what leaves the device next.
 *
 * Threads: one engine's loop.   Memory: all taken in create(). */
#ifndef DS_ENGINE_HOSTSTORE_H
#define DS_ENGINE_HOSTSTORE_H

#include "base/err.h"
#include "engine/store.h"

typedef struct ds_hoststore ds_hoststore;

typedef struct {
    uint32_t n_blocks, n_states; /* buffers: as many as the stage memory has */
    uint32_t n_tickets;          /* at a time */
    uint32_t ticket_blocks;      /* of one at most */
} ds_hoststore_size;

uint64_t ds_hoststore_bytes(const ds_hoststore_size *size); /* that create takes */
ds_rc ds_hoststore_create(ds_hoststore **out, const ds_hoststore_size *size, ds_err *err);
void ds_hoststore_destroy(ds_hoststore *s); /* NULL is fine */
ds_store ds_hoststore_store(ds_hoststore *s);

/* What is wrong with its tables, or NULL: for tests. */
const char *ds_hoststore_check(const ds_hoststore *s);

#endif
