/* deepserve draft: greedy DSpark drafts after a prompt. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/json.h"
#include "cli/model_cli.h"

typedef struct {
    const char *model, *tokens, *device;
    int64_t chunk, threads;
    int mode, act, kernels;
    bool json;
} options;

static const ds_opt table[] = {
    DS_CLI_OPT_MODEL(offsetof(options, model)),
    DS_CLI_OPT_IDS(offsetof(options, tokens), true, "prompt: 1,2,3 or @FILE with a JSON array"),
    DS_CLI_OPT_MODE(offsetof(options, mode), "exact", "how the prompt is processed"),
    DS_CLI_OPT_CHUNK(offsetof(options, chunk)),
    DS_CLI_OPT_ACT(offsetof(options, act)),
    DS_CLI_OPT_DEVICE(offsetof(options, device)),
    DS_CLI_OPT_KERNELS(offsetof(options, kernels)),
    DS_CLI_OPT_THREADS(offsetof(options, threads)),
    { .name = "json", .type = DS_OPT_FLAG, .offset = offsetof(options, json), .help = "one JSON object instead of a table" },
    { 0 },
};

static const ds_opt_cmd command = {
    .command = "deepserve draft",
    .summary =
        "Processes a prompt, takes its most likely next token and proposes the tokens after it with the draft blocks. A confidence is the\n"
        "probability that this draft is accepted, given all before it were.",
    .usage = "--model DIR --tokens IDS [options]",
    .example = "deepserve draft --model models/demo --tokens 0,17,42 --json",
    .opts = table,
};

typedef struct {
    ds_token token;
    ds_token *ids;
    float *conf;
    uint32_t n;
} result;

static ds_rc largest(void *ctx, const float *logits, uint32_t rows, uint32_t vocab, ds_err *err)
{
    ds_token *best = ctx;
    const float *row = logits + (size_t)(rows - 1) * vocab;

    (void)err;
    *best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (row[i] > row[*best])
            *best = (int32_t)i;
    return DS_OK;
}

static ds_rc run(const options *o, const ds_model *m, ds_pool *pool, const ds_cli_ids *ids, result *res, ds_err *err)
{
    uint32_t chunk = o->chunk < ids->n ? (uint32_t)o->chunk : ids->n, rows = chunk > res->n ? chunk : res->n;
    ds_runner_opts opts = {
        .bf16 = o->act == 1, .max_rows = rows, .max_logits = 1, .max_context = ids->n, .n_tails = o->mode == 1, .pool = pool
    };
    ds_runner *r = NULL;
    ds_solo s = { 0 };
    ds_rc rc = ds_runner_create(&r, m, &opts, err);

    if (rc == DS_OK)
        rc = ds_solo_init(&s, r, chunk, o->mode == 1, err);
    if (rc == DS_OK)
        rc = ds_solo_prefill(&s, ids->p, ids->n, 1, largest, &res->token, err);
    if (rc == DS_OK)
        rc = ds_runner_draft(r, &(ds_draft_seq){ .slot = 0, .pos = s.n, .token = res->token, .win_lo = s.dec_win }, 1, res->ids, res->conf,
                             err);
    ds_solo_fini(&s);
    ds_runner_destroy(r);
    return rc;
}

static ds_rc print(const result *res, bool json, ds_err *err)
{
    ds_buf b = { 0 };
    ds_rc rc = DS_OK;

    if (json) {
        ds_buf_printf(&b, "{\"token\":%d,\"drafts\":[", res->token);
        for (uint32_t i = 0; i < res->n; i++)
            ds_buf_printf(&b, i ? ",%d" : "%d", res->ids[i]);
        ds_buf_puts(&b, "],\"confidence\":[");
        for (uint32_t i = 0; i < res->n; i++) {
            if (i)
                ds_buf_putc(&b, ',');
            ds_json_write_f64(&b, (double)res->conf[i]);
        }
        ds_buf_puts(&b, "]}\n");
    } else {
        ds_buf_printf(&b, "%-8d next token\n", res->token);
        for (uint32_t i = 0; i < res->n; i++)
            ds_buf_printf(&b, "%-8d draft %u, confidence %.3f\n", res->ids[i], i + 1, (double)res->conf[i]);
    }
    if (b.oom)
        rc = ds_fail(err, DS_E_NOMEM, "out of memory");
    else
        fputs(ds_buf_str(&b), stdout);
    ds_buf_free(&b);
    return rc;
}

int ds_cmd_draft(int argc, char **argv)
{
    options o = { 0 };
    ds_err err = { 0 };
    ds_cli_ids ids = { 0 };
    ds_cli_model m = { 0 };
    result res = { 0 };
    const ds_config *c = NULL;
    bool wrong;
    ds_rc rc;
    int status = ds_cli_parse(&command, &o, argc, argv, NULL);

    if (status != -1)
        return status;
    rc = ds_cli_ids_parse(&ids, o.tokens, &wrong, &err);
    if (wrong)
        return ds_cli_wrong("draft", "%s", err.msg);
    if (rc == DS_OK)
        rc = ds_cli_model_open(&m, o.model, &(ds_llm_place){ o.device, ds_cli_kernels(o.kernels), { .n_threads = (uint32_t)o.threads } },
                               &err);
    if (rc == DS_OK) {
        c = ds_model_config(m.model);
        rc = ds_cli_ids_check(&ids, c->vocab_size, &err);
    }
    if (rc == DS_OK && c->num_nextn_predict_layers == 0)
        rc = ds_fail(&err, DS_E_ARG, "the model has no draft blocks");
    if (rc == DS_OK && ids.n > c->max_position_embeddings)
        rc = ds_fail(&err, DS_E_ARG, "%u tokens: the model's context is %u", ids.n, c->max_position_embeddings);
    if (rc == DS_OK) {
        res.n = c->dspark_block_size;
        res.ids = calloc(res.n, sizeof *res.ids);
        res.conf = calloc(res.n, sizeof *res.conf);
        rc = res.ids && res.conf ? run(&o, m.model, m.pool, &ids, &res, &err) : ds_fail(&err, DS_E_NOMEM, "out of memory");
    }
    if (rc == DS_OK)
        rc = print(&res, o.json, &err);
    free(res.ids);
    free(res.conf);
    ds_cli_model_close(&m);
    free(ids.p);
    return rc == DS_OK ? 0 : ds_cli_fail("draft", &err);
}
