/* The list of subcommands, in the order of `deepserve --help`. One line each. */
#include "cli/cli.h"

#include <stddef.h>

const ds_cmd ds_commands[] = {
    { "tokenize", ds_cmd_tokenize, "text to token ids and back" },
    { NULL, NULL, NULL },
};
