/* What all subcommands share: parsing with help, and how a failure looks. */
#include "cli/cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/utf8.h"

enum { CONFIG_MAX_BYTES = 1 << 20 };

/* One printable line whatever the message holds. Backslashes stay: names in it are mostly quoted already. */
static void print_message(const char *command, const char *msg)
{
    size_t left = strlen(msg);

    fflush(stdout); /* results that are out come before the reason why there are no more */
    fprintf(stderr, "deepserve%s%s: ", command && *command ? " " : "", command ? command : "");
    while (left) {
        char piece[16];
        uint32_t cp;
        size_t n = ds_utf8_decode(msg, left, &cp);

        n = n ? n : 1;
        fputs(*msg == '\\' ? "\\" : ds_quote(piece, sizeof piece, msg, n), stderr);
        msg += n;
        left -= n;
    }
    fputc('\n', stderr);
}

int ds_cli_fail(const char *command, const ds_err *err)
{
    print_message(command, err->msg);
    return 1;
}

int ds_cli_wrong(const char *command, const char *fmt, ...)
{
    char msg[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    print_message(command, msg);
    fprintf(stderr, "deepserve%s%s --help shows what is possible\n", command && *command ? " " : "", command ? command : "");
    return 2;
}

/* What the options point into, until the program ends. */
static ds_opt_words from_file;
static char **all_words;

/* The value of --config in a command line, by the rules of ds_opt_parse: the last one counts. */
static const char *config_of(int argc, char **argv)
{
    static const char name[] = "--config";
    const char *path = NULL;

    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strncmp(argv[i], name, sizeof name - 1) == 0 &&
            (argv[i][sizeof name - 1] == '=' || (argv[i][sizeof name - 1] == '\0' && i + 1 < argc)))
            path = argv[i][sizeof name - 1] == '=' ? argv[i] + sizeof name : argv[++i];
    return path;
}

/* Words of the file in front of those of the command line, which win so. */
static ds_rc read_config(const ds_opt_cmd *cmd, void *dst, const char *path, int *argc, char ***argv, ds_err *err)
{
    char *text, label[220];
    size_t n;
    ds_rc rc = ds_file_read(&text, &n, path, CONFIG_MAX_BYTES, err);

    if (rc != DS_OK)
        return rc;
    rc = ds_opt_config(cmd, dst, text, n, ds_file_label(label, sizeof label, path), &from_file, err);
    free(text);
    if (rc != DS_OK)
        return rc;
    all_words = calloc(from_file.n + (size_t)*argc + 1, sizeof *all_words);
    if (!all_words)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    all_words[0] = (*argv)[0];
    memcpy(all_words + 1, from_file.v, from_file.n * sizeof *all_words);
    memcpy(all_words + 1 + from_file.n, *argv + 1, (size_t)(*argc - 1) * sizeof *all_words);
    *argc += (int)from_file.n;
    *argv = all_words;
    return DS_OK;
}

int ds_cli_parse(const ds_opt_cmd *cmd, void *dst, int argc, char **argv, bool *given)
{
    const char *command = strchr(cmd->command, ' ') + 1, *word; /* argv[0] has only the last of two words */
    const char *path = NULL;
    const bool *dump = NULL;
    size_t n;
    bool help;
    ds_err err;

    for (const ds_opt *o = cmd->opts; o->name; o++)
        if (strcmp(o->name, "dump-config") == 0)
            dump = (const bool *)((const char *)dst + o->offset);
    if (dump) /* DS_CLI_OPT_CONFIG; --config of other commands means something else */
        path = config_of(argc, argv);
    if (path && read_config(cmd, dst, path, &argc, &argv, &err) != DS_OK)
        return ds_cli_fail(command, &err);
    if (ds_opt_parse(cmd, dst, argc, argv, &word, 0, &n, given, &help, &err) != DS_OK)
        return ds_cli_wrong(command, "%s", err.msg);
    if (help)
        ds_opt_print_help(cmd, stdout);
    else if (dump && *dump)
        ds_opt_dump(cmd, dst, stdout);
    else
        return -1;
    return 0;
}

bool ds_cli_blank(const char *line, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}
