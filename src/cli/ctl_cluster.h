/* `ctl status`, `drain` and `restart`: a cluster, by its coord. */
#ifndef DS_CLI_CTL_CLUSTER_H
#define DS_CLI_CTL_CLUSTER_H

#include "role/up_file.h"

enum { DS_CTL_WORDS = 66 };

typedef struct {
    const char *coord, *file; /* one of them */
    uint64_t timeout_ms;
} ds_ctl_cluster;

bool ds_ctl_is_cluster(const char *verb);
/* The exit status. word: the verb and what follows. */
int ds_ctl_cluster_run(const ds_ctl_cluster *o, const char *const *word, size_t n, bool json);

/* A cluster's file with the tables of this program's commands (cmd_up.c). As ds_up_plan_load. */
ds_rc ds_cli_up_plan(ds_up_plan **out, const char *file, ds_err *err);

#endif
