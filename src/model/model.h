/* The model: weights opened once and shared, and runners that hold caches and compute steps.
 *
 * ds_model   an opened model directory: configuration, topology, weights. Constant after open, shared by any number
 *            of runners and threads.
 * ds_runner  one computing instance: KV blocks, state slots, scratch. Owned by one thread. A step takes rows of
 *            several sequences and gives logits.
 *
 * Who keeps what. The runner owns memory; the caller (the engine, or ds_solo below) owns the bookkeeping: which
 * blocks and slots a sequence has, which positions are processed, which tokens stand there. All state is addressed
 * by position and masked by length: to reject rows the caller just goes on from an earlier position (at most
 * `rollback` = max(DS_KV_ROLLBACK, drafts + 1) rows back, the rows of one verify step), the stale records are
 * overwritten. Blocks hold what outlives a sequence (KV entries and index keys of all sources); slots what doesn't
 * (window rings, open groups, Engram history, draft rings); tail slots hold the streams of the last `window` tokens
 * between the chunks of a CED prefill.
 *
 * Modes, by what the caller puts in ds_seq:
 *   exact   every chunk has dec_from = pos: all layers on all rows.
 *   CED     chunks but the last: dec_from = pos + n (the decoder isn't run) and a tail slot.
 *           Last chunk of a prompt of N tokens: dec_from = dec_win = max(0, N - window).
 *   decode  n = 1 (or 1 + drafts to verify), dec_from = pos, no tail slot.
 *   resume  After a prefix hit of P tokens with the window state still in the slot: go on at pos = P. Without it:
 *           reset the slot, then feed positions s = max(0, P - window) on with enc_win = s, store_from = P, `before`
 *           = the tokens in front of s; the rest as in CED. Any P, odd ones too.
 * The same ids, mode, activations and kernels give the same bits whatever the chunks, the company in a step and the
 * number of threads.
 *
 * Memory: open takes O(layers + experts) and maps the files; create takes ds_runner_bytes(), all of it; step, draft
 * and image take none. */
#ifndef DS_MODEL_MODEL_H
#define DS_MODEL_MODEL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/pool.h"
#include "format/config.h"
#include "format/tensors.h"
#include "format/topology.h"
#include "kern/kern.h"
#include "kv/layout.h"

typedef struct ds_model ds_model;
typedef struct ds_runner ds_runner;

/* ---- the model ---- */

typedef struct {
    struct ds_device *device; /* what computes and holds the weights; borrowed until close. NULL: it is opened by name and owned */
    const char *device_name;  /* without `device`: "cpu" (NULL), "cuda", "cuda:N", "auto" (ds_device_open) */
    const char *kernels;      /* of the CPU, without `device`: NULL = best here; "ref", "avx2", "avx512", "amx" */
    ds_pool *pool;            /* for the scan of values and for packing; NULL: the calling thread. Not kept */
    uint64_t memory_bytes;    /* of the machine; 0: unknown. A model is refused when its weights, Engram tables aside, are more than that,
                                 or more than a device with memory of its own has left. Experts that are checked when they are chosen don't
                                 count: those that memory doesn't hold stay in the files */
    uint64_t scan_bytes; /* embedding and Engram tables of this size or more are checked row by row as they are read, and on the CPU without
                                 other ranks the experts of a layer that have so many bytes of codes when a row first chooses them; 0 = 64 MiB */
    uint32_t ranks, rank; /* this is rank `rank` of `ranks` and has its part of the experts only; 0 ranks: all of them. CPU only */
    bool no_data;         /* check config and tensor headers only, read no tensor data (inspect); such a model can't run */

    /* Token map for Engram (spec 3.12), asked for only when the model has Engram layers and no engram.token_map tensor: fills
     * map[0..vocab) with class numbers. The model checks their range and count. NULL: such a model is refused (with no_data it isn't
     * asked for). */
    ds_rc (*token_map)(void *ctx, const char *dir, int32_t *map, uint32_t vocab, ds_err *err);
    void *ctx;
} ds_model_opts;

/* Opens `dir`: checks config.json, presence, dtype and shape of every tensor that it implies, and the values of
 * every tensor but large tables (scan_bytes). A refusal names file, tensor, element and rule. opts may be NULL.
 * DS_E_FORMAT, DS_E_IO, DS_E_NOMEM, DS_E_ARG. O(bytes scanned). */
ds_rc ds_model_open(ds_model **out, const char *dir, const ds_model_opts *opts, ds_err *err);
struct ds_device *ds_model_device(const ds_model *m); /* what its runners compute on */
void ds_model_close(ds_model *m);                     /* NULL is fine; no run may be left */

const ds_config *ds_model_config(const ds_model *m); /* valid until close, like all that follow */
const ds_topology *ds_model_topology(const ds_model *m);
const char *ds_model_kernels(const ds_model *m); /* the variant in use: "ref", ... */
/* Memory that runners can still be given, where the device has its own; false: they take the host's. */
bool ds_model_room(const ds_model *m, uint64_t *left);

typedef struct {
    uint64_t tensors;                /* in the files */
    uint64_t used_tensors;           /* that the configuration implies */
    uint64_t file_bytes;             /* data of all tensors */
    uint64_t packed_bytes;           /* device memory that the weights took; 0: they are read where the files are mapped */
    uint64_t chosen_bytes;           /* of the used ones, experts that may stay in the files until a row chooses them (scan_bytes) */
    uint64_t kind_bytes[DS_N_KINDS]; /* data of the used tensors by ds_tensor_kind */
} ds_model_stats;
void ds_model_stat(const ds_model *m, ds_model_stats *out);

/* What the caches look like; all a caller needs to plan memory. */
typedef struct {
    uint32_t block_tokens; /* DS_KV_BLOCK_TOKENS */
    size_t block_bytes;    /* 113,920 for the released model */
    size_t slot_bytes;     /* state of a sequence */
    size_t tail_bytes;     /* streams of the last `window` tokens */
    uint32_t window;       /* sliding_window: also the length of both replays */
    uint32_t ring;         /* positions in a window ring: window + rollback */
    uint32_t rollback;     /* rows of one verify step at most: max(DS_KV_ROLLBACK, dspark_block_size + 1) */
    uint32_t drafts;       /* dspark_block_size, 0 without drafts */
    uint32_t vocab;
    uint32_t max_context; /* max_position_embeddings */
    uint32_t lookback;    /* Engram tokens before the first row: engram_max_ngram_size - 1, 0 without Engram */
} ds_model_layout;
void ds_model_layout_get(const ds_model *m, ds_model_layout *out);

/* The same for those who exchange or store the bytes: every part of a block and a slot, and whose arithmetic fills
 * them. `mode` and `bf16` are left 0: they are the engine's. */
void ds_model_kv_layout(const ds_model *m, ds_kv_layout *out);

/* ---- the digest of a checkpoint ---- */

typedef struct {
    const char *cache_dir; /* digests are remembered there, a small file for each model; made when it isn't there. NULL: nowhere */
    ds_pool *pool;         /* for reading and hashing; NULL: the calling thread */
    /* The rule, for tests: another one gives another digest. 0 = 1 GiB, 1 MiB, one second */
    uint64_t whole_file_bytes;   /* files below are read whole */
    uint64_t whole_tensor_bytes; /* of the others, tensors below; 64 KiB..1 MiB */
    uint32_t settle_ms;          /* a file changed more recently isn't remembered: another change might get the same time */
} ds_model_digest_opts;

typedef struct {
    bool remembered;     /* nothing was read */
    uint64_t read_bytes; /* of the checkpoint */
    ds_err unkept;       /* rc != DS_OK: why the digest couldn't be remembered. Not a failure */
} ds_model_digest_info;

/* SHA-256 over the content of the checkpoint that was opened from `dir`: config.json, tokenizer.json, the index,
 * headers, and tensors: whole in files below 1 GiB; else whole below 1 MiB, and 64 KiB of pages spread over each
 * larger one. Copies have equal digests wherever they lie; a fine-tune of the same shape has another one. What it
 * can't see: changes of a large tensor of a large file that leave each of the 16 pages looked at as it was. DS_E_IO,
 * DS_E_FORMAT: a file can't be read or changed meanwhile; DS_E_NOMEM. Seconds for 475 GiB. */
ds_rc ds_model_digest(uint8_t out[32], const ds_model *m, const char *dir, const ds_model_digest_opts *opts, ds_model_digest_info *info,
                      ds_err *err);

/* ---- a runner ---- */

/* Test hook: called between ops with a copy of a buffer of the step, [rows][row_bytes]; the pointer is good until it
 * returns. `layer` is the layer's number, drafts follow the backbone; -1 for what belongs to none. Names:
 *   "x"     f32 streams after the layer [rows][n*d]          "logits" f32 [rows][vocab]            "span"   f32
 *           image span embeddings
 *   "win"   window records of the rows                       "sel" int32 top-k, then "n_sel" uint32      "pool"
 *           int32 candidate blocks,
 *   then "n_pool" uint32
 *   "router" int32 chosen experts                            "engram" uint64 table rows            "tap" f32 draft
 *                                                            features mx
 *   "draft"  f32 [sequences * B][vocab]: logits of drafts
 * KV entries are read with ds_runner_record(). */
typedef void ds_observe_fn(void *ctx, const char *what, int layer, const void *data, size_t rows, size_t row_bytes);

typedef struct {
    bool bf16;            /* activations */
    uint32_t max_rows;    /* rows of a step, 1..; 0 = 256. The decoder of a CED prefill runs in passes of at most as many */
    uint32_t max_seqs;    /* sequences of a step; 0 = 1 */
    uint32_t max_logits;  /* rows that ask for logits in a step; 0 = max_seqs * rollback */
    uint32_t max_context; /* positions of a sequence; 0 = the model's limit */
    uint32_t n_blocks;    /* KV blocks; 0 = enough for max_seqs sequences of max_context */
    uint32_t n_slots;     /* state slots; 0 = max_seqs */
    uint32_t n_tails;     /* tail slots: CED prefills in progress at a time; 0 is allowed (exact mode) */
    uint32_t max_patches; /* of one image; 0 = no images */
    bool no_drafts;       /* leave out what only drafting needs; ds_runner_draft is then refused */
    struct ds_comm *comm; /* to the model's other ranks; borrowed until destroy. NULL: none, and if the model has ranks only images */
    bool device_logits;   /* logits stay on the device; ds_runner_step's `logits` is then NULL */
    ds_pool *pool;        /* borrowed until destroy; NULL: the calling thread */
    ds_observe_fn *observe;
    void *observe_ctx;
} ds_runner_opts;

/* Bytes that create will take: KV blocks, slots and tails, tables and buffers, by kind. false: sizes overflow. */
typedef struct {
    size_t kv, slots, tails, tables, buffers, scratch;
    size_t stage; /* memory of the stage and the host; all others are the device's */
    size_t total;
} ds_runner_size;
bool ds_runner_bytes(const ds_model *m, const ds_runner_opts *o, ds_runner_size *out);

/* DS_E_ARG: an option outside its range; DS_E_NOMEM with the number of bytes. */
ds_rc ds_runner_create(ds_runner **out, const ds_model *m, const ds_runner_opts *o, ds_err *err);
void ds_runner_destroy(ds_runner *r); /* NULL is fine */
uint32_t ds_runner_n_blocks(const ds_runner *r);
uint32_t ds_runner_n_slots(const ds_runner *r);

/* Forgets a slot's state; before a sequence starts in it and before an encoder replay. Doesn't wait. */
void ds_runner_reset_slot(ds_runner *r, uint32_t slot);

/* Rows of one sequence in a step: positions pos .. pos + n - 1. Zero means default except where noted. */
typedef struct {
    uint32_t slot;
    uint32_t tail;          /* DS_NONE: none. Needed whenever dec_from != pos; the same one for all chunks of a prefill */
    const uint32_t *blocks; /* ids of the blocks that cover positions 0 .. pos + n - 1, in order */
    uint32_t n_blocks;
    uint32_t pos, n;           /* n >= 1 */
    const ds_token *tokens;    /* [n]; ids in range; the id at image positions isn't looked at */
    const float *const *image; /* [n] or NULL: embedding (hidden_size f32) of a position inside an image span, NULL elsewhere */
    const ds_token *before;    /* NULL: history is in the slot. Else the min(pos, lookback) ids before pos, oldest first, -1 in images */
    uint32_t enc_win;          /* encoder window attention sees nothing before this position */
    uint32_t store_from;       /* KV entries completed by earlier positions are cached and not rewritten */
    uint32_t dec_from;         /* first position of the decoder rows; pos + n: the decoder isn't run */
    uint32_t dec_win;          /* decoder window attention sees nothing before this position */
    uint32_t n_logits;         /* logits of the last n_logits decoder rows, 0 .. their number */
    const atomic_bool *gone;   /* NULL: never. Set by any thread (relaxed): nobody wants these rows any more */
} ds_seq;

/* One step. On success *logits (may be NULL when none are asked for) points to the rows asked for, sequence by
 * sequence, [sum n_logits][vocab], valid until the next call on this run. On failure no state outside the rows' own
 * positions has changed: the caller may repeat the step. Logits that are not finite, and bad values met in large
 * tables, are DS_E_FORMAT. DS_E_ARG: a caller's bug, or a token id out of range. With device_logits the step is only
 * put on the device, and what is found there is said by ds_runner_wait. */
ds_rc ds_runner_step(ds_runner *r, const ds_seq *seqs, uint32_t n_seqs, const float **logits, ds_err *err);
/* Until the last step and the draws from it are done. DS_OK, or why all of it failed: then nothing was drawn. */
ds_rc ds_runner_wait(ds_runner *r, ds_err *err);

/* Sequences of the last step that were computed to the end, the first ones of it: those behind them were gone, and
 * left the step between two layers. Their slot, tail and the KV of their rows are then undefined, and no logits are
 * theirs. (A device that runs behind the host is seldom found in time.) */
uint32_t ds_runner_kept(const ds_runner *r);

/* ---- many ranks ----
 *
 * A model that was opened as one of several ranks has its part of the experts, and its runner a communicator to the
 * others: what is not here is computed there (parallel/dispatch.h). Each rank has sequences of its own. ds_runner_step
 * and ds_runner_draft go through their layers together with all other ranks: before they begin, the ranks agree on what
 * is next, drafts or a step, and those that don't want it take part with no rows. So a rank that has nothing to do must
 * attend. Bits are those of one rank. When a rank is gone, every call fails with DS_E_DEVICE and its name. */

/* Takes part in what other ranks begin, for any time: until somebody wakes this rank's communicator (DS_E_AGAIN), or
 * all ranks have left (DS_E_CANCELED); else DS_E_DEVICE. */
ds_rc ds_runner_attend(ds_runner *r, ds_err *err);

/* ---- drafts (DSpark) ---- */

typedef struct {
    uint32_t slot;
    uint32_t pos;    /* position p + 1 of `token`; all positions <= p have been through the decoder or are before win_lo */
    ds_token token;  /* the token at pos, not yet processed */
    uint32_t win_lo; /* first position in the draft rings: the dec_win of the sequence's last prefill */
    const ds_draw
        *how; /* drafts are what it would draw for output positions index, index + 1, ...; needs device_logits. NULL: the largest logit */
    uint64_t index;
} ds_draft_seq;

/* Drafts for all sequences: ids[s*B + i] proposes the token at pos + 1 + i; conf[s*B + i] = sigmoid(z_i), not the
 * running product; B = dspark_block_size. n_seqs * B <= max_rows. Changes no state. conf may be NULL. */
ds_rc ds_runner_draft(ds_runner *r, const ds_draft_seq *seqs, uint32_t n_seqs, ds_token *ids, float *conf, ds_err *err);

/* ---- drawing tokens (device_logits) ---- */

/* The caller describes here, [max_seqs], which of the last step's logits (`row` counts them in its order) are drawn
 * from, and how. */
ds_sample_rows *ds_runner_sample_rows(ds_runner *r);
/* Draws for the first n; what was described stays as it is until the draws have been waited for. They are then at
 * ds_runner_drawn, [n], and *top, [n][DS_MAX_DRAWS][DS_MAX_TOP] if anybody has n_top; good until the next ones. */
void ds_runner_sample(ds_runner *r, uint32_t n);
const ds_drawn *ds_runner_drawn(const ds_runner *r, const ds_logprob **top);

/* Drafts behind what was just drawn for, sequence s being that of draw s, before anybody knows what that was: `pos`
 * and `index` are right for one draw that stands and move on with the others; `token` isn't looked at. As for
 * ds_runner_draft, and before ds_runner_wait, which doesn't wait for them. */
ds_rc ds_runner_draft_ahead(ds_runner *r, const ds_draft_seq *seqs, uint32_t n_seqs, ds_err *err);
/* Waits for them, and before anything else is put on the run: results as of ds_runner_draft. */
ds_rc ds_runner_drafted(ds_runner *r, ds_token *ids, float *conf, ds_err *err);

/* Row `row` of the last step's logits, [vocab], to ordinary memory of the host. Waits. */
ds_rc ds_runner_read_logits(ds_runner *r, uint32_t row, float *to, ds_err *err);

/* ---- images ---- */

/* Positions of the span of an image of n_h x n_w patches: START, (cells, NEWLINE) x rows, END. 0: too large, or no
 * vision tower. */
uint32_t ds_model_span(const ds_model *m, uint32_t n_h, uint32_t n_w);

/* Vision tower and aligner: patches [n_h * n_w][3 * patch * patch], (v/255 - 0.5)/0.5, row-major, channel-major
 * inside -> out [span][hidden_size], delimiters included. */
ds_rc ds_runner_image(ds_runner *r, const float *patches, uint32_t n_h, uint32_t n_w, float *out, ds_err *err);

/* ---- looking in ---- */

typedef enum { DS_RECORD_MAIN, DS_RECORD_INDEX } ds_record_kind;
/* Record of entry j of KV source `source` (an ordinal) of a sequence with these blocks, into `rec`; *bytes: its
 * length, at most DS_RECORD_MAX_BYTES. Waits. */
enum { DS_RECORD_MAX_BYTES = 4096 };
ds_rc ds_runner_record(ds_runner *r, ds_record_kind kind, uint32_t source, const uint32_t *blocks, uint32_t entry, uint8_t *rec,
                       size_t *bytes, ds_err *err);

/* ---- moving state; in the order of steps ---- */

/* The block_bytes of a block, and the slot_bytes of a slot's state, which is valid for a sequence at the position
 * where it was saved. */
void ds_runner_copy_block(ds_runner *r, uint32_t src, uint32_t dst);
void ds_runner_copy_slot(ds_runner *r, uint32_t src, uint32_t dst);
/* The same bytes to stage memory of the model's device, and back. */
void ds_runner_save_block(ds_runner *r, uint32_t block, void *stage);
void ds_runner_load_block(ds_runner *r, uint32_t block, const void *stage);
void ds_runner_save_slot(ds_runner *r, uint32_t slot, void *stage);
void ds_runner_load_slot(ds_runner *r, uint32_t slot, const void *stage);
/* Until all of that is done: then the stage memory may be read, and written. DS_E_DEVICE. */
ds_rc ds_runner_staged(ds_runner *r, ds_err *err);
/* The same bytes to ordinary memory of the host. Waits. */
ds_rc ds_runner_read_block(ds_runner *r, uint32_t block, void *to, ds_err *err);
ds_rc ds_runner_read_slot(ds_runner *r, uint32_t slot, void *to, ds_err *err);

/* ---- one sequence at a time ---- */

/* Bookkeeping for a single sequence in slot 0 with blocks 0, 1, ...: what the commands for one prompt need. */
typedef struct {
    ds_runner *run;
    uint32_t chunk; /* rows of a step at most, 1 .. max_rows */
    bool ced;
    uint32_t n;       /* tokens processed so far */
    uint32_t dec_win; /* of the last prefill */
    uint32_t *blocks; /* identity table */
    /* Embeddings by position, as in ds_seq, for all positions up to the `total` of a call; borrowed. NULL after init: no images. */
    const float *const *image;
    /* Called before each chunk of a prompt; false ends the call with DS_E_CANCELED. NULL after init. */
    bool (*progress)(void *ctx, uint32_t done, uint32_t total);
    void *progress_ctx;
} ds_solo;

ds_rc ds_solo_init(ds_solo *s, ds_runner *run, uint32_t chunk, bool ced, ds_err *err);
void ds_solo_fini(ds_solo *s);

/* Receives `rows` consecutive logits rows; a code other than DS_OK ends the call with it. */
typedef ds_rc ds_logits_fn(void *ctx, const float *logits, uint32_t rows, uint32_t vocab, ds_err *err);

/* Processes tokens[n .. total) after the n already processed (tokens[0..n) are those), in chunks, as a prompt in the
 * mode of `s`; gives the logits of the last `last` rows in order. In ced mode last <= window. */
ds_rc ds_solo_prefill(ds_solo *s, const ds_token *tokens, uint32_t total, uint32_t last, ds_logits_fn *fn, void *ctx, ds_err *err);
/* As above, but first forgets all window state and replays (spec 5.4): only the KV entries of the n tokens before
 * stay. ced mode. */
ds_rc ds_solo_resume(ds_solo *s, const ds_token *tokens, uint32_t total, uint32_t last, ds_logits_fn *fn, void *ctx, ds_err *err);
/* k decode or verify rows: logits of all of them; s->n grows by k. To reject rows, lower s->n by at most k - 1. */
ds_rc ds_solo_decode(ds_solo *s, const ds_token *tokens, uint32_t k, const float **logits, ds_err *err);

#endif
