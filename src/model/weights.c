/* From a checkpoint's tensors to the weights of layers (spec 6).
 *
 * format/tensors.h says which tensors there are and checks each; here a table says which member of which struct a
 * name belongs to. What must be scanned for bad values is collected on the way and scanned afterwards by all
 * threads; not so large tables and large sets of experts, which are looked at when they are used. */
#include "model/weights.h"

#include <stdlib.h>
#include <string.h>

#include "format/engram.h"
#include "base/file.h"
#include "format/numfmt.h"
#include "model/scan.h"

typedef enum {
    AS_MAT,    /* ds_mat */
    AS_TABLE,  /* ds_mat of which only some rows are ever read */
    AS_VECTOR, /* const float *, a copy */
    AS_FLOATS, /* const float *, in the mapping where the file has F32 at a good address */
} member_type;

typedef struct {
    const char *name; /* behind the prefix; NULL ends a table */
    member_type type;
    size_t offset;
} member;

enum { OF_EXPERT = -1, FERRY_BYTES = 4 << 20 };

#define MEMBER(s, m, name, type)   \
    {                              \
        name, type, offsetof(s, m) \
    }

static const member layer_members[] = {
    MEMBER(ds_w_layer, hc_attn.fn, "hc_attn_fn", AS_FLOATS),
    MEMBER(ds_w_layer, hc_attn.base, "hc_attn_base", AS_VECTOR),
    MEMBER(ds_w_layer, hc_attn.scale, "hc_attn_scale", AS_VECTOR),
    MEMBER(ds_w_layer, hc_ffn.fn, "hc_ffn_fn", AS_FLOATS),
    MEMBER(ds_w_layer, hc_ffn.base, "hc_ffn_base", AS_VECTOR),
    MEMBER(ds_w_layer, hc_ffn.scale, "hc_ffn_scale", AS_VECTOR),
    MEMBER(ds_w_layer, attn_norm, "attn_norm.weight", AS_VECTOR),
    MEMBER(ds_w_layer, ffn_norm, "ffn_norm.weight", AS_VECTOR),
    MEMBER(ds_w_layer, sink, "attn.attn_sink", AS_VECTOR),
    MEMBER(ds_w_layer, wq_a, "attn.wq_a.weight", AS_MAT),
    MEMBER(ds_w_layer, q_norm, "attn.q_norm.weight", AS_VECTOR),
    MEMBER(ds_w_layer, wq_b, "attn.wq_b.weight", AS_MAT),
    MEMBER(ds_w_layer, wkv, "attn.wkv.weight", AS_MAT),
    MEMBER(ds_w_layer, kv_norm, "attn.kv_norm.weight", AS_VECTOR),
    MEMBER(ds_w_layer, wo_a, "attn.wo_a.weight", AS_MAT),
    MEMBER(ds_w_layer, wo_b, "attn.wo_b.weight", AS_MAT),
    MEMBER(ds_w_layer, c_wkv, "attn.compressor.wkv.weight", AS_MAT),
    MEMBER(ds_w_layer, c_wgate, "attn.compressor.wgate.weight", AS_MAT),
    MEMBER(ds_w_layer, c_norm, "attn.compressor.norm.weight", AS_VECTOR),
    MEMBER(ds_w_layer, i_wq_b, "attn.indexer.wq_b.weight", AS_MAT),
    MEMBER(ds_w_layer, i_weights, "attn.indexer.weights_proj.weight", AS_MAT),
    MEMBER(ds_w_layer, i_wk, "attn.indexer.wk.weight", AS_MAT),
    MEMBER(ds_w_layer, i_knorm, "attn.indexer.k_norm.weight", AS_VECTOR),
    MEMBER(ds_w_layer, gate, "ffn.gate.weight", AS_MAT),
    MEMBER(ds_w_layer, bias, "ffn.gate.bias", AS_VECTOR),
    MEMBER(ds_w_layer, bias_vl, "ffn.gate.bias_vl", AS_VECTOR),
    MEMBER(ds_w_layer, s1, "ffn.shared_experts.w1.weight", AS_MAT),
    MEMBER(ds_w_layer, s3, "ffn.shared_experts.w3.weight", AS_MAT),
    MEMBER(ds_w_layer, s2, "ffn.shared_experts.w2.weight", AS_MAT),
    MEMBER(ds_w_layer, e_table, "engram.embed.weight", AS_TABLE),
    MEMBER(ds_w_layer, e_wkv, "engram.wkv.weight", AS_MAT),
    MEMBER(ds_w_layer, e_q, "engram.q_weight", AS_VECTOR),
    MEMBER(ds_w_layer, e_k, "engram.k_weight", AS_VECTOR),
    { NULL, AS_MAT, 0 },
};

/* Stand among a draft block's tensors but belong to no layer. */
static const member draft_members[] = {
    MEMBER(ds_weights, main_proj, "main_proj.weight", AS_MAT),
    MEMBER(ds_weights, main_norm, "main_norm.weight", AS_VECTOR),
    MEMBER(ds_weights, draft_norm, "norm.weight", AS_VECTOR),
    MEMBER(ds_weights, markov_embed, "markov_head.embed.weight", AS_TABLE),
    MEMBER(ds_weights, markov_head, "markov_head.head.weight", AS_MAT),
    MEMBER(ds_weights, conf, "confidence_head.proj.weight", AS_MAT),
    { NULL, AS_MAT, 0 },
};

static const member block_members[] = {
    MEMBER(ds_w_block, norm1, "norm1.weight", AS_VECTOR),
    MEMBER(ds_w_block, norm2, "norm2.weight", AS_VECTOR),
    MEMBER(ds_w_block, qkv, "attn.wqkv.weight", AS_MAT),
    MEMBER(ds_w_block, qkv_bias, "attn.wqkv.bias", AS_VECTOR),
    MEMBER(ds_w_block, o, "attn.wo.weight", AS_MAT),
    MEMBER(ds_w_block, o_bias, "attn.wo.bias", AS_VECTOR),
    MEMBER(ds_w_block, w1, "mlp.w1.weight", AS_MAT),
    MEMBER(ds_w_block, w2, "mlp.w2.weight", AS_MAT),
    { NULL, AS_MAT, 0 },
};

static const member model_members[] = {
    MEMBER(ds_weights, embed, "embed.weight", AS_TABLE),
    MEMBER(ds_weights, head, "head.weight", AS_MAT),
    MEMBER(ds_weights, norm, "norm.weight", AS_VECTOR),
    MEMBER(ds_weights, image_start, "image_start", AS_VECTOR),
    MEMBER(ds_weights, image_end, "image_end", AS_VECTOR),
    MEMBER(ds_weights, image_newline, "image_newline", AS_VECTOR),
    MEMBER(ds_weights, patch, "vision.patch_embed.proj.weight", AS_MAT),
    MEMBER(ds_weights, patch_bias, "vision.patch_embed.proj.bias", AS_VECTOR),
    MEMBER(ds_weights, vision_norm, "vision.norm.weight", AS_VECTOR),
    MEMBER(ds_weights, aligner1, "aligner.w1.weight", AS_MAT),
    MEMBER(ds_weights, aligner1_bias, "aligner.w1.bias", AS_VECTOR),
    MEMBER(ds_weights, aligner2, "aligner.w2.weight", AS_MAT),
    MEMBER(ds_weights, aligner2_bias, "aligner.w2.bias", AS_VECTOR),
    { NULL, AS_MAT, 0 },
};

typedef struct {
    ds_weights *w;
    const char *dir;
    const ds_config *c;
    ds_device *d;
    ds_ferry ferry; /* used where the device can't read the host's memory */
    uint32_t ranks, rank;
    bool no_data;
    bool names_file; /* the message says already where the fault is */
    uint64_t scan_bytes;
    ds_scan scan;
    struct placed {
        ds_mat *m;
        ds_mat_use use;
    } * place; /* matrices that the device takes, experts aside */
    size_t n_place, cap_place;
} binder;

/* Zeroed memory that close() frees. */
static void *hold(ds_weights *w, size_t n, size_t size)
{
    void *p;

    if (w->n_blocks == w->cap_blocks) {
        size_t cap = w->cap_blocks ? 2 * w->cap_blocks : 256;
        void **grown = realloc(w->blocks, cap * sizeof *grown);
        if (!grown)
            return NULL;
        w->blocks = grown;
        w->cap_blocks = cap;
    }
    p = ds_calloc_aligned(n, size);
    if (p)
        w->blocks[w->n_blocks++] = p;
    return p;
}

static ds_rc no_memory(ds_err *err)
{
    return ds_fail(err, DS_E_NOMEM, "out of memory");
}

/* Where ops read these bytes of the host's: there, or in a copy. NULL: failed. */
static const void *for_ops(binder *b, const void *host, size_t bytes, ds_err *err)
{
    void *p;

    if (!b->d->fn->place)
        return host;
    p = ds_mem_take(&b->w->mem, DS_MEM_DEVICE, bytes, err);
    return p && ds_ferry_put(&b->ferry, p, host, bytes, err) == DS_OK ? p : NULL;
}

/* ---- one tensor ---- */

static ds_rc set_vector(binder *b, const float **out, const ds_weight *t, bool copy, ds_err *err)
{
    size_t n = t->rows * t->cols;
    float *v;

    if (!copy && t->dtype == DS_DT_F32 && (uintptr_t)t->data % sizeof(float) == 0) {
        *out = for_ops(b, t->data, n * sizeof *v, err);
        return *out ? DS_OK : DS_E_NOMEM;
    }
    v = hold(b->w, n, sizeof *v);
    if (!v)
        return no_memory(err);
    if (t->dtype == DS_DT_F32)
        memcpy(v, t->data, n * sizeof *v);
    for (size_t i = 0; t->dtype == DS_DT_BF16 && i < n; i++) {
        uint16_t h;
        memcpy(&h, (const char *)t->data + 2 * i, sizeof h);
        v[i] = ds_bf16_to_f32(h);
    }
    *out = for_ops(b, v, n * sizeof *v, err);
    return *out ? DS_OK : DS_E_NOMEM;
}

/* use: a ds_mat_use, or OF_EXPERT: placed with its layer's others. */
static ds_rc set_mat(binder *b, ds_mat *m, const ds_weight *t, int use, ds_err *err)
{
    static const ds_mat_type quantised[] = {
        [DS_FORM_FP8] = DS_MAT_FP8_32X32, [DS_FORM_FP4] = DS_MAT_MXFP4, [DS_FORM_ROWS] = DS_MAT_FP8_ROWS
    };

    *m = (ds_mat){ .in = (uint32_t)t->cols, .out = t->rows, .data = t->data, .scale = t->scale };
    if (t->form == DS_FORM_PLAIN)
        m->type = t->dtype == DS_DT_BF16 ? DS_MAT_BF16 : DS_MAT_F32;
    else
        m->type = quantised[t->form];
    if (use == OF_EXPERT || b->no_data || !b->d->fn->place)
        return DS_OK;
    if (b->n_place == b->cap_place) {
        size_t cap = b->cap_place ? 2 * b->cap_place : 256;
        struct placed *grown = realloc(b->place, cap * sizeof *grown);
        if (!grown)
            return no_memory(err);
        b->place = grown;
        b->cap_place = cap;
    }
    b->place[b->n_place++] = (struct placed){ m, (ds_mat_use)use };
    return DS_OK;
}

/* later: its values are looked at when a step uses them. */
static ds_rc count(binder *b, const ds_tensor *t, unsigned kind, bool later, ds_err *err)
{
    if (!t)
        return DS_OK;
    b->w->stats.used_tensors++;
    b->w->stats.kind_bytes[kind] += t->bytes;
    b->w->stats.chosen_bytes += later && kind == DS_KIND_EXPERT ? t->bytes : 0;
    if (b->no_data || later || ds_scan_add(&b->scan, t))
        return DS_OK;
    return no_memory(err);
}

static const member *lookup(const member *list, const char *name)
{
    while (list->name && strcmp(list->name, name) != 0)
        list++;
    return list->name ? list : NULL;
}

/* Text behind "head" and a number and a dot ("layers.12.attn" -> "attn"), else NULL. */
static const char *behind_number(const char *name, const char *head)
{
    size_t n = strlen(head);

    if (strncmp(name, head, n) != 0)
        return NULL;
    name += n;
    while (*name >= '0' && *name <= '9')
        name++;
    return *name == '.' ? name + 1 : NULL;
}

/* The struct and member that a tensor belongs to; *m NULL: none (the Engram constants). */
static void *owner(const binder *b, const ds_tensor_want *want, const member **m)
{
    ds_w_layer *layer = want->layer >= 0 ? &b->w->layer[want->layer] : NULL;
    const char *rest = behind_number(want->name, want->layer < (int)b->c->num_hidden_layers ? "layers." : "mtp.");

    if (layer && rest) {
        *m = lookup(layer_members, rest);
        if (*m)
            return layer;
        *m = lookup(draft_members, rest);
        return b->w;
    }
    rest = behind_number(want->name, "vision.blocks.");
    if (rest) {
        *m = lookup(block_members, rest);
        return &b->w->block[strtoul(want->name + strlen("vision.blocks."), NULL, 10)];
    }
    *m = lookup(model_members, want->name);
    return b->w;
}

/* "layers.L.ffn.experts.E.w1.weight" */
static ds_mat *expert_mat(const binder *b, const ds_tensor_want *want)
{
    const ds_w_layer *w = &b->w->layer[want->layer];
    const char *which = strstr(want->name, ".w");

    return (which[2] == '1' ? w->w1 : which[2] == '2' ? w->w2 : w->w3) + ((uint32_t)want->expert - w->first);
}

static bool is_here(const binder *b, const ds_tensor_want *want)
{
    const ds_w_layer *w = &b->w->layer[want->layer];

    return (uint32_t)want->expert - w->first < w->n_own;
}

static ds_rc bind(void *arg, const ds_tensor_want *want, ds_err *err)
{
    binder *b = arg;
    ds_weight t;
    const member *m = NULL;
    void *at = NULL;
    bool table = false, later;
    ds_rc rc = ds_weight_find(&t, b->w->files, want, err);

    if (rc != DS_OK || !t.data)
        return rc;
    if (want->expert >= 0 && !is_here(b, want))
        return DS_OK;
    if (want->expert < 0) {
        at = owner(b, want, &m);
        table = m && m->type == AS_TABLE;
    }
    later = want->expert >= 0 && b->w->layer[want->layer].seen;
    rc = count(b, t.tensor, want->kind, later || (table && t.tensor->bytes >= b->scan_bytes), err);
    if (rc == DS_OK)
        rc = count(b, t.scale_tensor, want->kind, later || (table && t.scale_tensor && t.scale_tensor->bytes >= b->scan_bytes), err);
    if (rc != DS_OK)
        return rc;
    if (want->expert >= 0)
        return set_mat(b, expert_mat(b, want), &t, OF_EXPERT, err);
    if (!m)
        return DS_OK;
    at = (char *)at + m->offset;
    if (m->type == AS_MAT || m->type == AS_TABLE)
        return set_mat(b, at, &t, !table ? DS_USE_LINEAR : want->kind == DS_KIND_ENGRAM_TABLE ? DS_USE_FAR : DS_USE_TABLE, err);
    return b->no_data ? DS_OK : set_vector(b, at, &t, m->type == AS_VECTOR, err);
}

/* Which rank has which expert. NULL: no memory. */
static const ds_expert_place *places(binder *b, uint32_t n_experts)
{
    ds_expert_place *p = hold(b->w, n_experts, sizeof *p);

    for (uint32_t r = 0; r < b->ranks && p; r++) {
        uint32_t first, n;
        ds_exchange_deal(n_experts, b->ranks, r, &first, &n);
        for (uint32_t i = 0; i < n; i++)
            p[first + i] = (ds_expert_place){ .rank = r, .slot = i };
    }
    return p;
}

/* Whether the experts of a layer are one large table, of which a step reads some rows: that is where ops read them in
 * the mapping and this rank's rows alone choose them. A device that packs them reads all of them now, and what a rank
 * finds out about the rows of another could not be said to them. */
static bool are_table(const binder *b, const ds_w_layer *w)
{
    uint64_t bytes = (uint64_t)w->n_own * 3 * b->c->hidden_size * b->c->moe_intermediate_size / 2; /* of the codes, in the smallest form */

    return b->ranks == 1 && !b->d->fn->place && bytes >= b->scan_bytes;
}

/* Room for the layers, their experts, and the vision blocks. */
static ds_rc make_layers(binder *b, const ds_topology *t, ds_err *err)
{
    const ds_config *c = b->c;

    b->w->layer = hold(b->w, t->n_layers, sizeof *b->w->layer);
    b->w->block = hold(b->w, c->vision.num_hidden_layers, sizeof *b->w->block);
    if (!b->w->layer || !b->w->block)
        return no_memory(err);
    for (uint32_t l = 0; l < t->n_layers; l++) {
        ds_w_layer *w = &b->w->layer[l];
        const bool draft = l >= c->num_hidden_layers;
        w->n_experts = draft ? c->dspark_n_routed_experts : c->n_routed_experts;
        w->k = draft ? c->dspark_num_experts_per_tok : c->num_experts_per_tok;
        ds_exchange_deal(w->n_experts, b->ranks, b->rank, &w->first, &w->n_own);
        w->w1 = hold(b->w, w->n_own, sizeof *w->w1);
        w->w3 = hold(b->w, w->n_own, sizeof *w->w3);
        w->w2 = hold(b->w, w->n_own, sizeof *w->w2);
        w->place = places(b, w->n_experts);
        w->seen = are_table(b, w) ? hold(b->w, w->n_own, sizeof *w->seen) : NULL;
        if (!w->w1 || !w->w3 || !w->w2 || !w->place || (are_table(b, w) && !w->seen))
            return no_memory(err);
    }
    return DS_OK;
}

/* ---- Engram hash ---- */

/* The tokenizer's map has as many classes as the configuration says, and no others. */
static ds_rc check_map(const binder *b, const int32_t *map, ds_err *err)
{
    const uint32_t classes = b->c->engram_compressed_vocab_size;
    uint32_t seen = 0;
    uint8_t *mark = calloc((size_t)classes + 1, 1);
    ds_rc rc = mark ? DS_OK : no_memory(err);

    for (uint32_t i = 0; i < b->c->vocab_size && rc == DS_OK; i++) {
        int32_t v = map[i];
        if (v < 0 || (uint32_t)v >= classes) {
            rc = ds_fail(err, DS_E_FORMAT, "the tokenizer's token map gives token %u the class %d; engram_compressed_vocab_size is %u", i,
                         v, classes);
        } else if (!mark[v]) {
            mark[v] = 1;
            seen++;
        }
    }
    if (rc == DS_OK && seen != classes)
        rc = ds_fail(err, DS_E_FORMAT, "the tokenizer's token map has %u classes; engram_compressed_vocab_size is %u", seen, classes);
    free(mark);
    return rc;
}

static ds_rc load_map(binder *b, int32_t *map, const ds_model_opts *o, ds_err *err)
{
    bool present = false;
    ds_rc rc = ds_engram_token_map(map, &present, b->c, b->w->files, err);

    if (rc != DS_OK || present)
        return rc;
    if (!o->token_map)
        return ds_fail(err, DS_E_FORMAT,
                       "the model has Engram layers but no tensor engram.token_map, and no tokenizer was given to derive it from");
    rc = o->token_map(o->ctx, b->dir, map, b->c->vocab_size, err);
    b->names_file = rc != DS_OK;
    return rc == DS_OK ? check_map(b, map, err) : rc;
}

static ds_rc bind_hash(binder *b, const ds_model_opts *o, ds_err *err)
{
    const ds_config *c = b->c;
    ds_weights *w = b->w;
    const size_t n = c->n_engram_layers, cols = ds_config_engram_columns(c), orders = c->engram_max_ngram_size;
    int32_t *map = hold(w, c->vocab_size, sizeof *map);
    uint64_t *prime = hold(w, n * cols, sizeof *prime), *offset = hold(w, n * cols, sizeof *offset),
             *mult = hold(w, n * orders, sizeof *mult);
    ds_rc rc;

    if (!map || !prime || !offset || !mult)
        return no_memory(err);
    if (b->no_data)
        return DS_OK;
    rc = load_map(b, map, o, err);
    w->map_host = map;
    w->pad = map[c->engram_pad_token_id];
    for (uint32_t i = 0; i < n && rc == DS_OK; i++) {
        ds_engram_hash h;
        rc = ds_engram_load(&h, c, w->files, i, w->pad, err);
        memcpy(prime + i * cols, h.prime, cols * sizeof *prime);
        memcpy(offset + i * cols, h.offset, cols * sizeof *offset);
        memcpy(mult + i * orders, h.multiplier, orders * sizeof *mult);
    }
    if (rc != DS_OK)
        return rc;
    w->map = for_ops(b, map, c->vocab_size * sizeof *map, err);
    w->prime = w->map ? for_ops(b, prime, n * cols * sizeof *prime, err) : NULL;
    w->offset = w->prime ? for_ops(b, offset, n * cols * sizeof *offset, err) : NULL;
    w->mult = w->offset ? for_ops(b, mult, n * orders * sizeof *mult, err) : NULL;
    return w->mult ? DS_OK : DS_E_NOMEM;
}

/* ---- opening ---- */

/* Weights are mapped, and every step reads those that aren't tables: without memory for them they would come from the
 * disk for every token. Of experts that are tables a step reads those that its rows choose, so what memory doesn't
 * hold of them may stay in the files. */
static ds_rc check_memory(const ds_weights *w, ds_device *d, const ds_model_opts *o, ds_err *err)
{
    uint64_t bytes = 0, left, all;
    ds_rc rc;

    for (unsigned k = 0; k < DS_N_KINDS; k++)
        bytes += k == DS_KIND_ENGRAM_TABLE ? 0 : w->stats.kind_bytes[k];
    bytes -= w->stats.chosen_bytes;
    if (o->no_data)
        return DS_OK;
    if (d->fn->room) {
        rc = d->fn->room(d, &left, &all, err);
        if (rc != DS_OK || bytes <= left)
            return rc;
        return ds_fail(
            err, DS_E_NOMEM,
            "the model is too big for %s: its weights are %.1f GiB (Engram tables not counted), %.1f of the device's %.1f GiB are free",
            d->name, (double)bytes / 0x1p30, (double)left / 0x1p30, (double)all / 0x1p30);
    }
    if (o->memory_bytes == 0 || bytes <= o->memory_bytes)
        return DS_OK;
    return ds_fail(err, DS_E_NOMEM,
                   "the model is too big for this machine: its weights are %.1f GiB (%s not counted), the memory is %.1f GiB",
                   (double)bytes / 0x1p30, w->stats.chosen_bytes ? "Engram tables and routed experts" : "Engram tables",
                   (double)o->memory_bytes / 0x1p30);
}

/* Everything that the device wants in memory or a form of its own. */
static ds_rc place_all(binder *b, uint32_t n_layers, ds_err *err)
{
    const ds_device_fns *fn = b->d->fn;
    ds_rc rc = DS_OK;

    if (b->no_data || !fn->place)
        return DS_OK;
    for (size_t i = 0; i < b->n_place && rc == DS_OK; i++)
        rc = fn->place(b->d, &b->w->mem, b->place[i].m, b->place[i].use, err);
    for (uint32_t l = 0; l < n_layers && rc == DS_OK; l++) {
        ds_w_layer *w = &b->w->layer[l];
        rc = fn->place_experts(b->d, &b->w->mem, w->w1, w->w3, w->w2, w->n_own, err);
    }
    b->w->stats.packed_bytes = b->w->mem.bytes[DS_MEM_DEVICE];
    return rc;
}

ds_rc ds_weights_open(ds_weights *w, const char *dir, const ds_config *c, const ds_topology *t, ds_device *d, const ds_model_opts *o,
                      ds_err *err)
{
    binder b = { .ranks = o->ranks ? o->ranks : 1,
                 .rank = o->rank,
                 .w = w,
                 .dir = dir,
                 .c = c,
                 .d = d,
                 .no_data = o->no_data,
                 .scan_bytes = o->scan_bytes ? o->scan_bytes : DS_SCAN_AT_LOAD_BYTES };
    char q[112];
    size_t n;
    ds_rc rc;

    *w = (ds_weights){ .mem.d = d };
    rc = ds_st_open(&w->files, dir, err);
    if (rc == DS_OK && d->fn->place && !o->no_data)
        rc = ds_ferry_init(&b.ferry, d, NULL, FERRY_BYTES, err);
    if (rc != DS_OK)
        return rc;
    ds_st_tensors(w->files, &n);
    w->stats.tensors = n;
    w->stats.file_bytes = ds_st_data_bytes(w->files);
    rc = make_layers(&b, t, err);
    if (rc == DS_OK)
        rc = ds_tensors_each(c, bind, &b, err);
    if (rc == DS_OK)
        rc = ds_tensors_check_quantisation(c, w->files, err);
    if (rc == DS_OK)
        rc = check_memory(w, d, o, err);
    if (rc == DS_OK && c->n_engram_layers)
        rc = bind_hash(&b, o, err);
    if (rc != DS_OK && !b.names_file)
        ds_err_prefix(err, rc, "%s: ", ds_file_label(q, sizeof q, dir));
    if (rc == DS_OK)
        rc = ds_scan_run(&b.scan, w->files, o->pool, err);
    if (rc == DS_OK)
        rc = place_all(&b, t->n_layers, err);
    ds_scan_fini(&b.scan);
    ds_ferry_fini(&b.ferry);
    free(b.place);
    return rc;
}

void ds_weights_close(ds_weights *w)
{
    for (size_t i = 0; i < w->n_blocks; i++)
        free(w->blocks[i]);
    free(w->blocks);
    ds_mem_free(&w->mem);
    ds_st_close(w->files);
    *w = (ds_weights){ 0 };
}
