/* Where things lie inside a KV block, a state slot and a tail slot. */
#include <stdio.h>

#include "format/numfmt.h"
#include "model/model_internal.h"

/* Puts n records of `bytes` at the next multiple of `align` and moves *at behind them. */
static bool place(size_t *off, size_t *at, size_t n, size_t bytes, size_t align)
{
    size_t size, end;

    *off = (*at + align - 1) & ~(align - 1);
    if (*off < *at || !ds_size_mul(&size, n, bytes) || !ds_size_add(&end, *off, size))
        return false;
    *at = end;
    return true;
}

/* At least 8, at least n. */
static uint32_t power_of_two(uint32_t n)
{
    uint32_t p = 8;

    while (p < n)
        p *= 2;
    return p;
}

bool ds_places_init(ds_places *p, const ds_config *c, const ds_topology *t)
{
    bool ok = true;
    uint32_t step = c->num_nextn_predict_layers ? c->dspark_block_size + 1 : 0; /* rows of a verify step */
    size_t nd = (size_t)c->hc_mult * c->hidden_size, at = 0;

    *p = (ds_places){ 0 };
    p->rollback = step > DS_KV_ROLLBACK ? step : DS_KV_ROLLBACK;
    p->ring = c->sliding_window + p->rollback;
    p->n_open = power_of_two(p->rollback + 1);
    p->n_hist = power_of_two(p->rollback + (c->n_engram_layers ? c->engram_max_ngram_size - 1 : 0));

    /* block: unpadded, for the record is also what is stored and sent */
    for (uint32_t s = 0; s < c->n_kv_sources; s++) {
        uint32_t per_block = DS_KV_BLOCK_TOKENS / c->compress_ratios[c->kv_source_layer_ids[s]];
        ok = ok && place(&p->main_off[s], &at, per_block, ds_kv_main_bytes(c->head_dim), 1) &&
             place(&p->idx_off[s], &at, per_block, ds_kv_index_bytes(c->index_head_dim), 1);
    }
    p->block_bytes = at;

    at = 0;
    for (uint32_t l = 0; l < t->n_layers; l++)
        ok = ok && place(&p->ring_off[l], &at, p->ring, ds_kv_window_bytes(c->head_dim), 64);
    for (uint32_t s = 0; s < c->n_kv_sources; s++)
        if (c->compress_ratios[c->kv_source_layer_ids[s]] == 2)
            ok = ok && place(&p->open_off[s], &at, p->n_open, DS_OPEN_REC(c->head_dim), 64);
    if (c->n_engram_layers)
        ok = ok && place(&p->hist_off, &at, p->n_hist, 8, 64);
    p->slot_bytes = (at + 63) & ~(size_t)63;

    at = 0;
    for (uint32_t i = 0; i < c->n_dspark_targets; i++)
        p->n_enc_taps += c->dspark_target_layer_ids[i] < t->first_decoder;
    ok = ok && place(&p->tail_x, &at, c->sliding_window, nd * sizeof(float), 64) &&
         place(&p->tail_mix, &at, c->sliding_window, ds_config_hc_rows(c) * sizeof(float), 64) &&
         place(&p->tail_tap, &at, c->sliding_window, (size_t)p->n_enc_taps * c->hidden_size * sizeof(float), 64) &&
         place(&p->tail_dead, &at, c->sliding_window, 1, 64);
    for (uint32_t i = 0; i < c->n_engram_layers; i++)
        if (c->engram_layer_ids[i] >= t->first_decoder)
            ok = ok && place(&p->tail_rows[i], &at, c->sliding_window, ds_config_engram_columns(c) * sizeof(uint64_t), 64);
    p->tail_bytes = (at + 63) & ~(size_t)63;
    return ok;
}

static void add_part(ds_kv_layout *l, ds_kv_record record, uint32_t of, uint32_t ratio, uint32_t count, size_t bytes, size_t offset)
{
    l->part[l->n_parts++] =
        (ds_kv_part){ .record = record, .of = of, .ratio = ratio, .bytes = (uint32_t)bytes, .count = count, .offset = offset };
}

void ds_model_kv_layout(const ds_model *m, ds_kv_layout *out)
{
    const ds_config *c = &m->c;
    const ds_places *p = &m->at;

    *out = (ds_kv_layout){ .version = DS_KV_LAYOUT_VERSION,
                           .block_tokens = DS_KV_BLOCK_TOKENS,
                           .window = c->sliding_window,
                           .ring = p->ring,
                           .rollback = p->rollback,
                           .block_bytes = p->block_bytes,
                           .slot_bytes = p->slot_bytes };
    snprintf(out->numerics, sizeof out->numerics, "%s", m->dev->k.name);
    for (uint32_t s = 0; s < c->n_kv_sources; s++) {
        uint32_t ratio = c->compress_ratios[c->kv_source_layer_ids[s]], n = DS_KV_BLOCK_TOKENS / ratio;
        add_part(out, DS_KV_MAIN, s, ratio, n, ds_kv_main_bytes(c->head_dim), p->main_off[s]);
        add_part(out, DS_KV_INDEX, s, ratio, n, ds_kv_index_bytes(c->index_head_dim), p->idx_off[s]);
    }
    for (uint32_t l = 0; l < m->t.n_layers; l++)
        add_part(out, DS_KV_WINDOW, l, 1, p->ring, ds_kv_window_bytes(c->head_dim), p->ring_off[l]);
    for (uint32_t s = 0; s < c->n_kv_sources; s++)
        if (c->compress_ratios[c->kv_source_layer_ids[s]] == 2)
            add_part(out, DS_KV_OPEN, s, 1, p->n_open, DS_OPEN_REC(c->head_dim), p->open_off[s]);
    if (c->n_engram_layers)
        add_part(out, DS_KV_HISTORY, 0, 1, p->n_hist, 8, p->hist_off);
}

ds_ring_view ds_runner_ring(const ds_runner *r, uint32_t layer)
{
    const ds_places *p = &r->m->at;
    return (ds_ring_view){ r->slots, p->slot_bytes, p->ring_off[layer], p->ring, (uint32_t)ds_kv_window_bytes(r->m->c.head_dim) };
}

ds_ring_view ds_runner_tail_ring(const ds_runner *r, size_t off, size_t rec_bytes)
{
    return (ds_ring_view){ r->tails, r->m->at.tail_bytes, off, r->m->c.sliding_window, (uint32_t)rec_bytes };
}

ds_ring_view ds_runner_open_ring(const ds_runner *r, uint32_t source)
{
    const ds_places *p = &r->m->at;
    return (ds_ring_view){ r->slots, p->slot_bytes, p->open_off[source], p->n_open, (uint32_t)DS_OPEN_REC(r->m->c.head_dim) };
}

ds_ring_view ds_runner_hist_ring(const ds_runner *r)
{
    const ds_places *p = &r->m->at;
    return (ds_ring_view){ r->slots, p->slot_bytes, p->hist_off, p->n_hist, 8 };
}

ds_kv_view ds_runner_kv(const ds_runner *r, ds_record_kind kind, uint32_t source)
{
    const ds_config *c = &r->m->c;
    const ds_places *p = &r->m->at;
    uint32_t ratio = c->compress_ratios[c->kv_source_layer_ids[source]];
    size_t bytes = kind == DS_RECORD_MAIN ? ds_kv_main_bytes(c->head_dim) : ds_kv_index_bytes(c->index_head_dim);

    return (ds_kv_view){ r->kv,           p->block_bytes, kind == DS_RECORD_MAIN ? p->main_off[source] : p->idx_off[source],
                         (uint32_t)bytes, ratio,          DS_KV_BLOCK_TOKENS / ratio };
}
