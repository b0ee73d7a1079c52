/* deepserve coord: who is in a cluster. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/cli.h"
#include "cli/coord_cli.h"
#include "coord/server.h"
#include "net/addr.h"

typedef struct {
    const char *dir, *listen, *name;
    uint64_t ttl_ms;
    int log_level;
} options;

#define O(field) .offset = offsetof(options, field)
/* clang-format off */
static const ds_opt table[] = {
    { .name = "listen", .type = DS_OPT_STR, O(listen), .arg = "ADDRESS", .required = true, .help = "where members come: unix:PATH, or HOST:PORT of this machine; port 0 takes any free one" },
    { .name = "dir", .type = DS_OPT_STR, O(dir), .arg = "DIR", .required = true, .help = "its journal is there; made if it isn't" },
    { .name = "lease", .type = DS_OPT_MS, O(ttl_ms), .def = "10s", .arg = "TIME", .min = 500, .max = 3600000, .help = "a member that isn't heard of for so long isn't one any more" },
    { .name = "name", .type = DS_OPT_STR, O(name), .def = "coord", .arg = "NAME", .help = "what it is called in its own table" },
    { .name = "log-level", .type = DS_OPT_ENUM, O(log_level), .def = "info", .arg = "NAME", .choices = "error|warn|info|debug", .help = "what goes to standard error" },
    { 0 },
};
/* clang-format on */

const ds_opt_cmd ds_cli_coord = {
    .command = "deepserve coord",
    .summary = "Knows who is in a cluster: stores, engines and entries say so with --coord, and entries find engines by it.\n"
               "Nothing that is asked of the cluster waits for it: while it is away everybody keeps what it said last.",
    .usage = "--listen ADDRESS --dir DIR [options]",
    .example = "deepserve coord --listen unix:/run/deepserve/coord --dir /var/lib/deepserve/coord",
    .opts = table,
};

/* Blocked but here, so that the server's threads leave them to this one. */
static void wait_for_signal(const sigset_t *set)
{
    int sig;

    while (sigwait(set, &sig) != 0)
        ;
}

static void look(void *ctx, ds_coord_member *m)
{
    (void)ctx;
    (void)m; /* ready as long as it is there */
}

/* Who wants it away does as who sends SIGTERM. */
static void drain_ordered(void *ctx)
{
    (void)ctx;
    kill(getpid(), SIGTERM);
}

int ds_cmd_coord(int argc, char **argv)
{
    options o = { 0 };
    ds_coord_server *s = NULL;
    ds_member *member = NULL; /* of itself */
    ds_disk disk;
    ds_disk_dir dir = { .fd = -1 };
    ds_addr at;
    ds_log log;
    sigset_t set;
    char line[DS_ADDR_TEXT + 16];
    ds_err err = { 0 };
    int status = ds_cli_parse(&ds_cli_coord, &o, argc, argv, NULL);
    ds_rc rc;

    if (status != -1)
        return status;
    if (ds_addr_parse(&at, o.listen, &err) != DS_OK)
        return ds_cli_wrong("coord", "--listen %s", err.msg);
    log = (ds_log){ .level = (ds_log_level)o.log_level, .fd = STDERR_FILENO };
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a limit of file sizes is an error of the write, as a full disk is */
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    rc = ds_disk_dir_open(&disk, &dir, o.dir, &err);
    if (rc == DS_OK)
        rc = ds_coord_server_start(&s, o.listen, &disk, &(ds_coord_server_opts){ .ttl_ms = (uint32_t)o.ttl_ms, .log = &log }, &err);
    if (rc == DS_OK)
        rc = ds_cli_coord_open(
            &member, &(ds_cli_coord_opts){ ds_coord_server_address(s), o.name }, NULL,
            &(ds_member_opts){ .role = "coord", .address = ds_coord_server_address(s), .look = look, .drain = drain_ordered }, &err);
    if (rc == DS_OK)
        rc = ds_file_write(1, line, (size_t)snprintf(line, sizeof line, "listening on %s\n", ds_coord_server_address(s)), "standard output",
                           &err);
    if (rc == DS_OK)
        wait_for_signal(&set);
    ds_member_close(member);
    ds_coord_server_stop(s);
    ds_disk_dir_close(&dir);
    return rc == DS_OK ? 0 : ds_cli_fail("coord", &err);
}
