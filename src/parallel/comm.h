/* A communicator: N ranks, each a process, that compute one thing together.
 *
 * Two ways to talk. *Agreement*: every rank says one word, and all ranks have all words, in rounds that each rank
 * counts for itself. *Messages*: from one rank to another, in order, filled in and read where they lie. Nobody
 * decides anything from a time that it measured, so what ranks agree on is the same on all of them.
 *
 * Failure is whole. A rank that dies, that is stopped or hangs, or that says itself that it can't go on breaks the
 * communicator: from then on every call of every rank fails with DS_E_IO and the name of that rank, and who waits
 * is woken. Nothing is repaired: the processes end and may start again with as many ranks as there are.
 *
 * Here is the table that a transport fills in; shm.h is the one of a host. Threads: one owner a communicator, but
 * `wake`, `give_up` and `state`, which any thread may call.   Memory: all taken when it is made. */
#ifndef DS_PARALLEL_COMM_H
#define DS_PARALLEL_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { DS_COMM_MAX_RANKS = 128, DS_COMM_WORD = 56 };

typedef struct ds_comm ds_comm;

/* What somebody waits for: -1, nothing is missing any more; else the rank that it would have to come from. Called
 * again and again, so it is quick and does nothing but look (room and came are fine). */
typedef int ds_comm_missing_fn(void *ctx);

typedef struct {
    /* Messages to `to`, which isn't this rank: where the next one goes, message_bytes long and 64-byte aligned; NULL:
     * the other side hasn't made room yet. It is on its way with post, of as many bytes. */
    void *(*room)(ds_comm *c, uint32_t to);
    void (*post)(ds_comm *c, uint32_t to, uint32_t bytes);
    /* The oldest message from `from` that isn't done with; NULL: none. It lies still until `done`. */
    const void *(*came)(ds_comm *c, uint32_t from, uint32_t *bytes);
    void (*done)(ds_comm *c, uint32_t from);
    /* Until nothing is missing. */
    ds_rc (*wait)(ds_comm *c, ds_comm_missing_fn *missing, void *ctx, ds_err *err);

    /* Says a word of DS_COMM_WORD bytes; all: [ranks] of them, when every rank has said its own. */
    ds_rc (*agree)(ds_comm *c, const void *word, void *all, ds_err *err);
    /* Waits, for any time, until another rank has begun an agreement (DS_OK: it waits for this one's word), until
     * somebody woke this rank since the last call (DS_E_AGAIN), or until all ranks have left (DS_E_CANCELED). */
    ds_rc (*attend)(ds_comm *c, ds_err *err);
    void (*wake)(ds_comm *c);
    /* This rank begins no agreement any more; it still attends to those of others. Its end is no failure when all
     * ranks have left. */
    void (*leave)(ds_comm *c);
    /* This rank can't go on, and `why`. */
    void (*give_up)(ds_comm *c, const char *why);
    /* DS_OK, or what everybody is told; and a function that is called then, once, on a thread of the communicator's.
     * Any thread; it is set once. */
    ds_rc (*state)(ds_comm *c, ds_err *err);
    void (*when_broken)(ds_comm *c, void (*fn)(void *ctx), void *ctx);
    void (*destroy)(ds_comm *c);
} ds_comm_fns;

struct ds_comm {
    const ds_comm_fns *fn;
    uint32_t ranks, rank;
    uint32_t message_bytes; /* of a message at most; a multiple of 64 */
};

#endif
