/* The CUDA device (kern/device.h). The runtime is linked in and finds the driver when it is first asked, so a
 * program starts without one.
 *
 * Weights are copied to device memory as the file has them, each 256-byte aligned; those of experts are packed where
 * they can be (packed.cuh). A table that only engram_gather reads is copied to pinned host memory, and kernels read
 * the rows they want through the bus. A failure is kept where it is first seen (`ds_cuda_failed`), and every wait
 * from then on says it. */
#include "experts_packed.cuh"
#include "packed.cuh"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "base/err.h"
}

struct ds_cuda_device {
    ds_device base;
    int index;
    int sms; /* multiprocessors */
    char name[32];
    pthread_mutex_t mu;
    cudaError_t rc; /* [mu] the first failure */
    char what[64];  /* [mu] */
};

struct ds_fence {
    cudaEvent_t e;
};

struct ds_graph {
    cudaGraphExec_t g;
};

static ds_cuda_device *of(ds_device *d)
{
    return (ds_cuda_device *)d;
}

void ds_cuda_failed(ds_cuda_device *d, cudaError_t rc, const char *what)
{
    pthread_mutex_lock(&d->mu);
    if (d->rc == cudaSuccess) {
        d->rc = rc;
        snprintf(d->what, sizeof d->what, "%s", what);
    }
    pthread_mutex_unlock(&d->mu);
}

unsigned ds_cuda_sms(const ds_exec *e)
{
    return (unsigned)((const struct ds_stream *)e->stream)->d->sms;
}

static void check(ds_device *d, cudaError_t rc, const char *what)
{
    if (rc != cudaSuccess)
        ds_cuda_failed(of(d), rc, what);
}

/* Of a call that reports at once. */
static ds_rc said(ds_device *d, cudaError_t rc, const char *what, ds_err *err)
{
    if (rc == cudaSuccess)
        return DS_OK;
    if (rc == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* not a failure of the device */
        return ds_fail(err, DS_E_NOMEM, "%s: out of memory for %s", d->name, what);
    }
    check(d, rc, what);
    return ds_fail(err, DS_E_DEVICE, "%s: %s: %s", d->name, what, cudaGetErrorString(rc));
}

static void enter(ds_device *d)
{
    check(d, cudaSetDevice(of(d)->index), "choosing the device");
}

static void destroy(ds_device *d)
{
    pthread_mutex_destroy(&of(d)->mu);
    free(d);
}

static ds_rc take(ds_device *d, ds_mem_kind kind, size_t bytes, void **out, ds_err *err)
{
    ds_rc rc;

    *out = NULL;
    enter(d);
    if (kind == DS_MEM_STAGE) {
        rc = said(d, cudaHostAlloc(out, bytes, cudaHostAllocDefault), "pinned memory", err);
        if (rc == DS_OK)
            memset(*out, 0, bytes);
        return rc;
    }
    rc = said(d, cudaMalloc(out, bytes), "device memory", err);
    if (rc == DS_OK)
        rc = said(d, cudaMemset(*out, 0, bytes), "zeroing", err);
    if (rc == DS_OK)
        rc = said(d, cudaStreamSynchronize(cudaStreamLegacy), "zeroing", err);
    return rc;
}

static void give(ds_device *d, ds_mem_kind kind, void *p)
{
    enter(d);
    if (p)
        check(d, kind == DS_MEM_STAGE ? cudaFreeHost(p) : cudaFree(p), "giving memory back");
}

static ds_rc stream_create(ds_device *d, ds_stream **out, ds_err *err)
{
    ds_stream *s = (ds_stream *)calloc(1, sizeof *s);
    ds_rc rc;

    *out = NULL;
    if (!s)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    enter(d);
    s->d = of(d);
    rc = said(d, cudaStreamCreateWithFlags(&s->s, cudaStreamNonBlocking), "a stream", err);
    if (rc == DS_OK)
        *out = s;
    else
        free(s);
    return rc;
}

static void stream_destroy(ds_device *d, ds_stream *s)
{
    if (!s)
        return;
    enter(d);
    check(d, cudaStreamSynchronize(s->s), "the end of a stream");
    cudaStreamDestroy(s->s);
    free(s);
}

static ds_rc fence_create(ds_device *d, ds_fence **out, ds_err *err)
{
    ds_fence *e = (ds_fence *)calloc(1, sizeof *e);
    ds_rc rc;

    *out = NULL;
    if (!e)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    enter(d);
    rc = said(d, cudaEventCreateWithFlags(&e->e, cudaEventDisableTiming), "an event", err);
    if (rc == DS_OK)
        *out = e;
    else
        free(e);
    return rc;
}

static void fence_destroy(ds_device *d, ds_fence *e)
{
    if (!e)
        return;
    enter(d);
    cudaEventDestroy(e->e);
    free(e);
}

static void move(ds_device *d, ds_stream *s, void *dst, const void *src, size_t bytes)
{
    enter(d);
    if (bytes)
        check(d, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s->s), "a copy");
}

static void zero(ds_device *d, ds_stream *s, void *dst, size_t bytes)
{
    enter(d);
    if (bytes)
        check(d, cudaMemsetAsync(dst, 0, bytes, s->s), "zeroing");
}

static void mark(ds_device *d, ds_stream *s, ds_fence *e)
{
    enter(d);
    check(d, cudaEventRecord(e->e, s->s), "a mark");
}

static void order(ds_device *d, ds_stream *s, ds_fence *e)
{
    enter(d);
    check(d, cudaStreamWaitEvent(s->s, e->e, 0), "an order");
}

static ds_rc wait_for(ds_device *d, ds_fence *e, ds_err *err)
{
    enter(d);
    check(d, cudaEventSynchronize(e->e), "a kernel or copy");
    ds_rc rc = DS_OK;
    pthread_mutex_lock(&of(d)->mu);
    if (of(d)->rc != cudaSuccess)
        rc = ds_fail(err, DS_E_DEVICE, "%s: %s: %s", d->name, of(d)->what, cudaGetErrorString(of(d)->rc));
    pthread_mutex_unlock(&of(d)->mu);
    return rc;
}

static ds_rc record_begin(ds_device *d, ds_stream *s, ds_err *err)
{
    enter(d);
    return said(d, cudaStreamBeginCapture(s->s, cudaStreamCaptureModeThreadLocal), "recording", err);
}

static ds_rc record_end(ds_device *d, ds_stream *s, ds_graph **out, ds_err *err)
{
    ds_graph *g = (ds_graph *)calloc(1, sizeof *g);
    cudaGraph_t graph = NULL;
    ds_rc rc;

    *out = NULL;
    enter(d);
    rc = said(d, cudaStreamEndCapture(s->s, &graph), "recording", err);
    if (rc == DS_OK && !g)
        rc = ds_fail(err, DS_E_NOMEM, "out of memory");
    if (rc == DS_OK)
        rc = said(d, cudaGraphInstantiate(&g->g, graph, 0), "a recording", err);
    if (graph)
        cudaGraphDestroy(graph);
    if (rc == DS_OK)
        *out = g;
    else
        free(g);
    return rc;
}

static void replay(ds_device *d, ds_stream *s, ds_graph *g)
{
    enter(d);
    check(d, cudaGraphLaunch(g->g, s->s), "a replay");
}

static void graph_destroy(ds_device *d, ds_graph *g)
{
    if (!g)
        return;
    enter(d);
    cudaGraphExecDestroy(g->g);
    free(g);
}

/* ---- weights ---- */

static size_t data_bytes(const ds_mat *m)
{
    size_t n = (size_t)m->out * m->in;
    return m->type == DS_MAT_F32 ? n * 4 : (m->type == DS_MAT_BF16 ? n * 2 : (m->type == DS_MAT_MXFP4 ? n / 2 : n));
}

static size_t scale_bytes(const ds_mat *m)
{
    if (m->type == DS_MAT_F32 || m->type == DS_MAT_BF16)
        return 0;
    return m->type == DS_MAT_FP8_32X32 ? (size_t)((m->out + 31) / 32) * ((m->in + 31) / 32) : (size_t)m->out * (m->in / 32);
}

static ds_rc place(ds_device *d, ds_mem *mem, ds_mat *m, ds_mat_use use, ds_err *err)
{
    ds_mem_kind kind = use == DS_USE_FAR ? DS_MEM_STAGE : DS_MEM_DEVICE;
    const void *from[2] = { m->data, m->scale };
    size_t bytes[2] = { data_bytes(m), scale_bytes(m) };
    void *to[2] = { NULL, NULL };
    ds_rc rc = DS_OK;

    for (int i = 0; i < 2 && rc == DS_OK; i++) {
        if (!bytes[i])
            continue;
        to[i] = ds_mem_take(mem, kind, bytes[i], err);
        if (!to[i])
            return err && err->rc ? err->rc : DS_E_NOMEM;
        enter(d);
        rc = said(d, cudaMemcpy(to[i], from[i], bytes[i], cudaMemcpyDefault), "copying a weight", err);
    }
    m->data = to[0];
    m->scale = (const uint8_t *)to[1];
    return rc;
}

/* Whether a layer's experts can be packed (packed.cuh); looks at every scale. */
static bool packs(const ds_mat *w1, const ds_mat *w3, const ds_mat *w2, uint32_t n)
{
    const ds_mat *m[3] = { w1, w3, w2 };

    for (int i = 0; i < 3; i++)
        for (uint32_t x = 0; x < n; x++) {
            uint8_t most = 0;
            if (m[i][x].type != DS_MAT_MXFP4 || m[i][x].in % PACKED_WIDTH || m[i][x].out % PACKED_WIDTH)
                return false;
            for (size_t s = 0; s < scale_bytes(&m[i][x]); s++)
                most = m[i][x].scale[s] > most ? m[i][x].scale[s] : most;
            if (most > LARGEST_SCALE)
                return false;
        }
    return true;
}

/* One expert's matrices from their files to packed form; `stage` is device memory for their bytes as they are. */
static ds_rc pack(ds_device *d, ds_mem *mem, const ds_mat *const m[3], ds_cuda_expert *to, uint8_t *stage, ds_err *err)
{
    size_t bytes[2] = { packed_bytes(2 * m[0]->out, m[0]->in), packed_bytes(m[2]->out, m[2]->in) };
    uint8_t *packed = (uint8_t *)ds_mem_take(mem, DS_MEM_DEVICE, bytes[0] + bytes[1], err);
    const uint8_t *data[3], *scale[3];
    ds_rc rc = DS_OK;

    if (!packed)
        return err && err->rc ? err->rc : DS_E_NOMEM;
    enter(d);
    for (int i = 0; i < 3 && rc == DS_OK; i++) {
        data[i] = stage;
        scale[i] = stage + data_bytes(m[i]);
        stage += data_bytes(m[i]) + scale_bytes(m[i]);
        rc = said(d, cudaMemcpy((void *)data[i], m[i]->data, data_bytes(m[i]), cudaMemcpyDefault), "copying a weight", err);
        if (rc == DS_OK)
            rc = said(d, cudaMemcpy((void *)scale[i], m[i]->scale, scale_bytes(m[i]), cudaMemcpyDefault), "copying a weight", err);
    }
    if (rc == DS_OK)
        rc = said(d, ds_cuda_pack(packed, packed + bytes[0], data, scale, m[0]->in, (uint32_t)m[0]->out), "packing a weight", err);
    if (rc == DS_OK)
        rc = said(d, cudaStreamSynchronize(cudaStreamLegacy), "packing a weight", err);
    *to = { { packed, packed, packed + bytes[0] }, { NULL, NULL, NULL } };
    return rc;
}

static ds_rc place_experts(ds_device *d, ds_mem *mem, ds_mat *w1, ds_mat *w3, ds_mat *w2, uint32_t n, ds_err *err)
{
    ds_mat *m[3] = { w1, w3, w2 };
    ds_cuda_expert *host, *table;
    bool packed = packs(w1, w3, w2, n);
    void *stage = NULL;
    ds_rc rc = DS_OK;

    if (!n)
        return DS_OK;
    host = (ds_cuda_expert *)calloc(n, sizeof *host);
    table = (ds_cuda_expert *)ds_mem_take(mem, DS_MEM_DEVICE, n * sizeof *table, err);
    if (!host || !table) {
        free(host);
        return host ? (err && err->rc ? err->rc : DS_E_NOMEM) : ds_fail(err, DS_E_NOMEM, "out of memory");
    }
    if (packed)
        rc = take(d, DS_MEM_DEVICE, 3 * (data_bytes(w1) + scale_bytes(w1)), &stage, err);
    for (uint32_t x = 0; x < n && rc == DS_OK; x++) {
        const ds_mat *one[3] = { w1 + x, w3 + x, w2 + x };
        if (packed)
            rc = pack(d, mem, one, host + x, (uint8_t *)stage, err);
        for (int i = 0; i < 3 && rc == DS_OK; i++) {
            if (packed)
                m[i][x].data = m[i][x].scale = NULL;
            else
                rc = place(d, mem, &m[i][x], DS_USE_LINEAR, err);
            m[i][x].packed = table + x;
            if (!packed) {
                host[x].w[i] = (const uint8_t *)m[i][x].data;
                host[x].scale[i] = m[i][x].scale;
            }
        }
    }
    give(d, DS_MEM_DEVICE, stage);
    if (rc == DS_OK)
        rc = said(d, cudaMemcpy(table, host, n * sizeof *host, cudaMemcpyHostToDevice), "copying a table", err);
    free(host);
    return rc;
}

static ds_rc room(ds_device *d, uint64_t *left, uint64_t *all, ds_err *err)
{
    size_t l = 0, a = 0;
    ds_rc rc;

    enter(d);
    rc = said(d, cudaMemGetInfo(&l, &a), "asking for memory", err);
    *left = l;
    *all = a;
    return rc;
}

static const ds_device_fns fns = { destroy,      take,       give,   stream_create, stream_destroy, fence_create, fence_destroy,
                                   move,         move,       move,   zero,          mark,           order,        wait_for,
                                   record_begin, record_end, replay, graph_destroy, place,          place_experts, room };

/* ---- which there are ---- */

enum { CC_MAJOR = 9, CC_MINOR = 0 };

/* What a probe had to say, until this thread's next one. */
static thread_local char reason[192];

static void say_why_no_driver(cudaError_t rc)
{
    int driver = 0;

    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0 && driver < CUDART_VERSION)
        snprintf(reason, sizeof reason, "the NVIDIA driver is too old: it runs CUDA %d.%d, this build needs %d.%d", driver / 1000,
                 driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    else if (driver == 0)
        snprintf(reason, sizeof reason, "no NVIDIA driver (libcuda.so.1)");
    else
        snprintf(reason, sizeof reason, "%s", cudaGetErrorString(rc));
}

static void say_why_no_gpu(int n)
{
    cudaDeviceProp p;

    if (n == 0 || cudaGetDeviceProperties(&p, 0) != cudaSuccess)
        snprintf(reason, sizeof reason, "no GPU");
    else
        snprintf(reason, sizeof reason, "the kernels are for GPUs of compute capability %d.%d (H100, H200); %.64s has %d.%d", CC_MAJOR,
                 CC_MINOR, p.name, p.major, p.minor);
}

/* The devices that the kernels were built for, as the runtime counts them. */
static int usable(int *list, int cap, const char **why)
{
    int n = 0, found = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);

    reason[0] = 0;
    *why = reason;
    if (rc != cudaSuccess) {
        cudaGetLastError();
        say_why_no_driver(rc);
        return 0;
    }
    for (int i = 0; i < n && found < cap; i++) {
        int major = 0, minor = 0;
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i);
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, i);
        if (major == CC_MAJOR && minor == CC_MINOR)
            list[found++] = i;
    }
    if (!found)
        say_why_no_gpu(n);
    return found;
}

enum { MAX_DEVICES = 64 };

static uint32_t probe(const char **why)
{
    int list[MAX_DEVICES];
    return (uint32_t)usable(list, MAX_DEVICES, why);
}

static ds_rc create(ds_device **out, uint32_t index, const ds_device_opts *o, ds_err *err)
{
    int list[MAX_DEVICES];
    const char *why;
    int n = usable(list, MAX_DEVICES, &why);
    ds_cuda_device *d;

    (void)o;
    *out = NULL;
    if ((int)index >= n)
        return ds_fail(err, DS_E_ARG, "device 'cuda:%u': %s", index, n ? "no such device" : why);
    d = (ds_cuda_device *)calloc(1, sizeof *d);
    if (!d)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    pthread_mutex_init(&d->mu, NULL);
    d->index = list[index];
    cudaDeviceGetAttribute(&d->sms, cudaDevAttrMultiProcessorCount, d->index);
    snprintf(d->name, sizeof d->name, "cuda:%u", index);
    d->base.fn = &fns;
    d->base.name = d->name;
    d->base.records = d->base.async = true;
    ds_cuda_use(&d->base.k);
    *out = &d->base;
    return DS_OK;
}

extern "C" const ds_device_kind ds_device_cuda = { "cuda", probe, create };
