#include "server/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const double seconds[DS_HISTOGRAM_BOUNDS] = { 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25,
                                                     0.5,   0.75,   1,     2.5,  5,    10,   30,   60,    300, 1800 };
static const double delays[DS_HISTOGRAM_BOUNDS] = { 0.00005, 0.0001, 0.00025, 0.0005, 0.00075, 0.001, 0.002, 0.003, 0.004, 0.005,
                                                    0.0075,  0.01,   0.015,   0.02,   0.03,    0.05,  0.1,   0.25,  1,     10 };
static const double tokens[DS_HISTOGRAM_BOUNDS] = { 1,    2,    5,     10,    20,    50,     100,    200,    500,     1000,
                                                    2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 2000000 };

static void observe(ds_histogram *h, const double *bounds, double v)
{
    int i = 0;

    while (i < DS_HISTOGRAM_BOUNDS && v > bounds[i])
        i++;
    h->n[i]++;
    h->sum += v;
}

void ds_histogram_seconds(ds_histogram *h, double s)
{
    observe(h, seconds, s);
}

void ds_histogram_delay(ds_histogram *h, double s)
{
    observe(h, delays, s);
}

void ds_histogram_tokens(ds_histogram *h, double n)
{
    observe(h, tokens, n);
}

/* ---- the page ---- */

typedef struct {
    ds_buf *b;
    const char *prefix;
    char model[2 * DS_METRICS_MODEL_MAX + 1]; /* as a label's value */
} page;

static void head(const page *p, const char *name, const char *type, const char *help)
{
    ds_buf_printf(p->b, "# HELP %s%s %s\n# TYPE %s%s %s\n", p->prefix, name, help, p->prefix, name, type);
}

/* A line up to its value. Every series has the label model_name, by which dashboards made for vLLM choose; `label`
 * is NULL or one more. */
static void series(const page *p, const char *name, const char *end, const char *label, const char *value)
{
    ds_buf_printf(p->b, "%s%s%s{model_name=\"%s\"", p->prefix, name, end, p->model);
    if (label)
        ds_buf_printf(p->b, ",%s=\"%s\"", label, value);
    ds_buf_puts(p->b, "} ");
}

static void counter(const page *p, const char *name, const char *help, uint64_t v)
{
    head(p, name, "counter", help);
    series(p, name, "", NULL, NULL);
    ds_buf_printf(p->b, "%" PRIu64 "\n", v);
}

static void gauge(const page *p, const char *name, const char *help, double v)
{
    head(p, name, "gauge", help);
    series(p, name, "", NULL, NULL);
    ds_buf_printf(p->b, "%.17g\n", v);
}

static void by_label(const page *p, const char *name, const char *type, const char *help, const char *label, const char *const *values,
                     const uint64_t *v, size_t n)
{
    head(p, name, type, help);
    for (size_t i = 0; i < n; i++) {
        series(p, name, "", label, values[i]);
        ds_buf_printf(p->b, "%" PRIu64 "\n", v[i]);
    }
}

/* One bucket; bound NULL: the last one, with sum and count. */
static void bucket(const page *p, const char *name, const char *bound, uint64_t n, double sum)
{
    series(p, name, "_bucket", "le", bound ? bound : "+Inf");
    ds_buf_printf(p->b, "%" PRIu64 "\n", n);
    if (bound)
        return;
    series(p, name, "_sum", NULL, NULL);
    ds_buf_printf(p->b, "%.9g\n", sum);
    series(p, name, "_count", NULL, NULL);
    ds_buf_printf(p->b, "%" PRIu64 "\n", n);
}

static void histogram(const page *p, const char *name, const char *help, const ds_histogram *h, const double *bounds)
{
    uint64_t n = 0;
    char bound[32];

    head(p, name, "histogram", help);
    for (int i = 0; i < DS_HISTOGRAM_BOUNDS; i++) {
        n += h->n[i];
        snprintf(bound, sizeof bound, "%g", bounds[i]);
        bucket(p, name, bound, n, 0);
    }
    bucket(p, name, NULL, n + h->n[DS_HISTOGRAM_BOUNDS], h->sum);
}

/* The engine counts in powers of two of microseconds. */
static void engine_histogram(const page *p, const char *name, const char *help, const ds_gen_hist *h)
{
    uint64_t n = 0;
    char bound[32];

    head(p, name, "histogram", help);
    for (int i = 0; i + 1 < DS_GEN_HIST; i++) {
        n += h->bucket[i];
        snprintf(bound, sizeof bound, "%.9g", (double)(UINT64_C(1) << (i + 1)) / 1e6);
        bucket(p, name, bound, n, 0);
    }
    bucket(p, name, NULL, n + h->bucket[DS_GEN_HIST - 1], (double)h->sum_us / 1e6);
}

static void server_part(const page *p, const ds_metrics *m)
{
    static const char *const refused[DS_N_REFUSED] = { "framing", "too_large",  "authentication", "not_found", "invalid",
                                                       "quota",   "queue_full", "unavailable",    "internal" };
    static const char *const finished[DS_N_FINISHED] = { "stop", "length", "tool_calls", "abort", "deadline", "error", "refused" };
    static const char *const lost[3] = { "canceled", "deadline", "failed" };
    static const char *const classes[6] = { "other", "1xx", "2xx", "3xx", "4xx", "5xx" };

    by_label(p, "request_success_total", "counter", "Requests that were answered, by the reason of their first choice.", "finished_reason",
             finished, m->ended, DS_FINISHED_ABORT);
    by_label(p, "request_failed_total", "counter", "Accepted requests that were not, by reason.", "reason", finished + DS_FINISHED_ABORT,
             m->ended + DS_FINISHED_ABORT, DS_N_FINISHED - DS_FINISHED_ABORT);
    by_label(p, "choice_success_total", "counter", "Choices that ended, by reason.", "finished_reason", finished, m->finished,
             DS_FINISHED_ABORT);
    by_label(p, "choice_failed_total", "counter", "Choices that the server ended, by reason.", "reason", finished + DS_FINISHED_ABORT,
             m->finished + DS_FINISHED_ABORT, DS_N_FINISHED - DS_FINISHED_ABORT);
    by_label(p, "request_refused_total", "counter", "Requests that were not taken, by reason.", "reason", refused, m->refused,
             DS_N_REFUSED);
    by_label(p, "http_responses_total", "counter", "Responses by class of status.", "class", classes, m->http, 6);
    counter(p, "requests_accepted_total", "Requests that went to the engine.", m->accepted);
    counter(p, "client_disconnected_total", "Requests whose client went away before the end.", m->disconnected);
    counter(p, "client_stalled_total", "Clients that were disconnected because they did not read.", m->stalled);
    counter(p, "prompt_tokens_total", "Prompt tokens of requests whose prefill ended, cached ones too.", m->prompt_tokens);
    counter(p, "cached_prompt_tokens_total", "Those of them that came from the prefix cache.", m->cached_tokens);
    counter(p, "generation_tokens_total", "Tokens handed to a client's stream or body.", m->generated_tokens);
    by_label(p, "lost_tokens_total", "counter", "Tokens computed and never delivered, by reason.", "reason", lost, m->lost_tokens, 3);
    counter(p, "response_bytes_total", "Bytes of response bodies handed to connections.", m->bytes_out);
    counter(p, "connections_total", "Connections accepted.", m->connections_total);
    gauge(p, "connections", "Connections open.", m->connections);
    gauge(p, "streams", "Responses being streamed.", m->streams);
    histogram(p, "time_to_first_token_seconds", "From the end of a request's body to its first token, the end of its text counted as one.",
              &m->ttft, seconds);
    histogram(p, "inter_token_latency_seconds", "Time between tokens of a choice.", &m->itl, seconds);
    histogram(p, "token_delivery_delay_seconds", "From the engine's event to the handing of a stream's bytes to its connection.",
              &m->delivery, delays);
    histogram(p, "time_per_output_token_seconds", "Mean time between tokens of a request.", &m->tpot, seconds);
    histogram(p, "e2e_request_latency_seconds", "From the end of a request's body to the end of its answer, of those that were answered.",
              &m->e2e, seconds);
    histogram(p, "request_prepare_time_seconds", "Checking, rendering and tokenising a request.", &m->prepare, seconds);
    histogram(p, "request_queue_time_seconds", "From the engine's queue to the start of the prompt.", &m->queue, seconds);
    histogram(p, "request_prefill_time_seconds", "From the start of the prompt to the first token.", &m->prefill, seconds);
    histogram(p, "request_decode_time_seconds", "From the first token to the last.", &m->decode, seconds);
    histogram(p, "request_cancel_time_seconds", "From the kernel's report that a client is gone to the engine's last event for it.",
              &m->cancel, seconds);
    histogram(p, "request_prompt_tokens", "Prompt tokens of a request.", &m->prompt_size, tokens);
    histogram(p, "request_generation_tokens", "Output tokens of a request.", &m->output_size, tokens);
}

static double running(const ds_gen_stats *e)
{
    return e->running; /* those whose prompt is being read among them */
}
static double waiting(const ds_gen_stats *e)
{
    return e->waiting > e->parked ? e->waiting - e->parked : 0; /* parked ones stand in the queue too */
}
static double lost_engines(const ds_gen_stats *e)
{
    return e->lost;
}

static double parked(const ds_gen_stats *e)
{
    return e->parked;
}
static double kv_usage(const ds_gen_stats *e)
{
    return e->kv_blocks ? (double)e->kv_used / e->kv_blocks : 0;
}
static double kv_blocks(const ds_gen_stats *e)
{
    return e->kv_blocks;
}
static double kv_cached(const ds_gen_stats *e)
{
    return e->kv_cached;
}
static double host_blocks(const ds_gen_stats *e)
{
    return e->host_blocks;
}
static double host_blocks_used(const ds_gen_stats *e)
{
    return e->host_blocks_used;
}
static double states_used(const ds_gen_stats *e)
{
    return e->states_used;
}
static double states(const ds_gen_stats *e)
{
    return e->states;
}
static double steps(const ds_gen_stats *e)
{
    return (double)e->steps;
}

/* What is each engine's own. */
static void each_engine(const page *p, const ds_metrics_engine *engines, uint32_t n)
{
    static const struct {
        const char *name, *type, *help;
        double (*get)(const ds_gen_stats *e);
    } list[] = {
        { "num_requests_running", "gauge", "Samples of requests being computed.", running },
        { "num_requests_waiting", "gauge", "Those in the engine's queue.", waiting },
        { "num_requests_parked", "gauge", "Those that were preempted and wait.", parked },
        { "engine_lost", "gauge", "Engines that are gone, or whose device failed.", lost_engines },
        { "kv_cache_usage_perc", "gauge", "Part of the KV blocks in use by requests, 0 to 1.", kv_usage },
        { "kv_blocks", "gauge", "KV blocks of 128 tokens.", kv_blocks },
        { "kv_blocks_cached", "gauge", "KV blocks kept for prefix hits.", kv_cached },
        { "host_kv_blocks", "gauge", "KV blocks that fit into host memory behind the engine's own.", host_blocks },
        { "host_kv_blocks_used", "gauge", "KV blocks in that memory.", host_blocks_used },
        { "saved_states_used", "gauge", "Window states kept for hits.", states_used },
        { "saved_states", "gauge", "Window states that fit.", states },
        { "engine_steps_total", "counter", "Steps of the engine.", steps },
    };

    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        head(p, list[k].name, list[k].type, list[k].help);
        for (uint32_t i = 0; i < n; i++) {
            char number[12];
            if (!engines[i].has_stats)
                continue;
            snprintf(number, sizeof number, "%u", i);
            series(p, list[k].name, "", n > 1 ? "engine" : NULL, number);
            ds_buf_printf(p->b, "%.17g\n", list[k].get(&engines[i].stats));
        }
    }
}

static void memory_plan(const page *p, const ds_metrics_engine *engines, uint32_t n)
{
    uint64_t total = 0, kv = 0, saved = 0, buffers = 0;
    bool known = false;

    for (uint32_t i = 0; i < n; i++) {
        const ds_gen_plan *plan = &engines[i].plan;
        if (!engines[i].has_plan)
            continue;
        known = true;
        total += plan->total;
        kv += plan->kv;
        saved += plan->states;
        buffers += plan->buffers + plan->tables + plan->tails;
    }
    if (!known)
        return;
    gauge(p, "memory_plan_bytes", "Memory that the engines planned.", (double)total);
    gauge(p, "memory_plan_kv_bytes", "Of it, KV blocks.", (double)kv);
    gauge(p, "memory_plan_states_bytes", "Of it, window states.", (double)saved);
    gauge(p, "memory_plan_buffers_bytes", "Of it, buffers and tables.", (double)buffers);
}

/* Sums over the engines. */
static void engine_totals(const page *p, const ds_gen_stats *e, uint32_t preparing)
{
    static const char *const why[3] = { "prepare", "capacity", "preempted" };
    uint64_t waits[3] = { preparing, (uint64_t)waiting(e), e->parked };
    static const char *const ends[DS_N_ENDED] = { "stop_id", "stop_string", "length", "canceled", "deadline", "failed", "lost" };
    static const char *const positions[DS_GEN_MAX_DRAFTS] = {
        "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14"
    };
    static const char *const misses[DS_GEN_MISSES - 1] = { "gone", "late", "busy", "io", "corrupt" };
    static const char *const sources[4] = { "computed", "device", "host", "store" };
    uint64_t hits = e->hit_state_tokens + e->hit_replay_tokens, far = e->hit_host_tokens + e->hit_store_tokens;
    uint64_t from[4] = { e->prompt_tokens - hits, hits - far, e->hit_host_tokens, e->hit_store_tokens };
    static const char *const phases[5] = { "device_busy", "device_idle", "plan", "finish", "draft" };
    uint64_t ns[5] = { e->device_busy_ns, e->device_idle_ns, e->host_plan_ns, e->host_finish_ns, e->draft_ns }, drafted = 0, kept = 0;

    by_label(p, "num_requests_waiting_by_reason", "gauge",
             "Requests that wait: for a worker, for room in the engine, for their place back.", "reason", why, waits, 3);
    counter(p, "prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", e->prompt_tokens);
    counter(p, "prefix_cache_hits_total", "Prompt tokens found there.", e->hit_state_tokens + e->hit_replay_tokens);
    counter(p, "prefix_cache_hits_state_total", "Those continued from saved window state.", e->hit_state_tokens);
    counter(p, "prefix_cache_hits_replay_total", "Those continued by replay.", e->hit_replay_tokens);
    counter(p, "prefix_cache_hits_host_total", "Those whose blocks came back from host memory.", e->hit_host_tokens);
    counter(p, "prefix_cache_hits_store_total", "Those whose blocks came from a KV store.", e->hit_store_tokens);
    by_label(p, "prompt_tokens_by_source_total", "counter", "Prompt tokens, by where their KV came from.", "source", sources, from, 4);
    counter(p, "kv_fetches_total", "Requests that waited for blocks from host memory or a store.", e->fetches);
    counter(p, "kv_fetched_blocks_total", "KV blocks that came from there.", e->fetched_blocks);
    by_label(p, "kv_fetch_misses_total", "counter", "Blocks and window states that were asked for there and didn't come.", "cause", misses,
             e->fetch_missed + 1, DS_GEN_MISSES - 1);
    counter(p, "kv_saves_lost_total", "Blocks and window states that left before a store took them.", e->saves_lost);
    counter(p, "host_kv_blocks_saved_total", "KV blocks that went there.", e->host_blocks_saved);
    counter(p, "host_kv_blocks_evicted_total", "KV blocks that left it for newer ones.", e->host_blocks_evicted);
    counter(p, "replayed_tokens_total", "Prompt tokens computed again for window state.", e->replayed_tokens);
    counter(p, "recomputed_tokens_total", "Tokens computed again after preemption.", e->recomputed_tokens);
    counter(p, "dropped_tokens_total", "Tokens computed after the end was known.", e->dropped_tokens);
    counter(p, "num_preemptions_total", "Requests taken off the device.", e->preempted_parked + e->preempted_recomputed);
    counter(p, "engine_step_rows_total", "Rows of those steps.", e->step_rows);
    by_label(p, "engine_ended_total", "counter", "Samples that ended, by reason.", "reason", ends, e->ended, DS_N_ENDED);
    by_label(p, "engine_nanoseconds_total", "counter", "Where the engine's time went.", "phase", phases, ns, 5);
    for (int i = 0; i < DS_GEN_MAX_DRAFTS; i++) {
        drafted += e->drafted[i];
        kept += e->kept[i];
    }
    counter(p, "spec_decode_num_draft_tokens_total", "Draft tokens verified.", drafted);
    counter(p, "spec_decode_num_accepted_tokens_total", "Draft tokens kept.", kept);
    by_label(p, "spec_decode_num_draft_tokens_per_pos_total", "counter", "Draft tokens verified, by position.", "position", positions,
             e->drafted, DS_GEN_MAX_DRAFTS);
    by_label(p, "spec_decode_num_accepted_tokens_per_pos_total", "counter", "Draft tokens kept, by position.", "position", positions,
             e->kept, DS_GEN_MAX_DRAFTS);
    engine_histogram(p, "engine_step_prefill_seconds", "Steps with prompt rows.", &e->step_prefill);
    engine_histogram(p, "engine_step_decode_seconds", "Steps without.", &e->step_decode);
    engine_histogram(p, "engine_time_between_tokens_seconds", "Time between tokens, in the engine.", &e->tbt);
    engine_histogram(p, "kv_fetch_seconds", "From asking host memory or a store for blocks to having all that came.", &e->fetch);
}

/* What answers are held to: compiled once, and found again. */
static void grammars(const page *p, const ds_constrain_stats *g)
{
    gauge(p, "grammars", "Compiled constraints that are kept.", g->grammars);
    gauge(p, "grammars_in_use", "Those of them with requests.", g->in_use);
    gauge(p, "grammars_bytes", "Bytes of them, with the states that texts made.", (double)g->bytes);
    counter(p, "grammars_compiled_total", "Constraints that were compiled.", g->compiled);
    counter(p, "grammars_found_total", "Constraints that had been compiled for an earlier request.", g->found);
    counter(p, "grammars_refused_total", "Constraints that can't be held: unsupported, or too large.", g->refused);
    counter(p, "grammars_evicted_total", "Compiled constraints that made room for others.", g->evicted);
    counter(p, "grammars_compile_nanoseconds_total", "Time of the workers for compiling.", g->compile_ns);
}

/* Backslash, quote and line break are escaped in a label's value. */
static void put_model(char *out, const char *name)
{
    size_t n = strnlen(name, DS_METRICS_MODEL_MAX + 1);

    if (n > DS_METRICS_MODEL_MAX)
        for (n--; n && ((unsigned char)name[n] & 0xc0) == 0x80; n--) /* not within a character */
            ;
    for (size_t i = 0; i < n; i++) {
        if (name[i] == '\\' || name[i] == '"' || name[i] == '\n')
            *out++ = '\\';
        *out++ = name[i] == '\n' ? 'n' : name[i];
    }
    *out = '\0';
}

void ds_metrics_write(ds_buf *b, const ds_metrics *m, const char *prefix, const char *model, const ds_metrics_engine *engines,
                      uint32_t n_engines, const ds_metrics_beside *beside)
{
    page p = { .b = b, .prefix = prefix };
    ds_gen_stats sum = { 0 };
    uint32_t known = 0;

    put_model(p.model, model);
    server_part(&p, m);
    gauge(&p, "stored_responses", "Responses in the store.", (double)beside->stored_records);
    gauge(&p, "stored_responses_bytes", "Bytes of them.", (double)beside->stored_bytes);
    counter(&p, "stored_responses_failed_total", "Responses that the store could not take.", m->store_failed);
    grammars(&p, &beside->grammars);
    for (uint32_t i = 0; i < n_engines; i++)
        if (engines[i].has_stats) {
            known++;
            ds_gen_stats_add(&sum, &engines[i].stats);
        }
    memory_plan(&p, engines, n_engines);
    if (known == 0)
        return;
    each_engine(&p, engines, n_engines);
    engine_totals(&p, &sum, m->preparing);
}
