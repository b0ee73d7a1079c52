/* What goes from one engine process to another so that a sequence goes on there (docs/formats/cluster.md): messages
 * that ask for parts of it, and the table of what waits to be taken.
 *
 * A sequence that left its engine lies here under a ticket, as its record (docs/formats/handoff.md) and behind it its
 * whole blocks. It belongs to this process until the ticket is forgotten: by who took it, by the entry whose request it
 * was, or with the entry's connection. So it has one owner at any time, and none that is gone.
 *
 *   ds_tickets_put        a sequence that left
 *   ds_tickets_pin        its bytes stay, also when the ticket is forgotten, until unpin
 *   ds_tickets_forget     the ticket is over; so are all of an owner with ds_tickets_forget_of
 *
 * Threads: any.   Locks: one, nothing is called with it.   Memory: a row a ticket, of a number that create says. */
#ifndef DS_CLUSTER_HANDOFF_H
#define DS_CLUSTER_HANDOFF_H

#include "base/buf.h"
#include "cluster/wire.h"

/* ---- tickets ---- */

typedef struct ds_tickets ds_tickets;

typedef struct {
    const uint8_t *record, *blocks;
    size_t n_record, n_blocks;           /* bytes */
    void (*free)(void *ctx, void *held); /* once, when nobody needs them any more. From any thread */
    void *ctx, *held;
} ds_handed;

ds_rc ds_tickets_create(ds_tickets **out, uint32_t most, ds_err *err);
void ds_tickets_destroy(ds_tickets *t); /* nothing is pinned. NULL is fine */
/* owner: who asked for it. DS_E_AGAIN: so many are there; *h stays the caller's. DS_E_IO: no random numbers. */
ds_rc ds_tickets_put(ds_tickets *t, const void *owner, const ds_handed *h, uint64_t *ticket, ds_err *err);
const ds_handed *ds_tickets_pin(ds_tickets *t, uint64_t ticket); /* NULL: there is none */
void ds_tickets_unpin(ds_tickets *t, const ds_handed *h);
void ds_tickets_forget(ds_tickets *t, uint64_t ticket); /* nothing if there is none */
void ds_tickets_forget_of(ds_tickets *t, const void *owner);
uint32_t ds_tickets_n(ds_tickets *t); /* not forgotten, or pinned */

/* ---- messages ---- */

enum { DS_CW_MAX_PART = 4 << 20 }; /* bytes of one answer */

/* TAKE: `n` bytes from `from` on. */
void ds_cw_put_take(ds_buf *b, uint64_t from, uint32_t n);
ds_rc ds_cw_read_take(uint64_t *from, uint32_t *n, const uint8_t *p, size_t bytes, ds_err *err);

/* PART: how much there is of both, and the bytes that were asked for, as far as there are so many. */
typedef struct {
    uint64_t n_record, n_blocks, from;
    const uint8_t *p; /* within the message */
    size_t n;
} ds_cw_part;
void ds_cw_put_part(ds_buf *b, const ds_handed *h, uint64_t from, uint32_t n);
ds_rc ds_cw_read_part(ds_cw_part *out, const uint8_t *p, size_t bytes, ds_err *err);

#endif
