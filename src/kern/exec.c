#include "kern/exec.h"

#include <assert.h>

typedef struct {
    ds_range_fn *fn;
    void *arg;
    size_t n, grain;
} range_job;

static void run_range(void *p, uint32_t member, uint32_t n_members)
{
    const range_job *j = p;
    size_t grains = (j->n + j->grain - 1) / j->grain;
    size_t begin = grains * member / n_members * j->grain;
    size_t end = grains * (member + 1) / n_members * j->grain;

    if (end > j->n)
        end = j->n;
    if (begin < end)
        j->fn(j->arg, begin, end, member);
}

void ds_exec_for(ds_exec *e, size_t n, size_t grain, ds_range_fn *fn, void *arg)
{
    range_job j = { fn, arg, n, grain };

    assert(grain > 0);
    if (n == 0)
        return;
    if (!e->pool || n <= grain || ds_pool_size(e->pool) == 1)
        fn(arg, 0, n, 0);
    else
        ds_pool_run(e->pool, run_range, &j);
}

uint32_t ds_exec_members(const ds_exec *e)
{
    return e->pool ? ds_pool_size(e->pool) : 1;
}

void *ds_exec_scratch(ds_exec *e, size_t bytes)
{
    void *p = ds_arena_alloc(e->scratch, bytes, 64);

    assert(p && "scratch_bytes() of this table promised too little");
    return p;
}

void ds_exec_fault(ds_exec *e, ds_fault_kind kind, uint32_t tag, int64_t row)
{
    /* relaxed: the exchange only elects one writer; kind is published with release below and read with acquire */
    if (atomic_exchange_explicit(&e->fault->busy, 1, memory_order_relaxed))
        return;
    e->fault->tag = tag;
    e->fault->row = row;
    atomic_store_explicit(&e->fault->kind, kind, memory_order_release);
}
