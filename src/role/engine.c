#include "role/engine.h"

#include <pthread.h>
#include <stdlib.h>

#include "cluster/host.h"
#include "role/handing.h"

enum { HANDOFF_BLOCKS = 16 }; /* that go in a step */

struct ds_engine_role {
    /* [const] */
    ds_service *s;
    ds_host *h;
    ds_handing *handing; /* NULL: several engines, whose sequences stay */
    /* [mu] */
    pthread_mutex_t mu;
    ds_constrain *grammars; /* NULL: nobody wanted one yet */
};

static ds_rc grammars_of(ds_engine_role *r, ds_constrain **out, ds_err *err)
{
    size_t n;
    const ds_token *stop_ids = ds_service_stop_ids(r->s, &n);
    ds_rc rc = DS_OK;

    pthread_mutex_lock(&r->mu);
    if (!r->grammars)
        rc = ds_constrain_create(&r->grammars, ds_service_tokenizer(r->s), stop_ids, n, NULL, err);
    *out = r->grammars;
    pthread_mutex_unlock(&r->mu);
    return rc;
}

static ds_rc grammar(void *ctx, ds_gen_grammar *out, void **held, ds_str what, uint32_t samples, const ds_token *seen, uint32_t n_seen,
                     ds_err *err)
{
    ds_constrained *c;
    ds_constrain *table;
    ds_rc rc = grammars_of(ctx, &table, err);

    if (rc == DS_OK)
        rc = ds_constrain_begin_same(&c, table, what, samples, err);
    if (rc != DS_OK)
        return rc;
    *out = *ds_constrained_grammar(c);
    if (n_seen)
        out->fn->accept(out->ctx, 0, seen, n_seen);
    *held = c;
    return DS_OK;
}

static void grammar_end(void *ctx, void *held)
{
    (void)ctx;
    ds_constrained_end(held);
}

ds_rc ds_engine_role_open(ds_engine_role **out, const char *dir, const char *address, const ds_service_opts *o, ds_err *err)
{
    ds_engine_role *r = calloc(1, sizeof *r);
    ds_service_opts own = *o;
    ds_host_opts ho = { .grammar = grammar, .grammar_end = grammar_end, .ctx = r, .log = o->log };
    ds_rc rc;

    *out = NULL;
    if (!r)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    pthread_mutex_init(&r->mu, NULL);
    rc = ds_service_wire_model(&ho.self.model, dir, err);
    if (own.engines <= 1)
        own.engine.handoff = HANDOFF_BLOCKS;
    if (rc == DS_OK)
        rc = ds_service_open(&r->s, dir, &own, err);
    if (rc == DS_OK && own.engine.handoff)
        rc = ds_handing_create(&r->handing, ds_service_engine(r->s, 0), err);
    if (r->handing)
        ho.handoff = ds_handing_fns(r->handing);
    if (rc == DS_OK) {
        ds_service_wire_self(r->s, &ho.self);
        ho.self.role = o->role;
        ho.hidden = ds_service_config(r->s)->hidden_size;
        rc = ds_host_start(&r->h, address, ds_service_gen(r->s), &ho, err);
    }
    if (rc != DS_OK) {
        ds_engine_role_close(r);
        return rc;
    }
    *out = r;
    return DS_OK;
}

const ds_service *ds_engine_role_service(const ds_engine_role *r)
{
    return r->s;
}

const char *ds_engine_role_address(const ds_engine_role *r)
{
    return ds_host_address(r->h);
}

uint32_t ds_engine_role_live(const ds_engine_role *r)
{
    return ds_host_stat(r->h).requests;
}

bool ds_engine_role_drain(ds_engine_role *r)
{
    return ds_host_drain(r->h);
}

void ds_engine_role_close(ds_engine_role *r)
{
    if (!r)
        return;
    ds_host_stop(r->h);
    if (r->s)
        ds_service_stop(r->s);
    ds_handing_destroy(r->handing);
    ds_constrain_destroy(r->grammars);
    ds_service_close(r->s);
    pthread_mutex_destroy(&r->mu);
    free(r);
}
