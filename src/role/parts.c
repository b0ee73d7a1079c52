#include "role/parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"

ds_rc ds_llm_check_vocab(const ds_tokenizer *t, const char *dir, uint32_t vocab, ds_err *err)
{
    char q[112];

    return ds_tokenizer_size(t) == vocab ? DS_OK
                                         : ds_fail(err, DS_E_FORMAT, "%s: tokenizer.json has %u ids, vocab_size in config.json is %u",
                                                   ds_file_label(q, sizeof q, dir), ds_tokenizer_size(t), vocab);
}

ds_rc ds_llm_token_map(void *ctx, const char *dir, int32_t *map, uint32_t vocab, ds_err *err)
{
    char path[4096];
    ds_tokenizer *t;
    uint32_t classes;
    ds_rc rc;

    (void)ctx;
    if ((size_t)snprintf(path, sizeof path, "%s/tokenizer.json", dir) >= sizeof path)
        return ds_fail(err, DS_E_ARG, "model directory: the path is longer than %zu bytes", sizeof path - 16);
    rc = ds_tokenizer_open(&t, path, err);
    if (rc != DS_OK)
        return rc;
    rc = ds_llm_check_vocab(t, dir, vocab, err);
    if (rc == DS_OK)
        rc = ds_tokenizer_engram_map(t, (uint32_t *)map, &classes, err);
    ds_tokenizer_destroy(t);
    return rc;
}

ds_rc ds_llm_open_model(ds_pool **pool, ds_model **model, const char *dir, const ds_llm_place *place, ds_err *err)
{
    return ds_llm_open_rank(pool, model, dir, place, 1, 0, err);
}

ds_rc ds_llm_open_rank(ds_pool **pool, ds_model **model, const char *dir, const ds_llm_place *place, uint32_t ranks, uint32_t rank,
                       ds_err *err)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    ds_model_opts o = { .device_name = place->device,
                        .kernels = place->kernels,
                        .token_map = ds_llm_token_map,
                        .ranks = ranks,
                        .rank = rank,
                        .memory_bytes = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0 };
    ds_rc rc = ds_pool_create(pool, &place->team, err);

    *model = NULL;
    if (rc != DS_OK)
        return rc;
    o.pool = *pool;
    rc = ds_model_open(model, dir, &o, err);
    if (rc != DS_OK) {
        ds_pool_destroy(*pool);
        *pool = NULL;
    }
    return rc;
}

ds_rc ds_llm_read_stop_ids(ds_token ids[DS_LLM_STOP_IDS], size_t *n_ids, const char *dir, const ds_config *c, ds_err *err)
{
    char path[4096], label[200], *text;
    size_t n;
    struct stat st;
    ds_json_doc *doc;
    const ds_json *eos, *v;
    ds_rc rc;

    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    ds_file_label(label, sizeof label, path);
    ids[0] = (ds_token)c->eos_token_id;
    *n_ids = 1;
    if (lstat(path, &st) != 0)
        return DS_OK;
    rc = ds_file_read(&text, &n, path, DS_CONFIG_FILE_MAX_BYTES, err);
    if (rc != DS_OK)
        return rc;
    rc = ds_json_parse(&doc, text, n, &(ds_json_opts){ .max_depth = 64, .refuse_duplicates = true }, err);
    free(text);
    if (rc != DS_OK)
        return ds_err_prefix(err, rc, "%s: ", label);
    if (!ds_json_is(ds_json_root(doc), DS_JSON_OBJECT))
        rc = ds_fail(err, DS_E_FORMAT, "%s: must hold an object, holds %s", label, ds_json_type_name(ds_json_root(doc)));
    eos = ds_json_get(ds_json_root(doc), "eos_token_id");
    if (eos && eos->type != DS_JSON_NULL) {
        v = eos->type == DS_JSON_ARRAY ? eos->child : eos;
        *n_ids = 0;
        for (; v && rc == DS_OK; v = eos->type == DS_JSON_ARRAY ? v->next : NULL) {
            int64_t id;
            if (!ds_json_i64(v, &id) || id < 0 || id >= c->vocab_size)
                rc = ds_fail(err, DS_E_FORMAT, "%s: eos_token_id: expected token ids below %u", label, c->vocab_size);
            else if (*n_ids == DS_LLM_STOP_IDS)
                rc = ds_fail(err, DS_E_FORMAT, "%s: eos_token_id: more than %d ids", label, DS_LLM_STOP_IDS);
            else
                ids[(*n_ids)++] = (ds_token)id;
        }
    }
    ds_json_free(doc);
    return rc;
}

ds_rc ds_llm_identity(ds_engine_identity *out, const ds_model *m, const char *dir, const char *dialect, const ds_model_digest_opts *how,
                      ds_model_digest_info *info, ds_err *err)
{
    enum { TOKENIZER_MAX_BYTES = 1 << 28 };
    char path[4096], *text;
    size_t n;
    ds_rc rc;

    if ((size_t)snprintf(path, sizeof path, "%s/tokenizer.json", dir) >= sizeof path)
        return ds_fail(err, DS_E_ARG, "model directory: the path is longer than %zu bytes", sizeof path - 16);
    rc = ds_file_read(&text, &n, path, TOKENIZER_MAX_BYTES, err);
    if (rc != DS_OK)
        return rc;
    ds_sha256(out->tokenizer, text, n);
    free(text);
    ds_sha256(out->dialect, dialect, strlen(dialect));
    return ds_model_digest(out->model, m, dir, how, info, err);
}

uint64_t ds_llm_available_bytes(const ds_model *m)
{
    char line[128];
    uint64_t kib = UINT64_MAX / 1024, left;
    FILE *f;

    if (ds_model_room(m, &left))
        return left;
    f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}
