/* The single-producer single-consumer ring.
 *
 * Indices count up for ever; an element's slot is index & mask. Either side keeps a copy of the other's index and reads the
 * shared one only when the copy says full (empty), so that the cache lines rarely move. */
#include "base/ring.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct ds_ring {
    /* [const] */
    size_t mask, element_bytes;
    unsigned char *slots;
    /* [atomic] written by the producer, [producer] its copy of the consumer's index */
    _Alignas(64) atomic_size_t tail;
    size_t head_copy;
    /* [atomic] written by the consumer, [consumer] its copy of the producer's index */
    _Alignas(64) atomic_size_t head;
    size_t tail_copy;
};

ds_rc ds_ring_create(ds_ring **out, size_t n_elements, size_t element_bytes, ds_err *err)
{
    ds_ring *r;
    size_t n = 1;

    *out = NULL;
    if (n_elements == 0 || element_bytes == 0 || n_elements > SIZE_MAX / 2)
        return ds_fail(err, DS_E_ARG, "ring of %zu elements of %zu bytes", n_elements, element_bytes);
    while (n < n_elements)
        n *= 2;
    r = ds_calloc_aligned(1, sizeof *r);
    if (r)
        r->slots = ds_calloc_aligned(n, element_bytes);
    if (!r || !r->slots) {
        ds_ring_destroy(r);
        return ds_fail(err, DS_E_NOMEM, "ring of %zu elements of %zu bytes: out of memory", n, element_bytes);
    }
    r->mask = n - 1;
    r->element_bytes = element_bytes;
    *out = r;
    return DS_OK;
}

void ds_ring_destroy(ds_ring *r)
{
    if (!r)
        return;
    free(r->slots);
    free(r);
}

bool ds_ring_push(ds_ring *r, const void *element)
{
    size_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed); /* ours */

    if (tail - r->head_copy > r->mask) {
        r->head_copy = atomic_load_explicit(&r->head, memory_order_acquire); /* the consumer is done reading what lies before it */
        if (tail - r->head_copy > r->mask)
            return false;
    }
    memcpy(r->slots + (tail & r->mask) * r->element_bytes, element, r->element_bytes);
    atomic_store_explicit(&r->tail, tail + 1, memory_order_release); /* publishes the element */
    return true;
}

bool ds_ring_pop(ds_ring *r, void *element)
{
    size_t head = atomic_load_explicit(&r->head, memory_order_relaxed); /* ours */

    if (head == r->tail_copy) {
        r->tail_copy = atomic_load_explicit(&r->tail, memory_order_acquire); /* takes the elements before it */
        if (head == r->tail_copy)
            return false;
    }
    memcpy(element, r->slots + (head & r->mask) * r->element_bytes, r->element_bytes);
    atomic_store_explicit(&r->head, head + 1, memory_order_release); /* gives the slot back */
    return true;
}

size_t ds_ring_count(const ds_ring *r)
{
    size_t head = atomic_load_explicit(&r->head, memory_order_acquire);

    return atomic_load_explicit(&r->tail, memory_order_acquire) - head;
}
