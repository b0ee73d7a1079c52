/* Overflow-checked sizes, aligned blocks and the step arena.
 *
 * Threads: an arena belongs to one thread.   Memory: ds_arena_init takes its block once; ds_arena_alloc never grows
 * it. */
#ifndef DS_BASE_MEM_H
#define DS_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* *out = a * b (or a + b); false on overflow, *out is then unchanged. */
bool ds_size_mul(size_t *out, size_t a, size_t b);
bool ds_size_add(size_t *out, size_t a, size_t b);

/* Zeroed array of n elements of `size` bytes, 64-byte aligned; NULL on overflow or when the heap is exhausted. Free
 * with free(). */
void *ds_calloc_aligned(size_t n, size_t size);

/* malloc for what is filled at once; NULL on overflow too. A large block is aligned for huge pages, since its first
 * touch would else cost a page fault every 4 KiB. */
void *ds_malloc_large(size_t bytes);

typedef struct {
    unsigned char *base;
    size_t cap, used, peak; /* bytes */
} ds_arena;                 /* owner: one thread */

ds_rc ds_arena_init(ds_arena *a, size_t cap_bytes, ds_err *err);
void ds_arena_fini(ds_arena *a);

/* align: power of two, at most 64 (what base has); NULL = full. Not zeroed after a rewind. */
static inline void *ds_arena_alloc(ds_arena *a, size_t bytes, size_t align)
{
    size_t at = (a->used + align - 1) & ~(align - 1);
    if (at > a->cap || bytes > a->cap - at)
        return NULL;
    a->used = at + bytes;
    if (a->used > a->peak)
        a->peak = a->used;
    return a->base + at;
}

static inline size_t ds_arena_mark(const ds_arena *a)
{
    return a->used;
}

/* Frees everything taken since mark m. */
static inline void ds_arena_rewind(ds_arena *a, size_t m)
{
    a->used = m;
}

#endif
