/* The list of subcommands, in the order of `deepserve --help`. One line each. */
#include "cli/cli.h"

#include <stddef.h>

const ds_cmd ds_commands[] = {
    { NULL, NULL, NULL },
};
