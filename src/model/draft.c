/* DSpark (spec 3.14): draft blocks, Markov and confidence heads. */
#include <math.h>

#include "kern/sample.h"
#include "model/model_internal.h"

static const ds_kern *kern(const ds_runner *r)
{
    return ds_runner_kern(r);
}

static ds_rc check_drafts(const ds_runner *r, const ds_draft_seq *seqs, uint32_t n_seqs, ds_err *err)
{
    const ds_config *c = &r->m->c;

    if (c->num_nextn_predict_layers == 0 || r->o.no_drafts)
        return ds_fail(err, DS_E_ARG, "draft: %s",
                       c->num_nextn_predict_layers ? "this run was made without drafts" : "the model has no draft blocks");
    if (n_seqs == 0 || n_seqs > r->o.max_seqs || (uint64_t)n_seqs * c->dspark_block_size > r->o.max_rows)
        return ds_fail(err, DS_E_ARG, "draft: %u sequences of %u drafts: at most %u rows and %u sequences a step", n_seqs,
                       c->dspark_block_size, r->o.max_rows, r->o.max_seqs);
    for (uint32_t i = 0; i < n_seqs; i++) {
        const ds_draft_seq *q = &seqs[i];
        if (q->slot >= r->o.n_slots || q->pos > r->o.max_context || q->win_lo > q->pos)
            return ds_fail(err, DS_E_ARG, "draft: slot %u, position %u, window from %u: out of range", q->slot, q->pos, q->win_lo);
        if (q->how && !r->o.device_logits)
            return ds_fail(err, DS_E_ARG, "draft: this run keeps no logits on the device to draw from");
        if (q->token < 0 || (uint32_t)q->token >= c->vocab_size)
            return ds_fail(err, DS_E_ARG, "token id %d at position %u: ids are 0 .. %u", q->token, q->pos, c->vocab_size - 1);
    }
    return DS_OK;
}

/* Sequences whose logits their buffer holds at a time. */
static uint32_t group_of(const ds_runner *r)
{
    return r->logit_cap / r->m->c.dspark_block_size;
}

/* How drafts are chosen, if not all by their largest logit. Row numbers count from the first of a group. */
static bool say_draws(ds_runner *r, ds_sample_rows *draw, const ds_draft_seq *seqs, uint32_t n_seqs)
{
    bool any = false;

    for (uint32_t i = 0; i < n_seqs; i++)
        any = any || (seqs[i].how && !ds_draw_is_argmax(seqs[i].how, seqs[i].index));
    for (uint32_t i = 0; any && i < n_seqs; i++) {
        draw[i] = (ds_sample_rows){ .index = seqs[i].index, .row = i % group_of(r) * r->m->c.dspark_block_size, .n = 1 };
        if (seqs[i].how)
            draw[i].how = *seqs[i].how;
    }
    return any;
}

/* Rows of a block: [y, noise, noise, ...] at pos, pos + 1, ... */
static ds_seq_rows block_of(const ds_runner *r, const ds_draft_seq *q, uint32_t i)
{
    uint32_t B = r->m->c.dspark_block_size;

    return (
        ds_seq_rows){ .pos0 = (int32_t)q->pos, .row0 = i * B, .count = B, .slot = q->slot, .tail = DS_NONE, .win_lo = (int32_t)q->win_lo };
}

static void say_blocks(ds_runner *r, const ds_draft_seq *seqs, uint32_t n_seqs)
{
    const ds_config *c = &r->m->c;
    uint32_t B = c->dspark_block_size;

    for (uint32_t i = 0; i < n_seqs; i++) {
        r->host.seq[i] = block_of(r, &seqs[i], i);
        for (uint32_t k = 0; k < B; k++)
            r->host.id[i * B + k] = k == 0 ? seqs[i].token : (int32_t)c->dspark_noise_token_id;
    }
    ds_runner_say(r, r->host.id + n_seqs * B);
}

static void copy(ds_runner *r, void *dst, size_t ldd, const void *src, size_t lds, size_t n, size_t rows)
{
    kern(r)->copy(&r->e, &(ds_op_copy){ .dst = dst, .src = src, .rows = rows, .ldd = ldd, .lds = lds, .n = n });
}

/* Sequences first .. first + n - 1 of the block: logits, then draft after draft. draw: NULL, or how. */
static void choose(ds_runner *r, uint32_t first, uint32_t n, const ds_token *ids, const ds_sample_rows *draw)
{
    const ds_config *c = &r->m->c;
    const ds_weights *w = &r->m->w;
    size_t B = c->dspark_block_size, V = c->vocab_size, d = c->hidden_size, rank = c->dspark_markov_rank;
    const float *x = r->x + first * B * d;

    kern(r)->rmsnorm(&r->e, &(ds_op_rmsnorm){ .y = r->h,
                                              .x = x,
                                              .w = w->draft_norm,
                                              .rows = n * B,
                                              .ldx = d,
                                              .ldy = d,
                                              .dim = c->hidden_size,
                                              .eps = (float)c->rms_norm_eps });
    kern(r)->linear(&r->e, &(ds_op_linear){ .y = r->logits, .x = r->h, .w = &w->head, .rows = n * B, .ldx = d, .ldy = V, .groups = 1 });
    copy(r, r->draft_id, 1, ids + first * B, B, 1, n);
    for (uint32_t i = 0; i < B; i++) {
        kern(r)->embed(
            &r->e,
            &(ds_op_embed){ .y = r->markov, .id = r->draft_id, .table = &w->markov_embed, .rows = n, .copies = 1, .tag = TAG_MARKOV });
        kern(r)->linear(&r->e, &(ds_op_linear){ .y = r->logits + i * V,
                                                .x = r->markov,
                                                .w = &w->markov_head,
                                                .rows = n,
                                                .ldx = rank,
                                                .ldy = B * V,
                                                .groups = 1,
                                                .add = true });
        copy(r, r->conf_in, d + rank, x + i * d, B * d, d, n);
        copy(r, r->conf_in + d, d + rank, r->markov, rank, rank, n);
        kern(r)->linear(
            &r->e, &(ds_op_linear){
                       .y = r->conf + first * B + i, .x = r->conf_in, .w = &w->conf, .rows = n, .ldx = d + rank, .ldy = B, .groups = 1 });
        kern(r)->finite(&r->e, &(ds_op_finite){ .x = r->logits + i * V, .rows = n, .ldx = B * V, .n = V, .tag = TAG_DRAFT_LOGITS });
        if (draw)
            kern(r)->sample(&r->e, &(ds_op_sample){ .logits = r->logits + i * V,
                                                    .ld = V,
                                                    .vocab = c->vocab_size,
                                                    .seq = draw + first,
                                                    .n_seqs = n,
                                                    .later = i,
                                                    .id = r->draft_id });
        else
            kern(r)->argmax(&r->e,
                            &(ds_op_argmax){ .id = r->draft_id, .x = r->logits + i * V, .rows = n, .ldx = B * V, .n = c->vocab_size });
        copy(r, r->drafts + first * B + i, B, r->draft_id, 1, 1, n);
    }
    ds_observe(r, "draft", -1, r->logits, n * B, V * sizeof(float));
}

/* Blocks of the sequences that `seq` describes and their drafts. */
static void draft_rows(ds_runner *r, const ds_recording *shape, const ds_seq_rows *seq, const ds_token *ids, const ds_sample_rows *draw)
{
    const ds_config *c = &r->m->c;

    ds_begin_rows(r, &r->enc, seq, shape->seqs, shape->rows, ids);
    r->enc.bidir = true;
    ds_begin_streams(r, &r->enc);
    for (uint32_t l = c->num_hidden_layers; l < r->m->t.n_layers; l++)
        ds_layer_forward(r, &r->enc, l, false);
    kern(r)->mhc(&r->e, &(ds_op_mhc){ .X = r->enc.X,
                                      .y = r->enc.pending ? r->y : NULL,
                                      .mix_in = r->enc.mix,
                                      .x = r->x,
                                      .rows = r->enc.st.n_rows,
                                      .n = c->hc_mult,
                                      .d = c->hidden_size,
                                      .iters = c->hc_sinkhorn_iters,
                                      .eps = (float)c->rms_norm_eps,
                                      .hc_eps = (float)c->hc_eps });
    r->enc.pending = false;
    for (uint32_t first = 0, group = group_of(r); first < shape->seqs; first += group)
        choose(r, first, shape->seqs - first < group ? shape->seqs - first : group, ids, draw);
}

static void put_drafts(ds_runner *r, const ds_recording *shape)
{
    draft_rows(r, shape, r->at.seq, r->at.id, shape->logits ? r->draws : NULL);
}

/* The same for blocks that begin where the last draws say. */
static void put_ahead(ds_runner *r, const ds_recording *shape)
{
    ds_sample_rows *draw = shape->logits ? r->ahead.draw : NULL;

    kern(r)->accept(&r->e, &(ds_op_accept){ .drawn = r->drawn,
                                            .first = r->ahead.first,
                                            .n = shape->seqs,
                                            .fill = (ds_token)r->m->c.dspark_noise_token_id,
                                            .seq = r->ahead_seq,
                                            .id = r->ahead_id,
                                            .draw = draw });
    draft_rows(r, shape, r->ahead_seq, r->ahead_id, draw);
}

/* Drafts on their way to the host, and what the device has to say of them. */
static void fetch(ds_runner *r, uint32_t n_seqs, ds_fence *f)
{
    size_t n = (size_t)n_seqs * r->m->c.dspark_block_size;

    r->fn->read(r->dev, r->stream, r->host_drafts, r->drafts, n * sizeof *r->host_drafts);
    r->fn->read(r->dev, r->stream, r->host_conf, r->conf, n * sizeof *r->host_conf);
    ds_runner_ask(r, r->draft_answer, f);
}

static ds_rc fetched(ds_runner *r, uint32_t n_seqs, ds_fence *f, ds_token *ids, float *conf, ds_err *err)
{
    size_t n = (size_t)n_seqs * r->m->c.dspark_block_size;
    ds_rc rc = ds_runner_heed(r, r->draft_answer, f, err);

    for (size_t i = 0; i < n && rc == DS_OK; i++) {
        ids[i] = r->host_drafts[i];
        if (conf)
            conf[i] = (float)(1.0 / (1.0 + exp(-(double)r->host_conf[i])));
    }
    return rc;
}

ds_rc ds_runner_draft(ds_runner *r, const ds_draft_seq *seqs, uint32_t n_seqs, ds_token *ids, float *conf, ds_err *err)
{
    ds_rc rc = check_drafts(r, seqs, n_seqs, err);
    bool draws;

    if (rc == DS_OK)
        rc = ds_ranks_begin(r, DS_UNIT_DRAFT, 0, err);
    if (rc != DS_OK)
        return rc;
    say_blocks(r, seqs, n_seqs);
    draws = say_draws(r, r->draws_in, seqs, n_seqs);
    if (draws)
        r->fn->write(r->dev, r->stream, r->draws, r->draws_in, n_seqs * sizeof *r->draws);
    ds_runner_work(r, (ds_recording){ .kind = DS_WORK_DRAFT, .rows = n_seqs * r->m->c.dspark_block_size, .seqs = n_seqs, .logits = draws },
                   put_drafts);
    fetch(r, n_seqs, r->drafted);
    if (r->lost.rc != DS_OK)
        return ds_fail(err, r->lost.rc, "%s", r->lost.msg);
    return fetched(r, n_seqs, r->drafted, ids, conf, err);
}

ds_rc ds_runner_draft_ahead(ds_runner *r, const ds_draft_seq *seqs, uint32_t n_seqs, ds_err *err)
{
    ds_rc rc = check_drafts(r, seqs, n_seqs, err);
    bool draws;

    if (rc != DS_OK)
        return rc;
    for (uint32_t i = 0; i < n_seqs; i++)
        r->ahead_in.first[i] = block_of(r, &seqs[i], i);
    draws = say_draws(r, r->ahead_in.draw, seqs, n_seqs);
    r->fn->write(r->dev, r->stream, r->ahead.first, r->ahead_in.first, n_seqs * sizeof *r->ahead.first);
    if (draws)
        r->fn->write(r->dev, r->stream, r->ahead.draw, r->ahead_in.draw, n_seqs * sizeof *r->ahead.draw);
    ds_runner_work(r, (ds_recording){ .kind = DS_WORK_AHEAD, .rows = n_seqs * r->m->c.dspark_block_size, .seqs = n_seqs, .logits = draws },
                   put_ahead);
    r->n_ahead = n_seqs;
    fetch(r, n_seqs, r->drafted);
    return DS_OK;
}

ds_rc ds_runner_drafted(ds_runner *r, ds_token *ids, float *conf, ds_err *err)
{
    uint32_t n = r->n_ahead;

    r->n_ahead = 0;
    return fetched(r, n, r->drafted, ids, conf, err);
}
