/* deepserve sim: a deployment on a virtual clock. */
#include "cli/cli.h"
#include "cli/input.h"

#include <stdlib.h>

#include "base/buf.h"
#include "cli/sim_cli.h"
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
        rc = ds_cli_sim_draw(o->svg, o->html, path, plan, result, text.p, &err);
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
