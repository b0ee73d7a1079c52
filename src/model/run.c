/* Creating a run: one list of buffers serves both to say what a run takes and to take it. */
#include <stdlib.h>
#include <string.h>

#include "format/numfmt.h"
#include "model/model_internal.h"

enum { ALIGN = 64, MAX_HELD = 128 };

typedef struct {
    ds_runner *r;
    ds_runner_size size;
    bool dry;      /* only add up */
    bool overflow; /* sizes don't fit in size_t */
    bool failed;   /* the heap is exhausted */
} builder;

/* Zeroed and aligned; pages are touched when they are used, not here. */
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
    p = calloc(1, bytes);
    if (!p) {
        b->failed = true;
        return NULL;
    }
    b->r->held[b->r->n_held++] = p;
    return (void *)(((uintptr_t)p + ALIGN - 1) & ~(uintptr_t)(ALIGN - 1));
}

static void take_rowset(builder *b, ds_rowset *s, bool streams)
{
    const ds_runner *r = b->r;
    const ds_config *c = &r->m->c;
    size_t *k = &b->size.buffers, R = r->o.max_rows, S = r->o.max_seqs, d = c->hidden_size;

    s->pos = take(b, k, R, sizeof *s->pos);
    s->id = take(b, k, R, sizeof *s->id);
    s->seq = take(b, k, R, sizeof *s->seq);
    s->dead = take(b, k, R, sizeof *s->dead);
    s->index = take(b, k, R, sizeof *s->index);
    s->pos0 = take(b, k, S, sizeof *s->pos0);
    s->row0 = take(b, k, S, sizeof *s->row0);
    s->count = take(b, k, S, sizeof *s->count);
    s->slot = take(b, k, S, sizeof *s->slot);
    s->tail = take(b, k, S, sizeof *s->tail);
    s->win_lo = take(b, k, S, sizeof *s->win_lo);
    s->store_from = take(b, k, S, sizeof *s->store_from);
    s->st.blocks_ld = (r->o.max_context + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    s->blocks = take(b, k, S, s->st.blocks_ld * sizeof *s->blocks);
    s->st.pos = s->pos;
    s->st.id = s->id;
    s->st.seq = s->seq;
    s->st.dead = s->dead;
    s->st.pos0 = s->pos0;
    s->st.row0 = s->row0;
    s->st.count = s->count;
    s->st.slot = s->slot;
    s->st.tail = s->tail;
    s->st.win_lo = s->win_lo;
    s->st.store_from = s->store_from;
    s->st.blocks = s->blocks;
    if (!streams)
        return;
    s->X = take(b, k, R, c->hc_mult * d * sizeof(float));
    s->mix = take(b, k, R, ds_config_hc_rows(c) * sizeof(float));
    if (c->n_dspark_targets && !r->o.no_drafts)
        s->taps = take(b, k, R, c->n_dspark_targets * d * sizeof(float));
    for (uint32_t t = 0; t < c->n_engram_layers; t++)
        s->erow[t] = take(b, k, R, ds_config_engram_columns(c) * sizeof(uint64_t));
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
        .vocab = c->vocab_size,
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
    r->xn = take(b, k, R, d * f);
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
    r->rw = take(b, k, R, ek * f);
    r->rsel = take(b, k, R, ek * sizeof *r->rsel);
    r->sg = take(b, k, R, inner * f);
    r->su = take(b, k, R, inner * f);
    r->shared = take(b, k, R, d * f);
    r->part = take(b, k, R, ek * d * f);
    if (cols) {
        r->ge = take(b, k, R, cols * c->engram_head_dim * f);
        r->ekv = take(b, k, R, (c->hc_mult + 1) * d * f);
    }
    r->logit_index = take(b, k, R, sizeof *r->logit_index);
    r->logit_cap = at_least(r->o.max_logits, B);
    r->logits = take(b, k, r->logit_cap, c->vocab_size * f);
    if (drafts) {
        r->mx = take(b, k, R, d * f);
        r->draft_id = take(b, k, R, sizeof *r->draft_id);
        r->markov = take(b, k, R, c->dspark_markov_rank * f);
        r->conf_in = take(b, k, R, (d + c->dspark_markov_rank) * f);
        r->conf = take(b, k, R, f);
    }
    r->slot_mark = take(b, k, r->o.n_slots, 1);
    if (r->o.max_patches)
        take_vision(b);

    lim = limits(r);
    scratch = r->m->k.scratch_bytes(&lim);
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
    per_seq = (o->max_context + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
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
    ds_runner r = { .m = m, .o = *o };
    builder b = { .r = &r, .dry = true };

    fill_defaults(&r.o, m);
    r.e.pool = o->pool;
    take_all(&b);
    *out = b.size;
    return !b.overflow;
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
    if (!r || !(r->held = calloc(MAX_HELD, sizeof *r->held)))
        goto nomem;
    r->m = m;
    r->o = opts;
    r->e = (ds_exec){ .pool = opts.pool, .scratch = &r->scratch, .fault = &r->fault, .bf16 = opts.bf16 };
    b.r = r;
    take_all(&b);
    if (b.failed || b.overflow)
        goto nomem;
    for (int kind = 0; kind < 2; kind++)
        ds_rope_fill(r->rope[kind], &m->c, (ds_rope_kind)kind, opts.max_context + m->c.dspark_block_size + 1, &r->e);
    if (opts.max_patches)
        ds_rope2d_fill(r->vit_rope, m->c.vision.hidden_size / m->c.vision.num_attention_heads, m->c.vision.rope_theta, opts.max_patches);
    for (uint32_t s = 0; s < opts.n_slots; s++)
        ds_runner_reset_slot(r, s);
    *out = r;
    return DS_OK;
nomem:
    ds_runner_destroy(r);
    return ds_fail(err, DS_E_NOMEM, "run: out of memory for %zu bytes (KV blocks %zu, state slots %zu, tables %zu, buffers %zu)",
                   size.total, size.kv, size.slots, size.tables, size.buffers);
}

void ds_runner_destroy(ds_runner *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n_held; i++)
        free(r->held[i]);
    free(r->held);
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

/* Only what carries a position is cleared: everything else is masked by position. */
void ds_runner_reset_slot(ds_runner *r, uint32_t slot)
{
    const ds_config *c = &r->m->c;
    const ds_places *p = &r->m->at;
    const int32_t none = -1;

    for (uint32_t s = 0; s < c->n_kv_sources; s++)
        if (c->compress_ratios[c->kv_source_layer_ids[s]] == 2) {
            ds_ring_view ring = ds_runner_open_ring(r, s);
            for (uint32_t i = 0; i < p->n_open; i++)
                memcpy(ds_ring_at(&ring, slot, (int32_t)i), &none, sizeof none);
        }
    if (c->n_engram_layers) {
        ds_ring_view ring = ds_runner_hist_ring(r);
        for (uint32_t i = 0; i < p->n_hist; i++)
            memcpy(ds_ring_at(&ring, slot, (int32_t)i), &none, sizeof none);
    }
}

const uint8_t *ds_runner_record(const ds_runner *r, ds_record_kind kind, uint32_t source, const uint32_t *blocks, uint32_t entry,
                                size_t *bytes)
{
    ds_kv_view v = ds_runner_kv(r, kind, source);
    ds_step st = { .blocks = blocks };

    *bytes = v.rec_bytes;
    return ds_kv_at(&v, &st, 0, entry);
}

uint8_t *ds_runner_block(ds_runner *r, uint32_t block)
{
    return r->kv + (size_t)block * r->m->at.block_bytes;
}

uint8_t *ds_runner_slot(ds_runner *r, uint32_t slot)
{
    return r->slots + (size_t)slot * r->m->at.slot_bytes;
}
