#include "kern/locked.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Addresses are never used twice, so that a pointer to what was freed faults too. */
enum { PAGE = 4096 };
#define REGION_BYTES ((size_t)1 << 38)

/* One copy on a stream whose mark hasn't been waited for. */
typedef struct pending {
    struct pending *next;
    uint64_t no;
    void *stage;
    bool read; /* deliver `bytes` to stage; else stage must still hold them */
    size_t n;
    unsigned char bytes[];
} pending;

struct ds_stream {
    uint64_t no;
    pending *first, **last;
};

struct ds_fence {
    ds_stream *s;
    uint64_t no;
};

typedef struct {
    ds_device base;
    ds_device *cpu;
    ds_kern k;            /* its ops */
    unsigned char *known; /* addresses that the host knows: never mapped */
    unsigned char *real;  /* where the bytes are */
    atomic_bool broken;
    /* [mu] */
    pthread_mutex_t mu;
    size_t used, pieces;
} locked;

/* Of the one device that exists: the table's functions get no device. */
static locked *the;

static void die(const char *what)
{
    fprintf(stderr, "locked device: %s\n", what);
    abort();
}

/* What a device that works doesn't need: not counted when a test makes allocations fail (fault.h). */
static void *unfailing(size_t bytes)
{
    void *p = memalign(16, bytes);

    if (!p)
        die("out of memory");
    return p;
}

static bool ours(const void *p)
{
    return (const unsigned char *)p >= the->known && (const unsigned char *)p < the->known + REGION_BYTES;
}

static void *real(const void *p)
{
    return ours(p) ? the->real + ((const unsigned char *)p - the->known) : (void *)p;
}

/* ---- ops --------------------------------------------------------------------------------------------------------- */

/* Addresses inside an argument struct, wherever they stand: nothing else in one has such values. */
static void translate(void *args, size_t bytes)
{
    for (size_t at = 0; at + sizeof(void *) <= bytes; at += sizeof(void *)) {
        void *p;
        memcpy(&p, (char *)args + at, sizeof p);
        p = real(p);
        memcpy((char *)args + at, &p, sizeof p);
    }
}

/* What arguments point to on the host's side. */
static ds_step step_of(const ds_step **st)
{
    ds_step copy = **st;

    translate(&copy, sizeof copy);
    return copy;
}

static ds_mat *mats_of(const ds_mat *m, size_t n)
{
    ds_mat *copy = unfailing(n * sizeof *copy);

    memcpy(copy, m, n * sizeof *copy);
    translate(copy, n * sizeof *copy);
    return copy;
}

#define NOTHING(a)
#define STEP(a)                      \
    ds_step step = step_of(&a.step); \
    a.step = &step;
#define MAT(a) a.w = mats[0] = mats_of(a.w, 1);
#define TABLE(a) a.table = mats[0] = mats_of(a.table, 1);
#define EXPERTS(a)                       \
    a.w1 = mats[0] = mats_of(a.w1, a.n); \
    a.w3 = mats[1] = mats_of(a.w3, a.n); \
    a.w2 = mats[2] = mats_of(a.w2, a.n);

#define OPS(X)                                     \
    X(rows, ds_op_rows, NOTHING)                   \
    X(scatter, ds_op_scatter, NOTHING)             \
    X(finite, ds_op_finite, NOTHING)               \
    X(linear, ds_op_linear, MAT)                   \
    X(dequant, ds_op_dequant, MAT)                 \
    X(rmsnorm, ds_op_rmsnorm, NOTHING)             \
    X(rope, ds_op_rope, NOTHING)                   \
    X(add, ds_op_add, NOTHING)                     \
    X(swiglu, ds_op_swiglu, NOTHING)               \
    X(gelu, ds_op_gelu, NOTHING)                   \
    X(argmax, ds_op_argmax, NOTHING)               \
    X(copy, ds_op_copy, NOTHING)                   \
    X(embed, ds_op_embed, TABLE)                   \
    X(mhc, ds_op_mhc, NOTHING)                     \
    X(stream_mean, ds_op_stream_mean, NOTHING)     \
    X(ring_store, ds_op_ring_store, STEP)          \
    X(ring_load, ds_op_ring_load, STEP)            \
    X(win_quant, ds_op_win_quant, NOTHING)         \
    X(idx_quant, ds_op_idx_quant, NOTHING)         \
    X(pool_pairs, ds_op_pool_pairs, STEP)          \
    X(kv_store, ds_op_kv_store, STEP)              \
    X(idx_store, ds_op_kv_store, STEP)             \
    X(index_topk, ds_op_index_topk, STEP)          \
    X(attention, ds_op_attention, STEP)            \
    X(route, ds_op_route, NOTHING)                 \
    X(experts_part, ds_op_experts_part, EXPERTS)   \
    X(experts_sum, ds_op_experts_sum, NOTHING)     \
    X(engram_hash, ds_op_engram_hash, STEP)        \
    X(engram_gather, ds_op_engram_gather, TABLE)   \
    X(engram_fuse, ds_op_engram_fuse, NOTHING)     \
    X(rope2d, ds_op_rope2d, NOTHING)               \
    X(vit_attention, ds_op_vit_attention, NOTHING) \
    X(cells, ds_op_cells, NOTHING)                 \
    X(sample, ds_op_sample, NOTHING)               \
    X(accept, ds_op_accept, NOTHING)

#define RUN(name, args, inner)                            \
    static void run_##name(ds_exec *e, const args *known) \
    {                                                     \
        ds_exec x = *e;                                   \
        ds_arena scratch = *e->scratch;                   \
        args a = *known;                                  \
        ds_mat *mats[3] = { NULL };                       \
        translate(&a, sizeof a);                          \
        inner(a);                                         \
        scratch.base = real(scratch.base);                \
        x.scratch = &scratch;                             \
        x.fault = real(x.fault);                          \
        the->k.name(&x, &a);                              \
        e->scratch->peak = scratch.peak;                  \
        for (int i = 0; i < 3; i++)                       \
            free(mats[i]);                                \
    }
OPS(RUN)

#define SET(name, args, inner) k->name = run_##name;
static void wrap(ds_kern *k)
{
    OPS(SET)
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static ds_rc take(ds_device *d, ds_mem_kind kind, size_t bytes, void **out, ds_err *err)
{
    size_t all = (bytes + 2 * PAGE - 1) & ~(size_t)(PAGE - 1); /* a page at least behind each piece */
    void *probe;
    ds_rc rc;

    (void)d;
    if (kind == DS_MEM_STAGE)
        return the->cpu->fn->alloc(the->cpu, kind, bytes, out, err);
    *out = NULL;
    rc = the->cpu->fn->alloc(the->cpu, kind, 1, &probe, err); /* fails when a test makes allocations fail */
    if (rc != DS_OK)
        return rc;
    the->cpu->fn->free(the->cpu, kind, probe);
    pthread_mutex_lock(&the->mu);
    if (all > REGION_BYTES - the->used) {
        pthread_mutex_unlock(&the->mu);
        return ds_fail(err, DS_E_NOMEM, "out of device memory for %zu bytes", bytes);
    }
    *out = the->known + the->used;
    the->used += all;
    the->pieces++;
    pthread_mutex_unlock(&the->mu);
    return DS_OK;
}

static void give(ds_device *d, ds_mem_kind kind, void *p)
{
    (void)d;
    if (kind == DS_MEM_STAGE) {
        the->cpu->fn->free(the->cpu, kind, p);
        return;
    }
    if (!p)
        return;
    if (!ours(p))
        die("free of what isn't device memory");
    pthread_mutex_lock(&the->mu);
    if (--the->pieces == 0 && madvise(the->real, the->used, MADV_DONTNEED) != 0)
        die("madvise failed");
    pthread_mutex_unlock(&the->mu);
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

static ds_rc stream_create(ds_device *d, ds_stream **out, ds_err *err)
{
    (void)d;
    *out = calloc(1, sizeof **out);
    if (!*out)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    (*out)->last = &(*out)->first;
    return DS_OK;
}

/* Brings what was read, and looks after what was written, up to number `no`. */
static void settle(ds_stream *s, uint64_t no)
{
    while (s->first && s->first->no <= no) {
        pending *p = s->first;
        if (p->read)
            memcpy(p->stage, p->bytes, p->n);
        else if (memcmp(p->stage, p->bytes, p->n) != 0)
            die("stage memory was changed before the write from it was waited for");
        s->first = p->next;
        if (!s->first)
            s->last = &s->first;
        free(p);
    }
}

static void stream_destroy(ds_device *d, ds_stream *s)
{
    (void)d;
    if (s)
        settle(s, UINT64_MAX);
    free(s);
}

static ds_rc fence_create(ds_device *d, ds_fence **out, ds_err *err)
{
    (void)d;
    *out = calloc(1, sizeof **out);
    return *out ? DS_OK : ds_fail(err, DS_E_NOMEM, "out of memory");
}

static void fence_destroy(ds_device *d, ds_fence *e)
{
    (void)d;
    free(e);
}

static void put_on(ds_stream *s, void *stage, const void *bytes, size_t n, bool read)
{
    pending *p = unfailing(sizeof *p + n);

    *p = (pending){ .no = ++s->no, .stage = stage, .read = read, .n = n };
    memcpy(p->bytes, bytes, n);
    *s->last = p;
    s->last = &p->next;
}

static void copy_write(ds_device *d, ds_stream *s, void *dst, const void *stage, size_t n)
{
    (void)d;
    if (n == 0)
        return;
    if (!ours(dst) || ours(stage))
        die("write goes from stage to device memory");
    put_on(s, (void *)stage, stage, n, false);
    memcpy(real(dst), stage, n);
}

static void copy_read(ds_device *d, ds_stream *s, void *stage, const void *src, size_t n)
{
    (void)d;
    if (n == 0)
        return;
    if (ours(stage) || !ours(src))
        die("read goes from device to stage memory");
    put_on(s, stage, real(src), n, true);
    memset(stage, 0xee, n);
}

static void copy_inside(ds_device *d, ds_stream *s, void *dst, const void *src, size_t n)
{
    (void)d;
    (void)s;
    if (n && (!ours(dst) || !ours(src)))
        die("copy goes from device to device memory");
    memcpy(real(dst), real(src), n);
}

static void zero(ds_device *d, ds_stream *s, void *dst, size_t n)
{
    (void)d;
    (void)s;
    memset(real(dst), 0, n);
}

static void mark(ds_device *d, ds_stream *s, ds_fence *e)
{
    (void)d;
    *e = (ds_fence){ s, s->no };
}

static void order(ds_device *d, ds_stream *s, ds_fence *e)
{
    (void)d;
    (void)s;
    (void)e;
}

static ds_rc wait_for(ds_device *d, ds_fence *e, ds_err *err)
{
    (void)d;
    if (e->s)
        settle(e->s, e->no);
    return atomic_load(&the->broken) ? ds_fail(err, DS_E_DEVICE, "locked: a kernel: broken by a test") : DS_OK;
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

static ds_rc bring(ds_mem *mem, const void **at, size_t n, ds_err *err)
{
    void *p;

    if (!*at)
        return DS_OK;
    p = ds_mem_take(mem, DS_MEM_DEVICE, n, err);
    if (!p)
        return err ? err->rc : DS_E_NOMEM;
    memcpy(real(p), *at, n);
    *at = p;
    return DS_OK;
}

static size_t div_up(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

static ds_rc place(ds_device *d, ds_mem *mem, ds_mat *m, ds_mat_use use, ds_err *err)
{
    size_t out = (size_t)m->out, in = m->in, data = 0, scale = 0;
    const void *s = m->scale;
    ds_rc rc;

    (void)d;
    (void)use;
    switch (m->type) {
    case DS_MAT_F32:
        data = out * in * 4;
        break;
    case DS_MAT_BF16:
        data = out * in * 2;
        break;
    case DS_MAT_FP8_32X32:
        data = out * in;
        scale = div_up(out, 32) * (in / 32);
        break;
    case DS_MAT_FP8_ROWS:
        data = out * in;
        scale = out * (in / 32);
        break;
    case DS_MAT_MXFP4:
        data = out * in / 2;
        scale = out * (in / 32);
        break;
    }
    rc = bring(mem, &m->data, data, err);
    if (rc == DS_OK)
        rc = bring(mem, &s, scale, err);
    m->scale = s;
    return rc;
}

static ds_rc place_experts(ds_device *d, ds_mem *mem, ds_mat *w1, ds_mat *w3, ds_mat *w2, uint32_t n, ds_err *err)
{
    ds_rc rc = DS_OK;

    for (uint32_t i = 0; i < n && rc == DS_OK; i++) {
        rc = place(d, mem, &w1[i], DS_USE_LINEAR, err);
        if (rc == DS_OK)
            rc = place(d, mem, &w3[i], DS_USE_LINEAR, err);
        if (rc == DS_OK)
            rc = place(d, mem, &w2[i], DS_USE_LINEAR, err);
    }
    return rc;
}

/* ---- the device -------------------------------------------------------------------------------------------------- */

static void destroy(ds_device *d)
{
    if (&the->base != d || the->pieces)
        die("closed before everything was freed");
    munmap(the->known, REGION_BYTES);
    munmap(the->real, REGION_BYTES);
    pthread_mutex_destroy(&the->mu);
    ds_device_close(the->cpu);
    free(the);
    the = NULL;
}

void locked_break(bool broken)
{
    atomic_store(&the->broken, broken);
}

ds_rc locked_create(ds_device **out, const char *kernels, ds_err *err)
{
    static const ds_device_fns fns = {
        .destroy = destroy,
        .alloc = take,
        .free = give,
        .stream_create = stream_create,
        .stream_destroy = stream_destroy,
        .fence_create = fence_create,
        .fence_destroy = fence_destroy,
        .write = copy_write,
        .read = copy_read,
        .copy = copy_inside,
        .zero = zero,
        .mark = mark,
        .order = order,
        .wait = wait_for,
        .place = place,
        .place_experts = place_experts,
    };
    ds_device *cpu;
    ds_rc rc = ds_device_open(&cpu, "cpu", &(ds_device_opts){ kernels }, err);
    locked *l;

    *out = NULL;
    if (rc != DS_OK)
        return rc;
    l = the ? NULL : calloc(1, sizeof *l);
    if (!l)
        die("only one at a time");
    l->cpu = cpu;
    l->k = cpu->k;
    l->base = (ds_device){ .fn = &fns, .name = "locked", .k = cpu->k, .async = true };
    l->known = mmap(NULL, REGION_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    l->real = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (l->known == MAP_FAILED || l->real == MAP_FAILED)
        die("no address space");
    pthread_mutex_init(&l->mu, NULL);
    the = l;
    wrap(&l->base.k);
    *out = &l->base;
    return DS_OK;
}
