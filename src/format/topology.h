/* What each layer is, derived from a legal config (model spec, section 2). Threads: plain data.   Memory: none is
 * allocated. */
#ifndef DS_FORMAT_TOPOLOGY_H
#define DS_FORMAT_TOPOLOGY_H

#include <stdbool.h>
#include <stdint.h>

#include "format/config.h"

typedef enum { DS_HALF_ENCODER, DS_HALF_DECODER, DS_HALF_DRAFT } ds_layer_half;

typedef enum {
    DS_MODE_WINDOW,  /* ratio 0: no global branch */
    DS_MODE_FULL,    /* owns compressor and indexer */
    DS_MODE_REINDEX, /* owns an indexer that scores its KV source's keys */
    DS_MODE_REUSE,   /* takes KV and top-k list of others */
} ds_layer_mode;

typedef enum {
    DS_ROPE_PLAIN,    /* rope_theta, no YaRN */
    DS_ROPE_COMPRESS, /* compress_rope_theta, YaRN if the config has it */
} ds_rope_kind;

typedef struct {
    uint8_t half;          /* ds_layer_half */
    uint8_t mode;          /* ds_layer_mode */
    uint8_t rope;          /* ds_rope_kind */
    uint8_t ratio;         /* 0, 1, 2 */
    int16_t kv_source;     /* layer whose entries it reads; -1 in window layers */
    int16_t kv_slot;       /* its ordinal in kv_source_layer_ids; -1 */
    int16_t index_source;  /* layer whose top-k list it uses; -1 */
    int16_t engram;        /* ordinal of its Engram table; -1 */
    bool candidate_source; /* builds the candidate pool */
    bool uses_candidates;  /* its own selection is restricted to the pool */
    int16_t dspark_target; /* ordinal of its DSpark tap; -1 */
} ds_layer_topo;

typedef struct {
    uint32_t n_layers; /* backbone and drafts; draft m is layer n_backbone + m */
    uint32_t n_backbone;
    uint32_t first_decoder; /* the last KV source */
    ds_layer_topo layer[DS_CONFIG_MAX_LAYERS];
} ds_topology;

void ds_topology_init(ds_topology *t, const ds_config *c);

const char *ds_half_name(unsigned half); /* "encoder", "decoder", "draft" */
const char *ds_mode_name(unsigned mode); /* "window", "full", "reindex", "reuse" */

#endif
