#include "engine/fetch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

uint64_t ds_fetches_bytes(uint32_t n, uint32_t cap)
{
    const ds_fetch *f = NULL;

    return n * (sizeof *f + (uint64_t)cap * (sizeof *f->block + sizeof *f->key + sizeof *f->got));
}

ds_rc ds_fetches_init(ds_fetches *t, uint32_t n, uint32_t cap, ds_err *err)
{
    bool whole;

    *t = (ds_fetches){ .n = n, .cap = cap, .n_free = n };
    t->f = calloc(n, sizeof *t->f);
    whole = t->f != NULL;
    for (uint32_t i = 0; i < n && whole; i++) {
        ds_fetch *f = &t->f[i];
        f->block = calloc(cap, sizeof *f->block);
        f->key = calloc(cap, sizeof *f->key);
        f->got = calloc(cap, sizeof *f->got);
        whole = f->block && f->key && f->got;
    }
    if (!whole) {
        ds_fetches_fini(t);
        return ds_fail(err, DS_E_NOMEM, "engine: out of memory for %u fetches of %u blocks", n, cap);
    }
    pthread_mutex_init(&t->mu, NULL);
    t->ready = true;
    return DS_OK;
}

void ds_fetches_fini(ds_fetches *t)
{
    for (uint32_t i = 0; t->f && i < t->n; i++) {
        free(t->f[i].block);
        free(t->f[i].key);
        free(t->f[i].got);
    }
    free(t->f);
    if (t->ready)
        pthread_mutex_destroy(&t->mu);
    *t = (ds_fetches){ 0 };
}

ds_fetch *ds_fetches_take(ds_fetches *t)
{
    ds_fetch *f = t->f;

    assert(t->n_free > 0);
    while (f->ticket)
        f++;
    pthread_mutex_lock(&t->mu);
    f->ticket = ++t->n_begun * t->n + ds_fetches_index(t, f);
    f->answered = false;
    pthread_mutex_unlock(&t->mu);
    t->n_free--;
    return f;
}

void ds_fetches_give(ds_fetches *t, ds_fetch *f)
{
    pthread_mutex_lock(&t->mu);
    f->ticket = 0;
    pthread_mutex_unlock(&t->mu);
    f->who = NULL;
    t->n_free++;
    t->n_given++;
}

bool ds_fetches_answered(ds_fetches *t, const ds_fetch *f)
{
    bool answered;

    pthread_mutex_lock(&t->mu);
    answered = f->answered;
    pthread_mutex_unlock(&t->mu);
    return answered;
}

void ds_fetches_done(ds_fetches *t, uint64_t ticket, const ds_store_got *blocks, uint32_t n, const ds_store_got *state)
{
    ds_fetch *f = &t->f[ticket % t->n];

    pthread_mutex_lock(&t->mu);
    if (f->ticket == ticket && !f->answered) { /* else it was dropped meanwhile */
        assert(n == f->n && (state != NULL) == f->with_state);
        memcpy(f->got, blocks, n * sizeof *blocks);
        if (state)
            f->got_state = *state;
        f->answered = true;
    }
    pthread_mutex_unlock(&t->mu);
}
