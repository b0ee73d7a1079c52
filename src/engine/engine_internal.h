/* Inside of the engine: requests, samples, steps in flight, and who touches what. An engine is a mailbox (mail.h),
 * which clients' threads and the loop share, and the loop's own tables (ds_eng_loop), which admit, sched and finish
 * work on and which no lock guards.
 *
 * A sample (one text of a request) is in one state at a time:
 *
 *     HELD ──fork──> WAITING ──admit──> PROMPT ──last chunk──> DECODE ──┐
 *                     │ ^  ^               │                     │      │ ended
 *      store has more │ │  │               └──────┬──────────────┘      │
 *                     v │  └─ parked/recompute ── LEAVING <─────────────┘
 *                  FETCHING                        └── ended, last step done ──> GONE
 *
 *   HELD     sample 1.. of a request whose prompt sample 0 computes for all
 *   WAITING  in the list of its priority; holds nothing, or (parked) blocks and one pinned saved state, or what came
 *            for it from the store
 *   FETCHING waits too, in the same list; holds a ticket and the blocks, perhaps a saved state, that are to be filled
 *   PROMPT   has a seat, its blocks up to `goal`, perhaps a tail; prompt rows are planned up to pos_max
 *   DECODE   has a seat; each step gives it one row and drafts
 *   LEAVING  has its seat until the last step that has rows or operations of it is done, then does what `then` says
 *   GONE     holds nothing of the loop's
 *
 * The end of a sample is known (ended) before it is GONE; its event goes out at once, its memory later. */
#ifndef DS_ENGINE_ENGINE_INTERNAL_H
#define DS_ENGINE_ENGINE_INTERNAL_H

#include <pthread.h>

#include "engine/backend.h"
#include "engine/blocks.h"
#include "engine/fetch.h"
#include "engine/hoststore.h"
#include "engine/mail.h"
#include "engine/rules.h"
#include "engine/states.h"
#include "kv/chain.h"
#include "kv/hit.h"
#include "policy/cost.h"
#include "policy/spec.h"

enum {
    MAX_SNAPS = 4,
    MAX_STOPS = 16,
    MAX_STOP_BYTES = 256,
    MAX_STOP_IDS = DS_GEN_MAX_STOP_IDS,
    N_LEVELS = DS_GEN_PRIORITIES,
    PREFETCH = 8 /* samples ahead */
};

typedef enum { S_HELD, S_WAITING, S_FETCHING, S_PROMPT, S_DECODE, S_LEAVING, S_GONE } ds_eng_state;
typedef enum { THEN_END, THEN_RECOMPUTE, THEN_PARK, THEN_PARKED } ds_eng_then;

typedef struct ds_eng_request ds_eng_request;

/* A sequence that comes from another engine: its state and the block that isn't whole, and perhaps those that are. */
typedef struct ds_eng_import {
    uint32_t pos;            /* positions that are processed */
    ds_engine_blocks blocks; /* p NULL: by their keys */
    uint8_t bytes[];
} ds_eng_import;

typedef struct ds_eng_sample {
    /* Four cache lines that every step touches: with a thousand sequences the loop's time is the time to fetch them. */
    /* [loop] */
    _Alignas(64) ds_eng_state state;
    uint32_t seat;                  /* DS_NONE: has none */
    uint32_t pos;                   /* positions whose tokens are committed and processed, by results */
    uint32_t pos_max;               /* the most that it can be once all steps in flight are done */
    uint32_t in_rows[DS_DEV_DEPTH]; /* of that, by step */
    uint32_t n_blocks, n_published, n_keys, n_out;
    uint64_t busy_until; /* last step with rows or operations of it */
    uint32_t *blocks;    /* [cap_blocks] */
    /* [const] */
    ds_eng_request *req;

    ds_token *out;       /* [cap_out] */
    float *lp;           /* [cap_out], or NULL */
    uint16_t *held;      /* [cap_out], or NULL: no stop strings */
    ds_gen_logprob *top; /* [cap_out][n_top], or NULL */
    /* [loop] */
    uint64_t last_us;
    ds_mail_sample mail; /* see there */

    /* [loop] */
    bool ended, fork; /* fork: PROMPT rows of all samples of the request; they stop one token short */
    bool dirty;       /* in loop.dirty */
    bool admitted;
    bool scored;  /* the log-probabilities of its prompt are all known */
    bool approx;  /* its bits rest on a replay, its own or that of a prefix it found */
    bool borrows; /* [const] steps in flight may use the caller's memory or callbacks: its end goes out when it is GONE */
    /* [const] */
    uint32_t index, cap_out, cap_blocks;
    uint32_t drafted, accepted; /* [loop] */
    uint64_t first_us;          /* [loop] of the first token; 0: none yet */
    ds_dev_sample dev;          /* see there */

    /* The rest is for a sample's beginning and end. */
    ds_key *keys; /* [cap_blocks] of the blocks of its tokens. [const] the prompt's, [loop] behind */

    /* [loop] */
    struct ds_eng_import *import; /* what another engine knew of it; NULL: nothing, or it is placed */
    ds_eng_then then;
    struct ds_eng_sample *prev, *next; /* list of waiting ones of a level */
    uint32_t level, run_level;         /* priority; what waiting had made of it when it was admitted */
    uint64_t order;                    /* of arrival */
    uint64_t queued_us;                /* since when it waits */
    uint64_t admit_us;
    uint32_t run_index;    /* in loop.running */
    uint32_t tail, parked; /* DS_NONE: has none */
    bool shared_partial;   /* parked after a fork: its last block is sample 0's and must be copied */
    uint32_t goal;         /* PROMPT: rows up to here */
    uint32_t fork_state;   /* reserved saved state */
    uint32_t enc_win, store_from;
    bool replay_first;                /* the next chunk is the first of a replay */
    uint32_t snap[MAX_SNAPS], n_snap; /* borders where its state is wanted */
    ds_hit_kind first_hit;            /* what its first admission found, for going on the same way after preemption */
    uint32_t first_hit_pos, hit, replayed;
    uint32_t admit_out; /* tokens at the last admission */
    bool holds;         /* blocks, perhaps a saved state, that came or come from the store */
    bool fetch_over;    /* the store is not asked again before it was admitted */
    bool fetch_waits;   /* the store had too few buffers: until a ticket ends or the store kicks after fetch_seen, or fetch_until */
    uint64_t fetch_seen, fetch_until_us;
    uint32_t fetch;                    /* FETCHING: which of loop.fetches */
    uint32_t held_state;               /* pinned for it; DS_NONE: none is */
    uint32_t n_fetched, n_fetched_far; /* blocks that came; of them from behind host memory */
    uint16_t matched[MAX_STOPS];       /* bytes of each stop string that end the text so far */
    ds_event start_event, end_event;   /* [loop] until mail.start, mail.end; then [const] */
} ds_eng_sample;

struct ds_eng_request {
    /* What publish and poll touch for every token. */
    _Alignas(64) ds_mail_request mail;
    /* [const] */
    uint64_t id;
    uint64_t cookie;
    ds_eng_sample *samples;
    uint32_t n_samples;
    uint32_t n_gone; /* [loop] */

    /* [const] */
    ds_token *prompt;
    uint32_t n_prompt;
    ds_key ns; /* in front of the first block's key */
    bool no_cache, reproducible;
    ds_kv_span *spans; /* images */
    size_t n_spans;
    const float **embedding; /* [n_prompt] by position, or NULL */
    ds_gen_grammar grammar;
    float *prompt_lp; /* [n_prompt] and the others likewise, or NULL; filled in by the device until sample 0 is scored, then [const] */
    uint32_t *prompt_rank;
    ds_gen_logprob *prompt_top;
    ds_token stop_ids[MAX_STOP_IDS];
    bool report_stop_id;
    uint32_t min_tokens;
    ds_rules *rules;
    char *stop;          /* all strings, one behind the other */
    uint16_t *stop_fail; /* failure function of each, likewise */
    uint32_t stop_at[MAX_STOPS + 1], n_stop;
    uint64_t deadline_us, added_us;
    uint64_t order;
    uint32_t level;

    /* [loop] */
    bool fork_pending;                      /* samples 1.. are HELD */
    uint32_t to_end;                        /* samples that an order ends */
    ds_engine_export *export_came, *export; /* an order's; NULL: it isn't to leave */
    ds_eng_request *next_came, *next_ordered;
};

typedef enum { AFTER_UNPIN, AFTER_UNREF, AFTER_FREE_TAIL, AFTER_DROP, AFTER_HANDOFF } ds_eng_after_kind;
typedef struct {
    ds_eng_after_kind kind;
    uint32_t what;
} ds_eng_after;

/* A step and what the loop has to do when it is done. */
typedef struct {
    ds_dev_step dev;
    ds_eng_sample **who; /* [n_rows] */
    uint32_t *save;      /* [n_rows] saved state to be filled, or DS_NONE */
    ds_eng_after *after;
    uint32_t n_after, cap_after;
    uint32_t n_decode, n_prompt;
    ds_gen_logprob *top;
} ds_eng_step;

/* What is to be offered to a store that wants things as soon as they are committed: first in, first out. */
typedef struct {
    bool is_state;
    uint32_t at; /* block or saved state */
    ds_key key, parent;
    uint32_t depth;
    bool needed; /* a state that its text can't do without */
} ds_eng_save;
typedef struct {
    ds_eng_save *item; /* [cap], a ring; cap 0: the store doesn't want it */
    uint32_t cap, first, n;
    bool later; /* the store refused the first one for now, and will kick */
} ds_eng_saves;

/* A prefix that is worth a fetch. */
typedef struct {
    uint32_t n; /* blocks, on the device or in the store */
    bool exact;
    bool fetch_state; /* the state behind the last of them is in the store */
    uint32_t state;   /* a saved state that serves; DS_NONE: none does, or it is in the store */
} ds_eng_prefix;

/* The loop's tables: one owner, no lock. */
typedef struct {
    /* [const] */
    const ds_engine_opts *o;
    ds_backend *dev;
    const ds_store *store;                 /* NULL: none */
    uint32_t handoff_block, handoff_state; /* buffers of stage memory behind the store's; of blocks as many as the option says */
    uint32_t ops_reserved;                 /* operations of a step that aren't the store's */
    uint32_t hit_margin;                   /* tokens behind a hit at least */

    /* [loop] */
    ds_blocks blocks;
    ds_states states;
    ds_fetches fetches;
    uint64_t n_kicks;       /* of the store, at the beginning of the turn */
    uint64_t store_rest_us; /* it was late: it isn't asked before this time */
    ds_eng_saves saves;
    ds_engine_export *exports, *exporting; /* asked for; whose bytes are on their way to the stage memory */
    bool handoff_busy;                     /* the buffers of handoffs are in use by a step */
    ds_cost cost;
    ds_spec spec;
    ds_eng_sample *level_head[N_LEVELS], *level_tail[N_LEVELS];
    ds_eng_sample **running; /* with a seat */
    uint32_t n_running, n_waiting, n_parked, n_holding;
    ds_eng_sample **prefilling; /* PROMPT, in order of admission */
    uint32_t n_prefilling;
    uint32_t *tail, n_free_tails;
    ds_eng_step step[DS_DEV_DEPTH];
    uint64_t submitted, done; /* numbers of steps */
    ds_eng_sample **dirty;    /* have something for poll */
    uint32_t n_dirty, cap_dirty;
    uint32_t n_live; /* samples not GONE */
    uint64_t next_deadlines_us, n_deadlines;
    uint64_t now_us;   /* of this turn */
    bool idle;         /* this turn did nothing and waits for nothing on the device */
    bool was_empty;    /* nothing to do at some time since the last step */
    bool lost;         /* the device failed, and does for good */
    ds_gen_stats turn; /* what this turn adds to the counters */
} ds_eng_loop;

struct ds_engine {
    /* [const] */
    ds_engine_opts o; /* with defaults filled in */
    ds_gen_plan plan;
    ds_backend *dev;
    bool stub;       /* no model: samples have no sampler */
    uint32_t hidden; /* floats of an image position */
    ds_kv_identity identity;
    ds_store store;     /* what loop.store points to */
    ds_hoststore *host; /* NULL: the store is the caller's, or there is none */
    bool threaded;
    pthread_t thread;

    ds_mail mail;
    ds_eng_loop loop;
};

/* The engine's time: the option's clock. */
static inline uint64_t ds_eng_now_ns(const ds_engine_opts *o)
{
    return o->clock.now_ns(o->clock.ctx);
}
static inline uint64_t ds_eng_now_us(const ds_engine_opts *o)
{
    return ds_eng_now_ns(o) / 1000;
}

/* request.c: [any thread] */
ds_rc ds_eng_request_create(ds_eng_request **out, const ds_engine *e, const ds_gen_request *q, ds_err *err);
/* Its one sample has `n_out` tokens in `out` that were reported elsewhere. [who creates it] */
void ds_eng_go_on_behind(ds_eng_request *r, uint32_t n_out);
void ds_eng_request_free(ds_eng_request *r);
static inline ds_token ds_eng_token(const ds_eng_sample *s, uint32_t pos)
{
    return pos < s->req->n_prompt ? s->req->prompt[pos] : s->out[pos - s->req->n_prompt];
}
/* Asks for the lines of a sample that a step touches. */
static inline void ds_eng_prefetch(const ds_eng_sample *s)
{
    for (int i = 0; i < 4; i++)
        __builtin_prefetch((const char *)s + 64 * i, 1);
}
static inline uint32_t ds_eng_blocks_for(uint32_t positions)
{
    return (positions + DS_KV_BLOCK_TOKENS - 1) / DS_KV_BLOCK_TOKENS;
}

/* admit.c: [loop] waiting lists, admission, preemption */
void ds_eng_enqueue(ds_eng_loop *e, ds_eng_sample *s); /* to its place by order of arrival */
void ds_eng_dequeue(ds_eng_loop *e, ds_eng_sample *s);
void ds_eng_admit(ds_eng_loop *e, ds_eng_step *st, uint64_t now_us);
void ds_eng_settle(ds_eng_loop *e, ds_eng_step *st); /* leaving samples whose last step is done; st may be NULL: nothing is parked then */
bool ds_eng_make_room(ds_eng_loop *e,
                      const ds_eng_sample *for_whom);  /* a block's worth, by sending somebody away; false: for_whom itself is the last */
void ds_eng_release(ds_eng_loop *e, ds_eng_sample *s); /* blocks, seat, tail, pins */
/* Block i of a sample's keys on the device; DS_NONE: not there, or not exact where it has to be. */
uint32_t ds_eng_device_block(const ds_eng_loop *e, const ds_eng_sample *s, uint32_t i, bool exact);

/* swapin.c: [loop] from the store */
/* The blocks of this prefix, which the device has place for, are held for the sample and on the way, or there already
 * (then it is WAITING again). A ticket must be free. */
void ds_eng_fetch(ds_eng_loop *e, ds_eng_step *st, ds_eng_sample *s, const ds_eng_prefix *p);
void ds_eng_take_arrivals(ds_eng_loop *e, ds_eng_step *st); /* answers, and deadlines that passed */
void ds_eng_let_go(ds_eng_loop *e, ds_eng_sample *s);       /* what it holds from the store; nothing if it holds nothing */
void ds_eng_end_fetch(ds_eng_loop *e, uint32_t index);      /* its buffers were read */

/* handoff.c: [loop] from and to other engines */
void ds_eng_export_came(ds_eng_loop *e, ds_eng_request *r);
void ds_eng_export_gone(ds_eng_loop *e, ds_eng_request *r); /* the request ends otherwise; nothing if it isn't to leave */
void ds_eng_export_lost(ds_engine_export *x);               /* [any thread] */
bool ds_eng_leaves(const ds_eng_request *r);                /* it isn't to be admitted any more */
void ds_eng_plan_exports(ds_eng_loop *e, ds_eng_step *st);
void ds_eng_handoff_done(ds_eng_loop *e, bool right); /* the step that used its buffers is, and they hold what they should */
/* Of the first n blocks of a sample that is to come, those that aren't on the device and came with it: as many as go in
 * a step. They are found by their keys, and it holds them. The buffers must not be in use, and the device has place. */
void ds_eng_land(ds_eng_loop *e, ds_eng_step *st, ds_eng_sample *s, uint32_t n, bool exact);
/* Into the sample's seat and, unless it is DS_NONE, a block. The buffers must not be in use. */
void ds_eng_place_import(ds_eng_loop *e, ds_eng_step *st, ds_eng_sample *s, uint32_t block);
void ds_eng_drop_import(ds_eng_sample *s); /* [any thread] NULL is fine */

/* save.c: [loop] to the store */
/* As ds_blocks_take and ds_states_take. What they held is offered to the store first. */
uint32_t ds_eng_take_block(ds_eng_loop *e, ds_eng_step *st);
uint32_t ds_eng_take_state(ds_eng_loop *e, ds_eng_step *st);
/* Nothing of it may rest on a replay. */
static inline bool ds_eng_is_strict(const ds_eng_loop *e, const ds_eng_sample *s)
{
    return e->o->mode != DS_ENGINE_CED || e->o->no_replay || s->req->reproducible;
}

void ds_eng_want_saved(ds_eng_loop *e, const ds_eng_save *what);
void ds_eng_plan_saves(ds_eng_loop *e, ds_eng_step *st); /* first of all that is planned: what is queued hasn't been given out yet */
void ds_eng_saves_done(ds_eng_loop *e, const ds_eng_step *st);

/* sched.c: [loop] */
bool ds_eng_plan_step(ds_eng_loop *e, uint64_t now_us);                /* true: a step was submitted */
uint32_t ds_eng_ops_left(const ds_eng_loop *e, const ds_eng_step *st); /* operations that the store may still have in this step */
void ds_eng_op(ds_eng_step *st, ds_dev_op_kind kind, uint32_t src, uint32_t dst);
void ds_eng_after_step(ds_eng_step *st, ds_eng_after_kind kind, uint32_t what);

/* finish.c: [loop] */
void ds_eng_finish_step(ds_eng_loop *e, ds_eng_step *st, uint64_t now_us);
void ds_eng_end(ds_eng_loop *e, ds_eng_sample *s, ds_end_reason reason,
                uint64_t now_us);                   /* end_event's other members are set by the caller before */
void ds_eng_mark(ds_eng_loop *e, ds_eng_sample *s); /* has something for poll */
void ds_eng_gone(ds_eng_loop *e, ds_eng_sample *s); /* it holds nothing any more */
void ds_eng_next_key(ds_eng_sample *s);             /* [whoever owns it] of the block behind those that have one */
/* The text that a waiting sample came with, one token at least: ends it where the text is over already. */
void ds_eng_take_back(ds_eng_loop *e, ds_eng_sample *s, uint64_t now_us);

/* stats.c */
void ds_eng_hist_add(ds_gen_hist *h, uint64_t us);
void ds_eng_gauges(ds_eng_loop *e); /* how full everything is, into e->turn */

/* check.c: every invariant of the loop's tables, O(everything). NULL, or what is wrong. For tests. */
const char *ds_engine_check(const ds_engine *e);

#endif
