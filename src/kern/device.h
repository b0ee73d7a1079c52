/* A device: memory, an order of work, and the op table that computes on it.
 *
 * Memory is of two kinds. *Device* memory belongs to the ops: the host knows its addresses, adds offsets to them and
 * hands them on, but never reads or writes through them. *Stage* memory is the host's and the device's both: pinned
 * where there is such a thing. Bytes pass between the two with write and read, and ops may read and write stage
 * memory too, which costs them more (small results, tables that change rarely). On the CPU both are plain memory;
 * tests/unit/kern/locked.h is a device that holds the host to these rules.
 *
 * Order: everything is put on a stream and runs in the order in which it was put there. Nothing here waits but
 * `wait`; the hooks for weights and the ferry may too: they are for loading and looking in, not for steps. What an
 * operation reads or writes stays allocated, and stage memory that it reads stays as it is, until a mark behind it
 * has been waited for.
 *
 * Errors: alloc and the create functions say DS_E_NOMEM or DS_E_DEVICE. What fails later (a launch, a kernel, a
 * copy) makes the device dead; the next wait says so with DS_E_DEVICE and the first cause, and so do all that
 * follow.
 *
 * Threads: alloc, free and the create and destroy functions from any thread. A stream, and whatever is put on it,
 * from one thread at a time; `wait` for a fence from any. */
#ifndef DS_KERN_DEVICE_H
#define DS_KERN_DEVICE_H

#include "base/err.h"
#include "kern/kern.h"

typedef struct ds_device ds_device;
typedef struct ds_stream ds_stream; /* an ordered queue of work; ds_exec.stream */
typedef struct ds_fence ds_fence;   /* a place in a stream */
typedef struct ds_graph ds_graph;   /* recorded work */
typedef struct ds_mem ds_mem;

typedef enum { DS_MEM_DEVICE, DS_MEM_STAGE } ds_mem_kind;

/* What a weight is read for. */
typedef enum {
    DS_USE_LINEAR, /* linear and dequant, all of it each time */
    DS_USE_TABLE,  /* embed: some rows */
    DS_USE_FAR,    /* engram_gather: some rows of what may be hundreds of gigabytes. The mapping may have to stay their place */
} ds_mat_use;

typedef struct {
    void (*destroy)(ds_device *d); /* everything taken from it has been given back */

    /* Zeroed, 256-byte aligned, bytes > 0. The zeroing is done when it returns. */
    ds_rc (*alloc)(ds_device *d, ds_mem_kind kind, size_t bytes, void **out, ds_err *err);
    void (*free)(ds_device *d, ds_mem_kind kind, void *p); /* NULL is fine; nothing that uses it is on a stream */

    ds_rc (*stream_create)(ds_device *d, ds_stream **out, ds_err *err);
    void (*stream_destroy)(ds_device *d, ds_stream *s); /* NULL is fine. Waits */
    ds_rc (*fence_create)(ds_device *d, ds_fence **out, ds_err *err);
    void (*fence_destroy)(ds_device *d, ds_fence *e); /* NULL is fine */

    /* On a stream. Ranges don't overlap; no alignment is asked for; 0 bytes are fine. */
    void (*write)(ds_device *d, ds_stream *s, void *dst, const void *stage, size_t bytes);
    void (*read)(ds_device *d, ds_stream *s, void *stage, const void *src, size_t bytes);
    void (*copy)(ds_device *d, ds_stream *s, void *dst, const void *src, size_t bytes); /* device to device */
    void (*zero)(ds_device *d, ds_stream *s, void *dst, size_t bytes);

    void (*mark)(ds_device *d, ds_stream *s, ds_fence *e);  /* e is behind everything on s so far; may be marked again */
    void (*order)(ds_device *d, ds_stream *s, ds_fence *e); /* what comes on s from now on runs after e */
    ds_rc (*wait)(ds_device *d, ds_fence *e, ds_err *err);  /* until all in front of e is done; a fence never marked is done */

    /* Work put on s between begin and end runs only when it is replayed: with the same addresses and arguments, and what stands there then.
     * NULL on a device that can't (`records` false). */
    ds_rc (*record_begin)(ds_device *d, ds_stream *s, ds_err *err);
    ds_rc (*record_end)(ds_device *d, ds_stream *s, ds_graph **out, ds_err *err); /* *out NULL on failure */
    void (*replay)(ds_device *d, ds_stream *s, ds_graph *g);
    void (*graph_destroy)(ds_device *d, ds_graph *g); /* NULL is fine; it isn't running */

    /* Weights, once, while a model is loaded; they may wait. m->data and m->scale come as addresses of the mapped file, and go as addresses
     * that ops can read (or NULL, with `packed` in a form of the device's own). What that takes comes from `mem`. The mapping stays for as
     * long as the model does. place_experts: the matrices of all experts of a layer, so that w1 and w3 can be packed together. NULL: ops
     * read mapped files where they are, and vectors and tables on the heap too. */
    ds_rc (*place)(ds_device *d, ds_mem *mem, ds_mat *m, ds_mat_use use, ds_err *err);
    ds_rc (*place_experts)(ds_device *d, ds_mem *mem, ds_mat *w1, ds_mat *w3, ds_mat *w2, uint32_t n, ds_err *err);

    /* Bytes of device memory that nobody has taken, and all. NULL: device memory is the host's. */
    ds_rc (*room)(ds_device *d, uint64_t *left, uint64_t *all, ds_err *err);
} ds_device_fns;

struct ds_device {
    const ds_device_fns *fn;
    const char *name; /* "cpu", "cuda:0" */
    ds_kern k;        /* the ops; k.name is the variant */
    bool records;     /* record and replay exist */
    bool async;       /* what is put on a stream runs beside the host; else when it is put there */
};

/* ---- which devices there are ---- */

typedef struct {
    const char *kernels; /* of the CPU: as `want` of ds_kern_init; other kinds ignore it */
} ds_device_opts;

typedef struct {
    const char *name;
    /* How many of them this machine has; 0: *why says what is missing, until this thread's next call. Quick, and no error. */
    uint32_t (*probe)(const char **why);
    ds_rc (*create)(ds_device **out, uint32_t index, const ds_device_opts *o, ds_err *err);
} ds_device_kind;

/* NULL-terminated, the preferred ones first; the CPU is the last and always there. A new backend is a line in
 * device.c. */
extern const ds_device_kind *const ds_device_kinds[];
extern const ds_device_kind ds_device_cpu;
extern const ds_device_kind ds_device_cuda; /* in builds with -Dcuda */

/* "cpu", "NAME" or "NAME:INDEX" of a kind, or "auto" (NULL): the first kind that the machine has. DS_E_ARG with what
 * is missing. */
ds_rc ds_device_open(ds_device **out, const char *which, const ds_device_opts *o, ds_err *err);
void ds_device_close(ds_device *d); /* NULL is fine */

/* ---- allocations that go together ---- */

struct ds_mem {
    ds_device *d;
    struct ds_mem_piece *piece;
    size_t n, cap;
    uint64_t bytes[2]; /* by ds_mem_kind */
};

/* Zero is a valid ds_mem but for `d`. NULL: DS_E_NOMEM or DS_E_DEVICE. 0 bytes are taken as 1. */
void *ds_mem_take(ds_mem *m, ds_mem_kind kind, size_t bytes, ds_err *err);
void ds_mem_free(ds_mem *m); /* everything; it is empty then and can be used again */

/* ---- between ordinary host memory and device memory, waiting ---- */

typedef struct {
    ds_device *d;
    ds_stream *s, *own;
    ds_fence *e;
    unsigned char *stage;
    size_t cap; /* bytes of stage: longer transfers go in pieces */
} ds_ferry;

/* On failure it is as after fini. s NULL: a stream of its own; else borrowed, and transfers stand in its order. */
ds_rc ds_ferry_init(ds_ferry *f, ds_device *d, ds_stream *s, size_t cap, ds_err *err);
void ds_ferry_fini(ds_ferry *f); /* a zeroed one is fine */
ds_rc ds_ferry_put(ds_ferry *f, void *dst, const void *host, size_t bytes, ds_err *err);
ds_rc ds_ferry_get(ds_ferry *f, void *host, const void *src, size_t bytes, ds_err *err);

#endif
