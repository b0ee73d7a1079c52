/* Checked sizes, aligned blocks, arenas. */
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    ALIGN = 64, /* a cache line, and the widest vector register */
    HUGE_PAGE = 2 << 20,
};

bool ds_size_mul(size_t *out, size_t a, size_t b)
{
    size_t r;

    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

bool ds_size_add(size_t *out, size_t a, size_t b)
{
    size_t r;

    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

void *ds_calloc_aligned(size_t n, size_t size)
{
    void *p;
    size_t bytes;

    if (!ds_size_mul(&bytes, n, size) || !ds_size_add(&bytes, bytes, ALIGN - 1))
        return NULL;
    bytes &= ~(size_t)(ALIGN - 1);
    if (bytes == 0)
        bytes = ALIGN;
    if (posix_memalign(&p, ALIGN, bytes) != 0)
        return NULL;
    return memset(p, 0, bytes);
}

void *ds_malloc_large(size_t bytes)
{
    void *p;

    if (bytes < HUGE_PAGE / 2)
        return malloc(bytes);
    if (bytes > PTRDIFF_MAX - HUGE_PAGE)
        return NULL;
    bytes = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    if (posix_memalign(&p, HUGE_PAGE, bytes) != 0)
        return NULL;
    madvise(p, bytes, MADV_HUGEPAGE); /* a wish: nothing depends on it */
    return p;
}

ds_rc ds_arena_init(ds_arena *a, size_t cap_bytes, ds_err *err)
{
    *a = (ds_arena){ .base = ds_calloc_aligned(cap_bytes, 1) };
    if (!a->base)
        return ds_fail(err, DS_E_NOMEM, "arena: out of memory for %zu bytes", cap_bytes);
    a->cap = cap_bytes;
    return DS_OK;
}

void ds_arena_fini(ds_arena *a)
{
    free(a->base);
    *a = (ds_arena){ 0 };
}
