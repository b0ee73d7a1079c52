/* What the files of this folder share. README.md says who owns what. */
#ifndef DS_SERVER_SERVER_INTERNAL_H
#define DS_SERVER_SERVER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include <microhttpd.h>

#include <ds/gen_request.h>
#include <ds/image.h>
#include <ds/stream.h>

#include "base/buf.h"
#include "base/json.h"
#include "constrain/constrain.h"
#include "recipe/bad_words.h"
#include "server/auth.h"
#include "server/framing.h"
#include "server/metrics.h"
#include "server/outq.h"
#include "server/page.h"
#include "server/server.h"
#include "server/spans.h"
#include "server/store.h"

typedef struct ds_conn ds_conn;
typedef struct ds_exchange ds_exchange;
typedef struct ds_call ds_call;
typedef struct ds_route ds_route;

enum { DS_REQUEST_ID_MAX = 128 };

/* ---- one connection [loop] ---- */

typedef struct {
    ds_server *s;
    struct MHD_Daemon *daemon;
    int fd, epoll_fd;
    bool admin, tls, is_unix;
    bool bound; /* is_unix: the path is ours, to be removed */
    bool due;   /* has something to do: run it in this turn */
} ds_listener;

struct ds_conn {
    ds_listener *l;
    struct MHD_Connection *mhd;
    ds_conn *prev, *next;
    ds_exchange *x; /* the request in work; NULL between requests */
    int fd;
    bool fresh;        /* no request yet */
    bool half_closed;  /* the client sends no more */
    bool dead;         /* shut down by us: close as soon as the library looks */
    uint64_t since_us; /* begin of what is being waited for: idle time, or the head */
    bool in_head;
    uint64_t acked, acked_us; /* bytes that the client's kernel had at the last look; since when no more, although there are */
};

/* unread.c */
void ds_conn_bound_buffer(const ds_conn *c);
/* Since when bytes wait in the kernel of which the client took none; now when it takes or nothing waits. Two system
 * calls: for the sweep. */
uint64_t ds_conn_unread_since(ds_conn *c, uint64_t now_us);

/* ---- one request and its response [loop] ---- */

struct ds_exchange {
    ds_server *s;
    ds_conn *c;
    const ds_route *route;
    ds_proto proto;
    /* the request */
    const char *target; /* as it came; path_n bytes of it are the path */
    size_t path_n;
    char method[16];
    char id[DS_REQUEST_ID_MAX + 1];
    char trace[56]; /* traceparent, or "" */
    char tenant[DS_AUTH_NAME_MAX + 1], key_name[DS_AUTH_NAME_MAX + 1];
    bool http10, head, keyed, versioned /* anthropic-version is there */, preflight;
    ds_auth_key *key; /* entered, to be left */
    ds_buf body;
    uint64_t discarded; /* bytes of a body that nobody wants */
    /* progress */
    bool started, complete, asked /* for the response, once */, suspended, refused, gone, probed;
    uint64_t start_us, body_us, upload_us;
    uint64_t upload_from_us, uploaded; /* when the body could begin; its bytes so far */
    /* the response */
    bool have_reply, replied, stream, finished;
    bool close; /* Connection: close */
    int status;
    uint32_t retry_s;
    const char *type;
    const char *fixed; /* body in static memory, fixed_n bytes; else reply */
    size_t fixed_n;
    ds_buf reply;
    ds_outq out;  /* stream */
    bool to_push; /* is in s->to_push */
    ds_exchange *next_push;
    size_t chunk_n, chunk_at; /* bytes of `out` that are being sent as one chunk, and how many of it with its framing are out */
    uint64_t event_us;        /* when the generator's event could be read that waits longest in `out`; 0: none does */
    uint64_t taken_us;        /* the same of what the library took last and may not have sent yet */
    uint64_t take_us;         /* last time the connection took bytes, or the queue was empty */
    uint64_t put_us;          /* last event or comment */
    uint64_t sent;            /* bytes of body */
    /* for the access log */
    uint64_t prompt_tokens, cached_tokens, output_tokens, first_us, prepared_us, queued_us, begun_us;
    const char *finish, *why;
    ds_call *call;
};

/* ---- one generation: from a complete body to the generator's last event ---- */

typedef enum { DS_CALL_GENERATE, DS_CALL_COUNT, DS_CALL_TOKENIZE } ds_call_kind;

typedef struct {
    ds_ids ids;
    uint32_t max_tokens;
    ds_constrained *constrained; /* NULL: the answer may be anything */
    uint64_t gen_id;
    bool live, begun;
} ds_call_prompt;

typedef struct {
    uint64_t last_us;
    uint32_t tokens;
    bool asked, finished; /* asked: we told the generator to end it */
} ds_call_choice;

struct ds_call {
    /* [const] after make */
    ds_server *s;
    ds_call_kind kind;
    ds_proto proto;
    char id[48], tenant[DS_AUTH_NAME_MAX + 1];
    bool keyed;
    int64_t created;
    uint64_t start_us;
    ds_buf body;
    /* [worker] while it is prepared, then [loop] */
    ds_call *next;
    ds_request *req;
    const ds_request_info_data *info;
    ds_stream *stream;
    ds_call_prompt *prompts;
    uint32_t n_prompts, n_samples;
    ds_picture *pictures;
    ds_gen_image *images; /* with their embeddings */
    uint32_t n_pictures;
    ds_bad_words bad_words;
    ds_call_choice *choices;
    ds_rc rc; /* of preparation; the refusal is filled unless it is DS_OK */
    ds_api_error refusal;
    uint64_t prepared_us;
    /* [loop] */
    ds_exchange *x; /* NULL: the client is gone */
    bool preparing, failed, completed;
    bool accepted, settled; /* it went to the generator; and is counted in ds_metrics.ended */
    uint32_t live;          /* prompts with the generator */
    uint32_t unfinished;
    uint64_t n_prompt_tokens, n_cached, n_output, first_us;
    uint64_t queued_us, begun_us; /* time in its queue; when the prompt began */
    uint64_t canceled_us;         /* when its cause was seen */
    int lost_why;                 /* index of ds_metrics.lost_tokens, for tokens that no client will get */
};

/* A worker's tools; the loop has one too. */
typedef struct {
    ds_encoder *encoder;
} ds_kit;

struct ds_server {
    /* [const] */
    ds_server_opts o;
    ds_recipe_opts recipe;
    char *host, *unix_path, *admin_path, *cors, *prefix, *cert, *key_pem;
    const char *first_name;
    char url[300];
    ds_listener listeners[3];
    size_t n_listeners;
    int epoll_fd, wake_fd;
    struct ds_seal *seal;
    uint64_t id_seed[2];
    /* [atomic] bits of ds_server_ask_kind; relaxed: the eventfd orders */
    atomic_uint asks;
    /* set by load before `loaded` (release), read by the loop after it (acquire), then [const] */
    ds_server_model model;
    ds_constrain *constrain; /* locks itself */
    ds_rc load_rc;
    ds_err load_err;
    atomic_bool loaded;
    ds_server_hooks hooks;
    /* [loop] */
    bool up, draining, stopping, more_events;
    bool overdue;      /* draining took too long: whoever still waits was told so */
    uint64_t now_us;   /* begin of this turn: the kernel's events were reported then */
    uint64_t event_us; /* while a token is passed on: since when it could be read; else 0 */
    uint64_t drain_until_us, next_sweep_us, next_store_us;
    ds_conn *conns;
    ds_exchange *to_push; /* streams with something new to send */
    uint32_t n_calls;
    uint64_t id_count;
    ds_auth *auth;
    ds_store *store; /* locks itself */
    ds_spans *spans;
    ds_metrics m;
    ds_kit kit;
    ds_buf access;
    ds_buf gone; /* scratch */
    /* [mu] the workers' queue */
    pthread_mutex_t mu;
    pthread_cond_t more;
    ds_call *todo, **todo_end, *done, **done_end;
    bool sweep_due, quit;
    pthread_t *threads;
    size_t n_threads;
};

/* http.c: connections and responses */
ds_rc ds_http_listen(ds_server *s, ds_err *err);
void ds_http_close(ds_server *s);
void ds_http_push(ds_server *s);           /* sends what streams have to send */
void ds_http_turn(ds_server *s, bool all); /* runs the library where something is due */
int ds_http_timeout_ms(ds_server *s, int most);
void ds_http_conn_event(ds_conn *c, uint32_t events);
void ds_http_sweep(ds_server *s, uint64_t now_us); /* clocks */
void ds_http_kill(ds_conn *c);                     /* closes it without waiting for anything */
void ds_http_flush_access(ds_server *s);
/* A response; *body is taken. To be called while the request is complete or being refused, once. */
void ds_reply(ds_exchange *x, int status, const char *type, ds_buf *body);
void ds_reply_static(ds_exchange *x, int status, const char *type, const char *body, size_t n);
void ds_reply_error(ds_exchange *x, const ds_api_error *e, ds_refused why); /* DS_N_REFUSED: it had been accepted, and failed */
void ds_reply_stream(ds_exchange *x);                                       /* the head goes out, bytes follow with ds_out_put */
char *ds_out_reserve(ds_exchange *x, size_t n);                             /* NULL: the client is too slow and was given up */
void ds_out_put(ds_exchange *x, size_t n);                                  /* n bytes were written where reserve said */
void ds_out_end(ds_exchange *x);
const char *ds_header(ds_exchange *x, const char *name); /* NULL: absent */
const char *ds_query(ds_exchange *x, const char *name);  /* of the address; NULL: absent */

/* routes.c: which request is what */
struct ds_route {
    const char *name;    /* for log and metrics */
    const char *methods; /* "GET,HEAD" */
    ds_proto proto;
    bool open;                                                    /* needs no key */
    bool model;                                                   /* needs the model */
    void (*run)(ds_exchange *x, const char *rest, size_t rest_n); /* rest: what a path pattern's * stands for */
};
void ds_route_proto(ds_exchange *x); /* the route by its path, and so the form of its errors */
/* Head read: route, checks that need no body. */
void ds_route_begin(ds_exchange *x, const ds_framing *f);
void ds_route_run(ds_exchange *x); /* body read */

/* items.c: input items as the store has them ("{…},{…}", oldest first) to the list that a client gets. DS_E_NOMEM,
 * DS_E_FORMAT, DS_E_ARG: no item has the id `after`; *b may then hold a part. */
typedef struct {
    bool ascending;    /* oldest first; else newest first */
    size_t limit;      /* items at most */
    const char *after; /* id of the item that the page follows in its order; NULL: from the beginning */
} ds_items_page;
ds_rc ds_items_write(ds_buf *b, const char *items, size_t n, const char *response, const ds_items_page *page, ds_err *err);

/* tls.c: the file holds a certificate, the other one its key. `cert` and `key` are their texts, the paths are for
 * messages. DS_E_FORMAT. */
ds_rc ds_tls_check(const char *cert_path, const char *cert, const char *key_path, const char *key, ds_err *err);

/* call.c */
void ds_call_start(ds_exchange *x, ds_call_kind kind);
void ds_call_prepared(ds_call *c); /* back from preparation */
void ds_call_event(ds_call *c, const ds_event *ev);
void ds_call_abandon(ds_call *c);   /* the client is gone */
void ds_call_shut_down(ds_call *c); /* its client, who is there, is told that the server doesn't go on */
void ds_call_free(ds_call *c);
bool ds_call_keep(void *ctx, ds_stream *stream); /* stores a Responses answer; false: it couldn't */

/* prepare.c: any thread */
void ds_call_prepare(ds_call *c, ds_kit *k);

/* workers.c */
ds_rc ds_workers_start(ds_server *s, ds_err *err);
void ds_workers_stop(ds_server *s);
void ds_workers_give(ds_server *s, ds_call *c);
ds_call *ds_workers_take(ds_server *s); /* prepared ones, in order; NULL: none */
void ds_workers_sweep(ds_server *s);    /* the store's housekeeping, by a worker */

/* check.c: [loop] between turns. NULL: every invariant holds; else the first that doesn't, until the next call.
 * O(connections) */
const char *ds_server_check(const ds_server *s);

/* server.c */
int64_t ds_server_wall(const ds_server *s);
void ds_server_wake(void *s); /* the loop's turn comes soon; from any thread and from signal handlers */
void ds_server_make_id(ds_server *s, char *out, size_t cap, const char *prefix);

/* openapi.json as the build makes it into openapi.c */
extern const char ds_server_openapi[];
extern const size_t ds_server_openapi_bytes;

#endif
