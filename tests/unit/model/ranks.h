/* The model's tests with many ranks, as threads of the test: the test has rank 0's runner and its sequences, or
 * those of all ranks; who has none attends. With one rank (the default) these are the plain functions. */
#ifndef DS_TEST_RANKS_H
#define DS_TEST_RANKS_H

#include <pthread.h>
#include <unistd.h>

#include "golden.h"
#include "parallel/shm.h"

enum { TEST_MAX_RANKS = 8, TEST_MAX_GROUPS = 8 };

static struct {
    uint32_t n; /* ranks; 0: no others */
    ds_model *model[TEST_MAX_RANKS];
    ds_model *lone; /* the same model without ranks */
} test_ranks;

/* The runners of one test's model. */
static struct test_group {
    ds_runner *runner[TEST_MAX_RANKS];
    ds_comm *comm[TEST_MAX_RANKS];
    pthread_t thread[TEST_MAX_RANKS];
} test_group[TEST_MAX_GROUPS];

/* A last argument "ranks=N" of a test program. It is taken off. */
static inline void test_choose_ranks(int *argc, char **argv)
{
    if (*argc > 1 && strncmp(argv[*argc - 1], "ranks=", 6) == 0)
        test_ranks.n = (uint32_t)strtoul(argv[--*argc] + 6, NULL, 10);
}

/* As test_model; rank 0's. */
static inline ds_model *test_model_of_ranks(const char *name, const char *kernels)
{
    char path[600];
    ds_err err;

    if (!test_ranks.n)
        return test_model(name, kernels);
    test_ranks.lone = test_model(name, kernels);
    snprintf(path, sizeof path, "%s/tests/golden/%s/model", DS_TEST_ROOT, name);
    for (uint32_t i = 0; i < test_ranks.n; i++) {
        ds_model_opts o = {
            .device = i ? NULL : test_device, .kernels = kernels, .token_map = test_token_map, .ranks = test_ranks.n, .rank = i
        };
        assert_ok(ds_model_open(&test_ranks.model[i], path, &o, &err));
    }
    return test_ranks.model[0];
}

static inline void test_close_ranks(ds_model *m)
{
    ds_model_close(m);
    for (uint32_t i = 1; i < test_ranks.n; i++)
        ds_model_close(test_ranks.model[i]);
    ds_model_close(test_ranks.lone);
}

static inline void *test_attend(void *runner)
{
    ds_err err;
    ds_rc rc;

    while ((rc = ds_runner_attend(runner, &err)) == DS_E_AGAIN)
        ;
    if (rc != DS_E_CANCELED)
        print_error("attending: %s\n", err.msg);
    return (void *)(uintptr_t)(rc != DS_E_CANCELED);
}

/* Runners of all ranks, with rank i's sequences run by the test if work[i], else attending. */
static inline struct test_group *test_group_create(const ds_runner_opts *o, const bool *works)
{
    struct test_group *g = test_group;
    ds_err err;
    int fd;

    while (g->runner[0])
        g++;
    assert_ok(ds_comm_shm_create(&fd, &(ds_comm_shm_opts){ .ranks = test_ranks.n, .message_bytes = 4096, .slots = 2 }, &err));
    for (uint32_t i = 0; i < test_ranks.n; i++) {
        ds_runner_opts own = *o;
        own.observe = i ? NULL : o->observe;
        own.pool = i ? NULL : o->pool;
        assert_ok(ds_comm_shm_join(&g->comm[i], fd, i, &err));
        own.comm = g->comm[i];
        assert_ok(ds_runner_create(&g->runner[i], test_ranks.model[i], &own, &err));
    }
    close(fd);
    for (uint32_t i = 0; i < test_ranks.n; i++)
        if (!works[i]) {
            g->comm[i]->fn->leave(g->comm[i]);
            assert_int_equal(pthread_create(&g->thread[i], NULL, test_attend, g->runner[i]), 0);
        }
    return g;
}

static inline void test_group_destroy(struct test_group *g, const bool *works)
{
    for (uint32_t i = 0; i < test_ranks.n; i++)
        if (works[i])
            g->comm[i]->fn->leave(g->comm[i]);
    for (uint32_t i = 0; i < test_ranks.n; i++)
        if (!works[i]) {
            void *wrong;
            pthread_join(g->thread[i], &wrong);
            assert_null(wrong);
        }
    for (uint32_t i = 0; i < test_ranks.n; i++) {
        ds_runner_destroy(g->runner[i]);
        g->comm[i]->fn->destroy(g->comm[i]);
    }
    *g = (struct test_group){ 0 };
}

static const bool test_works[TEST_MAX_RANKS] = { true };

static inline ds_rc test_runner_create(ds_runner **out, const ds_model *m, const ds_runner_opts *o, ds_err *err)
{
    if (!test_ranks.n)
        return ds_runner_create(out, m, o, err);
    *out = test_group_create(o, test_works)->runner[0];
    return DS_OK;
}

static inline void test_runner_destroy(ds_runner *r)
{
    struct test_group *g = test_group;

    if (!test_ranks.n) {
        ds_runner_destroy(r);
        return;
    }
    while (g < test_group + TEST_MAX_GROUPS && g->runner[0] != r)
        g++;
    if (r)
        test_group_destroy(g, test_works);
}

#endif
