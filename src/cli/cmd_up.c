/* deepserve up: a cluster on this machine, from one file. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/cli.h"
#include "cli/ctl_cluster.h"
#include "role/up.h"

typedef struct {
    bool json, restart;
} options;

static const ds_opt table[] = {
    { .name = "json",
      .type = DS_OPT_FLAG,
      .offset = offsetof(options, json),
      .help = "instead of the line `ready` one object: address, processes, logs" },
    { .name = "restart",
      .type = DS_OPT_FLAG,
      .offset = offsetof(options, restart),
      .def = "true",
      .help = "start a process again that died, after a second, doubled each time up to a minute" },
    { 0 },
};

static const ds_opt_cmd command = {
    .command = "deepserve up",
    .summary = "Starts the stores, engines and entries that a file describes, each a process of this machine, and waits until all are "
               "ready.\n"
               "Then it prints one line `ready http://HOST:PORT`, watches them, and ends all of them, entries first, on Ctrl-C, SIGTERM or "
               "SIGHUP; "
               "a second one doesn't let running requests end.",
    .usage = "FILE.yaml [options]",
    .example = "deepserve up examples/cluster.yaml",
    .opts = table,
};

typedef struct {
    const options *o;
    bool terminal; /* standard error is one: a line of progress is written over */
    bool shown;    /* that line is there */
    bool was_ready, failed;
    uint64_t began_us;
    ds_err err;
} view;

/* ---- what is told ---- */

static void clear_line(view *v)
{
    if (v->shown)
        fputs("\r\033[K", stderr);
    v->shown = false;
}

static void show_progress(view *v, const ds_up *u)
{
    const ds_up_plan *plan = ds_up_plan_of(u);
    const char *sep = "";

    clear_line(v);
    fprintf(stderr, "%.0f s: ", (double)(ds_now_us() - v->began_us) / 1e6);
    for (ds_up_kind k = 0; k < DS_UP_KINDS; k++) {
        unsigned ready = 0, all = 0;
        for (uint32_t i = 0; i < plan->n; i++)
            if (plan->p[i].kind == k) {
                all++;
                ready += ds_up_status_of(u, i).state == DS_UP_READY;
            }
        if (all == 0)
            continue;
        fprintf(stderr, "%s%u of %u %s", sep, ready, all, ds_up_kind_name(k, all > 1));
        sep = ", ";
    }
    fputs(" ready", stderr);
    fflush(stderr);
    v->shown = true;
}

static void changed(void *ctx, const ds_up *u, uint32_t i)
{
    const ds_up_process *p = &ds_up_plan_of(u)->p[i];
    ds_up_status s = ds_up_status_of(u, i);
    view *v = ctx;

    switch (s.state) {
    case DS_UP_READY:
        if (v->was_ready)
            fprintf(stderr, "%s is back after %.1f s\n", p->name, (double)s.ready_us / 1e6);
        else if (!v->terminal)
            fprintf(stderr, "%s ready after %.1f s\n", p->name, (double)s.ready_us / 1e6);
        break;
    case DS_UP_AWAY:
        if (s.again_in_us)
            fprintf(stderr, "%s is gone: %s; it starts again in %.0f s\n", p->name, s.why, (double)s.again_in_us / 1e6);
        else
            fprintf(stderr, "%s is gone: %s; --no-restart: it isn't started again\n", p->name, s.why);
        break;
    default:
        break;
    }
}

static void waiting(void *ctx, const ds_up *u)
{
    view *v = ctx;

    if (v->terminal)
        show_progress(v, u);
}

static void put_address(ds_buf *b, const ds_up *u)
{
    const ds_up_plan *plan = ds_up_plan_of(u);

    for (uint32_t i = 0; i < plan->n; i++)
        if (plan->p[i].kind == DS_UP_ENTRY) {
            ds_buf_puts(b, ds_up_status_of(u, i).address);
            return;
        }
}

static void put_json(ds_buf *b, const ds_up *u)
{
    const ds_up_plan *plan = ds_up_plan_of(u);
    ds_buf address = { 0 };

    put_address(&address, u);
    ds_buf_puts(b, "{\"name\":");
    ds_json_write_str(b, plan->name, strlen(plan->name), DS_JSON_COMPACT);
    ds_buf_puts(b, ",\"ready\":");
    ds_json_write_str(b, ds_buf_str(&address), address.len, DS_JSON_COMPACT);
    ds_buf_puts(b, ",\"processes\":[");
    for (uint32_t i = 0; i < plan->n; i++) {
        ds_up_status s = ds_up_status_of(u, i);
        const char *log = ds_up_log_of(u, i);
        ds_buf_printf(b, "%s{\"name\":\"%s\",\"role\":\"%s\",\"pid\":%d,\"address\":", i ? "," : "", plan->p[i].name, plan->p[i].role,
                      (int)s.pid);
        ds_json_write_str(b, s.address, strlen(s.address), DS_JSON_COMPACT);
        ds_buf_puts(b, ",\"log\":");
        ds_json_write_str(b, log, strlen(log), DS_JSON_COMPACT);
        ds_buf_putc(b, '}');
    }
    ds_buf_puts(b, "]}\n");
    b->oom = b->oom || address.oom;
    ds_buf_free(&address);
}

static void show_table(const ds_up *u)
{
    const ds_up_plan *plan = ds_up_plan_of(u);
    int name = 4, address = 7;

    for (uint32_t i = 0; i < plan->n; i++) {
        int n = (int)strlen(plan->p[i].name), a = (int)strlen(ds_up_status_of(u, i).address);
        name = n > name ? n : name;
        address = a > address ? a : address;
    }
    fprintf(stderr, "%-*s  %-6s  %-8s  %-*s  %s\n", name, "name", "role", "pid", address, "address", "ready after");
    for (uint32_t i = 0; i < plan->n; i++) {
        ds_up_status s = ds_up_status_of(u, i);
        fprintf(stderr, "%-*s  %-6s  %-8d  %-*s  %.1f s\n", name, plan->p[i].name, plan->p[i].role, (int)s.pid, address, s.address,
                (double)s.ready_us / 1e6);
    }
    fprintf(stderr, "logs       %s/logs\nhow it is  deepserve ctl status --coord %s\nCtrl-C ends all of it\n", plan->dir, plan->coord);
}

static void ready(void *ctx, const ds_up *u)
{
    view *v = ctx;
    ds_buf b = { 0 };

    clear_line(v);
    v->was_ready = true;
    show_table(u);
    if (v->o->json) {
        put_json(&b, u);
    } else {
        ds_buf_puts(&b, "ready ");
        put_address(&b, u);
        ds_buf_putc(&b, '\n');
    }
    if (b.oom)
        ds_fail(&v->err, DS_E_NOMEM, "out of memory");
    else if (ds_file_write(1, ds_buf_str(&b), b.len, "standard output", &v->err) == DS_OK)
        v->err.rc = DS_OK;
    ds_buf_free(&b);
}

static void ending(void *ctx, const ds_up *u, bool hurry)
{
    view *v = ctx;

    (void)u;
    clear_line(v);
    fputs(hurry ? "ending without waiting for running requests\n" : "ending: running requests end first; again for not waiting\n", stderr);
}

/* ---- the command ---- */

/* Where clusters without a place of their own have one. */
static void find_run_dir(char *out, size_t cap)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");

    if (runtime && *runtime == '/')
        snprintf(out, cap, "%s/deepserve", runtime);
    else
        snprintf(out, cap, "/tmp/deepserve-%u", (unsigned)geteuid());
}

ds_rc ds_cli_up_plan(ds_up_plan **out, const char *file, ds_err *err)
{
    char run_dir[4096];

    find_run_dir(run_dir, sizeof run_dir);
    return ds_up_plan_load(
        out, file,
        &(ds_up_commands){
            .coord = &ds_cli_coord, .store = &ds_cli_kvd, .engine = &ds_cli_engine, .entry = &ds_cli_entry, .run_dir = run_dir },
        err);
}

static ds_rc find_program(char *out, size_t cap, ds_err *err)
{
    ssize_t n = readlink("/proc/self/exe", out, cap - 1);

    if (n <= 0)
        return ds_fail(err, DS_E_IO, "/proc/self/exe: %s", strerror(errno));
    out[n] = '\0';
    return DS_OK;
}

int ds_cmd_up(int argc, char **argv)
{
    options o = { 0 };
    view v = { .o = &o };
    const char *file = NULL;
    size_t n = 0;
    bool help;
    char program[4096];
    ds_up_plan *plan = NULL;
    ds_up *u = NULL;
    ds_err err = { 0 };
    ds_rc rc;

    if (ds_opt_parse(&command, &o, argc, argv, &file, 1, &n, NULL, &help, &err) != DS_OK)
        return ds_cli_wrong("up", "%s", err.msg);
    if (help) {
        ds_opt_print_help(&command, stdout);
        return 0;
    }
    if (n == 0)
        return ds_cli_wrong("up", "the cluster's file is missing");
    v.terminal = isatty(2);
    v.began_us = ds_now_us();
    rc = find_program(program, sizeof program, &err);
    if (rc == DS_OK)
        rc = ds_cli_up_plan(&plan, file, &err);
    if (rc == DS_OK)
        rc = ds_up_open(&u, plan,
                        &(ds_up_opts){ .program = program,
                                       .no_restart = !o.restart,
                                       .changed = changed,
                                       .waiting = waiting,
                                       .ready = ready,
                                       .ending = ending,
                                       .ctx = &v },
                        &err);
    if (rc == DS_OK)
        rc = ds_up_run(u, &err);
    clear_line(&v);
    if (rc == DS_OK && v.err.rc != DS_OK) {
        rc = v.err.rc;
        err = v.err;
    }
    ds_up_close(u);
    ds_up_plan_free(plan);
    return rc == DS_OK ? 0 : ds_cli_fail("up", &err);
}
