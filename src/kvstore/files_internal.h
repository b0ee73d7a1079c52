/* The files of a volume's devices: a table of functions for each kind of place that can hold them.
 *
 * A device has a store file, which says what it is, and segments: files that one writer fills from the beginning to
 * the end and many read. Until a device is attached it is known by its place's position in the list that was opened.
 *
 * A handle is a number from 0 on that its table gave, -1 none; one to read by and one to write by are different things.
 * Threads: what is marked [writer] from one thread; a queue from one thread, each its own; the rest from any. */
#ifndef DS_KVSTORE_FILES_INTERNAL_H
#define DS_KVSTORE_FILES_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ds/err.h>

typedef struct ds_files ds_files;
/* Reads under way of one reader, at most one for each device. */
typedef struct ds_files_queue ds_files_queue;

typedef struct {
    /* NULL is not fine. */
    void (*close)(ds_files *f);
    /* How many operations weren't answered in time: what was asked for meanwhile is unknown, not lost. */
    uint64_t (*mute)(ds_files *f);
    /* The store file of a place: a string for the caller to free, or NULL where there is none. DS_E_IO, DS_E_NOMEM. */
    ds_rc (*read_store)(ds_files *f, uint32_t place, char **text, ds_err *err);
    /* It is there and has nothing in it: a new disk in place of one that is gone. NULL: there is no telling. */
    bool (*is_empty)(ds_files *f, uint32_t place);
    /* Makes a place a device, writing `text` as its store file (NULL: it has one), and locks it; what was written goes
     * again where that fails. DS_E_IO. DS_E_AGAIN: another process has it. [writer] */
    ds_rc (*attach)(ds_files *f, uint32_t place, uint32_t device, const char *text, ds_err *err);
    /* Removes the store file of a device that was just made one. [writer] */
    void (*detach)(ds_files *f, uint32_t device);
    /* Calls `each` for every segment that an attached device has a file of; it returns false for want of memory. */
    ds_rc (*list)(ds_files *f, uint32_t device, bool (*each)(void *ctx, uint64_t segment), void *ctx, ds_err *err);

    /* ---- writing; all [writer] ---- */
    int (*create)(ds_files *f, uint32_t device, uint64_t segment); /* -1: it can't, or there is one */
    int (*open_write)(ds_files *f, uint32_t device, uint64_t segment);
    void (*unmake)(ds_files *f, uint32_t device, int h, uint64_t segment); /* removes what create made under this handle, nothing else */
    /* Writes at what was the file's end. False: it failed. What it was told may still fail by sync. */
    bool (*write)(ds_files *f, uint32_t device, int h, const uint8_t *bytes, size_t n, uint64_t at);
    bool (*named)(ds_files *f, uint32_t device, int h);              /* a file that was created stays one, and has what was written */
    bool (*cut)(ds_files *f, uint32_t device, int h, uint64_t size); /* nothing is left behind that size */
    /* Waits until what was written is durable, side by side: h[device] for n devices, -1: not this one. The devices,
     * by bit, on which it isn't. */
    uint32_t (*sync)(ds_files *f, const int *h, uint32_t n);
    void (*close_write)(ds_files *f, uint32_t device, int h);
    void (*remove)(ds_files *f, uint32_t device, uint64_t segment); /* those who have it open may go on reading */

    /* ---- reading ---- */
    int (*open_read)(ds_files *f, uint32_t device, uint64_t segment); /* -1: there is none, as far as that is known */
    void (*close_read)(ds_files *f, uint32_t device, int h);
    bool (*size)(ds_files *f, uint32_t device, int h, uint64_t segment, uint64_t *bytes);
    /* All n bytes, or false. n and at are multiples of DS_SEG_ALIGN and dst is aligned so, here and in ask. */
    bool (*read)(ds_files *f, uint32_t device, int h, uint64_t segment, uint8_t *dst, size_t n, uint64_t at);
    ds_rc (*queue_create)(ds_files_queue **out, ds_files *f, ds_err *err);
    void (*queue_destroy)(ds_files_queue *q); /* nothing may be under way */
    /* Begins to read; dst is the queue's until the answer is there. `ahead` more bytes behind are what it is asked for
     * next. */
    void (*ask)(ds_files_queue *q, uint32_t device, int h, uint64_t segment, uint8_t *dst, size_t n, uint64_t at, size_t ahead);
    /* Takes one answer: the device that gave it and how many bytes came or a negative errno (-ENOENT: the file went).
     * -1: none came until then. */
    int (*answer)(ds_files_queue *q, uint64_t until_ns, int *res);
    /* Nobody needs a device's answer any more: it comes soon, if that can be had. */
    void (*hurry)(ds_files_queue *q, uint32_t device);
} ds_files_ops;

struct ds_files {
    const ds_files_ops *ops;
    uint32_t align;   /* where writes may begin: a multiple of DS_SEG_ALIGN */
    size_t run_bytes; /* what one read had better bring, where that is more than a block; else 0 */
    bool direct;      /* reads go around the page cache of this machine */
};

/* dirs.c: local directories, a device each. Nothing is looked at yet. DS_E_NOMEM, DS_E_IO: no io_uring. */
ds_rc ds_files_dirs(ds_files **out, const char *const *dirs, uint32_t n, ds_err *err);

/* rados.c: a pool, which is one device (kvstore/place.h). Connects to the cluster. api: NULL: librados. DS_E_ARG:
 * the place; this program or machine has no librados. DS_E_IO: no cluster, no pool. */
struct ds_rados_api;
ds_rc ds_files_rados(ds_files **out, const char *place, const struct ds_rados_api *api, ds_err *err);

#endif
