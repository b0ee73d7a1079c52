/* Dispatch and combine: rows to the ranks of their experts, and what the experts say back.
 *
 * Every rank calls ds_exchange_run for the same layers in the same order, with its own rows, perhaps none. A row goes
 * once to each rank that has experts of it. What an expert says about a row comes back into the row's place for it, so
 * the caller sums k values in the order in which the router chose the experts: the bits depend neither on the number of
 * ranks nor on who else is there. All is exact f32.
 *
 * A rank computes rows of all ranks together, so weights are read once for everybody's: the rows of others stand behind
 * its own, in rounds of as many as there is room for. The memory that rows are computed in is the caller's (device
 * memory), touched by the caller's own functions only.
 *
 * Threads: one owner.   Memory: taken in create. */
#ifndef DS_PARALLEL_DISPATCH_H
#define DS_PARALLEL_DISPATCH_H

#include <stdbool.h>

#include "parallel/comm.h"

typedef struct ds_exchange ds_exchange;

typedef struct {
    uint32_t max_rows; /* of this rank in a call; the same on all ranks */
    uint32_t max_k, max_d;
} ds_exchange_opts;

/* `comm` is borrowed. DS_E_NOMEM; DS_E_ARG: a row doesn't fit into a message. */
ds_rc ds_exchange_create(ds_exchange **out, ds_comm *comm, const ds_exchange_opts *o, ds_err *err);
void ds_exchange_destroy(ds_exchange *x); /* NULL is fine */
/* Rows of others that there is room for behind the caller's own. */
uint32_t ds_exchange_guests(uint32_t ranks, uint32_t max_rows);

/* Where an expert is: number `slot` of those that `rank` has. */
typedef struct {
    uint32_t rank, slot;
} ds_expert_place;

/* How the caller moves bytes between its memory and the host's; what was moved is there when the function returns.
 * `compute` fills in part of rows first .. first + n - 1 for the experts of this rank, which `local` counts from 0; -1
 * is another rank's. */
typedef struct {
    void (*read)(void *ctx, void *host, const void *from, size_t bytes);
    void (*write)(void *ctx, void *to, const void *host, size_t bytes);
    void (*compute)(void *ctx, uint32_t first, uint32_t n);
} ds_exchange_fns;

/* All arrays but `place` are the caller's memory. Those of all rows have room for the rows of others behind its own. */
typedef struct {
    const ds_exchange_fns *fn;
    void *ctx;
    uint32_t rows, k, d;
    const int32_t *sel;           /* [rows][k] experts */
    float *x;                     /* [all rows][d] */
    float *w;                     /* [all rows][k] */
    int32_t *local;               /* [all rows][k] set here */
    float *part;                  /* [all rows][k][d] result, of the caller's rows */
    const ds_expert_place *place; /* of each expert */
    uint32_t n_experts;
} ds_exchange_call;

/* DS_E_IO: a rank is gone, and its name; part then means nothing. */
ds_rc ds_exchange_run(ds_exchange *x, const ds_exchange_call *c, ds_err *err);

/* Experts dealt out in order, as evenly as whole ones can be: rank r has experts first .. first + n - 1. n may be 0. */
void ds_exchange_deal(uint32_t n_experts, uint32_t ranks, uint32_t rank, uint32_t *first, uint32_t *n);

#endif
