/* What commands that run a process of a cluster have in common: the coord that it belongs to. */
#ifndef DS_CLI_COORD_CLI_H
#define DS_CLI_COORD_CLI_H

#include "base/opt.h"
#include "role/member.h"

typedef struct {
    const char *address, *name; /* both, or none */
} ds_cli_coord_opts;

/* clang-format off */
#define DS_CLI_OPT_COORD(at) { .name = "coord", .type = DS_OPT_STR, .offset = at, .arg = "ADDRESS", .help = "the cluster's coord: unix:PATH or HOST:PORT of `deepserve coord`, or etcd:http://HOST:PORT[/PREFIX]" }
/* Entries of an option table whose options struct has a ds_cli_coord_opts at `base`. */
#define DS_CLI_OPTS_COORD(base) \
    DS_CLI_OPT_COORD((base) + offsetof(ds_cli_coord_opts, address)), \
    { .name = "name", .type = DS_OPT_STR, .offset = (base) + offsetof(ds_cli_coord_opts, name), .arg = "NAME", .help = "what this process is called there; no other has that name" },
/* clang-format on */

/* An exit status, or -1: nothing is wrong. */
int ds_cli_coord_check(const ds_cli_coord_opts *c, const char *command);
/* Makes the process a member, where it belongs to a coord; else *out is NULL. dir: its model, or NULL; coord, name and
 * model of *o are filled in. */
ds_rc ds_cli_coord_open(ds_member **out, const ds_cli_coord_opts *c, const char *dir, const ds_member_opts *o, ds_err *err);

#endif
