/* One engine as a generator. */
#include "engine/engine.h"

static ds_rc add(void *h, const ds_gen_request *q, uint64_t *id, ds_err *err)
{
    return ds_engine_add(h, q, id, err);
}

static void cancel(void *h, uint64_t id)
{
    ds_engine_cancel(h, id);
}

static void finish_sample(void *h, uint64_t id, uint32_t sample)
{
    ds_engine_finish_sample(h, id, sample);
}

static size_t poll_events(void *h, ds_event *ev, size_t cap)
{
    return ds_engine_poll(h, ev, cap);
}

static bool wait_events(void *h, uint32_t timeout_ms)
{
    return ds_engine_wait(h, timeout_ms);
}

static void wake_by(void *h, void (*wake)(void *ctx), void *ctx)
{
    ds_engine_wake_by(h, wake, ctx);
}

static bool drain(void *h)
{
    return ds_engine_drain(h);
}

static uint32_t n_engines(void *h)
{
    (void)h;
    return 1;
}

static bool stats(void *h, uint32_t engine, ds_gen_stats *out)
{
    if (engine != 0)
        return false;
    ds_engine_stats_get(h, out);
    return true;
}

static bool plan(void *h, uint32_t engine, ds_gen_plan *out)
{
    return engine == 0 && ds_engine_plan_of(h, out) == DS_OK;
}

ds_gen ds_engine_gen(ds_engine *e)
{
    static const ds_gen_fn fn = { .add = add,
                                  .cancel = cancel,
                                  .finish_sample = finish_sample,
                                  .poll = poll_events,
                                  .wait = wait_events,
                                  .wake_by = wake_by,
                                  .drain = drain,
                                  .n_engines = n_engines,
                                  .stats = stats,
                                  .plan = plan };
    return (ds_gen){ &fn, e };
}
