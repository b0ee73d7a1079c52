/* A step: metadata, encoder layers on all rows, decoder layers on theirs, logits (spec 5). */
#include <math.h>
#include <string.h>

#include "format/numfmt.h"
#include "model/model_internal.h"

static const ds_kern *kern(const ds_runner *r)
{
    return &r->m->k;
}

static uint32_t dec_rows(const ds_seq *q)
{
    return q->pos + q->n - q->dec_from;
}

static ds_rc check_seq(const ds_runner *r, const ds_seq *q, ds_err *err)
{
    const ds_config *c = &r->m->c;
    uint32_t end = q->pos + q->n, lookback = c->n_engram_layers ? c->engram_max_ngram_size - 1 : 0;

    if (q->n == 0 || q->n > r->o.max_rows)
        return ds_fail(err, DS_E_ARG, "step: %u rows of a sequence: 1 .. %u", q->n, r->o.max_rows);
    if (q->pos > r->o.max_context || q->n > r->o.max_context - q->pos)
        return ds_fail(err, DS_E_ARG, "step: positions %u .. %llu: the context ends at %u", q->pos, (unsigned long long)q->pos + q->n,
                       r->o.max_context);
    if (q->slot >= r->o.n_slots || (q->tail != DS_RUNNER_NONE && q->tail >= r->o.n_tails))
        return ds_fail(err, DS_E_ARG, "step: slot %u or tail %u does not exist", q->slot, q->tail);
    if (q->n_blocks < (end + BLOCK_TOKENS - 1) / BLOCK_TOKENS)
        return ds_fail(err, DS_E_ARG, "step: %u blocks for %u positions", q->n_blocks, end);
    for (uint32_t i = 0; i < (end + BLOCK_TOKENS - 1) / BLOCK_TOKENS; i++)
        if (q->blocks[i] >= r->o.n_blocks)
            return ds_fail(err, DS_E_ARG, "step: block %u does not exist", q->blocks[i]);
    if (q->dec_from > end || (q->dec_from != q->pos && q->tail == DS_RUNNER_NONE) ||
        (q->dec_from < q->pos && end - q->dec_from > c->sliding_window))
        return ds_fail(err, DS_E_ARG, "step: decoder from position %u for rows %u .. %u", q->dec_from, q->pos, end);
    if (q->enc_win > q->pos || (q->dec_win > q->dec_from && q->dec_from < end))
        return ds_fail(err, DS_E_ARG, "step: windows start at %u and %u for rows %u .. %u", q->enc_win, q->dec_win, q->pos, end);
    if (q->n_logits > dec_rows(q))
        return ds_fail(err, DS_E_ARG, "step: logits of %u rows, but the decoder has %u", q->n_logits, dec_rows(q));
    for (uint32_t i = 0; i < q->n; i++)
        if (q->image && q->image[i]) {
            if (c->vision.num_hidden_layers == 0)
                return ds_fail(err, DS_E_ARG, "step: an image position at %u, but the model has no vision tower", q->pos + i);
        } else if (q->tokens[i] < 0 || (uint32_t)q->tokens[i] >= c->vocab_size) {
            return ds_fail(err, DS_E_ARG, "token id %d at position %u: ids are 0 .. %u", q->tokens[i], q->pos + i, c->vocab_size - 1);
        }
    if (q->before)
        for (uint32_t i = 0; i < (q->pos < lookback ? q->pos : lookback); i++)
            if (q->before[i] < -1 || (q->before[i] >= 0 && (uint32_t)q->before[i] >= c->vocab_size))
                return ds_fail(err, DS_E_ARG, "token id %d before position %u: ids are 0 .. %u", q->before[i], q->pos, c->vocab_size - 1);
    return DS_OK;
}

static ds_rc check_step(ds_runner *r, const ds_seq *seqs, uint32_t n_seqs, ds_err *err)
{
    uint64_t rows = 0, logits = 0;
    ds_rc rc = DS_OK;
    uint32_t done = 0;

    if (n_seqs == 0 || n_seqs > r->o.max_seqs)
        return ds_fail(err, DS_E_ARG, "step: %u sequences: 1 .. %u", n_seqs, r->o.max_seqs);
    for (; done < n_seqs && rc == DS_OK; done++) {
        const ds_seq *q = &seqs[done];
        rc = check_seq(r, q, err);
        if (rc != DS_OK)
            break;
        if (r->slot_mark[q->slot]) {
            rc = ds_fail(err, DS_E_ARG, "step: slot %u twice", q->slot);
            break;
        }
        r->slot_mark[q->slot] = 1;
        rows += q->n;
        logits += q->n_logits;
    }
    while (done > 0)
        r->slot_mark[seqs[--done].slot] = 0;
    if (rc != DS_OK)
        return rc;
    if (rows > r->o.max_rows || logits > r->o.max_logits)
        return ds_fail(err, DS_E_ARG, "step: %llu rows and %llu logits: at most %u and %u", (unsigned long long)rows,
                       (unsigned long long)logits, r->o.max_rows, r->o.max_logits);
    return DS_OK;
}

/* Adds sequence q's positions from .. from + n - 1 to s. */
static void add_rows(ds_rowset *s, const ds_seq *q, uint32_t from, uint32_t n, uint32_t win_lo)
{
    uint32_t i = s->st.n_seqs++;

    s->pos0[i] = (int32_t)from;
    s->row0[i] = s->st.n_rows;
    s->count[i] = n;
    s->slot[i] = q->slot;
    s->tail[i] = q->tail;
    s->win_lo[i] = (int32_t)win_lo;
    s->store_from[i] = (int32_t)q->store_from;
    memcpy(s->blocks + i * s->st.blocks_ld, q->blocks, (from + n + BLOCK_TOKENS - 1) / BLOCK_TOKENS * sizeof *s->blocks);
    for (uint32_t k = 0; k < n; k++) {
        s->pos[s->st.n_rows] = (int32_t)(from + k);
        s->seq[s->st.n_rows++] = i;
    }
}

/* Puts the tokens in front of the first row into the slot's history. */
static void set_history(ds_runner *r, const ds_seq *q)
{
    ds_ring_view ring = ds_runner_hist_ring(r);
    uint32_t lookback = r->m->c.engram_max_ngram_size - 1, n = q->pos < lookback ? q->pos : lookback;

    for (uint32_t i = 0; i < n; i++) {
        int32_t rec[2] = { (int32_t)(q->pos - n + i), q->before[i] < 0 ? -1 : r->m->w.map[q->before[i]] };
        memcpy(ds_ring_at(&ring, q->slot, rec[0]), rec, sizeof rec);
    }
}

static void begin(ds_runner *r, const ds_seq *seqs, uint32_t n_seqs)
{
    const ds_config *c = &r->m->c;
    ds_rowset *s = &r->enc;
    size_t d = c->hidden_size, mix = ds_config_hc_rows(c);
    uint32_t images = 0;

    s->st.n_rows = s->st.n_seqs = 0;
    s->pending = s->bidir = false;
    for (uint32_t i = 0; i < n_seqs; i++) {
        const ds_seq *q = &seqs[i];
        uint32_t row = s->st.n_rows;
        add_rows(s, q, q->pos, q->n, q->enc_win);
        for (uint32_t k = 0; k < q->n; k++, row++) {
            s->dead[row] = q->image && q->image[k];
            s->id[row] = s->dead[row] ? -1 - (int32_t)images : q->tokens[k];
            if (s->dead[row])
                memcpy(r->image + images++ * d, q->image[k], d * sizeof(float));
        }
        if (q->before && c->n_engram_layers)
            set_history(r, q);
    }
    kern(r)->embed(&r->e, &(ds_op_embed){ .y = s->X,
                                          .id = s->st.id,
                                          .table = &r->m->w.embed,
                                          .extra = r->image,
                                          .rows = s->st.n_rows,
                                          .copies = c->hc_mult,
                                          .tag = TAG_EMBED });
    for (uint32_t i = 0; i < s->st.n_rows; i++)
        for (uint32_t j = 0; j < c->hc_mult; j++)
            s->mix[i * mix + j] = j == 0 ? 1.0f : 0.0f;
    for (uint32_t t = 0; t < c->n_engram_layers; t++) {
        uint32_t cols = ds_config_engram_columns(c);
        kern(r)->engram_hash(&r->e, &(ds_op_engram_hash){ .step = &s->st,
                                                          .hist = ds_runner_hist_ring(r),
                                                          .row = s->erow[t],
                                                          .map = r->m->w.map,
                                                          .pad = r->m->w.pad,
                                                          .mult = r->m->w.mult + t * c->engram_max_ngram_size,
                                                          .prime = r->m->w.prime + t * cols,
                                                          .offset = r->m->w.offset + t * cols,
                                                          .max_ngram = c->engram_max_ngram_size,
                                                          .heads = c->engram_n_heads,
                                                          .store = t + 1 == c->n_engram_layers,
                                                          .tag = TAG_HISTORY });
        ds_observe(r, "engram", c->engram_layer_ids[t], s->erow[t], s->st.n_rows, cols * sizeof(uint64_t));
    }
}

/* One part of what later decoder passes need of the encoder's rows: floats at src with `ld` apart, kept in the tail ring at `off`. */
static void tail_store(ds_runner *r, size_t off, const void *src, size_t bytes, size_t ld_bytes)
{
    kern(r)->ring_store(
        &r->e,
        &(ds_op_ring_store){
            .step = &r->enc.st, .ring = ds_runner_tail_ring(r, off, bytes), .slot = r->enc.st.tail, .src = src, .src_bytes = ld_bytes });
}

static void tail_load(ds_runner *r, size_t off, void *dst, size_t bytes, size_t ld_bytes)
{
    kern(r)->ring_load(
        &r->e,
        &(ds_op_ring_load){
            .step = &r->dec.st, .ring = ds_runner_tail_ring(r, off, bytes), .slot = r->dec.st.tail, .dst = dst, .dst_bytes = ld_bytes });
}

/* enc -> dec of the rows that dec.index names, for one part. */
static void take_rows(ds_runner *r, void *dst, const void *src, size_t bytes, size_t ld_bytes)
{
    kern(r)->copy(&r->e, &(ds_op_copy){ .dst = dst,
                                        .src = src,
                                        .index = r->dec.index,
                                        .rows = r->dec.st.n_rows,
                                        .ldd = ld_bytes / 4,
                                        .lds = ld_bytes / 4,
                                        .n = bytes / 4 });
}

typedef void part_fn(ds_runner *r, size_t off, void *enc, void *dec, size_t bytes, size_t ld_bytes);

static void store_part(ds_runner *r, size_t off, void *enc, void *dec, size_t bytes, size_t ld_bytes)
{
    (void)dec;
    tail_store(r, off, enc, bytes, ld_bytes);
}

static void load_part(ds_runner *r, size_t off, void *enc, void *dec, size_t bytes, size_t ld_bytes)
{
    take_rows(r, dec, enc, bytes, ld_bytes);
    tail_load(r, off, dec, bytes, ld_bytes);
}

/* Everything that the decoder needs of a row's way through the encoder, dead flags excepted. */
static void for_parts(ds_runner *r, part_fn *fn)
{
    const ds_config *c = &r->m->c;
    const ds_places *p = &r->m->at;
    size_t f = sizeof(float), nd = (size_t)c->hc_mult * c->hidden_size * f, mix = ds_config_hc_rows(c) * f,
           rows = ds_config_engram_columns(c) * sizeof(uint64_t);

    fn(r, p->tail_x, r->enc.X, r->dec.X, nd, nd);
    fn(r, p->tail_mix, r->enc.mix, r->dec.mix, mix, mix);
    if (p->n_enc_taps && r->enc.taps)
        fn(r, p->tail_tap, r->enc.taps, r->dec.taps, p->n_enc_taps * c->hidden_size * f, c->n_dspark_targets * c->hidden_size * f);
    for (uint32_t t = 0; t < c->n_engram_layers; t++)
        if (c->engram_layer_ids[t] >= r->m->t.first_decoder)
            fn(r, p->tail_rows[t], r->enc.erow[t], r->dec.erow[t], rows, rows);
}

/* Decoder layers on s, draft rings, and the logits of the rows in logit_index[0..n). */
static void decode_rows(ds_runner *r, ds_rowset *s, uint32_t n, float *logits, bool with_compress)
{
    const ds_config *c = &r->m->c;
    const ds_mat *head = &r->m->w.head;

    for (uint32_t l = r->m->t.first_decoder; l < c->num_hidden_layers; l++)
        ds_layer_forward(r, s, l, with_compress || l != r->m->t.first_decoder);
    if (n > 0) {
        kern(r)->mhc(&r->e, &(ds_op_mhc){ .X = s->X,
                                          .y = s->pending ? r->y : NULL,
                                          .mix_in = s->mix,
                                          .x = r->x,
                                          .rows = s->st.n_rows,
                                          .n = c->hc_mult,
                                          .d = c->hidden_size,
                                          .iters = c->hc_sinkhorn_iters,
                                          .eps = (float)c->rms_norm_eps,
                                          .hc_eps = (float)c->hc_eps });
        kern(r)->copy(&r->e, &(ds_op_copy){ .dst = r->h,
                                            .src = r->x,
                                            .index = r->logit_index,
                                            .rows = n,
                                            .ldd = c->hidden_size,
                                            .lds = c->hidden_size,
                                            .n = c->hidden_size });
        kern(r)->rmsnorm(&r->e, &(ds_op_rmsnorm){ .y = r->h,
                                                  .x = r->h,
                                                  .w = r->m->w.norm,
                                                  .rows = n,
                                                  .ldx = c->hidden_size,
                                                  .ldy = c->hidden_size,
                                                  .dim = c->hidden_size,
                                                  .eps = (float)c->rms_norm_eps });
        kern(r)->linear(
            &r->e,
            &(ds_op_linear){ .y = logits, .x = r->h, .w = head, .rows = n, .ldx = c->hidden_size, .ldy = c->vocab_size, .groups = 1 });
        ds_observe(r, "logits", -1, logits, n, c->vocab_size * sizeof(float));
    }
    s->pending = false;
    if (!r->o.no_drafts)
        ds_layer_draft_kv(r, s);
}

/* Appends the rows of s's last sequence, positions from .. from + n - 1 of q, that ask for logits. */
static void want_logits(ds_runner *r, const ds_rowset *s, const ds_seq *q, uint32_t from, uint32_t n, uint32_t *n_logits)
{
    uint32_t first = q->pos + q->n - q->n_logits;

    for (uint32_t p = first > from ? first : from; p < from + n; p++)
        r->logit_index[(*n_logits)++] = s->row0[s->st.n_seqs - 1] + (p - from);
}

/* The decoder on rows other than the encoder's, in passes of at most max_rows. */
static void decode_apart(ds_runner *r, const ds_seq *seqs, uint32_t n_seqs)
{
    const ds_places *p = &r->m->at;
    ds_rowset *s = &r->dec;
    uint32_t i = 0, from = seqs[0].dec_from;
    float *logits = r->logits;

    for (;;) {
        uint32_t n_logits = 0;

        s->st.n_rows = s->st.n_seqs = 0;
        s->pending = s->bidir = false;
        while (i < n_seqs && s->st.n_rows < r->o.max_rows) {
            const ds_seq *q = &seqs[i];
            uint32_t left = q->pos + q->n - from, room = r->o.max_rows - s->st.n_rows, n = left < room ? left : room, row = s->st.n_rows;
            if (n > 0) {
                add_rows(s, q, from, n, q->dec_win);
                for (uint32_t k = 0; k < n; k++, row++) {
                    uint32_t at = from + k, here = at >= q->pos ? r->enc.row0[i] + (at - q->pos) : 0;
                    s->index[row] = here;
                    s->id[row] = 0; /* nothing after the embedding looks at it */
                    s->dead[row] = r->enc.dead[here];
                }
                want_logits(r, s, q, from, n, &n_logits);
                from += n;
            }
            if (n == left && ++i < n_seqs)
                from = seqs[i].dec_from;
        }
        if (s->st.n_rows == 0)
            return;
        for_parts(r, load_part);
        tail_load(r, p->tail_dead, s->dead, 1, 1);
        decode_rows(r, s, n_logits, logits, false);
        logits += (size_t)n_logits * r->m->c.vocab_size;
    }
}

static void forward(ds_runner *r, const ds_seq *seqs, uint32_t n_seqs)
{
    uint32_t boundary = r->m->t.first_decoder, n_logits = 0;
    bool together = true;

    for (uint32_t i = 0; i < n_seqs; i++)
        together = together && seqs[i].dec_from == seqs[i].pos;
    begin(r, seqs, n_seqs);
    for (uint32_t l = 0; l < boundary; l++)
        ds_layer_forward(r, &r->enc, l, true);
    if (together) {
        for (uint32_t i = 0; i < n_seqs; i++)
            r->enc.win_lo[i] = (int32_t)seqs[i].dec_win;
        for (uint32_t i = 0; i < n_seqs; i++)
            for (uint32_t k = 0; k < seqs[i].n_logits; k++)
                r->logit_index[n_logits++] = r->enc.row0[i] + seqs[i].n - seqs[i].n_logits + k;
        decode_rows(r, &r->enc, n_logits, r->logits, true);
        return;
    }
    ds_layer_flush(r, &r->enc);
    for_parts(r, store_part);
    tail_store(r, r->m->at.tail_dead, r->enc.dead, 1, 1);
    ds_layer_compress(r, &r->enc, boundary);
    decode_apart(r, seqs, n_seqs);
}

ds_rc ds_runner_check(ds_runner *r, ds_err *err)
{
    /* acquire: pairs with the release in ds_exec_fault; ops are done, but the writer may have been another member */
    unsigned kind = atomic_load_explicit(&r->fault.kind, memory_order_acquire);
    uint32_t tag = r->fault.tag;
    long long row = (long long)r->fault.row;

    if (kind == DS_FAULT_NONE)
        return DS_OK;
    atomic_store_explicit(&r->fault.kind, DS_FAULT_NONE, memory_order_relaxed);
    atomic_store_explicit(&r->fault.busy, 0, memory_order_relaxed);
    if (kind == DS_FAULT_VALUE && tag == TAG_EMBED)
        return ds_fail(err, DS_E_FORMAT, "embed.weight: row %lld holds a NaN or infinity", row);
    if (kind == DS_FAULT_VALUE && tag == TAG_MARKOV)
        return ds_fail(err, DS_E_FORMAT, "mtp.%u.markov_head.embed.weight: row %lld holds a NaN or infinity",
                       r->m->c.num_nextn_predict_layers - 1, row);
    if (kind == DS_FAULT_VALUE)
        return ds_fail(err, DS_E_FORMAT, "layers.%u.engram.embed: row %lld holds a NaN or infinity", tag - TAG_ENGRAM, row);
    if (kind == DS_FAULT_GROUP)
        return ds_fail(err, DS_E_ARG, "step: layer %u has no open group for position %lld: the sequence was not resumed as its state needs",
                       tag - TAG_GROUP, row);
    return ds_fail(err, DS_E_ARG, "step: no Engram history for position %lld: the sequence was not resumed as its state needs", row);
}

ds_rc ds_runner_check_finite(const float *v, size_t rows, size_t n, const char *what, ds_err *err)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < n; k++)
            if (!isfinite(v[i * n + k]))
                return ds_fail(err, DS_E_FORMAT, "%s: value %zu of row %zu is not finite: the weights are damaged or out of range", what, k,
                               i);
    return DS_OK;
}

ds_rc ds_runner_step(ds_runner *r, const ds_seq *seqs, uint32_t n_seqs, const float **logits, ds_err *err)
{
    uint32_t n_logits = 0;
    ds_rc rc = check_step(r, seqs, n_seqs, err);

    if (logits)
        *logits = r->logits;
    if (rc != DS_OK)
        return rc;
    forward(r, seqs, n_seqs);
    rc = ds_runner_check(r, err);
    for (uint32_t i = 0; i < n_seqs; i++)
        n_logits += seqs[i].n_logits;
    if (rc == DS_OK)
        rc = ds_runner_check_finite(r->logits, n_logits, r->m->c.vocab_size, "logits", err);
    return rc;
}
