/* The HTTP front: the API protocols over one generator. (docs/server.md)
 *
 *   ds_server_create   binds its sockets, reads keys and certificates, opens the store of responses
 *   ds_server_run      serves until it is asked to stop; loads the model beside it, answering 503 until that is done
 *   ds_server_ask      drain, stop at once, read the keys again: from any thread and from signal handlers
 *
 * Threads: run occupies its caller (the event loop, which owns all connections and requests) and has `workers`
 * threads for the preparation of large requests. Nothing else of a server may be called meanwhile but ask. Memory:
 * bounded by the options: connections, bodies, waiting output, stored responses; requests by what the generator
 * accepts. */
#ifndef DS_SERVER_SERVER_H
#define DS_SERVER_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ds/gen.h>
#include <ds/request.h>
#include <ds/tokenizer.h>

#include "base/err.h"
#include "base/log.h"

typedef struct ds_server ds_server;

#define DS_SERVER_STOP_IDS 16
#define DS_SERVER_MAX_NAMES 64

/* Strings are copied. Zero means the default that is named. */
typedef struct {
    const char *host;               /* address or name to listen on; NULL = 127.0.0.1 */
    uint16_t port;                  /* 0: any free one */
    bool no_tcp;                    /* only the Unix socket */
    const char *unix_path;          /* also, or only, a Unix-domain socket; an old socket file there is replaced. NULL: none */
    const char *admin_path;         /* Unix-domain socket of the admin endpoints; NULL: none */
    const char *tls_cert, *tls_key; /* PEM files; both or neither */
    const char *cors_origin;        /* one origin, or "*"; NULL: no CORS headers */

    size_t max_head;          /* bytes of a request's head; 0 = 32 KiB */
    size_t max_body;          /* 0 = 48 MiB */
    size_t max_output_queue;  /* bytes waiting for one client; 0 = 1 MiB */
    size_t worker_body;       /* bodies from this size on are prepared by a worker; 0 = 16 KiB */
    uint32_t max_connections; /* 0 = 4096 */
    uint32_t workers;         /* 0 = 1 */
    uint64_t header_ms, body_ms, stall_ms, keepalive_ms, idle_ms, drain_ms; /* 0 = 10, 30, 10, 10, 120, 60 s */
    uint64_t body_rate;  /* bytes a second that a body must have on average, once body_ms are over; 0 = 4096 */
    uint64_t request_ms; /* a request ends after that long; 0 = never */

    const char *keys_file;      /* NULL: no keys, everyone may use it */
    bool metrics_auth;          /* /metrics needs a key too */
    const char *metrics_prefix; /* NULL = "deepserve_" */

    const char *const *names; /* what /v1/models lists; borrowed; the first is what others are served as */
    size_t n_names;
    bool strict_model;            /* other names are a 404 */
    const ds_recipe_opts *recipe; /* NULL: defaults. max_context_tokens is set from the model */

    bool no_image_urls; /* pictures come with the request only; else those at public addresses are fetched */

    const char *responses_db;  /* SQLite file of stored responses; NULL: in memory */
    uint64_t responses_ttl_ms; /* 0 = 30 days */
    uint64_t responses_bytes;  /* 0 = 256 MiB */

    const ds_log *log;       /* borrowed; NULL: none */
    int access_fd;           /* access log, a JSON object a line; -1: none */
    const char *otlp_url;    /* collector of spans, without /v1/traces; NULL: none are made */
    int64_t (*wall_s)(void); /* Unix time; NULL: the clock */

    bool check; /* every turn of the loop ends with a look at all its invariants: for tests. Debug builds always do */

    /* Called in the loop for each accepted request before it goes to the generator: its ds_gen_request.tag. NULL: 0. */
    uint64_t (*tag)(void *ctx, const char *body, size_t n);
    void *ctx;
} ds_server_opts;

/* Pictures. */
typedef struct {
    ds_image_rule rule;
    ds_token token_id; /* of the placeholder */
    uint32_t hidden;   /* floats of an embedding */
    /* Vision tower: patches as ds_image_patches gives them -> out[tokens of the image][hidden]. Called from workers, several at once. NULL: pictures are refused. */
    ds_rc (*embed)(void *ctx, const float *patches, uint32_t n_h, uint32_t n_w, float *out, ds_err *err);
    void *ctx;
} ds_server_vision;

/* What load() provides. */
typedef struct {
    ds_gen gen; /* running; its wake is the server's from here on */
    const ds_tokenizer *tokenizer;
    ds_token stop_ids[DS_SERVER_STOP_IDS];
    size_t n_stop_ids;
    uint32_t max_context; /* tokens */
    ds_server_vision vision;
    const char *fingerprint; /* system_fingerprint; NULL: none. Borrowed */
    bool engines_elsewhere;  /* engines are other processes, which come back: this one is well without them */
} ds_server_model;

typedef struct {
    /* Opens the model and makes the generator, in a thread of its own. What it opened must live until run has returned. */
    ds_rc (*load)(void *ctx, ds_server_model *out, ds_err *err);
    /* The model is there and requests are served. In the loop's thread. */
    void (*ready)(void *ctx);
    void *ctx;
} ds_server_hooks;

/* DS_E_ARG: an option out of range; DS_E_IO: an address, file or certificate; DS_E_FORMAT: the keys file. On success
 * the sockets listen. */
ds_rc ds_server_create(ds_server **out, const ds_server_opts *o, ds_err *err);
void ds_server_destroy(ds_server *s); /* NULL is fine; not while run is in it */
/* "http://127.0.0.1:8000"; with only a Unix socket "unix:/path". Belongs to s. */
const char *ds_server_url(const ds_server *s);

/* DS_OK after a drain or stop; else why load or the loop failed. */
ds_rc ds_server_run(ds_server *s, const ds_server_hooks *h, ds_err *err);

typedef enum {
    DS_SERVER_DRAIN = 1,  /* no new requests; return when the running ones are done, or after drain_ms */
    DS_SERVER_STOP = 2,   /* cancel everything and return */
    DS_SERVER_RELOAD = 4, /* read the keys file again; a bad one is logged and the old keys stay */
} ds_server_ask_kind;
void ds_server_ask(ds_server *s, ds_server_ask_kind what);

/* A new random key: *key receives the text for its owner ("dsk-…", free() it), *line what goes into the keys file.
 * DS_E_ARG: the name. DS_E_IO, DS_E_NOMEM. */
ds_rc ds_server_new_key(char **key, char **line, const char *name, ds_err *err);

#endif
