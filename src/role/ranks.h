/* Many ranks of one model on this host: this process is rank 0 and has the engine, the others are processes that hold
 * their part of the experts and compute for it.
 *
 * The others are this program, run with the words `rank --model DIR …` (a command of the program's own); ds_rank_serve
 * is their whole life. A rank that ends, stops or hangs ends them all: calls fail with its name, and the
 * processes that are left end by themselves. Rank 0's death ends the others too.
 *
 * Threads: one owner; ds_ranks_state from any. */
#ifndef DS_ROLE_RANKS_H
#define DS_ROLE_RANKS_H

#include "model/model.h"
#include "parallel/comm.h"
#include "role/parts.h"

typedef struct ds_ranks ds_ranks;

typedef struct {
    uint32_t n;          /* ranks in all, 2 .. DS_COMM_MAX_RANKS */
    const char *program; /* path of this program */
    const char *dir;     /* of the model */
    ds_llm_place place;  /* of this rank; the others get as many threads */
    bool bf16;
    void (*lost)(void *ctx); /* once, on a thread of its own, when a rank is gone; NULL: nobody asks */
    void *ctx;
} ds_ranks_opts;

/* The shared memory, the other processes, and this one as rank 0. They open the model while this one does. On failure
 * *out is NULL and no process is left. DS_E_ARG, DS_E_IO, DS_E_NOMEM. */
ds_rc ds_ranks_start(ds_ranks **out, const ds_ranks_opts *o, ds_err *err);
/* All ranks have opened the same model, with the same arithmetic, and take steps of max_rows rows. Before an engine is
 * made on the communicator. DS_E_IO: a rank isn't as this one, or didn't come up, and its name and reason. */
ds_rc ds_ranks_meet(ds_ranks *r, const ds_model *m, const char *dir, uint32_t max_rows, ds_err *err);
/* What the other ranks take besides their weights, and all share. False: sizes overflow. */
bool ds_ranks_bytes(const ds_model *m, uint32_t n, bool bf16, uint32_t max_rows, uint64_t *bytes);
struct ds_comm *ds_ranks_comm(const ds_ranks *r);
ds_rc ds_ranks_state(const ds_ranks *r, ds_err *err); /* DS_OK, or who is gone */
/* Ends the others, in peace where there is peace, and waits for their processes. The engine is gone. NULL is fine. */
void ds_ranks_stop(ds_ranks *r);

/* ---- the other side ---- */

typedef struct {
    int fd; /* of the shared memory */
    uint32_t rank;
    const char *dir;
    ds_llm_place place;
    bool bf16;
} ds_rank_opts;

/* Becomes a rank and computes for the others until all have left. What went wrong is known to rank 0, which says it;
 * *told: false where it couldn't be told. */
ds_rc ds_rank_serve(const ds_rank_opts *o, bool *told, ds_err *err);

#endif
