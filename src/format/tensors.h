/* The tensors that a config implies (model spec, section 6), as one list that loader, `inspect` and `synth` share.
 *
 * A quantisable tensor may be stored in its released form (codes and a `.scale` beside them) or as BF16 without
 * scale; which one is decided for each tensor by its dtype and by whether its scale is there; a quantization_config
 * that says otherwise of all of them is refused. Every name may have `model.` in front of it in the file. Threads:
 * any.   Memory: none is allocated. */
#ifndef DS_FORMAT_TENSORS_H
#define DS_FORMAT_TENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include "format/config.h"
#include "format/engram.h"
#include "format/safetensors.h"

#define DS_TENSOR_NAME_MAX 96

/* How a tensor may be stored. */
typedef enum {
    DS_FORM_PLAIN, /* BF16 or F32 */
    DS_FORM_FP8,   /* F8_E4M3 [o, i] + F8_E8M0 [ceil(o/32), ceil(i/32)], or BF16 */
    DS_FORM_FP4,   /* I8 [o, i/2] + F8_E8M0 [o, i/32], or BF16 */
    DS_FORM_ROWS,  /* F8_E4M3 [rows, w] + F8_E8M0 [rows, w/32], or BF16: an Engram table */
    DS_FORM_I64,
} ds_tensor_form;

/* What a tensor is for; the rows of "bytes by kind". */
typedef enum {
    DS_KIND_EMBED, /* embed, head, image delimiters */
    DS_KIND_NORM,
    DS_KIND_HC,
    DS_KIND_ATTENTION,
    DS_KIND_COMPRESSOR,
    DS_KIND_INDEXER,
    DS_KIND_ROUTER,
    DS_KIND_EXPERT,
    DS_KIND_SHARED,
    DS_KIND_ENGRAM_TABLE,
    DS_KIND_ENGRAM,
    DS_KIND_DRAFT, /* main_proj, Markov and confidence heads; the draft blocks' other tensors have the kinds above */
    DS_KIND_VISION,
    DS_N_KINDS,
} ds_tensor_kind;

typedef struct {
    char name[DS_TENSOR_NAME_MAX];  /* of the values: "layers.0.attn.wq_a.weight" */
    char scale[DS_TENSOR_NAME_MAX]; /* of the scales; "" where the form has none */
    uint64_t shape[2];              /* logical, [out, in]; a vector is [n] */
    uint8_t ndim;
    uint8_t form;        /* ds_tensor_form */
    uint8_t kind;        /* ds_tensor_kind */
    uint8_t plain_dtype; /* PLAIN: what the release has, DS_DT_BF16 or DS_DT_F32 */
    bool optional;
    bool norm;      /* a norm's weight */
    int16_t layer;  /* drafts count on behind the backbone; -1: none */
    int32_t expert; /* -1: none */
} ds_tensor_want;

typedef ds_rc ds_tensor_fn(void *arg, const ds_tensor_want *w, ds_err *err);

/* Calls fn for every tensor, in the order of the computation; stops at the first failure and returns it. Scales have
 * no call of their own. */
ds_rc ds_tensors_each(const ds_config *c, ds_tensor_fn *fn, void *arg, ds_err *err);

/* A tensor as it is stored. */
typedef struct {
    ds_dtype dtype;       /* BF16, F32, I64; F8_E4M3 (FP8 and ROWS); I8 (FP4) */
    uint8_t form;         /* ds_tensor_form of the values: PLAIN for BF16 */
    const void *data;     /* NULL: an optional tensor that isn't there. At any alignment */
    const uint8_t *scale; /* NULL without scales */
    const ds_tensor *tensor, *scale_tensor;
    uint64_t rows, cols; /* logical; a vector is 1 x n */
} ds_weight;

/* Presence, dtype and shape. DS_E_FORMAT names tensor, what is there and what must be. Values aren't read. */
ds_rc ds_weight_find(ds_weight *out, const ds_st *st, const ds_tensor_want *w, ds_err *err);

/* ds_weight_find for all of them, and ds_tensors_check_quantisation. */
ds_rc ds_tensors_check(const ds_config *c, const ds_st *st, ds_err *err);

/* Whether what quantization_config claims can be true: with one, not all linears are BF16, and with `expert_dtype`
 * not all routed experts. Single BF16 tensors are fine, and so are quantised ones without quantization_config: they
 * say themselves what they are. */
ds_rc ds_tensors_check_quantisation(const ds_config *c, const ds_st *st, ds_err *err);

/* Finds the first NaN or infinity in values or scales; DS_E_FORMAT with tensor and element. Reads everything. */
ds_rc ds_weight_check_values(const ds_weight *w, ds_err *err);

/* Physical dtype and shape in the released form (`quantised`) or unquantised; scale_shape[0] = 0 where there is no
 * scale. */
void ds_want_storage(const ds_tensor_want *w, bool quantised, ds_dtype *dtype, uint64_t shape[2], uint64_t scale_shape[2]);

const char *ds_kind_name(unsigned kind);

/* ---- Engram's optional tensors (section 8) ---- */

/* *present: the checkpoint has engram.token_map; then map[vocab_size] receives it, checked against the class count. */
ds_rc ds_engram_token_map(int32_t *map, bool *present, const ds_config *c, const ds_st *st, ds_err *err);

/* As ds_engram_init, but engram.multipliers is used when present, and engram.primes and engram.offsets must equal
 * what the config implies. */
ds_rc ds_engram_load(ds_engram_hash *h, const ds_config *c, const ds_st *st, uint32_t table, int32_t pad_class, ds_err *err);

#endif
