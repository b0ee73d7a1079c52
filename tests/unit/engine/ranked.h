/* The engine's tests with many ranks, as threads of the test: the test has rank 0's engine, the others have engines
 * that nobody asks for anything. With one rank (the default) these are the plain functions. */
#ifndef DS_TEST_RANKED_H
#define DS_TEST_RANKED_H

#include "../model/ranks.h"

#include "engine/engine.h"

enum { MAX_ENGINES = 4 };
static struct ranked_engine {
    ds_engine *e[TEST_MAX_RANKS];
    ds_comm *comm[TEST_MAX_RANKS];
} ranked[MAX_ENGINES];

static inline ds_rc test_engine_create(ds_engine **out, const ds_model *m, ds_pool *pool, const ds_engine_opts *o, ds_err *err)
{
    struct ranked_engine *g = ranked;
    ds_rc rc = DS_OK;
    int fd;

    if (!test_ranks.n)
        return ds_engine_create(out, m, pool, o, err);
    *out = NULL;
    while (g->e[0])
        g++;
    rc = ds_comm_shm_create(&fd, &(ds_comm_shm_opts){ .ranks = test_ranks.n, .message_bytes = 4096, .slots = 2 }, err);
    for (uint32_t i = 0; i < test_ranks.n && rc == DS_OK; i++) {
        ds_engine_opts own = *o;
        rc = ds_comm_shm_join(&g->comm[i], fd, i, err);
        if (rc != DS_OK)
            break;
        own.comm = g->comm[i];
        own.store = i ? NULL : o->store;
        rc = ds_engine_create(&g->e[i], test_ranks.model[i], i ? NULL : pool, &own, err);
    }
    close(fd);
    if (rc == DS_OK) {
        *out = g->e[0];
        return DS_OK;
    }
    for (uint32_t i = 0; i < test_ranks.n; i++) {
        ds_engine_destroy(g->e[i]);
        if (g->comm[i])
            g->comm[i]->fn->destroy(g->comm[i]);
    }
    *g = (struct ranked_engine){ 0 };
    return rc;
}

static inline void *destroy_one(void *e)
{
    ds_engine_destroy(e);
    return NULL;
}

static inline void test_engine_destroy(ds_engine *e)
{
    struct ranked_engine *g = ranked;
    pthread_t thread[TEST_MAX_RANKS];

    if (!test_ranks.n || !e) {
        ds_engine_destroy(e);
        return;
    }
    while (g->e[0] != e)
        g++;
    for (uint32_t i = 0; i < test_ranks.n; i++) /* each waits for all */
        assert_int_equal(pthread_create(&thread[i], NULL, destroy_one, g->e[i]), 0);
    for (uint32_t i = 0; i < test_ranks.n; i++)
        pthread_join(thread[i], NULL);
    for (uint32_t i = 0; i < test_ranks.n; i++)
        g->comm[i]->fn->destroy(g->comm[i]);
    *g = (struct ranked_engine){ 0 };
}

#endif
