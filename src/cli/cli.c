/* What all subcommands share: parsing with help, and how a failure looks. */
#include "cli/cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

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

int ds_cli_parse(const ds_opt_cmd *cmd, void *dst, int argc, char **argv, bool *given)
{
    const char *word;
    size_t n;
    bool help;
    ds_err err;

    if (ds_opt_parse(cmd, dst, argc, argv, &word, 0, &n, given, &help, &err) != DS_OK)
        return ds_cli_wrong(strchr(cmd->command, ' ') + 1, "%s", err.msg); /* argv[0] has only the last of two words */
    if (!help)
        return -1;
    ds_opt_print_help(cmd, stdout);
    return 0;
}

bool ds_cli_blank(const char *line, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}
