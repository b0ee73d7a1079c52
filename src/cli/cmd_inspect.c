/* deepserve inspect: what a model directory holds, and what serving it takes. Reads headers only, no tensor data. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "cli/cli.h"
#include "cli/model_cli.h"
#include "kern/device.h"
#include "model/model.h"

typedef struct {
    const char *model, *device;
    int64_t context, batch, rows;
    bool json;
} options;

static const ds_opt table[] = {
    DS_CLI_OPT_MODEL(offsetof(options, model)),
    DS_CLI_OPT_DEVICE(offsetof(options, device)),
    { "context", DS_OPT_INT, offsetof(options, context), "0", "TOKENS", "plan for sequences of this length; 0 = the model's limit",
      .min = 0, .max = UINT32_MAX },
    { "batch", DS_OPT_INT, offsetof(options, batch), "1", "N", "plan for this many sequences at a time", .min = 1, .max = 65536 },
    { "rows", DS_OPT_INT, offsetof(options, rows), "256", "TOKENS", "rows of a step", .min = 1, .max = 32768 },
    { "json", DS_OPT_FLAG, offsetof(options, json), .help = "print one JSON object" },
    { 0 },
};

static const ds_opt_cmd command = {
    "deepserve inspect",
    "Shows a model's shape, the kind of each layer, where its bytes are, and what memory serving it takes.",
    "--model DIR [--context N] [--batch N] [--json]",
    "deepserve inspect --model models/demo --context 8192 --batch 4",
    table,
};

typedef struct {
    ds_runner_opts opts;
    ds_runner_size size;
    uint64_t n_blocks, weights, total, available; /* bytes but for n_blocks */
    uint64_t largest_context;                     /* that fits, 0: none does */
    bool fits;
} plan;

/* Everything that must be resident: what a run takes, and the weights but for the Engram tables, of which a step
 * touches a few rows. */
static uint64_t bytes_for(const ds_model *m, const ds_runner_opts *o, uint64_t weights, ds_runner_size *size)
{
    return ds_runner_bytes(m, o, size) && size->total <= UINT64_MAX - weights ? size->total + weights : UINT64_MAX;
}

static void make_plan(plan *p, const ds_model *m, const options *o)
{
    ds_model_layout lay;
    ds_model_stats st;
    ds_runner_size size;
    uint32_t low = 0, high;

    ds_model_layout_get(m, &lay);
    ds_model_stat(m, &st);
    memset(p, 0, sizeof *p);
    p->opts = (ds_runner_opts){
        .max_rows = (uint32_t)o->rows,
        .max_seqs = (uint32_t)o->batch,
        .max_context = o->context ? (uint32_t)o->context : lay.max_context,
        .n_tails = 1,
    };
    p->n_blocks = (uint64_t)o->batch * ((p->opts.max_context + (uint64_t)lay.block_tokens - 1) / lay.block_tokens);
    p->weights = st.file_bytes - st.kind_bytes[DS_KIND_ENGRAM_TABLE];
    p->available = ds_llm_available_bytes(m);
    p->total = bytes_for(m, &p->opts, p->weights, &p->size);
    p->fits = p->total <= p->available;

    high = lay.max_context;
    while (low < high) { /* bytes grow with the context */
        ds_runner_opts t = p->opts;
        t.max_context = low + (high - low + 1) / 2;
        if (bytes_for(m, &t, p->weights, &size) <= p->available)
            low = t.max_context;
        else
            high = t.max_context - 1;
    }
    p->largest_context = low;
}

static const char *engram_text(const ds_layer_topo *l, char buf[16])
{
    if (l->engram < 0)
        return "-";
    snprintf(buf, 16, "table %d", l->engram);
    return buf;
}

static const char *layer_text(int16_t layer, char buf[16])
{
    if (layer < 0)
        return "-";
    snprintf(buf, 16, "%d", layer);
    return buf;
}

static void print_layers(ds_buf *b, const ds_topology *t)
{
    char kv[16], idx[16], eng[16];

    ds_buf_puts(b, "\nlayers    half     ratio  mode     KV of  top-k of  Engram   notes\n");
    for (uint32_t l = 0; l < t->n_layers;) {
        const ds_layer_topo *a = &t->layer[l];
        uint32_t end = l + 1; /* layers that differ in nothing share a line */
        while (end < t->n_layers && memcmp(a, &t->layer[end], sizeof *a) == 0)
            end++;
        char range[24];
        snprintf(range, sizeof range, end - l > 1 ? "%u-%u" : "%u", l, end - 1);
        ds_buf_printf(b, "%-9s %-8s %5u  %-8s %5s  %8s  %-8s%s%s\n", range, ds_half_name(a->half), a->ratio, ds_mode_name(a->mode),
                      layer_text(a->kv_source, kv), layer_text(a->index_source, idx), engram_text(a, eng),
                      a->candidate_source ? " candidate source" : (a->uses_candidates && a->mode == DS_MODE_REINDEX ? " in the pool" : ""),
                      a->dspark_target >= 0 ? " DSpark tap" : "");
        l = end;
    }
}

static void print_bytes(ds_buf *b, const char *what, uint64_t bytes)
{
    if (bytes == UINT64_MAX)
        ds_buf_printf(b, "  %-36s too large to count\n", what);
    else if (bytes >= 1u << 30)
        ds_buf_printf(b, "  %-36s %12.2f GiB\n", what, (double)bytes / (1u << 30));
    else
        ds_buf_printf(b, "  %-36s %12.2f MiB\n", what, (double)bytes / (1u << 20));
}

static uint64_t used_bytes(const ds_model_stats *st)
{
    uint64_t sum = 0;
    for (unsigned k = 0; k < DS_N_KINDS; k++)
        sum += st->kind_bytes[k];
    return sum;
}

static void print_text(ds_buf *b, const ds_model *m, const plan *p)
{
    const ds_config *c = ds_model_config(m);
    ds_model_stats st;
    ds_model_layout lay;

    ds_model_stat(m, &st);
    ds_model_layout_get(m, &lay);
    ds_buf_printf(b, "hidden %u, %u layers + %u drafts, %u heads of %u (%u rotated), vocabulary %u, window %u, context %u\n",
                  c->hidden_size, c->num_hidden_layers, c->num_nextn_predict_layers, c->num_attention_heads, c->head_dim,
                  c->qk_rope_head_dim, c->vocab_size, c->sliding_window, c->max_position_embeddings);
    ds_buf_printf(b, "experts %u, %u of them a token, inner %u; indexer %u heads of %u, top %u; mHC %u; vision layers %u\n",
                  c->n_routed_experts, c->num_experts_per_tok, c->moe_intermediate_size, c->index_n_heads, c->index_head_dim, c->index_topk,
                  c->hc_mult, c->vision.num_hidden_layers);
    print_layers(b, ds_model_topology(m));
    ds_buf_printf(b, "\n%" PRIu64 " tensors\n", st.tensors);
    for (unsigned k = 0; k < DS_N_KINDS; k++)
        if (st.kind_bytes[k])
            print_bytes(b, ds_kind_name(k), st.kind_bytes[k]);
    if (st.used_tensors != st.tensors)
        print_bytes(b, "not used", st.file_bytes - used_bytes(&st));
    print_bytes(b, "all", st.file_bytes);
    ds_buf_printf(b, "\nmemory for %u sequence%s of %u tokens, %u rows a step\n", p->opts.max_seqs, p->opts.max_seqs == 1 ? "" : "s",
                  p->opts.max_context, p->opts.max_rows);
    char line[64];
    snprintf(line, sizeof line, "KV, %" PRIu64 " blocks of %u tokens", p->n_blocks, lay.block_tokens);
    print_bytes(b, line, p->size.kv);
    print_bytes(b, "sequence state", p->size.slots);
    print_bytes(b, "prefill tails", p->size.tails);
    print_bytes(b, "rotary and other tables", p->size.tables);
    print_bytes(b, "buffers and scratch", p->size.buffers + p->size.scratch + p->size.stage);
    print_bytes(b, "weights (Engram tables stay on disk)", p->weights);
    print_bytes(b, "all", p->total);
    print_bytes(b, "available here", p->available);
    if (p->fits)
        ds_buf_puts(b, "fits\n");
    else if (p->largest_context)
        ds_buf_printf(b, "does not fit; the largest context that would is %" PRIu64 " tokens\n", p->largest_context);
    else
        ds_buf_puts(b, "does not fit at any context\n");
}

static void json_layer(ds_buf *b, uint32_t i, const ds_layer_topo *l)
{
    ds_buf_printf(b, "%s{\"index\":%u,\"half\":\"%s\",\"ratio\":%u,\"mode\":\"%s\",", i ? "," : "", i, ds_half_name(l->half), l->ratio,
                  ds_mode_name(l->mode));
    if (l->kv_source >= 0)
        ds_buf_printf(b, "\"kv_source\":%d,", l->kv_source);
    else
        ds_buf_puts(b, "\"kv_source\":null,");
    if (l->index_source >= 0)
        ds_buf_printf(b, "\"index_source\":%d,", l->index_source);
    else
        ds_buf_puts(b, "\"index_source\":null,");
    if (l->engram >= 0)
        ds_buf_printf(b, "\"engram\":%d,", l->engram);
    else
        ds_buf_puts(b, "\"engram\":null,");
    ds_buf_printf(b, "\"rope\":\"%s\",\"candidate_source\":%s,\"uses_candidates\":%s,\"dspark_target\":%s}",
                  l->rope == DS_ROPE_PLAIN ? "plain" : "compress", l->candidate_source ? "true" : "false",
                  l->uses_candidates ? "true" : "false", l->dspark_target >= 0 ? "true" : "false");
}

static void print_json(ds_buf *b, const ds_model *m, const plan *p)
{
    const ds_config *c = ds_model_config(m);
    const ds_topology *t = ds_model_topology(m);
    ds_model_stats st;
    ds_model_layout lay;

    ds_model_stat(m, &st);
    ds_model_layout_get(m, &lay);
    ds_buf_printf(b,
                  "{\"shape\":{\"hidden_size\":%u,\"num_hidden_layers\":%u,\"draft_layers\":%u,\"num_attention_heads\":%u,\"head_dim\":%u,"
                  "\"vocab_size\":%u,\"sliding_window\":%u,\"max_context\":%u,\"n_routed_experts\":%u,\"num_experts_per_tok\":%u,"
                  "\"moe_intermediate_size\":%u,\"vision_layers\":%u},\"layers\":[",
                  c->hidden_size, c->num_hidden_layers, c->num_nextn_predict_layers, c->num_attention_heads, c->head_dim, c->vocab_size,
                  c->sliding_window, c->max_position_embeddings, c->n_routed_experts, c->num_experts_per_tok, c->moe_intermediate_size,
                  c->vision.num_hidden_layers);
    for (uint32_t l = 0; l < t->n_layers; l++)
        json_layer(b, l, &t->layer[l]);
    ds_buf_printf(b, "],\"tensors\":%" PRIu64 ",\"used_tensors\":%" PRIu64 ",\"bytes_total\":%" PRIu64 ",\"bytes\":{", st.tensors,
                  st.used_tensors, st.file_bytes);
    for (unsigned k = 0; k < DS_N_KINDS; k++) {
        ds_buf_puts(b, k ? "," : "");
        ds_json_write_str(b, ds_kind_name(k), strlen(ds_kind_name(k)), DS_JSON_COMPACT);
        ds_buf_printf(b, ":%" PRIu64, st.kind_bytes[k]);
    }
    ds_buf_puts(b, "},");
    ds_buf_printf(b,
                  "\"plan\":{\"context\":%u,\"batch\":%u,\"rows\":%u,\"block_tokens\":%u,\"block_bytes\":%zu,\"blocks\":%" PRIu64
                  ",\"kv_bytes\":%zu,\"slot_bytes\":%zu,\"slots_bytes\":%zu,\"tails_bytes\":%zu,\"tables_bytes\":%zu,\"buffers_bytes\":%zu,"
                  "\"scratch_bytes\":%zu,\"weights_bytes\":%" PRIu64 ",\"total_bytes\":%" PRIu64 ",\"available_bytes\":%" PRIu64
                  ",\"fits\":%s,\"largest_context\":%" PRIu64 "}}\n",
                  p->opts.max_context, p->opts.max_seqs, p->opts.max_rows, lay.block_tokens, lay.block_bytes, p->n_blocks, p->size.kv,
                  lay.slot_bytes, p->size.slots, p->size.tails, p->size.tables, p->size.buffers + p->size.stage, p->size.scratch,
                  p->weights, p->total, p->available, p->fits ? "true" : "false", p->largest_context);
}

int ds_cmd_inspect(int argc, char **argv)
{
    options o;
    ds_err err;
    ds_model *m;
    plan p;
    ds_buf out = { 0 };
    int status = ds_cli_parse(&command, &o, argc, argv, NULL);

    if (status >= 0)
        return status;
    if (ds_model_open(&m, o.model, &(ds_model_opts){ .device_name = o.device, .no_data = true }, &err) != DS_OK)
        return ds_cli_fail(argv[0], &err);
    ds_cli_say_device(o.device, ds_model_device(m)->name);
    if (o.context > ds_model_config(m)->max_position_embeddings) {
        ds_fail(&err, DS_E_ARG, "--context %" PRId64 " exceeds the model's limit of %u tokens", o.context,
                ds_model_config(m)->max_position_embeddings);
        ds_model_close(m);
        return ds_cli_fail(argv[0], &err);
    }
    make_plan(&p, m, &o);
    if (o.json)
        print_json(&out, m, &p);
    else
        print_text(&out, m, &p);
    ds_model_close(m);
    if (out.oom) {
        ds_fail(&err, DS_E_NOMEM, "out of memory");
        status = ds_cli_fail(argv[0], &err);
    } else {
        status = 0;
        fwrite(out.p, 1, out.len, stdout); /* main() notices a failed write */
    }
    ds_buf_free(&out);
    return status;
}
