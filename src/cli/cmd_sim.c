/* deepserve sim: a deployment on a virtual clock. */
#include "cli/cli.h"
#include "cli/input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "sim/pages.h"
#include "sim/report.h"

typedef struct {
    int64_t seed;
    bool json;
    const char *svg, *html;
} options;

static const ds_opt table[] = {
    { .name = "seed",
      .type = DS_OPT_INT,
      .offset = offsetof(options, seed),
      .def = "-1",
      .arg = "N",
      .min = -1,
      .max = 9007199254740992.0,
      .help = "of all random numbers, instead of the file's; -1: the file's" },
    { .name = "json", .type = DS_OPT_FLAG, .offset = offsetof(options, json), .help = "one JSON object instead of tables" },
    { .name = "svg",
      .type = DS_OPT_STR,
      .offset = offsetof(options, svg),
      .arg = "DIR",
      .help = "pictures too, in this directory, which is made if it isn't there" },
    { .name = "html",
      .type = DS_OPT_STR,
      .offset = offsetof(options, html),
      .arg = "FILE",
      .help = "a page with all pictures and tables, which needs nothing else" },
    { 0 },
};

static const ds_opt_cmd command = {
    .command = "deepserve sim",
    .summary = "Simulates the deployment that a file describes, under the load that it describes, with the balancers and schedulers that\n"
               "serve. The same file and seed give the same output. docs/planning.md has all keys of the file.",
    .usage = "FILE.yaml [options]",
    .example = "deepserve sim examples/sim-server.yaml",
    .opts = table,
};

/* Whole or not at all. */
static ds_rc write_file(const char *path, const ds_buf *b, ds_err *err)
{
    char temporary[4096];
    ds_rc rc;
    int fd;

    if (b->oom)
        return ds_fail(err, DS_E_NOMEM, "%s: out of memory", path);
    if (snprintf(temporary, sizeof temporary, "%s.%ld.new", path, (long)getpid()) >= (int)sizeof temporary)
        return ds_fail(err, DS_E_ARG, "%.60s...: the name is too long", path);
    fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd == -1)
        return ds_fail(err, DS_E_IO, "%s: %s", path, strerror(errno));
    rc = ds_file_write(fd, b->p, b->len, path, err);
    if (close(fd) == -1 && rc == DS_OK)
        rc = ds_fail(err, DS_E_IO, "%s: %s", path, strerror(errno));
    if (rc == DS_OK && rename(temporary, path) == -1)
        rc = ds_fail(err, DS_E_IO, "%s: %s", path, strerror(errno));
    if (rc != DS_OK)
        unlink(temporary);
    return rc;
}

static ds_rc write_svgs(const char *dir, const ds_sim_picture *pictures, uint32_t n, ds_err *err)
{
    ds_rc rc = DS_OK;

    if (mkdir(dir, 0777) == -1 && errno != EEXIST)
        return ds_fail(err, DS_E_IO, "%s: %s", dir, strerror(errno));
    for (uint32_t i = 0; i < n && rc == DS_OK; i++) {
        char path[4000];
        if (snprintf(path, sizeof path, "%s/%s.svg", dir, pictures[i].name) >= (int)sizeof path)
            return ds_fail(err, DS_E_ARG, "%.60s...: the name is too long", dir);
        rc = write_file(path, &pictures[i].svg, err);
    }
    return rc;
}

static ds_rc draw(const options *o, const char *path, const ds_sim_plan *plan, const ds_sim_result *result, const char *report, ds_err *err)
{
    const char *slash = strrchr(path, '/');
    ds_sim_picture pictures[DS_SIM_PICTURES];
    ds_sim_sweeps *sweeps = malloc(sizeof *sweeps);
    ds_buf page = { 0 };
    uint32_t n = 0;
    ds_rc rc = sweeps ? ds_sim_sweep(plan, sweeps, err) : ds_fail(err, DS_E_NOMEM, "out of memory");

    if (rc == DS_OK)
        n = ds_sim_pictures(pictures, plan, result, sweeps);
    for (uint32_t i = 0; i < n && rc == DS_OK; i++)
        if (pictures[i].svg.oom)
            rc = ds_fail(err, DS_E_NOMEM, "out of memory");
    if (rc == DS_OK && o->html) {
        ds_sim_page(&page, slash ? slash + 1 : path, report, pictures, n);
        rc = write_file(o->html, &page, err);
    }
    if (rc == DS_OK && o->svg)
        rc = write_svgs(o->svg, pictures, n, err);
    for (uint32_t i = 0; i < n; i++)
        ds_buf_free(&pictures[i].svg);
    ds_buf_free(&page);
    free(sweeps);
    return rc;
}

static int simulate(const char *path, const options *o)
{
    ds_sim_plan *plan = NULL;
    ds_sim_result *result = malloc(sizeof *result);
    ds_err err = { 0 };
    ds_buf text = { 0 }, json = { 0 }, *out = o->json ? &json : &text;
    int status = 1;
    ds_rc rc = result ? ds_sim_plan_load(&plan, path, &err) : ds_fail(&err, DS_E_NOMEM, "out of memory");

    if (rc == DS_OK && o->seed >= 0)
        plan->seed = (uint64_t)o->seed;
    if (rc == DS_OK)
        rc = ds_sim_run(plan, result, &err);
    if (rc == DS_OK) {
        ds_sim_report_text(&text, plan, result);
        ds_sim_report_json(&json, plan, result);
        if (text.oom || json.oom)
            rc = ds_fail(&err, DS_E_NOMEM, "out of memory");
    }
    if (rc == DS_OK && (o->svg || o->html))
        rc = draw(o, path, plan, result, text.p, &err);
    if (rc == DS_OK)
        rc = ds_cli_write_all(out, &err);
    if (rc == DS_OK)
        status = 0;
    else
        ds_cli_fail("sim", &err);
    ds_buf_free(&json);
    ds_buf_free(&text);
    ds_sim_plan_free(plan);
    free(result);
    return status;
}

int ds_cmd_sim(int argc, char **argv)
{
    options o = { 0 };
    ds_err err = { 0 };
    const char *path = NULL;
    size_t n;
    bool help;

    if (ds_opt_parse(&command, &o, argc, argv, &path, 1, &n, NULL, &help, &err) != DS_OK)
        return ds_cli_wrong("sim", "%s", err.msg);
    if (help) {
        ds_opt_print_help(&command, stdout);
        return 0;
    }
    if (n != 1)
        return ds_cli_wrong("sim", "FILE.yaml is missing");
    return simulate(path, &o);
}
