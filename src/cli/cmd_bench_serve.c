/* deepserve bench serve: load on the engine, without HTTP around it.
 *
 * Every case prints what a user would feel (throughput, time to first token, time between tokens) and where the time
 * went. Load is open-loop where it is an arrival process: a request is added at its time however slow the engine is,
 * and its time to first token counts from there. */
#include "cli/cli.h"

#include <inttypes.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/rng.h"
#include "cli/gen.h"
#include "cli/model_cli.h"
#include "engine/engine.h"
#include "role/service.h"

typedef struct {
    const char *model, *which, *trace, *tokens, *device;
    int kernels, mode, act;
    int64_t threads, requests, concurrency, prompt, output, target_us, seed;
    double rate;
    bool json, pin;
} options;

static const ds_opt table[] = {
    { .name = "model",
      .type = DS_OPT_STR,
      .offset = offsetof(options, model),
      .arg = "DIR",
      .help = "model directory; without it only the case `host` runs" },
    { .name = "case",
      .type = DS_OPT_STR,
      .offset = offsetof(options, which),
      .arg = "NAME",
      .help = "host, batch, open, budget, turn, drafts (default: all)" },
    { .name = "requests",
      .type = DS_OPT_INT,
      .offset = offsetof(options, requests),
      .def = "32",
      .arg = "N",
      .min = 1,
      .max = 100000,
      .help = "requests of batch and open" },
    { .name = "concurrency",
      .type = DS_OPT_INT,
      .offset = offsetof(options, concurrency),
      .def = "16",
      .arg = "N",
      .min = 1,
      .max = 1024,
      .help = "sequences at a time" },
    { .name = "rate",
      .type = DS_OPT_REAL,
      .offset = offsetof(options, rate),
      .def = "4",
      .arg = "PER_S",
      .min = 0.001,
      .max = 1e6,
      .help = "open: arrivals a second (Poisson)" },
    { .name = "trace",
      .type = DS_OPT_STR,
      .offset = offsetof(options, trace),
      .arg = "FILE",
      .help = "open: lines of `seconds prompt_tokens output_tokens` instead" },
    { .name = "tokens",
      .type = DS_OPT_STR,
      .offset = offsetof(options, tokens),
      .arg = "@FILE",
      .help = "cut prompts out of this JSON array of ids instead of making them at random (drafts need real text)" },
    { .name = "prompt-tokens",
      .type = DS_OPT_INT,
      .offset = offsetof(options, prompt),
      .def = "256",
      .arg = "N",
      .min = 1,
      .max = 1 << 20,
      .help = "of batch and open" },
    { .name = "max-tokens",
      .type = DS_OPT_INT,
      .offset = offsetof(options, output),
      .def = "64",
      .arg = "N",
      .min = 1,
      .max = 1 << 20,
      .help = "of each answer" },
    { .name = "target-tbt",
      .type = DS_OPT_INT,
      .offset = offsetof(options, target_us),
      .def = "50000",
      .arg = "US",
      .min = 1,
      .max = 10000000,
      .help = "budget: wanted time between tokens" },
    { .name = "seed",
      .type = DS_OPT_INT,
      .offset = offsetof(options, seed),
      .def = "1",
      .arg = "N",
      .min = 0,
      .max = 0x1p62,
      .help = "of prompts and arrivals" },
    DS_CLI_OPT_MODE(offsetof(options, mode), "ced", "prefill"),
    DS_CLI_OPT_ACT(offsetof(options, act)),
    DS_CLI_OPT_DEVICE(offsetof(options, device)),
    DS_CLI_OPT_KERNELS(offsetof(options, kernels)),
    DS_CLI_OPT_THREADS(offsetof(options, threads)),
    DS_CLI_OPT_PIN(offsetof(options, pin)),
    { .name = "json", .type = DS_OPT_FLAG, .offset = offsetof(options, json), .help = "a JSON object for each case, one a line" },
    { 0 },
};

static const ds_opt_cmd command = {
    .command = "deepserve bench serve",
    .summary = "Loads the engine. host: its own time a step on a device that does nothing; batch: throughput, one at a time and together; "
               "open: arrivals at a rate or from a\n"
               "trace; budget: time between tokens while a long prompt arrives; turn: a conversation's second turn against the first; "
               "drafts: one sequence with and without.",
    .usage = "[--model DIR] [options]",
    .example = "deepserve bench serve --model models/demo --case batch --json",
    .opts = table,
};

/* ---- results ----------------------------------------------------------------------------------------------------- */

typedef struct {
    char name[32];
    double value;
} figure;

typedef struct {
    const char *name;
    char what[96];
    figure f[40];
    int n;
} result;

__attribute__((format(printf, 3, 4))) static void put(result *r, double value, const char *fmt, ...)
{
    va_list ap;

    if (r->n == (int)(sizeof r->f / sizeof *r->f))
        return;
    va_start(ap, fmt);
    vsnprintf(r->f[r->n].name, sizeof r->f->name, fmt, ap);
    va_end(ap);
    r->f[r->n++].value = value;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void put_quantiles(result *r, const char *name, double *v, size_t n)
{
    static const int p[] = { 50, 90, 99 };

    qsort(v, n, sizeof *v, by_value);
    for (int i = 0; i < 3 && n > 0; i++) {
        size_t at = (size_t)ceil((double)n * p[i] / 100.0);
        put(r, v[at ? at - 1 : 0], "%s_p%d", name, p[i]);
    }
}

static bool print_result(const options *o, const result *r)
{
    if (o->json) {
        printf("{\"case\":\"%s\",\"what\":\"%s\"", r->name, r->what);
        for (int i = 0; i < r->n; i++)
            printf(",\"%s\":%.6g", r->f[i].name, r->f[i].value);
        puts("}");
    } else {
        printf("%s: %s\n", r->name, r->what);
        for (int i = 0; i < r->n; i++)
            printf("  %-28s %.6g\n", r->f[i].name, r->f[i].value);
    }
    return fflush(stdout) == 0;
}

typedef struct {
    const options *o;
    ds_cli_model m;
    ds_cli_ids text; /* n = 0: random prompts */
    uint32_t vocab, context;
} bench;

/* ---- load -------------------------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t at_us; /* arrival, from the begin */
    uint32_t prompt, output;
    const ds_token *ids; /* NULL: random ones of its own */
    bool measured;       /* its tokens count */
    /* what happened */
    uint64_t first_us, last_us;
    uint32_t n, cached;
} arrival;

typedef struct {
    double *tbt;
    size_t n_tbt, cap_tbt;
    uint64_t tokens, wall_us;
    uint64_t cpu_us; /* of the whole process: other programs disturb it less, but threads that wait for each other count */
    uint32_t open;
    bool oom;
} record;

static void note_event(record *rec, const ds_event *ev, uint64_t now_us)
{
    arrival *a = (arrival *)(uintptr_t)ev->cookie;

    if (ev->kind == DS_EV_START)
        a->cached = ev->start.cached;
    if (ev->kind == DS_EV_END)
        rec->open--;
    if (ev->kind != DS_EV_TOKEN)
        return;
    if (a->n++ == 0) {
        a->first_us = now_us;
    } else if (a->measured) {
        if (rec->n_tbt == rec->cap_tbt) {
            size_t cap = rec->cap_tbt ? 2 * rec->cap_tbt : 4096;
            double *p = realloc(rec->tbt, cap * sizeof *p);
            if (!p) {
                rec->oom = true;
                return;
            }
            rec->tbt = p;
            rec->cap_tbt = cap;
        }
        rec->tbt[rec->n_tbt++] = (double)(now_us - a->last_us) / 1e3;
    }
    a->last_us = now_us;
    rec->tokens++;
}

static ds_rc add_arrival(const bench *b, ds_engine *e, arrival *a, uint32_t vocab, uint64_t seed, ds_err *err)
{
    ds_gen_request q = { .prompt = a->ids,
                         .n_prompt = a->prompt,
                         .max_tokens = a->output,
                         .sampling = DS_SAMPLING_DEFAULT,
                         .replay = DS_REPLAY_FREE,
                         .cookie = (uintptr_t)a };
    ds_token *own = NULL;
    uint64_t id;
    ds_rc rc;

    q.sampling.temperature = 0.0;
    q.sampling.seed = seed;
    if (!a->ids) {
        own = malloc(a->prompt * sizeof *own);
        if (!own)
            return ds_fail(err, DS_E_NOMEM, "out of memory");
        for (uint32_t i = 0; i < a->prompt; i++)
            own[i] = b->text.n ? b->text.p[((b->text.n <= a->prompt ? 0 : seed % 1000003 * 977) + i) % b->text.n]
                               : (ds_token)(ds_rng_u64(seed, 3, i) % vocab);
        q.prompt = own;
    }
    rc = ds_engine_add(e, &q, &id, err);
    free(own);
    return rc;
}

static uint64_t cpu_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* Adds each arrival at its time, or as soon as fewer than `together` are open, and reads until all have ended. */
static ds_rc drive(const bench *b, ds_engine *e, arrival *a, uint32_t n, uint32_t together, uint32_t vocab, uint64_t seed, record *rec,
                   ds_err *err)
{
    uint64_t begin = ds_now_us(), cpu = cpu_us();
    uint32_t next = 0;
    ds_rc rc = DS_OK;

    *rec = (record){ 0 };
    while (rc == DS_OK && (next < n || rec->open > 0)) {
        uint64_t now = ds_now_us() - begin;
        ds_event ev[64];
        size_t got;
        while (rc == DS_OK && next < n && a[next].at_us <= now && rec->open < together) {
            rc = add_arrival(b, e, &a[next], vocab, seed + next, err);
            if (a[next].at_us == 0)
                a[next].at_us = now;
            if (rc == DS_OK) {
                rec->open++;
                next++;
            }
        }
        if (rc == DS_E_AGAIN)
            rc = DS_OK; /* full: it is still its time */
        ds_engine_wait(e, next < n && rec->open < together && a[next].at_us > now && a[next].at_us - now < 5000
                              ? (uint32_t)(a[next].at_us - now) / 1000 + 1
                              : 5);
        now = ds_now_us() - begin;
        while ((got = ds_engine_poll(e, ev, 64)) > 0)
            for (size_t i = 0; i < got; i++)
                note_event(rec, &ev[i], now);
        if (ds_cli_signal())
            rc = ds_fail(err, DS_E_CANCELED, "stopped");
    }
    rec->wall_us = ds_now_us() - begin;
    rec->cpu_us = cpu_us() - cpu;
    if (rc == DS_OK && rec->oom)
        rc = ds_fail(err, DS_E_NOMEM, "out of memory for the record");
    return rc;
}

static void put_load(result *r, ds_engine *e, const arrival *a, uint32_t n, record *rec)
{
    ds_gen_stats st;
    double *ttft = malloc((n ? n : 1) * sizeof *ttft), busy, all;
    uint32_t got = 0;

    ds_engine_stats_get(e, &st);
    put(r, (double)rec->tokens * 1e6 / (double)rec->wall_us, "tokens_s");
    put(r, (double)rec->tokens * 1e6 / (double)(rec->cpu_us ? rec->cpu_us : 1), "tokens_cpu_s");
    for (uint32_t i = 0; ttft && i < n; i++)
        if (a[i].n > 0)
            ttft[got++] = (double)(a[i].first_us - a[i].at_us) / 1e3;
    if (ttft)
        put_quantiles(r, "ttft_ms", ttft, got);
    put_quantiles(r, "tbt_ms", rec->tbt, rec->n_tbt);
    busy = (double)st.device_busy_ns;
    all = busy + (double)st.device_idle_ns;
    put(r, all > 0.0 ? 100.0 * (double)st.device_idle_ns / all : 0.0, "device_idle_pct");
    put(r, busy > 0.0 ? 100.0 * (double)st.draft_ns / busy : 0.0, "draft_pct");
    put(r, (double)(st.host_plan_ns + st.host_finish_ns + st.host_publish_ns) / 1e3 / (double)(st.steps ? st.steps : 1), "host_us_step");
    put(r, st.steps ? (double)st.step_rows / (double)st.steps : 0.0, "rows_step");
    put(r, st.prompt_tokens ? 100.0 * (double)(st.hit_state_tokens + st.hit_replay_tokens) / (double)st.prompt_tokens : 0.0, "hit_pct");
    put(r, (double)(st.preempted_parked + st.preempted_recomputed), "preempted");
    if (st.drafted[0])
        put(r, 100.0 * (double)st.kept[0] / (double)st.drafted[0], "draft1_kept_pct");
    free(ttft);
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

/* The loop's own time: a device that does nothing, sequences of 256 blocks. */
static ds_rc case_host(const bench *b, uint32_t n, ds_err *err)
{
    enum { TOKENS = 256 * DS_KV_BLOCK_TOKENS, STEPS = 1500, WARM = 200 };
    uint32_t out = STEPS + WARM + 1200; /* the first ones begin to decode while the others are in their prompts */
    ds_engine_opts o = { .max_context = TOKENS + out,
                         .max_running = n,
                         .max_requests = n,
                         .max_samples = 1,
                         .step_tokens = 65536,
                         .prefills = n,
                         .kv_blocks = n * (256 + 16),
                         .saved_states = 64 };
    result r = { .name = "host" };
    ds_gen_stats before, after, first;
    static double us[STEPS];
    size_t n_us = 0;
    arrival *a = calloc(n, sizeof *a);
    ds_event *ev = malloc(1024 * sizeof *ev);
    ds_engine *e = NULL;
    ds_rc rc = a && ev ? ds_engine_create_stub(&e, &(ds_engine_stub){ 0 }, &o, err) : ds_fail(err, DS_E_NOMEM, "out of memory");

    for (uint32_t i = 0; i < n && rc == DS_OK; i++) {
        a[i] = (arrival){ .prompt = TOKENS, .output = out };
        rc = add_arrival(b, e, &a[i], 129280, (uint64_t)b->o->seed + i, err);
    }
    if (rc == DS_OK) {
        do {
            ds_engine_turn(e);
            ds_engine_poll(e, ev, 1024);
            ds_engine_stats_get(e, &before);
        } while (before.running < n || before.prefilling > 0);
        for (uint64_t until = before.steps + WARM; before.steps < until; ds_engine_stats_get(e, &before)) {
            ds_engine_turn(e);
            while (ds_engine_poll(e, ev, 1024) > 0)
                ;
        }
        for (first = before; before.steps < first.steps + STEPS; before = after) {
            ds_engine_turn(e);
            while (ds_engine_poll(e, ev, 1024) > 0)
                ;
            ds_engine_stats_get(e, &after);
            if (after.steps == before.steps + 1 && n_us < STEPS)
                us[n_us++] = (double)(after.host_plan_ns - before.host_plan_ns + after.host_finish_ns - before.host_finish_ns +
                                      after.host_publish_ns - before.host_publish_ns) /
                             1e3;
        }
        double steps = (double)(after.steps - first.steps);
        snprintf(r.what, sizeof r.what, "%u running sequences, 256 cached blocks each, null device", n);
        put_quantiles(&r, "host_us_step", us, n_us); /* the mean is other programs' doing as much as ours */
        put(&r, (double)(after.host_plan_ns - first.host_plan_ns) / 1e3 / steps, "mean_plan_us");
        put(&r, (double)(after.host_finish_ns - first.host_finish_ns) / 1e3 / steps, "mean_finish_us");
        put(&r, (double)(after.host_publish_ns - first.host_publish_ns) / 1e3 / steps, "mean_publish_us");
        put(&r, (double)(after.output_tokens - first.output_tokens) / steps, "tokens_step");
        if (!print_result(b->o, &r))
            rc = ds_fail(err, DS_E_IO, "standard output: %s", strerror(errno));
    }
    ds_engine_destroy(e);
    free(a);
    free(ev);
    return rc;
}

static ds_engine_opts engine_opts(const bench *b, uint32_t running)
{
    return (ds_engine_opts){ .mode = b->o->mode == 0 ? DS_ENGINE_EXACT : DS_ENGINE_CED,
                             .bf16 = b->o->act == 1,
                             .max_context = b->context,
                             .max_running = running,
                             .drafts = DS_ENGINE_DRAFTS_AUTO,
                             .max_requests = 100000 };
}

/* One engine, one load, one line. */
static ds_rc load_case(const bench *b, result *r, const ds_engine_opts *o, arrival *a, uint32_t n, uint32_t together, ds_err *err)
{
    ds_engine *e;
    record rec = { 0 };
    ds_service_plan plan;
    ds_engine_opts fit;
    ds_rc rc = ds_service_plan_get(&plan, &fit, b->m.model, &(ds_service_opts){ .engine = *o, .no_pictures = true }, err);

    if (rc == DS_OK)
        rc = ds_engine_create(&e, b->m.model, b->m.pool, &fit, err);
    if (rc != DS_OK)
        return rc;
    rc = ds_engine_start(e, err);
    if (rc == DS_OK)
        rc = drive(b, e, a, n, together, b->vocab, (uint64_t)b->o->seed * 1000003, &rec, err);
    if (rc == DS_OK)
        put_load(r, e, a, n, &rec);
    ds_engine_destroy(e);
    free(rec.tbt);
    return rc;
}

static double value_of(const result *r, const char *name)
{
    for (int i = 0; i < r->n; i++)
        if (strcmp(r->f[i].name, name) == 0)
            return r->f[i].value;
    return 0.0;
}

static ds_rc finish_case(const bench *b, const result *r, ds_rc rc, ds_err *err)
{
    if (rc == DS_OK && !print_result(b->o, r))
        rc = ds_fail(err, DS_E_IO, "standard output: %s", strerror(errno));
    return rc;
}

enum { TRACE_MAX = 1000000 };

static uint32_t clip(const bench *b, int64_t prompt, int64_t output)
{
    int64_t room = (int64_t)b->context - output;
    return (uint32_t)(prompt < room ? prompt : room > 1 ? room : 1);
}

static ds_rc case_batch(const bench *b, ds_err *err)
{
    uint32_t n = (uint32_t)b->o->requests, both[2] = { 1, (uint32_t)b->o->concurrency };
    arrival *a = calloc(n, sizeof *a);
    double alone = 0.0, alone_cpu = 0.0;
    ds_rc rc = a ? DS_OK : ds_fail(err, DS_E_NOMEM, "out of memory");

    for (int k = 0; k < 2 && rc == DS_OK; k++) {
        result r = { .name = "batch" };
        ds_engine_opts o = engine_opts(b, both[k]);
        uint32_t some = k == 0 && n > 8 ? 8 : n;
        for (uint32_t i = 0; i < some; i++)
            a[i] = (arrival){ .prompt = (uint32_t)b->o->prompt, .output = (uint32_t)b->o->output, .measured = true };
        snprintf(r.what, sizeof r.what, "%u requests of %u + %u tokens, %u at a time", some, a[0].prompt, a[0].output, both[k]);
        rc = load_case(b, &r, &o, a, some, both[k], err);
        if (k == 0) {
            alone = value_of(&r, "tokens_s");
            alone_cpu = value_of(&r, "tokens_cpu_s");
        } else if (alone > 0.0 && alone_cpu > 0.0) {
            put(&r, value_of(&r, "tokens_s") / alone, "times_alone");
            put(&r, value_of(&r, "tokens_cpu_s") / alone_cpu, "times_alone_cpu");
        }
        rc = finish_case(b, &r, rc, err);
    }
    free(a);
    return rc;
}

static ds_rc read_trace(const bench *b, arrival **out, uint32_t *n, ds_err *err)
{
    FILE *f = fopen(b->o->trace, "re");
    size_t cap = 0;
    double at;
    unsigned prompt, output;
    int got = 0;
    ds_rc rc = DS_OK;

    if (!f)
        return ds_fail(err, DS_E_IO, "%.200s: %s", b->o->trace, strerror(errno));
    while (rc == DS_OK && (got = fscanf(f, "%lf %u %u", &at, &prompt, &output)) == 3) {
        if (!(at >= 0.0 && at < 1e6) || prompt == 0 || output == 0)
            break;
        if ((uint64_t)prompt + output > b->context)
            rc = ds_fail(err, DS_E_FORMAT, "%.200s: line %u: %u + %u tokens exceed the context of %u", b->o->trace, *n + 1, prompt, output,
                         b->context);
        else if (*n == TRACE_MAX)
            rc = ds_fail(err, DS_E_FORMAT, "%.200s: more than %d lines", b->o->trace, TRACE_MAX);
        if (rc == DS_OK && *n == cap) {
            arrival *p = realloc(*out, (cap = cap ? 2 * cap : 256) * sizeof *p);
            if (!p)
                rc = ds_fail(err, DS_E_NOMEM, "%.200s: out of memory", b->o->trace);
            else
                *out = p;
        }
        if (rc == DS_OK)
            (*out)[(*n)++] = (arrival){ .at_us = (uint64_t)(at * 1e6) + 1, .prompt = prompt, .output = output, .measured = true };
    }
    fclose(f);
    if (rc == DS_OK && (got != EOF || *n == 0))
        rc = ds_fail(err, DS_E_FORMAT, "%.200s: line %u: expected `seconds prompt_tokens output_tokens`", b->o->trace, *n + 1);
    return rc;
}

static ds_rc case_open(const bench *b, ds_err *err)
{
    uint32_t n = 0;
    arrival *a = NULL;
    result r = { .name = "open" };
    ds_engine_opts o = engine_opts(b, (uint32_t)b->o->concurrency);
    double at = 0.0;
    ds_rc rc = DS_OK;

    if (b->o->trace) {
        rc = read_trace(b, &a, &n, err);
        snprintf(r.what, sizeof r.what, "%u requests of a trace", n);
    } else {
        n = (uint32_t)b->o->requests;
        a = calloc(n, sizeof *a);
        if (!a)
            return ds_fail(err, DS_E_NOMEM, "out of memory");
        for (uint32_t i = 0; i < n; i++) {
            at -= log(1.0 - ds_rng_unit((uint64_t)b->o->seed, 7, i)) / b->o->rate;
            a[i] = (arrival){
                .at_us = (uint64_t)(at * 1e6) + 1, .prompt = (uint32_t)b->o->prompt, .output = (uint32_t)b->o->output, .measured = true
            };
        }
        snprintf(r.what, sizeof r.what, "%u requests of %u + %u tokens, Poisson, %g a second", n, a[0].prompt, a[0].output, b->o->rate);
    }
    o.target_tbt_us = (uint32_t)b->o->target_us;
    if (rc == DS_OK)
        rc = load_case(b, &r, &o, a, n, UINT32_MAX, err);
    free(a);
    return finish_case(b, &r, rc, err);
}

/* Four sequences decode; a long prompt arrives. */
static ds_rc case_budget(const bench *b, ds_err *err)
{
    enum { CHATS = 4, LONG = 32768, WARM = 6 };
    arrival a[CHATS + WARM + 1] = { 0 };
    result r = { .name = "budget" };
    ds_engine_opts o = engine_opts(b, CHATS + 1);
    uint32_t out = b->context / 2 < 600 ? b->context / 2 : 600, long_prompt = clip(b, LONG, 8),
             warm = b->context / 4 < 2048 ? b->context / 4 : 2048;
    ds_rc rc;

    o.target_tbt_us = (uint32_t)b->o->target_us;
    o.step_tokens = 4096;
    for (int i = 0; i < WARM; i++) /* the cost model learns from these */
        a[i] = (arrival){ .prompt = warm / (1u << (i % 3)), .output = 4 };
    for (int i = WARM; i < WARM + CHATS; i++)
        a[i] = (arrival){ .at_us = 1, .prompt = 16, .output = out, .measured = true };
    a[CHATS + WARM] = (arrival){ .at_us = 1, .prompt = long_prompt, .output = 4 };
    snprintf(r.what, sizeof r.what, "%d sequences decode while a prompt of %u tokens arrives", CHATS, long_prompt);
    rc = load_case(b, &r, &o, a, CHATS + WARM + 1, CHATS + 1, err);
    put(&r, (double)b->o->target_us / 1e3, "budget_ms");
    if (rc == DS_OK)
        put(&r, value_of(&r, "tbt_ms_p99") / ((double)b->o->target_us / 1e3), "p99_over_budget");
    return finish_case(b, &r, rc, err);
}

/* A conversation of 16k tokens; its second turn adds 200. */
static ds_rc case_turn(const bench *b, ds_err *err)
{
    enum { FIRST = 16384, MORE = 200 };
    arrival a[2] = { 0 };
    result r = { .name = "turn" };
    ds_engine_opts o = engine_opts(b, 2);
    uint32_t first = clip(b, FIRST, MORE + 16);
    ds_token *ids = malloc((first + MORE) * sizeof *ids);
    ds_rc rc = ids ? DS_OK : ds_fail(err, DS_E_NOMEM, "out of memory");

    for (uint32_t i = 0; ids && i < first + MORE; i++)
        ids[i] = (ds_token)(ds_rng_u64((uint64_t)b->o->seed, 11, i) % b->vocab);
    a[0] = (arrival){ .prompt = first, .output = 4, .ids = ids };
    a[1] = (arrival){ .prompt = first + MORE, .output = 4, .ids = ids };
    snprintf(r.what, sizeof r.what, "a second turn of %d tokens after %u", MORE, first);
    if (rc == DS_OK)
        rc = load_case(b, &r, &o, a, 2, 1, err);
    if (rc == DS_OK) {
        put(&r, (double)(a[0].first_us - a[0].at_us) / 1e3, "cold_ttft_ms");
        put(&r, (double)(a[1].first_us - a[1].at_us) / 1e3, "second_ttft_ms");
        put(&r, a[1].cached, "cached_tokens");
        put(&r, 100.0 * (double)(a[1].first_us - a[1].at_us) / (double)(a[0].first_us - a[0].at_us), "second_pct_of_cold");
    }
    free(ids);
    return finish_case(b, &r, rc, err);
}

static ds_rc case_drafts(const bench *b, ds_err *err)
{
    static const struct {
        const char *name;
        int drafts;
    } how[] = { { "off", 0 }, { "all", 99 }, { "auto", DS_ENGINE_DRAFTS_AUTO } };
    ds_model_layout lay;
    double off = 0.0, off_cpu = 0.0;
    ds_rc rc = DS_OK;

    ds_model_layout_get(b->m.model, &lay);
    for (int k = 0; k < 3 && rc == DS_OK && lay.drafts > 0; k++) {
        arrival a[4] = { 0 };
        result r = { .name = "drafts" };
        ds_engine_opts o = engine_opts(b, 1);
        o.drafts = how[k].drafts == 99 ? (int)lay.drafts : how[k].drafts;
        for (int i = 0; i < 4; i++)
            a[i] = (arrival){ .prompt = clip(b, b->text.n && b->text.n < 64 ? b->text.n : 64, b->o->output),
                              .output = (uint32_t)b->o->output,
                              .measured = true };
        snprintf(r.what, sizeof r.what, "one sequence, drafts %s", how[k].name);
        rc = load_case(b, &r, &o, a, 4, 1, err);
        if (k == 0) {
            off = value_of(&r, "tokens_s");
            off_cpu = value_of(&r, "tokens_cpu_s");
        } else if (off > 0.0 && off_cpu > 0.0) {
            put(&r, value_of(&r, "tokens_s") / off, "times_off");
            put(&r, value_of(&r, "tokens_cpu_s") / off_cpu, "times_off_cpu");
        }
        rc = finish_case(b, &r, rc, err);
    }
    return rc;
}

static bool wanted(const options *o, const char *name)
{
    return !o->which || strcmp(o->which, name) == 0 || strcmp(o->which, "all") == 0;
}

int ds_cmd_bench_serve(int argc, char **argv)
{
    static const char *const names[] = { "all", "host", "batch", "open", "budget", "turn", "drafts" };
    options o = { 0 };
    bench b = { .o = &o };
    ds_err err = { 0 };
    ds_rc rc = DS_OK;
    bool known = false;
    int status = ds_cli_parse(&command, &o, argc, argv, NULL);

    if (status != -1)
        return status;
    for (size_t i = 0; o.which && i < sizeof names / sizeof *names; i++)
        known = known || strcmp(o.which, names[i]) == 0;
    if (o.which && !known)
        return ds_cli_wrong("bench serve", "--case: expected all, host, batch, open, budget, turn or drafts");
    if (o.which && strcmp(o.which, "host") != 0 && strcmp(o.which, "all") != 0 && !o.model)
        return ds_cli_wrong("bench serve", "--case %s needs --model", o.which);
    if (o.tokens) {
        bool wrong;
        rc = ds_cli_ids_parse(&b.text, o.tokens, &wrong, &err);
        if (wrong)
            return ds_cli_wrong("bench serve", "%s", err.msg);
    }
    ds_cli_signals_catch();
    if (rc == DS_OK && wanted(&o, "host")) {
        rc = case_host(&b, 64, &err);
        if (rc == DS_OK)
            rc = case_host(&b, 1024, &err);
    }
    if (rc == DS_OK && o.model)
        rc = ds_cli_model_open(&b.m, o.model,
                               &(ds_llm_place){ o.device, ds_cli_kernels(o.kernels), { .n_threads = (uint32_t)o.threads, .pin = o.pin } },
                               &err);
    if (rc == DS_OK && o.model) {
        const ds_config *c = ds_model_config(b.m.model);
        b.vocab = c->vocab_size;
        rc = ds_cli_ids_check(&b.text, b.vocab, &err);
        b.context = c->max_position_embeddings < 40960 ? c->max_position_embeddings : 40960;
        if (rc == DS_OK && (wanted(&o, "batch") || (wanted(&o, "open") && !o.trace)) && o.prompt + o.output > b.context)
            rc = ds_fail(&err, DS_E_ARG, "--prompt-tokens %" PRId64 " and --max-tokens %" PRId64 " exceed the context of %u tokens",
                         o.prompt, o.output, b.context);
        if (rc == DS_OK && wanted(&o, "batch"))
            rc = case_batch(&b, &err);
        if (rc == DS_OK && wanted(&o, "open"))
            rc = case_open(&b, &err);
        if (rc == DS_OK && wanted(&o, "budget"))
            rc = case_budget(&b, &err);
        if (rc == DS_OK && wanted(&o, "turn"))
            rc = case_turn(&b, &err);
        if (rc == DS_OK && wanted(&o, "drafts"))
            rc = case_drafts(&b, &err);
    }
    ds_cli_model_close(&b.m);
    free(b.text.p);
    if (rc == DS_E_CANCELED && ds_cli_signal())
        return 128 + ds_cli_signal();
    return rc == DS_OK ? 0 : ds_cli_fail("bench serve", &err);
}
