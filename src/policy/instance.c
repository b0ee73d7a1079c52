#include "policy/instance.h"

#include <assert.h>

static uint64_t limit(ds_instance_state s, const ds_instance_limits *l)
{
    switch (s) {
    case DS_INSTANCE_DRAINING:
        return l->announce_us;
    case DS_INSTANCE_GRACE:
        return l->grace_us;
    case DS_INSTANCE_MOVING:
        return l->move_us;
    case DS_INSTANCE_KV_ONLY:
        return l->kv_us;
    default:
        return UINT64_MAX;
    }
}

uint64_t ds_instance_due_us(const ds_instance *i, const ds_instance_limits *l)
{
    uint64_t us = limit(i->state, l);

    return us > UINT64_MAX - i->since_us ? UINT64_MAX : i->since_us + us;
}

/* The next state, or the same. */
static ds_instance_state follow(const ds_instance *i, const ds_instance_facts *f, bool over)
{
    if (f->dead)
        return DS_INSTANCE_GONE;
    switch (i->state) {
    case DS_INSTANCE_READY:
        return f->drain ? DS_INSTANCE_DRAINING : DS_INSTANCE_READY;
    case DS_INSTANCE_DRAINING:
        return !f->drain ? DS_INSTANCE_READY : f->senders == 0 || over ? DS_INSTANCE_GRACE : DS_INSTANCE_DRAINING;
    case DS_INSTANCE_GRACE:
        return !f->drain ? DS_INSTANCE_READY : f->live == 0 ? DS_INSTANCE_KV_ONLY : over ? DS_INSTANCE_MOVING : DS_INSTANCE_GRACE;
    case DS_INSTANCE_MOVING:
        return f->live == 0 || over ? DS_INSTANCE_KV_ONLY : DS_INSTANCE_MOVING;
    case DS_INSTANCE_KV_ONLY:
        return f->readers == 0 || over ? DS_INSTANCE_GONE : DS_INSTANCE_KV_ONLY;
    default:
        return DS_INSTANCE_GONE;
    }
}

ds_instance_step ds_instance_next(const ds_instance *i, const ds_instance_facts *f, const ds_instance_limits *l, uint64_t now_us)
{
    ds_instance_step s = { .next = *i };

    assert((unsigned)i->state < DS_INSTANCE_STATES && l->announce_us > 0 && l->grace_us > 0 && l->move_us > 0 && l->kv_us > 0);
    if (now_us < i->since_us)
        now_us = i->since_us;
    for (;;) {
        ds_instance_state from = s.next.state, to = follow(&s.next, f, now_us - s.next.since_us >= limit(from, l));
        if (to == from)
            return s;
        s.next.state = to;
        s.next.since_us = now_us;
        s.move = to == DS_INSTANCE_MOVING;
        if (to == DS_INSTANCE_MOVING)
            s.next.epoch++;
        else if (f->live > 0 && (from == DS_INSTANCE_MOVING || (to == DS_INSTANCE_GONE && from < DS_INSTANCE_KV_ONLY))) {
            s.recompute = true;
            s.next.epoch++;
        }
    }
}

const char *ds_instance_state_name(ds_instance_state s)
{
    static const char *const names[DS_INSTANCE_STATES] = { "ready", "draining", "grace", "moving", "kv-only", "gone" };

    return (unsigned)s < DS_INSTANCE_STATES ? names[s] : "unknown";
}
