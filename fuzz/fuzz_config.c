/* config.json: whatever is accepted has a layer table and a tensor list that keep the promises of their headers. */
#include <string.h>

#include "format/tensors.h"
#include "format/topology.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok)
        __builtin_trap();
}

static ds_rc look(void *arg, const ds_tensor_want *w, ds_err *err)
{
    uint64_t shape[2], scale[2];
    ds_dtype t;

    must(strlen(w->name) > 3 && strlen(w->name) < DS_TENSOR_NAME_MAX - 8);
    must(w->shape[0] > 0 && w->shape[1] > 0 && w->shape[0] < (uint64_t)1 << 41 && w->shape[1] < (uint64_t)1 << 28);
    ds_want_storage(w, true, &t, shape, scale);
    must(ds_dtype_bytes(t) > 0);
    return ++*(unsigned *)arg == 5000 ? ds_fail(err, DS_E_AGAIN, "enough") : DS_OK; /* a hostile config may imply millions */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static ds_topology t;
    static ds_config c;
    ds_err err;
    unsigned n = 0;
    ds_rc rc = ds_config_parse(&c, (const char *)data, size, "config.json", &err);

    must(rc == DS_OK || rc == DS_E_FORMAT);
    if (rc != DS_OK) {
        must(err.msg[0] && !strchr(err.msg, '\n'));
        return 0;
    }
    ds_topology_init(&t, &c);
    must(t.n_layers <= DS_CONFIG_MAX_LAYERS && t.first_decoder < t.n_backbone);
    for (uint32_t l = 0; l < t.n_layers; l++) {
        const ds_layer_topo *y = &t.layer[l];
        must(y->ratio <= 2 && (y->ratio == 0) == (y->mode == DS_MODE_WINDOW));
        must((y->ratio == 0) == (y->kv_source < 0) && (y->ratio == 0) == (y->index_source < 0));
        if (y->ratio) {
            must(y->kv_source <= y->index_source && y->index_source <= (int)l);
            must(t.layer[y->kv_source].mode == DS_MODE_FULL && t.layer[y->kv_source].ratio == y->ratio);
            must(t.layer[y->index_source].kv_source == y->kv_source);
            must(y->kv_slot >= 0 && c.kv_source_layer_ids[y->kv_slot] == y->kv_source);
        }
    }
    rc = ds_tensors_each(&c, look, &n, &err);
    must(rc == DS_OK || n == 5000);
    for (uint32_t table = 0; table < c.n_engram_layers; table++) {
        ds_engram_hash h;
        uint64_t ids[DS_CONFIG_MAX_ENGRAM_COLUMNS];
        int32_t history[DS_CONFIG_MAX_ENGRAM_NGRAM] = { 0, (int32_t)c.engram_compressed_vocab_size - 1, DS_ENGRAM_DEAD };
        ds_engram_init(&h, &c, table, 0);
        must(h.rows == c.engram_num_embeddings[table]);
        ds_engram_ids(ids, &h, history);
        for (uint32_t k = 0; k < h.columns; k++)
            must(ids[k] < h.rows);
    }
    return 0;
}
