/* deepserve bench: the kernels next to what the machine can do. */
#include "cli/cli.h"
#include "cli/kernels.h"

#include <stdio.h>
#include <string.h>

#include "base/pool.h"
#include "kernbench/bench.h"

typedef struct {
    int kernels;
    int64_t threads;
    uint64_t ms;
    bool json;
} options;

static const ds_opt table[] = {
    { .name = "kernels",
      .type = DS_OPT_ENUM,
      .offset = offsetof(options, kernels),
      .def = "best",
      .choices = DS_CLI_KERNELS,
      .help = "instruction set" },
    { .name = "threads",
      .type = DS_OPT_INT,
      .offset = offsetof(options, threads),
      .arg = "N",
      .min = 1,
      .max = 1024,
      .help = "cases run with 1 thread and with N (default: one for each CPU)" },
    { .name = "time",
      .type = DS_OPT_MS,
      .offset = offsetof(options, ms),
      .def = "200ms",
      .arg = "TIME",
      .min = 1,
      .max = 60000,
      .help = "time for each case" },
    { .name = "json", .type = DS_OPT_FLAG, .offset = offsetof(options, json), .help = "a JSON object for each case, one a line" },
    { 0 },
};

static const ds_opt_cmd command = {
    .command = "deepserve bench",
    .summary = "Times the kernels at real shapes. OP is one of gemv, gemm, experts, attention, index_topk, mhc, pool; without one all of "
               "them run. Each case is checked first;\n"
               "its roof (memory bandwidth or arithmetic with operands in registers) is measured in the same run.\n"
               "`bench serve` times the engine, `bench http` puts load on a running server, `bench policy` times the\n"
               "balancers' decisions; each has its own --help.",
    .usage = "[OP] [options] | serve [options] | http [options] | policy [options]",
    .example = "deepserve bench gemv --threads 2 --json",
    .opts = table,
};

static bool print_json(void *ctx, const ds_bench_case *c)
{
    (void)ctx;
    printf("{\"op\":\"%s\",\"variant\":\"%s\",\"shape\":\"%s\",\"act\":\"%s\",\"threads\":%u,\"reps\":%u,\"ns_med\":%llu,\"ns_p95\":%llu,"
           "\"ns_best\":%llu",
           c->op, c->variant, c->shape, c->act, c->threads, c->reps, (unsigned long long)c->ns_med, (unsigned long long)c->ns_p95,
           (unsigned long long)c->ns_best);
    if (c->unit)
        printf(",\"%s\":%.4g", c->unit, c->rate);
    if (c->unit && c->roof > 0.0)
        printf(",\"roof\":%.4g,\"roof_of\":\"%s\",\"roof_pct\":%.1f", c->roof, c->roof_of, 100.0 * c->rate / c->roof);
    puts("}");
    return fflush(stdout) == 0;
}

static bool print_line(void *ctx, const ds_bench_case *c)
{
    bool *header = ctx;

    if (!*header)
        printf("%-10s %-7s %-50s %-4s %2s %11s %11s %11s  %s\n", "op", "variant", "shape", "act", "th", "ns_med", "ns_p95", "ns_best",
               "rate, share of the roof");
    *header = true;
    printf("%-10s %-7s %-50s %-4s %2u %11llu %11llu %11llu", c->op, c->variant, c->shape, c->act, c->threads, (unsigned long long)c->ns_med,
           (unsigned long long)c->ns_p95, (unsigned long long)c->ns_best);
    if (c->unit)
        printf("  %.1f %s", c->rate, strcmp(c->unit, "gb_s") == 0 ? "GB/s" : "GFLOP/s");
    if (c->unit && c->roof > 0.0)
        printf(", %.0f %% of %.1f (%s)", 100.0 * c->rate / c->roof, c->roof, c->roof_of);
    puts("");
    return fflush(stdout) == 0;
}

int ds_cmd_bench(int argc, char **argv)
{
    options o = { 0 };
    const char *op = NULL;
    size_t n = 0;
    bool help, header = false;
    ds_err err = { 0 };
    ds_rc rc;

    if (argc > 1 && strcmp(argv[1], "serve") == 0)
        return ds_cmd_bench_serve(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "http") == 0)
        return ds_cmd_bench_http(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "policy") == 0)
        return ds_cmd_bench_policy(argc - 1, argv + 1);
    if (ds_opt_parse(&command, &o, argc, argv, &op, 1, &n, NULL, &help, &err) != DS_OK)
        return ds_cli_wrong("bench", "%s", err.msg);
    if (help) {
        ds_opt_print_help(&command, stdout);
        return 0;
    }
    if (n == 0 || strcmp(op, "all") == 0)
        op = NULL;
    ds_bench_opts b = {
        .op = op, .kernels = ds_cli_kernels(o.kernels), .threads = o.threads ? (uint32_t)o.threads : ds_cpu_count(), .ms = (uint32_t)o.ms
    };
    rc = ds_bench_run(&b, o.json ? print_json : print_line, &header, &err);
    if (rc == DS_E_ARG && strncmp(err.msg, "bench: no op", 12) == 0)
        return ds_cli_wrong("bench", "%s", err.msg + strlen("bench: "));
    return rc == DS_OK ? 0 : ds_cli_fail("bench", &err);
}
