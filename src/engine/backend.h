/* What the engine's loop asks of a device.
 *
 * The loop hands over steps; the device runs them strictly in order, at most DS_DEV_DEPTH of them handed over and
 * not yet waited for. Whatever depends on what an earlier step accepted is resolved on the device: it keeps a live
 * record for each slot (position, the token that stands there, whether the text has ended), so that the loop can
 * plan step N+1 while N runs. A step is: its operations in order, then its rows.
 *
 * Memory: the loop owns steps and results, and neither touches a step that is on the device nor frees, reuses or
 * changes anything that its rows point to before that step has been waited for. Tables of blocks may grow behind the
 * n_blocks that a row names. Threads: submit and wait from the loop's thread. `stopped` of a sample may be set at
 * any time. */
#ifndef DS_ENGINE_BACKEND_H
#define DS_ENGINE_BACKEND_H

#include <stdatomic.h>

#include "base/err.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "engine/store.h"
#include "kv/layout.h"
#include "kv/state.h"
#include "model/model.h"

enum { DS_DEV_DEPTH = 2, DS_DEV_MAX_DRAFTS = DS_GEN_MAX_DRAFTS, DS_DEV_MAX_TOP = 20, DS_DEV_LOOKBACK = 16, DS_DEV_PROMPT_LOGITS = 64 };

typedef enum {
    DS_DEV_RESET,      /* forgets slot dst */
    DS_DEV_COPY_SLOT,  /* dst becomes what src is, live record included */
    DS_DEV_COPY_BLOCK, /* bytes of KV block src to dst */
    /* between the device and the numbered buffers of its stage memory */
    DS_DEV_SAVE_BLOCK, /* KV block src to block buffer dst */
    DS_DEV_LOAD_BLOCK, /* block buffer src to KV block dst */
    DS_DEV_SAVE_SLOT,  /* slot src to state buffer dst: its live record and what the operation says of it, then its bytes (kv/state.h) */
    DS_DEV_LOAD_SLOT,  /* state buffer src to slot dst, live record included */
} ds_dev_op_kind;

typedef struct {
    ds_dev_op_kind kind;
    uint32_t src, dst;
    /* SAVE_SLOT */
    uint32_t dec_start; /* DS_KV_STATE_ENCODER: none */
    bool approx;
} ds_dev_op;

/* What the device knows of a sample, for as long as one of its rows is on the device. */
typedef struct {
    /* [const] */
    ds_sampler *sampler;           /* NULL on a stub. [device] while rows are in flight: counts of penalties */
    const ds_gen_grammar *grammar; /* NULL: none. Asked by the device, for rows of a step and until `forget` */
    const struct ds_rules *rules;  /* NULL: none */
    ds_token *tail;                /* [device] the last ids of the output: [ds_rules_memory] */
    uint32_t n_tail;               /* [device] */
    uint32_t sample;
    const ds_token *stop_ids;
    uint32_t n_stop_ids;
    uint32_t n_prompt;
    uint32_t limit;     /* tokens of prompt and output at most */
    uint32_t dec_start; /* first position in the decoder's windows */
    uint32_t n_top;
    bool logprobs;
    uint64_t seed;
    uint64_t cookie, tag;
    const ds_token *prompt;
    uint32_t n_prompt_top;
    /* [device] what `all_logits` rows fill in, by position of the token that they predict: [n_prompt]; NULL: not wanted, or known already */
    float *prompt_lp;
    uint32_t *prompt_rank;
    ds_gen_logprob *prompt_top; /* [n_prompt][n_prompt_top]; NULL: n_prompt_top is 0 */
    /* [device] drawn, and not known to the grammar */
    uint32_t n_unread;
    ds_token unread[DS_DEV_MAX_DRAFTS + 1];
    /* [atomic] set by the loop: rows are skipped from now on. Relaxed: only saves work */
    atomic_bool stopped;
} ds_dev_sample;

/* Rows of one sequence. Those of a decoding one are one cache line, which is all that is set of them. */
typedef struct {
    _Alignas(64) ds_dev_sample *sample;
    const uint32_t *blocks;
    uint32_t n_blocks; /* cover every position that the rows may write */
    uint32_t slot;
    uint32_t save_to; /* the slot is copied there once the rows have crossed a block border; DS_NONE: not. Prompt rows end on that border */
    uint32_t drafts;  /* decode: the row at the live position, and up to so many behind it */
    bool decode;

    /* prompt rows: as in ds_seq. They replace the slot's live record */
    bool all_logits; /* every row has logits: those of prompt positions give log-probabilities. At most DS_DEV_PROMPT_LOGITS in a step */
    bool draw;       /* the last row's logits give the next token */
    ds_token begin;  /* no draw: the token that stands behind the last row, decoding starts there; -1: more prompt rows follow */
    const ds_token *tokens;
    const float *const *image;
    uint32_t pos, n, tail, enc_win, store_from, dec_from, dec_win;
    uint32_t n_before; /* DS_NONE: the history is in the slot */
    ds_token before[DS_DEV_LOOKBACK];
} ds_dev_rows;

typedef struct {
    _Alignas(64) uint32_t pos; /* positions processed */
    uint32_t
        n_tokens; /* drawn, 0 .. 1 + drafts; the last one stands at `pos`. 0 where some were wanted: masks weren't there, the text is where it was */
    uint32_t drafted; /* draft rows that were verified */
    bool ended;       /* the last token is a stop id, or it is the last that fits */
    bool skipped;     /* stopped, or ended before: nothing ran and nothing else here is set */
    bool saved;       /* save_to holds the state for position pos rounded down to a block */
    ds_rc rc;         /* this sequence failed: n_tokens are good, nothing more comes */
    ds_token token[DS_DEV_MAX_DRAFTS + 1];
    float logprob[DS_DEV_MAX_DRAFTS + 1];
    ds_gen_logprob *top; /* [MAX_DRAFTS + 1][MAX_TOP], memory of the step */
} ds_dev_out;

typedef struct {
    uint64_t no;
    /* [loop] until submit, [device] until wait has returned, then [loop] */
    ds_dev_op *ops;
    uint32_t n_ops, cap_ops;
    ds_dev_rows *rows;
    uint32_t n_rows, cap_rows;
    uint32_t draft_rows; /* of all sequences together at most */
    float least_chance;  /* drafts less likely to be kept than this aren't verified, the first of a sequence excepted; 0: all are */
    bool after_work;     /* there was work all the time since the step before: waiting for this one is idleness */
    ds_dev_out *out;     /* [n_rows] */
    ds_rc ops_rc;        /* not DS_OK: what operations brought to the stage memory means nothing */
    /* the device's account of the step */
    uint64_t run_ns, draft_ns;
    bool cut;         /* sequences left it on the way: its time says nothing about its rows */
    uint64_t idle_ns; /* between the end of the step before and the start of this one, if after_work */
    double q, qc, qq; /* sums over sequences of rows, rows x context, rows squared: what the cost model is fitted to */
} ds_dev_step;

typedef struct ds_backend ds_backend;

typedef struct {
    void (*submit)(ds_backend *b, ds_dev_step *s);
    void (*wait)(ds_backend *b, ds_dev_step *s); /* s: the oldest that was submitted */
    void (*destroy)(ds_backend *b);              /* nothing may be in flight */
    /* A sample with a grammar leaves its slot, and none of its rows is on the device: when this returns, nobody calls its grammar. May wait
     * for a mask that is being made */
    void (*forget)(ds_backend *b, ds_dev_sample *s, uint32_t slot);
} ds_backend_fns;

struct ds_backend {
    const ds_backend_fns *fn;
    struct ds_device *device; /* of samplers' tables; NULL: a stub, which has none */
    uint32_t vocab, drafts, window, rollback, lookback, max_context;
    uint64_t block_bytes, slot_bytes;
    ds_store_stage stage; /* that operations copy to and from */
};

/* Sizes that the engine decides; both backends take all their memory in create. */
typedef struct {
    uint32_t max_context, n_blocks, n_slots, n_tails; /* slots: running ones first, saved states behind */
    uint32_t max_seqs, max_rows, max_logits;
    uint32_t n_stage_blocks, n_stage_states;
    bool bf16, no_drafts;
    struct ds_comm *comm; /* to the model's other ranks; NULL: it has none */
} ds_backend_size;

ds_rc ds_backend_null_create(ds_backend **out, const ds_engine_stub *o, const ds_engine_clock *clock, const ds_backend_size *size,
                             ds_err *err);
void ds_backend_null_bytes(const ds_engine_stub *o, uint64_t *block_bytes, uint64_t *slot_bytes);
/* With `verify`: the first thing that was read and wasn't what it should be; NULL: none. */
const char *ds_backend_null_fault(const ds_backend *b);
/* The token that the null backend draws behind a prefix: for tests that compute a text on their own. `h` starts at 0
 * and is folded over all tokens in front. */
uint64_t ds_backend_null_fold(uint64_t h, ds_token token);
ds_token ds_backend_null_token(uint64_t h, uint64_t seed, uint32_t vocab);

/* Test hook: called on the device's thread with the drafts of a sample that stand behind its output token `index`;
 * it may change them. */
typedef void ds_draft_hook(void *ctx, uint64_t cookie, uint32_t sample, uint32_t index, ds_token *drafts, uint32_t n);
void ds_backend_model_hook(ds_backend *b, ds_draft_hook *fn, void *ctx); /* while nothing is in flight */

/* A thread that owns a runner and the pool. */
ds_rc ds_backend_model_create(ds_backend **out, const ds_model *m, ds_pool *pool, const ds_backend_size *size, ds_err *err);
/* What it takes: its runner, and masks (stage). False: sizes overflow. */
bool ds_backend_model_bytes(const ds_model *m, const ds_backend_size *size, ds_runner_size *out);

#endif
