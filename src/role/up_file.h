/* A cluster on one machine, as a YAML file says it: which processes there are, with which words of a command line.
 *
 *   model: ../models/demo      directories are relative to the file's
 *   coord: {lease: 10s}        `deepserve coord`; or an address, of one that runs already
 *   stores:  [{name, count, …}]          `deepserve kvd`
 *   engines: [{name, count, role, store, …}]   `deepserve engine`
 *   entries: [{name, count, port, …}]    `deepserve entry`
 *
 * Every other key of such a group is an option of the command, checked by its option table. What is wrong is said with
 * the file's name, line and column (docs/cluster.md).
 *
 * Threads: none.   Memory: a plan owns all that it points to. */
#ifndef DS_ROLE_UP_FILE_H
#define DS_ROLE_UP_FILE_H

#include "base/opt.h"

enum { DS_UP_NAME = 32, DS_UP_MAX = 256 /* processes */ };

/* In the order in which they start; they end in the other one. */
typedef enum { DS_UP_COORD, DS_UP_STORE, DS_UP_ENGINE, DS_UP_ENTRY, DS_UP_KINDS } ds_up_kind;
const char *ds_up_kind_name(ds_up_kind k, bool several); /* "store", "stores" */

typedef struct {
    ds_up_kind kind;
    char name[DS_UP_NAME];
    const char *role;      /* static: "coord", "store", "mixed", "entry" */
    const char *host;      /* of an entry; NULL: a socket */
    uint16_t port;         /* of an entry; 0: any free one */
    char *dir;             /* of a coord or store that has no place of its own: made if it isn't there; NULL: none */
    uint32_t line, column; /* of its group */
    char **argv;           /* [argc + 1], the last is NULL; argv[0] is "deepserve" */
    size_t argc;
    uint64_t drain_ms; /* that it takes to end by itself, at most */
} ds_up_process;

typedef struct {
    char name[DS_UP_NAME];
    char label[104]; /* the file, in messages */
    char *folder;    /* where the file is: processes run there */
    char *dir;       /* sockets, logs, and stores that have no place of their own; absolute */
    char *coord;     /* address of its coord */
    ds_up_process *p;
    uint32_t n;
} ds_up_plan;

typedef struct {
    const ds_opt_cmd *coord, *store, *engine, *entry; /* the commands' tables */
    const char *run_dir;                              /* absolute; clusters without `dir` have a folder in it */
} ds_up_commands;

/* path: the file's; text: what is in it. DS_E_FORMAT, DS_E_NOMEM; then *out is NULL. */
ds_rc ds_up_plan_parse(ds_up_plan **out, const char *path, const char *text, size_t n, const ds_up_commands *c, ds_err *err);
/* The same of a file; DS_E_IO besides. */
ds_rc ds_up_plan_load(ds_up_plan **out, const char *path, const ds_up_commands *c, ds_err *err);
void ds_up_plan_free(ds_up_plan *p); /* NULL is fine */

#endif
