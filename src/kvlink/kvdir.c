#include "kvlink/kvdir.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kv/state.h"

/* Of the capacity: a state is as large as a dozen blocks, and one is kept for a prompt and one for an answer. */
enum { STATES_SHARE = 4 };

static ds_rc make_dir(const char *place, ds_err *err)
{
    if (ds_kvstore_in_pool(place) || mkdir(place, 0777) == 0 || errno == EEXIST)
        return DS_OK;
    return ds_fail(err, DS_E_IO, "KV store: %s can't be made: %s", place, strerror(errno));
}

/* To a layout that differs from the blocks' in size alone, for a store that knows nothing but blocks. */
static void states_layout(ds_kv_layout *l, const ds_kv_layout *blocks)
{
    *l = *blocks;
    l->block_bytes = DS_KV_STATE_HEADER + blocks->slot_bytes;
    l->n_parts = 0;
}

static ds_rc open_one(ds_kvstore **out, const ds_kvdir_opts *o, const char *const *dirs, const ds_kv_layout *layout, uint64_t capacity,
                      ds_err *err)
{
    uint8_t *bytes = malloc(DS_KV_LAYOUT_MAX_BYTES);
    ds_kvstore_user user;
    ds_kvstore_opts so = { .dirs = dirs, .n_dirs = o->n_dirs, .capacity_bytes = capacity, .user = &user };
    ds_rc rc;

    if (!bytes)
        return ds_fail(err, DS_E_NOMEM, "KV store: out of memory");
    user = (ds_kvstore_user){ .layout = bytes, .layout_bytes = ds_kv_layout_write(bytes, layout) };
    memcpy(user.model, o->identity->model, sizeof user.model);
    memcpy(user.tokenizer, o->identity->tokenizer, sizeof user.tokenizer);
    memcpy(user.dialect, o->identity->dialect, sizeof user.dialect);
    rc = o->address ? ds_kvstore_connect(out, o->address, &user, err) : ds_kvstore_open(out, &so, err);
    free(bytes);
    return rc;
}

ds_rc ds_kvdir_open(ds_kvdir *out, const ds_kvdir_opts *o, ds_err *err)
{
    uint64_t for_states = o->capacity_bytes / STATES_SHARE;
    ds_kv_layout *states = malloc(sizeof *states);
    char **sub = calloc(o->n_dirs + 1, sizeof *sub);
    ds_rc rc = states && sub ? DS_OK : ds_fail(err, DS_E_NOMEM, "KV store: out of memory");

    *out = (ds_kvdir){ 0 };
    for (uint32_t i = 0; i < o->n_dirs && rc == DS_OK; i++)
        rc = make_dir(o->dirs[i], err);
    if (rc == DS_OK) /* a kvd has a bound of its own */
        rc = open_one(&out->blocks, o, o->dirs, o->layout, o->capacity_bytes - for_states, err);
    for (uint32_t i = 0; i < o->n_dirs && rc == DS_OK; i++)
        rc = ds_kvstore_place_below(&sub[i], o->dirs[i], "states", err);
    if (rc == DS_OK) {
        states_layout(states, o->layout);
        rc = open_one(&out->states, o, (const char *const *)sub, states, for_states, err);
    }
    for (uint32_t i = 0; sub && i < o->n_dirs; i++)
        free(sub[i]);
    free(sub);
    free(states);
    for (; rc == DS_OK && out->n_ports < o->n_ports; out->n_ports++) {
        rc = ds_kvport_create(&out->port[out->n_ports], out->blocks, out->states, o->address != NULL, err);
        if (rc != DS_OK)
            break;
        out->store[out->n_ports] = ds_kvport_store(out->port[out->n_ports]);
    }
    if (rc != DS_OK)
        ds_kvdir_close(out);
    return rc;
}

void ds_kvdir_close(ds_kvdir *d)
{
    for (uint32_t i = 0; i < d->n_ports; i++)
        ds_kvport_destroy(d->port[i]);
    ds_kvstore_close(d->states);
    ds_kvstore_close(d->blocks);
    *d = (ds_kvdir){ 0 };
}
