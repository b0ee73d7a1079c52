#include "engine/tier.h"

#include <assert.h>
#include <stdlib.h>

ds_rc ds_tier_init(ds_tier *t, uint32_t n, ds_err *err)
{
    *t = (ds_tier){ .n = n };
    t->pins = calloc((size_t)n + 1, sizeof *t->pins);
    t->note = calloc((size_t)n + 1, sizeof *t->note);
    t->approx = calloc((size_t)n + 1, sizeof *t->approx);
    t->next = calloc((size_t)n + 1, sizeof *t->next);
    t->prev = calloc((size_t)n + 1, sizeof *t->prev);
    if (!t->pins || !t->note || !t->approx || !t->next || !t->prev || ds_keytab_init(&t->keys, n, err) != DS_OK) {
        ds_tier_fini(t);
        return ds_fail(err, DS_E_NOMEM, "engine: out of memory for %u buffers of host memory", n);
    }
    for (uint32_t i = 0; i <= n; i++) {
        t->next[i] = i == n ? 0 : i + 1;
        t->prev[i] = i == 0 ? n : i - 1;
    }
    return DS_OK;
}

uint64_t ds_tier_bytes(uint32_t n)
{
    return ((uint64_t)n + 1) * (4 * sizeof(uint32_t) + sizeof(bool)) + ds_keytab_bytes(n);
}

void ds_tier_fini(ds_tier *t)
{
    free(t->pins);
    free(t->note);
    free(t->approx);
    free(t->next);
    free(t->prev);
    ds_keytab_fini(&t->keys);
    *t = (ds_tier){ 0 };
}

static void unlink_buffer(ds_tier *t, uint32_t i)
{
    t->next[t->prev[i]] = t->next[i];
    t->prev[t->next[i]] = t->prev[i];
}

static void link_behind(ds_tier *t, uint32_t i, uint32_t at)
{
    t->prev[i] = at;
    t->next[i] = t->next[at];
    t->prev[t->next[at]] = i;
    t->next[at] = i;
}

static void touch(ds_tier *t, uint32_t i)
{
    if (t->pins[i] > 0)
        return;
    unlink_buffer(t, i);
    link_behind(t, i, t->prev[t->n]);
}

uint32_t ds_tier_put(ds_tier *t, const ds_key *k, uint32_t note, bool approx)
{
    uint32_t i;

    if (t->n == 0)
        return DS_NONE;
    i = ds_keytab_find(&t->keys, k);
    if (i != DS_NONE) {
        touch(t, i);
        if (approx || !t->approx[i] || t->pins[i] > 0)
            return DS_NONE;
    } else {
        i = t->next[t->n];
        if (i == t->n)
            return DS_NONE;
        t->evicted += t->keys.used[i];
        t->n_used += !t->keys.used[i];
        ds_keytab_drop(&t->keys, i);
        ds_keytab_put(&t->keys, k, i);
        touch(t, i);
    }
    t->note[i] = note;
    t->approx[i] = approx;
    t->saved++;
    return i;
}

uint32_t ds_tier_find(ds_tier *t, const ds_key *k)
{
    uint32_t i = t->n ? ds_keytab_find(&t->keys, k) : DS_NONE;

    if (i != DS_NONE)
        touch(t, i);
    return i;
}

void ds_tier_forget(ds_tier *t, uint32_t i)
{
    assert(i < t->n && t->keys.used[i] && t->pins[i] > 0);
    ds_keytab_drop(&t->keys, i);
    t->n_used--;
}

void ds_tier_pin(ds_tier *t, uint32_t i)
{
    assert(i < t->n && t->keys.used[i]);
    if (t->pins[i]++ == 0)
        unlink_buffer(t, i);
}

void ds_tier_unpin(ds_tier *t, uint32_t i)
{
    assert(i < t->n && t->pins[i] > 0);
    if (--t->pins[i] > 0)
        return;
    link_behind(t, i, t->keys.used[i] ? t->prev[t->n] : t->n);
}
