/* deepserve logits: token ids in, logits out. */
#include "cli/cli.h"

#include <stdlib.h>

#include "cli/model_cli.h"
#include "format/npy.h"

typedef struct {
    const char *model, *tokens, *out, *device;
    int64_t chunk, last, threads, replay;
    int mode, act, kernels;
} options;

enum { MODE_EXACT, MODE_CED };

static const ds_opt table[] = {
    DS_CLI_OPT_MODEL(offsetof(options, model)),
    DS_CLI_OPT_IDS(offsetof(options, tokens), true, "1,2,3 or @FILE with a JSON array"),
    { .name = "out",
      .type = DS_OPT_STR,
      .offset = offsetof(options, out),
      .arg = "F.npy",
      .required = true,
      .help = "f32 array [rows, vocab] to write" },
    DS_CLI_OPT_MODE(offsetof(options, mode), "exact", "all layers on all tokens, or the decoder on the last sliding_window only"),
    DS_CLI_OPT_CHUNK(offsetof(options, chunk)),
    { .name = "last",
      .type = DS_OPT_INT,
      .offset = offsetof(options, last),
      .arg = "N",
      .min = 1,
      .max = 1 << 30,
      .help = "logits after the last N tokens only (default: all in exact mode, 1 in ced mode)" },
    { .name = "replay",
      .type = DS_OPT_INT,
      .offset = offsetof(options, replay),
      .arg = "P",
      .min = 1,
      .max = 1 << 30,
      .help = "ced mode: run P tokens, forget window state, continue from the cached entries" },
    DS_CLI_OPT_ACT(offsetof(options, act)),
    DS_CLI_OPT_DEVICE(offsetof(options, device)),
    DS_CLI_OPT_KERNELS(offsetof(options, kernels)),
    DS_CLI_OPT_THREADS(offsetof(options, threads)),
    { 0 },
};

static const ds_opt_cmd command = {
    .command = "deepserve logits",
    .summary = "Runs token ids through the model as a fresh sequence and writes the logits after each of the last N tokens.",
    .usage = "--model DIR --tokens IDS --out F.npy [options]",
    .example = "deepserve logits --model models/demo --tokens 0,17,42 --out logits.npy",
    .opts = table,
};

static ds_rc write_rows(void *ctx, const float *logits, uint32_t rows, uint32_t vocab, ds_err *err)
{
    (void)vocab;
    return ds_npy_append(ctx, logits, rows, err);
}

static ds_rc run(const options *o, const ds_model *m, ds_pool *pool, const ds_cli_ids *ids, uint32_t last, ds_npy_writer *file, ds_err *err)
{
    bool ced = o->mode == MODE_CED;
    uint32_t chunk = o->chunk < ids->n ? (uint32_t)o->chunk : ids->n;
    ds_runner_opts opts = { .bf16 = o->act == 1,
                            .max_rows = chunk,
                            .max_logits = ced || last < chunk ? last : chunk,
                            .max_context = ids->n,
                            .n_tails = ced,
                            .no_drafts = true,
                            .pool = pool };
    ds_runner *r = NULL;
    ds_solo s = { 0 };
    ds_rc rc = ds_runner_create(&r, m, &opts, err);

    if (rc == DS_OK)
        rc = ds_solo_init(&s, r, chunk, ced, err);
    if (rc == DS_OK && o->replay) {
        rc = ds_solo_prefill(&s, ids->p, (uint32_t)o->replay, 0, NULL, NULL, err);
        if (rc == DS_OK)
            rc = ds_solo_resume(&s, ids->p, ids->n, last, write_rows, file, err);
    } else if (rc == DS_OK) {
        rc = ds_solo_prefill(&s, ids->p, ids->n, last, write_rows, file, err);
    }
    ds_solo_fini(&s);
    ds_runner_destroy(r);
    return rc;
}

/* Limits that only the model knows. */
static ds_rc check(const options *o, const ds_config *c, const ds_cli_ids *ids, uint32_t last, ds_err *err)
{
    ds_rc rc = ds_cli_ids_check(ids, c->vocab_size, err);

    if (rc != DS_OK)
        return rc;
    if (ids->n > c->max_position_embeddings)
        return ds_fail(err, DS_E_ARG, "%u tokens: the model's context is %u", ids->n, c->max_position_embeddings);
    if (o->mode == MODE_CED && last > c->sliding_window)
        return ds_fail(err, DS_E_ARG, "--last %u: in ced mode only the last %u tokens go through all layers", last, c->sliding_window);
    return DS_OK;
}

int ds_cmd_logits(int argc, char **argv)
{
    options o = { 0 };
    ds_err err = { 0 };
    ds_cli_ids ids = { 0 };
    ds_cli_model m = { 0 };
    ds_npy_writer *file = NULL;
    uint32_t last;
    bool wrong;
    ds_rc rc;
    int status = ds_cli_parse(&command, &o, argc, argv, NULL);

    if (status != -1)
        return status;
    if (o.replay && o.mode != MODE_CED)
        return ds_cli_wrong("logits", "--replay needs --mode ced");
    rc = ds_cli_ids_parse(&ids, o.tokens, &wrong, &err);
    if (wrong)
        return ds_cli_wrong("logits", "%s", err.msg);
    if (rc == DS_OK && (o.last > ids.n || o.replay >= ids.n)) {
        const char *name = o.last > ids.n ? "last" : "replay";
        long long value = o.last > ids.n ? o.last : o.replay;
        uint32_t n = ids.n;
        if (o.tokens[0] != '@') {
            free(ids.p);
            return ds_cli_wrong("logits", "--%s %lld: there are %u tokens", name, value, n);
        }
        rc = ds_fail(&err, DS_E_ARG, "--%s %lld: there are %u tokens", name, value, n);
    }
    last = o.last ? (uint32_t)o.last : o.mode == MODE_CED ? 1 : ids.n;
    if (rc == DS_OK)
        rc = ds_cli_model_open(&m, o.model, &(ds_llm_place){ o.device, ds_cli_kernels(o.kernels), { .n_threads = (uint32_t)o.threads } },
                               &err);
    if (rc == DS_OK)
        rc = check(&o, ds_model_config(m.model), &ids, last, &err);
    if (rc == DS_OK)
        rc = ds_npy_create(&file, o.out, ds_model_config(m.model)->vocab_size, &err);
    if (rc == DS_OK)
        rc = run(&o, m.model, m.pool, &ids, last, file, &err);
    if (rc == DS_OK)
        rc = ds_npy_commit(file, &err);
    else
        ds_npy_abort(file);
    ds_cli_model_close(&m);
    free(ids.p);
    return rc == DS_OK ? 0 : ds_cli_fail("logits", &err);
}
