#include "role/up_file.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include <ds/gen.h>

#include "base/file.h"
#include "yaml/yaml.h"

enum { COUNT_MAX = 64, PORT = 8000, STORE_DRAIN_MS = 30000 };

typedef struct {
    const ds_yaml_doc *d;
    const ds_up_commands *c;
    ds_up_plan *plan;
    const char *model;
    ds_err *err;
} reader;

const char *ds_up_kind_name(ds_up_kind k, bool several)
{
    static const char *const names[DS_UP_KINDS][2] = {
        { "coord", "coord" }, { "store", "stores" }, { "engine", "engines" }, { "entry", "entries" }
    };

    return names[k][several];
}

static const ds_opt_cmd *command_of(const ds_up_commands *c, ds_up_kind k)
{
    const ds_opt_cmd *const commands[DS_UP_KINDS] = { c->coord, c->store, c->engine, c->entry };

    return commands[k];
}

/* ---- values ---- */

static ds_rc no_memory(const reader *r)
{
    return ds_fail(r->err, DS_E_NOMEM, "%s: out of memory", r->plan->label);
}

static ds_rc text_of(const reader *r, const ds_yaml *v, const char **out)
{
    *out = NULL;
    if (v->kind != DS_YAML_SCALAR)
        return ds_yaml_fail(r->d, v, r->err, "%s: %s, expected one value", v->key, ds_yaml_kind_name(v->kind));
    if (!*v->text)
        return ds_yaml_fail(r->d, v, r->err, "%s: no value", v->key);
    *out = v->text;
    return DS_OK;
}

static ds_rc number_of(const reader *r, const ds_yaml *v, unsigned min, unsigned max, unsigned *out)
{
    const char *text;
    char q[112];
    unsigned long x = 0;
    ds_rc rc = text_of(r, v, &text);

    if (rc != DS_OK)
        return rc;
    if (strspn(text, "0123456789") == strlen(text) && strlen(text) < 10)
        x = strtoul(text, NULL, 10);
    else
        x = ULONG_MAX;
    if (x < min || x > max)
        return ds_yaml_fail(r->d, v, r->err, "%s: '%s', expected a number from %u to %u", v->key,
                            ds_quote(q, sizeof q, text, strnlen(text, 40)), min, max);
    *out = (unsigned)x;
    return DS_OK;
}

/* Names are parts of file names. `room`: for a number behind it. */
static ds_rc name_of(const reader *r, const ds_yaml *v, char out[DS_UP_NAME], size_t room)
{
    const char *text;
    char q[112];
    size_t n;
    ds_rc rc = text_of(r, v, &text);

    if (rc != DS_OK)
        return rc;
    n = strlen(text);
    if (n + room >= DS_UP_NAME || strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != n || *text == '-')
        return ds_yaml_fail(r->d, v, r->err, "%s: '%s', expected up to %zu letters, digits, - and _", v->key,
                            ds_quote(q, sizeof q, text, strnlen(text, 40)), DS_UP_NAME - 1 - room);
    memcpy(out, text, n + 1);
    return DS_OK;
}

static ds_rc unknown_key(const reader *r, const ds_yaml *v, const char *where, const char *const *known)
{
    const char *near = ds_opt_nearest(v->key, known);
    char q[112];

    ds_quote(q, sizeof q, v->key, strnlen(v->key, 40));
    if (near)
        return ds_yaml_fail(r->d, v, r->err, "%s: no key of %s; did you mean %s?", q, where, near);
    return ds_yaml_fail(r->d, v, r->err, "%s: no key of %s", q, where);
}

/* ---- command lines ---- */

static ds_rc add_word(const reader *r, ds_up_process *p, char *word)
{
    char **argv = word ? realloc(p->argv, (p->argc + 2) * sizeof *argv) : NULL;

    if (!argv) {
        free(word);
        return no_memory(r);
    }
    p->argv = argv;
    p->argv[p->argc++] = word;
    p->argv[p->argc] = NULL;
    return DS_OK;
}

static ds_rc add_format(const reader *r, ds_up_process *p, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static ds_rc add_format(const reader *r, ds_up_process *p, const char *fmt, ...)
{
    char *word = NULL;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&word, fmt, ap);
    va_end(ap);
    return add_word(r, p, n < 0 ? NULL : word);
}

static const ds_opt *option_of(const ds_opt_cmd *cmd, const char *name)
{
    for (const ds_opt *o = cmd->opts; o->name; o++)
        if (strcmp(o->name, name) == 0)
            return o;
    return NULL;
}

/* Time that an option says, in the words that were checked: the last one counts. */
static uint64_t drain_ms_of(const ds_up_process *p, const ds_opt_cmd *cmd)
{
    static const ds_opt one[] = { { .name = "drain-timeout", .type = DS_OPT_MS, .arg = "TIME" }, { 0 } };
    const ds_opt *o = option_of(cmd, "drain-timeout");
    const ds_opt_cmd only = { .command = "", .opts = one };
    uint64_t ms = STORE_DRAIN_MS;
    char def[48], *argv[2] = { "", NULL };
    const char *pos;
    size_t n_pos;
    bool help;

    if (!o)
        return ms;
    snprintf(def, sizeof def, "--drain-timeout=%s", o->def);
    argv[1] = def;
    for (size_t i = 1; i < p->argc; i++)
        if (strncmp(p->argv[i], "--drain-timeout=", 16) == 0)
            argv[1] = p->argv[i];
    (void)ds_opt_parse(&only, &ms, 2, argv, &pos, 0, &n_pos, NULL, &help, NULL); /* it was checked */
    return ms;
}

/* A key that is an option of the command. */
static ds_rc add_setting(const reader *r, ds_up_process *p, const ds_yaml *v)
{
    const ds_opt_cmd *cmd = command_of(r->c, p->kind);
    const ds_opt *o = option_of(cmd, v->key);
    const ds_yaml *each = v;
    uint32_t n = 1;
    ds_rc rc = DS_OK;

    if (v->kind == DS_YAML_LIST && o && o->type == DS_OPT_LIST) {
        each = v->child;
        n = v->n;
    }
    for (; n > 0 && rc == DS_OK; n--, each = each->next) {
        ds_err why = { 0 };
        char *word;
        if (each->kind != DS_YAML_SCALAR)
            return ds_yaml_fail(r->d, each, r->err, "%s: %s, expected %s", v->key, ds_yaml_kind_name(each->kind),
                                o && o->type == DS_OPT_LIST ? "a value or a list of values" : "one value");
        rc = ds_opt_setting(cmd, v->key, each->text, &word, &why);
        if (rc == DS_E_NOMEM)
            return no_memory(r);
        if (rc != DS_OK)
            return ds_yaml_fail(r->d, each, r->err, "%s: %s", p->name, why.msg);
        rc = add_word(r, p, word);
    }
    return rc;
}

/* ---- groups ---- */

/* What `up` says itself, by kind. */
static const char *const own[DS_UP_KINDS][8] = {
    { "listen", "dir", "name" },
    { "listen", "coord" },
    { "model", "listen", "kv", "coord", "config", "dump-config" },
    { "model", "host", "engine", "coord", "admin-socket", "config", "dump-config" },
};
/* Keys of a group that are no options, or become some in a way of their own. */
static const char *const special[DS_UP_KINDS][8] = {
    { NULL },
    { "name", "count" },
    { "name", "count", "role", "store" },
    { "name", "count", "host", "port" },
};

static bool among(const char *const *words, const char *word)
{
    for (; *words; words++)
        if (strcmp(*words, word) == 0)
            return true;
    return false;
}

typedef struct {
    const ds_yaml *map; /* NULL: nothing is said of it */
    ds_up_kind kind;
    char name[DS_UP_NAME];
    unsigned count, port;
    const char *role, *host;
    const ds_up_process *store;
    bool numbered;
} group;

static const ds_up_process *process_named(const ds_up_plan *plan, const char *name)
{
    for (uint32_t i = 0; i < plan->n; i++)
        if (strcmp(plan->p[i].name, name) == 0)
            return &plan->p[i];
    return NULL;
}

static ds_rc store_of(const reader *r, const ds_yaml *v, const ds_up_process **out)
{
    const char *text;
    char q[112];
    ds_rc rc = text_of(r, v, &text);

    if (rc != DS_OK)
        return rc;
    *out = process_named(r->plan, text);
    if (*out && (*out)->kind == DS_UP_STORE)
        return DS_OK;
    return ds_yaml_fail(r->d, v, r->err, "store: there is no store '%s'", ds_quote(q, sizeof q, text, strnlen(text, 40)));
}

static ds_rc role_of(const reader *r, const ds_yaml *v, const char **out)
{
    const char *text;
    char q[112];
    ds_rc rc = text_of(r, v, &text);

    if (rc != DS_OK)
        return rc;
    if (strcmp(text, "mixed") != 0)
        return ds_yaml_fail(r->d, v, r->err, "role: '%s', expected mixed", ds_quote(q, sizeof q, text, strnlen(text, 40)));
    *out = "mixed";
    return DS_OK;
}

static ds_rc read_group(const reader *r, group *g)
{
    const ds_yaml *v;
    ds_rc rc = DS_OK;

    if (g->map->kind != DS_YAML_MAP)
        return ds_yaml_fail(r->d, g->map, r->err, "%s in %s: expected keys and values", ds_yaml_kind_name(g->map->kind),
                            ds_up_kind_name(g->kind, true));
    snprintf(g->name, sizeof g->name, "%s", g->kind == DS_UP_STORE ? "kv" : ds_up_kind_name(g->kind, false));
    g->count = 1;
    g->role = g->kind == DS_UP_ENGINE ? "mixed" : ds_up_kind_name(g->kind, false);
    if (g->kind == DS_UP_ENTRY) {
        g->host = "127.0.0.1";
        g->port = PORT;
    }
    if ((v = ds_yaml_get(g->map, "count"))) {
        rc = number_of(r, v, 0, COUNT_MAX, &g->count);
        g->numbered = true;
    }
    if (rc == DS_OK && (v = ds_yaml_get(g->map, "name")))
        rc = name_of(r, v, g->name, g->numbered ? 2 : 0);
    if (rc == DS_OK && g->kind == DS_UP_ENGINE && (v = ds_yaml_get(g->map, "role")))
        rc = role_of(r, v, &g->role);
    if (rc == DS_OK && g->kind == DS_UP_ENGINE && (v = ds_yaml_get(g->map, "store")))
        rc = store_of(r, v, &g->store);
    if (rc == DS_OK && g->kind == DS_UP_ENTRY && (v = ds_yaml_get(g->map, "host")))
        rc = text_of(r, v, &g->host);
    if (rc == DS_OK && g->kind == DS_UP_ENTRY && (v = ds_yaml_get(g->map, "port")))
        rc = number_of(r, v, 0, 65535 - COUNT_MAX, &g->port);
    return rc;
}

static ds_rc settings_of(const reader *r, const group *g, ds_up_process *p)
{
    ds_rc rc = DS_OK;

    for (const ds_yaml *v = g->map ? g->map->child : NULL; v && rc == DS_OK; v = v->next) {
        if (among(special[g->kind], v->key))
            continue;
        if (among(own[g->kind], v->key))
            rc = ds_yaml_fail(r->d, v, r->err, "%s: `up` says this itself", v->key);
        else if (g->count > 1 && (strcmp(v->key, "dir") == 0 || strcmp(v->key, "kv-dir") == 0 || strcmp(v->key, "unix-socket") == 0 ||
                                  strcmp(v->key, "responses-db") == 0))
            rc = ds_yaml_fail(r->d, v, r->err, "%s: one place can't be that of %u processes; give each a group of its own", v->key,
                              g->count);
        else
            rc = add_setting(r, p, v);
    }
    return rc;
}

/* A place in the cluster's directory. */
static ds_rc own_dir(const reader *r, ds_up_process *p)
{
    if (asprintf(&p->dir, "%s/%s", r->plan->dir, p->name) < 0) {
        p->dir = NULL;
        return no_memory(r);
    }
    return add_format(r, p, "--dir=%s", p->dir);
}

/* What the command needs from `up`. */
static ds_rc own_words(const reader *r, const group *g, ds_up_process *p)
{
    const char *dir = r->plan->dir;
    ds_rc rc = DS_OK;

    if (p->kind != DS_UP_COORD)
        rc = add_format(r, p, "--coord=%s", r->plan->coord);
    if (rc == DS_OK && p->kind != DS_UP_COORD)
        rc = add_format(r, p, "--name=%s", p->name);
    if (rc == DS_OK && p->kind != DS_UP_ENTRY)
        rc = add_format(r, p, "--listen=unix:%s/%s.socket", dir, p->name);
    if (rc == DS_OK && (p->kind == DS_UP_ENGINE || p->kind == DS_UP_ENTRY))
        rc = add_format(r, p, "--model=%s", r->model);
    if (rc == DS_OK && (p->kind == DS_UP_COORD || (p->kind == DS_UP_STORE && !ds_yaml_get(g->map, "dir"))))
        rc = own_dir(r, p);
    if (rc == DS_OK && g->store)
        rc = add_format(r, p, "--kv=unix:%s/%s.socket", dir, g->store->name);
    if (rc != DS_OK || p->kind != DS_UP_ENTRY)
        return rc;
    rc = add_format(r, p, "--host=%s", p->host);
    if (rc == DS_OK)
        rc = add_format(r, p, "--port=%u", p->port);
    return rc == DS_OK ? add_format(r, p, "--admin-socket=%s/%s.admin", dir, p->name) : rc;
}

static ds_rc add_process(const reader *r, const group *g, unsigned i)
{
    static const char *const words[DS_UP_KINDS] = { "coord", "kvd", "engine", "entry" };
    ds_up_plan *plan = r->plan;
    ds_up_process *p = &plan->p[plan->n];
    const ds_up_process *other;
    ds_rc rc;

    *p = (ds_up_process){ .kind = g->kind, .role = g->role, .line = g->map ? g->map->line : 1, .column = g->map ? g->map->column : 1 };
    snprintf(p->name, sizeof p->name, g->numbered ? "%s%u" : "%s", g->name, i);
    other = process_named(plan, p->name);
    if (other && other->kind == DS_UP_COORD)
        return ds_yaml_fail(r->d, g->map, r->err, "the name coord is the coord's");
    if (other)
        return ds_yaml_fail(r->d, g->map, r->err, "a second %s, the first is in line %u: `name` tells them apart", p->name, other->line);
    if (g->host) {
        p->host = strdup(g->host);
        p->port = (uint16_t)(g->port ? g->port + i : 0);
        if (!p->host)
            return no_memory(r);
    }
    plan->n++;
    for (uint32_t k = 0; k + 1 < plan->n && p->port; k++)
        if (plan->p[k].port == p->port)
            return ds_yaml_fail(r->d, g->map, r->err, "port %u of %s: %s has it, in line %u", p->port, p->name, plan->p[k].name,
                                plan->p[k].line);
    rc = add_format(r, p, "deepserve");
    if (rc == DS_OK)
        rc = add_format(r, p, "%s", words[g->kind]);
    if (rc == DS_OK)
        rc = own_words(r, g, p);
    if (rc == DS_OK)
        rc = settings_of(r, g, p);
    p->drain_ms = drain_ms_of(p, command_of(r->c, p->kind));
    return rc;
}

static ds_rc read_groups(const reader *r, const ds_yaml *root, ds_up_kind kind)
{
    const ds_yaml *list = ds_yaml_get(root, ds_up_kind_name(kind, true));
    ds_rc rc = DS_OK;

    if (!list)
        return DS_OK;
    if (list->kind != DS_YAML_LIST)
        return ds_yaml_fail(r->d, list, r->err, "%s: %s, expected a list", list->key, ds_yaml_kind_name(list->kind));
    for (const ds_yaml *v = list->child; v && rc == DS_OK; v = v->next) {
        group g = { .map = v, .kind = kind };
        rc = read_group(r, &g);
        if (rc == DS_OK && r->plan->n + g.count > DS_UP_MAX)
            rc = ds_yaml_fail(r->d, v, r->err, "more than %d processes", DS_UP_MAX);
        for (unsigned i = 0; i < g.count && rc == DS_OK; i++)
            rc = add_process(r, &g, i);
    }
    return rc;
}

/* The coord: one of the cluster's own, with these options or none, or the address of another one. */
static ds_rc read_coord(const reader *r, const ds_yaml *root)
{
    const ds_yaml *v = ds_yaml_get(root, "coord");
    group g = { .map = v, .kind = DS_UP_COORD, .name = "coord", .count = 1, .role = "coord" };
    ds_up_plan *plan = r->plan;
    const char *address;
    int n;
    ds_rc rc;

    if (v && v->kind == DS_YAML_SCALAR) {
        rc = text_of(r, v, &address);
        if (rc == DS_OK && !(plan->coord = strdup(address)))
            rc = no_memory(r);
        return rc;
    }
    if (v && v->kind != DS_YAML_MAP)
        return ds_yaml_fail(r->d, v, r->err, "coord: %s, expected options or an address", ds_yaml_kind_name(v->kind));
    n = asprintf(&plan->coord, "unix:%s/coord.socket", plan->dir);
    if (n < 0) {
        plan->coord = NULL;
        return no_memory(r);
    }
    return add_process(r, &g, 0);
}

/* A cluster has what it needs. */
static ds_rc check_kinds(const reader *r, const ds_yaml *root)
{
    uint32_t n[DS_UP_KINDS] = { 0 };

    for (uint32_t i = 0; i < r->plan->n; i++)
        n[r->plan->p[i].kind]++;
    for (ds_up_kind k = DS_UP_ENGINE; k < DS_UP_KINDS; k++)
        if (n[k] == 0)
            return ds_fail(r->err, DS_E_FORMAT, "%s: no %s: a cluster needs at least one", r->plan->label, ds_up_kind_name(k, true));
    if (n[DS_UP_ENGINE] > DS_GEN_MANY_MAX)
        return ds_yaml_fail(r->d, ds_yaml_get(root, "engines"), r->err, "%u engines: at most %d", n[DS_UP_ENGINE], DS_GEN_MANY_MAX);
    return DS_OK;
}

/* ---- the file ---- */

/* The place where its file is; "." for a bare name. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return !slash ? strdup(".") : slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

static ds_rc default_name(ds_up_plan *plan, const char *path)
{
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    size_t n = strcspn(base, "."), out = 0;

    for (size_t i = 0; i < n && out + 1 < sizeof plan->name; i++) {
        char c = base[i];
        bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || (c == '-' && out);
        if (fine)
            plan->name[out++] = c;
    }
    if (out == 0)
        snprintf(plan->name, sizeof plan->name, "cluster");
    return DS_OK;
}

static ds_rc find_dir(const reader *r, const ds_yaml *root)
{
    enum { SOCKET = DS_UP_NAME + 8 };
    const ds_yaml *v = ds_yaml_get(root, "dir");
    ds_up_plan *plan = r->plan;
    const char *text;
    ds_rc rc;
    int n;

    if (!v) {
        n = asprintf(&plan->dir, "%s/%s", r->c->run_dir, plan->name);
    } else {
        char *folder = realpath(plan->folder, NULL);
        rc = text_of(r, v, &text);
        if (rc != DS_OK || !folder) {
            free(folder);
            return rc != DS_OK ? rc : ds_fail(r->err, DS_E_IO, "%s: its folder: %s", plan->label, strerror(errno));
        }
        n = *text == '/' ? asprintf(&plan->dir, "%s", text) : asprintf(&plan->dir, "%s/%s", folder, text);
        free(folder);
    }
    if (n < 0) {
        plan->dir = NULL;
        return no_memory(r);
    }
    if ((size_t)n + SOCKET > sizeof((struct sockaddr_un *)0)->sun_path)
        return ds_fail(r->err, DS_E_FORMAT, "%s: sockets in %.60s… would have names longer than %zu bytes: `dir` gives a shorter place",
                       plan->label, plan->dir, sizeof((struct sockaddr_un *)0)->sun_path - 1);
    return DS_OK;
}

static ds_rc read_root(reader *r, const ds_yaml *root)
{
    static const char *const keys[] = { "name", "model", "dir", "coord", "stores", "engines", "entries", NULL };
    const ds_yaml *v;
    ds_rc rc = DS_OK;

    if (root->kind != DS_YAML_MAP)
        return ds_yaml_fail(r->d, root, r->err, "%s: expected keys and values", ds_yaml_kind_name(root->kind));
    for (v = root->child; v; v = v->next)
        if (!among(keys, v->key))
            return unknown_key(r, v, "the file", keys);
    if ((v = ds_yaml_get(root, "name")))
        rc = name_of(r, v, r->plan->name, 0);
    if (rc == DS_OK && !(v = ds_yaml_get(root, "model")))
        rc = ds_fail(r->err, DS_E_FORMAT, "%s: model: it isn't there, and says which directory has the model", r->plan->label);
    if (rc == DS_OK)
        rc = text_of(r, v, &r->model);
    if (rc == DS_OK)
        rc = find_dir(r, root);
    if (rc == DS_OK)
        rc = read_coord(r, root);
    for (ds_up_kind k = DS_UP_STORE; k < DS_UP_KINDS && rc == DS_OK; k++)
        rc = read_groups(r, root, k);
    return rc == DS_OK ? check_kinds(r, root) : rc;
}

ds_rc ds_up_plan_parse(ds_up_plan **out, const char *path, const char *text, size_t n, const ds_up_commands *c, ds_err *err)
{
    ds_up_plan *plan = calloc(1, sizeof *plan);
    reader r = { .c = c, .plan = plan, .err = err };
    ds_yaml_doc *d = NULL;
    ds_rc rc = DS_OK;

    *out = NULL;
    if (!plan)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    ds_file_label(plan->label, sizeof plan->label, path);
    plan->folder = folder_of(path);
    plan->p = calloc(DS_UP_MAX, sizeof *plan->p);
    if (!plan->folder || !plan->p)
        rc = no_memory(&r);
    if (rc == DS_OK)
        rc = default_name(plan, path);
    if (rc == DS_OK)
        rc = ds_yaml_parse(&d, text, n, plan->label, err);
    if (rc == DS_OK) {
        r.d = d;
        rc = read_root(&r, ds_yaml_root(d));
    }
    ds_yaml_free(d);
    if (rc == DS_OK)
        *out = plan;
    else
        ds_up_plan_free(plan);
    return rc;
}

ds_rc ds_up_plan_load(ds_up_plan **out, const char *path, const ds_up_commands *c, ds_err *err)
{
    char *text;
    size_t n;
    ds_rc rc = ds_file_read(&text, &n, path, DS_YAML_MAX_BYTES, err);

    *out = NULL;
    if (rc != DS_OK)
        return rc;
    rc = ds_up_plan_parse(out, path, text, n, c, err);
    free(text);
    return rc;
}

void ds_up_plan_free(ds_up_plan *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; p->p && i < DS_UP_MAX; i++) {
        for (size_t k = 0; k < p->p[i].argc; k++)
            free(p->p[i].argv[k]);
        free(p->p[i].argv);
        free(p->p[i].dir);
        free((char *)(uintptr_t)p->p[i].host);
    }
    free(p->p);
    free(p->folder);
    free(p->dir);
    free(p->coord);
    free(p);
}
