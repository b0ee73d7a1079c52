#include "format/topology.h"

#include <string.h>

void ds_topology_init(ds_topology *t, const ds_config *c)
{
    int kv = -1, kv_slot = -1, index = -1, tap = 0, table = 0;
    uint32_t next_kv = 0, next_index = 0;

    memset(t, 0, sizeof *t);
    t->n_layers = ds_config_layers(c);
    t->n_backbone = c->num_hidden_layers;
    t->first_decoder = c->kv_source_layer_ids[c->n_kv_sources - 1];
    for (uint32_t l = 0; l < t->n_layers; l++) {
        ds_layer_topo *y = &t->layer[l];
        bool draft = l >= t->n_backbone;
        bool owns_kv = !draft && next_kv < c->n_kv_sources && c->kv_source_layer_ids[next_kv] == l;
        bool owns_index = !draft && next_index < c->n_index_sources && c->index_source_layer_ids[next_index] == l;
        if (owns_kv) {
            kv = (int)l;
            kv_slot = (int)next_kv++;
        }
        if (owns_index) {
            index = (int)l;
            next_index++;
        }
        *y = (ds_layer_topo){
            .half = draft                  ? DS_HALF_DRAFT
                    : l < t->first_decoder ? DS_HALF_ENCODER
                                           : DS_HALF_DECODER,
            .mode = DS_MODE_WINDOW,
            .rope = DS_ROPE_PLAIN,
            .ratio = c->compress_ratios[l],
            .kv_source = -1,
            .kv_slot = -1,
            .index_source = -1,
            .engram = -1,
            .dspark_target = -1,
        };
        if (!draft && table < (int)c->n_engram_layers && c->engram_layer_ids[table] == l)
            y->engram = (int16_t)table++;
        if (!draft && tap < (int)c->n_dspark_targets && c->dspark_target_layer_ids[tap] == l)
            y->dspark_target = (int16_t)tap++;
        if (y->ratio == 0)
            continue;
        y->mode = owns_kv ? DS_MODE_FULL : owns_index ? DS_MODE_REINDEX : DS_MODE_REUSE;
        y->rope = DS_ROPE_COMPRESS;
        y->kv_source = (int16_t)kv;
        y->kv_slot = (int16_t)kv_slot;
        y->index_source = (int16_t)index;
        y->candidate_source = c->candidate_source_layer_id == (int32_t)l;
        y->uses_candidates = owns_index && c->candidate_source_layer_id >= 0 && (int32_t)l > c->candidate_source_layer_id;
    }
}

const char *ds_half_name(unsigned half)
{
    static const char *const name[] = { "encoder", "decoder", "draft" };
    return half < 3 ? name[half] : "?";
}

const char *ds_mode_name(unsigned mode)
{
    static const char *const name[] = { "window", "full", "reindex", "reuse" };
    return mode < 4 ? name[mode] : "?";
}
