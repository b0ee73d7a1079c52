/* deepserve kvd: the KV store as a process of its own. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/coord_cli.h"
#include "kvstore/server.h"

typedef struct {
    ds_opt_list dirs;
    const char *code, *listen, *ttl;
    ds_cli_coord_opts coord;
    uint64_t capacity, windows;
    int64_t blocks, readers;
} options;

static const ds_opt table[] = {
    { .name = "dir",
      .type = DS_OPT_LIST,
      .offset = offsetof(options, dirs),
      .arg = "DIR",
      .required = true,
      .help =
          "where blocks are; given several times, each is a device. Or a pool of Ceph: rados://POOL[/NAMESPACE][?conf=FILE][&id=NAME]" },
    { .name = "code",
      .type = DS_OPT_STR,
      .offset = offsetof(options, code),
      .arg = "K+M",
      .help = "K + M devices, of which any K give everything (default: as the store has it, else by their number)" },
    { .name = "capacity",
      .type = DS_OPT_BYTES,
      .offset = offsetof(options, capacity),
      .arg = "SIZE",
      .min = 1,
      .max = INFINITY,
      .help = "of all files together, never exceeded; least recently used blocks go (default: no bound)" },
    { .name = "listen",
      .type = DS_OPT_STR,
      .offset = offsetof(options, listen),
      .arg = "unix:PATH",
      .help = "where engines connect (default: kvd.socket in the first directory; a pool has none)" },
    DS_CLI_OPTS_COORD(offsetof(options, coord)){
        .name = "ttl",
        .type = DS_OPT_STR,
        .offset = offsetof(options, ttl),
        .def = "agent=3d,chat=7d,window=180s",
        .arg = "CLASS=TIME,…",
        .help = "how long a block is kept after its last use, and a window state in memory: s, m, h or d" },
    { .name = "windows",
      .type = DS_OPT_BYTES,
      .offset = offsetof(options, windows),
      .def = "256MiB",
      .arg = "SIZE",
      .max = INFINITY,
      .help = "memory for window states, taken as it fills; without a state an engine replays a window. 0: none" },
    { .name = "blocks",
      .type = DS_OPT_INT,
      .offset = offsetof(options, blocks),
      .arg = "N",
      .min = 1,
      .max = 1 << 30,
      .help = "blocks that the index has room for (default: 4 Mi)" },
    { .name = "readers",
      .type = DS_OPT_INT,
      .offset = offsetof(options, readers),
      .arg = "N",
      .min = 1,
      .max = 64,
      .help = "threads that fetch (default: 4, from a pool 16)" },
    { 0 },
};

const ds_opt_cmd ds_cli_kvd = {
    .command = "deepserve kvd",
    .summary =
        "Keeps blocks of cached KV on local directories or in a pool of Ceph, for all engines of this machine and over their restarts.\n"
        "Prints one line `listening on …` when it is ready, and serves until SIGTERM.",
    .usage = "--dir DIR [--dir DIR …] [options]",
    .example = "deepserve kvd --dir /srv/kv --capacity 2TiB",
    .opts = table,
};

static bool parse_code(const char *text, uint32_t *k, uint32_t *m)
{
    int end = 0;

    return sscanf(text, "%2u+%2u%n", k, m, &end) == 2 && text[end] == 0 && *k >= 1;
}

enum { WINDOW = DS_KVSTORE_CLASSES, TIMES };

static bool parse_ttl(const char *text, uint64_t ttl_s[TIMES])
{
    static const char *const names[TIMES] = { "agent=", "chat=", "window=" };

    while (*text) {
        static const struct {
            char unit;
            uint64_t s;
        } units[] = { { 's', 1 }, { 'm', 60 }, { 'h', 3600 }, { 'd', 86400 } };
        size_t c = 0, u = 0;
        char *end;
        while (c < TIMES && strncmp(text, names[c], strlen(names[c])) != 0)
            c++;
        if (c == TIMES)
            return false;
        text += strlen(names[c]);
        if (*text < '0' || *text > '9')
            return false;
        unsigned long v = strtoul(text, &end, 10);
        while (u < 4 && units[u].unit != *end)
            u++;
        if (u == 4 || v == 0 || v > 36500 || (end[1] && end[1] != ','))
            return false;
        ttl_s[c] = v * units[u].s;
        text = end + 1 + (end[1] == ',');
    }
    return true;
}

/* ---- signals ---- */

static ds_kvserver *signaled;

static void on_signal(int sig)
{
    (void)sig;
    ds_kvserver_stop(signaled);
}

static void catch_signals(ds_kvserver *s)
{
    struct sigaction a = { .sa_handler = on_signal, .sa_flags = SA_RESTART };

    signaled = s;
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a limit of file sizes is an error of the write, as a full disk is */
}

/* A file of each device stays open for each segment. */
static void allow_files(void)
{
    struct rlimit l;

    if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < l.rlim_max) {
        l.rlim_cur = l.rlim_max;
        setrlimit(RLIMIT_NOFILE, &l);
    }
}

static void look(void *ctx, ds_coord_member *m)
{
    ds_kvstore_stats st;

    if (ds_kvstore_stat(ctx, &st, NULL) == DS_OK) {
        m->kv_used = st.bytes;
        m->kv_total = st.capacity;
    }
}

static void drain_ordered(void *ctx)
{
    (void)ctx;
    ds_kvserver_stop(signaled);
}

static ds_rc serve(ds_kvserver_opts *so, const ds_cli_coord_opts *coord, ds_err *err)
{
    ds_log log = { .level = DS_LOG_INFO, .fd = 2 };
    ds_member *member = NULL;
    ds_kvserver *s;
    char line[200];
    ds_rc rc;

    so->log = &log;
    rc = ds_kvserver_open(&s, so, err);
    if (rc != DS_OK)
        return rc;
    catch_signals(s);
    snprintf(line, sizeof line, "unix:%s", so->path);
    rc = ds_cli_coord_open(
        &member, coord, NULL,
        &(ds_member_opts){ .role = "store", .address = line, .look = look, .drain = drain_ordered, .ctx = so->store, .log = &log }, err);
    if (rc == DS_OK)
        rc = ds_file_write(1, line, (size_t)snprintf(line, sizeof line, "listening on unix:%s\n", so->path), "standard output", err);
    if (rc == DS_OK)
        ds_kvserver_run(s);
    signal(SIGINT, SIG_IGN); /* what they ask to stop is about to go */
    signal(SIGTERM, SIG_IGN);
    ds_member_close(member);
    ds_kvserver_close(s);
    return rc;
}

int ds_cmd_kvd(int argc, char **argv)
{
    options o = { 0 };
    ds_kvstore_opts so = { 0 };
    ds_kvserver_opts serving = { 0 };
    uint64_t ttl_s[TIMES] = { 0 };
    ds_kvstore *store;
    char path[108];
    ds_err err = { 0 };
    int done = ds_cli_parse(&ds_cli_kvd, &o, argc, argv, NULL);
    ds_rc rc;

    if (done >= 0)
        return done;
    done = ds_cli_coord_check(&o.coord, "kvd");
    if (done >= 0)
        return done;
    if (o.code && !parse_code(o.code, &so.k, &so.m))
        return ds_cli_wrong("kvd", "--code %.40s: expected K+M, such as 10+2", o.code);
    if (!parse_ttl(o.ttl, ttl_s))
        return ds_cli_wrong("kvd", "--ttl %.80s: expected agent=TIME,chat=TIME,window=TIME, a time being a number and s, m, h or d", o.ttl);
    if (ds_kvstore_check_places(o.dirs.v, (uint32_t)o.dirs.n, &err) != DS_OK)
        return ds_cli_wrong("kvd", "--dir %s", err.msg);
    if (!o.listen && ds_kvstore_in_pool(o.dirs.v[0]))
        return ds_cli_wrong("kvd", "a pool has no place for the socket: --listen says where engines connect");
    if (o.listen && strncmp(o.listen, "unix:", 5) != 0)
        return ds_cli_wrong("kvd", "--listen %.80s: expected unix:PATH", o.listen);
    if ((size_t)(o.listen ? snprintf(path, sizeof path, "%s", o.listen + 5) : snprintf(path, sizeof path, "%s/kvd.socket", o.dirs.v[0])) >=
        sizeof path)
        return ds_cli_wrong("kvd", "the socket's path is longer than %zu bytes: --listen gives it another one", sizeof path - 1);
    allow_files();
    so.dirs = o.dirs.v;
    so.n_dirs = (uint32_t)o.dirs.n;
    so.capacity_bytes = o.capacity;
    so.max_blocks = (uint32_t)o.blocks;
    so.readers = (uint32_t)o.readers;
    memcpy(so.ttl_s, ttl_s, sizeof so.ttl_s);
    rc = ds_kvstore_open(&store, &so, &err);
    if (rc == DS_OK) {
        serving.store = store;
        serving.path = path;
        serving.window_bytes = o.windows;
        serving.window_ttl_ns = ttl_s[WINDOW] * 1000000000;
        rc = serve(&serving, &o.coord, &err);
        ds_kvstore_close(store);
    }
    return rc == DS_OK ? 0 : ds_cli_fail("kvd", &err);
}
