/* A bounded single-producer single-consumer ring of fixed-size elements.
 *
 * Threads: one thread pushes, one pops; the release store of the index publishes the element, the acquire load takes it.
 * Memory: all taken in create(). A full ring answers false: the producer decides. */
#ifndef DS_BASE_RING_H
#define DS_BASE_RING_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

typedef struct ds_ring ds_ring;

ds_rc ds_ring_create(ds_ring **out, size_t n_elements /* rounded up to a power of two */, size_t element_bytes, ds_err *err);
void ds_ring_destroy(ds_ring *r);
bool ds_ring_push(ds_ring *r, const void *element); /* false: full */
bool ds_ring_pop(ds_ring *r, void *element);        /* false: empty */
size_t ds_ring_count(const ds_ring *r);             /* exact for either side when the other is still */

#endif
