/* The steps of opening a model directory that some commands take one by one. A service (role/service.h) takes all of
 * them. */
#ifndef DS_ROLE_PARTS_H
#define DS_ROLE_PARTS_H

#include <ds/llm.h>

#include "base/pool.h"
#include "engine/engine.h"
#include "model/model.h"

/* What a model computes on. */
typedef struct {
    const char *device;  /* as in ds_model_opts.device_name */
    const char *kernels; /* of the CPU; NULL: the best */
    ds_pool_opts team;
} ds_llm_place;

/* The team of threads and on it the model. The token map for Engram comes from the directory's tokenizer.json when
 * the checkpoint has none. On failure both are NULL. */
ds_rc ds_llm_open_model(ds_pool **pool, ds_model **model, const char *dir, const ds_llm_place *place, ds_err *err);

/* The same as one of several ranks, which have a part of the experts each: as in ds_model_opts. */
ds_rc ds_llm_open_rank(ds_pool **pool, ds_model **model, const char *dir, const ds_llm_place *place, uint32_t ranks, uint32_t rank,
                       ds_err *err);

/* DS_E_FORMAT: the directory's tokenizer hasn't just the ids that config.json says. */
ds_rc ds_llm_check_vocab(const ds_tokenizer *t, const char *dir, uint32_t vocab, ds_err *err);
/* ds_model_opts.token_map: Engram's map from the directory's tokenizer.json. */
ds_rc ds_llm_token_map(void *ctx, const char *dir, int32_t *map, uint32_t vocab, ds_err *err);
/* eos_token_id of the directory's generation_config.json, a number or a list; config.json's where there is none. */
ds_rc ds_llm_read_stop_ids(ds_token ids[DS_LLM_STOP_IDS], size_t *n_ids, const char *dir, const ds_config *c, ds_err *err);
/* What the keys of this model's cached blocks rest on: its content, its tokenizer, the prompts' dialect. `how`: as
 * for ds_model_digest. */
ds_rc ds_llm_identity(ds_engine_identity *out, const ds_model *m, const char *dir, const char *dialect, const ds_model_digest_opts *how,
                      ds_model_digest_info *info, ds_err *err);
/* Memory that a model's engines and towers may take: what its device has left, or by the kernel's own estimate what
 * this process may take (UINT64_MAX if it can't be read). */
uint64_t ds_llm_available_bytes(const ds_model *m);

#endif
