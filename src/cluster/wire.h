/* What an engine process and those who ask it say to each other (docs/formats/cluster.md): requests, events,
 * statistics and plans as bytes, and back. All that is read is outside bytes.
 *
 * Threads: none.   Memory: a request that was read owns what it points to. */
#ifndef DS_CLUSTER_WIRE_H
#define DS_CLUSTER_WIRE_H

#include <ds/gen.h>

#include "base/buf.h"
#include "net/frame.h"

enum { DS_CW_VERSION = 3, DS_CW_MAX_SAMPLES = 32, DS_CW_HOW = 64 };

/* Types of messages. >: to the engine. */
enum {
    DS_CW_HELLO = 1, /* > who asks: ds_cw_hello */
    DS_CW_WELCOME,   /* < ds_cw_welcome; the header's epoch is the engine's from here on */
    DS_CW_REFUSED,   /* < text: why. The connection ends */
    DS_CW_ADD,       /* > a request; the header says its id, chosen by who asks, and its deadline */
    DS_CW_CANCEL,    /* > the request of that id */
    DS_CW_FINISH,    /* > u32 sample of it */
    DS_CW_EVENTS,    /* < any number of events */
    DS_CW_STATS,     /* < u32 engine, its statistics */
    DS_CW_DRAINING,  /* < no new requests from now on */
    /* of sequences that go on elsewhere; cluster/handoff.h. > also from another engine */
    DS_CW_TAKE = 16, /* > a part of what the header's request, a ticket, names */
    DS_CW_PART,      /* < it */
    DS_CW_NOTHING,   /* < there is no such ticket */
    DS_CW_FORGET,    /* > the ticket is over: it was taken, or nobody wants it */
};

/* What an engine process is for. */
typedef enum { DS_CW_MIXED, DS_CW_PREFILL, DS_CW_DECODE } ds_cw_role;
enum { DS_CW_ROLES = DS_CW_DECODE + 1 };
const char *ds_cw_role_name(ds_cw_role role); /* "mixed", "prefill", "decode" */

typedef struct {
    uint8_t tokenizer[32], config[32]; /* digests of the model's tokenizer.json and config.json */
} ds_cw_model;

/* Who serves. */
typedef struct {
    ds_cw_model model;
    uint8_t weights[32]; /* digest of the checkpoint's content (docs/formats/block-key.md); zeros: an engine without weights */
    char how[DS_CW_HOW]; /* what else decides an answer's bits: program, kernels, activations */
    ds_cw_role role;
} ds_cw_engine;

void ds_cw_put_hello(ds_buf *b, const ds_cw_model *m);
ds_rc ds_cw_read_hello(ds_cw_model *m, const uint8_t *p, size_t n, ds_err *err);
/* The plans of `n` engines. */
void ds_cw_put_welcome(ds_buf *b, const ds_cw_engine *e, const ds_gen_plan *plans, uint32_t n);
ds_rc ds_cw_read_welcome(ds_cw_engine *e, ds_gen_plan plans[DS_GEN_MANY_MAX], uint32_t *n_plans, const uint8_t *p, size_t n, ds_err *err);
/* Names both sides. DS_E_ARG: they are of different models. */
ds_rc ds_cw_same_model(const ds_cw_model *asks, const ds_cw_model *serves, ds_err *err);
unsigned ds_cw_first_bytes(const uint8_t *digest); /* as messages show one */

/* hidden: floats of an embedding's row. Cookie and deadline aren't written (the header has the deadline), a grammar
 * only as `what`. */
void ds_cw_put_request(ds_buf *b, const ds_gen_request *q, uint32_t hidden);
typedef struct ds_cw_request ds_cw_request;
/* *out has everything but the grammar's functions and the cookie. DS_E_FORMAT, DS_E_NOMEM. */
ds_rc ds_cw_read_request(ds_cw_request **out, const uint8_t *p, size_t n, uint32_t hidden, ds_err *err);
ds_gen_request *ds_cw_request_get(ds_cw_request *r); /* its grammar.what is what was written */
/* What was made of its grammar.what. Copied: whoever takes the request, and when, finds it there. */
void ds_cw_request_made(ds_cw_request *r, const ds_gen_grammar *made);
void ds_cw_request_free(ds_cw_request *r); /* NULL is fine */

/* `id`: what the other side calls its request. now_us: on the clock of its times. */
void ds_cw_put_event(ds_buf *b, uint64_t id, const ds_event *ev, uint64_t now_us);
/* The next of a message; request is the id. cookie is 0. False: there is none; in->bad: it is malformed. */
bool ds_cw_read_event(ds_event *ev, ds_frame_in *in, uint64_t now_us);

void ds_cw_put_stats(ds_buf *b, uint32_t engine, const ds_gen_stats *s);
ds_rc ds_cw_read_stats(uint32_t *engine, ds_gen_stats *s, const uint8_t *p, size_t n, ds_err *err);

#endif
