/* DSpark (spec 3.14): draft blocks, Markov and confidence heads. */
#include <math.h>
#include <string.h>

#include "model/model_internal.h"

static const ds_kern *kern(const ds_runner *r)
{
    return &r->m->k;
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
        if (q->token < 0 || (uint32_t)q->token >= c->vocab_size)
            return ds_fail(err, DS_E_ARG, "token id %d at position %u: ids are 0 .. %u", q->token, q->pos, c->vocab_size - 1);
    }
    return DS_OK;
}

/* Rows of the blocks: [y, noise, noise, ...] at pos, pos + 1, ... */
static void begin_block(ds_runner *r, const ds_draft_seq *seqs, uint32_t n_seqs)
{
    const ds_config *c = &r->m->c;
    ds_rowset *s = &r->enc;
    uint32_t B = c->dspark_block_size;
    size_t mix = ds_config_hc_rows(c);

    s->st.n_seqs = n_seqs;
    s->st.n_rows = n_seqs * B;
    s->pending = false;
    s->bidir = true;
    memset(s->dead, 0, s->st.n_rows);
    for (uint32_t i = 0; i < n_seqs; i++) {
        s->pos0[i] = (int32_t)seqs[i].pos;
        s->row0[i] = i * B;
        s->count[i] = B;
        s->slot[i] = seqs[i].slot;
        s->tail[i] = DS_NO_SLOT;
        s->win_lo[i] = (int32_t)seqs[i].win_lo;
        for (uint32_t k = 0; k < B; k++) {
            s->pos[i * B + k] = (int32_t)(seqs[i].pos + k);
            s->seq[i * B + k] = i;
            s->id[i * B + k] = k == 0 ? seqs[i].token : (int32_t)c->dspark_noise_token_id;
        }
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
}

/* Sequences first .. first + n - 1 of the block: logits, then draft after draft. */
static ds_rc choose(ds_runner *r, const ds_draft_seq *seqs, uint32_t first, uint32_t n, ds_draft_pick *pick, void *ctx, int32_t *ids,
                    float *conf, ds_err *err)
{
    const ds_config *c = &r->m->c;
    const ds_weights *w = &r->m->w;
    size_t B = c->dspark_block_size, V = c->vocab_size, d = c->hidden_size, rank = c->dspark_markov_rank;
    const float *x = r->x + first * B * d;
    ds_rc rc;

    kern(r)->rmsnorm(&r->e, &(ds_op_rmsnorm){ .y = r->h,
                                              .x = x,
                                              .w = w->draft_norm,
                                              .rows = n * B,
                                              .ldx = d,
                                              .ldy = d,
                                              .dim = c->hidden_size,
                                              .eps = (float)c->rms_norm_eps });
    kern(r)->linear(&r->e, &(ds_op_linear){ .y = r->logits, .x = r->h, .w = &w->head, .rows = n * B, .ldx = d, .ldy = V, .groups = 1 });
    for (uint32_t i = 0; i < n; i++)
        r->draft_id[i] = seqs[first + i].token;
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
        kern(r)->copy(&r->e, &(ds_op_copy){ .dst = r->conf_in, .src = x + i * d, .rows = n, .ldd = d + rank, .lds = B * d, .n = d });
        kern(r)->copy(&r->e, &(ds_op_copy){ .dst = r->conf_in + d, .src = r->markov, .rows = n, .ldd = d + rank, .lds = rank, .n = rank });
        kern(r)->linear(&r->e,
                        &(ds_op_linear){ .y = r->conf, .x = r->conf_in, .w = &w->conf, .rows = n, .ldx = d + rank, .ldy = 1, .groups = 1 });
        rc = ds_runner_check(r, err);
        for (uint32_t s = 0; s < n && rc == DS_OK; s++)
            rc = ds_runner_check_finite(r->logits + (s * B + i) * V, 1, V, "draft logits", err);
        if (rc != DS_OK)
            return rc;
        if (!pick)
            kern(r)->argmax(&r->e,
                            &(ds_op_argmax){ .id = r->draft_id, .x = r->logits + i * V, .rows = n, .ldx = B * V, .n = c->vocab_size });
        for (uint32_t s = 0; s < n; s++) {
            if (pick)
                r->draft_id[s] = pick(ctx, first + s, i, r->logits + (s * B + i) * V);
            if (r->draft_id[s] < 0 || (uint32_t)r->draft_id[s] >= V)
                return ds_fail(err, DS_E_ARG, "draft: the chooser gave token id %d: ids are 0 .. %zu", r->draft_id[s], V - 1);
            ids[(first + s) * B + i] = r->draft_id[s];
            if (conf)
                conf[(first + s) * B + i] = (float)(1.0 / (1.0 + exp(-(double)r->conf[s])));
        }
    }
    return DS_OK;
}

ds_rc ds_runner_draft(ds_runner *r, const ds_draft_seq *seqs, uint32_t n_seqs, ds_draft_pick *pick, void *ctx, int32_t *ids, float *conf,
                      ds_err *err)
{
    const ds_config *c = &r->m->c;
    ds_rc rc = check_drafts(r, seqs, n_seqs, err);
    uint32_t group;

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
    for (uint32_t first = 0; first < n_seqs && rc == DS_OK; first += group)
        rc = choose(r, seqs, first, n_seqs - first < group ? n_seqs - first : group, pick, ctx, ids, conf, err);
    return rc;
}
