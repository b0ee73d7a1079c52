/* The processes of a cluster on one machine: started in the order of their kinds, watched, started again, ended in the
 * other order.
 *
 *   ds_up_open    takes the cluster's directory, so that nobody else runs the same one; are the ports free?
 *   ds_up_run     until it is asked to end by SIGINT, SIGTERM or SIGHUP; a second signal doesn't let running work end
 *   ds_up_close
 *
 * A process has a session of its own, so that a terminal's Ctrl-C reaches `up` alone, and is killed by the kernel when
 * `up` dies in whatever way. What it writes to standard error is its log, DIR/logs/NAME.log; that of the run before
 * stays beside it as NAME.log.old. It is ready when it writes a line `listening on ADDRESS` to standard output.
 *
 * A process that fails before all are ready ends the run. One that dies later is started again after a second, doubled
 * each time up to a minute, and the caller hears of it.
 *
 * Threads: one, which starts the processes and must outlive them. It takes SIGINT, SIGTERM, SIGHUP (unless that was
 * ignored) and SIGCHLD, which stay blocked.   Memory: as the plan, which must outlive it. */
#ifndef DS_ROLE_UP_H
#define DS_ROLE_UP_H

#include <stdbool.h>
#include <sys/types.h>

#include "role/up_file.h"

typedef struct ds_up ds_up;

typedef enum {
    DS_UP_WAITING,  /* for those of the kinds before */
    DS_UP_STARTING, /* not ready yet */
    DS_UP_READY,
    DS_UP_AWAY,   /* it died; is started again, or not */
    DS_UP_ENDING, /* was asked to end */
    DS_UP_ENDED,
} ds_up_state;
const char *ds_up_state_name(ds_up_state s);

typedef struct {
    ds_up_state state;
    pid_t pid;            /* 0: none */
    char address[160];    /* as it says; "": it has said nothing yet */
    char why[160];        /* AWAY: how it ended; of its log the last line, where there is one */
    uint32_t starts;      /* in all */
    uint64_t ready_us;    /* that its last start took */
    uint64_t again_in_us; /* AWAY: until it is started; 0: never */
} ds_up_status;

typedef struct {
    const char *program; /* the executable */
    bool no_restart;
    /* A process's state is another one. */
    void (*changed)(void *ctx, const ds_up *u, uint32_t i);
    /* At least every second until all are ready. */
    void (*waiting)(void *ctx, const ds_up *u);
    /* All are ready for the first time. */
    void (*ready)(void *ctx, const ds_up *u);
    /* A signal came: the end begins, or (`hurry`) nothing is waited for any more. */
    void (*ending)(void *ctx, const ds_up *u, bool hurry);
    void *ctx;
} ds_up_opts;

/* DS_E_AGAIN: another one runs this cluster; DS_E_ARG: a port is taken; DS_E_IO, DS_E_NOMEM. */
ds_rc ds_up_open(ds_up **out, const ds_up_plan *plan, const ds_up_opts *o, ds_err *err);
/* Nothing that it started is there any more when it returns. DS_OK: a signal ended it, and all became ready, or none
 * failed; DS_E_IO says which failed at its start. */
ds_rc ds_up_run(ds_up *u, ds_err *err);
void ds_up_close(ds_up *u); /* NULL is fine */

const ds_up_plan *ds_up_plan_of(const ds_up *u);
ds_up_status ds_up_status_of(const ds_up *u, uint32_t i);
const char *ds_up_log_of(const ds_up *u, uint32_t i); /* path; until close */

#endif
