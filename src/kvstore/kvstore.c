/* The public functions: checks that hold for every kind of store, then the kind's own. */
#include "kvstore/kvstore_internal.h"

#include "base/err.h"

const char *ds_kvstore_cause_name(ds_kvstore_cause c)
{
    static const char *const name[DS_KVSTORE_CAUSES] = { "hit",     "absent", "layout",   "gone", "io",
                                                         "corrupt", "late",   "canceled", "busy", "lost" };

    return (unsigned)c < DS_KVSTORE_CAUSES ? name[c] : "unknown";
}

void ds_kvstore_close(ds_kvstore *s)
{
    if (s)
        s->ops->close(s);
}

uint32_t ds_kvstore_match(ds_kvstore *s, const ds_key *keys, uint32_t n, bool exact)
{
    return s->has_user && n ? s->ops->match(s, keys, n, exact) : 0;
}

ds_rc ds_kvstore_fetch(ds_kvstore *s, const ds_kvstore_fetch_req *r, uint64_t *ticket, ds_err *err)
{
    if (!s->has_user)
        return ds_fail(err, DS_E_ARG, "fetch: the store was opened without a user");
    if (r->n == 0 || r->n > DS_KVSTORE_MAX_BLOCKS || !r->keys || !r->blocks || !r->done)
        return ds_fail(err, DS_E_ARG, "fetch: %u blocks", r->n);
    return s->ops->fetch(s, r, ticket, err);
}

bool ds_kvstore_cancel(ds_kvstore *s, uint64_t ticket)
{
    return s->ops->cancel(s, ticket);
}

ds_rc ds_kvstore_save(ds_kvstore *s, const ds_kvstore_save_req *r, ds_err *err)
{
    if (!s->has_user)
        return ds_fail(err, DS_E_ARG, "save: the store was opened without a user");
    if (r->n == 0 || r->n > DS_KVSTORE_MAX_BLOCKS || !r->keys || !r->blocks || !r->done || r->exact > r->n ||
        r->depth > UINT32_MAX - 2 * DS_KVSTORE_MAX_BLOCKS || (unsigned)r->klass >= DS_KVSTORE_CLASSES)
        return ds_fail(err, DS_E_ARG, "save: %u blocks behind %u, %u of them exact, class %d", r->n, r->depth, r->exact, (int)r->klass);
    if (r->brief && !s->brief)
        return ds_fail(err, DS_E_ARG, "save: only a store that another process serves keeps window states in memory");
    return s->ops->save(s, r, err);
}

void ds_kvstore_touch(ds_kvstore *s, const ds_key *keys, uint32_t n)
{
    if (s->has_user)
        s->ops->touch(s, keys, n);
}

ds_rc ds_kvstore_stat(ds_kvstore *s, ds_kvstore_stats *out, ds_err *err)
{
    *out = (ds_kvstore_stats){ 0 };
    return s->ops->stat(s, out, err);
}

ds_rc ds_kvstore_verify(ds_kvstore *s, unsigned how, const volatile bool *stop, ds_kvstore_check *out, ds_err *err)
{
    *out = (ds_kvstore_check){ 0 };
    return s->ops->verify(s, how, stop, out, err);
}

ds_rc ds_kvstore_forget(ds_kvstore *s, const char *tenant, uint64_t *n, ds_err *err)
{
    *n = 0;
    return s->ops->forget(s, tenant, n, err);
}

ds_rc ds_kvstore_list(ds_kvstore *s, bool (*fn)(void *ctx, const ds_kvstore_item *item), void *ctx, ds_err *err)
{
    return s->ops->list(s, fn, ctx, err);
}
