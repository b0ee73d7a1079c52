/* Creating a run: one list of buffers serves both to say what a run takes and to take it. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "format/numfmt.h"
#include "model/model_internal.h"

enum { ALIGN = 256, FERRY_BYTES = 1 << 20 };

typedef struct {
    ds_runner *r;
    ds_runner_size size;
    bool dry;      /* only add up */
    bool overflow; /* sizes don't fit in size_t */
    bool failed;   /* memory is exhausted */
} builder;

/* Zeroed and aligned. Of the device, but for what is counted as stage. */
static void *take(builder *b, size_t *kind, size_t n, size_t size)
{
    size_t bytes;
    void *p;

    if (!ds_size_mul(&bytes, n, size) || !ds_size_add(&bytes, bytes, ALIGN) || !ds_size_add(kind, *kind, bytes) ||
        !ds_size_add(&b->size.total, b->size.total, bytes)) {
        b->overflow = true;
        return NULL;
    }
    if (b->dry || b->overflow || b->failed)
        return NULL;
    p = ds_mem_take(&b->r->mem, kind == &b->size.stage ? DS_MEM_STAGE : DS_MEM_DEVICE, bytes - ALIGN, NULL);
    b->failed = !p;
    return p;
}

static void take_rowset(builder *b, ds_rowset *s, bool streams)
{
    const ds_runner *r = b->r;
    const ds_config *c = &r->m->c;
    size_t *k = &b->size.buffers, R = r->o.max_rows, S = r->o.max_seqs, d = c->hidden_size;
    ds_op_rows *a = &s->rows;

    a->pos = take(b, k, R, sizeof *a->pos);
    a->id = take(b, k, R, sizeof *a->id);
    a->of_seq = take(b, k, R, sizeof *a->of_seq);
    a->dead = take(b, k, R, sizeof *a->dead);
    a->index = take(b, k, R, sizeof *a->index);
    a->pos0 = take(b, k, S, sizeof *a->pos0);
    a->row0 = take(b, k, S, sizeof *a->row0);
    a->count = take(b, k, S, sizeof *a->count);
    a->slot = take(b, k, S, sizeof *a->slot);
    a->tail = take(b, k, S, sizeof *a->tail);
    a->win_lo = take(b, k, S, sizeof *a->win_lo);
    a->dec_lo = take(b, k, S, sizeof *a->dec_lo);
    a->store_from = take(b, k, S, sizeof *a->store_from);
    a->blocks_ld = (r->o.max_context + DS_KV_BLOCK_TOKENS - 1) / DS_KV_BLOCK_TOKENS;
    a->blocks = take(b, k, S, a->blocks_ld * sizeof *a->blocks);
    s->st = (ds_step){ .pos = a->pos,
                       .seq = a->of_seq,
                       .id = a->id,
                       .dead = a->dead,
                       .row0 = a->row0,
                       .count = a->count,
                       .pos0 = a->pos0,
                       .slot = a->slot,
                       .tail = a->tail,
                       .win_lo = a->win_lo,
                       .store_from = a->store_from,
                       .blocks = a->blocks,
                       .blocks_ld = a->blocks_ld };
    if (!streams)
        return;
    s->X = take(b, k, R, c->hc_mult * d * sizeof(float));
    s->mix = take(b, k, R, ds_config_hc_rows(c) * sizeof(float));
    if (c->n_dspark_targets && !r->o.no_drafts)
        s->taps = take(b, k, R, c->n_dspark_targets * d * sizeof(float));
    for (uint32_t t = 0; t < c->n_engram_layers; t++)
        s->erow[t] = take(b, k, R, ds_config_engram_columns(c) * sizeof(uint64_t));
}

/* Lists of what the host says, one behind the other from `base` on; *bytes: how long all are. false: too long. */
static bool lay_out(ds_said *s, const ds_runner *r, unsigned char *base, size_t *bytes)
{
    size_t n[] = { (size_t)r->seq_cap * sizeof *s->seq,
                   (size_t)r->o.max_rows * sizeof *s->id,
                   (size_t)r->o.max_logits * sizeof *s->logit_index,
                   (size_t)r->hist_cap * sizeof *s->hist_off,
                   (size_t)r->hist_cap * 2 * sizeof *s->hist_rec,
                   (size_t)r->block_cap * sizeof *s->block };
    size_t at[sizeof n / sizeof *n], end = 0;

    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        at[i] = end;
        if (!ds_size_add(&end, end, (n[i] + 7) & ~(size_t)7))
            return false;
    }
    *bytes = end;
    if (base)
        *s = (ds_said){ .seq = (void *)(base + at[0]),
                        .id = (void *)(base + at[1]),
                        .logit_index = (void *)(base + at[2]),
                        .hist_off = (void *)(base + at[3]),
                        .hist_rec = (void *)(base + at[4]),
                        .block = (void *)(base + at[5]) };
    return true;
}

/* What passes between the host and the device in a step. */
static void take_talk(builder *b)
{
    ds_runner *r = b->r;
    const ds_config *c = &r->m->c;
    size_t S = r->o.max_seqs, R = r->o.max_rows, said = 0, *k = &b->size.stage,
           blocks = S * ((r->o.max_context + DS_KV_BLOCK_TOKENS - 1) / DS_KV_BLOCK_TOKENS);

    /* decoder rows of a CED prefill: a window of each sequence, or its rows of the step if they are more */
    r->pass_cap = r->o.n_tails ? (uint32_t)((S * c->sliding_window + R) / R + 2) : 0;
    r->seq_cap = (uint32_t)(S + (r->o.n_tails ? S + r->pass_cap : 0));
    r->hist_cap = c->n_engram_layers ? (uint32_t)(S * (c->engram_max_ngram_size - 1)) : 0;
    r->block_cap = (uint32_t)blocks;
    if (blocks > UINT32_MAX || !lay_out(&r->host, r, NULL, &said))
        b->overflow = true;
    r->said = take(b, k, 1, said);
    r->heard = take(b, &b->size.buffers, 1, said);
    if (r->said && r->heard) {
        lay_out(&r->host, r, r->said, &said);
        lay_out(&r->at, r, r->heard, &said);
    }
    r->answer = take(b, k, 1, sizeof *r->answer);
    r->draft_answer = take(b, k, 1, sizeof *r->draft_answer);
    r->result = take(b, &b->size.buffers, 1, sizeof *r->result);
    r->pass = take(b, k, r->pass_cap, sizeof *r->pass);
    r->slot_mark = take(b, k, r->o.n_slots, 1);
    r->image_in = take(b, k, c->vision.num_hidden_layers ? R : 0, c->hidden_size * sizeof(float));
    if (!r->o.device_logits)
        r->host_logits = take(b, k, r->logit_cap, c->vocab_size * sizeof(float));
    if (r->o.device_logits) {
        r->draws_in = take(b, k, S, sizeof *r->draws_in);
        r->draws = take(b, &b->size.buffers, S, sizeof *r->draws);
        r->host_drawn = take(b, k, S, sizeof *r->host_drawn);
        r->drawn = take(b, &b->size.buffers, S, sizeof *r->drawn);
        r->host_top = take(b, k, S, DS_MAX_DRAWS * DS_MAX_TOP * sizeof *r->host_top);
        r->top = take(b, &b->size.buffers, S, DS_MAX_DRAWS * DS_MAX_TOP * sizeof *r->top);
    }
    if (r->o.device_logits && !r->o.no_drafts) {
        r->ahead_in.first = take(b, k, S, sizeof *r->ahead_in.first);
        r->ahead_in.draw = take(b, k, S, sizeof *r->ahead_in.draw);
        r->ahead.first = take(b, &b->size.buffers, S, sizeof *r->ahead.first);
        r->ahead.draw = take(b, &b->size.buffers, S, sizeof *r->ahead.draw);
        r->ahead_seq = take(b, &b->size.buffers, S, sizeof *r->ahead_seq);
        r->ahead_id = take(b, &b->size.buffers, S, c->dspark_block_size * sizeof *r->ahead_id);
    }
    if (!r->o.no_drafts) {
        r->host_drafts = take(b, k, S, c->dspark_block_size * sizeof *r->host_drafts);
        r->host_conf = take(b, k, S, c->dspark_block_size * sizeof *r->host_conf);
    }
    take(b, k, b->dry, FERRY_BYTES); /* the ferry takes its own */
}

static uint32_t at_least(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static ds_kern_limits limits(const ds_runner *r)
{
    const ds_config *c = &r->m->c;
    const uint32_t d = c->hidden_size, inner = c->moe_intermediate_size, cols = ds_config_engram_columns(c);
    const uint32_t in[] = { d,
                            c->q_lora_rank,
                            c->num_attention_heads * c->head_dim / c->o_groups,
                            c->o_groups * c->o_lora_rank,
                            inner,
                            c->head_dim,
                            cols * c->engram_head_dim,
                            c->n_dspark_targets * d,
                            d + c->dspark_markov_rank,
                            c->vision.hidden_size * c->vision.downsample_ratio * c->vision.downsample_ratio,
                            3 * c->vision.patch_size * c->vision.patch_size,
                            c->vision.intermediate_size };
    const uint32_t out[] = { d,
                             c->q_lora_rank,
                             c->num_attention_heads * c->head_dim,
                             c->o_groups * c->o_lora_rank,
                             inner,
                             c->index_n_heads * c->index_head_dim,
                             c->n_routed_experts,
                             c->dspark_n_routed_experts,
                             cols ? (c->hc_mult + 1) * d : 0,
                             3 * c->vision.hidden_size,
                             2 * c->vision.intermediate_size };
    bool vision = r->o.max_patches > 0;
    ds_kern_limits l = {
        .threads = ds_exec_members(&r->e),
        .max_rows = at_least(r->o.max_rows, r->o.max_patches),
        .d = d,
        .n = c->hc_mult,
        .vocab = r->o.device_logits ? c->vocab_size : 0,
        .heads = c->num_attention_heads,
        .head_dim = c->head_dim,
        .window = c->sliding_window,
        .ring_len = r->m->at.ring,
        .index_heads = c->index_n_heads,
        .index_dim = c->index_head_dim,
        .topk = c->index_topk,
        .pool_blocks = c->candidate_topk_blocks,
        .pool_block = c->candidate_block_size,
        .max_entries = r->o.max_context,
        .experts = at_least(c->n_routed_experts, c->dspark_n_routed_experts),
        .k = at_least(c->num_experts_per_tok, c->dspark_num_experts_per_tok),
        .inner = inner,
        .patches = r->o.max_patches,
        .vit_heads = vision ? c->vision.num_attention_heads : 0,
        .vit_dim = vision ? c->vision.hidden_size / c->vision.num_attention_heads : 0,
    };

    for (size_t i = 0; i < sizeof in / sizeof *in; i++)
        l.widest_in = at_least(l.widest_in, in[i]);
    for (size_t i = 0; i < sizeof out / sizeof *out; i++)
        l.widest_out = at_least(l.widest_out, out[i]);
    return l;
}

static void take_vision(builder *b)
{
    ds_runner *r = b->r;
    const ds_config *c = &r->m->c;
    size_t *k = &b->size.buffers, P = r->o.max_patches, vd = c->vision.hidden_size, f = sizeof(float);
    size_t cell = (size_t)c->vision.downsample_ratio * c->vision.downsample_ratio;

    r->v.patches = take(b, k, P, 3 * (size_t)c->vision.patch_size * c->vision.patch_size * f);
    r->v.span = take(b, k, c->vision.max_image_tokens, c->hidden_size * f);
    r->v.x = take(b, k, P, vd * f);
    r->v.xn = take(b, k, P, vd * f);
    r->v.qkv = take(b, k, P, 3 * vd * f);
    r->v.o = take(b, k, P, vd * f);
    r->v.h = take(b, k, P, 2 * (size_t)c->vision.intermediate_size * f);
    /* at most one cell a patch: a strip one patch wide has as many padded cells as a third of its patches */
    r->v.cells = take(b, k, P, vd * cell * f);
    r->v.a = take(b, k, P, 2 * (size_t)c->hidden_size * f);
    r->vit_rope = take(b, &b->size.tables, P, vd / c->vision.num_attention_heads / 2 * f);
}

static void take_all(builder *b)
{
    ds_runner *r = b->r;
    const ds_config *c = &r->m->c;
    const ds_places *p = &r->m->at;
    size_t *k = &b->size.buffers, R = r->o.max_rows, f = sizeof(float), d = c->hidden_size, D = c->head_dim,
           inner = c->moe_intermediate_size;
    size_t E = at_least(c->n_routed_experts, c->dspark_n_routed_experts),
           ek = at_least(c->num_experts_per_tok, c->dspark_num_experts_per_tok);
    size_t Hi = c->index_n_heads, Di = c->index_head_dim, cols = ds_config_engram_columns(c);
    uint32_t B = r->o.no_drafts ? 0 : c->dspark_block_size;
    size_t all = R + ds_ranks_guests(r->m, &r->o);
    bool drafts = c->num_nextn_predict_layers && !r->o.no_drafts;
    ds_kern_limits lim;
    size_t scratch;

    r->kv = take(b, &b->size.kv, r->o.n_blocks, p->block_bytes);
    r->slots = take(b, &b->size.slots, r->o.n_slots, p->slot_bytes);
    if (r->o.n_tails)
        r->tails = take(b, &b->size.tails, r->o.n_tails, p->tail_bytes);
    for (int i = 0; i < 2; i++)
        r->rope[i] = take(b, &b->size.tables, (size_t)r->o.max_context + c->dspark_block_size + 1, c->qk_rope_head_dim * f);

    take_rowset(b, &r->enc, true);
    take_rowset(b, &r->dec, r->o.n_tails > 0);
    if (r->o.n_tails == 0) {
        r->dec.X = r->enc.X;
        r->dec.mix = r->enc.mix;
        r->dec.taps = r->enc.taps;
        memcpy(r->dec.erow, r->enc.erow, sizeof r->dec.erow);
    }
    r->x = take(b, k, R, d * f);
    r->xn = take(b, k, all, d * f);
    r->y = take(b, k, R, d * f);
    r->h = take(b, k, R, d * f);
    r->image = take(b, k, c->vision.num_hidden_layers ? R : 0, d * f);
    r->qr = take(b, k, R, c->q_lora_rank * f);
    r->q = take(b, k, R, c->num_attention_heads * D * f);
    r->kvx = take(b, k, R, D * f);
    r->u = take(b, k, R, (size_t)c->o_groups * c->o_lora_rank * f);
    r->rec = take(b, k, R, ds_kv_window_bytes(D));
    r->ck = take(b, k, R, D * f);
    r->cz = take(b, k, R, D * f);
    r->lat = take(b, k, R, D * f);
    r->ik = take(b, k, R, Di * f);
    r->iq = take(b, k, R, Hi * Di * f);
    r->g = take(b, k, R, Hi * f);
    r->iqrec = take(b, k, R, Hi * ds_kv_index_bytes(Di));
    r->sel = take(b, k, R, c->index_topk * sizeof *r->sel);
    r->n_sel = take(b, k, R, sizeof *r->n_sel);
    r->pool = take(b, k, R, c->candidate_topk_blocks * sizeof *r->pool);
    r->n_pool = take(b, k, R, sizeof *r->n_pool);
    r->rlog = take(b, k, R, E * f);
    r->rw = take(b, k, all, ek * f);
    r->rsel = take(b, k, R, ek * sizeof *r->rsel);
    r->sg = take(b, k, R, inner * f);
    r->su = take(b, k, R, inner * f);
    r->shared = take(b, k, R, d * f);
    r->part = take(b, k, all, ek * d * f);
    if (all > R)
        r->rlocal = take(b, k, all, ek * sizeof *r->rlocal);
    if (cols) {
        r->ge = take(b, k, R, cols * c->engram_head_dim * f);
        r->ekv = take(b, k, R, (c->hc_mult + 1) * d * f);
    }
    r->logit_cap = at_least(r->o.max_logits, B);
    r->logits = take(b, k, r->logit_cap, c->vocab_size * f);
    if (drafts) {
        r->mx = take(b, k, R, d * f);
        r->draft_id = take(b, k, R, sizeof *r->draft_id);
        r->drafts = take(b, k, R, sizeof *r->drafts);
        r->markov = take(b, k, R, c->dspark_markov_rank * f);
        r->conf_in = take(b, k, R, (d + c->dspark_markov_rank) * f);
        r->conf = take(b, k, R, f);
    }
    r->n_reset = c->n_engram_layers ? p->n_hist : 0;
    for (uint32_t s = 0; s < c->n_kv_sources; s++)
        r->n_reset += c->compress_ratios[c->kv_source_layer_ids[s]] == 2 ? p->n_open : 0;
    r->reset_off = take(b, k, r->n_reset, sizeof *r->reset_off);
    r->reset_rec = take(b, k, r->n_reset, sizeof *r->reset_rec);
    r->first_mix = take(b, k, c->hc_mult, sizeof *r->first_mix);
    take_talk(b);
    if (r->o.max_patches)
        take_vision(b);

    lim = limits(r);
    scratch = ds_runner_kern(r)->scratch_bytes(&lim);
    r->scratch.base = take(b, &b->size.scratch, 1, scratch);
    r->scratch.cap = scratch;
}

static void fill_defaults(ds_runner_opts *o, const ds_model *m)
{
    uint32_t per_seq;

    if (o->max_rows == 0)
        o->max_rows = 256;
    if (o->max_seqs == 0)
        o->max_seqs = 1;
    if (o->max_logits == 0)
        o->max_logits = o->max_seqs * m->at.rollback;
    if (o->max_context == 0)
        o->max_context = m->c.max_position_embeddings;
    per_seq = (o->max_context + DS_KV_BLOCK_TOKENS - 1) / DS_KV_BLOCK_TOKENS;
    if (o->n_blocks == 0)
        o->n_blocks = (uint64_t)per_seq * o->max_seqs < UINT32_MAX ? per_seq * o->max_seqs : UINT32_MAX - 1;
    if (o->n_slots == 0)
        o->n_slots = o->max_seqs;
    if (m->c.num_nextn_predict_layers == 0)
        o->no_drafts = true;
}

static ds_rc check_options(const ds_model *m, const ds_runner_opts *o, ds_err *err)
{
    if (m->no_data)
        return ds_fail(err, DS_E_ARG, "run: the model was opened without its data");
    if (o->comm && (o->comm->ranks != m->ranks || o->comm->rank != m->rank))
        return ds_fail(err, DS_E_ARG, "run: rank %u of %u of the model, rank %u of %u of the communicator", m->rank, m->ranks,
                       o->comm->rank, o->comm->ranks);
    if (o->max_rows > 1u << 20)
        return ds_fail(err, DS_E_ARG, "run: max_rows = %u: at most %u", o->max_rows, 1u << 20);
    if (o->max_seqs > 1u << 16 || o->n_slots > 1u << 20 || o->n_tails > 1u << 20)
        return ds_fail(err, DS_E_ARG, "run: max_seqs = %u, n_slots = %u, n_tails = %u: too many", o->max_seqs, o->n_slots, o->n_tails);
    if (o->max_context > m->c.max_position_embeddings)
        return ds_fail(err, DS_E_ARG, "run: context of %u tokens: the model's limit is %u", o->max_context, m->c.max_position_embeddings);
    if (o->max_context > (uint32_t)INT32_MAX - 4096)
        return ds_fail(err, DS_E_ARG, "run: context of %u tokens: too long", o->max_context);
    if (o->max_patches > 1u << 20)
        return ds_fail(err, DS_E_ARG, "run: max_patches = %u: at most %u", o->max_patches, 1u << 20);
    if (o->max_patches && m->c.vision.num_hidden_layers == 0)
        return ds_fail(err, DS_E_ARG, "run: images asked for, but the model has no vision tower");
    return DS_OK;
}

bool ds_runner_bytes(const ds_model *m, const ds_runner_opts *o, ds_runner_size *out)
{
    ds_runner r = { .m = m, .o = *o, .dev = m->dev };
    builder b = { .r = &r, .dry = true };

    fill_defaults(&r.o, m);
    r.e.pool = o->pool;
    take_all(&b);
    *out = b.size;
    return !b.overflow;
}

/* ---- tables ---- */

static ds_rc fill_rope(ds_runner *r, ds_err *err)
{
    const ds_config *c = &r->m->c;
    size_t row = c->qk_rope_head_dim;
    uint32_t positions = r->o.max_context + c->dspark_block_size + 1, some = (uint32_t)(FERRY_BYTES / (row * sizeof(float)));
    ds_rc rc = DS_OK;

    for (int kind = 0; kind < 2; kind++)
        for (uint32_t at = 0, n; at < positions && rc == DS_OK; at += n) {
            n = positions - at < some ? positions - at : some;
            ds_rope_fill((float *)r->ferry.stage, c, (ds_rope_kind)kind, at, n, &r->e);
            r->fn->write(r->dev, r->stream, r->rope[kind] + at * row, r->ferry.stage, n * row * sizeof(float));
            r->fn->mark(r->dev, r->stream, r->done);
            rc = r->fn->wait(r->dev, r->done, err);
        }
    return rc;
}

static ds_rc fill_rope2d(ds_runner *r, ds_err *err)
{
    const ds_config *c = &r->m->c;
    uint32_t dim = c->vision.hidden_size / c->vision.num_attention_heads;
    size_t bytes = (size_t)r->o.max_patches * (dim / 2) * sizeof(float);
    float *cs = malloc(bytes);
    ds_rc rc;

    if (!cs)
        return ds_fail(err, DS_E_NOMEM, "run: out of memory for %zu bytes", bytes);
    ds_rope2d_fill(cs, dim, c->vision.rope_theta, r->o.max_patches);
    rc = ds_ferry_put(&r->ferry, r->vit_rope, cs, bytes, err);
    free(cs);
    return rc;
}

/* Only what carries a position is cleared: everything else is masked by position. */
static ds_rc fill_reset(ds_runner *r, ds_err *err)
{
    const ds_config *c = &r->m->c;
    const ds_places *p = &r->m->at;
    uint64_t *off = calloc(r->n_reset + 1, sizeof *off);
    int32_t *rec = calloc(r->n_reset + 1, sizeof *rec);
    size_t n = 0;
    ds_rc rc = off && rec ? DS_OK : ds_fail(err, DS_E_NOMEM, "run: out of memory");

    if (rc == DS_OK) {
        for (uint32_t s = 0; s < c->n_kv_sources; s++)
            for (uint32_t i = 0; c->compress_ratios[c->kv_source_layer_ids[s]] == 2 && i < p->n_open; i++)
                off[n++] = p->open_off[s] + i * DS_OPEN_REC(c->head_dim);
        for (uint32_t i = 0; c->n_engram_layers && i < p->n_hist; i++)
            off[n++] = p->hist_off + i * (size_t)8;
        for (size_t i = 0; i < n; i++)
            rec[i] = -1;
        rc = ds_ferry_put(&r->ferry, r->reset_off, off, n * sizeof *off, err);
    }
    if (rc == DS_OK)
        rc = ds_ferry_put(&r->ferry, r->reset_rec, rec, n * sizeof *rec, err);
    free(off);
    free(rec);
    for (uint32_t s = 0; s < r->o.n_slots && rc == DS_OK; s++)
        ds_runner_reset_slot(r, s);
    return rc;
}

static ds_rc fill_tables(ds_runner *r, ds_err *err)
{
    float one = 1.0f;
    ds_rc rc = fill_rope(r, err);

    if (rc == DS_OK && r->o.max_patches)
        rc = fill_rope2d(r, err);
    if (rc == DS_OK)
        rc = fill_reset(r, err);
    return rc == DS_OK ? ds_ferry_put(&r->ferry, r->first_mix, &one, sizeof one, err) : rc;
}

ds_rc ds_runner_create(ds_runner **out, const ds_model *m, const ds_runner_opts *o, ds_err *err)
{
    ds_rc rc;
    ds_runner_size size;
    builder b = { 0 };
    ds_runner *r = NULL;
    ds_runner_opts opts = *o;

    *out = NULL;
    fill_defaults(&opts, m);
    rc = check_options(m, &opts, err);
    if (rc != DS_OK)
        return rc;
    if (!ds_runner_bytes(m, &opts, &size))
        return ds_fail(err, DS_E_NOMEM, "run: context of %u tokens, %u rows, %u blocks: more memory than can be addressed",
                       opts.max_context, opts.max_rows, opts.n_blocks);
    r = calloc(1, sizeof *r);
    if (!r)
        return ds_fail(err, DS_E_NOMEM, "run: out of memory");
    r->m = m;
    r->o = opts;
    r->dev = m->dev;
    r->fn = m->dev->fn;
    r->mem.d = m->dev;
    r->e = (ds_exec){ .pool = opts.pool, .scratch = &r->scratch, .bf16 = opts.bf16 };
    b.r = r;
    rc = r->fn->stream_create(r->dev, &r->stream, err);
    if (rc == DS_OK)
        rc = r->fn->fence_create(r->dev, &r->done, err);
    if (rc == DS_OK)
        rc = r->fn->fence_create(r->dev, &r->drafted, err);
    if (rc == DS_OK)
        rc = ds_ferry_init(&r->ferry, r->dev, r->stream, FERRY_BYTES, err);
    if (rc == DS_OK) {
        take_all(&b);
        if (b.failed || b.overflow)
            rc = ds_fail(err, DS_E_NOMEM, "run: out of memory for %zu bytes (KV blocks %zu, state slots %zu, tables %zu, buffers %zu)",
                         size.total, size.kv, size.slots, size.tables, size.buffers);
    }
    if (rc == DS_OK) {
        r->e.fault = &r->result->fault;
        r->e.stream = r->stream;
        rc = fill_tables(r, err);
    }
    if (rc == DS_OK)
        rc = ds_ranks_init(r, err);
    if (rc != DS_OK) {
        ds_runner_destroy(r);
        return rc;
    }
    *out = r;
    return DS_OK;
}

void ds_runner_destroy(ds_runner *r)
{
    if (!r)
        return;
    ds_exchange_destroy(r->exchange);
    ds_ferry_fini(&r->ferry);
    r->fn->stream_destroy(r->dev, r->stream); /* waits for what is on it */
    r->fn->fence_destroy(r->dev, r->done);
    r->fn->fence_destroy(r->dev, r->drafted);
    for (size_t i = 0; i < DS_RECORDINGS; i++)
        if (r->recording[i].g)
            r->fn->graph_destroy(r->dev, r->recording[i].g);
    ds_mem_free(&r->mem);
    free(r->seen);
    free(r);
}

uint32_t ds_runner_n_blocks(const ds_runner *r)
{
    return r->o.n_blocks;
}

uint32_t ds_runner_n_slots(const ds_runner *r)
{
    return r->o.n_slots;
}

void ds_runner_reset_slot(ds_runner *r, uint32_t slot)
{
    assert(slot < r->o.n_slots);
    ds_runner_kern(r)->scatter(&r->e, &(ds_op_scatter){ .dst = r->slots + slot * r->m->at.slot_bytes,
                                                        .off = r->reset_off,
                                                        .src = r->reset_rec,
                                                        .n = r->n_reset,
                                                        .bytes = sizeof *r->reset_rec });
}

void ds_runner_copy_slot(ds_runner *r, uint32_t src, uint32_t dst)
{
    size_t n = r->m->at.slot_bytes;

    assert(src < r->o.n_slots && dst < r->o.n_slots);
    if (src != dst)
        r->fn->copy(r->dev, r->stream, r->slots + dst * n, r->slots + src * n, n);
}

void ds_runner_copy_block(ds_runner *r, uint32_t src, uint32_t dst)
{
    size_t n = r->m->at.block_bytes;

    assert(src < r->o.n_blocks && dst < r->o.n_blocks);
    if (src != dst)
        r->fn->copy(r->dev, r->stream, r->kv + dst * n, r->kv + src * n, n);
}

void ds_runner_save_block(ds_runner *r, uint32_t block, void *stage)
{
    size_t n = r->m->at.block_bytes;

    assert(block < r->o.n_blocks);
    r->fn->read(r->dev, r->stream, stage, r->kv + block * n, n);
}

void ds_runner_load_block(ds_runner *r, uint32_t block, const void *stage)
{
    size_t n = r->m->at.block_bytes;

    assert(block < r->o.n_blocks);
    r->fn->write(r->dev, r->stream, r->kv + block * n, stage, n);
}

void ds_runner_save_slot(ds_runner *r, uint32_t slot, void *stage)
{
    size_t n = r->m->at.slot_bytes;

    assert(slot < r->o.n_slots);
    r->fn->read(r->dev, r->stream, stage, r->slots + slot * n, n);
}

void ds_runner_load_slot(ds_runner *r, uint32_t slot, const void *stage)
{
    size_t n = r->m->at.slot_bytes;

    assert(slot < r->o.n_slots);
    r->fn->write(r->dev, r->stream, r->slots + slot * n, stage, n);
}

ds_rc ds_runner_staged(ds_runner *r, ds_err *err)
{
    r->fn->mark(r->dev, r->stream, r->done);
    return r->fn->wait(r->dev, r->done, err);
}

ds_rc ds_runner_read_slot(ds_runner *r, uint32_t slot, void *to, ds_err *err)
{
    return ds_ferry_get(&r->ferry, to, r->slots + slot * r->m->at.slot_bytes, r->m->at.slot_bytes, err);
}

ds_rc ds_runner_read_block(ds_runner *r, uint32_t block, void *to, ds_err *err)
{
    return ds_ferry_get(&r->ferry, to, r->kv + block * r->m->at.block_bytes, r->m->at.block_bytes, err);
}

ds_rc ds_runner_record(ds_runner *r, ds_record_kind kind, uint32_t source, const uint32_t *blocks, uint32_t entry, uint8_t *rec,
                       size_t *bytes, ds_err *err)
{
    ds_kv_view v = ds_runner_kv(r, kind, source);
    ds_step st = { .blocks = blocks };

    *bytes = v.rec_bytes;
    return ds_ferry_get(&r->ferry, rec, ds_kv_at(&v, &st, 0, entry), v.rec_bytes, err);
}
