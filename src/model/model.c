/* Opening a model directory, and what can be asked of a model. */
#include <stdlib.h>

#include "model/model_internal.h"

static ds_rc check_ranks(const ds_model *m, ds_err *err)
{
    if (m->rank >= m->ranks)
        return ds_fail(err, DS_E_ARG, "rank %u of %u: they are numbered from 0", m->rank, m->ranks);
    if (m->ranks > m->c.n_routed_experts)
        return ds_fail(err, DS_E_ARG, "%u ranks: the model has %u experts a layer, and each rank needs one", m->ranks,
                       m->c.n_routed_experts);
    if (m->ranks > 1 && (m->dev->async || m->dev->records))
        return ds_fail(err, DS_E_ARG, "%u ranks: only on the CPU, not on %s", m->ranks, m->dev->name);
    return DS_OK;
}

ds_rc ds_model_open(ds_model **out, const char *dir, const ds_model_opts *opts, ds_err *err)
{
    ds_model_opts o = opts ? *opts : (ds_model_opts){ 0 };
    ds_model *m = calloc(1, sizeof *m);
    ds_rc rc;

    *out = NULL;
    if (!m)
        return ds_fail(err, DS_E_NOMEM, "model: out of memory");
    m->no_data = o.no_data;
    m->dev = o.device;
    rc = o.device ? DS_OK : ds_device_open(&m->own, o.device_name ? o.device_name : "cpu", &(ds_device_opts){ o.kernels }, err);
    if (!m->dev)
        m->dev = m->own;
    if (rc == DS_OK)
        rc = ds_config_load(&m->c, dir, err);
    m->ranks = o.ranks ? o.ranks : 1;
    m->rank = o.rank;
    if (rc == DS_OK)
        rc = check_ranks(m, err);
    if (rc == DS_OK) {
        ds_topology_init(&m->t, &m->c);
        if (!ds_places_init(&m->at, &m->c, &m->t))
            rc = ds_fail(err, DS_E_FORMAT, "config.json: the state of a sequence is larger than memory can be");
    }
    if (rc == DS_OK)
        rc = ds_weights_open(&m->w, dir, &m->c, &m->t, m->dev, &o, err);
    if (rc != DS_OK) {
        ds_model_close(m);
        return rc;
    }
    *out = m;
    return DS_OK;
}

void ds_model_close(ds_model *m)
{
    if (!m)
        return;
    ds_weights_close(&m->w);
    ds_device_close(m->own);
    free(m);
}

ds_device *ds_model_device(const ds_model *m)
{
    return m->dev;
}

const ds_config *ds_model_config(const ds_model *m)
{
    return &m->c;
}

const ds_topology *ds_model_topology(const ds_model *m)
{
    return &m->t;
}

const char *ds_model_kernels(const ds_model *m)
{
    return m->dev->k.name;
}

bool ds_model_room(const ds_model *m, uint64_t *left)
{
    uint64_t all;

    *left = 0;
    if (!m->dev->fn->room)
        return false;
    if (m->dev->fn->room(m->dev, left, &all, NULL) != DS_OK)
        *left = 0;
    return true;
}

void ds_model_stat(const ds_model *m, ds_model_stats *out)
{
    *out = m->w.stats;
}

void ds_model_layout_get(const ds_model *m, ds_model_layout *out)
{
    const ds_config *c = &m->c;

    *out = (ds_model_layout){
        .block_tokens = DS_KV_BLOCK_TOKENS,
        .block_bytes = m->at.block_bytes,
        .slot_bytes = m->at.slot_bytes,
        .tail_bytes = m->at.tail_bytes,
        .window = c->sliding_window,
        .ring = m->at.ring,
        .rollback = m->at.rollback,
        .drafts = c->num_nextn_predict_layers ? c->dspark_block_size : 0,
        .vocab = c->vocab_size,
        .max_context = c->max_position_embeddings,
        .lookback = c->n_engram_layers ? c->engram_max_ngram_size - 1 : 0,
    };
}
