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

/* How drafts are chosen, if not all by their largest logit. Row numbers count from the first of a group. */
static bool say_draws(ds_runner *r, const ds_draft_seq *seqs, uint32_t n_seqs, uint32_t group)
{
    bool any = false;

    for (uint32_t i = 0; i < n_seqs; i++)
        any = any || (seqs[i].how && !ds_draw_is_argmax(seqs[i].how, seqs[i].index));
    for (uint32_t i = 0; any && i < n_seqs; i++) {
        r->draws_in[i] = (ds_sample_rows){ .index = seqs[i].index, .row = i % group * r->m->c.dspark_block_size, .n = 1 };
        if (seqs[i].how)
            r->draws_in[i].how = *seqs[i].how;
    }
    if (any)
        r->fn->write(r->dev, r->stream, r->draws, r->draws_in, n_seqs * sizeof *r->draws);
    return any;
}

/* Rows of the blocks: [y, noise, noise, ...] at pos, pos + 1, ... */
static void begin_block(ds_runner *r, const ds_draft_seq *seqs, uint32_t n_seqs)
{
    const ds_config *c = &r->m->c;
    uint32_t B = c->dspark_block_size;

    for (uint32_t i = 0; i < n_seqs; i++) {
        r->host.seq[i] = (ds_seq_rows){ .pos0 = (int32_t)seqs[i].pos,
                                        .row0 = i * B,
                                        .count = B,
                                        .slot = seqs[i].slot,
                                        .tail = DS_NO_SLOT,
                                        .win_lo = (int32_t)seqs[i].win_lo };
        for (uint32_t k = 0; k < B; k++)
            r->host.id[i * B + k] = k == 0 ? seqs[i].token : (int32_t)c->dspark_noise_token_id;
    }
    ds_runner_say(r, r->host.id + n_seqs * B);
    ds_begin_rows(r, &r->enc, r->at.seq, n_seqs, n_seqs * B, r->at.id);
    r->enc.bidir = true;
    ds_begin_streams(r, &r->enc);
}

static void copy(ds_runner *r, void *dst, size_t ldd, const void *src, size_t lds, size_t n, size_t rows)
{
    kern(r)->copy(&r->e, &(ds_op_copy){ .dst = dst, .src = src, .rows = rows, .ldd = ldd, .lds = lds, .n = n });
}

/* Sequences first .. first + n - 1 of the block: logits, then draft after draft. */
static void choose(ds_runner *r, uint32_t first, uint32_t n, bool draws)
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
    copy(r, r->draft_id, 1, r->at.id + first * B, B, 1, n);
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
        if (draws)
            kern(r)->sample(&r->e, &(ds_op_sample){ .logits = r->logits + i * V,
                                                    .ld = V,
                                                    .vocab = c->vocab_size,
                                                    .seq = r->draws + first,
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

ds_rc ds_runner_draft(ds_runner *r, const ds_draft_seq *seqs, uint32_t n_seqs, int32_t *ids, float *conf, ds_err *err)
{
    const ds_config *c = &r->m->c;
    ds_rc rc = check_drafts(r, seqs, n_seqs, err);
    uint32_t group;
    bool draws;
    size_t n = (size_t)n_seqs * c->dspark_block_size;

    if (rc != DS_OK)
        return rc;
    begin_block(r, seqs, n_seqs);
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

    /* logits of as many sequences at a time as their buffer holds */
    group = r->logit_cap / c->dspark_block_size;
    draws = say_draws(r, seqs, n_seqs, group);
    for (uint32_t first = 0; first < n_seqs; first += group)
        choose(r, first, n_seqs - first < group ? n_seqs - first : group, draws);
    r->fn->read(r->dev, r->stream, r->host_drafts, r->drafts, n * sizeof *ids);
    r->fn->read(r->dev, r->stream, r->host_conf, r->conf, n * sizeof *conf);
    rc = ds_runner_finish(r, err);
    for (size_t i = 0; i < n && rc == DS_OK; i++) {
        ids[i] = r->host_drafts[i];
        if (conf)
            conf[i] = (float)(1.0 / (1.0 + exp(-(double)r->host_conf[i])));
    }
    return rc;
}
