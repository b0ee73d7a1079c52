/* Inside of src/model: the model and run objects, and the pieces of a step. */
#ifndef DS_MODEL_MODEL_INTERNAL_H
#define DS_MODEL_MODEL_INTERNAL_H

#include "kern/kern.h"
#include "model/model.h"
#include "model/weights.h"

enum { BLOCK_TOKENS = DS_KV_BLOCK_TOKENS };

/* Tags of faults: which table or state an op complains about. */
enum {
    TAG_EMBED = 1,
    TAG_MARKOV = 2,
    TAG_HISTORY = 3,
    TAG_GROUP = 0x1000,  /* + layer */
    TAG_ENGRAM = 0x2000, /* + layer */
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
    ds_kern k;
    ds_weights w;
    ds_places at;
    bool no_data;
};

/* Rows that go through layers together: their metadata and streams. */
typedef struct {
    ds_step st;
    /* host side of st's arrays */
    int32_t *pos, *id, *pos0, *win_lo, *store_from;
    uint32_t *seq, *row0, *count, *slot, *tail, *blocks;
    uint8_t *dead;
    uint32_t *index; /* dec set: the enc row of each row */

    float *X;                                    /* [rows][n*d] */
    float *mix;                                  /* [rows][(2+n)n] */
    float *taps;                                 /* [rows][targets*d] */
    uint64_t *erow[DS_CONFIG_MAX_ENGRAM_LAYERS]; /* [rows][columns] */
    bool pending;                                /* run->y is the last sublayer's output and not yet in X */
    bool bidir;                                  /* draft block */
} ds_rowset;

struct ds_runner {
    const ds_model *m;
    ds_runner_opts o; /* with defaults filled in */
    ds_exec e;
    ds_arena scratch;
    ds_fault fault;

    uint8_t *kv, *slots, *tails;
    float *rope[2];  /* by ds_rope_kind: [max_context + drafts][rd/2][2] */
    float *vit_rope; /* [max_patches][hd/4][2] */

    ds_rowset enc, dec; /* dec shares enc's buffers where no tails exist */
    float *x, *xn, *y;  /* [rows][d] */
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
    float *ge, *ekv;
    float *mx;
    float *image;          /* [rows][d]: embeddings of image positions */
    uint32_t *logit_index; /* [rows]: rows of a pass that ask for logits */
    float *h;              /* [rows][d] */
    float *logits;         /* [logit_cap][vocab] */
    uint32_t logit_cap;
    int32_t *draft_id;
    float *markov, *conf_in, *conf;
    struct {
        float *x, *xn, *qkv, *o, *h, *cells, *a;
    } v;
    uint8_t *slot_mark; /* [n_slots] */

    void **held; /* every buffer, for destroy */
    size_t n_held;
};

/* places.c */
bool ds_places_init(ds_places *p, const ds_config *c, const ds_topology *t);
ds_ring_view ds_runner_ring(const ds_runner *r, uint32_t layer);
ds_ring_view ds_runner_tail_ring(const ds_runner *r, size_t off, size_t rec_bytes);
ds_ring_view ds_runner_open_ring(const ds_runner *r, uint32_t source);
ds_ring_view ds_runner_hist_ring(const ds_runner *r);
ds_kv_view ds_runner_kv(const ds_runner *r, ds_record_kind kind, uint32_t source);

/* rope.c: f32 tables [positions][rd/2][2] and [positions][dim/4][2] */
void ds_rope_fill(float *cs, const ds_config *c, ds_rope_kind kind, uint32_t positions, ds_exec *e);
void ds_rope2d_fill(float *cs, uint32_t dim, double theta, uint32_t positions);

/* layer.c */
void ds_layer_forward(ds_runner *r, ds_rowset *s, uint32_t layer, bool compress);
void ds_layer_compress(ds_runner *r, ds_rowset *s,
                       uint32_t layer);             /* the boundary layer's KV entries alone; leaves X and mix; may use dec.X */
void ds_layer_flush(ds_runner *r, ds_rowset *s);    /* brings X up to date */
void ds_layer_draft_kv(ds_runner *r, ds_rowset *s); /* draft rings from taps */
void ds_observe(ds_runner *r, const char *what, int layer, const void *data, size_t rows, size_t row_bytes);

/* DS_OK, or what a fault or non-finite logits mean. */
ds_rc ds_runner_check(ds_runner *r, ds_err *err);
ds_rc ds_runner_check_finite(const float *v, size_t rows, size_t n, const char *what, ds_err *err);

#endif
