#include "cli/ctl_cluster.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/cli.h"
#include "coord/coord.h"
#include "role/fleet.h"

enum { ANSWER_MS = 3000, LOOK_MS = 20 };

typedef struct {
    ds_coord_member m[DS_COORD_MAX_MEMBERS];
    uint32_t n;
} members;

static void get_members(ds_coord *c, members *to)
{
    to->n = ds_coord_members(c, to->m, DS_COORD_MAX_MEMBERS);
    if (to->n > DS_COORD_MAX_MEMBERS)
        to->n = DS_COORD_MAX_MEMBERS;
}

static const ds_coord_member *named(const members *all, const char *name)
{
    for (uint32_t i = 0; i < all->n; i++)
        if (strcmp(all->m[i].name, name) == 0)
            return &all->m[i];
    return NULL;
}

static ds_rc unknown(const members *all, const char *name, ds_err *err)
{
    const char *names[DS_COORD_MAX_MEMBERS + 1], *near;
    char q[112];

    for (uint32_t i = 0; i < all->n; i++)
        names[i] = all->m[i].name;
    names[all->n] = NULL;
    near = ds_opt_nearest(name, names);
    ds_quote(q, sizeof q, name, strnlen(name, 40));
    return near ? ds_fail(err, DS_E_ARG, "there is no process '%s'; did you mean %s?", q, near)
                : ds_fail(err, DS_E_ARG, "there is no process '%s'", q);
}

/* ---- status ---- */

/* What it does: what is wanted of it counts from the moment of the order. */
static const char *state_of(const ds_coord_member *m)
{
    return m->drain && m->state == DS_INSTANCE_READY ? ds_instance_state_name(DS_INSTANCE_DRAINING) : ds_instance_state_name(m->state);
}

static const char *size_text(char *out, size_t cap, uint64_t n)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    double x = (double)n;
    int u = 0;

    for (; x >= 1024 && u < 4; u++)
        x /= 1024;
    snprintf(out, cap, u && x < 10 ? "%.1f %s" : "%.0f %s", x, units[u]);
    return out;
}

static void kv_text(char *out, size_t cap, const ds_coord_member *m)
{
    char a[24], b[24];

    if (strcmp(m->role, "store") == 0 && m->kv_total)
        snprintf(out, cap, "%s of %s", size_text(a, sizeof a, m->kv_used), size_text(b, sizeof b, m->kv_total));
    else if (strcmp(m->role, "store") == 0)
        snprintf(out, cap, "%s", size_text(a, sizeof a, m->kv_used));
    else if (m->kv_total)
        snprintf(out, cap, "%.0f%%", 100.0 * (double)m->kv_used / (double)m->kv_total);
    else
        snprintf(out, cap, "-");
}

static void put_table(ds_buf *b, const members *all)
{
    int name = 4, role = 4, version = 7;

    for (uint32_t i = 0; i < all->n; i++) {
        int n = (int)strlen(all->m[i].name), r = (int)strlen(all->m[i].role), v = (int)strlen(all->m[i].version);
        name = n > name ? n : name;
        role = r > role ? r : role;
        version = v > version ? v : version;
    }
    ds_buf_printf(b, "%-*s  %-*s  %-8s  %8s  %-20s  %5s  %-*s  %s\n", name, "name", role, "role", "state", "requests", "KV", "epoch",
                  version, "version", "address");
    for (uint32_t i = 0; i < all->n; i++) {
        const ds_coord_member *m = &all->m[i];
        char kv[64], live[16] = "-";
        kv_text(kv, sizeof kv, m);
        if (strcmp(m->role, "store") != 0 && strcmp(m->role, "coord") != 0)
            snprintf(live, sizeof live, "%u", m->live);
        ds_buf_printf(b, "%-*s  %-*s  %-8s  %8s  %-20s  %5" PRIu64 "  %-*s  %s\n", name, m->name, role, m->role, state_of(m), live, kv,
                      m->epoch, version, m->version, m->address);
    }
}

static void put_json(ds_buf *b, const members *all)
{
    ds_buf_puts(b, "{\"members\":[");
    for (uint32_t i = 0; i < all->n; i++) {
        const ds_coord_member *m = &all->m[i];
        ds_buf_printf(b,
                      "%s{\"name\":\"%s\",\"role\":\"%s\",\"state\":\"%s\",\"requests\":%u,\"kv_used\":%" PRIu64 ",\"kv_total\":%" PRIu64
                      ",\"epoch\":%" PRIu64 ",\"version\":",
                      i ? "," : "", m->name, m->role, state_of(m), m->live, m->kv_used, m->kv_total, m->epoch);
        ds_json_write_str(b, m->version, strlen(m->version), DS_JSON_COMPACT);
        ds_buf_puts(b, ",\"address\":");
        ds_json_write_str(b, m->address, strlen(m->address), DS_JSON_COMPACT);
        ds_buf_putc(b, '}');
    }
    ds_buf_puts(b, "]}\n");
}

static ds_rc status(const members *all, bool json, ds_err *err)
{
    ds_buf b = { 0 };
    ds_rc rc;

    if (json)
        put_json(&b, all);
    else
        put_table(&b, all);
    rc = b.oom ? ds_fail(err, DS_E_NOMEM, "out of memory") : ds_file_write(1, ds_buf_str(&b), b.len, "standard output", err);
    ds_buf_free(&b);
    return rc;
}

/* ---- drain, restart ---- */

/* Until the process of that epoch is gone, and with `back` until another one of its name takes work. */
static ds_rc wait_for(ds_coord *c, members *all, const char *name, uint64_t epoch, bool back, uint64_t timeout_ms, ds_err *err)
{
    uint64_t until = ds_now_us() + timeout_ms * 1000;

    for (;;) {
        const ds_coord_member *m;
        get_members(c, all);
        m = named(all, name);
        if (back ? m && m->epoch != epoch && m->state == DS_INSTANCE_READY : !m || m->epoch != epoch)
            return DS_OK;
        if (ds_now_us() >= until) {
            if (m && m->epoch == epoch)
                return ds_fail(err, DS_E_IO, "%s is %s with %u requests: it hasn't ended in time", name, state_of(m), m->live);
            return ds_fail(err, DS_E_IO, "%s has ended, and isn't back in time", name);
        }
        poll(NULL, 0, LOOK_MS);
    }
}

static ds_rc leave(ds_coord *c, members *all, const char *name, bool back, uint64_t timeout_ms, ds_err *err)
{
    const ds_coord_member *m = named(all, name);
    uint64_t began = ds_now_us(), epoch = m ? m->epoch : 0;
    ds_rc rc = m ? ds_coord_drain(c, name, ANSWER_MS, err) : unknown(all, name, err);

    if (rc == DS_OK)
        rc = wait_for(c, all, name, epoch, back, timeout_ms, err);
    if (rc == DS_OK)
        fprintf(stderr, "%s %s after %.1f s\n", name, back ? "is back" : "has left", (double)(ds_now_us() - began) / 1e6);
    return rc;
}

static ds_rc restart(ds_coord *c, members *all, const char *const *name, size_t n, uint64_t timeout_ms, ds_err *err)
{
    members *first = NULL;
    ds_rc rc = DS_OK;

    for (size_t i = 0; i < n && rc == DS_OK; i++) /* before any is touched */
        if (!named(all, name[i]))
            rc = unknown(all, name[i], err);
    for (size_t i = 0; i < n && rc == DS_OK; i++)
        rc = leave(c, all, name[i], true, timeout_ms, err);
    if (n > 0 || rc != DS_OK)
        return rc;
    first = malloc(sizeof *first);
    if (!first)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    *first = *all;
    for (uint32_t i = 0; i < first->n && rc == DS_OK; i++)
        if (ds_fleet_is_engine(&first->m[i]))
            rc = leave(c, all, first->m[i].name, true, timeout_ms, err);
    free(first);
    return rc;
}

/* ---- the command ---- */

bool ds_ctl_is_cluster(const char *verb)
{
    return strcmp(verb, "status") == 0 || strcmp(verb, "drain") == 0 || strcmp(verb, "restart") == 0;
}

static ds_rc work(const char *address, const ds_ctl_cluster *o, const char *const *word, size_t n, bool json, ds_err *err)
{
    members *all = malloc(sizeof *all);
    ds_coord *c = NULL;
    ds_rc rc = all ? ds_coord_open(&c, address, &(ds_coord_opts){ .watch = true, .retry_ms = 100 }, err)
                   : ds_fail(err, DS_E_NOMEM, "out of memory");

    if (rc == DS_OK)
        rc = ds_coord_wait(c, ANSWER_MS, err);
    if (rc == DS_OK) {
        get_members(c, all);
        if (strcmp(word[0], "status") == 0)
            rc = status(all, json, err);
        else if (strcmp(word[0], "drain") == 0)
            rc = leave(c, all, word[1], false, o->timeout_ms, err);
        else
            rc = restart(c, all, word + 1, n - 1, o->timeout_ms, err);
    }
    ds_coord_close(c);
    free(all);
    return rc;
}

int ds_ctl_cluster_run(const ds_ctl_cluster *o, const char *const *word, size_t n, bool json)
{
    ds_up_plan *plan = NULL;
    ds_err err = { 0 };
    ds_rc rc = DS_OK;

    if (!o->coord == !o->file)
        return ds_cli_wrong("ctl", "exactly one of --coord and --cluster is needed");
    if (strcmp(word[0], "status") == 0 && n > 1)
        return ds_cli_wrong("ctl", "status takes no further word");
    if (strcmp(word[0], "drain") == 0 && n != 2)
        return ds_cli_wrong("ctl", "drain needs the name of one process");
    if (o->file)
        rc = ds_cli_up_plan(&plan, o->file, &err);
    if (rc == DS_OK)
        rc = work(plan ? plan->coord : o->coord, o, word, n, json, &err);
    ds_up_plan_free(plan);
    return rc == DS_OK ? 0 : ds_cli_fail("ctl", &err);
}
