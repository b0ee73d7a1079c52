/* deepserve engine: an engine process, for entries. */
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "cli/cli.h"
#include "cli/coord_cli.h"
#include "cli/service_cli.h"
#include "net/addr.h"
#include "role/engine.h"

typedef struct {
    const char *model, *listen, *config;
    ds_cli_service_opts m;
    ds_cli_coord_opts coord;
    int encoding, log_level, role;
    bool dump_config;
    uint64_t drain_ms;
} options;

#define O(field) .offset = offsetof(options, field)
/* clang-format off */
static const ds_opt table[] = {
    DS_CLI_OPT_CONFIG(offsetof(options, config), offsetof(options, dump_config)),
    DS_CLI_OPT_MODEL(offsetof(options, model)),
    { .name = "listen", .type = DS_OPT_STR, O(listen), .arg = "ADDRESS", .required = true, .help = "where entries connect: unix:PATH, or HOST:PORT of this machine; port 0 takes any free one" },
    { .name = "encoding", .type = DS_OPT_ENUM, O(encoding), .def = "v4.1", .arg = "NAME", .choices = "v4.1|v4", .help = "dialect of the model's prompts" },
    DS_CLI_OPTS_COORD(offsetof(options, coord))
    { .name = "role", .type = DS_OPT_ENUM, O(role), .def = "mixed", .arg = "NAME", .choices = "mixed|prefill|decode", .help = "what entries use it for: prefill computes prompts and first tokens, decode goes on behind them, mixed does both" },
    DS_CLI_OPTS_SERVICE(offsetof(options, m))
    { .name = "drain-timeout", .type = DS_OPT_MS, O(drain_ms), .def = "60s", .arg = "TIME", .min = 1, .max = 86400000, .help = "for running requests after SIGTERM; what is left goes on in other engines" },
    { .name = "log-level", .type = DS_OPT_ENUM, O(log_level), .def = "info", .arg = "NAME", .choices = "error|warn|info|debug", .help = "what goes to standard error" },
    { 0 },
};
/* clang-format on */

const ds_opt_cmd ds_cli_engine = {
    .command = "deepserve engine",
    .summary =
        "Computes answers for the entries that connect (deepserve entry), until SIGTERM, which lets running requests end; a second one "
        "doesn't.\n"
        "The line \"listening on ADDRESS\" on standard output says that it is ready.",
    .usage = "--model DIR --listen ADDRESS [options]",
    .example = "deepserve engine --model models/demo --listen unix:/run/deepserve/e0",
    .opts = table,
};

static volatile sig_atomic_t asked;
static atomic_bool ordered; /* from the member's thread; by the coord: as one signal, and doesn't count as the first of two */
static volatile sig_atomic_t is_ready;

static void on_signal(int sig)
{
    (void)sig;
    if (!is_ready) /* a model that is still being opened isn't waited for */
        _exit(0);
    asked++;
}

/* A rank is gone, and with it the model. */
static void lost(void *ctx)
{
    (void)ctx;
    asked = 2;
}

/* ---- how it leaves ---- */

typedef struct {
    /* [const] */
    ds_engine_role *r;
    /* [atomic] written by the main thread, read by the member's; each alone says something */
    _Atomic int state;
} leaving;

static void look(void *ctx, ds_coord_member *m)
{
    const leaving *l = ctx;
    ds_gen g = ds_service_gen(ds_engine_role_service(l->r));
    ds_gen_stats sum = { 0 }, s;

    for (uint32_t i = 0; i < ds_gen_n_engines(g); i++)
        if (ds_gen_stats_get(g, i, &s))
            ds_gen_stats_add(&sum, &s);
    m->state = (ds_instance_state)atomic_load(&l->state);
    m->live = ds_engine_role_live(l->r);
    m->kv_used = sum.kv_used;
    m->kv_total = sum.kv_blocks;
}

static void drain_ordered(void *ctx)
{
    (void)ctx;
    atomic_store(&ordered, true);
}

/* Until it is wanted away, by a signal or the coord, and then through the states of leaving (policy/instance.h): until
 * nothing is left, the time is over or another signal comes. What is left goes on in other engines. */
static void live(leaving *l, const ds_log *log, uint64_t drain_ms)
{
    const ds_instance_limits limits = { .announce_us = 1000000, .grace_us = drain_ms * 1000, .move_us = 1, .kv_us = 1 };
    ds_instance at = { .since_us = ds_now_us() };

    while (asked < 2) {
        ds_instance_facts f = { .drain = asked > 0 || atomic_load(&ordered) };
        ds_instance_step step;
        bool over = f.drain && ds_engine_role_drain(l->r);
        f.live = over ? 0 : ds_engine_role_live(l->r) + (f.drain && !over);
        step = ds_instance_next(&at, &f, &limits, ds_now_us());
        if (step.next.state != at.state) {
            ds_logf(log, DS_LOG_INFO, "engine %s: %s, %u requests", ds_engine_role_address(l->r), ds_instance_state_name(step.next.state),
                    ds_engine_role_live(l->r));
            atomic_store(&l->state, (int)step.next.state);
        }
        at = step.next;
        if (at.state >= DS_INSTANCE_MOVING)
            return;
        poll(NULL, 0, f.drain ? 10 : 100);
    }
}

int ds_cmd_engine(int argc, char **argv)
{
    options o = { 0 };
    struct sigaction a = { .sa_handler = on_signal };
    ds_service_opts so = { 0 };
    ds_engine_role *r;
    leaving l = { .state = DS_INSTANCE_READY };
    ds_member *member = NULL;
    ds_addr at;
    ds_log log;
    char cache[4096], line[DS_ADDR_TEXT + 16];
    ds_err err = { 0 };
    int status = ds_cli_parse(&ds_cli_engine, &o, argc, argv, NULL);
    ds_rc rc;

    if (status != -1)
        return status;
    status = ds_cli_service_check(&o.m, "engine");
    if (status == -1)
        status = ds_cli_coord_check(&o.coord, "engine");
    if (status != -1)
        return status;
    if (o.role && o.m.engines > 1)
        return ds_cli_wrong("engine", "--role: a process of several engines keeps its sequences; --engines 1");
    if (o.role && o.coord.address)
        return ds_cli_wrong("engine",
                            "--role: entries that find their engines through a coord take them for both; name it to them (--engine)");
    if (ds_addr_parse(&at, o.listen, &err) != DS_OK)
        return ds_cli_wrong("engine", "--listen %s", err.msg);
    log = (ds_log){ .level = (ds_log_level)o.log_level, .fd = STDERR_FILENO };
    ds_cli_service_get(&so, &o.m, o.encoding, cache, sizeof cache);
    so.role = (ds_cw_role)o.role; /* the choices' order is that of the roles */
    so.no_pictures = true;        /* their embeddings come with the requests */
    so.log = &log;
    so.lost = lost;
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    rc = ds_engine_role_open(&r, o.model, o.listen, &so, &err);
    if (rc != DS_OK)
        return ds_cli_fail("engine", &err);
    ds_cli_service_say(ds_engine_role_service(r), &o.m);
    is_ready = 1;
    l.r = r;
    rc = ds_cli_coord_open(
        &member, &o.coord, o.model,
        &(ds_member_opts){
            .role = "mixed", .address = ds_engine_role_address(r), .look = look, .drain = drain_ordered, .ctx = &l, .log = &log },
        &err);
    if (rc == DS_OK)
        rc = ds_file_write(1, line, (size_t)snprintf(line, sizeof line, "listening on %s\n", ds_engine_role_address(r)), "standard output",
                           &err);
    if (rc == DS_OK) {
        live(&l, &log, o.drain_ms);
        rc = ds_service_state(ds_engine_role_service(r), &err);
    }
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    ds_member_close(member);
    ds_engine_role_close(r);
    return rc == DS_OK ? 0 : ds_cli_fail("engine", &err);
}
