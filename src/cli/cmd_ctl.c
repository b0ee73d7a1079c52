/* deepserve ctl: looking after a cluster (cmd_ctl_cluster.c), and after a KV store, one that kvd serves or a directory
 * that nobody does. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ds/kvstore.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "cli/cli.h"
#include "cli/coord_cli.h"
#include "cli/ctl_cluster.h"

enum { FLUSH_BYTES = 1 << 16 };

typedef struct {
    ds_opt_list dirs;
    const char *store;
    ds_ctl_cluster cluster;
    bool json;
} options;

typedef enum { STAT, LS, VERIFY, SCRUB, WARM, FORGET } verb;

static const ds_opt table[] = {
    DS_CLI_OPT_COORD(offsetof(options, cluster.coord)),
    { .name = "cluster",
      .type = DS_OPT_STR,
      .offset = offsetof(options, cluster.file),
      .arg = "FILE.yaml",
      .help = "instead of --coord: the file of a cluster that `deepserve up` runs" },
    { .name = "timeout",
      .type = DS_OPT_MS,
      .offset = offsetof(options, cluster.timeout_ms),
      .def = "120s",
      .arg = "TIME",
      .min = 1,
      .max = 86400000,
      .help = "drain, restart: for each process" },
    { .name = "store", .type = DS_OPT_STR, .offset = offsetof(options, store), .arg = "unix:PATH", .help = "where kvd listens" },
    { .name = "dir",
      .type = DS_OPT_LIST,
      .offset = offsetof(options, dirs),
      .arg = "DIR",
      .help = "a store that no kvd serves; all of its directories, or its pool of Ceph as in kvd" },
    { .name = "json", .type = DS_OPT_FLAG, .offset = offsetof(options, json), .help = "results as JSON" },
    { 0 },
};

static const ds_opt_cmd command = {
    .command = "deepserve ctl",
    .summary =
        "status: all processes of a cluster in one table; drain: a process takes nothing new, ends what it has, and ends; restart: the "
        "same for\n"
        "one engine after the other, each waited for until it is back, all of them when none is named.\n"
        "kv: VERB is stat: counts and sizes; ls: every block, one a line; verify: reads all parts of every block, writes anew what is "
        "damaged,\n"
        "exit 1 when something is lost; scrub: the same slowly, beside other work; warm: reads every block and counts it as used now;\n"
        "forget: removes all that was saved for a tenant, from the devices too.",
    .usage = "status | drain NAME | restart [NAME …] (--coord ADDRESS | --cluster FILE.yaml) [--json]\n"
             "       deepserve ctl kv VERB [TENANT] (--store unix:PATH | --dir DIR …) [--json]",
    .example = "deepserve ctl status --cluster examples/cluster.yaml",
    .opts = table,
};

/* ---- results ---- */

static void put_number(ds_buf *out, bool json, const char *name, uint64_t v)
{
    if (json)
        ds_buf_printf(out, "%s\"%s\":%" PRIu64, out->len > 1 ? "," : "", name, v);
    else
        ds_buf_printf(out, "%-14s %" PRIu64 "\n", name, v);
}

/* A histogram by the upper bounds of its buckets in seconds. */
static void put_times(ds_buf *out, bool json, const char *name, const uint64_t n[DS_KVSTORE_HIST])
{
    if (json)
        ds_buf_printf(out, ",\"%s\":{", name);
    for (int i = 0; i < DS_KVSTORE_HIST; i++) {
        char bound[24] = "more";
        if (i + 1 < DS_KVSTORE_HIST)
            snprintf(bound, sizeof bound, "%" PRIu64, UINT64_C(1) << 2 * i);
        if (json)
            ds_buf_printf(out, "%s\"%s\":%" PRIu64, i ? "," : "", bound, n[i]);
        else if (n[i])
            ds_buf_printf(out, "%s below %s s %" PRIu64 "\n", name, bound, n[i]);
    }
    if (json)
        ds_buf_putc(out, '}');
}

static ds_rc stat(ds_kvstore *s, bool json, ds_buf *out, ds_err *err)
{
    static const struct {
        const char *name;
        size_t at;
    } rows[] = {
#define ROW(member) { #member, offsetof(ds_kvstore_stats, member) }
        ROW(blocks),      ROW(max_blocks),   ROW(bytes),       ROW(capacity),    ROW(restored),       ROW(segments),
        ROW(devices),     ROW(bad_devices),  ROW(k),           ROW(m),           ROW(hits),           ROW(matches),
        ROW(matched),     ROW(asked),        ROW(saved),       ROW(known),       ROW(orphans),        ROW(full),
        ROW(failed),      ROW(expired),      ROW(evicted),     ROW(moved),       ROW(forgotten),      ROW(hedged),
        ROW(decoded),     ROW(bad_shards),   ROW(repairs),     ROW(incomplete),  ROW(pins),           ROW(lookup_ns),
        ROW(queue_ns),    ROW(device_ns),    ROW(decode_ns),   ROW(verify_ns),   ROW(copy_ns),        ROW(windows),
        ROW(max_windows), ROW(window_bytes), ROW(window_puts), ROW(window_hits), ROW(window_expired), ROW(window_displaced),
#undef ROW
    };
    ds_kvstore_stats st;
    ds_rc rc = ds_kvstore_stat(s, &st, err);

    if (rc != DS_OK)
        return rc;
    if (json)
        ds_buf_putc(out, '{');
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t v;
        memcpy(&v, (const char *)&st + rows[i].at, sizeof v);
        put_number(out, json, rows[i].name, v);
    }
    if (json)
        ds_buf_puts(out, ",\"misses\":{");
    for (int c = DS_KVSTORE_HIT + 1; c < DS_KVSTORE_CAUSES; c++) {
        const char *name = ds_kvstore_cause_name((ds_kvstore_cause)c);
        if (json)
            ds_buf_printf(out, "%s\"%s\":%" PRIu64, c > 1 ? "," : "", name, st.misses[c]);
        else
            ds_buf_printf(out, "missed %-7s %" PRIu64 "\n", name, st.misses[c]);
    }
    if (json)
        ds_buf_putc(out, '}');
    put_times(out, json, "lifetime", st.lifetime);
    put_times(out, json, "reuse_gap", st.reuse_gap);
    if (json)
        ds_buf_puts(out, "}\n");
    return DS_OK;
}

typedef struct {
    ds_buf *out;
    bool json;
    ds_rc rc;
    ds_err *err;
} listing;

/* Lines are written while they come: a store may have a hundred million. */
static bool print_item(void *ctx, const ds_kvstore_item *x)
{
    static const char *const klass[DS_KVSTORE_CLASSES] = { "agent", "chat" };
    listing *l = ctx;
    char key[65], parent[65];

    ds_hex(key, x->key.b, 32);
    ds_hex(parent, x->parent.b, 32);
    if (l->json)
        ds_buf_printf(l->out,
                      "{\"key\":\"%s\",\"parent\":%s%s%s,\"depth\":%u,\"bytes\":%u,\"segment\":%" PRIu64
                      ",\"class\":\"%s\",\"exact\":%s,\"tenant\":%u,\"used\":%" PRId64 "}\n",
                      key, x->depth ? "\"" : "", x->depth ? parent : "null", x->depth ? "\"" : "", x->depth, x->block_bytes, x->segment,
                      (unsigned)x->klass < DS_KVSTORE_CLASSES ? klass[x->klass] : "other", x->exact ? "true" : "false", x->tenant,
                      x->used_s);
    else
        ds_buf_printf(l->out, "%s %6u %8u %6" PRIu64 " %-5s %s %08x %" PRId64 "\n", key, x->depth, x->block_bytes, x->segment,
                      (unsigned)x->klass < DS_KVSTORE_CLASSES ? klass[x->klass] : "other", x->exact ? "exact " : "approx", x->tenant,
                      x->used_s);
    if (l->out->len > FLUSH_BYTES) {
        l->rc = ds_file_write(1, ds_buf_str(l->out), l->out->len, "standard output", l->err);
        ds_buf_clear(l->out);
    }
    return l->rc == DS_OK;
}

static ds_rc list(ds_kvstore *s, bool json, ds_buf *out, ds_err *err)
{
    listing l = { .out = out, .json = json, .err = err };
    ds_rc rc = ds_kvstore_list(s, print_item, &l, err);

    return rc == DS_OK ? l.rc : rc;
}

static ds_rc verify(ds_kvstore *s, unsigned how, bool json, ds_buf *out, bool *lost, ds_err *err)
{
    ds_kvstore_check c;
    ds_rc rc = ds_kvstore_verify(s, how, NULL, &c, err);

    if (rc != DS_OK)
        return rc;
    if (json)
        ds_buf_putc(out, '{');
    put_number(out, json, "checked", c.checked);
    put_number(out, json, "bad", c.bad);
    put_number(out, json, "repaired", c.repaired);
    if (json)
        ds_buf_puts(out, "}\n");
    *lost = c.bad > 0;
    return DS_OK;
}

static ds_rc forget(ds_kvstore *s, const char *tenant, bool json, ds_buf *out, ds_err *err)
{
    uint64_t n;
    ds_rc rc = ds_kvstore_forget(s, tenant, &n, err);

    if (rc != DS_OK)
        return rc;
    if (json)
        ds_buf_putc(out, '{');
    put_number(out, json, "forgotten", n);
    if (json)
        ds_buf_puts(out, "}\n");
    return DS_OK;
}

/* ---- the store ---- */

static ds_rc open_store(ds_kvstore **s, const options *o, verb v, ds_err *err)
{
    ds_kvstore_opts so = { .dirs = o->dirs.v, .n_dirs = (uint32_t)o->dirs.n, .readers = 1, .read_only = v == STAT || v == LS };
    ds_kvstore_opts look = so;
    ds_rc rc;

    if (o->store)
        return ds_kvstore_connect(s, o->store, NULL, err);
    look.read_only = true; /* first, so that no store is made where there is none */
    rc = ds_kvstore_open(s, &look, err);
    if (rc == DS_OK && !so.read_only) {
        ds_kvstore_close(*s);
        rc = ds_kvstore_open(s, &so, err);
    }
    return rc;
}

static ds_rc work(verb v, const options *o, const char *tenant, ds_buf *out, bool *lost, ds_err *err)
{
    ds_kvstore *s;
    ds_rc rc = open_store(&s, o, v, err);

    if (rc != DS_OK)
        return rc;
    switch (v) {
    case STAT:
        rc = stat(s, o->json, out, err);
        break;
    case LS:
        rc = list(s, o->json, out, err);
        break;
    case VERIFY:
        rc = verify(s, DS_KVSTORE_REPAIR, o->json, out, lost, err);
        break;
    case SCRUB:
        rc = verify(s, DS_KVSTORE_REPAIR | DS_KVSTORE_SLOWLY, o->json, out, lost, err);
        break;
    case WARM:
        rc = verify(s, DS_KVSTORE_USE, o->json, out, lost, err);
        break;
    case FORGET:
        rc = forget(s, tenant, o->json, out, err);
        break;
    }
    ds_kvstore_close(s);
    return rc;
}

int ds_cmd_ctl(int argc, char **argv)
{
    static const char *const verbs[] = { "stat", "ls", "verify", "scrub", "warm", "forget", NULL };
    options o = { 0 };
    const char *word[DS_CTL_WORDS] = { NULL };
    size_t n = 0;
    ds_buf out = { 0 };
    ds_err err = { 0 };
    int v = 0;
    bool help, lost = false;
    ds_rc rc;

    if (ds_opt_parse(&command, &o, argc, argv, word, DS_CTL_WORDS, &n, NULL, &help, &err) != DS_OK)
        return ds_cli_wrong("ctl", "%s", err.msg);
    if (help) {
        ds_opt_print_help(&command, stdout);
        return 0;
    }
    if (n > 0 && ds_ctl_is_cluster(word[0])) {
        if (o.store || o.dirs.n)
            return ds_cli_wrong("ctl", "%s: --store and --dir are for kv", word[0]);
        return ds_ctl_cluster_run(&o.cluster, word, n, o.json);
    }
    if (o.cluster.coord || o.cluster.file)
        return ds_cli_wrong("ctl", "--coord and --cluster are for status, drain and restart");
    if (n < 2 || strcmp(word[0], "kv") != 0)
        return ds_cli_wrong("ctl",
                            "what to do comes first: status, drain, restart, kv stat, kv ls, kv verify, kv scrub, kv warm or kv forget");
    if (n > 3)
        return ds_cli_wrong("ctl", "unexpected word '%.40s'", word[3]);
    while (verbs[v] && strcmp(verbs[v], word[1]) != 0)
        v++;
    if (!verbs[v])
        return ds_cli_wrong("ctl", "kv %.40s: expected stat, ls, verify, scrub, warm or forget", word[1]);
    if ((v == FORGET) != (n == 3))
        return ds_cli_wrong("ctl", v == FORGET ? "kv forget needs the tenant's name" : "kv %s takes no further word", verbs[v]);
    if (ds_kvstore_check_places(o.dirs.v, (uint32_t)o.dirs.n, &err) != DS_OK)
        return ds_cli_wrong("ctl", "--dir %s", err.msg);
    if ((o.store != NULL) + (o.dirs.n > 0) != 1)
        return ds_cli_wrong("ctl", "exactly one of --store and --dir is needed");
    if (o.store && strncmp(o.store, "unix:", 5) != 0)
        return ds_cli_wrong("ctl", "--store %.80s: expected unix:PATH", o.store);
    rc = work((verb)v, &o, word[2], &out, &lost, &err);
    if (rc == DS_OK && out.oom)
        rc = ds_fail(&err, DS_E_NOMEM, "out of memory");
    if (rc == DS_OK)
        rc = ds_file_write(1, ds_buf_str(&out), out.len, "standard output", &err);
    ds_buf_free(&out);
    return rc == DS_OK ? lost : ds_cli_fail("ctl", &err);
}
