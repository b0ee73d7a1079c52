/* deepserve rank: one of the processes that `--ranks` starts. Nobody types it. */
#include "cli/cli.h"
#include "cli/options.h"

#include <signal.h>
#include <sys/prctl.h>

#include "role/ranks.h"

typedef struct {
    const char *model;
    int kernels, act;
    int64_t fd, rank, threads;
} options;

static const ds_opt table[] = {
    DS_CLI_OPT_MODEL(offsetof(options, model)),
    { .name = "fd",
      .type = DS_OPT_INT,
      .offset = offsetof(options, fd),
      .arg = "N",
      .required = true,
      .max = 1 << 20,
      .help = "descriptor of the memory that the ranks share" },
    { .name = "rank",
      .type = DS_OPT_INT,
      .offset = offsetof(options, rank),
      .arg = "N",
      .required = true,
      .max = 1023,
      .help = "which of them this is" },
    DS_CLI_OPT_THREADS(offsetof(options, threads)),
    DS_CLI_OPT_KERNELS(offsetof(options, kernels)),
    DS_CLI_OPT_ACT(offsetof(options, act)),
    { 0 },
};

static const ds_opt_cmd command = {
    .command = "deepserve rank",
    .summary = "One of the processes that `--ranks` of serve and generate starts: it has its part of the model's experts and computes for "
               "the others until they end.\n"
               "It isn't for typing: what it shares with the others comes as an open descriptor.",
    .usage = "--model DIR --fd N --rank N [options]",
    .opts = table,
};

int ds_cmd_rank(int argc, char **argv)
{
    options o = { 0 };
    int status = ds_cli_parse(&command, &o, argc, argv, NULL);
    bool told;
    ds_err err;
    ds_rc rc;

    if (status != -1)
        return status;
    prctl(PR_SET_NAME, "deepserve-rank"); /* it was run by another name */
    signal(SIGINT, SIG_IGN);              /* rank 0 decides when all of them end; when it is gone, so is this one */
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    rc = ds_rank_serve(&(ds_rank_opts){ .fd = (int)o.fd,
                                        .rank = (uint32_t)o.rank,
                                        .dir = o.model,
                                        .place = { .kernels = ds_cli_kernels(o.kernels), .team = { .n_threads = (uint32_t)o.threads } },
                                        .bf16 = o.act == 1 },
                       &told, &err);
    if (rc == DS_OK)
        return 0;
    return told ? 1 : ds_cli_fail("rank", &err);
}
