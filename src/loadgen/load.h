/* An open-loop load generator for servers with an OpenAI-style API, on one thread.
 *
 * Requests leave at the times of a plan whatever the server does: a slow server gets more of them at once, not
 * fewer. Every latency counts from the time at which a request was due, so what a request waits for, in the server
 * or before it, is in the numbers; how late the generator itself sent is reported beside them (`lag`) and should be
 * small. Conversations of several turns send the next turn a thinking time after the answer is complete; that turn
 * is due then.
 *
 * A request that can't be sent because `max_live` are under way fails as DS_LOAD_LIMIT at once: it is counted, never
 * delayed. Threads: run occupies its caller; progress and stop are called from it.   Memory: a fixed table of
 * max_live connections, a prompt for each request being sent, conversations. */
#ifndef DS_LOADGEN_LOAD_H
#define DS_LOADGEN_LOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "loadgen/plan.h"
#include "loadgen/times.h"

typedef enum {
    DS_LOAD_CONNECT, /* no connection */
    DS_LOAD_CLOSED,  /* the connection broke before the answer was complete */
    DS_LOAD_TIMEOUT,
    DS_LOAD_HTTP_429,
    DS_LOAD_HTTP_503, /* and 529 */
    DS_LOAD_HTTP_4XX,
    DS_LOAD_HTTP_5XX,
    DS_LOAD_PROTOCOL,   /* no HTTP/1.1, or another status than 200 of those above */
    DS_LOAD_STREAM,     /* an error event in the stream */
    DS_LOAD_TRUNCATED,  /* a stream that ended without its end */
    DS_LOAD_LIMIT,      /* too many under way */
    DS_LOAD_UNFINISHED, /* under way when the test was stopped */
    DS_LOAD_N_ERRORS,
} ds_loadgen_error;

extern const char *const ds_loadgen_error_names[DS_LOAD_N_ERRORS];

typedef struct {
    uint64_t scheduled, sent, completed, errors[DS_LOAD_N_ERRORS]; /* scheduled = completed + errors once it is over; all but warm-up */
    uint64_t warmup;                                               /* requests that are not counted anywhere else */
    uint64_t first_error_status;                                   /* HTTP status of the first refusal; 0 = none */
    uint64_t live, max_live;                                       /* under way: now, and most at once */
    uint64_t prompt_tokens, cached_tokens, completion_tokens;      /* as the server counted them, of completed requests */
    uint64_t without_usage; /* completed requests whose tokens are not known; their events are counted as tokens */
    uint64_t good;          /* completed within both wanted times */
    uint64_t bytes_in, connections;
    uint64_t elapsed_ns; /* from the end of the warm-up to the last answer */
    /* from the time a request was due; `gap`: between events of a stream; `pace`: mean time per token after the first, one value a request */
    ds_times first_token, gap, pace, total, lag;
} ds_loadgen_report;

typedef struct {
    const char *host, *port; /* name or address; number */
    const char *path;        /* before /v1/…; "" */
    const char *model;
    const char *key;   /* NULL: none */
    const char *extra; /* members of a JSON object, without its braces, put into each body; NULL: none */
    bool completions;  /* /v1/completions instead of /v1/chat/completions */
    bool no_stream, no_keepalive;
    /* 0: requests come as the plan says. N: a closed loop of so many users, each of whom asks again a thinking time after an end, until closed_ns (0: until the plan's end);
     * for the greatest throughput: its latencies are those of a load that adapts to the server. */
    uint32_t closed;
    uint64_t closed_ns;
    uint32_t turns;                                                           /* of a conversation; 0 = 1. Chat only */
    uint64_t think_ns;                                                        /* mean time between an answer's end and the next turn */
    uint32_t max_live;                                                        /* 1..1,000,000 */
    uint64_t timeout_ns;                                                      /* from the time due */
    uint64_t warmup_ns;                                                       /* requests due before are sent and not counted */
    uint64_t want_first_ns, want_pace_ns;                                     /* for `good`; 0 = any */
    void (*progress)(void *ctx, const ds_loadgen_report *r, uint64_t now_ns); /* about once a second; NULL: none */
    bool (*stop)(void *ctx);                                                  /* asked often; true ends the test. NULL: never */
    void *ctx;
} ds_loadgen_opts;

/* Runs the plan to its end. The report is filled on failure too, with what was done until then. DS_E_IO: the host
 * isn't known, no epoll. DS_E_NOMEM. */
ds_rc ds_loadgen_run(ds_loadgen_report *r, ds_plan *plan, const ds_loadgen_opts *o, ds_err *err);

#endif
