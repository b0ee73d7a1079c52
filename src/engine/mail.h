/* The mailbox between clients and the loop: requests and orders in, events and statistics out.
 *
 * It owns the table of accepted requests and everything that clients' threads and the loop share; `mu` guards it
 * all, and no other file takes `mu`. The loop hands over and takes in lists, once a turn: what it got from take() is
 * its own, and nobody sees what it did before publish(). Nothing here waits for a device or plans anything, so that
 * clients are never held up for longer than a list is long.
 *
 *   client   put ──> inbox ────┐                            ┌──> take ──> loop
 *   client   order ─> orders ──┘  (go_on: sleep until one came)   │
 *   client   poll <── ready <────────────────────────────── publish <── loop
 *
 * A request lives from put() until the loop has let go of all its samples and its last event was read, whichever
 * comes later; then the mailbox frees it. Orders for a request whose samples are all gone are dropped, so that what
 * take() gives can't be freed before the next publish().
 *
 * Threads: each function says whose.   Memory: all taken in init(); requests come with theirs. */
#ifndef DS_ENGINE_MAIL_H
#define DS_ENGINE_MAIL_H

#include <pthread.h>

#include "base/err.h"
#include "engine/engine.h"

struct ds_eng_request;
struct ds_eng_sample;
struct ds_engine_export;

/* The mailbox's part of a request. */
typedef struct {
    /* [mu] */
    struct ds_eng_request *next_ready; /* for poll */
    uint32_t n_read_end;
    bool is_ready, all_gone; /* all_gone: the loop has let go of it */
    bool has_order, cancel, exported;
    struct ds_engine_export *export;             /* asked for, and the loop hasn't heard of it */
    uint32_t finish_mask;                        /* samples to end */
    struct ds_eng_request *next_in, *next_order; /* inbox (in publish: gone); orders */
} ds_mail_request;

/* The mailbox's part of a sample. */
typedef struct {
    /* [mu] what poll sees and what it has given out */
    bool start, end, scored, read_start, read_end;
    uint32_t out, read_out, read_prompt;
    uint64_t unread_us; /* when the oldest token was published that wasn't read */
} ds_mail_sample;

typedef struct {
    bool news; /* there is something to read and wasn't before */
    void (*fn)(void *ctx);
    void *ctx;
} ds_mail_waker;

typedef struct {
    /* [const] */
    uint32_t max_requests;
    /* [mu] */
    pthread_mutex_t mu;
    pthread_cond_t work;           /* orders came */
    pthread_cond_t events;         /* ready became non-empty */
    struct ds_eng_request **table; /* [max_requests] */
    uint32_t *generation, *free_index, n_free_index;
    struct ds_eng_request *in_head, *in_tail, *order_head, *ready_head, *ready_tail;
    ds_mail_waker waker;
    bool draining, stop, kicked;
    uint64_t n_added, n_kicks;
    ds_gen_stats stats;
} ds_mail;

ds_rc ds_mail_init(ds_mail *m, uint32_t max_requests, ds_err *err); /* DS_E_NOMEM: as if fini had been called */
void ds_mail_fini(ds_mail *m);                                      /* frees the requests that are left. Zeros are fine */

/* ---- [any thread] ------------------------------------------------------------------------------------------------ */

/* DS_E_AGAIN: no place, or draining; DS_E_DEVICE: the device failed. Asked before the work of making a request; put()
 * asks again. */
ds_rc ds_mail_room(ds_mail *m, ds_err *err);
/* *id is its name from now on, and r the mailbox's. On failure r is the caller's still. */
ds_rc ds_mail_put(ds_mail *m, struct ds_eng_request *r, uint64_t *id, ds_err *err);
void ds_mail_refused(ds_mail *m, ds_rc rc); /* counts a request that add() refused */
/* End the request, or the samples whose bits are set. An id that is gone is ignored. */
void ds_mail_order(ds_mail *m, uint64_t id, bool cancel, uint32_t samples);
void ds_mail_cancel_all(ds_mail *m);
bool ds_mail_drain(ds_mail *m); /* no more requests; true: the loop has let go of all */
/* What an export of this request may take. DS_E_ARG: there is no such request, or it can't be exported. */
typedef struct {
    uint32_t n_prompt, cap_out, cap_blocks;
} ds_mail_export_size;
ds_rc ds_mail_export_ask(ds_mail *m, uint64_t id, ds_mail_export_size *size, ds_err *err);
/* As that; on DS_OK the loop hears of it, and answers once. */
ds_rc ds_mail_export(ds_mail *m, uint64_t id, struct ds_engine_export *x, ds_err *err);
size_t ds_mail_poll(ds_mail *m, ds_event *ev, size_t cap);
bool ds_mail_wait(ds_mail *m, uint32_t timeout_ms); /* true: poll would give something */
void ds_mail_wake_by(ds_mail *m, void (*wake)(void *ctx), void *ctx);
void ds_mail_stats(ds_mail *m, ds_gen_stats *out);
void ds_mail_kick(ds_mail *m, bool counts); /* go_on() returns at once, now or the next time */
void ds_mail_stop(ds_mail *m);              /* go_on() answers false from now on */

/* ---- [loop] ------------------------------------------------------------------------------------------------------ */

typedef struct {
    struct ds_eng_request *came;    /* linked by next_came, in order of arrival */
    uint64_t n_kicks;               /* so far, by ds_mail_kick with `counts` */
    struct ds_eng_request *ordered; /* linked by next_ordered; to_end says which samples */
} ds_mail_orders;

void ds_mail_take(ds_mail *m, ds_mail_orders *out);
/* What these samples have is for poll to see (they are no longer dirty), and the turn's counters and gauges for
 * stats; the counters of `turn` are zero afterwards. now_us: of the engine's clock. Whom to wake now, with
 * ds_mail_wake. O(n). */
ds_mail_waker ds_mail_publish(ds_mail *m, struct ds_eng_sample *const *samples, uint32_t n, ds_gen_stats *turn, uint64_t now_us);
/* Not part of publish, so that no woken client finds the mailbox locked and no scheduling counts as the loop's time. */
void ds_mail_wake(ds_mail *m, ds_mail_waker who);
/* False: stop. The loop sleeps here until there is something to take, or a kick, or for so long. */
#define DS_MAIL_FOREVER UINT32_MAX
bool ds_mail_go_on(ds_mail *m, uint32_t sleep_us);

#endif
