/* Subcommands of the deepserve binary.
 *
 * main() finds the command and calls it with argv starting at the command's name. A command returns the exit status:
 * 0 done, 1 failed, 2 wrong use. Results go to standard output, everything else to standard error; a failed command
 * has written nothing to standard output. Only this folder reads the environment, prints or exits. */
#ifndef DS_CLI_CLI_H
#define DS_CLI_CLI_H

#include "base/err.h"
#include "base/opt.h"

typedef int ds_cmd_fn(int argc, char **argv);

typedef struct {
    const char *name;
    ds_cmd_fn *run;
    const char *help; /* one line for the list of commands */
} ds_cmd;

/* commands.c; ends with a NULL name. A new command is a line there and its prototype below. */
extern const ds_cmd ds_commands[];

ds_cmd_fn ds_cmd_bench;
ds_cmd_fn ds_cmd_bench_http;   /* bench http: load on a running server */
ds_cmd_fn ds_cmd_bench_policy; /* bench policy: decisions of the balancers */
ds_cmd_fn ds_cmd_bench_serve;  /* `bench serve`, called by ds_cmd_bench */
ds_cmd_fn ds_cmd_chat;
ds_cmd_fn ds_cmd_coord;
ds_cmd_fn ds_cmd_ctl;
ds_cmd_fn ds_cmd_draft;
ds_cmd_fn ds_cmd_generate;
ds_cmd_fn ds_cmd_grammar;
ds_cmd_fn ds_cmd_inspect;
ds_cmd_fn ds_cmd_keys;
ds_cmd_fn ds_cmd_kvd;
ds_cmd_fn ds_cmd_logits;
ds_cmd_fn ds_cmd_parse;
ds_cmd_fn ds_cmd_rank;
ds_cmd_fn ds_cmd_render;
ds_cmd_fn ds_cmd_engine;
ds_cmd_fn ds_cmd_entry;
ds_cmd_fn ds_cmd_serve;
ds_cmd_fn ds_cmd_plan;
ds_cmd_fn ds_cmd_sim;
ds_cmd_fn ds_cmd_synth;
ds_cmd_fn ds_cmd_tokenize;
ds_cmd_fn ds_cmd_up;

/* Tables of the commands that `up` runs. */
extern const ds_opt_cmd ds_cli_coord, ds_cli_kvd, ds_cli_engine, ds_cli_entry;

/* Parses; on --help or wrong use prints and returns the exit status to leave with, else -1. No positional words are
 * allowed. A table with DS_CLI_OPT_CONFIG takes options from a file too, and prints those in effect. */
#define DS_CLI_OPT_CONFIG(path_offset, dump_offset)                                                                                       \
    { .name = "config",                                                                                                                   \
      .type = DS_OPT_STR,                                                                                                                 \
      .offset = (path_offset),                                                                                                            \
      .arg = "FILE",                                                                                                                      \
      .help = "options as lines `name = value`; those of the command line win" },                                                         \
    {                                                                                                                                     \
        .name = "dump-config", .type = DS_OPT_FLAG, .offset = (dump_offset), .help = "print all options in effect, in that form, and end" \
    }

int ds_cli_parse(const ds_opt_cmd *cmd, void *dst, int argc, char **argv, bool *given);
/* "deepserve <command>: message" on standard error, one line; returns 1. */
int ds_cli_fail(const char *command, const ds_err *err);
/* The same with the way to the help page in a second line; returns 2. */
int ds_cli_wrong(const char *command, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* White space only: lines that a file of lines may have and nobody means. */
bool ds_cli_blank(const char *line, size_t n);

#endif
