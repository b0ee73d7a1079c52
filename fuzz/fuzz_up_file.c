/* A cluster's file: whatever is accepted is a cluster of bounded size with whole command lines, and what isn't is said
 * with the file's name. Reading it is reading YAML (yaml/yaml.h). */
#include <string.h>

#include "role/up_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct {
    ds_opt_list dirs;
    int64_t threads;
    uint64_t memory, drain_ms;
    bool pin;
} options;

static const ds_opt table[] = {
    { .name = "dir", .type = DS_OPT_LIST, .offset = offsetof(options, dirs), .arg = "DIR", .help = "", .required = true },
    { .name = "threads", .type = DS_OPT_INT, .offset = offsetof(options, threads), .arg = "N", .help = "", .min = 1, .max = 9 },
    { .name = "memory", .type = DS_OPT_BYTES, .offset = offsetof(options, memory), .arg = "B", .help = "" },
    { .name = "drain-timeout", .type = DS_OPT_MS, .offset = offsetof(options, drain_ms), .def = "60s", .arg = "T", .help = "" },
    { .name = "pin", .type = DS_OPT_FLAG, .offset = offsetof(options, pin), .help = "" },
    { .name = NULL },
};
static const ds_opt_cmd command = { "deepserve fuzz", "", "", NULL, table };

static void must(int ok)
{
    if (!ok)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const ds_up_commands commands = {
        .coord = &command, .store = &command, .engine = &command, .entry = &command, .run_dir = "/tmp/run"
    };
    ds_up_plan *plan;
    ds_err err = { 0 };
    ds_rc rc = ds_up_plan_parse(&plan, "f.yaml", (const char *)data, size, &commands, &err);

    if (rc != DS_OK) {
        must((rc == DS_E_FORMAT || rc == DS_E_IO) && !plan && strncmp(err.msg, "f.yaml", 6) == 0);
        return 0;
    }
    must(plan->n >= 2 && plan->n <= DS_UP_MAX);
    for (uint32_t i = 0; i < plan->n; i++) {
        must(plan->p[i].name[0] && plan->p[i].argc >= 4 && !plan->p[i].argv[plan->p[i].argc]);
        for (size_t k = 2; k < plan->p[i].argc; k++)
            must(strncmp(plan->p[i].argv[k], "--", 2) == 0);
        for (uint32_t k = 0; k < i; k++)
            must(strcmp(plan->p[i].name, plan->p[k].name) != 0 && (!plan->p[i].port || plan->p[i].port != plan->p[k].port));
    }
    ds_up_plan_free(plan);
    return 0;
}
