#include "sim/file.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/opt.h"
#include "sim/measured.h"
#include "sim/quantity.h"
#include "yaml/yaml.h"

typedef struct {
    const ds_yaml_doc *d;
    const char *label, *dir;
    ds_sim_plan *p;
    ds_err *err;
} reader;

/* A key of a map. PART: read by whoever reads the map. */
typedef enum { QUANTITY, NUMBER, WORD, CHOICE, DIST, PART } field_type;

typedef struct {
    const char *key;
    field_type type;
    ds_sim_kind kind; /* QUANTITY, DIST */
    size_t at;        /* QUANTITY: double; NUMBER: uint32_t; WORD: char[]; CHOICE: int; DIST: ds_sim_dist */
    double min, max;  /* QUANTITY, NUMBER; max 0: none. WORD: max is its room */
    const char *const *choices;
    bool required;
} field;

static const char *const forms[] = { "mooncake", "azure", "access", NULL };
static const char *const roles[] = { "prefill", "decode", "mixed", NULL };
static const char *const rules[] = { "balanced", "turns", "least", NULL };

const char *ds_sim_role_name(ds_sim_role r)
{
    return roles[r];
}

const char *ds_sim_machine_origin(char buf[64], const ds_sim_machine *m)
{
    if (m->steps)
        snprintf(buf, 64, "fitted to %u measured steps, at most %.1f %% off", m->steps, fmin(100.0 * m->most_off, 1e9));
    else
        snprintf(buf, 64, "%s", m->predicted ? "predicted" : "as given");
    return buf;
}

/* ---- values ---- */

static ds_rc text_of(const reader *r, const ds_yaml *v, const char **out)
{
    *out = NULL;
    if (v->kind != DS_YAML_SCALAR)
        return ds_yaml_fail(r->d, v, r->err, "%s: %s, expected one value", v->key ? v->key : "value", ds_yaml_kind_name(v->kind));
    if (!*v->text)
        return ds_yaml_fail(r->d, v, r->err, "%s: no value", v->key ? v->key : "value");
    *out = v->text;
    return DS_OK;
}

static ds_rc quantity(const reader *r, const ds_yaml *v, ds_sim_kind kind, double min, double max, double *out)
{
    const char *text;
    char q[112], u[128];
    double x;
    ds_rc rc = text_of(r, v, &text);

    if (rc != DS_OK)
        return rc;
    ds_quote(q, sizeof q, text, strnlen(text, 40));
    if (!ds_sim_quantity(text, kind, &x)) {
        if (kind == DS_SIM_COUNT)
            return ds_yaml_fail(r->d, v, r->err, "%s: '%s', expected a number", v->key ? v->key : "value", q);
        return ds_yaml_fail(r->d, v, r->err, "%s: '%s', expected a number with a unit: %s", v->key ? v->key : "value", q,
                            ds_sim_units(u, sizeof u, kind));
    }
    if (x < min || (max > 0.0 && x > max))
        return ds_yaml_fail(r->d, v, r->err, "%s: '%s' is too %s", v->key ? v->key : "value", q, x < min ? "small" : "large");
    *out = x;
    return DS_OK;
}

static ds_rc one_of(const reader *r, const ds_yaml *v, const char *const *choices, int *out)
{
    const char *text;
    char q[112], all[128] = "";
    ds_rc rc = text_of(r, v, &text);

    if (rc != DS_OK)
        return rc;
    for (int i = 0; choices[i]; i++) {
        size_t n = strlen(all);
        if (strcmp(text, choices[i]) == 0) {
            *out = i;
            return DS_OK;
        }
        snprintf(all + n, sizeof all - n, "%s%s", n ? ", " : "", choices[i]);
    }
    return ds_yaml_fail(r->d, v, r->err, "%s: '%s', expected one of %s", v->key, ds_quote(q, sizeof q, text, strnlen(text, 40)), all);
}

static ds_rc word(const reader *r, const ds_yaml *v, char *out, size_t room)
{
    const char *text;
    ds_rc rc = text_of(r, v, &text);

    if (rc != DS_OK)
        return rc;
    if (strlen(text) >= room)
        return ds_yaml_fail(r->d, v, r->err, "%s: longer than %zu bytes", v->key, room - 1);
    strcpy(out, text);
    return DS_OK;
}

/* A number, or a map that says how it is spread. */
static ds_rc spread(const reader *r, const ds_yaml *v, ds_sim_kind kind, ds_sim_dist *out)
{
    const ds_yaml *a, *b;
    double x = 0.0, y = 0.0;
    ds_rc rc;

    if (v->kind == DS_YAML_SCALAR) {
        out->shape = DS_SIM_FIXED;
        return quantity(r, v, kind, 0.0, 0.0, &out->a);
    }
    if ((a = ds_yaml_get(v, "mean")) && v->n == 1) {
        out->shape = DS_SIM_EXPONENTIAL;
        return quantity(r, a, kind, 1e-9, 0.0, &out->a);
    }
    if ((a = ds_yaml_get(v, "from")) && (b = ds_yaml_get(v, "to")) && v->n == 2) {
        out->shape = DS_SIM_EVEN;
        rc = quantity(r, a, kind, 0.0, 0.0, &out->a);
        rc = rc == DS_OK ? quantity(r, b, kind, out->a, 0.0, &out->b) : rc;
        return rc;
    }
    if ((a = ds_yaml_get(v, "p50")) && (b = ds_yaml_get(v, "p99")) && v->n == 2) {
        rc = quantity(r, a, kind, 1e-9, 0.0, &x);
        rc = rc == DS_OK ? quantity(r, b, kind, x, 0.0, &y) : rc;
        if (rc == DS_OK)
            *out = (ds_sim_dist){ DS_SIM_LOGNORMAL, log(x), log(y / x) / 2.3263478740408408 };
        return rc;
    }
    return ds_yaml_fail(r->d, v, r->err, "%s: expected a number, {mean}, {from, to} or {p50, p99}", v->key ? v->key : "value");
}

static ds_rc read_field(const reader *r, const ds_yaml *v, const field *f, char *dst)
{
    double x;
    ds_rc rc;

    switch (f->type) {
    case QUANTITY:
        return quantity(r, v, f->kind, f->min, f->max, (double *)(void *)(dst + f->at));
    case NUMBER:
        rc = quantity(r, v, DS_SIM_COUNT, f->min, f->max, &x);
        if (rc == DS_OK && x != floor(x))
            return ds_yaml_fail(r->d, v, r->err, "%s: expected a whole number", v->key);
        if (rc == DS_OK)
            *(uint32_t *)(void *)(dst + f->at) = (uint32_t)x;
        return rc;
    case WORD:
        return word(r, v, dst + f->at, (size_t)f->max);
    case CHOICE:
        return one_of(r, v, f->choices, (int *)(void *)(dst + f->at));
    case DIST:
        return spread(r, v, f->kind, (ds_sim_dist *)(void *)(dst + f->at));
    default:
        return DS_OK;
    }
}

/* Reads a map by its table, which ends with a key NULL. `what` is what messages call it. */
static ds_rc read_map(const reader *r, const ds_yaml *v, const field *table, const char *what, void *dst)
{
    const char *known[32];
    uint32_t n = 0;
    ds_rc rc = DS_OK;

    if (v->kind != DS_YAML_MAP)
        return ds_yaml_fail(r->d, v, r->err, "%s: %s, expected a map", what, ds_yaml_kind_name(v->kind));
    for (const field *f = table; f->key; f++)
        known[n++] = f->key;
    known[n] = NULL;
    for (const ds_yaml *m = v->child; m && rc == DS_OK; m = m->next) {
        const field *f = table;
        char q[112];
        while (f->key && strcmp(f->key, m->key) != 0)
            f++;
        if (!f->key) {
            const char *near = ds_opt_nearest(m->key, known);
            return ds_yaml_fail(r->d, m, r->err, "'%s': no key of %s%s%s%s", ds_quote(q, sizeof q, m->key, strnlen(m->key, 40)), what,
                                near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
        }
        rc = read_field(r, m, f, dst);
    }
    for (const field *f = table; f->key && rc == DS_OK; f++)
        if (f->required && !ds_yaml_get(v, f->key))
            rc = ds_yaml_fail(r->d, v, r->err, "%s: %s is missing", what, f->key);
    return rc;
}

/* ---- machines ---- */

typedef struct {
    double step_s, row_s, row_context_s, row_row_s, draft_s, price;
    char steps[1024];
    double bandwidth, peak, reached, weights, row_flop, context_flop, context_bytes, overhead_s;
} machine_keys;

#define AT(type, member) offsetof(type, member)
#define MACHINE(name, k, member)                                                 \
    {                                                                            \
        .key = name, .type = QUANTITY, .kind = k, .at = AT(machine_keys, member) \
    }

static const field machine_table[] = {
    MACHINE("step", DS_SIM_TIME, step_s),
    MACHINE("row", DS_SIM_TIME, row_s),
    MACHINE("row_context", DS_SIM_TIME, row_context_s),
    MACHINE("row_row", DS_SIM_TIME, row_row_s),
    MACHINE("draft", DS_SIM_TIME, draft_s),
    MACHINE("price", DS_SIM_PRICE, price),
    { .key = "steps", .type = WORD, .at = AT(machine_keys, steps), .max = sizeof((machine_keys *)0)->steps },
    { .key = "predicted", .type = PART },
    { 0 },
};

static const field predicted_table[] = {
    { .key = "bandwidth", .type = QUANTITY, .kind = DS_SIM_BYTE_RATE, .at = AT(machine_keys, bandwidth), .min = 1, .required = true },
    { .key = "peak", .type = QUANTITY, .kind = DS_SIM_FLOP_RATE, .at = AT(machine_keys, peak), .min = 1, .required = true },
    { .key = "reached", .type = QUANTITY, .kind = DS_SIM_SHARE, .at = AT(machine_keys, reached), .min = 1e-3, .max = 1, .required = true },
    { .key = "weights", .type = QUANTITY, .kind = DS_SIM_BYTES, .at = AT(machine_keys, weights), .required = true },
    { .key = "row_flop", .type = QUANTITY, .kind = DS_SIM_FLOP, .at = AT(machine_keys, row_flop), .required = true },
    { .key = "context_flop", .type = QUANTITY, .kind = DS_SIM_FLOP, .at = AT(machine_keys, context_flop) },
    { .key = "context_bytes", .type = QUANTITY, .kind = DS_SIM_BYTES, .at = AT(machine_keys, context_bytes) },
    { .key = "overhead", .type = QUANTITY, .kind = DS_SIM_TIME, .at = AT(machine_keys, overhead_s) },
    { 0 },
};

/* A name in the file is relative to the file. */
static ds_rc resolve(const reader *r, const ds_yaml *v, char *name, size_t room)
{
    char path[2048];

    if (name[0] == '/')
        return DS_OK;
    snprintf(path, sizeof path, "%s%s", r->dir, name);
    if (strlen(path) >= room)
        return ds_yaml_fail(r->d, v, r->err, "%s: its path is too long", v->key);
    strcpy(name, path);
    return DS_OK;
}

static ds_rc read_machine(const reader *r, const ds_yaml *v, ds_sim_machine *m)
{
    machine_keys k = { 0 };
    const ds_yaml *predicted = ds_yaml_get(v, "predicted");
    ds_rc rc = read_map(r, v, machine_table, "a machine", &k);

    if (rc == DS_OK)
        rc = word(r, &(ds_yaml){ .kind = DS_YAML_SCALAR, .text = v->key, .key = v->key, .line = v->line, .column = v->column }, m->name,
                  sizeof m->name);
    if (rc != DS_OK)
        return rc;
    m->predicted = predicted != NULL;
    m->draft_s = k.draft_s;
    m->price = k.price;
    if (predicted) {
        rc = read_map(r, predicted, predicted_table, "predicted", &k);
        if (rc != DS_OK)
            return rc;
        if (k.step_s > 0.0 || k.row_s > 0.0 || k.row_context_s > 0.0 || k.row_row_s > 0.0)
            return ds_yaml_fail(r->d, predicted, r->err, "predicted: the machine has measured times too");
        k.step_s = k.overhead_s + k.weights / (k.bandwidth * k.reached);
        k.row_s = k.row_flop / (k.peak * k.reached);
        k.row_context_s = k.context_flop / (k.peak * k.reached) + k.context_bytes / (k.bandwidth * k.reached);
        k.row_row_s = k.row_context_s / 2.0; /* of the rows of one chunk each sees half of them, in the mean */
    }
    if (k.steps[0]) {
        if (k.step_s + k.row_s + k.row_context_s + k.row_row_s > 0.0)
            return ds_yaml_fail(r->d, ds_yaml_get(v, "steps"), r->err, "steps: the machine has %s too",
                                predicted ? "a prediction" : "times");
        strcpy(m->steps_file, k.steps);
        return resolve(r, ds_yaml_get(v, "steps"), m->steps_file, sizeof m->steps_file);
    }
    if (k.step_s + k.row_s <= 0.0)
        return ds_yaml_fail(r->d, v, r->err, "%s: steps take no time: step or row is missing", v->key);
    /* As if it had been learnt: the policies ask whether it is known. */
    m->cost = (ds_cost){ .coef = { k.step_s * 1e6, k.row_s * 1e6, k.row_context_s * 1e6, k.row_row_s * 1e6 }, .n = 8 };
    return DS_OK;
}

static ds_rc read_machines(const reader *r, const ds_yaml *v)
{
    ds_rc rc = DS_OK;

    if (v->kind != DS_YAML_MAP || v->n == 0)
        return ds_yaml_fail(r->d, v, r->err, "machines: expected a map of machines by name");
    for (const ds_yaml *m = v->child; m && rc == DS_OK; m = m->next) {
        if (r->p->n_machines == DS_SIM_MACHINES)
            return ds_yaml_fail(r->d, m, r->err, "machines: more than %d", DS_SIM_MACHINES);
        rc = read_machine(r, m, &r->p->machines[r->p->n_machines++]);
    }
    return rc;
}

/* ---- instances ---- */

typedef struct {
    ds_sim_group g;
    int role;
    char machine[DS_SIM_NAME];
    double kv_tokens;
} group_keys;

static const field group_table[] = {
    { .key = "role", .type = CHOICE, .at = AT(group_keys, role), .choices = roles, .required = true },
    { .key = "machine", .type = WORD, .at = AT(group_keys, machine), .max = DS_SIM_NAME, .required = true },
    { .key = "count", .type = NUMBER, .at = AT(group_keys, g.count), .min = 1, .max = 1e6, .required = true },
    { .key = "ranks", .type = NUMBER, .at = AT(group_keys, g.ranks), .min = 1, .max = 1024 },
    { .key = "requests", .type = NUMBER, .at = AT(group_keys, g.requests), .min = 1, .max = 65536 },
    { .key = "kv", .type = QUANTITY, .kind = DS_SIM_TOKENS, .at = AT(group_keys, kv_tokens), .min = 1, .max = 1e15 },
    { .key = "rows", .type = NUMBER, .at = AT(group_keys, g.rows), .min = 128, .max = 1 << 24 },
    { .key = "prompts", .type = NUMBER, .at = AT(group_keys, g.prompts), .min = 1, .max = 16 },
    { .key = "budget", .type = QUANTITY, .kind = DS_SIM_TIME, .at = AT(group_keys, g.budget_s), .max = 60 },
    { 0 },
};

static ds_rc read_group(const reader *r, const ds_yaml *v, ds_sim_group *g)
{
    group_keys k = { .g = { .ranks = 1, .requests = 128, .rows = 8192, .prompts = 16 }, .kv_tokens = 1e15 };
    ds_rc rc = read_map(r, v, group_table, "instances", &k);
    uint32_t m = 0;
    char q[112];

    if (rc != DS_OK)
        return rc;
    while (m < r->p->n_machines && strcmp(r->p->machines[m].name, k.machine) != 0)
        m++;
    if (m == r->p->n_machines)
        return ds_yaml_fail(r->d, ds_yaml_get(v, "machine"), r->err, "machine: '%s' isn't one of the machines",
                            ds_quote(q, sizeof q, k.machine, strlen(k.machine)));
    *g = k.g;
    g->role = (ds_sim_role)k.role;
    g->machine = m;
    g->kv_tokens = (uint64_t)k.kv_tokens;
    if (g->count % r->p->thin)
        return ds_yaml_fail(r->d, ds_yaml_get(v, "count"), r->err, "count: %u can't be divided by thin, %u", g->count, r->p->thin);
    g->count /= r->p->thin;
    return DS_OK;
}

static ds_rc read_groups(const reader *r, const ds_yaml *v)
{
    uint64_t ranks = 0;
    bool has[DS_SIM_ROLES] = { 0 };
    ds_rc rc = DS_OK;

    if (v->kind != DS_YAML_LIST || v->n == 0)
        return ds_yaml_fail(r->d, v, r->err, "instances: expected a list of groups");
    for (const ds_yaml *m = v->child; m && rc == DS_OK; m = m->next) {
        if (r->p->n_groups == DS_SIM_GROUPS)
            return ds_yaml_fail(r->d, m, r->err, "instances: more than %d groups", DS_SIM_GROUPS);
        rc = read_group(r, m, &r->p->groups[r->p->n_groups]);
        if (rc != DS_OK)
            return rc;
        ranks += (uint64_t)r->p->groups[r->p->n_groups].count * r->p->groups[r->p->n_groups].ranks;
        has[r->p->groups[r->p->n_groups++].role] = true;
        if (ranks > DS_SIM_RANKS)
            return ds_yaml_fail(r->d, m, r->err, "instances: %llu ranks, at most %d; thin the load and the instances",
                                (unsigned long long)ranks, DS_SIM_RANKS);
    }
    if (has[DS_SIM_MIXED] && (has[DS_SIM_PREFILL] || has[DS_SIM_DECODE]))
        return ds_yaml_fail(r->d, v, r->err, "instances: mixed ones beside prefill or decode");
    if (!has[DS_SIM_MIXED] && !(has[DS_SIM_PREFILL] && has[DS_SIM_DECODE]))
        return ds_yaml_fail(r->d, v, r->err, "instances: %s is missing", has[DS_SIM_PREFILL] ? "decode" : "prefill");
    return DS_OK;
}

/* ---- load ---- */

typedef struct {
    ds_sim_load l;
    int form;
    double sessions;
} load_keys;

#define LOAD_COMMON                                                                                     \
    { .key = "name", .type = WORD, .at = AT(load_keys, l.name), .max = DS_SIM_NAME, .required = true }, \
        { .key = "priority", .type = NUMBER, .at = AT(load_keys, l.priority), .max = 3 },               \
    {                                                                                                   \
        .key = "ttl", .type = QUANTITY, .kind = DS_SIM_TIME, .at = AT(load_keys, l.ttl_s)               \
    }

static const field trace_table[] = {
    LOAD_COMMON,
    { .key = "trace", .type = WORD, .at = AT(load_keys, l.trace), .max = sizeof((ds_sim_load *)0)->trace, .required = true },
    { .key = "form", .type = CHOICE, .at = AT(load_keys, form), .choices = forms, .required = true },
    { .key = "speed", .type = QUANTITY, .kind = DS_SIM_COUNT, .at = AT(load_keys, l.speed), .min = 1e-6, .max = 1e6 },
    { 0 },
};

static const field rate_table[] = {
    LOAD_COMMON,
    { .key = "rate", .type = QUANTITY, .kind = DS_SIM_RATE, .at = AT(load_keys, l.rate), .min = 1e-9, .max = 1e9, .required = true },
    { .key = "input", .type = DIST, .kind = DS_SIM_TOKENS, .at = AT(load_keys, l.input), .required = true },
    { .key = "output", .type = DIST, .kind = DS_SIM_TOKENS, .at = AT(load_keys, l.output), .required = true },
    { .key = "shared", .type = QUANTITY, .kind = DS_SIM_TOKENS, .at = AT(load_keys, l.shared_tokens), .max = DS_SIM_TRACE_TOKENS },
    { .key = "texts", .type = NUMBER, .at = AT(load_keys, l.texts), .min = 1, .max = 1e9 },
    { 0 },
};

static const field sessions_table[] = {
    LOAD_COMMON,
    { .key = "sessions", .type = QUANTITY, .kind = DS_SIM_RATE, .at = AT(load_keys, sessions), .min = 1e-9, .max = 1e9, .required = true },
    { .key = "turns", .type = DIST, .kind = DS_SIM_COUNT, .at = AT(load_keys, l.turns), .required = true },
    { .key = "input", .type = DIST, .kind = DS_SIM_TOKENS, .at = AT(load_keys, l.input), .required = true },
    { .key = "growth", .type = DIST, .kind = DS_SIM_TOKENS, .at = AT(load_keys, l.growth), .required = true },
    { .key = "output", .type = DIST, .kind = DS_SIM_TOKENS, .at = AT(load_keys, l.output), .required = true },
    { .key = "gap", .type = DIST, .kind = DS_SIM_TIME, .at = AT(load_keys, l.gap_s), .required = true },
    { .key = "reset", .type = QUANTITY, .kind = DS_SIM_SHARE, .at = AT(load_keys, l.reset), .max = 1 },
    { .key = "context", .type = QUANTITY, .kind = DS_SIM_TOKENS, .at = AT(load_keys, l.context), .min = 1, .max = DS_SIM_TRACE_TOKENS },
    { 0 },
};

static ds_rc read_load(const reader *r, const ds_yaml *v, ds_sim_load *l)
{
    load_keys k = { .l = { .speed = 1.0, .ttl_s = INFINITY, .context = 1 << 20 } };
    const ds_yaml *trace = ds_yaml_get(v, "trace");
    ds_rc rc;

    if (v->kind == DS_YAML_MAP && !trace && !ds_yaml_get(v, "rate") && !ds_yaml_get(v, "sessions"))
        return ds_yaml_fail(r->d, v, r->err, "load: trace, rate or sessions is missing");
    k.l.kind = trace ? DS_SIM_LOAD_TRACE : ds_yaml_get(v, "rate") ? DS_SIM_LOAD_RATE : DS_SIM_LOAD_SESSIONS;
    rc = read_map(r, v,
                  trace                          ? trace_table
                  : k.l.kind == DS_SIM_LOAD_RATE ? rate_table
                                                 : sessions_table,
                  trace                          ? "a load from a trace"
                  : k.l.kind == DS_SIM_LOAD_RATE ? "a load by rate"
                                                 : "a load of sessions",
                  &k);
    if (rc != DS_OK)
        return rc;
    if ((k.l.shared_tokens > 0.0) != (k.l.texts > 0))
        return ds_yaml_fail(r->d, v, r->err, "load: shared and texts go together");
    if (trace && r->p->thin > 1)
        return ds_yaml_fail(r->d, trace, r->err, "trace: rows of a trace share texts and can't be thinned");
    *l = k.l;
    l->form = (ds_sim_form)k.form;
    if (l->kind == DS_SIM_LOAD_SESSIONS)
        l->rate = k.sessions;
    l->rate /= r->p->thin;
    if (trace)
        return resolve(r, trace, l->trace, sizeof l->trace);
    return DS_OK;
}

static ds_rc read_loads(const reader *r, const ds_yaml *v)
{
    ds_rc rc = DS_OK;

    if (v->kind != DS_YAML_LIST || v->n == 0)
        return ds_yaml_fail(r->d, v, r->err, "load: expected a list");
    for (const ds_yaml *m = v->child; m && rc == DS_OK; m = m->next) {
        if (r->p->n_loads == DS_SIM_LOADS)
            return ds_yaml_fail(r->d, m, r->err, "load: more than %d", DS_SIM_LOADS);
        rc = read_load(r, m, &r->p->loads[r->p->n_loads]);
        for (uint32_t i = 0; i < r->p->n_loads && rc == DS_OK; i++)
            if (strcmp(r->p->loads[i].name, r->p->loads[r->p->n_loads].name) == 0)
                rc = ds_yaml_fail(r->d, ds_yaml_get(m, "name"), r->err, "name: another load has the same");
        r->p->n_loads++;
    }
    return rc;
}

/* ---- events ---- */

static const field change_table[] = {
    { .key = "at", .type = QUANTITY, .kind = DS_SIM_TIME, .at = AT(ds_sim_change, at_s), .max = 1e9, .required = true },
    { .key = "fail", .type = PART },
    { .key = "slow", .type = PART },
    { .key = "restart", .type = PART },
    { .key = "traffic", .type = PART },
    { .key = "count", .type = NUMBER, .at = AT(ds_sim_change, count), .min = 1, .max = DS_SIM_RANKS },
    { .key = "factor", .type = QUANTITY, .kind = DS_SIM_COUNT, .at = AT(ds_sim_change, factor), .min = 1, .max = 1e6 },
    { .key = "lasts", .type = QUANTITY, .kind = DS_SIM_TIME, .at = AT(ds_sim_change, lasts_s), .max = 1e9 },
    { 0 },
};

static ds_rc read_change(const reader *r, const ds_yaml *v, ds_sim_change *c)
{
    static const char *const kinds[] = { "fail", "slow", "restart", "traffic" };
    const ds_yaml *which = NULL;
    int role = 0;
    bool any = false;
    ds_rc rc;

    *c = (ds_sim_change){ .count = 1, .factor = 1.0, .lasts_s = INFINITY };
    rc = read_map(r, v, change_table, "an event", c);
    if (rc != DS_OK)
        return rc;
    for (uint32_t k = 0; k < 4; k++) {
        const ds_yaml *m = ds_yaml_get(v, kinds[k]);
        if (m && which)
            return ds_yaml_fail(r->d, m, r->err, "%s: the event is %s already", kinds[k], which->key);
        if (m) {
            which = m;
            c->what = (ds_sim_what)k;
        }
    }
    if (!which)
        return ds_yaml_fail(r->d, v, r->err, "an event: fail, slow, restart or traffic is missing");
    if (c->what == DS_SIM_TRAFFIC)
        return quantity(r, which, DS_SIM_COUNT, 0.0, 1e6, &c->factor);
    rc = one_of(r, which, roles, &role);
    c->role = (ds_sim_role)role;
    for (uint32_t g = 0; g < r->p->n_groups; g++)
        any = any || r->p->groups[g].role == c->role;
    if (rc == DS_OK && !any)
        rc = ds_yaml_fail(r->d, which, r->err, "%s: there is no instance of this role", which->key);
    if (rc == DS_OK && c->what == DS_SIM_SLOW && !ds_yaml_get(v, "factor"))
        rc = ds_yaml_fail(r->d, v, r->err, "slow: factor is missing");
    if (rc == DS_OK && c->what == DS_SIM_RESTART && !isfinite(c->lasts_s))
        rc = ds_yaml_fail(r->d, v, r->err, "restart: lasts is missing");
    return rc;
}

static ds_rc read_changes(const reader *r, const ds_yaml *v)
{
    ds_rc rc = DS_OK;

    if (v->kind != DS_YAML_LIST)
        return ds_yaml_fail(r->d, v, r->err, "events: expected a list");
    for (const ds_yaml *m = v->child; m && rc == DS_OK; m = m->next) {
        if (r->p->n_changes == DS_SIM_EVENTS)
            return ds_yaml_fail(r->d, m, r->err, "events: more than %d", DS_SIM_EVENTS);
        rc = read_change(r, m, &r->p->changes[r->p->n_changes++]);
    }
    return rc;
}

/* ---- the rest ---- */

typedef struct {
    ds_sim_plan *p;
    double capacity, ttl, token, fetch, window, transfer, latency, round, first, gap, wait, seed;
    int prefill, decode;
    uint32_t live;
} rest_keys;

static const field store_table[] = {
    { .key = "capacity", .type = QUANTITY, .kind = DS_SIM_BYTES, .at = AT(rest_keys, capacity), .min = 1 },
    { .key = "ttl", .type = QUANTITY, .kind = DS_SIM_TIME, .at = AT(rest_keys, ttl) },
    { .key = "fetch", .type = QUANTITY, .kind = DS_SIM_BYTE_RATE, .at = AT(rest_keys, fetch), .min = 1 },
    { .key = "window", .type = QUANTITY, .kind = DS_SIM_TIME, .at = AT(rest_keys, window) },
    { 0 },
};

static const field balance_table[] = {
    { .key = "prefill", .type = CHOICE, .at = AT(rest_keys, prefill), .choices = rules },
    { .key = "decode", .type = CHOICE, .at = AT(rest_keys, decode), .choices = rules },
    { .key = "round", .type = QUANTITY, .kind = DS_SIM_TIME, .at = AT(rest_keys, round), .min = 1e-3, .max = 60 },
    { 0 },
};

static const field objective_table[] = {
    { .key = "first_token", .type = QUANTITY, .kind = DS_SIM_TIME, .at = AT(rest_keys, first) },
    { .key = "gap", .type = QUANTITY, .kind = DS_SIM_TIME, .at = AT(rest_keys, gap) },
    { 0 },
};

static const field limits_table[] = {
    { .key = "live", .type = NUMBER, .at = AT(rest_keys, live), .min = 1, .max = 1 << 24 },
    { .key = "wait", .type = QUANTITY, .kind = DS_SIM_TIME, .at = AT(rest_keys, wait) },
    { 0 },
};

static const field top_table[] = {
    { .key = "seed", .type = QUANTITY, .kind = DS_SIM_COUNT, .at = AT(rest_keys, seed), .max = 9007199254740992.0 },
    { .key = "duration", .type = PART },
    { .key = "warmup", .type = PART },
    { .key = "thin", .type = PART },
    { .key = "machines", .type = PART, .required = true },
    { .key = "instances", .type = PART, .required = true },
    { .key = "load", .type = PART, .required = true },
    { .key = "token", .type = QUANTITY, .kind = DS_SIM_BYTES, .at = AT(rest_keys, token), .min = 1e-3 },
    { .key = "store", .type = PART },
    { .key = "transfer", .type = QUANTITY, .kind = DS_SIM_BYTE_RATE, .at = AT(rest_keys, transfer), .min = 1 },
    { .key = "latency", .type = QUANTITY, .kind = DS_SIM_TIME, .at = AT(rest_keys, latency), .max = 60 },
    { .key = "drafts", .type = PART },
    { .key = "balance", .type = PART },
    { .key = "objective", .type = PART },
    { .key = "limits", .type = PART },
    { .key = "events", .type = PART },
    { .key = "sweep", .type = PART },
    { .key = "plan", .type = PART },
    { 0 },
};

static const field sweep_table[] = {
    { .key = "load", .type = PART },
    { .key = "capacity", .type = PART },
    { .key = "ttl", .type = PART },
    { 0 },
};

/* A rising list of quantities. */
static ds_rc read_rising(const reader *r, const ds_yaml *v, ds_sim_kind kind, double min, double *out, uint32_t *n)
{
    ds_rc rc = DS_OK;

    if (!v)
        return DS_OK;
    if (v->kind != DS_YAML_LIST || v->n == 0 || v->n > DS_SIM_SWEEP)
        return ds_yaml_fail(r->d, v, r->err, "%s: expected a list, at most %d long", v->key, DS_SIM_SWEEP);
    for (const ds_yaml *m = v->child; m && rc == DS_OK; m = m->next) {
        rc = quantity(r, m, kind, min, 0.0, &out[*n]);
        if (rc == DS_OK && *n > 0 && out[*n] <= out[*n - 1])
            rc = ds_yaml_fail(r->d, m, r->err, "%s: doesn't rise", v->key);
        ++*n;
    }
    return rc;
}

static ds_rc read_sweep(const reader *r, const ds_yaml *v)
{
    ds_sim_plan *p = r->p;
    ds_rc rc = read_map(r, v, sweep_table, "sweep", NULL);

    if (rc == DS_OK)
        rc = read_rising(r, ds_yaml_get(v, "load"), DS_SIM_COUNT, 1e-3, p->sweep_loads, &p->n_sweep_loads);
    if (rc == DS_OK)
        rc = read_rising(r, ds_yaml_get(v, "capacity"), DS_SIM_BYTES, 1.0, p->sweep_capacities, &p->n_sweep_capacities);
    if (rc == DS_OK)
        rc = read_rising(r, ds_yaml_get(v, "ttl"), DS_SIM_TIME, 0.0, p->sweep_ttls, &p->n_sweep_ttls);
    if (rc == DS_OK && (p->n_sweep_capacities > 0) != (p->n_sweep_ttls > 0))
        rc = ds_yaml_fail(r->d, v, r->err, "sweep: capacity and ttl go together");
    if (rc == DS_OK && p->n_sweep_ttls > 0 && !p->has_store)
        rc = ds_yaml_fail(r->d, v, r->err, "sweep: there is no store");
    return rc;
}

typedef struct {
    double good;
    uint32_t failures, most;
} search_keys;

static const field search_table[] = {
    { .key = "good", .type = QUANTITY, .kind = DS_SIM_SHARE, .at = AT(search_keys, good), .min = 1e-3, .max = 1, .required = true },
    { .key = "failures", .type = NUMBER, .at = AT(search_keys, failures), .max = 1000 },
    { .key = "most", .type = NUMBER, .at = AT(search_keys, most), .min = 1, .max = 1e6 },
    { 0 },
};

static ds_rc read_search(const reader *r, const ds_yaml *v)
{
    search_keys k = { .most = 64 * r->p->thin };
    ds_sim_plan *p = r->p;
    uint64_t ranks = 0;
    ds_rc rc = read_map(r, v, search_table, "plan", &k);

    if (rc != DS_OK)
        return rc;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        ranks += (uint64_t)(k.most / p->thin) * p->groups[g].ranks;
        for (uint32_t h = 0; h < g; h++)
            if (p->groups[g].role == p->groups[h].role)
                return ds_yaml_fail(r->d, v, r->err, "plan: %s instances are of two groups; one of each role can be planned",
                                    ds_sim_role_name(p->groups[g].role));
    }
    if (k.most < p->thin)
        return ds_yaml_fail(r->d, v, r->err, "plan: most, %u, is less than thin, %u", k.most, p->thin);
    if (ranks > DS_SIM_RANKS)
        return ds_yaml_fail(r->d, v, r->err, "plan: most, %u, makes %llu ranks, at most %d; thin the load", k.most,
                            (unsigned long long)ranks, DS_SIM_RANKS);
    if (!isfinite(p->first_s) && !isfinite(p->gap_s))
        return ds_yaml_fail(r->d, v, r->err, "plan: there is no objective");
    p->has_search = true;
    p->search_good = k.good;
    p->search_failures = k.failures;
    p->search_most = k.most / p->thin;
    return DS_OK;
}

static ds_rc read_drafts(const reader *r, const ds_yaml *v)
{
    ds_rc rc = DS_OK;

    if (v->kind != DS_YAML_LIST || v->n == 0 || v->n > DS_SPEC_MAX)
        return ds_yaml_fail(r->d, v, r->err, "drafts: expected a list of shares, one for each place, at most %d", DS_SPEC_MAX);
    for (const ds_yaml *m = v->child; m && rc == DS_OK; m = m->next)
        rc = quantity(r, m, DS_SIM_SHARE, 0.0, 1.0, &r->p->kept[r->p->n_kept++]);
    return rc;
}

static ds_rc read_part(const reader *r, const ds_yaml *root, const char *key, const field *table, void *dst)
{
    const ds_yaml *v = ds_yaml_get(root, key);

    return v ? read_map(r, v, table, key, dst) : DS_OK;
}

static ds_rc read_times(const reader *r, const ds_yaml *root)
{
    const ds_yaml *v;
    double x;
    ds_rc rc = DS_OK;

    if ((v = ds_yaml_get(root, "duration")))
        rc = quantity(r, v, DS_SIM_TIME, 1e-3, 1e9, &r->p->duration_s);
    if (rc == DS_OK && (v = ds_yaml_get(root, "warmup"))) {
        rc = quantity(r, v, DS_SIM_TIME, 0.0, 1e9, &r->p->warmup_s);
        if (rc == DS_OK && r->p->warmup_s >= r->p->duration_s)
            rc = ds_yaml_fail(r->d, v, r->err, "warmup: as long as the duration, or longer");
    }
    if (rc == DS_OK && (v = ds_yaml_get(root, "thin"))) {
        rc = quantity(r, v, DS_SIM_COUNT, 1.0, 1e6, &x);
        if (rc == DS_OK && x != floor(x))
            rc = ds_yaml_fail(r->d, v, r->err, "thin: expected a whole number");
        if (rc == DS_OK)
            r->p->thin = (uint32_t)x;
    }
    return rc;
}

static ds_rc read_all(const reader *r, const ds_yaml *root)
{
    rest_keys k = { .capacity = INFINITY,
                    .ttl = INFINITY,
                    .window = 600.0,
                    .round = 1.0,
                    .first = INFINITY,
                    .gap = INFINITY,
                    .wait = INFINITY,
                    .live = 1 << 17,
                    .token = 113920.0 / 128.0 };
    const ds_yaml *v;
    ds_sim_plan *p = r->p;
    bool endless = false;
    ds_rc rc = read_map(r, root, top_table, "the file", &k);

    if (rc != DS_OK || (rc = read_times(r, root)) != DS_OK || (rc = read_machines(r, ds_yaml_get(root, "machines"))) != DS_OK ||
        (rc = read_groups(r, ds_yaml_get(root, "instances"))) != DS_OK || (rc = read_loads(r, ds_yaml_get(root, "load"))) != DS_OK ||
        (rc = read_part(r, root, "store", store_table, &k)) != DS_OK || (rc = read_part(r, root, "balance", balance_table, &k)) != DS_OK ||
        (rc = read_part(r, root, "objective", objective_table, &k)) != DS_OK ||
        (rc = read_part(r, root, "limits", limits_table, &k)) != DS_OK)
        return rc;
    if ((v = ds_yaml_get(root, "drafts")) && (rc = read_drafts(r, v)) != DS_OK)
        return rc;
    if ((v = ds_yaml_get(root, "events")) && (rc = read_changes(r, v)) != DS_OK)
        return rc;
    for (uint32_t i = 0; i < p->n_loads; i++) {
        endless = endless || p->loads[i].kind != DS_SIM_LOAD_TRACE;
        if (!isfinite(p->loads[i].ttl_s))
            p->loads[i].ttl_s = k.ttl;
    }
    if (endless && !isfinite(p->duration_s))
        return ds_yaml_fail(r->d, root, r->err, "duration is missing: the load has no end of its own");
    p->seed = (uint64_t)k.seed;
    p->has_store = ds_yaml_get(root, "store") != NULL;
    p->capacity_bytes = k.capacity / p->thin;
    p->token_bytes = k.token;
    p->fetch_s_byte = k.fetch > 0.0 ? 1.0 / k.fetch : 0.0;
    p->window_s = k.window;
    p->transfer_s_byte = k.transfer > 0.0 ? 1.0 / k.transfer : 0.0;
    p->latency_s = k.latency;
    p->prefill = (ds_sim_rule)k.prefill;
    p->decode = (ds_sim_rule)k.decode;
    p->round_s = k.round;
    p->first_s = k.first;
    p->gap_s = k.gap;
    p->max_live = k.live;
    p->max_wait_s = k.wait;
    if ((v = ds_yaml_get(root, "sweep")) && (rc = read_sweep(r, v)) != DS_OK)
        return rc;
    return (v = ds_yaml_get(root, "plan")) ? read_search(r, v) : DS_OK;
}

ds_rc ds_sim_plan_parse(ds_sim_plan **out, const char *text, size_t n, const char *label, const char *dir, ds_err *err)
{
    ds_yaml_doc *d;
    ds_sim_plan *p;
    ds_rc rc = ds_yaml_parse(&d, text, n, label, err);

    *out = NULL;
    if (rc != DS_OK)
        return rc;
    p = calloc(1, sizeof *p);
    if (!p) {
        ds_yaml_free(d);
        return ds_fail(err, DS_E_NOMEM, "%s: out of memory", label);
    }
    p->duration_s = INFINITY;
    p->thin = 1;
    rc = read_all(&(reader){ .d = d, .label = label, .dir = dir, .p = p, .err = err }, ds_yaml_root(d));
    ds_yaml_free(d);
    if (rc == DS_OK)
        *out = p;
    else
        ds_sim_plan_free(p);
    return rc;
}

/* Costs that are fitted to measured steps. */
static ds_rc load_steps(ds_sim_plan *p, ds_err *err)
{
    for (uint32_t i = 0; i < p->n_machines; i++) {
        ds_sim_machine *m = &p->machines[i];
        ds_sim_measured measured;
        ds_rc rc;
        if (!m->steps_file[0])
            continue;
        rc = ds_sim_measured_read(&measured, m->steps_file, err);
        if (rc != DS_OK)
            return rc;
        m->cost = (ds_cost){ .n = 8 };
        memcpy(m->cost.coef, measured.cost.coef, sizeof m->cost.coef);
        m->steps = measured.steps;
        m->most_off = measured.most_off;
    }
    return DS_OK;
}

ds_rc ds_sim_plan_load(ds_sim_plan **out, const char *path, ds_err *err)
{
    char *text, label[104], dir[1024] = "";
    const char *slash = strrchr(path, '/');
    size_t n;
    ds_rc rc = ds_file_read(&text, &n, path, DS_YAML_MAX_BYTES, err);

    *out = NULL;
    if (rc != DS_OK)
        return rc;
    if (slash && (size_t)(slash - path) + 1 < sizeof dir)
        memcpy(dir, path, (size_t)(slash - path) + 1);
    rc = ds_sim_plan_parse(out, text, n, ds_file_label(label, sizeof label, path), dir, err);
    free(text);
    if (rc == DS_OK && (rc = load_steps(*out, err)) != DS_OK) {
        ds_sim_plan_free(*out);
        *out = NULL;
    }
    return rc;
}

void ds_sim_plan_free(ds_sim_plan *p)
{
    free(p);
}
