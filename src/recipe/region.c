#include "recipe/region.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define FIRST_CHUNK ((size_t)8 << 10)
#define MAX_CHUNK ((size_t)1 << 20) /* chunks double up to here, so a big request has few and a small one wastes little */

struct ds_region_chunk {
    ds_region_chunk *next;
    size_t used, cap; /* bytes of data */
    _Alignas(16) unsigned char data[];
};

static bool grow(ds_region *g, size_t bytes)
{
    size_t cap = g->head ? g->head->cap * 2 : FIRST_CHUNK;
    ds_region_chunk *c;

    if (cap > MAX_CHUNK)
        cap = MAX_CHUNK;
    if (cap < bytes)
        cap = bytes;
    if (g->limit_bytes && (g->used_bytes > g->limit_bytes || cap > g->limit_bytes - g->used_bytes))
        return false;
    c = cap <= SIZE_MAX - sizeof *c ? calloc(1, sizeof *c + cap) : NULL;
    if (!c)
        return false;
    c->cap = cap;
    c->next = g->head;
    g->head = c;
    g->used_bytes += sizeof *c + cap;
    return true;
}

void *ds_region_alloc(ds_region *g, size_t bytes)
{
    size_t size = (bytes + 15) & ~(size_t)15;
    void *p;

    if (g->failed || size < bytes) {
        g->failed = true;
        return NULL;
    }
    if ((!g->head || size > g->head->cap - g->head->used) && !grow(g, size)) {
        g->failed = true;
        return NULL;
    }
    p = g->head->data + g->head->used;
    g->head->used += size;
    return p;
}

void *ds_region_array(ds_region *g, size_t n, size_t size)
{
    size_t bytes;

    if (!ds_size_mul(&bytes, n, size)) {
        g->failed = true;
        return NULL;
    }
    return ds_region_alloc(g, bytes);
}

ds_str ds_region_str(ds_region *g, const char *p, size_t n)
{
    char *copy = n < SIZE_MAX ? ds_region_alloc(g, n + 1) : NULL;

    if (!copy) {
        g->failed = true;
        return (ds_str){ NULL, 0 };
    }
    if (n)
        memcpy(copy, p, n);
    copy[n] = 0;
    return (ds_str){ copy, n };
}

ds_str ds_region_printf(ds_region *g, const char *fmt, ...)
{
    va_list ap, again;
    char *p = NULL;
    int n;

    va_start(ap, fmt);
    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, ap);
    if (n >= 0)
        p = ds_region_alloc(g, (size_t)n + 1);
    if (p)
        vsnprintf(p, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(ap);
    return p ? (ds_str){ p, (size_t)n } : (ds_str){ NULL, 0 };
}

ds_str ds_region_join(ds_region *g, ds_str a, ds_str b)
{
    char *p = a.n < SIZE_MAX - b.n ? ds_region_alloc(g, a.n + b.n + 1) : NULL;

    if (!p) {
        g->failed = true;
        return (ds_str){ NULL, 0 };
    }
    if (a.n)
        memcpy(p, a.p, a.n);
    if (b.n)
        memcpy(p + a.n, b.p, b.n);
    return (ds_str){ p, a.n + b.n };
}

void ds_region_free(ds_region *g)
{
    while (g->head) {
        ds_region_chunk *next = g->head->next;

        free(g->head);
        g->head = next;
    }
    *g = (ds_region){ 0 };
}
