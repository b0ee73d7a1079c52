#include "role/handing.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "cluster/taker.h"
#include "kv/handoff.h"
#include "kv/layout.h"
#include "kv/state.h"

enum { LEAST = 64 << 20 }; /* bytes that are taken whatever the engine's KV is */

struct ds_handing {
    /* [const] */
    ds_engine *engine;
    uint64_t most, most_waiting; /* bytes of one; of all that wait */
    /* Its user, and each sequence that waits. The last one frees it: counting down releases what was done with it, and
     * the last count acquires that. */
    atomic_uint refs;
    atomic_uint_fast64_t waiting; /* bytes; a number that nothing else depends on */
};

/* Bytes of one that came. */
typedef struct {
    ds_handing *x;
    const uint8_t *p;
    size_t n;
} arrived;

static void let_go(ds_handing *x)
{
    if (atomic_fetch_sub_explicit(&x->refs, 1, memory_order_acq_rel) == 1)
        free(x);
}

static ds_rc begin(void *ctx, uint64_t id, void **held, ds_err *err)
{
    ds_handing *x = ctx;
    ds_engine_export *e = NULL;
    ds_rc rc = ds_engine_export_begin(&e, x->engine, id, (ds_engine_export_how){ .with_blocks = true, .with_token = true }, err);

    *held = e;
    return rc;
}

static ds_rc left(void *ctx, void *held, const uint8_t **record, size_t *n_record, const uint8_t **blocks, size_t *n_blocks)
{
    ds_rc rc = ds_engine_export_wait(held, 0, record, n_record, NULL);

    (void)ctx;
    if (rc == DS_OK)
        *blocks = ds_engine_export_blocks(held, n_blocks);
    return rc;
}

static void end(void *ctx, void *held)
{
    (void)ctx;
    ds_engine_export_free(held);
}

static void done(void *ctx, const uint8_t *blocks, size_t n)
{
    arrived *a = ctx;

    (void)blocks;
    (void)n;
    atomic_fetch_sub_explicit(&a->x->waiting, a->n, memory_order_relaxed);
    ds_taken_free(a->p, a->n);
    let_go(a->x);
    free(a);
}

static ds_rc come(void *ctx, const ds_gen_request *q, const uint8_t *p, size_t n_record, size_t n_blocks, uint64_t *id, ds_err *err)
{
    ds_handing *x = ctx;
    arrived *a = malloc(sizeof *a);
    ds_engine_blocks blocks = { .p = p + n_record, .n = n_blocks, .free = done, .ctx = a };
    ds_rc rc;

    if (!a)
        return ds_fail(err, DS_E_NOMEM, "out of memory for a sequence");
    *a = (arrived){ x, p, n_record + n_blocks };
    atomic_fetch_add_explicit(&x->refs, 1, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&x->waiting, a->n, memory_order_relaxed) > x->most_waiting)
        rc = ds_fail(err, DS_E_AGAIN, "sequences of more than %llu bytes wait already", (unsigned long long)x->most_waiting);
    else
        rc = ds_engine_import(x->engine, q, p, n_record, &blocks, id, err);
    if (rc != DS_OK) {
        atomic_fetch_sub_explicit(&x->waiting, a->n, memory_order_relaxed);
        let_go(x);
        free(a);
    }
    return rc;
}

ds_rc ds_handing_create(ds_handing **out, ds_engine *e, ds_err *err)
{
    ds_handing *x = calloc(1, sizeof *x);
    ds_gen_plan p;
    uint64_t blocks;

    *out = x;
    if (!x)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    ds_engine_plan_of(e, &p);
    blocks = p.max_context / DS_KV_BLOCK_TOKENS + 1;
    x->engine = e;
    x->most_waiting = p.kv_blocks * p.block_bytes > LEAST ? p.kv_blocks * p.block_bytes : LEAST;
    x->most = blocks * p.block_bytes + ds_kv_handoff_bytes(&(ds_kv_handoff){ .n_prompt = p.max_context,
                                                                             .n_keys = (uint32_t)blocks,
                                                                             .state_bytes = p.slot_bytes + DS_KV_STATE_HEADER,
                                                                             .block_bytes = p.block_bytes });
    if (x->most < LEAST)
        x->most = LEAST;
    atomic_init(&x->refs, 1);
    atomic_init(&x->waiting, 0);
    return DS_OK;
}

ds_host_handoff ds_handing_fns(ds_handing *x)
{
    return (ds_host_handoff){ .begin = begin, .left = left, .end = end, .come = come, .most = x->most, .ctx = x };
}

void ds_handing_destroy(ds_handing *x)
{
    if (x)
        let_go(x);
}
