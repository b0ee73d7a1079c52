/* Inside of src/model: the model and run objects, and the pieces of a step. */
#ifndef DS_MODEL_MODEL_INTERNAL_H
#define DS_MODEL_MODEL_INTERNAL_H

#include "kern/device.h"
#include "model/model.h"
#include "model/weights.h"
#include "parallel/dispatch.h"

/* Tags of faults: which table or state an op complains about. */
enum {
    TAG_EMBED = 1,
    TAG_MARKOV = 2,
    TAG_HISTORY = 3,
    TAG_LOGITS = 4,
    TAG_DRAFT_LOGITS = 5,
    TAG_IMAGE = 6,
    TAG_GROUP = 0x1000,  /* + layer */
    TAG_ENGRAM = 0x2000, /* + layer */
    TAG_EXPERT = 0x3000, /* + layer; the row is expert * 3 + 0, 1, 2 for w1, w3, w2 */
};

/* Offsets inside a block, a slot and a tail; set at open. */
typedef struct {
    size_t block_bytes, slot_bytes, tail_bytes;
    size_t main_off[DS_CONFIG_MAX_LAYERS], idx_off[DS_CONFIG_MAX_LAYERS]; /* by KV source ordinal */
    size_t open_off[DS_CONFIG_MAX_LAYERS];                                /* by KV source ordinal; ratio 2 only */
    size_t ring_off[DS_CONFIG_MAX_LAYERS];                                /* by layer, drafts included */
    size_t hist_off;
    size_t tail_x, tail_mix, tail_tap, tail_dead, tail_rows[DS_CONFIG_MAX_ENGRAM_LAYERS];
    uint32_t ring, rollback;
    uint32_t n_open, n_hist; /* records of an open-group ring and of the Engram history: powers of two */
    uint32_t n_enc_taps;
} ds_places;

struct ds_model {
    ds_config c;
    ds_topology t;
    ds_device *dev, *own; /* own: opened here; else NULL */
    ds_weights w;
    ds_places at;
    uint32_t ranks, rank; /* ranks 1: there are no others */
    bool no_data;
};

/* Rows that go through layers together: their metadata and streams. Counts and flags are the host's, all arrays are
 * device memory. */
typedef struct {
    ds_step st;
    ds_op_rows rows;          /* what makes st's arrays; rows.index of the dec set: the enc row of each row */
    int32_t *win_lo, *dec_lo; /* st.win_lo is one of them */

    float *X;                                    /* [rows][n*d] */
    float *mix;                                  /* [rows][(2+n)n] */
    float *taps;                                 /* [rows][targets*d] */
    uint64_t *erow[DS_CONFIG_MAX_ENGRAM_LAYERS]; /* [rows][columns] */
    bool pending;                                /* run->y is the last sublayer's output and not yet in X */
    bool bidir;                                  /* draft block */
} ds_rowset;

/* What the host says of a step, in one piece of stage memory that one write takes to its copy in device memory.
 * Lists stand at fixed places, the longest one last; only what a step fills is written. */
typedef struct {
    ds_seq_rows *seq;      /* [seq_cap]: of the encoder's rows, then of each decoder pass */
    int32_t *id;           /* [max_rows] */
    uint32_t *logit_index; /* [max_logits]: rows of their pass */
    uint64_t *hist_off;    /* [hist_cap]: records that go into slots' histories, */
    int32_t *hist_rec;     /* [hist_cap][2] */
    uint32_t *block;       /* [block_cap] */
} ds_said;

/* A pass through the decoder, of rows other than the encoder's. */
typedef struct {
    uint32_t seq0, n_seqs, n_rows; /* in what was said */
    uint32_t logit0, n_logits;
} ds_pass;

/* What the device says after a step. */
typedef struct {
    ds_fault fault;
} ds_answer;

/* Descriptions of draft blocks whose beginning the device finds out. */
typedef struct {
    ds_seq_rows *first;   /* [max_seqs] */
    ds_sample_rows *draw; /* [max_seqs] */
} ds_ahead;

/* Work of one shape that has been recorded, or will be when it comes again. Steps of a shape differ only in what the
 * host said; scratch and buffers stand where they stood. */
typedef enum { DS_WORK_STEP, DS_WORK_DRAFT, DS_WORK_AHEAD } ds_work;
typedef struct {
    ds_work kind;
    uint32_t rows, seqs, logits; /* DRAFT, AHEAD: logits 1 = they are drawn */
    uint64_t used;               /* number of the use; 0: this place is free */
    ds_graph *g;                 /* NULL: seen once */
} ds_recording;
enum { DS_RECORDINGS = 64 };

struct ds_runner {
    const ds_model *m;
    ds_runner_opts o; /* with defaults filled in */

    /* ---- the host's ---- */
    ds_device *dev;
    const ds_device_fns *fn;
    ds_stream *stream;
    ds_fence *done;    /* behind a step and its draws */
    ds_fence *drafted; /* behind drafts ahead */
    ds_mem mem;        /* holds all memory of both kinds */
    ds_ferry ferry;
    ds_exec e;
    ds_arena scratch;    /* its block is device memory */
    const ds_seq *asked; /* sequences of the step that is on its way, in the encoder's rows; NULL: none is */
    uint32_t kept;       /* of them those that are still wanted; then those that ran to the end */
    uint32_t logit_cap, seq_cap, pass_cap, hist_cap, block_cap;
    ds_pass *pass;      /* [pass_cap] */
    uint8_t *slot_mark; /* [n_slots] */
    void *seen;         /* for the observer; grows */
    size_t seen_cap;
    ds_recording recording[DS_RECORDINGS];
    uint64_t uses;
    ds_exchange *exchange; /* with other ranks; NULL: there are none */
    uint32_t passes_left;  /* of the step that the ranks agreed on, through the decoder */
    ds_err lost;           /* rc != DS_OK: the other ranks are, and why */
    uint32_t n_ahead;      /* sequences that drafts were made ahead for and not fetched */

    /* ---- stage ---- */
    unsigned char *said; /* laid out as `host` says */
    ds_said host;
    ds_answer *answer, *draft_answer;
    float *image_in;       /* [max_rows][d] */
    float *host_logits;    /* [logit_cap][vocab]; NULL: o.device_logits */
    ds_token *host_drafts; /* [max_seqs * B] */
    float *host_conf;
    ds_sample_rows *draws_in; /* [max_seqs]; these three with device_logits */
    ds_drawn *host_drawn;
    ds_logprob *host_top; /* [max_seqs][DS_MAX_DRAWS][DS_MAX_TOP] */
    ds_ahead ahead_in;    /* with drafts too */

    /* ---- the device's ---- */
    unsigned char *heard; /* the copy of said */
    ds_said at;
    ds_answer *result;   /* e.fault points there */
    uint64_t *reset_off; /* [n_reset]: places inside a slot that hold positions, */
    int32_t *reset_rec;  /* [n_reset]: and what forgets them */
    size_t n_reset;
    ds_sample_rows *draws;
    ds_drawn *drawn;
    ds_logprob *top;
    ds_ahead ahead;
    ds_seq_rows *ahead_seq; /* [max_seqs] */
    int32_t *ahead_id;      /* [max_seqs][B] */
    float *first_mix;       /* [hc_mult]: 1, 0, ..: how streams begin */
    uint8_t *kv, *slots, *tails;
    float *rope[2];  /* by ds_rope_kind: [max_context + drafts][rd/2][2] */
    float *vit_rope; /* [max_patches][hd/4][2] */

    ds_rowset enc, dec; /* dec shares enc's buffers where no tails exist */
    float *x, *xn, *y;  /* [rows][d]; of xn, rw, rlocal and part those of other ranks stand behind */
    float *qr, *q, *kvx, *u;
    uint8_t *rec;
    float *ck, *cz, *lat, *ik;
    float *iq, *g;
    uint8_t *iqrec;
    int32_t *sel, *pool;
    uint32_t *n_sel, *n_pool;
    float *rlog, *rw, *sg, *su, *shared;
    float *part; /* [rows][k][d]: what each chosen expert says */
    int32_t *rsel;
    int32_t *rlocal; /* [rows][k] numbers of this rank's experts; with other ranks */
    float *ge, *ekv;
    float *mx;
    float *image;               /* [rows][d]: embeddings of image positions */
    float *h;                   /* [rows][d] */
    float *logits;              /* [logit_cap][vocab] */
    int32_t *draft_id, *drafts; /* of one place [seqs]; all [seqs][B] */
    float *markov, *conf_in, *conf;
    struct {
        float *patches, *x, *xn, *qkv, *o, *h, *cells, *a, *span;
    } v;
};

static inline const ds_kern *ds_runner_kern(const ds_runner *r)
{
    return &r->dev->k;
}

/* places.c */
bool ds_places_init(ds_places *p, const ds_config *c, const ds_topology *t);
ds_ring_view ds_runner_ring(const ds_runner *r, uint32_t layer);
ds_ring_view ds_runner_tail_ring(const ds_runner *r, size_t off, size_t rec_bytes);
ds_ring_view ds_runner_open_ring(const ds_runner *r, uint32_t source);
ds_ring_view ds_runner_hist_ring(const ds_runner *r);
ds_kv_view ds_runner_kv(const ds_runner *r, ds_record_kind kind, uint32_t source);

/* rope.c: f32 tables [positions][rd/2][2] of positions first .. first + positions - 1, and [positions][dim/4][2];
 * the host's memory */
void ds_rope_fill(float *cs, const ds_config *c, ds_rope_kind kind, uint32_t first, uint32_t positions, ds_exec *e);
void ds_rope2d_fill(float *cs, uint32_t dim, double theta, uint32_t positions);

/* layer.c */
void ds_layer_forward(ds_runner *r, ds_rowset *s, uint32_t layer, bool compress);
void ds_layer_compress(ds_runner *r, ds_rowset *s,
                       uint32_t layer); /* the boundary layer's KV entries alone; leaves X and mix; may use dec.X */
/* The routed experts that are here, of rows first .. first + n - 1 of xn: `sel` counts them from 0. */
void ds_layer_experts(ds_runner *r, uint32_t layer, const int32_t *sel, uint32_t first, uint32_t n);
void ds_layer_flush(ds_runner *r, ds_rowset *s);    /* brings X up to date */
void ds_layer_draft_kv(ds_runner *r, ds_rowset *s); /* draft rings from taps */
void ds_observe(ds_runner *r, const char *what, int layer, const void *data, size_t rows, size_t row_bytes);

/* ranks.c: nothing of it does anything where there are no other ranks. A unit is what all ranks do together. */
typedef enum { DS_UNIT_NONE, DS_UNIT_DRAFT, DS_UNIT_STEP } ds_unit;
ds_rc ds_ranks_init(ds_runner *r, ds_err *err);
uint32_t ds_ranks_guests(const ds_model *m, const ds_runner_opts *o); /* rows of others that buffers have room for */
/* This rank's next unit: comes back when it is that of all; meanwhile takes part in others. passes: of a step. */
ds_rc ds_ranks_begin(ds_runner *r, ds_unit what, uint32_t passes, ds_err *err);
/* What is left of it for a rank whose own part is over. */
void ds_ranks_rest(ds_runner *r);
/* The routed experts of a layer, with n_rows rows of this rank's. Every rank calls it for every layer of a unit. */
void ds_ranks_experts(ds_runner *r, uint32_t layer, uint32_t n_rows);

/* step.c: sequences at the end of s that nobody wants any more leave it, where s is that of the step's encoder. False:
 * none is left. */
bool ds_step_goes_on(ds_runner *r, ds_rowset *s);
/* step.c: the streams of rows begin (embeddings and the first mix); what a set's rows are, from the n_seqs
 * descriptions at `seq`. */
void ds_begin_streams(ds_runner *r, ds_rowset *s);
void ds_begin_rows(ds_runner *r, ds_rowset *s, const ds_seq_rows *seq, uint32_t n_seqs, uint32_t n_rows, const int32_t *ids);
/* Puts the first `bytes` of what the host said on its way. */
void ds_runner_say(ds_runner *r, const void *end);
/* What the device has to say goes to `answer`, and `f` stands behind it. */
void ds_runner_ask(ds_runner *r, ds_answer *answer, ds_fence *f);
/* Waits for that. DS_OK, or what a fault means. */
ds_rc ds_runner_heed(ds_runner *r, const ds_answer *answer, ds_fence *f, ds_err *err);
/* Puts work on the stream by calling `put`, or what was recorded of it when its shape came before. `put` depends on
 * nothing but the shape, ctx included. */
void ds_runner_work(ds_runner *r, ds_recording shape, void (*put)(ds_runner *r, const ds_recording *shape));

#endif
