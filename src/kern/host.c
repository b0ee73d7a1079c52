/* The CPU as a device: device and stage memory are the heap, and everything put on a stream is done when the call
 * returns. */
#include <stdlib.h>
#include <string.h>

#include "kern/device.h"

enum { ALIGN = 256 };

struct ds_stream {
    char unused;
};

struct ds_fence {
    char unused;
};

/* Both are places in an order that is kept by itself. */
static ds_stream the_stream;
static ds_fence the_fence;

static void destroy(ds_device *d)
{
    free(d);
}

/* In front of the block stands what free() must get. Pages are touched when they are used, not here. */
static ds_rc take(ds_device *d, ds_mem_kind kind, size_t bytes, void **out, ds_err *err)
{
    size_t all;
    char *p = ds_size_add(&all, bytes, ALIGN + sizeof p) ? calloc(1, all) : NULL;
    char *at;

    (void)d;
    (void)kind;
    *out = NULL;
    if (!p)
        return ds_fail(err, DS_E_NOMEM, "out of memory for %zu bytes", bytes);
    at = (char *)(((uintptr_t)p + sizeof p + ALIGN - 1) & ~(uintptr_t)(ALIGN - 1));
    memcpy(at - sizeof p, &p, sizeof p);
    *out = at;
    return DS_OK;
}

static void give(ds_device *d, ds_mem_kind kind, void *at)
{
    char *p = NULL;

    (void)d;
    (void)kind;
    if (at)
        memcpy(&p, (char *)at - sizeof p, sizeof p);
    free(p);
}

static ds_rc stream_create(ds_device *d, ds_stream **out, ds_err *err)
{
    (void)d;
    (void)err;
    *out = &the_stream;
    return DS_OK;
}

static void stream_destroy(ds_device *d, ds_stream *s)
{
    (void)d;
    (void)s;
}

static ds_rc fence_create(ds_device *d, ds_fence **out, ds_err *err)
{
    (void)d;
    (void)err;
    *out = &the_fence;
    return DS_OK;
}

static void fence_destroy(ds_device *d, ds_fence *e)
{
    (void)d;
    (void)e;
}

static void move(ds_device *d, ds_stream *s, void *dst, const void *src, size_t bytes)
{
    (void)d;
    (void)s;
    if (bytes)
        memcpy(dst, src, bytes);
}

static void zero(ds_device *d, ds_stream *s, void *dst, size_t bytes)
{
    (void)d;
    (void)s;
    if (bytes)
        memset(dst, 0, bytes);
}

static void mark(ds_device *d, ds_stream *s, ds_fence *e)
{
    (void)d;
    (void)s;
    (void)e;
}

static ds_rc wait_for(ds_device *d, ds_fence *e, ds_err *err)
{
    (void)d;
    (void)e;
    (void)err;
    return DS_OK;
}

static const ds_device_fns fns = {
    .destroy = destroy,
    .alloc = take,
    .free = give,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .fence_create = fence_create,
    .fence_destroy = fence_destroy,
    .write = move,
    .read = move,
    .copy = move,
    .zero = zero,
    .mark = mark,
    .order = mark,
    .wait = wait_for,
};

static uint32_t probe(const char **why)
{
    *why = "";
    return 1;
}

static ds_rc create(ds_device **out, uint32_t index, const ds_device_opts *o, ds_err *err)
{
    ds_device *d;
    ds_kern k;
    ds_rc rc = ds_kern_init(&k, o ? o->kernels : NULL, err);

    (void)index;
    *out = NULL;
    if (rc != DS_OK)
        return rc;
    d = malloc(sizeof *d);
    if (!d)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    *d = (ds_device){ .fn = &fns, .name = "cpu", .k = k };
    *out = d;
    return DS_OK;
}

const ds_device_kind ds_device_cpu = { "cpu", probe, create };
