/* A service: all that answers requests in one process, put together from a model directory: model, tokenizer, the
 * engines on the model with their teams, one generator in front of them, and the vision tower.
 *
 *   ds_service_open     all of it, from one memory plan
 *   ds_service_gen      where requests go
 *   ds_service_picture  a picture through the vision tower
 *   ds_service_stop     ends the engines; all else stays
 *   ds_service_close    gives everything back
 *
 * Threads: open, stop and close from one thread; pictures from any, one after the other in the order in which they
 * came; the rest is constant after open.   Memory: taken in open, as the plan says. */
#ifndef DS_ROLE_SERVICE_H
#define DS_ROLE_SERVICE_H

#include <ds/llm.h>

#include "base/log.h"
#include "cluster/remote.h"
#include "constrain/constrain.h"
#include "role/parts.h"

typedef struct ds_service ds_service;

/* Who holds engine processes that come and go (role/fleet.h), apart, so that programs with the library don't need what
 * finds them. */
typedef struct {
    ds_rc (*open)(void *ctx, const ds_remote_opts *each, ds_gen_many **out, ds_err *err); /* with a first engine there */
    void (*stop)(void *ctx);                                                              /* no event comes any more */
    void (*close)(void *ctx);                                                             /* after stop: *out goes */
    void *ctx;
} ds_service_engines;

typedef struct {
    ds_llm_place place;
    /* Of all engines together: max_running, max_requests, prefills, kv_blocks, saved_states, memory_bytes and kv_memory
     * are dealt out. memory_bytes: for the engines and the tower; 0 = what ds_service_plan_get says. token_bytes, ctx
     * and identity are the service's own. */
    ds_engine_opts engine;
    uint32_t engines;        /* on the one model; 0 = 1 */
    uint32_t ranks;          /* processes that have a part of the experts each, this one with them; 0 = 1. Threads are dealt out too */
    const char *program;     /* of several ranks: what the others run (role/ranks.h) */
    void (*lost)(void *ctx); /* of several ranks: called once, on a thread of its own, when one is gone; NULL: nobody asks */
    void *ctx;
    bool no_pictures;        /* no vision tower */
    const char *image_token; /* how the placeholder of pictures is spelled; NULL: as the tokenizer has it */
    const char *dialect;     /* of the prompts, "v4.1": cached blocks get keys that are good outside of this process, for which the model's
                                   content is read. NULL: only inside */
    const char *cache_dir;   /* remembers what was read; NULL: nowhere */
    const char *const *kv_dirs; /* [n_kv_dirs] prefixes are kept there, on a device each; needs a dialect */
    uint32_t n_kv_dirs;         /* 0: nowhere */
    uint64_t kv_capacity;       /* bytes of their files together; 0: no bound */
    const char *kv_address;     /* instead: "unix:PATH" of a kvd; NULL: none */
    const char *const
        *engines_at; /* [n_engines_at] instead of engines of its own: addresses of engine processes (role/engine.h). Of the directory
                                      only tokenizer and configuration are read, and pictures aren't taken */
    uint32_t n_engines_at;
    ds_cw_role role;                      /* of an engine process: what it says that it is for (role/engine.h) */
    uint32_t engine_wait_ms;              /* for them to be there; 0 = 10000 */
    const ds_service_engines *engines_of; /* instead: engine processes that come and go. NULL: none */
    const ds_log *log;                    /* what becomes of them; NULL: nobody hears */
    const ds_engine_stub *stub; /* no model: engines that make their tokens so; of the directory only tokenizer and configuration are read.
                                   Its vocab is the tokenizer's */
} ds_service_opts;

/* ---- memory ---- */

/* What a service takes. Bytes. */
typedef struct {
    ds_gen_plan engine; /* of each engine */
    uint32_t engines;
    uint64_t ranks; /* buffers of the other ranks and what all share */
    uint64_t tower; /* the vision tower's tables and buffers; of that tower_device out of `budget` */
    uint64_t tower_device;
    uint64_t total;           /* all engines, the tower and the other ranks */
    uint64_t device;          /* of that what comes out of `budget`: all, or where the device has memory of its own what lies there */
    uint64_t weights;         /* that must stay resident besides: mapped tensors but Engram's tables; 0 where the device holds copies */
    uint64_t chosen;          /* of these, experts that needn't: what memory doesn't hold of them is read when a row chooses it */
    uint64_t available;       /* when the plan was made */
    uint64_t budget;          /* what it may take of that */
    uint32_t largest_context; /* of which one sequence would fit; 0: none */
} ds_service_plan;

/* The one memory fit: every command asks this. `each` receives the options of each engine. Without memory_bytes the
 * budget is nine tenths of what is free, less the weights that must stay resident; at least a quarter of what is
 * free, since weights that don't fit are read again and again anyway. What the engines take by default is taken if
 * that fits, else as many KV blocks as the budget has room for; where no max_context was asked for, the largest that
 * fits. DS_E_NOMEM: nothing does; *p then has all but `engine`, total and device. DS_E_ARG as ds_engine_create. */
ds_rc ds_service_plan_get(ds_service_plan *p, ds_engine_opts *each, const ds_model *m, const ds_service_opts *o, ds_err *err);
/* The same without a limit: what the options ask for, whether it fits or not. */
ds_rc ds_service_plan_wish(ds_service_plan *p, const ds_model *m, const ds_service_opts *o, ds_err *err);

/* ---- open and closed ---- */

/* What an engine process and who asks it must have in common. DS_E_IO, DS_E_ARG. */
ds_rc ds_service_wire_model(ds_cw_model *m, const char *dir, ds_err *err);
/* What engines of this service are, `model` apart. */
void ds_service_wire_self(const ds_service *s, ds_cw_engine *e);

/* On failure *out is NULL and nothing is held. DS_E_ARG, DS_E_FORMAT, DS_E_IO, DS_E_NOMEM. */
ds_rc ds_service_open(ds_service **out, const char *dir, const ds_service_opts *o, ds_err *err);
/* DS_OK, or which rank is gone. Any thread. */
ds_rc ds_service_state(const ds_service *s, ds_err *err);
/* Requests that are live in front of engine processes; 0 where there are none. Any thread, until stop. */
uint32_t ds_service_live(const ds_service *s);
/* Digest of what engine processes and those who ask them must have in common. DS_E_IO, DS_E_ARG. */
ds_rc ds_service_wire_digest(uint8_t out[32], const char *dir, ds_err *err);
/* Cancels what the engines have and waits for them: nothing of a request is used any more. The generator and the
 * engines are gone. */
void ds_service_stop(ds_service *s);
void ds_service_close(ds_service *s); /* stops it if need be; NULL is fine */

/* As ds_llm_open, as rank 0 of so many; program: as in ds_service_opts. */
ds_rc ds_llm_open_ranks(ds_llm **out, const char *dir, const ds_llm_opts *opts, uint32_t ranks, const char *program, ds_err *err);
/* What a ds_llm is made of. */
ds_service *ds_llm_service(const ds_llm *l);
/* Its compiled grammars, made when they are wanted first; valid until close. DS_E_NOMEM. Any thread. */
ds_rc ds_llm_grammars(ds_llm *l, ds_constrain **out, ds_err *err);

/* Valid until close. */
const ds_model *ds_service_model(const ds_service *s); /* NULL: a stub */
const ds_config *ds_service_config(const ds_service *s);
const ds_tokenizer *ds_service_tokenizer(const ds_service *s);
const ds_token *ds_service_stop_ids(const ds_service *s, size_t *n); /* ids that end a text: generation_config.json, else config.json */
uint32_t ds_service_context(const ds_service *s);                    /* tokens of prompt and output of one sequence */
const ds_service_plan *ds_service_plan_of(const ds_service *s);      /* of a stub: engines alone */
const ds_engine_identity *ds_service_identity(const ds_service *s, const ds_model_digest_info **how); /* NULL: no dialect was given */

ds_gen ds_service_gen(const ds_service *s);                    /* until stop; running */
ds_engine *ds_service_engine(const ds_service *s, uint32_t i); /* one of them, until stop */

/* How pictures are to be prepared, and the id of their placeholder. False: the model takes none. */
bool ds_service_pictures(const ds_service *s, ds_image_rule *rule, ds_token *token);
/* Patches as ds_image_patches gives them -> out[tokens of the picture][hidden_size]. DS_E_ARG, DS_E_FORMAT,
 * DS_E_DEVICE. */
ds_rc ds_service_picture(ds_service *s, const float *patches, uint32_t n_h, uint32_t n_w, float *out, ds_err *err);

#endif
