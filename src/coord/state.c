#include "coord/state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { STATE_VERSION = 1 };

void ds_coord_state_fini(ds_coord_state *s)
{
    free(s->m);
    *s = (ds_coord_state){ 0 };
}

/* Where a name is, or would be. */
static uint32_t place_of(const ds_coord_state *s, const char *name, bool *there)
{
    uint32_t lo = 0, hi = s->n;

    *there = false;
    while (lo < hi && !*there) {
        uint32_t mid = lo + (hi - lo) / 2;
        int c = strcmp(name, s->m[mid].name);
        *there = c == 0;
        if (c <= 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return hi;
}

ds_coord_member *ds_coord_state_find(const ds_coord_state *s, const char *name)
{
    bool there;
    uint32_t i = place_of(s, name, &there);

    return there ? &s->m[i] : NULL;
}

static bool has_model(const ds_coord_member *m)
{
    static const uint8_t none[sizeof m->model];

    return memcmp(m->model, none, sizeof none) != 0;
}

/* What a process says again needn't be written down. */
static bool says_the_same(const ds_coord_member *a, const ds_coord_member *b)
{
    return a->instance == b->instance && a->state == b->state && strcmp(a->role, b->role) == 0 && strcmp(a->address, b->address) == 0 &&
           strcmp(a->version, b->version) == 0 && memcmp(a->model, b->model, sizeof a->model) == 0;
}

static ds_rc may_announce(const ds_coord_state *s, const ds_coord_member *m, ds_err *err)
{
    const ds_coord_member *old = ds_coord_state_find(s, m->name);
    ds_rc rc = ds_coord_member_check(m, err);

    if (rc != DS_OK)
        return rc;
    if (old && says_the_same(old, m))
        return ds_fail(err, DS_E_CANCELED, "%s is there", m->name);
    for (uint32_t i = 0; i < s->n && has_model(m); i++)
        if (has_model(&s->m[i]) && &s->m[i] != old && memcmp(s->m[i].model, m->model, sizeof m->model) != 0)
            return ds_fail(err, DS_E_ARG, "%s has another model (%02x%02x%02x%02x…) than %s (%02x%02x%02x%02x…)", m->name, m->model[0],
                           m->model[1], m->model[2], m->model[3], s->m[i].name, s->m[i].model[0], s->m[i].model[1], s->m[i].model[2],
                           s->m[i].model[3]);
    return old || s->n < DS_COORD_MAX_MEMBERS ? DS_OK : ds_fail(err, DS_E_AGAIN, "%d members: there is no room for %s", s->n, m->name);
}

ds_rc ds_coord_state_may(const ds_coord_state *s, const ds_coord_op *op, ds_err *err)
{
    const ds_coord_member *old;

    if (op->kind == DS_COORD_ANNOUNCE)
        return may_announce(s, &op->m, err);
    old = ds_coord_state_find(s, op->m.name);
    if (!old || old->instance != op->m.instance)
        return ds_fail(err, DS_E_CANCELED, "%s isn't there", op->m.name);
    if (op->kind == DS_COORD_DRAIN && old->drain)
        return ds_fail(err, DS_E_CANCELED, "%s drains", op->m.name);
    return DS_OK;
}

static ds_rc announce(ds_coord_state *s, const ds_coord_member *m, ds_err *err)
{
    bool there;
    uint32_t i = place_of(s, m->name, &there);
    ds_coord_member *more;

    if (!there) {
        more = realloc(s->m, (s->n + 1) * sizeof *more);
        if (!more)
            return ds_fail(err, DS_E_NOMEM, "out of memory");
        s->m = more;
        memmove(&more[i + 1], &more[i], (s->n - i) * sizeof *more);
        s->n++;
        more[i] = (ds_coord_member){ .instance = 0 };
    }
    ds_coord_member old = s->m[i];
    s->m[i] = *m;
    if (old.instance == m->instance) {
        s->m[i].epoch = old.epoch;
        s->m[i].drain = old.drain;
    } else {
        s->m[i].epoch = ++s->epoch;
        s->m[i].drain = false;
    }
    return DS_OK;
}

ds_rc ds_coord_state_apply(ds_coord_state *s, const ds_coord_op *op, ds_err *err)
{
    ds_rc rc = ds_coord_state_may(s, op, err);
    ds_coord_member *old;

    if (rc != DS_OK)
        return rc;
    old = ds_coord_state_find(s, op->m.name);
    switch (op->kind) {
    case DS_COORD_ANNOUNCE:
        rc = announce(s, &op->m, err);
        break;
    case DS_COORD_REMOVE:
        memmove(old, old + 1, (size_t)(s->m + s->n - old - 1) * sizeof *old);
        s->n--;
        break;
    case DS_COORD_DRAIN:
        old->drain = true;
        break;
    }
    s->revision += rc == DS_OK;
    return rc;
}

/* ---- bytes ---- */

void ds_coord_put_op(ds_buf *b, uint64_t revision, const ds_coord_op *op)
{
    ds_coord_put_u64(b, revision);
    ds_coord_put_u32(b, (uint32_t)op->kind);
    if (op->kind == DS_COORD_ANNOUNCE) {
        ds_coord_put_member(b, &op->m);
    } else {
        ds_coord_put_text(b, op->m.name);
        ds_coord_put_u64(b, op->m.instance);
    }
}

ds_rc ds_coord_read_op(ds_coord_state *s, const uint8_t *p, size_t n, ds_err *err)
{
    ds_frame_in in = { p, p + n, false };
    uint64_t revision = ds_frame_u64(&in);
    uint32_t kind = ds_frame_u32(&in);
    ds_coord_op op = { .kind = (ds_coord_op_kind)kind };
    ds_rc rc;

    if (kind == DS_COORD_ANNOUNCE) {
        ds_coord_read_member(&op.m, &in);
    } else {
        ds_coord_read_text(op.m.name, sizeof op.m.name, &in);
        op.m.instance = ds_frame_u64(&in);
    }
    if (in.bad || in.at != in.end || kind < DS_COORD_ANNOUNCE || kind > DS_COORD_DRAIN)
        return ds_fail(err, DS_E_FORMAT, "a malformed operation");
    if (revision <= s->revision)
        return DS_OK;
    if (revision != s->revision + 1)
        return ds_fail(err, DS_E_FORMAT, "revision %" PRIu64 " follows %" PRIu64, revision, s->revision);
    rc = ds_coord_state_apply(s, &op, err);
    if (rc == DS_OK || rc == DS_E_NOMEM)
        return rc;
    if (err)
        err->rc = DS_E_FORMAT;
    return ds_err_prefix(err, DS_E_FORMAT, "an operation that can't have been: ");
}

void ds_coord_put_state(ds_buf *b, const ds_coord_state *s)
{
    ds_coord_put_u32(b, STATE_VERSION);
    ds_coord_put_u64(b, s->revision);
    ds_coord_put_u64(b, s->epoch);
    ds_coord_put_u32(b, s->n);
    for (uint32_t i = 0; i < s->n; i++)
        ds_coord_put_member(b, &s->m[i]);
}

ds_rc ds_coord_read_state(ds_coord_state *s, const uint8_t *p, size_t n, ds_err *err)
{
    ds_frame_in in = { p, p + n, false };
    uint32_t version = ds_frame_u32(&in), members;
    ds_coord_state new = { 0 };

    new.revision = ds_frame_u64(&in);
    new.epoch = ds_frame_u64(&in);
    members = ds_frame_u32(&in);
    if (!in.bad && version != STATE_VERSION)
        return ds_fail(err, DS_E_FORMAT, "a table of version %u, this program reads %d", version, STATE_VERSION);
    if (in.bad || members > DS_COORD_MAX_MEMBERS)
        return ds_fail(err, DS_E_FORMAT, "a malformed table");
    new.m = members ? calloc(members, sizeof *new.m) : NULL;
    if (members && !new.m)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    for (; new.n < members &&ds_coord_read_member(&new.m[new.n], &in); new.n++)
        if ((new.n &&strcmp(new.m[new.n - 1].name, new.m[new.n].name) >= 0) || new.m[new.n].epoch > new.epoch || !new.m[new.n].epoch)
            in.bad = true;
    if (in.bad || in.at != in.end) {
        free(new.m);
        return ds_fail(err, DS_E_FORMAT, "a malformed table");
    }
    ds_coord_state_fini(s);
    *s = new;
    return DS_OK;
}
