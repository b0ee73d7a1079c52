/* deepserve: finds the subcommand and runs it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

enum { COMMANDS_MAX = 64 };

static void print_usage(FILE *f)
{
    fputs("deepserve serves DeepSeek-V4.1-Flash-class models.\n\nusage: deepserve COMMAND [options]\n\ncommands:\n", f);
    for (const ds_cmd *c = ds_commands; c->name; c++)
        fprintf(f, "  %-10s  %s\n", c->name, c->help);
    fputs("\n  deepserve COMMAND --help    options of a command, with defaults and units\n"
          "  deepserve help all          the pages of all commands\n"
          "  deepserve --version         version of this program\n",
          f);
}

static const ds_cmd *find_command(const char *name)
{
    for (const ds_cmd *c = ds_commands; c->name; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

static int unknown_command(const char *name)
{
    const char *words[COMMANDS_MAX + 2], *near;
    size_t n = 0;
    char q[220];

    for (const ds_cmd *c = ds_commands; c->name && n < COMMANDS_MAX; c++)
        words[n++] = c->name;
    words[n++] = "help";
    words[n] = NULL;
    near = ds_opt_nearest(name, words);
    ds_quote(q, sizeof q, name, strlen(name));
    if (near)
        return ds_cli_wrong("", "unknown command '%s'; did you mean %s?", q, near);
    return ds_cli_wrong("", "unknown command '%s'", q);
}

static int command_help(const ds_cmd *c)
{
    char name[32], flag[] = "--help";
    char *argv[] = { name, flag, NULL };

    snprintf(name, sizeof name, "%s", c->name);
    return c->run(2, argv);
}

static int help(int argc, char **argv)
{
    const ds_cmd *c;

    if (argc > 2)
        return ds_cli_wrong("", "help takes one command");
    if (argc < 2) {
        print_usage(stdout);
        return 0;
    }
    if (strcmp(argv[1], "all") == 0) {
        int status = 0;
        print_usage(stdout);
        for (c = ds_commands; c->name && status == 0; c++) {
            puts("\n");
            status = command_help(c);
        }
        return status;
    }
    c = find_command(argv[1]);
    return c ? command_help(c) : unknown_command(argv[1]);
}

static int dispatch(int argc, char **argv)
{
    const ds_cmd *c;

    if (argc < 1) {
        print_usage(stderr);
        return 2;
    }
    if (strcmp(argv[0], "--version") == 0 && argc == 1) {
        puts("deepserve " DS_VERSION);
        return 0;
    }
    if (strcmp(argv[0], "help") == 0 || strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)
        return help(argc, argv);
    c = find_command(argv[0]);
    if (c)
        return c->run(argc, argv);
    if (argv[0][0] == '-') {
        char q[220];
        return ds_cli_wrong("", "unknown option %s; a command comes first", ds_quote(q, sizeof q, argv[0], strlen(argv[0])));
    }
    return unknown_command(argv[0]);
}

/* A standard stream that came closed is held by something that can't be used in its direction, so that no file of
 * ours takes its number. */
static void hold_standard_streams(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) == -1 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) == -1)
            return;
}

int main(int argc, char **argv)
{
    int status;

    hold_standard_streams();
    status = dispatch(argc - 1, argv + 1);

    /* What was buffered may only fail now, on a full disk for one. */
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "deepserve: standard output: %s\n", errno ? strerror(errno) : "write error");
        return status ? status : 1;
    }
    return status;
}
