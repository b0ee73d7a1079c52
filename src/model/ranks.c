/* A runner among other ranks: what all do next, and the experts of all rows on the ranks that have them. */
#include <string.h>

#include "model/model_internal.h"

/* What a rank says before a unit. */
typedef struct {
    uint32_t unit, passes;
    uint8_t pad[DS_COMM_WORD - 8];
} wish;
_Static_assert(sizeof(wish) == DS_COMM_WORD, "a word");

uint32_t ds_ranks_guests(const ds_model *m, const ds_runner_opts *o)
{
    return m->ranks > 1 ? ds_exchange_guests(m->ranks, o->max_rows) : 0;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

ds_rc ds_ranks_init(ds_runner *r, ds_err *err)
{
    const ds_config *c = &r->m->c;

    if (!r->o.comm)
        return DS_OK;
    return ds_exchange_create(&r->exchange, r->o.comm,
                              &(ds_exchange_opts){ .max_rows = r->o.max_rows,
                                                   .max_k = larger(c->num_experts_per_tok, c->dspark_num_experts_per_tok),
                                                   .max_d = c->hidden_size },
                              err);
}

/* The others are lost for good: a model without their experts can do nothing. */
static ds_rc lose(ds_runner *r, const ds_err *why, ds_err *err)
{
    if (r->lost.rc == DS_OK)
        ds_fail(&r->lost, DS_E_DEVICE, "%s", why->msg);
    return ds_fail(err, DS_E_DEVICE, "%s", r->lost.msg);
}

/* ---- experts ----------------------------------------------------------------------------------------------------- */

typedef struct {
    ds_runner *r;
    uint32_t layer;
} at_layer;

static void read_bytes(void *ctx, void *host, const void *from, size_t bytes)
{
    ds_runner *r = ((at_layer *)ctx)->r;

    r->fn->read(r->dev, r->stream, host, from, bytes);
}

static void write_bytes(void *ctx, void *to, const void *host, size_t bytes)
{
    ds_runner *r = ((at_layer *)ctx)->r;

    r->fn->write(r->dev, r->stream, to, host, bytes);
}

/* At most max_rows at a time: so much scratch there is. */
static void compute(void *ctx, uint32_t first, uint32_t n)
{
    at_layer *a = ctx;

    for (uint32_t some; n > 0; first += some, n -= some) {
        some = n < a->r->o.max_rows ? n : a->r->o.max_rows;
        ds_layer_experts(a->r, a->layer, a->r->rlocal, first, some);
    }
}

void ds_ranks_experts(ds_runner *r, uint32_t layer, uint32_t n_rows)
{
    static const ds_exchange_fns fns = { read_bytes, write_bytes, compute };
    const ds_w_layer *w = &r->m->w.layer[layer];
    ds_err err;

    if (!r->exchange || r->lost.rc != DS_OK)
        return;
    if (ds_exchange_run(r->exchange,
                        &(ds_exchange_call){ .fn = &fns,
                                             .ctx = &(at_layer){ r, layer },
                                             .rows = n_rows,
                                             .k = w->k,
                                             .d = r->m->c.hidden_size,
                                             .sel = r->rsel,
                                             .x = r->xn,
                                             .w = r->rw,
                                             .local = r->rlocal,
                                             .part = r->part,
                                             .place = w->place,
                                             .n_experts = w->n_experts },
                        &err) != DS_OK)
        lose(r, &err, NULL);
}

/* ---- units ------------------------------------------------------------------------------------------------------- */

static void take_part(ds_runner *r, uint32_t first, uint32_t end)
{
    for (uint32_t l = first; l < end; l++)
        ds_ranks_experts(r, l, 0);
}

void ds_ranks_rest(ds_runner *r)
{
    for (; r->passes_left > 0; r->passes_left--)
        take_part(r, r->m->t.first_decoder, r->m->c.num_hidden_layers);
}

/* The unit that comes first of all that ranks wish for, and the most passes that one of them has. */
static ds_rc agree(ds_runner *r, ds_unit what, uint32_t passes, wish *next, ds_err *err)
{
    wish mine = { .unit = what, .passes = passes }, all[DS_COMM_MAX_RANKS];
    ds_err why;

    if (r->lost.rc != DS_OK || r->o.comm->fn->agree(r->o.comm, &mine, all, &why) != DS_OK)
        return lose(r, &why, err);
    *next = (wish){ 0 };
    for (uint32_t i = 0; i < r->m->ranks; i++)
        if (all[i].unit != DS_UNIT_NONE && (next->unit == DS_UNIT_NONE || all[i].unit < next->unit))
            next->unit = all[i].unit;
    for (uint32_t i = 0; i < r->m->ranks; i++)
        if (all[i].unit == next->unit)
            next->passes = larger(next->passes, all[i].passes);
    return DS_OK;
}

/* A unit without rows of this rank's. */
static void join(ds_runner *r, const wish *unit)
{
    uint32_t backbone = r->m->c.num_hidden_layers;

    if (unit->unit == DS_UNIT_DRAFT)
        take_part(r, backbone, r->m->t.n_layers);
    if (unit->unit != DS_UNIT_STEP)
        return;
    take_part(r, 0, r->m->t.first_decoder);
    r->passes_left = unit->passes;
    ds_ranks_rest(r);
}

ds_rc ds_ranks_begin(ds_runner *r, ds_unit what, uint32_t passes, ds_err *err)
{
    wish next;
    ds_rc rc;

    if (!r->exchange)
        return r->m->ranks == 1 ? DS_OK
                                : ds_fail(err, DS_E_ARG, "step: the experts are on %u ranks, and this run knows no other", r->m->ranks);
    while ((rc = agree(r, what, passes, &next, err)) == DS_OK && next.unit != what)
        join(r, &next);
    r->passes_left = rc == DS_OK ? next.passes : 0;
    return rc;
}

ds_rc ds_runner_attend(ds_runner *r, ds_err *err)
{
    wish next;
    ds_err why;
    ds_rc rc;

    if (!r->exchange)
        return ds_fail(err, DS_E_ARG, "attend: there are no other ranks");
    while (r->lost.rc == DS_OK && (rc = r->o.comm->fn->attend(r->o.comm, &why)) == DS_OK) {
        rc = agree(r, DS_UNIT_NONE, 0, &next, err);
        if (rc != DS_OK)
            return rc;
        join(r, &next);
    }
    if (r->lost.rc != DS_OK || rc == DS_E_IO)
        return lose(r, &why, err);
    return ds_fail(err, rc, "%s", why.msg);
}
