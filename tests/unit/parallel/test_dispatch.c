/* Rows to their experts and back, by ranks that are threads: the results are those of one rank, bit for bit. */
#include <pthread.h>
#include <unistd.h>

#include "base/rng.h"
#include "fault.h"
#include "parallel/dispatch.h"
#include "parallel/shm.h"
#include "test.h"

enum { MAX_RANKS = 8, EXPERTS = 19, K = 4, D = 24, MAX_ROWS = 40, ALL_ROWS = 2 * MAX_ROWS + MAX_RANKS, LAYERS = 12 };

typedef struct {
    ds_comm *comm;
    ds_exchange *ex;
    uint32_t seed, max_rows;
    bool gives_up; /* before the last layer */
    /* of the call that runs */
    float x[ALL_ROWS * D], w[ALL_ROWS * K], part[ALL_ROWS * K * D];
    int32_t sel[MAX_ROWS * K], local[ALL_ROWS * K];
    uint32_t k;
    const ds_expert_place *place;
    ds_rc rc;
    ds_err err;
    char wrong[200];
} rank;

/* What expert e says of a value. */
static float says(uint32_t e, float w, float v)
{
    return w * (v + (float)e) * 1.7f;
}

static uint32_t expert_in(const rank *a, uint32_t slot)
{
    for (uint32_t e = 0; e < EXPERTS; e++)
        if (a->place[e].rank == a->comm->rank && a->place[e].slot == slot)
            return e;
    return EXPERTS;
}

static void compute(void *ctx, uint32_t first, uint32_t n)
{
    rank *a = ctx;

    assert_true(first + n <= a->max_rows + ds_exchange_guests(a->comm->ranks, a->max_rows));
    for (uint32_t p = first * a->k; p < (first + n) * a->k; p++) {
        if (a->local[p] < 0)
            continue;
        uint32_t e = expert_in(a, (uint32_t)a->local[p]);
        for (uint32_t i = 0; i < D; i++)
            a->part[p * D + i] = says(e, a->w[p], a->x[p / a->k * D + i]);
    }
}

static void move(void *ctx, void *to, const void *from, size_t bytes)
{
    (void)ctx;
    memcpy(to, from, bytes);
}

typedef struct {
    uint64_t seed, n;
} numbers;

static uint64_t below(numbers *g, uint64_t n)
{
    return ds_rng_u64(g->seed, 0, g->n++) % n;
}

/* Rows of a rank in a layer: none, one, all there may be, or some. */
static uint32_t rows_in(numbers *g, uint32_t most)
{
    switch (below(g, 4)) {
    case 0:
        return 0;
    case 1:
        return 1;
    case 2:
        return most;
    default:
        return (uint32_t)below(g, most + 1);
    }
}

static void choose(numbers *g, int32_t *sel, uint32_t k)
{
    for (uint32_t i = 0; i < k; i++) {
        bool again = true;
        while (again) {
            sel[i] = (int32_t)below(g, EXPERTS);
            again = false;
            for (uint32_t j = 0; j < i; j++)
                again = again || sel[j] == sel[i];
        }
    }
}

static void check(rank *a, uint32_t rows, uint32_t layer)
{
    for (uint32_t p = 0; p < rows * a->k; p++)
        for (uint32_t i = 0; i < D; i++) {
            float want = says((uint32_t)a->sel[p], a->w[p], a->x[p / a->k * D + i]);
            if (memcmp(&want, &a->part[p * D + i], sizeof want) != 0 && !a->wrong[0])
                snprintf(a->wrong, sizeof a->wrong, "rank %u of %u, layer %u, row %u, expert %d, value %u: %g, expected %g", a->comm->rank,
                         a->comm->ranks, layer, p / a->k, a->sel[p], i, (double)a->part[p * D + i], (double)want);
        }
}

static void *layers(void *arg)
{
    static const ds_exchange_fns fns = { move, move, compute };
    rank *a = arg;
    numbers g = { a->seed * 100 + a->comm->rank, 0 }, shared = { a->seed, 0 };
    ds_expert_place place[EXPERTS];

    for (uint32_t l = 0; l < LAYERS && a->rc == DS_OK; l++) {
        uint32_t rows = rows_in(&g, a->max_rows), used[MAX_RANKS] = { 0 };
        a->k = 1 + (uint32_t)below(&shared, K);  /* drafts' layers have fewer experts a row */
        for (uint32_t e = 0; e < EXPERTS; e++) { /* any placement will do */
            uint32_t r = (uint32_t)below(&shared, a->comm->ranks);
            place[e] = (ds_expert_place){ r, used[r]++ };
        }
        a->place = place;
        for (uint32_t i = 0; i < rows * D; i++)
            a->x[i] = (float)below(&g, 1000) / 7.0f;
        for (uint32_t r = 0; r < rows; r++)
            choose(&g, a->sel + r * a->k, a->k);
        for (uint32_t i = 0; i < rows * a->k; i++)
            a->w[i] = (float)below(&g, 1000) / 999.0f;
        if (a->gives_up && l + 1 == LAYERS) {
            a->comm->fn->give_up(a->comm, "enough");
            return NULL;
        }
        a->rc = ds_exchange_run(a->ex,
                                &(ds_exchange_call){ .fn = &fns,
                                                     .ctx = a,
                                                     .rows = rows,
                                                     .k = a->k,
                                                     .d = D,
                                                     .sel = a->sel,
                                                     .x = a->x,
                                                     .w = a->w,
                                                     .local = a->local,
                                                     .part = a->part,
                                                     .place = place,
                                                     .n_experts = EXPERTS },
                                &a->err);
        if (a->rc == DS_OK)
            check(a, rows, l);
    }
    return NULL;
}

static rank *run_ranks(uint32_t n, uint32_t seed, uint32_t max_rows, uint32_t message_bytes, bool last_gives_up)
{
    rank *a = calloc(n, sizeof *a);
    pthread_t thread[MAX_RANKS];
    ds_err err;
    int fd;

    assert_non_null(a);
    assert_ok(ds_comm_shm_create(&fd, &(ds_comm_shm_opts){ .ranks = n, .message_bytes = message_bytes, .slots = 2 }, &err));
    for (uint32_t i = 0; i < n; i++) {
        a[i].seed = seed;
        a[i].max_rows = max_rows;
        a[i].gives_up = last_gives_up && i + 1 == n;
        assert_ok(ds_comm_shm_join(&a[i].comm, fd, i, &err));
        assert_ok(ds_exchange_create(&a[i].ex, a[i].comm, &(ds_exchange_opts){ .max_rows = max_rows, .max_k = K, .max_d = D }, &err));
    }
    close(fd);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, layers, &a[i]), 0);
    for (uint32_t i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    for (uint32_t i = 0; i < n; i++) {
        ds_exchange_destroy(a[i].ex);
        a[i].comm->fn->destroy(a[i].comm);
    }
    return a;
}

static void results_are_those_of_one_rank(void **unused)
{
    static const uint32_t ranks[] = { 1, 2, 3, 5, 8 }, most[] = { 1, 7, MAX_ROWS }, message[] = { 192, 1024, 8192 };
    (void)unused;

    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
        for (size_t m = 0; m < 3; m++)
            for (size_t b = 0; b < 3; b++) {
                rank *a = run_ranks(ranks[i], (uint32_t)(i * 9 + m * 3 + b), most[m], message[b], false);
                for (uint32_t r = 0; r < ranks[i]; r++) {
                    if (a[r].rc != DS_OK)
                        fail_msg("rank %u of %u: %s", r, ranks[i], a[r].err.msg);
                    if (a[r].wrong[0])
                        fail_msg("%s", a[r].wrong);
                }
                free(a);
            }
}

static void who_gives_up_ends_it_for_all(void **unused)
{
    rank *a = run_ranks(3, 5, MAX_ROWS, 512, true);
    (void)unused;

    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(a[r].rc, DS_E_IO);
        assert_non_null(strstr(a[r].err.msg, "rank 2 of 3: enough"));
    }
    free(a);
}

static void experts_are_dealt_evenly(void **unused)
{
    (void)unused;

    for (uint32_t experts = 1; experts <= 400; experts += 3)
        for (uint32_t ranks = 1; ranks <= experts && ranks <= 128; ranks++) {
            uint32_t next = 0, least = UINT32_MAX, most = 0;
            for (uint32_t r = 0; r < ranks; r++) {
                uint32_t first, n;
                ds_exchange_deal(experts, ranks, r, &first, &n);
                assert_int_equal(first, next);
                next += n;
                least = n < least ? n : least;
                most = n > most ? n : most;
            }
            assert_int_equal(next, experts);
            assert_true(least >= 1 && most - least <= 1);
        }
}

static ds_comm *lone;

static ds_rc create_once(void *ctx, ds_err *err)
{
    ds_exchange *x;
    ds_rc rc = ds_exchange_create(&x, lone, &(ds_exchange_opts){ .max_rows = 8, .max_k = K, .max_d = D }, err);
    (void)ctx;

    ds_exchange_destroy(x);
    return rc;
}

static void refusals(void **unused)
{
    ds_exchange *x;
    ds_err err;
    int fd;
    (void)unused;

    assert_ok(ds_comm_shm_create(&fd, &(ds_comm_shm_opts){ .ranks = 1, .message_bytes = 192 }, &err));
    assert_ok(ds_comm_shm_join(&lone, fd, 0, &err));
    close(fd);
    assert_refused(ds_exchange_create(&x, lone, &(ds_exchange_opts){ .max_rows = 8, .max_k = K, .max_d = 30 }, &err), DS_E_ARG,
                   "longer than a message");
    assert_null(x);
    assert_true(fault_every_allocation(create_once, NULL) > 3);
    lone->fn->destroy(lone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_those_of_one_rank),
        cmocka_unit_test(who_gives_up_ends_it_for_all),
        cmocka_unit_test(experts_are_dealt_evenly),
        cmocka_unit_test(refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
