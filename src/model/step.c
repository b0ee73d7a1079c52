/* A step: metadata, encoder layers on all rows, decoder layers on theirs, logits (spec 5). */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "format/numfmt.h"
#include "model/model_internal.h"

static const ds_kern *kern(const ds_runner *r)
{
    return ds_runner_kern(r);
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
    if (q->slot >= r->o.n_slots || (q->tail != DS_NONE && q->tail >= r->o.n_tails))
        return ds_fail(err, DS_E_ARG, "step: slot %u or tail %u does not exist", q->slot, q->tail);
    if (q->n_blocks < (end + DS_KV_BLOCK_TOKENS - 1) / DS_KV_BLOCK_TOKENS)
        return ds_fail(err, DS_E_ARG, "step: %u blocks for %u positions", q->n_blocks, end);
    for (uint32_t i = 0; i < (end + DS_KV_BLOCK_TOKENS - 1) / DS_KV_BLOCK_TOKENS; i++)
        if (q->blocks[i] >= r->o.n_blocks)
            return ds_fail(err, DS_E_ARG, "step: block %u does not exist", q->blocks[i]);
    if (q->dec_from > end || (q->dec_from != q->pos && q->tail == DS_NONE) ||
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

/* What has been said so far of the step. */
typedef struct {
    uint32_t seqs, rows, logits, hist, blocks, images, passes;
} talk;

/* Adds sequence q's positions from .. from + n - 1 to the set that begins with description `seq0`. `like`: the
 * description that has q's blocks already. */
static void add_rows(ds_runner *r, talk *t, const ds_seq *q, uint32_t from, uint32_t n, uint32_t row0, const ds_seq_rows *like)
{
    ds_seq_rows *to = &r->host.seq[t->seqs++];

    *to = (ds_seq_rows){ .pos0 = (int32_t)from,
                         .row0 = row0,
                         .count = n,
                         .slot = q->slot,
                         .tail = q->tail,
                         .win_lo = (int32_t)q->enc_win,
                         .dec_lo = (int32_t)q->dec_win,
                         .store_from = (int32_t)q->store_from,
                         .block0 = like ? like->block0 : t->blocks,
                         .n_blocks = (from + n + DS_KV_BLOCK_TOKENS - 1) / DS_KV_BLOCK_TOKENS };
    if (like) {
        to->src_pos = (int32_t)q->pos;
        to->src_row = like->row0;
    } else {
        memcpy(r->host.block + t->blocks, q->blocks, to->n_blocks * sizeof *r->host.block);
        t->blocks += to->n_blocks;
    }
}

/* The tokens in front of the first row, for the slot's history. */
static void say_history(ds_runner *r, talk *t, const ds_seq *q)
{
    ds_ring_view ring = ds_runner_hist_ring(r);
    uint32_t lookback = r->m->c.engram_max_ngram_size - 1, n = q->pos < lookback ? q->pos : lookback;

    for (uint32_t i = 0; i < n; i++, t->hist++) {
        int32_t pos = (int32_t)(q->pos - n + i);
        r->host.hist_off[t->hist] = (uint64_t)(ds_ring_at(&ring, q->slot, pos) - r->slots);
        r->host.hist_rec[2 * t->hist] = pos;
        r->host.hist_rec[2 * t->hist + 1] = q->before[i] < 0 ? -1 : r->m->w.map_host[q->before[i]];
    }
}

/* The rows of the sequence that was described last, positions from .. from + n - 1 of q, that ask for logits. */
static void want_logits(ds_runner *r, talk *t, const ds_seq *q, uint32_t from, uint32_t n)
{
    uint32_t first = q->pos + q->n - q->n_logits;

    for (uint32_t p = first > from ? first : from; p < from + n; p++)
        r->host.logit_index[t->logits++] = r->host.seq[t->seqs - 1].row0 + (p - from);
}

static void say_rows(ds_runner *r, talk *t, const ds_seq *seqs, uint32_t n_seqs)
{
    const ds_config *c = &r->m->c;
    size_t d = c->hidden_size;

    for (uint32_t i = 0; i < n_seqs; i++) {
        const ds_seq *q = &seqs[i];
        add_rows(r, t, q, q->pos, q->n, t->rows, NULL);
        for (uint32_t k = 0; k < q->n; k++) {
            bool image = q->image && q->image[k];
            r->host.id[t->rows++] = image ? -1 - (int32_t)t->images : q->tokens[k];
            if (image)
                memcpy(r->image_in + t->images++ * d, q->image[k], d * sizeof(float));
        }
        if (q->before && c->n_engram_layers)
            say_history(r, t, q);
    }
}

/* The decoder's rows where they aren't the encoder's, in passes of at most max_rows. */
static void say_passes(ds_runner *r, talk *t, const ds_seq *seqs, uint32_t n_seqs)
{
    uint32_t i = 0, from = seqs[0].dec_from;

    while (i < n_seqs) {
        ds_pass *p = &r->pass[t->passes];
        *p = (ds_pass){ .seq0 = t->seqs, .logit0 = t->logits };
        while (i < n_seqs && p->n_rows < r->o.max_rows) {
            const ds_seq *q = &seqs[i];
            uint32_t left = q->pos + q->n - from, room = r->o.max_rows - p->n_rows, n = left < room ? left : room;
            if (n > 0) {
                add_rows(r, t, q, from, n, p->n_rows, &r->host.seq[i]);
                want_logits(r, t, q, from, n);
                p->n_rows += n;
                from += n;
            }
            if (n == left && ++i < n_seqs)
                from = seqs[i].dec_from;
        }
        p->n_seqs = t->seqs - p->seq0;
        p->n_logits = t->logits - p->logit0;
        t->passes += p->n_rows > 0;
    }
}

void ds_runner_say(ds_runner *r, const void *end)
{
    r->fn->write(r->dev, r->stream, r->heard, r->said, (size_t)((const unsigned char *)end - r->said));
}

void ds_begin_rows(ds_runner *r, ds_rowset *s, const ds_seq_rows *seq, uint32_t n_seqs, uint32_t n_rows, const int32_t *ids)
{
    ds_op_rows a = s->rows;

    s->st.n_seqs = n_seqs;
    s->st.n_rows = n_rows;
    s->st.win_lo = a.win_lo;
    s->pending = s->bidir = false;
    a.seq = seq;
    a.block = r->at.block;
    a.id_in = ids;
    a.dead_in = r->enc.rows.dead;
    a.n_seqs = n_seqs;
    kern(r)->rows(&r->e, &a);
}

void ds_begin_streams(ds_runner *r, ds_rowset *s)
{
    const ds_config *c = &r->m->c;

    kern(r)->embed(&r->e, &(ds_op_embed){ .y = s->X,
                                          .id = s->st.id,
                                          .table = &r->m->w.embed,
                                          .extra = r->image,
                                          .rows = s->st.n_rows,
                                          .copies = c->hc_mult,
                                          .tag = TAG_EMBED });
    kern(r)->copy(
        &r->e,
        &(ds_op_copy){ .dst = s->mix, .src = r->first_mix, .rows = s->st.n_rows, .ldd = ds_config_hc_rows(c), .lds = 0, .n = c->hc_mult });
}

/* Rows and streams of the encoder. */
static void begin(ds_runner *r, uint32_t n_seqs, uint32_t n_rows)
{
    const ds_config *c = &r->m->c;
    ds_rowset *s = &r->enc;

    ds_begin_rows(r, s, r->at.seq, n_seqs, n_rows, r->at.id);
    ds_begin_streams(r, s);
    for (uint32_t i = 0; i < c->n_engram_layers; i++) {
        uint32_t cols = ds_config_engram_columns(c);
        kern(r)->engram_hash(&r->e, &(ds_op_engram_hash){ .step = &s->st,
                                                          .hist = ds_runner_hist_ring(r),
                                                          .row = s->erow[i],
                                                          .map = r->m->w.map,
                                                          .pad = r->m->w.pad,
                                                          .mult = r->m->w.mult + i * c->engram_max_ngram_size,
                                                          .prime = r->m->w.prime + i * cols,
                                                          .offset = r->m->w.offset + i * cols,
                                                          .max_ngram = c->engram_max_ngram_size,
                                                          .heads = c->engram_n_heads,
                                                          .store = i + 1 == c->n_engram_layers,
                                                          .tag = TAG_HISTORY });
        ds_observe(r, "engram", c->engram_layer_ids[i], s->erow[i], s->st.n_rows, cols * sizeof(uint64_t));
    }
}

/* One part of what later decoder passes need of the encoder's rows: floats at src with `ld` apart, kept in the tail
 * ring at `off`. */
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

/* enc -> dec of the rows that dec's index names, for one part. */
static void take_rows(ds_runner *r, void *dst, const void *src, size_t bytes, size_t ld_bytes)
{
    kern(r)->copy(&r->e, &(ds_op_copy){ .dst = dst,
                                        .src = src,
                                        .index = r->dec.rows.index,
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

/* Decoder layers on s, draft rings, and the n logits from number logit0 on. */
static void decode_rows(ds_runner *r, ds_rowset *s, uint32_t logit0, uint32_t n, bool with_compress)
{
    const ds_config *c = &r->m->c;
    const ds_mat *head = &r->m->w.head;
    float *logits = r->logits + (size_t)logit0 * c->vocab_size;

    s->st.win_lo = s->rows.dec_lo;
    for (uint32_t l = r->m->t.first_decoder; l < c->num_hidden_layers; l++) {
        if (ds_step_goes_on(r, s))
            ds_layer_forward(r, s, l, with_compress || l != r->m->t.first_decoder);
        else
            ds_ranks_experts(r, l, 0);
    }
    if (r->exchange)
        r->passes_left--;
    if (s->st.n_rows == 0)
        return;
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
                                            .index = r->at.logit_index + logit0,
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
        kern(r)->finite(&r->e, &(ds_op_finite){ .x = logits, .rows = n, .ldx = c->vocab_size, .n = c->vocab_size, .tag = TAG_LOGITS });
    }
    s->pending = false;
    if (!r->o.no_drafts)
        ds_layer_draft_kv(r, s);
}

static void decode_apart(ds_runner *r, const talk *t)
{
    for (const ds_pass *p = r->pass; p < r->pass + t->passes; p++) {
        ds_begin_rows(r, &r->dec, r->at.seq + p->seq0, p->n_seqs, p->n_rows, NULL);
        for_parts(r, load_part);
        tail_load(r, r->m->at.tail_dead, r->dec.rows.dead, 1, 1);
        decode_rows(r, &r->dec, p->logit0, p->n_logits, false);
    }
}

bool ds_step_goes_on(ds_runner *r, ds_rowset *s)
{
    const ds_seq *q = r->asked;

    if (!q || s != &r->enc)
        return true;
    while (r->kept > 0 && q[r->kept - 1].gone && atomic_load_explicit(q[r->kept - 1].gone, memory_order_relaxed)) {
        s->st.n_rows -= q[--r->kept].n;
        s->st.n_seqs--;
    }
    return r->kept > 0;
}

static bool has_left(const ds_runner *r, const ds_seq *seqs, uint32_t n_seqs, uint32_t slot)
{
    for (uint32_t i = r->kept; i < n_seqs; i++)
        if (seqs[i].slot == slot)
            return true;
    return false;
}

/* The decoder's passes without those that have left; their rows are the last ones. */
static void cut_passes(ds_runner *r, talk *t, const ds_seq *seqs, uint32_t n_seqs)
{
    uint32_t passes = t->passes;

    assert(r->kept <= n_seqs);
    t->logits = 0;
    for (uint32_t i = 0; i < r->kept; i++)
        t->logits += seqs[i].n_logits;
    t->passes = 0;
    for (uint32_t i = 0; i < passes; i++) {
        ds_pass *p = &r->pass[i];
        while (p->n_seqs > 0 && has_left(r, seqs, n_seqs, r->host.seq[p->seq0 + p->n_seqs - 1].slot))
            p->n_rows -= r->host.seq[p->seq0 + --p->n_seqs].count;
        if (p->logit0 + p->n_logits > t->logits)
            p->n_logits = t->logits > p->logit0 ? t->logits - p->logit0 : 0;
        t->passes += p->n_rows > 0;
    }
}

static void encode_rows(ds_runner *r, uint32_t n_seqs, uint32_t n_rows)
{
    begin(r, n_seqs, n_rows);
    for (uint32_t l = 0; l < r->m->t.first_decoder; l++) {
        if (ds_step_goes_on(r, &r->enc))
            ds_layer_forward(r, &r->enc, l, true);
        else
            ds_ranks_experts(r, l, 0);
    }
}

/* A step whose rows go through all layers. */
static void put_whole(ds_runner *r, const ds_recording *shape)
{
    encode_rows(r, shape->seqs, shape->rows);
    if (r->kept > 0)
        decode_rows(r, &r->enc, 0, shape->logits, true);
}

/* Everything up to the logits is put on the stream; *n_logits: their number. */
static ds_rc forward(ds_runner *r, const ds_seq *seqs, uint32_t n_seqs, uint32_t *n_logits, ds_err *err)
{
    uint32_t boundary = r->m->t.first_decoder;
    bool together = true;
    talk t = { 0 };
    ds_rc rc;

    *n_logits = 0;
    say_rows(r, &t, seqs, n_seqs);
    for (uint32_t i = 0; i < n_seqs; i++)
        together = together && seqs[i].dec_from == seqs[i].pos;
    for (uint32_t i = 0; i < n_seqs && together; i++)
        for (uint32_t k = 0; k < seqs[i].n_logits; k++)
            r->host.logit_index[t.logits++] = r->host.seq[i].row0 + seqs[i].n - seqs[i].n_logits + k;
    if (!together)
        say_passes(r, &t, seqs, n_seqs);
    assert(t.seqs >= n_seqs && t.rows >= n_seqs && t.rows <= r->o.max_rows && t.logits <= r->o.max_logits);
    rc = ds_ranks_begin(r, DS_UNIT_STEP, together ? 1 : t.passes, err);
    if (rc != DS_OK)
        return rc;
    ds_runner_say(r, r->host.block + t.blocks);
    r->fn->write(r->dev, r->stream, r->image, r->image_in, t.images * (size_t)r->m->c.hidden_size * sizeof(float));
    kern(r)->scatter(&r->e, &(ds_op_scatter){ .dst = r->slots, .off = r->at.hist_off, .src = r->at.hist_rec, .n = t.hist, .bytes = 8 });
    if (together) {
        ds_runner_work(r, (ds_recording){ .kind = DS_WORK_STEP, .rows = t.rows, .seqs = n_seqs, .logits = t.logits }, put_whole);
        *n_logits = r->kept ? t.logits : 0;
        return DS_OK;
    }
    encode_rows(r, n_seqs, t.rows);
    if (r->kept == 0)
        return DS_OK;
    ds_layer_flush(r, &r->enc);
    for_parts(r, store_part);
    tail_store(r, r->m->at.tail_dead, r->enc.rows.dead, 1, 1);
    ds_layer_compress(r, &r->enc, boundary);
    if (r->kept < n_seqs)
        cut_passes(r, &t, seqs, n_seqs);
    decode_apart(r, &t);
    *n_logits = t.logits;
    return DS_OK;
}

static ds_rc meaning(const ds_runner *r, const ds_fault *f, unsigned kind, ds_err *err)
{
    long long row = (long long)f->row, V = r->m->c.vocab_size;
    uint32_t tag = f->tag;

    if (kind == DS_FAULT_FINITE) {
        long long n = tag == TAG_IMAGE ? r->m->c.hidden_size : V;
        return ds_fail(err, DS_E_FORMAT, "%s: value %lld of row %lld is not finite: the weights are damaged or out of range",
                       tag == TAG_IMAGE    ? "image embeddings"
                       : tag == TAG_LOGITS ? "logits"
                                           : "draft logits",
                       row % n, row / n);
    }
    if (kind == DS_FAULT_VALUE && tag == TAG_EMBED)
        return ds_fail(err, DS_E_FORMAT, "embed.weight: row %lld holds a NaN or infinity", row);
    if (kind == DS_FAULT_VALUE && tag == TAG_MARKOV)
        return ds_fail(err, DS_E_FORMAT, "mtp.%u.markov_head.embed.weight: row %lld holds a NaN or infinity",
                       r->m->c.num_nextn_predict_layers - 1, row);
    if (kind == DS_FAULT_VALUE && tag >= TAG_EXPERT) {
        uint32_t l = tag - TAG_EXPERT, n = r->m->c.num_hidden_layers;
        return ds_fail(err, DS_E_FORMAT, "%s.%u.ffn.experts.%lld.w%c: a value or scale is NaN or infinite", l < n ? "layers" : "mtp",
                       l < n ? l : l - n, row / 3, "132"[row % 3]);
    }
    if (kind == DS_FAULT_VALUE)
        return ds_fail(err, DS_E_FORMAT, "layers.%u.engram.embed: row %lld holds a NaN or infinity", tag - TAG_ENGRAM, row);
    if (kind == DS_FAULT_GROUP)
        return ds_fail(err, DS_E_ARG, "step: layer %u has no open group for position %lld: the sequence was not resumed as its state needs",
                       tag - TAG_GROUP, row);
    return ds_fail(err, DS_E_ARG, "step: no Engram history for position %lld: the sequence was not resumed as its state needs", row);
}

void ds_runner_ask(ds_runner *r, ds_answer *answer, ds_fence *f)
{
    r->fn->read(r->dev, r->stream, answer, r->result, sizeof *answer);
    r->fn->mark(r->dev, r->stream, f);
}

ds_rc ds_runner_heed(ds_runner *r, const ds_answer *answer, ds_fence *f, ds_err *err)
{
    ds_rc rc = r->fn->wait(r->dev, f, err);
    unsigned kind;

    if (rc != DS_OK)
        return rc;
    /* relaxed: ops are done, and the copy was made after them */
    kind = atomic_load_explicit(&answer->fault.kind, memory_order_relaxed);
    if (kind == DS_FAULT_NONE)
        return DS_OK;
    r->fn->zero(r->dev, r->stream, &r->result->fault, sizeof r->result->fault);
    return meaning(r, &answer->fault, kind, err);
}

ds_rc ds_runner_wait(ds_runner *r, ds_err *err)
{
    return ds_runner_heed(r, r->answer, r->done, err);
}

/* ---- work that comes again --------------------------------------------------------------------------------------- */

/* Larger steps keep a device busy while they are put on its stream. */
enum { MAX_RECORDED_ROWS = 512 };

static bool same_shape(const ds_recording *a, const ds_recording *b)
{
    return a->kind == b->kind && a->rows == b->rows && a->seqs == b->seqs && a->logits == b->logits;
}

/* The place of a shape, or the one that was used longest ago; its work isn't running, for every step is waited for. */
static ds_recording *place_of(ds_runner *r, const ds_recording *shape)
{
    ds_recording *oldest = r->recording;

    for (ds_recording *p = r->recording; p < r->recording + DS_RECORDINGS; p++) {
        if (p->used && same_shape(p, shape))
            return p;
        if (p->used < oldest->used)
            oldest = p;
    }
    if (oldest->g)
        r->fn->graph_destroy(r->dev, oldest->g);
    *oldest = *shape;
    oldest->g = NULL;
    oldest->used = 0;
    return oldest;
}

void ds_runner_work(ds_runner *r, ds_recording shape, void (*put)(ds_runner *r, const ds_recording *shape))
{
    ds_recording *p;

    if (!r->dev->records || r->o.observe || shape.rows > MAX_RECORDED_ROWS) {
        put(r, &shape);
        return;
    }
    p = place_of(r, &shape);
    if (p->used && !p->g && r->fn->record_begin(r->dev, r->stream, NULL) == DS_OK) {
        r->asked = NULL; /* what is recorded goes to the end, whoever leaves */
        put(r, &shape);
        r->fn->record_end(r->dev, r->stream, &p->g, NULL); /* if it fails, the work is put there as it is */
    }
    if (p->g)
        r->fn->replay(r->dev, r->stream, p->g);
    else
        put(r, &shape);
    p->used = ++r->uses;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

ds_rc ds_runner_step(ds_runner *r, const ds_seq *seqs, uint32_t n_seqs, const float **logits, ds_err *err)
{
    ds_rc rc = check_step(r, seqs, n_seqs, err);
    uint32_t n_logits;

    if (logits)
        *logits = r->host_logits;
    if (rc != DS_OK)
        return rc;
    r->asked = seqs;
    r->kept = n_seqs;
    rc = forward(r, seqs, n_seqs, &n_logits, err);
    ds_ranks_rest(r);
    r->asked = NULL;
    if (rc == DS_OK && r->lost.rc != DS_OK)
        rc = ds_fail(err, r->lost.rc, "%s", r->lost.msg);
    if (rc != DS_OK)
        return rc;
    if (r->host_logits)
        r->fn->read(r->dev, r->stream, r->host_logits, r->logits, n_logits * (size_t)r->m->c.vocab_size * sizeof(float));
    ds_runner_ask(r, r->answer, r->done);
    return r->o.device_logits ? DS_OK : ds_runner_wait(r, err);
}

uint32_t ds_runner_kept(const ds_runner *r)
{
    return r->kept;
}

ds_sample_rows *ds_runner_sample_rows(ds_runner *r)
{
    return r->draws_in;
}

void ds_runner_sample(ds_runner *r, uint32_t n)
{
    bool any_top = false;

    assert(n <= r->o.max_seqs);
    for (uint32_t i = 0; i < n; i++)
        any_top = any_top || r->draws_in[i].n_top;
    r->fn->write(r->dev, r->stream, r->draws, r->draws_in, n * sizeof *r->draws);
    kern(r)->sample(&r->e, &(ds_op_sample){ .logits = r->logits,
                                            .ld = r->m->c.vocab_size,
                                            .vocab = r->m->c.vocab_size,
                                            .seq = r->draws,
                                            .n_seqs = n,
                                            .out = r->drawn,
                                            .top = r->top });
    r->fn->read(r->dev, r->stream, r->host_drawn, r->drawn, n * sizeof *r->drawn);
    if (any_top)
        r->fn->read(r->dev, r->stream, r->host_top, r->top, (size_t)n * DS_MAX_DRAWS * DS_MAX_TOP * sizeof *r->top);
    ds_runner_ask(r, r->answer, r->done);
}

const ds_drawn *ds_runner_drawn(const ds_runner *r, const ds_logprob **top)
{
    *top = r->host_top;
    return r->host_drawn;
}

ds_rc ds_runner_read_logits(ds_runner *r, uint32_t row, float *to, ds_err *err)
{
    size_t V = r->m->c.vocab_size;

    return ds_ferry_get(&r->ferry, to, r->logits + row * V, V * sizeof *to, err);
}
