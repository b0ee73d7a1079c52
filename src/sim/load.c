#include "sim/load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/none.h"
#include "base/rng.h"

enum { GAP_ARRIVAL = 1, INPUT, OUTPUT, TEXT, TURNS, GROWTH, GAP, RESET, STREAMS = 16 }; /* what a random number is for */
enum { KEY_TEXT = 1, KEY_BLOCK, KEY_SESSION };
enum { TURN_BITS = 20 };

typedef struct {
    uint64_t number;  /* of the load's sessions */
    uint64_t context; /* tokens, with the last answer */
    uint32_t load, turn, turns, resets, next_free;
} session;

typedef struct {
    ds_sim_trace *trace;
    uint64_t number; /* of the next arrival */
    double own_s;    /* of the last arrival, by the load's clock */
    /* how far the load's clock was followed */
    double real_s, at_own_s, factor;
    uint32_t change;
} source;

struct ds_sim_loads {
    const ds_sim_plan *p;
    uint32_t order[DS_SIM_EVENTS], n_order; /* changes of traffic, by time */
    source s[DS_SIM_LOADS];
    session *sessions;
    uint32_t n_sessions, cap_sessions, free;
};

static uint64_t key_of(uint32_t kind, uint32_t load, uint64_t a, uint64_t b)
{
    uint64_t x = a * UINT64_C(0x9e3779b97f4a7c15) ^ b * UINT64_C(0xc2b2ae3d27d4eb4f) ^ (uint64_t)kind << 60 ^ (uint64_t)load << 48;

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (x ^ x >> 31) | 1;
}

/* ---- random numbers ---- */

static double draw(const ds_sim_loads *l, const ds_sim_dist *d, uint32_t load, uint32_t what, uint64_t index)
{
    uint64_t stream = (uint64_t)load * STREAMS + what;

    switch (d->shape) {
    case DS_SIM_EVEN:
        return d->a + (d->b - d->a) * ds_rng_unit(l->p->seed, stream, index);
    case DS_SIM_EXPONENTIAL:
        return -log1p(-ds_rng_unit(l->p->seed, stream, index)) * d->a;
    case DS_SIM_LOGNORMAL:
        return exp(d->a + d->b * ds_rng_normal(l->p->seed, stream, index));
    default:
        return d->a;
    }
}

static uint32_t whole(double x, double most)
{
    x = round(x);
    return x < 1.0 ? 1 : (uint32_t)(x < most ? x : most);
}

/* ---- clocks ---- */

static void order_changes(ds_sim_loads *l)
{
    for (uint32_t i = 0; i < l->p->n_changes; i++) {
        uint32_t at = l->n_order;
        if (l->p->changes[i].what != DS_SIM_TRAFFIC)
            continue;
        for (; at > 0 && l->p->changes[l->order[at - 1]].at_s > l->p->changes[i].at_s; at--)
            l->order[at] = l->order[at - 1];
        l->order[at] = i;
        l->n_order++;
    }
}

/* When a load's own clock, which only goes on, shows so much. INFINITY: never. */
static double real_time(const ds_sim_loads *l, source *s, double own_s)
{
    while (s->change < l->n_order) {
        const ds_sim_change *c = &l->p->changes[l->order[s->change]];
        double then = s->at_own_s + (c->at_s - s->real_s) * s->factor;
        if (own_s <= then)
            break;
        s->at_own_s = then;
        s->real_s = c->at_s;
        s->factor = c->factor;
        s->change++;
    }
    return s->factor > 0.0 ? s->real_s + (own_s - s->at_own_s) / s->factor : own_s > s->at_own_s ? INFINITY : s->real_s;
}

/* ---- arrivals ---- */

static ds_rc from_trace(ds_sim_loads *l, uint32_t load, ds_sim_ask *ask, bool *more, ds_err *err)
{
    ds_sim_row row;
    source *s = &l->s[load];
    double at_s;
    ds_rc rc = ds_sim_trace_next(s->trace, &row, more, err);

    if (rc != DS_OK || !*more)
        return rc;
    at_s = real_time(l, s, (double)row.at_ns / 1e9 / l->p->loads[load].speed);
    if (!(at_s < 1e9)) {
        *more = false;
        return DS_OK;
    }
    ask->at_ns = (uint64_t)(at_s * 1e9);
    ask->input = row.input;
    ask->output = row.output;
    if (l->p->loads[load].form == DS_SIM_ACCESS)
        ask->known_hit = row.cached;
    if (row.n_ids == 0)
        return DS_OK;
    ask->blocks = malloc(row.n_ids * sizeof *ask->blocks);
    if (!ask->blocks)
        return ds_fail(err, DS_E_NOMEM, "out of memory for a row of a trace");
    ask->n_blocks = (uint32_t)row.n_ids;
    for (uint32_t i = 0; i < ask->n_blocks; i++)
        ask->blocks[i] = key_of(KEY_BLOCK, load, row.ids[i], 0);
    return DS_OK;
}

static ds_rc new_session(ds_sim_loads *l, uint32_t load, uint64_t number, uint32_t *out, ds_err *err)
{
    const ds_sim_load *d = &l->p->loads[load];

    if (l->free == DS_NONE) {
        uint32_t cap = l->cap_sessions ? l->cap_sessions * 2 : 256;
        session *all = realloc(l->sessions, cap * sizeof *all);
        if (!all)
            return ds_fail(err, DS_E_NOMEM, "out of memory for %u sessions", cap);
        for (uint32_t i = l->cap_sessions; i < cap; i++)
            all[i].next_free = i + 1 < cap ? i + 1 : DS_NONE;
        l->free = l->cap_sessions;
        l->sessions = all;
        l->cap_sessions = cap;
    }
    *out = l->free;
    l->free = l->sessions[*out].next_free;
    l->n_sessions++;
    l->sessions[*out] =
        (session){ .number = number, .load = load, .turns = whole(draw(l, &d->turns, load, TURNS, number), 1 << TURN_BITS) };
    return DS_OK;
}

ds_rc ds_sim_loads_next(ds_sim_loads *l, uint32_t load, ds_sim_ask *ask, bool *more, ds_err *err)
{
    const ds_sim_load *d = &l->p->loads[load];
    source *s = &l->s[load];
    uint64_t number = s->number++;
    double at_s;

    *ask = (ds_sim_ask){ .load = load, .known_hit = DS_NONE, .session = DS_NONE };
    if (d->kind == DS_SIM_LOAD_TRACE)
        return from_trace(l, load, ask, more, err);
    s->own_s += -log1p(-ds_rng_unit(l->p->seed, (uint64_t)load * STREAMS + GAP_ARRIVAL, number)) / d->rate;
    at_s = real_time(l, s, s->own_s);
    *more = at_s < l->p->duration_s;
    if (!*more)
        return DS_OK;
    ask->at_ns = (uint64_t)(at_s * 1e9);
    if (d->kind == DS_SIM_LOAD_SESSIONS) {
        ds_rc rc = new_session(l, load, number, &ask->session, err);
        if (rc == DS_OK)
            ds_sim_loads_turn(l, ask->session, ask->at_ns, ask);
        return rc;
    }
    ask->input = whole(draw(l, &d->input, load, INPUT, number), DS_SIM_TRACE_TOKENS);
    ask->output = whole(draw(l, &d->output, load, OUTPUT, number), DS_SIM_TRACE_TOKENS);
    if (d->texts > 0) {
        uint64_t text = (uint64_t)(ds_rng_unit(l->p->seed, (uint64_t)load * STREAMS + TEXT, number) * d->texts);
        ask->text = key_of(KEY_TEXT, load, text, 0);
        ask->text_tokens = (uint32_t)(d->shared_tokens < ask->input ? d->shared_tokens : ask->input);
    }
    return DS_OK;
}

/* ---- sessions ---- */

void ds_sim_loads_turn(ds_sim_loads *l, uint32_t which, uint64_t now_ns, ds_sim_ask *ask)
{
    session *s = &l->sessions[which];
    const ds_sim_load *d = &l->p->loads[s->load];
    uint64_t index = s->number << TURN_BITS | s->turn;
    double input = s->turn > 0 ? (double)s->context + draw(l, &d->growth, s->load, GROWTH, index) : 0.0;
    bool anew = s->turn == 0 || input > d->context || ds_rng_unit(l->p->seed, (uint64_t)s->load * STREAMS + RESET, index) < d->reset;

    if (anew) {
        input = draw(l, &d->input, s->load, INPUT, index);
        s->resets += s->turn > 0;
    }
    *ask = (ds_sim_ask){ .at_ns = now_ns,
                         .load = s->load,
                         .input = whole(input, d->context),
                         .output = whole(draw(l, &d->output, s->load, OUTPUT, index), DS_SIM_TRACE_TOKENS),
                         .text = key_of(KEY_SESSION, s->load, s->number, s->resets),
                         .text_grows = true,
                         .known_hit = DS_NONE,
                         .session = which };
    ask->text_tokens = ask->input;
    s->turn++;
}

uint64_t ds_sim_loads_answered(ds_sim_loads *l, uint32_t which, const ds_sim_ask *ask, uint64_t now_ns)
{
    session *s = &l->sessions[which];
    double gap_s;

    s->context = (uint64_t)ask->input + ask->output;
    if (s->turn >= s->turns) {
        ds_sim_loads_end(l, which);
        return UINT64_MAX;
    }
    gap_s = draw(l, &l->p->loads[s->load].gap_s, s->load, GAP, s->number << TURN_BITS | s->turn);
    return now_ns + (uint64_t)((gap_s < 1e9 ? gap_s : 1e9) * 1e9);
}

void ds_sim_loads_end(ds_sim_loads *l, uint32_t which)
{
    l->sessions[which].next_free = l->free;
    l->free = which;
    l->n_sessions--;
}

uint32_t ds_sim_loads_sessions(const ds_sim_loads *l)
{
    return l->n_sessions;
}

/* ---- all of them ---- */

ds_rc ds_sim_loads_create(ds_sim_loads **out, const ds_sim_plan *p, ds_err *err)
{
    ds_sim_loads *l = calloc(1, sizeof *l);
    ds_rc rc = DS_OK;

    *out = NULL;
    if (!l)
        return ds_fail(err, DS_E_NOMEM, "out of memory for the load");
    l->p = p;
    l->free = DS_NONE;
    order_changes(l);
    for (uint32_t i = 0; i < p->n_loads && rc == DS_OK; i++) {
        l->s[i].factor = 1.0;
        if (p->loads[i].kind == DS_SIM_LOAD_TRACE)
            rc = ds_sim_trace_open(&l->s[i].trace, p->loads[i].trace, p->loads[i].form, err);
    }
    if (rc == DS_OK)
        *out = l;
    else
        ds_sim_loads_destroy(l);
    return rc;
}

void ds_sim_loads_destroy(ds_sim_loads *l)
{
    if (!l)
        return;
    for (uint32_t i = 0; i < DS_SIM_LOADS; i++)
        ds_sim_trace_close(l->s[i].trace);
    free(l->sessions);
    free(l);
}
