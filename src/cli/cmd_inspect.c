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
#include "role/service.h"

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
    { "batch", DS_OPT_INT, offsetof(options, batch), "1", "N", "plan for this many sequences at a time", .min = 1, .max = 4096 },
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

/* The plan of a service that decodes `batch` sequences of that length at a time, each with blocks of its own. */
static ds_rc make_plan(ds_service_plan *p, const ds_model *m, const options *o, ds_err *err)
{
    uint64_t context = o->context ? (uint64_t)o->context : ds_model_config(m)->max_position_embeddings;
    uint64_t blocks = (uint64_t)o->batch * ((context + DS_KV_BLOCK_TOKENS - 1) / DS_KV_BLOCK_TOKENS);

    return ds_service_plan_wish(p, m,
                                &(ds_service_opts){ .engine = { .max_context = (uint32_t)o->context,
                                                                .max_running = (uint32_t)o->batch,
                                                                .step_tokens = (uint32_t)o->rows,
                                                                .kv_blocks = blocks < UINT32_MAX ? (uint32_t)blocks : UINT32_MAX,
                                                                .drafts = DS_ENGINE_DRAFTS_AUTO } },
                                err);
}

static bool fits(const ds_service_plan *p)
{
    return p->device <= p->budget;
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

static void print_text(ds_buf *b, const ds_model *m, const ds_service_plan *p)
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
    ds_buf_printf(b, "\nmemory for %u sequence%s of %u tokens, %u rows a step\n", p->engine.max_running,
                  p->engine.max_running == 1 ? "" : "s", p->engine.max_context, p->engine.step_tokens);
    char line[64];
    snprintf(line, sizeof line, "KV, %u blocks of %u tokens", p->engine.kv_blocks, lay.block_tokens);
    print_bytes(b, line, p->engine.kv);
    snprintf(line, sizeof line, "sequence state, %u and %u saved", p->engine.state_slots, p->engine.saved_states);
    print_bytes(b, line, p->engine.states);
    print_bytes(b, "prefill tails", p->engine.tails);
    print_bytes(b, "rotary and other tables", p->engine.tables);
    print_bytes(b, "buffers and scratch", p->engine.buffers);
    print_bytes(b, "the engine's own tables", p->engine.host);
    if (p->tower)
        print_bytes(b, "vision tower", p->tower);
    print_bytes(b, "all", p->total);
    print_bytes(b, "weights (Engram tables stay on disk)", p->weights);
    if (p->chosen)
        print_bytes(b, "of them experts, which may stay too", p->chosen);
    print_bytes(b, "available here", p->available);
    print_bytes(b, "of that for all but the weights", p->budget);
    if (fits(p))
        ds_buf_puts(b, "fits\n");
    else if (p->largest_context)
        ds_buf_printf(b, "does not fit; the largest context of which one sequence would is %u tokens\n", p->largest_context);
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

static void print_json(ds_buf *b, const ds_model *m, const ds_service_plan *p)
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
    ds_buf_printf(
        b,
        "\"plan\":{\"context\":%u,\"batch\":%u,\"rows\":%u,\"block_tokens\":%u,\"block_bytes\":%zu,\"blocks\":%u,\"saved_states\":%u,"
        "\"kv_bytes\":%" PRIu64 ",\"slot_bytes\":%zu,\"slots_bytes\":%" PRIu64 ",\"tails_bytes\":%" PRIu64 ",\"tables_bytes\":%" PRIu64
        ",\"buffers_bytes\":%" PRIu64 ",\"host_bytes\":%" PRIu64 ",\"vision_bytes\":%" PRIu64 ",\"total_bytes\":%" PRIu64
        ",\"weights_bytes\":%" PRIu64 ",\"available_bytes\":%" PRIu64 ",\"budget_bytes\":%" PRIu64
        ",\"fits\":%s,\"largest_context\":%u}}\n",
        p->engine.max_context, p->engine.max_running, p->engine.step_tokens, lay.block_tokens, lay.block_bytes, p->engine.kv_blocks,
        p->engine.saved_states, p->engine.kv, lay.slot_bytes, p->engine.states, p->engine.tails, p->engine.tables, p->engine.buffers,
        p->engine.host, p->tower, p->total, p->weights, p->available, p->budget, fits(p) ? "true" : "false", p->largest_context);
}

int ds_cmd_inspect(int argc, char **argv)
{
    options o;
    ds_err err;
    ds_model *m;
    ds_service_plan p;
    ds_buf out = { 0 };
    int status = ds_cli_parse(&command, &o, argc, argv, NULL);

    if (status >= 0)
        return status;
    if (ds_model_open(&m, o.model, &(ds_model_opts){ .device_name = o.device, .no_data = true }, &err) != DS_OK)
        return ds_cli_fail(argv[0], &err);
    ds_cli_say_device(o.device, ds_model_device(m)->name);
    if (make_plan(&p, m, &o, &err) != DS_OK) {
        ds_model_close(m);
        return ds_cli_fail(argv[0], &err);
    }
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
