/* The table of device kinds, and what is the same for all of them. */
#include "kern/device.h"

#include <stdlib.h>
#include <string.h>

const ds_device_kind *const ds_device_kinds[] = {
#ifdef DS_CUDA
    &ds_device_cuda,
#endif
    &ds_device_cpu,
    NULL,
};

/* "NAME" or "NAME:INDEX" with NAME as in `kind`. */
static bool names(const char *which, const char *kind, unsigned long *index)
{
    size_t n = strlen(kind);
    char *end;

    *index = 0;
    if (strncmp(which, kind, n) != 0 || (which[n] && which[n] != ':'))
        return false;
    if (!which[n])
        return true;
    if (which[n + 1] < '0' || which[n + 1] > '9')
        return false;
    *index = strtoul(which + n + 1, &end, 10);
    return !*end;
}

ds_rc ds_device_open(ds_device **out, const char *which, const ds_device_opts *o, ds_err *err)
{
    bool any = !which || strcmp(which, "auto") == 0;

    *out = NULL;
    for (size_t i = 0; ds_device_kinds[i]; i++) {
        const ds_device_kind *kind = ds_device_kinds[i];
        const char *why = "";
        unsigned long index = 0;
        uint32_t have;
        if (!any && !names(which, kind->name, &index))
            continue;
        have = kind->probe(&why);
        if (have == 0 && any)
            continue;
        if (have == 0)
            return ds_fail(err, DS_E_ARG, "device '%s': this machine has none: %s", which, why);
        if (index >= have)
            return ds_fail(err, DS_E_ARG, "device '%s': this machine has %u of them, counted from 0", which, have);
        return kind->create(out, (uint32_t)index, o, err);
    }
    return ds_fail(err, DS_E_ARG, "device '%.32s': no such kind in this build", which ? which : "auto");
}

void ds_device_close(ds_device *d)
{
    if (d)
        d->fn->destroy(d);
}

/* ---- allocations that go together -------------------------------------------------------------------------------- */

struct ds_mem_piece {
    void *p;
    ds_mem_kind kind;
};

void *ds_mem_take(ds_mem *m, ds_mem_kind kind, size_t bytes, ds_err *err)
{
    void *p;

    if (m->n == m->cap) {
        size_t cap = m->cap ? 2 * m->cap : 64;
        struct ds_mem_piece *grown = realloc(m->piece, cap * sizeof *grown);
        if (!grown) {
            ds_fail(err, DS_E_NOMEM, "out of memory");
            return NULL;
        }
        m->piece = grown;
        m->cap = cap;
    }
    if (m->d->fn->alloc(m->d, kind, bytes ? bytes : 1, &p, err) != DS_OK)
        return NULL;
    m->piece[m->n++] = (struct ds_mem_piece){ p, kind };
    m->bytes[kind] += bytes;
    return p;
}

void ds_mem_free(ds_mem *m)
{
    while (m->n > 0) {
        m->n--;
        m->d->fn->free(m->d, m->piece[m->n].kind, m->piece[m->n].p);
    }
    free(m->piece);
    *m = (ds_mem){ .d = m->d };
}

/* ---- the ferry --------------------------------------------------------------------------------------------------- */

ds_rc ds_ferry_init(ds_ferry *f, ds_device *d, ds_stream *s, size_t cap, ds_err *err)
{
    void *stage = NULL;
    ds_rc rc;

    *f = (ds_ferry){ .d = d, .cap = cap };
    rc = d->fn->alloc(d, DS_MEM_STAGE, cap, &stage, err);
    f->stage = stage;
    if (rc == DS_OK)
        rc = d->fn->fence_create(d, &f->e, err);
    if (rc == DS_OK && !s)
        rc = d->fn->stream_create(d, &f->own, err);
    f->s = s ? s : f->own;
    if (rc != DS_OK)
        ds_ferry_fini(f);
    return rc;
}

void ds_ferry_fini(ds_ferry *f)
{
    if (f->d) {
        f->d->fn->stream_destroy(f->d, f->own);
        f->d->fn->fence_destroy(f->d, f->e);
        f->d->fn->free(f->d, DS_MEM_STAGE, f->stage);
    }
    *f = (ds_ferry){ 0 };
}

static ds_rc arrive(ds_ferry *f, ds_err *err)
{
    f->d->fn->mark(f->d, f->s, f->e);
    return f->d->fn->wait(f->d, f->e, err);
}

ds_rc ds_ferry_put(ds_ferry *f, void *dst, const void *host, size_t bytes, ds_err *err)
{
    ds_rc rc = DS_OK;

    for (size_t at = 0, n; at < bytes && rc == DS_OK; at += n) {
        n = bytes - at < f->cap ? bytes - at : f->cap;
        memcpy(f->stage, (const char *)host + at, n);
        f->d->fn->write(f->d, f->s, (char *)dst + at, f->stage, n);
        rc = arrive(f, err);
    }
    return rc;
}

ds_rc ds_ferry_get(ds_ferry *f, void *host, const void *src, size_t bytes, ds_err *err)
{
    ds_rc rc = DS_OK;

    for (size_t at = 0, n; at < bytes && rc == DS_OK; at += n) {
        n = bytes - at < f->cap ? bytes - at : f->cap;
        f->d->fn->read(f->d, f->s, f->stage, (const char *)src + at, n);
        rc = arrive(f, err);
        if (rc == DS_OK)
            memcpy((char *)host + at, f->stage, n);
    }
    return rc;
}
