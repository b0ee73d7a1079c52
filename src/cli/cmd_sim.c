/* deepserve sim: a deployment on a virtual clock. */
#include "cli/cli.h"

#include <stdlib.h>

#include "base/buf.h"
#include "sim/report.h"

typedef struct {
    int64_t seed;
    bool json;
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
    ds_buf b = { 0 };
    int status = 1;
    ds_rc rc = result ? ds_sim_plan_load(&plan, path, &err) : ds_fail(&err, DS_E_NOMEM, "out of memory");

    if (rc == DS_OK && o->seed >= 0)
        plan->seed = (uint64_t)o->seed;
    if (rc == DS_OK)
        rc = ds_sim_run(plan, result, &err);
    if (rc == DS_OK) {
        if (o->json)
            ds_sim_report_json(&b, plan, result);
        else
            ds_sim_report_text(&b, plan, result);
        if (b.oom)
            rc = ds_fail(&err, DS_E_NOMEM, "out of memory");
    }
    if (rc == DS_OK)
        status = fwrite(b.p, 1, b.len, stdout) == b.len && fflush(stdout) == 0 ? 0 : 1;
    else
        ds_cli_fail("sim", &err);
    ds_buf_free(&b);
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
