#include "engine/blocks.h"

#include <assert.h>
#include <stdlib.h>

uint64_t ds_blocks_bytes(uint32_t n)
{
    const ds_blocks *b = NULL;

    return (n + 1ull) * (sizeof *b->ref + sizeof *b->next + sizeof *b->prev + sizeof *b->approx + sizeof *b->expected) + ds_keytab_bytes(n);
}

ds_rc ds_blocks_init(ds_blocks *b, uint32_t n, ds_err *err)
{
    *b = (ds_blocks){ .n = n, .n_idle = n };
    b->ref = calloc(n, sizeof *b->ref);
    b->next = calloc((size_t)n + 1, sizeof *b->next);
    b->prev = calloc((size_t)n + 1, sizeof *b->prev);
    b->approx = calloc(n, sizeof *b->approx);
    b->expected = calloc(n, sizeof *b->expected);
    if (!b->ref || !b->next || !b->prev || !b->approx || !b->expected) {
        ds_blocks_fini(b);
        return ds_fail(err, DS_E_NOMEM, "engine: out of memory for %u blocks", n);
    }
    for (uint32_t i = 0; i <= n; i++) {
        b->next[i] = i == n ? 0 : i + 1;
        b->prev[i] = i == 0 ? n : i - 1;
    }
    if (ds_keytab_init(&b->keys, n, err) != DS_OK) {
        ds_blocks_fini(b);
        return DS_E_NOMEM;
    }
    return DS_OK;
}

void ds_blocks_fini(ds_blocks *b)
{
    free(b->ref);
    free(b->next);
    free(b->prev);
    free(b->approx);
    free(b->expected);
    ds_keytab_fini(&b->keys);
    *b = (ds_blocks){ 0 };
}

static void unlink_block(ds_blocks *b, uint32_t i)
{
    b->next[b->prev[i]] = b->next[i];
    b->prev[b->next[i]] = b->prev[i];
    b->n_idle--;
    b->n_cached -= b->keys.used[i];
}

/* Behind `at`. */
static void link_block(ds_blocks *b, uint32_t i, uint32_t at)
{
    b->prev[i] = at;
    b->next[i] = b->next[at];
    b->prev[b->next[at]] = i;
    b->next[at] = i;
    b->n_idle++;
    b->n_cached += b->keys.used[i];
}

uint32_t ds_blocks_take(ds_blocks *b)
{
    uint32_t i = b->next[b->n];

    if (i == b->n)
        return DS_NONE;
    unlink_block(b, i);
    b->evicted += b->keys.used[i];
    ds_keytab_drop(&b->keys, i);
    b->ref[i] = 1;
    return i;
}

void ds_blocks_ref(ds_blocks *b, uint32_t i)
{
    assert(i < b->n);
    if (b->ref[i] == 0)
        unlink_block(b, i);
    b->ref[i]++;
}

void ds_blocks_unref(ds_blocks *b, uint32_t i)
{
    assert(i < b->n && b->ref[i] > 0 && !(b->ref[i] == 1 && b->expected[i]));
    if (--b->ref[i] == 0)
        link_block(b, i, b->keys.used[i] ? b->prev[b->n] : b->n);
}

bool ds_blocks_publish(ds_blocks *b, uint32_t i, const ds_key *k, bool approx)
{
    uint32_t old = ds_keytab_find(&b->keys, k);

    assert(b->ref[i] > 0);
    if (b->keys.used[i] || (old != DS_NONE && !b->expected[old] && (approx || !b->approx[old])))
        return false;
    if (old != DS_NONE) {
        bool idle = b->ref[old] == 0;
        b->expected[old] = false;
        if (idle)
            unlink_block(b, old);
        ds_keytab_drop(&b->keys, old);
        if (idle)
            link_block(b, old, b->n); /* free: the first to be given out */
    }
    ds_keytab_put(&b->keys, k, i);
    b->approx[i] = approx;
    b->published++;
    return true;
}

bool ds_blocks_expect(ds_blocks *b, uint32_t i, const ds_key *k)
{
    assert(b->ref[i] > 0 && !b->keys.used[i]);
    if (ds_keytab_find(&b->keys, k) != DS_NONE)
        return false;
    ds_keytab_put(&b->keys, k, i);
    b->expected[i] = true;
    return true;
}

bool ds_blocks_arrive(ds_blocks *b, uint32_t i, const ds_key *k, bool approx)
{
    ds_blocks_miss(b, i);
    return ds_blocks_publish(b, i, k, approx);
}

void ds_blocks_miss(ds_blocks *b, uint32_t i)
{
    if (!b->expected[i])
        return;
    b->expected[i] = false;
    ds_keytab_drop(&b->keys, i);
}

uint32_t ds_blocks_find(const ds_blocks *b, const ds_key *k)
{
    uint32_t i = ds_keytab_find(&b->keys, k);

    return i != DS_NONE && b->expected[i] ? DS_NONE : i;
}

bool ds_blocks_is_expected(const ds_blocks *b, const ds_key *k)
{
    uint32_t i = ds_keytab_find(&b->keys, k);

    return i != DS_NONE && b->expected[i];
}
