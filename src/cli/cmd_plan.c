/* deepserve plan: how many instances a load needs. */
#include "cli/cli.h"
#include "cli/input.h"

#include <stdlib.h>

#include "base/buf.h"
#include "cli/sim_cli.h"
#include "sim/advise.h"

typedef struct {
    bool json;
    const char *html;
} options;

static const ds_opt table[] = {
    { .name = "json", .type = DS_OPT_FLAG, .offset = offsetof(options, json), .help = "one JSON object instead of tables" },
    { .name = "html",
      .type = DS_OPT_STR,
      .offset = offsetof(options, html),
      .arg = "FILE",
      .help = "a page with the plan and with pictures of its deployment, which needs nothing else" },
    { 0 },
};

static const ds_opt_cmd command = {
    .command = "deepserve plan",
    .summary = "Finds the cheapest deployment that keeps the objective of a simulation's file under its load, by simulating: how many\n"
               "instances of each role, what they cost, what one more or less would change, and all that was assumed.",
    .usage = "FILE.yaml [options]",
    .example = "deepserve plan examples/sim-server.yaml",
    .opts = table,
};

/* The deployment that was found, once more: its pictures. */
static ds_rc draw(const options *o, const char *path, ds_sim_plan *plan, const ds_sim_advice *a, const char *report, ds_err *err)
{
    ds_sim_result *result = malloc(sizeof *result);
    ds_rc rc = result ? DS_OK : ds_fail(err, DS_E_NOMEM, "out of memory");

    for (uint32_t g = 0; g < plan->n_groups; g++)
        plan->groups[g].count = a->best.count[g] / plan->thin;
    if (rc == DS_OK)
        rc = ds_sim_run(plan, result, err);
    if (rc == DS_OK)
        rc = ds_cli_sim_draw(NULL, o->html, path, plan, result, report, err);
    free(result);
    return rc;
}

static int advise(const char *path, const options *o)
{
    ds_sim_plan *plan;
    ds_sim_advice a;
    ds_err err = { 0 };
    ds_buf text = { 0 }, json = { 0 };
    ds_rc rc = ds_sim_plan_load(&plan, path, &err);

    if (rc == DS_OK && !plan->has_search)
        rc = ds_fail(&err, DS_E_FORMAT, "%s: plan is missing: what share of answers is to be good", path);
    if (rc == DS_OK)
        rc = ds_sim_advise(plan, &a, &err);
    if (rc == DS_OK) {
        ds_sim_advice_text(&text, plan, &a);
        ds_sim_advice_json(&json, plan, &a);
        if (text.oom || json.oom)
            rc = ds_fail(&err, DS_E_NOMEM, "out of memory");
    }
    if (rc == DS_OK && o->html)
        rc = draw(o, path, plan, &a, text.p, &err);
    if (rc == DS_OK)
        rc = ds_cli_write_all(o->json ? &json : &text, &err);
    if (rc != DS_OK)
        ds_cli_fail("plan", &err);
    ds_buf_free(&json);
    ds_buf_free(&text);
    ds_sim_plan_free(plan);
    return rc == DS_OK ? 0 : 1;
}

int ds_cmd_plan(int argc, char **argv)
{
    options o = { 0 };
    ds_err err = { 0 };
    const char *path = NULL;
    size_t n;
    bool help;

    if (ds_opt_parse(&command, &o, argc, argv, &path, 1, &n, NULL, &help, &err) != DS_OK)
        return ds_cli_wrong("plan", "%s", err.msg);
    if (help) {
        ds_opt_print_help(&command, stdout);
        return 0;
    }
    if (n != 1)
        return ds_cli_wrong("plan", "FILE.yaml is missing");
    return advise(path, &o);
}
