/* Ranks on one host: a communicator over a piece of shared memory.
 *
 * Every pair of ranks has a ring of messages in each direction (ring_internal.h), every rank a place for its words and
 * a bell that wakes it. Each rank has a thread that shows its sign of life and looks for that of the others: a process
 * that has ended is found at once, one that is stopped after silence_ms. The memory has no name: it is gone with
 * the last descriptor and mapping, however the processes end. */
#ifndef DS_PARALLEL_SHM_H
#define DS_PARALLEL_SHM_H

#include <sys/types.h>

#include "parallel/comm.h"

typedef struct {
    uint32_t ranks;         /* 1 .. DS_COMM_MAX_RANKS */
    uint32_t message_bytes; /* 0 = what ds_comm_shm_message_bytes says; rounded up to 64 */
    uint32_t slots;         /* messages of a ring, a power of two; 0 = 16, and 4 where there are more than 16 ranks */
    uint32_t start_ms;      /* until all ranks have said their first word; 0 = 10 minutes: models are opened meanwhile */
    uint32_t patience_ms;   /* that a rank which shows signs of life may keep another waiting; 0 = 2 minutes */
    uint32_t silence_ms;    /* without a sign of life; 0 = 1500 */
} ds_comm_shm_opts;

/* What a message has by default: a quarter of a MiB, less where there are many ranks, so that the rings of all pairs
 * together take about 64 MiB; but at least 32 KiB. */
uint32_t ds_comm_shm_message_bytes(uint32_t ranks);
/* What all ranks together share, bytes. */
uint64_t ds_comm_shm_bytes(const ds_comm_shm_opts *o);

/* Makes the memory: *fd, which the caller closes when all ranks have it; it doesn't survive exec unless told to.
 * DS_E_ARG, DS_E_IO, DS_E_NOMEM. */
ds_rc ds_comm_shm_create(int *fd, const ds_comm_shm_opts *o, ds_err *err);
/* Becomes a rank. The descriptor stays the caller's. DS_E_FORMAT: that is no such memory; DS_E_ARG: no such rank, or
 * it is taken. */
ds_rc ds_comm_shm_join(ds_comm **out, int fd, uint32_t rank, ds_err *err);
/* The process that is to become a rank: if it ends before, it breaks the communicator too. Before the first word. */
void ds_comm_shm_expect(ds_comm *c, uint32_t rank, pid_t process);

#endif
