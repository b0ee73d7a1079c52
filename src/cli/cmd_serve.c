/* deepserve serve: the API over HTTP. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fcntl.h>

#include "base/utf8.h"
#include "cli/coord_cli.h"
#include "cli/options.h"
#include "cli/replay.h"
#include "cli/service_cli.h"
#include "role/fleet.h"
#include "server/server.h"

typedef struct {
    const char *model, *host, *unix_path, *admin, *tls_cert, *tls_key, *cors, *keys, *prefix, *responses_db, *access_log, *otlp, *replay,
        *config;
    ds_opt_list names, set, engines_at;
    ds_cli_service_opts m;
    ds_cli_coord_opts coord;
    int encoding, log_level, thinking, unknown_members;
    bool dump_config, no_tcp, strict_model, image_urls, metrics_auth, quiet;
    int64_t port, connections, workers, step_us, phases;
    uint64_t max_head, max_body, max_output_queue, responses_bytes;
    uint64_t header_ms, body_ms, stall_ms, keepalive_ms, idle_ms, drain_ms, request_ms, body_rate, responses_ttl_ms, engine_wait_ms;
} options;

#define O(field) .offset = offsetof(options, field)
/* clang-format off */
#define HEAD_OPTS \
    DS_CLI_OPT_CONFIG(offsetof(options, config), offsetof(options, dump_config)), \
    { .name = "model", .type = DS_OPT_STR, O(model), .arg = "DIR", .required = true, .help = "model directory" }, \
    { .name = "host", .type = DS_OPT_STR, O(host), .def = "127.0.0.1", .arg = "ADDRESS", .help = "address to listen on; one that others can reach should have --api-keys" }, \
    { .name = "port", .type = DS_OPT_INT, O(port), .def = "8000", .arg = "N", .min = 0, .max = 65535, .help = "0 takes any free one" }, \
    { .name = "unix-socket", .type = DS_OPT_STR, O(unix_path), .arg = "PATH", .help = "listen on a Unix-domain socket too" }, \
    { .name = "no-tcp", .type = DS_OPT_FLAG, O(no_tcp), .help = "listen on the Unix-domain socket only" }, \
    { .name = "admin-socket", .type = DS_OPT_STR, O(admin), .arg = "PATH", .help = "Unix-domain socket of the admin endpoints /status, /drain and /reload" }, \
    { .name = "tls-cert", .type = DS_OPT_STR, O(tls_cert), .arg = "F.pem", .help = "certificate chain; serves HTTPS" }, \
    { .name = "tls-key", .type = DS_OPT_STR, O(tls_key), .arg = "F.pem", .help = "its private key" }, \
    { .name = "cors-origin", .type = DS_OPT_STR, O(cors), .arg = "ORIGIN", .help = "let pages of this origin call the API; * for all" }, \
    { .name = "api-keys", .type = DS_OPT_STR, O(keys), .arg = "FILE", .help = "keys file; requests need a key then (deepserve keys adds one)" }, \
    { .name = "served-model-name", .type = DS_OPT_LIST, O(names), .arg = "NAME", .help = "what /v1/models lists; may be repeated (default: the directory's name)" }, \
    { .name = "strict-model", .type = DS_OPT_FLAG, O(strict_model), .help = "requests for other model names are a 404" }, \
    { .name = "encoding", .type = DS_OPT_ENUM, O(encoding), .def = "v4.1", .arg = "NAME", .choices = "v4.1|v4", .help = "dialect of the model's prompts" }, \
    { .name = "thinking", .type = DS_OPT_ENUM, O(thinking), .def = "auto", .arg = "WHEN", .choices = "auto|on|off", .help = "of a request that doesn't mention it; auto: on, but off where it forces a tool or a strict schema" }, \
    { .name = "unknown-members", .type = DS_OPT_ENUM, O(unknown_members), .def = "warn", .arg = "HOW", .choices = "ignore|warn|refuse", .help = "members of a request that are in no table of docs/server.md; warn: a line in the log" }, \
    { .name = "set", .type = DS_OPT_LIST, O(set), .arg = "NAME=VALUE", .help = "a switch of the recipe; `--set help` lists them" }, \
    { .name = "image-urls", .type = DS_OPT_FLAG, O(image_urls), .def = "true", .help = "fetch pictures at public addresses" },
#define TAIL_OPTS \
    { .name = "max-head", .type = DS_OPT_BYTES, O(max_head), .def = "32KiB", .arg = "BYTES", .min = 1024, .max = 1 << 20, .help = "request line and headers" }, \
    { .name = "header-timeout", .type = DS_OPT_MS, O(header_ms), .def = "10s", .arg = "TIME", .min = 1, .max = 3600000, .help = "for the whole head" }, \
    { .name = "max-body", .type = DS_OPT_BYTES, O(max_body), .def = "48MiB", .arg = "BYTES", .min = 1, .max = 1u << 31, .help = "larger bodies are a 413" }, \
    { .name = "body-timeout", .type = DS_OPT_MS, O(body_ms), .def = "30s", .arg = "TIME", .min = 1, .max = 3600000, .help = "without progress of the body" }, \
    { .name = "body-rate", .type = DS_OPT_BYTES, O(body_rate), .def = "4KiB", .arg = "BYTES", .min = 1, .max = 1 << 30, .help = "a body comes at so many a second on average, once --body-timeout is over" }, \
    { .name = "max-output-queue", .type = DS_OPT_BYTES, O(max_output_queue), .def = "1MiB", .arg = "BYTES", .min = 4096, .max = 1u << 30, .help = "waiting for one client; a slower reader is disconnected" }, \
    { .name = "client-stall-timeout", .type = DS_OPT_MS, O(stall_ms), .def = "10s", .arg = "TIME", .min = 1, .max = 3600000, .help = "a client that doesn't read for so long is disconnected" }, \
    { .name = "keepalive-interval", .type = DS_OPT_MS, O(keepalive_ms), .def = "10s", .arg = "TIME", .min = 1, .max = 3600000, .help = "comments in a stream that has nothing to say" }, \
    { .name = "idle-timeout", .type = DS_OPT_MS, O(idle_ms), .def = "120s", .arg = "TIME", .min = 1000, .max = 86400000, .help = "of a connection between requests" }, \
    { .name = "drain-timeout", .type = DS_OPT_MS, O(drain_ms), .def = "60s", .arg = "TIME", .min = 1, .max = 86400000, .help = "for running requests after SIGTERM" }, \
    { .name = "request-timeout", .type = DS_OPT_MS, O(request_ms), .def = "0", .arg = "TIME", .min = 0, .max = 86400000, .help = "a request ends after that long; 0 = never" }, \
    { .name = "max-connections", .type = DS_OPT_INT, O(connections), .def = "4096", .arg = "N", .min = 1, .max = 1000000, .help = "more are closed at once" }, \
    { .name = "workers", .type = DS_OPT_INT, O(workers), .def = "1", .arg = "N", .min = 1, .max = 64, .help = "threads that prepare large requests" }, \
    { .name = "responses-db", .type = DS_OPT_STR, O(responses_db), .arg = "FILE", .help = "stored responses (default: in memory)" }, \
    { .name = "responses-ttl", .type = DS_OPT_MS, O(responses_ttl_ms), .def = "720h", .arg = "TIME", .min = 1000, .max = INFINITY, .help = "how long they are kept" }, \
    { .name = "responses-bytes", .type = DS_OPT_BYTES, O(responses_bytes), .def = "256MiB", .arg = "BYTES", .min = 1 << 16, .max = INFINITY, .help = "all of them; the oldest go" }, \
    { .name = "metrics-auth", .type = DS_OPT_FLAG, O(metrics_auth), .help = "/metrics needs a key" }, \
    { .name = "metrics-prefix", .type = DS_OPT_STR, O(prefix), .def = "deepserve_", .arg = "TEXT", .help = "in front of metric names; vllm: for dashboards made for vLLM" }, \
    { .name = "access-log", .type = DS_OPT_STR, O(access_log), .arg = "FILE", .help = "JSON lines, one a request (default: standard error)" }, \
    { .name = "otlp", .type = DS_OPT_STR, O(otlp), .arg = "URL", .help = "OpenTelemetry collector that gets a span for each request, by OTLP over HTTP" }, \
    { .name = "quiet", .type = DS_OPT_FLAG, O(quiet), .help = "no access log" }, \
    { .name = "log-level", .type = DS_OPT_ENUM, O(log_level), .def = "info", .arg = "NAME", .choices = "error|warn|info|debug", .help = "what goes to standard error" },
static const ds_opt table[] = {
    HEAD_OPTS
    DS_CLI_OPTS_SERVICE(offsetof(options, m))
    TAIL_OPTS
    { .name = "replay-file", .type = DS_OPT_STR, O(replay), .arg = "F.jsonl", .help = "answers recorded outputs instead of computing, for protocol tests; of the model only tokenizer and config are read" },
    { .name = "replay-step", .type = DS_OPT_INT, O(step_us), .def = "0", .arg = "MICROSECONDS", .min = 0, .max = 60000000, .help = "time of a step then" },
    { .name = "replay-phases", .type = DS_OPT_INT, O(phases), .def = "1", .arg = "N", .min = 1, .max = 64, .help = "answers get their tokens in N groups, spread over that time" },
    { 0 },
};
static const ds_opt entry_table[] = {
    HEAD_OPTS
    { .name = "engine", .type = DS_OPT_LIST, O(engines_at), .arg = "ADDRESS", .help = "an engine process, unix:PATH or HOST:PORT (deepserve engine); may be repeated. Or --coord, for those that it names" },
    DS_CLI_OPTS_COORD(offsetof(options, coord))
    { .name = "engine-wait", .type = DS_OPT_MS, O(engine_wait_ms), .def = "60s", .arg = "TIME", .min = 1, .max = 86400000, .help = "for each of them to be there, at the start; with --coord for the first" },
    TAIL_OPTS
    { 0 },
};
/* clang-format on */

static const ds_opt_cmd command = {
    .command = "deepserve serve",
    .summary = "Serves Chat Completions, Responses, Messages and legacy Completions over HTTP until SIGTERM, which lets running requests "
               "end; a second one doesn't.\n"
               "SIGHUP reads the keys file again. The line \"listening on http://HOST:PORT\" on standard output says that it is ready.",
    .usage = "--model DIR [--port P] [options]",
    .example = "deepserve serve --model models/demo --port 8000",
    .opts = table,
};

const ds_opt_cmd ds_cli_entry = {
    .command = "deepserve entry",
    .summary =
        "Serves the same as `deepserve serve`, with engines that are other processes: of the model only config.json and tokenizer.json "
        "are read here.\n"
        "A request whose engine is lost goes on in another one, with the same text. An engine that comes back is used again.",
    .usage = "--model DIR (--engine ADDRESS [--engine ADDRESS ...] | --coord ADDRESS --name NAME) [options]",
    .example = "deepserve entry --model models/demo --engine unix:/run/e0 --engine unix:/run/e1 --port 8000",
    .opts = entry_table,
};

typedef struct {
    const options *o;
    const ds_log *log;
    const char *image_token;
    ds_service *s;
    ds_replay *replay;
    ds_server *server;
    ds_fleet *fleet;   /* the engines that a coord names */
    ds_member *member; /* what this process is in its cluster */
    ds_err member_err;
} service;

/* ---- callbacks of the engine and the server ---- */

static uint64_t choose_answer(void *ctx, const char *body, size_t n)
{
    return (uintptr_t)ds_replay_choose(((service *)ctx)->replay, body, n);
}

static ds_token replayed_token(void *ctx, uint64_t tag, uint32_t sample, uint32_t index)
{
    const ds_ids *answer = (const ds_ids *)(uintptr_t)tag;

    (void)sample;
    return answer && index < answer->n ? (ds_token)answer->p[index] : (ds_token)ds_service_config(((service *)ctx)->s)->eos_token_id;
}

static ds_rc embed(void *ctx, const float *patches, uint32_t n_h, uint32_t n_w, float *out, ds_err *err)
{
    return ds_service_picture(((service *)ctx)->s, patches, n_h, n_w, out, err);
}

static volatile sig_atomic_t is_ready;
/* Handlers count signals, and the member's thread reads and orders: lock-free, so that a handler may. */
static atomic_int terms;   /* signals that asked for the end */
static atomic_bool drains; /* the coord did */

/* ---- in a cluster ---- */

static void look(void *ctx, ds_coord_member *m)
{
    m->state = atomic_load(&terms) || atomic_load(&drains) ? DS_INSTANCE_GRACE : DS_INSTANCE_READY;
    m->live = ds_service_live(((service *)ctx)->s);
}

static void drain_ordered(void *ctx)
{
    atomic_store(&drains, true);
    ds_server_ask(((service *)ctx)->server, DS_SERVER_DRAIN);
}

static ds_rc open_fleet(void *ctx, const ds_remote_opts *each, ds_gen_many **out, ds_err *err)
{
    service *s = ctx;
    ds_rc rc = ds_fleet_open(
        &s->fleet,
        &(ds_fleet_opts){ .coord = s->o->coord.address, .remote = each, .wait_ms = (uint32_t)s->o->engine_wait_ms, .log = s->log }, err);

    if (rc == DS_OK)
        *out = ds_fleet_many(s->fleet);
    return rc;
}

static void stop_fleet(void *ctx)
{
    ds_fleet_stop(((service *)ctx)->fleet);
}

static void close_fleet(void *ctx)
{
    service *s = ctx;

    ds_fleet_close(s->fleet);
    s->fleet = NULL;
}

static void ready(void *ctx)
{
    service *s = ctx;

    is_ready = 1;
    if (ds_cli_coord_open(
            &s->member, &s->o->coord, s->o->model,
            &(ds_member_opts){
                .role = "entry", .address = ds_server_url(s->server), .look = look, .drain = drain_ordered, .ctx = s, .log = s->log },
            &s->member_err) != DS_OK) {
        ds_server_ask(s->server, DS_SERVER_STOP);
        return;
    }
    printf("listening on %s\n", ds_server_url(((service *)ctx)->server));
    fflush(stdout);
}

/* ---- the model ---- */

/* A rank is gone, and with it the model. */
static void lost(void *ctx)
{
    ds_server_ask(((service *)ctx)->server, DS_SERVER_STOP);
}

static ds_rc load(void *ctx, ds_server_model *out, ds_err *err)
{
    service *s = ctx;
    const options *o = s->o;
    char cache[4096];
    ds_engine_stub stub = { .token = replayed_token,
                            .ctx = s,
                            .step_ns = (uint64_t)o->step_us * 1000 / (uint64_t)(o->phases ? o->phases : 1),
                            .phases = (uint32_t)o->phases };
    ds_service_opts so = { .image_token = s->image_token, .log = s->log, .lost = lost, .ctx = s, .stub = o->replay ? &stub : NULL };
    const ds_service_engines engines = { .open = open_fleet, .stop = stop_fleet, .close = close_fleet, .ctx = s };
    const ds_token *ids;
    ds_rc rc;

    so.engines_of = o->coord.address ? &engines : NULL;
    if (!o->engines_at.n && !o->coord.address)
        ds_cli_service_get(&so, &o->m, o->encoding, cache, sizeof cache);
    so.engines_at = o->engines_at.v;
    so.n_engines_at = (uint32_t)o->engines_at.n;
    so.engine_wait_ms = (uint32_t)o->engine_wait_ms;
    if (o->replay && (o->m.kv_dirs.n || o->m.kv))
        return ds_fail(err, DS_E_ARG, "--kv-dir, --kv: recorded answers (--replay-file) have no KV to keep");
    if (o->replay && o->m.ranks > 1)
        return ds_fail(err, DS_E_ARG, "--ranks: recorded answers (--replay-file) have no experts");
    if (o->replay && o->m.kv_memory)
        return ds_fail(err, DS_E_ARG, "--kv-memory: recorded answers (--replay-file) have no KV to keep");
    rc = ds_service_open(&s->s, o->model, &so, err);
    if (rc == DS_OK && o->replay)
        rc = ds_replay_open(&s->replay, o->replay, ds_service_tokenizer(s->s), err);
    if (rc != DS_OK)
        return rc;
    ds_cli_service_say(s->s, &o->m);
    ids = ds_service_stop_ids(s->s, &out->n_stop_ids);
    memcpy(out->stop_ids, ids, out->n_stop_ids * sizeof *ids);
    out->gen = ds_service_gen(s->s);
    out->tokenizer = ds_service_tokenizer(s->s);
    out->max_context = ds_service_context(s->s);
    out->fingerprint = "deepserve-" DS_VERSION;
    out->engines_elsewhere = o->engines_at.n > 0 || o->coord.address;
    if (ds_service_pictures(s->s, &out->vision.rule, &out->vision.token_id)) {
        out->vision.hidden = ds_service_config(s->s)->hidden_size;
        out->vision.embed = embed;
        out->vision.ctx = s;
    }
    return DS_OK;
}

static void close_service(service *s)
{
    ds_member_close(s->member);
    if (s->s)
        ds_service_stop(s->s); /* the server's requests end before it goes, and its texts before the tokenizer does */
    ds_server_destroy(s->server);
    ds_replay_close(s->replay);
    ds_service_close(s->s);
}

/* ---- signals ---- */

static ds_server *signaled;

static void on_signal(int sig)
{
    if (sig == SIGHUP)
        ds_server_ask(signaled, DS_SERVER_RELOAD);
    else if (atomic_load(&terms) && !is_ready) /* a model that is still being opened isn't waited for */
        _exit(0);
    else
        ds_server_ask(signaled, atomic_fetch_add(&terms, 1) == 0 ? DS_SERVER_DRAIN : DS_SERVER_STOP);
}

static void ignore_signals(void)
{
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
}

static void catch_signals(ds_server *s)
{
    struct sigaction a = { .sa_handler = on_signal, .sa_flags = SA_RESTART };

    signaled = s;
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGHUP, &a, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a limit of file sizes is an error of the write, as a full disk is */
}

/* ---- the command ---- */

static const char *directory_name(char *out, size_t cap, const char *dir)
{
    size_t n = strlen(dir);

    while (n > 1 && dir[n - 1] == '/')
        n--;
    size_t at = n;
    while (at > 0 && dir[at - 1] != '/')
        at--;
    snprintf(out, cap, "%.*s", (int)(n - at), dir + at);
    return *out && strcmp(out, ".") != 0 && strcmp(out, "..") != 0 && strcmp(out, "/") != 0 ? out : "deepseek";
}

static bool is_loopback(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;
}

/* Values that the option table can't judge. An exit status, or -1: nothing is wrong. */
static int check_values(const options *o, const char *name)
{
    static const char *const names[] = { "host",     "unix-socket",  "admin-socket", "tls-cert",    "tls-key",
                                         "api-keys", "responses-db", "access-log",   "replay-file", "cache-dir" };
    const char *const values[] = { o->host, o->unix_path,    o->admin,      o->tls_cert, o->tls_key,
                                   o->keys, o->responses_db, o->access_log, o->replay,   o->m.cache_dir };
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_:", digits[] = "0123456789";
    char q[220];

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (values[i] && !*values[i])
            return ds_cli_wrong(name, "--%s '': expected a value", names[i]);
    for (size_t i = 0; i < o->names.n; i++)
        if (!*o->names.v[i] || !ds_utf8_valid(o->names.v[i], strlen(o->names.v[i])))
            return ds_cli_wrong(name, "--served-model-name '%s': expected a name in UTF-8",
                                ds_quote(q, sizeof q, o->names.v[i], strlen(o->names.v[i])));
    for (const char *c = o->prefix; *c; c++)
        if (!strchr(letters, *c) && (c == o->prefix || !strchr(digits, *c)))
            return ds_cli_wrong(name, "--metrics-prefix '%s': expected letters, digits, '_' and ':', and no digit first",
                                ds_quote(q, sizeof q, o->prefix, strlen(o->prefix)));
    for (const char *c = o->cors; c && (*c || c == o->cors); c++)
        if (*c <= ' ' || *c > '~' || *c == ',')
            return ds_cli_wrong(name, "--cors-origin '%s': expected one origin as https://example.org, or *",
                                ds_quote(q, sizeof q, o->cors, strlen(o->cors)));
    if (o->otlp && strncmp(o->otlp, "http://", 7) != 0 && strncmp(o->otlp, "https://", 8) != 0)
        return ds_cli_wrong(name, "--otlp '%s': expected the collector's address as http://HOST:PORT",
                            ds_quote(q, sizeof q, o->otlp, strlen(o->otlp)));
    if (!o->tls_cert != !o->tls_key)
        return ds_cli_wrong(name, "--tls-cert and --tls-key belong together");
    if (o->no_tcp && !o->unix_path)
        return ds_cli_wrong(name, "--no-tcp needs --unix-socket");
    if (o->unix_path && o->admin && strcmp(o->unix_path, o->admin) == 0)
        return ds_cli_wrong(name, "--unix-socket and --admin-socket need different paths");
    return -1;
}

static ds_rc run(service *s, const ds_server_opts *so, ds_err *err)
{
    ds_server_hooks hooks = { .load = load, .ready = ready, .ctx = s };
    ds_rc rc = ds_server_create(&s->server, so, err);

    if (rc != DS_OK)
        return rc;
    catch_signals(s->server);
    rc = ds_server_run(s->server, &hooks, err);
    ignore_signals(); /* the server that they ask for something is about to go, and so is the program */
    return rc;
}

static void raise_file_limit(void)
{
    struct rlimit l;

    if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < l.rlim_max) {
        l.rlim_cur = l.rlim_max;
        setrlimit(RLIMIT_NOFILE, &l);
    }
}

static int serve(int argc, char **argv, const ds_opt_cmd *cmd, const char *name)
{
    options o = { 0 };
    service s = { .o = &o };
    ds_recipe_opts recipe;
    ds_log log;
    char folder[256];
    const char *names[1];
    ds_err err = { 0 };
    int status = ds_cli_parse(cmd, &o, argc, argv, NULL), access_fd = STDERR_FILENO;
    ds_rc rc;

    if (status != -1)
        return status;
    ds_recipe_opts_init(&recipe);
    recipe.encoding = o.encoding == 1 ? DS_ENC_V4 : DS_ENC_V41;
    recipe.lenient_history = true;
    recipe.allow_regex = true;
    recipe.no_constraints = o.replay != NULL; /* a recorded answer is what it is */
    recipe.thinking = (ds_thinking_default)o.thinking;
    recipe.unknown_members = (ds_unknown_members)o.unknown_members;
    for (size_t i = 0; i < o.set.n; i++) {
        if (strcmp(o.set.v[i], "help") == 0) {
            for (size_t k = 0; ds_recipe_opts_help(k); k++)
                puts(ds_recipe_opts_help(k));
            return 0;
        }
        if (ds_recipe_opts_set(&recipe, o.set.v[i], &err) != DS_OK)
            return ds_cli_wrong(name, "--set: %s", err.msg);
    }
    s.image_token = recipe.image_token;
    status = check_values(&o, name);
    if (status == -1 && cmd == &ds_cli_entry && !o.engines_at.n == !o.coord.address)
        status = ds_cli_wrong(name, "either --engine, at least one, or --coord is needed");
    if (status == -1)
        status = ds_cli_coord_check(&o.coord, name);
    if (status == -1 && cmd == &command)
        status = ds_cli_service_check(&o.m, name);
    if (status != -1)
        return status;
    if (!is_loopback(o.host) && !o.keys)
        fprintf(stderr, "warning: %s is open to everyone who can reach it; --api-keys asks for a key\n", o.host);
    names[0] = directory_name(folder, sizeof folder, o.model);
    log = (ds_log){ .level = (ds_log_level)o.log_level, .fd = STDERR_FILENO };
    s.log = &log;
    if (o.access_log && !o.quiet) {
        char q[220];
        access_fd = open(o.access_log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
        if (access_fd < 0) {
            ds_fail(&err, DS_E_IO, "--access-log %s: %s", ds_quote(q, sizeof q, o.access_log, strlen(o.access_log)), strerror(errno));
            return ds_cli_fail(name, &err);
        }
    }
    raise_file_limit();
    ds_server_opts so = {
        .host = o.host,
        .port = (uint16_t)o.port,
        .no_tcp = o.no_tcp,
        .unix_path = o.unix_path,
        .admin_path = o.admin,
        .tls_cert = o.tls_cert,
        .tls_key = o.tls_key,
        .cors_origin = o.cors,
        .max_head = o.max_head,
        .max_body = o.max_body,
        .max_output_queue = o.max_output_queue,
        .max_connections = (uint32_t)o.connections,
        .workers = (uint32_t)o.workers,
        .header_ms = o.header_ms,
        .body_ms = o.body_ms,
        .stall_ms = o.stall_ms,
        .keepalive_ms = o.keepalive_ms,
        .idle_ms = o.idle_ms,
        .body_rate = o.body_rate,
        .drain_ms = o.drain_ms,
        .request_ms = o.request_ms,
        .keys_file = o.keys,
        .metrics_auth = o.metrics_auth,
        .metrics_prefix = o.prefix,
        .names = o.names.n ? o.names.v : names,
        .n_names = o.names.n ? o.names.n : 1,
        .strict_model = o.strict_model,
        .recipe = &recipe,
        .no_image_urls = !o.image_urls,
        .responses_db = o.responses_db,
        .responses_ttl_ms = o.responses_ttl_ms,
        .responses_bytes = o.responses_bytes,
        .log = &log,
        .otlp_url = o.otlp,
        .access_fd = o.quiet ? -1 : access_fd,
        .tag = o.replay ? choose_answer : NULL,
        .ctx = &s,
    };
    rc = run(&s, &so, &err);
    if (rc == DS_OK && s.s)
        rc = ds_service_state(s.s, &err);
    if (rc == DS_OK && s.member_err.rc != DS_OK) {
        rc = s.member_err.rc;
        err = s.member_err;
    }
    close_service(&s);
    if (access_fd != STDERR_FILENO)
        close(access_fd);
    return rc == DS_OK ? 0 : ds_cli_fail(name, &err);
}

int ds_cmd_serve(int argc, char **argv)
{
    return serve(argc, argv, &command, "serve");
}

int ds_cmd_entry(int argc, char **argv)
{
    return serve(argc, argv, &ds_cli_entry, "entry");
}
